/* DreamDDP's planner: chooses the local step of the period in which each layer is averaged. */
#pragma once

#include "plan/partial/choice.h"
#include "profile/profile.h"

/* Options of ddp_plan_partial. All-zero except period selects the defaults. */
typedef struct ddp_plan_options {
    int period;          /* H >= 1, in steps */
    ddp_solver solver;   /* (default: scatter) */
    ddp_cost cost;       /* (default: window) */
    ddp_fill fill;       /* extra averages in idle time (default: none) */
    double time_limit_s; /* brute and scatter stop then and return the best plan so far (default: 60 s) */
} ddp_plan_options;

/* A plan. The caller of ddp_plan_partial or ddp_plan_new owns it and frees it with ddp_plan_free. */
typedef struct ddp_plan {
    int layers, period;   /* L, and H in steps */
    int *step_of;         /* [L] step 0..H-1 whose backward averages layer l */
    unsigned char *fill;  /* [H x L] 1 = layer l is averaged once more in step h */
    ddp_solver solver;    /* solver that made it */
    ddp_cost cost;        /* cost model of the times below */
    double objective_s;   /* seconds of one period without forward time */
    double exposed_s;     /* objective minus period x backward */
    double lower_bound_s; /* no assignment has a smaller objective */
} ddp_plan;

/* The costs of one step whose backward averages the set S of layers. Backward order counts the layers i =
 * 0.. from the output side. P(i) is the backward time of layers 0..i-1, and T = P(L) the backward time of
 * all layers.
 *   timeline  max(T, end of the last transfer + alpha). A transfer starts when its layer's backward has
 *             ended and the link is free (DreamDDP, text under Eq. 7)
 *   sum       max(T, P(a+1) + sum of S + alpha). A is the layer of S nearest to the output (Eq. 8-11)
 *   window    end of the next forward minus all forward time. The forward of a layer waits only for its own
 *             transfer, and the link serves the layer nearest to the input first
 *   S empty   T
 * A layer with comm_s 0 sends nothing and pays neither alpha nor gap_s. Here the comm of every other layer
 * includes gap_s.
 *
 * For timeline and window, the cost is exactly
 *     max(T, max over i in S of w(i) + alpha + comm of the layers of S from i towards the input).
 * w(i) is P(i+1) for timeline. For window it is P(i+1) minus the forward time of the layers before layer i
 * in the forward pass. The transfers of i and of the layers of S towards the input cannot start earlier
 * than w(i) allows, so each of these bounds holds. Layers released early are due late, so the
 * earliest-deadline order attains the largest bound. */

/* ddp_plan_partial - chooses the step of the period in which each layer is averaged.
 *
 *   o->period        H steps. Every layer is averaged once per period.
 *   o->time_limit_s  only reached by instances far beyond a few hundred layers. Otherwise counts limit the
 *                    search, and the plan is the same on every machine
 *
 * Equal objectives: the contiguous solvers put as many layers as possible in the earlier step. scatter
 * starts from the contiguous optimum, never exceeds its objective, and returns the last of equal assignments
 * that it visits. optimal is exact among contiguous sets: O(L H) if alpha_s is 0 (timeline, window), else
 * the O(L^2 H) programme. brute rejects more than 5e7 partitions or 2000 layers, and dfs more than 4e6
 * leaves.
 *
 * Source: DreamDDP (arXiv:2502.11058) section 3.3, Algorithm 2, Eq. 8-12. The paper's symbols are named: H
 * period, L layers, t_FP forward_s, t_BP backward_s, t_COMM comm_s, a partition of the layers over H steps
 * step_of, Gamma ddp_stats.divergence. *out is overwritten, not freed. Unchanged on error, otherwise the
 * caller frees it with ddp_plan_free. Pure and safe from any thread. Errors: DDP_ARG, DDP_NUMERIC,
 * DDP_MEMORY, DDP_UNSUPPORTED. */
DDP_API ddp_status ddp_plan_partial(const ddp_profile *p, const ddp_plan_options *o, ddp_plan *out,
                                    ddp_error *err);

/* ddp_plan_new - creates a plan with every layer in step 0, no filling, and costs 0. *out is untouched on
 * error. Otherwise, the caller frees it with ddp_plan_free. Errors: DDP_ARG for layers or period below 1,
 * DDP_MEMORY. */
