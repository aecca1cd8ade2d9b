/* Helpers of several kernels: 16-byte loads and stores, conversion between bfloat16 and float, pieces of a
 * row, sums over a warp and a block, and sums of the columns of many rows. */
#pragma once

#include "cuda/ops.cuh"

/* 4 floats, 8 bfloat16 or W elements. */
template <typename T, int W = 16 / sizeof(T)> struct __align__(sizeof(T[W])) ddp__vec
{
    static const int width = W;
    T v[W];
};

__device__ static __forceinline__ float ddp__to_float(float x) { return x; }
__device__ static __forceinline__ float ddp__to_float(ddp__bf16 x) { return __bfloat162float(x); }

template <typename T> __device__ static __forceinline__ T ddp__from_float(float x);
template <> __device__ __forceinline__ float ddp__from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ ddp__bf16 ddp__from_float<ddp__bf16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* p must be aligned to the vector's bytes. */
template <typename T, int W = ddp__vec<T>::width>
__device__ static __forceinline__ ddp__vec<T, W> ddp__vec_load(const T *p)
{
#if defined(DDP_CUDA_ON_CPU)
    ddp__vec<T, W> r;

    cuda_on_cpu::check_aligned(p, sizeof r);
    memcpy((void *)&r, (const void *)p, sizeof r);
    return r;
#else
    return *reinterpret_cast<const ddp__vec<T, W> *>(p);
#endif
}

template <typename T, int W>
__device__ static __forceinline__ void ddp__vec_store(T *p, const ddp__vec<T, W> &r)
{
#if defined(DDP_CUDA_ON_CPU)
    cuda_on_cpu::check_aligned(p, sizeof r);
    memcpy((void *)p, (const void *)&r, sizeof r);
#else
    *reinterpret_cast<ddp__vec<T, W> *>(p) = r;
#endif
}

/* 1 if all pointers are aligned to 16 bytes, where NULL counts as aligned. On host and device. */
__host__ __device__ static __forceinline__ int ddp__aligned(const void *a, const void *b = NULL,
                                                            const void *c = NULL, const void *d = NULL)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

#define DDP__ALL_LANES 0xffffffffu

/* Use it before a loop whose counter indexes local arrays, so that the arrays stay in registers. _4: keeps
 * the loads of four iterations in flight. */
#if defined(__CUDACC__)
#define DDP__UNROLL   _Pragma("unroll")
#define DDP__UNROLL_4 _Pragma("unroll 4")
#else
#define DDP__UNROLL
#define DDP__UNROLL_4
#endif

/* Loads the elements of row p from index at on as floats, at most 16 bytes of them, with zeros past n. wide
 * means that the row is aligned to 16 bytes, its length is a multiple of 16 bytes, and at is a multiple of
 * the piece. */
template <typename T>
__device__ static __forceinline__ void ddp__piece_load(float *v, const T *p, long at, long n, int wide)
{
    const int width = ddp__vec<T>::width;

    if (wide) {
        const ddp__vec<T> r = ddp__vec_load(p + at);
        DDP__UNROLL for (int i = 0; i < width; i++) v[i] = ddp__to_float(r.v[i]);
    } else {
        DDP__UNROLL for (int i = 0; i < width; i++) v[i] = at + i < n ? ddp__to_float(p[at + i]) : 0.0f;
    }
}

/* The reverse: stores a piece. With add, adds it to memory. */
template <typename T>
__device__ static __forceinline__ void ddp__piece_store(T *p, const float *v, long at, long n, int wide,
                                                        int add)
{
    const int width = ddp__vec<T>::width;
    float old[width];

    DDP__UNROLL for (int i = 0; i < width; i++) old[i] = 0;
    if (add) ddp__piece_load(old, p, at, n, wide);
    if (wide) {
        ddp__vec<T> r;
        DDP__UNROLL for (int i = 0; i < width; i++) r.v[i] = ddp__from_float<T>(add ? v[i] + old[i] : v[i]);
        ddp__vec_store(p + at, r);
    } else {
        DDP__UNROLL for (int i = 0; i < width; i++) if (at + i < n) p[at + i] =
            ddp__from_float<T>(add ? v[i] + old[i] : v[i]);
    }
}

/* A piece as in memory: it takes 4 registers, where bfloat16 as floats would take 8. */
typedef ddp__vec<uint32_t> ddp__raw;

/* The piece as floats. Hides from the compiler that repeated calls give equal floats, which it would
 * otherwise keep in registers. */
