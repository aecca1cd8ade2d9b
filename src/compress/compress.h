/* Gradient compression on plain arrays: message formats (sparse, dense and quantised), error feedback,
 * selection of elements (top-k and random-k), and the compression ratio of each link (AdaTopK). */
#pragma once

#include "base/status.h"

/* ---- messages ---- */

/* A message is a header of 24 bytes (magic "DDPC", u8 version, u8 packing, u16 zero, u64 n, u64 k) and a
 * payload. All fields are little-endian. n is the length of the array, k the number of elements in the
 * message.
 * Sparse packings carry k of the n elements:
 *   i64    k u64 indexes, then k float32 values: 12 bytes per element, the format of the paper
 *   i32    k u32 indexes, then k float32 values: 8 bytes per element; n <= 2^32
 *   delta  k float32 values, then k gaps as variable-length integers: 7 bits per byte, lowest bits first, top
 *          bit set if another byte follows. The first gap is the first index. Each later gap is index -
 *          previous index - 1. About 5.3 bytes per element if 1 % of the elements is sent and they are evenly
 *          spread, and 4 to 14 in the extremes
 * Full packings carry all elements (k = n):
 *   dense  n float32 values
 *   int8, int4, e3m0  see ddp_pack_quantised */
typedef enum ddp_packing {
    DDP_PACK_DEFAULT, /* the same as delta */
    DDP_PACK_I64,
    DDP_PACK_I32,
    DDP_PACK_DELTA,
    DDP_PACK_DENSE,
    DDP_PACK_INT8,
    DDP_PACK_INT4,
    DDP_PACK_E3M0
} ddp_packing;

#define DDP_PACK_HEAD 24 /* bytes of the header */

/* The contents of a message header. */
typedef struct ddp_packed {
    ddp_packing packing; /* never DDP_PACK_DEFAULT */
    uint64_t n, k;       /* n elements of the array, k elements in the message */
} ddp_packed;

/* ddp_pack_bound - returns the maximum size, in bytes, of a message with k of n elements, header included.
 * The size is exact for every packing except delta. k is used by the sparse packings only. Returns 0 if k is
 * not in 1..n, if n is too large for i32, or if the size does not fit a size_t. Pure. */
DDP_API size_t ddp_pack_bound(ddp_packing packing, size_t n, size_t k);

/* ddp_pack_sparse - writes k elements as a message with packing i64, i32 or delta.
 *   index  [k] strictly ascending and below n, as ddp_topk returns them. n is at most SIZE_MAX / 32.
 *   value  [k] infinities are allowed, NaN is an error
 *   out    buffer of `capacity` bytes that overlaps no input. The function writes at most *bytes of them.
 *   bytes  receives the size of the message
 * Allocates nothing. Safe from any thread. On error *bytes and out are unchanged. Errors: DDP_ARG,
 * DDP_NUMERIC. */
DDP_API ddp_status ddp_pack_sparse(ddp_packing packing, size_t n, size_t k, const uint64_t *index,
                                   const float *value, void *out, size_t capacity, size_t *bytes,
                                   ddp_error *err);

/* ddp_pack_dense - writes all of x[0..n-1] as a message with packing dense.
 *
 *   out    buffer of `capacity` bytes that does not overlap x
 *   bytes  receives the size of the message
 *
 * Allocates nothing. Safe from any thread. On error *bytes and out are unchanged. Errors: DDP_ARG;
 * DDP_NUMERIC for a NaN, with its index. */
DDP_API ddp_status ddp_pack_dense(const float *x, size_t n, void *out, size_t capacity, size_t *bytes,
                                  ddp_error *err);

/* ---- block quantisation to 8 or 4 bits ---- */

#define DDP_QUANTISE_BLOCK 64 /* elements per block. A block has one scale. */

/* ddp_pack_quantised - writes x[0..n-1] as a message with packing DDP_PACK_INT8, DDP_PACK_INT4 or
 * DDP_PACK_E3M0.
 *   out    buffer of `capacity` bytes. The function writes ddp_pack_bound(packing, n, n) of them.
 *   bytes  receives the size of the message
 *
 * The payload starts with one float32 scale s per block of 64 elements. int8 then has n signed bytes. int4
 * has n/2 bytes (rounded up) with two elements each, stored as value + 8, the even element in the low half.
 * This is 1.0625 or 0.5625 bytes per element. The largest level Q is 127 or 7:
 *     s = the smallest float for which Q s, rounded to a float, is at least the largest |x| of the block (so
 *     that blocks of denormals work too). One float less if Q s would overflow
 *     q = x / s rounded to the nearest integer, halves away from 0. The receiver computes q s, rounded once.
 * Hence |x - q s| <= s / 2, exactly, and rounding q s to a float adds at most half a unit in its last place.
 * Quantising the received values again gives the same s and q, unless s is denormal. A block of zeros has s =
 * 0. The sign of a zero is lost.
 *
 * E3M0 has the size of int4. s is the largest |x| of the block, or 0 if that is below 2^-100. A half byte is
 * an exponent e in 0..7, plus 8 if the element is negative. It represents the magnitude s / 2^(7 - e), or 0
 * if e is 0. The nearest magnitude is chosen, halves away from 0. The products are exact.
 *
 * The receiver decodes the message with ddp_unpack_store or ddp_unpack_add. Allocates nothing. Safe from any
 * thread. On error the outputs are unchanged. Errors: DDP_ARG; DDP_NUMERIC, which names the first NaN or
 * infinite element. */
