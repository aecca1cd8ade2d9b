/* Convolution on the GPU, with the semantics of ops/conv.c. Most shapes use a product of conv_product.cuh,
 * and 1x1 windows use a product of cuBLASLt. Groups with one input channel use direct loops over windows
 * instead. Images are channels-last. */
#pragma once

#include "cuda/batch_norm.cuh"
#include "cuda/conv_product.cuh"
#include "cuda/linear.cuh"

/* ---- groups with one input channel and one or more output channels: three direct loops over windows ---- */

enum { DDP__DEPTHWISE_THREADS = 256 };

static int ddp__cuda_depthwise(const ddp__cuda_conv &v) { return v.planes == 1 && v.groups > 1; }

/* Weights: [groups x m][kh][kw]. One thread per output. */
template <typename T> __global__ void ddp__k_depthwise_forward(ddp__cuda_conv v, const T *w)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x, channels = (long)v.groups * v.m,
               channel = i % channels;
    const ddp__conv_place from = ddp__conv_position(v, i / channels);
    float sum = 0;

    if (i >= v.pixels * channels) return;
    w += channel * v.kh * v.kw;
    for (int a = 0; a < v.kh; a++)
        for (int b = 0; b < v.kw; b++)
            if (ddp__conv_sees(v, from, a, b))
                sum += ddp__to_float(w[a * v.kw + b]) *
                       ddp__to_float(
                           ((const T *)v.x)[from.x + ((long)a * v.w + b) * v.channels + channel / v.m]);
    if (v.bias) sum += ddp__to_float(((const T *)v.bias)[channel]);
    ((T *)v.y)[i] = ddp__from_float<T>(sum);
}

/* dx at one row and column: the sum over all windows that contain it. One thread per input. y is dy. */
template <typename T> __global__ void ddp__k_depthwise_input(ddp__cuda_conv v, T *dx, const T *w, int add)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x, at = i / v.groups, group = i % v.groups;
    const long plane = (long)v.h * v.w, out = (long)v.rows * v.cols, channels = (long)v.groups * v.m;
    const int r = (int)(at % plane) / v.w - v.top, c = (int)(at % plane) % v.w - v.left;
    const T *y = (const T *)v.y + at / plane * out * channels + group * v.m;
    float sum = 0;

    if (i >= v.pixels / out * plane * v.groups) return;
    w += group * v.m * v.kh * v.kw;
    for (int o = 0; o < v.m; o++, y++, w += v.kh * v.kw)
        for (int a = r % v.step; a < v.kh && a <= r; a += v.step) {
            const int row = (r - a) / v.step;
            if (row >= v.rows) continue;
            for (int b = c % v.step; b < v.kw && b <= c; b += v.step) {
                const int col = (c - b) / v.step;
                if (col >= v.cols) continue;
                sum +=
                    ddp__to_float(w[a * v.kw + b]) * ddp__to_float(y[((long)row * v.cols + col) * channels]);
            }
        }
    if (add) sum += ddp__to_float(dx[i]);
    dx[i] = ddp__from_float<T>(sum);
}

/* part[part][(output channel, tap)]: each block computes the sums of its channels tap by tap over one part of
 * the outputs. c describes the channels. */
template <typename T> __global__ void ddp__k_depthwise_weights(ddp__cuda_conv v, float *part, ddp__channels c)
{
    __shared__ double all[DDP__CHANNEL_THREADS];
    const int taps = v.kh * v.kw;
    const T *x = (const T *)v.x, *y = (const T *)v.y;

    for (int tap = 0; tap < taps; tap++) {
        const int a = tap / v.kw, b = tap % v.kw;
        ddp__channel_walk walk(c, 1);
        float mine = 0;

        for (; walk.left > 0; walk.next()) {
            const ddp__conv_place from = ddp__conv_position(v, walk.pixel);
            if (ddp__conv_sees(v, from, a, b))
                mine += ddp__to_float(y[walk.at]) *
                        ddp__to_float(x[from.x + ((long)a * v.w + b) * v.channels + walk.channel / v.m]);
        }
        const double sum = ddp__rows_sum((double)mine, all, walk.lanes);
        if ((int)threadIdx.x < walk.lanes && walk.channel < c.channels)
            part[(blockIdx.y * c.channels + walk.channel) * taps + tap] = (float)sum;
    }
}

