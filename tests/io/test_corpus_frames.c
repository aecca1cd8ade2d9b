/* [asan] Every file of tests/io/corpus_frames/ is said to an engine, as the fuzzer would. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#define CORPUS_FOLDER "tests/io/corpus_frames"
#define CORPUS_LEAST  14
#include "io/fuzz_frames.c"

#include "io/test_corpus.c"
