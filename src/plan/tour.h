/* Orders nodes: the shortest open path through all nodes, and the ring whose slowest hop is as fast as
 * possible. */
#pragma once

#include "base/status.h"

#define DDP_TOUR_EXACT 16 /* the largest n for which the order is optimal */

/* ddp_tour_open - finds a shortest path through all n nodes.
 *
 *   cost    [n x n] cost of the hop from row to column, finite and >= 0. Need not be symmetric. The diagonal
 *           is not read.
 *   first   the first node, or -1 = free
 *   last    the last node, or -1 = free. Different from first if n > 1.
 *   order   [n] receives the nodes in order
 *   length  receives the sum of the costs along the path
 *
 * n <= DDP_TOUR_EXACT: Held-Karp, optimal, O(n^2 2^n) time and n 2^n doubles (8 MiB for n = 16). Larger n:
 * nearest neighbour from every start (at most 64 starts), then 2-opt and or-opt until no such move shortens
 * the path. Returns the best path over all starts, which is not proven to be optimal. With both ends free,
 * this solves Eq. 4 of DT-FM (arXiv:2206.01288). Deterministic. Outputs are untouched on error. Pure and safe
 * from any thread. Errors: DDP_ARG (n < 1, an invalid end, a cost that is negative or not finite),
 * DDP_NUMERIC (4 n times the largest cost is not finite), DDP_MEMORY. */
DDP_API ddp_status ddp_tour_open(int n, const double *cost, int first, int last, int *order, double *length,
                                 ddp_error *err);

#define DDP_RING_EXACT 12 /* the largest n for which the order is optimal */

/* ddp_plan_ring - finds a closed tour of n workers whose slowest hop is as fast as possible. A pipelined
 * ring all-reduce runs at the rate of its slowest hop. Among orders with the same slowest hop, it minimises
 * the sum of the delays.
 *
 *   rate     [n x n] bytes per second from row to column, finite, and > 0 off the diagonal. Need not be
 *            symmetric. The diagonal is not read.
 *   delay_s  [n x n] one-way delays in seconds, finite, >= 0. NULL = all equal.
 *   order    [n] receives the workers in ring order, beginning with worker 0: order[i] sends to order[i +
 *            1], and the last one to worker 0
 *   least    receives the rate of the slowest hop in bytes per second, or 0 for n = 1
 *
 * n <= DDP_RING_EXACT: dynamic programming over sets, optimal in both respects, O(n^2 2^n). Larger n: fastest
 * neighbour from every start (at most 64 starts), then 2-opt and or-opt on a smooth approximation of the
 * slowest hop. The ring is not proven to be optimal. Deterministic. Outputs are untouched on error. Pure and
 * safe from any thread. Errors: DDP_ARG (names the pair and the value), DDP_MEMORY. */
DDP_API ddp_status ddp_plan_ring(int n, const double *rate, const double *delay_s, int *order, double *least,
                                 ddp_error *err);
