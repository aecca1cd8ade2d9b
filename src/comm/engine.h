/* The engine of one link: a queue of messages and the comm thread that sends and receives them. A context
 * with two links has two engines. The comm thread owns the wire and runs the send queue, except while a
 * blocking call drives the engine (submit.c). All messages have the same type, and strategies never see a
 * socket. */
#pragma once

#include "comm/message.h"
#include "emulate/links.h"
#include "wire/wire.h"

typedef struct ddp__engine ddp__engine;
struct ddp__membership;

enum {
    DDP__WINDOW = 16,      /* maximum number of collectives in flight */
    DDP__LARGE_WORLD = 256 /* worlds above this size of simulated workers: each worker gets less memory than
                              one in its own process */
};

/* One operation, finished or still running (end < 0), for traces and the hidden share. */
typedef struct ddp__op_span {
    double begin, end; /* first and last byte on this rank, ddp_now() seconds */
    double submitted;
    double due;       /* when the last byte was due, which is before `end` if the thread was late. Negative
                         while it runs. */
    double peer_wait; /* part of begin..end in which nothing moved because a peer had not submitted */
    int64_t bytes;    /* payload bytes this rank sent */
    long step;
    int layer, filler;
    uint32_t seq; /* as in ddp__frame: equal on all ranks */
    int peer;
    int64_t size; /* bytes of the message in memory */
    ddp_verb verb;
    char algorithm; /* ddp__algorithm.letter */
    char coding;    /* ddp_coding: how it travels */
} ddp__op_span;

/* Encodes and decodes blocks (DDP_AS_INT8 and later codings). The engine itself uses only their size.
 * Encoding decoded values again must give bit-identical results. Both functions fail with an error about
 * x[index], or about the payload. */
typedef struct ddp__coder {
    ddp_status (*encode)(ddp_coding coding, unsigned char *out, const float *x, size_t count, ddp_error *err);
    ddp_status (*decode)(ddp_coding coding, float *out, const unsigned char *payload, size_t count,
                         ddp_error *err);
} ddp__coder;

DDP_LIB void ddp__bfloat_round(float *x, size_t n); /* rounds to the values that bfloat16 can represent */

typedef struct ddp__engine_config {
    ddp__wire *wire;         /* owned by the engine once open has succeeded */
    int rank, world;         /* at least 2 */
    const ddp__links *links; /* emulated links, or NULL for none. The memory that it points to belongs to the
                                engine until close. */
    int deterministic;       /* 1: sums in rank order only, never by the ring */
    size_t ring_bytes;       /* minimum size of an all-reduce for the ring (0 = derived from the link,
                                SIZE_MAX = never). Same on all ranks. A world of 2 has no ring. */
    size_t full_bytes;       /* maximum size of an all-reduce for the all-to-all exchange, if the ring is not
                                used (0 = derived from the link, 1 = never). Same on all ranks. Never used
                                with a membership. */
    size_t share_bytes;      /* minimum size of an all-reduce that is summed in shared memory (share.c), if
                                the ranks are threads of one process, without emulated links and membership (0
                                = 256 KiB, SIZE_MAX = never). Same on all ranks. */
    double peer_timeout_s;   /* a peer that sends no byte for this long is lost, or 0 for never */
    double op_timeout_s;     /* an operation fails this long after the first rank began it, or 0 for never */
    double note_s;           /* a wait of this length is logged (0 = 5) */
    size_t chunk_bytes;      /* 0 = clamp(1 ms x rate, 4 KiB, 127 KiB), 127 KiB without emulated links. At
                                most 127 KiB, which gives 8 staging slots per peer. Same on all ranks. */
    size_t max_count;        /* floats of the largest message, which bounds staging, or 0 if unknown */
    int queue;               /* maximum number of messages that are submitted and not yet done */
    int serves;              /* 1 if push, serve, pull and answer have lanes. Same on all ranks */
    ddp_coding coding;       /* wire format that messages may use. A format other than float takes one more
                                chunk per peer. */
    const ddp__coder *coder; /* encodes its blocks, borrowed */
    int no_checksum;         /* 1: send payloads without a CRC-32C. Affects only the frames that this rank
                                sends. */
    int check_writes;        /* 1: calls ddp__engine_guard with max_count at the start */
    const struct ddp__membership *membership; /* NULL means that a lost peer is an error */
    int min_world;                            /* membership: as in ddp_config */
    int servers;       /* membership: number of server ranks, the highest ids. ddp__engine_retire removes them
                          from collectives. Every epoch must contain all of them, which replaces the
                          quorum. */
    size_t kept_bytes; /* membership: bytes for inputs and results in flight (0 = grows with the longest).
                          Further operations queue, and a longer message is an error. */
    uint64_t live;     /* membership: bit r = worker r is live from the start, or 0 for all */
    int joining;       /* membership: 1: this worker waits until the workers in `live` admit it */
    ddp_allocator allocator;
    ddp_logger log;
    const char *(*layer_name)(void *user, int layer); /* for error texts. May be NULL. */
    void *user;
} ddp__engine_config;

