/* What the planners of this room share, and what the files of one planner tell each other. */
#pragma once

#include "base/core.h"
#include "plan/timeline/deft.h"
#include "plan/fence/fence.h"
#include "plan/graphs.h"
#include "plan/osp/osp.h"
#include "plan/partial/partial.h"
#include "plan/place/place.h"
#include "plan/timeline/timeline.h"

/* ---- names of options; `names` ends with NULL ---- */

DDP_LIB const char *ddp__name_of(const char *const *names, int value); /* "unknown" beyond them */
/* The value of a name into *out, an enum; the first `first` names cannot be asked for. Else DDP_ARG and "WHAT
 * 'name' is unknown; use a, b or c". */
DDP_LIB ddp_status ddp__named(const char *const *names, int first, const char *what, const char *name,
                              void *out, ddp_error *err);

/* Of the partial planner's enums, by value. */
#define DDP__SOLVERS "scatter", "optimal", "dfs", "enp", "brute", "scatter"
#define DDP__COSTS   "window", "timeline", "sum", "window"
#define DDP__FILLS   "none", "exact", "eq12"

/* X_name and X_named of the enum X. */
#define DDP__NAMES(X, names, first, what)                                     \
    const char *X##_name(X value) { return ddp__name_of(names, (int)value); } \
    ddp_status X##_named(const char *name, X *out, ddp_error *err)            \
    {                                                                         \
        return ddp__named(names, first, what, name, out, err);                \
    }

/* ---- options that several planners check ---- */

/* Whether what the times of a profile add up to can be worked with. */
DDP_LIB ddp_status ddp__check_sum(double sum, double most, ddp_error *err);
/* alpha_s is the startup within each comm_s; buckets, if they are cut at all, become parts of so many seconds
 * or parameters at most (0 = no such limit). */
DDP_LIB ddp_status ddp__check_partition(const ddp_profile *p, double alpha_s, double partition_s,
                                        double partition_params, int cut, ddp_error *err);

/* ---- messages on a link ---- */

/* How long a message of row l alone occupies the link; 0: it sends nothing. */
DDP_LIB double ddp__occupies(const ddp_profile *p, int l);
/* What each message costs where its bytes, alpha and gap all keep the link busy: beyond comm_s. */
DDP_LIB double ddp__startup(const ddp_profile *p);

/* ---- the arrays of one search ---- */

/* DDP_OK; or all is freed, and "no memory to plan N WHAT". */
DDP_LIB ddp_status ddp__scratch_check(ddp__scratch *s, int n, const char *what, ddp_error *err);
/* A copy for the result of a plan, freed by DDP_FREE; NULL when memory is short. */
DDP_LIB void *ddp__copy(const void *from, size_t count, size_t size);

/* ---- orders ---- */

typedef struct ddp__ranked {
    double key;
    int i;
} ddp__ranked;

/* For qsort: by rising key, equal ones by index. */
DDP_LIB int ddp__by_rank(const void *a, const void *b);
DDP_LIB void ddp__swap(int *order, int i, int j);
DDP_LIB void ddp__reverse(int *order, int i, int j);      /* the run from i to j */
DDP_LIB void ddp__shuffle(int *order, int n, ddp_rng *r); /* of 0..n-1; r NULL: in order */
/* One pass over all pairs of places: exchanges the two, and before that, if `turn`, reverses the run from one
 * to the other; what lowers cost(user) stays. *least: the cost on entry and on return; 0 ends it. Returns
 * whether it fell. */
DDP_LIB int ddp__improve(int *order, int n, int turn, double (*cost)(void *), void *user, double *least);

/* ---- what comes next: the least key, of equal ones the least number ---- */

typedef struct ddp__due {
    double key;
    int64_t i;
} ddp__due;

/* heap [n]; the caller counts. */
DDP_LIB void ddp__due_add(ddp__due *heap, int n, double key, int64_t i);
DDP_LIB ddp__due ddp__due_take(ddp__due *heap, int n);

/* ---- a link's clock ---- */

/* A link carries one message at a time. One that is ready at `ready` has it for `takes` seconds from the
 * moment returned on; then the link is free again, at *free_at, and the message arrives alpha later. */
DDP_LIB double ddp__link_take(double *free_at, double ready, double takes);
/* Which of several would deliver it first; the first of equal ones. */
DDP_LIB int ddp__link_first(int links, const double *free_at, double ready, const double *takes,
                            const double *alpha);

