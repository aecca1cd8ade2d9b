/* Frames to and from the wire, straight from and into the memory of messages where possible. */
#include "net/elastic.h"

enum { DDP__IOV = 17 };

/* ---- sending ---- */

/* leaves: when the frame's last byte has left the emulated uplink. 0 after a failure: nothing is to
 * be sent. */
static int ddp__start_frame(ddp__engine *e, int peer, const ddp__frame *f, ddp__op *op,
                             double leaves)
{
    ddp__peer *p = &e->peers[peer];

    p->out = *f;
    p->out.sent = ddp__microseconds(leaves);
    p->out_op = op;
    p->out_slot = -1;
    p->out_sent = 0;
    p->out_total = DDP__FRAME_BYTES + f->length;
    ddp__frame_encode(&p->out, p->out_head);
    if (op && op->shared) {
        ddp__share_started(e, op, peer, f);
    } else if (op) {
        ddp__exchange *x = ddp__row(e, op, op->ring ? ddp__segment_of(e, op, f->offset) : peer);
        size_t count = ddp__frame_values(f);
        if (f->type == DDP__FRAME_RESULT) {
            x->results += count;
        } else {
            x->sent += count;
            ddp__row(e, op, peer)->held++;
            if (op->p2p) p->held_p2p[ddp__paired_lane(op)]++;
            else p->held_collective++;
        }
        if (op->ring) p->out_slot = ddp__ring_started(e, op, f);
        if (p->out_slot < 0) (void)ddp__guard_check(e, op, f->offset, count);
        if (f->coding && !ddp__code_frame(e, peer, op, f)) return 0;
    }
    return 1;
}

int ddp__start_control(ddp__engine *e, int peer)
{
    ddp__frame f;
    ddp__op *op;

    if (!ddp__next_frame(e, peer, &f, &op)) return 0;
    if (!ddp__start_frame(e, peer, &f, op, ddp_now())) return 0;
    e->peers[peer].out_state = DDP__OUT_WRITING;
    return 1;
}

static void ddp__frame_sent(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];
    ddp__op *op = p->out_op;

    if (p->out_slot >= 0) ddp__slot_free(e, p->out_slot);
    p->out_state = DDP__OUT_IDLE;
    p->out_op = NULL;
    if (op && e->fault.code == DDP_OK) {
        op->bytes += p->out.length;
        ddp__atomic_add(&e->stats.payload_sent, (int64_t)p->out.length);
        ddp__op_moves(e, op, now);
        ddp__op_advance(e, op, op->shared ? ddp__share_sent(op, &p->out)
                                          : ddp__frame_values(&p->out));
        if (op->full && op->state == DDP__OP_ACTIVE) ddp__full_reduce(e, op, now);
    }
}

static int ddp__frame_iov(ddp__engine *e, ddp__peer *p, struct iovec *iov)
{
    size_t at = p->out_sent;
    int n = 0;

    if (at < DDP__FRAME_BYTES) {
        iov[n].iov_base = p->out_head + at;
        iov[n++].iov_len = DDP__FRAME_BYTES - at;
        at = 0;
    } else {
        at -= DDP__FRAME_BYTES;
    }
    while (at < p->out.length && n < DDP__IOV) {
        if (p->out.coding) {
            iov[n].iov_base = (char *)p->coded + at;
            iov[n].iov_len = p->out.length - at;
        } else if (p->out_slot >= 0) {
            iov[n].iov_base = (char *)e->slot[p->out_slot].data + at;
            iov[n].iov_len = p->out.length - at;
        } else if (p->out_op) {
            size_t floats = at / sizeof(float), part = at % sizeof(float), here;
            float *data = ddp__memory_at(p->out_op, p->out.offset + floats,
                                         p->out.length / sizeof(float) - floats, &here);
            iov[n].iov_base = (char *)data + part;
            iov[n].iov_len = here * sizeof(float) - part;
        } else {
            iov[n].iov_base = (char *)(uintptr_t)p->out_text + at;
            iov[n].iov_len = p->out.length - at;
        }
        at += iov[n++].iov_len;
    }
    return n;
}

int ddp__continue_frame(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];
    int moved = 0;

    while (p->out_state == DDP__OUT_WRITING) {
        struct iovec iov[DDP__IOV];
        int n = ddp__frame_iov(e, p, iov);
        long took = e->wire->table->send(e->wire, peer, iov, n);
        if (took < 0) {
            p->send_dead = 1;
            p->out_state = DDP__OUT_IDLE;
            p->out_op = NULL;
            return 1;
        }
        if (took == 0) break;
        moved = 1;
        p->last_sent = now;
        p->out_sent += (size_t)took;
        ddp__atomic_add(&e->stats.bytes_sent, (int64_t)took);
        if (p->out_sent == p->out_total) ddp__frame_sent(e, peer, now);
    }
    return moved;
}

/* How much of its part of an operation a peer was given. */
static size_t ddp__given(ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    return f->type == DDP__FRAME_RESULT ? x->results : x->sent;
}

