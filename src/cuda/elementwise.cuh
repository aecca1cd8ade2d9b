/* gelu, relu, add, swiglu and dropout: one pass over memory, 16 bytes at a time. */
#pragma once

#include "cuda/rows.cuh"

enum { DDP__MAP_THREADS = 256 };

/* y = f(a) or f(a, b), where b is a second input or a gradient. Backward computes d = or d +=. */
struct ddp__map_gelu {
    __device__ float operator()(float x, float) const
    {
        const float u = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1 + tanhf(u));
    }
};
struct ddp__map_gelu_grad {
    __device__ float operator()(float x, float dy) const
    {
        const float k = 0.79788456080286535588f, t = tanhf(k * (x + 0.044715f * x * x * x));
        return dy * (0.5f * (1 + t) + 0.5f * x * (1 - t * t) * k * (1 + 3 * 0.044715f * x * x));
    }
};
/* NaN stays NaN. The gradient at 0 is 0. */
struct ddp__map_relu {
    __device__ float operator()(float x, float) const { return x < 0 ? 0 : x; }
};
struct ddp__map_relu_grad {
    __device__ float operator()(float x, float dy) const { return x > 0 ? dy : 0; }
};
struct ddp__map_add {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct ddp__map_copy {
    __device__ float operator()(float a, float) const { return a; }
};
struct ddp__map_scaled {
    const float *by; /* in device memory */
    __device__ float operator()(float a, float) const { return a * *by; }
};

/* out[i] = (add ? out[i] : 0) + f(a[i], b[i]). b NULL reads as 0. out may be a or b. wide: all arrays are
 * aligned to 16 bytes. */
template <typename T, typename F>
static __global__ void ddp__k_map(T *out, const T *a, const T *b, long n, int add, int wide, F f)
{
    const int width = ddp__vec<T>::width;
    const long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    float x[width], y[width];

    if (i >= n) return;
    wide = wide && i + width <= n;
    ddp__piece_load(x, a, i, n, wide);
    if (b) ddp__piece_load(y, b, i, n, wide);
    for (int k = 0; k < width; k++) x[k] = f(x[k], b ? y[k] : 0);
    ddp__piece_store(out, x, i, n, wide, add);
}

template <typename T, typename F>
static inline void ddp__cuda_map_as(ddp__cuda *dev, void *out, const void *a, const void *b, long n, int add,
                                    F f)
{
    DDP__EACH((ddp__k_map<T, F>), ddp__pieces<T>(n), DDP__MAP_THREADS, (T *)out, (const T *)a, (const T *)b,
              n, add, ddp__aligned(out, a, b), f);
}

/* Applies the map to n elements of the type that arrays of this shape have on the device. */
template <typename F>
static inline void ddp__cuda_map(const ddp_op_call *c, void *out, const void *a, const void *b, int add, F f)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    const long n = ddp_shape_count(&c->spec->out);
    if (ddp__cuda_half(dev, &c->spec->out))
        ddp__cuda_map_as<ddp__bf16>(dev, out, a, b, n, add, f);
    else
        ddp__cuda_map_as<float>(dev, out, a, b, n, add, f);
}

/* Forward of an operator with one input. */
template <typename F> static void ddp__cuda_map_forward(const ddp_op_call *c)
{
    ddp__cuda_map(c, c->out, c->in[0], NULL, 0, F());
}

template <typename F> static void ddp__cuda_map_backward(const ddp_op_call *c)
{
    if (c->grad_in[0]) ddp__cuda_map(c, c->grad_in[0], c->in[0], c->grad_out, c->add_in[0], F());
}

/* The gradient of input k equals the gradient of the output. */
static DDP__UNUSED void ddp__cuda_copy_grad(const ddp_op_call *c, int k)
{
    if (c->grad_in[k] && (c->add_in[k] || c->grad_in[k] != c->grad_out))
        ddp__cuda_map(c, c->grad_in[k], c->grad_out, NULL, c->add_in[k], ddp__map_copy());
}

static DDP__UNUSED void ddp__cuda_add_forward(const ddp_op_call *c)
{
    ddp__cuda_map(c, c->out, c->in[0], c->in[1], 0, ddp__map_add());
}

/* One input after the other: they may be the same array, and then the second adds to the first. */
static DDP__UNUSED void ddp__cuda_add_backward(const ddp_op_call *c)
{
    ddp__cuda_copy_grad(c, 0);
    ddp__cuda_copy_grad(c, 1);
}

DDP__FAMILY(ddp__cuda_elementwise_ops,
            {"gelu", DDP__LATER(ddp__cuda_map_forward<ddp__map_gelu>),
             DDP__LATER(ddp__cuda_map_backward<ddp__map_gelu_grad>), NULL},
            {"relu", DDP__LATER(ddp__cuda_map_forward<ddp__map_relu>),
             DDP__LATER(ddp__cuda_map_backward<ddp__map_relu_grad>), NULL},
            DDP__PLAIN("add", ddp__cuda_add, NULL))

/* ---- swiglu: y = silu(a) b, where a and b are the halves of each row of one input, or two inputs ---- */

/* Consecutive rows of a and of b are row elements apart. */
template <typename T>
static __global__ void ddp__k_swiglu(T *out, const T *a, const T *b, long rows, long n, long row, int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = ddp__pieces<T>(n), i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long r = i / pieces, at = i % pieces * width;
    float x[width], y[width];

    if (r >= rows) return;
    ddp__piece_load(x, a + r * row, at, n, wide);
    ddp__piece_load(y, b + r * row, at, n, wide);
    for (int k = 0; k < width; k++) x[k] = x[k] / (1 + expf(-x[k])) * y[k];
    ddp__piece_store(out + r * n, x, at, n, wide, 0);
}

