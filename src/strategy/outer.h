/* What the outer family shares. */
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
    float *anchor, *momentum; /* [count], [length]; NULL without */
    ddp_owner owner;
    long   ticket, other_ticket;
} ddp__outer_layer;

typedef struct ddp__outer {
    float nu, mu;
    int   whole; /* every rank keeps the momentum of all, and takes the outer step itself */
    int   mean;  /* nu 1, mu 0: the mean of the parameters itself */
    ddp__outer_layer *layer;
} ddp__outer;

#endif /* DDP_STRATEGY_OUTER_H */
