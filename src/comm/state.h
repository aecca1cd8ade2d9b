/* The data that the files of the engine share, and their functions, in the order in which they call each
 * other: each file uses those above it. Except for the part marked "shared", everything belongs to the thread
 * that drives the engine: the comm thread, or the caller of a blocking call while the comm thread is
 * parked. */
#pragma once

#include "comm/engine.h"
#include "comm/frame.h"

/* Lanes of messages between two ranks: send, high-priority send, push and request, answer. A high-priority
 * message waits for no message of another lane. */
enum {
    DDP__LANE_URGENT = 1,
    DDP__LANE_SERVE = 2,
    DDP__LANE_ANSWER = 3,
    DDP__LANES = 4,
    DDP__PAIRED = 2 * DDP__LANES,          /* per lane one send and one receive are in flight */
    DDP__ROWS = DDP__WINDOW + DDP__PAIRED, /* one row per window position, then one per entry of `paired`, of
                                              the lanes in use */
    DDP__SLOTS_MAX = 256,
    DDP__FEW = 3,          /* limit of `few` towards a process of this machine, because more chunks would
                              leave the cache before they are read */
    DDP__SPANS = 2048,     /* spans that are retained */
    DDP__STRIPS_MIN = 4096 /* pieces of all queued messages together */
};
#define DDP__STAGING_BYTES ((size_t)1 << 20)  /* slots of one peer, including the wire's memory for it */
#define DDP__CHUNK_SMALL   ((size_t)32 << 10) /* up to it DDP__WINDOW operations are in flight, else 4 */

typedef struct ddp__strip { /* a piece and its offset within the message, in values */
    unsigned char *data;
    size_t start, count;
} ddp__strip;

typedef struct ddp__strips { /* the memory of a message, in order */
    ddp__strip *strip;
    int count;
} ddp__strips;

typedef struct ddp__chain {
    int first, last;
} ddp__chain; /* a list of slots, each with the next, or -1 for empty */

typedef enum ddp__op_state { DDP__OP_FREE, DDP__OP_QUEUED, DDP__OP_ACTIVE, DDP__OP_DONE } ddp__op_state;

typedef struct ddp__op {
    ddp_message m;
    const struct ddp__algorithm *way;
    ddp__strips from, to; /* the same if the message is in place */
    size_t unit;          /* bytes per value */
    float scale;          /* m.scale, or 1 / members of the epoch that it runs in */
    long strips_end;      /* the pool of strips is free up to here when this operation is the oldest */
    size_t n;             /* number of values */
    long ticket;
    uint32_t seq; /* number among collectives, or among sends or receives with m.peer */
    int p2p, row;
    int done, released; /* shared: under the lock */
    ddp__op_state state;
    size_t reduced; /* values of this rank's segment that are final */
    size_t left;    /* values still to send or to receive */
    int missing;    /* ranks that must send something and have not begun */
    double active_at, waiting_since, last_move;
    double clock;      /* time at which the first rank started it, as far as this rank knows */
    double note_s;     /* seconds without progress until the next log line about it */
    ddp__op_span span; /* shared: under the lock, except bytes and peer_wait before done */
    int64_t bytes;
    double peer_wait;
    union { /* data of its algorithm */
        struct {
            size_t sums_left, results_left; /* values not yet passed to the next rank */
            size_t to_come;                 /* values that the previous rank has still to send */
            ddp__chain sums;                /* slots with partial sums to be sent on */
        } ring;
        struct {
            int state;
            size_t next; /* chunks of this rank's segment taken so far, in order */
        } share;
        struct {
            int donor; /* the rank that hands over its result */
            int asked; /* 1 if the result was requested from the donor */
        } handed;
        struct {
            int sites, members, slices; /* live sites, live members of this site, and slices that are summed
                                           between sites in parallel */
            size_t summed;              /* values of this rank's slice for which the sum of the site is
                                           complete */
        } sites;
    } u;
    uint64_t *sums;            /* one hash per chunk of from. NULL means that foreign writes are not
                                * checked. */
    struct ddp__op *next_done; /* complete, not yet published */
} ddp__op;

/* The state of an operation towards a peer. Offsets are in values. */
typedef struct ddp__exchange {
    int held;     /* the peer's staging slots that this operation occupies */
    int expected; /* 1 if the peer must send something and nothing has arrived */
    int seen;     /* 1 if something arrived, so the peer has started it */
    double divergence;
    union {
        struct {             /* in a ring: of the segment that has the peer's number */
            size_t sent;     /* contribution or data passed to the wire, including the frame that is being
                                written */
            size_t results;  /* final values of this rank sent to the peer */
            size_t taken;    /* contribution of the peer, summed */
            size_t finished; /* data, or results of the peer's segment, stored */
        } flow;
        struct {
            int frames;       /* frames sent */
            int over;         /* 1 if the peer has added its last chunk */
            int row;          /* of the peer's offer */
            size_t complaint; /* 1 + offset at which the peer's values differ from those that it submitted */
        } share;
    } u;
} ddp__exchange;

