/* What crosses a connected socket: the bytes themselves, or TLS around them.
 *
 * Every call names the socket and the rank's ddp__tls, NULL for plain. A ddp__tls knows a session
 * for each socket that ddp__stream_begin was called for; without one nothing is sent or read, so
 * that nothing can slip out in the clear. One thread at a time. */
#pragma once

#include "base/core.h"

#define DDP__STREAM_TEXT 240
#define DDP__STREAM_NAME 64

typedef struct ddp__tls ddp__tls;

/* What lies behind the calls below; wire/tls.c fills it. */
typedef struct ddp__tls_table {
    int (*begin)(ddp__tls *t, int fd, int server);
    int (*shake)(ddp__tls *t, int fd);
    long (*send)(ddp__tls *t, int fd, const struct iovec *iov, int count);
    long (*recv)(ddp__tls *t, int fd, void *buf, size_t bytes);
    int (*events)(ddp__tls *t, int fd, int want);
    int (*ready)(ddp__tls *t, int fd);
    int (*may_be)(ddp__tls *t, int fd, const char *name, char *why);
    int (*may_join)(ddp__tls *t, int fd, int *id, char *name, char *why);
    ddp__tls *(*part)(ddp__tls *t, int fd);
    const char *(*why)(ddp__tls *t, int fd);
    void (*end)(ddp__tls *t, int fd);
    void (*leave)(ddp__tls *t, int fd);
    void (*free)(ddp__tls *t);
} ddp__tls_table;

struct ddp__tls {
    const ddp__tls_table *table;
};

/* A socket was connected (server 0) or accepted (1); to be called first, and again where from then on another
 * peer is at the other end: what has been read of that one's bytes is not lost. 0, or -1 when memory is
 * short. */
DDP_LIB int ddp__stream_begin(ddp__tls *t, int fd, int server);
/* Forgets the session without a word to the peer; the socket is the caller's. */
DDP_LIB void ddp__stream_leave(ddp__tls *t, int fd);
/* A step of the handshake, which never blocks: 1 = done (at once where there is none), 0 = goes on when poll
 * says so, -1 and errno as in ddp__stream_recv. A server's may be left to the first ddp__stream_recv
 * calls. */
DDP_LIB int ddp__stream_shake(ddp__tls *t, int fd);
/* All of the handshake, until then: 0, or -1 and errno as in ddp__stream_recv, or ETIMEDOUT. */
DDP_LIB int ddp__stream_greet(ddp__tls *t, int fd, double until);
/* Bytes taken, 0 = would block, -1 = gone (errno; EPROTO: ddp__stream_why). The next call goes on behind
 * them. */
DDP_LIB long ddp__stream_send(ddp__tls *t, int fd, const struct iovec *iov, int count);
/* Bytes read, 0 = would block, -1 = no more will come (errno, ECONNRESET at the end). */
DDP_LIB long ddp__stream_recv(ddp__tls *t, int fd, void *buf, size_t bytes);
/* What to poll for instead of `want` (POLLIN, POLLOUT): TLS may have to write before it can read. */
DDP_LIB int ddp__stream_events(ddp__tls *t, int fd, int want);
/* 1 if bytes have left the socket but not yet been read from here: poll would not see them. */
DDP_LIB int ddp__stream_ready(ddp__tls *t, int fd);
/* Waits until something can be read, be it the end, or until then: 1, or 0 when the time is over. */
DDP_LIB int ddp__stream_wait(ddp__tls *t, int fd, double until);
/* All of the bytes until then: 0, or -1 and errno (ETIMEDOUT; at the end ECONNRESET). *got (or NULL): bytes
 * read. */
DDP_LIB int ddp__stream_send_all(ddp__tls *t, int fd, const void *buf, size_t bytes, double until);
DDP_LIB int ddp__stream_recv_all(ddp__tls *t, int fd, void *buf, size_t bytes, size_t *got, double until);
/* Whether the peer, after its handshake, may call itself that rank: 1, or 0 and why[DDP__STREAM_TEXT]. */
DDP_LIB int ddp__stream_may_be(ddp__tls *t, int fd, int rank, char *why);
/* The same for a peer that is no rank: its certificate must carry that name. Without certificates every peer
 * may. */
DDP_LIB int ddp__stream_is_named(ddp__tls *t, int fd, const char *name, char *why);
/* Whether the peer, after its handshake, may come to a run as a newcomer, or be a member that a newcomer
 * talks to: 1, or 0 and why. A certificate must name a rank-R, the only id it may take then (*id, the lowest
 * of several), or a join-NAME, which may take any (*id = -1) and stands in name[DDP__STREAM_NAME], else "".
 * No certificates: 1, -1. */
DDP_LIB int ddp__stream_may_join(ddp__tls *t, int fd, int *id, char *name, char *why);
/* Moves the session of a socket, after its handshake, into a ddp__tls of its own, so that another thread may
 * use it; *own is to be freed (ddp__tls_free) before t, and is NULL where t is. 0, or -1 when memory is
 * short. */
DDP_LIB int ddp__stream_part(ddp__tls *t, int fd, ddp__tls **own);
/* Why TLS refused the connection, after EPROTO: the end of a sentence about the peer, nothing secret; else
 * NULL. */
DDP_LIB const char *ddp__stream_why(ddp__tls *t, int fd);
/* Says goodbye without waiting, drops what is unread (a reset would lose the last words) and closes. -1 is
 * fine. */
DDP_LIB void ddp__stream_close(ddp__tls *t, int fd);

/* Whether the first n bytes that a plain socket brought begin TLS: 21 its alert, 22 its handshake, else 0. */
DDP_LIB int ddp__stream_is_tls(const unsigned char *b, size_t n);
/* Tells a TLS peer in its own words, from a plain socket, that there is no TLS here. */
DDP_LIB void ddp__stream_no_tls(int fd);

/* ---- tls_keys.c: who may speak with this rank ---- */

#define DDP__TLS_LEAST_KEY 32 /* bytes of a pre-shared key */

/* Either psk, or ca, cert and key; paths of files. */
typedef struct ddp__tls_files {
    const char *psk;  /* 32 bytes or more, the same on every rank; blanks at the end do not count */
    const char *ca;   /* PEM: who signed the ranks' certificates */
    const char *cert; /* PEM: this rank's, followed by those between it and ca, if any */
    const char *key;  /* PEM, without a passphrase */
} ddp__tls_files;

/* Reads the files and makes ready for sessions; *out is NULL if no file is named. run_id is the identity that
 * goes with a pre-shared key, in the clear: ranks of unlike runs refuse each other. A certificate must carry
 * the name rank-R (subject alternative name of kind DNS, else common name) for each rank R whose holder uses
 * it. Errors: DDP_UNSUPPORTED without DDP_USE_OPENSSL; DDP_ARG for files that do not belong together, keys
 * that are too short or that other users can read; DDP_IO; DDP_FORMAT for what OpenSSL cannot read;
 * DDP_MEMORY. */
DDP_LIB ddp_status ddp__tls_open(const ddp__tls_files *files, uint64_t run_id, ddp__tls **out,
                                 ddp_error *err);
/* Forgets all sessions and overwrites the keys; sockets stay open. NULL is fine. */
DDP_LIB void ddp__tls_free(ddp__tls *t);
