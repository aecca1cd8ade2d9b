/* What the outer family shares: outer.c is the rule and its layers, outer_sparse.c how changes travel as their largest,
 * outer_late.c the ways in which they land later. */
#ifndef DDP_STRATEGY_OUTER_H
#define DDP_STRATEGY_OUTER_H

#include "nn/exact.h"
#include "run/config.h"
#include "strategy/strategy.h"

struct ddp__outer;

typedef struct ddp__outer_layer {
    struct ddp__outer *all;
    int    layer;
    size_t count;             /* parameters with gradients */
    size_t from, length;      /* of them, those whose momentum is here */
    float *anchor, *momentum; /* [count], [length] */
    float *error;             /* [length] of what the outer steps lost as they travelled, [count] of sparse changes */
    float *x;                 /* [count] the change on its way, then the outer step; NULL: in place of the parameters */
    unsigned char *gather;    /* [blocks x block] sparse: of each rank, whether it sent, and what */
    int    blocks, own;       /* the latter: which of them is this rank's */
    size_t block;             /* bytes */
    ddp_owner owner;
    long   ticket, other_ticket;
    int    fresh;             /* a newcomer's first period: it has changed nothing yet */
} ddp__outer_layer;

typedef struct ddp__outer {
    float nu, mu;
    int   whole; /* every rank keeps the momentum of all, and takes the outer step itself */
    int   mean;  /* nu 1, mu 0: the mean of the parameters itself */
    int   keep;  /* sparse: of 4096 values those that travel; 0 = all do */
    ddp_coding coding;
    ddp__outer_layer *layer;
    float         *shared;  /* [most] sparse changes of one layer after the other */
    unsigned char *scratch; /* [scratch_bytes] */
    size_t         scratch_bytes;
} ddp__outer;

/* Posts a layer's change, and the mean of what else averaging moves. Holds both; after that x is the outer step. The
 * anchor goes on by it. */
DDP_LIB int ddp__outer_send(ddp_ctx *d, ddp__outer_layer *y);
DDP_LIB int ddp__outer_arrive(ddp_ctx *d, ddp__outer_layer *y);

/* outer_sparse.c */
#ifndef DDP_NO_PLANNERS
DDP_LIB int ddp__sparse_start(ddp_ctx *d, ddp__outer_layer *y);
DDP_LIB int ddp__sparse_send(ddp_ctx *d, ddp__outer_layer *y, const ddp_message *like);
DDP_LIB int ddp__sparse_arrive(ddp_ctx *d, ddp__outer_layer *y);
#endif

#endif /* DDP_STRATEGY_OUTER_H */