typedef struct ddp__slot {
    ddp__frame f;
    double arrived; /* when it was read from the wire */
    double reached; /* when it passed the emulated path, if no thread had been late */
    int next, peer; /* next: in the list of free or pending slots, or in the delay queue */
    float *data;
} ddp__slot;

typedef struct ddp__owed { /* slots that are free and not yet returned as credits */
    uint32_t seq;
    int p2p, count;
} ddp__owed;

/* While parked, the comm thread leaves the engine to callers: until park_until, or until a caller that drives
 * the engine signals. */
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
    double release; /* emulated links: when the frame that is being serialised has left */
    ddp__frame out;
    ddp__op *out_op;      /* the operation whose memory is the payload, or NULL for a control frame */
    int out_slot;         /* slot that has the payload instead, or -1 */
    uint16_t *coded;      /* [chunk] the payload instead, if out.coding. NULL without cfg.coding. */
    const char *out_text; /* the payload instead, if out_op is NULL */
    unsigned char out_head[DDP__FRAME_BYTES];
    size_t out_sent, out_total;
    int held_collective, held_p2p[DDP__LANES], granted; /* granted: credits that the peer added, its `more` */
    int want_heartbeat, want_abort, want_goodbye, want_farewell;
    int send_dead; /* 1 if the wire accepts no more bytes. The receiving side reports the cause. */
    double last_beat;
    ddp__owed owed[DDP__SLOTS_MAX];
    int owed_count;
    double owed_by; /* latest time at which they are returned, or 0 if not set */
    /* incoming */
    ddp__in_state in_state;
    ddp__frame in;
    unsigned char in_head[DDP__FRAME_BYTES];
    size_t in_got;
    uint32_t in_sum; /* CRC-32C of the payload's first in_got bytes, if in.check */
    int in_slot;     /* -1 if the payload is read directly into in_op's memory, or it is a control frame */
    ddp__op *in_op;
    int discard; /* 1 if the frame that is being read is discarded */
    double last_got;
    uint32_t transit;                 /* microseconds from sent to read, plus the difference of the clocks, */
    double transit_at;                /* of the fastest frame so far, or 0 before the first frame */
    double reached;                   /* when the last frame reached this rank. The frames of a peer stay in
                                         order. */
    int free_slot, solicited, staged; /* slots in use, by kind of frame */
    ddp__chain pending;
    int goodbye_read, abort_read, left, farewell, closed;
    int out_of_world;                 /* membership: 1: its frames are ignored */
    uint32_t paired_seq[DDP__PAIRED]; /* number of the next message */
    uint32_t begun, sends, receives;  /* operations that it has begun, by its last heartbeat, */
    double heard_at;                  /* which was read then, or 0 before the first heartbeat */
    ddp__op *paired[DDP__PAIRED];     /* oldest incomplete send and receive of each lane */
    char text[DDP_ERROR_TEXT];
} ddp__peer;

typedef struct ddp__control { /* a control frame in the delay queue */
    ddp__frame f;
    int peer;
    double due;
} ddp__control;

enum { DDP__GROUPS = 64, DDP__GROUP_SHIFT = 26 }; /* groups, including the world (see ddp__seq) */

/* The ranks that a collective runs over, rising, and the index of each rank among them, or -1. */
typedef struct ddp__members {
    int members;
    const int *member, *place;
} ddp__members;

/* One algorithm for moving the values of an operation. Operations of one number use the same on all ranks.
 * The frames of an operation come from one peer in the order in which it sent them. */
