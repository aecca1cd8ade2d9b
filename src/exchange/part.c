/* Allocates and frees the part of a context that belongs to src/exchange, and implements its queries. */
#include "exchange/exchange.h"

int ddp__exchange_open(ddp_ctx *d)
{
    d->exchange = (struct ddp__exchanging *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *d->exchange);
    return d->exchange != NULL;
}

void ddp__exchange_close(ddp_ctx *d)
{
    struct ddp__exchanging *x = d->exchange;

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

float *ddp__residual_memory(const ddp_ctx *d, int layer)
{
    const struct ddp__exchanging *x = d->exchange;
    float *here = x->sending[layer].residual;

    return here && x->coded_there ? x->coded_there + (here - x->coded) : here;
}

/* Allocates lists of pieces if averages do not always transfer the whole layer. */
static int ddp__sending_moves(ddp_ctx *d, int l)
{
    const ddp__unit *u = ddp__unit_of(d, l);
    const ddp_config *c = ddp__cfg(d);
    const int arrays = c->average.state ? ddp__optimizer(d)->state_per_param : 0;
    ddp__sending *y = &d->exchange->sending[l];

    if (ddp__parts_for(d, u->trained) == 1 &&
        !(u->state_count && arrays && (c->average.state_period[0] > 1 || c->average.state_period[1] > 1)))
        return 1;
    y->moved = (ddp_piece *)ddp__scratch_take(ddp__lists_of(d), ddp__unit_pieces(d, u), sizeof *y->moved);
    return y->moved != NULL;
}

ddp_status ddp__sending_open(ddp_ctx *d, ddp_error *err)
{
    struct ddp__exchanging *x = d->exchange;
    const int layers = ddp__layers(d);

    x->sending = (ddp__sending *)ddp__scratch_take(ddp__lists_of(d), (size_t)layers, sizeof *x->sending);
    for (int l = 0; x->sending && l < layers; l++) {
        x->sending[l].ticket = x->sending[l].other_ticket = x->sending[l].forward_step = -1;
        if (!ddp__sending_moves(d, l))
            return ddp__fail(err, DDP_MEMORY, "%s%s: out of memory",
                             ddp__layer_prefix(ddp__unit_of(d, l)->name), ddp__unit_of(d, l)->name);
    }
    return x->sending ? DDP_OK : ddp__fail(err, DDP_MEMORY, "out of memory for %d layers", layers);
}

int ddp__average_in_flight(const ddp_ctx *d, int layer)
{
    const ddp__sending *y = &d->exchange->sending[layer];

    return y->ticket != -1 || y->other_ticket != -1;
}

void ddp__forward_began(ddp_ctx *d, int layer) { d->exchange->sending[layer].forward_step = ddp_step(d); }

int ddp__forward_all(const ddp_ctx *d)
{
    for (int l = 0; l < ddp__layers(d); l++)
        if (d->exchange->sending[l].forward_step != ddp_step(d)) return 0;
    return 1;
}

void ddp__skipped_set(ddp_ctx *d, int layer, int skipped) { d->exchange->sending[layer].skipped = skipped; }
int ddp__left_out(const ddp_ctx *d, int layer)
{
    return d->exchange->sending && d->exchange->sending[layer].left_out;
}
void ddp__updates_set(ddp_ctx *d, int layer, long updates) { d->exchange->sending[layer].updates = updates; }
float *ddp__base_of(const ddp_ctx *d, int layer) { return d->exchange->sending[layer].base; }
double ddp__divergence_of(const ddp_ctx *d, int layer)
{
    return d->exchange->sending ? d->exchange->sending[layer].last_divergence : 0;
}

void ddp__reported_set(ddp_ctx *d, const struct ddp_step_info *info) { d->exchange->reported = info; }

size_t ddp__muon_floats(const ddp_ctx *d) { return d->exchange->muon_count; }
