/* Detects lost and silent peers, ranks that have not begun an operation, and operations that time out. Logs
 * long waits. */
#include "comm/state.h"

/* A rank does not send data to every other rank in each operation. If a peer has nothing to send, only its
 * heartbeats show whether it has started the operation. */
int ddp__is_missing(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__peer *p = &e->peers[peer];
    const ddp__exchange *x = ddp__row(e, op, peer);
    uint32_t begun = op->m.verb == DDP_SEND ? p->receives : op->m.verb == DDP_RECEIVE ? p->sends : p->begun;

    if (x->seen || !ddp__takes_part(e, op, peer)) return 0;
    /* heartbeats count the world's operations only, and no high-priority messages */
    if (op->m.group || (op->p2p && ddp__paired_lane(op))) return x->expected;
    if (p->heard_at > 0 && (int32_t)(begun - op->seq) > 0) return 0;
    return p->heard_at >= op->active_at || x->expected;
}

static const char *ddp__missing_text(ddp__engine *e, const ddp__op *op, char *buf, size_t room)
{
    size_t used = 0;
    int listed = 0, more = 0;

    buf[0] = '\0';
    for (int r = 0; r < e->world; r++) more += ddp__is_missing(e, op, r);
    if (more > 0) used = (size_t)snprintf(buf, room, more > 1 ? "ranks " : "rank ");
    for (int r = 0; r < e->world && used + 32 < room; r++) {
        if (!ddp__is_missing(e, op, r)) continue;
        used += (size_t)snprintf(buf + used, room - used, listed++ ? ", %d" : "%d", r);
        more--;
    }
    if (more > 0) snprintf(buf + used, room - used, " and %d more", more);
    return buf;
}

/* The oldest operation in flight (peer < 0), or the oldest that needs that peer, or NULL. */
static ddp__op *ddp__oldest_op(const ddp__engine *e, int peer)
{
    ddp__op *oldest = NULL;

    for (int i = 0; i < DDP__WINDOW + DDP__PAIRED * e->world; i++) {
        const int of = (i - DDP__WINDOW) / DDP__PAIRED;
        ddp__op *op = i < DDP__WINDOW ? e->window[i] : e->peers[of].paired[(i - DDP__WINDOW) % DDP__PAIRED];
        if (op && (i < DDP__WINDOW || peer < 0 || peer == of) && (!oldest || op->ticket < oldest->ticket))
            oldest = op;
    }
    return oldest;
}

static double ddp__beat(const ddp__engine *e)
{
    double beat = 5; /* seconds: often enough to know the state of each peer before a time-out */

    if (e->cfg.peer_timeout_s > 0 && e->cfg.peer_timeout_s < beat) beat = e->cfg.peer_timeout_s;
    if (e->cfg.op_timeout_s > 0 && e->cfg.op_timeout_s < beat) beat = e->cfg.op_timeout_s;
    return beat / 5;
}

static const char *ddp__silent_text(const ddp__engine *e, const ddp__op *op, double now, char *buf,
                                    size_t room)
{
    double longest = 2.5 * ddp__beat(e);

    buf[0] = '\0';
    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        if (!ddp__takes_part(e, op, r) || now - p->last_got <= longest) continue;
        longest = now - p->last_got;
        ddp__format(buf, room, "; rank %d has been silent for %.1f s", r, longest);
    }
    return buf;
}

/* Logs the oldest operation if it has not moved for its note_s seconds. */
static void ddp__note_wait(ddp__engine *e, double now, double *again)
{
    ddp__op *op = ddp__oldest_op(e, -1);
    const double since = op ? ddp__still_since(op) : 0, waited = now - since;
    char text[128], who[96], where[64];

    if (!op || !ddp__passed(since + op->note_s, now, again)) return;
    op->note_s *= 2;
    *again = fmin(*again, since + op->note_s);
    ddp__op_text(e, op, text, sizeof text);
    ddp__missing_text(e, op, who, sizeof who);
    where[0] = '\0';
    for (int r = 0; r < e->world && !op->p2p && !where[0]; r++)
        if (ddp__is_missing(e, op, r) && e->peers[r].heard_at > 0)
            snprintf(where, sizeof where, " (rank %d has begun %lu operations)", r,
                     (unsigned long)e->peers[r].begun);
    if (who[0])
        ddp__log(&e->cfg.log, DDP_LOG_WARN,
                 "rank %d has waited %.0f s in %s, operation %lu, not submitted by %s%s", e->rank, waited,
                 text, (unsigned long)op->seq, who, where);
    else
        ddp__log(&e->cfg.log, DDP_LOG_WARN,
                 "rank %d has waited %.0f s in %s, operation %lu: all ranks have submitted "
                 "it, %lu values are still to send or receive%s",
                 e->rank, waited, text, (unsigned long)op->seq, (unsigned long)op->left,
                 ddp__silent_text(e, op, now, where, sizeof where));
}

const char *ddp__when_text(const ddp__engine *e, int peer, char *buf, size_t room)
{
    const ddp__op *op = ddp__oldest_op(e, peer);
    char text[128], layer[64];

    buf[0] = '\0';
    if (op) {
        snprintf(buf, room, " during %s", ddp__op_text(e, op, text, sizeof text));
    } else if (e->span_count > 0) { /* no operation is in flight, so name the last one */
        const ddp__op_span *last = &e->spans[(e->span_count - 1) % e->span_room];
        snprintf(buf, room, " after %s of %s (step %ld)", ddp__verb_name((int)last->verb),
                 ddp__layer_text(e, last->layer, layer, sizeof layer), last->step);
    }
    return buf;
}

