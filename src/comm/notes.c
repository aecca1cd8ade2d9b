/* Long waits: who has not begun an operation, and the lines that say so. */
#include "comm/state.h"

void ddp__tell_progress(const ddp__engine *e, int peer, ddp__frame *f)
{
    f->seq = e->next_seq;
    f->count = e->peers[peer].paired_seq[0];
    f->offset = e->peers[peer].paired_seq[1];
}

void ddp__hear_progress(ddp__engine *e, int peer, const ddp__frame *f, double now)
{
    ddp__peer *p = &e->peers[peer];

    p->begun = f->seq;
    p->sends = f->count;
    p->receives = f->offset;
    p->heard_at = now;
}

/* Not every rank sends something to every other in an operation: where a peer owes nothing, only
 * its heartbeats tell. */
int ddp__is_missing(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__peer *p = &e->peers[peer];
    const ddp__exchange *x = ddp__row(e, op, peer);
    uint32_t begun = op->m.verb == DDP_SEND ? p->receives : op->m.verb == DDP_RECEIVE ? p->sends : p->begun;

    if (peer == e->rank || ddp__team_of(e, op).place[peer] < 0 || x->seen) return 0;
    if (op->p2p && peer != op->m.peer) return 0;
    /* heartbeats tell of the world's operations, and of nothing urgent */
    if (op->m.group || (op->p2p && ddp__paired_lane(op))) return x->expected;
    if (p->heard_at > 0 && (int32_t)(begun - op->seq) > 0) return 0;
    return p->heard_at >= op->active_at || x->expected;
}

const char *ddp__missing_text(ddp__engine *e, const ddp__op *op, char *buf, size_t room)
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

/* The oldest operation in flight. */
static ddp__op *ddp__first_active(ddp__engine *e)
{
    ddp__op *oldest = NULL;

    for (int i = 0; i < DDP__WINDOW + DDP__PAIRED * e->world; i++) {
        const ddp__peer *p = &e->peers[i < DDP__WINDOW ? 0 : (i - DDP__WINDOW) / DDP__PAIRED];
        ddp__op *op = i < DDP__WINDOW ? e->window[i] : p->paired[(i - DDP__WINDOW) % DDP__PAIRED];
        if (op && op->state == DDP__OP_ACTIVE && (!oldest || op->ticket < oldest->ticket))
            oldest = op;
    }
    return oldest;
}

double ddp__beat(const ddp__engine *e)
{
    double beat = 5; /* seconds: often enough to tell before a limit passes who is where */

    if (e->cfg.peer_timeout_s > 0 && e->cfg.peer_timeout_s < beat) beat = e->cfg.peer_timeout_s;
    if (e->cfg.op_timeout_s > 0 && e->cfg.op_timeout_s < beat) beat = e->cfg.op_timeout_s;
    return beat / 5;
}

const char *ddp__silent_text(const ddp__engine *e, const ddp__op *op, double now, char *buf, size_t room)
{
    double longest = 2.5 * ddp__beat(e);

    buf[0] = '\0';
    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        if (r == e->rank || ddp__team_of(e, op).place[r] < 0 || (op->p2p && r != op->m.peer)) continue;
        if (now - p->last_got <= longest) continue;
        longest = now - p->last_got;
        snprintf(buf, room, "; rank %d has been silent for %.1f s", r, longest);
    }
    return buf;
}

static void ddp__note(ddp__engine *e, const ddp__op *op, double now, double waited)
{
    char text[128], who[96], where[64];

    ddp__op_text(e, op, text, sizeof text);
    ddp__missing_text(e, op, who, sizeof who);
    where[0] = '\0';
    for (int r = 0; r < e->world && !op->p2p && !where[0]; r++)
        if (ddp__is_missing(e, op, r) && e->peers[r].heard_at > 0)
            snprintf(where, sizeof where, " (rank %d has begun %lu operations)", r, (unsigned long)e->peers[r].begun);
    if (who[0])
        ddp__log(&e->cfg.log, DDP_LOG_WARN,
                 "rank %d has waited %.0f s in %s, operation %lu, not submitted by %s%s", e->rank,
                 waited, text, (unsigned long)op->seq, who, where);
    else
        ddp__log(&e->cfg.log, DDP_LOG_WARN,
                 "rank %d has waited %.0f s in %s, operation %lu: all ranks have submitted it, "
                 "%lu values are still to send or receive%s",
                 e->rank, waited, text, (unsigned long)op->seq, (unsigned long)op->left,
                 ddp__silent_text(e, op, now, where, sizeof where));
}

void ddp__note_wait(ddp__engine *e, double now, double *again)
{
    ddp__op *op = ddp__first_active(e);
    double since;

    if (!op) return;
    since = ddp__still_since(op);
    if (now - since >= op->note_s) {
        op->note_s *= 2;
        ddp__note(e, op, now, now - since);
    }
    if (since + op->note_s < *again) *again = since + op->note_s;
}
