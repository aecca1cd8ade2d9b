/* Block quantisation to int8, int4 and E3M0: encoding, validation and decoding of a message payload. Also
 * checks for NaN and for sums that are not finite. */
#include "compress/codec.h"
#include "nn/exact.h"

/* ---- invalid numbers ---- */

size_t ddp__first_from(const float *x, size_t n, uint32_t least)
{
    size_t at;

    for (at = 0; n - at >= DDP__ANY_BLOCK; at += DDP__ANY_BLOCK)
        if (ddp__any_above(x + at, (int32_t)least - 1)) break;
    while (at < n && ddp__magnitude(x[at]) < least) at++;
    return at;
}

size_t ddp__first_nan(const float *x, size_t n) { return ddp__first_from(x, n, DDP__INFINITE + 1); }

ddp_status ddp__found_nan(uint64_t at, ddp_error *err)
{
    return ddp__fail(err, DDP_NUMERIC,
                     "x[%" PRIu64 "] is NaN, which has no magnitude; training "
                     "has diverged, or the array is not initialised",
                     at);
}

ddp_status ddp__sum_check(ddp__unpack how, const float *x, uint64_t at, float v, ddp_error *err)
{
    if (!ddp__sum_spoils(x[at], how == DDP__UNPACK_SUBTRACT ? -v : v)) return DDP_OK;
    return ddp__fail(err, DDP_NUMERIC,
                     "x[%" PRIu64 "] = %g %s %g would not be a finite number; a "
                     "gradient has diverged: leave this step out",
                     at, (double)x[at], how == DDP__UNPACK_SUBTRACT ? "-" : "+", (double)v);
}

ddp_status ddp_feedback_add(float *residual, const float *gradient, size_t n, ddp_error *err)
{
    float *DDP_RESTRICT r = residual;
    const float *DDP_RESTRICT g = gradient;

    if (!residual || !gradient)
        return ddp__fail(err, DDP_ARG, "ddp_feedback_add: residual or gradient is NULL");
    for (size_t i = 0; (i += ddp__first_from(g + i, n - i, DDP__HUGE)) < n; i++)
        DDP__TRY(ddp__sum_check(DDP__UNPACK_ADD, r, i, g[i], err));
    for (size_t i = 0; i < n; i++) r[i] += g[i];
    return DDP_OK;
}

/* ---- encoding: whole blocks, the last padded with zeros. Compilers vectorise fixed counts at -O2 ---- */

typedef int32_t ddp__quantise_lanes __attribute__((vector_size(16)));

static float ddp__quantise_levels(ddp_packing packing) { return packing == DDP_PACK_INT8 ? 127 : 7; }
static size_t ddp__quantise_blocks(size_t n)
{
    return n / DDP_QUANTISE_BLOCK + (n % DDP_QUANTISE_BLOCK != 0);
}

/* Returns the size, in bytes, of the levels of n elements. */
static size_t ddp__quantise_size(ddp_packing packing, size_t n)
{
    return packing == DDP_PACK_INT8 ? n : n / 2 + n % 2;
}

size_t ddp__quantised_bytes(ddp_packing packing, size_t n)
{
    size_t scales = 4 * ddp__quantise_blocks(n), levels = ddp__quantise_size(packing, n);

    return levels > SIZE_MAX - scales ? 0 : scales + levels;
}

/* Returns the largest magnitude of a block of finite elements. */
static float ddp__quantise_largest(const float *x)
{
    const int32_t m = (int32_t)DDP__MAGNITUDE;
    const ddp__quantise_lanes magnitude = {m, m, m, m};
    ddp__quantise_lanes a, b, most = {0, 0, 0, 0}, other = {0, 0, 0, 0};
    int32_t largest = 0;

    for (int i = 0; i < DDP_QUANTISE_BLOCK; i += 8) {
        memcpy(&a, x + i, sizeof a);
        memcpy(&b, x + i + 4, sizeof b);
        a &= magnitude;
        b &= magnitude;
        most = (a & (a > most)) | (most & ~(a > most));
        other = (b & (b > other)) | (other & ~(b > other));
    }
    most = (most & (most > other)) | (other & ~(most > other));
    for (int i = 0; i < 4; i++)
        if (most[i] > largest) largest = most[i];
    return ddp__codec_float((uint32_t)largest);
}

