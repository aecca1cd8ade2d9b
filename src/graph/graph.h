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
    int dims;    /* number of dimensions, 0 to 4 */
    long dim[4]; /* length of each dimension */
} ddp_shape;

/* Initial values of a parameter: zeros, ones, normal or uniform around 0. */
typedef enum ddp_init { DDP_INIT_ZERO, DDP_INIT_ONE, DDP_INIT_NORMAL, DDP_INIT_UNIFORM } ddp_init;

/* A parameter array or buffer of an operator and its initial values. scale: standard deviation of
 * DDP_INIT_NORMAL, bound of DDP_INIT_UNIFORM. */
typedef struct ddp_param {
    const char *name; /* "weight" or "bias", a constant string */
    ddp_shape shape;  /* shape of the array */
    ddp_init init;    /* distribution of the initial values */
    float scale;      /* see above, or 0 for ZERO and ONE */
    int matrix; /* 1: ddp_muon treats it as a matrix, first dimension by all others, or 0 for lookup tables */
} ddp_param;

/* Input and output of a shape rule. Inputs and args are given. All other fields start zeroed. For a tied
 * node, a rule that fails or defines no parameters is called again with the tied parameter as param[0] and
 * params 1. */
typedef struct ddp_op_spec {
    int inputs;                       /* given: number of inputs */
    ddp_shape in[DDP_OP_INPUTS];      /* given: their shapes */
    ddp_dtype in_type[DDP_OP_INPUTS]; /* given: their types */
    double arg[DDP_OP_ARGS];          /* defined by the operator: width, heads, probability ... */
    ddp_shape out;                    /* always float32 */
    int params;                       /* number of parameter arrays */
    ddp_param param[DDP_OP_PARAMS];   /* their shapes and initial values */
    int buffers;                      /* running statistics: part of the layer, but not parameters */
    ddp_param buffer[DDP_OP_BUFFERS]; /* their shapes and initial values */
    size_t saved;          /* elements that forward saves for backward, in addition to in and out */
    double flops;          /* of the forward pass */
    double backward_flops; /* of the backward pass (default: 2 x flops) */
    int in_place_ok;       /* 1 if out may use the memory of input 0, because backward reads neither */
    int out_unread;        /* 1 if backward does not read out, so its memory is freed earlier */
    int grad_over_input;   /* 1 if backward may write grad_in[0] over in[0] (never with add_in[0]) */
} ddp_op_spec;

/* One execution of an operator. Elements are float, or int32_t for integer inputs. */
typedef struct ddp_op_call {
    const ddp_op_spec *spec;          /* result of the shape rule */
    const void *in[DDP_OP_INPUTS];    /* input arrays */
    const void *param[DDP_OP_PARAMS]; /* parameter arrays */
    void *buffer[DDP_OP_BUFFERS]; /* forward with training 1 updates it. A recomputed forward gets a copy. */
    void *out;                    /* output array */
    void *saved;                  /* spec->saved elements */
    /* for backward only */
    const void *grad_out;            /* shape of out */
    void *grad_in[DDP_OP_INPUTS];    /* NULL if not needed */
    int add_in[DDP_OP_INPUTS];       /* 1: add to grad_in, 0: overwrite grad_in */
    void *grad_param[DDP_OP_PARAMS]; /* always accumulated, or NULL for frozen */
    /* execution */
    void *pool;      /* ddp__pool *, for ddp_op_parallel. May be NULL. */
    int training;    /* 0 if dropout is off and buffers are only read */
    uint64_t random; /* seed of this node in this micro-batch and step */
    /* for backward of pairs, see ddp_op_pair */
    const void *inner; /* for a reader: output of the pair's first operator, or NULL */
    int through;       /* for the second operator: 1 if its reader had `inner` */
    /* execution on the CPU */
    int kernels; /* ddp_config.kernels of the context (default: 0, the fastest) */
} ddp_op_call;

/* An operator. shape() fills spec before the other functions are called. The struct is borrowed for the
 * life of the graph. If backward is NULL, no gradient flows through the operator. */
