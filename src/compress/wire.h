/* Messages of the compressors: kept elements with their indexes, dense and quantised arrays. */
#ifndef DDP_COMPRESS_WIRE_H
#define DDP_COMPRESS_WIRE_H

#include "base/status.h"

/* A message is a header of 24 bytes (magic "DDPC", u8 version, u8 packing, u16 zero, u64 n, u64 k)
 * and a payload, all little-endian. Elements kept of n:
 *   i64    k u64 indexes, k float32 values      12 bytes each, the paper's format
 *   i32    k u32 indexes, k float32 values       8 bytes each, n <= 2^32
 *   delta  k float32 values, then k gaps: 7 bits a byte, lowest first, top bit = more follow; the
 *          first is the first index, the others index - previous index - 1
 *          5.3 bytes each where 1 % is kept evenly, 4 to 14 at the extremes
 * All elements (k = n):
 *   dense  n float32 values
 *   int8, int4  see compress/quantise.h */
typedef enum ddp_packing {
    DDP_PACK_DEFAULT, /* delta, everywhere */
    DDP_PACK_I64,
    DDP_PACK_I32,
    DDP_PACK_DELTA,
    DDP_PACK_DENSE,
    DDP_PACK_INT8,
    DDP_PACK_INT4
} ddp_packing;

#define DDP_PACK_HEAD 24 /* bytes of the header */

/* What a message says of itself. */
typedef struct ddp_packed {
    ddp_packing packing;
    uint64_t    n, k; /* elements of the array, elements in the message */
} ddp_packed;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_pack_bound - the most bytes that a message of k elements out of n can have, header
 * included; exact for all packings but delta. k counts only where elements are kept.
 * 0 if k is not in 1..n, n is too large for i32, or the size does not fit a size_t. Pure. */
DDP_API size_t ddp_pack_bound(ddp_packing packing, size_t n, size_t k);

/* ddp_pack_sparse - k elements as a message of packing i64, i32 or delta.
 *   index  [k] strictly ascending, below n, as ddp_topk gives them; n at most SIZE_MAX / 32
 *   value  [k] infinities are allowed, NaN is an error
 *   out    capacity bytes, which overlap no input; no more than *bytes of them are written
 * ddp_pack_dense - all of x[0..n-1]; NaN is an error that names its index.
 * Both: no allocation, safe from any thread, *bytes and out untouched on error.
 * Errors: DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_pack_sparse(ddp_packing packing, size_t n, size_t k, const uint64_t *index,
                                   const float *value, void *out, size_t capacity, size_t *bytes,
                                   ddp_error *err);
DDP_API ddp_status ddp_pack_dense(const float *x, size_t n, void *out, size_t capacity,
                                  size_t *bytes, ddp_error *err);

/* ddp_packed_read - checks the header and that the sizes agree; the payload is not looked at.
 * Needs no more than the first 24 bytes and the total length. Errors: DDP_ARG, DDP_FORMAT. */
DDP_API ddp_status ddp_packed_read(const void *message, size_t bytes, ddp_packed *out,
                                   ddp_error *err);

/* ddp_unpack_store - x becomes what the message says, 0 where nothing was kept.
 * ddp_unpack_add - adds it to x: x[index] += value.
 *
 *   message  bytes bytes from anywhere: all of it is validated before x is touched. Refused are
 *            another n than the receiver's, indexes that are out of range or not strictly
 *            ascending, too few or too many bytes, NaN, scales that are not finite
 *   x        [n] does not overlap the message. ddp_unpack_add refuses infinities, and sums that
 *            would make a finite element of x infinite: inf - inf of two ranks would be NaN.
 *            An element that was infinite or NaN stays so. ddp_unpack_store stores infinities
 * Both round each product and sum once (no fused multiply-add), so that all replicas agree.
 * No allocation, safe from any thread. Errors: DDP_ARG, DDP_FORMAT; DDP_NUMERIC names index and
 * values. On error x is untouched. */
DDP_API ddp_status ddp_unpack_store(const void *message, size_t bytes, float *x, size_t n,
                                    ddp_error *err);
DDP_API ddp_status ddp_unpack_add(const void *message, size_t bytes, float *x, size_t n,
                                  ddp_error *err);

/* Names as the programs spell them; DEFAULT gives the default's name, a bad value "unknown".
 * The inverse fails with DDP_ARG and a sentence that lists the names, or if out is NULL. */
DDP_API const char *ddp_packing_name(ddp_packing packing);
DDP_API ddp_status  ddp_packing_named(const char *name, ddp_packing *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_COMPRESS_WIRE_H */
