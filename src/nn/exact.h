/* Float arithmetic that every processor rounds in the same way, without fused multiply-add whatever the
 * flags; and what is made of it: clipping by the global norm, factors of the update rules, what ddp_muon
 * works in. */
#pragma once

#include "base/core.h"
#include "nn/optimizer.h"

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

/* x to the n-th by squaring (n >= 0): libm's pow is not bit-equal on all platforms. */
static inline double ddp__power(double x, long n)
{
    double r = 1;

    for (; n > 0; n /= 2, x = ddp__product(x, x))
        if (n % 2) r = ddp__product(r, x);
    return r;
}

/* late += f late^2 (now - then), rounded after each product: a gradient of one point, at another. */
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

/* Sum of x[i]^2 in double, always added in the same order: a layer's sum has the same bits on
 * every processor (the product of two floats is exact in double, fused or not). Pure. */
DDP_LIB double ddp__sum_squares(const float *x, size_t n);

/* The index of the first NaN or infinite value, n if there is none. It looks at bits: -ffast-math compiles
 * other tests away. Pure. */
DDP_LIB size_t ddp__first_not_finite(const float *x, size_t n);

/* What to multiply the gradients with: max_norm / (norm + 1e-6), at most 1, with norm the root
 * of sum_squares over all layers (PyTorch's clip_grad_norm_). NaN sums give NaN. Pure. */
DDP_LIB float ddp__clip_factor(double sum_squares, double max_norm);

static inline void ddp__scale(float *x, size_t n, float s)
{
    size_t i;

    for (i = 0; i + 4 <= n; i += 4) ddp__f4_store(x + i, ddp__f4_load(x + i) * s);
    for (; i < n; i++) x[i] *= s;
}

/* ---- the built-in rules as a device sees them: which one, and its factors ---- */

typedef enum ddp__rule { DDP__RULE_USER, DDP__RULE_SGD, DDP__RULE_ADAM } ddp__rule;

/* Adam and AdamW of one update; all devices take the same floats. */
typedef struct ddp__adam_step {
    float beta1, gain1, beta2, gain2; /* gain = 1 - beta */
    float l2;                         /* of Adam: added to the gradient */
    float shrink;                     /* of AdamW: 1 - lr decay */
    float root, eps, step;            /* 1 / sqrt(1 - beta2^t), eps, -lr / (1 - beta1^t) */
} ddp__adam_step;

DDP_LIB ddp__rule ddp__optimizer_rule(const ddp_optimizer *o);
/* Of an optimizer whose rule is DDP__RULE_ADAM. */
DDP_LIB void ddp__adam_factors(const ddp_optimizer *o, const ddp_update *u, ddp__adam_step *k);

/* ---- ddp_update.desk of a matrix, for ddp_muon ---- */

typedef struct ddp__muon_desk {
    float *at;       /* working memory of ddp__muon_room floats */
    ddp__pool *pool; /* who computes; NULL: the caller */
} ddp__muon_desk;

DDP_LIB size_t ddp__muon_room(size_t rows, size_t columns);
DDP_LIB int ddp__is_muon(const ddp_optimizer *o);
