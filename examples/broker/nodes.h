/* The connections of a broker. One poll loop serves all of them without blocking, and each has a state: a
 * caller has to register before it is a node, and delays no node meanwhile. Only the end of a TLS connection
 * may wait, for at most 0.2 s. */
#ifndef EXAMPLES_BROKER_NODES_H
#define EXAMPLES_BROKER_NODES_H

enum {
    NODES = 512,
    CALLERS = 128,       /* maximum number of connections that are not nodes. One more closes an older one. */
    CALLER_SECONDS = 5,  /* seconds for a caller to register */
    CALLER_GRACE = 1,    /* seconds before a silent caller is closed in favour of a new one */
    ENDING_SECONDS = 2,  /* seconds for a peer to close its side after a WORD_END */
    ACCEPTS = 32,        /* connections accepted in one pass of the loop */
    REFUSALS = 10,       /* log lines about rejected callers, per second */
    NODE_WAITS = 1 << 20 /* queued bytes for a node above which node_send waits */
};

static const double CALLERS_MOST = 2e-3; /* seconds of one pass that callers may use */

typedef enum connection_state {
    CONNECTION_NEW,   /* has sent nothing */
    CONNECTION_TLS,   /* its TLS handshake is in progress */
    CONNECTION_HELLO, /* has not registered yet */
    CONNECTION_NODE,
    CONNECTION_ENDING, /* has received a WORD_END. Later messages are discarded */
    CONNECTION_CLOSED
} connection_state;

typedef struct connection {
    channel c;
    connection_state state;
    ddp__addr from;
    double since;  /* time of the connection. For CONNECTION_ENDING, the time when all was sent, 0 if not
                      yet */
    char host[80]; /* its host for other nodes. An IPv6 address is in brackets. */
    int port;      /* a free port on it */
    double speed;  /* FLOP/s */
    int asked;     /* 1 if it has not answered yet with a speed or the end of its training */
    int saved;     /* its part of the next checkpoint has arrived */
    int delivered; /* next_word has returned its message */
} connection;

/* The first `wanted` nodes train, the others are spares. */
typedef struct nodes {
    int listens;
    ddp__tls *tls;    /* NULL if connections are not encrypted */
    double shut;      /* time until which no connection is accepted, because accept failed */
    int wanted, most; /* most: maximum number of nodes, with spares */
    int news;         /* nodes that have registered since next_word last reported one */
    int turn;         /* node whose message next_word takes first */
    int first;        /* caller that the next pass serves first */
    int refusals;     /* since `counted` */
    double counted;
    int count, callers;
    connection peer[NODES];
    connection caller[CALLERS];
} nodes;

/* ---- one connection ---- */

static void connection_close(connection *p)
{
    channel_close(&p->c);
    p->state = CONNECTION_CLOSED;
}

/* Sends the last message. The connection closes when the peer has closed its side, or after
 * ENDING_SECONDS. */
static void connection_end(connection *p, int code, const char *why)
{
    char text[600];

    snprintf(text, sizeof text, "%d %.580s", code, why);
    channel_send(&p->c, WORD_END, text, strlen(text), NULL, 0);
    p->state = CONNECTION_ENDING;
    p->since = 0;
}

/* Closing a socket with unread bytes would discard the last message, so the bytes are read and discarded. */
static void connection_discard(connection *p, double now)
{
    char sink[4096];
    long n = 1;

    channel_flush(&p->c);
    channel_check(&p->c, now);
    if (!channel_waiting(&p->c) && p->since == 0) {
        p->since = now;
        if (!p->c.tls) shutdown(p->c.fd, SHUT_WR);
    }
    for (int k = 0; k < CHANNEL_READS && n > 0; k++)
        n = ddp__stream_recv(p->c.tls, p->c.fd, sink, sizeof sink);
    if (n < 0 || p->c.gone || (p->since > 0 && now > p->since + (double)ENDING_SECONDS)) connection_close(p);
}

