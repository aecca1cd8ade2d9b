#!/bin/bash
# The generated header in every way that a program may use it, and every program of this project
# as C++ too. A compiler that is not here is counted as skipped.
cd "$(dirname "$0")/../.." || exit 1
. tests/header/matrix.sh
skipped=0
for cc in gcc clang g++ clang++ nvcc; do command -v $cc >/dev/null || skipped=$((skipped + 1)); done

h=tests/header
while IFS='|' read -r cc std; do
    c="$cc $std $warn $flags -I."
    run="-x none -lm -lpthread -o @/a && @/a"
    check "$cc: one file, -O2" "$c -O2 -c $h/impl.c -o @/o"
    check "$cc: two translation units" "$c $h/impl.c $h/main.c $run"
    check "$cc: declarations, then implementation" "$c -D_GNU_SOURCE $h/late.c $h/main.c $run"
    check "$cc: DDP_STATIC in two files" "$c $h/static_main.c $h/static_other.c $run"
    check "$cc: a program that uses our stb_ds" "$c $h/impl.c $h/stb_main.c $run"
    check "$cc: a program that instantiates stb_ds in another file" \
        "$c -DDREAMDDP_NO_STB_DS_IMPLEMENTATION -c $h/impl.c -o @/o && $c -DSTB_DS_IMPLEMENTATION $h/stb_main.c -x none @/o $run"
    for f in stb_before stb_after stb_asked; do
        check "$cc: stb_ds in the same file: $f" "$c $h/$f.c $run"
    done
    check "$cc: NDEBUG" "$c -DNDEBUG -fsyntax-only $h/impl.c"
done < <(languages)

# Programs are built as C11 by $CC elsewhere; here by clang too, and as C++17 by one compiler. Tests see
# the headers only, as when they are linked.
make -s build/headers/dreamddp.h
apart="-DDDP_SEPARATE -include tests/heap.h -Ibuild/headers -Isrc"
while IFS='|' read -r cc std; do
    [ "$cc" = gcc ] && continue
    [ "$cc" = g++ ] && command -v clang++ >/dev/null && continue
    for f in tests/*.c; do
        check "$cc: $f" "$cc $std $warn $flags $apart -Itests -fsyntax-only $f"
    done
    for f in examples/*.c bench/*.c; do
        [ -e "$f" ] && check "$cc: $f" "$cc $std $warn $flags -I. -Iexamples -fsyntax-only $f"
    done
done < <(languages)

check "a libc header first under -std=c11 is refused in a sentence" \
    "! ${CC:-cc} -std=c11 $flags -I. -fsyntax-only $h/libc_first.c 2>@/err && grep -q 'include dreamddp.h first' @/err"
if command -v nvcc >/dev/null; then
    check "nvcc: implementation in a .cu" \
        "cp $h/impl.c @/impl.cu && cp $h/main.c @/main.cu && nvcc -std=c++17 $flags -I. @/impl.cu @/main.cu -lpthread -o @/a && @/a"
fi
finish
