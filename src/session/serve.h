/* Runs the server ranks, and rejects hooks on a rank that only serves. */
#pragma once

#include "context/context.h"

/* ---- serve.c: server thread or server rank, and the ranks that compute ---- */

/*   computing_open  makes the group of the computing ranks, once all ranks are connected
 *   computing_team  makes that group the team, once the ranks have compared their settings
 *   desk_open       starts the server state, once the strategy has started
 *   desk_close      ends it, before the engine closes
 *   computes        returns DDP_USAGE from a hook on a rank that only serves */
DDP_LIB ddp_status ddp__computing_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__computing_team(ddp_ctx *d);
DDP_LIB ddp_status ddp__desk_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__desk_close(ddp_ctx *d);
DDP_LIB ddp_status ddp__computes(ddp_ctx *d, const char *hook);
/* serve_status: the result of the strategy's serve function: the error of the engine, or an error for a
 * nonzero code. checkpoint_told, on a server (save.c): saves a checkpoint as the workers' control message
 * says, which it receives first. */
DDP_LIB ddp_status ddp__serve_status(ddp_ctx *d, int code, ddp_error *err);
DDP_LIB ddp_status ddp__checkpoint_told(ddp_ctx *d, ddp_error *err);
