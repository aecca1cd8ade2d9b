/* Orders of nodes: the shortest open path through all, and the ring whose slowest hop is fastest. */
#pragma once

#include "base/status.h"

#define DDP_TOUR_EXACT 16 /* up to so many nodes the order is optimal */

/* ddp_tour_open - a shortest path through all n nodes.
 *
 *   cost     [n x n] cost of going from row to column; finite, >= 0, need not be symmetric; the diagonal is
 *            not read
 *   first    the node to begin with, or -1 = free
 *   last     the node to end with, or -1 = free; unlike first where n > 1
 *   order    [n] receives the nodes in order
 *   length   receives the sum along them
 *
 * n <= DDP_TOUR_EXACT: Held-Karp, optimal, O(n^2 2^n) time and n 2^n doubles (8 MiB at 16).
 * Above: nearest neighbour from every (at most 64) start, then 2-opt and or-opt until no move of either
 * shortens the path, the best of the starts; not proven.
 * DT-FM (arXiv:2206.01288) Eq. 4 with both ends free.
 * Deterministic. Outputs are untouched on error. Pure; safe from any thread. Errors: DDP_ARG (n < 1, a bad
 * end, a cost that is negative or not finite), DDP_NUMERIC (4 n times the largest cost is not finite),
 * DDP_MEMORY. */
DDP_API ddp_status ddp_tour_open(int n, const double *cost, int first, int last, int *order, double *length,
                                 ddp_error *err);

#define DDP_RING_EXACT 12 /* up to so many workers the order is optimal */

/* ddp_plan_ring - a closed tour of n workers whose slowest hop is as fast as possible: a pipelined ring
 * all-reduce runs at the rate of that hop. Among orders with the same slowest hop one with the least sum of
 * delays.
 *
 *   rate     [n x n] bytes per second from row to column; finite, > 0 off the diagonal, need not be
 *            symmetric; the diagonal is not read
 *   delay_s  [n x n] one-way delays, finite, >= 0; or NULL = all equal
 *   order    [n] receives the workers in ring order, beginning with 0: order[i] sends to order[i + 1], the
 *            last one to worker 0
 *   least    receives the rate of the slowest hop, 0 for n = 1
 *
 * n <= DDP_RING_EXACT: dynamic programming over sets, optimal in both respects, O(n^2 2^n). Above: fastest
 * neighbour from every (at most 64) start, then 2-opt and or-opt on a smooth stand-in for the slowest hop;
 * not proven. Deterministic. Outputs are untouched on error. Pure; safe from any thread. Errors: DDP_ARG
 * (names the pair and the value), DDP_MEMORY. */
DDP_API ddp_status ddp_plan_ring(int n, const double *rate, const double *delay_s, int *order, double *least,
                                 ddp_error *err);