typedef struct ddp_op {
    const char *name;                                    /* unique within a graph */
    ddp_status (*shape)(ddp_op_spec *s, ddp_error *err); /* fills the spec, or fails */
    void (*forward)(const ddp_op_call *c);               /* computes out */
    void (*backward)(const ddp_op_call *c);              /* computes the gradients, or NULL */
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
    const char *reader; /* name of that operator, or NULL */
} ddp_op_pair;

/* ddp_shape_count - returns the number of elements of a shape, or 1 for a scalar. Pure and safe from any
 * thread. */
DDP_API long ddp_shape_count(const ddp_shape *s);

/* ddp_shape_rows - returns the product of all dimensions but the last. Pure and safe from any thread. */
DDP_API long ddp_shape_rows(const ddp_shape *s);

/* ddp_op_parallel - runs fn(user, first, last) over items 0..items-1 in blocks of `grain` items, on the
 * operator threads of the worker. Returns when all blocks are done. The blocks depend only on items and
 * grain. If they write disjoint memory, results do not depend on the number of threads. Call it within an
 * operator's forward or backward. */
DDP_API void ddp_op_parallel(const ddp_op_call *c, long items, long grain,
                             void (*fn)(void *user, long first, long last), void *user);

/* ---- the graph ---- */

typedef struct ddp_graph ddp_graph;
typedef struct ddp_node ddp_node;
typedef struct ddp_state ddp_state; /* activations and their gradients of one micro-batch */

/* Description of one operator for a planner. The names are valid as long as the graph. */
typedef struct ddp_node_info {
    const char *name;                 /* operator name */
    const char *layer;                /* name of the layer, or "" outside layers */
    int layer_index;                  /* -1 outside layers */
    int inputs;                       /* number of inputs */
    int input[DDP_OP_INPUTS];         /* indexes of the producing nodes */
    ddp_shape out;                    /* shape of the output */
    double flops, backward_flops;     /* FLOPs of the forward and of the backward pass */
    double output_bytes, param_bytes; /* a tied parameter counts for the node that owns it */
    double buffer_bytes;              /* running statistics, not part of param_bytes */
} ddp_node_info;

/* ---- building. Until ddp_graph_build, a graph allocates only bookkeeping, so a planner can read the
 * graph of a model that does not fit on the machine. A builder that fails returns NULL, and the graph
 * stores the first error. Builders accept NULL inputs and return NULL, so one check at ddp_graph_build is
 * enough. ---- */

/* ddp_graph_new - creates an empty graph. If d is NULL, the graph is for planning, or for training without
 * synchronisation, and the caller frees it with ddp_graph_free. Otherwise ddp_close frees it. Returns NULL if
 * memory is short. One thread at a time may use a graph. */
DDP_API ddp_graph *ddp_graph_new(ddp_ctx *d);

/* ddp_graph_free - frees a graph that is not registered with a context, with its nodes. Otherwise, does
 * nothing, because ddp_close frees it. NULL is allowed. */
DDP_API void ddp_graph_free(ddp_graph *g);

/* ddp_layer_begin - begins a layer, the unit of synchronisation. The operators that are added before
 * ddp_layer_end form the layer. The name is copied. A repeated name gets a number: "hidden", "hidden.1", ...
 * A failure is stored in the graph (ddp_graph_error). */
DDP_API void ddp_layer_begin(ddp_graph *g, const char *name);

/* ddp_layer_end - ends the layer that ddp_layer_begin began. A failure is stored in the graph
 * (ddp_graph_error). */
DDP_API void ddp_layer_end(ddp_graph *g);

/* ddp_recompute_begin - begins a segment for activation recomputation. The operators that are added before
 * ddp_recompute_end form the segment. It may span several layers or be part of one, but segments do not nest.
 *
 * Arrays that only the segment reads (outputs, and data that operators save) are dropped in forward. Inputs
 * of the segment and outputs that are used outside it, or nowhere, are retained. The segment's forward runs
 * again before its backward, except operators whose results no backward reads. Its time counts as backward of
 * the layer of the segment's last operator. flops does not include it.
 *
 * Gradients, parameters and buffers are bit-identical to a run without segments: the second forward draws the
 * same dropout masks and does not update running statistics. An operator of your own must give equal results
 * for equal inputs, parameters, buffers and random. States from ddp_state_new ignore segments and retain
 * everything. A failure is stored in the graph (ddp_graph_error). */
