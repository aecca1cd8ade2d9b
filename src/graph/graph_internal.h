/* Internal data structures of the graph, shared by the files of this folder. */
#pragma once

#include "graph/graph.h"
#include "graph/host.h"

#define DDP__NOWHERE     ((size_t)-1) /* offset of an array that does not exist */
#define DDP__MOST_NODES  (1 << 27)    /* limit, so that times and array ids of the memory plan fit an int */
#define DDP__MOST_LAYERS (1 << 14)    /* limit, because each name is compared with all earlier ones */
#define DDP__MOST_FLOATS 1e15 /* limit on the elements of an array, so that sums of bytes cannot overflow */

struct ddp_node {
    ddp_graph *graph;
    const ddp_op *op; /* NULL for an input */
    char *name;       /* name of an input, or NULL for operators */
    int index;
    int layer; /* -1 outside layers, and for every input */
    int input[DDP_OP_INPUTS];
    int part[DDP_OP_INPUTS]; /* in a cut graph: index of this use of that input, from the last */
    int parts; /* in a cut graph: number of uses with separate gradients, which are summed at the end, or 0
                * for none
                */
    ddp_dtype type;
    int segment;                /* recomputation segment, or -1 for none */
    int tied;                   /* node whose parameter 0 this node uses, or -1 for none */
    int uses;                   /* number of tied nodes that use parameter 0 of this node */
    int readers, reader;        /* number of nodes that read the output; the last of them */
    int here;                   /* a ddp__here value */
    int stage;                  /* in a cut graph: stage that runs the node */
    int from, to;               /* stages that the output is received from and sent to, or -1 for none */
    size_t place, buffer_place; /* offsets in the whole layer: parameters, buffers */
    int has_gradient;           /* 1 if its backward reaches a parameter at or above this node */
    ddp_op_spec spec;           /* for an input, only spec.out is set */
    float *param[DDP_OP_PARAMS];
    const void *use[DDP_OP_PARAMS]; /* arrays that operators read instead of param (backend mirror) */
    float *grad[DDP_OP_PARAMS];     /* tied node: [0] is the gradient of this use; see ddp__uses_add */
    float *buffer[DDP_OP_BUFFERS];
    const ddp_op *run;       /* op, or the backend's operator of that name */
    const ddp_op_pair *pair; /* fusion with the next node in whole passes, or NULL for none */
    void *feed;              /* on a device: host array of an input, which the user fills */
    float *shown;            /* on a device: host copy that ddp_output returned last */
};

/* A layer of a graph. Its operators are consecutive, and the owner of a tied parameter precedes its
 * users. So forward first needs the layer at node `first`, and backward completes it after node `first`,
 * whatever else used its parameters. */
typedef struct ddp__graph_layer {
    char *name;
    uint64_t base_hash; /* of the name that the user gave */
    int repeat;         /* number of earlier layers with that name */
    int unit;           /* index of the layer in the context */
    int first, last;    /* operators; -1: none yet (inputs may be in the range) */
    size_t count;       /* floats */
    size_t buffer_count;
    double flops;
    float *params, *grads, *buffers;
    const void *use; /* mirror of params, which operators read */
    float *image;    /* while a layer on a device is built: host copy of parameters, then buffers */
} ddp__graph_layer;

/* The operators between ddp_recompute_begin and ddp_recompute_end; consecutive, like the operators of a
 * layer. */
typedef struct ddp__recompute_segment {
    int first, last;
} ddp__recompute_segment;

/* Location of a node's output in a cut graph: computed by this process, received from an earlier stage,
 * or not present. */
typedef enum ddp__here { DDP__HERE_OWN, DDP__HERE_ENTERS, DDP__HERE_NOT } ddp__here;

/* The part of a backward pass to run: all, input gradients, or weight gradients. */
typedef enum ddp__cut_part { DDP__CUT_BOTH, DDP__CUT_INPUTS, DDP__CUT_WEIGHTS } ddp__cut_part;

/* Fate of a node's output after its last use in forward. */
typedef enum ddp__fate {
    DDP__KEPT,    /* kept until its last use in backward; for ddp_output at least until forward ends */
    DDP__DROPPED, /* freed. No backward reads it. */
    DDP__AGAIN    /* freed with the operator's saved array. The operator runs again before backward. */
} ddp__fate;

/* Kinds of arrays of a node. */
enum {
    DDP__OUT,
    DDP__SAVED,
    DDP__GRADIENT,
    DDP__OUT_AGAIN,
    DDP__SAVED_AGAIN, /* *_AGAIN: arrays of the recomputed forward */
    DDP__SHADOW,      /* copy of its buffers from before the first forward */
    DDP__ARRAYS
};

