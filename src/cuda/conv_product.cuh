/* The two matrix products of a convolution (ops/conv_product.c has them for the CPU). One operand is the
 * im2col matrix of an image batch. It never exists in memory: each block gathers the tiles that it needs.
 * Images are channels-last, so that the input of one position at one tap is a row of channels, read 16 bytes
 * at a time. */
#pragma once

#include "cuda/mma.cuh"

#include <mma.h>

/* ---- multiplying two tiles in shared memory, with plain multiply-adds (float32, the reference for the
 * others) or on tensor cores (bf16 or TF32)
 *
 * A block multiplies a tile of BM rows of A by a tile of 128 columns of B, both `depth` deep, with 8 warps.
 * Each warp computes BM / 2 rows and 32 columns. Tiles are loaded in pieces of 16 bytes: consecutive k of one
 * row or column or, with Slow, consecutive rows or columns at one k. Each row in memory has 16 bytes of
 * padding, so that the lanes of a load access different banks. ---- */

enum { DDP__CONV_THREADS = 256, DDP__CONV_COLUMNS = 128, DDP__CONV_SHOWN = 36, DDP__CONV_STAGES = 4 };

template <typename T, int BM, bool Slow> struct ddp__conv_layout {
    typedef T tile; /* element type, in the tensors and in shared memory */
    enum {
        tall = BM,
        depth = 64 / (int)sizeof(tile),
        pad = 16 / (int)sizeof(tile),
        a_row = (Slow ? BM : (int)depth) + pad,
        b_row = (Slow ? (int)DDP__CONV_COLUMNS : (int)depth) + pad,
        a_size = (Slow ? (int)depth : BM) * a_row,
        b_size = (Slow ? (int)depth : (int)DDP__CONV_COLUMNS) * b_row,
        size = a_size + b_size,
        bytes = DDP__CONV_STAGES * size * (int)sizeof(tile)
    };

    static __device__ int a_at(int m, int k) { return Slow ? k * a_row + m : m * a_row + k; }
    static __device__ int b_at(int n, int k) { return a_size + (Slow ? k * b_row + n : n * b_row + k); }
};

/* ---- plain ---- */

template <typename T, int BM, bool Slow> struct ddp__conv_scalar : ddp__conv_layout<T, BM, Slow> {
    typedef ddp__conv_layout<T, BM, Slow> at;
    enum { width = ddp__vec<T>::width };
    float sum[BM / 2];

    __device__ void clear()
    {
        for (int i = 0; i < BM / 2; i++) sum[i] = 0;
    }

    /* m, n: first row and column of the warp. */
    __device__ void multiply(const T *p, int m, int n, int lane)
    {
        for (int k = 0; k < at::depth && Slow; k++) {
            const float x = ddp__to_float(p[at::b_at(n + lane, k)]);
            DDP__UNROLL for (int i = 0; i < BM / 2; i++) sum[i] += ddp__to_float(p[at::a_at(m + i, k)]) * x;
        }
        for (int k = 0; k < at::depth && !Slow; k += width) {
            const ddp__vec<T> x = ddp__vec_load(p + at::b_at(n + lane, k));
            DDP__UNROLL for (int i = 0; i < BM / 2; i++)
            {
                const ddp__vec<T> a = ddp__vec_load(p + at::a_at(m + i, k));
                for (int e = 0; e < width; e++) sum[i] += ddp__to_float(a.v[e]) * ddp__to_float(x.v[e]);
            }
        }
    }

    /* Copies 16 rows of the warp's sums, from row 16 i, into a buffer of 16 rows of DDP__CONV_SHOWN floats.
     * */
    __device__ void show(float *room, int lane, int i) const
    {
        DDP__UNROLL for (int r = 0; r < 16; r++) room[r * DDP__CONV_SHOWN + lane] = sum[16 * i + r];
    }
};

template <int BM, bool Slow> using ddp__conv_plain = ddp__conv_scalar<float, (BM), (Slow)>;
template <int BM, bool Slow> using ddp__conv_plain_bf16 = ddp__conv_scalar<ddp__bf16, (BM), (Slow)>;

/* ---- tensor cores ---- */

/* One of the two number formats: type of a tile element, depth of the instruction, and rounding of a
 * fragment. */
struct ddp__mma_bf16 {
    typedef ddp__bf16 tile, element;
    enum { k = 16 };
    template <typename F> static __device__ void round(F &) {}
};