static void connection_poll(const connection *p, struct pollfd *poll)
{
    const int events = POLLIN | (channel_waiting(&p->c) ? POLLOUT : 0);

    if (p->state == CONNECTION_ENDING)
        ddp__poll_set(poll, p->c.fd, ddp__stream_events(p->c.tls, p->c.fd, events));
    else
        channel_poll(&p->c, poll);
}

/* Handles a complete hello. Returns 0, or the error to send. */
static const char *connection_greets(connection *p, const nodes *n, char *why, size_t room)
{
    char host[66];
    int version = 0;

    if (sscanf(p->c.data, "%d %65s", &version, host) != 2 || strlen(host) > 63 ||
        strspn(host, "0123456789abcdefghijklmnopqrstuvwxyz"
                     "ABCDEFGHIJKLMNOPQRSTUVWXYZ-._:[]%") != strlen(host))
        return "malformed registration: --host must be a name or an address of at most 63 characters";
    if (version != CHANNEL_VERSION) {
        snprintf(why, room, "this node speaks version %d, the broker version %d: use the same release",
                 version, CHANNEL_VERSION);
        return why;
    }
    if (n->count >= n->most)
        return "the broker's job has all its nodes and expects no other; try again when one is lost, or "
               "start the broker with "
               "--spares";
    if (!strcmp(host, "-")) {
        ddp__addr_text(&p->from, p->host);
        if (strrchr(p->host, ':')) *strrchr(p->host, ':') = 0;
    } else {
        snprintf(p->host, sizeof p->host, strchr(host, ':') && host[0] != '[' ? "[%s]" : "%s", host);
    }
    return NULL;
}

/* ---- callers ---- */

/* Makes a registered caller a node. The entry of any other caller is free when its connection is closed. */
static void caller_registers(nodes *n, connection *p)
{
    char text[160];
    const char *why = connection_greets(p, n, text, sizeof text);
    ddp_error err;

    if (!why && ddp__tcp_tune(p->c.fd, CHANNEL_STEP_SECONDS, NULL, &err)) why = err.msg;
    if (why) {
        connection_end(p, 1, why);
        return;
    }
    channel_next(&p->c);
    p->c.peer = CHANNEL_NODE;
    p->state = CONNECTION_NODE;
    n->peer[n->count++] = *p;
    n->news++;
    p->state = CONNECTION_CLOSED; /* the node owns the socket */
}

/* Logs a rejected caller. */
static void caller_note(nodes *n, const connection *p, const char *why, double now)
{
    char text[DDP__ADDR_TEXT];

    if (now > n->counted + 1) {
        n->counted = now;
        n->refusals = 0;
    }
    if (n->refusals++ < REFUSALS)
        fprintf(stderr, "broker: refused: %s %s\n", ddp__addr_text(&p->from, text), why);
}

/* Handles the first byte of a caller, which begins TLS or a message. A node with other keys receives an
 * error. */
static void caller_begins(nodes *n, connection *p, double now)
{
    unsigned char first;
    const ssize_t got = recv(p->c.fd, &first, 1, MSG_PEEK);
    const int plain = got == 1 && first == (CHANNEL_MAGIC & 0xff),
              tls = got == 1 && (first == 21 || first == 22);

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) {
        connection_close(p);
    } else if (n->tls && plain) {
        caller_note(n, p, "does not use TLS", now);
        connection_end(
            p, 1, "the broker requires TLS: give this node the broker's --tls-psk FILE, or certificates");
    } else if (!n->tls && tls) {
        caller_note(
            n, p,
            "uses TLS, and the broker has no keys: give the broker and all nodes the same --tls-psk, or none",
            now);
        ddp__stream_no_tls(p->c.fd);
        connection_close(p);
    } else if (ddp__stream_begin(n->tls, p->c.fd, 1)) {
        connection_close(p); /* memory is short */
    } else {
        p->c.tls = n->tls;
        p->state = n->tls ? CONNECTION_TLS : CONNECTION_HELLO;
    }
}

