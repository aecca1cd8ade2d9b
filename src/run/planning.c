/* Profile -> plan: the first rank of a team has its strategy plan, everyone takes that plan. What a
 * plan says only the strategy knows: here it is bytes. */
#include "base/core.h"
#include "run/device.h"

/* What of it reaches all before the plan does. */
typedef struct ddp__plan_head {
    uint64_t size, hash;
} ddp__plan_head;

static uint64_t ddp__plan_hash(const ddp_blob *b)
{
    return ddp__hash(DDP__HASH_START, b->bytes, b->size);
}

/* The first rank's plan in place of *b. In an elastic world the first one may be lost between its two
 * words; then the next one begins again. */
static ddp_status ddp__plan_share(ddp_ctx *d, ddp_blob *b, ddp_error *err)
{
    uint64_t live;

    if (!d->engine) return DDP_OK;
    do {
        ddp__plan_head head;
        ddp_blob got;
        ddp_status s;

        live = ddp__live(d);
        head.size = b->size;
        head.hash = ddp__plan_hash(b);
        DDP__TRY(ddp__tell(d, d->team, &head, sizeof head, err));
        got = ddp_blob_new((size_t)head.size);
        if (!got.bytes)
            return ddp__fail(err, DDP_MEMORY, "out of memory for a plan of %lu bytes",
                             (unsigned long)head.size);
        if (b->size) memcpy(got.bytes, b->bytes, got.size < b->size ? got.size : b->size);
        s = ddp__tell(d, d->team, got.bytes, got.size, err);
        if (s == DDP_OK && ddp__plan_hash(&got) == head.hash) {
            ddp_blob_free(b);
            *b = got;
            return DDP_OK;
        }
        ddp_blob_free(&got);
        DDP__TRY(s);
    } while (ddp__live(d) != live);
    return ddp__fail(err, DDP_MISMATCH, "rank %d received another plan than rank %d sent", d->rank,
                     d->team_root);
}

ddp_status ddp__plan_take(ddp_ctx *d, const ddp_blob *plan, const ddp_profile *p, ddp_error *err)
{
    ddp_blob own = ddp_blob_new(plan->size);

    if (!own.bytes)
        return ddp__fail(err, DDP_MEMORY, "out of memory for a plan of %zu bytes", plan->size);
    memcpy(own.bytes, plan->bytes, plan->size);
    ddp_blob_free(&d->plan);
    d->plan = own;
    return DDP__EVENT(d, plan_take, (d, d->self, &d->plan, p));
}

/* Made, or handed in as *plan, by the first rank; freed here. p: for its figures, or NULL. */
static ddp_status ddp__plan_set(ddp_ctx *d, ddp_blob *plan, const ddp_profile *p, ddp_error *err)
{
    ddp_status s = ddp__plan_share(d, plan, err);

    if (s == DDP_OK) s = ddp__plan_take(d, plan, p, err);
    ddp_blob_free(plan);
    return s;
}

static ddp_status ddp__plan_make(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    ddp_blob plan = {NULL, 0};

    if (!d->ops.plan_make) return DDP_OK;
    /* who leads may be lost before it has shared its plan */
    if (d->team_place == 0 || d->cfg.min_world)
        DDP__TRY(DDP__EVENT(d, plan_make, (d, d->self, p, &plan)));
    return ddp__plan_set(d, &plan, p, err);
}

static ddp_status ddp__plan_from_file(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    ddp_blob blob = {NULL, 0};
    ddp_plan plan;
    ddp_status s = DDP_OK;

    memset(&plan, 0, sizeof plan);
    DDP__TRY(ddp_plan_read(d->cfg.plan_path, d->layers, &plan, err));
    if (plan.period != d->cfg.period)
        s = ddp__fail(
            err, DDP_MISMATCH,
            "the plan %s is for period %d, this run has period %d: set the period to %d",
            d->cfg.plan_path, plan.period, d->cfg.period, plan.period);
    if (s == DDP_OK) s = DDP__EVENT(d, plan_adopt, (d, d->self, &plan, &blob));
    ddp_plan_free(&plan);
    return s == DDP_OK ? ddp__plan_set(d, &blob, p, err) : s;
}

