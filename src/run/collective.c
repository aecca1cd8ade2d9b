/* Plain collectives: one message, waited for. */
#include "base/platform.h"
#include "run/context.h"

static int ddp__exchange_of(ddp_ctx *d, const char *name, const ddp_message *m)
{
    static const char *const format[] = {"float32", "bfloat16", "int8 blocks"};
    const int any = m->peer == DDP_ANY && (m->verb == DDP_RECEIVE || m->verb == DDP_SERVE);

    if (ddp__message_looks(d, name, m, &d->host.error)) return ddp__ctx_fail(d, &d->host.error);
    if (!any && (m->peer < 0 || m->peer >= d->world))
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d does not exist in a world of %d", name, m->peer, d->world);
    if (m->verb >= DDP_SEND && m->peer == d->rank)
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d cannot exchange with itself", name, m->peer);
    if (m->coding && m->coding != ddp__wire_coding(d->cfg.wire))
        return ddp__ctx_failf(d, DDP_ARG, "%s: the context was opened for %s; open it with wire = DDP_WIRE_%s or "
                              "DREAMDDP_WIRE=%s", name, format[(int)ddp__wire_coding(d->cfg.wire)],
                              m->coding == DDP_AS_INT8 ? "INT8" : "BF16", m->coding == DDP_AS_INT8 ? "int8" : "bf16");
    if (ddp__run(d, m, 0, &d->host.error)) return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

int ddp_exchange(ddp_ctx *d, const ddp_message *m)
{
    DDP__ENTER(d);
    if (!m) return ddp__ctx_failf(d, DDP_ARG, "ddp_exchange: the message is NULL");
    return ddp__exchange_of(d, "ddp_exchange", m);
}

static int ddp__collective(ddp_ctx *d, const char *name, ddp_verb verb, float *x, size_t n, float scale, int peer)
{
    ddp_message m;
    ddp_piece p;

    DDP__ENTER(d);
    if (scale == 0) return ddp__ctx_failf(d, DDP_ARG, "%s: scale 0; 1 leaves the sum as it is", name);
    p.data = x;
    p.count = n;
    memset(&m, 0, sizeof m);
    m.verb = verb;
    m.from = &p;
    m.from_count = 1;
    m.scale = scale;
    m.peer = peer;
    m.step = d->step;
    m.layer = DDP_NO_LAYER;
    m.filler = 1;
    return ddp__exchange_of(d, name, &m);
}

int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__collective(d, "ddp_all_reduce", DDP_ALL_REDUCE, x, n, scale, 0);
}

int ddp_all_mean(ddp_ctx *d, float *x, size_t n)
{
    ddp_message m;
    ddp_piece p;

    DDP__ENTER(d);
    p.data = x;
    p.count = n;
    memset(&m, 0, sizeof m);
    m.verb = DDP_ALL_REDUCE;
    m.from = &p;
    m.from_count = 1;
    m.mean = 1;
    m.step = d->step;
    m.layer = DDP_NO_LAYER;
    m.filler = 1;
    return ddp__exchange_of(d, "ddp_all_mean", &m);
}

int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root)
{
    return ddp__collective(d, "ddp_broadcast", DDP_BROADCAST, x, n, 1, root);
}

int ddp_all_gather(ddp_ctx *d, float *x, size_t n)
{
    return ddp__collective(d, "ddp_all_gather", DDP_ALL_GATHER, x, d ? n * (size_t)d->world : n, 1, 0);
}

int ddp_reduce_scatter(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__collective(d, "ddp_reduce_scatter", DDP_REDUCE_SCATTER, x, d ? n * (size_t)d->world : n, scale, 0);
}

int ddp_send(ddp_ctx *d, float *x, size_t n, int to) { return ddp__collective(d, "ddp_send", DDP_SEND, x, n, 1, to); }

int ddp_recv(ddp_ctx *d, float *x, size_t n, int from)
{
    return ddp__collective(d, "ddp_recv", DDP_RECEIVE, x, n, 1, from);
}

int ddp_barrier(ddp_ctx *d)
{
    unsigned char *token;
    ddp_message m;
    ddp_piece p;
    int s;

    DDP__ENTER(d);
    /* an empty contribution to each is enough: nobody is done before everybody has come */
    token = (unsigned char *)ddp__calloc((size_t)d->world, 1);
    if (!token) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_barrier: out of memory");
    p.bytes = token;
    p.count = (size_t)d->world;
    ddp__own_word(d, &m, DDP_ALL_GATHER, &p);
    m.layer = DDP__BARRIER;
    m.priority = 0;
    s = ddp__exchange_of(d, "ddp_barrier", &m);
    DDP_FREE(token);
    return s;
}
