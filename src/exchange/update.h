/* Arithmetic on the memory of layers, and optimizer updates. */
#pragma once

#include "context/context.h"

/* Walks over two lists of arrays at the same time (update.c). next returns the number of values that are
 * contiguous in both lists, 0 at the end. */
typedef struct ddp__walk {
    const ddp_piece *from, *to;
    int from_count, to_count;
    size_t from_at, to_at;
} ddp__walk;
DDP_LIB ddp__walk ddp__walk_of(const ddp_piece *from, int from_count, const ddp_piece *to, int to_count);
DDP_LIB size_t ddp__walk_next(ddp__walk *w, float **from, float **to);
DDP_LIB void ddp__axpy(ddp_ctx *d, float *y, const float *x, size_t n, float a);
/* Handles a message with one worker: only applies its scale. */
DDP_LIB ddp_status ddp__post_alone(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err);
DDP_LIB void ddp__scale_there(ddp_ctx *d, float *x, size_t n, float a);
DDP_LIB void ddp__update_layer(ddp_ctx *d, int layer, const float *from, float rate);
/* floats_none marks values as the gradient of a skipped layer (ddp_no_gradient). gradients_none marks a
 * layer's gradients. gradients_some changes a computed gradient that is equal to this mark. */
DDP_LIB void ddp__floats_none(float *x, size_t n);
DDP_LIB void ddp__gradients_none(ddp_ctx *d, const ddp__unit *u);
DDP_LIB void ddp__gradients_some(ddp_ctx *d, const ddp__unit *u);
/* Updates memory outside of the layer: ddp_update_apart, or, if `there`, ddp_update_copy. */
DDP_LIB void ddp__update_memory(ddp_ctx *d, int layer, float *params, const float *grads, float *state,
                                long step, float rate, int there);
DDP_LIB ddp_status ddp__clip_gradients(ddp_ctx *d, ddp_error *err);
/* Checks a layer's gradient for NaN and infinity before it is sent to other ranks. Does nothing on a device,
 * whose gradients cannot be read without waiting. */
DDP_LIB ddp_status ddp__finite_gradient(ddp_ctx *d, int layer, ddp_error *err);