static ddp_status ddp__profile_from_file(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    d->link = ddp__link_nominal(d, &d->links);
    DDP__TRY(ddp_profile_read(d->cfg.profile_path, &d->link, p, err));
    if (p->layers != d->layers) {
        int rows = p->layers;
        ddp_profile_free(p);
        return ddp__fail(
            err, DDP_MISMATCH,
            "the profile %s has %d rows, the model has %d layers: one row per layer is needed",
            d->cfg.profile_path, rows, d->layers);
    }
    return DDP_OK;
}

/* What follows from a profile that will stay. */
static ddp_status ddp__plan_settled(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__balance_links(d, &d->profile, err));
    ddp__account_predict(d);
    return DDP_OK;
}

ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err)
{
    ddp_blob plan = {NULL, 0};
    ddp_profile p;
    ddp_status s;

    memset(&p, 0, sizeof p);
    if (d->cfg.profile_path) {
        DDP__TRY(ddp__profile_from_file(d, &p, err));
    } else {
        DDP__TRY(ddp__profile_start(d, &p, err));
        ddp__profile_nominal(d, &p);
    }
    if (d->cfg.plan_path) {
        s = ddp__plan_from_file(d, &p, err);
    } else if (d->plan_final) {
        s = ddp__plan_make(d, &p, err);
    } else { /* the same on all ranks by itself */
        s = DDP__EVENT(d, plan_first, (d, d->self, &p, &plan));
        if (s == DDP_OK) s = ddp__plan_take(d, &plan, &p, err);
        ddp_blob_free(&plan);
    }
    if (s != DDP_OK || !d->plan_final) {
        ddp_profile_free(&p);
        return s;
    }
    ddp_profile_free(&d->profile);
    d->profile = p;
    d->hooks_forward = ddp_has_forward(d);
    return ddp__plan_settled(d, err);
}

ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__strategy_wait(d, err));
    DDP__TRY(ddp__device_wait(d, err));
    DDP__TRY(ddp__profile_measured(d, &d->profile, err));
    d->plan_final = d->measured = 1;
    DDP__TRY(ddp__plan_make(d, &d->profile, err));
    ddp__drift_start(d);
    DDP__TRY(ddp__plan_settled(d, err));
    ddp__account_reset(d);
    return DDP_OK;
}

ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__strategy_wait(d, err));
    ddp__profile_link(d, &d->profile);
    DDP__TRY(ddp__plan_make(d, &d->profile, err));
    ddp__drift_start(d);
    return ddp__plan_settled(d, err);
}

int ddp_plan_adopt(ddp_ctx *d, const ddp_plan *plan)
{
    ddp_error *err;
    ddp_blob blob = {NULL, 0};

    DDP__ENTER(d);
    err = &d->host.error;
    if (!d->ops.plan_adopt)
        return ddp__ctx_failf(d, DDP_USAGE,
                              "ddp_plan_adopt: strategy %s follows no such plan; use one that averages "
                              "each layer in its own step of a period, as dreamddp does", d->ops.name);
    if (!plan || plan->layers != d->layers || plan->period < 1)
        return ddp__ctx_failf(
            d, DDP_ARG,
            "ddp_plan_adopt: a plan for %d layers is needed, this one has %d layers and period %d",
            d->layers, plan ? plan->layers : 0, plan ? plan->period : 0);
    if (!d->started && ddp__session_start(d, err)) return ddp__ctx_fail(d, err);
    if (ddp__strategy_wait(d, err) || DDP__EVENT(d, plan_adopt, (d, d->self, plan, &blob)) ||
        ddp__plan_set(d, &blob, NULL, err) ||
        ddp__balance_links(d, d->profile.layers ? &d->profile : NULL, err))
        return ddp__ctx_fail(d, err);
    d->plan_final = 1;
    ddp__account_reset(d);
    return 0;
}

const ddp_plan *ddp_plan_get(const ddp_ctx *d)
{
    return d && d->ops.plan_view ? d->ops.plan_view(d->self) : NULL;
}

const ddp_profile *ddp_profile_get(const ddp_ctx *d)
{
    return d && d->profile.layers ? &d->profile : NULL;
}
