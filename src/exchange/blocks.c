/* Rounds values to blocks of few bits (DDP_WIRE_INT8 and the later wires), and computes the exact
 * residual. */
#include "comm/frame.h"
#include "exchange/exchange.h"
#include "compress/codec.h"
#include "context/context.h"
#include "exchange/average.h"
#include "exchange/update.h"
#include "exchange/verbs.h"

enum { DDP__CODED_PART = 1024 }; /* values rounded at a time, a multiple of the block */

DDP_STATIC_ASSERT((int)DDP_QUANTISE_BLOCK == (int)DDP__CODING_BLOCK, "one block on both sides");

static ddp_packing ddp__packing_of(ddp_coding coding)
{
    return coding == DDP_AS_INT8 ? DDP_PACK_INT8 : coding == DDP_AS_INT4 ? DDP_PACK_INT4 : DDP_PACK_E3M0;
}

/* Sets blocks with a denormal scale to 0: their levels are so coarse that rounding twice would differ from
 * rounding once. */
static void ddp__blocks_normal(ddp_packing packing, unsigned char *out, size_t count)
{
    const size_t blocks = count / DDP_QUANTISE_BLOCK + (count % DDP_QUANTISE_BLOCK != 0);
    const size_t all = ddp__quantised_bytes(packing, count), each = packing == DDP_PACK_INT8 ? 64 : 32;

    for (size_t b = 0; b < blocks; b++) {
        const size_t from = 4 * blocks + b * each;
        if (!(ddp__codec_float(ddp__codec_get32(out + 4 * b)) < FLT_MIN)) continue;
        memset(out + 4 * b, 0, 4);
        memset(out + from, packing == DDP_PACK_INT4 ? 0x88 : 0, all - from < each ? all - from : each);
    }
}

static ddp_status ddp__blocks_fill(ddp_coding coding, unsigned char *out, const float *x, size_t count,
                                   ddp_error *err)
{
    const size_t at = ddp__first_from(x, count, DDP__INFINITE);

    if (at < count)
        return ddp__fail(err, DDP_NUMERIC, "value %zu is %g, which has no level", at, (double)x[at]);
    ddp__quantised_fill(ddp__packing_of(coding), x, count, out);
    ddp__blocks_normal(ddp__packing_of(coding), out, count);
    return DDP_OK;
}

/* ---- block format: in INT8, the only wire of blocks for gradients, -0.0 (ddp_no_gradient) uses the level
 * that no number has ---- */

enum { DDP__LEVEL_NONE = 0x80 };

static ddp_status ddp__blocks_encode(ddp_coding coding, unsigned char *out, const float *x, size_t count,
                                     ddp_error *err)
{
    unsigned char *level = out + 4 * (count / DDP_QUANTISE_BLOCK + (count % DDP_QUANTISE_BLOCK != 0));

    DDP__TRY(ddp__blocks_fill(coding, out, x, count, err));
    for (size_t i = 0; coding == DDP_AS_INT8 && i < count; i++)
        if (ddp_no_gradient(x + i, 1)) level[i] = DDP__LEVEL_NONE;
    return DDP_OK;
}

/* Decodes INT8, block by block. */
static ddp_status ddp__blocks_with_none(float *out, const unsigned char *payload, const unsigned char *level,
                                        size_t count, ddp_error *err)
{
    unsigned char block[4 + DDP_QUANTISE_BLOCK];

    for (size_t at = 0, n; at < count; at += n, payload += 4) {
        n = count - at < DDP_QUANTISE_BLOCK ? count - at : (size_t)DDP_QUANTISE_BLOCK;
        memcpy(block, payload, 4);
        for (size_t i = 0; i < n; i++) block[4 + i] = level[at + i] == DDP__LEVEL_NONE ? 0 : level[at + i];
        DDP__TRY(ddp__quantised_check(DDP_PACK_INT8, block, DDP__UNPACK_STORE, NULL, n, err));
        ddp__quantised_apply(DDP_PACK_INT8, block, DDP__UNPACK_STORE, out + at, n);
        for (size_t i = 0; i < n; i++)
            if (level[at + i] == DDP__LEVEL_NONE) ddp__floats_none(out + at + i, 1);
    }
    return DDP_OK;
}

