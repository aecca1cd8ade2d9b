/* Batch norm of each channel over images and pixels, as ops/batch_norm.c: its shape rule, saved
 * statistics (mean and rstd per channel) and running averages. */
#ifndef DDP_CUDA_BATCH_NORM_CUH
#define DDP_CUDA_BATCH_NORM_CUH

#include "cuda/channels.cuh"

#define DDP__CUDA_NORM_EPS  1e-5
#define DDP__CUDA_NORM_MOVE 0.1 /* the way of the running statistics to those of a batch */

/* Joins the parts of each channel; training 0 reads the running statistics instead. */
static __global__ void ddp__k_batch_norm_statistics(float *stat, float *running_mean,
                                                    float *running_var, const ddp__moments *part,
                                                    ddp__channels c, int training)
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
        running_var[i] += (float)(DDP__CUDA_NORM_MOVE *
                                  (var * (m.n > 1 ? m.n / (m.n - 1) : 1) -
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
        for (int e = 0; e < W; e++)
            v.v[e] = ddp__from_float<T>(ddp__to_float(v.v[e]) * factor + offset);
        v.store(y + walk.at);
    }
}

/* Gradients of scale and shift, and slope[3 c]: what dx takes of dy, of x, and besides. */
template <typename T>
__global__ void ddp__k_batch_norm_slopes(float *slope, float *dscale, float *dshift,
                                         const double *part, const float *stat, const T *scale,
                                         ddp__channels c)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const double count = (double)c.images * (double)c.n;
    double sum, product, mean, rstd, factor, of_x;

    if (i >= c.channels) return;
    sum = ddp__channel_total(part, c, i, 0);
    product = ddp__channel_total(part, c, i, 1);
    mean = (double)stat[2 * i];
    rstd = (double)stat[2 * i + 1];
    factor = (double)ddp__to_float(scale[i]) * rstd;
    of_x = -factor * rstd * rstd * product / count;
    if (dscale) dscale[i] += (float)(product * rstd);
    if (dshift) dshift[i] += (float)sum;
    slope[3 * i] = (float)factor;
    slope[3 * i + 1] = (float)of_x;
    slope[3 * i + 2] = (float)(-factor * sum / count - of_x * mean);
}

template <typename T, int W>
__global__ void ddp__k_batch_norm_grad(T *dx, const T *dy, const T *x, const float *slope,
                                       int add, ddp__channels c)
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

static size_t ddp__cuda_batch_norm_scratch(const ddp_op_spec *s, int half)
{
    const ddp__channels c = ddp__channels_of(&s->in[0]);

    (void)half;
    return (size_t)(c.channels * c.parts) * sizeof(ddp__moments) +
           3 * (size_t)c.channels * sizeof(float);
}

template <typename T, int W>
static void ddp__cuda_batch_norm_forward_of(ddp__cuda *dev, const ddp_op_call *call,
                                            const ddp__channels &c)
{
    ddp__moments *part = (ddp__moments *)dev->scratch;
    const T *x = (const T *)call->in[0];

    if (call->training)
        DDP__RUN((ddp__k_channel_moments<T, W>), ddp__channels_grid(c), DDP__CHANNEL_THREADS, part,
                 x, c);
    DDP__EACH(ddp__k_batch_norm_statistics, c.channels, 128, (float *)call->saved,
              (float *)call->buffer[0], (float *)call->buffer[1], part, c, call->training);
    DDP__RUN((ddp__k_batch_norm_apply<T, W>), ddp__channels_grid(c), DDP__CHANNEL_THREADS,
             (T *)call->out, x, (const float *)call->saved, (const T *)call->param[0],
             (const T *)call->param[1], c);
}

template <typename T, int W>
static void ddp__cuda_batch_norm_backward_of(ddp__cuda *dev, const ddp_op_call *call,
                                             const ddp__channels &c)
{
    double *part = (double *)dev->scratch;
    float *slope = (float *)(part + 2 * c.channels * c.parts);
    const float *stat = (const float *)call->saved;
    const T *dy = (const T *)call->grad_out, *x = (const T *)call->in[0];

    DDP__RUN((ddp__k_channel_sums<T, W>), ddp__channels_grid(c), DDP__CHANNEL_THREADS, part, dy, x,
             stat, c);
    DDP__EACH((ddp__k_batch_norm_slopes<T>), c.channels, 128, slope, (float *)call->grad_param[0],
              (float *)call->grad_param[1], (const double *)part, stat, (const T *)call->param[0],
              c);
    if (call->grad_in[0])
        DDP__RUN((ddp__k_batch_norm_grad<T, W>), ddp__channels_grid(c), DDP__CHANNEL_THREADS,
                 (T *)call->grad_in[0], dy, x, (const float *)slope, call->add_in[0], c);
}

template <typename T>
static void ddp__cuda_batch_norm_forward(ddp__cuda *dev, const ddp_op_call *call)
{
    const ddp__channels c = ddp__channels_of(&call->spec->in[0]);

    if (ddp__wide<T>(c.n, call->in[0], call->out))
        ddp__cuda_batch_norm_forward_of<T, ddp__vec<T>::width>(dev, call, c);
    else
        ddp__cuda_batch_norm_forward_of<T, 1>(dev, call, c);
}

template <typename T>
static void ddp__cuda_batch_norm_backward(ddp__cuda *dev, const ddp_op_call *call)
{
    const ddp__channels c = ddp__channels_of(&call->spec->in[0]);

    if (ddp__wide<T>(c.n, call->in[0], call->grad_out, call->grad_in[0]))
        ddp__cuda_batch_norm_backward_of<T, ddp__vec<T>::width>(dev, call, c);
    else
        ddp__cuda_batch_norm_backward_of<T, 1>(dev, call, c);
}

DDP__FAMILY(ddp__cuda_batch_norm_ops,
    DDP__ENTRY("batch_norm2d", ddp__cuda_batch_norm, ddp__cuda_batch_norm_scratch))

#endif /* DDP_CUDA_BATCH_NORM_CUH */
