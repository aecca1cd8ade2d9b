/* The cut of least time along one order of the devices. */
#pragma once

#include "plan/fence/fence_tape.h"

/* A cut of the tape over a device sequence: position k runs [first[k], end[k]). */
typedef struct ddp__fence_cut {
    int *first, *end;  /* [positions] */
    double pipeline_s; /* infinity = none found */
    int proven;
    double work; /* elementary steps so far, over all orders */
} ddp__fence_cut;

/* The cut of least T_pipe along `order`; keeps what cut holds unless better (step 4). */
DDP_LIB ddp_status ddp__fence_cut_best(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                       ddp__fence_cut *cut, ddp_error *err);
