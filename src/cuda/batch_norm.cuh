/* Sums over each channel of images (batch, channels, n), which batch norm and the bias of a convolution need; and
 * batch norm, as ops/batch_norm.c: its shape rule, saved statistics (mean and rstd per channel) and running averages.
 * A channel is cut into parts that depend on the shape alone; each block sums a part, and parts are joined in their
 * order, in double. */
#ifndef DDP_CUDA_BATCH_NORM_CUH
#define DDP_CUDA_BATCH_NORM_CUH

#include "cuda/rows.cuh"

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
typedef struct ddp__moments {
    double n, mean, squares;
} ddp__moments;

static ddp__channels ddp__channels_of(const ddp_shape *s)
{
    ddp__channels c;
    long count;

    c.images = s->dim[0];
    c.channels = s->dim[1];
    c.n = s->dim[2] * s->dim[3];
    count = c.images * c.n;
    c.parts = ddp__blocks(count, DDP__CHANNEL_PART);
    if (c.parts > DDP__CHANNEL_BLOCKS / c.channels + 1) c.parts = DDP__CHANNEL_BLOCKS / c.channels + 1;
    c.part = ddp__blocks(ddp__blocks(count, c.parts), 8) * 8;
    return c;
}

static dim3 ddp__channels_grid(const ddp__channels &c) { return dim3((unsigned)c.channels, (unsigned)c.parts); }

/* W elements at once: 1, or as many as 16 bytes hold. */
template <typename T, int W> struct ddp__several {
    T v[W];

    __device__ explicit ddp__several(const T *p)
    {
        if (W == 1) {
            v[0] = p[0];
        } else {
            const ddp__vec<T> r = ddp__vec_load(p);
            for (int e = 0; e < W; e++) v[e] = r.v[e];
        }
    }
    __device__ void store(T *p) const
    {
        ddp__vec<T> r;

        if (W == 1) {
            p[0] = v[0];
        } else {
            for (int e = 0; e < W; e++) r.v[e] = v[e];
            ddp__vec_store(p, r);
        }
    }
};

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

/* Chan, Golub and LeVeque (1979). */
static inline __device__ ddp__moments ddp__moments_join(const ddp__moments &a, const ddp__moments &b)
{
    ddp__moments r;
    const double off = b.mean - a.mean;

    if (b.n == 0) return a;
    if (a.n == 0) return b;
    r.n = a.n + b.n;
    r.mean = a.mean + off * b.n / r.n;
    r.squares = a.squares + b.squares + off * off * a.n * b.n / r.n;
    return r;
}

/* Squares are of differences from the thread's first element, so a mean far from 0 costs no
 * digits. W: elements of a load. */
template <typename T, int W> __global__ void ddp__k_channel_moments(ddp__moments *part, const T *x, ddp__channels c)
{
    __shared__ ddp__moments all[DDP__CHANNEL_THREADS];
    const int t = (int)threadIdx.x;
    ddp__channel_walk walk(c, W);
    ddp__moments m = {0, 0, 0};
    float first = 0, sum = 0, squares = 0;

    if (walk.left > 0) first = ddp__to_float(x[walk.at]);
    for (; walk.left > 0; walk.next()) {
        const ddp__several<T, W> v(x + walk.at);
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
    all[t] = m;
    __syncthreads();
    for (int half = DDP__CHANNEL_THREADS / 2; half; half /= 2) {
        if (t < half) all[t] = ddp__moments_join(all[t], all[t + half]);
        __syncthreads();
    }
    if (t == 0) part[blockIdx.x * c.parts + blockIdx.y] = all[0];
}

/* ---- sums of dy, and of dy (x - mean) ---- */

/* x NULL: the second is 0. stat: mean and another float per channel. */
template <typename T, int W>
__global__ void ddp__k_channel_sums(double *part, const T *dy, const T *x, const float *stat, ddp__channels c)
{
    __shared__ double all[2][DDP__CHANNEL_THREADS];
    const int t = (int)threadIdx.x;
    const float mean = x ? stat[2 * blockIdx.x] : 0;
    float sum = 0, product = 0;

    for (ddp__channel_walk walk(c, W); walk.left > 0; walk.next()) {
        const ddp__several<T, W> d(dy + walk.at);
        for (int e = 0; e < W; e++) sum += ddp__to_float(d.v[e]);
        if (!x) continue;
        const ddp__several<T, W> v(x + walk.at);
        for (int e = 0; e < W; e++) product += ddp__to_float(d.v[e]) * (ddp__to_float(v.v[e]) - mean);
    }
    all[0][t] = (double)sum;
    all[1][t] = (double)product;
    __syncthreads();
    for (int half = DDP__CHANNEL_THREADS / 2; half; half /= 2) {
        if (t < half)
            for (int k = 0; k < 2; k++) all[k][t] += all[k][t + half];
        __syncthreads();
    }
    if (t > 1) return;
    part[2 * (blockIdx.x * c.parts + blockIdx.y) + t] = all[t][0];
}

/* What a channel's parts sum to: of dy (k 0) or of dy (x - mean) (k 1). */
static inline __device__ double ddp__channel_total(const double *part, const ddp__channels &c, long channel, int k)
{
    double sum = 0;
    for (long p = 0; p < c.parts; p++) sum += part[2 * (channel * c.parts + p) + k];
    return sum;
}

/* grad[c] += the sum of channel c. */
static DDP__UNUSED __global__ void ddp__k_channel_add(float *grad, const double *part, ddp__channels c)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < c.channels) grad[i] += (float)ddp__channel_total(part, c, i, 0);
}

