/* A copy of what the engine remembers of its operations, for the post-mortem. */
#ifndef DDP_NET_OPLOG_H
#define DDP_NET_OPLOG_H

#include "net/engine.h"

enum {
    DDP__OPLOG = 2000,       /* operations that are kept, unfinished ones included */
    DDP__OPLOG_MISSING = 16  /* ranks that are listed as missing */
};

typedef enum ddp__op_stage {
    DDP__STAGE_QUEUED, /* submitted; its turn has not come */
    DDP__STAGE_ACTIVE,
    DDP__STAGE_DONE
} ddp__op_stage;

typedef struct ddp__op_record {
    ddp__op_span  span;      /* seq of a queued one: the number that it will get */
    ddp__op_stage stage;
    int64_t       left;      /* bytes still to send or to receive */
    int           missing[DDP__OPLOG_MISSING], missing_count; /* ranks that have not begun it */
} ddp__op_record;

typedef struct ddp__peer_record {
    char   name[80];
    long   begun;            /* collectives that it has begun, by its last word; -1 = unknown */
    double heard_s, got_s;   /* seconds since that word, and since its last byte; -1 = never */
    int    left;             /* it closed its context */
} ddp__peer_record;

typedef struct ddp__oplog {
    ddp__op_record   *record; /* [count], oldest first */
    int               count, room;
    long              dropped; /* older operations that were forgotten */
    ddp__peer_record *peer;    /* [world]; that of this rank says what it has begun itself */
    ddp_error         error;   /* the engine's first, code DDP_OK = none */
    double            now;     /* ddp_now() of the copy */
    int               served;
} ddp__oplog;

#ifdef __cplusplus
extern "C" {
#endif

/* Any thread, also while others wait in the engine and after it failed. The comm thread makes the
 * copy; where it does not answer within a second, peers and missing ranks are left out.
 * Errors: DDP_MEMORY. *out is freed by ddp__oplog_free in any case. */
DDP_LIB ddp_status ddp__engine_oplog(ddp__engine *e, ddp__oplog *out, ddp_error *err);
DDP_LIB void       ddp__oplog_free(ddp__oplog *log);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_OPLOG_H */
