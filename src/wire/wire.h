/* A wire: non-blocking byte streams from this rank to every peer. Threads, TCP and MPI are wires;
 * the engine above speaks frames over any and cannot tell them apart. */
#ifndef DDP_WIRE_WIRE_H
#define DDP_WIRE_WIRE_H

#include "base/core.h"

typedef struct ddp__wire ddp__wire;

/* All calls but wake come from the comm thread. peer is a rank other than one's own. */
typedef struct ddp__wire_table {
    /* Bytes taken (possibly fewer), 0 = would block, -1 = the peer is gone (errno says why). */
    long (*send)(ddp__wire *w, int peer, const struct iovec *iov, int count);
    long (*recv)(ddp__wire *w, int peer, void *buf, size_t bytes);
    /* Sleeps until a peer has bytes for us, one of those with want_send[peer] set can take some,
     * wake() was called, or ddp_now() >= until (until < 0: no limit). */
    void (*wait)(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv,
                 double until);
    void (*wake)(ddp__wire *w); /* any thread */
    const char *(*peer_name)(ddp__wire *w, int peer); /* "127.0.0.1:40123" or "thread 2" */
    void (*close)(ddp__wire *w);
    /* Breaks the connection to a peer, for both sides, as a network would; NULL: cannot. */
    void (*cut)(ddp__wire *w, int peer);
} ddp__wire_table;

struct ddp__wire {
    const ddp__wire_table *table;
    int    rank, world;
    size_t pair_bytes; /* memory of its own that it takes per peer */
    int    intact;     /* 1: bytes cannot change on the way: one memory, or TLS */
    struct ddp__offer *offers; /* [world x DDP__OFFERS] of ranks that share one memory; or NULL */
    /* May be NULL: the first and the last thing that the comm thread does. begin may block, and
     * fail; why is NULL after an orderly goodbye to all peers. */
    ddp_status (*begin)(ddp__wire *w, ddp_error *err);
    void (*end)(ddp__wire *w, const ddp_error *why);
};

#endif /* DDP_WIRE_WIRE_H */
