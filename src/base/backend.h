/* The backend table: functions for the memory of layers and activations on a device, and for the work on
 * it. ddp_config.backend NULL means the CPU, and dreamddp_cuda.cuh fills in a table for CUDA (ddp_cuda). The
 * graph and the session access parameters, gradients, optimizer state, buffers and activations only
 * through this table, and never dereference a device address. */
#pragma once

#include "base/status.h"

struct ddp_op;
struct ddp_op_pair;
struct ddp_optimizer;
struct ddp_shape;
struct ddp_update;
typedef struct ddp_backend ddp_backend;

/* The ranks whose devices share a separate network (NCCL), from the view of one rank. */
typedef struct ddp_backend_peers {
    int rank, world;       /* this rank's index among them */
    double join_timeout_s; /* seconds until all ranks have joined */
    double op_timeout_s;   /* seconds. A longer message has failed. */
    /* During start-up: broadcasts the bytes of the first rank to all. */
    ddp_status (*share)(void *user, void *bytes, size_t count, ddp_error *err);
    /* Reports a lost peer that another channel has detected, without waiting. Called from the context's
     * thread. since: when the oldest message in flight was queued, on ddp_now(). 0 means that no message is
     * in flight. */
    ddp_status (*watch)(void *user, double since, ddp_error *err);
    void *user;
} ddp_backend_peers;

/* self is the result of open, one per context. Unless stated otherwise, a function only queues
 * its work, which runs later in the order of the calls ("in order"). Functions without a status record
 * their first failure, and check reports it. All calls come from the context's thread, except those
 * marked "stager", which come from one other thread. Sizes are bytes, counts are floats. */
struct ddp_backend {
    const char *name;    /* "cuda" */
    int device, numbers; /* options that open reads. The backend defines their meaning */
    int channels_last; /* 1: on the device, a 4-dimensional array (n, c, h, w) and its gradient are stored as
                          (n, h, w, c) */

    /* stream: ddp_config.device.cuda_stream. NULL creates one. Fails with a clear error if there is no
     * device. */
    ddp_status (*open)(const ddp_backend *b, int local_rank, void *stream, void **self, ddp_error *err);
    void (*close)(void *self);
    /* Called after open, if not NULL. log: the logger of the context, for warnings, valid until close.
     * op_timeout_s: a message that takes longer has failed. */
    void (*attach)(void *self, const ddp_logger *log, double op_timeout_s);
    ddp_status (*wait)(void *self, ddp_error *err);  /* waits for all queued work */
    ddp_status (*check)(void *self, ddp_error *err); /* reports the first failure, without waiting */

    /* Memory.
     *   alloc          returns memory that is zeroed and aligned to 256 bytes, or NULL if memory is short
     *   pin            returns zeroed host memory with fast copies to and from the device
     *   element_bytes  size of an element of outputs and their gradients: 4 or 2 bytes. Outputs of one
     *                  element, integers and saved arrays always take 4
     *   mirror         the array that operators read instead of the count floats at params. With 4-byte
     *                  elements this is params itself. Otherwise it is a copy, which every function that
     *                  writes parameters also updates
     *   forget         drops the mirror. Call it before release. */
    void *(*alloc)(void *self, size_t bytes);
    void (*release)(void *self, void *ptr, size_t bytes);
    void *(*pin)(void *self, size_t bytes);
    void (*unpin)(void *self, void *ptr, size_t bytes);
    void (*memory)(void *self, double *total, double *unused);
    int (*element_bytes)(void *self);
    void *(*mirror)(void *self, float *params, size_t count);
    void (*forget)(void *self, float *params);

    /* Copies, in order. upload: the caller may change `from` after the call returns. download waits for
     * the copy. */
    void (*upload)(void *self, void *to, const void *from, size_t bytes);
    ddp_status (*download)(void *self, void *to, const void *from, size_t bytes, ddp_error *err);
    void (*copy)(void *self, void *to, const void *from, size_t bytes);
    void (*zero)(void *self, void *at, size_t bytes);
    /* early copies one float, in order, to a place from which early_value reads it. early_value waits for
     * that copy but not for later work. It returns 0 if another float was copied since. */
    void (*early)(void *self, const float *from);
    int (*early_value)(void *self, const float *from, float *value);
    /* Upload and download of an output or its gradient. On the host, the floats are in the order of shape. */
    void (*upload_elements)(void *self, void *to, const float *from, const struct ddp_shape *shape);
    ddp_status (*download_elements)(void *self, float *to, const void *from, const struct ddp_shape *shape,
                                    ddp_error *err);

