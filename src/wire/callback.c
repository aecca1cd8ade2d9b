/* A joining worker that cannot reach a member (a firewall, NAT) waits for it at a relay. The member connects
 * to the relay and treats the relayed connection as one that its own admission has accepted. A member whose
 * relay was lost waits at another one in the same way: then the link that broke takes its new route. */
#include "wire/replay.h"

static const double ddp__call_limit = 10; /* seconds until the relayed connection is ready */

void ddp__call_end(ddp__resume_wire *t, ddp__way *p)
{
    if (p->call_state == DDP__LINK_NONE) return;
    if (p->call_state != DDP__LINK_DIALLING) ddp__stream_leave(t->cfg.tls, p->call_fd);
    ddp__fd_close(&p->call_fd);
    p->call_state = DDP__LINK_NONE;
    t->away--;
}

/* The peer of a broken, relayed link waits at a relay. */
static void ddp__call_member(ddp__resume_wire *t, ddp__way *p, int via)
{
    const int there = p->relayed && !p->direct && p->via == via;

    if (p->state == DDP__LINK_LIVE || p->state == DDP__LINK_NONE || !(p->relayed || p->dialler))
        return; /* an earlier call */
    if (there && p->state != DDP__LINK_DOWN) return;
    ddp__way_close(t, p);
    p->state = DDP__LINK_DOWN;
    p->relayed = 1;
    p->direct = p->dialler = 0;
    p->via = via;
    p->refused_since = -1;
    p->dial_at = ddp_now();
    t->ticked = 0;
}

int ddp__call_begin(ddp__resume_wire *t, int via, uint32_t id)
{
    ddp__way *p;

    if (id >= (uint32_t)t->base.world || (int)id == t->base.rank || (int)id == via) return EPROTO;
    p = &t->way[id];
    if (!t->visit || !t->way[via].where.size) return 0;
    if (p->state != DDP__LINK_ENDED) {
        ddp__call_member(t, p, via);
        return 0;
    }
    ddp__call_end(t, p); /* the worker has retried */
    p->call_fd = ddp__tcp_dial_begin(&t->way[via].where);
    if (p->call_fd < 0) return 0;
    p->call_state = DDP__LINK_DIALLING;
    p->call_via = via;
    p->call_since = ddp_now();
    p->answer_got = 0;
    t->away++;
    t->ticked = 0;
    return 0;
}

/* The TLS handshake with the relay. Then sends the relay the id of the worker. Returns 0 or an errno. */
static int ddp__call_shake(ddp__resume_wire *t, ddp__way *p)
{
    const int done = ddp__stream_shake(t->cfg.tls, p->call_fd);
    char why[DDP__STREAM_TEXT];

    if (done <= 0) return done ? errno : 0;
    if (!ddp__way_is(t, &t->way[p->call_via], p->call_fd, why)) return EPROTO;
    if (ddp__hello_send(t->cfg.tls, p->call_fd, &t->cfg.self, DDP__RELAY, DDP__WELCOME, p->peer) < 0)
        return errno;
    p->call_state = DDP__LINK_ASKING;
    return 0;
}

/* Reads the relay's answer. After it, the worker is at the other end. Returns 0 or an errno. */
static int ddp__call_answer(ddp__resume_wire *t, ddp__way *p)
{
    const long n =
        ddp__stream_recv(t->cfg.tls, p->call_fd, p->answer + p->answer_got, sizeof p->answer - p->answer_got);
    const int fd = p->call_fd;
    ddp__hello h;

    if (n < 0) return errno;
    p->answer_got += (size_t)n;
    if (p->answer_got < sizeof p->answer) return 0;
    if (!ddp__hello_parse(p->answer, &h) || ddp__hello_check(&t->cfg.self, &h) || h.kind != DDP__RELAY ||
        h.rank != (uint32_t)p->call_via || h.detail != (uint32_t)p->peer)
        return EPROTO;
    p->call_fd = -1;
    p->call_state = DDP__LINK_NONE;
    t->away--;
    ddp__acceptor_adopt(&t->acceptor, fd, p->call_via);
    return 0;
}

double ddp__call_tick(ddp__resume_wire *t, ddp__way *p, double now)
{
    ddp__link_state was;
    int why = 0;

    do {
        was = p->call_state;
        if (was == DDP__LINK_DIALLING && ddp__fd_wait(p->call_fd, POLLOUT, now)) {
            if (ddp__tcp_dial_end(p->call_fd) < 0)
                why = errno;
            else if (ddp__stream_begin(t->cfg.tls, p->call_fd, 0) < 0)
                why = ENOMEM;
            else
                p->call_state = DDP__LINK_SHAKING;
        } else if (was == DDP__LINK_SHAKING) {
            why = ddp__call_shake(t, p);
        } else if (was == DDP__LINK_ASKING) {
            why = ddp__call_answer(t, p);
        }
    } while (!why && p->call_state != was && p->call_state != DDP__LINK_NONE);
    if (p->call_state == DDP__LINK_NONE) return now;
    if (!why && now >= p->call_since + ddp__call_limit) why = ETIMEDOUT;
    if (!why) return p->call_since + ddp__call_limit;
    ddp__log(&t->cfg.log, DDP_LOG_WARN,
             "rank %d: cannot connect to the joining worker %d through rank %d: %s", t->base.rank, p->peer,
             p->call_via, strerror(why));
    ddp__call_end(t, p); /* the worker retries */
    return now + 3600;
}

int ddp__call_events(const ddp__resume_wire *t, const ddp__way *p)
{
    return p->call_state == DDP__LINK_DIALLING ? POLLOUT : ddp__stream_events(t->cfg.tls, p->call_fd, POLLIN);
}