struct ddp__mma_tf32 {
    typedef float tile;
    typedef nvcuda::wmma::precision::tf32 element;
    enum { k = 8 };
    template <typename F> static __device__ void round(F &f)
    {
        DDP__UNROLL for (int i = 0; i < f.num_elements; i++) f.x[i] = nvcuda::wmma::__float_to_tf32(f.x[i]);
    }
};

template <typename N, int BM, bool Slow> struct ddp__conv_mma : ddp__conv_layout<typename N::tile, BM, Slow> {
    typedef ddp__conv_layout<typename N::tile, BM, Slow> at;
    typedef typename std::conditional<Slow, nvcuda::wmma::col_major, nvcuda::wmma::row_major>::type a_layout;
    typedef typename std::conditional<Slow, nvcuda::wmma::row_major, nvcuda::wmma::col_major>::type b_layout;
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, N::k, float> sum[BM / 32][2];

    __device__ void clear()
    {
        for (int i = 0; i < BM / 32; i++)
            for (int j = 0; j < 2; j++) nvcuda::wmma::fill_fragment(sum[i][j], 0.0f);
    }

    __device__ void multiply(const typename N::tile *p, int m, int n, int)
    {
        using namespace nvcuda::wmma;

        DDP__UNROLL for (int k = 0; k < at::depth; k += N::k)
        {
            fragment<matrix_b, 16, 16, N::k, typename N::element, b_layout> right[2];
            fragment<matrix_a, 16, 16, N::k, typename N::element, a_layout> left;
            for (int j = 0; j < 2; j++) {
                load_matrix_sync(right[j], p + at::b_at(n + 16 * j, k), (unsigned)at::b_row);
                N::round(right[j]);
            }
            DDP__UNROLL for (int i = 0; i < BM / 32; i++)
            {
                load_matrix_sync(left, p + at::a_at(m + 16 * i, k), (unsigned)at::a_row);
                N::round(left);
                for (int j = 0; j < 2; j++) mma_sync(sum[i][j], left, right[j], sum[i][j]);
            }
        }
    }

    __device__ void show(float *room, int, int i) const
    {
        for (int j = 0; j < 2; j++)
            nvcuda::wmma::store_matrix_sync(room + 16 * j, sum[i][j], (unsigned)DDP__CONV_SHOWN,
                                            nvcuda::wmma::mem_row_major);
    }
};

template <int BM, bool Slow> using ddp__conv_bf16 = ddp__conv_mma<ddp__mma_bf16, (BM), (Slow)>;
template <int BM, bool Slow> using ddp__conv_tf32 = ddp__conv_mma<ddp__mma_tf32, (BM), (Slow)>;

/* Multiplies tiles 0 to count - 1. load(tile, to) starts to load a tile into a stage of shared memory,
 * several tiles ahead, by asynchronous copies or into registers. put(to) then stores the tile from the
 * registers. */
template <typename M, typename Load, typename Put>
__device__ static __forceinline__ void ddp__conv_multiply(M &product, typename M::tile *store, long count,
                                                          int m, int n, Load load, Put put)
{
    const int ahead = DDP__CONV_STAGES - 1;

    product.clear();
    for (long i = -ahead; i < count; i++) {
        typename M::tile *next = store + (i + ahead) % DDP__CONV_STAGES * M::size;
        if (i >= 0) {
            ddp__copy_wait<DDP__CONV_STAGES - 2>();
            __syncthreads(); /* tile i is complete, and no warp reads the tile before it any more */
        }
        if (i + ahead < count) load(i + ahead, next);
        if (i >= 0) product.multiply(store + i % DDP__CONV_STAGES * M::size, m, n, (int)threadIdx.x % 32);
        if (i + ahead < count) put(next);
        ddp__copy_commit();
    }
    __syncthreads();
}

/* Calls put(row, column, sum) for each of the warp's sums, through the warp's own buffer. With Down,
 * neighbouring lanes get neighbouring rows, otherwise neighbouring columns. */
template <bool Down, typename M, typename Put>
__device__ static __forceinline__ void ddp__conv_each(const M &product, float *room, Put put)
{
    const int lane = (int)threadIdx.x % 32;

    DDP__UNROLL for (int i = 0; i < M::tall / 32; i++)
    {
        product.show(room, lane, i);
        __syncwarp();
        for (int e = 0; e < 16; e++) {
            const int r = Down ? lane % 16 : e, c = Down ? 2 * e + lane / 16 : lane;
            put(16 * i + r, c, room[r * DDP__CONV_SHOWN + c]);
        }
        __syncwarp();
    }
}

/* ---- operands ---- */

