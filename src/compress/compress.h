/* Compressed gradients on plain arrays: messages of kept elements with their indexes, of dense and of
 * quantised arrays; error feedback, so that what a message left out is sent later; which elements travel: the
 * k largest, or k drawn at random; and how many on which link: AdaTopK. */
#pragma once

#include "base/status.h"

/* ---- messages ---- */

/* A message is a header of 24 bytes (magic "DDPC", u8 version, u8 packing, u16 zero, u64 n, u64 k)
 * and a payload, all little-endian. Elements kept of n:
 *   i64    k u64 indexes, k float32 values      12 bytes each, the paper's format
 *   i32    k u32 indexes, k float32 values       8 bytes each, n <= 2^32
 *   delta  k float32 values, then k gaps: 7 bits a byte, lowest first, top bit = more follow; the
 *          first is the first index, the others index - previous index - 1
 *          5.3 bytes each where 1 % is kept evenly, 4 to 14 at the extremes
 * All elements (k = n):
 *   dense  n float32 values
 *   int8, int4, e3m0  see ddp_pack_quantised */
typedef enum ddp_packing {
    DDP_PACK_DEFAULT, /* delta, everywhere */
    DDP_PACK_I64,
    DDP_PACK_I32,
    DDP_PACK_DELTA,
    DDP_PACK_DENSE,
    DDP_PACK_INT8,
    DDP_PACK_INT4,
    DDP_PACK_E3M0
} ddp_packing;

#define DDP_PACK_HEAD 24 /* bytes of the header */

/* What a message says of itself. */
typedef struct ddp_packed {
    ddp_packing packing;
    uint64_t n, k; /* elements of the array, elements in the message */
} ddp_packed;

/* ddp_pack_bound - the most bytes that a message of k elements out of n can have, header
 * included; exact for all packings but delta. k counts only where elements are kept.
 * 0 if k is not in 1..n, n is too large for i32, or the size does not fit a size_t. Pure. */
DDP_API size_t ddp_pack_bound(ddp_packing packing, size_t n, size_t k);

/* ddp_pack_sparse - k elements as a message of packing i64, i32 or delta.
 *   index  [k] strictly ascending, below n, as ddp_topk gives them; n at most SIZE_MAX / 32
 *   value  [k] infinities are allowed, NaN is an error
 *   out    capacity bytes, which overlap no input; no more than *bytes of them are written
 * ddp_pack_dense - all of x[0..n-1]; NaN is an error that names its index. Both: no allocation, safe from any
 * thread, *bytes and out untouched on error. Errors: DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_pack_sparse(ddp_packing packing, size_t n, size_t k, const uint64_t *index,
                                   const float *value, void *out, size_t capacity, size_t *bytes,
                                   ddp_error *err);
DDP_API ddp_status ddp_pack_dense(const float *x, size_t n, void *out, size_t capacity, size_t *bytes,
                                  ddp_error *err);

/* ---- block quantisation to 8 or 4 bits ---- */

#define DDP_QUANTISE_BLOCK 64 /* elements that share a scale */

/* ddp_pack_quantised - x[0..n-1] as a message of packing DDP_PACK_INT8, DDP_PACK_INT4 or DDP_PACK_E3M0.
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
 * E3M0 has the size of int4: s = the largest |x| of the block, or 0 below 2^-100; a half byte is e, and 8
 * more for what is below 0: s / 2^(7 - e), or 0 where e is 0, whichever is nearest, halves away from 0.
 * Products are exact.
 *
 *   out  capacity bytes, of which ddp_pack_bound(packing, n, n) are written
 * Received by ddp_unpack_store or ddp_unpack_add. No allocation, safe from any thread; outputs
 * are untouched on error. Errors: DDP_ARG; DDP_NUMERIC names the first NaN or infinite element. */
DDP_API ddp_status ddp_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out,
                                      size_t capacity, size_t *bytes, ddp_error *err);

/* ---- receiving ---- */

/* ddp_packed_read - checks the header and that the sizes agree; the payload is not looked at.
 * Needs no more than the first 24 bytes and the total length. Errors: DDP_ARG, DDP_FORMAT. */
DDP_API ddp_status ddp_packed_read(const void *message, size_t bytes, ddp_packed *out, ddp_error *err);

/* ddp_unpack_store - x becomes what the message says, 0 where nothing was kept.
 * ddp_unpack_add - adds it to x: x[index] += value.
 *
 *   message  bytes bytes from anywhere: all of it is validated before x is touched. Refused are
 *            another n than the receiver's, indexes that are out of range or not strictly
 *            ascending, too few or too many bytes, NaN, scales that are not finite
 *   x        [n] does not overlap the message. ddp_unpack_add refuses infinities, and sums that
 *            would make a finite element of x infinite: inf - inf of two ranks would be NaN.
 *            An element that was infinite or NaN stays so. ddp_unpack_store stores infinities
 * Both round each product and sum once (no fused multiply-add), so that all replicas agree. No allocation,
 * safe from any thread. Errors: DDP_ARG, DDP_FORMAT; DDP_NUMERIC names index and values. On error x is
 * untouched. */
