/* Elastic worlds: losing a worker begins a new epoch, and another worker may join in its place. Declares the
 * parts that an elastic engine has in addition: the memory of operations in flight (shadow.c), the change to
 * a new epoch (renew.c) and the search for it (epoch.c). Everything belongs to the comm thread, except for
 * the part marked "shared". docs/explanation/elastic-protocol.md describes the protocol. */
#pragma once

#include "comm/state.h"

/* ---- elastic.c ---- */

/* Adds the streams of a joining worker to the wire. Called once, on the comm thread, before the first byte of
 * id's new stream. */
typedef void (*ddp__attach_fn)(ddp__wire *w, int id, void *user);

/* The membership for ddp__engine_config.membership, for worlds of at most 64 ids. */
DDP_LIB const struct ddp__membership *ddp__elastic_membership(void);

/* ddp__engine_admit - admits a new or returning worker to the world.
 *
 * All live workers call it between the same two operations, with nothing in flight (else DDP_USAGE), after
 * each has a connection to id. attach adds that connection to the wire (NULL if it is there). Returns in the
 * epoch that includes id. If a worker is lost meanwhile, the epoch does not include it. If id itself is lost,
 * the world continues without it: returns DDP_PEER_LOST, and the engine stays healthy.
 *
 * The joining worker opens its engine with the same world and min_world, live = the workers that admit it,
 * joining = 1 and a wire with their streams (streams of all other ids report their end at once).
 * ddp__engine_joined waits until it is in an epoch. Its first operation is then the next operation of the
 * others. Any thread, one call at a time. */
DDP_LIB ddp_status ddp__engine_admit(ddp__engine *e, int id, ddp__attach_fn attach, void *user,
                                     ddp_error *err);
DDP_LIB ddp_status ddp__engine_joined(ddp__engine *e, double timeout_s, ddp_error *err);

/* ---- data and functions that the files of an elastic engine share ---- */

enum {
    DDP__ELASTIC_WORLD = 64, /* a live set is one 64-bit word */
    DDP__ELASTIC_SPAN = 64,  /* operations from the oldest that is retained to the youngest */
    DDP__ATTEMPTS = 16       /* live sets that a worker may have voted for without seeing the epoch begin */
};

/* The operations that a worker has completed: all before from, and from + i if bit i is set. */
typedef struct ddp__done_set {
    uint32_t from;
    uint64_t bits;
} ddp__done_set;

typedef struct ddp__view {
    uint32_t ballot;
    uint64_t live;
} ddp__view;

/* The longest payload, of an EPOCH frame: the view, and the operations that each worker has completed. */
enum { DDP__WORD_BYTES = sizeof(ddp__view) + DDP__ELASTIC_WORLD * sizeof(ddp__done_set) };

/* The knowledge that a worker shares during the search for an epoch: the payload of a STATE frame. */
typedef struct ddp__word {
    uint32_t round;
    uint64_t vote;    /* the live set that it votes for in this round, joining workers included */
    uint64_t joining; /* joining workers that it has a connection to */
    uint64_t left;    /* workers that announced that they leave */
    ddp__view base;   /* the newest epoch that it knows to have begun */
    ddp__done_set done;
    uint64_t refused;    /* joining workers that were lost while this worker admitted them, */
    uint32_t refused_at; /* when it had completed this number of operations */
    uint32_t attempts;   /* votes since base: epochs that may have begun without this worker's knowledge */
    ddp__view attempt[DDP__ATTEMPTS];
    uint64_t edge[DDP__ELASTIC_WORLD]; /* bit j of edge[i]: i and j have lost each other. A frame has an
                                          element per id of the world. */
} ddp__word;

typedef struct ddp__elastic_peer {
    uint32_t marked; /* ballot of its last EPOCH frame, which all later frames belong to */
    int want_state, want_epoch, want_done;
    int heard;         /* 1: `word` belongs to this search */
    uint64_t ready;    /* joining workers that it is ready to admit, */
    uint32_t ready_in; /* in that epoch */
    ddp__word word;
    ddp__done_set done; /* as far as it has reported in this epoch */
    int giving;         /* 1 if a retained result is being sent to it */
    uint32_t giving_seq;
    size_t given; /* floats of that result sent */
    unsigned char in[DDP__WORD_BYTES], out[DDP__WORD_BYTES];
    unsigned char *tail; /* payload of the frame that was half written when an epoch ended */
    char why[64];
} ddp__elastic_peer;

typedef struct ddp__kept { /* retained input, later result, of an operation */
    ddp__frame frame;      /* header for the result */
    int result;
    size_t unit, at, end; /* bytes per value, offset in the ring, and the head of the ring after it */
    uint64_t asked;       /* workers that requested the result */
} ddp__kept;

