/* What happens to frames that have arrived: staging, the sum in rank order, storing. */
#include "net/elastic.h"

static const char *ddp__verb_does(int verb, int ring, int coding)
{
    static const char *const text[] = {"averages", "broadcasts", "gathers",
                                       "sends",    "receives",   "scatters sums of"};
    if (verb == (int)DDP__ALL_REDUCE && ring) return "averages by ring";
    if (verb == (int)DDP__ALL_REDUCE && coding)
        return coding == (int)DDP__AS_INT8 ? "averages in int8 blocks of"
                                           : "averages in bfloat16";
    if (verb < 0 || verb > (int)DDP__REDUCE_SCATTER) return "does something unknown with";
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
               ddp__verb_does((int)op->m.verb, op->ring, (int)op->m.coding), own,
               (unsigned long)op->n, op->m.peer, peer,
               ddp__verb_does(f->verb, f->type == DDP__FRAME_SUM, f->coding), other,
               (unsigned long)f->count);
}

/* The sender's operation is the same as ours; 0 after a failure. */
static int ddp__agrees(ddp__engine *e, int peer, const ddp__op *op, const ddp__frame *f)
{
    int verb = op->m.verb == DDP__RECV ? (int)DDP__SEND : (int)op->m.verb;
    int type = op->ring       ? DDP__FRAME_SUM
             : op->shared     ? DDP__FRAME_OFFER
             : ddp__sums(op)  ? DDP__FRAME_PART
                              : DDP__FRAME_DATA;
    int reply = op->shared ? DDP__FRAME_SUMMED : DDP__FRAME_RESULT;

    if (op->donor >= 0 && f->type == DDP__FRAME_RESULT && peer == op->donor) type = f->type;
    if (f->verb == verb && (f->coding == (int)op->m.coding || op->donor >= 0) &&
        f->count == (uint32_t)op->n && f->layer == op->m.layer &&
        (f->type == type || (f->type == reply && type != DDP__FRAME_DATA)) &&
        (op->m.verb != DDP__BROADCAST || op->donor >= 0 || peer == ddp__root(e, op)))
        return 1;
    ddp__mismatch(e, peer, op, f);
    return 0;
}

ddp__op *ddp__find_op(ddp__engine *e, int peer, const ddp__frame *f)
{
    if (f->p2p) {
        ddp__op *op = e->peers[peer].paired[2 * (f->seq >> 31) + 1];
        return op && op->seq == f->seq ? op : NULL;
    }
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] && e->window[i]->seq == f->seq) return e->window[i];
    return NULL;
}

static void ddp__seen(ddp__engine *e, ddp__op *op, int peer)
{
    ddp__exchange *x = ddp__row(e, op, peer);
    x->seen = 1;
    if (x->expected) {
        x->expected = 0;
        if (!op->ring) op->missing--;
    }
}

