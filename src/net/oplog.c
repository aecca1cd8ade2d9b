/* Copies what is known of the last operations. What belongs to the comm thread is read by that
 * thread, or when it has let go of everything. */
#include "net/state.h"

void ddp__oplog_free(ddp__oplog *log)
{
    if (log->record) DDP_FREE(log->record);
    if (log->peer) DDP_FREE(log->peer);
    memset(log, 0, sizeof *log);
}

static ddp__op_record *ddp__oplog_add(ddp__oplog *log, const ddp__op_span *span,
                                      ddp__op_stage stage)
{
    ddp__op_record *r = &log->record[log->count++];

    memset(r, 0, sizeof *r);
    r->span = *span;
    r->stage = stage;
    return r;
}

/* Unfinished operations; inner: the caller may read what belongs to the comm thread. */
static void ddp__oplog_unfinished(ddp__engine *e, ddp__oplog *log, int inner)
{
    uint32_t next = inner ? e->next_seq : 0;

    for (long t = e->first; t < e->submitted && log->count < log->room; t++) {
        ddp__op *op = &e->ops[t % e->cfg.queue];
        ddp__op_record *r;
        if (op->done) continue;
        r = ddp__oplog_add(log, &op->span, DDP__STAGE_QUEUED);
        r->left = r->span.size;
        if (!inner) continue;
        if (op->state == DDP__OP_QUEUED && !op->p2p) r->span.seq = next++;
        if (op->state != DDP__OP_ACTIVE) continue;
        r->stage = DDP__STAGE_ACTIVE;
        r->left = (int64_t)(op->left * sizeof(float));
        for (int p = 0; p < e->world && r->missing_count < DDP__OPLOG_MISSING; p++)
            if (ddp__is_missing(e, op, p)) r->missing[r->missing_count++] = p;
    }
}

static void ddp__oplog_peers(ddp__engine *e, ddp__oplog *log)
{
    for (int p = 0; p < e->world; p++) {
        ddp__peer_record *r = &log->peer[p];
        const ddp__peer *peer = &e->peers[p];
        int own = p == e->rank;
        if (!own)
            snprintf(r->name, sizeof r->name, "%s", e->wire->table->peer_name(e->wire, p));
        r->begun = own ? (long)e->next_seq : peer->heard_at > 0 ? (long)peer->begun : -1;
        r->heard_s = own ? 0 : peer->heard_at > 0 ? log->now - peer->heard_at : -1;
        r->got_s = own ? 0 : peer->last_got > 0 ? log->now - peer->last_got : -1;
        r->left = peer->left;
    }
}

/* Under the lock. */
static void ddp__oplog_copy(ddp__engine *e, ddp__oplog *log, int inner)
{
    long unfinished = 0, done, kept;

    for (long t = e->first; t < e->submitted; t++) unfinished += !e->ops[t % e->cfg.queue].done;
    done = e->span_count < DDP__SPANS ? e->span_count : (long)DDP__SPANS;
    kept = log->room - unfinished;
    if (kept > done) kept = done;
    if (kept < 0) kept = 0;
    log->now = ddp_now();
    log->error = e->error;
    for (long s = e->span_count - kept; s < e->span_count; s++)
        (void)ddp__oplog_add(log, &e->spans[s % DDP__SPANS], DDP__STAGE_DONE);
    ddp__oplog_unfinished(e, log, inner);
    log->dropped = e->span_count + unfinished - log->count;
    if (inner && e->world > 1) ddp__oplog_peers(e, log);
    log->served = 1;
}

void ddp__oplog_serve(ddp__engine *e)
{
    ddp__oplog_copy(e, e->wanted, 1);
    e->wanted = NULL;
    pthread_cond_broadcast(&e->changed);
}

static int ddp__oplog_order(const void *a, const void *b)
{
    const ddp__op_record *p = (const ddp__op_record *)a, *q = (const ddp__op_record *)b;

    if (p->span.submitted != q->span.submitted)
        return p->span.submitted < q->span.submitted ? -1 : 1;
    return (p->span.seq > q->span.seq) - (p->span.seq < q->span.seq);
}

ddp_status ddp__engine_oplog(ddp__engine *e, ddp__oplog *out, ddp_error *err)
{
    double until = ddp_now() + 1;

    memset(out, 0, sizeof *out);
    out->room = DDP__OPLOG;
    out->record = (ddp__op_record *)ddp__calloc((size_t)out->room, sizeof *out->record);
    out->peer = (ddp__peer_record *)ddp__calloc((size_t)e->world, sizeof *out->peer);
    if (!out->record || !out->peer)
        return ddp__fail(err, DDP_MEMORY, "out of memory for the log of %d operations", out->room);
    for (int p = 0; p < e->world; p++) {
        ddp__peer_record *r = &out->peer[p];
        r->begun = -1;
        r->heard_s = r->got_s = -1;
    }
    pthread_mutex_lock(&e->lock);
    while (e->world > 1 && !e->quiet && !out->served) {
        if (!e->wanted) { /* else somebody else's turn comes first */
            e->wanted = out;
            ddp__notify(e);
        }
        if (ddp__cond_wait_until(&e->changed, &e->lock, until) == ETIMEDOUT) break;
    }
    if (e->wanted == out) e->wanted = NULL;
    if (!out->served) ddp__oplog_copy(e, out, e->world == 1 || e->quiet);
    pthread_mutex_unlock(&e->lock);
    qsort(out->record, (size_t)out->count, sizeof *out->record, ddp__oplog_order);
    return DDP_OK;
}
