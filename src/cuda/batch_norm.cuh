/* Sums over each channel of images (batch, channels, n), which batch norm and the bias of a convolution need; and
 * batch norm, as ops/batch_norm.c: its shape rule, saved statistics (mean and rstd per channel) and running averages; and
 * with the relu behind it as one, which forward is a write more, and backward reads and writes nothing of its own.
 * A channel is cut into parts that depend on the shape alone; each block sums a part, and parts are joined in their
 * order, in double. */
#pragma once

#include "cuda/elementwise.cuh"

enum {
    DDP__CHANNEL_THREADS = 256,
    DDP__CHANNEL_PART = 4096,  /* elements at least */
    DDP__CHANNEL_BLOCKS = 1024 /* about so many in all */
};

typedef struct ddp__channels {
    long images, channels, n; /* n = elements of a plane */
    long parts, part;         /* of a channel; elements of a part, a multiple of 8 */
} ddp__channels;

/* What the statistics of a part are: elements, mean, sum of squared differences from it. */
struct ddp__moments {
    double n, mean, squares;

    /* Chan, Golub and LeVeque (1979). */
    __device__ void operator+=(const ddp__moments &b)
    {
        const double off = b.mean - mean, all = n + b.n;

        if (n == 0) {
            *this = b;
            return;
        }
        squares = squares + b.squares + off * off * n * b.n / all;
        mean = mean + off * b.n / all;
        n = all;
    }
};

/* Of dy and of dy (x - mean). */
struct ddp__channel_sum {
    double sum, product;

    __device__ void operator+=(const ddp__channel_sum &b) { sum += b.sum, product += b.product; }
};

static ddp__channels ddp__channels_of(const ddp_shape *s)
{
    ddp__channels c = {s->dim[0], s->dim[1], s->dim[2] * s->dim[3], 0, 0};
    const long count = c.images * c.n;

    c.parts = ddp__blocks(count, DDP__CHANNEL_PART);
    if (c.parts > DDP__CHANNEL_BLOCKS / c.channels + 1) c.parts = DDP__CHANNEL_BLOCKS / c.channels + 1;
    c.part = ddp__blocks(ddp__blocks(count, c.parts), 8) * 8;
    return c;
}

/* Walks a block's threads over its part of channel blockIdx.x, `wide` elements at a time: a plane
 * is a multiple of that. at = element of the array, left = elements of the part still to come. */
struct ddp__channel_walk {
    long at, left, i, n, skip, step, step_i, step_at;

    __device__ ddp__channel_walk(const ddp__channels &c, int wide)
    {
        const long begin = (long)blockIdx.y * c.part + (long)threadIdx.x * wide;
        const long count = c.images * c.n, end = ((long)blockIdx.y + 1) * c.part, image = begin / c.n;

        n = c.n;
        i = begin - image * n;
        at = (image * c.channels + blockIdx.x) * n + i;
        left = (end < count ? end : count) - begin;
        step = (long)DDP__CHANNEL_THREADS * wide;
        step_i = step % n;
        skip = (c.channels - 1) * n; /* from the end of a plane to the channel's next */
        step_at = step + step / n * skip;
    }
    __device__ void next()
    {
        left -= step;
        at += step_at;
        i += step_i;
        if (i < n) return;
        i -= n;
        at += skip;
    }
};

/* ---- moments ---- */

/* Squares are of differences from the thread's first element, so a mean far from 0 costs no
 * digits. W: elements of a load. */
template <typename T, int W> __global__ void ddp__k_channel_moments(ddp__moments *part, const T *x, ddp__channels c)
{
    __shared__ ddp__moments all[DDP__CHANNEL_THREADS];
    ddp__channel_walk walk(c, W);
    ddp__moments m = {0, 0, 0};
    float first = 0, sum = 0, squares = 0;

    if (walk.left > 0) first = ddp__to_float(x[walk.at]);
    for (; walk.left > 0; walk.next()) {
        const ddp__vec<T, W> v = ddp__vec_load<T, W>(x + walk.at);
        for (int e = 0; e < W; e++) {
            const float d = ddp__to_float(v.v[e]) - first;
            sum += d;
            squares += d * d;
        }
        m.n += W;
    }
    if (m.n > 0) {
        m.mean = (double)first + (double)sum / m.n;
        m.squares = (double)squares - (double)sum * (double)sum / m.n;
        if (m.squares < 0) m.squares = 0;
    }
    m = ddp__block_sum<DDP__CHANNEL_THREADS>(m, all);
    if (threadIdx.x == 0) part[blockIdx.x * c.parts + blockIdx.y] = m;
}

