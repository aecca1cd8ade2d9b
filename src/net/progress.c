/* The life of an operation: activation, progress, completion; and how messages map to memory. */
#include "net/state.h"

ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer)
{
    return &e->rows[(size_t)op->row * (size_t)e->world + (size_t)peer];
}

void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to)
{
    size_t world = (size_t)e->world, j = (size_t)of;

    *from = op->n / world * j + op->n % world * j / world;
    *to = op->n / world * (j + 1) + op->n % world * (j + 1) / world;
}

int ddp__segment_of(const ddp__engine *e, const ddp__op *op, size_t offset)
{
    size_t from, to;
    int of = 0;

    do ddp__segment(e, op, of, &from, &to);
    while (offset >= to && ++of < e->world);
    return of;
}

void ddp__outgoing(const ddp__engine *e, const ddp__op *op, int peer, size_t *from, size_t *to)
{
    *from = *to = 0;
    switch (op->m.verb) {
    case DDP__ALL_REDUCE: ddp__segment(e, op, peer, from, to); break;
    case DDP__ALL_GATHER: ddp__segment(e, op, e->rank, from, to); break;
    case DDP__BROADCAST: *to = op->m.peer == e->rank ? op->n : 0; break;
    case DDP__SEND: *to = op->m.peer == peer ? op->n : 0; break;
    case DDP__RECV: break;
    }
}

/* The floats that a peer sends to this rank, results of an all-reduce included; *parts = what it
 * contributes to the own segment. */
static size_t ddp__incoming(const ddp__engine *e, const ddp__op *op, int peer, size_t *parts)
{
    size_t from = 0, to = 0;

    *parts = 0;
    switch (op->m.verb) {
    case DDP__ALL_REDUCE:
        ddp__segment(e, op, e->rank, &from, &to);
        *parts = to - from;
        ddp__segment(e, op, peer, &from, &to);
        break;
    case DDP__ALL_GATHER: ddp__segment(e, op, peer, &from, &to); break;
    case DDP__BROADCAST: to = op->m.peer == peer ? op->n : 0; break;
    case DDP__RECV: to = op->m.peer == peer ? op->n : 0; break;
    case DDP__SEND: break;
    }
    return to - from;
}

float *ddp__memory_at(const ddp__op *op, size_t offset, size_t count, size_t *here)
{
    int low = 0, high = op->strip_count - 1;
    const ddp__strip *s;

    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (op->strips[middle].start <= offset) low = middle;
        else high = middle - 1;
    }
    s = &op->strips[low];
    *here = s->start + s->count - offset;
    if (*here > count) *here = count;
    return s->data + (offset - s->start);
}

static void ddp__complete(ddp__engine *e, ddp__op *op)
{
    double now =
        ddp_now(); /* on an emulated link later than the event's time if the thread was late */

    op->state = DDP__OP_DONE;
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] == op) e->window[i] = NULL;
    if (op->m.verb == DDP__SEND) e->peers[op->m.peer].send_op = NULL;
    if (op->m.verb == DDP__RECV) e->peers[op->m.peer].recv_op = NULL;
    if (op->m.divergence) {
        double sum = 0;
        for (int r = 0; r < e->world; r++)
            if (!op->p2p || r == op->m.peer) sum += ddp__row(e, op, r)->divergence;
        *op->m.divergence = sum;
    }
    pthread_mutex_lock(&e->lock);
    if (op->span.begin < 0) op->span.begin = now;
    else if (--e->running == 0) e->stats.busy_s += now - e->running_since;
    op->span.end = now;
    op->span.bytes = op->bytes;
    op->span.peer_wait = op->peer_wait;
    pthread_mutex_unlock(&e->lock);
    op->next_done = e->finished;
    e->finished = op;
    e->dirty = 1;
}

void ddp__op_advance(ddp__engine *e, ddp__op *op, size_t floats)
{
    op->left -= floats;
    if (op->left == 0) ddp__complete(e, op);
}