typedef struct ddp__algorithm {
    char letter;
    const char *name;
    unsigned types; /* types of frames that peers send: 1 << DDP__FRAME_PART, ... */
    int whole;      /* 1 if every rank sums all values. The segment of each rank is the whole message. */
    int stages;     /* 1: contributions stay in the pending list until all ranks' contributions have
                       arrived */
    int relays;     /* 1 if a partial sum is sent on, from rank to rank, from the slot that it arrived in */
    /* Returns 1 if the algorithm is used for this operation, whose message is set but not its memory. NULL
     * for the last algorithm, which takes all other operations. */
    int (*fits)(const ddp__engine *e, const ddp__op *op);
    /* The range of values that goes to a peer, or (comes) that the peer sends: returns their number and sets
     * *from, *to. For sums whose result goes back (ddp__flow_returns) the peer gets, or returns, the results
     * of the same range. NULL means that the algorithm has no such ranges. */
    size_t (*part)(const ddp__engine *e, const ddp__op *op, int peer, int comes, size_t *from, size_t *to);
    /* Sets the values that are left, and which ranks must send something. */
    void (*begin)(ddp__engine *e, ddp__op *op);
    /* Gets the next frame for a peer. Returns 0 if there is none or credits do not allow it. NULL for an
     * algorithm that sends no frames. */
    int (*next)(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
    /* A frame begins to be written. Returns the slot that has the payload, or -1 if the payload is in
     * memory. */
    int (*leaves)(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f);
    /* A frame was written. With NULL its values are subtracted from those that are left. */
    void (*sent)(ddp__engine *e, ddp__op *op, const ddp__frame *f, double now);
    /* Returns 1 if a peer could send this frame, whose number, verb, count and layer match the operation.
     * NULL: compares its type with `types`, and its coding. */
    int (*agrees)(const ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f);
    /* A frame has arrived: in a slot, which the algorithm then owns (if `stages`, it finds contributions in
     * the pending list), or (-1) already in memory. */
    void (*arrived)(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f, double now);
    /* Returns 1 if something is left that needs a slot at that peer. NULL means never. */
    int (*unsent)(ddp__engine *e, const ddp__op *op, int peer);
    /* Returns 1 if the exchange with that peer is complete in both directions. */
    int (*over)(ddp__engine *e, const ddp__op *op, int peer);
    /* The operation is complete or abandoned. After it returns no thread touches its memory. May be NULL. */
    void (*finished)(ddp__engine *e, const ddp__op *op);
} ddp__algorithm;

enum { DDP__WAYS = 7 };

/* The callbacks of a membership, with which losing a peer is no error. All except fits run on the comm
 * thread. */
typedef struct ddp__membership {
    ddp_status (*open)(ddp__engine *e, ddp_error *err); /* allocates memory and sets the ids that are live
                                                           from the start */
    void (*close)(ddp__engine *e);
    /* Under the lock, before a message is queued: makes sure that its input can be retained, which may
     * block. */
    ddp_status (*fits)(ddp__engine *e, const ddp_message *m, ddp_error *err);
    /* Returns 1 if the operation may begin now. */
    int (*may_begin)(ddp__engine *e, const ddp__op *op);
    /* The operation has its number and begins, or (again) restarts: retains its input, and may change its
     * algorithm (op->way). */
    void (*began)(ddp__engine *e, ddp__op *op, int again);
    void (*done)(ddp__engine *e, ddp__op *op);
    /* A peer was lost, or has left while an operation still needs it. */
    void (*lost)(ddp__engine *e, int peer, const char *why);
    void (*left)(ddp__engine *e, int peer);
    /* Membership frames (types from DDP__FRAME_STATE to DDP__FRAME_WANT, and retained results). frame: the
     * next one for a peer, high-priority or not. payload: where a payload is stored, or NULL if it does not
     * fit. read: a frame was read. */
    int (*frame)(ddp__engine *e, int peer, int urgent, ddp__frame *f);
    unsigned char *(*payload)(ddp__engine *e, int peer, const ddp__frame *f);
    void (*read)(ddp__engine *e, int peer, const ddp__frame *f, double now);
    /* Returns 1 if a frame belongs to a past epoch, or comes from a rank that is not in the world. */
    int (*drops)(const ddp__engine *e, int peer, const ddp__frame *f);
    /* run: called once per round. check: checks the time-outs. */
    void (*run)(ddp__engine *e, double now);
    void (*check)(ddp__engine *e, double now, double *again);
    /* This process was stopped for `seconds`. All time-outs are extended by them. */
    void (*stopped)(ddp__engine *e, double seconds, double now);
    /* Returns 1 if others may need a result of this rank, so that it cannot close yet. */
    int (*busy)(const ddp__engine *e);
} ddp__membership;

struct ddp__engine {
    ddp__engine_config cfg;
    const ddp__membership *membership;    /* NULL if losing a peer is an error */
    struct ddp__member_data *member_data; /* data of the membership */
    int frozen;   /* membership: 1: a search is running: no operation begins, and collectives do not move */
    int newcomer; /* membership: 1: this worker is in no epoch yet */
    int silent;   /* membership: 1: the error that ended this engine is not reported to peers */
    ddp__wire *wire;
    int rank, world;
    int *member; /* live ids, rising. Collectives run over them. */
    int *place;  /* [world] index in member, or -1 if not live. In both arrays the entries of each group
                    follow */
    int members;
    int blocks;      /* ids below it can be in collectives: world, or the number of workers after
                        ddp__engine_retire */
    int knows_sites; /* 1 if ddp__engine_sites was called */
    /* [world] each: the site of a rank and, for live ranks, the index in the site and the index among the
     * ranks of the same site_place */
    int *site, *site_place, *site_part;
    int *site_side;                        /* ranks whose chunks are added */
    const ddp__algorithm *ways[DDP__WAYS]; /* in order of preference */
    ddp__links links;                      /* all zero: no emulated links */
    int shaped, paced;                     /* shaped: frames pass through the delay queue. paced: the uplink
                                              has an emulated rate. */
    int checks;                            /* 1 if payloads are sent with a checksum */
    int stalled;                           /* 1 if the emulated access link is stalled */
    int acted;                             /* number of acts of the script that were executed */
    size_t chunk;                          /* in floats */
    /* bytes of an all-reduce: minimum for the ring, maximum for the all-to-all exchange, minimum for sums in
     * shared memory */
    size_t ring_bytes, full_bytes, share_bytes;
    int lanes;                 /* lanes in use: 2, or all */
    int credits, extra, slots; /* slots per peer: for frames that need a credit, for results, total */
    int more, few;             /* more: additional credits, announced by heartbeats. few: maximum number of
                                  slots that an operation uses at a peer. */
    int width;                 /* collectives in flight, at most DDP__WINDOW */
    size_t block_bytes;

    ddp__op *ops;       /* ring of cfg.queue, by ticket */
    ddp__strip *strips; /* [strip_room] of all queued messages, inside the block of the engine or allocated
                           separately (strips_grown) */
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
    float *rounded;         /* [chunk] this rank's values rounded to the coding, or NULL for no coding */
    uint16_t *recoded;      /* [chunk] blocks to be decoded, or NULL if the coding has no blocks */
    float *exact;           /* [chunk] a result before it was rounded, or NULL if the coding has no blocks */
    unsigned char *sink;    /* [chunk] bytes that are discarded */
    uintptr_t looked_at[2]; /* pages of from and to that are known to exist, cleared after each wait */

    ddp__op *window[DDP__WINDOW];
    ddp__op *carried;                 /* with a carrier: the last message between two ranks that has begun */
    long taken;                       /* tickets below this were seen by the comm thread */
    long begun;                       /* emulated links: the submission time of tickets below this has
                                         passed */
    long queued_from;                 /* no operation with a ticket below this is queued */
    uint32_t next_seq;                /* number of the next collective to begin */
    uint32_t retired_at;              /* number of the first collective among the workers only, if blocks <
                                         world */
    uint32_t group_next[DDP__GROUPS]; /* next_seq of each group except 0, the world */
    int *ring, *turn;                 /* live ids in ring order, and the position of each id in it */
    int *order;                       /* [world] ring order of all ids */
    long waiting[DDP__WINDOW];        /* tickets of collectives that wait for another message, */
    int waits;                        /* each of them reserves a window position */
    int dirty;                        /* 1 if a window position or a queued operation may have become free */
    ddp__op *finished;                /* list of complete operations, to be published */
    int running;                      /* operations between first and last byte */
    double running_since;
    int up_waiting;  /* 1 if a frame may be waiting for the uplink */
    ddp_error fault; /* the error that ended this engine */
    int fault_origin;
    int fault_about; /* rank whose loss is the fault, or -1 for another fault, or unknown */
    double last_move;
    int closing, stopping; /* goodbye was queued, close was called */
    double next_check;     /* time of the next liveness check */
    double ran_at;         /* start of the last round: a longer gap than usual means that this process was
                              stopped */

    /* shared, under the lock */
    pthread_mutex_t lock;
    char (*called)[48]; /* [world] name of each rank in errors, or "" */
    int groups;         /* groups created, the world included */
    int group_members[DDP__GROUPS];
    pthread_cond_t changed;
    pthread_t thread;
    ddp_error error;     /* first failure or abort request */
    int begun_wire;      /* 1 if the wire's begin has returned */
    int retires;         /* 1 if ddp__engine_retire waits */
    int tight;           /* 1 if a message waits for a free slot in the queue */
    int quiet;           /* 1 if the comm thread will not touch the memory of messages again */
    ddp__parking parked; /* the comm thread lets a caller drive the engine */
    int driven;          /* 1 if a caller drives the engine */
    double park_until;   /* when the comm thread resumes, unless a caller drives */
    pthread_cond_t park;
    int stop, sleeping;
    long submitted, first; /* tickets [first, submitted) are not all done */
    float nothing;         /* 0: the payload of the request of a pull */
    long strips_head, strips_tail;
    ddp__op_span *spans;
    long span_count;
    int span_room, group_room;
    ddp__net_stats stats; /* except its bytes, which the comm thread counts below, atomically */
    int64_t bytes_sent, bytes_received, sent_as[DDP__AS_BYTES + 2];
    ddp__oplog *wanted; /* the caller that waits for a copy of the log */
    ddp__epoch_info epoch;
    uint64_t *sums;               /* cfg.queue x sums_room hashes. NULL means that foreign writes are not
                                   * checked. */
    size_t sums_room, sums_count; /* for messages of up to sums_count floats */
};

/* ---- operation.c ---- */
/* Texts for errors: "layer h.0.mlp", "all layers", "a barrier", "a plain buffer" ...; "all-reduce of layer
 * h.0.mlp (step 12)". */
DDP_LIB const char *ddp__no_layer_text(int layer);
DDP_LIB const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room);
DDP_LIB const char *ddp__op_text(const ddp__engine *e, const ddp__op *op, char *buf, size_t room);
/* "rank 6", or "stage 2 of pipeline 1 (rank 6)". Do not call it under the lock. */
DDP_LIB const char *ddp__rank_text(ddp__engine *e, int rank, char *buf, size_t room);
/* Marks the next fault as the loss of this rank. No effect after the first fault. */
DDP_LIB void ddp__fault_is_about(ddp__engine *e, int rank);
DDP_LIB int ddp__fault(ddp__engine *e, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4); /* returns
                                                                                                    0 */
