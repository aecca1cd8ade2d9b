/* The two matrix products behind a convolution (the CPU's are in ops/conv_product.h). One operand
 * is an image batch seen through a sliding window, whose matrix (im2col) never exists in memory:
 * each block gathers the tiles it needs. */
#pragma once

#include "cuda/rows.cuh"

#include <mma.h>

/* ---- how a block multiplies two tiles that lie in shared memory: with plain multiply-adds
 * (float32; the reference for the others), or on tensor cores in bf16 or TF32
 *
 * A tile of BM rows of A meets one of 128 columns of B, `depth` deep, in 8 warps: each warp has
 * BM / 2 rows and 32 columns; in the end every lane is shown the sums of its own column. ---- */

enum { DDP__CONV_THREADS = 256, DDP__CONV_COLUMNS = 128, DDP__CONV_SHOWN = 36 };

/* ---- plain: both tiles have k as their slow index ---- */

template <int BM, bool ByRow> struct ddp__conv_plain {
    typedef float value; /* of the tensors */
    typedef float tile;  /* in shared memory */
    enum {
        tall = BM, depth = 16, rows = BM / 2, a_row = BM + 4, b_row = DDP__CONV_COLUMNS + 4, a_size = depth * a_row,
        b_size = depth * b_row
    };
    float sum[rows];

    static __device__ int   a_at(int m, int k) { return k * a_row + m; }
    static __device__ int   b_at(int n, int k) { return k * b_row + n; }
    static __device__ float number(float x) { return x; }

    /* 16 bytes of row m of A, from column k on. */
    static __device__ void put_a(float *a, int m, int k, const ddp__vec<float> &e)
    {
        for (int i = 0; i < 4; i++) a[a_at(m, k + i)] = e.v[i];
    }

    /* The same of column n of B, where B is not by row. */
    static __device__ void put_b(float *b, int n, int k, const ddp__vec<float> &e)
    {
        for (int i = 0; i < 4; i++) b[b_at(n, k + i)] = e.v[i];
    }

    __device__ void clear()
    {
        for (int i = 0; i < rows; i++) sum[i] = 0;
    }

    /* m, n: where the warp's rows and columns begin. */
    __device__ void multiply(const float *a, const float *b, int m, int n, int lane)
    {
        for (int k = 0; k < depth; k++) {
            const float x = b[b_at(n + lane, k)];
            DDP__UNROLL for (int i = 0; i < rows; i++) sum[i] += a[a_at(m + i, k)] * x;
        }
    }

    /* show(row of the warp, sum) for every row of the lane's column. */
    template <typename Show> __device__ void each(float *room, int lane, Show show)
    {
        (void)room;
        (void)lane;
        DDP__UNROLL for (int i = 0; i < rows; i++) show(i, sum[i]);
    }
};

/* ---- tensor cores ---- */

/* One of the two number formats: a tile element, and the products' depth. */
struct ddp__mma_bf16 {
    typedef ddp__bf16 value;
    typedef ddp__bf16 element;
    static __device__ ddp__bf16 number(ddp__bf16 x) { return x; }
    enum { k = 16 };
};

struct ddp__mma_tf32 {
    typedef float value;
    typedef nvcuda::wmma::precision::tf32 element;
    static __device__ float number(float x) { return nvcuda::wmma::__float_to_tf32(x); }
    enum { k = 8 };
};

/* ByRow: a row of B's tile is one k, else one column. Rows are 16 bytes longer than what they
 * hold, so that the lanes of a load meet different banks. */