/* Computes the levels of a block, in -levels..levels. */
static void ddp__quantise_block(const float *x, float scale, signed char *level)
{
    const double inverse = scale > 0 ? 1 / (double)scale : 0;
    int whole[DDP_QUANTISE_BLOCK], i;

    for (i = 0; i < DDP_QUANTISE_BLOCK; i++) whole[i] = ddp__quantise_level_of(x[i], inverse);
#ifdef __SSE2__ /* compilers turn the loop below into code that takes as long as the loop above */
    for (i = 0; i < DDP_QUANTISE_BLOCK; i += 16) {
        __m128i part[4];
        memcpy(part, whole + i, sizeof part);
        part[0] = _mm_packs_epi16(_mm_packs_epi32(part[0], part[1]), _mm_packs_epi32(part[2], part[3]));
        memcpy(level + i, part, sizeof part[0]);
    }
#else
    for (i = 0; i < DDP_QUANTISE_BLOCK; i++) level[i] = (signed char)whole[i];
#endif
}

/* Packs levels into half bytes as level + 8, even elements in the low half, eight levels at a time. */
static void ddp__quantise_halve(const signed char *level, unsigned char *p)
{
    for (int i = 0; i < DDP_QUANTISE_BLOCK; i += 8, p += 4) {
        uint64_t w = ddp__codec_get64((const unsigned char *)level + i);
        w = (w ^ UINT64_C(0x8080808080808080)) - UINT64_C(0x7878787878787878);
        w = (w | w >> 4) & UINT64_C(0x00ff00ff00ff00ff);
        w = (w | w >> 8) & UINT64_C(0x0000ffff0000ffff);
        ddp__codec_put32(p, (uint32_t)(w | w >> 16));
    }
}

