/* Values that nobody adds up on the way: broadcast, all-gather, and messages between two ranks. */
#include "comm/state.h"

static int ddp__plain_fits(const ddp__engine *e, const ddp__op *op)
{
    (void)e;
    return !ddp__sums(op);
}

/* The values that this rank sends to a peer. */
static void ddp__plain_out(const ddp__engine *e, const ddp__op *op, int peer, size_t *from, size_t *to)
{
    *from = *to = 0;
    if (op->p2p) *to = op->m.verb < DDP_RECEIVE && op->m.peer == peer ? op->n : 0;
    else if (ddp__team_of(e, op).place[peer] < 0) return;
    else if (op->m.verb == DDP_ALL_GATHER) ddp__segment(e, op, e->rank, from, to);
    else *to = ddp__root(e, op) == e->rank ? op->n : 0;
}

/* Those that the peer sends. */
static void ddp__plain_in(const ddp__engine *e, const ddp__op *op, int peer, size_t *from, size_t *to)
{
    *from = *to = 0;
    if (op->p2p) *to = op->m.verb >= DDP_RECEIVE && op->m.peer == peer ? op->n : 0;
    else if (ddp__team_of(e, op).place[peer] < 0) return;
    else if (op->m.verb == DDP_ALL_GATHER) ddp__segment(e, op, peer, from, to);
    else *to = ddp__root(e, op) == peer ? op->n : 0;
}

/* The blocks in an all-gather of those who are lost. */
static void ddp__zero_lost(ddp__engine *e, const ddp__op *op)
{
    size_t block = op->n / (size_t)e->world;

    for (int r = 0; r < e->world && e->members < e->world; r++) {
        size_t at = block * (size_t)r, end = at + block, here;
        for (; e->place[r] < 0 && at < end; at += here) {
            void *data = ddp__memory_at(op, &op->to, at, end - at, &here);
            memset(data, 0, here * op->unit);
        }
    }
}

static void ddp__plain_begin(ddp__engine *e, ddp__op *op)
{
    size_t from, to;

    if (op->m.verb == DDP_ALL_GATHER && op->m.group == 0) ddp__zero_lost(e, op);
    for (int r = 0; r < e->world; r++) {
        if (r == e->rank || (op->p2p && r != op->m.peer)) continue;
        ddp__plain_out(e, op, r, &from, &to);
        op->left += to - from;
        ddp__plain_in(e, op, r, &from, &to);
        op->left += to - from;
        if (to > from) ddp__op_expect(e, op, r);
    }
}

static int ddp__plain_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const size_t chunk = e->chunk * sizeof(float) / op->unit;
    size_t from, to, at;

    ddp__plain_out(e, op, peer, &from, &to);
    at = from + ddp__row(e, op, peer)->u.flow.sent;
    if (at >= to || !ddp__may_stage(e, op, peer, 0)) return 0;
    ddp__describe(f, op, DDP__FRAME_DATA, at, to - at < chunk ? to - at : chunk);
    return 1;
}

static int ddp__plain_leaves(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    ddp__row(e, op, peer)->u.flow.sent += ddp__frame_values(f);
    ddp__hold_credit(e, op, peer);
    (void)ddp__guard_check(e, op, f->offset, ddp__frame_values(f));
    return -1;
}

static void ddp__plain_sent(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f, double now)
{
    (void)peer;
    (void)now;
    ddp__op_advance(e, op, ddp__frame_values(f));
}

static int ddp__plain_agrees(const ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    return f->type == DDP__FRAME_DATA && f->coding == (int)op->m.coding &&
           (op->m.verb != DDP_BROADCAST || peer == ddp__root(e, op));
}

static void ddp__plain_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f, double now)
{
    ddp__exchange *x = ddp__row(e, op, peer);
    const size_t count = ddp__frame_values(f);
    size_t from, to;

    ddp__plain_in(e, op, peer, &from, &to);
    if (!ddp__in_order(e, peer, op, f, from, to, &x->u.flow.taken)) return;
    if (slot < 0) {
        ddp__owe(e, peer, f);
    } else {
        ddp__memory_store(e, op, f->offset, e->slot[slot].data, count, op->m.divergence ? &x->divergence : NULL);
        ddp__slot_free(e, slot);
    }
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, count);
}

static int ddp__plain_unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    size_t from, to;

    ddp__plain_out(e, op, peer, &from, &to);
    return ddp__row(e, op, peer)->u.flow.sent < to - from;
}

static int ddp__plain_over(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t from, to;

    ddp__plain_in(e, op, peer, &from, &to);
    return !ddp__plain_unsent(e, op, peer) && x->u.flow.taken >= to - from && !x->expected;
}

const ddp__algorithm *ddp__plain_way(void)
{
    static const ddp__algorithm way = {'p', "plain", NULL, 0, 0, ddp__plain_fits, ddp__plain_begin,
                                       ddp__plain_next, ddp__plain_leaves, ddp__plain_sent,
                                       ddp__plain_agrees, ddp__plain_arrived, ddp__plain_unsent,
                                       ddp__plain_over, NULL};

    return &way;
}
