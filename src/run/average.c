/* Averages of a layer: what it moves, posted and held. */
#include "run/device.h"

/* takes: of its parts, NULL: all; all: also what a period leaves out. */
static ddp_status ddp__average_as(ddp_ctx *d, int layer, const unsigned char *takes, int priority, int filler,
                                  ddp_coding coding, int all, ddp_error *err)
{
    const int parts = ddp_parts_of(d, layer);
    ddp__unit *u = &d->unit[layer];
    ddp_message m = ddp__message(d, DDP_ALL_REDUCE, u->average, u->averages, layer);

    if (!d->engine || u->count == 0) return DDP_OK;
    for (int j = u->moving = 0; j < parts; j++) u->moving += !takes || takes[j];
    m.mean = 1;
    m.group = u->group ? u->group : d->computing;
    m.priority = priority;
    m.filler = filler;
    m.link = u->link;
    if (coding > DDP_AS_BFLOAT) return ddp__coded_average(d, layer, &m, err);
    m.coding = coding;
    if (u->moving < parts) ddp__average_cut(d, layer, takes, &m);
    else if (!all) ddp__average_takes(d, layer, u->average, u->averages, &m);
    m.divergence = &u->divergence;
    return ddp__post(d, &m, 1, &u->ticket, err);
}

ddp_status ddp__average_layer(ddp_ctx *d, int layer, const unsigned char *takes, int priority, int filler,
                              ddp_error *err)
{
    const ddp_coding coding = ddp__wire_coding(d->cfg.wire);

    /* where changes travel in blocks, these are parameters */
    if (d->ops.averages == DDP_AVERAGES_CHANGES && coding > DDP_AS_BFLOAT)
        return ddp__average_as(d, layer, takes, priority, filler, DDP_AS_FLOAT, 0, err);
    return ddp__average_as(d, layer, takes, priority, filler, coding, 0, err);
}

static ddp_status ddp__layer_hold(ddp_ctx *d, long ticket, int layer, ddp_error *err)
{
    const int link = d->unit[layer].link;

    if (!d->stager && ddp__post_is_done(d, link, ticket)) return ddp__post_wait(d, link, ticket, err);
    return ddp__post_hold(d, link, ticket, layer, err);
}

ddp_status ddp__average_hold(ddp_ctx *d, int layer, ddp_error *err)
{
    ddp__unit *u = &d->unit[layer];
    ddp_status s = DDP_OK;

    if (u->ticket == -1 && u->other_ticket == -1) return DDP_OK;
    if (u->other_ticket != -1) s = ddp__layer_hold(d, u->other_ticket, layer, err);
    if (s == DDP_OK && u->ticket != -1) s = ddp__layer_hold(d, u->ticket, layer, err);
    u->ticket = u->other_ticket = -1;
    u->part_divergence += d->stager ? ddp__stager_divergence(d->stager, layer) : u->divergence;
    u->averaged += u->moving;
    if (u->averaged >= ddp_parts_of(d, layer)) {
        u->last_divergence = u->part_divergence;
        u->part_divergence = 0;
        u->averaged = 0;
    }
    if (s == DDP_OK && u->base) ddp__coded_arrived(d, layer);
    return s;
}

ddp_status ddp__average_exact(ddp_ctx *d, int layer, ddp_error *err)
{
    DDP__TRY(ddp__average_as(d, layer, NULL, 0, 1, DDP_AS_FLOAT, 1, err));
    return ddp__average_hold(d, layer, err);
}
