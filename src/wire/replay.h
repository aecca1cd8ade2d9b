/* Types and functions shared by replay.c (a link), reconnect_link.c (its connections), callback.c and
 * reconnect.c (streams). One thread uses them.
 *
 * On a connection the stream is sent in records: 8 bytes (kind, 'd', 'd', 'p', value) and, after DATA,
 * `value` bytes of the stream. Bytes from the engine are copied to the replay ring before they are sent, so
 * that every byte announced by a record can be sent again. */
#pragma once

#include "wire/acceptor.h"

#define DDP__RECORD_BYTES 8
#define DDP__RECORD_MOST  ((size_t)160 << 10) /* fits one frame of the engine */

/* The replay ring: bytes [first, end) of a stream that are not yet acknowledged. Byte `first` is at
 * data[at]. */
typedef struct ddp__replay {
    unsigned char *data; /* [room] borrowed */
    size_t room, at;
    uint64_t first, end;
} ddp__replay;

typedef enum ddp__record_kind {
    DDP__RECORD_HI = 1, /* value: number of this wire, so that no other wire resumes its streams */
    DDP__RECORD_DATA,   /* value: bytes of the stream that follow */
    DDP__RECORD_ACK,    /* value: bytes received so far, modulo 2^32 */
    DDP__RECORD_BYE,    /* the peer closes: do not reconnect */
    DDP__RECORD_CALL    /* worker `value` cannot reach the receiver, and waits for it at the sender, which is
                           its relay */
} ddp__record_kind;

typedef enum ddp__link_state {
    DDP__LINK_NONE, /* own rank */
    DDP__LINK_LIVE,
    DDP__LINK_DOWN,     /* broken, no attempt in progress */
    DDP__LINK_DIALLING, /* connect in progress */
    DDP__LINK_SHAKING,  /* connected, TLS handshake in progress */
    DDP__LINK_ASKING,   /* hello sent, waiting for the answer */
    DDP__LINK_ENDED     /* permanent, `why` has the reason */
} ddp__link_state;

typedef struct ddp__way {
    ddp__link_state state;
    int peer, fd;        /* the socket, or -1 in NONE, DOWN and ENDED */
    int why;             /* errno that broke or ended the link. LIVE: errno of a failed send, while the
                            remaining input is read. */
    int told;            /* recv has reported the end */
    int relayed, joined; /* joined: the peer itself is at the other end, not (yet) the relay */
    int via;             /* relayed: the rank of the relay */
    int seeks;           /* relayed: 1 if this rank dials the own address of the peer when the relay is lost,
                            0 if the peer dials */
    int direct, moved;   /* relayed: this attempt is direct. The pair has moved to another relay. */
    int named;           /* the relay shown in names[peer] + 1, or 0 */
    int dialler;         /* of a pair once relayed, now direct: 1 if this rank dials, -1 if the peer dials
                            because this rank cannot reach it. 0 for any other pair, where the higher rank
                            dials and the lower rank probes. */
    ddp__addr where;
    /* outgoing */
    ddp__replay ring;
    uint64_t next;                            /* first byte of the stream not yet sent on this connection */
    unsigned char pre[5 * DDP__RECORD_BYTES]; /* records without data, and the header of the next */
    size_t pre_len, pre_sent;
    int call;             /* worker to announce in a CALL record + 1, or 0 */
    size_t record_left;   /* bytes of the current record that the socket has not taken */
    double unheard_since; /* when the oldest unacknowledged byte was queued */
    /* incoming */
    unsigned char stage[4096]; /* headers of records and frames, and bytes read with them */
    size_t stage_from, stage_to;
    int dry;                  /* reads to skip, since the socket was empty */
    size_t in_left;           /* bytes left of the current record */
    uint64_t received, acked; /* bytes given to the engine, and bytes acknowledged to the peer */
    double ack_due;           /* < 0: nothing to acknowledge */
    double heard;
    char guest[DDP__STREAM_NAME]; /* join-NAME of the certificate with which it joined, or "" */
    /* while broken */
    double down_at, dial_at, dial_until, pause, refused_since;
    double round_trip;    /* seconds, measured at the start, or 0 */
    uint32_t peer_number; /* of the peer's wire, or 0 if not yet known */
    uint32_t attempt;     /* last attempt made on the dialling side, last attempt accepted on the other
                             side */
    unsigned char answer[DDP__HELLO_BYTES];
    size_t answer_got;
    /* ended: the worker that replaces it */
    int newcomer_fd; /* or -1 */
    ddp__addr newcomer_where;
    int newcomer_via; /* the relay of newcomer_fd, or -1 */
    /* it waits at a relay, and this rank connects to that (callback.c) */
    ddp__link_state call_state; /* NONE: it does not wait, DIALLING, SHAKING, ASKING */
    int call_fd, call_via;
    double call_since;
} ddp__way;

