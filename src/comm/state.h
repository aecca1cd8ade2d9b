/* What the files of the engine share, in the order in which they call each other: each uses those above it.
 * Everything here but the part marked "shared" belongs to the thread that drives the engine: the comm thread,
 * or the caller of a blocking call while the comm thread is parked. */
#pragma once

#include "comm/engine.h"
#include "comm/frame.h"

/* Lanes of messages between two: send, urgent send, push and ask, answer; what is urgent waits for nothing
 * else. */
enum {
    DDP__LANE_URGENT = 1,
    DDP__LANE_SERVE = 2,
    DDP__LANE_ANSWER = 3,
    DDP__LANES = 4,
    DDP__PAIRED = 2 * DDP__LANES,          /* in each lane a send and a receive are in flight */
    DDP__ROWS = DDP__WINDOW + DDP__PAIRED, /* one per window position, then as in paired, of lanes in use */
    DDP__SLOTS_MAX = 256,
    DDP__FEW = 3,          /* few: to a process of this machine; more would leave its caches
                                           unread */
    DDP__SPANS = 2048,     /* that are kept */
    DDP__STRIPS_MIN = 4096 /* pieces of all queued messages together */
};
#define DDP__STAGING_BYTES ((size_t)1 << 20)  /* slots of one peer, with what the wire takes for it */
#define DDP__CHUNK_SMALL   ((size_t)32 << 10) /* with these DDP__WINDOW operations are in flight, else 4 */

typedef struct ddp__strip { /* a piece and where it starts within its message */
    unsigned char *data;
    size_t start, count;
} ddp__strip;

typedef struct ddp__strips { /* the memory of a message, in order */
    ddp__strip *strip;
    int count;
} ddp__strips;

typedef struct ddp__chain {
    int first, last;
} ddp__chain; /* slots, each with the next; -1: there are none */

typedef enum ddp__op_state { DDP__OP_FREE, DDP__OP_QUEUED, DDP__OP_ACTIVE, DDP__OP_DONE } ddp__op_state;

typedef struct ddp__op {
    ddp_message m;
    const struct ddp__algorithm *way;
    ddp__strips from, to; /* the same where the message is in place */
    size_t unit;          /* bytes of a value */
    float scale;          /* m.scale, or the mean of the epoch it runs in */
    long strips_end;      /* the pool is free up to here once this operation is the oldest */
    size_t n;             /* values */
    long ticket;
    uint32_t seq; /* among collectives, or among sends or receives with m.peer */
    int p2p, row;
    int done, released; /* shared: under the lock */
    ddp__op_state state;
    size_t reduced; /* values of the own segment that are final */
    size_t left;    /* values still to send or to receive */
    int missing;    /* ranks that must send something and have not sent anything */
    double active_at, waiting_since, last_move;
    double clock;      /* when the first rank began it, as far as is known here */
    double note_s;     /* the next line about its standing still is due after so long */
    ddp__op_span span; /* shared: under the lock, except bytes and peer_wait before done */
    int64_t bytes;
    double peer_wait;
    union { /* what only its algorithm knows */
        struct {
            size_t sums_left, results_left; /* values not yet given to the next rank */
            size_t to_come;                 /* values the rank before has still to send */
            ddp__chain sums;                /* slots with partial sums to be sent on */
        } ring;
        struct {
            int state;
            size_t next; /* chunks of the own segment taken so far, in order */
        } share;
        struct {
            int donor; /* who hands over its result */
            int asked; /* it was asked */
        } handed;
        struct {
            int sites, members, slices; /* that live; of the own site; that cross sites side by side */
            size_t summed;              /* values of the own slice that are the site's sum */
        } sites;
    } u;
    uint64_t *sums;            /* one hash per chunk of from; NULL: writes are not checked */
    struct ddp__op *next_done; /* complete, not yet published */
} ddp__op;

/* Between one operation and one peer; offsets in values. */
typedef struct ddp__exchange {
    int held;     /* the peer's staging slots that this operation occupies */
    int expected; /* the peer has to send something and nothing came so far */
    int seen;     /* something came: the peer has begun it */
    double divergence;
    union {
        struct {             /* of a ring: of the segment with the peer's number */
            size_t sent;     /* contribution or data, bytes fully taken by the wire or under way */
            size_t results;  /* own finished values given to that peer */
            size_t taken;    /* contribution of the peer, summed */
            size_t finished; /* data, or results of the peer's segment, stored */
        } flow;
        struct {
            int frames;       /* sent so far */
            int over;         /* it has added up its last chunk */
            int row;          /* of its offer */
            size_t complaint; /* 1 + where its values are not those that it submitted */
        } share;
    } u;
} ddp__exchange;

