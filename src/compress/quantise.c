#include "base/platform.h"
#include "base/fail.h"
#include "compress/codec.h"
#include "compress/quantise.h"

/* Products must be rounded before they are added, on every processor: the compiler may not look
 * through this and fuse them. */
#define DDP__QUANTISE_SETTLE(array) __asm__ volatile("" : : "r"(array) : "memory")

static float ddp__quantise_levels(ddp_packing packing)
{
    return packing == DDP_PACK_INT8 ? 127 : 7;
}

static size_t ddp__quantise_blocks(size_t n)
{
    return n / DDP_QUANTISE_BLOCK + (n % DDP_QUANTISE_BLOCK != 0);
}

size_t ddp__quantised_bytes(ddp_packing packing, size_t n)
{
    size_t scales = 4 * ddp__quantise_blocks(n);
    size_t levels = packing == DDP_PACK_INT8 ? n : n / 2 + n % 2;

    return levels > SIZE_MAX - scales ? 0 : scales + levels;
}

/* The scale of n finite elements. */
static float ddp__quantise_scale(const float *x, size_t n, float levels)
{
    uint32_t most = 0, bits;
    float largest, scale;
    size_t i;

    for (i = 0; i < n; i++) {
        bits = ddp__codec_bits(x[i]) & DDP__MAGNITUDE;
        if (bits > most) most = bits;
    }
    largest = ddp__codec_float(most);
    scale = (float)((double)largest / (double)levels);
    bits = ddp__codec_bits(scale);
    if ((double)scale * (double)levels < (double)largest) bits++;
    if ((double)ddp__codec_float(bits) * (double)levels > (double)FLT_MAX) bits--;
    return ddp__codec_float(bits);
}

/* Levels -levels..levels of n elements. In double the quotient is off by less than the distance
 * of any two floats' quotient to a half, so the nearest level is certain. */
static void ddp__quantise_block(const float *x, size_t n, float scale, int *level)
{
    size_t i;

    for (i = 0; i < n; i++) {
        double q = scale > 0 ? (double)x[i] / (double)scale : 0;

        level[i] = (int)(q + (q < 0 ? -0.5 : 0.5));
    }
}

ddp_status ddp_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out,
                              size_t capacity, size_t *bytes, ddp_error *err)
{
    const size_t block = DDP_QUANTISE_BLOCK;
    const float levels = ddp__quantise_levels(packing);
    unsigned char *scales, *p;
    int level[DDP_QUANTISE_BLOCK + 1];
    size_t need, at, len, i;

    if (packing != DDP_PACK_INT8 && packing != DDP_PACK_INT4)
        return ddp__fail(err, DDP_ARG, "ddp_pack_quantised: packing %s does not quantise; use int8 "
                         "or int4", ddp_packing_name(packing));
    if (!x || !bytes) return ddp__fail(err, DDP_ARG, "ddp_pack_quantised: x or bytes is NULL");
    need = ddp_pack_bound(packing, n, n);
    if (!need)
        return ddp__fail(err, DDP_ARG, "ddp_pack_quantised: n = %zu; at least 1 is needed", n);
    DDP__TRY(ddp__pack_room(out, capacity, need, err));
    for (at = 0; at < n; at++)
        if ((ddp__codec_bits(x[at]) & DDP__MAGNITUDE) >= DDP__INFINITE)
            return ddp__fail(err, DDP_NUMERIC, "x[%zu] = %g has no level; only finite numbers "
                             "can be quantised", at, (double)x[at]);

    ddp__pack_head((unsigned char *)out, packing, n, n);
    scales = (unsigned char *)out + DDP_PACK_HEAD;
    p = scales + 4 * ddp__quantise_blocks(n);
    for (at = 0; at < n; at += len, scales += 4) {
        float scale;

        len = n - at < block ? n - at : block;
        scale = ddp__quantise_scale(x + at, len, levels);
        ddp__codec_put32(scales, ddp__codec_bits(scale));
        ddp__quantise_block(x + at, len, scale, level);
        level[len] = 0; /* beside an odd last element */
        if (packing == DDP_PACK_INT8)
            for (i = 0; i < len; i++) *p++ = (unsigned char)level[i];
        else
            for (i = 0; i < len; i += 2)
                *p++ = (unsigned char)((level[i] + 8) | (level[i + 1] + 8) << 4);
    }
    *bytes = need;
    return DDP_OK;
}

/* ---- receiving ---- */

/* Levels of the elements at .. at + len of a payload, at a multiple of the block. */
static void ddp__quantised_levels(ddp_packing packing, const unsigned char *p, size_t at,
                                  size_t len, int *level)
{
    size_t i;

    if (packing == DDP_PACK_INT8)
        for (i = 0; i < len; i++) level[i] = (int)(p[at + i] ^ 128u) - 128;
    else
        for (i = 0; i < len; i++) {
            unsigned two = p[(at + i) / 2];
            level[i] = (int)(two >> 4 * (i % 2) & 15) - 8;
        }
}

ddp_status ddp__quantised_check(ddp_packing packing, const unsigned char *payload, size_t n,
                                ddp_error *err)
{
    const size_t block = DDP_QUANTISE_BLOCK, blocks = ddp__quantise_blocks(n);
    const float levels = ddp__quantise_levels(packing);
    const unsigned char *p = payload + 4 * blocks;
    int level[DDP_QUANTISE_BLOCK];
    size_t b, i;

    for (b = 0; b < blocks; b++) {
        size_t len = b + 1 < blocks ? block : n - b * block;
        float scale = ddp__codec_float(ddp__codec_get32(payload + 4 * b));
        int least = 0;

        if (!(scale >= 0) || !(scale * levels <= FLT_MAX))
            return ddp__fail(err, DDP_FORMAT, "the scale of block %zu is %g; it must be finite and "
                             ">= 0", b, (double)scale);
        ddp__quantised_levels(packing, p, b * block, len, level);
        for (i = 0; i < len; i++)
            if (level[i] < least) least = level[i];
        if (least < -(int)levels)
            return ddp__fail(err, DDP_FORMAT, "block %zu has the level %d; levels begin at %d", b,
                             least, -(int)levels);
    }
    if (packing == DDP_PACK_INT4 && n % 2 && p[n / 2] >> 4 != 8)
        return ddp__fail(err, DDP_FORMAT, "the half byte after the last element is not 8");
    return DDP_OK;
}

void ddp__quantised_apply(ddp_packing packing, const unsigned char *payload, ddp__unpack how,
                          float *x, size_t n)
{
    const unsigned char *p = payload + 4 * ddp__quantise_blocks(n);
    int level[DDP_QUANTISE_BLOCK];
    float v[DDP_QUANTISE_BLOCK];
    size_t at, len, i;

    for (at = 0; at < n; at += len, payload += 4) {
        float scale = ddp__codec_float(ddp__codec_get32(payload));

        len = n - at < DDP_QUANTISE_BLOCK ? n - at : DDP_QUANTISE_BLOCK;
        ddp__quantised_levels(packing, p, at, len, level);
        for (i = 0; i < len; i++) v[i] = (float)level[i] * scale;
        DDP__QUANTISE_SETTLE(v);
        if (how == DDP__UNPACK_STORE)
            memcpy(x + at, v, len * sizeof *v);
        else if (how == DDP__UNPACK_ADD)
            for (i = 0; i < len; i++) x[at + i] += v[i];
        else
            for (i = 0; i < len; i++) x[at + i] -= v[i];
    }
}