/* Wakes the comm thread. Under the lock. */
DDP_LIB void ddp__notify(ddp__engine *e);
/* Blocks until something has changed, and releases the lock meanwhile. With a carrier, blocks until the
 * carrier's time has reached the caller's. Under the lock. */
DDP_LIB void ddp__await(ddp__engine *e);
DDP_LIB void ddp__catch_up(ddp__engine *e);
DDP_LIB ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer);
DDP_LIB ddp__members ddp__team_of(const ddp__engine *e, const ddp__op *op);
DDP_LIB int ddp__takes_part(const ddp__engine *e, const ddp__op *op, int peer); /* and is another rank */
/* Sets the live ids. Under the lock if the engine runs. */
DDP_LIB void ddp__members_set(ddp__engine *e, uint64_t live);
/* The sequence number of a group's collective. The group is in the upper bits, so that frames and staging
 * distinguish operations of different groups. With a membership, which has no groups, all bits count. */
DDP_LIB uint32_t ddp__seq(const ddp__engine *e, int group, uint32_t next);
/* 1 if a collective's number was already used. */
DDP_LIB int ddp__seq_past(const ddp__engine *e, uint32_t seq);
DDP_LIB const ddp__algorithm *ddp__way_of(const ddp__engine *e, const ddp__op *op);
DDP_LIB int ddp__sums(const ddp__op *op); /* 1 for all-reduce and reduce-scatter */
/* The root of a broadcast: m.peer, or the lowest live id if m.peer is not live. */
DDP_LIB int ddp__root(const ddp__engine *e, const ddp__op *op);
/* The segment of rank `of`: the values that it sums in an all-reduce, or its block in an all-gather. */
DDP_LIB void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to);
DDP_LIB size_t ddp__segment_length(const ddp__engine *e, const ddp__op *op, int of);
DDP_LIB int ddp__segment_of(const ddp__engine *e, const ddp__op *op, size_t offset);
/* The lane of a message between two ranks, and its index in ddp__peer.paired. */
DDP_LIB int ddp__paired_lane(const ddp__op *op);
DDP_LIB int ddp__paired(const ddp__op *op);
/* The operation in flight that a peer's frame belongs to, or NULL. */
DDP_LIB ddp__op *ddp__find_op(ddp__engine *e, int peer, const ddp__frame *f);
DDP_LIB void ddp__describe(ddp__frame *f, const ddp__op *op, int type, size_t offset, size_t count);
/* Returns 1 if a time limit has passed. Otherwise lowers *again to that limit. */
DDP_LIB int ddp__passed(double limit, double now, double *again);
DDP_LIB double ddp__still_since(const ddp__op *op); /* when the operation last moved */
/* Subtracts values from those that are left and completes the operation at zero. The operation stays valid
 * until the end of the round. */
