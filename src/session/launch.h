/* Opening contexts: one, or all ranks of this machine as processes or threads. */
#pragma once

#include "config/settings.h"
#include "wire/wire.h"

/* ddp_open with what only ddp_launch has: the meeting place of threads, or the socket on which rank 0
 * already listens (-1 = none; closed here). */
DDP_LIB ddp_ctx *ddp__open(const ddp_config *cfg, const ddp__strategies *list, ddp__hub *hub, int listen_fd,
                           ddp_error *err);
DDP_LIB int ddp__launch_all(const ddp_config *cfg, const ddp__strategies *list, int (*fn)(ddp_ctx *, void *),
                            void *user, ddp_error *err);

/* ---- launch.c: ranks on this machine, forked processes under a supervisor or threads ---- */

/* One rank's work. A process: rank 0 gets the listening socket (>= 0), which is its to close;
 * all get its address "127.0.0.1:PORT". A thread: -1 and "". Fills *err when not DDP_OK. */
typedef ddp_status (*ddp__rank_fn)(int rank, int listen_fd, const char *addr, void *user, ddp_error *err);

/* ddp__spawn - forks world processes, lets each run fn, waits until the last has ended.
 *
 *   min_world 0, or ranks that are killed by a signal or fail with DDP_PEER_LOST are no failure while so many
 *   are left:
 *            DDP_OK if at least so many return it
 *   cancel   NULL, or looked at several times a second: nonzero ends the ranks by SIGINT, 3 s later SIGTERM,
 *            2 s later SIGKILL
 *   grace_s  how long the others may go on after one has failed, before SIGTERM and, 2 s later, SIGKILL; 0 =
 *            15
 *
 * The calling process is supervisor only. No rank outlives it (Linux). Standard streams are flushed before
 * the fork and by each rank. Call it before other threads exist. Returns DDP_OK if all did; DDP_PEER_LOST if
 * a rank was killed by a signal, with rank, process and signal; DDP_ABORTED after cancel; else code and
 * sentence of the rank that failed first. Errors of its own: DDP_ARG, DDP_NET (no socket), DDP_MEMORY,
 * DDP_FAILED (cannot fork). */
DDP_LIB ddp_status ddp__spawn(int world, int min_world, const volatile int *cancel, double grace_s,
                              ddp__rank_fn fn, void *user, ddp_error *err);

/* ddp__spawn_threads - the same with threads of this process: no signals, no grace; returns when all have. */
DDP_LIB ddp_status ddp__spawn_threads(int world, ddp__rank_fn fn, void *user, ddp_error *err);
