/* Layer timer: medians over steps of what the hooks measured. */
#pragma once

#include "base/core.h"

typedef enum ddp__timer_kind { DDP__T_FORWARD, DDP__T_BACKWARD, DDP__T_UPDATE, DDP__T_KINDS } ddp__timer_kind;

/* Samples of up to room steps; afterwards further steps are ignored. */
typedef struct ddp__timer {
    int layers, room, steps;
    float *sample; /* [room][kinds][layers] seconds; borrowed, zero at first */
    double whole;  /* forward and backward that no hook told apart, mean over the kept steps */
} ddp__timer;

/* Memory for so many layers and steps; lists->failed where it is short. */
DDP_LIB void ddp__timer_open(ddp__timer *t, int layers, int steps, ddp__scratch *lists);
DDP_LIB double ddp__timer_whole(const ddp__timer *t);
DDP_LIB void ddp__timer_add(ddp__timer *t, ddp__timer_kind kind, int layer, double seconds);
DDP_LIB void ddp__timer_add_whole(ddp__timer *t, double seconds);
DDP_LIB void ddp__timer_step(ddp__timer *t); /* the step is over; the next one begins */
/* Median over the steps but the first (warm-up); 0 without samples. layer -1: of the sum over all layers,
 * what a whole pass takes; a pass that is interrupted now here, now there has layer medians that do not add
 * up to it. */
DDP_LIB double ddp__timer_median(const ddp__timer *t, ddp__timer_kind kind, int layer);
