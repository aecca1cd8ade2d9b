/* Configuration: defaults, environment, and a sentence for each value that makes no sense. */
#include "plan/internal.h"
#include "run/context.h"

ddp_transport ddp_transport_named(const char *name)
{
    static const char *const names[] = {"", "threads", "tcp", "mpi", NULL};
    ddp_transport t = DDP_TRANSPORT_DEFAULT;

    (void)ddp__named(names, 1, "transport", name, &t, NULL);
    return t;
}

int ddp_algorithm_named(const char *name, ddp_algorithm *out)
{
    static const char *const names[] = {"auto", "full", "direct", "ring", NULL};

    return ddp__named(names, 0, "algorithm", name, out, NULL) == DDP_OK;
}

static const char *const ddp__wire_names[] = {"", "f32", "bf16", "int8", "int4", "e3m0", "topk", NULL};

const char *ddp_wire_name(ddp_wire wire)
{
    return ddp__wire_names[wire > DDP_WIRE_DEFAULT && wire <= DDP_WIRE_TOPK ? wire : DDP_WIRE_F32];
}

int ddp_wire_named(const char *name, ddp_wire *out)
{
    return ddp__named(ddp__wire_names, 1, "wire", name, out, NULL) == DDP_OK;
}

int ddp_wire_set(ddp_config *c, const char *text)
{
    double fraction;

    if (text && !strncmp(text, "topk:", 5)) {
        if (!ddp__parse_double(text + 5, &fraction) || !(fraction > 0 && fraction <= 1)) return 0;
        c->topk_fraction = fraction;
        text = "topk";
    }
    return ddp_wire_named(text, &c->wire);
}

int ddp_servers_named(const char *name, int *out)
{
    char *end;
    const long n = strtol(name, &end, 10);

    if (strcmp(name, "colocated") && (end == name || *end || n < 0 || n > 65535)) return 0;
    *out = end == name ? (int)DDP_SERVERS_COLOCATED : (int)n;
    return 1;
}

int ddp_defer_named(const char *name, double *out)
{
    char *end;
    const double x = strtod(name, &end);

    if (strcmp(name, "auto") && (end == name || *end || !(x >= 0 && x <= 1))) return 0;
    *out = end == name ? 0 : x > 0 ? x : (double)DDP_DEFER_NONE;
    return 1;
}

int ddp_lgp_named(const char *name, ddp_lgp *out)
{
    static const char *const names[] = {"", "on", "off", "ema", NULL};

    return ddp__named(names, 1, "lgp", name, out, NULL) == DDP_OK;
}

int ddp_correct_named(const char *name, ddp_correct *out)
{
    static const char *const names[] = {"", "deferred", "eager", NULL};

    return ddp__named(names, 1, "correct", name, out, NULL) == DDP_OK;
}

int ddp_split_named(const char *name, ddp_osp_rule *out)
{
    static const char *const names[] = {"walk", "stop", "density", "knapsack", NULL};

    return ddp__named(names, 0, "split", name, out, NULL) == DDP_OK;
}

int ddp_overlap_named(const char *name, ddp_overlap *out)
{
    static const char *const names[] = {"", "none", "stream", "eager", NULL};

    return ddp__named(names, 1, "overlap", name, out, NULL) == DDP_OK;
}

/* ---- environment ---- */

/* "ssgd, wfbp or dreamddp" */
static void ddp__strategy_names(const ddp__strategies *list, char *out, size_t room)
{
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; list->number(i) != DDP_STRATEGY_DEFAULT && n + 1 < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%s", i == 0 ? "" : list->number(i + 1) == DDP_STRATEGY_DEFAULT ?
                              " or " : ", ", list->name(list->number(i)));
}

