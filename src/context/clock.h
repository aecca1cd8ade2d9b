/* The clock of a step. */
#pragma once

#include "context/context.h"

/* Hooks return long before the device has done what was queued, so its times are marks in its own
 * order, read when they have come: then the same accounts are made as of a CPU's hooks. */
typedef enum ddp__moment_kind {
    DDP__M_ENTER, /* of a hook: what phase it opens */
    DDP__M_LEAVE, /* of a hook: what phase runs from here on */
    DDP__M_BEGIN, /* a wait for a message, or an update */
    DDP__M_HELD,
    DDP__M_UPDATED,
    DDP__M_STEP /* a step is over */
} ddp__moment_kind;

DDP_LIB ddp_status ddp__clock_open(ddp_ctx *d, ddp_error *err);
/* Without a device the time is now. */
DDP_LIB void ddp__clock_note(ddp_ctx *d, ddp__moment_kind kind, int layer, ddp__phase phase);
/* Makes the accounts of what the device has done by now. */
DDP_LIB void ddp__clock_collect(ddp_ctx *d);
DDP_LIB void ddp__clock_start(ddp_ctx *d);     /* the first step begins */
DDP_LIB int ddp__clock_room(const ddp_ctx *d); /* moments that may be to come */
/* A span of time that layer, or DDP_NO_LAYER, took; it counts as computing unless it is a wait. */
DDP_LIB void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end);
