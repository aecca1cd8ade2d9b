/* The two searches behind ddp_tour_open, which placement calls directly. */
#pragma once

#include "plan/tour.h"

/* The order of all n <= DDP_TOUR_EXACT nodes from `first` to `last` (-1 = free; the same twice: a ring) of
 * least cost: the sum of the hops or, if `slowest`, the largest of them. best [n 2^n] is scratch. */
DDP_LIB double ddp__held_karp(int n, const double *cost, int first, int last, int slowest, double *best,
                              int *order);
/* A short path, not proven shortest, for any n. Returns 0 if memory is exhausted. The search stops when
 * over(user) is nonzero; the result is then at least the path to nearest neighbours. over may be NULL. */
DDP_LIB int ddp__tour_local(int n, const double *cost, int first, int last, int (*over)(void *), void *user,
                            int *order, double *length);
