/* The wire between processes: one TCP connection per pair of ranks. With reconnection enabled, a stream whose
 * connection breaks resumes on a new connection at the exact byte where it stopped. */
#pragma once

#include "wire/hello.h"
#include "wire/socket.h"
#include "wire/wire.h"

typedef struct ddp__relay ddp__relay;

/* The configuration of the wire. The arrays are borrowed for the call. */
typedef struct ddp__tcp_config {
    int rank, world;
    const int *fds;               /* [world] connected sockets, owned by the wire after success. -1 for the
                                     own rank, or without a connection. */
    const unsigned char *relayed; /* [world] 1 if the connection passes through a relay rank. May be NULL. */
    int relay_rank;               /* the relay rank, which also connects the pair again after a break */
    ddp__relay *relay;            /* relays connections of other ranks, closed with the wire. May be NULL. */
    ddp__tls *tls;                /* borrowed, or NULL for no TLS. The handshakes of fds are complete. */
    double peer_timeout_s;        /* time-out for a silent connection (0 = system default) and for a broken
                                     link (0 = none) */
    const char *congestion;       /* value for TCP_CONGESTION ("reno"), or NULL */
    int once;               /* 1: no reconnection. Bytes are sent without records, and the fields below are
                               unused. */
    int listen_fd;          /* socket on which higher ranks reconnect, or -1 for none */
    const ddp__addr *where; /* [world] listening addresses (size 0 = unknown). Lower ranks are dialled, higher
                               ranks probed. */
    ddp__hello self;        /* version, run, rank and world. Kind JOIN_MESH for a joining worker, whose peers
                               may be silent until it is admitted. */
    size_t replay_bytes;    /* per peer, for unacknowledged bytes (0 = 4 MiB, at most 32 MiB for all peers
                               together) */
    ddp_logger log;         /* warnings: links that broke and were reconnected */
} ddp__tcp_config;

/* ---- reconnect.c ---- */

/* ddp__wire_tcp - creates the wire from connected sockets. Both ends of each link must agree on `once`.
 *
 * If a connection breaks, or if nothing is received for 1.5 heartbeats while bytes are unacknowledged, it is
 * replaced. The higher rank dials the lower rank's listening address again, both report how many bytes of the
 * stream they have, and the rest is sent again from memory. Meanwhile send and recv return 0. They return -1
 * if the peer announced that it closes, if its listening port has refused connections for 0.3 s (its process
 * is gone), or if the link stayed broken for peer_timeout_s.
 * Takes ownership of fds and listen_fd on success. Errors: DDP_NET if a socket option fails or DDP_MEMORY. */
DDP_LIB ddp_status ddp__wire_tcp(const ddp__tcp_config *cfg, ddp__wire **out, ddp_error *err);

/* ---- joining workers ---- */

/* Serves a joining worker that sent a JOIN_ASK hello. Its request follows on the socket. only: the one id it
 * may take, or -1 for any. tls: the context of the wire. Move the session out of it with ddp__stream_part.
 * Returns 1 if it takes ownership of the socket. */
typedef int (*ddp__visit_fn)(void *user, ddp__tls *tls, int fd, int only);
/* Sets the function that serves joining workers. Without it no worker can join. Call it before the engine has
 * the wire. `visit` runs on the engine's thread. */
DDP_LIB void ddp__wire_tcp_visits(ddp__wire *w, ddp__visit_fn visit, void *user);
/* Returns 1 and the listening address of any rank, or 0 if it is unknown. Call it before the engine has the
 * wire, or in a ddp__attach_fn. */
DDP_LIB int ddp__wire_tcp_where(ddp__wire *w, int rank, ddp__addr *out);
/* A ddp__attach_fn: the connection that joining worker `id` has made becomes its stream, from the first byte.
 * Without a connection the stream is ended. */
DDP_LIB void ddp__wire_tcp_attach(ddp__wire *w, int id);

/* ---- relay.c: forwards bytes between two ranks that cannot connect directly. The relay is rank 0, or for a
 * joining worker the member that gave it its id ---- */

DDP_LIB ddp_status ddp__relay_open(ddp__relay **out, ddp_error *err); /* Errors: DDP_MEMORY. */
/* Forwards bytes between two sockets in both directions, with at most 64 KiB buffered per direction. The
 * relay owns both sockets, also on error. Each is shut down after the other has ended and its last bytes were
 * delivered. ddp__relay_cut with a `name` other than 0 closes the sockets and drops buffered bytes. Any
 * thread. Errors: DDP_MEMORY. */
DDP_LIB ddp_status ddp__relay_add(ddp__relay *relay, int a, int b, uint32_t name, ddp_error *err);
DDP_LIB void ddp__relay_cut(ddp__relay *relay, uint32_t name);
DDP_LIB int64_t ddp__relay_bytes(ddp__relay *relay); /* Bytes forwarded so far. Any thread. */
/* Waits until all pairs have delivered their last bytes, at most 5 s in all and 1 s without traffic. Accepts
 * NULL. */
DDP_LIB void ddp__relay_close(ddp__relay *relay);
DDP_LIB void ddp__relay_disown(ddp__relay *relay); /* in a forked child: closes the descriptors. relay may be
                                                      NULL. */

