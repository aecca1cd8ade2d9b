/* [asan] Every file of tests/io/corpus_net/ through the readers of network data, as in the fuzzer. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#define CORPUS_FOLDER "tests/io/corpus_net"
#define CORPUS_LEAST  18
#include "io/fuzz_net.c"

#include "io/test_corpus.c"
