/* What a context does through its backend, over the host or from device to device. */
#pragma once

#include "run/context.h"

/* Opens the backend of the configuration, if it names one: before the first message. */
DDP_LIB ddp_status ddp__device_open(ddp_ctx *d, ddp_error *err);
/* When the layers are known: the stager, or the devices' own network, and the times. Collective. */
DDP_LIB ddp_status ddp__device_start(ddp_ctx *d, ddp_error *err);
/* stop: before the engine ends; close: behind all else. */
DDP_LIB void ddp__device_stop(ddp_ctx *d);
DDP_LIB void ddp__device_close(ddp_ctx *d);
/* First failure of the device, its stager or its network, without waiting. */
DDP_LIB ddp_status ddp__device_check(ddp_ctx *d, ddp_error *err);
/* Waits for all that was queued on the device; its times are then known. */
DDP_LIB ddp_status ddp__device_wait(ddp_ctx *d, ddp_error *err);

/* ---- from device to device ---- */

struct ddp__nccl {
    const ddp_sites *site;          /* NULL = one level */
    struct ddp__crossing *crossing; /* [slots] and what each averages */
    int slots;
    int64_t messages, bytes; /* averaged so far; no headers are known */
    double left_s;           /* when a rank was first seen to have left; 0 = none has */
    float *zeros;            /* [DDP__PROBE_FLOATS] on the device, what the link is probed with */
};

/* Whether a message over a layer's memory goes this way. Tickets of such messages are below -1. */
DDP_LIB int ddp__nccl_takes(const ddp_ctx *d, const ddp_message *m);
DDP_LIB ddp_status ddp__nccl_post(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* The device's work that is queued from now on waits until the message is done. */
DDP_LIB ddp_status ddp__nccl_hold(ddp_ctx *d, long ticket, ddp_error *err);

/* ---- over the host (stager.c) ----
 *
 * The context's thread only queues: it records an event behind the work so far and hands the message to the
 * stager, whose first thread waits for the event, copies the arrays into pinned memory and submits them to
 * the engine, first come, first served, so that all ranks submit in one order. Its second thread takes what
 * the engine has done, in whatever order, copies it back and raises the message's flag; the device's later
 * work was told to wait for that flag (hold). So no hook waits for the network, nor for the device. */
typedef struct ddp__stager ddp__stager;

/* Where a message's pieces lie, and what makes them final. */
typedef enum ddp__stager_from {
    DDP__HERE,           /* in this machine's memory, now */
    DDP__BEHIND_WORK,    /* on the device, when its work so far is done */
    DDP__BEHIND_AVERAGES /* on the device, when its averages of devices so far are done */
} ddp__stager_from;

/* room: messages that may be under way, more make submit wait. bytes: the longest message; total: of all that
 * may be under way at once, pinned up to a bound. *out is to be freed also after an error. */
DDP_LIB ddp_status ddp__stager_open(ddp_ctx *d, int room, size_t bytes, size_t total, ddp__stager **out,
                                    ddp_error *err);
/* Drops what is under way: nothing waits for a flag any more. free comes after the engine's end,
 * which may still work in the pinned memory. NULL is fine. */
DDP_LIB void ddp__stager_stop(ddp__stager *s);
DDP_LIB void ddp__stager_free(ddp__stager *s);

/* As ddp__engine_submit, which it comes to; m's lists are copied. What travels in blocks is rounded on the
 * way, beside the device. No adding. Returns the stager's first error, also the engine's. */
DDP_LIB ddp_status ddp__stager_submit(ddp__stager *s, const ddp_message *m, ddp__stager_from from,
                                      long *ticket, ddp_error *err);
/* The device's work that is queued from now on waits until the message is done. */
DDP_LIB void ddp__stager_hold(ddp__stager *s, long ticket);
/* The flag that is raised when a message is done, for who holds by himself. */
DDP_LIB void ddp__stager_flag(const ddp__stager *s, long ticket, int *slot, unsigned *turn);
DDP_LIB int ddp__stager_is_done(ddp__stager *s, long ticket);
/* The caller waits: that message is done, or (sent) was copied from the device; flush: the engine has all, in
 * order. */
DDP_LIB ddp_status ddp__stager_wait(ddp__stager *s, long ticket, int sent, ddp_error *err);
DDP_LIB ddp_status ddp__stager_flush(ddp__stager *s, ddp_error *err);
DDP_LIB ddp_status ddp__stager_error(ddp__stager *s, ddp_error *err);
/* What ddp_message.divergence of the last message that named it, and is done, has become. */
DDP_LIB double ddp__stager_divergence(ddp__stager *s, const double *of);

/* ---- times (account.c) ----
 *
 * Hooks return long before the device has done what was queued, so its times are marks in its own
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
