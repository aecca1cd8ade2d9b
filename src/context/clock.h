/* Measures the phases of a step: forward, backward, update and waits. */
#pragma once

#include "context/context.h"

/* Kinds of moments. With a device, hooks return long before the device has executed the queued work. The
 * times are therefore marks in the device's queue, which are read when the device has reached them, and are
 * then accounted for as the times of a CPU's hooks are. */
typedef enum ddp__moment_kind {
    DDP__M_ENTER, /* entry of a hook, and the phase it opens */
    DDP__M_LEAVE, /* return of a hook, and the phase that runs from then on */
    DDP__M_BEGIN, /* start of a wait for a message, or of an update */
    DDP__M_HELD,
    DDP__M_UPDATED,
    DDP__M_STEP /* end of a step */
} ddp__moment_kind;

DDP_LIB ddp_status ddp__clock_open(ddp_ctx *d, ddp_error *err);
/* Records a moment. Without a device its time is the current time. */
DDP_LIB void ddp__clock_note(ddp_ctx *d, ddp__moment_kind kind, int layer, ddp__phase phase);
/* Accounts for all marks that the device has reached. */
DDP_LIB void ddp__clock_collect(ddp_ctx *d);
DDP_LIB ddp_status ddp__clock_memory(ddp_ctx *d, ddp_error *err); /* call it when the layers are known */
DDP_LIB int ddp__clock_spans_of_step(const ddp_ctx *d);           /* upper bound */
DDP_LIB void ddp__clock_start(ddp_ctx *d);                        /* start of the first step */
DDP_LIB int ddp__clock_room(const ddp_ctx *d);                    /* capacity: moments that may be pending */
/* Records a span of time of a layer, or of DDP_NO_LAYER. It counts as compute unless it is a wait. */
DDP_LIB void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end);
/* Records a wait that has no moments, such as a wait for a server of this rank. */
DDP_LIB void ddp__clock_wait(ddp_ctx *d, double begin, double end);
DDP_LIB double ddp__clock_waited(const ddp_ctx *d);   /* waiting time in this step so far, in seconds */
DDP_LIB double ddp__clock_computed(const ddp_ctx *d); /* compute time since the last take, in seconds */
DDP_LIB double ddp__clock_take_computed(ddp_ctx *d);  /* returns the compute time and resets it to 0 */
DDP_LIB const ddp__timer *ddp__clock_timer(const ddp_ctx *d);
DDP_LIB int ddp__clock_outside(const ddp_ctx *d); /* no layer hook has run since the last step ended */
/* Spans are numbered. Returns the oldest one in the ring buffer, and one past the newest. */
DDP_LIB long ddp__clock_oldest(const ddp_ctx *d);
DDP_LIB long ddp__clock_newest(const ddp_ctx *d);
DDP_LIB const ddp_span *ddp__clock_span(const ddp_ctx *d, long number);
/* Returns 1 and the number, end time and waiting time of the next completed step that is not accounted for,
 * or 0 if there is no such step. */
DDP_LIB int ddp__clock_next_step(ddp_ctx *d, long *step, double *at, double *wait_s);
