/* Compressed messages: encoding, validation, decoding and error feedback. */
#include "base/core.h"
#include "compress/codec.h"

/* "DDPC" as a little-endian number. The version covers everything after it. */
#define DDP__PACK_MAGIC UINT32_C(0x43504444)
enum { DDP__PACK_VERSION = 1 };

static const char *const ddp__packing_names[] = {"delta", "i64",  "i32",  "delta",
                                                 "dense", "int8", "int4", "e3m0"};

const char *ddp_packing_name(ddp_packing packing)
{
    int i = (int)packing;

    return i >= 0 && i <= (int)DDP_PACK_E3M0 ? ddp__packing_names[i] : "unknown";
}

ddp_status ddp_packing_named(const char *name, ddp_packing *out, ddp_error *err)
{
    if (!out) return ddp__fail(err, DDP_ARG, "ddp_packing_named: out is NULL");
    for (int i = 1; name && i <= (int)DDP_PACK_E3M0; i++)
        if (!strcmp(name, ddp__packing_names[i])) {
            *out = (ddp_packing)i;
            return DDP_OK;
        }
    return ddp__fail(err, DDP_ARG,
                     "packing %s is unknown; use i64, i32, delta, dense, int8, "
                     "int4 or e3m0",
                     name ? name : "(null)");
}

/* ---- sizes ---- */

/* Returns the maximum size, in bytes, of k gaps: one byte each, plus one for each gap that is at least 2^7,
 * 2^14, and so on. The gaps and the kept elements add up to at most n, so that at most n >> 7 j gaps reach
 * 2^(7 j). */
static size_t ddp__pack_gaps(size_t n, size_t k)
{
    size_t bytes = k;

    for (int shift = 7; shift < (int)sizeof n * CHAR_BIT; shift += 7)
        bytes += n >> shift < k ? n >> shift : k;
    return bytes;
}

size_t ddp_pack_bound(ddp_packing packing, size_t n, size_t k)
{
    size_t payload;

    if (packing == DDP_PACK_DEFAULT) packing = DDP_PACK_DELTA;
    if (n < 1 || n > DDP__PACK_MOST) return 0;
    switch (packing) {
    case DDP_PACK_I64:
        payload = 12 * k;
        break;
    case DDP_PACK_I32:
        payload = 8 * k;
        break;
    case DDP_PACK_DELTA:
        payload = 4 * k + ddp__pack_gaps(n, k);
        break;
    case DDP_PACK_DENSE:
        return DDP_PACK_HEAD + 4 * n;
    case DDP_PACK_INT8:
    case DDP_PACK_INT4:
    case DDP_PACK_E3M0:
        return DDP_PACK_HEAD + ddp__quantised_bytes(packing, n);
    default:
        return 0;
    }
    if (k < 1 || k > n || (packing == DDP_PACK_I32 && (n - 1) >> 31 >> 1)) return 0;
    return DDP_PACK_HEAD + payload;
}

ddp_status ddp__pack_room(const void *out, size_t capacity, size_t bytes, ddp_error *err)
{
    if (!out || capacity < bytes)
        return ddp__fail(err, DDP_ARG,
                         "the message needs %zu bytes of room, there are %zu; "
                         "ask ddp_pack_bound",
                         bytes, out ? capacity : 0);
    return DDP_OK;
}

/* ---- encoding ---- */

void ddp__pack_head(unsigned char *p, ddp_packing packing, size_t n, size_t k)
{
    ddp__codec_put32(p, DDP__PACK_MAGIC);
    p[4] = DDP__PACK_VERSION;
    p[5] = (unsigned char)packing;
    p[6] = p[7] = 0;
    ddp__codec_put64(p + 8, n);
    ddp__codec_put64(p + 16, k);
}

static void ddp__pack_values(unsigned char *p, const float *value, size_t k)
{
    for (size_t i = 0; i < k; i++) ddp__codec_put32(p + 4 * i, ddp__codec_bits(value[i]));
}

