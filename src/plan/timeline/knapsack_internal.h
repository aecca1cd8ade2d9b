/* The knapsack in integer ticks, with equal items grouped into classes. */
#pragma once

#include "base/core.h"
#include "plan/timeline/deft.h"

typedef struct ddp__knapsack_class {
    int64_t ready;
    int64_t cost[2]; /* on each link, in ticks, rounded down */
    int64_t value;
    int first, count; /* positions in `order` */
} ddp__knapsack_class;

/* The knapsack problem in ticks. Integers make every comparison exact and every order total. Costs are
 * rounded down and deadlines up, so that rounding never rejects a set that fits. */
typedef struct ddp__knapsack {
    int items, links, classes;
    int64_t start[2], deadline[2];
    ddp__knapsack_class *cls; /* in release order, without items that fit on no link */
    int *order;               /* [items] item index by position */
    double *key;              /* [items] sort key of greedy */
    const double *value;      /* [items] the quantity to maximise, before conversion to ticks */
    int *assign;              /* [items] link of each item, or -1 */
    int64_t total;            /* sum of the values of all classes */
    int64_t *work;            /* incremented for each entry that the exact search lists. May be NULL. */
    ddp__scratch room;
} ddp__knapsack;

/* ddp_knapsack with a limit on the entries that each half of the exact search may list. work may be NULL. */
DDP_LIB ddp_status ddp__knapsack_within(const ddp_knapsack_problem *p, ddp_knapsack_solver solver,
                                        size_t most, int64_t *work, int *assign, double *value,
                                        ddp_error *err);

/* Replaces k->assign if a value above `known` can be reached. most = entries per half. */
DDP_LIB ddp_status ddp__knapsack_exact(ddp__knapsack *k, int64_t known, size_t most, ddp_error *err);