/* A complete operation that is still in the ring; its place may be given away at any time. */
static int ddp__past_op(ddp__engine *e, int peer, const ddp__frame *f, ddp__op *out)
{
    int found = 0;

    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < e->cfg.queue && !found; i++) {
        const ddp__op *old = &e->ops[i];
        found = old->state == DDP__OP_DONE && old->seq == f->seq && old->p2p == f->p2p &&
                (!old->p2p || (old->m.verb == DDP__RECV && old->m.peer == peer));
        if (found) *out = *old;
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

int ddp__frame_check(ddp__engine *e, int peer, const ddp__frame *f)
{
    int ok;

    if (f->type >= DDP__FRAME_STATE && f->type < DDP__FRAME_OFFER) {
        ok = e->elastic && (f->type <= DDP__FRAME_EPOCH ? f->length <= DDP__WORD_BYTES
                                                       : f->length == 0);
    } else if (f->type >= DDP__FRAME_CREDIT && f->type < DDP__FRAME_STATE) {
        ok = f->type == DDP__FRAME_ABORT ? f->length < DDP_ERROR_TEXT : f->length == 0;
    } else {
        ddp__op *op = ddp__find_op(e, peer, f);
        const uint32_t *next = &e->peers[peer].paired_seq[2 * (f->seq >> 31) + 1];
        int past = f->p2p ? (int32_t)((f->seq - *next) << 1) < 0 : ddp__seq_past(e, f->seq);
        if (f->type >= DDP__FRAME_OFFER) ok = ddp__share_check(e, f);
        else ok = f->length > 0 && (f->coding != (int)DDP__AS_INT8 || e->cfg.coder) &&
             ddp__frame_values(f) <= e->chunk && f->offset <= f->count &&
             ddp__frame_values(f) <= f->count - f->offset &&
             !(f->p2p && f->type != DDP__FRAME_DATA);
        if (ok && op) return ddp__agrees(e, peer, op, f);
        /* An operation that is complete here, or not begun, has no use for the frame. */
        if (ok && (f->type == DDP__FRAME_RESULT || f->type == DDP__FRAME_SUMMED || past)) {
            ddp__op old;
            if (ddp__past_op(e, peer, f, &old)) {
                ddp__mismatch(e, peer, &old, f);
                return 0;
            }
            ok = 0;
        }
    }
    if (!ok)
        ddp__fault(
            e, DDP_NET,
            "rank %d sent a chunk that fits no operation (type %d, operation %lu, floats "
            "%lu of %lu, %lu bytes): all ranks must use the same chunk size and submit in the same "
            "order",
            peer, f->type, (unsigned long)f->seq, (unsigned long)f->offset, (unsigned long)f->count,
            (unsigned long)f->length);
    return ok;
}

void ddp__slot_free(ddp__engine *e, int slot)
{
    ddp__slot *s = &e->slot[slot];
    ddp__peer *p = &e->peers[s->peer];
    int i = 0;

    s->next = p->free_slot;
    p->free_slot = slot;
    if (s->f.type == DDP__FRAME_RESULT) {
        p->solicited--;
        return;
    }
    p->staged--;
    while (i < p->owed_count && (p->owed[i].seq != s->f.seq || p->owed[i].p2p != s->f.p2p)) i++;
    if (i == p->owed_count) {
        p->owed[i].seq = s->f.seq;
        p->owed[i].p2p = s->f.p2p;
        p->owed[i].count = 0;
        p->owed_count++;
    }
    p->owed[i].count++;
}

/* The oldest staged chunk of an operation from a peer; -1 if none. */
static int ddp__pending(const ddp__engine *e, int peer, const ddp__op *op)
{
    int s = e->peers[peer].first_pending;
    while (s >= 0 && (e->slot[s].f.seq != op->seq || e->slot[s].f.p2p != op->p2p))
        s = e->slot[s].next;
    return s;
}

static void ddp__pending_remove(ddp__engine *e, int peer, int slot)
{
    ddp__peer *p = &e->peers[peer];
    int before = -1, s = p->first_pending;

    while (s != slot) {
        before = s;
        s = e->slot[s].next;
    }
    if (before >= 0) e->slot[before].next = e->slot[s].next;
    else p->first_pending = e->slot[s].next;
    if (p->last_pending == s) p->last_pending = before;
}

/* Counts a chunk as received; 0 if it is not the one that has to come next. */
static int ddp__in_order(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f)
{
    int whole = op->donor >= 0; /* not by segments */
    int of = op->ring && !whole ? ddp__segment_of(e, op, f->offset) : peer;
    ddp__exchange *x = ddp__row(e, op, of);
    size_t from = 0, to = op->n, *at = &x->taken;

    if (f->type == DDP__FRAME_RESULT) at = &x->finished;
    if (!whole && (op->m.verb == DDP__ALL_REDUCE || op->m.verb == DDP__ALL_GATHER))
        ddp__segment(e, op, of, &from, &to);
    if (f->offset != from + *at || ddp__frame_values(f) > to - f->offset ||
        (op->ring && !whole && !ddp__ring_arrived(e, op, peer, f))) {
        ddp__fault(e, DDP_NET,
                   "rank %d sent floats from %lu of operation %lu, expected were those from %lu: "
                   "all ranks must use the same chunk size",
                   peer, (unsigned long)f->offset, (unsigned long)f->seq,
                   (unsigned long)(from + *at));
        return 0;
    }
    *at += ddp__frame_values(f);
    return 1;
}

static void ddp__store(ddp__engine *e, int peer, ddp__op *op, const ddp__slot *s, double now)
{
    size_t count = ddp__frame_values(&s->f), done = 0;
    double *divergence = op->m.divergence ? &ddp__row(e, op, peer)->divergence : NULL;

    if (!ddp__in_order(e, peer, op, &s->f)) return;
    if (s->f.type == DDP__FRAME_RESULT && !ddp__guard_check(e, op, s->f.offset, count)) return;
    while (done < count) {
        size_t here;
        float *own = ddp__memory_at(op, s->f.offset + done, count - done, &here);
        e->memory.store(own, s->data + done, here, divergence);
        done += here;
    }
    if (op->ring) ddp__guard_update(e, op, s->f.offset, count); /* it will be sent on */
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, count);
}