/* Returns the size of an encoded gap, in bytes. Writes it to p unless p is NULL. */
static size_t ddp__pack_gap(unsigned char *p, uint64_t gap)
{
    size_t bytes = 0;

    for (; gap > 127; gap >>= 7, bytes++)
        if (p) p[bytes] = (unsigned char)(gap | 128);
    if (p) p[bytes] = (unsigned char)gap;
    return bytes + 1;
}

/* Validates index and value, and computes the size of the message. */
static ddp_status ddp__pack_measure(ddp_packing packing, size_t n, size_t k, const uint64_t *index,
                                    const float *value, size_t *bytes, ddp_error *err)
{
    size_t i, gaps = 0;
    uint64_t next = 0;

    for (i = 0; i < k; i++) {
        if (index[i] >= n || index[i] < next)
            return ddp__fail(err, DDP_ARG,
                             "index[%zu] = %" PRIu64 " is not below n = %zu or not "
                             "above the index before it",
                             i, index[i], n);
        if (packing == DDP_PACK_DELTA) gaps += ddp__pack_gap(NULL, index[i] - next);
        next = index[i] + 1;
    }
    i = ddp__first_nan(value, k);
    if (i < k) return ddp__fail(err, DDP_NUMERIC, "value[%zu], of element %" PRIu64 ", is NaN", i, index[i]);
    *bytes = ddp_pack_bound(packing, n, k);
    if (packing == DDP_PACK_DELTA) *bytes = DDP_PACK_HEAD + 4 * k + gaps;
    return DDP_OK;
}

ddp_status ddp_pack_sparse(ddp_packing packing, size_t n, size_t k, const uint64_t *index, const float *value,
                           void *out, size_t capacity, size_t *bytes, ddp_error *err)
{
    unsigned char *p;
    size_t need = 0, i;
    uint64_t next = 0;

    if (packing == DDP_PACK_DEFAULT) packing = DDP_PACK_DELTA;
    if (packing != DDP_PACK_I64 && packing != DDP_PACK_I32 && packing != DDP_PACK_DELTA)
        return ddp__fail(err, DDP_ARG,
                         "ddp_pack_sparse: packing %d (%s) keeps no indexes; use "
                         "i64, i32 or delta",
                         (int)packing, ddp_packing_name(packing));
    if (!index || !value || !bytes)
        return ddp__fail(err, DDP_ARG, "ddp_pack_sparse: index, value or bytes is NULL");
    if (!ddp_pack_bound(packing, n, k))
        return ddp__fail(err, DDP_ARG,
                         "ddp_pack_sparse: %s cannot hold k = %zu of n = %zu elements; k must be in "
                         "1..n, and n at most %zu, for i32 2^32",
                         ddp_packing_name(packing), k, n, DDP__PACK_MOST);
    DDP__TRY(ddp__pack_measure(packing, n, k, index, value, &need, err));
    DDP__TRY(ddp__pack_room(out, capacity, need, err));

    p = (unsigned char *)out + DDP_PACK_HEAD;
    ddp__pack_head((unsigned char *)out, packing, n, k);
    if (packing == DDP_PACK_I64) {
        for (i = 0; i < k; i++) ddp__codec_put64(p + 8 * i, index[i]);
        ddp__pack_values(p + 8 * k, value, k);
    } else if (packing == DDP_PACK_I32) {
        for (i = 0; i < k; i++) ddp__codec_put32(p + 4 * i, (uint32_t)index[i]);
        ddp__pack_values(p + 4 * k, value, k);
    } else {
        ddp__pack_values(p, value, k);
        for (p += 4 * k, i = 0; i < k; next = index[i++] + 1) p += ddp__pack_gap(p, index[i] - next);
    }
    *bytes = need;
    return DDP_OK;
}

