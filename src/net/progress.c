/* The life of an operation: activation, progress, completion; and how messages map to memory. */
#include "net/elastic.h"

int ddp__paired_lane(const ddp__op *op) { return op->m.priority < 0; }

int ddp__paired(const ddp__op *op) { return 2 * ddp__paired_lane(op) + (op->m.verb == DDP__RECV); }

ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer)
{
    return &e->rows[(size_t)op->row * (size_t)e->world + (size_t)peer];
}

int ddp__sums(const ddp__op *op)
{
    return op->m.verb == DDP__ALL_REDUCE || op->m.verb == DDP__REDUCE_SCATTER;
}

void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to)
{
    const ddp__members team = ddp__team_of(e, op);
    /* in the world's all-gather the blocks of the lost are there, and 0 */
    int all = op->m.verb == DDP__ALL_GATHER && op->m.group == 0;
    size_t parts = (size_t)(all ? e->world : team.members), j;

    *from = *to = 0;
    if (team.place[of] < 0) return;
    j = (size_t)(all ? of : team.place[of]);
    *from = op->n / parts * j + op->n % parts * j / parts;
    *to = op->n / parts * (j + 1) + op->n % parts * (j + 1) / parts;
    if (op->m.coding != DDP__AS_INT8) return;
    *from -= *from % DDP__CODING_BLOCK; /* no block is cut */
    if (*to < op->n) *to -= *to % DDP__CODING_BLOCK;
}

int ddp__root(const ddp__engine *e, const ddp__op *op)
{
    return ddp__team_of(e, op).place[op->m.peer] >= 0 ? op->m.peer : e->member[0];
}

int ddp__segment_of(const ddp__engine *e, const ddp__op *op, size_t offset)
{
    size_t from, to;
    int i = 0;
    const ddp__members team = ddp__team_of(e, op);

    do ddp__segment(e, op, team.member[i], &from, &to);
    while (offset >= to && i + 1 < team.members && ++i);
    return team.member[i];
}

void ddp__outgoing(const ddp__engine *e, const ddp__op *op, int peer, size_t *from, size_t *to)
{
    *from = *to = 0;
    if (ddp__team_of(e, op).place[peer] < 0) return;
    switch (op->m.verb) {
    case DDP__ALL_REDUCE:
    case DDP__REDUCE_SCATTER:
        if (op->full) *to = op->n;
        else ddp__segment(e, op, peer, from, to);
        break;
    case DDP__ALL_GATHER: ddp__segment(e, op, e->rank, from, to); break;
    case DDP__BROADCAST: *to = ddp__root(e, op) == e->rank ? op->n : 0; break;
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
    if (ddp__team_of(e, op).place[peer] < 0) return 0;
    switch (op->m.verb) {
    case DDP__ALL_REDUCE:
        ddp__own_part(e, op, &from, &to);
        *parts = to - from;
        if (op->full) return 0;
        ddp__segment(e, op, peer, &from, &to);
        break;
    case DDP__REDUCE_SCATTER:
        ddp__segment(e, op, e->rank, &from, &to);
        *parts = to - from;
        return 0;
    case DDP__ALL_GATHER: ddp__segment(e, op, peer, &from, &to); break;
    case DDP__BROADCAST: to = ddp__root(e, op) == peer ? op->n : 0; break;
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
    if (op->shared) ddp__share_end(e, op);
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] == op) e->window[i] = NULL;
    if (op->p2p) e->peers[op->m.peer].paired[ddp__paired(op)] = NULL;
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
    op->span.due = e->shaped ? op->last_move : now;
    op->span.bytes = op->bytes;
    op->span.peer_wait = op->peer_wait;
    pthread_mutex_unlock(&e->lock);
    if (e->elastic && !op->p2p) ddp__shadow_result(e, op);
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
    ddp__note_end(e, op, now);
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
    if (e->elastic && e->elastic->frozen) return;
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
        hops = op->ring ? ddp__team_of(e, op).members - 1 : 1;
        earliest = op->active_at + hops * e->farthest;
        if (e->slowest > 0) {
            size_t first = op->n < e->chunk ? op->n : e->chunk;
            earliest += hops * (double)(first * sizeof(float)) / e->slowest;
        }
        op->waiting_since = now > earliest ? now : earliest;
    }
}

/* All there is to do for the only worker. */
static void ddp__do_alone(ddp__engine *e, ddp__op *op)
{
    double *divergence = op->m.divergence ? &ddp__row(e, op, e->rank)->divergence : NULL;
    size_t done = 0;

    while (ddp__sums(op) && op->scale != 1 && done < op->n) {
        size_t here;
        float *own = ddp__memory_at(op, done, op->n - done, &here);
        e->terms[0] = own;
        e->memory.reduce(own, e->terms, 0, 1, here, op->scale, divergence);
        done += here;
    }
    ddp__complete(e, op);
}

/* The all-gather blocks of those who are lost. */
static void ddp__zero_lost(ddp__engine *e, const ddp__op *op)
{
    size_t block = op->n / (size_t)e->world;

    for (int r = 0; r < e->world && e->members < e->world; r++) {
        size_t at = block * (size_t)r, end = at + block, here;
        for (; e->place[r] < 0 && at < end; at += here) {
            float *data = ddp__memory_at(op, at, end - at, &here);
            memset(data, 0, here * sizeof *data);
        }
    }
}

