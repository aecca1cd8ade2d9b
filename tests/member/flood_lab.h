/* Processes of clients without a key that flood the listening socket of a worker. Include after dreamddp.h
 * and cmocka.h. */
#ifndef FLOOD_LAB_H
#define FLOOD_LAB_H

#include <signal.h>
#include <sys/wait.h>

#include "wire/socket.h"
#ifdef DDP_USE_OPENSSL
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

enum { CLIENTS = 500, HANDSHAKES_PER_S = 100 };

typedef enum flood_kind {
    FLOOD_SILENT,    /* connects and sends nothing */
    FLOOD_GARBAGE,   /* sends other bytes than a rank */
    FLOOD_DRIP,      /* sends the start of a hello, one byte per second */
    FLOOD_HALF,      /* sends a ClientHello of TLS and no more */
    FLOOD_HANDSHAKE, /* completes its part of a TLS handshake without key and certificate, 100 times per
                        second in all */
    FLOOD_KINDS      /* each kind by a fifth of the clients */
} flood_kind;

typedef struct flood_client {
    flood_kind kind;
    int connected;
    size_t sent;
    double next; /* when it sends the next byte, or connects again */
#ifdef DDP_USE_OPENSSL
    SSL *ssl;
#endif
} flood_client;

typedef struct flood_state {
    ddp__addr at;
    int shared; /* 1 if the clients have the address of the members, else 10 of their own */
    struct pollfd polls[CLIENTS];
    flood_client client[CLIENTS];
    unsigned char half[2048]; /* a ClientHello */
    size_t half_bytes;
#ifdef DDP_USE_OPENSSL
    SSL_CTX *ctx;
#endif
} flood_state;

static void flood_prepare(flood_state *f)
{
    static const unsigned char start[] = {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3};

    memcpy(f->half, start, sizeof start);
    f->half_bytes = sizeof start;
#ifdef DDP_USE_OPENSSL
    {
        SSL *ssl;
        f->ctx = SSL_CTX_new(TLS_client_method());
        ssl = SSL_new(f->ctx);
        SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
        (void)SSL_connect(ssl);
        f->half_bytes = (size_t)BIO_read(SSL_get_wbio(ssl), f->half, (int)sizeof f->half);
        SSL_free(ssl);
    }
#endif
}

static void flood_connect(flood_state *f, int i)
{
    struct sockaddr_in own;
    int s = socket(AF_INET, SOCK_STREAM, 0);

    memset(&own, 0, sizeof own);
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(0x7f800001u + (unsigned)(i % 10)); /* 127.128.0.1 on: workers of the lab have
                                                                      lower ones */
    if (s >= 0 &&
        (ddp__fd_prepare(s) < 0 || (!f->shared && bind(s, (const struct sockaddr *)&own, sizeof own) < 0) ||
         (connect(s, (const struct sockaddr *)&f->at.sa, f->at.size) < 0 && errno != EINPROGRESS))) {
        close(s);
        s = -1;
    }
    ddp__poll_set(&f->polls[i], s, POLLOUT);
    f->client[i].connected = 0;
    f->client[i].sent = 0;
}

static void flood_disconnect(flood_state *f, int i)
{
    close(f->polls[i].fd);
    f->polls[i].fd = -1;
#ifdef DDP_USE_OPENSSL
    SSL_free(f->client[i].ssl);
    f->client[i].ssl = NULL;
#endif
}

/* 1 while the client's handshake continues. */
static int flood_shake(flood_state *f, int i)
{
#ifdef DDP_USE_OPENSSL
    flood_client *c = &f->client[i];
    char byte;
    int n;

    if (!c->ssl) {
        c->ssl = SSL_new(f->ctx);
        SSL_set_fd(c->ssl, f->polls[i].fd);
    }
    ERR_clear_error(); /* of other clients */
    n = SSL_connect(c->ssl);
    if (n == 1) n = SSL_read(c->ssl, &byte, 1); /* the refusal */
    return n == 1 || SSL_get_error(c->ssl, n) == SSL_ERROR_WANT_READ;
#else
    (void)f;
    (void)i;
    return 0;
#endif
}

/* A client's turn. Returns 1 while its connection is open. */
static int flood_turn(flood_state *f, int i, double now)
{
    static const char hello[] = "dreamddp", other[] = "GET / HTTP/1.1\r\n\r\n";
    flood_client *c = &f->client[i];
    struct pollfd *p = &f->polls[i];
    unsigned char sink[4096];

    if (p->revents & (POLLERR | POLLHUP | POLLNVAL)) return 0;
    if (!c->connected && p->revents) {
        c->connected = 1;
        if (c->kind == FLOOD_DRIP) c->next = now;
        p->events = POLLIN;
        if (c->kind == FLOOD_GARBAGE) (void)send(p->fd, other, sizeof other - 1, MSG_NOSIGNAL);
        if (c->kind == FLOOD_HALF) (void)send(p->fd, f->half, f->half_bytes, MSG_NOSIGNAL);
        if (c->kind == FLOOD_HANDSHAKE) return flood_shake(f, i);
    }
    if (c->connected && c->kind == FLOOD_DRIP && now >= c->next && c->sent < 8) {
        (void)send(p->fd, &hello[c->sent++], 1, MSG_NOSIGNAL);
        c->next = now + 1;
    }
    if (!(p->revents & POLLIN)) return 1;
    if (c->kind == FLOOD_HANDSHAKE && c->connected) return flood_shake(f, i);
    return recv(p->fd, sink, sizeof sink, 0) > 0;
}

/* Clients of that kind connect to a worker while the parent process runs. They connect again as soon as they
 * are disconnected. */
static void flood_run(const ddp__addr *at, flood_kind kind, int shared, long *connects)
{
    static flood_state f;
    const pid_t parent = getppid();
    double start = ddp_now(),
           pause = kind == FLOOD_HANDSHAKE ? 1.0 / (double)HANDSHAKES_PER_S : 0.2 / (double)HANDSHAKES_PER_S;

    f.at = *at;
    f.shared = shared;
    flood_prepare(&f);
    for (int i = 0; i < CLIENTS; i++) {
        f.client[i].kind = kind == FLOOD_KINDS ? (flood_kind)(i % FLOOD_KINDS) : kind;
        if (f.client[i].kind == FLOOD_HANDSHAKE) f.client[i].next = start + i * pause;
        ddp__poll_set(&f.polls[i], -1, 0);
    }
    while (getppid() == parent) {
        const double now = ddp_now();
        for (int i = 0; i < CLIENTS; i++) {
            flood_client *c = &f.client[i];
            if (f.polls[i].fd < 0) {
                if (c->kind == FLOOD_HANDSHAKE && now < c->next) continue;
                flood_connect(&f, i);
                if (c->kind == FLOOD_HANDSHAKE) c->next = fmax(c->next + (double)CLIENTS * pause, now);
                if (f.polls[i].fd >= 0 && connects) ddp__atomic_add(connects, 1);
            } else if (!flood_turn(&f, i, now)) {
                flood_disconnect(&f, i);
            }
        }
        (void)poll(f.polls, CLIENTS, 5);
    }
}

/* Starts a process of 500 clients. Connects: NULL, or in shared memory, counts their connections. */
static pid_t flood_start(const ddp__addr *at, flood_kind kind, int shared, long *connects)
{
    pid_t pid = fork();

    if (pid == 0) {
        for (int fd = 3; fd < 256; fd++) close(fd);
        flood_run(at, kind, shared, connects);
        _exit(0);
    }
    return pid;
}

static void flood_stop(pid_t pid)
{
    kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

#endif /* FLOOD_LAB_H */
