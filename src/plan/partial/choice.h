/* The options of partial averaging: solver, cost and filling. */
#pragma once

#include "base/status.h"

typedef enum ddp_solver {
    DDP_SOLVER_DEFAULT, /* scatter */
    DDP_SOLVER_OPTIMAL, /* optimal among contiguous sets: memoised search, else the O(L^2 H) programme */
    DDP_SOLVER_DFS,     /* Algorithm 2 as printed, with typos corrected */
    DDP_SOLVER_ENP,     /* equal number of layers per step */
    DDP_SOLVER_BRUTE,   /* tries every contiguous partition, for small instances only */
    DDP_SOLVER_SCATTER  /* any assignment: longest layer first, then improving moves */
} ddp_solver;

typedef enum ddp_cost {
    DDP_COST_DEFAULT,  /* window */
    DDP_COST_TIMELINE, /* transfers queue on one link. The step ends with the last transfer. */
    DDP_COST_SUM,      /* Eq. 8-11: the transfers of a set count as one block after its first layer */
    DDP_COST_WINDOW    /* like timeline, but a transfer may last until its layer's next forward */
} ddp_cost;

typedef enum ddp_fill { DDP_FILL_NONE, DDP_FILL_EXACT, DDP_FILL_EQ12 } ddp_fill;
