/* Hierarchical averages: within sites, then between sites. */
#pragma once

#include "context/context.h"

/* ---- sites.c: averages in two levels ---- */

/* site: [world] of each rank, 0: it is lost. Collective, a no-op where this rank has none. again: in an
 * elastic world, with a newcomer; nothing is in flight. */
DDP_LIB ddp_status ddp__levels_open(ddp_ctx *d, const int *site, ddp_error *err);
DDP_LIB ddp_status ddp__levels_again(ddp_ctx *d, ddp_error *err);
/* Submits a mean over all ranks in two levels, one operation. Divergence is not measured. takes: whether it
 * goes so. */
DDP_LIB int ddp__levels_takes(const ddp_ctx *d, const ddp_message *m);
DDP_LIB ddp_status ddp__levels_submit(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* The part of a mean that crosses sites, on the first rank of each. */
DDP_LIB void ddp__levels_across(const ddp_ctx *d, const ddp_message *m, ddp_message *part);
