/* What to send next: control frames, then the most urgent operation that has a frame and,
 * where the receiver must stage it, a credit. */
#include "net/elastic.h"

#define DDP__CREDITS_WAIT 8 /* an eighth of the slots */

/* As long as sixteen chunks travel. */
static double ddp__credit_patience(const ddp__engine *e)
{
    return 16 * (double)(e->chunk * sizeof(float)) / e->slowest;
}

double ddp__credit_by(const ddp__engine *e, double now, double until)
{
    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        /* those that are late wait for the uplink, which has an event of its own */
        if (p->owed_count > 0 && p->owed_by > now && p->owed_by < until) until = p->owed_by;
    }
    return until;
}

/* Something is left that needs a slot at that peer. */
static int ddp__unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    size_t from, to;

    if (op->donor >= 0) return 0;
    if (op->ring) return ddp__ring_unsent(e, op, peer);
    if (op->shared) return ddp__row(e, op, peer)->sent == 0;
    ddp__outgoing(e, op, peer, &from, &to);
    return ddp__row(e, op, peer)->sent < to - from;
}

/* Credits. A frame may reach a rank before it has submitted the operation, so the sender counts
 * the slots it occupies there. Whatever the priorities, the oldest operation that is unfinished
 * anywhere must always get a slot: an operation that holds none may take one if the older ones
 * that hold none keep one each; one that holds some leaves a slot to every operation in the window
 * that holds none. One slot is kept for each lane of send/recv, whose order is unrelated, and one
 * for the sums that a ring sends on (ring.c), which leave room for older operations only. */
int ddp__may_stage(ddp__engine *e, const ddp__op *op, int peer, int forward)
{
    const ddp__peer *p = &e->peers[peer];
    int free_slots = e->credits - (int)DDP__LANES - p->held_collective;
    int own = op->p2p ? p->held_p2p[ddp__paired_lane(op)] : ddp__row(e, op, peer)->held;
    int claims = 0, bubble = op->ring && !forward;

    for (int i = 0; i < DDP__LANES; i++) /* beyond the slot of the lane */
        if (p->held_p2p[i] > 1) free_slots -= p->held_p2p[i] - 1;
    if (op->p2p && own == 0) return 1;
    for (int i = 0; i < DDP__WINDOW; i++) {
        const ddp__op *other = e->window[i];
        if (!other || other == op) continue;
        if ((own == 0 || forward) && other->ticket > op->ticket) continue;
        if (!ddp__unsent(e, other, peer)) continue;
        if (other->ring) bubble = 1;
        if (ddp__row(e, other, peer)->held == 0) claims++;
    }
    for (int i = 0; i < e->waits; i++)
        if ((own > 0 && !forward) || e->waiting[i] < op->ticket) claims++;
    if (op->p2p && claims == 0) claims = 1;
    return free_slots > claims + bubble;
}

void ddp__describe(ddp__frame *f, const ddp__op *op, int type, size_t offset, size_t count)
{
    f->type = type;
    f->p2p = op->p2p;
    f->verb = (int)op->m.verb;
    f->seq = op->seq;
    f->count = (uint32_t)op->n;
    f->offset = (uint32_t)offset;
    f->coding = (int)op->m.coding;
    f->length = ddp__frame_payload(f->coding, count);
    f->layer = op->m.layer;
    f->sent = 0;
}

int ddp__op_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    ddp__exchange *x = ddp__row(e, op, peer);
    size_t from, to, at;

    if (ddp__team_of(e, op).place[peer] < 0 || op->donor >= 0) return 0;
    if (e->elastic && e->elastic->frozen && !op->p2p) return 0;
    if (op->ring) return ddp__ring_frame(e, op, peer, f);
    if (op->shared) return ddp__share_frame(e, op, peer, f);
    if (op->m.verb == DDP__ALL_REDUCE && !op->full && x->results < op->reduced) {
        size_t count = op->reduced - x->results;
        ddp__segment(e, op, e->rank, &from, &to);
        if (count > e->chunk) count = e->chunk;
        ddp__describe(f, op, DDP__FRAME_RESULT, from + x->results, count);
        return 1;
    }
    ddp__outgoing(e, op, peer, &from, &to);
    at = from + x->sent;
    if (at < to && ddp__may_stage(e, op, peer, 0)) {
        int type = ddp__sums(op) ? DDP__FRAME_PART : DDP__FRAME_DATA;
        ddp__describe(f, op, type, at, to - at < e->chunk ? to - at : e->chunk);
        return 1;
    }
    return 0;
}

