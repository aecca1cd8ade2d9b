/* Implements queries of a context: its error, the live ranks, links and groups, and the size of a layer's
 * average. */
#include "comm/frame.h"
#include "compress/compress.h"
#include "context/context.h"

int ddp__ctx_failf(ddp_ctx *d, ddp_status code, const char *fmt, ...)
{
    ddp_error err;
    va_list ap;

    err.code = code;
    va_start(ap, fmt);
    ddp__format_list(err.msg, sizeof err.msg, fmt, ap);
    va_end(ap);
    return ddp__ctx_fail(d, &err);
}

void ddp__explain(ddp_ctx *d, const char *text)
{
    ddp_error *e = &d->host.error;
    const size_t n = strlen(e->msg);

    if (e->code) snprintf(e->msg + n, sizeof e->msg - n, "%s", text);
}

/* Adds the call and the step to an error about different messages. The cause is that the ranks made different
 * calls, often because a rank took another number of steps. */
static void ddp__say_where(ddp_ctx *d)
{
    char text[160];

    if (d->said_where || !d->call || d->host.error.code != DDP_MISMATCH || !d->engine) return;
    if (ddp__engine_error(d->engine, NULL) != DDP_MISMATCH) return;
    snprintf(text, sizeof text, "; rank %d has taken %ld steps and is in %s", d->rank, d->step, d->call);
    ddp__explain(d, text);
    d->said_where = 1;
}

int ddp__ctx_fail(ddp_ctx *d, const ddp_error *err)
{
    if (err != &d->host.error) {
        if (d->host.error.code) return (int)d->host.error.code;
        d->host.error = *err;
    }
    ddp__say_where(d);
    if (d->ops.failed) d->ops.failed(d, d->self);
    /* reports a failure to the other ranks, unless it came from the engine */
    if (d->engine) ddp__engine_abort(d->engine, err->code, d->host.error.msg);
    if (d->second) ddp__engine_abort(d->second, err->code, d->host.error.msg);
    /* the program may free registered memory when it sees the failure */
    if (d->engine) ddp__engine_settle(d->engine);
    if (d->second) ddp__engine_settle(d->second);
    ddp__dump_failure(d);
    return (int)d->host.error.code;
}

const char *ddp__event_name(ddp__strategy_event event)
{
#define DDP__EVENT_NAME(name) #name,
    static const char *const names[] = {"no event", DDP__EVENTS(DDP__EVENT_NAME)};
#undef DDP__EVENT_NAME

    return names[event];
}

ddp__strategy_event ddp__event_of(const ddp_ctx *d) { return d->event; }

ddp__strategy_event ddp__event_set(ddp_ctx *d, ddp__strategy_event event)
{
    const ddp__strategy_event before = d->event;

    d->event = event;
    return before;
}

int ddp__hook_in_event(ddp_ctx *d)
{
    if (d->in_program)
        return ddp__ctx_failf(
            d, DDP_USAGE,
            "a %s function of ddp_add_state calls the context that called it: it may only call functions "
            "that read the context, such as ddp_rank, ddp_world and ddp_step",
            d->in_program);
    return ddp__ctx_failf(d, DDP_USAGE,
                          "strategy %s calls a hook or a collective of the program in its event "
                          "%s: an event may call what config/strategy.h lists",
                          d->ops.name, ddp__event_name(d->event));
}

/* ---- ranks ---- */

int ddp_rank(const ddp_ctx *d) { return d ? d->rank : 0; }
int ddp_world(const ddp_ctx *d) { return d ? d->world : 1; }

int ddp_local_rank(const ddp_ctx *d)
{
    static const char *const names[] = {"DREAMDDP_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID", "SLURM_LOCALID"};
    long v;

    for (size_t i = 0; d && !d->cfg.no_env && i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && ddp__parse_long(text, &v) && v >= 0 && v < 65536) return (int)v;
    }
    return ddp_rank(d);
}

int ddp__has_engine(const ddp_ctx *d) { return d->engine && !ddp__host_forked(&d->host); }

uint64_t ddp__live(const ddp_ctx *d)
{
    ddp__epoch_info info;

    if (!ddp__has_engine(d)) return 1;
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

    if (!d || !ddp__has_engine(d)) return 1;
    ddp__engine_epoch(d->engine, &info);
    return info.workers - ddp_servers(d);
}

int ddp__group_size(const ddp_ctx *d, int group)
{
    return !d || !d->engine ? 1 : group ? ddp__engine_group_size(d->engine, group) : ddp_workers(d);
}

int ddp__is_server(const ddp_ctx *d)
{
    return d->cfg.server.count > 0 && d->rank >= d->world - d->cfg.server.count;
}

int ddp_servers(const ddp_ctx *d) { return d && d->cfg.server.count > 0 ? d->cfg.server.count : 0; }

int ddp__hub_of(const ddp_ctx *d)
{
    return d->cfg.elastic.min_world > 0 && ddp_servers(d) ? d->world - ddp_servers(d) : 0;
}

uint64_t ddp_live(const ddp_ctx *d) { return d ? ddp__live(d) : 1; }

