/* DeFT's planner: delays and merges gradients so that their transfers overlap with forward and backward. */
#pragma once

#include "plan/timeline/knapsack.h"
#include "profile/profile.h"

/* Rules that select the parts which a stage sends. */
typedef enum ddp_delayed_select {
    DDP_SELECT_DEFAULT, /* release */
    DDP_SELECT_RELEASE, /* takes a part only if it ends within the stage, counted from its release */
    DDP_SELECT_PAPER    /* Algorithm 1 as printed. A send may outlast the stage. */
} ddp_delayed_select;

/* Options of ddp_plan_delayed. All-zero selects the defaults. */
typedef struct ddp_delayed_options {
    int links;                  /* 1 or 2 (default: 1) */
    double mu;                  /* time on the slow link / time on the fast link, used with 2 links */
    double alpha_s;             /* startup included in each comm_s, in seconds. Every part pays it. */
    double partition_s;         /* longest block on the fast link, in seconds, or 0 for no limit */
    double partition_params;    /* most parameters in a block, or 0 for no limit */
    ddp_delayed_select select;  /* (default: release) */
    ddp_knapsack_solver solver; /* (default: exact if that is quick, else greedy, and with two links the best
                                   plan of that solver, greedy and a queue. paper with two links: greedy) */
    double capacity_scale;      /* factor on the knapsack capacity of both stages (default: 1) */
    double target_frequency;    /* updates per iteration, in (0..1], or 0 for no target. With a target the
                                   plan has the shortest iteration found with at least this frequency. */
    int no_barrier;             /* 1 = a send may span forward and backward, if that gives more updates */
} ddp_delayed_options;

/* One part on a link. Sends are in the order of their start. */
typedef struct ddp_delayed_send {
    int iteration;         /* 0 .. warmup + period - 1 */
    int fresh;             /* 1 = part of the gradient merged in this iteration's backward, 0 = of the pending
                         gradient */
    int bucket, part;      /* part 0 .. parts_of[bucket]-1 */
    int link;              /* 0 = the fast link, 1 = the slow one */
    double begin_s, end_s; /* seconds after the start of the iteration's forward */
} ddp_delayed_send;

/* One iteration. Its gradient is added to the stored ones. If opened > 0, the stored gradients are merged
 * into one, which may be sent from then on. At the end of the iteration the pending gradient is applied:
 * `applied` is the number of iterations that it merged, or 0. Then the opened one is applied if it is
 * complete (applied_now). */
typedef struct ddp_delayed_step {
    double forward_s, backward_s;     /* length of the stages: compute, or the end of the last send */
    int opened, applied, applied_now; /* numbers of merged iterations, see above */
    int first_send, sends;            /* sends first_send .. first_send + sends - 1 of the plan */
} ddp_delayed_step;

/* A plan: `warmup` iterations that start with nothing pending, then `period` iterations that repeat. The
 * caller of ddp_plan_delayed owns it and frees it with ddp_delayed_plan_free. */
typedef struct ddp_delayed_plan {
    int buckets, parts;      /* rows of the profile, and parts of all of them */
    int *parts_of;           /* [buckets] 0 if the bucket sends nothing */
    double *part_s;          /* [buckets] seconds for one part on the fast link, startup included */
    int links;               /* number of links in use, or 1 if the slow one cannot carry any part */
    int warmup, period;      /* iterations */
    ddp_delayed_step *step;  /* [warmup + period] */
    ddp_delayed_send *send;  /* [sends] */
    int sends;               /* number of sends */
    int updates;             /* per steady period */
    int *k;                  /* [updates] iterations that each update merges: the batch-size
                                             sequence */
    int *delay;              /* [updates] iterations from the newest gradient of an update to the update. The
                                oldest gradient waits k - 1 more. */
    double iteration_s;      /* mean over the steady period */
    double update_frequency; /* updates / period */
    double forward_s, backward_s, comm_s; /* T_f, T_b, and T_c after partitioning */
    double lower_bound_s;                 /* max(T_f + T_b, frequency x T_c / (1 + 1/mu)) */
    double capacity_scale;                /* factor on the knapsack capacity that was used */
    int no_barrier;                       /* 1 = sends may span the stages */
    int limited; /* 1 = a limit ended the search. A longer search might find a better plan. */
} ddp_delayed_plan;

