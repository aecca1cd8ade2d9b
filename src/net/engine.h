/* The comm worker: one thread per context that owns the wire and runs the send queue.
 * Everything that travels is one kind of message here; strategies never see a socket. */
#ifndef DDP_NET_ENGINE_H
#define DDP_NET_ENGINE_H

#include "base/alloc.h"
#include "base/fail.h"
#include "base/log.h"
#include "net/frame.h"
#include "net/links.h"
#include "net/reduce.h"
#include "net/wire.h"

typedef enum ddp__verb {
    DDP__ALL_REDUCE, /* in place over pieces: sum in rank order (or ring), then x scale */
    DDP__BROADCAST,  /* pieces of root overwrite everybody's */
    DDP__ALL_GATHER, /* one piece of world x n floats; rank r's block is the r-th, in place */
    DDP__SEND,       /* pieces to peer */
    DDP__RECV,       /* pieces from peer */
    DDP__REDUCE_SCATTER /* one piece of world x n floats: the r-th block of rank r becomes the
                           sum in rank order, then x scale; the others stay */
} ddp__verb;

/* Contiguous floats; a message is a list of them (a bucket of several layers is no copy). */
typedef struct ddp__piece {
    float *data;
    size_t count;
} ddp__piece;

/* All ranks submit collectives in one agreed order; the n-th collective of one rank meets the
 * n-th of the others, and verb, total count and layer are compared (DDP_MISMATCH names both). */
typedef struct ddp__message {
    ddp__verb         verb;
    const ddp__piece *pieces;      /* borrowed, with their memory, until the message is done */
    int               piece_count;
    float             scale;       /* all-reduce: multiplied into the sum once; 0 = 1 */
    int               mean;        /* all-reduce: scale = 1 / live workers of its epoch */
    int               group;       /* collectives: of ddp__engine_group; 0 = the world */
    int               peer;        /* root, destination or source */
    long              step;        /* tag: for errors, traces and the mismatch check */
    int layer; /* tag: layer index, named by ddp__engine_config.layer_name; or one of those below */
    int               priority;    /* smaller first among the operations in flight. Send/recv: on
                                      both sides below 0 = urgent; the n-th urgent send of a pair
                                      meets the n-th urgent receive, and overtakes the others */
    long after; /* collectives: 1 + the ticket of a message that must be done before this one begins
                   (its memory is not looked at before); 0 = none */
    int ragged; /* gathering and scattering in a group: blocks may differ by a value, as segments of
                   an all-reduce do */
    int link; /* which of the context's engines takes it, 0 or 1; the engine does not look */
    ddp__coding coding; /* all-reduce: contributions and results travel so, sums are in float in
                 rank order, never round a ring; if not floats, the engine's own coding */
    float *residual; /* NULL, or one float per value, borrowed: what coding the result cut off this
                 rank's segment, divided by the scale, is added to it */
    int               overlap;     /* all-reduce: 1 = pieces may lie over each other, values do not
                                      matter; such a sum travels as bytes also among threads */
    int               filler;      /* 1: bubble filling, left out of the hidden share */
    double           *divergence;  /* NULL, or receives sum((average - own)^2) over this rank's
                                      values, measured where the average overwrites them */
} ddp__message;

typedef struct ddp__engine ddp__engine;

enum {
    DDP__WINDOW = 16, /* most collectives in flight */
    DDP__NO_LAYER = -1,
    DDP__ALL_LAYERS = -2,
    DDP__BARRIER = -3
};

/* One finished (or still running: end < 0) operation, for traces and the hidden share. */
typedef struct ddp__op_span {
    double  begin, end;  /* first and last byte on this rank, ddp_now() seconds */
    double  submitted;
    double  due;         /* when the last byte was due: on an emulated link before `end`, by as much
                            as the thread was late; < 0 while it runs */
    double
        peer_wait; /* part of begin..end in which nothing moved because a peer had not submitted */
    int64_t bytes;       /* payload bytes this rank sent */
    long    step;
    int     layer, filler;
    uint32_t seq;        /* as in ddp__frame: equal on all ranks */
    int     peer;
    int64_t size;        /* bytes of the message */
    ddp__verb verb;
    char    algorithm;   /* 'd' direct, 'f' full exchange, 'r' ring, 'p' plain */
} ddp__op_span;

