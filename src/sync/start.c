/* The start of a session: layers are frozen, compared across ranks and made equal. */
#include "base/platform.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "sync/context.h"
#include "sync/device.h"
#include "sync/join.h"

void ddp__pack64(float *out, uint64_t v)
{
    int i;

    for (i = 0; i < DDP__WORDS; i++) out[i] = (float)((v >> (16 * i)) & 0xffff);
}

uint64_t ddp__unpack64(const float *in)
{
    uint64_t v = 0;
    int i;

    for (i = 0; i < DDP__WORDS; i++) v |= (uint64_t)in[i] << (16 * i);
    return v;
}

/* ---- memory of the layers ---- */

static ddp_status ddp__unit_lists(ddp_ctx *d, ddp__unit *u, ddp_error *err)
{
    size_t trained = 0;
    int b;

    u->average = (ddp__piece *)ddp__calloc((size_t)u->blocks + 1, sizeof *u->average);
    u->gradient = (ddp__piece *)ddp__calloc((size_t)u->blocks + 1, sizeof *u->gradient);
    if (!u->average || !u->gradient)
        return ddp__fail(err, DDP_MEMORY, "layer %s: out of memory", u->name);
    for (b = 0; b < u->blocks; b++) {
        const ddp_block *k = &u->block[b];
        if (k->kind == DDP_PARAMS && !k->grads) continue; /* frozen: equal from the start on */
        u->average[u->averages].data = k->params;
        u->average[u->averages++].count = k->count;
        u->count += k->count;
        if (k->kind != DDP_PARAMS) continue;
        u->gradient[u->gradients].data = k->grads;
        u->gradient[u->gradients++].count = k->count;
        trained += k->count;
    }
    u->state_count = trained * (size_t)d->optimizer.state_per_param;
    if (u->state_count) {
        u->state = (float *)ddp__host_alloc(&d->host, u->state_count * sizeof(float));
        if (!u->state)
            return ddp__fail(err, DDP_MEMORY,
                             "layer %s: out of memory for %zu bytes of optimizer state", u->name,
                             u->state_count * sizeof(float));
        if (d->cfg.average_state) {
            u->average[u->averages].data = u->state;
            u->average[u->averages++].count = u->state_count;
        }
    }
    u->trained = trained;
    u->ticket = u->other_ticket = -1;
    u->forward_step = -1;
    return DDP_OK;
}

/* A system that promises more memory than it has would end the process later, without a word. */
static ddp_status ddp__session_fits(const ddp_ctx *d, ddp_error *err)
{
    const double total = ddp__memory_total();
    double state = 0, graphs = 0;
    const ddp__owned *o;
    int l, b;

    if (d->host.backend || d->host.allocator.alloc || !(total > 0)) return DDP_OK;
    for (l = 0; l < d->layers; l++)
        for (b = 0; b < d->unit[l].blocks; b++)
            if (d->unit[l].block[b].kind == DDP_PARAMS && d->unit[l].block[b].grads)
                state += (double)d->unit[l].block[b].count;
    state *= (double)d->optimizer.state_per_param * sizeof(float);
    for (o = d->host.owned; o; o = o->next) graphs += o->bytes;
    if (state + graphs <= total) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "out of memory: %.0f bytes of optimizer state (%.40s) beside "
                     "%.0f of parameters, gradients and activations; this machine has %.0f: use a "
                     "smaller model, or an optimizer with less state", state, d->optimizer.name,
                     graphs, total);
}

static ddp_status ddp__session_memory(ddp_ctx *d, ddp_error *err)
{
    int per_step = 8 * d->layers * d->cfg.micro_batches + 64, l;

    DDP__TRY(ddp__session_fits(d, err));
    for (l = 0; l < d->layers; l++) DDP__TRY(ddp__unit_lists(d, &d->unit[l], err));
    DDP__TRY(ddp__coded_memory(d, err));
    d->spans = d->cfg.trace_spans > per_step ? d->cfg.trace_spans : per_step;
    d->op_room = d->cfg.trace_spans > 0 ? 2048 : (d->cfg.site > 0 ? 12 : 4) * d->layers + 64;
    d->merge_room = per_step + d->op_room;
    d->span = (ddp_span *)ddp__calloc((size_t)d->spans, sizeof *d->span);
    d->op_scratch = (ddp__op_span *)ddp__calloc((size_t)d->op_room, sizeof *d->op_scratch);
    d->merge = (ddp_span *)ddp__calloc((size_t)d->merge_room, sizeof *d->merge);
    d->pace = (float *)ddp__calloc(2 * (size_t)d->world, sizeof *d->pace);
    d->pace_ticket = -1;
    if (!d->span || !d->op_scratch || !d->merge || !d->pace ||
        !ddp__timer_open(&d->timer, d->layers, d->cfg.profile_steps + 1))
        return ddp__fail(err, DDP_MEMORY, "out of memory for the spans of %d layers", d->layers);
    return DDP_OK;
}

