/* Error feedback: what strategies average as blocks (DDP_WIRE_INT8 and those behind it). What rounding cuts off is kept and sent with
 * the next message (Seide et al. 2014, Karimireddy et al. 2019), on the sender's side here and for the result by its
 * owner, in the engine. Then parameters are not sent, but what they changed by since their last average, which all
 * ranks hold: eight bits of a weight are few, eight bits of its change are enough. */
#include "comm/frame.h"
#include "compress/codec.h"
#include "compress/compress.h"
#include "run/device.h"

enum { DDP__CODED_PART = 1024 }; /* values rounded at a time; whole blocks */

DDP_STATIC_ASSERT((int)DDP_QUANTISE_BLOCK == (int)DDP__CODING_BLOCK, "one block on both sides");

/* ---- blocks ---- */

static ddp_packing ddp__packing_of(ddp_coding coding)
{
    return coding == DDP_AS_INT8 ? DDP_PACK_INT8 : coding == DDP_AS_INT4 ? DDP_PACK_INT4 : DDP_PACK_E3M0;
}

/* Levels of a denormal scale are so coarse that rounding twice is not rounding once: they become 0. */
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

static ddp_status ddp__blocks_encode(ddp_coding coding, unsigned char *out, const float *x, size_t count,
                                     ddp_error *err)
{
    const size_t at = ddp__first_from(x, count, DDP__INFINITE);

    if (at < count) return ddp__fail(err, DDP_NUMERIC, "value %zu is %g, which has no level", at, (double)x[at]);
    ddp__quantised_fill(ddp__packing_of(coding), x, count, out);
    ddp__blocks_normal(ddp__packing_of(coding), out, count);
    return DDP_OK;
}

static ddp_status ddp__blocks_decode(ddp_coding coding, float *out, const unsigned char *payload, size_t count,
                                     ddp_error *err)
{
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
            DDP__TRY(ddp__blocks_encode(coding, payload, x + at, n, err));
            ddp__quantised_apply(ddp__packing_of(coding), payload, DDP__UNPACK_STORE, out + at, n);
        }
        for (size_t i = at; i < at + n; i++) x[i] -= out[i];
    }
    return DDP_OK;
}

/* ---- memory ---- */

ddp_status ddp__coded_memory(ddp_ctx *d, ddp_error *err)
{
    const int averages = d->ops.averages == DDP_AVERAGES_PARAMETERS;
    size_t count = 0;
    float *next;

    if (!ddp__in_blocks((int)ddp__wire_coding(d->cfg.wire)) || !(d->engine || d->joiner)) return DDP_OK;
    for (int l = 0; l < d->layers; l++) count += d->unit[l].trained;
    d->coded_count = count * (averages ? 3 : 1);
    if (!count) return DDP_OK;
    d->coded = (float *)ddp__alloc(&d->host.allocator, d->coded_count * sizeof(float));
    if (!d->coded)
        return ddp__fail(err, DDP_MEMORY, "out of memory for %zu bytes of what %s cut off",
                         d->coded_count * sizeof(float), ddp__coding_name((int)ddp__wire_coding(d->cfg.wire)));
    memset(d->coded, 0, d->coded_count * sizeof(float));
    next = d->coded;
    for (int l = d->layers - 1; l >= 0; l--) { /* as gradients lie in a message of several layers */
        ddp__unit *u = &d->unit[l];
        u->residual = next;
        if (averages) {
            u->base = next + count;
            u->delta = next + 2 * count;
        }
        next += u->trained;
    }
    return DDP_OK;
}

void ddp__coded_close(ddp_ctx *d) { ddp__release(&d->host.allocator, d->coded, d->coded_count * sizeof(float)); }

static void ddp__coded_base(ddp_ctx *d, int layer)
{
    const ddp__unit *u = &d->unit[layer];
    float *base = u->base;

    for (int k = 0; base && k < u->gradients; base += u->trains[k++].count)
        memcpy(base, u->trains[k].data, u->trains[k].count * sizeof *base);
}

