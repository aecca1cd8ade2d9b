/* What the files of the engine share. Everything here but the part marked "shared" belongs to
 * the comm thread alone. */
#ifndef DDP_NET_STATE_H
#define DDP_NET_STATE_H

#include "base/platform.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "net/engine.h"
#include "net/frame.h"
#include "net/oplog.h"
#include "net/reduce.h"
#include "net/shape.h"
#include "net/share.h"

enum {
    DDP__LANES = 2,           /* of send/recv: what is urgent waits for nothing that is not */
    DDP__PAIRED = 2 * DDP__LANES,         /* in each lane a send and a receive are in flight */
    DDP__ROWS = DDP__WINDOW + DDP__PAIRED, /* one per window position, then as in paired */
    DDP__SLOTS_MAX = 256,
    DDP__SPANS = 2048,
    DDP__STRIPS_MIN = 4096    /* pieces of all queued messages together */
};
#define DDP__STAGING_BYTES                                                                         \
    ((size_t)1 << 20) /* slots of one peer, with what the wire takes for it */
#define DDP__CHUNK_MAX     ((size_t)128 << 10)
#define DDP__CHUNK_SMALL                                                                           \
    ((size_t)32 << 10) /* with these DDP__WINDOW operations are in flight, else 4 */

typedef struct ddp__strip { /* a piece and where it starts within its message */
    float *data;
    size_t start, count;
} ddp__strip;

typedef enum ddp__op_state {
    DDP__OP_FREE,
    DDP__OP_QUEUED,
    DDP__OP_ACTIVE,
    DDP__OP_DONE
} ddp__op_state;

typedef struct ddp__op {
    ddp__message  m;
    ddp__strip   *strips;
    int           strip_count;
    float         scale;       /* m.scale, or the mean of the epoch it runs in */
    long          strips_end;  /* the pool is free up to here once this operation is the oldest */
    size_t        n;           /* floats */
    long          ticket;
    uint32_t      seq;         /* among collectives, or among sends or receives with m.peer */
    int           p2p;
    int           ring;        /* all-reduce by way of ring.c */
    int           full;        /* all-reduce by way of full.c */
    int           shared;      /* all-reduce by way of share.c */
    int           share_state;
    size_t        share_next;  /* chunks of the own segment taken so far, in order */
    int           row;
    int           done;        /* shared: under the lock */
    ddp__op_state state;
    size_t        reduced;     /* floats of the own segment that are final */
    size_t        left;        /* floats still to send or to receive */
    int           missing;     /* ranks that must send something and have not sent anything */
    double        active_at, waiting_since, last_move;
    double        clock;       /* when the first rank began it, as far as is known here */
    double        note_s;      /* the next line about its standing still is due after so long */
    ddp__op_span  span;        /* shared: under the lock, except bytes and peer_wait before done */
    int64_t       bytes;
    double        peer_wait;
    size_t        sums_left, results_left; /* ring: floats not yet given to the next rank */
    size_t        to_come;                 /* ring: floats the rank before has still to send */
    int           first_sum, last_sum;     /* ring: slots with partial sums to be sent on */
    int           donor;       /* elastic: who hands over its result, or -1: it is worked out */
    int           asked;       /* the donor was asked */
    uint64_t     *sums;        /* one hash per chunk; NULL: writes are not checked */
    struct ddp__op *next_done; /* complete, not yet published */
} ddp__op;

/* Between one operation and one peer; offsets in floats. In a ring the first four and divergence
 * are those of the segment with the peer's number instead. Among threads (share.c): how many frames
 * were sent, where its values are not those it submitted (+ 1), the row of its offer, and 1 once it
 * has added up its last chunk. */
