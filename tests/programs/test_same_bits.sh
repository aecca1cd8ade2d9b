#!/bin/sh
# [test-all: compiles with gcc and clang] The update rules are bit-identical with every compiler, for the
# base processor and for this one with fused multiply-add enabled. Exit 77 without a compiler.
cd "$(dirname "$0")/../.." || exit 1
make -s build/headers/dreamddp.h || exit 1
. tests/cases.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
built=0

build() { # CC FLAGS: the update rules and the modules that they use
    # shellcheck disable=SC2086
    "$1" ${CPPFLAGS:-} -isystem build/include -DDDP_SEPARATE $2 -Ibuild/headers -Isrc tests/nn/torch_optim.c \
        src/nn/optimizer.c src/nn/muon.c src/base/*.c -o "$work/run" -lm -lpthread
}

for flags in "-O2" "-O0" "-std=gnu11 -O3 -march=native -ffp-contract=fast"; do
    for cc in gcc clang; do
        name="the update rules are bit-identical: $cc $flags"
        command -v "$cc" >/dev/null || { skip "$name" "no $cc"; continue; }
        build $cc "$flags" || { bad "$name" "it does not compile"; continue; }
        built=$((built + 1))
        {
            "$work/run" sgd 0.1 0.9 0 0 0.01 20 1003
            "$work/run" nesterov 0.1 0.9 0 0 0.01 20 1003
            "$work/run" adam 0.001 0.9 0.999 1e-8 0.01 20 1003
            "$work/run" adamw 0.001 0.9 0.999 1e-8 0.01 20 1003
            "$work/run" muon 0.02 0.95 0 0 0.01 20 1003 17
        } >"$work/now"
        [ -f "$work/first" ] || cp "$work/now" "$work/first"
        cmp -s "$work/first" "$work/now"
        result $? "$name" "the output differs from the first build's"
    done
done
[ "$built" -gt 0 ] || skip_script "neither gcc nor clang is installed"
close
