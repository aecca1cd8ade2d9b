#include "base/platform.h"
#include "comm/reduce.h"

/* Sums live in a block that stays in the first-level cache, so that every term is read from
 * memory once; its fixed length lets compilers vectorise at -O2. */
enum { DDP__SUM_BLOCK = 1024 };

static void ddp__add_block(float *DDP_RESTRICT sum, const float *DDP_RESTRICT x)
{
    for (int i = 0; i < DDP__SUM_BLOCK; i++) sum[i] += x[i];
}

static void ddp__scale_block(float *DDP_RESTRICT out, const float *DDP_RESTRICT sum, float scale)
{
    for (int i = 0; i < DDP__SUM_BLOCK; i++) out[i] = sum[i] * scale;
}

static double ddp__distance(const float *DDP_RESTRICT a, const float *DDP_RESTRICT b, size_t count)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        double d0 = (double)a[i] - (double)b[i], d1 = (double)a[i + 1] - (double)b[i + 1];
        double d2 = (double)a[i + 2] - (double)b[i + 2], d3 = (double)a[i + 3] - (double)b[i + 3];
        s0 += d0 * d0;
        s1 += d1 * d1;
        s2 += d2 * d2;
        s3 += d3 * d3;
    }
    for (; i < count; i++) s0 += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return (s0 + s1) + (s2 + s3);
}

static void ddp__host_reduce(float *own, const float *const *terms, int rank, int world,
                             size_t count, float scale, double *divergence)
{
    float sum[DDP__SUM_BLOCK];
    (void)rank;
    for (size_t at = 0; at < count; at += DDP__SUM_BLOCK) {
        size_t n = count - at < DDP__SUM_BLOCK ? count - at : (size_t)DDP__SUM_BLOCK;
        memcpy(sum, terms[0] + at, n * sizeof *sum);
        if (n == DDP__SUM_BLOCK) {
            for (int r = 1; r < world; r++) ddp__add_block(sum, terms[r] + at);
        } else {
            for (int r = 1; r < world; r++)
                for (size_t i = 0; i < n; i++) sum[i] += terms[r][at + i];
        }
        if (divergence) {
            for (size_t i = 0; i < n; i++) sum[i] *= scale;
            *divergence += ddp__distance(sum, own + at, n);
            memcpy(own + at, sum, n * sizeof *sum);
        } else if (n == DDP__SUM_BLOCK) {
            ddp__scale_block(own + at, sum, scale);
        } else {
            for (size_t i = 0; i < n; i++) own[at + i] = sum[i] * scale;
        }
    }
}

static void ddp__host_store(float *own, const float *from, size_t count, double *divergence)
{
    if (divergence) *divergence += ddp__distance(from, own, count);
    memcpy(own, from, count * sizeof *own);
}

static void ddp__host_add(float *sum, const float *own, size_t count)
{
    size_t at = 0;
    for (; at + DDP__SUM_BLOCK <= count; at += DDP__SUM_BLOCK) ddp__add_block(sum + at, own + at);
    for (; at < count; at++) sum[at] += own[at];
}

static uint32_t ddp__bfloat_bits(float x)
{
    uint32_t bits, nan;

    memcpy(&bits, &x, sizeof bits);
    nan = (bits & 0x7fffffffu) > 0x7f800000u; /* rounding up could carry a NaN into infinity */
    return nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

static void ddp__host_halve(uint16_t *out, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] = (uint16_t)ddp__bfloat_bits(x[i]);
}

static void ddp__host_widen(float *out, const uint16_t *x, size_t count)
{
    /* Forwards: value i of out ends before value i + 1 of x where x is out's second half. */
    const unsigned char *from = (const unsigned char *)x;

    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        uint32_t bits;
        memcpy(&half, from + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy((unsigned char *)out + 4 * i, &bits, sizeof bits);
    }
}

static void ddp__host_round(float *out, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = ddp__bfloat_bits(x[i]) << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

static uint64_t ddp__host_checksum(uint64_t h, const float *data, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, data + i, sizeof bits);
        h = (h ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

ddp__memory_ops ddp__host_memory(void)
{
    ddp__memory_ops ops;
    ops.reduce = ddp__host_reduce;
    ops.store = ddp__host_store;
    ops.add = ddp__host_add;
    ops.halve = ddp__host_halve;
    ops.widen = ddp__host_widen;
    ops.round = ddp__host_round;
    ops.checksum = ddp__host_checksum;
    return ops;
}