typedef struct ddp__slot {
    ddp__frame f;
    double arrived; /* read from the wire */
    double reached; /* the emulated link's end, had nobody been late */
    int next, peer; /* next: in the free list, the pending list or the delay queue */
    float *data;
} ddp__slot;

typedef struct ddp__owed { /* slots freed but not yet given back */
    uint32_t seq;
    int p2p, count;
} ddp__owed;

/* The comm thread leaves the engine to callers until park_until, or until one that drives it signals. */
typedef enum ddp__parking {
    DDP__NOT_PARKED,
    DDP__PARKED_FOR_A_MOMENT,
    DDP__PARKED_UNTIL_SIGNAL
} ddp__parking;
typedef enum ddp__out_state { DDP__OUT_IDLE, DDP__OUT_SERIALISING, DDP__OUT_WRITING } ddp__out_state;
typedef enum ddp__in_state { DDP__IN_HEAD, DDP__IN_PAUSED, DDP__IN_PAYLOAD } ddp__in_state;

typedef struct ddp__peer {
    /* outgoing */
    ddp__out_state out_state;
    double release; /* emulated links: when what is being serialised has left */
    ddp__frame out;
    ddp__op *out_op;      /* whose memory is the payload; NULL: control */
    int out_slot;         /* the payload is here instead, or -1 */
    uint16_t *coded;      /* or here, if out.coding; [chunk], NULL without cfg.coding */
    const char *out_text; /* or here, if there is no out_op */
    unsigned char out_head[DDP__FRAME_BYTES];
    size_t out_sent, out_total;
    int held_collective, held_p2p[DDP__LANES], granted; /* granted: the peer's `more` */
    int want_heartbeat, want_abort, want_goodbye, want_farewell;
    int send_dead; /* the wire takes no more; the reading side says why */
    double last_beat;
    ddp__owed owed[DDP__SLOTS_MAX];
    int owed_count;
    double owed_by; /* when they go back at the latest; 0 = not known yet */
    /* incoming */
    ddp__in_state in_state;
    ddp__frame in;
    unsigned char in_head[DDP__FRAME_BYTES];
    size_t in_got;
    uint32_t in_sum; /* CRC-32C of the payload's first in_got bytes, if in.check */
    int in_slot;     /* -1: straight into in_op's memory, or control */
    ddp__op *in_op;
    int discard; /* the frame that is being read counts for nothing */
    double last_got;
    uint32_t transit;                 /* microseconds from sent to read, plus the difference of the clocks, */
    double transit_at;                /* of the quickest frame so far; 0: none yet */
    double reached;                   /* by the last frame: those of one peer stay in order */
    int free_slot, solicited, staged; /* slots in use, by kind of frame */
    ddp__chain pending;
    int goodbye_read, abort_read, left, farewell, closed;
    int out_of_world;                 /* membership: nothing it says counts */
    uint32_t paired_seq[DDP__PAIRED]; /* of the next */
    uint32_t begun, sends, receives;  /* what it has begun, by its last heartbeat ... */
    double heard_at;                  /* ... read then; 0 = none yet */
    ddp__op *paired[DDP__PAIRED];     /* oldest not yet complete: send, receive; of each lane */
    char text[DDP_ERROR_TEXT];
} ddp__peer;

typedef struct ddp__control { /* a control frame in the delay queue */
    ddp__frame f;
    int peer;
    double due;
} ddp__control;

enum { DDP__GROUPS = 64, DDP__GROUP_SHIFT = 26 }; /* groups, the world included; see ddp__seq */

/* The ranks that a collective runs over, rising, and where in them a rank is, or -1. */
typedef struct ddp__members {
    int members;
    const int *member, *place;
} ddp__members;

/* One way in which the values of an operation travel. The operations of one number take the same on all
 * ranks. Frames of an operation come from one peer in the order in which it sent them. */
