/* Configuration: defaults, environment, and a sentence for each value that makes no sense. */
#include "base/platform.h"
#include "net/env.h"
#include "net/wire_mpi.h"
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

ddp_transport ddp_transport_named(const char *name)
{
    if (name && !strcmp(name, "tcp")) return DDP_TCP;
    if (name && !strcmp(name, "threads")) return DDP_THREADS;
    if (name && !strcmp(name, "mpi")) return DDP_MPI;
    return DDP_TRANSPORT_DEFAULT;
}

int ddp_algorithm_named(const char *name, ddp_algorithm *out)
{
    static const char *const names[] = {"auto", "full", "direct", "ring"};
    int i;

    for (i = 0; name && i < 4; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (ddp_algorithm)i;
        return 1;
    }
    return 0;
}

int ddp_wire_named(const char *name, ddp_wire *out)
{
    static const char *const names[] = {"f32", "bf16", "int8"};
    int i;

    for (i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (ddp_wire)(i + (int)DDP_WIRE_F32);
        return 1;
    }
    return 0;
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

static ddp_status ddp__env_flag(const char *name, const char *text, int *field, ddp_error *err)
{
    if (!text) return DDP_OK;
    if ((*text != '0' && *text != '1') || text[1])
        return ddp__fail(err, DDP_ARG, "%s=%.60s is neither 1 nor 0", name, text);
    if (*text == '1') *field = 1;
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
        c->transport = ddp_transport_named(e->transport);
        if (c->transport == DDP_TRANSPORT_DEFAULT)
            return ddp__fail(err, DDP_ARG,
                             "DREAMDDP_TRANSPORT=%s is unknown: choose tcp, threads or mpi",
                             e->transport);
    }
    if (e->wire && c->wire == DDP_WIRE_DEFAULT) {
        if (!ddp_wire_named(e->wire, &c->wire))
            return ddp__fail(err, DDP_ARG, "DREAMDDP_WIRE=%s is unknown: choose f32, bf16 or int8",
                             e->wire);
    }
    return DDP_OK;
}

