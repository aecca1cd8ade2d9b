/* The hello: the 64-byte frame that two ranks exchange before anything else, and the checks on it. */
#pragma once

#include "wire/stream.h"

#define DDP__PROTOCOL      5
#define DDP__HELLO_BYTES   64
#define DDP__HELLO_RESUMES 0x80000000u /* a flag in `world` */

typedef enum ddp__hello_kind {
    DDP__HELLO = 1, /* sender's rank and listening address */
    DDP__TABLE,     /* followed by the addresses of all ranks */
    DDP__READY,     /* the sender is connected to all ranks */
    DDP__GO,        /* all ranks are ready */
    DDP__RELAY,     /* to rank 0: join this connection to that of rank `detail`. From rank 0: request this. */
    DDP__REFUSED,
    DDP__RESUME = 16, /* reconnection of a broken link (wire/reconnect_link.c has the other fields) */
    DDP__JOIN_ASK,    /* request of a joining worker, followed by the parameters */
    DDP__JOIN_MESH    /* from a joining worker to each member: the connection they will use */
} ddp__hello_kind;

typedef enum ddp__refusal {
    DDP__WELCOME,
    DDP__REFUSE_VERSION,
    DDP__REFUSE_RUN,
    DDP__REFUSE_WORLD,
    DDP__REFUSE_RANK,
    DDP__REFUSE_TWICE,
    DDP__REFUSE_LATE,
    DDP__REFUSE_LOST,
    DDP__REFUSE_NAME,   /* the certificate belongs to another rank */
    DDP__REFUSE_RESUME, /* only one side has reconnection enabled */
    DDP__REFUSE_MUTE,   /* never sent: closes without an answer */
    DDP__REFUSE_BEGUN,  /* the run has started, and this is not a reconnection of one of its links */
    DDP__REFUSE_DAMAGED /* wrong checksum */
} ddp__refusal;

/* The fields of a frame. On the wire: magic "dreamddp", then the fields in little-endian order. `kind` shares
 * four bytes with a checksum of the frame. A refusal has the sender's own run, rank and world, so that both
 * sides can report both values. world: number of ranks in the lower 16 bits. Above them is the number of ids
 * if the world has room for more, else 0. The highest bit is set if reconnection is enabled. */
typedef struct ddp__hello {
    uint32_t version, kind;
    int damaged; /* received frame with a wrong checksum */
    int begun;   /* local: the rendezvous is complete */
    uint64_t run_id;
    uint32_t rank, world, port, reason;
    uint32_t detail; /* LATE: ranks that had connected. LOST: the rank that disconnected. RELAY: the other
                        rank. */
    uint32_t family; /* 4 or 6, of the listening address in ip and port, or 0 if not given */
    unsigned char ip[16];
    /* RESUME, instead of family and ip: numbers of the sender's and the receiver's wire, attempt, bytes
     * received */
    uint32_t number, yours, attempt;
    uint64_t received;
    const char *run_name; /* local: name of the run given by the user, or NULL */
} ddp__hello;

DDP_LIB void ddp__hello_put(unsigned char *at, uint64_t v, int bytes); /* little-endian integers of 1 to 8
                                                                              bytes */
DDP_LIB uint64_t ddp__hello_get(const unsigned char *at, int bytes);

/* Returns the `world` field for a number of ranks and a number of ids >= that. */
DDP_LIB uint32_t ddp__hello_world(int world, int ids);

/* Packs a frame with self's version, run, rank, world and port, and the given kind, reason and detail. Call
 * ddp__hello_seal after later changes to its bytes. */
DDP_LIB void ddp__hello_pack(const ddp__hello *self, ddp__hello_kind kind, ddp__refusal reason, int detail,
                             unsigned char *b);
DDP_LIB void ddp__hello_seal(unsigned char *b); /* writes the checksum */
/* Sends such a frame on a socket whose send buffer is empty. Returns 0, or -1 and errno. */
DDP_LIB int ddp__hello_send(ddp__tls *tls, int fd, const ddp__hello *self, ddp__hello_kind kind,
                            ddp__refusal reason, int detail);
DDP_LIB int ddp__hello_begins(const unsigned char *b, size_t got);   /* 1 if the first `got` bytes may start a
                                                                        frame */
DDP_LIB int ddp__hello_parse(const unsigned char *b, ddp__hello *h); /* 0 if the 64 bytes are not a valid
                                                                        frame */
/* Returns whether a peer's frame matches ours. World and rank of a JOIN_ASK are not checked. */
DDP_LIB ddp__refusal ddp__hello_check(const ddp__hello *self, const ddp__hello *other);
/* Writes an error message for a refusal, with both values. `name` is the name of the peer. */
DDP_LIB void ddp__hello_dispute(const ddp__hello *self, ddp__refusal reason, const ddp__hello *other,
                                const char *name, char *out, size_t room);
