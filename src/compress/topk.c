/* Exact top-k and random-k selection, and the compression ratio of each link of a pipeline (AdaTopK). */
#include "base/core.h"
#include "compress/codec.h"

/* Magnitudes are compared as integers: without its sign bit, the bit pattern of a float grows with |x|, and
 * NaN is above infinity. */

enum {
    DDP__TOPK_RUN = 4096,     /* elements between two checks of the free space, fits in L1 */
    DDP__TOPK_SAMPLE = 65536, /* most magnitudes sampled for the threshold */
    DDP__TOPK_NEAR = 4,       /* of these, adjacent elements: they share a cache line */
    DDP__TOPK_FEW = 32768,    /* shorter arrays are not sampled */
    DDP__TOPK_BINS = 2048
};

/* The elements above the threshold found so far, by ascending index, and the capacity of the list. */
typedef struct ddp__topk_found {
    uint64_t *index;
    size_t *bins;
    uint32_t *bits; /* bit patterns of the elements */
    size_t n, most;
    int32_t floor; /* only magnitudes above it are collected */
} ddp__topk_found;

static size_t ddp__topk_most(size_t n, size_t k)
{
    size_t extra = k / 4 + DDP__TOPK_SAMPLE;

    return n - k > extra ? k + extra : n;
}

size_t ddp_topk_scratch(size_t n, size_t k)
{
    size_t most, fixed = 2 * DDP__TOPK_BINS * sizeof(size_t);

    if (k < 1 || k > n) return 0;
    most = ddp__topk_most(n, k);
    if (most > (SIZE_MAX - fixed) / 12) return 0;
    return fixed + most * 12;
}

/* ---- the k-th largest of a list ---- */

/* Returns the rank-th largest of m magnitudes by radix select, with digits of 11, 10 and 10 bits. Only the
 * first `digits` digits are computed. The rest is 0. *ties receives how many of the magnitudes that agree in
 * these digits are among the `rank` largest. Each bin has two counters that are used alternately: most
 * magnitudes fall into few bins, and a counter cannot be read again before its last write completes. */
static uint32_t ddp__topk_nth(const uint32_t *bits, size_t m, size_t rank, int digits, size_t *bins,
                              size_t *ties)
{
    static const int shift[3] = {20, 10, 0};
    size_t *odd = bins + DDP__TOPK_BINS;
    uint32_t found = 0, fixed = 0; /* the digits found so far, and the mask of their bits */

    for (int digit = 0; digit < digits; digit++) {
        const int s = shift[digit];
        const uint32_t mask = digit ? 1023 : 2047;
        uint32_t b = mask;
        size_t i;
        memset(bins, 0, 2 * DDP__TOPK_BINS * sizeof *bins);
        for (i = 0; i + 2 <= m; i += 2) {
            bins[bits[i] >> s & mask] += (bits[i] & fixed) == found;
            odd[bits[i + 1] >> s & mask] += (bits[i + 1] & fixed) == found;
        }
        if (i < m) bins[bits[i] >> s & mask] += (bits[i] & fixed) == found;
        for (; bins[b] + odd[b] < rank; b--) rank -= bins[b] + odd[b];
        found |= b << s;
        fixed |= mask << s;
    }
    *ties = rank;
    return found;
}

/* Writes the k selected elements in index order: those above nth, and the first `ties` equal to it. out may
 * be the list itself. */
static void ddp__topk_keep(const ddp__topk_found *f, size_t k, uint32_t nth, size_t ties, uint64_t *index,
                           void *out)
{
    unsigned char *value = (unsigned char *)out;
    size_t i, kept = 0;

    for (i = 0; kept < k; i++) {
        uint32_t bits = f->bits[i], magnitude = bits & DDP__MAGNITUDE;
        size_t tie = (magnitude == nth) & (ties > 0);
        index[kept] = f->index[i];
        memcpy(value + kept * sizeof bits, &bits, sizeof bits);
        ties -= tie;
        kept += (magnitude > nth) | tie;
    }
}

static ddp_status ddp__topk_no_nan(const ddp__topk_found *f, ddp_error *err)
{
    for (size_t i = 0; i < f->n; i++)
        if ((f->bits[i] & DDP__MAGNITUDE) > DDP__INFINITE) return ddp__found_nan(f->index[i], err);
    return DDP_OK;
}

