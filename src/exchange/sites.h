/* Hierarchical averages: within sites, then between sites. */
#pragma once

#include "context/context.h"

/* ---- sites.c: hierarchical averages ---- */

/* open: makes the sites. site: [world] site of each rank, or 0 if the rank is lost. Collective. It does
 * nothing if this rank has no site. again: the same after a worker has joined an elastic world. No message
 * may be in flight. */
DDP_LIB ddp_status ddp__levels_open(ddp_ctx *d, const int *site, ddp_error *err);
DDP_LIB ddp_status ddp__levels_again(ddp_ctx *d, ddp_error *err);
/* submit: submits a hierarchical mean over all ranks as one operation. Divergence is not measured. takes:
 * returns 1 if a message takes this path. */
DDP_LIB int ddp__levels_takes(const ddp_ctx *d, const ddp_message *m);
DDP_LIB ddp_status ddp__levels_submit(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* Makes the part of a mean that crosses sites, on the first rank of each site. */
DDP_LIB void ddp__levels_across(const ddp_ctx *d, const ddp_message *m, ddp_message *part);
