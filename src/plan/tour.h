/* Orders, pairs and groups of what a table of weights joins: tours, rings, communities. */
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

/* ddp_modularity - Q = sum over communities c of (L_c / m - resolution (d_c / 2m)^2): L_c the weight inside
 * c, d_c the weight at its nodes, m all weight.
 *
 *   weights    [n x n] finite, >= 0; both directions are averaged, the diagonal is not read
 *   resolution above 0; 1 = Newman's modularity; larger = smaller communities
 *   community  [n] any numbers 0..n-1; equal = same community
 *   out        receives Q; 0 for a graph without weight; untouched on error */
DDP_API ddp_status ddp_modularity(int n, const double *weights, double resolution, const int *community,
                                  double *out, ddp_error *err);

/* ddp_louvain - communities of high modularity (arguments as above).
 *
 *   community   [n] receives 0..communities-1, numbered by their lowest node
 *   communities receives their number, or NULL
 *   modularity  receives Q, or NULL
 *
 * Blondel et al. 2008: nodes move one by one to the neighbouring community of largest gain (ties: the lowest
 * number; only gains beyond rounding), then communities become nodes, until nothing gains. Beyond the paper:
 * the result is handed back to the single nodes until they gain nothing either, and where n <= 1024 the same
 * is done in 15 seeded orders besides index order; the best Q wins, index order on ties. Nodes without weight
 * stay alone; a disconnected graph has at least its components.
 * Deterministic. O(n^2) per pass and n^2 doubles. Outputs untouched on error. Pure; safe from any thread.
 * Errors: DDP_ARG (names the pair and the value), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_louvain(int n, const double *weights, double resolution, int *community,
                               int *communities, double *modularity, ddp_error *err);