typedef struct ddp__engine_config {
    ddp__wire    *wire;             /* owned by the engine from a successful open on */
    int           rank, world;
    double
        rate; /* bytes per second of this worker's uplink and, separately, downlink; 0 = unshaped */
    double        delay_s;          /* one-way delay added per message, receiver side; 0 = none */
    const ddp__links *links;        /* instead of these two, or NULL; borrowed until close */
    int           deterministic;    /* rank-order sums only, never ring */
    size_t ring_bytes; /* all-reduces from this size on go round the ring; 0 = by the link,
                          SIZE_MAX = none. Same on all ranks; a world of 2 has no ring */
    size_t full_bytes; /* all-reduces up to this size are full exchanges, unless rings; 0 = by the
                          link, 1 = none. Same on all ranks; never in elastic worlds */
    size_t share_bytes; /* all-reduces from this size on, of ranks that are threads of one process,
                           unshaped and not elastic, are summed where the values are (share.c);
                           0 = 256 KiB, SIZE_MAX = none. Same on all ranks */
    double        peer_timeout_s;   /* no byte from a peer for so long = lost; 0 = never */
    double
        op_timeout_s; /* an operation fails so long after the first rank began it; 0 = never */
    double        note_s; /* a wait as long as this is worth a line; 0 = 5 */
    size_t chunk_bytes; /* 0 = clamp(1 ms x rate, 4 KiB, 128 KiB), unshaped 128 KiB; at
                           most 128 KiB: 8 staging slots for a peer. Same on all ranks */
    size_t        max_count;        /* floats of the largest message; bounds staging; 0 = unknown */
    int           queue;            /* messages that may be submitted and not yet done */
    ddp__coding   coding;           /* messages may travel so: takes a chunk per peer */
    const ddp__coder *coder;        /* of int8 blocks; borrowed */
    int           check_writes;     /* as ddp__engine_guard with max_count, from the start */
    int           min_world;        /* > 0: elastic, see below; 0 = a lost peer is an error */
    size_t        elastic_bytes;    /* for inputs and results in flight: more operations queue, a
                                       longer message is an error; 0 = grows with the longest */
    uint64_t      live;             /* elastic: bit r = worker r is there from the start; 0 = all */
    int           joining;          /* 1: this worker waits to be admitted by those in live */
    ddp_allocator allocator;
    ddp_logger    log;
    const char *(*layer_name)(void *user, int layer); /* for errors; may be NULL */
    void         *user;
} ddp__engine_config;

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates everything it will ever use and starts the comm thread. */
DDP_LIB ddp_status ddp__engine_open(const ddp__engine_config *cfg, ddp__engine **out,
                                    ddp_error *err);
/* Says goodbye to the peers (so that they do not count it as a loss), stops the thread, closes the
 * wire. */
DDP_LIB void ddp__engine_close(ddp__engine *e);

/* From now on checksums the memory of messages of up to max_count floats while they are in flight:
 * a write by anybody else is an error naming the layer. Longer messages go unchecked. To be called
 * while nothing is in flight (else DDP_USAGE); takes its tables from the allocator until close. */
DDP_LIB ddp_status ddp__engine_guard(ddp__engine *e, size_t max_count, ddp_error *err);

/* Queues a message; *ticket identifies it to ddp__engine_wait. Never blocks unless the queue is
 * full. After a failure returns the engine's first error, once nobody touches the memory of any
 * message any more. Copies the message and its piece list. */
DDP_LIB ddp_status ddp__engine_submit(ddp__engine *e, const ddp__message *m, long *ticket,
                                      ddp_error *err);
/* Blocks until that message is done or the engine failed; *err gets the engine's first error. */
DDP_LIB ddp_status ddp__engine_wait(ddp__engine *e, long ticket, ddp_error *err);
DDP_LIB int        ddp__engine_done(ddp__engine *e, long ticket);
/* Blocks until one of these messages is done, and says which; -1: none of them yet, *stop (atomic)
 * became 1, or the engine failed. Who sets *stop calls ddp__engine_nudge behind it. */
DDP_LIB int  ddp__engine_wait_any(ddp__engine *e, const long *tickets, int count, const int *stop);
DDP_LIB void ddp__engine_nudge(ddp__engine *e);
/* Submits a message and waits for it. Of calls that follow each other closely, on an idle engine
 * without emulated links or membership, the second and later are moved by the calling thread. */
DDP_LIB ddp_status ddp__engine_run(ddp__engine *e, const ddp__message *m, ddp_error *err);
/* Makes a group of n distinct ranks in rising order; *group numbers it, from 1. All ranks make all
 * groups in the same order, those included that they are not in; the n-th collective of a group
 * meets the n-th of its other members, whatever the world and other groups do meanwhile. Not in an
 * elastic world (DDP_UNSUPPORTED). At most 63. */
DDP_LIB ddp_status ddp__engine_group(ddp__engine *e, const int *ranks, int n, int *group,
                                     ddp_error *err);
