/* Block quantisation on the GPU, byte-identical to compress/quantise.c. 16 lanes share a block of 64
 * elements, four each. */
#pragma once

#include "cuda/feedback.cuh"

enum { DDP__PACK_LANES = DDP_QUANTISE_BLOCK / 4 };

/* A message in device memory. */
typedef struct ddp__quantised {
    unsigned char *head;
    float *scale; /* [blocks] */
    unsigned char *level;
    size_t n, blocks;
    int levels, wide; /* levels is 127 or 7, wide is 1 for one byte per level */
    unsigned char want[DDP_PACK_HEAD];
} ddp__quantised;

static ddp__quantised ddp__quantised_of(ddp_packing packing, void *message, size_t n)
{
    ddp__quantised q;

    q.n = n;
    q.blocks = n / DDP_QUANTISE_BLOCK + (n % DDP_QUANTISE_BLOCK != 0);
    q.head = (unsigned char *)message;
    q.scale = (float *)(void *)(q.head + DDP_PACK_HEAD);
    q.level = (unsigned char *)(q.scale + q.blocks);
    q.wide = packing == DDP_PACK_INT8;
    q.levels = q.wide ? 127 : 7;
    ddp__pack_head(q.want, packing, n, n);
    return q;
}

static __global__ void ddp__k_quantise_check(const float *x, size_t n, ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < n; i += ddp__thread_step())
        if (ddp__magnitude(x[i]) >= DDP__INFINITE) ddp__verdict_note(v, DDP__SAYS_NO_LEVEL, i);
}

/* The largest magnitude of a block. Each lane passes its four elements. All lanes of a warp must call it. */
static inline __device__ uint32_t ddp__quantise_most(const float *e)
{
    uint32_t most = 0;

    for (int i = 0; i < 4; i++)
        if (ddp__magnitude(e[i]) > most) most = ddp__magnitude(e[i]);
    for (int i = DDP__PACK_LANES / 2; i; i /= 2) {
        const uint32_t other = __shfl_xor_sync(DDP__ALL_LANES, most, i);
        if (other > most) most = other;
    }
    return most;
}

/* Stores the levels of four elements from index at on, or of fewer at the end of the array. */
static inline __device__ void ddp__quantise_put(const ddp__quantised &q, const int *level, size_t at)
{
    uint32_t word = 0;
    int i;

    if (q.wide && at + 4 <= q.n) {
        for (i = 0; i < 4; i++) word |= ((uint32_t)level[i] & 255) << 8 * i;
        *(uint32_t *)(void *)(q.level + at) = word;
    } else if (q.wide) {
        for (i = 0; i < 4 && at + (size_t)i < q.n; i++) q.level[at + (size_t)i] = (unsigned char)level[i];
    } else {
        for (i = 0; i < 4 && at + (size_t)i < q.n; i += 2)
            q.level[(at + (size_t)i) / 2] = (unsigned char)(level[i] + 8 + ((level[i + 1] + 8) << 4));
    }
}

/* With SPLIT, as in the split of blocks.c, writes only the payload, and x keeps the residual. A block with a
 * denormal scale is sent as zeros. If values are not finite, their magnitude becomes the scale, which the
 * receiver rejects. Otherwise writes the whole message. The verdict has already checked the values. */
template <int SPLIT> __global__ void ddp__k_quantise(ddp__quantised q, float *x, const ddp_cuda_verdict *v)
{
    const size_t lane = threadIdx.x % DDP__PACK_LANES, step = ddp__thread_step() / DDP__PACK_LANES;
    const int aligned = ddp__aligned(x);
    size_t b = ddp__thread_first() / DDP__PACK_LANES;

    if (!SPLIT && v->what) return;
    if (!SPLIT && ddp__thread_first() < DDP_PACK_HEAD)
        q.head[ddp__thread_first()] = q.want[ddp__thread_first()];
    /* all lanes of a warp stay in the loop together, for the shuffles */
    for (; b / 2 * 2 < q.blocks; b += step) {
        const size_t at = b * DDP_QUANTISE_BLOCK + 4 * lane;
        float e[4], scale;
        double inverse;
        uint32_t most;
        int level[4];

        ddp__piece_load(e, x, (long)at, (long)q.n, aligned && at + 4 <= q.n);
        most = ddp__quantise_most(e);
        scale = __uint_as_float(most);
        if (b >= q.blocks) continue;
        if (!SPLIT || most < DDP__INFINITE) scale = ddp__quantise_scale_of(scale, (double)q.levels);
        if (SPLIT && scale < FLT_MIN) scale = 0;
        inverse = scale > 0 && (!SPLIT || most < DDP__INFINITE) ? 1 / (double)scale : 0;
        for (int i = 0; i < 4; i++) level[i] = inverse > 0 ? ddp__quantise_level_of(e[i], inverse) : 0;
        if (lane == 0) q.scale[b] = scale;
        ddp__quantise_put(q, level, at);
        for (int i = 0; SPLIT && i < 4 && at + (size_t)i < q.n; i++)
            x[at + (size_t)i] = __fsub_rn(e[i], __fmul_rn((float)level[i], scale));
    }
}

