/* Opens and closes a context, registers its layers and optimizer, and answers queries about its plan and
 * links. */
#include "config/settings.h"
#include "context/context.h"
#include "device/device.h"
#include "exchange/collective.h"
#include "exchange/events.h"
#include "exchange/exchange.h"
#include "measure/account.h"
#include "measure/measure.h"
#include "measure/timing.h"
#include "nn/exact.h"
#include "session/admission.h"
#include "session/launch.h"
#include "session/part.h"
#include "session/planning.h"
#include "session/serve.h"
#include "session/session.h"
#include "session/start.h"

static ddp_status ddp__open_parts(ddp_ctx *d, ddp__hub *hub, int listen_fd, ddp_error *err)
{
    ddp__engine *engine = NULL;
    ddp__wire *wire = NULL;
    int met = ddp__met(d);

    ddp__reported_set(d, d->session->info);
    d->session->plan_final = ddp__cfg(d)->profile_steps == 0;
    DDP__TRY(ddp__device_open(d, err));
    if (ddp__cfg(d)->elastic.join) return ddp__arrival_open(d, err);
    if (ddp_world(d) == 1) return DDP_OK;
    DDP__TRY(ddp__connect(d, hub, ddp__cfg(d)->addr, listen_fd, &wire, err));
    if (ddp__cfg(d)->elastic.min_world > 0 && ddp__cfg(d)->transport == DDP_TCP && !ddp_servers(d) &&
        ddp__admission_open(d, wire, err)) {
        wire->table->close(wire);
        return err->code;
    }
    DDP__TRY(ddp__engine_start(d, wire, ddp__links_of(d, 0), 0,
                               met < ddp_world(d) ? ((uint64_t)1 << met) - 1 : 0, &engine, err));
    ddp__engine_set(d, engine);
    DDP__TRY(ddp__open_second(d, hub, err));
    return ddp__computing_open(d, err);
}

ddp_ctx *ddp__open(const ddp_config *cfg, const ddp__strategies *list, ddp__hub *hub, int listen_fd,
                   ddp_error *err)
{
    static const ddp__hooks hooks = {ddp_add_layer, ddp_forward_begin, ddp_backward_begin, ddp_backward_end,
                                     ddp__last_pass};
    ddp_error local;
    ddp_ctx *d;

    if (!err) err = &local;
    memset(err, 0, sizeof *err);
    d = ddp__context_new(cfg, list, &hooks, err);
    if (d &&
        (!ddp__exchange_open(d) || !ddp__gpu_open(d) || !ddp__measure_open(d) || !ddp__session_open(d))) {
        ddp__fail(err, DDP_MEMORY, "out of memory for a context");
        ddp__strategy_close(d);
        ddp__context_free(d);
        return NULL;
    }
    if (d && ddp__open_parts(d, hub, listen_fd, err)) {
        ddp_close(d);
        return NULL;
    }
    return d;
}

/* Logs a summary of the run. ddprun parses these lines. */
static void ddp__closing_tell(ddp_ctx *d)
{
    ddp_stats s;

    if (ddp_step(d) == 0 || !ddp__log_of(d)->fn || ddp__log_of(d)->level < DDP_LOG_INFO) return;
    ddp_get_stats(d, &s);
    if (ddp__is_first(d))
        ddp__log(ddp__log_of(d), DDP_LOG_INFO,
                 "closed: %s, %ld steps of %.1f ms, %.0f %% of communication hidden, %.3g MB sent",
                 s.strategy, s.steps, 1e3 * s.step_s, s.hidden_pct, 1e-6 * (double)s.bytes_sent);
    else
        ddp__log(ddp__log_of(d), DDP_LOG_INFO, "rank %d closed: %.3g MB sent", ddp_rank(d),
                 1e-6 * (double)s.bytes_sent);
}

/* Closes the descriptors in a forked child, so that the peers do not take its end for the parent's. Locks,
 * threads and memory are not touched. */
static void ddp__disown(ddp_ctx *d)
{
    ddp__joiner_disown(d->session->joiner);
    ddp__join_disown(d->session->join);
    ddp__engine_disown(ddp__second_of(d));
    ddp__engine_disown(ddp__engine_of(d, 0));
}

