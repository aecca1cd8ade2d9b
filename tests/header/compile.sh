#!/bin/bash
# Compiles the generated header in every supported configuration, and every program of this project as C and C++.
# A compiler or library that is not installed is counted as skipped.
cd "$(dirname "$0")/../.." || exit 1
. tests/header/matrix.sh
for cc in gcc clang g++ clang++ nvcc; do command -v $cc >/dev/null || skip $cc "not installed"; done

# One compiler optimises, if possible gcc, because some of its warnings need that. -O1 with these two flags runs the passes
# of -Warray-bounds and -Wstrict-aliasing in half the time of -O2. The last compiler of each language links and runs every
# case: clang if it is installed, which is the fastest. The other compilers only check the syntax of the same files.
# -Wmisleading-indentation takes gcc ten times as long as parsing the header; clang and separate.sh check it.
h=tests/header
optimising=$(languages | awk -F'|' '{ any = $1 } !/clang/ { gnu = $1 } END { print gnu ? gnu : any }')
linking=$(languages | awk -F'|' '{ last[$2] = $1 } END { for (std in last) printf " %s ", last[std] }')
optimise="-O1 -ftree-vrp -fstrict-aliasing"
case "$optimising" in clang*) optimise=-O1 ;; esac
core="-DDDP_NO_PLANNERS -DDDP_NO_MODELS -DDDP_NO_SIMULATOR -DDDP_NO_REPORTS"
# One translation unit with a private copy of the library. clang generates no code for static functions that are not
# called, but reports called functions that are not defined. gcc takes as long as for public functions.
alone="-DDDP_STATIC -DDREAMDDP_IMPLEMENTATION"
mpi=$(command -v mpicc >/dev/null && mpicc -show | sed 's/^[^ ]* *//; s/ -I/ -isystem /g; s/^-I/-isystem /')
mpi_read=$(printf %s "$mpi" | sed 's/ -[lLW][^ ]*//g')
tls=
# shellcheck disable=SC2086  # flags are a list of words
printf '#include <openssl/ssl.h>\n#if OPENSSL_VERSION_MAJOR < 3\n#error\n#endif\n' |
    ${CC:-cc} ${CPPFLAGS-} -fsyntax-only -x c - 2>/dev/null && tls=-DDDP_USE_OPENSSL
[ -n "$tls" ] || skip DDP_USE_OPENSSL "the headers of OpenSSL 3 are not installed"
while IFS='|' read -r cc std; do
    c="$cc $std $warn $flags -I."
    case "$cc" in gcc | g++) c="$c -Wno-misleading-indentation" ;; esac
    run="-x none -lm -lpthread -o @/a && @/a"
    threads="-x none -lm -lpthread -o @/a && @/a threads | grep -c '^rank . ' | grep -qx 4"
    [ "$cc" = "$optimising" ] && level=$optimise || level=-O0
    check "$cc: one file at ${level%% *} links with a second translation unit, and with a program that uses stb_ds" \
        "$c $level -c $h/impl.c -o @/o && $c $h/main.c -x none @/o $run && $c $h/stb_main.c -x none @/o $run"
    check "$cc: NDEBUG" "$c -DNDEBUG -fsyntax-only $h/impl.c"
    [ -z "$tls" ] || check "$cc: DDP_USE_OPENSSL" "$c $tls -fsyntax-only $h/impl.c"
    # A file with the same tokens as impl.c, which the first case compiles, is not compiled again.
    tokens="$c -D_GNU_SOURCE -E -P"
    same="[ \"\$($tokens $h/late.c | grep . | cksum)\" = \"\$($tokens $h/impl.c | grep . | cksum)\" ]"
    case "$linking" in
    *" $cc "*)
        check "$cc: declarations, then implementation" "$same || { $c -D_GNU_SOURCE $h/late.c $h/main.c $run; }"
        check "$cc: DDP_STATIC in two files" "$c $h/static_main.c $h/static_other.c $run"
        check "$cc: a program instantiates stb_ds in another file" \
            "$c -DDREAMDDP_NO_STB_DS_IMPLEMENTATION $core -c $h/impl.c -o @/o && $c -DSTB_DS_IMPLEMENTATION $h/stb_main.c -x none @/o $run"
        for f in stb_before stb_after stb_asked; do
            check "$cc: stb_ds in the same file: $f" "$c -DDDP_STATIC $h/$f.c $run"
        done
        for part in PLANNERS MODELS REPORTS; do
            check "$cc: DDP_NO_$part" "$c $alone -DDDP_NO_$part $h/main.c $run"
        done
        few="-DDDP_NO_PLANNERS -DDDP_NO_MODELS -DDDP_NO_REPORTS"
        check "$cc: a user loop trains without planners, models and reports" "$c $few examples/own_loop.c $threads"
        [ -z "$mpi" ] ||
            check "$cc: DDP_USE_MPI" "$c $few -DDDP_STATIC -DDDP_USE_MPI $mpi_read examples/own_loop.c -x none $mpi $threads"
        ;;
    *)
        check "$cc: late" "$same || $c -D_GNU_SOURCE -fsyntax-only $h/late.c"
        check "$cc: without planners, models, simulator and reports" "$c $core -fsyntax-only $h/impl.c"
        for f in static_main static_other; do
            check "$cc: $f" "$c -fsyntax-only $h/$f.c"
        done
        for f in stb_before stb_after stb_asked; do
            check "$cc: $f" "$c $core -fsyntax-only $h/$f.c"
        done
        [ -z "$mpi" ] || check "$cc: DDP_USE_MPI" "$c -DDDP_USE_MPI $mpi_read -fsyntax-only $h/impl.c"
        ;;
    esac
