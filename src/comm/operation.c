/* Operations: their names in errors, members and segments, progress and completion, and the faults that end
 * an engine. */
#include "comm/state.h"

const char *ddp__no_layer_text(int layer)
{
    static const char *const text[] = {
        "a plain buffer",         "all layers",   "a barrier", "the library's own data",
        "parameters and buffers", "a micro-batch"};
    return layer <= (int)DDP_NO_LAYER && layer >= (int)DDP__MICRO_BATCH ? text[DDP_NO_LAYER - layer]
                                                                        : "no layer";
}

const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room)
{
    const char *name = layer >= 0 && e->cfg.layer_name ? e->cfg.layer_name(e->cfg.user, layer) : NULL;

    if (name && name[0])
        snprintf(buf, room, "%s%s", ddp__layer_prefix(name), name);
    else if (layer >= 0)
        snprintf(buf, room, "layer %d", layer);
    else
        snprintf(buf, room, "%s", ddp__no_layer_text(layer));
    return buf;
}

const char *ddp__verb_name(int verb)
{
    static const char *const text[] = {"all-reduce", "broadcast", "all-gather", "reduce-scatter",
                                       "send",       "push",      "answer",     "request",
                                       "receive",    "serve",     "pull"};
    return verb >= 0 && verb <= (int)DDP_PULL ? text[verb] : "unknown operation";
}

const char *ddp__op_text(const ddp__engine *e, const ddp__op *op, char *buf, size_t room)
{
    char layer[64], peer[32];

    ddp__layer_text(e, op->m.layer, layer, sizeof layer);
    peer[0] = '\0';
    if (op->p2p)
        snprintf(peer, sizeof peer, op->m.verb < DDP_RECEIVE ? " to rank %d" : " from rank %d", op->m.peer);
    snprintf(buf, room, "%s%s of %s (step %ld)", ddp__verb_name((int)op->m.verb), peer, layer, op->m.step);
    return buf;
}

const char *ddp__rank_text(ddp__engine *e, int rank, char *buf, size_t room)
{
    pthread_mutex_lock(&e->lock);
    if (e->called[rank][0])
        snprintf(buf, room, "%s (rank %d)", e->called[rank], rank);
    else
        snprintf(buf, room, "rank %d", rank);
    pthread_mutex_unlock(&e->lock);
    return buf;
}

void ddp__fault_is_about(ddp__engine *e, int rank)
{
    if (e->fault.code == DDP_OK) e->fault_about = rank;
}

int ddp__fault(ddp__engine *e, ddp_status code, const char *fmt, ...)
{
    va_list args;

    if (e->fault.code != DDP_OK) return 0;
    va_start(args, fmt);
    ddp__format_list(e->fault.msg, sizeof e->fault.msg, fmt, args);
    va_end(args);
    e->fault.code = code;
    e->fault_origin = e->rank;
    pthread_mutex_lock(&e->lock);
    if (e->error.code == DDP_OK)
        e->error = e->fault;
    else
        e->fault = e->error;
    pthread_mutex_unlock(&e->lock);
    return 0;
}

void ddp__notify(ddp__engine *e)
{
    int sleeping = e->sleeping;

    e->sleeping = 0;
    pthread_cond_broadcast(&e->changed);
    if (e->parked && !e->driven) pthread_cond_signal(&e->park);
    if (sleeping) e->wire->table->wake(e->wire);
}

void ddp__await(ddp__engine *e)
{
    if (!e->wire->carrier) {
        pthread_cond_wait(&e->changed, &e->lock);
        return;
    }
    pthread_mutex_unlock(&e->lock);
    e->wire->carrier->await(e->wire);
    pthread_mutex_lock(&e->lock);
}

void ddp__catch_up(ddp__engine *e)
{
    if (e->wire->carrier) e->wire->carrier->catch_up(e->wire);
}

ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer)
{
    return &e->rows[(size_t)op->row * (size_t)e->world + (size_t)peer];
}

/* ---- members ---- */