DDP_LIB void ddp__op_advance(ddp__engine *e, ddp__op *op, size_t values);
/* Counts bytes that were sent for an operation in this coding. */
DDP_LIB void ddp__count_sent(ddp__engine *e, ddp__op *op, int coding, int64_t bytes);
/* Records progress of an operation: its begin on this rank, if it is the first, and the end of any wait for a
 * peer. */
DDP_LIB void ddp__op_moves(ddp__engine *e, ddp__op *op, double now);
/* expect: a peer must send something (for use in begin). seen: the peer has begun the operation. */
DDP_LIB void ddp__op_expect(ddp__engine *e, ddp__op *op, int peer);
DDP_LIB void ddp__op_seen(ddp__engine *e, ddp__op *op, int peer);
/* Called when a peer has left: an operation that still needs it fails, or the membership is notified. */
DDP_LIB void ddp__check_left(ddp__engine *e, int peer);
/* Ends a serve without a request, or an answer to a lost peer. Returns 0 for any other message, which then
 * fails. */
DDP_LIB int ddp__op_void(ddp__engine *e, ddp__op *op);

/* ---- memory.c ---- */
/* own = scale * (terms[0] + ... + terms[count - 1]) of n floats, added in that order. own may be among the
 * terms. If divergence is not NULL, here and below, sum((new - old)^2) over the overwritten values is added
 * to it. */
