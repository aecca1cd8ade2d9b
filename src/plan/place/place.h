/* DT-FM's placement: assigns a device to each stage of each pipeline. */
#pragma once

#include "profile/network.h"

/* Solvers of ddp_place. */
typedef enum ddp_place_solver {
    DDP_PLACE_DEFAULT,      /* anneal */
    DDP_PLACE_ANNEAL,       /* annealing from the clusters of the network, from random placements and from the
                               best so far, in turns with KL's search. With more than 256 devices mostly
                               descent by exchanges and re-matching */
    DDP_PLACE_GENETIC,      /* the genetic search of the paper, section 3.4 */
    DDP_PLACE_GENETIC_CODE, /* the genetic search in the authors' released program */
    DDP_PLACE_KL,           /* the same with the Kernighan-Lin gain of that program */
    DDP_PLACE_RANDOM,       /* random shuffles. Stage order and pipelines are not optimised. */
    DDP_PLACE_EXACT         /* branch and bound over the composition of the stages */
} ddp_place_solver;

/* Options of ddp_place. All-zero selects the defaults. */
typedef struct ddp_place_options {
    ddp_place_solver solver; /* (default: anneal) */
    int pipelines, stages;   /* D_dp, D_pp (default: as in the network) */
    uint64_t seed;           /* seed of the search (default: 0) */
    double time_limit_s;     /* 0 = no limit (exact: 60 s) */
    long max_candidates; /* 0 = no limit if there is a time limit, else 5,000 (anneal: 3,500,000 per device,
                            of at most 32 devices, divided by D_dp/8 if that is above 1; exact: no limit) */
    /* Called at each improvement and about ten times a second, on the caller's thread. A nonzero return
     * value stops the search, which then returns the best placement found so far. */
    int (*progress)(void *user, double seconds, double best_s);
    void *user; /* passed to progress */
} ddp_place_options;

/* A placement. The caller frees it with ddp_placement_free. */
typedef struct ddp_placement {
    int pipelines, stages; /* D_dp, D_pp */
    int *assign;           /* [pipelines x stages] device of stage j in pipeline i */
    double cost_s;         /* datap_s + pipelinep_s */
    double datap_s;        /* averaging time of the slowest stage */
    double pipelinep_s;    /* sum over the hops of a pipeline. Each hop takes as long as in the slowest
                              pipeline. */
    int proven;            /* 1 = no placement is better */
    double solve_s;        /* duration of the search, in seconds */
    long candidates; /* candidates examined. anneal: moves tried. With more than 256 devices, a re-matching
                        counts as 4 D_dp. exact: compositions entered. Other solvers: partitions */
    int points;      /* number of improvements */
    double *curve;   /* [points x 2] seconds since the start, and the best cost at that time */
} ddp_placement;

/* ddp_place - finds the cheapest placement with one replica of every stage in every pipeline.
 *
 * The cost is the seconds of one iteration (DT-FM, arXiv:2206.01288, Eq. 1-4). a and b are the delay and the
 * rate of a pair of devices, averaged over both directions (paper section 2):
 *     datap      max over stages j, max over d in stage j, sum over d' of 2 (a + dp_bytes/(D_dp b))
 *     pipelinep  sum over hops j -> j+1, max over pipelines of 2 (a + pp_bytes/b)
 * For a given partition of the devices into stages, the best pipelines are the bottleneck matching of each
 * pair of stages (Eq. 3). The best stage order is an open travelling salesman tour over the matching values
 * (Eq. 4), exact for up to 16 stages. Every solver except random applies both at the end. The global rank of
 * assign[i][j] in a training run is i x stages + j.
 *
 * Interpretations where the paper and its program differ:
 *   pp_bytes      covers all micro-batches of one pipeline in an iteration (the paper's text says one
 *                 micro-batch)
 *   matching      attains the value that it reports (in the released program it may not)
 *   data groups   use the sharded server of Eq. 2
 *   genetic       an offspring copies one parent, but takes five devices from the other. Then a circular
 *                 chain of the paper's swaps (the fastest link of each of two groups, four candidates, the
 *                 printed gain, each device once) is applied and truncated at its largest sum of gains. An
 *                 offspring better than the worst individual replaces it
 *   genetic-code  one pass of cyclic one-way moves. An offspring better than its first parent replaces the
 *                 worse parent, which is the effect of the released test. The last cycle is retained
 *   kl            gain s(v,q) - s(v,own) with s = sum of (pp_bytes - dp_bytes)/b. The delay cancels
 *
 * The same seed and candidate limit give the same placement on every platform. With a time limit, the number
 * of candidates depends on the clock. anneal ends after a whole number of chunks of 512 moves, and finds the
 * same placement as with the same seed and `candidates` as the limit. A longer search of anneal continues the
 * shorter one with the same seed, and is never worse. The search may exceed the time limit by up to a tenth
 * to finish properly. If the network is too large for one evaluation within the limit, the first evaluated
 * placement is returned, and the search for its tour is cut short. With few partitions, anneal and exact try
 * all of them and set `proven`: up to 20,000 partitions, which covers any network of up to 10 devices and
 * always one stage. With one pipeline of up to 16 stages, the tour alone is exact and proven.
 *
 * *out is overwritten, not freed. Unchanged on error. Pure except for ddp_now. Safe from any thread. Errors:
 * DDP_ARG (as ddp_network_check; D_dp x D_pp is not N; negative limits), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_place(const ddp_network *net, const ddp_place_options *o, ddp_placement *out,
                             ddp_error *err);

/* ddp_place_cost - computes the cost of an assignment [pipelines x stages] as given, without re-matching.
 * datap_s and pipelinep_s may be NULL. Errors: DDP_ARG (also for a device that is missing or used twice),
 * DDP_NUMERIC, DDP_MEMORY; the outputs are then untouched. */
DDP_API ddp_status ddp_place_cost(const ddp_network *net, int pipelines, int stages, const int *assign,
                                  double *cost_s, double *datap_s, double *pipelinep_s, ddp_error *err);

/* ddp_placement_free - frees the arrays of a placement. Accepts an all-zero one. */
DDP_API void ddp_placement_free(ddp_placement *p);

/* ddp_place_solver_name - returns the name of a solver: "anneal", "genetic", "genetic-code", "kl", "random"
 * or "exact", and "unknown" for an invalid value. A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_place_solver_name(ddp_place_solver solver);

/* ddp_place_solver_named - finds the solver with the given name. Pure and safe from any thread. Errors:
 * DDP_ARG, with a list of the valid names. */
DDP_API ddp_status ddp_place_solver_named(const char *name, ddp_place_solver *out, ddp_error *err);