/* Which way an all-reduce goes; fewer than three workers are no ring. */
static void ddp__choose_ring(ddp__engine *e, ddp__op *op)
{
    int ring = ddp__by_ring(e, op);

    if (ring == op->ring) return;
    pthread_mutex_lock(&e->lock);
    op->ring = ring;
    op->span.algorithm = ring ? 'r' : 'd';
    pthread_mutex_unlock(&e->lock);
}

void ddp__start(ddp__engine *e, ddp__op *op, double now)
{
    size_t from, to;

    op->active_at = op->last_move = op->clock = now;
    op->note_s = e->cfg.note_s;
    op->left = op->reduced = op->sums_left = op->results_left = op->to_come = 0;
    op->first_sum = op->last_sum = op->donor = -1;
    op->missing = op->asked = 0;
    op->waiting_since = -1;
    op->scale = op->m.mean ? 1.0f / (float)ddp__team_of(e, op).members : op->m.scale;
    if (!op->p2p) memset(ddp__row(e, op, 0), 0, (size_t)e->world * sizeof(ddp__exchange));
    else memset(ddp__row(e, op, op->m.peer), 0, sizeof(ddp__exchange));
    ddp__choose_ring(e, op);
    if (e->elastic && !op->p2p) op->donor = ddp__shadow_donor(e, op->seq);
    if (op->donor >= 0) {
        op->left = op->n;
        op->sums = NULL; /* its chunks are cut otherwise */
        if (op->left == 0) ddp__complete(e, op);
        return;
    }
    if (op->m.verb == DDP__ALL_GATHER && op->m.group == 0) ddp__zero_lost(e, op);
    if (!op->p2p && ddp__team_of(e, op).members == 1) {
        ddp__do_alone(e, op);
        return;
    }
    for (int r = 0; r < e->world; r++) {
        ddp__exchange *x = ddp__row(e, op, r);
        size_t parts, in;
        if (r == e->rank || op->ring || op->shared || (op->p2p && r != op->m.peer)) continue;
        in = ddp__incoming(e, op, r, &parts);
        ddp__outgoing(e, op, r, &from, &to);
        op->left += in + (to - from);
        op->left += parts; /* reduced; in an all-reduce the same floats go back as results */
        if (in + parts > 0) {
            x->expected = 1;
            op->missing++;
        }
    }
    if (op->ring) ddp__ring_begin(e, op);
    if (op->shared) ddp__share_begin(e, op);
    if (op->left == 0) ddp__complete(e, op);
    else ddp__collect_early(e, op, now);
    for (int r = 0; r < e->world && op->state == DDP__OP_ACTIVE; r++)
        if (r != e->rank && e->peers[r].left) ddp__check_left(e, r);
}

static uint32_t ddp__paired_next(ddp__peer *p, const ddp__op *op)
{
    return (uint32_t)ddp__paired_lane(op) << 31 | (p->paired_seq[ddp__paired(op)]++ & 0x7fffffffu);
}

static void ddp__begin(ddp__engine *e, ddp__op *op, int row, double now)
{
    op->row = row;
    op->state = DDP__OP_ACTIVE;
    op->seq = op->p2p       ? ddp__paired_next(&e->peers[op->m.peer], op)
            : op->m.group   ? ddp__seq(e, op->m.group, e->group_next[op->m.group]++)
                            : ddp__seq(e, 0, e->next_seq++);
    op->span.seq = op->seq;
    if (op->p2p && e->place[op->m.peer] < 0) {
        ddp__fault(e, DDP_PEER_LOST, "rank %d is not in the world any more: nothing can be %s it",
                   op->m.peer, op->m.verb == DDP__SEND ? "sent to" : "received from");
        return;
    }
    if (e->elastic && !op->p2p) ddp__shadow_take(e, op);
    ddp__start(e, op, now);
}

static int ddp__over(const ddp__engine *e, long ticket)
{
    return ticket < e->first || e->ops[ticket % e->cfg.queue].state == DDP__OP_DONE;
}

/* An operation that has to wait for another, or for one of its group that does, keeps a position
 * of the window, so that the oldest of all never lacks one. 1: it waits. */
static int ddp__must_wait(ddp__engine *e, const ddp__op *op, uint64_t *groups)
{
    const uint64_t group = (uint64_t)1 << op->m.group;

    if ((op->m.after == 0 || ddp__over(e, op->m.after - 1)) && !(*groups & group)) return 0;
    *groups |= group;
    e->waiting[e->waits++] = op->ticket;
    return 1;
}

/* Positions of the window that nobody has or waits for. */
static int ddp__vacant(const ddp__engine *e)
{
    int n = -e->waits;

    for (int row = 0; row < e->width; row++) n += e->window[row] == NULL;
    return n;
}

void ddp__activate(ddp__engine *e, double now)
{
    int later = 0, full = 0; /* full: collectives begin in order, and the next one has to wait */

    while (e->dirty && e->fault.code == DDP_OK) {
        uint64_t groups = 0; /* with an operation that waits */
        e->dirty = full = e->waits = 0;
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
            if (op->p2p) {
                place = &e->peers[op->m.peer].paired[ddp__paired(op)];
                row = (int)DDP__WINDOW + ddp__paired(op);
            } else {
                if (ddp__vacant(e) <= 0) full = 1;
                if (full || ddp__must_wait(e, op, &groups)) continue;
                while (row < e->width - 1 && e->window[row]) row++;
                place = &e->window[row];
            }
            if (*place || (full && !op->p2p)) continue;
            if (e->elastic && !ddp__shadow_may(e, op)) {
                full |= !op->p2p;
                continue;
            }
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
