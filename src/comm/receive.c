/* Receives frames: reads them from the wire, directly into the memory of messages where possible, checks
 * them, and assigns each to its operation or to the list of early chunks. */
#include "comm/state.h"

static const char *ddp__verb_does(int verb, int ring, int coding)
{
    static const char *const text[] = {"averages", "broadcasts", "gathers", "scatters sums of",
                                       "sends",    "pushes",     "answers", "asks for",
                                       "receives", "serves",     "pulls"};

    static const char *const coded[] = {"averages", "averages in bfloat16", "averages in int8 blocks of",
                                        "averages in int4 blocks of", "averages in e3m0 blocks of"};

    if (verb == (int)DDP_ALL_REDUCE && ring) return "averages by ring";
    if (verb == (int)DDP_ALL_REDUCE && coding >= 0 && coding <= (int)DDP_AS_E3M0) return coded[coding];
    return verb >= 0 && verb <= (int)DDP_PULL ? text[verb] : "sends an unknown message of";
}

static void ddp__mismatch(ddp__engine *e, int peer, const ddp__op *op, const ddp__frame *f)
{
    char own[64], other[64];

    ddp__layer_text(e, op->m.layer, own, sizeof own);
    ddp__layer_text(e, f->layer, other, sizeof other);
    ddp__fault(e, DDP_MISMATCH,
               "operation %lu: rank %d %s %s (%lu values, root or peer %d), rank %d %s %s (%lu "
               "values): all ranks must make the same calls in the same order, and as many steps",
               (unsigned long)op->seq, e->rank,
               ddp__verb_does((int)op->m.verb, op->way->relays, (int)op->m.coding), own, (unsigned long)op->n,
               op->m.peer, peer, ddp__verb_does(f->verb, f->type == DDP__FRAME_SUM, f->coding), other,
               (unsigned long)f->count);
}

/* 1 if a peer's verb matches the verb of this rank's operation. */
static int ddp__meets(const ddp__op *op, int verb)
{
    switch (op->m.verb) {
    case DDP_RECEIVE:
        return verb == (int)DDP_SEND;
    case DDP_SERVE:
        return verb == (int)DDP_PUSH || verb == (int)DDP__ASK;
    case DDP_PULL:
        return verb == (int)DDP_ANSWER;
    default:
        return verb == (int)op->m.verb;
    }
}

/* Verifies that the sender's operation matches this rank's. Returns 0 after a failure. */
static int ddp__agrees(ddp__engine *e, int peer, const ddp__op *op, const ddp__frame *f)
{
    int ok = ddp__meets(op, f->verb) && f->count == (uint32_t)op->n && f->layer == op->m.layer;

    if (ok && op->way->agrees)
        ok = op->way->agrees(e, op, peer, f);
    else if (ok)
        ok = op->way->types >> f->type & 1 && f->coding == (int)op->m.coding &&
             (op->m.verb != DDP_BROADCAST || peer == ddp__root(e, op));
    if (!ok) ddp__mismatch(e, peer, op, f);
    return ok;
}

/* Finds a complete operation whose queue entry still exists, and copies it, since the entry may be reused at
 * any time. */
