/* What the environment says: which rank this is, and the DREAMDDP_ variables. */
#ifndef DDP_RUN_ENV_H
#define DDP_RUN_ENV_H

#include "base/core.h"

/* Strings are borrowed from the environment, NULL where a variable is unset or empty. */
typedef struct ddp__env {
    const char
        *launcher; /* "DREAMDDP_RANK", "torchrun", "Open MPI", "MPICH", "PMIx", "Slurm"; or NULL */
    int rank, world;        /* 0 and 1 without a launcher */
    int local_rank;         /* among the ranks of this machine */
    char addr[320];         /* host:port of rank 0; "" = unknown */
    char run_id[128];       /* what the run is called; "" = unknown */
    const char *note;       /* NULL, or a sentence for the log about what was concluded */
    const char *log, *net, *net_script, *net2, *addr2, *wire, *strategy, *period, *transport,
        *min_world, *max_world, *join, *peer_timeout, *op_timeout, *connect_timeout, *join_timeout, *dump,
        *insecure, *threads, *tcp_congestion, *deterministic, *socket_ifname, *tls_psk, *tls_ca,
        *tls_cert, *tls_key, *site;
} ddp__env;

/* Reads the environment; the first launcher that matches wins: own variables, torchrun, Open MPI,
 * MPICH (PMI), PMIx under Slurm, Slurm. DREAMDDP_ADDR and DREAMDDP_RUN_ID override the launcher's.
 * Not while another thread changes the environment.
 * Errors: DDP_ARG for a half-set group (names the missing variable), a malformed number, a
 * rank outside the world, or an unknown DREAMDDP_ variable (names the nearest known one). */
DDP_LIB ddp_status ddp__env_read(ddp__env *out, ddp_error *err);
/* What goes over the wire for the name of a run: a number stands for itself, other text for its
 * hash, NULL and "" for 0. */
DDP_LIB uint64_t ddp__run_id(const char *text);

#endif /* DDP_RUN_ENV_H */
