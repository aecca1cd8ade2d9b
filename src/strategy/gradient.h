/* Buckets: the messages of strategies that average gradients. */
#pragma once

#include "strategy/strategy.h"

#define DDP__FIRST_BUCKET_BYTES ((size_t)1 << 20)
enum {
    DDP__BUCKET_PIECES = 1024
}; /* limit for buckets of several layers: an engine can queue few such messages */

/* One message. With cut <= 1: layers first..last (first >= last: backward order). Otherwise: parts from..to-1
 * of the layer, which is divided into `cut` parts. */
typedef struct ddp__bucket {
    int first, last, from, to, cut;
    ddp_piece *piece;
    int pieces;
    size_t offset; /* gradients of layer `first` before this message */
    long ticket;
} ddp__bucket;

typedef struct ddp__gradient_layer {
    int ready; /* the layer's gradient of this step is complete */
    int late;  /* the layer's update is still to be made */
} ddp__gradient_layer;

typedef struct ddp__gradient {
    ddp__bucket *bucket;
    int buckets, next; /* next: the next bucket to send */
    int layer;         /* layer of the messages: DDP_ALL_LAYERS, or 0 for the bucket's last layer */
    int waits; /* 1 if a layer's update may wait for its next forward, with the learning rate of its step */
    float rate;
    double exposed_s;        /* exposed time of a step according to the plan */
    ddp__gradient_layer *of; /* [layers] */
} ddp__gradient;

/* first gradient of a part, for a layer of n gradients in `cut` parts */
DDP_LIB size_t ddp__part_begins(size_t n, int part, int cut);
/* 1 if a bucket of `pieces` pieces must end at this layer, because the next layer belongs to another process
 * group or would exceed the limit of pieces. */
DDP_LIB int ddp__bucket_ends(ddp_ctx *d, int layer, int pieces);
DDP_LIB int ddp__buckets_room(ddp_ctx *d, ddp__gradient *g, int buckets); /* allocates */
/* Lists the gradients of layers first down to last. If b names parts, lists these parts of the one layer. */
DDP_LIB int ddp__bucket_fill(ddp_ctx *d, ddp__bucket *b, int first, int last);
DDP_LIB void ddp__buckets_again(ddp_ctx *d, ddp__gradient *g); /* resets for the next backward pass */
DDP_LIB void ddp__buckets_free(ddp__gradient *g);
DDP_LIB int ddp__gradient_step_end(ddp_ctx *d, void *self, int forward); /* waits for all, clips, updates */

/* Makes a profile of the gradients only. The caller frees it. */
DDP_LIB ddp_status ddp__gradient_profile(ddp_ctx *d, const ddp_profile *p, ddp_profile *own, ddp_error *err);
/* The smallest useful part, in parameters. Few messages are in flight at a time: smaller parts would be sent
 * faster than they arrive, and leave the link idle. */
DDP_LIB double ddp__gradient_part_least(const ddp_profile *p, double alpha);