/* ---- batch norm ---- */

#define DDP__CUDA_NORM_EPS  1e-5
#define DDP__CUDA_NORM_MOVE 0.1 /* the way of the running statistics to those of a batch */

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
        ddp__moments m = part[i * c.parts];
        for (long p = 1; p < c.parts; p++) m = ddp__moments_join(m, part[i * c.parts + p]);
        mean = m.mean;
        var = m.squares / m.n;
        running_mean[i] += (float)(DDP__CUDA_NORM_MOVE * (mean - (double)running_mean[i]));
        running_var[i] += (float)(DDP__CUDA_NORM_MOVE * (var * (m.n > 1 ? m.n / (m.n - 1) : 1) -
                                                         (double)running_var[i]));
    }
    stat[2 * i] = (float)mean;
    stat[2 * i + 1] = (float)(1 / sqrt(var + DDP__CUDA_NORM_EPS));
}

/* y = x * factor + shift, of each channel. */
template <typename T, int W>
__global__ void ddp__k_batch_norm_apply(T *y, const T *x, const float *stat, const T *scale,
                                        const T *shift, ddp__channels c)
{
    const float factor = ddp__to_float(scale[blockIdx.x]) * stat[2 * blockIdx.x + 1];
    const float offset = ddp__to_float(shift[blockIdx.x]) - stat[2 * blockIdx.x] * factor;

    for (ddp__channel_walk walk(c, W); walk.left > 0; walk.next()) {
        ddp__several<T, W> v(x + walk.at);
        for (int e = 0; e < W; e++) v.v[e] = ddp__from_float<T>(ddp__to_float(v.v[e]) * factor + offset);
        v.store(y + walk.at);
    }
}

/* Gradients of scale and shift, and slope[3 c]: what dx takes of dy, of x, and besides. */
template <typename T>
__global__ void ddp__k_batch_norm_slopes(float *slope, float *dscale, float *dshift, const double *part,
                                         const float *stat, const T *scale, ddp__channels c)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const double count = (double)c.images * (double)c.n;
    double sum, product, mean, rstd, factor, of_x;

    if (i >= c.channels) return;
    sum = ddp__channel_total(part, c, i, 0);
    product = ddp__channel_total(part, c, i, 1);
    mean = (double)stat[2 * i], rstd = (double)stat[2 * i + 1];
    factor = (double)ddp__to_float(scale[i]) * rstd;
    of_x = -factor * rstd * rstd * product / count;
    if (dscale) dscale[i] += (float)(product * rstd);
    if (dshift) dshift[i] += (float)sum;
    slope[3 * i] = (float)factor;
    slope[3 * i + 1] = (float)of_x;
    slope[3 * i + 2] = (float)(-factor * sum / count - of_x * mean);
}

