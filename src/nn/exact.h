/* Float arithmetic that rounds identically on every processor (no fused multiply-add, whatever the
 * compiler flags), and the functions based on it: clipping by the global norm, factors of the update
 * rules, working memory of ddp_muon. */
#pragma once

#include "base/core.h"
#include "nn/optimizer.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Four floats; part of the base instruction sets of x86-64 and ARMv8. */
typedef float ddp__f4 __attribute__((vector_size(16)));

/* An opaque asm statement that prevents the compiler from fusing the product into a later addition.
 * Attributes and pragmas do not suffice: clang ignores them under -ffp-contract=fast. */
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

/* IEEE requires correctly rounded square roots, so all implementations agree. */
static inline ddp__f4 ddp__f4_sqrt(ddp__f4 v)
{
#ifdef __SSE2__
    return (ddp__f4)_mm_sqrt_ps((__m128)v);
#else
    for (int k = 0; k < 4; k++) v[k] = sqrtf(v[k]);
    return v;
#endif
}

static inline double ddp__product(double a, double b)
{
    double product = a * b;
    DDP__ROUNDED(product);
    return product;
}

/* x to the n-th power by squaring (n >= 0). libm's pow is not bit-identical on all platforms. */
static inline double ddp__power(double x, long n)
{
    double r = 1;

    for (; n > 0; n /= 2, x = ddp__product(x, x))
        if (n % 2) r = ddp__product(r, x);
    return r;
}

/* late += f late^2 (now - then), rounded after each product: compensates a delayed gradient for the
 * parameters that moved meanwhile. */
static inline void ddp__late_compensate(float *late, const float *now, const float *then, size_t n, float f)
{
    for (size_t i = 0; i < n; i++) {
        float square = late[i] * late[i], moved = now[i] - then[i];
        DDP__ROUNDED(square);
        square *= moved;
        DDP__ROUNDED(square);
        square *= f;
        DDP__ROUNDED(square);
        late[i] += square;
    }
}

/* ---- clipping by the global norm of all gradients ---- */

/* Sum of x[i]^2 in double, always added in the same order, so a layer's sum is bit-identical on every
 * processor (the product of two floats is exact in double, fused or not). Pure. */
DDP_LIB double ddp__sum_squares(const float *x, size_t n);

/* Index of the first NaN or infinite value, or n if there is none. Tests the bits, because -ffast-math
 * removes other tests. Pure. */
DDP_LIB size_t ddp__first_not_finite(const float *x, size_t n);

/* Clipping factor of the gradients: max_norm / (norm + 1e-6), at most 1; norm is the square root of
 * sum_squares over all layers (as PyTorch's clip_grad_norm_). A NaN sum gives NaN. Pure. */
DDP_LIB float ddp__clip_factor(double sum_squares, double max_norm);

static inline void ddp__scale(float *x, size_t n, float s)
{
    size_t i;

    for (i = 0; i + 4 <= n; i += 4) ddp__f4_store(x + i, ddp__f4_load(x + i) * s);
    for (; i < n; i++) x[i] *= s;
}

/* ---- built-in rules for a device: the kind of rule and its factors ---- */

typedef enum ddp__rule { DDP__RULE_USER, DDP__RULE_SGD, DDP__RULE_ADAM } ddp__rule;

/* Factors of one Adam or AdamW update; all devices use the same floats. */
typedef struct ddp__adam_step {
    float beta1, gain1, beta2, gain2; /* gain = 1 - beta */
    float l2;                         /* Adam: decay added to the gradient */
    float shrink;                     /* AdamW: 1 - lr decay */
    float root, eps, step;            /* 1 / sqrt(1 - beta2^t), eps, -lr / (1 - beta1^t) */
} ddp__adam_step;

DDP_LIB ddp__rule ddp__optimizer_rule(const ddp_optimizer *o);
/* 1 for ddp_own_update_first. */
DDP_LIB int ddp__updates_first(const ddp_optimizer *o);
/* For an optimizer whose rule is DDP__RULE_ADAM. */
DDP_LIB void ddp__adam_factors(const ddp_optimizer *o, const ddp_update *u, ddp__adam_step *k);

/* ---- ddp_update.desk for a matrix that ddp_muon updates ---- */

typedef struct ddp__muon_desk {
    float *at;       /* working memory of ddp__muon_room floats */
    ddp__pool *pool; /* pool that computes, or NULL for the calling thread */
} ddp__muon_desk;

DDP_LIB size_t ddp__muon_room(size_t rows, size_t columns);
DDP_LIB int ddp__is_muon(const ddp_optimizer *o);