/* Fills what is zero; the strings it sets are the environment's, copied later with the rest. */
static ddp_status ddp__env_fill(ddp__env *e, ddp_config *c, ddp_error *err)
{
    int literal = c->world > 0, resume = 0; /* that one is for who connects */

    DDP__TRY(ddp__env_read(e, err));
    if (!literal) {
        c->rank = e->launcher ? e->rank : 0;
        c->world = e->launcher ? e->world : 1;
    }
    if (!c->addr && e->addr[0] && !literal) c->addr = e->addr;
    if (!c->net) c->net = e->net;
    if (!c->dump_path) c->dump_path = e->dump;
    if (!c->run_id && e->run_id[0]) c->run_id = e->run_id;
    if (!c->socket_ifname) c->socket_ifname = e->socket_ifname;
    if (!c->net_script) c->net_script = e->net_script;
    if (!c->net2) c->net2 = e->net2;
    if (!c->addr2) c->addr2 = e->addr2;
    DDP__TRY(ddp__env_names(e, c, err));
    DDP__TRY(ddp__env_count("DREAMDDP_PERIOD", e->period, &c->period, err));
    DDP__TRY(ddp__env_count("DREAMDDP_MIN_WORLD", e->min_world, &c->min_world, err));
    DDP__TRY(ddp__env_count("DREAMDDP_SITE", e->site, &c->site, err));
    DDP__TRY(ddp__env_count("DREAMDDP_MAX_WORLD", e->max_world, &c->max_world, err));
    DDP__TRY(ddp__env_count("DREAMDDP_THREADS", e->threads, &c->threads, err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_CONNECT_TIMEOUT", e->connect_timeout, &c->connect_timeout_s,
                              err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_JOIN_TIMEOUT", e->join_timeout, &c->join_timeout_s, err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_PEER_TIMEOUT", e->peer_timeout, &c->peer_timeout_s, err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_OP_TIMEOUT", e->op_timeout, &c->op_timeout_s, err));
    if (!c->tls_psk && !c->tls_ca && !c->tls_cert && !c->tls_key) {
        c->tls_psk = e->tls_psk;
        c->tls_ca = e->tls_ca;
        c->tls_cert = e->tls_cert;
        c->tls_key = e->tls_key;
    }
    DDP__TRY(ddp__env_flag("DREAMDDP_JOIN", e->join, &c->join, err));
    DDP__TRY(ddp__env_flag("DREAMDDP_INSECURE", e->insecure, &c->insecure, err));
    DDP__TRY(ddp__env_flag("DREAMDDP_RESUME", getenv("DREAMDDP_RESUME"), &resume, err));
    return ddp__env_flag("DREAMDDP_DETERMINISTIC", e->deterministic, &c->deterministic, err);
}

/* ---- checks and defaults ---- */

static ddp_status ddp__config_check(const ddp_config *c, ddp_error *err)
{
    if (c->world < 0 || c->world > 65535)
        return ddp__fail(err, DDP_ARG, "world %d: 1 to 65535 workers are possible", c->world);
    if (c->rank < 0 || (c->world > 0 && c->rank >= c->world))
        return ddp__fail(err, DDP_ARG, "rank %d is outside a world of %d: ranks are 0 to %d",
                         c->rank, c->world, c->world - 1);
    if (c->period < 0 || c->period > 1000000)
        return ddp__fail(err, DDP_ARG, "period %d: H is 1 to 1000000 steps", c->period);
    if (c->threads < 0 || c->threads > 1024)
        return ddp__fail(err, DDP_ARG, "threads %d: 1 to 1024 are possible", c->threads);
    if (c->min_world < 0 || (c->world > 0 && c->min_world > c->world))
        return ddp__fail(err, DDP_ARG, "min_world %d is outside a world of %d: 1 to %d, or 0",
                         c->min_world, c->world, c->world);
    if (c->min_world > 0 && c->world > 64)
        return ddp__fail(err, DDP_ARG, "min_world: an elastic world has at most 64 workers, not %d",
                         c->world);
    if (c->site < 0 || c->site > 1000000)
        return ddp__fail(err, DDP_ARG, "site %d: 1 to 1000000, or 0 for none", c->site);
    if (c->site > 0 && (c->min_world > 0 || c->wire == DDP_WIRE_INT8))
        return ddp__fail(err, DDP_ARG, "site %d: averages in two levels go neither with min_world "
                         "nor with int8 blocks; leave one of them out", c->site);
    if (c->max_world < 0 || c->max_world > 64 || (c->max_world > 0 && c->max_world < c->world))
        return ddp__fail(err, DDP_ARG,
                         "max_world %d: an elastic world of %d workers has room for %d to 64 ids",
                         c->max_world, c->world, c->world);
    if (c->micro_batches < 0)
        return ddp__fail(err, DDP_ARG, "micro_batches %d: at least 1", c->micro_batches);
    if (!(c->clip_norm >= 0))
        return ddp__fail(err, DDP_ARG, "clip_norm %g: a limit above 0, or 0 for none",
                         (double)c->clip_norm);
    if (c->strategy < DDP_STRATEGY_DEFAULT || c->strategy > DDP_DREAMDDP)
        return ddp__fail(err, DDP_ARG,
                         "strategy %d is unknown: use the DDP_ names, DDP_SSGD to DDP_DREAMDDP",
                         (int)c->strategy);
    if (c->transport < DDP_TRANSPORT_DEFAULT || c->transport > DDP_MPI)
        return ddp__fail(err, DDP_ARG,
                         "transport %d is unknown: use DDP_THREADS, DDP_TCP or DDP_MPI",
                         (int)c->transport);
    if (c->wire < DDP_WIRE_DEFAULT || c->wire > DDP_WIRE_INT8)
        return ddp__fail(err, DDP_ARG,
                         "wire %d is unknown: use DDP_WIRE_F32, DDP_WIRE_BF16 or DDP_WIRE_INT8",
                         (int)c->wire);
    if (c->transport == DDP_MPI) DDP__TRY(ddp__mpi_built(err));
    if (c->transport == DDP_MPI && (c->tls_psk || c->tls_ca || c->tls_cert || c->tls_key))
        return ddp__fail(err, DDP_ARG, "TLS and mpi: MPI's connections are its own and would not be "
                                       "encrypted; use --transport tcp, or no --tls options");
    if (c->algorithm < DDP_ALGORITHM_DEFAULT || c->algorithm > DDP_RING)
        return ddp__fail(err, DDP_ARG,
                         "algorithm %d is unknown: use DDP_FULL, DDP_DIRECT or DDP_RING",
                         (int)c->algorithm);
    if (c->algorithm == DDP_RING && c->deterministic)
        return ddp__fail(err, DDP_ARG,
                         "algorithm DDP_RING adds up in an order of its own: choose DDP_DIRECT, or "
                         "leave deterministic 0");
    if (c->min_world > 0 && (c->net2 || c->addr2))
        return ddp__fail(err, DDP_ARG,
                         "min_world %d: an elastic world has one link; leave out net2 and addr2",
                         c->min_world);
    if (c->max_world > c->world && c->world > 0 &&
        (c->transport == DDP_THREADS || c->transport == DDP_MPI))
        return ddp__fail(err, DDP_ARG,
                         "max_world %d: who comes later comes over tcp: choose that transport",
                         c->max_world);
    if (c->transport == DDP_MPI && (c->net2 || c->addr2))
        return ddp__fail(err, DDP_ARG,
                         "a second link (net2 or addr2) needs the tcp or threads transport, not "
                         "mpi");
    if (c->nccl && (c->min_world > 0 || c->join))
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "%s: elastic worlds average by transport; set nccl to 0, or leave it out",
                         c->join ? "join" : "min_world");
    if (c->backend && (c->net2 || c->addr2))
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "net2 and addr2: the second link of the %s backend is its own network; set "
                         "nccl to 2 instead, or train on the CPU", c->backend->name);
    if (c->backend && c->site > 0 && c->nccl != 1)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "site %d: averages of the %s backend go in two levels where nccl is 1, the "
                         "first of them inside the site; set that, or leave the site out", c->site,
                         c->backend->name);
    if (c->nccl < 0 || c->nccl > 2)
        return ddp__fail(err, DDP_ARG, "nccl %d: 0, 1 or 2", c->nccl);
    if (c->backend && c->wire == DDP_WIRE_INT8)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "wire int8: averages of the %s backend travel as f32 or bf16; choose one "
                         "of them", c->backend->name);
    if (c->nccl && (!c->backend || !c->backend->join))
        return ddp__fail(err, DDP_ARG, "nccl: no backend with a network of its own is set; leave "
                                       "nccl 0, or set backend to ddp_cuda(...)");
    if (c->cuda_stream && !c->backend)
        return ddp__fail(err, DDP_ARG, "cuda_stream: set backend to ddp_cuda(...) too, or leave it "
                                       "NULL");
    if ((c->allocator.alloc == NULL) != (c->allocator.free == NULL))
        return ddp__fail(err, DDP_ARG, "allocator: set both alloc and free, or neither");
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
    if (!(c->join_timeout_s > 0)) c->join_timeout_s = c->connect_timeout_s;
    if (!(c->peer_timeout_s > 0)) c->peer_timeout_s = 10;
    if (!(c->op_timeout_s > 0)) c->op_timeout_s = 1800;
    if (c->profile_steps == 0) c->profile_steps = 6;
    /* a plan that does not come from clocks needs no measured steps */
    if (c->profile_steps < 0 || c->deterministic || c->profile_path || c->plan_path)
        c->profile_steps = 0;
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

