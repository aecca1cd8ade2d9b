/* The operators as a tape to be cut, and the tape along a sequence of devices. */
#pragma once

#include "plan/fence/workload_internal.h"

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

/* The caller frees t->graph.room, also after an error. */
DDP_LIB ddp_status ddp__fence_tape_open(const ddp_oplist *list, const ddp_network *net,
                                        const ddp_workload_options *o, ddp__fence_tape *t, ddp_error *err);
/* The median of the bytes that cross a cut, over all cuts: the size of a typical message. */
DDP_LIB ddp_status ddp__fence_typical_bytes(const ddp__fence_tape *t, double *out, ddp_error *err);

DDP_LIB double ddp__fence_takes(const ddp__fence_hop *hop, int from, int to, int positions, double bytes);
DDP_LIB ddp_status ddp__fence_line_open(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                        ddp__fence_line *line, ddp_error *err);

/* line->bound[age, k+1, a]: no completion of "cut a reached, position k used last" (k = -1: none) with max(C,
 * R) < cap costs less latency; infinity = there is none. The oldest live result lies in the segment that is
 * `age` segments before the last one (the highest age: or further back); age 0 = the last one holds them all.
 * *work grows. */
DDP_LIB void ddp__fence_bound(ddp__fence_line *line, double cap, double *work);
