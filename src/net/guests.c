/* Strangers at the door of a meeting: who is let in, for how long, how many at a time. */
#include "base/platform.h"
#include "base/clock.h"
#include "net/meeting.h"

/* For the log, and for the final sentence if the meeting fails. */
static void ddp__guest_refuse(ddp__meeting *m, const ddp__guest *g, const char *why)
{
    char name[DDP__ADDR_TEXT];

    snprintf(m->refused, sizeof m->refused, "%s %.*s", ddp__addr_text(&g->from, name),
             (int)(sizeof m->refused - sizeof name - 2), why);
    ddp__log(&m->r->log, DDP_LOG_WARN, "refused: %s", m->refused);
}

/* A guest has said its 64 bytes: it becomes a peer, or is refused. */
static ddp_status ddp__guest_decide(ddp__meeting *m, ddp__guest *g, ddp_error *err)
{
    unsigned char b[DDP__HELLO_BYTES];
    char name[DDP__ADDR_TEXT], who[DDP__STREAM_TEXT];
    int rank = m->r->rank, fd;
    ddp__tls *tls = m->r->tls;
    ddp__hello h;
    ddp__refusal why;

    ddp__addr_text(&g->from, name);
    if (!ddp__hello_parse(g->bytes, &h)) return DDP_OK;
    why = ddp__hello_check(&m->self, &h);
    if (!why && !ddp__stream_may_be(tls, g->fd, (int)h.rank, who)) {
        ddp__guest_refuse(m, g, who);
        ddp__hello_pack(&m->self, DDP__REFUSED, DDP__REFUSE_NAME, 0, b);
        ddp__stream_send_all(tls, g->fd, b, sizeof b, ddp_now());
        return DDP_OK;
    }
    if (!why && m->meshing && rank == 0 && h.kind == DDP__RELAY && h.rank > 0 && h.detail > 0 &&
        h.detail < (uint32_t)m->r->world && h.detail != h.rank) {
        fd = g->fd;
        g->fd = -1;
        return ddp__wish_take(m, &h, fd, err);
    }
    if (!why && (h.kind != DDP__HELLO || h.rank < (uint32_t)rank)) why = DDP__REFUSE_RANK;
    if (!why && rank && m->leg[h.rank].relay) return DDP_OK; /* it has given that attempt up */
    if (!why && m->fd[h.rank] >= 0) {
        /* a rank that was started anew, or dials anew; rank 0 has told all where it was */
        if ((rank || !m->meshing) && ddp__stream_gone(tls, m->fd[h.rank])) {
            ddp__stream_close(tls, m->fd[h.rank]);
            m->fd[h.rank] = -1;
            m->sent[h.rank] = 0;
        } else {
            why = DDP__REFUSE_TWICE;
        }
    }
    ddp__hello_pack(&m->self, why ? DDP__REFUSED : DDP__HELLO, why, 0, b);
    if (why) {
        ddp__hello_dispute(&m->self, why, &h, name, m->refused, sizeof m->refused);
        ddp__log(&m->r->log, DDP_LOG_WARN, "refused: %s", m->refused);
        ddp__stream_send_all(tls, g->fd, b, sizeof b, ddp_now()); /* its buffer is empty */
        return DDP_OK;
    }
    m->fd[h.rank] = g->fd;
    m->sent[h.rank] = 0;
    if (!ddp__ip_parse(h.family, h.ip, &m->where[h.rank])) m->where[h.rank] = g->from;
    ddp__addr_set_port(&m->where[h.rank], (int)(h.port & 65535));
    g->fd = -1; /* handed over */
    if (ddp__frame_send(m, (int)h.rank, b, sizeof b) < 0) {
        ddp__stream_close(tls, m->fd[h.rank]);
        m->fd[h.rank] = -1;
    } else {
        ddp__log(&m->r->log, DDP_LOG_INFO, "rank %u is here, from %s", (unsigned)h.rank, name);
    }
    return DDP_OK;
}

/* Reads what a guest says; drops it at the first byte that is not ours. */
static ddp_status ddp__guest_listen(ddp__meeting *m, ddp__guest *g, ddp_error *err)
{
    ddp__tls *tls = m->r->tls;
    long n = ddp__stream_recv(tls, g->fd, g->bytes + g->got, sizeof g->bytes - g->got);
    const char *why = n < 0 ? ddp__stream_why(tls, g->fd) : NULL;
    ddp_status bad = DDP_OK;

    if (n == 0) return DDP_OK;
    if (n > 0) g->got += (size_t)n;
    if (n > 0 && ddp__hello_begins(g->bytes, g->got)) {
        if (g->got < sizeof g->bytes) return DDP_OK;
        bad = ddp__guest_decide(m, g, err);
    } else if (why) {
        ddp__guest_refuse(m, g, why);
    } else if (n > 0 && !tls && ddp__stream_is_tls(g->bytes, g->got)) {
        ddp__guest_refuse(m, g, "speaks TLS, this rank does not: give all ranks the same "
                                "--tls-psk, or none");
        ddp__stream_no_tls(g->fd);
    } else if (n > 0) {
        ddp__guest_refuse(m, g, "is no rank of dreamddp");
    } else {
        char name[DDP__ADDR_TEXT];
        ddp__log(&m->r->log, DDP_LOG_INFO, "%s came and went without saying who it is",
                 ddp__addr_text(&g->from, name));
    }
    if (g->fd >= 0) m->strangers++;
    ddp__stream_close(tls, g->fd);
    g->fd = -1;
    return bad;
}