/* ---- comparison ---- */

enum {
    DDP__F_VERSION,
    DDP__F_LAYERS,
    DDP__F_STRATEGY,
    DDP__F_MICRO,
    DDP__F_WIRE,
    DDP__F_TEAM,
    DDP__F_MIXED,
    DDP__F_SITE,
    DDP__F_ALIKE,
    DDP__F_HASH = DDP__F_ALIKE + DDP__ALIKE,
    DDP__F_SIZE = DDP__F_HASH + DDP__WORDS
};

static uint64_t ddp__unit_hash(const ddp__unit *u)
{
    uint64_t h = ddp__hash(DDP__HASH_START, u->name, strlen(u->name));
    int b;

    for (b = 0; b < u->blocks; b++) {
        uint64_t n = (uint64_t)u->block[b].count * 4 + (uint64_t)u->block[b].kind * 2 +
                     (u->block[b].grads != NULL);
        h = ddp__hash(h, &n, sizeof n);
    }
    return h;
}

uint64_t ddp__layout_hash(const ddp_ctx *d)
{
    uint64_t h = ddp__hash(DDP__HASH_START, d->optimizer.name, strlen(d->optimizer.name));
    int l;

    for (l = 0; l < d->layers; l++) {
        uint64_t u = ddp__unit_hash(&d->unit[l]);
        h = ddp__hash(h, &u, sizeof u);
    }
    return h;
}

void ddp__alike(const ddp_ctx *d, float *value)
{
    value[0] = (float)d->cfg.average_state;
    value[1] = d->cfg.clip_norm;
    value[2] = (float)d->cfg.bucket_bytes;
    value[3] = (float)d->cfg.deterministic;
    value[4] = (float)d->cfg.paper;
    value[5] = (float)d->links.slowest; /* decides the size of chunks */
    value[6] = (float)d->cfg.period;
    value[7] = (float)d->cfg.nccl;
    value[8] = (float)d->cfg.min_world;
    value[9] = (float)d->cfg.profile_steps;
}

const char *ddp__alike_name(int i)
{
    static const char *const name[DDP__ALIKE] = {
        "average_state", "clip_norm", "bucket_bytes", "deterministic", "paper",
        "net (bytes/s of the slowest link)", "period", "nccl", "min_world", "profile_steps"};

    return name[i];
}

static void ddp__fingerprint(const ddp_ctx *d, float *f)
{
    uint64_t h = ddp__layout_hash(d);

    f[DDP__F_VERSION] =
        (float)(DDP_VERSION_MAJOR * 10000 + DDP_VERSION_MINOR * 100 + DDP_VERSION_PATCH);
    f[DDP__F_LAYERS] = (float)d->layers;
    f[DDP__F_STRATEGY] = (float)d->cfg.strategy;
    f[DDP__F_MICRO] = (float)d->cfg.micro_batches;
    f[DDP__F_WIRE] = (float)(int)ddp__wire_coding(d->cfg.wire);
    f[DDP__F_TEAM] = (float)d->team;
    f[DDP__F_MIXED] = (float)d->mixed;
    f[DDP__F_SITE] = (float)d->cfg.site;
    ddp__alike(d, f + DDP__F_ALIKE);
    ddp__pack64(f + DDP__F_HASH, h);
}

static int ddp__in_team(const ddp_ctx *d, int rank)
{
    int i;

    for (i = 0; i < d->team_size; i++)
        if (ddp__team_rank(d, i) == rank) return 1;
    return 0;
}

