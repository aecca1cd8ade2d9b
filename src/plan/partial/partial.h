/* DreamDDP's planner: in which local step of the period each layer is averaged. */
#pragma once

#include "plan/partial/choice.h"
#include "profile/profile.h"

typedef struct ddp_plan_options {
    int period; /* H >= 1 */
    ddp_solver solver;
    ddp_cost cost;
    ddp_fill fill;
    double time_limit_s; /* brute and scatter stop here with the best found; 0 = 60 s */
} ddp_plan_options;

/* A plan. Owned by the caller of ddp_plan_partial or ddp_plan_new; ddp_plan_free. */
typedef struct ddp_plan {
    int layers, period;
    int *step_of;        /* [L] step 0..H-1 whose backward averages layer l */
    unsigned char *fill; /* [H x L] 1 = layer l is averaged once more in step h */
    ddp_solver solver;
    ddp_cost cost;
    double objective_s;   /* sum over the period, forward time left out */
    double exposed_s;     /* objective minus period x backward */
    double lower_bound_s; /* no assignment can have a smaller objective */
} ddp_plan;

/* Costs of one step whose backward averages the set S of layers. Backward order counts layers i = 0.. from
 * the output side, P(i) is the backward time of layers 0..i-1, T = P(L) of all.
 *   timeline  max(T, end of the last transfer + alpha): a transfer starts when its layer's backward has ended
 *             and the link is free (DreamDDP, text under Eq. 7)
 *   sum       max(T, P(a+1) + sum of S + alpha), a = the output-most layer of S (Eq. 8-11)
 *   window    end of the next forward minus all forward time: a layer's forward waits only for its own
 *             transfer, and the link serves the layer nearest to the input first
 *   S empty   T
 * A layer with comm_s 0 sends nothing and pays neither alpha nor gap_s, which each other layer's comm
 * contains here.
 *
 * For timeline and window, with w(i) = P(i+1) (timeline) or P(i+1) minus the forward time of the layers
 * before layer i in the forward pass (window), the cost is exactly
 *     max(T, max over i in S of w(i) + alpha + comm of the layers of S from i towards the input).
 * Whatever runs before i can be started no earlier than w(i) allows, and layers released early are due late,
 * so the earliest-deadline order attains the largest of these bounds. */

/* ddp_plan_partial - in which step of the period each layer is averaged.
 *
 *   o->period       H steps; every layer is averaged once in each period
 *   o->time_limit_s reached only by instances far beyond a few hundred layers: otherwise the search is
 *   bounded by
 *                   counts, and the plan is the same on every machine
 *
 * Equal objectives: the contiguous solvers put as many layers as possible in the earlier step; scatter takes
 * the last that it meets, from the contiguous optimum on, which it never exceeds. optimal is exact among
 * contiguous sets: in O(L H) where alpha_s is 0 (timeline, window), else by the O(L^2 H) programme. brute
 * refuses more than 5e7 partitions or 2000 layers, dfs more than 4e6 leaves.
 *
 * Source: DreamDDP (arXiv:2502.11058) section 3.3, Algorithm 2, Eq. 8-12. Its symbols are here: H period, L
 * layers, t_FP t_BP forward_s backward_s, t_COMM comm_s, a partition of the layers over H steps step_of; and
 * Gamma ddp_stats.divergence.
 * *out is overwritten, not freed; it is untouched on error, else freed by ddp_plan_free.
 * Pure; safe from any thread. Errors: DDP_ARG, DDP_NUMERIC, DDP_MEMORY, DDP_UNSUPPORTED. */
DDP_API ddp_status ddp_plan_partial(const ddp_profile *p, const ddp_plan_options *o, ddp_plan *out,
                                    ddp_error *err);

/* ddp_plan_new - every layer in step 0, no filling, costs 0. ddp_plan_free - all-zero is fine. */
DDP_API ddp_status ddp_plan_new(int layers, int period, ddp_plan *out, ddp_error *err);
DDP_API void ddp_plan_free(ddp_plan *plan);

/* ddp_plan_evaluate - objective_s, exposed_s, lower_bound_s and cost of any assignment (plan->step_of may be
 * non-contiguous; filling is free by construction and not counted).
 * The bound holds for every assignment of the layers to the steps. Cost: O(L H). */
DDP_API ddp_status ddp_plan_evaluate(const ddp_profile *p, ddp_cost cost, ddp_plan *plan, ddp_error *err);

/* ddp_plan_step_time - predicted length of local step `step`, without forward time, in seconds.
 *   step_of [L]  the step that averages each layer
 *   out_s        untouched on error
 * Cost: O(L). Errors: DDP_ARG, DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_plan_step_time(const ddp_profile *p, const int *step_of, int step, ddp_cost cost,
                                      double *out_s, ddp_error *err);

/* ddp_plan_landing - how many steps after its own each layer's transfer lands, where transfers may span
 * several.
 *
 *   landing [L]  0: before the layer's next forward (cost window; timeline: before the next step), n: n steps
 *                later. The smallest with which, in the long run, nothing ever waits; at most H - 1, as a
 *                layer lands before it is sent again, and what would take longer waits
 *   *exposed_s   what a period takes beyond its computing: 0, or, where the link is slower than that, the
 *                difference (steps are then taken to be longer by equal parts of it)
 * A transfer starts when its layer's backward has ended and the link is free of those that were posted before
 * it. Cost: O(L^2 + L H). Errors: as ddp_plan_evaluate. */
DDP_API ddp_status ddp_plan_landing(const ddp_profile *p, const ddp_plan *plan, int *landing,
                                    double *exposed_s, ddp_error *err);

/* ddp_plan_curve - exposed_s[h-1] = smallest exposed communication of a period of h steps with contiguous
 * sets, for h = 1..max_period, from one run. Use it to choose the period. */
DDP_API ddp_status ddp_plan_curve(const ddp_profile *p, ddp_cost cost, int max_period, double *exposed_s,
                                  ddp_error *err);

/* ddp_plan_hash - 64 bits over layers, period, step_of and fill; the same on every platform. */
DDP_API uint64_t ddp_plan_hash(const ddp_plan *plan);

/* Names as the programs spell them; DEFAULT gives the default's name, a bad value "unknown". The inverse
 * fails with DDP_ARG and a sentence that lists the names. */
DDP_API const char *ddp_solver_name(ddp_solver solver);
DDP_API const char *ddp_cost_name(ddp_cost cost);
DDP_API const char *ddp_fill_name(ddp_fill fill);
DDP_API ddp_status ddp_solver_named(const char *name, ddp_solver *out, ddp_error *err);
DDP_API ddp_status ddp_cost_named(const char *name, ddp_cost *out, ddp_error *err);
DDP_API ddp_status ddp_fill_named(const char *name, ddp_fill *out, ddp_error *err);
