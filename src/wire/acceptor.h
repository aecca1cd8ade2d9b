/* Admission of incoming connections: the listening socket of a rank, and the callers (accepted connections)
 * that have not identified themselves yet. */
#pragma once

#include "wire/tcp.h"

typedef struct ddp__caller {
    int fd;              /* -1: unused */
    double since, heard; /* time of the accept, and of the last read */
    int queue;           /* index in the acceptor's `queue` */
    int spoken;          /* its first byte has arrived */
    int begun;           /* its session was started */
    int ready;           /* it has bytes to read */
    size_t got;
    unsigned char bytes[DDP__HELLO_BYTES];
    int via; /* the rank that relays its bytes, or -1 */
    ddp__addr from;
} ddp__caller;

/* Decides about a valid hello. DDP__WELCOME: the function owns the socket and its session. Any other result:
 * the socket is closed, after the caller was notified unless the result is MUTE. With REFUSE_NAME,
 * why[DDP__STREAM_TEXT] receives the end of a sentence about the caller. */
typedef ddp__refusal (*ddp__acceptor_fn)(void *user, const ddp__caller *c, const ddp__hello *h, char *why);

/* Returns 1 if that is the address of a rank. */
typedef int (*ddp__acceptor_knows_fn)(void *user, const ddp__addr *from);

enum {
    DDP__CALLERS = 640, /* most callers from unknown addresses at a time */
    DDP__PROVEN = 16    /* remembered addresses from which a hello was accepted. A new address replaces the
                           oldest. */
};

typedef struct ddp__acceptor_queue { /* the callers from one machine */
    unsigned char ip[16];
    uint32_t family;
    int known;          /* 1: when they connected, the address was a rank's or a caller from there had been
                           accepted */
    int callers, ready; /* 0 callers: unused */
} ddp__acceptor_queue;

typedef struct ddp__acceptor {
    int listen_fd;            /* -1 if not set. It may be set before opening or later, and is closed with the
                                 acceptor. */
    const ddp__tcp_config *c; /* of this rank, borrowed */
    ddp__acceptor_fn decide;
    ddp__acceptor_knows_fn knows; /* NULL while no rank address is known. It may be set later. */
    void *user;                   /* passed to both functions */
    int broken;                   /* errno of an accept that failed for a local reason, or 0 */
    char refused[200];            /* who was refused last, and why */
    int room, common, inside;     /* most callers, most from unknown addresses, present number */
    ddp__caller *caller;          /* [room] */
    struct pollfd *polls;         /* [room] */
    ddp__acceptor_queue *queue;   /* [room] */
    int known, turn[2];           /* whether the last caller served had a known address, and the next queue of
                                 each kind */
    ddp__addr proven[DDP__PROVEN]; /* addresses from which a caller was accepted */
    int oldest;                    /* index in `proven` that is replaced next */
    int lines;                     /* log lines about refused callers since `counted` */
    double counted, shut;          /* no caller is served before this time */
} ddp__acceptor;

/* Opens the admission with this policy. All other fields of d are zero. Returns 0 if memory is short.
 *
 * Time limits: a caller may be silent for 2 s and must send its hello within 5 s, TLS handshake included. A
 * caller whose first bytes are not the start of a hello is closed.
 * Capacity: DDP__CALLERS undecided callers (or half of the open-file limit, if lower), plus 2 x world from
 * known addresses. An address is known if it is a rank's or a caller from there was accepted. If all places
 * are taken, the oldest silent caller is dropped, else the oldest that has had 1 s. If one address holds more
 * than half of the places, its callers are dropped at once.
 * Fairness: known and unknown addresses are served alternately, and within each kind the addresses take
 * turns. An address with many callers thus delays only its own. A flood takes at most a quarter of the time
 * of the thread that calls ddp__acceptor_serve (more only if other programs use the processor) and at most
 * 2 ms of processor time per call. Refused callers are logged, at most ten lines per second. */
DDP_LIB int ddp__acceptor_open(ddp__acceptor *d, const ddp__tcp_config *c, ddp__acceptor_fn decide,
                               void *user);
/* Returns 1 for addresses of one machine, or of one global IPv6 network (/64), since a machine there may use
 * any address. */
DDP_LIB int ddp__same_host(const ddp__addr *a, const ddp__addr *b);
DDP_LIB void
ddp__acceptor_close(ddp__acceptor *d); /* closes the callers too. A acceptor that was never opened is
                                               allowed. */
/* Adds a connected socket that another rank relays as a caller, as if it had been accepted here. Takes
 * ownership of it. */
DDP_LIB void ddp__acceptor_adopt(ddp__acceptor *d, int fd, int via);
DDP_LIB void
ddp__acceptor_disown(ddp__acceptor *d); /* in a forked child: closes the descriptors without sending
                                                anything */
/* Fills polls (at most room + 1 entries) and returns their number. *next is lowered to the time of the next
 * time-out. */
DDP_LIB int ddp__acceptor_polls(const ddp__acceptor *d, struct pollfd *polls, double *next);
DDP_LIB void ddp__acceptor_serve(ddp__acceptor *d,
                                 double now); /* accepts new callers and serves those present, and
                                                           never blocks */