ddp__members ddp__team_of(const ddp__engine *e, const ddp__op *op)
{
    const size_t at = (size_t)op->m.group * (size_t)e->world;
    ddp__members team;

    team.members = op->m.group ? e->group_members[op->m.group] : e->members;
    team.member = e->member + at;
    team.place = e->place + at;
    return team;
}

int ddp__takes_part(const ddp__engine *e, const ddp__op *op, int peer)
{
    return peer != e->rank && (op->p2p ? peer == op->m.peer : ddp__team_of(e, op).place[peer] >= 0);
}

void ddp__members_set(ddp__engine *e, uint64_t live)
{
    int n = 0;

    e->members = 0;
    for (int r = 0; r < e->world; r++) {
        int in = r < e->blocks && (e->world > 64 || (live >> r & 1));
        e->place[r] = in ? e->members : -1;
        if (in) e->member[e->members++] = r;
    }
    for (int i = 0; i < e->world; i++) {
        const int id = e->order[i];
        e->turn[id] = e->place[id] < 0 ? -1 : n;
        if (e->place[id] >= 0) e->ring[n++] = id;
    }
}

uint32_t ddp__seq(const ddp__engine *e, int group, uint32_t next)
{
    if (e->membership) return next;
    return (uint32_t)group << DDP__GROUP_SHIFT | (next & (((uint32_t)1 << DDP__GROUP_SHIFT) - 1));
}

int ddp__seq_past(const ddp__engine *e, uint32_t seq)
{
    const uint32_t group = e->membership ? 0 : seq >> DDP__GROUP_SHIFT;
    const uint32_t next = group ? e->group_next[group] : e->next_seq;

    if (e->membership) return (int32_t)(seq - next) < 0;
    return (int32_t)((seq - next) << (32 - DDP__GROUP_SHIFT)) < 0;
}

/* ---- values ---- */

const ddp__algorithm *ddp__way_of(const ddp__engine *e, const ddp__op *op)
{
    int i = 0;

    while (e->ways[i]->fits && !e->ways[i]->fits(e, op)) i++;
    return e->ways[i];
}

char ddp__engine_algorithm(const ddp__engine *e, const ddp_message *m, size_t n)
{
    ddp__op op;

    memset(&op, 0, sizeof op);
    op.m = *m;
    op.unit = m->bytes ? 1 : sizeof(float);
    op.n = n;
    return ddp__way_of(e, &op)->letter;
}

int ddp__sums(const ddp__op *op) { return op->m.verb == DDP_ALL_REDUCE || op->m.verb == DDP_REDUCE_SCATTER; }

int ddp__root(const ddp__engine *e, const ddp__op *op)
{
    return ddp__team_of(e, op).place[op->m.peer] >= 0 ? op->m.peer : e->member[0];
}

size_t ddp__part_start(size_t n, size_t parts, size_t i) { return n / parts * i + n % parts * i / parts; }

void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to)
{
    const ddp__members team = ddp__team_of(e, op);
    /* in the world's all-gather the blocks of lost ranks exist, and are 0 */
    int all = op->m.verb == DDP_ALL_GATHER && op->m.group == 0;
    size_t parts = (size_t)(all ? e->blocks : team.members), j;

    *from = *to = 0;
    if (op->way->whole) *to = op->n;
    if (op->way->whole || team.place[of] < 0) return;
    j = (size_t)(all ? of : team.place[of]);
    *from = ddp__part_start(op->n, parts, j);
    *to = ddp__part_start(op->n, parts, j + 1);
    if (!ddp__in_blocks((int)op->m.coding)) return;
    *from -= *from % DDP__CODING_BLOCK; /* no block is split */
    if (*to < op->n) *to -= *to % DDP__CODING_BLOCK;
}

