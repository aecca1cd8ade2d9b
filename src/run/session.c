/* Opening and closing a context, and what can be asked of it. */
#include "base/platform.h"
#include "base/tools.h"
#include "base/text.h"
#include "member/elastic.h"
#include "run/env.h"
#include "wire/rendezvous.h"
#include "wire/wire.h"
#include "wire/stream.h"
#include "run/context.h"
#include "run/device.h"
#include "run/join.h"

static const ddp__hooks *ddp__session_hooks(void)
{
    static const ddp__hooks table = {ddp_add_layer, ddp_forward_begin, ddp_backward_begin,
                                     ddp_backward_end};

    return &table;
}

static const char *ddp__name_of_layer(void *user, int layer)
{
    ddp_ctx *d = (ddp_ctx *)user;

    return layer >= 0 && layer < d->layers ? d->unit[layer].name : "";
}

void ddp__session_files(const ddp_ctx *d, ddp__tls_files *f)
{
    f->psk = d->cfg.tls_psk;
    f->ca = d->cfg.tls_ca;
    f->cert = d->cfg.tls_cert;
    f->key = d->cfg.tls_key;
}

uint64_t ddp__session_run(const ddp_ctx *d)
{
    return ddp__run_id(d->cfg.run_id);
}

static ddp_status ddp__connect(ddp_ctx *d, ddp__hub *hub, const char *addr, int listen_fd,
                               ddp__wire **wire, ddp_error *err)
{
    ddp__rendezvous r;
    ddp__tls_files files;
    const char *resume;

    if (d->cfg.transport == DDP_THREADS) {
        if (!hub)
            return ddp__fail(
                err, DDP_USAGE,
                "the threads transport needs its ranks in one process: start them with ddp_launch");
        return ddp__wire_threads(hub, d->rank, wire, err);
    }
    if (d->cfg.transport == DDP_MPI) return ddp__wire_mpi(d->rank, d->world, wire, err);
    memset(&r, 0, sizeof r);
    r.rank = d->rank;
    r.world = d->met;
    r.ids = d->world;
    r.addr = addr;
    r.listen_fd = listen_fd;
    r.run_id = ddp__session_run(d);
    r.run_name = d->cfg.run_id;
    if (addr == d->cfg.addr) r.ifname = d->cfg.socket_ifname; /* the second link has another */
    r.timeout_s = d->cfg.connect_timeout_s;
    r.join_timeout_s = d->cfg.join_timeout_s;
    r.cancel = d->cfg.cancel;
    r.peer_timeout_s = d->cfg.peer_timeout_s;
    r.insecure = d->cfg.insecure;
    ddp__session_files(d, &files);
    if (!d->tls) DDP__TRY(ddp__tls_open(&files, r.run_id, &d->tls, err));
    r.tls = d->tls;
    r.congestion = d->cfg.no_env ? NULL : getenv("DREAMDDP_TCP_CONGESTION");
    resume = d->cfg.no_env ? NULL : getenv("DREAMDDP_RESUME");
    r.resume = d->cfg.min_world > 0 || !resume || strcmp(resume, "0");
    r.log = d->host.log;
    DDP__TRY(ddp__rendezvous_tcp(&r, wire, err));
    (*wire)->intact = d->tls != NULL;
    if (d->cfg.min_world > 0 && ddp__admission_open(d, *wire, err)) {
        (*wire)->table->close(*wire);
        return err->code;
    }
    return DDP_OK;
}

