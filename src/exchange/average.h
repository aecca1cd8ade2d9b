/* The average of a layer, and its block quantisation. */
#pragma once

#include "context/context.h"

/* takes: of the layer's parts, NULL: all. exact: as float32, with what a period leaves out. */
DDP_LIB ddp_status ddp__average_layer(ddp_ctx *d, int layer, const unsigned char *takes, int priority,
                                      int filler, int exact, ddp_error *err);
DDP_LIB ddp_status ddp__average_hold(ddp_ctx *d, int layer, ddp_error *err);
DDP_LIB ddp_status ddp__average_exact(ddp_ctx *d, int layer, ddp_error *err);
/* The pieces that this period's average of a layer takes of a whole list of *count, which becomes their
 * number: the arrays of optimizer state that state_period leaves out are not among them. Valid until the next
 * call for that layer. */
DDP_LIB const ddp_piece *ddp__average_takes(const ddp_ctx *d, int layer, const ddp_piece *list, int *count);
DDP_LIB ddp_status ddp__coded_memory(ddp_ctx *d, ddp_error *err);
/* Of blocks nothing is left to be sent; base: all parameters are equal on all ranks. */
DDP_LIB void ddp__coded_start(ddp_ctx *d, int base);
/* blocks.c. Whether what a message sums is rounded to blocks before it is sent; rounds it, in place, with
 * what was cut off before. The values are in this machine's memory. Any thread. */
DDP_LIB const ddp__coder *ddp__blocks_coder(void);
DDP_LIB int ddp__coded_rounds(const ddp_message *m);
DDP_LIB ddp_status ddp__coded_round(const ddp_ctx *d, const ddp_message *m, ddp_error *err);
/* The same on a device that can: queues it; its blocks go to out, ddp__coded_bytes there. Then, on the
 * stager's threads: m's values here become what `codes`, copied from there, say; and what was cut off of the
 * result goes there. fold: what is kept of both is in the residuals. */
DDP_LIB int ddp__coded_goes_there(const ddp_ctx *d, const ddp_message *m);
DDP_LIB void ddp__coded_there(ddp_ctx *d, const ddp_message *m, void *out);
DDP_LIB size_t ddp__coded_bytes(const ddp_message *m, size_t n);
DDP_LIB ddp_status ddp__coded_read(const ddp_ctx *d, const ddp_message *m, const unsigned char *codes,
                                   ddp_error *err);
DDP_LIB ddp_status ddp__coded_rest(const ddp_ctx *d, const ddp_message *m, size_t n, ddp_error *err);
DDP_LIB void ddp__coded_fold(ddp_ctx *d);
