/* The record of operations: spans, counters, and a copy of the last operations for the post-mortem. Data of
 * the comm thread are read by that thread only, or by others once it has stopped using them. */
#include "comm/state.h"

void ddp__publish(ddp__engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->finished) {
        ddp__op *op = e->finished;
        e->finished = op->next_done;
        e->spans[e->span_count++ % e->span_room] = op->span;
        e->stats.operations++;
        if (op->m.verb == DDP_ALL_REDUCE) e->stats.algorithm = op->span.algorithm;
        op->done = 1;
    }
    while (e->first < e->submitted && e->ops[e->first % e->cfg.queue].done) {
        e->strips_tail = e->ops[e->first % e->cfg.queue].strips_end;
        e->first++;
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

int ddp__engine_spans(ddp__engine *e, double t0, double t1, ddp__op_span *out, int room)
{
    int n = 0;
    long from;

    ddp__catch_up(e);
    pthread_mutex_lock(&e->lock);
    from = e->span_count > e->span_room ? e->span_count - e->span_room : 0;
    for (; from < e->span_count && n < room; from++) {
        const ddp__op_span *s = &e->spans[from % e->span_room];
        if (s->end >= t0 && s->begin <= t1) out[n++] = *s;
    }
    for (long t = e->first; t < e->submitted && n < room; t++) {
        const ddp__op *op = &e->ops[t % e->cfg.queue];
        if (!op->done && op->span.begin >= 0 && op->span.begin <= t1) out[n++] = op->span;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

void ddp__engine_stats(ddp__engine *e, ddp__net_stats *out)
{
    ddp__catch_up(e);
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    if (e->running > 0) out->busy_s += ddp_now() - e->running_since;
    pthread_mutex_unlock(&e->lock);
    out->bytes_sent = ddp__atomic_load(&e->bytes_sent);
    out->bytes_received = ddp__atomic_load(&e->bytes_received);
    for (size_t i = 0; i < sizeof out->sent_as / sizeof *out->sent_as; i++)
        out->payload_sent += out->sent_as[i] = ddp__atomic_load(&e->sent_as[i]);
    out->cpu_s = e->wire->carrier ? 0 : ddp__thread_cpu_s(e->thread);
}

void ddp__engine_epoch(ddp__engine *e, ddp__epoch_info *out)
{
    if (e->cfg.min_world > 0) ddp__catch_up(e);
    pthread_mutex_lock(&e->lock);
    *out = e->epoch;
    pthread_mutex_unlock(&e->lock);
}

/* ---- the post-mortem ---- */

void ddp__oplog_free(ddp__oplog *log)
{
    DDP_FREE(log->record);
    DDP_FREE(log->peer);
    memset(log, 0, sizeof *log);
}

static ddp__op_record *ddp__oplog_add(ddp__oplog *log, const ddp__op_span *span, ddp__op_progress progress)
{
    ddp__op_record *r = &log->record[log->count++];

    memset(r, 0, sizeof *r);
    r->span = *span;
    r->progress = progress;
    return r;
}

/* Adds unfinished operations. inner: 1 if the caller may read data of the comm thread. */
static void ddp__oplog_unfinished(ddp__engine *e, ddp__oplog *log, int inner)
{
    uint32_t next = inner ? e->next_seq : 0;

    for (long t = e->first; t < e->submitted && log->count < DDP__OPLOG; t++) {
        ddp__op *op = &e->ops[t % e->cfg.queue];
        ddp__op_record *r;
        if (op->done) continue;
        r = ddp__oplog_add(log, &op->span, DDP__IS_QUEUED);
        r->left = r->span.size;
        if (!inner) continue;
        if (op->state == DDP__OP_QUEUED && !op->p2p) r->span.seq = next++;
        if (op->state != DDP__OP_ACTIVE) continue;
        r->progress = DDP__IS_ACTIVE;
        r->left = (int64_t)(op->left * op->unit);
        for (int p = 0; p < e->world && r->missing_count < DDP__OPLOG_MISSING; p++)
            if (ddp__is_missing(e, op, p)) r->missing[r->missing_count++] = p;
    }
}

static void ddp__oplog_peers(ddp__engine *e, ddp__oplog *log, int inner)
{
    for (int p = 0; p < e->world; p++) {
        ddp__peer_record *r = &log->peer[p];
        const ddp__peer *peer = &e->peers[p];
        const int own = inner && p == e->rank, heard = inner && peer->heard_at > 0;
        r->begun = own ? (long)e->next_seq : heard ? (long)peer->begun : -1;
        r->heard_s = own ? 0 : heard ? log->now - peer->heard_at : -1;
        r->got_s = own ? 0 : inner && peer->last_got > 0 ? log->now - peer->last_got : -1;
        r->left = inner && peer->left;
        if (inner && !own) snprintf(r->name, sizeof r->name, "%s", e->wire->names[p]);
    }
}

/* Under the lock. */
static void ddp__oplog_copy(ddp__engine *e, ddp__oplog *log, int inner)
{
    long unfinished = 0, kept = e->span_count < e->span_room ? e->span_count : e->span_room;

    for (long t = e->first; t < e->submitted; t++) unfinished += !e->ops[t % e->cfg.queue].done;
    if (kept > DDP__OPLOG - unfinished) kept = unfinished < DDP__OPLOG ? DDP__OPLOG - unfinished : 0;
    log->now = ddp_now();
    log->error = e->error;
    for (long s = e->span_count - kept; s < e->span_count; s++)
        (void)ddp__oplog_add(log, &e->spans[s % e->span_room], DDP__IS_DONE);
    ddp__oplog_unfinished(e, log, inner);
    log->dropped = e->span_count + unfinished - log->count;
    ddp__oplog_peers(e, log, inner);
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

    if (p->span.submitted != q->span.submitted) return p->span.submitted < q->span.submitted ? -1 : 1;
    return (p->span.seq > q->span.seq) - (p->span.seq < q->span.seq);
}

ddp_status ddp__engine_oplog(ddp__engine *e, ddp__oplog *out, ddp_error *err)
{
    double until = ddp_now() + 1;

    memset(out, 0, sizeof *out);
    out->record = (ddp__op_record *)ddp__calloc(DDP__OPLOG, sizeof *out->record);
    out->peer = (ddp__peer_record *)ddp__calloc((size_t)e->world, sizeof *out->peer);
    if (!out->record || !out->peer)
        return ddp__fail(err, DDP_MEMORY, "out of memory for the log of %d operations", (int)DDP__OPLOG);
    pthread_mutex_lock(&e->lock);
    while (!e->quiet && !out->served && !e->wire->carrier) {
        if (!e->wanted) { /* else another caller's request comes first */
            e->wanted = out;
            ddp__notify(e);
        }
        if (ddp__cond_wait_until(&e->changed, &e->lock, until) == ETIMEDOUT) break;
    }
    if (e->wanted == out) e->wanted = NULL;
    if (!out->served) ddp__oplog_copy(e, out, e->quiet && !e->wire->carrier);
    pthread_mutex_unlock(&e->lock);
    qsort(out->record, (size_t)out->count, sizeof *out->record, ddp__oplog_order);
    return DDP_OK;
}
