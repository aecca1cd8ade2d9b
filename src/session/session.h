/* Declares the calls of a training loop: open a context, register its layers, call a hook at each point of a
 * step, close. The library decides when it updates each layer and sends each message. */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config;       /* config/config.h */
typedef struct ddp_layer ddp_layer;         /* graph/layer.h */
typedef struct ddp_optimizer ddp_optimizer; /* nn/optimizer.h */

/* ddp_open - opens a context in the world that cfg describes (NULL: all settings 0). Blocks until all ranks
 * are connected. Returns NULL on failure and stores the reason in *err (may be NULL). Only one thread at a
 * time may call functions of a context. Several contexts in one process are independent. */
DDP_API ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err);

/* ddp_close - closes and frees the context; NULL is allowed. In a process that was forked from the one that
 * opened the context, ddp_close only closes the descriptors, and every other call that can fail returns
 * DDP_USAGE. */
DDP_API void ddp_close(ddp_ctx *d);

/* ddp_add_layer - registers the next layer. Layers are registered in forward order, in the same order on
 * every rank, and are numbered from 0. Returns 0 or the context's first error. */
DDP_API int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer);

/* ddp_set_optimizer - registers the update rule (copied; default: ddp_sgd(0.01, 0)). If layers are registered
 * already, the call also starts the session: the ranks compare their layer lists, and every rank takes the
 * parameters of rank 0. Otherwise the first hook starts it. Collective. With ddp_config.elastic.join the call
 * enters the running run instead: ddp_step is then the run's step, and no collective may follow before the
 * first hook of a layer. Returns 0 or the context's first error. */
DDP_API int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o);

/* Values that the program reports about its step; a field of 0 is ignored. */
typedef struct ddp_step_info {
    double loss;
    long samples; /* samples of this rank in the step */
    double epoch;
    float lr; /* > 0: learning rate of the remaining updates from this step on */
} ddp_step_info;

/* The hooks of a step. Each returns 0 or the context's first error. After a failure every call returns that
 * error and does nothing else.
 *   ddp_forward_begin   call it before the layer is used. Waits until the layer's parameters are complete.
 *                       Optional, but if it is used for a layer, it must be used in every step
 *   ddp_backward_begin  optional; improves the measured times
 *   ddp_backward_end    the layer's gradient is complete (for this micro-batch). From here until
 *                       ddp_forward_begin(layer), or until ddp_step_end if that hook is not used, the library
 *                       owns the layer's parameters and gradients. It returns the gradients zeroed
 *   ddp_skip            replaces ddp_backward_end if this micro-batch had no gradient of the layer, for
 *                       example in an unused branch or a layer that is frozen in this step. The gradient
 *                       counts as zero in averages. If all ranks skip a layer in a whole step, it is not
 *                       updated in that step. Under strategies that average parameters or parameter deltas, a
 *                       rank that skips a layer does not update it. One call in a step, without
 *                       ddp_backward_end, applies to all micro-batches
 *   ddp_left_out        returns 1 if the last update of the layer was omitted, because no rank had a
 *                       gradient, or because this rank skipped the layer under a strategy that averages
 *                       parameters or parameter deltas. A program with its own update must then leave the
 *                       layer unchanged. Not available on a device
 *   ddp_report          optional, before ddp_step_end
 *   ddp_step_end        ends the step. Every layer must have had its ddp_backward_end or ddp_skip */
DDP_API int ddp_forward_begin(ddp_ctx *d, int layer);
DDP_API int ddp_backward_begin(ddp_ctx *d, int layer);
DDP_API int ddp_backward_end(ddp_ctx *d, int layer);
DDP_API int ddp_skip(ddp_ctx *d, int layer);
DDP_API int ddp_left_out(const ddp_ctx *d, int layer);
DDP_API int ddp_report(ddp_ctx *d, const ddp_step_info *info);
DDP_API int ddp_step_end(ddp_ctx *d);

/* ddp_launch - runs fn once per rank: in cfg->world threads (DDP_THREADS) or processes (DDP_TCP, on a free
 * loopback port). Runs it once, in this process, if world <= 1 or if a launcher has started the ranks; the
 * launcher's number of ranks then replaces cfg->world. fn receives an open context, which ddp_launch closes,
 * and returns 0 or a ddp_status. With processes the parent only supervises and sees nothing that fn stores.
 * Returns DDP_OK if every rank did. With min_world it also returns DDP_OK if at least min_world ranks did and
 * the others were killed or lost. Otherwise returns the first failure, with its message in *err. */
DDP_API int ddp_launch(const ddp_config *cfg, int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err);

/* ddp_add_block - adds an array of count floats to the layer of that name, in any order of calls. The first
 * call with a new name registers the layer, as ddp_add_layer does: layers are numbered in the order of their
 * first calls, which must be the forward order. grads NULL: the array is frozen. An array that two layers
 * register is a tied weight. It belongs to the first of them, whose backward pass is the last. Other overlaps
 * of arrays are an error when the session starts. Returns 0 or the context's first error. */
DDP_API int ddp_add_block(ddp_ctx *d, const char *layer, float *params, float *grads, size_t count);