template <typename N, int BM, bool ByRow> struct ddp__conv_mma {
    typedef typename N::value value;
    typedef value             tile;
    enum {
        tall = BM, depth = 64 / (int)sizeof(tile), pad = 16 / (int)sizeof(tile), rows = BM / 2, a_row = depth + pad,
        b_row = (ByRow ? (int)DDP__CONV_COLUMNS : (int)depth) + pad, a_size = BM * a_row,
        b_size = (ByRow ? (int)depth : (int)DDP__CONV_COLUMNS) * b_row
    };

    static __device__ int   a_at(int m, int k) { return m * a_row + k; }
    static __device__ int   b_at(int n, int k) { return ByRow ? k * b_row + n : n * b_row + k; }
    static __device__ value number(value x) { return N::number(x); }

    static __device__ void put_a(tile *a, int m, int k, const ddp__vec<tile> &e)
    {
        ddp__vec_store(a + a_at(m, k), e);
    }

    static __device__ void put_b(tile *b, int n, int k, const ddp__vec<tile> &e)
    {
        ddp__vec_store(b + b_at(n, k), e);
    }

    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, N::k, float> sum[BM / 32][2];

    __device__ void clear()
    {
        for (int i = 0; i < BM / 32; i++)
            for (int j = 0; j < 2; j++) nvcuda::wmma::fill_fragment(sum[i][j], 0.0f);
    }

    __device__ void multiply(const tile *a, const tile *b, int m, int n, int lane)
    {
        using namespace nvcuda::wmma;
        typedef typename std::conditional<ByRow, row_major, col_major>::type layout;

        (void)lane;
        DDP__UNROLL for (int k = 0; k < depth; k += N::k) {
            fragment<matrix_b, 16, 16, N::k, typename N::element, layout> right[2];
            fragment<matrix_a, 16, 16, N::k, typename N::element, row_major> left;
            for (int j = 0; j < 2; j++) load_matrix_sync(right[j], b + b_at(n + 16 * j, k), (unsigned)b_row);
            DDP__UNROLL for (int i = 0; i < BM / 32; i++) {
                load_matrix_sync(left, a + a_at(m + 16 * i, k), (unsigned)a_row);
                for (int j = 0; j < 2; j++) mma_sync(sum[i][j], left, right[j], sum[i][j]);
            }
        }
    }

    /* room: 16 rows of DDP__CONV_SHOWN floats, the warp's own. */
    template <typename Show> __device__ void each(float *room, int lane, Show show)
    {
        DDP__UNROLL for (int i = 0; i < BM / 32; i++) {
            for (int j = 0; j < 2; j++)
                nvcuda::wmma::store_matrix_sync(room + 16 * j, sum[i][j], (unsigned)DDP__CONV_SHOWN,
                                                nvcuda::wmma::mem_row_major);
            __syncwarp();
            for (int r = 0; r < 16; r++) show(16 * i + r, room[r * DDP__CONV_SHOWN + lane]);
            __syncwarp();
        }
    }
};

template <int BM, bool ByRow> using ddp__conv_bf16 = ddp__conv_mma<ddp__mma_bf16, (BM), (ByRow)>;
template <int BM, bool ByRow> using ddp__conv_tf32 = ddp__conv_mma<ddp__mma_tf32, (BM), (ByRow)>;

/* ---- what is multiplied ---- */

/* Images through a window of kh x kw taps that stops at rows x cols positions of each image, and what it is multiplied
 * by. Tap (a, b) at position (r, c) reads element (top + r step + a, left + c step + b) of a plane of h x w, or 0 where
 * there is none. Plane p of group g of image i begins at x + i*image + (g*planes + p)*h*w. */
typedef struct ddp__cuda_conv {
    const void *x;
    long        image;
    int         planes, h, w, rows, cols, step, top, left, kh, kw;
    int         m, groups;    /* rows of the other matrix, of each group */
    long        pixels;       /* images x rows x cols: positions */
    void       *y;            /* element (i, r, c) of an image: y_image, y_plane, y_row, y_col */
    long        y_image, y_plane, y_row, y_col;
    const void *bias;         /* [groups x m], or NULL */
    int         add;          /* y is added to */
    const void *weight;       /* packed, m_pad rows of k_pad for each group */
    int         m_pad, k_pad;
    const struct ddp__conv_reach *taps; /* [k_pad] */
} ddp__cuda_conv;

/* What column k of the packed weights multiplies: an element that far from a position's first. */
typedef struct ddp__conv_reach {
    long at;
    int  a, b; /* a window's row and column; a = DDP__CONV_NOWHERE: nothing */
} ddp__conv_reach;

