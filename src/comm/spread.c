/* Large broadcasts. The root sends each other rank a different segment of the values, and that rank sends it
 * on to the remaining ranks, chunk by chunk as it arrives. The root sends the values once in total instead of
 * once per rank, every rank receives them once, and no rank sends more than the root. A value takes two
 * delays instead of one. (Van de Geijn 1994, On global combine operations: scatter, then all-gather, here in
 * one pipeline.)
 *
 * Why there is no deadlock: chunks are sent on from the memory of the message, so only a rank that has not
 * begun the operation stores them in slots. ddp__may_stage leaves a slot for the oldest operation, as for the
 * plain algorithm. */
#include "comm/state.h"

#define DDP__SPREAD_BYTES ((size_t)256 << 10) /* without emulated links */

/* Minimum of the bytes that the root saves: their transfer takes longer than the second delay and a chunk
 * more on each of the two hops. */
size_t ddp__spread_bytes(const ddp__engine *e)
{
    const size_t chunk = e->chunk * sizeof(float);

    if (!(e->links.slowest > 0)) return DDP__SPREAD_BYTES;
    return (size_t)(e->links.farthest * e->links.slowest) + 2 * chunk;
}

static int ddp__spread_fits(const ddp__engine *e, const ddp__op *op)
{
    const int members = ddp__team_of(e, op).members;

    return op->m.verb == DDP_BROADCAST && members > 2 &&
           (op->m.coding == DDP_AS_FLOAT || op->m.coding == DDP__AS_BYTES) &&
           op->n * op->unit * (size_t)(members - 2) >= ddp__spread_bytes(e);
}

/* The values that the root sends to rank `of`. Segments consist of whole chunks, by which detection of
 * foreign writes hashes the root's values. */
static void ddp__spread_segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to)
{
    const ddp__members team = ddp__team_of(e, op);
    const size_t chunk = e->chunk * sizeof(float) / op->unit, chunks = (op->n + chunk - 1) / chunk;
    const size_t parts = (size_t)(team.members - 1);
    const size_t i = (size_t)(team.place[of] - (team.place[of] > team.place[ddp__root(e, op)]));

    *from = ddp__part_start(chunks, parts, i) * chunk;
    *to = ddp__part_start(chunks, parts, i + 1) * chunk;
    if (*from > op->n) *from = op->n;
    if (*to > op->n) *to = op->n;
}

static size_t ddp__spread_part(const ddp__engine *e, const ddp__op *op, int peer, int comes, size_t *from,
                               size_t *to)
{
    const int root = ddp__root(e, op), giver = comes ? peer : e->rank, taker = comes ? e->rank : peer;

    *from = *to = 0;
    if (taker == root || ddp__team_of(e, op).place[peer] < 0) return 0;
    ddp__spread_segment(e, op, giver == root ? taker : giver, from, to);
    return *to - *from;
}

static int ddp__spread_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const size_t chunk = e->chunk * sizeof(float) / op->unit;
    const int root = ddp__root(e, op);
    size_t from, to, at;

    if (root == e->rank) return ddp__flow_next(e, op, peer, f);
    if (!ddp__spread_part(e, op, peer, 0, &from, &to)) return 0;
    to = from + ddp__row(e, op, root)->u.flow.finished;
    at = from + ddp__row(e, op, peer)->u.flow.sent;
    if (at >= to || !ddp__may_stage(e, op, peer, 0)) return 0;
    ddp__describe(f, op, DDP__FRAME_DATA, at, to - at < chunk ? to - at : chunk);
    return 1;
}

static int ddp__spread_agrees(const ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    size_t from, to;

    return f->type == DDP__FRAME_DATA && f->coding == (int)op->m.coding &&
           ddp__spread_part(e, op, peer, 1, &from, &to) > 0;
}

static void ddp__spread_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f,
                                double now)
{
    if (op->m.add && slot >= 0) /* the values are sent on from there */
        ddp__memory_copy(op, ddp__result_of(op), f->offset, ddp__frame_values(f), e->slot[slot].data, 1);
    ddp__flow_arrived(e, op, peer, slot, f, now);
}

const ddp__algorithm *ddp__spread_way(void)
{
    static const ddp__algorithm way = {'b',
                                       "spread",
                                       1u << DDP__FRAME_DATA,
                                       0,
                                       0,
                                       0,
                                       ddp__spread_fits,
                                       ddp__spread_part,
                                       ddp__flow_begin,
                                       ddp__spread_next,
                                       ddp__flow_leaves,
                                       NULL,
                                       ddp__spread_agrees,
                                       ddp__spread_arrived,
                                       ddp__flow_unsent,
                                       ddp__flow_over,
                                       NULL};

    return &way;
}