typedef struct ddp__exchange {
    size_t sent;       /* contribution or data, bytes fully taken by the wire or under way */
    size_t results;    /* own finished values given to that peer */
    size_t taken;      /* contribution or data of the peer, reduced or stored */
    size_t finished;   /* results of the peer's segment, stored */
    int    held;       /* the peer's staging slots that this operation occupies */
    int    expected;   /* the peer has to send something and nothing came so far */
    int    seen;       /* something came: the peer has begun it */
    double divergence;
} ddp__exchange;

typedef struct ddp__slot {
    ddp__frame f;
    double     arrived;      /* read from the wire */
    double     reached;      /* the emulated link's end, had nobody been late */
    int        next;         /* free list, pending list or delay queue */
    int        peer;
    float     *data;
} ddp__slot;

typedef struct ddp__owed { /* slots freed but not yet given back */
    uint32_t seq;
    int      p2p, count;
} ddp__owed;

typedef enum ddp__out_state {
    DDP__OUT_IDLE,
    DDP__OUT_SERIALISING,
    DDP__OUT_WRITING
} ddp__out_state;
typedef enum ddp__in_state { DDP__IN_HEAD, DDP__IN_PAUSED, DDP__IN_PAYLOAD } ddp__in_state;

typedef struct ddp__peer {
    /* outgoing */
    ddp__out_state out_state;
    double         release;     /* emulated links: when what is being serialised has left */
    ddp__frame     out;
    ddp__op       *out_op;      /* whose memory is the payload; NULL: control */
    int            out_slot;    /* the payload is here instead, or -1 */
    uint16_t      *coded;       /* or here, if out.coding; [chunk], NULL without cfg.coding */
    const char    *out_text;    /* or here, if there is no out_op */
    unsigned char  out_head[DDP__FRAME_BYTES];
    size_t         out_sent, out_total;
    int            held_collective, held_p2p[DDP__LANES];
    int            want_heartbeat, want_abort, want_goodbye, want_farewell;
    int            send_dead;   /* the wire takes no more; the reading side says why */
    double         last_sent, last_beat;
    ddp__owed      owed[DDP__SLOTS_MAX];
    int            owed_count;
    double         owed_by;     /* when they go back at the latest; 0 = not known yet */
    /* incoming */
    ddp__in_state  in_state;
    ddp__frame     in;
    unsigned char  in_head[DDP__FRAME_BYTES];
    size_t         in_got;
    int            in_slot;     /* -1: straight into in_op's memory, or control */
    ddp__op       *in_op;
    double         last_got;
    uint32_t transit; /* microseconds from sent to read, plus the difference of the clocks, */
    double         transit_at;   /* of the quickest frame so far; 0: none yet */
    double         reached;      /* by the last frame: those of one peer stay in order */
    int            free_slot, solicited, staged; /* slots in use, by kind of frame */
    int            first_pending, last_pending;
    int            goodbye_read, abort_read, left, farewell, closed;
    uint32_t       paired_seq[DDP__PAIRED]; /* of the next */
    uint32_t       begun, sends, receives; /* what it has begun, by its last heartbeat ... */
    double         heard_at;               /* ... read then; 0 = none yet */
    ddp__op       *paired[DDP__PAIRED]; /* oldest not yet complete: send, receive; urgent ones */
    char           text[DDP_ERROR_TEXT];
} ddp__peer;

typedef struct ddp__control { /* a control frame in the delay queue */
    ddp__frame f;
    int        peer;
    double     due;
} ddp__control;

typedef struct ddp__elastic ddp__elastic;

enum { DDP__GROUPS = 64, DDP__GROUP_SHIFT = 26 }; /* groups, the world included; see ddp__seq */

/* The ranks that a collective runs over, rising, and where in them a rank is, or -1. */
typedef struct ddp__members {
    int        members;
    const int *member, *place;
} ddp__members;

