/* Every file of tests/corpus_net/ through the readers of what arrives, as the fuzzer would. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#define CORPUS_FOLDER "tests/corpus_net"
#define CORPUS_LEAST  18
#include "fuzz_net.c"

#include "test_corpus.c"
