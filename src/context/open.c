/* Creates a context from its configuration, and frees it. */
#include "config/settings.h"
#include "context/context.h"
#include "nn/exact.h"

/* Fills the fields that depend on the configuration only. */
static ddp_status ddp__context_fill(ddp_ctx *d, ddp_error *err)
{
    d->host.allocator = d->cfg.allocator;
    d->host.log = ddp__log_resolve(&d->cfg.logger, d->cfg.no_env);
    d->host.seed = d->cfg.seed;
    d->host.kernels = (int)d->cfg.kernels;
    d->rank = d->cfg.rank;
    d->met = d->world = d->cfg.world;
    if (d->cfg.elastic.max_world > d->world) d->world = d->cfg.world = d->cfg.elastic.max_world;
    if (d->ops.self_bytes) d->self = ddp__scratch_take(&d->lists, 1, d->ops.self_bytes);
    if (d->ops.self_bytes && !d->self)
        return ddp__fail(err, DDP_MEMORY, "out of memory for strategy %s", d->ops.name);
    d->optimizer = ddp_sgd(0.01f, 0);
    d->lr = d->optimizer.lr;
    DDP__TRY(ddp__links_open(&d->cfg, 0, &d->links[0], err));
    if (d->cfg.threads <= 1) return DDP_OK;
    d->host.pool = ddp__pool_open(d->cfg.threads);
    return d->host.pool ? DDP_OK
                        : ddp__fail(err, DDP_MEMORY, "cannot start %d operator threads", d->cfg.threads);
}

ddp_ctx *ddp__context_new(const ddp_config *cfg, const ddp__strategies *list, const ddp__hooks *hooks,
                          ddp_error *err)
{
    ddp_config zero = DDP__ZEROS;
    ddp_ctx *d = (ddp_ctx *)ddp__calloc(1, sizeof *d);

    if (!d) {
        ddp__fail(err, DDP_MEMORY, "out of memory for a context");
        return NULL;
    }
    d->host.process = getpid();
    d->host.hooks = hooks;
    d->list = list;
    if (ddp__config_resolve(cfg ? cfg : &zero, list, &d->cfg, &d->ops, err) || ddp__context_fill(d, err)) {
        ddp__strategy_close(d);
        ddp__context_free(d);
        return NULL;
    }
    return d;
}

void ddp__graphs_free(ddp_ctx *d)
{
    while (d->host.owned) {
        ddp__owned *o = d->host.owned;
        d->host.owned = o->next;
        o->destroy(o);
    }
}

void ddp__strategy_close(ddp_ctx *d)
{
    if (d->ops.close && (d->self || !d->ops.self_bytes)) d->ops.close(d, d->self);
}

ddp_status ddp__strategy_replace(ddp_ctx *d, const ddp_chosen *chosen, ddp_error *err)
{
    ddp_config c = d->cfg;
    ddp_strategy_ops ops;
    void *self = NULL;

    DDP__TRY(ddp__config_choose(d->list, chosen, &c, &ops, err));
    if (ops.self_bytes) self = ddp__scratch_take(&d->lists, 1, ops.self_bytes);
    if (ops.self_bytes && !self) return ddp__fail(err, DDP_MEMORY, "out of memory for strategy %s", ops.name);
    ddp__strategy_close(d);
    d->cfg = c; /* its strings still belong to the context */
    d->ops = ops;
    d->self = self;
    d->started = 0;
    return DDP_OK;
}

void ddp__context_free(ddp_ctx *d)
{
    ddp__links_free(&d->links[0]);
    ddp__links_free(&d->links[1]);
    ddp__pool_close(d->host.pool);
    ddp__config_free(&d->cfg);
    ddp__scratch_free(&d->lists);
    DDP_FREE(d);
}

ddp_status ddp__links_second(ddp_ctx *d, ddp_error *err)
{
    return ddp__links_open(&d->cfg, 1, &d->links[1], err);
}

ddp_status ddp__context_joins(ddp_ctx *d, int rank, int world, int min_world, ddp_error *err)
{
    d->rank = d->cfg.rank = rank;
    d->world = d->cfg.world = world;
    d->cfg.elastic.min_world = min_world;
    ddp__links_free(&d->links[0]); /* they belonged to another world */
    return ddp__links_open(&d->cfg, 0, &d->links[0], err);
}

void ddp__sockets_taken(ddp_ctx *d) { d->cfg.sockets = NULL; }

void ddp__second_set(ddp_ctx *d, ddp__engine *e) { d->second = e; }

void ddp__device_set(ddp_ctx *d, const ddp_backend *backend, void *device)
{
    d->host.backend = backend;
    d->host.device = device;
}

void ddp__paper_set(ddp_ctx *d, const unsigned char *paper, size_t bytes)
{
    d->host.paper = paper;
    d->host.paper_bytes = bytes;
}

void ddp__optimizer_set(ddp_ctx *d, const ddp_optimizer *o)
{
    d->optimizer = *o;
    if (!o->update && !ddp__updates_first(o)) d->cfg.average.first = 1;
    if (!d->optimizer.name) d->optimizer.name = o->update ? "user" : ddp_own_update().name;
    d->lr = o->lr;
}

void ddp__team_set(ddp_ctx *d, int group, int size, int root, int place)
{
    d->team = group;
    d->team_size = size;
    d->team_root = root;
    d->team_place = place;
}

void ddp__layers_freeze(ddp_ctx *d) { d->started = 1; }

void ddp__step_over(ddp_ctx *d, int64_t taken)
{
    d->step++;
    d->taken += taken;
}

void ddp__step_set(ddp_ctx *d, long step, int64_t taken)
{
    d->step = step;
    d->taken = taken;
}

void ddp__profile_for(ddp_ctx *d, long more) { d->cfg.profile_steps += (int)more; }

void ddp__call_is(ddp_ctx *d, const char *name) { d->call = name; }

const char *ddp__program_runs(ddp_ctx *d, const char *function)
{
    const char *before = d->in_program;

    d->in_program = function;
    return before;
}

void ddp__joining_set(ddp_ctx *d, ddp__joining state) { d->joining = state; }
