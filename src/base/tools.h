/* Small tools that programs share with the library: the clock, random numbers, a fingerprint. */
#pragma once

#include "base/status.h"

/* ddp_now - seconds on a clock that never goes back; the origin is arbitrary but the same for
 * all processes of one machine. Safe from any thread. */
DDP_API double ddp_now(void);

/* State of one stream (splitmix64: 64 bits, equidistributed, any seed is good).
 * Copying the struct copies the stream; it can be saved as one integer. */
typedef struct ddp_rng {
    uint64_t state;
} ddp_rng;

/* ddp_rng_seed - a stream for (seed, stream); unlike pairs give unrelated streams.
 * ddp_rng_u64 - the next 64 bits.  ddp_rng_below - uniform in 0..n-1, exact (n >= 1).
 * ddp_rng_uniform - uniform in [0, 1) with 53 bits.  ddp_rng_normal - mean 0, deviation 1.
 * A stream belongs to one thread at a time. */
DDP_API ddp_rng ddp_rng_seed(uint64_t seed, uint64_t stream);
DDP_API uint64_t ddp_rng_u64(ddp_rng *r);
DDP_API uint64_t ddp_rng_below(ddp_rng *r, uint64_t n);
DDP_API double ddp_rng_uniform(ddp_rng *r);
DDP_API double ddp_rng_normal(ddp_rng *r);

/* ddp_hash_floats - 64 bits that depend on every bit, and on the order, of x[0..n-1], chained:
 * pass the hash of the arrays before it, 0 at first. Equal bits give equal hashes on every
 * platform; 0.0 and -0.0 differ, as do NaNs with unlike payloads. Not for adversaries. Pure. */
DDP_API uint64_t ddp_hash_floats(uint64_t hash, const float *x, size_t n);
