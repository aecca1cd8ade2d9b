#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "base/text.h"
#include "plan/partial_core.h"

static const char *const ddp__solver_names[] = {"scatter", "optimal", "dfs",
                                                "enp",     "brute",   "scatter"};
static const char *const ddp__cost_names[] = {"window", "timeline", "sum", "window"};
static const char *const ddp__fill_names[] = {"none", "exact", "eq12"};

#define DDP__COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const char *ddp__name_of(const char *const *names, int count, int value)
{
    return value >= 0 && value < count ? names[value] : "unknown";
}

/* The value of a name, counted from the back so that a name stands for itself and not for
 * DEFAULT; -1 with a sentence if there is none. */
static int ddp__value_of(const char *const *names, int count, int first, const char *what,
                         const char *name, ddp_error *err)
{
    ddp__text list;
    int i;

    for (i = count - 1; i >= 0; i--)
        if (name && !strcmp(names[i], name)) return i;
    memset(&list, 0, sizeof list);
    for (i = first; i < count; i++)
        ddp__text_addf(&list, "%s%s", i > first ? (i == count - 1 ? " or " : ", ") : "", names[i]);
    ddp__fail(err, DDP_ARG, "%s '%s' is unknown; use %s", what, name ? name : "",
              list.data ? list.data : "another");
    ddp__text_free(&list);
    return -1;
}

const char *ddp_solver_name(ddp_solver solver)
{
    return ddp__name_of(ddp__solver_names, DDP__COUNT(ddp__solver_names), (int)solver);
}

const char *ddp_cost_name(ddp_cost cost)
{
    return ddp__name_of(ddp__cost_names, DDP__COUNT(ddp__cost_names), (int)cost);
}

const char *ddp_fill_name(ddp_fill fill)
{
    return ddp__name_of(ddp__fill_names, DDP__COUNT(ddp__fill_names), (int)fill);
}

ddp_status ddp_solver_named(const char *name, ddp_solver *out, ddp_error *err)
{
    int v = ddp__value_of(ddp__solver_names, DDP__COUNT(ddp__solver_names), 1, "solver", name, err);

    if (v < 0) return DDP_ARG;
    *out = (ddp_solver)v;
    return DDP_OK;
}

ddp_status ddp_cost_named(const char *name, ddp_cost *out, ddp_error *err)
{
    int v = ddp__value_of(ddp__cost_names, DDP__COUNT(ddp__cost_names), 1, "cost", name, err);

    if (v < 0) return DDP_ARG;
    *out = (ddp_cost)v;
    return DDP_OK;
}

ddp_status ddp_fill_named(const char *name, ddp_fill *out, ddp_error *err)
{
    int v = ddp__value_of(ddp__fill_names, DDP__COUNT(ddp__fill_names), 0, "filling", name, err);

    if (v < 0) return DDP_ARG;
    *out = (ddp_fill)v;
    return DDP_OK;
}

ddp_status ddp_plan_new(int layers, int period, ddp_plan *out, ddp_error *err)
{
    ddp_plan plan;

    if (layers < 1)
        return ddp__fail(err, DDP_ARG, "a plan of %d layers is impossible; it needs at least 1",
                         layers);
    if (period < 1)
        return ddp__fail(err, DDP_ARG, "period %d is impossible; it needs at least 1 step", period);
    memset(&plan, 0, sizeof plan);
    plan.layers = layers;
    plan.period = period;
    plan.step_of = (int *)ddp__calloc((size_t)layers, sizeof(int));
    plan.fill = (unsigned char *)ddp__calloc((size_t)layers, (size_t)period);
    if (!plan.step_of || !plan.fill) {
        ddp_plan_free(&plan);
        return ddp__fail(err, DDP_MEMORY, "no memory for a plan of %d layers over %d steps", layers,
                         period);
    }
    *out = plan;
    return DDP_OK;
}

void ddp_plan_free(ddp_plan *plan)
{
    if (!plan) return;
    DDP_FREE(plan->step_of);
    DDP_FREE(plan->fill);
    memset(plan, 0, sizeof *plan);
}

