/* The wires between processes: one TCP connection per pair of ranks, for good, or one that may break and come back:
 * then a stream goes on over a new connection at the very byte where the old one left it. */
#ifndef DDP_WIRE_TCP_H
#define DDP_WIRE_TCP_H

#include "wire/relay.h"
#include "wire/socket.h"
#include "wire/wire.h"

/* What both are made of; the arrays are borrowed for the call. */
typedef struct ddp__tcp_config {
    int rank, world;
    const int *fds;            /* [world] connections, the wire's from success on; -1: own, not there */
    const unsigned char *relayed; /* [world] 1: by way of rank 0, which joins the two again; may be NULL */
    ddp__relay *relay;         /* of other ranks' connections, closed with the wire; may be NULL */
    ddp__tls *tls;             /* NULL = plain; borrowed. Handshakes of fds are done */
    double peer_timeout_s;     /* after which a silent connection (0 = system's) and a broken link end (0 = never) */
    const char *congestion;    /* name for TCP_CONGESTION ("reno"), or NULL */
    /* links that come back */
    int listen_fd;             /* where higher ranks come back to; -1 = nobody can */
    const ddp__addr *where;    /* [world] where ranks listen: lower are dialled, higher probed; size 0 = unknown */
    ddp__hello self;           /* version, run, rank and world */
    size_t replay_bytes;       /* per peer, sent but not acknowledged; 0 = 4 MiB, of all peers at most 32 MiB */
    ddp_logger log;            /* warn: links that break and return */
} ddp__tcp_config;

/* ---- tcp.c: connections that end for good ---- */

/* Errors: DDP_NET if a socket option is refused; DDP_MEMORY. */
DDP_LIB ddp_status ddp__wire_tcp(const ddp__tcp_config *c, ddp__wire **out, ddp_error *err);
DDP_LIB int        ddp__wire_tcp_relayed(ddp__wire *w, int peer);
/* For tests and counters of the kernel: the socket to a peer. */
DDP_LIB int        ddp__wire_tcp_fd(ddp__wire *w, int peer);

/* ---- reconnect.c: links that come back ---- */

/* What happened to the links of one rank so far. */
typedef struct ddp__resume_stats {
    long   breaks, returns;    /* connections that broke; links that came back */
    int64_t bytes_again;       /* bytes of streams sent twice */
    double longest_s;          /* longest time a link was away and came back */
    size_t replay_bytes;       /* memory of all rings */
} ddp__resume_stats;

/* ddp__wire_resume - as ddp__wire_tcp, with sessions. Both ends of each link must have one.
 *
 * A connection that breaks, or on which nothing is heard for 1.5 heartbeats while bytes are unacknowledged, is
 * replaced: the higher rank dials the lower one's listening address again, both say how many bytes of the stream they
 * have, and the rest is sent again from memory. Meanwhile send takes nothing and recv has nothing. recv and send return
 * -1 when the peer said that it closes, when its listening port has refused connections for 0.3 s (its process is
 * gone), or when the link stayed broken for peer_timeout_s.
 * Takes over fds and listen_fd on success. Errors: DDP_NET, DDP_MEMORY. */
DDP_LIB ddp_status ddp__wire_resume(const ddp__tcp_config *cfg, ddp__wire **out, ddp_error *err);
/* Only from the thread that uses the wire, or while none does. */
DDP_LIB void ddp__wire_resume_stats(ddp__wire *w, ddp__resume_stats *out);

/* ---- newcomers ---- */

/* Somebody with a JOIN_ASK hello, behind which its wishes follow, and who may come: as any id, or as that one only.
 * tls: the wire's, from which the session is to be parted. 1: the socket is taken over. */
typedef int (*ddp__visit_fn)(void *user, ddp__tls *tls, int fd, int only);
/* Who serves those; else nobody can join. Before the engine has the wire; called on its thread. */
DDP_LIB void ddp__wire_resume_visits(ddp__wire *w, ddp__visit_fn visit, void *user);
/* Where any rank listens; 0 if it is not known. Before the engine has the wire, or in a ddp__attach_fn. */
DDP_LIB int  ddp__wire_resume_where(ddp__wire *w, int rank, ddp__addr *out);
/* A ddp__attach_fn: the connection that newcomer id has made is now its stream, from the start; without one ended. */
DDP_LIB void ddp__wire_resume_attach(ddp__wire *w, int id);

#endif /* DDP_WIRE_TCP_H */
