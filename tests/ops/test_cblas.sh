#!/bin/sh
# [test-all: needs OpenBLAS] DDP_USE_CBLAS: runs tests/ops/cblas.c with OpenBLAS. Exit 77 if OpenBLAS is missing.
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tests/cases.sh"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
build() {
    # shellcheck disable=SC2086  # flags are a list of words
    ${CC:-cc} -std=c11 ${CPPFLAGS:-} -isystem "$root/build/include" -O1 -DDDP_USE_CBLAS -I"$root" "$@" -lopenblas -lm -lpthread
}
echo '#include <cblas.h>
int main(void) { return 0; }' >"$work/try.c"
build "$work/try.c" -o "$work/try" 2>/dev/null || skip_script "OpenBLAS is not installed"
build -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror "$root/tests/ops/cblas.c" -o "$work/cblas" || { echo "FAILED: it does not compile"; exit 1; }
"$work/cblas"
