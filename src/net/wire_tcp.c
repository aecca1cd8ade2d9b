#include "base/platform.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "net/socket.h"
#include "net/wire_tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#define DDP__UNSENT_BYTES (128 << 10) /* what may wait in the kernel in front of a control frame */

typedef struct ddp__tcp_peer {
    int    fd;               /* -1: own rank */
    int    told;             /* bit 0: recv has reported the end, bit 1: send has */
    size_t sent_before;
    char   name[DDP__ADDR_TEXT];
} ddp__tcp_peer;

typedef struct ddp__tcp_wire {
    ddp__wire base;
    ddp__tcp_peer *peers;    /* [world] */
    struct pollfd *polls;    /* [world + 1], the last for the bell */
    int bell[2];             /* a pipe: wake() writes, wait() drains */
    int called;              /* a byte is in the pipe or about to be */
} ddp__tcp_wire;

static long ddp__tcp_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    ddp__tcp_peer *p = &((ddp__tcp_wire *)(void *)w)->peers[peer];
    struct msghdr m;
    ssize_t n;

    memset(&m, 0, sizeof m);
    memcpy(&m.msg_iov, &iov, sizeof iov); /* sendmsg does not write to it */
    m.msg_iovlen = count > 1024 ? 1024 : (unsigned)count; /* IOV_MAX of Linux and macOS */
    do {
#ifdef MSG_NOSIGNAL
        n = sendmsg(p->fd, &m, MSG_NOSIGNAL);
#else
        n = sendmsg(p->fd, &m, 0);
#endif
    } while (n < 0 && errno == EINTR);
    if (n >= 0) return (long)n;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    p->told |= 2;
    return -1;
}

static long ddp__tcp_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    ddp__tcp_peer *p = &((ddp__tcp_wire *)(void *)w)->peers[peer];
    ssize_t n;

    if (!bytes) return 0;
    do n = recv(p->fd, buf, bytes, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) return (long)n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (n == 0) errno = ECONNRESET; /* it closed, in order or not: no more bytes will come */
    p->told |= 1;
    return -1;
}

static void ddp__tcp_wait(ddp__wire *w, const unsigned char *want_send,
                          const unsigned char *want_recv, double until)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    int i, got;

    for (i = 0; i < w->world; i++) {
        int events = 0, told = t->peers[i].told;
        if ((!want_recv || want_recv[i]) && !(told & 1)) events |= POLLIN;
        if (want_send && want_send[i] && !(told & 2)) events |= POLLOUT;
        t->polls[i].fd = events ? t->peers[i].fd : -1; /* else a hang-up would keep us awake */
        t->polls[i].events = (short)events;
        t->polls[i].revents = 0;
    }
    t->polls[w->world].revents = 0;
    for (;;) {
        double left = until < 0 ? -1 : until - ddp_now();
        if (until >= 0 && left < 0) left = 0;
        if (left > 3600) left = 3600;
#ifdef __linux__
        {
            struct timespec ts;
            ts.tv_sec = (time_t)(left < 0 ? 0 : left);
            ts.tv_nsec = left < 0 ? 0 : (long)((left - (double)ts.tv_sec) * 1e9);
            got = ppoll(t->polls, (nfds_t)w->world + 1, left < 0 ? NULL : &ts, NULL);
        }
#else
        got = poll(t->polls, (nfds_t)w->world + 1, left < 0 ? -1 : (int)(left * 1000) + (left > 0));
#endif
        if (got > 0 || (got < 0 && errno != EINTR) || (until >= 0 && ddp_now() >= until)) break;
    }
    if (t->polls[w->world].revents) {
        char sink[16];
        while (read(t->bell[0], sink, sizeof sink) > 0) {}
        /* after the drain: a wake() that finds the flag still set came before we return */
        ddp__atomic_swap(&t->called, 0);
    }
}

static void ddp__tcp_wake(ddp__wire *w)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    ssize_t n;

    if (ddp__atomic_swap(&t->called, 1)) return;
    do n = write(t->bell[1], "", 1);
    while (n < 0 && errno == EINTR);
}

static const char *ddp__tcp_peer_name(ddp__wire *w, int peer)
{
    return ((ddp__tcp_wire *)(void *)w)->peers[peer].name;
}

static void ddp__tcp_free(ddp__tcp_wire *t)
{
    if (t->bell[0] >= 0) close(t->bell[0]);
    if (t->bell[1] >= 0) close(t->bell[1]);
    DDP_FREE(t->polls);
    DDP_FREE(t->peers);
    DDP_FREE(t);
}

