/* Sends the layers of a device through pinned host memory. */
#pragma once

#include "context/context.h"

/* ---- through the host (stager.c) ----
 *
 * The context's thread only queues: it records an event after the device work so far and passes the message
 * to the stager. The stager's first thread waits for the event, copies the arrays to pinned memory, and
 * submits them to the engine, first come, first served, so that all ranks submit in the same order. Its
 * second thread takes the messages that the engine has completed, in any order, copies the results back and
 * sets the flag of the message. Later device work waits for that flag (hold). So no hook waits for the
 * network or the device. */
typedef struct ddp__stager ddp__stager;

/* Location of a message's pieces, and the event that makes them final. */
typedef enum ddp__stager_from {
    DDP__HERE,           /* in host memory, final now */
    DDP__BEHIND_WORK,    /* on the device, final when its work so far is done */
    DDP__BEHIND_AVERAGES /* on the device, final when its device-to-device averages so far are done */
} ddp__stager_from;

/* Opens a stager. room: messages that may be in flight. With more, submit waits. bytes: size of the longest
 * message. total: bytes of all messages that may be in flight at once. They are pinned up to a limit. The
 * caller frees *out, also after an error. */
DDP_LIB ddp_status ddp__stager_open(ddp_ctx *d, int room, size_t bytes, size_t total, ddp__stager **out,
                                    ddp_error *err);
/* stop: drops the messages in flight. No work waits for a flag any longer. free: call it after the engine has
 * ended, because the engine may use the pinned memory until then. NULL is allowed. */
DDP_LIB void ddp__stager_stop(ddp__stager *s);
DDP_LIB void ddp__stager_free(ddp__stager *s);

/* Submits a message, as ddp__engine_submit does. The lists of m are copied. Messages in blocks are rounded on
 * the way, in parallel with the device. Adding messages are not supported. Returns the first error of the
 * stager or the engine. */
DDP_LIB ddp_status ddp__stager_submit(ddp__stager *s, const ddp_message *m, ddp__stager_from from,
                                      long *ticket, ddp_error *err);
/* Device work that is queued from now on waits until the message is done. */
DDP_LIB void ddp__stager_hold(ddp__stager *s, long ticket);
/* Returns the flag that is set when a message is done, for callers that wait for it themselves. */
DDP_LIB void ddp__stager_flag(const ddp__stager *s, long ticket, int *slot, unsigned *turn);
DDP_LIB int ddp__stager_is_done(ddp__stager *s, long ticket);
/* wait: waits until the message is done, or (sent) was copied from the device. flush: waits until the engine
 * has all messages, in order. */
DDP_LIB ddp_status ddp__stager_wait(ddp__stager *s, long ticket, int sent, ddp_error *err);
DDP_LIB ddp_status ddp__stager_flush(ddp__stager *s, ddp_error *err);
DDP_LIB ddp_status ddp__stager_error(ddp__stager *s, ddp_error *err);
/* Returns ddp_message.divergence of the last completed message that named `of`. */
DDP_LIB double ddp__stager_divergence(ddp__stager *s, const double *of);
