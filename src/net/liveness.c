/* Everything that ends an engine before its time: lost and silent peers, operations that do not
 * move, abort; and the sentences that say so. */
#include "net/state.h"

const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room)
{
    const char *name =
        layer >= 0 && e->cfg.layer_name ? e->cfg.layer_name(e->cfg.user, layer) : NULL;

    if (name) snprintf(buf, room, "layer %s", name);
    else if (layer >= 0) snprintf(buf, room, "layer %d", layer);
    else snprintf(buf, room, layer == DDP__ALL_LAYERS ? "all layers" : "a plain buffer");
    return buf;
}

static const char *ddp__verb_name(int verb)
{
    static const char *const text[] = {"all-reduce", "broadcast", "all-gather", "send", "receive"};
    return text[verb];
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

    for (int i = 0; i < DDP__WINDOW + 2; i++) {
        const ddp__op *op = i < DDP__WINDOW ? e->window[i]
                          : i == DDP__WINDOW ? e->peers[peer].send_op : e->peers[peer].recv_op;
        if (op && (!oldest || op->ticket < oldest->ticket)) oldest = op;
    }
    return oldest;
}

void ddp__peer_lost(ddp__engine *e, int peer, const char *why)
{
    const ddp__op *op = ddp__oldest_op(e, peer);
    const char *when = op ? " during " : "";
    char text[128], layer[64];

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

void ddp__check_left(ddp__engine *e, int peer)
{
    for (int i = 0; i < DDP__WINDOW + 2; i++) {
        const ddp__op *op = i < DDP__WINDOW ? e->window[i]
                          : i == DDP__WINDOW ? e->peers[peer].send_op : e->peers[peer].recv_op;
        size_t from, to, in_from = 0, in_to = 0, own_from = 0, own_to = 0;
        const ddp__exchange *x;
        char text[128];
        if (!op || op->state != DDP__OP_ACTIVE || (op->p2p && op->m.peer != peer)) continue;
        if (op->ring && !ddp__ring_needs(e, op, peer)) continue;
        x = ddp__row(e, op, peer);
        if (op->m.verb == DDP__ALL_REDUCE) ddp__segment(e, op, e->rank, &own_from, &own_to);
        ddp__outgoing(e, op, peer, &from, &to);
        if (op->m.verb == DDP__ALL_REDUCE || op->m.verb == DDP__ALL_GATHER)
            ddp__segment(e, op, peer, &in_from, &in_to);
        else if (op->m.verb == DDP__RECV || (op->m.verb == DDP__BROADCAST && op->m.peer == peer))
            in_to = op->n;
        if (!op->ring && x->sent >= to - from && x->results >= own_to - own_from &&
            (op->m.verb == DDP__ALL_REDUCE ? x->finished : x->taken) >= in_to - in_from &&
            !x->expected)
            continue;
        ddp__fault(e, DDP_PEER_LOST,
                   "rank %d has left (it closed its context) and %s still needs it: every "
                   "rank must run the same number of steps",
                   peer, ddp__op_text(e, op, text, sizeof text));
        return;
    }
}

/* "ranks 1, 3" of those that have sent nothing for an operation. */
static const char *ddp__missing_text(ddp__engine *e, const ddp__op *op, char *buf, size_t room)
{
    size_t used = 0;
    int listed = 0;

    buf[0] = '\0';
    for (int r = 0; r < e->world && used + 16 < room; r++) {
        if (r == e->rank || (op->p2p && r != op->m.peer) || !ddp__row(e, op, r)->expected) continue;
        used += (size_t)snprintf(buf + used, room - used, listed++ ? ", %d" : "%d", r);
    }
    return buf;
}

static void ddp__check_op(ddp__engine *e, ddp__op *op, double now, double *again)
{
    double since, limit = e->cfg.op_timeout_s;
    char text[128], who[96];

    if (!op || op->state != DDP__OP_ACTIVE) return;
    since = op->last_move > op->active_at ? op->last_move : op->active_at;
    if (limit > 0 && since + limit < *again) *again = since + limit;
    if (!op->warned && since + 5 < *again) *again = since + 5;
    if (!(limit > 0 && now - since >= limit) && !(!op->warned && now - since >= 5)) return;
    ddp__missing_text(e, op, who, sizeof who);
    if (limit > 0 && now - since >= limit) {
        if (who[0])
            ddp__fault(e, DDP_TIMEOUT,
                       "%s did not move for %.1f s: rank %s did not submit it in time; look "
                       "there first, or raise the time limit",
                       ddp__op_text(e, op, text, sizeof text), now - since, who);
        else
            ddp__fault(e, DDP_TIMEOUT,
                       "%s did not move for %.1f s, with %lu floats still to send or receive: "
                       "a rank %sis stopped or the network stalls; raise the time limit if it is "
                       "merely slow",
                       ddp__op_text(e, op, text, sizeof text), now - since, (unsigned long)op->left,
                       op->ring && op->missing ? "did not submit it, " : "");
        return;
    }
    op->warned = 1;
    ddp__log(&e->cfg.log, DDP_LOG_WARN, "rank %d: %s has not moved for %.1f s%s%s", e->rank,
             ddp__op_text(e, op, text, sizeof text), now - since,
             who[0] ? ", not submitted by rank " : "", who);
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
                   "submitted: all ranks must submit the same operations",
                   peer, now - e->slot[s].arrived, ddp__verb_name(e->slot[s].f.verb),
                   ddp__layer_text(e, e->slot[s].f.layer, layer, sizeof layer), e->rank);
    else if (e->slot[s].arrived + limit < *again)
        *again = e->slot[s].arrived + limit;
}

double ddp__check_liveness(ddp__engine *e, double now)
{
    double beat =
        e->cfg.peer_timeout_s > 0 && e->cfg.peer_timeout_s < 5 ? e->cfg.peer_timeout_s / 5 : 1;
    double again = now + beat;

    for (int peer = 0; peer < e->world && e->fault.code == DDP_OK; peer++) {
        ddp__peer *p = &e->peers[peer];
        if (peer == e->rank) continue;
        if (!p->goodbye_read && !p->closed) {
            if (now - p->last_sent >= beat && p->out_state == DDP__OUT_IDLE && !e->closing) {
                p->want_heartbeat = 1;
                p->last_sent = now;
            }
            if (p->out_state == DDP__OUT_IDLE && p->last_sent + beat < again)
                again = p->last_sent + beat;
            if (e->cfg.peer_timeout_s > 0 && p->in_state != DDP__IN_PAUSED) {
                double limit = e->cfg.peer_timeout_s;
                if (now - p->last_got >= limit) {
                    char why[64];
                    snprintf(why, sizeof why, "no sign of life for %.1f s", now - p->last_got);
                    ddp__peer_lost(e, peer, why);
                } else if (p->last_got + limit < again) again = p->last_got + limit;
            }
        }
        ddp__check_op(e, p->send_op, now, &again);
        ddp__check_op(e, p->recv_op, now, &again);
        ddp__check_early(e, peer, now, &again);
    }
    for (int i = 0; i < DDP__WINDOW && e->fault.code == DDP_OK; i++)
        ddp__check_op(e, e->window[i], now, &again);
    return again;
}
