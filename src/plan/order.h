/* Operations on orders: sort by a key, shuffle, improve by exchanges. */
#pragma once

#include "base/core.h"

typedef struct ddp__ranked {
    double key;
    int i;
} ddp__ranked;

/* Compares two ddp__ranked for qsort: ascending key, then ascending index. */
DDP_LIB int ddp__by_rank(const void *a, const void *b);
DDP_LIB void ddp__swap(int *order, int i, int j);
DDP_LIB void ddp__reverse(int *order, int i, int j);      /* positions i to j, inclusive */
DDP_LIB void ddp__shuffle(int *order, int n, ddp_rng *r); /* shuffles 0..n-1, ascending if r is NULL */
/* Tries one move for each pair of positions and retains each move that lowers cost(user). A move exchanges
 * the two positions. With `turn`, it first tries to reverse the range between them. *least is the cost, on
 * entry and on return. The pass ends when it is 0. Returns 1 if the cost fell. */
DDP_LIB int ddp__improve(int *order, int n, int turn, double (*cost)(void *), void *user, double *least);
