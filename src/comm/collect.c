/* Frames that have arrived: are they right, whose are they, and have they come before their time. */
#include "comm/state.h"

static const char *ddp__verb_does(int verb, int ring, int coding)
{
    static const char *const text[] = {"averages", "broadcasts", "gathers", "scatters sums of",
                                       "sends",    "pushes",     "answers", "asks for",
                                       "receives", "serves",     "pulls"};

    if (verb == (int)DDP_ALL_REDUCE && ring) return "averages by ring";
    if (verb == (int)DDP_ALL_REDUCE && coding)
        return coding == (int)DDP_AS_INT8 ? "averages in int8 blocks of" : "averages in bfloat16";
    if (verb < 0 || verb > (int)DDP_PULL) return "does something unknown with";
    return text[verb];
}

static void ddp__mismatch(ddp__engine *e, int peer, const ddp__op *op, const ddp__frame *f)
{
    char own[64], other[64];

    ddp__layer_text(e, op->m.layer, own, sizeof own);
    ddp__layer_text(e, f->layer, other, sizeof other);
    ddp__fault(e, DDP_MISMATCH,
               "operation %lu: rank %d %s %s (%lu values, root or peer %d), rank %d %s %s "
               "(%lu values): all ranks must submit in the same order",
               (unsigned long)op->seq, e->rank,
               op->way->does ? op->way->does
                             : ddp__verb_does((int)op->m.verb, 0, (int)op->m.coding),
               own, (unsigned long)op->n, op->m.peer, peer,
               ddp__verb_does(f->verb, f->type == DDP__FRAME_SUM, f->coding), other,
               (unsigned long)f->count);
}

/* The verb that meets one's own. */
static int ddp__meets(const ddp__op *op, int verb)
{
    switch (op->m.verb) {
    case DDP_RECEIVE: return verb == (int)DDP_SEND;
    case DDP_SERVE: return verb == (int)DDP_PUSH || verb == (int)DDP__ASK;
    case DDP_PULL: return verb == (int)DDP_ANSWER;
    default: return verb == (int)op->m.verb;
    }
}

/* The sender's operation is the same as ours; 0 after a failure. */
static int ddp__agrees(ddp__engine *e, int peer, const ddp__op *op, const ddp__frame *f)
{
    if (ddp__meets(op, f->verb) && f->count == (uint32_t)op->n && f->layer == op->m.layer &&
        op->way->agrees(e, op, peer, f))
        return 1;
    ddp__mismatch(e, peer, op, f);
    return 0;
}

ddp__op *ddp__find_op(ddp__engine *e, int peer, const ddp__frame *f)
{
    if (f->p2p) {
        ddp__op *op = e->peers[peer].paired[2 * (f->seq >> 30) + 1];
        return op && op->seq == f->seq ? op : NULL;
    }
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] && e->window[i]->seq == f->seq) return e->window[i];
    return NULL;
}

/* A complete operation that is still in the queue; its place may be given away at any time. */
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

int ddp__is_control(const ddp__frame *f)
{
    return f->type >= DDP__FRAME_CREDIT && f->type < DDP__FRAME_OFFER;
}

/* Whether a chunk has a shape that some operation of this engine could have. */
static int ddp__chunk_possible(const ddp__engine *e, const ddp__frame *f)
{
    const size_t most = e->chunk * sizeof(float), values = ddp__frame_values(f);

    if (f->type >= DDP__FRAME_OFFER) {
        if (e->share_bytes == SIZE_MAX || f->p2p || f->coding || f->length != 0) return 0;
        return f->type == DDP__FRAME_OFFER ? f->offset < DDP__OFFERS : f->offset <= f->count;
    }
    /* a coding that this engine has no room for is another rank's setting */
    if (f->coding != (int)DDP_AS_FLOAT && f->coding != (int)DDP__AS_BYTES && f->coding != (int)e->cfg.coding)
        return 0;
    return f->length > 0 && f->length <= most && values <= most && f->offset <= f->count &&
           (values <= e->chunk || f->coding == (int)DDP__AS_BYTES) && values <= f->count - f->offset &&
           !(f->p2p && f->type != DDP__FRAME_DATA) && (!f->p2p || (f->seq >> 30) < (uint32_t)e->lanes);
}

static int ddp__control_possible(const ddp__engine *e, int peer, const ddp__frame *f)
{
    if (f->type == DDP__FRAME_CREDIT) return f->length == 0 && (!f->p2p || f->seq >> 30 < DDP__LANES);
    if (f->type == DDP__FRAME_ABORT) return f->length < DDP_ERROR_TEXT;
    if (f->type < DDP__FRAME_STATE) return f->length == 0;
    return e->membership && (f->length == 0 || e->membership->payload((ddp__engine *)(uintptr_t)e, peer, f) != NULL);
}

