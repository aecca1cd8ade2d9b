/* Shared by the parts of OP-Fence: the operators as a tape to be cut, and a device sequence. */
#ifndef DDP_PLAN_FENCE_CORE_H
#define DDP_PLAN_FENCE_CORE_H

#include "plan/fence.h"
#include "plan/workload_core.h"

enum { DDP__FENCE_AGES = 8 };

/* A result that lies before a cut and is used behind it. */
typedef struct ddp__fence_live {
    int op;
    int next; /* its first user at or behind the cut */
} ddp__fence_live;

/* Operators 0..n-1; cut a lies before operator a. */
typedef struct ddp__fence_tape {
    ddp__workload_graph graph;
    int              n;
    int             *home;   /* [n] whose segment holds a result: its own, or its first user's */
    double          *flops;  /* [n+1] before cut a, times 3 with backward */
    double          *memory; /* [n+1] bytes before cut a; what is received comes on top */
    int             *from;   /* [n+2] live results of cut a: live[from[a]] .. live[from[a+1]-1], */
    ddp__fence_live *live;   /*       by next user, then by operator */
    int             *oldest; /* [n+1] least home of the live results of cut a, n = none */
    int              width;  /* most live results of any cut, at least 1 */
} ddp__fence_tape;

/* A cut of the tape over a device sequence: position k runs [first[k], end[k]). */
typedef struct ddp__fence_cut {
    int    *first, *end; /* [positions] */
    double  pipeline_s;  /* infinity = none found */
    int     proven;
    double  work;        /* elementary steps so far, over all orders */
} ddp__fence_cut;

/* Links and devices in the order of a sequence: [positions], or [positions x positions] with the sender as row. */
typedef struct ddp__fence_line {
    const ddp__fence_tape *tape;
    int     positions, idle;     /* idle: positions may stay empty */
    int     ages;                /* DDP__FENCE_AGES, or 2 if idle: an age names no position then */
    double *pace;                /* seconds per FLOP */
    double *limit;               /* bytes */
    double *delay, *slope;       /* a message takes delay + slope x bytes */
    double *to_delay, *to_slope; /* [k, q] least over the positions up to k, to position q */
    double *of_delay, *of_slope; /* [k, q] the same from position q */
    double *least;               /* [positions] every segment there receives so many seconds */
    double *bound;               /* [ages, positions + 1, n + 1], see ddp__fence_bound */
    double *ahead;               /* [2, ages, n + 1] scratch */
    double *part;                /* [width + 1] scratch */
} ddp__fence_line;

DDP_LIB ddp_status ddp__fence_tape_open(const ddp_oplist *list, const ddp_network *net, const ddp_workload_options *o,
                                        ddp__fence_tape *t, ddp_error *err);
DDP_LIB void       ddp__fence_tape_close(ddp__fence_tape *t);
/* The median over all cuts of the bytes that cross: what a link has to carry as a rule. */
DDP_LIB ddp_status ddp__fence_typical_bytes(const ddp__fence_tape *t, double *out, ddp_error *err);

/* cluster [N] and order [N] for messages of `bytes`: steps 1-3 of ddp_fence. */
DDP_LIB ddp_status ddp__fence_order(const ddp_network *net, double bytes, int backward, double resolution, int *cluster,
                                    int *clusters, int *order, ddp_error *err);

/* order [N]: where to begin; if *found, one along which a cut fits into memory. *every = 1: all orders were tried. */
DDP_LIB ddp_status ddp__fence_fit_order(const ddp__fence_tape *t, int idle, int *order, int *found, int *every,
                                        ddp_error *err);

DDP_LIB ddp_status ddp__fence_line_open(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                        ddp__fence_line *line, ddp_error *err);
DDP_LIB void       ddp__fence_line_close(ddp__fence_line *line);

/* line->bound[age, k+1, a]: no completion of "cut a reached, position k used last" (k = -1: none) with max(C, R) < cap
 * costs less latency; infinity = there is none. The oldest live result lies in the segment that is `age` segments
 * before the last one (the highest age: or further back); age 0 = the last one holds them all. Adds its steps to
 * *work. */
DDP_LIB void ddp__fence_bound(ddp__fence_line *line, double cap, double *work);

/* The cut of least T_pipe along `order`; keeps what cut holds unless better (step 4). DDP_FAILED if no cut fits into
 * memory. */
DDP_LIB ddp_status ddp__fence_cut_best(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                       ddp__fence_cut *cut, int *improved, ddp_error *err);

#endif /* DDP_PLAN_FENCE_CORE_H */