DDP_API ddp_status ddp_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out,
                                      size_t capacity, size_t *bytes, ddp_error *err);

/* ---- receiving ---- */

/* ddp_packed_read - reads a message header, and checks it and the message length against each other. It reads
 * only the first 24 bytes of `message`. `bytes` is the length of the whole message. The payload is not
 * checked. Errors: DDP_ARG, DDP_FORMAT. */
DDP_API ddp_status ddp_packed_read(const void *message, size_t bytes, ddp_packed *out, ddp_error *err);

/* ddp_unpack_store - decodes a message into x. Elements that are not in the message become 0. Infinities are
 * stored.
 *
 *   message  `bytes` bytes from an untrusted source. All of them are validated before x changes. Errors are:
 *            an n that differs from the receiver's, indexes that are out of range or not strictly ascending,
 *            a wrong length, NaN, and scales that are not finite
 *   x        [n] does not overlap the message
 *
 * Allocates nothing. Safe from any thread. On error x is unchanged. Errors: DDP_ARG, DDP_FORMAT. */
DDP_API ddp_status ddp_unpack_store(const void *message, size_t bytes, float *x, size_t n, ddp_error *err);

/* ddp_unpack_add - decodes a message and adds it: x[index] += value. Parameters, memory and threads as in
 * ddp_unpack_store. A message value that is infinite is an error, and so is a sum that would make a finite
 * element of x infinite: inf - inf between two ranks would be NaN. An element of x that was infinite or NaN
 * stays so.
 *
 * This function and ddp_unpack_store round each product and each sum once (no fused multiply-add), so that
 * all replicas compute identical values. On error x is unchanged. Errors: DDP_ARG, DDP_FORMAT; DDP_NUMERIC,
 * which names the index and the values. */
DDP_API ddp_status ddp_unpack_add(const void *message, size_t bytes, float *x, size_t n, ddp_error *err);

/* ddp_packing_name - returns the name of a packing as the programs spell it. DDP_PACK_DEFAULT returns the
 * name of the default. An invalid value returns "unknown". A constant string. Pure and safe from any
 * thread. */
DDP_API const char *ddp_packing_name(ddp_packing packing);

/* ddp_packing_named - finds a packing by its name. Pure and safe from any thread. Errors: DDP_ARG if the name
 * is unknown (the message lists the valid names) or if out is NULL. */
DDP_API ddp_status ddp_packing_named(const char *name, ddp_packing *out, ddp_error *err);

/* ---- error feedback ---- */

/* Error feedback: the residual is an array of the gradient's size that accumulates the part of each gradient
 * that was not sent. It starts as zeros and belongs to the training state: a checkpoint without it loses
 * gradient. Each step:
 *     ddp_feedback_add(residual, gradient, n, err)        residual += gradient
 *     ddp_topk(residual, ...) and ddp_pack_sparse(...)    or any other message
 *     ddp_feedback_keep(residual, n, index, k, err)       sets the elements that were sent to 0, or
 *     ddp_feedback_subtract(message, ...)                 residual -= the values that the receiver decodes
 * With ddp_feedback_keep each element is bit for bit either in the message or in the residual. With
 * ddp_feedback_subtract of the message made from the residual, quantised or not, decoded value + residual
 * equals the value before, except for the sign of a zero. No rounding occurs: the decoded value of x is
 * either 0 or between x / 2 and 2 x (|x - q s| <= s / 2), and the difference of two such floats is a float
 * (Sterbenz lemma).
 *
 * A finite value never becomes infinite or NaN. A gradient or message that is not finite, or a sum that would
 * not be, is an error that names the index and the values. You can then skip the step (as loss scaling does)
 * without harm to the residual. */

/* ddp_feedback_add - adds the gradient to the residual: residual[0..n-1] += gradient[0..n-1]. It reads the
 * gradient twice, because it validates all of it first. The arrays do not overlap. Allocates nothing. Safe
 * from any thread. On error the residual is unchanged. Errors: DDP_ARG for NULL or DDP_NUMERIC for a gradient
 * or a sum that is not finite. */