void ddp_close(ddp_ctx *d)
{
    if (!d) return;
    if (ddp__host_forked(ddp__host_of(d))) {
        ddp__disown(d);
        return;
    }
    ddp__closing_tell(d);
    ddp__arrival_close(d);
    ddp__join_stop(d->session->join);
    ddp__desk_close(d);
    ddp__device_stop(d);
    if (ddp__second_of(d)) ddp__engine_close(ddp__second_of(d));
    if (ddp__engine_of(d, 0)) ddp__engine_close(ddp__engine_of(d, 0));
    ddp__later_close(d);
    ddp__join_close(d->session->join); /* until now the coordinator's message may have been in flight */
    ddp__tls_free(d->session->tls);
    ddp__graphs_free(d);
    ddp__strategy_close(d);
    ddp__posted_close(d);
    ddp__exchange_close(d);
    ddp__units_free(d);
    ddp_blob_free(&d->session->plan);
    ddp__device_close(d);
    ddp__array_free(d->session->transfer);
    ddp__array_free(d->session->transfer_message);
    ddp_profile_free(&d->session->profile);
    ddp__context_free(d);
}

/* ---- registration ---- */

int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer)
{
    DDP__ENTER(d);
    if (!layer || layer->block_count < 0 || (layer->block_count > 0 && !layer->blocks) ||
        layer->matrix_count < 0 || (layer->matrix_count > 0 && !layer->matrices))
        return ddp__ctx_failf(d, DDP_ARG,
                              "ddp_add_layer: layer %d is NULL or has blocks or matrices without an array",
                              ddp__layers(d));
    if (ddp__started(d))
        return ddp__ctx_failf(d, DDP_USAGE,
                              "ddp_add_layer: layer %d (%s) is too late: the list was frozen at %d layers by "
                              "ddp_set_optimizer or the first hook; register all layers before",
                              ddp__layers(d), layer->name ? layer->name : "unnamed", ddp__layers(d));
    return ddp__unit_add(d, layer, ddp__error(d)) ? ddp__ctx_fail(d, ddp__error(d)) : 0;
}

int ddp_layer_named(const ddp_ctx *d, const char *name) { return d && name ? ddp__unit_named(d, name) : -1; }

int ddp_add_block(ddp_ctx *d, const char *layer, float *params, float *grads, size_t count)
{
    const ddp_block added = {params, grads, count, DDP_PARAMS};
    ddp_layer first;
    int l;

    DDP__ENTER(d);
    if (!layer || !*layer || !params || !count)
        return ddp__ctx_failf(
            d, DDP_ARG,
            "ddp_add_block: layer '%.60s' with %zu values at %p: a name, an array and how many "
            "values it has are needed",
            layer ? layer : "", count, (void *)params);
    l = ddp_layer_named(d, layer);
    if (l < 0 || ddp__started(d)) { /* if it is too late, ddp_add_layer returns the error */
        memset(&first, 0, sizeof first);
        first.name = layer;
        first.params = params;
        first.grads = grads;
        first.count = count;
        return ddp_add_layer(d, &first);
    }
    if (!ddp__unit_add_block(d, l, &added))
        return ddp__ctx_failf(d, DDP_MEMORY, "out of memory registering layer %s", layer);
    return 0;
}

int ddp_add_stack(ddp_ctx *d, const char *name, float *params, float *grads, int copies, size_t count)
{
    enum { NAME = 200 };
    char layer[NAME + 16];

    DDP__ENTER(d);
    if (!name || !*name || !params || copies < 1 || !count)
        return ddp__ctx_failf(
            d, DDP_ARG,
            "ddp_add_stack: tensor '%.60s' with %d copies of %zu values at %p: a name, an array, "
            "at least one copy and at least one value are needed",
            name ? name : "", copies, count, (void *)params);
    if (strlen(name) > NAME)
        return ddp__ctx_failf(
            d, DDP_ARG, "ddp_add_stack: the name '%.60s...' has %zu characters; at most %d are possible",
            name, strlen(name), NAME);
    if (count > (size_t)-1 / sizeof(float) / (size_t)copies)
        return ddp__ctx_failf(
            d, DDP_ARG,
            "ddp_add_stack: tensor '%s' cannot have %d copies of %zu values: they exceed the "
            "address space",
            name, copies, count);
    for (int i = 0; i < copies; i++) {
        const size_t at = (size_t)i * count;
        int failed;

        snprintf(layer, sizeof layer, "%s%d", name, i);
        failed = ddp_add_block(d, layer, params + at, grads ? grads + at : NULL, count);
        if (failed) return failed;
    }
    return 0;
}

