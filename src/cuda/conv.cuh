/* Convolution on the GPU, as ops/conv.c: which product computes what, one of conv_product.cuh or, for 1x1 windows, one
 * of cuBLASLt; and, for groups of one channel in, no product but walks over windows. */
#pragma once

#include "cuda/batch_norm.cuh"
#include "cuda/blas.cuh"
#include "cuda/conv_product.cuh"

/* ---- groups that have one channel in, and may have several out: three walks over windows ---- */

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
template <typename T> __global__ void ddp__k_depthwise_input(ddp__cuda_conv v, T *dx, const T *w, int add)
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
                sum += ddp__to_float(w[a * v.kw + b]) * ddp__to_float(y[(long)row * v.cols + col]);
            }
        }
    if (add) sum += ddp__to_float(dx[i]);
    dx[i] = ddp__from_float<T>(sum);
}

/* part[(channel out, part)][tap]: each block sums one tap after the other over a part of a
 * channel's outputs; c describes those. */
template <typename T> __global__ void ddp__k_depthwise_weights(ddp__cuda_conv v, float *part, ddp__channels c)
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
                sum += ddp__to_float(y[walk.at]) * ddp__to_float(x[image * v.image + (long)row * v.w + col]);
        }
        const double total = ddp__block_sum<DDP__CHANNEL_THREADS>((double)sum, all);
        if (t == 0) part[((long)blockIdx.y * c.channels + blockIdx.x) * taps + tap] = (float)total;
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
        DDP__RUN((ddp__k_depthwise_weights<T>), dim3((unsigned)c.channels, (unsigned)c.parts), DDP__CHANNEL_THREADS, v,
                 part, c);
        ddp__conv_add_parts(dev, call->grad_param[0], weights, c.parts);
    }
    if (call->grad_in[0])
        DDP__EACH((ddp__k_depthwise_input<T>), ddp_shape_count(&call->spec->in[0]), DDP__DEPTHWISE_THREADS, v,
                  (T *)call->grad_in[0], (const T *)call->param[0], call->add_in[0]);
}

/* ---- products ---- */

enum {
    DDP__CONV_BUSY = 264,        /* blocks that fill a large GPU twice */
    DDP__CONV_PART = 512,        /* positions at least that a block sums a weight's gradient over */
    DDP__POINT_IMAGES = 32,      /* whose gradients of 1x1 weights are summed at a time */
    DDP__POINT_WEIGHTS = 1 << 20 /* at most, so that their room is at most 128 MiB */
};

/* The same product with the numbers that kernels count with; its arrays come later, and the packed weights. */
static ddp__cuda_conv ddp__cuda_conv_of(const ddp__conv_product &g)
{
    const ddp__conv_view &w = g.view;
    ddp__cuda_conv v = DDP__ZEROS;

    v.image = w.image;
    v.planes = (int)w.planes, v.h = (int)w.h, v.w = (int)w.w;
    v.rows = (int)w.rows, v.cols = (int)w.cols, v.step = (int)w.step;
    v.top = (int)w.top, v.left = (int)w.left, v.kh = (int)w.kh, v.kw = (int)w.kw;
    v.m = (int)g.m, v.groups = (int)g.groups;
    v.pixels = w.images * w.rows * w.cols;
    v.y_image = g.y_image, v.y_plane = g.y_plane, v.y_row = g.y_row, v.y_col = g.y_col;
    v.add = g.add;
    return v;
}

/* 1: v, which has been made flat, is one product for each image, whose rows allow 16 bytes at a time.
 * The bias of cuBLASLt is one of columns, ours would be one of rows. */
static int ddp__conv_point_fits(const ddp__cuda_conv &v, int half)
{
    return v.groups == 1 && v.kh == 1 && v.kw == 1 && v.step == 1 && v.h == 1 && v.rows == 1 &&
           v.w == v.cols && !v.left && v.y_col == 1 && v.cols % (half ? 8 : 4) == 0 &&
           (long)v.m * v.planes <= DDP__POINT_WEIGHTS && !v.bias;
}