DDP_API void ddp_recompute_begin(ddp_graph *g);

/* ddp_recompute_end - ends the segment that ddp_recompute_begin began. A failure is stored in the graph
 * (ddp_graph_error). */
DDP_API void ddp_recompute_end(ddp_graph *g);

/* ddp_input - adds a named input array of shape (rows, cols) that the program fills before each forward pass.
 * type: DDP_F32 or DDP_I32. The name is copied and must be unique. Returns the node, owned by the graph, or
 * NULL on failure. */
DDP_API ddp_node *ddp_input(ddp_graph *g, const char *name, ddp_dtype type, long rows, long cols);

/* ddp_input_shape - adds a named input array of any shape that the program fills before each forward pass.
 * type: DDP_F32 or DDP_I32. The name is copied and must be unique. Returns the node, owned by the graph, or
 * NULL on failure. */
DDP_API ddp_node *ddp_input_shape(ddp_graph *g, const char *name, ddp_dtype type, const ddp_shape *s);

/* ---- built-in operators ----
 *
 * A builder adds one operator and returns the node, which the graph owns. It returns NULL on failure.
 * ddp_graph_error then has DDP_ARG (shapes or numbers that do not fit), DDP_USAGE (after ddp_graph_build) or
 * DDP_MEMORY. x is (..., C) unless stated otherwise. An out-of-range token or label makes the loss NaN. Use
 * ddp_tokens_check to detect it beforehand. flops counts a multiply-add as two operations, and does not count
 * a bias. */

/* ddp_linear - adds a linear layer with bias: x W' + b, shape (..., width). Weight (width, C), bias
 * (width). */
DDP_API ddp_node *ddp_linear(ddp_graph *g, ddp_node *x, long width);

/* ddp_linear_no_bias - adds a linear layer without bias: x W', shape (..., width). Weight (width, C). */
DDP_API ddp_node *ddp_linear_no_bias(ddp_graph *g, ddp_node *x, long width);

/* ddp_linear_tied - adds a linear layer whose weight is the table (V, C) of a ddp_embedding node, without
 * bias. Shape (..., V). */
DDP_API ddp_node *ddp_linear_tied(ddp_graph *g, ddp_node *x, ddp_node *embedding);

/* ddp_embedding - adds a lookup of int32 tokens (rows..) in a table (vocabulary, width). Shape (rows..,
 * width). */
DDP_API ddp_node *ddp_embedding(ddp_graph *g, ddp_node *tokens, long vocabulary, long width);

/* ddp_position - adds a learned row to each position of x (B, T, C), from a table (T, C). Shape of x. */
DDP_API ddp_node *ddp_position(ddp_graph *g, ddp_node *x);

/* ddp_layer_norm - adds a layer normalisation over the last dimension, eps 1e-5, with scale and shift (C).
 * Shape of x. */
DDP_API ddp_node *ddp_layer_norm(ddp_graph *g, ddp_node *x);

/* ddp_attention - adds causal multi-head attention. x (B, T, 3C) contains queries, keys and values, and heads
 * divides C. Shape (B, T, C). */
DDP_API ddp_node *ddp_attention(ddp_graph *g, ddp_node *x, long heads);

/* ddp_rms_norm - adds a root-mean-square normalisation over the last dimension, with scale (C). Shape of x.
 * eps 0 means 1e-5. */
DDP_API ddp_node *ddp_rms_norm(ddp_graph *g, ddp_node *x, double eps);

/* ddp_attention_grouped - adds causal grouped-query attention. x is (B, T, (heads + 2 kv_heads) d): queries,
 * keys and values. kv_heads divides heads, and each key/value head serves heads / kv_heads query heads. d is
 * at most 512. Shape (B, T, heads d). */
DDP_API ddp_node *ddp_attention_grouped(ddp_graph *g, ddp_node *x, long heads, long kv_heads);

/* ddp_rope - adds a rotary position embedding: rotates queries and keys of x by their position (d even).
 * Values are unchanged. x has the layout of ddp_attention_grouped. Shape of x. theta 0 means 10000. */