int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o)
{
    DDP__ENTER(d);
    if (!o || (!o->update && o->state_per_param) || o->state_per_param < 0 || o->matrix_state < 0 ||
        o->matrix_state > o->state_per_param || !(o->lr >= 0))
        return ddp__ctx_failf(d, DDP_ARG,
                              "ddp_set_optimizer: an update function with state_per_param >= 0, matrix_state "
                              "from 0 to that and a learning rate >= 0 are needed, or ddp_own_update()");
    if (!o->update && ddp__cfg(d)->average.state)
        return ddp__ctx_failf(d, DDP_ARG,
                              "average_state with your own update: the optimizer's state is yours: leave "
                              "average_state 0");
    if (ddp__updates_first(o) && (ddp__ops(d)->averages == DDP_AVERAGES_GRADIENTS ||
                                  ddp__cfg(d)->clip_norm > 0 || ddp__cfg(d)->average.first))
        return ddp__ctx_failf(
            d, DDP_UNSUPPORTED,
            "ddp_own_update_first with strategy %s, clip_norm %g and average_first %d: it needs "
            "a strategy that averages parameters, without these settings; use ddp_own_update",
            ddp__ops(d)->name, (double)ddp__cfg(d)->clip_norm, ddp__cfg(d)->average.first);
    if (ddp__started(d))
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_set_optimizer: %s is too late, training has begun",
                              o->name ? o->name : "the optimizer");
    ddp__optimizer_set(d, o);
    return ddp__layers(d) && ddp__session_start(d, ddp__error(d)) ? ddp__ctx_fail(d, ddp__error(d)) : 0;
}

/* ---- reading ---- */

int ddp_plan_adopt(ddp_ctx *d, const ddp_plan *plan)
{
    ddp_error *err;
    ddp_blob blob = {NULL, 0};

    DDP__ENTER(d);
    err = ddp__error(d);
    if (!ddp__ops(d)->plan_adopt)
        return ddp__ctx_failf(d, DDP_USAGE,
                              "ddp_plan_adopt: strategy %s follows no such plan; use one that averages "
                              "each layer in its own step of a period, as dreamddp does",
                              ddp__ops(d)->name);
    if (!plan || plan->layers != ddp__plan_rows(d) || plan->period < 1)
        return ddp__ctx_failf(d, DDP_ARG,
                              "ddp_plan_adopt: a plan for %d layers is needed, this one has %d layers and "
                              "period %d",
                              ddp__plan_rows(d), plan ? plan->layers : 0, plan ? plan->period : 0);
    if (!ddp__started(d) && ddp__session_start(d, err)) return ddp__ctx_fail(d, err);
    if (ddp__is_in_step(d, "ddp_plan_adopt") || ddp__strategy_wait(d, err) ||
        DDP__EVENT(d, plan_adopt, (d, ddp__self(d), plan, &blob)) || ddp__plan_set(d, &blob, NULL, err) ||
        ddp__balance_links(d, d->session->profile.layers ? &d->session->profile : NULL, err))
        return ddp__ctx_fail(d, err);
    d->session->plan_final = 1;
    ddp__account_reset(d);
    return 0;
}

const ddp_plan *ddp_plan_get(const ddp_ctx *d)
{
    return d && ddp__ops(d)->plan_view ? ddp__ops(d)->plan_view(ddp__self(d)) : NULL;
}

const ddp_profile *ddp_profile_get(const ddp_ctx *d)
{
    return d && d->session->profile.layers ? &d->session->profile : NULL;
}

int ddp_measure_links(ddp_ctx *d)
{
    DDP__ENTER(d);
    if (ddp__is_in_step(d, "ddp_measure_links")) return ddp__ctx_fail(d, ddp__error(d));
    if (ddp__cfg(d)->device.nccl && !ddp__started(d) && ddp__session_start(d, ddp__error(d)))
        return ddp__ctx_fail(d, ddp__error(d));
    for (int link = 0; link < ddp_links(d); link++)
        if (ddp__probe_link(d, link, 3, ddp__error(d))) return ddp__ctx_fail(d, ddp__error(d));
    return 0;
}

int ddp_get_link_stats(ddp_ctx *d, int link, ddp_link_stats *out)
{
    ddp__net_stats net;

    memset(out, 0, sizeof *out);
    if (link < 0 || link >= ddp_links(d)) return (int)DDP_ARG;
    DDP__DO(ddp__host_check(ddp__host_of(d), ddp__error(d)));
    if (ddp__has_nccl(d) && link == 0) {
        ddp__nccl_stats(d, &out->operations, &out->bytes_sent);
        out->algorithm = "nccl";
    } else {
        ddp__engine_stats(ddp__engine_of(d, link), &net);
        out->bytes_sent = net.bytes_sent;
        out->operations = net.operations;
        out->busy_s = net.busy_s;
        out->algorithm = ddp__algorithm_name(net.algorithm);
    }
    out->link = ddp__link_for(d, link, ddp__mean_layer_bytes(d));
    out->gap_s = ddp__gap_is(d, link);
    if (link == 0)
        out->mu = 1;
    else if (ddp__link_is(d, 0).beta_s > 0)
        out->mu = ddp__link_is(d, 1).beta_s / ddp__link_is(d, 0).beta_s;
    return 0;
}