/* Writes a message with all of x. */
static ddp_status ddp__pack_all(const char *who, ddp_packing packing, const float *x, size_t n, void *out,
                                size_t capacity, size_t *bytes, ddp_error *err)
{
    const size_t need = ddp_pack_bound(packing, n, n);
    unsigned char *p = (unsigned char *)out;
    size_t at;

    if (!x || !bytes) return ddp__fail(err, DDP_ARG, "%s: x or bytes is NULL", who);
    if (!need)
        return ddp__fail(err, DDP_ARG, "%s: n = %zu; 1 to %zu elements make a message", who, n,
                         DDP__PACK_MOST);
    DDP__TRY(ddp__pack_room(out, capacity, need, err));
    at = packing == DDP_PACK_DENSE ? ddp__first_nan(x, n) : ddp__first_from(x, n, DDP__INFINITE);
    if (at < n && packing == DDP_PACK_DENSE) return ddp__found_nan(at, err);
    if (at < n)
        return ddp__fail(err, DDP_NUMERIC,
                         "x[%zu] = %g has no level; only finite numbers can be "
                         "quantised",
                         at, (double)x[at]);
    ddp__pack_head(p, packing, n, n);
    if (packing == DDP_PACK_DENSE)
        ddp__pack_values(p + DDP_PACK_HEAD, x, n);
    else
        ddp__quantised_fill(packing, x, n, p + DDP_PACK_HEAD);
    *bytes = need;
    return DDP_OK;
}

ddp_status ddp_pack_dense(const float *x, size_t n, void *out, size_t capacity, size_t *bytes, ddp_error *err)
{
    return ddp__pack_all("ddp_pack_dense", DDP_PACK_DENSE, x, n, out, capacity, bytes, err);
}

ddp_status ddp_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out, size_t capacity,
                              size_t *bytes, ddp_error *err)
{
    if (packing < DDP_PACK_INT8 || packing > DDP_PACK_E3M0)
        return ddp__fail(err, DDP_ARG,
                         "ddp_pack_quantised: packing %d (%s) does not quantise; use "
                         "int8, int4 or e3m0",
                         (int)packing, ddp_packing_name(packing));
    return ddp__pack_all("ddp_pack_quantised", packing, x, n, out, capacity, bytes, err);
}

/* ---- decoding ---- */

enum { DDP__UNPACK_PART = 1024 }; /* dense values checked at a time, fits in L1 */

ddp_status ddp_packed_read(const void *message, size_t bytes, ddp_packed *out, ddp_error *err)
{
    const unsigned char *p = (const unsigned char *)message;
    uint64_t n, k;
    ddp_packing packing;
    size_t bound, least;

    if (!p || !out) return ddp__fail(err, DDP_ARG, "ddp_packed_read: message or out is NULL");
    if (bytes < DDP_PACK_HEAD)
        return ddp__fail(err, DDP_FORMAT, "a message of %zu bytes; its header alone has %d", bytes,
                         DDP_PACK_HEAD);
    if (ddp__codec_get32(p) != DDP__PACK_MAGIC || p[4] != DDP__PACK_VERSION || p[6] || p[7])
        return ddp__fail(err, DDP_FORMAT, "not a compressed message of this version");
    if (p[5] < DDP_PACK_I64 || p[5] > DDP_PACK_E3M0)
        return ddp__fail(err, DDP_FORMAT, "packing %d of the message is unknown", p[5]);
    n = ddp__codec_get64(p + 8);
    k = ddp__codec_get64(p + 16);
    packing = (ddp_packing)p[5];
    if (n > DDP__PACK_MOST || k < 1 || k > n || (packing > DDP_PACK_DELTA && k != n))
        return ddp__fail(err, DDP_FORMAT, "the message says k = %" PRIu64 " of n = %" PRIu64 " elements", k,
                         n);
    bound = ddp_pack_bound(packing, (size_t)n, (size_t)k);
    least = packing == DDP_PACK_DELTA ? DDP_PACK_HEAD + 5 * (size_t)k : bound;
    if (!bound || bytes < least || bytes > bound)
        return ddp__fail(err, DDP_FORMAT,
                         "a message of %zu bytes says %s with k = %" PRIu64 " of n = %" PRIu64 ", "
                         "which takes %zu to %zu",
                         bytes, ddp_packing_name(packing), k, n, least, bound);
    out->packing = packing;
    out->n = n;
    out->k = k;
    return DDP_OK;
}