static ddp_status ddp__blocks_decode(ddp_coding coding, float *out, const unsigned char *payload,
                                     size_t count, ddp_error *err)
{
    const unsigned char *level =
        payload + 4 * (count / DDP_QUANTISE_BLOCK + (count % DDP_QUANTISE_BLOCK != 0));

    if (coding == DDP_AS_INT8 && memchr(level, DDP__LEVEL_NONE, count))
        return ddp__blocks_with_none(out, payload, level, count, err);
    DDP__TRY(ddp__quantised_check(ddp__packing_of(coding), payload, DDP__UNPACK_STORE, NULL, count, err));
    ddp__quantised_apply(ddp__packing_of(coding), payload, DDP__UNPACK_STORE, out, count);
    return DDP_OK;
}

const ddp__coder *ddp__blocks_coder(void)
{
    static const ddp__coder coder = {ddp__blocks_encode, ddp__blocks_decode};

    return &coder;
}

ddp_status ddp_split(ddp_coding coding, float *x, float *out, size_t count, ddp_error *err)
{
    unsigned char payload[DDP__CODED_PART + DDP__CODED_PART / DDP_QUANTISE_BLOCK * 4];
    size_t at = 0, n;

    for (; at < count; at += n) {
        n = count - at < DDP__CODED_PART ? count - at : (size_t)DDP__CODED_PART;
        if (coding == DDP_AS_BFLOAT) {
            memcpy(out + at, x + at, n * sizeof *out);
            ddp__bfloat_round(out + at, n);
        } else {
            DDP__TRY(ddp__blocks_fill(coding, payload, x + at, n, err));
            ddp__quantised_apply(ddp__packing_of(coding), payload, DDP__UNPACK_STORE, out + at, n);
        }
        for (size_t i = at; i < at + n; i++) x[i] -= out[i];
    }
    return DDP_OK;
}

/* ---- rounding before a sum ---- */

int ddp__coded_rounds(const ddp_message *m)
{
    return m->residual && ddp__in_blocks((int)m->coding) && !m->round;
}

static ddp_status ddp__coded_fail(const ddp_ctx *d, const ddp_message *m, const ddp_error *why,
                                  ddp_error *err)
{
    return ddp__fail(
        err, DDP_NUMERIC,
        "step %ld: cannot encode %s of %s%s as %s: %.200s; lower the learning rate, warm it up "
        "or clip gradients",
        m->step, ddp__ops(d)->averages == DDP_AVERAGES_GRADIENTS ? "gradients" : "parameter deltas",
        m->layer < 0 ? "all layers" : "layer ", m->layer < 0 ? "" : ddp__unit_of(d, m->layer)->name,
        ddp__coding_name((int)m->coding), why->msg);
}

/* Excludes a layer without a gradient from rounding: its residual moves to the place of the gradient, so that
 * it waits for the next message, while the other layers are rounded. back 1: restores both. */
static void ddp__coded_set_aside(const ddp_piece *p, float *residual, int back)
{
    memcpy(back ? residual : p->data, back ? p->data : residual, p->count * sizeof *residual);
    ddp__floats_none(back ? p->data : residual, p->count);
}