/* Allocates all memory that the engine will use and starts the comm thread. */
DDP_LIB ddp_status ddp__engine_open(const ddp__engine_config *cfg, ddp__engine **out, ddp_error *err);
/* Sends a goodbye to the peers, so that they do not treat it as a loss, stops the thread and closes the
 * wire. */
DDP_LIB void ddp__engine_close(ddp__engine *e);
/* In a forked child, which has no comm thread: closes the descriptors of the wire. e may be NULL. */
DDP_LIB void ddp__engine_disown(const ddp__engine *e);

/* Sets the name of a rank in errors, printed before its number: "stage 2 of pipeline 1". Copied, up to 47
 * characters. */
DDP_LIB void ddp__engine_call(ddp__engine *e, int rank, const char *name);

/* Starts the check for foreign writes: messages of up to max_count floats are hashed while they are in
 * flight, and a write by the program is an error that names the layer. Longer messages are not checked. Fails
 * with DDP_USAGE while messages are in flight. Its tables come from the allocator until close. */
DDP_LIB ddp_status ddp__engine_guard(ddp__engine *e, size_t max_count, ddp_error *err);

/* Returns the error that ddp__engine_submit would return for a message, such as a rank that does not exist,
 * or DDP_OK. */
DDP_LIB ddp_status ddp__engine_accepts(const ddp__engine *e, const ddp_message *m, ddp_error *err);
/* Queues a message. *ticket identifies it to ddp__engine_wait. Blocks only while the queue is full. Copies
 * the message and its lists of pieces. If the engine has failed, returns its first error, once no thread
 * touches the memory of any message. */
DDP_LIB ddp_status ddp__engine_submit(ddp__engine *e, const ddp_message *m, long *ticket, ddp_error *err);
/* Blocks until a message is done or the engine has failed. *err receives the engine's first error. */
DDP_LIB ddp_status ddp__engine_wait(ddp__engine *e, long ticket, ddp_error *err);
DDP_LIB int ddp__engine_done(ddp__engine *e, long ticket);
/* Blocks until the input of a message is released. A message with a separate `to` releases it before it is
 * done. */
DDP_LIB ddp_status ddp__engine_wait_input(ddp__engine *e, long ticket, ddp_error *err);
/* Blocks until one of `count` messages is done and returns its index. Returns -1 if none is done and *stop
 * (atomic) became 1 or the engine failed. A thread that sets *stop must then call ddp__engine_nudge. */
DDP_LIB int ddp__engine_wait_any(ddp__engine *e, const long *tickets, int count, const int *stop);
DDP_LIB void ddp__engine_nudge(ddp__engine *e);
/* Submits a message and waits for it. If such calls follow each other closely on an idle engine without
 * emulated links or membership, the calling thread itself sends and receives from the second call on. */
DDP_LIB ddp_status ddp__engine_run(ddp__engine *e, const ddp_message *m, ddp_error *err);
/* Creates a group of n distinct ranks in rising order. *group is its number, from 1. All ranks must create
 * all groups in the same order, including groups that they do not belong to. The n-th collective of a group
 * matches the n-th of its other members, independently of the world and of other groups. At most 63 groups.
 * DDP_UNSUPPORTED with a membership. */
DDP_LIB ddp_status ddp__engine_group(ddp__engine *e, const int *ranks, int n, int *group, ddp_error *err);
/* Sets the site of each rank (copied). Messages with `levels` are then summed inside sites first, then
 * between them. Must be the same on all ranks, with no such message in flight. */
DDP_LIB void ddp__engine_sites(ddp__engine *e, const int *site);
/* Membership: removes the servers (the highest cfg.servers ids) from collectives. They still exchange
 * messages between two ranks. Call it on all ranks after the same collective, with nothing in flight here.
 * Afterwards, losing a worker ends a serve of it, and an answer to it (ddp_received). */
