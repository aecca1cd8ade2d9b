/* The progress of an operation, from its first byte to its completion. */
#include "comm/state.h"

ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer)
{
    return &e->rows[(size_t)op->row * (size_t)e->world + (size_t)peer];
}

int ddp__paired_lane(const ddp__op *op)
{
    switch (op->m.verb) {
    case DDP_PUSH:
    case DDP__ASK:
    case DDP_SERVE: return DDP__LANE_SERVE;
    case DDP_ANSWER:
    case DDP_PULL: return DDP__LANE_ANSWER;
    default: return op->m.priority < 0 ? DDP__LANE_URGENT : 0;
    }
}

int ddp__paired(const ddp__op *op)
{
    return 2 * ddp__paired_lane(op) + (op->m.verb >= DDP_RECEIVE);
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
    f->sent = f->check = 0;
}

double ddp__still_since(const ddp__op *op)
{
    return op->last_move > op->active_at ? op->last_move : op->active_at;
}

static void ddp__complete(ddp__engine *e, ddp__op *op)
{
    double now =
        ddp_now(); /* on an emulated link later than the event's time if the thread was late */

    op->state = DDP__OP_DONE;
    if (op->way->finished) op->way->finished(e, op);
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] == op) e->window[i] = NULL;
    if (op->p2p) e->peers[op->m.peer].paired[ddp__paired(op)] = NULL;
    if (op->m.divergence) {
        double sum = 0;
        for (int r = 0; r < e->world; r++) sum += ddp__row(e, op, r)->divergence;
        *op->m.divergence = sum;
    }
    pthread_mutex_lock(&e->lock);
    if (op->span.begin < 0) op->span.begin = now;
    else if (--e->running == 0) e->stats.busy_s += now - e->running_since;
    op->span.end = now;
    op->span.due = e->shaped ? op->last_move : now;
    op->span.bytes = op->bytes;
    op->span.peer_wait = op->peer_wait;
    pthread_mutex_unlock(&e->lock);
    if (e->membership && !op->p2p) e->membership->done(e, op);
    op->next_done = e->finished;
    e->finished = op;
    e->dirty = 1;
}

void ddp__op_advance(ddp__engine *e, ddp__op *op, size_t values)
{
    op->left -= values;
    if (op->left == 0) ddp__complete(e, op);
}

void ddp__op_release(ddp__engine *e, ddp__op *op)
{
    pthread_mutex_lock(&e->lock);
    op->released = 1;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

void ddp__op_moves(ddp__engine *e, ddp__op *op, double now)
{
    e->last_move = now;
    if (op->note_s > e->cfg.note_s) { /* a line said that it stands still */
        char text[128];
        op->note_s = e->cfg.note_s;
        ddp__log(&e->cfg.log, DDP_LOG_WARN, "rank %d: %s goes on after %.1f s", e->rank,
                 ddp__op_text(e, op, text, sizeof text), now - ddp__still_since(op));
    }
    op->last_move = now;
    if (op->waiting_since >= 0) {
        if (now > op->waiting_since) op->peer_wait += now - op->waiting_since;
        op->waiting_since = -1;
    }
    if (op->span.begin >= 0) return;
    pthread_mutex_lock(&e->lock);
    op->span.begin = now;
    if (e->running++ == 0) e->running_since = now;
    pthread_mutex_unlock(&e->lock);
}

void ddp__op_expect(ddp__engine *e, ddp__op *op, int peer)
{
    ddp__row(e, op, peer)->expected = 1;
    op->missing++;
}

void ddp__op_seen(ddp__engine *e, ddp__op *op, int peer)
{
    ddp__exchange *x = ddp__row(e, op, peer);

    x->seen = 1;
    if (!x->expected) return;
    x->expected = 0;
    if (op->missing > 0) op->missing--;
}

int ddp__in_order(ddp__engine *e, int peer, const ddp__op *op, const ddp__frame *f, size_t from, size_t to, size_t *at)
{
    const size_t count = ddp__frame_values(f);

    if (f->offset == from + *at && count <= to - f->offset) {
        *at += count;
        return 1;
    }
    ddp__fault(e, DDP_NET,
               "rank %d sent values from %lu of operation %lu, expected were those from %lu: "
               "all ranks must use the same chunk size",
               peer, (unsigned long)f->offset, (unsigned long)op->seq, (unsigned long)(from + *at));
    return 0;
}

void ddp__check_left(ddp__engine *e, int peer)
{
    for (int i = 0; i < DDP__ROWS; i++) {
        const ddp__op *op = i < DDP__WINDOW ? e->window[i] : e->peers[peer].paired[i - DDP__WINDOW];
        char text[128];
        if (!op || op->state != DDP__OP_ACTIVE) continue;
        if (!op->p2p && ddp__team_of(e, op).place[peer] < 0) continue;
        if (op->way->over(e, op, peer)) continue;
        if (e->membership && !op->p2p) {
            e->membership->left(e, peer);
            return;
        }
        ddp__fault(e, DDP_PEER_LOST,
                   "rank %d has left (it closed its context) and %s still needs it: every "
                   "rank must run the same number of steps",
                   peer, ddp__op_text(e, op, text, sizeof text));
        return;
    }
}