/* Costs of the assignment step [L] (backward order) into plan. list: room for L. */
static void ddp__plan_costs(const ddp__costs *c, const int *step, int *list, ddp_plan *plan)
{
    double excess = 0;
    int h, i, n;

    for (h = 0; h < plan->period; h++) {
        for (i = n = 0; i < c->layers; i++)
            if (step[i] == h) list[n++] = i;
        excess += ddp__excess_list(c, list, n, -1, -1);
    }
    plan->cost = c->cost;
    plan->exposed_s = excess;
    plan->objective_s = plan->period * c->T + excess;
    plan->lower_bound_s = plan->period * c->T + ddp__excess_bound(c, plan->period);
}

/* Layers with parameters (without parameter counts: layers that send), ceil(n/H) to a step;
 * one without parameters goes with the next that has some. */
static void ddp__enp(const ddp_profile *p, const ddp__costs *c, int period, int *step)
{
    int i, n = 0, seen = 0, each;

    for (i = 0; i < c->layers; i++) n += (p->params ? p->params[i] : p->comm_s[i]) > 0;
    each = n > period ? (n - 1) / period + 1 : 1;
    for (i = 0; i < c->layers; i++) {
        int l = c->layers - 1 - i;
        step[i] = seen / each < period ? seen / each : period - 1;
        seen += (p->params ? p->params[l] : p->comm_s[l]) > 0;
    }
}

/* step [L] in backward order by the chosen solver. */
static ddp_status ddp__partial_solve(const ddp_profile *p, const ddp_plan_options *o,
                                     const ddp__costs *c, int *step, ddp_error *err)
{
    int *cut, i, h;
    ddp_status status;

    if (o->solver == DDP_SOLVER_ENP) {
        ddp__enp(p, c, o->period, step);
        return DDP_OK;
    }
    cut = (int *)ddp__calloc((size_t)o->period + 1, sizeof *cut);
    if (!cut) return ddp__fail(err, DDP_MEMORY, "no memory to plan %d steps", o->period);
    if (o->solver == DDP_SOLVER_BRUTE)
        status = ddp__brute(p, c->cost, o->period, o->time_limit_s, cut, err);
    else if (o->solver == DDP_SOLVER_DFS) status = ddp__dfs(c, o->period, cut, err);
    else status = ddp__optimal(c, o->period, cut, NULL, err);
    for (h = 0; status == DDP_OK && h < o->period; h++)
        for (i = cut[h]; i < cut[h + 1]; i++) step[i] = h;
    DDP_FREE(cut);
    if (status == DDP_OK && (o->solver == DDP_SOLVER_SCATTER || o->solver == DDP_SOLVER_DEFAULT))
        status = ddp__scatter(c, o->period, o->time_limit_s, step, err);
    return status;
}

static ddp_status ddp__plan_options_check(const ddp_plan_options *o, ddp_error *err)
{
    if (!o) return ddp__fail(err, DDP_ARG, "ddp_plan_partial needs options; at least the period");
    if (o->period < 1)
        return ddp__fail(err, DDP_ARG, "period %d is impossible; it needs at least 1 step",
                         o->period);
    if ((int)o->solver < 0 || (int)o->solver >= DDP__COUNT(ddp__solver_names))
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use a DDP_SOLVER_ constant",
                         (int)o->solver);
    if ((int)o->fill < 0 || (int)o->fill >= DDP__COUNT(ddp__fill_names))
        return ddp__fail(err, DDP_ARG, "filling %d is unknown; use a DDP_FILL_ constant",
                         (int)o->fill);
    if (!(o->time_limit_s >= 0 && o->time_limit_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "time limit %g s is impossible; 0 means 60 s",
                         o->time_limit_s);
    return DDP_OK;
}

