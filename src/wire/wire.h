/* A wire: non-blocking byte streams from this rank to every peer, over threads, TCP or MPI: the engine cannot
 * tell. */
#pragma once

#include "base/core.h"

struct ddp__op;
struct ddp__exchange;
struct ddp__engine;

typedef struct ddp__wire ddp__wire;

/* All calls except wake come from the thread that drives the engine: the comm thread, or the caller of a
 * blocking call while the comm thread is parked (comm/submit.c). peer is a rank other than one's own. */
typedef struct ddp__wire_table {
    /* Bytes taken (possibly fewer), 0 = would block, -1 = the peer is gone (errno says why). */
    long (*send)(ddp__wire *w, int peer, const struct iovec *iov, int count);
    long (*recv)(ddp__wire *w, int peer, void *buf, size_t bytes);
    /* Sleeps until a peer has bytes, one with want_send set takes some, wake() was called, or until (< 0: no
     * limit). */
    void (*wait)(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv, double until);
    void (*wake)(ddp__wire *w); /* any thread */
    void (*close)(ddp__wire *w);
    /* Breaks the connection to a peer, for both sides, as a network would; NULL: cannot. */
    void (*cut)(ddp__wire *w, int peer);
    /* This process was stopped for `seconds` until now, which do not count for any time limit. NULL: no time
     * limits. */
    void (*stopped)(ddp__wire *w, double seconds, double now);
} ddp__wire_table;

/* Moves whole messages itself, in a time of its own: its engine has no comm thread, and no frames (src/sim).
 * All calls come from the thread that uses the engine, without its lock. */
typedef struct ddp__carrier {
    void (*opened)(ddp__wire *w, struct ddp__engine *e);
    void (*posted)(ddp__wire *w);                     /* a message was queued */
    void (*begins)(ddp__wire *w, struct ddp__op *op); /* its turn has come */
    void (*await)(ddp__wire *w);    /* returns when something has happened to those of this rank */
    void (*catch_up)(ddp__wire *w); /* returns when all that happens before the caller's time has happened */
    void (*failed)(ddp__wire *w);   /* the engine has its error: the others get it */
} ddp__carrier;

#define DDP__WIRE_NAME 96

struct ddp__wire {
    const ddp__wire_table *table;
    const ddp__carrier *carrier; /* NULL: bytes move by the table */
    int rank, world;
    char (*names)[DDP__WIRE_NAME]; /* [world] of peers: "127.0.0.1:40123", "thread 2", "via rank 0 at ..." for
                                      a relayed peer */
    int *relays;       /* [world] atomic: the rank that relays a peer's bytes + 1, 0: none; NULL: none */
    size_t pair_bytes; /* memory of its own that it takes per peer */
    double round_trip; /* seconds, of the farthest peer; 0: all are on this machine, < 0: not known */
    int intact;        /* 1: bytes cannot change on the way: one memory, or TLS */
    struct ddp__offer *offers; /* [world x DDP__OFFERS] of ranks that share one memory; or NULL */
    /* May be NULL: first and last on the comm thread. begin may block, and fail; why is NULL after an orderly
     * end. */
    ddp_status (*begin)(ddp__wire *w, ddp_error *err);
    void (*end)(ddp__wire *w, const ddp_error *why);
    /* In a forked child: closes the descriptors, and sends nothing on streams that are the parent's. NULL: it
     * has none. */
    void (*disown)(ddp__wire *w);
};

/* For who makes a wire that is all zero; names are to be freed. 0 when memory is short. */
DDP_LIB int ddp__wire_init(ddp__wire *w, const ddp__wire_table *table, int rank, int world);
/* The rank that relays the bytes of a peer, or last relayed those of a lost peer; -1: none. Any thread. */
DDP_LIB int ddp__wire_relay(const ddp__wire *w, int peer);

/* ---- threads of one process ---- */

/* What one rank offers the others of its memory in one position of its window; comm/share.c has the rules. */
typedef struct ddp__offer {
    long users;                /* how many are at work on it, + DDP__OFFER_OPEN while others may begin */
    size_t next;               /* of the team's first rank: the next chunk that nobody has taken */
    const struct ddp__op *op;  /* the owner's: where its values are */
    struct ddp__exchange *row; /* [world] the owner's: who adds what to its divergence */
    char gap[64 - 2 * sizeof(void *) - sizeof(long) - sizeof(size_t)];
} ddp__offer;

enum {
    DDP__OFFER_OPEN = 1 << 30,
    DDP__OFFERS = 16 /* of one rank: as many as it has collectives in flight */
};

typedef struct ddp__hub ddp__hub;

/* ddp__hub_new - the rendezvous place of `world` ranks; NULL when memory is short. Each open wire holds a
 * reference, so ddp__hub_free and the wires' close may come in any order, from any thread. Each ordered pair
 * of ranks has a ring of DDP__RING_BYTES, touched only when used. ddp__wire_threads - the end of one rank; a
 * rank can be taken once. ddp__hub_second - another rendezvous place of the same ranks, freed with the first;
 * NULL when memory is short, or if it was never asked for before the ranks began (then make = 0).
 * ddp__hub_leave - what closing the wire of that rank does, for a rank that never got one: the others see it
 * gone. Errors: DDP_ARG (rank outside or taken), DDP_MEMORY. */
DDP_LIB ddp__hub *ddp__hub_new(int world);
DDP_LIB ddp__hub *ddp__hub_second(ddp__hub *hub, int make);
DDP_LIB ddp_status ddp__wire_threads(ddp__hub *hub, int rank, ddp__wire **out, ddp_error *err);
/* ddp__hub_making - of wires that attach makes; link: 1 of the second hub. */
typedef ddp_status (*ddp__wire_fn)(void *user, int link, int rank, ddp__wire **out, ddp_error *err);
DDP_LIB ddp__hub *ddp__hub_making(int world, ddp__wire_fn attach, void *user);
DDP_LIB void ddp__hub_leave(ddp__hub *hub, int rank);
DDP_LIB void ddp__hub_free(ddp__hub *hub);

/* ---- processes that an MPI launcher started; behind DDP_USE_MPI ---- */

/* ddp__wire_mpi - byte streams over MPI_Isend and MPI_Irecv on a copy of MPI_COMM_WORLD. Makes no MPI call:
 * all of them, MPI_Init_thread and MPI_Finalize included where the program has not initialised MPI itself,
 * come from the engine's comm thread, in begin to end. begin fails with DDP_UNSUPPORTED if MPI's thread level
 * is below MPI_THREAD_SERIALIZED, DDP_USAGE if MPI was finalised before, DDP_ARG if MPI counts other ranks
 * than rank and world say, DDP_NET with MPI's own words. end after a failure calls MPI_Abort if begin has
 * initialised MPI, since the other ranks would wait in MPI_Finalize; the failure goes to stderr first.
 * Errors: DDP_MEMORY, DDP_UNSUPPORTED (no MPI). */
DDP_LIB ddp_status ddp__wire_mpi(int rank, int world, ddp__wire **out, ddp_error *err);

DDP_LIB ddp_status ddp__mpi_built(ddp_error *err); /* DDP_OK if this program was built with MPI */
/* 1, with rank and world of MPI_COMM_WORLD, where the program has initialised MPI; else 0. */
DDP_LIB int ddp__mpi_ranks(int *rank, int *world);