/* Advances the handshake. On completion the caller has the key, or a certificate that names a rank or a
 * joining worker. */
static void caller_shakes(nodes *n, connection *p, double now)
{
    const int done = ddp__stream_shake(p->c.tls, p->c.fd);
    char name[DDP__STREAM_NAME], why[DDP__STREAM_TEXT], text[DDP__STREAM_TEXT + 64];
    int rank;

    if (done < 0) {
        if (ddp__stream_why(p->c.tls, p->c.fd)) caller_note(n, p, ddp__stream_why(p->c.tls, p->c.fd), now);
        connection_close(p);
    } else if (done && ddp__stream_may_join(p->c.tls, p->c.fd, &rank, name, why)) {
        p->state = CONNECTION_HELLO;
    } else if (done) {
        caller_note(n, p, why, now);
        snprintf(text, sizeof text, "the broker refuses this node, which %s", why);
        connection_end(p, 1, text);
    }
}

static void caller_serve(nodes *n, connection *p, double now)
{
    int got = 0;

    if (p->state == CONNECTION_NEW) caller_begins(n, p, now);
    if (p->state == CONNECTION_TLS) caller_shakes(n, p, now);
    if (p->state == CONNECTION_ENDING) connection_discard(p, now);
    if (p->state == CONNECTION_HELLO) got = channel_advance(&p->c);
    if (got > 0)
        caller_registers(n, p);
    else if (got < 0 || (p->state < CONNECTION_NODE && now > p->since + (double)CALLER_SECONDS))
        connection_close(p);
}

/* Returns the caller to close in favour of a new one: the oldest that was rejected or silent for
 * CALLER_GRACE, else the oldest. */
static int caller_oldest(const nodes *n, double now)
{
    int oldest[2] = {-1, -1};

    for (int i = 0; i < n->callers; i++) {
        const connection *p = &n->caller[i];
        int *o = &oldest[p->state < CONNECTION_NODE &&
                         (p->state != CONNECTION_NEW || now < p->since + (double)CALLER_GRACE)];
        if (*o < 0 || p->since < n->caller[*o].since) *o = i;
    }
    return oldest[0] >= 0 ? oldest[0] : oldest[1];
}

/* Accepts one connection. 0 means that no connection waits or can be accepted. */
static int caller_accept(nodes *n, double now)
{
    ddp__addr from;
    const int fd = ddp__tcp_accept(n->listens, &from);
    connection *p;

    if (fd < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ECONNABORTED)
            n->shut = now + 0.5; /* otherwise poll would return at once */
        return 0;
    }
    if (n->callers < CALLERS)
        p = &n->caller[n->callers++];
    else
        connection_close(p = &n->caller[caller_oldest(n, now)]);
    memset(p, 0, sizeof *p);
    p->c.fd = fd;
    p->c.peer = CHANNEL_CALLER;
    p->from = from;
    p->since = now;
    p->state = CONNECTION_NEW;
    return 1;
}

/* ---- all of them ---- */

static void node_serve(connection *p, double now)
{
    if (p->state == CONNECTION_ENDING) {
        connection_discard(p, now);
        return;
    }
    if (p->state != CONNECTION_NODE) return;
    channel_flush(&p->c);
    (void)channel_advance(&p->c);
    channel_check(&p->c, now);
}

/* Serves all callers once, or for at most CALLERS_MOST seconds, so that many handshakes do not delay the
 * nodes. */
static void callers_serve(nodes *n, double now)
{
    const double until = ddp_now() + CALLERS_MOST;
    int served = 0;

    for (; served < n->callers && (!served || ddp_now() < until); served++)
        caller_serve(n, &n->caller[(n->first + served) % n->callers], now);
    n->first = n->callers ? (n->first + served) % n->callers : 0;
    for (int i = n->callers - 1; i >= 0; i--)
        if (n->caller[i].state == CONNECTION_CLOSED) n->caller[i] = n->caller[--n->callers];
}

