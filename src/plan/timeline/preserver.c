/* DeFT's Preserver: the expected loss, the ratio test, and the search for a plan that passes it. */
#include "base/core.h"
#include "plan/timeline/preserver.h"

/* Retries, growth of the capacity, and the most iterations in one sequence. */
#define DDP__PRESERVER_RETRIES    10
#define DDP__PRESERVER_GROWTH     1.1
#define DDP__PRESERVER_ITERATIONS 10000000

double ddp_preserver_expect(const ddp_preserver *model, double s, int k)
{
    double eta = model->eta * (model->sum ? k : 1), m = s - model->target - eta * model->mu;
    double d = eta * model->sigma / sqrt(k * model->batch), a;
    if (!(d > 0)) return fabs(m) + model->target;
    a = m / d;
    /* Phi(a) - Phi(-a) = erf(a / sqrt 2) */
    return m * erf(a * sqrt(0.5)) + d * sqrt(2 / 3.14159265358979323846) * exp(-0.5 * a * a) + model->target;
}

static ddp_status ddp__preserver_check_model(const ddp_preserver *m, ddp_error *err)
{
    DDP__TRY(ddp__check_finite(m->eta, 1, err, "eta is %g", m->eta));
    DDP__TRY(ddp__check_finite(m->mu, 0, err, "mu is %g", m->mu));
    DDP__TRY(ddp__check_finite(m->sigma, 0, err, "sigma is %g", m->sigma));
    DDP__TRY(ddp__check_finite(m->batch, 1, err, "batch is %g", m->batch));
    DDP__TRY(ddp__check_finite(m->target, 0, err, "target is %g", m->target));
    if (!ddp__within(m->start, m->target, DBL_MAX))
        return ddp__fail(err, DDP_ARG, "start is %g; it must be finite and at least the target, %g", m->start,
                         m->target);
    return ddp__check_finite(m->tolerance, 0, err, "tolerance is %g", m->tolerance);
}

static ddp_status ddp__preserver_check(const ddp_preserver *m, const int *k, int updates, long *sum,
                                       ddp_error *err)
{
    int i;
    if (!m || !k || updates < 1)
        return ddp__fail(err, DDP_ARG, "the sequence k has %d entries%s; it needs at least 1", updates,
                         m && k ? "" : " but model or k is NULL");
    DDP__TRY(ddp__preserver_check_model(m, err));
    for (*sum = 0, i = 0; i < updates; i++) {
        if (k[i] < 1)
            return ddp__fail(err, DDP_ARG, "k[%d] is %d; each update merges at least 1 iteration", i, k[i]);
        *sum += k[i];
        if (*sum > DDP__PRESERVER_ITERATIONS)
            return ddp__fail(err, DDP_ARG, "k[%d] is %d: the sequence exceeds %d iterations", i, k[i],
                             DDP__PRESERVER_ITERATIONS);
    }
    return DDP_OK;
}

/* The distance of a ratio from acceptance, for comparisons: smaller is better. */
static double ddp__preserver_badness(const ddp_preserver *m, double ratio)
{
    return m->one_sided ? -ratio : fabs(ratio - 1);
}

ddp_status ddp_preserver_test(const ddp_preserver *model, const int *k, int updates, ddp_preserved *out,
                              ddp_error *err)
{
    double tolerance, plan, ratio;
    ddp_preserved r = DDP__ZEROS;
    long n, sum = 0;
    if (!out) return ddp__fail(err, DDP_ARG, "ddp_preserver_test: out is NULL");
    DDP__TRY(ddp__preserver_check(model, k, updates, &sum, err));
    if (model->rotations && (double)updates * updates > DDP__PRESERVER_ITERATIONS)
        return ddp__fail(err, DDP_ARG, "%d rotations of %d updates are too many to compare", updates,
                         updates);
    tolerance = model->tolerance > 0 ? model->tolerance : 0.01;
    r.expected_base = model->start;
    for (n = 0; n < sum; n++) r.expected_base = ddp_preserver_expect(model, r.expected_base, 1);
    for (int first = 0; first < (model->rotations ? updates : 1); first++) {
        plan = model->start;
        for (int i = 0; i < updates; i++) plan = ddp_preserver_expect(model, plan, k[(first + i) % updates]);
        if (!(plan > 0 && ddp__finite(plan) && ddp__finite(r.expected_base)))
            return ddp__fail(err, DDP_NUMERIC,
                             "the expected loss is %g after the plan and %g without; their ratio "
                             "says nothing",
                             plan, r.expected_base);
        ratio = r.expected_base / plan;
        if (first > 0 && ddp__preserver_badness(model, ratio) <= ddp__preserver_badness(model, r.ratio))
            continue;
        r.expected_plan = plan;
        r.ratio = ratio;
    }
    /* 1e-12: accept a ratio that differs from 1 - tolerance only by rounding */
    r.accepted = model->one_sided ? r.ratio >= 1 - tolerance - 1e-12 : fabs(r.ratio - 1) <= tolerance + 1e-12;
    *out = r;
    return DDP_OK;
}

ddp_status ddp_preserver_plan(const ddp_profile *buckets, const ddp_delayed_options *o,
                              const ddp_preserver *model, ddp_delayed_plan *plan, ddp_preserved *out,
                              ddp_error *err)
{
    ddp_delayed_options grown;
    ddp_delayed_plan best, next;
    ddp_preserved verdict, found;
    ddp_status status;

    if (!o || !model || !plan || !out)
        return ddp__fail(err, DDP_ARG, "ddp_preserver_plan: options, model, plan or out is NULL");
    grown = *o;
    if (grown.capacity_scale == 0) grown.capacity_scale = 1;
    memset(&best, 0, sizeof best);
    memset(&found, 0, sizeof found);
    for (int i = 0; i <= DDP__PRESERVER_RETRIES && !found.accepted; i++) {
        ddp_error *why = best.period ? NULL : err; /* a failed retry is ignored if there is a plan */
        status = ddp_plan_delayed(buckets, &grown, &next, why);
        grown.capacity_scale *= DDP__PRESERVER_GROWTH;
        if (status == DDP_OK) {
            status = ddp_preserver_test(model, next.k, next.updates, &verdict, why);
            if (status != DDP_OK) ddp_delayed_plan_free(&next);
        }
        if (status != DDP_OK && best.period == 0) return status;
        if (status != DDP_OK) continue;
        verdict.retries = i;
        if (best.period && !verdict.accepted &&
            ddp__preserver_badness(model, verdict.ratio) >= ddp__preserver_badness(model, found.ratio)) {
            ddp_delayed_plan_free(&next);
            continue;
        }
        ddp_delayed_plan_free(&best);
        best = next;
        found = verdict;
    }
    *plan = best;
    *out = found;
    return DDP_OK;
}
