/* How long a step takes with servers of layers (bsp, asp, ssp, r2sp, osp). */
#pragma once

#include "base/status.h"

/* What a server makes of pushes. */
typedef enum ddp_serving {
    DDP_SERVING_TOGETHER, /* answers all when all have pushed: bsp, osp, ssp 0 */
    DDP_SERVING_EACH,     /* answers each at once, ssp as far as it may be ahead */
    DDP_SERVING_IN_TURN   /* in the order of ranks: r2sp, or deterministic */
} ddp_serving;

typedef struct ddp_served {
    ddp_serving rule;
    int ahead; /* steps that a worker may be ahead of the slowest; -1 = any number */
    int workers, servers;
    int colocated;       /* worker k is server k, with one link: servers = workers */
    const double *bytes; /* [servers] of gradients, and of what is returned; borrowed */
    const double *late;  /* [servers] of these that travel during the next step's computing (osp); NULL:
                                  none */
    double compute_s;    /* of a step of a worker */
    double bytes_per_s;  /* of each rank's link, in each direction */
    double delay_s;      /* one way */
} ddp_served;

/* ddp_served_step - seconds of a step in the steady state: a worker computes, pushes to all servers one after
 * another and
 *   goes on when all have answered; late bytes follow, and are back before its next push. A message takes
 *   bytes / rate of the sender's uplink and of the receiver's downlink, each first come first served, and
 *   arrives delay_s later. Updates take no time.
 *
 *   work    ddp_served_room(workers, servers) bytes, or NULL: it is allocated for the call
 *   out     untouched on error
 *
 * Source: OSP, specs 4.3, with the order of messages. Cost: 24 steps of every worker, each looked for among
 * workers x servers. Errors: DDP_ARG (names the number), DDP_MEMORY. */
DDP_API ddp_status ddp_served_step(const ddp_served *s, void *work, double *out, ddp_error *err);
DDP_API size_t ddp_served_room(int workers, int servers);
