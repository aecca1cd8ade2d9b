/* What a program calls: ddp_cuda, the backend of a context on a GPU, and compression of arrays that lie on
 * one. */
#pragma once

#include "base/backend.h"
#include "compress/compress.h"

/* How the GPU computes. Master weights, gradients of parameters, optimizer state and sums are float32 in
 * every mode. */
typedef enum ddp_cuda_numbers {
    DDP_CUDA_F32,  /* float32 throughout */
    DDP_CUDA_TF32, /* float32, matrix products with TF32 inputs */
    DDP_CUDA_BF16  /* activations, their gradients and copies of the weights in bfloat16 */
} ddp_cuda_numbers;

/* ddp_cuda - what ddp_config.backend points at (until ddp_close) for contexts on a GPU: device as
 * CUDA counts them, or -1: the ranks of a machine share its GPUs out. The program's own stream goes
 * into ddp_config.device.cuda_stream. Errors come from ddp_open. Pure. */
DDP_API ddp_backend ddp_cuda(ddp_cuda_numbers numbers, int device);

/* ---- compression: what compress/compress.h does, with the same bits ---- */

/* What the data itself showed to be wrong: the first thing found by the calls that were given this
 * verdict. It lies in device memory and starts as zeros; the fields are the library's. */
typedef struct ddp_cuda_verdict {
    unsigned long long pending, at, number;
    float value[2];
    int what, unused;
} ddp_cuda_verdict;

/* All calls below queue work on stream (a cudaStream_t, NULL = the default stream of the current device) and
 * return at once. Arrays are device memory, of floats in multiples of 4 bytes, of float32 in every number
 * mode, and stay the caller's; nothing overlaps. What is wrong with the arguments is returned; a NaN or a
 * damaged message is found later, on the device: then the verdict (may not be NULL) says so, that call and
 * all later ones with the same verdict write nothing, and the host is never waited for. Several calls of one
 * step can share a verdict. From any thread, one verdict and scratch on one stream at a time. Errors:
 * DDP_ARG; DDP_FAILED where a kernel cannot be launched. */

/* ddp_cuda_verdict_read - waits for stream, then says what the verdict holds: DDP_OK, or the code
 * and the sentence that the call of the same name without cuda_ gives on the CPU. */
DDP_API ddp_status ddp_cuda_verdict_read(const ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_topk - as ddp_topk: the same set of indexes whatever the ties, ascending, and their
 * values (value may be NULL). With k of ddp_keep_count or ddp_adatopk it is FusionLLM's AdaTopK.
 *
 *   scratch  ddp_cuda_topk_scratch(n, k) bytes of device memory, aligned to 16
 *
 * Method: a histogram of the first 11 bits of the magnitudes gives a threshold, and one more read collects
 * what reaches it, 2 reads in all, the rest is done on what was collected. Where that is more than fits (many
 * elements of one binade eighth, or ties) 21 or all 31 bits are counted first: at most 4 reads of the
 * array. */
DDP_API ddp_status ddp_cuda_topk(const float *x, size_t n, size_t k, void *scratch, size_t scratch_bytes,
                                 uint64_t *index, float *value, ddp_cuda_verdict *verdict, void *stream,
                                 ddp_error *err);

/* ddp_cuda_topk_scratch - bytes: about 24 k + 5 MB. 0 if k is not in 1..n. Pure. */
DDP_API size_t ddp_cuda_topk_scratch(size_t n, size_t k);

/* ddp_cuda_feedback_add, _keep - as ddp_feedback_add and ddp_feedback_keep; index is an array of
 * ddp_cuda_topk. */
DDP_API ddp_status ddp_cuda_feedback_add(float *residual, const float *gradient, size_t n,
                                         ddp_cuda_verdict *verdict, void *stream, ddp_error *err);
DDP_API ddp_status ddp_cuda_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                          ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_pack_quantised - as ddp_pack_quantised: the same bytes, in device memory. *bytes is set
 * at once. out is aligned to 4. */
DDP_API ddp_status ddp_cuda_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out,
                                           size_t capacity, size_t *bytes, ddp_cuda_verdict *verdict,
                                           void *stream, ddp_error *err);

/* ddp_cuda_unpack_store, _add, ddp_cuda_feedback_subtract - as the calls without cuda_, of a
 * message of packing int8 or int4 for n elements that lies in device memory, aligned to 4. */
DDP_API ddp_status ddp_cuda_unpack_store(ddp_packing packing, const void *message, size_t bytes, float *x,
                                         size_t n, ddp_cuda_verdict *verdict, void *stream, ddp_error *err);
DDP_API ddp_status ddp_cuda_unpack_add(ddp_packing packing, const void *message, size_t bytes, float *x,
                                       size_t n, ddp_cuda_verdict *verdict, void *stream, ddp_error *err);
DDP_API ddp_status ddp_cuda_feedback_subtract(ddp_packing packing, const void *message, size_t bytes,
                                              float *residual, size_t n, ddp_cuda_verdict *verdict,
                                              void *stream, ddp_error *err);
