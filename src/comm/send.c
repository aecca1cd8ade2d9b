/* Chooses the next frame and writes it to the wire, directly from the memory of messages where possible.
 * Control frames go first, then the highest-priority operation that has a frame and, if the receiver must
 * stage it, a credit. */
#include "comm/state.h"

enum { DDP__IOV = 17 };

static int ddp__op_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    return ddp__takes_part(e, op, peer) && op->way->next && (op->p2p || !e->frozen) &&
           op->way->next(e, op, peer, f);
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
        f->layer = e->fault_about + 1;
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
        f->seq = e->next_seq;
        f->count = p->paired_seq[0];
        f->offset = p->paired_seq[1];
        f->layer = e->more;
        return 1;
    }
    return 0;
}

static int ddp__next_frame(ddp__engine *e, int peer, ddp__frame *f, ddp__op **op)
{
    ddp__peer *p = &e->peers[peer];
    ddp__op *best = NULL;
    ddp__frame candidate;

    *op = NULL;
    if (p->send_dead || p->closed) return 0;
    if (ddp__control_frame(e, peer, f)) return 1;
    if (e->fault.code != DDP_OK) return 0;
    if (e->membership && e->membership->frame(e, peer, 0, f)) return 1;
    for (int i = 0; i < (int)DDP__WINDOW + (int)DDP__LANES; i++) {
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

/* Marks operations that wait for a peer: they can send nothing, and a peer has not begun. The wait starts
 * when the peer's first chunk would have arrived if the peer had submitted together with this rank. */
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
            busy = e->peers[r].out_op == op || ddp__op_frame(e, op, r, &f);
        }
        if (busy) continue;
        hops = op->way->relays ? ddp__team_of(e, op).members - 1 : 1;
        earliest = op->active_at + hops * e->links.farthest;
        if (e->links.slowest > 0) {
            size_t first = op->n < e->chunk ? op->n : e->chunk;
            earliest += hops * (double)(first * sizeof(float)) / e->links.slowest;
        }
        op->waiting_since = now > earliest ? now : earliest;
    }
}

/* ---- writing ---- */

/* Lists the frame's bytes from `at` on, as many as fit. Returns the number of entries. */
static int ddp__frame_iov(ddp__engine *e, ddp__peer *p, size_t at, struct iovec *iov)
{
    const ddp__op *op = p->out_op;
    int n = 0;

    if (at < DDP__FRAME_BYTES) {
        iov[n].iov_base = p->out_head + at;
        iov[n++].iov_len = DDP__FRAME_BYTES - at;
        at = 0;
    } else {
        at -= DDP__FRAME_BYTES;
    }
    while (at < p->out.length && n < DDP__IOV) {
        const char *whole = op ? NULL : p->out_text;
        if (p->out_slot >= 0) whole = (const char *)e->slot[p->out_slot].data;
        if (p->out.coding && p->out.coding != (int)DDP__AS_BYTES) whole = (const char *)p->coded;
        if (whole) {
            iov[n].iov_base = (char *)(uintptr_t)whole + at;
            iov[n].iov_len = p->out.length - at;
        } else {
            size_t values = at / op->unit, part = at % op->unit, here;
            const ddp__strips *in = ddp__sent_from(e, op, &p->out);
            char *data = (char *)ddp__memory_at(op, in, p->out.offset + values,
                                                p->out.length / op->unit - values, &here);
            iov[n].iov_base = data + part;
            iov[n].iov_len = here * op->unit - part;
        }
        at += iov[n++].iov_len;
    }
    return n;
}

static uint32_t ddp__payload_sum(ddp__engine *e, ddp__peer *p)
{
    struct iovec iov[DDP__IOV];
    size_t at = DDP__FRAME_BYTES;
    uint32_t h = 0;

    while (at < p->out_total) {
        const int n = ddp__frame_iov(e, p, at, iov);
        for (int i = 0; i < n; at += iov[i++].iov_len) h = ddp__crc32c(h, iov[i].iov_base, iov[i].iov_len);
    }
    return h;
}

/* leaves: time at which the frame's last byte will have left the emulated uplink. Returns 0 after a failure:
 * no frame may be sent. */
static int ddp__start_frame(ddp__engine *e, int peer, const ddp__frame *f, ddp__op *op, double now,
                            double leaves)
{
    ddp__peer *p = &e->peers[peer];

    p->out = *f;
    p->out.sent = ddp__microseconds(leaves);
    p->out_op = op;
    p->out_slot = -1;
    p->out_sent = 0;
    p->out_total = DDP__FRAME_BYTES + f->length;
    if (op) {
        if (f->length && !ddp__memory_there(e, op, f->offset)) return 0;
        p->out_slot = op->way->leaves(e, op, peer, f);
        if (f->coding && f->coding != (int)DDP__AS_BYTES && !ddp__code_frame(e, peer, op, f)) return 0;
    }
    if (f->length && e->checks) p->out.check = ddp__payload_sum(e, p);
    ddp__frame_encode(&p->out, p->out_head);
    if (op) ddp__op_moves(e, op, now);
    p->out_state = DDP__OUT_WRITING;
    return 1;
}

