/* What the outer family shares: outer.c is the rule and its layers, outer_sparse.c how changes travel as
 * their largest, outer_late.c the ways in which they land later, and the table entry. */
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
    size_t count;             /* of all of these */
    size_t from, length;      /* of them, those whose momentum is here */
    float *anchor, *momentum; /* [count], [length] */
    float *error;             /* [length] of what the outer steps lost as they travelled, [share] of sparse
                                 changes */
    float *x;                 /* [count] the change on its way, then the outer step; NULL: in place of the
                                 parameters */
    float *own;               /* [count] eager: where this worker began the period */
    float *previous;          /* [length] eager, compensated: the last outer step */
    size_t made_from, made;   /* elastic: the values of the last message whose outer step this rank
                                 computed */
    float *undo;              /* elastic: [room] error, [room] momentum of these values before the message */
    size_t room;
    long lands;               /* late: the step at whose end x lands; -1: nothing of the layer is late */
    size_t first, share;      /* sparse: of all, the values that this rank packs */
    unsigned char *gather;    /* [blocks x block] of each rank that packs these, whether it sent, and what */
    int blocks, place;        /* the latter: which of them is this rank's */
    size_t block;             /* bytes */
    const ddp_piece *moves;   /* between sites: where the change lies, and then the mean */
    int link;                 /* that they take */
    long before[2];           /* the messages but the last */
    ddp_maker packs, spreads; /* the makers of the others */
    ddp_piece whole;          /* x, as one of these */
    ddp_owner owner;
    long ticket, other_ticket;
    int fresh;        /* a newcomer's first period: it has changed nothing yet */
    long updates;     /* applied when its last change was sent */
    int idle;         /* none was since: this rank has no change */
    long told;        /* ticket of the message with *trained */
    long told_ticket; /* the same in the first layer of that message until it has arrived, else -1 */
    int holder;       /* that first layer */
    float *trained;   /* share of the ranks that have a change, 0: none has; in this machine's
                                 memory */
} ddp__outer_layer;

typedef struct ddp__outer {
    ddp__partial partial; /* stream: when each layer is sent; first, as run's plan */
    int *landing;         /* [layers] stream: and how many steps later it lands */
    float *late;          /* [layers] of which step each is late, as it is saved; read: since start, or a
                             load */
    int read;
    double exposed_s; /* stream: by the plan */
    float nu, mu, lambda, mixture;
    int whole;      /* every rank keeps the momentum of all, and takes the outer step itself */
    int elastic;    /* the rank that sums a part computes its outer step, and every rank stores all of the
                      momentum: exact in its own parts, recovered from the outer steps in the others */
    float *arrived; /* elastic, layers on a device: [most values of a layer] an outer step in this machine's
                       memory */
    int mean;       /* nu 1, mu 0: the mean of the parameters itself */
    int keep;       /* sparse: of 4096 values those that travel; 0 = all do */
    ddp_coding coding;
    ddp__outer_layer *layer;
    float *trained;         /* [layers] */
    const ddp_sites *sites; /* sparse changes go between them; NULL: between all ranks */
    float *shared;          /* [links x most] sparse changes of one layer after the other */
    float *packed;          /* [most] the same in this machine's memory, where layers are on a device; NULL */
    unsigned char *scratch; /* [links x scratch_bytes] */
    size_t most, scratch_bytes;
} ddp__outer;

/* Posts the mean of what else averaging moves: buffers, optimizer state. Holds the change that was posted:
 * after that x, or what is in place, is the outer step. */
DDP_LIB int ddp__outer_others(ddp_ctx *d, ddp__outer_layer *y);
DDP_LIB int ddp__outer_arrive(ddp_ctx *d, ddp__outer_layer *y);

/* Tells of layers first down to last whether this rank has a change of them, behind which the changes are
 * posted: no rank has one where all skipped the layer for a whole period, and then there is no outer step.
 * Their last changes have arrived. */
DDP_LIB int ddp__outer_tell(ddp_ctx *d, ddp__outer *o, int first, int last);

/* The parameter delta of the layer since `since`, into x, or in place of the parameters; 0 for a joining
 * worker, or if idle. */
DDP_LIB int ddp__outer_change(ddp_ctx *d, ddp__outer_layer *y, const float *since);
/* Posts the change in x, or in place. */
DDP_LIB int ddp__outer_post(ddp_ctx *d, ddp__outer_layer *y);

/* The events of the way that waits, which the others are built on. */
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