/* Two ranks, one of which has asked the relay for a connection to the other. */
typedef struct ddp__pair {
    int low, high;
    int fd[2]; /* of low and of high, or -1 if not connected yet */
} ddp__pair;

/* The pairs at the relay that wait for their other end. There is at most one per pair of ranks, whatever
 * arrives. */
typedef struct ddp__pairs {
    ddp__pair *pair;    /* dynamic array */
    ddp__tcp_config *c; /* configuration whose relay is created on first use */
} ddp__pairs;

/* Handles a request of rank h->rank for a connection to rank h->detail, and takes ownership of fd. When both
 * ranks have asked, both are notified and joined. An earlier join of the two ends. *waits_for receives the
 * other rank if it has not asked yet, else -1. Errors: DDP_MEMORY, and the errors of ddp__relay_open,
 * ddp__relay_add and ddp__tcp_tune. */
DDP_LIB ddp_status ddp__pairs_take(ddp__pairs *x, const ddp__hello *h, int fd, int *waits_for,
                                   ddp_error *err);
/* Sends a RELAY frame about rank `about`: the relay asks the receiver to request a relayed connection, or
 * reports that the two are joined. Returns 0, or -1 and errno. */
DDP_LIB int ddp__pairs_tell(ddp__pairs *x, int fd, int about);
DDP_LIB void ddp__pairs_close(ddp__pairs *x); /* the relay stays open */

/* ---- rendezvous.c: connects the ranks of a run: rank 0 listens, all other ranks dial it ---- */

typedef struct ddp__rendezvous {
    ddp__tcp_config wire;       /* all fields except fds, relayed, relay, where and self (of which run_id and
                                   run_name are used). world: with resume, the number of ids, identical on all
                                   ranks (0 = as many as connect here). listen_fd: -1, or for rank 0 a bound,
                                   listening socket, closed here in any case. run_id: ranks with different run
                                   ids refuse each other. log: ranks that connect, are refused, are late after
                                   5 s or are relayed */
    int world;                  /* ranks that connect here */
    const char *addr;           /* "[tcp://]host:port" of rank 0, or "file://PATH" of a file that contains it
                                   (NULL = 127.0.0.1:29500) */
    double timeout_s;           /* time-out for rank 0, in seconds (0 = 30) */
    double join_timeout_s;      /* time-out for all ranks to connect, in seconds, or 0 for timeout_s */
    const volatile int *cancel; /* a non-zero value cancels the rendezvous with DDP_ABORTED. May be NULL. */
    int insecure;               /* 1 to allow non-loopback addresses without tls */
    const char *ifname; /* interfaces to listen on (socket.h), or NULL for the interface from which rank 0 is
                           reached */
    int resume;         /* 1 if links may break and reconnect. Identical on all ranks. */
    int relay_all;      /* tests: no pair without rank 0 tries a direct connection */
} ddp__rendezvous;

/* Connects every pair of ranks. Returns when all pairs of all ranks are connected.
 *
 * Each rank except 0 opens its own listening socket and dials rank 0 and the ranks below it. A pair that
 * cannot connect within 3 s (a firewall, NAT) is relayed through rank 0 as long as the wire of rank 0 is
 * open. The name of the peer shows this. With tls each connection starts with a handshake. A relayed pair has
 * its own end-to-end session, so that rank 0 cannot read its bytes.
 *
 * Unknown callers (port scanners, other programs, ranks of another run, callers without the key) are refused
 * by the rules in acceptor.h and never end the rendezvous. Frames have a fixed size. Received data never
 * determines the size of an allocation; relays allocate at most one buffer set per pair.
 *
 * A name in addr that does not resolve is looked up again until timeout_s, on rank 0 too. One look-up may
 * take longer. With file://PATH rank 0 chooses a free port, writes its address to the file, and removes the
 * file when all ranks are connected. The others wait for the file and ignore one that another run has left.
 *
 * Errors: DDP_ARG (rank, world, address, interface, or an address beyond loopback with neither tls nor
 * insecure), DDP_NET (cannot listen or open enough files), DDP_TIMEOUT (ranks did not connect, rank 0 is not
 * reachable, or its name does not resolve), DDP_MISMATCH (version, run id, world or rank differ, with both
 * values reported on both sides, or TLS is refused), DDP_PEER_LOST (a rank disconnected meanwhile),
 * DDP_ABORTED (cancel), DDP_IO (the file), DDP_MEMORY. */
DDP_LIB ddp_status ddp__rendezvous_tcp(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err);

/* ---- given.c: connections that the program has made ---- */

/* Exchanges hello frames over r->wire.fds ([world] connected stream sockets, own entry ignored) and creates
 * the wire from duplicates of them. The program still owns its descriptors. A connection that breaks is not
 * replaced. The connections are shut down when the wire closes, and when this function fails. Fields used:
 * wire.rank, world, fds, peer_timeout_s, log, self.run_id and self.run_name; join_timeout_s (time-out for all
 * ranks, above 0); cancel. Errors: DDP_ARG (a descriptor is not an open, connected stream socket, or is given
 * twice), DDP_MISMATCH (another rank, version, run or world at the other end, or not a rank), DDP_TIMEOUT,
 * DDP_PEER_LOST, DDP_ABORTED (cancel), DDP_NET (descriptors), DDP_MEMORY. */
DDP_LIB ddp_status ddp__rendezvous_given(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err);