/* Sums every chunk of the own segment of which all contributions are here. */
static void ddp__reduce_ready(ddp__engine *e, ddp__op *op, double now)
{
    const ddp__members team = ddp__team_of(e, op);
    size_t from, to;
    double *divergence = op->m.divergence ? &ddp__row(e, op, e->rank)->divergence : NULL;

    ddp__own_part(e, op, &from, &to);
    while (from + op->reduced < to) {
        size_t at = from + op->reduced, count = to - at < e->chunk ? to - at : e->chunk, done = 0;
        for (int i = 0; i < team.members; i++) {
            int r = team.member[i];
            if (r != e->rank && ddp__pending(e, r, op) < 0) return;
        }
        if (op->full && !ddp__full_sent(e, op, at, count)) return;
        if (!ddp__guard_check(e, op, at, count)) return;
        for (int i = 0; i < team.members; i++) {
            const ddp__frame *f;
            int r = team.member[i];
            if (r == e->rank) continue;
            f = &e->slot[ddp__pending(e, r, op)].f;
            if (f->offset != at || ddp__frame_values(f) != count) {
                ddp__fault(e, DDP_NET,
                           "rank %d sent floats from %lu of operation %lu, expected were those "
                           "from %lu: all ranks must use the same chunk size",
                           r, (unsigned long)f->offset, (unsigned long)f->seq, (unsigned long)at);
                return;
            }
        }
        while (done < count) {
            size_t here;
            float *own = ddp__memory_at(op, at + done, count - done, &here);
            for (int i = 0; i < team.members; i++) {
                int r = team.member[i];
                e->terms[i] = r == e->rank ? own : e->slot[ddp__pending(e, r, op)].data + done;
            }
            if (op->m.coding) {
                if (!ddp__reduce_coded(e, op, at, count, divergence)) return;
                break;
            }
            e->memory.reduce(own, e->terms, team.place[e->rank], team.members, here, op->scale,
                             divergence);
            done += here;
        }
        for (int i = 0; i < team.members; i++) {
            int s, r = team.member[i];
            if (r == e->rank) continue;
            s = ddp__pending(e, r, op);
            ddp__row(e, op, r)->taken += count;
            ddp__pending_remove(e, r, s);
            ddp__slot_free(e, s);
        }
        ddp__guard_update(e, op, at, count);
        op->reduced += count;
        ddp__op_moves(e, op, now);
        if (op->m.verb == DDP__REDUCE_SCATTER || op->full)
            ddp__op_advance(e, op, count * (size_t)(team.members - 1));
    }
}

void ddp__full_reduce(ddp__engine *e, ddp__op *op, double now) { ddp__reduce_ready(e, op, now); }

static void ddp__collect(ddp__engine *e, ddp__op *op, int peer, double now)
{
    int s;

    if (ddp__sums(op) && !op->ring && !op->shared) {
        ddp__reduce_ready(e, op, now);
        return;
    }
    while (e->fault.code == DDP_OK && op->state == DDP__OP_ACTIVE &&
           (s = ddp__pending(e, peer, op)) >= 0) {
        ddp__pending_remove(e, peer, s);
        if (op->shared) {
            ddp__share_offered(e, op, peer, &e->slot[s].f);
            ddp__slot_free(e, s);
            continue;
        }
        if (op->ring) {
            if (ddp__in_order(e, peer, op, &e->slot[s].f)) ddp__ring_take(e, op, s, now);
            continue;
        }
        ddp__store(e, peer, op, &e->slot[s], now);
        ddp__slot_free(e, s);
    }
}

