/* dreamddp.h 0.1.0 - train neural networks over slow links. MIT licence (at the end).
 *
 * DO THIS in one C or C++ file of your program, before any libc header:
 *     #define DREAMDDP_IMPLEMENTATION
 *     #include "dreamddp.h"
 * and #include "dreamddp.h" alone wherever else you need it. Build with -lm -lpthread. The
 * implementation needs stb_ds.h (Debian: libstb-dev). Linux; C11 or C++17; gcc, clang or nvcc.
 *
 * EXAMPLE. A training loop of your own, and what is added to it (without error checks):
 *     ddp_config cfg = {0};                     // dreamddp, world from the environment
 *     ddp_ctx *d = ddp_open(&cfg, &err);
 *     for (l = 0; l < L; l++) ddp_add_layer(d, &layer[l]);
 *     opt = ddp_sgd(0.05f, 0.9f);               // the library decides when to update
 *     ddp_set_optimizer(d, &opt);
 *     while (step++ < steps) {
 *         for (l = 0; l < L; l++)      { ddp_forward_begin(d, l); my_forward(l); }
 *         for (l = L - 1; l >= 0; l--) { my_backward(l); ddp_backward_end(d, l); }
 *         if (ddp_step_end(d)) break;           // the first error since the last step
 *     }
 *     ddp_sync_all(d);                          // every rank leaves with equal parameters
 *     ddp_close(d);
 *
 * CONTENTS. Each part begins with "==== begin PATH ==== [TAG]"; search for the tag.
 *     [base]    status and errors, allocator hook, clock, random numbers, logger
 *     [graph]   layers; models as static graphs of operators, forward and backward
 *     [ops]     the operators' kernels            [nn]      optimizers, schedules, models
 *     [data]    token streams                     [io]      JSON
 *     [net]     transports, shaped links, the comm worker
 *     [profile] layer costs, the link model       [plan]    what to send when, what to run where
 *     [compress] Top-K, messages, AdaTopK         [sync]    the context and its hooks
 *     [report]  tables, JSON lines, traces, HTML
 *
 * OPTIONS. Macros, defined before the #include; none changes a public struct or signature.
 *     DREAMDDP_IMPLEMENTATION            in exactly one file (or in each, with DDP_STATIC)
 *     DDP_STATIC                         a private copy of the library inside this file
 *     DDP_API                            your own linkage of the public functions
 *     DREAMDDP_NO_STB_DS_IMPLEMENTATION  another file of the program instantiates stb_ds; with
 *                                        DDP_STATIC in several files, define it in all but one
 *     DDP_REALLOC, DDP_FREE              bookkeeping memory (tensors: ddp_config.allocator)
 *     DDP_ASSERT                         checks for bugs of this library, never for your mistakes
 * At run time ddp_config has one comment per field; DREAMDDP_ variables fill what it leaves zero.
 *
 * CONVENTIONS. Zero means default, all-zero structs are valid. Times are seconds (double), sizes
 * are bytes or counts of floats as the name says, numbers are float32. Layer 0 is next to the
 * input; matrices are row-major. "Borrowed until" and "freed by" say who owns what; freeing NULL
 * is fine. Nothing is allocated inside a training step.
 *
 * ERRORS. A ddp_status code for the program and one sentence in a ddp_error for the person, with
 * the offending value and the remedy. The first error of a context stays: every later call
 * returns it and does nothing. The library never prints (except through the logger), never
 * exits, installs no signal handlers.
 *
 * THREADS. No mutable data at file scope: contexts are independent. One context belongs to one
 * thread; what may be called from others says so. Each context with peers runs one comm thread.
 *
 * SYMBOLS of the DreamDDP paper (arXiv:2502.11058) and the names here:
 *     H  period    L  layers    t_FP t_BP  forward_s backward_s    t_COMM  comm_s
 *     Gamma  divergence    a partition of the layers over H steps  ddp_plan.step_of
 */
#ifndef DREAMDDP_H
#define DREAMDDP_H

/* ==== begin base/config.h ==== [base] */
/* Compile-time options, linkage and the small common subset of C11 and C++17. */
#ifndef DDP_BASE_CONFIG_H
#define DDP_BASE_CONFIG_H

/* CLOCK_MONOTONIC, ppoll and friends are hidden under -std=c11 unless asked for before the
 * first libc header. */
#if (defined(DREAMDDP_IMPLEMENTATION) || defined(DDP_SEPARATE)) && defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif

#include <stddef.h>
#include <stdint.h>

#define DDP_VERSION_MAJOR  0
#define DDP_VERSION_MINOR  1
#define DDP_VERSION_PATCH  0
#define DDP_VERSION_STRING "0.1.0"

#if defined(__GNUC__) || defined(__clang__)
#define DDP__UNUSED       __attribute__((unused))
#define DDP__PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DDP__UNUSED
#define DDP__PRINTF(f, a)
#endif

/* Linkage of the public functions. Define DDP_STATIC to keep a private copy of the
 * library inside one file (two versions in one program then coexist). */
#ifndef DDP_API
#ifdef DDP_STATIC
#define DDP_API static DDP__UNUSED
#else
#define DDP_API extern
#endif
#endif

/* Linkage of private functions shared between files of src/: static in the single header,
 * extern when each file is compiled alone (make check-separate). */
#ifndef DDP_LIB
#ifdef DDP_SEPARATE
#define DDP_LIB extern
#else
#define DDP_LIB static DDP__UNUSED
#endif
#endif

/* Memory for bookkeeping; tensors and staging buffers come from ddp_config.allocator. */
#if defined(DDP_REALLOC) != defined(DDP_FREE)
#error "dreamddp: define both DDP_REALLOC and DDP_FREE, or neither"
#endif
#ifndef DDP_REALLOC
#include <stdlib.h>
#define DDP_REALLOC(ptr, bytes) realloc(ptr, bytes)
#define DDP_FREE(ptr)           free(ptr)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define DDP_RESTRICT __restrict__
#else
#define DDP_RESTRICT
#endif

#ifdef __cplusplus
#define DDP_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
#define DDP_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

/* Checks for our own bugs only; user mistakes are status codes. */
#ifndef DDP_ASSERT
#include <assert.h>
#define DDP_ASSERT(cond) assert(cond)
#endif

#endif /* DDP_BASE_CONFIG_H */
/* ==== end base/config.h ==== */

/* ==== begin base/status.h ==== [base] */
/* Status codes and the one human sentence that goes with them. */
#ifndef DDP_BASE_STATUS_H
#define DDP_BASE_STATUS_H

/* name, process exit code of the programs (DESIGN: 1 failure, 2 usage, 3 a peer was lost), text */
#define DDP_STATUS_LIST(X)                                                  \
    X(OK, 0, "ok")                                                          \
    X(ARG, 2, "invalid argument")                                           \
    X(USAGE, 1, "call out of order")                                        \
    X(MEMORY, 1, "out of memory")                                           \
    X(IO, 1, "file error")                                                  \
    X(FORMAT, 1, "malformed input")                                         \
    X(NET, 1, "network failure")                                            \
    X(PEER_LOST, 3, "a peer was lost")                                      \
    X(TIMEOUT, 3, "a peer did not answer in time")                          \
    X(MISMATCH, 1, "ranks disagree")                                        \
    X(UNSUPPORTED, 2, "not supported")                                      \
    X(ABORTED, 130, "aborted by request")                                   \
    X(NUMERIC, 1, "not a finite number")                                    \
    X(FAILED, 1, "failure")

typedef enum ddp_status {
#define DDP__STATUS_ENUM(name, code, text) DDP_##name,
    DDP_STATUS_LIST(DDP__STATUS_ENUM)
#undef DDP__STATUS_ENUM
    DDP_STATUS_COUNT
} ddp_status;

#define DDP_ERROR_TEXT 400

/* A failure: a code for the program, a sentence for the person. All-zero = no error.
 * msg names the offending value and the remedy and never ends in a newline. */
typedef struct ddp_error {
    ddp_status code;
    char       msg[DDP_ERROR_TEXT];
} ddp_error;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_status_text - a short constant English text for a code ("network failure").
 * ddp_status_exit_code - the exit code that the programs of this project return for it.
 * Both are pure and safe from any thread. */
DDP_API const char *ddp_status_text(ddp_status code);
DDP_API int ddp_status_exit_code(ddp_status code);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_STATUS_H */
/* ==== end base/status.h ==== */

/* ==== begin base/alloc.h ==== [base] */
/* Allocator hook: every tensor, arena and staging buffer goes through it. */
#ifndef DDP_BASE_ALLOC_H
#define DDP_BASE_ALLOC_H

/* Memory for tensors, optimizer state and staging. All-zero = malloc/free (64-byte aligned,
 * huge pages where the system offers them).
 *   alloc  returns bytes bytes aligned to at least 64, not necessarily zeroed, or NULL
 *   free   takes what alloc returned and the same byte count; never called with NULL
 * Both may be called from the thread that calls ddp_open, ddp_close or the first step. */
typedef struct ddp_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void  (*free)(void *user, void *ptr, size_t bytes);
    void  *user;
} ddp_allocator;

#endif /* DDP_BASE_ALLOC_H */
/* ==== end base/alloc.h ==== */

/* ==== begin base/clock.h ==== [base] */
/* Monotonic time in seconds. */
#ifndef DDP_BASE_CLOCK_H
#define DDP_BASE_CLOCK_H

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_now - seconds on a clock that never goes back; the origin is arbitrary but the same for
 * all processes of one machine. Safe from any thread. */
DDP_API double ddp_now(void);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_CLOCK_H */
/* ==== end base/clock.h ==== */

/* ==== begin base/rng.h ==== [base] */
/* Seeded random numbers, the same on every platform. */
#ifndef DDP_BASE_RNG_H
#define DDP_BASE_RNG_H

/* State of one stream (splitmix64: 64 bits, equidistributed, any seed is good).
 * Copying the struct copies the stream; it can be saved as one integer. */
typedef struct ddp_rng {
    uint64_t state;
} ddp_rng;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_rng_seed - a stream for (seed, stream); unlike pairs give unrelated streams.
 * ddp_rng_u64 - the next 64 bits.  ddp_rng_below - uniform in 0..n-1, exact (n >= 1).
 * ddp_rng_uniform - uniform in [0, 1) with 53 bits.  ddp_rng_normal - mean 0, deviation 1.
 * A stream belongs to one thread at a time. */
DDP_API ddp_rng  ddp_rng_seed(uint64_t seed, uint64_t stream);
DDP_API uint64_t ddp_rng_u64(ddp_rng *r);
DDP_API uint64_t ddp_rng_below(ddp_rng *r, uint64_t n);
DDP_API double   ddp_rng_uniform(ddp_rng *r);
DDP_API double   ddp_rng_normal(ddp_rng *r);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_RNG_H */
/* ==== end base/rng.h ==== */

/* ==== begin base/log.h ==== [base] */
/* Leveled logger. The library itself prints nothing: it hands lines to the logger. */
#ifndef DDP_BASE_LOG_H
#define DDP_BASE_LOG_H

typedef enum ddp_log_level {
    DDP_LOG_DEFAULT, /* what DREAMDDP_LOG says (off, error, warn, info, debug), else warn */
    DDP_LOG_OFF,
    DDP_LOG_ERROR,
    DDP_LOG_WARN,
    DDP_LOG_INFO,
    DDP_LOG_DEBUG
} ddp_log_level;

/* Where log lines go. All-zero = nowhere, unless DREAMDDP_LOG is set: then stderr.
 * fn gets one line without newline; it may be called from the comm thread. */
typedef struct ddp_logger {
    void (*fn)(void *user, ddp_log_level level, const char *line);
    void *user;
    ddp_log_level level; /* lines above this level are not formatted */
} ddp_logger;

#endif /* DDP_BASE_LOG_H */
/* ==== end base/log.h ==== */

/* ==== begin graph/layer.h ==== [graph] */
/* A layer: the unit of synchronisation. Registered by the user's loop or by a built graph. */
#ifndef DDP_GRAPH_LAYER_H
#define DDP_GRAPH_LAYER_H

typedef enum ddp_dtype { DDP_F32, DDP_I32 } ddp_dtype;

typedef enum ddp_block_kind {
    DDP_PARAMS, /* updated by the optimizer; grads NULL = frozen: still timed, never changed */
    DDP_BUFFERS /* running statistics: averaged with the layer, never updated by the optimizer */
} ddp_block_kind;

/* One contiguous array of a layer. Memory is borrowed until ddp_close. */
typedef struct ddp_block {
    float         *params;
    float         *grads; /* same count, or NULL */
    size_t         count; /* floats */
    ddp_block_kind kind;
} ddp_block;

/* What a layer is made of. Name and blocks are copied, the arrays behind them are borrowed
 * until ddp_close. A layer of one block fills params, grads and count; more go in blocks. */
typedef struct ddp_layer {
    const char      *name;        /* for plans, reports and errors; NULL = "layer N" */
    float           *params;
    float           *grads;
    size_t           count;
    const ddp_block *blocks;      /* further blocks, or NULL */
    int              block_count;
    double           flops;       /* of one forward pass of one micro-batch; 0 = 2 x count.
                                     Only deterministic plans read it. */
} ddp_layer;

typedef struct ddp_ctx ddp_ctx;

#endif /* DDP_GRAPH_LAYER_H */
/* ==== end graph/layer.h ==== */

/* ==== begin graph/op.h ==== [graph] */
/* An operator: one table entry with its shape rule, costs and kernels. */
#ifndef DDP_GRAPH_OP_H
#define DDP_GRAPH_OP_H

#define DDP_OP_INPUTS 4 /* most inputs of an operator */
#define DDP_OP_PARAMS 4 /* most parameter arrays of an operator */
#define DDP_OP_BUFFERS 2 /* most buffers of an operator */
#define DDP_OP_ARGS   8

/* Row-major: dim[dims - 1] is contiguous. dims 0 = a scalar of one element. */
typedef struct ddp_shape {
    int  dims;
    long dim[4];
} ddp_shape;

typedef enum ddp_init { DDP_INIT_ZERO, DDP_INIT_ONE, DDP_INIT_NORMAL, DDP_INIT_UNIFORM } ddp_init;

/* One parameter array (or buffer) of an operator and how it starts: normal deviation or uniform
 * bound = scale. */
typedef struct ddp_param {
    const char *name; /* "weight", "bias": static text */
    ddp_shape   shape;
    ddp_init    init;
    float       scale;
} ddp_param;

/* What the shape rule reads and fills. Inputs and args are given; the rest starts zeroed. A rule
 * that fails or needs no parameters is run again with a tied node's parameter as param[0], params 1. */
typedef struct ddp_op_spec {
    int         inputs;
    ddp_shape   in[DDP_OP_INPUTS];
    ddp_dtype   in_type[DDP_OP_INPUTS];
    double      arg[DDP_OP_ARGS];       /* meaning is the operator's: width, heads, probability ... */
    ddp_shape   out;                    /* always float32 */
    int         params;
    ddp_param   param[DDP_OP_PARAMS];
    int         buffers;                /* running statistics: part of the layer, no parameters */
    ddp_param   buffer[DDP_OP_BUFFERS];
    size_t      saved;                  /* elements that forward leaves for backward, besides in and out */
    double      flops;                  /* of forward */
    double      backward_flops;         /* 0 = 2 x flops */
    int         in_place_ok;            /* 1: out may share the memory of input 0 (backward reads neither) */
    int         out_unread;             /* 1: backward does not read out, so its memory is free earlier */
    int         grad_over_input;        /* 1: backward may write grad_in[0] over in[0] (never with add_in[0]) */
} ddp_op_spec;

/* One execution. Element type is float in forward/backward and double in ref_forward and
 * ref_backward; int inputs are int32_t in both. */
typedef struct ddp_op_call {
    const ddp_op_spec *spec;
    const void *in[DDP_OP_INPUTS];
    const void *param[DDP_OP_PARAMS];
    void       *out;
    void       *saved;                        /* spec->saved elements */
    /* backward only */
    const void *grad_out;                     /* shape of out */
    void       *grad_in[DDP_OP_INPUTS];       /* NULL: not wanted */
    int         add_in[DDP_OP_INPUTS];        /* 1: add to grad_in, 0: overwrite it */
    void       *grad_param[DDP_OP_PARAMS];    /* always added to; NULL: frozen */
    /* execution */
    void       *pool;                         /* ddp__pool *, for ddp_op_parallel; may be NULL */
    int         training;                     /* 0: dropout passes through */
    uint64_t    random;                       /* seed of this node in this micro-batch and step */
} ddp_op_call;

/* A table entry. Functions are called with spec filled by shape(). Everything is borrowed for
 * the life of the graph. backward may be NULL (no gradient flows through). The reference
 * kernels are the plain loops that tests instantiate in double; NULL = not offered. Built-in
 * entries without forward, and operators with buffers, can be planned but not built. */
typedef struct ddp_op {
    const char *name;
    ddp_status (*shape)(ddp_op_spec *s, ddp_error *err);
    void (*forward)(const ddp_op_call *c);
    void (*backward)(const ddp_op_call *c);
    void (*ref_forward)(const ddp_op_call *c);
    void (*ref_backward)(const ddp_op_call *c);
} ddp_op;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_shape_count - elements of a shape (1 for a scalar).  ddp_shape_rows - product of all but
 * the last dimension. Pure. */
DDP_API long ddp_shape_count(const ddp_shape *s);
DDP_API long ddp_shape_rows(const ddp_shape *s);

/* ddp_op_parallel - runs fn(user, first, last) over blocks of 0..items of grain items on the
 * worker's operator threads. The blocks depend only on items and grain, so results do not
 * depend on the number of threads as long as blocks write disjoint memory. */
DDP_API void ddp_op_parallel(const ddp_op_call *c, long items, long grain,
                             void (*fn)(void *user, long first, long last), void *user);

#ifdef __cplusplus
}
#endif

#endif /* DDP_GRAPH_OP_H */
/* ==== end graph/op.h ==== */

/* ==== begin graph/graph.h ==== [graph] */
/* The model: a static graph of operators, built once, then executed forward and backward. */
#ifndef DDP_GRAPH_GRAPH_H
#define DDP_GRAPH_GRAPH_H

typedef struct ddp_graph ddp_graph;
typedef struct ddp_node  ddp_node;
typedef struct ddp_state ddp_state; /* activations and their gradients of one micro-batch */

/* What a planner reads of one operator; names live as long as the graph. */
typedef struct ddp_node_info {
    const char *name;         /* operator name */
    const char *layer;        /* name of its layer, "" outside layers */
    int         layer_index;  /* -1 outside layers */
    int         inputs;
    int         input[DDP_OP_INPUTS]; /* indexes of the producing nodes */
    ddp_shape   out;
    double      flops, backward_flops;
    double      output_bytes, param_bytes; /* a tied parameter counts where it is owned */
    double      buffer_bytes;              /* running statistics, not part of param_bytes */
} ddp_node_info;

#ifdef __cplusplus
extern "C" {
#endif

/* ---- building: nothing but bookkeeping is allocated until ddp_graph_build, so the graph of a
 * model that does not fit the machine can be read by the planner. A builder that fails returns
 * NULL and the graph remembers the first error; NULL inputs pass through, so one check at
 * ddp_graph_build is enough. ---- */

/* ddp_graph_new - an empty graph. d may be NULL: a graph for planning or for training without
 * synchronisation (then ddp_graph_free frees it); else ddp_close frees it. NULL: out of memory. */
DDP_API ddp_graph *ddp_graph_new(ddp_ctx *d);
DDP_API void       ddp_graph_free(ddp_graph *g);

/* ddp_layer_begin / ddp_layer_end - operators built in between belong to one synchronisation
 * unit. The name is copied; a repeated name gets its number: "hidden", "hidden.1", ... */
DDP_API void ddp_layer_begin(ddp_graph *g, const char *name);
DDP_API void ddp_layer_end(ddp_graph *g);

/* ddp_input - a named array the user fills before each forward, shape (rows, cols); type
 * DDP_F32 or DDP_I32. ddp_input_shape - the same for any shape. */
DDP_API ddp_node *ddp_input(ddp_graph *g, const char *name, ddp_dtype type, long rows, long cols);
DDP_API ddp_node *ddp_input_shape(ddp_graph *g, const char *name, ddp_dtype type, const ddp_shape *s);

/* Operators. x is (..., C). Shapes of the result:
 *   ddp_linear          (..., width)   weight (width, C), bias (width)
 *   ddp_linear_no_bias  (..., width)
 *   ddp_linear_tied     (..., V)       no bias; the weight (V, C) is that of an ddp_embedding node
 *   ddp_embedding       (rows.., C)    tokens int32, table (vocabulary, C)
 *   ddp_position        (B, T, C)      x plus a learned row per position, table (T, C)
 *   ddp_layer_norm      same           scale and shift (C), eps 1e-5
 *   ddp_attention       (B, T, C)      x (B, T, 3C) = queries, keys, values; causal, heads heads
 *   ddp_gelu (tanh form), ddp_relu, ddp_add, ddp_dropout(probability): same shape
 *   ddp_cross_entropy   scalar         mean over rows; logits (..., V), labels int32 (...), -1 = ignored
 *                       Its backward consumes the logits: do not read them after ddp_backward.
 *
 * Operators on images, x (B, C, H, W). They have shapes and costs but no kernels: the graph can be
 * read and planned, ddp_graph_build refuses it (DDP_UNSUPPORTED) and names the first of them.
 * A window moves by stride over H and W with padding on all four sides:
 * H' = (H + 2 padding - kernel) / stride + 1, rounded down, and W' alike.
 *   ddp_conv2d          (B, channels, H', W')  weight (channels, C / groups, kernel, kernel), bias
 *                       (channels) unless bias is 0; groups divides C and channels
 *   ddp_batch_norm2d    same                   scale and shift (C); buffers: running mean and
 *                       variance (C), which belong to the layer but are no parameters
 *   ddp_max_pool2d, ddp_avg_pool2d   (B, C, H', W')   padding at most kernel / 2; padding is never
 *                       a maximum, and counts as zeros in a mean
 *   ddp_global_avg_pool2d  (B, C)              mean of each channel
 *   ddp_flatten         (B, C H W)             any x: all dimensions but the first become one
 *
 * flops counts a multiply-add as two operations; a bias as none. */
DDP_API ddp_node *ddp_linear(ddp_graph *g, ddp_node *x, long width);
DDP_API ddp_node *ddp_linear_no_bias(ddp_graph *g, ddp_node *x, long width);
DDP_API ddp_node *ddp_linear_tied(ddp_graph *g, ddp_node *x, ddp_node *embedding);
DDP_API ddp_node *ddp_embedding(ddp_graph *g, ddp_node *tokens, long vocabulary, long width);
DDP_API ddp_node *ddp_position(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_layer_norm(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_attention(ddp_graph *g, ddp_node *x, long heads);
DDP_API ddp_node *ddp_gelu(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_relu(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_add(ddp_graph *g, ddp_node *a, ddp_node *b);
DDP_API ddp_node *ddp_dropout(ddp_graph *g, ddp_node *x, float probability);
DDP_API ddp_node *ddp_cross_entropy(ddp_graph *g, ddp_node *logits, ddp_node *labels);
DDP_API ddp_node *ddp_conv2d(ddp_graph *g, ddp_node *x, long channels, long kernel, long stride,
                             long padding, long groups, int bias);
DDP_API ddp_node *ddp_batch_norm2d(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_max_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding);
DDP_API ddp_node *ddp_avg_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding);
DDP_API ddp_node *ddp_global_avg_pool2d(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_flatten(ddp_graph *g, ddp_node *x);

/* ddp_register_op - adds a user's operator to this graph (op is borrowed); ddp_apply uses it, or
 * any built-in, by name: inputs[count] nodes, args[arg_count] numbers. tied (may be NULL) is a
 * node whose parameter 0 is used in place of an own parameter 0. */
DDP_API int       ddp_register_op(ddp_graph *g, const ddp_op *op);
DDP_API ddp_node *ddp_apply(ddp_graph *g, const char *op, int count, ddp_node *const *inputs,
                            int arg_count, const double *args, ddp_node *tied);

/* ddp_init_scale - overrides the initial deviation of a node's parameter (GPT-2's projections). */
DDP_API void ddp_init_scale(ddp_graph *g, ddp_node *n, int param, float scale);

/* ddp_init_normal - makes a node's parameter start normally distributed with this deviation,
 * whatever the operator's own rule is; 0 = all zeros. */
DDP_API void ddp_init_normal(ddp_graph *g, ddp_node *n, int param, float deviation);

/* ddp_graph_build - checks shapes, plans memory, allocates and initialises parameters (each
 * layer's parameters, and its gradients, lie in one contiguous block; initialisation depends only
 * on the seed and the parameter's position) and registers the layers with the context.
 * Returns 0 or a ddp_status; ddp_graph_error has the sentence. DDP_UNSUPPORTED: an operator
 * has no kernels; such a graph is read without building it. */
DDP_API int ddp_graph_build(ddp_graph *g);
DDP_API const ddp_error *ddp_graph_error(const ddp_graph *g);

/* ---- running, after ddp_graph_build ---- */

/* ddp_data - the array of a named input of the built-in state (float or int32_t).
 * ddp_value - the scalar of a node after forward, NAN where it is none.
 * ddp_output - a node's output array, valid until its memory is reused by backward; a node whose
 * only user works in place (dropout, add) shows that user's output. */
DDP_API void        *ddp_data(ddp_graph *g, const char *name);
DDP_API float        ddp_value(ddp_graph *g, const ddp_node *n);
DDP_API const float *ddp_output(ddp_graph *g, const ddp_node *n);

/* ddp_forward - all operators in order, calling forward_begin before a layer's first use.
 * ddp_backward - from loss (a scalar), calling backward_begin and, after the last use of a
 * layer's parameters, backward_end. Gradients are added to; whoever consumes them zeroes them
 * (the context, or ddp_zero_gradients without one). ddp_evaluate - forward without hooks and
 * with dropout off. Each returns 0 or the first error. */
DDP_API int  ddp_forward(ddp_graph *g);
DDP_API int  ddp_backward(ddp_graph *g, ddp_node *loss);
DDP_API int  ddp_evaluate(ddp_graph *g);
DDP_API void ddp_zero_gradients(ddp_graph *g);

/* ---- several micro-batches in flight, and parts of the graph alone ---- */
DDP_API ddp_state *ddp_state_new(ddp_graph *g); /* NULL: out of memory; freed by ddp_state_free */
DDP_API void       ddp_state_free(ddp_state *s);
DDP_API void      *ddp_state_data(ddp_state *s, const ddp_node *n);     /* output or input array */
DDP_API void      *ddp_state_gradient(ddp_state *s, const ddp_node *n); /* gradient of that array */
/* Operators first..last (node indexes, inclusive) without hooks. Outputs of earlier operators,
 * and for backward the gradients of outputs used after last, must have been fed through
 * ddp_state_data / ddp_state_gradient; input gradients are taken out the same way: those of
 * outputs before first that the range uses, and of float inputs. A gradient that is fed is added
 * to. Outputs that nobody uses start with gradient 1 if they are scalars, 0 otherwise, until it
 * is fed. Every array of such a state has its own memory. */
DDP_API int ddp_forward_range(ddp_state *s, int first, int last);
DDP_API int ddp_backward_range(ddp_state *s, int first, int last);
/* ddp_state_micro_batch - the number that dropout masks of this state depend on, besides seed and
 * node: equal numbers give equal masks, in any process. Without it each state counts its own
 * forward passes: a new one begins where forward goes back to an earlier operator. */
DDP_API void ddp_state_micro_batch(ddp_state *s, uint64_t number);

/* ---- reading the graph ---- */
DDP_API int    ddp_node_count(const ddp_graph *g);
DDP_API int    ddp_node_index(const ddp_node *n);
DDP_API int    ddp_node_describe(const ddp_graph *g, int index, ddp_node_info *out);
DDP_API int    ddp_layer_count(const ddp_graph *g);
DDP_API size_t ddp_param_count(const ddp_graph *g);
/* Parameters and gradients of layer l after ddp_graph_build: one block of *count floats each. */
DDP_API float *ddp_layer_params(ddp_graph *g, int layer, size_t *count);
DDP_API float *ddp_layer_gradients(ddp_graph *g, int layer, size_t *count);
/* Parameter k of a node (weight 0, bias 1), NULL if it has none. */
DDP_API float *ddp_node_param(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape);
DDP_API float *ddp_node_gradient(ddp_graph *g, const ddp_node *n, int k);
DDP_API size_t ddp_activation_bytes(const ddp_graph *g); /* of one state */

#ifdef __cplusplus
}
#endif

#endif /* DDP_GRAPH_GRAPH_H */
/* ==== end graph/graph.h ==== */

/* ==== begin nn/models.h ==== [nn] */
/* Ready-made models, built from the public operators of a graph. */
#ifndef DDP_NN_MODELS_H
#define DDP_NN_MODELS_H

/* GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019). */
typedef struct ddp_gpt2_config {
    long  vocabulary; /* tokens */
    long  context;    /* sequence length T */
    long  layers;     /* transformer blocks */
    long  heads;      /* divides dim */
    long  dim;        /* width C of the residual stream; the MLP is 4 C wide */
    long  batch;      /* sequences B per micro-batch */
    float dropout;    /* of the embedding and of both branches of a block, 0 <= p < 1 */
    float deviation;  /* of the initial parameters; 0 = GPT-2's 0.02. Widths of 64 to 256 learn sooner
                         from about 0.8 / sqrt(dim) */
} ddp_gpt2_config;

#define DDP_MLP_HIDDEN 8 /* most hidden layers */

/* A multi-layer perceptron with ReLU between its linear layers. */
typedef struct ddp_mlp_config {
    long batch;
    long inputs;                 /* features per sample */
    long hidden[DDP_MLP_HIDDEN]; /* widths, ended by 0 where fewer are wanted */
    long classes;
} ddp_mlp_config;

/* ResNet (He et al., Deep Residual Learning for Image Recognition, 2015, arXiv:1512.03385). */
typedef struct ddp_resnet_config {
    int  depth;    /* 18, 34, 50, 101 or 152 */
    long classes;  /* at least 2 */
    long size;     /* height and width of an image; 224 in the paper */
    long channels; /* of an image, 0 = 3 */
    long batch;    /* images per micro-batch */
    int  cifar;    /* 1: for small images, begins with a 3x3 convolution of stride 1 and no pooling
                      instead of a 7x7 one of stride 2 and a 3x3 pooling */
} ddp_resnet_config;

/* VGG (Simonyan and Zisserman, Very Deep Convolutional Networks, 2014, arXiv:1409.1556). */
typedef struct ddp_vgg_config {
    int   depth;    /* 11, 13, 16 or 19 */
    long  classes;  /* at least 2 */
    long  size;     /* height and width of an image, at least 32; 224 in the paper */
    long  channels; /* of an image, 0 = 3 */
    long  batch;    /* images per micro-batch */
    float dropout;  /* after both hidden linear layers, 0 <= p < 1; 0.5 in the paper */
} ddp_vgg_config;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_gpt2 - adds the model to g and returns its loss, the mean cross-entropy over B T tokens.
 *
 * Inputs: "tokens" and "labels", int32 (B, T). Layers (units of synchronisation): "embed", then
 * "h.0.attn", "h.0.mlp", "h.1.attn", ..., "head" (the last layer norm; the logits are taken with
 * the token table of "embed"). *logits, if asked for, is the node (B, T, vocabulary).
 * Parameters start as GPT-2's: normal with c->deviation, the two projections onto the residual
 * stream with deviation / sqrt(2 layers), biases 0.
 * NULL on error (a size that is not positive, heads that do not divide dim, a dropout outside
 * [0, 1), an earlier error of g); ddp_graph_error has the sentence. */
DDP_API ddp_node *ddp_gpt2(ddp_graph *g, const ddp_gpt2_config *c, ddp_node **logits);

/* ddp_mlp - adds a perceptron to g and returns its loss.
 * Inputs: "inputs", float (batch, inputs), and "labels", int32 (batch, 1). One layer per linear
 * operator: "hidden", "hidden.1", ..., "head". *logits, if asked for, is the node (batch,
 * classes). Weights start uniform as the operator's rule has it. NULL and errors as above. */
DDP_API ddp_node *ddp_mlp(ddp_graph *g, const ddp_mlp_config *c, ddp_node **logits);

/* ddp_resnet, ddp_vgg - add an image classifier to g and return its loss. Their operators have
 * shapes and costs but no kernels: the graph can be planned, ddp_graph_build refuses it.
 * Inputs: "inputs", float (batch, channels, size, size), and "labels", int32 (batch, 1).
 * *logits, if asked for, is the node (batch, classes). NULL and errors as above.
 *
 * ResNet: one layer per convolution, with its batch norm: "conv1", "layer1.0.conv1", ...,
 * "layer1.0.downsample" where the shortcut changes its shape, ..., and "head"; the addition
 * belongs to a block's last convolution. A bottleneck's stride is that of its 3x3 convolution, as
 * in today's published weights; the paper's own text puts it into the first 1x1.
 * VGG: one layer per convolution, "conv1_1" to "conv5_4", the pooling in the last of a stage,
 * then "fc6", "fc7", "head". The first linear layer reads all 512 (size / 32)^2 features, 25,088
 * at the paper's size. */
DDP_API ddp_node *ddp_resnet(ddp_graph *g, const ddp_resnet_config *c, ddp_node **logits);
DDP_API ddp_node *ddp_vgg(ddp_graph *g, const ddp_vgg_config *c, ddp_node **logits);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NN_MODELS_H */
/* ==== end nn/models.h ==== */

/* ==== begin nn/optimizer.h ==== [nn] */
/* Optimizers: the library owns when an update is applied, so they are registered, not called. */
#ifndef DDP_NN_OPTIMIZER_H
#define DDP_NN_OPTIMIZER_H

/* One call updates one contiguous block of a layer. All arrays have count floats. */
typedef struct ddp_update {
    int          layer;
    float       *params;
    const float *grads;
    float       *state;  /* state_per_param x count floats, zero before the first update:
                            state array k of this block begins at state + k x count */
    size_t       count;
    long         step;   /* number of this update, from 0 */
    float        lr;
} ddp_update;

/* A registered optimizer. hyper is what the built-in rules read; a user's rule may use user. */
typedef struct ddp_optimizer {
    const char *name;             /* "sgd", "adamw", ...: part of the fingerprint of a run */
    int         state_per_param;  /* floats of state per parameter: 0, 1 or 2 */
    void      (*update)(const struct ddp_optimizer *self, const ddp_update *u);
    float       lr;               /* default learning rate; ddp_set_lr changes it per step */
    float       hyper[6];         /* momentum | beta1, beta2, eps; weight decay */
    void       *user;             /* the rule's own data, borrowed until ddp_close */
} ddp_optimizer;

#ifdef __cplusplus
extern "C" {
#endif

/* The built-in rules. Same arithmetic as PyTorch's of the same name (float32, no fused
 * multiply-add, so that unlike processors stay equal).
 *   ddp_sgd    v = momentum v + (g + decay w); w -= lr v      (momentum 0: no state)
 *   ddp_adam   L2 decay added to the gradient
 *   ddp_adamw  decoupled decay: w -= lr decay w
 * Pass the result to ddp_set_optimizer. Pure; safe from any thread. */
DDP_API ddp_optimizer ddp_sgd(float lr, float momentum);
DDP_API ddp_optimizer ddp_sgd_decay(float lr, float momentum, float weight_decay);
DDP_API ddp_optimizer ddp_adam(float lr, float beta1, float beta2, float eps, float weight_decay);
DDP_API ddp_optimizer ddp_adamw(float lr, float beta1, float beta2, float eps, float weight_decay);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NN_OPTIMIZER_H */
/* ==== end nn/optimizer.h ==== */

/* ==== begin nn/schedule.h ==== [nn] */
/* Learning rate as a pure function of the step. */
#ifndef DDP_NN_SCHEDULE_H
#define DDP_NN_SCHEDULE_H

typedef enum ddp_schedule_kind { DDP_LR_CONSTANT, DDP_LR_COSINE, DDP_LR_STEP } ddp_schedule_kind;

/* All-zero but base = a constant rate. */
typedef struct ddp_lr_schedule {
    ddp_schedule_kind kind;
    double base;      /* rate after the warm-up */
    long   warmup;    /* steps of linear warm-up: step s has base (s + 1) / warmup; 0 = none */
    long   total;     /* cosine: the step at which the minimum is reached, and then kept */
    double min_ratio; /* cosine: the minimum is min_ratio x base */
    long   step_size; /* step: after the warm-up the rate is multiplied by gamma every step_size */
    double gamma;
} ddp_lr_schedule;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_lr_at - the rate of a step, counted from 0. Pure; safe from any thread. */
DDP_API double ddp_lr_at(const ddp_lr_schedule *s, long step);

/* ddp_schedule_named - constant, cosine or step: 1 and *out set, or 0. */
DDP_API int ddp_schedule_named(const char *name, ddp_schedule_kind *out);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NN_SCHEDULE_H */
/* ==== end nn/schedule.h ==== */

/* ==== begin data/hash.h ==== [data] */
/* A quick fingerprint of float arrays. */
#ifndef DDP_DATA_HASH_H
#define DDP_DATA_HASH_H

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_hash_floats - 64 bits that depend on every bit, and on the order, of x[0..n-1], chained:
 * pass the hash of the arrays before it, 0 at first. Equal bits give equal hashes on every
 * platform; 0.0 and -0.0 differ, as do NaNs with unlike payloads. Not for adversaries. Pure. */
DDP_API uint64_t ddp_hash_floats(uint64_t hash, const float *x, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DATA_HASH_H */
/* ==== end data/hash.h ==== */

/* ==== begin data/tokens.h ==== [data] */
/* Token streams: files of tokens or of bytes, cut into windows and dealt to ranks. */
#ifndef DDP_DATA_TOKENS_H
#define DDP_DATA_TOKENS_H

/* A stream of tokens in memory; never changed after loading, so any thread may read it. */
typedef struct ddp_tokens ddp_tokens;

/* A part of a stream, cut into windows of seq tokens: window w predicts tokens
 * first + w seq + 1 .. first + (w + 1) seq from the ones before them. Tokens that do not fill a
 * window at the end are not used. */
typedef struct ddp_token_range {
    const ddp_tokens *tokens; /* borrowed */
    long first, count;        /* tokens */
    long seq;                 /* window length, at least 1 */
} ddp_token_range;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_tokens_open - reads a whole file: llm.c's .bin (its header says 16 or 32 bits), nanoGPT's
 * .bin (a name ending in .bin, an even size: 16-bit tokens), else any file as bytes, whose
 * distinct values are numbered in ascending order. A name ending in .gz is unpacked first.
 * ddp_tokens_from_bytes - the same for bytes in memory; name is for errors, and its ending
 * chooses the format as above. bytes is copied.
 * Both: NULL and *err on failure: unreadable, empty, shorter than two tokens, a header that
 * contradicts the size. Freed by ddp_tokens_close. */
DDP_API ddp_tokens *ddp_tokens_open(const char *path, ddp_error *err);
DDP_API ddp_tokens *ddp_tokens_from_bytes(const char *name, const void *bytes, size_t n, ddp_error *err);
DDP_API void        ddp_tokens_close(ddp_tokens *t);

/* ddp_tokens_count - tokens in the stream.  ddp_tokens_at - token i, 0 <= i < count.
 * ddp_tokens_vocabulary - one more than the largest token.
 * ddp_tokens_byte - the byte behind a token, for writing samples; -1 if the file held token
 * numbers, or the token is none of the stream's. */
DDP_API long    ddp_tokens_count(const ddp_tokens *t);
DDP_API long    ddp_tokens_vocabulary(const ddp_tokens *t);
DDP_API int32_t ddp_tokens_at(const ddp_tokens *t, long i);
DDP_API int     ddp_tokens_byte(const ddp_tokens *t, long token);

/* ddp_tokens_split - the stream as two ranges: the last held_out (0 <= held_out < 1) of it in
 * *val, the rest in *train. held_out 0: val->count is 0 and val may be NULL.
 * Errors: a part that should not be empty is shorter than one window, seq + 1 tokens. */
DDP_API ddp_status ddp_tokens_split(const ddp_tokens *t, double held_out, long seq,
                                    ddp_token_range *train, ddp_token_range *val, ddp_error *err);

/* ddp_tokens_windows - windows of a range, 0 if it is too short.
 * ddp_tokens_window - window 0 <= w < windows into tokens [seq] and labels [seq]; labels are the
 * tokens one place later. */
DDP_API long ddp_tokens_windows(const ddp_token_range *r);
DDP_API void ddp_tokens_window(const ddp_token_range *r, long w, int32_t *tokens, int32_t *labels);

/* ddp_tokens_batch - what rank of world trains on in a step: tokens and labels, [batch x seq].
 *
 * Windows are dealt from a deck that is shuffled anew each epoch by the seed: the deck of epoch
 * e is a permutation of all windows; step s takes world x batch of them, rank 0 the first batch,
 * rank 1 the next. So in one epoch each window is used exactly once over all ranks, and ranks x
 * batch can be cut differently without changing what a step sees. An epoch may end inside a
 * step. The deck is never stored: a keyed bijection (Feistel network with cycle walking) finds
 * its card in O(1). Depends only on the arguments; no allocation; any thread. */
DDP_API void ddp_tokens_batch(const ddp_token_range *r, uint64_t seed, long step, int rank, int world,
                              long batch, int32_t *tokens, int32_t *labels);

/* ddp_tokens_epoch - epochs (a fraction) used up before step starts. */
DDP_API double ddp_tokens_epoch(const ddp_token_range *r, long step, int world, long batch);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DATA_TOKENS_H */
/* ==== end data/tokens.h ==== */

/* ==== begin net/netspec.h ==== [net] */
/* The text of a slow link: "100mbit,20ms". */
#ifndef DDP_NET_NETSPEC_H
#define DDP_NET_NETSPEC_H

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_net_parse - a link from "RATE" or "RATE,DELAY".
 *
 *   RATE   number and bit, kbit, mbit or gbit (per second, decimal), or 0 or none: no limit
 *   DELAY  number and us, ms or s, one way; without it 0
 *   bytes_per_s, delay_s  receive the values, 0 = unshaped; untouched on error
 *
 * Pure; safe from any thread. Errors: DDP_ARG, naming the part that is wrong and an example. */
DDP_API ddp_status ddp_net_parse(const char *spec, double *bytes_per_s, double *delay_s, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_NETSPEC_H */
/* ==== end net/netspec.h ==== */

/* ==== begin profile/profile.h ==== [profile] */
/* Measured costs of one model on one cluster: what planners read. */
#ifndef DDP_PROFILE_PROFILE_H
#define DDP_PROFILE_PROFILE_H

/* Layer 0 is next to the input; forward visits 0..layers-1, backward layers-1 down to 0.
 * All times in seconds. Arrays are borrowed by planners and owned by ddp_profile_free when
 * they came from ddp_profile_read. NULL stands for zeros where it says so. */
typedef struct ddp_profile {
    int          layers;     /* L, at least 1 */
    char       **name;       /* [L] or NULL */
    double      *params;     /* [L] parameters (a count), or NULL */
    double      *forward_s;  /* [L] or NULL */
    double      *backward_s; /* [L] backward plus local update */
    double      *comm_s;     /* [L] how long averaging the layer over all ranks occupies the link */
    double       alpha_s;    /* what each message arrives after its occupancy ends; 0 = in comm_s */
} ddp_profile;

/* Averaging n bytes over all ranks: occupies the link for beta_s * n, ends alpha_s later. */
typedef struct ddp_link {
    double alpha_s;
    double beta_s;
} ddp_link;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_profile_read - a profile from CSV: header `layer,params,forward_s,backward_s,comm_s`
 * (columns in any order, further ones ignored), one row per layer in forward order.
 * forward_s may be missing or empty (= 0); comm_s may be missing or empty, then comm_s[l] =
 * link->beta_s x 4 x params and alpha_s = link->alpha_s (link NULL: an error that says so).
 * A .gz is read through gzip. *out is untouched on error, else freed by ddp_profile_free.
 * Errors: DDP_IO, DDP_FORMAT (names line, column and value), DDP_MEMORY. */
DDP_API ddp_status ddp_profile_read(const char *path, const ddp_link *link, ddp_profile *out,
                                    ddp_error *err);

/* ddp_profile_write - the same CSV, written to a temporary name and renamed. */
DDP_API ddp_status ddp_profile_write(const ddp_profile *p, const char *path, ddp_error *err);

/* ddp_profile_new - L layers of zeros with all arrays allocated (name entries NULL).
 * ddp_profile_free - frees what ddp_profile_new and ddp_profile_read made; all-zero is fine.
 * ddp_profile_check - DDP_OK if every cost is finite and >= 0 and L >= 1; the error names the
 * layer. */
DDP_API ddp_status ddp_profile_new(int layers, ddp_profile *out, ddp_error *err);
DDP_API void       ddp_profile_free(ddp_profile *p);
DDP_API ddp_status ddp_profile_check(const ddp_profile *p, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PROFILE_PROFILE_H */
/* ==== end profile/profile.h ==== */

/* ==== begin profile/network.h ==== [profile] */
/* Devices and the links between them: what the placement planners read. */
#ifndef DDP_PROFILE_NETWORK_H
#define DDP_PROFILE_NETWORK_H

/* Matrices are row-major, row = sender; the diagonal is 0 and never read. Owned by
 * ddp_network_free when they came from ddp_network_read or ddp_network_new; borrowed by planners. */
typedef struct ddp_network {
    int     devices;      /* N */
    int     pipelines;    /* D_dp replicas, or 0 where the file says nothing */
    int     stages;       /* D_pp, or 0; pipelines x stages = devices */
    double  dp_bytes;     /* c_dp: what a stage's replicas average in an iteration */
    double  pp_bytes;     /* c_pp: what one pipeline sends over one hop in an iteration, one way */
    double *delay_s;      /* [N x N] one-way delay */
    double *rate;         /* [N x N] bytes per second */
    double *speed;        /* [N] FLOP/s that a device reaches, or NULL */
    double *memory_bytes; /* [N] or NULL */
    int    *group;        /* [N] region or machine of a device, 0..groups-1, or NULL */
    int     groups;
    char  **group_name;   /* [groups] or NULL */
} ddp_network;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_network_read - a network from JSON: `N`, `D_dp`, `D_pp`, `c_pp_bytes`, `c_dp_bytes`, and
 * either groups x groups matrices with `groups` and `devices_per_group`, or N x N matrices, of
 * `delay_ms` and `bandwidth_gbps` (10^9 bit/s); optional per device or per group: `tflops`,
 * `memory_gb`. A variant ("as_in_code") names an object whose members replace those above.
 * *out is untouched on error, else freed by ddp_network_free.
 * Errors: DDP_IO, DDP_FORMAT (names file, place, key and value), DDP_ARG (N is not D_dp x D_pp,
 * unknown variant), DDP_MEMORY. */
DDP_API ddp_status ddp_network_read(const char *path, const char *variant, ddp_network *out, ddp_error *err);

/* ddp_network_new - N devices, all matrices allocated and 0, speed, memory and groups NULL.
 * ddp_network_free - frees what ddp_network_new and ddp_network_read made; all-zero is fine.
 * ddp_network_check - DDP_OK if N >= 1, delays are finite and >= 0, rates finite and > 0 off the
 * diagonal, D_dp x D_pp = N where both are given; the error names the pair and the value. */
DDP_API ddp_status ddp_network_new(int devices, ddp_network *out, ddp_error *err);
DDP_API void       ddp_network_free(ddp_network *n);
DDP_API ddp_status ddp_network_check(const ddp_network *n, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PROFILE_NETWORK_H */
/* ==== end profile/network.h ==== */

/* ==== begin profile/oplist.h ==== [profile] */
/* A model as a list of operators: what the planners that cut a model over devices read. */
#ifndef DDP_PROFILE_OPLIST_H
#define DDP_PROFILE_OPLIST_H

/* One operator, for one micro-batch. A leaf (no args) without parameters and without FLOPs is a
 * placeholder: input data, which gets no gradient. */
typedef struct ddp_oplist_entry {
    char  *name;         /* or NULL */
    int   *args;         /* [arg_count] indexes of the producers, each below the operator's own */
    int    arg_count;
    double flops;        /* forward */
    double output_bytes; /* of its result */
    double param_bytes;  /* of its parameters */
} ddp_oplist_entry;

/* Operators in topological order. Owned by ddp_oplist_free when it came from ddp_oplist_new or
 * ddp_oplist_read; borrowed by planners. */
typedef struct ddp_oplist {
    int               count;
    ddp_oplist_entry *op; /* [count] */
} ddp_oplist;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_oplist_new - count operators, all-zero: no name, no args, no cost.
 * ddp_oplist_set - fills operator i; name (NULL = none) and args [arg_count] are copied, what was
 * there is freed. Nothing changes on error. Errors: DDP_ARG (no such operator; an argument that
 * does not precede it), DDP_MEMORY.
 * ddp_oplist_free - all-zero is fine. */
DDP_API ddp_status ddp_oplist_new(int count, ddp_oplist *out, ddp_error *err);
DDP_API ddp_status ddp_oplist_set(ddp_oplist *list, int i, const char *name, const int *args,
                                  int arg_count, double flops, double output_bytes,
                                  double param_bytes, ddp_error *err);
DDP_API void       ddp_oplist_free(ddp_oplist *list);

/* ddp_oplist_check - DDP_OK if there is an operator, every argument precedes its user, and every
 * cost is finite and >= 0; the error names operator and value. */
DDP_API ddp_status ddp_oplist_check(const ddp_oplist *list, ddp_error *err);

/* ddp_oplist_read - from JSON: a list of {"name", "args", "flops", "output_bytes", "param_bytes"}
 * in topological order; args are names. param_bytes may be missing (0); further members are
 * ignored. *out is untouched on error, else freed by ddp_oplist_free.
 * Errors: DDP_IO, DDP_FORMAT (names file, place and value), DDP_MEMORY. */
DDP_API ddp_status ddp_oplist_read(const char *path, ddp_oplist *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PROFILE_OPLIST_H */
/* ==== end profile/oplist.h ==== */

/* ==== begin profile/linkfit.h ==== [profile] */
/* The link model alpha + beta x bytes from measured transfers. */
#ifndef DDP_PROFILE_LINKFIT_H
#define DDP_PROFILE_LINKFIT_H

/* A model that follows the link: least squares over transfers that fade by half every
 * `half_life` of them. All-zero until ddp_linkfit_start. */
typedef struct ddp_linkfit {
    ddp_link link;                   /* the current estimate */
    double   half_life;              /* in transfers */
    double   n, x, y, xx, xy;        /* faded, weighted sums of 1, bytes, seconds, products */
} ddp_linkfit;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_link_fit - alpha, beta >= 0 from n transfers on an otherwise idle link (seconds from start
 * to completion). Interference only delays, so only the fastest transfer of each size counts;
 * squares of relative errors are minimised, so that short transfers decide alpha. One size alone
 * gives alpha 0. *out is untouched on error.
 * Errors: DDP_ARG (no sample; negative or not finite; nothing longer than 0 bytes), DDP_MEMORY. */
DDP_API ddp_status ddp_link_fit(const double *bytes, const double *seconds, int n, ddp_link *out,
                                ddp_error *err);

/* ddp_linkfit_start - begin with link as if it had been seen in `half_life` transfers between
 * 0 and typical_bytes. ddp_linkfit_add - one real transfer; what is not finite or not
 * positive is ignored. Neither allocates. */
DDP_API void ddp_linkfit_start(ddp_linkfit *f, ddp_link link, double typical_bytes,
                               double half_life);
DDP_API void ddp_linkfit_add(ddp_linkfit *f, double bytes, double seconds);

/* ddp_link_drift - how much longer the n messages take now than then, relative: 0.25 = a quarter
 * longer, -0.5 = half; 0 if they took no time then. Re-plan when it leaves +-0.2. */
DDP_API double ddp_link_drift(ddp_link then, ddp_link now, const double *bytes, int n);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PROFILE_LINKFIT_H */
/* ==== end profile/linkfit.h ==== */

/* ==== begin profile/trace.h ==== [profile] */
/* Spans of what a worker did and when; the share of its communication that was hidden. */
#ifndef DDP_PROFILE_TRACE_H
#define DDP_PROFILE_TRACE_H

typedef enum ddp_span_kind {
    DDP_SPAN_FORWARD,
    DDP_SPAN_BACKWARD,
    DDP_SPAN_UPDATE,
    DDP_SPAN_WAIT,     /* the training thread waits for a transfer */
    DDP_SPAN_COMM,     /* one operation, first to last byte on this rank */
    DDP_SPAN_FILL,     /* the same, of a transfer that only fills a bubble */
    DDP_SPAN_PEER_WAIT /* an operation waits for a slower peer */
} ddp_span_kind;

#define DDP_SPAN_KINDS   (DDP_SPAN_PEER_WAIT + 1)
#define DDP_SPAN_COMPUTE (1u << DDP_SPAN_FORWARD | 1u << DDP_SPAN_BACKWARD | 1u << DDP_SPAN_UPDATE)

/* One interval [begin_s, end_s) of one worker, ddp_now() seconds. A span that is still running
 * (end_s not above begin_s) counts nothing. */
typedef struct ddp_span {
    double        begin_s, end_s;
    long          step;
    int           layer; /* -1 none */
    ddp_span_kind kind;
    int64_t       bytes; /* sent by this rank; 0 for compute */
} ddp_span;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_span_kind_name - "forward", "backward", "update", "wait", "comm", "fill", "peer wait". */
DDP_API const char *ddp_span_kind_name(ddp_span_kind kind);

/* ddp_span_union - seconds covered by at least one span whose bit (1u << kind) is in kinds.
 * ddp_span_overlap - seconds covered by kinds a and, at the same time, by kinds b.
 *
 * spans [n] are one worker's, in any order. Both take O(n log n) and allocate scratch with
 * DDP_REALLOC; the result is NAN when memory is short. Safe from any thread. */
DDP_API double ddp_span_union(const ddp_span *spans, int n, unsigned kinds);
DDP_API double ddp_span_overlap(const ddp_span *spans, int n, unsigned a, unsigned b);

/* ddp_hidden_share - the share of one worker's communication that its computing hides, 0..1:
 * 1 - (communication outside compute) / communication, where communication is the union of the
 * DDP_SPAN_COMM spans (bubble filling and waiting for peers are left out) and compute the union
 * of forward, backward and update. 1 if there is no communication; NAN when memory is short.
 * For a group of workers: the mean of their shares. Safe from any thread. */
DDP_API double ddp_hidden_share(const ddp_span *spans, int n);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PROFILE_TRACE_H */
/* ==== end profile/trace.h ==== */

/* ==== begin plan/partial.h ==== [plan] */
/* DreamDDP's planner: in which local step of the period each layer is averaged. */
#ifndef DDP_PLAN_PARTIAL_H
#define DDP_PLAN_PARTIAL_H

typedef enum ddp_solver {
    DDP_SOLVER_DEFAULT, /* scatter */
    DDP_SOLVER_OPTIMAL, /* contiguous optimum: memoised search, else O(L^2 H) programme */
    DDP_SOLVER_DFS,     /* Algorithm 2 as printed, typos corrected */
    DDP_SOLVER_ENP,     /* equal number of layers per step */
    DDP_SOLVER_BRUTE,   /* every contiguous partition; small instances only */
    DDP_SOLVER_SCATTER  /* any assignment: longest first + moves */
} ddp_solver;

typedef enum ddp_cost {
    DDP_COST_DEFAULT,  /* window */
    DDP_COST_TIMELINE, /* transfers queue on one link; the step ends with the last of them */
    DDP_COST_SUM,      /* Eq. 8-11: a set's transfers as one lump after its first layer */
    DDP_COST_WINDOW    /* timeline, but a transfer may end as late as its layer's next forward */
} ddp_cost;

typedef enum ddp_fill { DDP_FILL_NONE, DDP_FILL_EXACT, DDP_FILL_EQ12 } ddp_fill;

typedef struct ddp_plan_options {
    int        period;      /* H >= 1 */
    ddp_solver solver;
    ddp_cost   cost;
    ddp_fill   fill;
    double     time_limit_s; /* brute and scatter stop here with the best found; 0 = 60 s */
} ddp_plan_options;

/* A plan. Owned by whoever called ddp_plan_partial or ddp_plan_new; ddp_plan_free. */
typedef struct ddp_plan {
    int            layers, period;
    int           *step_of;       /* [L] step 0..H-1 whose backward averages layer l */
    unsigned char *fill;          /* [H x L] 1 = layer l is averaged once more in step h */
    ddp_solver     solver;
    ddp_cost       cost;
    double         objective_s;   /* sum over the period, forward time left out */
    double         exposed_s;     /* objective minus period x backward */
    double         lower_bound_s; /* no assignment can have a smaller objective */
} ddp_plan;

#ifdef __cplusplus
extern "C" {
#endif

/* Costs of one step whose backward averages the set S of layers. Backward order counts layers
 * i = 0.. from the output side, P(i) is the backward time of layers 0..i-1, T = P(L) of all.
 *   timeline  max(T, end of the last transfer + alpha): a transfer starts when its layer's
 *             backward has ended and the link is free (DreamDDP, text under Eq. 7)
 *   sum       max(T, P(a+1) + sum of S + alpha), a = the output-most layer of S (Eq. 8-11)
 *   window    end of the next forward minus all forward time: a layer's forward waits only for
 *             its own transfer, and the link serves the layer nearest to the input first
 *   S empty   T
 * A layer with comm_s 0 sends nothing and pays no alpha.
 *
 * For timeline and window, with w(i) = P(i+1) (timeline) or P(i+1) minus the forward time of the
 * layers before layer i in the forward pass (window), the cost is exactly
 *     max(T, max over i in S of w(i) + alpha + comm of the layers of S from i towards the input).
 * Whatever runs before i can be started no earlier than w(i) allows, and layers released early
 * are due late, so the earliest-deadline order attains the largest of these bounds. */

/* ddp_plan_partial - in which step of the period each layer is averaged.
 *
 *   o->period       H steps; every layer is averaged once in each period
 *   o->time_limit_s reached only by instances far beyond a few hundred layers: otherwise the
 *                   search is bounded by counts, and the plan is the same on every machine
 *
 * Equal objectives: the contiguous solvers put as many layers as possible in the earlier step;
 * scatter keeps its first best, starting from the contiguous optimum, which it never exceeds.
 * optimal is exact among contiguous sets: in O(L H) where alpha_s is 0 (timeline, window), else
 * by the O(L^2 H) programme. brute refuses more than 5e7 partitions or 2000
 * layers, dfs more than 4e6 leaves.
 *
 * Source: DreamDDP (arXiv:2502.11058) section 3.3, Algorithm 2, Eq. 8-12.
 * *out is overwritten, not freed; it is untouched on error, else freed by ddp_plan_free.
 * Pure; safe from any thread. Errors: DDP_ARG, DDP_NUMERIC, DDP_MEMORY, DDP_UNSUPPORTED. */
DDP_API ddp_status ddp_plan_partial(const ddp_profile *p, const ddp_plan_options *o, ddp_plan *out,
                                    ddp_error *err);

/* ddp_plan_new - every layer in step 0, no filling, costs 0. ddp_plan_free - all-zero is fine. */
DDP_API ddp_status ddp_plan_new(int layers, int period, ddp_plan *out, ddp_error *err);
DDP_API void       ddp_plan_free(ddp_plan *plan);

/* ddp_plan_evaluate - objective_s, exposed_s, lower_bound_s and cost of any assignment
 * (plan->step_of may be non-contiguous; filling is free by construction and not counted).
 * The bound holds for every assignment of the layers to the steps. Cost: O(L H). */
DDP_API ddp_status ddp_plan_evaluate(const ddp_profile *p, ddp_cost cost, ddp_plan *plan,
                                     ddp_error *err);

/* ddp_plan_step_time - predicted length of local step `step`, without forward time, in seconds.
 *   step_of [L]  the step that averages each layer
 *   out_s        untouched on error
 * Cost: O(L). Errors: DDP_ARG, DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_plan_step_time(const ddp_profile *p, const int *step_of, int step,
                                      ddp_cost cost, double *out_s, ddp_error *err);

/* ddp_plan_curve - exposed_s[h-1] = smallest exposed communication of a period of h steps with
 * contiguous sets, for h = 1..max_period, from one run. Use it to choose the period. */
DDP_API ddp_status ddp_plan_curve(const ddp_profile *p, ddp_cost cost, int max_period,
                                  double *exposed_s, ddp_error *err);

/* ddp_plan_hash - 64 bits over layers, period, step_of and fill; the same on every platform. */
DDP_API uint64_t ddp_plan_hash(const ddp_plan *plan);

/* Names as the programs spell them; DEFAULT gives the default's name, a bad value "unknown".
 * The inverse fails with DDP_ARG and a sentence that lists the names. */
DDP_API const char *ddp_solver_name(ddp_solver solver);
DDP_API const char *ddp_cost_name(ddp_cost cost);
DDP_API const char *ddp_fill_name(ddp_fill fill);
DDP_API ddp_status  ddp_solver_named(const char *name, ddp_solver *out, ddp_error *err);
DDP_API ddp_status  ddp_cost_named(const char *name, ddp_cost *out, ddp_error *err);
DDP_API ddp_status  ddp_fill_named(const char *name, ddp_fill *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_PARTIAL_H */
/* ==== end plan/partial.h ==== */

/* ==== begin plan/timeline.h ==== [plan] */
/* How long an iteration of synchronous training takes under six published ways to send gradients:
 * the baselines that every other planner here is compared with. */
#ifndef DDP_PLAN_TIMELINE_H
#define DDP_PLAN_TIMELINE_H

typedef enum ddp_scheme {
    DDP_SCHEME_SSGD,          /* everything after the whole backward */
    DDP_SCHEME_WFBP,          /* each bucket when its backward ends (PyTorch DDP) */
    DDP_SCHEME_MGWFBP,        /* WFBP with buckets merged where that saves startups */
    DDP_SCHEME_ASCWFBP,       /* WFBP with several operations at once */
    DDP_SCHEME_BYTESCHEDULER, /* parts by priority, next to the input first */
    DDP_SCHEME_USBYTE,        /* unequal operations, searched priorities */
    DDP_SCHEME_DEFT           /* not computed here: see ddp_plan_delayed */
} ddp_scheme;

/* All-zero is the default of everything. */
typedef struct ddp_timeline_options {
    ddp_scheme scheme;
    double     alpha_s;            /* startup contained in every comm_s, seconds; 0 = none */
    double     partition_params;   /* bytescheduler, usbyte: most parameters in a part */
    double     partition_s;        /* or longest part on the link, startup included; neither given
                                    * = 6.5e6 parameters */
    double     credit;             /* bytescheduler: in partitions; 0 = 1 */
    long       operations;         /* ascwfbp: at most this many at once, K; 0 = 4 */
    double     bucket_bytes;       /* wfbp, ascwfbp: rows are tensors, joined until a bucket has
                                    * this many bytes (DDP: 26214400); 0 = rows are buckets */
    double     first_bucket_bytes; /* the same for the first bucket; 0 = 1 MiB */
} ddp_timeline_options;

typedef enum ddp_interval_kind {
    DDP_INTERVAL_BACKWARD,
    DDP_INTERVAL_FORWARD,
    DDP_INTERVAL_LINK
} ddp_interval_kind;

/* What is busy from begin_s to end_s; 0 is the start of backward. */
typedef struct ddp_interval {
    ddp_interval_kind kind;
    int               bucket, last; /* rows bucket..last of the profile; last > bucket: merged */
    int               part, parts;  /* link: parts part .. part+parts-1 of the bucket, else 0, 1 */
    int               lane;         /* link: 0.. for operations at once */
    double            begin_s, end_s;
} ddp_interval;

/* One steady iteration: backward, then the forward that waits for its gradients.
 * Owned by whoever called ddp_plan_timeline; ddp_timeline_free. */
typedef struct ddp_timeline {
    ddp_scheme    scheme;
    int           buckets;       /* rows of the profile */
    double        iteration_s;
    double        lower_bound_s; /* see below */
    int          *parts;         /* [buckets] parts of each (1 where it is never cut, 0: no comm) */
    int          *priority;      /* [buckets] 0 = served first among those that are ready */
    int           intervals;
    ddp_interval *interval;      /* [intervals] backward, forward, then the link, each by begin */
} ddp_timeline;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_plan_timeline - one steady iteration of a scheme, by discrete events.
 *
 * Rows of the profile are buckets (or tensors, see bucket_bytes); row 0 is next to the input.
 * One link, first in first out, an operation in flight is never interrupted. Let c_i be comm_s[i]
 * with startup: o->alpha_s is part of comm_s, p->alpha_s comes on top of it, and both keep the
 * link busy (a measured comm_s is all occupancy, alpha 0). A row with comm_s 0 sends nothing.
 * T_f, T_b, T_c are sums over the rows, ready_i is the end of backward of row i.
 *
 *   ssgd           T_f + T_b + T_c
 *   wfbp           e_i = max(e_{i+1}, ready_i) + c_i; max(T_b, e_0) + T_f. Launched strictly by
 *                  row. With bucket_bytes, rows are joined as DDP does: from the output side,
 *                  closed when the size reaches the limit; a row is never split (4 bytes a
 *                  parameter); joined rows pay one startup.
 *   mgwfbp         row l joins row l-1 if ready_{l-1} comes before the end of l and either l would
 *                  have to wait anyway or waiting costs less than alpha (MG-WFBP's repository)
 *   ascwfbp        launched by row, at most K in flight; each first spends alpha without using
 *                  bandwidth, then all share the link equally. K = 1 or alpha = 0 is WFBP; it is
 *                  never slower. The original also chooses a fusion; here groups are given.
 *   bytescheduler  every row in k equal parts of at most a partition, queue by (row, part); a part
 *                  is committed to the link while credit > 0. A row's forward waits for its parts
 *                  only. The repository's credit is 4 partitions; 1 keeps priority best.
 *   usbyte         blocks as bytescheduler's parts. Until backward ends, the best ready row sends
 *                  as many blocks as fill the time to the next ready row in one operation; then
 *                  the remainders by row, one operation each. Priorities are searched greedily,
 *                  from the output side, and are never worse than the order by row.
 *
 * Parts: a row with work w = c_i - alpha and partition S is cut into ceil(w / (S - alpha)) equal
 * parts, or ceil(params / partition_params); a part costs alpha + w / k. A row with params 0 is one
 * part; where no row has params, only partition_s can be used.
 *
 * At the end of forward the link is idle in all of them, so the first iteration is the steady
 * one.
 *
 * lower_bound_s = max(T_f + T_b, b_last + T_c). Where startups are merged (mgwfbp, or wfbp with
 * bucket_bytes) or overlap (ascwfbp), T_c counts one startup only: with all of them, as in the
 * literature, the bound would not hold.
 *
 * Source: S-SGD and WFBP as in MG-WFBP (arXiv:1811.11141), ByteScheduler (SOSP'19), US-Byte (TPDS
 * 2023) and the authors' repositories; ASC-WFBP (INFOCOM 2021) by our definition above.
 * Cost: O(rows + parts); usbyte O(rows^2) or so, its search stops after 1e8 simulated rows (lists
 * of more than 7,000), with the best found.
 * *out is overwritten, not freed; untouched on error. Pure; safe from any thread.
 * Errors: DDP_ARG (names the value), DDP_NUMERIC, DDP_MEMORY, DDP_UNSUPPORTED for deft. */
DDP_API ddp_status ddp_plan_timeline(const ddp_profile *p, const ddp_timeline_options *o,
                                     ddp_timeline *out, ddp_error *err);
DDP_API void       ddp_timeline_free(ddp_timeline *t); /* all-zero is fine */

/* Names as the programs spell them (ssgd wfbp mgwfbp ascwfbp bytescheduler usbyte deft); a bad
 * value gives "unknown". The inverse fails with DDP_ARG and a sentence that lists the names. */
DDP_API const char *ddp_scheme_name(ddp_scheme scheme);
DDP_API ddp_status  ddp_scheme_named(const char *name, ddp_scheme *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_TIMELINE_H */
/* ==== end plan/timeline.h ==== */

/* ==== begin plan/knapsack.h ==== [plan] */
/* 0/1 knapsack on one or two links, with release times: which transfers hide behind computing. */
#ifndef DDP_PLAN_KNAPSACK_H
#define DDP_PLAN_KNAPSACK_H

typedef enum ddp_knapsack_solver {
    DDP_KNAPSACK_DEFAULT, /* exact where 2^16 entries for a half are enough, else greedy */
    DDP_KNAPSACK_EXACT,
    DDP_KNAPSACK_GREEDY
} ddp_knapsack_solver;

/* Item i starts at or after ready_s[i] on link 0, where it takes item_s[i], or on link 1, where it
 * takes slowdown[1] x item_s[i]; a link carries one item at a time, begins at start_s and is done
 * by deadline_s. A plain knapsack has no ready_s: capacity = deadline - start. All arrays are
 * borrowed; all-zero fields have the default named. */
typedef struct ddp_knapsack_problem {
    int           items;
    const double *item_s;        /* [items] > 0, on the fast link */
    const double *ready_s;       /* [items] >= 0, or NULL = all 0 */
    const double *value;         /* [items] >= 0, what is maximised, or NULL = item_s */
    int           links;         /* 1 or 2 */
    double        start_s[2];    /* >= 0 */
    double        deadline_s[2]; /* >= 0; an empty link (start >= deadline) takes nothing */
    double        slowdown[2];   /* >= 1, 0 = 1 */
} ddp_knapsack_problem;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_knapsack - the items of largest total value that all links can carry in time.
 *
 *   assign  [items] receives the link of each item, or -1
 *   value   receives the sum of the values sent (seconds where value is NULL); NULL is fine
 *
 * Items of one link run in the order of their release times, which serves a common deadline best.
 * exact: maximum, by meeting in the middle: the items in release order are split in two, each
 * half lists what it can reach, equal items as one class, and the halves are matched in
 * O(M log M). It refuses (DDP_UNSUPPORTED) what would need more than 2^20 entries for a half.
 * Every list of at most 24 items on two links, or 40 on one, is within; equal items are counted,
 * not permuted, so that far more fit when transfers are cut into equal parts.
 * greedy: links in the order of their capacity in fast-link time, items by falling value, each
 * where it first fits. Ties: lower link, lower item index. (DeFT, section III-C.)
 * Times are compared in units of 2^-44 of the longest deadline: sums that exceed a deadline by
 * nothing but rounding (0.1 + 0.2 in 0.3) fit.
 *
 * Source: DeFT, Problems 1 and 2. Errata: Problem 2 prints the second capacity as mu times the
 * first, which holds for item times on the slow link; here all item times are those of the fast
 * link and the slow link takes mu times longer.
 * Outputs are untouched on error. Pure; safe from any thread.
 * Errors: DDP_ARG (names item and value), DDP_UNSUPPORTED, DDP_MEMORY. */
DDP_API ddp_status ddp_knapsack(const ddp_knapsack_problem *p, ddp_knapsack_solver solver,
                                int *assign, double *value, ddp_error *err);

/* Names as the programs spell them; DEFAULT gives "default", a bad value "unknown". The inverse
 * fails with DDP_ARG and a sentence that lists the names. */
DDP_API const char *ddp_knapsack_solver_name(ddp_knapsack_solver solver);
DDP_API ddp_status  ddp_knapsack_solver_named(const char *name, ddp_knapsack_solver *out,
                                              ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_KNAPSACK_H */
/* ==== end plan/knapsack.h ==== */

/* ==== begin plan/deft.h ==== [plan] */
/* DeFT's planner: delayed, merged gradients whose transfers hide behind forward and backward. */
#ifndef DDP_PLAN_DEFT_H
#define DDP_PLAN_DEFT_H

typedef enum ddp_delayed_select {
    DDP_SELECT_DEFAULT, /* release */
    DDP_SELECT_RELEASE, /* a part is taken only if it ends within the stage once it is ready */
    DDP_SELECT_PAPER    /* Algorithm 1 as printed; its sends may overrun the stage */
} ddp_delayed_select;

typedef struct ddp_delayed_options {
    int                 links;            /* 1 or 2; 0 = 1 */
    double              mu;               /* time on the slow link / on the fast one, 2 links */
    double              alpha_s;          /* startup within each comm_s; every part pays it again */
    double              partition_s;      /* longest part on the fast link; 0 = no such limit */
    double              partition_params; /* most parameters in a part; 0 = no such limit */
    ddp_delayed_select  select;
    ddp_knapsack_solver solver;           /* 0 = exact where it is quick, else greedy; on two links
                                           * the better plan of that and of greedy alone; paper on
                                           * two links: greedy */
    double              capacity_scale;   /* knapsacks of both stages are this much larger; 0 = 1 */
    double              target_frequency; /* 0 = none; else the shortest iteration found with at
                                           * least this many updates per iteration (0..1] */
    int                 no_barrier;       /* sends may straddle forward and backward, where that
                                           * gives more updates */
} ddp_delayed_options;

/* One part on its way, in the order of starting. */
typedef struct ddp_delayed_send {
    int    iteration;      /* 0 .. warmup + period - 1 */
    int    fresh;          /* 1 = of the gradient merged in this iteration's backward, else of the
                            * pending one */
    int    bucket, part;   /* part 0 .. parts_of[bucket]-1 */
    int    link;
    double begin_s, end_s; /* after the start of the iteration's forward */
} ddp_delayed_send;

/* One iteration. Its gradient joins the stored ones; opened > 0: the stored ones are merged into
 * one gradient, which may be sent from then on. At its end the pending gradient is applied (applied
 * = how many iterations it merged, or 0), then the opened one, if it is complete (applied_now). */
typedef struct ddp_delayed_step {
    double forward_s, backward_s; /* how long the stages last: compute, or the last send */
    int    opened, applied, applied_now;
    int    first_send, sends;
} ddp_delayed_step;

/* A plan: `warmup` iterations from nothing pending, then `period` iterations for ever. Owned by
 * whoever called ddp_plan_delayed; freed by ddp_delayed_plan_free. */
typedef struct ddp_delayed_plan {
    int               buckets, parts;
    int              *parts_of;         /* [buckets] 0 where nothing is sent */
    double           *part_s;           /* [buckets] one part on the fast link, startup included */
    int               links;            /* in use: 1 where the slow one cannot carry any part */
    int               warmup, period;
    ddp_delayed_step *step;             /* [warmup + period] */
    ddp_delayed_send *send;             /* [sends] */
    int               sends;
    int               updates;          /* in the steady period */
    int              *k;                /* [updates] iterations merged, the batch-size sequence */
    int              *delay;            /* [updates] iterations by which an update is later than its
                                         * newest gradient; the oldest waits k - 1 more */
    double            iteration_s;      /* mean over the steady period */
    double            update_frequency; /* updates / period */
    double            forward_s, backward_s, comm_s; /* T_f, T_b and T_c after partition */
    double            lower_bound_s;    /* max(T_f + T_b, frequency x T_c / (1 + 1/mu)) */
    double            capacity_scale;
    int               no_barrier;       /* sends may straddle the stages */
} ddp_delayed_plan;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_plan_delayed - DeFT's schedule for buckets (rows of the profile, row 0 = input side).
 *
 * The two queues and four cases of Algorithm 2 run from an empty start until a state comes back:
 * that is the steady period. Gradients of all iterations are merged (a mean of k), each part of a
 * merged gradient is reduced exactly once, no part starves. With select = release and
 * capacity_scale 1 no send outlasts its stage: every iteration takes T_f + T_b.
 *
 * Partition: a bucket of c seconds becomes k = max(1, ceil((c - alpha)/(limit - alpha))) equal
 * parts of alpha + (c - alpha)/k, limit = min(partition, min(T_f, T_b)/mu); parts of a bucket are
 * ready together. A stage that computes nothing is left out of the rule. Where it would give more
 * than 512 parts (or two a bucket) only the fast link, then only the longer stage, has to take
 * every part. If limit <= alpha the slow link is left unused.
 * no_barrier: also one knapsack of T_f + T_b an iteration, with the parts above and with parts of
 * up to (T_f + T_b)/mu; the plan with the least time per update is taken.
 * target_frequency: the capacity is bisected and the shortest iteration of all tries kept;
 * capacity_scale is then the start of the search. The floor is lower_bound_s.
 * A profile's own alpha_s is added to every comm_s and to alpha.
 *
 * Source: DeFT (Meng and Sun), Algorithms 1 and 2, sections III and IV. Decided against the
 * print: the first remainTime of Algorithm 1 is the backward time of the buckets below N, not all
 * of it; in case 3 a part starts at max(link load, ready), not after the sum of both; a merged
 * gradient that is complete in its own backward is applied in the same iteration, without delay;
 * capacities are compared in fast-link time; re-partition by US-Byte is left out.
 * *out is overwritten, not freed; untouched on error. Pure; safe from any thread.
 * Errors: DDP_ARG (names the value), DDP_UNSUPPORTED (no steady period within 4096 iterations;
 * exact on more parts than ddp_knapsack takes), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_plan_delayed(const ddp_profile *buckets, const ddp_delayed_options *o,
                                    ddp_delayed_plan *out, ddp_error *err);
DDP_API void       ddp_delayed_plan_free(ddp_delayed_plan *plan); /* all-zero is fine */

DDP_API const char *ddp_delayed_select_name(ddp_delayed_select select);
DDP_API ddp_status  ddp_delayed_select_named(const char *name, ddp_delayed_select *out,
                                             ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_DEFT_H */
/* ==== end plan/deft.h ==== */

/* ==== begin plan/preserver.h ==== [plan] */
/* DeFT's Preserver: what merging k iterations into one update costs in convergence. */
#ifndef DDP_PLAN_PRESERVER_H
#define DDP_PLAN_PRESERVER_H

/* The loss as a random walk that rebounds at its lowest point:
 * s' = S* + |s - S* - eta Delta|, Delta ~ N(mu, sigma^2 / batch). */
typedef struct ddp_preserver {
    double eta;       /* learning rate, > 0 */
    double mu;        /* mean of Delta: |g|^2, >= 0 */
    double sigma;     /* sqrt(g' Sigma g), Sigma the covariance of one sample's gradient; >= 0.
                       * Estimate: deviation of g . g_w over workers x sqrt(samples of a worker) */
    double batch;     /* samples in an unmerged update, > 0 */
    double start;     /* s, the loss now; >= target */
    double target;    /* S*, the lowest loss, >= 0: an offset in both dilutes the ratio */
    double tolerance; /* 0 = 0.01, the paper's epsilon */
    int    sum;       /* a merged gradient is the sum of k (k x eta), not their mean */
    int    one_sided; /* accept every ratio above 1 (the plan's loss is then the lower one) */
    int    rotations; /* judge the sequence by its worst rotation, not as it begins */
} ddp_preserver;

typedef struct ddp_preserved {
    double expected_base; /* loss after sum(k) updates with batch B */
    double expected_plan; /* after one update per k, batch k x B */
    double ratio;         /* base / plan */
    int    accepted;
    int    retries;       /* ddp_preserver_plan: how often the capacity was raised, 0..10 */
} ddp_preserved;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_preserver_expect - expected loss after one update from loss s that merges k iterations:
 *     m = s - S* - eta mu,  d = eta sigma / sqrt(k B),  a = m / d
 *     E = m (Phi(a) - Phi(-a)) + d sqrt(2/pi) exp(-a a / 2) + S*       (d = 0: |m| + S*)
 * Errata: the printed E_B has the random Delta where its mean belongs, and calls Phi the
 * distribution of Delta; with this a it is the standard normal one. */
DDP_API double ddp_preserver_expect(const ddp_preserver *model, double s, int k);

/* ddp_preserver_test - the ratio test on the batch-size sequence k[updates]: accepted if
 * |ratio - 1| <= tolerance (one_sided: ratio >= 1 - tolerance). The expectation is fed forward as
 * the next state. The model ignores the delay of updates.
 * Errors: DDP_ARG (names the value), DDP_NUMERIC. */
DDP_API ddp_status ddp_preserver_test(const ddp_preserver *model, const int *k, int updates,
                                      ddp_preserved *out, ddp_error *err);

/* ddp_preserver_plan - ddp_plan_delayed whose capacity grows until the test accepts: by 1.1 a time,
 * at most ten times (the paper gives no factor). If none passes, the plan with the best ratio is
 * returned with accepted = 0. *plan is freed by ddp_delayed_plan_free.
 * Source: DeFT section IV-C. Both outputs are untouched on error. Pure; safe from any thread. */
DDP_API ddp_status ddp_preserver_plan(const ddp_profile *buckets, const ddp_delayed_options *o,
                                      const ddp_preserver *model, ddp_delayed_plan *plan,
                                      ddp_preserved *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_PRESERVER_H */
/* ==== end plan/preserver.h ==== */

/* ==== begin plan/osp.h ==== [plan] */
/* OSP's planner: which layers a parameter server may receive one iteration late, and how much. */
#ifndef DDP_PLAN_OSP_H
#define DDP_PLAN_OSP_H

typedef enum ddp_osp_rule {
    DDP_OSP_WALK,    /* by rising importance; a layer that does not fit is skipped */
    DDP_OSP_STOP,    /* the same; the first layer that does not fit ends the walk */
    DDP_OSP_DENSITY, /* walk by rising importance per byte */
    DDP_OSP_KNAPSACK /* at least the bytes of the walk, with the least importance */
} ddp_osp_rule;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_osp_importance - PGP of one layer: sum over its n elements of |gradient x parameter|, in
 * double; mean != 0: divided by n (as printed large layers rank high). The gradient is the mean of
 * all workers, the parameters those before its update. Errors: DDP_ARG, DDP_NUMERIC (names the
 * element). Source: OSP (Fu and others), section 4.1.1. */
DDP_API ddp_status ddp_osp_importance(const float *gradient, const float *parameter, size_t n,
                                      int mean, double *out, ddp_error *err);

/* ddp_osp_rank - the bitmap GIB: bit l (gib[l / 8] >> l % 8) = 1 if layer l is sent at once (RS),
 * 0 if it may travel during the next computation (ICS).
 *
 *   importance [layers] >= 0, bytes [layers] >= 0
 *   budget     S(G^u): the deferred layers together have at most so many bytes; 0 defers nothing
 *   gib        [(layers + 7) / 8]; deferred (may be NULL) receives the bytes of the 0 bits
 *
 * Equal importance: lower index first, for all workers alike. A layer without bytes is never
 * deferred. knapsack keeps the set of largest
 * importance within the bytes that the walk sends at once (ddp_knapsack); if that would defer more
 * than the budget, the walk's bitmap is kept, so it never defers fewer bytes nor more importance
 * than the walk. Outputs are untouched on error. Errors: DDP_ARG (names the layer), DDP_MEMORY. */
DDP_API ddp_status ddp_osp_rank(int layers, const double *importance, const double *bytes,
                                double budget, ddp_osp_rule rule, unsigned char *gib,
                                double *deferred, ddp_error *err);

/* ddp_osp_umax - the most bytes that ICS can hide behind one computation, at most 0.8 of the model:
 *     b T_c / (N (1 + lr))       (default)
 *     b (1 + lr) T_c / N         (literal: Eq. 5 as printed; more loss would allow more)
 * b bytes per second of the server in each direction, lr the packet loss rate 0..1, T_c the
 * computing time of an iteration, N workers. Errors: DDP_ARG. */
DDP_API ddp_status ddp_osp_umax(double bytes_per_s, double loss_rate, double compute_s, int workers,
                                double model_bytes, int literal, double *out, ddp_error *err);

/* ddp_osp_budget - S(G^u) of the next epoch: (1 - loss / first_loss) u_max within 0..u_max, where
 * loss is that of the epoch just finished and first_loss that of the first one. So the first two
 * epochs defer nothing (before the first is finished use 0). A loss that is not finite, or a
 * first_loss that is not above 0, gives 0. Source: OSP, Algorithm 1. */
DDP_API double ddp_osp_budget(double loss, double first_loss, double u_max);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_OSP_H */
/* ==== end plan/osp.h ==== */

/* ==== begin plan/matching.h ==== [plan] */
/* Bottleneck perfect matching: pair two equal sets so that the heaviest pair is as light as
 * possible. */
#ifndef DDP_PLAN_MATCHING_H
#define DDP_PLAN_MATCHING_H

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_matching_bottleneck - a perfect matching whose largest weight is smallest.
 *
 *   n        size of both sides, at least 1
 *   weight   [n x n] row = left, column = right; finite
 *   mate     [n] receives the right partner of each left vertex
 *   value    receives the largest weight in that matching
 *
 * Binary search over the distinct weights; each threshold is tested by augmenting paths that
 * start from the matching of the last infeasible threshold. mate realises *value (the released
 * DT-FM program may return a heavier pair than the value it claims). Among equally good matchings
 * the choice depends on the weights alone. O(n^2 log n + n^3) at worst.
 * Outputs are untouched on error. Pure; safe from any thread. Errors: DDP_ARG (n < 1, a weight
 * that is not finite), DDP_MEMORY. */
DDP_API ddp_status ddp_matching_bottleneck(int n, const double *weight, int *mate, double *value,
                                           ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_MATCHING_H */
/* ==== end plan/matching.h ==== */

/* ==== begin plan/tour.h ==== [plan] */
/* The open travelling salesman: the cheapest order in which to visit every node once. */
#ifndef DDP_PLAN_TOUR_H
#define DDP_PLAN_TOUR_H

#define DDP_TOUR_EXACT 16 /* up to so many nodes the order is optimal */

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_tour_open - a shortest path through all n nodes.
 *
 *   cost     [n x n] cost of going from row to column; finite, >= 0, need not be symmetric; the
 *            diagonal is not read
 *   first    the node to begin with, or -1 = free
 *   last     the node to end with, or -1 = free; unlike first where n > 1
 *   order    [n] receives the nodes in order
 *   length   receives the sum along them
 *
 * n <= DDP_TOUR_EXACT: Held-Karp, optimal, O(n^2 2^n) time and n 2^n doubles (8 MiB at 16).
 * Above: nearest neighbour from every (at most 64) start, then 2-opt and or-opt until no move of
 * either shortens the path, the best of the starts; not proven.
 * DT-FM (arXiv:2206.01288) Eq. 4 with both ends free.
 * Deterministic. Outputs are untouched on error. Pure; safe from any thread.
 * Errors: DDP_ARG (n < 1, a bad end, a cost that is negative or not finite), DDP_MEMORY. */
DDP_API ddp_status ddp_tour_open(int n, const double *cost, int first, int last, int *order,
                                 double *length, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_TOUR_H */
/* ==== end plan/tour.h ==== */

/* ==== begin plan/place.h ==== [plan] */
/* DT-FM's placement: which device runs which stage of which pipeline. */
#ifndef DDP_PLAN_PLACE_H
#define DDP_PLAN_PLACE_H

typedef enum ddp_place_solver {
    DDP_PLACE_DEFAULT,      /* anneal */
    DDP_PLACE_ANNEAL,       /* starts from the clusters of the network, annealing, re-matching */
    DDP_PLACE_GENETIC,      /* section 3.4 of the paper */
    DDP_PLACE_GENETIC_CODE, /* the search that the authors released */
    DDP_PLACE_KL,           /* the same with their Kernighan-Lin gain */
    DDP_PLACE_RANDOM,       /* shuffles, stage order and pipelines as they fall */
    DDP_PLACE_EXACT         /* branch and bound over the make-up of stages */
} ddp_place_solver;

typedef struct ddp_place_options {
    ddp_place_solver solver;
    int      pipelines, stages; /* D_dp, D_pp; 0 = what the network says */
    uint64_t seed;
    double   time_limit_s;      /* 0 = none (exact: 60 s) */
    long     max_candidates;    /* 0 = none if there is a time limit, else 5,000; anneal 4,000,000,
                                   exact none */
    /* Called at each improvement and about ten times a second, on the caller's thread; nonzero
     * stops the search with what it has. */
    int    (*progress)(void *user, double seconds, double best_s);
    void    *user;
} ddp_place_options;

/* A placement, freed by ddp_placement_free. */
typedef struct ddp_placement {
    int     pipelines, stages;
    int    *assign;      /* [pipelines x stages] device of stage j of pipeline i */
    double  cost_s;      /* datap_s + pipelinep_s */
    double  datap_s;     /* the slowest stage's averaging */
    double  pipelinep_s; /* the hops of a pipeline, each as slow as its slowest pipeline */
    int     proven;      /* nothing is better */
    double  solve_s;
    long    candidates;  /* anneal: moves tried; exact: compositions entered; else partitions */
    int     points;      /* improvements */
    double *curve;       /* [points x 2] seconds since the start, best cost then */
} ddp_placement;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_place - the cheapest placement of one replica of every stage in every pipeline.
 *
 * The cost in seconds of one iteration (DT-FM, arXiv:2206.01288, Eq. 1-4), with a = delay and
 * b = rate of a pair, both averaged over the two directions (paper section 2):
 *     datap      max over stages j, max over d in stage j, sum over d' of 2 (a + dp_bytes/(D_dp b))
 *     pipelinep  sum over hops j -> j+1, max over pipelines of 2 (a + pp_bytes/b)
 * For a given partition into stages the best pipelines and the best order of stages are the
 * bottleneck matching of each pair of stages (Eq. 3) and an open travelling salesman over these
 * values (Eq. 4), exact up to 16 stages; every solver but random ends with both.
 * Global rank of assign[i][j] in a training run: i x stages + j.
 *
 * Readings where the paper and its program differ:
 *   pp_bytes covers all micro-batches of one pipeline in an iteration (the paper's text says one)
 *   the matching realises its value (the released one may not)
 *   the data groups use the sharded server of Eq. 2
 *   genetic: parents, five devices from the other parent, then a circular chain of the paper's
 *     swaps (fastest link of each of two groups, four candidates, the printed gain, each device
 *     once), cut at its largest sum of gains; an offspring better than the worst replaces it
 *   genetic-code: one pass of cyclic one-way moves; an offspring better than its first parent
 *     replaces the worse parent, as the released test works out; the last cycle is kept
 *   kl: gain s(v,q) - s(v,own) with s = sum of (pp_bytes - dp_bytes)/b, the delay cancelling
 *
 * The same seed and candidate limit give the same placement on every platform; a time limit stops
 * where the clock says, and anneal fits its cooling to it. With few partitions (20,000: any
 * network of up to 10 devices, and one stage always) anneal and exact try them all: `proven`. With
 * one pipeline of up to 16 stages the tour alone is exact and proven.
 * *out is overwritten, not freed; untouched on error. Pure but for ddp_now; safe from any thread.
 * Errors: DDP_ARG (as ddp_network_check; D_dp x D_pp is not N; negative limits), DDP_NUMERIC,
 * DDP_MEMORY. */
DDP_API ddp_status ddp_place(const ddp_network *net, const ddp_place_options *o, ddp_placement *out,
                             ddp_error *err);

/* ddp_place_cost - the cost of any assignment [pipelines x stages] as it stands (no re-matching).
 * datap_s and pipelinep_s may be NULL. Errors: DDP_ARG (also a device that is missing or used
 * twice), DDP_NUMERIC, DDP_MEMORY; outputs are untouched then. */
DDP_API ddp_status ddp_place_cost(const ddp_network *net, int pipelines, int stages,
                                  const int *assign, double *cost_s, double *datap_s,
                                  double *pipelinep_s, ddp_error *err);

/* ddp_placement_free - all-zero is fine. */
DDP_API void ddp_placement_free(ddp_placement *p);

/* "anneal", "genetic", "genetic-code", "kl", "random", "exact"; a bad value gives "unknown". The
 * inverse fails with DDP_ARG and a sentence that lists them. */
DDP_API const char *ddp_place_solver_name(ddp_place_solver solver);
DDP_API ddp_status  ddp_place_solver_named(const char *name, ddp_place_solver *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_PLACE_H */
/* ==== end plan/place.h ==== */

/* ==== begin sync/session.h ==== [sync] */
/* The context: a training loop registers its layers and calls a few hooks; the library decides
 * when a layer is updated and what is sent when (DESIGN sections 3 to 5). */
#ifndef DDP_SYNC_SESSION_H
#define DDP_SYNC_SESSION_H

typedef enum ddp_strategy {
    DDP_STRATEGY_DEFAULT, /* dreamddp */
    DDP_SSGD,             /* gradients averaged after the whole backward, then one update */
    DDP_WFBP,             /* gradients in buckets, sent while the backward goes on; same bits as ssgd */
    DDP_LOCALSGD,         /* local updates; all parameters averaged every H-th step */
    DDP_ENP,              /* partial averaging, equal number of layers per step */
    DDP_DREAMDDP          /* partial averaging, each layer in the step where its transfer hides */
} ddp_strategy;

typedef enum ddp_transport {
    DDP_TRANSPORT_DEFAULT, /* tcp */
    DDP_THREADS,           /* ranks are threads of one process: only through ddp_launch */
    DDP_TCP                /* ranks are processes */
} ddp_transport;

/* Everything is optional: zero = the default named on the line. Strings are read during
 * ddp_open and need not outlive it. With world == 0 and no_env == 0 the environment (DREAMDDP_*,
 * then torchrun, Open MPI, MPICH, Slurm names) says rank, world and address, and fills any other
 * field below that is zero and has a DREAMDDP_ variable; world > 0 makes rank literal. */
typedef struct ddp_config {
    ddp_strategy   strategy;        /* dreamddp; DREAMDDP_STRATEGY */
    int            period;          /* H, steps in which each layer is averaged once; 5; DREAMDDP_PERIOD */
    ddp_transport  transport;       /* tcp; DREAMDDP_TRANSPORT */
    int            rank, world;     /* 0 of 1 */
    const char    *addr;            /* host:port of rank 0; "127.0.0.1:29500"; DREAMDDP_ADDR */
    const char    *run_id;          /* workers with another id are refused; ""; DREAMDDP_RUN_ID */
    const char    *net;             /* "RATE,DELAY": shape this worker's links, e.g. "100mbit,20ms"; unshaped; DREAMDDP_NET */
    int            threads;         /* operator threads of this worker; 1; DREAMDDP_THREADS */
    uint64_t       seed;            /* of initialisation and dropout; 0 */
    int            micro_batches;   /* backward passes per step; their mean gradient is used; 1 */
    float          clip_norm;       /* global gradient norm limit; 0 = none. Makes dreamddp and enp
                                       average before the update (their transfer needs no gradient) */
    int            average_state;   /* 1: average the optimizer state with the parameters */
    int            deterministic;   /* 1: equal bits on every transport, plan from FLOPs and bytes, never from clocks */
    int            paper;           /* 1: the paper's own rule: contiguous sets, timeline cost, all complete at step end */
    ddp_solver     solver;          /* scatter */
    ddp_cost       cost;            /* window with forward hooks, else timeline */
    ddp_fill       fill;            /* none */
    int            profile_steps;   /* steps measured before the plan is made; 6 (the first is discarded) */
    const char    *profile_path;    /* CSV that replaces measuring; NULL */
    const char    *plan_path;       /* JSON of `plan partial` that replaces planning; NULL */
    size_t         bucket_bytes;    /* wfbp bucket; 25 MiB (the first holds 1 MiB) */
    double         connect_timeout_s; /* 30; DREAMDDP_CONNECT_TIMEOUT */
    double         peer_timeout_s;  /* silence after which a peer is lost; 10; DREAMDDP_PEER_TIMEOUT */
    double         op_timeout_s;    /* an operation that stands still for so long fails; 300; DREAMDDP_OP_TIMEOUT */
    int            insecure;        /* 1: allow addresses beyond this machine without encryption; DREAMDDP_INSECURE */
    int            no_env;          /* 1: never read the environment (embedders) */
    int            check_writes;    /* 1: report writes to a layer in flight; on under DREAMDDP_DEBUG */
    int            trace_spans;     /* spans kept for ddp_trace_copy; 0 = only what statistics need */
    const volatile int *cancel;     /* ddp_launch stops its workers when this becomes non-zero; borrowed */
    ddp_allocator  allocator;       /* malloc */
    ddp_logger     logger;          /* none (DREAMDDP_LOG=info prints to stderr) */
} ddp_config;

/* What the program knows of its step; zero fields are ignored. */
typedef struct ddp_step_info {
    double loss;
    long   samples; /* local samples of the step */
    double epoch;
    float  lr;      /* > 0: learning rate of this step's updates that are still to come */
} ddp_step_info;

/* Numbers since the profile steps ended, whatever the strategy, or since ddp_plan_adopt.
 * Shares and times are of this rank. */
typedef struct ddp_stats {
    long    steps;            /* finished steps in all */
    long    counted_steps;    /* steps the figures below are about */
    double  step_s;           /* mean time of a step */
    double  wait_s;           /* mean time a step waited for communication */
    double  comm_s;           /* total communication, union of operations */
    double  exposed_s;        /* of it, outside compute */
    double  hidden_pct;       /* 100 x (1 - exposed / comm); 100 without communication */
    double  peer_wait_s;      /* waiting for a slower peer, counted apart */
    int64_t bytes_sent;       /* all bytes of the whole run, headers included */
    double  predicted_step_s; /* by the plan's model, forward included; 0 = no plan */
    double  predicted_hidden_pct;
    double  divergence;       /* Gamma of DreamDDP section 2.4, this rank's share: sum over layers of
                                 |average - own|^2 at their last averaging; mean over ranks = Gamma */
    ddp_link link;            /* measured: averaging n bytes takes alpha_s + beta_s n */
} ddp_stats;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_open - joins the world that cfg (NULL = all zero) describes; blocks until all ranks are
 * there. NULL on failure, then *err (may be NULL) says why. One context belongs to one thread;
 * several contexts in one process are independent. ddp_close frees it (NULL is fine). */
DDP_API ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err);
DDP_API void     ddp_close(ddp_ctx *d);

/* ddp_launch - runs fn once per rank: cfg->world threads (DDP_THREADS) or processes (DDP_TCP, on
 * a free loopback port), or once here when a launcher already made the ranks or world <= 1. fn
 * gets an open context, which ddp_launch closes; it returns 0 or a ddp_status. With processes
 * the parent only supervises: nothing that fn stores is seen by it.
 * Returns DDP_OK when every rank did, else the first failure with its sentence in *err. */
DDP_API int ddp_launch(const ddp_config *cfg, int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err);

/* ddp_add_layer - registers the next layer, in forward order, the same on every rank. Layers are
 * numbered from 0. ddp_set_optimizer - registers the update rule (copied; default ddp_sgd(0.01, 0)).
 * Called after the layers it also starts the session: layer lists are compared and every rank
 * takes rank 0's parameters; otherwise the first hook does. Collective. */
DDP_API int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer);
DDP_API int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o);

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
 * ddp_abort - fails everything in flight on all ranks with this sentence. Any thread. */
DDP_API int  ddp_wait(ddp_ctx *d);
DDP_API int  ddp_sync_all(ddp_ctx *d);
DDP_API void ddp_abort(ddp_ctx *d, const char *why);

/* Reading the context. ddp_last_error is never NULL; code DDP_OK means none. */
DDP_API int  ddp_rank(const ddp_ctx *d);
DDP_API int  ddp_world(const ddp_ctx *d);
DDP_API long ddp_step(const ddp_ctx *d);
DDP_API void ddp_set_lr(ddp_ctx *d, float lr);
DDP_API const ddp_error *ddp_last_error(const ddp_ctx *d);
DDP_API void ddp_get_stats(ddp_ctx *d, ddp_stats *out);
DDP_API double ddp_divergence(const ddp_ctx *d, int layer); /* this rank's share, last averaging */
/* How the last all-reduce travelled: "direct", "ring", or "none" before there was one. */
DDP_API const char *ddp_last_algorithm(const ddp_ctx *d);
/* Copies the newest spans (compute of this rank and its communication), oldest first. */
DDP_API int  ddp_trace_copy(ddp_ctx *d, ddp_span *out, int room);

/* The plan and the profile in force, borrowed until the next ddp_step_end; NULL before there is
 * one. ddp_plan_adopt - takes a plan (copied) at once instead of planning; collective, same plan
 * on all ranks. ddp_plan_read - reads the JSON of `plan partial` for a model of layers layers. */
DDP_API const ddp_plan    *ddp_plan_get(const ddp_ctx *d);
DDP_API const ddp_profile *ddp_profile_get(const ddp_ctx *d);
DDP_API int                ddp_plan_adopt(ddp_ctx *d, const ddp_plan *plan);
DDP_API ddp_status         ddp_plan_read(const char *path, int layers, ddp_plan *out, ddp_error *err);

/* Plain collectives over all ranks, usable without layers or hooks; each returns 0 or the first
 * error. In place; n counts floats. All ranks call them in the same order, never between the
 * first hook and ddp_step_end of a step.
 *   ddp_all_reduce  x[n] becomes scale x (sum over ranks): 1/world for the mean
 *   ddp_all_gather  x[world x n]: rank r's block is the r-th */
DDP_API int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root);
DDP_API int ddp_all_gather(ddp_ctx *d, float *x, size_t n);
DDP_API int ddp_barrier(ddp_ctx *d);
DDP_API int ddp_send(ddp_ctx *d, float *x, size_t n, int to);
DDP_API int ddp_recv(ddp_ctx *d, float *x, size_t n, int from);

/* Names as in --strategy and back; DDP_STRATEGY_DEFAULT / "default" where unknown. */
DDP_API const char  *ddp_strategy_name(ddp_strategy s);
DDP_API ddp_strategy ddp_strategy_named(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_SESSION_H */
/* ==== end sync/session.h ==== */

/* ==== begin report/data.h ==== [report] */
/* What a report is made of: plain data, filled by programs, read by every writer of src/report. */
#ifndef DDP_REPORT_DATA_H
#define DDP_REPORT_DATA_H

/* One training step of one run. */
typedef struct ddp_report_step {
    double  time_s;     /* since the start of the run, at the end of the step */
    double  loss;       /* NAN: not known */
    int64_t bytes;      /* sent by one worker since the start of the run */
    double  divergence; /* Gamma, measured where something was averaged in the step; NAN: not */
} ddp_report_step;

/* What one worker did: its spans in any order, ddp_now() seconds. */
typedef struct ddp_report_worker {
    const ddp_span *spans;
    int             count;
} ddp_report_worker;

/* One layer of the model, in forward order. Unknown costs are NAN. */
typedef struct ddp_report_layer {
    const char *name; /* NULL: shown by its index */
    double      params;
    double      backward_s;
    double      comm_s; /* how long averaging it occupies the link */
} ddp_report_layer;

/* One strategy. Unknown figures are NAN, unknown counts 0, unknown texts NULL. */
typedef struct ddp_report_run {
    const char *strategy;
    double      step_ms;
    double      hidden_pct; /* 0..100 */
    double      predicted_step_ms, predicted_hidden_pct;
    int64_t     bytes_sent;     /* per worker; -1 unknown */
    double      time_to_loss_s; /* until ddp_report_data.target_loss; NAN: not reached */
    double      final_loss;
    const char *param_hash;

    const ddp_report_step *steps; /* [step_count] */
    int                    step_count;

    int                  period;           /* H; 0 = the run has no plan */
    const int           *step_of;          /* [layer_count] step 0..H-1 that averages the layer, or NULL */
    const unsigned char *fill;             /* [H x layer_count] 1 = averaged once more there, or NULL */
    const double        *layer_divergence; /* [layer_count] mean Gamma per layer, or NULL */

    const ddp_report_worker *workers; /* [worker_count] */
    int                      worker_count;
    double                   window_begin_s, window_end_s; /* the part drawn; equal = everything */
} ddp_report_run;

/* All pointers are borrowed for the length of a call. All-zero is a valid, empty report. */
typedef struct ddp_report_data {
    const char *title, *command, *version, *host, *net, *model; /* NULL = left out */
    uint64_t    seed;
    int         workers;
    double      target_loss; /* the common loss that time_to_loss_s is about; NAN = none */

    const ddp_report_layer *layers; /* [layer_count] */
    int                     layer_count;
    const ddp_report_run   *runs; /* [run_count]; ratios are against the run called "ssgd" */
    int                     run_count;
} ddp_report_data;

#endif /* DDP_REPORT_DATA_H */
/* ==== end report/data.h ==== */

/* ==== begin report/progress.h ==== [report] */
/* The progress line and the closing table of a program, on a FILE that the program chooses. */
#ifndef DDP_REPORT_PROGRESS_H
#define DDP_REPORT_PROGRESS_H

#include <stdio.h>

/* State of one progress line; fill through ddp_progress_start. One thread at a time. */
typedef struct ddp_progress {
    FILE       *out;     /* borrowed; NULL = silent */
    const char *label;   /* borrowed: strategy or run name */
    long        total;   /* steps */
    double      every_s; /* seconds between two lines: 0.1 on a terminal, else 10 */
    int         terminal, colour;
    double      start_s, shown_s, step_s; /* step_s: moving mean of the time between steps */
    double      last_s;
    double      tokens_per_s;
    int         width; /* of the line that stands on the terminal */
} ddp_progress;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_progress_start - begins a line `label  step 12/100  loss 2.345  81.2 ms  6.3k tok/s  ETA 7s`.
 * On a terminal it is redrawn in place at most ten times a second, bold unless NO_COLOR is set or
 * TERM is dumb; otherwise a plain line appears at most every 10 s (set every_s for another rhythm)
 * and one at the last step.
 * ddp_progress_step - after step `done` (1..total). loss NAN = unknown; tokens (or images) of this
 * step over all workers, 0 = not shown. Allocates nothing.
 * ddp_progress_end - closes the line, so that what follows begins on a fresh one. */
DDP_API void ddp_progress_start(ddp_progress *p, FILE *out, const char *label, long total);
DDP_API void ddp_progress_step(ddp_progress *p, long done, double loss, double tokens);
DDP_API void ddp_progress_end(ddp_progress *p);

/* ddp_report_table - aligned columns, one row per run: strategy, step ms, step time of ssgd over
 * this run's, seconds to the common loss, MB (1e6 bytes) sent per worker, hidden communication %,
 * final loss; `-` where a figure is not known. Errors: DDP_MEMORY, DDP_IO. */
DDP_API ddp_status ddp_report_table(const ddp_report_data *d, FILE *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_PROGRESS_H */
/* ==== end report/progress.h ==== */

/* ==== begin report/jsonl.h ==== [report] */
/* JSON lines: one object per line, to a file that appears only when it is complete. */
#ifndef DDP_REPORT_JSONL_H
#define DDP_REPORT_JSONL_H

#include <stdio.h>

/* A writer. Errors are sticky: after the first one nothing more is written, and ddp_jsonl_close
 * returns it. A NULL writer is silent: a program without --json needs no ifs. One thread. */
typedef struct ddp_jsonl ddp_jsonl;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_jsonl_open - writes to PATH.tmp.PID, which ddp_jsonl_close renames to PATH; something at
 * PATH that is no regular file (/dev/stdout, a pipe) is written directly. NULL and *err on failure.
 * ddp_jsonl_stream - writes each line to out (borrowed, flushed after each line): stdout, say.
 *
 * ddp_jsonl_close - finishes and frees; returns the first error, and leaves no file then.
 * ddp_jsonl_abandon - frees and leaves no file: for runs that were interrupted. */
DDP_API ddp_jsonl *ddp_jsonl_open(const char *path, ddp_error *err);
DDP_API ddp_jsonl *ddp_jsonl_stream(FILE *out, ddp_error *err);
DDP_API ddp_status ddp_jsonl_close(ddp_jsonl *j, ddp_error *err);
DDP_API void       ddp_jsonl_abandon(ddp_jsonl *j);

/* ddp_jsonl_event - begins a line, {"event":"name"; NULL = a plain object without "event".
 * Then members; inside an array key is NULL (and is ignored).
 *   string   NULL gives null            integer   exact
 *   number   round-trips; NaN and infinities give null
 *   array, object   opens a nested value, ended by ddp_jsonl_up (at most 30 deep)
 *   integers, numbers   a whole array at once
 * ddp_jsonl_end - closes what is open and writes the whole line at once. */
DDP_API void ddp_jsonl_event(ddp_jsonl *j, const char *name);
DDP_API void ddp_jsonl_string(ddp_jsonl *j, const char *key, const char *value);
DDP_API void ddp_jsonl_integer(ddp_jsonl *j, const char *key, int64_t value);
DDP_API void ddp_jsonl_number(ddp_jsonl *j, const char *key, double value);
DDP_API void ddp_jsonl_bool(ddp_jsonl *j, const char *key, int value);
DDP_API void ddp_jsonl_array(ddp_jsonl *j, const char *key);
DDP_API void ddp_jsonl_object(ddp_jsonl *j, const char *key);
DDP_API void ddp_jsonl_up(ddp_jsonl *j);
DDP_API void ddp_jsonl_integers(ddp_jsonl *j, const char *key, const int *values, int count);
DDP_API void ddp_jsonl_numbers(ddp_jsonl *j, const char *key, const double *values, int count);
DDP_API void ddp_jsonl_end(ddp_jsonl *j);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_JSONL_H */
/* ==== end report/jsonl.h ==== */

/* ==== begin report/events.h ==== [report] */
/* The events that every program writes, with the member names that tests and users rely on. */
#ifndef DDP_REPORT_EVENTS_H
#define DDP_REPORT_EVENTS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Each writes one line; j may be NULL. Unknown figures become null.
 *   run      title, command, version, seed, host, workers, net, model
 *   profile  layers: list of {layer, params, backward_s, comm_s}
 *   plan     strategy, period, sets (layer indexes per step of the period), step_of, predicted_*;
 *            nothing is written for a run without a plan
 *   step     strategy, step, loss, step_ms, wait_ms, bytes, divergence (left out if NAN)
 *   result   strategy, workers, step_ms, hidden_pct, bytes_sent, final_loss, time_to_loss_s, param_hash
 *   error    status (text), exit_code, message */
DDP_API void ddp_jsonl_run(ddp_jsonl *j, const ddp_report_data *d);
DDP_API void ddp_jsonl_profile(ddp_jsonl *j, const ddp_report_data *d);
DDP_API void ddp_jsonl_plan(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r);
DDP_API void ddp_jsonl_step(ddp_jsonl *j, const char *strategy, long step, double loss,
                            double step_ms, double wait_ms, int64_t bytes, double divergence);
DDP_API void ddp_jsonl_result(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r);
DDP_API void ddp_jsonl_error(ddp_jsonl *j, const ddp_error *error);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_EVENTS_H */
/* ==== end report/events.h ==== */

/* ==== begin report/perfetto.h ==== [report] */
/* The spans of all workers as a Chrome trace, which ui.perfetto.dev and chrome://tracing open. */
#ifndef DDP_REPORT_PERFETTO_H
#define DDP_REPORT_PERFETTO_H

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_report_trace - every finished span of every run (not only the window) in the array form.
 *
 * A worker of a run is a process, "dreamddp rank 0", numbered 1 + rank + 1000 x run (more where a
 * run has more workers); its threads are "compute" and "communication", the latter several times
 * where transfers overlap. One "X" event per span: name = layer or kind, cat = kind, ts and dur in
 * microseconds, args step, layer, bytes. Each run starts at 0, so that runs lie side by side.
 *
 * Written to a temporary name, then renamed: on failure PATH is untouched.
 * Errors: DDP_MEMORY, DDP_IO (names the path and the reason). Safe from any thread. */
DDP_API ddp_status ddp_report_trace(const ddp_report_data *d, const char *path, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_PERFETTO_H */
/* ==== end report/perfetto.h ==== */

/* ==== begin report/html.h ==== [report] */
/* The report as one HTML file. */
#ifndef DDP_REPORT_HTML_H
#define DDP_REPORT_HTML_H

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_report_html - a self-contained page: no script, nothing fetched, light and dark.
 *
 * Facts of the run, the summary table, the lanes of computing and communication of every run on
 * one time scale, loss against time and against bytes sent, divergence against steps, the layers
 * with the step of the period that averages each, prediction beside measurement. What the data
 * lacks is left out. Texts may hold anything: they are escaped.
 *
 * The page is built in memory and written to a temporary name, then renamed: on failure PATH is
 * untouched. Safe from any thread. Errors: DDP_MEMORY, DDP_IO (names the path and the reason). */
DDP_API ddp_status ddp_report_html(const ddp_report_data *d, const char *path, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_HTML_H */
/* ==== end report/html.h ==== */

#endif /* DREAMDDP_H */

#ifdef DREAMDDP_IMPLEMENTATION
#ifndef DDP__IMPLEMENTED
#define DDP__IMPLEMENTED

/* ==== begin base/platform.h ==== [base] */
/* System headers of the implementation. Linux first; macOS is kept compiling. */
#ifndef DDP_BASE_PLATFORM_H
#define DDP_BASE_PLATFORM_H

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOCK_MONOTONIC
#error "dreamddp: a libc header was included before dreamddp.h with POSIX hidden; include dreamddp.h first in the file that defines DREAMDDP_IMPLEMENTATION, or compile with -D_GNU_SOURCE"
#endif

#endif /* DDP_BASE_PLATFORM_H */
/* ==== end base/platform.h ==== */

/* ==== begin base/fail.h ==== [base] */
/* How failures and log lines travel inside the library: a failure fills the caller's ddp_error
 * and returns the code, a log line goes to the context's logger. */
#ifndef DDP_BASE_FAIL_H
#define DDP_BASE_FAIL_H

#ifdef __cplusplus
extern "C" {
#endif

/* Fills *err (may be NULL) with code and the formatted sentence; returns code. */
DDP_LIB ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);

/* Forwards a failure of a call that returns ddp_status. */
#define DDP__TRY(call)                          \
    do {                                        \
        ddp_status ddp__try_ = (call);          \
        if (ddp__try_ != DDP_OK) return ddp__try_; \
    } while (0)

/* Resolves level and fn from the environment (unless no_env). */
DDP_LIB ddp_logger ddp__log_resolve(const ddp_logger *given, int no_env);
DDP_LIB void ddp__log(const ddp_logger *log, ddp_log_level level, const char *fmt, ...) DDP__PRINTF(3, 4);
/* off, error, warn, info, debug -> level; DDP_LOG_DEFAULT if unknown. */
DDP_LIB ddp_log_level ddp__log_level_named(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_FAIL_H */
/* ==== end base/fail.h ==== */

/* ==== begin base/memory.h ==== [base] */
/* Internal allocation: zeroed blocks from the hook, and bookkeeping arrays. */
#ifndef DDP_BASE_MEMORY_H
#define DDP_BASE_MEMORY_H

#ifdef __cplusplus
extern "C" {
#endif

/* bytes zeroed bytes, 64-byte aligned, from a (NULL or all-zero = default). NULL if bytes is 0
 * or memory is short. */
DDP_LIB void *ddp__alloc(const ddp_allocator *a, size_t bytes);
DDP_LIB void  ddp__release(const ddp_allocator *a, void *ptr, size_t bytes);

/* Bookkeeping: count zeroed elements of size bytes (never NULL-on-zero: count 0 gives 1 byte);
 * NULL when memory is short or the product overflows. Freed by DDP_FREE. */
DDP_LIB void *ddp__calloc(size_t count, size_t size);
DDP_LIB char *ddp__strdup(const char *s);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_MEMORY_H */
/* ==== end base/memory.h ==== */

/* ==== begin base/thread.h ==== [base] */
/* Threads, locks and atomics with one spelling in C11 and C++17. */
#ifndef DDP_BASE_THREAD_H
#define DDP_BASE_THREAD_H

#ifdef __cplusplus
extern "C" {
#endif

#define ddp__atomic_load(p)       __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define ddp__atomic_store(p, v)   __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define ddp__atomic_add(p, v)     __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)
#define ddp__atomic_swap(p, v)    __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)

/* Sleeps until ddp_now() >= when (seconds), whatever signals arrive. */
DDP_LIB void ddp__sleep_until(double when);

/* Asks the scheduler to run the calling thread soon after it wakes, for the little it has to do,
 * even where computing threads keep every core busy: short time slices, which need no privilege
 * (Linux 6.12 and later; elsewhere nothing happens). */
DDP_LIB void ddp__thread_prompt(void);

/* A condition variable on the monotonic clock. */
DDP_LIB int ddp__cond_init(pthread_cond_t *c);
/* Waits for c until ddp_now() reaches when; when < 0 waits without limit. 0, or ETIMEDOUT. */
DDP_LIB int ddp__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, double when);

/* A pool that splits loops over threads and sleeps in between; one caller at a time.
 * fn(user, first, last) handles items first..last-1. The split depends only on items and
 * grain, never on the number of threads, so results cannot either. */
typedef struct ddp__pool ddp__pool;
typedef void (*ddp__range_fn)(void *user, long first, long last);

/* threads >= 1, the caller included; NULL when memory or threads are short. */
DDP_LIB ddp__pool *ddp__pool_open(int threads);
DDP_LIB void ddp__pool_close(ddp__pool *pool);
DDP_LIB int  ddp__pool_threads(const ddp__pool *pool);
/* Runs fn over 0..items in blocks of grain items; returns when all are done. NULL pool: inline. */
DDP_LIB void ddp__pool_run(ddp__pool *pool, long items, long grain, ddp__range_fn fn, void *user);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_THREAD_H */
/* ==== end base/thread.h ==== */

/* ==== begin base/text.h ==== [base] */
/* Growing text buffers, whole-file reading, atomic file writing and strict number parsing. */
#ifndef DDP_BASE_TEXT_H
#define DDP_BASE_TEXT_H

#ifdef __cplusplus
extern "C" {
#endif

/* A growing, NUL-terminated buffer; all-zero = empty. After a failed growth `failed` is set and
 * further appends do nothing, so one check at the end is enough. */
typedef struct ddp__text {
    char  *data;
    size_t size, room;
    int    failed;
} ddp__text;

DDP_LIB void ddp__text_add(ddp__text *t, const char *bytes, size_t n);
DDP_LIB void ddp__text_addf(ddp__text *t, const char *fmt, ...) DDP__PRINTF(2, 3);
DDP_LIB void ddp__text_free(ddp__text *t);

/* Reads a whole file (a name ending in .gz through `gzip -dc`) into t. */
DDP_LIB ddp_status ddp__file_read(const char *path, ddp__text *t, ddp_error *err);
/* Writes to PATH.tmp.PID, flushes, renames: PATH is either the old file or the whole new one.
 * What is no regular file (/dev/stdout, a pipe) is written straight to. */
DDP_LIB ddp_status ddp__file_write(const char *path, const char *bytes, size_t n, ddp_error *err);

/* The whole of s must be one number: 1 and *out set, or 0. Infinities and NaN are refused. */
DDP_LIB int ddp__parse_double(const char *s, double *out);
DDP_LIB int ddp__parse_long(const char *s, long *out);

/* 64-bit FNV-1a, chained: pass the previous result, or DDP__HASH_START. */
#define DDP__HASH_START UINT64_C(0xcbf29ce484222325)
DDP_LIB uint64_t ddp__hash(uint64_t h, const void *data, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_TEXT_H */
/* ==== end base/text.h ==== */

/* ==== begin base/array.h ==== [base] */
/* Growing arrays for bookkeeping: stb_ds, arrays only (its maps share a process-wide seed).
 * Never in the public API, never on the comm thread, never in a training step.
 *     int *list = NULL;  stbds_arrput(list, 7);  stbds_arrlen(list);  stbds_arrfree(list);
 * (stbds_arrins and stbds_arraddnindex do not compile under gcc -Wconversion: use arrsetlen.)
 *
 * It is the installed package, not a copy. A program that uses stb_ds too may include it before
 * or after this header, in the same file or in others; base/array.c says who instantiates it. */
#ifndef DDP_BASE_ARRAY_H
#define DDP_BASE_ARRAY_H

/* Somebody who includes stb_ds.h himself wants its short names (arrput); nobody else does. */
#if !defined(INCLUDE_STB_DS_H) && !defined(DREAMDDP_NO_STB_DS_IMPLEMENTATION) && \
    !defined(STB_DS_IMPLEMENTATION) && !defined(STBDS_NO_SHORT_NAMES)
#define STBDS_NO_SHORT_NAMES
#define DDP__STBDS_NO_SHORT_NAMES
#endif

/* Here only its declarations. If the program has asked for the implementation and not yet
 * included it, its own #include below ours still gets it. */
#ifndef INCLUDE_STB_DS_H
#pragma push_macro("STB_DS_IMPLEMENTATION")
#undef STB_DS_IMPLEMENTATION
#if __has_include(<stb_ds.h>)
#include <stb_ds.h>
#elif __has_include(<stb/stb_ds.h>)
#include <stb/stb_ds.h>
#else
#error "dreamddp: stb_ds.h was not found; install libstb-dev (Debian, Ubuntu), stb-devel (Fedora) or put stb_ds.h on the include path"
#endif
#pragma pop_macro("STB_DS_IMPLEMENTATION")
#endif

#ifdef DDP__STBDS_NO_SHORT_NAMES
#undef STBDS_NO_SHORT_NAMES
#endif

#endif /* DDP_BASE_ARRAY_H */
/* ==== end base/array.h ==== */

/* ==== begin base/status.c ==== [base] */

const char *ddp_status_text(ddp_status code)
{
    switch (code) {
#define DDP__STATUS_TEXT(name, exit_code, text) case DDP_##name: return text;
    DDP_STATUS_LIST(DDP__STATUS_TEXT)
#undef DDP__STATUS_TEXT
    case DDP_STATUS_COUNT: break;
    }
    return "unknown status";
}

int ddp_status_exit_code(ddp_status code)
{
    switch (code) {
#define DDP__STATUS_EXIT(name, exit_code, text) case DDP_##name: return exit_code;
    DDP_STATUS_LIST(DDP__STATUS_EXIT)
#undef DDP__STATUS_EXIT
    case DDP_STATUS_COUNT: break;
    }
    return 1;
}

ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...)
{
    va_list ap;

    if (!err) return code;
    err->code = code;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return code;
}
/* ==== end base/status.c ==== */

/* ==== begin base/memory.c ==== [base] */

#include <sys/mman.h>

/* From this size on a block is aligned to, and advised as, 2 MiB pages: a first touch of 4 KiB
 * pages costs four times as much as one of huge pages. */
#define DDP__HUGE_BYTES ((size_t)2 << 20)

void *ddp__alloc(const ddp_allocator *a, size_t bytes)
{
    void *p = NULL;
    size_t align = bytes >= 2 * DDP__HUGE_BYTES ? DDP__HUGE_BYTES : 64;

    if (bytes == 0) return NULL;
    if (a && a->alloc) {
        p = a->alloc(a->user, bytes);
    } else {
        if (posix_memalign(&p, align, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
        if (align == DDP__HUGE_BYTES) (void)madvise(p, bytes - bytes % DDP__HUGE_BYTES, MADV_HUGEPAGE);
#endif
    }
    if (p) memset(p, 0, bytes);
    return p;
}

void ddp__release(const ddp_allocator *a, void *ptr, size_t bytes)
{
    if (!ptr) return;
    if (a && a->alloc) a->free(a->user, ptr, bytes);
    else free(ptr);
}

void *ddp__calloc(size_t count, size_t size)
{
    size_t bytes;
    void *p;

    if (size && count > SIZE_MAX / size) return NULL;
    bytes = count * size;
    if (bytes == 0) bytes = 1;
    p = DDP_REALLOC(NULL, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

char *ddp__strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = (char *)ddp__calloc(n, 1);

    if (p) memcpy(p, s, n);
    return p;
}
/* ==== end base/memory.c ==== */

/* ==== begin base/clock.c ==== [base] */

double ddp_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

void ddp__sleep_until(double when)
{
    double left;

    while ((left = when - ddp_now()) > 0) {
        struct timespec ts;
        ts.tv_sec = (time_t)left;
        ts.tv_nsec = (long)((left - (double)ts.tv_sec) * 1e9);
        nanosleep(&ts, NULL);
    }
}
/* ==== end base/clock.c ==== */

/* ==== begin base/thread.c ==== [base] */

/* syscall() is hidden where a libc header came first under strict C. */
#if defined(__linux__) && (defined(__GLIBC__) ? defined(__USE_MISC) : defined(_GNU_SOURCE))
#include <sys/syscall.h>
#endif

void ddp__thread_prompt(void)
{
#if defined(SYS_sched_getattr) && defined(SYS_sched_setattr)
    struct { /* sched_setattr(2) */
        uint32_t size, policy;
        uint64_t flags;
        int32_t  nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a;

    memset(&a, 0, sizeof a);
    if (syscall(SYS_sched_getattr, 0, &a, (unsigned)sizeof a, 0u) || a.policy != 0) return; /* not SCHED_OTHER */
    a.runtime = 100000; /* nanoseconds, the least that is allowed */
    (void)syscall(SYS_sched_setattr, 0, &a, 0u);
#endif
}

int ddp__cond_init(pthread_cond_t *c)
{
#ifdef __APPLE__
    return pthread_cond_init(c, NULL);
#else
    pthread_condattr_t attr;
    int why = pthread_condattr_init(&attr);

    if (why) return why;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    why = pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
    return why;
#endif
}

int ddp__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, double when)
{
    struct timespec ts;

    if (when < 0) return pthread_cond_wait(c, m);
#ifdef __APPLE__
    {
        double left = when - ddp_now();
        if (left < 0) left = 0;
        ts.tv_sec = (time_t)left;
        ts.tv_nsec = (long)((left - (double)ts.tv_sec) * 1e9);
        return pthread_cond_timedwait_relative_np(c, m, &ts);
    }
#else
    ts.tv_sec = (time_t)when;
    ts.tv_nsec = (long)((when - (double)ts.tv_sec) * 1e9);
    return pthread_cond_timedwait(c, m, &ts);
#endif
}

struct ddp__pool {
    pthread_mutex_t lock;
    pthread_cond_t  work, idle;
    pthread_t      *thread;      /* [threads - 1] */
    int             threads;
    int             stop;
    int             busy;        /* helpers inside the current job */
    unsigned long   job;         /* number of the current job */
    ddp__range_fn   fn;
    void           *user;
    long            items, grain;
    long            next;        /* first item nobody has taken; atomic */
};

/* Takes blocks until none is left. Which thread takes a block does not matter: blocks are
 * independent by contract. */
static void ddp__pool_drain(ddp__pool *p)
{
    for (;;) {
        long first = ddp__atomic_add(&p->next, p->grain);
        long last = first + p->grain;
        if (first >= p->items) return;
        p->fn(p->user, first, last < p->items ? last : p->items);
    }
}

static void *ddp__pool_main(void *arg)
{
    ddp__pool *p = (ddp__pool *)arg;
    unsigned long seen = 0;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->job == seen) pthread_cond_wait(&p->work, &p->lock);
        if (p->stop) break;
        seen = p->job;
        p->busy++;
        pthread_mutex_unlock(&p->lock);
        ddp__pool_drain(p);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0) pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

ddp__pool *ddp__pool_open(int threads)
{
    ddp__pool *p = (ddp__pool *)ddp__calloc(1, sizeof *p);
    int i;

    if (!p) return NULL;
    p->thread = (pthread_t *)ddp__calloc((size_t)(threads > 1 ? threads - 1 : 0), sizeof *p->thread);
    if (!p->thread) {
        DDP_FREE(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->threads = 1;
    for (i = 0; i < threads - 1; i++) {
        if (pthread_create(&p->thread[i], NULL, ddp__pool_main, p)) {
            ddp__pool_close(p);
            return NULL;
        }
        p->threads++;
    }
    return p;
}

void ddp__pool_close(ddp__pool *p)
{
    int i;

    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (i = 0; i < p->threads - 1; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    DDP_FREE(p->thread);
    DDP_FREE(p);
}

int ddp__pool_threads(const ddp__pool *p) { return p ? p->threads : 1; }

void ddp__pool_run(ddp__pool *p, long items, long grain, ddp__range_fn fn, void *user)
{
    if (items <= 0) return;
    if (grain < 1) grain = 1;
    if (!p || p->threads == 1 || items <= grain) {
        long first;
        for (first = 0; first < items; first += grain)
            fn(user, first, first + grain < items ? first + grain : items);
        return;
    }
    pthread_mutex_lock(&p->lock);
    /* a helper that woke late for the previous job must leave it before its fields change */
    while (p->busy) pthread_cond_wait(&p->idle, &p->lock);
    p->fn = fn;
    p->user = user;
    p->items = items;
    p->grain = grain;
    ddp__atomic_store(&p->next, 0L);
    p->job++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    ddp__pool_drain(p);
    pthread_mutex_lock(&p->lock);
    while (p->busy) pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
/* ==== end base/thread.c ==== */

/* ==== begin base/rng.c ==== [base] */

static uint64_t ddp__mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

ddp_rng ddp_rng_seed(uint64_t seed, uint64_t stream)
{
    ddp_rng r;

    r.state = ddp__mix64(seed + UINT64_C(0x9e3779b97f4a7c15)) ^
              ddp__mix64(stream * UINT64_C(0xd1342543de82ef95) + UINT64_C(0x2545f4914f6cdd1d));
    return r;
}

uint64_t ddp_rng_u64(ddp_rng *r)
{
    r->state += UINT64_C(0x9e3779b97f4a7c15);
    return ddp__mix64(r->state);
}

uint64_t ddp_rng_below(ddp_rng *r, uint64_t n)
{
    uint64_t skip = (UINT64_MAX - n + 1) % n; /* 2^64 mod n values would be too many */
    uint64_t x;

    do x = ddp_rng_u64(r); while (x < skip);
    return x % n;
}

double ddp_rng_uniform(ddp_rng *r) { return (double)(ddp_rng_u64(r) >> 11) * 0x1.0p-53; }

/* libm's log and cos are not bit-equal on all platforms; twelve uniforms minus six need only
 * additions, which IEEE rounds alike everywhere. Mean 0, variance 1, tails end at 6. */
double ddp_rng_normal(ddp_rng *r)
{
    double s = 0;
    int i;

    for (i = 0; i < 12; i++) s += ddp_rng_uniform(r);
    return s - 6;
}
/* ==== end base/rng.c ==== */

/* ==== begin base/log.c ==== [base] */

ddp_log_level ddp__log_level_named(const char *name)
{
    static const char *const names[] = {"", "off", "error", "warn", "info", "debug"};
    int i;

    for (i = 1; i <= (int)DDP_LOG_DEBUG; i++)
        if (!strcmp(name, names[i])) return (ddp_log_level)i;
    return DDP_LOG_DEFAULT;
}

static void ddp__log_stderr(void *user, ddp_log_level level, const char *line)
{
    static const char *const names[] = {"", "off", "error", "warn", "info", "debug"};

    (void)user;
    fprintf(stderr, "dreamddp %s: %s\n", names[level], line);
}

ddp_logger ddp__log_resolve(const ddp_logger *given, int no_env)
{
    ddp_logger log = *given;
    const char *env = no_env ? NULL : getenv("DREAMDDP_LOG");

    if (env && *env) {
        ddp_log_level level = ddp__log_level_named(env);
        if (log.level == DDP_LOG_DEFAULT) log.level = level;
        if (!log.fn) log.fn = ddp__log_stderr;
    }
    if (log.level == DDP_LOG_DEFAULT) log.level = DDP_LOG_WARN;
    return log;
}

void ddp__log(const ddp_logger *log, ddp_log_level level, const char *fmt, ...)
{
    char line[512];
    va_list ap;

    if (!log || !log->fn || level > log->level) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log->fn(log->user, level, line);
}
/* ==== end base/log.c ==== */

/* ==== begin base/text.c ==== [base] */

static int ddp__text_reserve(ddp__text *t, size_t more)
{
    size_t room = t->room ? t->room : 256;
    char *p;

    if (t->failed) return 0;
    if (more > SIZE_MAX / 2 - t->size) {
        t->failed = 1;
        return 0;
    }
    if (t->size + more + 1 <= t->room) return 1;
    while (room < t->size + more + 1) room *= 2;
    p = (char *)DDP_REALLOC(t->data, room);
    if (!p) {
        t->failed = 1;
        return 0;
    }
    t->data = p;
    t->room = room;
    return 1;
}

void ddp__text_add(ddp__text *t, const char *bytes, size_t n)
{
    if (!ddp__text_reserve(t, n)) return;
    if (n) memcpy(t->data + t->size, bytes, n);
    t->size += n;
    t->data[t->size] = 0;
}

void ddp__text_addf(ddp__text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !ddp__text_reserve(t, (size_t)n)) return;
    va_start(ap, fmt);
    vsnprintf(t->data + t->size, (size_t)n + 1, fmt, ap);
    va_end(ap);
    t->size += (size_t)n;
}

void ddp__text_free(ddp__text *t)
{
    if (t->data) DDP_FREE(t->data);
    memset(t, 0, sizeof *t);
}

/* Reads through `gzip -dc PATH` without a shell, so that no file name can be a command. */
static FILE *ddp__gzip_open(const char *path, pid_t *child)
{
    int fd[2];

    if (pipe(fd)) return NULL;
    *child = fork();
    if (*child < 0) {
        close(fd[0]);
        close(fd[1]);
        return NULL;
    }
    if (*child == 0) {
        int null = open("/dev/null", O_WRONLY);

        if (null >= 0) dup2(null, 2); /* the caller reports the failure; the library never prints */
        dup2(fd[1], 1);
        close(fd[0]);
        close(fd[1]);
        execlp("gzip", "gzip", "-dc", "--", path, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    return fdopen(fd[0], "rb");
}

ddp_status ddp__file_read(const char *path, ddp__text *t, ddp_error *err)
{
    size_t n = strlen(path), got;
    int gz = n > 3 && !strcmp(path + n - 3, ".gz"), bad, code = 0;
    pid_t child = -1;
    struct stat st;
    char block[65536];
    FILE *f;

    if (stat(path, &st)) return ddp__fail(err, DDP_IO, "cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return ddp__fail(err, DDP_IO, "cannot read %s: it is a directory, a file is needed", path);
    f = gz ? ddp__gzip_open(path, &child) : fopen(path, "rb");
    if (!f) return ddp__fail(err, DDP_IO, "cannot read %s: %s", path, strerror(errno));
    while ((got = fread(block, 1, sizeof block, f)) > 0) ddp__text_add(t, block, got);
    bad = ferror(f);
    fclose(f);
    if (gz) waitpid(child, &code, 0);
    if (t->failed) return ddp__fail(err, DDP_MEMORY, "cannot read %s: out of memory after %zu bytes", path, t->size);
    if (bad) return ddp__fail(err, DDP_IO, "cannot read %s: read error after %zu bytes", path, t->size);
    if (gz && code) return ddp__fail(err, DDP_FORMAT, "cannot read %s: gzip -dc failed (is gzip installed and the file whole?)", path);
    return DDP_OK;
}

ddp_status ddp__file_write(const char *path, const char *bytes, size_t n, ddp_error *err)
{
    ddp__text tmp;
    struct stat st;
    FILE *f;
    int why = 0, direct = !stat(path, &st) && !S_ISREG(st.st_mode);

    memset(&tmp, 0, sizeof tmp);
    ddp__text_addf(&tmp, "%s", path);
    if (!direct) ddp__text_addf(&tmp, ".tmp.%ld", (long)getpid());
    if (tmp.failed) return ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory", path);
    f = fopen(tmp.data, "wb");
    if (!f) {
        why = errno;
        ddp__text_free(&tmp);
        return ddp__fail(err, DDP_IO, "cannot write %s: %s", path, strerror(why));
    }
    if (n && fwrite(bytes, 1, n, f) != n) why = errno;
    if (!why && (fflush(f) || fsync(fileno(f))) && errno != EINVAL && errno != EROFS) why = errno;
    if (fclose(f) && !why) why = errno;
    if (!direct && !why && rename(tmp.data, path)) why = errno;
    if (!direct && why) remove(tmp.data);
    ddp__text_free(&tmp);
    if (why) return ddp__fail(err, DDP_IO, "cannot write %s: %s; nothing was left behind", path, strerror(why));
    return DDP_OK;
}

int ddp__parse_double(const char *s, double *out)
{
    char *end;
    double v;

    if (!s || !*s || isspace((unsigned char)*s)) return 0;
    v = strtod(s, &end);
    if (*end || !(v >= -DBL_MAX && v <= DBL_MAX)) return 0;
    *out = v;
    return 1;
}

int ddp__parse_long(const char *s, long *out)
{
    char *end;
    long v;

    if (!s || !*s || isspace((unsigned char)*s)) return 0;
    errno = 0;
    v = strtol(s, &end, 10);
    if (*end || errno) return 0;
    *out = v;
    return 1;
}

uint64_t ddp__hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    size_t i;

    for (i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}
/* ==== end base/text.c ==== */

/* ==== begin base/array.c ==== [base] */
/* Instantiates stb_ds, once per program: here, unless DREAMDDP_NO_STB_DS_IMPLEMENTATION says
 * that another file does (define it beside a program's own instantiation, and in all but one of
 * several DDP_STATIC files), or unless this very file has STB_DS_IMPLEMENTATION defined. */

#if !defined(DREAMDDP_NO_STB_DS_IMPLEMENTATION) && !defined(STB_DS_IMPLEMENTATION)
#define STB_DS_IMPLEMENTATION
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#if __has_include(<stb_ds.h>)
#include <stb_ds.h>
#else
#include <stb/stb_ds.h>
#endif
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic pop
#endif
#undef STB_DS_IMPLEMENTATION
#endif
/* ==== end base/array.c ==== */

/* ==== begin graph/host.h ==== [graph] */
/* What a graph may know of the context that trains it: memory, threads and the hooks.
 * A ddp_ctx begins with this struct, so src/graph needs nothing of src/sync. */
#ifndef DDP_GRAPH_HOST_H
#define DDP_GRAPH_HOST_H

/* The same hooks that a user's own loop calls; each returns 0 or a ddp_status. */
typedef struct ddp__hooks {
    int (*add_layer)(ddp_ctx *ctx, const ddp_layer *layer);
    int (*forward_begin)(ddp_ctx *ctx, int layer);
    int (*backward_begin)(ddp_ctx *ctx, int layer);
    int (*backward_end)(ddp_ctx *ctx, int layer);
} ddp__hooks;

/* A graph hangs itself here so that ddp_close can free it. */
typedef struct ddp__owned {
    struct ddp__owned *next;
    void (*destroy)(struct ddp__owned *self);
} ddp__owned;

typedef struct ddp__host {
    ddp_allocator     allocator;
    ddp_logger        log;
    ddp__pool        *pool;   /* operator threads; NULL = one */
    const ddp__hooks *hooks;
    ddp__owned       *owned;  /* destroyed in ddp_close, newest first */
    uint64_t          seed;   /* for initialisation and dropout */
    ddp_error         error;  /* the first error of the context; sticky */
} ddp__host;

#endif /* DDP_GRAPH_HOST_H */
/* ==== end graph/host.h ==== */

/* ==== begin graph/builtin.h ==== [graph] */
/* The table of built-in operators as the graph sees it; src/ops fills it. */
#ifndef DDP_GRAPH_BUILTIN_H
#define DDP_GRAPH_BUILTIN_H

#ifdef __cplusplus
extern "C" {
#endif

/* The built-in operator of that name, NULL if there is none. */
DDP_LIB const ddp_op *ddp__builtin_op(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* DDP_GRAPH_BUILTIN_H */
/* ==== end graph/builtin.h ==== */

/* ==== begin graph/op.c ==== [graph] */

long ddp_shape_count(const ddp_shape *s)
{
    long n = 1;
    int i;

    for (i = 0; i < s->dims; i++) n *= s->dim[i];
    return n;
}

long ddp_shape_rows(const ddp_shape *s)
{
    long n = 1;
    int i;

    for (i = 0; i + 1 < s->dims; i++) n *= s->dim[i];
    return n;
}

void ddp_op_parallel(const ddp_op_call *c, long items, long grain,
                     void (*fn)(void *user, long first, long last), void *user)
{
    ddp__pool_run((ddp__pool *)c->pool, items, grain, fn, user);
}
/* ==== end graph/op.c ==== */

/* ==== begin graph/graph_internal.h ==== [graph] */
/* The graph's own bookkeeping, shared by the files of this folder. */
#ifndef DDP_GRAPH_INTERNAL_H
#define DDP_GRAPH_INTERNAL_H

#define DDP__NOWHERE     ((size_t)-1) /* offset of an array that does not exist */
#define DDP__MOST_NODES  (1 << 27)    /* times and array ids of the memory plan fit an int */
#define DDP__MOST_FLOATS 1e15         /* elements of one array; sums of bytes cannot overflow */

struct ddp_node {
    ddp_graph    *graph;
    const ddp_op *op;       /* NULL: an input */
    char         *name;     /* of an input; NULL for operators */
    int           index;
    int           layer;    /* -1: outside layers, and every input */
    int           input[DDP_OP_INPUTS];
    ddp_dtype     type;
    int           tied;     /* node that owns the array used as parameter 0; -1: own parameters */
    int           has_gradient; /* a parameter at or above this node is reached by its backward */
    ddp_op_spec   spec;     /* of an input only spec.out is filled */
    float        *param[DDP_OP_PARAMS];
    float        *grad[DDP_OP_PARAMS];
};

/* Operators of a layer are consecutive, and a tied parameter is owned by an earlier node than
 * its users. So in forward a layer is first needed at node first, and in backward it is complete
 * after node first, whoever else used its parameters. */
typedef struct ddp__graph_layer {
    char    *name;
    uint64_t name_hash; /* of the final name */
    uint64_t base_hash; /* of the name the user gave */
    int      repeat;    /* how many earlier layers were given that name */
    int      first, last; /* operators; -1: none yet (inputs in between may lie in the range) */
    size_t   count;     /* floats */
    double   flops;
    float   *params, *grads;
} ddp__graph_layer;

/* Where each array of a state lies in its arena, in bytes. Offsets are multiples of 64. */
typedef struct ddp__layout {
    size_t  bytes;      /* of the arena */
    size_t  live_bytes; /* most bytes live at one time: no layout can be smaller */
    size_t *out;        /* [nodes]; one allocation with the two below */
    size_t *saved;      /* [nodes] */
    size_t *gradient;   /* [nodes] */
} ddp__layout;

struct ddp_state {
    ddp_graph         *graph;
    const ddp__layout *layout;
    char              *arena;
    unsigned char     *written; /* [nodes] gradient has been written in this pass */
    uint64_t           pass;    /* number of the micro-batch: what random masks depend on */
    int                pass_given; /* by ddp_state_micro_batch: not counted up */
    int                next;    /* operator after the last one that ran forward */
    int                ready;   /* 1: a training forward ran, backward may follow */
};

struct ddp_graph {
    ddp__owned         owned; /* first: what the host's list points at */
    ddp__host         *host;  /* NULL: no context */
    const ddp_op     **ops;   /* registered by the user */
    int                op_count, op_room;
    ddp_node         **node;
    int                nodes, node_room;
    ddp__graph_layer  *layer;
    int                layers, layer_room;
    int                open_layer; /* -1: none */
    int                built;
    int                registered; /* layers the context borrows memory of */
    ddp__layout        reuse;      /* of the built-in state */
    ddp__layout        plain;      /* of states made by ddp_state_new: every array on its own */
    ddp_state         *state;      /* the built-in one */
    uint64_t           states_made;
    ddp_error          error;
};

#ifdef __cplusplus
extern "C" {
#endif

DDP_LIB const ddp_allocator *ddp__graph_allocator(const ddp_graph *g);

/* Computes offsets for every array; share = 0 gives each array memory of its own, share = 1
 * reuses memory of the dead. Time is 0..n-1 for the operators forward and n..2n-1 for them
 * backward, so operator i runs backward at 2n-1-i.
 * An array gets the smallest hole that fits when its life begins and returns it when it ends.
 * Cost: O(nodes x holes). */
DDP_LIB ddp_status ddp__layout_plan(const ddp_graph *g, int share, ddp__layout *out,
                                    ddp_error *err);
DDP_LIB void ddp__layout_free(ddp__layout *l);

/* A state with that layout; NULL when memory is short. */
DDP_LIB ddp_state *ddp__state_open(ddp_graph *g, const ddp__layout *layout);

/* The array at an offset of the arena, NULL if it does not exist. */
DDP_LIB void *ddp__state_at(const ddp_state *s, size_t offset);

#ifdef __cplusplus
}
#endif

#endif /* DDP_GRAPH_INTERNAL_H */
/* ==== end graph/graph_internal.h ==== */

/* ==== begin graph/arena.c ==== [graph] */
/* The memory plan: lifetimes of all arrays of a state, then offsets in one arena. */

/* Ids of the arrays of node i. */
#define DDP__OUT(i)      (3 * (i))
#define DDP__SAVED(i)    (3 * (i) + 1)
#define DDP__GRADIENT(i) (3 * (i) + 2)

/* Free space inside the arena, sorted by offset, neighbours merged. */
typedef struct ddp__hole {
    size_t offset, bytes;
} ddp__hole;

/* Everything known about the lives of arrays while the plan is made; [nodes] unless noted. */
typedef struct ddp__lives {
    const ddp_graph *g;
    int  n;
    int *uses;    /* consumers of a node's output; the other int arrays share its allocation */
    int *root;    /* node whose output memory this output lies in */
    int *end;     /* last time the output memory of a root is needed */
    int *over;    /* 1: the gradient lies over the output */
    int *dying;   /* [2n] first array that dies at a time, -1 if none */
    int *sibling; /* [3n] next array that dies at the same time */
    size_t    *bytes; /* [3n] */
    ddp__hole *hole;
    int        holes;
    size_t     top, live, live_most;
} ddp__lives;

static size_t ddp__round64(size_t bytes) { return (bytes + 63) / 64 * 64; }

static int ddp__max_int(int a, int b) { return a > b ? a : b; }

/* The value of a scalar stays readable after backward, a user's input until he refills it. */
static int ddp__stays(const ddp_node *d)
{
    return !d->op || ddp_shape_count(&d->spec.out) == 1;
}

/* 1 if no backward of node d reads d's own output. */
static int ddp__forgets_out(const ddp_node *d)
{
    return !d->has_gradient || d->spec.in_place_ok || d->spec.out_unread;
}

/* When each output is read last. Until the end of forward in any case: ddp_output promises it. */
static void ddp__lives_ends(ddp__lives *v)
{
    int i, k;

    for (i = 0; i < v->n; i++) {
        const ddp_node *d = v->g->node[i];

        v->root[i] = i;
        v->end[i] = ddp__forgets_out(d) ? v->n - 1 : 2 * v->n - 1 - i;
        for (k = 0; k < d->spec.inputs; k++) {
            int p = d->input[k];

            v->uses[p]++;
            if (d->has_gradient && !d->spec.in_place_ok)
                v->end[p] = ddp__max_int(v->end[p], 2 * v->n - 1 - i);
        }
    }
}

/* Outputs written over their input, and gradients written over the array they belong to. */
static void ddp__lives_share(ddp__lives *v)
{
    int i;

    for (i = 0; i < v->n; i++) {
        const ddp_node *d = v->g->node[i], *p;

        if (!d->op || d->spec.inputs < 1) continue;
        p = v->g->node[d->input[0]];
        if (ddp__stays(p) || v->uses[p->index] != 1 || !ddp__forgets_out(p)) continue;
        if (d->spec.in_place_ok && ddp_shape_count(&d->spec.out) == ddp_shape_count(&p->spec.out)) {
            v->root[i] = v->root[p->index];
            v->end[v->root[i]] = ddp__max_int(v->end[v->root[i]], v->end[i]);
        } else if (d->spec.grad_over_input && d->has_gradient && p->has_gradient) {
            v->over[p->index] = 1;
            v->end[v->root[p->index]] = ddp__max_int(v->end[v->root[p->index]],
                                                     2 * v->n - 1 - p->index);
        }
    }
}

/* The smallest hole that fits, else the top of the arena. */
static size_t ddp__arena_take(ddp__lives *v, size_t bytes)
{
    ddp__hole *last = v->holes ? &v->hole[v->holes - 1] : NULL;
    int h, best = -1;
    size_t at;

    v->live += bytes;
    if (v->live > v->live_most) v->live_most = v->live;
    for (h = 0; h < v->holes; h++)
        if (v->hole[h].bytes >= bytes && (best < 0 || v->hole[h].bytes < v->hole[best].bytes))
            best = h;
    if (best < 0 && last && last->offset + last->bytes == v->top) { /* grow the hole at the top */
        v->top = last->offset + bytes;
        last->bytes = bytes;
        best = v->holes - 1;
    }
    if (best < 0) {
        at = v->top;
        v->top += bytes;
        return at;
    }
    at = v->hole[best].offset;
    v->hole[best].offset += bytes;
    v->hole[best].bytes -= bytes;
    if (v->hole[best].bytes == 0) {
        v->holes--;
        memmove(&v->hole[best], &v->hole[best + 1], (size_t)(v->holes - best) * sizeof *v->hole);
    }
    return at;
}

static void ddp__arena_return(ddp__lives *v, size_t offset, size_t bytes)
{
    int lo = 0, hi = v->holes;

    v->live -= bytes;
    while (lo < hi) { /* the first hole behind offset */
        int mid = (lo + hi) / 2;

        if (v->hole[mid].offset < offset) lo = mid + 1;
        else hi = mid;
    }
    if (lo > 0 && v->hole[lo - 1].offset + v->hole[lo - 1].bytes == offset) {
        v->hole[lo - 1].bytes += bytes;
        if (lo < v->holes && offset + bytes == v->hole[lo].offset) {
            v->hole[lo - 1].bytes += v->hole[lo].bytes;
            v->holes--;
            memmove(&v->hole[lo], &v->hole[lo + 1], (size_t)(v->holes - lo) * sizeof *v->hole);
        }
    } else if (lo < v->holes && offset + bytes == v->hole[lo].offset) {
        v->hole[lo].offset = offset;
        v->hole[lo].bytes += bytes;
    } else {
        memmove(&v->hole[lo + 1], &v->hole[lo], (size_t)(v->holes - lo) * sizeof *v->hole);
        v->hole[lo].offset = offset;
        v->hole[lo].bytes = bytes;
        v->holes++;
    }
}

/* Places an array now and notes when it dies; until < 0: never. */
static size_t ddp__array_born(ddp__lives *v, int id, size_t bytes, int until)
{
    v->bytes[id] = ddp__round64(bytes);
    if (until >= 0) {
        v->sibling[id] = v->dying[until];
        v->dying[until] = id;
    }
    return ddp__arena_take(v, v->bytes[id]);
}

/* Operator i runs forward: its output and what it saves appear. */
static void ddp__born_forward(ddp__lives *v, int i, ddp__layout *l)
{
    const ddp_node *d = v->g->node[i];

    if (v->root[i] != i)
        l->out[i] = l->out[v->root[i]];
    else
        l->out[i] = ddp__array_born(v, DDP__OUT(i), 4 * (size_t)ddp_shape_count(&d->spec.out),
                                    ddp__stays(d) ? -1 : v->end[i]);
    if (d->spec.saved)
        l->saved[i] = ddp__array_born(v, DDP__SAVED(i), 4 * d->spec.saved,
                                      d->has_gradient ? 2 * v->n - 1 - i : i);
}

/* Operator i runs backward: gradients it is the first to write appear. A scalar without users
 * is a loss, whose gradient appears just before. */
static void ddp__born_backward(ddp__lives *v, int i, ddp__layout *l)
{
    const ddp_node *d = v->g->node[i];
    int k;

    if (!d->has_gradient) return;
    if (l->gradient[i] == DDP__NOWHERE && ddp_shape_count(&d->spec.out) == 1)
        l->gradient[i] = ddp__array_born(v, DDP__GRADIENT(i), 4, 2 * v->n - 1 - i);
    for (k = 0; k < d->spec.inputs; k++) {
        const ddp_node *p = v->g->node[d->input[k]];

        if (!p->has_gradient || l->gradient[p->index] != DDP__NOWHERE) continue;
        l->gradient[p->index] = v->over[p->index] ? l->out[p->index]
            : ddp__array_born(v, DDP__GRADIENT(p->index), 4 * (size_t)ddp_shape_count(&p->spec.out),
                              2 * v->n - 1 - p->index);
    }
}

/* Walks through one forward and one backward pass. */
static void ddp__layout_walk(ddp__lives *v, ddp__layout *l)
{
    int t, id, i;

    for (i = 0; i < v->n; i++) /* inputs exist before the pass begins */
        if (!v->g->node[i]->op) ddp__born_forward(v, i, l);
    for (t = 0; t < 2 * v->n; t++) {
        i = t < v->n ? t : 2 * v->n - 1 - t;
        if (t >= v->n) ddp__born_backward(v, i, l);
        else if (v->g->node[i]->op) ddp__born_forward(v, i, l);
        for (id = v->dying[t]; id >= 0; id = v->sibling[id]) {
            size_t at = id % 3 == 0 ? l->out[id / 3]
                      : id % 3 == 1 ? l->saved[id / 3] : l->gradient[id / 3];

            ddp__arena_return(v, at, v->bytes[id]);
        }
    }
    l->bytes = v->top;
    l->live_bytes = v->live_most;
}

/* Every array on its own, with a gradient for every float output and input. */
static void ddp__layout_plain(const ddp_graph *g, ddp__layout *l)
{
    size_t top = 0;
    int i;

    for (i = 0; i < g->nodes; i++) {
        const ddp_node *d = g->node[i];
        size_t bytes = ddp__round64(4 * (size_t)ddp_shape_count(&d->spec.out));

        l->out[i] = top;
        top += bytes;
        if (d->spec.saved) {
            l->saved[i] = top;
            top += ddp__round64(4 * d->spec.saved);
        }
        if (d->type != DDP_F32) continue;
        l->gradient[i] = top;
        top += bytes;
    }
    l->bytes = l->live_bytes = top;
}

static int ddp__lives_alloc(ddp__lives *v, const ddp_graph *g)
{
    size_t n = (size_t)g->nodes, t;
    int *ints = (int *)ddp__calloc(9 * n, sizeof *ints);

    v->g = g;
    v->n = g->nodes;
    v->bytes = (size_t *)ddp__calloc(3 * n, sizeof *v->bytes);
    v->hole = (ddp__hole *)ddp__calloc(3 * n + 1, sizeof *v->hole);
    v->uses = ints;
    if (!ints || !v->bytes || !v->hole) return 0;
    v->root = ints + n;
    v->end = ints + 2 * n;
    v->over = ints + 3 * n;
    v->dying = ints + 4 * n;
    v->sibling = ints + 6 * n;
    for (t = 0; t < 2 * n; t++) v->dying[t] = -1;
    return 1;
}

ddp_status ddp__layout_plan(const ddp_graph *g, int share, ddp__layout *out, ddp_error *err)
{
    size_t n = (size_t)g->nodes, i;
    ddp__lives v;
    int ok;

    memset(out, 0, sizeof *out);
    memset(&v, 0, sizeof v);
    out->out = (size_t *)ddp__calloc(3 * n, sizeof *out->out);
    ok = out->out && (!share || ddp__lives_alloc(&v, g));
    if (ok) {
        out->saved = out->out + n;
        out->gradient = out->out + 2 * n;
        for (i = 0; i < 3 * n; i++) out->out[i] = DDP__NOWHERE;
        if (share) {
            ddp__lives_ends(&v);
            ddp__lives_share(&v);
            ddp__layout_walk(&v, out);
        } else {
            ddp__layout_plain(g, out);
        }
    } else {
        ddp__layout_free(out);
    }
    DDP_FREE(v.uses);
    DDP_FREE(v.bytes);
    DDP_FREE(v.hole);
    return ok ? DDP_OK : ddp__fail(err, DDP_MEMORY, "out of memory for the memory plan of %d nodes",
                                   g->nodes);
}

void ddp__layout_free(ddp__layout *l)
{
    DDP_FREE(l->out);
    memset(l, 0, sizeof *l);
}

size_t ddp_activation_bytes(const ddp_graph *g)
{
    ddp__layout l;
    size_t bytes;

    if (!g) return 0;
    if (g->built) return g->reuse.bytes;
    if (ddp__layout_plan(g, 1, &l, NULL) != DDP_OK) return 0;
    bytes = l.bytes;
    ddp__layout_free(&l);
    return bytes;
}
/* ==== end graph/arena.c ==== */

/* ==== begin graph/graph.c ==== [graph] */

const ddp_allocator *ddp__graph_allocator(const ddp_graph *g)
{
    return g->host ? &g->host->allocator : NULL;
}

static void ddp__graph_destroy(ddp__owned *self)
{
    ddp_graph *g = (ddp_graph *)self;
    const ddp_allocator *a = ddp__graph_allocator(g);
    int i;

    ddp_state_free(g->state);
    ddp__layout_free(&g->reuse);
    ddp__layout_free(&g->plain);
    for (i = 0; i < g->layers; i++) {
        ddp__graph_layer *l = &g->layer[i];

        ddp__release(a, l->params, l->count * sizeof(float));
        ddp__release(a, l->grads, l->count * sizeof(float));
        DDP_FREE(l->name);
    }
    for (i = 0; i < g->nodes; i++) {
        DDP_FREE(g->node[i]->name);
        DDP_FREE(g->node[i]);
    }
    DDP_FREE(g->layer);
    DDP_FREE(g->node);
    DDP_FREE((void *)g->ops);
    DDP_FREE(g);
}

ddp_graph *ddp_graph_new(ddp_ctx *d)
{
    ddp_graph *g = (ddp_graph *)ddp__calloc(1, sizeof *g);

    if (!g) return NULL;
    g->open_layer = -1;
    g->owned.destroy = ddp__graph_destroy;
    g->host = (ddp__host *)(void *)d; /* a context begins with its host */
    if (g->host) {
        g->owned.next = g->host->owned;
        g->host->owned = &g->owned;
    }
    return g;
}

void ddp_graph_free(ddp_graph *g)
{
    ddp__owned **link;

    if (!g || g->registered) return; /* the context still uses the layers; it frees the graph */
    if (g->host) {
        for (link = &g->host->owned; *link; link = &(*link)->next) {
            if (*link != &g->owned) continue;
            *link = g->owned.next;
            break;
        }
    }
    ddp__graph_destroy(&g->owned);
}

const ddp_error *ddp_graph_error(const ddp_graph *g)
{
    return g ? &g->error : NULL;
}

/* Makes room for one more element of size bytes; 1 on success, else the graph has the error. */
static int ddp__graph_grow(ddp_graph *g, void **array, int count, int *room, size_t size)
{
    int wanted = *room ? 2 * *room : 16;
    void *bigger;

    if (count < *room) return 1;
    bigger = count < DDP__MOST_NODES ? DDP_REALLOC(*array, (size_t)wanted * size) : NULL;
    if (!bigger) {
        ddp__fail(&g->error, DDP_MEMORY, "out of memory for a graph of more than %d entries",
                  count);
        return 0;
    }
    *array = bigger;
    *room = wanted;
    return 1;
}

/* 1 if the graph may still be changed; else it remembers why not. */
static int ddp__graph_open(ddp_graph *g, const char *what)
{
    if (!g || g->error.code) return 0;
    if (!g->built) return 1;
    ddp__fail(&g->error, DDP_USAGE, "%s after ddp_graph_build: a built graph cannot change", what);
    return 0;
}

/* ---- layers ---- */

static int ddp__layer_named(const ddp_graph *g, const char *name, uint64_t hash)
{
    int i;

    for (i = 0; i < g->layers; i++)
        if (g->layer[i].name_hash == hash && strcmp(g->layer[i].name, name) == 0) return 1;
    return 0;
}

void ddp_layer_begin(ddp_graph *g, const char *name)
{
    ddp__graph_layer *l;
    char text[256];
    uint64_t base, hash;
    int i, repeat = 0;

    if (!ddp__graph_open(g, "ddp_layer_begin")) return;
    if (!name || !*name) name = "layer";
    if (g->open_layer >= 0) {
        ddp__fail(&g->error, DDP_USAGE, "layer \"%s\" begins inside layer \"%s\": call "
                  "ddp_layer_end first", name, g->layer[g->open_layer].name);
        return;
    }
    if (!ddp__graph_grow(g, (void **)&g->layer, g->layers, &g->layer_room, sizeof *g->layer))
        return;

    base = ddp__hash(DDP__HASH_START, name, strlen(name));
    for (i = g->layers - 1; i >= 0 && repeat == 0; i--)
        if (g->layer[i].base_hash == base) repeat = g->layer[i].repeat + 1;
    if (repeat) snprintf(text, sizeof text, "%.200s.%d", name, repeat);
    else snprintf(text, sizeof text, "%.200s", name);
    hash = ddp__hash(DDP__HASH_START, text, strlen(text));
    while (ddp__layer_named(g, text, hash)) { /* the user may have named one "hidden.1" himself */
        snprintf(text, sizeof text, "%.200s.%d", name, ++repeat);
        hash = ddp__hash(DDP__HASH_START, text, strlen(text));
    }

    l = &g->layer[g->layers];
    memset(l, 0, sizeof *l);
    l->name = ddp__strdup(text);
    if (!l->name) {
        ddp__fail(&g->error, DDP_MEMORY, "out of memory for layer \"%s\"", text);
        return;
    }
    l->base_hash = base;
    l->name_hash = hash;
    l->repeat = repeat;
    l->first = l->last = -1;
    g->open_layer = g->layers++;
}

void ddp_layer_end(ddp_graph *g)
{
    if (!ddp__graph_open(g, "ddp_layer_end")) return;
    if (g->open_layer < 0)
        ddp__fail(&g->error, DDP_USAGE, "ddp_layer_end without ddp_layer_begin");
    else if (g->layer[g->open_layer].first < 0)
        ddp__fail(&g->error, DDP_USAGE, "layer \"%s\" has no operators: build some between "
                  "ddp_layer_begin and ddp_layer_end", g->layer[g->open_layer].name);
    g->open_layer = -1;
}

/* ---- nodes ---- */

static ddp_node *ddp__node_add(ddp_graph *g)
{
    ddp_node *n;

    if (!ddp__graph_grow(g, (void **)&g->node, g->nodes, &g->node_room, sizeof *g->node))
        return NULL;
    n = (ddp_node *)ddp__calloc(1, sizeof *n);
    if (!n) {
        ddp__fail(&g->error, DDP_MEMORY, "out of memory for node %d of the graph", g->nodes);
        return NULL;
    }
    n->graph = g;
    n->index = g->nodes;
    n->layer = -1;
    n->tied = -1;
    n->type = DDP_F32;
    g->node[g->nodes++] = n;
    return n;
}

/* Dimensions at least 1, and few enough elements. */
static int ddp__shape_ok(const ddp_shape *s)
{
    double n = 1;
    int i;

    if (s->dims < 0 || s->dims > 4) return 0;
    for (i = 0; i < s->dims; i++) {
        if (s->dim[i] < 1) return 0;
        n *= (double)s->dim[i];
    }
    return n <= DDP__MOST_FLOATS;
}

/* Appends "(32, 64)". */
static void ddp__shape_text(const ddp_shape *s, char *text, size_t size)
{
    size_t used = strlen(text);
    int i;

    snprintf(text + used, size - used, "(");
    for (i = 0; i < s->dims && i < 4; i++) {
        used = strlen(text);
        snprintf(text + used, size - used, i ? ", %ld" : "%ld", s->dim[i]);
    }
    used = strlen(text);
    snprintf(text + used, size - used, ")");
}

static int ddp__shape_equal(const ddp_shape *a, const ddp_shape *b)
{
    int i;

    if (a->dims != b->dims) return 0;
    for (i = 0; i < a->dims; i++)
        if (a->dim[i] != b->dim[i]) return 0;
    return 1;
}

ddp_node *ddp_input_shape(ddp_graph *g, const char *name, ddp_dtype type, const ddp_shape *s)
{
    ddp_node *n;
    char text[160] = "";
    int i;

    if (!ddp__graph_open(g, "ddp_input")) return NULL;
    if (!name || !*name || !s || (type != DDP_F32 && type != DDP_I32)) {
        ddp__fail(&g->error, DDP_ARG, "an input needs a name, a shape and type DDP_F32 or DDP_I32");
        return NULL;
    }
    if (!ddp__shape_ok(s)) {
        ddp__shape_text(s, text, sizeof text);
        ddp__fail(&g->error, DDP_ARG, "input \"%.80s\": the shape %s needs at most 4 dimensions "
                  "of at least 1", name, text);
        return NULL;
    }
    for (i = 0; i < g->nodes; i++) {
        if (g->node[i]->op || strcmp(g->node[i]->name, name) != 0) continue;
        ddp__fail(&g->error, DDP_ARG, "input \"%.80s\" exists already: give each input its own "
                  "name", name);
        return NULL;
    }
    n = ddp__node_add(g);
    if (!n) return NULL;
    n->type = type;
    n->spec.out = *s;
    n->name = ddp__strdup(name);
    if (n->name) return n;
    g->nodes--;
    DDP_FREE(n);
    ddp__fail(&g->error, DDP_MEMORY, "out of memory for input \"%.80s\"", name);
    return NULL;
}

ddp_node *ddp_input(ddp_graph *g, const char *name, ddp_dtype type, long rows, long cols)
{
    ddp_shape s;

    memset(&s, 0, sizeof s);
    s.dims = 2;
    s.dim[0] = rows;
    s.dim[1] = cols;
    return ddp_input_shape(g, name, type, &s);
}

/* ---- operators ---- */

static const ddp_op *ddp__op_find(const ddp_graph *g, const char *name)
{
    int i;

    for (i = 0; i < g->op_count; i++)
        if (strcmp(g->ops[i]->name, name) == 0) return g->ops[i];
    return ddp__builtin_op(name);
}

static ddp_status ddp__op_register(ddp_graph *g, const ddp_op *op)
{
    if (!ddp__graph_open(g, "ddp_register_op")) return g->error.code;
    if (!op || !op->name || !*op->name || !op->shape || !op->forward)
        return ddp__fail(&g->error, DDP_ARG, "ddp_register_op: operator \"%.80s\" needs a name, "
                         "a shape rule and a forward function", op && op->name ? op->name : "");
    if (ddp__op_find(g, op->name))
        return ddp__fail(&g->error, DDP_ARG, "ddp_register_op: an operator \"%.80s\" exists "
                         "already: choose another name", op->name);
    if (!ddp__graph_grow(g, (void **)&g->ops, g->op_count, &g->op_room, sizeof *g->ops))
        return g->error.code;
    g->ops[g->op_count++] = op;
    return DDP_OK;
}

int ddp_register_op(ddp_graph *g, const ddp_op *op)
{
    return g ? (int)ddp__op_register(g, op) : (int)DDP_ARG;
}

/* "layer "x", operator linear" for error sentences, at most size bytes. */
static void ddp__node_where(const ddp_graph *g, const char *op, int layer, char *text,
                            size_t size)
{
    if (layer >= 0)
        snprintf(text, size, "layer \"%.100s\", operator %.60s", g->layer[layer].name, op);
    else
        snprintf(text, size, "operator %.60s outside layers", op);
}

/* What the shape rule filled must be executable, whoever wrote the rule. */
static const char *ddp__spec_fault(const ddp_op_spec *s, const ddp_node *owner)
{
    int i;

    if (!ddp__shape_ok(&s->out)) return "its shape rule gave an impossible output shape";
    if (s->params < 0 || s->params > DDP_OP_PARAMS || (double)s->saved > DDP__MOST_FLOATS)
        return "its shape rule gave an impossible number of parameters or saved elements";
    for (i = 0; i < s->params; i++)
        if (!ddp__shape_ok(&s->param[i].shape))
            return "its shape rule gave an impossible parameter shape";
    if (s->buffers < 0 || s->buffers > DDP_OP_BUFFERS)
        return "its shape rule gave an impossible number of buffers";
    for (i = 0; i < s->buffers; i++)
        if (!ddp__shape_ok(&s->buffer[i].shape))
            return "its shape rule gave an impossible buffer shape";
    if (owner && (s->params < 1 ||
                  !ddp__shape_equal(&s->param[0].shape, &owner->spec.param[0].shape)))
        return "the tied node's parameter 0 has another shape than it needs";
    return NULL;
}

/* Runs the shape rule. An operator with a parameter 0 of its own gets the tied one in its place;
 * a rule that cannot do without (its output depends on the shape) is given it. */
static ddp_status ddp__shape_apply(const ddp_op *op, const ddp_node *owner, ddp_op_spec *spec,
                                   ddp_error *why)
{
    const ddp_op_spec given = *spec;
    ddp_status code = op->shape(spec, why);

    if (!owner || (code == DDP_OK && spec->params > 0)) return code;
    *spec = given;
    spec->params = 1;
    spec->param[0] = owner->spec.param[0];
    return op->shape(spec, why);
}

/* Inputs must be nodes of this graph. 1 if they are. */
static int ddp__inputs_ok(ddp_graph *g, const char *where, int count, ddp_node *const *inputs,
                          const ddp_node *tied)
{
    int i;

    if (count < 0 || count > DDP_OP_INPUTS || (count && !inputs)) {
        ddp__fail(&g->error, DDP_ARG, "%s: %d inputs given, 0 to %d are possible", where, count,
                  DDP_OP_INPUTS);
        return 0;
    }
    for (i = 0; i < count; i++) {
        if (inputs[i] && inputs[i]->graph == g) continue;
        ddp__fail(&g->error, DDP_ARG, "%s: input %d is %s", where, i,
                  inputs[i] ? "a node of another graph" : "NULL");
        return 0;
    }
    if (tied && (tied->graph != g || tied->spec.params < 1)) {
        ddp__fail(&g->error, DDP_ARG, "%s: the tied node %s", where, tied->graph != g
                  ? "belongs to another graph" : "has no parameter to share");
        return 0;
    }
    return 1;
}

/* Gradients flow through an operator that has no kernels at all: it is planned as if it had. */
static int ddp__op_has_backward(const ddp_op *op) { return op->backward || !op->forward; }

/* Fills the layer's totals and what follows from the inputs. */
static void ddp__node_place(ddp_graph *g, ddp_node *n)
{
    ddp__graph_layer *l = g->open_layer >= 0 ? &g->layer[g->open_layer] : NULL;
    int i;

    n->layer = g->open_layer;
    n->has_gradient = ddp__op_has_backward(n->op) && n->spec.params > 0;
    for (i = 0; i < n->spec.inputs; i++)
        if (ddp__op_has_backward(n->op) && g->node[n->input[i]]->has_gradient) n->has_gradient = 1;
    if (!l) return;
    if (l->first < 0) l->first = n->index;
    l->last = n->index;
    l->flops += n->spec.flops;
    for (i = n->tied >= 0; i < n->spec.params; i++)
        l->count += (size_t)ddp_shape_count(&n->spec.param[i].shape);
}

ddp_node *ddp_apply(ddp_graph *g, const char *op, int count, ddp_node *const *inputs, int arg_count,
                    const double *args, ddp_node *tied)
{
    const ddp_op *entry;
    const char *fault;
    ddp_node *n, *owner;
    ddp_op_spec spec;
    ddp_error why;
    ddp_status code;
    char where[200], shapes[200] = "";
    int i;

    if (!ddp__graph_open(g, "an operator is added")) return NULL;
    ddp__node_where(g, op ? op : "(NULL)", g->open_layer, where, sizeof where);
    if (!ddp__inputs_ok(g, where, count, inputs, tied)) return NULL;
    entry = op ? ddp__op_find(g, op) : NULL;
    if (!entry) {
        ddp__fail(&g->error, DDP_ARG, "%s: no such operator; ddp_register_op adds one", where);
        return NULL;
    }
    if (arg_count < 0 || arg_count > DDP_OP_ARGS || (arg_count && !args)) {
        ddp__fail(&g->error, DDP_ARG, "%s: %d arguments given, 0 to %d are possible", where,
                  arg_count, DDP_OP_ARGS);
        return NULL;
    }

    owner = tied && tied->tied >= 0 ? g->node[tied->tied] : tied;
    memset(&spec, 0, sizeof spec);
    memset(&why, 0, sizeof why);
    spec.inputs = count;
    for (i = 0; i < count; i++) {
        spec.in[i] = inputs[i]->spec.out;
        spec.in_type[i] = inputs[i]->type;
        if (i) snprintf(shapes + strlen(shapes), sizeof shapes - strlen(shapes), " and ");
        ddp__shape_text(&spec.in[i], shapes, sizeof shapes);
    }
    if (arg_count) memcpy(spec.arg, args, (size_t)arg_count * sizeof *args);
    code = ddp__shape_apply(entry, owner, &spec, &why);
    if (code) {
        ddp__fail(&g->error, code, "%s with inputs %s: %.150s", where, shapes,
                  why.msg[0] ? why.msg : "its shape rule refused them");
        return NULL;
    }
    fault = ddp__spec_fault(&spec, owner);
    if (fault) {
        ddp__fail(&g->error, DDP_ARG, "%s with inputs %s: %s", where, shapes, fault);
        return NULL;
    }

    n = ddp__node_add(g);
    if (!n) return NULL;
    n->op = entry;
    n->spec = spec;
    n->tied = owner ? owner->index : -1;
    for (i = 0; i < count; i++) n->input[i] = inputs[i]->index;
    ddp__node_place(g, n);
    return n;
}

void ddp_init_scale(ddp_graph *g, ddp_node *n, int param, float scale)
{
    if (!n || !ddp__graph_open(g, "ddp_init_scale")) return;
    if (n->graph != g || param < 0 || param >= n->spec.params ||
        !(scale >= 0 && scale <= FLT_MAX)) {
        ddp__fail(&g->error, DDP_ARG, "ddp_init_scale: node %d has no parameter %d, or the scale %g "
                  "is not a finite number >= 0", n->index, param, (double)scale);
        return;
    }
    n->spec.param[param].scale = scale;
}

void ddp_init_normal(ddp_graph *g, ddp_node *n, int param, float deviation)
{
    ddp_init_scale(g, n, param, deviation);
    if (g && n && !g->error.code)
        n->spec.param[param].init = deviation > 0 ? DDP_INIT_NORMAL : DDP_INIT_ZERO;
}

/* ---- reading ---- */

int ddp_node_count(const ddp_graph *g) { return g ? g->nodes : 0; }
int ddp_node_index(const ddp_node *n) { return n ? n->index : -1; }
int ddp_layer_count(const ddp_graph *g) { return g ? g->layers : 0; }

int ddp_node_describe(const ddp_graph *g, int index, ddp_node_info *out)
{
    const ddp_node *n;
    int i;

    if (!g || !out || index < 0 || index >= g->nodes) return DDP_ARG;
    n = g->node[index];
    memset(out, 0, sizeof *out);
    out->name = n->op ? n->op->name : "input";
    out->layer = n->layer >= 0 ? g->layer[n->layer].name : "";
    out->layer_index = n->layer;
    out->inputs = n->spec.inputs;
    for (i = 0; i < n->spec.inputs; i++) out->input[i] = n->input[i];
    out->out = n->spec.out;
    out->flops = n->spec.flops;
    if (n->op && ddp__op_has_backward(n->op))
        out->backward_flops = n->spec.backward_flops > 0 ? n->spec.backward_flops
                                                         : 2 * n->spec.flops;
    out->output_bytes = 4.0 * (double)ddp_shape_count(&n->spec.out);
    for (i = n->tied >= 0; i < n->spec.params; i++)
        out->param_bytes += 4.0 * (double)ddp_shape_count(&n->spec.param[i].shape);
    for (i = 0; i < n->spec.buffers; i++)
        out->buffer_bytes += 4.0 * (double)ddp_shape_count(&n->spec.buffer[i].shape);
    return DDP_OK;
}

size_t ddp_param_count(const ddp_graph *g)
{
    size_t count = 0;
    int i, k;

    for (i = 0; g && i < g->nodes; i++)
        for (k = g->node[i]->tied >= 0; k < g->node[i]->spec.params; k++)
            count += (size_t)ddp_shape_count(&g->node[i]->spec.param[k].shape);
    return count;
}

float *ddp_layer_params(ddp_graph *g, int layer, size_t *count)
{
    int ok = g && layer >= 0 && layer < g->layers;

    if (count) *count = ok ? g->layer[layer].count : 0;
    return ok ? g->layer[layer].params : NULL;
}

float *ddp_layer_gradients(ddp_graph *g, int layer, size_t *count)
{
    int ok = g && layer >= 0 && layer < g->layers;

    if (count) *count = ok ? g->layer[layer].count : 0;
    return ok ? g->layer[layer].grads : NULL;
}

float *ddp_node_param(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape)
{
    if (!g || !n || n->graph != g || k < 0 || k >= n->spec.params) return NULL;
    if (shape) *shape = n->spec.param[k].shape;
    return n->param[k];
}

float *ddp_node_gradient(ddp_graph *g, const ddp_node *n, int k)
{
    if (!g || !n || n->graph != g || k < 0 || k >= n->spec.params) return NULL;
    return n->grad[k];
}
/* ==== end graph/graph.c ==== */

/* ==== begin graph/builders.c ==== [graph] */
/* One builder per built-in operator: it collects the arguments for ddp_apply. */

static ddp_node *ddp__build1(ddp_graph *g, const char *op, ddp_node *x, int args, double arg0,
                             double arg1, ddp_node *tied)
{
    double arg[2];

    arg[0] = arg0;
    arg[1] = arg1;
    return ddp_apply(g, op, 1, &x, args, arg, tied);
}

static ddp_node *ddp__build2(ddp_graph *g, const char *op, ddp_node *a, ddp_node *b)
{
    ddp_node *in[2];

    in[0] = a;
    in[1] = b;
    return ddp_apply(g, op, 2, in, 0, NULL, NULL);
}

ddp_node *ddp_linear(ddp_graph *g, ddp_node *x, long width)
{
    return ddp__build1(g, "linear", x, 1, (double)width, 0, NULL);
}

ddp_node *ddp_linear_no_bias(ddp_graph *g, ddp_node *x, long width)
{
    return ddp__build1(g, "linear_no_bias", x, 1, (double)width, 0, NULL);
}

ddp_node *ddp_linear_tied(ddp_graph *g, ddp_node *x, ddp_node *embedding)
{
    if (g && !embedding && !g->error.code)
        ddp__fail(&g->error, DDP_ARG, "ddp_linear_tied: the embedding node is NULL");
    return ddp__build1(g, "linear_tied", x, 0, 0, 0, embedding);
}

ddp_node *ddp_embedding(ddp_graph *g, ddp_node *tokens, long vocabulary, long width)
{
    return ddp__build1(g, "embedding", tokens, 2, (double)vocabulary, (double)width, NULL);
}

ddp_node *ddp_position(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "position", x, 0, 0, 0, NULL);
}

ddp_node *ddp_layer_norm(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "layer_norm", x, 0, 0, 0, NULL);
}

ddp_node *ddp_attention(ddp_graph *g, ddp_node *x, long heads)
{
    return ddp__build1(g, "attention", x, 1, (double)heads, 0, NULL);
}

ddp_node *ddp_gelu(ddp_graph *g, ddp_node *x) { return ddp__build1(g, "gelu", x, 0, 0, 0, NULL); }
ddp_node *ddp_relu(ddp_graph *g, ddp_node *x) { return ddp__build1(g, "relu", x, 0, 0, 0, NULL); }
ddp_node *ddp_add(ddp_graph *g, ddp_node *a, ddp_node *b) { return ddp__build2(g, "add", a, b); }

ddp_node *ddp_dropout(ddp_graph *g, ddp_node *x, float probability)
{
    return ddp__build1(g, "dropout", x, 1, (double)probability, 0, NULL);
}

ddp_node *ddp_cross_entropy(ddp_graph *g, ddp_node *logits, ddp_node *labels)
{
    return ddp__build2(g, "cross_entropy", logits, labels);
}

ddp_node *ddp_conv2d(ddp_graph *g, ddp_node *x, long channels, long kernel, long stride,
                     long padding, long groups, int bias)
{
    double arg[6];

    arg[0] = (double)channels;
    arg[1] = (double)kernel;
    arg[2] = (double)stride;
    arg[3] = (double)padding;
    arg[4] = (double)groups;
    arg[5] = bias != 0;
    return ddp_apply(g, "conv2d", 1, &x, 6, arg, NULL);
}

ddp_node *ddp_batch_norm2d(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "batch_norm2d", x, 0, 0, 0, NULL);
}

static ddp_node *ddp__build_pool(ddp_graph *g, const char *op, ddp_node *x, long kernel,
                                 long stride, long padding)
{
    double arg[3];

    arg[0] = (double)kernel;
    arg[1] = (double)stride;
    arg[2] = (double)padding;
    return ddp_apply(g, op, 1, &x, 3, arg, NULL);
}

ddp_node *ddp_max_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding)
{
    return ddp__build_pool(g, "max_pool2d", x, kernel, stride, padding);
}

ddp_node *ddp_avg_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding)
{
    return ddp__build_pool(g, "avg_pool2d", x, kernel, stride, padding);
}

ddp_node *ddp_global_avg_pool2d(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "global_avg_pool2d", x, 0, 0, 0, NULL);
}

ddp_node *ddp_flatten(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "flatten", x, 0, 0, 0, NULL);
}
/* ==== end graph/builders.c ==== */

/* ==== begin graph/state.c ==== [graph] */
/* The activations and gradients of one micro-batch. */

void *ddp__state_at(const ddp_state *s, size_t offset)
{
    return offset == DDP__NOWHERE ? NULL : s->arena + offset;
}

ddp_state *ddp__state_open(ddp_graph *g, const ddp__layout *layout)
{
    ddp_state *s = (ddp_state *)ddp__calloc(1, sizeof *s);

    if (!s) return NULL;
    s->graph = g;
    s->layout = layout;
    s->pass = g->states_made++ << 32; /* states count their passes from unlike numbers */
    s->written = (unsigned char *)ddp__calloc((size_t)g->nodes, 1);
    s->arena = (char *)ddp__alloc(ddp__graph_allocator(g), layout->bytes);
    if (s->written && s->arena) return s;
    ddp_state_free(s);
    return NULL;
}

ddp_state *ddp_state_new(ddp_graph *g)
{
    ddp_state *s;
    int i, k;

    if (!g || !g->built) return NULL;
    s = ddp__state_open(g, &g->plain);
    if (!s) return NULL;

    /* written marks the used here; a scalar nobody uses is a loss, whose gradient is 1 */
    for (i = 0; i < g->nodes; i++)
        for (k = 0; k < g->node[i]->spec.inputs; k++) s->written[g->node[i]->input[k]] = 1;
    for (i = 0; i < g->nodes; i++)
        if (!s->written[i] && g->node[i]->op && ddp_shape_count(&g->node[i]->spec.out) == 1)
            *(float *)ddp__state_at(s, g->plain.gradient[i]) = 1;
    return s;
}

void ddp_state_free(ddp_state *s)
{
    if (!s) return;
    ddp__release(ddp__graph_allocator(s->graph), s->arena, s->layout->bytes);
    DDP_FREE(s->written);
    DDP_FREE(s);
}

void *ddp_state_data(ddp_state *s, const ddp_node *n)
{
    if (!s || !n || n->graph != s->graph) return NULL;
    return ddp__state_at(s, s->layout->out[n->index]);
}

void *ddp_state_gradient(ddp_state *s, const ddp_node *n)
{
    if (!s || !n || n->graph != s->graph) return NULL;
    return ddp__state_at(s, s->layout->gradient[n->index]);
}

void ddp_state_micro_batch(ddp_state *s, uint64_t number)
{
    if (!s) return;
    s->pass = number;
    s->pass_given = 1;
}

/* ---- the built-in state ---- */

void *ddp_data(ddp_graph *g, const char *name)
{
    int i;

    if (!g || !g->state || !name) return NULL;
    for (i = 0; i < g->nodes; i++)
        if (!g->node[i]->op && strcmp(g->node[i]->name, name) == 0)
            return ddp_state_data(g->state, g->node[i]);
    return NULL;
}

const float *ddp_output(ddp_graph *g, const ddp_node *n)
{
    if (!g || !g->state || !n || n->type != DDP_F32) return NULL;
    return (const float *)ddp_state_data(g->state, n);
}

float ddp_value(ddp_graph *g, const ddp_node *n)
{
    const float *out = ddp_output(g, n);

    return out && ddp_shape_count(&n->spec.out) == 1 ? *out : NAN;
}
/* ==== end graph/state.c ==== */

/* ==== begin graph/build.c ==== [graph] */
/* From bookkeeping to arrays: checks, parameters, memory plan, registration of the layers. */

static ddp_status ddp__build_check(ddp_graph *g)
{
    int i, operators = 0;

    if (g->open_layer >= 0)
        return ddp__fail(&g->error, DDP_USAGE, "layer \"%s\" is still open: call ddp_layer_end "
                         "before ddp_graph_build", g->layer[g->open_layer].name);
    for (i = 0; i < g->nodes; i++) {
        const ddp_node *n = g->node[i];

        if (!n->op) continue;
        operators++;
        if (!n->op->forward || n->spec.buffers)
            return ddp__fail(&g->error, DDP_UNSUPPORTED, "operator %.60s (node %d%s%.100s) has no "
                             "%s: this graph can be planned but not run", n->op->name, i,
                             n->layer >= 0 ? ", layer " : "",
                             n->layer >= 0 ? g->layer[n->layer].name : "",
                             n->op->forward ? "place for its buffers" : "kernels");
        if (n->layer < 0 && n->spec.params > (n->tied >= 0))
            return ddp__fail(&g->error, DDP_USAGE, "operator %.60s (node %d) has parameters but "
                             "lies outside layers: build it between ddp_layer_begin and ddp_layer_end",
                             n->op->name, i);
    }
    if (!operators) return ddp__fail(&g->error, DDP_USAGE, "the graph has no operators");
    return DDP_OK;
}

static ddp_status ddp__build_layers(ddp_graph *g)
{
    const ddp_allocator *a = ddp__graph_allocator(g);
    int i;

    for (i = 0; i < g->layers; i++) {
        ddp__graph_layer *l = &g->layer[i];

        if (l->count == 0) continue;
        l->params = (float *)ddp__alloc(a, l->count * sizeof(float));
        l->grads = (float *)ddp__alloc(a, l->count * sizeof(float));
        if (!l->params || !l->grads)
            return ddp__fail(&g->error, DDP_MEMORY, "out of memory: layer \"%.200s\" needs %zu bytes "
                             "for parameters and gradients", l->name, 2 * l->count * sizeof(float));
    }
    return DDP_OK;
}

/* Points every node at its arrays. Arrays follow each other without gaps. */
static void ddp__build_pointers(ddp_graph *g)
{
    size_t used = 0;
    int i, k, layer = -1;

    for (i = 0; i < g->nodes; i++) {
        ddp_node *n = g->node[i];

        if (n->layer != layer) used = 0;
        layer = n->layer;
        if (n->tied >= 0) {
            n->param[0] = g->node[n->tied]->param[0];
            n->grad[0] = g->node[n->tied]->grad[0];
        }
        for (k = n->tied >= 0; k < n->spec.params; k++) {
            n->param[k] = g->layer[layer].params + used;
            n->grad[k] = g->layer[layer].grads + used;
            used += (size_t)ddp_shape_count(&n->spec.param[k].shape);
        }
    }
}

/* The stream of a parameter: its node would do, but its place in its layer survives an inserted
 * dropout or another loss elsewhere in the model. */
static uint64_t ddp__param_stream(const ddp_graph *g, const ddp_node *n, int k)
{
    size_t position = (size_t)(n->param[k] - g->layer[n->layer].params);

    return ((uint64_t)(unsigned)n->layer << 40) + (uint64_t)position;
}

static void ddp__param_fill(const ddp_param *p, ddp_rng r, float *w)
{
    long i, count = ddp_shape_count(&p->shape);

    switch (p->init) {
    case DDP_INIT_ZERO: /* the block was allocated zeroed */
        break;
    case DDP_INIT_ONE:
        for (i = 0; i < count; i++) w[i] = 1;
        break;
    case DDP_INIT_NORMAL:
        for (i = 0; i < count; i++) w[i] = (float)((double)p->scale * ddp_rng_normal(&r));
        break;
    case DDP_INIT_UNIFORM:
        for (i = 0; i < count; i++)
            w[i] = (float)((double)p->scale * (2 * ddp_rng_uniform(&r) - 1));
        break;
    }
}

/* Fills the parameters of nodes first..last-1; every array has a stream of its own, so arrays may
 * be filled by several threads. */
static void ddp__build_fill(void *user, long first, long last)
{
    ddp_graph *g = (ddp_graph *)user;
    uint64_t seed = g->host ? g->host->seed : 0;
    long i;
    int k;

    for (i = first; i < last; i++) {
        ddp_node *n = g->node[i];

        for (k = n->tied >= 0; k < n->spec.params; k++)
            ddp__param_fill(&n->spec.param[k], ddp_rng_seed(seed, ddp__param_stream(g, n, k)),
                            n->param[k]);
    }
}

static ddp_status ddp__build_state(ddp_graph *g)
{
    DDP__TRY(ddp__layout_plan(g, 1, &g->reuse, &g->error));
    DDP__TRY(ddp__layout_plan(g, 0, &g->plain, &g->error));
    g->state = ddp__state_open(g, &g->reuse);
    if (!g->state)
        return ddp__fail(&g->error, DDP_MEMORY, "out of memory: activations need %zu bytes; use a "
                         "smaller batch", g->reuse.bytes);
    return DDP_OK;
}

static ddp_status ddp__build_register(ddp_graph *g)
{
    int i, code;

    if (!g->host || !g->host->hooks || !g->host->hooks->add_layer) return DDP_OK;
    for (i = 0; i < g->layers; i++) {
        ddp_layer layer;

        memset(&layer, 0, sizeof layer);
        layer.name = g->layer[i].name;
        layer.params = g->layer[i].params;
        layer.grads = g->layer[i].grads;
        layer.count = g->layer[i].count;
        layer.flops = g->layer[i].flops;
        g->registered = i + 1; /* even a refusal may have left a pointer behind */
        code = g->host->hooks->add_layer((ddp_ctx *)(void *)g->host, &layer);
        if (code)
            return ddp__fail(&g->error, (ddp_status)code, "%s", g->host->error.code
                             ? g->host->error.msg : "the context refused a layer of the graph");
    }
    return DDP_OK;
}

static ddp_status ddp__graph_build(ddp_graph *g)
{
    if (g->error.code) return g->error.code;
    if (g->built) return ddp__fail(&g->error, DDP_USAGE, "ddp_graph_build was called twice");
    DDP__TRY(ddp__build_check(g));
    DDP__TRY(ddp__build_layers(g));
    ddp__build_pointers(g);
    ddp__pool_run(g->host ? g->host->pool : NULL, g->nodes, 1, ddp__build_fill, g);
    DDP__TRY(ddp__build_state(g));
    DDP__TRY(ddp__build_register(g));
    g->built = 1;
    return DDP_OK;
}

int ddp_graph_build(ddp_graph *g)
{
    return g ? (int)ddp__graph_build(g) : (int)DDP_MEMORY; /* ddp_graph_new had none */
}
/* ==== end graph/build.c ==== */

/* ==== begin graph/exec.c ==== [graph] */
/* Forward and backward over the graph, or over a range of it. */

/* ---- one operator ---- */

static void ddp__call_fill(const ddp_state *s, const ddp_node *n, int training, ddp_op_call *c)
{
    const ddp_graph *g = s->graph;
    ddp_rng r = ddp_rng_seed(g->host ? g->host->seed : 0, s->pass);
    int i;

    memset(c, 0, sizeof *c);
    c->spec = &n->spec;
    for (i = 0; i < n->spec.inputs; i++) c->in[i] = ddp__state_at(s, s->layout->out[n->input[i]]);
    for (i = 0; i < n->spec.params; i++) c->param[i] = n->param[i];
    c->out = ddp__state_at(s, s->layout->out[n->index]);
    c->saved = ddp__state_at(s, s->layout->saved[n->index]);
    c->pool = g->host ? g->host->pool : NULL;
    c->training = training;
    r = ddp_rng_seed(ddp_rng_u64(&r), (uint64_t)(unsigned)n->index);
    c->random = ddp_rng_u64(&r);
}

static void ddp__run_forward(const ddp_state *s, const ddp_node *n, int training)
{
    ddp_op_call c;

    ddp__call_fill(s, n, training, &c);
    n->op->forward(&c);
}

/* every_float: input gradients are wanted for all float arrays, not only where parameters lie
 * above. The first writer of a gradient overwrites it, the others add. */
static void ddp__run_backward(ddp_state *s, const ddp_node *n, int every_float)
{
    const ddp_graph *g = s->graph;
    ddp_op_call c;
    int i;

    ddp__call_fill(s, n, 1, &c);
    c.grad_out = ddp__state_at(s, s->layout->gradient[n->index]);
    for (i = 0; i < n->spec.inputs; i++) {
        int p = n->input[i];

        if (every_float ? g->node[p]->type != DDP_F32 : !g->node[p]->has_gradient) continue;
        c.grad_in[i] = ddp__state_at(s, s->layout->gradient[p]);
        c.add_in[i] = s->written[p];
        s->written[p] = 1;
    }
    for (i = 0; i < n->spec.params; i++) c.grad_param[i] = n->grad[i];
    n->op->backward(&c);
}

/* ---- whole passes on the built-in state ---- */

static int ddp__hook(ddp_graph *g, int (*fn)(ddp_ctx *ctx, int layer), int layer)
{
    return fn ? fn((ddp_ctx *)(void *)g->host, layer) : 0;
}

static ddp_status ddp__runnable(ddp_graph *g, const char *what)
{
    if (!g) return DDP_MEMORY;
    if (g->error.code) return g->error.code;
    if (!g->built) return ddp__fail(&g->error, DDP_USAGE, "%s before ddp_graph_build", what);
    return DDP_OK;
}

int ddp_forward(ddp_graph *g)
{
    const ddp__hooks *hooks;
    int i, code = (int)ddp__runnable(g, "ddp_forward");

    if (code) return code;
    hooks = g->host ? g->host->hooks : NULL;
    g->state->ready = 0;
    g->state->pass++;
    for (i = 0; i < g->nodes; i++) {
        const ddp_node *n = g->node[i];

        if (!n->op) continue;
        if (hooks && n->layer >= 0 && g->layer[n->layer].first == i) {
            code = ddp__hook(g, hooks->forward_begin, n->layer);
            if (code) return code;
        }
        ddp__run_forward(g->state, n, 1);
    }
    g->state->ready = 1;
    return 0;
}

int ddp_evaluate(ddp_graph *g)
{
    int i, code = (int)ddp__runnable(g, "ddp_evaluate");

    if (code) return code;
    g->state->ready = 0;
    for (i = 0; i < g->nodes; i++)
        if (g->node[i]->op) ddp__run_forward(g->state, g->node[i], 0);
    return 0;
}

/* Why loss cannot be where backward starts, or NULL. */
static const char *ddp__loss_fault(const ddp_graph *g, const ddp_node *loss)
{
    if (!loss || loss->graph != g) return "the loss is not a node of this graph";
    if (ddp_shape_count(&loss->spec.out) != 1) return "the loss is not a scalar";
    if (!loss->has_gradient) return "no parameter is reached by the gradient of the loss";
    if (!g->state->ready)
        return "call ddp_forward before each ddp_backward: activations are used up by it";
    return NULL;
}

int ddp_backward(ddp_graph *g, ddp_node *loss)
{
    const ddp__hooks *hooks;
    const char *fault;
    int i, code = (int)ddp__runnable(g, "ddp_backward");

    if (code) return code;
    fault = ddp__loss_fault(g, loss);
    if (fault) return (int)ddp__fail(&g->error, DDP_USAGE, "ddp_backward: %s", fault);
    hooks = g->host ? g->host->hooks : NULL;
    g->state->ready = 0;
    memset(g->state->written, 0, (size_t)g->nodes);

    /* the hooks fire for every layer, also where no gradient flows: a context waits for each */
    for (i = g->nodes - 1; i >= 0; i--) {
        const ddp_node *n = g->node[i];

        if (!n->op) continue;
        if (hooks && n->layer >= 0 && g->layer[n->layer].last == i) {
            code = ddp__hook(g, hooks->backward_begin, n->layer);
            if (code) return code;
        }
        if (n == loss) { /* its users took no part: they come later in the graph */
            *(float *)ddp__state_at(g->state, g->state->layout->gradient[i]) = 1;
            g->state->written[i] = 1;
        }
        if (g->state->written[i] && n->has_gradient) ddp__run_backward(g->state, n, 0);
        if (hooks && n->layer >= 0 && g->layer[n->layer].first == i) {
            code = ddp__hook(g, hooks->backward_end, n->layer);
            if (code) return code;
        }
    }
    return 0;
}

void ddp_zero_gradients(ddp_graph *g)
{
    int i;

    for (i = 0; g && i < g->layers; i++)
        if (g->layer[i].grads) memset(g->layer[i].grads, 0, g->layer[i].count * sizeof(float));
}

/* ---- ranges on a state of its own ---- */

static ddp_status ddp__range_ok(ddp_state *s, const char *what, int first, int last)
{
    if (!s) return DDP_ARG;
    DDP__TRY(ddp__runnable(s->graph, what));
    if (first < 0 || last >= s->graph->nodes || first > last)
        return ddp__fail(&s->graph->error, DDP_ARG, "%s: operators %d..%d are not within 0..%d",
                         what, first, last, s->graph->nodes - 1);
    return DDP_OK;
}

int ddp_forward_range(ddp_state *s, int first, int last)
{
    int i, code = (int)ddp__range_ok(s, "ddp_forward_range", first, last);

    if (code) return code;
    if (!s->pass_given && (first < s->next || s->next == 0)) s->pass++;
    s->next = last + 1;
    for (i = first; i <= last; i++)
        if (s->graph->node[i]->op) ddp__run_forward(s, s->graph->node[i], 1);
    return 0;
}

int ddp_backward_range(ddp_state *s, int first, int last)
{
    const ddp_graph *g;
    int i, k, code = (int)ddp__range_ok(s, "ddp_backward_range", first, last);

    if (code) return code;
    g = s->graph;

    /* Present before the range runs: gradients of outputs used after it, and of outputs nobody
     * uses. Bit 2 marks the used. */
    memset(s->written, 0, (size_t)g->nodes);
    for (i = 0; i < g->nodes; i++)
        for (k = 0; k < g->node[i]->spec.inputs; k++)
            s->written[g->node[i]->input[k]] |= i > last && g->node[i]->op->backward ? 3 : 2;
    for (i = 0; i < g->nodes; i++)
        s->written[i] = s->written[i] ? s->written[i] & 1 : (unsigned char)(g->node[i]->op != NULL);

    for (i = last; i >= first; i--) {
        const ddp_node *n = g->node[i];

        if (n->op && n->op->backward && s->written[i]) ddp__run_backward(s, n, 1);
    }
    return 0;
}
/* ==== end graph/exec.c ==== */

/* ==== begin ops/ops.h ==== [ops] */
/* What the operator files share. Each file holds one family: the plain reference kernels, loops
 * in the order of the formulas, and beside them the float kernels that are tested against
 * those. */
#ifndef DDP_OPS_OPS_H
#define DDP_OPS_OPS_H

/* Element type of the reference kernels. */
#ifndef DDP_REF_REAL
#define DDP_REF_REAL double
#endif
typedef DDP_REF_REAL ddp__real;

enum { DDP__OP_GRAIN = 8192 }; /* elements of a parallel block of an elementwise kernel */

#ifdef __cplusplus
extern "C" {
#endif

/* Each points *list at a family's table entries and returns their number. */
DDP_LIB int ddp__linear_ops(const ddp_op **list);
DDP_LIB int ddp__embedding_ops(const ddp_op **list);
DDP_LIB int ddp__norm_ops(const ddp_op **list);
DDP_LIB int ddp__attention_ops(const ddp_op **list);
DDP_LIB int ddp__activation_ops(const ddp_op **list);
DDP_LIB int ddp__dropout_ops(const ddp_op **list);
DDP_LIB int ddp__loss_ops(const ddp_op **list);

/* Checks that inputs first..last exist and hold floats and have at least one dimension. */
DDP_LIB ddp_status ddp__op_floats(const ddp_op_spec *s, const char *op, int first, int last,
                                  ddp_error *err);
/* Reads argument i as a whole number of at least 1. */
DDP_LIB ddp_status ddp__op_count(const ddp_op_spec *s, const char *op, int i, const char *what,
                                 long *value, ddp_error *err);
/* Adds one parameter of up to two dimensions (second 0: one). */
DDP_LIB void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init,
                           double scale);

#ifdef __cplusplus
}
#endif

#endif /* DDP_OPS_OPS_H */
/* ==== end ops/ops.h ==== */

/* ==== begin ops/kernels.h ==== [ops] */
/* The inner loops that carry nearly all of the time, one set per instruction set. */
#ifndef DDP_OPS_KERNELS_H
#define DDP_OPS_KERNELS_H

#define DDP__GEMM_MR 12 /* most rows and columns of a register tile over all sets */
#define DDP__GEMM_NR 32

/* One set. Rows are n contiguous floats, any n >= 1, any alignment; an output may be the same
 * array as an input of equal index range. add = 1 adds to the output, 0 overwrites it. */
typedef struct ddp__kernels {
    const char *name;
    int mr, nr; /* register tile of gemm */

    /* c (mr x nr, leading dimension ldc) = or += sum over p of a[p*mr + i] * b[p*nr + j]. */
    void (*gemm)(long k, const float *a, const float *b, float *c, long ldc, int add);
    /* max over x. */
    float (*max)(const float *x, long n);
    /* sum over x*y. */
    float (*dot)(const float *x, const float *y, long n);
    /* sum of e = exp(scale * x - shift); y (may be NULL) receives e. */
    float (*exp_sum)(float *y, const float *x, long n, float scale, float shift);
    /* y = or += factor * exp(scale * x - shift). */
    void (*softmax)(float *y, const float *x, long n, float scale, float shift, float factor,
                    int add);
    /* d = factor * p * (d - mean): through a softmax whose probabilities are p. */
    void (*softmax_grad)(float *d, const float *p, long n, float mean, float factor);
    /* GELU, tanh form, and dx = or += dy * gelu'(x). */
    void (*gelu)(float *y, const float *x, long n);
    void (*gelu_grad)(float *dx, const float *x, const float *dy, long n, int add);
    /* y = (x - mean) * rstd * scale + shift; stat receives mean and rstd = 1/sqrt(var + eps). */
    void (*norm)(float *y, const float *x, const float *scale, const float *shift, long n,
                 float eps, float *stat);
    void (*norm_grad)(float *dx, const float *x, const float *scale, const float *dy, long n,
                      const float *stat, int add);
} ddp__kernels;

#ifdef __cplusplus
extern "C" {
#endif

/* The fastest set that this processor runs. Cheap: a few loads, no state. */
DDP_LIB const ddp__kernels *ddp__kernels_best(void);
/* Set number i, slowest first, or NULL past the last one that this processor runs: tests try
 * each. */
DDP_LIB const ddp__kernels *ddp__kernels_at(int i);

#ifdef __cplusplus
}
#endif

#endif /* DDP_OPS_KERNELS_H */
/* ==== end ops/kernels.h ==== */

/* ==== begin ops/matmul.h ==== [ops] */
/* Matrix product in float: packed, blocked, parallel over blocks of the result. */
#ifndef DDP_OPS_MATMUL_H
#define DDP_OPS_MATMUL_H

/* c (m x n) = or += a (m x k) times b (k x n). Strides in floats: a(i, p) is
 * a[i*a_row + p*a_col], b(p, j) is b[p*b_row + j*b_col], so a transpose is two numbers exchanged;
 * c has contiguous rows. Every element is summed over p in one fixed order, whatever the
 * blocks, so results depend on neither threads nor position. m, n, k >= 0. */
typedef struct ddp__matmul {
    long         m, n, k;
    const float *a;
    long         a_row, a_col;
    const float *b;
    long         b_row, b_col;
    float       *c;
    long         c_row;
    const float *bias; /* [n] added to every row, or NULL; only without add */
    int          add;
} ddp__matmul;

#ifdef __cplusplus
extern "C" {
#endif

/* On the operator threads of call. */
DDP_LIB void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g);
/* On the calling thread alone, with the given kernels; about 230 KiB of stack. */
DDP_LIB void ddp__matmul_serial(const ddp__kernels *kernels, const ddp__matmul *g);

#ifdef __cplusplus
}
#endif

#endif /* DDP_OPS_MATMUL_H */
/* ==== end ops/matmul.h ==== */

/* ==== begin ops/kernels.c ==== [ops] */
/* One text, instantiated per instruction set with vector extensions: -march=native is not
 * needed, and -O1 is enough. A vector type wider than the function's target would be lowered to
 * scalar code (30 times slower, measured), so every function that touches one carries its
 * set's attributes and passes vectors by pointer only. */

/* GCC fuses multiply and add neither under -std=c11 nor below -O2; Clang does by default. */
#if defined(__GNUC__) && !defined(__clang__)
#define DDP__CONTRACT optimize("O2", "fp-contract=fast")
#define DDP__KERNEL(target_) __attribute__((target_, DDP__CONTRACT))
#define DDP__KERNEL_PLAIN    __attribute__((DDP__CONTRACT))
#else
#define DDP__KERNEL(target_) __attribute__((target_))
#define DDP__KERNEL_PLAIN
#endif

/* Rows of the register tile, spelled out: whether a compiler unrolls a loop is its own affair,
 * and accumulators that stay in an array are in memory. */
#define DDP__ROWS_6(X, T)  X(T, 0) X(T, 1) X(T, 2) X(T, 3) X(T, 4) X(T, 5)
#define DDP__ROWS_12(X, T) DDP__ROWS_6(X, T) X(T, 6) X(T, 7) X(T, 8) X(T, 9) X(T, 10) X(T, 11)
#define DDP__ROW_ZERO(T, i) T p##i = {0}, q##i = {0};
#define DDP__ROW_STEP(T, i) p##i = p##i + a[i] * b0; q##i = q##i + a[i] * b1;
#define DDP__ROW_SAVE(T, i)                                        \
    {                                                              \
        T *row = (T *)(c + i * ldc);                               \
        if (add) { row[0] = row[0] + p##i; row[1] = row[1] + q##i; } \
        else { row[0] = p##i; row[1] = q##i; }                     \
    }

/* exp as in Cephes expf: n = round(x / ln 2), r = x - n ln 2 in two parts, a polynomial in r,
 * times 2^n. Relative error below 2e-7. The argument is held within [-87.3, 88.3], where 2^n is a
 * normal number; NaN stays NaN. The rounding constant 1.5 * 2^23 leaves n in the low bits. */
#define DDP__KERNEL_SET(S, BYTES, MR, ROWS, ATTR)                                                  \
    typedef float ddp__vec_##S __attribute__((vector_size(BYTES)));                                \
    typedef float ddp__mem_##S __attribute__((vector_size(BYTES), aligned(4), may_alias));         \
    typedef int32_t ddp__int_##S __attribute__((vector_size(BYTES)));                              \
    typedef uint32_t ddp__bits_##S __attribute__((vector_size(BYTES)));                            \
    enum { ddp__lanes_##S = (BYTES) / 4 };                                                         \
                                                                                                   \
    static ATTR void ddp__gemm_##S(long k, const float *a, const float *b, float *c, long ldc,     \
                                   int add)                                                        \
    {                                                                                              \
        ROWS(DDP__ROW_ZERO, ddp__vec_##S)                                                          \
        for (; k > 0; k--, a += (MR), b += 2 * ddp__lanes_##S) {                                   \
            const ddp__vec_##S b0 = *(const ddp__mem_##S *)b;                                      \
            const ddp__vec_##S b1 = *(const ddp__mem_##S *)(b + ddp__lanes_##S);                   \
            ROWS(DDP__ROW_STEP, ddp__vec_##S)                                                      \
        }                                                                                          \
        ROWS(DDP__ROW_SAVE, ddp__mem_##S)                                                          \
    }                                                                                              \
                                                                                                   \
    static inline ATTR __attribute__((always_inline)) void ddp__load_##S(                          \
        ddp__vec_##S *v, const float *p, long left, float fill)                                    \
    {                                                                                              \
        float part[ddp__lanes_##S];                                                                \
        int j;                                                                                     \
        if (left >= ddp__lanes_##S) {                                                              \
            *v = *(const ddp__mem_##S *)p;                                                         \
        } else {                                                                                   \
            for (j = 0; j < ddp__lanes_##S; j++) part[j] = j < left ? p[j] : fill;                 \
            *v = *(const ddp__mem_##S *)part;                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static inline ATTR __attribute__((always_inline)) void ddp__store_##S(                         \
        float *p, const ddp__vec_##S *v, long left, int add)                                       \
    {                                                                                              \
        float part[ddp__lanes_##S];                                                                \
        int j;                                                                                     \
        if (left >= ddp__lanes_##S) {                                                              \
            if (add) *(ddp__mem_##S *)p = *(const ddp__mem_##S *)p + *v;                           \
            else *(ddp__mem_##S *)p = *v;                                                          \
        } else {                                                                                   \
            *(ddp__mem_##S *)part = *v;                                                            \
            for (j = 0; j < left; j++) p[j] = add ? p[j] + part[j] : part[j];                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static inline ATTR __attribute__((always_inline)) float ddp__total_##S(const ddp__vec_##S *v)  \
    {                                                                                              \
        float part[ddp__lanes_##S];                                                                \
        int j, half;                                                                               \
        *(ddp__mem_##S *)part = *v;                                                                \
        for (half = ddp__lanes_##S / 2; half; half /= 2)                                           \
            for (j = 0; j < half; j++) part[j] += part[j + half];                                  \
        return part[0];                                                                            \
    }                                                                                              \
                                                                                                   \
    static inline ATTR __attribute__((always_inline)) void ddp__exp_##S(ddp__vec_##S *x)           \
    {                                                                                              \
        const ddp__vec_##S zero = {0}, top = zero + 88.3f, bottom = zero - 87.3f;                  \
        const ddp__vec_##S shift = zero + 12582912.0f;                                             \
        ddp__vec_##S v = *x, f, r, p;                                                              \
        ddp__int_##S m, n;                                                                         \
        m = (ddp__int_##S)(v > top);                                                               \
        v = (ddp__vec_##S)((m & (ddp__int_##S)top) | (~m & (ddp__int_##S)v));                      \
        m = (ddp__int_##S)(v < bottom);                                                            \
        v = (ddp__vec_##S)((m & (ddp__int_##S)bottom) | (~m & (ddp__int_##S)v));                   \
        f = v * 1.44269504f + shift;                                                               \
        n = (ddp__int_##S)((ddp__bits_##S)f - (ddp__bits_##S)shift);                               \
        f = __builtin_convertvector(n, ddp__vec_##S);                                              \
        r = v - f * 0.693359375f;                                                                  \
        r = r + f * 2.12194440e-4f;                                                                \
        p = r * 1.9875691500e-4f + 1.3981999507e-3f;                                               \
        p = p * r + 8.3334519073e-3f;                                                              \
        p = p * r + 4.1665795894e-2f;                                                              \
        p = p * r + 1.6666665459e-1f;                                                              \
        p = p * r + 5.0000001201e-1f;                                                              \
        p = p * (r * r) + r + 1.0f;                                                                \
        *x = p * (ddp__vec_##S)(((ddp__bits_##S)n + 127u) << 23);                                  \
    }                                                                                              \
                                                                                                   \
    static ATTR float ddp__max_##S(const float *x, long n)                                         \
    {                                                                                              \
        ddp__vec_##S top = {0}, v;                                                                 \
        float part[ddp__lanes_##S];                                                                \
        long i;                                                                                    \
        int j;                                                                                     \
        top = top + x[0];                                                                          \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__int_##S m;                                                                        \
            ddp__load_##S(&v, x + i, n - i, x[0]);                                                 \
            m = (ddp__int_##S)(v > top);                                                           \
            top = (ddp__vec_##S)((m & (ddp__int_##S)v) | (~m & (ddp__int_##S)top));                \
        }                                                                                          \
        *(ddp__mem_##S *)part = top;                                                               \
        for (j = 1; j < ddp__lanes_##S; j++)                                                       \
            if (part[j] > part[0]) part[0] = part[j];                                              \
        return part[0];                                                                            \
    }                                                                                              \
                                                                                                   \
    static ATTR float ddp__dot_##S(const float *x, const float *y, long n)                         \
    {                                                                                              \
        ddp__vec_##S sum = {0}, u, v;                                                              \
        long i;                                                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&u, x + i, n - i, 0);                                                    \
            ddp__load_##S(&v, y + i, n - i, 0);                                                    \
            sum = sum + u * v;                                                                     \
        }                                                                                          \
        return ddp__total_##S(&sum);                                                               \
    }                                                                                              \
                                                                                                   \
    static ATTR float ddp__exp_sum_##S(float *y, const float *x, long n, float scale, float shift) \
    {                                                                                              \
        ddp__vec_##S sum = {0}, v;                                                                 \
        long i;                                                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, -FLT_MAX); /* e^-87 beside a sum of at least 1 */      \
            v = v * scale - shift;                                                                 \
            ddp__exp_##S(&v);                                                                      \
            sum = sum + v;                                                                         \
            if (y) ddp__store_##S(y + i, &v, n - i, 0);                                            \
        }                                                                                          \
        return ddp__total_##S(&sum);                                                               \
    }                                                                                              \
                                                                                                   \
    static ATTR void ddp__softmax_##S(float *y, const float *x, long n, float scale, float shift,  \
                                      float factor, int add)                                       \
    {                                                                                              \
        ddp__vec_##S v;                                                                            \
        long i;                                                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, 0);                                                    \
            v = v * scale - shift;                                                                 \
            ddp__exp_##S(&v);                                                                      \
            v = v * factor;                                                                        \
            ddp__store_##S(y + i, &v, n - i, add);                                                 \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static ATTR void ddp__softmax_grad_##S(float *d, const float *p, long n, float mean,           \
                                           float factor)                                           \
    {                                                                                              \
        ddp__vec_##S u, v;                                                                         \
        long i;                                                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&u, p + i, n - i, 0);                                                    \
            ddp__load_##S(&v, d + i, n - i, 0);                                                    \
            v = (v - mean) * (u * factor);                                                         \
            ddp__store_##S(d + i, &v, n - i, 0);                                                   \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* tanh(u) = 2 / (1 + e^-2u) - 1, so 0.5 x (1 + tanh(u)) = x / (1 + e^-2u);                    \
     * u = sqrt(2 / pi) (x + 0.044715 x^3). */                                                     \
    static ATTR void ddp__gelu_##S(float *y, const float *x, long n)                               \
    {                                                                                              \
        ddp__vec_##S v, e;                                                                         \
        long i;                                                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, 0);                                                    \
            e = v * (v * v * -0.0713548163f + -1.5957691216f);                                     \
            ddp__exp_##S(&e);                                                                      \
            v = v / (e + 1.0f);                                                                    \
            ddp__store_##S(y + i, &v, n - i, 0);                                                   \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* with s = 1 / (1 + e^-2u): gelu' = s + x s (1 - s) 2 u'. */                                  \
    static ATTR void ddp__gelu_grad_##S(float *dx, const float *x, const float *dy, long n,        \
                                        int add)                                                   \
    {                                                                                              \
        ddp__vec_##S v, d, e, s;                                                                   \
        long i;                                                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, 0);                                                    \
            ddp__load_##S(&d, dy + i, n - i, 0);                                                   \
            e = v * (v * v * -0.0713548163f + -1.5957691216f);                                     \
            ddp__exp_##S(&e);                                                                      \
            s = 1.0f / (e + 1.0f);                                                                 \
            d = d * (s + v * (s * (1.0f - s)) * (v * v * 0.2140644488f + 1.5957691216f));          \
            ddp__store_##S(dx + i, &d, n - i, add);                                                \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static ATTR void ddp__norm_##S(float *y, const float *x, const float *scale,                   \
                                   const float *shift, long n, float eps, float *stat)             \
    {                                                                                              \
        ddp__vec_##S sum = {0}, square = {0}, v, w, b;                                             \
        float mean, rstd;                                                                          \
        long i;                                                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, 0);                                                    \
            sum = sum + v;                                                                         \
        }                                                                                          \
        mean = ddp__total_##S(&sum) / (float)n;                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, mean);                                                 \
            v = v - mean;                                                                          \
            square = square + v * v;                                                               \
        }                                                                                          \
        rstd = 1.0f / sqrtf(ddp__total_##S(&square) / (float)n + eps);                             \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, 0);                                                    \
            ddp__load_##S(&w, scale + i, n - i, 0);                                                \
            ddp__load_##S(&b, shift + i, n - i, 0);                                                \
            v = (v - mean) * rstd * w + b;                                                         \
            ddp__store_##S(y + i, &v, n - i, 0);                                                   \
        }                                                                                          \
        stat[0] = mean;                                                                            \
        stat[1] = rstd;                                                                            \
    }                                                                                              \
                                                                                                   \
    /* h = normalised x, d = dy * scale: dx = rstd (d - mean(d) - h mean(d h)). */                 \
    static ATTR void ddp__norm_grad_##S(float *dx, const float *x, const float *scale,             \
                                        const float *dy, long n, const float *stat, int add)       \
    {                                                                                              \
        ddp__vec_##S sum = {0}, dots = {0}, v, w, d;                                               \
        const float mean = stat[0], rstd = stat[1];                                                \
        float mean_d, mean_dh;                                                                     \
        long i;                                                                                    \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, 0);                                                    \
            ddp__load_##S(&w, scale + i, n - i, 0);                                                \
            ddp__load_##S(&d, dy + i, n - i, 0);                                                   \
            d = d * w;                                                                             \
            sum = sum + d;                                                                         \
            dots = dots + d * ((v - mean) * rstd);                                                 \
        }                                                                                          \
        mean_d = ddp__total_##S(&sum) / (float)n;                                                  \
        mean_dh = ddp__total_##S(&dots) / (float)n;                                                \
        for (i = 0; i < n; i += ddp__lanes_##S) {                                                  \
            ddp__load_##S(&v, x + i, n - i, 0);                                                    \
            ddp__load_##S(&w, scale + i, n - i, 0);                                                \
            ddp__load_##S(&d, dy + i, n - i, 0);                                                   \
            d = (d * w - mean_d - (v - mean) * rstd * mean_dh) * rstd;                             \
            ddp__store_##S(dx + i, &d, n - i, add);                                                \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static const ddp__kernels ddp__kernels_##S = {                                                 \
        #S, MR, 2 * ddp__lanes_##S, ddp__gemm_##S, ddp__max_##S, ddp__dot_##S, ddp__exp_sum_##S,   \
        ddp__softmax_##S, ddp__softmax_grad_##S, ddp__gelu_##S, ddp__gelu_grad_##S, ddp__norm_##S, \
        ddp__norm_grad_##S};

DDP__KERNEL_SET(base, 16, 6, DDP__ROWS_6, DDP__KERNEL_PLAIN)

#if defined(__x86_64__)
DDP__KERNEL_SET(avx2, 32, 6, DDP__ROWS_6, DDP__KERNEL(target("avx2,fma")))
DDP__KERNEL_SET(avx512, 64, 12, DDP__ROWS_12, DDP__KERNEL(target("avx512f")))
#endif

const ddp__kernels *ddp__kernels_at(int i)
{
#if defined(__x86_64__)
    if (i == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &ddp__kernels_avx2;
    if (i == 2 && __builtin_cpu_supports("avx512f")) return &ddp__kernels_avx512;
#endif
    return i == 0 ? &ddp__kernels_base : NULL;
}

const ddp__kernels *ddp__kernels_best(void)
{
    const ddp__kernels *k = ddp__kernels_at(2);

    if (!k) k = ddp__kernels_at(1);
    return k ? k : ddp__kernels_at(0);
}
/* ==== end ops/kernels.c ==== */

/* ==== begin ops/matmul.c ==== [ops] */

/* A block of a (MC x KC) is packed once into L2, and strips of b (KC x NR) one at a time into L1.
 * Both live on the stack: no allocation in a training step, no state shared between threads. */
enum {
    DDP__MATMUL_MC = 264, /* a multiple of every mr */
    DDP__MATMUL_KC = 192,
    DDP__MATMUL_NC = 512  /* most columns of a parallel block */
};

typedef struct ddp__matmul_job {
    const ddp__matmul  *g;
    const ddp__kernels *kernels;
    long                rows, cols; /* of a parallel block */
    long                row_blocks;
} ddp__matmul_job;

static long ddp__min_long(long a, long b) { return a < b ? a : b; }

/* dst[p*width + i] = src[i*lane + p*step] for i < lanes, p < k. Further lanes are zero: their
 * results are thrown away, but what lies on the stack may be subnormal, which is slow. */
static void ddp__matmul_pack(float *DDP_RESTRICT dst, const float *DDP_RESTRICT src, long lane,
                             long step, long lanes, long width, long k)
{
    long i, p;

    if (lanes < width) memset(dst, 0, (size_t)(width * k) * sizeof *dst);
    if (lane == 1) {
        for (p = 0; p < k; p++, dst += width, src += step) {
            for (i = 0; i + 4 <= lanes; i += 4) memcpy(dst + i, src + i, 4 * sizeof *dst);
            for (; i < lanes; i++) dst[i] = src[i];
        }
        return;
    }
    for (i = 0; i + 4 <= lanes; i += 4) {
        const float *s = src + i * lane;
        float *d = dst + i;
        for (p = 0; p < k; p++, d += width) {
            d[0] = s[p * step];
            d[1] = s[p * step + lane];
            d[2] = s[p * step + 2 * lane];
            d[3] = s[p * step + 3 * lane];
        }
    }
    for (; i < lanes; i++)
        for (p = 0; p < k; p++) dst[p * width + i] = src[i * lane + p * step];
}

/* One register tile; at an edge through a full tile of its own. */
static void ddp__matmul_tile(const ddp__kernels *kn, long k, const float *a, const float *b,
                             float *c, long c_row, long rows, long cols, int add)
{
    float part[DDP__GEMM_MR * DDP__GEMM_NR];
    long i, j;

    if (rows == kn->mr && cols == kn->nr) {
        kn->gemm(k, a, b, c, c_row, add);
        return;
    }
    kn->gemm(k, a, b, part, kn->nr, 0);
    for (i = 0; i < rows; i++)
        for (j = 0; j < cols; j++) {
            float *to = c + i * c_row + j;
            *to = add ? *to + part[i * kn->nr + j] : part[i * kn->nr + j];
        }
}

/* Rows i0..i1-1 (at most MC) by columns j0..j1-1 of the result. */
static void ddp__matmul_block(const ddp__kernels *kn, const ddp__matmul *g, long i0, long i1,
                              long j0, long j1)
{
    float a_pack[DDP__MATMUL_MC * DDP__MATMUL_KC];
    float b_pack[DDP__GEMM_NR * DDP__MATMUL_KC];
    int add = g->add;
    long i, j, p;

    if (g->bias || g->k == 0) {
        for (i = i0; i < i1 && !g->add; i++)
            for (j = j0; j < j1; j++) g->c[i * g->c_row + j] = g->bias ? g->bias[j] : 0.0f;
        add = 1;
    }
    for (p = 0; p < g->k; p += DDP__MATMUL_KC, add = 1) {
        const long k = ddp__min_long(DDP__MATMUL_KC, g->k - p);
        for (i = i0; i < i1; i += kn->mr)
            ddp__matmul_pack(a_pack + (i - i0) * k, g->a + i * g->a_row + p * g->a_col, g->a_row,
                             g->a_col, ddp__min_long(kn->mr, i1 - i), kn->mr, k);
        for (j = j0; j < j1; j += kn->nr) {
            const long cols = ddp__min_long(kn->nr, j1 - j);
            ddp__matmul_pack(b_pack, g->b + p * g->b_row + j * g->b_col, g->b_col, g->b_row, cols,
                             kn->nr, k);
            for (i = i0; i < i1; i += kn->mr)
                ddp__matmul_tile(kn, k, a_pack + (i - i0) * k, b_pack, g->c + i * g->c_row + j,
                                 g->c_row, ddp__min_long(kn->mr, i1 - i), cols, add);
        }
    }
}

static void ddp__matmul_blocks(void *user, long first, long last)
{
    const ddp__matmul_job *job = (const ddp__matmul_job *)user;
    const ddp__matmul *g = job->g;
    long t;

    for (t = first; t < last; t++) {
        const long i = t % job->row_blocks * job->rows, j = t / job->row_blocks * job->cols;
        ddp__matmul_block(job->kernels, g, i, ddp__min_long(i + job->rows, g->m), j,
                          ddp__min_long(j + job->cols, g->n));
    }
}

static long ddp__matmul_parts(long n, long part) { return (n + part - 1) / part; }

/* Blocks of whole register tiles, as large as they may be: each packs its operands again. More
 * threads get smaller ones; that moves no bit, since no sum over p is ever split by blocks.
 * Returns the number of blocks. */
static long ddp__matmul_split(ddp__matmul_job *job, const ddp__matmul *g, const ddp__kernels *kn,
                              int threads)
{
    const long wanted = threads > 1 ? 3L * threads : 1;
    long parts;

    if (g->m <= 0 || g->n <= 0) return 0;
    job->g = g;
    job->kernels = kn;
    parts = ddp__matmul_parts(g->m, DDP__MATMUL_MC);
    job->rows = ddp__matmul_parts(ddp__matmul_parts(g->m, parts), kn->mr) * kn->mr;
    job->row_blocks = ddp__matmul_parts(g->m, job->rows);
    job->cols = DDP__MATMUL_NC;
    while (job->cols > 2 * DDP__GEMM_NR &&
           job->row_blocks * ddp__matmul_parts(g->n, job->cols) < wanted)
        job->cols /= 2;
    return job->row_blocks * ddp__matmul_parts(g->n, job->cols);
}

void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g)
{
    ddp__matmul_job job;
    const long blocks = ddp__matmul_split(&job, g, ddp__kernels_best(),
                                          ddp__pool_threads((const ddp__pool *)call->pool));

    ddp_op_parallel(call, blocks, 1, ddp__matmul_blocks, &job);
}

void ddp__matmul_serial(const ddp__kernels *kernels, const ddp__matmul *g)
{
    ddp__matmul_job job;
    const long blocks = ddp__matmul_split(&job, g, kernels, 1);

    ddp__matmul_blocks(&job, 0, blocks);
}
/* ==== end ops/matmul.c ==== */

/* ==== begin ops/linear.c ==== [ops] */
/* y = x W^T + b over rows: x (rows, C), W (width, C), b (width). */

enum { DDP__BIAS_COLUMNS = 64 };

typedef struct ddp__linear_size {
    long m, n, k; /* rows, width, C */
} ddp__linear_size;

static ddp__linear_size ddp__linear_sizes(const ddp_op_spec *s)
{
    ddp__linear_size z;

    z.m = ddp_shape_rows(&s->in[0]);
    z.n = s->out.dim[s->out.dims - 1];
    z.k = s->in[0].dim[s->in[0].dims - 1];
    return z;
}

static void ddp__linear_finish(ddp_op_spec *s, long width)
{
    ddp__linear_size z;

    s->out = s->in[0];
    s->out.dim[s->out.dims - 1] = width;
    s->out_unread = 1;
    z = ddp__linear_sizes(s);
    s->flops = 2.0 * (double)z.m * (double)z.n * (double)z.k;
}

/* Weight and bias start uniform within 1 / sqrt(C), PyTorch's default. */
static ddp_status ddp__linear_start(ddp_op_spec *s, const char *op, int bias, ddp_error *err)
{
    long width, c;
    double bound;

    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    DDP__TRY(ddp__op_count(s, op, 0, "width", &width, err));
    c = s->in[0].dim[s->in[0].dims - 1];
    bound = 1.0 / sqrt((double)c);
    ddp__op_param(s, "weight", width, c, DDP_INIT_UNIFORM, bound);
    if (bias) ddp__op_param(s, "bias", width, 0, DDP_INIT_UNIFORM, bound);
    ddp__linear_finish(s, width);
    return DDP_OK;
}

static ddp_status ddp__linear_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__linear_start(s, "linear", 1, err);
}

static ddp_status ddp__linear_plain_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__linear_start(s, "linear_no_bias", 0, err);
}

/* The graph has filled parameter 0 with the shape of the weight it borrows. */
static ddp_status ddp__linear_tied_shape(ddp_op_spec *s, ddp_error *err)
{
    const ddp_shape *w = &s->param[0].shape;

    DDP__TRY(ddp__op_floats(s, "linear_tied", 0, 0, err));
    if (s->params != 1 || w->dims != 2)
        return ddp__fail(err, DDP_ARG, "linear_tied: needs the node whose weight (V, C) it uses");
    if (w->dim[1] != s->in[0].dim[s->in[0].dims - 1])
        return ddp__fail(err, DDP_ARG, "linear_tied: the tied weight has rows of %ld, the input "
                         "rows of %ld; they must be equal", w->dim[1],
                         s->in[0].dim[s->in[0].dims - 1]);
    ddp__linear_finish(s, w->dim[0]);
    return DDP_OK;
}

static void ddp__linear_ref_forward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    const ddp__real *x = (const ddp__real *)call->in[0];
    const ddp__real *w = (const ddp__real *)call->param[0];
    const ddp__real *b = (const ddp__real *)call->param[1];
    ddp__real *y = (ddp__real *)call->out;
    long i, j, p;

    for (i = 0; i < z.m; i++)
        for (j = 0; j < z.n; j++) {
            ddp__real sum = b ? b[j] : 0;
            for (p = 0; p < z.k; p++) sum += x[i * z.k + p] * w[j * z.k + p];
            y[i * z.n + j] = sum;
        }
}

static void ddp__linear_ref_backward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    const ddp__real *x = (const ddp__real *)call->in[0];
    const ddp__real *w = (const ddp__real *)call->param[0];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *dx = (ddp__real *)call->grad_in[0];
    ddp__real *dw = (ddp__real *)call->grad_param[0];
    ddp__real *db = (ddp__real *)call->grad_param[1];
    long i, j, p;

    for (i = 0; dx && i < z.m; i++)
        for (p = 0; p < z.k; p++) {
            ddp__real sum = call->add_in[0] ? dx[i * z.k + p] : 0;
            for (j = 0; j < z.n; j++) sum += dy[i * z.n + j] * w[j * z.k + p];
            dx[i * z.k + p] = sum;
        }
    for (i = 0; i < z.m; i++)
        for (j = 0; j < z.n; j++) {
            if (db) db[j] += dy[i * z.n + j];
            for (p = 0; dw && p < z.k; p++) dw[j * z.k + p] += dy[i * z.n + j] * x[i * z.k + p];
        }
}

static void ddp__linear_forward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    ddp__matmul g;

    memset(&g, 0, sizeof g);
    g.m = z.m;
    g.n = z.n;
    g.k = z.k;
    g.a = (const float *)call->in[0];
    g.a_row = z.k;
    g.a_col = 1;
    g.b = (const float *)call->param[0];
    g.b_row = 1;
    g.b_col = z.k;
    g.c = (float *)call->out;
    g.c_row = z.n;
    g.bias = (const float *)call->param[1];
    ddp__matmul_run(call, &g);
}

static void ddp__linear_bias_grad(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    const float *dy = (const float *)call->grad_out;
    float *db = (float *)call->grad_param[1];
    float sum[DDP__BIAS_COLUMNS];
    const long n = last - first;
    long i, j;

    memset(sum, 0, sizeof sum);
    for (i = 0; i < z.m; i++) {
        const float *row = dy + i * z.n + first;
        if (n == DDP__BIAS_COLUMNS)
            for (j = 0; j < DDP__BIAS_COLUMNS; j++) sum[j] += row[j];
        else
            for (j = 0; j < n; j++) sum[j] += row[j];
    }
    for (j = 0; j < n; j++) db[first + j] += sum[j];
}

/* dx = dy W, dW += dy^T x, db += column sums of dy. */
static void ddp__linear_backward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    const float *dy = (const float *)call->grad_out;
    ddp__matmul g;

    memset(&g, 0, sizeof g);
    if (call->grad_param[1])
        ddp_op_parallel(call, z.n, DDP__BIAS_COLUMNS, ddp__linear_bias_grad, (void *)call);
    if (call->grad_param[0]) {
        g.m = z.n;
        g.n = z.k;
        g.k = z.m;
        g.a = dy;
        g.a_row = 1;
        g.a_col = z.n;
        g.b = (const float *)call->in[0];
        g.b_row = z.k;
        g.b_col = 1;
        g.c = (float *)call->grad_param[0];
        g.c_row = z.k;
        g.add = 1;
        ddp__matmul_run(call, &g);
    }
    if (call->grad_in[0]) {
        g.m = z.m;
        g.n = z.k;
        g.k = z.n;
        g.a = dy;
        g.a_row = z.n;
        g.a_col = 1;
        g.b = (const float *)call->param[0];
        g.b_row = z.k;
        g.b_col = 1;
        g.c = (float *)call->grad_in[0];
        g.c_row = z.k;
        g.add = call->add_in[0];
        ddp__matmul_run(call, &g);
    }
}

int ddp__linear_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"linear", ddp__linear_shape, ddp__linear_forward, ddp__linear_backward,
         ddp__linear_ref_forward, ddp__linear_ref_backward},
        {"linear_no_bias", ddp__linear_plain_shape, ddp__linear_forward, ddp__linear_backward,
         ddp__linear_ref_forward, ddp__linear_ref_backward},
        {"linear_tied", ddp__linear_tied_shape, ddp__linear_forward, ddp__linear_backward,
         ddp__linear_ref_forward, ddp__linear_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
/* ==== end ops/linear.c ==== */

/* ==== begin ops/embedding.c ==== [ops] */
/* Rows of a table: embedding, one per token; position, one per place in the sequence. */

enum { DDP__EMBEDDING_COLUMNS = 64 };

/* ---- embedding: tokens int32 (rows..) -> (rows.., C), table (V, C). A token outside 0..V-1
 * gives a row of NAN, which reaches the loss; a kernel cannot return an error. Its gradient is
 * dropped. ---- */

static ddp_status ddp__embedding_shape(ddp_op_spec *s, ddp_error *err)
{
    long v, c;

    if (s->inputs < 1 || s->in_type[0] != DDP_I32)
        return ddp__fail(err, DDP_ARG, "embedding: input 0 must hold integers (token numbers)");
    if (s->in[0].dims < 1 || s->in[0].dims > 3)
        return ddp__fail(err, DDP_ARG, "embedding: tokens must have 1 to 3 dimensions, got %d",
                         s->in[0].dims);
    DDP__TRY(ddp__op_count(s, "embedding", 0, "vocabulary", &v, err));
    DDP__TRY(ddp__op_count(s, "embedding", 1, "width", &c, err));
    s->out = s->in[0];
    s->out.dim[s->out.dims++] = c;
    ddp__op_param(s, "weight", v, c, DDP_INIT_NORMAL, 0.02);
    s->flops = (double)ddp_shape_count(&s->out);
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__embedding_ref_forward(const ddp_op_call *call)
{
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const ddp__real *table = (const ddp__real *)call->param[0];
    ddp__real *y = (ddp__real *)call->out;
    long i, j;

    for (i = 0; i < rows; i++)
        for (j = 0; j < c; j++)
            y[i * c + j] = token[i] >= 0 && token[i] < v ? table[token[i] * c + j]
                                                         : (ddp__real)NAN;
}

static void ddp__embedding_ref_backward(const ddp_op_call *call)
{
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *table = (ddp__real *)call->grad_param[0];
    long i, j;

    if (!table) return;
    for (i = 0; i < rows; i++)
        for (j = 0; j < c && token[i] >= 0 && token[i] < v; j++)
            table[token[i] * c + j] += dy[i * c + j];
}

static void ddp__embedding_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const float *table = (const float *)call->param[0];
    float *y = (float *)call->out;
    long i, j;

    for (i = first; i < last; i++)
        if (token[i] >= 0 && token[i] < v)
            memcpy(y + i * c, table + token[i] * c, (size_t)c * sizeof *y);
        else
            for (j = 0; j < c; j++) y[i * c + j] = NAN;
}

static void ddp__embedding_forward(const ddp_op_call *call)
{
    const long c = call->spec->param[0].shape.dim[1];

    ddp_op_parallel(call, ddp_shape_rows(&call->spec->out), DDP__OP_GRAIN / c + 1,
                    ddp__embedding_rows, (void *)call);
}

/* Blocks of columns: a token may occur in many rows, so rows are added in order. */
static void ddp__embedding_columns(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    long i, j;

    for (i = 0; i < rows; i++) {
        const float *dy = (const float *)call->grad_out + i * c;
        float *table = (float *)call->grad_param[0];
        if (token[i] < 0 || token[i] >= v) continue;
        table += token[i] * c;
        for (j = first; j < last; j++) table[j] += dy[j];
    }
}

static void ddp__embedding_backward(const ddp_op_call *call)
{
    if (call->grad_param[0])
        ddp_op_parallel(call, call->spec->param[0].shape.dim[1], DDP__EMBEDDING_COLUMNS,
                        ddp__embedding_columns, (void *)call);
}

/* ---- position: y = x + table[t] for x (B, T, C), table (T, C) ---- */

static ddp_status ddp__position_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "position", 0, 0, err));
    if (s->in[0].dims != 3)
        return ddp__fail(err, DDP_ARG, "position: the input must be (batch, time, width), "
                         "got %d dimensions", s->in[0].dims);
    s->out = s->in[0];
    ddp__op_param(s, "weight", s->out.dim[1], s->out.dim[2], DDP_INIT_NORMAL, 0.02);
    s->flops = (double)ddp_shape_count(&s->out);
    s->in_place_ok = 1;
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__position_ref_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const ddp__real *x = (const ddp__real *)call->in[0];
    const ddp__real *table = (const ddp__real *)call->param[0];
    ddp__real *y = (ddp__real *)call->out;
    long b, i;

    for (b = 0; b < s->dim[0]; b++)
        for (i = 0; i < n; i++) y[b * n + i] = x[b * n + i] + table[i];
}

static void ddp__position_ref_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *dx = (ddp__real *)call->grad_in[0];
    ddp__real *table = (ddp__real *)call->grad_param[0];
    long b, i;

    for (b = 0; b < s->dim[0]; b++)
        for (i = 0; i < n; i++) {
            if (table) table[i] += dy[b * n + i];
            if (dx) dx[b * n + i] = dy[b * n + i] + (call->add_in[0] ? dx[b * n + i] : 0);
        }
}

static void ddp__position_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const float *table = (const float *)call->param[0];
    long b, i;

    for (b = 0; b < s->dim[0]; b++) {
        const float *x = (const float *)call->in[0] + b * n;
        float *y = (float *)call->out + b * n;
        for (i = first; i < last; i++) y[i] = x[i] + table[i];
    }
}

static void ddp__position_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;

    ddp_op_parallel(call, s->dim[1] * s->dim[2], DDP__OP_GRAIN, ddp__position_rows, (void *)call);
}

static void ddp__position_grads(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    float *table = (float *)call->grad_param[0];
    long b, i;

    for (b = 0; b < s->dim[0]; b++) {
        const float *dy = (const float *)call->grad_out + b * n;
        float *dx = call->grad_in[0] ? (float *)call->grad_in[0] + b * n : NULL;
        if (table)
            for (i = first; i < last; i++) table[i] += dy[i];
        if (dx && call->add_in[0])
            for (i = first; i < last; i++) dx[i] += dy[i];
        else if (dx && dx != dy)
            memcpy(dx + first, dy + first, (size_t)(last - first) * sizeof *dx);
    }
}

static void ddp__position_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;

    ddp_op_parallel(call, s->dim[1] * s->dim[2], DDP__OP_GRAIN, ddp__position_grads, (void *)call);
}

int ddp__embedding_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"embedding", ddp__embedding_shape, ddp__embedding_forward, ddp__embedding_backward,
         ddp__embedding_ref_forward, ddp__embedding_ref_backward},
        {"position", ddp__position_shape, ddp__position_forward, ddp__position_backward,
         ddp__position_ref_forward, ddp__position_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
/* ==== end ops/embedding.c ==== */

/* ==== begin ops/norm.c ==== [ops] */
/* Layer norm over the last dimension (Ba et al. 2016, arXiv:1607.06450, Eq. 3), biased
 * variance, eps 1e-5: y = (x - mean) * rstd * scale + shift. Saved: mean and rstd per row. */

enum { DDP__NORM_COLUMNS = 64 };
#define DDP__NORM_EPS 1e-5

static ddp_status ddp__norm_shape(ddp_op_spec *s, ddp_error *err)
{
    long c;

    DDP__TRY(ddp__op_floats(s, "layer_norm", 0, 0, err));
    c = s->in[0].dim[s->in[0].dims - 1];
    s->out = s->in[0];
    ddp__op_param(s, "scale", c, 0, DDP_INIT_ONE, 0);
    ddp__op_param(s, "shift", c, 0, DDP_INIT_ZERO, 0);
    s->saved = (size_t)(2 * ddp_shape_rows(&s->in[0]));
    s->flops = 8.0 * (double)ddp_shape_count(&s->in[0]);
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__norm_ref_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const ddp__real *scale = (const ddp__real *)call->param[0];
    const ddp__real *shift = (const ddp__real *)call->param[1];
    ddp__real *stat = (ddp__real *)call->saved;
    long i, j;

    for (i = 0; i < rows; i++) {
        const ddp__real *x = (const ddp__real *)call->in[0] + i * n;
        ddp__real *y = (ddp__real *)call->out + i * n;
        ddp__real mean = 0, var = 0, rstd;
        for (j = 0; j < n; j++) mean += x[j];
        mean /= (ddp__real)n;
        for (j = 0; j < n; j++) var += (x[j] - mean) * (x[j] - mean);
        var /= (ddp__real)n;
        rstd = 1 / (ddp__real)sqrt((double)var + DDP__NORM_EPS);
        for (j = 0; j < n; j++) y[j] = (x[j] - mean) * rstd * scale[j] + shift[j];
        stat[2 * i] = mean;
        stat[2 * i + 1] = rstd;
    }
}

/* h = (x - mean) rstd, d = dy scale: dx = rstd (d - mean(d) - h mean(d h)). */
static void ddp__norm_ref_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const ddp__real *scale = (const ddp__real *)call->param[0];
    const ddp__real *stat = (const ddp__real *)call->saved;
    ddp__real *dscale = (ddp__real *)call->grad_param[0];
    ddp__real *dshift = (ddp__real *)call->grad_param[1];
    long i, j;

    for (i = 0; i < rows; i++) {
        const ddp__real *x = (const ddp__real *)call->in[0] + i * n;
        const ddp__real *dy = (const ddp__real *)call->grad_out + i * n;
        ddp__real *dx = call->grad_in[0] ? (ddp__real *)call->grad_in[0] + i * n : NULL;
        const ddp__real mean = stat[2 * i], rstd = stat[2 * i + 1];
        ddp__real mean_d = 0, mean_dh = 0;
        for (j = 0; j < n; j++) {
            const ddp__real h = (x[j] - mean) * rstd;
            mean_d += dy[j] * scale[j] / (ddp__real)n;
            mean_dh += dy[j] * scale[j] * h / (ddp__real)n;
            if (dscale) dscale[j] += dy[j] * h;
            if (dshift) dshift[j] += dy[j];
        }
        for (j = 0; dx && j < n; j++) {
            const ddp__real h = (x[j] - mean) * rstd;
            dx[j] = rstd * (dy[j] * scale[j] - mean_d - h * mean_dh) +
                    (call->add_in[0] ? dx[j] : 0);
        }
    }
}

static void ddp__norm_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    long i;

    for (i = first; i < last; i++)
        kn->norm((float *)call->out + i * n, (const float *)call->in[0] + i * n,
                 (const float *)call->param[0], (const float *)call->param[1], n,
                 (float)DDP__NORM_EPS, (float *)call->saved + 2 * i);
}

static void ddp__norm_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    long i;

    for (i = first; i < last; i++)
        kn->norm_grad((float *)call->grad_in[0] + i * n, (const float *)call->in[0] + i * n,
                      (const float *)call->param[0], (const float *)call->grad_out + i * n, n,
                      (const float *)call->saved + 2 * i, call->add_in[0]);
}

/* Scale and shift by blocks of columns, rows in order: no sum is split over threads. */
static void ddp__norm_grad_columns(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const float *stat = (const float *)call->saved;
    float *dscale = (float *)call->grad_param[0], *dshift = (float *)call->grad_param[1];
    float sum_scale[DDP__NORM_COLUMNS], sum_shift[DDP__NORM_COLUMNS];
    long i, j;

    memset(sum_scale, 0, sizeof sum_scale);
    memset(sum_shift, 0, sizeof sum_shift);
    for (i = 0; i < rows; i++) {
        const float *x = (const float *)call->in[0] + i * n + first;
        const float *dy = (const float *)call->grad_out + i * n + first;
        for (j = 0; j < last - first; j++) {
            sum_scale[j] += dy[j] * ((x[j] - stat[2 * i]) * stat[2 * i + 1]);
            sum_shift[j] += dy[j];
        }
    }
    for (j = first; j < last; j++) {
        if (dscale) dscale[j] += sum_scale[j - first];
        if (dshift) dshift[j] += sum_shift[j - first];
    }
}

static void ddp__norm_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];

    ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1,
                    ddp__norm_rows, (void *)call);
}

static void ddp__norm_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];

    if (call->grad_param[0] || call->grad_param[1])
        ddp_op_parallel(call, s->dim[s->dims - 1], DDP__NORM_COLUMNS, ddp__norm_grad_columns,
                        (void *)call);
    if (call->grad_in[0])
        ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1,
                        ddp__norm_grad_rows, (void *)call);
}

int ddp__norm_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"layer_norm", ddp__norm_shape, ddp__norm_forward, ddp__norm_backward,
         ddp__norm_ref_forward, ddp__norm_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
/* ==== end ops/norm.c ==== */

/* ==== begin ops/attention.c ==== [ops] */
/* Causal multi-head attention (Vaswani et al. 2017, arXiv:1706.03762, Eq. 1): x (B, T, 3C) holds
 * queries, keys and values; per head of D = C / heads columns
 *     out[t] = sum over s <= t of p[t][s] v[s], p[t] = softmax over s <= t of q[t].k[s] / sqrt(D).
 * The float kernels work on tiles of 64 x 64 scores, left of the diagonal only, and never hold
 * more than a tile (online softmax as in FlashAttention, arXiv:2205.14135, Algorithm 1). Saved
 * per row and head: max of the scaled scores and 1 / sum, from which backward computes p again.
 * Backward reads out. */

enum { DDP__ATTENTION_TILE = 64 };

typedef struct ddp__attention_size {
    long b, t, c, heads, d;
} ddp__attention_size;

static ddp__attention_size ddp__attention_sizes(const ddp_op_spec *s)
{
    ddp__attention_size z;

    z.b = s->out.dim[0];
    z.t = s->out.dim[1];
    z.c = s->out.dim[2];
    z.heads = (long)s->arg[0];
    z.d = z.c / z.heads;
    return z;
}

static ddp_status ddp__attention_shape(ddp_op_spec *s, ddp_error *err)
{
    long heads, width;

    DDP__TRY(ddp__op_floats(s, "attention", 0, 0, err));
    DDP__TRY(ddp__op_count(s, "attention", 0, "heads", &heads, err));
    if (s->in[0].dims != 3)
        return ddp__fail(err, DDP_ARG, "attention: the input must be (batch, time, 3 x width), "
                         "got %d dimensions", s->in[0].dims);
    width = s->in[0].dim[2] / 3;
    if (width < 1 || s->in[0].dim[2] % 3 || width % heads)
        return ddp__fail(err, DDP_ARG, "attention: the input's last dimension (%ld) must be 3 x "
                         "width, and width a multiple of the %ld heads", s->in[0].dim[2], heads);
    s->out = s->in[0];
    s->out.dim[2] = width;
    s->saved = (size_t)(2 * s->out.dim[0] * heads * s->out.dim[1]);
    /* two products over half of T x T */
    s->flops = 2.0 * (double)ddp_shape_count(&s->out) * (double)(s->out.dim[1] + 1);
    s->backward_flops = 2.5 * s->flops; /* five products */
    return DDP_OK;
}

static void ddp__attention_ref_forward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const ddp__real scale = (ddp__real)(1 / sqrt((double)z.d));
    long b, h, t, s, i;

    for (b = 0; b < z.b; b++)
        for (h = 0; h < z.heads; h++) {
            const ddp__real *q = (const ddp__real *)call->in[0] + b * z.t * 3 * z.c + h * z.d;
            const ddp__real *k = q + z.c, *v = k + z.c;
            ddp__real *out = (ddp__real *)call->out + b * z.t * z.c + h * z.d;
            ddp__real *stat = (ddp__real *)call->saved + (b * z.heads + h) * z.t * 2;
            for (t = 0; t < z.t; t++) {
                ddp__real max = (ddp__real)-INFINITY, sum = 0;
                for (s = 0; s <= t; s++) {
                    ddp__real score = 0;
                    for (i = 0; i < z.d; i++) score += q[t * 3 * z.c + i] * k[s * 3 * z.c + i];
                    if (score * scale > max) max = score * scale;
                }
                for (i = 0; i < z.d; i++) out[t * z.c + i] = 0;
                for (s = 0; s <= t; s++) {
                    ddp__real score = 0, e;
                    for (i = 0; i < z.d; i++) score += q[t * 3 * z.c + i] * k[s * 3 * z.c + i];
                    e = (ddp__real)exp((double)(score * scale - max));
                    sum += e;
                    for (i = 0; i < z.d; i++) out[t * z.c + i] += e * v[s * 3 * z.c + i];
                }
                for (i = 0; i < z.d; i++) out[t * z.c + i] /= sum;
                stat[2 * t] = max;
                stat[2 * t + 1] = 1 / sum;
            }
        }
}

/* dv[s] += p dout[t];  dp = dout[t].v[s];  dscore = p (dp - out[t].dout[t]) scale, since
 * out.dout is the mean of dp under p;  dq[t] += dscore k[s];  dk[s] += dscore q[t]. */
static void ddp__attention_ref_backward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const ddp__real scale = (ddp__real)(1 / sqrt((double)z.d));
    long b, h, t, s, i;

    for (i = 0; call->grad_in[0] && !call->add_in[0] && i < 3 * z.b * z.t * z.c; i++)
        ((ddp__real *)call->grad_in[0])[i] = 0;
    for (b = 0; call->grad_in[0] && b < z.b; b++)
        for (h = 0; h < z.heads; h++) {
            const long at = b * z.t * 3 * z.c + h * z.d;
            const ddp__real *q = (const ddp__real *)call->in[0] + at, *k = q + z.c, *v = k + z.c;
            ddp__real *dq = (ddp__real *)call->grad_in[0] + at, *dk = dq + z.c, *dv = dk + z.c;
            const ddp__real *out = (const ddp__real *)call->out + b * z.t * z.c + h * z.d;
            const ddp__real *dout = (const ddp__real *)call->grad_out + b * z.t * z.c + h * z.d;
            const ddp__real *stat = (const ddp__real *)call->saved + (b * z.heads + h) * z.t * 2;
            for (t = 0; t < z.t; t++) {
                ddp__real mean = 0;
                for (i = 0; i < z.d; i++) mean += out[t * z.c + i] * dout[t * z.c + i];
                for (s = 0; s <= t; s++) {
                    ddp__real score = 0, dp = 0, p, dscore;
                    for (i = 0; i < z.d; i++) {
                        score += q[t * 3 * z.c + i] * k[s * 3 * z.c + i];
                        dp += dout[t * z.c + i] * v[s * 3 * z.c + i];
                    }
                    p = (ddp__real)exp((double)(score * scale - stat[2 * t])) * stat[2 * t + 1];
                    dscore = p * (dp - mean) * scale;
                    for (i = 0; i < z.d; i++) {
                        dv[s * 3 * z.c + i] += p * dout[t * z.c + i];
                        dq[t * 3 * z.c + i] += dscore * k[s * 3 * z.c + i];
                        dk[s * 3 * z.c + i] += dscore * q[t * 3 * z.c + i];
                    }
                }
            }
        }
}

/* c (m x n) = or += a b, with the operand strides of ddp__matmul. */
static void ddp__attention_product(const ddp__kernels *kn, long m, long n, long k, const float *a,
                                   long a_row, long a_col, const float *b, long b_row, long b_col,
                                   float *c, long c_row, int add)
{
    ddp__matmul g;

    g.m = m;
    g.n = n;
    g.k = k;
    g.a = a;
    g.a_row = a_row;
    g.a_col = a_col;
    g.b = b;
    g.b_row = b_row;
    g.b_col = b_col;
    g.c = c;
    g.c_row = c_row;
    g.bias = NULL;
    g.add = add;
    ddp__matmul_serial(kn, &g);
}

static long ddp__attention_rows(long from, long t)
{
    const long tile = DDP__ATTENTION_TILE;

    return t - from < tile ? t - from : tile;
}

/* One tile of queries of one head against all keys up to it. */
static void ddp__attention_queries(const ddp_op_call *call, long head, long from)
{
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const float scale = 1 / sqrtf((float)z.d);
    const float *q = (const float *)call->in[0] + head / z.heads * z.t * 3 * z.c +
                     head % z.heads * z.d;
    const float *k = q + z.c, *v = k + z.c;
    float *out = (float *)call->out + (head / z.heads * z.t + from) * z.c + head % z.heads * z.d;
    float *stat = (float *)call->saved + (head * z.t + from) * 2;
    const long rows = ddp__attention_rows(from, z.t), ld = 3 * z.c;
    float score[DDP__ATTENTION_TILE * DDP__ATTENTION_TILE];
    long s, i, j;

    for (s = 0; s <= from; s += DDP__ATTENTION_TILE) {
        const long cols = ddp__attention_rows(s, z.t);
        ddp__attention_product(kn, rows, cols, z.d, q + from * ld, ld, 1, k + s * ld, 1, ld, score,
                               cols, 0);
        for (i = 0; i < rows; i++) {
            float *row = score + i * cols;
            const long seen = s == from ? i + 1 : cols;
            float max = kn->max(row, seen) * scale, sum;
            if (s > 0 && stat[2 * i] >= max) {
                max = stat[2 * i];
            } else if (s > 0) { /* a new maximum: what was summed so far shrinks */
                const float shrink = expf(stat[2 * i] - max);
                stat[2 * i + 1] *= shrink;
                for (j = 0; j < z.d; j++) out[i * z.c + j] *= shrink;
            }
            sum = kn->exp_sum(row, row, seen, scale, max);
            for (j = seen; j < cols; j++) row[j] = 0;
            stat[2 * i] = max;
            stat[2 * i + 1] = s > 0 ? stat[2 * i + 1] + sum : sum;
        }
        ddp__attention_product(kn, rows, z.d, cols, score, cols, 1, v + s * ld, ld, 1, out, z.c,
                               s > 0);
    }
    for (i = 0; i < rows; i++) {
        stat[2 * i + 1] = 1 / stat[2 * i + 1];
        for (j = 0; j < z.d; j++) out[i * z.c + j] *= stat[2 * i + 1];
    }
}

/* Items are (batch, head, tile), the last tiles, which have the most work, first. */
static void ddp__attention_tiles(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const long heads = z.b * z.heads;
    const long tiles = (z.t + DDP__ATTENTION_TILE - 1) / DDP__ATTENTION_TILE;
    long i;

    for (i = first; i < last; i++)
        ddp__attention_queries(call, i % heads, (tiles - 1 - i / heads) * DDP__ATTENTION_TILE);
}

static void ddp__attention_forward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const long tiles = (z.t + DDP__ATTENTION_TILE - 1) / DDP__ATTENTION_TILE;

    ddp_op_parallel(call, z.b * z.heads * tiles, 1, ddp__attention_tiles, (void *)call);
}

/* Gradients of one head: queries in tiles from, keys in tiles s <= from. */
static void ddp__attention_head_grad(const ddp_op_call *call, long head)
{
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const float scale = 1 / sqrtf((float)z.d);
    const long ld = 3 * z.c, at = head / z.heads * z.t * ld + head % z.heads * z.d;
    const long out_at = head / z.heads * z.t * z.c + head % z.heads * z.d;
    const float *q = (const float *)call->in[0] + at, *k = q + z.c, *v = k + z.c;
    const float *stat = (const float *)call->saved + head * z.t * 2;
    float *dq = (float *)call->grad_in[0] + at, *dk = dq + z.c, *dv = dk + z.c;
    float p[DDP__ATTENTION_TILE * DDP__ATTENTION_TILE];
    float d[DDP__ATTENTION_TILE * DDP__ATTENTION_TILE];
    float mean[DDP__ATTENTION_TILE];
    long from, s, i, j;

    for (i = 0; !call->add_in[0] && i < z.t; i++) {
        memset(dq + i * ld, 0, (size_t)z.d * sizeof *dq);
        memset(dk + i * ld, 0, (size_t)z.d * sizeof *dk);
        memset(dv + i * ld, 0, (size_t)z.d * sizeof *dv);
    }
    for (from = 0; from < z.t; from += DDP__ATTENTION_TILE) {
        const float *out = (const float *)call->out + out_at + from * z.c;
        const float *dout = (const float *)call->grad_out + out_at + from * z.c;
        const long rows = ddp__attention_rows(from, z.t);
        for (i = 0; i < rows; i++) mean[i] = kn->dot(out + i * z.c, dout + i * z.c, z.d);
        for (s = 0; s <= from; s += DDP__ATTENTION_TILE) {
            const long cols = ddp__attention_rows(s, z.t);
            ddp__attention_product(kn, rows, cols, z.d, q + from * ld, ld, 1, k + s * ld, 1, ld, p,
                                   cols, 0);
            ddp__attention_product(kn, rows, cols, z.d, dout, z.c, 1, v + s * ld, 1, ld, d, cols,
                                   0);
            for (i = 0; i < rows; i++) {
                const long seen = s == from ? i + 1 : cols;
                const float *st = stat + 2 * (from + i);
                kn->softmax(p + i * cols, p + i * cols, seen, scale, st[0], st[1], 0);
                kn->softmax_grad(d + i * cols, p + i * cols, seen, mean[i], scale);
                for (j = seen; j < cols; j++) p[i * cols + j] = d[i * cols + j] = 0;
            }
            ddp__attention_product(kn, cols, z.d, rows, p, 1, cols, dout, z.c, 1, dv + s * ld, ld,
                                   1);
            ddp__attention_product(kn, rows, z.d, cols, d, cols, 1, k + s * ld, ld, 1,
                                   dq + from * ld, ld, 1);
            ddp__attention_product(kn, cols, z.d, rows, d, 1, cols, q + from * ld, ld, 1,
                                   dk + s * ld, ld, 1);
        }
    }
}

static void ddp__attention_heads(void *user, long first, long last)
{
    long h;

    for (h = first; h < last; h++) ddp__attention_head_grad((const ddp_op_call *)user, h);
}

static void ddp__attention_backward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);

    if (call->grad_in[0])
        ddp_op_parallel(call, z.b * z.heads, 1, ddp__attention_heads, (void *)call);
}

int ddp__attention_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"attention", ddp__attention_shape, ddp__attention_forward, ddp__attention_backward,
         ddp__attention_ref_forward, ddp__attention_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
/* ==== end ops/attention.c ==== */

/* ==== begin ops/activation.c ==== [ops] */
/* Elementwise functions: gelu, relu, add. */

static ddp_status ddp__same_shape(ddp_op_spec *s, const char *op, double flops, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    s->out = s->in[0];
    s->flops = flops * (double)ddp_shape_count(&s->out);
    s->out_unread = 1;
    return DDP_OK;
}

/* ---- gelu, tanh form (Hendrycks and Gimpel, arXiv:1606.08415) ---- */

static ddp_status ddp__gelu_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__same_shape(s, "gelu", 12, err);
}

static void ddp__gelu_ref_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *x = (const ddp__real *)call->in[0];
    ddp__real *y = (ddp__real *)call->out;
    long i;

    for (i = 0; i < n; i++) {
        const double v = (double)x[i];
        const double u = 0.79788456080286535588 * (v + 0.044715 * v * v * v);
        y[i] = (ddp__real)(0.5 * v * (1 + tanh(u)));
    }
}

static void ddp__gelu_ref_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *x = (const ddp__real *)call->in[0];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *dx = (ddp__real *)call->grad_in[0];
    long i;

    for (i = 0; dx && i < n; i++) {
        const double v = (double)x[i], a = 0.79788456080286535588;
        const double t = tanh(a * (v + 0.044715 * v * v * v));
        const double d = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * a * (1 + 3 * 0.044715 * v * v);
        dx[i] = (ddp__real)d * dy[i] + (call->add_in[0] ? dx[i] : 0);
    }
}

static void ddp__gelu_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;

    ddp__kernels_best()->gelu((float *)call->out + first, (const float *)call->in[0] + first,
                              last - first);
}

static void ddp__gelu_grad_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;

    ddp__kernels_best()->gelu_grad((float *)call->grad_in[0] + first,
                                   (const float *)call->in[0] + first,
                                   (const float *)call->grad_out + first, last - first,
                                   call->add_in[0]);
}

static void ddp__gelu_forward(const ddp_op_call *call)
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__gelu_range,
                    (void *)call);
}

static void ddp__gelu_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN,
                        ddp__gelu_grad_range, (void *)call);
}

/* ---- relu; the gradient at 0 is 0 ---- */

static ddp_status ddp__relu_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__same_shape(s, "relu", 1, err);
}

static void ddp__relu_ref_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *x = (const ddp__real *)call->in[0];
    ddp__real *y = (ddp__real *)call->out;
    long i;

    for (i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
}

static void ddp__relu_ref_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *x = (const ddp__real *)call->in[0];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *dx = (ddp__real *)call->grad_in[0];
    long i;

    for (i = 0; dx && i < n; i++)
        dx[i] = (x[i] > 0 ? dy[i] : 0) + (call->add_in[0] ? dx[i] : 0);
}

static void ddp__relu_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const float *x = (const float *)call->in[0];
    float *y = (float *)call->out;
    long i;

    for (i = first; i < last; i++) y[i] = x[i] < 0 ? 0 : x[i]; /* lets NAN through */
}

static void ddp__relu_grad_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const float *x = (const float *)call->in[0];
    const float *dy = (const float *)call->grad_out;
    float *dx = (float *)call->grad_in[0];
    long i;

    if (call->add_in[0])
        for (i = first; i < last; i++) dx[i] += x[i] > 0 ? dy[i] : 0;
    else
        for (i = first; i < last; i++) dx[i] = x[i] > 0 ? dy[i] : 0;
}

static void ddp__relu_forward(const ddp_op_call *call)
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__relu_range,
                    (void *)call);
}

static void ddp__relu_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN,
                        ddp__relu_grad_range, (void *)call);
}

/* ---- add: a + b, equal shapes ---- */

static ddp_status ddp__add_shape(ddp_op_spec *s, ddp_error *err)
{
    int i;

    DDP__TRY(ddp__op_floats(s, "add", 0, 1, err));
    if (s->in[0].dims != s->in[1].dims)
        return ddp__fail(err, DDP_ARG, "add: the inputs have %d and %d dimensions; they must be "
                         "equal", s->in[0].dims, s->in[1].dims);
    for (i = 0; i < s->in[0].dims; i++)
        if (s->in[0].dim[i] != s->in[1].dim[i])
            return ddp__fail(err, DDP_ARG, "add: dimension %d of the inputs is %ld and %ld; they "
                             "must be equal", i, s->in[0].dim[i], s->in[1].dim[i]);
    s->in_place_ok = 1;
    return ddp__same_shape(s, "add", 1, err);
}

static void ddp__add_ref_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *a = (const ddp__real *)call->in[0];
    const ddp__real *b = (const ddp__real *)call->in[1];
    ddp__real *y = (ddp__real *)call->out;
    long i;

    for (i = 0; i < n; i++) y[i] = a[i] + b[i];
}

/* Input by input: both may be the same array, the second then adding to the first. */
static void ddp__add_ref_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    long i;
    int k;

    for (k = 0; k < 2; k++) {
        ddp__real *d = (ddp__real *)call->grad_in[k];
        for (i = 0; d && i < n; i++) d[i] = dy[i] + (call->add_in[k] ? d[i] : 0);
    }
}

static void ddp__add_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const float *a = (const float *)call->in[0], *b = (const float *)call->in[1];
    float *y = (float *)call->out;
    long i;

    for (i = first; i < last; i++) y[i] = a[i] + b[i];
}

static void ddp__add_grad_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const float *dy = (const float *)call->grad_out;
    long i;
    int k;

    for (k = 0; k < 2; k++) {
        float *d = (float *)call->grad_in[k];
        if (d && call->add_in[k])
            for (i = first; i < last; i++) d[i] += dy[i];
        else if (d && d != dy)
            memcpy(d + first, dy + first, (size_t)(last - first) * sizeof *d);
    }
}

static void ddp__add_forward(const ddp_op_call *call)
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__add_range,
                    (void *)call);
}

static void ddp__add_backward(const ddp_op_call *call)
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__add_grad_range,
                    (void *)call);
}

int ddp__activation_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"gelu", ddp__gelu_shape, ddp__gelu_forward, ddp__gelu_backward, ddp__gelu_ref_forward,
         ddp__gelu_ref_backward},
        {"relu", ddp__relu_shape, ddp__relu_forward, ddp__relu_backward, ddp__relu_ref_forward,
         ddp__relu_ref_backward},
        {"add", ddp__add_shape, ddp__add_forward, ddp__add_backward, ddp__add_ref_forward,
         ddp__add_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
/* ==== end ops/activation.c ==== */

/* ==== begin ops/dropout.c ==== [ops] */
/* Inverted dropout (Srivastava et al. 2014): y = x / (1 - p) where kept, else 0. The mask is not
 * stored: it is a pure function of call->random and the element's index, so backward draws it
 * again, and neither depends on threads. */

static ddp_status ddp__dropout_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "dropout", 0, 0, err));
    if (!(s->arg[0] >= 0 && s->arg[0] < 1))
        return ddp__fail(err, DDP_ARG, "dropout: the probability must be at least 0 and below 1, "
                         "got %g", s->arg[0]);
    s->out = s->in[0];
    s->flops = (double)ddp_shape_count(&s->out);
    s->in_place_ok = 1;
    s->out_unread = 1;
    return DDP_OK;
}

/* Keep[i] for elements i of block number block (DDP__OP_GRAIN elements, a stream each): 32 random
 * bits per element against p * 2^32. */
static void ddp__dropout_mask(const ddp_op_call *call, long block, unsigned char *keep)
{
    const uint32_t bound = (uint32_t)(call->spec->arg[0] * 4294967296.0);
    ddp_rng r = ddp_rng_seed(call->random, (uint64_t)block);
    int i;

    for (i = 0; i < DDP__OP_GRAIN; i += 2) {
        const uint64_t bits = ddp_rng_u64(&r);
        keep[i] = (uint32_t)bits >= bound;
        keep[i + 1] = (uint32_t)(bits >> 32) >= bound;
    }
}

static int ddp__dropout_off(const ddp_op_call *call)
{
    return !call->training || call->spec->arg[0] == 0;
}

static void ddp__dropout_ref(const ddp_op_call *call, const ddp__real *x, ddp__real *y, int add)
{
    const long n = ddp_shape_count(&call->spec->out);
    const int off = ddp__dropout_off(call);
    const ddp__real scale = off ? 1 : (ddp__real)(1 / (1 - call->spec->arg[0]));
    unsigned char keep[DDP__OP_GRAIN];
    long i;

    for (i = 0; i < n; i++) {
        if (i % DDP__OP_GRAIN == 0) ddp__dropout_mask(call, i / DDP__OP_GRAIN, keep);
        y[i] = (off || keep[i % DDP__OP_GRAIN] ? x[i] * scale : 0) + (add ? y[i] : 0);
    }
}

static void ddp__dropout_ref_forward(const ddp_op_call *call)
{
    ddp__dropout_ref(call, (const ddp__real *)call->in[0], (ddp__real *)call->out, 0);
}

static void ddp__dropout_ref_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp__dropout_ref(call, (const ddp__real *)call->grad_out, (ddp__real *)call->grad_in[0],
                         call->add_in[0]);
}

typedef struct ddp__dropout_job {
    const ddp_op_call *call;
    const float       *x;
    float             *y;
    int                add;
} ddp__dropout_job;

/* first is a multiple of DDP__OP_GRAIN, and the range one block. */
static void ddp__dropout_range(void *user, long first, long last)
{
    const ddp__dropout_job *job = (const ddp__dropout_job *)user;
    const float scale = (float)(1 / (1 - job->call->spec->arg[0]));
    const float *x = job->x + first;
    float *y = job->y + first;
    const long n = last - first;
    unsigned char keep[DDP__OP_GRAIN];
    long i;

    if (ddp__dropout_off(job->call)) {
        if (job->add)
            for (i = 0; i < n; i++) y[i] += x[i];
        else if (y != x)
            memcpy(y, x, (size_t)n * sizeof *y);
        return;
    }
    ddp__dropout_mask(job->call, first / DDP__OP_GRAIN, keep);
    if (job->add)
        for (i = 0; i < n; i++) y[i] += keep[i] ? x[i] * scale : 0;
    else
        for (i = 0; i < n; i++) y[i] = keep[i] ? x[i] * scale : 0;
}

static void ddp__dropout_run(const ddp_op_call *call, const void *x, void *y, int add)
{
    ddp__dropout_job job;

    job.call = call;
    job.x = (const float *)x;
    job.y = (float *)y;
    job.add = add;
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__dropout_range,
                    &job);
}

static void ddp__dropout_forward(const ddp_op_call *call)
{
    ddp__dropout_run(call, call->in[0], call->out, 0);
}

static void ddp__dropout_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp__dropout_run(call, call->grad_out, call->grad_in[0], call->add_in[0]);
}

int ddp__dropout_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"dropout", ddp__dropout_shape, ddp__dropout_forward, ddp__dropout_backward,
         ddp__dropout_ref_forward, ddp__dropout_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
/* ==== end ops/dropout.c ==== */

/* ==== begin ops/loss.c ==== [ops] */
/* Softmax cross-entropy, mean over the rows whose label is not -1 (0 if there is none):
 * row loss = log(sum exp(x - max)) + max - x[label]. Saved: max and sum per row; probabilities
 * are never stored, backward computes them over the logits. A label below -1 or beyond the last
 * column makes the loss NAN, and its row of the gradient too: a kernel cannot return an error. */

static ddp_status ddp__loss_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "cross_entropy", 0, 0, err));
    if (s->inputs < 2 || s->in_type[1] != DDP_I32)
        return ddp__fail(err, DDP_ARG, "cross_entropy: input 1 must hold integers (labels)");
    if (ddp_shape_count(&s->in[1]) != ddp_shape_rows(&s->in[0]))
        return ddp__fail(err, DDP_ARG, "cross_entropy: %ld labels for %ld rows of logits; each "
                         "row needs one", ddp_shape_count(&s->in[1]), ddp_shape_rows(&s->in[0]));
    memset(&s->out, 0, sizeof s->out);
    s->saved = (size_t)(2 * ddp_shape_rows(&s->in[0]));
    s->flops = 5.0 * (double)ddp_shape_count(&s->in[0]);
    s->backward_flops = s->flops;
    s->out_unread = 1;
    s->grad_over_input = 1;
    return DDP_OK;
}

/* Rows that count, at least 1 so that it may divide. */
static long ddp__loss_counted(const int32_t *label, long rows)
{
    long i, n = 0;

    for (i = 0; i < rows; i++) n += label[i] != -1;
    return n ? n : 1;
}

static void ddp__loss_ref_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    ddp__real *stat = (ddp__real *)call->saved, loss = 0;
    long i, j;

    for (i = 0; i < rows; i++) {
        const ddp__real *x = (const ddp__real *)call->in[0] + i * n;
        ddp__real max = x[0], sum = 0;
        for (j = 1; j < n; j++) max = x[j] > max ? x[j] : max;
        for (j = 0; j < n; j++) sum += (ddp__real)exp((double)(x[j] - max));
        stat[2 * i] = max;
        stat[2 * i + 1] = sum;
        if (label[i] == -1) continue;
        if (label[i] < 0 || label[i] >= n) loss = (ddp__real)NAN;
        else loss += (ddp__real)log((double)sum) + max - x[label[i]];
    }
    *(ddp__real *)call->out = loss / (ddp__real)ddp__loss_counted(label, rows);
}

/* dx = (softmax(x) - [j == label]) g / counted. */
static void ddp__loss_ref_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    const ddp__real *stat = (const ddp__real *)call->saved;
    const ddp__real g = *(const ddp__real *)call->grad_out /
                        (ddp__real)ddp__loss_counted(label, rows);
    long i, j;

    for (i = 0; call->grad_in[0] && i < rows; i++) {
        const ddp__real *x = (const ddp__real *)call->in[0] + i * n;
        ddp__real *dx = (ddp__real *)call->grad_in[0] + i * n;
        for (j = 0; j < n; j++) {
            ddp__real d = (ddp__real)exp((double)(x[j] - stat[2 * i])) / stat[2 * i + 1];
            if (label[i] == -1) d = 0;
            else if (label[i] < 0 || label[i] >= n) d = (ddp__real)NAN;
            else if (label[i] == j) d -= 1;
            dx[j] = d * g + (call->add_in[0] ? dx[j] : 0);
        }
    }
}

static void ddp__loss_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    float *stat = (float *)call->saved;
    long i;

    for (i = first; i < last; i++) {
        const float *x = (const float *)call->in[0] + i * n;
        stat[2 * i] = kn->max(x, n);
        stat[2 * i + 1] = kn->exp_sum(NULL, x, n, 1, stat[2 * i]);
    }
}

static void ddp__loss_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    const float *x = (const float *)call->in[0], *stat = (const float *)call->saved;
    double loss = 0;
    long i;

    ddp_op_parallel(call, rows, DDP__OP_GRAIN / n + 1, ddp__loss_rows, (void *)call);
    for (i = 0; i < rows; i++) {
        if (label[i] == -1) continue;
        if (label[i] < 0 || label[i] >= n) loss = NAN;
        else
            loss += log((double)stat[2 * i + 1]) + (double)stat[2 * i] -
                    (double)x[i * n + label[i]];
    }
    *(float *)call->out = (float)(loss / (double)ddp__loss_counted(label, rows));
}

typedef struct ddp__loss_job {
    const ddp_op_call *call;
    float              g; /* gradient of the loss over the rows that count */
} ddp__loss_job;

/* grad_in may be the logits themselves: nothing of them is read after it is written. */
static void ddp__loss_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = ((const ddp__loss_job *)user)->call;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    const float *stat = (const float *)call->saved;
    const float g = ((const ddp__loss_job *)user)->g;
    long i, j;

    for (i = first; i < last; i++) {
        const float *x = (const float *)call->in[0] + i * n;
        float *dx = (float *)call->grad_in[0] + i * n;
        if (label[i] == -1) {
            if (!call->add_in[0]) memset(dx, 0, (size_t)n * sizeof *dx);
        } else if (label[i] < 0 || label[i] >= n) {
            for (j = 0; j < n; j++) dx[j] = NAN;
        } else {
            kn->softmax(dx, x, n, 1, stat[2 * i], g / stat[2 * i + 1], call->add_in[0]);
            dx[label[i]] -= g;
        }
    }
}

static void ddp__loss_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s);
    ddp__loss_job job;

    if (!call->grad_in[0]) return;
    job.call = call;
    job.g = *(const float *)call->grad_out /
            (float)ddp__loss_counted((const int32_t *)call->in[1], rows);
    ddp_op_parallel(call, rows, DDP__OP_GRAIN / s->dim[s->dims - 1] + 1, ddp__loss_grad_rows,
                    &job);
}

int ddp__loss_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"cross_entropy", ddp__loss_shape, ddp__loss_forward, ddp__loss_backward,
         ddp__loss_ref_forward, ddp__loss_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
/* ==== end ops/loss.c ==== */

/* ==== begin ops/table.c ==== [ops] */

ddp_status ddp__op_floats(const ddp_op_spec *s, const char *op, int first, int last,
                          ddp_error *err)
{
    int i;

    if (s->inputs <= last)
        return ddp__fail(err, DDP_ARG, "%s: needs %d inputs, got %d", op, last + 1, s->inputs);
    for (i = first; i <= last; i++) {
        if (s->in_type[i] != DDP_F32)
            return ddp__fail(err, DDP_ARG, "%s: input %d must hold floats, not integers", op, i);
        if (s->in[i].dims < 1)
            return ddp__fail(err, DDP_ARG, "%s: input %d is a scalar; it needs rows of at least "
                             "one element", op, i);
    }
    return DDP_OK;
}

ddp_status ddp__op_count(const ddp_op_spec *s, const char *op, int i, const char *what,
                         long *value, ddp_error *err)
{
    const double v = s->arg[i];

    *value = 0;
    if (!(v >= 1 && v <= 2147483647.0) || v != floor(v))
        return ddp__fail(err, DDP_ARG, "%s: %s must be a whole number of at least 1, got %g", op,
                         what, v);
    *value = (long)v;
    return DDP_OK;
}

static void ddp__param_set(ddp_param *p, const char *name, long d0, long d1, ddp_init init,
                           double scale)
{
    p->name = name;
    p->shape.dims = d1 ? 2 : 1;
    p->shape.dim[0] = d0;
    p->shape.dim[1] = d1;
    p->init = init;
    p->scale = (float)scale;
}

void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init,
                   double scale)
{
    ddp__param_set(&s->param[s->params++], name, d0, d1, init, scale);
}

/* ---- operators on images (batch, channels, height, width) ----
 *
 * Shape rules and costs without kernels: a graph that uses them can be planned, not built. A
 * multiply-add counts as two operations, the bias of a convolution as none, as in linear. */

static double ddp__image_count(const ddp_shape *s)
{
    return (double)s->dim[0] * (double)s->dim[1] * (double)s->dim[2] * (double)s->dim[3];
}

static ddp_status ddp__image_input(const ddp_op_spec *s, const char *op, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    if (s->in[0].dims != 4)
        return ddp__fail(err, DDP_ARG, "%s: the input must be (batch, channels, height, width), "
                         "not of %d dimensions; ddp_input_shape makes one", op, s->in[0].dims);
    return DDP_OK;
}

/* A square window that slides over the image: sets out, with channels channels, from the
 * arguments first (kernel), first + 1 (stride) and first + 2 (padding on every side). */
static ddp_status ddp__image_window(ddp_op_spec *s, const char *op, int first, long channels,
                                    ddp_error *err)
{
    const double p = s->arg[first + 2];
    long kernel, stride;
    int i;

    DDP__TRY(ddp__op_count(s, op, first, "the kernel", &kernel, err));
    DDP__TRY(ddp__op_count(s, op, first + 1, "the stride", &stride, err));
    if (!(p >= 0 && p <= 2147483647.0) || p != floor(p))
        return ddp__fail(err, DDP_ARG, "%s: the padding must be a whole number of at least 0, "
                         "got %g", op, p);
    s->out = s->in[0];
    s->out.dim[1] = channels;
    for (i = 2; i < 4; i++) {
        const long room = s->in[0].dim[i] + 2 * (long)p;

        if (room < kernel)
            return ddp__fail(err, DDP_ARG, "%s: a kernel of %ld does not fit into %ld x %ld padded "
                             "by %ld: use a smaller kernel or more padding", op, kernel,
                             s->in[0].dim[2], s->in[0].dim[3], (long)p);
        s->out.dim[i] = (room - kernel) / stride + 1;
    }
    return DDP_OK;
}

/* Arguments: channels, kernel, stride, padding, groups, bias (1 or 0). Weight and bias start
 * uniform within 1 / sqrt(values read per output), PyTorch's default. */
static ddp_status ddp__conv2d_shape(ddp_op_spec *s, ddp_error *err)
{
    long channels, groups, depth, kernel;
    double reads, bound;

    DDP__TRY(ddp__image_input(s, "conv2d", err));
    DDP__TRY(ddp__op_count(s, "conv2d", 0, "the number of channels", &channels, err));
    DDP__TRY(ddp__op_count(s, "conv2d", 4, "the number of groups", &groups, err));
    if (s->in[0].dim[1] % groups || channels % groups)
        return ddp__fail(err, DDP_ARG, "conv2d: groups must divide the channels: %ld groups for "
                         "%ld channels in and %ld out", groups, s->in[0].dim[1], channels);
    if (s->arg[5] != 0 && s->arg[5] != 1)
        return ddp__fail(err, DDP_ARG, "conv2d: the bias must be 1 (with) or 0 (without), got %g",
                         s->arg[5]);
    DDP__TRY(ddp__image_window(s, "conv2d", 1, channels, err));
    kernel = (long)s->arg[1];
    depth = s->in[0].dim[1] / groups;
    reads = (double)depth * (double)kernel * (double)kernel;
    bound = 1 / sqrt(reads);
    ddp__op_param(s, "weight", channels, depth, DDP_INIT_UNIFORM, bound);
    s->param[0].shape.dims = 4;
    s->param[0].shape.dim[2] = s->param[0].shape.dim[3] = kernel;
    if (s->arg[5] != 0) ddp__op_param(s, "bias", channels, 0, DDP_INIT_UNIFORM, bound);
    s->flops = 2 * ddp__image_count(&s->out) * reads;
    s->out_unread = 1;
    return DDP_OK;
}

/* Ioffe and Szegedy 2015, arXiv:1502.03167, Algorithm 1. Saved: mean and rstd per channel. */
static ddp_status ddp__batch_norm2d_shape(ddp_op_spec *s, ddp_error *err)
{
    long channels;

    DDP__TRY(ddp__image_input(s, "batch_norm2d", err));
    channels = s->in[0].dim[1];
    s->out = s->in[0];
    ddp__op_param(s, "scale", channels, 0, DDP_INIT_ONE, 0);
    ddp__op_param(s, "shift", channels, 0, DDP_INIT_ZERO, 0);
    ddp__param_set(&s->buffer[s->buffers++], "running_mean", channels, 0, DDP_INIT_ZERO, 0);
    ddp__param_set(&s->buffer[s->buffers++], "running_var", channels, 0, DDP_INIT_ONE, 0);
    s->saved = 2 * (size_t)channels;
    s->flops = 8 * ddp__image_count(&s->out); /* as layer_norm */
    s->out_unread = 1;
    return DDP_OK;
}

/* Arguments: kernel, stride, padding. A window may not lie in the padding alone. */
static ddp_status ddp__pool2d_shape(ddp_op_spec *s, const char *op, ddp_error *err)
{
    DDP__TRY(ddp__image_input(s, op, err));
    DDP__TRY(ddp__image_window(s, op, 0, s->in[0].dim[1], err));
    if (2 * s->arg[2] > s->arg[0])
        return ddp__fail(err, DDP_ARG, "%s: the padding is %g, it must be at most half the kernel "
                         "of %g", op, s->arg[2], s->arg[0]);
    s->flops = ddp__image_count(&s->out) * s->arg[0] * s->arg[0];
    s->backward_flops = s->flops;
    s->out_unread = 1;
    return DDP_OK;
}

/* Saved: where in its window each maximum was, so that backward touches no other element. */
static ddp_status ddp__max_pool2d_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__pool2d_shape(s, "max_pool2d", err));
    s->saved = (size_t)ddp_shape_count(&s->out);
    s->backward_flops = ddp__image_count(&s->out);
    return DDP_OK;
}

static ddp_status ddp__avg_pool2d_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__pool2d_shape(s, "avg_pool2d", err);
}

static ddp_status ddp__global_avg_pool2d_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__image_input(s, "global_avg_pool2d", err));
    s->out.dims = 2;
    s->out.dim[0] = s->in[0].dim[0];
    s->out.dim[1] = s->in[0].dim[1];
    s->flops = ddp__image_count(&s->in[0]);
    s->backward_flops = s->flops;
    s->out_unread = 1;
    return DDP_OK;
}

static ddp_status ddp__flatten_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "flatten", 0, 0, err));
    s->out.dims = 2;
    s->out.dim[0] = s->in[0].dim[0];
    s->out.dim[1] = ddp_shape_count(&s->in[0]) / s->in[0].dim[0];
    s->in_place_ok = 1;
    s->out_unread = 1;
    return DDP_OK;
}

static int ddp__image_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"conv2d", ddp__conv2d_shape, NULL, NULL, NULL, NULL},
        {"batch_norm2d", ddp__batch_norm2d_shape, NULL, NULL, NULL, NULL},
        {"max_pool2d", ddp__max_pool2d_shape, NULL, NULL, NULL, NULL},
        {"avg_pool2d", ddp__avg_pool2d_shape, NULL, NULL, NULL, NULL},
        {"global_avg_pool2d", ddp__global_avg_pool2d_shape, NULL, NULL, NULL, NULL},
        {"flatten", ddp__flatten_shape, NULL, NULL, NULL, NULL},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}

/* ---- the table ---- */

const ddp_op *ddp__builtin_op(const char *name)
{
    typedef int (*family)(const ddp_op **list);
    static const family families[] = {
        ddp__linear_ops,     ddp__embedding_ops, ddp__norm_ops, ddp__attention_ops,
        ddp__activation_ops, ddp__dropout_ops,   ddp__loss_ops, ddp__image_ops,
    };
    size_t f;
    int i;

    for (f = 0; f < sizeof families / sizeof families[0]; f++) {
        const ddp_op *list;
        const int n = families[f](&list);
        for (i = 0; i < n; i++)
            if (!strcmp(list[i].name, name)) return &list[i];
    }
    return NULL;
}
/* ==== end ops/table.c ==== */

/* ==== begin nn/exact.h ==== [nn] */
/* Float arithmetic that every processor rounds alike: no fused multiply-add, whatever the flags. */
#ifndef DDP_NN_EXACT_H
#define DDP_NN_EXACT_H

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Four floats; the base instruction set of x86-64 and of ARMv8 has them. */
typedef float ddp__f4 __attribute__((vector_size(16)));

/* The compiler may not look through this, so it cannot fuse the product into a later addition.
 * Attributes and pragmas do not do: clang ignores them under -ffp-contract=fast. */
#if defined(__SSE2__)
#define DDP__ROUNDED(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define DDP__ROUNDED(v) __asm__("" : "+w"(v))
#else
#define DDP__ROUNDED(v) __asm__("" : "+m"(v))
#endif

static inline ddp__f4 ddp__f4_all(float s)
{
    ddp__f4 v = {s, s, s, s};
    return v;
}

static inline ddp__f4 ddp__f4_load(const float *p)
{
    ddp__f4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void ddp__f4_store(float *p, ddp__f4 v) { memcpy(p, &v, sizeof v); }

static inline ddp__f4 ddp__f4_mul(ddp__f4 a, ddp__f4 b)
{
    ddp__f4 product = a * b;
    DDP__ROUNDED(product);
    return product;
}

/* A square root is rounded exactly by IEEE, so all ways to take it agree. */
static inline ddp__f4 ddp__f4_sqrt(ddp__f4 v)
{
#ifdef __SSE2__
    return (ddp__f4)_mm_sqrt_ps((__m128)v);
#else
    int k;

    for (k = 0; k < 4; k++) v[k] = sqrtf(v[k]);
    return v;
#endif
}

static inline double ddp__product(double a, double b)
{
    double product = a * b;
    DDP__ROUNDED(product);
    return product;
}

/* x to the n-th by squaring (n >= 0): libm's pow is not bit-equal on all platforms. */
static inline double ddp__power(double x, long n)
{
    double r = 1;

    for (; n > 0; n /= 2, x = ddp__product(x, x))
        if (n % 2) r = ddp__product(r, x);
    return r;
}

#endif /* DDP_NN_EXACT_H */
/* ==== end nn/exact.h ==== */

/* ==== begin nn/clip.h ==== [nn] */
/* Clipping by the global norm of all gradients. */
#ifndef DDP_NN_CLIP_H
#define DDP_NN_CLIP_H

#ifdef __cplusplus
extern "C" {
#endif

/* Sum of x[i]^2 in double, always added in the same order: a layer's sum has the same bits on
 * every processor (the product of two floats is exact in double, fused or not). Pure. */
DDP_LIB double ddp__sum_squares(const float *x, size_t n);

/* What to multiply the gradients with: max_norm / (norm + 1e-6), at most 1, with norm the root
 * of sum_squares over all layers (PyTorch's clip_grad_norm_). NaN sums give NaN. Pure. */
DDP_LIB float ddp__clip_factor(double sum_squares, double max_norm);

/* x[i] *= s. */
DDP_LIB void ddp__scale(float *x, size_t n, float s);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NN_CLIP_H */
/* ==== end nn/clip.h ==== */

/* ==== begin nn/optimizer.c ==== [nn] */

/* "0.999f" means 0.999: taken as it stands, 1 - beta would be off by 1e-5. */
static double ddp__decimal(float x) { return floor(ddp__product((double)x, 1e7) + 0.5) / 1e7; }

/* ---- SGD: hyper = momentum, weight decay ---- */

typedef struct ddp__sgd_step {
    ddp__f4 momentum, decay, lr;
} ddp__sgd_step;

/* v may be NULL: no momentum. */
static inline void ddp__sgd4(const ddp__sgd_step *k, float *w, const float *g, float *v)
{
    ddp__f4 weight = ddp__f4_load(w);
    ddp__f4 d = ddp__f4_load(g) + ddp__f4_mul(k->decay, weight);

    if (v) {
        d = ddp__f4_mul(k->momentum, ddp__f4_load(v)) + d;
        ddp__f4_store(v, d);
    }
    ddp__f4_store(w, weight - ddp__f4_mul(k->lr, d));
}

static void ddp__sgd_update(const ddp_optimizer *self, const ddp_update *u)
{
    size_t i, rest = u->count % 4, whole = u->count - rest;
    float w[4] = {0, 0, 0, 0}, g[4] = {0, 0, 0, 0}, v[4] = {0, 0, 0, 0};
    float *state = self->state_per_param ? u->state : NULL;
    ddp__sgd_step k;

    k.momentum = ddp__f4_all(self->hyper[0]);
    k.decay = ddp__f4_all(self->hyper[1]);
    k.lr = ddp__f4_all(u->lr);
    if (state)
        for (i = 0; i < whole; i += 4) ddp__sgd4(&k, u->params + i, u->grads + i, state + i);
    else
        for (i = 0; i < whole; i += 4) ddp__sgd4(&k, u->params + i, u->grads + i, NULL);
    if (!rest) return;
    memcpy(w, u->params + whole, rest * sizeof *w);
    memcpy(g, u->grads + whole, rest * sizeof *g);
    if (state) memcpy(v, state + whole, rest * sizeof *v);
    ddp__sgd4(&k, w, g, state ? v : NULL);
    memcpy(u->params + whole, w, rest * sizeof *w);
    if (state) memcpy(state + whole, v, rest * sizeof *v);
}

/* ---- Adam and AdamW: hyper = beta1, beta2, eps, weight decay; state = mean, then square ---- */

typedef struct ddp__adam_step {
    ddp__f4 beta1, gain1, beta2, gain2; /* gain = 1 - beta */
    ddp__f4 l2;                         /* of Adam: added to the gradient */
    ddp__f4 shrink;                     /* of AdamW: 1 - lr decay */
    ddp__f4 root, eps, step;            /* 1 / sqrt(1 - beta2^t), eps, -lr / (1 - beta1^t) */
} ddp__adam_step;

static inline void ddp__adam4(const ddp__adam_step *k, float *w, const float *g, float *m, float *v)
{
    ddp__f4 weight = ddp__f4_load(w);
    ddp__f4 d = ddp__f4_load(g) + ddp__f4_mul(k->l2, weight);
    ddp__f4 mean = ddp__f4_mul(k->beta1, ddp__f4_load(m)) + ddp__f4_mul(k->gain1, d);
    ddp__f4 square = ddp__f4_mul(k->beta2, ddp__f4_load(v)) +
                     ddp__f4_mul(ddp__f4_mul(k->gain2, d), d);
    ddp__f4 denominator = ddp__f4_mul(ddp__f4_sqrt(square), k->root) + k->eps;

    ddp__f4_store(m, mean);
    ddp__f4_store(v, square);
    ddp__f4_store(w, ddp__f4_mul(weight, k->shrink) + ddp__f4_mul(k->step, mean) / denominator);
}

static void ddp__adam_run(const ddp_update *u, const ddp__adam_step *step)
{
    size_t i, rest = u->count % 4, whole = u->count - rest;
    float w[4] = {0, 0, 0, 0}, g[4] = {0, 0, 0, 0}, m[4] = {0, 0, 0, 0}, v[4] = {0, 0, 0, 0};
    float *mean = u->state, *square = u->state + u->count;
    ddp__adam_step k = *step; /* a copy the stores below cannot alias */

    for (i = 0; i < whole; i += 4) ddp__adam4(&k, u->params + i, u->grads + i, mean + i, square + i);
    if (!rest) return;
    memcpy(w, u->params + whole, rest * sizeof *w);
    memcpy(g, u->grads + whole, rest * sizeof *g);
    memcpy(m, mean + whole, rest * sizeof *m);
    memcpy(v, square + whole, rest * sizeof *v);
    ddp__adam4(&k, w, g, m, v);
    memcpy(u->params + whole, w, rest * sizeof *w);
    memcpy(mean + whole, m, rest * sizeof *m);
    memcpy(square + whole, v, rest * sizeof *v);
}

/* The factors are made in double and then rounded once, as PyTorch does. */
static void ddp__adam_factors(const ddp_optimizer *self, const ddp_update *u, ddp__adam_step *k)
{
    double beta1 = ddp__decimal(self->hyper[0]), beta2 = ddp__decimal(self->hyper[1]);
    double left1 = ddp__power(beta1, u->step + 1), left2 = ddp__power(beta2, u->step + 1);

    k->beta1 = ddp__f4_all((float)beta1);
    k->gain1 = ddp__f4_all((float)(1 - beta1));
    k->beta2 = ddp__f4_all((float)beta2);
    k->gain2 = ddp__f4_all((float)(1 - beta2));
    k->l2 = ddp__f4_all(0);
    k->shrink = ddp__f4_all(1);
    k->root = ddp__f4_all((float)(1 / sqrt(1 - left2)));
    k->eps = ddp__f4_all(self->hyper[2]);
    k->step = ddp__f4_all((float)(-(double)u->lr / (1 - left1)));
}

static void ddp__adam_update(const ddp_optimizer *self, const ddp_update *u)
{
    ddp__adam_step k;

    ddp__adam_factors(self, u, &k);
    k.l2 = ddp__f4_all(self->hyper[3]);
    ddp__adam_run(u, &k);
}

static void ddp__adamw_update(const ddp_optimizer *self, const ddp_update *u)
{
    ddp__adam_step k;

    ddp__adam_factors(self, u, &k);
    k.shrink = ddp__f4_all((float)(1 - ddp__product((double)u->lr, (double)self->hyper[3])));
    ddp__adam_run(u, &k);
}

/* ---- the public makers ---- */

ddp_optimizer ddp_sgd(float lr, float momentum) { return ddp_sgd_decay(lr, momentum, 0); }

ddp_optimizer ddp_sgd_decay(float lr, float momentum, float weight_decay)
{
    ddp_optimizer o;

    memset(&o, 0, sizeof o);
    o.name = "sgd";
    o.state_per_param = momentum > 0 || momentum < 0;
    o.update = ddp__sgd_update;
    o.lr = lr;
    o.hyper[0] = momentum;
    o.hyper[1] = weight_decay;
    return o;
}

ddp_optimizer ddp_adam(float lr, float beta1, float beta2, float eps, float weight_decay)
{
    ddp_optimizer o;

    memset(&o, 0, sizeof o);
    o.name = "adam";
    o.state_per_param = 2;
    o.update = ddp__adam_update;
    o.lr = lr;
    o.hyper[0] = beta1;
    o.hyper[1] = beta2;
    o.hyper[2] = eps;
    o.hyper[3] = weight_decay;
    return o;
}

ddp_optimizer ddp_adamw(float lr, float beta1, float beta2, float eps, float weight_decay)
{
    ddp_optimizer o = ddp_adam(lr, beta1, beta2, eps, weight_decay);

    o.name = "adamw";
    o.update = ddp__adamw_update;
    return o;
}
/* ==== end nn/optimizer.c ==== */

/* ==== begin nn/clip.c ==== [nn] */

/* Lane k adds elements k, k + 8, k + 16, ...; the lanes are added pairwise at the end. */
double ddp__sum_squares(const float *x, size_t n)
{
    typedef double pair __attribute__((vector_size(16)));
    pair a = {0, 0}, b = {0, 0}, c = {0, 0}, d = {0, 0};
    double lane[8];
    size_t i, k;

    for (i = 0; i + 8 <= n; i += 8) {
        pair p = {(double)x[i + 0], (double)x[i + 1]}, q = {(double)x[i + 2], (double)x[i + 3]};
        pair r = {(double)x[i + 4], (double)x[i + 5]}, s = {(double)x[i + 6], (double)x[i + 7]};
        a += p * p;
        b += q * q;
        c += r * r;
        d += s * s;
    }
    memcpy(lane + 0, &a, sizeof a);
    memcpy(lane + 2, &b, sizeof b);
    memcpy(lane + 4, &c, sizeof c);
    memcpy(lane + 6, &d, sizeof d);
    for (k = 0; i + k < n; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

float ddp__clip_factor(double sum_squares, double max_norm)
{
    double factor = max_norm / (sqrt(sum_squares) + 1e-6);

    return factor > 1 ? 1 : (float)factor;
}

void ddp__scale(float *x, size_t n, float s)
{
    size_t i;

    for (i = 0; i < n; i++) x[i] *= s;
}
/* ==== end nn/clip.c ==== */

/* ==== begin nn/schedule.c ==== [nn] */

double ddp_lr_at(const ddp_lr_schedule *s, long step)
{
    const double pi = 3.14159265358979323846;
    double done, swing;
    long after;

    if (step < 0) step = 0;
    if (step < s->warmup) return s->base * (double)(step + 1) / (double)s->warmup;
    after = step - (s->warmup > 0 ? s->warmup : 0);
    switch (s->kind) {
    case DDP_LR_COSINE:
        if (step >= s->total) return s->base * s->min_ratio;
        done = (double)after / (double)(s->total - (step - after));
        swing = ddp__product((1 - s->min_ratio) / 2, 1 + cos(pi * done));
        return s->base * (s->min_ratio + swing);
    case DDP_LR_STEP:
        return s->step_size > 0 ? s->base * ddp__power(s->gamma, after / s->step_size) : s->base;
    case DDP_LR_CONSTANT: break;
    }
    return s->base;
}

int ddp_schedule_named(const char *name, ddp_schedule_kind *out)
{
    static const char *const names[] = {"constant", "cosine", "step"};
    int k;

    for (k = 0; k < 3; k++)
        if (name && !strcmp(name, names[k])) {
            *out = (ddp_schedule_kind)k;
            return 1;
        }
    return 0;
}
/* ==== end nn/schedule.c ==== */

/* ==== begin nn/gpt2.c ==== [nn] */

static int ddp__gpt2_check(const ddp_gpt2_config *c, ddp_error *err)
{
    if (c->vocabulary < 2 || c->vocabulary > INT32_MAX)
        ddp__fail(err, DDP_ARG, "gpt2: the vocabulary is %ld, it must be 2 to %d", c->vocabulary, INT32_MAX);
    else if (c->context < 1 || c->layers < 1 || c->heads < 1 || c->dim < 1 || c->batch < 1)
        ddp__fail(err, DDP_ARG, "gpt2: context %ld, layers %ld, heads %ld, dim %ld and batch %ld must all "
                  "be at least 1", c->context, c->layers, c->heads, c->dim, c->batch);
    else if (c->dim % c->heads)
        ddp__fail(err, DDP_ARG, "gpt2: dim %ld cannot be cut into %ld heads: heads must divide dim",
                  c->dim, c->heads);
    else if (!(c->dropout >= 0 && c->dropout < 1))
        ddp__fail(err, DDP_ARG, "gpt2: dropout is %g, it must be at least 0 and below 1", (double)c->dropout);
    return err->code == DDP_OK;
}

/* A linear operator that starts as GPT-2's do. */
static ddp_node *ddp__gpt2_linear(ddp_graph *g, ddp_node *x, long width, float deviation)
{
    x = ddp_linear(g, x, width);
    ddp_init_normal(g, x, 0, deviation);
    ddp_init_normal(g, x, 1, 0);
    return x;
}

/* No operator at all where there is nothing to drop. */
static ddp_node *ddp__gpt2_dropout(ddp_graph *g, ddp_node *x, float probability)
{
    return probability > 0 ? ddp_dropout(g, x, probability) : x;
}

static float ddp__gpt2_deviation(const ddp_gpt2_config *c) { return c->deviation > 0 ? c->deviation : 0.02f; }

/* x + projection(attention(norm(x))), then x + projection(gelu(widening(norm(x)))). */
static ddp_node *ddp__gpt2_block(ddp_graph *g, const ddp_gpt2_config *c, ddp_node *x, long number)
{
    float deviation = ddp__gpt2_deviation(c), onto_stream = deviation / (float)sqrt(2 * (double)c->layers);
    char name[48];
    ddp_node *y;

    snprintf(name, sizeof name, "h.%ld.attn", number);
    ddp_layer_begin(g, name);
    y = ddp__gpt2_linear(g, ddp_layer_norm(g, x), 3 * c->dim, deviation);
    y = ddp__gpt2_linear(g, ddp_attention(g, y, c->heads), c->dim, onto_stream);
    x = ddp_add(g, x, ddp__gpt2_dropout(g, y, c->dropout));
    ddp_layer_end(g);

    snprintf(name, sizeof name, "h.%ld.mlp", number);
    ddp_layer_begin(g, name);
    y = ddp__gpt2_linear(g, ddp_layer_norm(g, x), 4 * c->dim, deviation);
    y = ddp__gpt2_linear(g, ddp_gelu(g, y), c->dim, onto_stream);
    x = ddp_add(g, x, ddp__gpt2_dropout(g, y, c->dropout));
    ddp_layer_end(g);
    return x;
}

ddp_node *ddp_gpt2(ddp_graph *g, const ddp_gpt2_config *c, ddp_node **logits)
{
    ddp_node *tokens, *labels, *table, *x;
    long k;

    if (logits) *logits = NULL;
    if (!g || g->error.code || !ddp__gpt2_check(c, &g->error)) return NULL;
    tokens = ddp_input(g, "tokens", DDP_I32, c->batch, c->context);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, c->context);

    ddp_layer_begin(g, "embed");
    table = ddp_embedding(g, tokens, c->vocabulary, c->dim);
    ddp_init_normal(g, table, 0, ddp__gpt2_deviation(c));
    x = ddp_position(g, table);
    ddp_init_normal(g, x, 0, ddp__gpt2_deviation(c));
    x = ddp__gpt2_dropout(g, x, c->dropout);
    ddp_layer_end(g);

    for (k = 0; k < c->layers && x; k++) x = ddp__gpt2_block(g, c, x, k);

    ddp_layer_begin(g, "head");
    x = ddp_linear_tied(g, ddp_layer_norm(g, x), table);
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
/* ==== end nn/gpt2.c ==== */

/* ==== begin nn/mlp.c ==== [nn] */

ddp_node *ddp_mlp(ddp_graph *g, const ddp_mlp_config *c, ddp_node **logits)
{
    ddp_node *x, *labels;
    int k;

    if (logits) *logits = NULL;
    if (!g || g->error.code) return NULL;
    if (c->batch < 1 || c->inputs < 1 || c->classes < 2) {
        ddp__fail(&g->error, DDP_ARG, "mlp: batch %ld and inputs %ld must be at least 1, classes %ld "
                  "at least 2", c->batch, c->inputs, c->classes);
        return NULL;
    }
    x = ddp_input(g, "inputs", DDP_F32, c->batch, c->inputs);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, 1);

    for (k = 0; k < DDP_MLP_HIDDEN && c->hidden[k]; k++) {
        if (c->hidden[k] < 0) {
            ddp__fail(&g->error, DDP_ARG, "mlp: hidden layer %d is %ld wide, it must be at least 1", k,
                      c->hidden[k]);
            return NULL;
        }
        ddp_layer_begin(g, "hidden");
        x = ddp_relu(g, ddp_linear(g, x, c->hidden[k]));
        ddp_layer_end(g);
    }

    ddp_layer_begin(g, "head");
    x = ddp_linear(g, x, c->classes);
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
/* ==== end nn/mlp.c ==== */

/* ==== begin nn/resnet.c ==== [nn] */

/* Blocks of the four stages (He et al. 2015, Table 1); bottlenecks from 50 layers on. */
static const int ddp__resnet_blocks[][5] = {
    {18, 2, 2, 2, 2}, {34, 3, 4, 6, 3}, {50, 3, 4, 6, 3}, {101, 3, 4, 23, 3}, {152, 3, 8, 36, 3}};

/* The four counts of that depth, NULL if it is none of the published ones. */
static const int *ddp__resnet_stages(int depth)
{
    size_t i;

    for (i = 0; i < sizeof ddp__resnet_blocks / sizeof *ddp__resnet_blocks; i++)
        if (ddp__resnet_blocks[i][0] == depth) return ddp__resnet_blocks[i] + 1;
    return NULL;
}

static int ddp__resnet_check(const ddp_resnet_config *c, ddp_error *err)
{
    if (!ddp__resnet_stages(c->depth))
        ddp__fail(err, DDP_ARG, "resnet: there is none of depth %d: take 18, 34, 50, 101 or 152",
                  c->depth);
    else if (c->batch < 1 || c->size < 1 || c->channels < 0 || c->classes < 2)
        ddp__fail(err, DDP_ARG, "resnet: batch %ld and size %ld must be at least 1, channels %ld "
                  "at least 0, classes %ld at least 2", c->batch, c->size, c->channels, c->classes);
    return err->code == DDP_OK;
}

/* Convolution and batch norm, in a layer of their own that the caller ends. Weights start normal
 * with variance 2 / (values that an input reaches): He et al. 2015, arXiv:1502.01852, Eq. 14. */
static ddp_node *ddp__resnet_conv(ddp_graph *g, ddp_node *x, const char *block, const char *part,
                                  long channels, long kernel, long stride)
{
    char name[64];

    snprintf(name, sizeof name, "%s%s", block, part);
    ddp_layer_begin(g, name);
    x = ddp_conv2d(g, x, channels, kernel, stride, kernel / 2, 1, 0);
    ddp_init_normal(g, x, 0, (float)sqrt(2 / ((double)kernel * (double)kernel * (double)channels)));
    return ddp_batch_norm2d(g, x);
}

/* The sum of a shortcut and of two 3x3 convolutions, or of a 1x1, a 3x3 with the stride, and a
 * 1x1 that widens four times. A shortcut that changes its shape is a 1x1 convolution. */
static ddp_node *ddp__resnet_block(ddp_graph *g, ddp_node *x, const char *name, int bottleneck,
                                   long width, long stride, int project)
{
    const long out = bottleneck ? 4 * width : width;
    ddp_node *y;

    if (bottleneck) {
        y = ddp_relu(g, ddp__resnet_conv(g, x, name, ".conv1", width, 1, 1));
        ddp_layer_end(g);
        y = ddp_relu(g, ddp__resnet_conv(g, y, name, ".conv2", width, 3, stride));
    } else {
        y = ddp_relu(g, ddp__resnet_conv(g, x, name, ".conv1", width, 3, stride));
    }
    ddp_layer_end(g);
    if (project) {
        x = ddp__resnet_conv(g, x, name, ".downsample", out, 1, stride);
        ddp_layer_end(g);
    }
    y = bottleneck ? ddp__resnet_conv(g, y, name, ".conv3", out, 1, 1)
                   : ddp__resnet_conv(g, y, name, ".conv2", out, 3, 1);
    y = ddp_relu(g, ddp_add(g, y, x));
    ddp_layer_end(g);
    return y;
}

static ddp_node *ddp__resnet_stem(ddp_graph *g, ddp_node *x, int cifar)
{
    x = ddp_relu(g, ddp__resnet_conv(g, x, "conv1", "", 64, cifar ? 3 : 7, cifar ? 1 : 2));
    if (!cifar) x = ddp_max_pool2d(g, x, 3, 2, 1);
    ddp_layer_end(g);
    return x;
}

ddp_node *ddp_resnet(ddp_graph *g, const ddp_resnet_config *c, ddp_node **logits)
{
    const int bottleneck = c->depth >= 50;
    ddp_node *x, *labels;
    ddp_shape image;
    char name[48];
    int stage, k;

    if (logits) *logits = NULL;
    if (!g || g->error.code || !ddp__resnet_check(c, &g->error)) return NULL;
    memset(&image, 0, sizeof image);
    image.dims = 4;
    image.dim[0] = c->batch;
    image.dim[1] = c->channels ? c->channels : 3;
    image.dim[2] = image.dim[3] = c->size;
    x = ddp_input_shape(g, "inputs", DDP_F32, &image);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, 1);

    x = ddp__resnet_stem(g, x, c->cifar);
    for (stage = 0; stage < 4; stage++) {
        for (k = 0; k < ddp__resnet_stages(c->depth)[stage]; k++) {
            snprintf(name, sizeof name, "layer%d.%d", stage + 1, k);
            x = ddp__resnet_block(g, x, name, bottleneck, 64L << stage, stage > 0 && k == 0 ? 2 : 1,
                                  k == 0 && (stage > 0 || bottleneck));
        }
    }

    ddp_layer_begin(g, "head");
    x = ddp_linear(g, ddp_global_avg_pool2d(g, x), c->classes);
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
/* ==== end nn/resnet.c ==== */

/* ==== begin nn/vgg.c ==== [nn] */

/* Convolutions of the five stages (Simonyan and Zisserman 2014, Table 1: A, B, D, E). */
static const int ddp__vgg_convs[][6] = {
    {11, 1, 1, 2, 2, 2}, {13, 2, 2, 2, 2, 2}, {16, 2, 2, 3, 3, 3}, {19, 2, 2, 4, 4, 4}};

/* The five counts of that depth, NULL if it is none of the published ones. */
static const int *ddp__vgg_stages(int depth)
{
    size_t i;

    for (i = 0; i < sizeof ddp__vgg_convs / sizeof *ddp__vgg_convs; i++)
        if (ddp__vgg_convs[i][0] == depth) return ddp__vgg_convs[i] + 1;
    return NULL;
}

static int ddp__vgg_check(const ddp_vgg_config *c, ddp_error *err)
{
    if (!ddp__vgg_stages(c->depth))
        ddp__fail(err, DDP_ARG, "vgg: there is none of depth %d: take 11, 13, 16 or 19", c->depth);
    else if (c->size < 32)
        ddp__fail(err, DDP_ARG, "vgg: images of %ld x %ld are too small: it halves them five "
                  "times, so the size must be at least 32", c->size, c->size);
    else if (c->batch < 1 || c->channels < 0 || c->classes < 2)
        ddp__fail(err, DDP_ARG, "vgg: batch %ld must be at least 1, channels %ld at least 0, "
                  "classes %ld at least 2", c->batch, c->channels, c->classes);
    else if (!(c->dropout >= 0 && c->dropout < 1))
        ddp__fail(err, DDP_ARG, "vgg: dropout is %g, it must be at least 0 and below 1",
                  (double)c->dropout);
    return err->code == DDP_OK;
}

/* Weights start normal with variance 2 / (values that an input reaches), biases 0. The paper's
 * own start, deviation 0.01 everywhere, needed layers trained in a shallower net before. */
static ddp_node *ddp__vgg_conv(ddp_graph *g, ddp_node *x, long channels)
{
    x = ddp_conv2d(g, x, channels, 3, 1, 1, 1, 1);
    ddp_init_normal(g, x, 0, (float)sqrt(2 / (9.0 * (double)channels)));
    ddp_init_normal(g, x, 1, 0);
    return ddp_relu(g, x);
}

static ddp_node *ddp__vgg_linear(ddp_graph *g, ddp_node *x, long width)
{
    x = ddp_linear(g, x, width);
    ddp_init_normal(g, x, 0, 0.01f);
    ddp_init_normal(g, x, 1, 0);
    return x;
}

/* A hidden linear layer; no dropout operator where there is nothing to drop. */
static ddp_node *ddp__vgg_hidden(ddp_graph *g, ddp_node *x, float dropout)
{
    x = ddp_relu(g, ddp__vgg_linear(g, x, 4096));
    return dropout > 0 ? ddp_dropout(g, x, dropout) : x;
}

ddp_node *ddp_vgg(ddp_graph *g, const ddp_vgg_config *c, ddp_node **logits)
{
    ddp_node *x, *labels;
    ddp_shape image;
    char name[48];
    int stage, k;

    if (logits) *logits = NULL;
    if (!g || g->error.code || !ddp__vgg_check(c, &g->error)) return NULL;
    memset(&image, 0, sizeof image);
    image.dims = 4;
    image.dim[0] = c->batch;
    image.dim[1] = c->channels ? c->channels : 3;
    image.dim[2] = image.dim[3] = c->size;
    x = ddp_input_shape(g, "inputs", DDP_F32, &image);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, 1);

    for (stage = 0; stage < 5; stage++) {
        const int convs = ddp__vgg_stages(c->depth)[stage];

        for (k = 0; k < convs; k++) {
            snprintf(name, sizeof name, "conv%d_%d", stage + 1, k + 1);
            ddp_layer_begin(g, name);
            x = ddp__vgg_conv(g, x, stage < 3 ? 64L << stage : 512);
            if (k == convs - 1) x = ddp_max_pool2d(g, x, 2, 2, 0);
            ddp_layer_end(g);
        }
    }

    ddp_layer_begin(g, "fc6");
    x = ddp__vgg_hidden(g, ddp_flatten(g, x), c->dropout);
    ddp_layer_end(g);
    ddp_layer_begin(g, "fc7");
    x = ddp__vgg_hidden(g, x, c->dropout);
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = ddp__vgg_linear(g, x, c->classes);
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
/* ==== end nn/vgg.c ==== */

/* ==== begin data/hash.c ==== [data] */

/* Two floats per round, read as numbers and not as bytes, so that byte order does not matter.
 * Each round is a bijection of the hash: one changed bit can never be lost. */
static uint64_t ddp__hash_round(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 32);
}

uint64_t ddp_hash_floats(uint64_t hash, const float *x, size_t n)
{
    size_t i;
    uint32_t bits[2];

    hash = ddp__hash_round(hash, (uint64_t)n);
    for (i = 0; i + 2 <= n; i += 2) {
        memcpy(bits, x + i, sizeof bits);
        hash = ddp__hash_round(hash, bits[0] | (uint64_t)bits[1] << 32);
    }
    if (i < n) {
        memcpy(bits, x + i, sizeof *bits);
        hash = ddp__hash_round(hash, bits[0]);
    }
    return hash;
}
/* ==== end data/hash.c ==== */

/* ==== begin data/tokens.c ==== [data] */

/* llm.c writes 256 int32: magic, version, token count. */
#define DDP__TOKENS_HEADER  1024
#define DDP__TOKENS_GPT2    20240520u /* version 1, 16 bits */
#define DDP__TOKENS_LLAMA3  20240801u /* version 7, 32 bits */

struct ddp_tokens {
    ddp__text file;             /* the whole file */
    const unsigned char *first; /* first token inside it */
    int       width;            /* bytes per token: 1, 2 or 4, little endian */
    long      count;
    long      vocabulary;
    int       from_bytes;       /* 1: byte_of is meant */
    int       byte_of[256];
};

/* ---- recognising and checking a file ---- */

static uint32_t ddp__tokens_word(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int ddp__tokens_named(const char *name, const char *ending)
{
    size_t n = strlen(name), k = strlen(ending);

    return n > k && !strcmp(name + n - k, ending);
}

static ddp_status ddp__tokens_llmc(ddp_tokens *t, const char *name, const unsigned char *p, size_t n,
                                   ddp_error *err)
{
    uint32_t magic = ddp__tokens_word(p), version, count;
    uint32_t wanted = magic == DDP__TOKENS_GPT2 ? 1 : 7;
    uint64_t size;

    if (n < DDP__TOKENS_HEADER)
        return ddp__fail(err, DDP_FORMAT, "%s begins like an llm.c token file, but its %zu bytes are fewer "
                         "than the header's %d: is it cut off?", name, n, DDP__TOKENS_HEADER);
    version = ddp__tokens_word(p + 4);
    count = ddp__tokens_word(p + 8);
    if (version != wanted)
        return ddp__fail(err, DDP_FORMAT, "%s is an llm.c token file of version %u; version %u is understood",
                         name, version, wanted);
    t->width = magic == DDP__TOKENS_GPT2 ? 2 : 4;
    size = DDP__TOKENS_HEADER + (uint64_t)count * (uint64_t)t->width;
    if (size != n)
        return ddp__fail(err, DDP_FORMAT, "%s: its header promises %u tokens, that is %" PRIu64
                         " bytes, but it has %zu: is it cut off?", name, count, size, n);
    t->first = p + DDP__TOKENS_HEADER;
    t->count = (long)count;
    return DDP_OK;
}

/* Renumbers bytes in place: 0, 1, ... in ascending order of the values that occur. */
static void ddp__tokens_compact(ddp_tokens *t)
{
    unsigned char *p = (unsigned char *)t->file.data;
    int number[256];
    long i;
    int b;

    memset(number, 0, sizeof number);
    for (i = 0; i < t->count; i++) number[p[i]] = 1;
    for (b = 0; b < 256; b++) {
        if (!number[b]) continue;
        t->byte_of[t->vocabulary] = b;
        number[b] = (int)t->vocabulary++;
    }
    for (i = 0; i < t->count; i++) p[i] = (unsigned char)number[p[i]];
}

static ddp_status ddp__tokens_scan(ddp_tokens *t, const char *name, ddp_error *err)
{
    const unsigned char *p = (const unsigned char *)t->file.data;
    size_t n = t->file.size;
    uint32_t magic = n >= 4 ? ddp__tokens_word(p) : 0, token, largest = 0;
    long i;

    if (n == 0)
        return ddp__fail(err, DDP_FORMAT, "%s is empty: a text or token file of at least seq + 1 tokens "
                         "is needed", name);
    t->first = p;
    t->width = 1;
    t->count = (long)n;
    if (magic == DDP__TOKENS_GPT2 || magic == DDP__TOKENS_LLAMA3) {
        DDP__TRY(ddp__tokens_llmc(t, name, p, n, err));
    } else if (n % 2 == 0 && (ddp__tokens_named(name, ".bin") || ddp__tokens_named(name, ".bin.gz"))) {
        t->width = 2;
        t->count = (long)(n / 2);
    }
    if (t->count < 2)
        return ddp__fail(err, DDP_FORMAT, "%s (%zu bytes) holds %ld token: at least seq + 1 tokens are "
                         "needed", name, n, t->count);
    t->from_bytes = t->width == 1;
    if (t->from_bytes) {
        ddp__tokens_compact(t);
        return DDP_OK;
    }
    for (i = 0; i < t->count; i++) {
        token = (uint32_t)ddp_tokens_at(t, i);
        if (token > largest) largest = token;
    }
    if (largest >= INT32_MAX)
        return ddp__fail(err, DDP_FORMAT, "%s holds token %u, above the largest that is understood (%d)",
                         name, largest, INT32_MAX - 1);
    t->vocabulary = (long)largest + 1;
    return DDP_OK;
}

/* ---- opening ---- */

static ddp_tokens *ddp__tokens_new(ddp_error *err)
{
    ddp_tokens *t = (ddp_tokens *)ddp__calloc(1, sizeof *t);

    if (!t) ddp__fail(err, DDP_MEMORY, "out of memory while opening a token stream");
    return t;
}

static ddp_tokens *ddp__tokens_finish(ddp_tokens *t, const char *name, ddp_error *err)
{
    if (ddp__tokens_scan(t, name, err) == DDP_OK) return t;
    ddp_tokens_close(t);
    return NULL;
}

ddp_tokens *ddp_tokens_open(const char *path, ddp_error *err)
{
    ddp_tokens *t = ddp__tokens_new(err);

    if (!t) return NULL;
    if (ddp__file_read(path, &t->file, err)) {
        ddp_tokens_close(t);
        return NULL;
    }
    return ddp__tokens_finish(t, path, err);
}

ddp_tokens *ddp_tokens_from_bytes(const char *name, const void *bytes, size_t n, ddp_error *err)
{
    ddp_tokens *t = ddp__tokens_new(err);

    if (!t) return NULL;
    ddp__text_add(&t->file, (const char *)bytes, n);
    if (t->file.failed) {
        ddp__fail(err, DDP_MEMORY, "out of memory for the %zu bytes of %s", n, name);
        ddp_tokens_close(t);
        return NULL;
    }
    return ddp__tokens_finish(t, name, err);
}

void ddp_tokens_close(ddp_tokens *t)
{
    if (!t) return;
    ddp__text_free(&t->file);
    DDP_FREE(t);
}

/* ---- reading ---- */

long ddp_tokens_count(const ddp_tokens *t) { return t->count; }

long ddp_tokens_vocabulary(const ddp_tokens *t) { return t->vocabulary; }

int ddp_tokens_byte(const ddp_tokens *t, long token)
{
    return t->from_bytes && token >= 0 && token < t->vocabulary ? t->byte_of[token] : -1;
}

int32_t ddp_tokens_at(const ddp_tokens *t, long i)
{
    const unsigned char *p = t->first + (size_t)i * (size_t)t->width;

    if (t->width == 1) return p[0];
    if (t->width == 2) return p[0] | p[1] << 8;
    return (int32_t)ddp__tokens_word(p);
}

ddp_status ddp_tokens_split(const ddp_tokens *t, double held_out, long seq, ddp_token_range *train,
                            ddp_token_range *val, ddp_error *err)
{
    long last;

    if (!(held_out >= 0 && held_out < 1))
        return ddp__fail(err, DDP_ARG, "the held-out share is %g: it must be at least 0 and below 1",
                         held_out);
    if (seq < 1 || seq >= t->count)
        return ddp__fail(err, DDP_ARG, "seq is %ld, but the data has %ld tokens: windows need seq + 1 of "
                         "them and seq must be at least 1", seq, t->count);
    last = (long)((double)t->count * held_out);
    if (held_out > 0 && last < seq + 1)
        return ddp__fail(err, DDP_ARG, "holding out %g of %ld tokens leaves %ld for validation, fewer than "
                         "one window of seq + 1 = %ld: use more data or a shorter seq",
                         held_out, t->count, last, seq + 1);
    if (t->count - last < seq + 1)
        return ddp__fail(err, DDP_ARG, "holding out %g of %ld tokens leaves %ld to train on, fewer than one "
                         "window of seq + 1 = %ld: use more data or a shorter seq",
                         held_out, t->count, t->count - last, seq + 1);
    train->tokens = t;
    train->first = 0;
    train->count = t->count - last;
    train->seq = seq;
    if (!val) return DDP_OK;
    *val = *train;
    val->first = train->count;
    val->count = last;
    return DDP_OK;
}

long ddp_tokens_windows(const ddp_token_range *r)
{
    return r->count > r->seq ? (r->count - 1) / r->seq : 0;
}

void ddp_tokens_window(const ddp_token_range *r, long w, int32_t *tokens, int32_t *labels)
{
    long i, at = r->first + w * r->seq;
    int32_t next = ddp_tokens_at(r->tokens, at);

    for (i = 0; i < r->seq; i++) {
        tokens[i] = next;
        labels[i] = next = ddp_tokens_at(r->tokens, at + i + 1);
    }
}

/* ---- dealing ---- */

/* Card number i of a shuffled deck of n >= 1: a four-round Feistel network permutes the next
 * power of four; values outside the deck are permuted again until they fall inside, at most
 * four times on average (Black and Rogaway, Ciphers with arbitrary finite domains, 2002). */
static uint64_t ddp__shuffled(uint64_t i, uint64_t n, uint64_t key)
{
    int half = 1, round;
    uint64_t mask, left, right, mixed;
    ddp_rng r;

    while (half < 31 && (UINT64_C(1) << (2 * half)) < n) half++;
    mask = (UINT64_C(1) << half) - 1;
    do {
        left = i >> half;
        right = i & mask;
        for (round = 0; round < 4; round++) {
            r = ddp_rng_seed(key + (uint64_t)round, right);
            mixed = left ^ (ddp_rng_u64(&r) & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

void ddp_tokens_batch(const ddp_token_range *r, uint64_t seed, long step, int rank, int world, long batch,
                      int32_t *tokens, int32_t *labels)
{
    uint64_t windows = (uint64_t)ddp_tokens_windows(r), card, epoch;
    ddp_rng key;
    long b;

    if (windows == 0) return;
    for (b = 0; b < batch; b++) {
        card = ((uint64_t)step * (uint64_t)world + (uint64_t)rank) * (uint64_t)batch + (uint64_t)b;
        epoch = card / windows;
        key = ddp_rng_seed(seed, epoch);
        card = ddp__shuffled(card % windows, windows, ddp_rng_u64(&key));
        ddp_tokens_window(r, (long)card, tokens + b * r->seq, labels + b * r->seq);
    }
}

double ddp_tokens_epoch(const ddp_token_range *r, long step, int world, long batch)
{
    long windows = ddp_tokens_windows(r);

    return windows ? (double)step * (double)world * (double)batch / (double)windows : 0;
}
/* ==== end data/tokens.c ==== */

/* ==== begin io/json.h ==== [io] */
/* A strict, small JSON reader (RFC 8259) for plan and topology files, and two writer helpers. */
#ifndef DDP_IO_JSON_H
#define DDP_IO_JSON_H

typedef enum ddp__json_kind {
    DDP__JSON_NULL,
    DDP__JSON_FALSE,
    DDP__JSON_TRUE,
    DDP__JSON_NUMBER,
    DDP__JSON_STRING,
    DDP__JSON_ARRAY,
    DDP__JSON_OBJECT
} ddp__json_kind;

/* A value. Children of arrays and objects hang in a list, in the order of the file:
 *     for (v = a->first; v; v = v->next) ... */
typedef struct ddp__json {
    ddp__json_kind    kind;
    int               line, column; /* of its first character, from 1, for later complaints */
    long              count;        /* children */
    const char       *key;          /* of a member of an object, else NULL */
    const char       *string;       /* UTF-8 */
    double            number;
    struct ddp__json *first, *next;
} ddp__json;

#ifdef __cplusplus
extern "C" {
#endif

/* Parses n bytes; name stands in error sentences ("net.json, line 3, column 7: ..."). The tree
 * is one allocation, freed by ddp__json_free(root), and keeps no pointer to text.
 * Columns count bytes. Strict: refuses duplicate keys, NUL in strings, invalid UTF-8, numbers beyond double, more than
 * 64 nested values and anything after the value. NULL and *err on failure. */
DDP_LIB ddp__json *ddp__json_parse(const char *name, const char *text, size_t n, ddp_error *err);
DDP_LIB ddp__json *ddp__json_read(const char *path, ddp_error *err);
DDP_LIB void       ddp__json_free(ddp__json *root);

/* The member of an object; NULL if it has none of that name, or is no object, or is NULL. */
DDP_LIB const ddp__json *ddp__json_get(const ddp__json *object, const char *key);

/* The same, but a member that is missing or of another kind is an error that names file, place,
 * key and kind; *out is untouched then. */
DDP_LIB ddp_status ddp__json_need(const char *name, const ddp__json *object, const char *key,
                                  ddp__json_kind kind, const ddp__json **out, ddp_error *err);

/* Appends s in quotes, escaped; bytes that are no UTF-8 become U+FFFD. NULL gives null. */
DDP_LIB void ddp__json_string(ddp__text *t, const char *s);
/* Appends the shortest of %.15g, %.16g, %.17g that reads back as x; null if x is not finite. */
DDP_LIB void ddp__json_number(ddp__text *t, double x);

#ifdef __cplusplus
}
#endif

#endif /* DDP_IO_JSON_H */
/* ==== end io/json.h ==== */

/* ==== begin io/json.c ==== [io] */

#include <locale.h>

#define DDP__JSON_DEPTH   64
#define DDP__JSON_MEMBERS 4096 /* of one object: each new key is compared with all before it */

typedef struct ddp__json_reader {
    const char *name;
    const char *text, *at, *end;
    ddp__json  *node;  /* next free value */
    char       *chars; /* next free byte for strings */
    int         depth;
    const char *placed; /* line and column are known up to here */
    int         line, column;
    ddp_error  *err;
} ddp__json_reader;

/* ---- places and complaints ---- */

/* Line and column (in bytes) of where, which never lies before the last place asked for. */
static void ddp__json_place(ddp__json_reader *r, const char *where)
{
    for (; r->placed < where; r->placed++) {
        r->column++;
        if (*r->placed != '\n') continue;
        r->line++;
        r->column = 1;
    }
}

/* A complaint is the last thing a reader does; it may look back, so it counts from the start. */
static ddp_status ddp__json_bad(ddp__json_reader *r, const char *where, const char *what)
{
    r->placed = r->text;
    r->line = r->column = 1;
    ddp__json_place(r, where);
    return ddp__fail(r->err, DDP_FORMAT, "%s, line %d, column %d: %s", r->name, r->line, r->column, what);
}

/* ---- strings ---- */

/* Bytes of the UTF-8 character at p: 1 to 4, or 0 if it is none (overlong forms, surrogates and
 * values above U+10FFFF are none). */
static int ddp__utf8_length(const unsigned char *p, size_t left)
{
    uint32_t code;
    int n, k;

    if (p[0] < 0x80) return 1;
    n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || left < (size_t)n) return 0;
    code = p[0] & (0x7fu >> n);
    for (k = 1; k < n; k++) {
        if ((p[k] & 0xc0) != 0x80) return 0;
        code = code << 6 | (p[k] & 0x3fu);
    }
    if ((n == 3 && code < 0x800) || (n == 4 && code < 0x10000)) return 0;
    return code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? 0 : n;
}

static char *ddp__utf8_write(char *out, uint32_t code)
{
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xc0 | code >> 6);
        *out++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *out++ = (char)(0xe0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    } else {
        *out++ = (char)(0xf0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 0x3f));
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    }
    return out;
}

/* The four digits after \u at p into *code; 0 if they are no hexadecimal number. */
static int ddp__json_hex(const char *p, const char *end, uint32_t *code)
{
    int k;

    if (end - p < 4) return 0;
    *code = 0;
    for (k = 0; k < 4; k++) {
        int c = (unsigned char)p[k];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return 0;
        *code = *code << 4 | (uint32_t)digit;
    }
    return 1;
}

/* At a backslash: the character it stands for goes to r->chars. */
static ddp_status ddp__json_escape(ddp__json_reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *start = r->at, *found;
    uint32_t code, low;

    if (r->end - r->at < 2) return ddp__json_bad(r, r->at, "the text ends inside an escape");
    if (r->at[1] != 'u') {
        found = r->at[1] ? strchr(from, r->at[1]) : NULL;
        if (!found)
            return ddp__json_bad(r, r->at, "unknown escape; \\\" \\\\ \\/ \\b \\f \\n \\r \\t and \\u "
                                 "are known");
        *r->chars++ = to[found - from];
        r->at += 2;
        return DDP_OK;
    }
    if (!ddp__json_hex(r->at + 2, r->end, &code))
        return ddp__json_bad(r, start, "\\u needs four hexadecimal digits");
    r->at += 6;
    if (code >= 0xd800 && code < 0xdc00) { /* the first half of a pair */
        if (r->end - r->at < 6 || r->at[0] != '\\' || r->at[1] != 'u' ||
            !ddp__json_hex(r->at + 2, r->end, &low) || low < 0xdc00 || low > 0xdfff)
            return ddp__json_bad(r, start, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        r->at += 6;
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return ddp__json_bad(r, start, "half of a surrogate pair");
    }
    if (code == 0) return ddp__json_bad(r, start, "a string may not hold \\u0000");
    r->chars = ddp__utf8_write(r->chars, code);
    return DDP_OK;
}

/* What a string decodes to is never longer than its source with quotes, less one for the NUL. */
static ddp_status ddp__json_text(ddp__json_reader *r, const char **out)
{
    const char *start = r->at++;
    int n;

    *out = r->chars;
    while (r->at < r->end && *r->at != '"') {
        if (*r->at == '\\') {
            DDP__TRY(ddp__json_escape(r));
            continue;
        }
        if ((unsigned char)*r->at < 0x20)
            return ddp__json_bad(r, r->at, "a control character (a line end?) inside a string; write "
                                 "it as an escape");
        n = ddp__utf8_length((const unsigned char *)r->at, (size_t)(r->end - r->at));
        if (!n) return ddp__json_bad(r, r->at, "a byte that is not UTF-8 inside a string");
        memcpy(r->chars, r->at, (size_t)n);
        r->chars += n;
        r->at += n;
    }
    if (r->at == r->end) return ddp__json_bad(r, start, "a string without its closing quote");
    r->at++;
    *r->chars++ = 0;
    return DDP_OK;
}

/* ---- numbers ---- */

static int ddp__json_digits(ddp__json_reader *r)
{
    const char *start = r->at;

    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    return r->at > start;
}

/* The grammar is checked here; strtod only converts. It expects the decimal point of the
 * program's locale, so that is what it gets. */
static ddp_status ddp__json_digits_to_number(ddp__json_reader *r, double *out)
{
    const char *start = r->at;
    size_t n;
    char text[400], *point;
    int ok;

    if (*r->at == '-') r->at++;
    if (r->at < r->end && *r->at == '0') {
        r->at++;
        ok = !(r->at < r->end && *r->at >= '0' && *r->at <= '9');
    } else {
        ok = ddp__json_digits(r);
    }
    if (ok && r->at < r->end && *r->at == '.') {
        r->at++;
        ok = ddp__json_digits(r);
    }
    if (ok && r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
        ok = ddp__json_digits(r);
    }
    if (!ok) return ddp__json_bad(r, start, "not a JSON number (as 12, -0.5 or 1e9)");
    n = (size_t)(r->at - start);
    if (n >= sizeof text) return ddp__json_bad(r, start, "a number of more than 399 characters");
    memcpy(text, start, n);
    text[n] = 0;
    point = strchr(text, '.');
    if (point) *point = *localeconv()->decimal_point;
    *out = strtod(text, NULL);
    if (!(*out >= -DBL_MAX && *out <= DBL_MAX))
        return ddp__json_bad(r, start, "a number beyond the range of a double");
    return DDP_OK;
}

/* ---- values ---- */

static void ddp__json_blank(ddp__json_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) r->at++;
}

/* Skips blanks and then c, if it is next. */
static int ddp__json_next(ddp__json_reader *r, char c)
{
    ddp__json_blank(r);
    if (r->at == r->end || *r->at != c) return 0;
    r->at++;
    return 1;
}

static ddp_status ddp__json_word(ddp__json_reader *r, ddp__json *v)
{
    static const char *const word[] = {"null", "false", "true"};
    size_t n, left = (size_t)(r->end - r->at);
    int k;

    for (k = 0; k < 3; k++) {
        n = strlen(word[k]);
        if (left < n || memcmp(r->at, word[k], n)) continue;
        v->kind = (ddp__json_kind)k;
        r->at += n;
        return DDP_OK;
    }
    return ddp__json_bad(r, r->at, "a value is needed: object, array, string, number, true, false or null");
}

static ddp_status ddp__json_value(ddp__json_reader *r, ddp__json *v);

/* The name and the colon of a member of object; *key is set. */
static ddp_status ddp__json_key(ddp__json_reader *r, const ddp__json *object, const char **key)
{
    const char *start;
    const ddp__json *other;
    char what[120];

    ddp__json_blank(r);
    start = r->at;
    if (r->at == r->end || *r->at != '"')
        return ddp__json_bad(r, r->at, "a member's name in quotes is needed");
    if (object->count == DDP__JSON_MEMBERS)
        return ddp__json_bad(r, r->at, "an object of more than 4096 members");
    DDP__TRY(ddp__json_text(r, key));
    for (other = object->first; other; other = other->next) {
        if (strcmp(other->key, *key)) continue;
        snprintf(what, sizeof what, "\"%.60s\" is given twice in this object", *key);
        return ddp__json_bad(r, start, what);
    }
    if (!ddp__json_next(r, ':')) return ddp__json_bad(r, r->at, "a colon is needed after a member's name");
    return DDP_OK;
}

/* After the opening bracket, up to and with the closing one. */
static ddp_status ddp__json_children(ddp__json_reader *r, ddp__json *v, char close)
{
    ddp__json **link = &v->first, *child;
    const char *key = NULL;

    if (++r->depth > DDP__JSON_DEPTH)
        return ddp__json_bad(r, r->at, "more than 64 values inside each other");
    if (!ddp__json_next(r, close)) {
        do {
            if (close == '}') DDP__TRY(ddp__json_key(r, v, &key));
            child = r->node++;
            DDP__TRY(ddp__json_value(r, child));
            child->key = key;
            *link = child;
            link = &child->next;
            v->count++;
        } while (ddp__json_next(r, ','));
        if (!ddp__json_next(r, close))
            return ddp__json_bad(r, r->at, close == '}' ? "a comma or } is needed" : "a comma or ] is needed");
    }
    r->depth--;
    return DDP_OK;
}

static ddp_status ddp__json_value(ddp__json_reader *r, ddp__json *v)
{
    ddp__json_blank(r);
    if (r->at == r->end) return ddp__json_bad(r, r->at, "the text ends where a value is needed");
    ddp__json_place(r, r->at);
    v->line = r->line;
    v->column = r->column;
    switch (*r->at) {
    case '{':
        v->kind = DDP__JSON_OBJECT;
        r->at++;
        return ddp__json_children(r, v, '}');
    case '[':
        v->kind = DDP__JSON_ARRAY;
        r->at++;
        return ddp__json_children(r, v, ']');
    case '"':
        v->kind = DDP__JSON_STRING;
        return ddp__json_text(r, &v->string);
    case '-': case '0': case '1': case '2': case '3': case '4':
    case '5': case '6': case '7': case '8': case '9':
        v->kind = DDP__JSON_NUMBER;
        return ddp__json_digits_to_number(r, &v->number);
    default:
        return ddp__json_word(r, v);
    }
}

/* No value but the first stands without a bracket or a comma in front of it. */
static size_t ddp__json_most_values(const char *text, size_t n)
{
    size_t i, most = 1;

    for (i = 0; i < n; i++) most += text[i] == '[' || text[i] == '{' || text[i] == ',';
    return most;
}

ddp__json *ddp__json_parse(const char *name, const char *text, size_t n, ddp_error *err)
{
    size_t most = ddp__json_most_values(text, n);
    ddp__json *root = NULL;
    ddp__json_reader r;

    if (most <= (SIZE_MAX - n - 1) / sizeof *root)
        root = (ddp__json *)ddp__calloc(1, most * sizeof *root + n + 1);
    if (!root) {
        ddp__fail(err, DDP_MEMORY, "%s: out of memory for %zu JSON values", name, most);
        return NULL;
    }
    memset(&r, 0, sizeof r);
    r.name = name;
    r.text = r.at = r.placed = text;
    r.line = r.column = 1;
    r.end = text + n;
    r.node = root + 1;
    r.chars = (char *)(root + most);
    r.err = err;
    if (ddp__json_value(&r, root) == DDP_OK) {
        ddp__json_blank(&r);
        if (r.at == r.end) return root;
        ddp__json_bad(&r, r.at, "something follows the value; one value is all a file may hold");
    }
    DDP_FREE(root);
    return NULL;
}

ddp__json *ddp__json_read(const char *path, ddp_error *err)
{
    ddp__text t;
    ddp__json *root = NULL;

    memset(&t, 0, sizeof t);
    if (ddp__file_read(path, &t, err) == DDP_OK)
        root = ddp__json_parse(path, t.data ? t.data : "", t.size, err);
    ddp__text_free(&t);
    return root;
}

void ddp__json_free(ddp__json *root)
{
    if (root) DDP_FREE(root);
}

/* ---- looking things up ---- */

const ddp__json *ddp__json_get(const ddp__json *object, const char *key)
{
    const ddp__json *v;

    if (!object || object->kind != DDP__JSON_OBJECT) return NULL;
    for (v = object->first; v && strcmp(v->key, key); v = v->next) {}
    return v;
}

ddp_status ddp__json_need(const char *name, const ddp__json *object, const char *key, ddp__json_kind kind,
                          const ddp__json **out, ddp_error *err)
{
    static const char *const kinds[] = {"null",     "false",    "true",     "a number",
                                        "a string", "an array", "an object"};
    const ddp__json *v = ddp__json_get(object, key);

    if (!v)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d, column %d: \"%s\" is missing; it must be %s",
                         name, object->line, object->column, key, kinds[kind]);
    if (v->kind != kind)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d, column %d: \"%s\" is %s; it must be %s",
                         name, v->line, v->column, key, kinds[v->kind], kinds[kind]);
    *out = v;
    return DDP_OK;
}

/* ---- writing ---- */

void ddp__json_string(ddp__text *t, const char *s)
{
    size_t left = s ? strlen(s) : 0;
    int n;

    if (!s) {
        ddp__text_add(t, "null", 4);
        return;
    }
    ddp__text_add(t, "\"", 1);
    while (left) {
        n = ddp__utf8_length((const unsigned char *)s, left);
        if (!n) ddp__text_add(t, "\\ufffd", 6);
        else if (*s == '"' || *s == '\\') ddp__text_addf(t, "\\%c", *s);
        else if ((unsigned char)*s < 0x20) ddp__text_addf(t, "\\u%04x", (unsigned)*s);
        else ddp__text_add(t, s, (size_t)n);
        n = n ? n : 1;
        s += n;
        left -= (size_t)n;
    }
    ddp__text_add(t, "\"", 1);
}

void ddp__json_number(ddp__text *t, double x)
{
    char text[40], *p;
    int digits = 15;

    if (!(x >= -DBL_MAX && x <= DBL_MAX)) {
        ddp__text_add(t, "null", 4);
        return;
    }
    do snprintf(text, sizeof text, "%.*g", digits, x);
    while (strtod(text, NULL) != x && digits++ < 17); /* both in the program's locale */
    for (p = text; *p; p++)
        if (!strchr("0123456789+-e", *p)) *p = '.';
    ddp__text_add(t, text, strlen(text));
}
/* ==== end io/json.c ==== */

/* ==== begin net/wire.h ==== [net] */
/* A wire: non-blocking byte streams from this rank to every peer. Threads and TCP are wires;
 * the engine above speaks frames over either and cannot tell them apart. */
#ifndef DDP_NET_WIRE_H
#define DDP_NET_WIRE_H

typedef struct ddp__wire ddp__wire;

/* All calls but wake come from the comm thread. peer is a rank other than one's own. */
typedef struct ddp__wire_table {
    /* Bytes taken (possibly fewer), 0 = would block, -1 = the peer is gone (errno says why). */
    long (*send)(ddp__wire *w, int peer, const struct iovec *iov, int count);
    long (*recv)(ddp__wire *w, int peer, void *buf, size_t bytes);
    /* Sleeps until a peer has bytes for us, one of those with want_send[peer] set can take some,
     * wake() was called, or ddp_now() >= until (until < 0: no limit). */
    void (*wait)(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv, double until);
    void (*wake)(ddp__wire *w); /* any thread */
    const char *(*peer_name)(ddp__wire *w, int peer); /* "127.0.0.1:40123" or "thread 2" */
    void (*close)(ddp__wire *w);
} ddp__wire_table;

struct ddp__wire {
    const ddp__wire_table *table;
    int    rank, world;
    size_t pair_bytes; /* memory of its own that it takes per peer */
};

#endif /* DDP_NET_WIRE_H */
/* ==== end net/wire.h ==== */

/* ==== begin net/wire_threads.h ==== [net] */
/* The wire between ranks that are threads of one process. */
#ifndef DDP_NET_WIRE_THREADS_H
#define DDP_NET_WIRE_THREADS_H

typedef struct ddp__hub ddp__hub;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp__hub_new - the meeting place of `world` ranks; NULL when memory is short. Each open wire
 * holds a reference, so ddp__hub_free and the wires' close may come in any order, from any
 * thread. Each ordered pair of ranks has a ring of DDP__RING_BYTES, touched only when used.
 * ddp__wire_threads - the end of one rank; a rank can be taken once.
 * ddp__hub_leave - what closing the wire of that rank does, for a rank that never got one: the
 * others see it gone at once.
 * Errors: DDP_ARG if the rank is outside 0..world-1 or taken; DDP_MEMORY. */
DDP_LIB ddp__hub  *ddp__hub_new(int world);
DDP_LIB ddp_status ddp__wire_threads(ddp__hub *hub, int rank, ddp__wire **out, ddp_error *err);
DDP_LIB void       ddp__hub_leave(ddp__hub *hub, int rank);
DDP_LIB void       ddp__hub_free(ddp__hub *hub);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_WIRE_THREADS_H */
/* ==== end net/wire_threads.h ==== */

/* ==== begin net/socket.h ==== [net] */
/* TCP sockets without surprises: addresses, listening, dialling, whole frames with a deadline. */
#ifndef DDP_NET_SOCKET_H
#define DDP_NET_SOCKET_H

#include <sys/socket.h>

#define DDP__ADDR_TEXT 72
#define DDP__DEFAULT_PORT 29500

typedef struct ddp__addr {
    struct sockaddr_storage sa;
    socklen_t size;
} ddp__addr;

#ifdef __cplusplus
extern "C" {
#endif

/* "host:port", "tcp://host:port", "[v6]:port"; a missing port is 29500. Resolves the name (may
 * block in the resolver) into up to room addresses, IPv4 first.
 * Errors: DDP_ARG if the text is malformed, DDP_NET if the name cannot be resolved. */
DDP_LIB ddp_status ddp__addr_parse(const char *spec, ddp__addr *list, int room, int *count,
                                   ddp_error *err);
/* Writes "ip:port" or "[ip]:port" to out[DDP__ADDR_TEXT]; returns out. */
DDP_LIB const char *ddp__addr_text(const ddp__addr *a, char *out);
DDP_LIB int  ddp__addr_port(const ddp__addr *a);
DDP_LIB void ddp__addr_set_port(ddp__addr *a, int port);
DDP_LIB int  ddp__addr_is_loopback(const ddp__addr *a);

/* Non-blocking and closed on exec; 0, or -1 and errno. */
DDP_LIB int ddp__fd_prepare(int fd);
/* A bound, listening socket; *bound (may be NULL) gets the address, with the port chosen. */
DDP_LIB ddp_status ddp__tcp_listen(const ddp__addr *at, int *fd, ddp__addr *bound, ddp_error *err);
/* One attempt to connect, given up at `until`: a non-blocking socket, or -1 and errno. */
DDP_LIB int ddp__tcp_dial(const ddp__addr *to, double until);
/* One waiting connection as a non-blocking socket and the address it comes from (may be NULL); -1
 * and errno, EAGAIN when none waits. */
DDP_LIB int ddp__tcp_accept(int listen_fd, ddp__addr *from);
/* All of the bytes before ddp_now() reaches until: 0, or -1 and errno (ETIMEDOUT; recv at the
 * end of the stream: ECONNRESET). */
DDP_LIB int ddp__tcp_send_all(int fd, const void *buf, size_t bytes, double until);
DDP_LIB int ddp__tcp_recv_all(int fd, void *buf, size_t bytes, double until);
/* poll of one descriptor until then; its revents, 0 when the time is over. */
DDP_LIB int ddp__fd_wait(int fd, int events, double until);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_SOCKET_H */
/* ==== end net/socket.h ==== */

/* ==== begin net/hello.h ==== [net] */
/* The 64 bytes that two ranks exchange before anything else, and the quarrels about them. */
#ifndef DDP_NET_HELLO_H
#define DDP_NET_HELLO_H

#define DDP__PROTOCOL    1
#define DDP__HELLO_BYTES 64

typedef enum ddp__hello_kind {
    DDP__HELLO = 1, /* who I am and where I listen */
    DDP__TABLE,     /* followed by the addresses of all ranks */
    DDP__READY,     /* all my connections stand */
    DDP__GO,        /* everybody's stand */
    DDP__REFUSED
} ddp__hello_kind;

typedef enum ddp__refusal {
    DDP__WELCOME, DDP__REFUSE_VERSION, DDP__REFUSE_RUN, DDP__REFUSE_WORLD, DDP__REFUSE_RANK, DDP__REFUSE_TWICE,
    DDP__REFUSE_LATE, DDP__REFUSE_LOST
} ddp__refusal;

/* One frame, 64 bytes on the wire: magic "dreamddp", then these fields little endian, then zeros.
 * A refusal carries the sender's own run, rank and world, so that both sides can name both. */
typedef struct ddp__hello {
    uint32_t version, kind;
    uint64_t run_id;
    uint32_t rank, world, port, reason;
    uint32_t detail;          /* LATE: ranks that had come; LOST: the rank that went away */
} ddp__hello;

#ifdef __cplusplus
extern "C" {
#endif

/* Little-endian integers of 1 to 8 bytes. */
DDP_LIB void     ddp__hello_put(unsigned char *at, uint64_t v, int bytes);
DDP_LIB uint64_t ddp__hello_get(const unsigned char *at, int bytes);

/* self's version, run, rank, world and port with that kind, reason and detail. */
DDP_LIB void ddp__hello_pack(const ddp__hello *self, ddp__hello_kind kind, ddp__refusal reason,
                             int detail, unsigned char *b);
/* 1 if the first `got` bytes may begin a frame. */
DDP_LIB int ddp__hello_begins(const unsigned char *b, size_t got);
/* 0 if the 64 bytes are not a frame of ours. */
DDP_LIB int ddp__hello_parse(const unsigned char *b, ddp__hello *h);
/* Whether a peer's frame fits ours. */
DDP_LIB ddp__refusal ddp__hello_check(const ddp__hello *self, const ddp__hello *other);
/* The sentence about it, naming both values; `name` is the peer's. */
DDP_LIB void ddp__hello_dispute(const ddp__hello *self, ddp__refusal reason, const ddp__hello *other,
                                const char *name, char *out, size_t room);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_HELLO_H */
/* ==== end net/hello.h ==== */

/* ==== begin net/wire_tcp.h ==== [net] */
/* The wire between processes: one TCP connection per pair of ranks. */
#ifndef DDP_NET_WIRE_TCP_H
#define DDP_NET_WIRE_TCP_H

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a wire of connected sockets.
 *
 *   fds         [world] one per peer, own entry -1; the wire's from success on
 *   sent_before [world] bytes already sent on each by the rendezvous; may be NULL
 *   peer_timeout_s  unacknowledged data older than this breaks the connection (Linux); 0 = system's
 *   congestion  name for TCP_CONGESTION ("reno"), or NULL
 *
 * Errors: DDP_NET if a socket option is refused; DDP_MEMORY. */
DDP_LIB ddp_status ddp__wire_tcp(int rank, int world, const int *fds, const size_t *sent_before,
                                 double peer_timeout_s, const char *congestion,
                                 ddp__wire **out, ddp_error *err);
/* For tests and counters of the kernel: the socket to a peer, and the bytes this rank sent on it
 * before the wire existed (hello, address table), which no engine counts. */
DDP_LIB int    ddp__wire_tcp_fd(ddp__wire *w, int peer);
DDP_LIB size_t ddp__wire_tcp_hello_bytes(ddp__wire *w, int peer);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_WIRE_TCP_H */
/* ==== end net/wire_tcp.h ==== */

/* ==== begin net/rendezvous.h ==== [net] */
/* How the ranks of a run find each other: rank 0 listens, everybody else dials. */
#ifndef DDP_NET_RENDEZVOUS_H
#define DDP_NET_RENDEZVOUS_H

typedef struct ddp__rendezvous {
    int rank, world;
    const char *addr;        /* "host:port" or "tcp://host:port" of rank 0; NULL = 127.0.0.1:29500 */
    int listen_fd;           /* -1, or for rank 0 a bound, listening socket; closed here in any case */
    uint64_t run_id;         /* ranks of unlike runs refuse each other */
    double timeout_s;        /* for the whole meeting; 0 = 30 */
    double peer_timeout_s;   /* given to the wire; 0 = none */
    int insecure;            /* 1: addresses beyond this machine are allowed, although nothing is
                                encrypted or authenticated */
    const char *congestion;  /* TCP_CONGESTION, or NULL */
    ddp_logger log;          /* info: who came; warn: who was refused, who is late after 5 s */
} ddp__rendezvous;

#ifdef __cplusplus
extern "C" {
#endif

/* Connects every pair of ranks and returns when all pairs of all ranks stand.
 *
 * Strangers (port scanners, other programs, ranks of another run) are turned away within 5 s and
 * never end the meeting; at most 2 x world connections may be undecided at a time. Parsing is of
 * fixed size, nothing that arrives decides about an allocation.
 * Errors: DDP_ARG (rank, world, address, an address beyond loopback without insecure), DDP_NET
 * (cannot listen, resolve), DDP_TIMEOUT (ranks did not come, rank 0 not there), DDP_MISMATCH
 * (version, run id, world or rank do not agree: both sides name both values), DDP_PEER_LOST
 * (a rank went away meanwhile), DDP_MEMORY. */
DDP_LIB ddp_status ddp__rendezvous_tcp(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_RENDEZVOUS_H */
/* ==== end net/rendezvous.h ==== */

/* ==== begin net/env.h ==== [net] */
/* What the environment says: which rank this is, and the DREAMDDP_ variables. */
#ifndef DDP_NET_ENV_H
#define DDP_NET_ENV_H

/* Strings are borrowed from the environment, NULL where a variable is unset or empty. */
typedef struct ddp__env {
    const char *launcher;   /* "DREAMDDP_RANK", "torchrun", "Open MPI", "MPICH", "Slurm"; NULL = none */
    int rank, world;        /* 0 and 1 without a launcher */
    int local_rank;         /* among the ranks of this machine */
    char addr[320];         /* host:port of rank 0; "" = unknown */
    uint64_t run_id;        /* 0 = unknown */
    int has_run_id;
    const char *note;       /* NULL, or a sentence for the log about what was concluded */
    const char *log, *net, *strategy, *period, *transport, *peer_timeout, *op_timeout, *connect_timeout,
               *insecure, *threads, *tcp_congestion, *deterministic;
} ddp__env;

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the environment; the first launcher that matches wins: own variables, torchrun, Open MPI,
 * MPICH (PMI), Slurm. DREAMDDP_ADDR and DREAMDDP_RUN_ID override the launcher's.
 * Not while another thread changes the environment.
 * Errors: DDP_ARG for a half-set group (names the missing variable), a malformed number, a
 * rank outside the world, or an unknown DREAMDDP_ variable (names the nearest known one). */
DDP_LIB ddp_status ddp__env_read(ddp__env *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_ENV_H */
/* ==== end net/env.h ==== */

/* ==== begin net/spawn.h ==== [net] */
/* Ranks on this machine: forked processes under a supervisor, or threads. */
#ifndef DDP_NET_SPAWN_H
#define DDP_NET_SPAWN_H

/* One rank's work. A process: rank 0 gets the listening socket (>= 0), which is its to close;
 * all get its address "127.0.0.1:PORT". A thread: -1 and "". Fills *err when not DDP_OK. */
typedef ddp_status (*ddp__rank_fn)(int rank, int listen_fd, const char *addr, void *user, ddp_error *err);

#ifdef __cplusplus
extern "C" {
#endif

/* ddp__spawn - forks world processes, lets each run fn, waits until the last has ended.
 *
 *   cancel   NULL, or looked at several times a second: nonzero ends the ranks by SIGINT, 3 s
 *            later SIGTERM, 2 s later SIGKILL
 *   grace_s  how long the others may go on after one has failed, before SIGTERM and, 2 s
 *            later, SIGKILL; 0 = 15
 *
 * The calling process is supervisor only. No rank outlives it (Linux). Standard streams are
 * flushed before the fork and by each rank. Call it before other threads exist.
 * Returns DDP_OK if all did; DDP_PEER_LOST if a rank was killed by a signal, with rank, process
 * and signal; DDP_ABORTED after cancel; else code and sentence of the rank that failed first.
 * Errors of its own: DDP_ARG, DDP_NET (no socket), DDP_MEMORY, DDP_FAILED (cannot fork). */
DDP_LIB ddp_status ddp__spawn(int world, const volatile int *cancel, double grace_s, ddp__rank_fn fn,
                              void *user, ddp_error *err);

/* ddp__spawn_threads - the same with threads of this process: no signals, no grace; returns when
 * all have. */
DDP_LIB ddp_status ddp__spawn_threads(int world, ddp__rank_fn fn, void *user, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_SPAWN_H */
/* ==== end net/spawn.h ==== */

/* ==== begin net/wire_threads.c ==== [net] */
/* Streams between threads: one lock-free ring per ordered pair, one bell per rank.
 *
 * A rank that wants to sleep arms its bell by an atomic swap and then looks at its rings once
 * more; a peer that moved bytes swaps the bell to 0 and rings only if it was armed. Both are
 * read-modify-writes of one variable, so one of them comes second and sees what the other did:
 * no ring is lost, and nobody spins or takes a lock while bytes flow. */

#define DDP__RING_BYTES ((size_t)128 << 10) /* a power of two */
#define DDP__LINE 64                        /* bytes of a cache line */

typedef struct ddp__ring {
    size_t head;         /* bytes ever written; the sender's */
    char   gap0[DDP__LINE - sizeof(size_t)];
    size_t tail;         /* bytes ever read; the receiver's */
    char   gap1[DDP__LINE - sizeof(size_t)];
    int    ended;        /* the sender has closed */
    int    deaf;         /* the receiver has closed */
    unsigned char *data;
} ddp__ring;

typedef struct ddp__bell {
    int armed;           /* its rank is about to sleep, or asleep */
    int called;          /* wake() came since the last wait */
    int taken;           /* a wire was made for this rank */
    int rung;            /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t  cond;
} ddp__bell;

struct ddp__hub {
    int refs, world;
    int bells_ready;     /* how many have their lock and condition */
    ddp__bell *bells;    /* [world] */
    ddp__ring *rings;    /* [world][world - 1], sender major; nobody sends to himself */
    unsigned char *data; /* all rings */
};

typedef struct ddp__thread_wire {
    ddp__wire base;
    ddp__hub *hub;
    char    (*names)[24];   /* [world] */
    unsigned char *told;    /* [world] bit 0: recv has reported the end, bit 1: send has */
} ddp__thread_wire;

static ddp__ring *ddp__hub_ring(ddp__hub *hub, int from, int to)
{
    return &hub->rings[(size_t)from * (size_t)(hub->world - 1) + (size_t)(to - (to > from))];
}

void ddp__hub_free(ddp__hub *hub)
{
    int r;
    if (!hub || ddp__atomic_add(&hub->refs, -1) > 1) return;
    for (r = 0; r < hub->bells_ready; r++) {
        pthread_mutex_destroy(&hub->bells[r].lock);
        pthread_cond_destroy(&hub->bells[r].cond);
    }
    DDP_FREE(hub->bells);
    DDP_FREE(hub->rings);
    DDP_FREE(hub->data);
    DDP_FREE(hub);
}

ddp__hub *ddp__hub_new(int world)
{
    ddp__hub *hub;
    size_t pairs, i;

    if (world < 1 || world > 4096) return NULL;
    pairs = (size_t)world * (size_t)(world - 1);
    hub = (ddp__hub *)ddp__calloc(1, sizeof *hub);
    if (!hub) return NULL;
    hub->refs = 1;
    hub->world = world;
    hub->bells = (ddp__bell *)ddp__calloc((size_t)world, sizeof *hub->bells);
    hub->rings = (ddp__ring *)ddp__calloc(pairs, sizeof *hub->rings);
    hub->data = (unsigned char *)DDP_REALLOC(NULL, pairs * DDP__RING_BYTES + 1); /* left untouched */
    if (!hub->bells || !hub->rings || !hub->data) {
        ddp__hub_free(hub);
        return NULL;
    }
    for (i = 0; i < pairs; i++) hub->rings[i].data = hub->data + i * DDP__RING_BYTES;
    for (; hub->bells_ready < world; hub->bells_ready++) {
        ddp__bell *b = &hub->bells[hub->bells_ready];
        if (pthread_mutex_init(&b->lock, NULL)) break;
        if (ddp__cond_init(&b->cond)) {
            pthread_mutex_destroy(&b->lock);
            break;
        }
    }
    if (hub->bells_ready < world) {
        ddp__hub_free(hub);
        return NULL;
    }
    return hub;
}

static void ddp__bell_ring(ddp__bell *b)
{
    if (!ddp__atomic_swap(&b->armed, 0)) return;
    pthread_mutex_lock(&b->lock);
    b->rung = 1;
    pthread_cond_signal(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static long ddp__threads_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    ddp__hub *hub = ((ddp__thread_wire *)(void *)w)->hub;
    ddp__ring *ring = ddp__hub_ring(hub, w->rank, peer);
    size_t head = ring->head, room, moved = 0;
    int i;

    if (ddp__atomic_load(&ring->deaf)) {
        ((ddp__thread_wire *)(void *)w)->told[peer] |= 2;
        errno = EPIPE;
        return -1;
    }
    room = DDP__RING_BYTES - (head - ddp__atomic_load(&ring->tail));
    for (i = 0; i < count && room; i++) {
        const unsigned char *from = (const unsigned char *)iov[i].iov_base;
        size_t n = iov[i].iov_len < room ? iov[i].iov_len : room;
        size_t at = head & (DDP__RING_BYTES - 1), first = DDP__RING_BYTES - at;
        if (!n) continue;
        if (first > n) first = n;
        memcpy(ring->data + at, from, first);
        if (n > first) memcpy(ring->data, from + first, n - first);
        head += n;
        moved += n;
        room -= n;
    }
    if (moved) {
        ddp__atomic_store(&ring->head, head);
        ddp__bell_ring(&hub->bells[peer]);
    }
    return (long)moved;
}

static long ddp__threads_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    ddp__hub *hub = ((ddp__thread_wire *)(void *)w)->hub;
    ddp__ring *ring = ddp__hub_ring(hub, peer, w->rank);
    size_t tail = ring->tail, at = tail & (DDP__RING_BYTES - 1), first = DDP__RING_BYTES - at;
    int ended = ddp__atomic_load(&ring->ended); /* before head: what was sent before it counts */
    size_t n = ddp__atomic_load(&ring->head) - tail;

    if (!n && ended) {
        ((ddp__thread_wire *)(void *)w)->told[peer] |= 1;
        errno = ECONNRESET;
        return -1;
    }
    if (n > bytes) n = bytes;
    if (!n) return 0;
    if (first > n) first = n;
    memcpy(buf, ring->data + at, first);
    if (n > first) memcpy((unsigned char *)buf + first, ring->data, n - first);
    ddp__atomic_store(&ring->tail, tail + n);
    ddp__bell_ring(&hub->bells[peer]);
    return (long)n;
}

/* 1 if wait() has something to return for. A sender waits for a quarter of the ring, so that
 * it is not woken for every few bytes; an end is no news once it has been reported. */
static int ddp__threads_ready(ddp__wire *w, const unsigned char *want_send,
                              const unsigned char *want_recv)
{
    ddp__thread_wire *t = (ddp__thread_wire *)(void *)w;
    ddp__hub *hub = t->hub;
    int p;

    if (ddp__atomic_swap(&hub->bells[w->rank].called, 0)) return 1;
    for (p = 0; p < w->world; p++) {
        if (p == w->rank) continue;
        if ((!want_recv || want_recv[p]) && !(t->told[p] & 1)) {
            ddp__ring *in = ddp__hub_ring(hub, p, w->rank);
            if (ddp__atomic_load(&in->head) != in->tail || ddp__atomic_load(&in->ended)) return 1;
        }
        if (want_send && want_send[p] && !(t->told[p] & 2)) {
            ddp__ring *out = ddp__hub_ring(hub, w->rank, p);
            size_t used = out->head - ddp__atomic_load(&out->tail);
            if (used <= DDP__RING_BYTES / 4 * 3 || ddp__atomic_load(&out->deaf)) return 1;
        }
    }
    return 0;
}

static void ddp__threads_wait(ddp__wire *w, const unsigned char *want_send,
                              const unsigned char *want_recv, double until)
{
    ddp__bell *b = &((ddp__thread_wire *)(void *)w)->hub->bells[w->rank];
    int late = 0;

    while (!late) {
        ddp__atomic_swap(&b->armed, 1);
        if (ddp__threads_ready(w, want_send, want_recv)) break;
        pthread_mutex_lock(&b->lock);
        while (!b->rung && !late)
            late = ddp__cond_wait_until(&b->cond, &b->lock, until) == ETIMEDOUT;
        b->rung = 0;
        pthread_mutex_unlock(&b->lock);
    }
    ddp__atomic_swap(&b->armed, 0);
}

static void ddp__threads_wake(ddp__wire *w)
{
    ddp__bell *b = &((ddp__thread_wire *)(void *)w)->hub->bells[w->rank];
    ddp__atomic_store(&b->called, 1);
    ddp__bell_ring(b);
}

static const char *ddp__threads_peer_name(ddp__wire *w, int peer)
{
    return ((ddp__thread_wire *)(void *)w)->names[peer];
}

void ddp__hub_leave(ddp__hub *hub, int rank)
{
    int p;

    for (p = 0; p < hub->world; p++) {
        if (p == rank) continue;
        ddp__atomic_store(&ddp__hub_ring(hub, rank, p)->ended, 1);
        ddp__atomic_store(&ddp__hub_ring(hub, p, rank)->deaf, 1);
        ddp__bell_ring(&hub->bells[p]);
    }
}

static void ddp__threads_close(ddp__wire *w)
{
    ddp__thread_wire *t = (ddp__thread_wire *)(void *)w;

    ddp__hub_leave(t->hub, w->rank);
    ddp__hub_free(t->hub);
    DDP_FREE(t->told);
    DDP_FREE(t->names);
    DDP_FREE(t);
}

static const ddp__wire_table ddp__threads_table = {
    ddp__threads_send, ddp__threads_recv, ddp__threads_wait,
    ddp__threads_wake, ddp__threads_peer_name, ddp__threads_close
};

ddp_status ddp__wire_threads(ddp__hub *hub, int rank, ddp__wire **out, ddp_error *err)
{
    ddp__thread_wire *t;
    int p, taken = 0;

    if (!hub || !out) return ddp__fail(err, DDP_ARG, "a wire between threads needs a hub");
    if (rank < 0 || rank >= hub->world)
        return ddp__fail(err, DDP_ARG, "rank %d is outside 0..%d", rank, hub->world - 1);
    t = (ddp__thread_wire *)ddp__calloc(1, sizeof *t);
    if (t) {
        t->names = (char (*)[24])ddp__calloc((size_t)hub->world, sizeof *t->names);
        t->told = (unsigned char *)ddp__calloc((size_t)hub->world, 1);
    }
    if (!t || !t->names || !t->told || (taken = ddp__atomic_swap(&hub->bells[rank].taken, 1)) != 0) {
        if (t) {
            DDP_FREE(t->told);
            DDP_FREE(t->names);
        }
        DDP_FREE(t);
        if (taken)
            return ddp__fail(err, DDP_ARG, "rank %d is taken: give each thread a rank of its own", rank);
        return ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", rank);
    }
    for (p = 0; p < hub->world; p++) snprintf(t->names[p], sizeof t->names[p], "thread %d", p);
    t->base.table = &ddp__threads_table;
    t->base.rank = rank;
    t->base.world = hub->world;
    t->base.pair_bytes = DDP__RING_BYTES;
    t->hub = hub;
    ddp__atomic_add(&hub->refs, 1);
    *out = &t->base;
    return DDP_OK;
}
/* ==== end net/wire_threads.c ==== */

/* ==== begin net/socket.c ==== [net] */

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#ifdef MSG_NOSIGNAL
#define DDP__NOSIGNAL MSG_NOSIGNAL
#else
#define DDP__NOSIGNAL 0 /* SO_NOSIGPIPE is set instead */
#endif

ddp_status ddp__addr_parse(const char *spec, ddp__addr *list, int room, int *count, ddp_error *err)
{
    char host[256], port[16];
    const char *s = spec, *end, *colon;
    struct addrinfo hints, *found = NULL, *a;
    size_t n;
    long number = DDP__DEFAULT_PORT;
    int why, four;

    *count = 0;
    if (!strncmp(s, "tcp://", 6)) s += 6;
    if (*s == '[' && (end = strchr(s, ']')) != NULL) {
        s++;
        colon = end[1] == ':' ? end + 1 : NULL;
        if (end[1] && !colon) end = s; /* text after the bracket: no host */
    } else {
        colon = strrchr(s, ':');
        end = colon ? colon : s + strlen(s);
    }
    n = (size_t)(end - s);
    if (n == 0 || n >= sizeof host || strchr(s, '/'))
        return ddp__fail(err, DDP_ARG, "address '%.200s' names no host: write HOST:PORT, for example "
                         "127.0.0.1:29500", spec);
    if (colon && (!isdigit((unsigned char)colon[1]) || !ddp__parse_long(colon + 1, &number) ||
                  number < 0 || number > 65535))
        return ddp__fail(err, DDP_ARG, "address '%.200s': the port '%.40s' is not a number from 0 to 65535",
                         spec, colon + 1);
    memcpy(host, s, n);
    host[n] = 0;
    snprintf(port, sizeof port, "%ld", number);
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    why = getaddrinfo(host, port, &hints, &found);
    if (why)
        return ddp__fail(err, DDP_NET, "cannot resolve '%.200s' of address '%.100s': %s", host, spec,
                         gai_strerror(why));
    for (four = 1; four >= 0; four--) { /* "localhost" is 127.0.0.1 for everybody */
        for (a = found; a && *count < room; a = a->ai_next) {
            if ((a->ai_family == AF_INET) != four || a->ai_addrlen > sizeof list[0].sa) continue;
            memset(&list[*count], 0, sizeof list[0]);
            memcpy(&list[*count].sa, a->ai_addr, a->ai_addrlen);
            list[*count].size = a->ai_addrlen;
            ++*count;
        }
    }
    freeaddrinfo(found);
    if (!*count) return ddp__fail(err, DDP_NET, "'%.200s' has no address", host);
    return DDP_OK;
}

const char *ddp__addr_text(const ddp__addr *a, char *out)
{
    char host[48], port[8];

    if (getnameinfo((const struct sockaddr *)&a->sa, a->size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, DDP__ADDR_TEXT, "unknown address");
    else
        snprintf(out, DDP__ADDR_TEXT, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return out;
}

int ddp__addr_port(const ddp__addr *a)
{
    if (a->sa.ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)(const void *)&a->sa)->sin6_port);
    return ntohs(((const struct sockaddr_in *)(const void *)&a->sa)->sin_port);
}

void ddp__addr_set_port(ddp__addr *a, int port)
{
    if (a->sa.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&a->sa)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)&a->sa)->sin_port = htons((uint16_t)port);
}

int ddp__addr_is_loopback(const ddp__addr *a)
{
    if (a->sa.ss_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)&a->sa)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(six)) return six->s6_addr[12] == 127;
        return IN6_IS_ADDR_LOOPBACK(six) ? 1 : 0;
    }
    if (a->sa.ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)&a->sa)->sin_addr.s_addr) >> 24 == 127;
    return 0;
}

int ddp__fd_prepare(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return -1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return -1;
#ifdef SO_NOSIGPIPE
    {
        int on = 1;
        setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on); /* no socket: no harm */
    }
#endif
    return 0;
}

ddp_status ddp__tcp_listen(const ddp__addr *at, int *fd, ddp__addr *bound, ddp_error *err)
{
    char text[DDP__ADDR_TEXT];
    int s = socket(at->sa.ss_family, SOCK_STREAM, 0), on = 1, why;

    if (s >= 0 && ddp__fd_prepare(s) == 0) {
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(s, (const struct sockaddr *)&at->sa, at->size) == 0 && listen(s, 128) == 0) {
            if (bound) {
                memset(bound, 0, sizeof *bound);
                bound->size = sizeof bound->sa;
                getsockname(s, (struct sockaddr *)&bound->sa, &bound->size);
            }
            *fd = s;
            return DDP_OK;
        }
    }
    why = errno;
    if (s >= 0) close(s);
    ddp__addr_text(at, text);
    if (why == EADDRINUSE)
        return ddp__fail(err, DDP_NET, "cannot listen on %s: %s; another run may hold it: choose another "
                         "port with --addr or DREAMDDP_ADDR, or port 0 where one program starts all ranks",
                         text, strerror(why));
    if (why == EADDRNOTAVAIL)
        return ddp__fail(err, DDP_NET, "cannot listen on %s: %s; rank 0 must run on the machine that "
                         "--addr or DREAMDDP_ADDR names", text, strerror(why));
    return ddp__fail(err, DDP_NET, "cannot listen on %s: %s", text, strerror(why));
}

int ddp__fd_wait(int fd, int events, double until)
{
    struct pollfd p;
    int got;

    for (;;) {
        double left = until - ddp_now();
        if (left > 3600) left = 3600;
        p.fd = fd;
        p.events = (short)events;
        p.revents = 0;
        got = poll(&p, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (got > 0) return p.revents;
        if (got < 0 && errno != EINTR) return POLLERR;
        if (ddp_now() >= until) return 0;
    }
}

int ddp__tcp_dial(const ddp__addr *to, double until)
{
    ddp__addr own, peer;
    socklen_t size = sizeof(int);
    int s = socket(to->sa.ss_family, SOCK_STREAM, 0), on = 1, why = 0;

    if (s < 0) return -1;
    if (ddp__fd_prepare(s) < 0) {
        why = errno;
    } else if (connect(s, (const struct sockaddr *)&to->sa, to->size) < 0) {
        /* EINTR: the attempt goes on, as with EINPROGRESS */
        if (errno != EINPROGRESS && errno != EINTR) why = errno;
        else if (!ddp__fd_wait(s, POLLOUT, until)) why = ETIMEDOUT;
        else if (getsockopt(s, SOL_SOCKET, SO_ERROR, &why, &size) < 0) why = errno;
    }
    if (!why) { /* with nobody listening on a port of the ephemeral range, TCP may connect to itself */
        memset(&own, 0, sizeof own);
        memset(&peer, 0, sizeof peer);
        own.size = peer.size = sizeof own.sa;
        if (getsockname(s, (struct sockaddr *)&own.sa, &own.size) < 0 ||
            getpeername(s, (struct sockaddr *)&peer.sa, &peer.size) < 0)
            why = errno;
        else if (own.size == peer.size && !memcmp(&own.sa, &peer.sa, own.size))
            why = ECONNREFUSED;
    }
    if (!why) {
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return s;
    }
    close(s);
    errno = why;
    return -1;
}

int ddp__tcp_accept(int listen_fd, ddp__addr *from)
{
    ddp__addr a;
    int s, on = 1, why;

    memset(&a, 0, sizeof a);
    a.size = sizeof a.sa;
    do s = accept(listen_fd, (struct sockaddr *)&a.sa, &a.size);
    while (s < 0 && errno == EINTR);
    if (s < 0) return -1;
    if (ddp__fd_prepare(s) < 0) {
        why = errno;
        close(s);
        errno = why;
        return -1;
    }
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (from) *from = a;
    return s;
}

int ddp__tcp_send_all(int fd, const void *buf, size_t bytes, double until)
{
    const char *at = (const char *)buf;

    while (bytes) {
        ssize_t n = send(fd, at, bytes, DDP__NOSIGNAL);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!ddp__fd_wait(fd, POLLOUT, until)) {
                errno = ETIMEDOUT;
                return -1;
            }
        } else if (n < 0 && errno != EINTR) {
            return -1;
        }
    }
    return 0;
}

int ddp__tcp_recv_all(int fd, void *buf, size_t bytes, double until)
{
    char *at = (char *)buf;

    while (bytes) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n == 0) {
            errno = ECONNRESET;
            return -1;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!ddp__fd_wait(fd, POLLIN, until)) {
                errno = ETIMEDOUT;
                return -1;
            }
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return 0;
}
/* ==== end net/socket.c ==== */

/* ==== begin net/hello.c ==== [net] */

static const unsigned char ddp__hello_magic[8] = {'d', 'r', 'e', 'a', 'm', 'd', 'd', 'p'};

void ddp__hello_put(unsigned char *at, uint64_t v, int bytes)
{
    int i;
    for (i = 0; i < bytes; i++) at[i] = (unsigned char)(v >> (8 * i) & 255);
}

uint64_t ddp__hello_get(const unsigned char *at, int bytes)
{
    uint64_t v = 0;
    int i;
    for (i = 0; i < bytes; i++) v |= (uint64_t)at[i] << (8 * i);
    return v;
}

void ddp__hello_pack(const ddp__hello *self, ddp__hello_kind kind, ddp__refusal reason, int detail,
                     unsigned char *b)
{
    memset(b, 0, DDP__HELLO_BYTES);
    memcpy(b, ddp__hello_magic, sizeof ddp__hello_magic);
    ddp__hello_put(b + 8, self->version, 4);
    ddp__hello_put(b + 12, (uint64_t)kind, 4);
    ddp__hello_put(b + 16, self->run_id, 8);
    ddp__hello_put(b + 24, self->rank, 4);
    ddp__hello_put(b + 28, self->world, 4);
    ddp__hello_put(b + 32, self->port, 4);
    ddp__hello_put(b + 36, (uint64_t)reason, 4);
    ddp__hello_put(b + 40, (uint64_t)detail, 4);
}

int ddp__hello_begins(const unsigned char *b, size_t got)
{
    return !memcmp(b, ddp__hello_magic, got < sizeof ddp__hello_magic ? got : sizeof ddp__hello_magic);
}

int ddp__hello_parse(const unsigned char *b, ddp__hello *h)
{
    if (!ddp__hello_begins(b, DDP__HELLO_BYTES)) return 0;
    h->version = (uint32_t)ddp__hello_get(b + 8, 4);
    h->kind = (uint32_t)ddp__hello_get(b + 12, 4);
    h->run_id = ddp__hello_get(b + 16, 8);
    h->rank = (uint32_t)ddp__hello_get(b + 24, 4);
    h->world = (uint32_t)ddp__hello_get(b + 28, 4);
    h->port = (uint32_t)ddp__hello_get(b + 32, 4);
    h->reason = (uint32_t)ddp__hello_get(b + 36, 4);
    h->detail = (uint32_t)ddp__hello_get(b + 40, 4);
    return 1;
}

ddp__refusal ddp__hello_check(const ddp__hello *self, const ddp__hello *other)
{
    if (other->version != self->version) return DDP__REFUSE_VERSION;
    if (other->run_id != self->run_id) return DDP__REFUSE_RUN;
    if (other->world != self->world) return DDP__REFUSE_WORLD;
    if (other->rank >= self->world || other->rank == self->rank) return DDP__REFUSE_RANK;
    return DDP__WELCOME;
}

void ddp__hello_dispute(const ddp__hello *self, ddp__refusal reason, const ddp__hello *other,
                        const char *name, char *out, size_t room)
{
    unsigned mine = (unsigned)self->rank;

    switch (reason) {
    case DDP__REFUSE_VERSION:
        snprintf(out, room, "%s speaks protocol version %u, rank %u version %u: build all ranks from "
                 "one version of dreamddp", name, (unsigned)other->version, mine, (unsigned)self->version);
        break;
    case DDP__REFUSE_RUN:
        snprintf(out, room, "%s belongs to run %" PRIu64 ", rank %u to run %" PRIu64 ": another run uses "
                 "this port, or DREAMDDP_RUN_ID differs", name, other->run_id, mine, self->run_id);
        break;
    case DDP__REFUSE_WORLD:
        snprintf(out, room, "%s counts %u ranks, rank %u counts %u: give all the same world size", name,
                 (unsigned)other->world, mine, (unsigned)self->world);
        break;
    case DDP__REFUSE_TWICE:
        snprintf(out, room, "%s calls itself rank %u, but a rank %u is already here: give each process a "
                 "rank of its own", name, (unsigned)other->rank, (unsigned)other->rank);
        break;
    default:
        snprintf(out, room, "%s calls itself rank %u of %u, which rank %u does not expect", name,
                 (unsigned)other->rank, (unsigned)other->world, mine);
    }
}
/* ==== end net/hello.c ==== */

/* ==== begin net/wire_tcp.c ==== [net] */

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#define DDP__UNSENT_BYTES (128 << 10) /* what may wait in the kernel in front of a control frame */

typedef struct ddp__tcp_peer {
    int    fd;               /* -1: own rank */
    int    told;             /* bit 0: recv has reported the end, bit 1: send has */
    size_t sent_before;
    char   name[DDP__ADDR_TEXT];
} ddp__tcp_peer;

typedef struct ddp__tcp_wire {
    ddp__wire base;
    ddp__tcp_peer *peers;    /* [world] */
    struct pollfd *polls;    /* [world + 1], the last for the bell */
    int bell[2];             /* a pipe: wake() writes, wait() drains */
    int called;              /* a byte is in the pipe or about to be */
} ddp__tcp_wire;

static long ddp__tcp_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    ddp__tcp_peer *p = &((ddp__tcp_wire *)(void *)w)->peers[peer];
    struct msghdr m;
    ssize_t n;

    memset(&m, 0, sizeof m);
    memcpy(&m.msg_iov, &iov, sizeof iov); /* sendmsg does not write to it */
    m.msg_iovlen = count > 1024 ? 1024 : (unsigned)count; /* IOV_MAX of Linux and macOS */
    do {
#ifdef MSG_NOSIGNAL
        n = sendmsg(p->fd, &m, MSG_NOSIGNAL);
#else
        n = sendmsg(p->fd, &m, 0);
#endif
    } while (n < 0 && errno == EINTR);
    if (n >= 0) return (long)n;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    p->told |= 2;
    return -1;
}

static long ddp__tcp_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    ddp__tcp_peer *p = &((ddp__tcp_wire *)(void *)w)->peers[peer];
    ssize_t n;

    if (!bytes) return 0;
    do n = recv(p->fd, buf, bytes, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) return (long)n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (n == 0) errno = ECONNRESET; /* it closed, in order or not: no more bytes will come */
    p->told |= 1;
    return -1;
}

static void ddp__tcp_wait(ddp__wire *w, const unsigned char *want_send,
                          const unsigned char *want_recv, double until)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    int i, got;

    for (i = 0; i < w->world; i++) {
        int events = 0, told = t->peers[i].told;
        if ((!want_recv || want_recv[i]) && !(told & 1)) events |= POLLIN;
        if (want_send && want_send[i] && !(told & 2)) events |= POLLOUT;
        t->polls[i].fd = events ? t->peers[i].fd : -1; /* else a hang-up would keep us awake */
        t->polls[i].events = (short)events;
        t->polls[i].revents = 0;
    }
    t->polls[w->world].revents = 0;
    for (;;) {
        double left = until < 0 ? -1 : until - ddp_now();
        if (until >= 0 && left < 0) left = 0;
        if (left > 3600) left = 3600;
#ifdef __linux__
        {
            struct timespec ts;
            ts.tv_sec = (time_t)(left < 0 ? 0 : left);
            ts.tv_nsec = left < 0 ? 0 : (long)((left - (double)ts.tv_sec) * 1e9);
            got = ppoll(t->polls, (nfds_t)w->world + 1, left < 0 ? NULL : &ts, NULL);
        }
#else
        got = poll(t->polls, (nfds_t)w->world + 1, left < 0 ? -1 : (int)(left * 1000) + (left > 0));
#endif
        if (got > 0 || (got < 0 && errno != EINTR) || (until >= 0 && ddp_now() >= until)) break;
    }
    if (t->polls[w->world].revents) {
        char sink[16];
        while (read(t->bell[0], sink, sizeof sink) > 0) {}
        /* after the drain: a wake() that finds the flag still set came before we return */
        ddp__atomic_swap(&t->called, 0);
    }
}

static void ddp__tcp_wake(ddp__wire *w)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    ssize_t n;

    if (ddp__atomic_swap(&t->called, 1)) return;
    do n = write(t->bell[1], "", 1);
    while (n < 0 && errno == EINTR);
}

static const char *ddp__tcp_peer_name(ddp__wire *w, int peer)
{
    return ((ddp__tcp_wire *)(void *)w)->peers[peer].name;
}

static void ddp__tcp_free(ddp__tcp_wire *t)
{
    if (t->bell[0] >= 0) close(t->bell[0]);
    if (t->bell[1] >= 0) close(t->bell[1]);
    DDP_FREE(t->polls);
    DDP_FREE(t->peers);
    DDP_FREE(t);
}

static void ddp__tcp_close(ddp__wire *w)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    char sink[4096];
    int i, k;

    for (i = 0; i < w->world; i++) {
        if (t->peers[i].fd < 0) continue;
        /* closing over unread bytes would send a reset, which may overtake our last words */
        shutdown(t->peers[i].fd, SHUT_WR);
        for (k = 0; k < 256 && recv(t->peers[i].fd, sink, sizeof sink, 0) > 0; k++) {}
        close(t->peers[i].fd);
    }
    ddp__tcp_free(t);
}

static const ddp__wire_table ddp__tcp_table = {
    ddp__tcp_send, ddp__tcp_recv, ddp__tcp_wait, ddp__tcp_wake, ddp__tcp_peer_name, ddp__tcp_close
};

/* Nodelay on both ends: without it on one, each small answer waits 40 ms for a delayed ACK. */
static ddp_status ddp__tcp_tune(int fd, double peer_timeout_s, const char *congestion, ddp_error *err)
{
    int on = 1;

    if (ddp__fd_prepare(fd) < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        return ddp__fail(err, DDP_NET, "cannot set TCP_NODELAY: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_NOTSENT_LOWAT
    {
        int low = DDP__UNSENT_BYTES;
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low);
    }
#endif
#ifdef TCP_USER_TIMEOUT
    if (peer_timeout_s > 0) {
        unsigned ms = peer_timeout_s < 1e6 ? (unsigned)(peer_timeout_s * 1000) + 1 : 1000000000u;
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    }
#else
    (void)peer_timeout_s;
#endif
    if (congestion && *congestion) {
#ifdef TCP_CONGESTION
        if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) < 0)
            return ddp__fail(err, DDP_NET, "cannot set the congestion control '%.32s': %s; allowed are those "
                             "in /proc/sys/net/ipv4/tcp_allowed_congestion_control", congestion, strerror(errno));
#else
        return ddp__fail(err, DDP_UNSUPPORTED, "this system cannot choose the congestion control '%.32s': "
                         "unset DREAMDDP_TCP_CONGESTION", congestion);
#endif
    }
    return DDP_OK;
}

ddp_status ddp__wire_tcp(int rank, int world, const int *fds, const size_t *sent_before,
                         double peer_timeout_s, const char *congestion,
                         ddp__wire **out, ddp_error *err)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)ddp__calloc(1, sizeof *t);
    ddp_status bad = DDP_OK;
    int i;

    if (!t) return ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", rank);
    t->base.table = &ddp__tcp_table;
    t->base.rank = rank;
    t->base.world = world;
    t->bell[0] = t->bell[1] = -1;
    t->peers = (ddp__tcp_peer *)ddp__calloc((size_t)world, sizeof *t->peers);
    t->polls = (struct pollfd *)ddp__calloc((size_t)world + 1, sizeof *t->polls);
    if (!t->peers || !t->polls) {
        bad = ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", rank);
    } else if (pipe(t->bell) < 0) {
        t->bell[0] = t->bell[1] = -1;
        bad = ddp__fail(err, DDP_NET, "cannot make a pipe: %s", strerror(errno));
    } else if (ddp__fd_prepare(t->bell[0]) < 0 || ddp__fd_prepare(t->bell[1]) < 0) {
        bad = ddp__fail(err, DDP_NET, "cannot prepare a pipe: %s", strerror(errno));
    }
    for (i = 0; i < world && !bad; i++) {
        ddp__tcp_peer *p = &t->peers[i];
        ddp__addr a;
        p->fd = i == rank ? -1 : fds[i];
        if (i == rank) continue;
        p->sent_before = sent_before ? sent_before[i] : 0;
        memset(&a, 0, sizeof a);
        a.size = sizeof a.sa;
        if (getpeername(p->fd, (struct sockaddr *)&a.sa, &a.size) < 0)
            bad = ddp__fail(err, DDP_NET, "the connection to rank %d broke: %s", i, strerror(errno));
        else
            bad = ddp__tcp_tune(p->fd, peer_timeout_s, congestion, err);
        ddp__addr_text(&a, p->name);
    }
    if (bad) {
        ddp__tcp_free(t);
        return bad;
    }
    t->polls[world].fd = t->bell[0];
    t->polls[world].events = POLLIN;
    *out = &t->base;
    return DDP_OK;
}

int ddp__wire_tcp_fd(ddp__wire *w, int peer)
{
    return ((ddp__tcp_wire *)(void *)w)->peers[peer].fd;
}

size_t ddp__wire_tcp_hello_bytes(ddp__wire *w, int peer)
{
    return ((ddp__tcp_wire *)(void *)w)->peers[peer].sent_before;
}
/* ==== end net/wire_tcp.c ==== */

/* ==== begin net/rendezvous.c ==== [net] */
/* The meeting, in the order of the wire:
 *   worker -> rank 0   hello (who I am, where I listen)   rank 0 answers with its own, or refuses
 *   rank 0 -> workers  table of addresses, once all are there
 *   worker -> lower    hello for each pair without rank 0; the lower rank answers
 *   worker -> rank 0   ready;  rank 0 -> workers  go
 * Every frame is 64 bytes, little endian; only the table is followed by 24 bytes per rank. */

#include <netinet/in.h>
#include <poll.h>

#define DDP__ENTRY_BYTES  24
#define DDP__HELLO_LIMIT  5.0 /* seconds that a stranger may stay silent */
#define DDP__MESH_LIMIT  10.0 /* seconds for the rest once all have met rank 0 */
#define DDP__ADDRESSES    8

/* One connection that has not said who it is. */
typedef struct ddp__guest {
    int fd;                   /* -1: free */
    double until;
    size_t got;
    unsigned char bytes[DDP__HELLO_BYTES];
    ddp__addr from;
} ddp__guest;

typedef struct ddp__meeting {
    const ddp__rendezvous *r;
    double begin, until, next_note;
    char addr[DDP__ADDR_TEXT]; /* of rank 0 */
    char root[DDP__ADDR_TEXT + 16]; /* "rank 0 at ..." */
    int listen_fd;             /* own */
    ddp__hello self;           /* what this rank says of itself, its port included */
    int guests;                /* 2 x world */
    ddp__guest *guest;         /* [guests] */
    struct pollfd *polls;      /* [guests + 2]: guests, own listener, rank 0 */
    int *fd;                   /* [world] */
    size_t *sent;              /* [world] */
    ddp__addr *where;          /* [world] where a rank listens */
    unsigned char *table;      /* frame and entries */
    char refused[200];         /* the last refusal, for the final sentence */
} ddp__meeting;

/* The text of the ranks above m->r->rank that are missing: "ranks 2, 3 of 4"; how many. */
static int ddp__missing(const ddp__meeting *m, char *out, size_t room)
{
    char list[96];
    size_t n = 0;
    int p, missing = 0, shown = 0;

    list[0] = 0;
    for (p = m->r->rank + 1; p < m->r->world; p++) {
        if (m->fd[p] >= 0) continue;
        missing++;
        if (n + 24 > sizeof list) continue;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%d", shown ? ", " : "", p);
        shown++;
    }
    if (missing > shown) snprintf(list + n, sizeof list - n, " and %d more", missing - shown);
    snprintf(out, room, "rank%s %s of %d", missing == 1 ? "" : "s", list, m->r->world);
    return missing;
}

static int ddp__frame_send(ddp__meeting *m, int peer, const unsigned char *b, size_t n)
{
    double grace = ddp_now() + 1; /* a frame that is due may be sent even when time has just run out */
    m->sent[peer] += n;
    return ddp__tcp_send_all(m->fd[peer], b, n, m->until > grace ? m->until : grace);
}

/* The next frame of a peer, which must be of that kind. `name` says who it is. */
static ddp_status ddp__frame_recv(ddp__meeting *m, int peer, uint32_t kind, const char *name,
                                  ddp_error *err)
{
    const ddp__rendezvous *r = m->r;
    unsigned char b[DDP__HELLO_BYTES];
    char text[256];
    ddp__hello h;
    ddp__refusal why;

    while (m->next_note < m->until && !ddp__fd_wait(m->fd[peer], POLLIN, m->next_note)) {
        ddp__log(&r->log, DDP_LOG_WARN, "rank %d has waited %.0f s for %s%s", r->rank,
                 ddp_now() - m->begin, name, kind == DDP__TABLE ? ", which waits for other ranks" : "");
        m->next_note += 5;
    }
    if (ddp__tcp_recv_all(m->fd[peer], b, sizeof b, m->until) < 0) {
        int broken = errno;
        if (broken != ETIMEDOUT)
            return ddp__fail(err, DDP_PEER_LOST, "%s went away while the ranks met: %s", name, strerror(broken));
        return ddp__fail(err, DDP_TIMEOUT, kind == DDP__TABLE ? "after %.3g s %s still waits for other ranks" :
                         "after %.3g s %s is connected but has not answered: another program may own that "
                         "address", m->until - m->begin, name);
    }
    if (!ddp__hello_parse(b, &h))
        return ddp__fail(err, DDP_NET, "%s does not answer as a rank of dreamddp: another program owns that "
                         "address, choose another with --addr or DREAMDDP_ADDR", name);
    why = ddp__hello_check(&m->self, &h);
    if (!why && h.kind != DDP__REFUSED && (h.rank != (uint32_t)peer || h.kind != kind)) why = DDP__REFUSE_RANK;
    if (h.kind == DDP__REFUSED && !why) {
        if (h.reason == DDP__REFUSE_LATE)
            return ddp__fail(err, DDP_TIMEOUT, "%s gave up: only %u of %d ranks had connected in its time", name,
                             (unsigned)h.detail, r->world);
        if (h.reason == DDP__REFUSE_LOST)
            return ddp__fail(err, DDP_PEER_LOST, "rank %u went away while the ranks met", (unsigned)h.detail);
        if (h.reason == DDP__REFUSE_TWICE)
            return ddp__fail(err, DDP_MISMATCH, "%s already has a rank %d: give each process a rank of its own",
                             name, r->rank);
        return ddp__fail(err, DDP_MISMATCH, "%s does not expect rank %d of %d", name, r->rank, r->world);
    }
    if (why) {
        ddp__hello_dispute(&m->self, why, &h, name, text, sizeof text);
        return ddp__fail(err, DDP_MISMATCH, "%s", text);
    }
    return DDP_OK;
}

/* 1 if the connection has ended under us. */
static int ddp__fd_gone(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* A guest has said its 64 bytes: it becomes a peer, or is refused. */
static void ddp__guest_decide(ddp__meeting *m, ddp__guest *g)
{
    unsigned char b[DDP__HELLO_BYTES];
    char name[DDP__ADDR_TEXT];
    ddp__hello h;
    ddp__refusal why;

    ddp__addr_text(&g->from, name);
    if (!ddp__hello_parse(g->bytes, &h)) return;
    why = ddp__hello_check(&m->self, &h);
    if (!why && (h.kind != DDP__HELLO || h.rank < (uint32_t)m->r->rank)) why = DDP__REFUSE_RANK;
    if (!why && m->fd[h.rank] >= 0) {
        if (ddp__fd_gone(m->fd[h.rank])) { /* a rank that was started anew */
            close(m->fd[h.rank]);
            m->fd[h.rank] = -1;
            m->sent[h.rank] = 0;
        } else {
            why = DDP__REFUSE_TWICE;
        }
    }
    ddp__hello_pack(&m->self, why ? DDP__REFUSED : DDP__HELLO, why, 0, b);
    if (why) {
        ddp__hello_dispute(&m->self, why, &h, name, m->refused, sizeof m->refused);
        ddp__log(&m->r->log, DDP_LOG_WARN, "refused: %s", m->refused);
        ddp__tcp_send_all(g->fd, b, sizeof b, ddp_now()); /* its buffer is empty */
        shutdown(g->fd, SHUT_WR);
        return;
    }
    m->fd[h.rank] = g->fd;
    m->sent[h.rank] = 0;
    m->where[h.rank] = g->from;
    ddp__addr_set_port(&m->where[h.rank], (int)(h.port & 65535));
    g->fd = -1; /* handed over */
    if (ddp__frame_send(m, (int)h.rank, b, sizeof b) < 0) {
        close(m->fd[h.rank]);
        m->fd[h.rank] = -1;
    } else {
        ddp__log(&m->r->log, DDP_LOG_INFO, "rank %u is here, from %s", (unsigned)h.rank, name);
    }
}

/* Reads what a guest says; drops it at the first byte that is not ours. */
static void ddp__guest_listen(ddp__meeting *m, ddp__guest *g)
{
    ssize_t n = recv(g->fd, g->bytes + g->got, sizeof g->bytes - g->got, 0);

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n > 0) {
        g->got += (size_t)n;
        if (ddp__hello_begins(g->bytes, g->got)) {
            if (g->got < sizeof g->bytes) return;
            ddp__guest_decide(m, g);
        }
    }
    if (g->fd >= 0) close(g->fd);
    g->fd = -1;
}

/* Polls once: takes in new guests while there is room for them, listens to the others. */
static ddp_status ddp__gather_once(ddp__meeting *m, ddp_error *err)
{
    double now = ddp_now(), next = m->until < m->next_note ? m->until : m->next_note;
    int i, room = 0, got;

    for (i = 0; i < m->guests; i++) {
        ddp__guest *g = &m->guest[i];
        if (g->fd >= 0 && now >= g->until) {
            char name[DDP__ADDR_TEXT];
            ddp__log(&m->r->log, DDP_LOG_INFO, "dropped %s: it said nothing that we know",
                     ddp__addr_text(&g->from, name));
            close(g->fd);
            g->fd = -1;
        }
        m->polls[i].fd = g->fd;
        m->polls[i].events = POLLIN;
        m->polls[i].revents = 0;
        if (g->fd < 0) room++;
        else if (g->until < next) next = g->until;
    }
    m->polls[m->guests].fd = room ? m->listen_fd : -1;
    m->polls[m->guests].events = POLLIN;
    m->polls[m->guests].revents = 0;
    m->polls[m->guests + 1].fd = m->r->rank ? m->fd[0] : -1; /* has it called the meeting off? */
    m->polls[m->guests + 1].events = POLLIN;
    m->polls[m->guests + 1].revents = 0;
    got = poll(m->polls, (nfds_t)m->guests + 2, next > now ? (int)((next - now) * 1000) + 1 : 0);
    if (got <= 0) return DDP_OK;
    for (i = 0; i < m->guests; i++)
        if (m->polls[i].fd >= 0 && m->polls[i].revents) ddp__guest_listen(m, &m->guest[i]);
    if (m->polls[m->guests + 1].revents) DDP__TRY(ddp__frame_recv(m, 0, DDP__GO, m->root, err));
    if (!m->polls[m->guests].revents) return DDP_OK;
    for (i = 0; i < m->guests; i++) {
        ddp__guest *g = &m->guest[i];
        if (g->fd >= 0) continue;
        g->fd = ddp__tcp_accept(m->listen_fd, &g->from);
        if (g->fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ||
                errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
                return ddp__fail(err, DDP_NET, "cannot accept a connection: %s", strerror(errno));
            break;
        }
        g->got = 0;
        g->until = now + DDP__HELLO_LIMIT;
    }
    return DDP_OK;
}

/* Accepts all ranks above this one. */
static ddp_status ddp__gather(ddp__meeting *m, ddp_error *err)
{
    char text[128];
    int i, missing;

    while ((missing = ddp__missing(m, text, sizeof text)) > 0) {
        double now = ddp_now();
        if (now >= m->until)
            return ddp__fail(err, DDP_TIMEOUT, "after %.3g s %s %s not connected to %s%s%s", m->until - m->begin,
                             text, missing == 1 ? "has" : "have", m->r->rank ? "this rank" : m->addr,
                             m->refused[0] ? "; last refused: " : "", m->refused);
        if (now >= m->next_note) {
            ddp__log(&m->r->log, DDP_LOG_WARN, "rank %d has waited %.0f s for %s", m->r->rank,
                     now - m->begin, text);
            m->next_note += 5;
        }
        DDP__TRY(ddp__gather_once(m, err));
    }
    for (i = 0; i < m->guests; i++) {
        if (m->guest[i].fd >= 0) close(m->guest[i].fd);
        m->guest[i].fd = -1;
    }
    return DDP_OK;
}

/* Opens the door for higher ranks on the address from which rank 0 is reached. */
static ddp_status ddp__listen_beside(ddp__meeting *m, int fd, ddp_error *err)
{
    ddp__addr own;

    memset(&own, 0, sizeof own);
    own.size = sizeof own.sa;
    if (getsockname(fd, (struct sockaddr *)&own.sa, &own.size) < 0)
        return ddp__fail(err, DDP_NET, "cannot tell the own address: %s", strerror(errno));
    ddp__addr_set_port(&own, 0);
    DDP__TRY(ddp__tcp_listen(&own, &m->listen_fd, &own, err));
    m->self.port = (uint32_t)ddp__addr_port(&own);
    return DDP_OK;
}

/* Dials one of the addresses of a peer until it answers our hello or time is over. */
static ddp_status ddp__dial(ddp__meeting *m, int peer, const ddp__addr *list, int count, ddp_error *err)
{
    unsigned char b[DDP__HELLO_BYTES];
    char name[DDP__ADDR_TEXT + 24], text[DDP__ADDR_TEXT];
    double pause = 0.02;
    int i = 0, why = 0;

    snprintf(name, sizeof name, "rank %d at %s", peer, ddp__addr_text(&list[0], text));
    for (;;) {
        double now = ddp_now();
        int fd;
        if (now >= m->until)
            return ddp__fail(err, DDP_TIMEOUT, "%s did not answer within %.3g s: %s; is it running, and is the "
                             "address right?", name, m->until - m->begin, strerror(why));
        if (now >= m->next_note) {
            ddp__log(&m->r->log, DDP_LOG_WARN, "rank %d has waited %.0f s for %s: %s", m->r->rank,
                     now - m->begin, name, strerror(why));
            m->next_note += 5;
        }
        fd = ddp__tcp_dial(&list[i], m->until < now + 3 ? m->until : now + 3);
        if (fd >= 0) {
            ddp_status bad;
            m->fd[peer] = fd;
            m->sent[peer] = 0;
            snprintf(name, sizeof name, "rank %d at %s", peer, ddp__addr_text(&list[i], text));
            if (m->listen_fd < 0) DDP__TRY(ddp__listen_beside(m, fd, err));
            ddp__hello_pack(&m->self, DDP__HELLO, DDP__WELCOME, 0, b);
            bad = DDP_PEER_LOST;
            if (ddp__frame_send(m, peer, b, sizeof b) == 0)
                bad = ddp__frame_recv(m, peer, DDP__HELLO, name, err);
            if (bad != DDP_PEER_LOST) return bad;
            why = ECONNRESET; /* an earlier run that is just ending, or a full house: try again */
            close(fd);
            m->fd[peer] = -1;
        } else {
            why = errno;
        }
        i = (i + 1) % count;
        if (i) continue;
        now = ddp_now() + pause;
        if (now > m->until) now = m->until;
        if (peer == 0) ddp__sleep_until(now);
        else if (ddp__fd_wait(m->fd[0], POLLIN, now)) DDP__TRY(ddp__frame_recv(m, 0, DDP__GO, m->root, err));
        if (pause < 0.3) pause *= 1.5;
    }
}

/* Rank 0 writes where everybody listens; the others read it and dial those below them. */
static void ddp__table_pack(const ddp__meeting *m, unsigned char *b)
{
    int p;

    ddp__hello_pack(&m->self, DDP__TABLE, DDP__WELCOME, 0, b);
    for (p = 1; p < m->r->world; p++) {
        unsigned char *e = b + DDP__HELLO_BYTES + (size_t)p * DDP__ENTRY_BYTES;
        const ddp__addr *a = &m->where[p];
        ddp__hello_put(e + 2, (uint64_t)ddp__addr_port(a), 2);
        if (a->sa.ss_family == AF_INET6) {
            ddp__hello_put(e, 6, 2);
            memcpy(e + 8, &((const struct sockaddr_in6 *)(const void *)&a->sa)->sin6_addr, 16);
        } else {
            ddp__hello_put(e, 4, 2);
            memcpy(e + 8, &((const struct sockaddr_in *)(const void *)&a->sa)->sin_addr, 4);
        }
    }
}

static int ddp__entry_parse(const unsigned char *e, ddp__addr *a)
{
    uint64_t family = ddp__hello_get(e, 2);

    memset(a, 0, sizeof *a);
    if (family == 6) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)&a->sa;
        six->sin6_family = AF_INET6;
        memcpy(&six->sin6_addr, e + 8, 16);
        a->size = sizeof *six;
    } else if (family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)(void *)&a->sa;
        in->sin_family = AF_INET;
        memcpy(&in->sin_addr, e + 8, 4);
        a->size = sizeof *in;
    } else {
        return 0;
    }
    ddp__addr_set_port(a, (int)ddp__hello_get(e + 2, 2));
    return 1;
}

static ddp_status ddp__meet_as_worker(ddp__meeting *m, const ddp__addr *list, int count, ddp_error *err)
{
    unsigned char b[DDP__HELLO_BYTES];
    const char *name = m->root;
    ddp__addr a;
    int p;

    DDP__TRY(ddp__dial(m, 0, list, count, err));
    DDP__TRY(ddp__frame_recv(m, 0, DDP__TABLE, name, err));
    if (ddp__tcp_recv_all(m->fd[0], m->table, (size_t)m->r->world * DDP__ENTRY_BYTES, m->until) < 0)
        return ddp__fail(err, DDP_PEER_LOST, "%s went away while the ranks met: %s", name, strerror(errno));
    m->until = ddp_now() + DDP__MESH_LIMIT;
    for (p = 1; p < m->r->rank; p++) {
        if (!ddp__entry_parse(m->table + (size_t)p * DDP__ENTRY_BYTES, &a))
            return ddp__fail(err, DDP_NET, "%s sent no usable address of rank %d", name, p);
        DDP__TRY(ddp__dial(m, p, &a, 1, err));
    }
    DDP__TRY(ddp__gather(m, err));
    ddp__hello_pack(&m->self, DDP__READY, DDP__WELCOME, 0, b);
    if (ddp__frame_send(m, 0, b, sizeof b) < 0)
        return ddp__fail(err, DDP_PEER_LOST, "%s went away while the ranks met: %s", name, strerror(errno));
    return ddp__frame_recv(m, 0, DDP__GO, name, err);
}

/* Tells those who came why there will be no run. */
static void ddp__call_off(ddp__meeting *m, ddp__refusal reason, int detail)
{
    unsigned char b[DDP__HELLO_BYTES];
    int p;

    ddp__hello_pack(&m->self, DDP__REFUSED, reason, detail, b);
    for (p = 1; p < m->r->world; p++)
        if (m->fd[p] >= 0) ddp__tcp_send_all(m->fd[p], b, sizeof b, ddp_now());
}

static ddp_status ddp__meet_as_root(ddp__meeting *m, ddp_error *err)
{
    unsigned char b[DDP__HELLO_BYTES];
    char text[128], name[32];
    ddp_status bad = ddp__gather(m, err);
    int p, world = m->r->world;

    if (bad) {
        ddp__call_off(m, DDP__REFUSE_LATE, world - ddp__missing(m, text, sizeof text));
        return bad;
    }
    m->until = ddp_now() + DDP__MESH_LIMIT;
    ddp__table_pack(m, m->table);
    for (p = 1; p < world; p++) /* one that fails here is found when it is not ready */
        ddp__frame_send(m, p, m->table, DDP__HELLO_BYTES + (size_t)world * DDP__ENTRY_BYTES);
    for (p = 1; p < world; p++) {
        snprintf(name, sizeof name, "rank %d", p);
        bad = ddp__frame_recv(m, p, DDP__READY, name, err);
        if (bad) {
            ddp__call_off(m, DDP__REFUSE_LOST, p);
            return bad;
        }
    }
    ddp__hello_pack(&m->self, DDP__GO, DDP__WELCOME, 0, b);
    for (p = 1; p < world; p++)
        if (ddp__frame_send(m, p, b, sizeof b) < 0)
            return ddp__fail(err, DDP_PEER_LOST, "rank %d went away while the ranks met: %s", p, strerror(errno));
    return DDP_OK;
}

/* Checks the address, listens (rank 0), and goes through the meeting. */
static ddp_status ddp__meet(ddp__meeting *m, ddp_error *err)
{
    const ddp__rendezvous *r = m->r;
    ddp__addr list[DDP__ADDRESSES];
    int count = 0, i;

    if (m->listen_fd >= 0) {
        memset(&list[0], 0, sizeof list[0]);
        list[0].size = sizeof list[0].sa;
        if (ddp__fd_prepare(m->listen_fd) < 0 ||
            getsockname(m->listen_fd, (struct sockaddr *)&list[0].sa, &list[0].size) < 0)
            return ddp__fail(err, DDP_ARG, "descriptor %d is no listening socket: %s", m->listen_fd, strerror(errno));
        count = 1;
    } else {
        DDP__TRY(ddp__addr_parse(r->addr ? r->addr : "127.0.0.1", list, DDP__ADDRESSES, &count, err));
        if (ddp__addr_port(&list[0]) == 0)
            return ddp__fail(err, DDP_ARG, "address '%.100s': port 0 leaves the other ranks without an address: "
                             "name a port, for example %d", r->addr, DDP__DEFAULT_PORT);
    }
    ddp__addr_text(&list[0], m->addr);
    snprintf(m->root, sizeof m->root, "rank 0 at %s", m->addr);
    for (i = 0; i < count && !r->insecure; i++) {
        char text[DDP__ADDR_TEXT];
        if (!ddp__addr_is_loopback(&list[i]))
            return ddp__fail(err, DDP_ARG, "%s lies beyond this machine, and the connections are neither encrypted "
                             "nor authenticated: use --insecure or DREAMDDP_INSECURE=1 if the network can be "
                             "trusted, else a tunnel to 127.0.0.1", ddp__addr_text(&list[i], text));
    }
    if (r->rank) return ddp__meet_as_worker(m, list, count, err);
    if (m->listen_fd < 0) DDP__TRY(ddp__tcp_listen(&list[0], &m->listen_fd, NULL, err));
    m->self.port = (uint32_t)ddp__addr_port(&list[0]);
    return ddp__meet_as_root(m, err);
}

ddp_status ddp__rendezvous_tcp(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err)
{
    ddp__meeting m;
    ddp_status bad;
    size_t world;
    int i;

    memset(&m, 0, sizeof m);
    m.r = r;
    m.listen_fd = r->rank == 0 ? r->listen_fd : -1;
    if (r->world < 1 || r->world > 4096 || r->rank < 0 || r->rank >= r->world) {
        if (m.listen_fd >= 0) close(m.listen_fd);
        return ddp__fail(err, DDP_ARG, "rank %d of %d ranks: ranks count from 0, and 1 to 4096 of them can meet",
                         r->rank, r->world);
    }
    world = (size_t)r->world;
    m.self.version = DDP__PROTOCOL;
    m.self.run_id = r->run_id;
    m.self.rank = (uint32_t)r->rank;
    m.self.world = (uint32_t)r->world;
    m.begin = ddp_now();
    m.until = m.begin + (r->timeout_s > 0 ? r->timeout_s : 30);
    m.next_note = m.begin + 5;
    m.guests = 2 * r->world;
    m.guest = (ddp__guest *)ddp__calloc((size_t)m.guests, sizeof *m.guest);
    m.polls = (struct pollfd *)ddp__calloc((size_t)m.guests + 2, sizeof *m.polls);
    m.fd = (int *)ddp__calloc(world, sizeof *m.fd);
    m.sent = (size_t *)ddp__calloc(world, sizeof *m.sent);
    m.where = (ddp__addr *)ddp__calloc(world, sizeof *m.where);
    m.table = (unsigned char *)ddp__calloc(DDP__HELLO_BYTES + world * DDP__ENTRY_BYTES, 1);
    for (i = 0; m.guest && i < m.guests; i++) m.guest[i].fd = -1;
    for (i = 0; m.fd && i < r->world; i++) m.fd[i] = -1;
    if (!m.guest || !m.polls || !m.fd || !m.sent || !m.where || !m.table)
        bad = ddp__fail(err, DDP_MEMORY, "out of memory for the meeting of %d ranks", r->world);
    else
        bad = r->world == 1 ? DDP_OK : ddp__meet(&m, err);
    if (!bad) bad = ddp__wire_tcp(r->rank, r->world, m.fd, m.sent, r->peer_timeout_s, r->congestion, out, err);
    for (i = 0; bad && m.fd && i < r->world; i++)
        if (m.fd[i] >= 0) close(m.fd[i]);
    for (i = 0; m.guest && i < m.guests; i++)
        if (m.guest[i].fd >= 0) close(m.guest[i].fd);
    if (m.listen_fd >= 0) close(m.listen_fd);
    DDP_FREE(m.guest);
    DDP_FREE(m.polls);
    DDP_FREE(m.fd);
    DDP_FREE(m.sent);
    DDP_FREE(m.where);
    DDP_FREE(m.table);
    return bad;
}
/* ==== end net/rendezvous.c ==== */

/* ==== begin net/env.c ==== [net] */

#ifdef __APPLE__
#include <crt_externs.h>
#define DDP__ENVIRON (*_NSGetEnviron())
#else
#define DDP__ENVIRON environ
#endif

static const char *const ddp__env_known[] = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "ADDR", "RUN_ID", "LOG", "NET", "STRATEGY", "PERIOD", "TRANSPORT",
    "PEER_TIMEOUT", "OP_TIMEOUT", "CONNECT_TIMEOUT", "INSECURE", "THREADS", "TCP_CONGESTION",
    "DETERMINISTIC", NULL
};

/* A launcher's variables; NULL where it has none. */
typedef struct ddp__launcher {
    const char *name, *rank, *world, *local_rank, *local_world;
} ddp__launcher;

static const ddp__launcher ddp__launchers[] = {
    {"DREAMDDP_RANK", "DREAMDDP_RANK", "DREAMDDP_WORLD_SIZE", "DREAMDDP_LOCAL_RANK", NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL}
};
enum { DDP__LAUNCHED_OWN, DDP__LAUNCHED_TORCH, DDP__LAUNCHED_OMPI, DDP__LAUNCHED_MPICH, DDP__LAUNCHED_SLURM,
       DDP__LAUNCHERS };

/* An empty variable counts as unset. */
static const char *ddp__env_get(const char *name)
{
    const char *v = name ? getenv(name) : NULL;
    return v && *v ? v : NULL;
}

static ddp_status ddp__env_int(const char *name, int least, int most, int *out, ddp_error *err)
{
    const char *text = ddp__env_get(name);
    long v;

    if (!text) return DDP_OK;
    if (!ddp__parse_long(text, &v) || v < least || v > most)
        return ddp__fail(err, DDP_ARG, "%s='%.60s' is not a whole number from %d to %d", name, text, least, most);
    *out = (int)v;
    return DDP_OK;
}

/* Levenshtein distance of two short words. */
static int ddp__word_distance(const char *a, size_t an, const char *b)
{
    int row[32], bn = (int)strlen(b), i, j;

    if (an > 40 || bn > 30) return 99;
    for (j = 0; j <= bn; j++) row[j] = j;
    for (i = 1; i <= (int)an; i++) {
        int corner = row[0];
        row[0] = i;
        for (j = 1; j <= bn; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[bn];
}

/* A mistyped variable would otherwise be ignored in silence. */
static ddp_status ddp__env_check_names(ddp_error *err)
{
    char **e;

    for (e = DDP__ENVIRON; e && *e; e++) {
        const char *name = *e + 9, *end = strchr(*e, '=');
        int i, nearest = 0, least = 100;
        size_t n;
        if (strncmp(*e, "DREAMDDP_", 9) || !end) continue;
        n = (size_t)(end - name);
        for (i = 0; ddp__env_known[i] && least; i++) {
            int d = ddp__word_distance(name, n, ddp__env_known[i]);
            if (d >= least) continue;
            least = d;
            nearest = i;
        }
        if (least)
            return ddp__fail(err, DDP_ARG, "unknown environment variable DREAMDDP_%.*s: did you mean DREAMDDP_%s?",
                             n > 60 ? 60 : (int)n, name, ddp__env_known[nearest]);
    }
    return DDP_OK;
}

/* The first host of "node[01-03,07],gpu5" is node01; 0 if the text is not of that form. */
static int ddp__first_host(const char *list, char *out, size_t room)
{
    size_t head = strcspn(list, "[,"), digits = 0;
    const char *rest = list + head;

    if (*rest == '[') digits = strcspn(rest + 1, "-,]");
    if (head + digits == 0 || head + digits >= room) return 0;
    memcpy(out, list, head);
    if (digits) memcpy(out + head, rest + 1, digits);
    out[head + digits] = 0;
    return 1;
}

static ddp_status ddp__torch_addr(ddp__env *env, ddp_error *err)
{
    const char *host = ddp__env_get("MASTER_ADDR"), *store = ddp__env_get("TORCHELASTIC_USE_AGENT_STORE");
    int port = 0;

    if (!host || !ddp__env_get("MASTER_PORT"))
        return ddp__fail(err, DDP_ARG, "RANK and WORLD_SIZE are set but %s is not: set it, or DREAMDDP_ADDR=HOST:PORT",
                         host ? "MASTER_PORT" : "MASTER_ADDR");
    DDP__TRY(ddp__env_int("MASTER_PORT", 1, 65534, &port, err));
    if (store && !strcmp(store, "True")) {
        port++; /* torchrun's agent itself listens on MASTER_PORT */
        env->note = "torchrun's agent holds MASTER_PORT: the ranks meet at MASTER_PORT + 1";
    }
    snprintf(env->addr, sizeof env->addr, strchr(host, ':') ? "[%.280s]:%d" : "%.280s:%d", host, port);
    return DDP_OK;
}

/* Where rank 0 is, as far as the launcher says. */
static ddp_status ddp__launcher_addr(ddp__env *env, int which, ddp_error *err)
{
    char host[256];
    const char *list = ddp__env_get("SLURM_STEP_NODELIST"), *ip = ddp__env_get("SLURM_LAUNCH_NODE_IPADDR");
    int local = 0, nodes = 0;

    if (which == DDP__LAUNCHED_TORCH) return env->world > 1 ? ddp__torch_addr(env, err) : DDP_OK;
    if (which == DDP__LAUNCHED_SLURM) {
        DDP__TRY(ddp__env_int("SLURM_STEP_NUM_NODES", 1, INT_MAX, &nodes, err));
        if (nodes == 1) snprintf(env->addr, sizeof env->addr, "127.0.0.1:29500");
        else if (list && ddp__first_host(list, host, sizeof host))
            snprintf(env->addr, sizeof env->addr, "%s:29500", host);
        else if (ip) snprintf(env->addr, sizeof env->addr, "%.280s:29500", ip);
        return DDP_OK;
    }
    DDP__TRY(ddp__env_int(ddp__launchers[which].local_world, 1, INT_MAX, &local, err));
    if (which == DDP__LAUNCHED_OWN || local == env->world)
        snprintf(env->addr, sizeof env->addr, "127.0.0.1:29500");
    return DDP_OK;
}

/* Takes rank and world from the first launcher of which something is set. */
static ddp_status ddp__env_launcher(ddp__env *env, int *which, ddp_error *err)
{
    int i;

    for (i = 0; i < DDP__LAUNCHERS; i++) {
        const ddp__launcher *l = &ddp__launchers[i];
        const char *world = l->world;
        /* inside sbatch, without srun, every process would be rank 0 */
        if (i == DDP__LAUNCHED_SLURM) {
            if (!ddp__env_get("SLURM_STEP_ID") || !ddp__env_get(l->rank)) {
                int tasks = 1;
                DDP__TRY(ddp__env_int(world, 1, INT_MAX, &tasks, err));
                if (tasks > 1 && ddp__env_get("SLURM_JOB_ID"))
                    env->note = "this Slurm job has several tasks, but this process was started by the batch script, "
                                "not by srun: it trains alone; start it with srun";
                continue;
            }
            if (ddp__env_get("SLURM_STEP_NUM_TASKS")) world = "SLURM_STEP_NUM_TASKS";
        }
        if (!ddp__env_get(l->rank) && !ddp__env_get(world)) continue;
        if (!ddp__env_get(l->rank) || !ddp__env_get(world))
            return ddp__fail(err, DDP_ARG, "%s is set but %s is not: set both or neither",
                             ddp__env_get(l->rank) ? l->rank : world, ddp__env_get(l->rank) ? world : l->rank);
        DDP__TRY(ddp__env_int(world, 1, 4096, &env->world, err));
        DDP__TRY(ddp__env_int(l->rank, 0, env->world - 1, &env->rank, err));
        env->local_rank = env->rank;
        DDP__TRY(ddp__env_int(l->local_rank, 0, 4095, &env->local_rank, err));
        env->launcher = l->name;
        *which = i;
        return DDP_OK;
    }
    return DDP_OK;
}

/* A number stands for itself, any other text for its hash. */
static void ddp__env_run_id(ddp__env *env, const char *text)
{
    size_t n;

    if (!text) return;
    n = strlen(text);
    env->has_run_id = 1;
    if (n < 20 && strspn(text, "0123456789") == n) env->run_id = strtoull(text, NULL, 10);
    else env->run_id = ddp__hash(DDP__HASH_START, text, n);
}

ddp_status ddp__env_read(ddp__env *out, ddp_error *err)
{
    ddp__env env;
    const char *addr = ddp__env_get("DREAMDDP_ADDR"), *id = ddp__env_get("DREAMDDP_RUN_ID");
    int which = -1;

    memset(&env, 0, sizeof env);
    env.world = 1;
    DDP__TRY(ddp__env_check_names(err));
    DDP__TRY(ddp__env_launcher(&env, &which, err));
    if (addr) {
        if (strlen(addr) >= sizeof env.addr)
            return ddp__fail(err, DDP_ARG, "DREAMDDP_ADDR='%.60s...' is too long: write HOST:PORT", addr);
        snprintf(env.addr, sizeof env.addr, "%s", addr);
    } else if (which >= 0) {
        DDP__TRY(ddp__launcher_addr(&env, which, err));
    }
    if (!id && which == DDP__LAUNCHED_TORCH) id = ddp__env_get("TORCHELASTIC_RUN_ID");
    if (!id && which == DDP__LAUNCHED_SLURM) id = ddp__env_get("SLURM_JOB_ID");
    ddp__env_run_id(&env, id);
    env.log = ddp__env_get("DREAMDDP_LOG");
    env.net = ddp__env_get("DREAMDDP_NET");
    env.strategy = ddp__env_get("DREAMDDP_STRATEGY");
    env.period = ddp__env_get("DREAMDDP_PERIOD");
    env.transport = ddp__env_get("DREAMDDP_TRANSPORT");
    env.peer_timeout = ddp__env_get("DREAMDDP_PEER_TIMEOUT");
    env.op_timeout = ddp__env_get("DREAMDDP_OP_TIMEOUT");
    env.connect_timeout = ddp__env_get("DREAMDDP_CONNECT_TIMEOUT");
    env.insecure = ddp__env_get("DREAMDDP_INSECURE");
    env.threads = ddp__env_get("DREAMDDP_THREADS");
    env.tcp_congestion = ddp__env_get("DREAMDDP_TCP_CONGESTION");
    env.deterministic = ddp__env_get("DREAMDDP_DETERMINISTIC");
    *out = env;
    return DDP_OK;
}
/* ==== end net/env.c ==== */

/* ==== begin net/spawn.c ==== [net] */

#include <signal.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define DDP__MAX_LOCAL 1024
#ifdef MAP_ANONYMOUS
#define DDP__MAP_ANON MAP_ANONYMOUS
#else
#define DDP__MAP_ANON MAP_ANON
#endif

/* What a rank leaves behind in memory shared with the supervisor. */
typedef struct ddp__verdict {
    int order;     /* 1 for the first that failed, 0 while there is nothing */
    ddp_error err;
} ddp__verdict;

typedef struct ddp__family {
    int world, alive;
    int    *failures;          /* shared: how many have failed */
    ddp__verdict *verdict;     /* shared: [world] */
    size_t  shared_bytes;
    void   *shared;
    pid_t  *pid;               /* [world], 0 = ended */
    int     killed, killed_by; /* first rank killed by a signal that we did not send, -1 */
    long    killed_pid;
    int     odd, odd_code;     /* first rank that ended with a code but no verdict, -1 */
    long    odd_pid;
    int     rung;              /* next step of the ladder below, -1 = all is well */
    double  rung_at;           /* when it is due */
    int     sent;              /* a signal was sent to all */
} ddp__family;

/* Signals of increasing force and the seconds that each is given. */
typedef struct ddp__rung {
    int signal;
    double wait_s;
} ddp__rung;
static const ddp__rung ddp__ladder[] = {{SIGINT, 3}, {SIGTERM, 2}, {SIGKILL, 1}};
enum { DDP__RUNG_CANCEL = 0, DDP__RUNG_FAILED = 1, DDP__RUNG_LAST = 2 };

/* The life of a forked rank. */
static void ddp__rank_run(ddp__family *f, int rank, pid_t parent, int fd, const char *addr, ddp__rank_fn fn,
                          void *user)
{
    ddp_error e;
    ddp_status s;

#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(DDP_ABORTED); /* it died before the line above */
#else
    (void)parent;
#endif
    if (rank != 0) close(fd);
    memset(&e, 0, sizeof e);
    s = fn(rank, rank == 0 ? fd : -1, addr, user, &e);
    if (s != DDP_OK) {
        ddp__verdict *v = &f->verdict[rank];
        if (!e.msg[0]) snprintf(e.msg, sizeof e.msg, "%s", ddp_status_text(s));
        e.code = s;
        v->err = e;
        ddp__atomic_store(&v->order, 1 + ddp__atomic_add(f->failures, 1));
    }
    fflush(NULL);
    _exit((int)s);
}

static void ddp__family_signal(ddp__family *f, int signal_number)
{
    int r;
    for (r = 0; r < f->world; r++)
        if (f->pid[r] > 0) kill(f->pid[r], signal_number);
}

/* Notes how a rank ended. */
static void ddp__rank_ended(ddp__family *f, int rank, int code, double grace_s)
{
    int bad = 0;
    if (WIFSIGNALED(code)) {
        bad = 1;
        if (f->killed < 0 && !f->sent) {
            f->killed = rank;
            f->killed_by = WTERMSIG(code);
            f->killed_pid = (long)f->pid[rank];
        }
    } else if (WEXITSTATUS(code)) {
        bad = 1;
        if (f->odd < 0 && !f->sent && !ddp__atomic_load(&f->verdict[rank].order)) {
            f->odd = rank;
            f->odd_code = WEXITSTATUS(code);
            f->odd_pid = (long)f->pid[rank];
        }
    }
    f->pid[rank] = 0;
    f->alive--;
    if (bad && f->rung < 0) {
        f->rung = DDP__RUNG_FAILED;
        f->rung_at = ddp_now() + grace_s;
    }
}

/* Waits for all, urging those that do not end. 1 if it was cancelled. */
static int ddp__family_watch(ddp__family *f, const volatile int *cancel, double grace_s)
{
    double pause = 0.001;
    int cancelled = 0, r, code;

    while (f->alive) {
        for (r = 0; r < f->world; r++) {
            pid_t got = f->pid[r] > 0 ? waitpid(f->pid[r], &code, WNOHANG) : 0;
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) code = 0; /* reaped behind our back (SIGCHLD ignored): its verdict must do */
            if (got) ddp__rank_ended(f, r, code, grace_s);
        }
        if (cancel && !cancelled && ddp__atomic_load(cancel)) {
            cancelled = 1;
            f->rung = DDP__RUNG_CANCEL;
            f->rung_at = ddp_now();
        }
        if (f->alive && f->rung >= 0 && ddp_now() >= f->rung_at) {
            f->sent = 1;
            ddp__family_signal(f, ddp__ladder[f->rung].signal);
            f->rung_at = ddp_now() + ddp__ladder[f->rung].wait_s;
            if (f->rung < DDP__RUNG_LAST) f->rung++;
        }
        if (!f->alive) break;
        ddp__sleep_until(ddp_now() + pause);
        if (pause < 0.03) pause *= 1.5;
    }
    return cancelled;
}

static ddp_status ddp__family_result(const ddp__family *f, int cancelled, ddp_error *err)
{
    int r, first = -1, order, least = INT_MAX;

    for (r = 0; r < f->world; r++) {
        order = ddp__atomic_load(&f->verdict[r].order);
        if (!order || order >= least) continue;
        least = order;
        first = r;
    }
    if (f->killed >= 0)
        return ddp__fail(err, DDP_PEER_LOST, "rank %d (process %ld) was killed by signal %d%s%s%.250s", f->killed,
                         f->killed_pid, f->killed_by, f->killed_by == SIGKILL ? " (out of memory?)" : "",
                         first >= 0 ? "; " : "", first >= 0 ? f->verdict[first].err.msg : "");
    if (cancelled && (first >= 0 || f->odd >= 0 || f->sent))
        return ddp__fail(err, DDP_ABORTED, "stopped by request");
    if (first >= 0)
        return ddp__fail(err, f->verdict[first].err.code, "rank %d: %.380s", first, f->verdict[first].err.msg);
    if (f->odd >= 0)
        return ddp__fail(err, DDP_FAILED, "rank %d (process %ld) ended by exit(%d)", f->odd, f->odd_pid, f->odd_code);
    return DDP_OK;
}

/* Forks all ranks; on failure ends those that were. */
static ddp_status ddp__family_fork(ddp__family *f, int fd, const char *addr, ddp__rank_fn fn, void *user,
                                   ddp_error *err)
{
    pid_t self = getpid();
    int r, why, code;

    fflush(NULL);
    for (r = 0; r < f->world; r++) {
        f->pid[r] = fork();
        if (f->pid[r] == 0) ddp__rank_run(f, r, self, fd, addr, fn, user);
        if (f->pid[r] < 0) break;
        f->alive++;
    }
    if (r == f->world) return DDP_OK;
    why = errno;
    f->world = r;
    ddp__family_signal(f, SIGKILL);
    while (r-- > 0)
        while (waitpid(f->pid[r], &code, 0) < 0 && errno == EINTR) {}
    return ddp__fail(err, DDP_FAILED, "cannot fork rank %d: %s", f->world, strerror(why));
}

ddp_status ddp__spawn(int world, const volatile int *cancel, double grace_s, ddp__rank_fn fn, void *user,
                      ddp_error *err)
{
    ddp__family f;
    ddp__addr at;
    char addr[DDP__ADDR_TEXT];
    ddp_status bad;
    int fd = -1, count = 0;

    if (world < 1 || world > DDP__MAX_LOCAL)
        return ddp__fail(err, DDP_ARG, "%d ranks on one machine: 1 to %d are possible", world, DDP__MAX_LOCAL);
    memset(&f, 0, sizeof f);
    f.world = world;
    f.killed = f.odd = f.rung = -1;
    DDP__TRY(ddp__addr_parse("127.0.0.1:0", &at, 1, &count, err));
    DDP__TRY(ddp__tcp_listen(&at, &fd, &at, err));
    ddp__addr_text(&at, addr);
    f.shared_bytes = sizeof(ddp__verdict) * ((size_t)world + 1);
    f.shared = mmap(NULL, f.shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | DDP__MAP_ANON, -1, 0);
    f.pid = (pid_t *)ddp__calloc((size_t)world, sizeof *f.pid);
    if (f.shared == MAP_FAILED || !f.pid) {
        bad = ddp__fail(err, DDP_MEMORY, "out of memory for %d ranks", world);
    } else {
        f.verdict = (ddp__verdict *)f.shared;
        f.failures = &f.verdict[world].order;
        bad = ddp__family_fork(&f, fd, addr, fn, user, err);
    }
    close(fd);
    if (!bad) {
        int cancelled = ddp__family_watch(&f, cancel, grace_s > 0 ? grace_s : 15);
        bad = ddp__family_result(&f, cancelled, err);
    }
    if (f.shared != MAP_FAILED) munmap(f.shared, f.shared_bytes);
    DDP_FREE(f.pid);
    return bad;
}

/* ---- threads ---- */

typedef struct ddp__team {
    pthread_mutex_t lock;
    pthread_cond_t  gate;
    int open;                /* 1: go, -1: not all could be started */
    ddp__rank_fn fn;
    void *user;
    ddp_error first;
} ddp__team;

typedef struct ddp__member {
    ddp__team *team;
    int rank;
    pthread_t thread;
} ddp__member;

static void *ddp__member_run(void *arg)
{
    ddp__member *m = (ddp__member *)arg;
    ddp__team *t = m->team;
    ddp_error e;
    ddp_status s;
    int open;

    pthread_mutex_lock(&t->lock);
    while (!t->open) pthread_cond_wait(&t->gate, &t->lock);
    open = t->open;
    pthread_mutex_unlock(&t->lock);
    if (open < 0) return NULL;
    memset(&e, 0, sizeof e);
    s = t->fn(m->rank, -1, "", t->user, &e);
    if (s == DDP_OK) return NULL;
    pthread_mutex_lock(&t->lock);
    if (t->first.code == DDP_OK)
        ddp__fail(&t->first, s, "rank %d: %.380s", m->rank, e.msg[0] ? e.msg : ddp_status_text(s));
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

ddp_status ddp__spawn_threads(int world, ddp__rank_fn fn, void *user, ddp_error *err)
{
    ddp__team t;
    ddp__member *m;
    int started, why = 0, r;

    if (world < 1 || world > DDP__MAX_LOCAL)
        return ddp__fail(err, DDP_ARG, "%d ranks on one machine: 1 to %d are possible", world, DDP__MAX_LOCAL);
    memset(&t, 0, sizeof t);
    t.fn = fn;
    t.user = user;
    m = (ddp__member *)ddp__calloc((size_t)world, sizeof *m);
    if (!m) return ddp__fail(err, DDP_MEMORY, "out of memory for %d ranks", world);
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.gate, NULL);
    for (started = 0; started < world; started++) {
        m[started].team = &t;
        m[started].rank = started;
        why = pthread_create(&m[started].thread, NULL, ddp__member_run, &m[started]);
        if (why) break;
    }
    pthread_mutex_lock(&t.lock);
    t.open = why ? -1 : 1;
    pthread_cond_broadcast(&t.gate);
    pthread_mutex_unlock(&t.lock);
    for (r = 0; r < started; r++) pthread_join(m[r].thread, NULL);
    pthread_cond_destroy(&t.gate);
    pthread_mutex_destroy(&t.lock);
    DDP_FREE(m);
    if (why) return ddp__fail(err, DDP_FAILED, "cannot start a thread for rank %d: %s", started, strerror(why));
    if (t.first.code != DDP_OK) return ddp__fail(err, t.first.code, "%s", t.first.msg);
    return DDP_OK;
}
/* ==== end net/spawn.c ==== */

/* ==== begin net/netspec.c ==== [net] */

typedef struct ddp__rate_unit {
    const char *name;
    double value;
} ddp__rate_unit;

static const ddp__rate_unit ddp__rate_units[] = {
    {"bit", 1 / 8.0}, {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}, {NULL, 0}
};
static const ddp__rate_unit ddp__delay_units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}};

/* A number of digits and at most one point, then a unit; 1 if text[0..n) is just that. */
static int ddp__quantity(const char *text, size_t n, const ddp__rate_unit *units, double *out)
{
    char number[40];
    size_t i = 0;
    double v;

    while (i < n && (isdigit((unsigned char)text[i]) || text[i] == '.')) i++;
    if (i == 0 || i >= sizeof number) return 0;
    memcpy(number, text, i);
    number[i] = 0;
    if (!ddp__parse_double(number, &v)) return 0;
    for (; units->name; units++) {
        if (strlen(units->name) != n - i || strncmp(units->name, text + i, n - i)) continue;
        *out = v * units->value;
        return 1;
    }
    return 0;
}

ddp_status ddp_net_parse(const char *spec, double *bytes_per_s, double *delay_s, ddp_error *err)
{
    const char *comma, *late;
    double rate = 0, delay = 0;
    size_t n;

    if (!spec || !bytes_per_s || !delay_s)
        return ddp__fail(err, DDP_ARG, "ddp_net_parse: a NULL argument");
    comma = strchr(spec, ',');
    n = comma ? (size_t)(comma - spec) : strlen(spec);
    if (!(n == 1 && *spec == '0') && !(n == 4 && !strncmp(spec, "none", 4)) &&
        (!ddp__quantity(spec, n, ddp__rate_units, &rate) || rate < 1)) {
        if (strchr(spec, '/') || (n > 5 && !strncmp(spec + n - 5, ".json", 5)))
            return ddp__fail(err, DDP_ARG, "network '%.100s' looks like a file: one worker's link is given as "
                             "RATE,DELAY, for example 100mbit,20ms", spec);
        return ddp__fail(err, DDP_ARG, "network '%.100s': the rate '%.*s' is not a number of at least 8 bit/s "
                         "with bit, kbit, mbit or gbit; for example 100mbit,20ms, or none",
                         spec, n > 60 ? 60 : (int)n, spec);
    }
    if (comma) {
        late = comma + 1;
        if (!ddp__quantity(late, strlen(late), ddp__delay_units, &delay) || delay > 3600)
            return ddp__fail(err, DDP_ARG, "network '%.100s': the delay '%.60s' is not a number up to an hour "
                             "with us, ms or s; for example 100mbit,20ms", spec, late);
    }
    *bytes_per_s = rate;
    *delay_s = delay;
    return DDP_OK;
}
/* ==== end net/netspec.c ==== */

/* ==== begin net/frame.h ==== [net] */
/* The 32 bytes in front of everything that crosses a wire. */
#ifndef DDP_NET_FRAME_H
#define DDP_NET_FRAME_H

#define DDP__FRAME_BYTES 32

typedef enum ddp__frame_type {
    DDP__FRAME_PART = 1,  /* all-reduce: own values for the owner of a segment; needs a credit */
    DDP__FRAME_DATA,      /* broadcast, all-gather, send: needs a credit */
    DDP__FRAME_SUM,       /* ring all-reduce: partial sum for the next rank; needs a credit */
    DDP__FRAME_RESULT,    /* all-reduce: finished values; the receiver certainly waits for them */
    DDP__FRAME_CREDIT,    /* offset = staging slots that operation seq gives back */
    DDP__FRAME_HEARTBEAT,
    DDP__FRAME_ABORT,     /* payload = sentence, count = status, offset = rank that failed first */
    DDP__FRAME_GOODBYE,   /* nothing but farewells will follow */
    DDP__FRAME_FAREWELL   /* answer to goodbye: everything before it was read */
} ddp__frame_type;

/* verb, count and layer describe the sender's operation, for the mismatch check. */
typedef struct ddp__frame {
    int      type;
    int      p2p;    /* seq counts send/recv of this pair instead of collectives */
    int      verb;
    uint32_t seq;
    uint32_t count;  /* floats of the whole operation */
    uint32_t offset; /* first float of this chunk */
    uint32_t length; /* payload bytes */
    int32_t  layer;
    uint32_t sent;   /* emulated links: when the last byte left, microseconds of the sender's clock */
} ddp__frame;

#ifdef __cplusplus
extern "C" {
#endif

/* Little-endian: magic u16, version u8, type:4 p2p:1 verb:3, seq, count, offset, length, layer,
 * sent, CRC32C of the 28 bytes before it (a stream out of step is found at once). */
DDP_LIB void ddp__frame_encode(const ddp__frame *f, unsigned char *head);
/* 1, or 0 if magic, version or checksum are wrong. */
DDP_LIB int  ddp__frame_decode(const unsigned char *head, ddp__frame *f);

/* CRC-32C (Castagnoli), as in iSCSI: RFC 3720 appendix B.4. */
DDP_LIB uint32_t ddp__crc32c(const void *data, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_FRAME_H */
/* ==== end net/frame.h ==== */

/* ==== begin net/reduce.h ==== [net] */
/* Arithmetic on the memory that messages name; a GPU backend brings its own table. */
#ifndef DDP_NET_REDUCE_H
#define DDP_NET_REDUCE_H

/* All pointers are to count floats that do not overlap. divergence may be NULL; otherwise
 * sum((new - old)^2) over the overwritten values is added to it. */
typedef struct ddp__memory_ops {
    /* own = scale * (terms[0] + ... + terms[world - 1]), added in that order; terms[rank] is own. */
    void (*reduce)(float *own, const float *const *terms, int rank, int world, size_t count,
                   float scale, double *divergence);
    /* own = from */
    void (*store)(float *own, const float *from, size_t count, double *divergence);
    /* sum += own: the partial sums of the ring, which leave own untouched */
    void (*add)(float *sum, const float *own, size_t count);
    /* A 64-bit hash that any change of a float changes; chained through h. */
    uint64_t (*checksum)(uint64_t h, const float *data, size_t count);
} ddp__memory_ops;

#ifdef __cplusplus
extern "C" {
#endif

DDP_LIB ddp__memory_ops ddp__host_memory(void);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_REDUCE_H */
/* ==== end net/reduce.h ==== */

/* ==== begin net/shape.h ==== [net] */
/* Emulation of a slow link: when bytes leave, and when they count as received. Pure arithmetic
 * on times given by the caller, so that rates are exact however late a thread wakes up. */
#ifndef DDP_NET_SHAPE_H
#define DDP_NET_SHAPE_H

/* One worker's access link: an uplink and a downlink of rate bytes per second (0 = unlimited),
 * each shared by all its peers, and a one-way delay that every frame to this worker suffers. */
typedef struct ddp__link {
    double rate, delay_s;
    double up_free;   /* the uplink has taken everything up to here */
    double down_free; /* likewise the downlink */
} ddp__link;

#ifdef __cplusplus
extern "C" {
#endif

/* A frame that could go at time ready occupies the uplink after the frames before it; returns
 * when its last byte has left. An idle link saves up nothing. */
DDP_LIB double ddp__link_send(ddp__link *l, double ready, size_t bytes);
/* A frame whose last byte reached this rank at arrival; returns when it would count as received if
 * it were next. Alone: arrival + delay; behind others: one serialisation after the one before. */
DDP_LIB double ddp__link_due(const ddp__link *l, double arrival, size_t bytes);
/* The same, and it is next. */
DDP_LIB double ddp__link_receive(ddp__link *l, double arrival, size_t bytes);
/* The same for a small control frame, which uses the downlink but overtakes data. */
DDP_LIB double ddp__link_receive_control(ddp__link *l, double arrival, size_t bytes);
/* Chunk for a rate: 1 ms of it, so that an urgent frame waits no longer and the first sums
 * come back early, within 4..128 KiB. */
DDP_LIB size_t ddp__link_chunk(double rate);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_SHAPE_H */
/* ==== end net/shape.h ==== */

/* ==== begin net/engine.h ==== [net] */
/* The comm worker: one thread per context that owns the wire and runs the send queue.
 * Everything that travels is one kind of message here; strategies never see a socket. */
#ifndef DDP_NET_ENGINE_H
#define DDP_NET_ENGINE_H

typedef enum ddp__verb {
    DDP__ALL_REDUCE, /* in place over pieces: sum in rank order (or ring), then x scale */
    DDP__BROADCAST,  /* pieces of root overwrite everybody's */
    DDP__ALL_GATHER, /* one piece of world x n floats; rank r's block is the r-th, in place */
    DDP__SEND,       /* pieces to peer */
    DDP__RECV        /* pieces from peer */
} ddp__verb;

/* Contiguous floats; a message is a list of them (a bucket of several layers is no copy). */
typedef struct ddp__piece {
    float *data;
    size_t count;
} ddp__piece;

/* All ranks submit collectives in one agreed order; the n-th collective of one rank meets the
 * n-th of the others, and verb, total count and layer are compared (DDP_MISMATCH names both). */
typedef struct ddp__message {
    ddp__verb         verb;
    const ddp__piece *pieces;      /* borrowed, with their memory, until the message is done */
    int               piece_count;
    float             scale;       /* all-reduce: multiplied into the sum once; 0 = 1 */
    int               peer;        /* root, destination or source */
    long              step;        /* tag: for errors, traces and the mismatch check */
    int               layer;       /* tag: layer index, named by ddp__engine_config.layer_name; or one of those below */
    int               priority;    /* smaller first among the operations in flight */
    int               filler;      /* 1: bubble filling, left out of the hidden share */
    double           *divergence;  /* NULL, or receives sum((average - own)^2) over this rank's
                                      values, measured where the average overwrites them */
} ddp__message;

typedef struct ddp__engine ddp__engine;

enum {
    DDP__WINDOW = 16, /* most collectives in flight */
    DDP__NO_LAYER = -1,
    DDP__ALL_LAYERS = -2
};

/* One finished (or still running: end < 0) operation, for traces and the hidden share. */
typedef struct ddp__op_span {
    double  begin, end;  /* first and last byte on this rank, ddp_now() seconds */
    double  submitted;
    double  peer_wait;   /* part of begin..end in which nothing moved because a peer had not submitted */
    int64_t bytes;       /* payload bytes this rank sent */
    long    step;
    int     layer, filler;
    ddp__verb verb;
    char    algorithm;   /* 'd' direct, 'r' ring, 'p' plain */
} ddp__op_span;

typedef struct ddp__engine_config {
    ddp__wire    *wire;             /* owned by the engine from a successful open on */
    int           rank, world;
    double        rate;             /* bytes per second of this worker's uplink and, separately, downlink; 0 = unshaped */
    double        delay_s;          /* one-way delay added per message, receiver side; 0 = none */
    int           deterministic;    /* rank-order sums only, never ring */
    size_t        ring_bytes;       /* all-reduces from this size on go round the ring; 0 = by the link,
                                       SIZE_MAX = none. Same on all ranks; a world of 2 has no ring */
    double        peer_timeout_s;   /* no byte from a peer for so long = lost; 0 = never */
    double        op_timeout_s;     /* an operation in flight that does not move for so long fails; 0 = never */
    size_t        chunk_bytes;      /* 0 = clamp(1 ms x rate, 4 KiB, 128 KiB), unshaped 128 KiB; at
                                       most 128 KiB: 7 or 8 staging slots for a peer. Same on all ranks */
    size_t        max_count;        /* floats of the largest message; bounds staging; 0 = unknown */
    int           queue;            /* messages that may be submitted and not yet done */
    int           check_writes;     /* as ddp__engine_guard with max_count, from the start */
    ddp_allocator allocator;
    ddp_logger    log;
    const char *(*layer_name)(void *user, int layer); /* for errors; may be NULL */
    void         *user;
} ddp__engine_config;

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates everything it will ever use and starts the comm thread. */
DDP_LIB ddp_status ddp__engine_open(const ddp__engine_config *cfg, ddp__engine **out, ddp_error *err);
/* Says goodbye to the peers (so that they do not count it as a loss), stops the thread, closes the wire. */
DDP_LIB void ddp__engine_close(ddp__engine *e);

/* From now on checksums the memory of messages of up to max_count floats while they are in flight:
 * a write by anybody else is an error naming the layer. Longer messages go unchecked. To be called
 * while nothing is in flight (else DDP_USAGE); takes its tables from the allocator until close. */
DDP_LIB ddp_status ddp__engine_guard(ddp__engine *e, size_t max_count, ddp_error *err);

/* Queues a message; *ticket identifies it to ddp__engine_wait. Never blocks unless the queue is
 * full. After a failure returns the engine's first error. Copies the message and its piece list. */
DDP_LIB ddp_status ddp__engine_submit(ddp__engine *e, const ddp__message *m, long *ticket, ddp_error *err);
/* Blocks until that message is done or the engine failed; *err gets the engine's first error. */
DDP_LIB ddp_status ddp__engine_wait(ddp__engine *e, long ticket, ddp_error *err);
DDP_LIB int        ddp__engine_done(ddp__engine *e, long ticket);
/* How many collectives are in flight at a time: the oldest not yet complete. */
DDP_LIB int        ddp__engine_width(const ddp__engine *e);
/* Fails everything in flight here and, through control frames, on all peers. Any thread. */
DDP_LIB void       ddp__engine_abort(ddp__engine *e, ddp_status code, const char *why);
/* The engine's first error, DDP_OK while it is healthy. */
DDP_LIB ddp_status ddp__engine_error(ddp__engine *e, ddp_error *err);

/* Copies spans that overlap t0..t1, running ones included, newest last; returns how many.
 * The engine remembers the last few thousand. */
DDP_LIB int ddp__engine_spans(ddp__engine *e, double t0, double t1, ddp__op_span *out, int room);

typedef struct ddp__net_stats {
    int64_t bytes_sent, bytes_received;   /* all bytes handed to or taken from the wire, headers included */
    int64_t payload_sent;
    int64_t operations;
    double  busy_s;                       /* union of operation spans */
    size_t  staging_bytes;                /* memory the engine took from the allocator */
    size_t  delay_bytes;                  /* of it, for link shaping */
    char    algorithm;                    /* of the last all-reduce: 'd', 'r', 0 = none yet */
} ddp__net_stats;
DDP_LIB void ddp__engine_stats(ddp__engine *e, ddp__net_stats *out);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_ENGINE_H */
/* ==== end net/engine.h ==== */

/* ==== begin net/state.h ==== [net] */
/* What the files of the engine share. Everything here but the part marked "shared" belongs to
 * the comm thread alone. */
#ifndef DDP_NET_STATE_H
#define DDP_NET_STATE_H

enum {
    DDP__ROW_SEND = DDP__WINDOW,
    DDP__ROW_RECV,
    DDP__ROWS,                /* one per window position, one for sends, one for receives */
    DDP__SLOTS_MAX = 256,
    DDP__SPANS = 2048,
    DDP__STRIPS_MIN = 4096    /* pieces of all queued messages together */
};
#define DDP__STAGING_BYTES ((size_t)1 << 20) /* slots of one peer, with what the wire takes for it */
#define DDP__CHUNK_MAX     ((size_t)128 << 10)
#define DDP__CHUNK_SMALL   ((size_t)32 << 10) /* with these DDP__WINDOW operations are in flight, else 4 */

typedef struct ddp__strip { /* a piece and where it starts within its message */
    float *data;
    size_t start, count;
} ddp__strip;

typedef enum ddp__op_state { DDP__OP_FREE, DDP__OP_QUEUED, DDP__OP_ACTIVE, DDP__OP_DONE } ddp__op_state;

typedef struct ddp__op {
    ddp__message  m;
    ddp__strip   *strips;
    int           strip_count;
    long          strips_end;  /* the pool is free up to here once this operation is the oldest */
    size_t        n;           /* floats */
    long          ticket;
    uint32_t      seq;         /* among collectives, or among sends or receives with m.peer */
    int           p2p;
    int           ring;        /* all-reduce by way of ring.c */
    int           row;
    int           done;        /* shared: under the lock */
    ddp__op_state state;
    size_t        reduced;     /* floats of the own segment that are final */
    size_t        left;        /* floats still to send or to receive */
    int           missing;     /* ranks that must send something and have not sent anything */
    int           warned;
    double        active_at, waiting_since, last_move;
    ddp__op_span  span;        /* shared: under the lock, except bytes and peer_wait before done */
    int64_t       bytes;
    double        peer_wait;
    size_t        sums_left, results_left; /* ring: floats not yet given to the next rank */
    size_t        to_come;                 /* ring: floats the rank before has still to send */
    int           first_sum, last_sum;     /* ring: slots with partial sums to be sent on */
    uint64_t     *sums;        /* one hash per chunk; NULL: writes are not checked */
    struct ddp__op *next_done; /* complete, not yet published */
} ddp__op;

/* Between one operation and one peer; offsets in floats. In a ring the first four and divergence
 * are those of the segment with the peer's number instead. */
typedef struct ddp__exchange {
    size_t sent;       /* contribution or data, bytes fully taken by the wire or under way */
    size_t results;    /* own finished values given to that peer */
    size_t taken;      /* contribution or data of the peer, reduced or stored */
    size_t finished;   /* results of the peer's segment, stored */
    int    held;       /* the peer's staging slots that this operation occupies */
    int    expected;   /* the peer has to send something and nothing came so far */
    double divergence;
} ddp__exchange;

typedef struct ddp__slot {
    ddp__frame f;
    double     arrived;      /* read from the wire */
    double     reached;      /* the emulated link's end, had nobody been late */
    int        next;         /* free list, pending list or delay queue */
    int        peer;
    float     *data;
} ddp__slot;

typedef struct ddp__owed { /* slots freed but not yet given back */
    uint32_t seq;
    int      p2p, count;
} ddp__owed;

typedef enum ddp__out_state { DDP__OUT_IDLE, DDP__OUT_SERIALISING, DDP__OUT_WRITING } ddp__out_state;
typedef enum ddp__in_state { DDP__IN_HEAD, DDP__IN_PAUSED, DDP__IN_PAYLOAD } ddp__in_state;

typedef struct ddp__peer {
    /* outgoing */
    ddp__out_state out_state;
    ddp__frame     out;
    ddp__op       *out_op;      /* whose memory is the payload; NULL: control */
    int            out_slot;    /* the payload is here instead, or -1 */
    unsigned char  out_head[DDP__FRAME_BYTES];
    size_t         out_sent, out_total;
    int            held_collective, held_p2p;
    int            want_heartbeat, want_abort, want_goodbye, want_farewell;
    int            send_dead;   /* the wire takes no more; the reading side says why */
    double         last_sent;
    ddp__owed      owed[DDP__SLOTS_MAX];
    int            owed_count;
    /* incoming */
    ddp__in_state  in_state;
    ddp__frame     in;
    unsigned char  in_head[DDP__FRAME_BYTES];
    size_t         in_got;
    int            in_slot;     /* -1: straight into in_op's memory, or control */
    ddp__op       *in_op;
    double         last_got;
    uint32_t       transit;      /* microseconds from sent to read, plus the difference of the clocks, */
    double         transit_at;   /* of the quickest frame so far; 0: none yet */
    double         reached;      /* by the last frame: those of one peer stay in order */
    int            free_slot, solicited, staged; /* slots in use, by kind of frame */
    int            first_pending, last_pending;
    int            goodbye_read, abort_read, left, farewell, closed;
    uint32_t       send_seq, recv_seq;
    ddp__op       *send_op, *recv_op; /* the oldest not yet complete */
    char           text[DDP_ERROR_TEXT];
} ddp__peer;

typedef struct ddp__control { /* a control frame in the delay queue */
    ddp__frame f;
    int        peer;
    double     due;
} ddp__control;

struct ddp__engine {
    ddp__engine_config cfg;
    ddp__wire         *wire;
    int                rank, world;
    ddp__memory_ops    memory;
    ddp__link          link;
    int                shaped;        /* frames pass the delay queue */
    size_t             chunk;         /* floats */
    size_t             ring_bytes;    /* all-reduces from here on are rings */
    int                credits;       /* slots per peer for frames that need one */
    int                extra;         /* slots per peer for results */
    int                slots;         /* both */
    int                width;         /* collectives in flight, at most DDP__WINDOW */
    size_t             block_bytes, delay_bytes;

    ddp__op           *ops;           /* ring of cfg.queue, by ticket */
    ddp__strip        *strips;
    long               strip_room;
    ddp__peer         *peers;
    ddp__exchange     *rows;          /* DDP__ROWS x world */
    ddp__slot         *slot;          /* world x slots */
    ddp__control      *control;       /* ring of the delay queue */
    int                control_room, control_first, control_count;
    int                first_due, last_due; /* delay queue of slots, in order of reached */
    unsigned char     *want_send, *want_recv;
    const float      **terms;

    ddp__op           *window[DDP__WINDOW];
    long               taken;         /* tickets below were seen by the comm thread */
    long               begun;         /* emulated links: tickets below had their time of submission */
    long               queued_from;   /* no queued operation below this ticket */
    uint32_t           next_seq;      /* of the next collective to become active */
    int                dirty;         /* a position or a queued operation may have become free */
    ddp__op           *finished;      /* complete, to be published */
    int                running;       /* operations between first and last byte */
    double             running_since;
    int                up_peer;       /* whose frame occupies the uplink, or -1 */
    double             up_release;
    ddp_error          fault;         /* what ended this engine */
    int                fault_origin;
    double             last_move;
    int                closing;       /* goodbye was queued */
    int                stopping;      /* close was called */

    /* shared, under lock */
    pthread_mutex_t    lock;
    pthread_cond_t     changed;
    pthread_t          thread;
    int                threaded;
    ddp_error          error;         /* first failure or request to abort */
    int                quiet;         /* the comm thread will not touch memory again */
    int                stop, sleeping;
    long               submitted, first; /* tickets [first, submitted) are not all done */
    long               strips_head, strips_tail;
    ddp__op_span      *spans;
    long               span_count;
    ddp__net_stats     stats;         /* bytes: written by the comm thread, atomically */
    uint64_t          *sums;          /* cfg.queue x sums_room hashes; NULL: writes are not checked */
    size_t             sums_room, sums_count; /* for messages of up to sums_count floats */
};

#ifdef __cplusplus
extern "C" {
#endif

/* progress.c */
DDP_LIB ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer);
/* Segment of rank `of`: what it owns in an all-reduce, its block in an all-gather. */
DDP_LIB void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to);
DDP_LIB int  ddp__segment_of(const ddp__engine *e, const ddp__op *op, size_t offset);
/* The values that this rank's `sent` counts through for that peer. */
DDP_LIB void ddp__outgoing(const ddp__engine *e, const ddp__op *op, int peer, size_t *from, size_t *to);
/* Memory at an offset: the address, and how many floats follow contiguously (at most count). */
DDP_LIB float *ddp__memory_at(const ddp__op *op, size_t offset, size_t count, size_t *here);
/* Subtracts floats from what is left; completes the operation at zero. Its memory stays valid
 * until the end of the comm thread's round. */
DDP_LIB void ddp__op_advance(ddp__engine *e, ddp__op *op, size_t floats);
/* First sign of an operation on this rank, and the end of any wait for a peer. */
DDP_LIB void ddp__op_moves(ddp__engine *e, ddp__op *op, double now);
/* Fills the window and the send/recv positions from the queue. */
DDP_LIB void ddp__activate(ddp__engine *e, double now);
/* Before the thread sleeps: marks operations that wait for a peer. */
DDP_LIB void ddp__note_waiting(ddp__engine *e, double now);
/* Tells the submitters what is complete. */
DDP_LIB void ddp__publish(ddp__engine *e);

/* schedule.c */
/* The best frame for a peer into *f; 0 = nothing may go now. *op is NULL for control frames. */
DDP_LIB int  ddp__next_frame(ddp__engine *e, int peer, ddp__frame *f, ddp__op **op);
/* An operation has a frame that could go to that peer (credits allowing). */
DDP_LIB int  ddp__op_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
/* Room at that peer for one more chunk of an operation; forward: a sum that a ring sends on. */
DDP_LIB int  ddp__may_stage(ddp__engine *e, const ddp__op *op, int peer, int forward);
DDP_LIB void ddp__describe(ddp__frame *f, const ddp__op *op, int type, size_t offset, size_t count);
DDP_LIB void ddp__take_credit(ddp__engine *e, int peer, uint32_t seq, int p2p, int count);

/* ring.c */
/* The size from which on all-reduces are rings. Direct pays 2 delays, the ring 2 (n - 1), but no
 * incast where ranks are out of step (in step both take 1 to 2 % more than the transfer of
 * 2 (n - 1) / n M / B, measured with 4 and 8 ranks): ring where its extra delay is at most 2 %. A
 * hop delays by the link's delay and one chunk. Never on unshaped wires, nor where the round trip
 * outgrows the staging of one peer. */
DDP_LIB size_t ddp__ring_bytes(const ddp__engine *e);
DDP_LIB void   ddp__ring_begin(ddp__engine *e, ddp__op *op);
/* That peer has still to give or get something. */
DDP_LIB int    ddp__ring_needs(const ddp__engine *e, const ddp__op *op, int peer);
/* Something is left that needs a slot at that peer. */
DDP_LIB int    ddp__ring_unsent(const ddp__engine *e, const ddp__op *op, int peer);
DDP_LIB int    ddp__ring_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
/* Accounts for a frame on its way; the slot that holds its payload, or -1: it is in memory. */
DDP_LIB int    ddp__ring_started(ddp__engine *e, ddp__op *op, const ddp__frame *f);
/* Accounts for a chunk received; 0 if no rank of this ring would send it. */
DDP_LIB int    ddp__ring_arrived(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f);
/* Adds the own values to a partial sum, to be sent on or final. */
DDP_LIB void   ddp__ring_take(ddp__engine *e, ddp__op *op, int slot, double now);

/* transfer.c: bytes to and from the wire; 1 if anything moved */
DDP_LIB int    ddp__send_all(ddp__engine *e, double now);
DDP_LIB int    ddp__receive_all(ddp__engine *e);
DDP_LIB int    ddp__continue_frame(ddp__engine *e, int peer, double now);
/* Begins to write the next control frame at once, shaped or not; 0 if there is none. */
DDP_LIB int    ddp__start_control(ddp__engine *e, int peer);

/* emulate.c */
/* Microseconds, rounded up: a frame must not seem to arrive earlier than it may. */
DDP_LIB uint32_t ddp__microseconds(double t);
/* Puts a chunk in its slot, or the control frame just read, on the emulated way. */
DDP_LIB void   ddp__delay_chunk(ddp__engine *e, int slot, double now);
DDP_LIB void   ddp__delay_control(ddp__engine *e, int peer, double now);
/* Runs the emulated link up to now. */
DDP_LIB int    ddp__run_due(ddp__engine *e, double now);
DDP_LIB double ddp__next_due(const ddp__engine *e);

/* collect.c */
/* 1 if the frame may be taken, 0 after a failure. */
DDP_LIB int  ddp__frame_check(ddp__engine *e, int peer, const ddp__frame *f);
DDP_LIB ddp__op *ddp__find_op(ddp__engine *e, int peer, const ddp__frame *f);
DDP_LIB void ddp__slot_ready(ddp__engine *e, int slot, double now);
DDP_LIB void ddp__slot_free(ddp__engine *e, int slot);
/* Bytes of a frame were read straight into memory. */
DDP_LIB void ddp__direct_ready(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f, double now);
/* Handles what came before the operation was active. */
DDP_LIB void ddp__collect_early(ddp__engine *e, ddp__op *op, double now);
DDP_LIB void ddp__control_ready(ddp__engine *e, int peer, const ddp__frame *f, double now);

/* guard.c: detection of foreign writes */
/* Hashes the memory of a new operation; under the lock. */
DDP_LIB void ddp__guard_all(ddp__engine *e, ddp__op *op);
DDP_LIB void ddp__guard_close(ddp__engine *e);
DDP_LIB void ddp__guard_update(ddp__engine *e, ddp__op *op, size_t offset, size_t count);
/* 0 after a failure: the memory changed since it was hashed. */
DDP_LIB int  ddp__guard_check(ddp__engine *e, ddp__op *op, size_t offset, size_t count);

/* liveness.c */
DDP_LIB void ddp__fault(ddp__engine *e, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);
DDP_LIB void ddp__peer_lost(ddp__engine *e, int peer, const char *why);
DDP_LIB void ddp__check_left(ddp__engine *e, int peer);
/* Heartbeats, silent peers, old operations; returns when to look again. */
DDP_LIB double ddp__check_liveness(ddp__engine *e, double now);
/* "all-reduce of layer h.0.mlp (step 12)" */
DDP_LIB const char *ddp__op_text(const ddp__engine *e, const ddp__op *op, char *buf, size_t room);
/* "layer h.0.mlp", "all layers" or "a plain buffer" */
DDP_LIB const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room);

/* spans.c; under the lock */
DDP_LIB void ddp__span_finish(ddp__engine *e, const ddp__op *op);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_STATE_H */
/* ==== end net/state.h ==== */

/* ==== begin net/frame.c ==== [net] */

#define DDP__FRAME_MAGIC   0xdd97u
#define DDP__FRAME_VERSION 1u

uint32_t ddp__crc32c(const void *data, size_t n)
{
    /* Half a byte at a time: 28 bytes per frame do not deserve a 1 KiB table. */
    static const uint32_t table[16] = {
        0x00000000u, 0x105ec76fu, 0x20bd8edeu, 0x30e349b1u, 0x417b1dbcu, 0x5125dad3u,
        0x61c69362u, 0x7198540du, 0x82f63b78u, 0x92a8fc17u, 0xa24bb5a6u, 0xb21572c9u,
        0xc38d26c4u, 0xd3d3e1abu, 0xe330a81au, 0xf36e6f75u};
    const unsigned char *p = (const unsigned char *)data;
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        c = (c >> 4) ^ table[c & 15];
        c = (c >> 4) ^ table[c & 15];
    }
    return ~c;
}

static void ddp__put32(unsigned char *p, uint32_t v)
{
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
    p[2] = (unsigned char)(v >> 16);
    p[3] = (unsigned char)(v >> 24);
}

static uint32_t ddp__get32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void ddp__frame_encode(const ddp__frame *f, unsigned char *head)
{
    uint32_t first = DDP__FRAME_MAGIC | DDP__FRAME_VERSION << 16 |
                     ((uint32_t)f->type | (uint32_t)f->p2p << 4 | (uint32_t)f->verb << 5) << 24;
    ddp__put32(head, first);
    ddp__put32(head + 4, f->seq);
    ddp__put32(head + 8, f->count);
    ddp__put32(head + 12, f->offset);
    ddp__put32(head + 16, f->length);
    ddp__put32(head + 20, (uint32_t)f->layer);
    ddp__put32(head + 24, f->sent);
    ddp__put32(head + 28, ddp__crc32c(head, 28));
}

int ddp__frame_decode(const unsigned char *head, ddp__frame *f)
{
    uint32_t first = ddp__get32(head), kind = first >> 24;
    if ((first & 0xffffffu) != (DDP__FRAME_MAGIC | DDP__FRAME_VERSION << 16)) return 0;
    if (ddp__get32(head + 28) != ddp__crc32c(head, 28)) return 0;
    f->type = (int)(kind & 15);
    f->p2p = (int)(kind >> 4 & 1);
    f->verb = (int)(kind >> 5);
    f->seq = ddp__get32(head + 4);
    f->count = ddp__get32(head + 8);
    f->offset = ddp__get32(head + 12);
    f->length = ddp__get32(head + 16);
    f->layer = (int32_t)ddp__get32(head + 20);
    f->sent = ddp__get32(head + 24);
    return f->type >= DDP__FRAME_PART && f->type <= DDP__FRAME_FAREWELL;
}
/* ==== end net/frame.c ==== */

/* ==== begin net/reduce.c ==== [net] */

/* Sums live in a block that stays in the first-level cache, so that every term is read from
 * memory once; its fixed length lets compilers vectorise at -O2. */
enum { DDP__SUM_BLOCK = 1024 };

static void ddp__add_block(float *DDP_RESTRICT sum, const float *DDP_RESTRICT x)
{
    for (int i = 0; i < DDP__SUM_BLOCK; i++) sum[i] += x[i];
}

static void ddp__scale_block(float *DDP_RESTRICT out, const float *DDP_RESTRICT sum, float scale)
{
    for (int i = 0; i < DDP__SUM_BLOCK; i++) out[i] = sum[i] * scale;
}

static double ddp__distance(const float *DDP_RESTRICT a, const float *DDP_RESTRICT b, size_t count)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        double d0 = (double)a[i] - (double)b[i], d1 = (double)a[i + 1] - (double)b[i + 1];
        double d2 = (double)a[i + 2] - (double)b[i + 2], d3 = (double)a[i + 3] - (double)b[i + 3];
        s0 += d0 * d0;
        s1 += d1 * d1;
        s2 += d2 * d2;
        s3 += d3 * d3;
    }
    for (; i < count; i++) s0 += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return (s0 + s1) + (s2 + s3);
}

static void ddp__host_reduce(float *own, const float *const *terms, int rank, int world,
                             size_t count, float scale, double *divergence)
{
    float sum[DDP__SUM_BLOCK];
    (void)rank;
    for (size_t at = 0; at < count; at += DDP__SUM_BLOCK) {
        size_t n = count - at < DDP__SUM_BLOCK ? count - at : (size_t)DDP__SUM_BLOCK;
        memcpy(sum, terms[0] + at, n * sizeof *sum);
        if (n == DDP__SUM_BLOCK) {
            for (int r = 1; r < world; r++) ddp__add_block(sum, terms[r] + at);
        } else {
            for (int r = 1; r < world; r++)
                for (size_t i = 0; i < n; i++) sum[i] += terms[r][at + i];
        }
        if (divergence) {
            for (size_t i = 0; i < n; i++) sum[i] *= scale;
            *divergence += ddp__distance(sum, own + at, n);
            memcpy(own + at, sum, n * sizeof *sum);
        } else if (n == DDP__SUM_BLOCK) {
            ddp__scale_block(own + at, sum, scale);
        } else {
            for (size_t i = 0; i < n; i++) own[at + i] = sum[i] * scale;
        }
    }
}

static void ddp__host_store(float *own, const float *from, size_t count, double *divergence)
{
    if (divergence) *divergence += ddp__distance(from, own, count);
    memcpy(own, from, count * sizeof *own);
}

static void ddp__host_add(float *sum, const float *own, size_t count)
{
    size_t at = 0;
    for (; at + DDP__SUM_BLOCK <= count; at += DDP__SUM_BLOCK) ddp__add_block(sum + at, own + at);
    for (; at < count; at++) sum[at] += own[at];
}

static uint64_t ddp__host_checksum(uint64_t h, const float *data, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, data + i, sizeof bits);
        h = (h ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

ddp__memory_ops ddp__host_memory(void)
{
    ddp__memory_ops ops;
    ops.reduce = ddp__host_reduce;
    ops.store = ddp__host_store;
    ops.add = ddp__host_add;
    ops.checksum = ddp__host_checksum;
    return ops;
}
/* ==== end net/reduce.c ==== */

/* ==== begin net/shape.c ==== [net] */

double ddp__link_send(ddp__link *l, double ready, size_t bytes)
{
    double start = ready > l->up_free ? ready : l->up_free;
    l->up_free = start + (l->rate > 0 ? (double)bytes / l->rate : 0);
    return l->up_free;
}

double ddp__link_due(const ddp__link *l, double arrival, size_t bytes)
{
    double done = arrival + l->delay_s;
    if (l->rate > 0) {
        /* The sender's serialisation has passed already: the last byte of an uncontended frame
         * is here at arrival + delay, so its first one entered our downlink bytes/rate before. */
        double behind = l->down_free + (double)bytes / l->rate;
        if (behind > done) done = behind;
    }
    return done;
}

double ddp__link_receive(ddp__link *l, double arrival, size_t bytes)
{
    double done = ddp__link_due(l, arrival, bytes);
    l->down_free = done;
    return done;
}

double ddp__link_receive_control(ddp__link *l, double arrival, size_t bytes)
{
    if (l->rate > 0) {
        double done = arrival + l->delay_s;
        if (l->down_free > done - (double)bytes / l->rate) l->down_free += (double)bytes / l->rate;
    }
    return arrival + l->delay_s;
}

size_t ddp__link_chunk(double rate)
{
    double bytes = rate > 0 ? rate * 0.001 : 128.0 * 1024;
    if (bytes < 4.0 * 1024) bytes = 4.0 * 1024;
    if (bytes > 128.0 * 1024) bytes = 128.0 * 1024;
    return (size_t)bytes / 64 * 64;
}
/* ==== end net/shape.c ==== */

/* ==== begin net/progress.c ==== [net] */
/* The life of an operation: activation, progress, completion; and how messages map to memory. */

ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer)
{
    return &e->rows[(size_t)op->row * (size_t)e->world + (size_t)peer];
}

void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to)
{
    size_t world = (size_t)e->world, j = (size_t)of;

    *from = op->n / world * j + op->n % world * j / world;
    *to = op->n / world * (j + 1) + op->n % world * (j + 1) / world;
}

int ddp__segment_of(const ddp__engine *e, const ddp__op *op, size_t offset)
{
    size_t from, to;
    int of = 0;

    do ddp__segment(e, op, of, &from, &to);
    while (offset >= to && ++of < e->world);
    return of;
}

void ddp__outgoing(const ddp__engine *e, const ddp__op *op, int peer, size_t *from, size_t *to)
{
    *from = *to = 0;
    switch (op->m.verb) {
    case DDP__ALL_REDUCE: ddp__segment(e, op, peer, from, to); break;
    case DDP__ALL_GATHER: ddp__segment(e, op, e->rank, from, to); break;
    case DDP__BROADCAST: *to = op->m.peer == e->rank ? op->n : 0; break;
    case DDP__SEND: *to = op->m.peer == peer ? op->n : 0; break;
    case DDP__RECV: break;
    }
}

/* The floats that a peer sends to this rank, results of an all-reduce included; *parts = what it
 * contributes to the own segment. */
static size_t ddp__incoming(const ddp__engine *e, const ddp__op *op, int peer, size_t *parts)
{
    size_t from = 0, to = 0;

    *parts = 0;
    switch (op->m.verb) {
    case DDP__ALL_REDUCE:
        ddp__segment(e, op, e->rank, &from, &to);
        *parts = to - from;
        ddp__segment(e, op, peer, &from, &to);
        break;
    case DDP__ALL_GATHER: ddp__segment(e, op, peer, &from, &to); break;
    case DDP__BROADCAST: to = op->m.peer == peer ? op->n : 0; break;
    case DDP__RECV: to = op->m.peer == peer ? op->n : 0; break;
    case DDP__SEND: break;
    }
    return to - from;
}

float *ddp__memory_at(const ddp__op *op, size_t offset, size_t count, size_t *here)
{
    int low = 0, high = op->strip_count - 1;
    const ddp__strip *s;

    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (op->strips[middle].start <= offset) low = middle;
        else high = middle - 1;
    }
    s = &op->strips[low];
    *here = s->start + s->count - offset;
    if (*here > count) *here = count;
    return s->data + (offset - s->start);
}

static void ddp__complete(ddp__engine *e, ddp__op *op)
{
    double now = ddp_now(); /* on an emulated link later than the event's time if the thread was late */

    op->state = DDP__OP_DONE;
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] == op) e->window[i] = NULL;
    if (op->m.verb == DDP__SEND) e->peers[op->m.peer].send_op = NULL;
    if (op->m.verb == DDP__RECV) e->peers[op->m.peer].recv_op = NULL;
    if (op->m.divergence) {
        double sum = 0;
        for (int r = 0; r < e->world; r++)
            if (!op->p2p || r == op->m.peer) sum += ddp__row(e, op, r)->divergence;
        *op->m.divergence = sum;
    }
    pthread_mutex_lock(&e->lock);
    if (op->span.begin < 0) op->span.begin = now;
    else if (--e->running == 0) e->stats.busy_s += now - e->running_since;
    op->span.end = now;
    op->span.bytes = op->bytes;
    op->span.peer_wait = op->peer_wait;
    pthread_mutex_unlock(&e->lock);
    op->next_done = e->finished;
    e->finished = op;
    e->dirty = 1;
}

void ddp__op_advance(ddp__engine *e, ddp__op *op, size_t floats)
{
    op->left -= floats;
    if (op->left == 0) ddp__complete(e, op);
}

void ddp__op_moves(ddp__engine *e, ddp__op *op, double now)
{
    e->last_move = now;
    op->last_move = now;
    if (op->waiting_since >= 0) {
        if (now > op->waiting_since) op->peer_wait += now - op->waiting_since;
        op->waiting_since = -1;
    }
    if (op->span.begin >= 0) return;
    pthread_mutex_lock(&e->lock);
    op->span.begin = now;
    if (e->running++ == 0) e->running_since = now;
    pthread_mutex_unlock(&e->lock);
}

/* An operation that can send nothing while a peer has not shown up is waiting for it, from the
 * time on at which the peer's first chunk would be here had it submitted with this rank. */
void ddp__note_waiting(ddp__engine *e, double now)
{
    for (int i = 0; i < DDP__WINDOW; i++) {
        ddp__op *op = e->window[i];
        int busy = 0, hops;
        double earliest;
        if (!op || op->missing == 0 || op->waiting_since >= 0 || op->span.begin < 0) continue;
        for (int r = 0; r < e->world && !busy; r++) {
            ddp__frame f;
            if (r != e->rank) busy = e->peers[r].out_op == op || ddp__op_frame(e, op, r, &f);
        }
        if (busy) continue;
        hops = op->ring ? e->world - 1 : 1;
        earliest = op->active_at + hops * e->link.delay_s;
        if (e->link.rate > 0) {
            size_t first = op->n < e->chunk ? op->n : e->chunk;
            earliest += hops * (double)(first * sizeof(float)) / e->link.rate;
        }
        op->waiting_since = now > earliest ? now : earliest;
    }
}

static void ddp__begin(ddp__engine *e, ddp__op *op, int row, double now)
{
    size_t from, to;

    op->row = row;
    op->state = DDP__OP_ACTIVE;
    op->active_at = op->last_move = now;
    op->seq = op->m.verb == DDP__SEND ? e->peers[op->m.peer].send_seq++
            : op->m.verb == DDP__RECV ? e->peers[op->m.peer].recv_seq++ : e->next_seq++;
    if (e->world == 1) {
        size_t done = 0;
        double *divergence = op->m.divergence ? &ddp__row(e, op, 0)->divergence : NULL;
        memset(ddp__row(e, op, 0), 0, sizeof(ddp__exchange));
        while (op->m.verb == DDP__ALL_REDUCE && op->m.scale != 1 && done < op->n) {
            size_t here;
            float *own = ddp__memory_at(op, done, op->n - done, &here);
            e->terms[0] = own;
            e->memory.reduce(own, e->terms, 0, 1, here, op->m.scale, divergence);
            done += here;
        }
        ddp__complete(e, op);
        return;
    }
    for (int r = 0; r < e->world; r++) {
        ddp__exchange *x = ddp__row(e, op, r);
        size_t parts, in;
        if (op->p2p && r != op->m.peer) continue;
        memset(x, 0, sizeof *x);
        if (r == e->rank || op->ring) continue;
        in = ddp__incoming(e, op, r, &parts);
        ddp__outgoing(e, op, r, &from, &to);
        op->left += in + (to - from);
        if (op->m.verb == DDP__ALL_REDUCE) op->left += parts; /* the same floats go back as results */
        if (in + parts > 0) {
            x->expected = 1;
            op->missing++;
        }
    }
    if (op->ring) ddp__ring_begin(e, op);
    if (op->left == 0) ddp__complete(e, op);
    else ddp__collect_early(e, op, now);
    for (int r = 0; r < e->world && op->state == DDP__OP_ACTIVE; r++)
        if (r != e->rank && e->peers[r].left) ddp__check_left(e, r);
}

void ddp__activate(ddp__engine *e, double now)
{
    int later = 0;

    while (e->dirty && e->fault.code == DDP_OK) {
        e->dirty = 0;
        while (e->queued_from < e->taken && e->ops[e->queued_from % e->cfg.queue].state != DDP__OP_QUEUED)
            e->queued_from++;
        for (long t = e->queued_from; t < e->taken && e->fault.code == DDP_OK; t++) {
            ddp__op *op = &e->ops[t % e->cfg.queue];
            ddp__op **place = NULL;
            int row = 0;
            if (op->state != DDP__OP_QUEUED) continue;
            if (op->span.submitted > now) { /* the emulated link is still catching up */
                later = 1;
                break;
            }
            if (op->m.verb == DDP__SEND) {
                place = &e->peers[op->m.peer].send_op;
                row = DDP__ROW_SEND;
            } else if (op->m.verb == DDP__RECV) {
                place = &e->peers[op->m.peer].recv_op;
                row = DDP__ROW_RECV;
            } else {
                while (row < e->width - 1 && e->window[row]) row++;
                place = &e->window[row];
            }
            if (*place) continue;
            *place = op;
            ddp__begin(e, op, row, now);
        }
    }
    e->dirty |= later;
}

void ddp__publish(ddp__engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->finished) {
        ddp__op *op = e->finished;
        e->finished = op->next_done;
        ddp__span_finish(e, op);
        op->done = 1;
    }
    while (e->first < e->submitted && e->ops[e->first % e->cfg.queue].done) {
        e->strips_tail = e->ops[e->first % e->cfg.queue].strips_end;
        e->first++;
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}
/* ==== end net/progress.c ==== */

/* ==== begin net/schedule.c ==== [net] */
/* What to send next: control frames, then the most urgent operation that has a frame and,
 * where the receiver must stage it, a credit. */

/* Something is left that needs a slot at that peer. */
static int ddp__unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    size_t from, to;

    if (op->ring) return ddp__ring_unsent(e, op, peer);
    ddp__outgoing(e, op, peer, &from, &to);
    return ddp__row(e, op, peer)->sent < to - from;
}

/* Credits. A frame may reach a rank before it has submitted the operation, so the sender counts
 * the slots it occupies there. Whatever the priorities, the oldest operation that is unfinished
 * anywhere must always get a slot: an operation that holds none may take one if the older ones
 * that hold none keep one each; one that holds some leaves a slot to every operation in the window
 * that holds none. One slot is kept for send/recv, whose order is unrelated, and one for the sums
 * that a ring sends on (ring.c), which leave room for older operations only. */
int ddp__may_stage(ddp__engine *e, const ddp__op *op, int peer, int forward)
{
    const ddp__peer *p = &e->peers[peer];
    int beyond = p->held_p2p > 1 ? p->held_p2p - 1 : 0;
    int free_slots = e->credits - 1 - p->held_collective - beyond;
    int own = op->p2p ? p->held_p2p : ddp__row(e, op, peer)->held;
    int claims = 0, bubble = op->ring && !forward;

    if (op->p2p && own == 0) return 1;
    for (int i = 0; i < DDP__WINDOW; i++) {
        const ddp__op *other = e->window[i];
        if (!other || other == op) continue;
        if ((own == 0 || forward) && other->ticket > op->ticket) continue;
        if (!ddp__unsent(e, other, peer)) continue;
        if (other->ring) bubble = 1;
        if (ddp__row(e, other, peer)->held == 0) claims++;
    }
    if (op->p2p && claims == 0) claims = 1;
    return free_slots > claims + bubble;
}

void ddp__describe(ddp__frame *f, const ddp__op *op, int type, size_t offset, size_t count)
{
    f->type = type;
    f->p2p = op->p2p;
    f->verb = (int)op->m.verb;
    f->seq = op->seq;
    f->count = (uint32_t)op->n;
    f->offset = (uint32_t)offset;
    f->length = (uint32_t)(count * sizeof(float));
    f->layer = op->m.layer;
    f->sent = 0;
}

int ddp__op_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    ddp__exchange *x = ddp__row(e, op, peer);
    size_t from, to, at;

    if (op->ring) return ddp__ring_frame(e, op, peer, f);
    if (op->m.verb == DDP__ALL_REDUCE && x->results < op->reduced) {
        size_t count = op->reduced - x->results;
        ddp__segment(e, op, e->rank, &from, &to);
        if (count > e->chunk) count = e->chunk;
        ddp__describe(f, op, DDP__FRAME_RESULT, from + x->results, count);
        return 1;
    }
    ddp__outgoing(e, op, peer, &from, &to);
    at = from + x->sent;
    if (at < to && ddp__may_stage(e, op, peer, 0)) {
        int type = op->m.verb == DDP__ALL_REDUCE ? DDP__FRAME_PART : DDP__FRAME_DATA;
        ddp__describe(f, op, type, at, to - at < e->chunk ? to - at : e->chunk);
        return 1;
    }
    return 0;
}

static int ddp__control_frame(ddp__engine *e, int peer, ddp__frame *f)
{
    ddp__peer *p = &e->peers[peer];

    memset(f, 0, sizeof *f);
    if (p->want_abort) {
        p->want_abort = 0;
        f->type = DDP__FRAME_ABORT;
        f->count = (uint32_t)e->fault.code;
        f->offset = (uint32_t)e->fault_origin;
        f->length = (uint32_t)strlen(e->fault.msg);
        return 1;
    }
    if (e->fault.code != DDP_OK) return 0;
    if (p->owed_count > 0) {
        ddp__owed *o = &p->owed[--p->owed_count];
        f->type = DDP__FRAME_CREDIT;
        f->p2p = o->p2p;
        f->seq = o->seq;
        f->offset = (uint32_t)o->count;
        return 1;
    }
    if (p->want_farewell) {
        p->want_farewell = 0;
        f->type = DDP__FRAME_FAREWELL;
        return 1;
    }
    if (p->want_heartbeat) {
        p->want_heartbeat = 0;
        f->type = DDP__FRAME_HEARTBEAT;
        return 1;
    }
    return 0;
}

int ddp__next_frame(ddp__engine *e, int peer, ddp__frame *f, ddp__op **op)
{
    ddp__peer *p = &e->peers[peer];
    ddp__op *best = NULL;
    ddp__frame candidate;

    *op = NULL;
    if (p->send_dead || p->closed) return 0;
    if (ddp__control_frame(e, peer, f)) return 1;
    if (e->fault.code != DDP_OK) return 0;
    for (int i = 0; i <= DDP__WINDOW; i++) {
        ddp__op *o = i < DDP__WINDOW ? e->window[i] : p->send_op;
        if (!o || o->state != DDP__OP_ACTIVE) continue;
        if (best && (o->m.priority > best->m.priority ||
                     (o->m.priority == best->m.priority && o->ticket > best->ticket)))
            continue;
        if (!ddp__op_frame(e, o, peer, &candidate)) continue;
        best = o;
        *f = candidate;
    }
    *op = best;
    if (best) return 1;
    if (p->want_goodbye) {
        p->want_goodbye = 0;
        memset(f, 0, sizeof *f);
        f->type = DDP__FRAME_GOODBYE;
        return 1;
    }
    return 0;
}

void ddp__take_credit(ddp__engine *e, int peer, uint32_t seq, int p2p, int count)
{
    ddp__peer *p = &e->peers[peer];

    if (p2p) {
        p->held_p2p -= count;
    } else {
        p->held_collective -= count;
        for (int i = 0; i < DDP__WINDOW; i++)
            if (e->window[i] && e->window[i]->seq == seq) ddp__row(e, e->window[i], peer)->held -= count;
    }
    if (p->held_p2p < 0 || p->held_collective < 0)
        ddp__fault(e, DDP_NET, "rank %d gave back more staging slots than it had; it runs another "
                   "version of this library or its stream is damaged", peer);
}
/* ==== end net/schedule.c ==== */

/* ==== begin net/ring.c ==== [net] */
/* The ring all-reduce. Segment j starts at rank j + 1 and gathers every rank's values on its way
 * to rank j, which scales the sum once; from there the result goes round to rank j - 1. Every
 * segment is thus summed along one path and then copied: the same bits on all ranks, each time,
 * though not those of a sum in rank order. (Patarasuk and Yuan 2009, Bandwidth optimal all-reduce
 * algorithms for clusters of workstations, section 3; here in chunks.)
 *
 * A partial sum is made and sent on in the staging slot it arrived in; the parameters stay as they
 * are until the result overwrites them, and results are sent on from there.
 *
 * Why this cannot lock up. Results need no credit, so only partial sums can wait for each other.
 * 1. Only the oldest ring operation of which a rank has partial sums to send may send them. Let O
 *    be the oldest operation that is unfinished on any rank. If it is a ring, a rank that has sent
 *    all of O's sums needs no more slots for it, and no other holds sums of a younger ring at the
 *    next rank.
 * 2. Everything younger than O that takes a slot at the next rank leaves it one (the bubble), and
 *    two while O holds none (ddp__may_stage). What is older than O is finished and drains.
 * 3. A sum that enters the ring leaves the bubble too; one that is sent on may take it, and gives
 *    back the slot it was in, where it becomes the bubble of the rank before. So at all times some
 *    rank has a free slot ahead of it or one about to be free (bubble flow control: Carrion et
 *    al. 1997).
 * 4. If nothing of O could move, every rank with a sum to send on would have no free slot ahead,
 *    so the next rank would hold one too, and so round the ring, against 3. If no sum is under
 *    way, O holds no slot anywhere, two are free, and the next sum may enter.
 * 5. If O is not a ring, younger rings leave it a slot like everybody else.
 * So O finishes, and by induction everything. */

static int ddp__ring_next(const ddp__engine *e) { return (e->rank + 1) % e->world; }
static int ddp__ring_prev(const ddp__engine *e) { return (e->rank + e->world - 1) % e->world; }

size_t ddp__ring_bytes(const ddp__engine *e)
{
    double world = (double)e->world, chunk = (double)(e->chunk * sizeof(float)), bytes;
    double window = (double)(e->credits - e->width - 1) * chunk;

    if (e->cfg.deterministic || e->world < 3) return SIZE_MAX;
    if (e->cfg.ring_bytes > 0) return e->cfg.ring_bytes;
    if (!(e->link.rate > 0)) return SIZE_MAX;
    if (2 * e->link.delay_s * e->link.rate > window) return SIZE_MAX;
    bytes = 50 * world * (world - 2) / (world - 1) * (e->link.delay_s * e->link.rate + chunk);
    return (size_t)bytes;
}

static size_t ddp__ring_length(const ddp__engine *e, const ddp__op *op, int of)
{
    size_t from, to;

    ddp__segment(e, op, of, &from, &to);
    return to - from;
}

void ddp__ring_begin(ddp__engine *e, ddp__op *op)
{
    int prev = ddp__ring_prev(e), next = ddp__ring_next(e);
    size_t results = op->n - ddp__ring_length(e, op, e->rank); /* that come */

    op->sums_left = op->n - ddp__ring_length(e, op, e->rank);
    op->results_left = op->n - ddp__ring_length(e, op, next);
    op->to_come = results + op->n - ddp__ring_length(e, op, prev);
    op->left = op->sums_left + op->results_left + results;
    op->first_sum = op->last_sum = -1;
    op->missing = op->n > 0;
    /* the first sum of the rank before depends on nobody else */
    ddp__row(e, op, prev)->expected = ddp__ring_length(e, op, (prev + e->world - 1) % e->world) > 0;
}

int ddp__ring_needs(const ddp__engine *e, const ddp__op *op, int peer)
{
    return (peer == ddp__ring_next(e) && op->sums_left + op->results_left > 0) ||
           (peer == ddp__ring_prev(e) && op->to_come > 0);
}

int ddp__ring_unsent(const ddp__engine *e, const ddp__op *op, int peer)
{
    return peer == ddp__ring_next(e) && op->sums_left > 0;
}

static int ddp__ring_is_oldest(const ddp__engine *e, const ddp__op *op)
{
    for (int i = 0; i < DDP__WINDOW; i++) {
        const ddp__op *other = e->window[i];
        if (other && other->ring && other->ticket < op->ticket && other->sums_left > 0) return 0;
    }
    return 1;
}

/* What has come farthest goes first: results, then sums under way, then the own segment's start. */
int ddp__ring_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    size_t from, to, at;
    int start = ddp__ring_prev(e);

    if (peer != ddp__ring_next(e)) return 0;
    for (int k = 2; k <= e->world && op->results_left > 0; k++) {
        int of = (e->rank + k) % e->world;
        const ddp__exchange *x = ddp__row(e, op, of);
        size_t count = x->finished - x->results;
        if (count == 0) continue;
        ddp__segment(e, op, of, &from, &to);
        ddp__describe(f, op, DDP__FRAME_RESULT, from + x->results, count < e->chunk ? count : e->chunk);
        return 1;
    }
    if (op->sums_left == 0 || !ddp__ring_is_oldest(e, op)) return 0;
    if (op->first_sum >= 0 && ddp__may_stage(e, op, peer, 1)) {
        const ddp__frame *sum = &e->slot[op->first_sum].f;
        ddp__describe(f, op, DDP__FRAME_SUM, sum->offset, sum->length / sizeof(float));
        return 1;
    }
    ddp__segment(e, op, start, &from, &to);
    at = from + ddp__row(e, op, start)->sent;
    if (at < to && ddp__may_stage(e, op, peer, 0)) {
        ddp__describe(f, op, DDP__FRAME_SUM, at, to - at < e->chunk ? to - at : e->chunk);
        return 1;
    }
    return 0;
}

int ddp__ring_started(ddp__engine *e, ddp__op *op, const ddp__frame *f)
{
    size_t count = f->length / sizeof(float);
    int slot;

    if (f->type == DDP__FRAME_RESULT) {
        op->results_left -= count;
        return -1;
    }
    op->sums_left -= count;
    if (ddp__segment_of(e, op, f->offset) == ddp__ring_prev(e)) return -1;
    slot = op->first_sum;
    op->first_sum = e->slot[slot].next;
    if (op->first_sum < 0) op->last_sum = -1;
    return slot;
}

int ddp__ring_arrived(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    int of = ddp__segment_of(e, op, f->offset), result = f->type == DDP__FRAME_RESULT;
    size_t count = f->length / sizeof(float), from, to, rest;

    ddp__segment(e, op, of, &from, &to);
    rest = to - f->offset;
    if (peer != ddp__ring_prev(e) || of == (result ? e->rank : ddp__ring_prev(e)) ||
        count != (rest < e->chunk ? rest : e->chunk))
        return 0;
    op->to_come -= count;
    /* Results, and the sums of the own segment, have been at every rank. */
    if (result || of == e->rank) op->missing = 0;
    return 1;
}

static void ddp__ring_reduce(ddp__engine *e, ddp__op *op, const ddp__slot *s, size_t count)
{
    ddp__exchange *x = ddp__row(e, op, e->rank);
    double *divergence = op->m.divergence ? &x->divergence : NULL;
    size_t done = 0, here;

    for (; done < count; done += here) {
        float *own = ddp__memory_at(op, s->f.offset + done, count - done, &here);
        e->terms[0] = s->data + done;
        e->terms[1] = own;
        e->memory.reduce(own, e->terms, 1, 2, here, op->m.scale, divergence);
    }
    ddp__guard_update(e, op, s->f.offset, count);
    x->finished += count;
}

void ddp__ring_take(ddp__engine *e, ddp__op *op, int slot, double now)
{
    ddp__slot *s = &e->slot[slot];
    size_t count = s->f.length / sizeof(float), done = 0, here;

    if (!ddp__guard_check(e, op, s->f.offset, count)) return;
    if (ddp__segment_of(e, op, s->f.offset) == e->rank) {
        ddp__ring_reduce(e, op, s, count);
        ddp__slot_free(e, slot);
    } else {
        for (; done < count; done += here) {
            const float *own = ddp__memory_at(op, s->f.offset + done, count - done, &here);
            e->memory.add(s->data + done, own, here);
        }
        s->next = -1;
        if (op->last_sum >= 0) e->slot[op->last_sum].next = slot;
        else op->first_sum = slot;
        op->last_sum = slot;
    }
    ddp__op_moves(e, op, now);
}
/* ==== end net/ring.c ==== */

/* ==== begin net/collect.c ==== [net] */
/* What happens to frames that have arrived: staging, the sum in rank order, storing. */

static const char *ddp__verb_does(int verb, int ring)
{
    static const char *const text[] = {"averages", "broadcasts", "gathers", "sends", "receives"};
    if (verb == (int)DDP__ALL_REDUCE && ring) return "averages by ring";
    return verb >= 0 && verb <= (int)DDP__RECV ? text[verb] : "does something unknown with";
}

static void ddp__mismatch(ddp__engine *e, int peer, const ddp__op *op, const ddp__frame *f)
{
    char own[64], other[64];

    ddp__layer_text(e, op->m.layer, own, sizeof own);
    ddp__layer_text(e, f->layer, other, sizeof other);
    ddp__fault(e, DDP_MISMATCH, "operation %lu: rank %d %s %s (%lu values, root or peer %d), rank %d %s %s "
               "(%lu values): all ranks must submit in the same order", (unsigned long)op->seq, e->rank,
               ddp__verb_does((int)op->m.verb, op->ring), own, (unsigned long)op->n, op->m.peer, peer,
               ddp__verb_does(f->verb, f->type == DDP__FRAME_SUM), other, (unsigned long)f->count);
}

/* The sender's operation is the same as ours; 0 after a failure. */
static int ddp__agrees(ddp__engine *e, int peer, const ddp__op *op, const ddp__frame *f)
{
    int verb = op->m.verb == DDP__RECV ? (int)DDP__SEND : (int)op->m.verb;
    int type = op->ring ? DDP__FRAME_SUM : op->m.verb == DDP__ALL_REDUCE ? DDP__FRAME_PART : DDP__FRAME_DATA;

    if (f->verb == verb && f->count == (uint32_t)op->n && f->layer == op->m.layer &&
        (f->type == type || (f->type == DDP__FRAME_RESULT && type != DDP__FRAME_DATA)) &&
        (op->m.verb != DDP__BROADCAST || peer == op->m.peer))
        return 1;
    ddp__mismatch(e, peer, op, f);
    return 0;
}

ddp__op *ddp__find_op(ddp__engine *e, int peer, const ddp__frame *f)
{
    if (f->p2p) {
        ddp__op *op = e->peers[peer].recv_op;
        return op && op->seq == f->seq ? op : NULL;
    }
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] && e->window[i]->seq == f->seq) return e->window[i];
    return NULL;
}

static void ddp__seen(ddp__engine *e, ddp__op *op, int peer)
{
    ddp__exchange *x = ddp__row(e, op, peer);
    if (x->expected) {
        x->expected = 0;
        if (!op->ring) op->missing--;
    }
}

/* A complete operation that is still in the ring; its place may be given away at any time. */
static int ddp__past_op(ddp__engine *e, int peer, const ddp__frame *f, ddp__op *out)
{
    int found = 0;

    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < e->cfg.queue && !found; i++) {
        const ddp__op *old = &e->ops[i];
        found = old->state == DDP__OP_DONE && old->seq == f->seq && old->p2p == f->p2p &&
                (!old->p2p || (old->m.verb == DDP__RECV && old->m.peer == peer));
        if (found) *out = *old;
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

int ddp__frame_check(ddp__engine *e, int peer, const ddp__frame *f)
{
    int ok;

    if (f->type >= DDP__FRAME_CREDIT) {
        ok = f->type == DDP__FRAME_ABORT ? f->length < DDP_ERROR_TEXT : f->length == 0;
    } else {
        ddp__op *op = ddp__find_op(e, peer, f);
        uint32_t next = f->p2p ? e->peers[peer].recv_seq : e->next_seq;
        ok = f->length > 0 && f->length % sizeof(float) == 0 && f->length <= e->chunk * sizeof(float) &&
             f->offset <= f->count && f->length / sizeof(float) <= f->count - f->offset &&
             !(f->p2p && f->type != DDP__FRAME_DATA);
        if (ok && op) return ddp__agrees(e, peer, op, f);
        /* An operation that is complete here, or not begun, has no use for the frame. */
        if (ok && (f->type == DDP__FRAME_RESULT || (int32_t)(f->seq - next) < 0)) {
            ddp__op old;
            if (ddp__past_op(e, peer, f, &old)) {
                ddp__mismatch(e, peer, &old, f);
                return 0;
            }
            ok = 0;
        }
    }
    if (!ok)
        ddp__fault(e, DDP_NET, "rank %d sent a chunk that fits no operation (type %d, operation %lu, floats "
                   "%lu of %lu, %lu bytes): all ranks must use the same chunk size and submit in the same "
                   "order", peer, f->type, (unsigned long)f->seq, (unsigned long)f->offset,
                   (unsigned long)f->count, (unsigned long)f->length);
    return ok;
}

void ddp__slot_free(ddp__engine *e, int slot)
{
    ddp__slot *s = &e->slot[slot];
    ddp__peer *p = &e->peers[s->peer];
    int i = 0;

    s->next = p->free_slot;
    p->free_slot = slot;
    if (s->f.type == DDP__FRAME_RESULT) {
        p->solicited--;
        return;
    }
    p->staged--;
    while (i < p->owed_count && (p->owed[i].seq != s->f.seq || p->owed[i].p2p != s->f.p2p)) i++;
    if (i == p->owed_count) {
        p->owed[i].seq = s->f.seq;
        p->owed[i].p2p = s->f.p2p;
        p->owed[i].count = 0;
        p->owed_count++;
    }
    p->owed[i].count++;
}

/* The oldest staged chunk of an operation from a peer; -1 if none. */
static int ddp__pending(const ddp__engine *e, int peer, const ddp__op *op)
{
    int s = e->peers[peer].first_pending;
    while (s >= 0 && (e->slot[s].f.seq != op->seq || e->slot[s].f.p2p != op->p2p)) s = e->slot[s].next;
    return s;
}

static void ddp__pending_remove(ddp__engine *e, int peer, int slot)
{
    ddp__peer *p = &e->peers[peer];
    int before = -1, s = p->first_pending;

    while (s != slot) {
        before = s;
        s = e->slot[s].next;
    }
    if (before >= 0) e->slot[before].next = e->slot[s].next;
    else p->first_pending = e->slot[s].next;
    if (p->last_pending == s) p->last_pending = before;
}

/* Counts a chunk as received; 0 if it is not the one that has to come next. */
static int ddp__in_order(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f)
{
    int of = op->ring ? ddp__segment_of(e, op, f->offset) : peer;
    ddp__exchange *x = ddp__row(e, op, of);
    size_t from = 0, to = op->n, *at = &x->taken;

    if (f->type == DDP__FRAME_RESULT) at = &x->finished;
    if (op->m.verb == DDP__ALL_REDUCE || op->m.verb == DDP__ALL_GATHER) ddp__segment(e, op, of, &from, &to);
    if (f->offset != from + *at || f->length / sizeof(float) > to - f->offset ||
        (op->ring && !ddp__ring_arrived(e, op, peer, f))) {
        ddp__fault(e, DDP_NET, "rank %d sent floats from %lu of operation %lu, expected were those from %lu: "
                   "all ranks must use the same chunk size", peer, (unsigned long)f->offset,
                   (unsigned long)f->seq, (unsigned long)(from + *at));
        return 0;
    }
    *at += f->length / sizeof(float);
    return 1;
}

static void ddp__store(ddp__engine *e, int peer, ddp__op *op, const ddp__slot *s, double now)
{
    size_t count = s->f.length / sizeof(float), done = 0;
    double *divergence = op->m.divergence ? &ddp__row(e, op, peer)->divergence : NULL;

    if (!ddp__in_order(e, peer, op, &s->f)) return;
    if (s->f.type == DDP__FRAME_RESULT && !ddp__guard_check(e, op, s->f.offset, count)) return;
    while (done < count) {
        size_t here;
        float *own = ddp__memory_at(op, s->f.offset + done, count - done, &here);
        e->memory.store(own, s->data + done, here, divergence);
        done += here;
    }
    if (op->ring) ddp__guard_update(e, op, s->f.offset, count); /* it will be sent on */
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, count);
}

/* Sums every chunk of the own segment of which all contributions are here. */
static void ddp__reduce_ready(ddp__engine *e, ddp__op *op, double now)
{
    size_t from, to;
    double *divergence = op->m.divergence ? &ddp__row(e, op, e->rank)->divergence : NULL;

    ddp__segment(e, op, e->rank, &from, &to);
    while (from + op->reduced < to) {
        size_t at = from + op->reduced, count = to - at < e->chunk ? to - at : e->chunk, done = 0;
        for (int r = 0; r < e->world; r++) {
            if (r != e->rank && ddp__pending(e, r, op) < 0) return;
        }
        if (!ddp__guard_check(e, op, at, count)) return;
        for (int r = 0; r < e->world; r++) {
            const ddp__frame *f;
            if (r == e->rank) continue;
            f = &e->slot[ddp__pending(e, r, op)].f;
            if (f->offset != at || f->length != count * sizeof(float)) {
                ddp__fault(e, DDP_NET, "rank %d sent floats from %lu of operation %lu, expected were those "
                           "from %lu: all ranks must use the same chunk size", r, (unsigned long)f->offset,
                           (unsigned long)f->seq, (unsigned long)at);
                return;
            }
        }
        while (done < count) {
            size_t here;
            float *own = ddp__memory_at(op, at + done, count - done, &here);
            for (int r = 0; r < e->world; r++)
                e->terms[r] = r == e->rank ? own : e->slot[ddp__pending(e, r, op)].data + done;
            e->memory.reduce(own, e->terms, e->rank, e->world, here, op->m.scale, divergence);
            done += here;
        }
        for (int r = 0; r < e->world; r++) {
            int s;
            if (r == e->rank) continue;
            s = ddp__pending(e, r, op);
            ddp__row(e, op, r)->taken += count;
            ddp__pending_remove(e, r, s);
            ddp__slot_free(e, s);
        }
        ddp__guard_update(e, op, at, count);
        op->reduced += count;
        ddp__op_moves(e, op, now);
    }
}

static void ddp__collect(ddp__engine *e, ddp__op *op, int peer, double now)
{
    int s;

    if (op->m.verb == DDP__ALL_REDUCE && !op->ring) {
        ddp__reduce_ready(e, op, now);
        return;
    }
    while (e->fault.code == DDP_OK && op->state == DDP__OP_ACTIVE && (s = ddp__pending(e, peer, op)) >= 0) {
        ddp__pending_remove(e, peer, s);
        if (op->ring) {
            if (ddp__in_order(e, peer, op, &e->slot[s].f)) ddp__ring_take(e, op, s, now);
            continue;
        }
        ddp__store(e, peer, op, &e->slot[s], now);
        ddp__slot_free(e, s);
    }
}

void ddp__slot_ready(ddp__engine *e, int slot, double now)
{
    ddp__slot *s = &e->slot[slot];
    ddp__peer *p = &e->peers[s->peer];
    ddp__op *op = ddp__find_op(e, s->peer, &s->f);

    if (op && !ddp__agrees(e, s->peer, op, &s->f)) return;
    if (op) ddp__seen(e, op, s->peer);
    if (s->f.type == DDP__FRAME_RESULT) {
        if (op) ddp__store(e, s->peer, op, s, now);
        ddp__slot_free(e, slot);
        return;
    }
    s->next = -1;
    if (p->last_pending >= 0) e->slot[p->last_pending].next = slot;
    else p->first_pending = slot;
    p->last_pending = slot;
    if (op) ddp__collect(e, op, s->peer, now);
}

void ddp__direct_ready(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f, double now)
{
    ddp__peer *p = &e->peers[peer];

    ddp__seen(e, op, peer);
    if (!ddp__in_order(e, peer, op, f)) return;
    if (f->type != DDP__FRAME_RESULT) {
        int i = 0;
        while (i < p->owed_count && (p->owed[i].seq != f->seq || p->owed[i].p2p != f->p2p)) i++;
        if (i == p->owed_count) {
            p->owed[i].seq = f->seq;
            p->owed[i].p2p = f->p2p;
            p->owed[i].count = 0;
            p->owed_count++;
        }
        p->owed[i].count++;
    }
    if (op->ring) ddp__guard_update(e, op, f->offset, f->length / sizeof(float)); /* it will be sent on */
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, f->length / sizeof(float));
}

void ddp__collect_early(ddp__engine *e, ddp__op *op, double now)
{
    for (int peer = 0; peer < e->world; peer++) {
        int s;
        if (peer == e->rank || (op->p2p && (op->m.verb != DDP__RECV || peer != op->m.peer))) continue;
        s = ddp__pending(e, peer, op);
        if (s < 0) continue;
        if (!ddp__agrees(e, peer, op, &e->slot[s].f)) return;
        ddp__seen(e, op, peer);
    }
    for (int peer = 0; peer < e->world && op->state == DDP__OP_ACTIVE && e->fault.code == DDP_OK; peer++)
        if (peer != e->rank && (!op->p2p || (op->m.verb == DDP__RECV && peer == op->m.peer)))
            ddp__collect(e, op, peer, now);
}

void ddp__control_ready(ddp__engine *e, int peer, const ddp__frame *f, double now)
{
    ddp__peer *p = &e->peers[peer];

    (void)now;
    if (f->type == DDP__FRAME_CREDIT) {
        ddp__take_credit(e, peer, f->seq, f->p2p, (int)f->offset);
    } else if (f->type == DDP__FRAME_GOODBYE) {
        p->left = 1;
        p->want_farewell = 1;
        ddp__check_left(e, peer);
    } else if (f->type == DDP__FRAME_FAREWELL) {
        p->farewell = 1;
    } else if (f->type == DDP__FRAME_ABORT && e->fault.code == DDP_OK) {
        int code = f->count > 0 && f->count < (uint32_t)DDP_STATUS_COUNT ? (int)f->count : (int)DDP_FAILED;
        if ((int)f->offset == peer) {
            p->text[DDP_ERROR_TEXT - 32] = '\0';
            ddp__fault(e, (ddp_status)code, "%s (reported by rank %d)", p->text, peer);
        } else {
            ddp__fault(e, (ddp_status)code, "%s", p->text);
        }
        e->fault_origin = (int)f->offset;
    }
}
/* ==== end net/collect.c ==== */

/* ==== begin net/transfer.c ==== [net] */
/* Frames to and from the wire, straight from and into the memory of messages where possible. */

enum { DDP__IOV = 17 };

/* ---- sending ---- */

/* leaves: when the frame's last byte has left the emulated uplink. */
static void ddp__start_frame(ddp__engine *e, int peer, const ddp__frame *f, ddp__op *op, double leaves)
{
    ddp__peer *p = &e->peers[peer];

    p->out = *f;
    p->out.sent = ddp__microseconds(leaves);
    p->out_op = op;
    p->out_slot = -1;
    p->out_sent = 0;
    p->out_total = DDP__FRAME_BYTES + f->length;
    ddp__frame_encode(&p->out, p->out_head);
    if (op) {
        ddp__exchange *x = ddp__row(e, op, op->ring ? ddp__segment_of(e, op, f->offset) : peer);
        size_t count = f->length / sizeof(float);
        if (f->type == DDP__FRAME_RESULT) {
            x->results += count;
        } else {
            x->sent += count;
            ddp__row(e, op, peer)->held++;
            if (op->p2p) p->held_p2p++;
            else p->held_collective++;
        }
        if (op->ring) p->out_slot = ddp__ring_started(e, op, f);
        if (p->out_slot < 0) (void)ddp__guard_check(e, op, f->offset, count);
    }
}

int ddp__start_control(ddp__engine *e, int peer)
{
    ddp__frame f;
    ddp__op *op;

    if (!ddp__next_frame(e, peer, &f, &op)) return 0;
    ddp__start_frame(e, peer, &f, op, ddp_now());
    e->peers[peer].out_state = DDP__OUT_WRITING;
    return 1;
}

static void ddp__frame_sent(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];
    ddp__op *op = p->out_op;

    if (p->out_slot >= 0) ddp__slot_free(e, p->out_slot);
    p->out_state = DDP__OUT_IDLE;
    p->out_op = NULL;
    if (op && e->fault.code == DDP_OK) {
        op->bytes += p->out.length;
        ddp__atomic_add(&e->stats.payload_sent, (int64_t)p->out.length);
        ddp__op_moves(e, op, now);
        ddp__op_advance(e, op, p->out.length / sizeof(float));
    }
}

static int ddp__frame_iov(ddp__engine *e, ddp__peer *p, struct iovec *iov)
{
    size_t at = p->out_sent;
    int n = 0;

    if (at < DDP__FRAME_BYTES) {
        iov[n].iov_base = p->out_head + at;
        iov[n++].iov_len = DDP__FRAME_BYTES - at;
        at = 0;
    } else {
        at -= DDP__FRAME_BYTES;
    }
    while (at < p->out.length && n < DDP__IOV) {
        if (p->out_slot >= 0) {
            iov[n].iov_base = (char *)e->slot[p->out_slot].data + at;
            iov[n].iov_len = p->out.length - at;
        } else if (p->out_op) {
            size_t floats = at / sizeof(float), part = at % sizeof(float), here;
            float *data = ddp__memory_at(p->out_op, p->out.offset + floats,
                                         p->out.length / sizeof(float) - floats, &here);
            iov[n].iov_base = (char *)data + part;
            iov[n].iov_len = here * sizeof(float) - part;
        } else {
            iov[n].iov_base = e->fault.msg + at;
            iov[n].iov_len = p->out.length - at;
        }
        at += iov[n++].iov_len;
    }
    return n;
}

int ddp__continue_frame(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];
    int moved = 0;

    while (p->out_state == DDP__OUT_WRITING) {
        struct iovec iov[DDP__IOV];
        int n = ddp__frame_iov(e, p, iov);
        long took = e->wire->table->send(e->wire, peer, iov, n);
        if (took < 0) {
            p->send_dead = 1;
            p->out_state = DDP__OUT_IDLE;
            p->out_op = NULL;
            return 1;
        }
        if (took == 0) break;
        moved = 1;
        p->last_sent = now;
        p->out_sent += (size_t)took;
        ddp__atomic_add(&e->stats.bytes_sent, (int64_t)took);
        if (p->out_sent == p->out_total) ddp__frame_sent(e, peer, now);
    }
    return moved;
}

/* How much of its part of an operation a peer was given. */
static size_t ddp__given(ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    return f->type == DDP__FRAME_RESULT ? x->results : x->sent;
}

/* Whether frame f of op for peer is to leave before the best one so far: the more urgent operation, results
 * before contributions, then the peer that was given least. Equals go in the order rank + 1, rank + 2, ...: so
 * at any time each rank sends to another one, and no downlink has to serve two of them. */
static int ddp__sooner(ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f, const ddp__op *best_op,
                       int best_peer, const ddp__frame *best)
{
    if (op->m.priority != best_op->m.priority) return op->m.priority < best_op->m.priority;
    if (op != best_op) return op->ticket < best_op->ticket;
    if (f->type != best->type) return f->type == DDP__FRAME_RESULT;
    return ddp__given(e, op, peer, f) < ddp__given(e, op, best_peer, best);
}

/* The uplink takes one frame at a time, the most urgent over all peers. */
static int ddp__load_uplink(ddp__engine *e, double now)
{
    int chosen = -1;
    ddp__frame f, best;
    ddp__op *op, *best_op = NULL;

    memset(&best, 0, sizeof best);
    for (int k = 1; k < e->world; k++) {
        int peer = (e->rank + k) % e->world;
        if (e->peers[peer].out_state != DDP__OUT_IDLE) continue;
        if (!ddp__next_frame(e, peer, &f, &op)) continue;
        if (op && chosen >= 0 && !ddp__sooner(e, op, peer, &f, best_op, chosen, &best)) continue;
        best = f;
        best_op = op;
        chosen = peer;
        if (!op) break; /* ddp__next_frame took the control frame off its list */
    }
    if (chosen < 0) return 0;
    e->up_peer = chosen;
    e->up_release = ddp__link_send(&e->link, now, DDP__FRAME_BYTES + best.length);
    ddp__start_frame(e, chosen, &best, best_op, e->up_release);
    if (best_op) ddp__op_moves(e, best_op, now);
    e->peers[chosen].out_state = DDP__OUT_SERIALISING;
    return 1;
}

int ddp__send_all(ddp__engine *e, double now)
{
    int moved = 0;

    for (int k = 1; k < e->world; k++) {
        int peer = (e->rank + k) % e->world;
        ddp__peer *p = &e->peers[peer];
        ddp__frame f;
        ddp__op *op;
        moved |= ddp__continue_frame(e, peer, now);
        if (e->link.rate > 0 || p->out_state != DDP__OUT_IDLE) continue;
        if (!ddp__next_frame(e, peer, &f, &op)) continue;
        ddp__start_frame(e, peer, &f, op, now);
        if (op) ddp__op_moves(e, op, now);
        p->out_state = DDP__OUT_WRITING;
        moved |= ddp__continue_frame(e, peer, now);
    }
    if (e->link.rate > 0)
        while (e->up_peer < 0 && ddp__load_uplink(e, now)) moved = 1;
    return moved;
}

/* ---- receiving ---- */

static int ddp__is_control(const ddp__frame *f)
{
    return f->type >= DDP__FRAME_CREDIT;
}

/* Chooses where the payload goes; 0 if it has to wait for a slot. */
static int ddp__place_payload(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int solicited = p->in.type == DDP__FRAME_RESULT;
    ddp__op *op = ddp__find_op(e, peer, &p->in);

    p->in_slot = -1;
    p->in_op = NULL;
    if (ddp__is_control(&p->in)) return 1;
    if (!e->shaped && op && !op->m.divergence && (solicited || p->in.type == DDP__FRAME_DATA)) {
        /* Frames of one peer and operation come in order, so nothing of it is pending. */
        if (solicited && !ddp__guard_check(e, op, p->in.offset, p->in.length / sizeof(float))) return 0;
        p->in_op = op;
        return 1;
    }
    if (solicited ? p->solicited >= e->extra : p->staged >= e->credits) {
        if (!solicited)
            ddp__fault(e, DDP_NET, "rank %d sent more than its credits allow; all ranks must use the "
                       "same link rate, delay and chunk size", peer);
        return 0;
    }
    if (solicited) p->solicited++;
    else p->staged++;
    p->in_slot = p->free_slot;
    p->free_slot = e->slot[p->in_slot].next;
    e->slot[p->in_slot].f = p->in;
    return 1;
}

static void ddp__frame_read(ddp__engine *e, int peer, double now)
{
    ddp__peer *p = &e->peers[peer];

    p->in_state = DDP__IN_HEAD;
    p->in_got = 0;
    if (ddp__is_control(&p->in)) {
        if (p->in.type == DDP__FRAME_GOODBYE) p->goodbye_read = 1;
        if (p->in.type == DDP__FRAME_ABORT) {
            p->abort_read = 1;
            p->text[p->in.length] = '\0';
        }
        if (e->shaped) ddp__delay_control(e, peer, now);
        else ddp__control_ready(e, peer, &p->in, now);
    } else if (p->in_op) {
        ddp__direct_ready(e, peer, p->in_op, &p->in, now);
    } else {
        ddp__slot *s = &e->slot[p->in_slot];
        s->arrived = now;
        s->next = -1;
        if (!e->shaped) {
            ddp__slot_ready(e, p->in_slot, now);
        } else {
            ddp__delay_chunk(e, p->in_slot, now);
        }
    }
    p->in_op = NULL;
}

static long ddp__read_payload(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    size_t left = p->in.length - p->in_got;

    if (ddp__is_control(&p->in)) return e->wire->table->recv(e->wire, peer, p->text + p->in_got, left);
    if (p->in_op) {
        size_t floats = p->in_got / sizeof(float), part = p->in_got % sizeof(float), here;
        float *data = ddp__memory_at(p->in_op, p->in.offset + floats,
                                     p->in.length / sizeof(float) - floats, &here);
        return e->wire->table->recv(e->wire, peer, (char *)data + part, here * sizeof(float) - part);
    }
    return e->wire->table->recv(e->wire, peer, (char *)e->slot[p->in_slot].data + p->in_got, left);
}

static void ddp__stream_end(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int why = errno;

    p->closed = 1;
    if (p->goodbye_read || p->abort_read || e->closing) return;
    ddp__peer_lost(e, peer, why && why != ECONNRESET && why != EPIPE ? strerror(why) : "connection closed by peer");
}

/* Reads from one peer until it has nothing more, or a few frames, so that others get a turn. */
static int ddp__receive_from(ddp__engine *e, int peer)
{
    ddp__peer *p = &e->peers[peer];
    int moved = 0, frames = 0;

    while (frames < 4 && !p->closed && e->fault.code == DDP_OK) {
        long got;
        if (p->in_state == DDP__IN_PAUSED) {
            if (!ddp__place_payload(e, peer)) return moved;
            p->in_state = DDP__IN_PAYLOAD;
        }
        if (p->in_state == DDP__IN_HEAD && e->shaped && e->control_count == e->control_room) return moved;
        if (p->in_state == DDP__IN_PAYLOAD && p->in_got == p->in.length) {
            ddp__frame_read(e, peer, ddp_now());
            frames++;
            continue;
        }
        errno = 0;
        if (p->in_state == DDP__IN_HEAD)
            got = e->wire->table->recv(e->wire, peer, p->in_head + p->in_got, DDP__FRAME_BYTES - p->in_got);
        else
            got = ddp__read_payload(e, peer);
        if (got < 0) {
            ddp__stream_end(e, peer);
            return 1;
        }
        if (got == 0) break;
        moved = 1;
        p->in_got += (size_t)got;
        p->last_got = -1; /* set by the caller: one clock reading for all */
        ddp__atomic_add(&e->stats.bytes_received, (int64_t)got);
        if (p->in_state == DDP__IN_HEAD && p->in_got == DDP__FRAME_BYTES) {
            p->in_got = 0;
            if (!ddp__frame_decode(p->in_head, &p->in)) {
                ddp__fault(e, DDP_NET, "rank %d (%s) sent bytes that are no frame: its stream is damaged "
                           "or it runs another version of this library", peer,
                           e->wire->table->peer_name(e->wire, peer));
                return 1;
            }
            if (!ddp__frame_check(e, peer, &p->in)) return 1;
            p->in_state = DDP__IN_PAUSED;
        }
    }
    return moved;
}

int ddp__receive_all(ddp__engine *e)
{
    int moved = 0;

    for (int k = 1; k < e->world && e->fault.code == DDP_OK; k++) {
        int peer = (e->rank + k) % e->world;
        if (!e->peers[peer].closed) moved |= ddp__receive_from(e, peer);
    }
    if (moved) {
        double now = ddp_now();
        for (int peer = 0; peer < e->world; peer++)
            if (e->peers[peer].last_got < 0) e->peers[peer].last_got = now;
    }
    return moved;
}
/* ==== end net/transfer.c ==== */

/* ==== begin net/emulate.c ==== [net] */
/* The emulated link between the wire and the rest of the engine: a queue of what is under way, and
 * events that run at the time they were due, however late the thread wakes up. */

uint32_t ddp__microseconds(double t)
{
    return (uint32_t)(uint64_t)ceil(t * 1e6);
}

/* ---- what is under way ---- */

/* When the frame just read from a peer would have been read, had neither side been late. The quickest frame
 * tells what the wire itself takes and how far apart the clocks are; they drift by 50 ppm at most.
 * Without this the emulated downlink would stand still whenever a thread oversleeps. */
static double ddp__arrival(ddp__peer *p, double now)
{
    uint32_t transit = ddp__microseconds(now) - p->in.sent;
    double late = (double)(int32_t)(transit - p->transit) * 1e-6 - 50e-6 * (now - p->transit_at);

    if (p->transit_at > 0 && late > 0) {
        if (now - late > p->reached) p->reached = now - late;
    } else {
        p->transit = transit;
        p->reached = p->transit_at = now;
    }
    return p->reached;
}

/* Behind all that reached the link's end before it. */
void ddp__delay_chunk(ddp__engine *e, int slot, double now)
{
    ddp__slot *s = &e->slot[slot];
    int before = e->last_due;

    s->reached = ddp__arrival(&e->peers[s->peer], now);
    if (before >= 0 && e->slot[before].reached > s->reached) {
        int next = e->first_due;
        for (before = -1; e->slot[next].reached <= s->reached; next = e->slot[next].next) before = next;
    }
    s->next = before >= 0 ? e->slot[before].next : e->first_due;
    if (before >= 0) e->slot[before].next = slot;
    else e->first_due = slot;
    if (before == e->last_due) e->last_due = slot;
}

void ddp__delay_control(ddp__engine *e, int peer, double now)
{
    const ddp__frame *f = &e->peers[peer].in;
    double reached = ddp__arrival(&e->peers[peer], now);
    ddp__control *c = &e->control[(e->control_first + e->control_count++) % e->control_room];

    c->f = *f;
    c->peer = peer;
    c->due = ddp__link_receive_control(&e->link, reached, DDP__FRAME_BYTES + f->length);
    if (e->control_count > 1) {
        double before = e->control[(e->control_first + e->control_count - 2) % e->control_room].due;
        if (before > c->due) c->due = before;
    }
}

/* ---- events ---- */

typedef enum ddp__event {
    DDP__EVENT_NONE,
    DDP__EVENT_SENT,     /* the uplink has taken a frame */
    DDP__EVENT_CONTROL,
    DDP__EVENT_CHUNK,
    DDP__EVENT_SUBMITTED
} ddp__event;

static void ddp__earlier(ddp__event kind, double time, ddp__event *next, double *when)
{
    if (*next != DDP__EVENT_NONE && *when <= time) return;
    *next = kind;
    *when = time;
}

static ddp__event ddp__next_event(const ddp__engine *e, double *when)
{
    ddp__event next = DDP__EVENT_NONE;

    *when = -1;
    if (e->up_peer >= 0) ddp__earlier(DDP__EVENT_SENT, e->up_release, &next, when);
    if (e->first_due >= 0) {
        const ddp__slot *s = &e->slot[e->first_due];
        ddp__earlier(DDP__EVENT_CHUNK, ddp__link_due(&e->link, s->reached, DDP__FRAME_BYTES + s->f.length), &next, when);
    }
    if (e->control_count > 0) ddp__earlier(DDP__EVENT_CONTROL, e->control[e->control_first].due, &next, when);
    if (e->begun < e->taken)
        ddp__earlier(DDP__EVENT_SUBMITTED, e->ops[e->begun % e->cfg.queue].span.submitted, &next, when);
    return next;
}

double ddp__next_due(const ddp__engine *e)
{
    double when;
    (void)ddp__next_event(e, &when);
    return when;
}

/* When the last chunk of a peer that is under way will be here; -1: none is. */
static double ddp__last_due(const ddp__engine *e, int peer)
{
    ddp__link l = e->link;
    double last = -1;
    int s;

    for (s = e->first_due; s >= 0; s = e->slot[s].next) {
        double due = ddp__link_receive(&l, e->slot[s].reached, DDP__FRAME_BYTES + e->slot[s].f.length);
        if (e->slot[s].peer == peer) last = due;
    }
    return last;
}

static void ddp__control_due(ddp__engine *e, double when)
{
    ddp__control *c = &e->control[e->control_first];

    if (c->f.type == DDP__FRAME_GOODBYE) { /* it closes the stream: it must not overtake data */
        double last = ddp__last_due(e, c->peer);
        if (last >= 0) {
            c->due = last;
            return;
        }
    }
    e->control_first = (e->control_first + 1) % e->control_room;
    e->control_count--;
    ddp__control_ready(e, c->peer, &c->f, when);
}

int ddp__run_due(ddp__engine *e, double now)
{
    int moved = 0;
    double when;
    ddp__event kind;

    /* Events run at the time they were due, and so do the frames that they make possible:
     * a thread that wakes up late loses nothing of the rate. */
    while (e->fault.code == DDP_OK && (kind = ddp__next_event(e, &when)) != DDP__EVENT_NONE && when <= now) {
        if (kind == DDP__EVENT_SENT) {
            int peer = e->up_peer;
            e->up_peer = -1;
            e->peers[peer].out_state = DDP__OUT_WRITING;
            (void)ddp__continue_frame(e, peer, when);
        } else if (kind == DDP__EVENT_CONTROL) {
            ddp__control_due(e, when);
        } else if (kind == DDP__EVENT_SUBMITTED) {
            e->begun++;
            e->dirty = 1;
        } else {
            int s = e->first_due;
            (void)ddp__link_receive(&e->link, e->slot[s].reached, DDP__FRAME_BYTES + e->slot[s].f.length);
            e->first_due = e->slot[s].next;
            if (e->first_due < 0) e->last_due = -1;
            e->slot[s].next = -1;
            ddp__slot_ready(e, s, when);
        }
        ddp__activate(e, when);
        (void)ddp__send_all(e, when);
        moved = 1;
    }
    return moved;
}
/* ==== end net/emulate.c ==== */

/* ==== begin net/guard.c ==== [net] */
/* Detection of writes to memory in flight: every chunk is hashed when the message is submitted
 * and compared before it leaves, before it is summed and before a result overwrites it. */

ddp_status ddp__engine_guard(ddp__engine *e, size_t max_count, ddp_error *err)
{
    size_t room = max_count / e->chunk + 2 * (size_t)e->world + 2;
    size_t bytes = (size_t)e->cfg.queue * room * sizeof(uint64_t);
    ddp_status status = DDP_OK;
    uint64_t *sums;

    if (e->world == 1) return DDP_OK; /* nothing is ever in flight */
    sums = (uint64_t *)ddp__alloc(&e->cfg.allocator, bytes);
    if (!sums)
        return ddp__fail(err, DDP_MEMORY, "the check of writes needs %lu bytes and got none", (unsigned long)bytes);
    pthread_mutex_lock(&e->lock);
    if (e->first != e->submitted) {
        status = ddp__fail(err, DDP_USAGE, "the check of writes cannot begin while %ld messages are in flight",
                           e->submitted - e->first);
        ddp__release(&e->cfg.allocator, sums, bytes);
    } else {
        ddp__guard_close(e);
        e->sums = sums;
        e->sums_room = room;
        e->sums_count = max_count;
        e->stats.staging_bytes += bytes;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

void ddp__guard_close(ddp__engine *e)
{
    size_t bytes = (size_t)e->cfg.queue * e->sums_room * sizeof(uint64_t);

    if (!e->sums) return;
    ddp__release(&e->cfg.allocator, e->sums, bytes);
    e->stats.staging_bytes -= bytes;
    e->sums = NULL;
}

static int ddp__guards(const ddp__engine *e, const ddp__op *op)
{
    if (!e->sums || op->n > e->sums_count) return 0;
    if (op->m.verb == DDP__BROADCAST) return op->m.peer == e->rank;
    return op->m.verb == DDP__ALL_REDUCE || op->m.verb == DDP__SEND;
}

static uint64_t ddp__hash_range(ddp__engine *e, const ddp__op *op, size_t offset, size_t count)
{
    uint64_t h = offset;
    while (count > 0) {
        size_t here;
        float *data = ddp__memory_at(op, offset, count, &here);
        h = e->memory.checksum(h, data, here);
        offset += here;
        count -= here;
    }
    return h;
}

/* Chunks are numbered through the segments, each segment beginning a new one. */
static size_t ddp__hash_index(const ddp__engine *e, const ddp__op *op, size_t offset)
{
    size_t from, to, per;
    int of;

    if (op->m.verb != DDP__ALL_REDUCE) return offset / e->chunk;
    per = (op->n / (size_t)e->world + 1 + e->chunk - 1) / e->chunk;
    of = ddp__segment_of(e, op, offset);
    ddp__segment(e, op, of, &from, &to);
    return (size_t)of * per + (offset - from) / e->chunk;
}

void ddp__guard_update(ddp__engine *e, ddp__op *op, size_t offset, size_t count)
{
    if (op->sums) op->sums[ddp__hash_index(e, op, offset)] = ddp__hash_range(e, op, offset, count);
}

void ddp__guard_all(ddp__engine *e, ddp__op *op)
{
    int segments = op->m.verb == DDP__ALL_REDUCE ? e->world : 1;

    if (!ddp__guards(e, op)) return;
    op->sums = e->sums + (size_t)(op->ticket % e->cfg.queue) * e->sums_room;
    for (int s = 0; s < segments; s++) {
        size_t from = 0, to = op->n;
        if (segments > 1) ddp__segment(e, op, s, &from, &to);
        for (size_t at = from; at < to; at += e->chunk)
            ddp__guard_update(e, op, at, to - at < e->chunk ? to - at : e->chunk);
    }
}

int ddp__guard_check(ddp__engine *e, ddp__op *op, size_t offset, size_t count)
{
    char layer[64];

    if (!op->sums) return 1;
    if (op->sums[ddp__hash_index(e, op, offset)] == ddp__hash_range(e, op, offset, count)) return 1;
    ddp__layer_text(e, op->m.layer, layer, sizeof layer);
    ddp__fault(e, DDP_USAGE, "%s was written while it was being %s (step %ld): do not touch parameters "
               "between ddp_backward_end and ddp_forward_begin / ddp_step_end", layer,
               op->m.verb == DDP__ALL_REDUCE ? "averaged" : "sent", op->m.step);
    return 0;
}
/* ==== end net/guard.c ==== */

/* ==== begin net/liveness.c ==== [net] */
/* Everything that ends an engine before its time: lost and silent peers, operations that do not
 * move, abort; and the sentences that say so. */

const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room)
{
    const char *name = layer >= 0 && e->cfg.layer_name ? e->cfg.layer_name(e->cfg.user, layer) : NULL;

    if (name) snprintf(buf, room, "layer %s", name);
    else if (layer >= 0) snprintf(buf, room, "layer %d", layer);
    else snprintf(buf, room, layer == DDP__ALL_LAYERS ? "all layers" : "a plain buffer");
    return buf;
}

static const char *ddp__verb_name(int verb)
{
    static const char *const text[] = {"all-reduce", "broadcast", "all-gather", "send", "receive"};
    return text[verb];
}

const char *ddp__op_text(const ddp__engine *e, const ddp__op *op, char *buf, size_t room)
{
    char layer[64], peer[32];

    ddp__layer_text(e, op->m.layer, layer, sizeof layer);
    peer[0] = '\0';
    if (op->p2p)
        snprintf(peer, sizeof peer, op->m.verb == DDP__SEND ? " to rank %d" : " from rank %d", op->m.peer);
    snprintf(buf, room, "%s%s of %s (step %ld)", ddp__verb_name((int)op->m.verb), peer, layer, op->m.step);
    return buf;
}

void ddp__fault(ddp__engine *e, ddp_status code, const char *fmt, ...)
{
    va_list args;

    if (e->fault.code != DDP_OK) return;
    va_start(args, fmt);
    vsnprintf(e->fault.msg, sizeof e->fault.msg, fmt, args);
    va_end(args);
    e->fault.code = code;
    e->fault_origin = e->rank;
    pthread_mutex_lock(&e->lock);
    if (e->error.code == DDP_OK) e->error = e->fault;
    else e->fault = e->error;
    pthread_mutex_unlock(&e->lock);
}

/* The oldest operation in flight, or the oldest that needs that peer; NULL when idle. */
static const ddp__op *ddp__oldest_op(const ddp__engine *e, int peer)
{
    const ddp__op *oldest = NULL;

    for (int i = 0; i < DDP__WINDOW + 2; i++) {
        const ddp__op *op = i < DDP__WINDOW ? e->window[i]
                          : i == DDP__WINDOW ? e->peers[peer].send_op : e->peers[peer].recv_op;
        if (op && (!oldest || op->ticket < oldest->ticket)) oldest = op;
    }
    return oldest;
}

void ddp__peer_lost(ddp__engine *e, int peer, const char *why)
{
    const ddp__op *op = ddp__oldest_op(e, peer);
    const char *when = op ? " during " : "";
    char text[128], layer[64];

    text[0] = '\0';
    if (op) {
        ddp__op_text(e, op, text, sizeof text);
    } else if (e->span_count > 0) { /* nothing in flight: what was last */
        const ddp__op_span *last = &e->spans[(e->span_count - 1) % DDP__SPANS];
        when = " after ";
        snprintf(text, sizeof text, "%s of %s (step %ld)", ddp__verb_name((int)last->verb),
                 ddp__layer_text(e, last->layer, layer, sizeof layer), last->step);
    }
    ddp__fault(e, DDP_PEER_LOST, "rank %d (%s) was lost%s%s: %s; restart the job from its last checkpoint",
               peer, e->wire->table->peer_name(e->wire, peer), when, text, why);
}

void ddp__check_left(ddp__engine *e, int peer)
{
    for (int i = 0; i < DDP__WINDOW + 2; i++) {
        const ddp__op *op = i < DDP__WINDOW ? e->window[i]
                          : i == DDP__WINDOW ? e->peers[peer].send_op : e->peers[peer].recv_op;
        size_t from, to, in_from = 0, in_to = 0, own_from = 0, own_to = 0;
        const ddp__exchange *x;
        char text[128];
        if (!op || op->state != DDP__OP_ACTIVE || (op->p2p && op->m.peer != peer)) continue;
        if (op->ring && !ddp__ring_needs(e, op, peer)) continue;
        x = ddp__row(e, op, peer);
        if (op->m.verb == DDP__ALL_REDUCE) ddp__segment(e, op, e->rank, &own_from, &own_to);
        ddp__outgoing(e, op, peer, &from, &to);
        if (op->m.verb == DDP__ALL_REDUCE || op->m.verb == DDP__ALL_GATHER)
            ddp__segment(e, op, peer, &in_from, &in_to);
        else if (op->m.verb == DDP__RECV || (op->m.verb == DDP__BROADCAST && op->m.peer == peer))
            in_to = op->n;
        if (!op->ring && x->sent >= to - from && x->results >= own_to - own_from &&
            (op->m.verb == DDP__ALL_REDUCE ? x->finished : x->taken) >= in_to - in_from && !x->expected)
            continue;
        ddp__fault(e, DDP_PEER_LOST, "rank %d has left (it closed its context) and %s still needs it: every "
                   "rank must run the same number of steps", peer, ddp__op_text(e, op, text, sizeof text));
        return;
    }
}

/* "ranks 1, 3" of those that have sent nothing for an operation. */
static const char *ddp__missing_text(ddp__engine *e, const ddp__op *op, char *buf, size_t room)
{
    size_t used = 0;
    int listed = 0;

    buf[0] = '\0';
    for (int r = 0; r < e->world && used + 16 < room; r++) {
        if (r == e->rank || (op->p2p && r != op->m.peer) || !ddp__row(e, op, r)->expected) continue;
        used += (size_t)snprintf(buf + used, room - used, listed++ ? ", %d" : "%d", r);
    }
    return buf;
}

static void ddp__check_op(ddp__engine *e, ddp__op *op, double now, double *again)
{
    double since, limit = e->cfg.op_timeout_s;
    char text[128], who[96];

    if (!op || op->state != DDP__OP_ACTIVE) return;
    since = op->last_move > op->active_at ? op->last_move : op->active_at;
    if (limit > 0 && since + limit < *again) *again = since + limit;
    if (!op->warned && since + 5 < *again) *again = since + 5;
    if (!(limit > 0 && now - since >= limit) && !(!op->warned && now - since >= 5)) return;
    ddp__missing_text(e, op, who, sizeof who);
    if (limit > 0 && now - since >= limit) {
        if (who[0])
            ddp__fault(e, DDP_TIMEOUT, "%s did not move for %.1f s: rank %s did not submit it in time; look "
                       "there first, or raise the time limit",
                       ddp__op_text(e, op, text, sizeof text), now - since, who);
        else
            ddp__fault(e, DDP_TIMEOUT, "%s did not move for %.1f s, with %lu floats still to send or receive: "
                       "a rank %sis stopped or the network stalls; raise the time limit if it is merely slow",
                       ddp__op_text(e, op, text, sizeof text), now - since, (unsigned long)op->left,
                       op->ring && op->missing ? "did not submit it, " : "");
        return;
    }
    op->warned = 1;
    ddp__log(&e->cfg.log, DDP_LOG_WARN, "rank %d: %s has not moved for %.1f s%s%s", e->rank,
             ddp__op_text(e, op, text, sizeof text), now - since,
             who[0] ? ", not submitted by rank " : "", who);
}

/* Others wait in an operation that this rank has not submitted. */
static void ddp__check_early(ddp__engine *e, int peer, double now, double *again)
{
    double limit = e->cfg.op_timeout_s;
    int s = e->peers[peer].first_pending;
    char layer[64];

    if (limit <= 0 || s < 0) return;
    if (ddp__find_op(e, peer, &e->slot[s].f) || ddp__oldest_op(e, peer)) return;
    if (now - e->slot[s].arrived >= limit)
        ddp__fault(e, DDP_TIMEOUT, "rank %d has waited %.1f s in %s of %s, which this rank (%d) has not "
                   "submitted: all ranks must submit the same operations", peer,
                   now - e->slot[s].arrived, ddp__verb_name(e->slot[s].f.verb),
                   ddp__layer_text(e, e->slot[s].f.layer, layer, sizeof layer), e->rank);
    else if (e->slot[s].arrived + limit < *again)
        *again = e->slot[s].arrived + limit;
}

double ddp__check_liveness(ddp__engine *e, double now)
{
    double beat = e->cfg.peer_timeout_s > 0 && e->cfg.peer_timeout_s < 5 ? e->cfg.peer_timeout_s / 5 : 1;
    double again = now + beat;

    for (int peer = 0; peer < e->world && e->fault.code == DDP_OK; peer++) {
        ddp__peer *p = &e->peers[peer];
        if (peer == e->rank) continue;
        if (!p->goodbye_read && !p->closed) {
            if (now - p->last_sent >= beat && p->out_state == DDP__OUT_IDLE && !e->closing) {
                p->want_heartbeat = 1;
                p->last_sent = now;
            }
            if (p->out_state == DDP__OUT_IDLE && p->last_sent + beat < again) again = p->last_sent + beat;
            if (e->cfg.peer_timeout_s > 0 && p->in_state != DDP__IN_PAUSED) {
                double limit = e->cfg.peer_timeout_s;
                if (now - p->last_got >= limit) {
                    char why[64];
                    snprintf(why, sizeof why, "no sign of life for %.1f s", now - p->last_got);
                    ddp__peer_lost(e, peer, why);
                } else if (p->last_got + limit < again) again = p->last_got + limit;
            }
        }
        ddp__check_op(e, p->send_op, now, &again);
        ddp__check_op(e, p->recv_op, now, &again);
        ddp__check_early(e, peer, now, &again);
    }
    for (int i = 0; i < DDP__WINDOW && e->fault.code == DDP_OK; i++) ddp__check_op(e, e->window[i], now, &again);
    return again;
}
/* ==== end net/liveness.c ==== */

/* ==== begin net/spans.c ==== [net] */
/* The record of what travelled when, and the counters. */

void ddp__span_finish(ddp__engine *e, const ddp__op *op)
{
    ddp__op_span *s = &e->spans[e->span_count++ % DDP__SPANS];

    *s = op->span;
    e->stats.operations++;
    if (op->m.verb == DDP__ALL_REDUCE) e->stats.algorithm = op->span.algorithm;
}

int ddp__engine_spans(ddp__engine *e, double t0, double t1, ddp__op_span *out, int room)
{
    int n = 0;
    long from;

    pthread_mutex_lock(&e->lock);
    from = e->span_count > DDP__SPANS ? e->span_count - DDP__SPANS : 0;
    for (; from < e->span_count && n < room; from++) {
        const ddp__op_span *s = &e->spans[from % DDP__SPANS];
        if (s->end >= t0 && s->begin <= t1) out[n++] = *s;
    }
    for (long t = e->first; t < e->submitted && n < room; t++) {
        const ddp__op *op = &e->ops[t % e->cfg.queue];
        if (!op->done && op->span.begin >= 0 && op->span.begin <= t1) out[n++] = op->span;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

void ddp__engine_stats(ddp__engine *e, ddp__net_stats *out)
{
    out->bytes_sent = ddp__atomic_load(&e->stats.bytes_sent);
    out->bytes_received = ddp__atomic_load(&e->stats.bytes_received);
    out->payload_sent = ddp__atomic_load(&e->stats.payload_sent);
    pthread_mutex_lock(&e->lock);
    out->operations = e->stats.operations;
    out->busy_s = e->stats.busy_s + (e->running > 0 ? ddp_now() - e->running_since : 0);
    out->staging_bytes = e->stats.staging_bytes;
    out->delay_bytes = e->stats.delay_bytes;
    out->algorithm = e->stats.algorithm;
    pthread_mutex_unlock(&e->lock);
}
/* ==== end net/spans.c ==== */

/* ==== begin net/engine.c ==== [net] */

/* ---- comm thread ---- */

/* New messages, requests to abort or to stop. */
static void ddp__look(ddp__engine *e)
{
    pthread_mutex_lock(&e->lock);
    if (e->submitted != e->taken) {
        e->taken = e->submitted;
        e->dirty = 1;
    }
    e->stopping = e->stop;
    if (e->error.code != DDP_OK && e->fault.code == DDP_OK) {
        e->fault = e->error;
        e->fault_origin = e->rank;
    }
    pthread_mutex_unlock(&e->lock);
}

static void ddp__sleep(ddp__engine *e, double until)
{
    int ready;

    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        e->want_send[r] = r != e->rank && p->out_state == DDP__OUT_WRITING;
        e->want_recv[r] = r != e->rank && !p->closed && p->in_state != DDP__IN_PAUSED &&
                          !(e->shaped && e->control_count == e->control_room);
    }
    pthread_mutex_lock(&e->lock);
    ready = e->submitted != e->taken || e->stop != e->stopping ||
            (e->error.code != DDP_OK) != (e->fault.code != DDP_OK);
    e->sleeping = !ready;
    pthread_mutex_unlock(&e->lock);
    if (ready) return;
    e->wire->table->wait(e->wire, e->want_send, e->want_recv, until);
    pthread_mutex_lock(&e->lock);
    e->sleeping = 0;
    pthread_mutex_unlock(&e->lock);
}

/* After a failure: finishes frames that are half written, so that streams stay readable, tells
 * the peers why, and lets go of all memory. */
static void ddp__give_up(ddp__engine *e)
{
    double until = ddp_now() + 0.5;
    int busy = 1;

    ddp__log(&e->cfg.log, DDP_LOG_ERROR, "rank %d: %s", e->rank, e->fault.msg);
    for (int r = 0; r < e->world; r++) {
        ddp__peer *p = &e->peers[r];
        p->want_abort = r != e->rank && !p->closed && !p->left;
        if (p->out_state == DDP__OUT_SERIALISING || (p->out_state == DDP__OUT_WRITING && p->out_sent == 0))
            p->out_state = DDP__OUT_IDLE;
        e->want_recv[r] = 0;
    }
    e->up_peer = -1;
    while (busy) {
        double now = ddp_now();
        busy = 0;
        for (int r = 0; r < e->world; r++) {
            ddp__peer *p = &e->peers[r];
            if (r == e->rank) continue;
            (void)ddp__continue_frame(e, r, now);
            if (p->out_state == DDP__OUT_IDLE && p->want_abort && ddp__start_control(e, r))
                (void)ddp__continue_frame(e, r, now);
            e->want_send[r] = p->out_state == DDP__OUT_WRITING;
            busy |= e->want_send[r];
        }
        if (now >= until) break;
        if (busy) e->wire->table->wait(e->wire, e->want_send, e->want_recv, until);
    }
    pthread_mutex_lock(&e->lock);
    e->quiet = 1;
    pthread_cond_broadcast(&e->changed);
    while (!e->stop) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

/* After close: finishes what still moves, says goodbye, and stays until the peers have read
 * everything. 1 when there is nothing left to stay for. */
static int ddp__may_stop(ddp__engine *e, double now, double *until)
{
    int waiting = 0, moving = e->first < e->taken;
    double patience = 0.5 + 2 * e->link.delay_s;

    if (!e->closing) {
        if (moving && now < e->last_move + patience) {
            if (e->last_move + patience < *until) *until = e->last_move + patience;
            return 0;
        }
        e->closing = 1;
        e->last_move = now;
        for (int r = 0; r < e->world; r++) {
            ddp__peer *p = &e->peers[r];
            if (r != e->rank && !p->closed) p->want_goodbye = 1;
        }
        *until = now;
        return 0;
    }
    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        if (r == e->rank || p->closed || p->send_dead) continue;
        waiting |= !p->farewell || p->want_farewell || p->want_goodbye || p->out_state != DDP__OUT_IDLE;
    }
    if (!waiting || now >= e->last_move + patience + 0.5) return 1;
    if (e->last_move + patience + 0.5 < *until) *until = e->last_move + patience + 0.5;
    return 0;
}

static void *ddp__engine_main(void *arg)
{
    ddp__engine *e = (ddp__engine *)arg;
    double now = ddp_now(), next_check = now;

    if (e->link.rate > 0) ddp__thread_prompt(); /* the emulated link would be late where all cores compute */
    for (int r = 0; r < e->world; r++) e->peers[r].last_got = e->peers[r].last_sent = now;
    for (;;) {
        int moved;
        double until;
        ddp__look(e);
        moved = e->fault.code == DDP_OK && ddp__receive_all(e);
        now = ddp_now();
        if (e->shaped && ddp__run_due(e, now)) moved = 1;
        ddp__activate(e, now);
        if (e->fault.code == DDP_OK && ddp__send_all(e, now)) moved = 1;
        ddp__activate(e, now);
        if (e->finished) {
            ddp__publish(e);
            moved = 1;
        }
        if (e->fault.code == DDP_OK && (!moved || now >= next_check)) next_check = ddp__check_liveness(e, now);
        until = next_check;
        if (e->fault.code != DDP_OK) {
            ddp__give_up(e);
            break;
        }
        if (e->stopping && ddp__may_stop(e, now, &until)) break;
        if (moved) continue;
        ddp__note_waiting(e, now);
        if (e->shaped || e->link.rate > 0) {
            double due = ddp__next_due(e);
            if (due >= 0 && due < until) until = due;
        }
        ddp__sleep(e, until);
    }
    return NULL;
}

/* ---- opening and closing ---- */

/* A place in the one block that holds everything. */
static void *ddp__carve(unsigned char *block, size_t *used, size_t count, size_t size)
{
    void *p = block ? block + *used : NULL;
    *used += (count * size + 63) / 64 * 64;
    return p;
}

/* Assigns all arrays within block, or with NULL only measures. */
static size_t ddp__engine_layout(ddp__engine *e, unsigned char *block)
{
    size_t used = 0, world = (size_t)e->world, queue = (size_t)e->cfg.queue;
    size_t slots = (size_t)e->slots * world, stride = (e->chunk * sizeof(float) + 63) / 64 * 64;

    (void)ddp__carve(block, &used, 1, sizeof *e);
    e->ops = (ddp__op *)ddp__carve(block, &used, queue, sizeof *e->ops);
    e->strips = (ddp__strip *)ddp__carve(block, &used, (size_t)e->strip_room, sizeof *e->strips);
    e->peers = (ddp__peer *)ddp__carve(block, &used, world, sizeof *e->peers);
    e->rows = (ddp__exchange *)ddp__carve(block, &used, DDP__ROWS * world, sizeof *e->rows);
    e->slot = (ddp__slot *)ddp__carve(block, &used, slots, sizeof *e->slot);
    e->control = (ddp__control *)ddp__carve(block, &used, (size_t)e->control_room, sizeof *e->control);
    e->spans = (ddp__op_span *)ddp__carve(block, &used, DDP__SPANS, sizeof *e->spans);
    e->want_send = (unsigned char *)ddp__carve(block, &used, world, 1);
    e->want_recv = (unsigned char *)ddp__carve(block, &used, world, 1);
    e->terms = (const float **)ddp__carve(block, &used, world, sizeof *e->terms);
    for (int r = 0; r < e->world; r++) {
        if (r == e->rank) continue;
        for (int i = 0; i < e->slots; i++) {
            void *data = ddp__carve(block, &used, 1, stride);
            ddp__slot *s = block ? &e->slot[r * e->slots + i] : NULL;
            if (!s) continue;
            s->data = (float *)data;
            s->peer = r;
            s->next = i + 1 < e->slots ? r * e->slots + i + 1 : -1;
        }
        if (block) e->peers[r].free_slot = r * e->slots;
    }
    return used;
}

/* Chunk size and number of staging slots. */
static void ddp__dimension(ddp__engine *e)
{
    size_t bytes = e->cfg.chunk_bytes ? e->cfg.chunk_bytes : ddp__link_chunk(e->cfg.rate);
    size_t most = e->cfg.max_count < SIZE_MAX / 8 ? e->cfg.max_count * sizeof(float) : 0, slots;

    if (most > 0 && bytes > most) bytes = most;
    if (bytes > DDP__CHUNK_MAX) bytes = DDP__CHUNK_MAX;
    bytes = bytes < 64 ? 64 : bytes / 64 * 64;
    slots = (DDP__STAGING_BYTES - (e->wire ? e->wire->pair_bytes : 0)) / bytes;
    if (slots > DDP__SLOTS_MAX) slots = DDP__SLOTS_MAX;
    if (most > 0 && slots > 4 * (most / bytes + 1)) slots = 4 * (most / bytes + 1);
    /* Where chunks are small an operation is short against its latency: more of them then. Decided
     * by the chunk alone, so that it is the same over threads and TCP. */
    e->width = bytes <= DDP__CHUNK_SMALL ? DDP__WINDOW : 4;
    /* one per operation in flight, the ring's bubble, send/recv, results */
    if (slots < (size_t)e->width + 3) slots = (size_t)e->width + 3;
    e->chunk = bytes / sizeof(float);
    e->credits = (int)slots - 1;
    e->extra = 1;
    e->control_room = 1;
    if (e->shaped) {
        /* What is under way for one delay, at most 8 MiB per peer. */
        double flight = e->cfg.rate * e->cfg.delay_s / (double)bytes + 5;
        double cap = (double)(8 * DDP__STAGING_BYTES) / (double)bytes;
        e->extra += (int)(flight < cap ? flight : cap);
        e->control_room = 64 + 4 * e->world * (int)slots;
    }
    e->slots = e->credits + e->extra;
    e->ring_bytes = ddp__ring_bytes(e);
    e->delay_bytes = (size_t)(e->extra - 1) * bytes * (size_t)(e->world - 1);
    e->strip_room = DDP__STRIPS_MIN;
}

static ddp_status ddp__engine_check(const ddp__engine_config *cfg, ddp_error *err)
{
    if (cfg->world < 1 || cfg->rank < 0 || cfg->rank >= cfg->world)
        return ddp__fail(err, DDP_ARG, "rank %d of world %d does not exist", cfg->rank, cfg->world);
    if (cfg->world > 1 && !cfg->wire)
        return ddp__fail(err, DDP_ARG, "an engine for %d ranks needs a wire", cfg->world);
    if (!(cfg->rate >= 0) || !(cfg->delay_s >= 0) || !(cfg->delay_s < 60))
        return ddp__fail(err, DDP_ARG, "link rate %g bytes/s or delay %g s is out of range", cfg->rate, cfg->delay_s);
    if (cfg->check_writes && cfg->max_count == 0)
        return ddp__fail(err, DDP_ARG, "check_writes needs max_count, the floats of the largest message");
    return DDP_OK;
}

ddp_status ddp__engine_open(const ddp__engine_config *cfg, ddp__engine **out, ddp_error *err)
{
    ddp__engine plan, *e;
    unsigned char *block;
    ddp_status status = DDP_OK;

    *out = NULL;
    DDP__TRY(ddp__engine_check(cfg, err));
    memset(&plan, 0, sizeof plan);
    plan.cfg = *cfg;
    plan.wire = cfg->wire;
    plan.rank = cfg->rank;
    plan.world = cfg->world;
    plan.link.rate = cfg->world > 1 ? cfg->rate : 0;
    plan.link.delay_s = cfg->world > 1 ? cfg->delay_s : 0;
    plan.shaped = plan.link.rate > 0 || plan.link.delay_s > 0;
    if (plan.cfg.queue < 1) plan.cfg.queue = 64;
    plan.memory = ddp__host_memory();
    plan.up_peer = plan.first_due = plan.last_due = -1;
    ddp__dimension(&plan);
    plan.block_bytes = ddp__engine_layout(&plan, NULL);
    block = (unsigned char *)ddp__alloc(&cfg->allocator, plan.block_bytes);
    if (!block)
        return ddp__fail(err, DDP_MEMORY, "the network engine needs %lu bytes and got none",
                         (unsigned long)plan.block_bytes);
    (void)ddp__engine_layout(&plan, block);
    e = (ddp__engine *)(void *)block;
    *e = plan;
    e->stats.staging_bytes = e->block_bytes;
    e->stats.delay_bytes = e->delay_bytes;
    for (int r = 0; r < e->world; r++) {
        e->peers[r].in_slot = e->peers[r].first_pending = e->peers[r].last_pending = -1;
        if (r == e->rank) e->peers[r].free_slot = -1;
    }
    if (pthread_mutex_init(&e->lock, NULL) == 0) {
        if (ddp__cond_init(&e->changed) == 0) {
            if (cfg->check_writes) status = ddp__engine_guard(e, cfg->max_count, err);
            if (status == DDP_OK && (e->world == 1 || pthread_create(&e->thread, NULL, ddp__engine_main, e) == 0)) {
                *out = e;
                return DDP_OK;
            }
            ddp__guard_close(e);
            pthread_cond_destroy(&e->changed);
        }
        pthread_mutex_destroy(&e->lock);
    }
    ddp__release(&cfg->allocator, block, plan.block_bytes);
    if (status != DDP_OK) return status;
    return ddp__fail(err, DDP_MEMORY, "cannot start the comm thread: the system has no threads left");
}

/* Under the lock: the comm thread has to look. */
static void ddp__notify(ddp__engine *e)
{
    int sleeping = e->sleeping;

    e->sleeping = 0;
    pthread_cond_broadcast(&e->changed);
    if (sleeping) e->wire->table->wake(e->wire);
}

int ddp__engine_width(const ddp__engine *e) { return e->width; }

void ddp__engine_close(ddp__engine *e)
{
    ddp_allocator allocator;

    if (!e) return;
    allocator = e->cfg.allocator;
    pthread_mutex_lock(&e->lock);
    e->stop = 1;
    ddp__notify(e);
    pthread_mutex_unlock(&e->lock);
    if (e->world > 1) pthread_join(e->thread, NULL);
    if (e->wire) e->wire->table->close(e->wire);
    ddp__guard_close(e);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    ddp__release(&allocator, e, e->block_bytes);
}

/* ---- submitters ---- */

static ddp_status ddp__message_check(const ddp__engine *e, const ddp__message *m, ddp_error *err)
{
    size_t n = 0;

    for (int i = 0; i < m->piece_count; i++) n += m->pieces[i].count;
    if (n > UINT32_MAX)
        return ddp__fail(err, DDP_ARG, "a message of %lu values is too long; split it below 2^32", (unsigned long)n);
    if (m->piece_count < 0 || m->piece_count > e->strip_room / 2)
        return ddp__fail(err, DDP_ARG, "a message of %d pieces; at most %ld are possible", m->piece_count, e->strip_room / 2);
    if (m->verb != DDP__ALL_REDUCE && m->verb != DDP__ALL_GATHER &&
        (m->peer < 0 || m->peer >= e->world || (m->peer == e->rank && m->verb != DDP__BROADCAST)))
        return ddp__fail(err, DDP_ARG, "rank %d cannot be the peer of a message of rank %d in a world of %d",
                         m->peer, e->rank, e->world);
    if (m->verb == DDP__ALL_GATHER && n % (size_t)e->world)
        return ddp__fail(err, DDP_ARG, "an all-gather of %lu values does not divide over %d ranks",
                         (unsigned long)n, e->world);
    return DDP_OK;
}

/* Room for count strips in the pool, contiguous; the first index, or -1. */
static long ddp__strip_place(const ddp__engine *e, long count)
{
    long start = e->strips_head;

    if (start % e->strip_room + count > e->strip_room) start += e->strip_room - start % e->strip_room;
    return start + count - e->strips_tail <= e->strip_room ? start : -1;
}

static void ddp__op_fill(ddp__engine *e, ddp__op *op, const ddp__message *m, long start)
{
    memset(op, 0, sizeof *op);
    op->m = *m;
    op->m.pieces = NULL;
    if (m->scale == 0) op->m.scale = 1;
    op->strips = e->strips + start % e->strip_room;
    for (int i = 0; i < m->piece_count; i++) {
        ddp__strip *last = op->strip_count ? &op->strips[op->strip_count - 1] : NULL;
        if (m->pieces[i].count == 0) continue;
        if (last && last->data + last->count == m->pieces[i].data) {
            last->count += m->pieces[i].count;
        } else {
            ddp__strip *s = &op->strips[op->strip_count++];
            s->data = m->pieces[i].data;
            s->start = op->n;
            s->count = m->pieces[i].count;
        }
        op->n += m->pieces[i].count;
    }
    op->strips_end = start + op->strip_count;
    op->ticket = e->submitted;
    op->p2p = m->verb == DDP__SEND || m->verb == DDP__RECV;
    op->state = DDP__OP_QUEUED;
    op->waiting_since = -1;
    op->span.begin = op->span.end = -1;
    op->span.submitted = ddp_now();
    op->span.step = m->step;
    op->span.layer = m->layer;
    op->span.filler = m->filler;
    op->span.verb = m->verb;
    op->ring = m->verb == DDP__ALL_REDUCE && op->n * sizeof(float) >= e->ring_bytes;
    op->span.algorithm = m->verb != DDP__ALL_REDUCE ? 'p' : op->ring ? 'r' : 'd';
    ddp__guard_all(e, op);
}

ddp_status ddp__engine_submit(ddp__engine *e, const ddp__message *m, long *ticket, ddp_error *err)
{
    ddp_status bad = ddp__message_check(e, m, err);
    long start = -1;

    if (bad != DDP_OK) return bad;
    pthread_mutex_lock(&e->lock);
    while (e->error.code == DDP_OK &&
           (e->submitted - e->first >= e->cfg.queue || (start = ddp__strip_place(e, m->piece_count)) < 0))
        pthread_cond_wait(&e->changed, &e->lock);
    if (e->error.code != DDP_OK) {
        if (err) *err = e->error;
        bad = e->error.code;
        pthread_mutex_unlock(&e->lock);
        return bad;
    }
    ddp__op_fill(e, &e->ops[e->submitted % e->cfg.queue], m, start);
    e->strips_head = e->ops[e->submitted % e->cfg.queue].strips_end;
    if (ticket) *ticket = e->submitted;
    e->submitted++;
    if (e->world > 1) ddp__notify(e);
    pthread_mutex_unlock(&e->lock);
    if (e->world == 1) {
        /* Alone: nothing travels, the caller does the arithmetic. */
        e->taken = e->submitted;
        e->dirty = 1;
        ddp__activate(e, ddp_now());
        ddp__publish(e);
    }
    return DDP_OK;
}

static int ddp__ticket_done(const ddp__engine *e, long ticket)
{
    return ticket < e->first || (ticket < e->submitted && e->ops[ticket % e->cfg.queue].done);
}

ddp_status ddp__engine_wait(ddp__engine *e, long ticket, ddp_error *err)
{
    ddp_status status = DDP_OK;

    pthread_mutex_lock(&e->lock);
    while (!ddp__ticket_done(e, ticket) && !e->quiet && !(e->world == 1 && e->error.code != DDP_OK))
        pthread_cond_wait(&e->changed, &e->lock);
    if (!ddp__ticket_done(e, ticket)) {
        if (err) *err = e->error;
        status = e->error.code;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

int ddp__engine_done(ddp__engine *e, long ticket)
{
    int done;

    pthread_mutex_lock(&e->lock);
    done = ddp__ticket_done(e, ticket);
    pthread_mutex_unlock(&e->lock);
    return done;
}

void ddp__engine_abort(ddp__engine *e, ddp_status code, const char *why)
{
    pthread_mutex_lock(&e->lock);
    if (e->error.code == DDP_OK) {
        (void)ddp__fail(&e->error, code == DDP_OK ? DDP_ABORTED : code, "%s", why);
        ddp__notify(e);
    }
    pthread_mutex_unlock(&e->lock);
}

ddp_status ddp__engine_error(ddp__engine *e, ddp_error *err)
{
    ddp_status status;

    pthread_mutex_lock(&e->lock);
    status = e->error.code;
    if (err) *err = e->error;
    pthread_mutex_unlock(&e->lock);
    return status;
}
/* ==== end net/engine.c ==== */

/* ==== begin profile/profile.c ==== [profile] */

ddp_status ddp_profile_new(int layers, ddp_profile *out, ddp_error *err)
{
    ddp_profile p;
    size_t L = (size_t)layers;

    if (layers < 1)
        return ddp__fail(err, DDP_ARG, "a profile of %d layers is impossible; it needs at least 1",
                         layers);
    memset(&p, 0, sizeof p);
    p.layers = layers;
    p.name = (char **)ddp__calloc(L, sizeof *p.name);
    p.params = (double *)ddp__calloc(L, sizeof(double));
    p.forward_s = (double *)ddp__calloc(L, sizeof(double));
    p.backward_s = (double *)ddp__calloc(L, sizeof(double));
    p.comm_s = (double *)ddp__calloc(L, sizeof(double));
    if (!p.name || !p.params || !p.forward_s || !p.backward_s || !p.comm_s) {
        ddp_profile_free(&p);
        return ddp__fail(err, DDP_MEMORY, "no memory for a profile of %d layers", layers);
    }
    *out = p;
    return DDP_OK;
}

void ddp_profile_free(ddp_profile *p)
{
    int l;

    if (!p) return;
    for (l = 0; p->name && l < p->layers; l++) DDP_FREE(p->name[l]);
    DDP_FREE(p->name);
    DDP_FREE(p->params);
    DDP_FREE(p->forward_s);
    DDP_FREE(p->backward_s);
    DDP_FREE(p->comm_s);
    memset(p, 0, sizeof *p);
}

static ddp_status ddp__profile_check_one(const ddp_profile *p, int l, const char *what, double v,
                                         ddp_error *err)
{
    const char *name = p->name && p->name[l] ? p->name[l] : "unnamed";

    if (v >= 0 && v <= DBL_MAX) return DDP_OK;
    return ddp__fail(err, DDP_ARG, "layer %d (%s): %s is %g; it must be finite and at least 0", l,
                     name, what, v);
}

ddp_status ddp_profile_check(const ddp_profile *p, ddp_error *err)
{
    int l;

    if (!p || p->layers < 1)
        return ddp__fail(err, DDP_ARG, "the profile has %d layers; it needs at least 1",
                         p ? p->layers : 0);
    if (!p->backward_s || !p->comm_s)
        return ddp__fail(err, DDP_ARG, "the profile has no %s; it is needed for every layer",
                         p->backward_s ? "comm_s" : "backward_s");
    if (!(p->alpha_s >= 0 && p->alpha_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "alpha_s is %g; it must be finite and at least 0",
                         p->alpha_s);
    for (l = 0; l < p->layers; l++) {
        if (p->params) DDP__TRY(ddp__profile_check_one(p, l, "params", p->params[l], err));
        if (p->forward_s) DDP__TRY(ddp__profile_check_one(p, l, "forward_s", p->forward_s[l], err));
        DDP__TRY(ddp__profile_check_one(p, l, "backward_s", p->backward_s[l], err));
        DDP__TRY(ddp__profile_check_one(p, l, "comm_s", p->comm_s[l], err));
    }
    return DDP_OK;
}

enum {
    DDP__COL_LAYER,
    DDP__COL_PARAMS,
    DDP__COL_FORWARD,
    DDP__COL_BACKWARD,
    DDP__COL_COMM,
    DDP__COLS
};

static const char *const ddp__columns[] = {"layer", "params", "forward_s", "backward_s", "comm_s"};

/* Takes the next field of a NUL-terminated line apart, in place: surrounding blanks go, "..." is
 * unquoted, "" inside becomes ". *at moves on, to NULL after the last field. NULL = bad quotes. */
static char *ddp__csv_field(char **at)
{
    char *s = *at + strspn(*at, " \t"), *end, *to;

    if (*s != '"') {
        end = s + strcspn(s, ",");
        *at = *end ? end + 1 : NULL;
        while (end > s && (end[-1] == ' ' || end[-1] == '\t')) end--;
        *end = 0;
        return s;
    }
    for (to = s, end = s + 1; *end && (*end != '"' || end[1] == '"'); *to++ = *end++)
        if (*end == '"') end++;
    if (!*end) return NULL;
    end += 1 + strspn(end + 1, " \t");
    if (*end && *end != ',') return NULL;
    *at = *end ? end + 1 : NULL;
    *to = 0;
    return s;
}

/* Splits off the next line, without its line end; NULL at the end of the text. */
static char *ddp__csv_line(char **at)
{
    char *s = *at, *end;

    if (!*s) return NULL;
    end = s + strcspn(s, "\n");
    *at = *end ? end + 1 : end;
    *end = 0;
    if (end > s && end[-1] == '\r') end[-1] = 0;
    return s;
}

/* where[c] = position of column c in the header, -1 = absent. */
static ddp_status ddp__csv_header(const char *path, char *line, int *where, ddp_error *err)
{
    char *field;
    int c, n;

    for (c = 0; c < DDP__COLS; c++) where[c] = -1;
    for (n = 0; line; n++) {
        field = ddp__csv_field(&line);
        if (!field)
            return ddp__fail(err, DDP_FORMAT, "%s, line 1: a quote in the header is not closed",
                             path);
        for (c = 0; c < DDP__COLS; c++) {
            if (strcmp(field, ddp__columns[c])) continue;
            if (where[c] >= 0)
                return ddp__fail(err, DDP_FORMAT, "%s, line 1: column %s appears twice; keep one",
                                 path, field);
            where[c] = n;
        }
    }
    for (c = 0; c < DDP__COLS; c++)
        if (where[c] < 0 && c != DDP__COL_FORWARD && c != DDP__COL_COMM)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line 1: column %s is missing; the header is "
                             "layer,params,forward_s,backward_s,comm_s",
                             path, ddp__columns[c]);
    return DDP_OK;
}

static ddp_status ddp__csv_number(const char *path, int line, int column, const char *s,
                                  double *out, ddp_error *err)
{
    if (!*s)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d: %s is empty; a number is needed", path,
                         line, ddp__columns[column]);
    if (!ddp__parse_double(s, out))
        return ddp__fail(err, DDP_FORMAT, "%s, line %d: %s is '%.40s'; a finite number is needed",
                         path, line, ddp__columns[column], s);
    if (*out < 0)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d: %s is %s; it must not be negative", path,
                         line, ddp__columns[column], s);
    return DDP_OK;
}

/* Row l of p from one line of the file. */
static ddp_status ddp__csv_row(const char *path, int number, char *line, const int *where,
                               const ddp_link *link, ddp_profile *p, int l, ddp_error *err)
{
    const char *value[DDP__COLS];
    char *field;
    int c, n;

    for (c = 0; c < DDP__COLS; c++) value[c] = NULL;
    for (n = 0; line; n++) {
        field = ddp__csv_field(&line);
        if (!field)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d: a quote is not closed or has text behind it", path,
                             number);
        for (c = 0; c < DDP__COLS; c++)
            if (where[c] == n) value[c] = field;
    }
    for (c = 0; c < DDP__COLS; c++)
        if (where[c] >= 0 && !value[c])
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d: column %s is missing; the line has only %d fields", path,
                             number, ddp__columns[c], n);
    p->name[l] = ddp__strdup(value[DDP__COL_LAYER]);
    if (!p->name[l]) return ddp__fail(err, DDP_MEMORY, "no memory for the profile %s", path);
    DDP__TRY(
        ddp__csv_number(path, number, DDP__COL_PARAMS, value[DDP__COL_PARAMS], &p->params[l], err));
    DDP__TRY(ddp__csv_number(path, number, DDP__COL_BACKWARD, value[DDP__COL_BACKWARD],
                             &p->backward_s[l], err));
    if (value[DDP__COL_FORWARD] && *value[DDP__COL_FORWARD])
        DDP__TRY(ddp__csv_number(path, number, DDP__COL_FORWARD, value[DDP__COL_FORWARD],
                                 &p->forward_s[l], err));
    if (value[DDP__COL_COMM] && *value[DDP__COL_COMM])
        return ddp__csv_number(path, number, DDP__COL_COMM, value[DDP__COL_COMM], &p->comm_s[l],
                               err);
    if (p->params[l] > 0) {
        if (!link)
            return ddp__fail(
                err, DDP_FORMAT,
                "%s, line %d: comm_s is empty; measure it or give the network (--net RATE,DELAY)",
                path, number);
        p->comm_s[l] = link->beta_s * 4 * p->params[l];
        p->alpha_s = link->alpha_s;
    }
    return DDP_OK;
}

static ddp_status ddp__csv_profile(const char *path, char *text, size_t size, const ddp_link *link,
                                   ddp_profile *out, ddp_error *err)
{
    int where[DDP__COLS], number = 1, rows = 0, l = 0;
    char *line;
    const char *s;
    ddp_status status;

    if (size == 0)
        return ddp__fail(
            err, DDP_FORMAT,
            "%s is empty; a profile begins with layer,params,forward_s,backward_s,comm_s", path);
    if (strlen(text) != size)
        return ddp__fail(err, DDP_FORMAT, "%s is not text: it has a zero byte at offset %zu", path,
                         strlen(text));
    if (size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3;
    for (s = text; (s = strchr(s, '\n')) != NULL; s++)
        if (rows++ == INT_MAX - 2)
            return ddp__fail(err, DDP_FORMAT, "%s has too many lines for a profile", path);
    line = ddp__csv_line(&text);
    if (!line)
        return ddp__fail(
            err, DDP_FORMAT,
            "%s is empty; a profile begins with layer,params,forward_s,backward_s,comm_s", path);
    DDP__TRY(ddp__csv_header(path, line, where, err));
    DDP__TRY(ddp_profile_new(rows + 1, out, err)); /* lines after the header, or a few more */
    while ((line = ddp__csv_line(&text)) != NULL) {
        number++;
        if (!line[strspn(line, " \t")]) continue;
        status = ddp__csv_row(path, number, line, where, link, out, l, err);
        l++;
        if (status != DDP_OK) return status;
    }
    if (l == 0)
        return ddp__fail(err, DDP_FORMAT,
                         "%s has a header but no layer; it needs one row per layer", path);
    out->layers = l;
    return DDP_OK;
}

ddp_status ddp_profile_read(const char *path, const ddp_link *link, ddp_profile *out,
                            ddp_error *err)
{
    ddp__text text;
    ddp_profile p;
    ddp_status status;

    memset(&text, 0, sizeof text);
    memset(&p, 0, sizeof p);
    status = ddp__file_read(path, &text, err);
    if (status == DDP_OK) status = ddp__csv_profile(path, text.data, text.size, link, &p, err);
    if (status == DDP_OK) status = ddp_profile_check(&p, err);
    ddp__text_free(&text);
    if (status == DDP_OK) *out = p;
    else ddp_profile_free(&p);
    return status;
}

static void ddp__csv_name(ddp__text *t, const char *name)
{
    int quote = strpbrk(name, ",\"") || *name == ' ' || *name == '\t';

    if (quote) ddp__text_add(t, "\"", 1);
    for (; *name; name++) {
        if (*name == '"') ddp__text_add(t, "\"", 1);
        ddp__text_add(t, *name == '\n' || *name == '\r' ? " " : name, 1);
    }
    if (quote) ddp__text_add(t, "\"", 1);
}

ddp_status ddp_profile_write(const ddp_profile *p, const char *path, ddp_error *err)
{
    ddp__text t;
    ddp_status status;
    int l;

    DDP__TRY(ddp_profile_check(p, err));
    memset(&t, 0, sizeof t);
    ddp__text_addf(&t, "layer,params,forward_s,backward_s,comm_s\n");
    for (l = 0; l < p->layers; l++) {
        if (p->name && p->name[l]) ddp__csv_name(&t, p->name[l]);
        else ddp__text_addf(&t, "layer %d", l);
        ddp__text_addf(&t, ",%.17g,", p->params ? p->params[l] : 0);
        if (p->forward_s) ddp__text_addf(&t, "%.17g", p->forward_s[l]);
        ddp__text_addf(&t, ",%.17g,%.17g\n", p->backward_s[l], p->comm_s[l]);
    }
    status = t.failed ? ddp__fail(err, DDP_MEMORY, "no memory to write the profile %s", path)
                      : ddp__file_write(path, t.data, t.size, err);
    ddp__text_free(&t);
    return status;
}
/* ==== end profile/profile.c ==== */

/* ==== begin profile/linkfit.c ==== [profile] */

/* The minimum over alpha, beta >= 0 of sum w (alpha + beta x - y)^2 from its moments; where the
 * free optimum is outside, the minimum of a convex function lies on the edge it crossed. */
static ddp_link ddp__link_solve(double n, double x, double y, double xx, double xy)
{
    ddp_link link;
    double det = n * xx - x * x;

    link.alpha_s = 0;
    link.beta_s = xx > 0 ? xy / xx : 0;
    if (det > 1e-12 * n * xx) {
        double beta = (n * xy - x * y) / det, alpha = (y * xx - x * xy) / det;
        if (beta < 0) {
            link.alpha_s = y / n;
            link.beta_s = 0;
        } else if (alpha > 0) {
            link.alpha_s = alpha;
            link.beta_s = beta;
        }
    }
    return link;
}

typedef struct ddp__link_sample {
    double bytes, seconds;
} ddp__link_sample;

static int ddp__link_sample_order(const void *a, const void *b)
{
    const ddp__link_sample *p = (const ddp__link_sample *)a, *q = (const ddp__link_sample *)b;

    if (p->bytes != q->bytes) return p->bytes < q->bytes ? -1 : 1;
    return (p->seconds > q->seconds) - (p->seconds < q->seconds);
}

ddp_status ddp_link_fit(const double *bytes, const double *seconds, int n, ddp_link *out,
                        ddp_error *err)
{
    ddp__link_sample *s;
    double sn = 0, sx = 0, sy = 0, sxx = 0, sxy = 0, w;
    int i;

    if (n < 1)
        return ddp__fail(err, DDP_ARG,
                         "a link cannot be fitted to %d transfers; measure at least 1", n);
    for (i = 0; i < n; i++)
        if (!(bytes[i] >= 0 && bytes[i] <= DBL_MAX && seconds[i] >= 0 && seconds[i] <= DBL_MAX))
            return ddp__fail(
                err, DDP_ARG,
                "transfer %d of %g bytes took %g s; both must be finite and at least 0", i,
                bytes[i], seconds[i]);
    s = (ddp__link_sample *)ddp__calloc((size_t)n, sizeof *s);
    if (!s) return ddp__fail(err, DDP_MEMORY, "no memory to fit %d transfers", n);
    for (i = 0; i < n; i++) {
        s[i].bytes = bytes[i];
        s[i].seconds = seconds[i];
    }
    qsort(s, (size_t)n, sizeof *s, ddp__link_sample_order);
    for (i = 0; i < n; i++) {
        if (i > 0 && !(s[i].bytes > s[i - 1].bytes)) continue; /* slower, of the same size */
        w = s[i].seconds > 1e-9 ? s[i].seconds : 1e-9;
        w = 1 / (w * w);
        sn += w;
        sx += w * s[i].bytes;
        sy += w * s[i].seconds;
        sxx += w * s[i].bytes * s[i].bytes;
        sxy += w * s[i].bytes * s[i].seconds;
    }
    DDP_FREE(s);
    if (!(sxx > 0))
        return ddp__fail(err, DDP_ARG, "all %d transfers had 0 bytes; the rate needs longer ones",
                         n);
    *out = ddp__link_solve(sn, sx, sy, sxx, sxy);
    return DDP_OK;
}

static void ddp__linkfit_weigh(ddp_linkfit *f, double bytes, double seconds, double weight)
{
    double w = weight / (seconds * seconds);

    f->n += w;
    f->x += w * bytes;
    f->y += w * seconds;
    f->xx += w * bytes * bytes;
    f->xy += w * bytes * seconds;
}

void ddp_linkfit_start(ddp_linkfit *f, ddp_link link, double typical_bytes, double half_life)
{
    int i;

    memset(f, 0, sizeof *f);
    f->link = link;
    f->half_life = half_life > 1 ? half_life : 1;
    for (i = 0; i < 3; i++) { /* the prior: an empty, a half and a full message */
        double bytes = typical_bytes * i / 2, seconds = link.alpha_s + link.beta_s * bytes;
        if (seconds > 0 && seconds <= DBL_MAX)
            ddp__linkfit_weigh(f, bytes, seconds, f->half_life / 3);
    }
}

void ddp_linkfit_add(ddp_linkfit *f, double bytes, double seconds)
{
    double fade = pow(0.5, 1 / f->half_life);

    if (!(bytes > 0 && bytes <= DBL_MAX && seconds > 0 && seconds <= DBL_MAX)) return;
    f->n *= fade;
    f->x *= fade;
    f->y *= fade;
    f->xx *= fade;
    f->xy *= fade;
    ddp__linkfit_weigh(f, bytes, seconds, 1);
    f->link = ddp__link_solve(f->n, f->x, f->y, f->xx, f->xy);
}

double ddp_link_drift(ddp_link then, ddp_link now, const double *bytes, int n)
{
    double was = 0, is = 0;
    int i;

    for (i = 0; i < n; i++) {
        was += then.alpha_s + then.beta_s * bytes[i];
        is += now.alpha_s + now.beta_s * bytes[i];
    }
    return was > 0 ? is / was - 1 : 0;
}
/* ==== end profile/linkfit.c ==== */

/* ==== begin profile/timer.h ==== [profile] */
/* Layer timer: medians over steps of what the hooks measured. */
#ifndef DDP_PROFILE_TIMER_H
#define DDP_PROFILE_TIMER_H

typedef enum ddp__timer_kind { DDP__T_FORWARD, DDP__T_BACKWARD, DDP__T_UPDATE, DDP__T_KINDS } ddp__timer_kind;

/* Samples of up to room steps; afterwards further steps are ignored. */
typedef struct ddp__timer {
    int    layers, room, steps;
    float *sample; /* [room][kinds][layers] seconds */
    double whole;  /* forward and backward that no hook told apart, mean over the kept steps */
} ddp__timer;

#ifdef __cplusplus
extern "C" {
#endif

DDP_LIB int  ddp__timer_open(ddp__timer *t, int layers, int room); /* 0 when memory is short */
DDP_LIB void ddp__timer_close(ddp__timer *t);
DDP_LIB void ddp__timer_add(ddp__timer *t, ddp__timer_kind kind, int layer, double seconds);
DDP_LIB void ddp__timer_add_whole(ddp__timer *t, double seconds);
DDP_LIB void ddp__timer_step(ddp__timer *t); /* the step is over; the next one begins */
/* Median over the steps but the first (warm-up); 0 without samples. */
DDP_LIB double ddp__timer_median(const ddp__timer *t, ddp__timer_kind kind, int layer);
/* The same of the sum over all layers: what a whole pass takes. A pass that is interrupted now
 * here, now there has layer medians that do not add up to it. */
DDP_LIB double ddp__timer_median_sum(const ddp__timer *t, ddp__timer_kind kind);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PROFILE_TIMER_H */
/* ==== end profile/timer.h ==== */

/* ==== begin profile/timer.c ==== [profile] */

int ddp__timer_open(ddp__timer *t, int layers, int room)
{
    memset(t, 0, sizeof *t);
    t->layers = layers;
    t->room = room;
    t->sample = (float *)ddp__calloc((size_t)layers * (size_t)room * DDP__T_KINDS, sizeof *t->sample);
    return t->sample != NULL;
}

void ddp__timer_close(ddp__timer *t)
{
    if (t->sample) DDP_FREE(t->sample);
    memset(t, 0, sizeof *t);
}

static float *ddp__timer_cell(const ddp__timer *t, int step, ddp__timer_kind kind, int layer)
{
    return t->sample + ((size_t)step * DDP__T_KINDS + (size_t)kind) * (size_t)t->layers + layer;
}

void ddp__timer_add(ddp__timer *t, ddp__timer_kind kind, int layer, double seconds)
{
    if (t->steps < t->room) *ddp__timer_cell(t, t->steps, kind, layer) += (float)seconds;
}

void ddp__timer_add_whole(ddp__timer *t, double seconds)
{
    /* the first step is warm-up */
    if (t->steps >= 1 && t->steps < t->room) t->whole += seconds / (t->room > 1 ? t->room - 1 : 1);
}

void ddp__timer_step(ddp__timer *t)
{
    if (t->steps < t->room) t->steps++;
}

/* Seconds of a layer in a step; layer -1 = of all layers. */
static double ddp__timer_value(const ddp__timer *t, int step, ddp__timer_kind kind, int layer)
{
    double sum = 0;
    int l;

    if (layer >= 0) return (double)*ddp__timer_cell(t, step, kind, layer);
    for (l = 0; l < t->layers; l++) sum += (double)*ddp__timer_cell(t, step, kind, l);
    return sum;
}

double ddp__timer_median(const ddp__timer *t, ddp__timer_kind kind, int layer)
{
    int first = t->steps > 1 ? 1 : 0, n = t->steps - first, i, j;

    /* the sample with as many smaller as larger ones, without a scratch array: room is small */
    for (i = 0; i < n; i++) {
        double x = ddp__timer_value(t, first + i, kind, layer);
        int below = 0, equal = 0;
        for (j = 0; j < n; j++) {
            double y = ddp__timer_value(t, first + j, kind, layer);
            below += y < x;
            equal += y <= x && y >= x;
        }
        if (below <= (n - 1) / 2 && below + equal > (n - 1) / 2) return x;
    }
    return 0;
}

double ddp__timer_median_sum(const ddp__timer *t, ddp__timer_kind kind) { return ddp__timer_median(t, kind, -1); }
/* ==== end profile/timer.c ==== */

/* ==== begin profile/trace.c ==== [profile] */

typedef struct ddp__interval {
    double begin, end;
} ddp__interval;

const char *ddp_span_kind_name(ddp_span_kind kind)
{
    static const char *const name[] = {"forward", "backward", "update", "wait", "comm", "fill", "peer wait"};

    return (unsigned)kind < DDP_SPAN_KINDS ? name[kind] : "?";
}

static int ddp__interval_order(const void *pa, const void *pb)
{
    const ddp__interval *a = (const ddp__interval *)pa, *b = (const ddp__interval *)pb;

    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* The union of the chosen spans as disjoint intervals in rising order, into out [n]. */
static int ddp__span_merge(const ddp_span *spans, int n, unsigned kinds, ddp__interval *out)
{
    int i, count = 0, last = 0;

    for (i = 0; i < n; i++) {
        if ((unsigned)spans[i].kind >= DDP_SPAN_KINDS || !(kinds >> spans[i].kind & 1u)) continue;
        if (!(spans[i].end_s > spans[i].begin_s)) continue;
        out[count].begin = spans[i].begin_s;
        out[count++].end = spans[i].end_s;
    }
    if (count == 0) return 0;
    qsort(out, (size_t)count, sizeof *out, ddp__interval_order);
    for (i = 1; i < count; i++) {
        if (out[i].begin > out[last].end)
            out[++last] = out[i];
        else if (out[i].end > out[last].end)
            out[last].end = out[i].end;
    }
    return last + 1;
}

static double ddp__interval_sum(const ddp__interval *v, int n)
{
    double sum = 0;
    int i;

    for (i = 0; i < n; i++) sum += v[i].end - v[i].begin;
    return sum;
}

/* Length of the intersection of two unions: one walk over both. */
static double ddp__interval_common(const ddp__interval *a, int na, const ddp__interval *b, int nb)
{
    double sum = 0;
    int i = 0, j = 0;

    while (i < na && j < nb) {
        double begin = a[i].begin > b[j].begin ? a[i].begin : b[j].begin;
        double end = a[i].end < b[j].end ? a[i].end : b[j].end;

        if (end > begin) sum += end - begin;
        if (a[i].end < b[j].end)
            i++;
        else
            j++;
    }
    return sum;
}

/* Union of kinds a, and what of it kinds b cover; 0 when memory is short. */
static int ddp__span_measure(const ddp_span *spans, int n, unsigned a, unsigned b, double *whole, double *common)
{
    size_t count = n > 0 ? (size_t)n : 0;
    ddp__interval *room = (ddp__interval *)ddp__calloc(count * 2, sizeof *room);
    int na, nb;

    if (!room) return 0;
    na = ddp__span_merge(spans, n, a, room);
    nb = ddp__span_merge(spans, n, b, room + count);
    *whole = ddp__interval_sum(room, na);
    *common = ddp__interval_common(room, na, room + count, nb);
    DDP_FREE(room);
    return 1;
}

double ddp_span_union(const ddp_span *spans, int n, unsigned kinds)
{
    double whole, common;

    return ddp__span_measure(spans, n, kinds, 0, &whole, &common) ? whole : (double)NAN;
}

double ddp_span_overlap(const ddp_span *spans, int n, unsigned a, unsigned b)
{
    double whole, common;

    return ddp__span_measure(spans, n, a, b, &whole, &common) ? common : (double)NAN;
}

double ddp_hidden_share(const ddp_span *spans, int n)
{
    double whole, common;

    if (!ddp__span_measure(spans, n, 1u << DDP_SPAN_COMM, DDP_SPAN_COMPUTE, &whole, &common)) return (double)NAN;
    if (!(whole > 0)) return 1;
    return common < whole ? common / whole : 1;
}
/* ==== end profile/trace.c ==== */

/* ==== begin profile/network.c ==== [profile] */

#define DDP__NETWORK_MOST 16384 /* devices: two matrices of 2 GiB */

ddp_status ddp_network_new(int devices, ddp_network *out, ddp_error *err)
{
    ddp_network n;
    size_t cells;

    if (devices < 1 || devices > DDP__NETWORK_MOST)
        return ddp__fail(err, DDP_ARG, "a network of %d devices is impossible; it has 1 to %d",
                         devices, DDP__NETWORK_MOST);
    memset(&n, 0, sizeof n);
    n.devices = devices;
    cells = (size_t)devices * (size_t)devices;
    n.delay_s = (double *)ddp__calloc(cells, sizeof(double));
    n.rate = (double *)ddp__calloc(cells, sizeof(double));
    if (!n.delay_s || !n.rate) {
        ddp_network_free(&n);
        return ddp__fail(err, DDP_MEMORY, "no memory for a network of %d devices", devices);
    }
    *out = n;
    return DDP_OK;
}

void ddp_network_free(ddp_network *n)
{
    int g;

    if (!n) return;
    for (g = 0; n->group_name && g < n->groups; g++) DDP_FREE(n->group_name[g]);
    DDP_FREE(n->group_name);
    DDP_FREE(n->group);
    DDP_FREE(n->memory_bytes);
    DDP_FREE(n->speed);
    DDP_FREE(n->rate);
    DDP_FREE(n->delay_s);
    memset(n, 0, sizeof *n);
}

/* ---- checking ---- */

static int ddp__network_finite(double v, double least) { return v >= least && v <= DBL_MAX; }

static ddp_status ddp__network_check_pair(const ddp_network *n, int i, int j, ddp_error *err)
{
    size_t at = (size_t)i * (size_t)n->devices + (size_t)j;

    if (!ddp__network_finite(n->delay_s[at], 0))
        return ddp__fail(err, DDP_ARG,
                         "the delay from device %d to device %d is %g s; it must be finite and at "
                         "least 0",
                         i, j, n->delay_s[at]);
    if (!(n->rate[at] > 0 && n->rate[at] <= DBL_MAX))
        return ddp__fail(err, DDP_ARG,
                         "the link from device %d to device %d carries %g bytes/s; every pair must "
                         "be connected by a finite rate above 0",
                         i, j, n->rate[at]);
    return DDP_OK;
}

static ddp_status ddp__network_check_device(const ddp_network *n, int i, ddp_error *err)
{
    if (n->speed && !(n->speed[i] > 0 && n->speed[i] <= DBL_MAX))
        return ddp__fail(err, DDP_ARG,
                         "the speed of device %d is %g FLOP/s; it must be finite and "
                         "above 0",
                         i, n->speed[i]);
    if (n->memory_bytes && !ddp__network_finite(n->memory_bytes[i], 0))
        return ddp__fail(err, DDP_ARG,
                         "the memory of device %d is %g bytes; it must be finite and "
                         "at least 0",
                         i, n->memory_bytes[i]);
    if (n->group && (n->group[i] < 0 || n->group[i] >= n->groups))
        return ddp__fail(err, DDP_ARG, "device %d is in group %d; the groups are 0 to %d", i,
                         n->group[i], n->groups - 1);
    return DDP_OK;
}

ddp_status ddp_network_check(const ddp_network *n, ddp_error *err)
{
    int i, j;

    if (!n || n->devices < 1)
        return ddp__fail(err, DDP_ARG, "the network has %d devices; it needs at least 1",
                         n ? n->devices : 0);
    if (!n->delay_s || !n->rate)
        return ddp__fail(err, DDP_ARG, "the network has no %s; it is needed for every pair",
                         n->rate ? "delay_s" : "rate");
    if (n->pipelines < 0 || n->stages < 0)
        return ddp__fail(err, DDP_ARG,
                         "%d pipelines of %d stages are impossible; both are at "
                         "least 1, or 0 where unknown",
                         n->pipelines, n->stages);
    if (n->pipelines && n->stages && (double)n->pipelines * n->stages != (double)n->devices)
        return ddp__fail(err, DDP_ARG,
                         "%d devices are not D_dp x D_pp = %d x %d = %.0f; change one "
                         "of them",
                         n->devices, n->pipelines, n->stages, (double)n->pipelines * n->stages);
    if (!ddp__network_finite(n->dp_bytes, 0) || !ddp__network_finite(n->pp_bytes, 0))
        return ddp__fail(err, DDP_ARG,
                         "the messages are %g (data) and %g bytes (pipeline); both "
                         "must be finite and at least 0",
                         n->dp_bytes, n->pp_bytes);
    for (i = 0; i < n->devices; i++) {
        DDP__TRY(ddp__network_check_device(n, i, err));
        for (j = 0; j < n->devices; j++)
            if (j != i) DDP__TRY(ddp__network_check_pair(n, i, j, err));
    }
    return DDP_OK;
}

/* ---- reading ---- */

typedef struct ddp__network_file {
    const char *path;
    const ddp__json *root, *variant; /* members of variant replace those of root */
    ddp_error *err;
} ddp__network_file;

static const ddp__json *ddp__network_get(const ddp__network_file *f, const char *key)
{
    const ddp__json *v = ddp__json_get(f->variant, key);

    return v ? v : ddp__json_get(f->root, key);
}

static ddp_status ddp__network_need(const ddp__network_file *f, const char *key,
                                    ddp__json_kind kind, const ddp__json **out)
{
    const ddp__json *from = ddp__json_get(f->variant, key) ? f->variant : f->root;

    return ddp__json_need(f->path, from, key, kind, out, f->err);
}

static ddp_status ddp__network_bad(const ddp__network_file *f, const ddp__json *at, const char *key,
                                   const char *what)
{
    return ddp__fail(f->err, DDP_FORMAT, "%s, line %d, column %d: \"%s\" %s", f->path, at->line,
                     at->column, key, what);
}

/* A whole number of at least 1; a missing one leaves *out. */
static ddp_status ddp__network_count(const ddp__network_file *f, const char *key, int *out)
{
    const ddp__json *v = ddp__network_get(f, key);

    if (!v) return DDP_OK;
    if (v->kind != DDP__JSON_NUMBER || !(v->number >= 1 && v->number <= 1e9) ||
        v->number != floor(v->number))
        return ddp__network_bad(f, v, key, "must be a whole number of at least 1");
    *out = (int)v->number;
    return DDP_OK;
}

static ddp_status ddp__network_bytes(const ddp__network_file *f, const char *key, int needed,
                                     double *out)
{
    const ddp__json *v = ddp__network_get(f, key);

    if (!v && !needed) return DDP_OK;
    DDP__TRY(ddp__network_need(f, key, DDP__JSON_NUMBER, &v));
    if (!(v->number >= 0)) return ddp__network_bad(f, v, key, "must not be negative");
    *out = v->number;
    return DDP_OK;
}

/* groups and devices_per_group; a file with N x N matrices may go without. */
static ddp_status ddp__network_groups(const ddp__network_file *f, ddp_network *n)
{
    const ddp__json *sizes = ddp__network_get(f, "devices_per_group"), *names, *v;
    double total = 0;
    int g = 0, i = 0, k;

    if (!sizes) return DDP_OK;
    DDP__TRY(ddp__network_need(f, "devices_per_group", DDP__JSON_ARRAY, &sizes));
    for (v = sizes->first; v; v = v->next) {
        if (v->kind != DDP__JSON_NUMBER || !(v->number >= 1) || v->number != floor(v->number))
            return ddp__network_bad(f, v, "devices_per_group",
                                    "must hold whole numbers of at least 1");
        total += v->number;
    }
    if (!sizes->count || total > DDP__NETWORK_MOST)
        return ddp__fail(f->err, DDP_FORMAT,
                         "%s, line %d: \"devices_per_group\" adds up to %.0f "
                         "devices; a network has 1 to %d",
                         f->path, sizes->line, total, DDP__NETWORK_MOST);
    n->groups = (int)sizes->count;
    n->devices = (int)total;
    n->group = (int *)ddp__calloc((size_t)n->devices, sizeof(int));
    if (!n->group) return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
    for (v = sizes->first; v; v = v->next, g++)
        for (k = 0; k < (int)v->number; k++) n->group[i++] = g;

    names = ddp__network_get(f, "groups");
    if (!names) return DDP_OK;
    if (names->kind != DDP__JSON_ARRAY || names->count != sizes->count)
        return ddp__network_bad(f, names, "groups",
                                "must name each group of \"devices_per_group\"");
    n->group_name = (char **)ddp__calloc((size_t)n->groups, sizeof(char *));
    for (v = names->first, g = 0; v && n->group_name; v = v->next, g++) {
        if (v->kind != DDP__JSON_STRING)
            return ddp__network_bad(f, v, "groups", "must hold names in quotes");
        n->group_name[g] = ddp__strdup(v->string);
        if (!n->group_name[g]) break;
    }
    if (!n->group_name || g < n->groups)
        return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
    return DDP_OK;
}

/* The number of devices: the file's N, or else what groups or the matrices say. */
static ddp_status ddp__network_size(const ddp__network_file *f, ddp_network *n)
{
    const ddp__json *rates;
    int given = 0;

    DDP__TRY(ddp__network_need(f, "bandwidth_gbps", DDP__JSON_ARRAY, &rates));
    DDP__TRY(ddp__network_count(f, "N", &given));
    if (!n->devices) {
        if (!rates->count || rates->count > DDP__NETWORK_MOST)
            return ddp__network_bad(f, rates, "bandwidth_gbps", "must have 1 to 16384 rows");
        n->devices = (int)rates->count;
    }
    if (given && given != n->devices)
        return ddp__fail(f->err, DDP_ARG, "%s: N is %d, but the %s %d devices; make them agree",
                         f->path, given, n->group ? "groups have" : "matrices are of", n->devices);
    return DDP_OK;
}

/* Row i of a square matrix of `size` into row[size]; the diagonal of an N x N matrix may be any
 * number or null, since no device has a link to itself. */
static ddp_status ddp__network_row(const ddp__network_file *f, const ddp__json *line,
                                   const char *key, int i, int size, int skip_diagonal, double *row)
{
    const ddp__json *v;
    int j = 0;

    if (line->kind != DDP__JSON_ARRAY || line->count != size)
        return ddp__fail(f->err, DDP_FORMAT,
                         "%s, line %d, column %d: \"%s\" is not square: row %d "
                         "has %ld numbers, not %d",
                         f->path, line->line, line->column, key, i,
                         line->kind == DDP__JSON_ARRAY ? line->count : 0, size);
    for (v = line->first; v; v = v->next, j++) {
        row[j] = 0;
        if (i == j && skip_diagonal) continue;
        if (v->kind != DDP__JSON_NUMBER) return ddp__network_bad(f, v, key, "must hold numbers");
        row[j] = v->number;
    }
    return DDP_OK;
}

/* A matrix of groups or of devices, times scale, into out [N x N]. */
static ddp_status ddp__network_matrix(const ddp__network_file *f, const ddp_network *n,
                                      const char *key, double scale, double *out)
{
    const ddp__json *m, *line;
    double *row;
    size_t N = (size_t)n->devices, i, j;
    int size, per_group, r = 0;
    ddp_status status = DDP_OK;

    DDP__TRY(ddp__network_need(f, key, DDP__JSON_ARRAY, &m));
    per_group = n->group && m->count == n->groups;
    size = per_group ? n->groups : n->devices;
    if (m->count != size)
        return ddp__fail(f->err, DDP_FORMAT,
                         "%s, line %d, column %d: \"%s\" has %ld rows; it needs "
                         "%d, one per %s",
                         f->path, m->line, m->column, key, m->count, n->group ? n->groups : size,
                         n->group ? "group" : "device");
    row = (double *)ddp__calloc((size_t)size, sizeof *row);
    if (!row) return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
    for (line = m->first; line && status == DDP_OK; line = line->next, r++) {
        status =
            ddp__network_row(f, line, key, r, size, !per_group || n->groups == n->devices, row);
        for (i = 0; status == DDP_OK && i < N; i++) {
            if ((per_group ? n->group[i] : (int)i) != r) continue;
            for (j = 0; j < N; j++)
                out[i * N + j] = i == j ? 0 : row[per_group ? (size_t)n->group[j] : j] * scale;
        }
    }
    DDP_FREE(row);
    return status;
}

/* One number per device or per group, times scale; *out stays NULL where the key is missing. */
static ddp_status ddp__network_vector(const ddp__network_file *f, const ddp_network *n,
                                      const char *key, double scale, double **out)
{
    const ddp__json *list = ddp__network_get(f, key), *v;
    int per_group, k = 0, i;

    if (!list) return DDP_OK;
    DDP__TRY(ddp__network_need(f, key, DDP__JSON_ARRAY, &list));
    per_group = n->group && list->count == n->groups;
    if (!per_group && list->count != n->devices)
        return ddp__fail(f->err, DDP_FORMAT,
                         "%s, line %d, column %d: \"%s\" has %ld numbers; it "
                         "needs one per device%s",
                         f->path, list->line, list->column, key, list->count,
                         n->group ? " or per group" : "");
    *out = (double *)ddp__calloc((size_t)n->devices, sizeof(double));
    if (!*out) return ddp__fail(f->err, DDP_MEMORY, "no memory for the network %s", f->path);
    for (v = list->first; v; v = v->next, k++) {
        if (v->kind != DDP__JSON_NUMBER) return ddp__network_bad(f, v, key, "must hold numbers");
        for (i = 0; i < n->devices; i++)
            if ((per_group ? n->group[i] : i) == k) (*out)[i] = v->number * scale;
    }
    return DDP_OK;
}

static ddp_status ddp__network_fill(const ddp__network_file *f, ddp_network *n)
{
    ddp_network whole;
    int meant;

    DDP__TRY(ddp__network_groups(f, n));
    DDP__TRY(ddp__network_size(f, n));
    DDP__TRY(ddp__network_count(f, "D_dp", &n->pipelines));
    DDP__TRY(ddp__network_count(f, "D_pp", &n->stages));
    meant = n->pipelines || n->stages; /* a file for placement: a forgotten size is no zero */
    DDP__TRY(ddp__network_bytes(f, "c_dp_bytes", meant, &n->dp_bytes));
    DDP__TRY(ddp__network_bytes(f, "c_pp_bytes", meant, &n->pp_bytes));
    DDP__TRY(ddp_network_new(n->devices, &whole, f->err));
    n->delay_s = whole.delay_s;
    n->rate = whole.rate;
    DDP__TRY(ddp__network_matrix(f, n, "delay_ms", 1e-3, n->delay_s));
    DDP__TRY(ddp__network_matrix(f, n, "bandwidth_gbps", 1e9 / 8, n->rate));
    DDP__TRY(ddp__network_vector(f, n, "tflops", 1e12, &n->speed));
    DDP__TRY(ddp__network_vector(f, n, "memory_gb", 1e9, &n->memory_bytes));
    return ddp_network_check(n, f->err);
}

/* The object whose members replace those above it. */
static ddp_status ddp__network_variant(ddp__network_file *f, const char *variant)
{
    const ddp__json *v;
    ddp__text known;
    ddp_status status;

    if (f->root->kind != DDP__JSON_OBJECT)
        return ddp__fail(f->err, DDP_FORMAT, "%s is no JSON object; a network is { \"N\": ... }",
                         f->path);
    if (!variant || !*variant) return DDP_OK;
    f->variant = ddp__json_get(f->root, variant);
    if (f->variant && f->variant->kind == DDP__JSON_OBJECT) return DDP_OK;
    memset(&known, 0, sizeof known);
    for (v = f->root->first; v; v = v->next)
        if (v->kind == DDP__JSON_OBJECT)
            ddp__text_addf(&known, "%s%s", known.size ? ", " : "", v->key);
    status = ddp__fail(f->err, DDP_ARG, "%s has no variant '%.60s'; it has: %.200s", f->path,
                       variant, known.data ? known.data : "none");
    ddp__text_free(&known);
    return status;
}

ddp_status ddp_network_read(const char *path, const char *variant, ddp_network *out, ddp_error *err)
{
    ddp__network_file f;
    ddp__json *root;
    ddp_network n;
    ddp_error own;
    ddp_status status;

    if (!err) err = &own;
    root = ddp__json_read(path, err);
    if (!root) return err->code;
    memset(&n, 0, sizeof n);
    memset(&f, 0, sizeof f);
    f.path = path;
    f.root = root;
    f.err = err;
    status = ddp__network_variant(&f, variant);
    if (status == DDP_OK) status = ddp__network_fill(&f, &n);
    ddp__json_free(root);
    if (status == DDP_OK)
        *out = n;
    else
        ddp_network_free(&n);
    return status;
}
/* ==== end profile/network.c ==== */

/* ==== begin profile/oplist.c ==== [profile] */

ddp_status ddp_oplist_new(int count, ddp_oplist *out, ddp_error *err)
{
    ddp_oplist_entry *op;

    if (count < 1)
        return ddp__fail(err, DDP_ARG, "a list of %d operators is impossible; it needs at least 1",
                         count);
    op = (ddp_oplist_entry *)ddp__calloc((size_t)count, sizeof *op);
    if (!op) return ddp__fail(err, DDP_MEMORY, "no memory for a list of %d operators", count);
    out->count = count;
    out->op = op;
    return DDP_OK;
}

void ddp_oplist_free(ddp_oplist *list)
{
    int i;

    if (!list) return;
    for (i = 0; list->op && i < list->count; i++) {
        DDP_FREE(list->op[i].name);
        DDP_FREE(list->op[i].args);
    }
    DDP_FREE(list->op);
    memset(list, 0, sizeof *list);
}

static const char *ddp__oplist_name(const ddp_oplist_entry *e)
{
    return e->name ? e->name : "unnamed";
}

static ddp_status ddp__oplist_args_check(int i, const char *name, const int *args, int arg_count,
                                         ddp_error *err)
{
    int k;

    if (arg_count < 0 || (arg_count > 0 && !args))
        return ddp__fail(err, DDP_ARG, "operator %d (%s): %d args%s", i, name, arg_count,
                         arg_count < 0 ? " are impossible" : " need an array of indexes");
    for (k = 0; k < arg_count; k++)
        if (args[k] < 0 || args[k] >= i)
            return ddp__fail(err, DDP_ARG,
                             "operator %d (%s): argument %d is operator %d, which does not precede "
                             "it; list the operators in topological order",
                             i, name, k, args[k]);
    return DDP_OK;
}

ddp_status ddp_oplist_set(ddp_oplist *list, int i, const char *name, const int *args, int arg_count,
                          double flops, double output_bytes, double param_bytes, ddp_error *err)
{
    ddp_oplist_entry e;

    if (!list || i < 0 || i >= list->count)
        return ddp__fail(err, DDP_ARG, "operator %d is not in the list, which has %d", i,
                         list ? list->count : 0);
    DDP__TRY(ddp__oplist_args_check(i, name ? name : "unnamed", args, arg_count, err));
    memset(&e, 0, sizeof e);
    e.arg_count = arg_count;
    e.flops = flops;
    e.output_bytes = output_bytes;
    e.param_bytes = param_bytes;
    e.name = name ? ddp__strdup(name) : NULL;
    e.args = (int *)ddp__calloc((size_t)arg_count, sizeof *e.args);
    if (!e.args || (name && !e.name)) {
        DDP_FREE(e.name);
        DDP_FREE(e.args);
        return ddp__fail(err, DDP_MEMORY, "no memory for operator %d", i);
    }
    if (arg_count) memcpy(e.args, args, (size_t)arg_count * sizeof *args);
    DDP_FREE(list->op[i].name);
    DDP_FREE(list->op[i].args);
    list->op[i] = e;
    return DDP_OK;
}

ddp_status ddp_oplist_check(const ddp_oplist *list, ddp_error *err)
{
    static const char *const what[3] = {"flops", "output_bytes", "param_bytes"};
    double value[3], sum[3] = {0, 0, 0};
    int i, k;

    if (!list || list->count < 1 || !list->op)
        return ddp__fail(err, DDP_ARG, "the operator list is empty; it needs at least 1 operator");
    for (i = 0; i < list->count; i++) {
        const ddp_oplist_entry *e = &list->op[i];
        DDP__TRY(ddp__oplist_args_check(i, ddp__oplist_name(e), e->args, e->arg_count, err));
        value[0] = e->flops;
        value[1] = e->output_bytes;
        value[2] = e->param_bytes;
        for (k = 0; k < 3; k++) {
            if (!(value[k] >= 0 && value[k] <= DBL_MAX))
                return ddp__fail(err, DDP_ARG,
                                 "operator %d (%s): %s is %g; it must be finite and at least 0", i,
                                 ddp__oplist_name(e), what[k], value[k]);
            sum[k] += value[k];
        }
    }
    for (k = 0; k < 3; k++)
        if (!(sum[k] <= 1e200))
            return ddp__fail(err, DDP_NUMERIC, "%s of all operators add up to %g; no plan can be "
                             "computed beyond 1e200", what[k], sum[k]);
    return DDP_OK;
}

/* ---- the graph file ---- */

/* Names in order of strcmp with their place in the file, to find arguments by halving. */
typedef struct ddp__oplist_key {
    const char *name;
    int         i;
} ddp__oplist_key;

static int ddp__oplist_by_name(const void *a, const void *b)
{
    const ddp__oplist_key *x = (const ddp__oplist_key *)a, *y = (const ddp__oplist_key *)b;
    int order = strcmp(x->name, y->name);

    return order ? order : (x->i > y->i) - (x->i < y->i);
}

static int ddp__oplist_find(const ddp__oplist_key *key, int n, const char *name)
{
    int lo = 0, hi = n, mid;

    while (lo < hi) {
        mid = lo + (hi - lo) / 2;
        if (strcmp(key[mid].name, name) < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo < n && !strcmp(key[lo].name, name) ? key[lo].i : -1;
}

static ddp_status ddp__oplist_number(const char *path, const ddp__json *v, const char *key,
                                     int needed, double *out, ddp_error *err)
{
    const ddp__json *number = ddp__json_get(v, key);

    *out = 0;
    if (!number && !needed) return DDP_OK;
    DDP__TRY(ddp__json_need(path, v, key, DDP__JSON_NUMBER, &number, err));
    if (number->number < 0)
        return ddp__fail(err, DDP_FORMAT, "%s, line %d, column %d: %s is %g; it must be at least 0",
                         path, number->line, number->column, key, number->number);
    *out = number->number;
    return DDP_OK;
}

/* The arguments of operator i, by name, into args (room for all of them). */
static ddp_status ddp__oplist_args(const char *path, const ddp__json *list, int i,
                                   const ddp__oplist_key *key, int n, int *args, ddp_error *err)
{
    const ddp__json *v;
    int found;

    for (v = list->first; v; v = v->next) {
        if (v->kind != DDP__JSON_STRING)
            return ddp__fail(err, DDP_FORMAT,
                             "%s, line %d, column %d: args holds the names of operators in quotes",
                             path, v->line, v->column);
        found = ddp__oplist_find(key, n, v->string);
        if (found < 0 || found >= i)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d, column %d: argument '%.80s' %s", path,
                             v->line, v->column, v->string,
                             found < 0 ? "names no operator of the list"
                                       : "does not precede its user; list the operators in "
                                         "topological order");
        *args++ = found;
    }
    return DDP_OK;
}

static ddp_status ddp__oplist_fill(const char *path, const ddp__json *root, ddp__oplist_key *key,
                                   ddp_oplist *list, ddp_error *err)
{
    const ddp__json *v, *name, *given;
    double flops, output_bytes, param_bytes;
    int i, *args;
    ddp_status status;

    for (v = root->first, i = 0; v; v = v->next, i++) {
        DDP__TRY(ddp__json_need(path, v, "name", DDP__JSON_STRING, &name, err));
        key[i].name = name->string;
        key[i].i = i;
    }
    qsort(key, (size_t)list->count, sizeof *key, ddp__oplist_by_name);
    for (i = 1; i < list->count; i++)
        if (!strcmp(key[i - 1].name, key[i].name))
            return ddp__fail(err, DDP_FORMAT,
                             "%s: operators %d and %d are both named '%.80s'; names must differ",
                             path, key[i - 1].i, key[i].i, key[i].name);
    for (v = root->first, i = 0; v; v = v->next, i++) {
        DDP__TRY(ddp__json_need(path, v, "name", DDP__JSON_STRING, &name, err));
        DDP__TRY(ddp__json_need(path, v, "args", DDP__JSON_ARRAY, &given, err));
        DDP__TRY(ddp__oplist_number(path, v, "flops", 1, &flops, err));
        DDP__TRY(ddp__oplist_number(path, v, "output_bytes", 1, &output_bytes, err));
        DDP__TRY(ddp__oplist_number(path, v, "param_bytes", 0, &param_bytes, err));
        args = (int *)ddp__calloc((size_t)given->count, sizeof *args);
        if (!args) return ddp__fail(err, DDP_MEMORY, "no memory to read %s", path);
        status = ddp__oplist_args(path, given, i, key, list->count, args, err);
        if (status == DDP_OK)
            status = ddp_oplist_set(list, i, name->string, args, (int)given->count, flops,
                                    output_bytes, param_bytes, err);
        DDP_FREE(args);
        if (status != DDP_OK) return status;
    }
    return DDP_OK;
}

ddp_status ddp_oplist_read(const char *path, ddp_oplist *out, ddp_error *err)
{
    ddp__json *root = ddp__json_read(path, err);
    ddp__oplist_key *key = NULL;
    ddp_oplist list;
    ddp_status status = DDP_OK;

    if (!root) return err ? err->code : DDP_FORMAT;
    memset(&list, 0, sizeof list);
    if (root->kind != DDP__JSON_ARRAY || root->count < 1 || root->count > INT_MAX)
        status = ddp__fail(err, DDP_FORMAT,
                           "%s: a graph is a list of at least one operator, "
                           "[{\"name\": \"a\", \"args\": [], \"flops\": 1, \"output_bytes\": 4}]",
                           path);
    if (status == DDP_OK) status = ddp_oplist_new((int)root->count, &list, err);
    if (status == DDP_OK) {
        key = (ddp__oplist_key *)ddp__calloc((size_t)list.count, sizeof *key);
        status = key ? ddp__oplist_fill(path, root, key, &list, err)
                     : ddp__fail(err, DDP_MEMORY, "no memory to read %s", path);
    }
    if (status == DDP_OK) status = ddp_oplist_check(&list, err);
    DDP_FREE(key);
    ddp__json_free(root);
    if (status == DDP_OK) *out = list;
    else ddp_oplist_free(&list);
    return status;
}
/* ==== end profile/oplist.c ==== */

/* ==== begin plan/partial_core.h ==== [plan] */
/* Shared by the solvers of the partial planner: one profile in backward order. */
#ifndef DDP_PLAN_PARTIAL_CORE_H
#define DDP_PLAN_PARTIAL_CORE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Layers in backward order i = 0..L-1 (0 = output side, CSV row L-1-i). The cost of a step is
 * T + excess; solvers minimise the sum of excesses, which keeps its digits when T is large. */
typedef struct ddp__costs {
    ddp_cost cost;
    int      layers;
    double   T, alpha;
    double  *comm;  /* [L] */
    double  *P, *C; /* [L+1] prefix sums of backward and of comm */
    double  *w;     /* [L] non-decreasing: earliest start of a transfer, less its window */
    double  *k;     /* [L] w(i) - C(i); -inf where nothing is sent */
} ddp__costs;

DDP_LIB ddp_status ddp__costs_open(const ddp_profile *p, ddp_cost cost, ddp__costs *c,
                                   ddp_error *err);
DDP_LIB void       ddp__costs_close(ddp__costs *c);

/* Excess of the interval [a, b); kmax = max of k over it (read by timeline and window only). */
DDP_LIB double ddp__excess_interval(const ddp__costs *c, int a, int b, double kmax);
/* Excess of layers list[0..n) (ascending), without `less` and with `more` (-1 = none). */
DDP_LIB double ddp__excess_list(const ddp__costs *c, const int *list, int n, int less, int more);
/* Lower bound on the sum of excesses of any assignment to `period` steps. */
DDP_LIB double ddp__excess_bound(const ddp__costs *c, int period);

/* Contiguous solvers: set h is [cut[h], cut[h+1]), cut [period+1]. ddp__search needs a cost other
 * than sum and alpha 0; ddp__programme takes all; ddp__optimal picks. curve [period] or NULL. */
DDP_LIB ddp_status ddp__search(const ddp__costs *c, int period, int *cut, double *curve,
                               ddp_error *err);
DDP_LIB ddp_status ddp__programme(const ddp__costs *c, int period, int *cut, double *curve,
                                  ddp_error *err);
DDP_LIB ddp_status ddp__optimal(const ddp__costs *c, int period, int *cut, double *curve,
                                ddp_error *err);
DDP_LIB ddp_status ddp__dfs(const ddp__costs *c, int period, int *cut, ddp_error *err);
/* The steps of a table of choices: choice[r * (L+1) + l] ends the set at l with r+1 sets left. */
DDP_LIB void ddp__cut_from_choice(const int *choice, int layers, int rows, int period, int *cut);

/* Any assignment; step [L] in backward order holds a first assignment and receives the best. */
DDP_LIB ddp_status ddp__scatter(const ddp__costs *c, int period, double time_limit_s, int *step,
                                ddp_error *err);

/* Every contiguous partition, by simulating the definitions: shares nothing with the above.
 * The same simulation for any set: member [L] in forward order, nonzero = averaged. */
DDP_LIB ddp_status ddp__brute(const ddp_profile *p, ddp_cost cost, int period, double time_limit_s,
                              int *cut, ddp_error *err);
DDP_LIB ddp_status ddp__brute_step(const ddp_profile *p, ddp_cost cost, const unsigned char *member,
                                   double *out_s, ddp_error *err);

/* Marks plan->fill [H x L, forward order] from step [L] (backward order). */
DDP_LIB ddp_status ddp__fill(const ddp__costs *c, ddp_fill rule, const int *step, ddp_plan *plan,
                             ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_PARTIAL_CORE_H */
/* ==== end plan/partial_core.h ==== */

/* ==== begin plan/partial_cost.c ==== [plan] */

/* Interval and set costs of the partial planner in closed form (stated in plan/partial.h).
 *
 * Timeline: the link is busy without a gap from the last moment at which it was free, which is
 * some layer's backward end P(i+1), so the last transfer ends at the largest P(i+1) + comm of
 * the set from i on. Window: a layer's forward cannot begin before its transfer, so the step is
 * late by the largest (transfer end - due time). Layers from i towards the input are released at
 * P(i+1) or later and due no later than layer i, so some of them is late by at least
 * P(i+1) + their comm - due(i); serving the input side first attains the largest of these,
 * because layer i then waits for nothing else. */

ddp_status ddp__costs_open(const ddp_profile *p, ddp_cost cost, ddp__costs *c, ddp_error *err)
{
    double before = 0; /* forward time of the layers ahead of layer i in the forward pass */
    double *store;
    size_t L;
    int i, l;

    memset(c, 0, sizeof *c);
    DDP__TRY(ddp_profile_check(p, err));
    if (cost == DDP_COST_DEFAULT) cost = DDP_COST_WINDOW;
    if (cost != DDP_COST_TIMELINE && cost != DDP_COST_SUM && cost != DDP_COST_WINDOW)
        return ddp__fail(err, DDP_ARG, "cost %d is unknown; use timeline, sum or window",
                         (int)cost);
    L = (size_t)p->layers;
    store = (double *)ddp__calloc(5 * L + 2, sizeof *store);
    if (!store) return ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers", p->layers);
    c->cost = cost;
    c->layers = p->layers;
    c->alpha = p->alpha_s;
    c->comm = store;
    c->w = store + L;
    c->k = store + 2 * L;
    c->P = store + 3 * L;
    c->C = store + 4 * L + 1;
    for (i = 0; i < c->layers; i++) {
        l = c->layers - 1 - i;
        c->comm[i] = p->comm_s[l];
        c->P[i + 1] = c->P[i] + p->backward_s[l];
        c->C[i + 1] = c->C[i] + c->comm[i];
    }
    c->T = c->P[c->layers];
    for (i = c->layers - 1; i >= 0; i--) {
        l = c->layers - 1 - i;
        c->w[i] = c->P[i + 1] - before;
        c->k[i] = c->comm[i] > 0 ? c->w[i] - c->C[i] : -INFINITY;
        if (cost == DDP_COST_WINDOW && p->forward_s) before += p->forward_s[l];
    }
    if (!(c->T + c->C[c->layers] + before + c->alpha <= DBL_MAX)) {
        ddp__costs_close(c);
        return ddp__fail(err, DDP_NUMERIC,
                         "the times of the profile add up to more than a double holds; "
                         "times are in seconds");
    }
    return DDP_OK;
}

void ddp__costs_close(ddp__costs *c)
{
    if (c->comm) DDP_FREE(c->comm);
    memset(c, 0, sizeof *c);
}

double ddp__excess_interval(const ddp__costs *c, int a, int b, double kmax)
{
    double late;

    if (a >= b || c->C[b] <= c->C[a]) return 0;
    late = c->cost == DDP_COST_SUM ? c->w[a] + (c->C[b] - c->C[a]) : kmax + c->C[b];
    late += c->alpha - c->T;
    return late > 0 ? late : 0;
}

double ddp__excess_list(const ddp__costs *c, const int *list, int n, int less, int more)
{
    double late = -INFINITY, sum = 0, bound;
    int i = n - 1, x, first = -1;

    while (i >= 0 || more >= 0) {
        if (i < 0 || (more >= 0 && more > list[i])) {
            x = more;
            more = -1;
        } else {
            x = list[i--];
            if (x == less) continue;
        }
        first = x;
        if (!(c->comm[x] > 0)) continue;
        sum += c->comm[x];
        bound = c->w[x] + sum;
        if (bound > late) late = bound;
    }
    if (!(sum > 0)) return 0;
    if (c->cost == DDP_COST_SUM) late = c->w[first] + sum;
    late += c->alpha - c->T;
    return late > 0 ? late : 0;
}

/* Let v(s) be such that a step which averages a subset X of the layers s.. (maybe with others)
 * costs at least v(s) + alpha + comm(X): w(s) for timeline and window; for sum the step may have
 * started with an earlier layer a, whose comm then counts too. Summed over the n steps that hold
 * such layers the excess is at least comm[s..L) - n (T - v(s) - alpha), with n = H the worst case
 * if that slack is positive and n = 1 if not; a single layer s gives the same with its own comm. */
double ddp__excess_bound(const ddp__costs *c, int period)
{
    double best = 0, early = INFINITY, v, slack, rest, one;
    int s;

    for (s = 0; s < c->layers; s++) {
        v = c->w[s];
        if (c->cost == DDP_COST_SUM) {
            if (early < v) v = early;
            if (c->w[s] + c->comm[s] < early) early = c->w[s] + c->comm[s];
        }
        slack = c->T - v - c->alpha;
        rest = c->C[c->layers] - c->C[s];
        if (!(rest > 0)) break;
        rest -= slack > 0 ? slack * period : slack;
        one = c->comm[s] > 0 ? c->comm[s] - slack : 0;
        if (rest > best) best = rest;
        if (one > best) best = one;
    }
    return best;
}
/* ==== end plan/partial_cost.c ==== */

/* ==== begin plan/partial_search.c ==== [plan] */

/* Algorithm 2 of DreamDDP: exact and memoised, and as printed.
 *
 * Let m(l) be the largest b for which [l, b) is hidden. Algorithm 2 ends a set that begins at l
 * only at m(l) or m(l)+1. With the timeline or window cost and alpha 0 that loses nothing:
 *  - cutting before m(l) never helps: the cost of [a, b) falls with a, so the later sets lose
 *    layers at no cost to this one;
 *  - cutting after m(l)+1 never helps: handing [m+1, x) to the next set saves this set exactly its
 *    comm, and the next set grows by no more, because w does not decrease (and w <= T).
 * So the tree contains an optimum, and one table over (sets left, l) finds it in O(L H). */

void ddp__cut_from_choice(const int *choice, int layers, int rows, int period, int *cut)
{
    int h, l = 0;

    cut[0] = 0;
    for (h = 0; h < period; h++) {
        l = h < rows && l < layers
                ? choice[(size_t)(rows - 1 - h) * (size_t)(layers + 1) + (size_t)l]
                : layers;
        cut[h + 1] = l;
    }
}

/* m[l], the excess of [l, m(l)+1) and of [l, L), by two pointers and a queue of the maxima of k. */
static void ddp__search_windows(const ddp__costs *c, int *m, double *next, double *last, int *queue)
{
    int L = c->layers, l, b = 0, head = 0, tail = 0;
    double top = -INFINITY, kmax, late;

    for (l = L - 1; l >= 0; l--) {
        if (c->k[l] > top) top = c->k[l];
        last[l] = ddp__excess_interval(c, l, L, top);
    }
    for (l = 0; l < L; l++) {
        while (head < tail && queue[head] < l) head++;
        if (b < l) b = l;
        next[l] = 0;
        for (; b < L; b++) {
            kmax = head < tail && c->k[queue[head]] > c->k[b] ? c->k[queue[head]] : c->k[b];
            late = ddp__excess_interval(c, l, b + 1, kmax);
            if (late > 0) {
                next[l] = late;
                break;
            }
            while (head < tail && c->k[queue[tail - 1]] <= c->k[b]) tail--;
            queue[tail++] = b;
        }
        m[l] = b;
    }
}

ddp_status ddp__search(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err)
{
    int L = c->layers, rows = period < L ? period : L, r, l, b;
    size_t row = (size_t)L + 1;
    double *best = (double *)ddp__calloc(4 * row, sizeof *best); /* of r and r-1 sets, next, last */
    int *choice = (int *)ddp__calloc(row * ((size_t)rows + 2), sizeof *choice);
    double *now = best, *was = best + row, *swap, *next, *last, stay, add;
    int *m, *queue;

    if (!best || !choice) {
        DDP_FREE(best);
        DDP_FREE(choice);
        return ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers over %d steps", L, period);
    }
    next = best + 2 * row;
    last = best + 3 * row;
    m = choice + (size_t)rows * row;
    queue = m + row;
    ddp__search_windows(c, m, next, last, queue);
    for (r = 0; r < rows; r++) {
        int *pick = choice + (size_t)r * row;
        now[L] = 0;
        pick[L] = L;
        for (l = 0; l < L; l++) {
            b = m[l];
            if (r == 0 || b == L) {
                now[l] = last[l];
                pick[l] = L;
                continue;
            }
            add = next[l] + was[b + 1];
            stay = was[b];
            pick[l] = add <= stay || b == l ? b + 1 : b;
            now[l] = pick[l] == b ? stay : add;
        }
        if (curve) curve[r] = now[0];
        swap = now;
        now = was;
        was = swap;
    }
    for (r = rows; curve && r < period; r++) curve[r] = curve[rows - 1];
    if (cut) ddp__cut_from_choice(choice, L, rows, period, cut);
    DDP_FREE(best);
    DDP_FREE(choice);
    return DDP_OK;
}

ddp_status ddp__optimal(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err)
{
    if (c->cost != DDP_COST_SUM && !(c->alpha > 0)) return ddp__search(c, period, cut, curve, err);
    return ddp__programme(c, period, cut, curve, err);
}

#define DDP__DFS_LEAVES 4000000L
#define DDP__DFS_DEPTH  10000

typedef struct ddp__dfs_state {
    const ddp__costs *c;
    int    period;
    int   *cut, *best_cut; /* [period+1] */
    double best;
    long   leaves;
} ddp__dfs_state;

static void ddp__dfs_leaf(ddp__dfs_state *s, int h, double excess)
{
    int i;

    s->leaves++;
    if (!(excess < s->best)) return;
    s->best = excess;
    memcpy(s->best_cut, s->cut, (size_t)(h + 1) * sizeof(int));
    for (i = h + 1; i <= s->period; i++) s->best_cut[i] = s->c->layers;
}

/* Lines 8-30 with the corrections: the last set is one solution (15), the first branch gets its
 * own copy (28), the second goes on to h+1 (30). A layer of the recursion is a turn of the loop. */
static void ddp__dfs_set(ddp__dfs_state *s, int l, int h, double excess)
{
    const ddp__costs *c = s->c;
    int L = c->layers, b = l;
    double kmax = -INFINITY, own = 0, more;

    if (s->leaves > DDP__DFS_LEAVES) return;
    s->cut[h] = l;
    if (l == L) { /* line 9: nothing left */
        ddp__dfs_leaf(s, h, excess);
        return;
    }
    if (h == s->period - 1) { /* line 12: the last set takes the rest */
        for (; b < L; b++)
            if (c->k[b] > kmax) kmax = c->k[b];
        ddp__dfs_leaf(s, h, excess + ddp__excess_interval(c, l, L, kmax));
        return;
    }
    for (; b < L; b++) {
        if (c->k[b] > kmax) kmax = c->k[b];
        more = ddp__excess_interval(c, l, b + 1, kmax);
        if (b == l || !(more > 0)) { /* lines 17-22: at least one, and whatever is hidden */
            own = more;
            continue;
        }
        if (!(own > 0)) ddp__dfs_set(s, b + 1, h + 1, excess + more); /* lines 26-28 */
        break;                                                       /* lines 23-24 and 29-30 */
    }
    ddp__dfs_set(s, b, h + 1, excess + own);
}

ddp_status ddp__dfs(const ddp__costs *c, int period, int *cut, ddp_error *err)
{
    ddp__dfs_state s;

    if (period > DDP__DFS_DEPTH && c->layers > DDP__DFS_DEPTH)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "Algorithm 2 recurses once per step and %d is too deep; use solver optimal",
                         period);
    memset(&s, 0, sizeof s);
    s.c = c;
    s.period = period;
    s.best_cut = cut;
    s.best = INFINITY;
    s.cut = (int *)ddp__calloc((size_t)period + 1, sizeof(int));
    if (!s.cut) return ddp__fail(err, DDP_MEMORY, "no memory to plan %d steps", period);
    ddp__dfs_set(&s, 0, 0, 0);
    DDP_FREE(s.cut);
    if (s.leaves > DDP__DFS_LEAVES)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "Algorithm 2 has more than %ld solutions for %d layers and period %d; "
                         "solver optimal finds the best of them at once",
                         DDP__DFS_LEAVES, c->layers, period);
    return DDP_OK;
}
/* ==== end plan/partial_search.c ==== */

/* ==== begin plan/partial_programme.c ==== [plan] */

/* O(L^2 H) dynamic programme over contiguous sets, for any interval cost that does not fall as
 * the set grows: best(r, l) = min over b > l of excess[l, b) + best(r-1, b). Empty sets
 * are left to the end: the cost of a set does not depend on its step. */
ddp_status ddp__programme(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err)
{
    int L = c->layers, rows = period < L ? period : L, r, l, b;
    size_t row = (size_t)L + 1;
    double *best = (double *)ddp__calloc(2 * row, sizeof *best);
    int *choice = (int *)ddp__calloc(row * (size_t)rows, sizeof *choice);
    double *now = best, *was = best + row, *swap;

    if (!best || !choice) {
        DDP_FREE(best);
        DDP_FREE(choice);
        return ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers over %d steps", L, period);
    }
    for (r = 0; r < rows; r++) {
        int *pick = choice + (size_t)r * row;
        now[L] = 0;
        pick[L] = L;
        for (l = L - 1; l >= 0; l--) {
            double kmax = -INFINITY, least = INFINITY, excess;
            for (b = l + 1; b <= L; b++) {
                if (c->k[b - 1] > kmax) kmax = c->k[b - 1];
                excess = ddp__excess_interval(c, l, b, kmax);
                if (r == 0 && b < L) continue;
                if (excess > least) break;
                if (r == 0 || excess + was[b] <= least) {
                    least = r == 0 ? excess : excess + was[b];
                    pick[l] = b;
                }
            }
            now[l] = least;
        }
        if (curve) curve[r] = now[0];
        swap = now;
        now = was;
        was = swap;
    }
    for (r = rows; curve && r < period; r++) curve[r] = curve[rows - 1];
    if (cut) ddp__cut_from_choice(choice, L, rows, period, cut);
    DDP_FREE(best);
    DDP_FREE(choice);
    return DDP_OK;
}
/* ==== end plan/partial_programme.c ==== */

/* ==== begin plan/partial_scatter.c ==== [plan] */

/* Non-contiguous assignment: longest transfer first from several starts, then single moves and
 * swaps, then the same from small disturbances of the best. Contiguous sets leave the link idle
 * while the output side of every later step runs backward; scattering uses that time, and
 * convergence needs only each layer once per period. Bounded by a count of looked-at members, so
 * that the plan is the same on every machine; the clock is only a safety net. */

/* Members looked at, for each pair of layer and step, and at most. */
#define DDP__SCATTER_VISITS_EACH 2e4
#define DDP__SCATTER_VISITS      2e7

typedef struct ddp__scatter_state {
    const ddp__costs *c;
    int     period;
    int    *step;    /* [L] */
    int    *member;  /* [L] layers grouped by step, ascending in a step; sending layers only */
    int    *begin;   /* [H+1] */
    double *excess;  /* [H] */
    double *load;    /* [H] sum of comm */
    double  total, eps, visits, most_visits, deadline;
} ddp__scatter_state;

/* Layers that send nothing cost nothing anywhere, except that Eq. 8 starts a set at its first
 * layer whether it sends or not. */
static int ddp__scatter_counts(const ddp__costs *c, int i)
{
    return c->comm[i] > 0 || c->cost == DDP_COST_SUM;
}

static double ddp__scatter_try(ddp__scatter_state *s, int h, int less, int more)
{
    int n = s->begin[h + 1] - s->begin[h];

    s->visits += n + 4;
    return ddp__excess_list(s->c, s->member + s->begin[h], n, less, more);
}

/* Rebuilds lists and costs from step; layers of step -1 are not placed yet. */
static void ddp__scatter_index(ddp__scatter_state *s)
{
    int i, h, L = s->c->layers;

    memset(s->begin, 0, ((size_t)s->period + 1) * sizeof(int));
    for (h = 0; h < s->period; h++) s->load[h] = 0;
    for (i = 0; i < L; i++)
        if (s->step[i] >= 0 && ddp__scatter_counts(s->c, i)) {
            s->begin[s->step[i] + 1]++;
            s->load[s->step[i]] += s->c->comm[i];
        }
    for (h = 0; h < s->period; h++) s->begin[h + 1] += s->begin[h];
    for (i = 0; i < L; i++)
        if (s->step[i] >= 0 && ddp__scatter_counts(s->c, i)) s->member[s->begin[s->step[i]]++] = i;
    for (h = s->period; h > 0; h--) s->begin[h] = s->begin[h - 1];
    s->begin[0] = 0;
    s->total = 0;
    for (h = 0; h < s->period; h++) s->total += s->excess[h] = ddp__scatter_try(s, h, -1, -1);
    s->visits += L;
}

/* Places the layers in the given order where they add least; equal: on the emptiest step
 * (sign 1) or on the fullest (sign -1), then the earliest. */
static void ddp__scatter_greedy(ddp__scatter_state *s, const int *order, int sign)
{
    int n, i, h, L = s->c->layers, best;
    double add, least;

    for (i = 0; i < L; i++) s->step[i] = ddp__scatter_counts(s->c, i) ? -1 : 0;
    ddp__scatter_index(s);
    for (n = 0; n < L; n++) {
        i = order[n];
        if (!ddp__scatter_counts(s->c, i)) continue;
        best = 0;
        least = INFINITY;
        for (h = 0; h < s->period; h++) {
            add = ddp__scatter_try(s, h, -1, i) - s->excess[h];
            if (add < least - s->eps ||
                (add <= least + s->eps && sign * (s->load[h] - s->load[best]) < 0)) {
                least = add;
                best = h;
            }
        }
        s->step[i] = best;
        ddp__scatter_index(s);
    }
}

static int ddp__scatter_stop(const ddp__scatter_state *s)
{
    return s->visits > s->most_visits || ddp_now() > s->deadline;
}

/* Moves layer x of an exposed step to where it adds least, if that gains. */
static int ddp__scatter_move(ddp__scatter_state *s, int x, double gain)
{
    int g, h = s->step[x], best = h;
    double add, least = gain - s->eps;

    for (g = 0; g < s->period; g++) {
        if (g == h) continue;
        add = ddp__scatter_try(s, g, -1, x) - s->excess[g];
        if (add < least) {
            least = add;
            best = g;
        }
    }
    if (best == h) return 0;
    s->step[x] = best;
    ddp__scatter_index(s);
    return 1;
}

/* Exchanges x with the first layer of another step that gains. */
static int ddp__scatter_swap(ddp__scatter_state *s, int x, double gain)
{
    int h = s->step[x], y, g;
    double there, here;

    for (y = 0; y < s->c->layers; y++) {
        g = s->step[y];
        if (g == h || !ddp__scatter_counts(s->c, y)) continue;
        there = ddp__scatter_try(s, g, y, x) - s->excess[g];
        if (!(there < gain - s->eps)) continue;
        here = ddp__scatter_try(s, h, x, y) - s->excess[h];
        if (!(here + there < -s->eps)) continue;
        s->step[x] = g;
        s->step[y] = h;
        ddp__scatter_index(s);
        return 1;
    }
    return 0;
}

/* Down to a local minimum of moves, then of moves and swaps. */
static void ddp__scatter_descend(ddp__scatter_state *s)
{
    int x, moved, swaps;
    double gain;

    ddp__scatter_index(s);
    do {
        moved = 0;
        for (swaps = 0; swaps < 2 && !moved; swaps++)
            for (x = 0; x < s->c->layers; x++) {
                if (!ddp__scatter_counts(s->c, x) || !(s->excess[s->step[x]] > s->eps)) continue;
                if (ddp__scatter_stop(s)) return;
                gain = s->excess[s->step[x]] - ddp__scatter_try(s, s->step[x], x, -1);
                if (!(gain > s->eps)) continue;
                moved |= swaps ? ddp__scatter_swap(s, x, gain) : ddp__scatter_move(s, x, gain);
            }
    } while (moved);
}

typedef struct ddp__scatter_key {
    double comm;
    int    layer;
} ddp__scatter_key;

static int ddp__scatter_longer(const void *a, const void *b)
{
    const ddp__scatter_key *x = (const ddp__scatter_key *)a, *y = (const ddp__scatter_key *)b;

    if (x->comm != y->comm) return x->comm > y->comm ? -1 : 1;
    return y->layer - x->layer;
}

static void ddp__scatter_keep(ddp__scatter_state *s, int *best, double *least)
{
    if (s->total < *least) {
        *least = s->total;
        memcpy(best, s->step, (size_t)s->c->layers * sizeof(int));
    }
}

/* Iterated local search around the best; an equal result replaces it, to cross plateaus. */
static void ddp__scatter_disturb(ddp__scatter_state *s, int *best, double *least, double bound)
{
    ddp_rng rng = ddp_rng_seed(1, (uint64_t)s->c->layers);
    uint64_t L = (uint64_t)s->c->layers, H = (uint64_t)s->period;
    int n;

    while (!ddp__scatter_stop(s) && *least > bound + s->eps) {
        memcpy(s->step, best, (size_t)L * sizeof(int));
        for (n = (int)ddp_rng_below(&rng, 3) + 1; n >= 0; n--) {
            int x = (int)ddp_rng_below(&rng, L), h = (int)ddp_rng_below(&rng, H);
            if (ddp__scatter_counts(s->c, x)) s->step[x] = h;
        }
        ddp__scatter_descend(s);
        if (s->total <= *least + s->eps / 8) {
            if (s->total < *least) *least = s->total;
            memcpy(best, s->step, (size_t)L * sizeof(int));
        }
        s->visits += 64;
    }
}

ddp_status ddp__scatter(const ddp__costs *c, int period, double time_limit_s, int *step,
                        ddp_error *err)
{
    ddp__scatter_state s;
    ddp__scatter_key *key;
    size_t L = (size_t)c->layers, H = (size_t)(period < c->layers ? period : c->layers);
    double *real = (double *)ddp__calloc(2 * H, sizeof *real);
    double least, bound = ddp__excess_bound(c, period);
    int *order = (int *)ddp__calloc(3 * L + H + 1, sizeof *order), i, n;

    key = (ddp__scatter_key *)ddp__calloc(L, sizeof *key);
    if (!real || !order || !key) {
        DDP_FREE(real);
        DDP_FREE(order);
        DDP_FREE(key);
        return ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers over %d steps", c->layers,
                         period);
    }
    memset(&s, 0, sizeof s);
    s.c = c;
    s.period = (int)H; /* with more steps than layers the rest stay empty */
    s.excess = real;
    s.load = real + H;
    s.step = order + L;
    s.member = order + 2 * L;
    s.begin = order + 3 * L;
    s.most_visits = DDP__SCATTER_VISITS_EACH * (double)L * (double)H;
    if (s.most_visits > DDP__SCATTER_VISITS) s.most_visits = DDP__SCATTER_VISITS;
    s.eps = 1e-12 * (c->T + c->C[c->layers] + c->alpha);
    s.deadline = ddp_now() + (time_limit_s > 0 ? time_limit_s : 60);
    memcpy(s.step, step, L * sizeof(int));
    ddp__scatter_index(&s);
    least = s.total;
    for (n = 0; n < 5 && least > bound + s.eps; n++) {
        for (i = 0; i < c->layers; i++) {
            key[i].comm = n > 2 ? 0 : c->comm[i]; /* the last two: from the input side */
            key[i].layer = i;
        }
        qsort(key, L, sizeof *key, ddp__scatter_longer);
        for (i = 0; i < c->layers; i++) order[i] = key[i].layer;
        if (n > 0) ddp__scatter_greedy(&s, order, n % 2 ? 1 : -1);
        ddp__scatter_descend(&s);
        ddp__scatter_keep(&s, step, &least);
    }
    ddp__scatter_disturb(&s, step, &least, bound);
    DDP_FREE(real);
    DDP_FREE(order);
    DDP_FREE(key);
    return DDP_OK;
}
/* ==== end plan/partial_scatter.c ==== */

/* ==== begin plan/partial_brute.c ==== [plan] */

/* The planner's yardstick: the definitions of plan/partial.h played event by event, and every
 * contiguous partition (empty sets allowed). Deliberately uses nothing of the other files. */

#define DDP__BRUTE_PARTITIONS 5e7

/* Transfers in order of backward on one first-in-first-out link. */
static double ddp__brute_timeline(const ddp_profile *p, const unsigned char *member)
{
    double now = 0, link = 0, done = 0;
    int l;

    for (l = p->layers - 1; l >= 0; l--) {
        now += p->backward_s[l];
        if (!member[l] || p->comm_s[l] <= 0) continue;
        if (link < now) link = now;
        link += p->comm_s[l];
        done = link + p->alpha_s;
    }
    return done > now ? done : now;
}

static double ddp__brute_sum(const ddp_profile *p, const unsigned char *member)
{
    double now = 0, start = -1, sum = 0, done;
    int l;

    for (l = p->layers - 1; l >= 0; l--) {
        now += p->backward_s[l];
        if (!member[l]) continue;
        if (start < 0) start = now;
        sum += p->comm_s[l];
    }
    if (sum <= 0) return now;
    done = start + sum + p->alpha_s;
    return done > now ? done : now;
}

/* The link always serves the waiting layer nearest to the input, interrupting any other; layers
 * become ready from the output side, so the waiting ones are a stack. left and done: [L]. */
static double ddp__brute_window(const ddp_profile *p, const unsigned char *member, int *stack,
                                double *left, double *done)
{
    double now = 0, room, end, forward = 0;
    int l, k, depth = 0;

    for (l = p->layers; l >= 0; l--) {
        room = l > 0 ? p->backward_s[l - 1] : INFINITY; /* until the next layer is ready */
        if (l < p->layers && member[l] && p->comm_s[l] > 0) {
            left[l] = p->comm_s[l];
            stack[depth++] = l;
        }
        end = now + room;
        while (depth > 0 && now + left[stack[depth - 1]] <= end) {
            k = stack[--depth];
            now += left[k];
            done[k] = now;
        }
        if (depth > 0) left[stack[depth - 1]] -= end - now;
        if (l > 0) now = end;
    }
    now = 0;
    for (l = 0; l < p->layers; l++) now += p->backward_s[l];
    for (l = 0; l < p->layers; l++) {
        if (member[l] && p->comm_s[l] > 0 && now < done[l] + p->alpha_s) now = done[l] + p->alpha_s;
        if (p->forward_s) now += p->forward_s[l];
        if (p->forward_s) forward += p->forward_s[l];
    }
    return now - forward;
}

ddp_status ddp__brute_step(const ddp_profile *p, ddp_cost cost, const unsigned char *member,
                           double *out_s, ddp_error *err)
{
    size_t L = (size_t)p->layers;
    double *time;
    int *stack;

    if (cost == DDP_COST_TIMELINE) *out_s = ddp__brute_timeline(p, member);
    else if (cost == DDP_COST_SUM) *out_s = ddp__brute_sum(p, member);
    else {
        time = (double *)ddp__calloc(2 * L, sizeof *time);
        stack = (int *)ddp__calloc(L, sizeof *stack);
        if (time && stack) *out_s = ddp__brute_window(p, member, stack, time, time + L);
        DDP_FREE(time);
        DDP_FREE(stack);
        if (!time || !stack)
            return ddp__fail(err, DDP_MEMORY, "no memory to simulate %d layers", p->layers);
    }
    return DDP_OK;
}

typedef struct ddp__brute_state {
    int           layers, period, *cut, *best_cut;
    const double *cost; /* [(L+1) x (L+1)] of [a, b) in backward order */
    double        best, deadline;
    long          seen;
    int           late;
} ddp__brute_state;

static void ddp__brute_sets(ddp__brute_state *s, int h, int l, double sum)
{
    const double *row = s->cost + (size_t)l * (size_t)(s->layers + 1);
    int b;

    s->cut[h] = l;
    if (h == s->period - 1) {
        if (++s->seen % 65536 == 0 && ddp_now() > s->deadline) s->late = 1;
        sum += row[s->layers];
        if (!(sum < s->best)) return;
        s->best = sum;
        s->cut[s->period] = s->layers;
        memcpy(s->best_cut, s->cut, ((size_t)s->period + 1) * sizeof(int));
        return;
    }
    for (b = s->layers; b >= l && !s->late; b--) ddp__brute_sets(s, h + 1, b, sum + row[b]);
}

ddp_status ddp__brute(const ddp_profile *p, ddp_cost cost, int period, double time_limit_s,
                      int *cut, ddp_error *err)
{
    ddp__brute_state s;
    size_t L = (size_t)p->layers, row = L + 1;
    double *table, partitions = 1;
    unsigned char *member;
    int a, b, i, sets = period < p->layers ? period : p->layers; /* more would be empty */
    ddp_status status = DDP_OK;

    for (i = 1; i < sets && partitions <= DDP__BRUTE_PARTITIONS; i++)
        partitions *= (double)(p->layers + i) / i;
    if (partitions > DDP__BRUTE_PARTITIONS || p->layers > 2000)
        return ddp__fail(
            err, DDP_UNSUPPORTED,
            "brute force over %d layers and period %d is too much (limits: %.0e "
            "partitions, 2000 layers); use solver optimal, which finds the same optimum",
            p->layers, period, DDP__BRUTE_PARTITIONS);
    memset(&s, 0, sizeof s);
    table = (double *)ddp__calloc(row * row, sizeof *table);
    member = (unsigned char *)ddp__calloc(L, 1);
    s.cut = (int *)ddp__calloc((size_t)sets + 1, sizeof(int));
    if (!table || !member || !s.cut)
        status = ddp__fail(err, DDP_MEMORY, "no memory for brute force over %d layers", p->layers);
    for (a = 0; a <= p->layers && status == DDP_OK; a++) {
        memset(member, 0, L);
        for (b = a; b <= p->layers && status == DDP_OK; b++) {
            if (b > a) member[p->layers - b] = 1;
            status = ddp__brute_step(p, cost, member, &table[(size_t)a * row + (size_t)b], err);
        }
    }
    if (status == DDP_OK) {
        s.layers = p->layers;
        s.period = sets;
        s.best_cut = cut;
        s.cost = table;
        s.best = INFINITY;
        s.deadline = ddp_now() + (time_limit_s > 0 ? time_limit_s : 60);
        ddp__brute_sets(&s, 0, 0, 0);
        for (i = sets + 1; i <= period; i++) cut[i] = p->layers;
    }
    DDP_FREE(table);
    DDP_FREE(member);
    DDP_FREE(s.cut);
    return status;
}
/* ==== end plan/partial_brute.c ==== */

/* ==== begin plan/partial_fill.c ==== [plan] */

/* Bubble filling: in each step average further layers from the output side, where it is free.
 * exact: the longest prefix 0..m-1 (own layers in it count once) with which the step costs no
 *        more than without; empty steps too.
 * eq12:  the paper's test, T - P(a+1) >= comm of set and prefix, where a is the first sending
 *        layer of the set and the prefix ends before it; empty steps have no a and stay empty. */

/* Excess of the step's own layers and the prefix 0..m-1; list has room for L. */
static double ddp__fill_excess(const ddp__costs *c, const int *step, int h, int m, int *list)
{
    int i, n = 0;

    for (i = 0; i < c->layers; i++)
        if (step[i] == h || (i < m && c->comm[i] > 0)) list[n++] = i;
    return ddp__excess_list(c, list, n, -1, -1);
}

/* A longer prefix costs no less. (With the sum cost the first filled layer may make the step start
 * sooner and so cheaper than without; from there on the same holds.) Bisection finds the last. */
static int ddp__fill_exact(const ddp__costs *c, const int *step, int h, int *list)
{
    double own = ddp__fill_excess(c, step, h, 0, list);
    int low = 0, high = c->layers, mid;

    while (low < high) {
        mid = low + (high - low + 1) / 2;
        if (ddp__fill_excess(c, step, h, mid, list) <= own) low = mid;
        else high = mid - 1;
    }
    return low;
}

static int ddp__fill_eq12(const ddp__costs *c, const int *step, int h)
{
    double room, sum = 0;
    int a = 0, i, m;

    while (a < c->layers && !(step[a] == h && c->comm[a] > 0)) a++;
    if (a == c->layers) return 0;
    for (i = a; i < c->layers; i++)
        if (step[i] == h) sum += c->comm[i];
    room = c->T - c->P[a + 1];
    if (sum > room) room = sum;
    for (m = 0; m < a; m++) {
        sum += c->comm[m];
        if (sum > room) break;
    }
    return m;
}

ddp_status ddp__fill(const ddp__costs *c, ddp_fill rule, const int *step, ddp_plan *plan,
                     ddp_error *err)
{
    int L = c->layers, h, i, m, *list;

    if (rule == DDP_FILL_NONE) return DDP_OK;
    list = (int *)ddp__calloc((size_t)L, sizeof *list);
    if (!list) return ddp__fail(err, DDP_MEMORY, "no memory to fill %d layers", L);
    for (h = 0; h < plan->period; h++) {
        m = rule == DDP_FILL_EXACT ? ddp__fill_exact(c, step, h, list) : ddp__fill_eq12(c, step, h);
        for (i = 0; i < m; i++)
            if (step[i] != h && c->comm[i] > 0)
                plan->fill[(size_t)h * (size_t)L + (size_t)(L - 1 - i)] = 1;
    }
    DDP_FREE(list);
    return DDP_OK;
}
/* ==== end plan/partial_fill.c ==== */

/* ==== begin plan/partial.c ==== [plan] */

static const char *const ddp__solver_names[] = {"scatter", "optimal", "dfs",
                                                "enp",     "brute",   "scatter"};
static const char *const ddp__cost_names[] = {"window", "timeline", "sum", "window"};
static const char *const ddp__fill_names[] = {"none", "exact", "eq12"};

#define DDP__COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const char *ddp__name_of(const char *const *names, int count, int value)
{
    return value >= 0 && value < count ? names[value] : "unknown";
}

/* The value of a name, counted from the back so that a name stands for itself and not for
 * DEFAULT; -1 with a sentence if there is none. */
static int ddp__value_of(const char *const *names, int count, int first, const char *what,
                         const char *name, ddp_error *err)
{
    ddp__text list;
    int i;

    for (i = count - 1; i >= 0; i--)
        if (name && !strcmp(names[i], name)) return i;
    memset(&list, 0, sizeof list);
    for (i = first; i < count; i++)
        ddp__text_addf(&list, "%s%s", i > first ? (i == count - 1 ? " or " : ", ") : "", names[i]);
    ddp__fail(err, DDP_ARG, "%s '%s' is unknown; use %s", what, name ? name : "",
              list.data ? list.data : "another");
    ddp__text_free(&list);
    return -1;
}

const char *ddp_solver_name(ddp_solver solver)
{
    return ddp__name_of(ddp__solver_names, DDP__COUNT(ddp__solver_names), (int)solver);
}

const char *ddp_cost_name(ddp_cost cost)
{
    return ddp__name_of(ddp__cost_names, DDP__COUNT(ddp__cost_names), (int)cost);
}

const char *ddp_fill_name(ddp_fill fill)
{
    return ddp__name_of(ddp__fill_names, DDP__COUNT(ddp__fill_names), (int)fill);
}

ddp_status ddp_solver_named(const char *name, ddp_solver *out, ddp_error *err)
{
    int v = ddp__value_of(ddp__solver_names, DDP__COUNT(ddp__solver_names), 1, "solver", name, err);

    if (v < 0) return DDP_ARG;
    *out = (ddp_solver)v;
    return DDP_OK;
}

ddp_status ddp_cost_named(const char *name, ddp_cost *out, ddp_error *err)
{
    int v = ddp__value_of(ddp__cost_names, DDP__COUNT(ddp__cost_names), 1, "cost", name, err);

    if (v < 0) return DDP_ARG;
    *out = (ddp_cost)v;
    return DDP_OK;
}

ddp_status ddp_fill_named(const char *name, ddp_fill *out, ddp_error *err)
{
    int v = ddp__value_of(ddp__fill_names, DDP__COUNT(ddp__fill_names), 0, "filling", name, err);

    if (v < 0) return DDP_ARG;
    *out = (ddp_fill)v;
    return DDP_OK;
}

ddp_status ddp_plan_new(int layers, int period, ddp_plan *out, ddp_error *err)
{
    ddp_plan plan;

    if (layers < 1)
        return ddp__fail(err, DDP_ARG, "a plan of %d layers is impossible; it needs at least 1",
                         layers);
    if (period < 1)
        return ddp__fail(err, DDP_ARG, "period %d is impossible; it needs at least 1 step", period);
    memset(&plan, 0, sizeof plan);
    plan.layers = layers;
    plan.period = period;
    plan.step_of = (int *)ddp__calloc((size_t)layers, sizeof(int));
    plan.fill = (unsigned char *)ddp__calloc((size_t)layers, (size_t)period);
    if (!plan.step_of || !plan.fill) {
        ddp_plan_free(&plan);
        return ddp__fail(err, DDP_MEMORY, "no memory for a plan of %d layers over %d steps", layers,
                         period);
    }
    *out = plan;
    return DDP_OK;
}

void ddp_plan_free(ddp_plan *plan)
{
    if (!plan) return;
    DDP_FREE(plan->step_of);
    DDP_FREE(plan->fill);
    memset(plan, 0, sizeof *plan);
}

/* Costs of the assignment step [L] (backward order) into plan. list: room for L. */
static void ddp__plan_costs(const ddp__costs *c, const int *step, int *list, ddp_plan *plan)
{
    double excess = 0;
    int h, i, n;

    for (h = 0; h < plan->period; h++) {
        for (i = n = 0; i < c->layers; i++)
            if (step[i] == h) list[n++] = i;
        excess += ddp__excess_list(c, list, n, -1, -1);
    }
    plan->cost = c->cost;
    plan->exposed_s = excess;
    plan->objective_s = plan->period * c->T + excess;
    plan->lower_bound_s = plan->period * c->T + ddp__excess_bound(c, plan->period);
}

/* Layers with parameters (without parameter counts: layers that send), ceil(n/H) to a step;
 * one without parameters goes with the next that has some. */
static void ddp__enp(const ddp_profile *p, const ddp__costs *c, int period, int *step)
{
    int i, n = 0, seen = 0, each;

    for (i = 0; i < c->layers; i++) n += (p->params ? p->params[i] : p->comm_s[i]) > 0;
    each = n > period ? (n - 1) / period + 1 : 1;
    for (i = 0; i < c->layers; i++) {
        int l = c->layers - 1 - i;
        step[i] = seen / each < period ? seen / each : period - 1;
        seen += (p->params ? p->params[l] : p->comm_s[l]) > 0;
    }
}

/* step [L] in backward order by the chosen solver. */
static ddp_status ddp__partial_solve(const ddp_profile *p, const ddp_plan_options *o,
                                     const ddp__costs *c, int *step, ddp_error *err)
{
    int *cut, i, h;
    ddp_status status;

    if (o->solver == DDP_SOLVER_ENP) {
        ddp__enp(p, c, o->period, step);
        return DDP_OK;
    }
    cut = (int *)ddp__calloc((size_t)o->period + 1, sizeof *cut);
    if (!cut) return ddp__fail(err, DDP_MEMORY, "no memory to plan %d steps", o->period);
    if (o->solver == DDP_SOLVER_BRUTE)
        status = ddp__brute(p, c->cost, o->period, o->time_limit_s, cut, err);
    else if (o->solver == DDP_SOLVER_DFS) status = ddp__dfs(c, o->period, cut, err);
    else status = ddp__optimal(c, o->period, cut, NULL, err);
    for (h = 0; status == DDP_OK && h < o->period; h++)
        for (i = cut[h]; i < cut[h + 1]; i++) step[i] = h;
    DDP_FREE(cut);
    if (status == DDP_OK && (o->solver == DDP_SOLVER_SCATTER || o->solver == DDP_SOLVER_DEFAULT))
        status = ddp__scatter(c, o->period, o->time_limit_s, step, err);
    return status;
}

static ddp_status ddp__plan_options_check(const ddp_plan_options *o, ddp_error *err)
{
    if (!o) return ddp__fail(err, DDP_ARG, "ddp_plan_partial needs options; at least the period");
    if (o->period < 1)
        return ddp__fail(err, DDP_ARG, "period %d is impossible; it needs at least 1 step",
                         o->period);
    if ((int)o->solver < 0 || (int)o->solver >= DDP__COUNT(ddp__solver_names))
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use a DDP_SOLVER_ constant",
                         (int)o->solver);
    if ((int)o->fill < 0 || (int)o->fill >= DDP__COUNT(ddp__fill_names))
        return ddp__fail(err, DDP_ARG, "filling %d is unknown; use a DDP_FILL_ constant",
                         (int)o->fill);
    if (!(o->time_limit_s >= 0 && o->time_limit_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "time limit %g s is impossible; 0 means 60 s",
                         o->time_limit_s);
    return DDP_OK;
}

ddp_status ddp_plan_partial(const ddp_profile *p, const ddp_plan_options *o, ddp_plan *out,
                            ddp_error *err)
{
    ddp__costs c;
    ddp_plan plan;
    ddp_status status;
    int *step, i;

    DDP__TRY(ddp__plan_options_check(o, err));
    DDP__TRY(ddp__costs_open(p, o->cost, &c, err));
    memset(&plan, 0, sizeof plan);
    status = ddp_plan_new(c.layers, o->period, &plan, err);
    step = (int *)ddp__calloc(2 * (size_t)c.layers, sizeof *step);
    if (status == DDP_OK && !step)
        status = ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers", c.layers);
    if (status == DDP_OK) status = ddp__partial_solve(p, o, &c, step, err);
    if (status == DDP_OK) status = ddp__fill(&c, o->fill, step, &plan, err);
    if (status == DDP_OK) {
        plan.solver = o->solver == DDP_SOLVER_DEFAULT ? DDP_SOLVER_SCATTER : o->solver;
        for (i = 0; i < c.layers; i++) plan.step_of[c.layers - 1 - i] = step[i];
        ddp__plan_costs(&c, step, step + c.layers, &plan);
        *out = plan;
    } else {
        ddp_plan_free(&plan);
    }
    DDP_FREE(step);
    ddp__costs_close(&c);
    return status;
}

ddp_status ddp_plan_evaluate(const ddp_profile *p, ddp_cost cost, ddp_plan *plan, ddp_error *err)
{
    ddp__costs c;
    int *step, l;

    DDP__TRY(ddp_profile_check(p, err));
    if (!plan || plan->layers != p->layers || !plan->step_of)
        return ddp__fail(err, DDP_ARG,
                         "the plan has %d layers, the profile %d; they must be of one model",
                         plan ? plan->layers : 0, p->layers);
    for (l = 0; l < p->layers; l++)
        if (plan->step_of[l] < 0 || plan->step_of[l] >= plan->period)
            return ddp__fail(err, DDP_ARG,
                             "layer %d is in step %d; the steps of the plan are 0 to %d", l,
                             plan->step_of[l], plan->period - 1);
    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    step = (int *)ddp__calloc(2 * (size_t)c.layers, sizeof *step);
    if (step) {
        for (l = 0; l < c.layers; l++) step[c.layers - 1 - l] = plan->step_of[l];
        ddp__plan_costs(&c, step, step + c.layers, plan);
        DDP_FREE(step);
    }
    ddp__costs_close(&c);
    return step ? DDP_OK : ddp__fail(err, DDP_MEMORY, "no memory to evaluate %d layers", p->layers);
}

ddp_status ddp_plan_step_time(const ddp_profile *p, const int *step_of, int step, ddp_cost cost,
                              double *out_s, ddp_error *err)
{
    ddp__costs c;
    int *list, i, n = 0;

    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    list = (int *)ddp__calloc((size_t)c.layers, sizeof *list);
    if (list) {
        for (i = 0; i < c.layers; i++)
            if (step_of[c.layers - 1 - i] == step) list[n++] = i;
        *out_s = c.T + ddp__excess_list(&c, list, n, -1, -1);
        DDP_FREE(list);
    }
    ddp__costs_close(&c);
    return list ? DDP_OK : ddp__fail(err, DDP_MEMORY, "no memory to evaluate %d layers", p->layers);
}

ddp_status ddp_plan_curve(const ddp_profile *p, ddp_cost cost, int max_period, double *exposed_s,
                          ddp_error *err)
{
    ddp__costs c;
    ddp_status status;

    if (max_period < 1)
        return ddp__fail(err, DDP_ARG, "a curve up to period %d is empty; ask for at least 1",
                         max_period);
    DDP__TRY(ddp__costs_open(p, cost, &c, err));
    status = ddp__optimal(&c, max_period, NULL, exposed_s, err);
    ddp__costs_close(&c);
    return status;
}

static uint64_t ddp__hash_int(uint64_t hash, int value)
{
    unsigned char b[4];
    int i;

    for (i = 0; i < 4; i++) b[i] = (unsigned char)(((uint32_t)value >> (8 * i)) & 255u);
    return ddp__hash(hash, b, 4);
}

uint64_t ddp_plan_hash(const ddp_plan *plan)
{
    uint64_t hash = ddp__hash_int(ddp__hash_int(DDP__HASH_START, plan->layers), plan->period);
    int l;

    for (l = 0; l < plan->layers; l++) hash = ddp__hash_int(hash, plan->step_of[l]);
    return ddp__hash(hash, plan->fill, (size_t)plan->layers * (size_t)plan->period);
}
/* ==== end plan/partial.c ==== */

/* ==== begin plan/baselines.h ==== [plan] */
/* Shared by the baselines: one profile reduced to what travels, and the log of one iteration. */
#ifndef DDP_PLAN_BASELINES_H
#define DDP_PLAN_BASELINES_H

#ifdef __cplusplus
extern "C" {
#endif

/* One message: rows first..last of the profile as one operation. */
typedef struct ddp__bl_group {
    int    first, last;
    double ready; /* the end of backward of row first, from the start of backward */
    double c;     /* on the link, startup included */
} ddp__bl_group;

/* A profile checked and summed up. Times in seconds from the start of backward. */
typedef struct ddp__bl_model {
    const ddp_profile          *p;
    const ddp_timeline_options *o;
    int            rows, groups; /* groups: what is sent */
    ddp__bl_group *group;        /* [groups] in order of backward: the output side first */
    int           *parts;        /* [groups] equal parts of each */
    double        *size;         /* [groups] of one part, in partitions: at most 1 */
    double        *arrive;       /* [rows] when a row's forward may begin for its gradient's sake */
    int           *priority;     /* [groups] 0 = first */
    double         alpha;        /* startup contained in every group's c */
    double         forward, backward;
    double         bound;
    int            sized; /* some group has params */
} ddp__bl_model;

/* Link operations as they begin; room for all is reserved ahead. NULL where nobody looks. */
typedef struct ddp__bl_log {
    ddp_interval *at;
    int           count;
} ddp__bl_log;

/* Notes an operation on lane 0; NULL without a log. */
DDP_LIB ddp_interval *ddp__bl_note(ddp__bl_log *log, const ddp__bl_group *g, int part, int parts,
                                   double begin, double end);

/* Fusion. m->group holds one group per sending row; these join some of them in place.
 * buckets: DDP's rule, needs params. merge: MG-WFBP's rule. */
DDP_LIB ddp_status ddp__bl_buckets(ddp__bl_model *m, ddp_error *err);
DDP_LIB void       ddp__bl_merge(ddp__bl_model *m);

/* The link, filling m->arrive. fifo: one operation at a time in the order of groups, none before
 * `from`. shared: up to `most` at once by processor sharing. Forward waits for all of them. */
DDP_LIB void       ddp__bl_fifo(ddp__bl_model *m, double from, ddp__bl_log *log);
DDP_LIB ddp_status ddp__bl_shared(ddp__bl_model *m, long most, ddp__bl_log *log, ddp_error *err);

/* Cuts every group into parts as the options say; at most DDP__BL_MOST_PARTS in all. */
enum { DDP__BL_MOST_PARTS = 1000000 };
DDP_LIB ddp_status ddp__bl_cut(ddp__bl_model *m, ddp_error *err);

/* Priority schemes, after ddp__bl_cut; a row's forward waits for its own parts only. */
DDP_LIB ddp_status ddp__bl_bytescheduler(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err);
DDP_LIB ddp_status ddp__bl_usbyte(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err);

/* The end of the forward pass that begins when backward has ended, row i not before
 * m->arrive[i]. */
DDP_LIB double ddp__bl_forward_end(const ddp__bl_model *m);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_BASELINES_H */
/* ==== end plan/baselines.h ==== */

/* ==== begin plan/baselines_fusion.c ==== [plan] */

/* Which rows travel as one message. */

/* Row `next` (nearer to the input) joins g: one startup for both, ready with the later. */
static void ddp__bl_join(ddp__bl_group *g, const ddp__bl_group *next, double alpha)
{
    g->first = next->first;
    g->ready = next->ready;
    g->c += next->c - alpha;
}

ddp_status ddp__bl_buckets(ddp__bl_model *m, ddp_error *err)
{
    double limit = m->o->first_bucket_bytes > 0 ? m->o->first_bucket_bytes : 1048576, bytes = 0;
    int i, row, kept = 0, open = 0;

    if (m->groups && !m->sized)
        return ddp__fail(err, DDP_ARG,
                         "no row that sends has params, so bucket_bytes %g cannot be applied; "
                         "give params or bucket_bytes 0 (rows are buckets)",
                         m->o->bucket_bytes);
    for (i = 0; i < m->groups; i++) {
        row = m->group[i].first;
        if (open) ddp__bl_join(&m->group[kept - 1], &m->group[i], m->alpha);
        else m->group[kept++] = m->group[i];
        bytes += 4 * m->p->params[row];
        open = bytes < limit;
        if (!open) bytes = 0, limit = m->o->bucket_bytes;
    }
    m->groups = kept;
    return DDP_OK;
}

/* Walking from the output side, start is when the group on top would begin under WFBP; joining
 * changes only what comes after it, so that one pass is enough. */
void ddp__bl_merge(ddp__bl_model *m)
{
    ddp__bl_group *top = m->group, *next;
    double start = m->groups ? top->ready : 0;
    int i;

    for (i = 1; i < m->groups; i++) {
        next = &m->group[i];
        if (next->ready < start + top->c &&
            (start > next->ready || next->ready - start < m->alpha)) {
            ddp__bl_join(top, next, m->alpha);
        } else {
            start += top->c;
            *++top = *next;
        }
        if (start < top->ready) start = top->ready;
    }
    if (m->groups) m->groups = (int)(top - m->group) + 1;
}
/* ==== end plan/baselines_fusion.c ==== */

/* ==== begin plan/baselines_link.c ==== [plan] */

/* Links that take messages in the order of backward: one at a time, or several sharing. */

void ddp__bl_fifo(ddp__bl_model *m, double from, ddp__bl_log *log)
{
    double free_at = from;
    int i;

    for (i = 0; i < m->groups; i++) {
        const ddp__bl_group *g = &m->group[i];
        double begin = free_at > g->ready ? free_at : g->ready;
        free_at = begin + g->c;
        ddp__bl_note(log, g, 0, 1, begin, free_at);
    }
    m->arrive[0] = free_at;
}

/* An operation in flight. It needs no bandwidth before `starts`; from then on it ends when the
 * service that every such operation has received in common reaches `target`. */
typedef struct ddp__bl_flight {
    int    group, busy, served;
    double starts, target;
    ddp_interval *note;
} ddp__bl_flight;

typedef struct ddp__bl_share {
    ddp__bl_flight *lane;
    int             lanes, flying, serving;
    double          now, service;
} ddp__bl_share;

/* The lane of the next change among the operations in flight (the end of a startup or of an
 * operation) and its time; -1 and infinity where none flies. */
static int ddp__bl_next(const ddp__bl_share *s, double *when)
{
    int k, at = -1;

    *when = INFINITY;
    for (k = 0; k < s->lanes; k++) {
        const ddp__bl_flight *x = &s->lane[k];
        double t;
        if (!x->busy) continue;
        t = x->served ? s->now + (x->target - s->service) * s->serving : x->starts;
        if (t < *when) *when = t, at = k;
    }
    return at;
}

static void ddp__bl_launch(ddp__bl_share *s, const ddp__bl_model *m, int group, ddp__bl_log *log)
{
    ddp__bl_flight *x = s->lane;
    double ready = m->group[group].ready;

    if (ready > s->now) {
        if (s->serving) s->service += (ready - s->now) / s->serving;
        s->now = ready;
    }
    while (x->busy) x++;
    x->group = group;
    x->busy = 1;
    x->served = 0;
    x->starts = s->now + m->alpha;
    x->note = ddp__bl_note(log, &m->group[group], 0, 1, s->now, s->now);
    if (x->note) x->note->lane = (int)(x - s->lane);
    s->flying++;
}

static void ddp__bl_change(ddp__bl_share *s, const ddp__bl_model *m, int k, double when)
{
    ddp__bl_flight *x = &s->lane[k];

    /* exactly the target at its end, so that rounding leaves no operation with a remainder */
    if (x->served) s->service = x->target;
    else if (s->serving) s->service += (when - s->now) / s->serving;
    s->now = when;
    if (!x->served) {
        x->served = 1;
        x->target = s->service + (m->group[x->group].c - m->alpha);
        s->serving++;
    } else {
        if (x->note) x->note->end_s = when;
        x->busy = 0;
        s->serving--;
        s->flying--;
    }
}

ddp_status ddp__bl_shared(ddp__bl_model *m, long most, ddp__bl_log *log, ddp_error *err)
{
    ddp__bl_share s;
    double when;
    int i = 0, k;

    memset(&s, 0, sizeof s);
    s.lanes = most < m->groups ? (int)most : m->groups;
    s.lane = (ddp__bl_flight *)ddp__calloc((size_t)s.lanes, sizeof *s.lane);
    if (!s.lane) return ddp__fail(err, DDP_MEMORY, "no memory for %d operations at once", s.lanes);
    while (i < m->groups || s.flying) {
        k = ddp__bl_next(&s, &when);
        if (i < m->groups && s.flying < s.lanes && m->group[i].ready <= when)
            ddp__bl_launch(&s, m, i++, log);
        else ddp__bl_change(&s, m, k, when);
    }
    m->arrive[0] = s.now;
    DDP_FREE(s.lane);
    return DDP_OK;
}
/* ==== end plan/baselines_link.c ==== */

/* ==== begin plan/baselines_priority.c ==== [plan] */

/* Partition and ByteScheduler. A group is one row here. */

ddp_status ddp__bl_cut(ddp__bl_model *m, ddp_error *err)
{
    const int most = DDP__BL_MOST_PARTS;
    const ddp_timeline_options *o = m->o;
    double params = o->partition_params > 0 ? o->partition_params : 6.5e6, total = 0, whole, k;
    int i;

    if (o->partition_s > 0 && !(o->partition_s > m->alpha))
        return ddp__fail(err, DDP_ARG,
                         "a partition of %g s is not longer than the startup of %g s; raise it",
                         o->partition_s, m->alpha);
    if (m->groups && !m->sized && !(o->partition_s > 0))
        return ddp__fail(err, DDP_ARG,
                         "no bucket that sends has params, so none can be cut by %g parameters; "
                         "give the partition in seconds (partition_s)",
                         params);
    for (i = 0; i < m->groups; i++) {
        if (o->partition_s > 0) whole = (m->group[i].c - m->alpha) / (o->partition_s - m->alpha);
        else whole = m->p->params[m->group[i].first] / params;
        k = ceil(whole - 1e-9); /* 3 x 0.1 s is three parts of 0.1 s, however it was rounded */
        if (k < 1) k = 1;
        total += k;
        if (!(total <= most))
            return ddp__fail(err, DDP_ARG,
                             "the partition cuts buckets %d to %d into %g parts; more than %d "
                             "cannot be planned, raise it",
                             m->group[i].first, m->group[0].first, total, most);
        m->parts[i] = (int)k;
        m->size[i] = whole / k < 1 ? whole / k : 1;
    }
    return DDP_OK;
}

/* A part that was committed to the link and has not arrived. */
typedef struct ddp__bl_sent {
    int    group, last;
    double end;
} ddp__bl_sent;

/* Groups become ready from the output side, so the best by row among those that wait is always
 * the newest: the queue is a stack of groups, each with the parts it still has to send. */
ddp_status ddp__bl_bytescheduler(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err)
{
    double limit = m->o->credit > 0 ? m->o->credit : 1, out = 0, now, link = 0;
    int *stack, *left, depth = 0, arrived = 0, total = 0, head = 0, tail = 0, i;
    ddp__bl_sent *sent;

    for (i = 0; i < m->groups; i++) total += m->parts[i];
    sent = (ddp__bl_sent *)ddp__calloc((size_t)total, sizeof *sent);
    stack = (int *)ddp__calloc(2 * (size_t)m->groups, sizeof *stack);
    if (!sent || !stack) {
        DDP_FREE(sent);
        DDP_FREE(stack);
        return ddp__fail(err, DDP_MEMORY, "no memory for %d parts", total);
    }
    left = stack + m->groups;
    while (head < total) {
        now = arrived < m->groups ? m->group[arrived].ready : INFINITY;
        if (head < tail && sent[head].end < now) now = sent[head].end;
        for (; arrived < m->groups && m->group[arrived].ready <= now; arrived++) {
            stack[depth++] = arrived;
            left[arrived] = m->parts[arrived];
        }
        for (; head < tail && sent[head].end <= now; head++) {
            if (sent[head].last) m->arrive[m->group[sent[head].group].first] = sent[head].end;
            out = head + 1 == tail ? 0 : out - m->size[sent[head].group];
        }
        /* credit is what is left of the limit; a rounding error is none */
        while (depth && limit - out > 1e-9 * limit) {
            int g = stack[depth - 1], part = m->parts[g] - left[g];
            double begin = link > now ? link : now;
            link = begin + m->alpha + (m->group[g].c - m->alpha) / m->parts[g];
            ddp__bl_note(log, &m->group[g], part, 1, begin, link);
            out += m->size[g];
            sent[tail].group = g;
            sent[tail].end = link;
            sent[tail++].last = --left[g] == 0;
            if (left[g] == 0) depth--;
        }
    }
    DDP_FREE(sent);
    DDP_FREE(stack);
    return DDP_OK;
}
/* ==== end plan/baselines_priority.c ==== */

/* ==== begin plan/baselines_usbyte.c ==== [plan] */

/* US-Byte: operations of unequal size that fill the gaps between ready gradients. A group is one
 * row here, and its parts are the blocks. */

typedef struct ddp__bl_us {
    ddp__bl_model *m;
    int           *priority; /* [groups] 0 = first */
    int           *left;     /* [groups] blocks still to send */
    int           *waiting;  /* ready groups with blocks left, the best one last */
    double        *first;    /* [groups] begin of a group's first operation */
    int64_t        visits;   /* groups simulated so far */
} ddp__bl_us;

static double ddp__bl_blocks(const ddp__bl_model *m, int g, int k)
{
    return k * ((m->group[g].c - m->alpha) / m->parts[g]);
}

/* Blocks of g that the gap until the next ready gradient asks for; the last may overrun it. */
static int ddp__bl_fill(const ddp__bl_us *u, int g, double gap, double startup)
{
    double one = ddp__bl_blocks(u->m, g, 1), k;

    if (startup + ddp__bl_blocks(u->m, g, u->left[g]) <= gap) return u->left[g];
    if (gap <= startup) return 1;
    k = ceil((gap - startup) / one);
    return k < u->left[g] ? (int)k : u->left[g];
}

/* Sends k blocks from time t, `more` of the operation before or a new one; returns the end. */
static double ddp__bl_send(ddp__bl_us *u, int g, int k, double t, int more, ddp__bl_log *log)
{
    ddp__bl_model *m = u->m;
    double end = t + (more ? 0 : m->alpha) + ddp__bl_blocks(m, g, k);
    int done = m->parts[g] - u->left[g];

    if (done == 0) u->first[g] = t;
    if (log && more) {
        log->at[log->count - 1].parts += k;
        log->at[log->count - 1].end_s = end;
    } else {
        ddp__bl_note(log, &m->group[g], done, k, t, end);
    }
    u->left[g] -= k;
    if (u->left[g] == 0) m->arrive[m->group[g].first] = end;
    return end;
}

/* One iteration under u->priority; its length. */
static double ddp__bl_us_run(ddp__bl_us *u, ddp__bl_log *log)
{
    ddp__bl_model *m = u->m;
    double t = 0, next;
    int i, g, w, k, waits = 0, arrived = 0, before = -1;

    u->visits += m->groups;
    for (i = 0; i < m->groups; i++) u->left[i] = m->parts[i];
    while (t < m->backward) {
        for (; arrived < m->groups && m->group[arrived].ready <= t; arrived++) {
            for (w = waits++; w > 0 && u->priority[u->waiting[w - 1]] < u->priority[arrived]; w--)
                u->waiting[w] = u->waiting[w - 1];
            u->waiting[w] = arrived;
        }
        next = arrived < m->groups ? m->group[arrived].ready : m->backward;
        if (!waits) {
            t = next;
            before = -1;
            continue;
        }
        g = u->waiting[waits - 1];
        k = ddp__bl_fill(u, g, next - t, g == before ? 0 : m->alpha);
        t = ddp__bl_send(u, g, k, t, g == before, log);
        if (u->left[g] == 0) waits--;
        before = g;
    }
    for (i = m->groups - 1; i >= 0; i--)
        if (u->left[i]) t = ddp__bl_send(u, i, u->left[i], t, 0, log);
    return ddp__bl_forward_end(m);
}

/* Gives group g the priority of group `to`, which and those between step back by one. While the
 * search has not come to them, groups nearer to the input still have their own places. */
static void ddp__bl_promote(int *priority, int g, int to)
{
    int i, best = priority[to];

    for (i = to; i > g; i--) priority[i]++;
    priority[g] = best;
}

static void ddp__bl_demote(int *priority, int g, int to)
{
    int i, own = priority[g + 1];

    for (i = g + 1; i <= to; i++) priority[i]--;
    priority[g] = own;
}

/* Bounds the search for lists far beyond any model, the same on every machine: seconds. */
enum { DDP__BL_MOST_VISITS = 100000000 };

/* From the output side: could a group have been sent whole, had it gone before those that became
 * ready meanwhile? */
static void ddp__bl_us_search(ddp__bl_us *u)
{
    ddp__bl_model *m = u->m;
    double best = ddp__bl_us_run(u, NULL), tau, t;
    int g = 0, to;

    while (g < m->groups - 1 && u->visits < DDP__BL_MOST_VISITS) {
        tau = u->first[g] + m->group[g].c;
        for (to = g; to < m->groups - 1 && m->group[to + 1].ready < tau; to++) {}
        if (to > g) {
            ddp__bl_promote(u->priority, g, to);
            t = ddp__bl_us_run(u, NULL);
            if (t < best) {
                best = t;
                g = to + 1;
                continue;
            }
            ddp__bl_demote(u->priority, g, to);
            ddp__bl_us_run(u, NULL); /* restores u->first */
        }
        g++;
    }
}

ddp_status ddp__bl_usbyte(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err)
{
    size_t n = (size_t)m->groups;
    ddp__bl_us u;

    u.m = m;
    u.visits = 0;
    u.priority = m->priority;
    u.left = (int *)ddp__calloc(2 * n, sizeof *u.left);
    u.first = (double *)ddp__calloc(n, sizeof *u.first);
    if (!u.left || !u.first) {
        DDP_FREE(u.left);
        DDP_FREE(u.first);
        return ddp__fail(err, DDP_MEMORY, "no memory for %d buckets", m->groups);
    }
    u.waiting = u.left + n;
    ddp__bl_us_search(&u);
    ddp__bl_us_run(&u, log);
    DDP_FREE(u.left);
    DDP_FREE(u.first);
    return DDP_OK;
}
/* ==== end plan/baselines_usbyte.c ==== */

/* ==== begin plan/timeline.c ==== [plan] */

static const char *const ddp__scheme_names[] = {
    "ssgd", "wfbp", "mgwfbp", "ascwfbp", "bytescheduler", "usbyte", "deft"};

enum { DDP__SCHEMES = DDP_SCHEME_DEFT + 1 };

const char *ddp_scheme_name(ddp_scheme scheme)
{
    int v = (int)scheme;

    return v >= 0 && v < DDP__SCHEMES ? ddp__scheme_names[v] : "unknown";
}

ddp_status ddp_scheme_named(const char *name, ddp_scheme *out, ddp_error *err)
{
    ddp__text list;
    int i;

    for (i = 0; i < DDP__SCHEMES; i++)
        if (name && !strcmp(name, ddp__scheme_names[i])) {
            *out = (ddp_scheme)i;
            return DDP_OK;
        }
    memset(&list, 0, sizeof list);
    for (i = 0; i < DDP__SCHEMES; i++)
        ddp__text_addf(&list, "%s%s", i ? (i == DDP__SCHEMES - 1 ? " or " : ", ") : "",
                       ddp__scheme_names[i]);
    ddp__fail(err, DDP_ARG, "scheme '%s' is unknown; use %s", name ? name : "",
              list.data ? list.data : "another");
    ddp__text_free(&list);
    return DDP_ARG;
}

void ddp_timeline_free(ddp_timeline *t)
{
    if (!t) return;
    DDP_FREE(t->parts);
    DDP_FREE(t->priority);
    DDP_FREE(t->interval);
    memset(t, 0, sizeof *t);
}

/* ---- options and profile ---- */

static ddp_status ddp__bl_check(const ddp_timeline_options *o, ddp_error *err)
{
    const char *name[] = {"alpha_s", "partition_params", "partition_s", "credit", "bucket_bytes",
                          "first_bucket_bytes"};
    double value[6];
    int i;

    value[0] = o->alpha_s;
    value[1] = o->partition_params;
    value[2] = o->partition_s;
    value[3] = o->credit;
    value[4] = o->bucket_bytes;
    value[5] = o->first_bucket_bytes;
    for (i = 0; i < 6; i++)
        if (!(value[i] >= 0 && value[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG, "%s is %g; it must be finite and at least 0", name[i],
                             value[i]);
    if (o->operations < 0)
        return ddp__fail(err, DDP_ARG, "operations is %ld; at least 1 must fly, 0 means 4",
                         o->operations);
    if (o->partition_params > 0 && o->partition_s > 0)
        return ddp__fail(err, DDP_ARG,
                         "a partition of %g parameters and of %g s was given; give one of them",
                         o->partition_params, o->partition_s);
    if (o->scheme == DDP_SCHEME_DEFT)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "scheme deft has no timeline of one iteration; use ddp_plan_delayed");
    if ((int)o->scheme < 0 || (int)o->scheme >= DDP__SCHEMES)
        return ddp__fail(err, DDP_ARG, "scheme %d is unknown; use ssgd to usbyte", (int)o->scheme);
    return DDP_OK;
}

static void ddp__bl_close(ddp__bl_model *m)
{
    DDP_FREE(m->group);
    DDP_FREE(m->parts);
    DDP_FREE(m->size);
    DDP_FREE(m->arrive);
    DDP_FREE(m->priority);
}

static ddp_status ddp__bl_open(ddp__bl_model *m, const ddp_profile *p,
                               const ddp_timeline_options *o, ddp_error *err)
{
    size_t n = (size_t)p->layers;
    double comm = 0;
    int l;

    m->p = p;
    m->o = o;
    m->rows = p->layers;
    m->alpha = o->alpha_s + p->alpha_s;
    m->group = (ddp__bl_group *)ddp__calloc(n, sizeof *m->group);
    m->parts = (int *)ddp__calloc(n, sizeof *m->parts);
    m->size = (double *)ddp__calloc(n, sizeof *m->size);
    m->arrive = (double *)ddp__calloc(n, sizeof *m->arrive);
    m->priority = (int *)ddp__calloc(n, sizeof *m->priority);
    if (!m->group || !m->parts || !m->size || !m->arrive || !m->priority)
        return ddp__fail(err, DDP_MEMORY, "no memory for a timeline of %d buckets", p->layers);
    for (l = p->layers - 1; l >= 0; l--) {
        ddp__bl_group *g = &m->group[m->groups];
        if (p->forward_s) m->forward += p->forward_s[l];
        m->backward += p->backward_s[l];
        if (!(p->comm_s[l] > 0)) continue;
        if (p->comm_s[l] < o->alpha_s)
            return ddp__fail(err, DDP_ARG,
                             "bucket %d (%s): comm_s is %g s, shorter than the startup alpha_s of "
                             "%g s that it contains; lower alpha_s",
                             l, p->name && p->name[l] ? p->name[l] : "unnamed", p->comm_s[l],
                             o->alpha_s);
        g->first = g->last = l;
        g->ready = m->backward;
        g->c = p->comm_s[l] + p->alpha_s;
        comm += g->c;
        if (p->params && p->params[l] > 0) m->sized = 1;
        m->parts[m->groups++] = 1;
    }
    for (l = 0; l < m->groups; l++) m->priority[l] = l;
    m->bound = p->backward_s[p->layers - 1] + comm;
    if (!(m->forward + m->backward + comm <= DBL_MAX / 2))
        return ddp__fail(err, DDP_NUMERIC,
                         "the times of the profile add up to more than a double holds; "
                         "times are in seconds");
    return DDP_OK;
}

/* ---- one iteration ---- */

ddp_interval *ddp__bl_note(ddp__bl_log *log, const ddp__bl_group *g, int part, int parts,
                           double begin, double end)
{
    ddp_interval *x;

    if (!log) return NULL;
    x = &log->at[log->count++];
    x->kind = DDP_INTERVAL_LINK;
    x->bucket = g->first;
    x->last = g->last;
    x->part = part;
    x->parts = parts;
    x->lane = 0;
    x->begin_s = begin;
    x->end_s = end;
    return x;
}

double ddp__bl_forward_end(const ddp__bl_model *m)
{
    double t = m->backward;
    int l;

    for (l = 0; l < m->rows; l++) {
        if (t < m->arrive[l]) t = m->arrive[l];
        if (m->p->forward_s) t += m->p->forward_s[l];
    }
    return t;
}

/* Startups that are merged or overlap can be saved: all but one of the messages as given. */
static void ddp__bl_save_startups(ddp__bl_model *m)
{
    if (m->groups > 1) m->bound -= (m->groups - 1) * m->alpha;
}

/* Everything that is decided before anything is sent: who is merged, cut, or goes first. */
static ddp_status ddp__bl_shape(ddp__bl_model *m, ddp_error *err)
{
    ddp_scheme s = m->o->scheme;
    int i;

    switch (s) {
    case DDP_SCHEME_MGWFBP:
        ddp__bl_save_startups(m);
        ddp__bl_merge(m);
        break;
    case DDP_SCHEME_WFBP:
    case DDP_SCHEME_ASCWFBP:
        if (s == DDP_SCHEME_ASCWFBP || m->o->bucket_bytes > 0) ddp__bl_save_startups(m);
        if (m->o->bucket_bytes > 0) return ddp__bl_buckets(m, err);
        break;
    case DDP_SCHEME_BYTESCHEDULER:
    case DDP_SCHEME_USBYTE:
        for (i = 0; i < m->groups; i++) m->priority[i] = m->groups - 1 - i;
        return ddp__bl_cut(m, err);
    case DDP_SCHEME_SSGD:
    case DDP_SCHEME_DEFT:
        break;
    }
    return DDP_OK;
}

static ddp_status ddp__bl_send_all(ddp__bl_model *m, ddp__bl_log *log, ddp_error *err)
{
    switch (m->o->scheme) {
    case DDP_SCHEME_ASCWFBP:
        return ddp__bl_shared(m, m->o->operations ? m->o->operations : 4, log, err);
    case DDP_SCHEME_BYTESCHEDULER:
        return ddp__bl_bytescheduler(m, log, err);
    case DDP_SCHEME_USBYTE:
        return ddp__bl_usbyte(m, log, err);
    case DDP_SCHEME_SSGD:
    case DDP_SCHEME_WFBP:
    case DDP_SCHEME_MGWFBP:
    case DDP_SCHEME_DEFT:
        break;
    }
    ddp__bl_fifo(m, m->o->scheme == DDP_SCHEME_SSGD ? m->backward : 0, log);
    return DDP_OK;
}

/* Backward and forward of every row, at the first 2 x rows places of the log. */
static void ddp__bl_compute(const ddp__bl_model *m, ddp_interval *at)
{
    double t = 0, f;
    int l;

    for (l = m->rows - 1; l >= 0; l--, at++) {
        at->kind = DDP_INTERVAL_BACKWARD;
        at->bucket = at->last = l;
        at->parts = 1;
        at->begin_s = t;
        t += m->p->backward_s[l];
        at->end_s = t;
    }
    for (l = 0; l < m->rows; l++, at++) {
        f = m->p->forward_s ? m->p->forward_s[l] : 0;
        if (t < m->arrive[l]) t = m->arrive[l];
        at->kind = DDP_INTERVAL_FORWARD;
        at->bucket = at->last = l;
        at->parts = 1;
        at->begin_s = t;
        t += f;
        at->end_s = t;
    }
}

static ddp_status ddp__bl_run(ddp__bl_model *m, ddp_timeline *t, ddp_error *err)
{
    size_t n = (size_t)m->rows, room = 2 * n;
    ddp__bl_log log;
    int i, l;

    DDP__TRY(ddp__bl_shape(m, err));
    for (i = 0; i < m->groups; i++) room += (size_t)m->parts[i];
    t->parts = (int *)ddp__calloc(n, sizeof *t->parts);
    t->priority = (int *)ddp__calloc(n, sizeof *t->priority);
    t->interval = (ddp_interval *)ddp__calloc(room, sizeof *t->interval);
    if (!t->parts || !t->priority || !t->interval)
        return ddp__fail(err, DDP_MEMORY, "no memory for a timeline of %zu intervals", room);
    log.at = t->interval;
    log.count = 2 * m->rows;
    DDP__TRY(ddp__bl_send_all(m, &log, err));
    ddp__bl_compute(m, t->interval);
    for (i = 0; i < m->groups; i++)
        for (l = m->group[i].first; l <= m->group[i].last; l++) {
            t->parts[l] = m->p->comm_s[l] > 0 ? m->parts[i] : 0;
            t->priority[l] = m->priority[i];
        }
    t->scheme = m->o->scheme;
    t->buckets = m->rows;
    t->intervals = log.count;
    t->iteration_s = ddp__bl_forward_end(m);
    t->lower_bound_s = m->forward + m->backward;
    if (t->lower_bound_s < m->bound) t->lower_bound_s = m->bound;
    /* sums in another order: a bound that is attained must not exceed the iteration by an ulp */
    if (t->lower_bound_s > t->iteration_s && t->lower_bound_s < t->iteration_s * (1 + 1e-12))
        t->lower_bound_s = t->iteration_s;
    return DDP_OK;
}

ddp_status ddp_plan_timeline(const ddp_profile *p, const ddp_timeline_options *o,
                             ddp_timeline *out, ddp_error *err)
{
    ddp__bl_model m;
    ddp_timeline t;
    ddp_status status;

    if (!o || !out)
        return ddp__fail(err, DDP_ARG,
                         "ddp_plan_timeline needs options and a place for the result");
    DDP__TRY(ddp_profile_check(p, err));
    DDP__TRY(ddp__bl_check(o, err));
    memset(&m, 0, sizeof m);
    memset(&t, 0, sizeof t);
    status = ddp__bl_open(&m, p, o, err);
    if (status == DDP_OK) status = ddp__bl_run(&m, &t, err);
    ddp__bl_close(&m);
    if (status == DDP_OK) *out = t;
    else ddp_timeline_free(&t);
    return status;
}
/* ==== end plan/timeline.c ==== */

/* ==== begin plan/knapsack_core.h ==== [plan] */
/* Shared by the solvers of the knapsack: the problem in whole ticks, equal items as classes. */
#ifndef DDP_PLAN_KNAPSACK_CORE_H
#define DDP_PLAN_KNAPSACK_CORE_H

typedef struct ddp__knapsack_class {
    int64_t ready;
    int64_t cost[2]; /* on each link, rounded down */
    int64_t value;
    int     first, count; /* positions in `order` */
} ddp__knapsack_class;

/* Whole ticks make every comparison exact and every order total. Costs are rounded down and
 * deadlines up, so that rounding never rejects a set that fits. */
typedef struct ddp__knapsack {
    int                  items, links, classes;
    int64_t              start[2], deadline[2];
    ddp__knapsack_class *cls;   /* in release order; items that fit nowhere are left out */
    int                 *order; /* [items] item index by position */
    double              *key;   /* [items] what greedy sorts by */
    int64_t              total; /* value of all classes */
} ddp__knapsack;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_knapsack with the number of entries that a half of the exact search may list. */
DDP_LIB ddp_status ddp__knapsack_within(const ddp_knapsack_problem *p, ddp_knapsack_solver solver,
                                        size_t most, int *assign, double *value, ddp_error *err);

/* Both write assign [items] and return the value in ticks in *out. known = a value that can be
 * reached: exact returns assign untouched and *out = known where nothing is better. most = entries
 * of a half. */
DDP_LIB ddp_status ddp__knapsack_greedy(const ddp__knapsack *k, const ddp_knapsack_problem *p,
                                        int *assign, int64_t *out, ddp_error *err);
DDP_LIB ddp_status ddp__knapsack_exact(const ddp__knapsack *k, int64_t known, size_t most,
                                       int *assign, int64_t *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_KNAPSACK_CORE_H */
/* ==== end plan/knapsack_core.h ==== */

/* ==== begin plan/knapsack_exact.c ==== [plan] */

/* Exact knapsack by meeting in the middle.
 *
 * Items of one link run best in release order, so a choice of items for link l ends at a time
 * that a pass over the classes in that order gives. Cut the order in two. A choice from the front
 * is summed up by when it leaves each link, f, and its value; a choice from the back by how much
 * time it takes on each link, s, and its value, and it is possible by itself if everything of it
 * from any class on fits between that class's release and the deadline. Together they are possible
 * if and only if f + s <= deadline on both links: either the back waits for the front, or for a
 * release, and both were tested. So the best pair is a dominance search: fronts by falling f of
 * link 0, backs entered by rising s of link 0 into a Fenwick tree over their s of link 1 that
 * keeps the largest value. The cut lies where both lists stay short: the shorter one grows. */

/* Two counts of items below this fit into one int. */
#define DDP__KNAPSACK_ITEMS 32768

typedef struct ddp__knapsack_entry {
    int64_t t[2];  /* when the front leaves, or how long the back takes, each link */
    int64_t value;
    int     node;  /* of the chain of choices */
    int     rank;  /* of t[1] among the backs; before that, the choice just made */
} ddp__knapsack_entry;

/* How many items of a class run on each link, after the choices of `parent`. */
typedef struct ddp__knapsack_node {
    int parent, cls, count[2];
} ddp__knapsack_node;

typedef struct ddp__knapsack_list {
    ddp__knapsack_entry *at;
    size_t               n, room;
} ddp__knapsack_list;

typedef struct ddp__knapsack_search {
    const ddp__knapsack *k;
    size_t               most;
    int64_t              known;
    ddp__knapsack_list   list[2], spare; /* list[0] fronts, list[1] backs */
    ddp__knapsack_node  *node;
    size_t               nodes, node_room;
} ddp__knapsack_search;

/* The array with room for `wanted` elements; NULL when memory is short (the old one stays). */
static void *ddp__knapsack_grow(void *array, size_t *room, size_t wanted, size_t size)
{
    size_t more = *room ? 2 * *room : 256;
    void *p;

    if (wanted <= *room) return array;
    if (more < wanted) more = wanted;
    p = DDP_REALLOC(array, more * size);
    if (p) *room = more;
    return p;
}

static ddp_status ddp__knapsack_too_many(const ddp__knapsack_search *s, ddp_error *err)
{
    return ddp__fail(err, DDP_UNSUPPORTED,
                     "the exact knapsack of %d items on %d link%s needs more than %zu entries; use "
                     "solver greedy, or equal parts",
                     s->k->items, s->k->links, s->k->links == 2 ? "s" : "", s->most);
}

static ddp_status ddp__knapsack_no_memory(const ddp__knapsack_search *s, ddp_error *err)
{
    return ddp__fail(err, DDP_MEMORY, "no memory for the exact knapsack of %d items", s->k->items);
}

/* The time on link l after n items of class c join; -1 if that is too late. */
static int64_t ddp__knapsack_after(const ddp__knapsack_search *s, int back, int64_t t, int c, int l,
                                   int n)
{
    const ddp__knapsack_class *x = &s->k->cls[c];
    int64_t from;

    if (n == 0) return t;
    if (back) {
        t += n * x->cost[l];
        from = x->ready > s->k->start[l] ? x->ready : s->k->start[l];
        return from + t <= s->k->deadline[l] ? t : -1;
    }
    t = (t > x->ready ? t : x->ready) + n * x->cost[l];
    return t <= s->k->deadline[l] ? t : -1;
}

static ddp_status ddp__knapsack_add(ddp__knapsack_search *s, const ddp__knapsack_entry *e, int c,
                                    const int64_t *t, const int *count, ddp_error *err)
{
    ddp__knapsack_list *a = &s->spare;
    ddp__knapsack_entry *to;

    if (a->n == 4 * s->most) return ddp__knapsack_too_many(s, err);
    to = (ddp__knapsack_entry *)ddp__knapsack_grow(a->at, &a->room, a->n + 1, sizeof *to);
    if (!to) return ddp__knapsack_no_memory(s, err);
    a->at = to;
    to += a->n++;
    to->t[0] = t[0];
    to->t[1] = t[1];
    to->value = e->value + (count[0] + count[1]) * s->k->cls[c].value;
    to->node = e->node;
    to->rank = count[0] * DDP__KNAPSACK_ITEMS + count[1];
    return DDP_OK;
}

/* The entries that were kept remember their choice for class c. */
static ddp_status ddp__knapsack_remember(ddp__knapsack_search *s, ddp__knapsack_list *a, int c,
                                         ddp_error *err)
{
    ddp__knapsack_node *d;
    size_t i;

    if (a->n == 0) return DDP_OK;
    if (s->nodes + a->n > 8 * s->most) return ddp__knapsack_too_many(s, err);
    d = (ddp__knapsack_node *)ddp__knapsack_grow(s->node, &s->node_room, s->nodes + a->n,
                                                 sizeof *d);
    if (!d) return ddp__knapsack_no_memory(s, err);
    s->node = d;
    for (i = 0; i < a->n; i++) {
        if (a->at[i].rank == 0) continue;
        d = &s->node[s->nodes];
        d->parent = a->at[i].node;
        d->cls = c;
        d->count[0] = a->at[i].rank / DDP__KNAPSACK_ITEMS;
        d->count[1] = a->at[i].rank % DDP__KNAPSACK_ITEMS;
        a->at[i].node = (int)s->nodes++;
    }
    return DDP_OK;
}

static int ddp__knapsack_by_second(const void *a, const void *b)
{
    const ddp__knapsack_entry *x = (const ddp__knapsack_entry *)a;
    const ddp__knapsack_entry *y = (const ddp__knapsack_entry *)b;

    if (x->t[1] != y->t[1]) return x->t[1] < y->t[1] ? -1 : 1;
    if (x->t[0] != y->t[0]) return x->t[0] < y->t[0] ? -1 : 1;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int ddp__knapsack_by_first(const void *a, const void *b)
{
    const ddp__knapsack_entry *x = (const ddp__knapsack_entry *)a;
    const ddp__knapsack_entry *y = (const ddp__knapsack_entry *)b;

    if (x->t[0] != y->t[0]) return x->t[0] < y->t[0] ? -1 : 1;
    return ddp__knapsack_by_second(a, b);
}

/* Sorts by t[1]; of entries with equal t[1] only those stay that are worth more than every one
 * with a smaller t[0]. On one link that is the whole Pareto set. */
static void ddp__knapsack_prune(ddp__knapsack_list *a)
{
    size_t i, n = 0;

    if (a->n == 0) return;
    qsort(a->at, a->n, sizeof *a->at, ddp__knapsack_by_second);
    for (i = 0; i < a->n; i++)
        if (n == 0 || a->at[n - 1].t[1] != a->at[i].t[1] || a->at[n - 1].value < a->at[i].value)
            a->at[n++] = a->at[i];
    a->n = n;
}

/* Extends fronts (back 0) or backs (back 1) by class c. rest = value of all classes that neither
 * this list nor c covers: entries that cannot pass `known` with it are dropped. */
static ddp_status ddp__knapsack_extend(ddp__knapsack_search *s, int back, int c, int64_t rest,
                                       ddp_error *err)
{
    const ddp__knapsack_class *x = &s->k->cls[c];
    ddp__knapsack_list *from = &s->list[back], swap;
    int64_t t[2];
    int count[2];
    size_t i;

    s->spare.n = 0;
    for (i = 0; i < from->n; i++) {
        ddp__knapsack_entry e = from->at[i];
        for (count[0] = 0; count[0] <= x->count; count[0]++) {
            t[0] = ddp__knapsack_after(s, back, e.t[0], c, 0, count[0]);
            if (t[0] < 0) break;
            for (count[1] = 0; count[0] + count[1] <= x->count; count[1]++) {
                if (count[1] && s->k->links < 2) break;
                t[1] = ddp__knapsack_after(s, back, e.t[1], c, 1, count[1]);
                if (t[1] < 0) break;
                if (e.value + (count[0] + count[1]) * x->value + rest <= s->known) continue;
                DDP__TRY(ddp__knapsack_add(s, &e, c, t, count, err));
            }
        }
    }
    swap = *from;
    *from = s->spare;
    s->spare = swap;
    ddp__knapsack_prune(from);
    if (from->n > s->most) return ddp__knapsack_too_many(s, err);
    return ddp__knapsack_remember(s, from, c, err);
}

/* The best pair of a front and a back, or *best_value unchanged. tree [ranks + 1]: the entry with
 * the largest value of each Fenwick range, 1-based, 0 = none. */
static void ddp__knapsack_match(const ddp__knapsack_search *s, int *tree, const int64_t *second,
                                int ranks, int64_t *best_value, int *best)
{
    const ddp__knapsack_list *front = &s->list[0], *back = &s->list[1];
    size_t i, entered = 0;
    int r, low, high;

    for (i = front->n; i-- > 0;) { /* falling t[0]: more and more backs fit behind */
        const ddp__knapsack_entry *f = &front->at[i];
        while (entered < back->n && back->at[entered].t[0] + f->t[0] <= s->k->deadline[0]) {
            for (r = back->at[entered].rank + 1; r <= ranks; r += r & -r)
                if (!tree[r] || back->at[tree[r] - 1].value < back->at[entered].value)
                    tree[r] = (int)entered + 1;
            entered++;
        }
        for (low = 0, high = ranks; low < high;) { /* backs with second[0..low) fit on link 1 */
            int mid = (low + high) / 2;
            if (s->k->links < 2 || second[mid] + f->t[1] <= s->k->deadline[1]) low = mid + 1;
            else high = mid;
        }
        for (r = low; r > 0; r -= r & -r)
            if (tree[r] && f->value + back->at[tree[r] - 1].value > *best_value) {
                *best_value = f->value + back->at[tree[r] - 1].value;
                best[0] = f->node;
                best[1] = back->at[tree[r] - 1].node;
            }
    }
}

static void ddp__knapsack_replay(const ddp__knapsack_search *s, int node, int *assign)
{
    int i;

    for (; node >= 0; node = s->node[node].parent) {
        const ddp__knapsack_node *d = &s->node[node];
        const int *item = s->k->order + s->k->cls[d->cls].first;
        for (i = 0; i < d->count[0] + d->count[1]; i++) assign[item[i]] = i >= d->count[0];
    }
}

static ddp_status ddp__knapsack_meet(ddp__knapsack_search *s, int *assign, int64_t *out,
                                     ddp_error *err)
{
    ddp__knapsack_list *back = &s->list[1];
    int64_t *second = (int64_t *)ddp__calloc(back->n, sizeof *second), value = s->known;
    int *tree = (int *)ddp__calloc(back->n + 2, sizeof *tree);
    int best[2] = {-1, -1}, ranks = 0, i;
    size_t n;

    if (!second || !tree) {
        DDP_FREE(second);
        DDP_FREE(tree);
        return ddp__knapsack_no_memory(s, err);
    }
    for (n = 0; n < back->n; n++) { /* sorted by t[1] */
        if (n == 0 || second[ranks - 1] != back->at[n].t[1]) second[ranks++] = back->at[n].t[1];
        back->at[n].rank = ranks - 1;
    }
    qsort(back->at, back->n, sizeof *back->at, ddp__knapsack_by_first);
    qsort(s->list[0].at, s->list[0].n, sizeof *s->list[0].at, ddp__knapsack_by_first);
    ddp__knapsack_match(s, tree, second, ranks, &value, best);
    if (value > s->known) {
        for (i = 0; i < s->k->items; i++) assign[i] = -1;
        ddp__knapsack_replay(s, best[0], assign);
        ddp__knapsack_replay(s, best[1], assign);
    }
    *out = value;
    DDP_FREE(second);
    DDP_FREE(tree);
    return DDP_OK;
}

static ddp_status ddp__knapsack_lists(ddp__knapsack_search *s, ddp_error *err)
{
    ddp__knapsack_entry none;
    int64_t value, rest[2];
    int b, begin = 0, end = s->k->classes;

    memset(&none, 0, sizeof none);
    none.node = -1;
    for (b = 0; b < 2; b++) {
        s->list[b].at = (ddp__knapsack_entry *)ddp__knapsack_grow(NULL, &s->list[b].room, 1,
                                                                  sizeof none);
        if (!s->list[b].at) return ddp__knapsack_no_memory(s, err);
        s->list[b].at[0] = none;
        s->list[b].n = 1;
        rest[b] = s->k->total;
    }
    s->list[0].at[0].t[0] = s->k->start[0];
    s->list[0].at[0].t[1] = s->k->start[1];
    while (begin < end) {
        b = s->list[1].n < s->list[0].n;
        value = s->k->cls[b ? end - 1 : begin].value * s->k->cls[b ? end - 1 : begin].count;
        rest[b] -= value;
        DDP__TRY(ddp__knapsack_extend(s, b, b ? end - 1 : begin, rest[b], err));
        if (s->list[b].n == 0) break; /* nothing can be better than `known` */
        if (b) end--;
        else begin++;
    }
    return DDP_OK;
}

ddp_status ddp__knapsack_exact(const ddp__knapsack *k, int64_t known, size_t most, int *assign,
                               int64_t *out, ddp_error *err)
{
    ddp__knapsack_search s;
    ddp_status status;

    memset(&s, 0, sizeof s);
    s.k = k;
    s.known = known;
    s.most = most;
    *out = known;
    if (k->items >= DDP__KNAPSACK_ITEMS) return ddp__knapsack_too_many(&s, err);
    status = ddp__knapsack_lists(&s, err);
    if (status == DDP_OK && s.list[0].n && s.list[1].n)
        status = ddp__knapsack_meet(&s, assign, out, err);
    DDP_FREE(s.list[0].at);
    DDP_FREE(s.list[1].at);
    DDP_FREE(s.spare.at);
    DDP_FREE(s.node);
    return status;
}
/* ==== end plan/knapsack_exact.c ==== */

/* ==== begin plan/knapsack.c ==== [plan] */

/* Checks, the change from seconds to ticks, and the greedy solver. */

static double ddp__knapsack_slow(const ddp_knapsack_problem *p, int link)
{
    return p->slowdown[link] > 0 ? p->slowdown[link] : 1;
}

static ddp_status ddp__knapsack_check_links(const ddp_knapsack_problem *p, ddp_error *err)
{
    int l;

    if (p->links < 1 || p->links > 2)
        return ddp__fail(err, DDP_ARG, "the knapsack has %d links; it takes 1 or 2", p->links);
    for (l = 0; l < p->links; l++) {
        if (!(p->deadline_s[l] > 0 && p->deadline_s[l] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "the capacity of link %d is %g; it must be finite and above 0", l,
                             p->deadline_s[l]);
        if (!(p->start_s[l] >= 0 && p->start_s[l] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "link %d starts at %g; it must be finite and at least 0", l,
                             p->start_s[l]);
        if (p->slowdown[l] != 0 && !(p->slowdown[l] >= 1 && p->slowdown[l] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "link %d is %g times slower (mu); it must be finite and at least 1", l,
                             p->slowdown[l]);
    }
    return DDP_OK;
}

static ddp_status ddp__knapsack_check(const ddp_knapsack_problem *p, const int *assign,
                                      ddp_error *err)
{
    double sum = 0;
    int i;

    if (!p || p->items < 1 || !p->item_s || !assign)
        return ddp__fail(err, DDP_ARG, "the knapsack has %d items%s; it needs at least 1",
                         p ? p->items : 0, p && p->items > 0 ? " but a NULL array" : "");
    DDP__TRY(ddp__knapsack_check_links(p, err));
    for (i = 0; i < p->items; i++) {
        if (!(p->item_s[i] > 0 && p->item_s[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG, "item %d takes %g; it must be finite and above 0", i,
                             p->item_s[i]);
        if (p->ready_s && !(p->ready_s[i] >= 0 && p->ready_s[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "item %d is ready at %g; it must be finite and at least 0", i,
                             p->ready_s[i]);
        if (p->value && !(p->value[i] >= 0 && p->value[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG, "item %d is worth %g; it must be finite and at least 0",
                             i, p->value[i]);
        sum += p->value ? p->value[i] : p->item_s[i];
    }
    if (!(sum <= DBL_MAX))
        return ddp__fail(err, DDP_NUMERIC, "the items add up to more than a double holds");
    return DDP_OK;
}

/* Beyond every deadline, which is at most 2^44 + 1 ticks, and far from overflow. */
#define DDP__KNAPSACK_NEVER INT64_C(100000000000000)

/* Rounded down. */
static int64_t ddp__knapsack_ticks(double x, double tick)
{
    double n = floor(x / tick);

    return n < (double)DDP__KNAPSACK_NEVER ? (int64_t)n : DDP__KNAPSACK_NEVER;
}

typedef struct ddp__knapsack_key {
    ddp__knapsack_class c;
    int                 item;
} ddp__knapsack_key;

/* Release order; longer items first, then more valuable ones, then as they were listed. */
static int ddp__knapsack_key_order(const void *a, const void *b)
{
    const ddp__knapsack_key *x = (const ddp__knapsack_key *)a, *y = (const ddp__knapsack_key *)b;

    if (x->c.ready != y->c.ready) return x->c.ready < y->c.ready ? -1 : 1;
    if (x->c.cost[0] != y->c.cost[0]) return x->c.cost[0] > y->c.cost[0] ? -1 : 1;
    if (x->c.cost[1] != y->c.cost[1]) return x->c.cost[1] > y->c.cost[1] ? -1 : 1;
    if (x->c.value != y->c.value) return x->c.value > y->c.value ? -1 : 1;
    return x->item - y->item;
}

static int ddp__knapsack_fits_alone(const ddp__knapsack *k, const ddp__knapsack_class *c)
{
    int l;

    for (l = 0; l < k->links; l++)
        if ((c->ready > k->start[l] ? c->ready : k->start[l]) + c->cost[l] <= k->deadline[l])
            return 1;
    return 0;
}

static void ddp__knapsack_classes(ddp__knapsack *k, const ddp__knapsack_key *key)
{
    ddp__knapsack_class *last;
    int i, n = 0;

    for (i = 0; i < k->items; i++) {
        if (!ddp__knapsack_fits_alone(k, &key[i].c)) continue;
        k->order[n] = key[i].item;
        k->total += key[i].c.value;
        last = k->classes ? &k->cls[k->classes - 1] : NULL;
        if (!last || last->ready != key[i].c.ready || last->cost[0] != key[i].c.cost[0] ||
            last->cost[1] != key[i].c.cost[1] || last->value != key[i].c.value) {
            last = &k->cls[k->classes++];
            *last = key[i].c;
            last->first = n;
            last->count = 0;
        }
        last->count++;
        n++;
    }
}

static void ddp__knapsack_close(ddp__knapsack *k)
{
    DDP_FREE(k->cls);
    DDP_FREE(k->order);
    DDP_FREE(k->key);
}

static ddp_status ddp__knapsack_open(ddp__knapsack *k, const ddp_knapsack_problem *p,
                                     ddp_error *err)
{
    size_t n = (size_t)p->items;
    ddp__knapsack_key *key = (ddp__knapsack_key *)ddp__calloc(n, sizeof *key);
    double tick = 0, unit = 0;
    int i, l;

    memset(k, 0, sizeof *k);
    k->cls = (ddp__knapsack_class *)ddp__calloc(n, sizeof *k->cls);
    k->order = (int *)ddp__calloc(n, sizeof *k->order);
    k->key = (double *)ddp__calloc(n, sizeof *k->key);
    if (!key || !k->cls || !k->order || !k->key) {
        DDP_FREE(key);
        ddp__knapsack_close(k);
        return ddp__fail(err, DDP_MEMORY, "no memory for a knapsack of %d items", p->items);
    }
    k->items = p->items;
    k->links = p->links;
    for (l = 0; l < p->links; l++)
        if (p->deadline_s[l] > tick) tick = p->deadline_s[l];
    tick = ldexp(tick, -44);
    if (!(tick > 0)) tick = DBL_MIN; /* a denormal deadline */
    for (l = 0; l < p->links; l++) {
        k->start[l] = ddp__knapsack_ticks(p->start_s[l], tick);
        k->deadline[l] = ddp__knapsack_ticks(p->deadline_s[l], tick) + 1;
        if (k->start[l] > k->deadline[l]) k->start[l] = k->deadline[l];
    }
    for (i = 0; i < p->items; i++) unit += p->value ? p->value[i] : p->item_s[i];
    unit = ldexp(unit, -46);
    if (!(unit > 0)) unit = 1; /* nothing has any value */
    for (i = 0; i < p->items; i++) {
        double value = p->value ? p->value[i] : p->item_s[i];
        key[i].item = i;
        key[i].c.ready = p->ready_s ? ddp__knapsack_ticks(p->ready_s[i], tick) : 0;
        for (l = 0; l < p->links; l++)
            key[i].c.cost[l] =
                p->start_s[l] < p->deadline_s[l]
                    ? ddp__knapsack_ticks(p->item_s[i] * ddp__knapsack_slow(p, l), tick)
                    : DDP__KNAPSACK_NEVER;
        key[i].c.value = (int64_t)floor(value / unit + 0.5);
        k->key[i] = p->value ? value / p->item_s[i] : value;
    }
    qsort(key, n, sizeof *key, ddp__knapsack_key_order);
    ddp__knapsack_classes(k, key);
    DDP_FREE(key);
    return DDP_OK;
}

/* Does the link still end in time with class c's further item? used[c] items of each class run on
 * it already. */
static int ddp__knapsack_joins(const ddp__knapsack *k, const int *used, int link, int c)
{
    int64_t end = k->start[link];
    int i;

    for (i = 0; i < k->classes; i++) {
        int n = used[i] + (i == c);
        if (n == 0) continue;
        if (end < k->cls[i].ready) end = k->cls[i].ready;
        end += n * k->cls[i].cost[link];
    }
    return end <= k->deadline[link];
}

typedef struct ddp__knapsack_rank {
    double key;
    int    item, cls;
} ddp__knapsack_rank;

static int ddp__knapsack_rank_order(const void *a, const void *b)
{
    const ddp__knapsack_rank *x = (const ddp__knapsack_rank *)a;
    const ddp__knapsack_rank *y = (const ddp__knapsack_rank *)b;

    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    return x->item - y->item;
}

ddp_status ddp__knapsack_greedy(const ddp__knapsack *k, const ddp_knapsack_problem *p, int *assign,
                                int64_t *out, ddp_error *err)
{
    ddp__knapsack_rank *rank;
    int *used = (int *)ddp__calloc(2 * (size_t)k->classes, sizeof *used);
    double room[2] = {0, 0};
    int64_t sum = 0;
    int c, i, n = 0, l, turn;

    rank = (ddp__knapsack_rank *)ddp__calloc((size_t)k->items, sizeof *rank);
    if (!used || !rank) {
        DDP_FREE(used);
        DDP_FREE(rank);
        return ddp__fail(err, DDP_MEMORY, "no memory for a knapsack of %d items", k->items);
    }
    for (c = 0; c < k->classes; c++)
        for (i = 0; i < k->cls[c].count; i++) {
            rank[n].item = k->order[k->cls[c].first + i];
            rank[n].key = k->key[rank[n].item];
            rank[n++].cls = c;
        }
    qsort(rank, (size_t)n, sizeof *rank, ddp__knapsack_rank_order);
    for (i = 0; i < k->items; i++) assign[i] = -1;
    for (l = 0; l < k->links; l++)
        room[l] = (p->deadline_s[l] - p->start_s[l]) / ddp__knapsack_slow(p, l);
    for (i = 0; i < n; i++)
        for (turn = 0; turn < k->links && assign[rank[i].item] < 0; turn++) {
            l = k->links == 2 && room[1] < room[0] ? 1 - turn : turn;
            if (!ddp__knapsack_joins(k, used + l * k->classes, l, rank[i].cls)) continue;
            used[l * k->classes + rank[i].cls]++;
            assign[rank[i].item] = l;
            sum += k->cls[rank[i].cls].value;
        }
    DDP_FREE(used);
    DDP_FREE(rank);
    *out = sum;
    return DDP_OK;
}

/* Greedy first: it settles the case that everything fits, and bounds the exact search. */
static ddp_status ddp__knapsack_solve(const ddp__knapsack *k, const ddp_knapsack_problem *p,
                                      ddp_knapsack_solver solver, size_t most, int *assign,
                                      ddp_error *err)
{
    ddp_status status;
    int64_t value = 0;

    DDP__TRY(ddp__knapsack_greedy(k, p, assign, &value, err));
    if (solver == DDP_KNAPSACK_GREEDY || value == k->total) return DDP_OK;
    status = ddp__knapsack_exact(k, value, most, assign, &value, err);
    return status == DDP_UNSUPPORTED && solver == DDP_KNAPSACK_DEFAULT ? DDP_OK : status;
}

ddp_status ddp__knapsack_within(const ddp_knapsack_problem *p, ddp_knapsack_solver solver,
                                size_t most, int *assign, double *value, ddp_error *err)
{
    ddp__knapsack k;
    ddp_status status;
    double sum = 0;
    int *own, i;

    DDP__TRY(ddp__knapsack_check(p, assign, err));
    if (solver != DDP_KNAPSACK_DEFAULT && solver != DDP_KNAPSACK_EXACT &&
        solver != DDP_KNAPSACK_GREEDY)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use exact or greedy", (int)solver);
    DDP__TRY(ddp__knapsack_open(&k, p, err));
    own = (int *)ddp__calloc((size_t)p->items, sizeof *own);
    status = own ? ddp__knapsack_solve(&k, p, solver, most, own, err)
                 : ddp__fail(err, DDP_MEMORY, "no memory for a knapsack of %d items", p->items);
    if (status == DDP_OK) {
        memcpy(assign, own, (size_t)p->items * sizeof *own);
        for (i = 0; i < p->items; i++)
            if (own[i] >= 0) sum += p->value ? p->value[i] : p->item_s[i];
        if (value) *value = sum;
    }
    DDP_FREE(own);
    ddp__knapsack_close(&k);
    return status;
}

ddp_status ddp_knapsack(const ddp_knapsack_problem *p, ddp_knapsack_solver solver, int *assign,
                        double *value, ddp_error *err)
{
    return ddp__knapsack_within(p, solver, solver == DDP_KNAPSACK_EXACT ? 1 << 20 : 1 << 16, assign,
                                value, err);
}

const char *ddp_knapsack_solver_name(ddp_knapsack_solver solver)
{
    if (solver == DDP_KNAPSACK_DEFAULT) return "default";
    if (solver == DDP_KNAPSACK_EXACT) return "exact";
    return solver == DDP_KNAPSACK_GREEDY ? "greedy" : "unknown";
}

ddp_status ddp_knapsack_solver_named(const char *name, ddp_knapsack_solver *out, ddp_error *err)
{
    if (name && !strcmp(name, "exact")) *out = DDP_KNAPSACK_EXACT;
    else if (name && !strcmp(name, "greedy")) *out = DDP_KNAPSACK_GREEDY;
    else
        return ddp__fail(err, DDP_ARG, "solver '%.40s' is unknown; use exact or greedy",
                         name ? name : "");
    return DDP_OK;
}
/* ==== end plan/knapsack.c ==== */

/* ==== begin plan/deft_core.h ==== [plan] */
/* Shared by the files of DeFT's planner: buckets cut into parts, and one stage's choice. */
#ifndef DDP_PLAN_DEFT_CORE_H
#define DDP_PLAN_DEFT_CORE_H

/* Equal parts of a bucket are interchangeable, so that a state is a count of parts per bucket. */
typedef struct ddp__deft {
    int                 buckets, links;
    double              mu;
    double              forward, backward; /* T_f, T_b */
    double              scale;             /* of the capacities */
    ddp_delayed_select  select;
    ddp_knapsack_solver solver;
    size_t              most;              /* entries of the exact search */
    int                 no_barrier, coarse; /* coarse: parts as long as T_f + T_b allows */
    double             *ready;    /* [N] after the start of backward */
    double             *part_s;   /* [N] */
    int                *parts_of; /* [N] */
    int                 parts;
    double             *item, *item_ready; /* [parts] scratch of a choice */
    int                *bucket, *assign;   /* [parts] likewise */
    int                *count;             /* [4 N] likewise */
} ddp__deft;

#ifdef __cplusplus
extern "C" {
#endif

/* Which of the parts left[N] travel on which link: on[l * N + i] parts of bucket i on link l.
 * ddp__deft_old: parts that wait for nothing. ddp__deft_new: parts that are ready at offset +
 * ready[i], on links that are busy until busy[l]. room = end of the stage. `all` receives 1 if
 * nothing is left out. */
DDP_LIB ddp_status ddp__deft_old(ddp__deft *d, const int *left, double room, int *on, int *all,
                                 ddp_error *err);
DDP_LIB ddp_status ddp__deft_new(ddp__deft *d, const int *left, const double *busy, double offset,
                                 double room, int *on, ddp_error *err);

/* Iterates to the steady period and fills out (untouched on error). */
DDP_LIB ddp_status ddp__deft_cycle(ddp__deft *d, ddp_delayed_plan *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_DEFT_CORE_H */
/* ==== end plan/deft_core.h ==== */

/* ==== begin plan/deft_select.c ==== [plan] */

/* One stage's choice of parts: Knap and SelectNew of the plan (stated in plan/deft.h). */

/* Lists the parts left of buckets 0..last, output side first, into item; returns their number. */
static int ddp__deft_list(ddp__deft *d, const int *left, int last, double offset)
{
    int i, j, n = 0;

    for (i = last; i >= 0; i--)
        for (j = 0; j < left[i]; j++) {
            d->item[n] = d->part_s[i];
            d->item_ready[n] = offset + d->ready[i];
            d->bucket[n++] = i;
        }
    return n;
}

/* Fills the links from start[l] to room with the n listed parts; adds up what goes where. */
static ddp_status ddp__deft_fill(ddp__deft *d, int n, const double *ready, const double *start,
                                 double room, int *on, double *sum, int *sent, ddp_error *err)
{
    ddp_knapsack_problem p;
    int i, l;

    memset(on, 0, 2 * (size_t)d->buckets * sizeof *on);
    *sum = 0;
    *sent = 0;
    if (n == 0 || !(room > 0)) return DDP_OK;
    memset(&p, 0, sizeof p);
    p.items = n;
    p.item_s = d->item;
    p.ready_s = ready;
    p.links = d->links;
    for (l = 0; l < d->links; l++) {
        p.start_s[l] = start[l];
        p.deadline_s[l] = room;
        p.slowdown[l] = l ? d->mu : 1;
    }
    DDP__TRY(ddp__knapsack_within(&p, d->solver, d->most, d->assign, sum, err));
    for (i = 0; i < n; i++)
        if (d->assign[i] >= 0) {
            on[d->assign[i] * d->buckets + d->bucket[i]]++;
            ++*sent;
        }
    return DDP_OK;
}

ddp_status ddp__deft_old(ddp__deft *d, const int *left, double room, int *on, int *all,
                         ddp_error *err)
{
    static const double now[2] = {0, 0};
    int n = ddp__deft_list(d, left, d->buckets - 1, 0), sent = 0;
    double sum = 0;

    DDP__TRY(ddp__deft_fill(d, n, NULL, now, room, on, &sum, &sent, err));
    *all = sent == n;
    return DDP_OK;
}

/* Algorithm 1: level j knows only that nothing can start before bucket j is ready, and forgets
 * that the buckets nearer to the input are ready later still. Equal sums keep the shorter list. */
static ddp_status ddp__deft_levels(ddp__deft *d, const int *left, const double *busy, double offset,
                                   double room, int *on, ddp_error *err)
{
    int *best = d->count + 2 * d->buckets, j, l, n, sent;
    double start[2], sum, most = 0;

    memset(best, 0, 2 * (size_t)d->buckets * sizeof *best);
    for (j = 0; j < d->buckets; j++) {
        n = ddp__deft_list(d, left, j, offset);
        for (l = 0; l < 2; l++)
            start[l] = busy[l] > offset + d->ready[j] ? busy[l] : offset + d->ready[j];
        DDP__TRY(ddp__deft_fill(d, n, NULL, start, room, on, &sum, &sent, err));
        if (!(sum > most)) continue;
        most = sum;
        memcpy(best, on, 2 * (size_t)d->buckets * sizeof *best);
    }
    memcpy(on, best, 2 * (size_t)d->buckets * sizeof *best);
    return DDP_OK;
}

ddp_status ddp__deft_new(ddp__deft *d, const int *left, const double *busy, double offset,
                         double room, int *on, ddp_error *err)
{
    double sum = 0;
    int sent, n;

    if (d->select == DDP_SELECT_PAPER)
        return ddp__deft_levels(d, left, busy, offset, room, on, err);
    n = ddp__deft_list(d, left, d->buckets - 1, offset);
    return ddp__deft_fill(d, n, d->item_ready, busy, room, on, &sum, &sent, err);
}
/* ==== end plan/deft_select.c ==== */

/* ==== begin plan/deft_cycle.c ==== [plan] */

/* The two queues of DeFT, iteration by iteration, until a state comes back. Nothing but the state
 * decides what happens next, so the iterations since its first appearance repeat for ever. */

/* Iterations that may pass before a state must have come back. */
#define DDP__DEFT_ITERATIONS 4096

/* The state is state[0..N+1]: parts pending per bucket, k of the pending gradient (0 = none), k of
 * the stored ones. */
typedef struct ddp__deft_run {
    ddp__deft        *d;
    int               n;        /* integers in a state */
    int              *state;    /* the present one */
    int              *history;  /* [DDP__DEFT_ITERATIONS x n] the state before each iteration */
    uint64_t         *hash;     /* [DDP__DEFT_ITERATIONS] */
    int              *born;     /* [2] iteration that opened the pending and the newest gradient */
    int              *on;       /* [2 N] */
    ddp_delayed_step *step;     /* [DDP__DEFT_ITERATIONS] */
    int              *delay;    /* [2 x DDP__DEFT_ITERATIONS] of applied and applied_now */
    ddp_delayed_send *send;
    int               sends, send_room;
} ddp__deft_run;

static ddp_status ddp__deft_no_memory(const ddp__deft *d, ddp_error *err)
{
    return ddp__fail(err, DDP_MEMORY, "no memory to plan %d buckets in %d parts", d->buckets,
                     d->parts);
}

static ddp_status ddp__deft_record(ddp__deft_run *r, const ddp_delayed_send *x, ddp_error *err)
{
    if (r->sends == r->send_room) {
        int room = r->send_room ? 2 * r->send_room : 256;
        void *p = DDP_REALLOC(r->send, (size_t)room * sizeof *r->send);
        if (!p) return ddp__deft_no_memory(r->d, err);
        r->send = (ddp_delayed_send *)p;
        r->send_room = room;
    }
    r->send[r->sends++] = *x;
    return DDP_OK;
}

/* Sends on[l * N + i] parts of bucket i over link l, output side first, which is the order of
 * release; lowest parts first. left loses them, busy[l] moves on. at = start of the stage in the
 * iteration. */
static ddp_status ddp__deft_send(ddp__deft_run *r, int iteration, int fresh, double at,
                                 double offset, int *left, double *busy, ddp_error *err)
{
    ddp__deft *d = r->d;
    ddp_delayed_send x;
    int i, j, l;

    memset(&x, 0, sizeof x);
    x.iteration = iteration;
    x.fresh = fresh;
    for (i = d->buckets - 1; i >= 0; i--)
        for (l = 0; l < d->links; l++)
            for (j = 0; j < r->on[l * d->buckets + i]; j++) {
                if (fresh && busy[l] < offset + d->ready[i]) busy[l] = offset + d->ready[i];
                x.bucket = i;
                x.part = d->parts_of[i] - left[i]--;
                x.link = l;
                x.begin_s = at + busy[l];
                busy[l] += d->part_s[i] * (l ? d->mu : 1);
                x.end_s = at + busy[l];
                DDP__TRY(ddp__deft_record(r, &x, err));
            }
    return DDP_OK;
}

/* How much longer than it computes a stage lasts because of its sends; 0 for mere rounding. */
static double ddp__deft_overrun(double compute, const double *busy)
{
    double last = busy[0] > busy[1] ? busy[0] : busy[1];

    return last > compute * (1 + 1e-11) ? last - compute : 0;
}

static int ddp__deft_pending(const ddp__deft *d, const int *left)
{
    int i;

    for (i = 0; i < d->buckets; i++)
        if (left[i] > 0) return 1;
    return 0;
}

/* Cases 2 to 4. offset: when backward begins in the stage (0, or T_f without barrier). */
static ddp_status ddp__deft_backward(ddp__deft_run *r, int t, double at, double offset,
                                     ddp_error *err)
{
    ddp__deft *d = r->d;
    int N = d->buckets, all = 1, *cur = r->state, *k_cur = r->state + N, *k_fut = k_cur + 1;
    double busy[2] = {0, 0}, room = (offset + d->backward) * d->scale;
    ddp_delayed_step *s = &r->step[t];

    ++*k_fut; /* this iteration's gradient joins the stored ones */
    if (ddp__deft_pending(d, cur)) {
        DDP__TRY(ddp__deft_old(d, cur, room, r->on, &all, err));
        DDP__TRY(ddp__deft_send(r, t, 0, at, 0, cur, busy, err));
    }
    if (all) {
        s->applied = *k_cur;
        r->delay[2 * t] = t - r->born[0];
        memcpy(cur, d->parts_of, (size_t)N * sizeof *cur);
        s->opened = *k_cur = *k_fut;
        r->born[0] = t;
        *k_fut = 0;
        DDP__TRY(ddp__deft_new(d, cur, busy, offset, room, r->on, err));
        DDP__TRY(ddp__deft_send(r, t, 1, at, offset, cur, busy, err));
        if (!ddp__deft_pending(d, cur)) {
            s->applied_now = *k_cur;
            r->delay[2 * t + 1] = 0;
            *k_cur = 0;
        }
    }
    s->backward_s = d->backward + ddp__deft_overrun(offset + d->backward, busy);
    return DDP_OK;
}

static ddp_status ddp__deft_iterate(ddp__deft_run *r, int t, ddp_error *err)
{
    ddp__deft *d = r->d;
    ddp_delayed_step *s = &r->step[t];
    double busy[2] = {0, 0};
    int all;

    memset(s, 0, sizeof *s);
    s->first_send = r->sends;
    s->forward_s = d->forward;
    if (!d->no_barrier && ddp__deft_pending(d, r->state)) { /* case 1 */
        DDP__TRY(ddp__deft_old(d, r->state, d->forward * d->scale, r->on, &all, err));
        DDP__TRY(ddp__deft_send(r, t, 0, 0, 0, r->state, busy, err));
        s->forward_s += ddp__deft_overrun(d->forward, busy);
    }
    DDP__TRY(ddp__deft_backward(r, t, d->no_barrier ? 0 : s->forward_s,
                                d->no_barrier ? d->forward : 0, err));
    s->sends = r->sends - s->first_send;
    return DDP_OK;
}

static int ddp__deft_send_order(const void *a, const void *b)
{
    const ddp_delayed_send *x = (const ddp_delayed_send *)a, *y = (const ddp_delayed_send *)b;

    if (x->iteration != y->iteration) return x->iteration < y->iteration ? -1 : 1;
    if (x->begin_s < y->begin_s || x->begin_s > y->begin_s) return x->begin_s < y->begin_s ? -1 : 1;
    if (x->link != y->link) return x->link - y->link;
    if (x->fresh != y->fresh) return x->fresh - y->fresh;
    if (x->bucket != y->bucket) return y->bucket - x->bucket;
    return x->part - y->part;
}

/* Iterations [first, end) are the steady period. */
static ddp_status ddp__deft_result(ddp__deft_run *r, int first, int end, ddp_delayed_plan *out,
                                   ddp_error *err)
{
    ddp__deft *d = r->d;
    size_t N = (size_t)d->buckets;
    ddp_delayed_plan p;
    double sum = 0, floor_s;
    int t, i, n = 0;

    memset(&p, 0, sizeof p);
    for (t = first; t < end; t++) n += (r->step[t].applied > 0) + (r->step[t].applied_now > 0);
    p.buckets = d->buckets;
    p.parts = d->parts;
    p.links = d->links;
    p.warmup = first;
    p.period = end - first;
    p.sends = r->sends;
    p.parts_of = (int *)ddp__calloc(N, sizeof *p.parts_of);
    p.part_s = (double *)ddp__calloc(N, sizeof *p.part_s);
    p.step = (ddp_delayed_step *)ddp__calloc((size_t)end, sizeof *p.step);
    p.send = (ddp_delayed_send *)ddp__calloc((size_t)r->sends, sizeof *p.send);
    p.k = (int *)ddp__calloc((size_t)n, sizeof *p.k);
    p.delay = (int *)ddp__calloc((size_t)n, sizeof *p.delay);
    if (!p.parts_of || !p.part_s || !p.step || !p.send || !p.k || !p.delay) {
        ddp_delayed_plan_free(&p);
        return ddp__deft_no_memory(d, err);
    }
    memcpy(p.parts_of, d->parts_of, N * sizeof *p.parts_of);
    memcpy(p.part_s, d->part_s, N * sizeof *p.part_s);
    memcpy(p.step, r->step, (size_t)end * sizeof *p.step);
    if (r->sends) {
        memcpy(p.send, r->send, (size_t)r->sends * sizeof *p.send);
        qsort(p.send, (size_t)r->sends, sizeof *p.send, ddp__deft_send_order);
    }
    for (t = first; t < end; t++) {
        sum += (p.step[t].forward_s - d->forward) + (p.step[t].backward_s - d->backward);
        for (i = 0; i < 2; i++) {
            int k = i ? p.step[t].applied_now : p.step[t].applied;
            if (k == 0) continue;
            p.k[p.updates] = k;
            p.delay[p.updates++] = r->delay[2 * t + i];
        }
    }
    p.forward_s = d->forward;
    p.backward_s = d->backward;
    for (i = 0; i < d->buckets; i++) p.comm_s += d->parts_of[i] * d->part_s[i];
    p.iteration_s = d->forward + d->backward + sum / p.period;
    p.update_frequency = (double)p.updates / p.period;
    p.lower_bound_s = d->forward + d->backward;
    floor_s = p.update_frequency * p.comm_s / (d->links == 2 ? 1 + 1 / d->mu : 1);
    if (floor_s > p.lower_bound_s) p.lower_bound_s = floor_s;
    p.capacity_scale = d->scale;
    p.no_barrier = d->no_barrier;
    *out = p;
    return DDP_OK;
}

static ddp_status ddp__deft_to_steady(ddp__deft_run *r, ddp_delayed_plan *out, ddp_error *err)
{
    size_t bytes = (size_t)r->n * sizeof *r->state;
    int t, u;

    for (t = 0; t < DDP__DEFT_ITERATIONS; t++) {
        r->hash[t] = ddp__hash(DDP__HASH_START, r->state, bytes);
        memcpy(r->history + (size_t)t * (size_t)r->n, r->state, bytes);
        for (u = 0; u < t; u++)
            if (r->hash[u] == r->hash[t] &&
                !memcmp(r->history + (size_t)u * (size_t)r->n, r->state, bytes))
                return ddp__deft_result(r, u, t, out, err);
        DDP__TRY(ddp__deft_iterate(r, t, err));
    }
    return ddp__fail(err, DDP_UNSUPPORTED,
                     "no steady period within %d iterations of %d parts; use fewer, larger parts",
                     DDP__DEFT_ITERATIONS, r->d->parts);
}

ddp_status ddp__deft_cycle(ddp__deft *d, ddp_delayed_plan *out, ddp_error *err)
{
    ddp__deft_run r;
    size_t N = (size_t)d->buckets, most = DDP__DEFT_ITERATIONS;
    ddp_status status;
    int *store;

    memset(&r, 0, sizeof r);
    r.d = d;
    r.n = d->buckets + 2;
    store = (int *)ddp__calloc((most + 3) * (N + 2) + 2 * most + 1, sizeof *store);
    r.hash = (uint64_t *)ddp__calloc(most, sizeof *r.hash);
    r.step = (ddp_delayed_step *)ddp__calloc(most, sizeof *r.step);
    if (store && r.hash && r.step) {
        r.history = store;
        r.state = store + most * (N + 2);
        r.on = r.state + N + 2;
        r.delay = r.on + 2 * (N + 2);
        r.born = r.delay + 2 * most;
        status = ddp__deft_to_steady(&r, out, err);
    } else {
        status = ddp__deft_no_memory(d, err);
    }
    DDP_FREE(store);
    DDP_FREE(r.hash);
    DDP_FREE(r.step);
    DDP_FREE(r.send);
    return status;
}
/* ==== end plan/deft_cycle.c ==== */

/* ==== begin plan/deft.c ==== [plan] */

/* Options, tensor partition, and the search for a frequency. */

/* More parts than this, or than two a bucket, and the partition rule asks for less. */
#define DDP__DEFT_PARTS 512
#define DDP__DEFT_TRIES 40

static ddp_status ddp__deft_check_value(const char *name, double v, ddp_error *err)
{
    if (v >= 0 && v <= DBL_MAX) return DDP_OK;
    return ddp__fail(err, DDP_ARG, "%s is %g; it must be finite and at least 0 (0 = default)", name,
                     v);
}

static ddp_status ddp__deft_check(const ddp_profile *p, const ddp_delayed_options *o,
                                  ddp_error *err)
{
    if (!o) return ddp__fail(err, DDP_ARG, "ddp_plan_delayed: options is NULL");
    DDP__TRY(ddp_profile_check(p, err));
    if (o->links < 0 || o->links > 2)
        return ddp__fail(err, DDP_ARG, "links is %d; DeFT uses 1 or 2", o->links);
    if (o->links == 2 && !(o->mu >= 1 && o->mu <= DBL_MAX))
        return ddp__fail(err, DDP_ARG,
                         "mu is %g; it is the time on the slow link over that on the fast one, "
                         "finite and at least 1",
                         o->mu);
    DDP__TRY(ddp__deft_check_value("alpha_s", o->alpha_s, err));
    DDP__TRY(ddp__deft_check_value("partition_s", o->partition_s, err));
    DDP__TRY(ddp__deft_check_value("partition_params", o->partition_params, err));
    if (o->partition_params > 0 && !p->params)
        return ddp__fail(err, DDP_ARG,
                         "a partition of %g parameters needs the profile's params; give seconds",
                         o->partition_params);
    if (o->capacity_scale != 0 && !(o->capacity_scale >= 1 && o->capacity_scale <= 1e6))
        return ddp__fail(err, DDP_ARG, "capacity_scale is %g; it must be from 1 to 1e6",
                         o->capacity_scale);
    if (o->target_frequency != 0 && !(o->target_frequency > 0 && o->target_frequency <= 1))
        return ddp__fail(err, DDP_ARG,
                         "target_frequency is %g; it must be above 0 and at most 1 (updates per "
                         "iteration)",
                         o->target_frequency);
    if (o->select != DDP_SELECT_DEFAULT && o->select != DDP_SELECT_RELEASE &&
        o->select != DDP_SELECT_PAPER)
        return ddp__fail(err, DDP_ARG, "selection %d is unknown; use release or paper",
                         (int)o->select);
    if (o->solver != DDP_KNAPSACK_DEFAULT && o->solver != DDP_KNAPSACK_EXACT &&
        o->solver != DDP_KNAPSACK_GREEDY)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use exact or greedy",
                         (int)o->solver);
    return DDP_OK;
}

/* How many equal parts of at most `limit` a bucket of c seconds needs; 1e9 where none can be. */
static double ddp__deft_cut(double c, double alpha, double limit)
{
    double k;

    if (c <= limit) return 1;
    if (limit <= alpha) return 1e9;
    k = ceil((c - alpha) / (limit - alpha) * (1 - 1e-14));
    return k < 1 ? 1 : k;
}

static double ddp__deft_parts(const ddp_profile *p, const ddp_delayed_options *o, double limit,
                              int bucket)
{
    double c = p->comm_s[bucket], alpha = o->alpha_s + p->alpha_s, k, by_count;

    if (!(c > 0)) return 0;
    k = ddp__deft_cut(c + p->alpha_s, alpha, limit);
    if (o->partition_params > 0) {
        by_count = ceil(p->params[bucket] / o->partition_params);
        if (by_count > k) k = by_count;
    }
    if (o->partition_s > alpha) {
        by_count = ddp__deft_cut(c + p->alpha_s, alpha, o->partition_s);
        if (by_count > k) k = by_count;
    }
    return k;
}

/* The longest part that the knapsacks must take: paper's rule 3, then the weaker ones. */
static ddp_status ddp__deft_limit(const ddp_profile *p, const ddp_delayed_options *o, ddp__deft *d,
                                  double *limit, ddp_error *err)
{
    double alpha = o->alpha_s + p->alpha_s, f = d->forward, b = d->backward, rule[3], n;
    int i, l, most = 2 * p->layers > DDP__DEFT_PARTS ? 2 * p->layers : DDP__DEFT_PARTS;

    if (d->coarse) f = b = f + b;
    rule[2] = f > b ? f : b;
    rule[1] = f < b ? f : b;
    if (!(rule[1] > 0)) rule[1] = rule[2];
    rule[0] = rule[1] / d->mu;
    if (d->links == 2 && rule[0] <= alpha) d->links = 1;
    for (i = d->links == 2 ? 0 : 1; i < 3; i++) {
        if (rule[i] <= alpha) continue;
        for (n = 0, l = 0; l < p->layers; l++) n += ddp__deft_parts(p, o, rule[i], l);
        if (n > most) continue;
        *limit = rule[i];
        return DDP_OK;
    }
    if (rule[2] <= alpha)
        return ddp__fail(err, DDP_ARG,
                         "forward %g s and backward %g s are not longer than the startup of a "
                         "transfer, %g s; nothing can hide",
                         d->forward, d->backward, alpha);
    return ddp__fail(err, DDP_ARG,
                     "the buckets would be cut into more than %d parts; use a larger partition, or "
                     "check that times are in seconds",
                     most);
}

static ddp_status ddp__deft_partition(const ddp_profile *p, const ddp_delayed_options *o,
                                      ddp__deft *d, ddp_error *err)
{
    double limit = 0, alpha = o->alpha_s + p->alpha_s, ready = 0, k, c;
    int i;

    DDP__TRY(ddp__deft_limit(p, o, d, &limit, err));
    for (i = p->layers - 1; i >= 0; i--) {
        ready += p->backward_s[i];
        d->ready[i] = ready;
        k = ddp__deft_parts(p, o, limit, i);
        if (!(k > 0)) continue;
        c = p->comm_s[i] + p->alpha_s;
        if (k > 1 && c < alpha) c = alpha; /* a transfer shorter than its own startup */
        d->parts_of[i] = (int)k;
        d->part_s[i] = k > 1 ? alpha + (c - alpha) / k : c;
        d->parts += (int)k;
    }
    return DDP_OK;
}

static void ddp__deft_close(ddp__deft *d)
{
    DDP_FREE(d->ready);
    DDP_FREE(d->parts_of);
    DDP_FREE(d->item);
    DDP_FREE(d->bucket);
    memset(d, 0, sizeof *d);
}

static ddp_status ddp__deft_scratch(ddp__deft *d, ddp_error *err)
{
    size_t n = (size_t)d->parts, N = (size_t)d->buckets;

    d->item = (double *)ddp__calloc(2 * n + 1, sizeof *d->item);
    d->bucket = (int *)ddp__calloc(2 * n + 4 * N, sizeof *d->bucket);
    if (!d->item || !d->bucket)
        return ddp__fail(err, DDP_MEMORY, "no memory to plan %d parts", d->parts);
    d->item_ready = d->item + n;
    d->assign = d->bucket + n;
    d->count = d->assign + n;
    return DDP_OK;
}

/* Cuts the buckets into parts and checks that they can travel; d is freed by ddp__deft_close. */
static ddp_status ddp__deft_open(const ddp_profile *p, const ddp_delayed_options *o, int no_barrier,
                                 int coarse, ddp__deft *d, ddp_error *err)
{
    size_t N = (size_t)p->layers;
    double sum = 0;
    ddp_status status;
    int i;

    memset(d, 0, sizeof *d);
    d->buckets = p->layers;
    d->links = o->links == 2 ? 2 : 1;
    d->mu = d->links == 2 ? o->mu : 1;
    d->select = o->select;
    d->solver = o->solver;
    d->most = (size_t)1 << (o->solver == DDP_KNAPSACK_EXACT ? 20 : 11);
    d->no_barrier = no_barrier;
    d->coarse = coarse;
    d->scale = o->capacity_scale > 0 ? o->capacity_scale : 1;
    for (i = 0; i < p->layers; i++) {
        d->backward += p->backward_s[i];
        d->forward += p->forward_s ? p->forward_s[i] : 0;
        sum += p->comm_s[i] + p->alpha_s + o->alpha_s;
    }
    if (!((d->forward + d->backward + sum) * d->scale * d->mu <= DBL_MAX / 4))
        return ddp__fail(err, DDP_NUMERIC,
                         "the times of the profile add up to more than a double holds; times are "
                         "in seconds");
    if (!(d->forward + d->backward > 0))
        return ddp__fail(err, DDP_ARG,
                         "forward and backward take 0 s in all; nothing can hide behind them");
    d->ready = (double *)ddp__calloc(2 * N, sizeof *d->ready);
    d->parts_of = (int *)ddp__calloc(N, sizeof *d->parts_of);
    if (!d->ready || !d->parts_of) {
        ddp__deft_close(d);
        return ddp__fail(err, DDP_MEMORY, "no memory to plan %d buckets", p->layers);
    }
    d->part_s = d->ready + N;
    status = ddp__deft_partition(p, o, d, err);
    if (status == DDP_OK) status = ddp__deft_scratch(d, err);
    if (status != DDP_OK) ddp__deft_close(d);
    return status;
}

/* Keeps the better of *best and *next, if next reaches the frequency; frees the other. */
static void ddp__deft_keep(double target, ddp_delayed_plan *next, ddp_delayed_plan *best)
{
    ddp_delayed_plan swap = *next;

    if (next->update_frequency >= target * (1 - 1e-12) &&
        (best->period == 0 || next->iteration_s < best->iteration_s)) {
        *next = *best;
        *best = swap;
    }
    ddp_delayed_plan_free(next);
}

/* Bisects the capacity between one that reaches the frequency and one that does not. Frequency
 * need not be monotone in it, so the shortest iteration of all tries counts. */
static ddp_status ddp__deft_target(ddp__deft *d, double target, ddp_delayed_plan *out,
                                   ddp_error *err)
{
    double low = d->scale, high = 0;
    ddp_delayed_plan best, next;
    ddp_status status = DDP_OK;
    int tries;

    memset(&best, 0, sizeof best);
    for (tries = 0; tries < DDP__DEFT_TRIES; tries++) {
        if (tries > 0) d->scale = high > 0 ? 0.5 * (low + high) : 2 * d->scale;
        status = ddp__deft_cycle(d, &next, err);
        if (status != DDP_OK) break;
        if (next.update_frequency >= target * (1 - 1e-12)) high = d->scale;
        else low = d->scale;
        ddp__deft_keep(target, &next, &best);
        if (high > 0 && high - low <= 1e-6 * high) break;
    }
    if (status == DDP_OK && best.period == 0)
        status = ddp__fail(err, DDP_UNSUPPORTED, "no capacity up to %g times gives %g updates per "
                           "iteration", d->scale, target);
    if (status == DDP_OK) *out = best;
    else ddp_delayed_plan_free(&best);
    return status;
}

static ddp_status ddp__deft_solve(ddp__deft *d, double target, ddp_delayed_plan *out,
                                  ddp_error *err)
{
    double scale = d->scale;
    ddp_status status = target > 0 ? ddp__deft_target(d, target, out, err)
                                   : ddp__deft_cycle(d, out, err);

    d->scale = scale;
    return status;
}

/* Keeps the plan with less time per update; equal: the earlier one. */
static void ddp__deft_better(ddp_delayed_plan *next, ddp_delayed_plan *best)
{
    ddp_delayed_plan swap = *best;

    if (best->period == 0 || next->iteration_s / next->update_frequency <
                                 best->iteration_s / best->update_frequency * (1 - 1e-9)) {
        *best = *next;
        *next = swap;
    }
    ddp_delayed_plan_free(next);
}

/* One way to plan; *best is replaced if the plan is better. Neither knapsack is better in every
 * period, so by default both try. */
static ddp_status ddp__deft_variant(const ddp_profile *p, const ddp_delayed_options *o,
                                    int no_barrier, int coarse, ddp_delayed_plan *best,
                                    ddp_error *err)
{
    ddp_delayed_plan next;
    ddp_status status, first = DDP_FAILED;
    ddp__deft d;

    DDP__TRY(ddp__deft_open(p, o, no_barrier, coarse, &d, err));
    if (d.links == 2 && o->solver == DDP_KNAPSACK_DEFAULT) {
        d.solver = DDP_KNAPSACK_GREEDY;
        first = ddp__deft_solve(&d, o->target_frequency, &next, err);
        if (first == DDP_OK) ddp__deft_better(&next, best);
        d.solver = DDP_KNAPSACK_DEFAULT;
    }
    status = first;
    if (first != DDP_OK || o->select != DDP_SELECT_PAPER) {
        status = ddp__deft_solve(&d, o->target_frequency, &next, first == DDP_OK ? NULL : err);
        if (status == DDP_OK) ddp__deft_better(&next, best);
        if (first == DDP_OK) status = DDP_OK;
    }
    ddp__deft_close(&d);
    return status;
}

ddp_status ddp_plan_delayed(const ddp_profile *buckets, const ddp_delayed_options *o,
                            ddp_delayed_plan *out, ddp_error *err)
{
    ddp_delayed_plan best;

    DDP__TRY(ddp__deft_check(buckets, o, err));
    memset(&best, 0, sizeof best);
    DDP__TRY(ddp__deft_variant(buckets, o, 0, 0, &best, err));
    if (o->no_barrier) { /* further tries; what has been found stays if they fail */
        (void)ddp__deft_variant(buckets, o, 1, 0, &best, NULL);
        (void)ddp__deft_variant(buckets, o, 1, 1, &best, NULL);
    }
    *out = best;
    return DDP_OK;
}

void ddp_delayed_plan_free(ddp_delayed_plan *plan)
{
    if (!plan) return;
    DDP_FREE(plan->parts_of);
    DDP_FREE(plan->part_s);
    DDP_FREE(plan->step);
    DDP_FREE(plan->send);
    DDP_FREE(plan->k);
    DDP_FREE(plan->delay);
    memset(plan, 0, sizeof *plan);
}

const char *ddp_delayed_select_name(ddp_delayed_select select)
{
    if (select == DDP_SELECT_DEFAULT || select == DDP_SELECT_RELEASE) return "release";
    return select == DDP_SELECT_PAPER ? "paper" : "unknown";
}

ddp_status ddp_delayed_select_named(const char *name, ddp_delayed_select *out, ddp_error *err)
{
    if (name && !strcmp(name, "release")) *out = DDP_SELECT_RELEASE;
    else if (name && !strcmp(name, "paper")) *out = DDP_SELECT_PAPER;
    else
        return ddp__fail(err, DDP_ARG, "selection '%.40s' is unknown; use release or paper",
                         name ? name : "");
    return DDP_OK;
}
/* ==== end plan/deft.c ==== */

/* ==== begin plan/preserver.c ==== [plan] */

/* Retries, growth of the capacity, and the most iterations that one sequence may stand for. */
#define DDP__PRESERVER_RETRIES    10
#define DDP__PRESERVER_GROWTH     1.1
#define DDP__PRESERVER_ITERATIONS 10000000

double ddp_preserver_expect(const ddp_preserver *model, double s, int k)
{
    double eta = model->eta * (model->sum ? k : 1);
    double m = s - model->target - eta * model->mu;
    double d = eta * model->sigma / sqrt(k * model->batch);
    double a;

    if (!(d > 0)) return fabs(m) + model->target;
    a = m / d;
    /* Phi(a) - Phi(-a) = erf(a / sqrt 2) */
    return m * erf(a * sqrt(0.5)) + d * sqrt(2 / 3.14159265358979323846) * exp(-0.5 * a * a) +
           model->target;
}

static ddp_status ddp__preserver_check_model(const ddp_preserver *m, ddp_error *err)
{
    if (!(m->eta > 0 && m->eta <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "eta is %g; it must be finite and above 0", m->eta);
    if (!(m->mu >= 0 && m->mu <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "mu is %g; it must be finite and at least 0", m->mu);
    if (!(m->sigma >= 0 && m->sigma <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "sigma is %g; it must be finite and at least 0", m->sigma);
    if (!(m->batch > 0 && m->batch <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "batch is %g; it must be finite and above 0", m->batch);
    if (!(m->target >= 0 && m->target <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "target is %g; it must be finite and at least 0", m->target);
    if (!(m->start >= m->target && m->start <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "start is %g; it must be finite and at least the target, %g",
                         m->start, m->target);
    if (!(m->tolerance >= 0 && m->tolerance <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "tolerance is %g; it must be finite and at least 0",
                         m->tolerance);
    return DDP_OK;
}

static ddp_status ddp__preserver_check(const ddp_preserver *m, const int *k, int updates, long *sum,
                                       ddp_error *err)
{
    int i;

    if (!m || !k || updates < 1)
        return ddp__fail(err, DDP_ARG, "the sequence k has %d entries%s; it needs at least 1",
                         updates, m && k ? "" : " but model or k is NULL");
    DDP__TRY(ddp__preserver_check_model(m, err));
    for (*sum = 0, i = 0; i < updates; i++) {
        if (k[i] < 1)
            return ddp__fail(err, DDP_ARG, "k[%d] is %d; each update merges at least 1 iteration",
                             i, k[i]);
        *sum += k[i];
        if (*sum > DDP__PRESERVER_ITERATIONS)
            return ddp__fail(err, DDP_ARG, "k[%d] is %d: the sequence exceeds %d iterations", i,
                             k[i], DDP__PRESERVER_ITERATIONS);
    }
    return DDP_OK;
}

/* How far a ratio is from acceptance, for comparing: smaller is better. */
static double ddp__preserver_badness(const ddp_preserver *m, double ratio)
{
    return m->one_sided ? -ratio : fabs(ratio - 1);
}

ddp_status ddp_preserver_test(const ddp_preserver *model, const int *k, int updates,
                              ddp_preserved *out, ddp_error *err)
{
    double tolerance, plan, ratio;
    ddp_preserved r;
    long n, sum = 0;
    int i, first;

    DDP__TRY(ddp__preserver_check(model, k, updates, &sum, err));
    if (model->rotations && (double)updates * updates > DDP__PRESERVER_ITERATIONS)
        return ddp__fail(err, DDP_ARG, "%d rotations of %d updates are too many to compare",
                         updates, updates);
    tolerance = model->tolerance > 0 ? model->tolerance : 0.01;
    memset(&r, 0, sizeof r);
    r.expected_base = model->start;
    for (n = 0; n < sum; n++) r.expected_base = ddp_preserver_expect(model, r.expected_base, 1);
    for (first = 0; first < (model->rotations ? updates : 1); first++) {
        plan = model->start;
        for (i = 0; i < updates; i++)
            plan = ddp_preserver_expect(model, plan, k[(first + i) % updates]);
        if (!(plan > 0 && plan <= DBL_MAX && r.expected_base <= DBL_MAX))
            return ddp__fail(err, DDP_NUMERIC,
                             "the expected loss is %g after the plan and %g without; their ratio "
                             "says nothing",
                             plan, r.expected_base);
        ratio = r.expected_base / plan;
        if (first > 0 &&
            ddp__preserver_badness(model, ratio) <= ddp__preserver_badness(model, r.ratio))
            continue;
        r.expected_plan = plan;
        r.ratio = ratio;
    }
    /* 1e-12: a ratio that is 1 - tolerance but for rounding passes */
    r.accepted = model->one_sided ? r.ratio >= 1 - tolerance - 1e-12
                                  : fabs(r.ratio - 1) <= tolerance + 1e-12;
    *out = r;
    return DDP_OK;
}

ddp_status ddp_preserver_plan(const ddp_profile *buckets, const ddp_delayed_options *o,
                              const ddp_preserver *model, ddp_delayed_plan *plan,
                              ddp_preserved *out, ddp_error *err)
{
    ddp_delayed_options grown;
    ddp_delayed_plan best, next;
    ddp_preserved verdict, found;
    ddp_status status = DDP_OK;
    int i;

    if (!o || !model)
        return ddp__fail(err, DDP_ARG, "ddp_preserver_plan: options or model is NULL");
    grown = *o;
    if (grown.capacity_scale == 0) grown.capacity_scale = 1;
    memset(&best, 0, sizeof best);
    memset(&found, 0, sizeof found);
    for (i = 0; i <= DDP__PRESERVER_RETRIES && !found.accepted; i++) {
        status = ddp_plan_delayed(buckets, &grown, &next, err);
        if (status != DDP_OK) break;
        status = ddp_preserver_test(model, next.k, next.updates, &verdict, err);
        if (status != DDP_OK) {
            ddp_delayed_plan_free(&next);
            break;
        }
        verdict.retries = i;
        grown.capacity_scale *= DDP__PRESERVER_GROWTH;
        if (best.period && !verdict.accepted &&
            ddp__preserver_badness(model, verdict.ratio) >=
                ddp__preserver_badness(model, found.ratio)) {
            ddp_delayed_plan_free(&next);
            continue;
        }
        ddp_delayed_plan_free(&best);
        best = next;
        found = verdict;
    }
    if (status != DDP_OK) {
        ddp_delayed_plan_free(&best);
        return status;
    }
    *plan = best;
    *out = found;
    return DDP_OK;
}
/* ==== end plan/preserver.c ==== */

/* ==== begin plan/osp.c ==== [plan] */

ddp_status ddp_osp_importance(const float *gradient, const float *parameter, size_t n, int mean,
                              double *out, ddp_error *err)
{
    double sum = 0, x;
    size_t i;

    if (!gradient || !parameter || !out || n == 0)
        return ddp__fail(err, DDP_ARG, "ddp_osp_importance: %zu elements or a NULL array; it needs "
                         "at least 1", n);
    for (i = 0; i < n; i++) {
        x = fabs((double)gradient[i] * (double)parameter[i]);
        if (!(x <= DBL_MAX))
            return ddp__fail(err, DDP_NUMERIC, "element %zu: gradient %g and parameter %g; both "
                             "must be finite", i, (double)gradient[i], (double)parameter[i]);
        sum += x;
    }
    *out = mean ? sum / (double)n : sum;
    return DDP_OK;
}

typedef struct ddp__osp_key {
    double key, bytes;
    int    layer;
} ddp__osp_key;

static int ddp__osp_order(const void *a, const void *b)
{
    const ddp__osp_key *x = (const ddp__osp_key *)a, *y = (const ddp__osp_key *)b;

    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->layer - y->layer;
}

/* late[l] = 1 for the layers that the walk defers; returns their bytes. */
static double ddp__osp_walk(int layers, const double *importance, const double *bytes,
                            double budget, ddp_osp_rule rule, ddp__osp_key *key, int *late)
{
    double sum = 0;
    int i;

    for (i = 0; i < layers; i++) {
        key[i].layer = i;
        key[i].bytes = bytes[i];
        key[i].key = importance[i];
        late[i] = 0;
        if (rule == DDP_OSP_DENSITY && bytes[i] > 0) key[i].key /= bytes[i];
    }
    qsort(key, (size_t)layers, sizeof *key, ddp__osp_order);
    for (i = 0; i < layers; i++) {
        if (!(key[i].bytes > 0)) continue; /* nothing to defer; so budget 0 defers no layer */
        if (sum + key[i].bytes <= budget) {
            sum += key[i].bytes;
            late[key[i].layer] = 1;
        } else if (rule == DDP_OSP_STOP) {
            break;
        }
    }
    return sum;
}

/* Replaces the walk's choice by the knapsack's where that is at least as good in both respects.
 * *deferred: bytes of the walk, then of the result. item, value, on: scratch [layers]. */
static ddp_status ddp__osp_knapsack(int layers, const double *importance, const double *bytes,
                                    double budget, double *item, double *value, int *on, int *late,
                                    double *deferred, ddp_error *err)
{
    ddp_knapsack_problem p;
    double total = 0, sum = 0, before = 0, after = 0;
    int i, n = 0;

    for (i = 0; i < layers; i++) {
        total += bytes[i];
        if (late[i]) before += importance[i];
        if (!(bytes[i] > 0)) continue;
        item[n] = bytes[i];
        value[n++] = importance[i];
    }
    if (n == 0 || !(total > *deferred) || !(*deferred > 0)) return DDP_OK;
    memset(&p, 0, sizeof p);
    p.items = n;
    p.item_s = item;
    p.value = value;
    p.links = 1;
    p.deadline_s[0] = total - *deferred;
    DDP__TRY(ddp_knapsack(&p, DDP_KNAPSACK_DEFAULT, on, NULL, err));
    for (i = n = 0; i < layers; i++) {
        if (!(bytes[i] > 0)) continue;
        if (on[n++] >= 0) continue;
        sum += bytes[i];
        after += importance[i];
    }
    if (sum < *deferred || sum > budget || after > before) return DDP_OK;
    *deferred = sum;
    for (i = n = 0; i < layers; i++)
        if (bytes[i] > 0) late[i] = on[n++] < 0;
    return DDP_OK;
}

static ddp_status ddp__osp_check(int layers, const double *importance, const double *bytes,
                                 double budget, ddp_osp_rule rule, ddp_error *err)
{
    double total = 0;
    int i;

    if (layers < 1 || !importance || !bytes)
        return ddp__fail(err, DDP_ARG, "ddp_osp_rank: %d layers or a NULL array; it needs at "
                         "least 1", layers);
    if (!(budget >= 0 && budget <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "budget is %g bytes; it must be finite and at least 0",
                         budget);
    if (rule != DDP_OSP_WALK && rule != DDP_OSP_STOP && rule != DDP_OSP_DENSITY &&
        rule != DDP_OSP_KNAPSACK)
        return ddp__fail(err, DDP_ARG, "rule %d is unknown; use walk, stop, density or knapsack",
                         (int)rule);
    for (i = 0; i < layers; i++) {
        if (!(importance[i] >= 0 && importance[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "layer %d has importance %g; it must be finite and at least 0", i,
                             importance[i]);
        if (!(bytes[i] >= 0 && bytes[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "layer %d has %g bytes; it must be finite and at least 0", i,
                             bytes[i]);
        total += bytes[i];
    }
    if (!(total <= DBL_MAX))
        return ddp__fail(err, DDP_NUMERIC, "the layers have more bytes than a double holds");
    return DDP_OK;
}

ddp_status ddp_osp_rank(int layers, const double *importance, const double *bytes, double budget,
                        ddp_osp_rule rule, unsigned char *gib, double *deferred, ddp_error *err)
{
    ddp_status status = DDP_OK;
    ddp__osp_key *key;
    double *real, sum;
    int *whole, i;
    size_t L;

    DDP__TRY(ddp__osp_check(layers, importance, bytes, budget, rule, err));
    if (!gib) return ddp__fail(err, DDP_ARG, "ddp_osp_rank: gib is NULL");
    L = (size_t)layers;
    key = (ddp__osp_key *)ddp__calloc(L, sizeof *key);
    real = (double *)ddp__calloc(2 * L, sizeof *real);
    whole = (int *)ddp__calloc(2 * L, sizeof *whole);
    if (!key || !real || !whole) {
        status = ddp__fail(err, DDP_MEMORY, "no memory to rank %d layers", layers);
    } else {
        sum = ddp__osp_walk(layers, importance, bytes, budget, rule, key, whole);
        if (rule == DDP_OSP_KNAPSACK)
            status = ddp__osp_knapsack(layers, importance, bytes, budget, real, real + L, whole + L,
                                       whole, &sum, err);
        if (status == DDP_OK) {
            memset(gib, 0, (L + 7) / 8);
            for (i = 0; i < layers; i++)
                if (!whole[i]) gib[i / 8] = (unsigned char)(gib[i / 8] | 1 << i % 8);
            if (deferred) *deferred = sum;
        }
    }
    DDP_FREE(key);
    DDP_FREE(real);
    DDP_FREE(whole);
    return status;
}

ddp_status ddp_osp_umax(double bytes_per_s, double loss_rate, double compute_s, int workers,
                        double model_bytes, int literal, double *out, ddp_error *err)
{
    double u;

    if (!(bytes_per_s > 0 && bytes_per_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "the server sends %g bytes a second; it must be finite and "
                         "above 0", bytes_per_s);
    if (!(loss_rate >= 0 && loss_rate <= 1))
        return ddp__fail(err, DDP_ARG, "the loss rate is %g; it must be from 0 to 1", loss_rate);
    if (!(compute_s >= 0 && compute_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "computing takes %g s; it must be finite and at least 0",
                         compute_s);
    if (workers < 1) return ddp__fail(err, DDP_ARG, "%d workers; there is at least 1", workers);
    if (!(model_bytes >= 0 && model_bytes <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "the model has %g bytes; it must be finite and at least 0",
                         model_bytes);
    if (!out) return ddp__fail(err, DDP_ARG, "ddp_osp_umax: out is NULL");
    u = bytes_per_s * compute_s / workers;
    u = literal ? u * (1 + loss_rate) : u / (1 + loss_rate);
    *out = u < 0.8 * model_bytes ? u : 0.8 * model_bytes;
    return DDP_OK;
}

double ddp_osp_budget(double loss, double first_loss, double u_max)
{
    double part;

    if (!(u_max > 0) || !(first_loss > 0 && first_loss <= DBL_MAX) || !(fabs(loss) <= DBL_MAX))
        return 0;
    part = 1 - loss / first_loss;
    return part <= 0 ? 0 : part >= 1 ? u_max : part * u_max;
}
/* ==== end plan/osp.c ==== */

/* ==== begin plan/place_core.h ==== [plan] */
/* Shared by the placement solvers: pair costs, exact evaluation, limits and the best so far. */
#ifndef DDP_PLAN_PLACE_CORE_H
#define DDP_PLAN_PLACE_CORE_H

/* Room of a bottleneck matching of n by n. */
typedef struct ddp__matching {
    int     n, round;
    double *sorted;             /* [n x n] */
    int    *left, *right, *seen; /* [n]; left owns the block */
    int    *kept;               /* [2 x n] */
} ddp__matching;

/* A search. An arrangement is an array of N devices, stage by stage: at[j * D + i] runs stage j
 * of pipeline i. As a partition only the sets at[j * D ..] count. */
typedef struct ddp__place {
    int     N, D, S;      /* devices, pipelines, stages */
    double *dp, *pp, *kl; /* [N x N] symmetric: pair terms of datap, pipelinep; KL's weight */
    const ddp_place_options *o;
    ddp_rng rng;
    double  start, limit_s; /* limit_s INFINITY = none */
    long    limit;          /* candidates; LONG_MAX = none */
    long    candidates;
    double  told;           /* when progress was last called */
    int     stop;
    int    *best;           /* [N] arrangement; cost INFINITY = none yet */
    double  cost;
    int     proven;
    int     points, room;
    double *curve;
    ddp__matching matching; /* of D by D */
    double *weight;         /* [D x D] */
    double *hop;            /* [S x S] value of each matching */
    int    *mate;           /* [S x S x D] mate[j][k][a] = member of k beside member a of j */
    double *tour;           /* Held-Karp's table where S <= 16 */
    int    *order;          /* [S] */
    int    *line;           /* [N] the arrangement behind the last evaluation */
    int     failed;         /* memory ran out */
} ddp__place;

#ifdef __cplusplus
extern "C" {
#endif

DDP_LIB int    ddp__matching_open(ddp__matching *m, int n); /* 0 = no memory */
DDP_LIB void   ddp__matching_close(ddp__matching *m);
DDP_LIB double ddp__matching_solve(ddp__matching *m, const double *weight, int *mate);

/* best [n 2^n]. The second is 0 where memory is short. */
DDP_LIB double ddp__tour_exact(int n, const double *cost, int first, int last, double *best,
                               int *order);
DDP_LIB int ddp__tour_local(int n, const double *cost, int first, int last, int *order,
                            double *length);

/* Cost of an arrangement as it stands; datap and hops may be NULL. */
DDP_LIB double ddp__place_flat(const ddp__place *p, const int *at, double *datap, double *hops);
DDP_LIB double ddp__place_datap(const ddp__place *p, const int *at);
/* Cost of a partition with the best matchings and stage order; the arrangement is in p->line. */
DDP_LIB double ddp__place_evaluate(ddp__place *p, const int *at);
/* Keeps an arrangement if it is better than the best so far. */
DDP_LIB void ddp__place_offer(ddp__place *p, const int *at, double cost);
/* The seconds since the start; reports progress and sets p->stop where the time is over. */
DDP_LIB double ddp__place_clock(ddp__place *p);
/* Counts one candidate: 0 where the search is over. */
DDP_LIB int ddp__place_next(ddp__place *p);
DDP_LIB void ddp__place_shuffle(ddp__place *p, int *at);

DDP_LIB void ddp__place_anneal(ddp__place *p);
DDP_LIB void ddp__place_random(ddp__place *p);
DDP_LIB void ddp__place_genetic(ddp__place *p);
DDP_LIB void ddp__place_cyclic(ddp__place *p, int kl); /* genetic-code, or KL's gain */
/* One pass of cyclic moves on label[N] (exposed for the tests). */
DDP_LIB int ddp__place_cyclic_pass(const ddp__place *p, int *label, int kl);
DDP_LIB void ddp__place_exact(ddp__place *p);
/* All partitions where there are few: 1 = done and proven, 0 = too many. */
DDP_LIB int ddp__place_enumerate(ddp__place *p);
/* Arrangements that follow the clusters of the network, each offered exactly evaluated; kept[0..]
 * receives up to `most` of them, best first. Returns their number. */
DDP_LIB int ddp__place_starts(ddp__place *p, int most, int *kept, double *cost);

/* Shared by both genetic searches: parents, crossover and the population. */
typedef struct ddp__place_pool {
    int     size;
    int    *label; /* [size x N] stage of each device */
    double *cost;  /* [size] */
    int    *child; /* [N] */
    int    *at;    /* [N] */
} ddp__place_pool;

DDP_LIB int    ddp__place_pool_open(ddp__place *p, ddp__place_pool *pool);
DDP_LIB void   ddp__place_pool_close(ddp__place_pool *pool);
DDP_LIB void   ddp__place_cross(ddp__place *p, ddp__place_pool *pool, int *one, int *two);
DDP_LIB double ddp__place_judge(ddp__place *p, ddp__place_pool *pool);

#ifdef __cplusplus
}
#endif

#endif /* DDP_PLAN_PLACE_CORE_H */
/* ==== end plan/place_core.h ==== */

/* ==== begin plan/matching.c ==== [plan] */

static int ddp__matching_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* An augmenting path from u over weights of at most `most` (Kuhn). */
static int ddp__matching_augment(ddp__matching *m, const double *weight, double most, int u)
{
    const double *row = weight + (size_t)u * (size_t)m->n;
    int v;

    for (v = 0; v < m->n; v++) {
        if (row[v] > most || m->seen[v] == m->round) continue;
        m->seen[v] = m->round;
        if (m->right[v] >= 0 && !ddp__matching_augment(m, weight, most, m->right[v])) continue;
        m->right[v] = u;
        m->left[u] = v;
        return 1;
    }
    return 0;
}

/* Extends the matching in m to a perfect one; 0 where weights up to `most` do not allow it. */
static int ddp__matching_extend(ddp__matching *m, const double *weight, double most)
{
    int u;

    for (u = 0; u < m->n; u++) {
        if (m->left[u] >= 0) continue;
        m->round++;
        if (!ddp__matching_augment(m, weight, most, u)) return 0;
    }
    return 1;
}

/* No perfect matching avoids the lightest weight of any row or column. */
static double ddp__matching_bound(int n, const double *weight)
{
    double most = -INFINITY, row, column;
    int u, v;

    for (u = 0; u < n; u++) {
        row = column = INFINITY;
        for (v = 0; v < n; v++) {
            double r = weight[(size_t)u * (size_t)n + (size_t)v];
            double c = weight[(size_t)v * (size_t)n + (size_t)u];
            if (r < row) row = r;
            if (c < column) column = c;
        }
        if (row > most) most = row;
        if (column > most) most = column;
    }
    return most;
}

double ddp__matching_solve(ddp__matching *m, const double *weight, int *mate)
{
    double bound = ddp__matching_bound(m->n, weight);
    size_t cells = (size_t)m->n * (size_t)m->n, i, count = 0, lo = 0, hi, mid;
    size_t bytes = (size_t)m->n * sizeof(int);

    memset(m->seen, 0, bytes);
    memset(m->left, -1, bytes);
    memset(m->right, -1, bytes);
    m->round = 0;
    if (!ddp__matching_extend(m, weight, bound)) {
        for (i = 0; i < cells; i++)
            if (weight[i] > bound) m->sorted[count++] = weight[i];
        qsort(m->sorted, count, sizeof(double), ddp__matching_order);
        for (i = 1, hi = 0; i < count; i++)
            if (m->sorted[i] > m->sorted[hi]) m->sorted[++hi] = m->sorted[i];
        while (lo < hi) {
            mid = (lo + hi) / 2;
            memcpy(m->kept, m->left, bytes);
            memcpy(m->kept + m->n, m->right, bytes);
            if (!ddp__matching_extend(m, weight, m->sorted[mid])) {
                lo = mid + 1; /* what was found stays allowed at every larger threshold */
                continue;
            }
            hi = mid;
            memcpy(m->left, m->kept, bytes);
            memcpy(m->right, m->kept + m->n, bytes);
        }
        bound = m->sorted[lo];
        (void)ddp__matching_extend(m, weight, bound);
    }
    memcpy(mate, m->left, bytes);
    return bound;
}

int ddp__matching_open(ddp__matching *m, int n)
{
    size_t N = (size_t)n;

    memset(m, 0, sizeof *m);
    m->n = n;
    m->sorted = (double *)ddp__calloc(N * N, sizeof(double));
    m->left = (int *)ddp__calloc(5 * N, sizeof(int));
    if (!m->sorted || !m->left) {
        ddp__matching_close(m);
        return 0;
    }
    m->right = m->left + n;
    m->seen = m->right + n;
    m->kept = m->seen + n;
    return 1;
}

void ddp__matching_close(ddp__matching *m)
{
    DDP_FREE(m->sorted);
    DDP_FREE(m->left);
    memset(m, 0, sizeof *m);
}

ddp_status ddp_matching_bottleneck(int n, const double *weight, int *mate, double *value,
                                   ddp_error *err)
{
    ddp__matching m;
    double most;
    int u, v;

    if (n < 1 || !weight || !mate || !value)
        return ddp__fail(err, DDP_ARG,
                         "a matching of %d vertices or a NULL array; both sides have "
                         "at least 1",
                         n);
    for (u = 0; u < n; u++)
        for (v = 0; v < n; v++) {
            double w = weight[(size_t)u * (size_t)n + (size_t)v];
            if (!(w >= -DBL_MAX && w <= DBL_MAX))
                return ddp__fail(err, DDP_ARG,
                                 "the weight of pair (%d, %d) is %g; it must be "
                                 "finite",
                                 u, v, w);
        }
    if (!ddp__matching_open(&m, n))
        return ddp__fail(err, DDP_MEMORY, "no memory to match %d vertices", n);
    most = ddp__matching_solve(&m, weight, mate);
    ddp__matching_close(&m);
    *value = most;
    return DDP_OK;
}
/* ==== end plan/matching.c ==== */

/* ==== begin plan/tour.c ==== [plan] */

/* ---- up to 16 nodes: Held-Karp ---- */

/* best[set * n + e] = shortest path that visits exactly `set` and ends at e; sets in ascending
 * order, so that every smaller set is done first. The path is read back from the lengths. */
double ddp__tour_exact(int n, const double *cost, int first, int last, double *best, int *order)
{
    size_t N = (size_t)n, sets = (size_t)1 << n, set, e, b, at;
    double length = INFINITY;
    int k;

    for (set = 1; set < sets; set++)
        for (e = 0; e < N; e++) {
            double *to = &best[set * N + e];
            size_t rest = set & ~((size_t)1 << e);
            *to = INFINITY;
            if (!(set >> e & 1)) continue;
            if (!rest) {
                if (first < 0 || first == (int)e) *to = 0;
                continue;
            }
            for (b = 0; b < N; b++) {
                double via = best[rest * N + b] + cost[b * N + e];
                if ((rest >> b & 1) && via < *to) *to = via;
            }
        }
    set = sets - 1;
    for (e = 0, at = 0; e < N; e++)
        if ((last < 0 || last == (int)e) && best[set * N + e] < length)
            length = best[set * N + e], at = e;
    for (k = n - 1; k >= 0; k--) {
        size_t rest = set & ~((size_t)1 << at), from = 0;
        order[k] = (int)at;
        for (b = 0; k > 0 && b < N; b++)
            if ((rest >> b & 1) && best[rest * N + b] + cost[b * N + at] == best[set * N + at]) {
                from = b;
                break;
            }
        set = rest;
        at = from;
    }
    return length;
}

/* ---- beyond: nearest neighbour, then 2-opt and or-opt ---- */

typedef struct ddp__tour {
    int n, lo, hi; /* positions lo..hi may change */
    const double *cost;
    int *order, *spare;
    double *along, *against; /* [n] cost of order[0..k], and of the same way back */
} ddp__tour;

/* Cost of the edge between two positions; beyond the ends there is none. */
static double ddp__tour_edge(const ddp__tour *t, int a, int b)
{
    if (a < 0 || b < 0 || a >= t->n || b >= t->n) return 0;
    return t->cost[(size_t)t->order[a] * (size_t)t->n + (size_t)t->order[b]];
}

static void ddp__tour_sums(ddp__tour *t)
{
    int k;

    t->along[0] = t->against[0] = 0;
    for (k = 1; k < t->n; k++) {
        t->along[k] = t->along[k - 1] + ddp__tour_edge(t, k - 1, k);
        t->against[k] = t->against[k - 1] + ddp__tour_edge(t, k, k - 1);
    }
}

static void ddp__tour_reverse(int *order, int i, int j)
{
    for (; i < j; i++, j--) {
        int swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

static double ddp__tour_inside(const ddp__tour *t, int i, int j, int turned)
{
    return turned ? t->against[j] - t->against[i] : t->along[j] - t->along[i];
}

/* Reverses the run i..j where that is shorter. */
static int ddp__tour_two_opt(ddp__tour *t, int i, int j, double least)
{
    double old =
        ddp__tour_edge(t, i - 1, i) + ddp__tour_inside(t, i, j, 0) + ddp__tour_edge(t, j, j + 1);
    double now =
        ddp__tour_edge(t, i - 1, j) + ddp__tour_inside(t, i, j, 1) + ddp__tour_edge(t, i, j + 1);

    if (!(old - now > least)) return 0;
    ddp__tour_reverse(t->order, i, j);
    ddp__tour_sums(t);
    return 1;
}

/* Puts the run i..j, perhaps turned, between the positions p and p+1, both outside of it. */
static int ddp__tour_or_opt(ddp__tour *t, int i, int j, int p, int turned, double least)
{
    int head = turned ? j : i, tail = turned ? i : j, k, w = 0;
    double old = ddp__tour_edge(t, i - 1, i) + ddp__tour_inside(t, i, j, 0) +
                 ddp__tour_edge(t, j, j + 1) + ddp__tour_edge(t, p, p + 1);
    double now = ddp__tour_edge(t, i - 1, j + 1) + ddp__tour_edge(t, p, head) +
                 ddp__tour_inside(t, i, j, turned) + ddp__tour_edge(t, tail, p + 1);

    if (!(old - now > least)) return 0;
    for (k = -1; k < t->n; k++) {
        int m;
        if (k >= 0 && (k < i || k > j)) t->spare[w++] = t->order[k];
        if (k != p) continue;
        for (m = 0; m <= j - i; m++) t->spare[w++] = t->order[turned ? j - m : i + m];
    }
    memcpy(t->order, t->spare, (size_t)t->n * sizeof(int));
    ddp__tour_sums(t);
    return 1;
}

/* All moves until none shortens the path by more than rounding. */
static double ddp__tour_improve(ddp__tour *t)
{
    int i, j, p, turned, better = 1;
    double least;

    ddp__tour_sums(t);
    least = 1e-12 * (t->along[t->n - 1] + t->against[t->n - 1]);
    while (better) {
        better = 0;
        for (i = t->lo; i <= t->hi; i++) {
            for (j = i + 1; j <= t->hi; j++) better |= ddp__tour_two_opt(t, i, j, least);
            for (j = i; j <= t->hi && j < i + 3; j++)
                for (p = t->lo - 1; p <= t->hi; p++)
                    for (turned = 0; turned < 2 && (p < i - 1 || p > j); turned++)
                        better |= ddp__tour_or_opt(t, i, j, p, turned, least);
        }
    }
    return t->along[t->n - 1];
}

static void ddp__tour_nearest(ddp__tour *t, int start, int last)
{
    int *order = t->order, k, v, best;

    for (v = 0; v < t->n; v++) order[v] = v;
    order[0] = start;
    order[start] = 0;
    if (last >= 0) {
        for (k = 1; order[k] != last; k++) {
        }
        order[k] = order[t->n - 1];
        order[t->n - 1] = last;
    }
    for (k = 1; k < (last >= 0 ? t->n - 1 : t->n); k++) {
        for (v = best = k; v < (last >= 0 ? t->n - 1 : t->n); v++) {
            double a = ddp__tour_edge(t, k - 1, v), b = ddp__tour_edge(t, k - 1, best);
            if (a < b || (a == b && order[v] < order[best])) best = v;
        }
        v = order[k];
        order[k] = order[best];
        order[best] = v;
    }
}

int ddp__tour_local(int n, const double *cost, int first, int last, int *order, double *length)
{
    ddp__tour t;
    double *sums = (double *)ddp__calloc(2 * (size_t)n, sizeof(double)), now;
    int *room = (int *)ddp__calloc(2 * (size_t)n, sizeof(int));
    int start, starts = n <= 64 ? n : n < 1024 ? 4096 / n : 4;

    if (sums && room) {
        t.n = n;
        t.cost = cost;
        t.along = sums;
        t.against = sums + n;
        t.order = room;
        t.spare = room + n;
        t.lo = first >= 0 ? 1 : 0;
        t.hi = last >= 0 ? n - 2 : n - 1;
        *length = INFINITY;
        for (start = 0; start < (first >= 0 ? 1 : starts); start++) {
            if (first < 0 && start == last) continue;
            ddp__tour_nearest(&t, first >= 0 ? first : start, last);
            now = ddp__tour_improve(&t);
            if (!(now < *length)) continue;
            *length = now;
            memcpy(order, t.order, (size_t)n * sizeof(int));
        }
    }
    start = sums && room;
    DDP_FREE(sums);
    DDP_FREE(room);
    return start;
}

ddp_status ddp_tour_open(int n, const double *cost, int first, int last, int *order, double *length,
                         ddp_error *err)
{
    double *best, found = 0;
    int *path, u, v, ok;

    if (n < 1 || !cost || !order || !length)
        return ddp__fail(err, DDP_ARG, "a tour of %d nodes or a NULL array; it has at least 1 node",
                         n);
    if (first < -1 || first >= n || last < -1 || last >= n)
        return ddp__fail(err, DDP_ARG,
                         "the tour is to go from node %d to node %d; nodes are 0 to "
                         "%d, -1 = free",
                         first, last, n - 1);
    if (n > 1 && first >= 0 && first == last)
        return ddp__fail(err, DDP_ARG,
                         "the tour is to begin and end at node %d; an open tour of "
                         "%d nodes has two ends",
                         first, n);
    for (u = 0; u < n; u++)
        for (v = 0; v < n; v++) {
            double c = cost[(size_t)u * (size_t)n + (size_t)v];
            if (u != v && !(c >= 0 && c <= DBL_MAX))
                return ddp__fail(err, DDP_ARG,
                                 "the cost from node %d to node %d is %g; it must be "
                                 "finite and at least 0",
                                 u, v, c);
        }
    path = (int *)ddp__calloc((size_t)n, sizeof(int));
    best = (double *)ddp__calloc(n > DDP_TOUR_EXACT ? 1 : (size_t)n << n, sizeof(double));
    ok = path && best;
    if (ok && n > DDP_TOUR_EXACT)
        ok = ddp__tour_local(n, cost, first, last, path, &found);
    else if (ok)
        found = ddp__tour_exact(n, cost, first, last, best, path);
    if (ok) {
        memcpy(order, path, (size_t)n * sizeof(int));
        *length = found;
    }
    DDP_FREE(path);
    DDP_FREE(best);
    return ok ? DDP_OK : ddp__fail(err, DDP_MEMORY, "no memory for a tour of %d nodes", n);
}
/* ==== end plan/tour.c ==== */

/* ==== begin plan/place_cyclic.c ==== [plan] */

/* The search that the DT-FM authors released: cyclic partition moves, one device at a time, each
 * into the group that the last one left for. Two gains of moving v to group q:
 *     genetic-code  mean of w(v, u in q) - own(v),  own(v) = the lightest w(v, u) in v's group;
 *                   only the unlocked v with the smallest own of its group may move
 *     kl            s(v, q) - s(v, own group),  s = sum of (c_pp - c_dp)/b; any unlocked v
 * with w = a + c_pp/b one way. A cycle begins at the group S0 with the largest gain and ends when
 * it comes back to it; it is closed where the gains so far plus that of sending the device straight
 * to S0 are largest, and undone if that is nowhere positive. Locks last for the whole pass. */

typedef struct ddp__place_cycle {
    const ddp__place *p;
    int kl;
    int *label;
    int *size;         /* [S] devices in each group now */
    char *locked;      /* [N] */
    char *got;         /* [S] has received a device in this pass */
    int *moved, *from; /* [N] moves of this cycle */
    double *sum;       /* [S] weight between one device and each group */
} ddp__place_cycle;

/* Sums of v's weights with every group into c->sum; the lightest weight in its own group. */
static double ddp__place_weigh(ddp__place_cycle *c, int v)
{
    const ddp__place *p = c->p;
    const double *row = (c->kl ? p->kl : p->pp) + (size_t)v * (size_t)p->N;
    double own = INFINITY;
    int u;

    memset(c->sum, 0, (size_t)p->S * sizeof(double));
    for (u = 0; u < p->N; u++) {
        if (u == v) continue;
        c->sum[c->label[u]] += row[u];
        if (c->label[u] == c->label[v] && row[u] < own) own = row[u];
    }
    return own < INFINITY ? own : 0;
}

/* The gain of sending the device last weighed, with that own link, to group q. pp is twice w. */
static double ddp__place_gain(const ddp__place_cycle *c, int v, double own, int q)
{
    if (c->kl) return c->sum[q] - c->sum[c->label[v]];
    return ((c->size[q] ? c->sum[q] / c->size[q] : 0) - own) / 2;
}

/* The best move out of group g: the device (-1 = none unlocked), where to, and the gain. */
static int ddp__place_leave(ddp__place_cycle *c, int g, int *to, double *gain)
{
    const ddp__place *p = c->p;
    double least = INFINITY, own, now;
    int v, q, best = -1, only = -1;

    *gain = -INFINITY;
    if (p->S < 2) return -1;
    for (v = 0; v < p->N && !c->kl; v++) {
        const double *row = p->pp + (size_t)v * (size_t)p->N;
        int u;
        if (c->label[v] != g || c->locked[v]) continue;
        for (u = 0, own = INFINITY; u < p->N; u++)
            if (u != v && c->label[u] == g && row[u] < own) own = row[u];
        if (only < 0 || own < least) only = v, least = own;
    }
    for (v = 0; v < p->N; v++) {
        if (c->label[v] != g || c->locked[v] || (!c->kl && v != only)) continue;
        own = ddp__place_weigh(c, v);
        for (q = 0; q < p->S; q++) {
            if (q == g) continue;
            now = ddp__place_gain(c, v, own, q);
            if (best >= 0 && !(now > *gain)) continue;
            best = v;
            *to = q;
            *gain = now;
        }
    }
    return best;
}

static void ddp__place_send(ddp__place_cycle *c, int v, int q)
{
    c->size[c->label[v]]--;
    c->size[q]++;
    c->label[v] = q;
}

/* One cycle; 0 where no group has an unlocked device. */
static int ddp__place_cycle_once(ddp__place_cycle *c)
{
    int home = -1, g, v, to = 0, n = 0, keep = 0, k;
    double most = -INFINITY, gain, sum = 0, close, best = 0;

    for (g = 0; g < c->p->S; g++) {
        v = ddp__place_leave(c, g, &to, &gain);
        if (v >= 0 && (home < 0 || gain > most)) home = g, most = gain;
    }
    if (home < 0) return 0;
    for (g = home; n < c->p->N; g = to) {
        v = ddp__place_leave(c, g, &to, &gain);
        if (v < 0) break;
        if (n) {
            double own = ddp__place_weigh(c, v);
            close = sum + ddp__place_gain(c, v, own, home);
            if (close > best) best = close, keep = n;
        }
        c->moved[n] = v;
        c->from[n++] = g;
        ddp__place_send(c, v, to);
        c->locked[v] = 1;
        sum += gain;
        if (to == home) break;
    }
    for (k = n - 1; k > keep; k--) ddp__place_send(c, c->moved[k], c->from[k]);
    ddp__place_send(c, c->moved[keep], home);
    for (k = 0; k <= keep && keep > 0; k++) c->got[c->label[c->moved[k]]] = 1;
    return 1;
}

/* The device of the last move where the chain ran into a group without an unlocked device goes on
 * to S0: that is the closing at the last prefix. */
int ddp__place_cyclic_pass(const ddp__place *p, int *label, int kl)
{
    size_t N = (size_t)p->N, S = (size_t)p->S;
    ddp__place_cycle c;
    int k, g, ok;

    memset(&c, 0, sizeof c);
    c.p = p;
    c.kl = kl;
    c.label = label;
    c.size = (int *)ddp__calloc(S + 2 * N, sizeof(int));
    c.locked = (char *)ddp__calloc(N + S, 1);
    c.sum = (double *)ddp__calloc(S, sizeof(double));
    ok = c.size && c.locked && c.sum;
    if (ok) {
        c.moved = c.size + S;
        c.from = c.moved + N;
        c.got = c.locked + N;
        for (k = 0; k < p->N; k++) c.size[label[k]]++;
        for (k = 0; k < p->S && ddp__place_cycle_once(&c); k++) {
            for (g = 0; g < p->S && c.got[g]; g++) {
            }
            if (g == p->S) break;
        }
    }
    DDP_FREE(c.size);
    DDP_FREE(c.locked);
    DDP_FREE(c.sum);
    return ok;
}

void ddp__place_cyclic(ddp__place *p, int kl)
{
    size_t N = (size_t)p->N;
    ddp__place_pool pool;
    int one, two;
    double cost;

    if (!ddp__place_pool_open(p, &pool)) return;
    while (ddp__place_next(p)) {
        ddp__place_cross(p, &pool, &one, &two);
        if (!ddp__place_cyclic_pass(p, pool.child, kl)) {
            p->failed = 1;
            break;
        }
        cost = ddp__place_judge(p, &pool);
        if (!(cost < pool.cost[one])) continue;
        if (pool.cost[two] > pool.cost[one]) one = two;
        pool.cost[one] = cost;
        memcpy(pool.label + (size_t)one * N, pool.child, N * sizeof(int));
    }
    ddp__place_pool_close(&pool);
}
/* ==== end plan/place_cyclic.c ==== */

/* ==== begin plan/place_genetic.c ==== [plan] */

/* The paper's hybrid genetic search (DT-FM section 3.4), and the population that the released
 * variant shares. A genome is the stage of each device, label[N].
 *
 * Local search, read as follows. A group's fastest link is the lightest pair (d1, d2) of its
 * unlocked devices. Two groups have four candidate swaps, each of one end with one end, with
 *     gain = mean of w(d, C') - w(d1, d2) + mean of w(d', C) - w(d1', d2')
 * A chain begins with the best swap of all, then goes on from the second group to the best third
 * one, each swapped device being locked, until it returns to the first group or no group has two
 * unlocked devices; it is cut behind its largest sum of gains. w is one direction, a + c_pp/b. */

enum { DDP__PLACE_POPULATION = 100, DDP__PLACE_CROSSED = 5 };

void ddp__place_pool_close(ddp__place_pool *pool)
{
    DDP_FREE(pool->label);
    DDP_FREE(pool->cost);
    memset(pool, 0, sizeof *pool);
}

/* A label array as an arrangement. */
static void ddp__place_gather(const ddp__place *p, const int *label, int *at)
{
    int j, v, n = 0;

    for (j = 0; j < p->S; j++)
        for (v = 0; v < p->N; v++)
            if (label[v] == j) at[n++] = v;
}

double ddp__place_judge(ddp__place *p, ddp__place_pool *pool)
{
    double cost;

    ddp__place_gather(p, pool->child, pool->at);
    cost = ddp__place_evaluate(p, pool->at);
    ddp__place_offer(p, p->line, cost);
    return cost;
}

/* Random shuffles, exactly evaluated; fewer than 100 where the limits end first. 0 = no memory. */
int ddp__place_pool_open(ddp__place *p, ddp__place_pool *pool)
{
    size_t N = (size_t)p->N;
    int v;

    memset(pool, 0, sizeof *pool);
    pool->label = (int *)ddp__calloc((DDP__PLACE_POPULATION + 2) * N, sizeof(int));
    pool->cost = (double *)ddp__calloc(DDP__PLACE_POPULATION, sizeof(double));
    if (!pool->label || !pool->cost) {
        ddp__place_pool_close(pool);
        p->failed = 1;
        return 0;
    }
    pool->child = pool->label + DDP__PLACE_POPULATION * N;
    pool->at = pool->child + N;
    while (pool->size < DDP__PLACE_POPULATION && ddp__place_next(p)) {
        ddp__place_shuffle(p, pool->at);
        for (v = 0; v < p->N; v++) pool->child[pool->at[v]] = v / p->D;
        pool->cost[pool->size] = ddp__place_judge(p, pool);
        memcpy(pool->label + (size_t)pool->size++ * N, pool->child, N * sizeof(int));
    }
    return 1;
}

/* "Five-point crossover": the second parent, but five random devices follow the first one; then
 * each device of an over-full group moves to the first group with room. Parents may be equal. */
void ddp__place_cross(ddp__place *p, ddp__place_pool *pool, int *one, int *two)
{
    size_t N = (size_t)p->N;
    int *child = pool->child, *count = pool->at, k, v, q;

    *one = (int)ddp_rng_below(&p->rng, (uint64_t)pool->size);
    *two = (int)ddp_rng_below(&p->rng, (uint64_t)pool->size);
    memcpy(child, pool->label + (size_t)*two * N, N * sizeof(int));
    for (k = 0; k < DDP__PLACE_CROSSED; k++) {
        v = (int)ddp_rng_below(&p->rng, (uint64_t)p->N);
        child[v] = pool->label[(size_t)*one * N + (size_t)v];
    }
    memset(count, 0, N * sizeof(int));
    for (v = 0; v < p->N; v++) count[child[v]]++;
    for (v = q = 0; v < p->N; v++) {
        if (count[child[v]] <= p->D) continue;
        while (count[q] >= p->D) q++;
        count[child[v]]--;
        count[q]++;
        child[v] = q;
    }
}

/* ---- the paper's swaps ---- */

typedef struct ddp__place_swap {
    int u, v; /* device of the one group, of the other */
    double gain;
} ddp__place_swap;

/* The lightest pair of unlocked devices in each group; end[2g] = -1 where there are not two. */
static void ddp__place_fastest(const ddp__place *p, const int *label, const char *locked, int *end,
                               double *link)
{
    int g, u, v;

    for (g = 0; g < p->S; g++) end[2 * g] = end[2 * g + 1] = -1, link[g] = INFINITY;
    for (u = 0; u < p->N; u++)
        for (v = u + 1; v < p->N; v++) {
            double w = p->pp[(size_t)u * (size_t)p->N + (size_t)v] / 2;
            g = label[u];
            if (label[v] != g || locked[u] || locked[v] || !(w < link[g])) continue;
            link[g] = w;
            end[2 * g] = u;
            end[2 * g + 1] = v;
        }
}

/* Mean weight between u and the devices of group g (u itself counts 0 in its own). */
static double ddp__place_mean(const ddp__place *p, const int *label, int u, int g)
{
    double sum = 0;
    int v;

    for (v = 0; v < p->N; v++)
        if (label[v] == g) sum += p->pp[(size_t)u * (size_t)p->N + (size_t)v] / 2;
    return sum / p->D;
}

/* The best swap of group g (-1 = any) with another one. */
static ddp__place_swap ddp__place_best_swap(const ddp__place *p, const int *label, const int *end,
                                            const double *link, const double *mean, int g)
{
    ddp__place_swap best = {-1, -1, -INFINITY};
    int a, b, k;

    for (a = g < 0 ? 0 : g; a < (g < 0 ? p->S : g + 1); a++)
        for (b = 0; b < p->S; b++)
            for (k = 0; k < 4 && b != a && end[2 * a] >= 0 && end[2 * b] >= 0; k++) {
                int u = 2 * a + k / 2, v = 2 * b + k % 2;
                double gain = mean[(size_t)u * (size_t)p->S + (size_t)b] - link[a] +
                              mean[(size_t)v * (size_t)p->S + (size_t)a] - link[b];
                if (!(gain > best.gain)) continue;
                best.gain = gain;
                best.u = end[u];
                best.v = end[v];
            }
    (void)label;
    return best;
}

typedef struct ddp__place_chain {
    char *locked;          /* [N] */
    int *end;              /* [2 S] */
    double *link;          /* [S] */
    double *mean;          /* [2 S x S] of each end with each group */
    ddp__place_swap *swap; /* [N] */
} ddp__place_chain;

/* Improves label by one chain of swaps. */
static void ddp__place_circulate(const ddp__place *p, ddp__place_chain *c, int *label)
{
    double sum = 0, most = 0;
    int n, keep = 0, first = -1, g = -1, k, h, t;

    memset(c->locked, 0, (size_t)p->N);
    for (n = 0; n < p->N; n++) {
        ddp__place_swap s;
        ddp__place_fastest(p, label, c->locked, c->end, c->link);
        for (k = 0; k < 2 * p->S; k++)
            for (h = 0; h < p->S && c->end[k] >= 0; h++)
                c->mean[(size_t)k * (size_t)p->S + (size_t)h] =
                    ddp__place_mean(p, label, c->end[k], h);
        s = ddp__place_best_swap(p, label, c->end, c->link, c->mean, g);
        if (s.u < 0) break;
        if (first < 0) first = label[s.u];
        g = label[s.v];
        t = label[s.u];
        label[s.u] = label[s.v];
        label[s.v] = t;
        c->locked[s.u] = c->locked[s.v] = 1;
        c->swap[n] = s;
        sum += s.gain;
        if (sum > most) most = sum, keep = n + 1;
        if (g == first) {
            n++;
            break;
        }
    }
    while (n-- > keep) {
        t = label[c->swap[n].u];
        label[c->swap[n].u] = label[c->swap[n].v];
        label[c->swap[n].v] = t;
    }
}

void ddp__place_genetic(ddp__place *p)
{
    size_t N = (size_t)p->N, S = (size_t)p->S;
    ddp__place_pool pool;
    ddp__place_chain c;
    int one, two, k, worst;
    double cost;

    memset(&c, 0, sizeof c);
    c.locked = (char *)ddp__calloc(N, 1);
    c.end = (int *)ddp__calloc(2 * S, sizeof(int));
    c.link = (double *)ddp__calloc(S + 2 * S * S, sizeof(double));
    c.swap = (ddp__place_swap *)ddp__calloc(N, sizeof *c.swap);
    if (!c.locked || !c.end || !c.link || !c.swap)
        p->failed = 1;
    else
        c.mean = c.link + S;
    if (!p->failed && ddp__place_pool_open(p, &pool)) {
        while (ddp__place_next(p)) {
            ddp__place_cross(p, &pool, &one, &two);
            ddp__place_circulate(p, &c, pool.child);
            cost = ddp__place_judge(p, &pool);
            for (k = 1, worst = 0; k < pool.size; k++)
                if (pool.cost[k] > pool.cost[worst]) worst = k;
            if (!(cost < pool.cost[worst])) continue;
            pool.cost[worst] = cost;
            memcpy(pool.label + (size_t)worst * N, pool.child, N * sizeof(int));
        }
        ddp__place_pool_close(&pool);
    }
    DDP_FREE(c.locked);
    DDP_FREE(c.end);
    DDP_FREE(c.link);
    DDP_FREE(c.swap);
}
/* ==== end plan/place_genetic.c ==== */

/* ==== begin plan/place_starts.c ==== [plan] */

/* Arrangements that follow the structure of the network. The line of devices is the order in which
 * Prim's algorithm reaches them over the lightest hops, so that well connected ones are neighbours;
 * cutting its heavy steps gives clusters. From the line, and from the order given:
 *   pipelines inside clusters: each run of S devices is a pipeline
 *   stages inside clusters: each run of D devices is a stage
 *   packed: a cluster smaller than a pipeline gives one device to each of the first free stages of
 *   a pipeline, the largest clusters first, for the cuts with the largest relative steps */

enum { DDP__STARTS_CUTS = 4 };

typedef struct ddp__starts {
    ddp__place *p;
    int *line;              /* [N] */
    double *step;           /* [N] hop over which line[k] was reached */
    double *sorted;         /* [N] */
    int *at, *fill, *chunk; /* [N], [D], [2 N] */
    int most, count;
    int *kept;
    double *cost;
} ddp__starts;

static void ddp__starts_line(ddp__starts *s)
{
    const ddp__place *p = s->p;
    double *reach = s->sorted;
    int k, v, best, last = 0;

    for (v = 0; v < p->N; v++) s->line[v] = v, reach[v] = INFINITY;
    s->step[0] = INFINITY;
    for (k = 1; k < p->N; k++) {
        for (v = best = k; v < p->N; v++) {
            double w = p->pp[(size_t)last * (size_t)p->N + (size_t)s->line[v]];
            if (w < reach[s->line[v]]) reach[s->line[v]] = w;
            if (reach[s->line[v]] < reach[s->line[best]] ||
                (reach[s->line[v]] <= reach[s->line[best]] && s->line[v] < s->line[best]))
                best = v;
        }
        last = s->line[best];
        s->line[best] = s->line[k];
        s->line[k] = last;
        s->step[k] = reach[last];
    }
}

/* Evaluates s->at exactly and keeps it among the best. */
static void ddp__starts_keep(ddp__starts *s)
{
    ddp__place *p = s->p;
    size_t N = (size_t)p->N;
    double cost;
    int k;

    if (!ddp__place_next(p)) return;
    cost = ddp__place_evaluate(p, s->at);
    ddp__place_offer(p, p->line, cost);
    for (k = 0; k < s->count && s->cost[k] < cost; k++) {
    }
    if (k < s->count && !(cost < s->cost[k])) return; /* the same again */
    if (k == s->most) return;
    if (s->count < s->most) s->count++;
    memmove(s->kept + (size_t)(k + 1) * N, s->kept + (size_t)k * N,
            (size_t)(s->count - 1 - k) * N * sizeof(int));
    memmove(s->cost + k + 1, s->cost + k, (size_t)(s->count - 1 - k) * sizeof(double));
    memcpy(s->kept + (size_t)k * N, p->line, N * sizeof(int));
    s->cost[k] = cost;
}

static void ddp__starts_runs(ddp__starts *s, const int *line)
{
    const ddp__place *p = s->p;
    int k;

    for (k = 0; k < p->N; k++) s->at[k % p->S * p->D + k / p->S] = line ? line[k] : k;
    ddp__starts_keep(s);
    for (k = 0; k < p->N; k++) s->at[k] = line ? line[k] : k;
    ddp__starts_keep(s);
}

static int ddp__starts_larger(const void *a, const void *b)
{
    const int *x = (const int *)a, *y = (const int *)b; /* begin, length */

    return x[1] != y[1] ? y[1] - x[1] : x[0] - y[0];
}

/* Lays devices into the pipeline with the fewest so far. */
static void ddp__starts_lay(ddp__starts *s, int begin, int length)
{
    const ddp__place *p = s->p;

    while (length > 0) {
        int i, best = 0;
        for (i = 1; i < p->D; i++)
            if (s->fill[i] < s->fill[best]) best = i;
        for (; length > 0 && s->fill[best] < p->S; length--)
            s->at[s->fill[best]++ * p->D + best] = s->line[begin++];
    }
}

static void ddp__starts_pack(ddp__starts *s, double cut)
{
    const ddp__place *p = s->p;
    int chunks = 0, k, begin = 0;

    for (k = 1; k <= p->N; k++) {
        if (k < p->N && !(s->step[k] > cut) && k - begin < p->S) continue;
        s->chunk[2 * chunks] = begin;
        s->chunk[2 * chunks++ + 1] = k - begin;
        begin = k;
    }
    qsort(s->chunk, (size_t)chunks, 2 * sizeof(int), ddp__starts_larger);
    memset(s->fill, 0, (size_t)p->D * sizeof(int));
    for (k = 0; k < chunks; k++) ddp__starts_lay(s, s->chunk[2 * k], s->chunk[2 * k + 1]);
    ddp__starts_keep(s);
}

static int ddp__starts_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The cuts with the largest relative steps between neighbouring distinct weights of the line. */
static void ddp__starts_cuts(ddp__starts *s)
{
    const ddp__place *p = s->p;
    double cut[DDP__STARTS_CUTS], jump[DDP__STARTS_CUTS];
    int n = 0, k, m;

    memcpy(s->sorted, s->step, (size_t)p->N * sizeof(double));
    qsort(s->sorted, (size_t)p->N, sizeof(double), ddp__starts_order);
    for (k = 0; k + 2 < p->N; k++) { /* the last one is the first device's infinity */
        double low = s->sorted[k], ratio = (s->sorted[k + 1] - low) / s->sorted[k + 1];
        if (!(s->sorted[k + 1] > low)) continue;
        for (m = n < DDP__STARTS_CUTS ? n++ : DDP__STARTS_CUTS; m > 0 && jump[m - 1] < ratio; m--)
            if (m < DDP__STARTS_CUTS) jump[m] = jump[m - 1], cut[m] = cut[m - 1];
        if (m < DDP__STARTS_CUTS) jump[m] = ratio, cut[m] = low;
    }
    for (m = 0; m < n; m++) ddp__starts_pack(s, cut[m]);
}

int ddp__place_starts(ddp__place *p, int most, int *kept, double *cost)
{
    size_t N = (size_t)p->N, D = (size_t)p->D;
    ddp__starts s;

    memset(&s, 0, sizeof s);
    s.p = p;
    s.most = most;
    s.kept = kept;
    s.cost = cost;
    s.line = (int *)ddp__calloc(4 * N + D, sizeof(int));
    s.step = (double *)ddp__calloc(2 * N, sizeof(double));
    if (s.line && s.step) {
        s.at = s.line + N;
        s.chunk = s.at + N;
        s.fill = s.chunk + 2 * N;
        s.sorted = s.step + N;
        ddp__starts_line(&s);
        ddp__starts_runs(&s, s.line);
        ddp__starts_runs(&s, NULL);
        ddp__starts_cuts(&s);
    } else {
        p->failed = p->stop = 1;
    }
    DDP_FREE(s.line);
    DDP_FREE(s.step);
    return s.count;
}
/* ==== end plan/place_starts.c ==== */

/* ==== begin plan/place_anneal.c ==== [plan] */

/* Annealing on the flat form: at[stage][pipeline], every hop between equal pipelines. The true
 * cost is a maximum of maxima, flat almost everywhere, so what is cooled is
 *     max_j DP_j + lam sum_j DP_j + sum over hops (max_i w + mu sum_i w)
 * with the best kept by the true cost. lam and mu are powers of two and the acceptance rule is a
 * table of exactly rounded operations, so that no compiler changes the walk.
 *
 * Moves: exchange two devices of different stages (half of them from a slowest edge), or of one
 * pipeline; exchange a run of stages of two pipelines (its tail, if it reaches the end); reverse a
 * run of stages. */

#define DDP__ANNEAL_CHUNK 512 /* moves between two looks at the clock */
#define DDP__ANNEAL_TABLE 4096

typedef struct ddp__anneal {
    ddp__place *p;
    int N, D, S;
    float *dp, *pp;     /* [N x N] as in p */
    float *edge;        /* [N] at position j D + i: pp between stages j and j+1 of pipeline i */
    int *spare;         /* [D] */
    double *load;       /* [N] by position: sum of dp over the other devices of its stage */
    double *fresh;      /* [2 D] loads of the two stages on trial */
    double *data;       /* [S] DP_j */
    double *most, *sum; /* [S] of each hop's edges */
    int *at, *best;     /* [N] the walk; the best of it by true cost */
    int *stage;         /* [N] of each position */
    double top, all;    /* maximum and sum of data */
    double hops;        /* sum of most */
    double lam, mu, heat, best_cost;
    int improved;
    double table[DDP__ANNEAL_TABLE]; /* how much worse a move may be, in units of heat */
    int hop_count, hop_at[4];        /* hops on trial, with what they were */
    double most_was[4], sum_was[4];
    int edge_count, edge_at[4];
    float edge_was[4];
} ddp__anneal;

static int ddp__anneal_below(ddp__anneal *s, int n)
{
    return (int)((ddp_rng_u64(&s->p->rng) >> 32) * (uint64_t)n >> 32);
}

/* Metropolis with 1/(1 + x/16)^16 in place of exp(-x), as a bound on x drawn beforehand. */
static int ddp__anneal_accepts(ddp__anneal *s, double worse)
{
    if (worse <= 0) return 1;
    return worse < s->heat * s->table[ddp_rng_u64(&s->p->rng) >> 52];
}

static void ddp__anneal_table(ddp__anneal *s)
{
    int k;

    for (k = 0; k < DDP__ANNEAL_TABLE; k++) {
        double u = (k + 0.5) / DDP__ANNEAL_TABLE;
        s->table[k] = 16 / sqrt(sqrt(sqrt(sqrt(u)))) - 16;
    }
}

static float ddp__anneal_pair(const ddp__anneal *s, int x, int y)
{
    return s->pp[(size_t)x * (size_t)s->N + (size_t)y];
}

/* Everything that follows from s->at. */
static void ddp__anneal_rebuild(ddp__anneal *s)
{
    int j, a, b;

    s->top = s->all = s->hops = 0;
    for (j = 0; j < s->S; j++) {
        const int *stage = s->at + (size_t)j * (size_t)s->D;
        s->data[j] = s->most[j] = s->sum[j] = 0;
        for (a = 0; a < s->D; a++) {
            const float *row = s->dp + (size_t)stage[a] * (size_t)s->N;
            double sum = 0;
            for (b = 0; b < s->D; b++) sum += (double)row[stage[b]];
            s->load[j * s->D + a] = sum;
            if (sum > s->data[j]) s->data[j] = sum;
            if (j + 1 == s->S) continue;
            s->edge[j * s->D + a] = ddp__anneal_pair(s, stage[a], stage[a + s->D]);
            s->sum[j] += (double)s->edge[j * s->D + a];
            if ((double)s->edge[j * s->D + a] > s->most[j])
                s->most[j] = (double)s->edge[j * s->D + a];
        }
        s->all += s->data[j];
        s->hops += s->most[j];
        if (s->data[j] > s->top) s->top = s->data[j];
    }
}

/* ---- trial of single edges ---- */

/* Edge i of hop j becomes w; what was there is kept for ddp__anneal_undo. */
static void ddp__anneal_edge(ddp__anneal *s, int at, float w)
{
    int j = s->stage[at], k;
    float old = s->edge[at];

    for (k = 0; k < s->edge_count; k++)
        if (s->edge_at[k] == at) return;
    s->edge_at[s->edge_count] = at;
    s->edge_was[s->edge_count++] = old;
    for (k = 0; k < s->hop_count && s->hop_at[k] != j; k++) {
    }
    if (k == s->hop_count) {
        s->hop_at[k] = j;
        s->most_was[k] = s->most[j];
        s->sum_was[k] = s->sum[j];
        s->hop_count++;
    }
    s->edge[at] = w;
    s->sum[j] += (double)w - (double)old;
    if ((double)w >= s->most[j]) {
        s->most[j] = (double)w;
    } else if ((double)old >= s->most[j]) {
        const float *edge = s->edge + (size_t)j * (size_t)s->D;
        float most = edge[0];
        for (k = 1; k < s->D; k++) most = edge[k] > most ? edge[k] : most;
        s->most[j] = (double)most;
    }
}

/* Both edges of the device at a position, from s->at. */
static void ddp__anneal_edges(ddp__anneal *s, int a)
{
    if (a >= s->D) ddp__anneal_edge(s, a - s->D, ddp__anneal_pair(s, s->at[a - s->D], s->at[a]));
    if (a + s->D < s->N) ddp__anneal_edge(s, a, ddp__anneal_pair(s, s->at[a], s->at[a + s->D]));
}

/* How much the hops on trial grew: their maxima, and with the smoothing. */
static double ddp__anneal_growth(const ddp__anneal *s, double *maxima)
{
    double most = 0, sum = 0;
    int k;

    for (k = 0; k < s->hop_count; k++) {
        most += s->most[s->hop_at[k]] - s->most_was[k];
        sum += s->sum[s->hop_at[k]] - s->sum_was[k];
    }
    *maxima = most;
    return most + s->mu * sum;
}

static void ddp__anneal_undo(ddp__anneal *s)
{
    int k;

    for (k = 0; k < s->edge_count; k++) s->edge[s->edge_at[k]] = s->edge_was[k];
    for (k = 0; k < s->hop_count; k++) {
        s->most[s->hop_at[k]] = s->most_was[k];
        s->sum[s->hop_at[k]] = s->sum_was[k];
    }
}

static void ddp__anneal_swap(int *at, int a, int b)
{
    int t = at[a];

    at[a] = at[b];
    at[b] = t;
}

/* ---- moves: each returns whether it was taken ---- */

/* Loads of the stage of position a when its device x gives way to y; the largest of them. */
static double ddp__anneal_load(const ddp__anneal *s, int a, int x, int y, double *fresh)
{
    const float *rx = s->dp + (size_t)x * (size_t)s->N, *ry = s->dp + (size_t)y * (size_t)s->N;
    int first = s->stage[a] * s->D, i;
    const int *stage = s->at + first;
    const double *load = s->load + first;
    double own = 0, most = 0;

    for (i = 0; i < s->D; i++) {
        double in = (double)ry[stage[i]], now = load[i] + (in - (double)rx[stage[i]]);
        fresh[i] = now;
        if (first + i == a) continue;
        own += in;
        if (now > most) most = now;
    }
    fresh[a - first] = own;
    return own > most ? own : most;
}

static double ddp__anneal_top(const ddp__anneal *s, int j, int k, double dj, double dk)
{
    double top = dj > dk ? dj : dk;
    int m;

    if (s->data[j] < s->top && s->data[k] < s->top) return top > s->top ? top : s->top;
    for (m = 0; m < s->S; m++)
        if (m != j && m != k && s->data[m] > top) top = s->data[m];
    return top;
}

static int ddp__anneal_exchange(ddp__anneal *s, int a, int b)
{
    int j = s->stage[a], k = s->stage[b], x = s->at[a], y = s->at[b];
    double dj, dk, top, growth, maxima, change;

    dj = ddp__anneal_load(s, a, x, y, s->fresh);
    dk = ddp__anneal_load(s, b, y, x, s->fresh + s->D);
    top = ddp__anneal_top(s, j, k, dj, dk);
    change = dj - s->data[j] + (dk - s->data[k]);
    s->at[a] = y;
    s->at[b] = x;
    s->edge_count = s->hop_count = 0;
    ddp__anneal_edges(s, a);
    ddp__anneal_edges(s, b);
    growth = ddp__anneal_growth(s, &maxima);
    if (!ddp__anneal_accepts(s, top - s->top + s->lam * change + growth)) {
        ddp__anneal_undo(s);
        ddp__anneal_swap(s->at, a, b);
        return 0;
    }
    memcpy(s->load + (size_t)j * (size_t)s->D, s->fresh, (size_t)s->D * sizeof(double));
    memcpy(s->load + (size_t)k * (size_t)s->D, s->fresh + s->D, (size_t)s->D * sizeof(double));
    s->data[j] = dj;
    s->data[k] = dk;
    s->top = top;
    s->all += change;
    s->hops += maxima;
    return 1;
}

/* Stages j..k of the pipelines i and l change places; no stage gets other devices. */
static int ddp__anneal_cross(ddp__anneal *s, int i, int l, int j, int k)
{
    int D = s->D, first = j * D, last = k * D, m;
    double growth, maxima;

    s->edge_count = s->hop_count = 0;
    if (j > 0) {
        const int *at = s->at + first - D;
        ddp__anneal_edge(s, first - D + i, ddp__anneal_pair(s, at[i], at[D + l]));
        ddp__anneal_edge(s, first - D + l, ddp__anneal_pair(s, at[l], at[D + i]));
    }
    if (k + 1 < s->S) {
        const int *at = s->at + last;
        ddp__anneal_edge(s, last + i, ddp__anneal_pair(s, at[l], at[D + i]));
        ddp__anneal_edge(s, last + l, ddp__anneal_pair(s, at[i], at[D + l]));
    }
    growth = ddp__anneal_growth(s, &maxima);
    if (!ddp__anneal_accepts(s, growth)) {
        ddp__anneal_undo(s);
        return 0;
    }
    for (m = first; m <= last; m += D) {
        double load = s->load[m + i];
        ddp__anneal_swap(s->at, m + i, m + l);
        s->load[m + i] = s->load[m + l];
        s->load[m + l] = load;
        if (m < last) {
            float t = s->edge[m + i];
            s->edge[m + i] = s->edge[m + l];
            s->edge[m + l] = t;
        }
    }
    s->hops += maxima;
    return 1;
}

/* The maximum and sum of the hop between row j and row k, if they were neighbours. */
static double ddp__anneal_between(const ddp__anneal *s, int j, int k, double *sum)
{
    const int *here = s->at + (size_t)j * (size_t)s->D, *there = s->at + (size_t)k * (size_t)s->D;
    double most = 0, w;
    int i;

    for (i = 0; i < s->D; i++) {
        w = (double)ddp__anneal_pair(s, here[i], there[i]);
        *sum += w;
        if (w > most) most = w;
    }
    return most;
}

static void ddp__anneal_turn(int *at, int *spare, int D, int j, int k)
{
    size_t bytes = (size_t)D * sizeof(int);

    for (; j < k; j++, k--) {
        memcpy(spare, at + (size_t)j * (size_t)D, bytes);
        memcpy(at + (size_t)j * (size_t)D, at + (size_t)k * (size_t)D, bytes);
        memcpy(at + (size_t)k * (size_t)D, spare, bytes);
    }
}

static int ddp__anneal_reverse(ddp__anneal *s, int j, int k)
{
    double most = 0, sum = 0;

    if (j > 0) {
        most += ddp__anneal_between(s, j - 1, k, &sum) - s->most[j - 1];
        sum -= s->sum[j - 1];
    }
    if (k + 1 < s->S) {
        most += ddp__anneal_between(s, j, k + 1, &sum) - s->most[k];
        sum -= s->sum[k];
    }
    if (!ddp__anneal_accepts(s, most + s->mu * sum)) return 0;
    ddp__anneal_turn(s->at, s->spare, s->D, j, k);
    ddp__anneal_rebuild(s);
    return 1;
}

/* An end of the slowest edge of a random hop. */
static int ddp__anneal_slowest(ddp__anneal *s)
{
    int j = ddp__anneal_below(s, s->S - 1), i;
    const float *edge = s->edge + (size_t)j * (size_t)s->D;

    for (i = 0; i + 1 < s->D && (double)edge[i] < s->most[j]; i++) {
    }
    return (j + ddp__anneal_below(s, 2)) * s->D + i;
}

static int ddp__anneal_move(ddp__anneal *s)
{
    int kind = (int)(ddp_rng_u64(&s->p->rng) >> 58), a, b, j, k; /* 0..63 */

    if (kind < 36 && s->S > 1 && s->D > 1) {
        a = kind < 18 ? ddp__anneal_slowest(s) : ddp__anneal_below(s, s->N);
        b = ddp__anneal_below(s, s->N - s->D);
        if (b >= s->stage[a] * s->D) b += s->D;
        return ddp__anneal_exchange(s, a, b);
    }
    if (s->S < 2) return 0;
    j = ddp__anneal_below(s, s->S);
    k = ddp__anneal_below(s, s->S - 1);
    if (kind < 42 || s->D == 1) {
        if (k >= j) k++;
        a = ddp__anneal_below(s, s->D);
        if (s->D == 1 && kind >= 32) return ddp__anneal_reverse(s, j < k ? j : k, j < k ? k : j);
        return ddp__anneal_exchange(s, j * s->D + a, k * s->D + a);
    }
    if (kind < 60) {
        if (k >= j) k++;
        if (kind < 50)
            k = j;
        else if (kind < 56)
            k = s->S - 1;
        a = ddp__anneal_below(s, s->D);
        b = ddp__anneal_below(s, s->D - 1);
        if (b >= a) b++;
        return ddp__anneal_cross(s, a, b, j < k ? j : k, j < k ? k : j);
    }
    if (k >= j) k++;
    return ddp__anneal_reverse(s, j < k ? j : k, j < k ? k : j);
}

/* ---- a run ---- */

/* Cools from heat `hot` to `cold` within `moves` moves and `seconds`, whichever is spent first,
 * starting from s->at; the best of it ends in s->best and is offered. */
static void ddp__anneal_run(ddp__anneal *s, double hot, double cold, long moves, double seconds)
{
    static const double ratio = 0x1.ea4afa2a490dap-1; /* 2^(-1/16) */
    ddp__place *p = s->p;
    double begin = ddp__place_clock(p), now = begin, spent;
    long done = 0, k, chunk;
    int levels = 0, level = 0;
    double h;

    for (h = hot; h > cold; h *= ratio) levels++;
    s->heat = hot;
    ddp__anneal_rebuild(s);
    s->best_cost = s->top + s->hops;
    s->improved = 1;
    memcpy(s->best, s->at, (size_t)s->N * sizeof(int));
    while (done < moves && !p->stop && p->candidates < p->limit) {
        chunk = moves - done < DDP__ANNEAL_CHUNK ? moves - done : DDP__ANNEAL_CHUNK;
        if (chunk > p->limit - p->candidates) chunk = p->limit - p->candidates;
        for (k = 0; k < chunk; k++) {
            if (!ddp__anneal_move(s) || !(s->top + s->hops < s->best_cost)) continue;
            s->best_cost = s->top + s->hops;
            s->improved = 1;
            memcpy(s->best, s->at, (size_t)s->N * sizeof(int));
        }
        done += chunk;
        p->candidates += chunk;
        if (s->improved && s->best_cost < p->cost * (1 + 1e-6))
            ddp__place_offer(p, s->best, ddp__place_flat(p, s->best, NULL, NULL));
        s->improved = 0;
        spent = (double)done / (double)moves;
        if (p->limit_s < INFINITY || p->o->progress) {
            now = ddp__place_clock(p);
            if (seconds < INFINITY && (now - begin) / seconds > spent)
                spent = (now - begin) / seconds;
        }
        for (; level < (int)(spent * levels); level++) s->heat *= ratio;
        if (spent >= 1) break;
    }
}

static int ddp__anneal_open(ddp__anneal *s, ddp__place *p)
{
    size_t N = (size_t)p->N, D = (size_t)p->D, S = (size_t)p->S, k;

    memset(s, 0, sizeof *s);
    s->p = p;
    s->N = p->N;
    s->D = p->D;
    s->S = p->S;
    s->dp = (float *)ddp__calloc(2 * N * N + N, sizeof(float));
    s->load = (double *)ddp__calloc(N + 2 * D + 3 * S, sizeof(double));
    s->at = (int *)ddp__calloc(3 * N + D, sizeof(int));
    if (!s->dp || !s->load || !s->at) return 0;
    s->pp = s->dp + N * N;
    s->edge = s->pp + N * N;
    s->fresh = s->load + N;
    s->data = s->fresh + 2 * D;
    s->most = s->data + S;
    s->sum = s->most + S;
    s->best = s->at + N;
    s->stage = s->best + N;
    s->spare = s->stage + N;
    for (k = 0; k < N * N; k++) {
        s->dp[k] = (float)p->dp[k];
        s->pp[k] = (float)p->pp[k];
    }
    for (k = 0; k < N; k++) s->stage[k] = (int)(k / D);
    ddp__anneal_table(s);
    return 1;
}

static void ddp__anneal_close(ddp__anneal *s)
{
    DDP_FREE(s->dp);
    DDP_FREE(s->load);
    DDP_FREE(s->at);
}

/* ---- the whole search ---- */

/* Beyond LARGE devices no budget is long enough to leave a structure: the best start is refined,
 * at a heat that suits the smaller share of one device in the cost. */
#define DDP__ANNEAL_STARTS 4
#define DDP__ANNEAL_LARGE  256

/* One run within a share of the limits; heats are fractions of the best cost so far. What it found
 * is then exactly matched and ordered again. */
static void ddp__anneal_phase(ddp__anneal *s, double mu, double hot, double cold, double share)
{
    ddp__place *p = s->p;
    double moves = p->limit < LONG_MAX ? share * (double)p->limit : 1e15;
    double scale = s->N > DDP__ANNEAL_LARGE ? 64.0 * 64 / s->N / s->N : 1, cost;

    if (p->stop || p->candidates >= p->limit) return;
    s->lam = 0x1p-4;
    s->mu = s->N > DDP__ANNEAL_LARGE ? mu / 4 : mu;
    hot *= scale * p->cost;
    cold *= scale * p->cost;
    ddp__anneal_run(s, hot, cold, (long)moves + 1, share * p->limit_s);
    cost = ddp__place_evaluate(p, s->best);
    ddp__place_offer(p, p->line, cost);
}

/* Short runs from each start show which structure of the network carries (from cold random starts
 * a run mostly freezes in a worse one); then two long, milder ones refine the best of all. */
void ddp__place_anneal(ddp__place *p)
{
    size_t N = (size_t)p->N;
    double cost[DDP__ANNEAL_STARTS];
    int *kept, k, n;
    ddp__anneal s;

    memset(&s, 0, sizeof s);
    kept = (int *)ddp__calloc(DDP__ANNEAL_STARTS * N, sizeof(int));
    if (kept && ddp__anneal_open(&s, p)) {
        n = ddp__place_starts(p, DDP__ANNEAL_STARTS, kept, cost);
        for (k = 0; k < n && p->N <= DDP__ANNEAL_LARGE; k++) {
            memcpy(s.at, kept + (size_t)k * N, N * sizeof(int));
            ddp__anneal_phase(&s, 0x1p-2, 0.01, 2e-4, 0.04);
        }
        if (p->N <= DDP__ANNEAL_LARGE) {
            ddp__place_shuffle(p, s.at);
            ddp__anneal_phase(&s, 0x1p-2, 0.05, 2e-4, 0.08);
        }
        for (k = 0; k < 2; k++) {
            memcpy(s.at, p->best, N * sizeof(int));
            ddp__anneal_phase(&s, 0x1p-3, 0.004, 5e-4, p->N <= DDP__ANNEAL_LARGE ? 0.38 : 0.5);
        }
    } else {
        p->failed = 1;
    }
    ddp__anneal_close(&s);
    DDP_FREE(kept);
}
/* ==== end plan/place_anneal.c ==== */

/* ==== begin plan/place_exact.c ==== [plan] */

/* Proven placements: every partition where there are few, else branch and bound over the make-up
 * of stages in path order.
 *
 * Devices with equal rows (towards all others) form a class; only how many of each class a stage
 * has matters. A node fixes the first k stages. Its bound is the largest DP so far, or the least
 * DP that any device left over can have, plus the hops so far, plus the least hop that the last
 * stage can have towards what is left, plus the least hop of any device for the rest. Partial
 * stages are bounded too: loads only grow while devices are added. */

/* ---- every partition ---- */

typedef struct ddp__place_all {
    ddp__place *p;
    int *at;    /* [N] members so far, at[j * D ..] */
    int *count; /* [S] */
} ddp__place_all;

/* Device v joins each stage with room, and of the empty ones the first. */
static int ddp__place_all_from(ddp__place_all *a, int v)
{
    ddp__place *p = a->p;
    int j;

    if (v == p->N) {
        if (!ddp__place_next(p)) return 0;
        ddp__place_offer(p, p->line, ddp__place_evaluate(p, a->at));
        return 1;
    }
    for (j = 0; j < p->S; j++) {
        if (a->count[j] == p->D) continue;
        a->at[(size_t)j * (size_t)p->D + (size_t)a->count[j]++] = v;
        if (!ddp__place_all_from(a, v + 1)) return 0;
        if (--a->count[j] == 0) break;
    }
    return 1;
}

int ddp__place_enumerate(ddp__place *p)
{
    ddp__place_all a;
    double count = 1;
    int k;

    /* N! / (D!^S S!) as a product over the devices after the first of each stage */
    for (k = 0; k < p->N && count <= 20000; k++)
        if (k % p->D) count = count * (p->N - k) / (p->D - k % p->D);
    if (count > 20000 || p->S > DDP_TOUR_EXACT) return 0;
    a.p = p;
    a.at = (int *)ddp__calloc((size_t)p->N + (size_t)p->S, sizeof(int));
    if (!a.at) {
        p->failed = p->stop = 1;
        return 1;
    }
    a.count = a.at + p->N;
    if (p->S == 1) {
        for (k = 0; k < p->N; k++) a.at[k] = k;
        p->candidates++;
        ddp__place_offer(p, p->line, ddp__place_evaluate(p, a.at));
        p->proven = 1;
    } else {
        p->proven = ddp__place_all_from(&a, 0);
    }
    DDP_FREE(a.at);
    return 1;
}

/* ---- branch and bound ---- */

typedef struct ddp__place_tree {
    ddp__place *p;
    int classes;
    int *member;     /* [N] devices by class */
    int *first;      /* [classes + 1] where each class begins in member */
    double *dp, *pp; /* [classes x classes] between two devices of these classes */
    double *near;    /* [classes] least hop of a device */
    double *least;   /* [classes] least DP of a device */
    int *left;       /* [classes] not yet in a stage */
    int *mix;        /* [S x classes] make-up of the stages so far */
    int *mate;       /* [D] */
    int *a, *b;      /* [D] classes of the members of two stages */
    int *at;         /* [N] */
    double *load;    /* [S x classes] of one device, from the members so far */
    double low;      /* least hop of all */
    long looks;
} ddp__place_tree;

static int ddp__place_same(const ddp__place *p, int i, int k)
{
    size_t N = (size_t)p->N, a = (size_t)i, b = (size_t)k, m;

    for (m = 0; m < N; m++)
        if (m != a && m != b &&
            (p->dp[a * N + m] != p->dp[b * N + m] || p->pp[a * N + m] != p->pp[b * N + m]))
            return 0;
    return 1;
}

/* Between two devices of classes c and d; 0 for a class of one with itself. */
static double ddp__place_between(const ddp__place_tree *t, const double *w, int c, int d)
{
    int i = t->member[t->first[c]], k = t->member[t->first[d] + (c == d)];

    if (c == d && t->first[c + 1] - t->first[c] < 2) return 0;
    return w[(size_t)i * (size_t)t->p->N + (size_t)k];
}

static void ddp__place_classes(ddp__place_tree *t)
{
    ddp__place *p = t->p;
    int *of = t->at, v, c, n = 0;

    for (v = 0; v < p->N; v++) {
        for (c = 0; c < t->classes && !ddp__place_same(p, t->mix[c], v); c++) {
        }
        if (c == t->classes) t->mix[t->classes++] = v; /* the first device of each class */
        of[v] = c;
    }
    for (c = 0; c < t->classes; c++) {
        t->first[c] = n;
        for (v = 0; v < p->N; v++)
            if (of[v] == c) t->member[n++] = v;
    }
    t->first[c] = n;
}

/* Pair terms between classes, and the least hop and DP of each. */
static void ddp__place_tables(ddp__place_tree *t)
{
    int C = t->classes, c, d, k;

    t->low = INFINITY;
    for (c = 0; c < C; c++) {
        t->near[c] = INFINITY;
        for (d = 0; d < C; d++) {
            size_t at = (size_t)c * (size_t)C + (size_t)d;
            t->dp[at] = ddp__place_between(t, t->p->dp, c, d);
            t->pp[at] = ddp__place_between(t, t->p->pp, c, d);
            if ((c != d || t->first[c + 1] - t->first[c] > 1) && t->pp[at] < t->near[c])
                t->near[c] = t->pp[at];
        }
        if (t->near[c] < t->low) t->low = t->near[c];
    }
    for (c = 0; c < C; c++) { /* the D - 1 nearest companions, found by repeated selection */
        int need = t->p->D - 1;
        memset(t->left, 0, (size_t)C * sizeof(int));
        while (need > 0) {
            int best = -1, room;
            for (d = 0; d < C; d++)
                if (!t->left[d] && t->first[d + 1] - t->first[d] > (c == d) &&
                    (best < 0 || t->dp[c * C + d] < t->dp[c * C + best]))
                    best = d;
            if (best < 0) break;
            t->left[best] = 1;
            room = t->first[best + 1] - t->first[best] - (c == best);
            if (room > need) room = need;
            for (k = 0; k < room; k++) t->least[c] += t->dp[c * C + best];
            need -= room;
        }
    }
    for (c = 0; c < C; c++) t->left[c] = t->first[c + 1] - t->first[c];
}

/* The exact hop between two make-ups. */
static double ddp__place_tree_hop(ddp__place_tree *t, const int *x, const int *y)
{
    int D = t->p->D, C = t->classes, c, k, n = 0, m = 0;

    for (c = 0; c < C; c++) {
        for (k = 0; k < x[c]; k++) t->a[n++] = c;
        for (k = 0; k < y[c]; k++) t->b[m++] = c;
    }
    for (n = 0; n < D; n++)
        for (m = 0; m < D; m++) t->p->weight[n * D + m] = t->pp[t->a[n] * C + t->b[m]];
    return ddp__matching_solve(&t->p->matching, t->p->weight, t->mate);
}

/* Least hop from make-up x towards what is left; with nothing left none is needed. */
static double ddp__place_tree_reach(const ddp__place_tree *t, const int *x)
{
    int C = t->classes, c, d;
    double most = 0, least;

    for (c = 0; c < C; c++) {
        if (!x[c]) continue;
        least = INFINITY;
        for (d = 0; d < C; d++)
            if (t->left[d] && t->pp[c * C + d] < least) least = t->pp[c * C + d];
        if (least < INFINITY && least > most) most = least;
    }
    return most;
}

static int ddp__place_tree_worse(const ddp__place_tree *t, double bound)
{
    return bound >= t->p->cost * (1 - 1e-9);
}

static int ddp__place_tree_node(ddp__place_tree *t, int k, double top, double hops);

/* A whole stage k has been chosen: 0 = stop. */
static int ddp__place_tree_stage(ddp__place_tree *t, int k, double top, double hops)
{
    ddp__place *p = t->p;
    int C = t->classes, c;
    const int *x = t->mix + (size_t)k * (size_t)C;
    const double *load = t->load + (size_t)k * (size_t)C;

    if (!ddp__place_next(p)) return 0;
    for (c = 0; c < C; c++) {
        double now = load[c] - t->dp[c * C + c];
        if (x[c] && now > top) top = now;
    }
    if (k) hops += ddp__place_tree_hop(t, x - C, x);
    if (k + 1 < p->S) {
        double reach = ddp__place_tree_reach(t, x);
        if (ddp__place_tree_worse(t, top + hops + reach + (p->S - k - 2) * t->low)) return 1;
    } else if (ddp__place_tree_worse(t, top + hops)) {
        return 1;
    }
    return ddp__place_tree_node(t, k + 1, top, hops);
}

/* Chooses how many devices of class c and later ones stage k gets, `need` in all. */
static int ddp__place_tree_fill(ddp__place_tree *t, int k, int c, int need, double top, double hops)
{
    int C = t->classes, *x = t->mix + (size_t)k * (size_t)C, d, m, most;
    double *load = t->load + (size_t)k * (size_t)C, rest;

    if (need == 0) return ddp__place_tree_stage(t, k, top, hops);
    if (++t->looks % 1024 == 0 && (ddp__place_clock(t->p), t->p->stop)) return 0;
    for (d = c, m = 0; d < C; d++) m += t->left[d];
    if (m < need) return 1;
    most = t->left[c] < need ? t->left[c] : need;
    for (m = most; m >= 0; m--) {
        double worst = top;
        int go = 1;
        x[c] = m;
        t->left[c] -= m;
        for (d = 0; d < C; d++) load[d] += m * t->dp[d * C + c];
        for (d = 0; d <= c; d++)
            if (x[d] && load[d] - t->dp[d * C + d] > worst) worst = load[d] - t->dp[d * C + d];
        rest = (t->p->S - 1 - k + (k > 0)) * t->low;
        if (!ddp__place_tree_worse(t, worst + hops + rest))
            go = ddp__place_tree_fill(t, k, c + 1, need - m, top, hops);
        for (d = 0; d < C; d++) load[d] -= m * t->dp[d * C + c];
        t->left[c] += m;
        x[c] = 0;
        if (!go) return 0;
    }
    return 1;
}

/* All stages are made up: devices of a class in order, exactly evaluated. */
static void ddp__place_tree_leaf(ddp__place_tree *t)
{
    ddp__place *p = t->p;
    int C = t->classes, j, c, m, n = 0;

    memset(t->left, 0, (size_t)C * sizeof(int));
    for (j = 0; j < p->S; j++)
        for (c = 0; c < C; c++)
            for (m = 0; m < t->mix[j * C + c]; m++)
                t->at[n++] = t->member[t->first[c] + t->left[c]++];
    memset(t->left, 0, (size_t)C * sizeof(int));
    ddp__place_offer(p, p->line, ddp__place_evaluate(p, t->at));
}

static int ddp__place_tree_node(ddp__place_tree *t, int k, double top, double hops)
{
    int C = t->classes, c;

    if (k == t->p->S) {
        ddp__place_tree_leaf(t);
        return 1;
    }
    for (c = 0; c < C; c++)
        if (t->left[c] && t->least[c] > top) top = t->least[c];
    if (ddp__place_tree_worse(t, top + hops + (t->p->S - 1 - k + (k > 0)) * t->low)) return 1;
    memset(t->load + (size_t)k * (size_t)C, 0, (size_t)C * sizeof(double));
    return ddp__place_tree_fill(t, k, 0, t->p->D, top, hops);
}

static int ddp__place_tree_open(ddp__place_tree *t, ddp__place *p)
{
    size_t N = (size_t)p->N, D = (size_t)p->D, S = (size_t)p->S, C;

    memset(t, 0, sizeof *t);
    t->p = p;
    t->member = (int *)ddp__calloc(4 * N + 1 + 3 * D, sizeof(int));
    t->mix = (int *)ddp__calloc(N, sizeof(int));
    if (!t->member || !t->mix) return 0;
    t->at = t->member + N;
    t->left = t->at + N;
    t->first = t->left + N;
    t->mate = t->first + N + 1;
    t->a = t->mate + D;
    t->b = t->a + D;
    ddp__place_classes(t);
    C = (size_t)t->classes;
    DDP_FREE(t->mix);
    t->mix = (int *)ddp__calloc(S * C, sizeof(int));
    t->dp = (double *)ddp__calloc(2 * C * C + 2 * C + S * C, sizeof(double));
    if (!t->mix || !t->dp) return 0;
    t->pp = t->dp + C * C;
    t->near = t->pp + C * C;
    t->least = t->near + C;
    t->load = t->least + C;
    ddp__place_tables(t);
    return 1;
}

void ddp__place_exact(ddp__place *p)
{
    ddp__place_tree t;
    long limit = p->limit;
    double limit_s = p->limit_s;

    /* a good placement first: 400,000 moves, at most a quarter of the limits */
    p->limit = limit < 1600000 ? (limit + 3) / 4 : 400000;
    p->limit_s = limit_s / 4;
    ddp__place_anneal(p);
    p->limit = limit;
    p->limit_s = limit_s;
    if (p->failed) return;
    if (p->stop && ddp__place_clock(p) < limit_s / 4) return; /* the caller has stopped it */
    p->stop = 0;
    if (ddp__place_tree_open(&t, p))
        p->proven = ddp__place_tree_node(&t, 0, 0, 0);
    else
        p->failed = 1;
    DDP_FREE(t.member);
    DDP_FREE(t.mix);
    DDP_FREE(t.dp);
}
/* ==== end plan/place_exact.c ==== */

/* ==== begin plan/place.c ==== [plan] */

static const char *const ddp__place_names[] = {"anneal", "anneal", "genetic", "genetic-code",
                                               "kl",     "random", "exact"};
enum { DDP__PLACE_NAMES = sizeof ddp__place_names / sizeof ddp__place_names[0] };

const char *ddp_place_solver_name(ddp_place_solver solver)
{
    return (int)solver >= 0 && (int)solver < DDP__PLACE_NAMES ? ddp__place_names[solver]
                                                              : "unknown";
}

ddp_status ddp_place_solver_named(const char *name, ddp_place_solver *out, ddp_error *err)
{
    int k;

    for (k = 1; name && k < DDP__PLACE_NAMES; k++)
        if (!strcmp(name, ddp__place_names[k])) {
            *out = (ddp_place_solver)k;
            return DDP_OK;
        }
    return ddp__fail(err, DDP_ARG,
                     "solver '%.60s' is unknown; use anneal, genetic, genetic-code, "
                     "kl, random or exact",
                     name ? name : "NULL");
}

/* ---- evaluation ---- */

double ddp__place_datap(const ddp__place *p, const int *at)
{
    double most = 0;
    int j, a, b;

    for (j = 0; j < p->S; j++)
        for (a = 0; a < p->D; a++) {
            const int *stage = at + (size_t)j * (size_t)p->D;
            const double *row = p->dp + (size_t)stage[a] * (size_t)p->N;
            double sum = 0;
            for (b = 0; b < p->D; b++) sum += row[stage[b]];
            if (sum > most) most = sum;
        }
    return most;
}

double ddp__place_flat(const ddp__place *p, const int *at, double *datap, double *hops)
{
    double data = ddp__place_datap(p, at), sum = 0;
    int j, i;

    for (j = 0; j + 1 < p->S; j++) {
        const int *here = at + (size_t)j * (size_t)p->D, *there = here + p->D;
        double most = 0;
        for (i = 0; i < p->D; i++) {
            double w = p->pp[(size_t)here[i] * (size_t)p->N + (size_t)there[i]];
            if (w > most) most = w;
        }
        sum += most;
    }
    if (datap) *datap = data;
    if (hops) *hops = sum;
    return data + sum;
}

/* Matches every pair of stages: hop values into p->hop, partners into p->mate. */
static void ddp__place_match_all(ddp__place *p, const int *at)
{
    size_t N = (size_t)p->N, D = (size_t)p->D, S = (size_t)p->S, j, k, a, b;

    for (j = 0; j < S; j++)
        for (k = j + 1; k < S; k++) {
            int *there = p->mate + (j * S + k) * D, *back = p->mate + (k * S + j) * D;
            for (a = 0; a < D; a++)
                for (b = 0; b < D; b++)
                    p->weight[a * D + b] = p->pp[(size_t)at[j * D + a] * N + (size_t)at[k * D + b]];
            p->hop[j * S + k] = ddp__matching_solve(&p->matching, p->weight, there);
            p->hop[k * S + j] = p->hop[j * S + k];
            for (a = 0; a < D; a++) back[there[a]] = (int)a;
        }
}

double ddp__place_evaluate(ddp__place *p, const int *at)
{
    size_t D = (size_t)p->D, S = (size_t)p->S, k, i;
    double length = 0;

    ddp__place_match_all(p, at);
    if (p->S <= DDP_TOUR_EXACT) {
        length = ddp__tour_exact(p->S, p->hop, -1, -1, p->tour, p->order);
    } else if (!ddp__tour_local(p->S, p->hop, -1, -1, p->order, &length)) {
        p->failed = p->stop = 1;
        return INFINITY;
    }
    for (i = 0; i < D; i++) {
        size_t member = i;
        for (k = 0; k < S; k++) {
            size_t stage = (size_t)p->order[k];
            if (k) member = (size_t)p->mate[((size_t)p->order[k - 1] * S + stage) * D + member];
            p->line[k * D + i] = at[stage * D + member];
        }
    }
    return ddp__place_flat(p, p->line, NULL, NULL);
}

/* ---- limits and the best so far ---- */

double ddp__place_clock(ddp__place *p)
{
    double now = ddp_now() - p->start;

    if (now >= p->limit_s) p->stop = 1;
    if (p->o->progress && now - p->told >= 0.1 && p->cost < INFINITY) {
        p->told = now;
        if (p->o->progress(p->o->user, now, p->cost)) p->stop = 1;
    }
    return now;
}

int ddp__place_next(ddp__place *p)
{
    if (p->stop || p->candidates >= p->limit) return 0;
    if (p->limit_s < INFINITY || p->o->progress) ddp__place_clock(p);
    if (p->stop && p->cost < INFINITY) return 0;
    p->candidates++;
    return 1;
}

void ddp__place_offer(ddp__place *p, const int *at, double cost)
{
    double now;

    if (!(cost < p->cost)) return;
    now = ddp_now() - p->start;
    memcpy(p->best, at, (size_t)p->N * sizeof(int));
    p->cost = cost;
    if (p->points == p->room) {
        int room = p->room ? 2 * p->room : 64;
        double *more = (double *)DDP_REALLOC(p->curve, 2 * (size_t)room * sizeof(double));
        if (!more) {
            p->failed = p->stop = 1;
            return;
        }
        p->curve = more;
        p->room = room;
    }
    p->curve[2 * p->points] = now;
    p->curve[2 * p->points + 1] = cost;
    p->points++;
    if (!p->o->progress) return;
    p->told = now;
    if (p->o->progress(p->o->user, now, cost)) p->stop = 1;
}

void ddp__place_shuffle(ddp__place *p, int *at)
{
    int k, m, swap;

    for (k = 0; k < p->N; k++) at[k] = k;
    for (k = p->N - 1; k > 0; k--) {
        m = (int)ddp_rng_below(&p->rng, (uint64_t)k + 1);
        swap = at[k];
        at[k] = at[m];
        at[m] = swap;
    }
}

void ddp__place_random(ddp__place *p)
{
    do {
        ddp__place_shuffle(p, p->line);
        ddp__place_offer(p, p->line, ddp__place_flat(p, p->line, NULL, NULL));
    } while (ddp__place_next(p));
}

/* ---- opening and closing a search ---- */

static void ddp__place_close(ddp__place *p)
{
    DDP_FREE(p->dp);
    DDP_FREE(p->best);
    DDP_FREE(p->curve);
    DDP_FREE(p->weight);
    DDP_FREE(p->hop);
    DDP_FREE(p->mate);
    DDP_FREE(p->tour);
    DDP_FREE(p->order);
    ddp__matching_close(&p->matching);
    memset(p, 0, sizeof *p);
}

/* Pair terms, averaged over directions; the sums of a whole placement must stay finite. */
static ddp_status ddp__place_pairs(ddp__place *p, const ddp_network *net, ddp_error *err)
{
    size_t N = (size_t)p->N, i, j;

    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) {
            double a, b, data, pipe;
            if (i == j) continue;
            a = net->delay_s[i * N + j] / 2 + net->delay_s[j * N + i] / 2;
            b = net->rate[i * N + j] / 2 + net->rate[j * N + i] / 2;
            data = net->dp_bytes / p->D / b;
            pipe = net->pp_bytes / b;
            p->dp[i * N + j] = 2 * (a + data);
            p->pp[i * N + j] = 2 * (a + pipe);
            p->kl[i * N + j] = pipe - net->dp_bytes / b;
            if (!((p->dp[i * N + j] + p->pp[i * N + j] + net->dp_bytes / b) * p->N <= DBL_MAX))
                return ddp__fail(err, DDP_NUMERIC,
                                 "sending from device %zu to device %zu takes "
                                 "more than a double holds; rates are bytes per second",
                                 i, j);
        }
    return DDP_OK;
}

static ddp_status ddp__place_shape(const ddp_network *net, int *pipelines, int *stages,
                                   ddp_error *err)
{
    DDP__TRY(ddp_network_check(net, err));
    if (*pipelines < 0 || *stages < 0)
        return ddp__fail(err, DDP_ARG,
                         "%d pipelines of %d stages are impossible; both are at "
                         "least 1, or 0 for what the network says",
                         *pipelines, *stages);
    if (!*pipelines && !*stages) *pipelines = net->pipelines, *stages = net->stages;
    if (!*stages && *pipelines) *stages = net->devices / *pipelines;
    if (!*pipelines && *stages) *pipelines = net->devices / *stages;
    if (!*pipelines || !*stages || (double)*pipelines * *stages != (double)net->devices)
        return ddp__fail(err, DDP_ARG,
                         "%d devices are not D_dp x D_pp = %d x %d; pipelines times "
                         "stages must use every device",
                         net->devices, *pipelines, *stages);
    return DDP_OK;
}

static ddp_status ddp__place_open(ddp__place *p, const ddp_network *net, int D, int S,
                                  ddp_error *err)
{
    size_t n = (size_t)net->devices, d = (size_t)D, s = (size_t)S;
    int ok;

    memset(p, 0, sizeof *p);
    p->N = net->devices;
    p->D = D;
    p->S = S;
    p->cost = INFINITY;
    p->dp = (double *)ddp__calloc(3 * n * n, sizeof(double));
    p->best = (int *)ddp__calloc(2 * n, sizeof(int));
    p->weight = (double *)ddp__calloc(d * d, sizeof(double));
    p->hop = (double *)ddp__calloc(s * s, sizeof(double));
    p->mate = (int *)ddp__calloc(s * s * d, sizeof(int));
    p->order = (int *)ddp__calloc(s, sizeof(int));
    p->tour = (double *)ddp__calloc(S <= DDP_TOUR_EXACT ? s << s : 1, sizeof(double));
    ok = ddp__matching_open(&p->matching, D);
    if (!ok || !p->dp || !p->best || !p->weight || !p->hop || !p->mate || !p->order || !p->tour) {
        ddp__place_close(p);
        return ddp__fail(err, DDP_MEMORY, "no memory to place %d devices", net->devices);
    }
    p->line = p->best + n;
    p->pp = p->dp + n * n;
    p->kl = p->pp + n * n;
    return ddp__place_pairs(p, net, err);
}

static void ddp__place_solve(ddp__place *p)
{
    int ours = p->o->solver == DDP_PLACE_EXACT || p->o->solver == DDP_PLACE_ANNEAL ||
               p->o->solver == DDP_PLACE_DEFAULT;

    if (ours && ddp__place_enumerate(p)) return;
    switch (p->o->solver) {
    case DDP_PLACE_GENETIC:
        ddp__place_genetic(p);
        break;
    case DDP_PLACE_GENETIC_CODE:
        ddp__place_cyclic(p, 0);
        break;
    case DDP_PLACE_KL:
        ddp__place_cyclic(p, 1);
        break;
    case DDP_PLACE_RANDOM:
        ddp__place_random(p);
        break;
    case DDP_PLACE_EXACT:
        ddp__place_exact(p);
        break;
    default:
        ddp__place_anneal(p);
        break;
    }
}

static void ddp__place_limits(ddp__place *p)
{
    const ddp_place_options *o = p->o;
    int exact = o->solver == DDP_PLACE_EXACT;
    int anneal = o->solver == DDP_PLACE_ANNEAL || o->solver == DDP_PLACE_DEFAULT;

    p->limit = o->max_candidates > 0 ? o->max_candidates : LONG_MAX;
    p->limit_s = o->time_limit_s > 0 ? o->time_limit_s : INFINITY;
    if (p->limit == LONG_MAX && p->limit_s == INFINITY) {
        if (exact)
            p->limit_s = 60;
        else
            p->limit = anneal ? 4000000 : 5000;
    }
    p->rng = ddp_rng_seed(o->seed, 0);
    p->start = ddp_now();
}

ddp_status ddp_place(const ddp_network *net, const ddp_place_options *o, ddp_placement *out,
                     ddp_error *err)
{
    ddp__place p;
    ddp_placement r;
    ddp_status status;
    int i, j;

    memset(&r, 0, sizeof r);
    if (!o || !out) return ddp__fail(err, DDP_ARG, "ddp_place: options and out must not be NULL");
    if ((int)o->solver < 0 || (int)o->solver >= DDP__PLACE_NAMES)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use one of ddp_place_solver",
                         (int)o->solver);
    if (!(o->time_limit_s >= 0) || o->max_candidates < 0)
        return ddp__fail(err, DDP_ARG,
                         "the limits are %g s and %ld candidates; both must be at "
                         "least 0, 0 = none",
                         o->time_limit_s, o->max_candidates);
    r.pipelines = o->pipelines;
    r.stages = o->stages;
    DDP__TRY(ddp__place_shape(net, &r.pipelines, &r.stages, err));
    status = ddp__place_open(&p, net, r.pipelines, r.stages, err);
    if (status == DDP_OK) {
        p.o = o;
        ddp__place_limits(&p);
        ddp__place_solve(&p);
        r.assign = (int *)ddp__calloc((size_t)p.N, sizeof(int));
        if (p.failed || !r.assign)
            status = ddp__fail(err, DDP_MEMORY, "no memory to place %d devices", p.N);
    }
    if (status == DDP_OK) {
        for (i = 0; i < p.D; i++)
            for (j = 0; j < p.S; j++)
                r.assign[(size_t)i * (size_t)p.S + (size_t)j] =
                    p.best[(size_t)j * (size_t)p.D + (size_t)i];
        r.cost_s = ddp__place_flat(&p, p.best, &r.datap_s, &r.pipelinep_s);
        r.proven = p.proven;
        r.solve_s = ddp_now() - p.start;
        r.candidates = p.candidates;
        r.points = p.points;
        r.curve = p.curve;
        p.curve = NULL;
        *out = r;
    } else {
        DDP_FREE(r.assign);
    }
    ddp__place_close(&p);
    return status;
}

ddp_status ddp_place_cost(const ddp_network *net, int pipelines, int stages, const int *assign,
                          double *cost_s, double *datap_s, double *pipelinep_s, ddp_error *err)
{
    double cost, datap = 0, hops = 0;
    ddp__place p;
    ddp_status status;
    int i, j;

    if (!assign || !cost_s)
        return ddp__fail(err, DDP_ARG, "ddp_place_cost: assign and cost_s must not be NULL");
    DDP__TRY(ddp__place_shape(net, &pipelines, &stages, err));
    status = ddp__place_open(&p, net, pipelines, stages, err);
    for (i = 0; status == DDP_OK && i < pipelines; i++)
        for (j = 0; status == DDP_OK && j < stages; j++) {
            int device = assign[(size_t)i * (size_t)stages + (size_t)j];
            if (device < 0 || device >= p.N || p.best[device]++)
                status = ddp__fail(err, DDP_ARG,
                                   "stage %d of pipeline %d is on device %d; each of "
                                   "the devices 0 to %d runs exactly one stage",
                                   j, i, device, p.N - 1);
            else
                p.line[(size_t)j * (size_t)p.D + (size_t)i] = device;
        }
    if (status == DDP_OK) {
        cost = ddp__place_flat(&p, p.line, &datap, &hops);
        *cost_s = cost;
        if (datap_s) *datap_s = datap;
        if (pipelinep_s) *pipelinep_s = hops;
    }
    ddp__place_close(&p);
    return status;
}

void ddp_placement_free(ddp_placement *p)
{
    if (!p) return;
    DDP_FREE(p->assign);
    DDP_FREE(p->curve);
    memset(p, 0, sizeof *p);
}
/* ==== end plan/place.c ==== */

/* ==== begin sync/context.h ==== [sync] */
/* Inside of a ddp_ctx. */
#ifndef DDP_SYNC_CONTEXT_H
#define DDP_SYNC_CONTEXT_H

/* What the time since the last hook was spent on. */
typedef enum ddp__phase {
    DDP__OUTSIDE,        /* between steps: data loading, reports */
    DDP__IN_FORWARD,     /* after forward_begin(layer) */
    DDP__IN_BACKWARD,    /* after backward_begin(layer) */
    DDP__AFTER_BACKWARD  /* after backward_end: the next layer's backward, if no hook says otherwise */
} ddp__phase;

/* A registered layer. */
typedef struct ddp__unit {
    char       *name;
    ddp_block  *block;          /* [blocks] */
    int         blocks;
    double      flops;
    size_t      count;          /* floats that averaging moves, optimizer state left out */
    size_t      state_count;    /* floats of optimizer state */
    float      *state;
    ddp__piece *average;        /* [averages] what averaging the layer moves */
    int         averages;
    ddp__piece *gradient;       /* [gradients] */
    int         gradients;
    long        ticket;         /* transfer in flight, or -1 */
    long        updates;        /* updates applied so far */
    int         passes;         /* backward_end calls in this step */
    long        forward_step;   /* last step with a forward_begin */
    double      divergence;     /* of the last averaging; written by the comm thread while in flight */
    double      last_divergence;
} ddp__unit;

/* A strategy decides, at each event, what is updated and what is sent. */
typedef struct ddp__strategy_table {
    const char  *name;
    ddp_strategy id;
    int          partial;  /* averages each layer in its own step, by a plan */
    ddp_status (*start)(ddp_ctx *d);                   /* after the layers are known; may be NULL */
    ddp_status (*backward_end)(ddp_ctx *d, int layer); /* the layer's gradient is complete */
    ddp_status (*step_end)(ddp_ctx *d);                /* all layers have had theirs */
} ddp__strategy_table;

/* A wfbp bucket: layers first..last (first >= last: backward order). */
typedef struct ddp__bucket {
    int         first, last, missing;
    ddp__piece *piece;
    int         pieces;
    long        ticket;
} ddp__bucket;

struct ddp_ctx {
    ddp__host    host; /* first: src/graph reads the context as a host */
    ddp_config   cfg;  /* resolved; strings owned by the context */
    int          rank, world;
    double       rate, delay_s; /* of cfg.net; 0 = unshaped */
    const ddp__strategy_table *strategy;
    ddp__engine *engine; /* NULL with one worker */

    ddp__unit   *unit; /* [layers], grows until the session starts */
    int          layers, room;
    ddp_optimizer optimizer;
    float        lr;
    int          started;
    int          aborted;        /* ddp_abort with one worker; atomic */

    long         step;
    int          hooks_forward;  /* every layer had its forward_begin in the last whole step */
    ddp__phase   phase;
    int          phase_layer;
    double       mark;           /* when the last hook returned */

    ddp__bucket *bucket;         /* wfbp */
    int          buckets, next_bucket;
    ddp__piece  *all_gradients;  /* ssgd: every gradient as one message */
    int          all_gradient_pieces;

    ddp_plan     plan;           /* plan.layers 0 = none yet */
    ddp_profile  profile;        /* profile.layers 0 = none yet */
    ddp_link     link;
    ddp__timer   timer;
    ddp_linkfit  fit;            /* follows the link while training */
    double       mean_layer_bytes;
    long         drift_ticket;   /* rank 0's word on planning again, or -1 */
    float        drift_word[3];  /* again?, alpha in us, beta in ps per byte */
    ddp__piece   drift_piece;
    int          measured;       /* the plan came from clocks: it follows the link */
    int          plan_final;     /* the plan will not be replaced by a measured one */

    ddp_span    *span;           /* ring of compute and wait spans */
    int          spans;          /* ring size */
    long         span_count;     /* spans ever recorded */
    ddp__op_span *op_scratch;    /* for statistics and traces */
    int          op_room;
    ddp_span    *merge;          /* scratch of the hidden share */
    int          merge_room;

    double       step_begin;     /* end of the previous step */
    double       wait_this_step;
    ddp_stats    stats;
    double       sum_step_s, sum_wait_s;
};

#ifdef __cplusplus
extern "C" {
#endif

/* First line of every hook: the sticky error. */
#define DDP__ENTER(d)                                        \
    do {                                                     \
        if (!(d)) return DDP_ARG;                            \
        if ((d)->host.error.code) return (int)(d)->host.error.code; \
    } while (0)

/* Makes err the context's sticky error (the first one stays) and tells the other ranks. */
DDP_LIB int ddp__ctx_fail(ddp_ctx *d, const ddp_error *err);
DDP_LIB int ddp__ctx_failf(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);

/* session.c: ddp_open with what only ddp_launch has: the meeting place of threads, or the socket
 * on which rank 0 already listens (-1 = none; closed here). */
DDP_LIB ddp_ctx *ddp__open(const ddp_config *cfg, ddp__hub *hub, int listen_fd, ddp_error *err);

/* config.c */
DDP_LIB ddp_status ddp__config_resolve(const ddp_config *given, ddp_config *out, ddp_error *err);
DDP_LIB void       ddp__config_free(ddp_config *c);
DDP_LIB const ddp__strategy_table *ddp__strategy_find(ddp_strategy s);

/* start.c: freezes the layers: comparison, memory, rank 0's parameters. Idempotent. */
DDP_LIB ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err);

/* update.c */
DDP_LIB void   ddp__update_layer(ddp_ctx *d, int layer);
DDP_LIB void   ddp__clip_gradients(ddp_ctx *d);
DDP_LIB void   ddp__mean_gradients(ddp_ctx *d, int layer); /* divides by micro_batches */

/* averaging.c, gradient.c */
DDP_LIB const ddp__strategy_table *ddp__averaging_strategies(int *count);
DDP_LIB const ddp__strategy_table *ddp__gradient_strategies(int *count);
DDP_LIB ddp_status ddp__average_layer(ddp_ctx *d, int layer, int filler, ddp_error *err);
DDP_LIB ddp_status ddp__average_wait(ddp_ctx *d, int layer, ddp_error *err);
DDP_LIB ddp_status ddp__average_wait_all(ddp_ctx *d, ddp_error *err);
/* Blocks for a ticket and records the wait. */
DDP_LIB ddp_status ddp__ticket_wait(ddp_ctx *d, long ticket, int layer, ddp_error *err);
/* Submits one message and waits for it; with one worker only the scale is applied. */
DDP_LIB ddp_status ddp__blocking(ddp_ctx *d, ddp__verb verb, const ddp__piece *pieces, int count,
                                 float scale, int peer, ddp_error *err);

/* planning.c */
DDP_LIB ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err);   /* before the first averaging */
DDP_LIB ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err); /* after the profile steps */
DDP_LIB ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err);   /* same layers, another link */
DDP_LIB size_t     ddp__unit_wire_bytes(const ddp_ctx *d, const ddp__unit *u);

/* drift.c */
DDP_LIB void       ddp__drift_start(ddp_ctx *d);
DDP_LIB void       ddp__drift_observe(ddp_ctx *d, double since, double now); /* overwrites op_scratch */
DDP_LIB ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err);

/* account.c */
DDP_LIB void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end);
DDP_LIB void ddp__account_hook(ddp_ctx *d, double now, int layer, ddp__phase entering);
DDP_LIB void ddp__account_step(ddp_ctx *d, double now);
DDP_LIB void ddp__account_reset(ddp_ctx *d);
DDP_LIB void ddp__account_predict(ddp_ctx *d);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_CONTEXT_H */
/* ==== end sync/context.h ==== */

/* ==== begin sync/account.c ==== [sync] */
/* Where the time of a step went: spans, the layer timer and the hidden share. */

void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end)
{
    ddp_span *s = &d->span[d->span_count % d->spans];

    s->begin_s = begin;
    s->end_s = end;
    s->step = d->step;
    s->layer = layer;
    s->kind = kind;
    s->bytes = 0;
    d->span_count++;
    if (kind == DDP_SPAN_UPDATE && d->step < d->cfg.profile_steps) ddp__timer_add(&d->timer, DDP__T_UPDATE, layer, end - begin);
}

/* Charges the time since the last hook returned to whatever ran in it. entering is the phase
 * that the hook of layer opens. */
void ddp__account_hook(ddp_ctx *d, double now, int layer, ddp__phase entering)
{
    double t = now - d->mark;
    int profiling = d->step < d->cfg.profile_steps;

    switch (d->phase) {
    case DDP__OUTSIDE:
        /* no forward hook: the forward pass and the first layer's backward look like one */
        if (entering == DDP__IN_FORWARD || entering == DDP__OUTSIDE) return;
        ddp__record(d, DDP_SPAN_FORWARD, -1, d->mark, now);
        if (profiling) ddp__timer_add_whole(&d->timer, t);
        return;
    case DDP__IN_FORWARD:
        ddp__record(d, DDP_SPAN_FORWARD, d->phase_layer, d->mark, now);
        if (profiling) ddp__timer_add(&d->timer, DDP__T_FORWARD, d->phase_layer, t);
        return;
    case DDP__IN_BACKWARD:
        ddp__record(d, DDP_SPAN_BACKWARD, d->phase_layer, d->mark, now);
        if (profiling) ddp__timer_add(&d->timer, DDP__T_BACKWARD, d->phase_layer, t);
        return;
    case DDP__AFTER_BACKWARD:
        if (entering != DDP__IN_BACKWARD && entering != DDP__AFTER_BACKWARD) return;
        ddp__record(d, DDP_SPAN_BACKWARD, layer, d->mark, now);
        if (profiling) ddp__timer_add(&d->timer, DDP__T_BACKWARD, layer, t);
        return;
    }
}

/* Collects compute and communication intervals that overlap begin..end, clipped to it. */
static int ddp__gather_spans(ddp_ctx *d, double begin, double end)
{
    int n = 0, i, ops;
    long s, oldest = d->span_count > d->spans ? d->span_count - d->spans : 0;

    for (s = d->span_count - 1; s >= oldest && n < d->merge_room; s--) {
        const ddp_span *x = &d->span[s % d->spans];
        if (x->end_s <= begin) break;
        if (x->kind == DDP_SPAN_WAIT) continue;
        d->merge[n] = *x;
        if (d->merge[n].begin_s < begin) d->merge[n].begin_s = begin;
        n++;
    }
    ops = ddp__engine_spans(d->engine, begin, end, d->op_scratch, d->op_room);
    for (i = 0; i < ops && n < d->merge_room; i++) {
        const ddp__op_span *o = &d->op_scratch[i];
        /* an operation that stands still for a slower peer is not communicating */
        double from = o->begin + o->peer_wait, b = from > begin ? from : begin;
        double e = o->end >= 0 && o->end < end ? o->end : end;
        if (o->filler || e <= b) continue;
        memset(&d->merge[n], 0, sizeof d->merge[n]);
        d->merge[n].begin_s = b;
        d->merge[n].end_s = e;
        d->merge[n].kind = DDP_SPAN_COMM;
        if (o->end >= 0) d->stats.peer_wait_s += o->peer_wait;
        n++;
    }
    return n;
}

/* Sorts by begin without allocating: spans come nearly sorted from two ordered sources. */
static void ddp__sort_spans(ddp_span *s, int n)
{
    int i, j;

    for (i = 1; i < n; i++) {
        ddp_span x = s[i];
        for (j = i; j > 0 && s[j - 1].begin_s > x.begin_s; j--) s[j] = s[j - 1];
        s[j] = x;
    }
}

/* One sweep over sorted spans: length of the union of communication, and of the part of it
 * that no compute span covers. */
static void ddp__sweep_spans(const ddp_span *s, int n, double *comm, double *exposed)
{
    double at = -1, comm_until = -1, busy_until = -1;
    int i;

    *comm = *exposed = 0;
    for (i = 0; i <= n; i++) {
        double next = i < n ? s[i].begin_s : DBL_MAX;
        while (at < next && comm_until > at) { /* communication runs from `at` on */
            double stop = comm_until < next ? comm_until : next;
            int covered = busy_until > at;
            if (covered && busy_until < stop) stop = busy_until;
            *comm += stop - at;
            if (!covered) *exposed += stop - at;
            at = stop;
        }
        if (i == n) return;
        if (at < next) at = next;
        if (s[i].kind == DDP_SPAN_COMM) comm_until = s[i].end_s > comm_until ? s[i].end_s : comm_until;
        else busy_until = s[i].end_s > busy_until ? s[i].end_s : busy_until;
    }
}

void ddp__account_reset(ddp_ctx *d)
{
    d->stats.counted_steps = 0;
    d->stats.comm_s = d->stats.exposed_s = d->stats.peer_wait_s = 0;
    d->sum_step_s = d->sum_wait_s = 0;
    d->step_begin = ddp_now();
}

void ddp__account_step(ddp_ctx *d, double now)
{
    if (d->step < d->cfg.profile_steps) ddp__timer_step(&d->timer);
    if (d->engine) {
        double comm, exposed;
        int n = ddp__gather_spans(d, d->step_begin, now);
        ddp__sort_spans(d->merge, n);
        ddp__sweep_spans(d->merge, n, &comm, &exposed);
        d->stats.comm_s += comm;
        d->stats.exposed_s += exposed;
        if (d->measured) ddp__drift_observe(d, d->step_begin, now);
    }
    d->sum_step_s += now - d->step_begin;
    d->sum_wait_s += d->wait_this_step;
    d->stats.counted_steps++;
    d->wait_this_step = 0;
    d->step_begin = now;
}

void ddp_get_stats(ddp_ctx *d, ddp_stats *out)
{
    int l;

    *out = d->stats;
    out->steps = d->step;
    if (d->stats.counted_steps) {
        out->step_s = d->sum_step_s / (double)d->stats.counted_steps;
        out->wait_s = d->sum_wait_s / (double)d->stats.counted_steps;
    }
    out->hidden_pct = d->stats.comm_s > 0 ? 100 * (1 - d->stats.exposed_s / d->stats.comm_s) : 100;
    if (d->engine) {
        ddp__net_stats net;
        ddp__engine_stats(d->engine, &net);
        out->bytes_sent = net.bytes_sent;
    }
    out->divergence = 0;
    for (l = 0; l < d->layers; l++) out->divergence += d->unit[l].last_divergence;
    out->link = d->measured ? d->fit.link : d->link;
}

double ddp_divergence(const ddp_ctx *d, int layer)
{
    return d && layer >= 0 && layer < d->layers ? d->unit[layer].last_divergence : 0;
}

const char *ddp_last_algorithm(const ddp_ctx *d)
{
    ddp__net_stats net;

    if (!d || !d->engine) return "none";
    ddp__engine_stats(d->engine, &net);
    return net.algorithm == 'r' ? "ring" : net.algorithm == 'd' ? "direct" : "none";
}

static void ddp__span_of(const ddp__op_span *o, ddp_span_kind kind, double begin, double end, ddp_span *out)
{
    out->begin_s = begin;
    out->end_s = end;
    out->step = o->step;
    out->layer = o->layer >= 0 ? o->layer : -1;
    out->kind = kind;
    out->bytes = kind == DDP_SPAN_PEER_WAIT ? 0 : o->bytes;
}

int ddp_trace_copy(ddp_ctx *d, ddp_span *out, int room)
{
    long oldest = d->span_count > d->spans ? d->span_count - d->spans : 0, s;
    int n = 0, i, ops = 0;

    if (d->engine) ops = ddp__engine_spans(d->engine, -1, DBL_MAX, d->op_scratch, d->op_room);
    /* newest last: when room is short the oldest compute spans are left out */
    if (ops > room / 2) ops = room / 2; /* each may give two */
    if (d->span_count - oldest > room - 2 * ops) oldest = d->span_count - (room - 2 * ops);
    for (s = oldest; s < d->span_count; s++) out[n++] = d->span[s % d->spans];
    for (i = 0; i < ops; i++) {
        const ddp__op_span *o = &d->op_scratch[i];
        if (o->end < 0) continue;
        /* as in the statistics: standing still for a slower peer is not communicating */
        if (o->peer_wait > 0 && n + ops - i < room) ddp__span_of(o, DDP_SPAN_PEER_WAIT, o->begin, o->begin + o->peer_wait, &out[n++]);
        ddp__span_of(o, o->filler ? DDP_SPAN_FILL : DDP_SPAN_COMM, o->begin + o->peer_wait, o->end, &out[n++]);
    }
    return n;
}
/* ==== end sync/account.c ==== */

/* ==== begin sync/update.c ==== [sync] */
/* Optimizer updates, on the caller's thread. */

void ddp__mean_gradients(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    int i;

    if (d->cfg.micro_batches == 1) return;
    for (i = 0; i < u->gradients; i++)
        ddp__scale(u->gradient[i].data, u->gradient[i].count, 1.0f / (float)d->cfg.micro_batches);
}

void ddp__update_layer(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    float *state = u->state;
    double begin = ddp_now();
    int b;

    for (b = 0; b < u->blocks; b++) {
        ddp_block *k = &u->block[b];
        ddp_update call;
        if (k->kind != DDP_PARAMS || !k->grads) continue;
        memset(&call, 0, sizeof call);
        call.layer = layer;
        call.params = k->params;
        call.grads = k->grads;
        call.state = state;
        call.count = k->count;
        call.step = u->updates;
        call.lr = d->lr;
        d->optimizer.update(&d->optimizer, &call);
        if (state) state += (size_t)d->optimizer.state_per_param * k->count;
        memset(k->grads, 0, k->count * sizeof *k->grads);
    }
    u->updates++;
    ddp__record(d, DDP_SPAN_UPDATE, layer, begin, ddp_now());
}

void ddp__clip_gradients(ddp_ctx *d)
{
    double squares = 0, norm;
    int l, i;

    for (l = 0; l < d->layers; l++)
        for (i = 0; i < d->unit[l].gradients; i++)
            squares += ddp__sum_squares(d->unit[l].gradient[i].data, d->unit[l].gradient[i].count);
    norm = sqrt(squares);
    if (norm + 1e-6 <= (double)d->cfg.clip_norm) return;
    for (l = 0; l < d->layers; l++)
        for (i = 0; i < d->unit[l].gradients; i++)
            ddp__scale(d->unit[l].gradient[i].data, d->unit[l].gradient[i].count,
                       (float)((double)d->cfg.clip_norm / (norm + 1e-6)));
}
/* ==== end sync/update.c ==== */

/* ==== begin sync/averaging.c ==== [sync] */
/* Strategies that average parameters: localsgd, enp and dreamddp (Algorithm 1 and Eq. 5). */

ddp_status ddp__ticket_wait(ddp_ctx *d, long ticket, int layer, ddp_error *err)
{
    double begin = ddp_now();
    ddp_status s = ddp__engine_wait(d->engine, ticket, err);
    double end = ddp_now();

    d->wait_this_step += end - begin;
    ddp__record(d, DDP_SPAN_WAIT, layer, begin, end);
    return s;
}

ddp_status ddp__average_layer(ddp_ctx *d, int layer, int filler, ddp_error *err)
{
    ddp__unit *u = &d->unit[layer];
    ddp__message m;

    if (!d->engine || u->count == 0) return DDP_OK;
    memset(&m, 0, sizeof m);
    m.verb = DDP__ALL_REDUCE;
    m.pieces = u->average;
    m.piece_count = u->averages;
    m.scale = 1.0f / (float)d->world;
    m.step = d->step;
    m.layer = layer;
    /* the layer that the next forward needs first goes first; the paper's rule is first come */
    m.priority = d->strategy->partial && !d->cfg.paper ? layer : 0;
    m.filler = filler;
    m.divergence = &u->divergence;
    return ddp__engine_submit(d->engine, &m, &u->ticket, err);
}

ddp_status ddp__average_wait(ddp_ctx *d, int layer, ddp_error *err)
{
    ddp__unit *u = &d->unit[layer];
    ddp_status s = DDP_OK;

    if (u->ticket < 0) return DDP_OK;
    if (ddp__engine_done(d->engine, u->ticket)) s = ddp__engine_wait(d->engine, u->ticket, err);
    else s = ddp__ticket_wait(d, u->ticket, layer, err);
    u->ticket = -1;
    u->last_divergence = u->divergence;
    return s;
}

ddp_status ddp__average_wait_all(ddp_ctx *d, ddp_error *err)
{
    int l;

    for (l = d->layers - 1; l >= 0; l--) DDP__TRY(ddp__average_wait(d, l, err));
    return DDP_OK;
}

/* ---- localsgd ---- */

static ddp_status ddp__local_backward_end(ddp_ctx *d, int layer)
{
    if (d->cfg.clip_norm > 0) return DDP_OK; /* the norm needs all gradients: update at step end */
    ddp__update_layer(d, layer);
    return DDP_OK;
}

static void ddp__clip_and_update(ddp_ctx *d)
{
    int l;

    if (!(d->cfg.clip_norm > 0)) return;
    ddp__clip_gradients(d);
    for (l = d->layers - 1; l >= 0; l--) ddp__update_layer(d, l);
}

static ddp_status ddp__local_step_end(ddp_ctx *d)
{
    int l;

    ddp__clip_and_update(d);
    if ((d->step + 1) % d->cfg.period) return DDP_OK;
    for (l = d->layers - 1; l >= 0; l--) DDP__TRY(ddp__average_layer(d, l, 0, &d->host.error));
    return ddp__average_wait_all(d, &d->host.error);
}

/* ---- enp, dreamddp ---- */

static ddp_status ddp__partial_backward_end(ddp_ctx *d, int layer)
{
    int h;

    if (d->plan.layers == 0) DDP__TRY(ddp__plan_first(d, &d->host.error));
    /* without clipping Eq. 5 holds as printed: update, then average; with it the weights are
     * averaged as they stand and updated at step end, once the norm is known */
    if (!(d->cfg.clip_norm > 0)) ddp__update_layer(d, layer);
    h = (int)(d->step % d->plan.period);
    if (d->plan.step_of[layer] == h) return ddp__average_layer(d, layer, 0, &d->host.error);
    if (d->plan.fill && d->plan.fill[(size_t)h * (size_t)d->layers + (size_t)layer])
        return ddp__average_layer(d, layer, 1, &d->host.error);
    return DDP_OK;
}

static ddp_status ddp__partial_step_end(ddp_ctx *d)
{
    if (d->cfg.clip_norm > 0) {
        DDP__TRY(ddp__average_wait_all(d, &d->host.error));
        ddp__clip_and_update(d);
        return DDP_OK;
    }
    /* with forward hooks a transfer may end as late as its layer's own next forward */
    if (d->hooks_forward && !d->cfg.paper) return DDP_OK;
    return ddp__average_wait_all(d, &d->host.error);
}

const ddp__strategy_table *ddp__averaging_strategies(int *count)
{
    static const ddp__strategy_table table[] = {
        {"localsgd", DDP_LOCALSGD, 0, NULL, ddp__local_backward_end, ddp__local_step_end},
        {"enp", DDP_ENP, 1, NULL, ddp__partial_backward_end, ddp__partial_step_end},
        {"dreamddp", DDP_DREAMDDP, 1, NULL, ddp__partial_backward_end, ddp__partial_step_end},
    };

    *count = (int)(sizeof table / sizeof table[0]);
    return table;
}
/* ==== end sync/averaging.c ==== */

/* ==== begin sync/gradient.c ==== [sync] */
/* Strategies that average gradients before the update: ssgd and wfbp. Sums go in rank order
 * element by element, so how gradients are cut into messages cannot change a bit. */

static ddp_status ddp__gradients_submit(ddp_ctx *d, const ddp__piece *pieces, int count, int layer, long *ticket)
{
    ddp__message m;

    memset(&m, 0, sizeof m);
    m.verb = DDP__ALL_REDUCE;
    m.pieces = pieces;
    m.piece_count = count;
    m.scale = 1.0f / (float)d->world;
    m.step = d->step;
    m.layer = layer;
    return ddp__engine_submit(d->engine, &m, ticket, &d->host.error);
}

static void ddp__update_all(ddp_ctx *d)
{
    int l;

    if (d->cfg.clip_norm > 0) ddp__clip_gradients(d);
    for (l = d->layers - 1; l >= 0; l--) ddp__update_layer(d, l);
}

/* Gradient pieces of layers first down to last, as one list; NULL when memory is short. */
static ddp__piece *ddp__gradient_pieces(ddp_ctx *d, int first, int last, int *count)
{
    ddp__piece *list;
    int l, n = 0;

    for (l = first; l >= last; l--) n += d->unit[l].gradients;
    list = (ddp__piece *)ddp__calloc((size_t)n, sizeof *list);
    if (!list) return NULL;
    n = 0;
    for (l = first; l >= last; l--) {
        if (d->unit[l].gradients)
            memcpy(list + n, d->unit[l].gradient, (size_t)d->unit[l].gradients * sizeof *list);
        n += d->unit[l].gradients;
    }
    *count = n;
    return list;
}

/* ---- ssgd ---- */

static ddp_status ddp__ssgd_start(ddp_ctx *d)
{
    d->all_gradients = ddp__gradient_pieces(d, d->layers - 1, 0, &d->all_gradient_pieces);
    return d->all_gradients ? DDP_OK : ddp__fail(&d->host.error, DDP_MEMORY, "ssgd: out of memory for the message list");
}

static ddp_status ddp__ssgd_backward_end(ddp_ctx *d, int layer)
{
    (void)d;
    (void)layer;
    return DDP_OK;
}

static ddp_status ddp__ssgd_step_end(ddp_ctx *d)
{
    if (d->engine && d->all_gradient_pieces) {
        long ticket;
        DDP__TRY(ddp__gradients_submit(d, d->all_gradients, d->all_gradient_pieces, DDP__ALL_LAYERS, &ticket));
        DDP__TRY(ddp__ticket_wait(d, ticket, -1, &d->host.error));
    }
    ddp__update_all(d);
    return DDP_OK;
}

/* ---- wfbp ---- */

#define DDP__FIRST_BUCKET_BYTES ((size_t)1 << 20)

static size_t ddp__unit_gradient_bytes(const ddp__unit *u)
{
    size_t n = 0;
    int i;

    for (i = 0; i < u->gradients; i++) n += u->gradient[i].count * sizeof(float);
    return n;
}

/* Buckets in backward order: a bucket closes when it has reached its size. */
static ddp_status ddp__wfbp_start(ddp_ctx *d)
{
    size_t bytes = 0;
    int l, first = d->layers - 1;

    d->bucket = (ddp__bucket *)ddp__calloc((size_t)d->layers, sizeof *d->bucket);
    if (!d->bucket) return ddp__fail(&d->host.error, DDP_MEMORY, "wfbp: out of memory for %d buckets", d->layers);
    for (l = d->layers - 1; l >= 0; l--) {
        size_t limit = d->buckets == 0 && DDP__FIRST_BUCKET_BYTES < d->cfg.bucket_bytes ? DDP__FIRST_BUCKET_BYTES
                                                                                        : d->cfg.bucket_bytes;
        ddp__bucket *b = &d->bucket[d->buckets];
        bytes += ddp__unit_gradient_bytes(&d->unit[l]);
        if (bytes < limit && l > 0) continue;
        b->first = first;
        b->last = l;
        b->missing = first - l + 1;
        b->ticket = -1;
        b->piece = ddp__gradient_pieces(d, first, l, &b->pieces);
        if (!b->piece) return ddp__fail(&d->host.error, DDP_MEMORY, "wfbp: out of memory for bucket %d", d->buckets);
        d->buckets++;
        first = l - 1;
        bytes = 0;
    }
    return DDP_OK;
}

/* A bucket leaves when its last layer is done and all earlier buckets have left: one order
 * on all ranks. */
static ddp_status ddp__wfbp_backward_end(ddp_ctx *d, int layer)
{
    int i = 0;

    while (layer < d->bucket[i].last) i++;
    d->bucket[i].missing--;
    while (d->next_bucket < d->buckets && d->bucket[d->next_bucket].missing == 0) {
        ddp__bucket *b = &d->bucket[d->next_bucket];
        if (d->engine && b->pieces)
            DDP__TRY(ddp__gradients_submit(d, b->piece, b->pieces, b->last, &b->ticket));
        d->next_bucket++;
    }
    return DDP_OK;
}

static ddp_status ddp__wfbp_step_end(ddp_ctx *d)
{
    int i;

    for (i = 0; i < d->buckets; i++) {
        ddp__bucket *b = &d->bucket[i];
        if (b->ticket >= 0) DDP__TRY(ddp__ticket_wait(d, b->ticket, b->last, &d->host.error));
        b->ticket = -1;
        b->missing = b->first - b->last + 1;
    }
    d->next_bucket = 0;
    ddp__update_all(d);
    return DDP_OK;
}

const ddp__strategy_table *ddp__gradient_strategies(int *count)
{
    static const ddp__strategy_table table[] = {
        {"ssgd", DDP_SSGD, 0, ddp__ssgd_start, ddp__ssgd_backward_end, ddp__ssgd_step_end},
        {"wfbp", DDP_WFBP, 0, ddp__wfbp_start, ddp__wfbp_backward_end, ddp__wfbp_step_end},
    };

    *count = (int)(sizeof table / sizeof table[0]);
    return table;
}
/* ==== end sync/gradient.c ==== */

/* ==== begin sync/config.c ==== [sync] */
/* Configuration: defaults, environment, and a sentence for each value that makes no sense. */

const ddp__strategy_table *ddp__strategy_find(ddp_strategy s)
{
    int n, i;
    const ddp__strategy_table *t = ddp__averaging_strategies(&n);

    for (i = 0; i < n; i++)
        if (t[i].id == s) return &t[i];
    t = ddp__gradient_strategies(&n);
    for (i = 0; i < n; i++)
        if (t[i].id == s) return &t[i];
    return NULL;
}

const char *ddp_strategy_name(ddp_strategy s)
{
    const ddp__strategy_table *t = ddp__strategy_find(s == DDP_STRATEGY_DEFAULT ? DDP_DREAMDDP : s);

    return t ? t->name : "unknown";
}

ddp_strategy ddp_strategy_named(const char *name)
{
    int s;

    for (s = (int)DDP_SSGD; s <= (int)DDP_DREAMDDP; s++)
        if (name && !strcmp(name, ddp_strategy_name((ddp_strategy)s))) return (ddp_strategy)s;
    return DDP_STRATEGY_DEFAULT;
}

/* ---- environment ---- */

static ddp_status ddp__env_count(const char *name, const char *text, int *field, ddp_error *err)
{
    long v;

    if (!text || *field) return DDP_OK;
    if (!ddp__parse_long(text, &v) || v < 1 || v > INT_MAX)
        return ddp__fail(err, DDP_ARG, "%s=%s is not a whole number above 0", name, text);
    *field = (int)v;
    return DDP_OK;
}

static ddp_status ddp__env_seconds(const char *name, const char *text, double *field, ddp_error *err)
{
    double v;

    if (!text || *field > 0) return DDP_OK;
    if (!ddp__parse_double(text, &v) || v <= 0) return ddp__fail(err, DDP_ARG, "%s=%s is not a number of seconds above 0", name, text);
    *field = v;
    return DDP_OK;
}

static ddp_status ddp__env_names(const ddp__env *e, ddp_config *c, ddp_error *err)
{
    if (e->strategy && c->strategy == DDP_STRATEGY_DEFAULT) {
        c->strategy = ddp_strategy_named(e->strategy);
        if (c->strategy == DDP_STRATEGY_DEFAULT)
            return ddp__fail(err, DDP_ARG, "DREAMDDP_STRATEGY=%s is unknown: choose ssgd, wfbp, localsgd, enp or dreamddp", e->strategy);
    }
    if (e->transport && c->transport == DDP_TRANSPORT_DEFAULT) {
        if (strcmp(e->transport, "tcp") && strcmp(e->transport, "threads"))
            return ddp__fail(err, DDP_ARG, "DREAMDDP_TRANSPORT=%s is unknown: choose tcp or threads", e->transport);
        c->transport = strcmp(e->transport, "tcp") ? DDP_THREADS : DDP_TCP;
    }
    return DDP_OK;
}

/* Fills what is zero; the strings it sets are the environment's, copied later with the rest. */
static ddp_status ddp__env_fill(ddp__env *e, ddp_config *c, ddp_error *err)
{
    int literal = c->world > 0;

    DDP__TRY(ddp__env_read(e, err));
    if (!literal) {
        c->rank = e->launcher ? e->rank : 0;
        c->world = e->launcher ? e->world : 1;
    }
    if (!c->addr && e->addr[0] && !literal) c->addr = e->addr;
    if (!c->net) c->net = e->net;
    DDP__TRY(ddp__env_names(e, c, err));
    DDP__TRY(ddp__env_count("DREAMDDP_PERIOD", e->period, &c->period, err));
    DDP__TRY(ddp__env_count("DREAMDDP_THREADS", e->threads, &c->threads, err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_CONNECT_TIMEOUT", e->connect_timeout, &c->connect_timeout_s, err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_PEER_TIMEOUT", e->peer_timeout, &c->peer_timeout_s, err));
    DDP__TRY(ddp__env_seconds("DREAMDDP_OP_TIMEOUT", e->op_timeout, &c->op_timeout_s, err));
    if (e->insecure && strcmp(e->insecure, "0")) c->insecure = 1;
    if (e->deterministic && strcmp(e->deterministic, "0")) c->deterministic = 1;
    return DDP_OK;
}

/* ---- checks and defaults ---- */

static ddp_status ddp__config_check(const ddp_config *c, ddp_error *err)
{
    double rate, delay;

    if (c->world < 0 || c->world > 65535) return ddp__fail(err, DDP_ARG, "world %d: 1 to 65535 workers are possible", c->world);
    if (c->rank < 0 || (c->world > 0 && c->rank >= c->world))
        return ddp__fail(err, DDP_ARG, "rank %d is outside a world of %d: ranks are 0 to %d", c->rank, c->world, c->world - 1);
    if (c->period < 0) return ddp__fail(err, DDP_ARG, "period %d: H is at least 1 step", c->period);
    if (c->threads < 0 || c->threads > 1024) return ddp__fail(err, DDP_ARG, "threads %d: 1 to 1024 are possible", c->threads);
    if (c->micro_batches < 0) return ddp__fail(err, DDP_ARG, "micro_batches %d: at least 1", c->micro_batches);
    if (!(c->clip_norm >= 0)) return ddp__fail(err, DDP_ARG, "clip_norm %g: a limit above 0, or 0 for none", (double)c->clip_norm);
    if (c->strategy < DDP_STRATEGY_DEFAULT || c->strategy > DDP_DREAMDDP)
        return ddp__fail(err, DDP_ARG, "strategy %d is unknown: use the DDP_ names, DDP_SSGD to DDP_DREAMDDP", (int)c->strategy);
    if (c->transport < DDP_TRANSPORT_DEFAULT || c->transport > DDP_TCP)
        return ddp__fail(err, DDP_ARG, "transport %d is unknown: use DDP_THREADS or DDP_TCP", (int)c->transport);
    if ((c->allocator.alloc == NULL) != (c->allocator.free == NULL))
        return ddp__fail(err, DDP_ARG, "allocator: set both alloc and free, or neither");
    if (c->net) DDP__TRY(ddp_net_parse(c->net, &rate, &delay, err));
    return DDP_OK;
}

static void ddp__config_defaults(ddp_config *c)
{
    if (c->strategy == DDP_STRATEGY_DEFAULT) c->strategy = DDP_DREAMDDP;
    if (c->transport == DDP_TRANSPORT_DEFAULT) c->transport = DDP_TCP;
    if (c->period == 0) c->period = 5;
    if (c->world == 0) c->world = 1;
    if (c->threads == 0) c->threads = 1;
    if (c->micro_batches == 0) c->micro_batches = 1;
    if (c->bucket_bytes == 0) c->bucket_bytes = (size_t)25 << 20;
    if (!(c->connect_timeout_s > 0)) c->connect_timeout_s = 30;
    if (!(c->peer_timeout_s > 0)) c->peer_timeout_s = 10;
    if (!(c->op_timeout_s > 0)) c->op_timeout_s = 300;
    if (c->profile_steps == 0) c->profile_steps = 6;
    /* a plan that does not come from clocks needs no measured steps */
    if (c->profile_steps < 0 || c->deterministic || c->profile_path || c->plan_path) c->profile_steps = 0;
#ifdef DREAMDDP_DEBUG
    c->check_writes = 1;
#endif
}

static int ddp__config_own(const char **s)
{
    if (!*s) return 1;
    *s = ddp__strdup(*s);
    return *s != NULL;
}

ddp_status ddp__config_resolve(const ddp_config *given, ddp_config *out, ddp_error *err)
{
    ddp_config c = *given;
    ddp__env env;
    char run[20];
    int owned;

    memset(&env, 0, sizeof env);
    DDP__TRY(ddp__config_check(&c, err));
    if (!c.no_env) DDP__TRY(ddp__env_fill(&env, &c, err));
    if (env.launcher || env.note) {
        ddp_logger log = ddp__log_resolve(&c.logger, c.no_env);
        if (env.launcher)
            ddp__log(&log, DDP_LOG_INFO, "rank %d of %d, as %s says%s%s", c.rank, c.world, env.launcher,
                     env.note ? "; " : "", env.note ? env.note : "");
        else if (given->world < 1)
            ddp__log(&log, DDP_LOG_WARN, "%s", env.note);
    }
    if (!c.run_id && env.has_run_id) {
        snprintf(run, sizeof run, "%016llx", (unsigned long long)env.run_id);
        c.run_id = run;
    }
    ddp__config_defaults(&c);
    DDP__TRY(ddp__config_check(&c, err));
    owned = ddp__config_own(&c.addr);
    owned &= ddp__config_own(&c.run_id);
    owned &= ddp__config_own(&c.net);
    owned &= ddp__config_own(&c.profile_path);
    owned &= ddp__config_own(&c.plan_path);
    if (!owned) {
        ddp__config_free(&c);
        return ddp__fail(err, DDP_MEMORY, "out of memory copying the configuration");
    }
    *out = c;
    return DDP_OK;
}

void ddp__config_free(ddp_config *c)
{
    const char **s[5];
    int i;

    s[0] = &c->addr;
    s[1] = &c->run_id;
    s[2] = &c->net;
    s[3] = &c->profile_path;
    s[4] = &c->plan_path;
    for (i = 0; i < 5; i++)
        if (*s[i]) DDP_FREE((void *)(uintptr_t)*s[i]);
    memset(c, 0, sizeof *c);
}
/* ==== end sync/config.c ==== */

/* ==== begin sync/collective.c ==== [sync] */
/* Plain collectives: one message, waited for. */

ddp_status ddp__blocking(ddp_ctx *d, ddp__verb verb, const ddp__piece *pieces, int count, float scale, int peer,
                         ddp_error *err)
{
    ddp__message m;
    long ticket;

    if (!d->engine) {
        int i;
        for (i = 0; verb == DDP__ALL_REDUCE && scale != 1 && i < count; i++) ddp__scale(pieces[i].data, pieces[i].count, scale);
        return DDP_OK;
    }
    memset(&m, 0, sizeof m);
    m.verb = verb;
    m.pieces = pieces;
    m.piece_count = count;
    m.scale = scale;
    m.peer = peer;
    m.step = d->step;
    m.layer = DDP__NO_LAYER;
    m.filler = 1;
    DDP__TRY(ddp__engine_submit(d->engine, &m, &ticket, err));
    return ddp__engine_wait(d->engine, ticket, err);
}

static int ddp__collective(ddp_ctx *d, const char *name, ddp__verb verb, float *x, size_t n, float scale, int peer)
{
    ddp__piece p;

    DDP__ENTER(d);
    if (!x && n) return ddp__ctx_failf(d, DDP_ARG, "%s: the array is NULL", name);
    if (peer < 0 || peer >= d->world)
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d does not exist in a world of %d", name, peer, d->world);
    if ((verb == DDP__SEND || verb == DDP__RECV) && peer == d->rank)
        return ddp__ctx_failf(d, DDP_ARG, "%s: rank %d cannot exchange with itself", name, peer);
    p.data = x;
    p.count = n;
    if (ddp__blocking(d, verb, &p, 1, scale, peer, &d->host.error)) return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale)
{
    return ddp__collective(d, "ddp_all_reduce", DDP__ALL_REDUCE, x, n, scale, 0);
}

int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root)
{
    return ddp__collective(d, "ddp_broadcast", DDP__BROADCAST, x, n, 1, root);
}

int ddp_all_gather(ddp_ctx *d, float *x, size_t n)
{
    return ddp__collective(d, "ddp_all_gather", DDP__ALL_GATHER, x, d ? n * (size_t)d->world : n, 1, 0);
}

int ddp_barrier(ddp_ctx *d)
{
    float *token;
    int s;

    DDP__ENTER(d);
    /* an empty contribution to each is enough: nobody is done before everybody has come */
    token = (float *)ddp__calloc((size_t)d->world, sizeof *token);
    if (!token) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_barrier: out of memory");
    s = ddp__collective(d, "ddp_barrier", DDP__ALL_GATHER, token, (size_t)d->world, 1, 0);
    DDP_FREE(token);
    return s;
}

int ddp_send(ddp_ctx *d, float *x, size_t n, int to) { return ddp__collective(d, "ddp_send", DDP__SEND, x, n, 1, to); }
int ddp_recv(ddp_ctx *d, float *x, size_t n, int from) { return ddp__collective(d, "ddp_recv", DDP__RECV, x, n, 1, from); }
/* ==== end sync/collective.c ==== */

/* ==== begin sync/start.c ==== [sync] */
/* The start of a session: layers are frozen, compared across ranks and made equal. */

/* A 64-bit value travels as four floats of 16 bits each: exact, and the engine moves floats. */
#define DDP__WORDS 4

static void ddp__pack64(float *out, uint64_t v)
{
    int i;

    for (i = 0; i < DDP__WORDS; i++) out[i] = (float)((v >> (16 * i)) & 0xffff);
}

static uint64_t ddp__unpack64(const float *in)
{
    uint64_t v = 0;
    int i;

    for (i = 0; i < DDP__WORDS; i++) v |= (uint64_t)in[i] << (16 * i);
    return v;
}

/* ---- memory of the layers ---- */

static ddp_status ddp__unit_lists(ddp_ctx *d, ddp__unit *u, ddp_error *err)
{
    size_t trained = 0;
    int b;

    u->average = (ddp__piece *)ddp__calloc((size_t)u->blocks + 1, sizeof *u->average);
    u->gradient = (ddp__piece *)ddp__calloc((size_t)u->blocks + 1, sizeof *u->gradient);
    if (!u->average || !u->gradient) return ddp__fail(err, DDP_MEMORY, "layer %s: out of memory", u->name);
    for (b = 0; b < u->blocks; b++) {
        const ddp_block *k = &u->block[b];
        if (k->kind == DDP_PARAMS && !k->grads) continue; /* frozen: equal from the start on */
        u->average[u->averages].data = k->params;
        u->average[u->averages++].count = k->count;
        u->count += k->count;
        if (k->kind != DDP_PARAMS) continue;
        u->gradient[u->gradients].data = k->grads;
        u->gradient[u->gradients++].count = k->count;
        trained += k->count;
    }
    u->state_count = trained * (size_t)d->optimizer.state_per_param;
    if (u->state_count) {
        u->state = (float *)ddp__alloc(&d->host.allocator, u->state_count * sizeof(float));
        if (!u->state)
            return ddp__fail(err, DDP_MEMORY, "layer %s: out of memory for %zu bytes of optimizer state", u->name,
                             u->state_count * sizeof(float));
        if (d->cfg.average_state) {
            u->average[u->averages].data = u->state;
            u->average[u->averages++].count = u->state_count;
        }
    }
    u->ticket = -1;
    u->forward_step = -1;
    return DDP_OK;
}

static ddp_status ddp__session_memory(ddp_ctx *d, ddp_error *err)
{
    int per_step = 8 * d->layers * d->cfg.micro_batches + 64, l;

    for (l = 0; l < d->layers; l++) DDP__TRY(ddp__unit_lists(d, &d->unit[l], err));
    d->spans = d->cfg.trace_spans > per_step ? d->cfg.trace_spans : per_step;
    d->op_room = d->cfg.trace_spans > 0 ? 2048 : 4 * d->layers + 64;
    d->merge_room = per_step + d->op_room;
    d->span = (ddp_span *)ddp__calloc((size_t)d->spans, sizeof *d->span);
    d->op_scratch = (ddp__op_span *)ddp__calloc((size_t)d->op_room, sizeof *d->op_scratch);
    d->merge = (ddp_span *)ddp__calloc((size_t)d->merge_room, sizeof *d->merge);
    if (!d->span || !d->op_scratch || !d->merge || !ddp__timer_open(&d->timer, d->layers, d->cfg.profile_steps + 1))
        return ddp__fail(err, DDP_MEMORY, "out of memory for the spans of %d layers", d->layers);
    return DDP_OK;
}

/* ---- comparison ---- */

enum { DDP__F_VERSION, DDP__F_LAYERS, DDP__F_PERIOD, DDP__F_STRATEGY, DDP__F_MICRO, DDP__F_HASH, DDP__F_SIZE = DDP__F_HASH + DDP__WORDS };

static uint64_t ddp__unit_hash(const ddp__unit *u)
{
    uint64_t h = ddp__hash(DDP__HASH_START, u->name, strlen(u->name));
    int b;

    for (b = 0; b < u->blocks; b++) {
        uint64_t n = (uint64_t)u->block[b].count * 4 + (uint64_t)u->block[b].kind * 2 + (u->block[b].grads != NULL);
        h = ddp__hash(h, &n, sizeof n);
    }
    return h;
}

static void ddp__fingerprint(const ddp_ctx *d, float *f)
{
    uint64_t h = ddp__hash(DDP__HASH_START, d->optimizer.name, strlen(d->optimizer.name));
    int l;

    for (l = 0; l < d->layers; l++) {
        uint64_t u = ddp__unit_hash(&d->unit[l]);
        h = ddp__hash(h, &u, sizeof u);
    }
    f[DDP__F_VERSION] = (float)(DDP_VERSION_MAJOR * 10000 + DDP_VERSION_MINOR * 100 + DDP_VERSION_PATCH);
    f[DDP__F_LAYERS] = (float)d->layers;
    f[DDP__F_PERIOD] = (float)d->cfg.period;
    f[DDP__F_STRATEGY] = (float)d->cfg.strategy;
    f[DDP__F_MICRO] = (float)d->cfg.micro_batches;
    ddp__pack64(f + DDP__F_HASH, h);
}

static ddp_status ddp__compare_ranks(const ddp_ctx *d, const float *all, ddp_error *err)
{
    const float *zero = all;
    int r;

    for (r = 1; r < d->world; r++) {
        const float *f = all + (size_t)r * DDP__F_SIZE;
        if (f[DDP__F_VERSION] != zero[DDP__F_VERSION])
            return ddp__fail(err, DDP_MISMATCH, "rank %d runs dreamddp version %06.0f, rank 0 has %06.0f: build all ranks from one header",
                             r, (double)f[DDP__F_VERSION], (double)zero[DDP__F_VERSION]);
        if (f[DDP__F_LAYERS] != zero[DDP__F_LAYERS])
            return ddp__fail(err, DDP_MISMATCH, "rank %d registered %.0f layers, rank 0 has %.0f: every rank must register the same model",
                             r, (double)f[DDP__F_LAYERS], (double)zero[DDP__F_LAYERS]);
        if (f[DDP__F_PERIOD] != zero[DDP__F_PERIOD])
            return ddp__fail(err, DDP_MISMATCH, "rank %d has period %.0f, rank 0 has %.0f: start every rank with the same period",
                             r, (double)f[DDP__F_PERIOD], (double)zero[DDP__F_PERIOD]);
        if (f[DDP__F_STRATEGY] != zero[DDP__F_STRATEGY])
            return ddp__fail(err, DDP_MISMATCH, "rank %d runs strategy %s, rank 0 %s: start every rank with the same strategy", r,
                             ddp_strategy_name((ddp_strategy)f[DDP__F_STRATEGY]), ddp_strategy_name((ddp_strategy)zero[DDP__F_STRATEGY]));
        if (f[DDP__F_MICRO] != zero[DDP__F_MICRO])
            return ddp__fail(err, DDP_MISMATCH, "rank %d accumulates %.0f micro-batches, rank 0 %.0f", r, (double)f[DDP__F_MICRO],
                             (double)zero[DDP__F_MICRO]);
    }
    return DDP_OK;
}

/* Same number of layers, other contents: rank 0's hashes tell which layer differs. */
static ddp_status ddp__compare_layers(ddp_ctx *d, ddp_error *err)
{
    float *hash = (float *)ddp__calloc((size_t)d->layers * DDP__WORDS, sizeof *hash);
    ddp__piece p;
    ddp_status s;
    int l;

    if (!hash) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d layers", d->layers);
    for (l = 0; l < d->layers; l++) ddp__pack64(hash + (size_t)l * DDP__WORDS, ddp__unit_hash(&d->unit[l]));
    p.data = hash;
    p.count = (size_t)d->layers * DDP__WORDS;
    s = ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err);
    for (l = 0; s == DDP_OK && l < d->layers; l++)
        if (ddp__unpack64(hash + (size_t)l * DDP__WORDS) != ddp__unit_hash(&d->unit[l]))
            s = ddp__fail(err, DDP_MISMATCH, "layer %d: rank %d registered %s with %zu values in %d blocks, rank 0 something else: "
                          "every rank must register the same model", l, d->rank, d->unit[l].name, d->unit[l].count, d->unit[l].blocks);
    DDP_FREE(hash);
    return s;
}

static ddp_status ddp__agree(ddp_ctx *d, ddp_error *err)
{
    float *all = (float *)ddp__calloc((size_t)d->world * DDP__F_SIZE, sizeof *all);
    ddp__piece p;
    ddp_status s;
    int r, equal = 1;

    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory comparing %d ranks", d->world);
    ddp__fingerprint(d, all + (size_t)d->rank * DDP__F_SIZE);
    p.data = all;
    p.count = (size_t)d->world * DDP__F_SIZE;
    s = ddp__blocking(d, DDP__ALL_GATHER, &p, 1, 1, 0, err);
    if (s == DDP_OK) s = ddp__compare_ranks(d, all, err);
    for (r = 1; r < d->world; r++)
        if (memcmp(all + DDP__F_HASH, all + (size_t)r * DDP__F_SIZE + DDP__F_HASH, DDP__WORDS * sizeof *all)) equal = 0;
    DDP_FREE(all);
    if (s == DDP_OK && !equal) {
        float token = 0;
        DDP__TRY(ddp__compare_layers(d, err));
        /* this rank agrees with rank 0; wait for the abort of the one that does not */
        p.data = &token;
        p.count = 1;
        DDP__TRY(ddp__blocking(d, DDP__ALL_REDUCE, &p, 1, 1, 0, err));
        return ddp__fail(err, DDP_MISMATCH, "the ranks use different optimizers; rank %d has %s", d->rank, d->optimizer.name);
    }
    return s;
}

/* Everybody starts from rank 0's parameters, buffers and frozen layers included. */
static ddp_status ddp__share_parameters(ddp_ctx *d, ddp_error *err)
{
    int l, b;

    for (l = 0; l < d->layers; l++)
        for (b = 0; b < d->unit[l].blocks; b++) {
            ddp__piece p;
            p.data = d->unit[l].block[b].params;
            p.count = d->unit[l].block[b].count;
            DDP__TRY(ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err));
        }
    return DDP_OK;
}

/* The longest message of a session is all its layers at once. */
static ddp_status ddp__guard_layers(ddp_ctx *d, ddp_error *err)
{
    size_t count = 0;
    int l;

    for (l = 0; l < d->layers; l++)
        count += d->unit[l].count + (d->cfg.average_state ? d->unit[l].state_count : 0);
    return ddp__engine_guard(d->engine, count, err);
}

ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err)
{
    if (d->started) return DDP_OK;
    if (d->layers == 0)
        return ddp__fail(err, DDP_USAGE, "no layer is registered: call ddp_add_layer, or ddp_graph_build, before the first step");
    DDP__TRY(ddp__session_memory(d, err));
    if (d->engine) {
        if (d->cfg.check_writes) DDP__TRY(ddp__guard_layers(d, err));
        DDP__TRY(ddp__agree(d, err));
        DDP__TRY(ddp__share_parameters(d, err));
    }
    if (d->strategy->start) DDP__TRY(d->strategy->start(d));
    d->started = 1;
    d->mark = d->step_begin = ddp_now();
    return DDP_OK;
}
/* ==== end sync/start.c ==== */

/* ==== begin sync/planning.c ==== [sync] */
/* Profile -> plan: what the hooks measured becomes one profile, rank 0 plans, all ranks adopt. */

/* ---- profile ---- */

static double ddp__unit_flops(const ddp__unit *u) { return u->flops > 0 ? u->flops : 2.0 * (double)(u->count + 1); }

size_t ddp__unit_wire_bytes(const ddp_ctx *d, const ddp__unit *u)
{
    return (u->count + (d->cfg.average_state ? u->state_count : 0)) * sizeof(float);
}

static ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    int l;

    memset(p, 0, sizeof *p);
    DDP__TRY(ddp_profile_new(d->layers, p, err));
    for (l = 0; l < d->layers; l++) {
        p->name[l] = ddp__strdup(d->unit[l].name);
        p->params[l] = (double)d->unit[l].count;
        if (p->name[l]) continue;
        ddp_profile_free(p);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a profile of %d layers", d->layers);
    }
    return DDP_OK;
}

/* Averaging b bytes over P ranks moves 2(P-1)/P x b over each uplink, there and back. */
static ddp_link ddp__link_nominal(const ddp_ctx *d)
{
    ddp_link k;
    double rate = d->rate > 0 ? d->rate : 125e6; /* 1 Gbit/s where no link is described */

    k.beta_s = 2.0 * (d->world - 1) / d->world / rate;
    k.alpha_s = d->world > 1 ? 2 * d->delay_s : 0;
    return k;
}

static void ddp__profile_link(ddp_ctx *d, ddp_profile *p)
{
    /* only so many operations are in flight, and each takes alpha at least */
    double least = d->engine ? d->link.alpha_s / ddp__engine_width(d->engine) : 0;
    int l;

    p->alpha_s = d->link.alpha_s;
    for (l = 0; l < d->layers; l++) {
        double bytes = (double)ddp__unit_wire_bytes(d, &d->unit[l]), seconds = d->link.beta_s * bytes;
        p->comm_s[l] = bytes > 0 && seconds < least ? least : seconds;
    }
}

/* Without clocks: 10 GFLOP/s, backward twice the forward, the nominal link. */
static void ddp__profile_nominal(ddp_ctx *d, ddp_profile *p)
{
    int l;

    d->link = ddp__link_nominal(d);
    for (l = 0; l < d->layers; l++) {
        p->forward_s[l] = 1e-10 * ddp__unit_flops(&d->unit[l]);
        p->backward_s[l] = 2 * p->forward_s[l];
    }
    ddp__profile_link(d, p);
}

/* Scales x so that it sums to total, where both are known. */
static void ddp__scale_to(double *x, int n, double total)
{
    double sum = 0;
    int i;

    for (i = 0; i < n; i++) sum += x[i];
    for (i = 0; sum > 0 && total > 0 && i < n; i++) x[i] *= total / sum;
}

/* What this rank measured; times that no hook told apart are split by FLOPs. */
static void ddp__profile_local(const ddp_ctx *d, ddp_profile *p)
{
    double flops = 0, last = 2 * ddp__unit_flops(&d->unit[d->layers - 1]);
    int l;

    for (l = 0; l < d->layers; l++) {
        p->forward_s[l] = ddp__timer_median(&d->timer, DDP__T_FORWARD, l);
        p->backward_s[l] = ddp__timer_median(&d->timer, DDP__T_BACKWARD, l);
        flops += ddp__unit_flops(&d->unit[l]);
    }
    /* layers in proportion to their medians, passes as long as passes are */
    ddp__scale_to(p->forward_s, d->layers, ddp__timer_median_sum(&d->timer, DDP__T_FORWARD));
    ddp__scale_to(p->backward_s, d->layers, ddp__timer_median_sum(&d->timer, DDP__T_BACKWARD));
    l = d->layers - 1;
    if (d->timer.whole > 0) { /* no forward hook: forward and the last layer's backward are one */
        int k;
        for (k = 0; k < d->layers; k++) p->forward_s[k] = d->timer.whole * ddp__unit_flops(&d->unit[k]) / (flops + last);
        p->backward_s[l] += d->timer.whole * last / (flops + last);
    } else if (p->backward_s[l] <= 0) { /* forward hooks, no backward_begin */
        p->backward_s[l] = p->forward_s[l] * 2 / 3;
        p->forward_s[l] /= 3;
    }
    for (l = 0; l < d->layers; l++) p->backward_s[l] += ddp__timer_median(&d->timer, DDP__T_UPDATE, l);
}

/* The slowest rank of each layer, because an average cannot start before the last worker is
 * there; the passes as long as the slowest rank's: unlike ranks stumble over unlike layers. */
static void ddp__slowest(const float *all, int world, size_t layers, double *out)
{
    double longest = 0;
    size_t l;
    int r;

    memset(out, 0, layers * sizeof *out);
    for (r = 0; r < world; r++) {
        const float *x = all + (size_t)r * 2 * layers;
        double pass = 0;
        for (l = 0; l < layers; l++) {
            pass += (double)x[l];
            if ((double)x[l] > out[l]) out[l] = (double)x[l];
        }
        if (pass > longest) longest = pass;
    }
    ddp__scale_to(out, (int)layers, longest);
}

static ddp_status ddp__profile_agree(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    size_t L = (size_t)d->layers, l;
    float *all = (float *)ddp__calloc((size_t)d->world * 2 * L, sizeof *all), *own;
    ddp__piece piece;
    ddp_status s;

    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory agreeing on a profile of %d layers", d->layers);
    own = all + (size_t)d->rank * 2 * L;
    for (l = 0; l < L; l++) {
        own[l] = (float)p->forward_s[l];
        own[L + l] = (float)p->backward_s[l];
    }
    piece.data = all;
    piece.count = (size_t)d->world * 2 * L;
    s = ddp__blocking(d, DDP__ALL_GATHER, &piece, 1, 1, 0, err);
    if (s == DDP_OK) {
        ddp__slowest(all, d->world, L, p->forward_s);
        ddp__slowest(all + L, d->world, L, p->backward_s);
    }
    DDP_FREE(all);
    return s;
}

/* ---- link ---- */

enum { DDP__PROBE_FLOATS = 1024, DDP__PROBE_SHORT = 1, DDP__PROBE_MEDIUM = 16, DDP__PROBE_MOST = 1024,
       DDP__PROBE_LEAST = 3, DDP__PROBE_REPEATS = 8 };

/* Transfers timed so far; those from `first` on are of `pieces` pieces each. */
typedef struct ddp__probe {
    double bytes[3 * DDP__PROBE_REPEATS], seconds[3 * DDP__PROBE_REPEATS];
    int    n, first, pieces;
} ddp__probe;

/* How many pieces to average next; 0: enough. A size is done when its two fastest transfers agree
 * within 3 per cent. The last size takes 0.12 s, where a thread that wakes up late matters little. */
static int ddp__probe_next(ddp__probe *q)
{
    double fastest = INFINITY, second = INFINITY, in_time;
    int i;

    for (i = q->first; i < q->n; i++) {
        double t = q->seconds[i];
        if (t < fastest) {
            second = fastest;
            fastest = t;
        } else if (t < second) {
            second = t;
        }
    }
    i = q->n - q->first;
    if (i < DDP__PROBE_LEAST || (i < DDP__PROBE_REPEATS && second > 1.03 * fastest)) return q->pieces;
    q->first = q->n;
    if (q->pieces == DDP__PROBE_SHORT) return q->pieces = DDP__PROBE_MEDIUM;
    if (q->pieces != DDP__PROBE_MEDIUM) return 0;
    in_time = 0.12 / fastest * q->pieces;
    q->pieces = in_time < (double)DDP__PROBE_MOST ? (int)in_time : DDP__PROBE_MOST;
    if (q->pieces < 2 * DDP__PROBE_MEDIUM) q->pieces = 2 * DDP__PROBE_MEDIUM;
    return q->pieces;
}

/* Times averaging a few sizes; every rank then takes rank 0's fit. The same few zeros are sent
 * over and over, so that the largest size needs no memory. */
static ddp_status ddp__probe_link(ddp_ctx *d, ddp_error *err)
{
    float fit[2], next, *x = (float *)ddp__calloc(DDP__PROBE_FLOATS, sizeof *x);
    ddp__piece one, *list = (ddp__piece *)ddp__calloc(DDP__PROBE_MOST, sizeof *list), p;
    ddp__probe q;
    ddp_status s = DDP_OK;
    int i;

    if (!x || !list) s = ddp__fail(err, DDP_MEMORY, "out of memory probing the link");
    for (i = 0; s == DDP_OK && i < DDP__PROBE_MOST; i++) {
        list[i].data = x;
        list[i].count = DDP__PROBE_FLOATS;
    }
    one.data = &next;
    one.count = 1;
    memset(&q, 0, sizeof q);
    q.pieces = DDP__PROBE_SHORT;
    while (s == DDP_OK) {
        double begin;
        /* rank 0 decides; and all ranks leave this together, as far as the link allows */
        next = d->rank == 0 ? (float)ddp__probe_next(&q) : 0;
        s = ddp__blocking(d, DDP__ALL_REDUCE, &one, 1, 1, 0, err);
        if (s != DDP_OK || !(next > 0)) break;
        begin = ddp_now();
        s = ddp__blocking(d, DDP__ALL_REDUCE, list, (int)next, 1, 0, err);
        if (d->rank) continue;
        q.bytes[q.n] = sizeof(float) * DDP__PROBE_FLOATS * (double)next;
        q.seconds[q.n++] = ddp_now() - begin;
    }
    DDP_FREE(list);
    DDP_FREE(x);
    DDP__TRY(s);
    if (d->rank == 0) DDP__TRY(ddp_link_fit(q.bytes, q.seconds, q.n, &d->link, err));
    fit[0] = (float)(d->link.alpha_s * 1e6);
    fit[1] = (float)(d->link.beta_s * 1e12);
    p.data = fit;
    p.count = 2;
    DDP__TRY(ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err));
    d->link.alpha_s = (double)fit[0] * 1e-6;
    d->link.beta_s = (double)fit[1] * 1e-12;
    return DDP_OK;
}

/* ---- plan ---- */

static int ddp__forward_hooks_now(const ddp_ctx *d)
{
    int l;

    if (d->hooks_forward) return 1;
    for (l = 0; l < d->layers; l++)
        if (d->unit[l].forward_step != d->step) return 0;
    return 1;
}

static void ddp__plan_options(const ddp_ctx *d, ddp_plan_options *o)
{
    memset(o, 0, sizeof *o);
    o->period = d->cfg.period;
    o->fill = d->cfg.fill;
    o->cost = d->cfg.cost;
    o->solver = d->cfg.solver;
    if (o->cost == DDP_COST_DEFAULT)
        o->cost = ddp__forward_hooks_now(d) && !d->cfg.paper && !(d->cfg.clip_norm > 0) ? DDP_COST_WINDOW : DDP_COST_TIMELINE;
    if (o->solver == DDP_SOLVER_DEFAULT) o->solver = d->cfg.paper ? DDP_SOLVER_OPTIMAL : DDP_SOLVER_SCATTER;
    if (d->strategy->id == DDP_ENP) o->solver = DDP_SOLVER_ENP;
}

static ddp_status ddp__plan_copy(const ddp_plan *from, ddp_plan *to, ddp_error *err)
{
    ddp_plan p;
    size_t fill = (size_t)from->layers * (size_t)from->period;

    DDP__TRY(ddp_plan_new(from->layers, from->period, &p, err));
    memcpy(p.step_of, from->step_of, (size_t)from->layers * sizeof *p.step_of);
    if (from->fill) memcpy(p.fill, from->fill, fill);
    p.solver = from->solver;
    p.cost = from->cost;
    p.objective_s = from->objective_s;
    p.exposed_s = from->exposed_s;
    p.lower_bound_s = from->lower_bound_s;
    ddp_plan_free(to);
    *to = p;
    return DDP_OK;
}

/* Everyone takes rank 0's plan; its hash proves that it arrived whole. */
static ddp_status ddp__plan_share(ddp_ctx *d, ddp_error *err)
{
    size_t L = (size_t)d->layers, fill = L * (size_t)d->plan.period, n = L + fill + 2, i;
    float *x;
    ddp__piece p;
    ddp_status s;
    uint32_t hash = (uint32_t)ddp_plan_hash(&d->plan);

    if (!d->engine) return DDP_OK;
    x = (float *)ddp__calloc(n, sizeof *x);
    if (!x) return ddp__fail(err, DDP_MEMORY, "out of memory sharing the plan of %d layers", d->layers);
    for (i = 0; i < L; i++) x[i] = (float)d->plan.step_of[i];
    for (i = 0; i < fill; i++) x[L + i] = (float)d->plan.fill[i];
    x[n - 2] = (float)(hash & 0xffff);
    x[n - 1] = (float)(hash >> 16);
    p.data = x;
    p.count = n;
    s = ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err);
    for (i = 0; i < L; i++) d->plan.step_of[i] = (int)x[i];
    for (i = 0; i < fill; i++) d->plan.fill[i] = (unsigned char)x[L + i];
    hash = (uint32_t)x[n - 2] | (uint32_t)x[n - 1] << 16;
    DDP_FREE(x);
    if (s == DDP_OK && hash != (uint32_t)ddp_plan_hash(&d->plan))
        s = ddp__fail(err, DDP_MISMATCH, "rank %d received a plan whose hash is %08x, rank 0 sent %08x", d->rank,
                      (unsigned)ddp_plan_hash(&d->plan), (unsigned)hash);
    return s;
}

/* The objective hardly tells a plan that just fits from one with room to spare, but a link that is
 * a little slower than measured does. So the plan for a link that is a tenth slower is preferred,
 * where it costs at most one per cent on the link as measured. */
static ddp_status ddp__plan_with_slack(const ddp_profile *p, const ddp_plan_options *o, ddp_plan *plan, ddp_error *err)
{
    ddp_profile slower = *p;
    ddp_plan other;
    ddp_status s;
    int l;

    DDP__TRY(ddp_plan_partial(p, o, plan, err));
    slower.comm_s = (double *)ddp__calloc((size_t)p->layers, sizeof *slower.comm_s);
    for (l = 0; slower.comm_s && l < p->layers; l++) slower.comm_s[l] = 1.1 * p->comm_s[l];
    slower.alpha_s *= 1.1;
    memset(&other, 0, sizeof other);
    s = slower.comm_s ? ddp_plan_partial(&slower, o, &other, err)
                      : ddp__fail(err, DDP_MEMORY, "out of memory planning %d layers", p->layers);
    if (s == DDP_OK) s = ddp_plan_evaluate(p, other.cost, &other, err);
    if (s == DDP_OK && other.objective_s <= 1.01 * plan->objective_s) {
        ddp_plan swap = *plan;
        *plan = other;
        other = swap;
    }
    ddp_plan_free(&other);
    DDP_FREE(slower.comm_s);
    if (s != DDP_OK) ddp_plan_free(plan);
    return s;
}

static ddp_status ddp__plan_make(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    ddp_plan_options o;
    ddp_plan plan;
    ddp_status s;

    ddp__plan_options(d, &o);
    memset(&plan, 0, sizeof plan);
    if (d->rank == 0) s = d->cfg.paper ? ddp_plan_partial(p, &o, &plan, err) : ddp__plan_with_slack(p, &o, &plan, err);
    else s = ddp_plan_new(d->layers, o.period, &plan, err);
    DDP__TRY(s);
    if (!plan.solver) plan.solver = o.solver;
    if (!plan.cost) plan.cost = o.cost;
    ddp_plan_free(&d->plan);
    d->plan = plan;
    DDP__TRY(ddp__plan_share(d, err));
    return ddp_plan_evaluate(p, d->plan.cost, &d->plan, err); /* the same figures on every rank */
}

static ddp_status ddp__plan_from_file(ddp_ctx *d, ddp_error *err)
{
    ddp_plan plan;

    memset(&plan, 0, sizeof plan);
    DDP__TRY(ddp_plan_read(d->cfg.plan_path, d->layers, &plan, err));
    if (plan.period != d->cfg.period) {
        int period = plan.period;
        ddp_plan_free(&plan);
        return ddp__fail(err, DDP_MISMATCH, "the plan %s is for period %d, this run has period %d: set the period to %d",
                         d->cfg.plan_path, period, d->cfg.period, period);
    }
    ddp_plan_free(&d->plan);
    d->plan = plan;
    return ddp__plan_share(d, err);
}

static ddp_status ddp__profile_from_file(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    d->link = ddp__link_nominal(d);
    DDP__TRY(ddp_profile_read(d->cfg.profile_path, &d->link, p, err));
    if (p->layers != d->layers) {
        int rows = p->layers;
        ddp_profile_free(p);
        return ddp__fail(err, DDP_MISMATCH, "the profile %s has %d rows, the model has %d layers: one row per layer is needed",
                         d->cfg.profile_path, rows, d->layers);
    }
    return DDP_OK;
}

ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err)
{
    ddp_profile p;
    ddp_status s;

    memset(&p, 0, sizeof p);
    if (d->cfg.profile_path) {
        DDP__TRY(ddp__profile_from_file(d, &p, err));
    } else {
        DDP__TRY(ddp__profile_start(d, &p, err));
        ddp__profile_nominal(d, &p);
    }
    if (d->cfg.plan_path) {
        s = ddp__plan_from_file(d, err);
        if (s == DDP_OK) s = ddp_plan_evaluate(&p, d->plan.cost, &d->plan, err);
    } else if (d->plan_final) {
        s = ddp__plan_make(d, &p, err);
    } else {
        /* while profiling: equal numbers of layers, which needs no measurement */
        ddp_plan_options o;
        ddp__plan_options(d, &o);
        o.solver = DDP_SOLVER_ENP;
        o.fill = DDP_FILL_NONE;
        s = ddp_plan_partial(&p, &o, &d->plan, err);
    }
    if (s != DDP_OK) {
        ddp_profile_free(&p);
        return s;
    }
    if (d->plan_final) {
        d->profile = p;
        d->hooks_forward = ddp__forward_hooks_now(d);
        ddp__account_predict(d);
    } else {
        ddp_profile_free(&p);
    }
    return DDP_OK;
}

ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__average_wait_all(d, err));
    ddp_profile_free(&d->profile);
    DDP__TRY(ddp__profile_start(d, &d->profile, err));
    ddp__profile_local(d, &d->profile);
    if (d->engine) {
        DDP__TRY(ddp__probe_link(d, err));
        DDP__TRY(ddp__profile_agree(d, &d->profile, err));
    }
    ddp__profile_link(d, &d->profile);
    d->plan_final = d->measured = 1;
    if (d->strategy->partial) DDP__TRY(ddp__plan_make(d, &d->profile, err));
    ddp__drift_start(d);
    ddp__account_predict(d);
    ddp__account_reset(d);
    return DDP_OK;
}

ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__average_wait_all(d, err));
    ddp__profile_link(d, &d->profile);
    DDP__TRY(ddp__plan_make(d, &d->profile, err));
    ddp__drift_start(d);
    ddp__account_predict(d);
    return DDP_OK;
}

int ddp_plan_adopt(ddp_ctx *d, const ddp_plan *plan)
{
    DDP__ENTER(d);
    if (!d->strategy->partial)
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_plan_adopt: strategy %s follows no plan; use dreamddp or enp", d->strategy->name);
    if (!plan || plan->layers != d->layers || plan->period < 1)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_plan_adopt: a plan for %d layers is needed, this one has %d layers and period %d",
                              d->layers, plan ? plan->layers : 0, plan ? plan->period : 0);
    if (!d->started && ddp__session_start(d, &d->host.error)) return ddp__ctx_fail(d, &d->host.error);
    if (ddp__average_wait_all(d, &d->host.error) || ddp__plan_copy(plan, &d->plan, &d->host.error) ||
        ddp__plan_share(d, &d->host.error))
        return ddp__ctx_fail(d, &d->host.error);
    d->plan_final = 1;
    ddp__account_reset(d);
    return 0;
}

/* ---- prediction ---- */

void ddp__account_predict(ddp_ctx *d)
{
    const ddp_profile *p = &d->profile;
    double forward = 0, backward = 0, comm = 0, step, exposed;
    int l, H = d->cfg.period;

    for (l = 0; l < p->layers; l++) {
        forward += p->forward_s ? p->forward_s[l] : 0;
        backward += p->backward_s[l];
        comm += d->world > 1 ? p->comm_s[l] : 0;
    }
    exposed = comm > 0 ? comm + p->alpha_s : 0;
    if (d->strategy->partial) {
        exposed = d->world > 1 ? d->plan.exposed_s : 0;
        step = exposed / d->plan.period;
    } else if (d->strategy->id == DDP_LOCALSGD) {
        step = exposed / H;
    } else if (d->strategy->id == DDP_WFBP) {
        /* a bucket leaves when its last layer is done */
        double link = 0, t = 0;
        int b;
        for (b = 0, l = p->layers - 1; b < d->buckets; b++) {
            double transfer = 0;
            for (; l >= d->bucket[b].last; l--) {
                t += p->backward_s[l];
                transfer += p->comm_s[l];
            }
            link = (link > t ? link : t) + transfer;
        }
        exposed = comm > 0 && link + p->alpha_s > backward ? link + p->alpha_s - backward : 0;
        step = exposed;
    } else {
        step = exposed;
    }
    d->stats.predicted_step_s = forward + backward + step;
    d->stats.predicted_hidden_pct = comm > 0 && exposed < comm ? 100 * (1 - exposed / comm) : comm > 0 ? 0 : 100;
}
/* ==== end sync/planning.c ==== */

/* ==== begin sync/drift.c ==== [sync] */
/* bytes, seconds -> link model -> re-plan: the link is followed while training, and when it has
 * moved by a fifth all ranks plan again. */

enum { DDP__DRIFT_PERIODS = 4 };    /* how often rank 0 says whether to plan again */
static const double ddp__drift_limit = 0.2;

/* Operations that overlap share the link: together they tell seconds for bytes. Grows the
 * cluster that begins with operation i; 0 if i is not its first or not all of it is known. */
static int ddp__cluster(const ddp_ctx *d, int ops, int i, double *begin, double *end, double *bytes)
{
    const ddp__op_span *o = d->op_scratch;
    int j, before = -1, size = 0;

    *begin = o[i].begin;
    *end = o[i].end;
    while (size != before) { /* until no further operation overlaps */
        before = size;
        size = 0;
        *bytes = 0;
        for (j = 0; j < ops; j++) {
            if (o[j].begin >= *end || (o[j].end >= 0 && o[j].end <= *begin)) continue;
            if (o[j].begin < *begin || (o[j].begin == *begin && j < i)) return 0;
            if (o[j].end < 0 || o[j].layer < 0 || o[j].verb != DDP__ALL_REDUCE) return 0;
            if (o[j].end > *end) *end = o[j].end;
            *bytes += (double)ddp__unit_wire_bytes(d, &d->unit[o[j].layer]);
            size++;
        }
    }
    return 1;
}

void ddp__drift_observe(ddp_ctx *d, double since, double now)
{
    /* a step more than is new, so that no cluster is seen without its beginning */
    int ops = ddp__engine_spans(d->engine, 2 * since - now, now, d->op_scratch, d->op_room), i;

    for (i = 0; i < ops; i++) {
        double begin, end, bytes;
        if (d->op_scratch[i].end < 0 || !ddp__cluster(d, ops, i, &begin, &end, &bytes)) continue;
        if (end > since) ddp_linkfit_add(&d->fit, bytes, end - begin);
    }
}

void ddp__drift_start(ddp_ctx *d)
{
    double bytes = 0;
    int l;

    for (l = 0; l < d->layers; l++) bytes += (double)ddp__unit_wire_bytes(d, &d->unit[l]) / d->layers;
    d->mean_layer_bytes = bytes;
    ddp_linkfit_start(&d->fit, d->link, bytes, 4.0 * d->layers);
    d->drift_ticket = -1;
}

/* Rank 0's word travels unhurried, during the period after it was given. */
static ddp_status ddp__drift_ask(ddp_ctx *d, ddp_error *err)
{
    double moved = ddp_link_drift(d->link, d->fit.link, &d->mean_layer_bytes, 1);
    ddp__message m;

    d->drift_word[0] = moved > ddp__drift_limit || moved < -ddp__drift_limit ? 1.0f : 0.0f;
    d->drift_word[1] = (float)(d->fit.link.alpha_s * 1e6);
    d->drift_word[2] = (float)(d->fit.link.beta_s * 1e12);
    d->drift_piece.data = d->drift_word;
    d->drift_piece.count = 3;
    memset(&m, 0, sizeof m);
    m.verb = DDP__BROADCAST;
    m.pieces = &d->drift_piece;
    m.piece_count = 1;
    m.step = d->step;
    m.layer = -1;
    m.priority = d->layers;
    m.filler = 1;
    return ddp__engine_submit(d->engine, &m, &d->drift_ticket, err);
}

ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err)
{
    long every = (long)d->plan.period * DDP__DRIFT_PERIODS;

    if (!d->engine || !d->strategy->partial) return DDP_OK;
    if (d->step % every == 0) return ddp__drift_ask(d, err);
    if (d->drift_ticket < 0 || d->step % every != d->plan.period) return DDP_OK;
    DDP__TRY(ddp__engine_wait(d->engine, d->drift_ticket, err));
    d->drift_ticket = -1;
    if (d->drift_word[0] == 0.0f) return DDP_OK;
    ddp__log(&d->host.log, DDP_LOG_INFO, "step %ld: averaging a layer now takes %.2f ms + %.1f ns per byte (was %.2f ms + %.1f ns): planning again",
             d->step, 1e-3 * (double)d->drift_word[1], 1e-3 * (double)d->drift_word[2], 1e3 * d->link.alpha_s, 1e9 * d->link.beta_s);
    d->link.alpha_s = (double)d->drift_word[1] * 1e-6;
    d->link.beta_s = (double)d->drift_word[2] * 1e-12;
    return ddp__plan_again(d, err);
}
/* ==== end sync/drift.c ==== */

/* ==== begin sync/planfile.c ==== [sync] */
/* Plans from files: the JSON object that `plan partial` prints. */

/* Marks the layers of one list; want_step also assigns them. */
static ddp_status ddp__plan_list(const char *path, const ddp__json *list, int step, int layers, int assign, ddp_plan *plan,
                                 ddp_error *err)
{
    const ddp__json *v;

    for (v = list->first; v; v = v->next) {
        int l = v->kind == DDP__JSON_NUMBER ? (int)v->number : -1;
        if (l < 0 || l >= layers || (double)l != v->number)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d: the model has layers 0 to %d; the sets name another", path, v->line, layers - 1);
        if (!assign) {
            plan->fill[(size_t)step * (size_t)layers + (size_t)l] = 1;
            continue;
        }
        if (plan->step_of[l] >= 0)
            return ddp__fail(err, DDP_FORMAT, "%s, line %d: layer %d is in two sets; each is averaged once per period", path, v->line, l);
        plan->step_of[l] = step;
    }
    return DDP_OK;
}

static ddp_status ddp__plan_parse(const char *path, const ddp__json *root, int layers, ddp_plan *plan, ddp_error *err)
{
    const ddp__json *sets = NULL, *fill = ddp__json_get(root, "fill"), *v, *name;
    int l, h = 0;

    DDP__TRY(ddp__json_need(path, root, "sets", DDP__JSON_ARRAY, &sets, err));
    if (sets->count < 1) return ddp__fail(err, DDP_FORMAT, "%s: sets is empty; one list per step of the period is needed", path);
    DDP__TRY(ddp_plan_new(layers, (int)sets->count, plan, err));
    for (l = 0; l < layers; l++) plan->step_of[l] = -1;
    for (v = sets->first; v; v = v->next) DDP__TRY(ddp__plan_list(path, v, h++, layers, 1, plan, err));
    for (l = 0; l < layers; l++)
        if (plan->step_of[l] < 0) return ddp__fail(err, DDP_FORMAT, "%s: layer %d is in no set; each is averaged once per period", path, l);
    if (fill && fill->kind == DDP__JSON_ARRAY && fill->count == sets->count)
        for (h = 0, v = fill->first; v; v = v->next) DDP__TRY(ddp__plan_list(path, v, h++, layers, 0, plan, err));
    name = ddp__json_get(root, "solver");
    if (name && name->kind == DDP__JSON_STRING) (void)ddp_solver_named(name->string, &plan->solver, NULL);
    name = ddp__json_get(root, "cost");
    if (name && name->kind == DDP__JSON_STRING) (void)ddp_cost_named(name->string, &plan->cost, NULL);
    return DDP_OK;
}

ddp_status ddp_plan_read(const char *path, int layers, ddp_plan *out, ddp_error *err)
{
    ddp__json *root = ddp__json_read(path, err);
    ddp_plan plan;
    ddp_status s;

    if (!root) return err ? err->code : DDP_FORMAT;
    memset(&plan, 0, sizeof plan);
    s = ddp__plan_parse(path, root, layers, &plan, err);
    ddp__json_free(root);
    if (s != DDP_OK) {
        ddp_plan_free(&plan);
        return s;
    }
    *out = plan;
    return DDP_OK;
}
/* ==== end sync/planfile.c ==== */

/* ==== begin sync/hooks.c ==== [sync] */
/* The hooks of a step (DESIGN sections 3 and 4). */

int ddp__ctx_failf(ddp_ctx *d, ddp_status code, const char *fmt, ...)
{
    ddp_error err;
    va_list ap;

    err.code = code;
    va_start(ap, fmt);
    vsnprintf(err.msg, sizeof err.msg, fmt, ap);
    va_end(ap);
    return ddp__ctx_fail(d, &err);
}

int ddp__ctx_fail(ddp_ctx *d, const ddp_error *err)
{
    if (err != &d->host.error) {
        if (d->host.error.code) return (int)d->host.error.code;
        d->host.error = *err;
    }
    /* a no-op when the failure came from the engine; else the other ranks learn of it */
    if (d->engine) ddp__engine_abort(d->engine, err->code, d->host.error.msg);
    return (int)d->host.error.code;
}

/* Leaves a hook: the time from here on belongs to phase of layer. */
static int ddp__leave(ddp_ctx *d, ddp_status s, ddp__phase phase, int layer)
{
    if (s != DDP_OK) return ddp__ctx_fail(d, &d->host.error);
    d->phase = phase;
    d->phase_layer = layer;
    d->mark = ddp_now();
    return 0;
}

/* Enters a hook of layer: checks it, starts the session at the first one, closes the interval. */
static ddp_status ddp__enter_layer(ddp_ctx *d, int layer, const char *hook, ddp__phase entering)
{
    double now = ddp_now();

    if (layer < 0 || layer >= d->layers)
        return ddp__fail(&d->host.error, DDP_ARG, "%s: layer %d does not exist; %d layers are registered, numbered from 0",
                         hook, layer, d->layers);
    if (!d->started) DDP__TRY(ddp__session_start(d, &d->host.error));
    ddp__account_hook(d, now, layer, entering);
    return DDP_OK;
}

int ddp_forward_begin(ddp_ctx *d, int layer)
{
    ddp_status s;

    DDP__ENTER(d);
    s = ddp__enter_layer(d, layer, "ddp_forward_begin", DDP__IN_FORWARD);
    if (s == DDP_OK) {
        d->unit[layer].forward_step = d->step;
        s = ddp__average_wait(d, layer, &d->host.error);
    }
    return ddp__leave(d, s, DDP__IN_FORWARD, layer);
}

int ddp_backward_begin(ddp_ctx *d, int layer)
{
    DDP__ENTER(d);
    return ddp__leave(d, ddp__enter_layer(d, layer, "ddp_backward_begin", DDP__IN_BACKWARD), DDP__IN_BACKWARD, layer);
}

static ddp_status ddp__gradient_ready(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];

    if (++u->passes > d->cfg.micro_batches)
        return ddp__fail(&d->host.error, DDP_USAGE,
                         "step %ld: ddp_backward_end(%d) was called %d times for layer %s, expected %d; is ddp_step_end missing, or "
                         "ddp_config.micro_batches too small?",
                         d->step, layer, u->passes, u->name, d->cfg.micro_batches);
    if (u->ticket >= 0)
        return ddp__fail(&d->host.error, DDP_USAGE,
                         "step %ld: layer %s was used while its average of the step before was still on its way: earlier steps "
                         "called ddp_forward_begin(%d), this one did not; call it in every step or in none",
                         d->step, u->name, layer);
    if (u->passes < d->cfg.micro_batches) return DDP_OK;
    ddp__mean_gradients(d, layer);
    return d->strategy->backward_end(d, layer);
}

int ddp_backward_end(ddp_ctx *d, int layer)
{
    ddp_status s;

    DDP__ENTER(d);
    s = ddp__enter_layer(d, layer, "ddp_backward_end", DDP__AFTER_BACKWARD);
    if (s == DDP_OK) s = ddp__gradient_ready(d, layer);
    return ddp__leave(d, s, DDP__AFTER_BACKWARD, layer);
}

int ddp_report(ddp_ctx *d, const ddp_step_info *info)
{
    DDP__ENTER(d);
    if (!info) return ddp__ctx_failf(d, DDP_ARG, "ddp_report: info is NULL");
    if (!(info->loss >= -DBL_MAX && info->loss <= DBL_MAX))
        return ddp__ctx_failf(d, DDP_NUMERIC, "step %ld: the loss is %g on rank %d: lower the learning rate, warm it up or clip gradients",
                              d->step, info->loss, d->rank);
    if (info->lr > 0) d->lr = info->lr;
    return 0;
}

static ddp_status ddp__finish_step(ddp_ctx *d)
{
    int l, forward = 1;

    for (l = 0; l < d->layers; l++) {
        if (d->unit[l].passes != d->cfg.micro_batches)
            return ddp__fail(&d->host.error, DDP_USAGE,
                             "step %ld: layer %s had %d of %d ddp_backward_end calls on rank %d when ddp_step_end came",
                             d->step, d->unit[l].name, d->unit[l].passes, d->cfg.micro_batches, d->rank);
        if (d->unit[l].forward_step != d->step) forward = 0;
    }
    d->hooks_forward = forward;
    DDP__TRY(d->strategy->step_end(d));
    for (l = 0; l < d->layers; l++) d->unit[l].passes = 0;
    if (d->engine) DDP__TRY(ddp__engine_error(d->engine, &d->host.error));
    if (ddp__atomic_load(&d->aborted)) return ddp__fail(&d->host.error, DDP_ABORTED, "aborted by request in step %ld", d->step);
    return DDP_OK;
}

int ddp_step_end(ddp_ctx *d)
{
    ddp_status s = DDP_OK;

    DDP__ENTER(d);
    if (!d->started) s = ddp__session_start(d, &d->host.error);
    if (s == DDP_OK) {
        ddp__account_hook(d, ddp_now(), -1, DDP__OUTSIDE);
        s = ddp__finish_step(d);
    }
    if (s == DDP_OK) {
        ddp__account_step(d, ddp_now());
        d->step++;
        if (!d->plan_final && d->step == d->cfg.profile_steps) s = ddp__plan_measured(d, &d->host.error);
        else if (d->measured) s = ddp__drift_step(d, &d->host.error);
    }
    return ddp__leave(d, s, DDP__OUTSIDE, -1);
}

int ddp_wait(ddp_ctx *d)
{
    DDP__ENTER(d);
    return ddp__leave(d, ddp__average_wait_all(d, &d->host.error), DDP__OUTSIDE, -1);
}

/* Gradient strategies keep parameters equal by themselves; their buffers differ. */
static ddp_status ddp__average_everything(ddp_ctx *d)
{
    int l, b;

    DDP__TRY(ddp__average_wait_all(d, &d->host.error));
    for (l = d->layers - 1; l >= 0; l--) {
        ddp__unit *u = &d->unit[l];
        if (d->strategy->id != DDP_SSGD && d->strategy->id != DDP_WFBP) {
            DDP__TRY(ddp__average_layer(d, l, 1, &d->host.error));
            DDP__TRY(ddp__average_wait(d, l, &d->host.error));
            continue;
        }
        for (b = 0; b < u->blocks; b++) {
            ddp__piece p;
            if (u->block[b].kind != DDP_BUFFERS) continue;
            p.data = u->block[b].params;
            p.count = u->block[b].count;
            DDP__TRY(ddp__blocking(d, DDP__ALL_REDUCE, &p, 1, 1.0f / (float)d->world, 0, &d->host.error));
        }
    }
    return DDP_OK;
}

int ddp_sync_all(ddp_ctx *d)
{
    ddp_status s = DDP_OK;

    DDP__ENTER(d);
    if (!d->started) s = ddp__session_start(d, &d->host.error);
    if (s == DDP_OK && d->engine) s = ddp__average_everything(d);
    return ddp__leave(d, s, DDP__OUTSIDE, -1);
}
/* ==== end sync/hooks.c ==== */

/* ==== begin sync/session.c ==== [sync] */
/* Opening and closing a context, and what can be asked of it. */

static const ddp__hooks *ddp__session_hooks(void)
{
    static const ddp__hooks table = {ddp_add_layer, ddp_forward_begin, ddp_backward_begin, ddp_backward_end};

    return &table;
}

static const char *ddp__name_of_layer(void *user, int layer)
{
    ddp_ctx *d = (ddp_ctx *)user;

    return layer >= 0 && layer < d->layers ? d->unit[layer].name : "";
}

static ddp_status ddp__connect(ddp_ctx *d, ddp__hub *hub, int listen_fd, ddp__wire **wire, ddp_error *err)
{
    ddp__rendezvous r;

    if (d->cfg.transport == DDP_THREADS) {
        if (!hub)
            return ddp__fail(err, DDP_USAGE, "the threads transport needs its ranks in one process: start them with ddp_launch");
        return ddp__wire_threads(hub, d->rank, wire, err);
    }
    memset(&r, 0, sizeof r);
    r.rank = d->rank;
    r.world = d->world;
    r.addr = d->cfg.addr;
    r.listen_fd = listen_fd;
    r.run_id = d->cfg.run_id ? ddp__hash(DDP__HASH_START, d->cfg.run_id, strlen(d->cfg.run_id)) : 0;
    r.timeout_s = d->cfg.connect_timeout_s;
    r.peer_timeout_s = d->cfg.peer_timeout_s;
    r.insecure = d->cfg.insecure;
    r.congestion = d->cfg.no_env ? NULL : getenv("DREAMDDP_TCP_CONGESTION");
    r.log = d->host.log;
    return ddp__rendezvous_tcp(&r, wire, err);
}

static ddp_status ddp__engine_start(ddp_ctx *d, ddp__wire *wire, ddp_error *err)
{
    ddp__engine_config e;
    ddp_status s;

    memset(&e, 0, sizeof e);
    e.wire = wire;
    e.rank = d->rank;
    e.world = d->world;
    e.rate = d->rate;
    e.delay_s = d->delay_s;
    e.deterministic = d->cfg.deterministic;
    e.peer_timeout_s = d->cfg.peer_timeout_s;
    e.op_timeout_s = d->cfg.op_timeout_s;
    e.queue = 512; /* more layers than that in one step wait at the door, which costs nothing */
    e.allocator = d->cfg.allocator;
    e.log = d->host.log;
    e.layer_name = ddp__name_of_layer;
    e.user = d;
    s = ddp__engine_open(&e, &d->engine, err);
    if (s != DDP_OK) wire->table->close(wire);
    return s;
}

static ddp_status ddp__open_parts(ddp_ctx *d, ddp__hub *hub, int listen_fd, ddp_error *err)
{
    ddp__wire *wire = NULL;

    d->host.allocator = d->cfg.allocator;
    d->host.log = ddp__log_resolve(&d->cfg.logger, d->cfg.no_env);
    d->host.hooks = ddp__session_hooks();
    d->host.seed = d->cfg.seed;
    d->rank = d->cfg.rank;
    d->world = d->cfg.world;
    d->strategy = ddp__strategy_find(d->cfg.strategy);
    d->optimizer = ddp_sgd(0.01f, 0);
    d->lr = d->optimizer.lr;
    d->plan_final = d->cfg.profile_steps == 0;
    if (d->cfg.net) DDP__TRY(ddp_net_parse(d->cfg.net, &d->rate, &d->delay_s, err));
    if (d->cfg.threads > 1) {
        d->host.pool = ddp__pool_open(d->cfg.threads);
        if (!d->host.pool) return ddp__fail(err, DDP_MEMORY, "cannot start %d operator threads", d->cfg.threads);
    }
    if (d->world == 1) return DDP_OK;
    DDP__TRY(ddp__connect(d, hub, listen_fd, &wire, err));
    return ddp__engine_start(d, wire, err);
}

ddp_ctx *ddp__open(const ddp_config *cfg, ddp__hub *hub, int listen_fd, ddp_error *err)
{
    ddp_config zero;
    ddp_ctx *d = (ddp_ctx *)ddp__calloc(1, sizeof *d);
    ddp_error local;

    memset(&zero, 0, sizeof zero);
    if (!err) err = &local;
    memset(err, 0, sizeof *err);
    if (!d) {
        ddp__fail(err, DDP_MEMORY, "out of memory for a context");
        return NULL;
    }
    if (ddp__config_resolve(cfg ? cfg : &zero, &d->cfg, err) || ddp__open_parts(d, hub, listen_fd, err)) {
        ddp_close(d);
        return NULL;
    }
    return d;
}

ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err) { return ddp__open(cfg, NULL, -1, err); }

static void ddp__unit_free(ddp_ctx *d, ddp__unit *u)
{
    if (u->name) DDP_FREE(u->name);
    if (u->block) DDP_FREE(u->block);
    if (u->average) DDP_FREE(u->average);
    if (u->gradient) DDP_FREE(u->gradient);
    ddp__release(&d->host.allocator, u->state, u->state_count * sizeof(float));
}

void ddp_close(ddp_ctx *d)
{
    int i;

    if (!d) return;
    if (d->engine) ddp__engine_close(d->engine);
    while (d->host.owned) {
        ddp__owned *o = d->host.owned;
        d->host.owned = o->next;
        o->destroy(o);
    }
    for (i = 0; i < d->layers; i++) ddp__unit_free(d, &d->unit[i]);
    for (i = 0; i < d->buckets; i++)
        if (d->bucket[i].piece) DDP_FREE(d->bucket[i].piece);
    if (d->bucket) DDP_FREE(d->bucket);
    if (d->all_gradients) DDP_FREE(d->all_gradients);
    if (d->unit) DDP_FREE(d->unit);
    if (d->span) DDP_FREE(d->span);
    if (d->op_scratch) DDP_FREE(d->op_scratch);
    if (d->merge) DDP_FREE(d->merge);
    ddp__timer_close(&d->timer);
    ddp_plan_free(&d->plan);
    ddp_profile_free(&d->profile);
    ddp__pool_close(d->host.pool);
    ddp__config_free(&d->cfg);
    DDP_FREE(d);
}

/* ---- registration ---- */

static ddp_status ddp__check_block(const ddp_ctx *d, const char *name, const ddp_block *b, ddp_error *err)
{
    if (b->count == 0) return ddp__fail(err, DDP_ARG, "layer %d (%s): a block of 0 values; leave it out", d->layers, name);
    if (!b->params) return ddp__fail(err, DDP_ARG, "layer %d (%s): params is NULL for a block of %zu values", d->layers, name, b->count);
    if (b->kind == DDP_BUFFERS && b->grads)
        return ddp__fail(err, DDP_ARG, "layer %d (%s): a block of buffers has no gradients; leave grads NULL", d->layers, name);
    return DDP_OK;
}

static ddp_status ddp__unit_fill(ddp_ctx *d, ddp__unit *u, const ddp_layer *layer, ddp_error *err)
{
    int own = layer->params || layer->count, i;
    char number[32];

    snprintf(number, sizeof number, "layer %d", d->layers);
    u->name = ddp__strdup(layer->name ? layer->name : number);
    u->block = (ddp_block *)ddp__calloc((size_t)(layer->block_count + own), sizeof *u->block);
    if (!u->name || !u->block) return ddp__fail(err, DDP_MEMORY, "out of memory registering layer %d", d->layers);
    if (own) {
        u->block[0].params = layer->params;
        u->block[0].grads = layer->grads;
        u->block[0].count = layer->count;
        u->blocks = 1;
    }
    for (i = 0; i < layer->block_count; i++) u->block[u->blocks++] = layer->blocks[i];
    u->flops = layer->flops;
    for (i = 0; i < u->blocks; i++) DDP__TRY(ddp__check_block(d, u->name, &u->block[i], err));
    return DDP_OK;
}

int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer)
{
    ddp__unit u;

    DDP__ENTER(d);
    if (!layer || layer->block_count < 0 || (layer->block_count > 0 && !layer->blocks))
        return ddp__ctx_failf(d, DDP_ARG, "ddp_add_layer: layer %d is NULL or has blocks without an array", d->layers);
    if (d->started)
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_add_layer: layer %d (%s) comes too late: the list was frozen at %d layers by "
                              "ddp_set_optimizer or the first hook; register all layers before",
                              d->layers, layer->name ? layer->name : "unnamed", d->layers);
    if (d->layers == d->room) {
        int room = d->room ? 2 * d->room : 16;
        ddp__unit *grown = (ddp__unit *)DDP_REALLOC(d->unit, (size_t)room * sizeof *grown);
        if (!grown) return ddp__ctx_failf(d, DDP_MEMORY, "out of memory registering layer %d", d->layers);
        d->unit = grown;
        d->room = room;
    }
    memset(&u, 0, sizeof u);
    u.ticket = -1;
    if (ddp__unit_fill(d, &u, layer, &d->host.error)) {
        ddp__unit_free(d, &u);
        return ddp__ctx_fail(d, &d->host.error);
    }
    d->unit[d->layers++] = u;
    return 0;
}

int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o)
{
    DDP__ENTER(d);
    if (!o || !o->update || o->state_per_param < 0 || !(o->lr >= 0))
        return ddp__ctx_failf(d, DDP_ARG, "ddp_set_optimizer: an update function, state_per_param >= 0 and a learning rate >= 0 are needed");
    if (d->started)
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_set_optimizer: %s comes too late, training has begun", o->name ? o->name : "the optimizer");
    d->optimizer = *o;
    if (!d->optimizer.name) d->optimizer.name = "user";
    d->lr = o->lr;
    if (d->layers && ddp__session_start(d, &d->host.error)) return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

/* ---- reading ---- */

int  ddp_rank(const ddp_ctx *d) { return d ? d->rank : 0; }
int  ddp_world(const ddp_ctx *d) { return d ? d->world : 1; }
long ddp_step(const ddp_ctx *d) { return d ? d->step : 0; }

void ddp_set_lr(ddp_ctx *d, float lr)
{
    if (d) d->lr = lr;
}

const ddp_error *ddp_last_error(const ddp_ctx *d)
{
    static const ddp_error none = {DDP_ARG, "the context is NULL: ddp_open failed, its error says why"};

    return d ? &d->host.error : &none;
}

void ddp_abort(ddp_ctx *d, const char *why)
{
    /* any thread: only the engine, or one atomic, is touched; the hooks find the error there */
    if (d && d->engine) ddp__engine_abort(d->engine, DDP_ABORTED, why ? why : "aborted by request");
    else if (d) ddp__atomic_store(&d->aborted, 1);
}

const ddp_plan    *ddp_plan_get(const ddp_ctx *d) { return d && d->plan.layers ? &d->plan : NULL; }
const ddp_profile *ddp_profile_get(const ddp_ctx *d) { return d && d->profile.layers ? &d->profile : NULL; }
/* ==== end sync/session.c ==== */

/* ==== begin sync/launch.c ==== [sync] */
/* ddp_launch: the ranks of one machine. */

typedef struct ddp__launch {
    const ddp_config *cfg;
    int (*fn)(ddp_ctx *, void *);
    void    *user;
    ddp__hub *hub;
} ddp__launch;

static ddp_status ddp__launch_run(const ddp__launch *L, const ddp_config *cfg, int listen_fd, ddp_error *err)
{
    ddp_ctx *d = ddp__open(cfg, L->hub, listen_fd, err);
    int code;

    if (!d) {
        if (L->hub) ddp__hub_leave(L->hub, cfg->rank); /* or the others would wait for its first byte */
        return err->code;
    }
    code = L->fn(d, L->user);
    if (d->host.error.code) {
        *err = d->host.error;
        code = (int)d->host.error.code;
    } else if (code) {
        if (code < 0 || code >= (int)DDP_STATUS_COUNT) code = (int)DDP_FAILED;
        ddp__fail(err, (ddp_status)code, "rank %d returned %d (%s) without an error of the context", d->rank, code,
                  ddp_status_text((ddp_status)code));
    }
    ddp_close(d);
    return (ddp_status)code;
}

static ddp_status ddp__launch_rank(int rank, int listen_fd, const char *addr, void *user, ddp_error *err)
{
    const ddp__launch *L = (const ddp__launch *)user;
    ddp_config cfg = *L->cfg;

    cfg.rank = rank;
    if (addr && *addr) cfg.addr = addr;
    return ddp__launch_run(L, &cfg, listen_fd, err);
}

int ddp_launch(const ddp_config *given, int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err)
{
    ddp_config cfg;
    ddp_error local;
    ddp__launch L;
    ddp__env env;
    ddp_status s;

    if (!err) err = &local;
    memset(err, 0, sizeof *err);
    if (!given || !fn) return (int)ddp__fail(err, DDP_ARG, "ddp_launch: configuration or function is NULL");
    memset(&env, 0, sizeof env);
    if (!given->no_env) {
        s = ddp__env_read(&env, err);
        if (s != DDP_OK) return (int)s;
    }
    L.cfg = &cfg;
    L.fn = fn;
    L.user = user;
    L.hub = NULL;
    cfg = *given;
    if (env.launcher) { /* a launcher made the ranks: this is one of them */
        cfg.rank = cfg.world = 0;
        return (int)ddp__launch_run(&L, &cfg, -1, err);
    }
    /* one worker, or one rank of a world whose other ranks are started elsewhere */
    if (cfg.world <= 1 || cfg.addr) return (int)ddp__launch_run(&L, &cfg, -1, err);
    s = ddp__config_resolve(given, &cfg, err); /* every rank would fail alike: once is enough */
    if (s != DDP_OK) return (int)s;
    if (cfg.transport == DDP_THREADS) {
        L.hub = ddp__hub_new(cfg.world);
        s = L.hub ? ddp__spawn_threads(cfg.world, ddp__launch_rank, &L, err)
                  : ddp__fail(err, DDP_MEMORY, "out of memory for a hub of %d threads", cfg.world);
        if (L.hub) ddp__hub_free(L.hub);
    } else {
        s = ddp__spawn(cfg.world, cfg.cancel, 0, ddp__launch_rank, &L, err);
    }
    ddp__config_free(&cfg);
    return (int)s;
}
/* ==== end sync/launch.c ==== */

/* ==== begin report/summary.h ==== [report] */
/* The table of a report: one row per strategy, the same cells in text and in HTML. */
#ifndef DDP_REPORT_SUMMARY_H
#define DDP_REPORT_SUMMARY_H

#define DDP__SUMMARY_COLUMNS 7

#ifdef __cplusplus
extern "C" {
#endif

/* v with a fixed number of decimals (0..6) and a point whatever the locale; "-" if not finite. */
DDP_LIB void ddp__add_fixed(ddp__text *t, double v, int decimals);
/* The same without trailing zeros: for coordinates and tick labels. */
DDP_LIB void ddp__add_short(ddp__text *t, double v, int decimals);

/* Heading of column 0..DDP__SUMMARY_COLUMNS-1, and the cell of a run: strategy, step ms, ratio to
 * S-SGD, seconds to the common loss, MB sent per worker, hidden %, final loss. */
DDP_LIB const char *ddp__summary_heading(int column);
DDP_LIB void ddp__summary_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int column);

/* Step time of the run called ssgd over that of r: above 1 = faster. NAN without such a run. */
DDP_LIB double ddp__summary_ratio(const ddp_report_data *d, const ddp_report_run *r);
/* The run with the smallest step time, or NULL. */
DDP_LIB const ddp_report_run *ddp__summary_fastest(const ddp_report_data *d);

/* The aligned text of ddp_report_table. */
DDP_LIB void ddp__summary_text(ddp__text *t, const ddp_report_data *d);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_SUMMARY_H */
/* ==== end report/summary.h ==== */

/* ==== begin report/lanes.h ==== [report] */
/* Spans sorted into the rows of one lane, so that nothing in a row overlaps. */
#ifndef DDP_REPORT_LANES_H
#define DDP_REPORT_LANES_H

typedef struct ddp__lane_item {
    ddp_span span; /* cut to the window */
    int      row;
} ddp__lane_item;

/* In rising order of begin_s. rows is at least 1. Freed by ddp__lane_free. */
typedef struct ddp__lane {
    ddp__lane_item *items;
    int             count, rows;
} ddp__lane;

#define DDP__LANE_COMPUTE (DDP_SPAN_COMPUTE | 1u << DDP_SPAN_WAIT)
#define DDP__LANE_COMM    (1u << DDP_SPAN_COMM | 1u << DDP_SPAN_FILL | 1u << DDP_SPAN_PEER_WAIT)

#ifdef __cplusplus
extern "C" {
#endif

/* The worker's finished spans of the given kinds inside [begin, end); each goes to the first row
 * that is free. 0 when memory is short (*out is then empty). O(n log n + n x rows). */
DDP_LIB int  ddp__lane_make(const ddp_report_worker *w, unsigned kinds, double begin, double end, ddp__lane *out);
DDP_LIB void ddp__lane_free(ddp__lane *lane);

/* The window of a run: what it says, or from its first to its last span (0, 0 if there is none). */
DDP_LIB void ddp__run_window(const ddp_report_run *r, double *begin, double *end);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_LANES_H */
/* ==== end report/lanes.h ==== */

/* ==== begin report/svg.h ==== [report] */
/* Pieces of SVG: escaped text, nice ticks, line charts. Colours come from classes of the page. */
#ifndef DDP_REPORT_SVG_H
#define DDP_REPORT_SVG_H

/* One line of a chart. Points whose x or y is not finite are stepped over. */
typedef struct ddp__series {
    const char   *name;  /* written at the end of the line; NULL = none */
    int           style; /* class "s<style>" */
    int           faint; /* thin and pale: the raw values behind a mean */
    const double *x, *y; /* [count] */
    int           count;
} ddp__series;

typedef struct ddp__chart {
    const char        *x_label, *y_label;
    int                log_y; /* decades; values <= 0 are stepped over */
    const ddp__series *series;
    int                count;
} ddp__chart;

#ifdef __cplusplus
extern "C" {
#endif

/* s (NULL = nothing) with the five XML characters escaped, control characters as blanks and bytes
 * that are not UTF-8 as '?', so that the page stays well-formed whatever a file is called. */
DDP_LIB void ddp__add_escaped(ddp__text *t, const char *s);

/* The smallest of 1, 2, 5 x 10^k that cuts range into at most most parts; *decimals to print it. */
DDP_LIB double ddp__tick_step(double range, int most, int *decimals);

/* An <svg> of 540 x 300 with axes, grid and one path per series; x starts at 0. */
DDP_LIB void ddp__svg_chart(ddp__text *t, const ddp__chart *c);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_SVG_H */
/* ==== end report/svg.h ==== */

/* ==== begin report/swimlanes.h ==== [report] */
/* The picture of a run: per worker one lane of computing and one of communication. */
#ifndef DDP_REPORT_SWIMLANES_H
#define DDP_REPORT_SWIMLANES_H

#ifdef __cplusplus
extern "C" {
#endif

/* The run's window as an <svg>, scale_s seconds wide, so that runs drawn with one scale compare
 * by eye; spans carry class "k<kind>" and a <title> with kind, layer, step, ms and MB. At most
 * DDP__SWIM_WORKERS workers are drawn. */
#define DDP__SWIM_WORKERS 8
DDP_LIB void ddp__svg_swimlanes(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, double scale_s);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_SWIMLANES_H */
/* ==== end report/swimlanes.h ==== */

/* ==== begin report/summary.c ==== [report] */

void ddp__add_fixed(ddp__text *t, double v, int decimals)
{
    long long unit = 1, n;
    int i;

    for (i = 0; i < decimals; i++) unit *= 10;
    if (!(fabs(v) < 9e18 / (double)unit)) { /* also not a number */
        ddp__text_addf(t, "-");
        return;
    }
    n = llround(v * (double)unit);
    if (n < 0) ddp__text_addf(t, "-");
    n = n < 0 ? -n : n;
    ddp__text_addf(t, "%lld", n / unit);
    if (decimals > 0) ddp__text_addf(t, ".%0*lld", decimals, n % unit);
}

void ddp__add_short(ddp__text *t, double v, int decimals)
{
    size_t before = t->size;

    ddp__add_fixed(t, v, decimals);
    if (t->failed || decimals < 1 || t->size < before + 3) return;
    while (t->data[t->size - 1] == '0') t->size--;
    if (t->data[t->size - 1] == '.') t->size--;
    t->data[t->size] = 0;
}

const char *ddp__summary_heading(int column)
{
    static const char *const heading[DDP__SUMMARY_COLUMNS] = {
        "strategy", "step ms", "vs ssgd", "s to loss", "MB sent", "hidden %", "final loss"};

    return heading[column];
}

double ddp__summary_ratio(const ddp_report_data *d, const ddp_report_run *r)
{
    int i;

    for (i = 0; i < d->run_count; i++) {
        const ddp_report_run *base = &d->runs[i];

        if (base->strategy && !strcmp(base->strategy, "ssgd") && r->step_ms > 0)
            return base->step_ms / r->step_ms;
    }
    return (double)NAN;
}

const ddp_report_run *ddp__summary_fastest(const ddp_report_data *d)
{
    const ddp_report_run *best = NULL;
    int i;

    for (i = 0; i < d->run_count; i++)
        if (d->runs[i].step_ms > 0 && (!best || d->runs[i].step_ms < best->step_ms)) best = &d->runs[i];
    return best;
}

void ddp__summary_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int column)
{
    double ratio;

    switch (column) {
    case 0: ddp__text_addf(t, "%s", r->strategy ? r->strategy : "-"); break;
    case 1: ddp__add_fixed(t, r->step_ms, r->step_ms < 10 ? 2 : 1); break;
    case 2:
        ratio = ddp__summary_ratio(d, r);
        ddp__add_fixed(t, ratio, 2);
        if (ratio > 0) ddp__text_addf(t, "x");
        break;
    case 3: ddp__add_fixed(t, r->time_to_loss_s, 1); break;
    case 4:
        ddp__add_fixed(t, r->bytes_sent < 0 ? (double)NAN : (double)r->bytes_sent / 1e6,
                       r->bytes_sent < 10000000 ? 2 : 1);
        break;
    case 5: ddp__add_fixed(t, r->hidden_pct, 1); break;
    default: ddp__add_fixed(t, r->final_loss, 4); break;
    }
}

void ddp__summary_text(ddp__text *t, const ddp_report_data *d)
{
    size_t width[DDP__SUMMARY_COLUMNS];
    ddp__text cell;
    int row, c, pass;

    memset(&cell, 0, sizeof cell);
    for (c = 0; c < DDP__SUMMARY_COLUMNS; c++) width[c] = strlen(ddp__summary_heading(c));
    /* the first pass measures, the second writes; names stand left, numbers right */
    for (pass = 0; pass < 2; pass++) {
        for (row = -1; row < d->run_count; row++) {
            for (c = 0; c < DDP__SUMMARY_COLUMNS; c++) {
                int w = (int)width[c];

                cell.size = 0;
                if (row < 0)
                    ddp__text_addf(&cell, "%s", ddp__summary_heading(c));
                else
                    ddp__summary_cell(&cell, d, &d->runs[row], c);
                if (cell.failed) break;
                if (pass == 0)
                    width[c] = cell.size > width[c] ? cell.size : width[c];
                else if (c == 0)
                    ddp__text_addf(t, "%-*s", w, cell.data);
                else
                    ddp__text_addf(t, "  %*s", w, cell.data);
            }
            if (pass == 1) ddp__text_addf(t, "\n");
        }
    }
    if (cell.failed) t->failed = 1;
    ddp__text_free(&cell);
}
/* ==== end report/summary.c ==== */

/* ==== begin report/progress.c ==== [report] */

#define DDP__PROGRESS_LINE 256

void ddp_progress_start(ddp_progress *p, FILE *out, const char *label, long total)
{
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");

    memset(p, 0, sizeof *p);
    p->out = out;
    p->label = label ? label : "";
    p->total = total;
    p->terminal = out && isatty(fileno(out));
    p->colour = p->terminal && !(plain && *plain) && !(term && !strcmp(term, "dumb"));
    p->every_s = p->terminal ? 0.1 : 10;
    p->start_s = p->shown_s = p->last_s = ddp_now();
}

/* 7s, 3m05s, 2h07m */
static int ddp__progress_eta(char *out, size_t room, double s)
{
    long n = s < 3e8 ? lround(s) : 0;

    if (!(s < 3e8)) return snprintf(out, room, "?");
    if (n < 60) return snprintf(out, room, "%lds", n);
    if (n < 3600) return snprintf(out, room, "%ldm%02lds", n / 60, n % 60);
    return snprintf(out, room, "%ldh%02ldm", n / 3600, n / 60 % 60);
}

static void ddp__progress_line(const ddp_progress *p, long done, double loss, char line[DDP__PROGRESS_LINE])
{
    char part[6][40], rate[2] = "";
    double tokens = p->tokens_per_s, ms = p->step_s * 1e3;
    int digits = snprintf(NULL, 0, "%ld", p->total);

    memset(part, 0, sizeof part);
    snprintf(part[0], sizeof part[0], "%-11.30s", p->label);
    snprintf(part[1], sizeof part[1], "step %*ld/%ld", digits, done, p->total);
    if (loss >= -DBL_MAX && loss <= DBL_MAX) snprintf(part[2], sizeof part[2], "  loss %#.4g", loss);
    snprintf(part[3], sizeof part[3], "  %.*f ms/step", ms < 10 ? 2 : 1, ms);
    if (tokens > 0) {
        if (tokens >= 1e4) rate[0] = 'k';
        snprintf(part[4], sizeof part[4], "  %.*f%s tok/s", rate[0] ? 1 : 0,
                 rate[0] ? tokens / 1e3 : tokens, rate);
    }
    if (done < p->total) {
        memcpy(part[5], "  ETA ", 6);
        ddp__progress_eta(part[5] + 6, sizeof part[5] - 6, (double)(p->total - done) * p->step_s);
    }
    snprintf(line, DDP__PROGRESS_LINE, "%s%s%s%s%s%s", part[0], part[1], part[2], part[3], part[4], part[5]);
}

void ddp_progress_step(ddp_progress *p, long done, double loss, double tokens)
{
    char line[DDP__PROGRESS_LINE];
    double now = ddp_now(), took = now - p->last_s, keep;
    int n;

    if (!p->out) return;
    /* the mean forgets with a horizon of about 20 steps, and starts as a plain mean */
    keep = done < 20 ? 1 - 1 / (double)(done > 0 ? done : 1) : 0.95;
    p->step_s = keep * p->step_s + (1 - keep) * took;
    p->last_s = now;
    p->tokens_per_s = tokens > 0 && p->step_s > 0 ? tokens / p->step_s : 0;
    if (done < p->total && now - p->shown_s < p->every_s) return;
    p->shown_s = now;
    ddp__progress_line(p, done, loss, line);
    n = (int)strlen(line);
    if (p->terminal)
        fprintf(p->out, "\r%s%s%s%*s", p->colour ? "\033[1m" : "", line, p->colour ? "\033[0m" : "",
                p->width > n ? p->width - n : 0, "");
    else
        fprintf(p->out, "%s\n", line);
    p->width = n;
    fflush(p->out);
}

void ddp_progress_end(ddp_progress *p)
{
    if (p->out && p->terminal && p->width) fprintf(p->out, "\n");
    p->width = 0;
}

ddp_status ddp_report_table(const ddp_report_data *d, FILE *out, ddp_error *err)
{
    ddp__text t;
    int bad, why;

    memset(&t, 0, sizeof t);
    ddp__summary_text(&t, d);
    if (t.failed) {
        ddp__text_free(&t);
        return ddp__fail(err, DDP_MEMORY, "cannot print the table of %d runs: out of memory", d->run_count);
    }
    bad = fwrite(t.data, 1, t.size, out) != t.size || fflush(out);
    why = errno;
    ddp__text_free(&t);
    return bad ? ddp__fail(err, DDP_IO, "cannot print the table: %s", strerror(why)) : DDP_OK;
}
/* ==== end report/progress.c ==== */

/* ==== begin report/jsonl.c ==== [report] */

#define DDP__JSONL_DEPTH 31

struct ddp_jsonl {
    ddp__text line;
    char     *path, *temporary; /* temporary NULL: written directly */
    FILE     *stream;           /* NULL: fd */
    int       fd;
    ddp_error error; /* the first one */
    int       depth; /* open values; 0 = between two lines */
    char      closer[DDP__JSONL_DEPTH + 1];
    int       any[DDP__JSONL_DEPTH + 1]; /* that value has a member already */
};

static ddp_jsonl *ddp__jsonl_new(void)
{
    ddp_jsonl *j = (ddp_jsonl *)ddp__calloc(1, sizeof *j);

    if (j) j->fd = -1;
    return j;
}

static void ddp__jsonl_free(ddp_jsonl *j)
{
    if (j->fd >= 0) close(j->fd);
    ddp__text_free(&j->line);
    if (j->path) DDP_FREE(j->path);
    if (j->temporary) DDP_FREE(j->temporary);
    DDP_FREE(j);
}

ddp_jsonl *ddp_jsonl_open(const char *path, ddp_error *err)
{
    ddp_jsonl *j = ddp__jsonl_new();
    size_t room = path ? strlen(path) + 32 : 32;
    struct stat st;

    if (!path || !*path) {
        ddp__fail(err, DDP_ARG, "the JSON lines file needs a name; an empty one was given");
        if (j) ddp__jsonl_free(j);
        return NULL;
    }
    if (j) {
        j->path = ddp__strdup(path);
        j->temporary = (char *)ddp__calloc(room, 1);
    }
    if (!j || !j->path || !j->temporary) {
        ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory", path);
        if (j) ddp__jsonl_free(j);
        return NULL;
    }
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
        DDP_FREE(j->temporary);
        j->temporary = NULL;
        j->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        snprintf(j->temporary, room, "%s.tmp.%ld", path, (long)getpid());
        j->fd = open(j->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    }
    if (j->fd < 0) {
        ddp__fail(err, DDP_IO, "cannot write %s: %s", path, strerror(errno));
        ddp__jsonl_free(j);
        return NULL;
    }
    return j;
}

ddp_jsonl *ddp_jsonl_stream(FILE *out, ddp_error *err)
{
    ddp_jsonl *j = ddp__jsonl_new();

    if (!j)
        ddp__fail(err, DDP_MEMORY, "cannot write JSON lines: out of memory");
    else
        j->stream = out;
    return j;
}

static void ddp__jsonl_fail(ddp_jsonl *j, int why)
{
    ddp__fail(&j->error, DDP_IO, "cannot write %s: %s", j->path ? j->path : "JSON lines to the stream",
              strerror(why));
}

/* One write(2) per line, so that a reader of the growing file sees whole lines. */
static void ddp__jsonl_put(ddp_jsonl *j)
{
    size_t done = 0;

    if (j->stream) {
        if (fwrite(j->line.data, 1, j->line.size, j->stream) != j->line.size || fflush(j->stream))
            ddp__jsonl_fail(j, errno);
        return;
    }
    while (done < j->line.size) {
        ssize_t n = write(j->fd, j->line.data + done, j->line.size - done);

        if (n > 0) {
            done += (size_t)n;
        } else if (errno != EINTR) {
            ddp__jsonl_fail(j, n ? errno : ENOSPC);
            return;
        }
    }
}

ddp_status ddp_jsonl_close(ddp_jsonl *j, ddp_error *err)
{
    ddp_status status;

    if (!j) return DDP_OK;
    if (j->depth) ddp_jsonl_end(j);
    if (j->fd >= 0) {
        int fd = j->fd;

        j->fd = -1;
        if (close(fd) && !j->error.code) ddp__jsonl_fail(j, errno);
    }
    if (j->temporary && !j->error.code && rename(j->temporary, j->path)) ddp__jsonl_fail(j, errno);
    status = j->error.code;
    if (status != DDP_OK && err) *err = j->error;
    ddp_jsonl_abandon(j); /* after a rename the temporary name is gone */
    return status;
}

void ddp_jsonl_abandon(ddp_jsonl *j)
{
    if (!j) return;
    if (j->temporary) remove(j->temporary);
    ddp__jsonl_free(j);
}

/* What stands before a member: a comma, and its key where it is one of an object. 0 = drop it. */
static int ddp__jsonl_member(ddp_jsonl *j, const char *key)
{
    if (!j || j->error.code || j->depth < 1) return 0;
    if (j->any[j->depth]) ddp__text_add(&j->line, ",", 1);
    j->any[j->depth] = 1;
    if (j->closer[j->depth] == '}') {
        ddp__json_string(&j->line, key ? key : "");
        ddp__text_add(&j->line, ":", 1);
    }
    return 1;
}

static void ddp__jsonl_nest(ddp_jsonl *j, char opener, char closer)
{
    if (j->depth == DDP__JSONL_DEPTH) {
        ddp__fail(&j->error, DDP_ARG, "cannot write %s: values are nested more than %d deep",
                  j->path ? j->path : "JSON lines", DDP__JSONL_DEPTH - 1);
        return;
    }
    ddp__text_add(&j->line, &opener, 1);
    j->depth++;
    j->closer[j->depth] = closer;
    j->any[j->depth] = 0;
}

void ddp_jsonl_event(ddp_jsonl *j, const char *name)
{
    if (!j || j->error.code) return;
    if (j->depth) ddp_jsonl_end(j);
    j->line.size = 0;
    ddp__jsonl_nest(j, '{', '}');
    if (name) ddp_jsonl_string(j, "event", name);
}

void ddp_jsonl_string(ddp_jsonl *j, const char *key, const char *value)
{
    if (ddp__jsonl_member(j, key)) ddp__json_string(&j->line, value);
}

void ddp_jsonl_integer(ddp_jsonl *j, const char *key, int64_t value)
{
    if (ddp__jsonl_member(j, key)) ddp__text_addf(&j->line, "%" PRId64, value);
}

void ddp_jsonl_number(ddp_jsonl *j, const char *key, double value)
{
    if (ddp__jsonl_member(j, key)) ddp__json_number(&j->line, value);
}

void ddp_jsonl_bool(ddp_jsonl *j, const char *key, int value)
{
    if (ddp__jsonl_member(j, key)) ddp__text_addf(&j->line, "%s", value ? "true" : "false");
}

void ddp_jsonl_array(ddp_jsonl *j, const char *key)
{
    if (ddp__jsonl_member(j, key)) ddp__jsonl_nest(j, '[', ']');
}

void ddp_jsonl_object(ddp_jsonl *j, const char *key)
{
    if (ddp__jsonl_member(j, key)) ddp__jsonl_nest(j, '{', '}');
}

void ddp_jsonl_up(ddp_jsonl *j)
{
    if (!j || j->error.code || j->depth < 2) return;
    ddp__text_add(&j->line, &j->closer[j->depth], 1);
    j->depth--;
}

void ddp_jsonl_integers(ddp_jsonl *j, const char *key, const int *values, int count)
{
    int i;

    ddp_jsonl_array(j, key);
    for (i = 0; i < count; i++) ddp_jsonl_integer(j, NULL, values[i]);
    ddp_jsonl_up(j);
}

void ddp_jsonl_numbers(ddp_jsonl *j, const char *key, const double *values, int count)
{
    int i;

    ddp_jsonl_array(j, key);
    for (i = 0; i < count; i++) ddp_jsonl_number(j, NULL, values[i]);
    ddp_jsonl_up(j);
}

void ddp_jsonl_end(ddp_jsonl *j)
{
    if (!j || j->error.code || j->depth < 1) return;
    while (j->depth > 1) ddp_jsonl_up(j);
    ddp__text_add(&j->line, "}\n", 2);
    j->depth = 0;
    if (j->line.failed)
        ddp__fail(&j->error, DDP_MEMORY, "cannot write %s: out of memory", j->path ? j->path : "JSON lines");
    else
        ddp__jsonl_put(j);
}
/* ==== end report/jsonl.c ==== */

/* ==== begin report/events.c ==== [report] */

void ddp_jsonl_run(ddp_jsonl *j, const ddp_report_data *d)
{
    ddp_jsonl_event(j, "run");
    ddp_jsonl_string(j, "title", d->title);
    ddp_jsonl_string(j, "command", d->command);
    ddp_jsonl_string(j, "version", d->version);
    ddp_jsonl_integer(j, "seed", (int64_t)d->seed);
    ddp_jsonl_string(j, "host", d->host);
    ddp_jsonl_integer(j, "workers", d->workers);
    ddp_jsonl_string(j, "net", d->net);
    ddp_jsonl_string(j, "model", d->model);
    ddp_jsonl_end(j);
}

void ddp_jsonl_profile(ddp_jsonl *j, const ddp_report_data *d)
{
    int l;

    ddp_jsonl_event(j, "profile");
    ddp_jsonl_array(j, "layers");
    for (l = 0; l < d->layer_count; l++) {
        ddp_jsonl_object(j, NULL);
        ddp_jsonl_string(j, "layer", d->layers[l].name);
        ddp_jsonl_number(j, "params", d->layers[l].params);
        ddp_jsonl_number(j, "backward_s", d->layers[l].backward_s);
        ddp_jsonl_number(j, "comm_s", d->layers[l].comm_s);
        ddp_jsonl_up(j);
    }
    ddp_jsonl_end(j);
}

void ddp_jsonl_plan(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r)
{
    int h, l;

    if (!r->step_of || r->period < 1) return;
    ddp_jsonl_event(j, "plan");
    ddp_jsonl_string(j, "strategy", r->strategy);
    ddp_jsonl_integer(j, "period", r->period);
    ddp_jsonl_array(j, "sets");
    for (h = 0; h < r->period; h++) {
        ddp_jsonl_array(j, NULL);
        for (l = 0; l < d->layer_count; l++)
            if (r->step_of[l] == h) ddp_jsonl_integer(j, NULL, l);
        ddp_jsonl_up(j);
    }
    ddp_jsonl_up(j);
    ddp_jsonl_integers(j, "step_of", r->step_of, d->layer_count);
    ddp_jsonl_number(j, "predicted_step_ms", r->predicted_step_ms);
    ddp_jsonl_number(j, "predicted_hidden_pct", r->predicted_hidden_pct);
    ddp_jsonl_end(j);
}

void ddp_jsonl_step(ddp_jsonl *j, const char *strategy, long step, double loss,
                    double step_ms, double wait_ms, int64_t bytes, double divergence)
{
    ddp_jsonl_event(j, "step");
    ddp_jsonl_string(j, "strategy", strategy);
    ddp_jsonl_integer(j, "step", step);
    ddp_jsonl_number(j, "loss", loss);
    ddp_jsonl_number(j, "step_ms", step_ms);
    ddp_jsonl_number(j, "wait_ms", wait_ms);
    ddp_jsonl_integer(j, "bytes", bytes);
    if (divergence >= 0) ddp_jsonl_number(j, "divergence", divergence);
    ddp_jsonl_end(j);
}

void ddp_jsonl_result(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r)
{
    ddp_jsonl_event(j, "result");
    ddp_jsonl_string(j, "strategy", r->strategy);
    ddp_jsonl_integer(j, "workers", d->workers);
    ddp_jsonl_number(j, "step_ms", r->step_ms);
    ddp_jsonl_number(j, "hidden_pct", r->hidden_pct);
    if (r->bytes_sent < 0)
        ddp_jsonl_number(j, "bytes_sent", (double)NAN);
    else
        ddp_jsonl_integer(j, "bytes_sent", r->bytes_sent);
    ddp_jsonl_number(j, "final_loss", r->final_loss);
    ddp_jsonl_number(j, "time_to_loss_s", r->time_to_loss_s);
    ddp_jsonl_string(j, "param_hash", r->param_hash);
    ddp_jsonl_end(j);
}

void ddp_jsonl_error(ddp_jsonl *j, const ddp_error *error)
{
    ddp_jsonl_event(j, "error");
    ddp_jsonl_string(j, "status", ddp_status_text(error->code));
    ddp_jsonl_integer(j, "exit_code", ddp_status_exit_code(error->code));
    ddp_jsonl_string(j, "message", error->msg);
    ddp_jsonl_end(j);
}
/* ==== end report/events.c ==== */

/* ==== begin report/lanes.c ==== [report] */

static int ddp__lane_order(const void *pa, const void *pb)
{
    const ddp_span *a = &((const ddp__lane_item *)pa)->span, *b = &((const ddp__lane_item *)pb)->span;

    if (a->begin_s < b->begin_s || a->begin_s > b->begin_s) return a->begin_s < b->begin_s ? -1 : 1;
    return (a->end_s < b->end_s) - (a->end_s > b->end_s);
}

int ddp__lane_make(const ddp_report_worker *w, unsigned kinds, double begin, double end, ddp__lane *out)
{
    double *row_end;
    int i, row;

    memset(out, 0, sizeof *out);
    out->rows = 1;
    out->items = (ddp__lane_item *)ddp__calloc((size_t)w->count, sizeof *out->items);
    row_end = (double *)ddp__calloc((size_t)w->count, sizeof *row_end);
    if (!out->items || !row_end) {
        DDP_FREE(row_end);
        ddp__lane_free(out);
        return 0;
    }
    for (i = 0; i < w->count; i++) {
        ddp_span s = w->spans[i];

        if ((unsigned)s.kind >= DDP_SPAN_KINDS || !(kinds >> s.kind & 1u)) continue;
        if (s.begin_s < begin) s.begin_s = begin;
        if (s.end_s > end) s.end_s = end;
        if (s.end_s > s.begin_s) out->items[out->count++].span = s;
    }
    if (out->count) qsort(out->items, (size_t)out->count, sizeof *out->items, ddp__lane_order);
    for (i = 0; i < out->count; i++) {
        for (row = 0; row < i && row < out->rows && row_end[row] > out->items[i].span.begin_s; row++) {}
        if (row == out->rows) out->rows++;
        out->items[i].row = row;
        row_end[row] = out->items[i].span.end_s;
    }
    DDP_FREE(row_end);
    return 1;
}

void ddp__lane_free(ddp__lane *lane)
{
    if (lane->items) DDP_FREE(lane->items);
    memset(lane, 0, sizeof *lane);
}

void ddp__run_window(const ddp_report_run *r, double *begin, double *end)
{
    int w, i, any = 0;

    *begin = r->window_begin_s;
    *end = r->window_end_s;
    if (*end > *begin) return;
    *begin = *end = 0;
    for (w = 0; w < r->worker_count; w++) {
        for (i = 0; i < r->workers[w].count; i++) {
            const ddp_span *s = &r->workers[w].spans[i];

            if (!(s->end_s > s->begin_s)) continue;
            if (!any || s->begin_s < *begin) *begin = s->begin_s;
            if (!any || s->end_s > *end) *end = s->end_s;
            any = 1;
        }
    }
}
/* ==== end report/lanes.c ==== */

/* ==== begin report/perfetto.c ==== [report] */

/* The file being made: a comma stands before every event but the first. */
typedef struct ddp__perfetto {
    ddp__text              text;
    const ddp_report_data *data;
    double                 origin; /* ddp_now() of the run's ts = 0 */
    long                   pid, next_tid;
    int                    any;
} ddp__perfetto;

static void ddp__perfetto_begin(ddp__perfetto *p)
{
    ddp__text_addf(&p->text, "%s\n", p->any ? "," : "[");
    p->any = 1;
}

static void ddp__perfetto_name(ddp__perfetto *p, const char *what, long tid, const char *name)
{
    ddp__perfetto_begin(p);
    ddp__text_addf(&p->text, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%ld,\"args\":{\"name\":", what,
                   p->pid, tid);
    ddp__json_string(&p->text, name);
    ddp__text_addf(&p->text, "}}");
}

static void ddp__perfetto_sort(ddp__perfetto *p, const char *what, long tid, long index)
{
    ddp__perfetto_begin(p);
    ddp__text_addf(&p->text, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%ld,\"tid\":%ld,\"args\":{\"sort_index\":%ld}}", what,
                   p->pid, tid, index);
}

/* Whole nanoseconds as microseconds, so that ends and begins that are equal stay equal. */
static void ddp__perfetto_us(ddp__text *t, long long ns)
{
    ddp__text_addf(t, "%lld.%03lld", ns / 1000, ns % 1000);
}

static void ddp__perfetto_span(ddp__perfetto *p, const ddp_span *s, long tid)
{
    long long begin = llround((s->begin_s - p->origin) * 1e9), end = llround((s->end_s - p->origin) * 1e9);
    const char *name = ddp_span_kind_name(s->kind);

    ddp__perfetto_begin(p);
    ddp__text_addf(&p->text, "{\"ph\":\"X\",\"pid\":%ld,\"tid\":%ld,\"cat\":\"%s\",\"ts\":", p->pid, tid, name);
    ddp__perfetto_us(&p->text, begin);
    ddp__text_addf(&p->text, ",\"dur\":");
    ddp__perfetto_us(&p->text, end - begin);
    ddp__text_addf(&p->text, ",\"name\":");
    if (s->layer >= 0 && s->layer < p->data->layer_count && p->data->layers[s->layer].name)
        ddp__json_string(&p->text, p->data->layers[s->layer].name);
    else
        ddp__json_string(&p->text, name);
    ddp__text_addf(&p->text, ",\"args\":{\"kind\":\"%s\",\"step\":%ld,\"layer\":%d,\"bytes\":%" PRId64 "}}",
                   name, s->step, s->layer, s->bytes);
}

/* One lane of a worker, as many threads as it has rows. 0 when memory is short. */
static int ddp__perfetto_lane(ddp__perfetto *p, const ddp_report_worker *w, unsigned kinds, const char *name)
{
    char numbered[40];
    ddp__lane lane;
    int i, row;

    if (!ddp__lane_make(w, kinds, -DBL_MAX, DBL_MAX, &lane)) return 0;
    for (row = 0; row < lane.rows; row++) {
        snprintf(numbered, sizeof numbered, row ? "%s %d" : "%s", name, row + 1);
        ddp__perfetto_name(p, "thread_name", p->next_tid + row, numbered);
        ddp__perfetto_sort(p, "thread_sort_index", p->next_tid + row, p->next_tid + row);
    }
    for (i = 0; i < lane.count; i++) ddp__perfetto_span(p, &lane.items[i].span, p->next_tid + lane.items[i].row);
    p->next_tid += lane.rows;
    ddp__lane_free(&lane);
    return 1;
}

/* Earliest span of the run: what its clock is counted from. */
static double ddp__perfetto_origin(const ddp_report_run *r)
{
    ddp_report_run whole = *r;
    double begin, end;

    whole.window_begin_s = whole.window_end_s = 0;
    ddp__run_window(&whole, &begin, &end);
    return begin;
}

ddp_status ddp_report_trace(const ddp_report_data *d, const char *path, ddp_error *err)
{
    long stride = 1000;
    ddp__perfetto p;
    ddp_status status;
    char name[120];
    int i, w, ok = 1;

    memset(&p, 0, sizeof p);
    p.data = d;
    p.next_tid = 1;
    for (i = 0; i < d->run_count; i++)
        if (d->runs[i].worker_count > stride) stride = d->runs[i].worker_count;
    for (i = 0; i < d->run_count; i++) {
        const ddp_report_run *r = &d->runs[i];

        p.origin = ddp__perfetto_origin(r);
        for (w = 0; w < r->worker_count && ok; w++) {
            p.pid = 1 + w + stride * i;
            snprintf(name, sizeof name, "%.80s rank %d", r->strategy ? r->strategy : "run", w);
            ddp__perfetto_name(&p, "process_name", 0, name);
            ddp__perfetto_sort(&p, "process_sort_index", 0, p.pid);
            ok = ddp__perfetto_lane(&p, &r->workers[w], DDP__LANE_COMPUTE, "compute") &&
                 ddp__perfetto_lane(&p, &r->workers[w], DDP__LANE_COMM, "communication");
        }
    }
    ddp__text_addf(&p.text, "%s\n]\n", p.any ? "" : "[");
    if (!ok || p.text.failed)
        status = ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory while it was built", path);
    else
        status = ddp__file_write(path, p.text.data, p.text.size, err);
    ddp__text_free(&p.text);
    return status;
}
/* ==== end report/perfetto.c ==== */

/* ==== begin report/svg.c ==== [report] */

#define DDP__CHART_W      540
#define DDP__CHART_H      300
#define DDP__CHART_LEFT   52
#define DDP__CHART_RIGHT  108 /* room for the names of the lines */
#define DDP__CHART_TOP    20
#define DDP__CHART_BOTTOM 40
#define DDP__CHART_NAME_H 14

/* Length of the UTF-8 sequence at s, 0 if it is none or XML forbids the character. */
static int ddp__xml_length(const unsigned char *s)
{
    int n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0, i;

    for (i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    /* over-long forms, surrogates, values above U+10FFFF, and the two non-characters of XML */
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f))) return 0;
    if (n == 3 && s[0] == 0xef && s[1] == 0xbf && s[2] >= 0xbe) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))) return 0;
    return n;
}

void ddp__add_escaped(ddp__text *t, const char *s)
{
    while (s && *s) {
        int n = ddp__xml_length((const unsigned char *)s);

        switch (*s) {
        case '&': ddp__text_add(t, "&amp;", 5); break;
        case '<': ddp__text_add(t, "&lt;", 4); break;
        case '>': ddp__text_add(t, "&gt;", 4); break;
        case '"': ddp__text_add(t, "&quot;", 6); break;
        case '\'': ddp__text_add(t, "&#39;", 5); break;
        default:
            if (n == 0)
                ddp__text_add(t, "?", 1);
            else if (n == 1 && ((unsigned char)*s < 0x20 || *s == 0x7f))
                ddp__text_add(t, " ", 1);
            else
                ddp__text_add(t, s, (size_t)n);
        }
        s += n ? n : 1;
    }
}

double ddp__tick_step(double range, int most, int *decimals)
{
    double unit, ratio;
    int k;

    *decimals = 0;
    if (!(range > 0) || range > 1e300) return 1;
    k = (int)floor(log10(range / most));
    unit = pow(10, k);
    ratio = range / most / unit;
    if (ratio > 5) {
        k++;
        unit *= 10;
    } else if (ratio > 2) {
        unit *= 5;
    } else if (ratio > 1) {
        unit *= 2;
    }
    *decimals = k < 0 ? (k > -6 ? -k : 6) : 0;
    return unit;
}

typedef struct ddp__axes {
    double x1, y0, y1; /* x runs from 0; y in decades if log_y */
    int    log_y;
} ddp__axes;

static double ddp__axes_x(const ddp__axes *a, double x)
{
    return DDP__CHART_LEFT + x / a->x1 * (DDP__CHART_W - DDP__CHART_LEFT - DDP__CHART_RIGHT);
}

static double ddp__axes_y(const ddp__axes *a, double y)
{
    double v = a->log_y ? log10(y) : y;

    return DDP__CHART_TOP + (a->y1 - v) / (a->y1 - a->y0) * (DDP__CHART_H - DDP__CHART_TOP - DDP__CHART_BOTTOM);
}

/* Is point i of s on the chart? */
static int ddp__series_has(const ddp__series *s, int i, int log_y)
{
    return fabs(s->x[i]) <= DBL_MAX && fabs(s->y[i]) <= DBL_MAX && (!log_y || s->y[i] > 0);
}

/* Bounds over all points; 0 if there is none. */
static int ddp__axes_fit(ddp__axes *a, const ddp__chart *c)
{
    int i, k, any = 0;
    double pad;

    memset(a, 0, sizeof *a);
    a->log_y = c->log_y;
    for (k = 0; k < c->count; k++) {
        for (i = 0; i < c->series[k].count; i++) {
            double y = c->series[k].y[i], x = c->series[k].x[i];

            if (!ddp__series_has(&c->series[k], i, c->log_y)) continue;
            if (c->log_y) y = log10(y);
            if (x > a->x1) a->x1 = x;
            if (!any || y < a->y0) a->y0 = y;
            if (!any || y > a->y1) a->y1 = y;
            any = 1;
        }
    }
    if (!(a->x1 > 0)) a->x1 = 1;
    pad = 0.05 * (a->y1 - a->y0);
    if (!(pad > 0)) pad = fabs(a->y1) > 0 ? 0.1 * fabs(a->y1) : 1;
    a->y0 -= pad;
    a->y1 += pad;
    return any;
}

/* y = digit x 10^exponent on a logarithmic axis, where small and large ticks read 2e-5. */
static void ddp__svg_y_tick(ddp__text *t, const ddp__axes *a, double y, int digit, int exponent, int decimals)
{
    double at = ddp__axes_y(a, y);

    ddp__text_addf(t, "<path class=\"grid\" d=\"M%d ", DDP__CHART_LEFT);
    ddp__add_short(t, at, 1);
    ddp__text_addf(t, "H%d\"/><text class=\"end\" x=\"%d\" y=\"", DDP__CHART_W - DDP__CHART_RIGHT,
                   DDP__CHART_LEFT - 6);
    ddp__add_short(t, at + 4, 1);
    ddp__text_addf(t, "\">");
    if (a->log_y && (exponent < -3 || exponent > 3))
        ddp__text_addf(t, "%de%d", digit, exponent);
    else
        ddp__add_short(t, y, decimals);
    ddp__text_addf(t, "</text>");
}

static void ddp__svg_axes(ddp__text *t, const ddp__axes *a, const ddp__chart *c)
{
    const int bottom = DDP__CHART_H - DDP__CHART_BOTTOM;
    double step, v;
    int decimals, i, k;

    if (a->log_y) {
        static const int part[3] = {1, 2, 5};
        int parts = a->y1 - a->y0 <= 2 ? 3 : 1, every = (int)((a->y1 - a->y0) / 8) + 1;

        for (k = (int)floor(a->y0); k <= (int)ceil(a->y1); k += every) {
            for (i = 0; i < parts; i++) {
                v = part[i] * pow(10, k);
                if (log10(v) >= a->y0 && log10(v) <= a->y1) ddp__svg_y_tick(t, a, v, part[i], k, 3);
            }
        }
    } else {
        step = ddp__tick_step(a->y1 - a->y0, 6, &decimals);
        for (v = ceil(a->y0 / step); v * step <= a->y1; v += 1) ddp__svg_y_tick(t, a, v * step, 0, 0, decimals);
    }
    step = ddp__tick_step(a->x1, 6, &decimals);
    for (v = 0; v * step <= a->x1 * (1 + 1e-9); v += 1) {
        ddp__text_addf(t, "<path class=\"grid\" d=\"M");
        ddp__add_short(t, ddp__axes_x(a, v * step), 1);
        ddp__text_addf(t, " %dV%d\"/><text class=\"mid\" x=\"", DDP__CHART_TOP, bottom);
        ddp__add_short(t, ddp__axes_x(a, v * step), 1);
        ddp__text_addf(t, "\" y=\"%d\">", bottom + 16);
        ddp__add_short(t, v * step, decimals);
        ddp__text_addf(t, "</text>");
    }
    ddp__text_addf(t, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>", DDP__CHART_LEFT, DDP__CHART_TOP, bottom,
                   DDP__CHART_W - DDP__CHART_RIGHT);
    ddp__text_addf(t, "<text class=\"mid label\" x=\"%d\" y=\"%d\">",
                   (DDP__CHART_LEFT + DDP__CHART_W - DDP__CHART_RIGHT) / 2, DDP__CHART_H - 6);
    ddp__add_escaped(t, c->x_label);
    ddp__text_addf(t, "</text><text class=\"label\" x=\"4\" y=\"11\">");
    ddp__add_escaped(t, c->y_label);
    ddp__text_addf(t, "</text>");
}

/* One path; *end_y is where it stops. A long series is thinned to about a thousand points. */
static int ddp__svg_line(ddp__text *t, const ddp__axes *a, const ddp__series *s, double *end_y)
{
    int i, points = 0, stride = s->count / 1000 + 1;

    for (i = 0; i < s->count; i++) {
        if (!ddp__series_has(s, i, a->log_y)) continue;
        if (points++ % stride && i != s->count - 1) continue;
        if (points == 1) {
            ddp__text_addf(t, "<path class=\"%s s%d\" d=\"M", s->faint ? "faint" : "line", s->style);
        } else {
            ddp__text_addf(t, "L");
        }
        ddp__add_short(t, ddp__axes_x(a, s->x[i]), 1);
        ddp__text_addf(t, " ");
        ddp__add_short(t, ddp__axes_y(a, s->y[i]), 1);
        *end_y = ddp__axes_y(a, s->y[i]);
    }
    if (!points) return 0;
    ddp__text_addf(t, "\">");
    if (s->name) {
        ddp__text_addf(t, "<title>");
        ddp__add_escaped(t, s->name);
        ddp__text_addf(t, "</title>");
    }
    ddp__text_addf(t, "</path>");
    return 1;
}

/* Names in the order of the ends of their lines, pushed apart so that none covers another. */
static void ddp__svg_names(ddp__text *t, const ddp__chart *c, const double *end_y, int *order)
{
    double floor_y = DDP__CHART_TOP - DDP__CHART_NAME_H, limit;
    int i, j, n = 0;

    for (i = 0; i < c->count; i++) {
        if (!c->series[i].name || end_y[i] < 0) continue;
        for (j = n++; j > 0 && end_y[order[j - 1]] > end_y[i]; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    for (i = 0; i < n; i++) {
        const ddp__series *s = &c->series[order[i]];
        double y = end_y[order[i]];

        limit = DDP__CHART_H - DDP__CHART_BOTTOM - (double)(n - 1 - i) * DDP__CHART_NAME_H;
        if (y > limit) y = limit;
        if (y < floor_y + DDP__CHART_NAME_H) y = floor_y + DDP__CHART_NAME_H;
        floor_y = y;
        ddp__text_addf(t, "<path class=\"line s%d\" d=\"M%d ", s->style, DDP__CHART_W - DDP__CHART_RIGHT + 8);
        ddp__add_short(t, y, 1);
        ddp__text_addf(t, "h18\"/><text class=\"name s%d\" x=\"%d\" y=\"", s->style,
                       DDP__CHART_W - DDP__CHART_RIGHT + 31);
        ddp__add_short(t, y + 4, 1);
        ddp__text_addf(t, "\">");
        ddp__add_escaped(t, s->name);
        ddp__text_addf(t, "</text>");
    }
}

void ddp__svg_chart(ddp__text *t, const ddp__chart *c)
{
    double *end_y = (double *)ddp__calloc((size_t)c->count, sizeof *end_y);
    int *order = (int *)ddp__calloc((size_t)c->count, sizeof *order), i, pass;
    ddp__axes a;

    if (!end_y || !order) {
        t->failed = 1;
    } else if (ddp__axes_fit(&a, c)) {
        ddp__text_addf(t, "<svg viewBox=\"0 0 %d %d\" role=\"img\">", DDP__CHART_W, DDP__CHART_H);
        ddp__svg_axes(t, &a, c);
        for (pass = 1; pass >= 0; pass--) { /* pale lines lie behind all others */
            for (i = 0; i < c->count; i++) {
                if (c->series[i].faint != pass) continue;
                if (!ddp__svg_line(t, &a, &c->series[i], &end_y[i])) end_y[i] = -1;
            }
        }
        ddp__svg_names(t, c, end_y, order);
        ddp__text_addf(t, "</svg>\n");
    } else {
        ddp__text_addf(t, "<p class=\"note\">Nothing was measured.</p>\n");
    }
    DDP_FREE(end_y);
    DDP_FREE(order);
}
/* ==== end report/svg.c ==== */

/* ==== begin report/swimlanes.c ==== [report] */

#define DDP__SWIM_W       1100
#define DDP__SWIM_LEFT    56
#define DDP__SWIM_TOP     16 /* step numbers */
#define DDP__SWIM_COMPUTE 14 /* heights of the lanes */
#define DDP__SWIM_COMM    12
#define DDP__SWIM_WORKER  34 /* from one worker to the next */
#define DDP__SWIM_BOTTOM  18 /* time axis */

typedef struct ddp__swim {
    double begin, end, per_s; /* window, and units of the drawing per second */
} ddp__swim;

static double ddp__swim_x(const ddp__swim *m, double s) { return DDP__SWIM_LEFT + (s - m->begin) * m->per_s; }

static void ddp__swim_title(ddp__text *t, const ddp_report_data *d, const ddp_span *s)
{
    ddp__text_addf(t, "<title>%s", ddp_span_kind_name(s->kind));
    if (s->layer >= 0 && s->layer < d->layer_count && d->layers[s->layer].name) {
        ddp__text_addf(t, " ");
        ddp__add_escaped(t, d->layers[s->layer].name);
    } else if (s->layer >= 0) {
        ddp__text_addf(t, " layer %d", s->layer);
    }
    ddp__text_addf(t, ", step %ld: ", s->step);
    ddp__add_short(t, (s->end_s - s->begin_s) * 1e3, 3);
    ddp__text_addf(t, " ms");
    if (s->bytes > 0) {
        ddp__text_addf(t, ", ");
        ddp__add_short(t, (double)s->bytes / 1e6, 3);
        ddp__text_addf(t, " MB");
    }
    ddp__text_addf(t, "</title>");
}

static void ddp__swim_lane(ddp__text *t, const ddp_report_data *d, const ddp__swim *m, const ddp__lane *lane,
                           double top, double height)
{
    double row_h = height / lane->rows;
    int i;

    for (i = 0; i < lane->count; i++) {
        const ddp_span *s = &lane->items[i].span;
        double x = ddp__swim_x(m, s->begin_s), w = ddp__swim_x(m, s->end_s) - x;

        ddp__text_addf(t, "<rect class=\"k%d\" x=\"", (int)s->kind);
        ddp__add_short(t, x, 2);
        ddp__text_addf(t, "\" y=\"");
        ddp__add_short(t, top + row_h * lane->items[i].row, 1);
        ddp__text_addf(t, "\" width=\"");
        ddp__add_short(t, w > 0.3 ? w : 0.3, 2);
        ddp__text_addf(t, "\" height=\"");
        ddp__add_short(t, row_h, 1);
        ddp__text_addf(t, "\">");
        ddp__swim_title(t, d, s);
        ddp__text_addf(t, "</rect>");
    }
    ddp__text_addf(t, "\n");
}

/* A line where worker 0 begins the computing of a step, numbered where there is room. */
static void ddp__swim_steps(ddp__text *t, const ddp__swim *m, const ddp__lane *lane, int bottom)
{
    double named = -1e9;
    long step = -1;
    int i;

    for (i = 0; i < lane->count; i++) {
        double x = ddp__swim_x(m, lane->items[i].span.begin_s);

        if (lane->items[i].span.step <= step || lane->items[i].span.kind == DDP_SPAN_WAIT) continue;
        step = lane->items[i].span.step;
        ddp__text_addf(t, "<path class=\"step\" d=\"M");
        ddp__add_short(t, x, 1);
        ddp__text_addf(t, " 4V%d\"/>", bottom);
        if (x - named < 46) continue;
        named = x;
        ddp__text_addf(t, "<text x=\"");
        ddp__add_short(t, x + 3, 1);
        ddp__text_addf(t, "\" y=\"11\">step %ld</text>", step);
    }
}

static void ddp__swim_axis(ddp__text *t, const ddp__swim *m, double scale_s, int bottom)
{
    int decimals;
    double ms = scale_s * 1e3, step = ddp__tick_step(ms, 14, &decimals), v;

    for (v = 0; v * step <= ms * (1 + 1e-9); v += 1) {
        double x = ddp__swim_x(m, m->begin + v * step / 1e3);

        ddp__text_addf(t, "<path class=\"grid\" d=\"M");
        ddp__add_short(t, x, 1);
        ddp__text_addf(t, " %dV%d\"/><text class=\"mid\" x=\"", DDP__SWIM_TOP, bottom);
        ddp__add_short(t, x, 1);
        ddp__text_addf(t, "\" y=\"%d\">", bottom + 13);
        ddp__add_short(t, v * step, decimals);
        ddp__text_addf(t, v > 0 ? "</text>" : " ms</text>");
    }
}

void ddp__svg_swimlanes(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, double scale_s)
{
    int workers = r->worker_count < DDP__SWIM_WORKERS ? r->worker_count : DDP__SWIM_WORKERS, w;
    int bottom = DDP__SWIM_TOP + 2 + workers * DDP__SWIM_WORKER;
    ddp__lane compute, comm;
    ddp__swim m;

    ddp__run_window(r, &m.begin, &m.end);
    if (workers < 1 || !(m.end > m.begin) || !(scale_s > 0)) {
        ddp__text_addf(t, "<p class=\"note\">No spans were recorded.</p>\n");
        return;
    }
    m.per_s = (DDP__SWIM_W - DDP__SWIM_LEFT - 16) / scale_s;
    ddp__text_addf(t, "<svg class=\"lanes\" viewBox=\"0 0 %d %d\" role=\"img\">", DDP__SWIM_W,
                   bottom + DDP__SWIM_BOTTOM);
    ddp__swim_axis(t, &m, scale_s, bottom);
    for (w = 0; w < workers; w++) {
        int top = DDP__SWIM_TOP + 4 + w * DDP__SWIM_WORKER;

        if (!ddp__lane_make(&r->workers[w], DDP__LANE_COMPUTE, m.begin, m.end, &compute)) {
            t->failed = 1;
            return;
        }
        if (w == 0) ddp__swim_steps(t, &m, &compute, bottom);
        ddp__text_addf(t, "<text class=\"end\" x=\"%d\" y=\"%d\">rank %d</text>", DDP__SWIM_LEFT - 8,
                       top + 17, w);
        ddp__swim_lane(t, d, &m, &compute, top, DDP__SWIM_COMPUTE);
        ddp__lane_free(&compute);
        if (!ddp__lane_make(&r->workers[w], DDP__LANE_COMM, m.begin, m.end, &comm)) {
            t->failed = 1;
            return;
        }
        ddp__swim_lane(t, d, &m, &comm, top + DDP__SWIM_COMPUTE + 1, DDP__SWIM_COMM);
        ddp__lane_free(&comm);
    }
    ddp__text_addf(t, "</svg>\n");
    if (workers < r->worker_count)
        ddp__text_addf(t, "<p class=\"note\">The first %d of %d workers.</p>\n", workers, r->worker_count);
}
/* ==== end report/swimlanes.c ==== */

/* ==== begin report/html.c ==== [report] */

/* Okabe and Ito's colours, told apart by colour-blind eyes; lines differ by their dashes too. */
static const char ddp__html_head[] =
    "<style>\n"
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#667079;--rule:#dfe3e6;--soft:#f5f7f8;"
    "--k0:#8cc9ee;--k1:#2f7fb8;--k2:#009e73;--k3:#f3d3c0;--k4:#e69f00;--k5:#f0e442;--k6:#c9ced2;"
    "--s0:#0072b2;--s1:#6b747b;--s2:#d98f00;--s3:#cc79a7;--s4:#009e73;--s5:#d55e00;--s6:#56b4e9;--s7:#8a7a00}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#14181b;--fg:#e3e7ea;--dim:#98a3ab;--rule:#2d3439;--soft:#1d2327;"
    "--k0:#6fb3dc;--k1:#2a76ad;--k2:#12a37a;--k3:#553526;--k4:#e6a317;--k5:#e8dc4a;--k6:#4a5359;"
    "--s0:#4da8e0;--s1:#a3adb4;--s2:#e6a317;--s3:#dd93bb;--s4:#27b98f;--s5:#ee7d2b;--s6:#7cc7f2;--s7:#cdbb3a}}\n"
    "body{margin:0 auto;padding:28px 24px 48px;max-width:1120px;background:var(--bg);color:var(--fg);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\n"
    "h1{font-size:25px;margin:0 0 6px;letter-spacing:-.01em}h2{font-size:18px;margin:36px 0 8px}"
    "h3{font-size:14px;margin:18px 0 2px;font-weight:600}h3 span,.note,dt{color:var(--dim);font-weight:400}\n"
    ".note{font-size:13px;margin:4px 0 10px}dl{display:grid;grid-template-columns:max-content 1fr;gap:1px 16px;margin:0;"
    "font-size:14px}dd{margin:0;overflow-wrap:anywhere}dd code{font-size:13px}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}"
    "th,td{padding:4px 14px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}"
    "th{font-weight:600;color:var(--dim)}th:first-child,td:first-child{text-align:left;padding-left:6px}"
    "tr.best td{font-weight:600;background:var(--soft)}\n"
    "svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:var(--dim);"
    "font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    ".mid{text-anchor:middle}.end{text-anchor:end}.grid{stroke:var(--rule);stroke-width:1}"
    ".axis,.step{stroke:var(--dim);fill:none;stroke-width:1}.step{stroke-dasharray:2 2}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:8px 24px}"
    "@media (max-width:480px){.charts{grid-template-columns:1fr}}"
    ".charts h3{margin-bottom:4px}svg .label{font-size:11.5px}svg .name{font-size:12px;font-weight:600;fill:var(--c)}\n"
    ".line,.faint{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}.faint{stroke-width:1;"
    "stroke-opacity:.22}.line.s0{stroke-width:2.8}.line.s2{stroke-dasharray:7 3}.line.s3{stroke-dasharray:2 2.5}"
    ".line.s4{stroke-dasharray:9 3 2 3}.line.s5{stroke-dasharray:5 2}.line.s6{stroke-dasharray:1.5 3}"
    ".line.s7{stroke-dasharray:12 4}\n"
    ".s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}"
    ".s6{--c:var(--s6)}.s7{--c:var(--s7)}\n"
    ".k0{--c:var(--k0)}.k1{--c:var(--k1)}.k2{--c:var(--k2)}.k3{--c:var(--k3)}.k4{--c:var(--k4)}.k5{--c:var(--k5)}"
    ".k6{--c:var(--k6)}.lanes rect{fill:var(--c);stroke:var(--bg);stroke-width:.4}\n"
    ".key{font-size:13px;color:var(--dim);margin:4px 0}.key i{display:inline-block;width:13px;height:11px;"
    "margin:0 5px 0 14px;background:var(--c);border-radius:2px}.key i:first-child{margin-left:0}\n"
    "</style>\n";

static void ddp__html_fact(ddp__text *t, const char *name, const char *value, int code)
{
    if (!value || !*value) return;
    ddp__text_addf(t, "<dt>%s</dt><dd>%s", name, code ? "<code>" : "");
    ddp__add_escaped(t, value);
    ddp__text_addf(t, "%s</dd>\n", code ? "</code>" : "");
}

static void ddp__html_facts(ddp__text *t, const ddp_report_data *d)
{
    char number[32];

    ddp__text_addf(t, "<h1>");
    ddp__add_escaped(t, d->title ? d->title : "dreamddp report");
    ddp__text_addf(t, "</h1>\n<dl>\n");
    ddp__html_fact(t, "command", d->command, 1);
    ddp__html_fact(t, "model", d->model, 0);
    ddp__html_fact(t, "network", d->net, 0);
    snprintf(number, sizeof number, "%d", d->workers);
    ddp__html_fact(t, "workers", d->workers > 0 ? number : NULL, 0);
    snprintf(number, sizeof number, "%" PRIu64, d->seed);
    ddp__html_fact(t, "seed", number, 0);
    ddp__html_fact(t, "host", d->host, 0);
    ddp__html_fact(t, "version", d->version, 0);
    ddp__text_addf(t, "</dl>\n");
}

static void ddp__html_summary(ddp__text *t, const ddp_report_data *d)
{
    const ddp_report_run *best = ddp__summary_fastest(d);
    ddp__text cell;
    int i, c;

    if (d->run_count < 1) return;
    memset(&cell, 0, sizeof cell);
    ddp__text_addf(t, "<h2>Summary</h2>\n<div class=\"scroll\"><table>\n<tr>");
    for (c = 0; c < DDP__SUMMARY_COLUMNS; c++) ddp__text_addf(t, "<th>%s</th>", ddp__summary_heading(c));
    ddp__text_addf(t, "</tr>\n");
    for (i = 0; i < d->run_count; i++) {
        ddp__text_addf(t, &d->runs[i] == best ? "<tr class=\"best\">" : "<tr>");
        for (c = 0; c < DDP__SUMMARY_COLUMNS; c++) {
            cell.size = 0;
            ddp__summary_cell(&cell, d, &d->runs[i], c);
            ddp__text_addf(t, "<td>");
            ddp__add_escaped(t, cell.data);
            ddp__text_addf(t, "</td>");
        }
        ddp__text_addf(t, "</tr>\n");
    }
    if (cell.failed) t->failed = 1;
    ddp__text_free(&cell);
    ddp__text_addf(t, "</table></div>\n<p class=\"note\">MB sent: per worker, 1 MB = 10<sup>6</sup> "
                      "bytes. Hidden: the share of the communication time during which the worker "
                      "computes.");
    if (fabs(d->target_loss) <= DBL_MAX && d->target_loss > 0) {
        ddp__text_addf(t, " s to loss: seconds until the loss is ");
        ddp__add_short(t, d->target_loss, 4);
        ddp__text_addf(t, " or below.");
    }
    ddp__text_addf(t, "</p>\n");
}

/* Number of steps that worker 0 computes in the window. */
static long ddp__html_window_steps(const ddp_report_run *r, double begin, double end)
{
    long first = LONG_MAX, last = LONG_MIN;
    int i;

    for (i = 0; r->worker_count > 0 && i < r->workers[0].count; i++) {
        const ddp_span *s = &r->workers[0].spans[i];

        if (s->kind != DDP_SPAN_BACKWARD || s->end_s <= begin || s->begin_s >= end) continue;
        if (s->step < first) first = s->step;
        if (s->step > last) last = s->step;
    }
    return last >= first ? last - first + 1 : 0;
}

static void ddp__html_lanes(ddp__text *t, const ddp_report_data *d)
{
    double scale = 0, begin, end;
    long steps;
    int i, any_fill = 0, any_peer = 0, w, k;

    for (i = 0; i < d->run_count; i++) {
        ddp__run_window(&d->runs[i], &begin, &end);
        if (end - begin > scale) scale = end - begin;
        for (w = 0; w < d->runs[i].worker_count; w++) {
            for (k = 0; k < d->runs[i].workers[w].count; k++) {
                any_fill |= d->runs[i].workers[w].spans[k].kind == DDP_SPAN_FILL;
                any_peer |= d->runs[i].workers[w].spans[k].kind == DDP_SPAN_PEER_WAIT;
            }
        }
    }
    if (!(scale > 0)) return;
    ddp__text_addf(t, "<h2>Who does what, when</h2>\n"
                      "<p class=\"key\"><i class=\"k0\"></i>forward<i class=\"k1\"></i>backward"
                      "<i class=\"k2\"></i>update<i class=\"k3\"></i>waiting"
                      "<i class=\"k4\"></i>communication%s%s</p>\n"
                      "<p class=\"note\">Upper lane of a rank: computing; lower lane: its transfers. "
                      "All pictures have the same time scale.</p>\n",
                   any_fill ? "<i class=\"k5\"></i>bubble filling" : "",
                   any_peer ? "<i class=\"k6\"></i>waiting for a peer" : "");
    for (i = 0; i < d->run_count; i++) {
        ddp__run_window(&d->runs[i], &begin, &end);
        steps = ddp__html_window_steps(&d->runs[i], begin, end);
        ddp__text_addf(t, "<h3>");
        ddp__add_escaped(t, d->runs[i].strategy);
        if (steps > 0) {
            ddp__text_addf(t, " <span>%ld step%s in ", steps, steps == 1 ? "" : "s");
            ddp__add_short(t, (end - begin) * 1e3, end - begin < 0.1 ? 2 : 0);
            ddp__text_addf(t, " ms</span>");
        }
        ddp__text_addf(t, "</h3>\n");
        ddp__svg_swimlanes(t, d, &d->runs[i], scale);
    }
}

typedef enum ddp__curve { DDP__CURVE_TIME, DDP__CURVE_BYTES, DDP__CURVE_DIVERGENCE } ddp__curve;

/* dreamddp is always s0; the others take the styles in their order. */
static int ddp__html_style(const ddp_report_data *d, int run)
{
    int i, style = 0;

    if (d->runs[run].strategy && !strcmp(d->runs[run].strategy, "dreamddp")) return 0;
    for (i = 0; i <= run; i++)
        if (!d->runs[i].strategy || strcmp(d->runs[i].strategy, "dreamddp")) style++;
    return 1 + (style - 1) % 7;
}

/* Mean of the last `over` known losses: what the eye should follow. */
static void ddp__html_smooth(const double *raw, int n, int over, double *out)
{
    int i, j;

    for (i = 0; i < n; i++) {
        double sum = 0;
        int count = 0;

        for (j = i; j >= 0 && j > i - over; j--) {
            if (!(fabs(raw[j]) <= DBL_MAX)) continue;
            sum += raw[j];
            count++;
        }
        out[i] = count ? sum / count : (double)NAN;
    }
}

static int ddp__html_smooth_over(const ddp_report_data *d)
{
    int i, most = 0;

    for (i = 0; i < d->run_count; i++) most = d->runs[i].step_count > most ? d->runs[i].step_count : most;
    return most / 25 > 1 ? (most / 25 < 200 ? most / 25 : 200) : 1;
}

static void ddp__html_chart(ddp__text *t, const ddp_report_data *d, const char *heading, ddp__curve what)
{
    int over = what == DDP__CURVE_DIVERGENCE ? 1 : ddp__html_smooth_over(d), i, j, count = 0;
    size_t total = 0;
    ddp__series *series = (ddp__series *)ddp__calloc((size_t)d->run_count * 2, sizeof *series);
    double *room, *x, *y;
    ddp__chart chart;

    for (i = 0; i < d->run_count; i++) total += (size_t)d->runs[i].step_count * 3;
    room = x = (double *)ddp__calloc(total, sizeof *room);
    if (!series || !room) t->failed = 1;
    for (i = 0; i < d->run_count && !t->failed; i++) {
        const ddp_report_run *r = &d->runs[i];
        ddp__series *s = &series[count++];
        int n = r->step_count;

        y = x + n;
        for (j = 0; j < n; j++) {
            const ddp_report_step *step = &r->steps[j];

            x[j] = what == DDP__CURVE_TIME    ? step->time_s
                   : what == DDP__CURVE_BYTES ? (double)step->bytes / 1e6
                                              : j + 1;
            y[j] = what == DDP__CURVE_DIVERGENCE ? step->divergence : step->loss;
        }
        s->style = ddp__html_style(d, i);
        s->x = x;
        s->y = y;
        s->count = n;
        if (over > 1) {
            s->faint = 1;
            s[1] = s[0];
            s[1].faint = 0;
            s[1].y = y + n;
            ddp__html_smooth(y, n, over, y + n);
            s = &series[count++];
        }
        s->name = r->strategy;
        x += (size_t)n * 3;
    }
    memset(&chart, 0, sizeof chart);
    chart.x_label = what == DDP__CURVE_TIME    ? "seconds"
                    : what == DDP__CURVE_BYTES ? "MB sent by a worker"
                                               : "step";
    chart.y_label = what == DDP__CURVE_DIVERGENCE ? "divergence (log scale)" : "loss";
    chart.log_y = what == DDP__CURVE_DIVERGENCE;
    chart.series = series;
    chart.count = count;
    ddp__text_addf(t, "<div><h3>%s</h3>\n", heading);
    if (!t->failed) ddp__svg_chart(t, &chart);
    ddp__text_addf(t, "</div>\n");
    DDP_FREE(room);
    DDP_FREE(series);
}

static void ddp__html_charts(ddp__text *t, const ddp_report_data *d)
{
    int i, j, loss = 0, divergence = 0, over = ddp__html_smooth_over(d);

    for (i = 0; i < d->run_count; i++) {
        for (j = 0; j < d->runs[i].step_count; j++) {
            loss |= fabs(d->runs[i].steps[j].loss) <= DBL_MAX;
            divergence |= d->runs[i].steps[j].divergence > 0;
        }
    }
    if (!loss && !divergence) return;
    ddp__text_addf(t, "<h2>Training</h2>\n");
    if (over > 1 && loss)
        ddp__text_addf(t, "<p class=\"note\">Loss: strong lines are means over the last %d steps, "
                          "pale ones the steps themselves.</p>\n", over);
    ddp__text_addf(t, "<div class=\"charts\">\n");
    if (loss) {
        ddp__html_chart(t, d, "Loss against time", DDP__CURVE_TIME);
        ddp__html_chart(t, d, "Loss against bytes sent", DDP__CURVE_BYTES);
    }
    if (divergence)
        ddp__html_chart(t, d, "Model divergence &#915; where workers are averaged", DDP__CURVE_DIVERGENCE);
    ddp__text_addf(t, "</div>\n");
}

/* The step of the period that averages a layer, then those that fill bubbles with it: "2 (+4)". */
static void ddp__html_plan_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int layer)
{
    int h, count = 0;

    ddp__text_addf(t, "<td>%d", r->step_of[layer]);
    for (h = 0; r->fill && h < r->period; h++)
        if (r->fill[(size_t)h * (size_t)d->layer_count + (size_t)layer])
            ddp__text_addf(t, count++ ? ", %d" : " (+%d", h);
    ddp__text_addf(t, "%s</td>", count ? ")" : "");
}

static void ddp__html_layers(ddp__text *t, const ddp_report_data *d)
{
    int i, l;

    if (d->layer_count < 1) return;
    ddp__text_addf(t, "<h2>Layers and schedule</h2>\n<div class=\"scroll\"><table>\n"
                      "<tr><th>layer</th><th>parameters</th><th>backward ms</th><th>transfer ms</th>");
    for (i = 0; i < d->run_count; i++) {
        if (!d->runs[i].step_of || d->runs[i].period < 1) continue;
        ddp__text_addf(t, "<th>");
        ddp__add_escaped(t, d->runs[i].strategy);
        ddp__text_addf(t, ": step of %d</th>", d->runs[i].period);
    }
    for (i = 0; i < d->run_count; i++) {
        if (!d->runs[i].layer_divergence) continue;
        ddp__text_addf(t, "<th>&#915; ");
        ddp__add_escaped(t, d->runs[i].strategy);
        ddp__text_addf(t, "</th>");
    }
    ddp__text_addf(t, "</tr>\n");
    for (l = 0; l < d->layer_count; l++) {
        const ddp_report_layer *layer = &d->layers[l];

        ddp__text_addf(t, "<tr><td>");
        if (layer->name)
            ddp__add_escaped(t, layer->name);
        else
            ddp__text_addf(t, "%d", l);
        ddp__text_addf(t, "</td><td>");
        ddp__add_fixed(t, layer->params, 0);
        ddp__text_addf(t, "</td><td>");
        ddp__add_fixed(t, layer->backward_s * 1e3, 3);
        ddp__text_addf(t, "</td><td>");
        ddp__add_fixed(t, layer->comm_s * 1e3, 3);
        ddp__text_addf(t, "</td>");
        for (i = 0; i < d->run_count; i++)
            if (d->runs[i].step_of && d->runs[i].period > 0) ddp__html_plan_cell(t, d, &d->runs[i], l);
        for (i = 0; i < d->run_count; i++)
            if (d->runs[i].layer_divergence) ddp__text_addf(t, "<td>%.2e</td>", d->runs[i].layer_divergence[l]);
        ddp__text_addf(t, "</tr>\n");
    }
    ddp__text_addf(t, "</table></div>\n<p class=\"note\">Steps of the period count from 0; "
                      "(+n): averaged once more in step n, in a bubble of the link.</p>\n");
}

static void ddp__html_prediction(ddp__text *t, const ddp_report_data *d)
{
    int i, any = 0;

    for (i = 0; i < d->run_count; i++) any |= d->runs[i].predicted_step_ms > 0;
    if (!any) return;
    ddp__text_addf(t, "<h2>Prediction and measurement</h2>\n<div class=\"scroll\"><table>\n"
                      "<tr><th>strategy</th><th>step ms predicted</th><th>measured</th><th>difference</th>"
                      "<th>hidden %% predicted</th><th>measured</th></tr>\n");
    for (i = 0; i < d->run_count; i++) {
        const ddp_report_run *r = &d->runs[i];
        double off = (r->step_ms / r->predicted_step_ms - 1) * 100;

        if (!(r->predicted_step_ms > 0)) continue;
        ddp__text_addf(t, "<tr><td>");
        ddp__add_escaped(t, r->strategy);
        ddp__text_addf(t, "</td><td>");
        ddp__add_fixed(t, r->predicted_step_ms, 2);
        ddp__text_addf(t, "</td><td>");
        ddp__add_fixed(t, r->step_ms, 2);
        ddp__text_addf(t, "</td><td>%s", off > 0 ? "+" : "");
        ddp__add_fixed(t, off, 1);
        ddp__text_addf(t, " %%</td><td>");
        ddp__add_fixed(t, r->predicted_hidden_pct, 1);
        ddp__text_addf(t, "</td><td>");
        ddp__add_fixed(t, r->hidden_pct, 1);
        ddp__text_addf(t, "</td></tr>\n");
    }
    ddp__text_addf(t, "</table></div>\n");
}

ddp_status ddp_report_html(const ddp_report_data *d, const char *path, ddp_error *err)
{
    ddp_status status;
    ddp__text t;

    memset(&t, 0, sizeof t);
    ddp__text_addf(&t, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                       "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>");
    ddp__add_escaped(&t, d->title ? d->title : "dreamddp report");
    ddp__text_addf(&t, "</title>\n%s</head>\n<body>\n", ddp__html_head);
    ddp__html_facts(&t, d);
    ddp__html_summary(&t, d);
    ddp__html_lanes(&t, d);
    ddp__html_charts(&t, d);
    ddp__html_layers(&t, d);
    ddp__html_prediction(&t, d);
    ddp__text_addf(&t, "</body>\n</html>\n");
    if (t.failed)
        status = ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory while it was built", path);
    else
        status = ddp__file_write(path, t.data, t.size, err);
    ddp__text_free(&t);
    return status;
}
/* ==== end report/html.c ==== */

#endif /* DDP__IMPLEMENTED */
#endif /* DREAMDDP_IMPLEMENTATION */

/*
 * MIT License
 *
 * Copyright (c) 2026 dreamddp contributors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
