/* How the calls that compress queue their kernels, and keep what the data showed to be wrong. */
#ifndef DDP_CUDA_VERDICT_CUH
#define DDP_CUDA_VERDICT_CUH

#include "compress/codec.h"
#include "cuda/rows.cuh"

/* In the order in which they are said, where several are found. */
enum {
    DDP__SAYS_NOTHING,
    DDP__SAYS_NAN,
    DDP__SAYS_NO_LEVEL,
    DDP__SAYS_NOT_FINITE, /* of an importance */
    DDP__SAYS_INDEX,
    DDP__SAYS_HEAD,
    DDP__SAYS_HALF,
    DDP__SAYS_LOW,
    DDP__SAYS_SCALE,
    DDP__SAYS_SUM,
    DDP__SAYS_DIFFERENCE
};

/* The launches of one call: what DDP__RUN knows of a device. */
typedef struct ddp__cuda_queue {
    cudaStream_t stream;
    ddp_error    error;
} ddp__cuda_queue;

static DDP__UNUSED ddp__cuda_queue ddp__cuda_queue_on(void *stream)
{
    ddp__cuda_queue q;

    memset(&q, 0, sizeof q);
    q.stream = (cudaStream_t)stream;
    return q;
}

static inline void ddp__cuda_launched(ddp__cuda_queue *dev, const char *kernel)
{
    const cudaError_t e = cudaGetLastError();

    if (e != cudaSuccess && dev->error.code == DDP_OK)
        (void)ddp__fail(&dev->error, DDP_FAILED, "the kernel %s was not launched: %s", kernel,
                        cudaGetErrorString(e));
}

static DDP__UNUSED ddp_status ddp__cuda_queued(const ddp__cuda_queue *dev, ddp_error *err)
{
    if (dev->error.code != DDP_OK && err) *err = dev->error;
    return dev->error.code;
}

/* Notes a find; of several the one said first, and of those the lowest place, stays. */
static inline __device__ void ddp__verdict_note(ddp_cuda_verdict *v, int what, size_t at)
{
    atomicMax(&v->pending, ~((unsigned long long)what << 56 | (unsigned long long)at));
}

/* Ends a look at the data: a find becomes the verdict. f(v) fills in the values. One thread. */
template <typename F> __global__ void ddp__k_verdict(ddp_cuda_verdict *v, F f)
{
    if (v->what || !v->pending) return;
    v->at = ~v->pending & 0xffffffffffffffull;
    v->what = (int)(~v->pending >> 56);
    f(v);
}

/* Elements of one or two arrays (NULL: 0). */
struct ddp__verdict_values {
    const float *a, *b;

    __device__ void operator()(ddp_cuda_verdict *v) const
    {
        v->value[0] = a ? a[v->at] : 0;
        v->value[1] = b ? b[v->at] : 0;
    }
};

static inline __device__ uint32_t ddp__magnitude(float x)
{
    return __float_as_uint(x) & DDP__MAGNITUDE;
}

/* 1: v is not finite, or x is and x + v is not. */
static inline __device__ int ddp__sum_spoils(float x, float v)
{
    return ddp__magnitude(v) >= DDP__INFINITE ||
           (ddp__magnitude(x + v) >= DDP__INFINITE && ddp__magnitude(x) < DDP__INFINITE);
}

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
    case DDP__SAYS_NOTHING: return DDP_OK;
    case DDP__SAYS_NAN: return ddp__found_nan(v.at, err);
    case DDP__SAYS_NO_LEVEL:
        return ddp__fail(err, DDP_NUMERIC, "x[%llu] = %g has no level; only finite numbers can be "
                         "quantised", v.at, a);
    case DDP__SAYS_NOT_FINITE:
        return ddp__fail(err, DDP_NUMERIC, "element %llu: gradient %g and parameter %g; both must "
                         "be finite", v.at, a, b);
    case DDP__SAYS_INDEX:
        return ddp__fail(err, DDP_ARG, "ddp_cuda_feedback_keep: index[%llu] = %llu is not below "
                         "the number of elements", v.at, v.number);
    case DDP__SAYS_HEAD:
        return ddp__fail(err, DDP_FORMAT, "the message's header is not that of a quantised message "
                         "of this packing and number of elements");
    case DDP__SAYS_HALF:
        return ddp__fail(err, DDP_FORMAT, "the half byte after the last element is not 8");
    case DDP__SAYS_LOW:
        return ddp__fail(err, DDP_FORMAT, "element %llu has the level %g; levels begin at %g", v.at,
                         a, a + 1);
    case DDP__SAYS_SCALE:
        return ddp__fail(err, DDP_FORMAT, "the scale of block %llu is %g; it must be finite and "
                         ">= 0", v.at, a);
    default:
        return ddp__fail(err, DDP_NUMERIC, "x[%llu] = %g %s %g would not be a finite number; a "
                         "gradient has diverged: leave this step out", v.at, a,
                         v.what == DDP__SAYS_DIFFERENCE ? "-" : "+", b);
    }
}

#endif /* DDP_CUDA_VERDICT_CUH */