/* The arenas of a state. A whole graph uses only the first. In a cut graph, DDP__ARENA_OWN has arrays that
 * cross between stages or are read after a pass. DDP__ARENA_HELD has arrays that a micro-batch needs from its
 * forward to its backward. DDP__ARENA_PASS has arrays that are needed only within one pass, and all
 * micro-batches share it. */
typedef enum ddp__arena { DDP__ARENA_OWN, DDP__ARENA_HELD, DDP__ARENA_PASS, DDP__ARENAS } ddp__arena;

#define DDP__ARENA_SHIFT \
    (8 * sizeof(size_t) - 2) /* of an offset: the bits above select the arena, the bits below are bytes */

/* Memory layout of a state: the offset of each array in its arena, in bytes. Offsets are multiples of 64,
 * or DDP__NOWHERE for arrays that do not exist. */
typedef struct ddp__layout {
    size_t bytes[DDP__ARENAS];
    size_t live_bytes; /* maximum bytes alive at one time in the first arena: a lower bound for any layout */
    size_t *out;       /* [nodes]; one allocation with the arrays below, in the order of DDP__OUT ... */
    size_t *saved, *gradient, *out_again, *saved_again, *shadow;
    unsigned char *fate; /* [nodes] ddp__fate */
} ddp__layout;

struct ddp_state {
    ddp_graph *graph;
    const ddp__layout *layout;
    char *arena[DDP__ARENAS]; /* the state owns the first arena and borrows the others */
    unsigned char *written;   /* [nodes] 1 if the gradient was written in this pass */
    uint64_t pass;            /* micro-batch number, which seeds random masks */
    int pass_given;           /* 1: set by ddp_state_micro_batch, not counted */
    int next;                 /* operator after the last one that ran forward */
    int ready;                /* 1 if a training forward ran, backward may follow */
};

struct ddp_graph {
    ddp__owned owned;                           /* first member: the host's list points at it */
    ddp__host *host;                            /* NULL: no context */
    const ddp_op *(*builtin)(const char *name); /* finds a built-in operator. NULL means that there are
                                                 * none. */
    const ddp_op **ops;                         /* growing array: operators that the user registered */
    ddp_node **node;                            /* growing array, as are layer and segment */
    ddp__graph_layer *layer;
    int open_layer; /* -1: none */
    ddp__recompute_segment *segment;
    int open_segment; /* -1: none */
    int built;
    int stages, own_stage; /* of a cut graph; stages 0: the graph is whole */
    int halves; /* 1 if backward of a stage runs in two parts, input gradients first, weight gradients
                 * later */
    int group;  /* group of ranks that averages its layers, or 0 for all ranks */
    int (*fetch_uses)(void *user, int node); /* receives a tied weight's gradients of other stages */
    void *fetch_user;
    size_t element;      /* bytes of an element of outputs and gradients: 4 or 2 */
    int registered;      /* number of layers registered with the context, which borrows their memory */
    ddp__layout reuse;   /* layout of the built-in state */
    ddp__layout plain;   /* layout for ddp_state_new: separate memory for every array; or a stage's layout */
    ddp_state *state;    /* the built-in one */
    int early;           /* scalar node whose value the device copies early, or -1 for none */
    ddp__pool *pool;     /* thread pool of its operators, with working memory, or NULL on a device */
    ddp__pool *own_pool; /* the same pool if the graph owns it, else NULL */
    uint64_t states_made;
    ddp_error error;
};

/* Creates an empty graph that looks up built-in operators with `builtin`. Called by ddp_graph_new in
 * src/ops. */
DDP_LIB ddp_graph *ddp__graph_new(ddp_ctx *d, const ddp_op *(*builtin)(const char *name));

DDP_LIB const ddp_allocator *ddp__graph_allocator(const ddp_graph *g);

/* The backend of the graph's memory, or NULL for the CPU. */
DDP_LIB const ddp_backend *ddp__graph_backend(const ddp_graph *g);

/* Finds an operator by name, registered or built-in, or NULL for none. */
DDP_LIB const ddp_op *ddp__op_find(const ddp_graph *g, const char *name);

DDP_LIB int ddp__shape_equal(const ddp_shape *a, const ddp_shape *b);

/* Total number of elements of arrays first..n-1. */
DDP_LIB size_t ddp__arrays_count(const ddp_param *p, int first, int n);

