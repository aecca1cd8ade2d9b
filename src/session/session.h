/* Declares the calls of a training loop: open a context, register its layers, call a hook at each point of a
 * step, close. The library decides when it updates each layer and sends each message. */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config;       /* config/config.h */
typedef struct ddp_layer ddp_layer;         /* graph/layer.h */
typedef struct ddp_optimizer ddp_optimizer; /* nn/optimizer.h */

/* ddp_open - opens a context in the world that cfg describes. Blocks until all ranks are connected, or until
 * timeout.connect_s or timeout.join_s is over.
 *
 *   cfg  settings, read during the call, or NULL for all settings 0
 *   err  receives the error. May be NULL.
 *
 * Returns NULL on failure. The caller frees the context with ddp_close. Several contexts in one process are
 * independent. Collective: all ranks of the world call it. With elastic.join it joins a running world
 * instead.
 *
 * Errors: DDP_ARG for a setting; DDP_USAGE for transport threads without ddp_launch, or after MPI_Finalize;
 * DDP_UNSUPPORTED for settings that cannot be combined or that this build lacks; DDP_IO and DDP_FORMAT for a
 * file of the settings; DDP_NET, DDP_TIMEOUT, DDP_PEER_LOST and DDP_MISMATCH while connecting; DDP_ABORTED by
 * ddp_config.cancel; DDP_MEMORY; DDP_FAILED for threads, TLS keys and devices. */
DDP_API ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err);

/* ddp_close - closes and frees the context, after messages in flight have ended or failed. NULL is allowed.
 * In a process that was forked from the one that opened the context, it only closes the descriptors. Every
 * other call that can fail returns DDP_USAGE there. Call it when no other thread uses the context. Local. */
DDP_API void ddp_close(ddp_ctx *d);

/* ddp_add_layer - registers the next layer. Register layers in forward order, in the same order on every
 * rank. They are numbered from 0. *layer is copied. Its arrays are borrowed until ddp_close. Local. Returns 0
 * or the context's first error. Errors: DDP_ARG for NULL, or for a list without its array; DDP_USAGE after
 * the session has started; DDP_MEMORY. */
DDP_API int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer);

/* ddp_set_optimizer - registers the update rule and copies it (default: ddp_sgd(0.01, 0)). If layers are
 * registered already, the call starts the session: the ranks compare their layers and settings, and take the
 * parameters of rank 0. Otherwise the first hook starts it. Collective. With elastic.join the call enters the
 * running world instead: ddp_step is then that world's step, and no collective may follow before the first
 * hook of a layer.
 *
 * Returns 0 or the context's first error. Errors: DDP_ARG for the optimizer or overlapping arrays, DDP_USAGE
 * after the session has started, DDP_MISMATCH if the ranks differ, DDP_UNSUPPORTED for an optimizer or groups
 * that the strategy or the device cannot use, DDP_IO and DDP_FORMAT for plan_path or profile_path, DDP_FAILED
 * from load (ddp_add_state), or DDP_MEMORY. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT,
 * DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o);

/* Values that the program reports about its step. A field of 0 is ignored. */
typedef struct ddp_step_info {
    double loss;  /* loss of the step, or 0 for the last one reported */
    long samples; /* samples of this rank in the step */
    double epoch; /* epoch of the data, counted by the program */
    float lr;     /* > 0: learning rate of the remaining updates from this step on */
} ddp_step_info;

/* The hooks of a step, from ddp_forward_begin to ddp_step_end. The order per step and micro-batch is: forward
 * hooks in layer order, backward hooks in reverse order, ddp_step_end. After a failure every call returns
 * that error at once. */