typedef struct ddp__algorithm {
    char letter;
    const char *name;
    unsigned types; /* of the frames that peers send: 1 << DDP__FRAME_PART, ... */
    int whole;      /* every rank sums all values, which are the segment of each */
    int stages;     /* contributions stay pending until those of all are here */
    int relays;     /* sums are sent on from the slot that they came in, from rank to rank */
    /* 1 if it is for this operation, whose message is known, not yet its memory. NULL: the last, for what is
     * left. */
    int (*fits)(const ddp__engine *e, const ddp__op *op);
    /* The values that go to a peer, or (comes) that it sends: their number, and where they are. Where they
     * are summed and go back (ddp__flow_returns) these are also those that it gives back, or gets. NULL: they
     * go otherwise. */
    size_t (*part)(const ddp__engine *e, const ddp__op *op, int peer, int comes, size_t *from, size_t *to);
    /* Counts what is left, and who has to send something. */
    void (*begin)(ddp__engine *e, ddp__op *op);
    /* The next frame for a peer, credits allowing; 0: none. NULL: it sends none. */
    int (*next)(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
    /* That frame begins to be written; the slot that holds its payload, or -1: it is in memory. */
    int (*leaves)(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f);
    /* It was written. NULL: that is so much less to do. */
    void (*sent)(ddp__engine *e, ddp__op *op, const ddp__frame *f, double now);
    /* 1 if a frame of the operation's number, verb, count and layer is one that a peer could send. NULL: by
     * `types`. */
    int (*agrees)(const ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f);
    /* It is here: staged in a slot, which is the algorithm's then (one that stages contributions finds them
     * in the list of pending ones), or (-1) in memory already. */
    void (*arrived)(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f, double now);
    /* Something is left that needs a slot at that peer. NULL: never. */
    int (*unsent)(ddp__engine *e, const ddp__op *op, int peer);
    /* Nothing has still to come from that peer, or to go there. */
    int (*over)(ddp__engine *e, const ddp__op *op, int peer);
    /* Complete, or given up: nobody touches its memory from here on. May be NULL. */
    void (*finished)(ddp__engine *e, const ddp__op *op);
} ddp__algorithm;

enum { DDP__WAYS = 6 };

/* What an engine asks of a membership, where a lost peer is no error. All but fits is the comm thread's. */
typedef struct ddp__membership {
    ddp_status (*open)(ddp__engine *e, ddp_error *err); /* memory; who is live from the start */
    void (*close)(ddp__engine *e);
    /* Under the lock, before a message is queued: it can be kept; may wait. */
    ddp_status (*fits)(ddp__engine *e, const ddp_message *m, ddp_error *err);
    /* 1 if the operation may begin now. */
    int (*may_begin)(ddp__engine *e, const ddp__op *op);
    /* It has its number, and begins (again): who keeps its input, and which way it goes (op->way). */
    void (*began)(ddp__engine *e, ddp__op *op, int again);
    void (*done)(ddp__engine *e, ddp__op *op);
    /* A peer was lost, or has left while somebody needs it. */
    void (*lost)(ddp__engine *e, int peer, const char *why);
    void (*left)(ddp__engine *e, int peer);
    /* Frames of its own (types from DDP__FRAME_STATE to DDP__FRAME_WANT, and kept results): the next one for
     * a peer, urgent or not; where a payload goes, NULL: it fits none; it was read. */
    int (*frame)(ddp__engine *e, int peer, int urgent, ddp__frame *f);
    unsigned char *(*payload)(ddp__engine *e, int peer, const ddp__frame *f);
    void (*read)(ddp__engine *e, int peer, const ddp__frame *f, double now);
    /* 1 if a frame belongs to a past epoch, or comes from nobody who counts. */
    int (*drops)(const ddp__engine *e, int peer, const ddp__frame *f);
    /* Once a round; its time limits. */
    void (*run)(ddp__engine *e, double now);
    void (*check)(ddp__engine *e, double now, double *again);
    /* This process was stopped for `seconds`, which do not count for any time limit. */
    void (*stopped)(ddp__engine *e, double seconds, double now);
    /* Others may need a result of this one: it cannot close yet. */
    int (*busy)(const ddp__engine *e);
} ddp__membership;

struct ddp__engine {
    ddp__engine_config cfg;
    const ddp__membership *membership;    /* NULL: a lost peer is an error */
    struct ddp__member_data *member_data; /* what it keeps */
    int frozen;                           /* membership: nothing but its frames moves */
    int newcomer;                         /* membership: in no epoch yet */
    int silent;                           /* membership: what ended this engine concerns nobody else */
    ddp__wire *wire;
    int rank, world;
    int *member; /* ids that are live, rising; collectives run over them */
    int *place;  /* [world] index in member, -1: not live. Both: behind it those of each
                                         group */
    int members;
    int blocks;      /* ids below it may be among them: the world, behind ddp__engine_retire
                                         the workers */
    int knows_sites; /* ddp__engine_sites was called; [world] each: its sites; of the living,
                                         the place */
    int *site, *site_place, *site_part;    /* in its site, and among those of that place; */
    int *site_side;                        /* ranks whose chunks are added up */
    const ddp__algorithm *ways[DDP__WAYS]; /* in the order in which they are asked */
    ddp__links links;                      /* all zero: none are emulated */
    int shaped, paced;                     /* frames pass the delay queue; the emulated uplink */
    int checks;                            /* payloads leave with a checksum */
    int stalled;                           /* nothing passes the emulated access link now */
    int acted;                             /* acts of the script that are over */
    size_t chunk;                          /* floats */
    /* all-reduces from here on are rings; up to here full exchanges; from here on summed in place, among
     * threads */
    size_t ring_bytes, full_bytes, share_bytes;
    int lanes;                 /* that are in use: 2, or all */
    int credits, extra, slots; /* for each peer: for frames that need one, for results, all */
    int more, few;             /* credits beyond those, as heartbeats tell; most slots there of an
                                         operation */
    int width;                 /* collectives in flight, at most DDP__WINDOW */
    size_t block_bytes;

    ddp__op *ops;       /* ring of cfg.queue, by ticket */
    ddp__strip *strips; /* [strip_room] of all queued messages: of the block, or grown */
    long strip_room;
    int strips_grown;
    ddp__peer *peers;
    ddp__exchange *rows;   /* DDP__ROWS x world */
    ddp__slot *slot;       /* world x slots */
    ddp__control *control; /* ring of the delay queue */
    int control_room, control_first, control_count;
    ddp__chain due; /* delay queue of slots, in order of reached */
    unsigned char *want_send, *want_recv;
    const float **terms;
    float *rounded;         /* [chunk] own values as they travel; NULL: no coding */
    uint16_t *recoded;      /* [chunk] blocks to be read; NULL without them */
    float *exact;           /* [chunk] a result before it was rounded; the same */
    unsigned char *sink;    /* [chunk] bytes that nobody reads */
    uintptr_t looked_at[2]; /* pages of from and to that are there; until it waits */

    ddp__op *window[DDP__WINDOW];
    ddp__op *carried;                 /* of a carrier: the last message between two that has begun */
    long taken;                       /* tickets below were seen by the comm thread */
    long begun;                       /* emulated links: tickets below had their time of submission */
    long queued_from;                 /* no queued operation below this ticket */
    uint32_t next_seq;                /* of the next collective to become active */
    uint32_t retired_at;              /* of the first that is among the workers alone, where blocks < world */
    uint32_t group_next[DDP__GROUPS]; /* the same of each group but 0, the world */
    int *ring, *turn;                 /* live ids in ring order, and where in it an id is */
    int *order;                       /* [world] ring order of all ids */
    long waiting[DDP__WINDOW];        /* tickets of collectives that wait for another; */
    int waits;                        /* each has a position of the window reserved */
    int dirty;                        /* a position or a queued operation may have become free */
    ddp__op *finished;                /* complete, to be published */
    int running;                      /* operations between first and last byte */
    double running_since;
    int up_waiting;  /* a frame may wait until the uplink is free */
    ddp_error fault; /* what ended this engine */
    int fault_origin;
    int fault_about; /* rank whose loss the fault is; -1: it is another fault, or nobody knows */
    double last_move;
    int closing, stopping; /* goodbye was queued; close was called */
    double next_check;     /* when liveness is to be looked at again */
    double ran_at;         /* start of the last round: a longer gap than usual is a stop of this
                                         process */

    /* shared, under lock */
    pthread_mutex_t lock;
    char (*called)[48]; /* [world] what a rank is beside its number; "": nothing */
    int groups;         /* made so far, the world included */
    int group_members[DDP__GROUPS];
    pthread_cond_t changed;
    pthread_t thread;
    ddp_error error;     /* first failure or request to abort */
    int begun_wire;      /* the wire's begin has returned */
    int retires;         /* ddp__engine_retire waits */
    int tight;           /* a message waits for room in the queue */
    int quiet;           /* the comm thread will not touch memory again */
    ddp__parking parked; /* the comm thread leaves the engine to a caller */
    int driven;          /* a caller moves the bytes */
    double park_until;   /* when the comm thread resumes, unless a caller drives */
    pthread_cond_t park;
    int stop, sleeping;
    long submitted, first; /* tickets [first, submitted) are not all done */
    float nothing;         /* 0: what the request of a pull consists of */
    long strips_head, strips_tail;
    ddp__op_span *spans;
    long span_count;
    int span_room, group_room;
    ddp__net_stats stats; /* but for its bytes: the comm thread writes these, atomically */
    int64_t bytes_sent, bytes_received, sent_as[DDP__AS_BYTES + 2];
    ddp__oplog *wanted; /* somebody waits for a copy of the log */
    ddp__epoch_info epoch;
    uint64_t *sums;               /* cfg.queue x sums_room hashes; NULL: writes are not checked */
    size_t sums_room, sums_count; /* for messages of up to sums_count floats */
};

/* ---- operation.c ---- */
/* "layer h.0.mlp", "all layers", "a barrier", "a plain buffer" ...; "all-reduce of layer h.0.mlp (step
 * 12)". */
DDP_LIB const char *ddp__no_layer_text(int layer);
DDP_LIB const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room);
DDP_LIB const char *ddp__op_text(const ddp__engine *e, const ddp__op *op, char *buf, size_t room);
/* "rank 6", or "stage 2 of pipeline 1 (rank 6)". Not under the lock. */
DDP_LIB const char *ddp__rank_text(ddp__engine *e, int rank, char *buf, size_t room);
/* The next fault is the loss of this rank; nothing after the first fault. */
DDP_LIB void ddp__fault_is_about(ddp__engine *e, int rank);
DDP_LIB int ddp__fault(ddp__engine *e, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4); /* 0 */
/* Under the lock; the comm thread has to look. */
DDP_LIB void ddp__notify(ddp__engine *e);
/* Under the lock, which it lets go of: until something has changed; until the carrier's time, if any, is the
 * caller's. */
