/* DreamDDP's planner: in which local step of the period each layer is averaged. */
#ifndef DDP_PLAN_PARTIAL_H
#define DDP_PLAN_PARTIAL_H

#include "profile/profile.h"

typedef enum ddp_solver {
    DDP_SOLVER_DEFAULT, /* scatter */
    DDP_SOLVER_OPTIMAL, /* contiguous optimum: memoised search (timeline), else O(L^2 H) programme */
    DDP_SOLVER_DFS,     /* Algorithm 2 as printed, typos corrected */
    DDP_SOLVER_ENP,     /* equal number of layers per step */
    DDP_SOLVER_BRUTE,   /* every contiguous partition; small instances only */
    DDP_SOLVER_SCATTER  /* any assignment: longest first + moves */
} ddp_solver;

typedef enum ddp_cost {
    DDP_COST_DEFAULT,  /* window */
    DDP_COST_TIMELINE, /* transfers queue on one link; the step ends with the last of them */
    DDP_COST_SUM,      /* Eq. 8-11: a set's transfers as one lump after its first layer */
    DDP_COST_WINDOW    /* timeline, but a transfer may end as late as its layer's next forward */
} ddp_cost;

typedef enum ddp_fill { DDP_FILL_NONE, DDP_FILL_EXACT, DDP_FILL_EQ12 } ddp_fill;

typedef struct ddp_plan_options {
    int        period;      /* H >= 1 */
    ddp_solver solver;
    ddp_cost   cost;
    ddp_fill   fill;
    double     time_limit_s; /* brute and scatter stop here with the best found; 0 = 60 s */
} ddp_plan_options;

/* A plan. Owned by whoever called ddp_plan_partial or ddp_plan_new; ddp_plan_free. */
typedef struct ddp_plan {
    int            layers, period;
    int           *step_of;       /* [L] step 0..H-1 whose backward averages layer l */
    unsigned char *fill;          /* [H x L] 1 = layer l is averaged once more in step h */
    ddp_solver     solver;
    ddp_cost       cost;
    double         objective_s;   /* sum over the period, forward time left out */
    double         exposed_s;     /* objective minus period x backward */
    double         lower_bound_s; /* no assignment can have a smaller objective */
} ddp_plan;

#endif /* DDP_PLAN_PARTIAL_H */
