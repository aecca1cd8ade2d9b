/* Connects all pairs without rank 0 during the rendezvous: which rank dials, and which pairs are relayed. */
#include "wire/mesh.h"

#define DDP__AGAIN 0.1 /* seconds until a failed connection is retried */

static void ddp__leg_drop(ddp__meeting *m, ddp__leg *l)
{
    ddp__stream_close(m->c.tls, l->fd);
    l->fd = -1;
    l->got = 0;
    l->joined = 0;
    l->state = DDP__LEG_NONE;
}

static ddp_status ddp__leg_failed(ddp__meeting *m, int peer, int why, ddp_error *err);

static ddp_status ddp__leg_dial(ddp__meeting *m, int peer, ddp_error *err)
{
    ddp__leg *l = &m->leg[peer];

    ddp__leg_drop(m, l);
    l->state = DDP__LEG_CONNECT;
    l->until = l->limit;
    l->fd = ddp__tcp_dial_begin(&m->where[m->relayed[peer] ? 0 : peer]);
    return l->fd < 0 ? ddp__leg_failed(m, peer, errno, err) : DDP_OK;
}

ddp_status ddp__leg_relay(ddp__meeting *m, int peer, ddp_error *err)
{
    if (m->relayed[peer] && m->leg[peer].state != DDP__LEG_NONE) return DDP_OK;
    ddp__stream_close(m->c.tls, m->fd[peer]); /* the other end has abandoned that connection */
    m->fd[peer] = -1;
    m->relayed[peer] = 1;
    m->leg[peer].limit = m->until;
    return ddp__leg_dial(m, peer, err);
}

/* The direct attempts have failed: the pair uses rank 0 as relay. */
static ddp_status ddp__leg_turn(ddp__meeting *m, int peer, const char *why, ddp_error *err)
{
    ddp__leg *l = &m->leg[peer];
    char text[DDP__ADDR_TEXT];

    snprintf(l->why, sizeof l->why, "%s", why);
    ddp__log(&m->c.log, DDP_LOG_WARN,
             "rank %d cannot connect to rank %d at %s (%s): rank 0 relays between them, which is slower than "
             "a direct connection",
             m->c.rank, peer, ddp__addr_text(&m->where[peer], text), l->why);
    return ddp__leg_relay(m, peer, err);
}

static ddp_status ddp__leg_failed(ddp__meeting *m, int peer, int why, ddp_error *err)
{
    ddp__leg *l = &m->leg[peer];
    double now = ddp_now();
    /* full capacity, or a listener that is closing: retry */
    int again = why == ECONNRESET || why == EPIPE || why == ECONNABORTED;

    ddp__leg_drop(m, l);
    if (why == EMFILE || why == ENFILE)
        return ddp__fail(err, DDP_NET, "rank %d cannot open a connection to rank %d: %s; raise ulimit -n",
                         m->c.rank, peer, strerror(why));
    if (again && now + DDP__AGAIN < l->limit) {
        l->state = DDP__LEG_PAUSE;
        l->until = now + DDP__AGAIN;
        return DDP_OK;
    }
    if (!m->relayed[peer]) return ddp__leg_turn(m, peer, strerror(why), err);
    return ddp__fail(err, why == ETIMEDOUT ? DDP_TIMEOUT : DDP_NET,
                     "rank %d can connect to rank %d neither directly (%s) nor through %s: %s", m->c.rank,
                     peer, l->why[0] ? l->why : "not tried", m->root, strerror(why));
}

static ddp_status ddp__leg_done(ddp__meeting *m, int peer)
{
    ddp__leg *l = &m->leg[peer];

    m->fd[peer] = l->fd;
    l->fd = -1;
    ddp__leg_drop(m, l);
    return DDP_OK;
}

/* A step of the TLS handshake. With a dialled rank, sends our frame when it is complete. With the other end
 * of a relayed pair, the connection is then ready. */
static ddp_status ddp__leg_shake(ddp__meeting *m, int peer, ddp_error *err)
{
    ddp__leg *l = &m->leg[peer];
    int with = m->relayed[peer] && !l->joined ? 0 : peer, done = ddp__stream_shake(m->c.tls, l->fd),
        broken = errno;
    char text[DDP__STREAM_TEXT];
    const char *why = done < 0 ? ddp__stream_why(m->c.tls, l->fd) : NULL;

    if (!done) return DDP_OK;
    if (done < 0 && !why) return ddp__leg_failed(m, peer, broken, err);
    if (why) snprintf(text, sizeof text, "%s", why);
    if (why || !ddp__stream_may_be(m->c.tls, l->fd, with, text)) {
        if (!m->relayed[peer]) return ddp__leg_turn(m, peer, text, err);
        return ddp__fail(err, DDP_MISMATCH, "rank %d %s", with, text);
    }
    if (l->joined) return ddp__leg_done(m, peer);
    if (ddp__hello_send(m->c.tls, l->fd, &m->c.self, m->relayed[peer] ? DDP__RELAY : DDP__HELLO, DDP__WELCOME,
                        m->relayed[peer] ? peer : 0) < 0)
        return ddp__leg_failed(m, peer, errno, err);
    l->state = DDP__LEG_ANSWER;
    return DDP_OK;
}