/* ---- what batch norm makes of an element, and relu of its gradient ---- */

/* Of channel blockIdx.x: y = x factor + offset, rounded. scale NULL: no relu stands behind it. */
template <typename T> struct ddp__batch_line {
    float factor, offset;
    int   relu;

    __device__ ddp__batch_line(const float *stat, const T *scale, const T *shift)
    {
        relu = scale != NULL;
        factor = relu ? ddp__to_float(scale[blockIdx.x]) * stat[2 * blockIdx.x + 1] : 0;
        offset = relu ? ddp__to_float(shift[blockIdx.x]) - stat[2 * blockIdx.x] * factor : 0;
    }
    __device__ T of(T x) const { return ddp__from_float<T>(ddp__to_float(x) * factor + offset); }

    /* dy, or what relu lets pass of it where x lies. */
    template <int W> __device__ void back(ddp__vec<T, W> &dy, const ddp__vec<T, W> &x) const
    {
        for (int e = 0; relu && e < W; e++)
            if (!(ddp__to_float(of(x.v[e])) > 0)) dy.v[e] = ddp__from_float<T>(0);
    }
};

/* ---- sums of dy, and of dy (x - mean) ---- */

/* x NULL: the second is 0. stat: mean and another float per channel. scale, shift: of a relu behind it, or NULL. */
template <typename T, int W> __global__ void ddp__k_channel_sums(ddp__channel_sum *part, const T *dy, const T *x,
                                                                 const float *stat, const T *scale, const T *shift,
                                                                 ddp__channels c)
{
    __shared__ ddp__channel_sum all[DDP__CHANNEL_THREADS];
    const ddp__batch_line<T> line(stat, scale, shift);
    const float mean = x ? stat[2 * blockIdx.x] : 0;
    float sum = 0, product = 0;

    for (ddp__channel_walk walk(c, W); walk.left > 0; walk.next()) {
        ddp__vec<T, W> d = ddp__vec_load<T, W>(dy + walk.at);
        const ddp__vec<T, W> v = x ? ddp__vec_load<T, W>(x + walk.at) : d;
        line.back(d, v);
        for (int e = 0; e < W; e++) sum += ddp__to_float(d.v[e]);
        if (!x) continue;
        for (int e = 0; e < W; e++) product += ddp__to_float(d.v[e]) * (ddp__to_float(v.v[e]) - mean);
    }
    const ddp__channel_sum total =
        ddp__block_sum<DDP__CHANNEL_THREADS>(ddp__channel_sum{(double)sum, (double)product}, all);
    if (threadIdx.x == 0) part[blockIdx.x * c.parts + blockIdx.y] = total;
}

/* What a channel's parts sum to. */
template <typename N> static inline __device__ N ddp__channel_total(const N *part, const ddp__channels &c, long channel)
{
    N all = part[channel * c.parts];
    for (long p = 1; p < c.parts; p++) all += part[channel * c.parts + p];
    return all;
}

/* grad[c] += the sum of channel c. */
static DDP__UNUSED __global__ void ddp__k_channel_add(float *grad, const ddp__channel_sum *part, ddp__channels c)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < c.channels) grad[i] += (float)ddp__channel_total(part, c, i).sum;
}

/* ---- batch norm ---- */

/* Joins the parts of each channel; training 0 reads the running statistics instead. */
static __global__ void ddp__k_batch_norm_statistics(float *stat, float *running_mean, float *running_var,
                                                    const ddp__moments *part, ddp__channels c, int training)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    double mean, var;

    if (i >= c.channels) return;
    mean = (double)running_mean[i];
    var = (double)running_var[i];
    if (training) {
        const ddp__moments m = ddp__channel_total(part, c, i);
        mean = m.mean;
        var = m.squares / m.n;
        running_mean[i] += (float)(DDP__BATCH_NORM_MOVE * (mean - (double)running_mean[i]));
        running_var[i] += (float)(DDP__BATCH_NORM_MOVE * (var * (m.n > 1 ? m.n / (m.n - 1) : 1) -
                                                         (double)running_var[i]));
    }
    stat[2 * i] = (float)mean;
    stat[2 * i + 1] = (float)(1 / sqrt(var + DDP__NORM_EPS));
}

