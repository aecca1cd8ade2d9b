/* Pooling and flatten on the GPU, with the semantics of ops/pool.c, for channels-last images. One thread
 * computes each output and, in backward, each input, window by window. A thread has W channels, read 16 bytes
 * at a time. */
#pragma once

#include "cuda/batch_norm.cuh"

enum { DDP__POOL_THREADS = 256 };

/* A thread's first element in images of rows x cols: image, position and channel. */
struct ddp__pool_spot {
    long o, image;
    int row, col, channel;

    __device__ ddp__pool_spot(int rows, int cols, int channels, int wide)
    {
        const long at = (long)blockIdx.x * blockDim.x + threadIdx.x, pieces = channels / wide,
                   pixel = at / pieces;

        o = at * wide;
        channel = (int)(at - pixel * pieces) * wide;
        image = pixel / ((long)rows * cols);
        row = (int)(pixel - image * rows * cols) / cols;
        col = (int)(pixel - image * rows * cols) % cols;
    }
};

/* MAX: the first of equal elements is the maximum, and NaN counts as the maximum. place receives its position
 * in the window. Otherwise the sum times part. */
template <typename T, int MAX, int W>
__global__ void ddp__k_pool(T *y, float *place, const T *x, ddp__pool_size z, float part, int channels)
{
    const ddp__pool_spot s(z.rows, z.cols, channels, W);
    const int top = s.row * z.stride - z.padding, left = s.col * z.stride - z.padding;
    int r0, r1, c0, c1;
    float best[W], at[W], v[W];

    if (s.image * channels >= z.planes) return;
    x += s.image * z.h * z.w * channels + s.channel;
    ddp__pool_span(&z, s.row, z.h, &r0, &r1);
    ddp__pool_span(&z, s.col, z.w, &c0, &c1);
    DDP__UNROLL for (int e = 0; e < W; e++)
    {
        best[e] = MAX ? -INFINITY : 0;
        at[e] = (float)((r0 - top) * z.kernel + c0 - left);
    }
    for (int r = r0; r < r1; r++)
        for (int c = c0; c < c1; c++) {
            ddp__channel_load<W>(v, x + ((long)r * z.w + c) * channels);
            DDP__UNROLL for (int e = 0; e < W; e++)
            {
                if (MAX && (v[e] <= best[e] || isnan(best[e]))) continue;
                best[e] = MAX ? v[e] : best[e] + v[e];
                at[e] = (float)((r - top) * z.kernel + c - left);
            }
        }
    DDP__UNROLL for (int e = 0; e < W && !MAX; e++) best[e] *= part;
    ddp__piece_store(y + s.o, best, 0, W, W > 1, 0);
    DDP__UNROLL for (int e = 0; e < W && MAX; e += ddp__vec<float>::width)
        ddp__piece_store(place + s.o, at + e, e, W, W > 1, 0);
}

/* The first and the last of `count` windows that contain element i of a side. */
static inline __device__ void ddp__window_range(const ddp__pool_size &z, int i, int count, int *first,
                                                int *last)
{
    const int at = i + z.padding;
    *first = at < z.kernel ? 0 : (at - z.kernel) / z.stride + 1;
    *last = at / z.stride < count ? at / z.stride : count - 1;
}

/* MAX: adds the gradients of the windows whose maximum is this element. Otherwise adds `part` of the gradient
 * of each window that contains it. */
template <typename T, int MAX, int W>
__global__ void ddp__k_pool_grad(T *dx, const T *dy, const float *place, int add, ddp__pool_size z,
                                 float part, int channels)
{
    const ddp__pool_spot s(z.h, z.w, channels, W);
    int i0, i1, j0, j1;
    float sum[W] = {0}, d[W], at[W];

    if (s.image * channels >= z.planes) return;
    ddp__window_range(z, s.row, z.rows, &i0, &i1);
    ddp__window_range(z, s.col, z.cols, &j0, &j1);
    if (add) ddp__channel_load<W>(sum, dx + s.o);
    for (int i = i0; i <= i1; i++)
        for (int j = j0; j <= j1; j++) {
            const int mine = (s.row - i * z.stride + z.padding) * z.kernel + s.col - j * z.stride + z.padding;
            const long o = ((s.image * z.rows + i) * z.cols + j) * channels + s.channel;
            ddp__channel_load<W>(d, dy + o);
            if (MAX) ddp__channel_load<W>(at, place + o);
            DDP__UNROLL for (int e = 0; e < W; e++) if (!MAX) sum[e] += d[e] * part;
            else if ((int)at[e] == mine) sum[e] += d[e];
        }
    ddp__piece_store(dx + s.o, sum, 0, W, W > 1, 0);
}