DDP_API ddp_status ddp_feedback_add(float *residual, const float *gradient, size_t n, ddp_error *err);

/* ddp_feedback_keep - sets residual[index[0..k-1]], the elements that were sent, to 0. Allocates nothing.
 * Safe from any thread. On error the residual is unchanged. Errors: DDP_ARG for NULL or an index out of
 * range. */
DDP_API ddp_status ddp_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                     ddp_error *err);

/* ddp_feedback_subtract - subtracts the decoded values of a message from residual[0..n-1]. Message and
 * residual do not overlap. Allocates nothing. Safe from any thread. On error the residual is unchanged.
 * Errors: DDP_ARG for NULL, DDP_FORMAT for a damaged message or another n, or DDP_NUMERIC for a value or a
 * difference that is not finite. */
DDP_API ddp_status ddp_feedback_subtract(const void *message, size_t bytes, float *residual, size_t n,
                                         ddp_error *err);

/* ---- the largest elements of each chunk, in 2 bits ---- */

#define DDP_SPARSE_CHUNK 4096 /* elements per chunk. A chunk has one scale. */

/* Sparse 2-bit messages: of each chunk of 4096 elements they carry the `keep` largest by magnitude. A shorter
 * last chunk carries its share, rounded up. Each element takes 14 bits: a sign, one of two levels (u and 2 u)
 * and a 12-bit index. Each chunk adds its u as a float32. With keep = 64 a chunk takes 116 bytes, 141 times
 * less than float32. */

/* ddp_sparse_keep - returns the elements to keep of each chunk for a fraction of them (0 = 1/64), limited to
 * 1..4096. Pure and safe from any thread. */
DDP_API int ddp_sparse_keep(double fraction);

/* ddp_sparse_bytes - returns the size, in bytes, of a message for n elements, which does not depend on the
 * values. Returns 0 if keep is not in 1..4096, or if n is 0 or above SIZE_MAX / 32. Pure. */
DDP_API size_t ddp_sparse_bytes(size_t n, int keep);

/* ddp_sparse_scratch - returns the size, in bytes, of the scratch memory that ddp_sparse_pack needs, aligned
 * to 8. Returns 0 if keep is not in 1..4096. Pure. */
DDP_API size_t ddp_sparse_scratch(int keep);

/* ddp_sparse_pack - writes a message and subtracts its decoded values from x. The subtraction is exact: x
 * retains the residual.
 *
 *   x        [n] changed in place
 *   keep     elements to keep of each chunk, 1..4096
 *   out      buffer of `capacity` bytes, of which ddp_sparse_bytes(n, keep) are written
 *   scratch  ddp_sparse_scratch(keep) bytes, aligned to 8
 *
 * On error x is unchanged. Allocates nothing. Safe from any thread. Errors: DDP_ARG; DDP_NUMERIC for an
 * infinity or NaN, with its index. */
DDP_API ddp_status ddp_sparse_pack(float *x, size_t n, int keep, void *out, size_t capacity, void *scratch,
                                   size_t scratch_bytes, ddp_error *err);

/* ddp_sparse_add - adds the decoded values of a message of `bytes` bytes to x[0..n-1]. The whole message is
 * validated before x changes. Allocates nothing. Safe from any thread. Errors: DDP_ARG for NULL, keep or n;
 * DDP_FORMAT for a damaged message. */
DDP_API ddp_status ddp_sparse_add(const void *message, size_t bytes, int keep, float *x, size_t n,
                                  ddp_error *err);

/* ---- top-k and random-k selection ---- */

/* ddp_topk - selects the k elements of x[0..n-1] with the largest magnitudes, exactly.
 *
 *   k        1..n
 *   scratch  ddp_topk_scratch(n, k) bytes, aligned to 8. One per thread, reusable after the call.
 *   index    [k] receives their positions, ascending
 *   value    [k] receives x[index[i]], bit for bit. May be NULL.
 * x, scratch, index and value do not overlap.
 *
 * The result equals the first k elements of a full sort by magnitude, descending, then by index, ascending.
 * Of equal magnitudes the lowest indexes are selected. 0.0 and -0.0 are equal. Infinities are largest. A NaN
 * anywhere in x is an error that names the first NaN found. It is never selected.
 *
 * Method: a sample of the magnitudes gives a threshold that slightly more than k elements exceed. One pass
 * collects these elements, 16 at a time, and a radix select finds the k-th largest of them. If the threshold
 * was too low, the collection is reduced to its k largest whenever it is full, which also raises the
 * threshold. If it was too high, the pass runs again with a lower one. The sample therefore affects the time,
 * which is O(n) for any data, but never the result.
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.1, which does not define ties and NaN. Allocates nothing.
 * Safe from any thread. On error the outputs are unchanged. Errors: DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_topk(const float *x, size_t n, size_t k, void *scratch, size_t scratch_bytes,
                            uint64_t *index, float *value, ddp_error *err);

/* ddp_topk_scratch - returns the size, in bytes, of the scratch memory that ddp_topk needs: about 15 k + 0.8
 * MB, at most 12 n + 32 KiB. It grows with k and with n. Returns 0 if k is not in 1..n or if the size does
 * not fit a size_t. Pure. */