DDP_API ddp_node *ddp_rope(ddp_graph *g, ddp_node *x, long heads, long kv_heads, double theta);

/* ddp_swiglu - adds the gated activation silu(a) * b of x (..., 2F), rows a then b. Shape (..., F). ddp_apply
 * with "swiglu" also takes two inputs a and b of one shape. */
DDP_API ddp_node *ddp_swiglu(ddp_graph *g, ddp_node *x);

/* ddp_gelu - adds the GELU activation in its tanh form. Shape of x. */
DDP_API ddp_node *ddp_gelu(ddp_graph *g, ddp_node *x);

/* ddp_relu - adds the activation max(0, x). Shape of x. */
DDP_API ddp_node *ddp_relu(ddp_graph *g, ddp_node *x);

/* ddp_add - adds an operator that sums two nodes of one shape, element by element. Shape of a. */
DDP_API ddp_node *ddp_add(ddp_graph *g, ddp_node *a, ddp_node *b);

/* ddp_dropout - adds an operator that zeroes elements with this probability, in [0, 1), and scales the others
 * by 1 / (1 - probability). In evaluation it has no effect. Shape of x. */
DDP_API ddp_node *ddp_dropout(ddp_graph *g, ddp_node *x, float probability);

/* ddp_cross_entropy - adds the mean cross-entropy loss over rows, a scalar. Logits (..., V), labels int32
 * (...). Label -1 is ignored. Its backward overwrites the logits: do not read them after ddp_backward. */
DDP_API ddp_node *ddp_cross_entropy(ddp_graph *g, ddp_node *logits, ddp_node *labels);

/* ddp_linear_cross_entropy - adds a linear layer without bias and the mean cross-entropy of its logits as one
 * operator, a scalar. With an embedding the weight is its table, and width is ignored. The logits never exist
 * as a whole, which saves memory if rows outnumber C. labels: int32 (...). -1 is ignored. */
DDP_API ddp_node *ddp_linear_cross_entropy(ddp_graph *g, ddp_node *x, ddp_node *labels, long width,
                                           ddp_node *embedding);

/* ddp_conv2d - adds a 2-D convolution of images x (B, C, H, W). Shape (B, channels, H', W').
 *
 *   channels  output channels
 *   kernel    height and width of the window, at most 64
 *   stride    step of the window. H' = (H + 2 padding - kernel) / stride + 1, rounded down, and likewise W'
 *   padding   zeros on all four sides
 *   groups    divides C and channels
 *   bias      0 for no bias, otherwise bias (channels)
 *
 * Weight (channels, C / groups, kernel, kernel). */
DDP_API ddp_node *ddp_conv2d(ddp_graph *g, ddp_node *x, long channels, long kernel, long stride, long padding,
                             long groups, int bias);

/* ddp_batch_norm2d - adds a batch normalisation of each channel of images x (B, C, H, W) over B, H and W, eps
 * 1e-5. Scale and shift (C). Buffers: running mean and variance (C), initially 0 and 1. Each training forward
 * moves them by 0.1 of the distance to the batch's mean and unbiased variance. ddp_evaluate normalises with
 * them. Shape of x. */
DDP_API ddp_node *ddp_batch_norm2d(ddp_graph *g, ddp_node *x);

/* ddp_max_pool2d - adds the maximum over a window of images x (B, C, H, W). Shape (B, C, H', W') as for a
 * convolution with this kernel, stride and padding. Padding is at most kernel / 2 and is never the
 * maximum. */
DDP_API ddp_node *ddp_max_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding);

/* ddp_avg_pool2d - adds the mean over a window of images x (B, C, H, W). Shape (B, C, H', W') as for a
 * convolution with this kernel, stride and padding. Padding is at most kernel / 2 and counts as zeros in the
 * mean. */
DDP_API ddp_node *ddp_avg_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding);

/* ddp_global_avg_pool2d - adds the mean of each channel of images x (B, C, H, W). Shape (B, C). */
DDP_API ddp_node *ddp_global_avg_pool2d(ddp_graph *g, ddp_node *x);

