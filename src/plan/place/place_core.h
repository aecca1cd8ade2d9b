/* The state of a placement search: pair costs, exact evaluation, limits and the best so far. */
#pragma once

#include "base/core.h"
#include "plan/place/matching.h"
#include "plan/place/place.h"

/* A search. An arrangement is an array of N devices, stage by stage: at[j * D + i] runs stage j of pipeline
 * i. As a partition only the sets at[j * D ..] count. */
typedef struct ddp__place {
    int N, D, S;          /* devices, pipelines, stages */
    double *dp, *pp, *kl; /* [N x N] symmetric: pair terms of datap, pipelinep; KL's weight */
    const ddp_place_options *o;
    ddp_rng rng;
    double start, limit_s; /* limit_s DBL_MAX: none */
    long limit;            /* candidates; LONG_MAX = none */
    long candidates;
    double told; /* when progress was last called */
    int stop;    /* 1 = a limit is reached, 2 = the caller has had enough */
    int *best;   /* [N] arrangement; cost DBL_MAX: none yet */
    double cost;
    int proven;
    double *curve;          /* a list of pairs: seconds, cost */
    ddp__matching matching; /* of D by D */
    double *weight;         /* [D x D] */
    double *hop;            /* [S x S] value of each matching */
    int *mate;              /* [S x S x D] mate[j][k][a] = member of k beside member a of j */
    double *tour;           /* Held-Karp's table where S <= 16 */
    int *order;             /* [S] */
    double *reach;          /* [S] */
    int *line;              /* [N] the arrangement behind the last evaluation */
    ddp__scratch room;      /* of all solvers; where memory runs out, the search ends */
} ddp__place;

/* Cost of an arrangement as it stands; datap and hops may be NULL. */
DDP_LIB double ddp__place_flat(const ddp__place *p, const int *at, double *datap, double *hops);
DDP_LIB double ddp__place_averaging(const ddp__place *p, const int *at, int j); /* of stage j */
/* The value of a hop; mate NULL: a bound from below. */
DDP_LIB double ddp__place_match(ddp__place *p, const int *here, const int *there, int *mate);
/* Cost of a partition with the best matchings and stage order; the arrangement is in p->line. DBL_MAX where a
 * bound shows that it is not below `enough`, or where it is too late and something better than nothing is
 * known. */
DDP_LIB double ddp__place_evaluate(ddp__place *p, const int *at, double enough);
DDP_LIB void ddp__place_offer(ddp__place *p, const int *at, double cost); /* kept if it is better than the
                                                                             best */
/* The seconds since the start; reports progress and sets p->stop where the time is over. */
DDP_LIB double ddp__place_clock(ddp__place *p);
/* Is it time to drop even what has been begun? The last tenth beyond the time limit is for ending a search
 * well: a matching takes less. */
DDP_LIB int ddp__place_late(ddp__place *p);
DDP_LIB int ddp__place_next(ddp__place *p); /* counts one candidate: 0 where the search is over */
/* Arrangements that follow the clusters of the network, each offered exactly evaluated; kept[0..] receives up
 * to `most` of them, best first. Returns their number. */
DDP_LIB int ddp__place_starts(ddp__place *p, int most, int *kept, double *cost);