typedef struct ddp__member_data {
    ddp__view view;                          /* the epoch in force */
    ddp__done_set table[DDP__ELASTIC_WORLD]; /* operations that its workers had completed when it began */
    uint32_t table_until;                    /* no worker had completed an operation from here on */
    int table_used;
    int look;      /* 1: something changed: repeat the search */
    uint32_t seen; /* highest round seen */
    uint64_t set;  /* workers that could continue, as far as this worker knows */
    double lost_at, round_at;
    double admit_at;    /* since when this worker has waited for the others to be ready to admit */
    double hopeless_at; /* no quorum since then, or -1 */
    int why_then;       /* result of ddp__hopeless at that time, */
    uint64_t set_then;  /* for this set */
    ddp__word own;
    ddp__elastic_peer *peer; /* [world] */
    size_t bytes;            /* size of this block */

    ddp__kept kept[DDP__ELASTIC_SPAN]; /* by seq */
    uint32_t oldest;                   /* first operation that is retained */
    size_t head, tail;                 /* of the ring, in bytes since the start */

    /* shared, under the engine's lock */
    unsigned char *ring;
    size_t room;
    long collectives, released; /* collectives submitted, and no longer retained */
    int admit;                  /* 0 none, 1 requested, 2 in progress, 3 admitted, 4 lost */
    int admit_id;
    ddp__attach_fn attach;
    void *attach_user;
} ddp__elastic;

/* ---- shadow.c: live sets, and the memory of operations in flight ---- */
DDP_LIB uint64_t ddp__bit(int id);
DDP_LIB int ddp__lowest(uint64_t bits);
DDP_LIB int ddp__bit_count(uint64_t bits);
/* Replaces the ring by one of room bytes. */
DDP_LIB ddp_status ddp__shadow_room(ddp__engine *e, size_t room, ddp_error *err);
/* Makes room for a message before it is queued. Waits if the ring must grow. Under the lock. */
DDP_LIB ddp_status ddp__shadow_fit(ddp__engine *e, const ddp_message *m, ddp_error *err);
DDP_LIB int ddp__shadow_may(ddp__engine *e, const ddp__op *op); /* 1 if it may begin now */
/* An operation begins: retains its input, or sets the algorithm that receives the result if another worker
 * has completed it. again: it restarts in a new epoch, with the residual and the owner's state restored. If
 * it is complete elsewhere they are not restored: its residual is then part of the result. */
DDP_LIB void ddp__shadow_began(ddp__engine *e, ddp__op *op, int again);
DDP_LIB void ddp__shadow_restore(ddp__engine *e, const ddp__op *op); /* restores the input values in place */
DDP_LIB void ddp__shadow_result(ddp__engine *e, ddp__op *op);        /* retains its result */
DDP_LIB void ddp__shadow_release(ddp__engine *e); /* releases all operations that every live worker has
                                                     completed */
DDP_LIB int ddp__shadow_busy(const ddp__engine *e);
DDP_LIB void ddp__shadow_asked(ddp__engine *e, int peer, uint32_t seq);
DDP_LIB int ddp__shadow_frame(ddp__engine *e, int peer, ddp__frame *f);  /* the next chunk of the results that
                                                                            the peer requested */
DDP_LIB int ddp__handed_wanted(ddp__engine *e, int peer, ddp__frame *f); /* the next WANT frame */

/* ---- renew.c: the change from one epoch to the next ---- */
DDP_LIB void ddp__edge_add(ddp__word *w, int a, int b);
DDP_LIB void ddp__epoch_lost(ddp__engine *e, int peer, const char *why);
DDP_LIB const char *ddp__epoch_why(const ddp__engine *e, int peer);
DDP_LIB int ddp__of_epoch(const ddp__frame *f); /* 1 if the frame is valid only in the epoch in which it was
                                                   sent */
DDP_LIB void ddp__epoch_freeze(ddp__engine *e, double now); /* stops all collectives and drops what is half
                                                               done */
/* Begins an epoch. table: the operations that the workers of the epoch have completed. */
DDP_LIB void ddp__epoch_install(ddp__engine *e, const ddp__view *view, const ddp__done_set *table,
                                double now);

/* ---- epoch.c: the search for the next epoch ---- */
/* Handle a STATE frame of another worker, and a decision (EPOCH frame). */
DDP_LIB void ddp__state_read(ddp__engine *e, int peer, const ddp__word *w, double now);
DDP_LIB void ddp__decision_read(ddp__engine *e, int peer, const ddp__view *view, const ddp__done_set *table,
                                double now);
/* Once per round of the comm thread: run admits joining workers, and votes if something changed. check
 * handles time-outs. */
DDP_LIB void ddp__epoch_run(ddp__engine *e, double now);
DDP_LIB void ddp__epoch_check(ddp__engine *e, double now, double *again);
DDP_LIB void ddp__epoch_stopped(ddp__engine *e, double seconds, double now);
