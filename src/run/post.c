/* Which way a message goes: to the engine of its link, in two levels, over a device's stager, or from device
 * to device. */
#include "run/device.h"

ddp_status ddp__post(ddp_ctx *d, const ddp_message *m, int there, long *ticket, ddp_error *err)
{
    *ticket = -1;
    if (m->here && m->from_count == 1) there = 0;
    if (!d->engine) return ddp__post_alone(d, m, there, err);
    if (there && ddp__nccl_takes(d, m)) return ddp__nccl_post(d, m, ticket, err);
    if (d->stager) return ddp__stager_submit(d->stager, m, there ? DDP__BEHIND_WORK : DDP__HERE, ticket, err);
    return ddp__post_here(d, m, ticket, err);
}

ddp_status ddp__post_here(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err)
{
    if (ddp__levels_takes(d, m)) return ddp__levels_submit(d, m, ticket, err);
    return ddp__engine_submit(ddp__engine_of(d, m->link), m, ticket, err);
}

ddp_status ddp__post_hold(ddp_ctx *d, int link, long ticket, int layer, ddp_error *err)
{
    ddp_status s = DDP_OK;

    if (!d->engine) return DDP_OK;
    ddp__clock_note(d, DDP__M_BEGIN, layer, DDP__OUTSIDE);
    if (!d->stager)
        s = ddp__engine_wait(ddp__engine_of(d, link), ticket, err);
    else if (ticket < -1)
        s = ddp__nccl_hold(d, ticket, err);
    else if (d->loaded)
        ddp__stager_hold(d->stager, ticket);
    else
        s = ddp__stager_wait(d->stager, ticket, 0, err);
    ddp__clock_note(d, DDP__M_HELD, layer, DDP__OUTSIDE);
    return s || !d->stager ? s : ddp__stager_error(d->stager, err);
}

ddp_status ddp__post_hold_input(ddp_ctx *d, int link, long ticket, ddp_error *err)
{
    if (!d->engine) return DDP_OK;
    if (!d->stager) return ddp__engine_wait_input(ddp__engine_of(d, link), ticket, err);
    return ticket < -1 ? ddp__nccl_hold(d, ticket, err) : ddp__stager_wait(d->stager, ticket, 1, err);
}

ddp_status ddp__post_wait(ddp_ctx *d, int link, long ticket, ddp_error *err)
{
    if (d->stager) return ddp__stager_wait(d->stager, ticket, 0, err);
    return ddp__engine_wait(ddp__engine_of(d, link), ticket, err);
}

int ddp__post_is_done(ddp_ctx *d, int link, long ticket)
{
    if (!d->engine) return 1;
    if (!d->stager) return ddp__engine_done(ddp__engine_of(d, link), ticket);
    return ticket >= 0 && ddp__stager_is_done(d->stager, ticket);
}
