/* What a graph may know of the context that trains it: memory, threads and the hooks.
 * A ddp_ctx begins with this struct, so src/graph needs nothing of src/sync. */
#ifndef DDP_GRAPH_HOST_H
#define DDP_GRAPH_HOST_H

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"
#include "graph/layer.h"

/* The same hooks that a user's own loop calls; each returns 0 or a ddp_status. */
typedef struct ddp__hooks {
    int (*add_layer)(ddp_ctx *ctx, const ddp_layer *layer);
    int (*forward_begin)(ddp_ctx *ctx, int layer);
    int (*backward_begin)(ddp_ctx *ctx, int layer);
    int (*backward_end)(ddp_ctx *ctx, int layer);
} ddp__hooks;

/* A graph hangs itself here so that ddp_close can free it. */
typedef struct ddp__owned {
    struct ddp__owned *next;
    void (*destroy)(struct ddp__owned *self);
    uint64_t *passes; /* what random masks depend on, part of a checkpoint; NULL before the build */
} ddp__owned;

typedef struct ddp__host {
    ddp_allocator     allocator;
    ddp_logger        log;
    ddp__pool        *pool;   /* operator threads; NULL = one */
    const ddp__hooks *hooks;
    ddp__owned       *owned;  /* destroyed in ddp_close, newest first */
    uint64_t          seed;   /* for initialisation and dropout */
    ddp_error         error;  /* the first error of the context; sticky */
} ddp__host;

#endif /* DDP_GRAPH_HOST_H */
