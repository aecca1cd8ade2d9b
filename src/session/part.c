/* Allocates the part of a context that belongs to src/session. */
#include "session/part.h"

int ddp__session_open(ddp_ctx *d)
{
    d->session = (struct ddp__session *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *d->session);
    if (d->session)
        d->session->info = (ddp_step_info *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *d->session->info);
    return d->session && d->session->info;
}

void ddp__cut_set(ddp_ctx *d, const ddp__cut *cut) { d->session->cut = cut; }
const ddp__cut *ddp__cut_of(const ddp_ctx *d) { return d->session->cut; }

void ddp__edges_set(ddp_ctx *d, int messages, size_t bytes)
{
    d->session->edge_messages = messages;
    d->session->edge_bytes = bytes;
}

void ddp__chosen_name(const ddp_ctx *d, ddp_chosen *c, const char *reason)
{
    const int stream = c->overlap == (int)DDP_OVERLAP_STREAM, coded = c->wire > (int)DDP_WIRE_F32;
    char period[32] = "";

    if (c->period > 1) snprintf(period, sizeof period, " --period %d", c->period);
    snprintf(c->name, sizeof c->name, "%.31s%s%s%s%s", ddp__strategies_of(d)->name((ddp_strategy)c->strategy),
             stream ? " --overlap stream" : "", coded ? " --wire " : "",
             coded ? ddp_wire_name((ddp_wire)c->wire) : "", period);
    snprintf(c->reason, sizeof c->reason, "%s", reason);
}
