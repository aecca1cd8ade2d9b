/* Updates on the device: one pass over parameter, gradient and state, which also zeroes the
 * gradient and writes the bfloat16 copy. Every element is rounded as on the CPU (nn/optimizer.c): products
 * and sums one by one, so that replicas on unlike processors stay equal bit for bit. */
#ifndef DDP_CUDA_UPDATE_CUH
#define DDP_CUDA_UPDATE_CUH

#include "cuda/launch.cuh"
#include "cuda/self.cuh"
#include "cuda/vector.cuh"
#include "nn/rules.h"

enum { DDP__UPDATE_THREADS = 256 };

typedef struct ddp__sgd_factors {
    float momentum, decay, lr;
} ddp__sgd_factors;

__device__ static __forceinline__ float ddp__sgd_one(const ddp__sgd_factors &k, float w, float g,
                                                     float *v)
{
    float d = __fadd_rn(g, __fmul_rn(k.decay, w));

    if (v) *v = d = __fadd_rn(__fmul_rn(k.momentum, *v), d);
    return __fsub_rn(w, __fmul_rn(k.lr, d));
}

__device__ static __forceinline__ float ddp__adam_one(const ddp__adam_step &k, float w, float g,
                                                      float *m, float *v)
{
    const float d = __fadd_rn(g, __fmul_rn(w, k.l2));
    const float mean = __fadd_rn(__fmul_rn(*m, k.beta1), __fmul_rn(k.gain1, d));
    const float square = __fadd_rn(__fmul_rn(*v, k.beta2), __fmul_rn(__fmul_rn(k.gain2, d), d));
    const float root = __fmul_rn(__fsqrt_rn(square), k.root);

    *m = mean;
    *v = square;
    return __fadd_rn(__fmul_rn(w, k.shrink),
                     __fdiv_rn(__fmul_rn(k.step, mean), __fadd_rn(root, k.eps)));
}

/* One element of each rule; s0 and s1 are its state. */
struct ddp__rule_sgd {
    ddp__sgd_factors k;
    __device__ float operator()(float w, float g, float *, float *) const
    {
        return ddp__sgd_one(k, w, g, NULL);
    }
    static const int states = 0;
};
struct ddp__rule_momentum {
    ddp__sgd_factors k;
    __device__ float operator()(float w, float g, float *s0, float *) const
    {
        return ddp__sgd_one(k, w, g, s0);
    }
    static const int states = 1;
};
struct ddp__rule_adam {
    ddp__adam_step k;
    __device__ float operator()(float w, float g, float *s0, float *s1) const
    {
        return ddp__adam_one(k, w, g, s0, s1);
    }
    static const int states = 2;
};

/* wide: all float arrays are multiples of 16 bytes. copy may be NULL. */
template <typename R>
static __global__ void ddp__k_update(float *w, float *g, float *s0, float *s1, ddp__bf16 *copy,
                                     long n, int wide, R rule)
{
    const long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    int k;

    if (wide && i + 4 <= n) {
        ddp__vec<float> vw = ddp__vec_load(w + i), vg = ddp__vec_load(g + i), v0 = vw, v1 = vw;
        if (R::states > 0) v0 = ddp__vec_load(s0 + i);
        if (R::states > 1) v1 = ddp__vec_load(s1 + i);
        for (k = 0; k < 4; k++) {
            vw.v[k] = rule(vw.v[k], vg.v[k], &v0.v[k], &v1.v[k]);
            vg.v[k] = 0;
        }
        ddp__vec_store(w + i, vw);
        ddp__vec_store(g + i, vg);
        if (R::states > 0) ddp__vec_store(s0 + i, v0);
        if (R::states > 1) ddp__vec_store(s1 + i, v1);
        for (k = 0; copy && k < 4; k++) copy[i + k] = __float2bfloat16_rn(vw.v[k]);
        return;
    }
    for (k = 0; k < 4 && i + k < n; k++) {
        float *a = R::states > 0 ? s0 + i + k : NULL, *b = R::states > 1 ? s1 + i + k : NULL;
        const float x = rule(w[i + k], g[i + k], a, b);
        w[i + k] = x;
        g[i + k] = 0;
        if (copy) copy[i + k] = __float2bfloat16_rn(x);
    }
}

static __global__ void ddp__k_mirror(ddp__bf16 *out, const float *in, long n)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n) out[i] = __float2bfloat16_rn(in[i]);
}

static __global__ void ddp__k_scale(float *x, long n, float s)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n) x[i] = __fmul_rn(x[i], s);
}

static __global__ void ddp__k_fill(float *x, long n, float s)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n) x[i] = s;
}

/* ---- the global norm: fixed parts, fixed trees, sums in double ---- */

__device__ static __forceinline__ double ddp__sum_block(double mine, double *shared)
{
    int k;

    shared[threadIdx.x] = mine;
    __syncthreads();
    for (k = DDP__UPDATE_THREADS / 2; k > 0; k /= 2) {
        if ((int)threadIdx.x < k) shared[threadIdx.x] += shared[threadIdx.x + k];
        __syncthreads();
    }
    return shared[0];
}

