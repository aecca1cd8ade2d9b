/* The graph's own bookkeeping, shared by the files of this folder. */
#pragma once

#include "graph/graph.h"
#include "graph/host.h"

#define DDP__NOWHERE     ((size_t)-1) /* offset of an array that does not exist */
#define DDP__MOST_NODES  (1 << 27)    /* times and array ids of the memory plan fit an int */
#define DDP__MOST_LAYERS (1 << 14)    /* each name is compared with all before it */
#define DDP__MOST_FLOATS 1e15         /* elements of one array; sums of bytes cannot overflow */

struct ddp_node {
    ddp_graph *graph;
    const ddp_op *op; /* NULL: an input */
    char *name;       /* of an input; NULL for operators */
    int index;
    int layer; /* -1: outside layers, and every input */
    int input[DDP_OP_INPUTS];
    int part[DDP_OP_INPUTS]; /* of a cut graph: the use's number among all of that input, from the
                                          last, 0 */
    int parts; /* of a cut graph: 0, or how many uses have a gradient each, which are added up in
                               the end */
    ddp_dtype type;
    int segment;                /* whose forward runs again before its backward; -1: in none */
    int tied;                   /* node that owns the array used as parameter 0; -1: own parameters */
    int uses;                   /* tied nodes that use parameter 0 of this one */
    int readers, reader;        /* nodes that take the output; the last of them */
    int here;                   /* ddp__here */
    int stage;                  /* of a cut graph: where it runs */
    int from, to;               /* the stage that its output comes from and that it goes on to, or -1 */
    size_t place, buffer_place; /* of its arrays in the whole layer's parameters, then buffers */
    int has_gradient;           /* a parameter at or above this node is reached by its backward */
    ddp_op_spec spec;           /* of an input only spec.out is filled */
    float *param[DDP_OP_PARAMS];
    const void *use[DDP_OP_PARAMS]; /* what operators read in place of param */
    float *grad[DDP_OP_PARAMS];     /* of a tied node [0] is its own use's, added to its owner's by
                                          ddp__uses_add */
    float *buffer[DDP_OP_BUFFERS];
    const ddp_op *run;       /* op, or the backend's of its name */
    const ddp_op_pair *pair; /* this node and the next run as one in whole passes; NULL: alone */
    void *feed;              /* on a device: an input of the built-in state, as the user fills it */
    float *shown;            /* on a device: what ddp_output showed last */
};

/* Operators of a layer are consecutive, and a tied parameter is owned by an earlier node than
 * its users. So in forward a layer is first needed at node first, and in backward it is complete
 * after node first, whatever else used its parameters. */
typedef struct ddp__graph_layer {
    char *name;
    uint64_t base_hash; /* of the name the user gave */
    int repeat;         /* how many earlier layers were given that name */
    int unit;           /* its number in the context */
    int first, last;    /* operators; -1: none yet (inputs in between may lie in the range) */
    size_t count;       /* floats */
    size_t buffer_count;
    double flops;
    float *params, *grads, *buffers;
    const void *use; /* the block that operators read in place of params */
    float *image;    /* while a device's layer is built: parameters, then buffers, on the host */
} ddp__graph_layer;

/* Operators between ddp_recompute_begin and ddp_recompute_end: consecutive, as those of a layer. */
typedef struct ddp__recompute_segment {
    int first, last;
} ddp__recompute_segment;

/* Whether a node is this process's, where the graph is cut: its own, or an output that it gets from an
 * earlier stage. */
typedef enum ddp__here { DDP__HERE_OWN, DDP__HERE_ENTERS, DDP__HERE_NOT } ddp__here;

/* What of a backward runs. */
typedef enum ddp__cut_part { DDP__CUT_BOTH, DDP__CUT_INPUTS, DDP__CUT_WEIGHTS } ddp__cut_part;

/* What becomes of a node's output after its last use in forward. */
typedef enum ddp__fate {
    DDP__KEPT,    /* until its last use in backward; for ddp_output at least until forward ends */
    DDP__DROPPED, /* dies, and no backward asks for it */
    DDP__AGAIN    /* dies with what the operator saved, and the operator runs once more */
} ddp__fate;

