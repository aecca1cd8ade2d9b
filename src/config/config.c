/* Resolves the configuration: defaults, environment, and errors for values that do not fit together. */
#include "config/settings.h"

/* Fills fields that are zero. Strings still belong to the environment. They are copied later with the rest.
 */
static ddp_status ddp__env_fill(ddp__env *e, const ddp__strategies *list, ddp_config *c, ddp_error *err)
{
    int literal = c->world > 0;

    DDP__TRY(ddp__env_read(e, err));
    if (!literal) {
        c->rank = e->launcher ? e->rank : 0;
        c->world = e->launcher ? e->world : 1;
    }
    if (!c->addr && e->addr[0] && !literal) c->addr = e->addr;
    if (!c->run_id && e->run_id[0]) c->run_id = e->run_id;
    return ddp__env_settings(list, c, err);
}

/* ---- checks and defaults ---- */

#define DDP__REFUSE(cond, ...)                                 \
    do {                                                       \
        if (cond) return ddp__fail(err, DDP_ARG, __VA_ARGS__); \
    } while (0)

/* Checks that involve several fields. */
static ddp_status ddp__config_check(const ddp__strategies *list, const ddp_config *c, ddp_error *err)
{
    const int workers = c->world - (c->server.count > 0 ? c->server.count : 0);

    DDP__TRY(ddp__settings_check(list, c, err));
    DDP__REFUSE(c->world > 0 && c->rank >= c->world, "rank %d is out of range for %d ranks: use 0 to %d",
                c->rank, c->world, c->world - 1);
    DDP__REFUSE(c->world > 0 && c->elastic.min_world > workers && !c->elastic.join,
                "min_world %d is out of range for %d computing workers: use 1 to %d, or 0",
                c->elastic.min_world, workers, workers);
    DDP__REFUSE(c->elastic.min_world > 0 && c->world > 64,
                "min_world: an elastic world has at most 64 workers, not %d", c->world);
    DDP__REFUSE(c->elastic.max_world > 0 && c->elastic.max_world < c->world,
                "max_world %d is out of range for an elastic world of %d workers: use %d to 64",
                c->elastic.max_world, c->world, c->world);
    DDP__REFUSE(c->average.state_period[0] < 0 || c->average.state_period[1] < 0 ||
                    c->average.state_period[0] > 1000000 || c->average.state_period[1] > 1000000 ||
                    (c->average.state_period[1] > 0 && !c->average.state_period[0]),
                "state_period %d,%d is invalid: choose 1 to 1000000 periods each, or 0,0",
                c->average.state_period[0], c->average.state_period[1]);
    DDP__REFUSE(c->world > 0 && c->server.count >= c->world,
                "servers %d: a world of %d has %s; world counts the workers and the servers", c->server.count,
                c->world, c->world > 1 ? "no computing rank left" : "only one rank");
    DDP__REFUSE(c->period > 0 && c->outer.fragments > c->period,
                "fragments %d is out of range: use 1 to the period of %d, or 0 to let the planner choose",
                c->outer.fragments, c->period);
    DDP__REFUSE(
        c->period > 0 && c->outer.landing >= c->period,
        "landing %d is not below the period of %d: each fragment must be applied before its next send",
        c->outer.landing, c->period);
    if (c->transport == DDP_MPI) DDP__TRY(ddp__mpi_built(err));
    DDP__REFUSE(!ddp__cpu_runs((int)c->kernels),
                "kernels %s: this processor supports only base%s%s; choose a set that every processor of the "
                "run supports, or auto",
                c->kernels == DDP_KERNELS_AVX2 ? "avx2" : "avx512",
                ddp__cpu_runs(DDP_KERNELS_AVX2) ? ", avx2" : "",
                ddp__cpu_runs(DDP_KERNELS_AVX512) ? ", avx512" : "");
    DDP__REFUSE((c->allocator.alloc == NULL) != (c->allocator.free == NULL),
                "allocator: set both alloc and free, or neither");
    return DDP_OK;
}

static ddp_status ddp__config_sockets(const ddp_config *c, ddp_error *err)
{
    DDP__REFUSE(c->world > 1 && c->transport == DDP_SOCKETS && !c->sockets,
                "transport sockets with %d ranks needs ddp_config.sockets: set it to the sockets connected "
                "to the other ranks, and call ddp_open in each process",
                c->world);
    DDP__REFUSE(c->sockets && c->transport != DDP_SOCKETS,
                "ddp_config.sockets is set for another transport: set transport "
                "to DDP_SOCKETS, or leave sockets NULL");
    return DDP_OK;
}
#undef DDP__REFUSE

static void ddp__config_defaults(const ddp__strategies *list, ddp_config *c)
{
    ddp__settings_default(list, c);
    if (c->average.state_period[0] > 0) c->average.state = 1;
    if (c->average.state && c->average.state_period[0] == 0) c->average.state_period[0] = 1;
    if (c->average.state_period[1] == 0) c->average.state_period[1] = c->average.state_period[0];
    if (!(c->timeout.join_s > 0)) c->timeout.join_s = c->timeout.connect_s;
    /* where a lost worker ends the run, a starved one is given more time */
    if (!(c->timeout.peer_s > 0)) c->timeout.peer_s = c->elastic.min_world > 0 || c->elastic.join ? 10 : 30;
    /* a plan that does not use measured times needs no measured steps */
    if (c->profile_steps < 0 || c->deterministic || c->profile_path || c->plan_path) c->profile_steps = 0;
#ifdef DREAMDDP_DEBUG
    c->debug.check_writes = 1;
#endif
}

