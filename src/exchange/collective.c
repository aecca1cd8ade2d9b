/* Implements blocking messages: plain collectives, and the library's control messages. */
#include "comm/frame.h"
#include "config/names.h"
#include "context/context.h"
#include "exchange/collective.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "exchange/transport.h"
#include "exchange/update.h"

ddp_status ddp__message_looks(const ddp_ctx *d, const char *who, const ddp_message *m, ddp_error *err)
{
    const ddp_piece *list[2] = {m->from, m->to};
    const int count[2] = {m->from_count, m->to ? m->to_count : 0};

    if (m->verb < DDP_ALL_REDUCE || m->verb > DDP_PULL || m->verb == DDP__ASK)
        return ddp__fail(err, DDP_ARG, "%s: unknown verb %d", who, (int)m->verb);
    for (int k = 0; k < 2; k++) {
        if (count[k] < 0 || (count[k] > 0 && !list[k]))
            return ddp__fail(err, DDP_ARG, "%s: a list of %d arrays is NULL", who, count[k]);
        for (int i = 0; i < count[k]; i++)
            if (!list[k][i].data && list[k][i].count)
                return ddp__fail(err, DDP_ARG, "%s: the array is NULL", who);
    }
    if (m->here && ((m->here != 1 && m->here != 2) || !count[0] || count[1]))
        return ddp__fail(err, DDP_ARG,
                         "%s: here is %d; it must be 0, or 1 for the first array of a message in place, or 2 "
                         "for all of its arrays",
                         who, (int)m->here);
    if (m->link < 0 || m->link > 1 || (m->link == 1 && ddp__engine_of(d, 0) && ddp_links(d) < 2))
        return ddp__fail(
            err, DDP_ARG,
            "%s: this context has no link %d; set net2 or addr2, or nccl to 2, to open a second link", who,
            m->link);
    return DDP_OK;
}

/* ---- blocking messages ---- */

ddp_status ddp__post_flush(ddp_ctx *d, ddp_error *err)
{
    return d->exchange->over ? d->exchange->over->flush(d, err) : DDP_OK;
}

ddp_status ddp__run(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err)
{
    if (!ddp__engine_of(d, 0)) return ddp__post_alone(d, m, there, err);
    if (there && d->exchange->over) return d->exchange->over->run(d, m, err);
    DDP__TRY(ddp__post_flush(d, err));
    return ddp__engine_run(ddp__engine_of(d, m->link), m, err);
}

ddp_message ddp__message(const ddp_ctx *d, ddp_verb verb, const ddp_piece *list, int n, int layer)
{
    ddp_message m = DDP__ZEROS;

    m.verb = verb;
    m.from = list;
    m.from_count = n;
    m.step = ddp_step(d);
    m.layer = layer;
    m.filler = 1;
    return m;
}

ddp_message ddp__own_word(const ddp_ctx *d, ddp_piece *p, ddp_verb verb, int group, void *bytes, size_t size)
{
    ddp_message m = ddp__message(d, verb, p, 1, DDP__OWN_WORD);

    p->bytes = bytes;
    p->count = size;
    m.bytes = 1;
    m.group = group;
    if (verb == DDP_BROADCAST) m.peer = ddp__group_root(d, group);
    m.priority = ddp__layers(d);
    return m;
}

ddp_status ddp__tell(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err)
{
    ddp_piece p;
    const ddp_message m = ddp__own_word(d, &p, DDP_BROADCAST, group, bytes, size);

    return ddp__run(d, &m, 0, err);
}

ddp_status ddp__all_come(ddp_ctx *d, int group, ddp_error *err)
{
    float word = 0;
    ddp_piece p;
    ddp_message m = ddp__own_word(d, &p, DDP_ALL_REDUCE, group, &word, 1);

    m.bytes = 0;
    return ddp__run(d, &m, 0, err);
}

ddp_status ddp__gather_words(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err)
{
    const int members = ddp__engine_group_size(ddp__engine_of(d, 0), group);
    ddp_piece p;
    const ddp_message m = ddp__own_word(d, &p, DDP_ALL_GATHER, group, bytes, size * (size_t)members);

    return ddp__run(d, &m, 0, err);
}

/* ---- plain collectives ---- */

