/* Strategies that average parameters: localsgd, enp and dreamddp (Algorithm 1 and Eq. 5). */
#include "base/platform.h"
#include "sync/context.h"
#include "sync/device.h"
#include "sync/stage.h"

static ddp_status ddp__average_as(ddp_ctx *d, int layer, int filler, ddp__coding coding,
                                  ddp_error *err)
{
    ddp__unit *u = &d->unit[layer];
    ddp__message m;

    if (!d->engine || u->count == 0) return DDP_OK;
    memset(&m, 0, sizeof m);
    m.verb = DDP__ALL_REDUCE;
    m.pieces = u->average;
    m.piece_count = u->averages;
    m.mean = 1;
    m.group = u->group;
    m.step = d->step;
    m.layer = layer;
    /* the layer that the next forward needs first goes first; the paper's rule is first come */
    m.priority = d->strategy->partial && !d->cfg.paper ? layer : 0;
    m.filler = filler;
    m.link = u->link;
    if (coding == DDP__AS_INT8) return ddp__coded_average(d, layer, &m, err);
    m.coding = coding;
    m.divergence = &u->divergence;
    return ddp__post(d, &m, 1, &u->ticket, err);
}

ddp_status ddp__average_layer(ddp_ctx *d, int layer, int filler, ddp_error *err)
{
    return ddp__average_as(d, layer, filler, ddp__wire_coding(d->cfg.wire), err);
}

ddp_status ddp__average_exact(ddp_ctx *d, int layer, ddp_error *err)
{
    return ddp__average_as(d, layer, 1, DDP__AS_FLOAT, err);
}

static ddp_status ddp__layer_wait(ddp_ctx *d, long ticket, int layer, ddp_error *err)
{
    const int link = d->unit[layer].link;
    ddp__engine *e = ddp__engine_of(d, link);

    if (!d->stage && ddp__engine_done(e, ticket)) return ddp__engine_wait(e, ticket, err);
    return ddp__post_hold(d, link, ticket, layer, err);
}

ddp_status ddp__average_wait(ddp_ctx *d, int layer, ddp_error *err)
{
    ddp__unit *u = &d->unit[layer];
    ddp_status s = DDP_OK;

    if (u->ticket == -1 && u->other_ticket == -1) return DDP_OK;
    if (u->other_ticket != -1) s = ddp__layer_wait(d, u->other_ticket, layer, err);
    if (s == DDP_OK && u->ticket != -1) s = ddp__layer_wait(d, u->ticket, layer, err);
    u->ticket = u->other_ticket = -1;
    u->last_divergence = d->stage ? ddp__stage_divergence(d->stage, layer) : u->divergence;
    if (s == DDP_OK && u->base) ddp__coded_arrived(d, layer);
    return s;
}

ddp_status ddp__average_wait_all(ddp_ctx *d, ddp_error *err)
{
    int l;

    for (l = d->layers - 1; l >= 0; l--) DDP__TRY(ddp__average_wait(d, l, err));
    return DDP_OK;
}

/* ---- localsgd ---- */

static ddp_status ddp__local_backward_end(ddp_ctx *d, int layer)
{
    if (d->cfg.clip_norm > 0) return DDP_OK; /* the norm needs all gradients: update at step end */
    ddp__update_layer(d, layer);
    return DDP_OK;
}

static void ddp__clip_and_update(ddp_ctx *d)
{
    int l;

    if (!(d->cfg.clip_norm > 0)) return;
    ddp__clip_gradients(d);
    for (l = d->layers - 1; l >= 0; l--) ddp__update_layer(d, l);
}

static ddp_status ddp__local_step_end(ddp_ctx *d)
{
    int l;

    ddp__clip_and_update(d);
    if ((d->step + 1) % d->cfg.period) return DDP_OK;
    for (l = d->layers - 1; l >= 0; l--) DDP__TRY(ddp__average_layer(d, l, 0, &d->host.error));
    return ddp__average_wait_all(d, &d->host.error);
}

/* ---- enp, dreamddp ---- */

static ddp_status ddp__partial_backward_end(ddp_ctx *d, int layer)
{
    int h;

    if (d->plan.layers == 0) DDP__TRY(ddp__plan_first(d, &d->host.error));
    /* without clipping Eq. 5 holds as printed: update, then average; with it the weights are
     * averaged as they stand and updated at step end, once the norm is known */
    if (!(d->cfg.clip_norm > 0)) ddp__update_layer(d, layer);
    h = (int)(d->step % d->plan.period);
    if (d->plan.step_of[layer] == h) return ddp__average_layer(d, layer, 0, &d->host.error);
    if (d->plan.fill && d->plan.fill[(size_t)h * (size_t)d->layers + (size_t)layer])
        return ddp__average_layer(d, layer, 1, &d->host.error);
    return DDP_OK;
}

static ddp_status ddp__partial_step_end(ddp_ctx *d)
{
    if (d->cfg.clip_norm > 0) {
        DDP__TRY(ddp__average_wait_all(d, &d->host.error));
        ddp__clip_and_update(d);
        return DDP_OK;
    }
    /* with forward hooks a transfer may end as late as its layer's own next forward */
    if (d->hooks_forward && !d->cfg.paper) return DDP_OK;
    return ddp__average_wait_all(d, &d->host.error);
}

const ddp__strategy_table *ddp__averaging_strategies(int *count)
{
    static const ddp__strategy_table table[] = {
        {"localsgd", DDP_LOCALSGD, 0, NULL, ddp__local_backward_end, ddp__local_step_end},
        {"enp", DDP_ENP, 1, NULL, ddp__partial_backward_end, ddp__partial_step_end},
        {"dreamddp", DDP_DREAMDDP, 1, NULL, ddp__partial_backward_end, ddp__partial_step_end},
    };

    *count = (int)(sizeof table / sizeof table[0]);
    return table;
}