    /* Arithmetic, in order, unless stated otherwise.
     *   axpy        y[i] += s * x[i], rounded twice
     *   scale       x[i] *= s
     *   fill        x[i] = s
     *   compensate  x[i] += s x[i]^2 (now[i] - then[i]), rounded after each operation (ddp__late_compensate)
     *   norm2       the sum of x[i]^2, in double. Waits for it
     *   update      applies a registered optimizer. zero 1 also zeroes u->grads. If the first and last
     *               gradient are -0.0, there is no gradient (ddp_no_gradient): nothing is updated, and the
     *               gradients may stay. A user's rule is called even then, with device arrays and u->stream
     *   clip_add    adds the squares of x to a sum on the device. first 1 resets the sum
     *   clip_scale  scales x by the clipping factor of that sum if the norm exceeds limit. No value goes to
     *               the host. */
    void (*axpy)(void *self, float *y, const float *x, size_t count, float s);
    void (*scale)(void *self, float *x, size_t count, float s);
    void (*fill)(void *self, float *x, size_t count, float s);
    void (*compensate)(void *self, float *x, const float *now, const float *then, size_t count, float s);
    ddp_status (*norm2)(void *self, const float *x, size_t count, double *out, ddp_error *err);
    void (*update)(void *self, const struct ddp_optimizer *o, const struct ddp_update *u, int zero);
    /* In order: quantises x to `bits` bits per value into out. x keeps the residual, as in ddp_split.
     * Blocks have 64 values. A float scale for each block comes first, then the levels. The scale of a block
     * with a NaN or infinity is not finite. NULL means not supported. */
    void (*split)(void *self, int bits, float *x, void *out, size_t count);
    void (*clip_add)(void *self, const float *x, size_t count, int first);
    void (*clip_scale)(void *self, float *x, size_t count, float limit);

    /* Operators.
     *   op       the operator of that name, or NULL if the backend has none. Its calls receive compute() as
     *            pool.
     *   pair     two operators fused into one, or NULL if each runs alone
     *   scratch  bytes of extra memory that one execution of spec needs, or (size_t)-1 if the operator does
     *            not support these shapes
     *   reserve  allocates the largest scratch size. May be called again with a larger size. Returns 0 if
     *            memory is short */
    const struct ddp_op *(*op)(void *self, const char *name);
    const struct ddp_op_pair *(*pair)(void *self, const char *first, const char *second);
    size_t (*scratch)(void *self, const struct ddp_op *op, const void *spec);
    int (*reserve)(void *self, size_t bytes);
    void *(*compute)(void *self);

    /* Messages through host memory (src/device/stager.c). A slot is in 0..slots-1.
     *   record     marks, in order, the completion of the work so far
     *   fetch      (stager) waits for that mark, then copies to the host
     *   give       (stager) copies to the device
     *   hold       makes all later work wait until raise was called for the slot with at least turn. If the
     *              device cannot wait, hold itself blocks
     *   raise      (stager) releases work that hold made wait
     *   raise_all  (any thread) releases all waiting work
     * fetch and give wait only for their own copies. */
    /* called once, after prepare and before the others. Returns 0 if memory is short */
    int (*slots)(void *self, int slots);
    void (*record)(void *self, int slot);
    ddp_status (*fetch)(void *self, int slot, void *to, const void *from, size_t bytes, ddp_error *err);
    ddp_status (*give)(void *self, void *to, const void *from, size_t bytes, ddp_error *err);
    void (*raise)(void *self, int slot, unsigned turn);
    void (*hold)(void *self, int slot, unsigned turn);
    void (*raise_all)(void *self);

    /* Device-to-device messages (NCCL), not supported if join is NULL.
     *   join     connects the ranks and copies p
     *   average  in order after the work so far, but overlapped with later work: the arrays become their
     *            mean over the ranks (sum 1: their sum)
     *   follow   instead of record: makes fetch of message slot wait for the averages so far
     *   spread   broadcasts the first rank's arrays to all. turn > 0: on this rank it starts after raise was
     *            called for message slot `held` with that turn
     *   finish   makes later work wait for the average or broadcast in that slot
     *   poll     reports the first failure of a peer, without waiting. After join, no other function waits
     *            for a peer that poll has reported lost
     *   leave    disconnects; on_error 1 abandons messages in flight */
    ddp_status (*join)(void *self, const ddp_backend_peers *p, ddp_error *err);
    ddp_status (*average)(void *self, int slot, float *const *arrays, const size_t *counts, int arrays_count,
                          int sum, ddp_error *err);
    void (*follow)(void *self, int slot);
    ddp_status (*spread)(void *self, int slot, int held, unsigned turn, float *const *arrays,
                         const size_t *counts, int arrays_count, ddp_error *err);
    void (*finish)(void *self, int slot);
    ddp_status (*poll)(void *self, ddp_error *err);
    void (*leave)(void *self, int on_error);

    /* Timing.
     *   marks   sets the number of marks, called once
     *   mark    records, in order, when the work so far is done
     *   marked  that time in ddp_now() seconds, or -1 if it has not happened
     *   range   names the work that is queued from here on, for a profiler. NULL ends the range. */
    int (*marks)(void *self, int marks);
    void (*mark)(void *self, int mark);
    double (*marked)(void *self, int mark);
    void (*range)(void *self, const char *name);

    /* Directly after attach, each once. Both may be NULL.
     *   prepare  compares specialised kernels with portable ones, and chooses which are used. no_env 1:
     *            ignores environment variables
     *   splits   1 if split may be used. NULL means that it may */
    ddp_status (*prepare)(void *self, int no_env, ddp_error *err);
    int (*splits)(void *self);
};
