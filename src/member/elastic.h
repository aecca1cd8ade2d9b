/* Elastic worlds: a lost worker begins a new epoch, another may come in its place. What an engine has in
 * addition there: the memory of what is in flight (shadow.c), the change to a new epoch (renew.c) and the
 * search for it (epoch.c). All of it belongs to the comm thread but the part marked "shared". docs/elastic.md
 * has the protocol. */
#pragma once

#include "comm/state.h"

/* ---- elastic.c ---- */

/* Connects the wire with a worker that comes: called once, on the comm thread, before any byte of id's new
 * stream. */
typedef void (*ddp__attach_fn)(ddp__wire *w, int id, void *user);

/* For ddp__engine_config.membership, of worlds of at most 64 ids. */
DDP_LIB const struct ddp__membership *ddp__elastic_membership(void);

/* ddp__engine_admit - a new or returning worker comes into the world.
 *
 * Called by all live workers between the same two operations, with nothing in flight (else DDP_USAGE), after
 * each has a connection to id, which attach puts into the wire (NULL: it is there). Returns in the epoch with
 * id in it. If meanwhile somebody is lost the epoch is without them; if that is id itself the world goes on
 * without it: DDP_PEER_LOST, the engine is healthy.
 *
 * The newcomer opens its engine with the same world and min_world, live = those who admit it, joining = 1 and
 * a wire with their streams (streams of all others report their end at once); ddp__engine_joined waits until
 * it is in an epoch: its first operation is then the next of the others. Any thread, one call at a time. */
DDP_LIB ddp_status ddp__engine_admit(ddp__engine *e, int id, ddp__attach_fn attach, void *user,
                                     ddp_error *err);
DDP_LIB ddp_status ddp__engine_joined(ddp__engine *e, double timeout_s, ddp_error *err);

/* ---- what the files of an elastic engine share ---- */

enum {
    DDP__ELASTIC_WORLD = 64, /* a live set is one word */
    DDP__ELASTIC_SPAN = 64,  /* operations between the oldest that is kept and the youngest */
    DDP__ATTEMPTS = 16       /* live sets that a worker may have agreed to and not seen begin */
};

/* The operations that a worker has completed: all before from, and from + i where bit i is set. */
typedef struct ddp__done_set {
    uint32_t from;
    uint64_t bits;
} ddp__done_set;

typedef struct ddp__view {
    uint32_t ballot;
    uint64_t live;
} ddp__view;

/* The longest payload, that of an EPOCH frame: the view, and what each worker has completed. */
enum { DDP__WORD_BYTES = sizeof(ddp__view) + DDP__ELASTIC_WORLD * sizeof(ddp__done_set) };

/* What a worker says while an epoch is sought: the payload of a STATE frame. */
typedef struct ddp__word {
    uint32_t round;
    uint64_t vote;    /* the live set that it agrees to in this round, newcomers included */
    uint64_t joining; /* newcomers that it has a connection to */
    uint64_t left;    /* those who said goodbye */
    ddp__view base;   /* the newest epoch that it knows to have begun */
    ddp__done_set done;
    uint64_t refused;    /* a newcomer that was lost as this worker admitted it, */
    uint32_t refused_at; /* with so many operations complete */
    uint32_t attempts;   /* votes since base: epochs that may have begun unseen */
    ddp__view attempt[DDP__ATTEMPTS];
    uint64_t edge[DDP__ELASTIC_WORLD]; /* bit j of edge[i]: i and j have lost each other; of the last field
                                           as many travel as there are ids */
} ddp__word;

typedef struct ddp__elastic_peer {
    uint32_t marked; /* ballot of its last EPOCH: what follows belongs to that */
    int want_state, want_epoch, want_done;
    int heard;         /* word is of this search */
    uint64_t ready;    /* newcomers that it is ready for, */
    uint32_t ready_in; /* in that epoch */
    ddp__word word;
    ddp__done_set done; /* as far as it has told in this epoch */
    int giving;         /* a kept result is on its way to it */
    uint32_t giving_seq;
    size_t given; /* floats of it */
    unsigned char in[DDP__WORD_BYTES], out[DDP__WORD_BYTES];
    unsigned char *tail; /* payload of the frame that was half written when an epoch ended */
    char why[64];
} ddp__elastic_peer;

typedef struct ddp__kept { /* input, later result of an operation */
    ddp__frame frame;      /* of the result */
    int result;
    size_t unit, at, end; /* bytes of a value; where in the ring, and the ring's head after it */
    uint64_t asked;       /* who wants the result */
} ddp__kept;