enum { DDP__CONV_NOWHERE = 1 << 29 }; /* a row so far below all images */

/* A position: where its window begins in image 0's first plane of the group, and the element of
 * y. Positions past the last have a window that lies nowhere. */
typedef struct ddp__conv_place {
    long x, y;
    int  row, col, real;
} ddp__conv_place;

static inline __device__ ddp__conv_place ddp__conv_position(const ddp__cuda_conv &v, long pixel)
{
    ddp__conv_place p;
    const long plane = (long)v.rows * v.cols;
    const long image = v.pixels <= INT32_MAX ? (long)((unsigned)pixel / (unsigned)plane)
                                             : pixel / plane; /* four times as slow */
    const int rest = (int)(pixel - image * plane);
    const int r = rest / v.cols, c = rest - r * v.cols;

    p.real = pixel < v.pixels;
    p.row = p.real ? v.top + r * v.step : -2 * (int)DDP__CONV_NOWHERE;
    p.col = v.left + c * v.step;
    p.x = image * v.image + (long)p.row * v.w + p.col, p.y = image * v.y_image + r * v.y_row + c * v.y_col;
    return p;
}

/* Weights as the product reads them: column (a kw + b) planes + p of row i of each group is
 * w[g*group + i*row + p*plane + a*kh_step + b*kw_step]; the rest is zeros. */
typedef struct ddp__conv_pack {
    const void *w;
    long        group, row, plane, kh_step, kw_step;
} ddp__conv_pack;

template <typename M>
__global__ void ddp__k_conv_pack(typename M::tile *out, ddp__conv_reach *taps, ddp__cuda_conv v, ddp__conv_pack s)
{
    const long n = (long)v.groups * v.m_pad * v.k_pad, step = (long)gridDim.x * blockDim.x;
    const typename M::value *w = (const typename M::value *)s.w;

    for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const int k = (int)(i % v.k_pad), p = k % v.planes, tap = k / v.planes;
        const int a = tap / v.kw, b = tap % v.kw, m = (int)(i / v.k_pad % v.m_pad);
        const long g = i / v.k_pad / v.m_pad;
        const int real = a < v.kh;

        out[i] = real && m < v.m ? M::number(w[g * s.group + m * s.row + p * s.plane +
                                               a * s.kh_step + b * s.kw_step]) : ddp__from_float<typename M::tile>(0);
        if (i >= v.k_pad) continue;
        taps[k].at = ((long)p * v.h + a) * v.w + b;
        taps[k].a = real ? a : (int)DDP__CONV_NOWHERE, taps[k].b = b;
    }
}

/* Windows whose rows can be read 16 bytes at a time: positions are as far apart as elements, and
 * a row of positions begins where one of elements does. Then 16 bytes of positions lie in one row
 * and see, at a tap, as many elements, from at most one before to one behind the same place. */
template <typename T> static inline int ddp__conv_by_rows(const ddp__cuda_conv &v)
{
    const int width = ddp__vec<T>::width;
    return v.step == 1 && v.left >= -1 && v.left + v.kw <= 2 && v.cols <= v.w &&
           v.cols % width == 0 && v.w % width == 0 && v.image % width == 0 && ddp__aligned(v.x);
}

/* What positions c, c + 1, ... of a row see d = -1, 0 or 1 columns further; at: the first of it.
 * in: the row is there. */
template <typename M> __device__ static __forceinline__ ddp__vec<typename M::tile>
ddp__conv_row(const typename M::value *at, const ddp__cuda_conv &v, int d, int c, int in)
{
    typedef typename M::value value;
    const int width = ddp__vec<value>::width;
    const value zero = ddp__from_float<value>(0);
    ddp__vec<value> e;
    ddp__vec<typename M::tile> r;
    value next = zero;

    DDP__UNROLL for (int i = 0; i < width; i++) e.v[i] = zero;
    if (in) e = ddp__vec_load(at - d);
    if (in && d < 0 && c > 0) next = at[0];
    if (in && d > 0 && c + width < v.w) next = at[width - 1];
    DDP__UNROLL for (int i = 0; i < width; i++) {
        const value before = i > 0 ? e.v[i > 0 ? i - 1 : 0] : next;
        const value behind = i + 1 < width ? e.v[i + 1 < width ? i + 1 : 0] : next;
        r.v[i] = M::number(d < 0 ? before : d > 0 ? behind : e.v[i]);
    }
    return r;
}

