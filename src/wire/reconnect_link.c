/* Connections of the wire that comes back: who notices that one is broken, who dials, what both
 * say, and when a link is given up.
 *
 * A RESUME hello is 64 bytes as every hello; behind the common fields it says, little endian:
 *   44  u32  number of the sender's wire      48  u64  bytes of the stream it has received
 *   56  u32  number of the receiver's wire, 0 = never heard       60  u32  attempt, counted up
 * The lower rank answers with its own. */
#include "base/platform.h"
#include "base/tools.h"
#include "wire/reconnect_state.h"
#include "wire/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

static const double ddp__dial_first = 0.02, ddp__dial_most = 0.3; /* pauses between attempts */
static const double ddp__refused_limit = 0.3; /* refused for so long: the process is gone */
static const double ddp__answer_limit = 1.0;  /* from our hello to its answer */

void ddp__resume_pack(const ddp__resume_wire *t, const ddp__way *p, unsigned char *b)
{
    ddp__hello_pack(&t->self, DDP__RESUME, DDP__WELCOME, 0, b);
    ddp__hello_put(b + 44, t->number, 4);
    ddp__hello_put(b + 48, p->received, 8);
    ddp__hello_put(b + 56, p->peer_number, 4);
    ddp__hello_put(b + 60, p->attempt, 4);
}

void ddp__resume_parse(const unsigned char *b, ddp__resume_hello *h)
{
    h->number = (uint32_t)ddp__hello_get(b + 44, 4);
    h->received = ddp__hello_get(b + 48, 8);
    h->yours = (uint32_t)ddp__hello_get(b + 56, 4);
    h->attempt = (uint32_t)ddp__hello_get(b + 60, 4);
}

int ddp__resume_fits(const ddp__resume_wire *t, const ddp__way *p, const ddp__resume_hello *h)
{
    return h->number && (!p->peer_number || h->number == p->peer_number) &&
           (!h->yours || h->yours == t->number) && h->received >= p->ring.first &&
           h->received <= p->ring.end;
}

int ddp__way_is(const ddp__resume_wire *t, const ddp__way *p, int fd, char *why)
{
    char name[DDP__STREAM_NAME];
    int id;

    if (ddp__stream_may_be(t->cfg.tls, fd, p->peer, why)) return 1;
    return p->guest[0] && ddp__stream_may_join(t->cfg.tls, fd, &id, name, why) && !strcmp(name, p->guest);
}

/* ---- breaking and ending ---- */

static void ddp__way_close(const ddp__resume_wire *t, ddp__way *p)
{
    if (p->fd >= 0 && p->state != DDP__LINK_DIALLING) ddp__stream_leave(t->cfg.tls, p->fd);
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
}

