/* How the compression calls queue their kernels and record invalid data in the verdict, and error feedback on
 * device arrays. */
#pragma once

#include "compress/codec.h"
#include "cuda/rows.cuh"

/* In the order in which they are reported if there are several. */
enum {
    DDP__SAYS_NOTHING,
    DDP__SAYS_NAN,
    DDP__SAYS_NO_LEVEL,
    DDP__SAYS_INDEX,
    DDP__SAYS_HEAD,
    DDP__SAYS_HALF,
    DDP__SAYS_LOW,
    DDP__SAYS_SCALE,
    DDP__SAYS_SUM,
    DDP__SAYS_DIFFERENCE
};

/* The launches of one call: the members of a device that DDP__RUN needs. */
typedef struct ddp__cuda_queue {
    cudaStream_t stream;
    ddp_error error;
} ddp__cuda_queue;

static DDP__UNUSED ddp__cuda_queue ddp__cuda_queue_on(void *stream) { return {(cudaStream_t)stream, {}}; }

/* No hold precedes these launches. */
static inline void ddp__cuda_launches(ddp__cuda_queue *, cudaStream_t, const void *) {}

static inline void ddp__cuda_launched(ddp__cuda_queue *dev, const char *kernel)
{
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess && dev->error.code == DDP_OK)
        (void)ddp__fail(&dev->error, DDP_FAILED, "cannot launch the kernel %s: %s", kernel,
                        cudaGetErrorString(e));
}

static DDP__UNUSED ddp_status ddp__cuda_queued(const ddp__cuda_queue *dev, ddp_error *err)
{
    if (dev->error.code != DDP_OK && err) *err = dev->error;
    return dev->error.code;
}

/* Records an invalid element. If there are several, the kind that is reported first remains, at its lowest
 * index. */
static inline __device__ void ddp__verdict_note(ddp_cuda_verdict *v, int what, size_t at)
{
    atomicMax(&v->pending, ~((unsigned long long)what << 56 | (unsigned long long)at));
}

/* Ends a check of the data in a later kernel. Turns a recorded element into the verdict, whose values f(v)
 * fills in. Returns 1 if there was one. */
template <typename F> __device__ int ddp__verdict_end(ddp_cuda_verdict *v, F f)
{
    const unsigned long long found = v->pending;
    if (found && blockIdx.x == 0 && threadIdx.x == 0 && !v->what) {
        v->at = ~found & 0xffffffffffffffull;
        v->what = (int)(~found >> 56);
        f(v);
    }
    return found != 0;
}

template <typename F> __global__ void ddp__k_verdict(ddp_cuda_verdict *v, F f)
{
    (void)ddp__verdict_end(v, f);
}

/* Reads the values at the index from one or two arrays (0 if NULL). */
struct ddp__verdict_values {
    const float *a, *b;

    __device__ void operator()(ddp_cuda_verdict *v) const
    {
        v->value[0] = a ? a[v->at] : 0;
        v->value[1] = b ? b[v->at] : 0;
    }
};

ddp_status ddp_cuda_verdict_read(const ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp_cuda_verdict v;
    cudaError_t e;
    double a, b;

    if (!verdict) return ddp__fail(err, DDP_ARG, "ddp_cuda_verdict_read: verdict is NULL");
    e = cudaMemcpyAsync(&v, verdict, sizeof v, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)stream);
    if (e != cudaSuccess)
        return ddp__fail(err, DDP_FAILED, "ddp_cuda_verdict_read: %s", cudaGetErrorString(e));
    a = (double)v.value[0];
    b = (double)v.value[1];
    switch (v.what) {
    case DDP__SAYS_NOTHING:
        return DDP_OK;
    case DDP__SAYS_NAN:
        return ddp__found_nan(v.at, err);
    case DDP__SAYS_NO_LEVEL:
        return ddp__fail(err, DDP_NUMERIC, "x[%llu] = %g has no level; only finite numbers can be quantised",
                         v.at, a);
    case DDP__SAYS_INDEX:
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_feedback_keep: index[%llu] = %llu is not below "
                         "the number of elements",
                         v.at, v.number);
    case DDP__SAYS_HEAD:
        return ddp__fail(err, DDP_FORMAT, "the header does not match the packing and %llu elements",
                         v.number);
    case DDP__SAYS_HALF:
        return ddp__fail(err, DDP_FORMAT, "the half byte after the last element is not 8");
    case DDP__SAYS_LOW:
        return ddp__fail(err, DDP_FORMAT, "element %llu has the level %g; levels begin at %g", v.at, a,
                         a + 1);
    case DDP__SAYS_SCALE:
        return ddp__fail(err, DDP_FORMAT, "the scale of block %llu is %g; it must be finite and >= 0", v.at,
                         a);
    default:
        return ddp__fail(err, DDP_NUMERIC,
                         "x[%llu] = %g %s %g would not be a finite number; a gradient has diverged: "
                         "leave this step out",
                         v.at, a, v.what == DDP__SAYS_DIFFERENCE ? "-" : "+", b);
    }
}

