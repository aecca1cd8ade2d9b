/* Streams over replaceable connections: sends through the replay ring, and receives records into the engine's
 * memory. */
#include "wire/replay.h"

#include <netinet/tcp.h>

#define DDP__REPLAY_BYTES ((size_t)4 << 20)
#define DDP__REPLAY_LEAST ((size_t)256 << 10)
#define DDP__REPLAY_ALL   ((size_t)32 << 20)
/* number of reads to skip after a read has emptied the socket. wait() notices new bytes earlier. */
#define DDP__DRY       8
#define DDP__ACK_LATER 0.05 /* seconds that a few bytes wait for their acknowledgement */

/* ---- sending ---- */

static long ddp__resume_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;
    ddp__way *p = &t->way[peer];
    size_t room, waiting, took = 0;

    if (p->state == DDP__LINK_ENDED) {
        errno = p->why;
        return -1;
    }
    if (p->state != DDP__LINK_LIVE) return 0;
    if (t->cfg.once)
        return ddp__stream_send(t->cfg.tls, p->fd, iov, count); /* the error is reported after
                                                                              * the remaining input is read */
    waiting = (size_t)(p->ring.end - p->next);
    if (waiting >= DDP__RECORD_MOST) { /* more would only delay high-priority bytes later */
        ddp__way_flush(t, p);
        waiting = (size_t)(p->ring.end - p->next);
        if (p->state != DDP__LINK_LIVE || waiting >= DDP__RECORD_MOST) return 0;
    }
    room = ddp__replay_free(&p->ring);
    if (room > DDP__RECORD_MOST - waiting) room = DDP__RECORD_MOST - waiting;
    if (!room) return 0;
    if (p->ring.end == p->ring.first) p->unheard_since = ddp_now();
    for (int i = 0; i < count && took < room; i++) {
        size_t n = iov[i].iov_len < room - took ? iov[i].iov_len : room - took;
        ddp__replay_put(&p->ring, iov[i].iov_base, n);
        took += n;
    }
    ddp__way_flush(t, p);
    return (long)took;
}

/* ---- receiving ---- */

/* Handles the header of one record. Returns 0, or the errno with which it ends the link. */
static int ddp__way_record_read(ddp__resume_wire *t, ddp__way *p)
{
    const unsigned char *b = p->stage + p->stage_from;
    uint32_t value = (uint32_t)ddp__hello_get(b + 4, 4);
    uint64_t upto;

    p->stage_from += DDP__RECORD_BYTES;
    if (b[1] != 'd' || b[2] != 'd' || b[3] != 'p') return EPROTO;
    switch (b[0]) {
    case DDP__RECORD_HI:
        if (!value || (p->peer_number && p->peer_number != value)) return EPROTO;
        p->peer_number = value;
        return 0;
    case DDP__RECORD_DATA:
        p->in_left = value;
        return value ? 0 : EPROTO;
    case DDP__RECORD_ACK:
        upto = p->ring.first + (uint32_t)(value - (uint32_t)p->ring.first);
        if (upto > p->next || !ddp__replay_forget(&p->ring, upto)) return EPROTO;
        p->unheard_since = p->heard;
        return 0;
    case DDP__RECORD_BYE:
        return ECONNRESET;
    case DDP__RECORD_CALL:
        return ddp__call_begin(t, p->peer, value);
    default:
        return EPROTO;
    }
}

/* Reads from the socket. Returns the number of bytes, 0 if there are none now, -1 if the connection broke (it
 * is then closed). */
static long ddp__way_read(ddp__resume_wire *t, ddp__way *p, void *buf, size_t bytes)
{
    long n;

    if (p->dry > 0 && p->dry--) return 0;
    n = ddp__stream_recv(t->cfg.tls, p->fd, buf, bytes);
    if (n < (long)bytes && !t->cfg.tls) p->dry = DDP__DRY;
    if (n > 0) p->heard = ddp_now();
    if (n < 0) ddp__way_break(t, p, errno);
    return n;
}

