/* What the compressors share: bit patterns of floats, little-endian fields, the message header. */
#pragma once

#include "base/platform.h"
#include "compress/compress.h"

#define DDP__MAGNITUDE UINT32_C(0x7fffffff) /* all bits but the sign: ordered as the magnitudes */
#define DDP__INFINITE  UINT32_C(0x7f800000) /* magnitudes above it are NaN */
#define DDP__HUGE      UINT32_C(0x73000000) /* 2^103: less, added to a finite x, stays finite */
#define DDP__PACK_MOST (SIZE_MAX / 32)      /* elements of an array: no size can overflow */

static inline DDP__DEVICE uint32_t ddp__codec_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline DDP__DEVICE float ddp__codec_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline DDP__DEVICE uint32_t ddp__magnitude(float x) { return ddp__codec_bits(x) & DDP__MAGNITUDE; }

/* 1: v is not finite, or x is and x + v is not. */
static inline DDP__DEVICE int ddp__sum_spoils(float x, float v)
{
    return ddp__magnitude(v) >= DDP__INFINITE ||
           (ddp__magnitude(x + v) >= DDP__INFINITE && ddp__magnitude(x) < DDP__INFINITE);
}

static inline void ddp__codec_put32(unsigned char *p, uint32_t v)
{
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
    p[2] = (unsigned char)(v >> 16);
    p[3] = (unsigned char)(v >> 24);
}

static inline uint32_t ddp__codec_get32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void ddp__codec_put64(unsigned char *p, uint64_t v)
{
    ddp__codec_put32(p, (uint32_t)v);
    ddp__codec_put32(p + 4, (uint32_t)(v >> 32));
}

static inline uint64_t ddp__codec_get64(const unsigned char *p)
{
    return (uint64_t)ddp__codec_get32(p) | (uint64_t)ddp__codec_get32(p + 4) << 32;
}

typedef enum ddp__unpack { DDP__UNPACK_STORE, DDP__UNPACK_ADD, DDP__UNPACK_SUBTRACT } ddp__unpack;

enum { DDP__ANY_BLOCK = 16 };
typedef int32_t ddp__any_lanes __attribute__((vector_size(16)));

/* 1 if a magnitude of x[0..15] is above floor. */
static inline int ddp__any_above(const float *x, int32_t floor)
{
    const int32_t m = (int32_t)DDP__MAGNITUDE;
    const ddp__any_lanes magnitude = {m, m, m, m}, least = {floor, floor, floor, floor};
    ddp__any_lanes a, b, c, d;
    uint64_t half[2];

    memcpy(&a, x, sizeof a);
    memcpy(&b, x + 4, sizeof b);
    memcpy(&c, x + 8, sizeof c);
    memcpy(&d, x + 12, sizeof d);
    a = ((a & magnitude) > least) | ((b & magnitude) > least);
    c = ((c & magnitude) > least) | ((d & magnitude) > least);
    a |= c;
    memcpy(half, &a, sizeof half);
    return (half[0] | half[1]) != 0;
}

/* Position of the first of x[0..n-1] whose magnitude's bits are at least `least`; n if none is. */
DDP_LIB size_t ddp__first_from(const float *x, size_t n, uint32_t least);
/* Position of the first NaN of x[0..n-1]; n if there is none. */
DDP_LIB size_t ddp__first_nan(const float *x, size_t n);
DDP_LIB ddp_status ddp__found_nan(uint64_t at, ddp_error *err); /* DDP_NUMERIC: x[at] is NaN. */

/* DDP_NUMERIC if v is not finite, or a finite x[at] would not stay so; nothing to say of a |v| below
 * DDP__HUGE. */
DDP_LIB ddp_status ddp__sum_check(ddp__unpack how, const float *x, uint64_t at, float v, ddp_error *err);

#ifndef DDP_NO_PLANNERS
/* A selection's arguments. */
DDP_LIB ddp_status ddp__select_check(const char *who, const float *x, size_t n, size_t k, const void *scratch,
                                     size_t have, size_t need, const uint64_t *index, ddp_error *err);

/* DDP_ARG if bytes do not fit the capacity. */
DDP_LIB ddp_status ddp__pack_room(const void *out, size_t capacity, size_t bytes, ddp_error *err);
DDP_LIB void ddp__pack_head(unsigned char *p, ddp_packing packing, size_t n, size_t k);
#endif

/* ---- blocks in equal steps, of levels -levels..levels ---- */

/* What the largest level means, as it is received. */
static inline DDP__DEVICE float ddp__quantise_top(uint32_t scale, double levels)
{
    return (float)((double)ddp__codec_float(scale) * levels);
}

/* The smallest float of which the largest level means at least the largest magnitude of a block; one less
 * where that would not be finite. */
static inline DDP__DEVICE float ddp__quantise_scale_of(float largest, double levels)
{
    uint32_t bits;

    if (!(largest > 0)) return 0;
    /* the float above or below the quotient, or the quotient */
    bits = ddp__codec_bits((float)((double)largest * (1 / levels)));
    bits += ddp__quantise_top(bits, levels) < largest;
    bits -= ddp__quantise_top(bits - 1, levels) >= largest;
    bits -= (double)ddp__codec_float(bits) * levels > (double)FLT_MAX;
    return ddp__codec_float(bits);
}

/* x / s rounded, halves away from 0; inverse = 1 / s, or 0.
 *
 * What is added to |x| / s before it is cut to a whole number: a half, and a little. Where the quotient of
 * two floats is not h + 1/2 exactly, it is further than 2^-26 from it: for s / 2 <= |x| the numerator of (2
 * |x| - (2 h + 1) s) / 2 s is a multiple of the last place of s, which is more than s / 2^24; just below s /
 * 2 the last place of x is s / 2^25 at least. |x| (1 / s) in double is off by less than 2^-44. So exact
 * halves go up, what is below them never does, and the level is that of the exact quotient, fused
 * multiply-add or not. */
static inline DDP__DEVICE int ddp__quantise_level_of(float x, double inverse)
{
    const int q = (int)(fabs((double)x) * inverse + (0.5 + 1.0 / (1 << 30)));

    return x < 0 ? -q : q;
}

/* Level `at` of a payload; wide: a byte each, else a half byte. */
static inline DDP__DEVICE int ddp__quantised_level(int wide, const unsigned char *p, size_t at)
{
    if (wide) return (int)(p[at] ^ 128u) - 128;
    return (int)(p[at / 2] >> 4 * (at % 2) & 15) - 8;
}

/* A quantised payload of n elements: fill writes it, of finite elements; check validates all of it; apply
 * reads it. */
DDP_LIB size_t ddp__quantised_bytes(ddp_packing packing, size_t n); /* 0: does not fit size_t */
DDP_LIB void ddp__quantised_fill(ddp_packing packing, const float *x, size_t n, unsigned char *payload);
DDP_LIB ddp_status ddp__quantised_check(ddp_packing packing, const unsigned char *payload, ddp__unpack how,
                                        const float *x, size_t n, ddp_error *err);
DDP_LIB void ddp__quantised_apply(ddp_packing packing, const unsigned char *payload, ddp__unpack how,
                                  float *x, size_t n);
