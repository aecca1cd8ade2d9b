/* Predicts the step time of a strategy from the costs of the layers. */
#include "base/core.h"
#include "comm/frame.h"
#include "compress/compress.h"
#include "plan/osp/osp.h"
#include "plan/partial/partial.h"
#include "plan/predict.h"
#include "plan/timeline/deft.h"
#include "plan/timeline/timeline.h"
#include "profile/average.h"

/* A candidate on a cluster. */
typedef struct ddp__setting_costs {
    const ddp_candidate *c;
    ddp_profile p;             /* the costs of its messages. Only comm_s may be an own array */
    int workers, period;       /* period: at least 1 */
    double compute_s, comm_s;  /* of a step, and of an average of all layers */
    double bytes, payload;     /* of all parameters in float32, and as sent */
    double all_reduce;         /* bytes that a worker sends in an all-reduce, per byte of its values */
    ddp_link line[DDP__LINES]; /* alpha_s: delays. beta_s: transfer time, relative to the direct algorithm */
} ddp__setting_costs;

/* Sets *step_s, and the bytes that a worker sends per step. */
typedef ddp_status (*ddp__predictor)(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err);

/* ---- gradients ---- */

static ddp_status ddp__predict_timeline(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    ddp_timeline_options o = DDP__ZEROS;
    ddp_profile p = x->p;
    ddp_timeline t;
    double each = 0, all = 0;
    ddp_status s;

    p.alpha_s = 0;              /* added by ddp_timeline_exposed, as a latency */
    o.partition_params = 6.5e6; /* the default of ddp_config.gradient.partition_bytes */
    DDP__TRY(ddp_scheme_named(x->c->strategy, &o.scheme, err));
    if (o.scheme == DDP_SCHEME_WFBP || o.scheme == DDP_SCHEME_ASCWFBP) o.bucket_bytes = 26214400;
    DDP__TRY(ddp_plan_timeline(&p, &o, &t, err));
    s = ddp_timeline_exposed(&p, &t, x->p.alpha_s, &each, &all, err);
    ddp_timeline_free(&t);
    out->step_s =
        x->compute_s + (o.scheme == DDP_SCHEME_BYTESCHEDULER || o.scheme == DDP_SCHEME_USBYTE ? each : all);
    return s;
}

/* DeFT's Preserver rejects plans that merge more than two iterations into one update, because training would
 * change too much (docs/explanation/deft.md). For such links the step is lengthened until merging two
 * iterations is enough. Plans come within a few percent of this time (ddp_delayed_plan.lower_bound_s). */
static ddp_status ddp__predict_deft(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    const double most = 0.5;
    ddp_delayed_options o = DDP__ZEROS;
    ddp_delayed_plan plan;
    ddp_profile p = x->p;
    ddp_status s;

    p.alpha_s = 0; /* a latency, paid once per step and added below */
    o.partition_params = 6.5e6;
    out->step_s = fmax(x->comm_s * most, x->compute_s) + x->p.alpha_s;
    out->sent_bytes *= most;
    s = ddp_plan_delayed(&p, &o, &plan, err);
    if (s == DDP_ARG || s == DDP_UNSUPPORTED) return DDP_OK; /* the link is too slow for a plan */
    if (s != DDP_OK) return s;
    if (plan.update_frequency >= most) {
        out->step_s = plan.iteration_s + x->p.alpha_s;
        out->sent_bytes *= plan.update_frequency / most;
    }
    ddp_delayed_plan_free(&plan);
    return DDP_OK;
}

/* Servers on the workers: a push and a pull send as many bytes as an all-reduce. If all workers are equally
 * fast, a worker under asp, ssp and r2sp waits only for its own pull. */
static ddp_status ddp__predict_server(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    (void)err;
    out->step_s = x->compute_s + x->comm_s + x->p.alpha_s;
    return DDP_OK;
}

/* Late layers are sent during the compute of the next step. As many layers are late as that compute can
 * overlap. */
static ddp_status ddp__predict_osp(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    double late = 0;

    if (x->comm_s > 0)
        DDP__TRY(ddp_osp_umax(x->bytes * x->workers / x->comm_s, 0, x->compute_s, x->workers, x->bytes, 0,
                              &late, err));
    out->step_s = x->compute_s + x->comm_s * (1 - late / x->bytes) + x->p.alpha_s;
    return DDP_OK;
}

/* ---- averages ---- */

static ddp_status ddp__predict_localsgd(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    (void)err;
    out->step_s = x->compute_s + (x->comm_s + x->p.alpha_s) / x->period;
    return DDP_OK;
}

static ddp_status ddp__predict_partial(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    ddp_plan_options o = DDP__ZEROS;
    ddp_plan plan;

    o.period = x->period;
    o.cost = DDP_COST_WINDOW;
    o.solver = strcmp(x->c->strategy, "enp") ? DDP_SOLVER_SCATTER : DDP_SOLVER_ENP;
    DDP__TRY(ddp_plan_partial(&x->p, &o, &plan, err));
    out->step_s = x->compute_s + plan.exposed_s / x->period;
    ddp_plan_free(&plan);
    return DDP_OK;
}