DDP_LIB void ddp__await(ddp__engine *e);
DDP_LIB void ddp__catch_up(ddp__engine *e);
DDP_LIB ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer);
DDP_LIB ddp__members ddp__team_of(const ddp__engine *e, const ddp__op *op);
DDP_LIB int ddp__takes_part(const ddp__engine *e, const ddp__op *op, int peer); /* and is another rank */
/* These ids are live from now on: under the lock where the engine runs. */
DDP_LIB void ddp__members_set(ddp__engine *e, uint64_t live);
/* The number of a group's collective: the group in the upper bits, so that frames and staging tell operations
 * of unlike groups apart; all bits count where there is a membership and no group. */
DDP_LIB uint32_t ddp__seq(const ddp__engine *e, int group, uint32_t next);
/* 1 if a collective's number was given out before. */
DDP_LIB int ddp__seq_past(const ddp__engine *e, uint32_t seq);
DDP_LIB const ddp__algorithm *ddp__way_of(const ddp__engine *e, const ddp__op *op);
DDP_LIB int ddp__sums(const ddp__op *op); /* all-reduce or reduce-scatter */
/* Whose memory a broadcast spreads: m.peer's, or that of the lowest live id. */
DDP_LIB int ddp__root(const ddp__engine *e, const ddp__op *op);
/* Segment of rank `of`: what it sums in an all-reduce, its block in an all-gather. */
DDP_LIB void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to);
DDP_LIB size_t ddp__segment_length(const ddp__engine *e, const ddp__op *op, int of);
DDP_LIB int ddp__segment_of(const ddp__engine *e, const ddp__op *op, size_t offset);
/* The lane of a message between two, and its place in ddp__peer.paired. */
DDP_LIB int ddp__paired_lane(const ddp__op *op);
DDP_LIB int ddp__paired(const ddp__op *op);
/* The operation in flight that a peer's frame belongs to, or NULL. */
DDP_LIB ddp__op *ddp__find_op(ddp__engine *e, int peer, const ddp__frame *f);
DDP_LIB void ddp__describe(ddp__frame *f, const ddp__op *op, int type, size_t offset, size_t count);
/* 1 if a limit has passed; else *again is to be no later than that. */
DDP_LIB int ddp__passed(double limit, double now, double *again);
DDP_LIB double ddp__still_since(const ddp__op *op); /* since when an operation has not moved */
/* Subtracts values from what is left; completes the operation at zero, which stays valid until the round's
 * end. */
