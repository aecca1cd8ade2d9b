/* The rules by which OSP chooses the deferred layers. */
#pragma once

#include "base/status.h"

typedef enum ddp_osp_rule {
    DDP_OSP_WALK,    /* by ascending importance, skips a layer that does not fit */
    DDP_OSP_STOP,    /* the same, but stops at the first layer that does not fit */
    DDP_OSP_DENSITY, /* by ascending importance per byte, skips a layer that does not fit */
    DDP_OSP_KNAPSACK /* at least as many bytes as the walk, with the least importance */
} ddp_osp_rule;
