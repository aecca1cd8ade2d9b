/* The start of a session: layers are frozen, compared across ranks and made equal. */
#include "base/platform.h"
#include "base/clock.h"
#include "base/text.h"
#include "sync/context.h"

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
        u->state = (float *)ddp__alloc(&d->host.allocator, u->state_count * sizeof(float));
        if (!u->state)
            return ddp__fail(err, DDP_MEMORY,
                             "layer %s: out of memory for %zu bytes of optimizer state", u->name,
                             u->state_count * sizeof(float));
        if (d->cfg.average_state) {
            u->average[u->averages].data = u->state;
            u->average[u->averages++].count = u->state_count;
        }
    }
    u->ticket = -1;
    u->forward_step = -1;
    return DDP_OK;
}

static ddp_status ddp__session_memory(ddp_ctx *d, ddp_error *err)
{
    int per_step = 8 * d->layers * d->cfg.micro_batches + 64, l;

    for (l = 0; l < d->layers; l++) DDP__TRY(ddp__unit_lists(d, &d->unit[l], err));
    d->spans = d->cfg.trace_spans > per_step ? d->cfg.trace_spans : per_step;
    d->op_room = d->cfg.trace_spans > 0 ? 2048 : 4 * d->layers + 64;
    d->merge_room = per_step + d->op_room;
    d->span = (ddp_span *)ddp__calloc((size_t)d->spans, sizeof *d->span);
    d->op_scratch = (ddp__op_span *)ddp__calloc((size_t)d->op_room, sizeof *d->op_scratch);
    d->merge = (ddp_span *)ddp__calloc((size_t)d->merge_room, sizeof *d->merge);
    if (!d->span || !d->op_scratch || !d->merge ||
        !ddp__timer_open(&d->timer, d->layers, d->cfg.profile_steps + 1))
        return ddp__fail(err, DDP_MEMORY, "out of memory for the spans of %d layers", d->layers);
    return DDP_OK;
}

/* ---- comparison ---- */

enum {
    DDP__F_VERSION,
    DDP__F_LAYERS,
    DDP__F_PERIOD,
    DDP__F_STRATEGY,
    DDP__F_MICRO,
    DDP__F_HASH,
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

static void ddp__fingerprint(const ddp_ctx *d, float *f)
{
    uint64_t h = ddp__hash(DDP__HASH_START, d->optimizer.name, strlen(d->optimizer.name));
    int l;

    for (l = 0; l < d->layers; l++) {
        uint64_t u = ddp__unit_hash(&d->unit[l]);
        h = ddp__hash(h, &u, sizeof u);
    }
    f[DDP__F_VERSION] =
        (float)(DDP_VERSION_MAJOR * 10000 + DDP_VERSION_MINOR * 100 + DDP_VERSION_PATCH);
    f[DDP__F_LAYERS] = (float)d->layers;
    f[DDP__F_PERIOD] = (float)d->cfg.period;
    f[DDP__F_STRATEGY] = (float)d->cfg.strategy;
    f[DDP__F_MICRO] = (float)d->cfg.micro_batches;
    ddp__pack64(f + DDP__F_HASH, h);
}

static ddp_status ddp__compare_ranks(const ddp_ctx *d, const float *all, ddp_error *err)
{
    const float *zero = all;
    int r;

    for (r = 1; r < d->world; r++) {
        const float *f = all + (size_t)r * DDP__F_SIZE;
        if (f[DDP__F_VERSION] != zero[DDP__F_VERSION])
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d runs dreamddp version %06.0f, rank 0 has %06.0f: build all "
                             "ranks from one header",
                             r, (double)f[DDP__F_VERSION], (double)zero[DDP__F_VERSION]);
        if (f[DDP__F_LAYERS] != zero[DDP__F_LAYERS])
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d registered %.0f layers, rank 0 has %.0f: every rank must "
                             "register the same model",
                             r, (double)f[DDP__F_LAYERS], (double)zero[DDP__F_LAYERS]);
        if (f[DDP__F_PERIOD] != zero[DDP__F_PERIOD])
            return ddp__fail(
                err, DDP_MISMATCH,
                "rank %d has period %.0f, rank 0 has %.0f: start every rank with the same period",
                r, (double)f[DDP__F_PERIOD], (double)zero[DDP__F_PERIOD]);
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
    s = ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err);
    for (l = 0; s == DDP_OK && l < d->layers; l++)
        if (ddp__unpack64(hash + (size_t)l * DDP__WORDS) != ddp__unit_hash(&d->unit[l]))
            s = ddp__fail(err, DDP_MISMATCH,
                          "layer %d: rank %d registered %s with %zu values in %d blocks, rank 0 "
                          "something else: "
                          "every rank must register the same model",
                          l, d->rank, d->unit[l].name, d->unit[l].count, d->unit[l].blocks);
    DDP_FREE(hash);
    return s;
}

