/* The comm worker: one thread per context that owns the wire and runs the send queue.
 * Everything that travels is one kind of message here; strategies never see a socket. */
#ifndef DDP_NET_ENGINE_H
#define DDP_NET_ENGINE_H

#include "base/alloc.h"
#include "base/fail.h"
#include "base/log.h"
#include "net/wire.h"

typedef enum ddp__verb {
    DDP__ALL_REDUCE, /* in place over pieces: sum in rank order (or ring), then x scale */
    DDP__BROADCAST,  /* pieces of root overwrite everybody's */
    DDP__ALL_GATHER, /* one piece of world x n floats; rank r's block is the r-th, in place */
    DDP__SEND,       /* pieces to peer */
    DDP__RECV        /* pieces from peer */
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
    int               peer;        /* root, destination or source */
    long              step;        /* tag: for errors, traces and the mismatch check */
    int layer; /* tag: layer index, named by ddp__engine_config.layer_name; or one of those below */
    int               priority;    /* smaller first among the operations in flight */
    int               filler;      /* 1: bubble filling, left out of the hidden share */
    double           *divergence;  /* NULL, or receives sum((average - own)^2) over this rank's
                                      values, measured where the average overwrites them */
} ddp__message;

typedef struct ddp__engine ddp__engine;

enum {
    DDP__WINDOW = 16, /* most collectives in flight */
    DDP__NO_LAYER = -1,
    DDP__ALL_LAYERS = -2
};

/* One finished (or still running: end < 0) operation, for traces and the hidden share. */
typedef struct ddp__op_span {
    double  begin, end;  /* first and last byte on this rank, ddp_now() seconds */
    double  submitted;
    double
        peer_wait; /* part of begin..end in which nothing moved because a peer had not submitted */
    int64_t bytes;       /* payload bytes this rank sent */
    long    step;
    int     layer, filler;
    ddp__verb verb;
    char    algorithm;   /* 'd' direct, 'r' ring, 'p' plain */
} ddp__op_span;

typedef struct ddp__engine_config {
    ddp__wire    *wire;             /* owned by the engine from a successful open on */
    int           rank, world;
    double
        rate; /* bytes per second of this worker's uplink and, separately, downlink; 0 = unshaped */
    double        delay_s;          /* one-way delay added per message, receiver side; 0 = none */
    int           deterministic;    /* rank-order sums only, never ring */
    size_t ring_bytes; /* all-reduces from this size on go round the ring; 0 = by the link,
                          SIZE_MAX = none. Same on all ranks; a world of 2 has no ring */
    double        peer_timeout_s;   /* no byte from a peer for so long = lost; 0 = never */
    double
        op_timeout_s;   /* an operation in flight that does not move for so long fails; 0 = never */
    size_t chunk_bytes; /* 0 = clamp(1 ms x rate, 4 KiB, 128 KiB), unshaped 128 KiB; at
                           most 128 KiB: 7 or 8 staging slots for a peer. Same on all ranks */
    size_t        max_count;        /* floats of the largest message; bounds staging; 0 = unknown */
    int           queue;            /* messages that may be submitted and not yet done */
    int           check_writes;     /* as ddp__engine_guard with max_count, from the start */
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
 * full. After a failure returns the engine's first error. Copies the message and its piece list. */
DDP_LIB ddp_status ddp__engine_submit(ddp__engine *e, const ddp__message *m, long *ticket,
                                      ddp_error *err);
/* Blocks until that message is done or the engine failed; *err gets the engine's first error. */
DDP_LIB ddp_status ddp__engine_wait(ddp__engine *e, long ticket, ddp_error *err);
DDP_LIB int        ddp__engine_done(ddp__engine *e, long ticket);
/* How many collectives are in flight at a time: the oldest not yet complete. */
DDP_LIB int        ddp__engine_width(const ddp__engine *e);
/* Fails everything in flight here and, through control frames, on all peers. Any thread. */
DDP_LIB void       ddp__engine_abort(ddp__engine *e, ddp_status code, const char *why);
/* The engine's first error, DDP_OK while it is healthy. */
DDP_LIB ddp_status ddp__engine_error(ddp__engine *e, ddp_error *err);

/* Copies spans that overlap t0..t1, running ones included, newest last; returns how many.
 * The engine remembers the last few thousand. */
DDP_LIB int ddp__engine_spans(ddp__engine *e, double t0, double t1, ddp__op_span *out, int room);

typedef struct ddp__net_stats {
    int64_t bytes_sent,
        bytes_received; /* all bytes handed to or taken from the wire, headers included */
    int64_t payload_sent;
    int64_t operations;
    double  busy_s;                       /* union of operation spans */
    size_t  staging_bytes;                /* memory the engine took from the allocator */
    size_t  delay_bytes;                  /* of it, for link shaping */
    char    algorithm;                    /* of the last all-reduce: 'd', 'r', 0 = none yet */
} ddp__net_stats;
DDP_LIB void ddp__engine_stats(ddp__engine *e, ddp__net_stats *out);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_ENGINE_H */