/* Whether frame f of op for peer is to leave before the best one so far: the more urgent operation,
 * results before contributions, then the peer that was given least. Equals go in the order rank +
 * 1, rank + 2, ...: so at any time each rank sends to another one, and no downlink has to serve two
 * of them. */
static int ddp__sooner(ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f,
                       const ddp__op *best_op, int best_peer, const ddp__frame *best)
{
    if (op->m.priority != best_op->m.priority) return op->m.priority < best_op->m.priority;
    if (op != best_op) return op->ticket < best_op->ticket;
    if (f->type != best->type) return f->type == DDP__FRAME_RESULT;
    return ddp__given(e, op, peer, f) < ddp__given(e, op, best_peer, best);
}

/* The uplink takes one frame at a time, the most urgent over all peers whose way is free. */
static int ddp__load_uplink(ddp__engine *e, double now)
{
    int chosen = -1;
    ddp__frame f, best;
    ddp__op *op, *best_op = NULL;

    e->up_waiting = e->link.up_free > now;
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
        if (!op) break; /* ddp__next_frame took the control frame off its list */
    }
    if (chosen < 0) return 0;
    e->peers[chosen].release =
        ddp__link_send(&e->link, &e->path[chosen], now, DDP__FRAME_BYTES + best.length);
    if (!ddp__start_frame(e, chosen, &best, best_op, e->peers[chosen].release)) return 0;
    if (best_op) ddp__op_moves(e, best_op, now);
    e->peers[chosen].out_state = DDP__OUT_SERIALISING;
    return 1;
}

int ddp__send_all(ddp__engine *e, double now)
{
    int moved = 0;

    for (int k = 1; k < e->world; k++) {
        int peer = (e->rank + k) % e->world;
        ddp__peer *p = &e->peers[peer];
        ddp__frame f;
        ddp__op *op;
        moved |= ddp__continue_frame(e, peer, now);
        if (e->paced || p->out_state != DDP__OUT_IDLE) continue;
        if (!ddp__next_frame(e, peer, &f, &op)) continue;
        if (!ddp__start_frame(e, peer, &f, op, now)) return 1;
        if (op) ddp__op_moves(e, op, now);
        p->out_state = DDP__OUT_WRITING;
        moved |= ddp__continue_frame(e, peer, now);
    }
    if (e->paced)
        while (ddp__load_uplink(e, now)) moved = 1;
    return moved;
}

/* ---- receiving ---- */

static int ddp__is_control(const ddp__frame *f)
{
    return f->type >= DDP__FRAME_CREDIT && f->type < DDP__FRAME_OFFER;
}

/* Chooses where the payload goes; 0 if it has to wait for a slot. */
static int ddp__place_payload(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int solicited = p->in.type == DDP__FRAME_RESULT;
    ddp__op *op = ddp__find_op(e, peer, &p->in);

    p->in_slot = -1;
    p->in_op = NULL;
    if (ddp__is_control(&p->in)) return 1;
    if (p->in.type == DDP__FRAME_SUMMED) {
        p->in_op = op;
        return 1;
    }
    if (!e->shaped && op && !p->in.coding && !op->m.divergence &&
        (solicited || p->in.type == DDP__FRAME_DATA)) {
        /* Frames of one peer and operation come in order, so nothing of it is pending. */
        if (solicited && !ddp__guard_check(e, op, p->in.offset, p->in.length / sizeof(float)))
            return 0;
        p->in_op = op;
        return 1;
    }
    if (solicited ? p->solicited >= e->extra : p->staged >= e->credits) {
        if (!solicited)
            ddp__fault(e, DDP_NET,
                       "rank %d sent more than its credits allow; all ranks must use the "
                       "same link rate, delay and chunk size",
                       peer);
        return 0;
    }
    if (solicited) p->solicited++;
    else p->staged++;
    p->in_slot = p->free_slot;
    p->free_slot = e->slot[p->in_slot].next;
    e->slot[p->in_slot].f = p->in;
    return 1;
}

static void ddp__frame_read(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];

    p->in_state = DDP__IN_HEAD;
    p->in_got = 0;
    if (e->elastic && e->elastic->peer[peer].discard) {
        e->elastic->peer[peer].discard = 0;
        return;
    }
    if (p->in.type == DDP__FRAME_STATE || p->in.type == DDP__FRAME_EPOCH) {
        if (!ddp__epoch_read(e, peer, &p->in, now))
            ddp__fault(e, DDP_NET,
                       "rank %d sent a word about the next epoch that is none: it runs another "
                       "version of this library",
                       peer);
        return;
    }
    if (ddp__is_control(&p->in)) {
        if (p->in.type == DDP__FRAME_GOODBYE) p->goodbye_read = 1;
        if (p->in.type == DDP__FRAME_ABORT) {
            p->abort_read = 1;
            p->text[p->in.length] = '\0';
            for (char *c = p->text; *c; c++) /* it is somebody else's, and may go to a terminal */
                if (iscntrl((unsigned char)*c)) *c = '?';
            if (!p->text[0]) snprintf(p->text, sizeof p->text, "a rank gave up without a word");
        }
        if (e->shaped) ddp__delay_control(e, peer, now);
        else ddp__control_ready(e, peer, &p->in, now);
    } else if (p->in_op) {
        ddp__direct_ready(e, peer, p->in_op, &p->in, now);
    } else {
        ddp__slot *s = &e->slot[p->in_slot];
        s->arrived = now;
        s->next = -1;
        if (p->in.coding && !ddp__decode_slot(e, peer, s)) return;
        if (!e->shaped) {
            ddp__slot_ready(e, p->in_slot, now);
        } else {
            ddp__delay_chunk(e, p->in_slot, now);
        }
    }
    p->in_op = NULL;
}