void ddp__op_moves(ddp__engine *e, ddp__op *op, double now)
{
    e->last_move = now;
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

/* An operation that can send nothing while a peer has not shown up is waiting for it, from the
 * time on at which the peer's first chunk would be here had it submitted with this rank. */
void ddp__note_waiting(ddp__engine *e, double now)
{
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
        hops = op->ring ? e->world - 1 : 1;
        earliest = op->active_at + hops * e->link.delay_s;
        if (e->link.rate > 0) {
            size_t first = op->n < e->chunk ? op->n : e->chunk;
            earliest += hops * (double)(first * sizeof(float)) / e->link.rate;
        }
        op->waiting_since = now > earliest ? now : earliest;
    }
}

static void ddp__begin(ddp__engine *e, ddp__op *op, int row, double now)
{
    size_t from, to;

    op->row = row;
    op->state = DDP__OP_ACTIVE;
    op->active_at = op->last_move = now;
    op->seq = op->m.verb == DDP__SEND ? e->peers[op->m.peer].send_seq++
            : op->m.verb == DDP__RECV ? e->peers[op->m.peer].recv_seq++ : e->next_seq++;
    if (e->world == 1) {
        size_t done = 0;
        double *divergence = op->m.divergence ? &ddp__row(e, op, 0)->divergence : NULL;
        memset(ddp__row(e, op, 0), 0, sizeof(ddp__exchange));
        while (op->m.verb == DDP__ALL_REDUCE && op->m.scale != 1 && done < op->n) {
            size_t here;
            float *own = ddp__memory_at(op, done, op->n - done, &here);
            e->terms[0] = own;
            e->memory.reduce(own, e->terms, 0, 1, here, op->m.scale, divergence);
            done += here;
        }
        ddp__complete(e, op);
        return;
    }
    for (int r = 0; r < e->world; r++) {
        ddp__exchange *x = ddp__row(e, op, r);
        size_t parts, in;
        if (op->p2p && r != op->m.peer) continue;
        memset(x, 0, sizeof *x);
        if (r == e->rank || op->ring) continue;
        in = ddp__incoming(e, op, r, &parts);
        ddp__outgoing(e, op, r, &from, &to);
        op->left += in + (to - from);
        if (op->m.verb == DDP__ALL_REDUCE)
            op->left += parts; /* the same floats go back as results */
        if (in + parts > 0) {
            x->expected = 1;
            op->missing++;
        }
    }
    if (op->ring) ddp__ring_begin(e, op);
    if (op->left == 0) ddp__complete(e, op);
    else ddp__collect_early(e, op, now);
    for (int r = 0; r < e->world && op->state == DDP__OP_ACTIVE; r++)
        if (r != e->rank && e->peers[r].left) ddp__check_left(e, r);
}

void ddp__activate(ddp__engine *e, double now)
{
    int later = 0;

    while (e->dirty && e->fault.code == DDP_OK) {
        e->dirty = 0;
        while (e->queued_from < e->taken &&
               e->ops[e->queued_from % e->cfg.queue].state != DDP__OP_QUEUED)
            e->queued_from++;
        for (long t = e->queued_from; t < e->taken && e->fault.code == DDP_OK; t++) {
            ddp__op *op = &e->ops[t % e->cfg.queue];
            ddp__op **place = NULL;
            int row = 0;
            if (op->state != DDP__OP_QUEUED) continue;
            if (op->span.submitted > now) { /* the emulated link is still catching up */
                later = 1;
                break;
            }
            if (op->m.verb == DDP__SEND) {
                place = &e->peers[op->m.peer].send_op;
                row = DDP__ROW_SEND;
            } else if (op->m.verb == DDP__RECV) {
                place = &e->peers[op->m.peer].recv_op;
                row = DDP__ROW_RECV;
            } else {
                while (row < e->width - 1 && e->window[row]) row++;
                place = &e->window[row];
            }
            if (*place) continue;
            *place = op;
            ddp__begin(e, op, row, now);
        }
    }
    e->dirty |= later;
}

void ddp__publish(ddp__engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->finished) {
        ddp__op *op = e->finished;
        e->finished = op->next_done;
        ddp__span_finish(e, op);
        op->done = 1;
    }
    while (e->first < e->submitted && e->ops[e->first % e->cfg.queue].done) {
        e->strips_tail = e->ops[e->first % e->cfg.queue].strips_end;
        e->first++;
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}
