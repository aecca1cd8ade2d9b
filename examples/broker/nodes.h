/* The connections of a broker. One poll loop serves all of them without blocking, and each has a state: a
 * caller has to register before it is a node, and delays no node meanwhile. Only the end of a TLS connection
 * may wait, for at most 0.2 s. */
#ifndef EXAMPLES_BROKER_NODES_H
#define EXAMPLES_BROKER_NODES_H

enum {
    NODES = 512,
    CALLERS = 128,       /* connections at a time that are no nodes: of more, an older one is closed */
    CALLER_SECONDS = 5,  /* for a caller to register */
    CALLER_GRACE = 1,    /* seconds in which a silent one is not closed before others */
    ENDING_SECONDS = 2,  /* for a peer to close its side, after it was sent a WORD_END */
    ACCEPTS = 32,        /* of one pass of the loop */
    REFUSALS = 10,       /* lines about refused callers, per second */
    NODE_WAITS = 1 << 20 /* bytes that wait for a node, after which node_send waits too */
};

static const double CALLERS_MOST = 2e-3; /* seconds that callers take of one pass */

typedef enum connection_state {
    CONNECTION_NEW,   /* a caller that has sent nothing */
    CONNECTION_TLS,   /* its handshake is not over */
    CONNECTION_HELLO, /* it has to register */
    CONNECTION_NODE,
    CONNECTION_ENDING, /* it was sent a WORD_END; what it still sends is discarded */
    CONNECTION_CLOSED
} connection_state;

typedef struct connection {
    channel c;
    connection_state state;
    ddp__addr from;
    double since;  /* when it came; CONNECTION_ENDING: when all was sent, 0: not yet */
    char host[80]; /* how the other nodes reach it; an IPv6 address is in brackets */
    int port;      /* a free one there */
    double speed;  /* FLOP/s */
    int asked;     /* 1: it owes an answer: a speed, the end of its training */
    int saved;     /* its part of the checkpoint that is on its way is here */
    int delivered; /* next_word has returned its message */
} connection;

/* The first `wanted` work, the others are spares. */
typedef struct nodes {
    int listens;
    ddp__tls *tls;    /* NULL: connections are not encrypted */
    double shut;      /* no connection is accepted until then, because accept failed */
    int wanted, most; /* most: spares included */
    int news;         /* nodes that have registered since next_word last reported one */
    int turn;         /* the first whose message next_word looks for */
    int first;        /* the first caller that the next pass serves */
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

/* What is closed with unread bytes would take the last message with it, so they are read and discarded. */
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

/* A whole hello: 0, or the sentence that refuses it. */
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

/* A caller that has registered becomes a node; the place of any other is free when its connection is
 * closed. */
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
    p->state = CONNECTION_CLOSED; /* the node has the socket */
}

/* A line about a caller that is refused. */
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

/* The first byte of a caller: it begins TLS, or a message. A node that was started with other keys is told
 * so. */
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

/* A step of the handshake. Its end: the caller has the key, or a certificate that names a rank or a joining
 * worker. */
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

/* The caller that makes room for another: the oldest that is refused or was silent for CALLER_GRACE, else the
 * oldest. */
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

/* One that waits to be accepted; 0: none does, or none can be. */
static int caller_accept(nodes *n, double now)
{
    ddp__addr from;
    const int fd = ddp__tcp_accept(n->listens, &from);
    connection *p;

    if (fd < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ECONNABORTED)
            n->shut = now + 0.5; /* or poll would return at once */
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

/* All callers once, or as many as CALLERS_MOST allows: a flood of handshakes does not delay the nodes. */
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

/* One pass of the loop: waits until something happens, a signal comes or the time is over, then serves all
 * nodes, then the callers, then accepts. No node's index changes. */
static void nodes_serve(nodes *n, double until)
{
    struct pollfd p[1 + NODES + CALLERS];
    const int count = n->count;
    double now = ddp_now();
    int polls = 1;

    if (until > now + 0.5) until = now + 0.5; /* all time limits are looked at this often */
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

/* Closes a node's connection during an attempt: the others stay where they are in the list. */
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

/* Sends a node a message. Where much waits for it already, all connections are served until it has taken
 * some: memory is bounded, and no message of another is lost. A node whose own message waits here may be
 * unable to take any before that. */
static inline void node_send(nodes *n, connection *p, channel_word word, const void *a, size_t na,
                             const void *b, size_t nb)
{
    channel_send(&p->c, word, a, na, b, nb);
    while (channel_waiting(&p->c) > NODE_WAITS && !p->c.whole && !p->c.gone && !cli_interrupted)
        nodes_serve(n, ddp_now() + 0.5);
}

/* The next message of a node, in its channel until the next call; *from is the node. Nodes take turns.
 * WORD_LOST: *from is gone; it is still in the list. WORD_HELLO, *from -1: a node has registered. 0: none
 * until then, or interrupted. */
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

/* The job is over, well (code 0) or not: each node is told, and leaves. */
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

/* Until all that are wanted are there, or the time is over. */
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
            return refuse(
                err, DDP_PEER_LOST,
                "%d of %d nodes came within %g s: start more of build/compnode, or give --join-timeout",
                n->count, n->wanted, seconds);
    }
    return DDP_OK;
}

/* The words that end what a node was asked for. */
static inline int node_answers(channel_word w)
{
    return w == WORD_SPEED || w == WORD_READY || w == WORD_NETWORK || w == WORD_DONE || w == WORD_FAIL;
}

/* Why a node has failed: DDP_PEER_LOST where another attempt may do better, else the node's own reason. */
static ddp_status node_failed(const nodes *n, int i, ddp_error *err)
{
    channel_failure f;

    channel_failure_of(&n->peer[i].c, &f);
    if (f.code == (int)DDP_PEER_LOST || f.code == (int)DDP_ABORTED || f.code == (int)DDP_TIMEOUT ||
        f.code == (int)DDP_NET)
        return DDP_PEER_LOST;
    return refuse(err, (ddp_status)f.code, "node %d (%.60s): %.400s", i, n->peer[i].host, f.text);
}

/* An attempt has failed somewhere: all nodes end it, and stay for another one. A node notices the loss of
 * another within the peer time-out, or within the 30 s that it waits for all to connect; one that answers
 * nothing is lost. DDP_OK where another attempt may succeed, else the reason of the node that cannot do its
 * part. */
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
    for (int i = n->count - 1; i >= 0; i--) { /* who does not answer, or is gone */
        if (n->peer[i].asked && !n->peer[i].c.why[0])
            snprintf(n->peer[i].c.why, sizeof n->peer[i].c.why, "did not answer within %.0f s", seconds);
        if (n->peer[i].asked || n->peer[i].c.gone || n->peer[i].state != CONNECTION_NODE) node_lost(n, i);
    }
    return err->code;
}

#endif /* EXAMPLES_BROKER_NODES_H */