/* Tall tiles where they fill the GPU. The sums are the same in both. */
static int ddp__conv_tall(int m, long columns, int groups)
{
    return m > 64 && ddp__blocks(m, 128) * ddp__blocks(columns, DDP__CONV_COLUMNS) * groups >= DDP__CONV_BUSY / 2;
}

/* Packed weights are whole tiles, of that depth. */
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

/* Parts that the positions are cut into for the weights' gradient: of the shape alone, so that
 * the sums are the same on every GPU. */
static int ddp__conv_splits(const ddp__cuda_conv &v)
{
    const long tiles = ddp__blocks(v.m, 128) * v.groups * ddp__blocks((long)v.planes * v.kh * v.kw, DDP__CONV_COLUMNS);
    const long most = ddp__blocks(v.pixels, DDP__CONV_PART), wish = ddp__blocks(DDP__CONV_BUSY, tiles);
    return (int)(wish < most ? wish : most);
}

static size_t ddp__cuda_conv_scratch(const ddp_op_spec *s, int half)
{
    const ddp__channels c = ddp__channels_of(&s->out);
    ddp__conv_product g;
    ddp__cuda_conv v;
    const size_t weights = (size_t)ddp_shape_count(&s->param[0].shape) * sizeof(float);
    const size_t sums = (size_t)(c.channels * c.parts) * sizeof(ddp__channel_sum);
    size_t most;

    ddp__conv_product_of(s, &g);
    v = ddp__cuda_conv_of(g);
    if (ddp__cuda_depthwise(v)) return ddp__larger(sums, weights * (size_t)c.parts);
    most = ddp__larger(sums, weights * (size_t)ddp__conv_splits(v));
    ddp__conv_flat(&g);
    v = ddp__cuda_conv_of(g);
    if (ddp__conv_point_fits(v, half))
        most = ddp__larger(most, (size_t)DDP__POINT_IMAGES * (size_t)v.m * (size_t)v.planes * sizeof(float));
    most = ddp__larger(most, ddp__conv_packed_bytes(v, half));
    v.m = v.planes; /* the input's gradient; with a stride, a part of it at a time */
    v.planes = (int)(s->out.dim[1] / v.groups);
    return ddp__larger(most, ddp__conv_packed_bytes(v, half));
}

/* ---- launches, for each kind of product ---- */

template <typename M> static void ddp__conv_run_images(ddp__cuda *dev, const ddp__cuda_conv &v)
{
    const dim3 grid((unsigned)(ddp__blocks(v.m, M::tall) * ddp__blocks(v.pixels, DDP__CONV_COLUMNS)),
                    (unsigned)v.groups);

    if (v.planes % M::depth)
        DDP__RUN((ddp__k_conv_images<M, false, false>), grid, DDP__CONV_THREADS, v);
    else if (ddp__conv_by_rows<typename M::value>(v))
        DDP__RUN((ddp__k_conv_images<M, true, true>), grid, DDP__CONV_THREADS, v);
    else
        DDP__RUN((ddp__k_conv_images<M, true, false>), grid, DDP__CONV_THREADS, v);
}

template <template <int, bool> class M>
static void ddp__conv_images(ddp__cuda *dev, ddp__cuda_conv v, const ddp__conv_pack &s)
{
    typedef M<64, true> Short;
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
    if (ddp__conv_tall(v.m, v.pixels, v.groups)) ddp__conv_run_images<M<128, true> >(dev, v);
    else ddp__conv_run_images<Short>(dev, v);
}

