/* What strategies average as int8 blocks (DDP_WIRE_INT8). What rounding cuts off is kept and sent
 * with the next message (error feedback: Seide et al. 2014, Karimireddy et al. 2019), on the
 * sender's side here and for the result by its owner, in the engine. Parameters are not sent, but
 * what they changed by since their last average, which all ranks hold alike: eight bits of a weight
 * are few, eight bits of its change are enough. */
#include "base/platform.h"
#include "compress/codec.h"
#include "compress/feedback.h"
#include "compress/quantise.h"
#include "sync/context.h"

enum { DDP__CODED_PART = 1024 }; /* values rounded at a time; whole blocks */

DDP_STATIC_ASSERT((int)DDP_QUANTISE_BLOCK == (int)DDP__CODING_BLOCK, "one block on both sides");

/* ---- blocks ---- */

static ddp_status ddp__int8_encode(unsigned char *out, const float *x, size_t count, ddp_error *err)
{
    size_t at = ddp__first_from(x, count, DDP__INFINITE), b, blocks;

    if (at < count)
        return ddp__fail(err, DDP_NUMERIC, "value %zu is %g, which has no level", at,
                         (double)x[at]);
    ddp__quantised_fill(DDP_PACK_INT8, x, count, out);
    /* Levels of a denormal scale are so coarse that rounding twice is not rounding once. */
    blocks = count / DDP_QUANTISE_BLOCK + (count % DDP_QUANTISE_BLOCK != 0);
    for (b = 0; b < blocks; b++) {
        size_t from = b * DDP_QUANTISE_BLOCK;
        if (!(ddp__codec_float(ddp__codec_get32(out + 4 * b)) < FLT_MIN)) continue;
        memset(out + 4 * b, 0, 4);
        memset(out + 4 * blocks + from, 0,
               count - from < DDP_QUANTISE_BLOCK ? count - from : (size_t)DDP_QUANTISE_BLOCK);
    }
    return DDP_OK;
}

static ddp_status ddp__int8_decode(float *out, const unsigned char *payload, size_t count,
                                   ddp_error *err)
{
    DDP__TRY(ddp__quantised_check(DDP_PACK_INT8, payload, DDP__UNPACK_STORE, NULL, count, err));
    ddp__quantised_apply(DDP_PACK_INT8, payload, DDP__UNPACK_STORE, out, count);
    return DDP_OK;
}

const ddp__coder *ddp__int8_coder(void)
{
    static const ddp__coder coder = {ddp__int8_encode, ddp__int8_decode};

    return &coder;
}

/* Moves what the blocks of x can say to out; x keeps the rest. */
static ddp_status ddp__coded_split(float *x, float *out, size_t count, ddp_error *err)
{
    unsigned char payload[DDP__CODED_PART + DDP__CODED_PART / DDP_QUANTISE_BLOCK * 4];
    size_t at = 0, n, i;

    for (; at < count; at += n) {
        n = count - at < DDP__CODED_PART ? count - at : (size_t)DDP__CODED_PART;
        DDP__TRY(ddp__int8_encode(payload, x + at, n, err));
        ddp__quantised_apply(DDP_PACK_INT8, payload, DDP__UNPACK_STORE, out + at, n);
        for (i = at; i < at + n; i++) x[i] -= out[i];
    }
    return DDP_OK;
}

/* ---- memory ---- */

ddp__coding ddp__wire_coding(ddp_wire wire)
{
    return wire == DDP_WIRE_BF16   ? DDP__AS_BFLOAT
           : wire == DDP_WIRE_INT8 ? DDP__AS_INT8
                                   : DDP__AS_FLOAT;
}

size_t ddp__coded_bytes(const ddp_ctx *d, size_t trained, size_t others)
{
    const ddp__coding coding = ddp__wire_coding(d->cfg.wire);

    if (coding == DDP__AS_INT8)
        return ddp__frame_payload((int)coding, trained) + others * sizeof(float);
    return (trained + others) * (coding == DDP__AS_BFLOAT ? sizeof(uint16_t) : sizeof(float));
}

/* The pieces of a layer's average that are no parameters: they travel as floats, since a rounded
 * variance might be below zero. */
static ddp_status ddp__coded_others(ddp__unit *u, ddp_error *err)
{
    int i, b;

    u->other = (ddp__piece *)ddp__calloc((size_t)u->averages + 1, sizeof *u->other);
    if (!u->other) return ddp__fail(err, DDP_MEMORY, "layer %s: out of memory", u->name);
    for (i = 0; i < u->averages; i++) {
        int param = 0;
        for (b = 0; b < u->blocks; b++)
            param |= u->block[b].kind == DDP_PARAMS && u->block[b].params == u->average[i].data;
        if (!param) u->other[u->others++] = u->average[i];
    }
    return DDP_OK;
}

ddp_status ddp__coded_memory(ddp_ctx *d, ddp_error *err)
{
    const int averages = d->strategy->id != DDP_SSGD && d->strategy->id != DDP_WFBP;
    size_t count = 0;
    float *next;
    int l;

    if (d->cfg.wire != DDP_WIRE_INT8 || !(d->engine || d->joiner)) return DDP_OK;
    for (l = 0; l < d->layers; l++) count += d->unit[l].trained;
    d->coded_count = count * (averages ? 3 : 1);
    if (!count) return DDP_OK;
    d->coded = (float *)ddp__alloc(&d->host.allocator, d->coded_count * sizeof(float));
    if (!d->coded)
        return ddp__fail(err, DDP_MEMORY, "out of memory for %zu bytes of what int8 blocks cut off",
                         d->coded_count * sizeof(float));
    memset(d->coded, 0, d->coded_count * sizeof(float));
    next = d->coded;
    for (l = d->layers - 1; l >= 0; l--) { /* as gradients lie in a message of several layers */
        ddp__unit *u = &d->unit[l];
        u->residual = next;
        if (averages) {
            u->base = next + count;
            u->delta = next + 2 * count;
            DDP__TRY(ddp__coded_others(u, err));
        }
        next += u->trained;
    }
    return DDP_OK;
}