static ddp_status ddp__compare_ranks(const ddp_ctx *d, const float *all, ddp_error *err)
{
    static const char *const coding[] = {"float32", "bfloat16", "int8 blocks"};
    const float *zero = all, *team;
    int r, i;

    while (zero[DDP__F_VERSION] == 0.0f) zero += DDP__F_SIZE; /* a lost worker's */
    team = d->team ? all + (size_t)d->team_root * DDP__F_SIZE : zero;
    for (r = 0; r < d->world; r++) {
        const float *f = all + (size_t)r * DDP__F_SIZE;
        if (f[DDP__F_VERSION] == 0.0f) continue;
        if (f[DDP__F_VERSION] != zero[DDP__F_VERSION])
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d runs dreamddp version %06.0f, rank 0 has %06.0f: build all "
                             "ranks from one header",
                             r, (double)f[DDP__F_VERSION], (double)zero[DDP__F_VERSION]);
        if (ddp__in_team(d, r) && f[DDP__F_LAYERS] != team[DDP__F_LAYERS])
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d registered %.0f layers, rank %d has %.0f: every rank%s must "
                             "register the same model",
                             r, (double)f[DDP__F_LAYERS], d->team_root,
                             (double)team[DDP__F_LAYERS], d->team ? " of a group" : "");
        if (f[DDP__F_STRATEGY] != zero[DDP__F_STRATEGY])
            return ddp__fail(
                err, DDP_MISMATCH,
                "rank %d runs strategy %s, rank 0 %s: start every rank with the same strategy", r,
                ddp_strategy_name((ddp_strategy)f[DDP__F_STRATEGY]),
                ddp_strategy_name((ddp_strategy)zero[DDP__F_STRATEGY]));
        if (f[DDP__F_MICRO] != zero[DDP__F_MICRO])
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d accumulates %.0f micro-batches, rank 0 %.0f", r,
                             (double)f[DDP__F_MICRO], (double)zero[DDP__F_MICRO]);
        for (i = 0; i < DDP__ALIKE; i++)
            if (f[DDP__F_ALIKE + i] != zero[DDP__F_ALIKE + i])
                return ddp__fail(err, DDP_MISMATCH,
                                 "rank %d has %s %g, rank 0 has %g: start every rank with the same",
                                 r, ddp__alike_name(i), (double)f[DDP__F_ALIKE + i],
                                 (double)zero[DDP__F_ALIKE + i]);
        if (f[DDP__F_WIRE] != zero[DDP__F_WIRE])
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d sends averages as %s, rank 0 as %s: start every rank with "
                             "the same wire format",
                             r, coding[(int)f[DDP__F_WIRE]], coding[(int)zero[DDP__F_WIRE]]);
    }
    return DDP_OK;
}

/* Same number of layers, other contents: rank 0's hashes tell which layer differs. */
static ddp_status ddp__compare_layers(ddp_ctx *d, ddp_error *err)
{
    float *hash = (float *)ddp__calloc((size_t)d->layers * DDP__WORDS, sizeof *hash);
    ddp__piece p;
    ddp_status s;
    int l;

    if (!hash) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d layers", d->layers);
    for (l = 0; l < d->layers; l++)
        ddp__pack64(hash + (size_t)l * DDP__WORDS, ddp__unit_hash(&d->unit[l]));
    p.data = hash;
    p.count = (size_t)d->layers * DDP__WORDS;
    s = ddp__blocking_in(d, d->team, DDP__BROADCAST, &p, 1, 1, err);
    for (l = 0; s == DDP_OK && l < d->layers; l++)
        if (ddp__unpack64(hash + (size_t)l * DDP__WORDS) != ddp__unit_hash(&d->unit[l]))
            s = ddp__fail(err, DDP_MISMATCH,
                          "layer %d: rank %d registered %s with %zu values in %d blocks, rank %d "
                          "something else: "
                          "every rank%s must register the same model",
                          l, d->rank, d->unit[l].name, d->unit[l].count, d->unit[l].blocks,
                          d->team_root, d->team ? " of a group" : "");
    DDP_FREE(hash);
    return s;
}

