/* Static graphs of operators: define operators, build a graph once, then run it forward and backward. */
#pragma once

#include "graph/layer.h"

/* ---- operators: a table entry with a shape rule, costs and kernels ---- */

#define DDP_OP_INPUTS  4 /* maximum number of inputs of an operator */
#define DDP_OP_PARAMS  4 /* maximum number of parameter arrays of an operator */
#define DDP_OP_BUFFERS 2 /* maximum number of buffers of an operator */
#define DDP_OP_ARGS    8

/* Row-major: dim[dims - 1] is contiguous. dims 0 is a scalar with one element. */
typedef struct ddp_shape {
    int dims;
    long dim[4];
} ddp_shape;

typedef enum ddp_init { DDP_INIT_ZERO, DDP_INIT_ONE, DDP_INIT_NORMAL, DDP_INIT_UNIFORM } ddp_init;

/* A parameter array or buffer of an operator and its initial values. scale: standard deviation of
 * DDP_INIT_NORMAL, bound of DDP_INIT_UNIFORM. */
typedef struct ddp_param {
    const char *name; /* "weight", "bias"; a constant string */
    ddp_shape shape;
    ddp_init init;
    float scale;
    int matrix; /* 1: ddp_muon treats it as a matrix, first dimension by all others; 0 for lookup tables */
} ddp_param;

/* Input and output of a shape rule. Inputs and args are given; all other fields start zeroed. For a tied
 * node, a rule that fails or defines no parameters is called again with the tied parameter as param[0]
 * and params 1. */
typedef struct ddp_op_spec {
    int inputs;
    ddp_shape in[DDP_OP_INPUTS];
    ddp_dtype in_type[DDP_OP_INPUTS];
    double arg[DDP_OP_ARGS]; /* defined by the operator: width, heads, probability ... */
    ddp_shape out;           /* always float32 */
    int params;
    ddp_param param[DDP_OP_PARAMS];
    int buffers; /* running statistics: part of the layer, but not parameters */
    ddp_param buffer[DDP_OP_BUFFERS];
    size_t saved;          /* elements that forward saves for backward, in addition to in and out */
    double flops;          /* of the forward pass */
    double backward_flops; /* of the backward pass (default: 2 x flops) */
    int in_place_ok;       /* 1: out may use the memory of input 0, because backward reads neither */
    int out_unread;        /* 1: backward does not read out, so its memory is freed earlier */
    int grad_over_input;   /* 1: backward may write grad_in[0] over in[0] (never with add_in[0]) */
} ddp_op_spec;

/* One execution of an operator. Elements are float, or int32_t for integer inputs. */
typedef struct ddp_op_call {
    const ddp_op_spec *spec;
    const void *in[DDP_OP_INPUTS];
    const void *param[DDP_OP_PARAMS];
    void *buffer[DDP_OP_BUFFERS]; /* forward with training 1 updates it; a recomputed forward gets a copy */
    void *out;
    void *saved; /* spec->saved elements */
    /* for backward only */
    const void *grad_out;            /* shape of out */
    void *grad_in[DDP_OP_INPUTS];    /* NULL: not needed */
    int add_in[DDP_OP_INPUTS];       /* 1: add to grad_in, 0: overwrite it */
    void *grad_param[DDP_OP_PARAMS]; /* always accumulated; NULL: frozen */
    /* execution */
    void *pool;      /* ddp__pool *, for ddp_op_parallel; may be NULL */
    int training;    /* 0: dropout is off and buffers are only read */
    uint64_t random; /* seed of this node in this micro-batch and step */
    /* for backward of pairs, see ddp_op_pair */
    const void *inner; /* for a reader: output of the pair's first operator, or NULL */
    int through;       /* for the second operator: 1 if its reader had `inner` */
    /* execution on the CPU */
    int kernels; /* ddp_config.kernels of the context (default: 0, the fastest) */
} ddp_op_call;

/* An operator. shape() fills spec before the other functions are called. The struct is borrowed for the
 * life of the graph. backward may be NULL: no gradient flows through the operator. */