struct ddp__engine {
    ddp__engine_config cfg;
    ddp__elastic      *elastic;       /* NULL: a lost peer is an error */
    ddp__wire         *wire;
    int                rank, world;
    int               *member;        /* ids that are live, rising; collectives run over them */
    int               *place;         /* [world] index in member, -1: not live */
    int                members;
    ddp__memory_ops    memory;
    ddp__link          link;
    ddp__path         *path;          /* emulated ways to the peers */
    double             slowest;       /* emulated rate anywhere, on all ranks; 0 = all unlimited */
    double             farthest;      /* emulated delay anywhere */
    int                shaped;        /* frames pass the delay queue */
    int                paced;         /* frames pass the emulated uplink */
    int                stalled;       /* nothing passes the emulated access link now */
    int                acted;         /* acts of the script that are over */
    size_t             chunk;         /* floats */
    size_t             ring_bytes;    /* all-reduces from here on are rings */
    size_t             full_bytes;    /* up to here full exchanges */
    size_t             share_bytes;   /* from here on summed in place, among threads */
    int                credits;       /* slots per peer for frames that need one */
    int                extra;         /* slots per peer for results */
    int                slots;         /* both */
    int                width;         /* collectives in flight, at most DDP__WINDOW */
    size_t             block_bytes, delay_bytes;

    ddp__op           *ops;           /* ring of cfg.queue, by ticket */
    ddp__strip        *strips;
    long               strip_room;
    ddp__peer         *peers;
    ddp__exchange     *rows;          /* DDP__ROWS x world */
    ddp__slot         *slot;          /* world x slots */
    ddp__control      *control;       /* ring of the delay queue */
    int                control_room, control_first, control_count;
    int                first_due, last_due; /* delay queue of slots, in order of reached */
    unsigned char     *want_send, *want_recv;
    const float      **terms;
    float             *rounded;       /* [chunk] own values as they travel; NULL: no coding */
    uint16_t          *recoded;       /* [chunk] int8 blocks to be read; NULL without them */
    float             *exact;         /* [chunk] a result before it was rounded; the same */

    ddp__op           *window[DDP__WINDOW];
    long               taken;         /* tickets below were seen by the comm thread */
    long begun; /* emulated links: tickets below had their time of submission */
    long               queued_from;   /* no queued operation below this ticket */
    uint32_t           next_seq;      /* of the next collective to become active */
    uint32_t           group_next[DDP__GROUPS]; /* the same of each group but 0, the world */
    int               *ring, *turn;   /* live ids in ring order, and where in it an id is */
    int               *order;         /* [world] ring order of all ids */
    long               waiting[DDP__WINDOW]; /* tickets of collectives that wait for another; */
    int                waits;         /* each has a position of the window reserved */
    int                dirty;         /* a position or a queued operation may have become free */
    ddp__op           *finished;      /* complete, to be published */
    int                running;       /* operations between first and last byte */
    double             running_since;
    int                up_waiting;    /* a frame may wait until the uplink is free */
    ddp_error          fault;         /* what ended this engine */
    int                fault_origin;
    double             last_move;
    double             look_by;       /* when liveness was to be looked at again; 0 = now */
    int                closing;       /* goodbye was queued */
    int                stopping;      /* close was called */
    double             next_check;    /* of liveness */

    /* shared, under lock */
    pthread_mutex_t    lock;
    int                groups;        /* made so far, the world included */
    int               *group_member, *group_place; /* [DDP__GROUPS x world] */
    int                group_members[DDP__GROUPS];
    pthread_cond_t     changed;
    pthread_t          thread;
    int                threaded;
    ddp_error          error;         /* first failure or request to abort */
    int                begun_wire;    /* the wire's begin has returned */
    int                quiet;         /* the comm thread will not touch memory again */
    int                parked;        /* the comm thread leaves the engine to whoever drives it, */
    double             park_until;    /* until then */
    int                driven;        /* a caller moves the bytes */
    pthread_cond_t     park;
    int                stop, sleeping;
    long               submitted, first; /* tickets [first, submitted) are not all done */
    long               strips_head, strips_tail;
    ddp__op_span      *spans;
    long               span_count;
    ddp__net_stats     stats;         /* bytes: written by the comm thread, atomically */
    ddp__oplog        *wanted;        /* somebody waits for a copy of the log */
    uint64_t *sums; /* cfg.queue x sums_room hashes; NULL: writes are not checked */
    size_t             sums_room, sums_count; /* for messages of up to sums_count floats */
};

