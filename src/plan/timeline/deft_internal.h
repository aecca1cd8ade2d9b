/* The search of DeFT's planner: the ways to partition buckets, and the steady period of one way. */
#pragma once

#include "base/core.h"
#include "plan/timeline/deft.h"

/* The limits for the longest part: the length of the shorter stage, divided by mu (the paper's rule 3) or on
 * the fast link, then the same two for the longer stage. */
enum { DDP__DEFT_RULES = 4, DDP__DEFT_WAYS = 6 * DDP__DEFT_RULES };

/* One way to plan. coarse means that both stages count as T_f + T_b long. joined means rule 2, parts as long
 * as the rule allows. */
typedef struct ddp__deft_way {
    int no_barrier, coarse, joined, rule;
} ddp__deft_way;

/* The search over all ways of one call. */
typedef struct ddp__deft_search {
    const ddp_profile *p;
    const ddp_delayed_options *o;
    ddp_delayed_plan best;             /* all-zero = no plan yet */
    int64_t work;                      /* knapsack entries, plus the cost of iterations without a knapsack */
    uint64_t seen[2 * DDP__DEFT_WAYS]; /* hashes of the partitions tried so far */
    int ways;
} ddp__deft_search;

/* The state of one way. Equal parts of a bucket are interchangeable, so a state is a count of parts per
 * bucket. */
typedef struct ddp__deft {
    int buckets, links;
    double mu;
    double forward, backward; /* T_f, T_b */
    double alpha;             /* startup of every part, in seconds */
    double scale;             /* factor on the capacities */
    ddp_delayed_select select;
    ddp_knapsack_solver solver;
    size_t most; /* most entries of the exact search */
    int queue;   /* 1 without knapsacks: parts are sent in the order of release */
    ddp__deft_way way;
    int64_t *work;
    double *ready;  /* [N] seconds after the start of backward */
    double *part_s; /* [N] seconds for one part */
    int *parts_of;  /* [N] */
    int parts;
    double *item, *item_ready; /* [parts] scratch of one choice */
    int *bucket, *assign;      /* [parts] scratch of one choice */
    int *on;                   /* [4 N] the parts chosen, [2 x N], and the best choice so far */
    ddp__scratch room;
} ddp__deft;

/* Plans one way. Replaces s->best if the plan is better. */
DDP_LIB ddp_status ddp__deft_variant(ddp__deft_search *s, ddp__deft_way way, ddp_error *err);
/* Returns 1 if the search has spent its budget. From then on knapsacks are greedy by default, and the
 * search ends at its first plan. */
DDP_LIB int ddp__deft_spent(int64_t work);

/* Iterates to the steady period and fills out (untouched on error). */
DDP_LIB ddp_status ddp__deft_cycle(ddp__deft *d, ddp_delayed_plan *out, ddp_error *err);
