/* Compares the compute times of the ranks during a run, and records notes. */
#pragma once

#include "context/context.h"

/* Call it at the end of every step (pace.c). */
DDP_LIB ddp_status ddp__pace_step(ddp_ctx *d, ddp_error *err);

/* add: records a note. members: checks the members after every step. Returns 1 if they have changed. */
DDP_LIB void ddp__note_add(ddp_ctx *d, ddp_note_kind kind, int rank, double before, double now);
DDP_LIB int ddp__note_members(ddp_ctx *d);
/* Waits for the exchange of times in flight, if any. */
DDP_LIB ddp_status ddp__pace_wait(ddp_ctx *d, ddp_error *err);