size_t ddp__segment_length(const ddp__engine *e, const ddp__op *op, int of)
{
    size_t from, to;

    ddp__segment(e, op, of, &from, &to);
    return to - from;
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

/* ---- positions and frames ---- */

int ddp__paired_lane(const ddp__op *op)
{
    switch (op->m.verb) {
    case DDP_PUSH:
    case DDP__ASK:
    case DDP_SERVE:
        return DDP__LANE_SERVE;
    case DDP_ANSWER:
    case DDP_PULL:
        return DDP__LANE_ANSWER;
    default:
        return op->m.priority < 0 ? DDP__LANE_URGENT : 0;
    }
}

int ddp__paired(const ddp__op *op) { return 2 * ddp__paired_lane(op) + (op->m.verb >= DDP_RECEIVE); }

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

void ddp__describe(ddp__frame *f, const ddp__op *op, int type, size_t offset, size_t count)
{
    f->type = type;
    f->p2p = op->p2p;
    f->verb = (int)op->m.verb;
    f->seq = op->seq;
    f->count = (uint32_t)op->n;
    f->offset = (uint32_t)offset;
    f->coding = (int)op->m.coding;
    f->length = (uint32_t)ddp__frame_payload(f->coding, count);
    f->layer = op->m.layer;
    f->sent = f->check = 0;
}

/* ---- progress ---- */

int ddp__passed(double limit, double now, double *again)
{
    if (now < limit) *again = fmin(*again, limit);
    return now >= limit;
}

double ddp__still_since(const ddp__op *op)
{
    return op->last_move > op->active_at ? op->last_move : op->active_at;
}

static void ddp__complete(ddp__engine *e, ddp__op *op)
{
    double now = ddp_now(); /* on an emulated link, later than the event's time if the thread was late */

    op->state = DDP__OP_DONE;
    if (op->way->finished) op->way->finished(e, op);
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] == op) e->window[i] = NULL;
    if (op->p2p && !e->wire->carrier && e->peers[op->m.peer].paired[ddp__paired(op)] == op)
        e->peers[op->m.peer].paired[ddp__paired(op)] = NULL;
    if (op->m.divergence) {
        double sum = 0;
        for (int r = 0; r < e->world; r++) sum += ddp__row(e, op, r)->divergence;
        *op->m.divergence = sum;
    }
    pthread_mutex_lock(&e->lock);
    if (op->span.begin < 0)
        op->span.begin = now;
    else if (--e->running == 0)
        e->stats.busy_s += now - e->running_since;
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

void ddp__count_sent(ddp__engine *e, ddp__op *op, int coding, int64_t bytes)
{
    const int as = coding == (int)DDP__AS_BYTES && op->m.counts_as ? op->m.counts_as : coding + 1;

    op->bytes += bytes;
    ddp__atomic_add(&e->sent_as[op->m.layer == DDP__OWN_WORD ? 0 : as], bytes);
}

void ddp__op_moves(ddp__engine *e, ddp__op *op, double now)
{
    e->last_move = now;
    if (op->note_s > e->cfg.note_s) { /* the wait was logged */
        char text[128];
        op->note_s = e->cfg.note_s;
        ddp__log(&e->cfg.log, DDP_LOG_WARN, "rank %d: %s continues after %.1f s", e->rank,
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

int ddp__op_void(ddp__engine *e, ddp__op *op)
{
    if ((op->m.verb != DDP_SERVE && op->m.verb != DDP_ANSWER) || op->m.peer == DDP_ANY) return 0;
    if (op->m.verb == DDP_SERVE && op->m.received) {
        op->m.received->verb = DDP_SERVE;
        op->m.received->peer = op->m.peer;
        op->m.received->count = 0;
    }
    ddp__complete(e, op);
    return 1;
}

void ddp__check_left(ddp__engine *e, int peer)
{
    for (int i = 0; i < DDP__ROWS; i++) {
        const ddp__op *op = i < DDP__WINDOW ? e->window[i] : e->peers[peer].paired[i - DDP__WINDOW];
        char text[128], who[80];
        if (!op || op->state != DDP__OP_ACTIVE || !ddp__takes_part(e, op, peer)) continue;
        if (op->way->over(e, op, peer)) continue;
        if (e->membership && !op->p2p) {
            e->membership->left(e, peer);
            return;
        }
        ddp__fault_is_about(e, peer);
        ddp__fault(
            e, DDP_PEER_LOST,
            "%s closed its context, but %s still needs it: every rank must run the same number of steps",
            ddp__rank_text(e, peer, who, sizeof who), ddp__op_text(e, op, text, sizeof text));
        return;
    }
}
