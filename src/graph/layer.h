/* A layer, the unit of synchronisation. A user's training loop or a built graph registers it. */
#pragma once

#include "base/status.h"

typedef enum ddp_dtype { DDP_F32, DDP_I32 } ddp_dtype;

typedef enum ddp_block_kind {
    DDP_PARAMS,    /* updated by the optimizer; grads NULL: frozen, timed but never updated */
    DDP_BUFFERS,   /* running statistics: averaged with the layer, never updated by the optimizer */
    DDP_OWN_PARAMS /* updated by the program (ddp_own_update), which keeps their gradients: grads is NULL.
                    * Only with strategies that average parameters or parameter deltas, without clip_norm */
} ddp_block_kind;

/* One contiguous array of a layer. The memory is borrowed until ddp_close. */
typedef struct ddp_block {
    float *params;
    float *grads; /* `count` floats, or NULL: frozen, or see kind */
    size_t count; /* floats */
    ddp_block_kind kind;
} ddp_block;

/* A matrix within a block, which ddp_muon updates as a whole. */
typedef struct ddp_matrix {
    const float *params;  /* first value; stored row by row */
    size_t rows, columns; /* a row produces one output */
} ddp_matrix;

/* Description of a layer. Name, blocks and matrices are copied. The arrays they point to are borrowed until
 * ddp_close. A layer with one block fills params, grads and count; further blocks go in blocks. */
typedef struct ddp_layer {
    const char *name; /* used in plans, reports and errors (default: "layer N") */
    float *params;
    float *grads;
    size_t count;
    const ddp_block *blocks; /* further blocks, or NULL */
    int block_count;
    double flops; /* per forward pass of a micro-batch (default: 2 x count), for deterministic plans */
    int group;    /* group from ddp_group that averages this layer (default: 0, all ranks) */
    const ddp_matrix *matrices; /* in block order, without embeddings and heads; for ddp_muon */
    int matrix_count;           /* and your own update rules */
} ddp_layer;

typedef struct ddp_ctx ddp_ctx;
