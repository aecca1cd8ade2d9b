/* The cost of an assignment of layers to steps, and the solvers that minimise it. */
#pragma once

#include "base/core.h"
#include "plan/partial/partial.h"

/* One profile in backward order i = 0..L-1 (0 = output side, CSV row L-1-i). The cost of a step is T +
 * excess. The solvers minimise the sum of the excesses, because it loses no digits if T is large. */
typedef struct ddp__costs {
    ddp_cost cost;
    int layers;
    double T, alpha;
    ddp__scratch room;
    int *step, *list; /* [L] an assignment, the layers of one step */
    double *comm;     /* [L] */
    double *P, *C;    /* [L+1] prefix sums of backward and of comm */
    double *w;        /* [L] non-decreasing: earliest start of a transfer, minus its window */
    double *k;        /* [L] w(i) - C(i), or -inf if the layer sends no bytes */
} ddp__costs;

/* Fills c from a profile. On success the caller frees c->room. */
DDP_LIB ddp_status ddp__costs_open(const ddp_profile *p, ddp_cost cost, ddp__costs *c, ddp_error *err);
/* Excess of the layers list[0..n) (ascending), without layer `less` and with layer `more` (-1 for no
 * layer). */
DDP_LIB double ddp__excess_list(const ddp__costs *c, const int *list, int n, int less, int more);
/* Lower bound on the sum of the excesses of any assignment to `period` steps. */
DDP_LIB double ddp__excess_bound(const ddp__costs *c, int period);

/* Contiguous solvers. Set h is [cut[h], cut[h+1]), with cut [period+1], and curve [period] or NULL. `windows`
 * selects Algorithm 2, which needs a cost other than sum and alpha 0. Otherwise an O(L^2 H) programme
 * handles every cost. ddp__optimal selects between the two. */
DDP_LIB ddp_status ddp__contiguous(const ddp__costs *c, int period, int windows, int *cut, double *curve,
                                   ddp_error *err);
DDP_LIB ddp_status ddp__optimal(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err);
DDP_LIB ddp_status ddp__dfs(const ddp__costs *c, int period, int *cut, ddp_error *err);

/* Optimises over all assignments. step [L], in backward order, holds the first assignment and receives the
 * best. */
DDP_LIB ddp_status ddp__scatter(const ddp__costs *c, int period, double time_limit_s, int *step,
                                ddp_error *err);
