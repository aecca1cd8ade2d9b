/* Streams over connections that end for good. */
#include "wire/tcp.h"

typedef struct ddp__tcp_peer {
    int fd;   /* -1: own rank */
    int told; /* bit 0: recv has reported the end, bit 1: send has */
} ddp__tcp_peer;

typedef struct ddp__tcp_wire {
    ddp__wire base;
    ddp__tcp_peer *peers; /* [world] */
    ddp__tls *tls;        /* NULL = plain */
    struct pollfd *polls; /* [world + 1], the last for the bell */
    ddp__waker bell;      /* wake() rings, wait() hears */
    ddp__relay *relay;    /* of other ranks' connections, or NULL */
} ddp__tcp_wire;

static long ddp__tcp_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    ddp__tcp_peer *p = &t->peers[peer];
    long n = ddp__stream_send(t->tls, p->fd, iov, count);

    if (n < 0) p->told |= 2;
    return n;
}

static long ddp__tcp_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    long n = ddp__stream_recv(t->tls, t->peers[peer].fd, buf, bytes);

    if (n < 0) t->peers[peer].told |= 1;
    return n;
}

static void ddp__tcp_wait(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv, double until)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    int i, ready = 0;

    for (i = 0; i < w->world; i++) {
        int events = 0, told = t->peers[i].told;
        if ((!want_recv || want_recv[i]) && !(told & 1)) events |= POLLIN;
        if (want_send && want_send[i] && !(told & 2)) events |= POLLOUT;
        if (events & POLLIN) ready |= ddp__stream_ready(t->tls, t->peers[i].fd);
        if (events) events = ddp__stream_events(t->tls, t->peers[i].fd, events);
        ddp__poll_set(&t->polls[i], events ? t->peers[i].fd : -1, events); /* else a hang-up would keep us awake */
    }
    if (ready) until = 0;
    t->polls[w->world].revents = 0;
    (void)ddp__poll_until(t->polls, w->world + 1, until);
    if (t->polls[w->world].revents) ddp__waker_drain(&t->bell);
}

static void ddp__tcp_wake(ddp__wire *w) { ddp__waker_wake(&((ddp__tcp_wire *)(void *)w)->bell); }

static void ddp__tcp_free(ddp__tcp_wire *t)
{
    ddp__waker_close(&t->bell);
    DDP_FREE(t->polls);
    DDP_FREE(t->peers);
    DDP_FREE(t->base.names);
    DDP_FREE(t);
}

static void ddp__tcp_close(ddp__wire *w)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;

    for (int i = 0; i < w->world; i++) ddp__stream_close(t->tls, t->peers[i].fd);
    ddp__relay_close(t->relay);
    ddp__tcp_free(t);
}

static void ddp__tcp_cut(ddp__wire *w, int peer) { shutdown(((ddp__tcp_wire *)(void *)w)->peers[peer].fd, SHUT_RDWR); }

static const ddp__wire_table ddp__tcp_table = {ddp__tcp_send, ddp__tcp_recv,  ddp__tcp_wait,
                                               ddp__tcp_wake, ddp__tcp_close, ddp__tcp_cut};

ddp_status ddp__tcp_adopt(const ddp__tcp_config *c, int peer, int fd, int relayed, char *name, ddp_error *err)
{
    char at[DDP__ADDR_TEXT];
    ddp__addr a;

    if (ddp__addr_peer(fd, &a) < 0)
        return ddp__fail(err, DDP_NET, "the connection to rank %d broke: %s", peer, strerror(errno));
    snprintf(name, DDP__WIRE_NAME, "%s%.71s", relayed ? "via rank 0 at " : "", ddp__addr_text(&a, at));
    return ddp__tcp_tune(fd, c->peer_timeout_s, c->congestion, err);
}

ddp_status ddp__wire_tcp(const ddp__tcp_config *c, ddp__wire **out, ddp_error *err)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)ddp__calloc(1, sizeof *t);
    ddp_status bad = DDP_OK;

    if (t) {
        t->peers = (ddp__tcp_peer *)ddp__calloc((size_t)c->world, sizeof *t->peers);
        t->polls = (struct pollfd *)ddp__calloc((size_t)c->world + 1, sizeof *t->polls);
    }
    if (!t || !t->peers || !t->polls || !ddp__wire_init(&t->base, &ddp__tcp_table, c->rank, c->world))
        bad = ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", c->rank);
    if (!bad) bad = ddp__waker_open(&t->bell, err);
    for (int i = 0; i < c->world && !bad; i++) {
        t->peers[i].fd = i == c->rank ? -1 : c->fds[i];
        if (i != c->rank)
            bad = ddp__tcp_adopt(c, i, c->fds[i], c->relayed && c->relayed[i], t->base.names[i], err);
    }
    if (bad) {
        if (t) ddp__tcp_free(t);
        return bad;
    }
    t->tls = c->tls;
    t->relay = c->relay;
    ddp__poll_set(&t->polls[c->world], t->bell.fd[0], POLLIN);
    *out = &t->base;
    return DDP_OK;
}

int ddp__wire_tcp_fd(ddp__wire *w, int peer) { return ((ddp__tcp_wire *)(void *)w)->peers[peer].fd; }