/* Transposes each image of `in` from rows x cols to cols x rows. */
template <typename T>
__global__ void ddp__k_flatten(T *out, const T *in, int add, long count, long rows, long cols)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x, line = i / rows;

    if (i >= count) return;
    const float v = ddp__to_float(in[(line / cols * rows + i % rows) * cols + line % cols]);
    out[i] = ddp__from_float<T>(add ? ddp__to_float(out[i]) + v : v);
}

/* ---- on the host ---- */

/* The mean of a channel is one window over the whole image. part: weight of an element in the mean of a
 * window. */
static ddp__pool_size ddp__cuda_pool_sizes(const ddp_op_spec *s, float *part)
{
    const int all = s->out.dims == 2;
    ddp__pool_size z = ddp__pool_sizes(s);

    if (all) {
        z.rows = z.cols = z.stride = 1;
        z.padding = 0;
        z.kernel = z.h > z.w ? z.h : z.w;
    }
    *part = 1 / (all ? (float)z.h * (float)z.w : (float)z.kernel * (float)z.kernel);
    return z;
}

template <typename T, int MAX> static void ddp__cuda_pool_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const int channels = (int)c->spec->in[0].dim[1],
              wide = ddp__wide<T>(channels, c->out, c->in[0], c->saved);
    float part;
    const ddp__pool_size z = ddp__cuda_pool_sizes(c->spec, &part);

    DDP__EACH((wide ? ddp__k_pool<T, MAX, ddp__vec<T>::width> : ddp__k_pool<T, MAX, 1>),
              ddp_shape_count(&c->spec->out) / (wide ? ddp__vec<T>::width : 1), DDP__POOL_THREADS,
              (T *)c->out, (float *)c->saved, (const T *)c->in[0], z, part, channels);
}

template <typename T, int MAX> static void ddp__cuda_pool_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const int channels = (int)c->spec->in[0].dim[1],
              wide = ddp__wide<T>(channels, c->grad_in[0], c->grad_out, c->saved);
    float part;
    const ddp__pool_size z = ddp__cuda_pool_sizes(c->spec, &part);

    if (c->grad_in[0])
        DDP__EACH((wide ? ddp__k_pool_grad<T, MAX, ddp__vec<T>::width> : ddp__k_pool_grad<T, MAX, 1>),
                  ddp_shape_count(&c->spec->in[0]) / (wide ? ddp__vec<T>::width : 1), DDP__POOL_THREADS,
                  (T *)c->grad_in[0], (const T *)c->grad_out, (const float *)c->saved, c->add_in[0], z, part,
                  channels);
}

/* Flattened rows store an image channel by channel. Arrays that are not images keep their order. */
template <typename T, int BACK> static void ddp__cuda_flatten(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->in[0];
    const long n = ddp_shape_count(s), plane = s->dims == 4 ? s->dim[2] * s->dim[3] : 1,
               channels = n / s->dim[0] / plane;
    const void *from = BACK ? c->grad_out : c->in[0];
    void *to = BACK ? c->grad_in[0] : c->out;
    const int add = BACK && c->add_in[0];

    if (!to || (to == from && !add)) return;
    if (plane == 1)
        ddp__cuda_map(c, to, from, NULL, add, ddp__map_copy());
    else
        DDP__EACH((ddp__k_flatten<T>), n, DDP__POOL_THREADS, (T *)to, (const T *)from, add, n,
                  BACK ? channels : plane, BACK ? plane : channels);
}

#define DDP__POOL(f, K) DDP__LATER(ddp__cuda_typed<f<float, K>, f<ddp__bf16, K>>)

DDP__FAMILY(ddp__cuda_pool_ops,
            {"max_pool2d", DDP__POOL(ddp__cuda_pool_forward, 1), DDP__POOL(ddp__cuda_pool_backward, 1), NULL},
            {"avg_pool2d", DDP__POOL(ddp__cuda_pool_forward, 0), DDP__POOL(ddp__cuda_pool_backward, 0), NULL},
            {"global_avg_pool2d", DDP__POOL(ddp__cuda_pool_forward, 0), DDP__POOL(ddp__cuda_pool_backward, 0),
             NULL},
            {"flatten", DDP__POOL(ddp__cuda_flatten, 0), DDP__POOL(ddp__cuda_flatten, 1), NULL})
