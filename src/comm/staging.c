/* Staging: stores chunks in slots until they can be used. A sender counts the slots that it occupies at each
 * peer, and the peer returns them as credits. */
#include "comm/state.h"

#define DDP__CREDITS_WAIT 8 /* credits are returned once an eighth of the slots is owed */

/* ---- slots on this rank ---- */

static void ddp__owe(ddp__engine *e, int peer, const ddp__frame *f)
{
    ddp__peer *p = &e->peers[peer];
    int i = 0;

    while (i < p->owed_count && (p->owed[i].seq != f->seq || p->owed[i].p2p != f->p2p)) i++;
    if (i == DDP__SLOTS_MAX) {
        ddp__fault(e, DDP_NET,
                   "rank %d sends more than its credits allow: it runs another version of this library or "
                   "its stream is damaged",
                   peer);
        return;
    }
    if (i == p->owed_count) {
        p->owed[i].seq = f->seq;
        p->owed[i].p2p = f->p2p;
        p->owed[i].count = 0;
        p->owed_count++;
    }
    p->owed[i].count++;
}

void ddp__slot_free(ddp__engine *e, int slot)
{
    ddp__slot *s = &e->slot[slot];
    ddp__peer *p = &e->peers[s->peer];

    s->next = p->free_slot;
    p->free_slot = slot;
    if (s->f.type == DDP__FRAME_RESULT) {
        p->solicited--;
        return;
    }
    p->staged--;
    ddp__owe(e, s->peer, &s->f);
}

void ddp__chain_add(ddp__engine *e, ddp__chain *c, int slot, int behind)
{
    int *before = behind < 0 ? &c->first : &e->slot[behind].next;

    e->slot[slot].next = *before;
    *before = slot;
    if (c->last == behind) c->last = slot;
}

void ddp__chain_remove(ddp__engine *e, ddp__chain *c, int slot)
{
    int before = -1;

    for (int s = c->first; s != slot; s = e->slot[s].next) before = s;
    *(before < 0 ? &c->first : &e->slot[before].next) = e->slot[slot].next;
    if (c->last == slot) c->last = before;
}

int ddp__pending(const ddp__engine *e, int peer, const ddp__op *op)
{
    int s = e->peers[peer].pending.first;

    while (s >= 0 && (e->slot[s].f.seq != op->seq || e->slot[s].f.p2p != op->p2p)) s = e->slot[s].next;
    return s;
}

/* ---- slots on peers ---- */

/* Credits. A frame may reach a rank before that rank has submitted the operation, so the sender counts the
 * slots it occupies there. The oldest operation that is unfinished anywhere must always get a slot, whatever
 * the priorities. Therefore:
 * - An operation that has no slot may take one if one remains for each older operation without a slot.
 * - An operation that has slots leaves one for every operation in the window that has none.
 * - One slot is reserved for each lane between two ranks, whose order is independent.
 * - One slot is reserved for sums that a ring sends on (ring.c), which leave room for older operations
 * only. */
int ddp__may_stage(ddp__engine *e, const ddp__op *op, int peer, int forward)
{
    const ddp__peer *p = &e->peers[peer];
    int free_slots = e->credits + p->granted - e->lanes - p->held_collective;
    int own = op->p2p ? p->held_p2p[ddp__paired_lane(op)] : ddp__row(e, op, peer)->held;
    int claims = 0, bubble = op->way->relays && !forward;

    for (int i = 0; i < DDP__LANES; i++) /* beyond the slot of the lane */
        if (p->held_p2p[i] > 1) free_slots -= p->held_p2p[i] - 1;
    if (op->p2p && own == 0) return 1;
    if (own >= e->few && !forward) return 0;
    for (int i = 0; i < DDP__WINDOW; i++) {
        const ddp__op *other = e->window[i];
        if (!other || other == op) continue;
        if ((own == 0 || forward) && other->ticket > op->ticket) continue;
        if (!other->way->unsent || !other->way->unsent(e, other, peer)) continue;
        if (other->way->relays) bubble = 1;
        if (ddp__row(e, other, peer)->held == 0) claims++;
    }
    for (int i = 0; i < e->waits; i++)
        if ((own > 0 && !forward) || e->waiting[i] < op->ticket) claims++;
    if (op->p2p && claims == 0) claims = 1;
    return free_slots > claims + bubble;
}

void ddp__hold_credit(ddp__engine *e, const ddp__op *op, int peer)
{
    ddp__row(e, op, peer)->held++;
    if (op->p2p)
        e->peers[peer].held_p2p[ddp__paired_lane(op)]++;
    else
        e->peers[peer].held_collective++;
}

void ddp__take_credit(ddp__engine *e, int peer, const ddp__frame *f)
{
    ddp__peer *p = &e->peers[peer];
    const int count = (int)f->offset;
    int *held = f->p2p ? &p->held_p2p[f->seq >> 30] : &p->held_collective;

    *held -= count;
    for (int i = 0; i < DDP__WINDOW && !f->p2p; i++)
        if (e->window[i] && e->window[i]->seq == f->seq) ddp__row(e, e->window[i], peer)->held -= count;
    if (*held < 0)
        ddp__fault(e, DDP_NET,
                   "rank %d gave back more staging slots than it had; it runs another "
                   "version of this library or its stream is damaged",
                   peer);
}

/* Credits are returned together if chunks are small compared with the slots, because each frame wakes a
 * thread. They wait for each other while the peer has half of its slots left, and at most as long as the
 * transfer of sixteen chunks. */
