/* The one door of a rank: a listening socket, and those who came and have not yet said who they are. */
#pragma once

#include "wire/tcp.h"

typedef struct ddp__caller {
    int fd;              /* -1: free */
    double since, heard; /* when it came, and when it was heard last */
    int queue;           /* of the door's */
    int spoken;          /* its first byte has come */
    int begun;           /* so has its session */
    int ready;           /* it is to be heard */
    size_t got;
    unsigned char bytes[DDP__HELLO_BYTES];
    int via; /* the rank that relays its bytes, or -1 */
    ddp__addr from;
} ddp__caller;

/* Decides about a hello that fits ours. WELCOME: the socket and its session are the decider's; else it is
 * closed, and told why unless MUTE. With REFUSE_NAME why[DDP__STREAM_TEXT] is the end of a sentence about the
 * caller. */
typedef ddp__refusal (*ddp__door_fn)(void *user, const ddp__caller *c, const ddp__hello *h, char *why);

/* 1 if that is the address of a rank. */
typedef int (*ddp__door_knows_fn)(void *user, const ddp__addr *from);

enum {
    DDP__CALLERS = 640, /* that no known address has, at a time */
    DDP__PROVEN = 16    /* addresses that are known by a hello from there, the latest ones */
};

typedef struct ddp__door_queue { /* the callers of one machine */
    unsigned char ip[16];
    uint32_t family;
    int known;          /* 1: when they came, a rank had that address, or a caller from there had been
                                 accepted */
    int callers, ready; /* 0 callers: free */
} ddp__door_queue;

typedef struct ddp__door {
    int listen_fd;            /* -1: nobody comes; may be set before or later, and is closed with the door */
    const ddp__tcp_config *c; /* of this rank; borrowed */
    ddp__door_fn decide;
    ddp__door_knows_fn knows; /* NULL: no rank is known yet; may be set later */
    void *user;               /* of both */
    int broken;               /* errno of an accept that failed because something was missing here, or 0 */
    char refused[200];        /* who was turned away last, and why */
    int room, common, inside; /* callers at a time, those of any address, those there now */
    ddp__caller *caller;      /* [room] */
    struct pollfd *polls;     /* [room] */
    ddp__door_queue *queue;   /* [room] */
    int known, turn[2];       /* whether the last one heard had a known address, and the next queue of each
                                 kind */
    ddp__addr proven[DDP__PROVEN]; /* from where a caller was accepted */
    int oldest;                    /* of them, which the next one replaces */
    int lines;                     /* about callers that were turned away, from `counted` on */
    double counted, shut;          /* it stays shut until then */
} ddp__door;

/* The policy, for everybody who accepts connections: a caller may be silent for 2 s, and has 5 s for its
 * hello, a handshake of TLS included; a caller whose first byte does not begin a hello is closed.
 * DDP__CALLERS, or half as many as there may be open files, are undecided at a time, and 2 x world more from
 * known addresses, which ranks have or from where a caller was accepted: of more, the oldest that is silent
 * makes room, else the oldest that had 1 s; where one address has more than half of the places, its callers
 * make room at once. Known addresses and others are heard in turn, and of each kind one address after the
 * other, so that an address with many callers delays its own. A flood takes at most a quarter of the time of
 * the thread that serves the door, more only where other programs have the processor, and never more than 2
 * ms of processor time at a time. Those turned away are lines in the log, ten a second at most. All else of d
 * is zero. 0 if memory is short. */
DDP_LIB int ddp__door_open(ddp__door *d, const ddp__tcp_config *c, ddp__door_fn decide, void *user);
/* 1 for addresses of one machine, or of one network of IPv6, of which one machine has any address. */
DDP_LIB int ddp__same_host(const ddp__addr *a, const ddp__addr *b);
DDP_LIB void ddp__door_close(ddp__door *d); /* callers included; fine for one that never opened */
/* A connected socket that another rank relays is a caller, as if accepted here; it is the door's from now
 * on. */
DDP_LIB void ddp__door_adopt(ddp__door *d, int fd, int via);
DDP_LIB void ddp__door_disown(ddp__door *d); /* in a forked child: closes the descriptors and says nothing */
/* Fills polls, at most room + 1, and returns how many; *next is lowered to the time of the next deadline. */
DDP_LIB int ddp__door_polls(const ddp__door *d, struct pollfd *polls, double *next);
DDP_LIB void ddp__door_serve(ddp__door *d, double now); /* lets in who waits and hears who is inside; never
                                                           blocks */
