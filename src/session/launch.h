/* Opens contexts: one, or one for each rank of this machine, as processes or threads. */
#pragma once

#include "config/settings.h"
#include "wire/wire.h"

/* ddp_open with two more arguments, which only ddp_launch sets. hub: rendezvous of the threads, or NULL.
 * listen_fd: socket on which rank 0 already listens (-1 for none). It is closed here. */
DDP_LIB ddp_ctx *ddp__open(const ddp_config *cfg, const ddp__strategies *list, ddp__hub *hub, int listen_fd,
                           ddp_error *err);
DDP_LIB int ddp__launch_all(const ddp_config *cfg, const ddp__strategies *list, int (*fn)(ddp_ctx *, void *),
                            void *user, ddp_error *err);

/* ---- launch.c: ranks on this machine, as forked processes with a supervisor or as threads ---- */

/* The function of one rank. In a process, rank 0 receives the listening socket (>= 0) and must close it, and
 * every rank receives its address "127.0.0.1:PORT". In a thread they are -1 and "". Fills *err if it does not
 * return DDP_OK. */
typedef ddp_status (*ddp__rank_fn)(int rank, int listen_fd, const char *addr, void *user, ddp_error *err);

/* ddp__spawn - forks `world` processes, runs fn in each, and waits until the last one has ended.
 *
 *   min_world  0, or the number of ranks that must remain: while at least that many do, a rank that is killed
 *              by a signal or fails with DDP_PEER_LOST or DDP_ABORTED does not count as a failure. Success
 *              then needs at least min_world ranks that return DDP_OK
 *   cancel     NULL, or a flag that is read several times a second: nonzero ends the ranks by SIGINT, 3 s
 *              later SIGTERM, 2 s later SIGKILL
 *   grace_s    seconds that the other ranks may continue after one has failed, before SIGTERM and, 2 s later,
 *              SIGKILL (default: 15, if 0)
 *
 * The calling process only supervises. No rank outlives it (Linux). Standard streams are flushed before the
 * fork and by each rank. Call it before other threads exist.
 *
 * Returns DDP_OK if all ranks did; DDP_PEER_LOST if a rank was killed by a signal, with rank, process and
 * signal; DDP_ABORTED after cancel; otherwise code and message of the rank that failed first. Errors of its
 * own: DDP_ARG, DDP_NET (no socket), DDP_MEMORY, DDP_FAILED (cannot fork). */
DDP_LIB ddp_status ddp__spawn(int world, int min_world, const volatile int *cancel, double grace_s,
                              ddp__rank_fn fn, void *user, ddp_error *err);

/* ddp__spawn_threads - as ddp__spawn, with threads of this process, without signals and without a grace time.
 * Returns when all threads have ended. */
DDP_LIB ddp_status ddp__spawn_threads(int world, ddp__rank_fn fn, void *user, ddp_error *err);