/* y of each channel, and relu of it into z, unless that is NULL. */
template <typename T, int W>
__global__ void ddp__k_batch_norm_apply(T *y, T *z, const T *x, const float *stat, const T *scale, const T *shift,
                                        ddp__channels c)
{
    const ddp__batch_line<T> line(stat, scale, shift);

    for (ddp__channel_walk walk(c, W); walk.left > 0; walk.next()) {
        ddp__vec<T, W> v = ddp__vec_load<T, W>(x + walk.at);
        for (int e = 0; e < W; e++) v.v[e] = line.of(v.v[e]);
        ddp__vec_store(y + walk.at, v);
        if (!z) continue;
        for (int e = 0; e < W; e++) v.v[e] = ddp__from_float<T>(ddp__map_relu()(ddp__to_float(v.v[e]), 0));
        ddp__vec_store(z + walk.at, v);
    }
}

/* Gradients of scale and shift, and slope[3 c]: what dx takes of dy, of x, and besides. */
template <typename T>
__global__ void ddp__k_batch_norm_slopes(float *slope, float *dscale, float *dshift, const ddp__channel_sum *part,
                                         const float *stat, const T *scale, ddp__channels c)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const double count = (double)c.images * (double)c.n;
    double mean, rstd, factor, of_x;
    ddp__channel_sum all;

    if (i >= c.channels) return;
    all = ddp__channel_total(part, c, i);
    mean = (double)stat[2 * i], rstd = (double)stat[2 * i + 1];
    factor = (double)ddp__to_float(scale[i]) * rstd;
    of_x = -factor * rstd * rstd * all.product / count;
    if (dscale) dscale[i] += (float)(all.product * rstd);
    if (dshift) dshift[i] += (float)all.sum;
    slope[3 * i] = (float)factor;
    slope[3 * i + 1] = (float)of_x;
    slope[3 * i + 2] = (float)(-factor * all.sum / count - of_x * mean);
}

template <typename T, int W>
__global__ void ddp__k_batch_norm_grad(T *dx, const T *dy, const T *x, const float *slope, int add, const float *stat,
                                       const T *scale, const T *shift, ddp__channels c)
{
    const ddp__batch_line<T> line(stat, scale, shift);
    const float *s = slope + 3 * blockIdx.x;

    for (ddp__channel_walk walk(c, W); walk.left > 0; walk.next()) {
        const ddp__vec<T, W> v = ddp__vec_load<T, W>(x + walk.at);
        ddp__vec<T, W> d = ddp__vec_load<T, W>(dy + walk.at);
        line.back(d, v);
        ddp__vec<T, W> r = ddp__vec_load<T, W>(add ? dx + walk.at : dy + walk.at);
        for (int e = 0; e < W; e++) {
            float g = ddp__to_float(d.v[e]) * s[0] + ddp__to_float(v.v[e]) * s[1] + s[2];
            if (add) g += ddp__to_float(r.v[e]);
            r.v[e] = ddp__from_float<T>(g);
        }
        ddp__vec_store(dx + walk.at, r);
    }
}

/* ---- on the host ---- */

static size_t ddp__cuda_batch_norm_scratch(const ddp_op_spec *s, int)
{
    const ddp__channels c = ddp__channels_of(&s->in[0]);
    return (size_t)(c.channels * c.parts) * sizeof(ddp__moments) + 3 * (size_t)c.channels * sizeof(float);
}

/* DDP__WALK(kernel, wide, c, args...): kernel<T, W> over the parts of all channels of c; wide 1: planes are read 16 bytes
 * at a time. */
