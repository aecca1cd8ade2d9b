/* Computes when transfers that may span several steps arrive: the window cost of plan/partial/partial.h
 * with landing times. */
#include "plan/link_clock.h"
#include "plan/partial/partial.h"

/* The steps of a plan, repeated forever. */
typedef struct ddp__steps {
    const ddp_profile *p;
    const ddp_plan *plan;
    double forward, step, period; /* seconds before the last backward of a step, of a step with its waits, of
                                     the H steps together */
} ddp__steps;

/* The smallest landing of layer l if its transfer of step h of the first period arrives at `arrives`. */
static int ddp__landing_of(const ddp__steps *s, int l, double arrives)
{
    double before = 0, slack;
    int landing;

    for (int j = 0; s->plan->cost == DDP_COST_WINDOW && s->p->forward_s && j < l; j++)
        before += s->p->forward_s[j];
    slack = arrives - before - 1e-12 * s->period; /* sums that differ only by rounding are equal */
    landing = (int)ceil(slack / s->step) - s->plan->step_of[l] - 1;
    return landing < 0 ? 0 : landing < s->plan->period ? landing : s->plan->period - 1;
}

/* The link serves messages in the order in which they were posted. After one period it is in the steady
 * state: the backlog at any time is the largest value, over all earlier times, of the work posted since
 * then minus the time since then. A whole period does not change it. */
static void ddp__landing_link(const ddp__steps *s, int *landing)
{
    double free_at = -DBL_MAX;

    for (int round = 0; round < 2; round++)
        for (int h = 0; h < s->plan->period; h++) {
            const double origin = (double)(h - (1 - round) * s->plan->period) * s->step + s->forward;
            double ready = origin;
            for (int l = s->plan->layers - 1; l >= 0; l--) {
                ready += s->p->backward_s[l];
                if (s->plan->step_of[l] != h || !(s->p->comm_s[l] > 0)) continue;
                ddp__link_take(&free_at, ready, s->p->comm_s[l]);
                if (round) landing[l] = ddp__landing_of(s, l, free_at + s->p->alpha_s);
            }
        }
}

ddp_status ddp_plan_landing(const ddp_profile *p, const ddp_plan *plan, int *landing, double *exposed_s,
                            ddp_error *err)
{
    double comm = 0, compute = 0;
    ddp_plan checked;
    ddp__steps s;

    if (!p || !plan || !plan->step_of || !landing || !exposed_s)
        return ddp__fail(err, DDP_ARG,
                         "ddp_plan_landing: the profile, the plan and both results must not be NULL");
    checked = *plan;
    DDP__TRY(ddp_plan_evaluate(p, plan->cost, &checked, err)); /* checks all arguments */
    s.p = p;
    s.plan = &checked;
    s.forward = p->between_s;
    for (int l = 0; l < p->layers; l++) {
        s.forward += p->forward_s ? p->forward_s[l] : 0;
        compute += p->backward_s[l];
        comm += p->comm_s[l];
    }
    compute = (compute + s.forward) * plan->period;
    s.period = comm > compute ? comm : compute;
    s.step = s.period / plan->period;
    for (int l = 0; l < p->layers; l++) landing[l] = 0;
    if (s.step > 0) ddp__landing_link(&s, landing);
    *exposed_s = s.period - compute;
    return DDP_OK;
}
