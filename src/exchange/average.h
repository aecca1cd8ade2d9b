/* Averages a layer, and quantises it in blocks. */
#pragma once

#include "context/context.h"

/* Posts the average of a layer. takes: flags of the layer's parts to average, or NULL for all. exact: as
 * float32, including the arrays that this period would omit. */
DDP_LIB ddp_status ddp__average_layer(ddp_ctx *d, int layer, const unsigned char *takes, int priority,
                                      int filler, int exact, ddp_error *err);
DDP_LIB ddp_status ddp__average_hold(ddp_ctx *d, int layer, ddp_error *err);
DDP_LIB ddp_status ddp__average_exact(ddp_ctx *d, int layer, ddp_error *err);
/* The same for all layers, except those that are equal on all ranks already, which stay as they are. The
 * error is in the context. */
DDP_LIB ddp_status ddp__average_differing(ddp_ctx *d);
/* Returns the pieces of list [*count] that this period's average of the layer transfers, and stores their
 * number in *count. Omits arrays of optimizer state that are not due by state_period. Valid until the next
 * call for that layer. */
DDP_LIB const ddp_piece *ddp__average_takes(const ddp_ctx *d, int layer, const ddp_piece *list, int *count);
DDP_LIB ddp_status ddp__coded_memory(ddp_ctx *d, ddp_error *err);
/* Sets the quantisation residuals to 0. base 1: also stores the parameters, which are equal on all ranks, as
 * the base of the next deltas. */
DDP_LIB void ddp__coded_start(ddp_ctx *d, int base);
/* Rounding on the host (blocks.c). rounds: returns 1 if the values of a message are rounded to blocks before
 * they are sent. round: rounds them in place, with error feedback. The values are in host memory. Any
 * thread. */
DDP_LIB const ddp__coder *ddp__blocks_coder(void);
DDP_LIB int ddp__coded_rounds(const ddp_message *m);
DDP_LIB ddp_status ddp__coded_round(const ddp_ctx *d, const ddp_message *m, ddp_error *err);
/* Rounding on a device that supports it.
 *   goes_there  returns 1 if the device rounds this message
 *   there       queues the rounding; writes the blocks, ddp__coded_bytes of them, to device memory `out`
 *   read        on the stager's threads: sets m's values on the host from `codes`, which were copied from the
 *               device
 *   rest        on the stager's threads: copies the residual of the result to the device
 *   fold        adds the residual of the results to the residual of the inputs */
DDP_LIB int ddp__coded_goes_there(const ddp_ctx *d, const ddp_message *m);
DDP_LIB void ddp__coded_there(ddp_ctx *d, const ddp_message *m, void *out);
DDP_LIB size_t ddp__coded_bytes(const ddp_message *m, size_t n);
DDP_LIB ddp_status ddp__coded_read(const ddp_ctx *d, const ddp_message *m, const unsigned char *codes,
                                   ddp_error *err);
DDP_LIB ddp_status ddp__coded_rest(const ddp_ctx *d, const ddp_message *m, size_t n, ddp_error *err);
DDP_LIB void ddp__coded_fold(ddp_ctx *d);
