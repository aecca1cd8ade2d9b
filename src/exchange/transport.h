/* The table of a device transport. src/device fills it if the layers are on a device. */
#pragma once

#include "context/context.h"

/* All functions are called on the context's thread. Tickets are the transport's own.
 *   post     a message, whose values are in the memory of layers (there) or here
 *   run      the same of a message in the memory of layers, and the caller waits until it is done
 *   hold     later work on the layers waits until the message is done, without waiting here if possible
 *   hold_input  the caller waits until the message's input may change
 *   wait     the caller waits until the message is done
 *   is_done  1: wait would not wait
 *   flush    the caller waits until the engine has all messages so far, in order
 *   divergence  ddp_message.divergence, of the last message that named `of` and is done */
typedef struct ddp__transport {
    ddp_status (*post)(ddp_ctx *d, const ddp_message *m, int there, long *ticket, ddp_error *err);
    ddp_status (*run)(ddp_ctx *d, const ddp_message *m, ddp_error *err);
    ddp_status (*hold)(ddp_ctx *d, long ticket, ddp_error *err);
    ddp_status (*hold_input)(ddp_ctx *d, long ticket, ddp_error *err);
    ddp_status (*wait)(ddp_ctx *d, long ticket, ddp_error *err);
    int (*is_done)(ddp_ctx *d, long ticket);
    ddp_status (*flush)(ddp_ctx *d, ddp_error *err);
    double (*divergence)(ddp_ctx *d, const double *of);
} ddp__transport;
