/* Types and functions shared by the files of the rendezvous. The protocol, in order:
 *   worker -> rank 0   hello (rank, listening address). Rank 0 answers with its own or refuses
 *   rank 0 -> workers  table of addresses, when all are connected
 *   worker -> lower    hello for each pair without rank 0. The lower rank answers
 *   worker -> rank 0   if that failed, on a separate connection: relay me to rank `detail`
 *   rank 0 -> lower    relay `detail`: connect here too, the higher rank could not reach you
 *   rank 0 -> both     relay: from here on the other rank is at the other end
 *   worker -> rank 0   ready
 *   rank 0 -> workers  go
 * Every frame has 64 bytes, little-endian. Only the table is followed by 24 bytes per rank. */
#pragma once

#include "wire/acceptor.h"

#define DDP__ENTRY_BYTES  24
#define DDP__DIRECT_LIMIT 3.0 /* seconds until a pair uses rank 0 as relay */
#define DDP__MESH_LIMIT \
    15.0 /* seconds for the rest once all are connected to rank 0, or join_timeout_s if that is longer */
#define DDP__ADDRESSES     8
#define DDP__MEETFILE_TEXT 128

typedef enum ddp__leg_state {
    DDP__LEG_NONE,
    DDP__LEG_PAUSE, /* a direct attempt failed, waits for the next */
    DDP__LEG_CONNECT,
    DDP__LEG_GREET, /* TLS handshake with the dialled rank, or through rank 0 with the other rank */
    DDP__LEG_ANSWER /* frame sent, waiting for the answer */
} ddp__leg_state;

/* A worker's connection to another during set-up. */
typedef struct ddp__leg {
    ddp__leg_state state;
    int joined; /* relayed: rank 0 has joined the two */
    int ready;  /* rank 0: the worker is connected to all ranks */
    int fd;
    double until, limit; /* time limits of this attempt, and of all direct or all relayed attempts */
    size_t got;
    unsigned char bytes[DDP__HELLO_BYTES];
    char why[64]; /* why the direct attempt failed */
} ddp__leg;

typedef struct ddp__meeting {
    const ddp__rendezvous *r;
    ddp__tcp_config c; /* of the wire. self is the hello of this rank, with the address. */
    double begin, until, next_note;
    double seen;                    /* last call of ddp__meeting_over */
    double join_s;                  /* seconds from begin until all ranks must be connected */
    char addr[DDP__ADDR_TEXT];      /* of rank 0 */
    char root[DDP__ADDR_TEXT + 16]; /* "rank 0 at ..." */
    const char *path;               /* file with the address of rank 0, or NULL */
    char why[420];                  /* why rank 0 has not answered yet */
    char named[DDP__MEETFILE_TEXT]; /* address in that file, of run c.self.run_id */
    ddp__acceptor acceptor;
    struct pollfd *polls; /* [2 x world + acceptor.room + 1]: peers, legs, the acceptor */
    ddp_error failed;     /* error caused by a caller, or DDP_OK */
    int *fd;              /* [world] */
    ddp__addr *where;     /* [world] listening addresses. On other ranks [0] is the address at which rank 0 is
                             reached. */
    unsigned char *table; /* frame and entries */
    /* after all are connected to rank 0 */
    int meshing;
    ddp__leg *leg;          /* [world] */
    unsigned char *relayed; /* [world] 1: relayed by rank 0 */
    int lost;               /* rank 0: the worker that caused the error, or 0 */
    int ready, go;          /* others: READY was sent to rank 0, GO was received */
    ddp__pairs pairs;       /* rank 0: relays not yet joined */
} ddp__meeting;

/* mesh.c: pairs without rank 0 */
DDP_LIB ddp_status ddp__mesh_begin(ddp__meeting *m, ddp_error *err); /* dials all lower ranks of the table */
/* Gets a rank's listening address from the table. Returns 0 if it is not usable. */
DDP_LIB int ddp__table_where(const ddp__meeting *m, int rank, ddp__addr *a);
/* Handles an event or a time-out of a leg. */
DDP_LIB ddp_status ddp__leg_serve(ddp__meeting *m, int peer, int revents, ddp_error *err);
/* Moves the connection to a peer to the relay, rank 0. */
DDP_LIB ddp_status ddp__leg_relay(ddp__meeting *m, int peer, ddp_error *err);

/* meeting.c */
DDP_LIB ddp_status ddp__cancelled(const ddp__meeting *m, ddp_error *err);
/* Returns whether the time limit has passed. No wait is longer than a second, so that a longer interval since
 * the last call means that the process was stopped: all limits are extended by it. Call it before using a
 * limit. */
DDP_LIB int ddp__meeting_over(ddp__meeting *m);
/* Logs "has waited ... for WHAT MORE" if a line is due: after 5, 10, 20, ... seconds. */
DDP_LIB void ddp__wait_note(ddp__meeting *m, const char *what, const char *more);
/* Formats the missing ranks above m->r->rank ("ranks 2, 3 of 4") and returns their number. */
DDP_LIB int ddp__missing(const ddp__meeting *m, char *out, size_t room);
/* Waits a short time for bytes from rank 0, and logs if a line is due. kind: the expected frame. Returns
 * DDP_PEER_LOST without a message if rank 0 has not answered yet and the file now has another address. */
DDP_LIB ddp_status ddp__wait_word(ddp__meeting *m, ddp__hello_kind kind, ddp_error *err);
/* Receives and checks the next frame of a connected peer. Any other kind is an error, except RELAY instead of
 * GO. */
DDP_LIB ddp_status ddp__frame_recv(ddp__meeting *m, int peer, ddp__hello_kind kind, ddp__hello *h,
                                   ddp_error *err);
/* Logs a line about waiting "for WHAT MORE" if one is due, and polls once: until an event, the time-out or
 * the next line. Serves the acceptor and, during mesh set-up, legs and peers. */
DDP_LIB ddp_status ddp__meeting_poll(ddp__meeting *m, const char *what, const char *more, ddp_error *err);
DDP_LIB ddp_status ddp__gather(ddp__meeting *m, ddp_error *err); /* accepts all ranks above this one */
/* A ddp__acceptor_fn: accepts the sender of a hello as a peer, or refuses it. user is the ddp__meeting. */
DDP_LIB ddp__refusal ddp__meeting_decide(void *user, const ddp__caller *c, const ddp__hello *h, char *why);

/* The address file of rank 0, for ranks that share a directory but know no address: "host:port run-id\n". */
/* Returns 1 and the contents of the file, or 0 if there is no file or it is not (yet) valid.
 * addr[DDP__MEETFILE_TEXT]. */
DDP_LIB int ddp__meetfile_read(const char *path, char *addr, uint64_t *run_id);
/* Returns 1 if the file has these contents, 0 if others, -1 if there is no valid file. */
DDP_LIB int ddp__meetfile_says(const char *path, const char *addr, uint64_t run_id);
