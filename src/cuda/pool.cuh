/* Pooling and flatten on the GPU, as ops/pool.c: every output, and in backward every input, is
 * summed by one thread in the CPU's order. */
#pragma once

#include "cuda/elementwise.cuh"

enum { DDP__POOL_THREADS = 256 };

/* The first and the last of `count` windows that hold element i of a side. */
static inline __device__ void ddp__window_range(const ddp__pool_size &z, int i, int count, int *first, int *last)
{
    const int at = i + z.padding;
    *first = at < z.kernel ? 0 : (at - z.kernel) / z.stride + 1;
    *last = at / z.stride < count ? at / z.stride : count - 1;
}

/* MAX: the first of equals has the maximum, and a NaN is one; place says where in its window. Else the average. */
template <typename T, int MAX> __global__ void ddp__k_pool(T *y, float *place, const T *x, ddp__pool_size z)
{
    const long plane = (long)z.rows * z.cols, o = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const int i = (int)(o % plane) / z.cols, j = (int)(o % plane) % z.cols;
    const float part = 1.0f / (float)(z.kernel * z.kernel);
    int r0, r1, c0, c1, best_r, best_c;
    float best, sum = 0;

    if (o >= z.planes * plane) return;
    x += o / plane * z.h * z.w;
    ddp__pool_span(&z, i, z.h, &r0, &r1);
    ddp__pool_span(&z, j, z.w, &c0, &c1);
    best = ddp__to_float(x[(long)r0 * z.w + c0]);
    best_r = r0;
    best_c = c0;
    for (int r = r0; r < r1; r++)
        for (int c = c0; c < c1; c++) {
            const float e = ddp__to_float(x[(long)r * z.w + c]);
            sum += e;
            if (!MAX || e <= best || isnan(best)) continue;
            best = e;
            best_r = r;
            best_c = c;
        }
    y[o] = ddp__from_float<T>(MAX ? best : sum * part);
    if (MAX) place[o] = (float)((best_r - i * z.stride + z.padding) * z.kernel + best_c - j * z.stride + z.padding);
}

/* MAX: from the windows that took this element; else a part of each that holds it. */
template <typename T, int MAX>
__global__ void ddp__k_pool_grad(T *dx, const T *dy, const float *place, int add, ddp__pool_size z)
{
    const long plane = (long)z.h * z.w, out = (long)z.rows * z.cols;
    const long at = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const int r = (int)(at % plane) / z.w, c = (int)(at % plane) % z.w;
    const float part = 1.0f / (float)(z.kernel * z.kernel);
    int i0, i1, j0, j1;
    float sum;

    if (at >= z.planes * plane) return;
    dy += at / plane * out;
    if (MAX) place += at / plane * out;
    ddp__window_range(z, r, z.rows, &i0, &i1);
    ddp__window_range(z, c, z.cols, &j0, &j1);
    sum = add ? ddp__to_float(dx[at]) : 0;
    for (int i = i0; i <= i1; i++)
        for (int j = j0; j <= j1; j++) {
            const int mine = (r - i * z.stride + z.padding) * z.kernel + c - j * z.stride + z.padding;
            const long o = (long)i * z.cols + j;
            if (!MAX) sum += ddp__to_float(dy[o]) * part;
            else if ((int)place[o] == mine) sum += ddp__to_float(dy[o]);
        }
    dx[at] = ddp__from_float<T>(sum);
}

/* A warp to each plane of n elements. */
template <typename T> __global__ void ddp__k_global_pool(T *y, const T *x, long planes, long n)
{
    const long p = (long)blockIdx.x * (DDP__POOL_THREADS / 32) + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    float sum = 0;
    for (long i = lane; p < planes && i < n; i += 32) sum += ddp__to_float(x[p * n + i]);
    sum = ddp__warp_sum(sum);
    if (p < planes && lane == 0) y[p] = ddp__from_float<T>(sum / (float)n);
}

template <typename T> __global__ void ddp__k_global_pool_grad(T *dx, const T *dy, int add, long count, long n)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float d = ddp__to_float(dy[i / n]) / (float)n;
    if (add) d += ddp__to_float(dx[i]);
    dx[i] = ddp__from_float<T>(d);
}

/* ---- on the host: one thread to each element ---- */

template <typename T, int MAX> static void ddp__cuda_pool_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    DDP__EACH((ddp__k_pool<T, MAX>), ddp_shape_count(&c->spec->out), DDP__POOL_THREADS, (T *)c->out,
              (float *)c->saved, (const T *)c->in[0], ddp__pool_sizes(c->spec));
}

template <typename T, int MAX> static void ddp__cuda_pool_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    if (c->grad_in[0])
        DDP__EACH((ddp__k_pool_grad<T, MAX>), ddp_shape_count(&c->spec->in[0]), DDP__POOL_THREADS, (T *)c->grad_in[0],
                  (const T *)c->grad_out, (const float *)c->saved, c->add_in[0], ddp__pool_sizes(c->spec));
}

template <typename T> static void ddp__cuda_global_pool_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const long planes = ddp_shape_count(&c->spec->out), count = ddp_shape_count(&c->spec->in[0]);
    DDP__EACH((ddp__k_global_pool<T>), 32 * planes, DDP__POOL_THREADS, (T *)c->out,
              (const T *)c->in[0], planes, count / planes);
}

template <typename T> static void ddp__cuda_global_pool_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const long planes = ddp_shape_count(&c->spec->out), count = ddp_shape_count(&c->spec->in[0]);
    if (c->grad_in[0])
        DDP__EACH((ddp__k_global_pool_grad<T>), count, DDP__POOL_THREADS, (T *)c->grad_in[0],
                  (const T *)c->grad_out, c->add_in[0], count, count / planes);
}

static void ddp__cuda_flatten_forward(const ddp_op_call *c)
{
    if (c->out != c->in[0]) ddp__cuda_map(c, c->out, c->in[0], NULL, 0, ddp__map_copy());
}

static void ddp__cuda_flatten_backward(const ddp_op_call *c) { ddp__cuda_copy_grad(c, 0); }

#define DDP__POOL(f, MAX) DDP__LATER(ddp__cuda_typed<f<float, MAX>, f<ddp__bf16, MAX> >)

DDP__FAMILY(ddp__cuda_pool_ops,
    {"max_pool2d", DDP__POOL(ddp__cuda_pool_forward, 1), DDP__POOL(ddp__cuda_pool_backward, 1), NULL},
    {"avg_pool2d", DDP__POOL(ddp__cuda_pool_forward, 0), DDP__POOL(ddp__cuda_pool_backward, 0), NULL},
    DDP__ENTRY("global_avg_pool2d", ddp__cuda_global_pool, NULL),
    DDP__PLAIN("flatten", ddp__cuda_flatten, NULL))
