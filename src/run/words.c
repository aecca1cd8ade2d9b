/* Messages that are waited for, and the library's own words among them. */
#include "base/platform.h"
#include "nn/exact.h"
#include "run/device.h"

/* A pull is two messages: its request, and what comes back. */
ddp_status ddp__post_request(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err)
{
    ddp_message ask = *m;
    ddp_piece p;

    p.data = &d->nothing;
    p.count = 1;
    ask.verb = DDP__ASK;
    ask.from = &p;
    ask.from_count = 1;
    ask.to = NULL;
    ask.add = 0;
    ask.received = NULL;
    return ddp__engine_submit(ddp__engine_of(d, m->link), &ask, ticket, err);
}

/* With one worker a sum is its own input. */
ddp_status ddp__post_alone(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err)
{
    const float scale = m->mean || m->scale == 0 ? 1 : m->scale;
    const ddp_piece *to = m->to ? m->to : m->from;
    ddp__walk w;
    float *x, *y;
    size_t n;

    if (m->verb > DDP_REDUCE_SCATTER)
        return ddp__fail(err, DDP_USAGE, "%s with one worker: there is nobody else", ddp__verb_name((int)m->verb));
    if (m->verb != DDP_ALL_REDUCE && m->verb != DDP_REDUCE_SCATTER) return DDP_OK;
    memset(&w, 0, sizeof w);
    w.from = m->from, w.from_count = m->from_count;
    w.to = to, w.to_count = m->to ? m->to_count : m->from_count;
    while ((n = ddp__walk_next(&w, &x, &y)) > 0) {
        if (m->add) {
            ddp__axpy(d, y, x, n, scale);
            continue;
        }
        if (x != y && there) ddp__host_copy(&d->host, y, x, n * sizeof *y);
        else if (x != y) memcpy(y, x, n * sizeof *y);
        if (scale != 1 && there) ddp__scale_there(d, y, n, scale);
        else if (scale != 1) ddp__scale(y, n, scale);
    }
    return DDP_OK;
}

ddp_status ddp__post_flush(ddp_ctx *d, ddp_error *err)
{
    return d->stager ? ddp__stager_flush(d->stager, err) : DDP_OK;
}

ddp_status ddp__run(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err)
{
    long ticket;

    if (!d->engine) return ddp__post_alone(d, m, there, err);
    if (there && d->stager) {
        DDP__TRY(ddp__stager_submit(d->stager, m, DDP__BEHIND_WORK, &ticket, err));
        return ddp__stager_wait(d->stager, ticket, err);
    }
    DDP__TRY(ddp__post_flush(d, err));
    if (m->verb == DDP_PULL) DDP__TRY(ddp__post_request(d, m, &ticket, err));
    return ddp__engine_run(ddp__engine_of(d, m->link), m, err);
}

void ddp__own_word(const ddp_ctx *d, ddp_message *m, ddp_verb verb, const ddp_piece *p)
{
    memset(m, 0, sizeof *m);
    m->verb = verb;
    m->from = p;
    m->from_count = 1;
    m->bytes = 1;
    m->step = d->step;
    m->layer = DDP__OWN_WORD;
    m->priority = d->layers;
    m->filler = 1;
}

ddp_status ddp__tell(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err)
{
    ddp_message m;
    ddp_piece p;

    p.bytes = bytes;
    p.count = size;
    ddp__own_word(d, &m, DDP_BROADCAST, &p);
    m.group = group;
    m.peer = ddp__group_root(d, group);
    return ddp__run(d, &m, 0, err);
}

ddp_status ddp__gather_words(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err)
{
    const int members = group ? ddp__engine_group_size(d->engine, group) : d->world;
    ddp_message m;
    ddp_piece p;

    p.bytes = bytes;
    p.count = size * (size_t)members;
    ddp__own_word(d, &m, DDP_ALL_GATHER, &p);
    m.group = group;
    return ddp__run(d, &m, 0, err);
}
