/* The 0/1 knapsack on one or two links, with release times: the transfers that fit behind computing. */
#pragma once

#include "base/status.h"

typedef enum ddp_knapsack_solver {
    DDP_KNAPSACK_DEFAULT, /* exact where 2^16 entries for a half are enough, else greedy */
    DDP_KNAPSACK_EXACT,
    DDP_KNAPSACK_GREEDY
} ddp_knapsack_solver;

/* Item i starts at or after ready_s[i] on link 0, where it takes item_s[i], or on link 1, where it takes
 * slowdown[1] x item_s[i]; a link carries one item at a time, begins at start_s and is done by deadline_s. A
 * plain knapsack has no ready_s: capacity = deadline - start. All arrays are borrowed; all-zero fields have
 * the default named. */
typedef struct ddp_knapsack_problem {
    int items;
    const double *item_s;  /* [items] > 0, on the fast link */
    const double *ready_s; /* [items] >= 0, or NULL = all 0 */
    const double *value;   /* [items] >= 0, what is maximised, or NULL = item_s */
    int links;             /* 1 or 2 */
    double start_s[2];     /* >= 0 */
    double deadline_s[2];  /* >= 0; an empty link (start >= deadline) takes nothing */
    double slowdown[2];    /* >= 1, 0 = 1 */
} ddp_knapsack_problem;

/* ddp_knapsack - the items of largest total value that all links can carry in time.
 *
 *   assign  [items] receives the link of each item, or -1
 *   value   receives the sum of the values sent (seconds where value is NULL); NULL is fine
 *
 * Items of one link run in the order of their release times, which serves a common deadline best.
 * exact: maximum, by meeting in the middle: the items in release order are split in two, each half lists what
 * it can reach, equal items as one class, and the halves are matched in
 * O(M log M). It refuses (DDP_UNSUPPORTED) what would need more than 2^20 entries for a half. Every list of
 * at most 24 items on two links, or 40 on one, is within; equal items are counted, not permuted, so that far
 * more fit when transfers are cut into equal parts.
 * greedy: links in the order of their capacity in fast-link time, items by falling value, each where it first
 * fits. Ties: lower link, lower item index. (DeFT, section III-C.)
 * Times are compared in units of 2^-44 of the longest deadline: sums that exceed a deadline by nothing but
 * rounding (0.1 + 0.2 in 0.3) fit.
 *
 * Source: DeFT, Problems 1 and 2. Errata: Problem 2 prints the second capacity as mu times the first, which
 * holds for item times on the slow link; here all item times are those of the fast link and the slow link
 * takes mu times longer. Outputs are untouched on error. Pure; safe from any thread.
 * Errors: DDP_ARG (names item and value), DDP_UNSUPPORTED, DDP_MEMORY. */
DDP_API ddp_status ddp_knapsack(const ddp_knapsack_problem *p, ddp_knapsack_solver solver, int *assign,
                                double *value, ddp_error *err);

/* Names as the programs spell them; DEFAULT gives "default", a bad value "unknown". The inverse fails with
 * DDP_ARG and a sentence that lists the names. */
DDP_API const char *ddp_knapsack_solver_name(ddp_knapsack_solver solver);
DDP_API ddp_status ddp_knapsack_solver_named(const char *name, ddp_knapsack_solver *out, ddp_error *err);