/* Reads record headers until stream bytes follow. Returns 1, or 0 if there are none now. */
static int ddp__way_to_data(ddp__resume_wire *t, ddp__way *p)
{
    while (!p->in_left) {
        size_t have = p->stage_to - p->stage_from;
        long n;
        if (have >= DDP__RECORD_BYTES) {
            int why = ddp__way_record_read(t, p);
            if (!why) continue;
            ddp__way_end(t, p, why);
            return 0;
        }
        memmove(p->stage, p->stage + p->stage_from, have);
        p->stage_from = 0;
        p->stage_to = have;
        n = ddp__way_read(t, p, p->stage + have, sizeof p->stage - have);
        if (n <= 0) return 0;
        p->stage_to += (size_t)n;
    }
    return 1;
}

static long ddp__resume_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;
    ddp__way *p = &t->way[peer];
    size_t n = 0;
    long got = 0;

    if (!bytes) return 0;
    if (t->away) { /* a busy engine does not call wait */
        double now = ddp_now();
        if (now >= t->ticked + 0.005) (void)ddp__resume_tick(t, now);
    }
    if (p->state == DDP__LINK_LIVE && t->cfg.once) {
        got = ddp__stream_recv(t->cfg.tls, p->fd, buf, bytes);
        if (got >= 0) return got;
        p->state = DDP__LINK_ENDED; /* its socket stays open until the wire closes */
        p->why = errno;
    } else if (p->state == DDP__LINK_LIVE) {
        if (p->next != p->ring.end) ddp__way_flush(t, p);
        if (p->state == DDP__LINK_LIVE && ddp__way_to_data(t, p)) {
            size_t most = bytes < p->in_left ? bytes : p->in_left;
            n = p->stage_to - p->stage_from < most ? p->stage_to - p->stage_from : most;
            memcpy(buf, p->stage + p->stage_from, n);
            p->stage_from += n;
            if (n < most) got = ddp__way_read(t, p, (unsigned char *)buf + n, most - n);
            if (got > 0) n += (size_t)got;
        }
    }
    if (n) {
        p->in_left -= n;
        p->received += n;
        if (p->received - p->acked >= t->ack_bytes)
            p->ack_due = 0; /* now */
        else if (p->ack_due < 0)
            p->ack_due = p->heard + DDP__ACK_LATER;
        if (p->ack_due == 0) ddp__way_flush(t, p);
        return (long)n;
    }
    if (p->state != DDP__LINK_ENDED) return 0;
    p->told = 1;
    errno = p->why;
    return -1;
}

/* ---- waiting ---- */

/* Returns whether the engine has work on a link, given what it wants. */
static int ddp__way_calls(ddp__resume_wire *t, ddp__way *p, int want_send, int want_recv)
{
    if (p->state == DDP__LINK_ENDED) return want_recv && !p->told;
    if (p->state != DDP__LINK_LIVE) return 0;
    if (t->cfg.once) return want_recv && ddp__stream_ready(t->cfg.tls, p->fd);
    if (want_send && ddp__replay_free(&p->ring) && p->ring.end - p->next < DDP__RECORD_MOST) return 1;
    if (!want_recv) return 0;
    if (p->stage_to - p->stage_from >= DDP__RECORD_BYTES) (void)ddp__way_to_data(t, p);
    if (p->in_left && p->stage_to > p->stage_from) return 1;
    return p->state == DDP__LINK_LIVE && ddp__stream_ready(t->cfg.tls, p->fd) && ddp__way_to_data(t, p);
}

/* Returns the events to poll for on a link. */
static int ddp__way_wishes(const ddp__resume_wire *t, const ddp__way *p, int want_send, int want_recv,
                           double *next)
{
    int events = 0;

    if (p->state == DDP__LINK_DIALLING) return POLLOUT;
    if (p->state == DDP__LINK_SHAKING || p->state == DDP__LINK_ASKING) return POLLIN;
    if (p->state != DDP__LINK_LIVE) return 0;
    if (t->cfg.once) return (want_recv ? POLLIN : 0) | (want_send ? POLLOUT : 0);
    if (want_recv) {
        events |= POLLIN;
    } else if (want_send) { /* input is not read, and acknowledgements may follow it: check from time to time
                             * */
        double soon = ddp_now() + 0.001;
        if (soon < *next) *next = soon;
    }
    if (!p->why && (p->next != p->ring.end || p->pre_sent != p->pre_len || p->ack_due == 0 || p->call))
        events |= POLLOUT;
    return events;
}