/* Which layers were trained is exchanged before the deltas. Such a short message is sent to all ranks at
 * once. */
static ddp_status ddp__predict_outer(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    DDP__TRY(ddp__predict_localsgd(x, out, err));
    out->step_s += x->line[DDP__LINE_FULL].alpha_s / x->period;
    return DDP_OK;
}

/* The transfer of a parameter delta may take the whole next period. It delays training if the link is always
 * busy, or if the delays exceed a period. Exposed time is the same for every assignment to steps. */
static ddp_status ddp__predict_stream(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    const double delays = 2 * x->p.alpha_s / x->period; /* one for the list of trained layers */
    int *landing = (int *)ddp__calloc((size_t)x->p.layers, sizeof *landing);
    double exposed = 0;
    ddp_plan plan = DDP__ZEROS;
    ddp_status s;

    if (!landing) return ddp__fail(err, DDP_MEMORY, "no memory to predict %d layers", x->p.layers);
    s = ddp_plan_new(x->p.layers, x->period, &plan, err);
    if (s == DDP_OK) {
        plan.cost = DDP_COST_WINDOW;
        s = ddp_plan_landing(&x->p, &plan, landing, &exposed, err);
    }
    ddp_plan_free(&plan);
    DDP_FREE(landing);
    out->step_s = fmax(x->compute_s + exposed / x->period, delays);
    return s;
}

/* An all-gather of n blocks takes as long as an all-reduce of half of their bytes. */
static ddp_status ddp__predict_gathered(const ddp__setting_costs *x, ddp_prediction *out, ddp_error *err)
{
    const double share = x->payload / x->bytes;

    (void)err;
    out->step_s =
        x->compute_s +
        (x->comm_s * share * x->line[DDP__LINE_FULL].beta_s + ddp__line_of(x->line, 'p').alpha_s) / x->period;
    out->sent_bytes = (x->workers - 1) * x->payload / x->period;
    return DDP_OK;
}

/* ---- the table of the strategies ---- */

typedef struct ddp__predicted {
    const char *strategy;
    ddp_result_kind kind;
    int periodic; /* 1 if the strategy has a period */
    ddp__predictor step;
} ddp__predicted;

static const ddp__predicted ddp__predictions[] = {
    {"ssgd", DDP_RESULT_EXACT, 0, ddp__predict_timeline},
    {"bsp", DDP_RESULT_EXACT, 0, ddp__predict_server},
    {"wfbp", DDP_RESULT_EXACT, 0, ddp__predict_timeline},
    {"mgwfbp", DDP_RESULT_EXACT, 0, ddp__predict_timeline},
    {"ascwfbp", DDP_RESULT_EXACT, 0, ddp__predict_timeline},
    {"bytescheduler", DDP_RESULT_EXACT, 0, ddp__predict_timeline},
    {"usbyte", DDP_RESULT_EXACT, 0, ddp__predict_timeline},
    {"localsgd", DDP_RESULT_AVERAGED, 1, ddp__predict_localsgd},
    {"enp", DDP_RESULT_AVERAGED, 1, ddp__predict_partial},
    {"dreamddp", DDP_RESULT_AVERAGED, 1, ddp__predict_partial},
    {"deft", DDP_RESULT_LATE, 0, ddp__predict_deft},
    {"osp", DDP_RESULT_LATE, 0, ddp__predict_osp},
    {"asp", DDP_RESULT_LATE, 0, ddp__predict_server},
    {"ssp", DDP_RESULT_LATE, 0, ddp__predict_server},
    {"r2sp", DDP_RESULT_LATE, 0, ddp__predict_server},
    {"diloco", DDP_RESULT_OUTER, 1, ddp__predict_outer},
    {"sparseloco", DDP_RESULT_OUTER, 1, ddp__predict_gathered},
    {NULL, DDP_RESULT_EXACT, 0, NULL},
};

static ddp_status ddp__predicted_named(const char *strategy, const ddp__predicted **out, ddp_error *err)
{
    const ddp__predicted *t = ddp__predictions;

    while (t->strategy && (!strategy || strcmp(t->strategy, strategy))) t++;
    *out = t;
    if (t->strategy) return DDP_OK;
    return ddp__fail(err, DDP_ARG, "strategy '%.40s' has no prediction; use the name of a built-in strategy",
                     strategy ? strategy : "");
}

ddp_status ddp_result_of(const char *strategy, ddp_result_kind *out, ddp_error *err)
{
    const ddp__predicted *t;

    DDP__TRY(ddp__predicted_named(strategy, &t, err));
    *out = t->kind;
    return DDP_OK;
}