ddp_status ddp__engine_start(ddp_ctx *d, ddp__wire *wire, const ddp__links *links, int joining,
                             uint64_t live, ddp__engine **out, ddp_error *err)
{
    ddp__engine_config e;
    ddp_status s;

    memset(&e, 0, sizeof e);
    e.wire = wire;
    e.rank = d->rank;
    e.world = d->world;
    if (links->path) e.links = links;
    e.deterministic = d->cfg.deterministic;
    e.coding = ddp__wire_coding(d->cfg.wire);
    e.coder = ddp__int8_coder();
    e.serves = (d->ops.traits & DDP_NEEDS_SERVERS) != 0;
    e.no_checksum = d->cfg.no_checksum;
    if (d->cfg.algorithm == DDP_FULL) e.full_bytes = SIZE_MAX;
    else if (d->cfg.algorithm != DDP_ALGORITHM_DEFAULT) e.full_bytes = 1; /* none */
    if (d->cfg.algorithm == DDP_RING) e.ring_bytes = 1;
    else if (d->cfg.algorithm != DDP_ALGORITHM_DEFAULT) e.ring_bytes = SIZE_MAX;
    e.peer_timeout_s = d->cfg.peer_timeout_s;
    e.op_timeout_s = d->cfg.op_timeout_s;
    e.min_world = d->cfg.min_world;
    if (d->cfg.min_world > 0) e.membership = ddp__elastic_membership();
    e.elastic_bytes = d->cfg.elastic_bytes;
    e.joining = joining;
    e.live = live;
    e.queue = 512; /* more layers than that in one step wait at the door, which costs nothing */
    e.allocator = d->cfg.allocator;
    e.log = d->host.log;
    e.layer_name = ddp__name_of_layer;
    e.user = d;
    s = ddp__engine_open(&e, out, err);
    if (s != DDP_OK) wire->table->close(wire);
    return s;
}

static ddp_status ddp__open_second(ddp_ctx *d, ddp__hub *hub, ddp_error *err)
{
    ddp__wire *wire = NULL;
    char addr[320];
    int listen_fd;

    if (!ddp__two_links(&d->cfg)) return DDP_OK;
    DDP__TRY(ddp__second_links(&d->cfg, &d->second_links, err));
    DDP__TRY(ddp__second_place(d, addr, sizeof addr, &listen_fd, err));
    if (hub) hub = ddp__hub_second(hub, 0);
    DDP__TRY(ddp__connect(d, hub, addr, listen_fd, &wire, err));
    return ddp__engine_start(d, wire, &d->second_links, 0, 0, &d->second, err);
}

/* Those who are there from the start, in an elastic world; larger worlds are not elastic. */
static uint64_t ddp__first_ids(int met)
{
    return met >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << met) - 1;
}

static ddp_status ddp__open_parts(ddp_ctx *d, ddp__hub *hub, int listen_fd, ddp_error *err)
{
    ddp__wire *wire = NULL;

    d->host.allocator = d->cfg.allocator;
    d->host.log = ddp__log_resolve(&d->cfg.logger, d->cfg.no_env);
    d->host.hooks = ddp__session_hooks();
    d->host.seed = d->cfg.seed;
    d->rank = d->cfg.rank;
    d->met = d->world = d->cfg.world;
    if (d->cfg.max_world > d->world) d->world = d->cfg.world = d->cfg.max_world;
    if (d->ops.self_bytes) d->self = ddp__calloc(1, d->ops.self_bytes);
    if (d->ops.self_bytes && !d->self)
        return ddp__fail(err, DDP_MEMORY, "out of memory for strategy %s", d->ops.name);
    d->optimizer = ddp_sgd(0.01f, 0);
    d->lr = d->optimizer.lr;
    d->plan_final = d->cfg.profile_steps == 0;
    DDP__TRY(ddp__links_open(&d->cfg, &d->links, err));
    if (d->cfg.threads > 1) {
        d->host.pool = ddp__pool_open(d->cfg.threads);
        if (!d->host.pool)
            return ddp__fail(err, DDP_MEMORY, "cannot start %d operator threads", d->cfg.threads);
    }
    DDP__TRY(ddp__device_open(d, err));
    if (d->cfg.join) return ddp__arrival_open(d, err);
    if (d->world == 1) return DDP_OK;
    DDP__TRY(ddp__connect(d, hub, d->cfg.addr, listen_fd, &wire, err));
    DDP__TRY(ddp__engine_start(d, wire, &d->links, 0, ddp__first_ids(d->met), &d->engine, err));
    return ddp__open_second(d, hub, err);
}

ddp_ctx *ddp__open(const ddp_config *cfg, const ddp__strategies *list, ddp__hub *hub, int listen_fd,
                   ddp_error *err)
{
    ddp_config zero;
    ddp_ctx *d = (ddp_ctx *)ddp__calloc(1, sizeof *d);
    ddp_error local;

    memset(&zero, 0, sizeof zero);
    if (!err) err = &local;
    memset(err, 0, sizeof *err);
    if (!d) {
        ddp__fail(err, DDP_MEMORY, "out of memory for a context");
        return NULL;
    }
    if (ddp__config_resolve(cfg ? cfg : &zero, list, &d->cfg, &d->ops, err) ||
        ddp__open_parts(d, hub, listen_fd, err)) {
        ddp_close(d);
        return NULL;
    }
    return d;
}