/* ddp_flatten - adds an operator that merges all dimensions of any x but the first. Shape (B, C H W) for
 * images. */
DDP_API ddp_node *ddp_flatten(ddp_graph *g, ddp_node *x);

/* ddp_register_op - adds a user's operator to this graph, for ddp_apply. op is borrowed for the life of the
 * graph. Returns 0 or a ddp_status. Errors: DDP_ARG for a missing name, shape rule or forward, or a name that
 * exists; DDP_USAGE after ddp_graph_build; DDP_MEMORY; an earlier error of the graph. */
DDP_API int ddp_register_op(ddp_graph *g, const ddp_op *op);

/* ddp_apply - adds an operator by name, registered or built-in.
 *
 *   op         name of the operator
 *   inputs     [count] input nodes, at most DDP_OP_INPUTS
 *   arg_count  numbers in args, at most DDP_OP_ARGS. Their meaning depends on the operator.
 *   tied       may be NULL: a node whose parameter 0 replaces parameter 0 of the new node
 *
 * Returns the node, owned by the graph, or NULL on failure. */
DDP_API ddp_node *ddp_apply(ddp_graph *g, const char *op, int count, ddp_node *const *inputs, int arg_count,
                            const double *args, ddp_node *tied);

/* ddp_init_scale - replaces the scale of the initial values of parameter `param` of a node (standard
 * deviation or bound), as for the projections of GPT-2. A failure is stored in the graph
 * (ddp_graph_error). */
DDP_API void ddp_init_scale(ddp_graph *g, ddp_node *n, int param, float scale);

/* ddp_init_normal - makes parameter `param` of a node start normally distributed with this standard
 * deviation, instead of the operator's rule. 0 means all zeros. A failure is stored in the graph
 * (ddp_graph_error). */
DDP_API void ddp_init_normal(ddp_graph *g, ddp_node *n, int param, float deviation);

/* ddp_graph_cut - splits the model into pipeline stages. Call it before ddp_graph_build. This process
 * allocates only stage `own`: parameters, gradients and activations of its operators.
 *
 *   stage_of  [ddp_node_count] stage of each operator (an input belongs to its readers). Every user of an
 *             output is in the same stage or a later one.
 *   stages    number of stages
 *   own       stage of this process, 0..stages-1
 *
 * Initial values are the same as in the whole model. ddp_pipe_open runs such a graph. Returns 0 or a
 * ddp_status, and ddp_graph_error names the operator. Errors: DDP_ARG for the cut, DDP_USAGE after
 * ddp_graph_build or another cut, DDP_MEMORY, or an earlier error of the graph. */
DDP_API int ddp_graph_cut(ddp_graph *g, const int *stage_of, int stages, int own);

/* ddp_graph_build - checks shapes, plans memory, allocates and initialises parameters, and registers the
 * layers with the context. Each layer's parameters are one contiguous block, and so are its gradients. Its
 * buffers are one block, registered as DDP_BUFFERS and averaged with the layer. Initial values depend only on
 * the seed and the parameter's position. Local.
 *
 * Returns 0 or a ddp_status. ddp_graph_error has the message. Errors: DDP_MEMORY, before any allocation if
 * the graph is larger than the machine's memory and no ddp_allocator provides it; DDP_USAGE if called twice,
 * within a layer or after the session has started; DDP_UNSUPPORTED for an operator that the backend lacks; an
 * earlier error of the graph. */
DDP_API int ddp_graph_build(ddp_graph *g);

/* ddp_graph_error - returns the graph's first error, never NULL. Code DDP_OK means that there is no error.
 * Borrowed for the life of the graph. */
DDP_API const ddp_error *ddp_graph_error(const ddp_graph *g);

/* ---- running, after ddp_graph_build ---- */

/* ddp_data - returns the array of a named input of the built-in state (float or int32_t), or NULL if there is
 * no such input. It is in host memory even with a backend, and each pass copies it to the device. */
DDP_API void *ddp_data(ddp_graph *g, const char *name);

/* ddp_value - returns the value of a scalar node after forward, or NAN if the node is not a scalar. With a
 * backend it waits for the copy from the device. */
DDP_API float ddp_value(ddp_graph *g, const ddp_node *n);

