/* Arithmetic on parameters and gradients: updates, scaling, the global norm. An update is one pass over
 * parameter, gradient and state. It also zeroes the gradient if the layer owns it, and writes the bfloat16
 * copy. Each product and each sum is rounded separately, as on the CPU (nn/optimizer.c), so that replicas on
 * different processors stay bit-identical. */
#pragma once

#include "cuda/quantise.cuh"
#include "cuda/self.cuh"
#include "nn/exact.h"

enum { DDP__UPDATE_THREADS = 256 };

/* One element of each rule, with the state s0 and s1. */
template <int MOMENTUM, int NESTEROV> struct ddp__rule_sgd {
    static const int states = MOMENTUM;
    float momentum, decay, lr;

    __device__ float operator()(float w, float g, float *s0, float *) const
    {
        float d = __fadd_rn(g, __fmul_rn(decay, w));

        if (MOMENTUM) {
            *s0 = __fadd_rn(__fmul_rn(momentum, *s0), d);
            d = NESTEROV ? __fadd_rn(d, __fmul_rn(momentum, *s0)) : *s0;
        }
        return __fsub_rn(w, __fmul_rn(lr, d));
    }
};
struct ddp__rule_adam {
    static const int states = 2;
    ddp__adam_step k;

    __device__ float operator()(float w, float g, float *s0, float *s1) const
    {
        const float d = __fadd_rn(g, __fmul_rn(w, k.l2));
        const float mean = __fadd_rn(__fmul_rn(*s0, k.beta1), __fmul_rn(k.gain1, d));
        const float square = __fadd_rn(__fmul_rn(*s1, k.beta2), __fmul_rn(__fmul_rn(k.gain2, d), d));
        const float root = __fmul_rn(__fsqrt_rn(square), k.root);

        *s0 = mean;
        *s1 = square;
        return __fadd_rn(__fmul_rn(w, k.shrink), __fdiv_rn(__fmul_rn(k.step, mean), __fadd_rn(root, k.eps)));
    }
};

static __device__ inline int ddp__is_no_gradient(float x) { return __float_as_uint(x) == 0x80000000u; }

/* zero sets g to 0. wide means that all float arrays are aligned to 16 bytes. copy may be NULL. A missing
 * gradient stays -0.0, because other threads test for it. */
template <typename R>
static __global__ void ddp__k_update(float *w, float *g, float *s0, float *s1, ddp__bf16 *copy, long n,
                                     int zero, int wide, R rule)
{
    const long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    float vw[4], vg[4], v0[4], v1[4];

    if (i >= n || (ddp__is_no_gradient(g[0]) && ddp__is_no_gradient(g[n - 1]))) return;
    wide = wide && i + 4 <= n;
    ddp__piece_load(vw, w, i, n, wide);
    ddp__piece_load(vg, g, i, n, wide);
    ddp__piece_load(v0, R::states > 0 ? s0 : w, i, n, wide);
    ddp__piece_load(v1, R::states > 1 ? s1 : w, i, n, wide);
    for (int k = 0; k < 4; k++) {
        vw[k] = rule(vw[k], vg[k], &v0[k], &v1[k]);
        vg[k] = 0;
    }
    ddp__piece_store(w, vw, i, n, wide, 0);
    if (zero) ddp__piece_store(g, vg, i, n, wide, 0);
    if (R::states > 0) ddp__piece_store(s0, v0, i, n, wide, 0);
    if (R::states > 1) ddp__piece_store(s1, v1, i, n, wide, 0);
    for (int k = 0; copy && k < 4 && i + k < n; k++) copy[i + k] = __float2bfloat16_rn(vw[k]);
}

/* x[i] = f(x[i], i), for the arithmetic functions of the table. */
template <typename F> static __global__ void ddp__k_each(float *x, long n, F f)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = f(x[i], i);
}

struct ddp__each_axpy {
    const float *x;
    float s;