static void ddp__quantise_double(const unsigned char *p, signed char *level)
{
    for (int i = 0; i < DDP_QUANTISE_BLOCK; i += 8, p += 4) {
        uint64_t w = ddp__codec_get32(p);
        w = (w | w << 16) & UINT64_C(0x0000ffff0000ffff);
        w = (w | w << 8) & UINT64_C(0x00ff00ff00ff00ff);
        w = (w | w << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
        w = (w + UINT64_C(0x7878787878787878)) ^ UINT64_C(0x8080808080808080);
        ddp__codec_put64((unsigned char *)level + i, w);
    }
}

/* ---- E3M0 (Streaming DiLoCo, arXiv:2501.18512): a sign bit and 3 bits of exponent, level = code - 8 ---- */

enum { DDP__E3M0_LEVELS = 7, DDP__E3M0_SIGN = 8 };

/* With a smaller scale, levels would be denormal, which some processors flush to zero. */
#define DDP__E3M0_LEAST 0x1p-100f

/* Returns the magnitude for exponent e: 0 for e = 0, else s / 64, s / 32, ..., s, exactly. */
static float ddp__e3m0_value(float scale, int e) { return e ? ldexpf(scale, e - DDP__E3M0_LEVELS) : 0; }

/* Computes the levels of an E3M0 block. least[e] is the smallest magnitude that rounds to exponent e or more.
 * Halves round up. */
static void ddp__e3m0_block(const float *x, float scale, signed char *level)
{
    float least[DDP__E3M0_LEVELS + 1];

    memset(level, -DDP__E3M0_SIGN, DDP_QUANTISE_BLOCK);
    if (!(scale > 0)) return;
    for (int e = 1; e <= DDP__E3M0_LEVELS; e++) {
        const double middle = ((double)ddp__e3m0_value(scale, e - 1) + (double)ddp__e3m0_value(scale, e)) / 2;
        least[e] = (float)middle;
        if ((double)least[e] < middle) least[e] = nextafterf(least[e], FLT_MAX);
    }
    for (int i = 0; i < DDP_QUANTISE_BLOCK; i++) {
        const float a = fabsf(x[i]);
        int e = 0;
        for (int k = 1; k <= DDP__E3M0_LEVELS; k++) e += a >= least[k];
        level[i] = (signed char)(e && x[i] < 0 ? e : e - DDP__E3M0_SIGN);
    }
}

void ddp__quantised_fill(ddp_packing packing, const float *x, size_t n, unsigned char *payload)
{
    const float levels = ddp__quantise_levels(packing);
    signed char level[DDP_QUANTISE_BLOCK];
    unsigned char *scales = payload, *p = payload + 4 * ddp__quantise_blocks(n), *to,
                  part[DDP_QUANTISE_BLOCK];
    float last[DDP_QUANTISE_BLOCK];
    size_t at, len;

    for (at = 0; at < n; at += len, scales += 4) {
        const float *from = x + at;
        float scale;
        len = n - at < DDP_QUANTISE_BLOCK ? n - at : DDP_QUANTISE_BLOCK;
        to = p;
        if (len < DDP_QUANTISE_BLOCK) {
            memset(last, 0, sizeof last);
            from = (const float *)memcpy(last, from, len * sizeof *last);
            to = part;
        }
        scale = ddp__quantise_largest(from);
        if (packing == DDP_PACK_E3M0)
            scale = scale < DDP__E3M0_LEAST ? 0 : scale;
        else
            scale = ddp__quantise_scale_of(scale, (double)levels);
        ddp__codec_put32(scales, ddp__codec_bits(scale));
        if (packing == DDP_PACK_E3M0)
            ddp__e3m0_block(from, scale, level);
        else
            ddp__quantise_block(from, scale, packing == DDP_PACK_INT8 ? (signed char *)to : level);
        if (packing != DDP_PACK_INT8) ddp__quantise_halve(level, to);
        if (to == part) memcpy(p, part, ddp__quantise_size(packing, len));
        p += ddp__quantise_size(packing, len);
    }
}

/* ---- decoding ---- */

/* Returns the offset of the first eight bytes that contain an invalid level (-128 or -8), or at least `bytes`
 * if all levels are valid. */
static size_t ddp__quantised_low(ddp_packing packing, const unsigned char *p, size_t bytes)
{
    const int wide = packing == DDP_PACK_INT8;
    const uint64_t one = wide ? UINT64_C(0x0101010101010101) : UINT64_C(0x1111111111111111);
    const uint64_t top = one << (wide ? 7 : 3), lowest = wide ? top : 0;
    unsigned char last[8];
    size_t at;

    memset(last, 0x88, sizeof last); /* padding that is not an invalid level */
    for (at = 0; at < bytes; at += 8) {
        const unsigned char *from = p + at;
        uint64_t w;
        if (bytes - at < 8) from = (const unsigned char *)memcpy(last, from, bytes - at);
        w = ddp__codec_get64(from) ^ lowest;
        if ((w - one) & ~w & top) break; /* a zero field borrows from its top bit */
    }
    return at;
}

static ddp_status ddp__e3m0_check(const unsigned char *payload, ddp__unpack how, const float *x, size_t n,
                                  ddp_error *err)
{
    const unsigned char *p = payload + 4 * ddp__quantise_blocks(n);
    float scale = 0;

    if (n % 2 && p[n / 2] >> 4)
        return ddp__fail(err, DDP_FORMAT, "the half byte after the last element is not 0");
    for (size_t at = 0; at < n; at++) {
        const int code = ddp__quantised_level(0, p, at) + DDP__E3M0_SIGN, e = code % DDP__E3M0_SIGN;
        const size_t b = at / DDP_QUANTISE_BLOCK;
        if (at % DDP_QUANTISE_BLOCK == 0) scale = ddp__codec_float(ddp__codec_get32(payload + 4 * b));
        if (!ddp__zero_or_within((double)scale, (double)DDP__E3M0_LEAST, FLT_MAX))
            return ddp__fail(err, DDP_FORMAT,
                             "the scale of block %zu is %g; it must be 0, or finite and at least %g", b,
                             (double)scale, (double)DDP__E3M0_LEAST);
        if (code == DDP__E3M0_SIGN || (code && scale == 0))
            return ddp__fail(err, DDP_FORMAT, "element %zu has the invalid code %d", at, code);
        if (how != DDP__UNPACK_STORE && scale >= ddp__codec_float(DDP__HUGE))
            DDP__TRY(ddp__sum_check(how, x, at,
                                    code > e ? -ddp__e3m0_value(scale, e) : ddp__e3m0_value(scale, e), err));
    }
    return DDP_OK;
}

ddp_status ddp__quantised_check(ddp_packing packing, const unsigned char *payload, ddp__unpack how,
                                const float *x, size_t n, ddp_error *err)
{
    const size_t blocks = ddp__quantise_blocks(n), size = ddp__quantise_size(packing, n);
    const int wide = packing == DDP_PACK_INT8;
    const float levels = ddp__quantise_levels(packing), huge = ddp__codec_float(DDP__HUGE);
    const unsigned char *p = payload + 4 * blocks;
    size_t b, at;

    if (packing == DDP_PACK_E3M0) return ddp__e3m0_check(payload, how, x, n, err);
    at = ddp__quantised_low(packing, p, size);
    if (!wide && n % 2 && p[n / 2] >> 4 != 8)
        return ddp__fail(err, DDP_FORMAT, "the half byte after the last element is not 8");
    if (at < size) {
        if (!wide) at *= 2;
        for (; ddp__quantised_level(wide, p, at) >= -(int)levels;) at++;
        return ddp__fail(err, DDP_FORMAT, "element %zu has the level %d; levels begin at %d", at,
                         ddp__quantised_level(wide, p, at), -(int)levels);
    }
    for (b = 0; b < blocks; b++) {
        float scale = ddp__codec_float(ddp__codec_get32(payload + 4 * b));
        if (!ddp__within((double)(scale * levels), 0, FLT_MAX))
            return ddp__fail(err, DDP_FORMAT,
                             "the scale of block %zu is %g; it must be finite and "
                             ">= 0",
                             b, (double)scale);
        if (how == DDP__UNPACK_STORE || scale * levels < huge) continue;
        for (at = b * DDP_QUANTISE_BLOCK; at < n && at / DDP_QUANTISE_BLOCK == b; at++) {
            float v = (float)ddp__quantised_level(wide, p, at) * scale;
            DDP__TRY(ddp__sum_check(how, x, at, v, err));
        }
    }
    return DDP_OK;
}

/* Sets x = level * scale for a block, or x += level * scale if `add` is set. */
static void ddp__quantised_block(const signed char *level, float scale, int add, float *x)
{
    const ddp__f4 scales = ddp__f4_all(scale);
    float whole[DDP_QUANTISE_BLOCK];
    int i;

    for (i = 0; i < DDP_QUANTISE_BLOCK; i++) whole[i] = (float)level[i];
    if (add)
        for (i = 0; i < DDP_QUANTISE_BLOCK; i += 4)
            ddp__f4_store(x + i, ddp__f4_load(x + i) + ddp__f4_mul(ddp__f4_load(whole + i), scales));
    else
        for (i = 0; i < DDP_QUANTISE_BLOCK; i += 4)
            ddp__f4_store(x + i, ddp__f4_mul(ddp__f4_load(whole + i), scales));
}

/* Does the same for E3M0 levels. */
static void ddp__e3m0_apply(const signed char *level, float scale, int add, float *x)
{
    float value[2 * DDP__E3M0_SIGN];

    for (int e = 0; e < DDP__E3M0_SIGN; e++) {
        value[e] = ddp__e3m0_value(scale, e);
        value[e + DDP__E3M0_SIGN] = -value[e];
    }
    for (int i = 0; i < DDP_QUANTISE_BLOCK; i++)
        if (add)
            x[i] += value[level[i] + DDP__E3M0_SIGN];
        else
            x[i] = value[level[i] + DDP__E3M0_SIGN];
}

void ddp__quantised_apply(ddp_packing packing, const unsigned char *payload, ddp__unpack how, float *x,
                          size_t n)
{
    const unsigned char *p = payload + 4 * ddp__quantise_blocks(n), *from;
    unsigned char part[DDP_QUANTISE_BLOCK];
    signed char level[DDP_QUANTISE_BLOCK];
    float last[DDP_QUANTISE_BLOCK], *to;
    size_t at, len;

    for (at = 0; at < n; at += len, payload += 4) {
        float scale = ddp__codec_float(ddp__codec_get32(payload));
        if (how == DDP__UNPACK_SUBTRACT) scale = -scale; /* x - q s = x + q (-s), bit-identical */
        len = n - at < DDP_QUANTISE_BLOCK ? n - at : DDP_QUANTISE_BLOCK;
        from = p;
        to = x + at;
        if (len < DDP_QUANTISE_BLOCK) {
            memset(part, 0, sizeof part);
            memset(last, 0, sizeof last);
            from = (const unsigned char *)memcpy(part, p, ddp__quantise_size(packing, len));
            to = (float *)memcpy(last, to, len * sizeof *to);
        }
        if (packing == DDP_PACK_INT8)
            memcpy(level, from, sizeof level);
        else
            ddp__quantise_double(from, level);
        if (packing == DDP_PACK_E3M0)
            ddp__e3m0_apply(level, scale, how != DDP__UNPACK_STORE, to);
        else
            ddp__quantised_block(level, scale, how != DDP__UNPACK_STORE, to);
        if (to == last) memcpy(x + at, last, len * sizeof *x);
        p += ddp__quantise_size(packing, len);
    }
}