typedef struct ddp__member_data {
    ddp__view view;                          /* the epoch in force */
    ddp__done_set table[DDP__ELASTIC_WORLD]; /* what its workers had completed when it began */
    uint32_t table_until;                    /* nobody had completed anything from here on */
    int table_used;
    int look;      /* something changed: think again */
    uint32_t seen; /* highest round heard of */
    uint64_t set;  /* who could go on, as far as this worker knows */
    double lost_at, round_at;
    double admit_at;    /* since when this worker waits for the others with a newcomer */
    double hopeless_at; /* no majority since then, or -1 */
    int why_then;       /* what ddp__hopeless said then, */
    uint64_t set_then;  /* of that set */
    ddp__word own;
    ddp__elastic_peer *peer; /* [world] */
    size_t bytes;            /* of this block */

    ddp__kept kept[DDP__ELASTIC_SPAN]; /* by seq */
    uint32_t oldest;                   /* first operation that is kept */
    size_t head, tail;                 /* of the ring, bytes ever */

    /* shared, under the engine's lock */
    unsigned char *ring;
    size_t room;
    long collectives, released; /* submitted, and no longer kept */
    int admit;                  /* 0 none, 1 asked for, 2 under way, 3 in, 4 lost */
    int admit_id;
    ddp__attach_fn attach;
    void *attach_user;
} ddp__elastic;

/* ---- shadow.c: live sets, and the memory of what is in flight ---- */
DDP_LIB uint64_t ddp__bit(int id);
DDP_LIB int ddp__lowest(uint64_t bits);
DDP_LIB int ddp__bit_count(uint64_t bits);
/* Room for so many bytes, in place of what there was. */
DDP_LIB ddp_status ddp__shadow_room(ddp__engine *e, size_t room, ddp_error *err);
/* Under the lock, before a message is queued: room for it; waits if the ring has to grow. */
DDP_LIB ddp_status ddp__shadow_fit(ddp__engine *e, const ddp_message *m, ddp_error *err);
DDP_LIB int ddp__shadow_may(ddp__engine *e, const ddp__op *op); /* it may begin now */
/* An operation begins: its input is kept, or it goes the way of one that another worker has completed. Again:
 * in a new epoch, with the residual and the owner's state as they were, unless it is complete elsewhere: then
 * its residual is part of the result. */
DDP_LIB void ddp__shadow_began(ddp__engine *e, ddp__op *op, int again);
DDP_LIB void ddp__shadow_restore(ddp__engine *e, const ddp__op *op); /* values back in place */
DDP_LIB void ddp__shadow_result(ddp__engine *e, ddp__op *op);        /* keeps its result */
DDP_LIB void ddp__shadow_release(ddp__engine *e); /* forgets what every live worker has completed */
DDP_LIB int ddp__shadow_busy(const ddp__engine *e);
DDP_LIB void ddp__shadow_asked(ddp__engine *e, int peer, uint32_t seq);
DDP_LIB int ddp__shadow_frame(ddp__engine *e, int peer, ddp__frame *f);  /* a chunk of what that peer asked
                                                                            for */
DDP_LIB int ddp__handed_wanted(ddp__engine *e, int peer, ddp__frame *f); /* the next WANT */

/* ---- renew.c: from one epoch to the next ---- */
DDP_LIB void ddp__edge_add(ddp__word *w, int a, int b);
DDP_LIB void ddp__epoch_lost(ddp__engine *e, int peer, const char *why);
DDP_LIB const char *ddp__epoch_why(const ddp__engine *e, int peer);
DDP_LIB int ddp__of_epoch(const ddp__frame *f); /* it counts in the epoch alone in which it was sent */
DDP_LIB void ddp__epoch_freeze(ddp__engine *e, double now); /* lets go of all that is half done */
/* Begins an epoch: table is what its workers have completed. */
DDP_LIB void ddp__epoch_install(ddp__engine *e, const ddp__view *view, const ddp__done_set *table,
                                double now);

/* ---- epoch.c: the search for the next one ---- */
/* What another worker knows, and a decision. */
DDP_LIB void ddp__state_read(ddp__engine *e, int peer, const ddp__word *w, double now);
DDP_LIB void ddp__decision_read(ddp__engine *e, int peer, const ddp__view *view, const ddp__done_set *table,
                                double now);
/* Once a round of the comm thread: newcomers, and votes where something changed; and time limits. */
DDP_LIB void ddp__epoch_run(ddp__engine *e, double now);
DDP_LIB void ddp__epoch_check(ddp__engine *e, double now, double *again);
DDP_LIB void ddp__epoch_stopped(ddp__engine *e, double seconds, double now);
