/* Implements the hooks of a step (docs/explanation/step.md) and ddp_wait, ddp_sync_all, ddp_share and
 * ddp_serve. */
#include "context/clock.h"
#include "context/context.h"
#include "device/device.h"
#include "exchange/average.h"
#include "exchange/events.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "exchange/update.h"
#include "exchange/verbs.h"
#include "measure/account.h"
#include "measure/measure.h"
#include "measure/pace.h"
#include "session/admission.h"
#include "session/part.h"
#include "session/planning.h"
#include "session/serve.h"
#include "session/session.h"
#include "session/start.h"

/* Leaves a hook. The time from now on belongs to `phase` of `layer`. */
static int ddp__leave(ddp_ctx *d, ddp_status s, ddp__phase phase, int layer)
{
    if (s != DDP_OK) return ddp__ctx_fail(d, ddp__error(d));
    ddp__clock_note(d, DDP__M_LEAVE, layer, phase);
    return 0;
}

static ddp_status ddp__members_changed(ddp_ctx *d)
{
    if (!ddp__ops(d)->members_changed) return DDP_OK;
    DDP__TRY(ddp__strategy_wait(d, ddp__error(d)));
    return DDP__EVENT(d, members_changed, (d, ddp__self(d)));
}

/* Admits joining workers at the first hook of a step. Collectives of the program between two steps, such as a
 * checkpoint, therefore run among the members of the previous step. */
static ddp_status ddp__let_in(ddp_ctx *d)
{
    d->session->admission_due = 0;
    ddp__clock_note(d, DDP__M_ENTER, -1, DDP__OUTSIDE);
    DDP__TRY(ddp__admission_step(d, ddp__error(d)));
    if (ddp__note_members(d)) DDP__TRY(ddp__members_changed(d));
    ddp__clock_note(d, DDP__M_LEAVE, -1, DDP__OUTSIDE);
    return DDP_OK;
}

/* Enters a hook of a layer: checks it, starts the session at the first hook, ends the interval before it. */
static ddp_status ddp__enter_layer(ddp_ctx *d, int layer, const char *hook, ddp__phase entering)
{
    if (layer < 0 || layer >= ddp__layers(d))
        return ddp__fail(ddp__error(d), DDP_ARG,
                         "%s: layer %d does not exist; %d layers are registered, numbered "
                         "from 0",
                         hook, layer, ddp__layers(d));
    DDP__TRY(ddp__computes(d, hook));
    if (!ddp__started(d)) DDP__TRY(ddp__session_start(d, ddp__error(d)));
    if (ddp__joining_of(d) == DDP__HAS_ENTERED) ddp__joining_set(d, DDP__JOINS_NOT);
    if (d->session->admission_due) DDP__TRY(ddp__let_in(d));
    ddp__clock_note(d, DDP__M_ENTER, layer, entering);
    return DDP_OK;
}

int ddp_forward_begin(ddp_ctx *d, int layer)
{
    ddp_status s;

    DDP__ENTER(d);
    s = ddp__enter_layer(d, layer, "ddp_forward_begin", DDP__IN_FORWARD);
    if (s == DDP_OK) {
        ddp__forward_began(d, layer);
        s = DDP__EVENT(d, forward_begin, (d, ddp__self(d), layer));
    }
    if (s == DDP_OK) s = ddp__posted_look(d);
    return ddp__leave(d, s, DDP__IN_FORWARD, layer);
}

int ddp_backward_begin(ddp_ctx *d, int layer)
{
    DDP__ENTER(d);
    return ddp__leave(d, ddp__enter_layer(d, layer, "ddp_backward_begin", DDP__IN_BACKWARD), DDP__IN_BACKWARD,
                      layer);
}

/* Counts a micro-batch of the layer, and passes the gradient to the strategy after the last one. skips 1:
 * this micro-batch had no gradient. */