template <typename T>
static void ddp__cuda_depthwise_forward(ddp__cuda *dev, const ddp_op_call *call, const ddp__cuda_conv &v)
{
    DDP__EACH((ddp__k_depthwise_forward<T>), v.pixels * v.groups * v.m, DDP__DEPTHWISE_THREADS, v,
              (const T *)call->param[0]);
}

template <typename T>
static void ddp__cuda_depthwise_backward(ddp__cuda *dev, const ddp_op_call *call, const ddp__cuda_conv &v)
{
    const ddp__channels c = ddp__channels_of(&call->spec->out);
    const long weights = ddp_shape_count(&call->spec->param[0].shape);
    float *part = (float *)dev->scratch;

    if (call->grad_param[0]) {
        DDP__RUN(
            (ddp__k_depthwise_weights<T>),
            dim3((unsigned)ddp__blocks(c.channels, ddp__channel_lanes(c.channels, 1)), (unsigned)c.parts),
            DDP__CHANNEL_THREADS, v, part, c);
        ddp__conv_add_parts(dev, call->grad_param[0], weights, c.parts);
    }
    if (call->grad_in[0])
        DDP__EACH((ddp__k_depthwise_input<T>), ddp_shape_count(&call->spec->in[0]), DDP__DEPTHWISE_THREADS, v,
                  (T *)call->grad_in[0], (const T *)call->param[0], call->add_in[0]);
}

/* ---- products ---- */

enum {
    DDP__CONV_BUSY = 264, /* blocks that fill a large GPU twice */
    DDP__CONV_PART = 512  /* minimum number of positions that a block sums for the gradient of a weight */
};

/* Converts the product to the integer types of the kernels and to channels-last strides. The caller sets the
 * arrays and the packed weights. */
static ddp__cuda_conv ddp__cuda_conv_of(const ddp__conv_product &g)
{
    const ddp__conv_view &w = g.view;
    const long y_channels = g.m * g.groups;
    ddp__cuda_conv v = DDP__ZEROS;

    v.image = w.image;
    v.channels = (int)(w.planes * g.groups);
    v.planes = (int)w.planes;
    v.h = (int)w.h;
    v.w = (int)w.w;
    v.rows = (int)w.rows;
    v.cols = (int)w.cols;
    v.step = (int)w.step;
    v.top = (int)w.top;
    v.left = (int)w.left;
    v.kh = (int)w.kh;
    v.kw = (int)w.kw;
    v.m = (int)g.m;
    v.groups = (int)g.groups;
    v.pixels = w.images * w.rows * w.cols;
    v.y_image = g.y_image;
    v.y_row = g.y_row * y_channels;
    v.y_col = g.y_col * y_channels;
    v.add = g.add;
    return v;
}

/* 1 if the window is one element and the stride skips no element, so the convolution is a linear operator on
 * each position. cuBLASLt is slower for other sizes, or does not support them. */
static int ddp__cuda_conv_point(const ddp_op_spec *s)
{
    return s->arg[1] == 1 && s->arg[2] == 1 && s->arg[3] == 0 && s->arg[4] == 1 && s->in[0].dim[1] % 8 == 0 &&
           s->out.dim[1] % 8 == 0;
}

/* Uses tall tiles if they fill the GPU. The sums are the same for both tile heights. */
static int ddp__conv_tall(int m, long columns, int groups)
{
    return m > 64 &&
           ddp__blocks(m, 128) * ddp__blocks(columns, DDP__CONV_COLUMNS) * groups >= DDP__CONV_BUSY / 2;
}

/* Pads the packed weights to whole tiles of that depth. */
static void ddp__conv_pad(ddp__cuda_conv *v, int depth)
{
    v->m_pad = (v->m + 127) / 128 * 128;
    v->k_pad = (int)ddp__blocks((long)v->planes * v->kh * v->kw, depth) * depth;
}

static size_t ddp__larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t ddp__conv_packed_bytes(ddp__cuda_conv v, int half)
{
    ddp__conv_pad(&v, half ? 32 : 16);
    return (size_t)v.groups * (size_t)v.m_pad * (size_t)v.k_pad * (half ? 2 : 4) +
           (size_t)v.k_pad * sizeof(ddp__conv_reach);
}

/* Number of parts of the positions in the gradient of the weights. It depends only on the shape, so that the
 * sums are the same on every GPU. */