static void ddp__unit_free(ddp_ctx *d, ddp__unit *u)
{
    if (u->name) DDP_FREE(u->name);
    if (u->block) DDP_FREE(u->block);
    if (u->average) DDP_FREE(u->average);
    if (u->gradient) DDP_FREE(u->gradient);
    if (u->other) DDP_FREE(u->other);
    ddp__host_release(&d->host, u->state, u->state_count * sizeof(float));
}

void ddp_close(ddp_ctx *d)
{
    int i;

    if (!d) return;
    ddp__arrival_close(d);
    ddp__admission_stop(d);
    ddp__device_stop(d);
    if (d->second) ddp__engine_close(d->second);
    if (d->engine) ddp__engine_close(d->engine);
    ddp__admission_close(d);
    ddp__tls_free(d->tls);
    while (d->host.owned) {
        ddp__owned *o = d->host.owned;
        d->host.owned = o->next;
        o->destroy(o);
    }
    if (d->ops.close && (d->self || !d->ops.self_bytes)) d->ops.close(d, d->self);
    for (i = 0; i < d->layers; i++) ddp__unit_free(d, &d->unit[i]);
    ddp__posted_close(d);
    ddp__device_close(d);
    ddp__coded_close(d);
    ddp__levels_close(d);
    if (d->unit) DDP_FREE(d->unit);
    if (d->span) DDP_FREE(d->span);
    if (d->op_scratch) DDP_FREE(d->op_scratch);
    if (d->merge) DDP_FREE(d->merge);
    if (d->pace) DDP_FREE(d->pace);
    ddp__timer_close(&d->timer);
    ddp__links_free(&d->links);
    ddp__links_free(&d->second_links);
    ddp_profile_free(&d->profile);
    ddp__pool_close(d->host.pool);
    ddp__config_free(&d->cfg);
    DDP_FREE(d);
}

/* ---- registration ---- */

static ddp_status ddp__check_block(const ddp_ctx *d, const char *name, const ddp_block *b,
                                   ddp_error *err)
{
    if (b->count == 0)
        return ddp__fail(err, DDP_ARG, "layer %d (%s): a block of 0 values; leave it out",
                         d->layers, name);
    if (!b->params)
        return ddp__fail(err, DDP_ARG, "layer %d (%s): params is NULL for a block of %zu values",
                         d->layers, name, b->count);
    if (b->kind == DDP_BUFFERS && b->grads)
        return ddp__fail(err, DDP_ARG,
                         "layer %d (%s): a block of buffers has no gradients; leave grads NULL",
                         d->layers, name);
    return DDP_OK;
}

static ddp_status ddp__unit_fill(ddp_ctx *d, ddp__unit *u, const ddp_layer *layer, ddp_error *err)
{
    int own = layer->params || layer->count, i;
    char number[32];

    snprintf(number, sizeof number, "layer %d", d->layers);
    u->name = ddp__strdup(layer->name ? layer->name : number);
    u->block = (ddp_block *)ddp__calloc((size_t)(layer->block_count + own), sizeof *u->block);
    if (!u->name || !u->block)
        return ddp__fail(err, DDP_MEMORY, "out of memory registering layer %d", d->layers);
    if (own) {
        u->block[0].params = layer->params;
        u->block[0].grads = layer->grads;
        u->block[0].count = layer->count;
        u->blocks = 1;
    }
    for (i = 0; i < layer->block_count; i++) u->block[u->blocks++] = layer->blocks[i];
    u->flops = layer->flops;
    u->group = layer->group;
    for (i = 0; i < u->blocks; i++) DDP__TRY(ddp__check_block(d, u->name, &u->block[i], err));
    return DDP_OK;
}