DDP_LIB void ddp__engine_retire(ddp__engine *e);
/* The number of ranks of a group. Of the world, the ranks that have a block in an all-gather, or 1 if there
 * is no such group. */
DDP_LIB int ddp__engine_group_size(const ddp__engine *e, int group);
/* The ranks of a group, rising, or NULL for the world. Valid until close. */
DDP_LIB const int *ddp__engine_group_ranks(const ddp__engine *e, int group);
DDP_LIB size_t ddp__part_start(size_t n, size_t parts, size_t i); /* first value of part i, if n values are
                                                                     divided into parts */
/* Sets the wire format of later messages. Call it only between messages, on an engine that was opened with a
 * block format: its buffers suit every format. */
DDP_LIB void ddp__engine_code(ddp__engine *e, ddp_coding coding);
/* Gets this rank's segment of a direct all-reduce of n values over a group, without a membership. */
DDP_LIB void ddp__engine_segment(const ddp__engine *e, int group, ddp_coding coding, size_t n, size_t *from,
                                 size_t *to);
/* Bytes of partial sums that a ring may have in flight to the next rank. */
DDP_LIB size_t ddp__engine_window(const ddp__engine *e);
/* Sets the order of the ring (a permutation of all ranks, or NULL for rising order) and the minimum size of
 * an all-reduce for it, in bytes (0 = as opened, SIZE_MAX = never). Must be the same on all ranks, before any
 * of them submits again. Errors: DDP_USAGE while messages are in flight. */
DDP_LIB ddp_status ddp__engine_ring(ddp__engine *e, const int *order, size_t ring_bytes, ddp_error *err);
/* Returns the letter of the algorithm (ddp__op_span.algorithm) of a message like *m with n values. */
DDP_LIB char ddp__engine_algorithm(const ddp__engine *e, const ddp_message *m, size_t n);
/* The sizes in bytes that decide about an all-reduce: up to `full`, the all-to-all exchange, from `ring` on
 * the ring (0 and SIZE_MAX: never), otherwise the direct algorithm. */
typedef struct ddp__sizes {
    size_t full, ring;
} ddp__sizes;
DDP_LIB ddp__sizes ddp__engine_sizes(const ddp__engine *e);
/* Sets these sizes. Must be the same on all ranks, before any of them submits again. Errors: DDP_USAGE while
 * an all-reduce is in flight. */
DDP_LIB ddp_status ddp__engine_choose(ddp__engine *e, ddp__sizes sizes, ddp_error *err);
/* Returns 1 if the ring is possible: three or more ranks, no membership, and neither the configuration nor
 * emulated links decide about the algorithm. */
DDP_LIB int ddp__engine_may_ring(const ddp__engine *e);
/* Makes room for messages of up to `pieces` pieces. The initial room is 2048, or 512 if very many engines are
 * in the same process. Errors: DDP_USAGE while messages are in flight. */
DDP_LIB ddp_status ddp__engine_pieces(ddp__engine *e, size_t pieces, ddp_error *err);
/* The maximum number of collectives in flight: the oldest that are not complete. */
DDP_LIB int ddp__engine_width(const ddp__engine *e);
/* The largest payload of a frame, in bytes. */
DDP_LIB size_t ddp__engine_chunk(const ddp__engine *e);
/* Whether another rank relays the bytes of a peer. Any thread. */
DDP_LIB int ddp__engine_relayed(const ddp__engine *e, int peer);
/* The rank whose loss is the engine's error, or -1. Any thread. */
DDP_LIB int ddp__engine_lost(ddp__engine *e);
/* Fails everything in flight here and, through control frames, on all peers. Any thread. */
DDP_LIB void ddp__engine_abort(ddp__engine *e, ddp_status code, const char *why);
/* Peers do not receive the reason of a later failure of this rank. They report the rank as lost. */
DDP_LIB void ddp__engine_hush(ddp__engine *e);
/* After a failure, blocks until no thread touches the memory of any message, for at most about half a second.
 * Without a failure returns at once. For the thread that submits. */
DDP_LIB void ddp__engine_settle(ddp__engine *e);
/* The engine's first error, DDP_OK while it is healthy. */
DDP_LIB ddp_status ddp__engine_error(ddp__engine *e, ddp_error *err);
DDP_LIB int ddp__engine_left(ddp__engine *e); /* the lowest rank that has sent a goodbye, or -1 for none */