DDP_API ddp_status ddp_unpack_store(const void *message, size_t bytes, float *x, size_t n, ddp_error *err);
DDP_API ddp_status ddp_unpack_add(const void *message, size_t bytes, float *x, size_t n, ddp_error *err);

/* Names as the programs spell them; DEFAULT gives the default's name, a bad value "unknown".
 * The inverse fails with DDP_ARG and a sentence that lists the names, or if out is NULL. */
DDP_API const char *ddp_packing_name(ddp_packing packing);
DDP_API ddp_status ddp_packing_named(const char *name, ddp_packing *out, ddp_error *err);

/* ---- error feedback ---- */

/* The residual is an array of the gradient's size that starts as zeros and belongs to the
 * training state: a checkpoint without it loses gradient. Each step:
 *     ddp_feedback_add(residual, gradient, n, err)        residual += gradient
 *     ddp_topk(residual, ...) and ddp_pack_sparse(...)    or any other message
 *     ddp_feedback_keep(residual, n, index, k, err)       0 where an element was sent, or
 *     ddp_feedback_subtract(message, ...)                 residual -= what the message delivers
 * With ddp_feedback_keep every element is, bit for bit, either in the message or in the residual. With
 * ddp_feedback_subtract of the message made of it, quantised ones too, delivered + residual is what there
 * was, but for the sign of a zero. Nothing is rounded away: what is received for x, if not 0, is between x /
 * 2 and 2 x (|x - q s| <= s / 2), and the difference of two such floats is a float (Sterbenz).
 *
 * Nothing finite ever becomes infinite or NaN: a gradient or message that is not finite, and a sum that would
 * not be, are refused with the index and the values. A step may thus be left out (as loss scaling does)
 * without harm to the residual. ddp_feedback_add reads the gradient twice for that.
 *
 * Arrays and message do not overlap. No allocation; safe from any thread. On error the residual is untouched.
 * Errors: DDP_ARG (NULL, an index out of range), DDP_NUMERIC, DDP_FORMAT (as ddp_unpack_add). */
DDP_API ddp_status ddp_feedback_add(float *residual, const float *gradient, size_t n, ddp_error *err);
DDP_API ddp_status ddp_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                     ddp_error *err);
DDP_API ddp_status ddp_feedback_subtract(const void *message, size_t bytes, float *residual, size_t n,
                                         ddp_error *err);

/* ---- the largest of each chunk, in 2 bits ---- */

#define DDP_SPARSE_CHUNK 4096 /* elements that share a scale */

/* Of each chunk of 4096 elements the `keep` largest (of a shorter last one their share, rounded up) as a
 * sign, one of two levels u and 2 u, and an index of 12 bits: 14 bits each, and u as a float32 for a chunk.
 * 64 of them make 116 bytes, 141 times fewer than float32.
 *
 * ddp_sparse_keep - keep for a fraction; 0 = 1/64. ddp_sparse_bytes - of a message of n elements, always the
 * same; 0
 *   where keep is not in 1..4096. ddp_sparse_scratch - bytes that packing needs, aligned to 8.
 * ddp_sparse_pack - moves what the message says from x to it: x keeps the rest, exactly. Infinities and NaN
 * are
 *   refused with their index before anything changes.
 * ddp_sparse_add - x += what a message says; all of it is validated before.
 * No allocation; safe from any thread. Errors: DDP_ARG, DDP_NUMERIC, DDP_FORMAT. */
DDP_API int ddp_sparse_keep(double fraction);
DDP_API size_t ddp_sparse_bytes(size_t n, int keep);
DDP_API size_t ddp_sparse_scratch(int keep);
DDP_API ddp_status ddp_sparse_pack(float *x, size_t n, int keep, void *out, size_t capacity, void *scratch,
                                   size_t scratch_bytes, ddp_error *err);
DDP_API ddp_status ddp_sparse_add(const void *message, size_t bytes, int keep, float *x, size_t n,
                                  ddp_error *err);

/* ---- the k largest, and k at random ---- */

