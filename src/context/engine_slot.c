/* Guards the engine of a context, which other threads read while a joining worker replaces it. */
#include "context/context.h"

void ddp__engine_hold(ddp_ctx *d)
{
    while (ddp__atomic_swap(&d->engine_held, 1)) ddp__sleep_until(ddp_now() + 0.001);
}

void ddp__engine_release(ddp_ctx *d) { ddp__atomic_store(&d->engine_held, 0); }

void ddp__engine_set(ddp_ctx *d, ddp__engine *e)
{
    ddp__engine_hold(d);
    d->engine = e;
    ddp__engine_release(d);
}
