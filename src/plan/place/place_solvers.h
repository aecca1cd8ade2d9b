/* Declares the placement solvers. */
#pragma once

#include "plan/place/place_core.h"

/* Annealing, or for large networks descent on the two-level cost. */
DDP_LIB void ddp__place_anneal(ddp__place *p);

/* The genetic search of the paper, of the authors' program, or with KL's gain. */
DDP_LIB void ddp__place_genetic(ddp__place *p, ddp_place_solver solver);

/* The same search child by child, so that another search can take turns with it. It uses p->rng. */
typedef struct ddp__place_genetic_walk ddp__place_genetic_walk;

/* Fills the population. With `quick`, the search visits the same candidates at a lower cost: it updates sums
 * in place, evaluates a candidate only if a comparison needs it, and skips offspring that a bound shows to
 * be no better than their parent. Candidates then count as equivalent moves of annealing. The memory is from
 * p->room. Returns NULL if it is exhausted. */
DDP_LIB ddp__place_genetic_walk *ddp__place_genetic_open(ddp__place *p, ddp_place_solver solver, int quick);
/* Makes one child. Returns 0 if the search is over. */
DDP_LIB int ddp__place_genetic_child(ddp__place *p, ddp__place_genetic_walk *w);
/* Takes its turn after `moves` moves of annealing: makes children for three times as many candidates while
 * no other search has a better result, for twice as many at first, for a third later, and none if its result
 * is far from the best. Returns 0 if the search is over. */
DDP_LIB int ddp__place_genetic_turn(ddp__place *p, ddp__place_genetic_walk *w, long moves);
/* Branch and bound over the composition of the stages. */
DDP_LIB void ddp__place_exact(ddp__place *p);
/* Evaluates every partition. Returns 1 if the result is proven, 0 if there are too many partitions. */
DDP_LIB int ddp__place_enumerate(ddp__place *p);
