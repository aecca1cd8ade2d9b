#!/bin/sh
# Downloads the public data sets into data/ (or FOLDER), and checks each by its hash or size:
#   tools/get_data.sh [FOLDER] [tinyshakespeare] [mnist] [wikitext-2] [cifar10]
# Without names it downloads all, about 190 MB. Existing files are not downloaded again.
set -eu
case "${1-}" in
-h | --help) sed -n 's/^# \{0,1\}//;2,5p' "$0"; exit 0 ;;
'' | tinyshakespeare | mnist | wikitext-2 | cifar10) dir=data ;;
*) dir=$1; shift ;;
esac
[ $# -gt 0 ] || set -- tinyshakespeare mnist wikitext-2 cifar10
for tool in curl gzip tar sha256sum; do
    command -v "$tool" >/dev/null || { echo "get_data: needs $tool" >&2; exit 1; }
done

fetch() { # url file
    mkdir -p "$(dirname "$2")"
    echo "get_data: $1" >&2
    curl -fsSL --retry 3 -o "$2.part" "$1"
    mv "$2.part" "$2"
}

# Deletes file $1 and stops unless its unpacked first $2 bytes (0 = all) have sha256 $3.
verify() {
    case $1 in *.gz) unpack="gzip -dc" ;; *) unpack="cat" ;; esac
    sum=$($unpack "$1" | if [ "$2" = 0 ]; then cat; else head -c "$2"; fi | sha256sum)
    [ "${sum%% *}" = "$3" ] && return
    rm -f "$1"
    echo "get_data: $1 has the wrong sha256 (${sum%% *}) and was deleted" >&2
    exit 1
}

get_tinyshakespeare() {
    f=$dir/tinyshakespeare/input.txt
    [ -e "$f" ] || fetch https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt "$f"
    verify "$f" 0 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
}

get_mnist() {
    while read -r name sum; do
        f=$dir/mnist/$name.gz
        [ -e "$f" ] || fetch "https://ossci-datasets.s3.amazonaws.com/mnist/$name.gz" "$f"
        verify "$f" 0 "$sum"
    done <<END
train-images-idx3-ubyte ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
train-labels-idx1-ubyte 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
t10k-images-idx3-ubyte 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
t10k-labels-idx1-ubyte ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2
END
}

get_wikitext_2() { # the training split is checked by its published size
    for name in train valid test; do
        f=$dir/wikitext-2/$name.txt
        [ -e "$f.gz" ] && continue
        fetch "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/$name.txt" "$f"
        case $name in
        train) [ "$(wc -c <"$f")" -eq 10797148 ] || { rm -f "$f"; echo "get_data: $f has a wrong size; deleted" >&2; exit 1; } ;;
        valid) verify "$f" 0 f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8 ;;
        test) verify "$f" 0 d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0 ;;
        esac
        gzip "$f"
    done
}

get_cifar10() { # the whole set, and the two subsets that the tests read
    c=$dir/cifar10
    if [ ! -e "$c/data_batch_1.bin" ]; then
        fetch https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz "$c/cifar-10-binary.tar.gz"
        tar -xzf "$c/cifar-10-binary.tar.gz" -C "$c" --strip-components=1
        rm "$c/cifar-10-binary.tar.gz"
    fi
    verify "$c/data_batch_1.bin" 12292000 0993cf8b8e43bc207603aef9787006995746513f5e3fa5a52e06d1b069926330
    verify "$c/test_batch.bin" 3073000 8314c96d7cd65618193bab23acdd5d4c4af15bf6dd00a1781d55beedf3be1ef5
    head -c 12292000 "$c/data_batch_1.bin" | gzip >"$c/data_batch_1_first4000.bin.gz"
    head -c 3073000 "$c/test_batch.bin" | gzip >"$c/test_batch_first1000.bin.gz"
}

for set in "$@"; do
    case $set in
    tinyshakespeare) get_tinyshakespeare ;;
    mnist) get_mnist ;;
    wikitext-2) get_wikitext_2 ;;
    cifar10) get_cifar10 ;;
    *) echo "get_data: no set named $set (tinyshakespeare mnist wikitext-2 cifar10)" >&2; exit 2 ;;
    esac
    echo "get_data: $dir/$set is there and right" >&2
done
