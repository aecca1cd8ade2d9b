/* The nodes that a broker is connected to: who comes, who is lost, who says what. */
#ifndef EXAMPLES_BROKER_NODES_H
#define EXAMPLES_BROKER_NODES_H

enum { NODES = 512 };

typedef struct connection {
    channel c;
    char    host[64]; /* how the others reach it */
    int     port;     /* a free one there */
    double  speed;    /* FLOP/s */
    int     asked;    /* 1: it owes an answer: a speed, the end of its training */
} connection;

/* The first `wanted` work, the others are spares. */
typedef struct nodes {
    int    listens;
    int    wanted, most; /* most: spares included */
    int    count;
    connection peer[NODES];
} nodes;

static void node_end(connection *p, int code, const char *why)
{
    const struct timeval soon = {2, 0};
    char text[600];

    snprintf(text, sizeof text, "%d %.580s", code, why);
    channel_send(p->c.fd, WORD_END, text, strlen(text), NULL, 0);
    shutdown(p->c.fd, SHUT_WR);
    setsockopt(p->c.fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    while (recv(p->c.fd, text, sizeof text, 0) > 0) {} /* what is closed unread would take the last word with it */
    channel_close(&p->c);
}

static void node_lost(nodes *n, int i)
{
    if (n->peer[i].c.why[0]) fprintf(stderr, "broker: node %d sent a %s\n", i, n->peer[i].c.why);
    channel_close(&n->peer[i].c);
    memmove(&n->peer[i], &n->peer[i + 1], (size_t)(n->count - i - 1) * sizeof n->peer[0]);
    n->count--;
}

/* Somebody connects: a node that is expected stays. */
static void node_comes(nodes *n)
{
    const struct timeval soon = {5, 0};
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    connection p;
    int version = 0;

    memset(&p, 0, sizeof p);
    p.c.fd = accept(n->listens, (struct sockaddr *)&from, &size);
    if (p.c.fd < 0) return;
    channel_tune(p.c.fd);
    setsockopt(p.c.fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    if (!channel_receive(&p.c) || p.c.word != WORD_HELLO || sscanf(p.c.data, "%d %63s", &version, p.host) != 2) {
        channel_close(&p.c);
        return;
    }
    if (!strcmp(p.host, "-")) getnameinfo((struct sockaddr *)&from, size, p.host, sizeof p.host, NULL, 0, NI_NUMERICHOST);
    if (version != CHANNEL_VERSION) {
        char why[160];
        snprintf(why, sizeof why, "this node speaks version %d, the broker version %d: use the same release", version, CHANNEL_VERSION);
        node_end(&p, 1, why);
    } else if (n->count >= n->most) {
        node_end(&p, 1, "the broker's job has all its nodes and expects no other; try again when one is lost, or start the broker "
                        "with --spares");
    } else {
        channel_tune(p.c.fd);
        n->peer[n->count++] = p;
    }
}

/* The next word of a node, read into its channel; who said it is *from. Newcomers are let in meanwhile. WORD_LOST: *from has
 * gone; it is still in the list. 0: none until then, or interrupted. */
static channel_word next_word(nodes *n, int *from, double until)
{
    struct pollfd p[NODES + 1];
    double left = until - ddp_now();

    while (!cli_interrupted && left > 0) {
        p[0].fd = n->listens, p[0].events = POLLIN;
        for (int i = 0; i < n->count; i++) p[i + 1].fd = n->peer[i].c.fd, p[i + 1].events = POLLIN;
        if (poll(p, (nfds_t)n->count + 1, left < 0.5 ? (int)(left * 1000) + 1 : 500) > 0) {
            for (int i = 0; i < n->count; i++) {
                if (!p[i + 1].revents) continue;
                *from = i;
                return channel_receive(&n->peer[i].c) ? n->peer[i].c.word : WORD_LOST;
            }
            if (p[0].revents) {
                node_comes(n);
                *from = -1;
                return WORD_HELLO;
            }
        }
        left = until - ddp_now();
    }
    return (channel_word)0;
}

/* Until all that are wanted are there, or the time is over. */
static inline ddp_status gather(nodes *n, double seconds, int quiet, ddp_error *err)
{
    const double until = seconds > 0 ? ddp_now() + seconds : DBL_MAX;
    int from;

    while (n->count < n->wanted) {
        const channel_word w = next_word(n, &from, until);
        if (w == WORD_LOST) node_lost(n, from);
        if (w == WORD_HELLO && from < 0 && !quiet) fprintf(stderr, "broker: %d of %d nodes are here\n", n->count, n->wanted);
        if (cli_interrupted) return refuse(err, DDP_ABORTED, "interrupted while waiting for nodes");
        if (!w)
            return refuse(err, DDP_PEER_LOST, "%d of %d nodes came within %g s: start more of build/compnode, or give --join-timeout",
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
    if (f.code == (int)DDP_PEER_LOST || f.code == (int)DDP_ABORTED || f.code == (int)DDP_TIMEOUT || f.code == (int)DDP_NET)
        return DDP_PEER_LOST;
    return refuse(err, (ddp_status)f.code, "node %d (%.60s): %.400s", i, n->peer[i].host, f.text);
}

/* An attempt has failed somewhere: all are called off, and stay for another one. DDP_OK where that may do better, else the
 * reason of the node that cannot do its part. */
static inline ddp_status settle(nodes *n, ddp_error *err)
{
    const double until = ddp_now() + 60;
    int from, open = 0;

    for (int i = 0; i < n->count; i++) {
        if (n->peer[i].asked) channel_send(n->peer[i].c.fd, WORD_CANCEL, NULL, 0, NULL, 0);
        open += n->peer[i].asked;
    }
    while (open > 0) {
        const channel_word w = next_word(n, &from, until);
        if (!w) break;
        if (from < 0) continue;
        if (w == WORD_FAIL) node_failed(n, from, err);
        if (node_answers(w) || w == WORD_LOST) open -= n->peer[from].asked, n->peer[from].asked = 0;
        if (w == WORD_LOST) node_lost(n, from);
    }
    for (int i = n->count - 1; i >= 0; i--) /* who does not answer */
        if (n->peer[i].asked) node_lost(n, i);
    return err->code;
}

#endif /* EXAMPLES_BROKER_NODES_H */
