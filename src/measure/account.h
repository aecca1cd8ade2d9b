/* Splits the time of a step into computing, communication and waiting. */
#pragma once

#include "context/clock.h"

/* account.c */
/* Accounts the steps that the clock has seen end. */
DDP_LIB void ddp__account_steps(ddp_ctx *d);
/* The statistics begin here. */
DDP_LIB void ddp__account_reset(ddp_ctx *d);
/* Follows the links from here on, as they are measured or nominal now. */
DDP_LIB void ddp__drift_start(ddp_ctx *d);
