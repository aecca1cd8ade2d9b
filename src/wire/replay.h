/* What replay.c (a link), reconnect_link.c (its connections) and reconnect.c (streams) share. One thread uses
 * it.
 *
 * On a connection the stream travels in records: 8 bytes (kind, 'd', 'd', 'p', value) and, after
 * DATA, value bytes of the stream. What the engine hands over goes into the replay ring first and
 * from there to the socket, so a record never promises a byte that could get lost. */
#pragma once

#include "wire/door.h"

#define DDP__RECORD_BYTES 8
#define DDP__RECORD_MOST  ((size_t)160 << 10) /* one frame of the engine in one record */

/* The bytes of a stream that are not yet acknowledged, to be sent again: [first, end), of which `first` is
 * data[at]. */
typedef struct ddp__replay {
    unsigned char *data; /* [room] borrowed */
    size_t room, at;
    uint64_t first, end;
} ddp__replay;

typedef enum ddp__record_kind {
    DDP__RECORD_HI = 1, /* value: number of this wire, so that nobody else resumes its streams */
    DDP__RECORD_DATA,   /* value: bytes of the stream that follow */
    DDP__RECORD_ACK,    /* value: bytes received so far, modulo 2^32 */
    DDP__RECORD_BYE,    /* the peer closes: there is nothing to come back to */
    DDP__RECORD_CALL    /* the worker `value` cannot reach the receiver and waits for it at the sender, its
                           relay */
} ddp__record_kind;

typedef enum ddp__link_state {
    DDP__LINK_NONE, /* own rank */
    DDP__LINK_LIVE,
    DDP__LINK_DOWN,     /* broken, no attempt under way */
    DDP__LINK_DIALLING, /* connect under way */
    DDP__LINK_SHAKING,  /* connected, the handshake of TLS under way */
    DDP__LINK_ASKING,   /* our hello is sent, the answer is not there */
    DDP__LINK_ENDED     /* for good; why says why */
} ddp__link_state;

typedef struct ddp__way {
    ddp__link_state state;
    int peer, fd;        /* the socket of all but NONE, DOWN, ENDED, else -1 */
    int why;             /* errno of what broke or ended it; LIVE: of what it cannot send for, reading
                                   will tell */
    int told;            /* recv has reported the end */
    int relayed, joined; /* joined: whom is dialled is the peer itself, not (yet) the relay */
    int via;             /* relayed: the rank of the relay */
    int seeks;           /* relayed: if the relay is lost, this rank tries the peer's own address, else
                                   the peer does */
    int direct, moved;   /* of a relayed pair: this attempt goes to that address; the relay has been
                                   replaced */
    int named;           /* the relay in names[peer] + 1; 0: none */
    int dialler;         /* of a pair once relayed, now direct: 1: this rank dials, -1: the peer, which
                                 * this rank cannot reach; 0 of any other pair: the higher rank dials, the
                                 * lower one probes */
    ddp__addr where;
    /* outgoing */
    ddp__replay ring;
    uint64_t next;                            /* first byte of the stream not yet given to this connection */
    unsigned char pre[5 * DDP__RECORD_BYTES]; /* records without bytes, and the head of the next */
    size_t pre_len, pre_sent;
    int call;             /* CALL to be sent: the worker that waits + 1, or 0 */
    size_t record_left;   /* bytes of the record under way that the socket has not taken */
    double unheard_since; /* when the oldest unacknowledged byte was handed over */
    /* incoming */
    unsigned char stage[4096]; /* heads of records and of frames, and what came with them */
    size_t stage_from, stage_to;
    int dry;                  /* so many more reads will find nothing */
    size_t in_left;           /* bytes of the record under way */
    uint64_t received, acked; /* bytes given to the engine; what the peer was told of that */
    double ack_due;           /* < 0: nothing to acknowledge */
    double heard;
    char guest[DDP__STREAM_NAME]; /* join-NAME of the certificate with which it first came, or "" */
    /* while broken */
    double down_at, dial_at, dial_until, pause, refused_since;
    double round_trip;    /* as the link began, or 0 */
    uint32_t peer_number; /* of the peer's wire; 0 = not yet known */
    uint32_t attempt;     /* dialler: last one made; other side: last one accepted */
    unsigned char answer[DDP__HELLO_BYTES];
    size_t answer_got;
    /* ended: who comes in its place */
    int newcomer_fd; /* or -1 */
    ddp__addr newcomer_where;
    int newcomer_via; /* the relay of newcomer_fd, or -1 */
    /* it waits at a relay, to which this rank connects; see callback.c */
    ddp__link_state call_state; /* NONE: it does not wait, DIALLING, SHAKING, ASKING */
    int call_fd, call_via;
    double call_since;
} ddp__way;

