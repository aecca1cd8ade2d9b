/* The 0/1 knapsack on one or two links, with release times: chooses the transfers that overlap with
 * compute. */
#pragma once

#include "base/status.h"

/* Solvers of ddp_knapsack. */
typedef enum ddp_knapsack_solver {
    DDP_KNAPSACK_DEFAULT, /* exact if 2^16 entries per half suffice, else greedy */
    DDP_KNAPSACK_EXACT,   /* the maximum, or DDP_UNSUPPORTED */
    DDP_KNAPSACK_GREEDY   /* by descending value */
} ddp_knapsack_solver;

/* Item i starts at or after ready_s[i], on link 0 or on link 1. It takes item_s[i] seconds on link 0 and
 * slowdown[1] x item_s[i] on link 1. A link carries one item at a time, starts at start_s and must finish by
 * deadline_s. A plain knapsack has no ready_s. Its capacity is deadline - start. All arrays are borrowed. */
typedef struct ddp_knapsack_problem {
    int items;             /* number of items */
    const double *item_s;  /* [items] > 0, seconds on the fast link */
    const double *ready_s; /* [items] >= 0, or NULL = all 0 */
    const double *value;   /* [items] >= 0, the quantity to maximise, or NULL = item_s */
    int links;             /* 1 or 2 */
    double start_s[2];     /* >= 0 */
    double deadline_s[2];  /* >= 0. A link with start >= deadline carries no item. */
    double slowdown[2];    /* >= 1 (default: 1) */
} ddp_knapsack_problem;

/* ddp_knapsack - chooses the items of largest total value that the links can carry in time.
 *
 *   assign  [items] receives the link of each item, or -1
 *   value   receives the sum of the values sent (seconds if p->value is NULL). May be NULL.
 *
 * The items of one link run in the order of their release times, which is optimal for a common deadline.
 *
 * exact: the maximum, by a meet-in-the-middle search. The items in release order are split into two halves.
 * Each half lists the combinations that it can reach, with equal items as one class, and the halves are
 * matched in O(M log M). Returns DDP_UNSUPPORTED if a half would need more than 2^20 entries. Up to 24 items
 * on two links, or 40 on one, always fit. Equal items are counted, not permuted, and many more fit if
 * transfers are cut into equal parts.
 *
 * greedy: takes the links in the order of their capacity in fast-link time and the items by descending
 * value, and puts each item on the first link where it fits. Ties: lower link, lower item index. (DeFT,
 * section III-C.)
 *
 * Times are compared in units of 2^-44 of the longest deadline: a sum that exceeds a deadline only by
 * rounding (0.1 + 0.2 with a deadline of 0.3) fits.
 *
 * Source: DeFT, Problems 1 and 2. Errata: Problem 2 prints the second capacity as mu times the first, which
 * holds for item times on the slow link. Here all item times are for the fast link, and the slow link takes
 * mu times as long. Outputs are untouched on error. Pure and safe from any thread. Errors: DDP_ARG (names the
 * item and the value), DDP_NUMERIC (the sum of the values is not finite), DDP_UNSUPPORTED, DDP_MEMORY. */
DDP_API ddp_status ddp_knapsack(const ddp_knapsack_problem *p, ddp_knapsack_solver solver, int *assign,
                                double *value, ddp_error *err);

/* ddp_knapsack_solver_name - returns the name of a solver as used by the programs. DDP_KNAPSACK_DEFAULT gives
 * "default". An invalid value gives "unknown". A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_knapsack_solver_name(ddp_knapsack_solver solver);

/* ddp_knapsack_solver_named - finds the solver with the given name. Pure and safe from any thread. Errors:
 * DDP_ARG, with a list of the valid names. */
DDP_API ddp_status ddp_knapsack_solver_named(const char *name, ddp_knapsack_solver *out, ddp_error *err);
