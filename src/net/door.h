/* A listening socket that stays open while a run goes on, and those who knock at it. */
#ifndef DDP_NET_DOOR_H
#define DDP_NET_DOOR_H

#include "net/hello.h"
#include "net/socket.h"
#include "net/stream.h"

#include <poll.h>

/* One connection that has not said who it is. */
typedef struct ddp__caller {
    int fd;                   /* -1: free */
    double until;
    size_t got;
    unsigned char bytes[DDP__HELLO_BYTES];
    ddp__addr from;
} ddp__caller;

typedef struct ddp__door {
    int listen_fd;            /* -1: no door */
    int room, inside;         /* callers at a time, of them there now */
    ddp__caller *caller;      /* [room] */
    ddp__tls *tls;            /* NULL = plain; borrowed */
} ddp__door;

/* Decides about 64 bytes that begin as a hello. 1: the socket is now the decider's; 0: close it. */
typedef int (*ddp__door_fn)(void *user, int fd, const unsigned char *bytes, const ddp__addr *from);

#ifdef __cplusplus
extern "C" {
#endif

/* Takes over listen_fd (-1: a door that never opens). At most room callers are undecided at a time,
 * each for 5 s; what does not begin as a hello is dropped at its first byte. 0 if memory is short.
 */
DDP_LIB int  ddp__door_open(ddp__door *d, int listen_fd, int room, ddp__tls *tls);
DDP_LIB void ddp__door_close(ddp__door *d);
/* Fills polls[room + 1] and returns room + 1; *next is lowered to the time of the next deadline. */
DDP_LIB int  ddp__door_polls(ddp__door *d, struct pollfd *polls, double *next);
/* Lets in who waits and hears who is inside; never blocks. */
DDP_LIB void ddp__door_serve(ddp__door *d, double now, ddp__door_fn decide, void *user);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_DOOR_H */