/* ---- partial ---- */

/* One profile in backward order i = 0..L-1 (0 = output side, CSV row L-1-i). The cost of a step is T +
 * excess; solvers minimise the sum of excesses, which keeps its digits when T is large. */
typedef struct ddp__costs {
    ddp_cost cost;
    int layers;
    double T, alpha;
    ddp__scratch room;
    int *step, *list; /* [L] an assignment; the layers of one step */
    double *comm;     /* [L] */
    double *P, *C;    /* [L+1] prefix sums of backward and of comm */
    double *w;        /* [L] non-decreasing: earliest start of a transfer, less its window */
    double *k;        /* [L] w(i) - C(i); -inf where nothing is sent */
} ddp__costs;

/* c->room is to be freed where that succeeds. */
DDP_LIB ddp_status ddp__costs_open(const ddp_profile *p, ddp_cost cost, ddp__costs *c, ddp_error *err);
/* Excess of layers list[0..n) (ascending), without `less` and with `more` (-1 = none). */
DDP_LIB double ddp__excess_list(const ddp__costs *c, const int *list, int n, int less, int more);
/* Lower bound on the sum of excesses of any assignment to `period` steps. */
DDP_LIB double ddp__excess_bound(const ddp__costs *c, int period);

/* Contiguous solvers: set h is [cut[h], cut[h+1]), cut [period+1]; curve [period] or NULL. With `windows` by
 * Algorithm 2, which needs a cost other than sum and alpha 0, else by an O(L^2 H) programme for all;
 * ddp__optimal picks. */
DDP_LIB ddp_status ddp__contiguous(const ddp__costs *c, int period, int windows, int *cut, double *curve,
                                   ddp_error *err);
DDP_LIB ddp_status ddp__optimal(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err);
DDP_LIB ddp_status ddp__dfs(const ddp__costs *c, int period, int *cut, ddp_error *err);

/* Any assignment; step [L] in backward order holds a first assignment and receives the best. */
DDP_LIB ddp_status ddp__scatter(const ddp__costs *c, int period, double time_limit_s, int *step,
                                ddp_error *err);

/* Every contiguous partition, by simulating the definitions: shares nothing with the above. The same
 * simulation for any set: member [L] in forward order, nonzero = averaged. */
DDP_LIB ddp_status ddp__brute(const ddp_profile *p, ddp_cost cost, int period, double time_limit_s, int *cut,
                              ddp_error *err);
DDP_LIB ddp_status ddp__brute_step(const ddp_profile *p, ddp_cost cost, const unsigned char *member,
                                   double *out_s, ddp_error *err);

#ifndef DDP_NO_PLANNERS

/* ---- tours ---- */

/* The order of all n <= DDP_TOUR_EXACT nodes from `first` to `last` (-1 = free; the same twice: a ring) of
 * least cost: the sum of the hops or, if `slowest`, the largest of them. best [n 2^n] is scratch. */
DDP_LIB double ddp__held_karp(int n, const double *cost, int first, int last, int slowest, double *best,
                              int *order);
/* Not proven. 0 where memory is short; once over(user) is nonzero it returns what it has, at least a path to
 * the nearest neighbours. over may be NULL. */
DDP_LIB int ddp__tour_local(int n, const double *cost, int first, int last, int (*over)(void *), void *user,
                            int *order, double *length);

/* ---- knapsack: the problem in whole ticks, equal items as classes ---- */

typedef struct ddp__knapsack_class {
    int64_t ready;
    int64_t cost[2]; /* on each link, rounded down */
    int64_t value;
    int first, count; /* positions in `order` */
} ddp__knapsack_class;

/* Whole ticks make every comparison exact and every order total. Costs are rounded down and deadlines up, so
 * that rounding never rejects a set that fits. */
typedef struct ddp__knapsack {
    int items, links, classes;
    int64_t start[2], deadline[2];
    ddp__knapsack_class *cls; /* in release order; items that fit nowhere are left out */
    int *order;               /* [items] item index by position */
    double *key;              /* [items] what greedy sorts by */
    const double *value;      /* [items] what is maximised, before it was ticks */
    int *assign;              /* [items] the link of each, -1 = none */
    int64_t total;            /* value of all classes */
    int64_t *work;            /* grows by one for each entry that the exact search lists; or NULL */
    ddp__scratch room;
} ddp__knapsack;

