/* Shared by the outer-optimizer family. outer.c: the update rule and its layers. outer_sparse.c: sparse
 * parameter deltas. outer_late.c: overlapped variants, and the table entry. */
#pragma once

#include "exchange/collective.h"
#include "nn/exact.h"
#include "strategy/strategy.h"

struct ddp__outer;

typedef struct ddp__outer_layer {
    struct ddp__outer *all;
    int layer;
    const ddp_piece *piece; /* [pieces] the parameters with gradients */
    int pieces;
    size_t count;             /* of all pieces */
    size_t from, length;      /* segment whose momentum this rank stores */
    float *anchor, *momentum; /* [count], [length] */
    float *error;             /* quantisation residual: [length] of outer steps, [share] of sparse deltas */
    /* [count] the delta in flight, then the outer step. NULL means that both are in place of the
     * parameters. */
    float *x;
    float *own;             /* [count] eager: this worker's parameters at the start of the period */
    float *previous;        /* [length] eager with compensation: the last outer step */
    size_t made_from, made; /* elastic: values of the last message whose outer step this rank computed */
    float *undo;            /* elastic: [room] error, [room] momentum of these values before the message */
    size_t room;
    long lands;          /* overlapped: the step at whose end x is applied, or -1 if no step is pending */
    size_t first, share; /* sparse: the values that this rank packs */
    /* [blocks x block] from each rank that packs the same values: whether it sent, and its data */
    unsigned char *gather;
    int blocks, place;        /* place: index of this rank's block */
    size_t block;             /* in bytes */
    const ddp_piece *moves;   /* between sites: location of the delta, then of the mean */
    int link;                 /* link of the messages */
    long before[2];           /* tickets of the messages before the last one */
    ddp_maker packs, spreads; /* makers of the second and third message */
    ddp_piece whole;          /* x as a piece */
    ddp_owner owner;
    long ticket, other_ticket;
    int fresh;        /* 1 if a joining worker's first period. Its delta is 0. */
    long updates;     /* number of updates when its last delta was sent */
    int idle;         /* 1 if no update since then, so this rank has no delta */
    long told;        /* ticket of the message with *trained */
    long told_ticket; /* the same, in that message's first layer until it arrives, or -1 otherwise */
    int holder;       /* that message's first layer */
    float *trained;   /* share of the ranks that have a delta, in host memory. 0 means that no rank has a
                         delta. */
} ddp__outer_layer;

typedef struct ddp__outer {
    ddp__partial partial; /* stream: when each layer is sent. Must be the first member, as in local.c. */
    int *landing;         /* [layers] stream: steps from sending to applying */
    /* [layers] stream: the number of periods in which a layer's average arrived at least two steps early, and
     * the fewest such steps as a negative number */
    int *early_periods, *early;
    /* stream: 1 if the layers of a step are sent together, at its end */
    int together;
    int patience; /* stream: such periods after which a landing is moved earlier */
    /* [layers] step in which each pending layer is applied, as saved. Read: it was read since start or
     * load. */
    float *late;
    int read;
    double exposed_s; /* stream: exposed time according to the plan */
    float nu, mu, lambda, mixture;
    int waits; /* 1 if a delta waits for the message about trained layers, in a world that is not elastic */
    int whole; /* 1 if every rank stores all of the momentum and computes the outer step itself */
    /* 1 if the rank that sums a segment computes its outer step, and every rank stores all of the momentum.
     * It is exact in the rank's own segments, and recovered from the outer steps in the others */
    int elastic;
    /* elastic, layers on a device: [most values of a layer] copy of an outer step in host memory */
    float *arrived;
    int mean; /* nu 1, mu 0: averages the parameters themselves */
    int keep; /* sparse: values sent of each 4096. 0 means that all are sent. */
    ddp_coding coding;
    ddp__outer_layer *layer;
    float *trained;         /* [layers] */
    ddp_piece *words;       /* [layers] stream: the values of `trained` that a message has */
    int *sends;             /* [layers] stream: the layers that a step sends together */
    const ddp_sites *sites; /* sparse deltas are exchanged between them, or NULL for between all ranks */
    float *shared;          /* [links x most] buffer for the sparse deltas of one layer at a time */
    float *packed;          /* [most] the same in host memory if layers are on a device, or NULL otherwise */
    unsigned char *scratch; /* [links x scratch_bytes] */
    size_t most, scratch_bytes;
} ddp__outer;

/* Posts the mean of the layer's other arrays: buffers, optimizer state. */
DDP_LIB int ddp__outer_others(ddp_ctx *d, ddp__outer_layer *y);
/* Waits for the posted delta. layer: the layer that the wait counts for, or DDP_NO_LAYER. Afterwards x, or
 * the array in place of the parameters, is the outer step. */
DDP_LIB int ddp__outer_arrive(ddp_ctx *d, ddp__outer_layer *y, int layer);

/* Posts, before the deltas, whether this rank has a delta of layers first down to last. If all ranks skipped
 * a layer for a whole period, no rank has one and there is no outer step. The previous deltas must have
 * arrived. */
DDP_LIB int ddp__outer_tell(ddp_ctx *d, ddp__outer *o, int first, int last);
/* The same for n layers of any order. */
DDP_LIB int ddp__outer_tell_some(ddp_ctx *d, ddp__outer *o, const int *layer, int n);

/* Computes the layer's parameter delta since `since` into x, or in place of the parameters. It is 0 for a
 * joining worker, or if idle. */
DDP_LIB int ddp__outer_change(ddp_ctx *d, ddp__outer_layer *y, const float *since);
/* Posts the delta in x, or in place of the parameters. */
DDP_LIB int ddp__outer_post(ddp_ctx *d, ddp__outer_layer *y);

/* The events of the variant without overlap, which the other variants call. */
DDP_LIB int ddp__outer_start(ddp_ctx *d, void *self);
DDP_LIB int ddp__outer_step_end(ddp_ctx *d, void *self, int forward);
DDP_LIB int ddp__outer_sync_all(ddp_ctx *d, void *self);
DDP_LIB int ddp__outer_restart(ddp_ctx *d, void *self);

/* outer_sparse.c */
#ifndef DDP_NO_PLANNERS
DDP_LIB int ddp__sparse_start(ddp_ctx *d, ddp__outer_layer *y);
DDP_LIB int ddp__sparse_send(ddp_ctx *d, ddp__outer_layer *y, const ddp_message *like);
DDP_LIB int ddp__sparse_arrive(ddp_ctx *d, ddp__outer_layer *y);
#endif
