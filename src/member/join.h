/* A worker that joins a running job (docs/howto/wan-elastic.md).
 *
 *   joining worker -> any member     JOIN_ASK hello and request ENTER. A member that is not the coordinator
 *                                    replies with the coordinator. The coordinator assigns an id and compares
 *                                    the layout. This connection stays open while the joining worker lives
 *   joining worker -> donor          the same with TAKE from an offset: a clone that was made at the end of a
 *                                    period. If the donor cannot be reached, another member is the donor
 *   joining worker -> every member   JOIN_MESH hello: the connection for its entry. If a member cannot be
 *                                    reached (a firewall, NAT), the coordinator relays: the joining worker
 *                                    sends it RELAY, it notifies the member, which connects to it
 *                                    (wire/callback.c)
 *   joining worker -> coordinator    ready; one or two periods later all members admit it
 *   joining worker -> any member     after its entry: REST from an offset (rest.h). If the member is lost,
 *                                    any other member sends the remaining bytes */
#pragma once

#include "member/state.h"
#include "wire/tcp.h"

enum {
    DDP__JOIN_WORLD = 64,
    DDP__JOIN_REQUEST = 64,  /* bytes after the hello: verb, wanted id + 1, bytes and number of the clone that
                                it has */
    DDP__JOIN_PLACE = 2048,  /* reply to ENTER: status, id, world, choice, addresses of the members */
    DDP__JOIN_CHOSEN = 4,    /* numbers in it: strategy, overlap, wire, period */
    DDP__JOIN_VERDICT = 512, /* reply to the layout */
    DDP__JOIN_CLONE = 64,    /* reply to TAKE, followed by the bytes and their SHA-256 */
    DDP__REST_HEAD = 4,      /* CRC-32C before each piece of the reply to REST, */
    DDP__REST_PIECE = 1 << 18,
    DDP__REST_REPLY_S = 5, /* seconds until a member has copied its state */
    DDP__JOIN_TEXT = 300,
    DDP__JOIN_HOW = 128,
    DDP__JOIN_SETTINGS = 32,
    DDP__JOIN_SAMES = 32,
    DDP__JOIN_VISITORS = 8 /* connections that are served at a time */
};

typedef enum ddp__join_verb { DDP__JOIN_ENTER = 1, DDP__JOIN_TAKE, DDP__JOIN_REST } ddp__join_verb;

typedef enum ddp__join_answer_code {
    DDP__JOIN_OK,
    DDP__JOIN_ELSEWHERE, /* another member is the coordinator */
    DDP__JOIN_LATER,     /* another joining worker is being served, or training has not begun */
    DDP__JOIN_FULL,      /* the run is full: all ranks are live */
    DDP__JOIN_TAKEN,     /* the only id that its certificate allows is not free */
    DDP__JOIN_NEVER      /* the text states the reason */
} ddp__join_answer_code;

typedef struct ddp__setting {
    const char *name;
    double value;
    const char *const *names; /* the names of the values of a choice, or NULL for a number */
} ddp__setting;

typedef struct ddp__same { /* ddp_same, unused if the name is empty */
    char name[32];
    int64_t value;
} ddp__same;

/* The settings that must be equal on all workers. A joining worker sends the struct as it is in memory. */
typedef struct ddp__join_says {
    uint64_t hash;            /* hash of layers, operators and optimizer */
    int32_t layers, settings; /* 0 layers: training has not begun */
    double value[DDP__JOIN_SETTINGS];
    char how[DDP__JOIN_HOW];         /* "localsgd with period 4, ..." */
    ddp__same same[DDP__JOIN_SAMES]; /* values of the program (ddp_same) */
    char states[DDP__PROGRAM_NAMES]; /* names of the program's states (ddp__program_names) */
} ddp__join_says;

typedef struct ddp__join_layout {
    ddp__join_says says;
    const char *name[DDP__JOIN_SETTINGS]; /* names of says.value */
    int chosen[DDP__JOIN_CHOSEN]; /* the choice of a strategy that chooses, or zeros. The reply to ENTER
                                             has it. */
} ddp__join_layout;

/* Settings of both sides. Texts and tls are borrowed. */
typedef struct ddp__join_config {
    int rank, world, min_world; /* of a member */
    uint64_t run_id;
    const char *addr; /* joining worker: addresses of members, separated by commas */
    int insecure;
    ddp__tls *tls; /* the wire's session, or NULL for no TLS */
    double connect_timeout_s, peer_timeout_s, op_timeout_s;
    const char *congestion; /* as in ddp__wire_tcp */
    ddp_logger log;
} ddp__join_config;

/* ---- members (join.c) ---- */

/* The bytes of ddp__worker_rest_pack. Freed by its last user. */
typedef struct ddp__rest_copy {
    int users; /* this member, and connections that send it */
    unsigned char *data;
    size_t bytes;
} ddp__rest_copy;

typedef struct ddp__join {
    ddp__join_config c;
    /* shared, under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop, visitors;         /* stop is atomic */
    int fd[DDP__JOIN_VISITORS]; /* of connections that are being served, or -1 */
    ddp__engine *engine;        /* NULL until it runs */
    ddp__join_layout layout;
    ddp__addr address[DDP__JOIN_WORLD];
    int id, ready; /* the joining worker that is being served, or -1. ready: it waits for the entry. */
    long turn;     /* number of joining workers that got an id here */
    int want_snap, snap_users;
    unsigned char *snap;
    size_t snap_bytes;
    uint64_t snap_number;
    ddp__rest_copy *rest; /* for the last worker that entered, or NULL */
    uint64_t rest_number; /* ddp__worker.rest of that entry */
    int rest_age;         /* periods since then */
    double rest_until;    /* until when it is offered at least: members may train some periods before the
                             worker asks for it */
} ddp__join;

