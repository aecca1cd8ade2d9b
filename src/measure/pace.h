/* Drift of measured times during a run, and the computing time of each rank. */
#pragma once

#include "context/context.h"

/* pace.c: at the end of every step */
DDP_LIB ddp_status ddp__pace_step(ddp_ctx *d, ddp_error *err);

/* What changed; members are looked at after every step: 1 if they have changed */
DDP_LIB void ddp__note_add(ddp_ctx *d, ddp_note_kind kind, int rank, double before, double now);
DDP_LIB int ddp__note_members(ddp_ctx *d);
/* Waits for the exchange of times that is under way, if any. */
DDP_LIB ddp_status ddp__pace_wait(ddp_ctx *d, ddp_error *err);
