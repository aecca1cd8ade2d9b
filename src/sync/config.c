/* Configuration: defaults, environment, and a sentence for each value that makes no sense. */
#include "base/platform.h"
#include "net/env.h"
#include "net/netspec.h"
#include "base/text.h"
#include "sync/context.h"

const ddp__strategy_table *ddp__strategy_find(ddp_strategy s)
{
    int n, i;
    const ddp__strategy_table *t = ddp__averaging_strategies(&n);

    for (i = 0; i < n; i++)
        if (t[i].id == s) return &t[i];
    t = ddp__gradient_strategies(&n);
    for (i = 0; i < n; i++)
        if (t[i].id == s) return &t[i];
    return NULL;
}

const char *ddp_strategy_name(ddp_strategy s)
{
    const ddp__strategy_table *t = ddp__strategy_find(s == DDP_STRATEGY_DEFAULT ? DDP_DREAMDDP : s);

    return t ? t->name : "unknown";
}

ddp_strategy ddp_strategy_named(const char *name)
{
    int s;

    for (s = (int)DDP_SSGD; s <= (int)DDP_DREAMDDP; s++)
        if (name && !strcmp(name, ddp_strategy_name((ddp_strategy)s))) return (ddp_strategy)s;
    return DDP_STRATEGY_DEFAULT;
}

/* ---- environment ---- */

static ddp_status ddp__env_count(const char *name, const char *text, int *field, ddp_error *err)
{
    long v;

    if (!text || *field) return DDP_OK;
    if (!ddp__parse_long(text, &v) || v < 1 || v > INT_MAX)
        return ddp__fail(err, DDP_ARG, "%s=%s is not a whole number above 0", name, text);
    *field = (int)v;
    return DDP_OK;
}

static ddp_status ddp__env_seconds(const char *name, const char *text, double *field,
                                   ddp_error *err)
{
    double v;

    if (!text || *field > 0) return DDP_OK;
    if (!ddp__parse_double(text, &v) || v <= 0)
        return ddp__fail(err, DDP_ARG, "%s=%s is not a number of seconds above 0", name, text);
    *field = v;
    return DDP_OK;
}

static ddp_status ddp__env_names(const ddp__env *e, ddp_config *c, ddp_error *err)
{
    if (e->strategy && c->strategy == DDP_STRATEGY_DEFAULT) {
        c->strategy = ddp_strategy_named(e->strategy);
        if (c->strategy == DDP_STRATEGY_DEFAULT)
            return ddp__fail(
                err, DDP_ARG,
                "DREAMDDP_STRATEGY=%s is unknown: choose ssgd, wfbp, localsgd, enp or dreamddp",
                e->strategy);
    }
    if (e->transport && c->transport == DDP_TRANSPORT_DEFAULT) {
        if (strcmp(e->transport, "tcp") && strcmp(e->transport, "threads"))
            return ddp__fail(err, DDP_ARG,
                             "DREAMDDP_TRANSPORT=%s is unknown: choose tcp or threads",
                             e->transport);
        c->transport = strcmp(e->transport, "tcp") ? DDP_THREADS : DDP_TCP;
    }
    return DDP_OK;
}

/* Fills what is zero; the strings it sets are the environment's, copied later with the rest. */
static ddp_status ddp__env_fill(ddp__env *e, ddp_config *c, ddp_error *err)
{
    int literal = c->world > 0;

    DDP__TRY(ddp__env_read(e, err));
    if (!literal) {
        c->rank = e->launcher ? e->rank : 0;
        c->world = e->launcher ? e->world : 1;
    }
    if (!c->addr && e->addr[0] && !literal) c->addr = e->addr;
    if (!c->net) c->net = e->net;
    DDP__TRY(ddp__env_names(e, c, err));
    DDP__TRY(ddp__env_count("DREAMDDP_PERIOD", e->period, &c->period, err));
    DDP__TRY(ddp__env_count("DREAMDDP_THREADS", e->threads, &c->threads, err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_CONNECT_TIMEOUT", e->connect_timeout, &c->connect_timeout_s,
                              err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_PEER_TIMEOUT", e->peer_timeout, &c->peer_timeout_s, err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_OP_TIMEOUT", e->op_timeout, &c->op_timeout_s, err));
    if (e->insecure && strcmp(e->insecure, "0")) c->insecure = 1;
    if (e->deterministic && strcmp(e->deterministic, "0")) c->deterministic = 1;
    return DDP_OK;
}

/* ---- checks and defaults ---- */