void ddp__coded_close(ddp_ctx *d)
{
    ddp__release(&d->host.allocator, d->coded, d->coded_count * sizeof(float));
}

void ddp__coded_base(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    float *base = u->base;
    int b;

    for (b = 0; base && b < u->blocks; b++) {
        const ddp_block *k = &u->block[b];
        if (k->kind != DDP_PARAMS || !k->grads) continue;
        memcpy(base, k->params, k->count * sizeof *base);
        base += k->count;
    }
}

void ddp__coded_start(ddp_ctx *d, int base)
{
    int l;

    for (l = 0; d->coded && l < d->layers; l++) {
        if (d->unit[l].trained)
            memset(d->unit[l].residual, 0, d->unit[l].trained * sizeof(float));
        if (base) ddp__coded_base(d, l);
    }
}

/* ---- gradients ---- */

/* Where the next value of a list of pieces goes. */
typedef struct ddp__coded_cursor {
    const ddp__piece *piece;
    size_t            at;
} ddp__coded_cursor;

static void ddp__coded_put(ddp__coded_cursor *c, const float *x, size_t count)
{
    size_t done = 0, n;

    for (; done < count; done += n) {
        while (c->at == c->piece->count) {
            c->piece++;
            c->at = 0;
        }
        n = c->piece->count - c->at;
        if (n > count - done) n = count - done;
        memcpy(c->piece->data + c->at, x + done, n * sizeof *x);
        c->at += n;
    }
}

ddp_status ddp__coded_gradients(ddp_ctx *d, const ddp__piece *pieces, int count, int layer,
                                float *residual, ddp_error *err)
{
    float part[DDP__CODED_PART];
    ddp__coded_cursor to;
    size_t total = 0, at, n;
    ddp_status s = DDP_OK;
    ddp_error why;
    int p;

    for (p = 0; s == DDP_OK && p < count; p++) {
        s = ddp_feedback_add(residual + total, pieces[p].data, pieces[p].count, &why);
        total += pieces[p].count;
    }
    to.piece = pieces;
    to.at = 0;
    for (at = 0; s == DDP_OK && at < total; at += n) {
        n = total - at < DDP__CODED_PART ? total - at : (size_t)DDP__CODED_PART;
        s = ddp__coded_split(residual + at, part, n, &why);
        if (s == DDP_OK) ddp__coded_put(&to, part, n);
    }
    if (s == DDP_OK) return s;
    return ddp__fail(err, s, "step %ld: gradients of %s%s cannot travel as int8 blocks: %.200s; "
                     "lower the learning rate, warm it up or clip gradients", d->step,
                     layer < 0 ? "all layers" : "layer ", layer < 0 ? "" : d->unit[layer].name,
                     why.msg);
}

/* ---- parameters ---- */

ddp_status ddp__coded_average(ddp_ctx *d, int layer, ddp__message *m, ddp_error *err)
{
    ddp__unit *u = &d->unit[layer];
    float *rest = u->residual;
    const float *base = u->base;
    ddp__piece delta;
    ddp_error why;
    size_t i;
    int b;

    if (u->others) {
        m->pieces = u->other;
        m->piece_count = u->others;
        m->coding = DDP__AS_FLOAT;
        DDP__TRY(ddp__ctx_submit(d, m, &u->other_ticket, err));
    }
    if (!u->trained) return DDP_OK;
    for (b = 0; b < u->blocks; b++) {
        const ddp_block *k = &u->block[b];
        if (k->kind != DDP_PARAMS || !k->grads) continue;
        for (i = 0; i < k->count; i++) rest[i] += k->params[i] - base[i];
        rest += k->count;
        base += k->count;
    }
    if (ddp__coded_split(u->residual, u->delta, u->trained, &why))
        return ddp__fail(err, why.code,
                         "step %ld: what layer %s changed by cannot travel as int8 blocks: %.200s; "
                         "lower the learning rate, warm it up or clip gradients",
                         d->step, u->name, why.msg);
    delta.data = u->delta;
    delta.count = u->trained;
    m->pieces = &delta;
    m->piece_count = 1;
    m->coding = DDP__AS_INT8;
    m->residual = u->residual;
    m->divergence = &u->divergence;
    DDP__TRY(ddp__ctx_submit(d, m, &u->ticket, err));
    u->changing = 1;
    return DDP_OK;
}

void ddp__coded_arrived(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    const float *base = u->base, *delta = u->delta;
    size_t i;
    int b;

    for (b = 0; u->changing && b < u->blocks; b++) {
        const ddp_block *k = &u->block[b];
        if (k->kind != DDP_PARAMS || !k->grads) continue;
        for (i = 0; i < k->count; i++) k->params[i] = base[i] + delta[i];
        base += k->count;
        delta += k->count;
    }
    u->changing = 0;
    ddp__coded_base(d, layer);
}