static ddp_status ddp__gradient_ready(ddp_ctx *d, int layer, int skips)
{
    const ddp__unit *u = ddp__unit_of(d, layer);
    ddp__passes *turn = &d->session->turn[layer];

    if (skips && turn->skipped == turn->passes)
        ddp__gradients_none(d, u); /* they contain no value of this step */
    turn->skipped += skips;
    if (++turn->passes > ddp__cfg(d)->micro_batches)
        return ddp__fail(ddp__error(d), DDP_USAGE,
                         "step %ld: %s(%d) was called %d times for %s%s, "
                         "expected %d; is ddp_step_end missing, or ddp_config.micro_batches too small?",
                         ddp_step(d), skips ? "ddp_skip" : "ddp_backward_end", layer, turn->passes,
                         ddp__layer_prefix(u->name), u->name, ddp__cfg(d)->micro_batches);
    if (ddp__average_in_flight(d, layer))
        return ddp__fail(
            ddp__error(d), DDP_USAGE,
            "step %ld: %s%s was used while its average of the step before "
            "was still on its way: earlier steps called ddp_forward_begin(%d), this one did not; call it "
            "in every step or in none",
            ddp_step(d), ddp__layer_prefix(u->name), u->name, layer);
    DDP__TRY(ddp__posted_of_layer(d, layer));
    if (turn->passes < ddp__cfg(d)->micro_batches) return ddp__posted_look(d);
    ddp__skipped_set(d, layer, turn->skipped == turn->passes);
    if (turn->skipped < turn->passes) ddp__gradients_some(d, u);
    for (int i = 0; ddp__cfg(d)->micro_batches > 1 && i < u->gradients; i++)
        if (u->gradient[i].data)
            ddp__scale_there(d, u->gradient[i].data, u->gradient[i].count,
                             1.0f / (float)ddp__cfg(d)->micro_batches);
    DDP__TRY(ddp__finite_gradient(d, layer, ddp__error(d)));
    DDP__TRY(ddp__choose_early(d, ddp__error(d)));
    DDP__TRY(ddp__plan_early(d, ddp__error(d)));
    DDP__TRY(DDP__EVENT(d, backward_end, (d, ddp__self(d), layer)));
    return ddp__posted_look(d);
}

int ddp__last_pass(const ddp_ctx *d, int layer)
{
    return layer < ddp__layers(d) &&
           (d->session->turn ? d->session->turn[layer].passes : 0) + 1 >= ddp__cfg(d)->micro_batches;
}

int ddp_backward_end(ddp_ctx *d, int layer)
{
    ddp_status s;

    DDP__ENTER(d);
    s = ddp__enter_layer(d, layer, "ddp_backward_end", DDP__AFTER_BACKWARD);
    if (s == DDP_OK) s = ddp__gradient_ready(d, layer, 0);
    return ddp__leave(d, s, DDP__AFTER_BACKWARD, layer);
}

int ddp_skip(ddp_ctx *d, int layer)
{
    ddp_status s;

    DDP__ENTER(d);
    s = ddp__enter_layer(d, layer, "ddp_skip", DDP__AFTER_BACKWARD);
    if (s == DDP_OK) s = ddp__gradient_ready(d, layer, 1);
    return ddp__leave(d, s, DDP__AFTER_BACKWARD, layer);
}

int ddp_backward_rest(ddp_ctx *d, const unsigned char *skips)
{
    const int layers = d ? ddp__layers(d) : 0;
    int most = 0, last = layers - 1;
    ddp_status s;

    DDP__ENTER(d);
    s = ddp__enter_layer(d, 0, "ddp_backward_rest", DDP__AFTER_BACKWARD);
    if (s != DDP_OK) return ddp__leave(d, s, DDP__AFTER_BACKWARD, 0);
    for (int l = 0; l < layers; l++)
        if (d->session->turn[l].passes > most) most = d->session->turn[l].passes;
    /* layers with `most` calls have had theirs, unless all have as many: then the next micro-batch begins */
    while (last >= 0 && d->session->turn[last].passes == most) last--;
    if (last < 0 && most < ddp__cfg(d)->micro_batches) most++;
    for (int l = layers - 1; l >= 0 && s == DDP_OK; l--)
        if (d->session->turn[l].passes < most) s = ddp__gradient_ready(d, l, skips && skips[l]);
    return ddp__leave(d, s, DDP__AFTER_BACKWARD, 0);
}