static void ddp__resume_wait(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv,
                             double until)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;
    int i, called = 0, first = w->world + 1, count;

    while (!called) {
        double next = ddp__resume_tick(t, ddp_now());
        for (i = 0; i < w->world; i++)
            called |= ddp__way_calls(t, &t->way[i], want_send && want_send[i], !want_recv || want_recv[i]);
        if (called) return;
        if (until >= 0 && until < next) next = until;
        for (i = 0; i < w->world; i++) {
            ddp__way *p = &t->way[i];
            int events = ddp__way_wishes(t, p, want_send && want_send[i], !want_recv || want_recv[i], &next);
            if (events && p->state != DDP__LINK_DIALLING)
                events = ddp__stream_events(t->cfg.tls, p->fd, events);
            ddp__poll_set(&t->polls[i], events ? p->fd : -1, events);
            if (p->call_state != DDP__LINK_NONE)
                ddp__poll_set(&t->polls[i], p->call_fd, ddp__call_events(t, p));
        }
        t->polls[w->world].revents = 0;
        count = first + ddp__acceptor_polls(&t->acceptor, t->polls + first, &next);
        (void)ddp__poll_until(t->polls, count, next);
        if (t->polls[w->world].revents) {
            ddp__waker_drain(&t->bell);
            called = 1;
        }
        for (i = 0; i < w->world; i++) {
            ddp__way *p = &t->way[i];
            if (t->polls[i].revents && t->cfg.once) called = 1;
            if (!t->polls[i].revents || t->cfg.once) continue;
            p->dry = 0;
            ddp__way_flush(t, p); /* TLS may wait for POLLIN */
            if (p->state == DDP__LINK_LIVE && (!want_recv || want_recv[i])) called |= ddp__way_to_data(t, p);
        }
        for (i = first; i < count; i++) t->incoming |= t->polls[i].revents;
        if (until >= 0 && ddp_now() >= until) called = 1;
    }
}

static void ddp__resume_wake(ddp__wire *w) { ddp__waker_wake(&((ddp__resume_wire *)(void *)w)->bell); }

/* ---- opening and closing ---- */

static void ddp__resume_free(ddp__resume_wire *t)
{
    ddp__waker_close(&t->bell);
    ddp__acceptor_close(&t->acceptor);
    ddp__pairs_close(&t->pairs);
    DDP_FREE(t->polls);
    DDP_FREE(t->rings);
    DDP_FREE(t->way);
    DDP_FREE(t->base.relays);
    DDP_FREE(t->base.names);
    DDP_FREE(t);
}

static void ddp__resume_close(ddp__wire *w)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;
    double until = ddp_now() + 0.5;

    for (int i = 0; i < w->world; i++) {
        ddp__way *p = &t->way[i];
        int said = 0;
        ddp__call_end(t, p);
        ddp__stream_close(t->cfg.tls, p->newcomer_fd);
        while (p->state == DDP__LINK_LIVE && !p->why && !t->cfg.once) { /* sends the last bytes and BYE */
            ddp__way_flush(t, p);
            if (p->next == p->ring.end && p->pre_sent == p->pre_len && !p->record_left) {
                if (said) break;
                said = 1;
                ddp__way_record(p, DDP__RECORD_BYE, 0);
            } else if (p->state == DDP__LINK_LIVE &&
                       !ddp__fd_wait(p->fd, ddp__stream_events(t->cfg.tls, p->fd, POLLOUT), until)) {
                break;
            }
        }
        if (p->state == DDP__LINK_DIALLING)
            close(p->fd);
        else
            ddp__stream_close(t->cfg.tls, p->fd);
    }
    ddp__relay_close(t->cfg.relay);
    ddp__resume_free(t);
}