template <typename T> __device__ static __forceinline__ void ddp__raw_floats(float *v, ddp__raw &r)
{
    DDP__UNROLL for (int i = 0; i < 4; i++) asm volatile("" : "+r"(r.v[i]));
    DDP__UNROLL for (int i = 0; i < ddp__vec<T>::width; i++) v[i] =
        __uint_as_float(sizeof(T) == 4 ? r.v[i]
                        : i % 2        ? r.v[i / 2] & 0xffff0000u
                                       : r.v[i / 2] << 16);
}

/* The raw piece of floats that T represents exactly. */
template <typename T> __device__ static __forceinline__ ddp__raw ddp__raw_of(const float *v)
{
    ddp__raw r = ddp__raw();
    DDP__UNROLL for (int i = 0; i < ddp__vec<T>::width; i++) r.v[i * sizeof(T) / 4] |=
        __float_as_uint(v[i]) >> (sizeof(T) == 4 || i % 2 ? 0 : 16);
    return r;
}

/* Loads a lane's part of a wide row, every 32nd piece, with zeros past n. The values are used later, so that
 * all loads are in flight together. */
template <typename T, int N>
__device__ static __forceinline__ void ddp__row_load(ddp__raw (&r)[N], const T *p, long n)
{
    DDP__UNROLL for (int k = 0; k < N; k++)
    {
        const long at = (k * 32 + threadIdx.x % 32) * ddp__vec<T>::width;
        r[k] = at < n ? ddp__vec_load((const uint32_t *)(const void *)(p + at)) : ddp__raw();
    }
}

/* Number of 16-byte pieces in n elements. */
template <typename T> __host__ __device__ static __forceinline__ long ddp__pieces(long n)
{
    return (n + ddp__vec<T>::width - 1) / ddp__vec<T>::width;
}

/* 1 if rows of n elements at these addresses can be read 16 bytes at a time. */
template <typename T>
static inline int ddp__wide(long n, const void *a, const void *b = NULL, const void *c = NULL,
                            const void *d = NULL)
{
    return n % ddp__vec<T>::width == 0 && ddp__aligned(a, b, c, d);
}

/* Sum over `lanes` lanes of a warp, a power of 2. All lanes get bit-identical results. */
template <typename T> __device__ static __forceinline__ T ddp__warp_sum(T v, int lanes = 32)
{
    DDP__UNROLL for (int step = lanes / 2; step > 0; step /= 2) v += __shfl_xor_sync(DDP__ALL_LANES, v, step);
    return v;
}

/* Sum over a block of THREADS threads, a power of 2, in a fixed tree. shared has one N per thread, and N
 * defines +=. */
template <int THREADS, typename N>
__device__ static __forceinline__ N ddp__block_sum(const N &mine, N *shared)
{
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (int k = THREADS / 2; k > 0; k /= 2) {
        if ((int)threadIdx.x < k) shared[threadIdx.x] += shared[threadIdx.x + (unsigned)k];
        __syncthreads();
    }
    return shared[0];
}

/* ---- column sums of a gradient ----
 * Two passes: blocks sum parts of the rows, then the parts are added in order. The division into parts
 * depends only on the number of rows, so results are bit-identical on all devices. */

enum {
    DDP__COLUMN_PARTS = 256, /* maximum number of parts */
    DDP__COLUMN_WARPS = 8,
    DDP__COLUMN_ROWS = 16 /* minimum number of rows per part */
};

/* Terms of the sums. PLAIN: dy. NORM: dy h and dy, with h = (x - mean) rstd. RMS: dy h, with h = x rstd. */
enum { DDP__COLUMN_PLAIN, DDP__COLUMN_NORM, DDP__COLUMN_RMS };

static inline long ddp__column_part(long rows)
{
    const long part = ddp__blocks(rows, DDP__COLUMN_PARTS);
    return part < DDP__COLUMN_ROWS ? (long)DDP__COLUMN_ROWS
                                   : ddp__blocks(part, DDP__COLUMN_WARPS) * DDP__COLUMN_WARPS;
}

static inline long ddp__column_parts(long rows) { return ddp__blocks(rows, ddp__column_part(rows)); }

/* Bytes of scratch for `sums` column sums of n columns. */
static inline size_t ddp__column_scratch(long rows, long n, int sums)
{
    return (size_t)(ddp__column_parts(rows) * n * sums) * sizeof(float);
}