void ddp__coded_start(ddp_ctx *d, int base)
{
    for (int l = 0; d->coded && l < d->layers; l++) {
        if (d->unit[l].trained) memset(d->unit[l].residual, 0, d->unit[l].trained * sizeof(float));
        if (base) ddp__coded_base(d, l);
    }
}

/* ---- gradients ---- */

ddp_status ddp__coded_round(ddp_ctx *d, const ddp_piece *pieces, int count, int layer, float *residual, ddp_error *err)
{
    float part[DDP__CODED_PART], *from, *to;
    ddp_piece source = {{part}, 0};
    size_t total = 0, n, run;
    ddp_status s = DDP_OK;
    ddp__walk w = ddp__walk_of(NULL, 0, pieces, count);
    ddp_error why;

    for (int p = 0; s == DDP_OK && p < count; p++) {
        s = ddp_feedback_add(residual + total, pieces[p].data, pieces[p].count, &why);
        total += pieces[p].count;
    }
    for (size_t at = 0; s == DDP_OK && at < total; at += n) {
        n = total - at < DDP__CODED_PART ? total - at : (size_t)DDP__CODED_PART;
        s = ddp_split(ddp__wire_coding(d->cfg.wire), residual + at, part, n, &why);
        source.count = n;
        w.from = &source, w.from_count = 1, w.from_at = 0;
        while (s == DDP_OK && (run = ddp__walk_next(&w, &from, &to)) > 0) memcpy(to, from, run * sizeof *to);
    }
    if (s == DDP_OK) return s;
    return ddp__fail(err, s, "step %ld: %s of %s%s cannot travel as %s: %.200s; lower the learning rate, warm it up or "
                     "clip gradients", d->step, d->ops.averages == DDP_AVERAGES_GRADIENTS ? "gradients" : "changes",
                     layer < 0 ? "all layers" : "layer ", layer < 0 ? "" : d->unit[layer].name,
                     ddp__coding_name((int)ddp__wire_coding(d->cfg.wire)), why.msg);
}

/* ---- parameters ---- */

ddp_status ddp__coded_average(ddp_ctx *d, int layer, ddp_message *m, ddp_error *err)
{
    const ddp_coding coding = ddp__wire_coding(d->cfg.wire);
    ddp__unit *u = &d->unit[layer];
    float *to;
    const float *base = u->base;
    const ddp_piece delta = {{u->delta}, u->trained};
    ddp_error why;
    int crosses;

    ddp__average_takes(d, layer, u->other, u->others, m);
    if (m->from_count) {
        m->coding = DDP_AS_FLOAT;
        DDP__TRY(ddp__post(d, m, 1, &u->other_ticket, err));
    }
    if (!u->trained) return DDP_OK;
    m->from = &delta;
    m->from_count = 1;
    m->coding = coding;
    crosses = ddp__levels_takes(d, m); /* who crosses sites rounds */
    to = crosses ? u->delta : u->residual;
    if (crosses) memset(to, 0, u->trained * sizeof *to);
    for (int k = 0; k < u->gradients; k++)
        for (size_t i = 0; i < u->trains[k].count; i++) *to++ += u->trains[k].data[i] - *base++;
    if (!crosses && ddp_split(coding, u->residual, u->delta, u->trained, &why))
        return ddp__fail(err, why.code, "step %ld: what layer %s changed by cannot travel as %s: %.200s; lower the "
                         "learning rate, warm it up or clip gradients", d->step, u->name, ddp__coding_name((int)coding),
                         why.msg);
    m->residual = u->residual;
    m->divergence = &u->divergence;
    DDP__TRY(ddp__post(d, m, 1, &u->ticket, err));
    u->changing = 1;
    return DDP_OK;
}

void ddp__coded_arrived(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    const float *base = u->base, *delta = u->delta;

    for (int k = 0; u->changing && k < u->gradients; k++)
        for (size_t i = 0; i < u->trains[k].count; i++) u->trains[k].data[i] = *base++ + *delta++;
    u->changing = 0;
    ddp__coded_base(d, layer);
}
