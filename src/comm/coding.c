/* All-reduces whose contributions and results do not travel as floats. Sums are in float, in rank
 * order; the owner of a segment rounds its own contribution like everybody's, so that how values
 * are cut into segments is no matter, and holds the result as it sends it. Blocks of int8 begin at
 * multiples of their length from the start of the message, on all ranks (ddp__segment). */
#include "comm/state.h"

static int ddp__code_fault(ddp__engine *e, const ddp__op *op, const ddp_error *err)
{
    char text[160];

    ddp__fault(e, DDP_NUMERIC, "%s cannot travel as int8 blocks: %.200s; lower the learning rate, clip gradients or "
               "choose another wire format", ddp__op_text(e, op, text, sizeof text), err->msg);
    return 0;
}

/* x becomes what the others will read; 0 after a failure. */
static int ddp__code_round(ddp__engine *e, const ddp__op *op, float *x, size_t count)
{
    unsigned char *room = (unsigned char *)e->recoded;
    ddp_error err;

    if (op->m.coding == DDP_AS_BFLOAT) {
        ddp__bfloat_round(x, count);
        return 1;
    }
    if (e->cfg.coder->encode(room, x, count, &err) || e->cfg.coder->decode(x, room, count, &err))
        return ddp__code_fault(e, op, &err);
    return 1;
}

int ddp__code_frame(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f)
{
    ddp__peer *p = &e->peers[peer];
    size_t count = ddp__frame_values(f);
    ddp_error err;

    ddp__memory_gather(op, f->type == DDP__FRAME_RESULT ? ddp__result_of(op) : &op->from, f->offset, count, e->rounded);
    if (f->coding == (int)DDP_AS_BFLOAT) ddp__bfloat_halve(p->coded, e->rounded, count);
    else if (e->cfg.coder->encode((unsigned char *)p->coded, e->rounded, count, &err))
        return ddp__code_fault(e, op, &err);
    return 1;
}

size_t ddp__coded_at(const ddp__frame *f)
{
    return f->coding == (int)DDP_AS_BFLOAT ? f->length : 0; /* widened in place from there */
}

int ddp__decode_slot(ddp__engine *e, int peer, ddp__slot *s)
{
    size_t count = ddp__frame_values(&s->f);
    ddp_error err;

    if (s->f.coding == (int)DDP_AS_BFLOAT) {
        ddp__bfloat_widen(s->data, (const uint16_t *)(const void *)s->data + count, count);
        return 1;
    }
    memcpy(e->recoded, s->data, s->f.length);
    if (e->cfg.coder->decode(s->data, (const unsigned char *)e->recoded, count, &err) == DDP_OK) return 1;
    ddp__fault(e, DDP_NET, "rank %d sent a chunk of operation %lu that holds no int8 blocks: %.200s",
               peer, (unsigned long)s->f.seq, err.msg);
    return 0;
}

int ddp__reduce_coded(ddp__engine *e, ddp__op *op, size_t at, size_t count, double *divergence)
{
    const ddp__members team = ddp__team_of(e, op);
    float *sum = e->rounded;

    ddp__memory_gather(op, &op->from, at, count, sum);
    if (!ddp__code_round(e, op, sum, count)) return 0;
    e->terms[team.place[e->rank]] = sum;
    ddp__floats_sum(sum, e->terms, team.members, count, op->scale, NULL);
    if (op->m.residual) memcpy(e->exact, sum, count * sizeof *sum);
    if (!ddp__code_round(e, op, sum, count)) return 0;
    for (size_t i = 0; op->m.residual && i < count; i++) op->m.residual[at + i] += (e->exact[i] - sum[i]) / op->scale;
    if (op->m.add) ddp__memory_scatter(op, ddp__result_of(op), at, count, sum); /* the owner sends it from there */
    ddp__memory_store(op, at, sum, count, divergence);
    return 1;
}
