/* bsp, asp, ssp and r2sp: after the backward everything is pushed, then pulled. What differs is what a server makes of
 * the pushes. */
#include "run/config.h"
#include "run/stats.h"
#include "strategy/server.h"

static int ddp__bsp_start(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;

    s->rule = DDP__RULE_TOGETHER;
    s->ahead = -1;
    return ddp__servers_start(d, s);
}

static int ddp__asp_start(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;

    s->rule = ddp_settings(d)->deterministic ? DDP__RULE_IN_TURN : DDP__RULE_EACH;
    s->ahead = -1;
    s->pushes_params = ddp_settings(d)->paper;
    return ddp__servers_start(d, s);
}

static int ddp__ssp_start(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;

    if (ddp_settings(d)->staleness == 0) return ddp__bsp_start(d, self);
    s->rule = ddp_settings(d)->deterministic ? DDP__RULE_IN_TURN : DDP__RULE_EACH;
    s->ahead = ddp_settings(d)->staleness;
    return ddp__servers_start(d, s);
}

static int ddp__r2sp_start(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;

    s->rule = DDP__RULE_IN_TURN;
    s->ahead = -1;
    return ddp__servers_start(d, s);
}

/* How stale the update was that an answer tells of. */
static void ddp__stale_note(ddp_ctx *d, ddp__servers *s)
{
    ddp_stats *stats = ddp_stats_of(d);
    ddp__answer_head head;

    if (s->rule == DDP__RULE_TOGETHER) return;
    for (int k = 0; k < s->lines; k++) {
        memcpy(&head, s->line[k].in, sizeof head);
        s->stale_sum += head.staleness;
        s->stale_count++;
        if (head.staleness > stats->staleness_most) stats->staleness_most = head.staleness;
    }
    stats->staleness = s->stale_sum / (double)s->stale_count;
}

/* Each server is asked right behind its push: it answers while the others are still pushed to. */
static int ddp__servers_pull(ddp_ctx *d, ddp__servers *s, int pushes)
{
    int bad = 0;

    for (int k = 0; k < s->lines && !bad; k++) {
        if (pushes) bad = ddp__line_push(d, s, &s->line[k], NULL, 0, NULL);
        if (!bad) bad = ddp__line_pull(d, s, &s->line[k], NULL, NULL);
    }
    for (int k = 0; k < s->lines && !bad; k++) bad = ddp__line_pushed(d, s, &s->line[k]);
    for (int k = 0; k < s->lines && !bad; k++) bad = ddp__line_pulled(d, s, &s->line[k]);
    return bad;
}

static int ddp__push_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__servers *s = (ddp__servers *)self;
    const double computed_s = ddp_computed_s(d);
    int bad = 0;

    (void)forward;
    for (int l = ddp_layers(d) - 1; l >= 0 && !bad && s->pushes_params; l--) bad = ddp_update_layer(d, l, NULL);
    if (!bad) bad = ddp__servers_pull(d, s, 1);
    for (int l = 0; l < ddp_layers(d) && !bad; l++) bad = ddp__layers_zero(d, l);
    if (!bad) ddp__stale_note(d, s);
    return bad ? bad : ddp__served_predict(d, s, computed_s, NULL);
}

/* Everybody's pushes are in what is pulled, and nobody pushes again before all have pulled. */
static int ddp__push_sync_all(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;
    int bad = ddp__servers_meet(d, s);

    if (!bad) bad = ddp__servers_pull(d, s, 0);
    return bad ? bad : ddp__servers_meet(d, s);
}

void ddp__strategy_bsp(ddp_strategy_ops *ops)
{
    ops->name = "bsp";
    ops->averages = DDP_AVERAGES_GRADIENTS;
    ops->traits = DDP_NEEDS_SERVERS | DDP_WITH_DEVICE | DDP_WITH_ELASTIC;
    ops->self_bytes = sizeof(ddp__servers);
    ops->start = ddp__bsp_start;
    ops->step_end = ddp__push_step_end;
    ops->wait = ddp__servers_wait;
    ops->serve = ddp__servers_serve;
    ops->tell_servers = ddp__servers_tell;
    ops->close = ddp__servers_close;
    ops->failed = ddp__servers_failed;
}

void ddp__strategy_asp(ddp_strategy_ops *ops)
{
    ddp__strategy_bsp(ops);
    ops->name = "asp";
    ops->averages = DDP_AVERAGES_PARAMETERS;
    ops->traits = DDP_NEEDS_SERVERS | DDP_OUT_OF_STEP | DDP_WITH_DEVICE | DDP_WITH_ELASTIC;
    ops->start = ddp__asp_start;
    ops->sync_all = ddp__push_sync_all;
}

void ddp__strategy_ssp(ddp_strategy_ops *ops)
{
    ddp__strategy_asp(ops);
    ops->name = "ssp";
    ops->start = ddp__ssp_start;
}

void ddp__strategy_r2sp(ddp_strategy_ops *ops)
{
    ddp__strategy_asp(ops);
    ops->name = "r2sp";
    ops->start = ddp__r2sp_start;
}
