/* Simulation: a world on a virtual clock. The program's own loop, the strategies and the library run as on
 * real machines, but no message is sent and no thread sleeps (docs/howto/simulate.md). */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config; /* config/config.h */

/* Options of a simulation. All-zero selects the defaults. */
typedef struct ddp_simulation {
    /* 1: simulates interchangeable workers as one worker. Only ranks 0 and 1 run, rank 1 for all others. fn
     * must do the same in the same time on every rank. The results of rank 0 are bit-identical to a full
     * simulation. Ignored if links are heterogeneous, or with jitter, sites, servers or net_script (default:
     * 0). */
    int fold;
    /* Memory from ddp_paper that is never read or written. Layers in its first half, and the arrays that the
     * library allocates for them, take no compute time and no memory (default: NULL). */
    void *paper;
    size_t paper_bytes; /* size of paper */
    double scale;       /* number of values that one value of a layer represents on the links (default: 1) */
} ddp_simulation;

/* Result of a simulation. */
typedef struct ddp_simulated {
    double seconds; /* virtual time until the last worker has finished */
    int workers;    /* number of workers that were run */
    int64_t events; /* number of simulated network events */
} ddp_simulated;

/* ddp_simulate - runs fn once per rank on a virtual clock that begins at 0, which ddp_now returns. fn calls
 * ddp_sleep_until in place of computing. Messages take the time of the emulated links (cfg->net, net2,
 * net_script), with the arithmetic of src/emulate: latency, rate, shared bandwidth, priorities, but no
 * processor time. One worker runs at a time, in an order that depends only on the times: two runs are
 * bit-identical. The library's own messages are included. Sums of ddp_paper memory are not computed.
 *
 *   how   options, or NULL for all 0
 *   fn    function of a rank: gets an open context, returns 0 or a ddp_status. It may wait only through the
 *         library, and may not start threads
 *   user  passed to fn
 *   out   receives time and counts, also on failure. May be NULL.
 *
 * Not simulated: processes, TLS, devices, joining, colocated servers. Returns DDP_OK if every rank did, else
 * the first failure, with its message in *err. Errors: DDP_ARG for NULL or a setting; DDP_UNSUPPORTED for
 * what is not simulated; DDP_USAGE for a deadlock, with the rank and the message that each worker waits for;
 * DDP_IO or DDP_FORMAT for net_script; DDP_MEMORY; the code of the rank that failed first. */
DDP_API int ddp_simulate(const ddp_config *cfg, const ddp_simulation *how, int (*fn)(ddp_ctx *, void *),
                         void *user, ddp_simulated *out, ddp_error *err);

/* ddp_sleep_until - sleeps until ddp_now() is `when`, in seconds, on the real clock or on a virtual one. Safe
 * from any thread. */
DDP_API void ddp_sleep_until(double when);

/* ddp_paper - allocates bytes that read as 0 and use no memory until they are written, for the layers of
 * large simulated models. Returns NULL on failure. The caller frees it with ddp_paper_free.
 * Safe from any thread. */
DDP_API void *ddp_paper(size_t bytes);

/* ddp_paper_free - frees memory from ddp_paper. bytes is the size passed there. NULL is allowed. Safe from
 * any thread. */
DDP_API void ddp_paper_free(void *paper, size_t bytes);
