/* The part of a context that belongs to this module: opened, closed, and what others tell it. */
#include "exchange/events.h"
#include "exchange/exchange.h"

int ddp__exchange_open(ddp_ctx *d)
{
    d->exchange = (struct ddp__exchanging *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *d->exchange);
    return d->exchange != NULL;
}

void ddp__exchange_close(ddp_ctx *d)
{
    struct ddp__exchanging *x = d->exchange;

    ddp__posted_close(d);
    ddp__release(ddp__allocator_of(d), x->muon.at, x->muon_count * sizeof(float));
    ddp__release(ddp__allocator_of(d), x->coded, x->coded_count * sizeof(float));
    ddp__host_release(ddp__host_of(d), x->bases, x->bases_count * sizeof(float));
    ddp__host_release(ddp__host_of(d), x->coded_there, 2 * x->coded_count * sizeof(float));
}

void ddp__transport_set(ddp_ctx *d, const ddp__transport *over) { d->exchange->over = over; }
void ddp__norm_chain_set(ddp_ctx *d, const ddp__norm_chain *norm) { d->exchange->norm = *norm; }
int ddp__norm_is_shared(const ddp_ctx *d) { return d->exchange->norm.pass != NULL; }
int ddp__computing(const ddp_ctx *d) { return d->exchange->computing; }
void ddp__computing_set(ddp_ctx *d, int group) { d->exchange->computing = group; }
int ddp__posted_room(const ddp_ctx *d) { return d->exchange->posted_room; }
const ddp__own_state *ddp__kept_list(const ddp_ctx *d) { return d->exchange->kept; }
void ddp__forward_hooks(ddp_ctx *d, int all) { d->exchange->hooks_forward = all; }
int ddp__coded_on_device(const ddp_ctx *d) { return d->exchange->coded_there != NULL; }

float *ddp__residual_memory(const ddp_ctx *d, const ddp__unit *u)
{
    const struct ddp__exchanging *x = d->exchange;

    return x->coded_there ? x->coded_there + (u->residual - x->coded) : u->residual;
}

void ddp__reported_set(ddp_ctx *d, const struct ddp_step_info *info) { d->exchange->reported = info; }

size_t ddp__muon_floats(const ddp_ctx *d) { return d->exchange->muon_count; }
