/* Communities of a weighted graph: modularity, and Louvain's method to maximise it. */
#pragma once

#include "base/status.h"

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
