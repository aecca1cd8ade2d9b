/* The wire interface: non-blocking byte streams from this rank to every peer, over threads, TCP or MPI. The
 * engine uses all of them in the same way. */
#pragma once

#include "base/core.h"

struct ddp__op;
struct ddp__exchange;
struct ddp__engine;

typedef struct ddp__wire ddp__wire;

/* The functions of a wire. All except wake are called from the thread that drives the engine: the comm
 * thread, or the caller of a blocking call while the comm thread is parked (comm/submit.c). peer is never the
 * own rank. */
typedef struct ddp__wire_table {
    /* Both return the number of bytes transferred (possibly fewer than given), 0 if the call would block, -1
     * if the peer is gone (errno has the reason). */
    long (*send)(ddp__wire *w, int peer, const struct iovec *iov, int count);
    long (*recv)(ddp__wire *w, int peer, void *buf, size_t bytes);
    /* Blocks until a peer has bytes to read, a peer with want_send set accepts bytes, wake() is called, or
     * time `until` is reached (< 0: no limit). */
    void (*wait)(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv, double until);
    void (*wake)(ddp__wire *w); /* any thread */
    void (*close)(ddp__wire *w);
    /* Breaks the connection to a peer for both sides, as a network failure would. NULL if not supported. */
    void (*cut)(ddp__wire *w, int peer);
    /* This process was stopped for `seconds` until now: extends all time limits by that. NULL without time
     * limits. */
    void (*stopped)(ddp__wire *w, double seconds, double now);
} ddp__wire_table;

/* A wire that transfers whole messages in simulated time (src/sim). Its engine has no comm thread and uses no
 * frames. All calls come from the thread that uses the engine, without the engine's lock. */
typedef struct ddp__carrier {
    void (*opened)(ddp__wire *w, struct ddp__engine *e);
    void (*posted)(ddp__wire *w);                     /* a message was queued */
    void (*begins)(ddp__wire *w, struct ddp__op *op); /* the message is first in the queue */
    void (*await)(ddp__wire *w);    /* blocks until the state of a message of this rank changes */
    void (*catch_up)(ddp__wire *w); /* returns when every event before the caller's time has been processed */
    void (*failed)(ddp__wire *w);   /* the engine failed: the other ranks receive its error */
} ddp__carrier;

#define DDP__WIRE_NAME 96

struct ddp__wire {
    const ddp__wire_table *table;
    const ddp__carrier *carrier; /* NULL if bytes are transferred through `table` */
    int rank, world;
    char (*names)[DDP__WIRE_NAME]; /* [world] peers: "127.0.0.1:40123", "thread 2", "via rank 0 at ..." for a
                                      relayed peer */
    int *relays;               /* [world] atomic: rank that relays the peer's bytes + 1, or 0 for direct. NULL
                                  without relays. */
    size_t pair_bytes;         /* memory that the wire allocates per peer, in bytes */
    double round_trip;         /* to the farthest peer, in seconds. 0 if all are on this machine, negative if
                                  unknown. */
    int intact;                /* 1: bytes cannot be corrupted in transit (shared memory, or TLS) */
    struct ddp__offer *offers; /* [world x DDP__OFFERS] of ranks that share memory, or NULL */
    /* Called first and last on the comm thread. May be NULL. begin may block and fail. why is NULL after a
     * normal end. */
    ddp_status (*begin)(ddp__wire *w, ddp_error *err);
    void (*end)(ddp__wire *w, const ddp_error *why);
    /* In a forked child: closes the descriptors and sends no bytes on the streams of the parent. NULL without
     * descriptors. */
    void (*disown)(ddp__wire *w);
};

/* Initialises a zeroed wire. Its creator must free `names`. Returns 0 if memory is short. */
DDP_LIB int ddp__wire_init(ddp__wire *w, const ddp__wire_table *table, int rank, int world);
/* Returns the rank that relays a peer's bytes (for a lost peer, the last one), or -1 if there is none. Any
 * thread. */