/* ddp_output - returns the output array of a node in host memory, valid until backward reuses its memory.
 * With a backend it waits for the copy from the device. If the node's only user works in place (dropout,
 * add), the array has that user's output. NULL if a ddp_recompute_begin segment dropped the output. Scalars
 * are never dropped. */
DDP_API const float *ddp_output(ddp_graph *g, const ddp_node *n);

/* ddp_forward - runs all operators in order and calls ddp_forward_begin before the first use of each layer.
 * Returns 0 or the first error of the graph or its context. Errors: DDP_MEMORY for a NULL graph; DDP_USAGE
 * before ddp_graph_build, or for a stage of a pipeline; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO or DDP_FORMAT
 * if a hook starts the session. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_forward(ddp_graph *g);

/* ddp_backward - runs backward from loss, a scalar node. Calls ddp_backward_begin and, after the last use of
 * a layer's parameters, ddp_backward_end. Gradients are accumulated. The context zeroes them, or you do with
 * ddp_zero_gradients if there is none. Returns 0 or the first error of the graph or its context. Errors:
 * DDP_MEMORY for a NULL graph; DDP_USAGE before ddp_forward, for a loss that is not a scalar, or for a stage
 * of a pipeline; DDP_NUMERIC for a gradient that is not finite. Communication may also fail with
 * DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_backward(ddp_graph *g, ddp_node *loss);

/* ddp_evaluate - runs forward without hooks, with dropout off. It reads the running statistics but does not
 * update them. Returns 0 or the graph's first error. Errors: DDP_MEMORY for a NULL graph; DDP_USAGE before
 * ddp_graph_build, or for a stage of a pipeline. */
DDP_API int ddp_evaluate(ddp_graph *g);

/* ddp_zero_gradients - sets all gradients of a graph to zero, for training without a context. */
DDP_API void ddp_zero_gradients(ddp_graph *g);

/* ---- several micro-batches in flight, and partial execution ---- */

/* ddp_state_new - creates the activations and their gradients of one micro-batch, to have several in flight.
 * Returns NULL if memory is short, or before ddp_graph_build. The caller frees it with ddp_state_free, before
 * the graph. ---- several micro-batches in flight, and partial execution ---- */
DDP_API ddp_state *ddp_state_new(ddp_graph *g);

/* ddp_state_free - frees a state and its arrays, before the graph is freed. NULL is allowed. */
DDP_API void ddp_state_free(ddp_state *s);

/* ddp_state_data - returns the output or input array of a node in this state, or NULL if the state has none.
 * On a device with a backend. Borrowed until ddp_state_free. */
DDP_API void *ddp_state_data(ddp_state *s, const ddp_node *n);

/* ddp_state_gradient - returns the gradient of a node's array in this state, or NULL if there is none. On a
 * device with a backend. Borrowed until ddp_state_free. */
DDP_API void *ddp_state_gradient(ddp_state *s, const ddp_node *n);

/* ddp_forward_range - runs the forward of operators first..last (node indexes, inclusive) without hooks.
 * Before the call, write outputs of earlier operators through ddp_state_data. Every array of such a state has
 * its own memory. Buffers belong to the graph, not to the state: each call updates them, in call order.
 * Returns 0 or a ddp_status. Errors: DDP_ARG for a NULL state or a range outside the graph; DDP_USAGE before
 * ddp_graph_build, or for a stage of a pipeline. */
DDP_API int ddp_forward_range(ddp_state *s, int first, int last);

/* ddp_backward_range - runs the backward of operators first..last (node indexes, inclusive) without hooks.
 * Before the call, write gradients of outputs used after last through ddp_state_gradient. A gradient that you
 * write is accumulated to. Read input gradients there: those of float inputs, and of outputs before first
 * that the range uses. The gradient of an output without users is 1 for a scalar and 0 otherwise, until you
 * write it. Returns 0 or a ddp_status. Errors: DDP_ARG for a NULL state or a range outside the graph;
 * DDP_USAGE before ddp_graph_build, or for a stage of a pipeline. */
DDP_API int ddp_backward_range(ddp_state *s, int first, int last);

