/* Records when the averages of layers arrive, and how long before a layer needs them, for strategies whose
 * averages span several steps. */
#pragma once

#include "context/context.h"

DDP_LIB ddp_status ddp__arrivals_start(ddp_ctx *d, ddp_error *err);
/* Accounts for the step that has just ended. */
DDP_LIB void ddp__arrivals_step(ddp_ctx *d);
/* Writes, as for ddp_strategy_ops.plan_adapt, how late the average of each layer has arrived since the
 * last call, in whole steps of step_s seconds. The slack of ddp__arrivals_slack counts as late. Returns
 * the seconds that this rank waited for averages since the last call. */
DDP_LIB double ddp__arrivals_take(ddp_ctx *d, double step_s, signed char *late);
/* Returns the slack that the average of a layer needs, in seconds: half a step, or twice the mean
 * deviation of its transfer times, but at most one step. layer DDP_NO_LAYER: of the layer that needs most. */
DDP_LIB double ddp__arrivals_slack(const ddp_ctx *d, int layer, double step_s);
/* Returns the seconds from the post of the layer's last average until it arrived, or 0 for none by this
 * plan. */
DDP_LIB double ddp__arrivals_last(const ddp_ctx *d, int layer);
/* Restarts the measurement, because the layer, or with DDP_NO_LAYER every layer, follows another plan from
 * now on. Keeps the deviations. */
DDP_LIB void ddp__arrivals_restart(ddp_ctx *d, int layer);
