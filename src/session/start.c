/* Starts a session: freezes the layers, compares them across ranks and makes them equal. */
#include "config/settings.h"
#include "context/clock.h"
#include "context/context.h"
#include "device/device.h"
#include "exchange/average.h"
#include "exchange/events.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "exchange/verbs.h"
#include "measure/account.h"
#include "measure/measure.h"
#include "session/admission.h"
#include "session/part.h"
#include "session/planning.h"
#include "session/serve.h"
#include "session/start.h"

/* Checks the memory that the optimizer state needs. A system that overcommits memory would later kill the
 * process without an error. */
static ddp_status ddp__session_fits(const ddp_ctx *d, ddp_error *err)
{
    const double total = ddp__memory_total();
    const double graphs = ddp__graphs_bytes(d);
    double state = 0;

    if (ddp__backend_of(d) || ddp__allocator_of(d)->alloc || !(total > 0)) return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++) state += (double)ddp__unit_of(d, l)->state_count * sizeof(float);
    if (state + graphs <= total) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY,
                     "out of memory: %.0f bytes of optimizer state (%.40s) beside %.0f of parameters, "
                     "gradients and activations; this process may use %.0f: use a smaller model, or an "
                     "optimizer with less "
                     "state",
                     state, ddp__optimizer(d)->name, graphs, total);
}

static ddp_status ddp__session_memory(ddp_ctx *d, ddp_error *err)
{
    d->session->turn =
        (ddp__passes *)ddp__scratch_take(ddp__lists_of(d), (size_t)ddp__layers(d), sizeof *d->session->turn);
    d->session->drift = (ddp__drift_word *)ddp__scratch_take(ddp__lists_of(d), (size_t)ddp__team_size(d),
                                                             sizeof *d->session->drift);
    if (!d->session->turn || !d->session->drift)
        return ddp__fail(err, DDP_MEMORY, "out of memory for %d layers", ddp__layers(d));
    DDP__TRY(ddp__sending_open(d, err));
    DDP__TRY(ddp__session_fits(d, err));
    DDP__TRY(ddp__units_state(d, err));
    DDP__TRY(ddp__muon_open(d, d->session->cut != NULL, err));
    DDP__TRY(ddp__coded_memory(d, err));
    DDP__TRY(ddp__posted_open(d, err));
    DDP__TRY(ddp__clock_memory(d, err));
    return ddp__measure_start(d, err);
}

/* ---- teams ---- */

/* Determines the team: the ranks that register the same layers, and plan and measure together. It is the
 * group of all of a rank's layers, or all ranks if the layers belong to no group or to several. */
static ddp_status ddp__team_find(ddp_ctx *d, ddp_error *err)
{
    ddp_config checked = *ddp__cfg(d);
    int i, groups = 0, place = ddp_rank(d), team = ddp__unit_of(d, 0)->group;

    for (int l = 0; l < ddp__layers(d); l++) {
        const int group = ddp__unit_of(d, l)->group,
                  *ranks = ddp__engine_of(d, 0) ? ddp__engine_group_ranks(ddp__engine_of(d, 0), group) : NULL;
        int n = ranks ? ddp__engine_group_size(ddp__engine_of(d, 0), group) : 0;
        for (i = 0; i < n && ranks[i] != ddp_rank(d); i++) {
        }
        if (group && (i == n || !ranks))
            return ddp__fail(err, DDP_ARG,
                             "layer %d (%s) belongs to group %d, which rank %d is not in: make the group "
                             "with ddp_group, and register the layer on its ranks only",
                             l, ddp__unit_of(d, l)->name, group, ddp_rank(d));
        if (group) groups = 1;
        if (group != ddp__unit_of(d, 0)->group) d->session->mixed = 1;
    }
    if (ddp__norm_is_shared(d)) checked.clip_norm = 0; /* a pipeline shares the norm */
    DDP__TRY(ddp__goes_check(&checked, ddp__ops(d), groups, err));
    if (d->session->mixed) team = 0;
    ddp__team_set(d, team, team ? ddp__engine_group_size(ddp__engine_of(d, 0), team) : ddp_world(d),
                  ddp__group_root(d, team), place);
    for (i = 0; i < ddp__team_size(d); i++)
        if (ddp__team_rank(d, i) == ddp_rank(d)) place = i;
    ddp__team_set(d, team, ddp__team_size(d), ddp__team_root(d), place);
    return DDP_OK;
}

/* Sets the limit of check_writes: the longest message of a session contains all layers. */
static ddp_status ddp__guard_layers(ddp_ctx *d, ddp_error *err)
{
    size_t count = 0;

    for (int l = 0; l < ddp__layers(d); l++)
        count +=
            ddp__unit_of(d, l)->count + (ddp__cfg(d)->average.state ? ddp__unit_of(d, l)->state_count : 0);
    if (ddp__second_of(d)) DDP__TRY(ddp__engine_guard(ddp__second_of(d), count, err));
    return ddp__engine_guard(ddp__engine_of(d, 0), count, err);
}

