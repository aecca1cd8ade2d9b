/* Brute force for partial averaging: the reference for every other solver. */
#pragma once

#include "base/core.h"
#include "plan/partial/partial.h"

/* Finds the best contiguous partition by simulating every one. It shares no code with the other solvers.
 * cut [period+1] is as in ddp__optimal. */
DDP_LIB ddp_status ddp__brute(const ddp_profile *p, ddp_cost cost, int period, double time_limit_s, int *cut,
                              ddp_error *err);
/* Simulates one step that averages the layers with a nonzero member [L], in forward order. */
DDP_LIB ddp_status ddp__brute_step(const ddp_profile *p, ddp_cost cost, const unsigned char *member,
                                   double *out_s, ddp_error *err);
