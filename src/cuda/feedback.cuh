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
    const cudaStream_t on = (cudaStream_t)stream;
    ddp__cuda_queue queue, *dev = &queue;
    ddp__verdict_values values;

    if (!residual || !gradient || !verdict)
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_feedback_add: residual, gradient or verdict is NULL");
    if (!n) return DDP_OK;
    memset(&queue, 0, sizeof queue);
    values.a = residual;
    values.b = gradient;
    DDP__LAUNCH((ddp__k_feedback_check), ddp__feedback_blocks(n), DDP__FEEDBACK_THREADS, 0, on,
                residual, gradient, n, verdict);
    DDP__LAUNCH((ddp__k_verdict<ddp__verdict_values>), 1, 1, 0, on, verdict, values);
    DDP__LAUNCH((ddp__k_feedback_add), ddp__feedback_blocks(n), DDP__FEEDBACK_THREADS, 0, on,
                residual, gradient, n, verdict);
    return ddp__cuda_queued(dev, err);
}

ddp_status ddp_cuda_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                  ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    const cudaStream_t on = (cudaStream_t)stream;
    ddp__cuda_queue queue, *dev = &queue;
    ddp__verdict_index places;

    if (!residual || !index || !verdict)
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_feedback_keep: residual, index or verdict is NULL");
    if (!k) return DDP_OK;
    memset(&queue, 0, sizeof queue);
    places.index = index;
    DDP__LAUNCH((ddp__k_feedback_places), ddp__feedback_blocks(k), DDP__FEEDBACK_THREADS, 0, on,
                index, k, n, verdict);
    DDP__LAUNCH((ddp__k_verdict<ddp__verdict_index>), 1, 1, 0, on, verdict, places);
    DDP__LAUNCH((ddp__k_feedback_keep), ddp__feedback_blocks(k), DDP__FEEDBACK_THREADS, 0, on,
                residual, index, k, verdict);
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
    for (int half = 16; half; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
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
    for (int half = 16; half; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
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
    const cudaStream_t on = (cudaStream_t)stream;
    ddp__cuda_queue queue, *dev = &queue;
    ddp__verdict_values values;
    double *chunk = (double *)scratch;
    const unsigned blocks = (unsigned)((ddp_cuda_osp_scratch(n) / sizeof(double) + 7) / 8);

    if (!gradient || !parameter || !out || !verdict || !scratch || n == 0)
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_osp_importance: %zu elements or a NULL array; it needs "
                         "at least 1",
                         n);
    if (scratch_bytes < ddp_cuda_osp_scratch(n))
        return ddp__fail(err, DDP_ARG,
                         "ddp_cuda_osp_importance: the scratch has %zu bytes, %zu are "
                         "needed; ask ddp_cuda_osp_scratch",
                         scratch_bytes, ddp_cuda_osp_scratch(n));
    memset(&queue, 0, sizeof queue);
    values.a = gradient;
    values.b = parameter;
    DDP__LAUNCH((ddp__k_osp_chunks), blocks, 256, 0, on, chunk, gradient, parameter, n, verdict);
    DDP__LAUNCH((ddp__k_verdict<ddp__verdict_values>), 1, 1, 0, on, verdict, values);
    DDP__LAUNCH((ddp__k_osp_total), 1, 32, 0, on, out, (const double *)chunk, n, mean, verdict);
    return ddp__cuda_queued(dev, err);
}

#endif /* DDP_CUDA_FEEDBACK_CUH */