template <typename M> static void ddp__conv_run_weights(ddp__cuda *dev, const ddp__cuda_conv &v, float *grad)
{
    const int columns = v.planes * v.kh * v.kw, parts = ddp__conv_splits(v);
    const dim3 grid((unsigned)(ddp__blocks(v.m, M::tall) * ddp__blocks(columns, DDP__CONV_COLUMNS)), (unsigned)parts,
                    (unsigned)v.groups);
    const long part = ddp__blocks(v.pixels, (long)parts * M::depth) * M::depth;
    float *to = parts > 1 ? (float *)dev->scratch : grad;

    if (v.y_plane % ddp__vec<typename M::value>::width || !ddp__aligned(v.y))
        DDP__RUN((ddp__k_conv_weights<M, false, false>), grid, DDP__CONV_THREADS, v, to, part);
    else if (ddp__conv_by_rows<typename M::value>(v))
        DDP__RUN((ddp__k_conv_weights<M, true, true>), grid, DDP__CONV_THREADS, v, to, part);
    else
        DDP__RUN((ddp__k_conv_weights<M, true, false>), grid, DDP__CONV_THREADS, v, to, part);
    if (parts > 1) ddp__conv_add_parts(dev, grad, (long)v.groups * v.m * columns, parts);
}

template <template <int, bool> class M>
static void ddp__conv_weights(ddp__cuda *dev, const ddp__cuda_conv &v, float *grad)
{
    if (v.m > 64) ddp__conv_run_weights<M<128, false> >(dev, v, grad);
    else ddp__conv_run_weights<M<64, false> >(dev, v, grad);
}

/* f(dev, args...) with the products of the device's numbers. */
#define DDP__CONV_RUN(f, dev, ...)                                          \
    ((dev)->half   ? f<ddp__conv_bf16>(dev, __VA_ARGS__)                    \
     : (dev)->tf32 ? f<ddp__conv_tf32>(dev, __VA_ARGS__)                    \
                   : f<ddp__conv_plain>(dev, __VA_ARGS__))

/* ---- 1x1 windows that skip nothing: for each image a matrix product of the weights (channels out
 * x channels in) with its planes (channels in x pixels); cuBLASLt does all at once ---- */

/* y = weight x. turned: dx (v.y) of dy (v.x), by weights that lie the other way. */
static void ddp__conv_point_images(ddp__cuda *dev, const ddp__cuda_conv &v, const void *weight, int turned)
{
    ddp__cuda_product p = ddp__cuda_product_of(v.m, v.cols, v.planes, weight, turned, v.x, 0, v.y, dev->half);
    p.shape.count = v.pixels / v.cols;
    p.shape.b_step = v.image;
    p.shape.c_step = v.y_image;
    p.add = v.add;
    (void)ddp__cuda_multiply(dev, &p);
}

/* grad += dy x^T, image by image. */
static void ddp__conv_point_weights(ddp__cuda *dev, const ddp__cuda_conv &v, float *grad)
{
    ddp__cuda_product p = ddp__cuda_product_of(v.m, v.planes, v.cols, v.y, 0, v.x, 1, dev->scratch, dev->half);
    const long images = v.pixels / v.cols, n = (long)v.m * v.planes, size = dev->half ? 2 : 4;

    p.shape.a_step = v.y_image, p.shape.b_step = v.image;
    p.shape.c_step = n;
    p.shape.half_out = 0;
    for (long first = 0; first < images; first += DDP__POINT_IMAGES) {
        const long left = images - first;
        p.shape.count = left < DDP__POINT_IMAGES ? left : (long)DDP__POINT_IMAGES;
        p.a = (const unsigned char *)v.y + (size_t)(first * v.y_image * size);
        p.b = (const unsigned char *)v.x + (size_t)(first * v.image * size);
        (void)ddp__cuda_multiply(dev, &p);
        ddp__conv_add_parts(dev, grad, n, p.shape.count);
    }
}

/* ---- the operator ---- */

/* v, as g has it, by weights that begin at w. turned: for a gradient of the input, whose stride is 1. */
static void ddp__cuda_conv_images(ddp__cuda *dev, const ddp__conv_product &g, const ddp__cuda_conv &v, const void *w,
                                  int turned)
{
    const ddp__conv_pack s = {w, g.w_group, g.w_row, g.w_plane, g.w_kh, g.w_kw};

    if (ddp__conv_point_fits(v, dev->half) && ddp__aligned(v.x, v.y, w)) ddp__conv_point_images(dev, v, w, turned);
    else DDP__CONV_RUN(ddp__conv_images, dev, v, s);
}

