/* All-reduces whose contributions and results do not travel as floats. Sums are in float, in rank
 * order; the owner of a segment rounds its own contribution like everybody's, so that how values
 * are cut into segments is no matter, and holds the result as it sends it. Blocks of int8 begin at
 * multiples of their length from the start of the message, on all ranks (ddp__segment). */
#include "comm/state.h"

static int ddp__code_fault(ddp__engine *e, const ddp__op *op, const ddp_error *err)
{
    char text[160];

    ddp__fault(e, DDP_NUMERIC,
               "%s cannot travel as int8 blocks: %.200s; lower the learning rate, clip gradients "
               "or choose another wire format",
               ddp__op_text(e, op, text, sizeof text), err->msg);
    return 0;
}

/* x becomes what the others will read; 0 after a failure. */
static int ddp__code_round(ddp__engine *e, const ddp__op *op, float *x, size_t count)
{
    unsigned char *room = (unsigned char *)e->recoded;
    ddp_error err;

    if (op->m.coding == DDP_AS_BFLOAT) {
        e->memory.round(x, x, count);
        return 1;
    }
    if (e->cfg.coder->encode(room, x, count, &err) || e->cfg.coder->decode(x, room, count, &err))
        return ddp__code_fault(e, op, &err);
    return 1;
}

/* The values that a frame carries: contributions, or results. */
static void ddp__code_gather(const ddp__op *op, const ddp__frame *f, float *out)
{
    const ddp__strips *in = f->type == DDP__FRAME_RESULT ? ddp__result_of(op) : &op->from;
    size_t count = ddp__frame_values(f), done = 0, here;

    for (; done < count; done += here) {
        const void *own = ddp__memory_at(op, in, f->offset + done, count - done, &here);
        memcpy(out + done, own, here * sizeof *out);
    }
}

int ddp__code_frame(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f)
{
    ddp__peer *p = &e->peers[peer];
    size_t count = ddp__frame_values(f);
    ddp_error err;

    ddp__code_gather(op, f, e->rounded);
    if (f->coding == (int)DDP_AS_BFLOAT) e->memory.halve(p->coded, e->rounded, count);
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
        e->memory.widen(s->data, (const uint16_t *)(const void *)s->data + count, count);
        return 1;
    }
    memcpy(e->recoded, s->data, s->f.length);
    if (e->cfg.coder->decode(s->data, (const unsigned char *)e->recoded, count, &err) == DDP_OK)
        return 1;
    ddp__fault(e, DDP_NET, "rank %d sent a chunk of operation %lu that holds no int8 blocks: %.200s",
               peer, (unsigned long)s->f.seq, err.msg);
    return 0;
}

int ddp__reduce_coded(ddp__engine *e, ddp__op *op, size_t at, size_t count, double *divergence)
{
    const ddp__members team = ddp__team_of(e, op);
    float *sum = e->rounded;
    size_t done = 0, here;

    ddp__memory_gather(op, at, count, sum);
    if (!ddp__code_round(e, op, sum, count)) return 0;
    e->terms[team.place[e->rank]] = sum;
    e->memory.reduce(sum, e->terms, team.place[e->rank], team.members, count, op->scale, NULL);
    if (op->m.residual) memcpy(e->exact, sum, count * sizeof *sum);
    if (!ddp__code_round(e, op, sum, count)) return 0;
    for (size_t i = 0; op->m.residual && i < count; i++)
        op->m.residual[at + i] += (e->exact[i] - sum[i]) / op->scale;
    for (; op->m.add && done < count; done += here) { /* the owner sends it from there */
        void *result = ddp__memory_at(op, ddp__result_of(op), at + done, count - done, &here);
        memcpy(result, sum + done, here * sizeof *sum);
    }
    ddp__memory_store(e, op, at, sum, count, divergence);
    return 1;
}