typedef struct ddp_op {
    const char *name;
    ddp_status (*shape)(ddp_op_spec *s, ddp_error *err);
    void (*forward)(const ddp_op_call *c);
    void (*backward)(const ddp_op_call *c);
} ddp_op;

/* Two operators that a backend runs fused. The second directly follows the first, takes its output as input
 * 0 and has no buffers. Each gets the call that it would get alone, and all requested results are written,
 * except the second's grad_in[0], which only the first would read.
 *
 * If the only consumer of the second's output is an operator named `reader`, with that output as its input
 * 0, the reader's backward also includes the second's: if `inner` is set, it writes the gradient of `inner`
 * to its grad_in[0]. The pair receives that array as the second's grad_out, with `through` 1. */
typedef struct ddp_op_pair {
    void (*forward)(const ddp_op_call *first, const ddp_op_call *second);
    void (*backward)(const ddp_op_call *first, const ddp_op_call *second);
    const char *reader; /* NULL: no such operator */
} ddp_op_pair;

/* ddp_shape_count - number of elements of a shape (1 for a scalar). Pure. */
DDP_API long ddp_shape_count(const ddp_shape *s);

/* ddp_shape_rows - product of all dimensions but the last. Pure. */
DDP_API long ddp_shape_rows(const ddp_shape *s);

/* ddp_op_parallel - runs fn(user, first, last) over items 0..items-1 in blocks of grain items, on the
 * operator threads of the worker. Returns when all blocks are done. The blocks depend only on items and
 * grain. If they write disjoint memory, results do not depend on the number of threads. */
DDP_API void ddp_op_parallel(const ddp_op_call *c, long items, long grain,
                             void (*fn)(void *user, long first, long last), void *user);

/* ---- the graph ---- */

typedef struct ddp_graph ddp_graph;
typedef struct ddp_node ddp_node;
typedef struct ddp_state ddp_state; /* activations and their gradients of one micro-batch */

/* Description of one operator for a planner. The names are valid as long as the graph. */
typedef struct ddp_node_info {
    const char *name;  /* operator name */
    const char *layer; /* name of its layer; "" outside layers */
    int layer_index;   /* -1 outside layers */
    int inputs;
    int input[DDP_OP_INPUTS]; /* indexes of the producing nodes */
    ddp_shape out;
    double flops, backward_flops;
    double output_bytes, param_bytes; /* a tied parameter counts for the node that owns it */
    double buffer_bytes;              /* running statistics, not part of param_bytes */
} ddp_node_info;

/* ---- building. Until ddp_graph_build, a graph allocates only bookkeeping, so a planner can read the
 * graph of a model that does not fit on the machine. A builder that fails returns NULL, and the graph
 * stores the first error. Builders accept NULL inputs and return NULL, so one check at ddp_graph_build is
 * enough. ---- */

/* ddp_graph_new - creates an empty graph. d NULL: a graph for planning, or for training without
 * synchronisation; free it with ddp_graph_free. Otherwise ddp_close frees it. Returns NULL if out of
 * memory. */
DDP_API ddp_graph *ddp_graph_new(ddp_ctx *d);
DDP_API void ddp_graph_free(ddp_graph *g);

/* ddp_layer_begin / ddp_layer_end - the operators built in between form one layer, the unit of
 * synchronisation. The name is copied. A repeated name gets a number: "hidden", "hidden.1", ... */
DDP_API void ddp_layer_begin(ddp_graph *g, const char *name);
DDP_API void ddp_layer_end(ddp_graph *g);