int ddp__start_next(ddp__engine *e, int peer, double now)
{
    ddp__frame f;
    ddp__op *op;

    return ddp__next_frame(e, peer, &f, &op) && ddp__start_frame(e, peer, &f, op, now, now);
}

static void ddp__frame_sent(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];
    ddp__op *op = p->out_op;

    if (p->out_slot >= 0) ddp__slot_free(e, p->out_slot);
    p->out_state = DDP__OUT_IDLE;
    p->out_op = NULL;
    if (!op || e->fault.code != DDP_OK) return;
    ddp__count_sent(e, op, p->out.coding, (int64_t)p->out.length);
    ddp__op_moves(e, op, now);
    if (op->way->sent)
        op->way->sent(e, op, &p->out, now);
    else
        ddp__op_advance(e, op, ddp__frame_values(&p->out));
}

int ddp__continue_frame(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];
    int moved = 0;

    while (p->out_state == DDP__OUT_WRITING) {
        struct iovec iov[DDP__IOV];
        /* a frame that has started and cannot be completed breaks the link: no other frame may follow */
        long took = -1;
        if (!p->out_op || p->out_slot >= 0 || !p->out.length ||
            ddp__memory_there(e, p->out_op, p->out.offset)) {
            const int n = ddp__frame_iov(e, p, p->out_sent, iov);
            took = e->wire->table->send(e->wire, peer, iov, n);
        }
        if (took < 0) {
            p->send_dead = 1;
            p->out_state = DDP__OUT_IDLE;
            p->out_op = NULL;
            return 1;
        }
        if (took == 0) break;
        moved = 1;
        p->out_sent += (size_t)took;
        ddp__atomic_add(&e->bytes_sent, (int64_t)took);
        if (p->out_sent == p->out_total)
            ddp__frame_sent(e, peer, now);
        else
            e->looked_at[0] = e->looked_at[1] = 0;
    }
    return moved;
}

/* Values of its part of an operation that were sent to a peer. */
static size_t ddp__given(ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    const ddp__exchange *x = ddp__row(e, op, peer);

    return f->type == DDP__FRAME_RESULT ? x->u.flow.results : x->u.flow.sent;
}

/* 1 if frame f of op for peer must leave before the best one so far. Order: the higher-priority operation,
 * contributions before results as in ddp__direct_next (between sites: after them), then the peer that was
 * sent least. Ties go in the order rank + 1, rank + 2, ..., so that at any time each rank sends to a
 * different one, and no downlink serves two of them. */
static int ddp__sooner(ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f,
                       const ddp__op *best_op, int best_peer, const ddp__frame *best)
{
    if (op->m.priority != best_op->m.priority) return op->m.priority < best_op->m.priority;
    if (op != best_op) return op->ticket < best_op->ticket;
    if (f->type != best->type) return (f->type == DDP__FRAME_RESULT) == (op->way == ddp__sites_way());
    return ddp__given(e, op, peer, f) < ddp__given(e, op, best_peer, best);
}

/* Loads one frame onto the uplink: the one with the highest priority over all idle peers. */
static int ddp__load_uplink(ddp__engine *e, double now)
{
    int chosen = -1;
    ddp__frame f, best;
    ddp__op *op, *best_op = NULL;

    e->up_waiting = e->links.own.up_free > now;
    if (e->up_waiting) return 0;
    memset(&best, 0, sizeof best);
    for (int k = 1; k < e->world; k++) {
        int peer = (e->rank + k) % e->world;
        if (e->peers[peer].out_state != DDP__OUT_IDLE) continue;
        if (!ddp__next_frame(e, peer, &f, &op)) continue;
        if (op && chosen >= 0 && !ddp__sooner(e, op, peer, &f, best_op, chosen, &best)) continue;
        best = f;
        best_op = op;
        chosen = peer;
        if (!op) break; /* ddp__next_frame has removed the control frame from its list */
    }
    if (chosen < 0) return 0;
    e->peers[chosen].release =
        ddp__link_send(&e->links.own, &e->links.path[chosen], now, DDP__FRAME_BYTES + best.length);
    if (!ddp__start_frame(e, chosen, &best, best_op, now, e->peers[chosen].release)) return 0;
    e->peers[chosen].out_state = DDP__OUT_SERIALISING;
    return 1;
}

int ddp__send_all(ddp__engine *e, double now)
{
    int moved = 0;

    for (int k = 1; k < e->world; k++) {
        const int peer = (e->rank + k) % e->world;
        moved |= ddp__continue_frame(e, peer, now);
        if (!e->paced && e->peers[peer].out_state == DDP__OUT_IDLE && ddp__start_next(e, peer, now))
            moved |= ddp__continue_frame(e, peer, now);
    }
    while (e->paced && ddp__load_uplink(e, now)) moved = 1;
    return moved;
}
