/* dropout: the mask of the CPU bit for bit, drawn again wherever it is needed. A stream's state
 * counts up by a constant, so that any draw of it can be had at once. */
#ifndef DDP_CUDA_DROPOUT_CUH
#define DDP_CUDA_DROPOUT_CUH

#include "cuda/rows.cuh"
#include "ops/ops.h"

enum { DDP__DROPOUT_THREADS = 256 };

__host__ __device__ static __forceinline__ uint64_t ddp__cuda_mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ddp_rng_seed(seed, stream), whose first part does not change within a call. */
__device__ static __forceinline__ uint64_t ddp__cuda_stream(uint64_t mixed_seed, uint64_t stream)
{
    return mixed_seed ^ ddp__cuda_mix64(stream * UINT64_C(0xd1342543de82ef95) +
                                        UINT64_C(0x2545f4914f6cdd1d));
}

/* The bits of elements i and i + 1 (i even) of the stream's block: the low and the high half. */
__device__ static __forceinline__ uint64_t ddp__dropout_draw(uint64_t stream, long i)
{
    const uint64_t draw = (uint64_t)(i % DDP__OP_GRAIN / 2 + 1);

    return ddp__cuda_mix64(stream + draw * UINT64_C(0x9e3779b97f4a7c15));
}

/* out = or += in / (1 - p) where kept. out may be in. bound 0: everything stays. */
template <typename T>
static __global__ void ddp__k_dropout(T *out, const T *in, long n, uint64_t mixed_seed,
                                      uint32_t bound, float scale, int add, int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    const uint64_t stream = ddp__cuda_stream(mixed_seed, (uint64_t)(at / DDP__OP_GRAIN));
    float v[ddp__vec<T>::width];
    int k;

    if (at >= n) return;
    wide = wide && at + width <= n;
    ddp__piece_load(v, in, at, n, wide);
    for (k = 0; k < width; k += 2) { /* a piece lies in one block */
        const uint64_t bits = bound ? ddp__dropout_draw(stream, at + k) : 0;
        v[k] = (uint32_t)bits >= bound ? v[k] * scale : 0;
        v[k + 1] = (uint32_t)(bits >> 32) >= bound ? v[k + 1] * scale : 0;
    }
    ddp__piece_store(out, v, at, n, wide, add);
}

template <typename T>
static void ddp__cuda_dropout_run(ddp__cuda *dev, const ddp_op_call *c, void *out, const void *in,
                                  int add)
{
    const long n = ddp_shape_count(&c->spec->out);
    const double p = c->training ? c->spec->arg[0] : 0;

    if (p == 0 && !add && out == in) return;
    DDP__LAUNCH((ddp__k_dropout<T>),
                (unsigned)ddp__blocks(n, DDP__DROPOUT_THREADS * (long)ddp__vec<T>::width),
                DDP__DROPOUT_THREADS, 0, dev->stream, (T *)out, (const T *)in, n,
                ddp__cuda_mix64(c->random + UINT64_C(0x9e3779b97f4a7c15)),
                (uint32_t)(p * 4294967296.0), (float)(1 / (1 - p)), add, ddp__aligned(out, in));
}

template <typename T>
static void ddp__cuda_dropout_forward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_dropout_run<T>(dev, c, c->out, c->in[0], 0);
}

template <typename T>
static void ddp__cuda_dropout_backward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    if (c->grad_in[0]) ddp__cuda_dropout_run<T>(dev, c, c->grad_in[0], c->grad_out, c->add_in[0]);
}

DDP__CUDA_BOTH(ddp__cuda_dropout_forward)
DDP__CUDA_BOTH(ddp__cuda_dropout_backward)

#endif /* DDP_CUDA_DROPOUT_CUH */