DDP_LIB void ddp__floats_sum(float *own, const float *const *terms, int count, size_t n, float scale,
                             double *divergence);
DDP_LIB void ddp__floats_store(float *own, const float *from, size_t n, double *divergence);
DDP_LIB void ddp__floats_add(float *sum, const float *x, size_t n);
/* out = x as bfloat16, rounded to nearest even. Infinities stay infinite and NaN stays NaN. */
DDP_LIB void ddp__bfloat_halve(uint16_t *out, const float *x, size_t n);
/* out = x exactly. x may be the second half of out. */
DDP_LIB void ddp__bfloat_widen(float *out, const uint16_t *x, size_t n);
DDP_LIB void ddp__strips_close(ddp__engine *e); /* frees the memory that ddp__engine_pieces allocated */
/* The address of a message's memory at an offset. *here receives the number of contiguous values from there,
 * at most count. */
DDP_LIB void *ddp__memory_at(const ddp__op *op, const ddp__strips *in, size_t offset, size_t count,
                             size_t *here);
/* Checks that the memory of an operation in flight still exists. Returns 0 after a failure: the program has
 * freed it. Each page is checked again after each wait. */
DDP_LIB int ddp__memory_there(ddp__engine *e, const ddp__op *op, size_t at);
/* Where a final value is stored and sent from: `to`, or `from` if the result is added to `to`. */
DDP_LIB const ddp__strips *ddp__result_of(const ddp__op *op);
/* Memory of the payload of a frame: the result, also for values of a broadcast that this rank sends on, or
 * else the input. */
DDP_LIB const ddp__strips *ddp__sent_from(const ddp__engine *e, const ddp__op *op, const ddp__frame *f);
/* Copies values of a list, from offset at on, into the contiguous array row, or with back in the other
 * direction. */
DDP_LIB void ddp__memory_copy(const ddp__op *op, const ddp__strips *in, size_t at, size_t count, void *row,
                              int back);
/* Stores, or adds, values that have arrived, and adds their squared distance from the previous values to
 * *divergence. */
DDP_LIB void ddp__memory_store(const ddp__op *op, size_t at, const void *data, size_t count,
                               double *divergence);
/* result = scale * (terms[0] + ... + terms[terms - 1]), where terms is e->terms. Sets terms[place] to the
 * values of this rank. Advances e->terms. */
DDP_LIB void ddp__memory_sum(ddp__engine *e, ddp__op *op, size_t at, size_t count, int place, int terms,
                             float scale, double *divergence);
/* Detection of foreign writes. Hashes the memory of a new operation, under the lock. */
DDP_LIB void ddp__guard_all(ddp__engine *e, ddp__op *op);
DDP_LIB void ddp__guard_close(ddp__engine *e);
DDP_LIB void ddp__guard_update(ddp__engine *e, ddp__op *op, size_t offset, size_t count);
/* intact: 1 unless the memory changed since it was hashed (op may belong to another rank). fault: fails the
 * engine for that and returns 0. check: both. */
DDP_LIB int ddp__guard_intact(ddp__engine *e, const ddp__op *op, size_t offset, size_t count);
DDP_LIB int ddp__guard_fault(ddp__engine *e, const ddp__op *op);
DDP_LIB int ddp__guard_check(ddp__engine *e, ddp__op *op, size_t offset, size_t count);
/* Adds the residual to the count values before they are summed, and clears it. Values without a gradient keep
 * their residual. */
DDP_LIB void ddp__residual_add(const ddp__op *op, size_t at, size_t count);
/* Adds the residual, rounds the values, and stores the rounding error as the new residual. at must be the
 * start of a block. Returns 0 if a value cannot be encoded. */
