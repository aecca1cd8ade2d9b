/* DreamDDP's planner: selects the solver, fills bubbles, and builds the plan with its costs. */
#include "plan/names.h"
#include "plan/partial/partial_brute.h"
#include "plan/partial/partial_names.h"
#include "plan/partial/partial_search.h"

static const char *const ddp__solvers[] = {DDP__SOLVERS, NULL};
static const char *const ddp__cost_names[] = {DDP__COSTS, NULL};
static const char *const ddp__fills[] = {DDP__FILLS, NULL};

DDP__NAMES(ddp_solver, ddp__solvers, 1, "solver")
DDP__NAMES(ddp_cost, ddp__cost_names, 1, "cost")
DDP__NAMES(ddp_fill, ddp__fills, 0, "filling")

ddp_status ddp_plan_new(int layers, int period, ddp_plan *out, ddp_error *err)
{
    ddp_plan plan;
    if (layers < 1)
        return ddp__fail(err, DDP_ARG, "a plan of %d layers is impossible; it needs at least 1", layers);
    if (period < 1)
        return ddp__fail(err, DDP_ARG, "period %d is impossible; it needs at least 1 step", period);
    memset(&plan, 0, sizeof plan);
    plan.layers = layers;
    plan.period = period;
    plan.step_of = (int *)ddp__calloc((size_t)layers, sizeof(int));
    plan.fill = (unsigned char *)ddp__calloc((size_t)layers, (size_t)period);
    if (!plan.step_of || !plan.fill) {
        ddp_plan_free(&plan);
        return ddp__fail(err, DDP_MEMORY, "no memory for a plan of %d layers over %d steps", layers, period);
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

/* Bubble filling: each step averages further layers from the output side where that costs nothing.
 *
 * exact: the longest prefix 0..m-1 with which the step costs no more than without it. The step's own
 * layers in the prefix count once. Empty steps are filled too. eq12: the paper's test, T - P(a+1) >= comm
 * of the set and the prefix. a is the first sending layer of the set, and the prefix ends before it. Empty
 * steps have no a and stay empty. */

/* The excess of step h of c->step if it also averages the prefix 0..m-1. */
static double ddp__excess_step(const ddp__costs *c, int h, int m)
{
    int n = 0;
    for (int i = 0; i < c->layers; i++)
        if (c->step[i] == h || (i < m && c->comm[i] > 0)) c->list[n++] = i;
    return ddp__excess_list(c, c->list, n, -1, -1);
}

/* Finds the longest free prefix by bisection, because a longer prefix costs no less. (With the sum cost,
 * the first filled layer may let the step start earlier, and so make it cheaper than without. From there on
 * the same holds.) */
static int ddp__fill_exact(const ddp__costs *c, int h)
{
    double own = ddp__excess_step(c, h, 0);
    int low = 0, high = c->layers, mid;
    while (low < high) {
        mid = low + (high - low + 1) / 2;
        if (ddp__excess_step(c, h, mid) <= own)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static int ddp__fill_eq12(const ddp__costs *c, int h)
{
    double room, sum = 0;
    int a = 0, m;
    while (a < c->layers && !(c->step[a] == h && c->comm[a] > 0)) a++;
    if (a == c->layers) return 0;
    for (int i = a; i < c->layers; i++)
        if (c->step[i] == h) sum += c->comm[i];
    room = c->T - c->P[a + 1];
    if (sum > room) room = sum;
    for (m = 0; m < a; m++) {
        sum += c->comm[m];
        if (sum > room) break;
    }
    return m;
}

/* Sets plan->fill [H x L, forward order] from c->step. */
static void ddp__fill(const ddp__costs *c, ddp_fill rule, ddp_plan *plan)
{
    int L = c->layers;
    for (int h = 0; h < plan->period && rule != DDP_FILL_NONE; h++) {
        int m = rule == DDP_FILL_EXACT ? ddp__fill_exact(c, h) : ddp__fill_eq12(c, h);
        for (int i = 0; i < m; i++)
            if (c->step[i] != h && c->comm[i] > 0)
                plan->fill[(size_t)h * (size_t)L + (size_t)(L - 1 - i)] = 1;
    }
}

/* Writes the costs of the assignment c->step to the plan. */
static void ddp__plan_costs(const ddp__costs *c, ddp_plan *plan)
{
    double excess = 0;
    for (int h = 0; h < plan->period; h++) excess += ddp__excess_step(c, h, 0);
    plan->cost = c->cost;
    plan->exposed_s = excess;
    plan->objective_s = plan->period * c->T + excess;
    plan->lower_bound_s = plan->period * c->T + ddp__excess_bound(c, plan->period);
}

/* Equal number of layers per step: ceil(n/H) of the n layers with parameters (without parameter counts, of
 * the layers that send). A layer without parameters goes to the step of the next layer that has some. */
static void ddp__enp(const ddp_profile *p, const ddp__costs *c, int period)
{
    const double *size = p->params ? p->params : p->comm_s;
    int n = 0, seen = 0, each;
    for (int l = 0; l < c->layers; l++) n += size[l] > 0;
    each = n > period ? (n - 1) / period + 1 : 1;
    for (int i = 0; i < c->layers; i++) {
        c->step[i] = seen / each < period ? seen / each : period - 1;
        seen += size[c->layers - 1 - i] > 0;
    }
}

/* Sets c->step with the chosen solver. */
static ddp_status ddp__partial_solve(const ddp_profile *p, const ddp_plan_options *o, ddp__costs *c,
                                     ddp_error *err)
{
    int scatter = o->solver == DDP_SOLVER_SCATTER || o->solver == DDP_SOLVER_DEFAULT, *cut;
    if (o->solver == DDP_SOLVER_ENP) {
        ddp__enp(p, c, o->period);
        return DDP_OK;
    }
    cut = ddp__ints(&c->room, (size_t)o->period + 1);
    if (!cut) return ddp__fail(err, DDP_MEMORY, "no memory to plan %d steps", o->period);
    if (o->solver == DDP_SOLVER_BRUTE)
        DDP__TRY(ddp__brute(p, c->cost, o->period, o->time_limit_s, cut, err));
    else if (o->solver == DDP_SOLVER_DFS)
        DDP__TRY(ddp__dfs(c, o->period, cut, err));
    else
        DDP__TRY(ddp__optimal(c, o->period, cut, NULL, err));
    for (int h = 0; h < o->period; h++)
        for (int i = cut[h]; i < cut[h + 1]; i++) c->step[i] = h;
    return scatter ? ddp__scatter(c, o->period, o->time_limit_s, c->step, err) : DDP_OK;
}

static ddp_status ddp__plan_options_check(const ddp_plan_options *o, ddp_error *err)
{
    if (!o) return ddp__fail(err, DDP_ARG, "ddp_plan_partial needs options; at least the period");
    if (o->period < 1)
        return ddp__fail(err, DDP_ARG, "period %d is impossible; it needs at least 1 step", o->period);
    if ((int)o->solver < 0 || o->solver > DDP_SOLVER_SCATTER)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use a DDP_SOLVER_ constant", (int)o->solver);
    if ((int)o->fill < 0 || o->fill > DDP_FILL_EQ12)
        return ddp__fail(err, DDP_ARG, "filling %d is unknown; use a DDP_FILL_ constant", (int)o->fill);
    if (!ddp__within(o->time_limit_s, 0, DBL_MAX))
        return ddp__fail(err, DDP_ARG, "time limit %g s is impossible; 0 means 60 s", o->time_limit_s);
    return DDP_OK;
}

ddp_status ddp_plan_partial(const ddp_profile *p, const ddp_plan_options *o, ddp_plan *out, ddp_error *err)
{
    ddp__costs c;
    ddp_plan plan = DDP__ZEROS;
    ddp_status status;
    DDP__TRY(ddp__plan_options_check(o, err));
    DDP__TRY(ddp__costs_open(p, o->cost, &c, err));
    status = ddp_plan_new(c.layers, o->period, &plan, err);
    if (status == DDP_OK) status = ddp__partial_solve(p, o, &c, err);
    if (status == DDP_OK) {
        ddp__fill(&c, o->fill, &plan);
        plan.solver = o->solver == DDP_SOLVER_DEFAULT ? DDP_SOLVER_SCATTER : o->solver;
        for (int i = 0; i < c.layers; i++) plan.step_of[c.layers - 1 - i] = c.step[i];
        ddp__plan_costs(&c, &plan);
        *out = plan;
    } else {
        ddp_plan_free(&plan);
    }
    ddp__scratch_free(&c.room);
    return status;
}

ddp_status ddp_plan_evaluate(const ddp_profile *p, ddp_cost cost, ddp_plan *plan, ddp_error *err)
{
    ddp__costs c;
    DDP__TRY(ddp_profile_check(p, err));
    if (!plan || plan->layers != p->layers || !plan->step_of)
        return ddp__fail(err, DDP_ARG, "the plan has %d layers, the profile %d; they must be of one model",
                         plan ? plan->layers : 0, p->layers);
    for (int l = 0; l < p->layers; l++)
        if (plan->step_of[l] < 0 || plan->step_of[l] >= plan->period)
            return ddp__fail(err, DDP_ARG, "layer %d is in step %d; the steps of the plan are 0 to %d", l,
                             plan->step_of[l], plan->period - 1);
    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    for (int l = 0; l < c.layers; l++) c.step[c.layers - 1 - l] = plan->step_of[l];
    ddp__plan_costs(&c, plan);
    ddp__scratch_free(&c.room);
    return DDP_OK;
}

ddp_status ddp_plan_step_time(const ddp_profile *p, const int *step_of, int step, ddp_cost cost,
                              double *out_s, ddp_error *err)
{
    ddp__costs c;
    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    for (int l = 0; l < c.layers; l++) c.step[c.layers - 1 - l] = step_of[l];
    *out_s = c.T + ddp__excess_step(&c, step, 0);
    ddp__scratch_free(&c.room);
    return DDP_OK;
}

ddp_status ddp_plan_curve(const ddp_profile *p, ddp_cost cost, int max_period, double *exposed_s,
                          ddp_error *err)
{
    ddp__costs c;
    ddp_status status;
    if (max_period < 1)
        return ddp__fail(err, DDP_ARG, "a curve up to period %d is empty; ask for at least 1", max_period);
    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    status = ddp__optimal(&c, max_period, NULL, exposed_s, err);
    ddp__scratch_free(&c.room);
    return status;
}

static uint64_t ddp__hash_int(uint64_t hash, int value)
{
    unsigned char b[4];
    for (int i = 0; i < 4; i++) b[i] = (unsigned char)(((uint32_t)value >> (8 * i)) & 255u);
    return ddp__hash(hash, b, 4);
}

uint64_t ddp_plan_hash(const ddp_plan *plan)
{
    uint64_t hash = ddp__hash_int(ddp__hash_int(DDP__HASH_START, plan->layers), plan->period);
    for (int l = 0; l < plan->layers; l++) hash = ddp__hash_int(hash, plan->step_of[l]);
    return ddp__hash(hash, plan->fill, (size_t)plan->layers * (size_t)plan->period);
}