#ifdef __cplusplus
extern "C" {
#endif

/* group.c */
/* A message's group exists and has this rank, and the root, among its members. */
DDP_LIB ddp_status ddp__group_check(const ddp__engine *e, const ddp__message *m, ddp_error *err);
DDP_LIB ddp__members ddp__team_of(const ddp__engine *e, const ddp__op *op);
/* The number of a group's collective: the group in the upper bits, so that frames and staging tell
 * operations of unlike groups apart; all bits count in an elastic world, which has no groups. */
DDP_LIB uint32_t ddp__seq(const ddp__engine *e, int group, uint32_t next);
/* 1 if a collective's number was given out before. */
DDP_LIB int  ddp__seq_past(const ddp__engine *e, uint32_t seq);
/* Puts the live ids into the ring's order. */
DDP_LIB void ddp__ring_arrange(ddp__engine *e);

/* progress.c */
/* The lane of a send or receive, and its place in ddp__peer.paired. */
DDP_LIB int  ddp__paired_lane(const ddp__op *op);
DDP_LIB int  ddp__paired(const ddp__op *op);
DDP_LIB ddp__exchange *ddp__row(ddp__engine *e, const ddp__op *op, int peer);
/* All-reduce or reduce-scatter. */
DDP_LIB int ddp__sums(const ddp__op *op);
/* Whose memory a broadcast spreads: m.peer's, or that of the lowest live id. */
DDP_LIB int  ddp__root(const ddp__engine *e, const ddp__op *op);
/* Segment of rank `of`: what it owns in an all-reduce, its block in an all-gather. */
DDP_LIB void ddp__segment(const ddp__engine *e, const ddp__op *op, int of, size_t *from,
                          size_t *to);
DDP_LIB int  ddp__segment_of(const ddp__engine *e, const ddp__op *op, size_t offset);
/* The values that this rank's `sent` counts through for that peer. */
DDP_LIB void ddp__outgoing(const ddp__engine *e, const ddp__op *op, int peer, size_t *from,
                           size_t *to);
/* Memory at an offset: the address, and how many floats follow contiguously (at most count). */
DDP_LIB float *ddp__memory_at(const ddp__op *op, size_t offset, size_t count, size_t *here);
/* Subtracts floats from what is left; completes the operation at zero. Its memory stays valid
 * until the end of the comm thread's round. */
DDP_LIB void ddp__op_advance(ddp__engine *e, ddp__op *op, size_t floats);
/* First sign of an operation on this rank, and the end of any wait for a peer. */
DDP_LIB void ddp__op_moves(ddp__engine *e, ddp__op *op, double now);
/* Begins, or begins again in a new epoch, an operation that has its place and number. */
DDP_LIB void ddp__start(ddp__engine *e, ddp__op *op, double now);
/* Fills the window and the send/recv positions from the queue. */
DDP_LIB void ddp__activate(ddp__engine *e, double now);
/* Before the thread sleeps: marks operations that wait for a peer. */
DDP_LIB void ddp__note_waiting(ddp__engine *e, double now);
/* Tells the submitters what is complete. */
DDP_LIB void ddp__publish(ddp__engine *e);

/* engine.c */
/* Under the lock; the comm thread has to look. */
DDP_LIB void ddp__notify(ddp__engine *e);
/* Under the lock, which it lets go of: ddp__engine_settle. */
DDP_LIB void ddp__settle(ddp__engine *e);
/* Does what can be done now; 1 if anything moved, else *until says when to look again. */
DDP_LIB int  ddp__round(ddp__engine *e, double *until);
DDP_LIB void ddp__sleep(ddp__engine *e, double until);
DDP_LIB int  ddp__ticket_done(const ddp__engine *e, long ticket);

/* drive.c: the comm thread, with nothing to do, stays out of the way of blocking calls that follow
 * each other closely; 0 if there are none. */
DDP_LIB int  ddp__park(ddp__engine *e);

/* schedule.c */
/* The best frame for a peer into *f; 0 = nothing may go now. *op is NULL for control frames. */
DDP_LIB int  ddp__next_frame(ddp__engine *e, int peer, ddp__frame *f, ddp__op **op);
/* An operation has a frame that could go to that peer (credits allowing). */
DDP_LIB int  ddp__op_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
/* Room at that peer for one more chunk of an operation; forward: a sum that a ring sends on. */
DDP_LIB int  ddp__may_stage(ddp__engine *e, const ddp__op *op, int peer, int forward);
DDP_LIB void ddp__describe(ddp__frame *f, const ddp__op *op, int type, size_t offset, size_t count);
/* until, or when credits that wait for one another have to leave, if earlier. */
DDP_LIB double ddp__credit_by(const ddp__engine *e, double now, double until);
DDP_LIB void ddp__take_credit(ddp__engine *e, int peer, uint32_t seq, int p2p, int count);

/* full.c */
/* The size up to which all-reduces are full exchanges. */
DDP_LIB size_t ddp__full_bytes(const ddp__engine *e);
/* The own values from offset at on have been taken by the wire for every peer. */
DDP_LIB int    ddp__full_sent(ddp__engine *e, const ddp__op *op, size_t at, size_t count);
/* The values that this rank sums. */
DDP_LIB void   ddp__own_part(const ddp__engine *e, const ddp__op *op, size_t *from, size_t *to);
/* Nothing of the operation has still to come from that peer, or to go there. */
DDP_LIB int    ddp__full_over(ddp__engine *e, const ddp__op *op, int peer);
/* collect.c: sums what can be summed since a frame of the operation has left. */
DDP_LIB void   ddp__full_reduce(ddp__engine *e, ddp__op *op, double now);

/* ring.c */
/* The size from which on all-reduces are rings. Direct pays 2 delays, the ring 2 (n - 1), but no
 * incast where ranks are out of step (in step both take 1 to 2 % more than the transfer of
 * 2 (n - 1) / n M / B, measured with 4 and 8 ranks): ring where its extra delay is at most 2 %. A
 * hop delays by the link's delay and one chunk. Never on unshaped wires, nor where the round trip
 * outgrows the staging of one peer. */
DDP_LIB size_t ddp__ring_bytes(const ddp__engine *e);
/* Whether an operation goes round the ring. Those of groups never do: ranks may submit operations of
 * unlike groups in unlike orders, and rings wait for each other in one order. */
DDP_LIB int    ddp__by_ring(const ddp__engine *e, const ddp__op *op);
DDP_LIB void   ddp__ring_begin(ddp__engine *e, ddp__op *op);
/* That peer has still to give or get something. */
DDP_LIB int    ddp__ring_needs(const ddp__engine *e, const ddp__op *op, int peer);
/* Something is left that needs a slot at that peer. */
DDP_LIB int    ddp__ring_unsent(const ddp__engine *e, const ddp__op *op, int peer);
DDP_LIB int    ddp__ring_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
/* Accounts for a frame on its way; the slot that holds its payload, or -1: it is in memory. */
DDP_LIB int    ddp__ring_started(ddp__engine *e, ddp__op *op, const ddp__frame *f);
/* Accounts for a chunk received; 0 if no rank of this ring would send it. */
DDP_LIB int    ddp__ring_arrived(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f);
/* Adds the own values to a partial sum, to be sent on or final. */
DDP_LIB void   ddp__ring_take(ddp__engine *e, ddp__op *op, int slot, double now);

/* share.c */
/* The size from which on all-reduces are summed in place; SIZE_MAX: the ranks are no threads. */
DDP_LIB size_t ddp__share_bytes(const ddp__engine *e);
DDP_LIB int    ddp__by_share(const ddp__engine *e, const ddp__op *op);
DDP_LIB void   ddp__share_begin(ddp__engine *e, ddp__op *op);
/* Waits until nobody is at work on the operation's memory, and nobody will be. */
DDP_LIB void   ddp__share_end(ddp__engine *e, const ddp__op *op);
/* The same for all in flight. */
DDP_LIB void   ddp__share_close(ddp__engine *e);
DDP_LIB int    ddp__share_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f);
DDP_LIB void   ddp__share_started(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f);
/* How far the operation has come by a frame that was sent. */
DDP_LIB size_t ddp__share_sent(const ddp__op *op, const ddp__frame *f);
/* 1 if the frame, OFFER or SUMMED, may be one. */
DDP_LIB int    ddp__share_check(const ddp__engine *e, const ddp__frame *f);
DDP_LIB void   ddp__share_offered(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f);
DDP_LIB void   ddp__share_summed(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f,
                                 double now);
