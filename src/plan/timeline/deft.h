/* DeFT's planner: delayed, merged gradients whose transfers overlap with forward and backward. */
#pragma once

#include "plan/timeline/knapsack.h"
#include "profile/profile.h"

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