static ddp_status ddp__agree(ddp_ctx *d, ddp_error *err)
{
    float *all = (float *)ddp__calloc((size_t)d->world * DDP__F_SIZE, sizeof *all);
    ddp__piece p;
    ddp_status s;
    int r, equal = 1;

    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d ranks", d->world);
    ddp__fingerprint(d, all + (size_t)d->rank * DDP__F_SIZE);
    p.data = all;
    p.count = (size_t)d->world * DDP__F_SIZE;
    s = ddp__blocking(d, DDP__ALL_GATHER, &p, 1, 1, 0, err);
    if (s == DDP_OK) s = ddp__compare_ranks(d, all, err);
    for (r = 1; r < d->world; r++)
        if (memcmp(all + DDP__F_HASH, all + (size_t)r * DDP__F_SIZE + DDP__F_HASH,
                   DDP__WORDS * sizeof *all))
            equal = 0;
    DDP_FREE(all);
    if (s == DDP_OK && !equal) {
        float token = 0;
        DDP__TRY(ddp__compare_layers(d, err));
        /* this rank agrees with rank 0; wait for the abort of the one that does not */
        p.data = &token;
        p.count = 1;
        DDP__TRY(ddp__blocking(d, DDP__ALL_REDUCE, &p, 1, 1, 0, err));
        return ddp__fail(err, DDP_MISMATCH, "the ranks use different optimizers; rank %d has %s",
                         d->rank, d->optimizer.name);
    }
    return s;
}

/* Everybody starts from rank 0's parameters, buffers and frozen layers included. */
static ddp_status ddp__share_parameters(ddp_ctx *d, ddp_error *err)
{
    int l, b;

    for (l = 0; l < d->layers; l++)
        for (b = 0; b < d->unit[l].blocks; b++) {
            ddp__piece p;
            p.data = d->unit[l].block[b].params;
            p.count = d->unit[l].block[b].count;
            DDP__TRY(ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err));
        }
    return DDP_OK;
}

/* The longest message of a session is all its layers at once. */
static ddp_status ddp__guard_layers(ddp_ctx *d, ddp_error *err)
{
    size_t count = 0;
    int l;

    for (l = 0; l < d->layers; l++)
        count += d->unit[l].count + (d->cfg.average_state ? d->unit[l].state_count : 0);
    return ddp__engine_guard(d->engine, count, err);
}

ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err)
{
    if (d->started) return DDP_OK;
    if (d->layers == 0)
        return ddp__fail(err, DDP_USAGE,
                         "no layer is registered: call ddp_add_layer, or ddp_graph_build, before "
                         "the first step");
    DDP__TRY(ddp__session_memory(d, err));
    if (d->engine) {
        if (d->cfg.check_writes) DDP__TRY(ddp__guard_layers(d, err));
        DDP__TRY(ddp__agree(d, err));
        DDP__TRY(ddp__share_parameters(d, err));
    }
    if (d->strategy->start) DDP__TRY(d->strategy->start(d));
    d->started = 1;
    d->mark = d->step_begin = ddp_now();
    return DDP_OK;
}
