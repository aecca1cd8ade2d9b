/* Values that go straight from the rank that has them to those that need them.
 *
 * The plain way: values that nobody adds up, of broadcasts, all-gathers and messages between two ranks.
 *
 * The direct all-reduce and the reduce-scatter: each rank sends to every other the values of that one's segment, sums
 * those of its own in rank order, and (all-reduce) sends the result back to all.
 *
 * And the full exchange: each rank sends all its values to everybody, and everybody adds them up in rank order: the
 * same bits after one delay instead of two, for n / 2 times the bytes. A rank must not overwrite a chunk of its own
 * values with the sum before all others were sent it. Contributions take slots as in the direct way, a chunk gives
 * them back once all of its contributions are here, and chunks come in order, so what keeps direct operations from
 * locking up (ddp__may_stage) holds for these. Not where there is a membership, whose survivors would hold sums over
 * unlike members, nor for bfloat16 or int8, where the owner's rounding makes the ranks equal. */
#include "comm/state.h"

/* ---- plain ---- */

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

static void ddp__zero_lost(ddp__engine *e, const ddp__op *op)
{
    size_t block = op->n / (size_t)e->blocks;

    for (int r = 0; r < e->blocks && e->members < e->blocks; r++) {
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

    if (op->m.verb == DDP_ALL_GATHER && op->m.group == 0) ddp__zero_lost(e, op); /* their blocks */
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
        'p', "plain", 1u << DDP__FRAME_DATA, 0, 0, 0, NULL, ddp__plain_begin, ddp__plain_next, ddp__flow_leaves, NULL,
        NULL, ddp__plain_arrived, ddp__plain_unsent, ddp__plain_over, NULL};

    return &way;
}

/* ---- direct, and full ---- */

#define DDP__FULL_BYTES ((size_t)64 << 10) /* of two ranks on unshaped wires */

size_t ddp__full_bytes(const ddp__engine *e)
{
    double world = (double)e->world, flight = e->farthest * e->slowest, window = (double)ddp__engine_window(e);

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
    return op->m.verb == DDP_ALL_REDUCE && op->m.group == 0 && !op->m.coding && !op->m.owner && op->n > 0 &&
           op->n * sizeof(float) <= e->full_bytes;
}

static int ddp__direct_fits(const ddp__engine *e, const ddp__op *op)
{
    (void)e;
    return ddp__sums(op);
}

/* Results go to the others. */
static int ddp__direct_returns(const ddp__op *op) { return op->m.verb == DDP_ALL_REDUCE && !op->way->whole; }

static void ddp__direct_begin(ddp__engine *e, ddp__op *op)
{
    const ddp__members team = ddp__team_of(e, op);
    const size_t own = ddp__segment_length(e, op, e->rank);

    for (int i = 0; i < team.members; i++) {
        const int r = team.member[i];
        const size_t results = ddp__direct_returns(op) ? ddp__segment_length(e, op, r) : 0;
        if (r == e->rank) continue;
        /* what goes there, what comes back of it, and what comes here, counted once it is summed or goes back */
        op->left += ddp__segment_length(e, op, r) + results + own;
        if (own + results > 0) ddp__op_expect(e, op, r);
    }
}

static int ddp__direct_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t from, to, at;

    if (ddp__direct_returns(op) && x->u.flow.results < op->reduced) {
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

/* All contributions were written, and the own segment is summed. */
static int ddp__direct_input_over(ddp__engine *e, const ddp__op *op)
{
    const ddp__members team = ddp__team_of(e, op);

    for (int i = 0; i < team.members; i++) {
        const int r = team.member[i];
        if (r == e->rank) continue;
        if (ddp__row(e, op, r)->u.flow.sent < ddp__segment_length(e, op, r)) return 0;
        if (e->peers[r].out_op == op && e->peers[r].out.type != DDP__FRAME_RESULT) return 0;
    }
    return op->reduced == ddp__segment_length(e, op, e->rank);
}

static void ddp__direct_release(ddp__engine *e, ddp__op *op)
{
    if (op->to.strip == op->from.strip || op->m.add || op->released) return;
    if (ddp__direct_input_over(e, op)) ddp__op_release(e, op);
}

/* A chunk of the own values has been taken by the wire for every peer. */
static int ddp__sent_to_all(ddp__engine *e, const ddp__op *op, size_t at, size_t count)
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
        return ddp__out_of_order(e, team.member[i], f, at);
    }
    return 1;
}

