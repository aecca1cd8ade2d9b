/* Declares queries of a context: rank, world, step, live workers, servers, links and the first error. Also
 * ddp_set_lr and ddp_abort. */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;

/* ddp_rank - returns the id of this worker, 0 to world - 1. It does not change when workers are lost or join.
 * 0 for NULL. Local. */
DDP_API int ddp_rank(const ddp_ctx *d);

/* ddp_world - returns the number of worker ids of the run (with max_world: that number). It does not change
 * when workers are lost or join. ddp_workers counts the live ones. 1 for NULL. Local. */
DDP_API int ddp_world(const ddp_ctx *d);

/* ddp_step - returns the number of completed steps of the run, including those before a checkpoint was
 * loaded. 0 for NULL. Local. */
DDP_API long ddp_step(const ddp_ctx *d);

/* ddp_taken - returns the number of micro-batches that all workers together have trained on since the first
 * step of the run, including those before a checkpoint was loaded, even with another world size. Divided by
 * the number of workers that compute, ddp_world - ddp_servers (in a pipeline: by the number of copies of the
 * model), and rounded down, it is the number of each worker's next micro-batch. Local. */
DDP_API int64_t ddp_taken(const ddp_ctx *d);

/* ddp_local_rank - returns the number of this rank among the ranks of its machine, from 0, as the launcher
 * sets it (ddprun, torchrun, mpirun, srun). Without such a launcher, or with no_env, it returns ddp_rank.
 * Local. Reads the environment: no other thread may change it during the call. */
DDP_API int ddp_local_rank(const ddp_ctx *d);

/* ddp_set_lr - sets the learning rate of all further updates. All ranks must use the same rate: ddp_step_end
 * compares them. NULL is allowed and does nothing. Local. */
DDP_API void ddp_set_lr(ddp_ctx *d, float lr);

/* ddp_last_error - returns the context's first error, never NULL. Code DDP_OK means that there is no error.
 * For a NULL context the error says that ddp_open failed. Borrowed until ddp_close. Local. */
DDP_API const ddp_error *ddp_last_error(const ddp_ctx *d);

/* ddp_lost_rank - returns the rank whose loss is the context's error (DDP_PEER_LOST), or any of the lost
 * ranks if there are several. Returns -1 without an error, for another error, and if the rank is not known.
 * Local. */
DDP_API int ddp_lost_rank(const ddp_ctx *d);

/* ddp_abort - fails everything in flight on all ranks with DDP_ABORTED and `why` as the message (NULL for a
 * standard text). A call that waits for a message, or starts to wait, returns within a second. Any thread may
 * call it at any time before ddp_close, but a signal handler may not. */
DDP_API void ddp_abort(ddp_ctx *d, const char *why);

/* ddp_servers - returns the number of ranks that only serve (ddp_serve), or 0 with colocated servers. Shard
 * the data over ddp_world(d) - ddp_servers(d) workers. Plain collectives include only these workers.
 * Local. */
DDP_API int ddp_servers(const ddp_ctx *d);

/* ddp_workers - returns the number of live workers that compute. A lost worker changes it in any hook or
 * collective. A joining worker changes it in the first hook of a layer in a period: collectives between two
 * steps run among the workers that took part in the previous step. 1 without other ranks. Local. */
DDP_API int ddp_workers(const ddp_ctx *d);

/* ddp_live - returns a bit mask in which bit r is set for each live rank r, servers included. All `world`
 * bits if the world is not elastic. Changes when ddp_workers does. Only ranks below 64 have a bit. Local. */
DDP_API uint64_t ddp_live(const ddp_ctx *d);

/* ddp_epoch - returns a number that increases with each change of the members of an elastic world, or 0 in
 * other worlds. Changes when ddp_workers does. Local. */
DDP_API unsigned ddp_epoch(const ddp_ctx *d);

/* ddp_links - returns the number of links of this context: 0 with one worker, else 1 or 2. With nccl the
 * devices' network is the first link. Local. */
DDP_API int ddp_links(const ddp_ctx *d);