static __global__ void ddp__k_squares(double *part, const float *x, long n)
{
    __shared__ double shared[DDP__UPDATE_THREADS];
    const long step = (long)gridDim.x * DDP__UPDATE_THREADS;
    double sum = 0;
    long i;

    for (i = (long)blockIdx.x * DDP__UPDATE_THREADS + threadIdx.x; i < n; i += step)
        sum += (double)x[i] * (double)x[i];
    sum = ddp__sum_block(sum, shared);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void ddp__k_squares_sum(double *total, const double *part, int parts, int first)
{
    __shared__ double shared[DDP__UPDATE_THREADS];
    double sum = 0;
    int i;

    for (i = (int)threadIdx.x; i < parts; i += DDP__UPDATE_THREADS) sum += part[i];
    sum = ddp__sum_block(sum, shared);
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

/* The copy of the floats from p on, NULL where there is none; *left: how many it has from there. */
static DDP__UNUSED ddp__bf16 *ddp__cuda_copy_of(const ddp__cuda_self *c, const float *p,
                                                size_t *left)
{
    int i;

    for (i = 0; i < c->mirrors; i++) {
        const ddp__cuda_mirror *m = &c->mirror[i];
        if (p < m->master || p >= m->master + m->count) continue;
        *left = m->count - (size_t)(p - m->master);
        return m->copy + (p - m->master);
    }
    return NULL;
}

static inline unsigned ddp__update_blocks(size_t n, long per_thread)
{
    return (unsigned)ddp__blocks((long)n, per_thread * DDP__UPDATE_THREADS);
}

/* The floats from p on have changed: their copy follows, on a stream. */
static DDP__UNUSED void ddp__cuda_refresh(const ddp__cuda_self *c, const void *p, size_t bytes,
                                          cudaStream_t stream)
{
    ddp__cuda *dev = c->dev;
    const float *from = (const float *)p;
    size_t left = 0, n = bytes / sizeof *from;
    ddp__bf16 *copy = ddp__cuda_copy_of(c, from, &left);

    if (!copy || !n) return;
    if (n > left) n = left;
    DDP__LAUNCH(ddp__k_mirror, ddp__update_blocks(n, 1), DDP__UPDATE_THREADS, 0, stream, copy, from,
                (long)n);
}

template <typename R>
static inline void ddp__cuda_rule(ddp__cuda_self *c, const ddp_update *u, const R &rule)
{
    ddp__cuda *dev = c->dev;
    float *g = (float *)(uintptr_t)u->grads, *s0 = R::states > 0 ? u->state : NULL;
    float *s1 = R::states > 1 ? u->state + u->count : NULL;
    size_t left = 0;
    ddp__bf16 *copy = ddp__cuda_copy_of(c, u->params, &left);

    DDP__LAUNCH((ddp__k_update<R>), ddp__update_blocks(u->count, 4), DDP__UPDATE_THREADS, 0,
                dev->stream, u->params, g, s0, s1, copy, (long)u->count,
                ddp__aligned(u->params, g, s0, s1), rule);
}

static void ddp__cuda_update(void *self, const ddp_optimizer *o, const ddp_update *u)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__rule_momentum momentum;
    ddp__rule_sgd sgd;
    ddp__rule_adam adam;
    ddp_update own = *u;

    switch (ddp__optimizer_rule(o)) {
    case DDP__RULE_SGD:
        sgd.k.momentum = o->hyper[0];
        sgd.k.decay = o->hyper[1];
        sgd.k.lr = u->lr;
        momentum.k = sgd.k;
        if (o->state_per_param) ddp__cuda_rule(c, u, momentum);
        else ddp__cuda_rule(c, u, sgd);
        return;
    case DDP__RULE_ADAM:
        ddp__adam_factors(o, u, &adam.k);
        ddp__cuda_rule(c, u, adam);
        return;
    case DDP__RULE_USER:
        own.stream = c->dev->stream;
        o->update(o, &own);
        (void)DDP__CUDA(c->dev, cudaMemsetAsync((void *)(uintptr_t)u->grads, 0,
                                                u->count * sizeof(float), c->dev->stream));
        ddp__cuda_refresh(c, u->params, u->count * sizeof(float), c->dev->stream);
        return;
    }
}

static void ddp__cuda_scale(void *self, float *x, size_t n, float s)
{
    ddp__cuda *dev = ((ddp__cuda_self *)self)->dev;

    DDP__LAUNCH(ddp__k_scale, ddp__update_blocks(n, 1), DDP__UPDATE_THREADS, 0, dev->stream, x,
                (long)n, s);
}

static void ddp__cuda_fill(void *self, float *x, size_t n, float s)
{
    ddp__cuda *dev = ((ddp__cuda_self *)self)->dev;

    DDP__LAUNCH(ddp__k_fill, ddp__update_blocks(n, 1), DDP__UPDATE_THREADS, 0, dev->stream, x,
                (long)n, s);
}

static void ddp__cuda_clip_add(void *self, const float *x, size_t n, int first)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;
    unsigned parts = ddp__update_blocks(n, 4); /* depends on n alone: so does the sum's order */

    if (parts > DDP__CLIP_PARTS) parts = DDP__CLIP_PARTS;
    DDP__LAUNCH(ddp__k_squares, parts, DDP__UPDATE_THREADS, 0, dev->stream, c->squares, x, (long)n);
    DDP__LAUNCH(ddp__k_squares_sum, 1, DDP__UPDATE_THREADS, 0, dev->stream,
                c->squares + DDP__CLIP_PARTS, c->squares, (int)parts, first);
}

static void ddp__cuda_clip_scale(void *self, float *x, size_t n, float limit)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;

    DDP__LAUNCH(ddp__k_clip, ddp__update_blocks(n, 1), DDP__UPDATE_THREADS, 0, dev->stream, x,
                (long)n, c->squares + DDP__CLIP_PARTS, limit);
}

#endif /* DDP_CUDA_UPDATE_CUH */
