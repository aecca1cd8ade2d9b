/* Shared by the solvers of the knapsack: the problem in whole ticks, equal items as classes. */
#ifndef DDP_PLAN_KNAPSACK_CORE_H
#define DDP_PLAN_KNAPSACK_CORE_H

#include "plan/knapsack.h"

typedef struct ddp__knapsack_class {
    int64_t ready;
    int64_t cost[2]; /* on each link, rounded down */
    int64_t value;
    int     first, count; /* positions in `order` */
} ddp__knapsack_class;

/* Whole ticks make every comparison exact and every order total. Costs are rounded down and deadlines up, so that
 * rounding never rejects a set that fits. */
typedef struct ddp__knapsack {
    int                  items, links, classes;
    int64_t              start[2], deadline[2];
    ddp__knapsack_class *cls;   /* in release order; items that fit nowhere are left out */
    int                 *order; /* [items] item index by position */
    double              *key;   /* [items] what greedy sorts by */
    int64_t              total; /* value of all classes */
} ddp__knapsack;

/* ddp_knapsack with the number of entries that a half of the exact search may list. */
DDP_LIB ddp_status ddp__knapsack_within(const ddp_knapsack_problem *p, ddp_knapsack_solver solver, size_t most,
                                        int *assign, double *value, ddp_error *err);

/* Both write assign [items] and return the value in ticks in *out. known = a value that can be
 * reached: exact returns assign untouched and *out = known where nothing is better. most = entries of a half. */
DDP_LIB ddp_status ddp__knapsack_greedy(const ddp__knapsack *k, const ddp_knapsack_problem *p, int *assign,
                                        int64_t *out, ddp_error *err);
DDP_LIB ddp_status ddp__knapsack_exact(const ddp__knapsack *k, int64_t known, size_t most, int *assign, int64_t *out,
                                       ddp_error *err);

#endif /* DDP_PLAN_KNAPSACK_CORE_H */