static int ddp__past_op(ddp__engine *e, int peer, const ddp__frame *f, ddp__op *out)
{
    int found = 0;

    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < e->cfg.queue && !found; i++) {
        const ddp__op *old = &e->ops[i];
        found = old->state == DDP__OP_DONE && old->seq == f->seq && old->p2p == f->p2p &&
                (!old->p2p || (old->m.verb >= DDP_RECEIVE && old->m.peer == peer));
        if (found) *out = *old;
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

static int ddp__is_control(const ddp__frame *f)
{
    return f->type >= DDP__FRAME_CREDIT && f->type < DDP__FRAME_OFFER;
}

/* 1 if some operation of this engine could have a chunk of this shape. */
static int ddp__chunk_possible(const ddp__engine *e, const ddp__frame *f)
{
    const size_t most = e->chunk * sizeof(float);
    size_t values;

    if (f->length > most) return 0; /* checked before any arithmetic with the length */
    if (f->type >= DDP__FRAME_OFFER) {
        if (e->share_bytes == SIZE_MAX || f->p2p || f->coding || f->length != 0) return 0;
        return f->type == DDP__FRAME_OFFER ? f->offset < DDP__OFFERS : f->offset <= f->count;
    }
    /* another coding means that the ranks have different settings */
    if (f->coding != (int)DDP_AS_FLOAT && f->coding != (int)DDP__AS_BYTES && f->coding != (int)e->cfg.coding)
        return 0;
    if (f->length == 0 || f->offset > f->count) return 0;
    values = ddp__frame_values(f);
    return values <= most && (values <= e->chunk || f->coding == (int)DDP__AS_BYTES) &&
           values <= f->count - f->offset && !(f->p2p && f->type != DDP__FRAME_DATA) &&
           (!f->p2p || (f->seq >> 30) < (uint32_t)e->lanes);
}

static int ddp__control_possible(const ddp__engine *e, int peer, const ddp__frame *f)
{
    if (f->type == DDP__FRAME_CREDIT) return f->length == 0 && (!f->p2p || f->seq >> 30 < DDP__LANES);
    if (f->type == DDP__FRAME_ABORT) return f->length < DDP_ERROR_TEXT;
    if (f->type < DDP__FRAME_STATE) return f->length == 0 && f->layer >= 0 && f->layer < DDP__SLOTS_MAX;
    return e->membership &&
           (f->length == 0 || e->membership->payload((ddp__engine *)(uintptr_t)e, peer, f) != NULL);
}

/* 1 if a frame that is dropped has a valid length: its payload must still be read. */
static int ddp__length_possible(const ddp__engine *e, int peer, const ddp__frame *f)
{
    return ddp__is_control(f) ? ddp__control_possible(e, peer, f) : f->length <= e->chunk * sizeof(float);
}

static int ddp__frame_check(ddp__engine *e, int peer, const ddp__frame *f)
{
    ddp__op old, *op = NULL;
    int ok;

    if (ddp__is_control(f)) {
        ok = ddp__control_possible(e, peer, f);
    } else {
        ok = ddp__chunk_possible(e, f);
        op = ddp__find_op(e, peer, f);
        if (op && ok) return ddp__agrees(e, peer, op, f);
        if (op && f->coding == (int)op->m.coding) op = NULL;
        if (!op && ok) {
            const uint32_t *next = &e->peers[peer].paired_seq[2 * (f->seq >> 30) + 1];
            int past = f->p2p ? (int32_t)((f->seq - *next) << 2) < 0 : ddp__seq_past(e, f->seq);
            /* An operation that is complete here, or has not begun, needs no such frame. */
            ok = f->type != DDP__FRAME_RESULT && f->type != DDP__FRAME_SUMMED && !past;
            if (!ok && ddp__past_op(e, peer, f, &old)) op = &old;
        }
    }
    if (op)
        ddp__mismatch(e, peer, op, f);
    else if (!ok)
        ddp__fault(e, DDP_NET,
                   "rank %d sent a chunk that fits no operation (type %d, operation %lu, coding %d, values "
                   "%lu of %lu, %lu bytes): all ranks must use the same wire format and chunk size and "
                   "submit in the "
                   "same order",
                   peer, f->type, (unsigned long)f->seq, f->coding, (unsigned long)f->offset,
                   (unsigned long)f->count, (unsigned long)f->length);
    return ok && !op;
}

void ddp__slot_ready(ddp__engine *e, int slot, double now)
{
    ddp__slot *s = &e->slot[slot];
    const ddp__frame f = s->f;
    ddp__op *op = ddp__find_op(e, s->peer, &f);

    if (!op && f.type == DDP__FRAME_RESULT) { /* of an operation that has ended meanwhile */
        ddp__slot_free(e, slot);
        return;
    }
    if (op && !ddp__agrees(e, s->peer, op, &f)) return;
    if (!op || (op->way->stages && f.type == DDP__FRAME_PART))
        ddp__chain_add(e, &e->peers[s->peer].pending, slot, e->peers[s->peer].pending.last);
    if (!op) {
        if (f.p2p) e->dirty = 1; /* a receive or serve from any rank may begin */
        return;
    }
    if (op->state == DDP__OP_ACTIVE && !ddp__memory_there(e, op, f.offset)) return;
    ddp__op_seen(e, op, s->peer);
    op->way->arrived(e, op, s->peer, slot, &f, now);
}

void ddp__collect_early(ddp__engine *e, ddp__op *op, double now)
{
    /* two passes, because it must be known that all peers agree before anything is counted */
    for (int i = 0; i < 2 * e->world; i++) {
        const int peer = i % e->world;
        int s = -1;
        if (peer != e->rank && (!op->p2p || (op->m.verb >= DDP_RECEIVE && peer == op->m.peer)))
            s = ddp__pending(e, peer, op);
        if (s >= 0 && i < e->world) {
            if (!ddp__agrees(e, peer, op, &e->slot[s].f)) return;
            ddp__op_seen(e, op, peer);
            if (e->slot[s].arrived < op->clock) op->clock = e->slot[s].arrived;
            continue;
        }
        for (; s >= 0 && e->fault.code == DDP_OK && op->state == DDP__OP_ACTIVE;
             s = ddp__pending(e, peer, op)) {
            const ddp__frame f = e->slot[s].f;
            if (!op->way->stages) ddp__chain_remove(e, &e->peers[peer].pending, s);
            op->way->arrived(e, op, peer, s, &f, now);
            if (op->way->stages) return; /* it has handled the chunks of all peers */
        }
    }
}

void ddp__control_ready(ddp__engine *e, int peer, const ddp__frame *f, double now)
{
    ddp__peer *p = &e->peers[peer];

    if (f->type == DDP__FRAME_CREDIT) {
        ddp__take_credit(e, peer, f);
    } else if (f->type == DDP__FRAME_HEARTBEAT) {
        p->begun = f->seq;
        p->sends = f->count;
        p->receives = f->offset;
        p->granted = f->layer;
        p->heard_at = now;
    } else if (f->type == DDP__FRAME_GOODBYE) {
        pthread_mutex_lock(&e->lock); /* ddp__engine_left reads it */
        p->left = 1;
        pthread_mutex_unlock(&e->lock);
        p->want_farewell = e->dirty = 1;
        ddp__check_left(e, peer);
    } else if (f->type == DDP__FRAME_FAREWELL) {
        p->farewell = 1;
    } else if (f->type >= DDP__FRAME_STATE) {
        e->membership->read(e, peer, f, now);
    } else if (f->type == DDP__FRAME_ABORT && e->fault.code == DDP_OK) {
        int code = f->count > 0 && f->count < (uint32_t)DDP_STATUS_COUNT ? (int)f->count : (int)DDP_FAILED;
        ddp__fault_is_about(e, f->layer > 0 && f->layer <= e->world ? f->layer - 1 : -1);
        if ((int)f->offset == peer) {
            char who[80];
            p->text[DDP_ERROR_TEXT - 100] = '\0';
            ddp__fault(e, (ddp_status)code, "%s (reported by %s)", p->text,
                       ddp__rank_text(e, peer, who, sizeof who));
        } else {
            ddp__fault(e, (ddp_status)code, "%s", p->text);
        }
        e->fault_origin = (int)f->offset;
    }
}

/* ---- reading ---- */

/* Chooses where the payload is stored. Returns 0 if it has to wait for a slot. */
static int ddp__place_payload(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    const int solicited = p->in.type == DDP__FRAME_RESULT;
    const int plain = p->in.coding == (int)DDP_AS_FLOAT || p->in.coding == (int)DDP__AS_BYTES;
    ddp__op *op = ddp__find_op(e, peer, &p->in);

    p->in_slot = -1;
    p->in_op = NULL;
    if (ddp__is_control(&p->in)) return 1;
    if (op && op->state == DDP__OP_ACTIVE && !ddp__memory_there(e, op, p->in.offset)) return 0;
    /* the frames of one peer and operation come in order, so no earlier frame is pending. A result, or values
     * that are not summed, may be read directly into their final place */
    if (p->in.type == DDP__FRAME_SUMMED || (op && !e->shaped && plain && !op->m.divergence && !op->m.add &&
                                            (solicited || p->in.type == DDP__FRAME_DATA))) {
        if (solicited && !ddp__guard_check(e, op, p->in.offset, ddp__frame_values(&p->in))) return 0;
        p->in_op = op;
        return 1;
    }
    if (solicited ? p->solicited >= e->extra : p->staged >= e->credits + e->more) {
        if (!solicited)
            ddp__fault(e, DDP_NET,
                       "rank %d sent more than its credits allow; all ranks must use the same link rate, "
                       "delay and chunk size",
                       peer);
        return 0;
    }
    if (solicited)
        p->solicited++;
    else
        p->staged++;
    p->in_slot = p->free_slot;
    p->free_slot = e->slot[p->in_slot].next;
    e->slot[p->in_slot].f = p->in;
    return 1;
}

/* The address of the payload from byte `got` on. *here receives the number of contiguous bytes. */
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
        unsigned char *data = (unsigned char *)ddp__memory_at(p->in_op, &p->in_op->to, p->in.offset + values,
                                                              p->in.length / unit - values, here);
        *here = *here * unit - part;
        return data + part;
    }
    if (p->in.coding == (int)DDP_AS_BFLOAT) got += p->in.length; /* to be widened in place */
    return (unsigned char *)e->slot[p->in_slot].data + got;
}

