#include "base/platform.h"
#include "net/hello.h"
#include "sync/shard.h"

void ddp__shard_free(ddp__shard *s)
{
    if (s->list) DDP_FREE(s->list);
    if (s->copy) DDP_FREE(s->copy);
    if (s->updates) DDP_FREE(s->updates);
    if (s->random) DDP_FREE(s->random);
    ddp_plan_free(&s->plan);
    memset(s, 0, sizeof *s);
}

static void ddp__shard_add(ddp__shard *s, ddp_safetensors_type type, void *data, size_t n,
                           const char *fmt, int a, int b)
{
    ddp__shard_array *x = &s->list[s->count++];
    size_t at = (size_t)snprintf(x->name, sizeof x->name, "%s", fmt);

    if (a >= 0) at += (size_t)snprintf(x->name + at, sizeof x->name - at, ".%d", a);
    if (b >= 0) snprintf(x->name + at, sizeof x->name - at, ".%d", b);
    x->as.name = x->name;
    x->as.type = type;
    x->as.dims = 1;
    x->as.dim[0] = (int64_t)n;
    x->data = data;
}

static void ddp__shard_add_plan(ddp__shard *s, int layers)
{
    size_t L = (size_t)layers;

    ddp__shard_add(s, DDP_ST_F64, s->cost, 3, "plan.cost", -1, -1);
    ddp__shard_add(s, DDP_ST_I32, s->plan.step_of, L, "plan.step_of", -1, -1);
    ddp__shard_add(s, DDP_ST_U8, s->plan.fill, L * (size_t)s->plan.period, "plan.fill", -1, -1);
}

/* Files and newcomers read and write copies of what lies on a device. */
static ddp_status ddp__shard_copies(const ddp_ctx *d, ddp__shard *s, ddp_error *err)
{
    size_t n = 0;
    int i;

    if (!d->host.backend) return DDP_OK;
    for (i = 0; i < s->count; i++)
        if (s->list[i].layer) n += (size_t)s->list[i].as.dim[0];
    s->copy = (float *)ddp__calloc(n, sizeof *s->copy);
    if (!s->copy)
        return ddp__fail(err, DDP_MEMORY, "out of memory for a copy of %zu values of the device", n);
    for (i = 0, n = 0; i < s->count; i++) {
        if (!s->list[i].layer) continue;
        s->list[i].there = s->list[i].data;
        s->list[i].data = s->copy + n;
        n += (size_t)s->list[i].as.dim[0];
    }
    return DDP_OK;
}

ddp_status ddp__shard_open(ddp_ctx *d, int period, ddp__shard *s, ddp_error *err)
{
    const ddp__owned *o;
    int l, b, room = 8;

    memset(s, 0, sizeof *s);
    for (l = 0; l < d->layers; l++) room += d->unit[l].blocks + 3;
    for (o = d->host.owned; o; o = o->next) s->graphs += o->passes != NULL;
    s->list = (ddp__shard_array *)ddp__calloc((size_t)room, sizeof *s->list);
    s->updates = (int64_t *)ddp__calloc((size_t)d->layers, sizeof *s->updates);
    s->random = (int64_t *)ddp__calloc((size_t)s->graphs, sizeof *s->random);
    if (!s->list || !s->updates || !s->random)
        return ddp__fail(err, DDP_MEMORY, "out of memory for a checkpoint of %d layers", d->layers);
    if (period) DDP__TRY(ddp_plan_new(d->layers, period, &s->plan, err));
    ddp__shard_add(s, DDP_ST_I64, s->number, DDP__C_NUMBERS, "numbers", -1, -1);
    ddp__shard_add(s, DDP_ST_I64, s->updates, (size_t)d->layers, "updates", -1, -1);
    ddp__shard_add(s, DDP_ST_I64, s->random, (size_t)s->graphs, "random", -1, -1);
    if (period) ddp__shard_add_plan(s, d->layers);
    ddp__shard_add(s, DDP_ST_F32, &s->lr, 1, "lr", -1, -1);
    for (l = 0; l < d->layers; l++) {
        ddp__unit *u = &d->unit[l];
        const int first = s->count;

        for (b = 0; b < u->blocks; b++) {
            ddp__shard_add(s, DDP_ST_F32, u->block[b].params, u->block[b].count, "layer", l, b);
            s->list[s->count - 1].buffer = u->block[b].kind == DDP_BUFFERS;
        }
        if (u->state_count)
            ddp__shard_add(s, DDP_ST_F32, u->state, u->state_count, "state", l, -1);
        if (u->base) ddp__shard_add(s, DDP_ST_F32, u->base, u->trained, "base", l, -1);
        if (u->residual && u->trained) {
            ddp__shard_add(s, DDP_ST_F32, u->residual, u->trained, "residual", l, -1);
            s->list[s->count - 1].buffer = 1; /* unlike on all ranks */
        }
        for (b = first; b < s->count; b++) s->list[b].layer = u->name;
    }
    return ddp__shard_copies(d, s, err);
}

