/* The inner loops that carry nearly all of the time, one set per instruction set. */
#ifndef DDP_OPS_KERNELS_H
#define DDP_OPS_KERNELS_H

#include "base/config.h"

#define DDP__GEMM_MR 12 /* most rows and columns of a register tile over all sets */
#define DDP__GEMM_NR 32

/* One set. Rows are n contiguous floats, any n >= 1, any alignment; an output may be the same
 * array as an input of equal index range. add = 1 adds to the output, 0 overwrites it. */
typedef struct ddp__kernels {
    const char *name;
    int mr, nr; /* register tile of gemm */

    /* c (mr x nr, leading dimension ldc) = or += sum over p of a[p*mr + i] * b[p*nr + j]. */
    void (*gemm)(long k, const float *a, const float *b, float *c, long ldc, int add);
    /* max over x. */
    float (*max)(const float *x, long n);
    /* sum over x*y. */
    float (*dot)(const float *x, const float *y, long n);
    /* sum of e = exp(scale * x - shift); y (may be NULL) receives e. */
    float (*exp_sum)(float *y, const float *x, long n, float scale, float shift);
    /* y = or += factor * exp(scale * x - shift). */
    void (*softmax)(float *y, const float *x, long n, float scale, float shift, float factor,
                    int add);
    /* d = factor * p * (d - mean): through a softmax whose probabilities are p. */
    void (*softmax_grad)(float *d, const float *p, long n, float mean, float factor);
    /* GELU, tanh form, and dx = or += dy * gelu'(x). */
    void (*gelu)(float *y, const float *x, long n);
    void (*gelu_grad)(float *dx, const float *x, const float *dy, long n, int add);
    /* y = (x - mean) * rstd * scale + shift; stat receives mean and rstd = 1/sqrt(var + eps). */
    void (*norm)(float *y, const float *x, const float *scale, const float *shift, long n,
                 float eps, float *stat);
    void (*norm_grad)(float *dx, const float *x, const float *scale, const float *dy, long n,
                      const float *stat, int add);
    /* y = x * rstd * scale; stat receives rstd = 1/sqrt(mean(x^2) + eps). */
    void (*rms)(float *y, const float *x, const float *scale, long n, float eps, float *stat);
    void (*rms_grad)(float *dx, const float *x, const float *scale, const float *dy, long n,
                     const float *stat, int add);
    /* y = silu(a) * b; its gradients, each may be NULL. */
    void (*swiglu)(float *y, const float *a, const float *b, long n);
    void (*swiglu_grad)(float *da, float *db, const float *a, const float *b, const float *dy,
                        long n, int add_a, int add_b);
    /* Rotates the points (x[i], x[half + i]) by the angles of cosine[i] and sine[i]. */
    void (*rotate)(float *y, const float *x, const float *cosine, const float *sine, long half,
                   int add);
} ddp__kernels;

#ifdef __cplusplus
extern "C" {
#endif

/* The fastest set that this processor runs. Cheap: a few loads, no state. */
DDP_LIB const ddp__kernels *ddp__kernels_best(void);
/* Set number i, slowest first, or NULL past the last one that this processor runs: tests try
 * each. */
DDP_LIB const ddp__kernels *ddp__kernels_at(int i);

#ifdef __cplusplus
}
#endif

#endif /* DDP_OPS_KERNELS_H */
