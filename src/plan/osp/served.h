/* Predicts the step time with parameter servers (bsp, asp, ssp, r2sp, osp). */
#pragma once

#include "base/status.h"

/* When a server answers a push. */
typedef enum ddp_serving {
    DDP_SERVING_TOGETHER, /* when all workers have pushed: bsp, osp, ssp with 0 steps ahead */
    DDP_SERVING_EACH,     /* at once, as far as `ahead` allows: asp, ssp */
    DDP_SERVING_IN_TURN   /* in rank order: r2sp, or a deterministic run */
} ddp_serving;

/* The run whose step time ddp_served_step predicts. */
typedef struct ddp_served {
    ddp_serving rule;     /* when a server answers */
    int ahead;            /* steps a worker may be ahead of the slowest one, or -1 for no limit */
    int workers, servers; /* numbers of both, at least 1 */
    int colocated;        /* 1 = worker k is also server k and both use one link, with servers = workers */
    const double *bytes;  /* [servers] bytes of gradients, and as many in the answer. Borrowed. */
    const double *late;   /* [servers] the part of these bytes that travels during the next step's compute
                            (osp). May be NULL. */
    double compute_s;     /* compute time of one step of a worker, in seconds */
    double bytes_per_s;   /* rate of each rank's link, in each direction */
    double delay_s;       /* one-way delay, in seconds */
} ddp_served;

/* ddp_served_step - computes the seconds per step in the steady state.
 *
 * A worker computes, pushes to all servers one after another, and continues when all have answered. Late
 * bytes follow. Their answer arrives before the worker's next push. A message takes bytes / rate on the
 * sender's uplink and on the receiver's downlink. Each link serves messages first come, first served. A
 * message arrives delay_s later. Updates take no time.
 *
 *   work  ddp_served_room(workers, servers) bytes of scratch, or NULL to allocate it for the call
 *   out   receives the seconds. Unchanged on error.
 *
 * Source: OSP, specs 4.3, with the order of the messages. Cost: simulates 24 steps of every worker. Finding
 * each message takes O(workers x servers). Errors: DDP_ARG (names the number), DDP_MEMORY. */
DDP_API ddp_status ddp_served_step(const ddp_served *s, void *work, double *out, ddp_error *err);

/* ddp_served_room - returns the bytes of scratch memory that ddp_served_step needs for these numbers of
 * workers and servers. Pure and safe from any thread. */
DDP_API size_t ddp_served_room(int workers, int servers);