DDP_LIB int ddp__code_input(ddp__engine *e, const ddp__op *op, size_t at, size_t count);
/* Encodes the payload of a frame that is about to leave, if its values are not sent as floats. Returns 0
 * after a failure: a value cannot be encoded. */
DDP_LIB int ddp__code_frame(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f);
/* Decodes the payload in a slot to floats (bfloat16 was read into the slot's second half). Returns 0 after a
 * failure. */
DDP_LIB int ddp__decode_slot(ddp__engine *e, int peer, ddp__slot *s);
/* Sums count values from offset at on. e->terms are the contributions. The function sets terms[place] to this
 * rank's. */
DDP_LIB int ddp__reduce_coded(ddp__engine *e, ddp__op *op, size_t at, size_t count, int place, int terms,
                              double *divergence);

/* ---- staging.c: slots on this rank and credits for slots on peers ---- */
DDP_LIB void ddp__slot_free(ddp__engine *e, int slot);
/* The first inserts a slot after another of a list (-1: at the front), the second removes a slot. */
DDP_LIB void ddp__chain_add(ddp__engine *e, ddp__chain *c, int slot, int behind);
DDP_LIB void ddp__chain_remove(ddp__engine *e, ddp__chain *c, int slot);
/* The oldest staged chunk of an operation from a peer, or -1. */
DDP_LIB int ddp__pending(const ddp__engine *e, int peer, const ddp__op *op);
/* Returns 1 if the peer has room for one more chunk of an operation. With forward the chunk is a partial sum
 * that a ring sends on. */
DDP_LIB int ddp__may_stage(ddp__engine *e, const ddp__op *op, int peer, int forward);
DDP_LIB void ddp__hold_credit(ddp__engine *e, const ddp__op *op, int peer);
DDP_LIB void ddp__take_credit(ddp__engine *e, int peer, const ddp__frame *f);
/* 1 if credits are to be returned now. */
DDP_LIB int ddp__credit_due(const ddp__engine *e, ddp__peer *p);
/* Steps shared by all algorithms that have a `part`: begin, the next frame, a frame leaves, a frame was
 * stored, whether something is unsent, whether the exchange with a peer is over. */
DDP_LIB int ddp__flow_returns(const ddp__op *op); /* 1 if values are summed at their destination and the
                                                     results go back */
DDP_LIB void ddp__flow_begin(ddp__engine *e, ddp__op *op);
DDP_LIB int ddp__flow_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
/* The next frame with results for a peer. The first `ready` of the values that this peer contributes are
 * final. */
DDP_LIB int ddp__flow_result(ddp__engine *e, ddp__op *op, int peer, size_t ready, ddp__frame *f);
DDP_LIB int ddp__flow_leaves(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f);
DDP_LIB void ddp__flow_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f,
                               double now);
DDP_LIB int ddp__flow_unsent(ddp__engine *e, const ddp__op *op, int peer);
DDP_LIB int ddp__flow_over(ddp__engine *e, const ddp__op *op, int peer);
/* Checks that a chunk of a region is the next one, at from + *at, and advances *at. Returns 0 after a
 * failure. ddp__out_of_order reports that failure and returns 0. */
DDP_LIB int ddp__in_order(ddp__engine *e, int peer, const ddp__frame *f, size_t from, size_t to, size_t *at);
DDP_LIB int ddp__out_of_order(ddp__engine *e, int peer, const ddp__frame *f, size_t at);

/* ---- the algorithms, and the minimum or maximum sizes for which they are used ---- */
DDP_LIB const ddp__algorithm *ddp__plain_way(void);
DDP_LIB const ddp__algorithm *ddp__spread_way(void); /* large broadcasts */
DDP_LIB size_t ddp__spread_bytes(const ddp__engine *e);
DDP_LIB const ddp__algorithm *ddp__sites_way(void);
DDP_LIB const ddp__algorithm *ddp__direct_way(int whole); /* 1: the all-to-all exchange */
/* Adds the chunks of these ranks at an offset, coded or times scale, and frees their slots. Returns 0 if not
 * all have arrived. */
DDP_LIB int ddp__sum_chunk(ddp__engine *e, ddp__op *op, const int *rank, int ranks, size_t at, size_t count,
                           int coded, float scale);
DDP_LIB size_t ddp__full_bytes(const ddp__engine *e);
DDP_LIB const ddp__algorithm *ddp__ring_way(void);
DDP_LIB size_t ddp__ring_bytes(const ddp__engine *e);
DDP_LIB void ddp__ring_reset(ddp__engine *e); /* reverts ddp__engine_ring to the order as opened. Under the
                                                 lock */
DDP_LIB const ddp__algorithm *ddp__share_way(void);
DDP_LIB size_t ddp__share_bytes(const ddp__engine *e);  /* SIZE_MAX: the ranks are not threads of one
                                                           process */
