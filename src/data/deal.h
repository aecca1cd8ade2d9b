/* Dealing samples to ranks: a deck of all samples, shuffled afresh each pass by the seed. */
#ifndef DDP_DATA_DEAL_H
#define DDP_DATA_DEAL_H

#include "base/tools.h"

/* Card number i of a shuffled deck of n >= 1: a four-round Feistel network permutes the next
 * power of four; values outside the deck are permuted again until they fall inside, at most
 * four times on average (Black and Rogaway, Ciphers with arbitrary finite domains, 2002). */
static inline uint64_t ddp__shuffled(uint64_t i, uint64_t n, uint64_t key)
{
    int half = 1, round;
    uint64_t mask, left, right, mixed;
    ddp_rng r;

    while (half < 31 && (UINT64_C(1) << (2 * half)) < n) half++;
    mask = (UINT64_C(1) << half) - 1;
    do {
        left = i >> half;
        right = i & mask;
        for (round = 0; round < 4; round++) {
            r = ddp_rng_seed(key + (uint64_t)round, right);
            mixed = left ^ (ddp_rng_u64(&r) & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

/* Which of n >= 1 samples is card number `card`, counted from the start of training: the deck of
 * pass card / n is a permutation of all samples. Never stored: O(1). Pure. */
static inline long ddp__deal(uint64_t seed, uint64_t card, uint64_t n)
{
    ddp_rng key = ddp_rng_seed(seed, card / n);

    return (long)ddp__shuffled(card % n, n, ddp_rng_u64(&key));
}

/* The first card of a rank's batch in a step: world x batch cards a step, rank 0 the first. */
static inline uint64_t ddp__deal_first(long step, int rank, int world, long batch)
{
    return ((uint64_t)step * (uint64_t)world + (uint64_t)rank) * (uint64_t)batch;
}

#endif /* DDP_DATA_DEAL_H */
