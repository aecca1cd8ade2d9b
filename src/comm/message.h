/* The message, the unit that strategies send: verb, arrays, peer or group, wire format. One type serves
 * gradients, parameters, requests and activations. Strategies post messages (config/strategy.h). The comm
 * thread moves them and never interprets the values. */
#pragma once

#include "base/status.h"

typedef enum ddp_verb {
    DDP_ALL_REDUCE,     /* every rank gets the sum over the group, times scale. Added in rank order, except by
                           the ring. */
    DDP_BROADCAST,      /* every rank gets the values of `peer` */
    DDP_ALL_GATHER,     /* members x n values: block r comes from the r-th member. Every rank gets all
                           blocks. */
    DDP_REDUCE_SCATTER, /* members x n values: on the r-th member, block r becomes the sum over the group,
                           times scale. The other blocks do not change. */
    DDP_SEND,           /* to `peer`: the n-th send of a pair of ranks matches the n-th receive. High-priority
                           messages are counted separately. */
    DDP_PUSH,           /* to `peer`, a server: matches the next DDP_SERVE there, not a receive by number */
    DDP_ANSWER,         /* to `peer`, which pulls: the n-th answer matches the n-th pull of that peer here */
    DDP__ASK,           /* the request of a pull. DDP_PULL sends it automatically. */
    DDP_RECEIVE,        /* from `peer`, or from the rank whose message arrives first (DDP_ANY) */
    DDP_SERVE,          /* accepts the next push or request of `peer`, or of the rank whose message arrives
                           first (DDP_ANY) */
    DDP_PULL            /* sends a request to `peer` and receives its DDP_ANSWER */
} ddp_verb;

enum { DDP_ANY = -1 }; /* peer of a receive or serve: the rank whose message arrives first */

/* Contiguous values. A message is a list of pieces, so a bucket of several layers needs no copy. */
typedef struct ddp_piece {
    union {
        float *data;
        void *bytes; /* if ddp_message.bytes is 1 */
    };
    size_t count; /* in floats, or in bytes if ddp_message.bytes is 1 */
} ddp_piece;

/* The wire format of values. In memory and in sums they are always floats. */
typedef enum ddp_coding {
    DDP_AS_FLOAT,
    DDP_AS_BFLOAT, /* 2 bytes per value */
    DDP_AS_INT8,   /* blocks of 64 values: one float scale per block, then 1 byte per value */
    DDP_AS_INT4,   /* the same with half a byte per value */
    DDP_AS_E3M0,   /* also half a byte per value: a sign and one of seven powers of two, or 0 */
    DDP__AS_BYTES  /* raw bytes, not floats: ddp_message.bytes */
} ddp_coding;

/* The result of a receive or serve. It is written before the message is done. */
typedef struct ddp_received {
    /* DDP_SEND, DDP_PUSH, or DDP_PULL for a request, which you reply to with DDP_ANSWER. DDP_SERVE means that
     * no message arrived, because the peer was lost (min_world) or because other messages needed the queue
     * slot first */
    ddp_verb verb;
    int peer, layer;
    size_t count;
} ddp_received;

/* A callback that transforms the result of an all-reduce on the rank that owns a segment of it
 * (ddp_segment_of), before the result is sent to all ranks. An all-reduce with an owner uses the direct
 * algorithm or, unless the world is elastic, the ring. It cannot be combined with `levels`, or with transfers
 * from device to device. */
typedef struct ddp_owner {
    /* Called on the comm thread for the parts of this rank's segment, in order. x[0..n-1] are the scaled
     * values at.. of the message. The rule overwrites them with the result. */
    void (*rule)(void *user, size_t at, float *x, size_t n);
    void *user;
    /* Required in an elastic world, else NULL. Called on the comm thread when a rank was lost and the
     * all-reduce restarts with other segments: it undoes all changes that the rule made since the message was
     * posted. An all-reduce that another rank has completed does not restart. */
    void (*again)(void *user);
} ddp_owner;

/* A callback that fills the memory to be sent. Called once, on the comm thread, when the message begins. By
 * then the message named by `after` is done. Returns 0, or a status and *err, which ends the run. */
