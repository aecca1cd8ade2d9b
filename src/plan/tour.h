/* The open travelling salesman: the cheapest order in which to visit every node once. */
#ifndef DDP_PLAN_TOUR_H
#define DDP_PLAN_TOUR_H

#include "base/status.h"

#define DDP_TOUR_EXACT 16 /* up to so many nodes the order is optimal */

/* ddp_tour_open - a shortest path through all n nodes.
 *
 *   cost     [n x n] cost of going from row to column; finite, >= 0, need not be symmetric; the diagonal is not read
 *   first    the node to begin with, or -1 = free
 *   last     the node to end with, or -1 = free; unlike first where n > 1
 *   order    [n] receives the nodes in order
 *   length   receives the sum along them
 *
 * n <= DDP_TOUR_EXACT: Held-Karp, optimal, O(n^2 2^n) time and n 2^n doubles (8 MiB at 16).
 * Above: nearest neighbour from every (at most 64) start, then 2-opt and or-opt until no move of either shortens the
 * path, the best of the starts; not proven.
 * DT-FM (arXiv:2206.01288) Eq. 4 with both ends free.
 * Deterministic. Outputs are untouched on error. Pure; safe from any thread.
 * Errors: DDP_ARG (n < 1, a bad end, a cost that is negative or not finite), DDP_NUMERIC (4 n times the largest cost is
 * not finite), DDP_MEMORY. */
DDP_API ddp_status ddp_tour_open(int n, const double *cost, int first, int last, int *order, double *length,
                                 ddp_error *err);

#endif /* DDP_PLAN_TOUR_H */
