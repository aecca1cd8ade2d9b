/* The backend table: where the memory of layers and activations lies, and who works on it. NULL in
 * ddp_config.backend is the CPU; dreamddp_cuda.cuh fills one in for CUDA (ddp_cuda). The graph and
 * the session reach parameters, gradients, optimizer state, buffers and activations through it
 * alone, so that they never read an address of a device. */
#pragma once

#include "base/status.h"

struct ddp_op;
struct ddp_op_pair;
struct ddp_optimizer;
struct ddp_shape;
struct ddp_update;
typedef struct ddp_backend ddp_backend;

/* The ranks whose devices have a network of their own, as one of them sees them. */
typedef struct ddp_backend_peers {
    int rank, world;       /* this one's place among them */
    double join_timeout_s; /* until all have come */
    double op_timeout_s;   /* a message that takes longer has failed */
    /* While they start: the bytes of the first reach all. */
    ddp_status (*share)(void *user, void *bytes, size_t count, ddp_error *err);
    /* What else has told of a lost peer, without waiting; the context's thread. since: when the
     * oldest message in flight was queued, ddp_now(); 0 = none is. */
    ddp_status (*watch)(void *user, double since, ddp_error *err);
    void *user;
} ddp_backend_peers;

/* self is what open gave: one per context. Work is queued in the order of the calls and done later
 * ("in order"), unless a line says that it waits. Functions without a status note their first
 * failure; check tells it. All calls come from the context's thread but those marked "stager",
 * which come from one thread more. Sizes are bytes, counts are floats. */
struct ddp_backend {
    const char *name;    /* "cuda" */
    int device, numbers; /* options that open reads; the backend's own meaning */
    int channels_last;   /* 1: an array of four dimensions (n, c, h, w), and its gradient, lies there as (n,
                            h, w, c) */

    /* stream: ddp_config.device.cuda_stream, NULL = one of its own. One sentence where no device is. */
    ddp_status (*open)(const ddp_backend *b, int local_rank, void *stream, void **self, ddp_error *err);
    void (*close)(void *self);
    ddp_status (*wait)(void *self, ddp_error *err);  /* waits for all that was queued */
    ddp_status (*check)(void *self, ddp_error *err); /* first failure, without waiting */

    /* Memory. alloc: zeroed, aligned to 256, NULL when short. pin: host memory, zeroed, that copies are fast
     * from and to. element_bytes: of outputs and their gradients, 4 or 2; outputs of one element, integers
     * and saved arrays take 4 in any case. mirror: what operators read in place of count parameters; those
     * themselves where an element takes 4 bytes, otherwise a copy that whatever writes parameters keeps
     * current. forget: before release. */
    void *(*alloc)(void *self, size_t bytes);
    void (*release)(void *self, void *ptr, size_t bytes);
    void *(*pin)(void *self, size_t bytes);
    void (*unpin)(void *self, void *ptr, size_t bytes);
    void (*memory)(void *self, double *total, double *unused);
    int (*element_bytes)(void *self);
    void *(*mirror)(void *self, float *params, size_t count);
    void (*forget)(void *self, float *params);

    /* Copies in order. upload: from may change when it returns. download waits. */
    void (*upload)(void *self, void *to, const void *from, size_t bytes);
    ddp_status (*download)(void *self, void *to, const void *from, size_t bytes, ddp_error *err);
    void (*copy)(void *self, void *to, const void *from, size_t bytes);
    void (*zero)(void *self, void *at, size_t bytes);
    /* early: in order, a float is copied to where early_value reads it, which waits for that copy and
     * not for later work; 0 = another was copied since. */
    void (*early)(void *self, const float *from);
    int (*early_value)(void *self, const float *from, float *value);
    /* upload and download of an output, or its gradient, whose floats lie on the host in the order of
     * shape. */
    void (*upload_elements)(void *self, void *to, const float *from, const struct ddp_shape *shape);
    ddp_status (*download_elements)(void *self, float *to, const void *from, const struct ddp_shape *shape,
                                    ddp_error *err);

