/* The two searches of ddp_tour_open, which placement calls directly. */
#pragma once

#include "plan/tour.h"

/* Finds the cheapest order of all n <= DDP_TOUR_EXACT nodes from `first` to `last` (-1 = free). The order is
 * a ring if first == last. The cost is the sum of the hops or, if `slowest`, the largest hop. best [n 2^n] is
 * scratch. */
DDP_LIB double ddp__held_karp(int n, const double *cost, int first, int last, int slowest, double *best,
                              int *order);
/* Finds a short path for any n, not proven to be the shortest. Returns 0 if memory is exhausted. The search
 * stops when over(user) is nonzero. It then returns the nearest-neighbour path or a better one. over may be
 * NULL. */
DDP_LIB int ddp__tour_local(int n, const double *cost, int first, int last, int (*over)(void *), void *user,
                            int *order, double *length);
