/* Frames to and from the wire, straight from and into the memory of messages where possible. */
#include "comm/state.h"

enum { DDP__IOV = 17 };

/* ---- sending ---- */

/* The frame's bytes from `at` on, as many as the list has room for. */
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
        const char *whole = p->out.coding && p->out.coding != (int)DDP__AS_BYTES
                                ? (const char *)p->coded
                            : p->out_slot >= 0 ? (const char *)e->slot[p->out_slot].data
                            : op ? NULL
                                               : p->out_text;
        if (whole) {
            iov[n].iov_base = (char *)(uintptr_t)whole + at;
            iov[n].iov_len = p->out.length - at;
        } else {
            size_t values = at / op->unit, part = at % op->unit, here;
            char *data = (char *)ddp__memory_at(op, p->out.type == DDP__FRAME_RESULT ? ddp__result_of(op) : &op->from,
                p->out.offset + values, p->out.length / op->unit - values, &here);
            iov[n].iov_base = data + part;
            iov[n].iov_len = here * op->unit - part;
        }
        at += iov[n++].iov_len;
    }
    return n;
}

/* The checksum of the payload that is about to leave. */
static uint32_t ddp__payload_sum(ddp__engine *e, ddp__peer *p)
{
    struct iovec iov[DDP__IOV];
    size_t at = DDP__FRAME_BYTES;
    uint32_t h = 0;

    while (at < p->out_total) {
        const int n = ddp__frame_iov(e, p, at, iov);
        for (int i = 0; i < n; at += iov[i++].iov_len)
            h = ddp__crc32c(h, iov[i].iov_base, iov[i].iov_len);
    }
    return h;
}

/* leaves: when the frame's last byte has left the emulated uplink. 0 after a failure: nothing is to be sent. */
static int ddp__start_frame(ddp__engine *e, int peer, const ddp__frame *f, ddp__op *op, double leaves)
{
    ddp__peer *p = &e->peers[peer];

    p->out = *f;
    p->out.sent = ddp__microseconds(leaves);
    p->out_op = op;
    p->out_slot = -1;
    p->out_sent = 0;
    p->out_total = DDP__FRAME_BYTES + f->length;
    if (op) {
        p->out_slot = op->way->leaves(e, op, peer, f);
        if (f->coding && f->coding != (int)DDP__AS_BYTES && !ddp__code_frame(e, peer, op, f)) return 0;
    }
    if (f->length && e->checks) p->out.check = ddp__payload_sum(e, p);
    ddp__frame_encode(&p->out, p->out_head);
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
    if (!op || e->fault.code != DDP_OK) return;
    op->bytes += p->out.length;
    ddp__atomic_add(&e->stats.payload_sent, (int64_t)p->out.length);
    ddp__op_moves(e, op, now);
    op->way->sent(e, op, peer, &p->out, now);
}

int ddp__continue_frame(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];
    int moved = 0;

    while (p->out_state == DDP__OUT_WRITING) {
        struct iovec iov[DDP__IOV];
        int n = ddp__frame_iov(e, p, p->out_sent, iov);
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

    return f->type == DDP__FRAME_RESULT ? x->u.flow.results : x->u.flow.sent;
}

/* Whether frame f of op for peer is to leave before the best one so far: the more urgent operation, results before
 * contributions, then the peer that was given least. Equals go in the order rank + 1, rank + 2, ...: so at any time
 * each rank sends to another one, and no downlink has to serve two of them. */
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
    e->peers[chosen].release = ddp__link_send(&e->link, &e->path[chosen], now, DDP__FRAME_BYTES + best.length);
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

/* Frames of one peer and operation come in order, so nothing of it is pending: a result, or what
 * nobody adds to, may go where it belongs. */