ddp_status ddp__shard_take(ddp_ctx *d, ddp__shard *s, ddp_error *err)
{
    const ddp__owned *o;
    int l, i = 0;

    DDP__TRY(ddp__shard_open(d, d->plan.layers ? d->plan.period : 0, s, err));
    for (l = 0; l < s->count; l++)
        if (s->list[l].there)
            DDP__TRY(ddp__host_download(&d->host, s->list[l].data, s->list[l].there,
                                        (size_t)s->list[l].as.dim[0] * sizeof(float), err));
    s->number[DDP__C_STEP] = d->step;
    s->number[DDP__C_FINAL] = d->plan_final;
    s->number[DDP__C_SOLVER] = d->plan.solver;
    s->number[DDP__C_COST] = d->plan.cost;
    s->number[DDP__C_TAKEN] = d->taken;
    s->lr = d->lr;
    for (l = 0; l < d->layers; l++) s->updates[l] = d->unit[l].updates;
    for (o = d->host.owned; o; o = o->next)
        if (o->passes) s->random[i++] = (int64_t)*o->passes;
    if (!s->plan.layers) return DDP_OK;
    s->cost[0] = d->plan.objective_s, s->cost[1] = d->plan.exposed_s,
    s->cost[2] = d->plan.lower_bound_s;
    memcpy(s->plan.step_of, d->plan.step_of, (size_t)d->layers * sizeof *d->plan.step_of);
    if (d->plan.fill)
        memcpy(s->plan.fill, d->plan.fill, (size_t)d->layers * (size_t)d->plan.period);
    return DDP_OK;
}

void ddp__shard_give(ddp_ctx *d, ddp__shard *s, int keep_plan)
{
    ddp__owned *o;
    int l, i = 0;

    for (l = 0; l < s->count; l++)
        if (s->list[l].there)
            ddp__host_upload(&d->host, s->list[l].there, s->list[l].data,
                             (size_t)s->list[l].as.dim[0] * sizeof(float));
    d->step = (long)s->number[DDP__C_STEP];
    d->taken = s->number[DDP__C_TAKEN];
    d->lr = s->lr;
    for (l = 0; l < d->layers; l++) d->unit[l].updates = (long)s->updates[l];
    for (o = d->host.owned; o; o = o->next)
        if (o->passes) *o->passes = (uint64_t)s->random[i++];
    if (keep_plan && s->number[DDP__C_FINAL]) d->plan_final = 1;
    if (!d->plan_final) d->cfg.profile_steps += (int)d->step; /* measured by this process anew */
    if (!keep_plan || !s->plan.layers) return;
    s->plan.objective_s = s->cost[0], s->plan.exposed_s = s->cost[1],
    s->plan.lower_bound_s = s->cost[2];
    s->plan.solver = (ddp_solver)s->number[DDP__C_SOLVER];
    s->plan.cost = (ddp_cost)s->number[DDP__C_COST];
    ddp_plan_free(&d->plan);
    d->plan = s->plan;
    memset(&s->plan, 0, sizeof s->plan);
}

/* ---- as bytes ---- */

static size_t ddp__shard_part(const ddp__shard *s, int i)
{
    return (size_t)s->list[i].as.dim[0] * ddp_safetensors_type_bytes(s->list[i].as.type);
}

size_t ddp__shard_bytes(const ddp__shard *s)
{
    size_t n = 8;
    int i;

    for (i = 0; i < s->count; i++) n += ddp__shard_part(s, i);
    return n;
}

void ddp__shard_pack(const ddp__shard *s, unsigned char *out)
{
    int i;

    ddp__hello_put(out, (uint64_t)(s->plan.layers ? s->plan.period : 0), 8);
    out += 8;
    for (i = 0; i < s->count; i++) {
        const size_t n = ddp__shard_part(s, i);
        if (n) memcpy(out, s->list[i].data, n);
        out += n;
    }
}

ddp_status ddp__shard_unpack(ddp_ctx *d, const unsigned char *in, size_t bytes, ddp_error *err)
{
    uint64_t period = bytes < 8 ? UINT64_MAX : ddp__hello_get(in, 8);
    ddp__shard shard;
    ddp_status s;
    int i;

    if (period > 1000000)
        return ddp__fail(err, DDP_FORMAT, "a clone of %lu bytes is none", (unsigned long)bytes);
    s = ddp__shard_open(d, (int)period, &shard, err);
    if (s == DDP_OK && ddp__shard_bytes(&shard) != bytes)
        s = ddp__fail(err, DDP_MISMATCH, "a clone of %lu bytes; this model makes %lu",
                      (unsigned long)bytes, (unsigned long)ddp__shard_bytes(&shard));
    if (s == DDP_OK) {
        in += 8;
        for (i = 0; i < shard.count; i++) {
            const size_t n = ddp__shard_part(&shard, i);
            if (n) memcpy(shard.list[i].data, in, n);
            in += n;
        }
        ddp__shard_give(d, &shard, 1);
        ddp__coded_start(d, 0); /* what the donor has still to send it sends itself */
    }
    ddp__shard_free(&shard);
    return s;
}
