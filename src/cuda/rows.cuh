/* What kernels that work on rows share: pieces of a row as floats, and sums over a warp. */
#ifndef DDP_CUDA_ROWS_CUH
#define DDP_CUDA_ROWS_CUH

#include "cuda/launch.cuh"
#include "cuda/vector.cuh"

#define DDP__ALL_LANES 0xffffffffu

/* Before a loop whose counter chooses among registers: arrays that it indexes must not become
 * memory. _4: loads of four rounds are under way at once. */
#if defined(__CUDACC__)
#define DDP__UNROLL   _Pragma("unroll")
#define DDP__UNROLL_4 _Pragma("unroll 4")
#else
#define DDP__UNROLL
#define DDP__UNROLL_4
#endif

/* The elements at of p from at on as floats, at most 16 bytes of them; beyond n: 0. wide: the row
 * is a multiple of 16 bytes and begins at one, and at is a multiple of the piece. */
template <typename T>
__device__ static __forceinline__ void ddp__piece_load(float *v, const T *p, long at, long n,
                                                       int wide)
{
    const int width = ddp__vec<T>::width;
    int i;

    if (wide) {
        const ddp__vec<T> r = ddp__vec_load(p + at);
        DDP__UNROLL
        for (i = 0; i < width; i++) v[i] = ddp__to_float(r.v[i]);
    } else {
        DDP__UNROLL
        for (i = 0; i < width; i++) v[i] = at + i < n ? ddp__to_float(p[at + i]) : 0.0f;
    }
}

/* The way back; add: to what is there. */
template <typename T>
__device__ static __forceinline__ void ddp__piece_store(T *p, const float *v, long at, long n,
                                                        int wide, int add)
{
    const int width = ddp__vec<T>::width;
    float old[ddp__vec<T>::width];
    int i;

    DDP__UNROLL
    for (i = 0; i < width; i++) old[i] = 0;
    if (add) ddp__piece_load(old, p, at, n, wide);
    if (wide) {
        ddp__vec<T> r;
        DDP__UNROLL
        for (i = 0; i < width; i++) r.v[i] = ddp__from_float<T>(add ? v[i] + old[i] : v[i]);
        ddp__vec_store(p + at, r);
    } else {
        DDP__UNROLL
        for (i = 0; i < width; i++)
            if (at + i < n) p[at + i] = ddp__from_float<T>(add ? v[i] + old[i] : v[i]);
    }
}

/* 1: rows of n elements that begin at these addresses are read 16 bytes at a time. */
template <typename T>
static inline int ddp__wide(long n, const void *a, const void *b = NULL, const void *c = NULL,
                            const void *d = NULL)
{
    return n % ddp__vec<T>::width == 0 && ddp__aligned(a, b, c, d);
}

/* Every lane gets the same bits. */
__device__ static __forceinline__ float ddp__warp_sum(float v)
{
    int step;

    DDP__UNROLL
    for (step = 16; step > 0; step /= 2) v += __shfl_xor_sync(DDP__ALL_LANES, v, step);
    return v;
}

/* The two entries of an operator from one template of float and bfloat16: name_as<T>(dev, call). */
#define DDP__CUDA_BOTH(name)                                        \
    static void name(const ddp_op_call *c)                          \
    {                                                               \
        ddp__cuda *dev = (ddp__cuda *)c->pool;                      \
        if (dev->half) name##_as<ddp__bf16>(dev, c);                \
        else name##_as<float>(dev, c);                              \
    }

#endif /* DDP_CUDA_ROWS_CUH */
