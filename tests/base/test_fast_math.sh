#!/bin/bash
# [long, test-all: compiles half of the library twice with -Ofast] The files that compare with sentinels or look for numbers
# that are not finite, with -Ofast of gcc and clang: fast_math.c, and tests of planners and message codings with them.
cd "$(dirname "$0")/../.." || exit 1
. tests/cases.sh
flags="-std=c11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror ${CPPFLAGS-} -isystem build/include -DDDP_SEPARATE"
# NAME:TEXT runs the test functions whose names contain TEXT; the others compare bits
tests="plan/test_deft:bad_input plan/test_knapsack:bad_input plan/test_osp_plan plan/test_partial_search
       plan/test_place:bad_input plan/test_place_search plan/test_timeline plan/test_tour compress/test_adatopk pipe/test_schedule"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export work flags
# has_text TEST: it includes the text of a file, and the linker takes the first copy of a function
has_text() { grep -qs '^#include ".*\.c"' "tests/${1%:*}.c"; }
# shellcheck disable=SC2046,SC2086  # lists of words
make -s build/plain/dreamddp.a build/headers/dreamddp.h build/plain/src/select.o \
    $(for t in $tests; do has_text "$t" || echo "build/plain/${t%:*}.o"; done) || exit 1
grep -rlE 'DBL_MAX|ddp__(finite|is_nan|within|zero_or_within|unknown)' src --include='*.c' | LC_ALL=C sort >"$work/files"

for cc in gcc clang; do
    if ! command -v $cc >/dev/null; then
        skip "-Ofast of $cc" "not installed"
        continue
    fi
    mkdir "$work/$cc"
    export cc
    # shellcheck disable=SC2016  # expanded by the inner shell
    xargs -P "${JOBS:-2}" -n 1 sh -c '$cc $flags -Ofast -march=native -include tests/heap.h -Isrc -c $1 -o "$work/$cc/$(echo "${1%.c}" | tr / _).o"' \
        sh <"$work/files"
    result $? "-Ofast of $cc compiles without a warning"
    # fast_math.c gives the library numbers that are not finite, so it has none of these flags itself
    # shellcheck disable=SC2086  # flags are a list of words
    $cc $flags -O1 -include tests/heap.h -Ibuild/headers -Isrc -c tests/base/fast_math.c -o "$work/fast_math.o"
    for test in "$work/fast_math" $tests; do
        object=build/plain/${test%:*}.o compile=:
        [ "$test" = "$work/fast_math" ] && object=$work/fast_math.o
        if has_text "$test"; then
            object=$work/test.o
            compile="$cc $flags -Ofast -march=native -include tests/heap.h -Ibuild/headers -Isrc -Itests -c tests/${test%:*}.c -o $object"
        fi
        # shellcheck disable=SC2086  # flags are a list of words
        out=$($compile 2>&1 && $cc "$object" build/plain/src/select.o "$work/$cc"/*.o build/plain/dreamddp.a -Wl,--allow-multiple-definition \
            -o "$work/test" -lcmocka -lm -lpthread 2>&1 && TEST_NAME=$(sed -n 's/.*://p' <<<"$test") "$work/test" 2>&1)
        result $? "-Ofast of $cc: $(basename "${test%:*}")" "$(grep -E 'rror|FAILED' <<<"$out" | head -5)"
    done
done
close
