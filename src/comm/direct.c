/* The direct all-reduce and the reduce-scatter: each rank sends to every other the values of that
 * one's segment, sums those of its own in rank order, and (all-reduce) sends the result back to all. */
#include "comm/state.h"

static int ddp__direct_fits(const ddp__engine *e, const ddp__op *op)
{
    (void)e;
    return ddp__sums(op);
}

static size_t ddp__direct_length(const ddp__engine *e, const ddp__op *op, int of)
{
    size_t from, to;

    ddp__segment(e, op, of, &from, &to);
    return to - from;
}

/* Values of the results that a peer gives to this rank. */
static size_t ddp__direct_results(const ddp__engine *e, const ddp__op *op, int of)
{
    return op->m.verb == DDP_ALL_REDUCE ? ddp__direct_length(e, op, of) : 0;
}

static void ddp__direct_begin(ddp__engine *e, ddp__op *op)
{
    const ddp__members team = ddp__team_of(e, op);
    const size_t own = ddp__direct_length(e, op, e->rank);

    for (int i = 0; i < team.members; i++) {
        const int r = team.member[i];
        if (r == e->rank) continue;
        /* what goes there, what comes back of it, and what comes here, counted once it is summed: in
         * an all-reduce the same values then go there as results */
        op->left += ddp__direct_length(e, op, r) + ddp__direct_results(e, op, r) + own;
        if (own + ddp__direct_results(e, op, r) > 0) ddp__op_expect(e, op, r);
    }
}

static int ddp__direct_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t from, to, at;

    if (op->m.verb == DDP_ALL_REDUCE && x->u.flow.results < op->reduced) {
        size_t count = op->reduced - x->u.flow.results;
        ddp__segment(e, op, e->rank, &from, &to);
        if (count > e->chunk) count = e->chunk;
        ddp__describe(f, op, DDP__FRAME_RESULT, from + x->u.flow.results, count);
        return 1;
    }
    ddp__segment(e, op, peer, &from, &to);
    at = from + x->u.flow.sent;
    if (at >= to || !ddp__may_stage(e, op, peer, 0)) return 0;
    ddp__describe(f, op, DDP__FRAME_PART, at, to - at < e->chunk ? to - at : e->chunk);
    return 1;
}

static int ddp__direct_leaves(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    ddp__exchange *x = ddp__row(e, op, peer);

    if (f->type == DDP__FRAME_RESULT) {
        x->u.flow.results += ddp__frame_values(f);
        return -1;
    }
    x->u.flow.sent += ddp__frame_values(f);
    ddp__hold_credit(e, op, peer);
    (void)ddp__guard_check(e, op, f->offset, ddp__frame_values(f));
    return -1;
}

/* All contributions were written, and the own segment is summed. */
static int ddp__direct_input_over(ddp__engine *e, const ddp__op *op)
{
    const ddp__members team = ddp__team_of(e, op);

    for (int i = 0; i < team.members; i++) {
        const int r = team.member[i];
        if (r == e->rank) continue;
        if (ddp__row(e, op, r)->u.flow.sent < ddp__direct_length(e, op, r)) return 0;
        if (e->peers[r].out_op == op && e->peers[r].out.type != DDP__FRAME_RESULT) return 0;
    }
    return op->reduced == ddp__direct_length(e, op, e->rank);
}

static void ddp__direct_release(ddp__engine *e, ddp__op *op)
{
    if (op->to.strip == op->from.strip || op->m.add || op->released) return;
    if (ddp__direct_input_over(e, op)) ddp__op_release(e, op);
}

static void ddp__direct_sent(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f, double now)
{
    (void)peer;
    (void)now;
    if (f->type != DDP__FRAME_RESULT) ddp__direct_release(e, op);
    ddp__op_advance(e, op, ddp__frame_values(f));
}

static int ddp__direct_agrees(const ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    (void)e;
    (void)peer;
    return (f->type == DDP__FRAME_PART || f->type == DDP__FRAME_RESULT) && f->coding == (int)op->m.coding;
}

int ddp__sent_to_all(ddp__engine *e, const ddp__op *op, size_t at, size_t count)
{
    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        if (r == e->rank) continue;
        if (ddp__row(e, op, r)->u.flow.sent < at + count) return 0;
        if (p->out_op == op && p->out.offset < at + count) return 0;
    }
    return 1;
}