/* An iterator over the elements of a sparse message, in their order. */
typedef struct ddp__unpack_walk {
    const unsigned char *value, *index, *end;
    ddp_packing packing;
    uint64_t next; /* delta: the lowest possible value of the next index */
} ddp__unpack_walk;

static ddp__unpack_walk ddp__unpack_begin(const ddp_packed *m, const unsigned char *p, size_t bytes)
{
    size_t k = (size_t)m->k;
    ddp__unpack_walk w;

    w.packing = m->packing;
    w.end = p + bytes;
    w.next = 0;
    w.value = w.index = p + DDP_PACK_HEAD;
    if (m->packing == DDP_PACK_DELTA) w.index += 4 * k;
    if (m->packing == DDP_PACK_I32) w.value += 4 * k;
    if (m->packing == DDP_PACK_I64) w.value += 8 * k;
    return w;
}

/* Returns the next index. Returns UINT64_MAX if the message ends within it, if it overflows, or if its
 * encoding is longer than needed. */
static uint64_t ddp__unpack_index(ddp__unpack_walk *w)
{
    uint64_t at = 0, part;
    int shift = 0;

    if (w->packing == DDP_PACK_I64) {
        at = ddp__codec_get64(w->index);
        w->index += 8;
        return at;
    }
    if (w->packing == DDP_PACK_I32) {
        at = ddp__codec_get32(w->index);
        w->index += 4;
        return at;
    }
    do {
        if (w->index == w->end || shift > 56) return UINT64_MAX;
        part = *w->index++;
        at |= (part & 127) << shift;
        shift += 7;
    } while (part & 128);
    if (shift > 7 && !part) return UINT64_MAX;
    at += w->next; /* below 2^63 + 2^64 / 32: no overflow */
    w->next = at + 1;
    return at;
}

static ddp_status ddp__unpack_check(const ddp_packed *m, const unsigned char *p, size_t bytes,
                                    ddp__unpack how, const float *x, ddp_error *err)
{
    ddp__unpack_walk w = ddp__unpack_begin(m, p, bytes);
    uint64_t next = 0, i, at;

    for (i = 0; i < m->k; i++) {
        float v = ddp__codec_float(ddp__codec_get32(w.value + 4 * i));
        uint32_t magnitude = ddp__magnitude(v);
        at = ddp__unpack_index(&w);
        if (at == UINT64_MAX && m->packing == DDP_PACK_DELTA)
            return ddp__fail(err, DDP_FORMAT,
                             "gap %" PRIu64 " of the message, behind index %" PRIu64
                             ", has no end or more bytes than it needs",
                             i, i ? next - 1 : 0);
        if (at < next || at >= m->n)
            return ddp__fail(err, DDP_FORMAT,
                             "index %" PRIu64 " of the message is %" PRIu64 ", not "
                             "below n = %" PRIu64 " or not above the one before it",
                             i, at, m->n);
        if (magnitude > DDP__INFINITE)
            return ddp__fail(err, DDP_FORMAT,
                             "value %" PRIu64 " of the message, of element %" PRIu64 ", is NaN", i, at);
        if (magnitude >= DDP__HUGE && how != DDP__UNPACK_STORE) DDP__TRY(ddp__sum_check(how, x, at, v, err));
        next = at + 1;
    }
    if (m->packing == DDP_PACK_DELTA && w.index != w.end)
        return ddp__fail(err, DDP_FORMAT, "the message has %zu bytes after its last index",
                         (size_t)(w.end - w.index));
    return DDP_OK;
}

static void ddp__unpack_apply(const ddp_packed *m, const unsigned char *p, size_t bytes, ddp__unpack how,
                              float *x)
{
    ddp__unpack_walk w = ddp__unpack_begin(m, p, bytes);

    if (how == DDP__UNPACK_STORE) memset(x, 0, (size_t)m->n * sizeof *x);
    for (uint64_t i = 0; i < m->k; i++) {
        float v = ddp__codec_float(ddp__codec_get32(w.value + 4 * i));
        uint64_t at = ddp__unpack_index(&w);
        if (how == DDP__UNPACK_STORE)
            x[at] = v;
        else
            x[at] += how == DDP__UNPACK_ADD ? v : -v;
    }
}

