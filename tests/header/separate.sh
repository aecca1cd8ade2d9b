#!/bin/bash
# clang compiles each file of src/ alone, as C11 and without a warning, so that its #includes are complete. test_alone.py
# checks the output of the compiler of `make test`. compile.sh compiles all files together, also as C++17.
cd "$(dirname "$0")/../.." || exit 1
. tests/header/matrix.sh
for cc in clang; do command -v $cc >/dev/null || skip $cc "not installed"; done

while IFS='|' read -r cc std; do
    while read -r f; do
        check "$cc $std $f" "$cc $std $warn -Wmissing-prototypes -DDDP_SEPARATE $flags -Isrc -fsyntax-only $f"
    done < <(find src -name '*.c' | LC_ALL=C sort)
done < <(languages | grep -F -e 'clang|-std=c11')
finish
