/* DeFT's planner: a knapsack, and delayed, merged gradients whose transfers hide behind forward and
 * backward. */
#pragma once

#include "profile/profile.h"

/* ---- the 0/1 knapsack on one or two links, with release times: which transfers hide behind computing
 * ---- */

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

/* ---- the schedule ---- */

typedef enum ddp_delayed_select {
    DDP_SELECT_DEFAULT, /* release */
    DDP_SELECT_RELEASE, /* a part is taken only if it ends within the stage once it is ready */
    DDP_SELECT_PAPER    /* Algorithm 1 as printed; its sends may overrun the stage */
} ddp_delayed_select;

typedef struct ddp_delayed_options {
    int links;               /* 1 or 2; 0 = 1 */
    double mu;               /* time on the slow link / on the fast one, 2 links */
    double alpha_s;          /* startup within each comm_s; every part pays it again */
    double partition_s;      /* longest block on the fast link; 0 = no such limit */
    double partition_params; /* or most parameters in a block; 0 = no such limit */
    ddp_delayed_select select;
    ddp_knapsack_solver solver; /* 0 = exact where it is quick, else greedy; on two links the better
                                           * plan of that, of greedy and of a queue; paper on two links:
                                           * greedy */
    double capacity_scale;      /* knapsacks of both stages are this much larger; 0 = 1 */
    double target_frequency;    /* 0 = none; else the shortest iteration found with at
                                           * least this many updates per iteration (0..1] */
    int no_barrier;             /* sends may straddle forward and backward, where that gives more
                                             updates */
} ddp_delayed_options;

/* One part on its way, in the order of starting. */
typedef struct ddp_delayed_send {
    int iteration;    /* 0 .. warmup + period - 1 */
    int fresh;        /* 1 = of the gradient merged in this iteration's backward, else of the pending
                              one */
    int bucket, part; /* part 0 .. parts_of[bucket]-1 */
    int link;
    double begin_s, end_s; /* after the start of the iteration's forward */
} ddp_delayed_send;

/* One iteration. Its gradient joins the stored ones; opened > 0: the stored ones are merged into one
 * gradient, which may be sent from then on. At its end the pending gradient is applied (applied = how many
 * iterations it merged, or 0), then the opened one, if it is complete (applied_now). */
typedef struct ddp_delayed_step {
    double forward_s, backward_s; /* how long the stages last: compute, or the last send */
    int opened, applied, applied_now;
    int first_send, sends;
} ddp_delayed_step;

/* A plan: `warmup` iterations from nothing pending, then `period` iterations forever. Owned by the caller of
 * ddp_plan_delayed; freed by ddp_delayed_plan_free. */
typedef struct ddp_delayed_plan {
    int buckets, parts;
    int *parts_of;  /* [buckets] 0 where nothing is sent */
    double *part_s; /* [buckets] one part on the fast link, startup included */
    int links;      /* in use: 1 where the slow one cannot carry any part */
    int warmup, period;
    ddp_delayed_step *step; /* [warmup + period] */
    ddp_delayed_send *send; /* [sends] */
    int sends;
    int updates;                          /* in the steady period */
    int *k;                               /* [updates] iterations merged, the batch-size sequence */
    int *delay;                           /* [updates] iterations by which an update is later than its
                                         * newest gradient; the oldest waits k - 1 more */
    double iteration_s;                   /* mean over the steady period */
    double update_frequency;              /* updates / period */
    double forward_s, backward_s, comm_s; /* T_f, T_b and T_c after partition */
    double lower_bound_s;                 /* max(T_f + T_b, frequency x T_c / (1 + 1/mu)) */
    double capacity_scale;
    int no_barrier; /* sends may straddle the stages */
    int limited;    /* the search was ended: more of it might find a better plan */
} ddp_delayed_plan;

