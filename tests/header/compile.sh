#!/bin/bash
# The generated header in every way that a program may use it, and every program of this project
# as C++ too. A compiler that is not here is counted as skipped.
cd "$(dirname "$0")/../.." || exit 1
. tests/header/matrix.sh
skipped=0
for cc in gcc clang g++ clang++ nvcc; do command -v $cc >/dev/null || skipped=$((skipped + 1)); done

# One compiler optimises, of GNU where it is here, whose warnings need that. The last compiler of each language links
# and runs every use, clang where it is here, which is four times as fast; the others read the same files. gcc spends
# most of its time in a file as long as the header on one warning: each compiler looks for it once.
h=tests/header
optimising=$(languages | awk -F'|' '{ any = $1 } !/clang/ { gnu = $1 } END { print gnu ? gnu : any }')
linking=$(languages | awk -F'|' '{ last[$2] = $1 } END { for (std in last) printf " %s ", last[std] }')
again=-Wno-misleading-indentation
mpi=$(command -v mpicc >/dev/null && mpicc -show | sed 's/^[^ ]* *//; s/ -I/ -isystem /g; s/^-I/-isystem /')
printf '#include <openssl/ssl.h>\n#if OPENSSL_VERSION_MAJOR < 3\n#error\n#endif\n' | ${CC:-cc} -fsyntax-only -x c - 2>/dev/null && tls=-DDDP_USE_OPENSSL || tls=
while IFS='|' read -r cc std; do
    first="$cc $std $warn $flags -I."
    c="$first $again"
    run="-x none -lm -lpthread -o @/a && @/a"
    [ "$cc" = "$optimising" ] && level=-O2 || level=-O0
    check "$cc: one file at $level, beside a second translation unit, beside a program that uses our stb_ds" \
        "$first $level -c $h/impl.c -o @/o && $c $h/main.c -x none @/o $run && $c $h/stb_main.c -x none @/o $run"
    check "$cc: NDEBUG" "$c -DNDEBUG -fsyntax-only $h/impl.c"
    [ -z "$tls" ] || check "$cc: DDP_USE_OPENSSL" "$c $tls -fsyntax-only $h/impl.c"
    case "$linking" in
    *" $cc "*)
        check "$cc: declarations, then implementation" "$c -D_GNU_SOURCE $h/late.c $h/main.c $run"
        check "$cc: DDP_STATIC in two files" "$c $h/static_main.c $h/static_other.c $run"
        check "$cc: a program that instantiates stb_ds in another file" \
            "$c -DDREAMDDP_NO_STB_DS_IMPLEMENTATION -c $h/impl.c -o @/o && $c -DSTB_DS_IMPLEMENTATION $h/stb_main.c -x none @/o $run"
        for f in stb_before stb_after stb_asked; do
            check "$cc: stb_ds in the same file: $f" "$c $h/$f.c $run"
        done
        for part in PLANNERS MODELS REPORTS; do
            check "$cc: DDP_NO_$part" "$c -DDDP_NO_$part -c $h/impl.c -o @/o && $c $h/main.c -x none @/o $run"
        done
        check "$cc: without all four a loop of one's own trains" \
            "$c -DDDP_NO_PLANNERS -DDDP_NO_MODELS -DDDP_NO_REPORTS examples/own_loop.c $run threads | grep -c '^rank . ' | grep -qx 4"
        [ -z "$mpi" ] ||
            check "$cc: DDP_USE_MPI" "$c -DDDP_USE_MPI $h/impl.c $h/main.c -x none -o @/a $mpi -lm -lpthread && @/a"
        ;;
    *)
        check "$cc: late" "$c -D_GNU_SOURCE -fsyntax-only $h/late.c"
        check "$cc: without all four" "$c -DDDP_NO_PLANNERS -DDDP_NO_MODELS -DDDP_NO_SIMULATOR -DDDP_NO_REPORTS -c $h/impl.c -o @/o"
        for f in static_main static_other stb_before stb_after stb_asked; do
            check "$cc: $f" "$c -fsyntax-only $h/$f.c"
        done
        [ -z "$mpi" ] ||
            check "$cc: DDP_USE_MPI" "$c -DDDP_USE_MPI $(printf %s "$mpi" | sed 's/ -[lLW][^ ]*//g') -fsyntax-only $h/impl.c"
        ;;
    esac
done < <(languages)

# The implementation has passed above. So tests and programs are read with the headers only, private ones
# too: as C11, and as C++17 by one compiler. Programs are read whole too, as a user compiles them.
make -s build/headers/dreamddp.h
apart="-DDDP_SEPARATE -include tests/heap.h -Ibuild/headers -Isrc -Itests -fsyntax-only"
while IFS='|' read -r cc std; do
    [ "$cc" = g++ ] && command -v clang++ >/dev/null && continue
    for in in tests/*/ examples/ examples/*/ bench/bench_; do
        [ $in = $h/ ] || ! compgen -G "$in*.c" >/dev/null ||
            check "$cc: $in*.c" "for f in $in*.c; do $cc $std $warn $flags $apart \$f || exit 1; done"
    done
done < <(languages)
whole="$(languages | awk -F'|' '$2 == "-std=c11" { cc = $1 } END { print cc }') -std=c11 $warn $again $flags -I. -fsyntax-only"
for f in examples/*.c examples/*/*.c bench/bench_*.c; do
    check "$f, whole" "$whole $f"
done
if [ -n "$mpi" ]; then
    check "mpi_allreduce.c" "mpicc $warn -fsyntax-only bench/mpi_allreduce.c"
else
    skipped=$((skipped + 1))
fi
echo '#include <cblas.h>' | ${CC:-cc} -fsyntax-only -x c - 2>/dev/null &&
    check "bench_sgemm.c beside OpenBLAS" "$whole -DDDP_USE_CBLAS bench/bench_sgemm.c"
[ -z "$tls" ] || check "bench_allreduce.c with OpenSSL" "$whole $tls bench/bench_allreduce.c"

check "a libc header first under -std=c11 is refused in a sentence" \
    "! ${CC:-cc} -std=c11 $flags -I. -fsyntax-only $h/libc_first.c 2>@/err && grep -q 'include dreamddp.h first' @/err"
check "a libc header first under the compiler's own default" \
    "${CC:-cc} $warn $flags -I. -fsyntax-only $h/libc_first.c && g++ -std=c++20 -x c++ $warn $flags -I. -fsyntax-only $h/libc_first.c"
check "-Ofast -march=native" "${CC:-cc} -std=c11 $warn $flags -I. -Ofast -march=native -c $h/impl.c -o @/o"
cross=aarch64-linux-gnu # its products must be fused vectors
if command -v $cross-gcc >/dev/null; then
    check "$cross: one file, -O2" \
        "$cross-gcc -std=c11 $warn $flags -I. -O2 -c $h/impl.c -o @/o && $cross-objdump -d @/o | grep 'fmla.*4s' >/dev/null"
else
    skipped=$((skipped + 1))
fi
if command -v nvcc >/dev/null; then
    check "nvcc: implementation in a .cu" \
        "cp $h/impl.c @/impl.cu && cp $h/main.c @/main.cu && nvcc -std=c++17 $flags -I. @/impl.cu @/main.cu -lpthread -o @/a && @/a"
fi
finish
