/* A pair that rank 0 relays comes back: both ends ask rank 0 anew, which joins the two connections,
 * ends the old pair, so that the other end hears of it, and passes on what the two say to each
 * other: with TLS their own handshake, then a RESUME hello each way. */
#include "base/core.h"
#include "base/tools.h"
#include "wire/reconnect_state.h"
#include "wire/tcp.h"

static const double ddp__rejoin_limit = 3; /* seconds that the other end may take */

/* ---- rank 0 ---- */

/* That pair's entry, a new one if there is none; NULL when memory is short. */
static ddp__rejoin *ddp__rejoin_of(ddp__resume_wire *t, int low, int high)
{
    ddp__rejoin *j;
    int i;

    for (i = 0; i < t->rejoins; i++)
        if (t->rejoin[i].low == low && t->rejoin[i].high == high) return &t->rejoin[i];
    if (t->rejoins == t->rejoin_room) {
        int room = t->rejoin_room ? 2 * t->rejoin_room : 8;
        j = (ddp__rejoin *)DDP_REALLOC(t->rejoin, (size_t)room * sizeof *j);
        if (!j) return NULL;
        t->rejoin = j;
        t->rejoin_room = room;
    }
    j = &t->rejoin[t->rejoins++];
    j->low = low;
    j->high = high;
    j->fd[0] = j->fd[1] = -1;
    return j;
}

void ddp__rejoin_close(ddp__resume_wire *t)
{
    for (int i = 0; i < t->rejoins; i++)
        for (int k = 0; k < 2; k++) ddp__stream_close(t->cfg.tls, t->rejoin[i].fd[k]);
    if (t->rejoin) DDP_FREE(t->rejoin);
    t->rejoins = 0;
}

static int ddp__rejoin_tell(ddp__resume_wire *t, int fd, int about)
{
    unsigned char b[DDP__HELLO_BYTES];

    ddp__hello_pack(&t->self, DDP__RELAY, DDP__WELCOME, about, b);
    return ddp__stream_send_all(t->cfg.tls, fd, b, sizeof b, ddp_now()); /* its buffer is empty */
}

/* Both have come. */
static void ddp__rejoin_fulfil(ddp__resume_wire *t, ddp__rejoin *j)
{
    ddp__rejoin v = *j;
    ddp_error err;
    int bad;

    *j = t->rejoin[--t->rejoins];
    bad = ddp__tcp_tune(v.fd[0], t->cfg.peer_timeout_s, t->cfg.congestion, &err) ||
          ddp__tcp_tune(v.fd[1], t->cfg.peer_timeout_s, t->cfg.congestion, &err) ||
          ddp__rejoin_tell(t, v.fd[0], v.high) < 0 || ddp__rejoin_tell(t, v.fd[1], v.low) < 0;
    if (bad) { /* its end sees that, and asks once more */
        ddp__stream_close(t->cfg.tls, v.fd[0]);
        ddp__stream_close(t->cfg.tls, v.fd[1]);
        return;
    }
    ddp__stream_leave(t->cfg.tls, v.fd[0]); /* what follows is between those two */
    ddp__stream_leave(t->cfg.tls, v.fd[1]);
    if (ddp__relay_add_named(t->cfg.relay, v.fd[0], v.fd[1], ddp__relay_name(v.low, v.high), &err))
        ddp__log(&t->cfg.log, DDP_LOG_WARN, "rank 0: ranks %d and %d: %s", v.low, v.high, err.msg);
    else
        ddp__log(&t->cfg.log, DDP_LOG_INFO, "rank 0 relays between ranks %d and %d again", v.low,
                 v.high);
}

int ddp__knock_relay(ddp__resume_wire *t, int fd, const ddp__hello *h, const ddp__addr *from)
{
    ddp__refusal why = ddp__hello_check(&t->self, h);
    int me = (int)h->rank, other = (int)h->detail, high = me > other;
    char who[DDP__STREAM_TEXT];
    ddp__rejoin *j;

    if (!why && (t->base.rank != 0 || !t->cfg.relay || other < 1 || other >= t->base.world ||
                 other == me))
        why = DDP__REFUSE_RANK;
    if (!why && !ddp__stream_may_be(t->cfg.tls, fd, me, who)) why = DDP__REFUSE_NAME;
    if (why) {
        ddp__door_refuse(&t->door, fd, from, &t->self, why, h);
        return 0;
    }
    j = ddp__rejoin_of(t, high ? other : me, high ? me : other);
    if (!j) return 0;
    ddp__relay_cut(t->cfg.relay, ddp__relay_name(j->low, j->high));
    ddp__stream_close(t->cfg.tls, j->fd[high]); /* an earlier attempt of the same rank */
    j->fd[high] = fd;
    if (j->fd[1 - high] >= 0) ddp__rejoin_fulfil(t, j);
    return 1;
}

