/* In which order a ring of workers should pass its data on. */
#ifndef DDP_PLAN_RING_ORDER_H
#define DDP_PLAN_RING_ORDER_H

#include "base/status.h"

#define DDP_RING_EXACT 12 /* up to so many workers the order is optimal */

/* ddp_plan_ring - a closed tour of n workers whose slowest hop is as fast as possible: a pipelined ring all-reduce runs
 * at the rate of that hop. Among orders with the same slowest hop one with the least sum of delays.
 *
 *   rate     [n x n] bytes per second from row to column; finite, > 0 off the diagonal, need not be symmetric; the
 *            diagonal is not read
 *   delay_s  [n x n] one-way delays, finite, >= 0; or NULL = all equal
 *   order    [n] receives the workers in ring order, beginning with 0: order[i] sends to order[i + 1], the last one to
 *            worker 0
 *   least    receives the rate of the slowest hop, 0 for n = 1
 *
 * n <= DDP_RING_EXACT: dynamic programming over sets, optimal in both respects, O(n^2 2^n). Above: fastest neighbour
 * from every (at most 64) start, then 2-opt and or-opt on a smooth stand-in for the slowest hop; not proven.
 * Deterministic. Outputs are untouched on error. Pure; safe from any thread. Errors: DDP_ARG (names the pair and the
 * value), DDP_MEMORY. */
DDP_API ddp_status ddp_plan_ring(int n, const double *rate, const double *delay_s, int *order, double *least,
                                 ddp_error *err);

#endif /* DDP_PLAN_RING_ORDER_H */