/* Images of `channels` seen through a window of kh x kw taps at rows x cols positions of each image, and the
 * other operand. Tap (a, b) at position (r, c) reads element (top + r step + a, left + c step + b) of the h x
 * w image, or 0 outside the image. Group g reads `planes` channels, from channel g planes. Image i begins at
 * x + i*image. */
typedef struct ddp__cuda_conv {
    const void *x;
    long image;
    int channels, planes, h, w, rows, cols, step, top, left, kh, kw;
    int m, groups; /* rows of the other matrix per group */
    long pixels;   /* number of positions: images x rows x cols */
    void *y;       /* strides of an element (i, r, c): y_image, y_row, y_col. The channels are contiguous. */
    long y_image, y_row, y_col;
    const void *bias;   /* [groups x m], or NULL */
    int add;            /* 1 to add to y */
    const void *weight; /* packed: m_pad rows of k_pad for each group */
    int m_pad, k_pad;
    const struct ddp__conv_reach *taps; /* [k_pad] */
} ddp__cuda_conv;

/* Offset of the element that column k of the packed weights multiplies, relative to the first element of the
 * position. */
typedef struct ddp__conv_reach {
    long at;
    int a, b; /* row and column in the window. a = DDP__CONV_NOWHERE means no element */
} ddp__conv_reach;

enum { DDP__CONV_NOWHERE = 1 << 29 }; /* a row far below all images */

static inline __device__ ddp__conv_reach ddp__conv_reach_of(const ddp__cuda_conv &v, int k)
{
    const int tap = k / v.planes, a = tap / v.kw, b = tap % v.kw;
    return {((long)a * v.w + b) * v.channels + k % v.planes, a < v.kh ? a : (int)DDP__CONV_NOWHERE, b};
}

/* A position: the start of its window in the first channel of the image, and its element of y. For positions
 * past the last, the window is outside all images. */
typedef struct ddp__conv_place {
    long x, y;
    int row, col;
} ddp__conv_place;

static inline __device__ ddp__conv_place ddp__conv_position(const ddp__cuda_conv &v, long pixel)
{
    ddp__conv_place p;
    const long plane = (long)v.rows * v.cols;
    const long image = v.pixels <= INT32_MAX ? (long)((unsigned)pixel / (unsigned)plane)
                                             : pixel / plane; /* a 64-bit division takes four times as long */
    const int rest = (int)(pixel - image * plane);
    const int r = rest / v.cols, c = rest - r * v.cols, real = pixel < v.pixels;

    p.row = real ? v.top + r * v.step : -2 * (int)DDP__CONV_NOWHERE;
    p.col = v.left + c * v.step;
    p.x = image * v.image + ((long)p.row * v.w + p.col) * v.channels;
    p.y = real ? image * v.y_image + r * v.y_row + c * v.y_col : -1;
    return p;
}

/* 1 if the element of the image at that tap exists. */
static inline __device__ int ddp__conv_sees(const ddp__cuda_conv &v, const ddp__conv_place &p, int a, int b)
{
    return (unsigned)(p.row + a) < (unsigned)v.h && (unsigned)(p.col + b) < (unsigned)v.w;
}

/* How to pack weights for the product: column (a kw + b) planes + p of row i of each group is w[g*group +
 * i*row + p*plane + a*kh_step + b*kw_step]. The remaining columns are zeros. */
typedef struct ddp__conv_pack {
    const void *w;
    long group, row, plane, kh_step, kw_step;
} ddp__conv_pack;

template <typename M>
__global__ void ddp__k_conv_pack(typename M::tile *out, ddp__conv_reach *taps, ddp__cuda_conv v,
                                 ddp__conv_pack s)
{
    const long n = (long)v.groups * v.m_pad * v.k_pad, step = (long)gridDim.x * blockDim.x;
    const typename M::tile *w = (const typename M::tile *)s.w;

    for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const int k = (int)(i % v.k_pad), m = (int)(i / v.k_pad % v.m_pad);
        const long g = i / v.k_pad / v.m_pad;
        const ddp__conv_reach tap = ddp__conv_reach_of(v, k);

        out[i] =
            tap.a < v.kh && m < v.m
                ? w[g * s.group + m * s.row + k % v.planes * s.plane + tap.a * s.kh_step + tap.b * s.kw_step]
                : ddp__from_float<typename M::tile>(0);
        if (i < v.k_pad) taps[k] = tap;
    }
}

/* ---- over images: y(position, i) = sum over (a, b, p) of weight(i, a, b, p) x(position, a, b, p)
 *
 * Grid: x: row tiles x position tiles, row tiles first, so that neighbouring blocks read the same positions,
 * and y: groups. Whole means that planes is a multiple of the depth, so that each tile has one tap, and
 * channels can be read 16 bytes at a time. ---- */