/* ---- error feedback ---- */

enum { DDP__FEEDBACK_THREADS = 256, DDP__FEEDBACK_BLOCKS = 2112 };

/* Number of blocks for n elements, whose threads loop with a stride. */
static unsigned ddp__feedback_blocks(size_t n)
{
    const size_t wish = (n + DDP__FEEDBACK_THREADS - 1) / DDP__FEEDBACK_THREADS;
    return wish < DDP__FEEDBACK_BLOCKS ? (unsigned)wish : (unsigned)DDP__FEEDBACK_BLOCKS;
}

#define DDP__STRIDE(kernel, n, ...) \
    DDP__RUN(kernel, ddp__feedback_blocks(n), DDP__FEEDBACK_THREADS, __VA_ARGS__)

static inline __device__ size_t ddp__thread_first() { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }
static inline __device__ size_t ddp__thread_step() { return (size_t)gridDim.x * blockDim.x; }

/* ADD 0 checks the sums. ADD 1 writes them, from the end, where the gradient is still in the cache. wide:
 * both arrays are aligned to 16 bytes. */
template <int ADD>
static __global__ void ddp__k_feedback(float *residual, const float *gradient, size_t n, int wide,
                                       ddp_cuda_verdict *v)
{
    float g[4];

    if (ADD ? ddp__verdict_end(v, ddp__verdict_values{residual, gradient}) : v->what) return;
    for (size_t i = ddp__thread_first(), fours = (n + 3) / 4; i < fours; i += ddp__thread_step()) {
        const size_t at = 4 * (ADD ? fours - 1 - i : i);
        ddp__piece_load(g, gradient, (long)at, (long)n, wide && at + 4 <= n);
        if (ADD) ddp__piece_store(residual, g, (long)at, (long)n, wide && at + 4 <= n, 1);
        DDP__UNROLL for (unsigned e = 0; !ADD && e < 4; e++) if (ddp__magnitude(g[e]) >= DDP__HUGE &&
                                                                 ddp__sum_spoils(residual[at + e], g[e]))
            ddp__verdict_note(v, DDP__SAYS_SUM, at + e);
    }
}

static __global__ void ddp__k_feedback_places(const uint64_t *index, size_t k, size_t n, ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < k; i += ddp__thread_step())
        if (index[i] >= n) ddp__verdict_note(v, DDP__SAYS_INDEX, i);
}

struct ddp__verdict_index {
    const uint64_t *index;

    __device__ void operator()(ddp_cuda_verdict *v) const { v->number = index[v->at]; }
};

static __global__ void ddp__k_feedback_keep(float *residual, const uint64_t *index, size_t k,
                                            ddp_cuda_verdict *v)
{
    if (ddp__verdict_end(v, ddp__verdict_index{index})) return;
    for (size_t i = ddp__thread_first(); i < k; i += ddp__thread_step()) residual[index[i]] = 0;
}

ddp_status ddp_cuda_feedback_add(float *residual, const float *gradient, size_t n, ddp_cuda_verdict *verdict,
                                 void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    const int wide = ddp__aligned(residual, gradient);

    if (!residual || !gradient || !verdict)
        return ddp__fail(err, DDP_ARG, "ddp_cuda_feedback_add: residual, gradient or verdict is NULL");
    if (!n) return DDP_OK;
    DDP__STRIDE(ddp__k_feedback<0>, (n + 3) / 4, residual, gradient, n, wide, verdict);
    DDP__STRIDE(ddp__k_feedback<1>, (n + 3) / 4, residual, gradient, n, wide, verdict);
    return ddp__cuda_queued(dev, err);
}

ddp_status ddp_cuda_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                  ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;

    if (!residual || !index || !verdict)
        return ddp__fail(err, DDP_ARG, "ddp_cuda_feedback_keep: residual, index or verdict is NULL");
    if (!k) return DDP_OK;
    DDP__STRIDE(ddp__k_feedback_places, k, index, k, n, verdict);
    DDP__STRIDE(ddp__k_feedback_keep, k, residual, index, k, verdict);
    return ddp__cuda_queued(dev, err);
}