/* ---- over images: y(i, position) = sum over (a, b, p) of weight(i, a, b, p) x(a, b, p, position)
 *
 * Grid: row tiles x position tiles, the rows fastest so that neighbours share their positions; y: groups. Whole: planes
 * are a multiple of the depth, so that a tile is of one tap. Rows: that, and ddp__conv_by_rows. ---- */

template <typename M, bool Whole, bool Rows>
__global__ void __launch_bounds__(DDP__CONV_THREADS) ddp__k_conv_images(ddp__cuda_conv v)
{
    typedef typename M::tile tile;
    typedef typename M::value value;
    enum { A = M::tall / 64, B = M::depth / 2, W = 16 / sizeof(tile) };
    enum { Across = DDP__CONV_COLUMNS / (Rows ? (int)W : 1), N = DDP__CONV_THREADS / Across };
    alignas(128) __shared__ tile store[2][M::a_size + M::b_size];
    const int t = (int)threadIdx.x, warp = t / 32, lane = t % 32, lane_p = t / Across;
    const int column = t % Across * (Rows ? (int)W : 1); /* of the tile; lane_p: its first plane */
    const int tiles = (v.m + M::tall - 1) / M::tall, top = (int)(blockIdx.x % (unsigned)tiles) * M::tall;
    const int warp_m = warp / 4 * M::rows, warp_n = warp % 4 * 32, group = (int)blockIdx.y;
    const long first = (long)(blockIdx.x / (unsigned)tiles) * DDP__CONV_COLUMNS;
    const ddp__conv_place from = ddp__conv_position(v, first + column);
    const long plane = (long)v.h * v.w;
    const value *x = (const value *)v.x + group * (long)v.planes * plane + from.x;
    const tile *w = (const tile *)v.weight + ((long)group * v.m_pad + top) * v.k_pad;
    ddp__vec<tile> left[A], piece[M::depth / N];
    tile right[B];
    int a = 0, b = 0, p = 0;
    M product;

    const auto load = [&](int k) {
        const int in = (unsigned)(from.row + a) < (unsigned)v.h && (unsigned)(from.col + b) < (unsigned)v.w;
        const value *at = x + (long)a * v.w + b + (p + lane_p) * plane;

        for (int i = 0; i < A; i++) {
            const int row = (t + i * DDP__CONV_THREADS) / 4, part = t % 4;
            left[i] = ddp__vec_load(w + (long)row * v.k_pad + k + part * W);
        }
        DDP__UNROLL for (int i = 0; i < M::depth / N && Rows; i++)
            piece[i] = ddp__conv_row<M>(at + i * N * plane, v, v.left + b, from.col - v.left,
                                        (unsigned)(from.row + a) < (unsigned)v.h);
        DDP__UNROLL for (int i = 0; i < B && !Rows; i++) {
            value e = ddp__from_float<value>(0);
            if (Whole) {
                if (in) e = at[2 * i * plane];
            } else {
                const ddp__conv_reach tap = v.taps[k + lane_p + 2 * i];
                if ((unsigned)(from.row + tap.a) < (unsigned)v.h && (unsigned)(from.col + tap.b) < (unsigned)v.w)
                    e = x[tap.at];
            }
            right[i] = M::number(e);
        }
        if (Whole && (p += M::depth) == v.planes) {
            p = 0;
            if (++b == v.kw) b = 0, a++;
        }
    };
    const auto put = [&](tile *to) {
        for (int i = 0; i < A; i++) {
            const int row = (t + i * DDP__CONV_THREADS) / 4, part = t % 4;
            M::put_a(to, row, part * W, left[i]);
        }
        to += M::a_size;
        for (int i = 0; i < M::depth / N && Rows; i++) ddp__vec_store(to + M::b_at(column, lane_p + i * N), piece[i]);
        DDP__UNROLL for (int i = 0; i < B && !Rows; i++) to[M::b_at(column, lane_p + 2 * i)] = right[i];
    };

    product.clear();
    load(0);
    put(store[0]);
    __syncthreads();
    for (int k = 0, now = 0; k < v.k_pad; k += M::depth, now ^= 1) {
        const int more = k + M::depth < v.k_pad;
        if (more) load(k + M::depth);
        product.multiply(store[now], store[now] + M::a_size, warp_m, warp_n, lane);
        if (more) put(store[now ^ 1]);
        __syncthreads();
    }

    const ddp__conv_place to = ddp__conv_position(v, first + warp_n + lane);
    product.each((float *)(void *)store + warp * 16 * DDP__CONV_SHOWN, lane,
                 [&](int i, float sum) {
                     const int row = top + warp_m + i;
                     const long channel = (long)group * v.m + row;
                     value *y = (value *)v.y + channel * v.y_plane + to.y;
                     if (row >= v.m || !to.real) return;
                     if (v.bias) sum += ddp__to_float(((const value *)v.bias)[channel]);
                     if (v.add) sum += ddp__to_float(*y);
                     *y = ddp__from_float<value>(sum);
                 });
}