/* The settings that are names. */
static ddp_status ddp__env_names(const ddp__strategies *list, ddp_config *c, ddp_error *err)
{
    const char *strategy = ddp__env_get("DREAMDDP_STRATEGY"), *transport = ddp__env_get("DREAMDDP_TRANSPORT"),
               *wire = ddp__env_get("DREAMDDP_WIRE"), *servers = ddp__env_get("DREAMDDP_SERVERS"),
               *defer = ddp__env_get("DREAMDDP_DEFER"), *overlap = ddp__env_get("DREAMDDP_OVERLAP");
    char names[512];

    if (strategy && c->strategy == DDP_STRATEGY_DEFAULT && !c->own_strategy) {
        c->strategy = list->named(strategy);
        ddp__strategy_names(list, names, sizeof names);
        if (c->strategy == DDP_STRATEGY_DEFAULT)
            return ddp__fail(err, DDP_ARG, "DREAMDDP_STRATEGY=%.60s is unknown: choose %s", strategy, names);
    }
    if (transport && c->transport == DDP_TRANSPORT_DEFAULT) {
        c->transport = ddp_transport_named(transport);
        if (c->transport == DDP_TRANSPORT_DEFAULT)
            return ddp__fail(err, DDP_ARG, "DREAMDDP_TRANSPORT=%s is unknown: choose tcp, threads or mpi", transport);
    }
    if (servers && c->servers == 0 && !ddp_servers_named(servers, &c->servers))
        return ddp__fail(err, DDP_ARG, "DREAMDDP_SERVERS=%.60s: a number of ranks that serve, or colocated", servers);
    if (defer && !(c->defer < 0) && !(c->defer > 0) && !ddp_defer_named(defer, &c->defer))
        return ddp__fail(err, DDP_ARG, "DREAMDDP_DEFER=%.60s: auto, or a share of the model from 0 to 1", defer);
    if (wire && c->wire == DDP_WIRE_DEFAULT && !ddp_wire_set(c, wire))
        return ddp__fail(err, DDP_ARG, "DREAMDDP_WIRE=%.60s is unknown: choose f32, bf16, int8, int4, e3m0 "
                         "or topk:FRACTION", wire);
    if (overlap && c->overlap == DDP_OVERLAP_DEFAULT && !ddp_overlap_named(overlap, &c->overlap))
        return ddp__fail(err, DDP_ARG, "DREAMDDP_OVERLAP=%s is unknown: choose none, stream or eager", overlap);
    return DDP_OK;
}

/* Fills what is zero; the strings it sets are the environment's, copied later with the rest. */
static ddp_status ddp__env_fill(ddp__env *e, const ddp__strategies *list, ddp_config *c, ddp_error *err)
{
    int literal = c->world > 0, resume = 0; /* that one is for who connects */

    DDP__TRY(ddp__env_read(e, err));
    if (!literal) {
        c->rank = e->launcher ? e->rank : 0;
        c->world = e->launcher ? e->world : 1;
    }
    if (!c->addr && e->addr[0] && !literal) c->addr = e->addr;
    if (!c->run_id && e->run_id[0]) c->run_id = e->run_id;
    DDP__TRY(ddp__env_names(list, c, err));
    DDP__TRY(ddp__env_flag("DREAMDDP_RESUME", &resume, err));
    return ddp__env_settings(c, err);
}

/* ---- checks and defaults ---- */

#define DDP__REFUSE(cond, ...)                                  \
    do {                                                        \
        if (cond) return ddp__fail(err, DDP_ARG, __VA_ARGS__);  \
    } while (0)