/* Its ranks; 1 where it is none. */
DDP_LIB int        ddp__engine_group_size(const ddp__engine *e, int group);
/* Their numbers, rising; NULL for the world. Valid until close. */
DDP_LIB const int *ddp__engine_group_ranks(const ddp__engine *e, int group);
/* Bytes of partial sums that a ring may have under way to the next rank. */
DDP_LIB size_t     ddp__engine_window(const ddp__engine *e);
/* Sets the order in which rings go round (a permutation of all ranks; NULL = by number) and from how
 * many bytes on (0 = as opened, SIZE_MAX = never). Nothing may be in flight (DDP_USAGE); the same on
 * all ranks, before any of them submits again. */
DDP_LIB ddp_status ddp__engine_ring(ddp__engine *e, const int *order, size_t ring_bytes,
                                    ddp_error *err);
/* How many collectives are in flight at a time: the oldest not yet complete. */
DDP_LIB int        ddp__engine_width(const ddp__engine *e);
/* Fails everything in flight here and, through control frames, on all peers. Any thread. */
DDP_LIB void       ddp__engine_abort(ddp__engine *e, ddp_status code, const char *why);
/* After a failure returns when nobody touches the memory of any message any more, within half a
 * second; else at once. For the thread that submits. */
DDP_LIB void       ddp__engine_settle(ddp__engine *e);
/* The engine's first error, DDP_OK while it is healthy. */
DDP_LIB ddp_status ddp__engine_error(ddp__engine *e, ddp_error *err);
/* The lowest rank that has said goodbye; -1 = none. */
DDP_LIB int        ddp__engine_left(ddp__engine *e);

/* Copies spans that overlap t0..t1, running ones included, newest last; returns how many.
 * The engine remembers the last few thousand. */
DDP_LIB int ddp__engine_spans(ddp__engine *e, double t0, double t1, ddp__op_span *out, int room);

/* ---- elastic worlds (docs/elastic.md) ----
 *
 * With min_world > 0 a lost peer begins a new epoch instead of an error: the majority that is left
 * finishes what was in flight, all with the same bits. Ranks are stable ids 0..world-1 (world at
 * most 64); an epoch is a ballot and the set of ids that are live in it. Collectives run over the
 * live ids; blocks of others in an all-gather become 0, a lost root's broadcast is that of the
 * lowest live id. */
typedef struct ddp__epoch_info {
    uint32_t ballot;     /* rises with every epoch, 0 at first; not by 1 */
    uint64_t live;       /* bit r: worker r is in it; all ones of world where not elastic */
    int      workers;    /* how many */
    long     changes;    /* epochs that this engine has begun */
    double   recovery_s; /* from the first sign of the loss to the last change's new epoch */
} ddp__epoch_info;

/* Connects the wire with a worker that comes: called once, on the comm thread, before the first
 * byte to or from id. From then on the wire must not report id's former stream. */
typedef void (*ddp__attach_fn)(ddp__wire *w, int id, void *user);

/* ddp__engine_admit - a new or returning worker comes into the world.
 *
 * Called by all live workers between the same two operations, with nothing in flight (else
 * DDP_USAGE), after each has a connection to id, which attach puts into the wire (NULL: it is
 * there). Returns in the epoch with id in it. If meanwhile somebody is lost the epoch is without
 * them; if that is id itself the world goes on without it: DDP_PEER_LOST, the engine is healthy.
 *
 * The newcomer opens its engine with the same world and min_world, live = those who admit it,
 * joining = 1 and a wire with their streams (streams of all others report their end at once);
 * ddp__engine_joined waits until it is in an epoch: its first operation is then the next of the
 * others. Any thread, one call at a time. */
DDP_LIB ddp_status ddp__engine_admit(ddp__engine *e, int id, ddp__attach_fn attach, void *user,
                                     ddp_error *err);
DDP_LIB ddp_status ddp__engine_joined(ddp__engine *e, double timeout_s, ddp_error *err);
/* The epoch in force. Any thread. */
DDP_LIB void       ddp__engine_epoch(ddp__engine *e, ddp__epoch_info *out);

typedef struct ddp__net_stats {
    int64_t bytes_sent,
        bytes_received; /* all bytes handed to or taken from the wire, headers included */
    int64_t payload_sent;
    int64_t operations;
    double  busy_s;                       /* union of operation spans */
    double  cpu_s;                        /* processor time of the comm thread; 0 = unknown */
    size_t  staging_bytes;                /* memory the engine took from the allocator */
    size_t  delay_bytes;                  /* of it, for link shaping */
    size_t  elastic_bytes;                /* of it, for inputs and results that are kept */
    char    algorithm;                    /* of the last all-reduce, 0 = none yet */
} ddp__net_stats;
DDP_LIB void ddp__engine_stats(ddp__engine *e, ddp__net_stats *out);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_ENGINE_H */
