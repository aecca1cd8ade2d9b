/* What the two files of TLS share: OpenSSL, the keys of a rank, the session of a socket. */
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
    DDP__TLS_RECORD = 16384, /* most plain bytes of a record */
    DDP__TLS_INBOX = 32768   /* bytes read ahead, for two system calls less per record */
};

/* The session of one socket. */
typedef struct ddp__tls_session {
    SSL *ssl;
    int fd, server, by_key;
    int settled;             /* the handshake is over and the peer is one of us */
    int broken;              /* errno of the first failure */
    int cause;               /* errno of the socket; 0 = it ended */
    int read_for, write_for; /* what reading and writing have to poll for */
    size_t held;             /* bytes of out that are a record still to be sent */
    size_t seen, from, to;   /* first: bytes of it; in: the unread part */
    unsigned char first[8];  /* what the peer sent first */
    char why[DDP__STREAM_TEXT];
    unsigned char in[DDP__TLS_INBOX], out[DDP__TLS_RECORD];
} ddp__tls_session;

typedef struct ddp__tls_keys {
    ddp__tls base;
    SSL_CTX *ctx;
    BIO_METHOD *method;
    ddp__tls_session **session; /* a list, by descriptor */
    int by_key;                 /* pre-shared key, not certificates */
    char identity[32];
    unsigned char psk[32];
} ddp__tls_keys;

DDP_LIB int ddp__tls_plug(ddp__tls_keys *k); /* fills table and method of k; 0 when memory is short */
/* The peer of s is to blame for what follows; the first sentence stays. */
DDP_LIB void ddp__tls_say(ddp__tls_session *s, const char *fmt, ...) DDP__PRINTF(2, 3);

#endif /* DDP_USE_OPENSSL */