static ddp_status ddp__config_check(const ddp_config *c, ddp_error *err)
{
    const int workers = c->world - (c->servers > 0 ? c->servers : 0);

    DDP__REFUSE(c->world < 0 || c->world > 65535, "world %d: 1 to 65535 workers are possible", c->world);
    DDP__REFUSE(c->rank < 0 || (c->world > 0 && c->rank >= c->world),
                "rank %d is outside a world of %d: ranks are 0 to %d", c->rank, c->world, c->world - 1);
    DDP__REFUSE(c->period < 0 || c->period > 1000000, "period %d: H is 1 to 1000000 steps", c->period);
    DDP__REFUSE(c->threads < 0 || c->threads > 1024, "threads %d: 1 to 1024 are possible", c->threads);
    DDP__REFUSE(c->min_world < 0 || (c->world > 0 && c->min_world > workers && !c->join),
                "min_world %d is outside a world of %d that compute: 1 to %d, or 0", c->min_world, workers, workers);
    DDP__REFUSE(c->min_world > 0 && c->world > 64,
                "min_world: an elastic world has at most 64 workers, not %d", c->world);
    DDP__REFUSE(c->site < 0 || c->site > 1000000, "site %d: 1 to 1000000, or 0 for none", c->site);
    DDP__REFUSE(c->max_world < 0 || c->max_world > 64 || (c->max_world > 0 && c->max_world < c->world), "max_world %d: "
                "an elastic world of %d workers has room for %d to 64 ids", c->max_world, c->world, c->world);
    DDP__REFUSE(c->state_period[0] < 0 || c->state_period[1] < 0 || c->state_period[0] > 1000000 ||
                c->state_period[1] > 1000000 || (c->state_period[1] > 0 && !c->state_period[0]),
                "state_period %d,%d: 1 to 1000000 periods each, or 0,0", c->state_period[0], c->state_period[1]);
    DDP__REFUSE(c->split_params < 0, "split_params %d: 1 or more parameters of a part, or 0 for whole layers",
                c->split_params);
    DDP__REFUSE(c->micro_batches < 0, "micro_batches %d: at least 1", c->micro_batches);
    DDP__REFUSE(c->servers < (int)DDP_SERVERS_COLOCATED,
                "servers %d: 1 or more ranks that serve, DDP_SERVERS_COLOCATED, or 0 for none", c->servers);
    DDP__REFUSE(c->world > 0 && c->servers >= c->world, "servers %d: a world of %d has %s; it is the workers and the "
                "servers together", c->servers, c->world,
                c->world > 1 ? "no rank left that computes" : "one rank only");
    DDP__REFUSE(c->staleness < 0, "staleness %d: 0 or more steps", c->staleness);
    DDP__REFUSE(!(c->push_scale >= 0), "push_scale %g: above 0, or 0 for 1 / workers", (double)c->push_scale);
    DDP__REFUSE(!(c->defer <= 1 && (c->defer >= 0 || c->defer == (double)DDP_DEFER_NONE)), "defer %g: a share of the "
                "model up to 1, DDP_DEFER_NONE, or 0 to follow the loss", c->defer);
    DDP__REFUSE(c->lgp < DDP_LGP_DEFAULT || c->lgp > DDP_LGP_EMA, "lgp %d is unknown: use DDP_LGP_ON, DDP_LGP_OFF or "
                "DDP_LGP_EMA", (int)c->lgp);
    DDP__REFUSE(c->correct < DDP_CORRECT_DEFAULT || c->correct > DDP_CORRECT_EAGER,
                "correct %d is unknown: use DDP_CORRECT_DEFERRED or DDP_CORRECT_EAGER", (int)c->correct);
    DDP__REFUSE(c->split < DDP_OSP_WALK || c->split > DDP_OSP_KNAPSACK, "split %d is unknown: use DDP_OSP_WALK, "
                "DDP_OSP_STOP, DDP_OSP_DENSITY or DDP_OSP_KNAPSACK", (int)c->split);
    DDP__REFUSE(!(c->credit >= 0 && c->credit <= 1e6), "credit %g: 1 or more parts, or 0 for 1", c->credit);
    DDP__REFUSE(!(c->update_frequency >= 0 && c->update_frequency <= 1),
                "update_frequency %g: updates for each step, above 0 and at most 1, or 0 for as many as hide",
                c->update_frequency);
    DDP__REFUSE(!(c->preserve >= 0 && c->preserve <= 1e6),
                "preserve %g: how far from 1 a ratio of losses may be, or 0 for 0.01", c->preserve);
    DDP__REFUSE(!(c->outer_lr >= 0 && c->outer_lr <= 1e6), "outer_lr %g: a rate above 0; 1 and no momentum is the mean",
                c->outer_lr);
    DDP__REFUSE(!(c->outer_momentum >= -1 && c->outer_momentum < 1), "outer_momentum %g: above 0 and below 1, or "
                "DDP_NO_MOMENTUM", c->outer_momentum);
    DDP__REFUSE(!(c->mixture >= -1 && c->mixture < 1), "mixture %g: above 0 and below 1, or DDP_OVERWRITE", c->mixture);
    DDP__REFUSE(!(c->compensation >= 0 && c->compensation <= 1e6), "compensation %g: from 0", c->compensation);
    DDP__REFUSE(c->fragments < 0 || (c->period > 0 && c->fragments > c->period),
                "fragments %d: 1 to the period of %d, or 0 for the planner's", c->fragments, c->period);
    DDP__REFUSE(c->landing < 0 || (c->period > 0 && c->landing >= c->period),
                "landing %d: below the period of %d, as a fragment lands before it is sent again", c->landing, c->period);
    DDP__REFUSE(c->overlap < DDP_OVERLAP_DEFAULT || c->overlap > DDP_OVERLAP_EAGER,
                "overlap %d is unknown: use DDP_OVERLAP_NONE, DDP_OVERLAP_STREAM or DDP_OVERLAP_EAGER",
                (int)c->overlap);
    DDP__REFUSE(c->partition_bytes > 0 && c->partition_bytes < 256,
                "partition_bytes %lu: a part has at least 256 bytes", (unsigned long)c->partition_bytes);
    DDP__REFUSE(!(c->clip_norm >= 0), "clip_norm %g: a limit above 0, or 0 for none", (double)c->clip_norm);
    DDP__REFUSE(c->transport < DDP_TRANSPORT_DEFAULT || c->transport > DDP_MPI,
                "transport %d is unknown: use DDP_THREADS, DDP_TCP or DDP_MPI", (int)c->transport);
    DDP__REFUSE(c->wire < DDP_WIRE_DEFAULT || c->wire > DDP_WIRE_TOPK,
                "wire %d is unknown: use a DDP_WIRE_ of config.h", (int)c->wire);
    DDP__REFUSE(!(c->topk_fraction >= 0 && c->topk_fraction <= 1), "topk_fraction %g: above 0, at most 1", c->topk_fraction);
    if (c->transport == DDP_MPI) DDP__TRY(ddp__mpi_built(err));
    DDP__REFUSE(c->algorithm < DDP_ALGORITHM_DEFAULT || c->algorithm > DDP_RING,
                "algorithm %d is unknown: use DDP_FULL, DDP_DIRECT or DDP_RING", (int)c->algorithm);
    DDP__REFUSE(c->nccl < 0 || c->nccl > 2, "nccl %d: 0, 1 or 2", c->nccl);
    DDP__REFUSE((c->allocator.alloc == NULL) != (c->allocator.free == NULL),
                "allocator: set both alloc and free, or neither");
    return DDP_OK;
}
#undef DDP__REFUSE

