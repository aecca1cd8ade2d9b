/* Declares the table of a device transport. src/device fills it if the layers are on a device. */
#pragma once

#include "context/context.h"

/* All functions are called on the context's thread. Tickets belong to the transport.
 *   post        posts a message whose values are in the memory of layers (there) or in host memory
 *   run         posts a message in the memory of layers, and waits until it is done
 *   hold        later work on the layers waits until the message is done. The caller does not wait if
 *               possible.
 *   hold_input  waits until the message's input may change
 *   wait        waits until the message is done
 *   is_done     returns 1 if wait would return at once
 *   flush       waits until the engine has all messages so far, in order
 *   divergence  returns ddp_message.divergence of the last completed message that named `of` */
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
