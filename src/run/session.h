/* The calls of a training loop: open a context, register its layers, hooks in every step, close.
 * The library decides when a layer is updated and what is sent when. */
#ifndef DDP_RUN_SESSION_H
#define DDP_RUN_SESSION_H

#include "base/status.h"

typedef struct ddp_ctx       ddp_ctx;
typedef struct ddp_config    ddp_config;    /* run/config.h */
typedef struct ddp_layer     ddp_layer;     /* graph/layer.h */
typedef struct ddp_optimizer ddp_optimizer; /* nn/optimizer.h */

/* ddp_open - joins the world that cfg (NULL = all zero) describes; blocks until all ranks are
 * there. NULL on failure, then *err (may be NULL) says why. One context belongs to one thread;
 * several contexts in one process are independent. ddp_close frees it (NULL is fine). */
DDP_API ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err);
DDP_API void     ddp_close(ddp_ctx *d);

/* ddp_launch - runs fn once per rank: cfg->world threads (DDP_THREADS) or processes (DDP_TCP, on a free loopback port),
 * or once here when a launcher already made the ranks or world <= 1. fn gets an open context, which ddp_launch closes;
 * it returns 0 or a ddp_status. With processes the parent only supervises: nothing that fn stores is seen by it.
 * Returns DDP_OK when every rank did (with min_world: when so many did and the others were killed or lost), else the
 * first failure with its sentence in *err. */
DDP_API int ddp_launch(const ddp_config *cfg, int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err);

/* ddp_add_layer - registers the next layer, in forward order, the same on every rank. Layers are
 * numbered from 0. ddp_set_optimizer - registers the update rule (copied; default ddp_sgd(0.01,
 * 0)). Called after the layers it also starts the session: layer lists are compared and every rank
 * takes rank 0's parameters; otherwise the first hook does. Collective. */
DDP_API int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer);
DDP_API int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o);

/* ddp_same - a number that has to be the same on all ranks, such as the length of the data: compared
 * with the layer list when the session starts. At most DDP_SAME. */
enum { DDP_SAME = 8 };
DDP_API int ddp_same(ddp_ctx *d, const char *name, int64_t value);

/* What the program knows of its step; zero fields are ignored. */
typedef struct ddp_step_info {
    double loss;
    long   samples; /* local samples of the step */
    double epoch;
    float  lr;      /* > 0: learning rate of this step's updates that are still to come */
} ddp_step_info;

/* The hooks of a step. Each returns 0 or the context's first error; after a failure every call
 * returns it and does nothing.
 *   ddp_forward_begin   before layer is used: waits until its parameters are whole. Optional, but
 *                       once used for a layer, used in every step
 *   ddp_backward_begin  optional: timing
 *   ddp_backward_end    the gradient of layer is complete (for this micro-batch). From here until
 *                       ddp_forward_begin(layer), or ddp_step_end where that hook is not used,
 *                       its parameters and gradients are the library's. Gradients come back zeroed
 *   ddp_report          optional, before ddp_step_end
 *   ddp_step_end        every layer must have had its ddp_backward_end */
DDP_API int ddp_forward_begin(ddp_ctx *d, int layer);
DDP_API int ddp_backward_begin(ddp_ctx *d, int layer);
DDP_API int ddp_backward_end(ddp_ctx *d, int layer);
DDP_API int ddp_report(ddp_ctx *d, const ddp_step_info *info);
DDP_API int ddp_step_end(ddp_ctx *d);

/* ddp_wait - finishes what is in flight and averages nothing more: parameters can be read.
 * ddp_sync_all - finishes and averages: every rank leaves with equal parameters. Collective.
 * ddp_abort - fails everything in flight on all ranks with this sentence: a call that waits there, or
 * begins to wait, returns within a second. Any thread. */
DDP_API int  ddp_wait(ddp_ctx *d);
DDP_API int  ddp_sync_all(ddp_ctx *d);
DDP_API void ddp_abort(ddp_ctx *d, const char *why);

/* Reading the context. ddp_last_error is never NULL; code DDP_OK means none. ddp_taken: so many
 * micro-batches all workers together have trained on since the first step, also those before a
 * checkpoint was loaded, on whatever world. Divided by ddp_world and rounded down it is the number
 * of the next one of each worker. ddp_set_lr: the learning rate of the updates to come. */
DDP_API int  ddp_rank(const ddp_ctx *d);
DDP_API int  ddp_world(const ddp_ctx *d);
DDP_API long ddp_step(const ddp_ctx *d);
DDP_API int64_t ddp_taken(const ddp_ctx *d);
DDP_API void ddp_set_lr(ddp_ctx *d, float lr);
DDP_API const ddp_error *ddp_last_error(const ddp_ctx *d);

#endif /* DDP_RUN_SESSION_H */
