/* Shared by the solvers of the partial planner: one profile in backward order. */
#ifndef DDP_PLAN_PARTIAL_CORE_H
#define DDP_PLAN_PARTIAL_CORE_H

#include "plan/partial.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Layers in backward order i = 0..L-1 (0 = output side, CSV row L-1-i). The cost of a step is
 * T + excess; solvers minimise the sum of excesses, which keeps its digits when T is large. */
typedef struct ddp__costs {
    ddp_cost cost;
    int      layers;
    double   T, alpha;
    double  *comm;  /* [L] */
    double  *P, *C; /* [L+1] prefix sums of backward and of comm */
    double  *w;     /* [L] non-decreasing: earliest start of a transfer, less its window */
    double  *k;     /* [L] w(i) - C(i); -inf where nothing is sent */
} ddp__costs;

DDP_LIB ddp_status ddp__costs_open(const ddp_profile *p, ddp_cost cost, ddp__costs *c,
                                   ddp_error *err);
DDP_LIB void       ddp__costs_close(ddp__costs *c);

/* Excess of the interval [a, b); kmax = max of k over it (read by timeline and window only). */
DDP_LIB double ddp__excess_interval(const ddp__costs *c, int a, int b, double kmax);
/* Excess of layers list[0..n) (ascending), without `less` and with `more` (-1 = none). */
DDP_LIB double ddp__excess_list(const ddp__costs *c, const int *list, int n, int less, int more);
/* Lower bound on the sum of excesses of any assignment to `period` steps. */
DDP_LIB double ddp__excess_bound(const ddp__costs *c, int period);

/* Contiguous solvers: set h is [cut[h], cut[h+1]), cut [period+1]. ddp__search needs a cost other
 * than sum and alpha 0; ddp__programme takes all; ddp__optimal picks. curve [period] or NULL. */
DDP_LIB ddp_status ddp__search(const ddp__costs *c, int period, int *cut, double *curve,
                               ddp_error *err);
DDP_LIB ddp_status ddp__programme(const ddp__costs *c, int period, int *cut, double *curve,
                                  ddp_error *err);
DDP_LIB ddp_status ddp__optimal(const ddp__costs *c, int period, int *cut, double *curve,
                                ddp_error *err);
DDP_LIB ddp_status ddp__dfs(const ddp__costs *c, int period, int *cut, ddp_error *err);
/* The steps of a table of choices: choice[r * (L+1) + l] ends the set at l with r+1 sets left. */
DDP_LIB void ddp__cut_from_choice(const int *choice, int layers, int rows, int period, int *cut);

/* Any assignment; step [L] in backward order holds a first assignment and receives the best. */
DDP_LIB ddp_status ddp__scatter(const ddp__costs *c, int period, double time_limit_s, int *step,
                                ddp_error *err);

/* Every contiguous partition, by simulating the definitions: shares nothing with the above.
 * The same simulation for any set: member [L] in forward order, nonzero = averaged. */
DDP_LIB ddp_status ddp__brute(const ddp_profile *p, ddp_cost cost, int period, double time_limit_s,
                              int *cut, ddp_error *err);
DDP_LIB ddp_status ddp__brute_step(const ddp_profile *p, ddp_cost cost, const unsigned char *member,
                                   double *out_s, ddp_error *err);

/* Marks plan->fill [H x L, forward order] from step [L] (backward order). */
DDP_LIB ddp_status ddp__fill(const ddp__costs *c, ddp_fill rule, const int *step, ddp_plan *plan,
                             ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_PARTIAL_CORE_H */
