/* How much each link of a pipeline compresses: AdaTopK and the uniform rule. */
#ifndef DDP_COMPRESS_ADATOPK_H
#define DDP_COMPRESS_ADATOPK_H

#include "compress/wire.h"

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

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_adatopk - ratio, k and message size of each link.
 *
 *   link_s [links]  R_i: seconds that the uncompressed message of link i takes (one number per
 *                   receiver), without latency, which compression does not shorten
 *   count  [links]  floats of that message, at least 1
 *   out    [links]  untouched on error
 *
 * r_i = max(1, factor r R_i / max R) (Eq. 7), all 1 if every R is 0; k_i = ceil(count / r_i).
 * With factor 3 and i64, the paper's, the slowest link's message is 1/r of dense (the factor pays
 * for an index of 8 bytes beside a value of 4), and every compressed link takes max R / r: link
 * times become equal. The packing changes bytes and link_s, never which elements are kept: with
 * delta, the default, they are the paper's at half its bytes. To send 1/r of dense with it, give
 * the factor 1.5, with i32 2.
 * Decisions where the paper is silent or wrong: between r_i = 1 and factor the printed formula
 * sends more bytes than dense, so such links send dense; Eq. 8 has the factor 3 also on links
 * that are not compressed and divides computing time by r: link_s does neither, for use in Eq. 3.
 * The uniform rule with r = 100 and i64 is 33.3 times smaller, as the caption of Figure 10 says.
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.2, Eq. 7 and 8.
 * O(links), no allocation, safe from any thread. Errors: DDP_ARG (also if factor times ratio
 * overflows), DDP_NUMERIC. */
DDP_API ddp_status ddp_adatopk(const double *link_s, const size_t *count, int links,
                               const ddp_adatopk_options *o, ddp_link_compression *out,
                               ddp_error *err);

/* ddp_keep_count - max(1, ceil(n / ratio)), at most n; n for a ratio below 1 or NaN. Pure. */
DDP_API size_t ddp_keep_count(size_t n, double ratio);

#ifdef __cplusplus
}
#endif

#endif /* DDP_COMPRESS_ADATOPK_H */
