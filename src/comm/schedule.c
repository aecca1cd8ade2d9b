/* What to send next: control frames, then the most urgent operation that has a frame and,
 * where the receiver must stage it, a credit. */
#include "comm/state.h"

int ddp__op_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    if (op->p2p) {
        if (op->m.peer != peer) return 0;
    } else if (e->frozen || ddp__team_of(e, op).place[peer] < 0) {
        return 0;
    }
    return op->way->next(e, op, peer, f);
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
    if (e->membership && e->membership->frame(e, peer, 1, f)) return 1;
    if (p->out_of_world) return 0;
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
    if (e->membership && e->membership->frame(e, peer, 0, f)) return 1;
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
    if (!p->want_goodbye) return 0;
    p->want_goodbye = 0;
    memset(f, 0, sizeof *f);
    f->type = DDP__FRAME_GOODBYE;
    return 1;
}

/* An operation that can send nothing while a peer has not shown up is waiting for it, from the
 * time on at which the peer's first chunk would be here had it submitted with this rank. */
void ddp__note_waiting(ddp__engine *e, double now)
{
    if (e->frozen) return;
    for (int i = 0; i < DDP__WINDOW; i++) {
        ddp__op *op = e->window[i];
        int busy = 0, hops;
        double earliest;
        if (!op || op->missing == 0 || op->waiting_since >= 0 || op->span.begin < 0) continue;
        for (int r = 0; r < e->world && !busy; r++) {
            ddp__frame f;
            if (r != e->rank) busy = e->peers[r].out_op == op || ddp__op_frame(e, op, r, &f);
        }
        if (busy) continue;
        hops = op->way->letter == 'r' ? ddp__team_of(e, op).members - 1 : 1;
        earliest = op->active_at + hops * e->farthest;
        if (e->slowest > 0) {
            size_t first = op->n < e->chunk ? op->n : e->chunk;
            earliest += hops * (double)(first * sizeof(float)) / e->slowest;
        }
        op->waiting_since = now > earliest ? now : earliest;
    }
}
