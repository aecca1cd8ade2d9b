/* gelu, relu, add: one pass over memory, 16 bytes at a time. */
#ifndef DDP_CUDA_ELEMENTWISE_CUH
#define DDP_CUDA_ELEMENTWISE_CUH

#include "cuda/launch.cuh"
#include "cuda/vector.cuh"

enum { DDP__MAP_THREADS = 256 };

/* y = f(a) or f(a, b), where b is another input or a gradient; d += or = in backward. */
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
        const float k = 0.79788456080286535588f;
        const float t = tanhf(k * (x + 0.044715f * x * x * x));
        return dy * (0.5f * (1 + t) + 0.5f * x * (1 - t * t) * k * (1 + 3 * 0.044715f * x * x));
    }
};
/* NaN passes; the gradient at 0 is 0. */
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

/* out[i] = (add ? out[i] : 0) + f(a[i], b[i]); b NULL reads as 0. out may be a or b. wide: all
 * arrays are multiples of 16 bytes. */
template <typename T, typename F>
static __global__ void ddp__k_map(T *out, const T *a, const T *b, long n, int add, int wide, F f)
{
    const int width = ddp__vec<T>::width;
    const long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    int k;

    if (wide && i + width <= n) {
        const ddp__vec<T> va = ddp__vec_load(a + i);
        const ddp__vec<T> vb = b ? ddp__vec_load(b + i) : va;
        ddp__vec<T> vo = va;
        if (add) vo = ddp__vec_load(out + i);
        for (k = 0; k < width; k++) {
            const float y = f(ddp__to_float(va.v[k]), b ? ddp__to_float(vb.v[k]) : 0);
            vo.v[k] = ddp__from_float<T>(add ? ddp__to_float(vo.v[k]) + y : y);
        }
        ddp__vec_store(out + i, vo);
        return;
    }
    for (k = 0; k < width && i + k < n; k++) {
        const float y = f(ddp__to_float(a[i + k]), b ? ddp__to_float(b[i + k]) : 0);
        out[i + k] = ddp__from_float<T>(add ? ddp__to_float(out[i + k]) + y : y);
    }
}

template <typename T, typename F>
static inline void ddp__cuda_map_as(ddp__cuda *dev, void *out, const void *a, const void *b, long n,
                                    int add, F f)
{
    const long per_block = DDP__MAP_THREADS * (long)ddp__vec<T>::width;

    DDP__LAUNCH((ddp__k_map<T, F>), (unsigned)ddp__blocks(n, per_block), DDP__MAP_THREADS, 0,
                dev->stream, (T *)out, (const T *)a, (const T *)b, n, add, ddp__aligned(out, a, b),
                f);
}

/* The map over n elements of the type that arrays of shape have on the device. */
template <typename F>
static inline void ddp__cuda_map(const ddp_op_call *c, void *out, const void *a, const void *b,
                                 int add, F f)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    const long n = ddp_shape_count(&c->spec->out);

    if (ddp__cuda_half(dev, &c->spec->out)) ddp__cuda_map_as<ddp__bf16>(dev, out, a, b, n, add, f);
    else ddp__cuda_map_as<float>(dev, out, a, b, n, add, f);
}

static DDP__UNUSED void ddp__cuda_gelu_forward(const ddp_op_call *c)
{
    ddp__cuda_map(c, c->out, c->in[0], NULL, 0, ddp__map_gelu());
}

static DDP__UNUSED void ddp__cuda_gelu_backward(const ddp_op_call *c)
{
    if (c->grad_in[0])
        ddp__cuda_map(c, c->grad_in[0], c->in[0], c->grad_out, c->add_in[0], ddp__map_gelu_grad());
}

static DDP__UNUSED void ddp__cuda_relu_forward(const ddp_op_call *c)
{
    ddp__cuda_map(c, c->out, c->in[0], NULL, 0, ddp__map_relu());
}

static DDP__UNUSED void ddp__cuda_relu_backward(const ddp_op_call *c)
{
    if (c->grad_in[0])
        ddp__cuda_map(c, c->grad_in[0], c->in[0], c->grad_out, c->add_in[0], ddp__map_relu_grad());
}

static DDP__UNUSED void ddp__cuda_add_forward(const ddp_op_call *c)
{
    ddp__cuda_map(c, c->out, c->in[0], c->in[1], 0, ddp__map_add());
}

/* Input by input: both may be the same array, the second then adding to the first. */
static DDP__UNUSED void ddp__cuda_add_backward(const ddp_op_call *c)
{
    int k;

    for (k = 0; k < 2; k++)
        if (c->grad_in[k] && (c->add_in[k] || c->grad_in[k] != c->grad_out))
            ddp__cuda_map(c, c->grad_in[k], c->grad_out, NULL, c->add_in[k], ddp__map_copy());
}

static DDP__UNUSED int ddp__cuda_elementwise_ops(const ddp__cuda_entry **list)
{
    static const ddp__cuda_entry ops[] = {
        {"gelu", ddp__cuda_gelu_forward, ddp__cuda_gelu_backward, NULL},
        {"relu", ddp__cuda_relu_forward, ddp__cuda_relu_backward, NULL},
        {"add", ddp__cuda_add_forward, ddp__cuda_add_backward, NULL},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}

#endif /* DDP_CUDA_ELEMENTWISE_CUH */
