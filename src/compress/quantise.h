/* Block quantisation to 8 or 4 bits. */
#ifndef DDP_COMPRESS_QUANTISE_H
#define DDP_COMPRESS_QUANTISE_H

#include "compress/wire.h"

#define DDP_QUANTISE_BLOCK 64 /* elements that share a scale */

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_pack_quantised - x[0..n-1] as a message of packing DDP_PACK_INT8 or DDP_PACK_INT4.
 *
 * Payload: one float32 scale per block of 64 elements, then n signed bytes, or n/2 bytes (rounded
 * up) with two elements each, the even one in the low half, as value + 8. That is 1.0625 or 0.5625
 * bytes per element. The largest level is Q = 127 or 7:
 *     s = the smallest float for which Q s, rounded to a float, is at least the largest |x| of the
 *         block (so that a block of denormals works too), one float less where Q s would overflow
 *     q = x / s rounded to the nearest integer, halves away from 0;   received: q s, rounded once
 * Hence |x - q s| <= s / 2, exactly, and rounding q s to a float adds at most half its last place.
 * What was received has the same s and q when it is quantised again, unless s is denormal. A block
 * of zeros has s = 0. Signs of zeros are lost.
 *
 *   out  capacity bytes, of which ddp_pack_bound(packing, n, n) are written
 * Received by ddp_unpack_store or ddp_unpack_add. No allocation, safe from any thread; outputs
 * are untouched on error. Errors: DDP_ARG; DDP_NUMERIC names the first NaN or infinite element. */
DDP_API ddp_status ddp_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out,
                                      size_t capacity, size_t *bytes, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_COMPRESS_QUANTISE_H */