template <typename M, bool Whole>
__global__ void __launch_bounds__(DDP__CONV_THREADS, 2) ddp__k_conv_images(ddp__cuda_conv v)
{
    typedef typename M::tile tile;
    enum { A = M::tall / 64, B = DDP__CONV_COLUMNS / 64, W = 16 / sizeof(tile) };
    DDP__SHARED(tile, store);
    __shared__ long to[DDP__CONV_COLUMNS];
    const int t = (int)threadIdx.x, warp = t / 32, line = t / 4, part = t % 4 * (int)W;
    const int tiles = (v.m + M::tall - 1) / M::tall, top = (int)(blockIdx.x % (unsigned)tiles) * M::tall;
    const int warp_m = warp / 4 * M::tall / 2, warp_n = warp % 4 * 32, group = (int)blockIdx.y;
    const long first = (long)(blockIdx.x / (unsigned)tiles) * DDP__CONV_COLUMNS;
    const tile *x = (const tile *)v.x + (long)group * v.planes;
    const tile *w = (const tile *)v.weight + ((long)group * v.m_pad + top + line) * v.k_pad + part;
    ddp__vec<tile> right[B];
    ddp__conv_place from[B];
    int a = 0, b = 0, p = 0; /* of the next tile, if Whole */
    M product;

    for (int i = 0; i < B; i++) {
        from[i] = ddp__conv_position(v, first + line + 64 * i);
        if (part == 0) to[line + 64 * i] = from[i].y;
    }
    const auto load = [&](long n, tile *at) {
        const int k = (int)n * M::depth;
        for (int i = 0; i < A; i++)
            ddp__copy16(at + M::a_at(line + 64 * i, part), w + (long)(64 * i) * v.k_pad + k, 1);
        DDP__UNROLL for (int i = 0; i < B && Whole; i++)
        {
            const int in = ddp__conv_sees(v, from[i], a, b);
            ddp__copy16(at + M::b_at(line + 64 * i, part),
                        in ? x + from[i].x + ((long)a * v.w + b) * v.channels + p + part : w, in);
        }
        DDP__UNROLL for (int i = 0; i < B && !Whole; i++) DDP__UNROLL for (int e = 0; e < (int)W; e++)
        {
            const ddp__conv_reach tap = v.taps[k + part + e];
            right[i].v[e] =
                ddp__conv_sees(v, from[i], tap.a, tap.b) ? x[from[i].x + tap.at] : ddp__from_float<tile>(0);
        }
        if (Whole && (p += M::depth) == v.planes) {
            p = 0;
            if (++b == v.kw) {
                b = 0;
                a++;
            }
        }
    };
    const auto put = [&](tile *at) {
        for (int i = 0; i < B && !Whole; i++) ddp__vec_store(at + M::b_at(line + 64 * i, part), right[i]);
    };

    ddp__conv_multiply(product, store, v.k_pad / M::depth, warp_m, warp_n, load, put);
    ddp__conv_each<true>(product, (float *)(void *)store + warp * 16 * DDP__CONV_SHOWN,
                         [&](int i, int j, float sum) {
                             const int row = top + warp_m + i, channel = group * v.m + row;
                             tile *y = (tile *)v.y + to[warp_n + j] + channel;
                             if (row >= v.m || to[warp_n + j] < 0) return;
                             if (v.bias) sum += ddp__to_float(((const tile *)v.bias)[channel]);
                             if (v.add) sum += ddp__to_float(*y);
                             *y = ddp__from_float<tile>(sum);
                         });
}

/* ---- over weights: grad(i, column) = sum over positions of y(position, i) x(position, column)
 *
 * A column is (a, b, p). Here y is read only, and its positions are contiguous. Wide means that the rows of y
 * and the channels of a tap can be read 16 bytes at a time. Grid: x: row tiles x column tiles, y: parts of
 * the positions, `part` positions each, and z: groups. Part s writes to out + s*groups*m*columns. A single
 * part adds to out. In both, weights are stored in the order (p, a, b). ---- */

