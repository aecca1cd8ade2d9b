/* A layer: the unit of synchronisation. Registered by the user's loop or by a built graph. */
#ifndef DDP_GRAPH_LAYER_H
#define DDP_GRAPH_LAYER_H

#include "base/status.h"

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
    double           flops;       /* of one forward of a micro-batch, 0 = 2 x count; only deterministic plans read it */
    int              group;       /* of ddp_group: the ranks that average this layer; 0 = all */
} ddp_layer;

typedef struct ddp_ctx ddp_ctx;

#endif /* DDP_GRAPH_LAYER_H */
