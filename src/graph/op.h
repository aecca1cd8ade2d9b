/* An operator: one table entry with its shape rule, costs and kernels. */
#ifndef DDP_GRAPH_OP_H
#define DDP_GRAPH_OP_H

#include "base/status.h"
#include "graph/layer.h"

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

/* One parameter array (or buffer) of an operator and how it starts: normal deviation or uniform bound = scale. */
typedef struct ddp_param {
    const char *name; /* "weight", "bias": static text */
    ddp_shape   shape;
    ddp_init    init;
    float       scale;
} ddp_param;

/* What the shape rule reads and fills. Inputs and args are given; the rest starts zeroed. A rule that fails or needs no
 * parameters is run again with a tied node's parameter as param[0], params 1. */
typedef struct ddp_op_spec {
    int         inputs;
    ddp_shape   in[DDP_OP_INPUTS];
    ddp_dtype   in_type[DDP_OP_INPUTS];
    double arg[DDP_OP_ARGS]; /* meaning is the operator's: width, heads, probability ... */
    ddp_shape   out;                    /* always float32 */
    int         params;
    ddp_param   param[DDP_OP_PARAMS];
    int         buffers;                /* running statistics: part of the layer, no parameters */
    ddp_param   buffer[DDP_OP_BUFFERS];
    size_t saved; /* elements that forward leaves for backward, besides in and out */
    double      flops;                  /* of forward */
    double      backward_flops;         /* 0 = 2 x flops */
    int in_place_ok;     /* 1: out may share the memory of input 0 (backward reads neither) */
    int out_unread;      /* 1: backward does not read out, so its memory is free earlier */
    int grad_over_input; /* 1: backward may write grad_in[0] over in[0] (never with add_in[0]) */
} ddp_op_spec;

/* One execution. Elements are float, those of integer inputs int32_t. */
typedef struct ddp_op_call {
    const ddp_op_spec *spec;
    const void *in[DDP_OP_INPUTS];
    const void *param[DDP_OP_PARAMS];
    void       *buffer[DDP_OP_BUFFERS];       /* changed by a forward with training 1 alone; a
                                                 second one gets a copy of what the first found */
    void       *out;
    void       *saved;                        /* spec->saved elements */
    /* backward only */
    const void *grad_out;                     /* shape of out */
    void       *grad_in[DDP_OP_INPUTS];       /* NULL: not wanted */
    int         add_in[DDP_OP_INPUTS];        /* 1: add to grad_in, 0: overwrite it */
    void       *grad_param[DDP_OP_PARAMS];    /* always added to; NULL: frozen */
    /* execution */
    void       *pool;                         /* ddp__pool *, for ddp_op_parallel; may be NULL */
    int         training;                     /* 0: dropout passes through, buffers are read */
    uint64_t    random;                       /* seed of this node in this micro-batch and step */
} ddp_op_call;

/* A table entry. Functions are called with spec filled by shape(). Everything is borrowed for the life of the graph.
 * backward may be NULL (no gradient flows through). */
typedef struct ddp_op {
    const char *name;
    ddp_status (*shape)(ddp_op_spec *s, ddp_error *err);
    void (*forward)(const ddp_op_call *c);
    void (*backward)(const ddp_op_call *c);
} ddp_op;

/* Two operators without buffers that a backend runs as one: second directly follows first and takes
 * its output as input 0. The calls are those that each alone would get, and what they ask for is
 * written, but for second's grad_in[0]: only first would read it. */
typedef struct ddp_op_pair {
    void (*forward)(const ddp_op_call *first, const ddp_op_call *second);
    void (*backward)(const ddp_op_call *first, const ddp_op_call *second);
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

#endif /* DDP_GRAPH_OP_H */