/* ddp_knapsack with the number of entries that a half of the exact search may list; work may be NULL. */
DDP_LIB ddp_status ddp__knapsack_within(const ddp_knapsack_problem *p, ddp_knapsack_solver solver,
                                        size_t most, int64_t *work, int *assign, double *value,
                                        ddp_error *err);

/* k->assign is replaced where more than `known` can be reached. most = entries of a half. */
DDP_LIB ddp_status ddp__knapsack_exact(ddp__knapsack *k, int64_t known, size_t most, ddp_error *err);

/* ---- deft: buckets cut into parts, and one stage's choice ---- */

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

/* ---- place: pair costs, exact evaluation, limits and the best so far ---- */

/* Room of a bottleneck matching of n by n. */
typedef struct ddp__matching {
    int n, round;
    double *sorted;           /* [n x n] */
    int *left, *right, *seen; /* [n] */
    int *kept;                /* [2 x n] */
} ddp__matching;

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

DDP_LIB void ddp__matching_open(ddp__matching *m, int n, ddp__scratch *room);
/* No perfect matching avoids the lightest weight of any row or column: what its value is at least. */
DDP_LIB double ddp__matching_bound(int n, const double *weight);
DDP_LIB double ddp__matching_solve(ddp__matching *m, const double *weight, int *mate);

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

DDP_LIB void ddp__place_anneal(ddp__place *p);
typedef struct ddp__place_limit {
    double seconds;
    long candidates;
} ddp__place_limit;

/* The paper's search, genetic-code or KL's. With `more` it takes the same walk quickly: sums are kept up to
 * date, nothing is evaluated before it is compared, nor a child that a bound shows to be no better than its
 * parent, and candidates count as the moves of annealing that they are worth. By its own limits it goes on to
 * these if it is near the best. */
DDP_LIB void ddp__place_genetic(ddp__place *p, ddp_place_solver solver, const ddp__place_limit *more);
DDP_LIB void ddp__place_exact(ddp__place *p);
/* All partitions where there are few: 1 = done and proven, 0 = too many. */
DDP_LIB int ddp__place_enumerate(ddp__place *p);
/* Arrangements that follow the clusters of the network, each offered exactly evaluated; kept[0..] receives up
 * to `most` of them, best first. Returns their number. */
DDP_LIB int ddp__place_starts(ddp__place *p, int most, int *kept, double *cost);

/* ---- workload: who uses whose result, and the price of a transfer ---- */

/* Of one list on one network. */
typedef struct ddp__workload_graph {
    const ddp_oplist *list;
    const ddp_network *net;
    double turns;   /* n_b - 1 */
    double samples; /* N_s */
    double compute; /* compute time in units of the forward pass: 1, or 3 with backward */
    double kept;    /* micro-batches whose results are in memory at once */
    double state_factor;
    int backward;
    int *users;              /* of op i: users[from[i]] .. users[from[i+1]-1], ascending, distinct */
    int *from;               /* [ops + 2] */
    unsigned char *gradient; /* [ops] 1 = a remote user sends the result's gradient back */
    int *seen;               /* [max(N, ops)] scratch */
    ddp__scratch room;
} ddp__workload_graph;

/* Checks list, network and options; g->room is to be freed in any case. */
DDP_LIB ddp_status ddp__workload_graph_open(const ddp_oplist *list, const ddp_network *net,
                                            const ddp_workload_options *o, ddp__workload_graph *g,
                                            ddp_error *err);

/* Seconds of one message, Tcomm of Eq. 1. */
DDP_LIB double ddp__workload_transfer(const ddp_network *net, int from, int to, double bytes);

/* C_p, R_p and memory of every device into w's arrays, T_lat, T_pipe, and the messages, if w->message is not
 * NULL. */
DDP_LIB void ddp__workload_sum(ddp__workload_graph *g, const int *device_of, ddp_workload *w);

/* ---- fence: the operators as a tape to be cut, and a device sequence ---- */

enum { DDP__FENCE_AGES = 8 };

/* A result that lies before a cut and is used behind it. */
typedef struct ddp__fence_live {
    int op, next; /* next: its first user at or behind the cut */
} ddp__fence_live;

