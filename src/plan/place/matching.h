/* The bottleneck matching of two sides of equal size. */
#pragma once

#include "base/core.h"

/* Memory of a matching of n by n. */
typedef struct ddp__matching {
    int n, round;
    double *sorted;           /* [n x n] */
    int *left, *right, *seen; /* [n] */
    int *kept;                /* [2 x n] */
} ddp__matching;

/* Takes the arrays of m from `room`; the caller checks room->failed. */
DDP_LIB void ddp__matching_open(ddp__matching *m, int n, ddp__scratch *room);
/* A lower bound: a perfect matching uses at least the lightest weight of each row and of each column. */
DDP_LIB double ddp__matching_bound(int n, const double *weight);
/* Writes a perfect matching whose heaviest pair is lightest to mate [n] and returns that weight. */
DDP_LIB double ddp__matching_solve(ddp__matching *m, const double *weight, int *mate);
