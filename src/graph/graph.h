/* The model: operators, and a static graph of them, built once, then executed forward and backward. */
#pragma once

#include "graph/layer.h"

/* ---- an operator: one table entry with its shape rule, costs and kernels ---- */

#define DDP_OP_INPUTS  4 /* most inputs of an operator */
#define DDP_OP_PARAMS  4 /* most parameter arrays of an operator */
#define DDP_OP_BUFFERS 2 /* most buffers of an operator */
#define DDP_OP_ARGS    8

/* Row-major: dim[dims - 1] is contiguous. dims 0 = a scalar of one element. */
typedef struct ddp_shape {
    int dims;
    long dim[4];
} ddp_shape;

typedef enum ddp_init { DDP_INIT_ZERO, DDP_INIT_ONE, DDP_INIT_NORMAL, DDP_INIT_UNIFORM } ddp_init;

/* One parameter array (or buffer) of an operator and how it starts: normal deviation or uniform bound =
 * scale. */
typedef struct ddp_param {
    const char *name; /* "weight", "bias": static text */
    ddp_shape shape;
    ddp_init init;
    float scale;
    int matrix; /* 1: its first dimension by all others is a matrix for ddp_muon; not of tables that
                           are looked up */
} ddp_param;

/* What the shape rule reads and fills. Inputs and args are given; the rest starts zeroed. A rule that fails
 * or needs no parameters is run again with a tied node's parameter as param[0], params 1. */
typedef struct ddp_op_spec {
    int inputs;
    ddp_shape in[DDP_OP_INPUTS];
    ddp_dtype in_type[DDP_OP_INPUTS];
    double arg[DDP_OP_ARGS]; /* meaning is the operator's: width, heads, probability ... */
    ddp_shape out;           /* always float32 */
    int params;
    ddp_param param[DDP_OP_PARAMS];
    int buffers; /* running statistics: part of the layer, no parameters */
    ddp_param buffer[DDP_OP_BUFFERS];
    size_t saved;          /* elements that forward leaves for backward, besides in and out */
    double flops;          /* of forward */
    double backward_flops; /* 0 = 2 x flops */
    int in_place_ok;       /* 1: out may share the memory of input 0 (backward reads neither) */
    int out_unread;        /* 1: backward does not read out, so its memory is free earlier */
    int grad_over_input;   /* 1: backward may write grad_in[0] over in[0] (never with add_in[0]) */
} ddp_op_spec;

/* One execution. Elements are float, those of integer inputs int32_t. */
typedef struct ddp_op_call {
    const ddp_op_spec *spec;
    const void *in[DDP_OP_INPUTS];
    const void *param[DDP_OP_PARAMS];
    void *buffer[DDP_OP_BUFFERS]; /* changed by forward with training 1; run again, it gets a
                                                 copy */
    void *out;
    void *saved; /* spec->saved elements */
    /* backward only */
    const void *grad_out;            /* shape of out */
    void *grad_in[DDP_OP_INPUTS];    /* NULL: not wanted */
    int add_in[DDP_OP_INPUTS];       /* 1: add to grad_in, 0: overwrite it */
    void *grad_param[DDP_OP_PARAMS]; /* always added to; NULL: frozen */
    /* execution */
    void *pool;      /* ddp__pool *, for ddp_op_parallel; may be NULL */
    int training;    /* 0: dropout passes through, buffers are read */
    uint64_t random; /* seed of this node in this micro-batch and step */
    /* backward of pairs, see ddp_op_pair */
    const void *inner; /* of a reader: first's output; NULL: there is none */
    int through;       /* of second: its reader had that */
    /* execution on the CPU */
    int kernels; /* ddp_config.kernels of the context; 0: the fastest */
} ddp_op_call;

/* A table entry. Functions are called with spec filled by shape(). Everything is borrowed for the life of the
 * graph. backward may be NULL (no gradient flows through). */
typedef struct ddp_op {
    const char *name;
    ddp_status (*shape)(ddp_op_spec *s, ddp_error *err);
    void (*forward)(const ddp_op_call *c);
    void (*backward)(const ddp_op_call *c);
} ddp_op;

/* Two operators that a backend runs as one, the second without buffers: it directly follows first and takes
 * its output as input 0. The calls are those that each alone would get, and what they ask for is
 * written, but for second's grad_in[0]: only first would read it.
 *
 * Where an operator of the name `reader` alone takes second's output, as input 0, it goes back through second
 * too: with `inner` it writes the gradient of that to its grad_in[0], where the pair finds it as second's
 * grad_out (`through`). */