void ddp__peer_lost(ddp__engine *e, int peer, const char *why)
{
    char who[80], when[140];

    if (e->membership) {
        e->membership->lost(e, peer, why);
        return;
    }
    ddp__fault_is_about(e, peer);
    ddp__fault(e, DDP_PEER_LOST, "%s (%s) was lost%s: %s; restart the job from its last checkpoint",
               ddp__rank_text(e, peer, who, sizeof who), e->wire->names[peer],
               ddp__when_text(e, peer, when, sizeof when), why);
}

/* Fails an operation that exceeds op_timeout_s. Its clock starts when the first rank began it, whether or not
 * it has moved since. */
static void ddp__check_op(ddp__engine *e, ddp__op *op, double now, double *again)
{
    double limit = e->cfg.op_timeout_s, passed;
    char text[128], who[96];

    if (!op || op->state != DDP__OP_ACTIVE || limit <= 0 || !ddp__passed(op->clock + limit, now, again))
        return;
    passed = now - op->clock;
    ddp__missing_text(e, op, who, sizeof who);
    if (who[0])
        ddp__fault(e, DDP_TIMEOUT,
                   "%s timed out: %s did not submit it within %.1f s of the first rank; look there "
                   "first, or raise DREAMDDP_OP_TIMEOUT (now %g s)",
                   ddp__op_text(e, op, text, sizeof text), who, passed, limit);
    else
        ddp__fault(e, DDP_TIMEOUT,
                   "%s timed out after %.1f s with %lu values still to send or receive, the last of "
                   "them moved %.1f s ago%s: a rank is stopped or the network stalls; raise "
                   "DREAMDDP_OP_TIMEOUT (now "
                   "%g s) if it is merely slow",
                   ddp__op_text(e, op, text, sizeof text), passed, (unsigned long)op->left,
                   now - ddp__still_since(op), ddp__silent_text(e, op, now, who, sizeof who), limit);
}

/* Fails if other ranks have waited too long in an operation that this rank has not submitted. */
static void ddp__check_early(ddp__engine *e, int peer, double now, double *again)
{
    double limit = e->cfg.op_timeout_s;
    int s = e->peers[peer].pending.first;
    char layer[64];

    if (limit <= 0 || s < 0) return;
    if (ddp__find_op(e, peer, &e->slot[s].f) || ddp__oldest_op(e, peer)) return;
    if (ddp__passed(e->slot[s].arrived + limit, now, again))
        ddp__fault(e, DDP_TIMEOUT,
                   "rank %d has waited %.1f s in %s of %s, which this rank (%d) has not submitted: all "
                   "ranks must submit the same operations; raise DREAMDDP_OP_TIMEOUT (now %g s) if this one "
                   "is merely "
                   "slow",
                   peer, now - e->slot[s].arrived, ddp__verb_name(e->slot[s].f.verb),
                   ddp__layer_text(e, e->slot[s].f.layer, layer, sizeof layer), e->rank, limit);
}

/* ---- when this process was stopped ---- */

static void ddp__op_stopped(ddp__op *op, double seconds, double now)
{
    if (!op) return;
    ddp__extend(&op->clock, seconds, now);
    ddp__extend(&op->last_move, seconds, now);
}

int ddp__was_stopped(ddp__engine *e, double now)
{
    const double beat = ddp__beat(e), gap = now - e->ran_at;

    e->ran_at = now;
    if (gap <= 2 * beat) return 0; /* an idle engine runs one round per heartbeat */
    if (gap > beat + 1)
        ddp__log(&e->cfg.log, DDP_LOG_WARN,
                 "rank %d: this process was stopped for %.1f s; time-outs are extended by that", e->rank,
                 gap);
    for (int r = 0; r < e->world; r++) {
        ddp__peer *p = &e->peers[r];
        ddp__extend(&p->last_got, gap, now);
        for (int i = 0; i < DDP__PAIRED; i++) ddp__op_stopped(p->paired[i], gap, now);
        for (int s = p->pending.first; s >= 0; s = e->slot[s].next)
            ddp__extend(&e->slot[s].arrived, gap, now);
    }
    for (int i = 0; i < DDP__WINDOW; i++) ddp__op_stopped(e->window[i], gap, now);
    ddp__extend(&e->last_move, gap, now);
    if (e->membership) e->membership->stopped(e, gap, now);
    if (e->wire->table->stopped) e->wire->table->stopped(e->wire, gap, now);
    return 1;
}

/* ---- all time-outs ---- */

int ddp__one_process(const ddp__engine *e) { return e->wire->offers && !e->links.path; }

/* 1 if silence of a peer is a failure. */
static int ddp__may_be_lost(const ddp__engine *e, const ddp__peer *p)
{
    return e->cfg.peer_timeout_s > 0 && !ddp__one_process(e) && !e->newcomer &&
           (p->in_state != DDP__IN_PAUSED || e->stalled);
}

void ddp__check_liveness(ddp__engine *e, double now)
{
    double beat = ddp__beat(e), again = now + beat;

    /* frames that arrived meanwhile are read before a peer is declared lost */
    if (ddp__was_stopped(e, now)) {
        e->next_check = now;
        return;
    }
    for (int peer = 0; peer < e->world && e->fault.code == DDP_OK; peer++) {
        ddp__peer *p = &e->peers[peer];
        if (peer == e->rank || p->out_of_world) continue;
        if (!p->goodbye_read && !p->closed) {
            if (!e->closing && ddp__passed(p->last_beat + beat, now, &again)) {
                p->want_heartbeat = 1;
                p->last_beat = now;
            }
            if (ddp__may_be_lost(e, p) && ddp__passed(p->last_got + e->cfg.peer_timeout_s, now, &again)) {
                char why[64];
                ddp__format(why, sizeof why, "no sign of life for %.1f s", now - p->last_got);
                ddp__peer_lost(e, peer, why);
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
    e->next_check = again;
}
