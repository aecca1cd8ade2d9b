/* Plain collectives over all ranks or over one of two links, and who is there. */
#ifndef DDP_RUN_COLLECTIVE_H
#define DDP_RUN_COLLECTIVE_H

#include "comm/message.h"
#include "profile/profile.h"
#include "run/session.h"

/* Plain collectives over all ranks, usable without layers or hooks; each returns 0 or the first
 * error. In place; n counts floats. All ranks call them in the same order, never between the
 * first hook and ddp_step_end of a step.
 *   ddp_all_reduce  x[n] becomes scale x (sum over ranks)
 *   ddp_all_mean    x[n] becomes the mean over the live workers
 *   ddp_broadcast   if root is not live: the lowest live rank's
 *   ddp_all_gather  x[world x n]: rank r's block is the r-th; 0 if r is not live
 *   ddp_reduce_scatter  x[world x n]: the rank-th block becomes scale x (sum over ranks), the
 *                   others stay; with ddp_all_gather behind it the bits of a direct all-reduce.
 *                   Not in elastic worlds (DDP_UNSUPPORTED)
 *   ddp_exchange    any message: of a group, over the second link, of bytes, from one array to
 *                   another, and all-reduces as bfloat16 or int8 blocks (contexts opened with that
 *                   wire; nothing is kept of what is cut off; DDP_NUMERIC where a value is not
 *                   finite). Without fields `after` and `overlap` */
DDP_API int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_all_mean(ddp_ctx *d, float *x, size_t n);
DDP_API int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root);
DDP_API int ddp_all_gather(ddp_ctx *d, float *x, size_t n);
DDP_API int ddp_reduce_scatter(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_barrier(ddp_ctx *d);
DDP_API int ddp_send(ddp_ctx *d, float *x, size_t n, int to);
DDP_API int ddp_recv(ddp_ctx *d, float *x, size_t n, int from);
DDP_API int ddp_exchange(ddp_ctx *d, const ddp_message *m);

/* A second link, opened beside the first where net2 or addr2 is set: its own connections, comm
 * worker and measurements; operations on the two do not wait for one another. ddp_exchange takes
 * either link (0 or 1); the others are link 0's.
 *   ddp_links           how many this context has: 0 with one worker, 1 or 2; with nccl the
 *                       devices' network is the first
 *   ddp_measure_links   times averages on each link alone. Collective, between steps
 *   ddp_get_link_stats  0, or DDP_ARG for a link that does not exist; *out is zero then */
typedef struct ddp_link_stats {
    int64_t     bytes_sent; /* headers included */
    int64_t     operations;
    double      busy_s;     /* union of its operations */
    ddp_link    link;       /* as measured, else nominal; 0 before */
    double      mu;         /* beta of this link over that of link 0; 0 = unknown */
    const char *algorithm;  /* of its last all-reduce: "direct", "ring" or "none" */
} ddp_link_stats;
DDP_API int ddp_links(const ddp_ctx *d);
DDP_API int ddp_measure_links(ddp_ctx *d);
DDP_API int ddp_get_link_stats(ddp_ctx *d, int link, ddp_link_stats *out);

/* Elastic worlds (ddp_config.min_world). ddp_rank and ddp_world are ids and their number (with
 * max_world that): they stay what they were when workers are lost or come. ddp_workers is the
 * number of those that are live, ddp_live has bit r set for each of them (all ones of world where
 * not elastic), ddp_epoch rises with each change. They may change in any hook or collective. */
DDP_API int      ddp_workers(const ddp_ctx *d);
DDP_API uint64_t ddp_live(const ddp_ctx *d);
DDP_API unsigned ddp_epoch(const ddp_ctx *d);

#endif /* DDP_RUN_COLLECTIVE_H */
