/* Describes how a model is cut into stages, and how many copies of it exist. src/pipe makes this
 * description. */
#pragma once

#include "context/context.h"

/* A range of values of one layer on this rank, and its place in the whole layer of the model. */
typedef struct ddp__cut_span {
    int unit, buffers;      /* number of the layer on this rank, and 1 for buffers or 0 for parameters */
    size_t from, at, count; /* offset in the whole layer, offset here, number of values */
} ddp__cut_span;

typedef struct ddp__cut {
    int copies, copy;
    int stages, stage; /* number of stages per copy, and the stage of this rank */
    int group;         /* process group of the ranks of its copy, or 0 if stages is 1 */
    const char **name; /* [layers] names of the model's layers */
    int layers;
    int *whole;          /* [units] number of each layer in the model, increasing */
    int units;           /* layers of the model that this rank has */
    ddp__cut_span *span; /* [spans] */
    int spans;
    float *residual; /* [residuals] quantisation residuals of its edges (ddp_edge_wire.feedback), in host
                        memory */
    size_t residuals;
} ddp__cut;

/* Declares that the layers of this context are a part of a model, as `cut` describes. NULL means that they
 * are the whole model. `cut` is borrowed. */
DDP_LIB void ddp__cut_set(ddp_ctx *d, const ddp__cut *cut);
DDP_LIB const ddp__cut *ddp__cut_of(const ddp_ctx *d);
/* Sets how many messages of a pipeline may be in flight at a time, and their size in bytes. */
DDP_LIB void ddp__edges_set(ddp_ctx *d, int messages, size_t bytes);
