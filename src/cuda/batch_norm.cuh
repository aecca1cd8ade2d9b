/* Batch norm with the semantics of ops/batch_norm.c: the same shape rule, saved statistics (mean and rstd per
 * channel) and running averages. A following relu is fused: forward writes one more array, and backward needs
 * no extra pass for it. Images are channels-last: each pixel is a row of channels. The pixels are divided
 * into parts that depend only on the shape. A block sums one part of some channels, and the parts of a
 * channel are added in a fixed order, in double. */
#pragma once

#include "cuda/elementwise.cuh"

enum {
    DDP__CHANNEL_THREADS = 256,
    DDP__CHANNEL_PART = 4096,   /* minimum number of elements per block */
    DDP__CHANNEL_COLUMNS = 128, /* target number of channels per block */
    DDP__CHANNEL_BLOCKS = 528,  /* target number of blocks for kernels that sum */
    DDP__CHANNEL_MAPS = 2112    /* target number of blocks for other kernels */
};

typedef struct ddp__channels {
    long pixels, channels; /* pixels of all images */
    long parts, part;      /* number of parts, pixels per part (the last part may be shorter) */
} ddp__channels;

/* Sums of dy and dy (x - mean), or of d and d d, where d is x minus the first pixel of the part. */
struct ddp__channel_sum {
    double sum, product;

    __device__ void operator+=(const ddp__channel_sum &b)
    {
        sum += b.sum;
        product += b.product;
    }
};

static ddp__channels ddp__channels_of(const ddp_shape *s, long blocks = DDP__CHANNEL_BLOCKS)
{
    ddp__channels c = {s->dim[0] * s->dim[2] * s->dim[3], s->dim[1], 0, 0};
    const long columns = c.channels < DDP__CHANNEL_COLUMNS ? c.channels : (long)DDP__CHANNEL_COLUMNS;
    const long least = ddp__blocks(DDP__CHANNEL_PART, columns);

    c.part = ddp__blocks(c.pixels, ddp__blocks(blocks, ddp__blocks(c.channels, columns)));
    if (c.part < least) c.part = least;
    c.parts = ddp__blocks(c.pixels, c.part);
    return c;
}

/* Number of threads next to each other in a row of a block, each with `wide` channels. */
__host__ __device__ static __forceinline__ int ddp__channel_lanes(long channels, int wide)
{
    int lanes = 1;
    while (lanes < 32 && (long)lanes * wide < channels) lanes *= 2;
    return lanes;
}

/* Walks a block over part blockIdx.y. The threads of a block form rows of lanes. A lane owns `wide` channels,
 * starting at `channel`, and the rows take turns at the pixels. at is the index of the current element. The
 * walk has ended when left <= 0. */
struct ddp__channel_walk {
    long pixel, at, left, step, hop;
    int lanes, channel;

    __device__ ddp__channel_walk(const ddp__channels &c, int wide)
    {
        const long end = (blockIdx.y + 1) * c.part;

        lanes = ddp__channel_lanes(c.channels, wide);
        channel = ((int)blockIdx.x * lanes + (int)threadIdx.x % lanes) * wide;
        pixel = blockIdx.y * c.part + (int)threadIdx.x / lanes;
        at = pixel * c.channels + channel;
        left = channel < c.channels ? (end < c.pixels ? end : c.pixels) - pixel : 0;
        step = DDP__CHANNEL_THREADS / lanes;
        hop = step * c.channels;
    }
    __device__ void next()
    {
        left -= step;
        pixel += step;
        at += hop;
    }
};

/* Loads N elements at p as floats, 16 bytes at a time. W is the number of channels per lane, or 1 if the
 * array is not aligned for 16-byte loads. */
template <int W, int N, typename T>
__device__ static __forceinline__ void ddp__channel_load(float (&v)[N], const T *p)
{
    const int width = W > 1 ? ddp__vec<T>::width : 1;

    DDP__UNROLL for (int i = 0; i < N; i += width)
    {
        const ddp__vec<T, width> r = ddp__vec_load<T, width>(p + i);
        DDP__UNROLL for (int k = 0; k < width; k++) v[i + k] = ddp__to_float(r.v[k]);
    }
}

/* Adds, for each lane, the values of all rows of the block in a fixed tree. Row 0 returns the sum. shared has
 * one N per thread, and N defines +=. */
template <typename N> __device__ static __forceinline__ N ddp__rows_sum(const N &mine, N *shared, int lanes)
{
    shared[threadIdx.x] = mine;
    __syncthreads();
    for (int k = DDP__CHANNEL_THREADS / 2; k >= lanes; k /= 2) {
        if ((int)threadIdx.x < k) shared[threadIdx.x] += shared[threadIdx.x + (unsigned)k];
        __syncthreads();
    }
    return shared[threadIdx.x];
}