static int ddp__goes_straight(const ddp__engine *e, const ddp__op *op, const ddp__frame *f)
{
    return !e->shaped && op && (f->type == DDP__FRAME_RESULT || f->type == DDP__FRAME_DATA) &&
           (f->coding == (int)DDP_AS_FLOAT || f->coding == (int)DDP__AS_BYTES) && !op->m.divergence && !op->m.add;
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
    if (p->in.type == DDP__FRAME_SUMMED || ddp__goes_straight(e, op, &p->in)) {
        if (solicited && !ddp__guard_check(e, op, p->in.offset, ddp__frame_values(&p->in))) return 0;
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

/* Where the payload's bytes from `got` on are, and how many of them follow each other. */
static unsigned char *ddp__payload_at(ddp__engine *e, int peer, size_t got, size_t *here)
{
    ddp__peer *p = &e->peers[peer];

    *here = p->in.length - got;
    if (p->discard) {
        if (*here > e->chunk * sizeof(float)) *here = e->chunk * sizeof(float);
        return e->sink;
    }
    if (p->in.type >= DDP__FRAME_STATE && ddp__is_control(&p->in))
        return e->membership->payload(e, peer, &p->in) + got;
    if (ddp__is_control(&p->in)) return (unsigned char *)p->text + got;
    if (p->in_op) {
        const size_t unit = p->in_op->unit, values = got / unit, part = got % unit;
        unsigned char *data = (unsigned char *)ddp__memory_at(
            p->in_op, &p->in_op->to, p->in.offset + values, p->in.length / unit - values, here);
        *here = *here * unit - part;
        return data + part;
    }
    return (unsigned char *)e->slot[p->in_slot].data + ddp__coded_at(&p->in) + got;
}

/* 1 if the payload is what was sent, as far as its sender said. */
static int ddp__payload_intact(ddp__engine *e, int peer)
{
    const ddp__frame *f = &e->peers[peer].in;
    size_t got = 0, here;
    uint32_t h = 0;

    if (!f->check || !f->length || !ddp__crc32c_is_fast()) return 1;
    for (; got < f->length; got += here) {
        const unsigned char *data = ddp__payload_at(e, peer, got, &here);
        h = ddp__crc32c(h, data, here);
    }
    if (h == f->check) return 1;
    ddp__fault(e, DDP_NET,
               "%lu bytes of operation %lu from rank %d (%s) arrived changed: its network or memory is "
               "faulty, or values were written while they were being sent (DREAMDDP_DEBUG=1 names "
               "the layer); restart the job from its last checkpoint",
               (unsigned long)f->length, (unsigned long)f->seq, peer,
               e->wire->table->peer_name(e->wire, peer));
    return 0;
}

static void ddp__control_read(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];

    if (p->in.type == DDP__FRAME_STATE || p->in.type == DDP__FRAME_EPOCH) {
        e->membership->read(e, peer, &p->in, now); /* passes every queue */
        return;
    }
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
}

static void ddp__frame_read(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];

    p->in_state = DDP__IN_HEAD;
    p->in_got = 0;
    if (p->discard) {
        p->discard = 0;
        return;
    }
    if (!ddp__payload_intact(e, peer)) return;
    if (ddp__is_control(&p->in)) {
        ddp__control_read(e, peer, now);
    } else if (p->in_op) {
        ddp__frame_ready(e, peer, p->in_op, &p->in, now);
    } else {
        ddp__slot *s = &e->slot[p->in_slot];
        s->arrived = now;
        s->next = -1;
        if (p->in.coding && p->in.coding != (int)DDP__AS_BYTES && !ddp__decode_slot(e, peer, s)) return;
        if (e->shaped) ddp__delay_chunk(e, p->in_slot, now);
        else ddp__slot_ready(e, p->in_slot, now);
    }
    p->in_op = NULL;
}

static void ddp__stream_end(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int why = errno;

    p->closed = 1;
    if (p->out_of_world) return;
    if (p->goodbye_read || p->abort_read || e->closing) return;
    ddp__peer_lost(e, peer, why && why != ECONNRESET && why != EPIPE ? strerror(why) : "connection closed by peer");
}

/* The head of a frame is here; 0: nothing more can be read from that peer. */
static int ddp__head_read(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];

    p->in_got = 0;
    if (!ddp__frame_decode(p->in_head, &p->in)) {
        if (p->out_of_world) p->closed = 1;
        else
            ddp__fault(e, DDP_NET,
                       "rank %d (%s) sent bytes that do not begin a frame: its stream is damaged "
                       "or it runs another version of this library",
                       peer, e->wire->table->peer_name(e->wire, peer));
        return 0;
    }
    if (e->membership && e->membership->drops(e, peer, &p->in)) {
        p->discard = 1;
        p->in_state = DDP__IN_PAYLOAD;
        return 1;
    }
    p->in_state = DDP__IN_PAUSED;
    return ddp__frame_check(e, peer, &p->in);
}

/* Reads from one peer until it has nothing more, or a few frames, so that others get a turn. */
static int ddp__receive_from(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int moved = 0, frames = 0;

    while (frames < 4 && !p->closed && e->fault.code == DDP_OK) {
        unsigned char *to = p->in_head + p->in_got;
        size_t room = DDP__FRAME_BYTES - p->in_got;
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
        if (p->in_state == DDP__IN_PAYLOAD) to = ddp__payload_at(e, peer, p->in_got, &room);
        got = e->wire->table->recv(e->wire, peer, to, room);
        if (got < 0) {
            ddp__stream_end(e, peer);
            return 1;
        }
        if (got == 0) break;
        moved = 1;
        p->in_got += (size_t)got;
        p->last_got = -1; /* set by the caller: one clock reading for all */
        ddp__atomic_add(&e->stats.bytes_received, (int64_t)got);
        if (p->in_state == DDP__IN_HEAD && p->in_got == DDP__FRAME_BYTES && !ddp__head_read(e, peer))
            return 1;
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
