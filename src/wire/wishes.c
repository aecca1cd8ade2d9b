#include "base/core.h"
#include "base/tools.h"
#include "wire/meeting.h"
#include "wire/tcp.h"

static int ddp__order(ddp__meeting *m, int fd, int about)
{
    unsigned char b[DDP__HELLO_BYTES];

    ddp__hello_pack(&m->self, DDP__RELAY, DDP__WELCOME, about, b);
    return ddp__stream_send_all(m->r->tls, fd, b, sizeof b, ddp_now() + 1);
}

/* The wish of that pair, a new one if there is none. At most one per pair of the world: what
 * arrives cannot ask for more memory than that. NULL when memory is short. */
static ddp__wish *ddp__wish_of(ddp__meeting *m, int low, int high)
{
    ddp__wish *w;
    int i;

    for (i = 0; i < m->wishes; i++)
        if (m->wish[i].low == low && m->wish[i].high == high) return &m->wish[i];
    if (m->wishes == m->wish_room) {
        int room = m->wish_room ? 2 * m->wish_room : 8;
        w = (ddp__wish *)DDP_REALLOC(m->wish, (size_t)room * sizeof *w);
        if (!w) return NULL;
        m->wish = w;
        m->wish_room = room;
    }
    w = &m->wish[m->wishes++];
    w->low = low;
    w->high = high;
    w->fd[0] = w->fd[1] = -1;
    return w;
}

/* Both ends are here: tells them, and joins their connections. */
static ddp_status ddp__wish_fulfil(ddp__meeting *m, ddp__wish *w, ddp_error *err)
{
    ddp__wish v = *w;
    ddp_status bad = DDP_OK;

    *w = m->wish[--m->wishes];
    if (!m->relay) bad = ddp__relay_open(&m->relay, err);
    if (!bad) bad = ddp__tcp_tune(v.fd[0], m->r->peer_timeout_s, m->r->congestion, err);
    if (!bad) bad = ddp__tcp_tune(v.fd[1], m->r->peer_timeout_s, m->r->congestion, err);
    if (bad || ddp__order(m, v.fd[0], v.high) < 0 || ddp__order(m, v.fd[1], v.low) < 0) {
        ddp__stream_close(m->r->tls, v.fd[0]); /* its end sees that, and asks once more */
        ddp__stream_close(m->r->tls, v.fd[1]);
        return bad;
    }
    ddp__stream_leave(m->r->tls, v.fd[0]); /* what follows is between those two */
    ddp__stream_leave(m->r->tls, v.fd[1]);
    ddp__log(&m->r->log, DDP_LOG_WARN,
             "ranks %d and %d cannot connect directly: rank 0 relays between them", v.low, v.high);
    return ddp__relay_add_named(m->relay, v.fd[0], v.fd[1], ddp__relay_name(v.low, v.high), err);
}

ddp_status ddp__wish_take(ddp__meeting *m, const ddp__hello *h, int fd, ddp_error *err)
{
    int me = (int)h->rank, other = (int)h->detail, high = me > other;
    ddp__wish *w = ddp__wish_of(m, high ? other : me, high ? me : other);

    if (!w) {
        ddp__stream_close(m->r->tls, fd);
        return ddp__fail(err, DDP_MEMORY, "out of memory for the relay of ranks %d and %d", me,
                         other);
    }
    ddp__stream_close(m->r->tls, w->fd[high]); /* an earlier attempt of the same rank */
    w->fd[high] = fd;
    if (w->fd[1 - high] >= 0) return ddp__wish_fulfil(m, w, err);
    /* one that is gone is found when it is not ready */
    ddp__order(m, m->fd[other], me);
    m->sent[other] += DDP__HELLO_BYTES;
    return DDP_OK;
}

ddp_status ddp__mesh_root(ddp__meeting *m, ddp_error *err)
{
    char name[32];
    int p;

    m->meshing = 1;
    m->until = ddp_now() + DDP__MESH_LIMIT;
    for (;;) {
        double now = ddp_now();
        for (p = 1; p < m->r->world && m->ready[p]; p++) {}
        if (p == m->r->world && !m->wishes) break;
        if (p < m->r->world) snprintf(name, sizeof name, "rank %d", p);
        else snprintf(name, sizeof name, "a relayed pair");
        if (now >= m->until) {
            m->lost = p < m->r->world ? p : m->wish[0].low;
            return ddp__fail(err, DDP_TIMEOUT,
                             "after %.3g s %s has not been connected with all others",
                             m->until - m->begin, name);
        }
        if (now >= m->next_note) {
            ddp__log(&m->r->log, DDP_LOG_WARN,
                     "rank 0 has waited %.0f s: %s is not yet connected with all others",
                     now - m->begin, name);
            ddp__noted(m);
        }
        DDP__TRY(ddp__meeting_poll(m, m->until, err));
    }
    ddp__door_empty(&m->door);
    return DDP_OK;
}
