/* Measuring the links between all ranks. */
#ifndef DDP_RUN_PROBE_H
#define DDP_RUN_PROBE_H

#include "profile/profile.h"
#include "run/session.h"

struct ddp_network;

/* From one rank to another. */
typedef struct ddp_pair {
    double   ping_s;        /* half the shortest round trip, seconds */
    double   ping_median_s; /* half the median one */
    ddp_link link;          /* one way: n bytes arrive after alpha_s + beta_s n; least squares */
    double   rate;          /* bytes per second of the largest transfer, latency left out */
    double   offset_s;      /* wall clock of the receiver minus that of the sender, measured on the
                               shortest round trip: right to within half of it */
    int      relayed;       /* 1: what they send each other goes through rank 0 */
} ddp_pair;

/* The same on every rank; freed by ddp_probe_free. */
typedef struct ddp_probe_result {
    int       world;
    ddp_pair *pair;   /* [world x world], row = sender; the diagonal is 0 */
    ddp_link *host;   /* [world] least squares over all that the rank sent */
    char    (*name)[64]; /* [world] host name */
    double    seconds;   /* the probing took */
} ddp_probe_result;

/* ddp_probe - measures every pair in both directions: world - 1 rounds (world, where it is odd) of
 * disjoint pairs that work at the same time; 20 pings (8 where they take more than 3 s), then
 * 64 KiB and what fits 0.25 s, at most 1 MiB, each three times and, where a busy machine or other
 * traffic disturbs it, again until the two fastest agree to 3 % (16 times or 3 s at most).
 * Collective, under the rules of the plain collectives. Returns 0 or the context's first error;
 * DDP_USAGE with one worker. */
DDP_API int  ddp_probe(ddp_ctx *d, ddp_probe_result *out);
DDP_API void ddp_probe_free(ddp_probe_result *r);

/* ddp_probe_network - the same as delays and rates of a network, for ddp_network_write and the
 * planners; freed by ddp_network_free. Errors: DDP_ARG, DDP_MEMORY. */
DDP_API ddp_status ddp_probe_network(const ddp_probe_result *r, struct ddp_network *out,
                                     ddp_error *err);

#endif /* DDP_RUN_PROBE_H */
