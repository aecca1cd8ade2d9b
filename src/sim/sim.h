/* A world on a virtual clock: the program's own loop, the strategies and all else run as they do on real
 * machines, but nothing is sent and nobody sleeps. docs/howto/simulate.md */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config; /* config/config.h */

typedef struct ddp_simulation {
    /* 1: workers that cannot differ are one: ranks 0 and 1 run, rank 1 for all others, where all links are
     * alike, without jitter, sites, servers or incidents, and fn does the same on every rank, in the same
     * time. What rank 0 sees is then the same to the last bit. Ignored where links can differ. */
    int fold;
    /* Memory of ddp_paper that nothing is read from or written to: layers that lie in its first half cost no
     * time, nor does what is kept beside them. NULL: none. */
    void *paper;
    size_t paper_bytes;
    double scale; /* a value of a layer stands for so many, and takes as long on the way; 0 = 1 */
} ddp_simulation;

typedef struct ddp_simulated {
    double seconds; /* of virtual time until the last worker was done */
    int workers;    /* that were run */
    int64_t events; /* of the network */
} ddp_simulated;

/* ddp_simulate - as ddp_launch of threads, on a virtual clock that begins at 0 and that ddp_now tells: fn
 * runs once per
 *   rank, and is where time passes: ddp_sleep_until in place of computing. Messages take what the emulated
 *   links take (cfg->net, net2, net_script; the arithmetic of src/emulate): latency, rate, shares,
 *   priorities, but no processor time. One worker runs at a time, in an order that follows from the times
 *   alone: two runs are equal to the last bit. What the library sends itself is there; sums of memory on
 *   paper are not made. fn may not wait for anything but through the library, nor begin threads. Not
 *   simulated: processes, TLS, devices, joining, servers beside workers. Returns as ddp_launch; also
 *   DDP_UNSUPPORTED for one of these, and DDP_USAGE where nobody could ever go on, with who waits for what.
 *   *out (may be NULL) is filled in any case.
 * ddp_sleep_until - sleeps until ddp_now() tells `when`, on the real clock or on a virtual one.
 * ddp_paper - room for so many bytes that read as 0 and cost nothing until they are written; NULL: none.
 *   ddp_paper_free - NULL is fine. */
DDP_API int ddp_simulate(const ddp_config *cfg, const ddp_simulation *how, int (*fn)(ddp_ctx *, void *),
                         void *user, ddp_simulated *out, ddp_error *err);
DDP_API void ddp_sleep_until(double when);
DDP_API void *ddp_paper(size_t bytes);
DDP_API void ddp_paper_free(void *paper, size_t bytes);
