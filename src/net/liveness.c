/* Everything that ends an engine before its time: lost and silent peers, operations that do not
 * move, abort; and the sentences that say so. */
#include "net/elastic.h"

const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room)
{
    const char *name =
        layer >= 0 && e->cfg.layer_name ? e->cfg.layer_name(e->cfg.user, layer) : NULL;

    if (name) snprintf(buf, room, "layer %s", name);
    else if (layer >= 0) snprintf(buf, room, "layer %d", layer);
    else snprintf(buf, room, layer == DDP__ALL_LAYERS ? "all layers"
                             : layer == DDP__BARRIER  ? "a barrier" : "a plain buffer");
    return buf;
}

const char *ddp__verb_name(int verb)
{
    static const char *const text[] = {"all-reduce", "broadcast", "all-gather",
                                       "send",       "receive",   "reduce-scatter"};
    return verb >= 0 && verb <= (int)DDP__REDUCE_SCATTER ? text[verb] : "unknown operation";
}

const char *ddp__op_text(const ddp__engine *e, const ddp__op *op, char *buf, size_t room)
{
    char layer[64], peer[32];

    ddp__layer_text(e, op->m.layer, layer, sizeof layer);
    peer[0] = '\0';
    if (op->p2p)
        snprintf(peer, sizeof peer, op->m.verb == DDP__SEND ? " to rank %d" : " from rank %d",
                 op->m.peer);
    snprintf(buf, room, "%s%s of %s (step %ld)", ddp__verb_name((int)op->m.verb), peer, layer,
             op->m.step);
    return buf;
}

void ddp__fault(ddp__engine *e, ddp_status code, const char *fmt, ...)
{
    va_list args;

    if (e->fault.code != DDP_OK) return;
    va_start(args, fmt);
    vsnprintf(e->fault.msg, sizeof e->fault.msg, fmt, args);
    va_end(args);
    e->fault.code = code;
    e->fault_origin = e->rank;
    pthread_mutex_lock(&e->lock);
    if (e->error.code == DDP_OK) e->error = e->fault;
    else e->fault = e->error;
    pthread_mutex_unlock(&e->lock);
}

/* The oldest operation in flight, or the oldest that needs that peer; NULL when idle. */
static const ddp__op *ddp__oldest_op(const ddp__engine *e, int peer)
{
    const ddp__op *oldest = NULL;

    for (int i = 0; i < DDP__ROWS; i++) {
        const ddp__op *op = i < DDP__WINDOW ? e->window[i]
                                            : e->peers[peer].paired[i - DDP__WINDOW];
        if (op && (!oldest || op->ticket < oldest->ticket)) oldest = op;
    }
    return oldest;
}

void ddp__peer_lost(ddp__engine *e, int peer, const char *why)
{
    const ddp__op *op = ddp__oldest_op(e, peer);
    const char *when = op ? " during " : "";
    char text[128], layer[64];

    if (e->elastic) {
        ddp__epoch_lost(e, peer, why);
        return;
    }
    text[0] = '\0';
    if (op) {
        ddp__op_text(e, op, text, sizeof text);
    } else if (e->span_count > 0) { /* nothing in flight: what was last */
        const ddp__op_span *last = &e->spans[(e->span_count - 1) % DDP__SPANS];
        when = " after ";
        snprintf(text, sizeof text, "%s of %s (step %ld)", ddp__verb_name((int)last->verb),
                 ddp__layer_text(e, last->layer, layer, sizeof layer), last->step);
    }
    ddp__fault(e, DDP_PEER_LOST,
               "rank %d (%s) was lost%s%s: %s; restart the job from its last checkpoint", peer,
               e->wire->table->peer_name(e->wire, peer), when, text, why);
}

/* Values of an operation that came from a peer and wait for those of the others. */
static size_t ddp__waiting_values(const ddp__engine *e, const ddp__op *op, int peer)
{
    size_t n = 0;

    for (int s = e->peers[peer].first_pending; s >= 0; s = e->slot[s].next)
        if (e->slot[s].f.seq == op->seq && !e->slot[s].f.p2p) n += ddp__frame_values(&e->slot[s].f);
    return n;
}

