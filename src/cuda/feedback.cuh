/* Error feedback of compress/feedback.h, and PGP sums of plan/osp.h, on device arrays. */
#ifndef DDP_CUDA_FEEDBACK_CUH
#define DDP_CUDA_FEEDBACK_CUH

#include "cuda/verdict.cuh"

enum { DDP__FEEDBACK_THREADS = 256, DDP__FEEDBACK_BLOCKS = 2112 };

/* Blocks for n elements, which their threads then take in strides. */
static unsigned ddp__feedback_blocks(size_t n)
{
    const size_t wish = (n + DDP__FEEDBACK_THREADS - 1) / DDP__FEEDBACK_THREADS;

    return wish < DDP__FEEDBACK_BLOCKS ? (unsigned)wish : (unsigned)DDP__FEEDBACK_BLOCKS;
}

#define DDP__STRIDE(kernel, n, ...) \
    DDP__RUN(kernel, ddp__feedback_blocks(n), DDP__FEEDBACK_THREADS, __VA_ARGS__)

static inline __device__ size_t ddp__thread_first()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static inline __device__ size_t ddp__thread_step() { return (size_t)gridDim.x * blockDim.x; }

static __global__ void ddp__k_feedback_check(const float *residual, const float *gradient, size_t n,
                                             ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < n; i += ddp__thread_step()) {
        const float g = gradient[i];
        if (ddp__magnitude(g) >= DDP__HUGE && ddp__sum_spoils(residual[i], g))
            ddp__verdict_note(v, DDP__SAYS_SUM, i);
    }
}

static __global__ void ddp__k_feedback_add(float *residual, const float *gradient, size_t n,
                                           const ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < n; i += ddp__thread_step()) residual[i] += gradient[i];
}

static __global__ void ddp__k_feedback_places(const uint64_t *index, size_t k, size_t n,
                                              ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < k; i += ddp__thread_step())
        if (index[i] >= n) ddp__verdict_note(v, DDP__SAYS_INDEX, i);
}

static __global__ void ddp__k_feedback_keep(float *residual, const uint64_t *index, size_t k,
                                            const ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < k; i += ddp__thread_step()) residual[index[i]] = 0;
}

struct ddp__verdict_index {
    const uint64_t *index;

    __device__ void operator()(ddp_cuda_verdict *v) const { v->number = index[v->at]; }
};

ddp_status ddp_cuda_feedback_add(float *residual, const float *gradient, size_t n,
                                 ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    const ddp__verdict_values values = {residual, gradient};

    if (!residual || !gradient || !verdict)
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_feedback_add: residual, gradient or verdict is NULL");
    if (!n) return DDP_OK;
    DDP__STRIDE(ddp__k_feedback_check, n, residual, gradient, n, verdict);
    DDP__RUN((ddp__k_verdict<ddp__verdict_values>), 1, 1, verdict, values);
    DDP__STRIDE(ddp__k_feedback_add, n, residual, gradient, n, verdict);
    return ddp__cuda_queued(dev, err);
}

ddp_status ddp_cuda_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                  ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    const ddp__verdict_index places = {index};

    if (!residual || !index || !verdict)
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_feedback_keep: residual, index or verdict is NULL");
    if (!k) return DDP_OK;
    DDP__STRIDE(ddp__k_feedback_places, k, index, k, n, verdict);
    DDP__RUN((ddp__k_verdict<ddp__verdict_index>), 1, 1, verdict, places);
    DDP__STRIDE(ddp__k_feedback_keep, k, residual, index, k, verdict);
    return ddp__cuda_queued(dev, err);
}

/* ---- PGP: the sum of |gradient x parameter|, in the parts of ddp_osp_importance ---- */

/* A warp to each chunk. */
static __global__ void ddp__k_osp_chunks(double *chunk, const float *gradient,
                                         const float *parameter, size_t n, ddp_cuda_verdict *v)
{
    const size_t c = ddp__thread_first() / 32, lane = threadIdx.x % 32;
    const size_t begin = c * DDP__OSP_CHUNK,
                 end = begin + DDP__OSP_CHUNK < n ? begin + DDP__OSP_CHUNK : n;
    double sum = 0;

    if (v->what || begin >= n) return;
    for (size_t i = begin + lane; i < end; i += 32) {
        const double x = fabs((double)gradient[i] * (double)parameter[i]);
        if (!(x <= DBL_MAX)) ddp__verdict_note(v, DDP__SAYS_NOT_FINITE, i);
        sum += x;
    }
    sum = ddp__warp_sum(sum);
    if (lane == 0) chunk[c] = sum;
}

/* One warp. */
static __global__ void ddp__k_osp_total(double *out, const double *chunk, size_t n, int mean,
                                        const ddp_cuda_verdict *v)
{
    const size_t chunks = (n + DDP__OSP_CHUNK - 1) / DDP__OSP_CHUNK;
    double sum = 0;

    if (v->what) return;
    for (size_t c = threadIdx.x; c < chunks; c += 32) sum += chunk[c];
    sum = ddp__warp_sum(sum);
    if (threadIdx.x == 0) *out = mean ? sum / (double)n : sum;
}

size_t ddp_cuda_osp_scratch(size_t n)
{
    return (n / DDP__OSP_CHUNK + (n % DDP__OSP_CHUNK != 0)) * sizeof(double);
}

ddp_status ddp_cuda_osp_importance(const float *gradient, const float *parameter, size_t n,
                                   int mean, void *scratch, size_t scratch_bytes, double *out,
                                   ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    const ddp__verdict_values values = {gradient, parameter};
    const size_t chunks = ddp_cuda_osp_scratch(n) / sizeof(double);
    double *chunk = (double *)scratch;

    if (!gradient || !parameter || !out || !verdict || !scratch || n == 0)
        return ddp__fail(err, DDP_ARG, "ddp_cuda_osp_importance: %zu elements or a NULL array; it "
                         "needs at least 1", n);
    if (scratch_bytes < ddp_cuda_osp_scratch(n))
        return ddp__fail(err, DDP_ARG, "ddp_cuda_osp_importance: the scratch has %zu bytes, %zu "
                         "are needed; ask ddp_cuda_osp_scratch", scratch_bytes,
                         ddp_cuda_osp_scratch(n));
    DDP__EACH(ddp__k_osp_chunks, (long)(32 * chunks), 256, chunk, gradient, parameter, n, verdict);
    DDP__RUN((ddp__k_verdict<ddp__verdict_values>), 1, 1, verdict, values);
    DDP__RUN(ddp__k_osp_total, 1, 32, out, (const double *)chunk, n, mean, verdict);
    return ddp__cuda_queued(dev, err);
}

#endif /* DDP_CUDA_FEEDBACK_CUH */