/* Returns 1 if the checksum of the payload matches, or if the sender sent no checksum. */
static int ddp__payload_intact(ddp__engine *e, int peer)
{
    const ddp__frame *f = &e->peers[peer].in;

    if (!f->check || e->peers[peer].in_sum == f->check) return 1;
    return ddp__fault(e, DDP_NET,
                      "%lu bytes of operation %lu from rank %d (%s) were corrupted: its network or memory is "
                      "faulty, or values were written while they were being sent (DREAMDDP_DEBUG=1 names the "
                      "layer); restart the job from its last checkpoint",
                      (unsigned long)f->length, (unsigned long)f->seq, peer, e->wire->names[peer]);
}

static void ddp__control_read(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];

    if (p->in.type == DDP__FRAME_STATE || p->in.type == DDP__FRAME_EPOCH) {
        e->membership->read(e, peer, &p->in, now); /* not delayed by any queue */
        return;
    }
    if (p->in.type == DDP__FRAME_GOODBYE) p->goodbye_read = 1;
    if (p->in.type == DDP__FRAME_ABORT) {
        p->abort_read = 1;
        p->text[p->in.length] = '\0';
        for (char *c = p->text; *c; c++) /* text from another rank, which may be printed to a terminal */
            if (iscntrl((unsigned char)*c)) *c = '?';
        if (!p->text[0]) snprintf(p->text, sizeof p->text, "a rank failed without an error message");
    }
    if (e->shaped)
        ddp__delay_control(e, peer, now);
    else
        ddp__control_ready(e, peer, &p->in, now);
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
        ddp__op_seen(e, p->in_op, peer); /* in memory, or without a payload */
        p->in_op->way->arrived(e, p->in_op, peer, -1, &p->in, now);
    } else {
        ddp__slot *s = &e->slot[p->in_slot];
        s->arrived = now;
        s->next = -1;
        if (p->in.coding && p->in.coding != (int)DDP__AS_BYTES && !ddp__decode_slot(e, peer, s)) return;
        if (e->shaped)
            ddp__delay_chunk(e, p->in_slot, now);
        else
            ddp__slot_ready(e, p->in_slot, now);
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
    ddp__peer_lost(e, peer,
                   why && why != ECONNRESET && why != EPIPE ? strerror(why) : "connection closed by peer");
}