typedef struct ddp_op_pair {
    void (*forward)(const ddp_op_call *first, const ddp_op_call *second);
    void (*backward)(const ddp_op_call *first, const ddp_op_call *second);
    const char *reader; /* NULL: none does */
} ddp_op_pair;

/* ddp_shape_count - elements of a shape (1 for a scalar).  ddp_shape_rows - product of all but
 * the last dimension. Pure. */
DDP_API long ddp_shape_count(const ddp_shape *s);
DDP_API long ddp_shape_rows(const ddp_shape *s);

/* ddp_op_parallel - runs fn(user, first, last) over blocks of 0..items of grain items on the
 * worker's operator threads. The blocks depend only on items and grain, so results do not
 * depend on the number of threads as long as blocks write disjoint memory. */
DDP_API void ddp_op_parallel(const ddp_op_call *c, long items, long grain,
                             void (*fn)(void *user, long first, long last), void *user);

/* ---- the graph ---- */

typedef struct ddp_graph ddp_graph;
typedef struct ddp_node ddp_node;
typedef struct ddp_state ddp_state; /* activations and their gradients of one micro-batch */

/* What a planner reads of one operator; names live as long as the graph. */
typedef struct ddp_node_info {
    const char *name;  /* operator name */
    const char *layer; /* name of its layer, "" outside layers */
    int layer_index;   /* -1 outside layers */
    int inputs;
    int input[DDP_OP_INPUTS]; /* indexes of the producing nodes */
    ddp_shape out;
    double flops, backward_flops;
    double output_bytes, param_bytes; /* a tied parameter counts where it is owned */
    double buffer_bytes;              /* running statistics, not part of param_bytes */
} ddp_node_info;

/* ---- building: nothing but bookkeeping is allocated until ddp_graph_build, so the graph of a model that
 * does not fit the machine can be read by the planner. A builder that fails returns NULL and the graph
 * remembers the first error; NULL inputs pass through, so one check at ddp_graph_build is enough. ---- */

/* ddp_graph_new - an empty graph. d may be NULL: a graph for planning or for training without
 * synchronisation (then ddp_graph_free frees it); else ddp_close frees it. NULL: out of memory. */
DDP_API ddp_graph *ddp_graph_new(ddp_ctx *d);
DDP_API void ddp_graph_free(ddp_graph *g);

/* ddp_layer_begin / ddp_layer_end - operators built in between belong to one synchronisation
 * unit. The name is copied; a repeated name gets its number: "hidden", "hidden.1", ... */
DDP_API void ddp_layer_begin(ddp_graph *g, const char *name);
DDP_API void ddp_layer_end(ddp_graph *g);

/* ddp_recompute_begin / ddp_recompute_end - operators built in between are a segment, over any number of
 * layers or within one: what only the segment itself reads (outputs, and what operators save) dies in
 * forward, and the segment's forward runs again before its backward, but for the operators whose result no
 * backward asks for. What enters the segment and what is used outside of it, or by nobody, is kept. Segments
 * are not nested. Gradients, parameters and buffers are the same bit for bit: the second forward draws the
 * same dropout masks, and moves no running statistics (an operator of your own must make the same of equal
 * inputs, parameters, buffers and random). It counts as backward of the layer of the segment's last operator;
 * flops do not count it. States of ddp_state_new keep everything and ignore segments. */