/* Credits go back together where chunks are small against the slots: each frame wakes a thread.
 * They wait for one another while the peer has half of its slots left, and not for long. */
static int ddp__credit_due(const ddp__engine *e, ddp__peer *p)
{
    int owed = 0;

    if (p->owed_count == 0) return 0;
    if (e->credits < 2 * DDP__CREDITS_WAIT || !e->paced) return 1;
    for (int i = 0; i < p->owed_count; i++) owed += p->owed[i].count;
    if (p->owed_by <= 0) p->owed_by = ddp_now() + ddp__credit_patience(e);
    return owed >= e->credits / DDP__CREDITS_WAIT || p->staged + owed > e->credits / 2 ||
           ddp_now() >= p->owed_by;
}

static int ddp__control_frame(ddp__engine *e, int peer, ddp__frame *f)
{
    ddp__peer *p = &e->peers[peer];

    memset(f, 0, sizeof *f);
    if (p->want_abort) {
        p->want_abort = 0;
        f->type = DDP__FRAME_ABORT;
        f->count = (uint32_t)e->fault.code;
        f->offset = (uint32_t)e->fault_origin;
        f->length = (uint32_t)strlen(e->fault.msg);
        p->out_text = e->fault.msg;
        return 1;
    }
    if (e->fault.code != DDP_OK) return 0;
    if (e->elastic) {
        if (ddp__epoch_frame(e, peer, f)) return 1;
        if (e->elastic->peer[peer].gone) return 0;
    }
    if (ddp__credit_due(e, p)) {
        ddp__owed *o = &p->owed[--p->owed_count];
        p->owed_by = 0;
        f->type = DDP__FRAME_CREDIT;
        f->p2p = o->p2p;
        f->seq = o->seq;
        f->offset = (uint32_t)o->count;
        return 1;
    }
    if (p->want_farewell) {
        p->want_farewell = 0;
        f->type = DDP__FRAME_FAREWELL;
        return 1;
    }
    if (p->want_heartbeat) {
        p->want_heartbeat = 0;
        f->type = DDP__FRAME_HEARTBEAT;
        ddp__tell_progress(e, peer, f);
        return 1;
    }
    return 0;
}

int ddp__next_frame(ddp__engine *e, int peer, ddp__frame *f, ddp__op **op)
{
    ddp__peer *p = &e->peers[peer];
    ddp__op *best = NULL;
    ddp__frame candidate;

    *op = NULL;
    if (p->send_dead || p->closed) return 0;
    if (ddp__control_frame(e, peer, f)) return 1;
    if (e->fault.code != DDP_OK) return 0;
    if (e->elastic && ddp__shadow_frame(e, peer, f)) return 1;
    for (int i = 0; i < DDP__WINDOW + DDP__LANES; i++) {
        ddp__op *o = i < DDP__WINDOW ? e->window[i] : p->paired[2 * (i - DDP__WINDOW)];
        if (!o || o->state != DDP__OP_ACTIVE) continue;
        if (best && (o->m.priority > best->m.priority ||
                     (o->m.priority == best->m.priority && o->ticket > best->ticket)))
            continue;
        if (!ddp__op_frame(e, o, peer, &candidate)) continue;
        best = o;
        *f = candidate;
    }
    *op = best;
    if (best) return 1;
    if (p->want_goodbye) {
        p->want_goodbye = 0;
        memset(f, 0, sizeof *f);
        f->type = DDP__FRAME_GOODBYE;
        return 1;
    }
    return 0;
}

void ddp__take_credit(ddp__engine *e, int peer, uint32_t seq, int p2p, int count)
{
    ddp__peer *p = &e->peers[peer];

    if (p2p) {
        p->held_p2p[seq >> 31] -= count;
    } else {
        p->held_collective -= count;
        for (int i = 0; i < DDP__WINDOW; i++)
            if (e->window[i] && e->window[i]->seq == seq)
                ddp__row(e, e->window[i], peer)->held -= count;
    }
    if (p->held_p2p[0] < 0 || p->held_p2p[1] < 0 || p->held_collective < 0)
        ddp__fault(e, DDP_NET, "rank %d gave back more staging slots than it had; it runs another "
                   "version of this library or its stream is damaged", peer);
}
