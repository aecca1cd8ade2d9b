#include "base/platform.h"
#include "base/rng.h"

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