const char *ddp_result_reason(ddp_result_kind kind)
{
    switch (kind) {
    case DDP_RESULT_EXACT:
        return "parameters are bit-identical to ssgd after each step";
    case DDP_RESULT_AVERAGED:
        return "every layer is averaged once per period, without delay";
    case DDP_RESULT_LATE:
        return "parts of the gradient are applied at least one iteration late";
    case DDP_RESULT_OUTER:
        return "an outer optimizer averages the parameter deltas of a period";
    }
    return "unknown";
}

/* ---- the costs ---- */

static ddp_status ddp__predict_check(const ddp_profile *p, int workers, const ddp_candidate *c,
                                     const ddp__predicted *t, ddp_error *err)
{
    DDP__TRY(ddp_profile_check(p, err));
    if (!p->params)
        return ddp__fail(err, DDP_ARG,
                         "the profile has no params; a prediction needs the sizes of the layers");
    if (workers < 2)
        return ddp__fail(err, DDP_ARG, "a prediction for %d workers is impossible; at least 2 are needed",
                         workers);
    if (t->periodic ? c->period < 1 || c->period > 1000000 : c->period != 0)
        return ddp__fail(err, DDP_ARG, "period %d of %s: use %s", c->period, c->strategy,
                         t->periodic ? "1 to 1000000 steps" : "0, because the strategy has no period");
    if ((int)c->coding < 0 || (int)c->coding > (int)DDP_AS_E3M0)
        return ddp__fail(err, DDP_ARG, "format %d of %s: use a constant from DDP_AS_FLOAT to DDP_AS_E3M0",
                         (int)c->coding, c->strategy);
    if (t->kind == DDP_RESULT_EXACT && c->coding != DDP_AS_FLOAT)
        return ddp__fail(err, DDP_ARG, "%s with format %d is not bit-identical to ssgd; use DDP_AS_FLOAT",
                         c->strategy, (int)c->coding);
    if (c->stream && strcmp(c->strategy, "diloco"))
        return ddp__fail(err, DDP_ARG, "%s cannot stream; only diloco can", c->strategy);
    return DDP_OK;
}

/* Sums up the costs, and scales the transfers to the coding. comm: [layers] */
static void ddp__predict_sum(ddp__setting_costs *x, const ddp_profile *p, double *comm)
{
    const ddp_link relative = {p->alpha_s, 1};
    const int sparse = !strcmp(x->c->strategy, "sparseloco");

    x->p = *p;
    x->p.comm_s = comm;
    x->compute_s = p->between_s;
    x->all_reduce = 2.0 * (x->workers - 1) / x->workers;
    for (int l = 0; l < p->layers; l++) {
        const size_t n = (size_t)p->params[l];
        const double sent = sparse ? (double)ddp_sparse_bytes(n, ddp_sparse_keep(0))
                                   : (double)ddp__frame_payload((int)x->c->coding, n);
        comm[l] = p->comm_s[l];
        if (n && !sparse && x->c->coding != DDP_AS_FLOAT) comm[l] *= sent / (sizeof(float) * p->params[l]);
        x->compute_s += p->backward_s[l] + (p->forward_s ? p->forward_s[l] : 0);
        x->comm_s += comm[l] + (comm[l] > 0 ? p->gap_s : 0);
        x->bytes += sizeof(float) * p->params[l];
        x->payload += sent;
    }
    ddp__lines_derive(relative, x->workers, x->line);
}

ddp_status ddp_predict_step(const ddp_profile *p, int workers, const ddp_candidate *c, ddp_prediction *out,
                            ddp_error *err)
{
    ddp__setting_costs x = DDP__ZEROS;
    ddp_prediction made = DDP__ZEROS;
    const ddp__predicted *t;
    double *comm;
    ddp_status s;

    if (!c || !out)
        return ddp__fail(err, DDP_ARG, "ddp_predict_step: the candidate and the result must not be NULL");
    DDP__TRY(ddp__predicted_named(c->strategy, &t, err));
    DDP__TRY(ddp__predict_check(p, workers, c, t, err));
    comm = (double *)ddp__calloc((size_t)p->layers, sizeof *comm);
    if (!comm) return ddp__fail(err, DDP_MEMORY, "no memory to predict %d layers", p->layers);
    x.c = c;
    x.workers = workers;
    x.period = t->periodic ? c->period : 1;
    ddp__predict_sum(&x, p, comm);
    made.compute_s = x.compute_s;
    made.sent_bytes = x.all_reduce * x.payload / x.period;
    s = x.bytes > 0 && x.compute_s > 0
            ? (c->stream ? ddp__predict_stream : t->step)(&x, &made, err)
            : ddp__fail(err, DDP_ARG,
                        "the profile has %g bytes of parameters and %g s of compute; both must be "
                        "above 0",
                        x.bytes, x.compute_s);
    if (s == DDP_OK) *out = made;
    DDP_FREE(comm);
    return s;
}
