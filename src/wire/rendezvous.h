/* How the ranks of a run find each other: rank 0 listens, everybody else dials. */
#ifndef DDP_WIRE_RENDEZVOUS_H
#define DDP_WIRE_RENDEZVOUS_H

#include "wire/stream.h"
#include "wire/wire.h"

typedef struct ddp__rendezvous {
    int rank, world;
    int ids;          /* resume: the wire has room for so many ranks, of all ranks the same; 0 = world */
    const char *addr; /* "[tcp://]host:port" of rank 0, "file://PATH" where it says that; NULL = 127.0.0.1:29500 */
    int listen_fd;    /* -1, or for rank 0 a bound, listening socket; closed here in any case */
    uint64_t run_id;         /* ranks of unlike runs refuse each other */
    const char *run_name;    /* what the user calls it, for sentences; or NULL */
    double timeout_s;        /* for rank 0 to answer; 0 = 30 */
    double join_timeout_s;   /* for all ranks to come; 0 = timeout_s */
    const volatile int *cancel; /* NULL, or non-zero ends the meeting: DDP_ABORTED */
    double peer_timeout_s;   /* given to the wire; 0 = none */
    int insecure;            /* 1: addresses beyond this machine are allowed without tls */
    ddp__tls *tls;           /* NULL = plain; borrowed by the wire as well */
    const char *ifname;      /* interfaces to listen on (socket.h); NULL: that from which rank 0 is reached */
    const char *congestion;  /* TCP_CONGESTION, or NULL */
    int resume;              /* 1: links may break and come back (wire/reconnect.h), on all ranks */
    size_t replay_bytes;     /* as there */
    ddp_logger log;          /* info: who came; warn: who was refused, who is late after 5 s, who is relayed */
    int relay_all;           /* tests: no pair without rank 0 even tries to connect directly */
} ddp__rendezvous;

/* Connects every pair of ranks and returns when all pairs of all ranks stand.
 *
 * Each rank but 0 listens beside its own connection to rank 0 and dials the ranks below it. A pair that cannot
 * connect within 3 s (a firewall, NAT) meets at rank 0, which passes its bytes on, as long as rank 0's wire is open;
 * ddp__wire_tcp_relayed tells. With tls a handshake precedes everything; a relayed pair has its own, so that rank 0
 * passes on what it cannot read. Strangers (port scanners, other programs, ranks of another run, those without the
 * key) are turned away by the rules of the door (door.h) and never end the meeting. Parsing is of fixed size, nothing
 * that arrives decides about an allocation, but for a relay's buffers, at most one per pair.
 * file://PATH: rank 0 takes a free port, writes it there, and takes the file away when all have met; the others wait
 * for it, passing over one that another run has left.
 * Errors: DDP_ARG (rank, world, address, interface, an address beyond loopback with neither tls nor insecure), DDP_NET
 * (cannot listen, resolve, open so many files), DDP_TIMEOUT (ranks did not come, rank 0 not there), DDP_MISMATCH
 * (version, run id, world or rank do not agree: both sides name both values; TLS is refused), DDP_PEER_LOST (a rank
 * went away meanwhile), DDP_IO (the file), DDP_MEMORY. */
DDP_LIB ddp_status ddp__rendezvous_tcp(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err);

#endif /* DDP_WIRE_RENDEZVOUS_H */