static int ddp__conv_splits(const ddp__cuda_conv &v)
{
    const long tiles =
        ddp__blocks(v.m, 128) * v.groups * ddp__blocks((long)v.planes * v.kh * v.kw, DDP__CONV_COLUMNS);
    const long most = ddp__blocks(v.pixels, DDP__CONV_PART), wish = ddp__blocks(DDP__CONV_BUSY, tiles);
    return (int)(wish < most ? wish : most);
}

static size_t ddp__cuda_conv_scratch(const ddp_op_spec *s, int half)
{
    const ddp__channels c = ddp__channels_of(&s->out);
    ddp__conv_product g;
    ddp__cuda_conv v;
    const size_t weights = (size_t)ddp_shape_count(&s->param[0].shape) * sizeof(float);
    size_t most = ddp__cuda_linear_scratch(s, half); /* includes the bias */

    ddp__conv_product_of(s, &g);
    v = ddp__cuda_conv_of(g);
    if (ddp__cuda_conv_point(s)) return most;
    if (ddp__cuda_depthwise(v)) return ddp__larger(most, weights * (size_t)c.parts);
    most = ddp__larger(most, weights * (size_t)ddp__conv_splits(v));
    most = ddp__larger(most, ddp__conv_packed_bytes(v, half));
    v.m = v.planes; /* gradient of the input. With a stride, one phase at a time */
    v.planes = (int)(s->out.dim[1] / v.groups);
    return ddp__larger(most, ddp__conv_packed_bytes(v, half));
}

/* ---- launches, for each kind of product ---- */

template <typename M> static void ddp__conv_run_images(ddp__cuda *dev, const ddp__cuda_conv &v)
{
    const dim3 grid((unsigned)(ddp__blocks(v.m, M::tall) * ddp__blocks(v.pixels, DDP__CONV_COLUMNS)),
                    (unsigned)v.groups);

    if (v.planes % M::depth || !ddp__aligned(v.x))
        DDP__LAUNCH((ddp__k_conv_images<M, false>), grid, DDP__CONV_THREADS, M::bytes, dev->stream, v);
    else
        DDP__LAUNCH((ddp__k_conv_images<M, true>), grid, DDP__CONV_THREADS, M::bytes, dev->stream, v);
}

/* The product g, converted to v, with the weights at w. */
template <template <int, bool> class M>
static void ddp__conv_images(ddp__cuda *dev, ddp__cuda_conv v, const ddp__conv_product &g, const void *w)
{
    typedef M<64, false> Short;
    const ddp__conv_pack s = {w, g.w_group, g.w_row, g.w_plane, g.w_kh, g.w_kw};
    typename Short::tile *packed = (typename Short::tile *)dev->scratch;
    ddp__conv_reach *taps;
    long n;

    ddp__conv_pad(&v, Short::depth);
    n = (long)v.groups * v.m_pad * v.k_pad;
    taps = (ddp__conv_reach *)(void *)(packed + n);
    v.weight = packed;
    v.taps = taps;
    n = ddp__blocks(n, 256);
    DDP__RUN((ddp__k_conv_pack<Short>), (unsigned)(n < 4096 ? n : 4096), 256, packed, taps, v, s);
    if (dev->forms & DDP__TALL_CONV || ddp__conv_tall(v.m, v.pixels, v.groups))
        ddp__conv_run_images<M<128, false>>(dev, v);
    else
        ddp__conv_run_images<Short>(dev, v);
}

template <typename M> static void ddp__conv_run_weights(ddp__cuda *dev, const ddp__cuda_conv &v, float *grad)
{
    const int columns = v.planes * v.kh * v.kw, parts = ddp__conv_splits(v),
              width = ddp__vec<typename M::tile>::width;
    const dim3 grid((unsigned)(ddp__blocks(v.m, M::tall) * ddp__blocks(columns, DDP__CONV_COLUMNS)),
                    (unsigned)parts, (unsigned)v.groups);
    const long part = ddp__blocks(v.pixels, (long)parts * M::depth) * M::depth;
    float *to = parts > 1 ? (float *)dev->scratch : grad;

    if (v.m % width || v.planes % width || !ddp__aligned(v.x, v.y))
        DDP__LAUNCH((ddp__k_conv_weights<M, false>), grid, DDP__CONV_THREADS, M::bytes, dev->stream, v, to,
                    part);
    else
        DDP__LAUNCH((ddp__k_conv_weights<M, true>), grid, DDP__CONV_THREADS, M::bytes, dev->stream, v, to,
                    part);
    if (parts > 1) ddp__conv_add_parts(dev, grad, (long)v.groups * v.m * columns, parts);
}

