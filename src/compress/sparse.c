/* Sparse 2-bit messages: the largest elements of each chunk, with a sign and one of two levels (SparseLoCo,
 * arXiv:2508.15706). */
#include "base/core.h"
#include "compress/codec.h"

/* Layout of a chunk: its scale u as a float, then 14 bits per kept element, lowest bits first: 12 bits of
 * index, 1 bit for the sign (1 = negative), 1 bit for the level (1 = 2 u, 0 = u). Indexes ascend. The first
 * one that does not ends the list. u = 0: the chunk has no elements.
 *
 * The residual is exact for these reasons. u is at most twice the smallest kept magnitude and has eight
 * significant bits. A level is therefore at most twice the element it represents. It is also a multiple of
 * the element's last place, as long as the element is below 2^16 u. The difference of the two is then a
 * float. ddp__sparse_range drops elements that are too small compared with the largest element of the chunk
 * for this to hold. */
enum { DDP__SPARSE_FIELD = 14, DDP__SPARSE_SCALES = 4, DDP__SPARSE_ROUNDS = 4 };
#define DDP__SPARSE_RANGE \
    0x1p-14f /* relative to the largest of the chunk: smaller elements are not kept with
                                      it */
#define DDP__SPARSE_LEAST 0x1p-100f
#define DDP__SPARSE_MOST  0x1p126 /* limit of a scale: twice the scale is finite */

int ddp_sparse_keep(double fraction)
{
    const double k = (fraction > 0 ? fraction : 1.0 / 64) * DDP_SPARSE_CHUNK + 0.5;

    return !(k >= 1) ? 1 : k >= DDP_SPARSE_CHUNK ? DDP_SPARSE_CHUNK : (int)k;
}

/* Returns the number of entries for a chunk of len elements. */
static size_t ddp__sparse_entries(size_t len, int keep)
{
    return (len * (size_t)keep + DDP_SPARSE_CHUNK - 1) / DDP_SPARSE_CHUNK;
}

static size_t ddp__sparse_size(size_t len, int keep)
{
    return DDP__SPARSE_SCALES + (ddp__sparse_entries(len, keep) * DDP__SPARSE_FIELD + 7) / 8;
}

size_t ddp_sparse_bytes(size_t n, int keep)
{
    const size_t last = n % DDP_SPARSE_CHUNK;

    if (keep < 1 || keep > DDP_SPARSE_CHUNK || n > DDP__PACK_MOST) return 0;
    return n / DDP_SPARSE_CHUNK * ddp__sparse_size(DDP_SPARSE_CHUNK, keep) +
           (last ? ddp__sparse_size(last, keep) : 0);
}

size_t ddp_sparse_scratch(int keep)
{
    const size_t k = keep > 0 && keep <= DDP_SPARSE_CHUNK ? (size_t)keep : 0;

    return k ? ddp_topk_scratch(DDP_SPARSE_CHUNK, k) + (k * (sizeof(uint64_t) + sizeof(float)) + 7) / 8 * 8
             : 0;
}

/* ---- sending ---- */

/* Returns the scale u for the magnitudes of a chunk: k-means with two levels, u and 2 u. */
static float ddp__sparse_scale(const float *value, size_t k, float smallest)
{
    double u = 0;
    uint32_t bits;

    for (size_t i = 0; i < k; i++) u += fabs((double)value[i]);
    u /= 1.4 * (double)k;
    for (int round = 0; round < DDP__SPARSE_ROUNDS; round++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < k; i++) {
            const double a = fabs((double)value[i]), level = a < 1.5 * u ? 1 : 2;
            sum += level * a;
            squares += level * level;
        }
        u = sum / squares;
    }
    if (u > 2 * (double)smallest) u = 2 * (double)smallest;
    if (u > DDP__SPARSE_MOST) u = DDP__SPARSE_MOST;
    bits = ddp__codec_bits((float)u) & UINT32_C(0xffff0000);
    return ddp__codec_float(bits);
}

/* Drops the elements that are too small compared with the largest one. Returns how many remain. *smallest is
 * the smallest magnitude of these. */
static size_t ddp__sparse_range(uint64_t *index, float *value, size_t k, float *smallest)
{
    float largest = 0;
    size_t kept = 0;

    for (size_t i = 0; i < k; i++) largest = fabsf(value[i]) > largest ? fabsf(value[i]) : largest;
    *smallest = largest;
    for (size_t i = 0; i < k; i++) {
        const float a = fabsf(value[i]);
        if (a < largest * DDP__SPARSE_RANGE || a < DDP__SPARSE_LEAST) continue;
        if (a < *smallest) *smallest = a;
        index[kept] = index[i];
        value[kept++] = value[i];
    }
    return kept;
}

static void ddp__sparse_put(unsigned char *p, size_t i, unsigned field)
{
    for (size_t bit = i * DDP__SPARSE_FIELD, b = 0; b < DDP__SPARSE_FIELD; b++, bit++)
        p[bit / 8] = (unsigned char)(p[bit / 8] | (field >> b & 1u) << bit % 8);
}