/* ddp_recompute_begin / ddp_recompute_end - the operators built in between form a segment for activation
 * recomputation. A segment may span several layers or be part of one; segments do not nest.
 *
 * Arrays that only the segment reads (outputs, and data that operators save) are dropped in forward. Inputs
 * of the segment and outputs that are used outside it, or nowhere, are kept. The segment's forward runs
 * again before its backward, except operators whose results no backward reads. Its time counts as backward
 * of the layer of the segment's last operator; flops does not include it.
 *
 * Gradients, parameters and buffers are bit-identical to a run without segments: the second forward draws
 * the same dropout masks and does not update running statistics. An operator of your own must give equal
 * results for equal inputs, parameters, buffers and random. States from ddp_state_new ignore segments and
 * keep everything. */
DDP_API void ddp_recompute_begin(ddp_graph *g);
DDP_API void ddp_recompute_end(ddp_graph *g);

/* ddp_input - a named input array of shape (rows, cols) that the user fills before each forward pass.
 * type: DDP_F32 or DDP_I32. */
DDP_API ddp_node *ddp_input(ddp_graph *g, const char *name, ddp_dtype type, long rows, long cols);

/* ddp_input_shape - ddp_input for any shape. */
DDP_API ddp_node *ddp_input_shape(ddp_graph *g, const char *name, ddp_dtype type, const ddp_shape *s);

/* Built-in operators. x is (..., C). Shapes of the results:
 *   ddp_linear              (..., width). Weight (width, C), bias (width)
 *   ddp_linear_no_bias      (..., width)
 *   ddp_linear_tied         (..., V). No bias; uses the table (V, C) of a ddp_embedding node as its weight
 *   ddp_embedding           (rows.., C). Tokens int32, table (vocabulary, C)
 *   ddp_position            (B, T, C). x plus a learned row per position, table (T, C)
 *   ddp_layer_norm          same as x. Scale and shift (C), eps 1e-5
 *   ddp_rms_norm            same as x. Scale (C) (default of eps: 1e-5, if 0)
 *   ddp_attention           (B, T, C). x (B, T, 3C) contains queries, keys and values; causal
 *   ddp_attention_grouped   (B, T, heads d). x (B, T, (heads + 2 kv_heads) d); kv_heads divides heads, and
 *                           each key/value head serves heads / kv_heads query heads; d is at most 512
 *   ddp_rope                same as x, which has the layout of ddp_attention_grouped. Rotates queries and
 *                           keys by their position (d even); values are unchanged (default of theta: 10000,
 *                           if 0)
 *   ddp_swiglu              (..., F). x (..., 2F), rows a then b: silu(a) * b. ddp_apply("swiglu") also
 *                           takes two inputs a and b of one shape
 *   ddp_gelu, ddp_relu, ddp_add, ddp_dropout  same as x. ddp_gelu uses the tanh form
 *   ddp_cross_entropy       scalar, the mean over rows. Logits (..., V), labels int32 (...), -1 is ignored.
 *                           Its backward overwrites the logits: do not read them after ddp_backward
 *   ddp_linear_cross_entropy  scalar. ddp_cross_entropy of ddp_linear_no_bias or, with an embedding, of
 *                           ddp_linear_tied; width is then ignored. The logits never exist as a whole, which
 *                           saves memory if rows outnumber C
 * An out-of-range token or label makes the loss NaN; use ddp_tokens_check to detect it beforehand.
 *
 * Image operators, x (B, C, H, W). A window slides over H and W with a stride, and with padding on all four
 * sides: H' = (H + 2 padding - kernel) / stride + 1, rounded down, and likewise W'.
 *   ddp_conv2d              (B, channels, H', W'). Weight (channels, C / groups, kernel, kernel), bias
 *                           (channels) unless bias is 0; groups divides C and channels; kernel <= 64
 *   ddp_batch_norm2d        same as x. Scale and shift (C), eps 1e-5; normalises each channel over B H W.
 *                           Buffers: running mean and variance (C), initially 0 and 1. Each training forward
 *                           moves them by 0.1 of the distance to the batch's mean and unbiased variance.
 *                           ddp_evaluate normalises with them
 *   ddp_max_pool2d, ddp_avg_pool2d  (B, C, H', W'). Padding is at most kernel / 2. It is never a maximum,
 *                           and counts as zeros in a mean
 *   ddp_global_avg_pool2d   (B, C). Mean of each channel
 *   ddp_flatten             (B, C H W). Any x: merges all dimensions but the first
 *
 * flops counts a multiply-add as two operations, and a bias as none. */
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