/* ddp_state_micro_batch - sets the number that seeds the dropout masks of this state, together with the seed
 * and the node. Equal numbers give equal masks in every process. Without this call each state counts its
 * forward passes. A new pass begins when forward returns to an earlier operator. */
DDP_API void ddp_state_micro_batch(ddp_state *s, uint64_t number);

/* ---- reading the graph ---- */

/* ddp_node_count - returns how many operators and inputs a graph has. Its nodes are numbered from 0 in the
 * order in which they were added. ---- reading the graph ---- */
DDP_API int ddp_node_count(const ddp_graph *g);

/* ddp_node_index - returns a node's position in its graph, from 0, or -1 for NULL. */
DDP_API int ddp_node_index(const ddp_node *n);

/* ddp_node_describe - describes operator number index, 0..ddp_node_count-1, in *out. The names are borrowed
 * for the life of the graph. Returns 0 or a ddp_status. Errors: DDP_ARG for NULL or an index out of range. */
DDP_API int ddp_node_describe(const ddp_graph *g, int index, ddp_node_info *out);

/* ddp_layer_count - returns the number of layers that ddp_layer_begin has made. */
DDP_API int ddp_layer_count(const ddp_graph *g);

/* ddp_param_count - returns the number of parameters of a graph, in floats. A tied parameter counts once. */
DDP_API size_t ddp_param_count(const ddp_graph *g);

/* ddp_layer_params - returns the parameters of a layer after ddp_graph_build, one block of *count floats in
 * layer memory, or NULL and 0 if there are none. Borrowed for the life of the graph. */
DDP_API float *ddp_layer_params(ddp_graph *g, int layer, size_t *count);

/* ddp_layer_gradients - returns the gradients of a layer after ddp_graph_build, one block of *count floats in
 * layer memory, or NULL and 0 if there are none. Borrowed for the life of the graph. */
DDP_API float *ddp_layer_gradients(ddp_graph *g, int layer, size_t *count);

/* ddp_layer_buffers - returns the buffers of a layer after ddp_graph_build, one block of *count floats in
 * layer memory, or NULL and 0 if it has none. Borrowed for the life of the graph. */
DDP_API float *ddp_layer_buffers(ddp_graph *g, int layer, size_t *count);

/* ddp_node_param - returns parameter k of a node (weight 0, bias 1) in layer memory, or NULL if there is
 * none. *shape (may be NULL) receives its shape. Borrowed for the life of the graph. */
DDP_API float *ddp_node_param(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape);

/* ddp_node_gradient - returns the gradient of parameter k of a node (weight 0, bias 1) in layer memory, or
 * NULL if there is none. Borrowed for the life of the graph. */
DDP_API float *ddp_node_gradient(ddp_graph *g, const ddp_node *n, int k);

/* ddp_node_buffer - returns buffer k of a node (running mean 0, running variance 1) in layer memory, or NULL
 * if it has none. *shape (may be NULL) receives its shape. Borrowed for the life of the graph. */
DDP_API float *ddp_node_buffer(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape);

/* ddp_activation_bytes - returns the bytes of the built-in state: activations, their gradients and recomputed
 * arrays, with memory reuse. May be called before ddp_graph_build. */
DDP_API size_t ddp_activation_bytes(const ddp_graph *g);

/* ddp_graph_read - copies count floats of parameters, gradients or buffers from layer memory to host memory,
 * and waits for the copy. With a backend (ddp_config.backend) the arrays of ddp_layer_params and its like,
 * and of ddp_state_data and ddp_state_gradient, are on the device. On a GPU, 4-dimensional activations are
 * channels-last. Also works on the CPU. Returns 0 or a ddp_status. Errors: DDP_ARG for NULL or DDP_FAILED
 * from the device. */
DDP_API int ddp_graph_read(ddp_graph *g, float *to, const float *from, size_t count);

/* ddp_graph_write - copies count floats from host memory to parameters, gradients or buffers in layer memory,
 * and waits for the copy. Also works on the CPU. Returns 0 or a ddp_status. Errors: DDP_ARG for NULL. */
DDP_API int ddp_graph_write(ddp_graph *g, float *to, const float *from, size_t count);
