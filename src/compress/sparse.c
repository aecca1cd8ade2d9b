/* The largest of each chunk of an array in two bits each (SparseLoCo, arXiv:2508.15706). */
#include "base/core.h"
#include "compress/codec.h"

/* A chunk: its scale u as a float, then for each kept element 14 bits, lowest first: 12 of index, 1: below 0,
 * 1: 2 u and not u. Indexes rise; an entry that does not is none. u = 0: nothing of the chunk was kept.
 *
 * u is at most twice the smallest kept magnitude and has eight bits, so a level is at most twice what it
 * stands for and a multiple of that one's last place, as long as that is below 2^16 u: the difference is a
 * float, nothing is rounded away. What is larger by more than that alone in its chunk goes alone. */
enum { DDP__SPARSE_FIELD = 14, DDP__SPARSE_SCALES = 4, DDP__SPARSE_ROUNDS = 4 };
#define DDP__SPARSE_RANGE 0x1p-14f /* of the largest: what is below it is not kept beside it */
#define DDP__SPARSE_LEAST 0x1p-100f
#define DDP__SPARSE_MOST  0x1p126 /* of a scale: its double is finite */

int ddp_sparse_keep(double fraction)
{
    const double k = (fraction > 0 ? fraction : 1.0 / 64) * DDP_SPARSE_CHUNK + 0.5;

    return !(k >= 1) ? 1 : k >= DDP_SPARSE_CHUNK ? DDP_SPARSE_CHUNK : (int)k;
}

/* Entries of a chunk of len elements. */
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

/* u for magnitudes of a chunk, by k-means with two levels that are bound to each other. */
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

/* Drops what is too small beside the largest; *smallest of those that stay. */
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
                         "ddp_sparse_pack: x or the scratch is NULL, or n %zu, keep %d of %d or %zu "
                         "bytes of scratch do not do",
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

/* Adds a chunk's values to x where it is not NULL; else says what is wrong with them. */
static ddp_status ddp__sparse_read(const unsigned char *p, size_t len, int keep, float *x, ddp_error *err)
{
    const float u = ddp__codec_float(ddp__codec_get32(p));
    size_t last = 0;

    if (!ddp__within((double)u, 0, (double)DDP__SPARSE_MOST))
        return ddp__fail(err, DDP_FORMAT, "a chunk's scale is %g; it must be finite and >= 0", (double)u);
    for (size_t i = 0; i < ddp__sparse_entries(len, keep) && u > 0; i++) {
        const unsigned field = ddp__sparse_get(p + DDP__SPARSE_SCALES, i);
        const size_t index = field & 4095u;
        if (i && index <= last) break; /* no more */
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