int ddp__frame_check(ddp__engine *e, int peer, const ddp__frame *f)
{
    int ok;

    if (ddp__is_control(f)) {
        ok = ddp__control_possible(e, peer, f);
    } else {
        ddp__op *op = ddp__find_op(e, peer, f);
        ok = ddp__chunk_possible(e, f);
        if (op && (ok || f->coding != (int)op->m.coding)) return ddp__agrees(e, peer, op, f);
        if (ok) {
            const uint32_t *next = &e->peers[peer].paired_seq[2 * (f->seq >> 30) + 1];
            int past = f->p2p ? (int32_t)((f->seq - *next) << 2) < 0 : ddp__seq_past(e, f->seq);
            /* An operation that is complete here, or not begun, has no use for the frame. */
            if (f->type == DDP__FRAME_RESULT || f->type == DDP__FRAME_SUMMED || past) {
                ddp__op old;
                if (ddp__past_op(e, peer, f, &old)) {
                    ddp__mismatch(e, peer, &old, f);
                    return 0;
                }
                ok = 0;
            }
        }
    }
    if (!ok)
        ddp__fault(
            e, DDP_NET,
            "rank %d sent a chunk that fits no operation (type %d, operation %lu, coding %d, values "
            "%lu of %lu, %lu bytes): all ranks must use the same wire format and chunk size and submit "
            "in the same order",
            peer, f->type, (unsigned long)f->seq, f->coding, (unsigned long)f->offset,
            (unsigned long)f->count, (unsigned long)f->length);
    return ok;
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
    if (!op || (op->way->stages && f.type == DDP__FRAME_PART)) ddp__pending_add(e, slot);
    if (!op) {
        if (f.p2p) e->dirty = 1; /* who receives from anybody may begin */
        return;
    }
    ddp__op_seen(e, op, s->peer);
    op->way->arrived(e, op, s->peer, slot, &f, now);
}

void ddp__frame_ready(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f, double now)
{
    ddp__op_seen(e, op, peer);
    op->way->arrived(e, op, peer, -1, f, now);
}

void ddp__collect_early(ddp__engine *e, ddp__op *op, double now)
{
    int s;

    for (int peer = 0; peer < e->world; peer++) {
        if (peer == e->rank || (op->p2p && (op->m.verb < DDP_RECEIVE || peer != op->m.peer)))
            continue;
        s = ddp__pending(e, peer, op);
        if (s < 0) continue;
        if (!ddp__agrees(e, peer, op, &e->slot[s].f)) return;
        ddp__op_seen(e, op, peer);
        if (e->slot[s].arrived < op->clock) op->clock = e->slot[s].arrived;
    }
    for (int peer = 0; peer < e->world; peer++) {
        if (peer == e->rank || (op->p2p && (op->m.verb < DDP_RECEIVE || peer != op->m.peer)))
            continue;
        while (e->fault.code == DDP_OK && op->state == DDP__OP_ACTIVE && (s = ddp__pending(e, peer, op)) >= 0) {
            const ddp__frame f = e->slot[s].f;
            if (!op->way->stages) ddp__pending_remove(e, peer, s);
            op->way->arrived(e, op, peer, s, &f, now);
            if (op->way->stages) return; /* it has looked at those of all */
        }
    }
}

void ddp__control_ready(ddp__engine *e, int peer, const ddp__frame *f, double now)
{
    ddp__peer *p = &e->peers[peer];

    if (f->type == DDP__FRAME_CREDIT) {
        ddp__take_credit(e, peer, f);
    } else if (f->type == DDP__FRAME_HEARTBEAT) {
        ddp__hear_progress(e, peer, f, now);
    } else if (f->type == DDP__FRAME_GOODBYE) {
        p->left = 1;
        p->want_farewell = 1;
        ddp__check_left(e, peer);
    } else if (f->type == DDP__FRAME_FAREWELL) {
        p->farewell = 1;
    } else if (f->type >= DDP__FRAME_STATE) {
        e->membership->read(e, peer, f, now);
    } else if (f->type == DDP__FRAME_ABORT && e->fault.code == DDP_OK) {
        int code = f->count > 0 && f->count < (uint32_t)DDP_STATUS_COUNT ? (int)f->count : (int)DDP_FAILED;
        if ((int)f->offset == peer) {
            p->text[DDP_ERROR_TEXT - 32] = '\0';
            ddp__fault(e, (ddp_status)code, "%s (reported by rank %d)", p->text, peer);
        } else {
            ddp__fault(e, (ddp_status)code, "%s", p->text);
        }
        e->fault_origin = (int)f->offset;
    }
}