/* All ranks' chunks of that place are here, or this rank has none to wait for. */
static int ddp__chunks_here(ddp__engine *e, ddp__op *op, size_t at, size_t count)
{
    const ddp__members team = ddp__team_of(e, op);

    for (int i = 0; i < team.members; i++)
        if (team.member[i] != e->rank && ddp__pending(e, team.member[i], op) < 0) return 0;
    if (op->way->whole && !ddp__sent_to_all(e, op, at, count)) return 0;
    if (!ddp__guard_check(e, op, at, count)) return 0;
    for (int i = 0; i < team.members; i++) {
        const ddp__frame *f;
        if (team.member[i] == e->rank) continue;
        f = &e->slot[ddp__pending(e, team.member[i], op)].f;
        if (f->offset == at && ddp__frame_values(f) == count) continue;
        ddp__fault(e, DDP_NET,
                   "rank %d sent values from %lu of operation %lu, expected were those "
                   "from %lu: all ranks must use the same chunk size",
                   team.member[i], (unsigned long)f->offset, (unsigned long)f->seq,
                   (unsigned long)at);
        return 0;
    }
    return 1;
}

static int ddp__reduce_chunk(ddp__engine *e, ddp__op *op, size_t at, size_t count)
{
    const ddp__members team = ddp__team_of(e, op);
    double *divergence = op->m.divergence ? &ddp__row(e, op, e->rank)->divergence : NULL;

    for (int i = 0; i < team.members; i++)
        if (team.member[i] != e->rank)
            e->terms[i] = e->slot[ddp__pending(e, team.member[i], op)].data;
    if (op->m.coding) {
        if (!ddp__reduce_coded(e, op, at, count, divergence)) return 0;
    } else {
        ddp__memory_sum(e, op, at, count, team.place[e->rank], team.members, divergence);
    }
    for (int i = 0; i < team.members; i++) {
        int s, r = team.member[i];
        if (r == e->rank) continue;
        s = ddp__pending(e, r, op);
        ddp__row(e, op, r)->u.flow.taken += count;
        ddp__pending_remove(e, r, s);
        ddp__slot_free(e, s);
    }
    return 1;
}

void ddp__reduce_ready(ddp__engine *e, ddp__op *op, double now)
{
    const ddp__members team = ddp__team_of(e, op);
    size_t from = 0, to = op->n;

    if (!op->way->whole) ddp__segment(e, op, e->rank, &from, &to);
    while (e->fault.code == DDP_OK && op->state == DDP__OP_ACTIVE && from + op->reduced < to) {
        size_t at = from + op->reduced, count = to - at < e->chunk ? to - at : e->chunk;
        if (!ddp__chunks_here(e, op, at, count) || !ddp__reduce_chunk(e, op, at, count)) return;
        ddp__guard_update(e, op, at, count);
        op->reduced += count;
        ddp__op_moves(e, op, now);
        if (!op->way->whole) ddp__direct_release(e, op);
        if (op->m.verb == DDP_REDUCE_SCATTER || op->way->whole)
            ddp__op_advance(e, op, count * (size_t)(team.members - 1));
    }
}

static void ddp__direct_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f, double now)
{
    ddp__exchange *x = ddp__row(e, op, peer);
    const size_t count = ddp__frame_values(f);
    size_t from, to;

    if (f->type == DDP__FRAME_PART) {
        ddp__reduce_ready(e, op, now);
        return;
    }
    ddp__segment(e, op, peer, &from, &to);
    if (!ddp__in_order(e, peer, op, f, from, to, &x->u.flow.finished)) return;
    if (slot >= 0) {
        if (!ddp__guard_check(e, op, f->offset, count)) return;
        ddp__memory_store(e, op, f->offset, e->slot[slot].data, count, op->m.divergence ? &x->divergence : NULL);
        ddp__slot_free(e, slot);
    }
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, count);
}

static int ddp__direct_unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    return ddp__row(e, op, peer)->u.flow.sent < ddp__direct_length(e, op, peer);
}

static int ddp__direct_over(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t own = ddp__direct_length(e, op, e->rank), got = x->u.flow.taken;

    if (ddp__direct_unsent(e, op, peer) || x->expected) return 0;
    if (op->m.verb == DDP_ALL_REDUCE)
        return x->u.flow.results >= own && x->u.flow.finished >= ddp__direct_length(e, op, peer);
    /* nothing comes back after it, so a peer may go before its values are added up */
    for (int s = e->peers[peer].first_pending; s >= 0; s = e->slot[s].next)
        if (e->slot[s].f.seq == op->seq && !e->slot[s].f.p2p) got += ddp__frame_values(&e->slot[s].f);
    return got >= own;
}

const ddp__algorithm *ddp__direct_way(void)
{
    static const ddp__algorithm way = {'d', "direct", NULL, 0, 1, ddp__direct_fits, ddp__direct_begin,
                                       ddp__direct_next, ddp__direct_leaves, ddp__direct_sent,
                                       ddp__direct_agrees, ddp__direct_arrived, ddp__direct_unsent,
                                       ddp__direct_over, NULL};

    return &way;
}