/* Checks that the program has registered gradients. Otherwise ranks would diverge without an error. */
static ddp_status ddp__gradients_given(const ddp_ctx *d, ddp_error *err)
{
    int frozen = 0;

    if (ddp__ops(d)->averages != DDP_AVERAGES_GRADIENTS || !ddp__engine_of(d, 0)) return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++) {
        if (ddp__unit_of(d, l)->gradients) return DDP_OK;
        frozen += ddp__count(ddp__unit_of(d, l)->block);
    }
    if (ddp__team_group(d) && !frozen) return DDP_OK; /* a stage of a pipeline that has nothing to train */
    return ddp__fail(err, DDP_USAGE,
                     "strategy %s averages gradients, and none of %d layers has any: give them in "
                     "ddp_layer.grads, or choose a strategy that averages parameters",
                     ddp__ops(d)->name, ddp__layers(d));
}

/* Checks that no part of the run reads the gradients of DDP_OWN_PARAMS. */
static ddp_status ddp__gradients_kept(const ddp_ctx *d, ddp_error *err)
{
    const char *reader = ddp__optimizer(d)->update                         ? "the optimizer updates with them"
                         : ddp__ops(d)->averages == DDP_AVERAGES_GRADIENTS ? "the strategy averages them"
                         : ddp__ops(d)->traits & DDP_NEEDS_SERVERS         ? "the strategy sends them"
                         : ddp__cfg(d)->clip_norm > 0                      ? "clip_norm clips them"
                                                                           : NULL;

    for (int l = 0; reader && l < ddp__layers(d); l++)
        for (int b = 0; b < ddp__count(ddp__unit_of(d, l)->block); b++)
            if (ddp__unit_of(d, l)->block[b].kind == DDP_OWN_PARAMS)
                return ddp__fail(
                    err, DDP_UNSUPPORTED,
                    "layer %d (%s) has DDP_OWN_PARAMS, without gradients, but %s: register them as "
                    "DDP_PARAMS with gradients",
                    l, ddp__unit_of(d, l)->name, reader);
    return DDP_OK;
}

/* Checks that the program has registered the state of its own optimizer. A joining worker whose optimizer
 * began at zero would take different steps than the members, without an error. */
static ddp_status ddp__own_state_given(const ddp_ctx *d, ddp_error *err)
{
    if (ddp__optimizer(d)->update || d->session->programs ||
        (!ddp__cfg(d)->elastic.join && ddp__met(d) >= ddp_world(d)))
        return DDP_OK;
    return ddp__fail(err, DDP_UNSUPPORTED,
                     "%s with your own update: a joining worker needs the state of your optimizer: register "
                     "it with ddp_add_state before ddp_set_optimizer, or leave join and max_world 0",
                     ddp__cfg(d)->elastic.join ? "join" : "max_world");
}

ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err)
{
    const int joins = d->session->joiner != NULL;

    if (ddp__started(d)) return DDP_OK;
    if (ddp__layers(d) == 0)
        return ddp__fail(err, DDP_USAGE,
                         "no layer is registered: call ddp_add_layer, or ddp_graph_build, before the "
                         "first step");
    if (ddp__ops(d)->choose && d->session->cut)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "strategy %s cannot be combined with pipeline stages; use one stage, or set the "
                         "strategy that `plan choose` recommends",
                         ddp__ops(d)->name);
    DDP__TRY(ddp__units_describe(d, err));
    DDP__TRY(ddp__team_find(d, err));
    DDP__TRY(ddp__session_memory(d, err));
    DDP__TRY(ddp__landing_open(d, err));
    DDP__TRY(ddp__gradients_given(d, err));
    DDP__TRY(ddp__gradients_kept(d, err));
    DDP__TRY(ddp__own_state_given(d, err));
    DDP__TRY(ddp__session_pieces(d, err));
    if (ddp__engine_of(d, 0)) {
        if (ddp__cfg(d)->debug.check_writes) DDP__TRY(ddp__guard_layers(d, err));
        DDP__TRY(ddp__agree(d, err));
        DDP__TRY(ddp__stages_open(d, err));
        DDP__TRY(ddp__plan_fits_stages(d, err));
    }
    if (!joins) DDP__TRY(ddp__device_start(d, d->session->edge_messages, d->session->edge_bytes, err));
    if (ddp__engine_of(d, 0)) {
        DDP__TRY(ddp__share_parameters(d, err));
        ddp__computing_team(d);
        ddp__coded_start(d, 1);
    }
    DDP__TRY(DDP__EVENT(d, start, (d, ddp__self(d))));
    if (ddp__engine_of(d, 0)) ddp__admission_ready(d);
    if (joins) { /* from now on the joining worker has an engine and the members' state */
        DDP__TRY(ddp__arrival_enter(d, err));
        DDP__TRY(ddp__device_start(d, d->session->edge_messages, d->session->edge_bytes, err));
    }
    if (d->session->plan_final && !ddp__ops(d)->plan_make && !ddp__is_server(d))
        DDP__TRY(ddp__balance_links(d, NULL, err));
    DDP__TRY(ddp__desk_open(d, err));
    ddp__layers_freeze(d);
    ddp__clock_start(d);
    ddp__account_period(d, ddp__period_of(d));
    ddp__account_reset(d);
    return DDP_OK;
}