static void ddp__unpack_values(const unsigned char *p, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = ddp__codec_float(ddp__codec_get32(p + 4 * i));
}

static ddp_status ddp__unpack_dense(const unsigned char *p, ddp__unpack how, float *x, size_t n,
                                    ddp_error *err)
{
    const size_t part = DDP__UNPACK_PART;
    float v[DDP__UNPACK_PART];
    size_t at, len, i;

    for (at = 0; at < n; at += len) {
        len = n - at < part ? n - at : part;
        ddp__unpack_values(p + 4 * at, v, len);
        i = ddp__first_nan(v, len);
        if (i < len) return ddp__fail(err, DDP_FORMAT, "value %zu of the message is NaN", at + i);
        if (how == DDP__UNPACK_STORE) continue;
        for (i = 0; (i += ddp__first_from(v + i, len - i, DDP__HUGE)) < len; i++)
            DDP__TRY(ddp__sum_check(how, x, at + i, v[i], err));
    }
    if (how == DDP__UNPACK_STORE)
        ddp__unpack_values(p, x, n);
    else
        for (i = 0; i < n; i++) {
            v[0] = ddp__codec_float(ddp__codec_get32(p + 4 * i));
            x[i] += how == DDP__UNPACK_ADD ? v[0] : -v[0];
        }
    return DDP_OK;
}

/* Validates the whole message, then applies it to x[0..n-1]. */
static ddp_status ddp__unpack_into(const void *message, size_t bytes, ddp__unpack how, float *x, size_t n,
                                   ddp_error *err)
{
    const unsigned char *p = (const unsigned char *)message;
    ddp_packed m;

    if (!x) return ddp__fail(err, DDP_ARG, "the array that a message is unpacked into is NULL");
    DDP__TRY(ddp_packed_read(message, bytes, &m, err));
    if (m.n != n)
        return ddp__fail(err, DDP_FORMAT, "the message is of %" PRIu64 " elements, the array has %zu", m.n,
                         n);
    if (m.packing == DDP_PACK_DENSE) return ddp__unpack_dense(p + DDP_PACK_HEAD, how, x, n, err);
    if (m.packing >= DDP_PACK_INT8) {
        DDP__TRY(ddp__quantised_check(m.packing, p + DDP_PACK_HEAD, how, x, n, err));
        ddp__quantised_apply(m.packing, p + DDP_PACK_HEAD, how, x, n);
        return DDP_OK;
    }
    DDP__TRY(ddp__unpack_check(&m, p, bytes, how, x, err));
    ddp__unpack_apply(&m, p, bytes, how, x);
    return DDP_OK;
}

ddp_status ddp_unpack_store(const void *message, size_t bytes, float *x, size_t n, ddp_error *err)
{
    return ddp__unpack_into(message, bytes, DDP__UNPACK_STORE, x, n, err);
}

ddp_status ddp_unpack_add(const void *message, size_t bytes, float *x, size_t n, ddp_error *err)
{
    return ddp__unpack_into(message, bytes, DDP__UNPACK_ADD, x, n, err);
}

/* ---- error feedback ---- */

ddp_status ddp_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k, ddp_error *err)
{
    if (!residual || !index) return ddp__fail(err, DDP_ARG, "ddp_feedback_keep: residual or index is NULL");
    for (size_t i = 0; i < k; i++)
        if (index[i] >= n)
            return ddp__fail(err, DDP_ARG, "ddp_feedback_keep: index[%zu] = %" PRIu64 " is not below n = %zu",
                             i, index[i], n);
    for (size_t i = 0; i < k; i++) residual[index[i]] = 0;
    return DDP_OK;
}

ddp_status ddp_feedback_subtract(const void *message, size_t bytes, float *residual, size_t n, ddp_error *err)
{
    return ddp__unpack_into(message, bytes, DDP__UNPACK_SUBTRACT, residual, n, err);
}