DDP_LIB void ddp__op_advance(ddp__engine *e, ddp__op *op, size_t values);
/* So many bytes of it have been sent, coded so. */
DDP_LIB void ddp__count_sent(ddp__engine *e, ddp__op *op, int coding, int64_t bytes);
/* First sign of an operation on this rank, and the end of any wait for a peer. */
DDP_LIB void ddp__op_moves(ddp__engine *e, ddp__op *op, double now);
/* That peer has to send something, to be called in begin; it has begun it. */
DDP_LIB void ddp__op_expect(ddp__engine *e, ddp__op *op, int peer);
DDP_LIB void ddp__op_seen(ddp__engine *e, ddp__op *op, int peer);
/* A peer has left: what still needs it fails, or a membership is told. */
DDP_LIB void ddp__check_left(ddp__engine *e, int peer);
/* A serve without a request is over, as is an answer to a peer that is lost; 0: it is neither, and fails. */
DDP_LIB int ddp__op_void(ddp__engine *e, ddp__op *op);

/* ---- memory.c ---- */
/* own = scale * (terms[0] + ... + terms[count - 1]) of n floats, added in that order; own may be one of them.
 * Where divergence is not NULL, here and below, sum((new - old)^2) over the overwritten values is added to
 * it. */
DDP_LIB void ddp__floats_sum(float *own, const float *const *terms, int count, size_t n, float scale,
                             double *divergence);
