/* Compression of arrays that lie on a GPU: what compress/topk.h, quantise.h and feedback.h do, with
 * the same bits. */
#ifndef DDP_CUDA_COMPRESS_CUH
#define DDP_CUDA_COMPRESS_CUH

#include "compress/topk.h"
#include "compress/wire.h"

/* What the data itself showed to be wrong: the first thing found by the calls that were given this
 * verdict. It lies in device memory and starts as zeros; the fields are the library's. */
typedef struct ddp_cuda_verdict {
    unsigned long long pending, at, number;
    float value[2];
    int what;
    int unused;
} ddp_cuda_verdict;

extern "C" {

/* All calls below queue work on stream (a cudaStream_t, NULL = the default stream of the current
 * device) and return at once. Arrays are device memory, of floats in multiples of 4 bytes, of
 * float32 in every number mode, and stay the caller's; nothing overlaps. What is wrong with the
 * arguments is returned; a NaN or a damaged message is found later, on the device: then the verdict
 * (may not be NULL) says so, that call and all later ones with the same verdict write nothing, and
 * the host is never waited for. Several calls of one step can share a verdict.
 * From any thread, one verdict and scratch on one stream at a time. Errors: DDP_ARG; DDP_FAILED
 * where a kernel cannot be launched. */

/* ddp_cuda_verdict_read - waits for stream, then says what the verdict holds: DDP_OK, or the code
 * and the sentence that the call of the same name without cuda_ gives on the CPU. */
DDP_API ddp_status ddp_cuda_verdict_read(const ddp_cuda_verdict *verdict, void *stream,
                                         ddp_error *err);

/* ddp_cuda_topk - as ddp_topk: the same set of indexes whatever the ties, ascending, and their
 * values (value may be NULL). With k of ddp_keep_count or ddp_adatopk it is FusionLLM's AdaTopK.
 *
 *   scratch  ddp_cuda_topk_scratch(n, k) bytes of device memory, aligned to 16
 *
 * Method: a histogram of the first 11 bits of the magnitudes gives a threshold, and one more read
 * collects what reaches it, 2 reads in all, the rest is done on what was collected. Where that is
 * more than fits (many elements of one binade eighth, or ties) 21 or all 31 bits are counted first:
 * at most 4 reads of the array. */
DDP_API ddp_status ddp_cuda_topk(const float *x, size_t n, size_t k, void *scratch,
                                 size_t scratch_bytes, uint64_t *index, float *value,
                                 ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_topk_scratch - bytes: about 24 k + 5 MB. 0 if k is not in 1..n. Pure. */
DDP_API size_t ddp_cuda_topk_scratch(size_t n, size_t k);

/* ddp_cuda_feedback_add, _keep - as ddp_feedback_add and ddp_feedback_keep; index is an array of
 * ddp_cuda_topk. */
DDP_API ddp_status ddp_cuda_feedback_add(float *residual, const float *gradient, size_t n,
                                         ddp_cuda_verdict *verdict, void *stream, ddp_error *err);
DDP_API ddp_status ddp_cuda_feedback_keep(float *residual, size_t n, const uint64_t *index,
                                          size_t k, ddp_cuda_verdict *verdict, void *stream,
                                          ddp_error *err);

/* ddp_cuda_pack_quantised - as ddp_pack_quantised: the same bytes, in device memory. *bytes is set
 * at once. out is aligned to 4. */
DDP_API ddp_status ddp_cuda_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out,
                                           size_t capacity, size_t *bytes,
                                           ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_unpack_store, _add, ddp_cuda_feedback_subtract - as the calls without cuda_, of a
 * message of packing int8 or int4 for n elements that lies in device memory, aligned to 4. */
DDP_API ddp_status ddp_cuda_unpack_store(ddp_packing packing, const void *message, size_t bytes,
                                         float *x, size_t n, ddp_cuda_verdict *verdict,
                                         void *stream, ddp_error *err);
DDP_API ddp_status ddp_cuda_unpack_add(ddp_packing packing, const void *message, size_t bytes,
                                       float *x, size_t n, ddp_cuda_verdict *verdict, void *stream,
                                       ddp_error *err);
DDP_API ddp_status ddp_cuda_feedback_subtract(ddp_packing packing, const void *message,
                                              size_t bytes, float *residual, size_t n,
                                              ddp_cuda_verdict *verdict, void *stream,
                                              ddp_error *err);

/* ddp_cuda_osp_importance - as ddp_osp_importance, the same bits; out is one double of device
 * memory, scratch ddp_cuda_osp_scratch(n) bytes, aligned to 8. */
DDP_API ddp_status ddp_cuda_osp_importance(const float *gradient, const float *parameter, size_t n,
                                           int mean, void *scratch, size_t scratch_bytes,
                                           double *out, ddp_cuda_verdict *verdict, void *stream,
                                           ddp_error *err);
DDP_API size_t ddp_cuda_osp_scratch(size_t n); /* 8 bytes for every 4096 elements. Pure. */

} /* extern "C" */

#endif /* DDP_CUDA_COMPRESS_CUH */
