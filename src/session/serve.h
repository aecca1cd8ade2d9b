/* Runs the server ranks, and rejects hooks on a rank that only serves. */
#pragma once

#include "context/context.h"

/* ---- serve.c: what serves, and the ranks that compute ---- */

/* open: once all ranks are there; team: once they have compared themselves; desk: once the strategy has
 * started, and before the engine closes. computes: refuses a hook on a rank that only serves. */
DDP_LIB ddp_status ddp__computing_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__computing_team(ddp_ctx *d);
DDP_LIB ddp_status ddp__desk_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__desk_close(ddp_ctx *d);
DDP_LIB ddp_status ddp__computes(ddp_ctx *d, const char *hook);
/* What serve ended with: its own complaint, or that of the engine. save.c, on a server: saves as the workers'
 * word says, which comes first. */
DDP_LIB ddp_status ddp__serve_status(ddp_ctx *d, int code, ddp_error *err);
DDP_LIB ddp_status ddp__checkpoint_told(ddp_ctx *d, ddp_error *err);