template <typename T> static void ddp__cuda_conv_forward(ddp__cuda *dev, const ddp_op_call *call)
{
    ddp__conv_product g;
    ddp__cuda_conv v;

    ddp__conv_product_of(call->spec, &g);
    ddp__conv_flat(&g);
    v = ddp__cuda_conv_of(g);
    v.x = call->in[0], v.y = call->out;
    v.bias = call->param[1];
    if (ddp__cuda_depthwise(v)) ddp__cuda_depthwise_forward<T>(dev, call, v);
    else ddp__cuda_conv_images(dev, g, v, call->param[0], 0);
}

template <typename T> static void ddp__cuda_conv_bias_grad(ddp__cuda *dev, const ddp_op_call *call)
{
    const ddp__channels c = ddp__channels_of(&call->spec->out);
    const T *dy = (const T *)call->grad_out, *no_x = NULL;
    ddp__channel_sum *part = (ddp__channel_sum *)dev->scratch;
    const float *no_stat = NULL;

    DDP__WALK(ddp__k_channel_sums, ddp__wide<T>(c.n, dy), c, part, dy, no_x, no_stat, no_x, no_x);
    DDP__EACH(ddp__k_channel_add, c.channels, 128, (float *)call->grad_param[1], part, c);
}

static void ddp__cuda_conv_input_grad(ddp__cuda *dev, const ddp_op_call *call, const ddp__conv_product &forward)
{
    const ddp__conv_view &in = forward.view;
    const long bytes = dev->half ? 2 : 4;
    ddp__conv_product g;
    ddp__cuda_conv v;
    long w, y;

    if (in.kh < in.step && !call->add_in[0]) /* some elements are seen by no window */
        (void)DDP__CUDA(dev, cudaMemsetAsync(call->grad_in[0], 0, (size_t)(ddp_shape_count(&call->spec->in[0]) * bytes),
                                             dev->stream));
    for (long r = 0; r < in.step && r < in.h; r++)
        for (long c = 0; c < in.step && c < in.w; c++) {
            if (!ddp__conv_input_phase(&forward, r, c, &g, &w, &y)) continue;
            g.add = call->add_in[0];
            v = ddp__cuda_conv_of(g);
            v.x = call->grad_out;
            v.y = (unsigned char *)call->grad_in[0] + y * bytes;
            ddp__cuda_conv_images(dev, g, v, (const unsigned char *)call->param[0] + w * bytes, 1);
        }
}

template <typename T> static void ddp__cuda_conv_backward(ddp__cuda *dev, const ddp_op_call *call)
{
    ddp__conv_product forward, g;
    ddp__cuda_conv v;

    ddp__conv_product_of(call->spec, &forward);
    g = forward;
    ddp__conv_flat(&g);
    v = ddp__cuda_conv_of(g);
    v.x = call->in[0], v.y = (void *)call->grad_out;
    if (call->grad_param[1]) ddp__cuda_conv_bias_grad<T>(dev, call);
    if (ddp__cuda_depthwise(v)) {
        ddp__cuda_depthwise_backward<T>(dev, call, v);
        return;
    }
    if (call->grad_param[0]) {
        if (ddp__conv_point_fits(v, dev->half) && ddp__aligned(v.x, v.y))
            ddp__conv_point_weights(dev, v, (float *)call->grad_param[0]);
        else DDP__CONV_RUN(ddp__conv_weights, dev, v, (float *)call->grad_param[0]);
    }
    if (call->grad_in[0]) ddp__cuda_conv_input_grad(dev, call, forward);
}

DDP__FAMILY(ddp__cuda_conv_ops, DDP__ENTRY("conv2d", ddp__cuda_conv, ddp__cuda_conv_scratch))
