/* Values that nobody adds up on the way: broadcast, all-gather, and messages between two ranks. */
#include "comm/state.h"

static int ddp__plain_fits(const ddp__engine *e, const ddp__op *op)
{
    (void)e;
    return !ddp__sums(op);
}

/* The values that this rank sends to a peer, or (in) that the peer sends. */
static size_t ddp__plain_part(const ddp__engine *e, const ddp__op *op, int peer, int in, size_t *from, size_t *to)
{
    const int of = in ? peer : e->rank;

    *from = *to = 0;
    if (op->p2p) *to = (op->m.verb >= DDP_RECEIVE) == in && op->m.peer == peer ? op->n : 0;
    else if (ddp__team_of(e, op).place[peer] < 0) return 0;
    else if (op->m.verb == DDP_ALL_GATHER) ddp__segment(e, op, of, from, to);
    else *to = ddp__root(e, op) == of ? op->n : 0;
    return *to - *from;
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
        op->left += ddp__plain_part(e, op, r, 0, &from, &to);
        op->left += ddp__plain_part(e, op, r, 1, &from, &to);
        if (to > from) ddp__op_expect(e, op, r);
    }
}

static int ddp__plain_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const size_t chunk = e->chunk * sizeof(float) / op->unit;
    size_t from, to, at;

    (void)ddp__plain_part(e, op, peer, 0, &from, &to);
    at = from + ddp__row(e, op, peer)->u.flow.sent;
    if (at >= to || !ddp__may_stage(e, op, peer, 0)) return 0;
    ddp__describe(f, op, DDP__FRAME_DATA, at, to - at < chunk ? to - at : chunk);
    return 1;
}

static void ddp__plain_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f, double now)
{
    size_t from, to;

    (void)ddp__plain_part(e, op, peer, 1, &from, &to);
    ddp__flow_arrived(e, op, peer, slot, f, from, to, now);
}

static int ddp__plain_unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    size_t from, to;

    return ddp__row(e, op, peer)->u.flow.sent < ddp__plain_part(e, op, peer, 0, &from, &to);
}

static int ddp__plain_over(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t from, to;

    return !ddp__plain_unsent(e, op, peer) && x->u.flow.finished >= ddp__plain_part(e, op, peer, 1, &from, &to) &&
           !x->expected;
}

const ddp__algorithm *ddp__plain_way(void)
{
    static const ddp__algorithm way = {
        'p', "plain", 1u << DDP__FRAME_DATA, 0, 0, 0,
        ddp__plain_fits, ddp__plain_begin, ddp__plain_next, ddp__flow_leaves, NULL, NULL, ddp__plain_arrived,
        ddp__plain_unsent, ddp__plain_over, NULL};

    return &way;
}
