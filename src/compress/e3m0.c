/* Block quantisation to a sign and three bits of exponent (Streaming DiLoCo, arXiv:2501.18512): the payload of a
 * message, written and read. */
#include "base/core.h"
#include "compress/codec.h"

enum { DDP__E3M0_LEVELS = 7, DDP__E3M0_SIGN = 8 };

/* A smaller scale would have denormal levels, which are not those of every processor. */
#define DDP__E3M0_LEAST 0x1p-100f

static size_t ddp__e3m0_blocks(size_t n) { return n / DDP_QUANTISE_BLOCK + (n % DDP_QUANTISE_BLOCK != 0); }

/* What code e of a block means: s / 64, s / 32, .. s, exactly. */
static float ddp__e3m0_level(float scale, int e) { return e ? ldexpf(scale, e - DDP__E3M0_LEVELS) : 0; }

/* least[e]: the smallest magnitude whose nearest level is that of e or a larger one; halves go up. */
static void ddp__e3m0_thresholds(float scale, float *least)
{
    for (int e = 1; e <= DDP__E3M0_LEVELS; e++) {
        const double middle = ((double)ddp__e3m0_level(scale, e - 1) + (double)ddp__e3m0_level(scale, e)) / 2;
        least[e] = (float)middle;
        if ((double)least[e] < middle) least[e] = nextafterf(least[e], FLT_MAX);
    }
}

static void ddp__e3m0_block(const float *x, size_t len, float scale, unsigned char *code)
{
    float least[DDP__E3M0_LEVELS + 1];

    memset(code, 0, DDP_QUANTISE_BLOCK);
    if (!(scale > 0)) return;
    ddp__e3m0_thresholds(scale, least);
    for (size_t i = 0; i < len; i++) {
        const float a = fabsf(x[i]);
        int e = 0;
        for (int k = 1; k <= DDP__E3M0_LEVELS; k++) e += a >= least[k];
        code[i] = (unsigned char)(e | (e && x[i] < 0 ? DDP__E3M0_SIGN : 0));
    }
}

void ddp__e3m0_fill(const float *x, size_t n, unsigned char *payload)
{
    unsigned char *p = payload + 4 * ddp__e3m0_blocks(n), code[DDP_QUANTISE_BLOCK];
    size_t len;

    for (size_t at = 0; at < n; at += len, payload += 4) {
        float scale = 0;
        len = n - at < DDP_QUANTISE_BLOCK ? n - at : (size_t)DDP_QUANTISE_BLOCK;
        for (size_t i = at; i < at + len; i++)
            if (fabsf(x[i]) > scale) scale = fabsf(x[i]);
        if (scale < DDP__E3M0_LEAST) scale = 0;
        ddp__codec_put32(payload, ddp__codec_bits(scale));
        ddp__e3m0_block(x + at, len, scale, code);
        for (size_t i = 0; i < len; i += 2) *p++ = (unsigned char)(code[i] | code[i + 1] << 4);
    }
}

static int ddp__e3m0_code(const unsigned char *p, size_t at) { return p[at / 2] >> 4 * (at % 2) & 15; }

ddp_status ddp__e3m0_check(const unsigned char *payload, ddp__unpack how, const float *x, size_t n, ddp_error *err)
{
    const size_t blocks = ddp__e3m0_blocks(n);
    const unsigned char *p = payload + 4 * blocks;

    if (n % 2 && p[n / 2] >> 4)
        return ddp__fail(err, DDP_FORMAT, "the half byte after the last element is not 0");
    for (size_t b = 0; b < blocks; b++) {
        const float scale = ddp__codec_float(ddp__codec_get32(payload + 4 * b));
        if (!(scale >= DDP__E3M0_LEAST && scale <= FLT_MAX) && scale != 0)
            return ddp__fail(err, DDP_FORMAT, "the scale of block %zu is %g; it must be 0, or finite and at least %g", b,
                             (double)scale, (double)DDP__E3M0_LEAST);
        for (size_t at = b * DDP_QUANTISE_BLOCK; at < n && at / DDP_QUANTISE_BLOCK == b; at++) {
            const int code = ddp__e3m0_code(p, at), e = code % DDP__E3M0_SIGN;
            if (code == DDP__E3M0_SIGN || (code && scale == 0))
                return ddp__fail(err, DDP_FORMAT, "element %zu has the code %d, which stands for nothing", at, code);
            if (how != DDP__UNPACK_STORE && scale >= ddp__codec_float(DDP__HUGE))
                DDP__TRY(ddp__sum_check(how, x, at, code > e ? -ddp__e3m0_level(scale, e) : ddp__e3m0_level(scale, e),
                                        err));
        }
    }
    return DDP_OK;
}

void ddp__e3m0_apply(const unsigned char *payload, ddp__unpack how, float *x, size_t n)
{
    const unsigned char *p = payload + 4 * ddp__e3m0_blocks(n);
    float value[2 * DDP__E3M0_SIGN];

    for (size_t at = 0; at < n; at++) {
        if (at % DDP_QUANTISE_BLOCK == 0) {
            const float scale = ddp__codec_float(ddp__codec_get32(payload + at / DDP_QUANTISE_BLOCK * 4));
            for (int e = 0; e < DDP__E3M0_SIGN; e++) {
                value[e] = ddp__e3m0_level(how == DDP__UNPACK_SUBTRACT ? -scale : scale, e);
                value[e + DDP__E3M0_SIGN] = -value[e];
            }
        }
        if (how == DDP__UNPACK_STORE) x[at] = value[ddp__e3m0_code(p, at)];
        else x[at] += value[ddp__e3m0_code(p, at)];
    }
}
