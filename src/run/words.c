/* Messages that are waited for, and the library's own words among them. */
#include "base/platform.h"
#include "run/device.h"

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