    /* Arithmetic in order. y[i] += s * x[i], rounded twice; x[i] *= s; x[i] = s; x[i] += s x[i]^2 (now[i] -
     * then[i]), rounded each time (ddp__late_compensate). norm2 waits: the sum of x[i]^2, in double. update
     * applies a registered optimizer, and with zero 1 zeroes u->grads; gradients whose first and last value
     * is -0.0 are none (ddp_no_gradient): nothing is updated, and they may stay. A user's rule is called with
     * device arrays and u->stream, also then. Clipping needs no host: clip_add adds the squares of x to one
     * sum (first: begins it), clip_scale multiplies x with the factor that this sum asks for, if the norm is
     * above limit. */
    void (*axpy)(void *self, float *y, const float *x, size_t count, float s);
    void (*scale)(void *self, float *x, size_t count, float s);
    void (*fill)(void *self, float *x, size_t count, float s);
    void (*compensate)(void *self, float *x, const float *now, const float *then, size_t count, float s);
    ddp_status (*norm2)(void *self, const float *x, size_t count, double *out, ddp_error *err);
    void (*update)(void *self, const struct ddp_optimizer *o, const struct ddp_update *u, int zero);
    /* In order: what blocks of `bits` bits can say of x goes to out, x keeps the rest, as ddp_split has it: a
     * float's scale for each 64 values, then the levels. A block that is not finite has such a scale. NULL:
     * none. */
    void (*split)(void *self, int bits, float *x, void *out, size_t count);
    void (*clip_add)(void *self, const float *x, size_t count, int first);
    void (*clip_scale)(void *self, float *x, size_t count, float limit);

    /* The operator of that name, NULL where it has none; its calls get compute as pool. Scratch: bytes that
     * one execution of spec needs besides, (size_t)-1 where it takes no arrays of such shapes; reserve takes
     * the most that any needs and may be called again with more, 0 = short of memory. pair: two of those
     * names as one, NULL: each runs alone. */
    const struct ddp_op *(*op)(void *self, const char *name);
    const struct ddp_op_pair *(*pair)(void *self, const char *first, const char *second);
    size_t (*scratch)(void *self, const struct ddp_op *op, const void *spec);
    int (*reserve)(void *self, size_t bytes);
    void *(*compute)(void *self);

    /* Messages over the host (src/device/stager.c). A slot is one of 0..slots-1. record notes in order that
     * the work so far is done; fetch (stager) waits for that and copies to the host; give (stager) copies to
     * the device; raise (stager) lets pass what hold made wait: hold queues that all later work waits until
     * raise was called with at least turn, or waits itself where the device cannot. fetch and give wait for
     * their copies only. raise_all (any thread): nothing waits any more. */
    int (*slots)(void *self, int slots); /* once, before the others; 0 = short of memory */
    void (*record)(void *self, int slot);
    ddp_status (*fetch)(void *self, int slot, void *to, const void *from, size_t bytes, ddp_error *err);
    ddp_status (*give)(void *self, void *to, const void *from, size_t bytes, ddp_error *err);
    void (*raise)(void *self, int slot, unsigned turn);
    void (*hold)(void *self, int slot, unsigned turn);
    void (*raise_all)(void *self);

    /* Messages from device to device (NCCL); join NULL = none; p is copied. average: in order after the work
     * so far, the arrays become their mean over the ranks (sum 1: their sum), beside later work. follow:
     * fetch of message slot waits for the averages so far, in place of record. spread: the first rank's
     * arrays reach all; turn > 0: there once raise was called for message slot held with that turn. finish:
     * later work waits for the average or spread in that slot. poll: the first failure of a peer, without
     * waiting; once joined, no other function waits for a peer that poll knows to be lost. leave: on_error 1
     * = give up what is in flight. */
    ddp_status (*join)(void *self, const ddp_backend_peers *p, ddp_error *err);
    ddp_status (*average)(void *self, int slot, float *const *arrays, const size_t *counts, int arrays_count,
                          int sum, ddp_error *err);
    void (*follow)(void *self, int slot);
    ddp_status (*spread)(void *self, int slot, int held, unsigned turn, float *const *arrays,
                         const size_t *counts, int arrays_count, ddp_error *err);
    void (*finish)(void *self, int slot);
    ddp_status (*poll)(void *self, ddp_error *err);
    void (*leave)(void *self, int on_error);

    /* Times. marks: how many there are, once; mark notes in order when the work so far is done;
     * marked: that moment in ddp_now() seconds, or -1 while it is to come. range: a name for
     * what is queued from here on in a profiler's view, NULL ends it. */
    int (*marks)(void *self, int marks);
    void (*mark)(void *self, int mark);
    double (*marked)(void *self, int mark);
    void (*range)(void *self, const char *name);
};