unsigned ddp_epoch(const ddp_ctx *d)
{
    ddp__epoch_info info;

    if (!d || !ddp__has_engine(d)) return 0;
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
                                   "the context is NULL because ddp_open failed; see the error of ddp_open"};

    return d ? &d->host.error : &none;
}

int ddp_lost_rank(const ddp_ctx *d)
{
    if (!d || d->host.error.code != DDP_PEER_LOST || !ddp__has_engine(d)) return -1;
    return ddp__engine_lost(d->engine);
}

void ddp_abort(ddp_ctx *d, const char *why)
{
    if (!d || ddp__host_forked(&d->host)) return;
    if (!why) why = "aborted by request";
    /* Any thread may call this: it uses only the engine or one atomic. The hooks find the error there. */
    if (d->second) ddp__engine_abort(d->second, DDP_ABORTED, why);
    ddp__engine_hold(d);
    if (d->engine) {
        ddp__engine_abort(d->engine, DDP_ABORTED, why);
    } else if (ddp__atomic_add(&d->aborts, 1) == 0) {
        snprintf(d->abort_text, sizeof d->abort_text, "%s", why);
        ddp__atomic_store(&d->aborted, 1);
    }
    ddp__engine_release(d);
}

ddp_status ddp__abort_check(const ddp_ctx *d, ddp_error *err)
{
    return ddp__atomic_load(&d->aborted) ? ddp__fail(err, DDP_ABORTED, "%s", d->abort_text) : DDP_OK;
}

ddp_status ddp__is_in_step(ddp_ctx *d, const char *call)
{
    if (d->joining == DDP__JOINS)
        return ddp__fail(&d->host.error, DDP_USAGE,
                         "%s before ddp_set_optimizer: this worker joins a run whose members are "
                         "past that call; call it after ddp_set_optimizer, and only if ddp_step is 0",
                         call);
    if (d->joining != DDP__HAS_ENTERED) return DDP_OK;
    ddp__engine_hush(d->engine);
    return ddp__fail(
        &d->host.error, DDP_USAGE,
        "%s: this worker joined before step %ld, and the members call %s without it "
        "until that step ends: where a program calls it before its first step, only if ddp_step is 0",
        call, d->step, call);
}

/* ---- links, groups and sizes ---- */

int ddp__two_links(const ddp_config *c) { return c->world > 1 && (c->network.net2 || c->network.addr2); }

ddp__engine *ddp__engine_of(const ddp_ctx *d, int link) { return link && d->second ? d->second : d->engine; }

size_t ddp__unit_pieces(const ddp_ctx *d, const ddp__unit *u)
{
    const int arrays = d->cfg.average.state ? d->optimizer.state_per_param : 0,
              parts = ddp__parts_for(d, u->trained);

    return (size_t)(u->gradients + parts - 1) * (size_t)(1 + arrays) + (size_t)ddp__count(u->block);
}

ddp_status ddp__session_pieces(ddp_ctx *d, ddp_error *err)
{
    size_t pieces = 1;

    for (int l = 0; l < d->layers; l++) pieces += ddp__unit_pieces(d, &d->unit[l]);
    if (d->second) DDP__TRY(ddp__engine_pieces(d->second, pieces, err));
    return d->engine ? ddp__engine_pieces(d->engine, pieces, err) : DDP_OK;
}

int ddp_links(const ddp_ctx *d)
{
    return !d || !d->engine ? 0 : d->second || d->cfg.device.nccl == 2 ? 2 : 1;
}

int ddp__group_root(const ddp_ctx *d, int group)
{
    const int *ranks = d->engine ? ddp__engine_group_ranks(d->engine, group) : NULL;

    return ranks ? ranks[0] : 0;
}

int ddp__team_rank(const ddp_ctx *d, int i)
{
    const int *ranks = d->engine ? ddp__engine_group_ranks(d->engine, d->team) : NULL;

    return ranks ? ranks[i] : i;
}

ddp_coding ddp__wire_coding(ddp_wire wire)
{
    /* the enums have the same order, and the strategy sends topk as bytes */
    return wire > DDP_WIRE_F32 && wire < DDP_WIRE_TOPK ? (ddp_coding)(wire - DDP_WIRE_F32) : DDP_AS_FLOAT;
}

int ddp__piece_state(const ddp_ctx *d, const ddp__unit *u, int i)
{
    return u->shape[i].rows ? d->optimizer.matrix_state : d->optimizer.state_per_param;
}

/* Returns the floats of optimizer state in an average of the layer, as a mean over periods. */
static size_t ddp__state_moved(const ddp_ctx *d, const ddp__unit *u)
{
    double n = 0;

    for (int i = 0; d->cfg.average.state && i < u->gradients; i++)
        for (int k = 0; k < ddp__piece_state(d, u, i); k++)
            n += (double)u->gradient[i].count / d->cfg.average.state_period[k > 0];
    return (size_t)n;
}

/* Returns the size in bytes of an all-reduce that takes as long as the topk all-gather of n floats. In the
 * gather each rank sends its block to W - 1 others. In an all-reduce of B bytes it sends 2 (W - 1) / W B. */