DDP_LIB void ddp__floats_store(float *own, const float *from, size_t n, double *divergence);
DDP_LIB void ddp__floats_add(float *sum, const float *x, size_t n);
/* out = x as bfloat16, rounded to nearest even; infinities stay, NaN stay NaN. */
DDP_LIB void ddp__bfloat_halve(uint16_t *out, const float *x, size_t n);
/* out = x exactly; x may be the second half of out. */
DDP_LIB void ddp__bfloat_widen(float *out, const uint16_t *x, size_t n);
DDP_LIB void ddp__strips_close(ddp__engine *e); /* where ddp__engine_pieces made room */
/* Memory at an offset: the address, and how many values follow contiguously (at most count). */
DDP_LIB void *ddp__memory_at(const ddp__op *op, const ddp__strips *in, size_t offset, size_t count,
                             size_t *here);
/* 0 after a failure: the program has freed memory that an operation in flight uses. Asked again after each
 * wait. */
DDP_LIB int ddp__memory_there(ddp__engine *e, const ddp__op *op, size_t at);
/* Where a finished value lies and is sent from: to, or from where what comes is added to `to`. */
DDP_LIB const ddp__strips *ddp__result_of(const ddp__op *op);
/* Values from offset at on of a list, in a row; or back. */
DDP_LIB void ddp__memory_copy(const ddp__op *op, const ddp__strips *in, size_t at, size_t count, void *row,
                              int back);
/* What has come is written, or added: values and how far they were from those that stood there. */
DDP_LIB void ddp__memory_store(const ddp__op *op, size_t at, const void *data, size_t count,
                               double *divergence);
/* result = scale * (terms[0] + ... + terms[terms - 1]): e->terms, with the own values at place; it is
 * advanced. */
DDP_LIB void ddp__memory_sum(ddp__engine *e, ddp__op *op, size_t at, size_t count, int place, int terms,
                             float scale, double *divergence);
/* Detection of foreign writes. Hashes the memory of a new operation; under the lock. */
DDP_LIB void ddp__guard_all(ddp__engine *e, ddp__op *op);
DDP_LIB void ddp__guard_close(ddp__engine *e);
DDP_LIB void ddp__guard_update(ddp__engine *e, ddp__op *op, size_t offset, size_t count);
/* 1 unless the memory changed since it was hashed (op may be another rank's); ends the engine for that: 0;
 * both. */
DDP_LIB int ddp__guard_intact(ddp__engine *e, const ddp__op *op, size_t offset, size_t count);
DDP_LIB int ddp__guard_fault(ddp__engine *e, const ddp__op *op);
DDP_LIB int ddp__guard_check(ddp__engine *e, ddp__op *op, size_t offset, size_t count);
/* Adds the residual to the count values before they are summed, and clears it. Values without a gradient keep
 * theirs. */
