/* Seeded random numbers, the same on every platform. */
#ifndef DDP_BASE_RNG_H
#define DDP_BASE_RNG_H

#include "base/config.h"

/* State of one stream (splitmix64: 64 bits, equidistributed, any seed is good).
 * Copying the struct copies the stream; it can be saved as one integer. */
typedef struct ddp_rng {
    uint64_t state;
} ddp_rng;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_rng_seed - a stream for (seed, stream); unlike pairs give unrelated streams.
 * ddp_rng_u64 - the next 64 bits.  ddp_rng_below - uniform in 0..n-1, exact (n >= 1).
 * ddp_rng_uniform - uniform in [0, 1) with 53 bits.  ddp_rng_normal - mean 0, deviation 1.
 * A stream belongs to one thread at a time. */
DDP_API ddp_rng  ddp_rng_seed(uint64_t seed, uint64_t stream);
DDP_API uint64_t ddp_rng_u64(ddp_rng *r);
DDP_API uint64_t ddp_rng_below(ddp_rng *r, uint64_t n);
DDP_API double   ddp_rng_uniform(ddp_rng *r);
DDP_API double   ddp_rng_normal(ddp_rng *r);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_RNG_H */