/* Adds sum[j] over the warps of a block, in order, and stores it in to[at + j]. */
template <int N>
__device__ static __forceinline__ void ddp__column_join(float (*shared)[32 * N], const float *sum, float *to,
                                                        long at, long n)
{
    for (int j = 0; j < N; j++) shared[threadIdx.x / 32][threadIdx.x % 32 * N + j] = sum[j];
    __syncthreads();
    for (int j = (int)threadIdx.x; j < 32 * N && at + j < n; j += (int)blockDim.x) {
        float all = shared[0][j];
        for (int w = 1; w < DDP__COLUMN_WARPS; w++) all += shared[w][j];
        to[at + j] = all;
    }
    __syncthreads();
}

/* Block (x, y): columns from 32 x pieces on, part y of the rows. Each lane has a piece of the columns, and
 * the warps take turns at the rows. part: (sums, parts, n). */
template <typename T, int KIND>
static __global__ void __launch_bounds__(32 * DDP__COLUMN_WARPS)
    ddp__k_columns(float *part, const T *dy, const T *x, const float *stat, long rows, long n, long height,
                   int wide)
{
    const int width = ddp__vec<T>::width, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const long at = (long)blockIdx.x * 32 * width, first = blockIdx.y * height;
    const long last = first + height < rows ? first + height : rows;
    __shared__ float shared[DDP__COLUMN_WARPS][32 * width];
    float sum[width], scaled[width], d[width], v[width];

    for (int i = 0; i < width; i++) sum[i] = scaled[i] = 0;
    if (at + lane * width < n)
        for (long r = first + warp; r < last; r += DDP__COLUMN_WARPS) {
            ddp__piece_load(d, dy + r * n, at + lane * width, n, wide);
            if (KIND != DDP__COLUMN_PLAIN) ddp__piece_load(v, x + r * n, at + lane * width, n, wide);
            for (int i = 0; i < width; i++) {
                if (KIND == DDP__COLUMN_NORM) scaled[i] += d[i] * ((v[i] - stat[2 * r]) * stat[2 * r + 1]);
                if (KIND == DDP__COLUMN_RMS) scaled[i] += d[i] * (v[i] * stat[r]);
                sum[i] += d[i];
            }
        }
    part += blockIdx.y * n;
    if (KIND != DDP__COLUMN_PLAIN) ddp__column_join<width>(shared, scaled, part, at, n);
    if (KIND == DDP__COLUMN_NORM) part += gridDim.y * n;
    if (KIND != DDP__COLUMN_RMS) ddp__column_join<width>(shared, sum, part, at, n);
}

/* grad[j] += the parts of column j, 32 columns per block. Each of eight warps adds every eighth part. Row 1
 * of the blocks does the same for next, whose parts follow. */
static __global__ void ddp__k_columns_add(float *grad, float *next, const float *part, long n, long parts)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const long j = (long)blockIdx.x * 32 + lane;
    __shared__ float shared[DDP__COLUMN_WARPS][32];
    float sum = 0;

    if (blockIdx.y) {
        grad = next;
        part += parts * n;
    }
    if (j < n)
        for (long p = warp; p < parts; p += DDP__COLUMN_WARPS) sum += part[p * n + j];
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp || j >= n || !grad) return;
    for (int w = 1; w < DDP__COLUMN_WARPS; w++) sum += shared[w][lane];
    grad[j] += sum;
}

/* The second pass, for one or two sums, or NULL if not wanted. */
static inline void ddp__cuda_columns_add(ddp__cuda *dev, void *grad, void *next, const float *part, long n,
                                         long parts)
{
    if (grad || next)
        DDP__RUN(ddp__k_columns_add, dim3((unsigned)ddp__blocks(n, 32), next ? 2 : 1), 32 * DDP__COLUMN_WARPS,
                 (float *)grad, (float *)next, part, n, parts);
}

/* Both passes, over dev->scratch. plain receives the sums of dy, scaled receives the sums of dy h. */
template <typename T, int KIND>
static inline void ddp__cuda_columns(ddp__cuda *dev, void *scaled, void *plain, const void *dy, const void *x,
                                     const void *stat, long rows, long n)
{
    const long height = ddp__column_part(rows), parts = ddp__column_parts(rows);
    const dim3 blocks((unsigned)ddp__blocks(ddp__pieces<T>(n), 32), (unsigned)parts);
    float *part = (float *)dev->scratch;

    DDP__RUN((ddp__k_columns<T, KIND>), blocks, 32 * DDP__COLUMN_WARPS, part, (const T *)dy, (const T *)x,
             (const float *)stat, rows, n, height, ddp__wide<T>(n, dy, x));
    ddp__cuda_columns_add(dev, KIND == DDP__COLUMN_PLAIN ? plain : scaled,
                          KIND == DDP__COLUMN_NORM ? plain : NULL, part, n, parts);
}
