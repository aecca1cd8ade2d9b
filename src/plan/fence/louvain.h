/* Finds communities in a weighted graph: modularity, and Louvain's method to maximise it. */
#pragma once

#include "base/status.h"

/* ddp_modularity - computes Q = sum over communities c of (L_c / m - resolution (d_c / 2m)^2). L_c is the sum
 * of the weights inside c, d_c the sum of the degrees of its nodes, and m the sum of all weights.
 *
 *   weights     [n x n] finite, >= 0. Both directions are averaged, and the diagonal is not read.
 *   resolution  above 0. 1 gives Newman's modularity, a larger value smaller communities.
 *   community   [n] community of each node, a number in 0..n-1. The numbers need not be consecutive.
 *   out         receives Q, or 0 for a graph without weight. Unchanged on error.
 *
 * Pure and safe from any thread. Errors: DDP_ARG (names the node or the pair, and the value), DDP_NUMERIC for
 * weights that add up to more than 1e150, DDP_MEMORY. */
DDP_API ddp_status ddp_modularity(int n, const double *weights, double resolution, const int *community,
                                  double *out, ddp_error *err);

/* ddp_louvain - finds communities of high modularity. The other arguments are as in ddp_modularity.
 *
 *   community    [n] receives 0..communities-1, numbered by the lowest node of each community
 *   communities  receives the number of communities. May be NULL.
 *   modularity   receives Q. May be NULL.
 *
 * Method (Blondel et al. 2008): each node in turn moves to the neighbouring community with the largest gain.
 * Ties go to the lowest number, and only a gain larger than the rounding error counts. Then communities
 * become nodes, and the procedure repeats until no move gains anything.
 *
 * Beyond the paper, the result is refined by moving single nodes again until no move gains anything. For n
 * <= 1024 the whole method also runs with 15 seeded orders of the nodes. The best Q wins, and index order
 * wins ties. A node without weight stays alone. A disconnected graph has at least one community per
 * component.
 *
 * Deterministic. O(n^2) time per pass and n^2 doubles of memory. Outputs are untouched on error. Pure and
 * safe from any thread. Errors: DDP_ARG (names the pair and the value), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_louvain(int n, const double *weights, double resolution, int *community,
                               int *communities, double *modularity, ddp_error *err);