static void ddp__config_defaults(ddp_config *c)
{
    if (c->transport == DDP_TRANSPORT_DEFAULT) c->transport = DDP_TCP;
    if (c->period == 0) c->period = 5;
    if (c->overlap == DDP_OVERLAP_DEFAULT) c->overlap = DDP_OVERLAP_NONE;
    if (c->world == 0) c->world = 1;
    if (c->threads == 0) c->threads = 1;
    if (c->micro_batches == 0) c->micro_batches = 1;
    if (c->state_period[0] > 0) c->average_state = 1;
    if (c->average_state && c->state_period[0] == 0) c->state_period[0] = 1;
    if (c->state_period[1] == 0) c->state_period[1] = c->state_period[0];
    if (c->bucket_bytes == 0) c->bucket_bytes = (size_t)25 << 20;
    if (c->partition_bytes == 0) c->partition_bytes = 26000000; /* 6.5 million parameters */
    if (!(c->credit > 0)) c->credit = 1;
    if (!(c->preserve > 0)) c->preserve = 0.01;
    if (!(c->connect_timeout_s > 0)) c->connect_timeout_s = 30;
    if (!(c->join_timeout_s > 0)) c->join_timeout_s = c->connect_timeout_s;
    if (!(c->peer_timeout_s > 0)) c->peer_timeout_s = 10;
    if (!(c->op_timeout_s > 0)) c->op_timeout_s = 1800;
    if (c->profile_steps == 0) c->profile_steps = 6;
    /* a plan that does not come from clocks needs no measured steps */
    if (c->profile_steps < 0 || c->deterministic || c->profile_path || c->plan_path) c->profile_steps = 0;
#ifdef DREAMDDP_DEBUG
    c->check_writes = 1;
#endif
}

/* The strings of a context's own configuration. */
#define DDP__CONFIG_STRINGS(X)                                                                     \
    X(addr) X(run_id) X(net) X(net_script) X(net2) X(addr2) X(socket_ifname) X(profile_path)       \
    X(plan_path) X(dump_path) X(tls_psk) X(tls_ca) X(tls_cert) X(tls_key)

static int ddp__config_own(const char **s)
{
    if (!*s) return 1;
    *s = ddp__strdup(*s);
    return *s != NULL;
}

