/* Shared by the two files of TLS: OpenSSL, the keys of a rank, and the session of a socket. */
#pragma once

#include "wire/stream.h"

#ifdef DDP_USE_OPENSSL
#if !__has_include(<openssl/ssl.h>)
#error "dreamddp: DDP_USE_OPENSSL needs the headers of OpenSSL 3; install libssl-dev or openssl-devel"
#endif
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#if OPENSSL_VERSION_NUMBER < 0x30000000L
#error "dreamddp: DDP_USE_OPENSSL needs OpenSSL 3.0 or later; this one is older"
#endif

enum {
    DDP__TLS_RECORD = 16384, /* maximum plain bytes of a record */
    DDP__TLS_INBOX = 32768   /* bytes read ahead, which saves two system calls per record */
};

/* The session of one socket. */
typedef struct ddp__tls_session {
    SSL *ssl;
    int fd, server, by_key;
    int settled;             /* the handshake is complete and the peer is authenticated */
    int broken;              /* errno of the first failure */
    int cause;               /* errno of the socket. 0 means that it ended. */
    int read_for, write_for; /* events that reading and writing need to poll for */
    size_t held;             /* bytes in `out` of a record that is not sent yet */
    size_t seen, from, to;   /* seen: bytes in `first`. from, to: unread part of `in`. */
    unsigned char first[8];  /* first bytes from the peer */
    char why[DDP__STREAM_TEXT];
    unsigned char in[DDP__TLS_INBOX], out[DDP__TLS_RECORD];
} ddp__tls_session;

typedef struct ddp__tls_keys {
    ddp__tls base;
    SSL_CTX *ctx;
    BIO_METHOD *method;
    ddp__tls_session **session; /* dynamic array, indexed by descriptor */
    int by_key;                 /* 1 with a pre-shared key, 0 with certificates */
    char identity[32];
    unsigned char psk[32];
} ddp__tls_keys;

DDP_LIB int ddp__tls_plug(ddp__tls_keys *k); /* sets table and method of k. Returns 0 if memory is short. */
/* Records why the peer of s caused a failure. The first message is kept. */
DDP_LIB void ddp__tls_say(ddp__tls_session *s, const char *fmt, ...) DDP__PRINTF(2, 3);

#endif /* DDP_USE_OPENSSL */