DDP_API ddp_status ddp_plan_new(int layers, int period, ddp_plan *out, ddp_error *err);

/* ddp_plan_free - frees the arrays of a plan. Accepts an all-zero one. */
DDP_API void ddp_plan_free(ddp_plan *plan);

/* ddp_plan_evaluate - sets objective_s, exposed_s, lower_bound_s and cost of any assignment. plan->step_of
 * need not be contiguous. Filling is free by construction and is not counted. The bound holds for every
 * assignment of the layers to the steps. Cost: O(L H). Pure and safe from any thread. Errors: DDP_ARG (the
 * profile; another number of layers; a step out of range), DDP_NUMERIC for times that add up to infinity,
 * DDP_MEMORY. */
DDP_API ddp_status ddp_plan_evaluate(const ddp_profile *p, ddp_cost cost, ddp_plan *plan, ddp_error *err);

/* ddp_plan_step_time - predicts the length of local step `step` in seconds, without forward time.
 *   step_of  [L] the step that averages each layer
 *   out_s    receives the seconds. Unchanged on error.
 * Cost: O(L). Errors: DDP_ARG, DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_plan_step_time(const ddp_profile *p, const int *step_of, int step, ddp_cost cost,
                                      double *out_s, ddp_error *err);

/* ddp_plan_landing - computes how many steps after its own step each layer's transfer ends, if transfers may
 * span several steps.
 *
 *   landing      [L] 0: before the layer's next forward (cost window) or before the next step (cost
 *                timeline). n: n steps later. It is the smallest value with which no layer waits in the
 *                steady state. It is at most H - 1, because a transfer ends before the layer is sent again. A
 *                longer transfer causes a wait
 *   exposed_s    receives the seconds of a period beyond its compute: 0, or the difference if the link is
 *                slower than compute. In that case every step is assumed longer by an equal share of it
 *
 * A transfer starts when its layer's backward has ended and the link has finished the transfers posted before
 * it. Cost: O(L^2 + L H). Pure and safe from any thread. Errors: DDP_ARG (NULL; the profile; another number
 * of layers; a step out of range), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_plan_landing(const ddp_profile *p, const ddp_plan *plan, int *landing,
                                    double *exposed_s, ddp_error *err);

/* ddp_plan_curve - computes the smallest exposed communication for each period up to max_period, in one run.
 * Use it to choose the period.
 *
 *   exposed_s  [max_period] exposed_s[h-1] receives the seconds per period of h steps with contiguous sets
 *
 * Pure and safe from any thread. Errors: DDP_ARG (the profile; max_period below 1), DDP_NUMERIC,
 * DDP_MEMORY. */
DDP_API ddp_status ddp_plan_curve(const ddp_profile *p, ddp_cost cost, int max_period, double *exposed_s,
                                  ddp_error *err);

/* ddp_plan_hash - returns a 64-bit hash of layers, period, step_of and fill. It is the same on every
 * platform. Pure and safe from any thread. */
DDP_API uint64_t ddp_plan_hash(const ddp_plan *plan);

/* ddp_solver_name - returns the name of a solver as used by the programs. DDP_SOLVER_DEFAULT gives the name
 * of the default. An invalid value gives "unknown". A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_solver_name(ddp_solver solver);

/* ddp_cost_name - returns the name of a cost model: the name of the default for DDP_COST_DEFAULT, and
 * "unknown" for an invalid value. A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_cost_name(ddp_cost cost);

/* ddp_fill_name - returns the name of a filling rule: the name of the default for DDP_FILL_DEFAULT, and
 * "unknown" for an invalid value. A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_fill_name(ddp_fill fill);

/* ddp_solver_named - finds the solver with the given name. Pure and safe from any thread. Errors: DDP_ARG,
 * with a list of the valid names. */
DDP_API ddp_status ddp_solver_named(const char *name, ddp_solver *out, ddp_error *err);

/* ddp_cost_named - finds the cost model with the given name. Pure and safe from any thread. Errors: DDP_ARG,
 * with a list of the valid names. */
DDP_API ddp_status ddp_cost_named(const char *name, ddp_cost *out, ddp_error *err);

/* ddp_fill_named - finds the filling rule with the given name. Pure and safe from any thread. Errors:
 * DDP_ARG, with a list of the valid names. */
DDP_API ddp_status ddp_fill_named(const char *name, ddp_fill *out, ddp_error *err);