template <typename T, int W>
__global__ void ddp__k_batch_norm_grad(T *dx, const T *dy, const T *x, const float *slope, int add, ddp__channels c)
{
    const float *s = slope + 3 * blockIdx.x;

    for (ddp__channel_walk walk(c, W); walk.left > 0; walk.next()) {
        const ddp__several<T, W> v(x + walk.at);
        const ddp__several<T, W> d(dy + walk.at);
        ddp__several<T, W> r(add ? dx + walk.at : dy + walk.at);
        for (int e = 0; e < W; e++) {
            float g = ddp__to_float(d.v[e]) * s[0] + ddp__to_float(v.v[e]) * s[1] + s[2];
            if (add) g += ddp__to_float(r.v[e]);
            r.v[e] = ddp__from_float<T>(g);
        }
        r.store(dx + walk.at);
    }
}

/* ---- on the host ---- */

static size_t ddp__cuda_batch_norm_scratch(const ddp_op_spec *s, int)
{
    const ddp__channels c = ddp__channels_of(&s->in[0]);
    return (size_t)(c.channels * c.parts) * sizeof(ddp__moments) + 3 * (size_t)c.channels * sizeof(float);
}

template <typename T, int W>
static void ddp__cuda_batch_norm_forward_of(ddp__cuda *dev, const ddp_op_call *call, const ddp__channels &c)
{
    ddp__moments *part = (ddp__moments *)dev->scratch;
    const T *x = (const T *)call->in[0];

    if (call->training)
        DDP__RUN((ddp__k_channel_moments<T, W>), ddp__channels_grid(c), DDP__CHANNEL_THREADS, part, x, c);
    DDP__EACH(ddp__k_batch_norm_statistics, c.channels, 128, (float *)call->saved,
              (float *)call->buffer[0], (float *)call->buffer[1], part, c, call->training);
    DDP__RUN((ddp__k_batch_norm_apply<T, W>), ddp__channels_grid(c), DDP__CHANNEL_THREADS, (T *)call->out, x,
             (const float *)call->saved, (const T *)call->param[0], (const T *)call->param[1], c);
}

template <typename T, int W>
static void ddp__cuda_batch_norm_backward_of(ddp__cuda *dev, const ddp_op_call *call, const ddp__channels &c)
{
    double *part = (double *)dev->scratch;
    float *slope = (float *)(part + 2 * c.channels * c.parts);
    const float *stat = (const float *)call->saved;
    const T *dy = (const T *)call->grad_out, *x = (const T *)call->in[0];

    DDP__RUN((ddp__k_channel_sums<T, W>), ddp__channels_grid(c), DDP__CHANNEL_THREADS, part, dy, x, stat, c);
    DDP__EACH((ddp__k_batch_norm_slopes<T>), c.channels, 128, slope, (float *)call->grad_param[0],
              (float *)call->grad_param[1], (const double *)part, stat, (const T *)call->param[0], c);
    if (call->grad_in[0])
        DDP__RUN((ddp__k_batch_norm_grad<T, W>), ddp__channels_grid(c), DDP__CHANNEL_THREADS,
                 (T *)call->grad_in[0], dy, x, (const float *)slope, call->add_in[0], c);
}

template <typename T> static void ddp__cuda_batch_norm_forward(ddp__cuda *dev, const ddp_op_call *call)
{
    const ddp__channels c = ddp__channels_of(&call->spec->in[0]);
    if (ddp__wide<T>(c.n, call->in[0], call->out)) ddp__cuda_batch_norm_forward_of<T, ddp__vec<T>::width>(dev, call, c);
    else ddp__cuda_batch_norm_forward_of<T, 1>(dev, call, c);
}

template <typename T> static void ddp__cuda_batch_norm_backward(ddp__cuda *dev, const ddp_op_call *call)
{
    const ddp__channels c = ddp__channels_of(&call->spec->in[0]);
    if (ddp__wide<T>(c.n, call->in[0], call->grad_out, call->grad_in[0]))
        ddp__cuda_batch_norm_backward_of<T, ddp__vec<T>::width>(dev, call, c);
    else
        ddp__cuda_batch_norm_backward_of<T, 1>(dev, call, c);
}

DDP__FAMILY(ddp__cuda_batch_norm_ops, DDP__ENTRY("batch_norm2d", ddp__cuda_batch_norm, ddp__cuda_batch_norm_scratch))

#endif /* DDP_CUDA_BATCH_NORM_CUH */
