/* Plain collectives: one message, waited for. */
#include "base/platform.h"
#include "nn/clip.h"
#include "sync/context.h"

ddp_status ddp__blocking(ddp_ctx *d, ddp__verb verb, const ddp__piece *pieces, int count,
                         float scale, int peer, ddp_error *err)
{
    ddp__message m;
    long ticket;

    if (!d->engine) {
        int i;
        for (i = 0; verb == DDP__ALL_REDUCE && scale != 1 && i < count; i++)
            ddp__scale(pieces[i].data, pieces[i].count, scale);
        return DDP_OK;
    }
    memset(&m, 0, sizeof m);
    m.verb = verb;
    m.pieces = pieces;
    m.piece_count = count;
    m.scale = scale;
    m.peer = peer;
    m.step = d->step;
    m.layer = DDP__NO_LAYER;
    m.filler = 1;
    DDP__TRY(ddp__engine_submit(d->engine, &m, &ticket, err));
    return ddp__engine_wait(d->engine, ticket, err);
}

static int ddp__collective(ddp_ctx *d, const char *name, ddp__verb verb, float *x, size_t n,
                           float scale, int peer)
{
    ddp__piece p;

    DDP__ENTER(d);
    if (!x && n) return ddp__ctx_failf(d, DDP_ARG, "%s: the array is NULL", name);
    if (peer < 0 || peer >= d->world)
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d does not exist in a world of %d", name, peer,
                              d->world);
    if ((verb == DDP__SEND || verb == DDP__RECV) && peer == d->rank)
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d cannot exchange with itself", name, peer);
    p.data = x;
    p.count = n;
    if (ddp__blocking(d, verb, &p, 1, scale, peer, &d->host.error))
        return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__collective(d, "ddp_all_reduce", DDP__ALL_REDUCE, x, n, scale, 0);
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

int ddp_barrier(ddp_ctx *d)
{
    float *token;
    int s;

    DDP__ENTER(d);
    /* an empty contribution to each is enough: nobody is done before everybody has come */
    token = (float *)ddp__calloc((size_t)d->world, sizeof *token);
    if (!token) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_barrier: out of memory");
    s = ddp__collective(d, "ddp_barrier", DDP__ALL_GATHER, token, (size_t)d->world, 1, 0);
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