/* Batch norm for the channels of a lane: y = x factor + offset, rounded to T. scale is NULL if no relu
 * follows. */
template <typename T, int W> struct ddp__batch_line {
    float mean[W], factor[W], offset[W];
    int relu;

    __device__ ddp__batch_line(const float *stat, const T *scale, const T *shift,
                               const ddp__channel_walk &walk)
        : mean(), factor(), offset(), relu(scale != NULL)
    {
        float both[2 * W];

        if (!stat || walk.left <= 0) return;
        ddp__channel_load<W>(both, stat + 2 * walk.channel);
        if (relu)
            ddp__channel_load<W>(factor, scale + walk.channel),
                ddp__channel_load<W>(offset, shift + walk.channel);
        DDP__UNROLL for (int e = 0; e < W; e++)
        {
            mean[e] = both[2 * e];
            factor[e] *= both[2 * e + 1];
            offset[e] -= mean[e] * factor[e];
        }
    }
    __device__ float of(float x, int e) const
    {
        return ddp__to_float(ddp__from_float<T>(x * factor[e] + offset[e]));
    }

    /* dy, or 0 where the relu blocks the gradient of x. No branch, so that the compiler can move loads across
     * it. */
    __device__ float back(float dy, float x, int e) const { return (relu & !(of(x, e) > 0)) ? 0 : dy; }
};

/* Sums one part of each channel. stat: mean and rstd per channel. scale, shift: of the batch norm that a relu
 * follows, else NULL. If stat is NULL, dy is x, summed as differences from a nearby value, so that a mean far
 * from 0 loses no digits. */
template <typename T, int W>
__global__ void ddp__k_channel_sums(ddp__channel_sum *part, const T *dy, const T *x, const float *stat,
                                    const T *scale, const T *shift, ddp__channels c)
{
    __shared__ ddp__channel_sum shared[DDP__CHANNEL_THREADS];
    ddp__channel_walk walk(c, W);
    ddp__batch_line<T, W> line(stat, scale, shift, walk);
    const T *first = x + blockIdx.y * c.part * c.channels + walk.channel;
    float low[W] = {0}, sum[W] = {0}, product[W] = {0}, d[W], v[W];

    if (!stat && walk.left > 0) ddp__channel_load<W>(low, first), ddp__channel_load<W>(line.mean, first);
    DDP__UNROLL_4 for (long n = (walk.left + walk.step - 1) / walk.step; n > 0; n--, walk.next())
    {
        ddp__channel_load<W>(d, dy + walk.at);
        DDP__UNROLL for (int e = 0; e < W; e++) v[e] = d[e];
        if (stat) ddp__channel_load<W>(v, x + walk.at);
        DDP__UNROLL for (int e = 0; e < W; e++)
        {
            d[e] = line.back(d[e], v[e], e) - low[e];
            sum[e] += d[e];
            product[e] += d[e] * (v[e] - line.mean[e]);
        }
    }
    DDP__UNROLL for (int e = 0; e < W; e++)
    {
        const ddp__channel_sum mine = {(double)sum[e], (double)product[e]},
                               all = ddp__rows_sum(mine, shared, walk.lanes);
        if ((int)threadIdx.x < walk.lanes && walk.channel < c.channels)
            part[(walk.channel + e) * c.parts + blockIdx.y] = all;
    }
}

/* Adds the parts of a channel, with one warp. With x, the parts are differences from their first pixel. If x
 * is NULL, they are plain sums. */
template <typename T>
__device__ static __forceinline__ ddp__channel_sum ddp__channel_total(const ddp__channel_sum *part,
                                                                      const T *x, const ddp__channels &c,
                                                                      long channel)
{
    const double at = x ? (double)ddp__to_float(x[channel]) : 0;
    ddp__channel_sum all = {0, 0};

    for (long p = threadIdx.x; p < c.parts; p += 32) {
        const ddp__channel_sum s = part[channel * c.parts + p];
        const long first = p * c.part, n = p + 1 < c.parts ? c.part : c.pixels - first;
        const double count = (double)n, off = x ? ddp__to_float(x[first * c.channels + channel]) - at : 0;
        all += ddp__channel_sum{s.sum + off * count, s.product + off * (2 * s.sum + off * count)};
    }
    return ddp__channel_sum{ddp__warp_sum(all.sum), ddp__warp_sum(all.product)};
}

/* Computes each channel's statistics from its parts, one warp per channel. With training 0, reads the running
 * statistics. */