    __device__ float operator()(float y, long i) const { return __fadd_rn(y, __fmul_rn(s, x[i])); }
};
struct ddp__each_scale {
    float s;

    __device__ float operator()(float x, long) const { return __fmul_rn(x, s); }
};
struct ddp__each_fill {
    float s;

    __device__ float operator()(float, long) const { return s; }
};
struct ddp__each_compensate {
    const float *now, *then;
    float s;

    __device__ float operator()(float x, long i) const
    {
        return __fadd_rn(x, __fmul_rn(__fmul_rn(__fmul_rn(x, x), __fsub_rn(now[i], then[i])), s));
    }
};

/* ---- the global norm: fixed parts, fixed trees, sums in double ---- */

static __global__ void ddp__k_squares(double *part, const float *x, long n)
{
    __shared__ double shared[DDP__UPDATE_THREADS];
    const long step = (long)gridDim.x * DDP__UPDATE_THREADS;
    double sum = 0;
    long i;

    for (i = (long)blockIdx.x * DDP__UPDATE_THREADS + threadIdx.x; i < n; i += step)
        sum += (double)x[i] * (double)x[i];
    sum = ddp__block_sum<DDP__UPDATE_THREADS>(sum, shared);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void ddp__k_squares_sum(double *total, const double *part, int parts, int first)
{
    __shared__ double shared[DDP__UPDATE_THREADS];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < parts; i += DDP__UPDATE_THREADS) sum += part[i];
    sum = ddp__block_sum<DDP__UPDATE_THREADS>(sum, shared);
    if (threadIdx.x == 0) *total = first ? sum : *total + sum;
}

static __global__ void ddp__k_clip(float *x, long n, const double *total, float limit)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const double norm = sqrt(*total) + 1e-6;
    if (i >= n || norm <= (double)limit) return;
    x[i] = __fmul_rn(x[i], (float)((double)limit / norm));
}

/* ---- the table's entries ---- */

template <typename R>
static inline void ddp__cuda_rule(ddp__cuda_self *c, const ddp_update *u, int zero, const R &rule)
{
    ddp__cuda *dev = c->dev;
    float *g = (float *)(uintptr_t)u->grads, *s0 = R::states > 0 ? u->state : NULL;
    float *s1 = R::states > 1 ? u->state + u->count : NULL;
    size_t left = 0;
    ddp__bf16 *copy = ddp__cuda_copy_of(c, u->params, &left);

    DDP__EACH((ddp__k_update<R>), ddp__pieces<float>((long)u->count), DDP__UPDATE_THREADS, u->params, g, s0,
              s1, copy, (long)u->count, zero, ddp__aligned(u->params, g, s0, s1), rule);
}

static void ddp__cuda_update(ddp__cuda_self *c, const ddp_optimizer *o, const ddp_update *u, int zero)
{
    const ddp__rule_sgd<0, 0> sgd = {o->hyper[0], o->hyper[1], u->lr};
    const ddp__rule_sgd<1, 0> momentum = {o->hyper[0], o->hyper[1], u->lr};
    const ddp__rule_sgd<1, 1> nesterov = {o->hyper[0], o->hyper[1], u->lr};
    ddp__rule_adam adam;
    ddp_update own = *u;

    switch (ddp__optimizer_rule(o)) {
    case DDP__RULE_SGD:
        if (o->state_per_param && o->hyper[2] > 0)
            ddp__cuda_rule(c, u, zero, nesterov);
        else if (o->state_per_param)
            ddp__cuda_rule(c, u, zero, momentum);
        else
            ddp__cuda_rule(c, u, zero, sgd);
        return;
    case DDP__RULE_ADAM:
        ddp__adam_factors(o, u, &adam.k);
        ddp__cuda_rule(c, u, zero, adam);
        return;
    case DDP__RULE_USER:
        own.stream = c->dev->stream;
        o->update(o, &own);
        if (zero)
            (void)DDP__CUDA(c->dev, cudaMemsetAsync((void *)(uintptr_t)u->grads, 0, u->count * sizeof(float),
                                                    c->dev->stream));
        ddp__cuda_refresh(c, u->params, u->count * sizeof(float), c->dev->stream);
        return;
    }
}