/* ddp_forward_begin - waits until the layer's parameters are complete. Call it before the layer is used.
 * Optional, but a layer that has this hook in one step must have it in every step. Returns 0 or the context's
 * first error. Errors: DDP_ARG for a layer that does not exist; DDP_USAGE on a server rank; DDP_MISMATCH,
 * DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session. Communication may also fail
 * with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_forward_begin(ddp_ctx *d, int layer);

/* ddp_backward_begin - marks the start of the layer's backward pass. Optional, but it improves the measured
 * times. Returns 0 or the context's first error. Errors: DDP_ARG for a layer that does not exist; DDP_USAGE
 * on a server rank; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session.
 * Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_backward_begin(ddp_ctx *d, int layer);

/* ddp_backward_end - passes the layer's gradient of this micro-batch to the library. From the last
 * micro-batch until ddp_forward_begin(layer), or until ddp_step_end if that hook is not used, the library
 * owns the layer's parameters and gradients: no other backward pass may read them. It returns the
 * gradients zeroed, except with ddp_own_update. Returns 0 or the context's first error. Errors: DDP_ARG
 * for a layer that does not exist; DDP_USAGE for more calls than micro_batches, or on a server rank;
 * DDP_NUMERIC for a NaN or an infinity; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if
 * it starts the session. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_backward_end(ddp_ctx *d, int layer);

/* ddp_skip - replaces ddp_backward_end if this micro-batch had no gradient of the layer, for example in an
 * unused branch or for a layer that is frozen in this step. The gradient counts as zero in averages. If all
 * ranks skip a layer in a whole step, it is not updated. Under strategies that average parameters or
 * parameter deltas, a rank that skips a layer does not update it. One call in a step, without
 * ddp_backward_end, applies to all micro-batches. Returns 0 or the context's first error. Errors: DDP_ARG for
 * a layer that does not exist; DDP_USAGE for more calls than micro_batches, or on a server rank;
 * DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session. Communication may
 * also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_skip(ddp_ctx *d, int layer);

/* ddp_backward_rest - passes the layers that have had no call in this micro-batch, from the last to the
 * first: as ddp_skip where skips[layer] is not 0, and as ddp_backward_end elsewhere. A program calls it once
 * at the end of its backward pass, for the layers that ddp_due does not list. It does nothing if the step has
 * all its calls. The times of the layers that it passes are not measured one by one.
 *
 *   skips  [layers] 1 for each layer without a gradient. NULL means that all layers have one. Borrowed for
 *          the call.
 *
 * Returns 0 or the context's first error. Errors: DDP_ARG without a layer; DDP_USAGE on a server rank;
 * DDP_NUMERIC for a NaN or an infinity; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it
 * starts the session. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or
 * DDP_ABORTED. */
DDP_API int ddp_backward_rest(ddp_ctx *d, const unsigned char *skips);

/* ddp_due - lists the layers that need their own ddp_backward_end or ddp_skip in the current step, as soon as
 * their gradient is complete: the strategy sends them during the backward pass, or their times are measured.
 * ddp_backward_rest passes the others. The list is valid until the next ddp_step_end.
 *
 *   due  [layers] receives 1 for each of these layers and 0 for the others. May be NULL.
 *
 * Returns their number, or 0 for NULL. The strategies ssgd, localsgd, diloco and sparseloco send nothing
 * during the backward pass, unless outer.overlap is stream. Before the session starts, while it measures, and
 * with an optimizer of the library, all layers are listed. Local. */
DDP_API int ddp_due(const ddp_ctx *d, unsigned char *due);

/* ddp_left_out - returns 1 if the last update of the layer was omitted, else 0. An update is omitted if no
 * rank had a gradient, or if this rank skipped the layer under a strategy that averages parameters or
 * parameter deltas. A program with its own update must then leave the layer unchanged. Always 0 on a device.
 * Local. */
DDP_API int ddp_left_out(const ddp_ctx *d, int layer);

/* ddp_report - reports values of the current step to the library: loss, samples, epoch and learning rate.
 * Optional. Call it before ddp_step_end. *info is copied. Local. Returns 0 or the context's first error.
 * Errors: DDP_ARG for NULL or negative samples or DDP_NUMERIC for a loss that is not finite. */
DDP_API int ddp_report(ddp_ctx *d, const ddp_step_info *info);

/* ddp_step_end - ends the step. Every layer must have had its ddp_backward_end or ddp_skip. Without forward
 * hooks the parameters are complete when the call returns. Returns 0 or the context's first error. Errors:
 * DDP_USAGE if a layer lacks a call, or on a server rank; DDP_MISMATCH if the ranks have different learning
 * rates; DDP_ABORTED after ddp_abort; DDP_NUMERIC for a value that the wire format cannot represent;
 * DDP_FORMAT, DDP_IO and DDP_MEMORY from planning; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or
 * DDP_MEMORY if it starts the session. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_step_end(ddp_ctx *d);

/* ddp_launch - runs fn once per rank: in cfg->world threads (DDP_THREADS) or processes (DDP_TCP, on a free
 * loopback port). If world is at most 1, or if a launcher has started the ranks, it runs fn once in this
 * process. The launcher's number of ranks then replaces cfg->world.
 *
 *   fn    receives an open context, which ddp_launch closes, and user. Returns 0 or a ddp_status.
 *   user  passed to fn. With processes, changes that fn makes to it are not visible to the caller.
 *   err   receives the message of the first failure. May be NULL.
 *
 * Blocks until all ranks have ended. Call it before other threads exist if ranks are processes. Returns
 * DDP_OK if every rank did. With min_world it also returns DDP_OK if at least min_world ranks did and the
 * others were killed or lost. Errors: the code of the rank that failed first; DDP_ARG for NULL, a setting, or
 * more than 1024 ranks; DDP_USAGE for the mpi and sockets transports without a launcher; DDP_PEER_LOST for a
 * rank that was killed; DDP_ABORTED by ddp_config.cancel; DDP_NET, DDP_MEMORY; DDP_FAILED if a rank cannot be
 * started, or exits without a status. */