done < <(languages)

# precompile NAME COMPILER FLAGS < text: writes the header $work/NAME.h and its precompiled form, which the compiler uses for
# -include $work/NAME.h. Without the precompiled form the compiler reads the text.
precompile() {
    local name=$1 cc=$2 suffix=gch language=c-header
    shift 2
    cat >"$work/$name.h"
    case "$cc" in clang*) suffix=pch ;; esac
    # shellcheck disable=SC2100  # a word, not a sum
    case "$cc" in *++) language=c++-header ;; esac
    "$cc" "$@" -x $language "$work/$name.h" -o "$work/$name.h.$suffix" 2>/dev/null
}

# begins FILE: succeeds if FILE defines DREAMDDP_IMPLEMENTATION, and nothing else, before it includes dreamddp.h. The
# precompiled header then gives the same text.
begins() {
    awk '
        inside { if (!sub(/^.*\*\//, "")) next; inside = 0 }
        { gsub(/\/\*([^*]|\*+[^*\/])*\*+\//, "") }
        sub(/\/\*.*/, "") { inside = 1 }
        /^[ \t]*$/ { next }
        /^#define DREAMDDP_IMPLEMENTATION *$/ { defined = 1; next }
        /^#include "dreamddp.h"/ { found = defined; exit }
        /^#if defined\(__CUDACC__\)/ || /^#include "dreamddp_cuda.cuh"/ || /^#else/ { next }
        { exit }
        END { exit !found }' "$1"
}

# readings NAME COMPILER PREFIX FILE...: prints the command that reads each file, with $work/NAME.h first if possible
readings() {
    local name=$1 c=$2 prefix=$3 f
    shift 3
    for f in "$@"; do
        # shellcheck disable=SC2016  # expanded by the shell of the case
        if begins "$f"; then printf '%s -include "$work/%s.h" %s && ' "$c" "$name" "$f"
        else printf '%s %s %s && ' "$c" "$prefix" "$f"; fi
    done
    echo true
}

# The implementation is compiled above. Here the compilers read tests and programs with only the headers, including private
# ones: as C11, and as C++17 with one compiler. One compiler reads the programs with the implementation, as users do.
make -s build/headers/dreamddp.h
headers="-DDDP_SEPARATE -Ibuild/headers -Isrc -Itests"
while IFS='|' read -r cc std; do
    [ "$cc" = g++ ] && command -v clang++ >/dev/null && continue
    # shellcheck disable=SC2086  # flags are a list of words
    printf '#include "%s"\n#define DREAMDDP_IMPLEMENTATION\n#include "dreamddp.h"\n' "$PWD/tests/heap.h" |
        precompile "apart-$cc" "$cc" ${std#-x c++} $warn $flags $headers &
    for in in tests/*/ examples/ examples/*/ bench/bench_ bench/timing/; do
        [ "$in" = $h/ ] || ! compgen -G "$in*.c" >/dev/null || check "$cc: $in*.c" \
            "$(readings "apart-$cc" "$cc $std $warn $flags $headers -fsyntax-only" "-include tests/heap.h" "$in"*.c)"
    done
done < <(languages)
reader=$(languages | awk -F'|' '$2 == "-std=c11" { cc = $1 } END { print cc }')
whole="$reader -std=c11 $warn -Wno-misleading-indentation $flags -I."
# shellcheck disable=SC2086  # flags are a list of words
printf '#define DREAMDDP_IMPLEMENTATION\n#include "dreamddp.h"\n' | precompile whole $whole &
whole="$whole -fsyntax-only"
for f in examples/*.c examples/*/*.c bench/bench_*.c; do
    check "$f with the implementation" "$(readings whole "$whole" "" "$f")"
done
if [ -n "$mpi" ]; then
    check "mpi_allreduce.c" "mpicc $warn -fsyntax-only bench/mpi_allreduce.c"
else
    skip mpicc "not installed"
fi
# shellcheck disable=SC2086  # flags are a list of words
if echo '#include <cblas.h>' | ${CC:-cc} ${CPPFLAGS-} -fsyntax-only -x c - 2>/dev/null; then
    check "bench_sgemm.c with OpenBLAS" "$whole -DDDP_USE_CBLAS bench/bench_sgemm.c"
else
    skip DDP_USE_CBLAS "cblas.h is not installed"
fi
[ -z "$tls" ] || check "bench_allreduce.c with OpenSSL" "$whole $tls bench/bench_allreduce.c"

check "a libc header before dreamddp.h with -std=c11 fails with an error" \
    "! ${CC:-cc} -std=c11 $flags -I. -fsyntax-only $h/libc_first.c 2>@/err && grep -q 'include dreamddp.h first' @/err"
again="$warn -Wno-misleading-indentation $flags -I. -fsyntax-only"
cxx=$(languages | awk -F'|' '/[+][+]/ { print $1; exit }')
check "a libc header before dreamddp.h compiles with the default standard" \
    "${CC:-cc} $again $h/libc_first.c${cxx:+ && $cxx -std=c++20 -x c++ $again $h/libc_first.c}"
# The whole header is read with these flags. Code is generated for files with vector types or separate instruction sets.
# tests/base/test_fast_math.sh runs the files that check for non-finite numbers.
fast="-std=c11 -Ofast -march=native $warn $flags"
check "-Ofast -march=native" "${CC:-cc} $fast -Wno-misleading-indentation -I. -fsyntax-only $h/impl.c$(
    grep -rlE 'vector_size|target\(|any_lanes|quantise_lanes|ddp__f4' src --include='*.c' | LC_ALL=C sort |
        while read -r f; do printf ' && %s %s -DDDP_SEPARATE -Isrc -c %s -o @/o' "${CC:-cc}" "$fast" "$f"; done)"
cross=aarch64-linux-gnu # the kernels must contain fused vector products
if command -v $cross-gcc >/dev/null; then
    arm="$cross-gcc -std=c11 $warn $flags"
    kernels="$arm -DDDP_SEPARATE -Isrc -O2 -c src/ops/kernels.c -o @/o && $cross-objdump -d @/o | grep 'fmla.*4s' >/dev/null"
    check "$cross: one file, and the kernels at -O2" "$arm -Wno-misleading-indentation -I. -fsyntax-only $h/impl.c && $kernels"
else
    skip $cross-gcc "not installed"
fi
if command -v nvcc >/dev/null; then
    check "nvcc: implementation in a .cu" \
        "cp $h/impl.c @/impl.cu && cp $h/main.c @/main.cu && nvcc -std=c++17 $flags -I. @/impl.cu @/main.cu -lpthread -o @/a && @/a"
fi
wait # for the precompiled headers
finish
