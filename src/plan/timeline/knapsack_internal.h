/* The knapsack in whole ticks, with equal items as classes. */
#pragma once

#include "base/core.h"
#include "plan/timeline/deft.h"

typedef struct ddp__knapsack_class {
    int64_t ready;
    int64_t cost[2]; /* on each link, rounded down */
    int64_t value;
    int first, count; /* positions in `order` */
} ddp__knapsack_class;

/* Whole ticks make every comparison exact and every order total. Costs are rounded down and deadlines up, so
 * that rounding never rejects a set that fits. */
typedef struct ddp__knapsack {
    int items, links, classes;
    int64_t start[2], deadline[2];
    ddp__knapsack_class *cls; /* in release order; items that fit nowhere are left out */
    int *order;               /* [items] item index by position */
    double *key;              /* [items] what greedy sorts by */
    const double *value;      /* [items] what is maximised, before it was ticks */
    int *assign;              /* [items] the link of each, -1 = none */
    int64_t total;            /* value of all classes */
    int64_t *work;            /* grows by one for each entry that the exact search lists; or NULL */
    ddp__scratch room;
} ddp__knapsack;

/* ddp_knapsack with the number of entries that a half of the exact search may list; work may be NULL. */
DDP_LIB ddp_status ddp__knapsack_within(const ddp_knapsack_problem *p, ddp_knapsack_solver solver,
                                        size_t most, int64_t *work, int *assign, double *value,
                                        ddp_error *err);

/* k->assign is replaced where more than `known` can be reached. most = entries of a half. */
DDP_LIB ddp_status ddp__knapsack_exact(ddp__knapsack *k, int64_t known, size_t most, ddp_error *err);