DDP_LIB int ddp__wire_relay(const ddp__wire *w, int peer);

/* ---- threads of one process ---- */

/* One slot of a rank's window, through which it shares memory with the other ranks. comm/share.c has the
 * rules. */
typedef struct ddp__offer {
    long users;                /* threads working on it, + DDP__OFFER_OPEN while others may start */
    size_t next;               /* of the team's first rank: the next free chunk */
    const struct ddp__op *op;  /* the owner's operation: has its values */
    struct ddp__exchange *row; /* [world] the owner's: the divergence parts of each rank */
    char gap[64 - 2 * sizeof(void *) - sizeof(long) - sizeof(size_t)];
} ddp__offer;

enum {
    DDP__OFFER_OPEN = 1 << 30,
    DDP__OFFERS = 16 /* per rank: the most collectives in flight */
};

typedef struct ddp__hub ddp__hub;

/* The hub connects `world` ranks that are threads of one process. Each ordered pair of ranks has a ring of
 * DDP__RING_BYTES, whose memory is touched only when used. Each open wire holds a reference, so that
 * ddp__hub_free and the close of the wires may come in any order, from any thread.
 *
 * ddp__hub_new - creates a hub. Returns NULL if memory is short. */
DDP_LIB ddp__hub *ddp__hub_new(int world);
/* ddp__hub_second - returns a second hub for the same ranks, freed with the first. With make = 0 it returns
 * NULL if no earlier call has created it. Returns NULL if memory is short. */
DDP_LIB ddp__hub *ddp__hub_second(ddp__hub *hub, int make);
/* ddp__wire_threads - creates the wire of a rank, only once per rank. Errors: DDP_ARG (rank out of range, or
 * already taken), DDP_MEMORY. */
DDP_LIB ddp_status ddp__wire_threads(ddp__hub *hub, int rank, ddp__wire **out, ddp_error *err);
/* ddp__hub_making - creates a hub whose wires `attach` creates. link: 1 for wires of the second hub. */
typedef ddp_status (*ddp__wire_fn)(void *user, int link, int rank, ddp__wire **out, ddp_error *err);
DDP_LIB ddp__hub *ddp__hub_making(int world, ddp__wire_fn attach, void *user);
/* ddp__hub_leave - marks a rank that never got a wire as closed, so that the others see it as gone. */
DDP_LIB void ddp__hub_leave(ddp__hub *hub, int rank);
DDP_LIB void ddp__hub_free(ddp__hub *hub);

/* ---- processes that an MPI launcher started, with DDP_USE_MPI ---- */

/* ddp__wire_mpi - creates byte streams over MPI_Isend and MPI_Irecv on a duplicate of MPI_COMM_WORLD. The
 * function itself calls no MPI function. All MPI calls come from the engine's comm thread, from begin to end,
 * including MPI_Init_thread and MPI_Finalize if the program has not initialised MPI.
 *
 * begin fails with DDP_UNSUPPORTED if MPI's thread level is below MPI_THREAD_SERIALIZED, DDP_USAGE if MPI was
 * finalised before, DDP_ARG if MPI's rank or size differs from rank and world, or DDP_NET with MPI's error
 * text. After a failure, end calls MPI_Abort if begin has initialised MPI, since the other ranks would block
 * in MPI_Finalize. It first prints the error to stderr.
 * Errors: DDP_MEMORY, DDP_UNSUPPORTED (built without MPI). */
DDP_LIB ddp_status ddp__wire_mpi(int rank, int world, ddp__wire **out, ddp_error *err);

DDP_LIB ddp_status ddp__mpi_built(ddp_error *err); /* DDP_OK if this program was built with MPI */
/* Returns 1, and rank and world of MPI_COMM_WORLD, if the program has initialised MPI, or 0 otherwise. */
DDP_LIB int ddp__mpi_ranks(int *rank, int *world);