ddp_status ddp__config_resolve(const ddp_config *given, ddp_config *out, ddp_error *err)
{
    ddp_config c = *given;
    ddp__env env;
    ddp__links links;
    int owned = 1;

    memset(&env, 0, sizeof env);
    DDP__TRY(ddp__config_check(&c, err));
    if (!c.no_env) DDP__TRY(ddp__env_fill(&env, &c, err));
    if (env.launcher && given->world < 1 && c.world > 1 && !c.addr &&
        (c.transport == DDP_TRANSPORT_DEFAULT || c.transport == DDP_TCP))
        return ddp__fail(err, DDP_ARG,
                         "%s says that this is rank %d of %d, but not where rank 0 listens: set "
                         "DREAMDDP_ADDR=HOST:PORT on every rank",
                         env.launcher, c.rank, c.world);
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
    if (c.max_world > c.world && c.min_world == 0 && !c.join)
        return ddp__fail(err, DDP_ARG,
                         "max_world %d: only an elastic world has room for newcomers: set min_world",
                         c.max_world);
    if (c.join) c.max_world = 0; /* the run's */
    if (c.transport == DDP_MPI && given->world < 1 && !env.launcher)
        (void)ddp__mpi_ranks(&c.rank, &c.world); /* a launcher that set no variable we know */
    DDP__TRY(ddp__links_open(&c, &links, err)); /* a file that cannot be read, before any start */
    ddp__links_free(&links);
    DDP__TRY(ddp__second_links(&c, &links, err));
    ddp__links_free(&links);
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