static int ddp__reduce_chunk(ddp__engine *e, ddp__op *op, size_t at, size_t count)
{
    const ddp__members team = ddp__team_of(e, op);
    double *divergence = op->m.divergence ? &ddp__row(e, op, e->rank)->divergence : NULL;

    for (int i = 0; i < team.members; i++)
        if (team.member[i] != e->rank) e->terms[i] = e->slot[ddp__pending(e, team.member[i], op)].data;
    if (op->m.coding) {
        if (!ddp__reduce_coded(e, op, at, count, team.place[e->rank], team.members, divergence)) return 0;
    } else {
        ddp__memory_sum(e, op, at, count, team.place[e->rank], team.members, divergence);
        if (op->m.verb == DDP_ALL_REDUCE && op->m.owner) ddp__memory_own(op, at, count);
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

/* Sums every chunk of the own part of which all contributions are here. */
static void ddp__reduce_ready(ddp__engine *e, ddp__op *op, double now)
{
    size_t from, to;

    ddp__segment(e, op, e->rank, &from, &to);
    while (e->fault.code == DDP_OK && op->state == DDP__OP_ACTIVE && from + op->reduced < to) {
        size_t at = from + op->reduced, count = to - at < e->chunk ? to - at : e->chunk;
        if (!ddp__chunks_here(e, op, at, count) || !ddp__reduce_chunk(e, op, at, count)) return;
        ddp__guard_update(e, op, at, count);
        op->reduced += count;
        ddp__op_moves(e, op, now);
        ddp__direct_release(e, op);
        if (!ddp__direct_returns(op)) ddp__op_advance(e, op, count * (size_t)(ddp__team_of(e, op).members - 1));
    }
}

static void ddp__direct_sent(ddp__engine *e, ddp__op *op, const ddp__frame *f, double now)
{
    if (f->type != DDP__FRAME_RESULT) ddp__direct_release(e, op);
    ddp__op_advance(e, op, ddp__frame_values(f));
    if (op->way->whole && op->state == DDP__OP_ACTIVE) ddp__reduce_ready(e, op, now);
}

static void ddp__direct_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f, double now)
{
    size_t from, to;

    ddp__segment(e, op, peer, &from, &to);
    if (f->type == DDP__FRAME_PART) ddp__reduce_ready(e, op, now);
    else ddp__flow_arrived(e, op, peer, slot, f, from, to, now);
}

static int ddp__direct_unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    return ddp__row(e, op, peer)->u.flow.sent < ddp__segment_length(e, op, peer);
}

static int ddp__direct_over(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t own = ddp__segment_length(e, op, e->rank), got = x->u.flow.taken;

    if (ddp__direct_unsent(e, op, peer) || x->expected) return 0;
    if (ddp__direct_returns(op))
        return x->u.flow.results >= own && x->u.flow.finished >= ddp__segment_length(e, op, peer);
    /* nothing comes back after it, so a peer may go before its values are added up */
    for (int s = e->peers[peer].first_pending; s >= 0; s = e->slot[s].next)
        if (e->slot[s].f.seq == op->seq && !e->slot[s].f.p2p) got += ddp__frame_values(&e->slot[s].f);
    return got >= own;
}

const ddp__algorithm *ddp__direct_way(int whole)
{
    static const ddp__algorithm way[2] = {
        {'d', "direct", 1u << DDP__FRAME_PART | 1u << DDP__FRAME_RESULT, 0, 1, 0, ddp__direct_fits, ddp__direct_begin,
         ddp__direct_next, ddp__flow_leaves, ddp__direct_sent, NULL, ddp__direct_arrived, ddp__direct_unsent,
         ddp__direct_over, NULL},
        {'f', "full", 1u << DDP__FRAME_PART, 1, 1, 0, ddp__full_fits, ddp__direct_begin, ddp__direct_next,
         ddp__flow_leaves, ddp__direct_sent, NULL, ddp__direct_arrived, ddp__direct_unsent, ddp__direct_over, NULL}};

    return &way[whole];
}