#define DDP__WALK(kernel, wide, c, ...)                                                                          \
    do {                                                                                                         \
        const dim3 ddp__grid((unsigned)(c).channels, (unsigned)(c).parts);                                       \
        if (wide)                                                                                                \
            DDP__RUN((kernel<T, ddp__vec<T>::width>), ddp__grid, DDP__CHANNEL_THREADS, __VA_ARGS__, c);          \
        else DDP__RUN((kernel<T, 1>), ddp__grid, DDP__CHANNEL_THREADS, __VA_ARGS__, c);                          \
    } while (0)

/* relu: what stands behind it as one; NULL: nothing does. */
template <typename T>
static void ddp__cuda_batch_forward(ddp__cuda *dev, const ddp_op_call *call, const ddp_op_call *relu)
{
    const ddp__channels c = ddp__channels_of(&call->spec->in[0]);
    const int wide = ddp__wide<T>(c.n, call->in[0], call->out, relu ? relu->out : NULL);
    ddp__moments *part = (ddp__moments *)dev->scratch;
    const T *x = (const T *)call->in[0];

    if (call->training) DDP__WALK(ddp__k_channel_moments, wide, c, part, x);
    DDP__EACH(ddp__k_batch_norm_statistics, c.channels, 128, (float *)call->saved,
              (float *)call->buffer[0], (float *)call->buffer[1], part, c, call->training);
    DDP__WALK(ddp__k_batch_norm_apply, wide, c, (T *)call->out, relu ? (T *)relu->out : NULL, x,
              (const float *)call->saved, (const T *)call->param[0], (const T *)call->param[1]);
}

template <typename T>
static void ddp__cuda_batch_backward(ddp__cuda *dev, const ddp_op_call *call, const ddp_op_call *relu)
{
    const ddp__channels c = ddp__channels_of(&call->spec->in[0]);
    ddp__channel_sum *part = (ddp__channel_sum *)dev->scratch;
    float *slope = (float *)(part + c.channels * c.parts);
    const float *stat = (const float *)call->saved;
    const T *dy = (const T *)(relu ? relu->grad_out : call->grad_out), *x = (const T *)call->in[0];
    const T *gate = relu ? (const T *)call->param[0] : NULL, *shift = (const T *)call->param[1];
    const int wide = ddp__wide<T>(c.n, x, dy, call->grad_in[0]);

    DDP__WALK(ddp__k_channel_sums, wide, c, part, dy, x, stat, gate, shift);
    DDP__EACH((ddp__k_batch_norm_slopes<T>), c.channels, 128, slope, (float *)call->grad_param[0],
              (float *)call->grad_param[1], part, stat, (const T *)call->param[0], c);
    if (call->grad_in[0])
        DDP__WALK(ddp__k_batch_norm_grad, wide, c, (T *)call->grad_in[0], dy, x, (const float *)slope, call->add_in[0],
                  stat, gate, shift);
}

template <typename T> static void ddp__cuda_batch_norm_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_batch_forward<T>(dev, c, NULL);
}

template <typename T> static void ddp__cuda_batch_norm_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_batch_backward<T>(dev, c, NULL);
}

/* As two where others than relu read the norm: their gradients are in relu's grad_in[0] by now. */
static void ddp__cuda_batch_relu_backward(const ddp_op_call *norm, const ddp_op_call *relu)
{
    ddp__cuda *dev = (ddp__cuda *)norm->pool;
    if (relu->add_in[0]) ddp__cuda_map_backward<ddp__map_relu_grad>(relu), relu = NULL;
    (dev->half ? ddp__cuda_batch_backward<ddp__bf16> : ddp__cuda_batch_backward<float>)(dev, norm, relu);
}

static inline const ddp_op_pair *ddp__cuda_batch_pair(const char *first, const char *second)
{
    static const ddp_op_pair relu = {
        ddp__cuda_later_both<ddp__cuda_typed_both<ddp__cuda_batch_forward<float>, ddp__cuda_batch_forward<ddp__bf16> > >,
        ddp__cuda_later_both<ddp__cuda_batch_relu_backward>, NULL};
    return strcmp(first, "batch_norm2d") == 0 && strcmp(second, "relu") == 0 ? &relu : NULL;
}

DDP__FAMILY(ddp__cuda_batch_norm_ops, DDP__ENTRY("batch_norm2d", ddp__cuda_batch_norm, ddp__cuda_batch_norm_scratch))
