/* The rules by which OSP chooses late layers. */
#pragma once

#include "base/status.h"

typedef enum ddp_osp_rule {
    DDP_OSP_WALK,    /* by rising importance; a layer that does not fit is skipped */
    DDP_OSP_STOP,    /* the same; the first layer that does not fit ends the walk */
    DDP_OSP_DENSITY, /* walk by rising importance per byte */
    DDP_OSP_KNAPSACK /* at least the bytes of the walk, with less importance */
} ddp_osp_rule;
