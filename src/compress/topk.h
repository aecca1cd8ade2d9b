/* Which elements of a float array travel: the k largest, or k drawn at random; and how many on which link: AdaTopK. */
#ifndef DDP_COMPRESS_TOPK_H
#define DDP_COMPRESS_TOPK_H

#include "compress/packing.h"

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
 * Method: a sample of the magnitudes' bits gives a threshold that a few more than k elements reach; one pass collects
 * those, 16 at a time; a radix select of the collected finds the k-th. Where the threshold was too low the collection
 * is cut back to its own k largest whenever it is full, which also raises the threshold; where it was too high the pass
 * is run again. So the sample decides the time, which is O(n) whatever the data, and never the result.
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.1, which leaves ties and NaN open. Allocates nothing; safe from any
 * thread. Outputs are untouched on error. Errors: DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_topk(const float *x, size_t n, size_t k, void *scratch,
                            size_t scratch_bytes, uint64_t *index, float *value, ddp_error *err);

/* ddp_topk_scratch - bytes that ddp_topk needs: about 15 k + 0.8 MB, at most 12 n + 32 KiB.
 * 0 if k is not in 1..n or the size does not fit a size_t. Grows with k and with n. Pure. */
DDP_API size_t ddp_topk_scratch(size_t n, size_t k);

/* ddp_randomk - k positions drawn uniformly without replacement, and their values.
 *
 *   seed     the same seed (of the step and layer, say) gives the same positions on every platform
 *   scratch  ddp_randomk_scratch(n) bytes, aligned to 8
 *   index, value  as in ddp_topk, overlaps neither
 *
 * Values are not scaled by n/k: with error feedback they must not be, without it the receiver may. Floyd's algorithm on
 * a bitmap: O(k + n / 64). A NaN at a drawn position is an error that names the first one; others are not looked at.
 * Allocates nothing; safe from any thread. Outputs are untouched on error. Errors: DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_randomk(const float *x, size_t n, size_t k, uint64_t seed, void *scratch, size_t scratch_bytes,
                               uint64_t *index, float *value, ddp_error *err);

/* ddp_randomk_scratch - one bit per element, in whole words of 8 bytes; 0 if n is 0. */
DDP_API size_t ddp_randomk_scratch(size_t n);

/* ---- how much each link of a pipeline compresses: AdaTopK and the uniform rule ---- */

typedef struct ddp_adatopk_options {
    double      ratio;   /* r >= 1: what the user asks for */
    double      factor;  /* the 3 of Eq. 7; 0 = 3 */
    ddp_packing packing; /* i64, i32 or delta; DEFAULT = delta, as everywhere */
    int         uniform; /* 1 = every link keeps n / r, whatever its time; factor is not used */
} ddp_adatopk_options;

typedef struct ddp_link_compression {
    double ratio;  /* r_i >= 1 */
    size_t keep;   /* k_i elements of the message, n if dense */
    int    dense;  /* 1 = send all: the compressed message would be no smaller */
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
 * r_i = max(1, factor r R_i / max R) (Eq. 7), all 1 if every R is 0; k_i = ceil(count / r_i). With factor 3 and i64,
 * the paper's, the slowest link's message is 1/r of dense (the factor pays for an index of 8 bytes beside a value of
 * 4), and every compressed link takes max R / r: link times become equal. The packing changes bytes and link_s, never
 * which elements are kept: with delta, the default, they are the paper's at half its bytes. To send 1/r of dense with
 * it, give the factor 1.5, with i32 2.
 * Decisions where the paper is silent or wrong: between r_i = 1 and factor the printed formula
 * sends more bytes than dense, so such links send dense; Eq. 8 has the factor 3 also on links
 * that are not compressed and divides computing time by r: link_s does neither, for use in Eq. 3.
 * The uniform rule with r = 100 and i64 is 33.3 times smaller, as the caption of Figure 10 says.
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.2, Eq. 7 and 8. O(links), no allocation, safe from any thread. Errors:
 * DDP_ARG (also if factor times ratio overflows), DDP_NUMERIC. */
DDP_API ddp_status ddp_adatopk(const double *link_s, const size_t *count, int links, const ddp_adatopk_options *o,
                               ddp_link_compression *out, ddp_error *err);

/* ddp_keep_count - max(1, ceil(n / ratio)), at most n; n for a ratio below 1 or NaN. Pure. */
DDP_API size_t ddp_keep_count(size_t n, double ratio);

#endif /* DDP_COMPRESS_TOPK_H */