/* Adds up a few chunks; 1 if it did. */
DDP_LIB int    ddp__share_run(ddp__engine *e, double now);

/* coding.c: values that do not travel as floats */
/* The payload of a frame about to leave; 0 after a failure: a value has no code. */
DDP_LIB int    ddp__code_frame(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f);
/* The payload read into a slot becomes floats; 0 after a failure. */
DDP_LIB int    ddp__decode_slot(ddp__engine *e, int peer, ddp__slot *s);
/* Sums count values from offset at on, of which terms are the others' contributions. */
DDP_LIB int    ddp__reduce_coded(ddp__engine *e, ddp__op *op, size_t at, size_t count,
                                 double *divergence);
/* Where in a slot a payload is read to. */
DDP_LIB size_t ddp__coded_at(const ddp__frame *f);

/* transfer.c: bytes to and from the wire; 1 if anything moved */
DDP_LIB int    ddp__send_all(ddp__engine *e, double now);
DDP_LIB int    ddp__receive_all(ddp__engine *e);
DDP_LIB int    ddp__continue_frame(ddp__engine *e, int peer, double now);
/* Begins to write the next control frame at once, shaped or not; 0 if there is none. */
DDP_LIB int    ddp__start_control(ddp__engine *e, int peer);

/* emulate.c */
/* Microseconds, rounded up: a frame must not seem to arrive earlier than it may. */
DDP_LIB uint32_t ddp__microseconds(double t);
/* Puts a chunk in its slot, or the control frame just read, on the emulated way. */
DDP_LIB void   ddp__delay_chunk(ddp__engine *e, int slot, double now);
DDP_LIB void   ddp__delay_control(ddp__engine *e, int peer, double now);
/* What the configuration says of links, before memory is laid out; and after. */
DDP_LIB void   ddp__emulate_plan(ddp__engine *e);
DDP_LIB void   ddp__emulate_start(ddp__engine *e);
/* Does what the script asks for by now; returns when to look again, -1: never. */
DDP_LIB double ddp__emulate_script(ddp__engine *e, double now);
/* Runs the emulated link up to now. */
DDP_LIB int    ddp__run_due(ddp__engine *e, double now);
DDP_LIB double ddp__next_due(const ddp__engine *e);

