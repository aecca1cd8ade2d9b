/* Connections of two other ranks, joined at rank 0 because they cannot reach each other. */
#ifndef DDP_WIRE_RELAY_H
#define DDP_WIRE_RELAY_H

#include "wire/hello.h"

typedef struct ddp__relay ddp__relay;

DDP_LIB ddp_status ddp__relay_open(ddp__relay **out, ddp_error *err); /* Errors: DDP_MEMORY. */
/* From now on what comes from one socket goes to the other, both ways, at most 64 KiB of each way waiting here. Both
 * are the relay's, also on error; each is shut down when the other has ended and its last bytes are through. By a name
 * other than 0 ddp__relay_cut ends it: sockets are closed, what waits is dropped. Any thread. Errors: DDP_MEMORY. */
DDP_LIB ddp_status ddp__relay_add(ddp__relay *relay, int a, int b, uint32_t name, ddp_error *err);
DDP_LIB void ddp__relay_cut(ddp__relay *relay, uint32_t name);
DDP_LIB int64_t ddp__relay_bytes(ddp__relay *relay); /* Bytes moved so far. Any thread. */
/* Waits for all pairs' last words, 5 s at most and no longer than 1 s without a byte. NULL is fine. */
DDP_LIB void ddp__relay_close(ddp__relay *relay);

/* Two ranks, of which one has asked rank 0 to be joined to the other. */
typedef struct ddp__pair {
    int low, high;
    int fd[2];            /* of low, of high; -1: not here yet */
} ddp__pair;

/* Those who wait for their other end; rank 0's. At most one for each pair of the world, whatever arrives. */
typedef struct ddp__pairs {
    ddp__pair *pair;
    int count, room;
    ddp__relay *relay;    /* NULL until one is needed */
    ddp__tls *tls;
    const ddp__hello *self;
    double peer_timeout_s;
    const char *congestion;
    const ddp_logger *log;
} ddp__pairs;

/* A rank asks on this connection, which is ours from now on, for the rank h->detail. When that one has asked too both
 * are told, and joined; what they were joined by before ends. *waits_for: the other rank, which has not asked, or 0.
 * Errors: DDP_MEMORY, those of a relay and of ddp__tcp_tune. */
DDP_LIB ddp_status ddp__pairs_take(ddp__pairs *x, const ddp__hello *h, int fd, int *waits_for, ddp_error *err);
/* "Join me to rank `about`", or from rank 0 "ask for that", or "you are joined". 0, or -1 and errno. */
DDP_LIB int  ddp__pairs_tell(ddp__pairs *x, int fd, int about);
DDP_LIB void ddp__pairs_close(ddp__pairs *x); /* the relay stays */

#endif /* DDP_WIRE_RELAY_H */
