/* Plain collectives: one message, waited for. */
#include "base/platform.h"
#include "nn/clip.h"
#include "sync/context.h"
#include "sync/device.h"

static ddp_status ddp__run_message(ddp_ctx *d, const ddp__message *m, ddp_error *err)
{
    ddp__engine *e = ddp__engine_of(d, m->link);

    if (!e) {
        int sums = m->verb == DDP__ALL_REDUCE || m->verb == DDP__REDUCE_SCATTER, i;
        for (i = 0; sums && m->scale != 1 && i < m->piece_count; i++)
            ddp__scale(m->pieces[i].data, m->pieces[i].count, m->scale);
        return DDP_OK;
    }
    DDP__TRY(ddp__post_flush(d, err));
    return ddp__engine_run(e, m, err);
}

void ddp__message_fill(const ddp_ctx *d, ddp__message *m, ddp__verb verb,
                       const ddp__piece *pieces, int count, float scale, int peer)
{
    memset(m, 0, sizeof *m);
    m->verb = verb;
    m->pieces = pieces;
    m->piece_count = count;
    m->mean = scale == DDP__MEAN;
    m->scale = m->mean ? 1 : scale;
    m->peer = peer;
    m->step = d->step;
    m->layer = DDP__NO_LAYER;
    m->filler = 1;
}

ddp_status ddp__blocking_on(ddp_ctx *d, int link, int group, ddp__verb verb,
                            const ddp__piece *pieces, int count, float scale, int peer,
                            ddp_error *err)
{
    ddp__message m;

    ddp__message_fill(d, &m, verb, pieces, count, scale, peer);
    m.link = link;
    m.group = group;
    return ddp__run_message(d, &m, err);
}

ddp_status ddp__blocking(ddp_ctx *d, ddp__verb verb, const ddp__piece *pieces, int count,
                         float scale, int peer, ddp_error *err)
{
    return ddp__blocking_on(d, 0, 0, verb, pieces, count, scale, peer, err);
}

/* A message that lacks only its memory. */
static int ddp__collective_of(ddp_ctx *d, const char *name, ddp__message *m, float *x, size_t n)
{
    ddp__piece p;

    if (!x && n) return ddp__ctx_failf(d, DDP_ARG, "%s: the array is NULL", name);
    if (m->peer < 0 || m->peer >= d->world)
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d does not exist in a world of %d", name,
                              m->peer, d->world);
    if ((m->verb == DDP__SEND || m->verb == DDP__RECV) && m->peer == d->rank)
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d cannot exchange with itself", name, m->peer);
    if (m->link < 0 || m->link > 1 || (m->link == 1 && d->engine && ddp_links(d) < 2))
        return ddp__ctx_failf(d, DDP_ARG,
                              "%s: this context has no link %d; a second one is opened where net2 "
                              "or addr2 is set, or nccl is 2",
                              name, m->link);
    p.data = x;
    p.count = n;
    m->pieces = &p;
    m->piece_count = 1;
    if (ddp__run_message(d, m, &d->host.error)) return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

static int ddp__collective_on(ddp_ctx *d, int link, const char *name, ddp__verb verb, float *x,
                              size_t n, float scale, int peer)
{
    ddp__message m;

    DDP__ENTER(d);
    ddp__message_fill(d, &m, verb, NULL, 0, scale, peer);
    m.link = link;
    return ddp__collective_of(d, name, &m, x, n);
}

static int ddp__collective(ddp_ctx *d, const char *name, ddp__verb verb, float *x, size_t n,
                           float scale, int peer)
{
    return ddp__collective_on(d, 0, name, verb, x, n, scale, peer);
}

int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__collective(d, "ddp_all_reduce", DDP__ALL_REDUCE, x, n, scale, 0);
}