/* ---- the record (record.c) ---- */

/* Copies spans that overlap t0..t1, including running ones, newest last. Returns their number. The engine
 * keeps the last few thousand. */
DDP_LIB int ddp__engine_spans(ddp__engine *e, double t0, double t1, ddp__op_span *out, int room);

typedef struct ddp__net_stats {
    int64_t bytes_sent, bytes_received; /* all bytes passed to or taken from the wire, including headers */
    int64_t payload_sent;               /* payload bytes of messages */
    int64_t sent_as[DDP__AS_BYTES + 2]; /* payload_sent by kind: [0] the library's own data, then by
                                           ddp_coding */
    int64_t operations;
    double busy_s;        /* union of operation spans */
    double cpu_s;         /* processor time of the comm thread, or 0 if unknown */
    size_t staging_bytes; /* bytes that the engine took from the allocator */
    size_t kept_bytes;    /* part of staging_bytes: inputs and results that are retained */
    char algorithm;       /* letter of the last all-reduce's algorithm, or 0 for none yet */
} ddp__net_stats;
DDP_LIB void ddp__engine_stats(ddp__engine *e, ddp__net_stats *out);
DDP_LIB const char *ddp__verb_name(int verb); /* "all-reduce", "broadcast", ... */
/* The name of an algorithm letter from a span or the statistics: "direct", ..., or "none" for 0. */
DDP_LIB const char *ddp__algorithm_name(char letter);

enum {
    DDP__OPLOG = 2000,      /* operations in the log, unfinished ones included */
    DDP__OPLOG_MISSING = 16 /* maximum number of ranks listed as missing */
};

typedef enum ddp__op_progress {
    DDP__IS_QUEUED, /* submitted, not begun */
    DDP__IS_ACTIVE,
    DDP__IS_DONE
} ddp__op_progress;

typedef struct ddp__op_record {
    ddp__op_span span; /* seq of a queued operation: the number that it will get */
    ddp__op_progress progress;
    int64_t left;                                   /* bytes still to send or to receive */
    int missing[DDP__OPLOG_MISSING], missing_count; /* ranks that have not begun it */
} ddp__op_record;

typedef struct ddp__peer_record {
    char name[80];
    long begun;            /* collectives that the peer has begun, by its last heartbeat, or -1 if unknown */
    double heard_s, got_s; /* seconds since that heartbeat, and since its last byte, or -1 for never */
    int left;              /* 1: it closed its context */
} ddp__peer_record;

/* A copy of the engine's log of operations, for the post-mortem. */
typedef struct ddp__oplog {
    ddp__op_record *record; /* [count], oldest first */
    int count;
    long dropped;           /* older operations that are no longer in the log */
    ddp__peer_record *peer; /* [world]. The entry of this rank has its own count of begun collectives. */
    ddp_error error;        /* the first error of the engine, with code DDP_OK if there is none */
    double now;             /* ddp_now() of the copy */
    int served;
} ddp__oplog;

/* Copies the log of operations. Any thread, even while others wait in the engine and after it failed. The
 * comm thread makes the copy. If it does not respond within one second, peers and missing ranks are left out.
 * Errors: DDP_MEMORY. Free *out with ddp__oplog_free in any case. */
DDP_LIB ddp_status ddp__engine_oplog(ddp__engine *e, ddp__oplog *out, ddp_error *err);
DDP_LIB void ddp__oplog_free(ddp__oplog *log);

/* ---- live workers ----
 *
 * With a membership, losing a peer begins a new epoch and is no error. The remaining quorum finishes the
 * operations in flight, with bit-identical results. Ranks are stable ids 0..world-1 (world at most 64). An
 * epoch is a ballot and the set of ids that are live in it. Collectives run over the live ids. In an
 * all-gather the blocks of other ids become 0. If the root of a broadcast is lost, the lowest live id is the
 * root. */
typedef struct ddp__epoch_info {
    uint32_t ballot; /* rises with every epoch, from 0, sometimes by more than 1 */
    uint64_t live;   /* bit r: worker r is live. Without a membership the bits of all ranks are set. */
    int workers;     /* number of live workers */
    long changes;    /* number of epochs that this engine has begun */
} ddp__epoch_info;
DDP_LIB void ddp__engine_epoch(ddp__engine *e, ddp__epoch_info *out); /* gets the epoch in force. Any
                                                                         thread. */
