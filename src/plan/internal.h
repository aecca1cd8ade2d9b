/* What the planners of this room share, and what the files of one planner tell each other. */
#ifndef DDP_PLAN_INTERNAL_H
#define DDP_PLAN_INTERNAL_H

#include "base/tools.h"
#include "plan/partial.h"
#include "plan/timeline.h"

/* ---- names of options; `names` ends with NULL ---- */

DDP_LIB const char *ddp__name_of(const char *const *names, int value); /* "unknown" beyond them */
/* The value of a name into *out, an enum; the first `first` names cannot be asked for. Else DDP_ARG and "WHAT 'name' is
 * unknown; use a, b or c". */
DDP_LIB ddp_status ddp__named(const char *const *names, int first, const char *what, const char *name, void *out,
                              ddp_error *err);

/* ---- options that several planners check ---- */

/* "NAME is %g; it must be finite and at least 0", or above it. */
DDP_LIB ddp_status ddp__check_finite(const char *name, double value, int above, ddp_error *err);
/* alpha_s is the startup within each comm_s; buckets, if they are cut at all, become parts of so many seconds or
 * parameters at most (0 = no such limit). */
DDP_LIB ddp_status ddp__check_partition(const ddp_profile *p, double alpha_s, double partition_s,
                                        double partition_params, int cut, ddp_error *err);

/* ---- the arrays of one search, freed together ---- */

typedef struct ddp__scratch {
    void *last;   /* all-zero: none */
    int   failed; /* memory was short: some array is NULL */
} ddp__scratch;

DDP_LIB void   *ddp__scratch_take(ddp__scratch *s, size_t count, size_t size); /* zeroed */
DDP_LIB int    *ddp__ints(ddp__scratch *s, size_t count);
DDP_LIB double *ddp__doubles(ddp__scratch *s, size_t count);
DDP_LIB void    ddp__scratch_free(ddp__scratch *s);

/* ---- orders ---- */

typedef struct ddp__ranked {
    double key;
    int    i;
} ddp__ranked;

/* For qsort: doubles rising; ddp__ranked by rising key, equal ones by index. */
DDP_LIB int  ddp__rising(const void *a, const void *b);
DDP_LIB int  ddp__by_rank(const void *a, const void *b);
DDP_LIB void ddp__swap(int *order, int i, int j);
DDP_LIB void ddp__reverse(int *order, int i, int j); /* the run from i to j */
DDP_LIB void ddp__shuffle(int *order, int n, ddp_rng *r); /* of 0..n-1; r NULL: in order */
/* One pass over all pairs of places: exchanges the two, and before that, if `turn`, reverses the run from one to the
 * other; what lowers cost(user) stays. *least: the cost on entry and on return; 0 ends it. Returns whether it fell. */
DDP_LIB int ddp__improve(int *order, int n, int turn, double (*cost)(void *), void *user, double *least);

/* ---- a link's clock ---- */

/* A link carries one message at a time. One that is ready at `ready` has it for `takes` seconds from the moment
 * returned on; then the link is free again, at *free_at, and the message arrives alpha later. */
DDP_LIB double ddp__link_take(double *free_at, double ready, double takes);
/* Which of several links would deliver it first; the first of equal ones. */
DDP_LIB int ddp__link_first(int links, const double *free_at, double ready, const double *takes, const double *alpha);
/* Seconds by which the transfers of a step outlast its backward. They leave from the output side as
 * messages: message m ends with row last[m] (falling, the last one 0) and is ready when the backward of that row ends,
 * or, where at_end is set, when all of backward has. */
DDP_LIB double ddp__exposed_s(const ddp_profile *p, const int *last, int messages, int at_end);

/* ---- partial ---- */

/* One profile in backward order i = 0..L-1 (0 = output side, CSV row L-1-i). The cost of a step is T + excess; solvers
 * minimise the sum of excesses, which keeps its digits when T is large. */
typedef struct ddp__costs {
    ddp_cost cost;
    int      layers;
    double   T, alpha;
    ddp__scratch room;
    int     *step, *list; /* [L] an assignment; the layers of one step */
    double  *comm;  /* [L] */
    double  *P, *C; /* [L+1] prefix sums of backward and of comm */
    double  *w;     /* [L] non-decreasing: earliest start of a transfer, less its window */
    double  *k;     /* [L] w(i) - C(i); -inf where nothing is sent */
} ddp__costs;

