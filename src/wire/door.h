/* The one door of a rank: a listening socket, and those who came and have not yet said who they are. */
#pragma once

#include "wire/tcp.h"

typedef struct ddp__caller {
    int fd;                   /* -1: free */
    double since;
    int spoken;               /* its first byte has come */
    size_t got;
    unsigned char bytes[DDP__HELLO_BYTES];
    ddp__addr from;
} ddp__caller;

/* Decides about a hello that fits ours. WELCOME: the socket and its session are the decider's; else it is closed, and
 * told why unless MUTE. With REFUSE_NAME why[DDP__STREAM_TEXT] is the end of a sentence about the caller. */
typedef ddp__refusal (*ddp__door_fn)(void *user, const ddp__caller *c, const ddp__hello *h, char *why);

typedef struct ddp__door {
    int listen_fd;            /* -1: nobody comes; may be set before or later, and is closed with the door */
    const ddp__tcp_config *c; /* of this rank; borrowed */
    ddp__door_fn decide;
    void *user;               /* of decide */
    int broken;               /* errno of an accept that failed because something was missing here, or 0 */
    char refused[200];        /* who was turned away last, and why */
    int room, inside;         /* callers at a time, of them there now */
    ddp__caller *caller;      /* [room] */
    int turned, lines;        /* callers turned away, and lines about them, from `counted` on */
    double counted, shut;     /* it stays shut until then */
    double pause;             /* for which it was shut last */
} ddp__door;

/* The policy, for everybody who accepts connections: a caller may be silent for 2 s, and has 5 s for its hello, a
 * handshake of TLS included; what does not begin as a hello is turned away at its first byte. 64 callers, or 2 x world,
 * are undecided at a time: of more, the oldest that is silent makes room, else the oldest that had 1 s; where one
 * address has more than half of the places, its callers make room at once. After 64 that were turned away within a
 * second the door is shut for 0.1 to 0.8 s; each is a line in the log, ten a second at most. All else of d is zero.
 * 0 if memory is short. */
DDP_LIB int  ddp__door_open(ddp__door *d, const ddp__tcp_config *c, ddp__door_fn decide, void *user);
DDP_LIB void ddp__door_close(ddp__door *d); /* callers included; fine for one that never opened */
/* Fills polls, at most room + 1, and returns how many; *next is lowered to the time of the next deadline. */
DDP_LIB int  ddp__door_polls(const ddp__door *d, struct pollfd *polls, double *next);
DDP_LIB void ddp__door_serve(ddp__door *d, double now); /* lets in who waits and hears who is inside; never blocks */