/* ---- the two ---- */

void ddp__relay_ask(ddp__resume_wire *t, ddp__way *p, double now)
{
    unsigned char b[DDP__HELLO_BYTES];

    ddp__hello_pack(&t->self, DDP__RELAY, DDP__WELCOME, p->peer, b);
    if (ddp__stream_send_all(t->cfg.tls, p->fd, b, sizeof b, now) < 0) {
        ddp__dial_failed(t, p, errno, now);
        return;
    }
    p->state = DDP__LINK_ASKING;
    p->dial_until = now + (4 * p->round_trip > ddp__rejoin_limit ? 4 * p->round_trip
                                                                 : ddp__rejoin_limit);
    p->answer_got = 0;
}

/* What this end has goes to the other one, who says the same at once. */
static void ddp__relay_say(ddp__resume_wire *t, ddp__way *p, double now)
{
    unsigned char b[DDP__HELLO_BYTES];

    ddp__resume_pack(t, p, b);
    if (ddp__stream_send_all(t->cfg.tls, p->fd, b, sizeof b, now) < 0) {
        ddp__dial_failed(t, p, errno, now);
        return;
    }
    p->state = DDP__LINK_MEETING;
    p->answer_got = 0;
}

static void ddp__relay_shake(ddp__resume_wire *t, ddp__way *p, double now)
{
    char who[DDP__STREAM_TEXT];
    int done = ddp__stream_shake(t->cfg.tls, p->fd);

    if (done == 0 && now < p->dial_until) return;
    if (done > 0 && ddp__way_is(t, p, p->fd, who)) ddp__relay_say(t, p, now);
    else ddp__dial_failed(t, p, done < 0 ? errno : done ? EPROTO : ETIMEDOUT, now);
}

/* Rank 0 has joined the two. */
static void ddp__relay_joined(ddp__resume_wire *t, ddp__way *p, const ddp__hello *h, double now)
{
    if (h->kind != DDP__RELAY || h->rank != 0 || h->detail != (uint32_t)p->peer) {
        ddp__way_end(t, p, EPROTO);
    } else if (!t->cfg.tls) {
        ddp__relay_say(t, p, now);
    } else if (ddp__stream_turn(t->cfg.tls, p->fd, t->base.rank < p->peer) < 0) {
        ddp__dial_failed(t, p, ENOMEM, now);
    } else {
        p->state = DDP__LINK_PAIRING;
        ddp__relay_shake(t, p, now); /* its first bytes may be here already */
    }
}

static void ddp__relay_met(ddp__resume_wire *t, ddp__way *p, const ddp__hello *h)
{
    ddp__resume_hello r;
    int fd = p->fd;

    ddp__resume_parse(p->answer, &r);
    if (h->kind != DDP__RESUME || h->rank != (uint32_t)p->peer || !ddp__resume_fits(t, p, &r)) {
        ddp__way_end(t, p, ECONNRESET); /* it was started anew */
        return;
    }
    p->fd = -1;
    ddp__way_return(t, p, fd, &r);
}

void ddp__relay_look(ddp__resume_wire *t, ddp__way *p, double now)
{
    ddp__link_state state;
    ddp__hello h;
    long n;

    if (p->state == DDP__LINK_PAIRING) ddp__relay_shake(t, p, now);
    state = p->state;
    if (p->state != DDP__LINK_ASKING && p->state != DDP__LINK_MEETING) return;
    n = ddp__stream_recv(t->cfg.tls, p->fd, p->answer + p->answer_got,
                         sizeof p->answer - p->answer_got);
    if (n == 0 && now < p->dial_until) return;
    if (n <= 0) {
        ddp__dial_failed(t, p, n ? errno : ETIMEDOUT, now);
        return;
    }
    p->answer_got += (size_t)n;
    if (p->answer_got < sizeof p->answer) return;
    if (!ddp__hello_parse(p->answer, &h) || ddp__hello_check(&t->self, &h))
        ddp__way_end(t, p, EPROTO);
    else if (p->state == DDP__LINK_ASKING) ddp__relay_joined(t, p, &h, now);
    else ddp__relay_met(t, p, &h);
    /* what came with the end of a handshake is not announced again */
    if (state == DDP__LINK_ASKING && p->state == DDP__LINK_MEETING) ddp__relay_look(t, p, now);
}
