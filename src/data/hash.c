#include "base/platform.h"
#include "data/hash.h"

/* Two floats per round, read as numbers and not as bytes, so that byte order does not matter.
 * Each round is a bijection of the hash: one changed bit can never be lost. */
static uint64_t ddp__hash_round(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 32);
}

uint64_t ddp_hash_floats(uint64_t hash, const float *x, size_t n)
{
    size_t i;
    uint32_t bits[2];

    hash = ddp__hash_round(hash, (uint64_t)n);
    for (i = 0; i + 2 <= n; i += 2) {
        memcpy(bits, x + i, sizeof bits);
        hash = ddp__hash_round(hash, bits[0] | (uint64_t)bits[1] << 32);
    }
    if (i < n) {
        memcpy(bits, x + i, sizeof *bits);
        hash = ddp__hash_round(hash, bits[0]);
    }
    return hash;
}
