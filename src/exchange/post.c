/* Chooses the path of a message: the engine of its link, a hierarchical average, or the transport of a
 * device. */
#include "context/clock.h"
#include "exchange/exchange.h"
#include "context/context.h"
#include "exchange/post.h"
#include "exchange/sites.h"
#include "exchange/transport.h"
#include "exchange/update.h"

ddp_status ddp__post(ddp_ctx *d, const ddp_message *m, int there, long *ticket, ddp_error *err)
{
    *ticket = -1;
    if (m->here == 2 || (m->here && m->from_count == 1)) there = 0;
    if (!ddp__engine_of(d, 0)) return ddp__post_alone(d, m, there, err);
    if (d->exchange->over) return d->exchange->over->post(d, m, there, ticket, err);
    return ddp__post_here(d, m, ticket, err);
}

ddp_status ddp__post_here(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err)
{
    if (ddp__levels_takes(d, m)) return ddp__levels_submit(d, m, ticket, err);
    return ddp__engine_submit(ddp__engine_of(d, m->link), m, ticket, err);
}

ddp_status ddp__post_hold(ddp_ctx *d, int link, long ticket, int layer, ddp_error *err)
{
    ddp_status s;

    if (!ddp__engine_of(d, 0)) return DDP_OK;
    ddp__clock_note(d, DDP__M_BEGIN, layer, DDP__OUTSIDE);
    s = d->exchange->over ? d->exchange->over->hold(d, ticket, err)
                          : ddp__engine_wait(ddp__engine_of(d, link), ticket, err);
    ddp__clock_note(d, DDP__M_HELD, layer, DDP__OUTSIDE);
    return s;
}

ddp_status ddp__post_hold_input(ddp_ctx *d, int link, long ticket, ddp_error *err)
{
    if (!ddp__engine_of(d, 0)) return DDP_OK;
    if (d->exchange->over) return d->exchange->over->hold_input(d, ticket, err);
    return ddp__engine_wait_input(ddp__engine_of(d, link), ticket, err);
}

ddp_status ddp__post_wait(ddp_ctx *d, int link, long ticket, ddp_error *err)
{
    if (d->exchange->over) return d->exchange->over->wait(d, ticket, err);
    return ddp__engine_wait(ddp__engine_of(d, link), ticket, err);
}

int ddp__post_is_done(ddp_ctx *d, int link, long ticket)
{
    if (!ddp__engine_of(d, 0)) return 1;
    if (d->exchange->over) return d->exchange->over->is_done(d, ticket);
    return ddp__engine_done(ddp__engine_of(d, link), ticket);
}