DDP_API size_t ddp_topk_scratch(size_t n, size_t k);

/* ddp_randomk - draws k positions uniformly without replacement, and returns them with their values.
 *
 *   seed     the same seed (for example, of step and layer), n and k give the same positions on every
 *            platform
 *   scratch  ddp_randomk_scratch(n) bytes, aligned to 8
 *   index, value  as in ddp_topk. They do not overlap each other or the other arrays.
 *
 * Values are not scaled by n/k. With error feedback they must not be, and without it the receiver may scale
 * them. Method: Floyd's algorithm on a bitmap, O(k + n / 64). A NaN at a drawn position is an error that
 * names the first one. The other positions are not read. Allocates nothing. Safe from any thread. On error
 * the outputs are unchanged. Errors: DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_randomk(const float *x, size_t n, size_t k, uint64_t seed, void *scratch,
                               size_t scratch_bytes, uint64_t *index, float *value, ddp_error *err);

/* ddp_randomk_scratch - returns the size, in bytes, of the scratch memory that ddp_randomk needs: one bit per
 * element, rounded up to whole 8-byte words. Returns 0 if n is 0. Pure. */
DDP_API size_t ddp_randomk_scratch(size_t n);

/* ---- compression ratio of each link: AdaTopK and the uniform rule ---- */

/* Options of ddp_adatopk. */
typedef struct ddp_adatopk_options {
    double ratio;        /* r >= 1: the requested compression ratio */
    double factor;       /* the constant 3 of Eq. 7 (default: 3) */
    ddp_packing packing; /* i64, i32 or delta. DEFAULT = delta. */
    int uniform;         /* 1 = every link sends n / r elements, whatever its time. factor is not used. */
} ddp_adatopk_options;

/* Compression of the message of one link. */
typedef struct ddp_link_compression {
    double ratio;  /* r_i >= 1 */
    size_t keep;   /* k_i, the elements in the message, n if dense */
    int dense;     /* 1 = send all elements: a compressed message would be at least as large */
    size_t bytes;  /* size of the message with its header, for delta an upper bound */
    double link_s; /* predicted time, in seconds: R_i times payload size over dense payload size */
} ddp_link_compression;

/* ddp_adatopk - computes the compression ratio, k and the message size of each link.
 *
 *   link_s [links]  R_i: seconds that the uncompressed message of link i takes (one number per receiver),
 *                   without latency, which compression does not shorten
 *   count  [links] floats in that message, at least 1
 *   out    [links] unchanged on error
 *
 * r_i = max(1, factor r R_i / max R) (Eq. 7), or 1 for all links if every R is 0. k_i = ceil(count / r_i).
 * With the paper's choice, factor 3 and i64, the message of the slowest link is 1/r of the dense message: the
 * factor compensates for an 8-byte index with each 4-byte value. Every compressed link then takes max R / r
 * seconds, so that all of them take the same time. The packing changes bytes and link_s, never the selected
 * elements: with delta (the default) the elements are the paper's, in half the bytes. To send 1/r of the
 * dense size, set the factor to 1.5 with delta or to 2 with i32.
 *
 * The paper is silent or wrong in two places. For r_i between 1 and factor its formula sends more bytes than
 * dense. Such links send dense here. Its Eq. 8 applies the factor 3 also to links that are not compressed,
 * and divides compute time by r. link_s does neither and is meant for Eq. 3. The uniform rule with r = 100
 * and i64 gives a message 33.3 times smaller, as the caption of Figure 10 says.
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.2, Eq. 7 and 8. O(links). Allocates nothing. Safe from any
 * thread. Errors: DDP_ARG (also if factor times ratio overflows), DDP_NUMERIC. */
DDP_API ddp_status ddp_adatopk(const double *link_s, const size_t *count, int links,
                               const ddp_adatopk_options *o, ddp_link_compression *out, ddp_error *err);

/* ddp_keep_count - returns max(1, ceil(n / ratio)), at most n. Returns n if ratio is below 1 or NaN. Pure. */
DDP_API size_t ddp_keep_count(size_t n, double ratio);
