/* The solvers of placement. */
#pragma once

#include "plan/place/place_core.h"

/* Annealing, or for large networks descent on the two-level cost. */
DDP_LIB void ddp__place_anneal(ddp__place *p);

typedef struct ddp__place_limit {
    double seconds;
    long candidates;
} ddp__place_limit;

/* The paper's genetic search, that of the authors' program, or KL's. With `more` the walk is the same but
 * cheaper: sums are updated in place, a candidate is evaluated only for a comparison, a bound skips children
 * that are no better than their parent, and candidates count as equivalent moves of annealing. After its own
 * limits the search continues to the limits of `more` if its result is near the best. */
DDP_LIB void ddp__place_genetic(ddp__place *p, ddp_place_solver solver, const ddp__place_limit *more);
/* Branch and bound. */
DDP_LIB void ddp__place_exact(ddp__place *p);
/* Evaluates every partition. Returns 1 if the result is proven, 0 if there are too many partitions. */
DDP_LIB int ddp__place_enumerate(ddp__place *p);