template <typename F> static void ddp__cuda_each(ddp__cuda_self *c, float *x, size_t n, const F &f)
{
    ddp__cuda *dev = c->dev;
    DDP__EACH((ddp__k_each<F>), (long)n, DDP__UPDATE_THREADS, x, (long)n, f);
    ddp__cuda_refresh(c, x, n * sizeof *x, dev->stream);
}

static void ddp__cuda_axpy(ddp__cuda_self *c, float *y, const float *x, size_t n, float s)
{
    ddp__cuda_each(c, y, n, ddp__each_axpy{x, s});
}

static void ddp__cuda_scale(ddp__cuda_self *c, float *x, size_t n, float s)
{
    ddp__cuda_each(c, x, n, ddp__each_scale{s});
}

static void ddp__cuda_fill(ddp__cuda_self *c, float *x, size_t n, float s)
{
    ddp__cuda_each(c, x, n, ddp__each_fill{s});
}

static void ddp__cuda_compensate(ddp__cuda_self *c, float *x, const float *now, const float *then, size_t n,
                                 float s)
{
    ddp__cuda_each(c, x, n, ddp__each_compensate{now, then, s});
}

static ddp__quantised ddp__payload_of(int bits, void *out, size_t n)
{
    ddp__quantised q = ddp__quantised_of(bits == 8 ? DDP_PACK_INT8 : DDP_PACK_INT4, out, n);
    q.scale = (float *)out;
    q.level = (unsigned char *)(q.scale + q.blocks);
    return q;
}

static void ddp__cuda_split(ddp__cuda *dev, int bits, float *x, void *out, size_t n)
{
    const ddp__quantised q = ddp__payload_of(bits, out, n);
    if (n) DDP__STRIDE(ddp__k_quantise<1>, q.blocks * DDP__PACK_LANES, q, x, (const ddp_cuda_verdict *)NULL);
}

/* Loads the kernels that strategies launch after a message: a kernel that is loaded at its first launch may
 * wait for a stream that waits for a flag. */
static void ddp__cuda_load_arithmetic(ddp__cuda_self *c)
{
    ddp__cuda *dev = c->dev;
    float *none = NULL;
    ddp__cuda_axpy(c, none, none, 0, 0);
    ddp__cuda_scale(c, none, 0, 0);
    ddp__cuda_fill(c, none, 0, 0);
    ddp__cuda_compensate(c, none, none, none, 0, 0);
    DDP__RUN(ddp__k_quantise<1>, 1, 32, ddp__payload_of(8, none, 0), none, (const ddp_cuda_verdict *)NULL);
}

static void ddp__cuda_clip_add(ddp__cuda_self *c, const float *x, size_t n, int first)
{
    ddp__cuda *dev = c->dev;
    long parts = ddp__blocks((long)n, 4 * DDP__UPDATE_THREADS); /* the order of the sum depends only on n */
    if (parts > DDP__CLIP_PARTS) parts = DDP__CLIP_PARTS;
    DDP__RUN(ddp__k_squares, (unsigned)parts, DDP__UPDATE_THREADS, c->squares, x, (long)n);
    DDP__RUN(ddp__k_squares_sum, 1, DDP__UPDATE_THREADS, c->squares + DDP__CLIP_PARTS, c->squares, (int)parts,
             first);
}

static void ddp__cuda_clip_scale(ddp__cuda_self *c, float *x, size_t n, float limit)
{
    ddp__cuda *dev = c->dev;
    DDP__EACH(ddp__k_clip, (long)n, DDP__UPDATE_THREADS, x, (long)n, c->squares + DDP__CLIP_PARTS, limit);
}