DDP_LIB int ddp__share_run(ddp__engine *e, double now); /* adds a few chunks. Returns 1 if it did. */

/* ---- liveness.c ---- */
/* 1 if a peer has not begun an operation of this rank, as far as this rank knows. */
DDP_LIB int ddp__is_missing(ddp__engine *e, const ddp__op *op, int peer);
/* " during " the oldest operation that is in flight and needs that peer, " after " the last one, or "". */
DDP_LIB const char *ddp__when_text(const ddp__engine *e, int peer, char *buf, size_t room);
DDP_LIB void ddp__peer_lost(ddp__engine *e, int peer, const char *why);
/* 1 if all ranks are threads of this process. A silent peer is then only starved of CPU time, since a thread
 * that ended has closed its streams. 0 with emulated links, which may stall. */
DDP_LIB int ddp__one_process(const ddp__engine *e);
/* 1 if this process did not run since the last round for longer than a heartbeat may take (SIGSTOP, a
 * suspended machine, starvation). All time-outs are extended by that gap, since the peers may have been
 * stopped too. */
DDP_LIB int ddp__was_stopped(ddp__engine *e, double now);
/* Sends heartbeats, detects silent peers and operations that time out. Sets the time of the next check. */
DDP_LIB void ddp__check_liveness(ddp__engine *e, double now);

/* ---- delay.c: frames in flight on the emulated link ---- */
/* Executes the acts of the script that are due. Returns the time of the next act, or -1 if no act follows. */
DDP_LIB double ddp__emulate_script(ddp__engine *e, double now);
DDP_LIB uint32_t ddp__microseconds(double t); /* rounded up: a frame must not seem to arrive too early */
/* Puts a chunk in its slot, or the control frame just read, into the delay queue. */
DDP_LIB void ddp__delay_chunk(ddp__engine *e, int slot, double now);
DDP_LIB void ddp__delay_control(ddp__engine *e, int peer, double now);
/* Arrival time of the last chunk in flight from a peer, or -1. */
DDP_LIB double ddp__last_due(const ddp__engine *e, int peer);

/* ---- receive.c ---- */
DDP_LIB int ddp__receive_all(ddp__engine *e); /* reads available bytes. Returns 1 if anything moved. */
/* Handle a frame that has reached this rank: a chunk in its slot, or a control frame. */
DDP_LIB void ddp__slot_ready(ddp__engine *e, int slot, double now);
DDP_LIB void ddp__control_ready(ddp__engine *e, int peer, const ddp__frame *f, double now);
/* Handles chunks that came before the operation was active. */
DDP_LIB void ddp__collect_early(ddp__engine *e, ddp__op *op, double now);

/* ---- activate.c ---- */
/* Begins an operation that has its window position and number, or (again) restarts it in a new epoch. */
DDP_LIB void ddp__start(ddp__engine *e, ddp__op *op, int again, double now);
/* Fills the window and the positions of messages between two ranks from the queue. */
DDP_LIB void ddp__activate(ddp__engine *e, double now);

/* ---- send.c ---- */
/* Write bytes to the wire: for all peers, or of the frame being written, or 1 if anything moved. */
DDP_LIB int ddp__send_all(ddp__engine *e, double now);
DDP_LIB int ddp__continue_frame(ddp__engine *e, int peer, double now);
/* Begins to write the next frame at once, even if the uplink is paced. Returns 0 if there is none. */
DDP_LIB int ddp__start_next(ddp__engine *e, int peer, double now);
/* Before the thread sleeps: marks operations that wait for a peer. */
DDP_LIB void ddp__note_waiting(ddp__engine *e, double now);

/* ---- record.c ---- */
DDP_LIB void ddp__publish(ddp__engine *e);     /* publishes the operations that are complete to the
                                                  submitters */
DDP_LIB void ddp__oplog_serve(ddp__engine *e); /* under the lock: copies the log for the waiting thread */

/* ---- thread.c ---- */
/* One round: does all work that is possible now. Returns 1 if anything moved. Otherwise *until is the time of
 * the next event. */
DDP_LIB int ddp__round(ddp__engine *e, double *until);
DDP_LIB void ddp__sleep(ddp__engine *e, double until);
#define DDP__PARK_S 2e-3 /* the next blocking call is expected within this time */
#define DDP__DRIVE_S \
    0.1 /* a longer call returns the engine to the comm thread, so that no caller delays its heartbeats */
/* 1 if the comm thread has work and must not sleep. Under the lock. */
DDP_LIB int ddp__needed(const ddp__engine *e);
DDP_LIB void *ddp__engine_main(void *engine);
