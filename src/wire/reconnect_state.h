/* What wire_resume.c (streams) and resume_link.c (connections) share. One thread uses it.
 *
 * On a connection the stream travels in records: 8 bytes (kind, 'd', 'd', 'p', value) and, after
 * DATA, value bytes of the stream. What the engine hands over goes into the replay ring first and
 * from there to the socket, so a record never promises a byte that could get lost. */
#ifndef DDP_WIRE_RECONNECT_STATE_H
#define DDP_WIRE_RECONNECT_STATE_H

#include "wire/door.h"
#include "wire/replay.h"
#include "wire/reconnect.h"

#define DDP__RECORD_BYTES 8

typedef enum ddp__record_kind {
    DDP__RECORD_HI = 1, /* value: number of this wire, so that nobody else resumes its streams */
    DDP__RECORD_DATA,   /* value: bytes of the stream that follow */
    DDP__RECORD_ACK,    /* value: bytes received so far, modulo 2^32 */
    DDP__RECORD_BYE     /* the peer closes: there is nothing to come back to */
} ddp__record_kind;

typedef enum ddp__link_state {
    DDP__LINK_NONE,     /* own rank */
    DDP__LINK_LIVE,
    DDP__LINK_DOWN,     /* broken, no attempt under way */
    DDP__LINK_DIALLING, /* connect under way */
    DDP__LINK_SHAKING,  /* connected, the handshake of TLS under way */
    DDP__LINK_ASKING,   /* our hello is sent, the answer is not there */
    DDP__LINK_PAIRING,  /* relayed: rank 0 has joined us, the handshake with the peer is under way */
    DDP__LINK_MEETING,  /* relayed: our hello is sent through rank 0, the peer's is not there */
    DDP__LINK_ENDED     /* for good; why says why */
} ddp__link_state;

typedef struct ddp__way {
    ddp__link_state state;
    int       peer, fd;         /* the socket of all but NONE, DOWN, ENDED, else -1 */
    int       why;              /* errno of what broke or ended it */
    int       told;             /* recv has reported the end */
    int       relayed;
    size_t    sent_before;
    ddp__addr where;
    char      name[DDP__ADDR_TEXT + 24];
    /* outgoing */
    ddp__replay ring;
    uint64_t  next;             /* first byte of the stream not yet given to this connection */
    unsigned char pre[4 * DDP__RECORD_BYTES]; /* records without bytes, and the head of the next */
    size_t    pre_len, pre_sent;
    size_t    record_left;      /* bytes of the record under way that the socket has not taken */
    double    unheard_since;    /* when the oldest unacknowledged byte was handed over */
    /* incoming */
    unsigned char stage[40];    /* a record's head with the head of an engine's frame */
    size_t    stage_from, stage_to;
    size_t    in_left;          /* bytes of the record under way */
    uint64_t  received, acked;  /* bytes given to the engine; what the peer was told of that */
    double    ack_due;          /* < 0: nothing to acknowledge */
    double    heard;
    int       bye;              /* the peer has closed */
    /* while broken */
    double    down_at, dial_at, dial_until, pause, refused_since;
    double    round_trip;       /* of the last connection, or 0 */
    uint32_t  peer_number;      /* of the peer's wire; 0 = not yet known */
    uint32_t  attempt;          /* dialler: last one made; other side: last one accepted */
    unsigned char answer[DDP__HELLO_BYTES];
    size_t    answer_got;
    /* ended: who comes in its place */
    int       newcomer_fd;      /* or -1 */
    ddp__addr newcomer_where;
} ddp__way;

/* What a RESUME hello says besides. */
typedef struct ddp__resume_hello {
    uint32_t number, yours, attempt;
    uint64_t received;
} ddp__resume_hello;

/* Two ranks that have asked rank 0 to join them again. */
typedef struct ddp__rejoin {
    int low, high, fd[2];       /* -1: that one has not come */
} ddp__rejoin;