/* collect.c */
/* 1 if the frame may be taken, 0 after a failure. */
DDP_LIB int  ddp__frame_check(ddp__engine *e, int peer, const ddp__frame *f);
DDP_LIB ddp__op *ddp__find_op(ddp__engine *e, int peer, const ddp__frame *f);
DDP_LIB void ddp__slot_ready(ddp__engine *e, int slot, double now);
DDP_LIB void ddp__slot_free(ddp__engine *e, int slot);
/* Bytes of a frame were read straight into memory. */
DDP_LIB void ddp__direct_ready(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f,
                               double now);
/* Handles what came before the operation was active. */
DDP_LIB void ddp__collect_early(ddp__engine *e, ddp__op *op, double now);
DDP_LIB void ddp__control_ready(ddp__engine *e, int peer, const ddp__frame *f, double now);

/* guard.c: detection of foreign writes */
/* Hashes the memory of a new operation; under the lock. */
DDP_LIB void ddp__guard_all(ddp__engine *e, ddp__op *op);
DDP_LIB void ddp__guard_close(ddp__engine *e);
DDP_LIB void ddp__guard_update(ddp__engine *e, ddp__op *op, size_t offset, size_t count);
/* 1 unless the memory changed since it was hashed; op may be another rank's. */
DDP_LIB int  ddp__guard_intact(ddp__engine *e, const ddp__op *op, size_t offset, size_t count);
/* Ends the engine because of that. */
DDP_LIB void ddp__guard_fault(ddp__engine *e, const ddp__op *op);
/* Both: 0 after a failure. */
DDP_LIB int  ddp__guard_check(ddp__engine *e, ddp__op *op, size_t offset, size_t count);

