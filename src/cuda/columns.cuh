/* Sums down the columns of a gradient in two stages: blocks sum parts of the rows, then the parts
 * are added in order. How rows are cut depends on their number alone, so the bits do not depend on
 * the device. */
#ifndef DDP_CUDA_COLUMNS_CUH
#define DDP_CUDA_COLUMNS_CUH

#include "cuda/rows.cuh"

enum {
    DDP__COLUMN_PARTS = 256, /* most parts */
    DDP__COLUMN_WARPS = 8,
    DDP__COLUMN_ROWS = 16    /* fewest rows of a part */
};

/* What is summed: dy; dy h and dy with h = (x - mean) rstd; dy h with h = x rstd. */
enum { DDP__COLUMN_PLAIN, DDP__COLUMN_NORM, DDP__COLUMN_RMS };

static inline long ddp__column_part(long rows)
{
    const long part = (rows + DDP__COLUMN_PARTS - 1) / DDP__COLUMN_PARTS;

    return part < DDP__COLUMN_ROWS ? (long)DDP__COLUMN_ROWS
                                   : (part + DDP__COLUMN_WARPS - 1) / DDP__COLUMN_WARPS *
                                         DDP__COLUMN_WARPS;
}

static inline long ddp__column_parts(long rows)
{
    const long part = ddp__column_part(rows);

    return (rows + part - 1) / part;
}

/* Bytes of scratch for sums sums of n columns. */
static inline size_t ddp__column_scratch(long rows, long n, int sums)
{
    return (size_t)(ddp__column_parts(rows) * n * sums) * sizeof(float);
}

/* sum[j] of a block's warps, in their order, to to[at + j]. shared: 32 pieces of floats. */
template <int N>
__device__ static __forceinline__ void ddp__column_join(float *shared, const float *sum, float *to,
                                                        long at, long n)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int w, j;

    for (w = 0; w < (int)blockDim.x / 32; w++) {
        if (w == warp)
            for (j = 0; j < N; j++)
                shared[lane * N + j] = w ? shared[lane * N + j] + sum[j] : sum[j];
        __syncthreads();
    }
    for (j = (int)threadIdx.x; j < 32 * N; j += (int)blockDim.x)
        if (at + j < n) to[at + j] = shared[j];
    __syncthreads();
}

/* Block (x, y): columns from 32 x pieces on, part y of the rows; a piece of columns per lane, warps
 * take turns at the rows. part: (sums, parts, n). */
template <typename T, int KIND>
static __global__ void __launch_bounds__(32 * DDP__COLUMN_WARPS)
ddp__k_columns(float *part, const T *dy, const T *x, const float *stat, long rows, long n,
               long height, int wide)
{
    const int width = ddp__vec<T>::width;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const long at = (long)blockIdx.x * 32 * width;
    const long first = blockIdx.y * height;
    const long last = first + height < rows ? first + height : rows;
    __shared__ float shared[32 * ddp__vec<T>::width];
    float sum[ddp__vec<T>::width], scaled[ddp__vec<T>::width];
    float d[ddp__vec<T>::width], v[ddp__vec<T>::width];
    long r;
    int i;

    for (i = 0; i < width; i++) sum[i] = scaled[i] = 0;
    if (at + lane * width < n)
        for (r = first + warp; r < last; r += DDP__COLUMN_WARPS) {
            ddp__piece_load(d, dy + r * n, at + lane * width, n, wide);
            if (KIND != DDP__COLUMN_PLAIN)
                ddp__piece_load(v, x + r * n, at + lane * width, n, wide);
            for (i = 0; i < width; i++) {
                if (KIND == DDP__COLUMN_NORM)
                    scaled[i] += d[i] * ((v[i] - stat[2 * r]) * stat[2 * r + 1]);
                if (KIND == DDP__COLUMN_RMS) scaled[i] += d[i] * (v[i] * stat[r]);
                sum[i] += d[i];
            }
        }
    part += blockIdx.y * n;
    if (KIND != DDP__COLUMN_PLAIN)
        ddp__column_join<ddp__vec<T>::width>(shared, scaled, part, at, n);
    if (KIND == DDP__COLUMN_NORM) part += gridDim.y * n;
    if (KIND != DDP__COLUMN_RMS) ddp__column_join<ddp__vec<T>::width>(shared, sum, part, at, n);
}

/* grad[j] += the parts of column j, 32 columns per block; warps sum every eighth part each. */
static __global__ void ddp__k_columns_add(float *grad, const float *part, long n, long parts)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const long j = (long)blockIdx.x * 32 + lane;
    __shared__ float shared[DDP__COLUMN_WARPS][32];
    float sum = 0;
    long p;
    int w;

    if (j < n)
        for (p = warp; p < parts; p += DDP__COLUMN_WARPS) sum += part[p * n + j];
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp || j >= n) return;
    for (w = 1; w < DDP__COLUMN_WARPS; w++) sum += shared[w][lane];
    grad[j] += sum;
}

/* The second stage; grad NULL: not wanted. */
static inline void ddp__cuda_columns_add(ddp__cuda *dev, void *grad, const float *part, long n,
                                         long parts)
{
    if (grad)
        DDP__LAUNCH(ddp__k_columns_add, (unsigned)ddp__blocks(n, 32), 32 * DDP__COLUMN_WARPS, 0,
                    dev->stream, (float *)grad, part, n, parts);
}

/* Both stages over dev->scratch. plain receives the sums of dy, scaled those of dy h. */
template <typename T, int KIND>
static inline void ddp__cuda_columns(ddp__cuda *dev, void *scaled, void *plain, const void *dy,
                                     const void *x, const void *stat, long rows, long n)
{
    const long height = ddp__column_part(rows), parts = ddp__column_parts(rows);
    float *part = (float *)dev->scratch;
    dim3 blocks(1, 1, 1);

    blocks.x = (unsigned)ddp__blocks(n, 32 * ddp__vec<T>::width);
    blocks.y = (unsigned)parts;
    DDP__LAUNCH((ddp__k_columns<T, KIND>), blocks, 32 * DDP__COLUMN_WARPS, 0, dev->stream, part,
                (const T *)dy, (const T *)x, (const float *)stat, rows, n, height,
                ddp__wide<T>(n, dy, x));
    if (KIND != DDP__COLUMN_PLAIN) ddp__cuda_columns_add(dev, scaled, part, n, parts);
    if (KIND == DDP__COLUMN_NORM) part += parts * n;
    if (KIND != DDP__COLUMN_RMS) ddp__cuda_columns_add(dev, plain, part, n, parts);
}

#endif /* DDP_CUDA_COLUMNS_CUH */