/* ddp_register_op - adds a user's operator to this graph. op is borrowed for the life of the graph.
 * Returns 0 or a ddp_status. */
DDP_API int ddp_register_op(ddp_graph *g, const ddp_op *op);

/* ddp_apply - adds an operator by name, registered or built-in, with count input nodes and arg_count
 * numbers. tied (may be NULL): a node whose parameter 0 replaces parameter 0 of the new node. */
DDP_API ddp_node *ddp_apply(ddp_graph *g, const char *op, int count, ddp_node *const *inputs, int arg_count,
                            const double *args, ddp_node *tied);

/* ddp_init_scale - replaces the scale of a parameter's initial values (standard deviation or bound), as
 * for the projections of GPT-2. */
DDP_API void ddp_init_scale(ddp_graph *g, ddp_node *n, int param, float scale);

/* ddp_init_normal - makes a parameter start normally distributed with this standard deviation, instead of
 * the operator's rule; 0 means all zeros. */
DDP_API void ddp_init_normal(ddp_graph *g, ddp_node *n, int param, float deviation);

/* ddp_graph_cut - splits the model into pipeline stages; call it before ddp_graph_build. This process
 * allocates only stage `own`: parameters, gradients and activations of its operators. stage_of
 * [ddp_node_count]: the stage of each operator (an input belongs to its readers). Every user of an output
 * is in the same stage or a later one. Initial values are the same as in the whole model. ddp_pipe runs such
 * a graph. Returns 0 or a ddp_status; ddp_graph_error names the operator. */
DDP_API int ddp_graph_cut(ddp_graph *g, const int *stage_of, int stages, int own);

/* ddp_graph_build - checks shapes, plans memory, allocates and initialises parameters, and registers the
 * layers with the context. Each layer's parameters are one contiguous block, and so are its gradients.
 * Its buffers are one block, registered as DDP_BUFFERS and averaged with the layer. Initial values depend
 * only on the seed and the parameter's position. Returns DDP_MEMORY before any allocation if the graph is
 * larger than the machine's memory, unless a ddp_allocator provides the memory. Returns 0 or a
 * ddp_status; ddp_graph_error has the message. */
DDP_API int ddp_graph_build(ddp_graph *g);
DDP_API const ddp_error *ddp_graph_error(const ddp_graph *g);

/* ---- running, after ddp_graph_build ---- */

/* ddp_data - the array of a named input of the built-in state (float or int32_t). It is in host memory
 * even with a backend; each pass copies it to the device. */
DDP_API void *ddp_data(ddp_graph *g, const char *name);

/* ddp_value - the value of a scalar node after forward; NAN if the node is not a scalar. With a backend
 * it waits for the copy from the device. */
DDP_API float ddp_value(ddp_graph *g, const ddp_node *n);

/* ddp_output - the output array of a node, valid until backward reuses its memory. With a backend it
 * waits for the copy from the device. If the node's only user works in place (dropout, add), the array
 * has that user's output. NULL if a ddp_recompute_begin segment dropped the output; scalars are never
 * dropped. */
DDP_API const float *ddp_output(ddp_graph *g, const ddp_node *n);

/* ddp_forward - runs all operators in order and calls forward_begin before the first use of each layer.
 * Returns 0 or the first error. */
DDP_API int ddp_forward(ddp_graph *g);

/* ddp_backward - runs backward from loss, a scalar. Calls backward_begin and, after the last use of a
 * layer's parameters, backward_end. Gradients are accumulated; the context zeroes them, or you do with
 * ddp_zero_gradients if there is none. Returns 0 or the first error. */
DDP_API int ddp_backward(ddp_graph *g, ddp_node *loss);

/* ddp_evaluate - forward without hooks, with dropout off; it reads the running statistics but does not
 * update them. Returns 0 or the first error. */
