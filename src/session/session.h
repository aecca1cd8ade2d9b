/* The calls of a training loop: open a context, register its layers, hooks in every step, close.
 * The library decides when a layer is updated and what is sent when. */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config;       /* config/config.h */
typedef struct ddp_layer ddp_layer;         /* graph/layer.h */
typedef struct ddp_optimizer ddp_optimizer; /* nn/optimizer.h */

/* ddp_open - joins the world that cfg (NULL = all zero) describes; blocks until all ranks are
 * there. NULL on failure, then *err (may be NULL) says why. One thread at a time may call a context;
 * several contexts in one process are independent. ddp_close frees it (NULL is fine). In a process forked
 * from the one that opened the context, ddp_close only closes the descriptors, and every other call that can
 * fail returns DDP_USAGE. */
DDP_API ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err);
DDP_API void ddp_close(ddp_ctx *d);

/* ddp_add_layer - registers the next layer, in forward order, the same on every rank. Layers are
 * numbered from 0. ddp_set_optimizer - registers the update rule (copied; default ddp_sgd(0.01,
 * 0)). Called after the layers it also starts the session: layer lists are compared and every rank
 * takes rank 0's parameters; otherwise the first hook does. Collective. With ddp_config.elastic.join it
 * enters the run instead: ddp_step is then the run's, and no collective may follow before the first hook of a
 * layer. */
DDP_API int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer);
DDP_API int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o);

/* What the program knows of its step; zero fields are ignored. */
typedef struct ddp_step_info {
    double loss;
    long samples; /* local samples of the step */
    double epoch;
    float lr; /* > 0: learning rate of this step's updates that are still to come */
} ddp_step_info;

/* The hooks of a step. Each returns 0 or the context's first error; after a failure every call
 * returns it and does nothing.
 *   ddp_forward_begin   before layer is used: waits until its parameters are whole. Optional, but
 *                       once used for a layer, used in every step
 *   ddp_backward_begin  optional: timing
 *   ddp_backward_end    the gradient of layer is complete (for this micro-batch). From here until
 *                       ddp_forward_begin(layer), or ddp_step_end where that hook is not used,
 *                       its parameters and gradients are the library's. Gradients come back zeroed
 *   ddp_skip            in place of ddp_backward_end, where this micro-batch had no gradient of layer (an
 *                       unused branch, a layer frozen in it). It counts as zero in averages. A layer that all
 *                       ranks skip in a whole step is not updated in that step; under strategies that average
 *                       parameters or parameter deltas, a rank that skips it does not update it. One call
 *                       in a step, without ddp_backward_end, is for all its micro-batches
 *   ddp_left_out        1: the last update of the layer was left out, as no rank had a gradient, or as this
 *                       rank skipped the layer under a strategy that averages parameters or parameter deltas.
 *                       A program with its own update leaves the layer as it is then. Not on a device
 *   ddp_report          optional, before ddp_step_end
 *   ddp_step_end        every layer must have had its ddp_backward_end, or ddp_skip */
DDP_API int ddp_forward_begin(ddp_ctx *d, int layer);
DDP_API int ddp_backward_begin(ddp_ctx *d, int layer);
DDP_API int ddp_backward_end(ddp_ctx *d, int layer);
DDP_API int ddp_skip(ddp_ctx *d, int layer);
DDP_API int ddp_left_out(const ddp_ctx *d, int layer);
DDP_API int ddp_report(ddp_ctx *d, const ddp_step_info *info);
DDP_API int ddp_step_end(ddp_ctx *d);

/* ddp_launch - runs fn once per rank: cfg->world threads (DDP_THREADS) or processes (DDP_TCP, on a free
 * loopback port), or once here when a launcher already made the ranks, whose number counts instead of
 * cfg->world, or world <= 1. fn gets an open context, which ddp_launch closes; it returns 0 or a ddp_status.
 * With processes the parent only supervises: nothing that fn stores is seen by it.
 * Returns DDP_OK when every rank did (with min_world: when so many did and the others were killed or lost),
 * else the first failure with its sentence in *err. */
DDP_API int ddp_launch(const ddp_config *cfg, int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err);

/* ddp_add_block - adds an array to the layer of that name, in any order of calls; the first mention of a
 * name is ddp_add_layer's: layers are numbered by it, in forward order. grads NULL: frozen.
 * An array that is given twice, by two layers, is a tied weight, and the first one's, which is the last in
 * the backward; arrays that overlap otherwise are an error when the session starts. */
DDP_API int ddp_add_block(ddp_ctx *d, const char *layer, float *params, float *grads, size_t count);

/* ddp_add_stack - adds one tensor of all layers of a model, whose values are in one array, layer after layer,
 * as in llm.c.
 *
 *   name    layer i is called NAMEi: name "h" gives "h0", "h1", ...
 *   params  [copies * count] the tensor; block i, count values from params + i * count, becomes a block of
 *           layer i
 *   grads   [copies * count] its gradients, or NULL: frozen
 *   copies  number of layers, at least 1
 *   count   values in one layer, at least 1
 *
 * Calls with the same name collect the tensors of each layer: the result is that of ddp_add_block(d, NAMEi,
 * params + i * count, grads + i * count, count) for i = 0, 1, ... A model that allocates its gradients during
 * the first backward pass calls it there, before the first hook. The arrays are borrowed until ddp_close; the
 * name is copied. Errors: DDP_ARG for a missing name or array, for copies or count below 1, and for a name
 * above 200 characters; DDP_USAGE after ddp_set_optimizer or the first hook. */
