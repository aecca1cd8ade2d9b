/* TCP sockets without surprises: addresses, listening, dialling, whole frames with a deadline. */
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

/* "host:port", "tcp://host:port", "[v6]:port"; a missing port is 29500. host[DDP__HOST_TEXT]. Errors:
 * DDP_ARG. */
DDP_LIB ddp_status ddp__addr_split(const char *spec, char *host, int *port, ddp_error *err);
/* The same, resolved by one look-up, which may block for seconds: up to room addresses, IPv4 first. 127.0.0.1
 * becomes ::1 on a machine without IPv4. Errors: DDP_ARG if the text is no address; DDP_NET if the name has
 * no address now, but may get one (a container that starts); DDP_MEMORY. */
DDP_LIB ddp_status ddp__addr_parse(const char *spec, ddp__addr *list, int room, int *count, ddp_error *err);
/* Writes "ip:port" or "[ip]:port" to out[DDP__ADDR_TEXT]; returns out. */
DDP_LIB const char *ddp__addr_text(const ddp__addr *a, char *out);
DDP_LIB int ddp__addr_port(const ddp__addr *a);
DDP_LIB void ddp__addr_set_port(ddp__addr *a, int port);
DDP_LIB int ddp__addr_is_loopback(const ddp__addr *a);
/* An address as family 4 or 6 and 16 bytes, without its port, and back; 0 = no such family. */
DDP_LIB uint32_t ddp__ip_pack(const ddp__addr *a, unsigned char *ip);
DDP_LIB int ddp__ip_parse(uint32_t family, const unsigned char *ip, ddp__addr *a);

/* Sees to it that so many descriptors more can be opened: raises the soft limit where that is needed and
 * possible. Errors: DDP_NET if not even `least` can be: the sentence says how many are needed. */
DDP_LIB ddp_status ddp__fd_room(int wanted, int least, ddp_error *err);
DDP_LIB int ddp__fd_limit(void); /* how many this process may have open */
/* The own address of a socket, or that of its peer: 0, or -1, errno and size 0. */
DDP_LIB int ddp__addr_own(int fd, ddp__addr *out);
DDP_LIB int ddp__addr_peer(int fd, ddp__addr *out);
DDP_LIB int ddp__fd_prepare(int fd); /* non-blocking, closed on exec, without delays; 0, or -1 and errno */
/* Closes what *fd names, if anything, and makes it -1 first: a forked child would close whatever has that
 * number by then. */
DDP_LIB void ddp__fd_close(int *fd);
/* A bound, listening socket; *bound (may be NULL) gets the address, with the port chosen. */
DDP_LIB ddp_status ddp__tcp_listen(const ddp__addr *at, int *fd, ddp__addr *bound, ddp_error *err);
/* One attempt to connect, given up at `until`: a non-blocking socket, or -1 and errno. */
DDP_LIB int ddp__tcp_dial(const ddp__addr *to, double until);
/* Its halves, for who polls: a connecting socket, or -1 and errno; after POLLOUT 0, or -1 and errno (not
 * closed). */
DDP_LIB int ddp__tcp_dial_begin(const ddp__addr *to);
DDP_LIB int ddp__tcp_dial_end(int fd);
/* A waiting connection as a non-blocking socket, and from where (may be NULL); -1 and errno, EAGAIN when none
 * waits. */
DDP_LIB int ddp__tcp_accept(int listen_fd, ddp__addr *from);
/* What a connection between ranks needs: that, keepalive, time-out, congestion control. */
DDP_LIB ddp_status ddp__tcp_tune(int fd, double peer_timeout_s, const char *congestion, ddp_error *err);
/* poll, and what it returns, until then (< 0: no limit), as exactly as the system can; signals do not end
 * it. */
DDP_LIB int ddp__poll_until(struct pollfd *polls, int count, double until);
DDP_LIB void ddp__poll_set(struct pollfd *p, int fd, int events);
/* poll of one descriptor until then; its revents, 0 when the time is over. */
DDP_LIB int ddp__fd_wait(int fd, int events, double until);

/* A pipe by which one thread brings another out of its poll. */
typedef struct ddp__waker {
    int fd[2]; /* the first is to be polled for POLLIN */
} ddp__waker;

DDP_LIB ddp_status ddp__waker_open(ddp__waker *w, ddp_error *err);
DDP_LIB void ddp__waker_close(ddp__waker *w); /* fine for one that is all zero */
DDP_LIB void ddp__waker_wake(ddp__waker *w);  /* any thread */
DDP_LIB void ddp__waker_drain(ddp__waker *w);

/* ---- which of this machine's addresses the others shall use ---- */

#define DDP__IFACE_TEXT 32

/* Whether a list in NCCL's syntax means an interface: prefixes ("eth,ib"), whole names ("=eth0"), all but
 * ("^lo"). */
DDP_LIB int ddp__iface_matches(const char *list, const char *name);
/* The first address, with port 0, of an interface that is up and that the list (NULL: any) means: others
 * before loopback, that family before the other. Errors: DDP_ARG, which names the interfaces that there are;
 * DDP_NET. */
DDP_LIB ddp_status ddp__iface_pick(const char *list, int family, ddp__addr *out, ddp_error *err);
/* The address from which the system would send to that one; nothing is sent. 0, or -1 and errno. */
DDP_LIB int ddp__iface_toward(const ddp__addr *to, ddp__addr *out);
/* The same without a destination: that of the default route, else the first up and not loopback, else
 * 127.0.0.1. */
DDP_LIB void ddp__iface_default(ddp__addr *out);
/* The name of the interface with that address, "" if there is none; returns name. */
DDP_LIB const char *ddp__iface_name(const ddp__addr *a, char *name);
