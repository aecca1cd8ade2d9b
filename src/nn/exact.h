/* Float arithmetic that every processor rounds alike: no fused multiply-add, whatever the flags. */
#ifndef DDP_NN_EXACT_H
#define DDP_NN_EXACT_H

#include "base/platform.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Four floats; the base instruction set of x86-64 and of ARMv8 has them. */
typedef float ddp__f4 __attribute__((vector_size(16)));

/* The compiler may not look through this, so it cannot fuse the product into a later addition.
 * Attributes and pragmas do not do: clang ignores them under -ffp-contract=fast. */
#if defined(__SSE2__)
#define DDP__ROUNDED(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define DDP__ROUNDED(v) __asm__("" : "+w"(v))
#else
#define DDP__ROUNDED(v) __asm__("" : "+m"(v))
#endif

static inline ddp__f4 ddp__f4_all(float s)
{
    ddp__f4 v = {s, s, s, s};
    return v;
}

static inline ddp__f4 ddp__f4_load(const float *p)
{
    ddp__f4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void ddp__f4_store(float *p, ddp__f4 v) { memcpy(p, &v, sizeof v); }

static inline ddp__f4 ddp__f4_mul(ddp__f4 a, ddp__f4 b)
{
    ddp__f4 product = a * b;
    DDP__ROUNDED(product);
    return product;
}

/* A square root is rounded exactly by IEEE, so all ways to take it agree. */
static inline ddp__f4 ddp__f4_sqrt(ddp__f4 v)
{
#ifdef __SSE2__
    return (ddp__f4)_mm_sqrt_ps((__m128)v);
#else
    int k;

    for (k = 0; k < 4; k++) v[k] = sqrtf(v[k]);
    return v;
#endif
}

static inline double ddp__product(double a, double b)
{
    double product = a * b;
    DDP__ROUNDED(product);
    return product;
}

/* x to the n-th by squaring (n >= 0): libm's pow is not bit-equal on all platforms. */
static inline double ddp__power(double x, long n)
{
    double r = 1;

    for (; n > 0; n /= 2, x = ddp__product(x, x))
        if (n % 2) r = ddp__product(r, x);
    return r;
}

#endif /* DDP_NN_EXACT_H */
