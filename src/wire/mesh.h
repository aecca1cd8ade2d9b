/* What the files of the meeting share, in the order of the wire:
 *   worker -> rank 0   hello (who I am, where I listen)   rank 0 answers with its own, or refuses
 *   rank 0 -> workers  table of addresses, once all are there
 *   worker -> lower    hello for each pair without rank 0; the lower rank answers
 *   worker -> rank 0   on a connection of its own, where that failed: relay me to rank `detail`
 *   rank 0 -> lower    relay `detail`: do the same, the higher rank could not reach you
 *   rank 0 -> both     relay: from here on each hears the other
 *   worker -> rank 0   ready;  rank 0 -> workers  go
 * Every frame is 64 bytes, little endian; only the table is followed by 24 bytes per rank. */
#pragma once

#include "wire/door.h"

#define DDP__ENTRY_BYTES  24
#define DDP__DIRECT_LIMIT 3.0 /* seconds until a pair asks rank 0 to relay */
#define DDP__MESH_LIMIT \
    15.0 /* seconds for the rest once all have met rank 0; join_timeout_s if that is more */
#define DDP__ADDRESSES     8
#define DDP__MEETFILE_TEXT 128

typedef enum ddp__leg_state {
    DDP__LEG_NONE,
    DDP__LEG_PAUSE, /* a direct attempt broke off; the next is due */
    DDP__LEG_CONNECT,
    DDP__LEG_GREET, /* TLS handshake with whom we dialled, or by way of rank 0 with the other
                                 rank */
    DDP__LEG_ANSWER /* our frame is out */
} ddp__leg_state;

/* A worker's connection to another while it is made. */
typedef struct ddp__leg {
    ddp__leg_state state;
    int joined; /* relayed: rank 0 has joined the two */
    int ready;  /* rank 0: it is connected with all */
    int fd;
    double until, limit; /* of this attempt; of all direct ones, or of the relayed ones */
    size_t got;
    unsigned char bytes[DDP__HELLO_BYTES];
    char why[64]; /* why the direct attempt failed */
} ddp__leg;

typedef struct ddp__meeting {
    const ddp__rendezvous *r;
    ddp__tcp_config c; /* of the wire; self is what this rank says of itself, its address included */
    double begin, until, next_note;
    double seen;                    /* last call of ddp__meeting_over */
    double join_s;                  /* until all have to be there, from begin */
    char addr[DDP__ADDR_TEXT];      /* of rank 0 */
    char root[DDP__ADDR_TEXT + 16]; /* "rank 0 at ..." */
    const char *path;               /* file that says where rank 0 is, or NULL */
    char why[420];                  /* rank 0 has not yet answered */
    char named[DDP__MEETFILE_TEXT]; /* there, of run c.self.run_id */
    ddp__door door;
    struct pollfd *polls; /* [2 x world + door.room + 1]: peers, legs, the door */
    ddp_error failed;     /* what a caller has brought about, DDP_OK for nothing */
    int *fd;              /* [world] */
    ddp__addr *where;     /* [world] where a rank listens; while others mesh, of rank 0 where it is
                                  reached */
    unsigned char *table; /* frame and entries */
    /* once all have met rank 0 */
    int meshing;
    ddp__leg *leg;          /* [world] */
    unsigned char *relayed; /* [world] by way of rank 0 */
    int lost;               /* rank 0: the worker that the error is about, or 0 */
    int ready, go;          /* others: said to rank 0; rank 0 has said so */
    ddp__pairs pairs;       /* rank 0: relays not yet joined */
} ddp__meeting;

/* mesh.c: pairs without rank 0 */
DDP_LIB ddp_status ddp__mesh_begin(ddp__meeting *m, ddp_error *err); /* begins to dial all lower ranks of the
                                                                        table */
/* Where rank 0 says that a rank listens; 0 if it sent no usable address. */
DDP_LIB int ddp__table_where(const ddp__meeting *m, int rank, ddp__addr *a);
/* Something happened on a leg. */
DDP_LIB ddp_status ddp__leg_serve(ddp__meeting *m, int peer, int revents, ddp_error *err);
/* The leg to a peer goes by way of rank 0 from now on. */
DDP_LIB ddp_status ddp__leg_relay(ddp__meeting *m, int peer, ddp_error *err);

/* meeting.c */
DDP_LIB ddp_status ddp__cancelled(const ddp__meeting *m, ddp_error *err);
/* Whether the time limit has passed. Waits last a second at most, so a longer interval since the last call
 * shows that the process was stopped: all limits move by it. Call it before a limit is used. */
DDP_LIB int ddp__meeting_over(ddp__meeting *m);
/* A line "has waited ... for WHAT MORE" when one is due, after 5, 10, 20, ... seconds. */
DDP_LIB void ddp__wait_note(ddp__meeting *m, const char *what, const char *more);
/* The text of the ranks above m->r->rank that are missing: "ranks 2, 3 of 4"; how many. */
DDP_LIB int ddp__missing(const ddp__meeting *m, char *out, size_t room);
/* Waits for bytes from rank 0, for a slice of time; writes the line that is due. kind: of the frame that
 * shall come. DDP_PEER_LOST without a sentence: it has not said anything yet, and the file names another one
 * now. */
DDP_LIB ddp_status ddp__wait_word(ddp__meeting *m, ddp__hello_kind kind, ddp_error *err);
/* The next frame of a connected peer, checked; any other kind, but for RELAY instead of GO, is an error. */
DDP_LIB ddp_status ddp__frame_recv(ddp__meeting *m, int peer, ddp__hello_kind kind, ddp__hello *h,
                                   ddp_error *err);
/* Writes the line that is due about waiting "for WHAT MORE" and polls once, until something happens, time is
 * over, or the next line is due: serves the door and, of the mesh, legs and peers. */
DDP_LIB ddp_status ddp__meeting_poll(ddp__meeting *m, const char *what, const char *more, ddp_error *err);
DDP_LIB ddp_status ddp__gather(ddp__meeting *m, ddp_error *err); /* accepts all ranks above this one */
/* A ddp__door_fn: one who has said its hello becomes a peer, or is refused; user is the meeting. */
DDP_LIB ddp__refusal ddp__meeting_decide(void *user, const ddp__caller *c, const ddp__hello *h, char *why);

/* A file that says where rank 0 listens, for ranks that share a folder but know no address: "host:port
 * run-id\n" */
/* 1 and what it says, or 0: no such file, or not (yet) one of these. addr[DDP__MEETFILE_TEXT]. */
DDP_LIB int ddp__meetfile_read(const char *path, char *addr, uint64_t *run_id);
/* 1 if it says this, 0 if something else, -1 if there is none. */
DDP_LIB int ddp__meetfile_says(const char *path, const char *addr, uint64_t run_id);
