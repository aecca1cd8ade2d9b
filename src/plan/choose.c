/* The choice of a strategy by the predicted time to a loss. */
#include "base/core.h"
#include "comm/frame.h"
#include "plan/choose_internal.h"

static const double ddp__budget_default = 0.05;
static const double ddp__steps_default = 1000;
static const double ddp__inexact_gain = 0.05; /* least relative gain over the best bit-identical strategy */

/* ---- candidates ---- */

#define DDP__CANDIDATE_PERIODS(strategy, stream, coding, a, b, c, d, e)                          \
    {strategy, stream, a, coding}, {strategy, stream, b, coding}, {strategy, stream, c, coding}, \
        {strategy, stream, d, coding},                                                           \
    {                                                                                            \
        strategy, stream, e, coding                                                              \
    }
#define DDP__CANDIDATES_DREAMDDP(coding) DDP__CANDIDATE_PERIODS("dreamddp", 0, coding, 2, 5, 10, 20, 50)
#define DDP__CANDIDATES_DILOCO(stream, coding) \
    DDP__CANDIDATE_PERIODS("diloco", stream, coding, 5, 10, 20, 50, 100)

const ddp_candidate *ddp_choice_candidates(int *count)
{
    static const ddp_candidate list[] = {
        {"wfbp", 0, 0, DDP_AS_FLOAT},
        DDP__CANDIDATES_DREAMDDP(DDP_AS_FLOAT),
        DDP__CANDIDATES_DREAMDDP(DDP_AS_BFLOAT),
        DDP__CANDIDATES_DREAMDDP(DDP_AS_INT8),
        DDP__CANDIDATES_DILOCO(0, DDP_AS_FLOAT),
        DDP__CANDIDATES_DILOCO(0, DDP_AS_BFLOAT),
        DDP__CANDIDATES_DILOCO(0, DDP_AS_INT8),
        DDP__CANDIDATES_DILOCO(0, DDP_AS_INT4),
        DDP__CANDIDATES_DILOCO(1, DDP_AS_FLOAT),
        DDP__CANDIDATES_DILOCO(1, DDP_AS_BFLOAT),
        DDP__CANDIDATES_DILOCO(1, DDP_AS_INT8),
        DDP__CANDIDATES_DILOCO(1, DDP_AS_INT4),
    };

    *count = (int)(sizeof list / sizeof list[0]);
    return list;
}

size_t ddp_candidate_options(const ddp_candidate *c, char *out, size_t room)
{
    const int coded = (int)c->coding > (int)DDP_AS_FLOAT && (int)c->coding <= (int)DDP_AS_E3M0;
    const char *wire = coded ? ddp__coding_wire(c->coding) : "";
    char period[32] = "";
    int n;

    if (c->period) snprintf(period, sizeof period, "%s--period %d", c->stream || *wire ? " " : "", c->period);
    n = snprintf(out, room, "%s%s%s%s%s", c->stream ? "--overlap stream" : "", c->stream && *wire ? " " : "",
                 *wire ? "--wire " : "", wire, period);
    return n < 0 ? 0 : (size_t)n;
}

/* ---- rows ---- */

/* A choice in progress: the options with their defaults. */
typedef struct ddp__chooser {
    ddp_choice_options o;
    ddp_profile p; /* comm_s may be an own array */
    ddp_loss_fit fit;
    ddp_choice *out;
} ddp__chooser;

/* Returns 1 if an earlier candidate is the same one with the period of the options. */
static int ddp__candidate_repeats(const ddp__chooser *x, int i)
{
    const ddp_candidate *c = &x->o.candidate[i];

    for (int j = 0; j < i && x->o.period && c->period; j++) {
        const ddp_candidate *b = &x->o.candidate[j];
        if (b->period && !strcmp(b->strategy, c->strategy) && b->stream == c->stream &&
            b->coding == c->coding)
            return 1;
    }
    return 0;
}

/* Adds the row of candidate i, unless its loss was not measured. */
static ddp_status ddp__choice_add(ddp__chooser *x, int i, ddp_error *err)
{
    const ddp_choice_options *o = &x->o;
    ddp_choice_row *r = &x->out->row[x->out->count];
    ddp_prediction step;
    ddp_status s;

    if (ddp__candidate_repeats(x, i)) return DDP_OK;
    r->candidate = o->candidate[i];
    if (o->period && r->candidate.period) r->candidate.period = o->period;
    s = ddp_loss_penalty(&x->fit, &r->candidate, o->workers, o->steps, &r->penalty, err);
    if (s == DDP_UNSUPPORTED) return DDP_OK;
    if (s != DDP_OK) return s;
    DDP__TRY(ddp_predict_step(&x->p, o->workers, &r->candidate, &step, err));
    DDP__TRY(ddp_loss_steps(&x->fit, &r->candidate, o->workers, o->steps, &r->steps, err));
    r->step_s = step.step_s;
    r->sent_bytes = step.sent_bytes;
    r->seconds = r->steps < DBL_MAX ? r->steps * r->step_s : DBL_MAX;
    r->allowed = r->penalty <= (o->loss_budget < 0 ? 0 : o->loss_budget);
    x->out->count++;
    return DDP_OK;
}