DDP_API int ddp_launch(const ddp_config *cfg, int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err);

/* ddp_add_block - adds an array of count floats to the layer of that name, in any order of calls. The first
 * call with a new name registers the layer: layers are numbered in the order of their first calls, which must
 * be the forward order.
 *
 *   layer   name, copied
 *   params  [count] values, borrowed until ddp_close
 *   grads   [count] gradients, borrowed until ddp_close. NULL means that the array is frozen.
 *
 * An array that two layers register is a tied weight. It belongs to the first of them, whose backward pass is
 * the last. Other overlaps of arrays are an error when the session starts. Local. Returns 0 or the context's
 * first error. Errors: DDP_ARG for a missing name, array or count; DDP_USAGE after the session has started;
 * DDP_MEMORY. */
DDP_API int ddp_add_block(ddp_ctx *d, const char *layer, float *params, float *grads, size_t count);

/* ddp_add_stack - adds one tensor of all layers of a model whose values are in one array, layer after layer,
 * as in llm.c.
 *
 *   name    layer i gets the name NAMEi, so "h" gives "h0", "h1", ... At most 200 characters, copied.
 *   params  [copies * count] the tensor. The count values from params + i * count become a block of layer i.
 *   grads   [copies * count] gradients of the tensor, or NULL if it is frozen
 *   copies  number of layers, at least 1
 *   count   values in one layer, at least 1
 *
 * Calls with the same name add more tensors to the same layers. The result is that of ddp_add_block(d, NAMEi,
 * params + i * count, grads + i * count, count) for i = 0, 1, ... A model that allocates its gradients during
 * the first backward pass calls this function there, before the first hook. The arrays are borrowed until
 * ddp_close. Local. Returns 0 or the context's first error. Errors: DDP_ARG for a missing name or array, for
 * copies or count below 1, for an array beyond the address space, and for a name above 200 characters;
 * DDP_USAGE after ddp_set_optimizer or the first hook; DDP_MEMORY. */
DDP_API int ddp_add_stack(ddp_ctx *d, const char *name, float *params, float *grads, int copies,
                          size_t count);

/* ddp_layer_named - returns the number of the layer with that name, or -1 if there is none. Local. */
DDP_API int ddp_layer_named(const ddp_ctx *d, const char *name);

enum { DDP_SAME = 32 }; /* maximum number of names of ddp_same, and of ddp_usually_same */

/* ddp_same - registers a number that must be equal on all ranks, such as the length of the data or the number
 * of steps. The ranks compare it with the layer list when the session starts. If the values differ, the
 * session start returns DDP_MISMATCH. A joining worker with another value is rejected, and the run continues.
 * name is copied. Local. Returns 0 or the context's first error. Errors: DDP_ARG for a name that is missing
 * or above 31 characters, and for more than DDP_SAME names; DDP_USAGE after the session has started. */
DDP_API int ddp_same(ddp_ctx *d, const char *name, int64_t value);

/* ddp_usually_same - registers a number that is usually equal on all ranks, such as the batch size. If the
 * values differ when the session starts, the run continues, and the lowest live rank logs one warning. name
 * is copied. Local. Returns 0 or the context's first error. Errors: DDP_ARG for a name that is missing or
 * above 31 characters, and for more than DDP_SAME names; DDP_USAGE after the session has started. */
DDP_API int ddp_usually_same(ddp_ctx *d, const char *name, int64_t value);

/* ddp_unlike - returns the warning about values of ddp_usually_same that differ, on every rank, or "" if all
 * are equal. The text is valid until ddp_close. Local. */
DDP_API const char *ddp_unlike(const ddp_ctx *d);

/* A state of the program, as any number of bytes: for example the state of its own optimizer
 * (ddp_own_update), of a learning-rate schedule or of a sampler. save and load return 0, or another number on
 * failure, and may then store the reason in err->msg. A failure ends the run with an error that names the
 * state. save and load may only call functions that read the context. */