DDP_LIB void ddp__residual_add(const ddp__op *op, size_t at, size_t count);
/* Adds it and rounds the sum, whose rest it becomes; at a block's start. 0 after a failure: one has no
 * code. */
DDP_LIB int ddp__code_input(ddp__engine *e, const ddp__op *op, size_t at, size_t count);
/* Values that do not travel as floats. The payload of a frame about to leave; 0 after a failure: one has no
 * code. */
DDP_LIB int ddp__code_frame(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f);
/* The payload read into a slot becomes floats, bfloat16 from its second half on; 0 after a failure. */
DDP_LIB int ddp__decode_slot(ddp__engine *e, int peer, ddp__slot *s);
/* Sums count values from offset at on: e->terms are the contributions, the own one's place among them is
 * filled here. */
DDP_LIB int ddp__reduce_coded(ddp__engine *e, ddp__op *op, size_t at, size_t count, int place, int terms,
                              double *divergence);

/* ---- staging.c: slots here and credits for slots there ---- */
DDP_LIB void ddp__slot_free(ddp__engine *e, int slot);
/* Puts a slot behind another of a list (-1: in front); takes one out. */
DDP_LIB void ddp__chain_add(ddp__engine *e, ddp__chain *c, int slot, int behind);
DDP_LIB void ddp__chain_remove(ddp__engine *e, ddp__chain *c, int slot);
/* The oldest staged chunk of an operation from a peer; -1 if none. */
DDP_LIB int ddp__pending(const ddp__engine *e, int peer, const ddp__op *op);
/* Room at that peer for one more chunk of an operation; forward: a sum that a ring sends on. */
DDP_LIB int ddp__may_stage(ddp__engine *e, const ddp__op *op, int peer, int forward);
DDP_LIB void ddp__hold_credit(ddp__engine *e, const ddp__op *op, int peer);
DDP_LIB void ddp__take_credit(ddp__engine *e, int peer, const ddp__frame *f);
/* Credits are to go back now. */
DDP_LIB int ddp__credit_due(const ddp__engine *e, ddp__peer *p);
/* What algorithms that have a `part` begin with, send next, count when it leaves or was stored, and find
 * unsent or over. */
DDP_LIB int ddp__flow_returns(const ddp__op *op); /* values are summed where they go, and go back as
                                                      results */
DDP_LIB void ddp__flow_begin(ddp__engine *e, ddp__op *op);
DDP_LIB int ddp__flow_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
/* Of what that peer sends `ready` values are results. */
DDP_LIB int ddp__flow_result(ddp__engine *e, ddp__op *op, int peer, size_t ready, ddp__frame *f);
DDP_LIB int ddp__flow_leaves(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f);
DDP_LIB void ddp__flow_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f,
                               double now);
DDP_LIB int ddp__flow_unsent(ddp__engine *e, const ddp__op *op, int peer);
DDP_LIB int ddp__flow_over(ddp__engine *e, const ddp__op *op, int peer);
/* A chunk at *at of a region is here, which must be the next one; 0 after a failure. The failure: 0. */
DDP_LIB int ddp__in_order(ddp__engine *e, int peer, const ddp__frame *f, size_t from, size_t to, size_t *at);
DDP_LIB int ddp__out_of_order(ddp__engine *e, int peer, const ddp__frame *f, size_t at);

/* ---- the algorithms, and the sizes up to or from which they are taken ---- */
DDP_LIB const ddp__algorithm *ddp__plain_way(void);
DDP_LIB const ddp__algorithm *ddp__sites_way(void);
DDP_LIB const ddp__algorithm *ddp__direct_way(int whole); /* 1: the full exchange */
/* Adds up the chunks of those ranks at a place, coded or times scale, and frees their slots; 0: not all are
 * here. */
DDP_LIB int ddp__sum_chunk(ddp__engine *e, ddp__op *op, const int *rank, int ranks, size_t at, size_t count,
                           int coded, float scale);
DDP_LIB size_t ddp__full_bytes(const ddp__engine *e);
DDP_LIB const ddp__algorithm *ddp__ring_way(void);
DDP_LIB size_t ddp__ring_bytes(const ddp__engine *e);
DDP_LIB void ddp__ring_reset(ddp__engine *e); /* as opened: ddp__engine_ring is undone. Under the lock */
DDP_LIB const ddp__algorithm *ddp__share_way(void);
DDP_LIB size_t ddp__share_bytes(const ddp__engine *e);  /* SIZE_MAX: the ranks are no threads */
DDP_LIB int ddp__share_run(ddp__engine *e, double now); /* adds up a few chunks; 1 if it did */