/* Operators 0..n-1; cut a lies before operator a. */
typedef struct ddp__fence_tape {
    ddp__workload_graph graph;
    int n;
    int *home;             /* [n] whose segment holds a result: its own, or its first user's */
    double *flops;         /* [n+1] before cut a, times 3 with backward */
    double *memory;        /* [n+1] bytes before cut a; what is received comes on top */
    int *from;             /* [n+2] live results of cut a: live[from[a]] .. live[from[a+1]-1], */
    ddp__fence_live *live; /*       by next user, then by operator */
    int *oldest;           /* [n+1] least home of the live results of cut a, n = none */
    int width;             /* most live results of any cut, at least 1 */
} ddp__fence_tape;

/* A cut of the tape over a device sequence: position k runs [first[k], end[k]). */
typedef struct ddp__fence_cut {
    int *first, *end;  /* [positions] */
    double pipeline_s; /* infinity = none found */
    int proven;
    double work; /* elementary steps so far, over all orders */
} ddp__fence_cut;

/* A message takes delay + slope x bytes. */
typedef struct ddp__fence_hop {
    double delay, slope;
} ddp__fence_hop;

/* Links and devices in the order of a sequence: [positions], or [positions x positions] with the sender as
 * row. */
typedef struct ddp__fence_line {
    const ddp__fence_tape *tape;
    int positions, idle;     /* idle: positions may stay empty */
    int ages;                /* DDP__FENCE_AGES, or 2 if idle: an age names no position then */
    double *pace;            /* seconds per FLOP */
    double *limit;           /* bytes */
    ddp__fence_hop *hop;     /* from one position to another */
    ddp__fence_hop *to, *of; /* [k, q] least over the positions up to k: to position q, and from it */
    double *least;           /* [positions] every segment there receives so many seconds */
    double *bound;           /* [ages, positions + 1, n + 1], see ddp__fence_bound */
    double *ahead;           /* [2, ages, n + 1] scratch */
    double *part;            /* [width + 1] scratch */
    ddp__scratch room;
} ddp__fence_line;

/* t->graph.room is to be freed in any case. */
DDP_LIB ddp_status ddp__fence_tape_open(const ddp_oplist *list, const ddp_network *net,
                                        const ddp_workload_options *o, ddp__fence_tape *t, ddp_error *err);
/* The median over all cuts of the bytes that cross: what a link has to carry as a rule. */
DDP_LIB ddp_status ddp__fence_typical_bytes(const ddp__fence_tape *t, double *out, ddp_error *err);

/* cluster [N] and order [N] for messages of `bytes`: steps 1-3 of ddp_fence. */
DDP_LIB ddp_status ddp__fence_order(const ddp_network *net, double bytes, int backward, double resolution,
                                    int *cluster, int *clusters, int *order, ddp_error *err);

/* order [N]: where to begin; if *found, one along which a cut fits into memory. *every = 1: all orders were
 * tried. */
DDP_LIB ddp_status ddp__fence_fit_order(const ddp__fence_tape *t, int idle, int *order, int *found,
                                        int *every, ddp_error *err);

DDP_LIB double ddp__fence_takes(const ddp__fence_hop *hop, int from, int to, int positions, double bytes);
DDP_LIB ddp_status ddp__fence_line_open(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                        ddp__fence_line *line, ddp_error *err);

/* line->bound[age, k+1, a]: no completion of "cut a reached, position k used last" (k = -1: none) with max(C,
 * R) < cap costs less latency; infinity = there is none. The oldest live result lies in the segment that is
 * `age` segments before the last one (the highest age: or further back); age 0 = the last one holds them all.
 * *work grows. */
DDP_LIB void ddp__fence_bound(ddp__fence_line *line, double cap, double *work);

/* The cut of least T_pipe along `order`; keeps what cut holds unless better (step 4). */
DDP_LIB ddp_status ddp__fence_cut_best(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                       ddp__fence_cut *cut, ddp_error *err);

/* ---- osp.c ---- */

/* ddp_osp_rank with memory that stays, for every step of a run; open: NULL without memory. close: NULL is
 * fine. */
typedef struct ddp__osp ddp__osp;
DDP_LIB ddp__osp *ddp__osp_open(int layers, ddp_osp_rule rule);
DDP_LIB void ddp__osp_close(ddp__osp *s);
DDP_LIB ddp_status ddp__osp_split(ddp__osp *s, const double *importance, const double *bytes, double budget,
                                  ddp_osp_rule rule, unsigned char *gib, double *deferred, ddp_error *err);

#endif /* DDP_NO_PLANNERS */
