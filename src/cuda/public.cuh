/* The public functions of the GPU companion: ddp_cuda, the backend of a context on a GPU, and compression of
 * arrays in device memory. */
#pragma once

#include "base/backend.h"
#include "compress/compress.h"

/* Number mode of the GPU. Master weights, gradients of parameters, optimizer state and sums are float32 in
 * every mode. */
typedef enum ddp_cuda_numbers {
    DDP_CUDA_F32,  /* float32 throughout */
    DDP_CUDA_TF32, /* float32, matrix products with TF32 inputs */
    DDP_CUDA_BF16  /* activations, their gradients and copies of the weights in bfloat16 */
} ddp_cuda_numbers;

/* ddp_cuda - returns the backend of contexts on a GPU. ddp_config.backend points to it, until ddp_close.
 *
 *   numbers  number format of the computation
 *   device   number of the GPU in CUDA's order, or -1 if the ranks of a machine share its GPUs
 *
 * The program's own stream goes into ddp_config.device.cuda_stream. ddp_open reports errors of the device.
 * Pure and safe from any thread. */
DDP_API ddp_backend ddp_cuda(ddp_cuda_numbers numbers, int device);

/* ---- compression of arrays in device memory, bit-identical to compress/compress.h ---- */

/* The first fault that calls with this verdict found in the data. It is in device memory and starts as zeros.
 * Only the library uses its fields. */
typedef struct ddp_cuda_verdict {
    unsigned long long pending, at, number;
    float value[2];
    int what, unused;
} ddp_cuda_verdict;

/* All functions below, except ddp_cuda_verdict_read and ddp_cuda_topk_scratch, queue work on `stream` (a
 * cudaStream_t, NULL = the default stream of the current device) and return at once. Arrays of floats are
 * float32 in device memory, aligned to 4 bytes. They are borrowed until the work is done, and do not overlap.
 * Faults of the arguments are returned. Faults of the data, such as a NaN or a damaged message, are found
 * later, on the device, and stored in `verdict` (not NULL). That call and all later calls with the same
 * verdict then leave their outputs unchanged. No call waits for the device. Several calls of one step can
 * share a verdict. Safe from any thread, with one verdict and scratch on one stream at a time. */

/* ddp_cuda_verdict_read - waits for stream and returns what the verdict contains: DDP_OK, or the code and the
 * message that the function of the same name without cuda_ gives on the CPU. Safe from any thread. Errors:
 * DDP_NUMERIC for a NaN, an infinity or a sum that is not finite; DDP_FORMAT for a damaged message; DDP_ARG
 * for an index out of range or a NULL verdict; DDP_FAILED from CUDA. */
DDP_API ddp_status ddp_cuda_verdict_read(const ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_topk - selects the k elements of x[0..n-1] with the largest magnitudes, exactly: the same indexes
 * as ddp_topk for any ties, ascending, and their values.
 *
 *   x        [n] device memory
 *   k        1..n, from ddp_keep_count or ddp_adatopk for FusionLLM's AdaTopK
 *   scratch  ddp_cuda_topk_scratch(n, k) bytes of device memory, aligned to 16
 *   index    [k] device memory, receives the positions
 *   value    [k] device memory, receives the values. May be NULL.
 *
 * Method: a histogram of the first 11 bits of all magnitudes gives a threshold, and a second read collects
 * the elements above it. The rest of the work is done on these elements. If too many elements reach the
 * threshold (many in one eighth of a binade, or ties), 21 or all 31 bits are counted first: at most 4 reads
 * of the array. Source: FusionLLM (arXiv:2410.12707) section 5.1. Errors: DDP_ARG, DDP_FAILED if a kernel
 * cannot be launched, or the verdict for a NaN. */
DDP_API ddp_status ddp_cuda_topk(const float *x, size_t n, size_t k, void *scratch, size_t scratch_bytes,
                                 uint64_t *index, float *value, ddp_cuda_verdict *verdict, void *stream,
                                 ddp_error *err);

/* ddp_cuda_topk_scratch - returns the size, in bytes, of the scratch memory that ddp_cuda_topk needs: about
 * 24 k + 5 MB, or 0 if k is not in 1..n. Pure and safe from any thread. */
DDP_API size_t ddp_cuda_topk_scratch(size_t n, size_t k);

/* ddp_cuda_feedback_add - adds the gradient to the residual: residual[0..n-1] += gradient[0..n-1], both in
 * device memory. Errors: DDP_ARG for NULL, DDP_FAILED if a kernel cannot be launched, or the verdict for a
 * value or a sum that is not finite. */
DDP_API ddp_status ddp_cuda_feedback_add(float *residual, const float *gradient, size_t n,
                                         ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_feedback_keep - sets residual[index[0..k-1]], the elements that were sent, to 0. residual [n] and
 * index [k] are in device memory. index is from ddp_cuda_topk. Errors: DDP_ARG for NULL, DDP_FAILED if a
 * kernel cannot be launched, or the verdict for an index out of range. */
DDP_API ddp_status ddp_cuda_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                          ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_pack_quantised - writes x[0..n-1] as a message with packing int8 or int4, the same bytes as
 * ddp_pack_quantised.
 *
 *   out    `capacity` bytes of device memory, aligned to 4
 *   bytes  receives the size of the message, at once
 *
 * Errors: DDP_ARG, DDP_FAILED if a kernel cannot be launched, or the verdict for a NaN or an infinity. */
DDP_API ddp_status ddp_cuda_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out,
                                           size_t capacity, size_t *bytes, ddp_cuda_verdict *verdict,
                                           void *stream, ddp_error *err);

/* ddp_cuda_unpack_store - decodes a message of packing int8 or int4 into x[0..n-1]. message: `bytes` bytes of
 * device memory, aligned to 4. Errors: DDP_ARG, also for a length that does not fit n; DDP_FAILED if a kernel
 * cannot be launched; the verdict for a damaged message. */
DDP_API ddp_status ddp_cuda_unpack_store(ddp_packing packing, const void *message, size_t bytes, float *x,
                                         size_t n, ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_unpack_add - adds the decoded values of a message of packing int8 or int4 to x[0..n-1]. message:
 * `bytes` bytes of device memory, aligned to 4. Errors: DDP_ARG, also for a length that does not fit n;
 * DDP_FAILED if a kernel cannot be launched; the verdict for a damaged message or a sum that is not
 * finite. */
DDP_API ddp_status ddp_cuda_unpack_add(ddp_packing packing, const void *message, size_t bytes, float *x,
                                       size_t n, ddp_cuda_verdict *verdict, void *stream, ddp_error *err);

/* ddp_cuda_feedback_subtract - subtracts the decoded values of a message of packing int8 or int4 from
 * residual[0..n-1]. message: `bytes` bytes of device memory, aligned to 4. Errors: DDP_ARG, also for a length
 * that does not fit n; DDP_FAILED if a kernel cannot be launched; the verdict for a damaged message or a
 * difference that is not finite. */
DDP_API ddp_status ddp_cuda_feedback_subtract(ddp_packing packing, const void *message, size_t bytes,
                                              float *residual, size_t n, ddp_cuda_verdict *verdict,
                                              void *stream, ddp_error *err);