/* 1 if the gradients of a step are passed one by one in any case: a built-in optimizer updates each layer in
 * its own call, and times are measured. */
static int ddp__all_are_due(const ddp_ctx *d)
{
    return !ddp__started(d) || !d->session->plan_final || ddp__optimizer(d)->update ||
           (ddp__ops(d)->plan_make && !d->session->plan.bytes);
}

int ddp_due(const ddp_ctx *d, unsigned char *due)
{
    const int all = d && ddp__all_are_due(d);
    int n = 0;

    for (int l = 0; d && l < ddp__layers(d); l++) {
        const ddp_strategy_ops *o = ddp__ops(d);
        const int is = all || (o->backward_end && (!o->due || o->due(d, ddp__self(d), l)));
        if (due) due[l] = (unsigned char)is;
        n += is;
    }
    return n;
}

int ddp_left_out(const ddp_ctx *d, int layer)
{
    return d && layer >= 0 && layer < ddp__layers(d) && ddp__left_out(d, layer);
}

int ddp_report(ddp_ctx *d, const ddp_step_info *info)
{
    double loss;

    DDP__ENTER(d);
    if (!info) return ddp__ctx_failf(d, DDP_ARG, "ddp_report: info is NULL");
    if (!ddp__finite(info->loss))
        return ddp__ctx_failf(d, DDP_NUMERIC,
                              "step %ld: the loss is %g on rank %d: lower the learning rate, warm it "
                              "up or clip gradients",
                              ddp_step(d), info->loss, ddp_rank(d));
    if (info->samples < 0)
        return ddp__ctx_failf(d, DDP_ARG, "step %ld: ddp_report: samples is %ld; it must be at least 0",
                              ddp_step(d), info->samples);
    if (info->lr > 0) ddp_set_lr(d, info->lr);
    loss = info->loss != 0 ? info->loss : d->session->info->loss;
    *d->session->info = *info;
    d->session->info->loss = loss;
    return 0;
}

static ddp_status ddp__finish_step(ddp_ctx *d)
{
    int forward;

    /* a layer that was skipped in each micro-batch so far counts as skipped in the remaining ones */
    for (int l = ddp__layers(d) - 1; l >= 0; l--)
        while (d->session->turn[l].skipped && d->session->turn[l].skipped == d->session->turn[l].passes &&
               d->session->turn[l].passes < ddp__cfg(d)->micro_batches)
            DDP__TRY(ddp__gradient_ready(d, l, 1));
    for (int l = 0; l < ddp__layers(d); l++) {
        if (d->session->turn[l].passes != ddp__cfg(d)->micro_batches)
            return ddp__fail(
                ddp__error(d), DDP_USAGE,
                "step %ld: %s%s had %d of %d ddp_backward_end calls on rank %d when ddp_step_end was called: "
                "is a call missing, or ddp_skip for a layer without a gradient?",
                ddp_step(d), ddp__layer_prefix(ddp__unit_of(d, l)->name), ddp__unit_of(d, l)->name,
                d->session->turn[l].passes, ddp__cfg(d)->micro_batches, ddp_rank(d));
    }
    forward = ddp__forward_all(d);
    if (!forward && (ddp__ops(d)->traits & DDP_NEEDS_FORWARD))
        return ddp__fail(ddp__error(d), DDP_USAGE,
                         "strategy %s needs ddp_forward_begin of every layer "
                         "in every step; step %ld did without",
                         ddp__ops(d)->name, ddp_step(d));
    if (ddp__cfg(d)->average.first) forward = 0;
    ddp__forward_hooks(d, forward);
    DDP__TRY(DDP__EVENT(d, step_end, (d, ddp__self(d), forward)));
    /* programs without forward hooks need complete parameters when ddp_step_end returns */
    if (!forward) DDP__TRY(ddp__posted_none(d, 1, "in step_end, and the program has no forward hooks"));
    for (int l = 0; l < ddp__layers(d); l++) d->session->turn[l].passes = d->session->turn[l].skipped = 0;
    if (ddp__engine_of(d, 0)) DDP__TRY(ddp__engine_error(ddp__engine_of(d, 0), ddp__error(d)));
    if (ddp__second_of(d)) DDP__TRY(ddp__engine_error(ddp__second_of(d), ddp__error(d)));
    DDP__TRY(ddp__device_check(d, ddp__error(d)));
    return ddp__abort_check(d, ddp__error(d));
}