static ddp_status ddp__sparse_chunk(float *x, size_t len, int keep, unsigned char *out,
                                    unsigned char *scratch, size_t scratch_bytes, ddp_error *err)
{
    const size_t entries = ddp__sparse_entries(len, keep);
    uint64_t *index = (uint64_t *)(void *)scratch;
    float *value = (float *)(void *)(scratch + entries * sizeof *index), u = 0, smallest;
    unsigned char *rest = scratch + (entries * (sizeof *index + sizeof *value) + 7) / 8 * 8, *p = out;
    size_t kept, used = (size_t)(rest - scratch);

    DDP__TRY(ddp_topk(x, len, entries, rest, scratch_bytes - used, index, value, err));
    kept = ddp__sparse_range(index, value, entries, &smallest);
    if (kept) u = ddp__sparse_scale(value, kept, smallest);
    ddp__codec_put32(out, ddp__codec_bits(u));
    p += DDP__SPARSE_SCALES;
    memset(p, 0, (entries * DDP__SPARSE_FIELD + 7) / 8);
    for (size_t i = 0; i < entries && kept; i++) {
        const size_t k = i < kept ? i : kept - 1;
        const unsigned big = fabsf(value[k]) >= 1.5f * u, below = value[k] < 0;
        ddp__sparse_put(p, i, (unsigned)index[k] | below << 12 | big << 13);
        if (i < kept) x[index[k]] -= (below ? -u : u) * (big ? 2.0f : 1.0f);
    }
    return DDP_OK;
}

ddp_status ddp_sparse_pack(float *x, size_t n, int keep, void *out, size_t capacity, void *scratch,
                           size_t scratch_bytes, ddp_error *err)
{
    unsigned char *p = (unsigned char *)out;
    size_t at, len, need = ddp_sparse_bytes(n, keep);

    if (!x || !scratch || !need || (uintptr_t)scratch % sizeof(uint64_t) ||
        scratch_bytes < ddp_sparse_scratch(keep))
        return ddp__fail(err, DDP_ARG,
                         "ddp_sparse_pack: invalid arguments: x or the scratch is NULL, or n %zu, keep %d of "
                         "%d, or %zu bytes of scratch",
                         n, keep, DDP_SPARSE_CHUNK, scratch_bytes);
    DDP__TRY(ddp__pack_room(out, capacity, need, err));
    at = ddp__first_from(x, n, DDP__INFINITE);
    if (at < n)
        return ddp__fail(err, DDP_NUMERIC, "x[%zu] = %g has no level; only finite numbers can be sent", at,
                         (double)x[at]);
    for (at = 0; at < n; at += len) {
        len = n - at < DDP_SPARSE_CHUNK ? n - at : (size_t)DDP_SPARSE_CHUNK;
        DDP__TRY(ddp__sparse_chunk(x + at, len, keep, p, (unsigned char *)scratch, scratch_bytes, err));
        p += ddp__sparse_size(len, keep);
    }
    return DDP_OK;
}

/* ---- receiving ---- */

static unsigned ddp__sparse_get(const unsigned char *p, size_t i)
{
    unsigned field = 0;

    for (size_t bit = i * DDP__SPARSE_FIELD, b = 0; b < DDP__SPARSE_FIELD; b++, bit++)
        field |= (unsigned)(p[bit / 8] >> bit % 8 & 1) << b;
    return field;
}

/* Adds a chunk's values to x. If x is NULL, only validates the chunk and reports the error. */
static ddp_status ddp__sparse_read(const unsigned char *p, size_t len, int keep, float *x, ddp_error *err)
{
    const float u = ddp__codec_float(ddp__codec_get32(p));
    size_t last = 0;

    if (!ddp__within((double)u, 0, (double)DDP__SPARSE_MOST))
        return ddp__fail(err, DDP_FORMAT, "a chunk's scale is %g; it must be finite and >= 0", (double)u);
    for (size_t i = 0; i < ddp__sparse_entries(len, keep) && u > 0; i++) {
        const unsigned field = ddp__sparse_get(p + DDP__SPARSE_SCALES, i);
        const size_t index = field & 4095u;
        if (i && index <= last) break; /* end of the list */
        if (index >= len) return ddp__fail(err, DDP_FORMAT, "index %zu in a chunk of %zu", index, len);
        if (x) x[index] += (field >> 12 & 1 ? -u : u) * (field >> 13 ? 2.0f : 1.0f);
        last = index;
    }
    return DDP_OK;
}

ddp_status ddp_sparse_add(const void *message, size_t bytes, int keep, float *x, size_t n, ddp_error *err)
{
    const unsigned char *p;
    size_t at, len;

    if (!message || !x || bytes != ddp_sparse_bytes(n, keep) || !bytes)
        return ddp__fail(err, DDP_ARG,
                         "ddp_sparse_add: %zu bytes for %zu elements with %d of %d kept; %zu are needed",
                         bytes, n, keep, DDP_SPARSE_CHUNK, ddp_sparse_bytes(n, keep));
    for (int apply = 0; apply < 2; apply++)
        for (at = 0, p = (const unsigned char *)message; at < n;
             at += len, p += ddp__sparse_size(len, keep)) {
            len = n - at < DDP_SPARSE_CHUNK ? n - at : (size_t)DDP_SPARSE_CHUNK;
            DDP__TRY(ddp__sparse_read(p, len, keep, apply ? x + at : NULL, err));
        }
    return DDP_OK;
}
