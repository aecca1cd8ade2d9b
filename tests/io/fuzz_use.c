/* Fuzzes how programs use the files and messages that they read, with libFuzzer (`make fuzz`). The first
 * byte of an input chooses the kind of the rest. Input that a reader accepts is used: planned with,
 * loaded, trained on, or cut over nodes.
 * tests/io/test_corpus_use.c replays tests/io/corpus_use/ through the same function. */
#ifndef DREAMDDP_H
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#endif

#include "use_plans.h"
#include "use_training.h"
#include "use_job.h"
#include "use_channel.h"

#ifdef __cplusplus
extern "C"
#endif
    int
    LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    FUZZ_PROFILE,
    FUZZ_NETWORK,
    FUZZ_LINKS,
    FUZZ_CHECKPOINT,
    FUZZ_ENVIRONMENT,
    FUZZ_JOB,
    FUZZ_CHANNEL,
    FUZZ_KINDS
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const use[FUZZ_KINDS])(const uint8_t *, size_t) = {
        fuzz_profile, fuzz_network, fuzz_links, fuzz_checkpoint, fuzz_environment, fuzz_job, fuzz_channel};

    if (size > 1) use[data[0] % FUZZ_KINDS](data + 1, size - 1);
    return 0;
}