void ddp__way_break(ddp__resume_wire *t, ddp__way *p, int why)
{
    double now = ddp_now();

#if defined(__linux__) && defined(TCP_INFO)
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (getsockopt(p->fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
        p->round_trip = 1e-6 * (double)info.tcpi_rtt;
#endif
    ddp__way_close(t, p);
    p->state = DDP__LINK_DOWN;
    p->why = why;
    t->away++;
    t->stats.breaks++;
    p->down_at = now;
    p->pause = ddp__dial_first;
    /* the lower rank only asks whether the other lives, and leaves it the first word */
    p->dial_at = t->base.rank > p->peer || p->relayed ? now : now + 1.5 * ddp__dial_first;
    p->refused_since = -1;
    t->ticked = 0;
    ddp__log(&t->cfg.log, DDP_LOG_INFO, "rank %d: the link to rank %d (%s) broke: %s; it is sought",
             t->base.rank, p->peer, p->name, strerror(why));
}

void ddp__way_end(ddp__resume_wire *t, ddp__way *p, int why)
{
    ddp__way_close(t, p);
    if (p->state != DDP__LINK_LIVE && p->state != DDP__LINK_ENDED) t->away--;
    p->state = DDP__LINK_ENDED;
    p->why = why;
}

void ddp__way_return(ddp__resume_wire *t, ddp__way *p, int fd, const ddp__resume_hello *h)
{
    double now = ddp_now(), away = now - p->down_at;
    ddp_error err;

    p->fd = fd;
    p->state = DDP__LINK_LIVE;
    t->away--;
    memset(&err, 0, sizeof err);
    if (ddp__tcp_tune(fd, t->cfg.peer_timeout_s, t->cfg.congestion, &err))
        ddp__log(&t->cfg.log, DDP_LOG_WARN, "rank %d: %s", t->base.rank, err.msg);
    p->peer_number = h->number;
    (void)ddp__replay_forget(&p->ring, h->received);
    t->stats.returns++;
    t->stats.bytes_again += (int64_t)(p->next - h->received);
    if (away > t->stats.longest_s) t->stats.longest_s = away;
    ddp__log(
        &t->cfg.log, away > 1 ? DDP_LOG_WARN : DDP_LOG_INFO,
        "rank %d: the link to rank %d (%s) is back after %.2f s (%s); %lu bytes are sent again",
        t->base.rank, p->peer, p->name, away, strerror(p->why),
        (unsigned long)(p->next - h->received));
    p->next = h->received;
    p->pre_len = p->pre_sent = p->record_left = 0;
    p->stage_from = p->stage_to = p->in_left = 0;
    p->dry = 0;
    p->acked = p->received; /* our hello said so */
    p->ack_due = -1;
    p->heard = p->unheard_since = now;
    ddp__way_record(p, DDP__RECORD_HI, t->number);
    ddp__way_flush(t, p);
}

/* ---- the lower rank: it is sought ---- */

int ddp__knock(void *user, int fd, const unsigned char *bytes, const ddp__addr *from)
{
    ddp__resume_wire *t = (ddp__resume_wire *)user;
    unsigned char b[DDP__HELLO_BYTES];
    char who[DDP__STREAM_TEXT];
    ddp__resume_hello r;
    ddp__hello h;
    ddp__refusal why;
    ddp__way *p;

    if (!ddp__hello_parse(bytes, &h)) return 0;
    if (h.kind == DDP__RELAY) return ddp__knock_relay(t, fd, &h, from);
    if (h.kind == DDP__JOIN_ASK || h.kind == DDP__JOIN_MESH)
        return ddp__knock_join(t, fd, &h, from);
    why = ddp__hello_check(&t->self, &h);
    if (!why && (h.kind != DDP__RESUME || h.rank < (uint32_t)t->base.rank)) why = DDP__REFUSE_RANK;
    if (!why && !ddp__way_is(t, &t->way[h.rank], fd, who)) why = DDP__REFUSE_NAME;
    if (why) {
        ddp__door_refuse(&t->door, fd, from, &t->self, why, &h);
        return 0;
    }
    p = &t->way[h.rank];
    ddp__resume_parse(bytes, &r);
    if (p->state == DDP__LINK_ENDED || !ddp__resume_fits(t, p, &r)) {
        ddp__door_refuse(&t->door, fd, from, &t->self, DDP__REFUSE_TWICE, &h);
        return 0;
    }
    if (r.attempt <= p->attempt) return 0; /* it has given that one up itself */
    p->attempt = r.attempt;
    if (p->state == DDP__LINK_LIVE) ddp__way_break(t, p, ECONNRESET); /* it noticed first */
    ddp__way_close(t, p); /* of asking whether it lives */
    p->state = DDP__LINK_DOWN;
    ddp__resume_pack(t, p, b);
    if (ddp__stream_send_all(t->cfg.tls, fd, b, sizeof b, ddp_now()) < 0) return 0;
    ddp__way_return(t, p, fd, &r);
    return 1;
}

/* ---- dialling ---- */

void ddp__dial_failed(ddp__resume_wire *t, ddp__way *p, int why, double now)
{
    ddp__way_close(t, p);
    p->state = DDP__LINK_DOWN;
    p->dial_at = now + p->pause;
    p->pause = p->pause * 1.5 < ddp__dial_most ? p->pause * 1.5 : ddp__dial_most;
    if (why != ECONNREFUSED) {
        p->refused_since = -1;
        return;
    }
    if (p->refused_since < 0) p->refused_since = now;
    if (now >= p->refused_since + ddp__refused_limit) ddp__way_end(t, p, ECONNRESET);
    else if (p->dial_at > p->refused_since + ddp__refused_limit)
        p->dial_at = p->refused_since + ddp__refused_limit;
}

/* Where a peer is sought: a relayed one at rank 0. */
static const ddp__addr *ddp__way_where(const ddp__resume_wire *t, const ddp__way *p)
{
    return p->relayed ? &t->way[0].where : &p->where;
}

static void ddp__dial_start(ddp__resume_wire *t, ddp__way *p, double now)
{
    p->fd = ddp__tcp_dial_begin(ddp__way_where(t, p));
    if (p->fd < 0) {
        ddp__dial_failed(t, p, errno, now);
        return;
    }
    p->state = DDP__LINK_DIALLING;
    /* A lost first packet is repeated by us, not by TCP after 1, 3, 7 s; far ranks get their time.
     */
    p->dial_until = now + (2.5 * p->round_trip > ddp__dial_most ? 2.5 * p->round_trip
                                                                : ddp__dial_most);
}

static void ddp__dial_look(ddp__resume_wire *t, ddp__way *p, double now)
{
    if (!ddp__fd_wait(p->fd, POLLOUT, now)) {
        if (now >= p->dial_until) ddp__dial_failed(t, p, ETIMEDOUT, now);
        return;
    }
    if (ddp__tcp_dial_end(p->fd) < 0) {
        ddp__dial_failed(t, p, errno, now);
        return;
    }
    if (t->base.rank < p->peer && !p->relayed) { /* it lives and will come */
        p->pause = ddp__dial_most;
        ddp__dial_failed(t, p, 0, now);
        return;
    }
    if (ddp__stream_begin(t->cfg.tls, p->fd, 0) < 0) {
        ddp__dial_failed(t, p, ENOMEM, now);
        return;
    }
    p->state = DDP__LINK_SHAKING;
    p->dial_until = now + (4 * p->round_trip > ddp__answer_limit ? 4 * p->round_trip
                                                                 : ddp__answer_limit);
}

static void ddp__dial_shake(ddp__resume_wire *t, ddp__way *p, double now)
{
    unsigned char b[DDP__HELLO_BYTES];
    char who[DDP__STREAM_TEXT];
    int done = ddp__stream_shake(t->cfg.tls, p->fd);

    if (done == 0 && now < p->dial_until) return;
    if (done <= 0) {
        ddp__dial_failed(t, p, done ? errno : ETIMEDOUT, now);
        return;
    }
    if (!ddp__way_is(t, p->relayed ? &t->way[0] : p, p->fd, who)) {
        ddp__log(&t->cfg.log, DDP_LOG_WARN, "rank %d: who answers at %s %s", t->base.rank, p->name,
                 who);
        ddp__dial_failed(t, p, EPROTO, now);
        return;
    }
    if (p->relayed) {
        ddp__relay_ask(t, p, now);
        return;
    }
    p->attempt++;
    ddp__resume_pack(t, p, b);
    if (ddp__stream_send_all(t->cfg.tls, p->fd, b, sizeof b, now) < 0) {
        ddp__dial_failed(t, p, errno, now);
        return;
    }
    p->state = DDP__LINK_ASKING;
    p->answer_got = 0;
}

static void ddp__dial_hear(ddp__resume_wire *t, ddp__way *p, double now)
{
    long n = ddp__stream_recv(t->cfg.tls, p->fd, p->answer + p->answer_got,
                              sizeof p->answer - p->answer_got);
    ddp__resume_hello r;
    ddp__hello h;
    int fd = p->fd;

    if (n == 0 && now < p->dial_until) return;
    if (n <= 0) { /* also where another program has the port now, or nobody after a kill */
        ddp__dial_failed(t, p, n ? errno : ETIMEDOUT, now);
        return;
    }
    p->answer_got += (size_t)n;
    if (p->answer_got < sizeof p->answer) return;
    if (!ddp__hello_parse(p->answer, &h) || ddp__hello_check(&t->self, &h) ||
        h.rank != (uint32_t)p->peer) {
        ddp__way_end(t, p, EPROTO);
        return;
    }
    ddp__resume_parse(p->answer, &r);
    if (h.kind != DDP__RESUME || !ddp__resume_fits(t, p, &r)) { /* it was started anew */
        ddp__way_end(t, p, ECONNRESET);
        return;
    }
    p->fd = -1;
    ddp__way_return(t, p, fd, &r);
}

/* ---- what is due ---- */

/* Silence while the peer owes receipts, and nothing unread from it. */
static int ddp__way_silent(const ddp__resume_wire *t, const ddp__way *p, double now, double *due)
{
    double since = p->heard > p->unheard_since ? p->heard : p->unheard_since;
    char c;

    if (p->ring.first == p->ring.end) return 0;
    if (now < since + t->quiet_s) {
        if (since + t->quiet_s < *due) *due = since + t->quiet_s;
        return 0;
    }
    if (recv(p->fd, &c, 1, MSG_PEEK) > 0) {
        if (now + 0.1 < *due) *due = now + 0.1;
        return 0;
    }
    return 1;
}

static double ddp__way_tick(ddp__resume_wire *t, ddp__way *p, double now)
{
    double due = now + 3600, limit = t->cfg.peer_timeout_s;
    socklen_t where;

    if (p->state == DDP__LINK_NONE || p->state == DDP__LINK_ENDED) return due;
    if (p->state == DDP__LINK_LIVE) {
        if (p->ack_due >= 0 && now >= p->ack_due) {
            p->ack_due = 0;
            ddp__way_flush(t, p);
        }
        if (p->state == DDP__LINK_LIVE && ddp__way_silent(t, p, now, &due))
            ddp__way_break(t, p, ETIMEDOUT);
        if (p->state == DDP__LINK_LIVE)
            return p->ack_due > 0 && p->ack_due < due ? p->ack_due : due;
    }
    if (limit > 0 && now >= p->down_at + limit) {
        ddp__way_end(t, p, p->why ? p->why : ETIMEDOUT);
        return now;
    }
    if (limit > 0) due = p->down_at + limit;
    where = ddp__way_where(t, p)->size;
    if (p->state == DDP__LINK_DOWN && where && now >= p->dial_at)
        ddp__dial_start(t, p, now);
    if (p->state == DDP__LINK_DIALLING) ddp__dial_look(t, p, now);
    if (p->state == DDP__LINK_SHAKING) ddp__dial_shake(t, p, now);
    if (p->relayed) ddp__relay_look(t, p, now);
    else if (p->state == DDP__LINK_ASKING) ddp__dial_hear(t, p, now);
    if (p->state == DDP__LINK_LIVE || p->state == DDP__LINK_ENDED) return now;
    if (p->state == DDP__LINK_DOWN && !where) return due;
    if (p->state == DDP__LINK_DOWN) return p->dial_at < due ? p->dial_at : due;
    return p->dial_until < due ? p->dial_until : due;
}

double ddp__resume_tick(ddp__resume_wire *t, double now)
{
    double next = now + 3600;

    t->ticked = now;
    if (t->knocked || ((t->away || t->door.inside) && now >= t->served + 0.005)) {
        ddp__door_serve(&t->door, now);
        t->served = now;
    }
    t->knocked = 0;
    for (int i = 0; i < t->base.world; i++) {
        double due = ddp__way_tick(t, &t->way[i], now);
        if (due < next) next = due;
    }
    return next;
}