/* The strategy that runs: the program's own, or one of the list. */
static ddp_status ddp__config_strategy(const ddp__strategies *list, ddp_config *c, ddp_strategy_ops *ops,
                                       ddp_error *err)
{
    const ddp_strategy_ops *own = c->own_strategy;
    char names[512];

    ddp__strategy_names(list, names, sizeof names);
    if (!own) {
        if (!list->fill(c->strategy, ops))
            return ddp__fail(err, DDP_ARG, "strategy %d is unknown: use the DDP_ name of %s", (int)c->strategy, names);
        c->strategy = list->named(ops->name);
        return DDP_OK;
    }
    if (!own->name || !*own->name || strlen(own->name) > 31 || list->named(own->name))
        return ddp__fail(err, DDP_ARG, "own_strategy '%.40s': it needs a name of at most 31 characters "
                         "that is not %s", own->name ? own->name : "", names);
    if (!own->backward_end && !own->step_end)
        return ddp__fail(err, DDP_ARG, "own strategy %s declares no events: it needs backward_end or "
                         "step_end, or layers are never updated", own->name);
    if (own->averages < DDP_AVERAGES_GRADIENTS || own->averages > DDP_AVERAGES_CHANGES)
        return ddp__fail(err, DDP_ARG, "own strategy %s averages %d: use DDP_AVERAGES_GRADIENTS, "
                         "_PARAMETERS or _CHANGES", own->name, (int)own->averages);
    if (own->plan_make && (!own->plan_first || !own->plan_take))
        return ddp__fail(err, DDP_ARG, "own strategy %s makes plans: it needs plan_first and plan_take too", own->name);
    *ops = *own;
    return DDP_OK;
}

ddp_status ddp__config_resolve(const ddp_config *given, const ddp__strategies *list, ddp_config *out,
                               ddp_strategy_ops *ops, ddp_error *err)
{
    ddp_config c = *given;
    ddp__env env;
    ddp__links links;
    int owned = 1;

    memset(&env, 0, sizeof env);
    DDP__TRY(ddp__config_check(&c, err));
    if (!c.no_env) DDP__TRY(ddp__env_fill(&env, list, &c, err));
    if (env.launcher && given->world < 1 && c.world > 1 && !c.addr &&
        (c.transport == DDP_TRANSPORT_DEFAULT || c.transport == DDP_TCP))
        return ddp__fail(err, DDP_ARG, "%s says that this is rank %d of %d, but not where rank 0 listens: set "
                         "DREAMDDP_ADDR=HOST:PORT on every rank", env.launcher, c.rank, c.world);
    if (env.launcher || env.note) {
        ddp_logger log = ddp__log_resolve(&c.logger, c.no_env);
        if (env.launcher)
            ddp__log(&log, DDP_LOG_INFO, "rank %d of %d, as %s says%s%s", c.rank, c.world,
                     env.launcher, env.note ? "; " : "", env.note ? env.note : "");
        else if (given->world < 1)
            ddp__log(&log, DDP_LOG_WARN, "%s", env.note);
    }
    ddp__config_defaults(&c);
    DDP__TRY(ddp__config_check(&c, err));
    DDP__TRY(ddp__config_strategy(list, &c, ops, err));
    if (ops->settle) DDP__TRY(ops->settle(ops, &c, err));
    DDP__TRY(ddp__goes_check(&c, ops, 0, err));
    if (ops->traits & DDP_NEEDS_SERVERS) c.profile_steps = 0; /* it plans by no profile, and servers have none */
    if (c.join) c.max_world = 0; /* the run's */
    if (c.transport == DDP_MPI && given->world < 1 && !env.launcher)
        (void)ddp__mpi_ranks(&c.rank, &c.world); /* a launcher that set no variable we know */
    for (int link = 0; link < 2; link++) { /* a file that cannot be read, before any start */
        DDP__TRY(ddp__links_open(&c, link, &links, err));
        ddp__links_free(&links);
    }
#define DDP__OWN_STRING(name) owned &= ddp__config_own(&c.name);
    DDP__CONFIG_STRINGS(DDP__OWN_STRING)
#undef DDP__OWN_STRING
    if (!owned) {
        ddp__config_free(&c);
        return ddp__fail(err, DDP_MEMORY, "out of memory copying the configuration");
    }
    *out = c;
    return DDP_OK;
}

void ddp__config_free(ddp_config *c)
{
#define DDP__FREE_STRING(name) \
    if (c->name) DDP_FREE((void *)(uintptr_t)c->name);
    DDP__CONFIG_STRINGS(DDP__FREE_STRING)
#undef DDP__FREE_STRING
    memset(c, 0, sizeof *c);
}
