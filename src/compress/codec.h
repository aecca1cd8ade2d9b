/* Helpers that the compressors share: bit patterns of floats, little-endian fields, the message header, and
 * the arithmetic of block quantisation. */
#pragma once

#include "base/platform.h"
#include "compress/compress.h"

#define DDP__MAGNITUDE UINT32_C(0x7fffffff) /* all bits but the sign; sorts like the magnitudes */
#define DDP__INFINITE  UINT32_C(0x7f800000) /* infinity; larger patterns are NaN */
#define DDP__HUGE      UINT32_C(0x73000000) /* 2^103: a finite x plus a magnitude below it stays finite */
#define DDP__PACK_MOST (SIZE_MAX / 32)      /* limit for n, in elements, so that no size overflows */

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

/* Returns 1 if v is not finite, or if x is finite and x + v is not. */
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

/* Returns 1 if the bits of some magnitude of x[0..15] are above floor. */
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

/* Returns the position of the first of x[0..n-1] with magnitude bits >= `least`, or n if there is none. */
DDP_LIB size_t ddp__first_from(const float *x, size_t n, uint32_t least);
/* Returns the position of the first NaN in x[0..n-1], or n if there is none. */
DDP_LIB size_t ddp__first_nan(const float *x, size_t n);
DDP_LIB ddp_status ddp__found_nan(uint64_t at, ddp_error *err); /* returns DDP_NUMERIC: x[at] is NaN */

/* Returns DDP_NUMERIC if v is not finite, or if x[at] is finite and the sum would not be. |v| < DDP__HUGE
 * never fails. */
DDP_LIB ddp_status ddp__sum_check(ddp__unpack how, const float *x, uint64_t at, float v, ddp_error *err);

#ifndef DDP_NO_PLANNERS
/* Checks the arguments of ddp_topk or ddp_randomk (`who`). */
DDP_LIB ddp_status ddp__select_check(const char *who, const float *x, size_t n, size_t k, const void *scratch,
                                     size_t have, size_t need, const uint64_t *index, ddp_error *err);

/* Returns DDP_ARG if a message of `bytes` bytes does not fit the capacity. */
DDP_LIB ddp_status ddp__pack_room(const void *out, size_t capacity, size_t bytes, ddp_error *err);
DDP_LIB void ddp__pack_head(unsigned char *p, ddp_packing packing, size_t n, size_t k);
#endif

/* ---- int8 and int4 blocks: integer levels in -levels..levels ---- */

/* Returns the value that the receiver decodes for the largest level. */
static inline DDP__DEVICE float ddp__quantise_top(uint32_t scale, double levels)
{
    return (float)((double)ddp__codec_float(scale) * levels);
}

/* Returns the smallest float s for which the largest level decodes to at least `largest`, the largest
 * magnitude of a block. Returns the next smaller float if `levels` times s would not be finite. */
static inline DDP__DEVICE float ddp__quantise_scale_of(float largest, double levels)
{
    uint32_t bits;

    if (!(largest > 0)) return 0;
    /* start with the rounded quotient. The exact answer is at most one float away. */
    bits = ddp__codec_bits((float)((double)largest * (1 / levels)));
    bits += ddp__quantise_top(bits, levels) < largest;
    bits -= ddp__quantise_top(bits - 1, levels) >= largest;
    bits -= (double)ddp__codec_float(bits) * levels > (double)FLT_MAX;
    return ddp__codec_float(bits);
}

/* Returns x / s rounded to the nearest integer, halves away from 0. inverse = 1 / s, or 0.
 *
 * The code adds slightly more than a half to |x| / s and truncates. A quotient of two floats that is not
 * exactly h + 1/2 differs from it by more than 2^-26. For s / 2 <= |x| the numerator of (2 |x| - (2 h + 1) s)
 * / 2 s is a multiple of the last place of s, which is more than s / 2^24; just below s / 2 the last place of
 * x is at least s / 2^25. |x| (1 / s) in double has an error below 2^-44. Exact halves are therefore rounded
 * up and smaller quotients never are: the level equals the level of the exact quotient, with or without fused
 * multiply-add. */
static inline DDP__DEVICE int ddp__quantise_level_of(float x, double inverse)
{
    const int q = (int)(fabs((double)x) * inverse + (0.5 + 1.0 / (1 << 30)));

    return x < 0 ? -q : q;
}

/* Returns level number `at` of a payload. wide: 1 = one byte per level, 0 = half a byte. */
static inline DDP__DEVICE int ddp__quantised_level(int wide, const unsigned char *p, size_t at)
{
    if (wide) return (int)(p[at] ^ 128u) - 128;
    return (int)(p[at / 2] >> 4 * (at % 2) & 15) - 8;
}

/* The quantised payload of n elements: ddp__quantised_fill writes it from finite elements,
 * ddp__quantised_check validates all of it, ddp__quantised_apply decodes it. */
DDP_LIB size_t ddp__quantised_bytes(ddp_packing packing, size_t n); /* 0 if it does not fit size_t */
DDP_LIB void ddp__quantised_fill(ddp_packing packing, const float *x, size_t n, unsigned char *payload);
DDP_LIB ddp_status ddp__quantised_check(ddp_packing packing, const unsigned char *payload, ddp__unpack how,
                                        const float *x, size_t n, ddp_error *err);
DDP_LIB void ddp__quantised_apply(ddp_packing packing, const unsigned char *payload, ddp__unpack how,
                                  float *x, size_t n);
