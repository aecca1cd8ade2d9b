/* Convolutions whose groups have one channel in: no matrix product, but three walks over windows.
 * A group may have several channels out. */
#ifndef DDP_CUDA_CONV_DEPTHWISE_CUH
#define DDP_CUDA_CONV_DEPTHWISE_CUH

#include "cuda/channels.cuh"
#include "cuda/conv_product.cuh"

enum { DDP__DEPTHWISE_THREADS = 256 };

static int ddp__cuda_depthwise(const ddp__cuda_conv &v) { return v.planes == 1 && v.groups > 1; }

/* Weights: [groups x m][kh][kw]. One thread per output. */
template <typename T> __global__ void ddp__k_depthwise_forward(ddp__cuda_conv v, const T *w)
{
    const long n = v.pixels * v.groups * v.m, plane = (long)v.rows * v.cols;
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long at = i / plane, channels = (long)v.groups * v.m, channel = at % channels;
    const int r = (int)(i % plane) / v.cols, c = (int)(i % plane) % v.cols;
    const T *x = (const T *)v.x + at / channels * v.image + channel / v.m * ((long)v.h * v.w);
    float sum = 0;

    if (i >= n) return;
    w += channel * v.kh * v.kw;
    for (int a = 0; a < v.kh; a++) {
        const int row = v.top + r * v.step + a;
        if (row < 0 || row >= v.h) continue;
        for (int b = 0; b < v.kw; b++) {
            const int col = v.left + c * v.step + b;
            if (col < 0 || col >= v.w) continue;
            sum += ddp__to_float(w[a * v.kw + b]) * ddp__to_float(x[(long)row * v.w + col]);
        }
    }
    if (v.bias) sum += ddp__to_float(((const T *)v.bias)[channel]);
    ((T *)v.y)[i] = ddp__from_float<T>(sum);
}

/* dx at a row and column: from every window that saw it. One thread per input; y is dy. */
template <typename T>
__global__ void ddp__k_depthwise_input(ddp__cuda_conv v, T *dx, const T *w, int add)
{
    const long plane = (long)v.h * v.w, out = (long)v.rows * v.cols;
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x, at = i / plane;
    const long n = v.pixels / out * v.groups * plane, group = at % v.groups;
    const int r = (int)(i % plane) / v.w - v.top, c = (int)(i % plane) % v.w - v.left;
    const T *y = (const T *)v.y + at * v.m * out;
    float sum = 0;

    if (i >= n) return;
    w += group * v.m * v.kh * v.kw;
    for (int o = 0; o < v.m; o++, y += out, w += v.kh * v.kw)
        for (int a = r % v.step; a < v.kh && a <= r; a += v.step) {
            const int row = (r - a) / v.step;
            if (row >= v.rows) continue;
            for (int b = c % v.step; b < v.kw && b <= c; b += v.step) {
                const int col = (c - b) / v.step;
                if (col >= v.cols) continue;
                sum += ddp__to_float(w[a * v.kw + b]) *
                       ddp__to_float(y[(long)row * v.cols + col]);
            }
        }
    if (add) sum += ddp__to_float(dx[i]);
    dx[i] = ddp__from_float<T>(sum);
}

/* part[(channel out, part)][tap]: each block sums one tap after the other over a part of a
 * channel's outputs; c describes those. */
template <typename T>
__global__ void ddp__k_depthwise_weights(ddp__cuda_conv v, float *part, ddp__channels c)
{
    __shared__ double all[DDP__CHANNEL_THREADS];
    const int t = (int)threadIdx.x, taps = v.kh * v.kw;
    const T *x = (const T *)v.x + (long)blockIdx.x / v.m * ((long)v.h * v.w);
    const T *y = (const T *)v.y;

    for (int tap = 0; tap < taps; tap++) {
        const int a = tap / v.kw, b = tap % v.kw;
        float sum = 0;

        for (ddp__channel_walk walk(c, 1); walk.left > 0; walk.next()) {
            const int row = v.top + (int)(walk.i / v.cols) * v.step + a;
            const int col = v.left + (int)(walk.i % v.cols) * v.step + b;
            const long image = walk.at / (c.channels * c.n);
            if (row >= 0 && row < v.h && col >= 0 && col < v.w)
                sum += ddp__to_float(y[walk.at]) *
                       ddp__to_float(x[image * v.image + (long)row * v.w + col]);
        }
        const double total = ddp__block_sum<DDP__CHANNEL_THREADS>((double)sum, all);
        if (t == 0)
            part[((long)blockIdx.y * c.channels + blockIdx.x) * taps + tap] = (float)total;
    }
}

/* ---- on the host ---- */

template <typename T>
static void ddp__cuda_depthwise_forward(ddp__cuda *dev, const ddp_op_call *call,
                                        const ddp__cuda_conv &v)
{
    DDP__EACH((ddp__k_depthwise_forward<T>), v.pixels * v.groups * v.m, DDP__DEPTHWISE_THREADS, v,
              (const T *)call->param[0]);
}

template <typename T>
static void ddp__cuda_depthwise_backward(ddp__cuda *dev, const ddp_op_call *call,
                                         const ddp__cuda_conv &v)
{
    const ddp__channels c = ddp__channels_of(&call->spec->out);
    const long weights = ddp_shape_count(&call->spec->param[0].shape);
    float *part = (float *)dev->scratch;

    if (call->grad_param[0]) {
        DDP__RUN((ddp__k_depthwise_weights<T>), ddp__channels_grid(c), DDP__CHANNEL_THREADS, v,
                 part, c);
        ddp__conv_add_parts(dev, call->grad_param[0], weights, c.parts);
    }
    if (call->grad_in[0])
        DDP__EACH((ddp__k_depthwise_input<T>), ddp_shape_count(&call->spec->in[0]),
                  DDP__DEPTHWISE_THREADS, v, (T *)call->grad_in[0], (const T *)call->param[0],
                  call->add_in[0]);
}

#endif /* DDP_CUDA_CONV_DEPTHWISE_CUH */
