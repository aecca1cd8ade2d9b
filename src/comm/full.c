/* The full exchange: each rank sends all its values to everybody, and everybody adds them up in rank order: the bits
 * of the direct way, after one delay instead of two, for n / 2 times its bytes.
 *
 * A rank must not overwrite a chunk of its own values with the sum before all others were sent it. Nothing else is
 * new: contributions take slots as in the direct way, a chunk gives them back once all of its contributions are
 * here, and chunks come in order, so what keeps direct operations from locking up (ddp__may_stage) holds for these.
 * Not in elastic worlds, whose survivors would hold sums over unlike members, nor for bfloat16 or int8, where the
 * owner's rounding makes the ranks equal. */
#include "comm/state.h"

#define DDP__FULL_BYTES ((size_t)64 << 10) /* of two ranks on unshaped wires */

size_t ddp__full_bytes(const ddp__engine *e)
{
    double world = (double)e->world, flight = e->farthest * e->slowest;
    double window = (double)(e->credits - e->width - e->lanes) * (double)(e->chunk * sizeof(float));

    if (e->membership) return 0;
    if (e->cfg.full_bytes > 0) return e->cfg.full_bytes;
    if (e->cfg.links && e->cfg.links->by_pair) return 0;
    if (!(e->slowest > 0)) return DDP__FULL_BYTES * 2 / ((size_t)e->world * (size_t)(e->world - 1));
    /* one delay against n / 2 times the bytes; what is sent stays staged for one more */
    if (e->world == 2) return 2 * flight <= window ? SIZE_MAX : (size_t)window;
    flight *= world / ((world - 1) * (world - 2));
    return (size_t)(flight < window ? flight : window);
}

static int ddp__full_fits(const ddp__engine *e, const ddp__op *op)
{
    return op->m.verb == DDP_ALL_REDUCE && op->m.group == 0 && !op->m.coding && op->n > 0 &&
           op->n * sizeof(float) <= e->full_bytes;
}

static void ddp__full_begin(ddp__engine *e, ddp__op *op)
{
    for (int r = 0; r < e->world; r++)
        if (r != e->rank) ddp__op_expect(e, op, r);
    op->left = 2 * op->n * (size_t)(e->world - 1);
}

static int ddp__full_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const size_t at = ddp__row(e, op, peer)->u.flow.sent;

    if (at >= op->n || !ddp__may_stage(e, op, peer, 0)) return 0;
    ddp__describe(f, op, DDP__FRAME_PART, at, op->n - at < e->chunk ? op->n - at : e->chunk);
    return 1;
}

static int ddp__full_leaves(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    ddp__row(e, op, peer)->u.flow.sent += ddp__frame_values(f);
    ddp__hold_credit(e, op, peer);
    (void)ddp__guard_check(e, op, f->offset, ddp__frame_values(f));
    return -1;
}

static void ddp__full_written(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f, double now)
{
    (void)peer;
    ddp__op_advance(e, op, ddp__frame_values(f));
    if (op->state == DDP__OP_ACTIVE) ddp__reduce_ready(e, op, now);
}

static int ddp__full_agrees(const ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    (void)e;
    (void)op;
    (void)peer;
    return f->type == DDP__FRAME_PART && f->coding == (int)DDP_AS_FLOAT;
}

static void ddp__full_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f, double now)
{
    (void)peer;
    (void)slot;
    (void)f;
    ddp__reduce_ready(e, op, now);
}

static int ddp__full_unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    return ddp__row(e, op, peer)->u.flow.sent < op->n;
}

static int ddp__full_over(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t got = x->u.flow.taken;

    for (int s = e->peers[peer].first_pending; s >= 0; s = e->slot[s].next)
        if (e->slot[s].f.seq == op->seq && !e->slot[s].f.p2p)
            got += ddp__frame_values(&e->slot[s].f);
    return x->u.flow.sent >= op->n && got >= op->n;
}

const ddp__algorithm *ddp__full_way(void)
{
    static const ddp__algorithm way = {'f', "full", NULL, 1, 1, ddp__full_fits, ddp__full_begin,
                                       ddp__full_next, ddp__full_leaves, ddp__full_written,
                                       ddp__full_agrees, ddp__full_arrived, ddp__full_unsent,
                                       ddp__full_over, NULL};

    return &way;
}