/* What of an operation that peer has given to this rank. */
static size_t ddp__got(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__exchange *x = ddp__row(e, op, peer);

    if (op->m.verb == DDP__ALL_REDUCE) return x->finished;
    /* nothing comes back after it, so a peer may go before its values are added up */
    return x->taken + (ddp__sums(op) ? ddp__waiting_values(e, op, peer) : 0);
}

void ddp__check_left(ddp__engine *e, int peer)
{
    for (int i = 0; i < DDP__ROWS; i++) {
        const ddp__op *op = i < DDP__WINDOW ? e->window[i]
                                            : e->peers[peer].paired[i - DDP__WINDOW];
        size_t from, to, in_from = 0, in_to = 0, own_from = 0, own_to = 0;
        const ddp__exchange *x;
        char text[128];
        if (!op || op->state != DDP__OP_ACTIVE || (op->p2p && op->m.peer != peer)) continue;
        if (!op->p2p && ddp__team_of(e, op).place[peer] < 0) continue;
        if (op->donor >= 0 ? op->donor != peer : op->ring && !ddp__ring_needs(e, op, peer))
            continue;
        if (op->full && ddp__full_over(e, op, peer)) continue;
        if (op->shared && ddp__row(e, op, peer)->finished) continue;
        x = ddp__row(e, op, peer);
        if (op->m.verb == DDP__ALL_REDUCE) ddp__segment(e, op, e->rank, &own_from, &own_to);
        ddp__outgoing(e, op, peer, &from, &to);
        if (op->m.verb == DDP__ALL_REDUCE || op->m.verb == DDP__ALL_GATHER)
            ddp__segment(e, op, peer, &in_from, &in_to);
        else if (op->m.verb == DDP__REDUCE_SCATTER)
            ddp__segment(e, op, e->rank, &in_from, &in_to);
        else if (op->m.verb == DDP__RECV ||
                 (op->m.verb == DDP__BROADCAST && ddp__root(e, op) == peer))
            in_to = op->n;
        if (!op->ring && !op->shared && op->donor < 0 && x->sent >= to - from && x->results >= own_to - own_from &&
            ddp__got(e, op, peer) >= in_to - in_from && !x->expected)
            continue;
        if (e->elastic && !op->p2p) {
            ddp__epoch_left(e, peer);
            return;
        }
        ddp__fault(e, DDP_PEER_LOST,
                   "rank %d has left (it closed its context) and %s still needs it: every "
                   "rank must run the same number of steps",
                   peer, ddp__op_text(e, op, text, sizeof text));
        return;
    }
}

/* The clock runs from the first rank's beginning, whether or not something moves since. */
static void ddp__check_op(ddp__engine *e, ddp__op *op, double now, double *again)
{
    double limit = e->cfg.op_timeout_s, passed;
    char text[128], who[96];

    if (!op || op->state != DDP__OP_ACTIVE || limit <= 0) return;
    passed = now - op->clock;
    if (passed < limit) {
        if (op->clock + limit < *again) *again = op->clock + limit;
        return;
    }
    ddp__missing_text(e, op, who, sizeof who);
    if (who[0])
        ddp__fault(e, DDP_TIMEOUT,
                   "%s timed out: %s did not submit it within %.1f s of the first rank; look "
                   "there first, or raise DREAMDDP_OP_TIMEOUT (now %g s)",
                   ddp__op_text(e, op, text, sizeof text), who, passed, limit);
    else
        ddp__fault(e, DDP_TIMEOUT,
                   "%s timed out after %.1f s with %lu floats still to send or receive, the last "
                   "of them moved %.1f s ago%s: a rank is stopped or the network stalls; raise "
                   "DREAMDDP_OP_TIMEOUT (now %g s) if it is merely slow",
                   ddp__op_text(e, op, text, sizeof text), passed, (unsigned long)op->left,
                   now - ddp__still_since(op), ddp__silent_text(e, op, now, who, sizeof who),
                   limit);
}

