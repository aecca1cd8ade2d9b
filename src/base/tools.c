/* The clock, random numbers and hashes. */
#include "base/platform.h"
#include "base/hash.h"
#include "base/tools.h"

double ddp_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ---- random numbers ---- */

static uint64_t ddp__mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

ddp_rng ddp_rng_seed(uint64_t seed, uint64_t stream)
{
    ddp_rng r;

    r.state = ddp__mix64(seed + UINT64_C(0x9e3779b97f4a7c15)) ^
              ddp__mix64(stream * UINT64_C(0xd1342543de82ef95) + UINT64_C(0x2545f4914f6cdd1d));
    return r;
}

uint64_t ddp_rng_u64(ddp_rng *r)
{
    r->state += UINT64_C(0x9e3779b97f4a7c15);
    return ddp__mix64(r->state);
}

uint64_t ddp_rng_below(ddp_rng *r, uint64_t n)
{
    uint64_t skip = (UINT64_MAX - n + 1) % n; /* 2^64 mod n values would be too many */
    uint64_t x;

    do x = ddp_rng_u64(r); while (x < skip);
    return x % n;
}

double ddp_rng_uniform(ddp_rng *r) { return (double)(ddp_rng_u64(r) >> 11) * 0x1.0p-53; }

/* libm's log and cos are not bit-equal on all platforms; twelve uniforms minus six need only
 * additions, which IEEE rounds alike everywhere. Mean 0, variance 1, tails end at 6. */
double ddp_rng_normal(ddp_rng *r)
{
    double s = 0;
    int i;

    for (i = 0; i < 12; i++) s += ddp_rng_uniform(r);
    return s - 6;
}

/* ---- a fingerprint of floats ---- */

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

/* ---- hashes of bytes ---- */

uint64_t ddp__hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    size_t i;

    for (i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static const uint32_t ddp__sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t ddp__rotate(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void ddp__sha256_block(ddp__sha256 *s, const unsigned char *b)
{
    uint32_t w[64], v[8];
    int i;

    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)b[4 * i] << 24 | (uint32_t)b[4 * i + 1] << 16 |
               (uint32_t)b[4 * i + 2] << 8 | (uint32_t)b[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (ddp__rotate(x, 7) ^ ddp__rotate(x, 18) ^ x >> 3) + w[i - 7] +
               (ddp__rotate(y, 17) ^ ddp__rotate(y, 19) ^ y >> 10);
    }
    memcpy(v, s->state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0], one, two;
        one = v[7] + (ddp__rotate(e, 6) ^ ddp__rotate(e, 11) ^ ddp__rotate(e, 25)) +
              ((e & v[5]) ^ (~e & v[6])) + ddp__sha256_k[i] + w[i];
        two = (ddp__rotate(a, 2) ^ ddp__rotate(a, 13) ^ ddp__rotate(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (i = 0; i < 8; i++) s->state[i] += v[i];
}

void ddp__sha256_begin(ddp__sha256 *s)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    memcpy(s->state, start, sizeof start);
    s->bytes = 0;
}

void ddp__sha256_add(ddp__sha256 *s, const void *data, size_t n)
{
    const unsigned char *at = (const unsigned char *)data;

    while (n) {
        size_t in = (size_t)(s->bytes % 64), now = 64 - in < n ? 64 - in : n;
        if (now == 64) {
            ddp__sha256_block(s, at);
        } else {
            memcpy(s->block + in, at, now);
            if (in + now == 64) ddp__sha256_block(s, s->block);
        }
        s->bytes += now;
        at += now;
        n -= now;
    }
}

void ddp__sha256_end(ddp__sha256 *s, unsigned char *digest)
{
    static const unsigned char pad[72] = {0x80};
    unsigned char length[8];
    uint64_t bits = s->bytes * 8;
    int i;

    for (i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i) & 255);
    ddp__sha256_add(s, pad, 1 + (size_t)((119 - s->bytes % 64) % 64));
    ddp__sha256_add(s, length, 8);
    for (i = 0; i < 32; i++) digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)) & 255);
}
