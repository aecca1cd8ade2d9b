/* Sends device layers through pinned host memory. */
#pragma once

#include "context/context.h"

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