/* Synchronises the ranks after the first step. That step loads and warms up, which takes longer on one rank
 * than on another. From then on, ranks that share a machine or a device run at the same time, so that their
 * times are measured under the load of the run. */
static ddp_status ddp__timed_together(ddp_ctx *d)
{
    if (!ddp__engine_of(d, 0) || d->session->plan_final || ddp_step(d) != d->session->timed_from + 1 ||
        ddp_step(d) == ddp__cfg(d)->profile_steps)
        return DDP_OK;
    DDP__TRY(ddp__device_wait(d, ddp__error(d)));
    return ddp__all_come(d, ddp__team_group(d), ddp__error(d));
}

static ddp_status ddp__profile_over(ddp_ctx *d)
{
    DDP__TRY(ddp__plan_measure(d, ddp__error(d)));
    DDP__TRY(ddp__choose(d, &d->session->profile, ddp__error(d)));
    return ddp__plan_measured(d, ddp__error(d));
}

int ddp_step_end(ddp_ctx *d)
{
    ddp_status s;

    DDP__ENTER(d);
    s = ddp__computes(d, "ddp_step_end");
    if (s == DDP_OK && !ddp__started(d)) s = ddp__session_start(d, ddp__error(d));
    if (s == DDP_OK) {
        ddp__clock_note(d, DDP__M_ENTER, -1, DDP__OUTSIDE);
        s = ddp__finish_step(d);
    }
    if (s == DDP_OK) {
        const double loss = d->session->info->loss; /* remains until another loss is reported */
        ddp__clock_note(d, DDP__M_STEP, -1, DDP__OUTSIDE);
        ddp__account_steps(d);
        ddp__step_over(d,
                       (int64_t)(d->session->cut ? d->session->cut->copies : ddp_world(d) - ddp_servers(d)) *
                           ddp__cfg(d)->micro_batches);
        memset(d->session->info, 0, sizeof *d->session->info);
        d->session->info->loss = loss;
        ddp__device_loaded(d);
        s = ddp__pace_step(d, ddp__error(d));
        if (s == DDP_OK) s = ddp__timed_together(d);
        if (s == DDP_OK && !d->session->plan_final && ddp_step(d) == ddp__cfg(d)->profile_steps)
            s = ddp__profile_over(d);
        else if (s == DDP_OK && ddp__follows(d))
            s = ddp__drift_step(d, ddp__error(d));
        if (s == DDP_OK) s = ddp__landing_step(d, ddp__error(d));
        d->session->admission_due = d->session->join && ddp_step(d) % ddp__cfg(d)->period == 0;
        if (s == DDP_OK && ddp__note_members(d)) s = ddp__members_changed(d);
    }
    return ddp__leave(d, s, DDP__OUTSIDE, -1);
}

int ddp_wait(ddp_ctx *d)
{
    ddp_status s;

    DDP__ENTER(d);
    s = ddp__strategy_wait(d, ddp__error(d));
    if (s == DDP_OK) s = ddp__device_wait(d, ddp__error(d));
    return ddp__leave(d, s, DDP__OUTSIDE, -1);
}

