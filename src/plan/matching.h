/* Bottleneck perfect matching: pair two equal sets so that the heaviest pair is as light as possible. */
#ifndef DDP_PLAN_MATCHING_H
#define DDP_PLAN_MATCHING_H

#include "base/status.h"

/* ddp_matching_bottleneck - a perfect matching whose largest weight is smallest.
 *
 *   n        size of both sides, at least 1
 *   weight   [n x n] row = left, column = right; finite
 *   mate     [n] receives the right partner of each left vertex
 *   value    receives the largest weight in that matching
 *
 * Binary search over the distinct weights; each threshold is tested by augmenting paths that start from the matching of
 * the last infeasible threshold. mate realises *value (the released DT-FM program may return a heavier pair than the
 * value it claims). Among equally good matchings the choice depends on the weights alone. O(n^2 log n + n^3) at worst.
 * Outputs are untouched on error. Pure; safe from any thread. Errors: DDP_ARG (n < 1, a weight that is not finite),
 * DDP_MEMORY. */
DDP_API ddp_status ddp_matching_bottleneck(int n, const double *weight, int *mate, double *value, ddp_error *err);

#endif /* DDP_PLAN_MATCHING_H */
