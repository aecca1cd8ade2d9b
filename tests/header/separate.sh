#!/bin/bash
# Each file of src/ alone, so that its #includes are complete: C11 and C++17, no warning. All compilers read
# them together in compile.sh.
cd "$(dirname "$0")/../.." || exit 1
. tests/header/matrix.sh

while IFS='|' read -r cc std; do
    strict="$warn"
    case $cc in gcc | clang) strict="$warn -Wmissing-prototypes" ;; esac
    for f in $(find src -name '*.c' | sort); do
        check "$cc $std $f" "$cc $std $strict -DDDP_SEPARATE $flags -Isrc -fsyntax-only $f"
    done
done < <(two_of_them)
finish