/* The arrays a node may have. */
enum {
    DDP__OUT,
    DDP__SAVED,
    DDP__GRADIENT,
    DDP__OUT_AGAIN,
    DDP__SAVED_AGAIN, /* the second lives, from the second forward on */
    DDP__SHADOW,      /* its buffers as the first forward found them */
    DDP__ARRAYS
};

/* The arenas of a state. All arrays lie in the first, but for a graph that is cut: there the first has what
 * crosses between stages and what is read after a pass, the second what a micro-batch holds from its forward
 * to its backward, the third what no more than one pass needs, which all micro-batches share. */
typedef enum ddp__arena { DDP__ARENA_OWN, DDP__ARENA_HELD, DDP__ARENA_PASS, DDP__ARENAS } ddp__arena;

#define DDP__ARENA_SHIFT (8 * sizeof(size_t) - 2) /* of an offset: its arena lies above, the bytes below */

/* Where each array of a state lies, in bytes of its arena. Offsets are multiples of 64, those of
 * arrays that do not exist DDP__NOWHERE. */
typedef struct ddp__layout {
    size_t bytes[DDP__ARENAS];
    size_t live_bytes; /* most bytes of the first live at one time: no layout can be smaller */
    size_t *out;       /* [nodes]; one allocation with those below, in the order of DDP__OUT ... */
    size_t *saved, *gradient, *out_again, *saved_again, *shadow;
    unsigned char *fate; /* [nodes] ddp__fate */
} ddp__layout;

struct ddp_state {
    ddp_graph *graph;
    const ddp__layout *layout;
    char *arena[DDP__ARENAS]; /* the first is its own, the others are lent */
    unsigned char *written;   /* [nodes] gradient has been written in this pass */
    uint64_t pass;            /* number of the micro-batch: what random masks depend on */
    int pass_given;           /* by ddp_state_micro_batch: not counted up */
    int next;                 /* operator after the last one that ran forward */
    int ready;                /* 1: a training forward ran, backward may follow */
};

struct ddp_graph {
    ddp__owned owned;                           /* first: what the host's list points at */
    ddp__host *host;                            /* NULL: no context */
    const ddp_op *(*builtin)(const char *name); /* what need not be registered; NULL: none such */
    const ddp_op **ops;                         /* a list: registered by the user */
    ddp_node **node;                            /* a list, as are layer and segment */
    ddp__graph_layer *layer;
    int open_layer; /* -1: none */
    ddp__recompute_segment *segment;
    int open_segment; /* -1: none */
    int built;
    int stages, own_stage; /* 0: it is whole */
    int halves;            /* 1: backward of a stage comes as input gradients, later weight gradients */
    int group;             /* of ranks that average its layers; 0: all */
    int (*fetch_uses)(void *user, int node); /* brings the gradients of a tied weight's uses
                                                             elsewhere */
    void *fetch_user;
    size_t element;      /* bytes of an element of outputs and gradients, 4 or 2 */
    int registered;      /* layers the context borrows memory of */
    ddp__layout reuse;   /* of the built-in state */
    ddp__layout plain;   /* of states made by ddp_state_new: every array on its own, or a stage's */
    ddp_state *state;    /* the built-in one */
    int early;           /* node whose scalar the device copies in good time; -1: none */
    ddp__pool *pool;     /* of its operators, with rooms; NULL on a device */
    ddp__pool *own_pool; /* the same where the context has none, else NULL */
    uint64_t states_made;
    ddp_error error;
};

/* An empty graph that finds its built-in operators by builtin: what ddp_graph_new of src/ops calls. */
DDP_LIB ddp_graph *ddp__graph_new(ddp_ctx *d, const ddp_op *(*builtin)(const char *name));

DDP_LIB const ddp_allocator *ddp__graph_allocator(const ddp_graph *g);

/* The backend of the graph's memory, NULL = the CPU. */
DDP_LIB const ddp_backend *ddp__graph_backend(const ddp_graph *g);

/* The operator of that name, registered or built in; NULL: none. */
DDP_LIB const ddp_op *ddp__op_find(const ddp_graph *g, const char *name);

DDP_LIB int ddp__shape_equal(const ddp_shape *a, const ddp_shape *b);

/* Elements of the arrays first..n-1. */
DDP_LIB size_t ddp__arrays_count(const ddp_param *p, int first, int n);

