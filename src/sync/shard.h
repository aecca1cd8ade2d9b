/* What one rank holds that a run needs to go on: the arrays of a checkpoint's file, and of the
 * clone that a newcomer takes. */
#ifndef DDP_SYNC_SHARD_H
#define DDP_SYNC_SHARD_H

#include "io/safetensors_core.h"
#include "sync/context.h"

enum { DDP__C_STEP, DDP__C_FINAL, DDP__C_SOLVER, DDP__C_COST, DDP__C_TAKEN, DDP__C_NUMBERS };

/* One array of a shard, and the memory it is saved from or loaded into. */
typedef struct ddp__shard_array {
    char           name[48];
    ddp_safetensor as;
    void          *data;
    void          *there;  /* on a device: where data, a copy of it, comes from and goes to */
    const char    *layer;  /* whose it is, NULL = of no layer; borrowed */
    int            buffer; /* 1: what each rank may hold unlike the others, as running statistics */
} ddp__shard_array;

/* A shard as it lies in memory. Small values lie in copies, so that loading can fail halfway. */
typedef struct ddp__shard {
    float            *copy;    /* of all arrays of a device; NULL without */
    ddp__shard_array *list;
    int               count;
    int64_t          *updates; /* [layers] */
    int64_t          *random;  /* [graphs] */
    int               graphs;
    int64_t           number[DDP__C_NUMBERS];
    float             lr;
    ddp_plan          plan; /* layers 0 = none */
    double            cost[3];
} ddp__shard;

#ifdef __cplusplus
extern "C" {
#endif

/* Lists the context's arrays; with a plan of that period, 0 = none. Freed also after an error. */
DDP_LIB ddp_status ddp__shard_open(ddp_ctx *d, int period, ddp__shard *s, ddp_error *err);
/* The same with the context's values. */
DDP_LIB ddp_status ddp__shard_take(ddp_ctx *d, ddp__shard *s, ddp_error *err);
/* The rest of what loading changes, after the arrays. keep_plan 0: another world plans anew. */
DDP_LIB void ddp__shard_give(ddp_ctx *d, ddp__shard *s, int keep_plan);
DDP_LIB void ddp__shard_free(ddp__shard *s);

/* A shard as one run of bytes: the plan's period, then the arrays. ddp__shard_unpack checks that
 * they are of this model before it changes anything. */
DDP_LIB size_t ddp__shard_bytes(const ddp__shard *s);
DDP_LIB void   ddp__shard_pack(const ddp__shard *s, unsigned char *out);
DDP_LIB ddp_status ddp__shard_unpack(ddp_ctx *d, const unsigned char *in, size_t bytes,
                                     ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_SHARD_H */