template <typename T>
__global__ void ddp__k_batch_norm_statistics(float *stat, float *running_mean, float *running_var,
                                             const ddp__channel_sum *part, const T *x, ddp__channels c,
                                             int training)
{
    const long i = blockIdx.x;
    const double n = (double)c.pixels;
    ddp__channel_sum all = {0, 0};
    double mean, var;

    if (training) all = ddp__channel_total(part, x, c, i);
    if (threadIdx.x) return;
    mean = (double)running_mean[i];
    var = (double)running_var[i];
    if (training) {
        mean = (double)ddp__to_float(x[i]) + all.sum / n;
        var = (all.product - all.sum * all.sum / n) / n;
        if (var < 0) var = 0;
        running_mean[i] += (float)(DDP__BATCH_NORM_MOVE * (mean - (double)running_mean[i]));
        running_var[i] +=
            (float)(DDP__BATCH_NORM_MOVE * (var * (n > 1 ? n / (n - 1) : 1) - (double)running_var[i]));
    }
    stat[2 * i] = (float)mean;
    stat[2 * i + 1] = (float)(1 / sqrt(var + DDP__NORM_EPS));
}

/* Gradients of scale and shift (NULL if not wanted). slope (3, channels): factor of dy, factor of x, and
 * constant term of dx. */
template <typename T>
__global__ void ddp__k_batch_norm_slopes(float *slope, float *dscale, float *dshift,
                                         const ddp__channel_sum *part, const float *stat, const T *scale,
                                         ddp__channels c)
{
    const long i = blockIdx.x;
    const ddp__channel_sum all = ddp__channel_total(part, (const T *)NULL, c, i);
    const double count = (double)c.pixels, mean = (double)stat[2 * i], rstd = (double)stat[2 * i + 1];
    const double factor = (double)ddp__to_float(scale[i]) * rstd,
                 of_x = -factor * rstd * rstd * all.product / count;

    if (threadIdx.x) return;
    if (dscale) dscale[i] += (float)(all.product * rstd);
    if (dshift) dshift[i] += (float)all.sum;
    slope[i] = (float)factor;
    slope[c.channels + i] = (float)of_x;
    slope[2 * c.channels + i] = (float)(-factor * all.sum / count - of_x * mean);
}

/* Writes y of each channel. z, unless NULL, receives relu(y). */
template <typename T, int W>
__global__ void ddp__k_batch_norm_apply(T *y, T *z, const T *x, const float *stat, const T *scale,
                                        const T *shift, ddp__channels c)
{
    ddp__channel_walk walk(c, W);
    const ddp__batch_line<T, W> line(stat, scale, shift, walk);
    float v[W];

    for (; walk.left > 0; walk.next()) {
        ddp__channel_load<W>(v, x + walk.at);
        DDP__UNROLL for (int e = 0; e < W; e++) v[e] = line.of(v[e], e);
        ddp__piece_store(y + walk.at, v, 0, W, W > 1, 0);
        DDP__UNROLL for (int e = 0; e < W; e++) v[e] = ddp__map_relu()(v[e], 0);
        if (z) ddp__piece_store(z + walk.at, v, 0, W, W > 1, 0);
    }
}

template <typename T, int W>
__global__ void ddp__k_batch_norm_grad(T *dx, const T *dy, const T *x, const float *slope, int add,
                                       const float *stat, const T *scale, const T *shift, ddp__channels c)
{
    ddp__channel_walk walk(c, W);
    const ddp__batch_line<T, W> line(stat, scale, shift, walk);
    float s[3][W], d[W], v[W];

    DDP__UNROLL for (int k = 0; k < 3 && walk.left > 0; k++)
        ddp__channel_load<W>(s[k], slope + k * c.channels + walk.channel);
    for (; walk.left > 0; walk.next()) {
        ddp__channel_load<W>(d, dy + walk.at);
        ddp__channel_load<W>(v, x + walk.at);
        DDP__UNROLL for (int e = 0; e < W; e++) d[e] =
            line.back(d[e], v[e], e) * s[0][e] + v[e] * s[1][e] + s[2][e];
        ddp__piece_store(dx + walk.at, d, 0, W, W > 1, add);
    }
}

/* ---- on the host ---- */

static size_t ddp__cuda_batch_norm_scratch(const ddp_op_spec *s, int)
{
    const ddp__channels c = ddp__channels_of(&s->in[0]);
    return (size_t)(c.channels * c.parts) * sizeof(ddp__channel_sum) + 3 * (size_t)c.channels * sizeof(float);
}

/* Launches kernel<T, W>(args..., c) over the parts of all channels of c. With wide 1, reads pixels 16 bytes
 * at a time. */
