#!/bin/sh
# The update rules give the same bits whatever the compiler may fuse: each compiler here, for the
# base processor and for this one with fused multiply-add allowed. Exit 77 without a compiler.
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
built=0 failed=0

build() { # CC NUMBER FLAGS: all of the library, which takes a while, so two at a time
    # shellcheck disable=SC2086
    ! command -v "$1" >/dev/null || "$1" $3 -I "$here/../src" "$here/torch_optim.c" -o "$work/$1$2" -lm -lpthread
}

n=0
for flags in "-O2" "-O0" "-std=gnu11 -O3 -march=native -ffp-contract=fast"; do
    n=$((n + 1))
    build gcc $n "$flags" &
    build clang $n "$flags"
    wait
    for cc in gcc clang; do
        command -v "$cc" >/dev/null || continue
        if ! [ -x "$work/$cc$n" ]; then
            echo "FAILED to build: $cc $flags"
            failed=1
            continue
        fi
        built=$((built + 1))
        {
            "$work/$cc$n" sgd 0.1 0.9 0 0 0.01 20 1003
            "$work/$cc$n" adam 0.001 0.9 0.999 1e-8 0.01 20 1003
            "$work/$cc$n" adamw 0.001 0.9 0.999 1e-8 0.01 20 1003
        } >"$work/now"
        [ -f "$work/first" ] || cp "$work/now" "$work/first"
        if cmp -s "$work/first" "$work/now"; then
            echo "ok: $cc $flags"
        else
            echo "FAILED: other bits with $cc $flags"
            failed=1
        fi
    done
done
[ "$built" -gt 0 ] || { echo "skipped: neither gcc nor clang is installed"; exit 77; }
exit $failed