DDP_LIB ddp_status ddp__costs_open(const ddp_profile *p, ddp_cost cost, ddp__costs *c, ddp_error *err);
DDP_LIB void       ddp__costs_close(ddp__costs *c);

/* Excess of the interval [a, b); kmax = max of k over it (read by timeline and window only). */
DDP_LIB double ddp__excess_interval(const ddp__costs *c, int a, int b, double kmax);
/* Excess of layers list[0..n) (ascending), without `less` and with `more` (-1 = none). */
DDP_LIB double ddp__excess_list(const ddp__costs *c, const int *list, int n, int less, int more);
/* Lower bound on the sum of excesses of any assignment to `period` steps. */
DDP_LIB double ddp__excess_bound(const ddp__costs *c, int period);

/* Contiguous solvers: set h is [cut[h], cut[h+1]), cut [period+1]; curve [period] or NULL. With `windows` by Algorithm
 * 2, which needs a cost other than sum and alpha 0, else by an O(L^2 H) programme that takes all; ddp__optimal
 * picks. */
DDP_LIB ddp_status ddp__contiguous(const ddp__costs *c, int period, int windows, int *cut, double *curve,
                                   ddp_error *err);
DDP_LIB ddp_status ddp__optimal(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err);
DDP_LIB ddp_status ddp__dfs(const ddp__costs *c, int period, int *cut, ddp_error *err);

/* Any assignment; step [L] in backward order holds a first assignment and receives the best. */
DDP_LIB ddp_status ddp__scatter(const ddp__costs *c, int period, double time_limit_s, int *step, ddp_error *err);

/* Every contiguous partition, by simulating the definitions: shares nothing with the above. The same simulation for any
 * set: member [L] in forward order, nonzero = averaged. */
DDP_LIB ddp_status ddp__brute(const ddp_profile *p, ddp_cost cost, int period, double time_limit_s, int *cut,
                              ddp_error *err);
DDP_LIB ddp_status ddp__brute_step(const ddp_profile *p, ddp_cost cost, const unsigned char *member, double *out_s,
                                   ddp_error *err);

/* ---- timeline: the baselines ---- */

/* One message: rows first..last of the profile as one operation. */
typedef struct ddp__bl_group {
    int    first, last;
    double ready; /* the end of backward of row first, from the start of backward */
    double c;     /* on the link, startup included */
} ddp__bl_group;

/* A profile checked and summed up. Times in seconds from the start of backward. */
typedef struct ddp__bl_model {
    const ddp_profile          *p;
    const ddp_timeline_options *o;
    int            rows, groups; /* groups: what is sent */
    ddp__bl_group *group;        /* [groups] in order of backward: the output side first */
    int           *parts;        /* [groups] equal parts of each */
    double        *size;         /* [groups] of one part, in partitions: at most 1 */
    double        *arrive;       /* [rows] when a row's forward may begin for its gradient's sake */
    int           *priority;     /* [groups] 0 = first */
    double         alpha;        /* startup contained in every group's c */
    double         most_params;  /* in a part, where partition_s is 0 */
    double         forward, backward;
    double         bound;
    ddp__scratch   room;
} ddp__bl_model;

/* Link operations as they begin; room for all is reserved ahead. NULL where nobody looks. */
typedef struct ddp__bl_log {
    ddp_interval *at;
    int           count;
} ddp__bl_log;

/* Notes an operation on lane 0; NULL without a log. */
DDP_LIB ddp_interval *ddp__bl_note(ddp__bl_log *log, const ddp__bl_group *g, int part, int parts, double begin,
                                   double end);

/* Cuts every group into parts as the options say; at most DDP__BL_MOST_PARTS in all. */
enum { DDP__BL_MOST_PARTS = 1000000 };
DDP_LIB ddp_status ddp__bl_cut(ddp__bl_model *m, ddp_error *err);

/* Priority schemes, after ddp__bl_cut; a row's forward waits for its own parts only. */
DDP_LIB ddp_status ddp__bl_bytescheduler(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err);
DDP_LIB ddp_status ddp__bl_usbyte(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err);

/* The end of the forward pass that begins when backward has ended, row i not before m->arrive[i]. */
DDP_LIB double ddp__bl_forward_end(const ddp__bl_model *m);

#endif /* DDP_PLAN_INTERNAL_H */
