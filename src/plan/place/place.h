/* DT-FM's placement: which device runs which stage of which pipeline. */
#pragma once

#include "profile/network.h"

typedef enum ddp_place_solver {
    DDP_PLACE_DEFAULT,      /* anneal */
    DDP_PLACE_ANNEAL,       /* starts from the clusters of the network, annealing, kl's search, re-matching;
                               beyond 256 devices mostly descent by exchange and re-matching */
    DDP_PLACE_GENETIC,      /* section 3.4 of the paper */
    DDP_PLACE_GENETIC_CODE, /* the search that the authors released */
    DDP_PLACE_KL,           /* the same with their Kernighan-Lin gain */
    DDP_PLACE_RANDOM,       /* shuffles, stage order and pipelines as they fall */
    DDP_PLACE_EXACT         /* branch and bound over the make-up of stages */
} ddp_place_solver;

typedef struct ddp_place_options {
    ddp_place_solver solver;
    int pipelines, stages; /* D_dp, D_pp; 0 = what the network says */
    uint64_t seed;
    double time_limit_s; /* 0 = none (exact: 60 s) */
    long max_candidates; /* 0 = none if there is a time limit, else 5,000; anneal 4,000,000, exact
                                   none */
    /* Called at each improvement and about ten times a second, on the caller's thread; nonzero stops the
     * search with what it has. */
    int (*progress)(void *user, double seconds, double best_s);
    void *user;
} ddp_place_options;

/* A placement, freed by ddp_placement_free. */
typedef struct ddp_placement {
    int pipelines, stages;
    int *assign;        /* [pipelines x stages] device of stage j of pipeline i */
    double cost_s;      /* datap_s + pipelinep_s */
    double datap_s;     /* the slowest stage's averaging */
    double pipelinep_s; /* the hops of a pipeline, each as slow as its slowest pipeline */
    int proven;         /* nothing is better */
    double solve_s;
    long candidates; /* anneal: moves tried, beyond 256 devices
                            4 D_dp for a re-matching; exact: compositions entered; else partitions */
    int points;      /* improvements */
    double *curve;   /* [points x 2] seconds since the start, best cost then */
} ddp_placement;

/* ddp_place - the cheapest placement of one replica of every stage in every pipeline.
 *
 * The cost in seconds of one iteration (DT-FM, arXiv:2206.01288, Eq. 1-4), with a = delay and b = rate of a
 * pair, both averaged over the two directions (paper section 2):
 *     datap      max over stages j, max over d in stage j, sum over d' of 2 (a + dp_bytes/(D_dp b))
 *     pipelinep  sum over hops j -> j+1, max over pipelines of 2 (a + pp_bytes/b)
 * For a given partition into stages the best pipelines and the best order of stages are the bottleneck
 * matching of each pair of stages (Eq. 3) and an open travelling salesman over these values (Eq. 4), exact up
 * to 16 stages; every solver but random ends with both.
 * Global rank of assign[i][j] in a training run: i x stages + j.
 *
 * Readings where the paper and its program differ:
 *   pp_bytes covers all micro-batches of one pipeline in an iteration (the paper's text says one)
 *   the matching realises its value (the released one may not)
 *   the data groups use the sharded server of Eq. 2
 *   genetic: parents, five devices from the other parent, then a circular chain of the paper's swaps (fastest
 *   link of
 *     each of two groups, four candidates, the printed gain, each device once), cut at its largest sum of
 *     gains; an offspring better than the worst replaces it
 *   genetic-code: one pass of cyclic one-way moves; an offspring better than its first parent replaces the
 *   worse
 *     parent, as the released test works out; the last cycle is kept
 *   kl: gain s(v,q) - s(v,own) with s = sum of (pp_bytes - dp_bytes)/b, the delay cancelling
 *
 * The same seed and candidate limit give the same placement on every platform; a time limit stops where the
 * clock says (up to a tenth later, to end well; a network too large for one evaluation within it gets the
 * first one, its tour cut short), and anneal fits its cooling to it. With few partitions (20,000: any network
 * of up to 10 devices, and one stage always) anneal and exact try them all: `proven`. With one pipeline of up
 * to 16 stages the tour alone is exact and proven. *out is overwritten, not freed; untouched on error. Pure
 * but for ddp_now; safe from any thread. Errors: DDP_ARG (as ddp_network_check; D_dp x D_pp is not N;
 * negative limits), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_place(const ddp_network *net, const ddp_place_options *o, ddp_placement *out,
                             ddp_error *err);

/* ddp_place_cost - the cost of any assignment [pipelines x stages] as it stands (no re-matching). datap_s and
 * pipelinep_s may be NULL. Errors: DDP_ARG (also a device that is missing or used twice), DDP_NUMERIC,
 * DDP_MEMORY; outputs are untouched then. */
DDP_API ddp_status ddp_place_cost(const ddp_network *net, int pipelines, int stages, const int *assign,
                                  double *cost_s, double *datap_s, double *pipelinep_s, ddp_error *err);

/* ddp_placement_free - all-zero is fine. */
DDP_API void ddp_placement_free(ddp_placement *p);

/* "anneal", "genetic", "genetic-code", "kl", "random", "exact"; a bad value gives "unknown". The inverse
 * fails with DDP_ARG and a sentence that lists them. */
DDP_API const char *ddp_place_solver_name(ddp_place_solver solver);
DDP_API ddp_status ddp_place_solver_named(const char *name, ddp_place_solver *out, ddp_error *err);