/* Breaks the connection. The link reconnects. */
static void ddp__resume_cut(ddp__wire *w, int peer)
{
    ddp__way *p = &((ddp__resume_wire *)(void *)w)->way[peer];

    if (p->state == DDP__LINK_LIVE) shutdown(p->fd, SHUT_RDWR);
}

static void ddp__resume_disown(ddp__wire *w)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;

    for (int i = 0; i < w->world; i++) {
        ddp__fd_close(&t->way[i].fd);
        ddp__fd_close(&t->way[i].newcomer_fd);
        ddp__fd_close(&t->way[i].call_fd);
    }
    ddp__acceptor_disown(&t->acceptor);
    for (int i = 0; i < ddp__count(t->pairs.pair); i++)
        for (int k = 0; k < 2; k++) ddp__fd_close(&t->pairs.pair[i].fd[k]);
    ddp__relay_disown(t->cfg.relay);
    ddp__waker_close(&t->bell);
}

static void ddp__resume_stopped(ddp__wire *w, double seconds, double now)
{
    for (int i = 0; i < w->world; i++) {
        ddp__way *p = &((ddp__resume_wire *)(void *)w)->way[i];
        ddp__extend(&p->down_at, seconds, now);
        ddp__extend(&p->heard, seconds, now);
        ddp__extend(&p->unheard_since, seconds, now);
        ddp__extend(&p->refused_since, seconds, now);
        ddp__extend(&p->call_since, seconds, now);
    }
}

static const ddp__wire_table ddp__tcp_table = {ddp__resume_send,   ddp__resume_recv,  ddp__resume_wait,
                                               ddp__resume_wake,   ddp__resume_close, ddp__resume_cut,
                                               ddp__resume_stopped};

/* Resets a link to an unused state with an empty ring. */
static void ddp__way_reset(ddp__resume_wire *t, int peer, const ddp__addr *where)
{
    ddp__way *p = &t->way[peer];
    size_t room = t->cfg.replay_bytes;

    memset(p, 0, sizeof *p);
    p->peer = peer;
    p->named = -1;
    p->fd = p->newcomer_fd = p->newcomer_via = p->call_fd = -1;
    p->state = peer == t->base.rank ? DDP__LINK_NONE : DDP__LINK_ENDED;
    p->why = ECONNRESET;
    p->ack_due = -1;
    p->ring.data = t->rings + (size_t)(peer - (peer > t->base.rank)) * room;
    p->ring.room = room;
    if (where) p->where = *where;
}

/* Makes a connected socket the stream to a peer, starting at its first byte. */
static ddp_status ddp__way_open(ddp__resume_wire *t, ddp__way *p, int fd, ddp_error *err)
{
    char why[DDP__STREAM_TEXT];
    ddp__addr a;
    int id;

    if (ddp__addr_peer(fd, &a) < 0)
        return ddp__fail(err, DDP_NET, "the connection to rank %d broke: %s", p->peer, strerror(errno));
    DDP__TRY(ddp__tcp_tune(fd, t->cfg.peer_timeout_s, t->cfg.congestion, err));
    (void)ddp__stream_may_join(t->cfg.tls, fd, &id, p->guest, why);
    p->fd = fd;
    p->why = 0;
    p->state = DDP__LINK_LIVE;
    ddp__way_name(t, p);
#if defined(__linux__) && defined(TCP_INFO)
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) p->round_trip = 1e-6 * info.tcpi_rtt;
#endif
    if (!ddp__addr_is_loopback(&a)) t->base.round_trip = fmax(t->base.round_trip, fmax(p->round_trip, 1e-6));
    p->heard = p->unheard_since = ddp_now();
    if (!t->cfg.once) ddp__way_record(p, DDP__RECORD_HI, t->number);
    return DDP_OK;
}