/* Handles the answer of the other end: the pair is connected, or another program answered. */
static ddp_status ddp__leg_answered(ddp__meeting *m, int peer, ddp_error *err)
{
    ddp__leg *l = &m->leg[peer];
    ddp__hello h;
    int ok = ddp__hello_parse(l->bytes, &h) && !ddp__hello_check(&m->c.self, &h);

    if (m->relayed[peer])
        ok = ok && h.kind == DDP__RELAY && h.rank == 0 && h.detail == (uint32_t)peer;
    else
        ok = ok && h.kind == DDP__HELLO && h.rank == (uint32_t)peer;
    if (ok && m->relayed[peer] && m->c.tls) {
        if (ddp__stream_begin(m->c.tls, l->fd, m->c.rank < peer) < 0)
            return ddp__leg_failed(m, peer, ENOMEM, err);
        l->state = DDP__LEG_GREET;
        l->joined = 1;
        return ddp__leg_shake(m, peer, err); /* its first bytes may already be read */
    }
    if (ok) return ddp__leg_done(m, peer);
    ddp__leg_drop(m, l);
    if (!m->relayed[peer]) return ddp__leg_turn(m, peer, "another program answers there", err);
    return ddp__fail(err, DDP_MISMATCH, "%s does not relay between ranks %d and %d", m->root, m->c.rank,
                     peer);
}

ddp_status ddp__leg_serve(ddp__meeting *m, int peer, int revents, ddp_error *err)
{
    ddp__leg *l = &m->leg[peer];
    long n;

    if (l->state == DDP__LEG_PAUSE) return ddp__leg_dial(m, peer, err);
    if (!revents) return ddp__leg_failed(m, peer, ETIMEDOUT, err);
    if (l->state == DDP__LEG_CONNECT) {
        if (ddp__tcp_dial_end(l->fd) < 0) return ddp__leg_failed(m, peer, errno, err);
        if (ddp__stream_begin(m->c.tls, l->fd, 0) < 0) return ddp__leg_failed(m, peer, ENOMEM, err);
        l->state = DDP__LEG_GREET;
    }
    if (l->state != DDP__LEG_ANSWER) return ddp__leg_shake(m, peer, err);
    n = ddp__stream_recv(m->c.tls, l->fd, l->bytes + l->got, sizeof l->bytes - l->got);
    if (n < 0) return ddp__leg_failed(m, peer, errno, err);
    l->got += (size_t)n;
    return l->got == sizeof l->bytes ? ddp__leg_answered(m, peer, err) : DDP_OK;
}

int ddp__table_where(const ddp__meeting *m, int rank, ddp__addr *a)
{
    const unsigned char *e = m->table + (size_t)rank * DDP__ENTRY_BYTES;
    ddp__addr own;

    if (!ddp__ip_parse((uint32_t)ddp__hello_get(e, 2), e + 8, a)) return 0;
    ddp__addr_set_port(a, (int)ddp__hello_get(e + 2, 2));
    if (a->sa.ss_family == AF_INET6 && ddp__addr_own(m->fd[0], &own) == 0 && own.sa.ss_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr))
        a->in6.sin6_scope_id = own.in6.sin6_scope_id; /* a link-local address needs the interface */
    return 1;
}

ddp_status ddp__mesh_begin(ddp__meeting *m, ddp_error *err)
{
    (void)ddp__addr_peer(m->fd[0], &m->where[0]); /* if that rank has failed, it never answers */
    for (int p = 1; p < m->c.rank; p++) {
        if (!ddp__table_where(m, p, &m->where[p]))
            return ddp__fail(err, DDP_NET, "%s sent no usable address of rank %d", m->root, p);
        m->leg[p].limit = ddp_now() + DDP__DIRECT_LIMIT;
        DDP__TRY(m->r->relay_all ? ddp__leg_turn(m, p, "a relay was requested", err)
                                 : ddp__leg_dial(m, p, err));
    }
    return DDP_OK;
}