static ddp_status ddp__agree(ddp_ctx *d, ddp_error *err)
{
    float *all = (float *)ddp__calloc((size_t)d->world * DDP__F_SIZE, sizeof *all);
    ddp__piece p;
    ddp_status s;
    const float *own;
    int r, equal = 1, mixed = 0;

    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d ranks", d->world);
    ddp__fingerprint(d, all + (size_t)d->rank * DDP__F_SIZE);
    p.data = all;
    p.count = (size_t)d->world * DDP__F_SIZE;
    s = ddp__blocking(d, DDP__ALL_GATHER, &p, 1, 1, 0, err);
    for (r = 0; r < d->world; r++) /* a lost worker has no team */
        if (all[(size_t)r * DDP__F_SIZE] == 0.0f)
            all[(size_t)r * DDP__F_SIZE + DDP__F_TEAM] = -1.0f;
    if (s == DDP_OK) s = ddp__team_agree(d, all + DDP__F_TEAM, DDP__F_SIZE, err);
    if (s == DDP_OK) s = ddp__compare_ranks(d, all, err);
    own = all + (size_t)d->rank * DDP__F_SIZE;
    for (r = 0; r < d->world; r++) {
        const float *f = all + (size_t)r * DDP__F_SIZE;
        mixed |= f[DDP__F_MIXED] != 0.0f;
        if (f[DDP__F_VERSION] != 0.0f && ddp__in_team(d, r) &&
            memcmp(own + DDP__F_HASH, f + DDP__F_HASH, DDP__WORDS * sizeof *f))
            equal = 0;
    }
    if (s == DDP_OK && equal) s = ddp__levels_open(d, all + DDP__F_SITE, DDP__F_SIZE, err);
    DDP_FREE(all);
    if (s == DDP_OK && equal && mixed && !d->team) s = ddp__team_layers(d, err);
    if (s == DDP_OK && !equal) {
        float token = 0;
        DDP__TRY(ddp__compare_layers(d, err));
        /* this rank agrees with the first; wait for the abort of the one that does not */
        p.data = &token;
        p.count = 1;
        DDP__TRY(ddp__blocking_in(d, d->team, DDP__ALL_REDUCE, &p, 1, 1, err));
        return ddp__fail(err, DDP_MISMATCH, "the ranks use different optimizers; rank %d has %s",
                         d->rank, d->optimizer.name);
    }
    return s;
}

/* Everybody starts from the parameters of rank 0, or of the first rank of a layer's group, buffers
 * and frozen layers included. */
static ddp_status ddp__share_parameters(ddp_ctx *d, ddp_error *err)
{
    int l, b;

    for (l = 0; l < d->layers; l++)
        for (b = 0; b < d->unit[l].blocks; b++)
            DDP__TRY(ddp__layer_blocking(d, d->unit[l].group, DDP__BROADCAST,
                                         d->unit[l].block[b].params, d->unit[l].block[b].count, 1,
                                         ddp__group_root(d, d->unit[l].group), err));
    return DDP_OK;
}

/* The longest message of a session is all its layers at once. */
static ddp_status ddp__guard_layers(ddp_ctx *d, ddp_error *err)
{
    size_t count = 0;
    int l;

    for (l = 0; l < d->layers; l++)
        count += d->unit[l].count + (d->cfg.average_state ? d->unit[l].state_count : 0);
    if (d->second) DDP__TRY(ddp__engine_guard(d->second, count, err));
    return ddp__engine_guard(d->engine, count, err);
}

ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err)
{
    if (d->started) return DDP_OK;
    if (d->layers == 0)
        return ddp__fail(err, DDP_USAGE,
                         "no layer is registered: call ddp_add_layer, or ddp_graph_build, before "
                         "the first step");
    DDP__TRY(ddp__team_find(d, err));
    DDP__TRY(ddp__session_memory(d, err));
    if (d->engine) {
        if (d->cfg.check_writes) DDP__TRY(ddp__guard_layers(d, err));
        DDP__TRY(ddp__agree(d, err));
    }
    DDP__TRY(ddp__device_start(d, err));
    if (d->engine) {
        DDP__TRY(ddp__share_parameters(d, err));
        ddp__coded_start(d, 1);
        ddp__join_ready(d);
    }
    if (d->joiner) DDP__TRY(ddp__joiner_enter(d, err));
    if (d->strategy->start) DDP__TRY(d->strategy->start(d));
    if (d->plan_final && !d->strategy->partial) DDP__TRY(ddp__balance_nominal(d, err));
    d->started = 1;
    d->mark = d->step_begin = ddp_now();
    return DDP_OK;
}