/* ---- the pass over the array ---- */

/* Appends the elements of x[0..n-1] whose magnitude is above the floor. The loop has no branch: it writes
 * every element and advances only past those it collects. */
static void ddp__topk_append(ddp__topk_found *f, const float *x, size_t n, uint64_t at)
{
    uint64_t *index = f->index;
    uint32_t *list = f->bits;
    const int32_t floor = f->floor;
    size_t m = f->n, i;

    for (i = 0; i < n; i++) {
        uint32_t bits = ddp__codec_bits(x[i]);
        index[m] = at + i;
        list[m] = bits;
        m += (int32_t)(bits & DDP__MAGNITUDE) > floor;
    }
    f->n = m;
}

/* Reduces the list to its k largest and raises the floor to the smallest of these. A later element must
 * exceed the floor, because of equal magnitudes the lower index is selected. */
static ddp_status ddp__topk_cut(ddp__topk_found *f, size_t k, ddp_error *err)
{
    size_t ties;
    uint32_t nth;

    DDP__TRY(ddp__topk_no_nan(f, err));
    nth = ddp__topk_nth(f->bits, f->n, k, 3, f->bins, &ties);
    ddp__topk_keep(f, k, nth, ties, f->index, f->bits);
    f->n = k;
    f->floor = (int32_t)nth;
    return DDP_OK;
}

/* Collects all magnitudes above the floor. If they do not fit, the list contains at least the k largest of
 * x. */
static ddp_status ddp__topk_collect(ddp__topk_found *f, const float *x, size_t n, size_t k, ddp_error *err)
{
    uint32_t list[(int)DDP__TOPK_RUN / (int)DDP__ANY_BLOCK]; /* blocks of a run with a magnitude above the
                                                                floor */
    size_t at, blocks, b;

    for (at = 0;; at += DDP__TOPK_RUN) {
        if (f->most < n && f->most - f->n < DDP__TOPK_RUN) DDP__TRY(ddp__topk_cut(f, k, err));
        if (n - at < DDP__TOPK_RUN) break;
        for (b = blocks = 0; b < DDP__TOPK_RUN; b += DDP__ANY_BLOCK) {
            list[blocks] = (uint32_t)b;
            blocks += (size_t)ddp__any_above(x + at + b, f->floor);
        }
        for (b = 0; b < blocks; b++) ddp__topk_append(f, x + at + list[b], DDP__ANY_BLOCK, at + list[b]);
    }
    ddp__topk_append(f, x + at, n - at, at);
    return ddp__topk_no_nan(f, err);
}

/* ---- the threshold ---- */

/* Samples m elements: DDP__TOPK_NEAR adjacent ones from a random place in each of m / DDP__TOPK_NEAR equal
 * parts of the array. */
static void ddp__topk_sample(const float *x, size_t n, uint32_t *sample, size_t m)
{
    size_t part = n / (m / DDP__TOPK_NEAR), i;
    ddp_rng r = ddp_rng_seed(n, 0);

    for (i = 0; i < m; i += DDP__TOPK_NEAR) {
        const float *from = x + i / DDP__TOPK_NEAR * part;
        from += ddp_rng_below(&r, part - DDP__TOPK_NEAR + 1);
        memcpy(sample + i, from, DDP__TOPK_NEAR * sizeof *sample);
    }
}

/* Returns a threshold that slightly more than k magnitudes exceed, in attempt 1 about twice as many, in
 * attempt 2 all. A NaN always exceeds it. */
static int32_t ddp__topk_floor(const ddp__topk_found *f, const float *x, size_t n, size_t k, int attempt)
{
    size_t m = n / 64, ties;
    double rank;
    uint32_t nth;

    if (m > DDP__TOPK_SAMPLE) m = DDP__TOPK_SAMPLE;
    m -= m % DDP__TOPK_NEAR;
    if (n < DDP__TOPK_FEW || attempt > 1) return -1;
    rank = (double)k / (double)n * (double)m; /* expected value. The standard deviation is below its square
                                                 root */
    rank = (attempt ? 2 : 1) * (rank + 5 * sqrt(rank) + 8);
    if (rank >= (double)m) return -1;
    ddp__topk_sample(x, n, f->bits, m);
    nth = ddp__topk_nth(f->bits, m, (size_t)rank, 2, f->bins, &ties);
    return (int32_t)(nth > DDP__INFINITE ? DDP__INFINITE : nth) - 1;
}