static int ddp__row_before(const ddp_choice_row *a, const ddp_choice_row *b)
{
    return a->allowed != b->allowed ? a->allowed > b->allowed : a->seconds < b->seconds;
}

/* Sorts the rows by insertion, so that equal ones keep their order. */
static void ddp__choice_sort(ddp_choice *c)
{
    for (int i = 1; i < c->count; i++) {
        const ddp_choice_row r = c->row[i];
        int j = i;
        for (; j > 0 && ddp__row_before(&r, &c->row[j - 1]); j--) c->row[j] = c->row[j - 1];
        c->row[j] = r;
    }
}

/* ---- the choice ---- */

static int ddp__row_exact(const ddp_choice_row *r)
{
    ddp_result_kind kind = DDP_RESULT_OUTER;

    return ddp_result_of(r->candidate.strategy, &kind, NULL) == DDP_OK && kind == DDP_RESULT_EXACT;
}

/* The first row that is bit-identical to ssgd, or -1. */
static int ddp__first_exact(const ddp_choice *c)
{
    for (int i = 0; i < c->count; i++)
        if (ddp__row_exact(&c->row[i])) return i;
    return -1;
}

static int ddp__runner_up(const ddp_choice *c)
{
    const ddp_choice_row *best = &c->row[c->chosen];
    int other = -1;

    for (int i = 0; i < c->count && c->row[i].allowed && c->row[i].seconds < DBL_MAX; i++) {
        if (i == c->chosen) continue;
        if (other < 0) other = i;
        if (strcmp(c->row[i].candidate.strategy, best->candidate.strategy)) return i;
    }
    return other;
}

void ddp__row_name(const ddp_choice_row *r, char out[96])
{
    char options[64];

    (void)ddp_candidate_options(&r->candidate, options, sizeof options);
    snprintf(out, 96, "%.24s%s%s", r->candidate.strategy, *options ? " " : "", options);
}

/* Writes the figures of the choice, and why the fastest candidate was not chosen. */
static void ddp__choice_explain(ddp__chooser *x)
{
    ddp_choice *c = x->out;
    const ddp_choice_row *r = &c->row[c->chosen];
    const int exact = ddp__row_exact(r);
    char name[96], other[96], rest[160] = "";

    ddp__row_name(r, name);
    if (c->runner_up >= 0) {
        ddp__row_name(&c->row[c->runner_up], other);
        ddp__format(rest, sizeof rest, "; %s: %.4g s", other, c->row[c->runner_up].seconds);
    }
    if (!exact)
        ddp__format(
            c->reason, sizeof c->reason,
            "%s reaches the loss of ssgd after %.0f steps in %.4g s: %.0f steps of %.4g ms, because it costs "
            "%.2g %% of loss at equal steps%s; ssgd: %.4g s",
            name, x->o.steps, r->seconds, r->steps, 1e3 * r->step_s, 100 * r->penalty, rest, c->ssgd_s);
    else if (x->o.loss_budget < 0)
        ddp__format(
            c->reason, sizeof c->reason,
            "%s takes %.4g s for %.0f steps of %.4g ms, the least of the strategies that are bit-identical "
            "to ssgd%s; ssgd: %.4g s",
            name, r->seconds, x->o.steps, 1e3 * r->step_s, rest, c->ssgd_s);
    else
        ddp__format(
            c->reason, sizeof c->reason,
            "%s takes %.4g s for %.0f steps of %.4g ms, and no strategy within the loss budget of %.3g %% "
            "reaches its loss at least %.0f %% sooner%s; ssgd: %.4g s",
            name, r->seconds, x->o.steps, 1e3 * r->step_s, 100 * x->o.loss_budget, 100 * ddp__inexact_gain,
            rest, c->ssgd_s);
}

static ddp_status ddp__choice_make(ddp__chooser *x, ddp_error *err)
{
    const ddp_candidate ssgd = {"ssgd", 0, 0, DDP_AS_FLOAT};
    ddp_choice *c = x->out;
    ddp_prediction plain;
    int exact;

    for (int i = 0; i < x->o.candidates; i++) DDP__TRY(ddp__choice_add(x, i, err));
    ddp__choice_sort(c);
    if (!c->count || !c->row[0].allowed || c->row[0].seconds >= DBL_MAX)
        return ddp__fail(
            err, DDP_UNSUPPORTED,
            "none of %d candidates has a predicted loss increase of at most %g %% and reaches the loss of "
            "ssgd; add wfbp to them, or raise the loss budget",
            x->o.candidates, x->o.loss_budget < 0 ? 0 : 100 * x->o.loss_budget);
    DDP__TRY(ddp_predict_step(&x->p, x->o.workers, &ssgd, &plain, err));
    c->ssgd_s = plain.step_s * x->o.steps;
    exact = ddp__first_exact(c);
    if (exact >= 0 && c->row[0].seconds > (1 - ddp__inexact_gain) * c->row[exact].seconds) c->chosen = exact;
    c->runner_up = ddp__runner_up(c);
    ddp__choice_explain(x);
    return DDP_OK;
}

