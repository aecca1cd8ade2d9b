/* Byte transfer over a connected socket, plain or with TLS.
 *
 * Every call takes the socket and the rank's ddp__tls (NULL for plain). A ddp__tls has a session for each
 * socket on which ddp__stream_begin was called. Without a session the calls send and read no bytes, so that
 * no data is sent unencrypted by mistake. One thread at a time. */
#pragma once

#include "base/core.h"

#define DDP__STREAM_TEXT 240
#define DDP__STREAM_NAME 64

typedef struct ddp__tls ddp__tls;

/* The implementation of the calls below, which wire/tls.c provides. */
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

/* Starts a session on a connected (server 0) or accepted (server 1) socket. Call it first, and again when
 * another peer takes over the other end: bytes already read from that peer are retained. Returns 0, or -1 if
 * memory is short. */
DDP_LIB int ddp__stream_begin(ddp__tls *t, int fd, int server);
/* Drops the session without notifying the peer. The caller still owns the socket. */
DDP_LIB void ddp__stream_leave(ddp__tls *t, int fd);
/* Performs a non-blocking step of the handshake. Returns 1 when it is complete (immediately without TLS), 0
 * if it continues after poll, -1 and errno as in ddp__stream_recv. A server may leave the handshake to its
 * first ddp__stream_recv calls. */
DDP_LIB int ddp__stream_shake(ddp__tls *t, int fd);
/* Performs the whole handshake until time `until`. Returns 0, or -1 and errno as in ddp__stream_recv, or
 * ETIMEDOUT. */
DDP_LIB int ddp__stream_greet(ddp__tls *t, int fd, double until);
/* Returns the number of bytes taken, 0 if it would block, -1 if the peer is gone (errno, and for EPROTO see
 * ddp__stream_why). The next call continues after these bytes. */
DDP_LIB long ddp__stream_send(ddp__tls *t, int fd, const struct iovec *iov, int count);
/* Returns the number of bytes read, 0 if it would block, -1 if no more will come (errno, ECONNRESET at the
 * end of the stream). */
DDP_LIB long ddp__stream_recv(ddp__tls *t, int fd, void *buf, size_t bytes);
/* Returns the events to poll for instead of `want` (POLLIN, POLLOUT): TLS may have to write before it can
 * read. */
DDP_LIB int ddp__stream_events(ddp__tls *t, int fd, int want);
/* Returns 1 if bytes were read from the socket but not yet returned to the caller: poll does not report
 * them. */
DDP_LIB int ddp__stream_ready(ddp__tls *t, int fd);
/* Waits until bytes or the end of the stream can be read, or until `until`. Returns 1, or 0 after the
 * time-out. */
DDP_LIB int ddp__stream_wait(ddp__tls *t, int fd, double until);
/* Transfer all bytes until time `until`. Return 0, or -1 and errno (ETIMEDOUT, or ECONNRESET at the end of
 * the stream). *got (may be NULL) receives the number of bytes read. */
DDP_LIB int ddp__stream_send_all(ddp__tls *t, int fd, const void *buf, size_t bytes, double until);
DDP_LIB int ddp__stream_recv_all(ddp__tls *t, int fd, void *buf, size_t bytes, size_t *got, double until);
/* Returns 1 if the peer, after its handshake, may be that rank. Otherwise returns 0 and
 * why[DDP__STREAM_TEXT]. */
DDP_LIB int ddp__stream_may_be(ddp__tls *t, int fd, int rank, char *why);
/* Returns 1 if the peer's certificate has that name, for a peer that is not a rank. Without certificates
 * every peer is accepted. */
DDP_LIB int ddp__stream_is_named(ddp__tls *t, int fd, const char *name, char *why);
/* Returns 1 if the peer, after its handshake, may join a run, or be a member that a joining worker talks to.
 * Otherwise returns 0 and why. A certificate must have a name rank-R, the only id it may take then (*id, the
 * lowest of several), or join-NAME, which may take any id (*id = -1) and is copied to name[DDP__STREAM_NAME]
 * (else ""). Without certificates: 1 and *id = -1. */
DDP_LIB int ddp__stream_may_join(ddp__tls *t, int fd, int *id, char *name, char *why);
/* Moves the session of a socket, after its handshake, into a separate ddp__tls, so that another thread may
 * use it. Free *own (ddp__tls_free) before t. It is NULL if t is NULL. Returns 0, or -1 if memory is
 * short. */
DDP_LIB int ddp__stream_part(ddp__tls *t, int fd, ddp__tls **own);
/* Returns why TLS refused the connection, after EPROTO: the end of a sentence about the peer, without
 * secrets, or NULL otherwise. */
DDP_LIB const char *ddp__stream_why(ddp__tls *t, int fd);
/* Sends a close notification without waiting, drops unread bytes (a reset would lose the last bytes sent) and
 * closes the socket. Accepts -1. */
DDP_LIB void ddp__stream_close(ddp__tls *t, int fd);

/* Returns 21 (alert) or 22 (handshake) if the first n bytes received on a plain socket start a TLS record,
 * else 0. */
DDP_LIB int ddp__stream_is_tls(const unsigned char *b, size_t n);
/* Sends a TLS alert on a plain socket: this side does not use TLS. */
DDP_LIB void ddp__stream_no_tls(int fd);

/* ---- tls_keys.c: authentication of ranks ---- */

#define DDP__TLS_LEAST_KEY 32 /* smallest pre-shared key, in bytes */

/* Paths of key files: either psk, or ca, cert and key. */
typedef struct ddp__tls_files {
    const char *psk;  /* 32 bytes or more, identical on every rank. Trailing white space is ignored. */
    const char *ca;   /* PEM: the authority that signed the ranks' certificates */
    const char *cert; /* PEM: this rank's certificate, followed by any intermediate ones */
    const char *key;  /* PEM, without a passphrase */
} ddp__tls_files;

/* Reads the key files and prepares for sessions. *out is NULL if no file is given. run_id is sent unencrypted
 * as the identity of a pre-shared key, so ranks of different runs refuse each other. A certificate must have
 * the name rank-R (subject alternative name of kind DNS, else common name) for each rank R that uses it.
 * Errors: DDP_UNSUPPORTED without DDP_USE_OPENSSL; DDP_ARG for files that do not belong together, and for
 * keys that are too short or readable by other users; DDP_IO; DDP_FORMAT for files that OpenSSL cannot parse;
 * DDP_MEMORY. */
DDP_LIB ddp_status ddp__tls_open(const ddp__tls_files *files, uint64_t run_id, ddp__tls **out,
                                 ddp_error *err);
/* Drops all sessions and overwrites the keys. Sockets stay open. Accepts NULL. */
DDP_LIB void ddp__tls_free(ddp__tls *t);