typedef struct ddp_maker {
    ddp_status (*make)(void *user, ddp_error *err);
    void *user;
} ddp_maker;

/* One message. All zero except verb, from and from_count: an in-place message of floats.
 *
 * All ranks must post collectives in the same order: the n-th collective of one rank matches the n-th of
 * every other rank. The engine compares verb, number of values, coding and layer, and fails with
 * DDP_MISMATCH, which names both, if they differ. */
typedef struct ddp_message {
    ddp_verb verb;

    /* The values to send or sum. The list is copied. The memory is borrowed until the message is done, or, if
     * `to` is different memory, until the input is released. */
    const ddp_piece *from;
    int from_count;

    /* Where the result is written: as many values as `from` has, or NULL for in place. A member's own values
     * of a broadcast or all-gather are not copied from `from` to `to`. */
    const ddp_piece *to;
    int to_count;

    int add;      /* 1: add the result to `to`, which must be different memory. `from` becomes scratch
                     memory. */
    int bytes;    /* 1 if the values are bytes, which cannot be summed */
    float scale;  /* sums: factor applied once to the sum. 0 means 1. */
    int mean;     /* 1, sums: scale = 1 / members of the group, or 1 / live workers */
    int group;    /* collectives: a group made by ddp_group, or 0 for all ranks that compute */
    int peer;     /* root, destination or source */
    int layer;    /* tag: index of a layer, or DDP_NO_LAYER or one of the values below it */
    long step;    /* tag for errors, traces and the mismatch check */
    int priority; /* among messages in flight the smallest is sent first. Send and receive: a value below 0 on
                     both sides makes the message high-priority: it overtakes the others */
    int link;     /* 0 or 1 (ddp_links) */
    long after;   /* collectives: 1 + the ticket of a message that must be done before this one begins, or 0.
                     The memory is not read before. */

    /* All-reduce: wire format of contributions and results, which is the format that the context was opened
     * for, or DDP_AS_FLOAT. Sums are in float and in rank order. Other formats never use the ring. */
    ddp_coding coding;

    /* NULL, or one float per value, borrowed: the quantisation error of the result in this rank's segment,
     * divided by the scale, is added to it. */
    float *residual;

    /* Collectives in place: NULL, or receives sum((result - own)^2) over this rank's values, computed when
     * the result overwrites them. */
    double *divergence;

    union {
        ddp_received *received; /* receive, serve or pull: NULL, or borrowed until the message is done */
        const ddp_owner *owner; /* all-reduce: NULL, or borrowed until the message is done */
        const ddp_maker *maker; /* broadcast, all-gather: NULL, or borrowed until the message is done */
    };
    int ragged;  /* 1, all-gather and reduce-scatter in a group: block lengths may differ by one value */
    int overlap; /* 1, all-reduce: pieces may overlap and the values do not matter. The message is sent as
                    bytes even between threads. */
    int filler;  /* 1: bubble filling, not counted in the hidden share */

    /* 1, with a residual: the values are not yet rounded to `coding`. When the message begins, the residual
     * is added to them, they are rounded, and the rounding error becomes the new residual. */
    char round;

    char counts_as; /* bytes: 0, or the ddp_wire under which ddp_stats.bytes_as counts them */

    /* 1, in place: the first piece is in host memory even if the layers are on a device. 2: all pieces are.
     * Holding the message (ddp_hold) waits for it. */
    char here;

    /* 1, all-reduce in place over all ranks: hierarchical, as floats inside sites and in `coding` between
     * them, if the library knows the sites. The rank that sends between sites adds the residual and stores
     * the new one. */
    char levels;
} ddp_message;

enum { /* ddp_message.layer */
       DDP_NO_LAYER = -1,
       DDP_ALL_LAYERS = -2,
       DDP__BARRIER = -3,
       DDP__OWN_WORD = -4,   /* the library's own data: profiles, plans, comparisons */
       DDP__ALL_VALUES = -5, /* parameters and buffers that the library shares or averages, apart from the
                                strategy */
       DDP__MICRO_BATCH = -6 /* activations and gradients between pipeline stages */
};