/* ddp_plan_delayed - DeFT's schedule for buckets (rows of the profile, row 0 = input side).
 *
 * The two queues and four cases of Algorithm 2 run from an empty start until a state comes back: that is the
 * steady period. Gradients of all iterations are merged (a mean of k), each part of a merged gradient is
 * reduced exactly once, no part starves. With select = release and capacity_scale 1 no send outlasts its
 * stage: every iteration takes T_f + T_b.
 *
 * Partition: a bucket of c seconds becomes k = max(1, ceil((c - alpha)/(limit - alpha))) equal parts of alpha
 * + (c - alpha)/k; parts of a bucket are ready together. limit = min(partition, min(T_f, T_b)/mu), the
 * paper's rule 3. With a startup, or on two links, longer parts may be better, so that limits of min(T_f,
 * T_b), max(T_f, T_b)/mu and max(T_f, T_b) are planned as well: a part that only one stage can take still
 * travels once an iteration. Without, they are tried in turn where more than 512 parts (or two a bucket)
 * would result. With a startup and a partition, parts are also planned as long as the limit, each of several
 * blocks of the partition with one startup (rule 2, US-Byte's unequal operations). A stage that computes
 * nothing is left out of the rule. no_barrier: also one knapsack of T_f + T_b an iteration, with the parts
 * above and with limits that have T_f + T_b for both stages. By default a stage is filled by the knapsack
 * and, with a startup or two links, also by greedy and by a plain queue. Of all plans the one with the least
 * time per update is taken, with a target the shortest iteration. target_frequency: the capacity is bisected
 * and the shortest iteration of all tries kept (equal: more updates); capacity_scale is then the start of the
 * search. The floor is lower_bound_s. A profile's own alpha_s and gap_s are added to every comm_s and to
 * alpha. After 5e7 entries of knapsacks (a second or less) the search ends with what it has, on every machine
 * the same: `limited`.
 *
 * Source: DeFT (Meng and Sun), Algorithms 1 and 2, sections III and IV. Decided against the print: the first
 * remainTime of Algorithm 1 is the backward time of the buckets below N, not all of it; in case 3 a part
 * starts at max(link load, ready), not after the sum of both; a merged gradient that is complete in its own
 * backward is applied in the same iteration, without delay; capacities are compared in fast-link time. *out
 * is overwritten, not freed; untouched on error. Pure; safe from any thread. Errors: DDP_ARG (names the
 * value), DDP_UNSUPPORTED (no steady period within 4096 iterations; exact on more parts than ddp_knapsack
 * takes), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_plan_delayed(const ddp_profile *buckets, const ddp_delayed_options *o,
                                    ddp_delayed_plan *out, ddp_error *err);
DDP_API void ddp_delayed_plan_free(ddp_delayed_plan *plan); /* all-zero is fine */

DDP_API const char *ddp_delayed_select_name(ddp_delayed_select select);
DDP_API ddp_status ddp_delayed_select_named(const char *name, ddp_delayed_select *out, ddp_error *err);

/* ---- the Preserver: what merging k iterations into one update costs in convergence ---- */

/* The loss as a random walk that rebounds at its lowest point:
 * s' = S* + |s - S* - eta Delta|, Delta ~ N(mu, sigma^2 / batch). */
typedef struct ddp_preserver {
    double eta;       /* learning rate, > 0 */
    double mu;        /* mean of Delta: |g|^2, >= 0 */
    double sigma;     /* sqrt(g' Sigma g), Sigma the covariance of one sample's gradient; >= 0.
                       * Estimate: deviation of g . g_w over workers x sqrt(samples of a worker) */
    double batch;     /* samples in an unmerged update, > 0 */
    double start;     /* s, the loss now; >= target */
    double target;    /* S*, the lowest loss, >= 0: an offset in both dilutes the ratio */
    double tolerance; /* 0 = 0.01, the paper's epsilon */
    int sum;          /* a merged gradient is the sum of k (k x eta), not their mean */
    int one_sided;    /* accept every ratio above 1 (the plan's loss is then the lower one) */
    int rotations;    /* judge the sequence by its worst rotation, not as it begins */
} ddp_preserver;

typedef struct ddp_preserved {
    double expected_base; /* loss after sum(k) updates with batch B */
    double expected_plan; /* after one update per k, batch k x B */
    double ratio;         /* base / plan */
    int accepted;
    int retries; /* ddp_preserver_plan: how often the capacity was raised, 0..10 */
} ddp_preserved;

/* ddp_preserver_expect - expected loss after one update from loss s that merges k iterations:
 *     m = s - S* - eta mu,  d = eta sigma / sqrt(k B),  a = m / d
 *     E = m (Phi(a) - Phi(-a)) + d sqrt(2/pi) exp(-a a / 2) + S*       (d = 0: |m| + S*)
 * Errata: the printed E_B has the random Delta where its mean belongs, and calls Phi the distribution of
 * Delta; with this a it is the standard normal one. */
DDP_API double ddp_preserver_expect(const ddp_preserver *model, double s, int k);

/* ddp_preserver_test - the ratio test on the batch-size sequence k[updates]: accepted if |ratio - 1| <=
 * tolerance (one_sided: ratio >= 1 - tolerance). The expectation is fed forward as the next state. The model
 * ignores the delay of updates.
 * Errors: DDP_ARG (names the value), DDP_NUMERIC. */
DDP_API ddp_status ddp_preserver_test(const ddp_preserver *model, const int *k, int updates,
                                      ddp_preserved *out, ddp_error *err);

/* ddp_preserver_plan - ddp_plan_delayed whose capacity grows until the test accepts: by 1.1 a time, at most
 * ten times (the paper gives no factor). If none passes, the plan with the best ratio is returned with
 * accepted = 0; a retry that cannot be planned is passed over. *plan is freed by ddp_delayed_plan_free.
 * Source: DeFT section IV-C. Both outputs are untouched on error. Pure; safe from any thread. */
DDP_API ddp_status ddp_preserver_plan(const ddp_profile *buckets, const ddp_delayed_options *o,
                                      const ddp_preserver *model, ddp_delayed_plan *plan, ddp_preserved *out,
                                      ddp_error *err);