ddp_status ddp__select_check(const char *who, const float *x, size_t n, size_t k, const void *scratch,
                             size_t have, size_t need, const uint64_t *index, ddp_error *err)
{
    if (!x || !index) return ddp__fail(err, DDP_ARG, "%s: x or index is NULL", who);
    if (k < 1 || k > n)
        return ddp__fail(err, DDP_ARG, "%s: k = %zu of n = %zu elements; k must be in 1..n", who, k, n);
    if (!need || have < need)
        return ddp__fail(err, DDP_ARG,
                         "%s: the scratch has %zu bytes, %zu are needed; ask "
                         "%s_scratch",
                         who, have, need, who);
    if (!scratch || (uintptr_t)scratch % sizeof(uint64_t))
        return ddp__fail(err, DDP_ARG, "%s: the scratch must not be NULL and must be aligned to 8", who);
    return DDP_OK;
}

ddp_status ddp_topk(const float *x, size_t n, size_t k, void *scratch, size_t scratch_bytes, uint64_t *index,
                    float *value, ddp_error *err)
{
    ddp__topk_found f;
    uint32_t nth;
    size_t ties;
    int attempt;

    DDP__TRY(
        ddp__select_check("ddp_topk", x, n, k, scratch, scratch_bytes, ddp_topk_scratch(n, k), index, err));
    f.most = ddp__topk_most(n, k);
    f.index = (uint64_t *)scratch;
    f.bins = (size_t *)(f.index + f.most);
    f.bits = (uint32_t *)(f.bins + 2 * DDP__TOPK_BINS);
    for (attempt = 0, f.n = 0; f.n < k; attempt++) {
        f.n = 0;
        f.floor = ddp__topk_floor(&f, x, n, k, attempt);
        DDP__TRY(ddp__topk_collect(&f, x, n, k, err));
    }
    nth = ddp__topk_nth(f.bits, f.n, k, 3, f.bins, &ties);
    ddp__topk_keep(&f, k, nth, ties, index, value ? (void *)value : (void *)f.bits);
    return DDP_OK;
}

/* ---- random-k ---- */

size_t ddp_randomk_scratch(size_t n) { return (n / 64 + (n % 64 != 0)) * sizeof(uint64_t); }

/* Sets bit i. Returns 1 if it was set before, else 0. */
static int ddp__randomk_mark(uint64_t *bitmap, uint64_t i)
{
    uint64_t *word = bitmap + i / 64, bit = UINT64_C(1) << i % 64;
    int was = (*word & bit) != 0;

    *word |= bit;
    return was;
}

/* Floyd's algorithm: each round draws from the first j + 1 elements. If the element is already drawn, the
 * round takes element j instead, which no earlier round could draw. */
ddp_status ddp_randomk(const float *x, size_t n, size_t k, uint64_t seed, void *scratch, size_t scratch_bytes,
                       uint64_t *index, float *value, ddp_error *err)
{
    uint64_t *bitmap = (uint64_t *)scratch, j, word;
    size_t words, w, kept = 0;
    ddp_rng r = ddp_rng_seed(seed, n);

    DDP__TRY(ddp__select_check("ddp_randomk", x, n, k, scratch, scratch_bytes, ddp_randomk_scratch(n), index,
                               err));
    words = ddp_randomk_scratch(n) / sizeof *bitmap;
    memset(bitmap, 0, words * sizeof *bitmap);
    for (j = n - k; j < n; j++)
        if (ddp__randomk_mark(bitmap, ddp_rng_below(&r, j + 1))) ddp__randomk_mark(bitmap, j);
    for (int write = 0; write < 2; write++) /* outputs are unchanged on error */
        for (w = 0; w < words; w++)
            for (word = bitmap[w]; word; word &= word - 1) {
                size_t i = w * 64 + (size_t)__builtin_ctzll(word);
                if (!write && ddp__first_nan(x + i, 1) == 0) return ddp__found_nan(i, err);
                if (write && value) value[kept] = x[i];
                if (write) index[kept++] = i;
            }
    return DDP_OK;
}

