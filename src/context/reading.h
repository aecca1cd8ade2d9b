/* Read-only queries of a context: rank, world, step, live workers, servers, links and the first error. */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;

/* Reading the context. ddp_last_error is never NULL; code DDP_OK means none. ddp_taken: so many micro-batches
 * all workers together have trained on since the first step, also those before a checkpoint was loaded, on
 * whatever world. Divided by ddp_world (where a pipeline is several ranks, by the pipelines) and rounded down
 * it is the number of the next one of each worker. ddp_set_lr: the learning rate of the updates to come. */
DDP_API int ddp_rank(const ddp_ctx *d);
DDP_API int ddp_world(const ddp_ctx *d);
DDP_API long ddp_step(const ddp_ctx *d);
DDP_API int64_t ddp_taken(const ddp_ctx *d);
/* ddp_local_rank - the number of this rank among the ranks of its machine, from 0: the launcher's variable
 * (ddprun, torchrun, mpirun, srun), else ddp_rank. */
DDP_API int ddp_local_rank(const ddp_ctx *d);
DDP_API void ddp_set_lr(ddp_ctx *d, float lr);
DDP_API const ddp_error *ddp_last_error(const ddp_ctx *d);
/* ddp_lost_rank - the rank whose loss is the context's error (DDP_PEER_LOST), one of them if several were
 * lost; -1 for another error, without an error, and if the rank is not known. */
DDP_API int ddp_lost_rank(const ddp_ctx *d);

/* ddp_abort - fails everything in flight on all ranks with this sentence: a call that waits there, or
 * begins to wait, returns within a second. Any thread. */
DDP_API void ddp_abort(ddp_ctx *d, const char *why);

/* ddp_servers - how many ranks serve (ddp_serve): data are dealt over ddp_world(d) - ddp_servers(d), and
 * plain collectives are among these. */
DDP_API int ddp_servers(const ddp_ctx *d);

/* Elastic worlds (ddp_config.elastic.min_world). ddp_rank and ddp_world are ids and their number (with
 * max_world that): they stay what they were when workers are lost or come. ddp_workers is the
 * number of those that are live, ddp_live has bit r set for each of them (all ones of world where
 * not elastic), ddp_epoch rises with each change. A lost worker changes them in any hook or collective, a
 * joining one in the first hook of a layer in a period: collectives between two steps run among the workers
 * that did the last one. */
DDP_API int ddp_workers(const ddp_ctx *d);
DDP_API uint64_t ddp_live(const ddp_ctx *d);
DDP_API unsigned ddp_epoch(const ddp_ctx *d);

/* ddp_links - how many links this context has: 0 with one worker, 1 or 2; with nccl the devices' network is
 * the first. */
DDP_API int ddp_links(const ddp_ctx *d);