DDP_API int ddp_evaluate(ddp_graph *g);
DDP_API void ddp_zero_gradients(ddp_graph *g);

/* ---- several micro-batches in flight, and partial execution ---- */
DDP_API ddp_state *ddp_state_new(ddp_graph *g); /* NULL if out of memory; free with ddp_state_free */
DDP_API void ddp_state_free(ddp_state *s);
DDP_API void *ddp_state_data(ddp_state *s, const ddp_node *n);     /* output or input array */
DDP_API void *ddp_state_gradient(ddp_state *s, const ddp_node *n); /* gradient of that array */
/* ddp_forward_range, ddp_backward_range - run operators first..last (node indexes, inclusive) without
 * hooks. Before the call, write outputs of earlier operators through ddp_state_data and, for backward,
 * gradients of outputs used after last through ddp_state_gradient. Read input gradients through
 * ddp_state_gradient: those of float inputs, and of outputs before first that the range uses. A gradient
 * that you write is accumulated to. The gradient of an output without users is 1 for a scalar and 0
 * otherwise, until you write it. Every array of such a state has its own memory. Buffers belong to the
 * graph, not to the state: each ddp_forward_range updates them, in call order. Return 0 or a ddp_status. */
DDP_API int ddp_forward_range(ddp_state *s, int first, int last);
DDP_API int ddp_backward_range(ddp_state *s, int first, int last);
/* ddp_state_micro_batch - sets the number that seeds the dropout masks of this state, together with the
 * seed and the node. Equal numbers give equal masks in every process. Without this call each state counts
 * its forward passes; a new pass begins when forward returns to an earlier operator. */
DDP_API void ddp_state_micro_batch(ddp_state *s, uint64_t number);

/* ---- reading the graph ---- */
DDP_API int ddp_node_count(const ddp_graph *g);
DDP_API int ddp_node_index(const ddp_node *n);
DDP_API int ddp_node_describe(const ddp_graph *g, int index, ddp_node_info *out);
DDP_API int ddp_layer_count(const ddp_graph *g);
DDP_API size_t ddp_param_count(const ddp_graph *g);
/* ddp_layer_params, ddp_layer_gradients - parameters and gradients of a layer after ddp_graph_build, each
 * one block of *count floats. */
DDP_API float *ddp_layer_params(ddp_graph *g, int layer, size_t *count);
DDP_API float *ddp_layer_gradients(ddp_graph *g, int layer, size_t *count);
/* ddp_layer_buffers - the buffers of a layer, one block of *count floats; NULL and 0 if it has none. */
DDP_API float *ddp_layer_buffers(ddp_graph *g, int layer, size_t *count);
/* ddp_node_param, ddp_node_gradient - parameter k of a node (weight 0, bias 1) and its gradient; NULL if
 * there is none. */
DDP_API float *ddp_node_param(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape);
DDP_API float *ddp_node_gradient(ddp_graph *g, const ddp_node *n, int k);
/* ddp_node_buffer - buffer k of a node (running mean 0, running variance 1); NULL if it has none. */
DDP_API float *ddp_node_buffer(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape);
/* ddp_activation_bytes - bytes of the built-in state: activations, their gradients and recomputed arrays,
 * with memory reuse. May be called before ddp_graph_build. */
DDP_API size_t ddp_activation_bytes(const ddp_graph *g);
/* ddp_graph_read, ddp_graph_write - copy count floats of parameters, gradients or buffers to and from
 * host memory, and wait for the copy. With a backend (ddp_config.backend) the arrays above, and those of
 * ddp_state_data and ddp_state_gradient, are on the device; on a GPU, 4-dimensional activations are
 * channels-last. The functions also work on the CPU. Return 0 or a ddp_status. */
DDP_API int ddp_graph_read(ddp_graph *g, float *to, const float *from, size_t count);
DDP_API int ddp_graph_write(ddp_graph *g, float *to, const float *from, size_t count);
