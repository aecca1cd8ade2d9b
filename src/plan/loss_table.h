/* Measured losses, generated from bench/loss_table.csv by tools/loss_table.py; do not edit. */
#pragma once

#include "profile/losses.h"

/* strategy, stream, period, workers, format, steps, loss */
static const ddp_loss_point ddp__loss_points[] = {
    /* docs/results/choice.md, three seeds */
    {"ssgd", 0, 0, 4, DDP_AS_FLOAT, 400, 2.0308},
    {"dreamddp", 0, 5, 4, DDP_AS_FLOAT, 400, 2.1338},
    {"diloco", 0, 25, 4, DDP_AS_FLOAT, 400, 2.2756},
    {"diloco", 0, 25, 4, DDP_AS_INT8, 400, 2.2759},
    {"diloco", 0, 25, 4, DDP_AS_INT4, 400, 2.2758},
    {"diloco", 1, 25, 4, DDP_AS_FLOAT, 400, 2.1890},
    {"sparseloco", 0, 25, 4, DDP_AS_FLOAT, 400, 2.4565},
    {"deft", 0, 0, 4, DDP_AS_FLOAT, 400, 2.3180},
    {"osp", 0, 0, 4, DDP_AS_FLOAT, 400, 2.0322},
    /* docs/results/choice.md, two seeds */
    {"ssgd", 0, 0, 4, DDP_AS_FLOAT, 400, 2.033},
    {"dreamddp", 0, 5, 4, DDP_AS_FLOAT, 400, 2.125},
    {"localsgd", 0, 5, 4, DDP_AS_FLOAT, 400, 2.131},
    {"diloco", 1, 5, 4, DDP_AS_FLOAT, 400, 2.143},
    {"diloco", 1, 5, 4, DDP_AS_INT4, 400, 2.141},
    {"diloco", 0, 5, 4, DDP_AS_FLOAT, 400, 2.150},
    /* docs/results/choice.md, one seed */
    {"ssgd", 0, 0, 4, DDP_AS_FLOAT, 2000, 1.516},
    {"dreamddp", 0, 5, 4, DDP_AS_FLOAT, 2000, 1.578},
    {"diloco", 1, 25, 4, DDP_AS_FLOAT, 2000, 1.649},
    {"localsgd", 0, 25, 4, DDP_AS_FLOAT, 2000, 1.663},
    {"deft", 0, 0, 4, DDP_AS_FLOAT, 2000, 1.689},
    {"diloco", 0, 25, 4, DDP_AS_FLOAT, 2000, 1.761},
    {"sparseloco", 0, 25, 4, DDP_AS_FLOAT, 2000, 1.924},
};