typedef struct ddp__resume_wire {
    ddp__wire base;
    ddp__tcp_config cfg;
    uint32_t number;     /* of this wire, never 0 */
    char congestion[32]; /* cfg's */
    double quiet_s;      /* silence, with bytes unacknowledged, that breaks a connection */
    size_t ack_bytes;    /* received bytes that are acknowledged at once */
    ddp__way *way;       /* [world] */
    unsigned char *rings;
    ddp__door door;
    struct pollfd *polls; /* [world], bell, door */
    ddp__waker bell;      /* wake() rings, wait() hears */
    int away;             /* links that are neither live nor ended, and calls under way */
    ddp__pairs pairs;     /* that wait here for their other end, with the relay of the meeting */
    ddp__visit_fn visit;  /* serves those who ask to join; NULL: nobody does */
    void *visit_user;
    int knocked;           /* somebody is at the door */
    double ticked, served; /* when links, and when the door, were looked at last */
    long returns;          /* atomic: links that came back so far */
    int64_t bytes_again;   /* bytes of streams sent twice */
} ddp__resume_wire;

/* replay.c */
DDP_LIB size_t ddp__replay_free(const ddp__replay *r);
DDP_LIB void ddp__replay_put(ddp__replay *r, const void *bytes, size_t n); /* appends n <= ddp__replay_free
                                                                              bytes */
/* Drops what lies before byte `upto` of the stream; 0 if that byte was never here. */
DDP_LIB int ddp__replay_forget(ddp__replay *r, uint64_t upto);
/* Where bytes [from, from + n) lie, all of which must be here: one or two runs; how many. */
DDP_LIB int ddp__replay_find(const ddp__replay *r, uint64_t from, size_t n, struct iovec *iov);
/* Whether the other end of a socket is that peer: by rank, or by its name as a joining worker. 0 and
 * why[DDP__STREAM_TEXT]. */
DDP_LIB int ddp__way_is(const ddp__resume_wire *t, const ddp__way *p, int fd, char *why);
/* Writes into names[peer] where its socket leads, unless that is there already: other threads may read it. */
DDP_LIB void ddp__way_name(ddp__resume_wire *t, ddp__way *p);
/* Queues a record without bytes. Room is left for one of each kind. */
DDP_LIB void ddp__way_record(ddp__way *p, ddp__record_kind kind, uint32_t value);
DDP_LIB void ddp__way_flush(ddp__resume_wire *t, ddp__way *p);       /* gives the socket what it takes */
DDP_LIB void ddp__way_close(const ddp__resume_wire *t, ddp__way *p); /* without a word */
/* The connection is of no use any more: another one is needed. */
DDP_LIB void ddp__way_break(ddp__resume_wire *t, ddp__way *p, int why);
DDP_LIB void ddp__way_end(ddp__resume_wire *t, ddp__way *p, int why); /* the link is over for good */

/* callback.c: connections to those who cannot reach this rank */
/* The worker `id` waits at rank `via`, its relay. Returns 0, or the errno with which the link to via ends. */
DDP_LIB int ddp__call_begin(ddp__resume_wire *t, int via, uint32_t id);
DDP_LIB double ddp__call_tick(ddp__resume_wire *t, ddp__way *p, double now); /* returns when to come again */
DDP_LIB int ddp__call_events(const ddp__resume_wire *t, const ddp__way *p);  /* what to poll call_fd for */
DDP_LIB void ddp__call_end(ddp__resume_wire *t, ddp__way *p);

/* reconnect_link.c */
/* The ddp__door_fn. */
DDP_LIB ddp__refusal ddp__knock(void *user, const ddp__caller *c, const ddp__hello *h, char *why);
/* The ddp__door_knows_fn: that machine has a rank. */
DDP_LIB int ddp__knows(void *user, const ddp__addr *from);
/* Does what is due: acknowledges, suspects, dials, listens. Returns when to come again. */
DDP_LIB double ddp__resume_tick(ddp__resume_wire *t, double now);
