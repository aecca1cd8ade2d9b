/* A worker that comes while a run goes on (docs/elastic-join.md).
 *
 *   newcomer -> any door      JOIN_ASK hello and request ENTER; who is not the coordinator names it. It gets
 *                             an id, its layout is compared, and the connection stays open as long as it
 *                             lives
 *   newcomer -> donor's door  the same with TAKE from an offset; a clone made at a period's end. Another
 *                             member is the donor where this one cannot be reached
 *   newcomer -> every door    JOIN_MESH hello: the connection of its entry. Where a member cannot be reached
 *                             (a firewall, NAT), the coordinator relays: the newcomer sends it RELAY, it
 *                             notifies the member, which connects to it (wire/callback.c)
 *   newcomer -> coordinator   ready; one or two periods later all members admit it */
#pragma once

#include "member/state.h"
#include "wire/tcp.h"

enum {
    DDP__JOIN_WORLD = 64,
    DDP__JOIN_REQUEST = 64,  /* bytes behind the hello: verb, wanted id + 1; bytes and clone that it has */
    DDP__JOIN_PLACE = 2048,  /* answer to ENTER: status, id, world, who is where */
    DDP__JOIN_VERDICT = 512, /* answer to that */
    DDP__JOIN_CLONE = 64,    /* answer to TAKE, followed by bytes and SHA-256 */
    DDP__JOIN_TEXT = 300,
    DDP__JOIN_HOW = 128,
    DDP__JOIN_SETTINGS = 32,
    DDP__JOIN_SAMES = 32,
    DDP__JOIN_VISITORS = 8 /* connections that are served at a time */
};

typedef enum ddp__join_verb { DDP__JOIN_ENTER = 1, DDP__JOIN_TAKE } ddp__join_verb;

typedef enum ddp__join_answer_code {
    DDP__JOIN_OK,
    DDP__JOIN_ELSEWHERE, /* another member coordinates */
    DDP__JOIN_LATER,     /* another newcomer is being served, or training has not begun */
    DDP__JOIN_FULL,      /* nobody is missing */
    DDP__JOIN_TAKEN,     /* the only id that its certificate allows is not free */
    DDP__JOIN_NEVER      /* text says why */
} ddp__join_answer_code;

typedef struct ddp__setting {
    const char *name;
    double value;
    const char *const *names; /* of a choice, by value; NULL: a number */
} ddp__setting;

typedef struct ddp__same { /* ddp_same; no name: none */
    char name[32];
    int64_t value;
} ddp__same;

/* What must be the same for all workers: a newcomer sends it as it lies in memory. */
typedef struct ddp__join_says {
    uint64_t hash;            /* of layers, operators and optimizer */
    int32_t layers, settings; /* 0 layers: training has not begun */
    double value[DDP__JOIN_SETTINGS];
    char how[DDP__JOIN_HOW];         /* "localsgd with period 4, ..." */
    ddp__same same[DDP__JOIN_SAMES]; /* of the program */
    char states[DDP__PROGRAM_NAMES]; /* of the program */
} ddp__join_says;

typedef struct ddp__join_layout {
    ddp__join_says says;
    const char *name[DDP__JOIN_SETTINGS]; /* of says.value */
} ddp__join_layout;

/* Both sides; texts and tls are borrowed. */
typedef struct ddp__join_config {
    int rank, world, min_world; /* of a member */
    uint64_t run_id;
    const char *addr; /* newcomer: doors to ask, separated by commas */
    int insecure;
    ddp__tls *tls; /* of the wire; NULL = plain */
    double connect_timeout_s, peer_timeout_s, op_timeout_s;
    const char *congestion; /* as in ddp__wire_tcp */
    ddp_logger log;
} ddp__join_config;

/* ---- members (join.c) ---- */

