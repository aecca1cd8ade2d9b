/* How the ranks of a run find each other: rank 0 listens, everybody else dials. */
#ifndef DDP_NET_RENDEZVOUS_H
#define DDP_NET_RENDEZVOUS_H

#include "base/log.h"
#include "net/wire.h"

typedef struct ddp__rendezvous {
    int rank, world;
    const char *addr; /* "host:port" or "tcp://host:port" of rank 0; NULL = 127.0.0.1:29500 */
    int listen_fd;    /* -1, or for rank 0 a bound, listening socket; closed here in any case */
    uint64_t run_id;         /* ranks of unlike runs refuse each other */
    double timeout_s;        /* for the whole meeting; 0 = 30 */
    double peer_timeout_s;   /* given to the wire; 0 = none */
    int insecure;            /* 1: addresses beyond this machine are allowed, although nothing is
                                encrypted or authenticated */
    const char *congestion;  /* TCP_CONGESTION, or NULL */
    ddp_logger log;          /* info: who came; warn: who was refused, who is late after 5 s */
} ddp__rendezvous;

#ifdef __cplusplus
extern "C" {
#endif

/* Connects every pair of ranks and returns when all pairs of all ranks stand.
 *
 * Strangers (port scanners, other programs, ranks of another run) are turned away within 5 s and
 * never end the meeting; at most 2 x world connections may be undecided at a time. Parsing is of
 * fixed size, nothing that arrives decides about an allocation.
 * Errors: DDP_ARG (rank, world, address, an address beyond loopback without insecure), DDP_NET
 * (cannot listen, resolve), DDP_TIMEOUT (ranks did not come, rank 0 not there), DDP_MISMATCH
 * (version, run id, world or rank do not agree: both sides name both values), DDP_PEER_LOST
 * (a rank went away meanwhile), DDP_MEMORY. */
DDP_LIB ddp_status ddp__rendezvous_tcp(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_RENDEZVOUS_H */