/* ddp_topk - the k elements of x[0..n-1] that are largest by magnitude, exactly.
 *
 *   k        1..n
 *   scratch  ddp_topk_scratch(n, k) bytes, aligned to 8; one per thread, reusable at once
 *   index    [k] receives their positions, ascending
 *   value    [k] receives x[index[i]], bit for bit; NULL if not wanted
 * None of the four overlaps another.
 *
 * The set is that of a full sort by magnitude, descending, then by index, ascending: of equal
 * magnitudes the lowest indexes are kept, 0.0 and -0.0 are equal, infinities are largest. A NaN
 * anywhere is an error that names the first one; it is never selected.
 *
 * Method: a sample of the magnitudes' bits gives a threshold that a few more than k elements reach; one pass
 * collects those, 16 at a time; a radix select of the collected finds the k-th. Where the threshold was too
 * low the collection is cut back to its own k largest whenever it is full, which also raises the threshold;
 * where it was too high the pass is run again. So the sample decides the time, which is O(n) whatever the
 * data, and never the result.
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.1, which leaves ties and NaN open. Allocates nothing; safe
 * from any thread. Outputs are untouched on error. Errors: DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_topk(const float *x, size_t n, size_t k, void *scratch, size_t scratch_bytes,
                            uint64_t *index, float *value, ddp_error *err);

/* ddp_topk_scratch - bytes that ddp_topk needs: about 15 k + 0.8 MB, at most 12 n + 32 KiB.
 * 0 if k is not in 1..n or the size does not fit a size_t. Grows with k and with n. Pure. */
DDP_API size_t ddp_topk_scratch(size_t n, size_t k);

/* ddp_randomk - k positions drawn uniformly without replacement, and their values.
 *
 *   seed     the same seed (of the step and layer, say) gives the same positions on every platform
 *   scratch  ddp_randomk_scratch(n) bytes, aligned to 8
 *   index, value  as in ddp_topk, overlaps neither
 *
 * Values are not scaled by n/k: with error feedback they must not be, without it the receiver may. Floyd's
 * algorithm on a bitmap: O(k + n / 64). A NaN at a drawn position is an error that names the first one;
 * others are not looked at. Allocates nothing; safe from any thread. Outputs are untouched on error. Errors:
 * DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_randomk(const float *x, size_t n, size_t k, uint64_t seed, void *scratch,
                               size_t scratch_bytes, uint64_t *index, float *value, ddp_error *err);

/* ddp_randomk_scratch - one bit per element, in whole words of 8 bytes; 0 if n is 0. */
DDP_API size_t ddp_randomk_scratch(size_t n);

/* ---- how much each link of a pipeline compresses: AdaTopK and the uniform rule ---- */

typedef struct ddp_adatopk_options {
    double ratio;        /* r >= 1: what the user asks for */
    double factor;       /* the 3 of Eq. 7; 0 = 3 */
    ddp_packing packing; /* i64, i32 or delta; DEFAULT = delta, as everywhere */
    int uniform;         /* 1 = every link keeps n / r, whatever its time; factor is not used */
} ddp_adatopk_options;

typedef struct ddp_link_compression {
    double ratio;  /* r_i >= 1 */
    size_t keep;   /* k_i elements of the message, n if dense */
    int dense;     /* 1 = send all: the compressed message would be no smaller */
    size_t bytes;  /* of the message with its header; for delta the upper bound */
    double link_s; /* predicted time: R_i times payload over dense payload */
} ddp_link_compression;

/* ddp_adatopk - ratio, k and message size of each link.
 *
 *   link_s [links]  R_i: seconds that the uncompressed message of link i takes (one number per
 *                   receiver), without latency, which compression does not shorten
 *   count  [links]  floats of that message, at least 1
 *   out    [links]  untouched on error
 *
 * r_i = max(1, factor r R_i / max R) (Eq. 7), all 1 if every R is 0; k_i = ceil(count / r_i). With factor 3
 * and i64, the paper's, the slowest link's message is 1/r of dense (the factor pays for an index of 8 bytes
 * beside a value of 4), and every compressed link takes max R / r: link times become equal. The packing
 * changes bytes and link_s, never which elements are kept: with delta, the default, they are the paper's at
 * half its bytes. To send 1/r of dense with it, give the factor 1.5, with i32 2. Decisions where the paper is
 * silent or wrong: between r_i = 1 and factor the printed formula sends more bytes than dense, so such links
 * send dense; Eq. 8 has the factor 3 also on links that are not compressed and divides computing time by r:
 * link_s does neither, for use in Eq. 3. The uniform rule with r = 100 and i64 is 33.3 times smaller, as the
 * caption of Figure 10 says.
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.2, Eq. 7 and 8. O(links), no allocation, safe from any
 * thread. Errors: DDP_ARG (also if factor times ratio overflows), DDP_NUMERIC. */
DDP_API ddp_status ddp_adatopk(const double *link_s, const size_t *count, int links,
                               const ddp_adatopk_options *o, ddp_link_compression *out, ddp_error *err);

/* ddp_keep_count - max(1, ceil(n / ratio)), at most n; n for a ratio below 1 or NaN. Pure. */
DDP_API size_t ddp_keep_count(size_t n, double ratio);
