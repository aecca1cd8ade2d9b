/* Shared by the placement solvers: pair costs, exact evaluation, limits and the best so far. */
#ifndef DDP_PLAN_PLACE_CORE_H
#define DDP_PLAN_PLACE_CORE_H

#include "base/tools.h"
#include "plan/place.h"

/* Room of a bottleneck matching of n by n. */
typedef struct ddp__matching {
    int     n, round;
    double *sorted;             /* [n x n] */
    int    *left, *right, *seen; /* [n]; left owns the block */
    int    *kept;               /* [2 x n] */
} ddp__matching;

/* A search. An arrangement is an array of N devices, stage by stage: at[j * D + i] runs stage j of pipeline i. As a
 * partition only the sets at[j * D ..] count. */
typedef struct ddp__place {
    int     N, D, S;      /* devices, pipelines, stages */
    double *dp, *pp, *kl; /* [N x N] symmetric: pair terms of datap, pipelinep; KL's weight */
    const ddp_place_options *o;
    ddp_rng rng;
    double  start, limit_s; /* limit_s INFINITY = none */
    long    limit;          /* candidates; LONG_MAX = none */
    long    candidates;
    double  told;           /* when progress was last called */
    int     stop;           /* 1 = a limit is reached, 2 = the caller has had enough */
    int    *best;           /* [N] arrangement; cost INFINITY = none yet */
    double  cost;
    int     proven;
    int     points, room;
    double *curve;
    ddp__matching matching; /* of D by D */
    double *weight;         /* [D x D] */
    double *hop;            /* [S x S] value of each matching */
    int    *mate;           /* [S x S x D] mate[j][k][a] = member of k beside member a of j */
    double *tour;           /* Held-Karp's table where S <= 16 */
    int    *order;          /* [S] */
    int    *line;           /* [N] the arrangement behind the last evaluation */
    int     failed;         /* memory ran out */
} ddp__place;

DDP_LIB int    ddp__matching_open(ddp__matching *m, int n); /* 0 = no memory */
DDP_LIB void   ddp__matching_close(ddp__matching *m);
DDP_LIB double ddp__matching_solve(ddp__matching *m, const double *weight, int *mate);

/* best [n 2^n]. The second is 0 where memory is short; once over(user) is nonzero it returns what it has, at least a
 * path to the nearest neighbours. over may be NULL. */
DDP_LIB double ddp__tour_exact(int n, const double *cost, int first, int last, double *best, int *order);
DDP_LIB int ddp__tour_local(int n, const double *cost, int first, int last, int (*over)(void *), void *user, int *order,
                            double *length);

/* Cost of an arrangement as it stands; datap and hops may be NULL. */
DDP_LIB double ddp__place_flat(const ddp__place *p, const int *at, double *datap, double *hops);
DDP_LIB double ddp__place_datap(const ddp__place *p, const int *at);
/* Cost of a partition with the best matchings and stage order; the arrangement is in p->line. Given up with INFINITY
 * where it is too late and something better than nothing is known. */
DDP_LIB double ddp__place_evaluate(ddp__place *p, const int *at);
/* Keeps an arrangement if it is better than the best so far. */
DDP_LIB void ddp__place_offer(ddp__place *p, const int *at, double cost);
/* The seconds since the start; reports progress and sets p->stop where the time is over. */
DDP_LIB double ddp__place_clock(ddp__place *p);
/* Is it time to drop even what has been begun? The last tenth beyond the time limit is for ending a search well: a
 * matching takes less. */
DDP_LIB int ddp__place_late(ddp__place *p);
/* Counts one candidate: 0 where the search is over. */
DDP_LIB int ddp__place_next(ddp__place *p);
DDP_LIB void ddp__place_shuffle(ddp__place *p, int *at);

DDP_LIB void ddp__place_anneal(ddp__place *p);
DDP_LIB void ddp__place_descend(ddp__place *p); /* from the best so far */
DDP_LIB void ddp__place_random(ddp__place *p);
DDP_LIB void ddp__place_genetic(ddp__place *p);
DDP_LIB void ddp__place_cyclic(ddp__place *p, int kl); /* genetic-code, or KL's gain */
/* One pass of cyclic moves on label[N] (exposed for the tests). */
DDP_LIB int ddp__place_cyclic_pass(ddp__place *p, int *label, int kl);
DDP_LIB void ddp__place_exact(ddp__place *p);
/* All partitions where there are few: 1 = done and proven, 0 = too many. */
DDP_LIB int ddp__place_enumerate(ddp__place *p);
/* Arrangements that follow the clusters of the network, each offered exactly evaluated; kept[0..] receives up to `most`
 * of them, best first. Returns their number. */
DDP_LIB int ddp__place_starts(ddp__place *p, int most, int *kept, double *cost);

/* Shared by both genetic searches: parents, crossover and the population. */
typedef struct ddp__place_pool {
    int     size;
    int    *label; /* [size x N] stage of each device */
    double *cost;  /* [size] */
    int    *child; /* [N] */
    int    *at;    /* [N] */
} ddp__place_pool;

DDP_LIB int    ddp__place_pool_open(ddp__place *p, ddp__place_pool *pool);
DDP_LIB void   ddp__place_pool_close(ddp__place_pool *pool);
DDP_LIB void   ddp__place_cross(ddp__place *p, ddp__place_pool *pool, int *one, int *two);
DDP_LIB double ddp__place_judge(ddp__place *p, ddp__place_pool *pool);

#endif /* DDP_PLAN_PLACE_CORE_H */