typedef struct ddp__resume_wire {
    ddp__wire base;
    ddp__resume_config cfg;
    ddp__hello self;
    uint32_t number;            /* of this wire, never 0 */
    char    *congestion;
    double   quiet_s;           /* silence, with bytes unacknowledged, that breaks a connection */
    size_t   ack_bytes;         /* received bytes that are acknowledged at once */
    ddp__way *way;              /* [world] */
    unsigned char *rings;
    ddp__door door;
    struct pollfd *polls;       /* [world], bell, door */
    int      bell[2];           /* a pipe: wake() writes, wait() drains */
    int      called;            /* a byte is in the pipe or about to be */
    int      away;              /* links that are neither live nor ended */
    ddp__rejoin *rejoin;        /* [rejoins], at most one per pair; rank 0's */
    int      rejoins, rejoin_room;
    ddp__visit_fn visit;        /* serves those who ask to join; NULL: nobody does */
    void    *visit_user;
    int      knocked;           /* somebody is at the door */
    double   ticked, served;    /* when links, and when the door, were looked at last */
    ddp__resume_stats stats;
} ddp__resume_wire;

/* wire_resume.c */
/* Queues a record without bytes. Room is left for one of each kind. */
DDP_LIB void ddp__way_record(ddp__way *p, ddp__record_kind kind, uint32_t value);
/* Gives the socket what it takes. */
DDP_LIB void ddp__way_flush(ddp__resume_wire *t, ddp__way *p);

/* Makes a connected socket the stream to a peer, from its first byte on. */
DDP_LIB ddp_status ddp__way_open(ddp__resume_wire *t, ddp__way *p, int fd, ddp_error *err);

/* resume_join.c */
/* Answers who wants to join; as a ddp__door_fn. */
DDP_LIB int ddp__knock_join(ddp__resume_wire *t, int fd, const ddp__hello *h,
                            const ddp__addr *from);

/* resume_relay.c */
/* Rank 0: who asks to be joined to another rank waits for that one; as a ddp__door_fn. */
DDP_LIB int ddp__knock_relay(ddp__resume_wire *t, int fd, const ddp__hello *h,
                             const ddp__addr *from);
DDP_LIB void ddp__rejoin_close(ddp__resume_wire *t);
/* The others: asks rank 0, meets the peer; in the states from ASKING on. */
DDP_LIB void ddp__relay_ask(ddp__resume_wire *t, ddp__way *p, double now);
DDP_LIB void ddp__relay_look(ddp__resume_wire *t, ddp__way *p, double now);

/* resume_link.c */
DDP_LIB void ddp__resume_pack(const ddp__resume_wire *t, const ddp__way *p, unsigned char *b);
DDP_LIB void ddp__resume_parse(const unsigned char *b, ddp__resume_hello *h);
/* Whether both sides mean the same two wires, and what the other lacks is still here. */
DDP_LIB int  ddp__resume_fits(const ddp__resume_wire *t, const ddp__way *p,
                              const ddp__resume_hello *h);
/* A connection on which both know what the other has. */
DDP_LIB void ddp__way_return(ddp__resume_wire *t, ddp__way *p, int fd, const ddp__resume_hello *h);
/* An attempt is over; another one follows unless the process that was asked is gone. */
DDP_LIB void ddp__dial_failed(ddp__resume_wire *t, ddp__way *p, int why, double now);
/* The ddp__door_fn. */
DDP_LIB int  ddp__knock(void *user, int fd, const unsigned char *bytes, const ddp__addr *from);
/* The connection is of no use any more: another one is needed. */
DDP_LIB void ddp__way_break(ddp__resume_wire *t, ddp__way *p, int why);
/* The link is over for good. */
DDP_LIB void ddp__way_end(ddp__resume_wire *t, ddp__way *p, int why);
/* Does what is due: acknowledges, suspects, dials, listens. Returns when to come again. */
DDP_LIB double ddp__resume_tick(ddp__resume_wire *t, double now);

#endif /* DDP_WIRE_RECONNECT_STATE_H */
