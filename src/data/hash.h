/* A quick fingerprint of float arrays. */
#ifndef DDP_DATA_HASH_H
#define DDP_DATA_HASH_H

#include "base/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_hash_floats - 64 bits that depend on every bit, and on the order, of x[0..n-1], chained:
 * pass the hash of the arrays before it, 0 at first. Equal bits give equal hashes on every
 * platform; 0.0 and -0.0 differ, as do NaNs with unlike payloads. Not for adversaries. Pure. */
DDP_API uint64_t ddp_hash_floats(uint64_t hash, const float *x, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DATA_HASH_H */
