/* Dealing samples to ranks: a deck of all samples, shuffled anew each epoch by the seed. */
#ifndef DDP_DATA_DEAL_H
#define DDP_DATA_DEAL_H

#include "base/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which of n >= 1 samples is card number `card`, counted from the start of training: the deck of
 * epoch card / n is a permutation of all samples. Never stored: O(1). Pure. */
DDP_LIB long ddp__deal(uint64_t seed, uint64_t card, uint64_t n);

/* The first card of a rank's batch in a step: world x batch cards a step, rank 0 the first. */
DDP_LIB uint64_t ddp__deal_first(long step, int rank, int world, long batch);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DATA_DEAL_H */
