/* A worker that comes while a run goes on (docs/elastic-join.md).
 *
 *   newcomer -> any door          JOIN_ASK hello; the answer names the port of that member's
 * service newcomer -> a service         request ENTER; who is not the coordinator names it. Gets an
 * id, its layout is compared, the connection stays open as long as it lives newcomer -> donor's
 * service   request CLONE from an offset; a snapshot taken at a period's end newcomer -> every door
 * JOIN_MESH hello: the connection of its entry newcomer -> coordinator       ready; one or two
 * periods later all members admit it */
#ifndef DDP_SYNC_JOIN_H
#define DDP_SYNC_JOIN_H

#include "base/sha256.h"
#include "net/meeting.h"
#include "net/tls.h"
#include "net/wire_resume.h"
#include "sync/context.h"

enum {
    DDP__JOIN_WORLD = 64,
    DDP__JOIN_REQUEST = 128, /* bytes: a hello, then verb and the fields below */
    DDP__JOIN_PLACE = 2048,  /* answer to ENTER: status, id, world, who is where */
    DDP__JOIN_LAYOUT = 64,   /* newcomer: layers and what all must have alike */
    DDP__JOIN_VERDICT = 512, /* answer to that */
    DDP__JOIN_CLONE = 64,    /* answer to CLONE, followed by bytes and SHA-256 */
    DDP__JOIN_TEXT = 300,
    DDP__JOIN_ALIKE = 6      /* settings that a newcomer must have as the others, of DDP__ALIKE */
};

typedef enum ddp__join_verb { DDP__JOIN_ENTER = 1, DDP__JOIN_TAKE } ddp__join_verb;

typedef enum ddp__join_answer_code {
    DDP__JOIN_OK,
    DDP__JOIN_ELSEWHERE, /* another member coordinates */
    DDP__JOIN_LATER,     /* another newcomer is being served, or training has not begun */
    DDP__JOIN_FULL,      /* nobody is missing */
    DDP__JOIN_NEVER      /* text says why */
} ddp__join_answer_code;

typedef struct ddp__join_place {
    int      code, id, world, coordinator, min_world;
    uint64_t live;
    ddp__addr door[DDP__JOIN_WORLD];
} ddp__join_place;

/* What all workers must have alike. */
typedef struct ddp__join_layout {
    uint64_t hash;
    int layers, strategy, period, micro, coding;
    float alike[DDP__ALIKE];
} ddp__join_layout;

typedef struct ddp__join { /* of a member */
    ddp_ctx  *d;
    ddp__wire *wire;
    uint64_t  run_id;
    int       listen_fd;
    pthread_t thread;
    int       threaded;
    /* main thread */
    long      ticket;         /* the coordinator's word on the way, or -1 */
    float     word;           /* id to admit, or -1 */
    ddp__piece piece;
    /* shared, under lock */
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    int       stop, visitors;
    ddp__engine *engine;      /* NULL until it runs */
    ddp__join_layout layout;  /* layers 0: training has not begun */
    ddp__addr door[DDP__JOIN_WORLD];
    int id, ready; /* the newcomer that is served here, -1 = none; it waits for its entry */
    long      turn;           /* newcomers that were given an id here */
    int       want_snap, snap_users;
    unsigned char *snap;
    size_t    snap_bytes;
    uint64_t  snap_number;
} ddp__join;

typedef struct ddp__joiner { /* of a newcomer, until it is in */
    ddp__tls *tls;            /* of this thread's connections */
    uint64_t  run_id;
    int       fd;             /* to the coordinator's service, or -1 */
    double    beat_at;        /* when it is next told that this one lives */
    ddp__addr at[DDP__JOIN_WORLD + 8]; /* doors to ask */
    int       doors;
    ddp__join_place place;
    int       donor;
    unsigned char *clone;
    size_t    have, bytes;
    uint64_t  number;         /* of the donor's snapshot; 0 = none */
    ddp__sha256 sha;
} ddp__joiner;

#ifdef __cplusplus
extern "C" {
#endif

/* join.c: members */
/* Serves newcomers from now on; the wire is one that resumes. */
DDP_LIB ddp_status ddp__join_open(ddp_ctx *d, ddp__wire *wire, ddp_error *err);
DDP_LIB void       ddp__join_ready(ddp_ctx *d); /* engine and layers are there */
/* Before the engine closes: nobody serves newcomers any more. */
DDP_LIB void       ddp__join_stop(ddp_ctx *d);
/* After that: the coordinator's word may be on its way until then. */
DDP_LIB void       ddp__join_close(ddp_ctx *d);
/* At the end of a step: at a period's end snapshots, words, entries. Collective. */
DDP_LIB ddp_status ddp__join_step(ddp_ctx *d, ddp_error *err);

/* join_serve.c: what a member's service answers */
DDP_LIB void *ddp__join_main(void *arg);

/* join_entry.c: after the epoch with the newcomer has begun; collective */
DDP_LIB ddp_status ddp__join_entry(ddp_ctx *d, int newcomer, ddp_error *err);
/* The coordinator's next word; members and newcomers. */
DDP_LIB ddp_status ddp__join_ask(ddp_ctx *d, ddp_error *err);

/* joiner.c: newcomers */
/* Finds the run and an id in it: sets rank and world. */
DDP_LIB ddp_status ddp__joiner_open(ddp_ctx *d, ddp_error *err);
/* Takes the clone and enters: the context is a member's then. */
DDP_LIB ddp_status ddp__joiner_enter(ddp_ctx *d, ddp_error *err);
DDP_LIB void       ddp__joiner_close(ddp_ctx *d);

/* start.c */
DDP_LIB uint64_t   ddp__layout_hash(const ddp_ctx *d);
/* session.c */
DDP_LIB ddp_status ddp__session_tls(ddp_ctx *d, uint64_t run_id, ddp__tls **out, ddp_error *err);
DDP_LIB uint64_t   ddp__session_run(const ddp_ctx *d);
DDP_LIB ddp_status ddp__engine_start(ddp_ctx *d, ddp__wire *wire, const ddp__links *links,
                                     int joining, uint64_t live, ddp__engine **out,
                                     ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_JOIN_H */
