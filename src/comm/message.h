/* What travels: one kind of message for gradients, parameters, requests and activations. Strategies
 * post messages (config/strategy.h); the comm thread moves them and never looks at what they mean. */
#pragma once

#include "base/status.h"

typedef enum ddp_verb {
    DDP_ALL_REDUCE,     /* the sum over the group in rank order (or ring), times scale, on all */
    DDP_BROADCAST,      /* what peer has, on all */
    DDP_ALL_GATHER,     /* members x n values: the r-th member's block is the r-th, on all */
    DDP_REDUCE_SCATTER, /* members x n values: the r-th member's r-th block becomes the sum, times scale;
                           others stay */
    DDP_SEND,           /* to peer; the n-th of a pair meets its n-th receive, urgent ones apart */
    DDP_PUSH,           /* to peer, which serves: it meets no receive of its own number, but the next
                           DDP_SERVE there */
    DDP_ANSWER,         /* to peer, which pulls: its n-th answer meets the n-th pull from here */
    DDP__ASK,           /* the request of a pull; DDP_PULL sends it by itself */
    DDP_RECEIVE,        /* from peer, or from whichever rank comes first (DDP_ANY) */
    DDP_SERVE,          /* the next push or request of peer, or of whichever rank comes first (DDP_ANY) */
    DDP_PULL            /* asks peer, and receives its DDP_ANSWER */
} ddp_verb;

enum { DDP_ANY = -1 }; /* as peer of a receive: whichever rank comes first */

/* Contiguous values; a message is a list of them (a bucket of several layers is no copy). */
typedef struct ddp_piece {
    union {
        float *data;
        void *bytes; /* where the message is of bytes */
    };
    size_t count; /* of floats, or of bytes */
} ddp_piece;

/* How values travel; in memory and in sums they are floats. */
typedef enum ddp_coding {
    DDP_AS_FLOAT,
    DDP_AS_BFLOAT, /* two bytes each */
    DDP_AS_INT8,   /* blocks of 64: a float's scale for each block, then a byte for each value */
    DDP_AS_INT4,   /* the same with half a byte for each value */
    DDP_AS_E3M0,   /* half a byte too: a sign and one of seven powers of two, or 0 */
    DDP__AS_BYTES  /* no floats at all: ddp_message.bytes */
} ddp_coding;

/* What a receive or a serve got, written before it is done. */
typedef struct ddp_received {
    ddp_verb verb; /* DDP_SEND, DDP_PUSH, or DDP_PULL: a request, to be answered by DDP_ANSWER; DDP_SERVE:
                       nothing. The peer was lost (min_world), or had not come when others needed its place in
                       the queue */
    int peer, layer;
    size_t count;
} ddp_received;

/* What becomes of a sum on the rank that owns a part of it, before it goes to all: called on the comm thread
 * for the parts of this rank's segment (ddp_segment_of) in order, x[0..n-1] are the values at.. of the
 * message, scaled; what it leaves there is the result. Such a sum is direct. Not in two levels, or from
 * device to device.
 *
 * An elastic world needs `again`, called on the comm thread when a rank was lost and the sum starts over,
 * with other segments: it restores all that the rule has changed since the message was posted. A sum that
 * another rank has completed does not start over. */
typedef struct ddp_owner {
    void (*rule)(void *user, size_t at, float *x, size_t n);
    void *user;
    void (*again)(void *user); /* NULL: the world is not elastic */
} ddp_owner;

/* What makes a message: called on the comm thread when it begins, once, to fill the memory that it sends from
 * what those before it (after) have brought; 0, or a status and *err: the run ends. */
typedef struct ddp_maker {
    ddp_status (*make)(void *user, ddp_error *err);
    void *user;
} ddp_maker;

/* All ranks post collectives in one agreed order; the n-th collective of one rank meets the n-th of
 * the others, and verb, number of values, coding and layer are compared (DDP_MISMATCH names both).
 * All zero but verb, from and from_count is a plain message of floats in place. */
typedef struct ddp_message {
    ddp_verb verb;
    const ddp_piece *from; /* what is sent or summed; copied, the memory is borrowed until the */
    int from_count;        /* message is done, or its input is released where to is another */
    const ddp_piece *to;   /* where what comes is written: as many values as from has; NULL: in */
    int to_count;          /* place. A member's own values of a broadcast or all-gather are not
                                   copied from one to the other */
    int add;               /* 1: what comes is added to `to`, which is another memory; from is scratch
                                   then */
    int bytes;             /* 1: values are bytes; no sums */
    float scale;           /* sums: multiplied into the sum once; 0 = 1 */
    int mean;              /* sums: scale = 1 / members of the group, or live workers */
    int group;             /* collectives: of ddp_group; 0 = all ranks that compute */
    int peer;              /* root, destination or source */
    int layer;             /* tag: a layer's index, or DDP_NO_LAYER or one of those below it */
    long step;             /* tag: for errors, traces and the mismatch check */
    int priority;          /* smaller first among the messages in flight; send and receive: below
                                   0 on both sides = urgent, it overtakes the others */
    int link;              /* 0 or 1 (ddp_links) */
    long after;            /* collectives: 1 + the ticket of a message that has to be done before
                                   this one begins (its memory is not looked at before); 0 = none */
    ddp_coding coding;     /* all-reduce: contributions and results travel so, sums are in float in rank
                                   order, never round a ring; as the context was opened for, or
                                   DDP_AS_FLOAT */
    float *residual;       /* NULL, or one float per value, borrowed: what coding the result cut
                                   off this rank's segment, divided by the scale, is added to it */
    double *divergence;    /* collectives in place: NULL, or receives sum((result - own)^2) over
                                   this rank's values, measured where the result overwrites them */
    union {
        ddp_received *received; /* a receive, serve or pull: NULL, or borrowed until done */
        const ddp_owner *owner; /* all-reduce: NULL, or borrowed until done */
        const ddp_maker *maker; /* broadcast, all-gather: the same */
    };
    int ragged;     /* gathering and scattering in a group: blocks may differ by a value */
    int overlap;    /* all-reduce: 1 = pieces may lie over each other, values do not matter;
                                   such a sum travels as bytes also among threads */
    int filler;     /* 1: bubble filling, left out of the hidden share */
    char round;     /* with a residual: values are not yet as coding reads them; when the message
                                   begins, the residual is added to them, and what coding cuts off becomes the
                                   residual */
    char counts_as; /* bytes: 0, or the ddp_wire by which ddp_stats.bytes_as has them */
    char here;      /* in place: 1 = the first piece lies in this machine's memory, also where
                                   layers are on a device; holding the message waits for it */
    char levels;    /* all-reduce in place over all ranks: 1 = inside sites as floats, then
                                   between them in its coding, where the library knows sites; a residual is
                                   added, and kept, by who crosses */
} ddp_message;

enum { /* ddp_message.layer */
       DDP_NO_LAYER = -1,
       DDP_ALL_LAYERS = -2,
       DDP__BARRIER = -3,
       DDP__OWN_WORD = -4, /* the library's own: profiles, plans, comparisons */
       DDP__ALL_VALUES =
           -5, /* parameters and buffers that the library shares or averages beside a strategy */
       DDP__MICRO_BATCH = -6 /* what crosses from stage to stage */
};