/* ---- options ---- */

static ddp_status ddp__choice_check(const ddp_choice_options *o, ddp_error *err)
{
    const double budget = o->loss_budget;

    DDP__TRY(ddp_profile_check(o->profile, err));
    if (o->workers < 2)
        return ddp__fail(err, DDP_ARG, "a choice for %d workers is impossible; at least 2 are needed",
                         o->workers);
    if (!ddp__within(o->rate, 0, DBL_MAX) || !ddp__within(o->delay_s, 0, 3600))
        return ddp__fail(
            err, DDP_ARG,
            "a link of %g bytes/s with a delay of %g s is impossible; use a rate of at least 0 and 0 to "
            "3600 s",
            o->rate, o->delay_s);
    if (o->rate > 0 && !o->profile->params)
        return ddp__fail(err, DDP_ARG, "the profile has no params; a rate needs the sizes of the layers");
    if (o->period < 0 || o->period > 1000000)
        return ddp__fail(err, DDP_ARG, "period %d: use 1 to 1000000 steps, or 0 for all periods", o->period);
    if (!ddp__within(o->steps, 0, 1e12))
        return ddp__fail(err, DDP_ARG, "%g steps: use 1 to 1e12, or 0 for %g", o->steps, ddp__steps_default);
    if (!ddp__within(budget, 0, 1) && !ddp__within(budget, DDP_LOSS_EXACT, DDP_LOSS_EXACT))
        return ddp__fail(err, DDP_ARG, "a loss budget of %g is impossible; use 0 to 1, or DDP_LOSS_EXACT",
                         budget);
    if (o->candidates < 0 || (o->candidates > 0 && !o->candidate))
        return ddp__fail(err, DDP_ARG, "the list of %d candidates is NULL", o->candidates);
    return DDP_OK;
}

/* Sets the defaults, and the transfer times of the link. comm: [layers] */
static void ddp__choice_defaults(ddp__chooser *x, const ddp_choice_options *o, double *comm)
{
    x->o = *o;
    x->p = *o->profile;
    if (!(o->steps > 0)) x->o.steps = ddp__steps_default;
    if (!(o->loss_budget > 0) && !(o->loss_budget < 0)) x->o.loss_budget = ddp__budget_default;
    if (!o->candidates) x->o.candidate = ddp_choice_candidates(&x->o.candidates);
    if (o->rate > 0) {
        const ddp_link link = ddp_link_average(o->rate, o->delay_s, o->workers);
        for (int l = 0; l < x->p.layers; l++) comm[l] = link.beta_s * sizeof(float) * x->p.params[l];
        x->p.comm_s = comm;
        x->p.alpha_s = link.alpha_s;
        x->p.gap_s = 0;
    }
}

ddp_status ddp_choose(const ddp_choice_options *o, ddp_choice *out, ddp_error *err)
{
    ddp__chooser x = DDP__ZEROS;
    ddp_choice made = DDP__ZEROS;
    double *comm;
    ddp_status s;

    if (!o || !out) return ddp__fail(err, DDP_ARG, "ddp_choose: the options and the result must not be NULL");
    DDP__TRY(ddp__choice_check(o, err));
    comm = (double *)ddp__calloc((size_t)o->profile->layers, sizeof *comm);
    if (!comm) return ddp__fail(err, DDP_MEMORY, "no memory to choose for %d layers", o->profile->layers);
    ddp__choice_defaults(&x, o, comm);
    x.out = &made;
    made.row = (ddp_choice_row *)ddp__calloc((size_t)x.o.candidates, sizeof *made.row);
    s = made.row ? ddp_loss_fit_new(o->losses, &x.fit, err)
                 : ddp__fail(err, DDP_MEMORY, "no memory for %d candidates", x.o.candidates);
    if (s == DDP_OK) s = ddp__choice_make(&x, err);
    ddp_loss_fit_free(&x.fit);
    DDP_FREE(comm);
    if (s == DDP_OK)
        *out = made;
    else
        ddp_choice_free(&made);
    return s;
}

void ddp_choice_free(ddp_choice *c)
{
    if (!c) return;
    DDP_FREE(c->row);
    memset(c, 0, sizeof *c);
}