template <typename M, bool Wide>
__global__ void __launch_bounds__(DDP__CONV_THREADS, 2)
    ddp__k_conv_weights(ddp__cuda_conv v, float *out, long part)
{
    typedef typename M::tile tile;
    enum { W = 16 / sizeof(tile), V = M::tall / 64, C = DDP__CONV_COLUMNS / 64 };
    enum { Across_a = M::tall / (int)W, Across_b = DDP__CONV_COLUMNS / (int)W };
    DDP__SHARED(tile, store);
    __shared__ ddp__conv_reach taps[DDP__CONV_COLUMNS];
    const int t = (int)threadIdx.x, warp = t / 32;
    const int tiles = (v.m + M::tall - 1) / M::tall, columns = v.planes * v.kh * v.kw,
              y_channels = v.groups * v.m;
    const int top = (int)(blockIdx.x % (unsigned)tiles) * M::tall;
    const int left = (int)(blockIdx.x / (unsigned)tiles) * DDP__CONV_COLUMNS;
    const int warp_m = warp / 4 * M::tall / 2, warp_n = warp % 4 * 32, group = (int)blockIdx.z;
    const long begin = (long)blockIdx.y * part, end = begin + part < v.pixels ? begin + part : v.pixels;
    const int row = t % Across_a * (int)W, column = t % Across_b * (int)W; /* of the pieces of this thread */
    const tile *x = (const tile *)v.x + (long)group * v.planes;
    const tile *y = (const tile *)v.y + (long)group * v.m + top + row;
    ddp__vec<tile> rows[V], cols[C];
    M product;

    for (int j = t; j < DDP__CONV_COLUMNS; j += DDP__CONV_THREADS) taps[j] = ddp__conv_reach_of(v, left + j);
    __syncthreads();

    const auto load = [&](long n, tile *to) {
        for (int i = 0; i < V; i++) {
            const int k = t / Across_a + i * (DDP__CONV_THREADS / Across_a);
            const long pixel = begin + n * M::depth + k;
            const int left_m = pixel < end ? v.m - top - row : 0; /* number of rows from this one on */
            const tile *at = y + pixel * y_channels;
            if (Wide) ddp__copy16(to + M::a_at(row, k), left_m > 0 ? at : (const tile *)v.y, left_m > 0);
            for (int e = 0; e < (int)W && !Wide; e++)
                rows[i].v[e] = e < left_m ? at[e] : ddp__from_float<tile>(0);
        }
        for (int i = 0; i < C; i++) {
            const int k = t / Across_b + i * (DDP__CONV_THREADS / Across_b);
            const long pixel = begin + n * M::depth + k;
            const ddp__conv_place from = ddp__conv_position(v, pixel < end ? pixel : v.pixels);
            const ddp__conv_reach *tap = taps + column;
            const int in = ddp__conv_sees(v, from, tap->a, tap->b);
            if (Wide) ddp__copy16(to + M::b_at(column, k), in ? x + from.x + tap->at : x, in);
            for (int e = 0; e < (int)W && !Wide; e++, tap++)
                cols[i].v[e] =
                    ddp__conv_sees(v, from, tap->a, tap->b) ? x[from.x + tap->at] : ddp__from_float<tile>(0);
        }
    };
    const auto put = [&](tile *to) {
        for (int i = 0; i < V && !Wide; i++)
            ddp__vec_store(to + M::a_at(row, t / Across_a + i * (DDP__CONV_THREADS / Across_a)), rows[i]);
        for (int i = 0; i < C && !Wide; i++)
            ddp__vec_store(to + M::b_at(column, t / Across_b + i * (DDP__CONV_THREADS / Across_b)), cols[i]);
    };

    ddp__conv_multiply(product, store, (end - begin + M::depth - 1) / M::depth, warp_m, warp_n, load, put);
    out += (long)blockIdx.y * v.groups * v.m * columns;
    ddp__conv_each<false>(
        product, (float *)(void *)store + warp * 16 * DDP__CONV_SHOWN, [&](int i, int j, float sum) {
            const int k = left + warp_n + j, m = top + warp_m + i;
            const long at = (((long)group * v.m + m) * v.planes + k % v.planes) * v.kh * v.kw + k / v.planes;
            if (m >= v.m || k >= columns) return;
            out[at] = gridDim.y == 1 ? out[at] + sum : sum;
        });
}

/* grad[i] += part 0 + part 1 + ... */
static __global__ void ddp__k_conv_add_parts(float *grad, const float *out, long n, int parts)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (i >= n) return;
    for (int s = 0; s < parts; s++) sum += out[s * n + i];
    grad[i] += sum;
}

/* Adds the parts in dev->scratch to grad. */
static void ddp__conv_add_parts(ddp__cuda *dev, void *grad, long n, long parts)
{
    DDP__EACH(ddp__k_conv_add_parts, n, 256, (float *)grad, (const float *)dev->scratch, n, (int)parts);
}