/* Selects the strategy: the program's own, or one of the list. */
static ddp_status ddp__config_strategy(const ddp__strategies *list, ddp_config *c, ddp_strategy_ops *ops,
                                       ddp_error *err)
{
    const ddp_strategy_ops *own = c->own_strategy;
    char names[512];

    ddp__strategy_names(list, names, sizeof names);
    if (!own) {
        if (!list->fill(c->strategy, ops))
            return ddp__fail(err, DDP_ARG, "strategy %d is unknown: use the DDP_ name of %s",
                             (int)c->strategy, names);
        c->strategy = list->named(ops->name);
        return DDP_OK;
    }
    if (!own->name || !*own->name || strlen(own->name) > 31 || list->named(own->name))
        return ddp__fail(err, DDP_ARG,
                         "own_strategy '%.40s': it needs a name of at most 31 characters "
                         "that is not %s",
                         own->name ? own->name : "", names);
    if (!own->backward_end && !own->step_end)
        return ddp__fail(err, DDP_ARG,
                         "own strategy %s declares no events: it needs backward_end or "
                         "step_end, or layers are never updated",
                         own->name);
    if (own->averages < DDP_AVERAGES_GRADIENTS || own->averages > DDP_AVERAGES_CHANGES)
        return ddp__fail(err, DDP_ARG,
                         "own strategy %s averages %d: use DDP_AVERAGES_GRADIENTS, "
                         "_PARAMETERS or _CHANGES",
                         own->name, (int)own->averages);
    if (own->plan_make && !own->plan_take)
        return ddp__fail(err, DDP_ARG, "own strategy %s makes plans: it needs plan_take too", own->name);
    *ops = *own;
    return DDP_OK;
}

ddp_status ddp__config_resolve(const ddp_config *given, const ddp__strategies *list, ddp_config *out,
                               ddp_strategy_ops *ops, ddp_error *err)
{
    ddp_config c = *given;
    ddp__env env = DDP__ZEROS;
    ddp__links links;
    int period;

    DDP__TRY(ddp__config_check(list, &c, err));
    if (!c.no_env) DDP__TRY(ddp__env_fill(&env, list, &c, err));
    if (env.launcher && given->world < 1 && c.world > 1 && !c.addr &&
        (c.transport == DDP_TRANSPORT_DEFAULT || c.transport == DDP_TCP))
        return ddp__fail(
            err, DDP_ARG,
            "%s sets rank %d of %d, but not the address of rank 0: set DREAMDDP_ADDR=HOST:PORT on every rank",
            env.launcher, c.rank, c.world);
    if (env.launcher || env.note) {
        ddp_logger log = ddp__log_resolve(&c.logger, c.no_env);
        if (env.launcher)
            ddp__log(&log, DDP_LOG_INFO, "rank %d of %d, as %s says%s%s", c.rank, c.world, env.launcher,
                     env.note ? "; " : "", env.note ? env.note : "");
        else if (given->world < 1)
            ddp__log(&log, DDP_LOG_WARN, "%s", env.note);
    }
    period = c.period;
    ddp__config_defaults(list, &c);
    DDP__TRY(ddp__config_check(list, &c, err));
    DDP__TRY(ddp__config_strategy(list, &c, ops, err));
    if (ops->choose && c.plan_path)
        return ddp__fail(
            err, DDP_ARG,
            "strategy %s with plan_path %.200s: the plan is made after the choice; leave plan_path "
            "unset, or set the strategy of the plan",
            ops->name, c.plan_path);
    if (ops->choose && period == 0) c.period = 1; /* every candidate has its own */
    if (ops->settle) DDP__TRY(ops->settle(ops, &c, err));
    DDP__TRY(ddp__goes_check(&c, ops, 0, err));
    DDP__TRY(ddp__config_sockets(&c, err));
    if (ops->traits & DDP_NEEDS_SERVERS)
        c.profile_steps = 0;                     /* its plan uses no profile, and servers have none */
    if (c.elastic.join) c.elastic.max_world = 0; /* the run determines it */
    if (c.transport == DDP_MPI && given->world < 1 && !env.launcher)
        (void)ddp__mpi_ranks(&c.rank, &c.world); /* a launcher that sets no known variable */
    for (int link = 0; link < 2; link++) {       /* report an unreadable file before anything starts */
        DDP__TRY(ddp__links_open(&c, link, &links, err));
        ddp__links_free(&links);
    }
    if (!ddp__settings_own(&c)) {
        ddp__config_free(&c);
        return ddp__fail(err, DDP_MEMORY, "out of memory copying the configuration");
    }
    *out = c;
    return DDP_OK;
}

ddp_status ddp__config_choose(const ddp__strategies *list, const ddp_chosen *chosen, ddp_config *c,
                              ddp_strategy_ops *ops, ddp_error *err)
{
    c->strategy = (ddp_strategy)chosen->strategy;
    c->own_strategy = NULL;
    c->outer.overlap = (ddp_overlap)chosen->overlap;
    c->wire = (ddp_wire)chosen->wire;
    if (chosen->period > 0) c->period = chosen->period;
    DDP__TRY(ddp__config_check(list, c, err));
    DDP__TRY(ddp__config_strategy(list, c, ops, err));
    if (ops->choose) return ddp__fail(err, DDP_ARG, "strategy %s cannot be a choice", ops->name);
    if (ops->settle) DDP__TRY(ops->settle(ops, c, err));
    return ddp__goes_check(c, ops, 0, err);
}

void ddp__config_free(ddp_config *c)
{
    ddp__settings_disown(c);
    memset(c, 0, sizeof *c);
}