static void ddp__guest_drop(ddp__meeting *m, ddp__guest *g)
{
    char name[DDP__ADDR_TEXT];

    ddp__log(&m->r->log, DDP_LOG_WARN, "dropped %s: it did not say who it is in %.3g s",
             ddp__addr_text(&g->from, name), ddp_now() - g->since);
    ddp__stream_close(m->r->tls, g->fd);
    g->fd = -1;
    m->strangers++;
}

/* NULL when there is none; *room = places that are free. */
static ddp__guest *ddp__guest_oldest(ddp__meeting *m, int *room)
{
    ddp__guest *oldest = NULL;
    int i;

    *room = 0;
    for (i = 0; i < m->guests; i++)
        if (m->guest[i].fd < 0) ++*room;
        else if (!oldest || m->guest[i].since < oldest->since) oldest = &m->guest[i];
    return oldest;
}

/* A flood of strangers may not take all of our time: beyond so many in a second the door stays shut
 * for a moment, longer each time. 1 if it is to be shut now. */
static int ddp__door_shut(ddp__meeting *m, double now)
{
    if (now >= m->counted + 1) {
        if (m->strangers <= DDP__STRANGERS / 2) m->pause = 0;
        m->counted = now;
        m->strangers = 0;
    }
    if (m->strangers < DDP__STRANGERS) return 0;
    m->pause = m->pause > 0 ? 2 * m->pause : DDP__DOOR_PAUSE;
    if (m->pause > 8 * DDP__DOOR_PAUSE) m->pause = 8 * DDP__DOOR_PAUSE;
    m->door = m->counted = now + m->pause;
    m->strangers = 0;
    return 1;
}

/* Lets in those who wait at the door; where there is no room, one who has been silent leaves. */
static ddp_status ddp__guests_accept(ddp__meeting *m, double now, ddp_error *err)
{
    int i, room;
    ddp__guest *oldest = ddp__guest_oldest(m, &room);

    if (ddp__door_shut(m, now)) return DDP_OK;
    if (!room) ddp__guest_drop(m, oldest);
    for (i = 0; i < m->guests; i++) {
        ddp__guest *g = &m->guest[i];
        if (g->fd >= 0) continue;
        g->fd = ddp__tcp_accept(m->listen_fd, &g->from);
        if (g->fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ||
                errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
                return ddp__fail(err, DDP_NET, "cannot accept a connection: %s", strerror(errno));
            break;
        }
        if (ddp__stream_begin(m->r->tls, g->fd, 1) < 0) {
            close(g->fd);
            g->fd = -1;
            return ddp__fail(err, DDP_MEMORY, "out of memory for a connection");
        }
        g->got = 0;
        g->since = now;
    }
    return DDP_OK;
}

double ddp__guests_poll(ddp__meeting *m, double now, double next)
{
    double shut = m->door;
    ddp__guest *oldest;
    int i, room;

    for (i = 0; i < m->guests; i++) {
        ddp__guest *g = &m->guest[i];
        if (g->fd >= 0 && now >= g->since + DDP__HELLO_LIMIT) ddp__guest_drop(m, g);
        m->polls[i].fd = g->fd;
        m->polls[i].events = (short)ddp__stream_events(m->r->tls, g->fd, POLLIN);
        m->polls[i].revents = 0;
    }
    oldest = ddp__guest_oldest(m, &room);
    if (oldest && oldest->since + DDP__HELLO_LIMIT < next) next = oldest->since + DDP__HELLO_LIMIT;
    if (!room && oldest->since + DDP__HELLO_GRACE > shut) shut = oldest->since + DDP__HELLO_GRACE;
    if (now < shut && shut < next) next = shut;
    m->polls[m->guests].fd = now < shut ? -1 : m->listen_fd;
    m->polls[m->guests].events = POLLIN;
    m->polls[m->guests].revents = 0;
    return next;
}

ddp_status ddp__guests_serve(ddp__meeting *m, double now, ddp_error *err)
{
    int i;

    for (i = 0; i < m->guests; i++)
        if (m->polls[i].fd >= 0 && m->polls[i].revents)
            DDP__TRY(ddp__guest_listen(m, &m->guest[i], err));
    return m->polls[m->guests].revents ? ddp__guests_accept(m, now, err) : DDP_OK;
}

void ddp__guests_leave(ddp__meeting *m)
{
    int i;

    for (i = 0; i < m->guests; i++) {
        ddp__stream_close(m->r->tls, m->guest[i].fd);
        m->guest[i].fd = -1;
    }
}
