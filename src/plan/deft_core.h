/* Shared by the files of DeFT's planner: buckets cut into parts, and one stage's choice. */
#ifndef DDP_PLAN_DEFT_CORE_H
#define DDP_PLAN_DEFT_CORE_H

#include "plan/deft.h"

/* One way to plan. */
typedef struct ddp__deft_way {
    int no_barrier;
    int coarse; /* parts as long as T_f + T_b allows */
    int joined; /* rule 2: no smaller parts than rule 3 asks for */
} ddp__deft_way;

/* Equal parts of a bucket are interchangeable, so that a state is a count of parts per bucket. */
typedef struct ddp__deft {
    int                 buckets, links;
    double              mu;
    double              forward, backward; /* T_f, T_b */
    double              scale;             /* of the capacities */
    ddp_delayed_select  select;
    ddp_knapsack_solver solver;
    size_t              most;              /* entries of the exact search */
    ddp__deft_way       way;
    double             *ready;    /* [N] after the start of backward */
    double             *part_s;   /* [N] */
    int                *parts_of; /* [N] */
    int                 parts;
    double             *item, *item_ready; /* [parts] scratch of a choice */
    int                *bucket, *assign;   /* [parts] likewise */
    int                *count;             /* [4 N] likewise */
} ddp__deft;

/* Which of the parts left[N] travel on which link: on[l * N + i] parts of bucket i on link l.
 * ddp__deft_old: parts that wait for nothing. ddp__deft_new: parts that are ready at offset + ready[i], on links that
 * are busy until busy[l]. room = end of the stage. `all` receives 1 if nothing is left out. */
DDP_LIB ddp_status ddp__deft_old(ddp__deft *d, const int *left, double room, int *on, int *all, ddp_error *err);
DDP_LIB ddp_status ddp__deft_new(ddp__deft *d, const int *left, const double *busy, double offset, double room, int *on,
                                 ddp_error *err);

/* Plans one way; *best (all-zero: none) is replaced if the plan is better. */
DDP_LIB ddp_status ddp__deft_variant(const ddp_profile *p, const ddp_delayed_options *o, ddp__deft_way way,
                                     ddp_delayed_plan *best, ddp_error *err);

/* Iterates to the steady period and fills out (untouched on error). */
DDP_LIB ddp_status ddp__deft_cycle(ddp__deft *d, ddp_delayed_plan *out, ddp_error *err);

#endif /* DDP_PLAN_DEFT_CORE_H */