static ddp_status ddp__sync_everything(ddp_ctx *d)
{
    DDP__TRY(ddp__strategy_drain(d, ddp__error(d)));
    if (ddp__ops(d)->sync_all) {
        DDP__TRY(DDP__EVENT(d, sync_all, (d, ddp__self(d))));
        DDP__TRY(ddp__posted_none(d, 0, "at the end of its event sync_all"));
    } else if (ddp__ops(d)->averages != DDP_AVERAGES_GRADIENTS) {
        DDP__TRY(ddp__average_differing(d));
    }
    DDP__TRY(ddp__replicas_settle(d, ddp__error(d))); /* and buffers, which averages of gradients omit */
    return ddp__device_wait(d, ddp__error(d));
}

static ddp_status ddp__between_steps(ddp_ctx *d, const char *call)
{
    DDP__TRY(ddp__is_in_step(d, call));
    for (int l = 0; d->session->turn && l < ddp__layers(d); l++)
        if (d->session->turn[l].passes)
            return ddp__fail(ddp__error(d), DDP_USAGE,
                             "step %ld: %s was called in the middle of a step: %s%s has had its "
                             "ddp_backward_end, and ddp_step_end is missing",
                             ddp_step(d), call, ddp__layer_prefix(ddp__unit_of(d, l)->name),
                             ddp__unit_of(d, l)->name);
    return DDP_OK;
}

int ddp_sync_all(ddp_ctx *d)
{
    ddp_status s = DDP_OK;

    DDP__ENTER(d);
    if (!ddp__started(d)) s = ddp__session_start(d, ddp__error(d));
    if (s == DDP_OK) s = ddp__between_steps(d, "ddp_sync_all");
    if (s == DDP_OK) s = ddp__sync_everything(d);
    return ddp__leave(d, s, DDP__OUTSIDE, -1);
}

static ddp_status ddp__share_again(ddp_ctx *d)
{
    ddp_error *err = ddp__error(d);

    DDP__TRY(ddp__between_steps(d, "ddp_share"));
    if (ddp__ops(d)->traits & DDP_NEEDS_SERVERS)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "ddp_share with strategy %s: its servers hold the parameters: replace them "
                         "before ddp_set_optimizer",
                         ddp__ops(d)->name);
    /* pending work that restart discards must not change the new parameters */
    DDP__TRY(ddp__ops(d)->restart ? ddp__strategy_wait(d, err) : ddp__strategy_drain(d, err));
    if (ddp__engine_of(d, 0)) {
        DDP__TRY(ddp__share_parameters(d, err));
        ddp__coded_start(d, 1);
    }
    DDP__TRY(DDP__EVENT(d, restart, (d, ddp__self(d))));
    return ddp__device_wait(d, err);
}

int ddp_share(ddp_ctx *d)
{
    ddp_status s = DDP_OK;

    DDP__ENTER(d);
    if (!ddp__started(d))
        s = ddp__session_start(d, ddp__error(d));
    else
        s = ddp__share_again(d);
    return ddp__leave(d, s, DDP__OUTSIDE, -1);
}

/* ---- ranks that only serve ---- */

static ddp_status ddp__serve(ddp_ctx *d, ddp_error *err)
{
    int code;

    if (!ddp__started(d)) DDP__TRY(ddp__session_start(d, err));
    while ((code = ddp__ops(d)->serve(d, ddp__self(d))) == (int)DDP_SERVE_SAVE)
        DDP__TRY(ddp__checkpoint_told(d, err));
    return ddp__serve_status(d, code, err);
}

int ddp_serve(ddp_ctx *d)
{
    DDP__ENTER(d);
    if (!ddp__is_server(d))
        return ddp__ctx_failf(
            d, DDP_USAGE, "ddp_serve: rank %d of %d computes; %d rank%s serve%s (ddp_config.server.count)",
            ddp_rank(d), ddp_world(d), ddp_servers(d), ddp_servers(d) == 1 ? "" : "s",
            ddp_servers(d) == 1 ? "s" : "");
    return ddp__serve(d, ddp__error(d)) ? ddp__ctx_fail(d, ddp__error(d)) : 0;
}