/* Serves joining workers from now on. The wire must be one that can resume. */
DDP_LIB ddp_status ddp__join_open(const ddp__join_config *c, ddp__wire *wire, ddp__join **out,
                                  ddp_error *err);
/* Training begins. engine and layout are borrowed, including the texts of layout. */
DDP_LIB void ddp__join_ready(ddp__join *j, ddp__engine *engine, const ddp__join_layout *layout);
/* Call it before the engine closes: stops serving joining workers. j may be NULL, here and below. */
DDP_LIB void ddp__join_stop(ddp__join *j);
DDP_LIB void ddp__join_close(ddp__join *j);
DDP_LIB void ddp__join_disown(ddp__join *j); /* in a forked child: closes the descriptors */
DDP_LIB int ddp__join_wants(ddp__join *j);   /* 1 if a joining worker waits for a clone */
/* Offers the state s to joining workers. If memory is short, it logs a warning and makes no clone. */
DDP_LIB ddp_status ddp__join_give(ddp__join *j, const ddp__worker *s, ddp_error *err);
/* Offers the rest of the state s to the worker that has entered, for peer_timeout_s and until the second call
 * of ddp__join_aged. */
DDP_LIB ddp_status ddp__join_rest(ddp__join *j, const ddp__worker *s, ddp_error *err);
DDP_LIB void ddp__join_aged(ddp__join *j); /* a period has ended */
/* Bytes of the piece of a rest of `bytes` that begins at `at`. */
DDP_LIB size_t ddp__rest_piece(size_t bytes, size_t at);
DDP_LIB int ddp__join_next(ddp__join *j); /* the joining worker that may enter here, or -1 */
/* Admits a worker. Called by all members, with nothing in flight. *in: 1 = admitted, 0 = lost. Then call
 * ddp__worker_enter, as the joining worker does. */
DDP_LIB ddp_status ddp__join_admit(ddp__join *j, int id, int *in, ddp_error *err);

/* ---- joining workers (joiner.c) ---- */

typedef struct ddp__join_place {
    int code, id, world, coordinator, min_world;
    int chosen[DDP__JOIN_CHOSEN]; /* of the layout of the run */
    uint64_t live;
    ddp__addr address[DDP__JOIN_WORLD];
} ddp__join_place;

typedef struct ddp__joiner { /* until it has joined */
    ddp__join_config c;
    int fd;         /* connection to the coordinator, or -1 */
    int connected;  /* 1: the last request reached a listener */
    int *stop;      /* atomic, 1 ends a request. NULL: never. */
    ddp__tls *tls;  /* its own session. The wire's session belongs to another thread once the engine runs. */
    double beat_at; /* when it next reports to the coordinator that it lives */
    ddp__addr at[DDP__JOIN_WORLD + 8]; /* addresses of members to ask */
    int addresses;
    unsigned resolved; /* a bit for each address of c.addr that is in `at` */
    ddp__join_place place;
    int donor;
    uint64_t unreached; /* members that this worker cannot connect to directly */
    unsigned char *clone;
    size_t have, bytes;
    uint64_t number; /* number of the donor's clone, or 0 */
} ddp__joiner;

/* Sends a request to a member. Returns a connection on which the n bytes of the reply have arrived, or -1. */
DDP_LIB int ddp__joiner_request(ddp__joiner *j, const ddp__addr *to, ddp__join_verb verb, int wanted,
                                unsigned char *b, size_t n, double until, char *why);
/* Finds the run and gets an id in it: place. *out must be closed also after an error. */
DDP_LIB ddp_status ddp__joiner_open(const ddp__join_config *c, ddp__joiner **out, ddp_error *err);
DDP_LIB const ddp__join_place *ddp__joiner_found(const ddp__joiner *j); /* the place in which it enters */
/* Checks the bytes of a clone that the donor offers for s: the model limits them, or the memory if s has
 * states of the program. */
DDP_LIB ddp_status ddp__joiner_fits(const ddp__joiner *j, const ddp__worker *s, uint64_t bytes,
                                    ddp_error *err);
/* Receives a clone into s and connects to the members in place.live. *wire is for an engine that joins. Here
 * and below DDP_PEER_LOST means: call ddp__joiner_again and retry. */
DDP_LIB ddp_status ddp__joiner_prepare(ddp__joiner *j, const ddp__join_layout *layout, ddp__worker *s,
                                       double until, ddp__wire **wire, ddp_error *err);
/* Blocks until the members admit it. */
DDP_LIB ddp_status ddp__joiner_wait(ddp__joiner *j, ddp__engine *engine, ddp_error *err);
DDP_LIB void ddp__joiner_again(ddp__joiner *j);
DDP_LIB void ddp__joiner_close(ddp__joiner *j);  /* j may be NULL */
DDP_LIB void ddp__joiner_disown(ddp__joiner *j); /* in a forked child: closes the descriptor. j may be
                                                    NULL. */
