/* Connections that the program has created: one socket per pair of ranks, on which each rank first sends a
 * hello frame. */
#include "wire/tcp.h"

static const double ddp__given_slice = 0.2; /* interval between checks of `cancel`, in seconds */

static ddp_status ddp__given_check(const ddp__rendezvous *r, int peer, ddp_error *err)
{
    const int fd = r->wire.fds[peer];
    socklen_t size = sizeof(int);
    int type = 0;
    ddp__addr a;

    for (int p = 0; p < peer; p++)
        if (p != r->wire.rank && r->wire.fds[p] == fd)
            return ddp__fail(
                err, DDP_ARG,
                "sockets[%d] and sockets[%d] are both descriptor %d: use a separate socket for each rank", p,
                peer, fd);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0)
        return ddp__fail(err, DDP_ARG,
                         "sockets[%d] is descriptor %d, which is not an open socket (%s): pass the socket "
                         "that is connected to rank %d",
                         peer, fd, strerror(errno), peer);
    if (type != SOCK_STREAM)
        return ddp__fail(err, DDP_ARG,
                         "sockets[%d] is descriptor %d, a socket without a byte stream: create it with "
                         "SOCK_STREAM",
                         peer, fd);
    if (ddp__addr_peer(fd, &a) < 0)
        return ddp__fail(err, DDP_ARG,
                         "sockets[%d] is descriptor %d, which is not connected (%s): pass the socket that is "
                         "connected to rank %d",
                         peer, fd, strerror(errno), peer);
    return DDP_OK;
}

/* The library uses duplicates, so that a failure here or ddp_close never closes a descriptor of the
 * program. */
static ddp_status ddp__given_copy(const ddp__rendezvous *r, int peer, int *copy, ddp_error *err)
{
    *copy = dup(r->wire.fds[peer]);
    if (*copy >= 0 && ddp__fd_prepare(*copy) == 0) return DDP_OK;
    return ddp__fail(err, DDP_NET, "cannot duplicate descriptor %d of sockets[%d]: %s%s", r->wire.fds[peer],
                     peer, strerror(errno), errno == EMFILE ? "; raise ulimit -n" : "");
}

static ddp_status ddp__given_lost(const ddp__rendezvous *r, int peer, int why, ddp_error *err)
{
    if (why == ETIMEDOUT)
        return ddp__fail(err, DDP_TIMEOUT,
                         "rank %d sent nothing on descriptor %d within %.3g s: start it, or raise "
                         "DREAMDDP_JOIN_TIMEOUT",
                         peer, r->wire.fds[peer], r->join_timeout_s);
    return ddp__fail(err, DDP_PEER_LOST,
                     "rank %d closed the connection on descriptor %d during the rendezvous (%s): see the "
                     "error of that rank",
                     peer, r->wire.fds[peer], strerror(why));
}

/* Receives and checks the peer's hello frame. */
static ddp_status ddp__given_hello(const ddp__rendezvous *r, const ddp__hello *self, int peer, int fd,
                                   double until, ddp_error *err)
{
    unsigned char b[DDP__HELLO_BYTES];
    char name[64], text[256];
    size_t have = 0, got;
    ddp__refusal why;
    ddp__hello h;

    while (have < sizeof b) {
        const double slice = fmin(until, ddp_now() + ddp__given_slice);
        const int bad = ddp__stream_recv_all(NULL, fd, b + have, sizeof b - have, &got, slice);
        have += got;
        if (bad && errno != ETIMEDOUT) return ddp__given_lost(r, peer, errno, err);
        if (bad && r->cancel && ddp__atomic_load(r->cancel))
            return ddp__fail(err, DDP_ABORTED, "cancelled during the rendezvous");
        if (bad && ddp_now() >= until) return ddp__given_lost(r, peer, ETIMEDOUT, err);
    }
    if (!ddp__hello_parse(b, &h))
        return ddp__fail(err, DDP_MISMATCH,
                         "the program at the other end of sockets[%d] (descriptor %d) is not a dreamddp "
                         "rank: connect the socket to rank %d",
                         peer, r->wire.fds[peer], peer);
    snprintf(name, sizeof name, "the peer on descriptor %d", r->wire.fds[peer]);
    why = ddp__hello_check(self, &h);
    if (why && why != DDP__REFUSE_RANK) {
        ddp__hello_dispute(self, why, &h, name, text, sizeof text);
        return ddp__fail(err, DDP_MISMATCH, "%s", text);
    }
    if (h.rank != (uint32_t)peer)
        return ddp__fail(err, DDP_MISMATCH,
                         "sockets[%d] (descriptor %d) is connected to rank %u: sort the sockets by rank",
                         peer, r->wire.fds[peer], (unsigned)h.rank);
    return DDP_OK;
}

static ddp_status ddp__given_meet(const ddp__rendezvous *r, const int *fds, ddp_error *err)
{
    const double until = ddp_now() + r->join_timeout_s;
    ddp__hello self = r->wire.self;

    self.version = DDP__PROTOCOL;
    self.rank = (uint32_t)r->wire.rank;
    self.world = ddp__hello_world(r->wire.world, r->wire.world);
    for (int p = 0; p < r->wire.world; p++)
        if (fds[p] >= 0 && ddp__hello_send(NULL, fds[p], &self, DDP__HELLO, DDP__WELCOME, 0) < 0)
            return ddp__given_lost(r, p, errno, err);
    for (int p = 0; p < r->wire.world; p++)
        if (fds[p] >= 0) DDP__TRY(ddp__given_hello(r, &self, p, fds[p], until, err));
    return DDP_OK;
}

ddp_status ddp__rendezvous_given(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err)
{
    ddp__tcp_config c = r->wire;
    ddp_status s = DDP_OK;
    int *fds = (int *)ddp__calloc((size_t)c.world, sizeof *fds);

    if (!fds) return ddp__fail(err, DDP_MEMORY, "out of memory for the sockets of rank %d", c.rank);
    for (int p = 0; p < c.world; p++) fds[p] = -1;
    for (int p = 0; p < c.world && s == DDP_OK; p++) /* check all before the first duplicate, which may get
                                                      * the number of a closed one */
        if (p != c.rank) s = ddp__given_check(r, p, err);
    for (int p = 0; p < c.world && s == DDP_OK; p++)
        if (p != c.rank) s = ddp__given_copy(r, p, &fds[p], err);
    if (s == DDP_OK) s = ddp__given_meet(r, fds, err);
    c.fds = fds;
    c.once = 1;
    c.listen_fd = -1;
    if (s == DDP_OK) s = ddp__wire_tcp(&c, out, err);
    for (int p = 0; p < c.world; p++) {
        if (s != DDP_OK)
            ddp__stream_close(NULL, fds[p]);
        else if (p != c.rank)
            snprintf((*out)->names[p], DDP__WIRE_NAME, "descriptor %d", r->wire.fds[p]);
    }
    if (s == DDP_OK) (*out)->round_trip = -1; /* unknown: the other end of the socket may forward the bytes */
    DDP_FREE(fds);
    return s;
}
