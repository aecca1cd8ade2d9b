#!/bin/bash
# Each file of src/ alone, so that its #includes are complete: as C11, no warning. All compilers read them together
# in compile.sh, as C++17 too.
cd "$(dirname "$0")/../.." || exit 1
. tests/header/matrix.sh

while IFS='|' read -r cc std; do
    for f in $(find src -name '*.c' | sort); do
        check "$cc $std $f" "$cc $std $warn -Wmissing-prototypes -DDDP_SEPARATE $flags -Isrc -fsyntax-only $f"
    done
done < <(languages | grep -F -e '|-std=c11')
finish