/* ---- liveness.c ---- */
/* Whether a peer has not begun an operation of this rank, as far as is known here. */
DDP_LIB int ddp__is_missing(ddp__engine *e, const ddp__op *op, int peer);
/* " during " the oldest operation that is in flight or needs that peer, " after " the last one, or "". */
DDP_LIB const char *ddp__when_text(const ddp__engine *e, int peer, char *buf, size_t room);
DDP_LIB void ddp__peer_lost(ddp__engine *e, int peer, const char *why);
/* 1 if all ranks are threads of this process: a silent one is starved, since one that ended has closed its
 * streams. 0 where links are emulated, which may stall. */
DDP_LIB int ddp__one_process(const ddp__engine *e);
/* 1 if this process did not run since the last round for longer than a heartbeat may take (SIGSTOP, a
 * suspended machine, starvation): all time limits are extended by that gap, since the peers may have been
 * stopped with it. */
DDP_LIB int ddp__was_stopped(ddp__engine *e, double now);
/* Heartbeats, silent peers, old operations; sets when to look again. */
DDP_LIB void ddp__check_liveness(ddp__engine *e, double now);

/* ---- delay.c: frames in flight on the emulated link ---- */
/* Does what the script asks for by now; returns when to look again, -1: never. */
DDP_LIB double ddp__emulate_script(ddp__engine *e, double now);
DDP_LIB uint32_t ddp__microseconds(double t); /* rounded up: a frame must not seem to arrive earlier than it
                                                 may */
/* Puts a chunk in its slot, or the control frame just read, on the emulated way. */
DDP_LIB void ddp__delay_chunk(ddp__engine *e, int slot, double now);
DDP_LIB void ddp__delay_control(ddp__engine *e, int peer, double now);
/* Arrival time of the last chunk in flight from a peer; -1: none. */
DDP_LIB double ddp__last_due(const ddp__engine *e, int peer);

/* ---- receive.c ---- */
DDP_LIB int ddp__receive_all(ddp__engine *e); /* reads what is there; 1 if anything moved */
/* Frames that have reached this rank: a chunk in its slot, a control frame. */
DDP_LIB void ddp__slot_ready(ddp__engine *e, int slot, double now);
DDP_LIB void ddp__control_ready(ddp__engine *e, int peer, const ddp__frame *f, double now);
/* Handles what came before the operation was active. */
DDP_LIB void ddp__collect_early(ddp__engine *e, ddp__op *op, double now);

/* ---- activate.c ---- */
/* Begins, or begins again in a new epoch, an operation that has its place and number. */
DDP_LIB void ddp__start(ddp__engine *e, ddp__op *op, int again, double now);
/* Fills the window and the send/recv positions from the queue. */
DDP_LIB void ddp__activate(ddp__engine *e, double now);

/* ---- send.c ---- */
/* Bytes to the wire, over all peers, or of the frame being written; 1 if anything moved. */
DDP_LIB int ddp__send_all(ddp__engine *e, double now);
DDP_LIB int ddp__continue_frame(ddp__engine *e, int peer, double now);
/* Begins to write the next frame at once, paced or not; 0 if there is none. */
DDP_LIB int ddp__start_next(ddp__engine *e, int peer, double now);
/* Before the thread sleeps: marks operations that wait for a peer. */
DDP_LIB void ddp__note_waiting(ddp__engine *e, double now);

/* ---- record.c ---- */
DDP_LIB void ddp__publish(ddp__engine *e);     /* tells the submitters what is complete */
DDP_LIB void ddp__oplog_serve(ddp__engine *e); /* under the lock: copies the log for the waiting thread */

/* ---- thread.c ---- */
/* Does what can be done now; 1 if anything moved, else *until says when to look again. */
DDP_LIB int ddp__round(ddp__engine *e, double *until);
DDP_LIB void ddp__sleep(ddp__engine *e, double until);
#define DDP__PARK_S 2e-3 /* the next blocking call is expected within */
#define DDP__DRIVE_S \
    0.1 /* a longer call returns the engine to the comm thread, whose heartbeats no caller delays */
/* Under the lock: 1 if the comm thread has work and must not sleep. */
DDP_LIB int ddp__needed(const ddp__engine *e);
DDP_LIB void *ddp__engine_main(void *engine);