ddp_status ddp_plan_partial(const ddp_profile *p, const ddp_plan_options *o, ddp_plan *out,
                            ddp_error *err)
{
    ddp__costs c;
    ddp_plan plan;
    ddp_status status;
    int *step, i;

    DDP__TRY(ddp__plan_options_check(o, err));
    DDP__TRY(ddp__costs_open(p, o->cost, &c, err));
    memset(&plan, 0, sizeof plan);
    status = ddp_plan_new(c.layers, o->period, &plan, err);
    step = (int *)ddp__calloc(2 * (size_t)c.layers, sizeof *step);
    if (status == DDP_OK && !step)
        status = ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers", c.layers);
    if (status == DDP_OK) status = ddp__partial_solve(p, o, &c, step, err);
    if (status == DDP_OK) status = ddp__fill(&c, o->fill, step, &plan, err);
    if (status == DDP_OK) {
        plan.solver = o->solver == DDP_SOLVER_DEFAULT ? DDP_SOLVER_SCATTER : o->solver;
        for (i = 0; i < c.layers; i++) plan.step_of[c.layers - 1 - i] = step[i];
        ddp__plan_costs(&c, step, step + c.layers, &plan);
        *out = plan;
    } else {
        ddp_plan_free(&plan);
    }
    DDP_FREE(step);
    ddp__costs_close(&c);
    return status;
}

ddp_status ddp_plan_evaluate(const ddp_profile *p, ddp_cost cost, ddp_plan *plan, ddp_error *err)
{
    ddp__costs c;
    int *step, l;

    DDP__TRY(ddp_profile_check(p, err));
    if (!plan || plan->layers != p->layers || !plan->step_of)
        return ddp__fail(err, DDP_ARG,
                         "the plan has %d layers, the profile %d; they must be of one model",
                         plan ? plan->layers : 0, p->layers);
    for (l = 0; l < p->layers; l++)
        if (plan->step_of[l] < 0 || plan->step_of[l] >= plan->period)
            return ddp__fail(err, DDP_ARG,
                             "layer %d is in step %d; the steps of the plan are 0 to %d", l,
                             plan->step_of[l], plan->period - 1);
    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    step = (int *)ddp__calloc(2 * (size_t)c.layers, sizeof *step);
    if (step) {
        for (l = 0; l < c.layers; l++) step[c.layers - 1 - l] = plan->step_of[l];
        ddp__plan_costs(&c, step, step + c.layers, plan);
        DDP_FREE(step);
    }
    ddp__costs_close(&c);
    return step ? DDP_OK : ddp__fail(err, DDP_MEMORY, "no memory to evaluate %d layers", p->layers);
}

ddp_status ddp_plan_step_time(const ddp_profile *p, const int *step_of, int step, ddp_cost cost,
                              double *out_s, ddp_error *err)
{
    ddp__costs c;
    int *list, i, n = 0;

    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    list = (int *)ddp__calloc((size_t)c.layers, sizeof *list);
    if (list) {
        for (i = 0; i < c.layers; i++)
            if (step_of[c.layers - 1 - i] == step) list[n++] = i;
        *out_s = c.T + ddp__excess_list(&c, list, n, -1, -1);
        DDP_FREE(list);
    }
    ddp__costs_close(&c);
    return list ? DDP_OK : ddp__fail(err, DDP_MEMORY, "no memory to evaluate %d layers", p->layers);
}

ddp_status ddp_plan_curve(const ddp_profile *p, ddp_cost cost, int max_period, double *exposed_s,
                          ddp_error *err)
{
    ddp__costs c;
    ddp_status status;

    if (max_period < 1)
        return ddp__fail(err, DDP_ARG, "a curve up to period %d is empty; ask for at least 1",
                         max_period);
    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    status = ddp__optimal(&c, max_period, NULL, exposed_s, err);
    ddp__costs_close(&c);
    return status;
}

static uint64_t ddp__hash_int(uint64_t hash, int value)
{
    unsigned char b[4];
    int i;

    for (i = 0; i < 4; i++) b[i] = (unsigned char)(((uint32_t)value >> (8 * i)) & 255u);
    return ddp__hash(hash, b, 4);
}

uint64_t ddp_plan_hash(const ddp_plan *plan)
{
    uint64_t hash = ddp__hash_int(ddp__hash_int(DDP__HASH_START, plan->layers), plan->period);
    int l;

    for (l = 0; l < plan->layers; l++) hash = ddp__hash_int(hash, plan->step_of[l]);
    return ddp__hash(hash, plan->fill, (size_t)plan->layers * (size_t)plan->period);
}
