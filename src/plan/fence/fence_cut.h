/* Finds the cut of least pipeline time along one order of the devices. */
#pragma once

#include "plan/fence/fence_tape.h"

/* A cut of the tape over a sequence of devices: position k runs operators first[k] .. end[k]-1. */
typedef struct ddp__fence_cut {
    int *first, *end;  /* [positions] */
    double pipeline_s; /* infinity = no cut found */
    int proven;
    double work; /* elementary steps so far, summed over all orders */
} ddp__fence_cut;

/* Finds the cut of least T_pipe along `order` (step 4 of ddp_fence). Replaces *cut only if the new cut is
 * better. */
DDP_LIB ddp_status ddp__fence_cut_best(const ddp__fence_tape *t, const int *order, int idle, int no_memory,
                                       ddp__fence_cut *cut, ddp_error *err);