static void ddp__tcp_close(ddp__wire *w)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)(void *)w;
    char sink[4096];
    int i, k;

    for (i = 0; i < w->world; i++) {
        if (t->peers[i].fd < 0) continue;
        /* closing over unread bytes would send a reset, which may overtake our last words */
        shutdown(t->peers[i].fd, SHUT_WR);
        for (k = 0; k < 256 && recv(t->peers[i].fd, sink, sizeof sink, 0) > 0; k++) {}
        close(t->peers[i].fd);
    }
    ddp__tcp_free(t);
}

static const ddp__wire_table ddp__tcp_table = {
    ddp__tcp_send, ddp__tcp_recv, ddp__tcp_wait, ddp__tcp_wake, ddp__tcp_peer_name, ddp__tcp_close
};

/* Nodelay on both ends: without it on one, each small answer waits 40 ms for a delayed ACK. */
static ddp_status ddp__tcp_tune(int fd, double peer_timeout_s, const char *congestion,
                                ddp_error *err)
{
    int on = 1;

    if (ddp__fd_prepare(fd) < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        return ddp__fail(err, DDP_NET, "cannot set TCP_NODELAY: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_NOTSENT_LOWAT
    {
        int low = DDP__UNSENT_BYTES;
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low);
    }
#endif
#ifdef TCP_USER_TIMEOUT
    if (peer_timeout_s > 0) {
        unsigned ms = peer_timeout_s < 1e6 ? (unsigned)(peer_timeout_s * 1000) + 1 : 1000000000u;
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    }
#else
    (void)peer_timeout_s;
#endif
    if (congestion && *congestion) {
#ifdef TCP_CONGESTION
        if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) <
            0)
            return ddp__fail(err, DDP_NET,
                             "cannot set the congestion control '%.32s': %s; allowed are those "
                             "in /proc/sys/net/ipv4/tcp_allowed_congestion_control",
                             congestion, strerror(errno));
#else
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "this system cannot choose the congestion control '%.32s': "
                         "unset DREAMDDP_TCP_CONGESTION",
                         congestion);
#endif
    }
    return DDP_OK;
}

ddp_status ddp__wire_tcp(int rank, int world, const int *fds, const size_t *sent_before,
                         double peer_timeout_s, const char *congestion,
                         ddp__wire **out, ddp_error *err)
{
    ddp__tcp_wire *t = (ddp__tcp_wire *)ddp__calloc(1, sizeof *t);
    ddp_status bad = DDP_OK;
    int i;

    if (!t) return ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", rank);
    t->base.table = &ddp__tcp_table;
    t->base.rank = rank;
    t->base.world = world;
    t->bell[0] = t->bell[1] = -1;
    t->peers = (ddp__tcp_peer *)ddp__calloc((size_t)world, sizeof *t->peers);
    t->polls = (struct pollfd *)ddp__calloc((size_t)world + 1, sizeof *t->polls);
    if (!t->peers || !t->polls) {
        bad = ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", rank);
    } else if (pipe(t->bell) < 0) {
        t->bell[0] = t->bell[1] = -1;
        bad = ddp__fail(err, DDP_NET, "cannot make a pipe: %s", strerror(errno));
    } else if (ddp__fd_prepare(t->bell[0]) < 0 || ddp__fd_prepare(t->bell[1]) < 0) {
        bad = ddp__fail(err, DDP_NET, "cannot prepare a pipe: %s", strerror(errno));
    }
    for (i = 0; i < world && !bad; i++) {
        ddp__tcp_peer *p = &t->peers[i];
        ddp__addr a;
        p->fd = i == rank ? -1 : fds[i];
        if (i == rank) continue;
        p->sent_before = sent_before ? sent_before[i] : 0;
        memset(&a, 0, sizeof a);
        a.size = sizeof a.sa;
        if (getpeername(p->fd, (struct sockaddr *)&a.sa, &a.size) < 0)
            bad =
                ddp__fail(err, DDP_NET, "the connection to rank %d broke: %s", i, strerror(errno));
        else
            bad = ddp__tcp_tune(p->fd, peer_timeout_s, congestion, err);
        ddp__addr_text(&a, p->name);
    }
    if (bad) {
        ddp__tcp_free(t);
        return bad;
    }
    t->polls[world].fd = t->bell[0];
    t->polls[world].events = POLLIN;
    *out = &t->base;
    return DDP_OK;
}

int ddp__wire_tcp_fd(ddp__wire *w, int peer)
{
    return ((ddp__tcp_wire *)(void *)w)->peers[peer].fd;
}

size_t ddp__wire_tcp_hello_bytes(ddp__wire *w, int peer)
{
    return ((ddp__tcp_wire *)(void *)w)->peers[peer].sent_before;
}