/* ---- over weights: grad(i, column) = sum over positions of y(i, position) x(column, position)
 *
 * columns are (p, a, b), as the weights lie. Here y is only read, and a plane of it is contiguous; Wide: it can be read
 * 16 bytes at a time, and parts begin at a multiple of that. Rows: that, and ddp__conv_by_rows. Grid: row tiles x
 * column tiles; y: parts of the positions, each of `part`; z: groups. Part s writes out + s*groups*m*columns; a single
 * part adds to out. ---- */

template <typename M, bool Wide, bool Rows> __global__ void __launch_bounds__(DDP__CONV_THREADS)
    ddp__k_conv_weights(ddp__cuda_conv v, float *out, long part)
{
    typedef typename M::tile tile;
    typedef typename M::value value;
    enum { Step = DDP__CONV_THREADS / M::depth, A = M::tall / Step, B = DDP__CONV_COLUMNS / Step };
    enum { V = M::tall / 64, W = 16 / sizeof(tile), C = DDP__CONV_COLUMNS / 64 };
    alignas(128) __shared__ tile store[2][M::a_size + M::b_size];
    __shared__ ddp__conv_reach taps[DDP__CONV_COLUMNS];
    const int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    const int tiles = (v.m + M::tall - 1) / M::tall, columns = v.planes * v.kh * v.kw;
    const int top = (int)(blockIdx.x % (unsigned)tiles) * M::tall;
    const int left = (int)(blockIdx.x / (unsigned)tiles) * DDP__CONV_COLUMNS;
    const int warp_m = warp / 4 * M::rows, warp_n = warp % 4 * 32, group = (int)blockIdx.z;
    const long plane = (long)v.h * v.w, begin = (long)blockIdx.y * part;
    const long end = begin + part < v.pixels ? begin + part : v.pixels;
    const int lane_k = t % M::depth, first = t / M::depth;
    const value *x = (const value *)v.x + group * (long)v.planes * plane;
    const value *y = (const value *)v.y + ((long)group * v.m + top) * v.y_plane;
    ddp__vec<tile> wide[V], piece[C];
    tile rows[A], cols[B];
    M product;

    for (int j = t; j < DDP__CONV_COLUMNS; j += DDP__CONV_THREADS) {
        const int column = left + j, p = column / (v.kh * v.kw), b = column % v.kw, a = column / v.kw % v.kh;
        taps[j].at = ((long)p * v.h + a) * v.w + b;
        taps[j].a = column < columns ? a : (int)DDP__CONV_NOWHERE, taps[j].b = b;
    }
    __syncthreads();

    const auto load = [&](long k) {
        const ddp__conv_place p = ddp__conv_position(v, k + lane_k);
        const int in = k + lane_k < end;

        if (Wide) {
            const long pixel = k + t % 4 * W;
            const ddp__conv_place from = ddp__conv_position(v, pixel);
            for (int i = 0; i < V; i++) {
                const int row = (t + i * DDP__CONV_THREADS) / 4;
                for (int e = 0; e < (int)W; e++) wide[i].v[e] = ddp__from_float<tile>(0);
                if (pixel >= end || top + row >= v.m) continue;
                const ddp__vec<value> all = ddp__vec_load(y + row * v.y_plane + from.y);
                for (int e = 0; e < (int)W; e++) wide[i].v[e] = M::number(all.v[e]);
            }
            DDP__UNROLL for (int i = 0; i < C && Rows; i++) {
                const ddp__conv_reach tap = taps[(t + i * DDP__CONV_THREADS) / 4];
                const int there = pixel < end && (unsigned)(from.row + tap.a) < (unsigned)v.h;
                piece[i] = ddp__conv_row<M>(x + from.x + tap.at, v, v.left + tap.b, from.col - v.left, there);
            }
        }
        DDP__UNROLL for (int i = 0; i < A && !Wide; i++) {
            const int row = first + i * Step;
            value e = ddp__from_float<value>(0);
            if (in && top + row < v.m) e = y[row * v.y_plane + p.y];
            rows[i] = M::number(e);
        }
        DDP__UNROLL for (int i = 0; i < B && !Rows; i++) {
            const ddp__conv_reach tap = taps[first + i * Step];
            value e = ddp__from_float<value>(0);
            if (in && (unsigned)(p.row + tap.a) < (unsigned)v.h && (unsigned)(p.col + tap.b) < (unsigned)v.w)
                e = x[p.x + tap.at];
            cols[i] = M::number(e);
        }
    };
    const auto put = [&](tile *to) {
        for (int i = 0; i < V && Wide; i++) M::put_a(to, (t + i * DDP__CONV_THREADS) / 4, t % 4 * W, wide[i]);
        DDP__UNROLL for (int i = 0; i < A && !Wide; i++) to[M::a_at(first + i * Step, lane_k)] = rows[i];
        to += M::a_size;
        for (int i = 0; i < C && Rows; i++) M::put_b(to, (t + i * DDP__CONV_THREADS) / 4, t % 4 * W, piece[i]);
        DDP__UNROLL for (int i = 0; i < B && !Rows; i++) to[M::b_at(first + i * Step, lane_k)] = cols[i];
    };

    product.clear();
    load(begin);
    put(store[0]);
    __syncthreads();
    for (long k = begin, now = 0; k < end; k += M::depth, now ^= 1) {
        const int more = k + M::depth < end;
        if (more) load(k + M::depth);
        product.multiply(store[now], store[now] + M::a_size, warp_m, warp_n, lane);
        if (more) put(store[now ^ 1]);
        __syncthreads();
    }

    const int column = left + warp_n + lane, single = gridDim.y == 1;
    out += (long)blockIdx.y * v.groups * v.m * columns;
    product.each((float *)(void *)store + warp * 16 * DDP__CONV_SHOWN, lane,
                 [&](int i, float sum) {
                     const int row = top + warp_m + i;
                     const long at = ((long)group * v.m + row) * columns + column;
                     if (row >= v.m || column >= columns) return;
                     out[at] = single ? out[at] + sum : sum;
                 });
}

/* grad[i] += part 0's + part 1's + ... */
static __global__ void ddp__k_conv_add_parts(float *grad, const float *out, long n, int parts)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (i >= n) return;
    for (int s = 0; s < parts; s++) sum += out[s * n + i];
    grad[i] += sum;
}

/* grad += the parts that lie in dev->scratch. */
static void ddp__conv_add_parts(ddp__cuda *dev, void *grad, long n, long parts)
{
    DDP__EACH(ddp__k_conv_add_parts, n, 256, (float *)grad, (const float *)dev->scratch, n, (int)parts);
}
