/* Orders of things: by a key, shuffled, and improved by exchanges. */
#pragma once

#include "base/core.h"

typedef struct ddp__ranked {
    double key;
    int i;
} ddp__ranked;

/* A comparison for qsort: rising keys, and rising indices among equal keys. */
DDP_LIB int ddp__by_rank(const void *a, const void *b);
DDP_LIB void ddp__swap(int *order, int i, int j);
DDP_LIB void ddp__reverse(int *order, int i, int j);      /* positions i to j */
DDP_LIB void ddp__shuffle(int *order, int n, ddp_rng *r); /* 0..n-1; r NULL: ascending */
/* Tries one move for each pair of positions and keeps those that lower cost(user). A move exchanges the two
 * positions. With `turn`, reversing the run between them is tried first. *least is the cost, on entry and on
 * return; the pass ends when it is 0. Returns 1 if the cost fell. */
DDP_LIB int ddp__improve(int *order, int n, int turn, double (*cost)(void *), void *user, double *least);
