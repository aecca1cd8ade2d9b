/* Strategy auto trains as wfbp while layers and links are measured. Then it chooses the strategy that should
 * reach the loss of ssgd soonest (plan/choose.c). */
#include "comm/frame.h"
#include "context/context.h"
#include "plan/choose_internal.h"
#include "strategy/gradient.h"

typedef struct ddp__auto {
    ddp__gradient gradient; /* of wfbp, the first member */
    ddp_loss_table losses;  /* of choice.loss_table, or empty */
} ddp__auto;

static int ddp__auto_start(ddp_ctx *d, void *self)
{
    ddp__auto *x = (ddp__auto *)self;
    const char *path = ddp_settings(d)->choice.loss_table;
    ddp_strategy_ops wfbp = DDP__ZEROS;
    ddp_error err;

    ddp__strategy_wfbp(&wfbp);
    memset(&err, 0, sizeof err);
    if (path && ddp_loss_table_read(path, &x->losses, &err)) return ddp_complain(d, err.code, "%s", err.msg);
    return wfbp.start(d, self);
}

static void ddp__auto_close(ddp_ctx *d, void *self)
{
    ddp__auto *x = (ddp__auto *)self;
    ddp_strategy_ops wfbp = DDP__ZEROS;

    ddp__strategy_wfbp(&wfbp);
    ddp_loss_table_free(&x->losses);
    wfbp.close(d, self);
}

/* ---- candidates ---- */

static void ddp__auto_settings(const ddp_ctx *d, const ddp_candidate *c, ddp_chosen *out)
{
    const char *wire = c->coding > DDP_AS_FLOAT ? ddp__coding_wire(c->coding) : "f32";
    ddp_wire w = DDP_WIRE_DEFAULT;

    (void)ddp_wire_named(wire, &w);
    out->strategy = (int)ddp__strategies_of(d)->named(c->strategy);
    out->overlap = (int)(c->stream ? DDP_OVERLAP_STREAM : DDP_OVERLAP_NONE);
    out->wire = (int)w;
    out->period = c->period;
}

/* Floats per parameter that a candidate stores beyond wfbp: the parameters and the momentum of an outer
 * optimizer, the delta in flight; with blocks the residual, and the last average. */
static double ddp__auto_floats(const ddp_candidate *c, const ddp_strategy_ops *ops)
{
    const double outer = ops->averages == DDP_AVERAGES_CHANGES ? 3 : 0;
    const double blocks = !ddp__in_blocks((int)c->coding)            ? 0
                          : ops->averages == DDP_AVERAGES_PARAMETERS ? 3
                                                                     : 1;

    return outer + blocks;
}

/* Returns 1 if the settings of the run permit the candidate, and its memory fits. */
static int ddp__auto_permits(ddp_ctx *d, const ddp_profile *p, const ddp_candidate *c)
{
    const double total = ddp__memory_total();
    double floats = 0;
    ddp_config cfg = *ddp_settings(d);
    ddp_chosen chosen = DDP__ZEROS;
    ddp_strategy_ops ops;
    ddp_error why;

    if (cfg.backend && ddp__in_blocks((int)c->coding))
        return 0; /* its staging buffers are too small for block formats */
    if (cfg.outer.overlap > DDP_OVERLAP_NONE && !strcmp(c->strategy, "diloco") &&
        !(c->stream && cfg.outer.overlap == DDP_OVERLAP_STREAM))
        return 0; /* the program has set another overlap */
    ddp__auto_settings(d, c, &chosen);
    memset(&why, 0, sizeof why);
    if (ddp__config_choose(ddp__strategies_of(d), &chosen, &cfg, &ops, &why)) return 0;
    for (int l = 0; l < p->layers; l++) floats += p->params[l];
    return !(total > 0) || cfg.backend ||
           sizeof(float) * floats * (4 + ddp__auto_floats(c, &ops)) <
               total; /* 4: parameters, gradients and two moments of AdamW */
}

static ddp_status ddp__auto_choice(ddp_ctx *d, const ddp__auto *x, const ddp_profile *p,
                                   ddp_candidate *candidate, ddp_choice *out, ddp_error *err)
{
    ddp_choice_options o = DDP__ZEROS;
    const ddp_config *c = ddp_settings(d);
    int all;
    const ddp_candidate *list = ddp_choice_candidates(&all);

    for (int i = 0; i < all; i++)
        if (ddp__auto_permits(d, p, &list[i])) candidate[o.candidates++] = list[i];
    if (!o.candidates)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "none of %d candidates fits the settings of this run or the memory of the machine; "
                         "change a setting, or name a strategy",
                         all);
    o.profile = p;
    o.workers = ddp_workers(d);
    o.period = c->period > 1 ? c->period : 0; /* the program has set it */
    o.steps = c->choice.steps;
    o.loss_budget = c->choice.loss_budget;
    o.candidate = candidate;
    if (x->losses.count) o.losses = &x->losses;
    return ddp_choose(&o, out, err);
}

/* ---- the choice ---- */

static void ddp__auto_report(const ddp_ctx *d, const ddp_choice *c, ddp_chosen *out)
{
    const ddp_choice_row *r = &c->row[c->chosen];

    ddp__auto_settings(d, &r->candidate, out);
    ddp__row_name(r, out->name);
    out->seconds = r->seconds;
    out->step_s = r->step_s;
    out->penalty = r->penalty;
    out->ssgd_s = c->ssgd_s;
    snprintf(out->reason, sizeof out->reason, "%s", c->reason);
    if (c->runner_up < 0) return;
    ddp__row_name(&c->row[c->runner_up], out->runner_up);
    out->runner_up_s = c->row[c->runner_up].seconds;
}

static int ddp__auto_choose(ddp_ctx *d, void *self, const ddp_profile *p, ddp_chosen *out)
{
    int all, bad;
    ddp_candidate *candidate;
    ddp_choice made = DDP__ZEROS;
    ddp_error err;

    (void)ddp_choice_candidates(&all);
    memset(&err, 0, sizeof err);
    candidate = (ddp_candidate *)ddp__calloc((size_t)all, sizeof *candidate);
    if (!candidate) return ddp_complain(d, DDP_MEMORY, "out of memory for %d candidates", all);
    bad = (int)ddp__auto_choice(d, (const ddp__auto *)self, p, candidate, &made, &err);
    if (bad)
        bad = ddp_complain(d, err.code, "%s", err.msg);
    else
        ddp__auto_report(d, &made, out);
    ddp_choice_free(&made); /* its rows refer to the candidates */
    DDP_FREE(candidate);
    return bad;
}

void ddp__strategy_auto(ddp_strategy_ops *ops)
{
    ddp__strategy_wfbp(ops);
    /* the number format is part of the choice, and a layer group has its own period */
    ops->traits = DDP_WITH_CLIP | DDP_WITH_SITES | DDP_WITH_DEVICE | DDP_WITH_FIRST | DDP_WITH_ELASTIC;
    ops->self_bytes = sizeof(ddp__auto);
    ops->start = ddp__auto_start;
    ops->close = ddp__auto_close;
    ops->choose = ddp__auto_choose;
}
