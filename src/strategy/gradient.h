/* Buckets: what the strategies that average gradients send. */
#pragma once

#include "strategy/strategy.h"

#define DDP__FIRST_BUCKET_BYTES ((size_t)1 << 20)
enum {
    DDP__BUCKET_PIECES = 1024
}; /* at most, of several layers: an engine has room for a few such messages
                                       at a time */

/* One message: layers first..last (first >= last: backward order), or, where the layer is cut into `cut`
 * parts, its parts from..to-1. */
typedef struct ddp__bucket {
    int first, last, from, to, cut;
    ddp_piece *piece;
    int pieces;
    size_t offset; /* gradients of layer first before it */
    long ticket;
} ddp__bucket;

typedef struct ddp__gradient_layer {
    int ready; /* its gradient is complete in this step */
    int late;  /* its update is to come */
} ddp__gradient_layer;

typedef struct ddp__gradient {
    ddp__bucket *bucket;
    int buckets, next; /* the next one to leave */
    int layer;         /* < 0: of its messages; 0: the last one of the bucket */
    int waits;         /* updates may wait for their layer's next forward, with the rate of their
                                   step */
    float rate;
    double exposed_s;        /* of a step, by the plan */
    ddp__gradient_layer *of; /* [layers] */
} ddp__gradient;

DDP_LIB size_t ddp__part_begins(size_t n, int part, int cut); /* of a layer of n gradients in `cut` parts */
/* Whether a bucket of `pieces` pieces ends at this layer: the next layer belongs to another process group, or
 * has too many pieces. */
DDP_LIB int ddp__bucket_ends(ddp_ctx *d, int layer, int pieces);
DDP_LIB int ddp__buckets_room(ddp_ctx *d, ddp__gradient *g, int buckets); /* room for so many */
/* Lists the gradients of layers first down to last, or of the parts that b names of the only one. */
DDP_LIB int ddp__bucket_fill(ddp_ctx *d, ddp__bucket *b, int first, int last);
DDP_LIB void ddp__buckets_again(ddp_ctx *d, ddp__gradient *g); /* for the next backward */
DDP_LIB void ddp__buckets_free(ddp__gradient *g);
DDP_LIB int ddp__gradient_step_end(ddp_ctx *d, void *self, int forward); /* holds all, clips, updates */

/* The profile with what gradients alone take; the caller's. Few messages are in flight at once: parts
 * of fewer parameters would be sent faster than they arrive, and leave the link idle. */
DDP_LIB ddp_status ddp__gradient_profile(ddp_ctx *d, const ddp_profile *p, ddp_profile *own, ddp_error *err);
DDP_LIB double ddp__gradient_part_least(const ddp_profile *p, double alpha);