/* ddp_plan_delayed - plans DeFT's schedule for buckets (the rows of the profile). Row 0 is next to the input.
 *
 * The two queues and four cases of Algorithm 2 run from an empty start until a state repeats: the iterations
 * between the two are the steady period. The gradients of all iterations are merged (a mean over k). Each
 * part of a merged gradient is reduced exactly once, and no part starves. With select = release and
 * capacity_scale 1, no send outlasts its stage: every iteration takes T_f + T_b.
 *
 * Partition. A bucket of c seconds becomes k = max(1, ceil((c - alpha)/(limit - alpha))) equal parts of
 * alpha + (c - alpha)/k seconds each. The parts of a bucket become ready together. By the paper's rule 3,
 * limit = min(partition, min(T_f, T_b)/mu). The planner also tries other ways to partition:
 *   - With a startup or two links, longer parts may be better. It also plans with the limits min(T_f, T_b),
 *     max(T_f, T_b)/mu and max(T_f, T_b): a part that only one stage can carry still travels once per
 *     iteration.
 *   - Without a startup and with one link, it tries these limits in turn if more than 512 parts (or two per
 *     bucket) would result.
 *   - With a startup and a partition, it also plans parts as long as the limit. Each consists of several
 *     blocks of the partition and pays one startup (rule 2, the unequal operations of US-Byte).
 *   - A stage without compute is left out of rule 3.
 *   - With no_barrier, it also plans one knapsack of T_f + T_b per iteration, with the parts above and with
 *     limits in which both stages have T_f + T_b.
 *
 * Choice. By default the knapsack fills a stage. With a startup or two links, greedy and a plain queue are
 * also tried. The plan with the least time per update is returned, or with a target_frequency the plan with
 * the shortest iteration. For a target_frequency the capacity is bisected, starting at capacity_scale, and
 * the shortest iteration of all tries is returned (ties: more updates). No iteration is shorter than
 * lower_bound_s. The profile's own alpha_s and gap_s are added to every comm_s and to alpha. After 5e7
 * knapsack entries (a second or less) the search ends with the best plan so far, the same on every machine,
 * and sets `limited`.
 *
 * Source: DeFT (Meng and Sun), Algorithms 1 and 2, sections III and IV. Differences from the printed text:
 *   - The first remainTime of Algorithm 1 is the backward time of the buckets below N, not of all buckets.
 *   - In case 3, a part starts at max(link load, ready), not after the sum of both.
 *   - A merged gradient that is complete in its own backward is applied in the same iteration, without
 *     delay.
 *   - Capacities are compared in fast-link time.
 *
 * *out is overwritten, not freed. Unchanged on error. Pure and safe from any thread. Errors: DDP_ARG (names
 * the value), DDP_UNSUPPORTED (no steady period within 4096 iterations; exact with more parts than
 * ddp_knapsack accepts), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_plan_delayed(const ddp_profile *buckets, const ddp_delayed_options *o,
                                    ddp_delayed_plan *out, ddp_error *err);

/* ddp_delayed_plan_free - frees the arrays of a plan. Accepts an all-zero one. */
DDP_API void ddp_delayed_plan_free(ddp_delayed_plan *plan);

/* ddp_delayed_select_name - returns the name of a selection rule, or "unknown" for an invalid value. A
 * constant string. Pure and safe from any thread. */
DDP_API const char *ddp_delayed_select_name(ddp_delayed_select select);

/* ddp_delayed_select_named - finds the selection rule with the given name. Pure and safe from any thread.
 * Errors: DDP_ARG, with a list of the valid names. */
DDP_API ddp_status ddp_delayed_select_named(const char *name, ddp_delayed_select *out, ddp_error *err);
