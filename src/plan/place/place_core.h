/* The state of a placement search: pair costs, exact evaluation, limits, and the best arrangement so far. */
#pragma once

#include "base/core.h"
#include "plan/place/matching.h"
#include "plan/place/place.h"

/* A search. An arrangement is an array of N devices, stage by stage: at[j * D + i] runs stage j of
 * pipeline i. As a partition, only the set of devices in each stage at[j * D ..] matters. */
typedef struct ddp__place {
    int N, D, S;          /* devices, pipelines, stages */
    double *dp, *pp, *kl; /* [N x N] symmetric: pair terms of datap and pipelinep, the weight of KL */
    const ddp_place_options *o;
    ddp_rng rng;
    double start, limit_s; /* limit_s is DBL_MAX without a limit */
    long limit;            /* most candidates, LONG_MAX for no limit */
    long candidates;
    double told; /* time of the last call of progress */
    int stop;    /* 1 = a limit is reached, 2 = the progress callback stopped the search */
    int *best;   /* [N] best arrangement, unset if cost is DBL_MAX */
    double cost;
    int proven;
    double *curve;          /* a list of pairs: seconds, cost */
    ddp__matching matching; /* D by D */
    double *weight;         /* [D x D] */
    double *hop;            /* [S x S] value of the matching of each pair of stages */
    int *mate;              /* [S x S x D] mate[j][k][a] = member of k matched with member a of j */
    double *tour;           /* Held-Karp's table, if S <= 16 */
    int *order;             /* [S] */
    double *reach;          /* [S] */
    int *line;              /* [N] the arrangement found by the last evaluation */
    ddp__scratch room;      /* memory of all solvers. If an allocation fails, the search ends. */
} ddp__place;

/* Cost of an arrangement as given, without re-matching. datap and hops may be NULL. */
DDP_LIB double ddp__place_flat(const ddp__place *p, const int *at, double *datap, double *hops);
DDP_LIB double ddp__place_averaging(const ddp__place *p, const int *at, int j); /* of stage j */
/* The value of a hop. If mate is NULL, a lower bound on it. */
DDP_LIB double ddp__place_match(ddp__place *p, const int *here, const int *there, int *mate);
/* Cost of a partition with the best matchings and the best stage order. p->line receives the arrangement.
 * Returns DBL_MAX if a bound shows that the cost is not below `enough`. Also returns DBL_MAX if the search
 * is late (ddp__place_late) and some arrangement is already known. */
DDP_LIB double ddp__place_evaluate(ddp__place *p, const int *at, double enough);
DDP_LIB void ddp__place_offer(ddp__place *p, const int *at, double cost); /* replaces the best if better */
/* Returns the seconds since the start. Reports progress, and sets p->stop if the time limit is reached. */
DDP_LIB double ddp__place_clock(ddp__place *p);
/* Returns 1 if even an unfinished evaluation must be abandoned. After the time limit, a search has another
 * tenth of the limit to finish properly. A matching takes less than that. */
DDP_LIB int ddp__place_late(ddp__place *p);
DDP_LIB int ddp__place_next(ddp__place *p); /* counts one candidate. Returns 0 if the search is over. */
/* Builds arrangements that follow the clusters of the network, evaluates each exactly and offers it as the
 * best. kept[0..] receives up to `most` of them, best first. Returns their number. */
DDP_LIB int ddp__place_starts(ddp__place *p, int most, int *kept, double *cost);