static int ddp__coded_reduce(ddp_ctx *d, const char *name, ddp_wire wire, float *x, size_t n,
                             float scale)
{
    static const char *const format[] = {"float32", "float32", "bfloat16", "int8 blocks"};
    ddp__message m;

    DDP__ENTER(d);
    if (d->cfg.wire != wire)
        return ddp__ctx_failf(d, DDP_ARG,
                              "%s: the context was opened for %s; open it with wire = DDP_WIRE_%s "
                              "or DREAMDDP_WIRE=%s",
                              name, format[(int)d->cfg.wire],
                              wire == DDP_WIRE_BF16 ? "BF16" : "INT8",
                              wire == DDP_WIRE_BF16 ? "bf16" : "int8");
    ddp__message_fill(d, &m, DDP__ALL_REDUCE, NULL, 0, scale, 0);
    m.coding = ddp__wire_coding(wire);
    return ddp__collective_of(d, name, &m, x, n);
}

int ddp_all_reduce_bf16(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__coded_reduce(d, "ddp_all_reduce_bf16", DDP_WIRE_BF16, x, n, scale);
}

int ddp_all_reduce_int8(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__coded_reduce(d, "ddp_all_reduce_int8", DDP_WIRE_INT8, x, n, scale);
}

int ddp_all_mean(ddp_ctx *d, float *x, size_t n)
{
    return ddp__collective(d, "ddp_all_mean", DDP__ALL_REDUCE, x, n, DDP__MEAN, 0);
}

int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root)
{
    return ddp__collective(d, "ddp_broadcast", DDP__BROADCAST, x, n, 1, root);
}

int ddp_all_gather(ddp_ctx *d, float *x, size_t n)
{
    return ddp__collective(d, "ddp_all_gather", DDP__ALL_GATHER, x, d ? n * (size_t)d->world : n, 1,
                           0);
}

int ddp_reduce_scatter(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__collective(d, "ddp_reduce_scatter", DDP__REDUCE_SCATTER, x,
                           d ? n * (size_t)d->world : n, scale, 0);
}

int ddp_barrier(ddp_ctx *d)
{
    ddp__message m;
    float *token;
    int s;

    DDP__ENTER(d);
    /* an empty contribution to each is enough: nobody is done before everybody has come */
    token = (float *)ddp__calloc((size_t)d->world, sizeof *token);
    if (!token) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_barrier: out of memory");
    ddp__message_fill(d, &m, DDP__ALL_GATHER, NULL, 0, 1, 0);
    m.layer = DDP__BARRIER;
    s = ddp__collective_of(d, "ddp_barrier", &m, token, (size_t)d->world);
    DDP_FREE(token);
    return s;
}

int ddp_send(ddp_ctx *d, float *x, size_t n, int to)
{
    return ddp__collective(d, "ddp_send", DDP__SEND, x, n, 1, to);
}
int ddp_recv(ddp_ctx *d, float *x, size_t n, int from)
{
    return ddp__collective(d, "ddp_recv", DDP__RECV, x, n, 1, from);
}

/* ---- over a link of choice ---- */

int ddp_all_reduce_on(ddp_ctx *d, int link, float *x, size_t n, float scale)
{
    return ddp__collective_on(d, link, "ddp_all_reduce_on", DDP__ALL_REDUCE, x, n, scale, 0);
}

int ddp_broadcast_on(ddp_ctx *d, int link, float *x, size_t n, int root)
{
    return ddp__collective_on(d, link, "ddp_broadcast_on", DDP__BROADCAST, x, n, 1, root);
}

int ddp_all_gather_on(ddp_ctx *d, int link, float *x, size_t n)
{
    return ddp__collective_on(d, link, "ddp_all_gather_on", DDP__ALL_GATHER, x,
                              d ? n * (size_t)d->world : n, 1, 0);
}

int ddp_reduce_scatter_on(ddp_ctx *d, int link, float *x, size_t n, float scale)
{
    return ddp__collective_on(d, link, "ddp_reduce_scatter_on", DDP__REDUCE_SCATTER, x,
                              d ? n * (size_t)d->world : n, scale, 0);
}
