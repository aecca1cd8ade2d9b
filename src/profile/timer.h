/* The layer timer: takes the median over steps of the layer times that the hooks measure. */
#pragma once

#include "base/core.h"

typedef enum ddp__timer_kind { DDP__T_FORWARD, DDP__T_BACKWARD, DDP__T_UPDATE, DDP__T_KINDS } ddp__timer_kind;

/* Samples of up to `room` steps. Later steps are ignored. */
typedef struct ddp__timer {
    int layers, room, steps;
    float *sample; /* [room][kinds][layers] seconds, borrowed, initially zero */
    double whole;  /* forward and backward time that no hook assigns to a layer, mean over the recorded
                      steps */
} ddp__timer;

/* Allocates memory for `layers` layers and `steps` steps. Sets lists->failed if memory is exhausted. */
DDP_LIB void ddp__timer_open(ddp__timer *t, int layers, int steps, ddp__scratch *lists);
DDP_LIB double ddp__timer_whole(const ddp__timer *t);
DDP_LIB void ddp__timer_add(ddp__timer *t, ddp__timer_kind kind, int layer, double seconds);
DDP_LIB void ddp__timer_add_whole(ddp__timer *t, double seconds);
DDP_LIB void ddp__timer_step(ddp__timer *t); /* ends the current step and begins the next */
/* The median over all steps except the first (warm-up), in seconds, or 0 without samples. For layer -1, the
 * median of the sum over all layers, which is the time of a whole pass. The medians of the layers need not
 * add up to it if interruptions hit different layers in different steps. */
DDP_LIB double ddp__timer_median(const ddp__timer *t, ddp__timer_kind kind, int layer);