/* Of layers, by number; -1 is no layer.
 *   name    "" of no layer
 *   is_a    1: it was begun with that name, which has a number behind it where several layers were
 *   range   its first and last operator, inputs may be in between; 0: it has none here
 *   unit    its number in the context; -1: it has no operators here */
DDP_LIB const char *ddp__layer_name(const ddp_graph *g, int layer);
DDP_LIB int ddp__layer_is_a(const ddp_graph *g, int layer, const char *name);
DDP_LIB int ddp__layer_range(const ddp_graph *g, int layer, int *first, int *last);
DDP_LIB int ddp__layer_unit(const ddp_graph *g, int layer);
/* Floats of its layer's parameters, or buffers, before array k of n; n is here, and the graph is built. */
DDP_LIB size_t ddp__array_place(const ddp_node *n, int buffers, int k);

/* Node n is one more of its layer, if it has one. */
DDP_LIB void ddp__layer_add(ddp_graph *g, const ddp_node *n);

/* Bytes of node n's output, and of its gradient. */
DDP_LIB size_t ddp__output_bytes(const ddp_node *n);

/* Of a node with parts, which lie behind its gradient, their sum: bytes from one to the next; the array of
 * one in a state; the stage that makes it. */
DDP_LIB size_t ddp__part_stride(const ddp_node *n);
DDP_LIB void *ddp__part_at(const ddp_state *s, const ddp_node *n, int part);
DDP_LIB int ddp__part_stage(const ddp_node *n, int part);

/* A user's values of input n go to where it lies. */
DDP_LIB void ddp__node_feed(const ddp_node *n, void *to, const void *from);

/* 1 if nodes i and i + 1 are a pair also backward, and where they run again: no other segment's
 * second forward lies between them. */
DDP_LIB int ddp__pair_inside(const ddp_graph *g, int i);

/* Computes offsets for every array; share = 0 gives each array memory of its own and runs nothing again,
 * share = 1, or any stage, reuses memory of the dead (a stage has no built-in state: share = 1 places
 * nothing). An array gets the smallest hole that fits when its life begins and returns it when it ends. Cost:
 * O(nodes x holes). */
DDP_LIB ddp_status ddp__layout_plan(const ddp_graph *g, int share, ddp__layout *out, ddp_error *err);
DDP_LIB void ddp__layout_free(ddp__layout *l);

/* exec.c: a node's output on the host. */
DDP_LIB const float *ddp__output_show(ddp_graph *g, const ddp_node *n, const void *from);

/* One micro-batch through the graph, or this process's stage of it, with the hooks of its layers. What enters
 * a stage has been written to the state before; gradients of what enters are there after DDP__CUT_INPUTS or
 * DDP__CUT_BOTH. loss: the node, on any stage. */
DDP_LIB int ddp__graph_forward(ddp_state *s, int training);
DDP_LIB int ddp__graph_backward(ddp_state *s, const ddp_node *loss, ddp__cut_part part);

/* cut.c: the index at which a layer may be inserted behind x: after x's layer and segment. */
DDP_LIB int ddp__place_behind(const ddp_node *x);
/* Moves the nodes from index `nodes` on, and the layers from index `layers` on, before node `at`. The caller
 * has added them at the end. */
DDP_LIB void ddp__nodes_insert(ddp_graph *g, int at, int nodes, int layers);
/* cut.c: the first stage behind that one which uses x; -1: none. */
DDP_LIB int ddp__stage_after(const ddp_graph *g, const ddp_node *x, int stage);

/* build.c: fills the nodes' places. */
DDP_LIB void ddp__node_places(ddp_graph *g);

/* Of states made by ddp_state_new: bytes of an arena; whether forward leaves the output of n in it. */
DDP_LIB size_t ddp__state_bytes(const ddp_graph *g, ddp__arena arena);
DDP_LIB int ddp__output_stays(const ddp_node *n);

/* Memory of this process that serves the graph: takes adds bytes to its size; may_take returns 0 if `more`
 * bytes would exceed what the process may use. */
DDP_LIB void ddp__graph_takes(ddp_graph *g, double bytes);
DDP_LIB int ddp__graph_may_take(const ddp_graph *g, double more);

/* A state with that layout; NULL when memory is short. */
DDP_LIB ddp_state *ddp__state_open(ddp_graph *g, const ddp__layout *layout);