/* Handles a complete header. Returns 0 if nothing more can be read from that peer. */
static int ddp__head_read(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];

    p->in_got = 0;
    p->in_sum = 0;
    if (!ddp__frame_decode(p->in_head, &p->in)) {
        if (p->out_of_world)
            p->closed = 1;
        else
            ddp__fault(e, DDP_NET,
                       "rank %d (%s) sent bytes that do not begin a frame: its stream is damaged or it "
                       "runs another version of this library",
                       peer, e->wire->names[peer]);
        return 0;
    }
    if (e->membership && e->membership->drops(e, peer, &p->in)) {
        if (!ddp__length_possible(e, peer, &p->in)) {
            if (p->out_of_world)
                p->closed = 1;
            else
                ddp__fault(
                    e, DDP_NET,
                    "rank %d (%s) sent a frame of type %d and %lu bytes, more than it may have: its stream "
                    "is damaged or it runs another version of this library",
                    peer, e->wire->names[peer], (int)p->in.type, (unsigned long)p->in.length);
            return 0;
        }
        p->discard = 1;
        p->in_state = DDP__IN_PAYLOAD;
        return 1;
    }
    p->in_state = DDP__IN_PAUSED;
    return ddp__frame_check(e, peer, &p->in);
}

/* Reads from one peer until it has nothing more, or for a few frames, so that other peers get a turn. */
static int ddp__receive_from(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int moved = 0, frames = 0;

    while (frames < 4 && !p->closed && e->fault.code == DDP_OK) {
        unsigned char *to = p->in_state == DDP__IN_HEAD ? p->in_head + p->in_got : NULL;
        size_t room = DDP__FRAME_BYTES - p->in_got;
        long got;
        if (p->in_state == DDP__IN_PAUSED) {
            if (!ddp__place_payload(e, peer)) return moved;
            p->in_state = DDP__IN_PAYLOAD;
        }
        if (p->in_state == DDP__IN_HEAD && e->shaped && e->control_count == e->control_room) return moved;
        if (p->in_state == DDP__IN_PAYLOAD && p->in_got == p->in.length) {
            ddp__frame_read(e, peer, p->last_got);
            frames++;
            continue;
        }
        errno = 0;
        if (p->in_state == DDP__IN_PAYLOAD && p->in_op && !ddp__memory_there(e, p->in_op, p->in.offset))
            return 1;
        if (p->in_state == DDP__IN_PAYLOAD) to = ddp__payload_at(e, peer, p->in_got, &room);
        got = e->wire->table->recv(e->wire, peer, to, room);
        if (got < 0) {
            ddp__stream_end(e, peer);
            return 1;
        }
        if (got == 0) break;
        moved = 1;
        /* computed now, not from memory at the end: pieces of a message may overlap */
        if (p->in_state == DDP__IN_PAYLOAD && p->in.check)
            p->in_sum = ddp__crc32c(p->in_sum, to, (size_t)got);
        p->in_got += (size_t)got;
        p->last_got = ddp_now();
        ddp__atomic_add(&e->bytes_received, (int64_t)got);
        if (p->in_state == DDP__IN_HEAD && p->in_got == DDP__FRAME_BYTES && !ddp__head_read(e, peer))
            return 1;
    }
    return moved;
}

int ddp__receive_all(ddp__engine *e)
{
    int moved = 0;

    for (int k = 1; k < e->world; k++) moved |= ddp__receive_from(e, (e->rank + k) % e->world);
    return moved;
}
