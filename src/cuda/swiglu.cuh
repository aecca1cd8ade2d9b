/* swiglu: y = silu(a) b, from the halves of one input's rows or from two inputs. */
#ifndef DDP_CUDA_SWIGLU_CUH
#define DDP_CUDA_SWIGLU_CUH

#include "cuda/rows.cuh"

enum { DDP__SWIGLU_THREADS = 256 };

/* Rows of a and of b are row elements apart. */
template <typename T>
static __global__ void ddp__k_swiglu(T *out, const T *a, const T *b, long rows, long n, long row,
                                     int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = (n + width - 1) / width;
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long r = i / pieces, at = i % pieces * width;
    float x[ddp__vec<T>::width], y[ddp__vec<T>::width];
    int k;

    if (r >= rows) return;
    ddp__piece_load(x, a + r * row, at, n, wide);
    ddp__piece_load(y, b + r * row, at, n, wide);
    for (k = 0; k < width; k++) x[k] = x[k] / (1 + expf(-x[k])) * y[k];
    ddp__piece_store(out + r * n, x, at, n, wide, 0);
}

/* da = dy b (s + a s (1 - s)), db = dy a s. da may be a, db may be b, each may be NULL. */
template <typename T>
static __global__ void ddp__k_swiglu_grad(T *da, T *db, const T *a, const T *b, const T *dy,
                                          long rows, long n, long row, int add_a, int add_b,
                                          int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = (n + width - 1) / width;
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long r = i / pieces, at = i % pieces * width;
    float x[ddp__vec<T>::width], y[ddp__vec<T>::width], d[ddp__vec<T>::width];
    int k;

    if (r >= rows) return;
    ddp__piece_load(x, a + r * row, at, n, wide);
    ddp__piece_load(y, b + r * row, at, n, wide);
    ddp__piece_load(d, dy + r * n, at, n, wide);
    for (k = 0; k < width; k++) {
        const float s = 1 / (1 + expf(-x[k])), silu = x[k] * s;
        x[k] = d[k] * y[k] * (s + silu * (1 - s));
        d[k] *= silu;
    }
    if (da) ddp__piece_store(da + r * row, x, at, n, wide, add_a);
    if (db) ddp__piece_store(db + r * row, d, at, n, wide, add_b);
}

/* Where the factors lie in the arrays given per input; NULL stays NULL. */
template <typename T>
static inline void ddp__cuda_swiglu_factors(const ddp_op_spec *s, const void *first,
                                            const void *second, const T **a, const T **b)
{
    *a = (const T *)first;
    *b = s->inputs > 1 ? (const T *)second
         : first ? (const T *)first + s->out.dim[s->out.dims - 1] : NULL;
}

template <typename T>
static void ddp__cuda_swiglu_forward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const long pieces = (n + ddp__vec<T>::width - 1) / ddp__vec<T>::width;
    const T *a, *b;

    ddp__cuda_swiglu_factors(c->spec, c->in[0], c->in[1], &a, &b);
    DDP__LAUNCH((ddp__k_swiglu<T>), (unsigned)ddp__blocks(rows * pieces, DDP__SWIGLU_THREADS),
                DDP__SWIGLU_THREADS, 0, dev->stream, (T *)c->out, a, b, rows, n,
                c->spec->inputs > 1 ? n : 2 * n, ddp__wide<T>(n, c->out, a, b));
}

template <typename T>
static void ddp__cuda_swiglu_backward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const long pieces = (n + ddp__vec<T>::width - 1) / ddp__vec<T>::width;
    const T *a, *b, *da, *db;

    ddp__cuda_swiglu_factors(c->spec, c->in[0], c->in[1], &a, &b);
    ddp__cuda_swiglu_factors(c->spec, c->grad_in[0], c->grad_in[1], &da, &db);
    if (!da && !db) return;
    DDP__LAUNCH((ddp__k_swiglu_grad<T>), (unsigned)ddp__blocks(rows * pieces, DDP__SWIGLU_THREADS),
                DDP__SWIGLU_THREADS, 0, dev->stream, (T *)da, (T *)db, a, b,
                (const T *)c->grad_out, rows, n, c->spec->inputs > 1 ? n : 2 * n, c->add_in[0],
                c->add_in[c->spec->inputs > 1],
                ddp__wide<T>(n, a, b, da, db) && ddp__aligned(c->grad_out));
}

DDP__CUDA_BOTH(ddp__cuda_swiglu_forward)
DDP__CUDA_BOTH(ddp__cuda_swiglu_backward)

#endif /* DDP_CUDA_SWIGLU_CUH */
