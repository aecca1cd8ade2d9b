/* Which elements of a float array travel: the k largest, or k drawn at random. */
#ifndef DDP_COMPRESS_TOPK_H
#define DDP_COMPRESS_TOPK_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

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
 * Method: a sample of the magnitudes' bits gives a threshold that a few more than k elements
 * reach; one pass collects those, 16 at a time; a radix select of the collected finds the k-th.
 * Where the threshold was too low the collection is cut back to its own k largest whenever it is
 * full, which also raises the threshold; where it was too high the pass is run again. So the
 * sample decides the time, which is O(n) whatever the data, and never the result.
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.1, which leaves ties and NaN open.
 * Allocates nothing; safe from any thread. Outputs are untouched on error.
 * Errors: DDP_ARG, DDP_NUMERIC. */
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
 * Values are not scaled by n/k: with error feedback they must not be, without it the receiver may.
 * Floyd's algorithm on a bitmap: O(k + n / 64). A NaN at a drawn position is an error that names
 * the first one; others are not looked at.
 * Allocates nothing; safe from any thread. Outputs are untouched on error.
 * Errors: DDP_ARG, DDP_NUMERIC. */
DDP_API ddp_status ddp_randomk(const float *x, size_t n, size_t k, uint64_t seed, void *scratch,
                               size_t scratch_bytes, uint64_t *index, float *value,
                               ddp_error *err);

/* ddp_randomk_scratch - one bit per element, in whole words of 8 bytes; 0 if n is 0. */
DDP_API size_t ddp_randomk_scratch(size_t n);

#ifdef __cplusplus
}
#endif

#endif /* DDP_COMPRESS_TOPK_H */
