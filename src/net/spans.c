/* The record of what travelled when, and the counters. */
#include "net/state.h"

void ddp__span_finish(ddp__engine *e, const ddp__op *op)
{
    ddp__op_span *s = &e->spans[e->span_count++ % DDP__SPANS];

    *s = op->span;
    e->stats.operations++;
    if (op->m.verb == DDP__ALL_REDUCE) e->stats.algorithm = op->span.algorithm;
}

int ddp__engine_spans(ddp__engine *e, double t0, double t1, ddp__op_span *out, int room)
{
    int n = 0;
    long from;

    pthread_mutex_lock(&e->lock);
    from = e->span_count > DDP__SPANS ? e->span_count - DDP__SPANS : 0;
    for (; from < e->span_count && n < room; from++) {
        const ddp__op_span *s = &e->spans[from % DDP__SPANS];
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
    out->bytes_sent = ddp__atomic_load(&e->stats.bytes_sent);
    out->bytes_received = ddp__atomic_load(&e->stats.bytes_received);
    out->payload_sent = ddp__atomic_load(&e->stats.payload_sent);
    out->cpu_s = e->world > 1 ? ddp__thread_cpu_s(e->thread) : 0;
    pthread_mutex_lock(&e->lock);
    out->operations = e->stats.operations;
    out->busy_s = e->stats.busy_s + (e->running > 0 ? ddp_now() - e->running_since : 0);
    out->staging_bytes = e->stats.staging_bytes;
    out->delay_bytes = e->stats.delay_bytes;
    out->elastic_bytes = e->stats.elastic_bytes;
    out->algorithm = e->stats.algorithm;
    pthread_mutex_unlock(&e->lock);
}