void ddp__slot_ready(ddp__engine *e, int slot, double now)
{
    ddp__slot *s = &e->slot[slot];
    ddp__peer *p = &e->peers[s->peer];
    ddp__op *op = ddp__find_op(e, s->peer, &s->f);

    if (op && !ddp__agrees(e, s->peer, op, &s->f)) return;
    if (op) ddp__seen(e, op, s->peer);
    if (s->f.type == DDP__FRAME_RESULT) {
        if (op) ddp__store(e, s->peer, op, s, now);
        ddp__slot_free(e, slot);
        return;
    }
    s->next = -1;
    if (p->last_pending >= 0) e->slot[p->last_pending].next = slot;
    else p->first_pending = slot;
    p->last_pending = slot;
    if (op) ddp__collect(e, op, s->peer, now);
}

void ddp__direct_ready(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f, double now)
{
    ddp__peer *p = &e->peers[peer];

    if (f->type == DDP__FRAME_SUMMED) {
        ddp__share_summed(e, op, peer, f, now);
        return;
    }
    ddp__seen(e, op, peer);
    if (!ddp__in_order(e, peer, op, f)) return;
    if (f->type != DDP__FRAME_RESULT) {
        int i = 0;
        while (i < p->owed_count && (p->owed[i].seq != f->seq || p->owed[i].p2p != f->p2p)) i++;
        if (i == p->owed_count) {
            p->owed[i].seq = f->seq;
            p->owed[i].p2p = f->p2p;
            p->owed[i].count = 0;
            p->owed_count++;
        }
        p->owed[i].count++;
    }
    if (op->ring)
        ddp__guard_update(e, op, f->offset, f->length / sizeof(float)); /* it will be sent on */
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, f->length / sizeof(float));
}

void ddp__collect_early(ddp__engine *e, ddp__op *op, double now)
{
    for (int peer = 0; peer < e->world; peer++) {
        int s;
        if (peer == e->rank || (op->p2p && (op->m.verb != DDP__RECV || peer != op->m.peer)))
            continue;
        s = ddp__pending(e, peer, op);
        if (s < 0) continue;
        if (!ddp__agrees(e, peer, op, &e->slot[s].f)) return;
        ddp__seen(e, op, peer);
        if (e->slot[s].arrived < op->clock) op->clock = e->slot[s].arrived;
    }
    for (int peer = 0; peer < e->world && op->state == DDP__OP_ACTIVE && e->fault.code == DDP_OK;
         peer++)
        if (peer != e->rank && (!op->p2p || (op->m.verb == DDP__RECV && peer == op->m.peer)))
            ddp__collect(e, op, peer, now);
}

void ddp__control_ready(ddp__engine *e, int peer, const ddp__frame *f, double now)
{
    ddp__peer *p = &e->peers[peer];

    if (f->type == DDP__FRAME_CREDIT) {
        ddp__take_credit(e, peer, f->seq, f->p2p, (int)f->offset);
    } else if (f->type == DDP__FRAME_HEARTBEAT) {
        ddp__hear_progress(e, peer, f, now);
    } else if (f->type == DDP__FRAME_GOODBYE) {
        p->left = 1;
        p->want_farewell = 1;
        ddp__check_left(e, peer);
    } else if (f->type == DDP__FRAME_FAREWELL) {
        p->farewell = 1;
    } else if (f->type == DDP__FRAME_WANT) {
        ddp__shadow_asked(e, peer, f->seq);
    } else if (f->type == DDP__FRAME_DONE) {
        ddp__done_set *done = &e->elastic->peer[peer].done;
        done->from = f->seq;
        done->bits = f->count | (uint64_t)f->offset << 32;
        ddp__shadow_release(e);
    } else if (f->type == DDP__FRAME_ABORT && e->fault.code == DDP_OK) {
        int code =
            f->count > 0 && f->count < (uint32_t)DDP_STATUS_COUNT ? (int)f->count : (int)DDP_FAILED;
        if ((int)f->offset == peer) {
            p->text[DDP_ERROR_TEXT - 32] = '\0';
            ddp__fault(e, (ddp_status)code, "%s (reported by rank %d)", p->text, peer);
        } else {
            ddp__fault(e, (ddp_status)code, "%s", p->text);
        }
        e->fault_origin = (int)f->offset;
    }
}