DDP_API int ddp_add_stack(ddp_ctx *d, const char *name, float *params, float *grads, int copies,
                          size_t count);

/* ddp_layer_named - the number of a layer, or -1 if no layer has that name. */
DDP_API int ddp_layer_named(const ddp_ctx *d, const char *name);

/* ddp_same - registers a number that must be the same on all ranks, such as the length of the data or the
 * number of steps. The ranks compare it with the layer list when the session starts; a joining worker with
 * another one is rejected, and the run continues. At most DDP_SAME names of up to 31 characters. */
enum { DDP_SAME = 32 };
DDP_API int ddp_same(ddp_ctx *d, const char *name, int64_t value);

/* ddp_usually_same - registers a number that usually is the same on all ranks, such as the batch size. If the
 * ranks have different numbers when the session starts, the run continues: the lowest live rank logs one
 * warning, which ddp_unlike returns on every rank ("": no difference). At most DDP_SAME names of up to 31
 * characters. */
DDP_API int ddp_usually_same(ddp_ctx *d, const char *name, int64_t value);
DDP_API const char *ddp_unlike(const ddp_ctx *d);

/* A state of the program, as bytes of any number: of an optimizer of its own (ddp_own_update), a
 * learning-rate schedule, a sampler. save and load return 0, or another number on failure; then they may have
 * written the reason into err->msg. That ends the run with an error that names the state. They call no
 * function of the context but those that only read it. */
typedef struct ddp_program_state {
    const char *name; /* such as "optimizer": 1 to 31 printable ASCII characters, no comma, quote or
                         backslash; copied */
    /* *bytes and *size become the state of this moment. The library reads the bytes until it calls
     * release. */
    int (*save)(void *user, void **bytes, size_t *size, ddp_error *err);
    int (*load)(void *user, const void *bytes, size_t size, ddp_error *err); /* the state becomes these
                                                                                 bytes */
    void (*release)(void *user, void *bytes); /* after each save; NULL: nothing is to be released */
    void *user;                               /* borrowed until ddp_close */
} ddp_program_state;

/* ddp_add_state - registers a state of the program before ddp_set_optimizer: the same names in the same order
 * on every rank, at most DDP_PROGRAM_STATES. save and load NULL: the program has no state of that name, but
 * workers may join.
 *   ddp_checkpoint_save calls save on every rank, and stores each rank's bytes. ddp_checkpoint_load calls
 *   load with them;
 *     rank r of more ranks than the checkpoint has gets those of the rank of the same number, counted around.
 *     If a checkpoint lacks a state, a line in the log says so, and load is not called. Another cut of a
 *     pipeline (ddp_pipe_open) is an error, because the states of its stages do not follow their layers.
 *     ddp_pipe_resume calls neither function: a program whose state a lost step has changed restores it
 *     itself.
 *   When a worker joins, save is called on the lowest live member, in its first hook of a step, and load on
 *   the joining
 *     worker, in its ddp_set_optimizer: the bytes are of the very step in which it enters. All members wait
 *     until they have arrived. If load fails there, or memory is short, the joining worker fails alone. A
 *     worker can join a run with ddp_own_update only if a state is registered.
 * Both are called on the thread that called the library. Errors: DDP_ARG, DDP_USAGE after ddp_set_optimizer;
 * ddp_set_optimizer returns DDP_MISMATCH where ranks have different names. */
enum { DDP_PROGRAM_STATES = 8 };
DDP_API int ddp_add_state(ddp_ctx *d, const ddp_program_state *state);

/* ddp_wait - finishes what is in flight and averages nothing more: parameters can be read.
 * ddp_sync_all - finishes and averages: every rank leaves with equal parameters. Collective.
 * ddp_share - every rank gets the parameters and buffers of rank 0 (of the lowest live rank), and the
 * strategy begins from
 *   them: a program that has replaced them, for example from a file, calls it before the next step. The outer
 *   momentum and what rounding has cut off become 0; the optimizer's state stays. Collective, between two
 *   steps. DDP_UNSUPPORTED with servers, which hold the parameters. */
DDP_API int ddp_wait(ddp_ctx *d);
DDP_API int ddp_sync_all(ddp_ctx *d);
DDP_API int ddp_share(ddp_ctx *d);

/* ddp_serve - on the last ddp_config.server.count ranks, in place of the steps: after the layers are added
 * and the optimizer is set, serves until all other ranks have closed their contexts; a checkpoint that they
 * save or load has this rank's share too (load it before, as they do). 0 or the context's first error.
 * ddp_servers (context/reading.h) is their number. */
DDP_API int ddp_serve(ddp_ctx *d);
