/* Divides the time of a step into compute, communication and waiting. */
#pragma once

#include "context/clock.h"

/* Accounts for the steps that the clock has recorded as ended. */
DDP_LIB void ddp__account_steps(ddp_ctx *d);
/* Restarts the statistics. */
DDP_LIB void ddp__account_reset(ddp_ctx *d);
/* Sets the number of steps after which the transfers of the strategy repeat. Another number restarts the
 * statistics. */
DDP_LIB void ddp__account_period(ddp_ctx *d, int steps);
/* Starts to follow the links, from their current measured or nominal cost. */
DDP_LIB void ddp__drift_start(ddp_ctx *d);
/* Ends the window of observations of a link. Returns the factor by which they change the time of a byte, or 0
 * if there were none. */
DDP_LIB double ddp__drift_window(ddp_ctx *d, int link);
