/* The clock of a link: of one that carries one message at a time, and of one that messages share as the comm
 * thread sends them. */
#pragma once

#include "base/core.h"

/* Sends a message that becomes ready at `ready` and occupies the link for `takes` seconds. Returns the
 * start time, and sets *free_at to the time at which the link is free again. The message arrives alpha
 * later. */
DDP_LIB double ddp__link_take(double *free_at, double ready, double takes);
/* The index of the link that would deliver the message first. The lowest index wins a tie. */
DDP_LIB int ddp__link_first(int links, const double *free_at, double ready, const double *takes,
                            const double *alpha);

enum { DDP__LINK_PARTS = 16, DDP__LINK_WIDTH = 16 };

/* What a message costs. */
typedef struct ddp__message_cost {
    double takes;   /* seconds for which it occupies the link */
    double alpha_s; /* seconds from its start until a short message arrives */
    int halves; /* 1 for the direct all-reduce: the results are the second half of the bytes. A part of them
                       can leave half of alpha_s after the same part of the contributions */
    int parts;  /* parts of a half, or of the message: 1 to DDP__LINK_PARTS */
} ddp__message_cost;

/* A message of a link, from sending to arrival. */
typedef struct ddp__shared_message {
    ddp__message_cost cost;
    double ready;                   /* from this time on it can begin */
    double arrives;                 /* DBL_MAX until its last part has left */
    int after;                      /* the message that must arrive before it begins, or -1 */
    int priority;                   /* lowest first, then the message that began first */
    int next;                       /* the message that begins after it, or -1 */
    int sent;                       /* parts that have left, of both halves */
    double result[DDP__LINK_PARTS]; /* [cost.parts] the time from which a part of the results can leave */
} ddp__shared_message;

/* A link that messages share. Messages begin in the order of sending, and at most `width` of them are in
 * flight. The link sends one part at a time, of the message with the highest priority that has one. */
typedef struct ddp__shared_link {
    int width, flights;
    int first, last; /* of the messages that have not begun, or -1 */
    double now;      /* until this time the link is simulated */
    ddp__shared_message *message;
    int flight[DDP__LINK_WIDTH]; /* [flights] the messages in flight, in the order of beginning */
} ddp__shared_link;

/* width is limited to DDP__LINK_WIDTH. message: [n], borrowed. No message is sent yet. */
DDP_LIB void ddp__shared_start(ddp__shared_link *k, ddp__shared_message *message, int n, int width);
/* Sends message m, whose earlier use has arrived. `ready` must not be earlier than an arrival that was asked
 * for.
 *   after     a message that was sent before, or -1 */
DDP_LIB void ddp__shared_send(ddp__shared_link *k, int m, const ddp__message_cost *cost, double ready,
                              int after, int priority);
/* Returns the arrival of message m, which was sent. */
DDP_LIB double ddp__shared_arrival(ddp__shared_link *k, int m);
