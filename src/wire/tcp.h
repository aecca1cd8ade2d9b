/* The wire between processes: one TCP connection per pair of ranks, which may break and come back: then a
 * stream goes on over a new connection at the very byte where the old one left it. */
#pragma once

#include "wire/hello.h"
#include "wire/socket.h"
#include "wire/wire.h"

typedef struct ddp__relay ddp__relay;

/* What it is made of; the arrays are borrowed for the call. */
typedef struct ddp__tcp_config {
    int rank, world;
    const int *fds;               /* [world] connections, the wire's from success on; -1: own, not there */
    const unsigned char *relayed; /* [world] 1: connected by way of another rank, the relay; may be NULL */
    int relay_rank;               /* that relay, which connects the two again after a break */
    ddp__relay *relay;            /* of other ranks' connections, closed with the wire; may be NULL */
    ddp__tls *tls;                /* NULL = plain; borrowed. Handshakes of fds are done */
    double peer_timeout_s;        /* after which a silent connection (0 = system's) and a broken link end (0 =
                                  never) */
    const char *congestion;       /* name for TCP_CONGESTION ("reno"), or NULL */
    int once;               /* 1: connections that end for good: bytes travel as they are, nothing below is
                                  used */
    int listen_fd;          /* where higher ranks come back to; -1 = nobody can */
    const ddp__addr *where; /* [world] where ranks listen: lower are dialled, higher probed; size 0 =
                                  unknown */
    ddp__hello self;        /* version, run, rank and world; kind JOIN_MESH: a newcomer's, unheard until it
                                  is in */
    size_t replay_bytes;    /* per peer, sent but not acknowledged; 0 = 4 MiB, of all peers at most 32
                                  MiB */
    ddp_logger log;         /* warn: links that break and return */
} ddp__tcp_config;

/* ---- reconnect.c ---- */

/* ddp__wire_tcp - the wire of those connections. Both ends of each link must agree on `once`.
 *
 * A connection that breaks, or on which nothing is heard for 1.5 heartbeats while bytes are unacknowledged,
 * is replaced: the higher rank dials the lower one's listening address again, both say how many bytes of the
 * stream they have, and the rest is sent again from memory. Meanwhile send takes nothing and recv has
 * nothing. recv and send return -1 when the peer said that it closes, when its listening port has refused
 * connections for 0.3 s (its process is gone), or when the link stayed broken for peer_timeout_s.
 * Takes over fds and listen_fd on success. Errors: DDP_NET if a socket option is refused; DDP_MEMORY. */
DDP_LIB ddp_status ddp__wire_tcp(const ddp__tcp_config *cfg, ddp__wire **out, ddp_error *err);

/* ---- newcomers ---- */

/* Somebody with a JOIN_ASK hello, behind which its wishes follow, and who may come: as any id, or as that one
 * only. tls: the wire's, from which the session is to be parted. 1: the socket is taken over. */
typedef int (*ddp__visit_fn)(void *user, ddp__tls *tls, int fd, int only);
/* Who serves those; else nobody can join. Before the engine has the wire; called on its thread. */
DDP_LIB void ddp__wire_tcp_visits(ddp__wire *w, ddp__visit_fn visit, void *user);
/* Where any rank listens; 0 if it is not known. Before the engine has the wire, or in a ddp__attach_fn. */
DDP_LIB int ddp__wire_tcp_where(ddp__wire *w, int rank, ddp__addr *out);
/* A ddp__attach_fn: the connection that newcomer id has made is now its stream, from the start; without one
 * ended. */
DDP_LIB void ddp__wire_tcp_attach(ddp__wire *w, int id);

/* ---- relay.c: connections of two other ranks that cannot connect directly. The relay is rank 0, for a
 * joining worker the member that gave it its id ---- */

DDP_LIB ddp_status ddp__relay_open(ddp__relay **out, ddp_error *err); /* Errors: DDP_MEMORY. */
/* From now on what comes from one socket goes to the other, both ways, at most 64 KiB of each way waiting
 * here. Both are the relay's, also on error; each is shut down when the other has ended and its last bytes
 * are through. By a name other than 0 ddp__relay_cut ends it: sockets are closed, what waits is dropped. Any
 * thread. Errors: DDP_MEMORY. */
DDP_LIB ddp_status ddp__relay_add(ddp__relay *relay, int a, int b, uint32_t name, ddp_error *err);
DDP_LIB void ddp__relay_cut(ddp__relay *relay, uint32_t name);
DDP_LIB int64_t ddp__relay_bytes(ddp__relay *relay); /* Bytes moved so far. Any thread. */
/* Waits for all pairs' last words, 5 s at most and no longer than 1 s without a byte. NULL is fine. */
DDP_LIB void ddp__relay_close(ddp__relay *relay);
DDP_LIB void ddp__relay_disown(ddp__relay *relay); /* in a forked child: closes the descriptors; NULL is
                                                      fine */