DDP_API void ddp_recompute_begin(ddp_graph *g);
DDP_API void ddp_recompute_end(ddp_graph *g);

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
 *   ddp_rms_norm        same           scale (C); eps 0 = 1e-5
 *   ddp_attention       (B, T, C)      x (B, T, 3C) = queries, keys, values; causal, heads heads
 *   ddp_attention_grouped  (B, T, heads d)  x (B, T, (heads + 2 kv_heads) d); kv_heads divides
 *                       heads, each head of keys and values serves heads / kv_heads of queries;
 *                       d at most 512
 *   ddp_rope            same           x as ddp_attention_grouped reads it: queries and keys are
 *                       turned by their position (d even), values pass; theta 0 = 10000
 *   ddp_swiglu          (..., F)       x (..., 2F), rows a then b: silu(a) * b; two inputs a and
 *                       b of one shape through ddp_apply("swiglu")
 *   ddp_gelu (tanh form), ddp_relu, ddp_add, ddp_dropout(probability): same shape
 *   ddp_cross_entropy   scalar         mean over rows; logits (..., V), labels int32 (...), -1 =
 *                       ignored. Its backward consumes the logits: do not read them after
 *                       ddp_backward
 *   ddp_linear_cross_entropy  scalar   that of ddp_linear_no_bias, or with an embedding of ddp_linear_tied,
 *                             whose width
 *                       is then ignored; the logits never exist whole: less memory where rows outnumber C
 * A token or label out of range makes the loss NaN; ddp_tokens_check finds it beforehand.
 *
 * Operators on images, x (B, C, H, W). A window moves by stride over H and W with padding on all
 * four sides: H' = (H + 2 padding - kernel) / stride + 1, rounded down, and W' likewise.
 *   ddp_conv2d          (B, channels, H', W')  weight (channels, C / groups, kernel, kernel), bias
 *                       (channels) unless bias is 0; groups divides C and channels; kernel <= 64
 *   ddp_batch_norm2d    same                   scale and shift (C), eps 1e-5; over B H W of each
 *                       channel. Buffers: running mean and variance (C), 0 and 1 at first, moved by
 *                       each training forward 0.1 of the way to the batch's mean and unbiased
 *                       variance; ddp_evaluate normalises with them
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
DDP_API ddp_node *ddp_rms_norm(ddp_graph *g, ddp_node *x, double eps);
DDP_API ddp_node *ddp_attention_grouped(ddp_graph *g, ddp_node *x, long heads, long kv_heads);
DDP_API ddp_node *ddp_rope(ddp_graph *g, ddp_node *x, long heads, long kv_heads, double theta);
DDP_API ddp_node *ddp_swiglu(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_gelu(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_relu(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_add(ddp_graph *g, ddp_node *a, ddp_node *b);
DDP_API ddp_node *ddp_dropout(ddp_graph *g, ddp_node *x, float probability);
DDP_API ddp_node *ddp_cross_entropy(ddp_graph *g, ddp_node *logits, ddp_node *labels);
DDP_API ddp_node *ddp_linear_cross_entropy(ddp_graph *g, ddp_node *x, ddp_node *labels, long width,
                                           ddp_node *embedding);
DDP_API ddp_node *ddp_conv2d(ddp_graph *g, ddp_node *x, long channels, long kernel, long stride, long padding,
                             long groups, int bias);
DDP_API ddp_node *ddp_batch_norm2d(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_max_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding);
DDP_API ddp_node *ddp_avg_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding);
DDP_API ddp_node *ddp_global_avg_pool2d(ddp_graph *g, ddp_node *x);
DDP_API ddp_node *ddp_flatten(ddp_graph *g, ddp_node *x);

/* ddp_register_op - adds a user's operator to this graph (op is borrowed); ddp_apply uses it, or
 * any built-in, by name: inputs[count] nodes, args[arg_count] numbers. tied (may be NULL) is a
 * node whose parameter 0 is used in place of an own parameter 0. */
DDP_API int ddp_register_op(ddp_graph *g, const ddp_op *op);
DDP_API ddp_node *ddp_apply(ddp_graph *g, const char *op, int count, ddp_node *const *inputs, int arg_count,
                            const double *args, ddp_node *tied);

/* ddp_init_scale - overrides the initial deviation of a node's parameter (GPT-2's projections). */
DDP_API void ddp_init_scale(ddp_graph *g, ddp_node *n, int param, float scale);

/* ddp_init_normal - makes a node's parameter start normally distributed with this deviation,
 * whatever the operator's own rule is; 0 = all zeros. */
DDP_API void ddp_init_normal(ddp_graph *g, ddp_node *n, int param, float deviation);

/* ddp_graph_cut - before ddp_graph_build: the model is cut into stages, and this process holds stage `own` of
 * them: parameters, gradients and activations of its operators alone. stage_of [ddp_node_count]: of each
 * operator (inputs belong to whoever reads them); users lie in the same stage or a later one. Initial values
 * are those of the whole model. Such a graph is run by ddp_pipe. Returns 0 or a ddp_status; ddp_graph_error
 * names the operator. */
DDP_API int ddp_graph_cut(ddp_graph *g, const int *stage_of, int stages, int own);

/* ddp_graph_build - checks shapes, plans memory, allocates and initialises parameters (each layer's
 * parameters, and its gradients, lie in one contiguous block; initialisation depends only on the seed and the
 * parameter's position) and registers the layers with the context. A layer's buffers are one block too,
 * registered as DDP_BUFFERS: averaged with the layer. A graph that is larger than the machine's memory is
 * refused with DDP_MEMORY before anything is allocated, unless a ddp_allocator says where memory comes from.
 * Returns 0 or a ddp_status; ddp_graph_error has the sentence. */
DDP_API int ddp_graph_build(ddp_graph *g);
DDP_API const ddp_error *ddp_graph_error(const ddp_graph *g);

/* ---- running, after ddp_graph_build ---- */

/* ddp_data - the array of a named input of the built-in state (float or int32_t). With a backend it lies on
 * the host all the same: each pass takes it to the device; ddp_value and ddp_output copy from there and wait
 * for it. ddp_value - the scalar of a node after forward, NAN where it is not a scalar.
 * ddp_output - a node's output array, valid until its memory is reused by backward; a node whose
 * only user works in place (dropout, add) shows that user's output. NULL (ddp_value: NAN) for what
 * a segment of ddp_recompute_begin dropped; scalars it never drops. */
DDP_API void *ddp_data(ddp_graph *g, const char *name);
DDP_API float ddp_value(ddp_graph *g, const ddp_node *n);
DDP_API const float *ddp_output(ddp_graph *g, const ddp_node *n);

/* ddp_forward - all operators in order, calling forward_begin before a layer's first use.
 * ddp_backward - from loss (a scalar), calling backward_begin and, after the last use of a layer's
 * parameters, backward_end. Gradients are added to; the consumer zeroes them (the context, or
 * ddp_zero_gradients without one). ddp_evaluate - forward without hooks, with dropout off and with the
 * running statistics, which it leaves alone. Each returns 0 or the first error. */
DDP_API int ddp_forward(ddp_graph *g);
DDP_API int ddp_backward(ddp_graph *g, ddp_node *loss);
DDP_API int ddp_evaluate(ddp_graph *g);
DDP_API void ddp_zero_gradients(ddp_graph *g);

/* ---- several micro-batches in flight, and parts of the graph alone ---- */
DDP_API ddp_state *ddp_state_new(ddp_graph *g); /* NULL: out of memory; freed by ddp_state_free */
DDP_API void ddp_state_free(ddp_state *s);
DDP_API void *ddp_state_data(ddp_state *s, const ddp_node *n);     /* output or input array */
DDP_API void *ddp_state_gradient(ddp_state *s, const ddp_node *n); /* gradient of that array */
/* Operators first..last (node indexes, inclusive) without hooks. Outputs of earlier operators, and for
 * backward the gradients of outputs used after last, must have been fed through ddp_state_data /
 * ddp_state_gradient; input gradients are taken out the same way: those of outputs before first that the
 * range uses, and of float inputs. A gradient that is fed is added to. Outputs that nobody uses start with
 * gradient 1 if they are scalars, 0 otherwise, until it is fed. Every array of such a state has its own
 * memory. Buffers are the graph's, not the state's: each ddp_forward_range moves them, in the order of the
 * calls. */
DDP_API int ddp_forward_range(ddp_state *s, int first, int last);
DDP_API int ddp_backward_range(ddp_state *s, int first, int last);
/* ddp_state_micro_batch - the number that dropout masks of this state depend on, besides seed and
 * node: equal numbers give equal masks, in any process. Without it each state counts its own
 * forward passes: a new one begins where forward goes back to an earlier operator. */
DDP_API void ddp_state_micro_batch(ddp_state *s, uint64_t number);

/* ---- reading the graph ---- */
DDP_API int ddp_node_count(const ddp_graph *g);
DDP_API int ddp_node_index(const ddp_node *n);
DDP_API int ddp_node_describe(const ddp_graph *g, int index, ddp_node_info *out);
DDP_API int ddp_layer_count(const ddp_graph *g);
DDP_API size_t ddp_param_count(const ddp_graph *g);
/* Parameters and gradients of layer l after ddp_graph_build: one block of *count floats each. */
DDP_API float *ddp_layer_params(ddp_graph *g, int layer, size_t *count);
DDP_API float *ddp_layer_gradients(ddp_graph *g, int layer, size_t *count);
/* Its buffers, likewise; NULL and 0 where it has none. */
DDP_API float *ddp_layer_buffers(ddp_graph *g, int layer, size_t *count);
/* Parameter k of a node (weight 0, bias 1), NULL if it has none. */
DDP_API float *ddp_node_param(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape);
DDP_API float *ddp_node_gradient(ddp_graph *g, const ddp_node *n, int k);
/* Buffer k of a node (running mean 0, running variance 1), NULL if it has none. */
DDP_API float *ddp_node_buffer(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape);
/* Memory of the built-in state: activations, their gradients and what is computed again, planned so
 * that the dead make room for the living. Works before ddp_graph_build. */
DDP_API size_t ddp_activation_bytes(const ddp_graph *g);
/* On a device (ddp_config.backend) the arrays above lie there, and those of ddp_state_data and
 * ddp_state_gradient (on a GPU channels-last if they have four dimensions): these copy count floats of
 * parameters, gradients or buffers from and to the host, and wait for it. The same on the CPU. Return 0 or a
 * ddp_status. */
DDP_API int ddp_graph_read(ddp_graph *g, float *to, const float *from, size_t count);
DDP_API int ddp_graph_write(ddp_graph *g, float *to, const float *from, size_t count);