static ddp_status ddp__config_check(const ddp_config *c, ddp_error *err)
{
    double rate, delay;

    if (c->world < 0 || c->world > 65535)
        return ddp__fail(err, DDP_ARG, "world %d: 1 to 65535 workers are possible", c->world);
    if (c->rank < 0 || (c->world > 0 && c->rank >= c->world))
        return ddp__fail(err, DDP_ARG, "rank %d is outside a world of %d: ranks are 0 to %d",
                         c->rank, c->world, c->world - 1);
    if (c->period < 0 || c->period > 1000000)
        return ddp__fail(err, DDP_ARG, "period %d: H is 1 to 1000000 steps", c->period);
    if (c->threads < 0 || c->threads > 1024)
        return ddp__fail(err, DDP_ARG, "threads %d: 1 to 1024 are possible", c->threads);
    if (c->micro_batches < 0)
        return ddp__fail(err, DDP_ARG, "micro_batches %d: at least 1", c->micro_batches);
    if (!(c->clip_norm >= 0))
        return ddp__fail(err, DDP_ARG, "clip_norm %g: a limit above 0, or 0 for none",
                         (double)c->clip_norm);
    if (c->strategy < DDP_STRATEGY_DEFAULT || c->strategy > DDP_DREAMDDP)
        return ddp__fail(err, DDP_ARG,
                         "strategy %d is unknown: use the DDP_ names, DDP_SSGD to DDP_DREAMDDP",
                         (int)c->strategy);
    if (c->transport < DDP_TRANSPORT_DEFAULT || c->transport > DDP_TCP)
        return ddp__fail(err, DDP_ARG, "transport %d is unknown: use DDP_THREADS or DDP_TCP",
                         (int)c->transport);
    if ((c->allocator.alloc == NULL) != (c->allocator.free == NULL))
        return ddp__fail(err, DDP_ARG, "allocator: set both alloc and free, or neither");
    if (c->net) DDP__TRY(ddp_net_parse(c->net, &rate, &delay, err));
    return DDP_OK;
}

static void ddp__config_defaults(ddp_config *c)
{
    if (c->strategy == DDP_STRATEGY_DEFAULT) c->strategy = DDP_DREAMDDP;
    if (c->transport == DDP_TRANSPORT_DEFAULT) c->transport = DDP_TCP;
    if (c->period == 0) c->period = 5;
    if (c->world == 0) c->world = 1;
    if (c->threads == 0) c->threads = 1;
    if (c->micro_batches == 0) c->micro_batches = 1;
    if (c->bucket_bytes == 0) c->bucket_bytes = (size_t)25 << 20;
    if (!(c->connect_timeout_s > 0)) c->connect_timeout_s = 30;
    if (!(c->peer_timeout_s > 0)) c->peer_timeout_s = 10;
    if (!(c->op_timeout_s > 0)) c->op_timeout_s = 300;
    if (c->profile_steps == 0) c->profile_steps = 6;
    /* a plan that does not come from clocks needs no measured steps */
    if (c->profile_steps < 0 || c->deterministic || c->profile_path || c->plan_path)
        c->profile_steps = 0;
#ifdef DREAMDDP_DEBUG
    c->check_writes = 1;
#endif
}

static int ddp__config_own(const char **s)
{
    if (!*s) return 1;
    *s = ddp__strdup(*s);
    return *s != NULL;
}

ddp_status ddp__config_resolve(const ddp_config *given, ddp_config *out, ddp_error *err)
{
    ddp_config c = *given;
    ddp__env env;
    char run[20];
    int owned;

    memset(&env, 0, sizeof env);
    DDP__TRY(ddp__config_check(&c, err));
    if (!c.no_env) DDP__TRY(ddp__env_fill(&env, &c, err));
    if (env.launcher || env.note) {
        ddp_logger log = ddp__log_resolve(&c.logger, c.no_env);
        if (env.launcher)
            ddp__log(&log, DDP_LOG_INFO, "rank %d of %d, as %s says%s%s", c.rank, c.world,
                     env.launcher, env.note ? "; " : "", env.note ? env.note : "");
        else if (given->world < 1)
            ddp__log(&log, DDP_LOG_WARN, "%s", env.note);
    }
    if (!c.run_id && env.has_run_id) {
        snprintf(run, sizeof run, "%016llx", (unsigned long long)env.run_id);
        c.run_id = run;
    }
    ddp__config_defaults(&c);
    DDP__TRY(ddp__config_check(&c, err));
    owned = ddp__config_own(&c.addr);
    owned &= ddp__config_own(&c.run_id);
    owned &= ddp__config_own(&c.net);
    owned &= ddp__config_own(&c.profile_path);
    owned &= ddp__config_own(&c.plan_path);
    if (!owned) {
        ddp__config_free(&c);
        return ddp__fail(err, DDP_MEMORY, "out of memory copying the configuration");
    }
    *out = c;
    return DDP_OK;
}

void ddp__config_free(ddp_config *c)
{
    const char **s[5];
    int i;

    s[0] = &c->addr;
    s[1] = &c->run_id;
    s[2] = &c->net;
    s[3] = &c->profile_path;
    s[4] = &c->plan_path;
    for (i = 0; i < 5; i++)
        if (*s[i]) DDP_FREE((void *)(uintptr_t)*s[i]);
    memset(c, 0, sizeof *c);
}