static size_t ddp__topk_bytes(const ddp_ctx *d, int group, size_t n)
{
#ifndef DDP_NO_PLANNERS
    return ddp_sparse_bytes(n, ddp_sparse_keep(d->cfg.topk_fraction)) * (size_t)ddp__group_size(d, group) / 2;
#else
    (void)d, (void)group;
    return n * sizeof(float);
#endif
}

size_t ddp__average_bytes(const ddp_ctx *d, int group, size_t trained, size_t others)
{
    const ddp_coding coding = ddp__wire_coding(d->cfg.wire);

    if (d->cfg.wire == DDP_WIRE_TOPK) return ddp__topk_bytes(d, group, trained) + others * sizeof(float);
    if (ddp__in_blocks((int)coding)) return ddp__frame_payload((int)coding, trained) + others * sizeof(float);
    return (trained + others) * (coding == DDP_AS_BFLOAT ? sizeof(uint16_t) : sizeof(float));
}

size_t ddp__layer_others(const ddp_ctx *d, int layer)
{
    const ddp__unit *u = &d->unit[layer];

    return u->count - u->trained + ddp__state_moved(d, u);
}

size_t ddp__layer_bytes(const ddp_ctx *d, int layer)
{
    const ddp__unit *u = &d->unit[layer];

    return ddp__average_bytes(d, u->group, u->trained, ddp__layer_others(d, layer));
}

int ddp__parts_for(const ddp_ctx *d, size_t trained)
{
    const size_t most = (size_t)d->cfg.average.split_params;

    return most && trained > most ? (int)((trained + most - 1) / most) : 1;
}

int ddp__plan_rows(const ddp_ctx *d)
{
    int rows = 0;

    for (int l = 0; l < d->layers; l++) rows += ddp__parts_for(d, d->unit[l].trained);
    return rows;
}

/* ---- values that must be equal on all ranks ---- */

uint64_t ddp__unit_hash(const ddp__unit *u)
{
    uint64_t h = ddp__hash(DDP__HASH_START, u->name, strlen(u->name));

    for (int b = 0; b < ddp__count(u->block); b++) {
        uint64_t n =
            (uint64_t)u->block[b].count * 4 + (uint64_t)u->block[b].kind * 2 + (u->block[b].grads != NULL);
        h = ddp__hash(h, &n, sizeof n);
    }
    return h;
}

uint64_t ddp__layout_hash(const ddp_ctx *d)
{
    const ddp_optimizer *o = &d->optimizer;
    uint64_t h = ddp__hash(DDP__HASH_START, o->name, strlen(o->name));

    if (ddp__optimizer_rule(o) != DDP__RULE_USER || ddp__is_muon(o))
        h = ddp__hash(h, o->hyper, sizeof o->hyper);
    for (int l = 0; l < d->layers; l++) {
        const ddp__unit *unit = &d->unit[l];
        uint64_t u = ddp__unit_hash(unit);
        h = ddp__hash(h, &u, sizeof u);
        for (int i = 0; d->optimizer.matrix_state && i < unit->gradients; i++) {
            const uint64_t shape[2] = {unit->shape[i].rows, unit->shape[i].columns};
            h = ddp__hash(h, shape, sizeof shape);
        }
    }
    return h;
}

double ddp__graphs_bytes(const ddp_ctx *d)
{
    double bytes = 0;

    for (const ddp__owned *o = d->host.owned; o; o = o->next) bytes += o->bytes;
    return bytes;
}

size_t ddp__passes_count(const ddp_ctx *d)
{
    size_t graphs = 0;

    for (const ddp__owned *o = d->host.owned; o; o = o->next) graphs += o->passes != NULL;
    return graphs;
}

void ddp__passes_get(const ddp_ctx *d, int64_t *out)
{
    for (const ddp__owned *o = d->host.owned; o; o = o->next)
        if (o->passes) *out++ = (int64_t)*o->passes;
}

void ddp__passes_set(ddp_ctx *d, const int64_t *passes)
{
    for (ddp__owned *o = d->host.owned; o; o = o->next)
        if (o->passes) *o->passes = (uint64_t)*passes++;
}

uint64_t ddp__dropout_hash(const ddp_ctx *d)
{
    uint64_t h = DDP__HASH_START;

    for (const ddp__owned *o = d->host.owned; o; o = o->next)
        if (o->passes) h = ddp__hash(h, &o->dropout, sizeof o->dropout);
    return h;
}

double ddp__dropout(const ddp_ctx *d)
{
    double most = 0;

    for (const ddp__owned *o = d->host.owned; o; o = o->next)
        if (o->passes && o->most_dropout > most) most = o->most_dropout;
    return most;
}

uint64_t ddp__model_hash(const ddp_ctx *d)
{
    const ddp__owned *o;
    uint64_t h = DDP__HASH_START;

    for (o = d->host.owned; o; o = o->next)
        if (o->passes) h = ddp__hash(h, &o->model, sizeof o->model);
    return h;
}