/* da = dy b (s + a s (1 - s)), db = dy a s. da may be a, db may be b, and each may be NULL. */
template <typename T>
static __global__ void ddp__k_swiglu_grad(T *da, T *db, const T *a, const T *b, const T *dy, long rows,
                                          long n, long row, int add_a, int add_b, int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = ddp__pieces<T>(n), i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long r = i / pieces, at = i % pieces * width;
    float x[width], y[width], d[width];

    if (r >= rows) return;
    ddp__piece_load(x, a + r * row, at, n, wide);
    ddp__piece_load(y, b + r * row, at, n, wide);
    ddp__piece_load(d, dy + r * n, at, n, wide);
    for (int k = 0; k < width; k++) {
        const float s = 1 / (1 + expf(-x[k])), silu = x[k] * s;
        x[k] = d[k] * y[k] * (s + silu * (1 - s));
        d[k] *= silu;
    }
    if (da) ddp__piece_store(da + r * row, x, at, n, wide, add_a);
    if (db) ddp__piece_store(db + r * row, d, at, n, wide, add_b);
}

/* Positions of the two factors in arrays given per input. NULL stays NULL. */
template <typename T>
static inline void ddp__cuda_swiglu_factors(const ddp_op_spec *s, const void *first, const void *second,
                                            const T **a, const T **b)
{
    *a = (const T *)first;
    *b = s->inputs > 1 ? (const T *)second : first ? (const T *)first + s->out.dim[s->out.dims - 1] : NULL;
}

template <typename T> static void ddp__cuda_swiglu_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const T *a, *b;
    ddp__cuda_swiglu_factors(c->spec, c->in[0], c->in[1], &a, &b);
    DDP__EACH((ddp__k_swiglu<T>), rows * ddp__pieces<T>(n), DDP__MAP_THREADS, (T *)c->out, a, b, rows, n,
              c->spec->inputs > 1 ? n : 2 * n, ddp__wide<T>(n, c->out, a, b));
}

template <typename T> static void ddp__cuda_swiglu_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const T *a, *b, *da, *db;

    ddp__cuda_swiglu_factors(c->spec, c->in[0], c->in[1], &a, &b);
    ddp__cuda_swiglu_factors(c->spec, c->grad_in[0], c->grad_in[1], &da, &db);
    if (!da && !db) return;
    DDP__EACH((ddp__k_swiglu_grad<T>), rows * ddp__pieces<T>(n), DDP__MAP_THREADS, (T *)da, (T *)db, a, b,
              (const T *)c->grad_out, rows, n, c->spec->inputs > 1 ? n : 2 * n, c->add_in[0],
              c->add_in[c->spec->inputs > 1], ddp__wide<T>(n, a, b, da, db) && ddp__aligned(c->grad_out));
}

/* ---- dropout: bit-identical to the CPU's mask, generated again wherever it is needed. Channels-last images
 * use the index that an element has on the CPU ---- */

/* The random bits of elements i and i + 1 (i even) of the stream: the low and the high half. */
__device__ static __forceinline__ uint64_t ddp__dropout_draw(uint64_t stream, long i)
{
    const uint64_t draw = (uint64_t)(i % DDP__OP_GRAIN / 2 + 1);
    return ddp__mix64(stream + draw * DDP__RNG_STEP);
}

/* out = or += in / (1 - p) for kept elements. out may be in. If bound is 0, all elements are kept. */
template <typename T>
static __global__ void ddp__k_dropout(T *out, const T *in, long n, uint64_t mixed_seed, uint32_t bound,
                                      float scale, int add, int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    const uint64_t stream = ddp__rng_stream(mixed_seed, (uint64_t)(at / DDP__OP_GRAIN));
    float v[width];

    if (at >= n) return;
    wide = wide && at + width <= n;
    ddp__piece_load(v, in, at, n, wide);
    for (int k = 0; k < width; k += 2) { /* a piece does not cross a block of random bits */
        const uint64_t bits = bound ? ddp__dropout_draw(stream, at + k) : 0;
        v[k] = (uint32_t)bits >= bound ? v[k] * scale : 0;
        v[k + 1] = (uint32_t)(bits >> 32) >= bound ? v[k + 1] * scale : 0;
    }
    ddp__piece_store(out, v, at, n, wide, add);
}

template <typename T>
static void ddp__cuda_dropout_run(ddp__cuda *dev, const ddp_op_call *c, void *out, const void *in, int add)
{
    const long n = ddp_shape_count(&c->spec->out);
    const double p = c->training ? c->spec->arg[0] : 0;
    if (p == 0 && !add && out == in) return;
    DDP__EACH((ddp__k_dropout<T>), ddp__pieces<T>(n), DDP__MAP_THREADS, (T *)out, (const T *)in, n,
              ddp__mix64(c->random + DDP__RNG_STEP), (uint32_t)(p * 4294967296.0), (float)(1 / (1 - p)), add,
              ddp__aligned(out, in));
}

template <typename T> static void ddp__cuda_dropout_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_dropout_run<T>(dev, c, c->out, c->in[0], 0);
}

template <typename T> static void ddp__cuda_dropout_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    if (c->grad_in[0]) ddp__cuda_dropout_run<T>(dev, c, c->grad_in[0], c->grad_out, c->add_in[0]);
}