/* ddp_add_stack - adds one tensor of all layers of a model whose values are in one array, layer after layer,
 * as in llm.c.
 *
 *   name    layer i gets the name NAMEi: "h" gives "h0", "h1", ...
 *   params  [copies * count] the tensor; block i, count values from params + i * count, becomes a block of
 *           layer i
 *   grads   [copies * count] its gradients, or NULL: frozen
 *   copies  number of layers, at least 1
 *   count   values in one layer, at least 1
 *
 * Calls with the same name add more tensors to the same layers: the result is that of ddp_add_block(d, NAMEi,
 * params + i * count, grads + i * count, count) for i = 0, 1, ... A model that allocates its gradients during
 * the first backward pass calls this function there, before the first hook. The arrays are borrowed until
 * ddp_close; the name is copied. Errors: DDP_ARG for a missing name or array, for copies or count below 1,
 * and for a name above 200 characters; DDP_USAGE after ddp_set_optimizer or the first hook. */
DDP_API int ddp_add_stack(ddp_ctx *d, const char *name, float *params, float *grads, int copies,
                          size_t count);

/* ddp_layer_named - returns the number of the layer with that name, or -1 if there is none. */
DDP_API int ddp_layer_named(const ddp_ctx *d, const char *name);

/* ddp_same - registers a number that must be equal on all ranks, such as the length of the data or the number
 * of steps. The ranks compare it with the layer list when the session starts. A joining worker with another
 * value is rejected, and the run continues. At most DDP_SAME names of up to 31 characters. Returns 0 or the
 * context's first error. */
enum { DDP_SAME = 32 };
DDP_API int ddp_same(ddp_ctx *d, const char *name, int64_t value);

/* ddp_usually_same - registers a number that is usually equal on all ranks, such as the batch size. If the
 * values differ when the session starts, the run continues, and the lowest live rank logs one warning. At
 * most DDP_SAME names of up to 31 characters. Returns 0 or the context's first error. */
DDP_API int ddp_usually_same(ddp_ctx *d, const char *name, int64_t value);

/* ddp_unlike - returns that warning, on every rank; "": no difference. */
DDP_API const char *ddp_unlike(const ddp_ctx *d);

/* A state of the program, as any number of bytes: for example that of its own optimizer (ddp_own_update), of
 * a learning-rate schedule or of a sampler. save and load return 0, or another number on failure, and may
 * then store the reason in err->msg. A failure ends the run with an error that names the state. save and load
 * may only call functions that read the context. */
typedef struct ddp_program_state {
    const char *name; /* for example "optimizer": 1 to 31 printable ASCII characters, no comma, quote or
                         backslash; copied */
    /* Sets *bytes and *size to the current state. The library reads the bytes until it calls release. */
    int (*save)(void *user, void **bytes, size_t *size, ddp_error *err);
    int (*load)(void *user, const void *bytes, size_t size, ddp_error *err); /* restores the state from these
                                                                                bytes */
    void (*release)(void *user, void *bytes); /* called after each save; NULL: nothing to release */
    void *user;                               /* borrowed until ddp_close */
} ddp_program_state;

/* ddp_add_state - registers a state of the program. Call it before ddp_set_optimizer, with the same names in
 * the same order on every rank, at most DDP_PROGRAM_STATES times. If save and load are both NULL, the program
 * has no state of that name, but workers may join.
 *   - ddp_checkpoint_save calls save on every rank and stores the bytes of each rank. ddp_checkpoint_load
 *     calls load with them. If there are more ranks than in the checkpoint, rank r gets the bytes of rank r
 *     modulo the checkpoint's world. If the checkpoint lacks a state, the library logs a line and does not
 *     call load. Another cut of a pipeline (ddp_pipe_open) is an error, because the library cannot divide
 *     these states by layer. ddp_pipe_resume calls neither function: a program whose state changed in a lost
 *     step restores it itself.
 *   - When a worker joins, the lowest live member calls save in its first hook of a step, and the joining
 *     worker calls load in its ddp_set_optimizer. The bytes belong to the step in which the worker enters.
 *     All members wait until the bytes have arrived. If load fails, or memory is short, only the joining
 *     worker fails. A worker can join a run with ddp_own_update only if a state is registered.
 * save and load run on the thread that called the library. Errors: DDP_ARG, DDP_USAGE after
 * ddp_set_optimizer. ddp_set_optimizer returns DDP_MISMATCH if the ranks have different names. */
enum { DDP_PROGRAM_STATES = 8 };
DDP_API int ddp_add_state(ddp_ctx *d, const ddp_program_state *state);

/* ddp_wait - completes all messages in flight, without further averages, so that the parameters can be read.
 * Returns 0 or the context's first error. */
DDP_API int ddp_wait(ddp_ctx *d);

/* ddp_sync_all - completes all messages in flight and averages, so that every rank has equal parameters.
 * Collective, between two steps. Returns 0 or the context's first error. */
DDP_API int ddp_sync_all(ddp_ctx *d);

/* ddp_share - copies the parameters and buffers of rank 0 (of the lowest live rank) to every rank, and
 * restarts the strategy from them. A program that has replaced its parameters, for example from a file, calls
 * it before the next step. The outer momentum and the quantisation residuals become 0; the state of the
 * optimizer stays. Collective, between two steps. DDP_UNSUPPORTED with servers, because the servers hold the
 * parameters. Returns 0 or the context's first error. */
DDP_API int ddp_share(ddp_ctx *d);

/* ddp_serve - runs a server, on the last ddp_config.server.count ranks, in place of the steps. Call it after
 * the layers are added and the optimizer is set. It serves until all other ranks have closed their contexts.
 * Checkpoints that the workers save or load include the share of this rank; to load one, call
 * ddp_checkpoint_load before ddp_serve, as the workers do before their first step. Returns 0 or the context's
 * first error. ddp_servers (context/reading.h) returns the number of servers. */
DDP_API int ddp_serve(ddp_ctx *d);