template <template <int, bool> class M>
static void ddp__conv_weights(ddp__cuda *dev, const ddp__cuda_conv &v, float *grad)
{
    if (v.m > 64)
        ddp__conv_run_weights<M<128, true>>(dev, v, grad);
    else
        ddp__conv_run_weights<M<64, true>>(dev, v, grad);
}

/* Calls f(dev, args...) with the product type for the number mode and the form of the device. */
#define DDP__CONV_RUN(f, dev, ...)                                                                        \
    ((dev)->forms & DDP__PLAIN_CONV                                                                       \
         ? (dev)->half ? f<ddp__conv_plain_bf16>(dev, __VA_ARGS__) : f<ddp__conv_plain>(dev, __VA_ARGS__) \
     : (dev)->half ? f<ddp__conv_bf16>(dev, __VA_ARGS__)                                                  \
     : (dev)->tf32 ? f<ddp__conv_tf32>(dev, __VA_ARGS__)                                                  \
                   : f<ddp__conv_plain>(dev, __VA_ARGS__))

/* ---- the operator ---- */

template <typename T> static void ddp__cuda_conv_forward(ddp__cuda *dev, const ddp_op_call *call)
{
    ddp__conv_product g;
    ddp__cuda_conv v;

    if (ddp__cuda_conv_point(call->spec)) {
        ddp__cuda_linear_forward(call);
        return;
    }
    ddp__conv_product_of(call->spec, &g);
    v = ddp__cuda_conv_of(g);
    v.x = call->in[0];
    v.y = call->out;
    v.bias = call->param[1];
    if (ddp__cuda_depthwise(v))
        ddp__cuda_depthwise_forward<T>(dev, call, v);
    else
        DDP__CONV_RUN(ddp__conv_images, dev, v, g, call->param[0]);
}

static void ddp__cuda_conv_input_grad(ddp__cuda *dev, const ddp_op_call *call,
                                      const ddp__conv_product &forward)
{
    const ddp__conv_view &in = forward.view;
    const long bytes = dev->half ? 2 : 4, channels = in.planes * forward.groups;
    ddp__conv_product g;
    ddp__cuda_conv v;
    long w, y;

    if (in.kh < in.step && !call->add_in[0]) /* no window contains some of the elements */
        (void)DDP__CUDA(dev,
                        cudaMemsetAsync(call->grad_in[0], 0,
                                        (size_t)(ddp_shape_count(&call->spec->in[0]) * bytes), dev->stream));
    for (long r = 0; r < in.step && r < in.h; r++)
        for (long c = 0; c < in.step && c < in.w; c++) {
            if (!ddp__conv_input_phase(&forward, r, c, &g, &w, &y)) continue;
            g.add = call->add_in[0];
            v = ddp__cuda_conv_of(g);
            v.x = call->grad_out;
            v.y = (unsigned char *)call->grad_in[0] + y * channels * bytes;
            DDP__CONV_RUN(ddp__conv_images, dev, v, g, (const unsigned char *)call->param[0] + w * bytes);
        }
}

template <typename T> static void ddp__cuda_conv_backward(ddp__cuda *dev, const ddp_op_call *call)
{
    ddp__conv_product g;
    ddp__cuda_conv v;

    if (ddp__cuda_conv_point(call->spec)) {
        ddp__cuda_linear_backward(call);
        return;
    }
    ddp__conv_product_of(call->spec, &g);
    v = ddp__cuda_conv_of(g);
    v.x = call->in[0];
    v.y = (void *)call->grad_out;
    if (call->grad_param[1])
        ddp__cuda_columns<T, DDP__COLUMN_PLAIN>(dev, NULL, call->grad_param[1], call->grad_out, NULL, NULL,
                                                v.pixels, (long)v.groups * v.m);
    if (ddp__cuda_depthwise(v)) {
        ddp__cuda_depthwise_backward<T>(dev, call, v);
        return;
    }
    if (call->grad_param[0]) DDP__CONV_RUN(ddp__conv_weights, dev, v, (float *)call->grad_param[0]);
    if (call->grad_in[0]) ddp__cuda_conv_input_grad(dev, call, g);
}

DDP__FAMILY(ddp__cuda_conv_ops, DDP__ENTRY("conv2d", ddp__cuda_conv, ddp__cuda_conv_scratch))