/* ---- receiving ---- */

static __global__ void ddp__k_quantised_check(ddp__quantised q, const float *x, ddp__unpack how,
                                              ddp_cuda_verdict *v)
{
    const float levels = (float)q.levels, huge = __uint_as_float(DDP__HUGE);
    const size_t first = ddp__thread_first();

    if (v->what) return;
    if (first < DDP_PACK_HEAD && q.head[first] != q.want[first]) ddp__verdict_note(v, DDP__SAYS_HEAD, first);
    if (first == 0 && !q.wide && q.n % 2 && q.level[q.n / 2] >> 4 != 8)
        ddp__verdict_note(v, DDP__SAYS_HALF, q.n);
    for (size_t i = first; i < q.n; i += ddp__thread_step()) {
        const float scale = q.scale[i / DDP_QUANTISE_BLOCK];
        const int level = ddp__quantised_level(q.wide, q.level, i);

        if (level < -q.levels) ddp__verdict_note(v, DDP__SAYS_LOW, i);
        if (!(scale >= 0) || !(scale * levels <= FLT_MAX)) {
            ddp__verdict_note(v, DDP__SAYS_SCALE, i / DDP_QUANTISE_BLOCK);
        } else if (how != DDP__UNPACK_STORE && scale * levels >= huge) {
            const float value = __fmul_rn((float)level, scale);
            if (ddp__sum_spoils(x[i], how == DDP__UNPACK_SUBTRACT ? -value : value))
                ddp__verdict_note(v, how == DDP__UNPACK_SUBTRACT ? DDP__SAYS_DIFFERENCE : DDP__SAYS_SUM, i);
        }
    }
}

struct ddp__verdict_quantised {
    ddp__quantised q;
    const float *x;

    __device__ void operator()(ddp_cuda_verdict *v) const
    {
        if (v->what == DDP__SAYS_HEAD) v->number = q.n;
        if (v->what == DDP__SAYS_SCALE) v->value[0] = q.scale[v->at];
        if (v->what == DDP__SAYS_LOW) v->value[0] = (float)ddp__quantised_level(q.wide, q.level, v->at);
        if (v->what < DDP__SAYS_SUM) return;
        v->value[0] = x[v->at];
        v->value[1] =
            (float)ddp__quantised_level(q.wide, q.level, v->at) * q.scale[v->at / DDP_QUANTISE_BLOCK];
    }
};

/* Product and sum are rounded separately, as on the CPU. */
static __global__ void ddp__k_quantised_apply(ddp__quantised q, float *x, ddp__unpack how,
                                              const ddp_cuda_verdict *v)
{
    if (v->what) return;
    for (size_t i = ddp__thread_first(); i < q.n; i += ddp__thread_step()) {
        const float scale = q.scale[i / DDP_QUANTISE_BLOCK];
        const float value = __fmul_rn((float)ddp__quantised_level(q.wide, q.level, i),
                                      how == DDP__UNPACK_SUBTRACT ? -scale : scale);
        x[i] = how == DDP__UNPACK_STORE ? value : __fadd_rn(x[i], value);
    }
}

/* ---- on the host ---- */

