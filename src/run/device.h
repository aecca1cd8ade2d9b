/* What a context does through its backend, and what it does here where it has none. */
#ifndef DDP_RUN_DEVICE_H
#define DDP_RUN_DEVICE_H

#include "run/context.h"

/* Opens the backend of the configuration, if it names one: before the first message. */
DDP_LIB ddp_status ddp__device_open(ddp_ctx *d, ddp_error *err);
/* When the layers are known: the stager, or the devices' own network, and the times. Collective. */
DDP_LIB ddp_status ddp__device_start(ddp_ctx *d, ddp_error *err);
/* stop: before the engine ends; close: behind all else. */
DDP_LIB void       ddp__device_stop(ddp_ctx *d);
DDP_LIB void       ddp__device_close(ddp_ctx *d);
/* First failure of the device, its stager or its network, without waiting. */
DDP_LIB ddp_status ddp__device_check(ddp_ctx *d, ddp_error *err);
/* Waits for all that was queued on the device; its times are then known. */
DDP_LIB ddp_status ddp__device_wait(ddp_ctx *d, ddp_error *err);

/* ---- from device to device (nccl.c) ----
 *
 * Tickets of such messages are below -1. slots: how many may be under way. */
DDP_LIB ddp_status ddp__nccl_open(ddp_ctx *d, int slots, ddp_error *err);
/* stop: before the stager does; close: behind it. */
DDP_LIB void       ddp__nccl_stop(ddp_ctx *d);
DDP_LIB void       ddp__nccl_close(ddp_ctx *d);
/* Whether a message over a layer's memory goes this way. */
DDP_LIB int        ddp__nccl_takes(const ddp_ctx *d, const ddp_message *m);
DDP_LIB ddp_status ddp__nccl_post(ddp_ctx *d, const ddp_message *m, long *ticket,
                                    ddp_error *err);
/* The device's work that is queued from now on waits until the message is done. */
DDP_LIB ddp_status ddp__nccl_hold(ddp_ctx *d, long ticket, ddp_error *err);
/* One such message, waited for; and DDP__PROBE_FLOATS zeros of the device to make one of. */
DDP_LIB ddp_status ddp__nccl_run(ddp_ctx *d, const ddp_message *m, ddp_error *err);
DDP_LIB float     *ddp__nccl_zeros(const ddp_ctx *d);
/* operations, bytes that were averaged (no headers are known), and the algorithm. */
DDP_LIB void       ddp__nccl_stats(const ddp_ctx *d, ddp_link_stats *out);

/* ---- times (device_clock.c) ----
 *
 * Hooks return long before the device has done what was queued, so its times are marks in its own
 * order, read when they have come: then the same accounts are made as of a CPU's hooks. */
typedef enum ddp__moment_kind {
    DDP__M_ENTER,  /* of a hook: what phase it opens */
    DDP__M_LEAVE,  /* of a hook: what phase runs from here on */
    DDP__M_HOLD,   /* a wait for a message begins */
    DDP__M_HELD,
    DDP__M_UPDATE, /* an update begins */
    DDP__M_UPDATED,
    DDP__M_STEP    /* a step is over */
} ddp__moment_kind;

DDP_LIB ddp_status ddp__clock_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void       ddp__clock_free(ddp_ctx *d);
/* Without a device the time is now. */
DDP_LIB void ddp__clock_note(ddp_ctx *d, ddp__moment_kind kind, int layer, ddp__phase phase);
/* Makes the accounts of what the device has done by now. */
DDP_LIB void ddp__clock_collect(ddp_ctx *d);

#endif /* DDP_RUN_DEVICE_H */
