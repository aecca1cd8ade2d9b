/* Bottleneck matching: pairs two sets of equal size so that the heaviest pair is as light as possible. */
#pragma once

#include "base/core.h"

/* Working memory for an n x n matching. */
typedef struct ddp__matching {
    int n, round;
    double *sorted;           /* [n x n] */
    int *left, *right, *seen; /* [n] */
    int *kept;                /* [2 x n] */
} ddp__matching;

/* Allocates the arrays of m from `room`. The caller checks room->failed. */
DDP_LIB void ddp__matching_open(ddp__matching *m, int n, ddp__scratch *room);
/* A lower bound on the bottleneck: a perfect matching uses at least the lightest weight of each row and of
 * each column. */
DDP_LIB double ddp__matching_bound(int n, const double *weight);
/* Writes a perfect matching whose heaviest pair is as light as possible to mate [n]. Returns the weight of
 * that pair. */
DDP_LIB double ddp__matching_solve(ddp__matching *m, const double *weight, int *mate);
