/* The comm thread: one thread per engine, so two in a context with two links. It owns the wire and runs the
 * send queue, except while a blocking call drives the engine (submit.c). All messages have one type;
 * strategies never see a socket. */
#pragma once

#include "comm/message.h"
#include "emulate/links.h"
#include "wire/wire.h"

typedef struct ddp__engine ddp__engine;
struct ddp__membership;

enum {
    DDP__WINDOW = 16,      /* most collectives in flight */
    DDP__LARGE_WORLD = 256 /* of simulated workers: each has less room than in one of its own process */
};

/* One finished (or still running: end < 0) operation, for traces and the hidden share. */
typedef struct ddp__op_span {
    double begin, end; /* first and last byte on this rank, ddp_now() seconds */
    double submitted;
    double due;       /* when the last byte was due: before `end` where the thread was late; < 0 while it
                            runs */
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

/* Blocks (DDP_AS_INT8 and those behind it), which the engine knows by their size alone. What was decoded must
 * be decoded to the same bits when it is encoded again. Both fail with a sentence about x[index], or about
 * the payload. */
typedef struct ddp__coder {
    ddp_status (*encode)(ddp_coding coding, unsigned char *out, const float *x, size_t count, ddp_error *err);
    ddp_status (*decode)(ddp_coding coding, float *out, const unsigned char *payload, size_t count,
                         ddp_error *err);
} ddp__coder;

DDP_LIB void ddp__bfloat_round(float *x, size_t n); /* as values travel as bfloat16 */

typedef struct ddp__engine_config {
    ddp__wire *wire;         /* owned by the engine from a successful open on */
    int rank, world;         /* at least 2 */
    const ddp__links *links; /* that are emulated, or NULL; what it points to belongs to the engine
                                       until close */
    int deterministic;       /* rank-order sums only, never ring */
    size_t ring_bytes;       /* all-reduces from this size on go round the ring; 0 = by the link,
                          SIZE_MAX = none. Same on all ranks; a world of 2 has no ring */
    size_t full_bytes;       /* all-reduces up to this size are full exchanges, unless rings; 0 = by the
                          link, 1 = none. Same on all ranks; never with a membership */
    size_t share_bytes;      /* all-reduces from this size on, of ranks that are threads of one process,
                           unshaped and without a membership, are summed where the values are (share.c);
                           0 = 256 KiB, SIZE_MAX = none. Same on all ranks */
    double peer_timeout_s;   /* no byte from a peer for so long = lost; 0 = never */
    double op_timeout_s;     /* an operation fails so long after the first rank began it; 0 = never */
    double note_s;           /* a wait as long as this is worth a line; 0 = 5 */
    size_t chunk_bytes;      /* 0 = clamp(1 ms x rate, 4 KiB, 127 KiB), unshaped 127 KiB; at
                           most 127 KiB: 8 staging slots for a peer. Same on all ranks */
    size_t max_count;        /* floats of the largest message; bounds staging; 0 = unknown */
    int queue;               /* messages that may be submitted and not yet done */
    int serves;              /* push, serve, pull and answer have lanes. Same on all ranks */
    ddp_coding coding;       /* messages may travel so: takes a chunk per peer */
    const ddp__coder *coder; /* of its blocks; borrowed */
    int no_checksum;         /* 1: payloads go without a CRC-32C; each rank for what it sends */
    int check_writes;        /* as ddp__engine_guard with max_count, from the start */
    const struct ddp__membership *membership; /* NULL: a lost peer is an error */
    int min_world;                            /* membership: as in ddp_config */
    int servers;       /* membership: the highest ids, which ddp__engine_retire takes out of
                                       collectives. No epoch is without one of them: they take the place of a
                                       majority */
    size_t kept_bytes; /* membership: for inputs and results in flight: more operations queue,
                                       a longer message is an error; 0 = grows with the longest */
    uint64_t live;     /* membership: bit r = worker r is there from the start; 0 = all */
    int joining;       /* membership: this worker waits to be admitted by those in live */
    ddp_allocator allocator;
    ddp_logger log;
    const char *(*layer_name)(void *user, int layer); /* for errors; may be NULL */
    void *user;
} ddp__engine_config;

/* Allocates everything it will ever use and starts the comm thread. */
DDP_LIB ddp_status ddp__engine_open(const ddp__engine_config *cfg, ddp__engine **out, ddp_error *err);
/* Says goodbye to the peers (so that they do not count it as a loss), stops the thread, closes the wire. */
DDP_LIB void ddp__engine_close(ddp__engine *e);
/* In a forked child, which has no comm thread: closes the descriptors of the wire. NULL is fine. */
DDP_LIB void ddp__engine_disown(const ddp__engine *e);

/* Errors call a rank so from now on, beside its number: "stage 2 of pipeline 1". Copied, up to 47
 * characters. */
DDP_LIB void ddp__engine_call(ddp__engine *e, int rank, const char *name);

/* From now on checksums the memory of messages of up to max_count floats while they are in flight:
 * a write by anybody else is an error naming the layer. Longer messages go unchecked. To be called
 * while nothing is in flight (else DDP_USAGE); takes its tables from the allocator until close. */
DDP_LIB ddp_status ddp__engine_guard(ddp__engine *e, size_t max_count, ddp_error *err);

/* What ddp__engine_submit says of a message that it does not accept, such as a rank that does not exist. */
DDP_LIB ddp_status ddp__engine_accepts(const ddp__engine *e, const ddp_message *m, ddp_error *err);
/* Queues a message; *ticket identifies it to ddp__engine_wait. Never blocks unless the queue is
 * full. After a failure returns the engine's first error, once nobody touches the memory of any
 * message any more. Copies the message and its lists. */
DDP_LIB ddp_status ddp__engine_submit(ddp__engine *e, const ddp_message *m, long *ticket, ddp_error *err);
/* Blocks until that message is done or the engine failed; *err gets the engine's first error. */
DDP_LIB ddp_status ddp__engine_wait(ddp__engine *e, long ticket, ddp_error *err);
DDP_LIB int ddp__engine_done(ddp__engine *e, long ticket);
/* The same of its input, which a message with a `to` of its own gives back before it is done. */
DDP_LIB ddp_status ddp__engine_wait_input(ddp__engine *e, long ticket, ddp_error *err);
/* Blocks until one of these messages is done, and says which; -1: none of them yet, *stop (atomic)
 * became 1, or the engine failed. Who sets *stop calls ddp__engine_nudge behind it. */
DDP_LIB int ddp__engine_wait_any(ddp__engine *e, const long *tickets, int count, const int *stop);
DDP_LIB void ddp__engine_nudge(ddp__engine *e);
/* Submits a message and waits for it. Of calls that follow each other closely, on an idle engine
 * without emulated links or membership, the second and later are moved by the calling thread. */
DDP_LIB ddp_status ddp__engine_run(ddp__engine *e, const ddp_message *m, ddp_error *err);
/* Makes a group of n distinct ranks in rising order; *group numbers it, from 1. All ranks make all groups in
 * the same order, those included that they are not in; the n-th collective of a group meets the n-th of its
 * other members, whatever the world and other groups do meanwhile. Not with a membership (DDP_UNSUPPORTED).
 * At most 63. */
DDP_LIB ddp_status ddp__engine_group(ddp__engine *e, const int *ranks, int n, int *group, ddp_error *err);
/* The site of each rank, copied: messages with `levels` go inside them first, then between them. The same on
 * all ranks, with none of these messages in flight. */
DDP_LIB void ddp__engine_sites(ddp__engine *e, const int *site);
/* Membership: collectives from here on are among those below `servers`, which go on with messages between
 * two. On all ranks behind the same collective, with nothing in flight here. A serve of a worker that is
 * lost, and an answer to it, are over then: ddp_received. */
DDP_LIB void ddp__engine_retire(ddp__engine *e);
/* Its ranks, of the world those with a block in an all-gather; 1 where there is no such group. */
DDP_LIB int ddp__engine_group_size(const ddp__engine *e, int group);
/* Their numbers, rising; NULL for the world. Valid until close. */
DDP_LIB const int *ddp__engine_group_ranks(const ddp__engine *e, int group);
DDP_LIB size_t ddp__part_start(size_t n, size_t parts, size_t i); /* where part i of n values begins */
/* This rank's segment of a direct all-reduce of n values over a group, without a membership. */
DDP_LIB void ddp__engine_segment(const ddp__engine *e, int group, ddp_coding coding, size_t n, size_t *from,
                                 size_t *to);
/* Bytes of partial sums that a ring may have under way to the next rank. */
DDP_LIB size_t ddp__engine_window(const ddp__engine *e);
/* Sets the order in which rings go round (a permutation of all ranks; NULL = by number) and from how
 * many bytes on (0 = as opened, SIZE_MAX = never). Nothing may be in flight (DDP_USAGE); the same on
 * all ranks, before any of them submits again. */
DDP_LIB ddp_status ddp__engine_ring(ddp__engine *e, const int *order, size_t ring_bytes, ddp_error *err);
/* Makes room for messages of up to this many pieces; as opened: 2048, or 512 of very many engines in a
 * process. Nothing may be in flight (DDP_USAGE). */
DDP_LIB ddp_status ddp__engine_pieces(ddp__engine *e, size_t pieces, ddp_error *err);
/* How many collectives are in flight at a time: the oldest not yet complete. */
DDP_LIB int ddp__engine_width(const ddp__engine *e);
/* Fails everything in flight here and, through control frames, on all peers. Any thread. */
/* The rank whose loss is the engine's error, or -1. Any thread. */
DDP_LIB int ddp__engine_lost(ddp__engine *e);
DDP_LIB void ddp__engine_abort(ddp__engine *e, ddp_status code, const char *why);
DDP_LIB void ddp__engine_hush(ddp__engine *e); /* what it fails for concerns nobody else: to peers it is
                                                        lost */
/* After a failure returns when nobody touches the memory of any message any more, within half a
 * second; else at once. For the thread that submits. */
DDP_LIB void ddp__engine_settle(ddp__engine *e);
/* The engine's first error, DDP_OK while it is healthy. */
DDP_LIB ddp_status ddp__engine_error(ddp__engine *e, ddp_error *err);
DDP_LIB int ddp__engine_left(ddp__engine *e); /* the lowest rank that has said goodbye; -1 = none */

/* ---- the record (record.c) ---- */

/* Copies spans that overlap t0..t1, running ones included, newest last; returns how many.
 * The engine remembers the last few thousand. */
DDP_LIB int ddp__engine_spans(ddp__engine *e, double t0, double t1, ddp__op_span *out, int room);

typedef struct ddp__net_stats {
    int64_t bytes_sent, bytes_received; /* all bytes handed to or taken from the wire, headers included */
    int64_t payload_sent;               /* of messages */
    int64_t sent_as[DDP__AS_BYTES + 2]; /* of it the library's own words, then by ddp_coding */
    int64_t operations;
    double busy_s;        /* union of operation spans */
    double cpu_s;         /* processor time of the comm thread; 0 = unknown */
    size_t staging_bytes; /* memory the engine took from the allocator */
    size_t kept_bytes;    /* of it, for inputs and results that are kept */
    char algorithm;       /* of the last all-reduce, 0 = none yet */
} ddp__net_stats;
DDP_LIB void ddp__engine_stats(ddp__engine *e, ddp__net_stats *out);
DDP_LIB const char *ddp__verb_name(int verb); /* "all-reduce" and its like */
/* "direct" and its like of a span or of the statistics; "none" of 0. */
DDP_LIB const char *ddp__algorithm_name(char letter);

enum {
    DDP__OPLOG = 2000,      /* operations that are kept, unfinished ones included */
    DDP__OPLOG_MISSING = 16 /* ranks that are listed as missing */
};

typedef enum ddp__op_progress {
    DDP__IS_QUEUED, /* submitted; its turn has not come */
    DDP__IS_ACTIVE,
    DDP__IS_DONE
} ddp__op_progress;

typedef struct ddp__op_record {
    ddp__op_span span; /* seq of a queued one: the number that it will get */
    ddp__op_progress progress;
    int64_t left;                                   /* bytes still to send or to receive */
    int missing[DDP__OPLOG_MISSING], missing_count; /* ranks that have not begun it */
} ddp__op_record;

typedef struct ddp__peer_record {
    char name[80];
    long begun;            /* collectives that it has begun, by its last word; -1 = unknown */
    double heard_s, got_s; /* seconds since that word, and since its last byte; -1 = never */
    int left;              /* it closed its context */
} ddp__peer_record;

/* A copy of what the engine remembers of its operations, for the post-mortem. */
typedef struct ddp__oplog {
    ddp__op_record *record; /* [count], oldest first */
    int count;
    long dropped;           /* older operations that were forgotten */
    ddp__peer_record *peer; /* [world]; that of this rank says what it has begun itself */
    ddp_error error;        /* the engine's first, code DDP_OK = none */
    double now;             /* ddp_now() of the copy */
    int served;
} ddp__oplog;

/* Any thread, also while others wait in the engine and after it failed. The comm thread makes the
 * copy; where it does not answer within a second, peers and missing ranks are left out.
 * Errors: DDP_MEMORY. *out is freed by ddp__oplog_free in any case. */
DDP_LIB ddp_status ddp__engine_oplog(ddp__engine *e, ddp__oplog *out, ddp_error *err);
DDP_LIB void ddp__oplog_free(ddp__oplog *log);

/* ---- who is live ----
 *
 * With a membership a lost peer begins a new epoch instead of an error: the majority that is left finishes
 * what was in flight, all with the same bits. Ranks are stable ids 0..world-1 (world at most 64); an epoch is
 * a ballot and the set of ids that are live in it. Collectives run over the live ids; blocks of others in an
 * all-gather become 0, a lost root's broadcast is that of the lowest live id. */
typedef struct ddp__epoch_info {
    uint32_t ballot; /* rises with every epoch, 0 at first; not by 1 */
    uint64_t live;   /* bit r: worker r is in it; all ones of world without a membership */
    int workers;     /* how many */
    long changes;    /* epochs that this engine has begun */
} ddp__epoch_info;
DDP_LIB void ddp__engine_epoch(ddp__engine *e, ddp__epoch_info *out); /* the epoch in force. Any
                                                                               thread. */
