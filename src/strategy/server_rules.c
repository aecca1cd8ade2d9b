/* bsp, asp, ssp and r2sp: push all gradients after the backward pass, then pull the parameters. They differ
 * in how the server applies the pushes. */
#include "context/stats.h"
#include "strategy/server.h"

/* ssp with staleness 0 is bsp. Pushes that are applied one by one give reproducible results only in a fixed
 * order. */
static int ddp__push_start(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;
    const ddp_config *c = ddp_settings(d);
    const int slack = c->strategy == DDP_SSP ? c->server.staleness : 0;

    if (c->strategy == DDP_BSP || (c->strategy == DDP_SSP && !slack))
        s->rule = DDP_SERVING_TOGETHER;
    else
        s->rule = c->deterministic || c->strategy == DDP_R2SP ? DDP_SERVING_IN_TURN : DDP_SERVING_EACH;
    s->ahead = slack ? slack : -1;
    s->pushes_params = c->strategy == DDP_ASP && c->plan.paper;
    return ddp__servers_start(d, s);
}

/* Records the staleness that the answers report. */
static void ddp__stale_note(ddp_ctx *d, ddp__servers *s)
{
    ddp_stats *stats = ddp_stats_of(d);
    ddp__answer_head head;

    if (s->rule == DDP_SERVING_TOGETHER) return;
    for (int k = 0; k < s->lines; k++) {
        memcpy(&head, s->line[k].in, sizeof head);
        s->stale_sum += head.staleness;
        s->stale_count++;
        if (head.staleness > stats->staleness_most) stats->staleness_most = head.staleness;
    }
    stats->staleness = s->stale_sum / (double)s->stale_count;
}

static int ddp__push_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__servers *s = (ddp__servers *)self;
    const double computed_s = ddp_computed_s(d);

    (void)forward;
    if (s->pushes_params) DDP__DO(ddp__update_all(d));
    DDP__DO(ddp__servers_exchange(d, s, NULL, 1));
    for (int l = 0; l < ddp_layers(d); l++) DDP__DO(ddp__gradients_zero(d, l));
    ddp__stale_note(d, s);
    return ddp__served_predict(d, s, computed_s, NULL);
}

/* The barrier ensures that the pull contains the pushes of all workers. No worker pushes again before all
 * have pulled. */
static int ddp__push_sync_all(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;

    DDP__DO(ddp__servers_meet(d, s));
    DDP__DO(ddp__servers_exchange(d, s, NULL, 0));
    return ddp__servers_average_buffers(d, s);
}

void ddp__strategy_bsp(ddp_strategy_ops *ops)
{
    ops->averages = DDP_AVERAGES_GRADIENTS;
    ops->traits = DDP_NEEDS_SERVERS | DDP_WITH_DEVICE | DDP_WITH_ELASTIC;
    ops->self_bytes = sizeof(ddp__servers);
    ops->start = ddp__push_start;
    ops->step_end = ddp__push_step_end;
    ops->sync_all = ddp__push_sync_all;
    ops->wait = ddp__servers_wait;
    ops->serve = ddp__servers_serve;
    ops->tell_servers = ddp__servers_tell;
    ops->failed = ddp__servers_failed;
}

void ddp__strategy_asp(ddp_strategy_ops *ops)
{
    ddp__strategy_bsp(ops);
    ops->averages = DDP_AVERAGES_PARAMETERS;
    ops->traits = DDP_NEEDS_SERVERS | DDP_OUT_OF_STEP | DDP_WITH_DEVICE | DDP_WITH_ELASTIC;
}