#define DDP__WALK(kernel, wide, c, ...)                                                                    \
    do {                                                                                                   \
        const int ddp__w = (wide) ? ddp__vec<T>::width : 1;                                                \
        const long ddp__columns = (long)ddp__channel_lanes((c).channels, ddp__w) * ddp__w;                 \
        const dim3 ddp__grid((unsigned)ddp__blocks((c).channels, ddp__columns), (unsigned)(c).parts);      \
        DDP__RUN(((wide) ? kernel<T, ddp__vec<T>::width> : kernel<T, 1>), ddp__grid, DDP__CHANNEL_THREADS, \
                 __VA_ARGS__, c);                                                                          \
    } while (0)

/* relu: the fused relu, or NULL. */
template <typename T>
static void ddp__cuda_batch_forward(ddp__cuda *dev, const ddp_op_call *call, const ddp_op_call *relu)
{
    const ddp_shape *s = &call->spec->in[0];
    const ddp__channels c = ddp__channels_of(s), map = ddp__channels_of(s, DDP__CHANNEL_MAPS);
    const T *x = (const T *)call->in[0], *scale = (const T *)call->param[0],
            *shift = (const T *)call->param[1], *no = NULL;
    T *y = (T *)call->out, *z = relu ? (T *)relu->out : NULL;
    float *stat = (float *)call->saved, *no_stat = NULL;
    ddp__channel_sum *part = (ddp__channel_sum *)dev->scratch;
    const int wide = ddp__wide<T>(c.channels, x, y, z, stat) && ddp__aligned(scale, shift);

    if (call->training) DDP__WALK(ddp__k_channel_sums, wide, c, part, x, x, no_stat, no, no);
    DDP__RUN((ddp__k_batch_norm_statistics<T>), (unsigned)c.channels, 32, stat, (float *)call->buffer[0],
             (float *)call->buffer[1], part, x, c, call->training);
    DDP__WALK(ddp__k_batch_norm_apply, wide, map, y, z, x, stat, scale, shift);
}

template <typename T>
static void ddp__cuda_batch_backward(ddp__cuda *dev, const ddp_op_call *call, const ddp_op_call *relu)
{
    const ddp_shape *s = &call->spec->in[0];
    const ddp__channels c = ddp__channels_of(s), map = ddp__channels_of(s, DDP__CHANNEL_MAPS);
    const T *x = (const T *)call->in[0], *dy = (const T *)(relu ? relu->grad_out : call->grad_out);
    const T *scale = (const T *)call->param[0], *shift = (const T *)call->param[1],
            *gate = relu ? scale : NULL;
    const float *stat = (const float *)call->saved;
    T *dx = (T *)call->grad_in[0];
    ddp__channel_sum *part = (ddp__channel_sum *)dev->scratch;
    float *slope = (float *)(part + c.channels * c.parts);
    const int wide = ddp__wide<T>(c.channels, x, dy, dx, stat) && ddp__aligned(scale, shift);

    DDP__WALK(ddp__k_channel_sums, wide, c, part, dy, x, stat, gate, shift);
    DDP__RUN((ddp__k_batch_norm_slopes<T>), (unsigned)c.channels, 32, slope, (float *)call->grad_param[0],
             (float *)call->grad_param[1], part, stat, scale, c);
    if (dx)
        DDP__WALK(ddp__k_batch_norm_grad, wide, map, dx, dy, x, slope, call->add_in[0], stat, gate, shift);
}

template <typename T> static void ddp__cuda_batch_norm_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_batch_forward<T>(dev, c, NULL);
}

template <typename T> static void ddp__cuda_batch_norm_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_batch_backward<T>(dev, c, NULL);
}

/* Runs the relu and the norm separately if another operator also reads the norm's output: its gradient is
 * already in the relu's grad_in[0]. */
static void ddp__cuda_batch_relu_backward(const ddp_op_call *norm, const ddp_op_call *relu)
{
    ddp__cuda *dev = (ddp__cuda *)norm->pool;
    if (relu->add_in[0]) ddp__cuda_map_backward<ddp__map_relu_grad>(relu), relu = NULL;
    (dev->half ? ddp__cuda_batch_backward<ddp__bf16> : ddp__cuda_batch_backward<float>)(dev, norm, relu);
}

static inline const ddp_op_pair *ddp__cuda_batch_pair(const char *first, const char *second)
{
    static const ddp_op_pair relu = {
        ddp__cuda_later_both<
            ddp__cuda_typed_both<ddp__cuda_batch_forward<float>, ddp__cuda_batch_forward<ddp__bf16>>>,
        ddp__cuda_later_both<ddp__cuda_batch_relu_backward>, NULL};
    return strcmp(first, "batch_norm2d") == 0 && strcmp(second, "relu") == 0 ? &relu : NULL;
}

DDP__FAMILY(ddp__cuda_batch_norm_ops,
            DDP__ENTRY("batch_norm2d", ddp__cuda_batch_norm, ddp__cuda_batch_norm_scratch))