/* One pass of the loop: waits for an event, a signal or the given time, then serves all nodes, then the
 * callers, then accepts. The indexes of nodes do not change. */
static void nodes_serve(nodes *n, double until)
{
    struct pollfd p[1 + NODES + CALLERS];
    const int count = n->count;
    double now = ddp_now();
    int polls = 1;

    if (until > now + 0.5) until = now + 0.5; /* interval at which all time limits are checked */
    ddp__poll_set(&p[0], now < n->shut ? -1 : n->listens, POLLIN);
    for (int i = 0; i < count; i++) {
        connection_poll(&n->peer[i], &p[polls++]);
        if (channel_ready(&n->peer[i].c)) until = now;
    }
    for (int i = 0; i < n->callers; i++) {
        connection_poll(&n->caller[i], &p[polls++]);
        if (channel_ready(&n->caller[i].c)) until = now;
    }
    (void)poll(p, (nfds_t)polls, until > now ? (int)((until - now) * 1000) + 1 : 0);
    now = ddp_now();
    for (int i = 0; i < count; i++) node_serve(&n->peer[i], now);
    callers_serve(n, now);
    for (int i = 0; i < ACCEPTS && p[0].revents && caller_accept(n, now); i++) {
    }
}

/* Closes the connection of a node during an attempt. The indexes of the other nodes do not change. */
static void node_leaves(nodes *n, int i)
{
    if (n->peer[i].c.why[0]) fprintf(stderr, "broker: node %d %s\n", i, n->peer[i].c.why);
    connection_close(&n->peer[i]);
    n->peer[i].asked = 0;
}

static void node_lost(nodes *n, int i)
{
    node_leaves(n, i);
    memmove(&n->peer[i], &n->peer[i + 1], (size_t)(n->count - i - 1) * sizeof n->peer[0]);
    n->count--;
}

/* Sends a message to a node. If many bytes are queued for it, all connections are served until it has
 * accepted some. This bounds memory, and a node that is itself sending can make progress. */
static inline void node_send(nodes *n, connection *p, channel_word word, const void *a, size_t na,
                             const void *b, size_t nb)
{
    channel_send(&p->c, word, a, na, b, nb);
    while (channel_waiting(&p->c) > NODE_WAITS && !p->c.whole && !p->c.gone && !cli_interrupted)
        nodes_serve(n, ddp_now() + 0.5);
}

/* Returns the next message of any node, in turn. It stays in the node's channel until the next call. *from is
 * the node. WORD_LOST means that *from is lost. It is still in the list. WORD_HELLO with *from -1 means that
 * a node has registered. Returns 0 after a time-out or an interrupt. */
static channel_word next_word(nodes *n, int *from, double until)
{
    for (int i = 0; i < n->count; i++) {
        if (n->peer[i].delivered) channel_next(&n->peer[i].c);
        n->peer[i].delivered = 0;
    }
    while (!cli_interrupted) {
        if (n->news) {
            n->news--;
            *from = -1;
            return WORD_HELLO;
        }
        for (int k = 0; k < n->count; k++) {
            const int i = (n->turn + k) % n->count;
            connection *p = &n->peer[i];
            *from = i;
            if (!p->c.whole && p->c.gone) return WORD_LOST;
            if (!p->c.whole) continue;
            n->turn = i + 1;
            p->delivered = 1;
            return p->c.word;
        }
        if (ddp_now() >= until) break;
        nodes_serve(n, until);
    }
    return (channel_word)0;
}

/* Ends the job with an exit code: notifies each node and closes its connection. */
static inline void nodes_end(nodes *n, int code, const char *why)
{
    const double until = ddp_now() + 10;
    int open = n->count;

    ddp__fd_close(&n->listens);
    for (int i = 0; i < n->callers; i++) connection_close(&n->caller[i]);
    n->callers = 0;
    for (int i = 0; i < n->count; i++) connection_end(&n->peer[i], code, why);
    while (open && ddp_now() < until) {
        nodes_serve(n, until);
        open = 0;
        for (int i = 0; i < n->count; i++) open += n->peer[i].state == CONNECTION_ENDING;
    }
    for (int i = 0; i < n->count; i++) connection_close(&n->peer[i]);
    n->count = 0;
}