/* ---- AdaTopK ---- */

size_t ddp_keep_count(size_t n, double ratio)
{
    double k;

    if (ddp__is_nan(ratio) || ratio <= 1 || n < 1) return n;
    k = ceil((double)n / ratio);
    if (k >= (double)n) return n;
    return k < 1 ? 1 : (size_t)k;
}

static ddp_status ddp__adatopk_check(const double *link_s, const size_t *count, int links,
                                     const ddp_adatopk_options *o, ddp_error *err)
{
    if (links < 1) return ddp__fail(err, DDP_ARG, "ddp_adatopk: %d links; at least 1 is needed", links);
    if (!ddp__within(o->ratio, 1, DBL_MAX))
        return ddp__fail(err, DDP_ARG,
                         "compression ratio %g; it must be finite and at least 1 "
                         "(100 = a hundredth is sent)",
                         o->ratio);
    if (!o->uniform && !ddp__within(o->factor, 0, DBL_MAX))
        return ddp__fail(err, DDP_ARG, "factor %g of Eq. 7 must be finite and above 0; 0 is the paper's 3",
                         o->factor);
    if (!o->uniform && !(o->ratio <= DBL_MAX / (o->factor > 0 ? o->factor : 3)))
        return ddp__fail(err, DDP_ARG,
                         "factor %g times ratio %g is too large; 1 of %g elements is "
                         "the least that can be kept",
                         o->factor, o->ratio, (double)DDP__PACK_MOST);
    if (o->packing != DDP_PACK_DEFAULT && o->packing != DDP_PACK_I64 && o->packing != DDP_PACK_I32 &&
        o->packing != DDP_PACK_DELTA)
        return ddp__fail(err, DDP_ARG, "packing %d (%s) keeps no indexes; use i64, i32 or delta",
                         (int)o->packing, ddp_packing_name(o->packing));
    for (int i = 0; i < links; i++) {
        if (!ddp__within(link_s[i], 0, DBL_MAX))
            return ddp__fail(err, DDP_NUMERIC, "link %d takes %g s; times must be finite and >= 0", i,
                             link_s[i]);
        if (!ddp_pack_bound(DDP_PACK_DENSE, count[i], count[i]))
            return ddp__fail(err, DDP_ARG, "link %d carries %zu floats; 1 to %zu make a message", i, count[i],
                             DDP__PACK_MOST);
    }
    return DDP_OK;
}

ddp_status ddp_adatopk(const double *link_s, const size_t *count, int links, const ddp_adatopk_options *o,
                       ddp_link_compression *out, ddp_error *err)
{
    double slowest = 0, factor;
    ddp_packing packing;

    if (!link_s || !count || !o || !out)
        return ddp__fail(err, DDP_ARG, "ddp_adatopk: link_s, count, o or out is NULL");
    DDP__TRY(ddp__adatopk_check(link_s, count, links, o, err));
    factor = o->factor > 0 ? o->factor : 3;
    packing = o->packing == DDP_PACK_DEFAULT ? DDP_PACK_DELTA : o->packing;
    for (int i = 0; i < links; i++)
        if (link_s[i] > slowest) slowest = link_s[i];
    for (int i = 0; i < links; i++) {
        ddp_link_compression *c = out + i;
        size_t dense = ddp_pack_bound(DDP_PACK_DENSE, count[i], count[i]);
        /* divide first: the fraction of the slowest link is exactly 1 */
        c->ratio = o->ratio;
        if (!o->uniform) c->ratio = slowest > 0 ? factor * o->ratio * (link_s[i] / slowest) : 1;
        if (!(c->ratio > 1)) c->ratio = 1;
        c->keep = ddp_keep_count(count[i], c->ratio);
        c->bytes = ddp_pack_bound(packing, count[i], c->keep);
        /* bytes is 0 if the array is too long for the packing */
        c->dense = !c->bytes || c->bytes >= dense;
        if (c->dense) {
            c->keep = count[i];
            c->bytes = dense;
        }
        c->link_s = link_s[i] * ((double)(c->bytes - DDP_PACK_HEAD) / (double)(dense - DDP_PACK_HEAD));
    }
    return DDP_OK;
}
