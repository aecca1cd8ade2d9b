/* Peers that are lost or silent, and operations that do not move. */
#include "comm/state.h"

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

const char *ddp__when_text(const ddp__engine *e, int peer, char *buf, size_t room)
{
    const ddp__op *op = ddp__oldest_op(e, peer);
    char text[128], layer[64];

    buf[0] = '\0';
    if (op) {
        snprintf(buf, room, " during %s", ddp__op_text(e, op, text, sizeof text));
    } else if (e->span_count > 0) { /* nothing in flight: what was last */
        const ddp__op_span *last = &e->spans[(e->span_count - 1) % DDP__SPANS];
        snprintf(buf, room, " after %s of %s (step %ld)", ddp__verb_name((int)last->verb),
                 ddp__layer_text(e, last->layer, layer, sizeof layer), last->step);
    }
    return buf;
}

void ddp__peer_lost(ddp__engine *e, int peer, const char *why)
{
    char when[140];

    if (e->membership)
        e->membership->lost(e, peer, why);
    else
        ddp__fault(e, DDP_PEER_LOST, "rank %d (%s) was lost%s: %s; restart the job from its last checkpoint", peer,
                   e->wire->table->peer_name(e->wire, peer), ddp__when_text(e, peer, when, sizeof when), why);
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
                   "%s timed out after %.1f s with %lu values still to send or receive, the last "
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

double ddp__check_liveness(ddp__engine *e, double now)
{
    double beat = ddp__beat(e), again = now + beat, late = now - e->look_by;

    if (e->look_by > 0 && late > beat + 1) {
        /* This process itself was stopped or starved: what its peers have sent meanwhile is to be
         * read before anybody is judged. */
        ddp__log(&e->cfg.log, DDP_LOG_WARN, "rank %d: this process stood still for %.1f s", e->rank,
                 late);
        return e->look_by = now + beat / 5;
    }

    for (int peer = 0; peer < e->world && e->fault.code == DDP_OK; peer++) {
        ddp__peer *p = &e->peers[peer];
        if (peer == e->rank || p->out_of_world) continue;
        if (!p->goodbye_read && !p->closed) {
            if (now - p->last_beat >= beat && !e->closing) {
                p->want_heartbeat = 1;
                p->last_beat = now;
            }
            if (p->last_beat + beat < again) again = p->last_beat + beat;
            if (e->cfg.peer_timeout_s > 0 && !e->newcomer &&
                (p->in_state != DDP__IN_PAUSED || e->stalled)) {
                double limit = e->cfg.peer_timeout_s;
                if (now - p->last_got >= limit) {
                    char why[64];
                    snprintf(why, sizeof why, "no sign of life for %.1f s", now - p->last_got);
                    ddp__peer_lost(e, peer, why);
                } else if (p->last_got + limit < again) again = p->last_got + limit;
            }
        }
        if (e->frozen) continue;
        for (int i = 0; i < DDP__PAIRED; i++) ddp__check_op(e, p->paired[i], now, &again);
        ddp__check_early(e, peer, now, &again);
    }
    for (int i = 0; i < DDP__WINDOW && e->fault.code == DDP_OK && !e->frozen; i++)
        ddp__check_op(e, e->window[i], now, &again);
    if (e->fault.code == DDP_OK && !e->frozen) ddp__note_wait(e, now, &again);
    if (e->membership && e->fault.code == DDP_OK) e->membership->check(e, now, &again);
    return e->look_by = again;
}