/* Checks packing, pointers and size. *need: bytes of the message. */
static ddp_status ddp__quantised_arguments(const char *who, ddp_packing packing, const void *x, size_t n,
                                           const void *message, const ddp_cuda_verdict *verdict, size_t *need,
                                           ddp_error *err)
{
    if (packing != DDP_PACK_INT8 && packing != DDP_PACK_INT4)
        return ddp__fail(err, DDP_ARG, "%s: packing %d (%s) does not quantise; use int8 or int4", who,
                         (int)packing, ddp_packing_name(packing));
    if (!x || !verdict) return ddp__fail(err, DDP_ARG, "%s: x or verdict is NULL", who);
    *need = ddp_pack_bound(packing, n, n);
    if (!*need)
        return ddp__fail(err, DDP_ARG, "%s: n = %zu; 1 to %zu elements make a message", who, n,
                         DDP__PACK_MOST);
    if (!message || (uintptr_t)message % 4)
        return ddp__fail(err, DDP_ARG, "%s: the message must not be NULL and must be aligned to 4", who);
    return DDP_OK;
}

ddp_status ddp_cuda_pack_quantised(ddp_packing packing, const float *x, size_t n, void *out, size_t capacity,
                                   size_t *bytes, ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    const ddp__verdict_values values = {x, NULL};
    ddp__quantised q;
    size_t need;

    if (!bytes) return ddp__fail(err, DDP_ARG, "ddp_cuda_pack_quantised: bytes is NULL");
    DDP__TRY(ddp__quantised_arguments("ddp_cuda_pack_quantised", packing, x, n, out, verdict, &need, err));
    DDP__TRY(ddp__pack_room(out, capacity, need, err));
    q = ddp__quantised_of(packing, out, n);
    DDP__STRIDE(ddp__k_quantise_check, n, x, n, verdict);
    DDP__RUN((ddp__k_verdict<ddp__verdict_values>), 1, 1, verdict, values);
    DDP__STRIDE(ddp__k_quantise<0>, q.blocks * DDP__PACK_LANES, q, (float *)(uintptr_t)x, verdict);
    *bytes = need;
    return ddp__cuda_queued(dev, err);
}

static ddp_status ddp__cuda_unpack(const char *who, ddp_packing packing, const void *message, size_t bytes,
                                   ddp__unpack how, float *x, size_t n, ddp_cuda_verdict *verdict,
                                   void *stream, ddp_error *err)
{
    ddp__cuda_queue queue = ddp__cuda_queue_on(stream), *dev = &queue;
    ddp__verdict_quantised values;
    size_t need;

    DDP__TRY(ddp__quantised_arguments(who, packing, x, n, message, verdict, &need, err));
    if (bytes != need)
        return ddp__fail(err, DDP_ARG, "%s: the message has %zu bytes, one of %zu elements has %zu", who,
                         bytes, n, need);
    values.x = x;
    values.q = ddp__quantised_of(packing, (void *)message, n);
    DDP__STRIDE(ddp__k_quantised_check, n, values.q, x, how, verdict);
    DDP__RUN((ddp__k_verdict<ddp__verdict_quantised>), 1, 1, verdict, values);
    DDP__STRIDE(ddp__k_quantised_apply, n, values.q, x, how, verdict);
    return ddp__cuda_queued(dev, err);
}

ddp_status ddp_cuda_unpack_store(ddp_packing packing, const void *message, size_t bytes, float *x, size_t n,
                                 ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    return ddp__cuda_unpack("ddp_cuda_unpack_store", packing, message, bytes, DDP__UNPACK_STORE, x, n,
                            verdict, stream, err);
}

ddp_status ddp_cuda_unpack_add(ddp_packing packing, const void *message, size_t bytes, float *x, size_t n,
                               ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    return ddp__cuda_unpack("ddp_cuda_unpack_add", packing, message, bytes, DDP__UNPACK_ADD, x, n, verdict,
                            stream, err);
}

ddp_status ddp_cuda_feedback_subtract(ddp_packing packing, const void *message, size_t bytes, float *residual,
                                      size_t n, ddp_cuda_verdict *verdict, void *stream, ddp_error *err)
{
    return ddp__cuda_unpack("ddp_cuda_feedback_subtract", packing, message, bytes, DDP__UNPACK_SUBTRACT,
                            residual, n, verdict, stream, err);
}