/* Others wait in an operation that this rank has not submitted. */
static void ddp__check_early(ddp__engine *e, int peer, double now, double *again)
{
    double limit = e->cfg.op_timeout_s;
    int s = e->peers[peer].first_pending;
    char layer[64];

    if (limit <= 0 || s < 0) return;
    if (ddp__find_op(e, peer, &e->slot[s].f) || ddp__oldest_op(e, peer)) return;
    if (now - e->slot[s].arrived >= limit)
        ddp__fault(e, DDP_TIMEOUT,
                   "rank %d has waited %.1f s in %s of %s, which this rank (%d) has not "
                   "submitted: all ranks must submit the same operations; raise "
                   "DREAMDDP_OP_TIMEOUT (now %g s) if this one is merely slow",
                   peer, now - e->slot[s].arrived, ddp__verb_name(e->slot[s].f.verb),
                   ddp__layer_text(e, e->slot[s].f.layer, layer, sizeof layer), e->rank, limit);
    else if (e->slot[s].arrived + limit < *again)
        *again = e->slot[s].arrived + limit;
}

/* Seconds between heartbeats: often enough to tell before a limit passes who is where. */
double ddp__beat(const ddp__engine *e)
{
    double beat = 5;

    if (e->cfg.peer_timeout_s > 0 && e->cfg.peer_timeout_s < beat) beat = e->cfg.peer_timeout_s;
    if (e->cfg.op_timeout_s > 0 && e->cfg.op_timeout_s < beat) beat = e->cfg.op_timeout_s;
    return beat / 5;
}

double ddp__check_liveness(ddp__engine *e, double now)
{
    double beat = ddp__beat(e), again = now + beat, late = now - e->look_by;
    int frozen = e->elastic && e->elastic->frozen, waits = e->elastic && e->elastic->newcomer;

    if (e->look_by > 0 && late > beat + 1) {
        /* This process itself was stopped or starved: what its peers have sent meanwhile is to be
         * read before anybody is judged. */
        ddp__log(&e->cfg.log, DDP_LOG_WARN, "rank %d: this process stood still for %.1f s", e->rank,
                 late);
        return e->look_by = now + beat / 5;
    }

    for (int peer = 0; peer < e->world && e->fault.code == DDP_OK; peer++) {
        ddp__peer *p = &e->peers[peer];
        if (peer == e->rank || (e->elastic && e->elastic->peer[peer].gone)) continue;
        if (!p->goodbye_read && !p->closed) {
            if (now - p->last_beat >= beat && !e->closing) {
                p->want_heartbeat = 1;
                p->last_beat = now;
            }
            if (p->last_beat + beat < again) again = p->last_beat + beat;
            if (e->cfg.peer_timeout_s > 0 && !waits &&
                (p->in_state != DDP__IN_PAUSED || e->stalled)) {
                double limit = e->cfg.peer_timeout_s;
                if (now - p->last_got >= limit) {
                    char why[64];
                    snprintf(why, sizeof why, "no sign of life for %.1f s", now - p->last_got);
                    ddp__peer_lost(e, peer, why);
                } else if (p->last_got + limit < again) again = p->last_got + limit;
            }
        }
        if (frozen) continue;
        for (int i = 0; i < DDP__PAIRED; i++) ddp__check_op(e, p->paired[i], now, &again);
        ddp__check_early(e, peer, now, &again);
    }
    for (int i = 0; i < DDP__WINDOW && e->fault.code == DDP_OK && !frozen; i++)
        ddp__check_op(e, e->window[i], now, &again);
    if (e->fault.code == DDP_OK && !frozen) ddp__note_wait(e, now, &again);
    if (e->elastic && e->fault.code == DDP_OK) ddp__epoch_check(e, now, &again);
    return e->look_by = again;
}
