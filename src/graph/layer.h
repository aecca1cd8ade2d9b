/* A layer: the unit of synchronisation. Registered by the user's loop or by a built graph. */
#pragma once

#include "base/status.h"

typedef enum ddp_dtype { DDP_F32, DDP_I32 } ddp_dtype;

typedef enum ddp_block_kind {
    DDP_PARAMS, /* updated by the optimizer; grads NULL = frozen: still timed, never changed */
    DDP_BUFFERS /* running statistics: averaged with the layer, never updated by the optimizer */
} ddp_block_kind;

/* One contiguous array of a layer. Memory is borrowed until ddp_close. */
typedef struct ddp_block {
    float *params;
    float *grads; /* same count, or NULL */
    size_t count; /* floats */
    ddp_block_kind kind;
} ddp_block;

/* A matrix within a block: what ddp_muon takes as a whole. */
typedef struct ddp_matrix {
    const float *params;  /* its first value; row after row */
    size_t rows, columns; /* a row makes one output */
} ddp_matrix;

/* What a layer is made of. Name, blocks and matrices are copied, the arrays behind them are borrowed
 * until ddp_close. A layer of one block fills params, grads and count; more go in blocks. */
typedef struct ddp_layer {
    const char *name; /* for plans, reports and errors; NULL = "layer N" */
    float *params;
    float *grads;
    size_t count;
    const ddp_block *blocks; /* further blocks, or NULL */
    int block_count;
    double flops;               /* of one forward of a micro-batch, 0 = 2 x count; only deterministic plans
                                     read it */
    int group;                  /* of ddp_group: the ranks that average this layer; 0 = all */
    const ddp_matrix *matrices; /* in the order of their blocks, without embeddings and heads; only ddp_muon
                                     and rules */
    int matrix_count;           /* of your own ask for them */
} ddp_layer;

typedef struct ddp_ctx ddp_ctx;
