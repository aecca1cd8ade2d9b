/* The operators as a list to be cut (the tape), and the costs of the tape along one sequence of devices
 * (the line). */
#pragma once

#include "plan/fence/workload_internal.h"

enum { DDP__FENCE_AGES = 8 };

/* A result that is produced before a cut and used after it. */
typedef struct ddp__fence_live {
    int op, next; /* next: its first user at or after the cut */
} ddp__fence_live;

/* Operators 0..n-1. Cut a is just before operator a. */
typedef struct ddp__fence_tape {
    ddp__workload_graph graph;
    int n;
    int *home;             /* [n] operator whose segment holds a result: the operator itself, or the first
                              user of input data */
    double *flops;         /* [n+1] sum before cut a, times 3 with backward */
    double *memory;        /* [n+1] bytes before cut a, without received results */
    int *from;             /* [n+2] the live results of cut a are live[from[a]] .. live[from[a+1]-1], */
    ddp__fence_live *live; /*       sorted by next user, then by operator */
    int *oldest;           /* [n+1] least home of the live results of cut a, n if there are none */
    int width;             /* the largest number of live results of any cut, at least 1 */
} ddp__fence_tape;

/* A message takes delay + slope x bytes seconds. */
typedef struct ddp__fence_hop {
    double delay, slope;
} ddp__fence_hop;

/* The links and devices in the order of one sequence. Arrays are [positions], or [positions x positions]
 * with the sender as row. */
typedef struct ddp__fence_line {
    const ddp__fence_tape *tape;
    int positions, idle;     /* idle: 1 = positions may stay empty */
    int ages;                /* DDP__FENCE_AGES, or 2 if idle, because an age then identifies no position */
    double *pace;            /* seconds per FLOP */
    double *limit;           /* memory limit, bytes */
    ddp__fence_hop *hop;     /* from one position to another */
    ddp__fence_hop *to, *of; /* [k, q] minimum over positions 0..k: of the hop to position q, and of the
                                hop from q */
    double *least;           /* [positions] lower bound on the receive time of every segment there, seconds */
    double *bound;           /* [ages, positions + 1, n + 1], see ddp__fence_bound */
    double *ahead;           /* [2, ages, n + 1] scratch */
    double *part;            /* [width + 1] scratch */
    ddp__scratch room;
} ddp__fence_line;

/* Builds the tape from a list, a network and options. The caller frees t->graph.room, also after an error. */
DDP_LIB ddp_status ddp__fence_tape_open(const ddp_oplist *list, const ddp_network *net,
                                        const ddp_workload_options *o, ddp__fence_tape *t, ddp_error *err);
/* The size of a typical message: the median, over all cuts, of the bytes that cross the cut. */
DDP_LIB ddp_status ddp__fence_typical_bytes(const ddp__fence_tape *t, double *out, ddp_error *err);

/* Seconds for a message of `bytes` bytes between two positions. */
DDP_LIB double ddp__fence_takes(const ddp__fence_hop *hop, int from, int to, int positions, double bytes);
/* Fills the line for one order of the devices. */
DDP_LIB ddp_status ddp__fence_line_open(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                        ddp__fence_line *line, ddp_error *err);

/* Fills line->bound[age, k+1, a] for the cap `cap` on max(C, R). The entry is a lower bound on the latency
 * of every completion from the state "cut a reached, position k used last" (k = -1: no position used) in
 * which max(C, R) < cap. Infinity means that no completion exists. `age` says which segment holds the
 * oldest live result: the segment `age` segments before the last one. The highest age also covers all
 * earlier segments. Age 0 means that the last segment holds all live results. Adds the number of steps to
 * *work. */
DDP_LIB void ddp__fence_bound(ddp__fence_line *line, double cap, double *work);
