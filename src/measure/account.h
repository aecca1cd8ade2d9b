/* Divides the time of a step into compute, communication and waiting. */
#pragma once

#include "context/clock.h"

/* Accounts for the steps that the clock has recorded as ended. */
DDP_LIB void ddp__account_steps(ddp_ctx *d);
/* Restarts the statistics. */
DDP_LIB void ddp__account_reset(ddp_ctx *d);
/* Starts to follow the links, from their current measured or nominal cost. */
DDP_LIB void ddp__drift_start(ddp_ctx *d);