/* Properties of a layer, by index. -1 means no layer.
 *   name   "" for no layer
 *   is_a   1 if the layer was begun with that name, even if a number was appended because the name repeats
 *   range  first and last operator (inputs may be in between); returns 0 if it has no operators here
 *   unit   index of the layer in the context, or -1 if it has no operators here */
DDP_LIB const char *ddp__layer_name(const ddp_graph *g, int layer);
DDP_LIB int ddp__layer_is_a(const ddp_graph *g, int layer, const char *name);
DDP_LIB int ddp__layer_range(const ddp_graph *g, int layer, int *first, int *last);
DDP_LIB int ddp__layer_unit(const ddp_graph *g, int layer);
/* Offset of array k of node n in its layer's parameters or buffers, in floats. n is on this process, and
 * the graph is built. */
DDP_LIB size_t ddp__array_place(const ddp_node *n, int buffers, int k);

/* Adds node n to its layer, if it has one. */
DDP_LIB void ddp__layer_add(ddp_graph *g, const ddp_node *n);

/* Bytes of node n's output, which is also the size of its gradient. */
DDP_LIB size_t ddp__output_bytes(const ddp_node *n);

/* A node with parts stores them after its gradient, which is their sum. Returned are the bytes from one part
 * to the next; the array of a part in a state. The stage that computes a part. */
DDP_LIB size_t ddp__part_stride(const ddp_node *n);
DDP_LIB void *ddp__part_at(const ddp_state *s, const ddp_node *n, int part);
DDP_LIB int ddp__part_stage(const ddp_node *n, int part);

/* Copies a user's values of input n to its array. */
DDP_LIB void ddp__node_feed(const ddp_node *n, void *to, const void *from);

/* 1 if nodes i and i + 1 may be fused in backward and in recomputation: no second forward of another
 * segment runs between them. */
DDP_LIB int ddp__pair_inside(const ddp_graph *g, int i);

/* Computes the offset of every array. share 0: each array has its own memory, and nothing is
 * recomputed. share 1, or any stage: arrays reuse freed memory (a stage has no built-in state, so share 1
 * places nothing there). An array gets the smallest hole that fits when its lifetime begins, and returns
 * it when it ends. Cost: O(nodes x holes). */
DDP_LIB ddp_status ddp__layout_plan(const ddp_graph *g, int share, ddp__layout *out, ddp_error *err);
DDP_LIB void ddp__layout_free(ddp__layout *l);

/* exec.c: a node's output in host memory. */
DDP_LIB const float *ddp__output_show(ddp_graph *g, const ddp_node *n, const void *from);

/* Runs one micro-batch through the graph, or through this process's stage, with the hooks of its layers.
 * The caller writes the inputs of a stage to the state first. The gradients of these inputs are complete
 * after DDP__CUT_INPUTS or DDP__CUT_BOTH. loss: the node, on any stage. */
DDP_LIB int ddp__graph_forward(ddp_state *s, int training);
DDP_LIB int ddp__graph_backward(ddp_state *s, const ddp_node *loss, ddp__cut_part part);

/* cut.c: the index at which a layer may be inserted after x, which is after x's layer and segment. */
DDP_LIB int ddp__place_behind(const ddp_node *x);
/* Moves the nodes from index `nodes` on, and the layers from index `layers` on, to before node `at`. The
 * caller has appended them. */
DDP_LIB void ddp__nodes_insert(ddp_graph *g, int at, int nodes, int layers);
/* cut.c: the first stage after `stage` that uses x, or -1 for none. */
DDP_LIB int ddp__stage_after(const ddp_graph *g, const ddp_node *x, int stage);

/* build.c: sets the nodes' place and buffer_place. */
DDP_LIB void ddp__node_places(ddp_graph *g);

/* For states of ddp_state_new: size of an arena in bytes; whether forward leaves the output of n in it. */
DDP_LIB size_t ddp__state_bytes(const ddp_graph *g, ddp__arena arena);
DDP_LIB int ddp__output_stays(const ddp_node *n);

/* Accounts for memory of the graph in this process. ddp__graph_takes adds bytes to its size.
 * ddp__graph_may_take returns 0 if `more` bytes would exceed the memory that the process may use. */
DDP_LIB void ddp__graph_takes(ddp_graph *g, double bytes);
DDP_LIB int ddp__graph_may_take(const ddp_graph *g, double more);

/* Creates a state with that layout. Returns NULL if memory is short. */
DDP_LIB ddp_state *ddp__state_open(ddp_graph *g, const ddp__layout *layout);