typedef struct ddp__join {
    ddp__join_config c;
    /* shared, under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop, visitors;         /* stop is atomic */
    int fd[DDP__JOIN_VISITORS]; /* of those who are served, or -1 */
    ddp__engine *engine;        /* NULL until it runs */
    ddp__join_layout layout;
    ddp__addr door[DDP__JOIN_WORLD];
    int id, ready; /* the newcomer that is served, -1 = none; it waits for its entry */
    long turn;     /* newcomers that were given an id here */
    int want_snap, snap_users;
    unsigned char *snap;
    size_t snap_bytes;
    uint64_t snap_number;
} ddp__join;

/* Serves newcomers from now on; the wire is one that resumes. */
DDP_LIB ddp_status ddp__join_open(const ddp__join_config *c, ddp__wire *wire, ddp__join **out,
                                  ddp_error *err);
/* Training begins. Both are borrowed, the texts of layout too. */
DDP_LIB void ddp__join_ready(ddp__join *j, ddp__engine *engine, const ddp__join_layout *layout);
/* Before the engine closes: nobody serves newcomers any more. NULL is fine, here and below. */
DDP_LIB void ddp__join_stop(ddp__join *j);
DDP_LIB void ddp__join_close(ddp__join *j);
DDP_LIB void ddp__join_disown(ddp__join *j); /* in a forked child: closes the descriptors */
DDP_LIB int ddp__join_wants(ddp__join *j);   /* somebody waits for a clone */
/* s is what a newcomer gets. Short of memory there is a line and no clone. */
DDP_LIB ddp_status ddp__join_give(ddp__join *j, const ddp__worker *s, ddp_error *err);
DDP_LIB int ddp__join_next(ddp__join *j); /* The newcomer that may enter here, -1: none. */
/* All members, with nothing in flight. *in: it is there, 0: lost. Then follows ddp__worker_enter, on its side
 * too. */
DDP_LIB ddp_status ddp__join_admit(ddp__join *j, int id, int *in, ddp_error *err);

/* ---- newcomers (joiner.c) ---- */

typedef struct ddp__join_place {
    int code, id, world, coordinator, min_world;
    uint64_t live;
    ddp__addr door[DDP__JOIN_WORLD];
} ddp__join_place;

typedef struct ddp__joiner { /* until it is in */
    ddp__join_config c;
    int fd;         /* to the coordinator, or -1 */
    int connected;  /* the last request reached a listener */
    ddp__tls *tls;  /* its session: the wire's belong to another thread once the engine runs */
    double beat_at; /* when it is next told that this one lives */
    ddp__addr at[DDP__JOIN_WORLD + 8]; /* doors to ask */
    int doors;
    unsigned resolved; /* a bit for each address of c.addr that is in `at` */
    ddp__join_place place;
    int donor;
    uint64_t unreached; /* members to which this worker cannot connect directly */
    unsigned char *clone;
    size_t have, bytes;
    uint64_t number; /* of the donor's clone; 0 = none */
} ddp__joiner;

/* Finds the run and an id in it: place. *out is to be closed also after an error. */
DDP_LIB ddp_status ddp__joiner_open(const ddp__join_config *c, ddp__joiner **out, ddp_error *err);
DDP_LIB const ddp__join_place *ddp__joiner_found(const ddp__joiner *j); /* where it enters */
/* Takes a clone into s and connects to the members in place.live: *wire, for an engine that joins.
 * DDP_PEER_LOST, here and below: to be tried again, after ddp__joiner_again. */
DDP_LIB ddp_status ddp__joiner_prepare(ddp__joiner *j, const ddp__join_layout *layout, ddp__worker *s,
                                       double until, ddp__wire **wire, ddp_error *err);
/* Waits until the members let it in. */
DDP_LIB ddp_status ddp__joiner_wait(ddp__joiner *j, ddp__engine *engine, ddp_error *err);
DDP_LIB void ddp__joiner_again(ddp__joiner *j);
DDP_LIB void ddp__joiner_close(ddp__joiner *j);  /* NULL is fine */
DDP_LIB void ddp__joiner_disown(ddp__joiner *j); /* in a forked child: closes the descriptor; NULL is
                                                          fine */