static long ddp__read_payload(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    size_t left = p->in.length - p->in_got;

    if (e->elastic && e->elastic->peer[peer].discard) {
        size_t room = e->elastic->sink_bytes;
        return e->wire->table->recv(e->wire, peer, e->elastic->sink, left < room ? left : room);
    }
    if (p->in.type == DDP__FRAME_STATE || p->in.type == DDP__FRAME_EPOCH)
        return e->wire->table->recv(e->wire, peer, e->elastic->peer[peer].in + p->in_got, left);
    if (ddp__is_control(&p->in))
        return e->wire->table->recv(e->wire, peer, p->text + p->in_got, left);
    if (p->in_op) {
        size_t floats = p->in_got / sizeof(float), part = p->in_got % sizeof(float), here;
        float *data = ddp__memory_at(p->in_op, p->in.offset + floats,
                                     p->in.length / sizeof(float) - floats, &here);
        return e->wire->table->recv(e->wire, peer, (char *)data + part,
                                    here * sizeof(float) - part);
    }
    return e->wire->table->recv(e->wire, peer,
                                (char *)e->slot[p->in_slot].data +
                                    ddp__coded_at(&p->in) + p->in_got,
                                left);
}

static void ddp__stream_end(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int why = errno;

    p->closed = 1;
    if (e->elastic && e->elastic->peer[peer].gone) return;
    if (p->goodbye_read || p->abort_read || e->closing) return;
    ddp__peer_lost(e, peer,
                   why && why != ECONNRESET && why != EPIPE ? strerror(why)
                                                            : "connection closed by peer");
}

/* Reads from one peer until it has nothing more, or a few frames, so that others get a turn. */
static int ddp__receive_from(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int moved = 0, frames = 0;

    while (frames < 4 && !p->closed && e->fault.code == DDP_OK) {
        long got;
        if (p->in_state == DDP__IN_PAUSED) {
            if (!ddp__place_payload(e, peer)) return moved;
            p->in_state = DDP__IN_PAYLOAD;
        }
        if (p->in_state == DDP__IN_HEAD && e->shaped && e->control_count == e->control_room)
            return moved;
        if (p->in_state == DDP__IN_PAYLOAD && p->in_got == p->in.length) {
            ddp__frame_read(e, peer, ddp_now());
            frames++;
            continue;
        }
        errno = 0;
        if (p->in_state == DDP__IN_HEAD)
            got = e->wire->table->recv(e->wire, peer, p->in_head + p->in_got,
                                       DDP__FRAME_BYTES - p->in_got);
        else
            got = ddp__read_payload(e, peer);
        if (got < 0) {
            ddp__stream_end(e, peer);
            return 1;
        }
        if (got == 0) break;
        moved = 1;
        p->in_got += (size_t)got;
        p->last_got = -1; /* set by the caller: one clock reading for all */
        ddp__atomic_add(&e->stats.bytes_received, (int64_t)got);
        if (p->in_state == DDP__IN_HEAD && p->in_got == DDP__FRAME_BYTES) {
            p->in_got = 0;
            int whole = ddp__frame_decode(p->in_head, &p->in);
            if (e->elastic && !whole && e->elastic->peer[peer].gone) {
                p->closed = 1;
                return 1;
            }
            if (!whole) {
                ddp__fault(e, DDP_NET,
                           "rank %d (%s) sent bytes that are no frame: its stream is damaged "
                           "or it runs another version of this library",
                           peer, e->wire->table->peer_name(e->wire, peer));
                return 1;
            }
            if (e->elastic && ddp__epoch_drops(e, peer, &p->in)) {
                e->elastic->peer[peer].discard = 1;
                p->in_state = DDP__IN_PAYLOAD;
                continue;
            }
            if (!ddp__frame_check(e, peer, &p->in)) return 1;
            p->in_state = DDP__IN_PAUSED;
        }
    }
    return moved;
}

int ddp__receive_all(ddp__engine *e)
{
    int moved = 0;

    for (int k = 1; k < e->world && e->fault.code == DDP_OK; k++) {
        int peer = (e->rank + k) % e->world;
        if (!e->peers[peer].closed) moved |= ddp__receive_from(e, peer);
    }
    if (moved) {
        double now = ddp_now();
        for (int peer = 0; peer < e->world; peer++)
            if (e->peers[peer].last_got < 0) e->peers[peer].last_got = now;
    }
    return moved;
}
