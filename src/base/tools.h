/* Utilities that programs share with the library: the clock, random numbers, and a hash of floats. */
#pragma once

#include "base/status.h"

/* ddp_now - returns the time in seconds on a monotonic clock. The origin is arbitrary, but the same for all
 * processes of one machine. In ddp_simulate it is the virtual time. Safe from any thread. */
DDP_API double ddp_now(void);

/* State of one random stream (splitmix64: 64-bit state, equidistributed, any seed is good). Copying the
 * struct copies the stream. One integer is enough to save it. */
typedef struct ddp_rng {
    uint64_t state;
} ddp_rng;

/* ddp_rng_seed - returns the random stream of (seed, stream). Different pairs give unrelated streams. One
 * thread at a time may use a stream. Pure. */
DDP_API ddp_rng ddp_rng_seed(uint64_t seed, uint64_t stream);

/* ddp_rng_u64 - returns the next 64-bit number of a stream. Changes *r. */
DDP_API uint64_t ddp_rng_u64(ddp_rng *r);

/* ddp_rng_below - returns a uniform number in 0..n-1 without bias (n >= 1). Changes *r. */
DDP_API uint64_t ddp_rng_below(ddp_rng *r, uint64_t n);

/* ddp_rng_uniform - returns a uniform number in [0, 1), with 53 bits. Changes *r. */
DDP_API double ddp_rng_uniform(ddp_rng *r);

/* ddp_rng_normal - returns an approximately normal number with mean 0 and standard deviation 1, within [-6,
 * 6]. Changes *r. */
DDP_API double ddp_rng_normal(ddp_rng *r);

/* ddp_hash_floats - returns a 64-bit hash of x[0..n-1] that depends on every bit and on the order. To hash
 * several arrays, pass the hash of the previous ones (0 at first). Bit-identical arrays give the same hash on
 * every platform. 0.0 and -0.0 hash differently, as do NaNs with different payloads. Not collision-resistant
 * against an attacker. Pure and safe from any thread. */
DDP_API uint64_t ddp_hash_floats(uint64_t hash, const float *x, size_t n);