int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer)
{
    ddp__unit u;

    DDP__ENTER(d);
    if (!layer || layer->block_count < 0 || (layer->block_count > 0 && !layer->blocks))
        return ddp__ctx_failf(d, DDP_ARG,
                              "ddp_add_layer: layer %d is NULL or has blocks without an array",
                              d->layers);
    if (d->started)
        return ddp__ctx_failf(
            d, DDP_USAGE,
            "ddp_add_layer: layer %d (%s) comes too late: the list was frozen at %d layers by "
            "ddp_set_optimizer or the first hook; register all layers before",
            d->layers, layer->name ? layer->name : "unnamed", d->layers);
    if (d->layers == d->room) {
        int room = d->room ? 2 * d->room : 16;
        ddp__unit *grown = (ddp__unit *)DDP_REALLOC(d->unit, (size_t)room * sizeof *grown);
        if (!grown)
            return ddp__ctx_failf(d, DDP_MEMORY, "out of memory registering layer %d", d->layers);
        d->unit = grown;
        d->room = room;
    }
    memset(&u, 0, sizeof u);
    u.ticket = u.other_ticket = -1;
    if (ddp__unit_fill(d, &u, layer, &d->host.error)) {
        ddp__unit_free(d, &u);
        return ddp__ctx_fail(d, &d->host.error);
    }
    d->unit[d->layers++] = u;
    return 0;
}

int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o)
{
    DDP__ENTER(d);
    if (!o || !o->update || o->state_per_param < 0 || !(o->lr >= 0))
        return ddp__ctx_failf(d, DDP_ARG,
                              "ddp_set_optimizer: an update function, state_per_param >= 0 and a "
                              "learning rate >= 0 are needed");
    if (d->started)
        return ddp__ctx_failf(d, DDP_USAGE,
                              "ddp_set_optimizer: %s comes too late, training has begun",
                              o->name ? o->name : "the optimizer");
    d->optimizer = *o;
    if (!d->optimizer.name) d->optimizer.name = "user";
    d->lr = o->lr;
    if (d->layers && ddp__session_start(d, &d->host.error)) return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

/* ---- reading ---- */

int  ddp_rank(const ddp_ctx *d) { return d ? d->rank : 0; }
int  ddp_world(const ddp_ctx *d) { return d ? d->world : 1; }

uint64_t ddp__live(const ddp_ctx *d)
{
    ddp__epoch_info info;

    if (!d->engine) return 1;
    ddp__engine_epoch(d->engine, &info);
    return info.live;
}

int ddp__is_first(const ddp_ctx *d)
{
    return d->world > 64 ? d->rank == 0 : !(ddp__live(d) & (((uint64_t)1 << d->rank) - 1));
}

int ddp__leads(const ddp_ctx *d) { return d->team ? d->team_place == 0 : ddp__is_first(d); }

int ddp_workers(const ddp_ctx *d)
{
    ddp__epoch_info info;

    if (!d || !d->engine) return 1;
    ddp__engine_epoch(d->engine, &info);
    return info.workers;
}

uint64_t ddp_live(const ddp_ctx *d) { return d ? ddp__live(d) : 1; }

unsigned ddp_epoch(const ddp_ctx *d)
{
    ddp__epoch_info info;

    if (!d || !d->engine) return 0;
    ddp__engine_epoch(d->engine, &info);
    return (unsigned)info.ballot;
}

long ddp_step(const ddp_ctx *d) { return d ? d->step : 0; }
int64_t ddp_taken(const ddp_ctx *d) { return d ? d->taken : 0; }

void ddp_set_lr(ddp_ctx *d, float lr)
{
    if (d) d->lr = lr;
}

const ddp_error *ddp_last_error(const ddp_ctx *d)
{
    static const ddp_error none = {DDP_ARG,
                                   "the context is NULL: ddp_open failed, its error says why"};

    return d ? &d->host.error : &none;
}

void ddp_abort(ddp_ctx *d, const char *why)
{
    if (!why) why = "aborted by request";
    /* any thread: only the engine, or one atomic, is touched; the hooks find the error there */
    if (d && d->second) ddp__engine_abort(d->second, DDP_ABORTED, why);
    if (d && d->engine) {
        ddp__engine_abort(d->engine, DDP_ABORTED, why);
    } else if (d && ddp__atomic_add(&d->aborts, 1) == 0) {
        snprintf(d->abort_text, sizeof d->abort_text, "%s", why);
        ddp__atomic_store(&d->aborted, 1);
    }
}