/* Waits until `wanted` nodes have registered, or for the given time. */
static inline ddp_status gather(nodes *n, double seconds, int quiet, ddp_error *err)
{
    const double until = seconds > 0 ? ddp_now() + seconds : DBL_MAX;
    int from;

    while (n->count < n->wanted) {
        const channel_word w = next_word(n, &from, until);
        if (w == WORD_LOST) node_lost(n, from);
        if (w == WORD_HELLO && from < 0 && !quiet)
            fprintf(stderr, "broker: %d of %d nodes are here\n", n->count, n->wanted);
        if (cli_interrupted) return refuse(err, DDP_ABORTED, "interrupted while waiting for nodes");
        if (!w)
            return refuse(err, DDP_PEER_LOST,
                          "%d of %d nodes registered within %g s: start more build/compnode processes, or "
                          "raise --join-timeout",
                          n->count, n->wanted, seconds);
    }
    return DDP_OK;
}

/* 1 if the message ends the current task of a node. */
static inline int node_answers(channel_word w)
{
    return w == WORD_SPEED || w == WORD_READY || w == WORD_NETWORK || w == WORD_DONE || w == WORD_FAIL;
}

/* Returns why a node has failed: DDP_PEER_LOST if another attempt may succeed, else the status of the
 * node. */
static ddp_status node_failed(const nodes *n, int i, ddp_error *err)
{
    channel_failure f;

    channel_failure_of(&n->peer[i].c, &f);
    if (f.code == (int)DDP_PEER_LOST || f.code == (int)DDP_ABORTED || f.code == (int)DDP_TIMEOUT ||
        f.code == (int)DDP_NET)
        return DDP_PEER_LOST;
    return refuse(err, (ddp_status)f.code, "node %d (%.60s): %.400s", i, n->peer[i].host, f.text);
}

/* Ends a failed attempt on all nodes, which stay for another one. A node detects the loss of another one
 * within the peer time-out, or within the 30 s that it waits for all to connect. A node that does not answer
 * is lost. Returns DDP_OK if another attempt may succeed, else the status of the node that failed. */
static inline ddp_status settle(nodes *n, double peer_timeout, ddp_error *err)
{
    const double seconds = (peer_timeout > 0 ? peer_timeout : 30) + 30, until = ddp_now() + seconds;
    int from, open = 0;

    fprintf(stderr, "broker: a node is lost; the others end this attempt, within %.0f s\n", seconds);

    for (int i = 0; i < n->count; i++) {
        if (n->peer[i].asked) channel_send(&n->peer[i].c, WORD_CANCEL, NULL, 0, NULL, 0);
        open += n->peer[i].asked;
    }
    while (open > 0) {
        const channel_word w = next_word(n, &from, until);
        if (!w) break;
        if (from < 0) continue;
        if (w == WORD_FAIL) node_failed(n, from, err);
        if (node_answers(w) || w == WORD_LOST) {
            open -= n->peer[from].asked;
            n->peer[from].asked = 0;
        }
        if (w == WORD_LOST) node_lost(n, from);
    }
    nodes_serve(n, 0);
    for (int i = n->count - 1; i >= 0; i--) { /* nodes that do not answer, or are lost */
        if (n->peer[i].asked && !n->peer[i].c.why[0])
            snprintf(n->peer[i].c.why, sizeof n->peer[i].c.why, "did not answer within %.0f s", seconds);
        if (n->peer[i].asked || n->peer[i].c.gone || n->peer[i].state != CONNECTION_NODE) node_lost(n, i);
    }
    return err->code;
}

#endif /* EXAMPLES_BROKER_NODES_H */
