/* Declares queries of a context: rank, world, step, live workers, servers, links and the first error; and
 * ddp_set_lr and ddp_abort. */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;

/* Queries of a context.
 *   ddp_rank   id of this worker, 0 to world - 1
 *   ddp_world  number of ranks
 *   ddp_step   number of completed steps of the run, including those before a checkpoint was loaded
 *   ddp_taken  micro-batches that all workers together have trained on since the first step of the run,
 *              including those before a checkpoint was loaded, even with another world size. Divided by the
 *              number of workers that compute, ddp_world - ddp_servers (in a pipeline: by the number of
 *              copies of the model), and rounded down, it is the number of each worker's next micro-batch */
DDP_API int ddp_rank(const ddp_ctx *d);
DDP_API int ddp_world(const ddp_ctx *d);
DDP_API long ddp_step(const ddp_ctx *d);
DDP_API int64_t ddp_taken(const ddp_ctx *d);

/* ddp_local_rank - returns the number of this rank among the ranks of its machine, from 0, as the launcher
 * sets it (ddprun, torchrun, mpirun, srun); without such a launcher, ddp_rank. */
DDP_API int ddp_local_rank(const ddp_ctx *d);

/* ddp_set_lr - sets the learning rate of all further updates. */
DDP_API void ddp_set_lr(ddp_ctx *d, float lr);

/* ddp_last_error - returns the context's first error, never NULL; code DDP_OK means none. */
DDP_API const ddp_error *ddp_last_error(const ddp_ctx *d);

/* ddp_lost_rank - returns the rank whose loss is the context's error (DDP_PEER_LOST), or one of them if
 * several were lost. Returns -1 without an error, for another error, and if the rank is not known. */
DDP_API int ddp_lost_rank(const ddp_ctx *d);

/* ddp_abort - fails everything in flight on all ranks with `why` as the message. A call that waits for a
 * message, or starts to wait, returns within a second. Any thread may call it. */
DDP_API void ddp_abort(ddp_ctx *d, const char *why);

/* ddp_servers - returns the number of ranks that only serve (ddp_serve). Shard the data over ddp_world(d) -
 * ddp_servers(d) workers; plain collectives include only these workers. */
DDP_API int ddp_servers(const ddp_ctx *d);

/* Elastic worlds (ddp_config.elastic.min_world). ddp_rank is an id, and ddp_world the number of ids (with
 * max_world: that number). Both stay the same when workers are lost or join.
 *   ddp_workers  number of live workers
 *   ddp_live     bit r is set for each live rank r; all `world` bits if the world is not elastic
 *   ddp_epoch    increases with each change of the members
 * A lost worker changes these values in any hook or collective. A joining worker changes them in the first
 * hook of a layer in a period: collectives between two steps run among the workers that took part in the
 * previous step. */
DDP_API int ddp_workers(const ddp_ctx *d);
DDP_API uint64_t ddp_live(const ddp_ctx *d);
DDP_API unsigned ddp_epoch(const ddp_ctx *d);

/* ddp_links - returns the number of links of this context: 0 with one worker, else 1 or 2. With nccl the
 * devices' network is the first link. */
DDP_API int ddp_links(const ddp_ctx *d);
