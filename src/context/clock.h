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
DDP_LIB ddp_status ddp__clock_memory(ddp_ctx *d, ddp_error *err); /* when the layers are known */
DDP_LIB int ddp__clock_spans_of_step(const ddp_ctx *d);           /* at most */
DDP_LIB void ddp__clock_start(ddp_ctx *d);                        /* the first step begins */
DDP_LIB int ddp__clock_room(const ddp_ctx *d);                    /* moments that may be to come */
/* A span of time that layer, or DDP_NO_LAYER, took; it counts as computing unless it is a wait. */
DDP_LIB void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end);
/* A wait that no moment tells, such as for a server of this rank. */
DDP_LIB void ddp__clock_wait(ddp_ctx *d, double begin, double end);
DDP_LIB double ddp__clock_waited(const ddp_ctx *d);   /* seconds of this step so far */
DDP_LIB double ddp__clock_computed(const ddp_ctx *d); /* the same, computing */
DDP_LIB double ddp__clock_take_computed(ddp_ctx *d);  /* the same, and they begin at 0 again */
DDP_LIB const ddp__timer *ddp__clock_timer(const ddp_ctx *d);
DDP_LIB int ddp__clock_outside(const ddp_ctx *d); /* no hook of a layer has come since the last step ended */
/* Spans are numbered; the oldest that is kept, and one behind the newest. */
DDP_LIB long ddp__clock_oldest(const ddp_ctx *d);
DDP_LIB long ddp__clock_newest(const ddp_ctx *d);
DDP_LIB const ddp_span *ddp__clock_span(const ddp_ctx *d, long number);
/* The next step that is over and not accounted yet: 1, and when it ended and how long it waited; 0: none. */
DDP_LIB int ddp__clock_next_step(ddp_ctx *d, double *at, double *wait_s);