int ddp__plain(ddp_ctx *d, const char *name, const ddp_message *m)
{
    const int any = m->peer == DDP_ANY && (m->verb == DDP_RECEIVE || m->verb == DDP_SERVE);

    if (ddp__message_looks(d, name, m, ddp__error(d))) return ddp__ctx_fail(d, ddp__error(d));
    if (!any && (m->peer < 0 || m->peer >= ddp_world(d)))
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d does not exist in a world of %d", name, m->peer,
                              ddp_world(d));
    if (m->verb >= DDP_SEND && m->peer == ddp_rank(d))
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d cannot exchange with itself", name, m->peer);
    if (m->coding && m->coding != ddp__wire_coding(ddp__cfg(d)->wire))
        return ddp__ctx_failf(d, DDP_ARG,
                              "%s: the context was opened for %s; open it with wire = DDP_WIRE_%s or "
                              "DREAMDDP_WIRE=%s",
                              name, ddp__coding_name((int)ddp__wire_coding(ddp__cfg(d)->wire)),
                              m->coding == DDP_AS_BFLOAT ? "BF16"
                              : m->coding == DDP_AS_INT8 ? "INT8"
                              : m->coding == DDP_AS_INT4 ? "INT4"
                                                         : "E3M0",
                              ddp_wire_name((ddp_wire)((int)m->coding + 1)));
    if (ddp__is_in_step(d, name)) return ddp__ctx_fail(d, ddp__error(d));
    if (ddp__hub_of(d) && !ddp__started(d) && m->verb < DDP_SEND) /* before the session starts, the message
                                                                     would include the servers */
        return ddp__ctx_failf(d, DDP_USAGE,
                              "%s: with servers and min_world, collectives are possible only after "
                              "ddp_set_optimizer or the first step",
                              name);
    return ddp__run(d, m, 0, ddp__error(d)) ? ddp__ctx_fail(d, ddp__error(d)) : 0;
}

int ddp_exchange(ddp_ctx *d, const ddp_message *m)
{
    DDP__ENTER(d);
    if (!m) return ddp__ctx_failf(d, DDP_ARG, "ddp_exchange: the message is NULL");
    return ddp__plain(d, "ddp_exchange", m);
}

/* Runs a collective with n floats per block. Sums are multiplied by scale. */
static int ddp__collective(ddp_ctx *d, const char *name, ddp_verb verb, float *x, size_t n, float scale,
                           int peer)
{
    const int blocks =
        d && (verb == DDP_ALL_GATHER || verb == DDP_REDUCE_SCATTER) ? ddp_world(d) - ddp_servers(d) : 1;
    const ddp_piece p = {{x}, n * (size_t)blocks};
    ddp_message m;

    DDP__ENTER(d);
    ddp__call_is(d, name);
    if (scale == 0)
        return ddp__ctx_failf(d, DDP_ARG, "%s: scale must not be 0; use 1 to leave the sum unchanged", name);
    m = ddp__message(d, verb, &p, 1, DDP_NO_LAYER);
    if (verb < DDP_SEND) m.group = d->exchange->computing;
    m.scale = scale;
    m.peer = peer;
    return ddp__plain(d, name, &m);
}

int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__collective(d, "ddp_all_reduce", DDP_ALL_REDUCE, x, n, scale, 0);
}

int ddp_all_mean(ddp_ctx *d, float *x, size_t n)
{
    const ddp_piece p = {{x}, n};
    ddp_message m;

    DDP__ENTER(d);
    m = ddp__message(d, DDP_ALL_REDUCE, &p, 1, DDP_NO_LAYER);
    m.group = d->exchange->computing;
    m.mean = 1;
    m.scale = 0;
    return ddp__plain(d, "ddp_all_mean", &m);
}

int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root)
{
    return ddp__collective(d, "ddp_broadcast", DDP_BROADCAST, x, n, 1, root);
}

int ddp_all_gather(ddp_ctx *d, float *x, size_t n)
{
    return ddp__collective(d, "ddp_all_gather", DDP_ALL_GATHER, x, n, 1, 0);
}

int ddp_reduce_scatter(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__collective(d, "ddp_reduce_scatter", DDP_REDUCE_SCATTER, x, n, scale, 0);
}

int ddp_send(ddp_ctx *d, float *x, size_t n, int to)
{
    return ddp__collective(d, "ddp_send", DDP_SEND, x, n, 1, to);
}

int ddp_recv(ddp_ctx *d, float *x, size_t n, int from)
{
    return ddp__collective(d, "ddp_recv", DDP_RECEIVE, x, n, 1, from);
}

int ddp_barrier(ddp_ctx *d)
{
    unsigned char *token;
    ddp_message m;
    ddp_piece p;
    int s, workers;

    DDP__ENTER(d);
    /* an empty contribution to each is enough: no rank is done before all ranks have called */
    workers = ddp_world(d) - ddp_servers(d);
    token = (unsigned char *)ddp__calloc((size_t)workers, 1);
    if (!token) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_barrier: out of memory");
    m = ddp__own_word(d, &p, DDP_ALL_GATHER, d->exchange->computing, token, (size_t)workers);
    m.layer = DDP__BARRIER;
    m.priority = 0;
    s = ddp__plain(d, "ddp_barrier", &m);
    DDP_FREE(token);
    return s;
}
