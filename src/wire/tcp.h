/* The wire between processes: one TCP connection per pair of ranks. */
#ifndef DDP_WIRE_TCP_H
#define DDP_WIRE_TCP_H

#include "wire/stream.h"
#include "wire/relay.h"
#include "wire/wire.h"

/* So often a socket that was emptied is believed to be empty still; wait() knows it earlier. */
enum { DDP__DRY = 8 };

/* Makes a wire of connected sockets.
 *
 *   fds         [world] one per peer, own entry -1; the wire's from success on
 *   sent_before [world] bytes already sent on each by the rendezvous; may be NULL
 *   peer_timeout_s  unacknowledged data older than this breaks the connection (Linux); 0 = system's
 *   congestion  name for TCP_CONGESTION ("reno"), or NULL
 *
 * Errors: DDP_NET if a socket option is refused; DDP_MEMORY. */
DDP_LIB ddp_status ddp__wire_tcp(int rank, int world, const int *fds, const size_t *sent_before,
                                 double peer_timeout_s, const char *congestion,
                                 ddp__wire **out, ddp_error *err);
/* From now on all sockets speak through sessions of tls, which have finished their handshakes;
 * borrowed until the wire is closed. */
DDP_LIB void ddp__wire_tcp_tls(ddp__wire *w, ddp__tls *tls);
/* What that wire sets on each connection: no delays, keepalive, time-out, congestion control. */
DDP_LIB ddp_status ddp__tcp_tune(int fd, double peer_timeout_s, const char *congestion,
                                 ddp_error *err);
/* Before the wire is used: the connection to that peer goes through rank 0; its name says so. */
DDP_LIB void ddp__wire_tcp_via(ddp__wire *w, int peer);
DDP_LIB int  ddp__wire_tcp_relayed(ddp__wire *w, int peer);
/* Hands over a relay (NULL is fine), which is closed with the wire. */
DDP_LIB void ddp__wire_tcp_keep(ddp__wire *w, ddp__relay *relay);
/* For tests and counters of the kernel: the socket to a peer, and the bytes this rank sent on it
 * before the wire existed (hello, address table), which no engine counts. */
DDP_LIB int    ddp__wire_tcp_fd(ddp__wire *w, int peer);
DDP_LIB size_t ddp__wire_tcp_hello_bytes(ddp__wire *w, int peer);

#endif /* DDP_WIRE_TCP_H */
