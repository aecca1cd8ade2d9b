/* The search of DeFT's planner: ways to cut buckets into parts, and the cycle of one way. */
#pragma once

#include "base/core.h"
#include "plan/timeline/deft.h"

/* The longest part: of the shorter stage, over mu (the paper's rule 3) or on the fast link, then of the
 * longer one. */
enum { DDP__DEFT_RULES = 4, DDP__DEFT_WAYS = 6 * DDP__DEFT_RULES };

/* One way to plan. coarse: stages as long as T_f + T_b. joined: rule 2, no smaller parts than the rule asks
 * for. */
typedef struct ddp__deft_way {
    int no_barrier, coarse, joined, rule;
} ddp__deft_way;

/* All ways of one call. */
typedef struct ddp__deft_search {
    const ddp_profile *p;
    const ddp_delayed_options *o;
    ddp_delayed_plan best;             /* all-zero: none */
    int64_t work;                      /* entries of knapsacks, and what iterations cost beside them */
    uint64_t seen[2 * DDP__DEFT_WAYS]; /* hashes of the partitions that were tried */
    int ways;
} ddp__deft_search;

/* Equal parts of a bucket are interchangeable, so that a state is a count of parts per bucket. */
typedef struct ddp__deft {
    int buckets, links;
    double mu;
    double forward, backward; /* T_f, T_b */
    double alpha;             /* startup of every part */
    double scale;             /* of the capacities */
    ddp_delayed_select select;
    ddp_knapsack_solver solver;
    size_t most; /* entries of the exact search */
    int queue;   /* no knapsack: parts go in the order of release */
    ddp__deft_way way;
    int64_t *work;
    double *ready;  /* [N] after the start of backward */
    double *part_s; /* [N] */
    int *parts_of;  /* [N] */
    int parts;
    double *item, *item_ready; /* [parts] scratch of a choice */
    int *bucket, *assign;      /* [parts] likewise */
    int *on;                   /* [4 N] the parts chosen, [2 x N]; and the best choice so far */
    ddp__scratch room;
} ddp__deft;

/* Plans one way; s->best is replaced if the plan is better. */
DDP_LIB ddp_status ddp__deft_variant(ddp__deft_search *s, ddp__deft_way way, ddp_error *err);
/* Has the search done enough? From then on knapsacks are greedy by default, and one plan suffices. */
DDP_LIB int ddp__deft_spent(int64_t work);

/* Iterates to the steady period and fills out (untouched on error). */
DDP_LIB ddp_status ddp__deft_cycle(ddp__deft *d, ddp_delayed_plan *out, ddp_error *err);
