/* Writes the dump of one rank as JSON lines: the run first, then its last operations. */
#include "comm/state.h"
#include "context/context.h"

double ddp__wall(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void ddp__dump_time(ddp__text *t, const char *key, double epoch, double at)
{
    if (at >= 0)
        ddp__text_addf(t, ",\"%s\":%.6f", key, epoch + at);
    else
        ddp__text_addf(t, ",\"%s\":null", key);
}

static void ddp__dump_peers(ddp__text *t, const ddp_ctx *d, const ddp__oplog *log)
{
    int listed = 0;

    ddp__text_addf(t, ",\"peers\":[");
    /* a joining worker has the world before it has an engine */
    for (int r = 0; log->peer && r < d->world; r++) {
        const ddp__peer_record *p = &log->peer[r];
        if (r == d->rank || !p->name[0]) continue;
        ddp__text_addf(t, "%s{\"rank\":%d,\"address\":", listed++ ? "," : "", r);
        ddp__json_string(t, p->name);
        if (p->begun >= 0) ddp__text_addf(t, ",\"begun\":%ld,\"told_s\":%.3f", p->begun, p->heard_s);
        if (p->got_s >= 0) ddp__text_addf(t, ",\"silent_s\":%.3f", p->got_s);
        ddp__text_addf(t, ",\"left\":%s}", p->left ? "true" : "false");
    }
    ddp__text_addf(t, "]");
}

static void ddp__dump_head(ddp__text *t, const ddp_ctx *d, const ddp__oplog *log, const ddp_error *why,
                           double epoch)
{
    char host[256] = "";

    (void)gethostname(host, sizeof host - 1);
    ddp__text_addf(t, "{\"event\":\"dump\",\"version\":\"%s\",\"rank\":%d,\"world\":%d,\"host\":",
                   DDP_VERSION_STRING, d->rank, d->world);
    ddp__json_string(t, host);
    ddp__text_addf(t, ",\"run_id\":");
    ddp__json_string(t, d->cfg.run_id);
    ddp__text_addf(t, ",\"pid\":%ld,\"strategy\":", (long)getpid());
    ddp__json_string(t, d->ops.name);
    ddp__dump_time(t, "time", epoch, log->now);
    ddp__text_addf(t, ",\"error\":");
    if (why->code != DDP_OK) {
        ddp__text_addf(t, "{\"code\":%d,\"text\":", (int)why->code);
        ddp__json_string(t, why->msg);
        ddp__text_addf(t, "}");
    } else {
        ddp__text_addf(t, "null");
    }
    ddp__dump_peers(t, d, log);
    ddp__text_addf(t, ",\"operations\":%d,\"dropped\":%ld}\n", log->count, log->dropped);
}

static void ddp__dump_operation(ddp__text *t, const ddp_ctx *d, const ddp__op_record *r, double epoch)
{
    static const char *const stage[] = {"queued", "active", "done"};
    const ddp__op_span *s = &r->span;
    int p2p = s->verb == DDP_SEND || s->verb == DDP_RECEIVE;

    ddp__text_addf(t, "{\"event\":\"operation\",\"sequence\":%lu,\"verb\":\"%s\"", (unsigned long)s->seq,
                   ddp__verb_name((int)s->verb));
    if (p2p || s->verb == DDP_BROADCAST) ddp__text_addf(t, ",\"%s\":%d", p2p ? "peer" : "root", s->peer);
    ddp__text_addf(t, ",\"layer\":");
    if (s->layer >= 0 && s->layer < d->layers)
        ddp__json_string(t, d->unit[s->layer].name);
    else
        ddp__json_string(t, s->layer == DDP__BARRIER ? "barrier" : NULL);
    if (s->layer < DDP__BARRIER) ddp__text_addf(t, ",\"values\":\"%s\"", ddp__no_layer_text(s->layer));
    ddp__text_addf(t, ",\"step\":%ld,\"bytes\":%lld,\"sent\":%lld,\"left\":%lld", s->step, (long long)s->size,
                   (long long)s->bytes, (long long)r->left);
    ddp__text_addf(t, ",\"algorithm\":\"%s\"", ddp__algorithm_name(s->algorithm));
    ddp__dump_time(t, "submitted", epoch, s->submitted);
    ddp__dump_time(t, "begin", epoch, s->begin);
    ddp__dump_time(t, "end", epoch, s->end);
    ddp__text_addf(t, ",\"state\":\"%s\",\"missing\":[", stage[r->progress]);
    for (int i = 0; i < r->missing_count; i++) ddp__text_addf(t, "%s%d", i ? "," : "", r->missing[i]);
    ddp__text_addf(t, "]}\n");
}

/* Returns the path with %r replaced by the rank, owned by the caller, or NULL if memory is short. */
static char *ddp__rank_path(const char *path, int rank)
{
    ddp__text t = DDP__ZEROS;

    for (; *path; path++)
        if (path[0] == '%' && path[1] == 'r') {
            ddp__text_addf(&t, "%d", rank);
            path++;
        } else
            ddp__text_add(&t, path, 1);
    if (t.failed) ddp__text_free(&t);
    return t.data;
}

static ddp_status ddp__dump_to(ddp_ctx *d, const char *path, ddp_error *err)
{
    const double epoch = ddp__wall() - ddp_now();
    ddp__oplog log = DDP__ZEROS;
    ddp__text t = DDP__ZEROS;
    ddp_status s = DDP_OK;
    ddp__engine *engine;

    /* two threads of one process would write the same temporary file */
    while (ddp__atomic_swap(&d->dumping, 1)) ddp__sleep_until(ddp_now() + 0.01);
    ddp__engine_hold(d);
    engine = d->engine;
    if (engine)
        s = ddp__engine_oplog(engine, &log, err);
    else
        log.now = ddp_now();
    ddp__engine_release(d);
    if (s == DDP_OK) {
        ddp__dump_head(&t, d, &log, engine ? &log.error : &d->host.error, epoch);
        for (int i = 0; i < log.count; i++) ddp__dump_operation(&t, d, &log.record[i], epoch);
        s = t.failed ? ddp__fail(err, DDP_MEMORY, "out of memory for the dump of rank %d", d->rank)
                     : ddp__file_write(path, t.data, t.size, err);
    }
    ddp__atomic_store(&d->dumping, 0);
    ddp__text_free(&t);
    ddp__oplog_free(&log);
    return s;
}

ddp_status ddp_dump(ddp_ctx *d, const char *path, ddp_error *err)
{
    char *own;
    ddp_status s;

    if (!d || !path || !*path)
        return ddp__fail(err, DDP_ARG, "ddp_dump: the context is NULL, or the file has no name");
    DDP__TRY(ddp__host_check(&d->host, err));
    own = ddp__rank_path(path, d->rank);
    if (!own) return ddp__fail(err, DDP_MEMORY, "out of memory for the dump of rank %d", d->rank);
    s = ddp__dump_to(d, own, err);
    DDP_FREE(own);
    return s;
}

void ddp__dump_failure(ddp_ctx *d)
{
    ddp_error *e = &d->host.error, why;
    size_t n = strlen(e->msg);
    char *own;

    /* no dump if the run was ended on request */
    if (!d->cfg.debug.dump_path || d->dumped || e->code == DDP_ABORTED) return;
    d->dumped = 1;
    own = ddp__rank_path(d->cfg.debug.dump_path, d->rank);
    if (!own) return;
    if (ddp__dump_to(d, own, &why) == DDP_OK)
        snprintf(e->msg + n, sizeof e->msg - n, "; the last operations are in %s", own);
    else
        ddp__log(&d->host.log, DDP_LOG_WARN, "cannot write the dump: %s", why.msg);
    DDP_FREE(own);
}
