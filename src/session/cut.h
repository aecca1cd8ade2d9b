/* How a model is cut into stages, of which there may be several copies: src/pipe makes it. */
#pragma once

#include "context/context.h"

/* The layers of this rank are a part of a model, of which there are several copies. */
typedef struct ddp__cut_span {
    int unit, buffers;      /* a layer here; 1: its buffers, 0: its parameters */
    size_t from, at, count; /* in the whole layer; here */
} ddp__cut_span;

typedef struct ddp__cut {
    int copies, copy;
    int stages, stage; /* that one copy is cut into; this rank's */
    int group;         /* of the ranks of its copy; 0 where stages is 1 */
    const char **name; /* [layers] of the model */
    int layers;
    int *whole;          /* [units] the number of each in the model, rising */
    int units;           /* layers of the model that are here */
    ddp__cut_span *span; /* [spans] */
    int spans;
    float *residual; /* [residuals] what its edges have cut off (ddp_edge_wire.feedback), in this
                                machine's memory */
    size_t residuals;
} ddp__cut;

/* The layers of this context are that part of a model; NULL: they are the whole model again. Borrowed. */
DDP_LIB void ddp__cut_set(ddp_ctx *d, const ddp__cut *cut);
DDP_LIB const ddp__cut *ddp__cut_of(const ddp_ctx *d);
/* Messages of a pipeline that may be under way at a time, and their bytes. */
DDP_LIB void ddp__edges_set(ddp_ctx *d, int messages, size_t bytes);