void ddp__wire_tcp_attach(ddp__wire *w, int id)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;
    ddp__way *p = &t->way[id];
    ddp__addr where = p->newcomer_where;
    ddp_error err;
    int fd = p->newcomer_fd, via = p->newcomer_via;

    ddp__call_end(t, p);
    ddp__way_end(t, p, ECONNRESET);
    ddp__way_reset(t, id, &where);
    if (fd < 0) return;
    p->relayed = p->seeks = via >= 0; /* the joining worker has tried this rank's address */
    if (p->relayed) p->via = via;
    if (ddp__way_open(t, p, fd, &err)) {
        ddp__log(&t->cfg.log, DDP_LOG_WARN, "rank %d: %s", w->rank, err.msg);
        ddp__stream_close(t->cfg.tls, fd);
        return;
    }
    ddp__way_flush(t, p);
}

static ddp_status ddp__resume_fill(ddp__resume_wire *t, ddp_error *err)
{
    ddp__tcp_config *c = &t->cfg;
    size_t world = (size_t)c->world, room = DDP__REPLAY_ALL / (world > 1 ? world - 1 : 1); /* size of a ring
                                                                                            * */
    double beat = c->peer_timeout_s > 0 && c->peer_timeout_s < 5 ? c->peer_timeout_s / 5 : 1;

    if (room > DDP__REPLAY_BYTES) room = DDP__REPLAY_BYTES;
    if (room < DDP__REPLAY_LEAST) room = DDP__REPLAY_LEAST;
    if (c->replay_bytes) room = c->replay_bytes;
    if (c->once) room = 0;
    c->replay_bytes = room;
    t->quiet_s = 1.5 * beat;
    t->ack_bytes = room / 8;
    t->number = (uint32_t)ddp__fresh_number();
    t->way = (ddp__way *)ddp__calloc(world, sizeof *t->way);
    if (!ddp__wire_init(&t->base, &ddp__tcp_table, c->rank, c->world) ||
        !ddp__acceptor_open(&t->acceptor, c, ddp__decide_caller, t))
        return ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", c->rank);
    t->base.disown = ddp__resume_disown;
    t->acceptor.knows = ddp__knows;
    t->polls = (struct pollfd *)ddp__calloc(world + 2 + (size_t)t->acceptor.room, sizeof *t->polls);
    t->base.relays = (int *)ddp__calloc(world, sizeof *t->base.relays);
    t->rings = (unsigned char *)DDP_REALLOC(NULL, (world - 1) * room + 1); /* the memory is not touched yet */
    if (!t->way || !t->polls || !t->base.relays || !t->rings)
        return ddp__fail(err, DDP_MEMORY,
                         "out of memory for the wire of rank %d, which stores %lu bytes to send again",
                         c->rank, (unsigned long)((world - 1) * room));
    snprintf(t->congestion, sizeof t->congestion, "%s", c->congestion ? c->congestion : "");
    c->congestion = t->congestion;
    t->pairs.c = c;
    DDP__TRY(ddp__waker_open(&t->bell, err));
    ddp__poll_set(&t->polls[world], t->bell.fd[0], POLLIN);
    for (int i = 0; i < c->world; i++) {
        ddp__way_reset(t, i, c->where ? &c->where[i] : NULL);
        t->way[i].relayed = c->relayed && c->relayed[i];
        t->way[i].via = c->relay_rank;
        t->way[i].seeks =
            t->way[i].relayed && c->self.kind != DDP__JOIN_MESH && i > c->rank; /* the higher rank has tried
                                                                                 * it */
        snprintf(t->base.names[i], DDP__WIRE_NAME, "nobody");
        if (i != c->rank && c->fds[i] >= 0) DDP__TRY(ddp__way_open(t, &t->way[i], c->fds[i], err));
    }
    return DDP_OK;
}

ddp_status ddp__wire_tcp(const ddp__tcp_config *cfg, ddp__wire **out, ddp_error *err)
{
    ddp__resume_wire *t = (ddp__resume_wire *)ddp__calloc(1, sizeof *t);
    ddp_status bad;

    if (!t) return ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", cfg->rank);
    t->cfg = *cfg;
    t->cfg.self.begun = 1;
    t->acceptor.listen_fd = cfg->listen_fd;
    bad = ddp__resume_fill(t, err);
    if (bad) t->acceptor.listen_fd = -1; /* the caller still owns it */
    if (bad)
        ddp__resume_free(t);
    else
        *out = &t->base;
    return bad;
}