typedef struct ddp_program_state {
    const char *name; /* for example "optimizer". 1 to 31 printable ASCII characters without comma, quote or
                         backslash. Copied. */
    /* Sets *bytes and *size to the current state. The library reads the bytes until it calls release. */
    int (*save)(void *user, void **bytes, size_t *size, ddp_error *err);
    int (*load)(void *user, const void *bytes, size_t size, ddp_error *err); /* restores the state from these
                                                                                bytes */
    void (*release)(void *user, void *bytes); /* called after each save. May be NULL. */
    void *user;                               /* borrowed until ddp_close */
    /* 1: a joining worker may receive bytes that are some steps old, for example the moments of an optimizer.
     * Under strategies that average parameters or parameter deltas it then receives them before it enters,
     * while the members train. Under strategies that average gradients it has no effect, because equal
     * optimizers need the bytes of one step (default: 0, the bytes of the step in which the worker enters,
     * for which all members wait). */
    int early;
} ddp_program_state;

enum { DDP_PROGRAM_STATES = 8 }; /* maximum number of states of ddp_add_state */

/* ddp_add_state - registers a state of the program. Call it before ddp_set_optimizer, with the same names and
 * the same `early` in the same order on every rank. *state is copied. If save and load are both NULL, the
 * program has no state of that name, but workers may join.
 *
 *   checkpoint  ddp_checkpoint_save calls save on every rank and stores the bytes of each rank.
 *               ddp_checkpoint_load calls load with them. If there are more ranks than in the checkpoint,
 *               rank r gets the bytes of rank r modulo the checkpoint's world. If the checkpoint lacks a
 *               state, the library logs a line and does not call load. It logs no line about a state "A:B" if
 *               the checkpoint has a state "A": before the program divided that state, it included "A:B"
 *   pipeline    another cut (ddp_pipe_open) is an error, because the library cannot divide these states by
 *               layer. ddp_pipe_resume does not call save or load, so a program whose state changed in a lost
 *               step restores it itself
 *   join        when a worker joins, the lowest live member calls save in its first hook of a step, and the
 *               joining worker calls load in its ddp_set_optimizer. The bytes belong to the step in which the
 *               worker enters. All members wait until the bytes have arrived. Under strategies that average
 *               parameters or parameter deltas, one member saves the states with `early` in its first hook of
 *               an earlier period and sends them with its parameters, and the members do not wait. The
 *               joining worker loads all states in the order of registration. If load fails, or memory is
 *               short, only the joining worker fails. A worker can join a run with ddp_own_update only if a
 *               state is registered
 *
 * save and load run on the thread that called the library. Local. The session start returns DDP_MISMATCH if
 * the ranks have different names or different `early`. Returns 0 or the context's first error. Errors:
 * DDP_ARG for the name, a name that is registered already, save without load, and more than
 * DDP_PROGRAM_STATES states; DDP_USAGE after ddp_set_optimizer; DDP_MEMORY. */
DDP_API int ddp_add_state(ddp_ctx *d, const ddp_program_state *state);

/* ddp_wait - completes all messages in flight, without further averages, so that the parameters can be read.
 * Not collective, but it waits for messages of the other ranks. Returns 0 or the context's first error.
 * Errors: DDP_USAGE if the strategy leaves a message unfinished or DDP_NUMERIC for a value that the wire
 * format cannot represent. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH
 * or DDP_ABORTED. */
DDP_API int ddp_wait(ddp_ctx *d);

/* ddp_sync_all - completes all messages in flight and averages, so that every rank has equal parameters.
 * Collective, between two steps. Returns 0 or the context's first error. Errors: DDP_USAGE within a step;
 * DDP_NUMERIC for a value that the wire format cannot represent; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO,
 * DDP_FORMAT or DDP_MEMORY if it starts the session. Communication may also fail with DDP_PEER_LOST,
 * DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_sync_all(ddp_ctx *d);

/* ddp_share - copies the parameters and buffers of rank 0 (of the lowest live rank) to every rank, and
 * restarts the strategy from them. A program that has replaced its parameters, for example from a file, calls
 * it before the next step. The outer momentum and the quantisation residuals become 0. The optimizer state
 * does not change. Collective, between two steps. Returns 0 or the context's first error. Errors:
 * DDP_UNSUPPORTED with servers, which own the parameters; DDP_USAGE within a step; DDP_MISMATCH,
 * DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session. Communication may also fail
 * with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_share(ddp_ctx *d);

/* ddp_serve - runs a server instead of the steps, on the last ddp_config.server.count ranks. Call it after
 * the layers are added and the optimizer is set. Blocks until all other ranks have closed their contexts.
 * Checkpoints that the workers save or load include the share of this rank. To load a checkpoint, call
 * ddp_checkpoint_load before ddp_serve, as the workers do before their first step. Returns 0 or the context's
 * first error. Errors: DDP_USAGE on a rank that computes; DDP_FAILED if the server ends without another
 * error; DDP_IO and DDP_MEMORY from a checkpoint; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or
 * DDP_MEMORY if it starts the session. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_serve(ddp_ctx *d);
