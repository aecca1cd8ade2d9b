/* ddp_launch: the ranks of one machine. */
#include "run/context.h"

typedef struct ddp__launch {
    const ddp_config *cfg;
    const ddp__strategies *list;
    int (*fn)(ddp_ctx *, void *);
    void    *user;
    ddp__hub *hub;
} ddp__launch;

static ddp_status ddp__launch_run(const ddp__launch *L, const ddp_config *cfg, int listen_fd, ddp_error *err)
{
    ddp_ctx *d = ddp__open(cfg, L->list, L->hub, listen_fd, err);
    int code;

    if (!d) {
        if (L->hub) ddp__hub_leave(L->hub, cfg->rank); /* or the others would wait for its first byte */
        return err->code;
    }
    code = L->fn(d, L->user);
    if (d->host.error.code) {
        *err = d->host.error;
        code = (int)d->host.error.code;
    } else if (code) {
        if (code < 0 || code >= (int)DDP_STATUS_COUNT) code = (int)DDP_FAILED;
        ddp__fail(err, (ddp_status)code, "rank %d returned %d (%s) without an error of the context",
                  d->rank, code, ddp_status_text((ddp_status)code));
    }
    ddp_close(d);
    return (ddp_status)code;
}

static ddp_status ddp__launch_rank(int rank, int listen_fd, const char *addr, void *user, ddp_error *err)
{
    const ddp__launch *L = (const ddp__launch *)user;
    ddp_config cfg = *L->cfg;

    cfg.rank = rank;
    if (addr && *addr) cfg.addr = addr;
    return ddp__launch_run(L, &cfg, listen_fd, err);
}

int ddp__launch_all(const ddp_config *given, const ddp__strategies *list,
                    int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err)
{
    ddp_strategy_ops ops;
    ddp_config cfg;
    ddp_error local;
    ddp__launch L = {&cfg, list, fn, user, NULL};
    ddp__env env;
    ddp_status s;

    if (!err) err = &local;
    memset(err, 0, sizeof *err);
    if (!given || !fn) return (int)ddp__fail(err, DDP_ARG, "ddp_launch: configuration or function is NULL");
    memset(&env, 0, sizeof env);
    if (!given->no_env) {
        s = ddp__env_read(&env, err);
        if (s != DDP_OK) return (int)s;
    }
    cfg = *given;
    if (env.launcher) { /* a launcher made the ranks: this is one of them */
        cfg.rank = cfg.world = 0;
        return (int)ddp__launch_run(&L, &cfg, -1, err);
    }
    /* one worker, or one rank of a world whose other ranks are started elsewhere */
    if (cfg.world <= 1 || cfg.addr) return (int)ddp__launch_run(&L, &cfg, -1, err);
    s = ddp__config_resolve(given, list, &cfg, &ops, err); /* every rank would fail in the same way: once is enough */
    if (s != DDP_OK) return (int)s;
    if (cfg.transport == DDP_MPI) {
        s = ddp__fail(err, DDP_USAGE, "the mpi transport's ranks are started by an MPI launcher: mpirun -n %d before "
                      "the command", cfg.world);
    } else if (cfg.transport == DDP_THREADS) {
        L.hub = ddp__hub_new(cfg.world);
        if (L.hub && ddp__two_links(&cfg) && !ddp__hub_second(L.hub, 1)) {
            ddp__hub_free(L.hub);
            L.hub = NULL;
        }
        s = L.hub ? ddp__spawn_threads(cfg.world, ddp__launch_rank, &L, err)
                  : ddp__fail(err, DDP_MEMORY, "out of memory for a hub of %d threads", cfg.world);
        if (L.hub) ddp__hub_free(L.hub);
    } else {
        s = ddp__spawn(cfg.world, cfg.min_world + (cfg.min_world && cfg.servers > 0 ? cfg.servers : 0), cfg.cancel, 0, ddp__launch_rank, &L, err);
    }
    ddp__config_free(&cfg);
    return (int)s;
}