ddp_status ddp__coded_round(const ddp_ctx *d, const ddp_message *m, ddp_error *err)
{
    float part[DDP__CODED_PART], *residual = m->residual;
    const ddp_piece *to = m->from;
    size_t total = 0, used = 0, n, run; /* used: values of *to already written */
    ddp_status s = DDP_OK;
    ddp_error why;

    for (int p = 0; s == DDP_OK && p < m->from_count; p++) {
        const ddp_piece *x = &m->from[p];
        if (ddp_no_gradient(x->data, x->count))
            ddp__coded_set_aside(x, residual + total, 0);
        else
            s = ddp_feedback_add(residual + total, x->data, x->count, &why);
        total += x->count;
    }
    for (size_t at = 0; s == DDP_OK && at < total; at += n) {
        n = total - at < DDP__CODED_PART ? total - at : (size_t)DDP__CODED_PART;
        s = ddp_split(m->coding, residual + at, part, n, &why);
        for (size_t i = 0; i < n && s == DDP_OK; i += run, used += run) {
            while (used == to->count) {
                to++;
                used = 0;
            }
            run = to->count - used < n - i ? to->count - used : n - i;
            if (!ddp_no_gradient(residual + (at + i - used), to->count))
                memcpy(to->data + used, part + i, run * sizeof *part);
        }
    }
    for (int p = m->from_count - 1; p >= 0; p--) {
        total -= s == DDP_OK ? m->from[p].count : 0;
        if (s == DDP_OK && ddp_no_gradient(residual + total, m->from[p].count))
            ddp__coded_set_aside(&m->from[p], residual + total, 1);
    }
    return s == DDP_OK ? s : ddp__coded_fail(d, m, &why, err);
}

/* ---- the same on a device ---- */

int ddp__coded_goes_there(const ddp_ctx *d, const ddp_message *m)
{
    return d->exchange->coded_there && ddp__coded_rounds(m) && m->residual >= d->exchange->coded &&
           m->residual < d->exchange->coded + d->exchange->coded_count;
}

void ddp__coded_there(ddp_ctx *d, const ddp_message *m, void *out)
{
    const ddp_backend *b = ddp__backend_of(d);
    float *residual = d->exchange->coded_there + (m->residual - d->exchange->coded);
    size_t n = 0;

    for (int i = 0; i < m->from_count; i++) n += m->from[i].count;
    b->axpy(ddp__device_of(d), residual, residual + d->exchange->coded_count, n, 1);
    b->fill(ddp__device_of(d), residual + d->exchange->coded_count, n, 0);
    for (size_t i = 0, from = 0; i < (size_t)m->from_count; from += m->from[i++].count)
        if (m->from[i].count)
            b->axpy(ddp__device_of(d), residual + from, m->from[i].data, m->from[i].count, 1);
    b->split(ddp__device_of(d), m->coding == DDP_AS_INT8 ? 8 : 4, residual, out, n);
}

size_t ddp__coded_bytes(const ddp_message *m, size_t n)
{
    return ddp__quantised_bytes(ddp__packing_of(m->coding), n);
}

ddp_status ddp__coded_read(const ddp_ctx *d, const ddp_message *m, const unsigned char *codes, ddp_error *err)
{
    ddp_error why;

    if (ddp__blocks_decode(m->coding, m->from->data, codes, m->from->count, &why))
        return ddp__coded_fail(d, m, &why, err);
    return DDP_OK;
}

/* The whole residual is copied in elastic worlds, because a rank's segment changes when workers are lost. */
ddp_status ddp__coded_rest(const ddp_ctx *d, const ddp_message *m, size_t n, ddp_error *err)
{
    const size_t at = (size_t)(m->residual - d->exchange->coded);
    size_t from = 0, to = n;

    if (m->owner) return DDP_OK; /* the owner's results are representable: no residual */
    if (ddp__cfg(d)->elastic.min_world == 0 && !ddp__cfg(d)->elastic.join)
        ddp__engine_segment(ddp__engine_of(d, 0), m->group, m->coding, n, &from, &to);
    if (from == to) return DDP_OK;
    DDP__TRY(ddp__backend_of(d)->give(ddp__device_of(d),
                                      d->exchange->coded_there + d->exchange->coded_count + at + from,
                                      m->residual + from, (to - from) * sizeof(float), err));
    memset(m->residual + from, 0, (to - from) * sizeof(float));
    return DDP_OK;
}

void ddp__coded_fold(ddp_ctx *d)
{
    const ddp_backend *b = ddp__backend_of(d);

    if (!d->exchange->coded_there) return;
    b->axpy(ddp__device_of(d), d->exchange->coded_there, d->exchange->coded_there + d->exchange->coded_count,
            d->exchange->coded_count, 1);
    b->fill(ddp__device_of(d), d->exchange->coded_there + d->exchange->coded_count, d->exchange->coded_count,
            0);
}
