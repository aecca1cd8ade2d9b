/* Checks on the times of a profile. */
#pragma once

#include "base/core.h"

/* Returns DDP_NUMERIC if a sum of times is not finite or exceeds `most`. */
DDP_LIB ddp_status ddp__check_sum(double sum, double most, ddp_error *err);
