/* Spans of what a worker did and when; the share of its communication that was hidden. */
#ifndef DDP_PROFILE_TRACE_H
#define DDP_PROFILE_TRACE_H

#include "base/status.h"

typedef enum ddp_span_kind {
    DDP_SPAN_FORWARD,
    DDP_SPAN_BACKWARD,
    DDP_SPAN_UPDATE,
    DDP_SPAN_WAIT,     /* the training thread waits for a transfer */
    DDP_SPAN_COMM,     /* one operation, first to last byte on this rank */
    DDP_SPAN_FILL,     /* the same, of a transfer that only fills a bubble */
    DDP_SPAN_PEER_WAIT /* an operation waits for a slower peer */
} ddp_span_kind;

#define DDP_SPAN_KINDS   (DDP_SPAN_PEER_WAIT + 1)
#define DDP_SPAN_COMPUTE (1u << DDP_SPAN_FORWARD | 1u << DDP_SPAN_BACKWARD | 1u << DDP_SPAN_UPDATE)

/* One interval [begin_s, end_s) of one worker, ddp_now() seconds. A span that is still running (end_s not above
 * begin_s) counts nothing. */
typedef struct ddp_span {
    double        begin_s, end_s;
    long          step;
    int           layer; /* -1 none */
    ddp_span_kind kind;
    int64_t       bytes; /* sent by this rank; 0 for compute */
} ddp_span;

/* ddp_span_kind_name - "forward", "backward", "update", "wait", "comm", "fill", "peer wait". */
DDP_API const char *ddp_span_kind_name(ddp_span_kind kind);

/* ddp_span_union - seconds covered by at least one span whose bit (1u << kind) is in kinds. ddp_span_overlap - seconds
 * covered by kinds a and, at the same time, by kinds b.
 *
 * spans [n] are one worker's, in any order. Both take O(n log n) and allocate scratch with DDP_REALLOC; the result is
 * NAN when memory is short. Safe from any thread. */
DDP_API double ddp_span_union(const ddp_span *spans, int n, unsigned kinds);
DDP_API double ddp_span_overlap(const ddp_span *spans, int n, unsigned a, unsigned b);

/* ddp_hidden_share - the share of one worker's communication that its computing hides, 0..1: 1 - (communication outside
 * compute) / communication, where communication is the union of the DDP_SPAN_COMM spans (bubble filling and waiting for
 * peers are left out) and compute the union of forward, backward and update. 1 if there is no communication; NAN when
 * memory is short. For a group of workers: the mean of their shares. Safe from any thread. */
DDP_API double ddp_hidden_share(const ddp_span *spans, int n);

#endif /* DDP_PROFILE_TRACE_H */