typedef struct ddp__resume_wire {
    ddp__wire base;
    ddp__tcp_config cfg;
    uint32_t number;     /* of this wire, never 0 */
    char congestion[32]; /* cfg's */
    double quiet_s;      /* seconds of silence, with bytes unacknowledged, after which a connection is
                            broken */
    size_t ack_bytes;    /* received bytes after which an acknowledgement is sent at once */
    ddp__way *way;       /* [world] */
    unsigned char *rings;
    ddp__acceptor acceptor;
    struct pollfd *polls; /* [world], the waker, the acceptor */
    ddp__waker bell;      /* wake() writes, wait() polls */
    int away;             /* links that are neither live nor ended, and calls in progress */
    ddp__pairs pairs;     /* relayed pairs that wait here for their other end */
    ddp__visit_fn visit;  /* serves joining workers, or NULL if no worker can join */
    void *visit_user;
    int incoming;          /* the acceptor has events */
    double ticked, served; /* last time links, and the acceptor, were served */
    long returns;          /* atomic: reconnections so far */
    int64_t bytes_again;   /* bytes of streams sent twice */
} ddp__resume_wire;

/* replay.c */
DDP_LIB size_t ddp__replay_free(const ddp__replay *r);
DDP_LIB void ddp__replay_put(ddp__replay *r, const void *bytes, size_t n); /* appends n <= ddp__replay_free
                                                                              bytes */
/* Drops the bytes before byte `upto` of the stream. Returns 0 if that byte is not in the ring. */
DDP_LIB int ddp__replay_forget(ddp__replay *r, uint64_t upto);
/* Finds bytes [from, from + n), which must be in the ring. Returns how many iov entries it fills (1 or 2). */
DDP_LIB int ddp__replay_find(const ddp__replay *r, uint64_t from, size_t n, struct iovec *iov);
/* Returns 1 if the other end of a socket is that peer: by rank, or by its name as a joining worker. Otherwise
 * returns 0 and why[DDP__STREAM_TEXT]. */
DDP_LIB int ddp__way_is(const ddp__resume_wire *t, const ddp__way *p, int fd, char *why);
/* Writes the remote address of the link to names[peer], unless it is already there: other threads may read
 * it. */
DDP_LIB void ddp__way_name(ddp__resume_wire *t, ddp__way *p);
/* Queues a record without data. There is space for one of each kind. */
DDP_LIB void ddp__way_record(ddp__way *p, ddp__record_kind kind, uint32_t value);
DDP_LIB void ddp__way_flush(ddp__resume_wire *t, ddp__way *p);       /* sends what the socket takes */
DDP_LIB void ddp__way_close(const ddp__resume_wire *t, ddp__way *p); /* without notifying the peer */
/* Marks the connection as broken. A new one is needed. */
DDP_LIB void ddp__way_break(ddp__resume_wire *t, ddp__way *p, int why);
DDP_LIB void ddp__way_end(ddp__resume_wire *t, ddp__way *p, int why); /* ends the link permanently */

/* callback.c: connections to workers that cannot reach this rank */
/* Handles a CALL: worker `id` waits at rank `via`, its relay. Returns 0, or the errno with which the link to
 * `via` ends. */
DDP_LIB int ddp__call_begin(ddp__resume_wire *t, int via, uint32_t id);
DDP_LIB double ddp__call_tick(ddp__resume_wire *t, ddp__way *p, double now); /* returns when to call it
                                                                                again */
DDP_LIB int ddp__call_events(const ddp__resume_wire *t, const ddp__way *p);  /* events to poll call_fd for */
DDP_LIB void ddp__call_end(ddp__resume_wire *t, ddp__way *p);

/* reconnect_link.c */
/* The ddp__acceptor_fn of a wire. */
DDP_LIB ddp__refusal ddp__decide_caller(void *user, const ddp__caller *c, const ddp__hello *h, char *why);
/* The ddp__acceptor_knows_fn of a wire: returns 1 if a rank has that machine's address. */
DDP_LIB int ddp__knows(void *user, const ddp__addr *from);
/* Performs all due work: acknowledgements, detection of silent connections, dialling, admission. Returns when
 * to call it again. */
DDP_LIB double ddp__resume_tick(ddp__resume_wire *t, double now);
