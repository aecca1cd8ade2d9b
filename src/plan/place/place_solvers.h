/* Declares the placement solvers. */
#pragma once

#include "plan/place/place_core.h"

/* Annealing, or for large networks descent on the two-level cost. */
DDP_LIB void ddp__place_anneal(ddp__place *p);

typedef struct ddp__place_limit {
    double seconds;
    long candidates;
} ddp__place_limit;

/* The genetic search of the paper, of the authors' program, or with KL's gain. With
 * `more`, the search visits the same candidates at a lower cost: it updates sums in place, evaluates a
 * candidate only if a comparison needs it, and skips offspring that a bound shows to be no better than
 * their parent. Candidates then count as equivalent moves of annealing. After its own limits, the search
 * continues to the limits of `more` if its result is near the best. */
DDP_LIB void ddp__place_genetic(ddp__place *p, ddp_place_solver solver, const ddp__place_limit *more);
/* Branch and bound over the composition of the stages. */
DDP_LIB void ddp__place_exact(ddp__place *p);
/* Evaluates every partition. Returns 1 if the result is proven, 0 if there are too many partitions. */
DDP_LIB int ddp__place_enumerate(ddp__place *p);
