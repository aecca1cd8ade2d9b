#!/bin/bash -eu
# Builds every fuzzer of tests/io with its seeds into $OUT, for OSS-Fuzz. To run it elsewhere:
#   d=$(mktemp -d); mkdir "$d/src" "$d/out" "$d/work"; ln -s "$PWD" "$d/src/dreamddp"
#   SRC=$d/src OUT=$d/out WORK=$d/work CC=clang CXX=clang++ CFLAGS="-O1 -g -fsanitize=address,fuzzer-no-link" \
#       CXXFLAGS="-fsanitize=address" LIB_FUZZING_ENGINE=-fsanitize=fuzzer packaging/oss-fuzz/build.sh
cd "$SRC/dreamddp"
compile=($CC $CFLAGS -std=c11 -DDDP_SEPARATE -isystem build/include)

# compile the library once, as one file; the fuzzers include its declarations
sed '/^#include ".*\.c"$/d' src/dreamddp.h > "$WORK/dreamddp.h"
"${compile[@]}" -Isrc -DDREAMDDP_IMPLEMENTATION -x c -c src/dreamddp.h -o "$WORK/library.o"
for source in tests/io/fuzz_*.c; do
    name=$(basename "$source" .c)
    seeds=tests/io/corpus_${name#fuzz_}
    [ -d "$seeds" ] || seeds=tests/io/corpus # the readers' corpus
    "${compile[@]}" -I"$WORK" -Isrc -c "$source" -o "$WORK/$name.o"
    $CXX $CXXFLAGS "$WORK/$name.o" "$WORK/library.o" -o "$OUT/$name" $LIB_FUZZING_ENGINE -lm -lpthread
    zip -q -j -r "$OUT/${name}_seed_corpus.zip" "$seeds"
    printf '[libfuzzer]\nmax_len = 4096\ntimeout = 60\n' > "$OUT/$name.options"
done
