/* Spans: the intervals in which a worker computes, waits or transfers. */
#pragma once

#include "base/status.h"

/* Kinds of spans: compute, waits and transfers. */
typedef enum ddp_span_kind {
    DDP_SPAN_FORWARD,
    DDP_SPAN_BACKWARD,
    DDP_SPAN_UPDATE,
    DDP_SPAN_WAIT,     /* the training thread waits for a transfer */
    DDP_SPAN_COMM,     /* one operation, from the first to the last byte on this rank */
    DDP_SPAN_FILL,     /* the same for a transfer that only fills a bubble */
    DDP_SPAN_PEER_WAIT /* an operation waits for a slower peer */
} ddp_span_kind;

#define DDP_SPAN_KINDS   (DDP_SPAN_PEER_WAIT + 1)
#define DDP_SPAN_COMPUTE (1u << DDP_SPAN_FORWARD | 1u << DDP_SPAN_BACKWARD | 1u << DDP_SPAN_UPDATE)

/* One interval [begin_s, end_s) of one worker, in seconds of ddp_now(). A span that is still in progress
 * (end_s not above begin_s) is not counted. */
typedef struct ddp_span {
    double begin_s, end_s;
    long step;          /* step that it belongs to */
    int layer;          /* -1 = none */
    ddp_span_kind kind; /* what the worker did */
    int64_t bytes;      /* sent by this rank, or 0 for compute */
} ddp_span;

/* ddp_span_kind_name - returns the text of a kind: "forward", "backward", "update", "wait", "comm", "fill" or
 * "peer wait". A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_span_kind_name(ddp_span_kind kind);