/* Two ranks, of which one has asked the relay for a connection to the other. */
typedef struct ddp__pair {
    int low, high;
    int fd[2]; /* of low, of high; -1: not here yet */
} ddp__pair;

/* Those who wait for their other end, at the relay. At most one for each pair of the world, whatever
 * arrives. */
typedef struct ddp__pairs {
    ddp__pair *pair;    /* a list */
    ddp__tcp_config *c; /* whose relay is made when one is needed */
} ddp__pairs;

/* A rank asks on this connection, which is ours from now on, for the rank h->detail. When that one has asked
 * too both are told, and joined; what they were joined by before ends. *waits_for: the other rank, which has
 * not asked, or -1. Errors: DDP_MEMORY, those of a relay and of ddp__tcp_tune. */
DDP_LIB ddp_status ddp__pairs_take(ddp__pairs *x, const ddp__hello *h, int fd, int *waits_for,
                                   ddp_error *err);
/* "Join me to rank `about`", or from the relay "ask for that", or "you are joined". 0, or -1 and errno. */
DDP_LIB int ddp__pairs_tell(ddp__pairs *x, int fd, int about);
DDP_LIB void ddp__pairs_close(ddp__pairs *x); /* the relay stays */

/* ---- rendezvous.c: how the ranks of a run find each other: rank 0 listens, everybody else dials ---- */

typedef struct ddp__rendezvous {
    ddp__tcp_config wire;       /* but for fds, relayed, relay, where and of self all but run_id and run_name.
                           * world: resume: it has room for so many ranks, of all ranks the same; 0 = as many
                           * as meet. listen_fd: -1, or for rank 0 a bound, listening socket; closed here in
                           * any case. run_id: ranks of unlike runs refuse each other. log: who came, was
                           * refused, is late after 5 s, is relayed */
    int world;                  /* ranks that meet */
    const char *addr;           /* "[tcp://]host:port" of rank 0, "file://PATH" where it says that; NULL =
                         127.0.0.1:29500 */
    double timeout_s;           /* for rank 0 to answer; 0 = 30 */
    double join_timeout_s;      /* for all ranks to come; 0 = timeout_s */
    const volatile int *cancel; /* NULL, or non-zero ends the meeting: DDP_ABORTED */
    int insecure;               /* 1: addresses beyond this machine are allowed without tls */
    const char *ifname; /* interfaces to listen on (socket.h); NULL: that from which rank 0 is reached */
    int resume;         /* 1: links may break and come back, on all ranks */
    int relay_all;      /* tests: no pair without rank 0 even tries to connect directly */
} ddp__rendezvous;

/* Connects every pair of ranks and returns when all pairs of all ranks stand.
 *
 * Each rank but 0 listens beside its own connection to rank 0 and dials the ranks below it. A pair that
 * cannot connect within 3 s (a firewall, NAT) meets at rank 0, which passes its bytes on, as long as rank 0's
 * wire is open; the peer's name tells. With tls a handshake precedes everything; a relayed pair has its own,
 * so that rank 0 passes on what it cannot read. Strangers (port scanners, other programs, ranks of another
 * run, those without the key) are turned away by the rules of the door (door.h) and never end the meeting.
 * Parsing is of fixed size, nothing that arrives decides about an allocation, but for a relay's buffers, at
 * most one per pair. A name in addr that does not resolve is looked up again until timeout_s, on rank 0 too;
 * one look-up may take longer. file://PATH: rank 0 takes a free port, writes it there, and takes the file
 * away when all have met; the others wait for it, passing over one that another run has left.
 * Errors: DDP_ARG (rank, world, address, interface, an address beyond loopback with neither tls nor
 * insecure), DDP_NET (cannot listen, open so many files), DDP_TIMEOUT (ranks did not come, rank 0 not there,
 * its name does not resolve), DDP_MISMATCH (version, run id, world or rank do not agree: both sides name both
 * values; TLS is refused), DDP_PEER_LOST (a rank went away meanwhile), DDP_IO (the file), DDP_MEMORY. */
DDP_LIB ddp_status ddp__rendezvous_tcp(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err);

/* ---- given.c: ranks that the program has connected ---- */

/* Exchanges hello frames over r->wire.fds ([world] connected stream sockets, the own entry ignored) and makes
 * the wire of duplicates of them: the program's descriptors stay its own. A connection that breaks ends for
 * good. The connections are shut down when the wire closes, and when this function fails. Used of r:
 * wire.rank, world, fds, peer_timeout_s, log and self.run_id, run_name; join_timeout_s (all ranks to answer,
 * above 0), cancel. Errors: DDP_ARG (no open, connected stream socket; one of them twice), DDP_MISMATCH
 * (another rank, version, run or world at the other end, or no rank), DDP_TIMEOUT, DDP_PEER_LOST, DDP_ABORTED
 * (cancel), DDP_NET (descriptors), DDP_MEMORY. */
DDP_LIB ddp_status ddp__rendezvous_given(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err);
