/* TCP socket helpers: addresses, listening, dialling, polling with time-outs, and network interfaces. */
#pragma once

#include "base/core.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#ifdef MSG_NOSIGNAL
#define DDP__NOSIGNAL MSG_NOSIGNAL
#else
#define DDP__NOSIGNAL 0 /* SO_NOSIGPIPE is set instead */
#endif

#define DDP__ADDR_TEXT    72
#define DDP__HOST_TEXT    256
#define DDP__DEFAULT_PORT 29500

typedef struct ddp__addr {
    union {
        struct sockaddr_storage sa;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    };
    socklen_t size;
} ddp__addr;

/* Splits "host:port", "tcp://host:port" or "[v6]:port". The default port is 29500. host[DDP__HOST_TEXT].
 * Errors: DDP_ARG. */
DDP_LIB ddp_status ddp__addr_split(const char *spec, char *host, int *port, ddp_error *err);
/* Splits an address and resolves it with one look-up, which may block for seconds. Returns up to `room`
 * addresses, IPv4 first. 127.0.0.1 becomes ::1 on a machine without IPv4. Errors: DDP_ARG if the text is not
 * an address, DDP_NET if the name has no address now but may get one (a container that is starting), or
 * DDP_MEMORY. */
DDP_LIB ddp_status ddp__addr_parse(const char *spec, ddp__addr *list, int room, int *count, ddp_error *err);
/* Writes "ip:port" or "[ip]:port" to out[DDP__ADDR_TEXT]. Returns out. */
DDP_LIB const char *ddp__addr_text(const ddp__addr *a, char *out);
DDP_LIB int ddp__addr_port(const ddp__addr *a);
DDP_LIB void ddp__addr_set_port(ddp__addr *a, int port);
DDP_LIB int ddp__addr_is_loopback(const ddp__addr *a);
/* Convert an address, without its port, to family (4 or 6) and 16 bytes, and back. 0 = unsupported family. */
DDP_LIB uint32_t ddp__ip_pack(const ddp__addr *a, unsigned char *ip);
DDP_LIB int ddp__ip_parse(uint32_t family, const unsigned char *ip, ddp__addr *a);

/* Makes sure that `wanted` more descriptors can be opened, and raises the soft limit if needed and possible.
 * Errors: DDP_NET if not even `least` more can be opened or the message names the number needed. */
DDP_LIB ddp_status ddp__fd_room(int wanted, int least, ddp_error *err);
DDP_LIB int ddp__fd_limit(void); /* most descriptors that this process may have open */
/* Get the local address of a socket, or its peer's. Return 0, or -1 with errno and size 0. */
DDP_LIB int ddp__addr_own(int fd, ddp__addr *out);
DDP_LIB int ddp__addr_peer(int fd, ddp__addr *out);
DDP_LIB int ddp__fd_prepare(int fd); /* sets non-blocking, close-on-exec and no delay. Returns 0, or -1 and
                                        errno. */
/* Closes *fd unless it is negative, and sets it to -1 first: a forked child that closed it later would close
 * whatever descriptor has that number then. */
DDP_LIB void ddp__fd_close(int *fd);
/* Creates a bound, listening socket. *bound (may be NULL) receives the address with the actual port. */
DDP_LIB ddp_status ddp__tcp_listen(const ddp__addr *at, int *fd, ddp__addr *bound, ddp_error *err);
/* Makes one attempt to connect, until time `until`. Returns a non-blocking socket, or -1 and errno. */
DDP_LIB int ddp__tcp_dial(const ddp__addr *to, double until);
/* The two halves of ddp__tcp_dial for callers that poll. begin returns a connecting socket, or -1 and errno.
 * After POLLOUT, end returns 0, or -1 and errno (the socket stays open). */
DDP_LIB int ddp__tcp_dial_begin(const ddp__addr *to);
DDP_LIB int ddp__tcp_dial_end(int fd);
/* Accepts a connection as a non-blocking socket. `from` (may be NULL) receives the peer's address. Returns -1
 * and errno, EAGAIN if none is pending. */
DDP_LIB int ddp__tcp_accept(int listen_fd, ddp__addr *from);
/* Prepares a connection between ranks: ddp__fd_prepare, keepalive, time-out, congestion control (NULL or "":
 * that of the system, or Reno instead of BBR on a short link). */
DDP_LIB ddp_status ddp__tcp_tune(int fd, double peer_timeout_s, const char *congestion, ddp_error *err);
/* Calls poll with the time limit `until` (< 0 for no limit), as precisely as the system allows, and returns
 * its result. Signals do not end it. */
DDP_LIB int ddp__poll_until(struct pollfd *polls, int count, double until);
DDP_LIB void ddp__poll_set(struct pollfd *p, int fd, int events);
/* Polls one descriptor until `until`. Returns its revents, or 0 after the time-out. */
DDP_LIB int ddp__fd_wait(int fd, int events, double until);

/* A pipe with which one thread wakes another from its poll. */
typedef struct ddp__waker {
    int fd[2]; /* poll the first for POLLIN */
} ddp__waker;

DDP_LIB ddp_status ddp__waker_open(ddp__waker *w, ddp_error *err);
DDP_LIB void ddp__waker_close(ddp__waker *w); /* a zeroed waker is allowed */
DDP_LIB void ddp__waker_wake(ddp__waker *w);  /* any thread */
DDP_LIB void ddp__waker_drain(ddp__waker *w);

/* ---- the address of this machine that other ranks use ---- */

#define DDP__IFACE_TEXT 32

/* Returns 1 if a list in NCCL's syntax selects an interface: prefixes ("eth,ib"), exact names ("=eth0"), or
 * exclusions ("^lo"). */
DDP_LIB int ddp__iface_matches(const char *list, const char *name);
/* Returns the first address, with port 0, of an interface that is up and selected by the list (NULL for any).
 * It prefers other interfaces to loopback, and the given family to the other. Errors: DDP_ARG (names the
 * available interfaces), DDP_NET. */
DDP_LIB ddp_status ddp__iface_pick(const char *list, int family, ddp__addr *out, ddp_error *err);
/* Returns the local address from which the system would send to `to`. Sends nothing. 0, or -1 and errno. */
DDP_LIB int ddp__iface_toward(const ddp__addr *to, ddp__addr *out);
/* Returns the local address of the default route, else of the first interface that is up and not loopback,
 * else 127.0.0.1. */
DDP_LIB void ddp__iface_default(ddp__addr *out);
/* Writes the name of the interface with that address to `name`, "" if there is none. Returns name. */
DDP_LIB const char *ddp__iface_name(const ddp__addr *a, char *name);