/* liveness.c */
DDP_LIB void ddp__fault(ddp__engine *e, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);
DDP_LIB void ddp__peer_lost(ddp__engine *e, int peer, const char *why);
DDP_LIB void ddp__check_left(ddp__engine *e, int peer);
/* Seconds between heartbeats. */
DDP_LIB double ddp__beat(const ddp__engine *e);
/* Heartbeats, silent peers, old operations; returns when to look again. */
DDP_LIB double ddp__check_liveness(ddp__engine *e, double now);
/* "all-reduce of layer h.0.mlp (step 12)" */
DDP_LIB const char *ddp__op_text(const ddp__engine *e, const ddp__op *op, char *buf, size_t room);
/* "all-reduce" */
DDP_LIB const char *ddp__verb_name(int verb);
/* "layer h.0.mlp", "all layers", "a barrier" or "a plain buffer" */
DDP_LIB const char *ddp__layer_text(const ddp__engine *e, int layer, char *buf, size_t room);

/* waits.c */
/* Whether a peer has not begun an operation of this rank, as far as is known here. */
DDP_LIB int    ddp__is_missing(ddp__engine *e, const ddp__op *op, int peer);
/* "rank 2", "ranks 1, 3", or "" where all have begun it. */
DDP_LIB const char *ddp__missing_text(ddp__engine *e, const ddp__op *op, char *buf, size_t room);
/* What a heartbeat says, and what it said. */
DDP_LIB void   ddp__tell_progress(const ddp__engine *e, int peer, ddp__frame *f);
DDP_LIB void   ddp__hear_progress(ddp__engine *e, int peer, const ddp__frame *f, double now);
/* "; rank 2 has been silent for 7.1 s" of those it needs, or "". */
DDP_LIB const char *ddp__silent_text(const ddp__engine *e, const ddp__op *op, double now,
                                     char *buf, size_t room);
/* Since when an operation stands still. */
DDP_LIB double ddp__still_since(const ddp__op *op);
/* A line about the oldest operation that stands still, after 5, 10, 20, ... seconds. */
DDP_LIB void   ddp__note_wait(ddp__engine *e, double now, double *again);
/* It moves again: the last of these lines. */
DDP_LIB void   ddp__note_end(ddp__engine *e, ddp__op *op, double now);

/* oplog.c; comm thread, under the lock */
DDP_LIB void   ddp__oplog_serve(ddp__engine *e);

/* spans.c; under the lock */
DDP_LIB void ddp__span_finish(ddp__engine *e, const ddp__op *op);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_STATE_H */
