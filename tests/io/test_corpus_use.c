/* [asan] Every file of tests/io/corpus_use/ is read and used, as the fuzzer would. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#define CORPUS_FOLDER "tests/io/corpus_use"
#define CORPUS_LEAST  30
#include "io/fuzz_use.c"

#include "io/test_corpus.c"
