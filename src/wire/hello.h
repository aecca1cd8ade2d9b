/* The 64 bytes that two ranks exchange before anything else, and the quarrels about them. */
#pragma once

#include "wire/stream.h"

#define DDP__PROTOCOL      3
#define DDP__HELLO_BYTES   64
#define DDP__HELLO_RESUMES 0x80000000u /* of world */

typedef enum ddp__hello_kind {
    DDP__HELLO = 1, /* who I am and where I listen */
    DDP__TABLE,     /* followed by the addresses of all ranks */
    DDP__READY,     /* all my connections stand */
    DDP__GO,        /* everybody's stand */
    DDP__RELAY,     /* to rank 0: join this connection to rank `detail`'s; from rank 0: ask so */
    DDP__REFUSED,
    DDP__RESUME = 16, /* a broken link comes back; wire/reconnect_link.c has its further fields */
    DDP__JOIN_ASK,    /* from somebody who wants to join; what it asks for follows */
    DDP__JOIN_MESH    /* from a newcomer to each member: our connection from its entry on */
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
    DDP__REFUSE_NAME,   /* the certificate is another rank's */
    DDP__REFUSE_RESUME, /* links outlive their connections on one side only */
    DDP__REFUSE_MUTE,   /* never sent: without a word */
    DDP__REFUSE_BEGUN,  /* the run has begun, and this is not one of its links that comes back */
    DDP__REFUSE_DAMAGED /* the checksum is wrong */
} ddp__refusal;

/* One frame, 64 bytes on the wire: magic "dreamddp", then these fields little endian; `kind` shares its four
 * bytes with a checksum of the frame. A refusal carries the sender's own run, rank and world, so that both
 * sides can name both. world: the ranks that meet in the lower 16 bits; above them the ids of a world with
 * room for more, else 0; highest bit: links outlive their connections. */
typedef struct ddp__hello {
    uint32_t version, kind;
    int damaged; /* received: the checksum is wrong */
    int begun;   /* own side only: the ranks have met */
    uint64_t run_id;
    uint32_t rank, world, port, reason;
    uint32_t detail; /* LATE: ranks that had come; LOST: the rank that went away; RELAY */
    uint32_t family; /* 4 or 6: where the sender listens, with port; 0 = not said */
    unsigned char ip[16];
    /* RESUME, in place of these two: numbers of the sender's and the receiver's wire, bytes received,
     * attempt */
    uint32_t number, yours, attempt;
    uint64_t received;
    const char *run_name; /* own side only: the run as the user called it, or NULL */
} ddp__hello;

DDP_LIB void ddp__hello_put(unsigned char *at, uint64_t v, int bytes); /* little-endian integers of 1 to 8
                                                                              bytes */
DDP_LIB uint64_t ddp__hello_get(const unsigned char *at, int bytes);

/* What a hello says of a world of so many ranks and ids, which are at least as many. */
DDP_LIB uint32_t ddp__hello_world(int world, int ids);

/* self's version, run, rank, world and port with that kind, reason and detail. A caller that changes bytes of
 * it afterwards calls ddp__hello_seal. */
DDP_LIB void ddp__hello_pack(const ddp__hello *self, ddp__hello_kind kind, ddp__refusal reason, int detail,
                             unsigned char *b);
DDP_LIB void ddp__hello_seal(unsigned char *b); /* writes the checksum */
/* Sends that to somebody on whose socket nothing waits: 0, or -1 and errno. */
DDP_LIB int ddp__hello_send(ddp__tls *tls, int fd, const ddp__hello *self, ddp__hello_kind kind,
                            ddp__refusal reason, int detail);
DDP_LIB int ddp__hello_begins(const unsigned char *b, size_t got);   /* 1 if the first `got` bytes may begin a
                                                                      frame */
DDP_LIB int ddp__hello_parse(const unsigned char *b, ddp__hello *h); /* 0 if the 64 bytes are not a frame of
                                                                        ours */
/* Whether a peer's frame fits ours; who asks to join knows neither world nor rank. */
DDP_LIB ddp__refusal ddp__hello_check(const ddp__hello *self, const ddp__hello *other);
/* The sentence about it, naming both values; `name` is the peer's. */
DDP_LIB void ddp__hello_dispute(const ddp__hello *self, ddp__refusal reason, const ddp__hello *other,
                                const char *name, char *out, size_t room);