int ddp__credit_due(const ddp__engine *e, ddp__peer *p)
{
    int owed = 0;

    if (p->owed_count == 0) return 0;
    if (e->credits < 2 * DDP__CREDITS_WAIT || !e->paced) return 1;
    for (int i = 0; i < p->owed_count; i++) owed += p->owed[i].count;
    if (p->owed_by <= 0) p->owed_by = ddp_now() + 16 * (double)(e->chunk * sizeof(float)) / e->links.slowest;
    return owed >= e->credits / DDP__CREDITS_WAIT || p->staged + owed > e->credits / 2 ||
           ddp_now() >= p->owed_by;
}

/* ---- values in flight, and results ---- */

int ddp__flow_returns(const ddp__op *op)
{
    return op->m.verb == DDP_ALL_REDUCE && (op->way->types >> DDP__FRAME_RESULT & 1);
}

/* Counts the values that are left for each peer: sent and returned, and received. A received value counts as
 * done once it is stored, or summed (with a result: once that has been returned). */
void ddp__flow_begin(ddp__engine *e, ddp__op *op)
{
    for (int r = 0; r < e->world; r++) {
        size_t from, to, goes, comes, back;
        if (!ddp__takes_part(e, op, r)) continue;
        goes = op->way->part(e, op, r, 0, &from, &to);
        comes = op->way->part(e, op, r, 1, &from, &to);
        back = ddp__flow_returns(op) ? goes : 0;
        op->left += goes + back + comes;
        if (back + comes > 0) ddp__op_expect(e, op, r);
    }
}

int ddp__flow_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const int type = op->way->types >> DDP__FRAME_DATA & 1 ? DDP__FRAME_DATA : DDP__FRAME_PART;
    const size_t chunk = e->chunk * sizeof(float) / op->unit;
    size_t from, to, at;

    (void)op->way->part(e, op, peer, 0, &from, &to);
    at = from + ddp__row(e, op, peer)->u.flow.sent;
    if (at >= to || !ddp__may_stage(e, op, peer, 0)) return 0;
    ddp__describe(f, op, type, at, to - at < chunk ? to - at : chunk);
    return 1;
}

int ddp__flow_result(ddp__engine *e, ddp__op *op, int peer, size_t ready, ddp__frame *f)
{
    const size_t given = ddp__row(e, op, peer)->u.flow.results;
    size_t from, to, count = op->way->part(e, op, peer, 1, &from, &to);

    if (count > ready) count = ready;
    if (count == given) return 0;
    count -= given;
    ddp__describe(f, op, DDP__FRAME_RESULT, from + given, count < e->chunk ? count : e->chunk);
    return 1;
}

int ddp__flow_leaves(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    ddp__exchange *x = ddp__row(e, op, peer);
    const size_t count = ddp__frame_values(f);

    if (f->type == DDP__FRAME_RESULT) {
        x->u.flow.results += count;
        return -1;
    }
    x->u.flow.sent += count;
    ddp__hold_credit(e, op, peer);
    (void)ddp__guard_check(e, op, f->offset, count);
    return -1;
}

int ddp__out_of_order(ddp__engine *e, int peer, const ddp__frame *f, size_t at)
{
    return ddp__fault(e, DDP_NET,
                      "rank %d sent values from %lu of operation %lu, expected were those from %lu: all "
                      "ranks must use the same chunk size",
                      peer, (unsigned long)f->offset, (unsigned long)f->seq, (unsigned long)at);
}

int ddp__in_order(ddp__engine *e, int peer, const ddp__frame *f, size_t from, size_t to, size_t *at)
{
    const size_t count = ddp__frame_values(f);

    if (f->offset != from + *at || count > to - f->offset) return ddp__out_of_order(e, peer, f, from + *at);
    *at += count;
    return 1;
}

void ddp__flow_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f, double now)
{
    ddp__exchange *x = ddp__row(e, op, peer);
    const size_t count = ddp__frame_values(f);
    size_t from, to;

    (void)op->way->part(e, op, peer, f->type == DDP__FRAME_DATA, &from, &to);
    if (!ddp__in_order(e, peer, f, from, to, &x->u.flow.finished)) return;
    if (slot >= 0) {
        if (!ddp__guard_check(e, op, f->offset, count)) return;
        ddp__memory_store(op, f->offset, e->slot[slot].data, count, op->m.divergence ? &x->divergence : NULL);
        ddp__slot_free(e, slot);
    } else if (f->type != DDP__FRAME_RESULT) {
        ddp__owe(e, peer, f);
    }
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, count);
}

int ddp__flow_unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    size_t from, to;

    return ddp__row(e, op, peer)->u.flow.sent < op->way->part(e, op, peer, 0, &from, &to);
}

int ddp__flow_over(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t from, to, got = x->u.flow.finished + x->u.flow.taken,
                     comes = op->way->part(e, op, peer, 1, &from, &to);

    if (ddp__flow_unsent(e, op, peer) || x->expected) return 0;
    if (ddp__flow_returns(op))
        return x->u.flow.results >= comes && x->u.flow.finished >= op->way->part(e, op, peer, 0, &from, &to);
    /* no values are returned, so a peer may leave before its values are summed */
    for (int s = e->peers[peer].pending.first; s >= 0; s = e->slot[s].next)
        if (e->slot[s].f.seq == op->seq && e->slot[s].f.p2p == op->p2p)
            got += ddp__frame_values(&e->slot[s].f);
    return got >= comes;
}
