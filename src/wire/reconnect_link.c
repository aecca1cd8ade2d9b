/* Connections of a wire with reconnection: detecting a broken connection, dialling, exchanging state, and
 * ending a link.
 *
 * A RESUME hello has 64 bytes as every hello. After the common fields it contains, in little-endian order:
 *   44  u32  number of the sender's wire      48  u64  bytes of the stream that it has received
 *   56  u32  number of the receiver's wire, 0 = not yet known     60  u32  number of the attempt
 * The lower rank answers with its own. */
#include "wire/replay.h"

static const double ddp__dial_most = 0.3;     /* in seconds: longest pause between attempts */
static const double ddp__refused_limit = 0.3; /* in seconds: refused for this time: the process has ended */
static const double ddp__answer_limit = 1.0;  /* in seconds: from our hello to its answer */
static const double ddp__rejoin_limit = 3;    /* in seconds: for the other end of a relayed pair */
static const double ddp__relay_grace = 1;     /* in seconds: until a relay that does not answer is replaced */
static const double ddp__relay_search = 5;    /* in seconds: to find another route if no other rank can relay
                                               * */

static void ddp__resume_pack(const ddp__resume_wire *t, const ddp__way *p, unsigned char *b)
{
    ddp__hello_pack(&t->cfg.self, DDP__RESUME, DDP__WELCOME, 0, b);
    ddp__hello_put(b + 44, t->number, 4);
    ddp__hello_put(b + 48, p->received, 8);
    ddp__hello_put(b + 56, p->peer_number, 4);
    ddp__hello_put(b + 60, p->attempt, 4);
    ddp__hello_seal(b);
}

/* Returns whether both sides mean the same two wires, and this side still has the bytes that the other lacks.
 * */
static int ddp__resume_fits(const ddp__resume_wire *t, const ddp__way *p, const ddp__hello *h)
{
    return h->number && (!p->peer_number || h->number == p->peer_number) &&
           (!h->yours || h->yours == t->number) && h->received >= p->ring.first && h->received <= p->ring.end;
}

/* ---- a link that is connected again ---- */

/* Resumes the link on a connection on which each end knows what the other has received. */
static void ddp__way_return(ddp__resume_wire *t, ddp__way *p, int fd, const ddp__hello *h)
{
    double now = ddp_now(), away = now - p->down_at;
    ddp_error err = {DDP_OK, ""};

    p->fd = fd;
    p->state = DDP__LINK_LIVE;
    t->away--;
    if (ddp__tcp_tune(fd, t->cfg.peer_timeout_s, t->cfg.congestion, &err))
        ddp__log(&t->cfg.log, DDP_LOG_WARN, "rank %d: %s", t->base.rank, err.msg);
    p->peer_number = h->number;
    (void)ddp__replay_forget(&p->ring, h->received);
    ddp__atomic_add(&t->returns, 1);
    t->bytes_again += (int64_t)(p->next - h->received);
    ddp__log(&t->cfg.log, away > 1 ? DDP_LOG_WARN : DDP_LOG_INFO,
             "rank %d: the link to rank %d (%s) reconnected after %.2f s (%s); sending %lu bytes again",
             t->base.rank, p->peer, t->base.names[p->peer], away, strerror(p->why),
             (unsigned long)(p->next - h->received));
    if (p->direct) { /* the end that seeks has dialled */
        p->relayed = 0;
        p->dialler = p->seeks ? 1 : -1;
    }
    p->direct = p->moved = 0;
    ddp__way_name(t, p);
    p->next = h->received;
    p->pre_len = p->pre_sent = p->record_left = 0;
    p->stage_from = p->stage_to = p->in_left = 0;
    p->dry = p->why = 0;
    p->acked = p->received; /* our hello acknowledged them */
    p->ack_due = -1;
    p->heard = p->unheard_since = now;
    ddp__way_record(p, DDP__RECORD_HI, t->number);
    ddp__way_flush(t, p);
}

/* ---- joining workers ---- */

/* A request of a joining worker. Only a caller whose certificate allows it to join gets an answer. */
static ddp__refusal ddp__decide_ask(ddp__resume_wire *t, int fd, char *why)
{
    char name[DDP__STREAM_NAME];
    int only;

    if (!t->visit) return DDP__REFUSE_RANK;
    if (!ddp__stream_may_join(t->cfg.tls, fd, &only, name, why)) return DDP__REFUSE_NAME;
    return t->visit(t->visit_user, t->cfg.tls, fd, only) ? DDP__WELCOME : DDP__REFUSE_MUTE;
}

static ddp__refusal ddp__decide_join(ddp__resume_wire *t, const ddp__caller *c, const ddp__hello *h,
                                     char *why)
{
    ddp__way *p = &t->way[h->rank];
    char name[DDP__STREAM_NAME];
    int id, before;

    if (!t->visit) return DDP__REFUSE_RANK;
    if (p->state != DDP__LINK_ENDED) return DDP__REFUSE_TWICE;
    if (!ddp__stream_may_be(t->cfg.tls, c->fd, (int)h->rank, why) &&
        !(ddp__stream_may_join(t->cfg.tls, c->fd, &id, name, why) && name[0]))
        return DDP__REFUSE_NAME;
    before = p->newcomer_fd;
    p->newcomer_fd = c->fd;
    p->newcomer_via = c->via;
    ddp__stream_close(t->cfg.tls, before);
    if (!ddp__ip_parse(h->family, h->ip, &p->newcomer_where)) p->newcomer_where = c->from;
    ddp__addr_set_port(&p->newcomer_where, (int)(h->port & 65535));
    (void)ddp__hello_send(t->cfg.tls, c->fd, &t->cfg.self, DDP__JOIN_MESH, DDP__WELCOME, 0);
    return DDP__WELCOME;
}

void ddp__wire_tcp_visits(ddp__wire *w, ddp__visit_fn visit, void *user)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;

    t->visit = visit;
    t->visit_user = user;
}

int ddp__wire_tcp_where(ddp__wire *w, int rank, ddp__addr *out)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;

    *out = t->way[rank].where;
    if (rank != w->rank) return out->size != 0;
    return t->acceptor.listen_fd >= 0 && ddp__addr_own(t->acceptor.listen_fd, out) == 0;
}

/* ---- the lower rank is dialled ---- */

/* Notifies rank `to` that the worker `id` waits here. */
static void ddp__call_send(ddp__resume_wire *t, int to, int id)
{
    t->way[to].call = id + 1;
    ddp__way_flush(t, &t->way[to]);
}

/* A rank, or a joining worker, requests a connection to another rank, and waits for that rank. */
static ddp__refusal ddp__decide_relay(ddp__resume_wire *t, int fd, const ddp__hello *h, char *why)
{
    const int joins = t->way[h->rank].state == DDP__LINK_ENDED;
    char name[DDP__STREAM_NAME];
    ddp_error err;
    int other, id;

    if ((!t->cfg.relay && !t->visit) || h->detail >= (uint32_t)t->base.world || h->detail == h->rank ||
        (int)h->detail == t->base.rank)
        return DDP__REFUSE_RANK;
    if (t->visit && joins && t->way[h->detail].state == DDP__LINK_ENDED) return DDP__REFUSE_MUTE;
    if (!ddp__way_is(t, &t->way[h->rank], fd, why) &&
        !(joins && ddp__stream_may_join(t->cfg.tls, fd, &id, name, why) && name[0]))
        return DDP__REFUSE_NAME;
    if (ddp__pairs_take(&t->pairs, h, fd, &other, &err))
        ddp__log(&t->cfg.log, DDP_LOG_WARN, "rank %d: %s", t->base.rank, err.msg);
    else if (other >= 0 && t->visit)
        ddp__call_send(t, other, (int)h->rank);
    return DDP__WELCOME;
}

/* Returns whether this rank, not the peer, makes the next direct connection of a pair. */
static int ddp__way_dials(const ddp__resume_wire *t, const ddp__way *p)
{
    if (p->relayed) return p->seeks;
    return p->dialler ? p->dialler > 0 : t->base.rank > p->peer;
}

int ddp__knows(void *user, const ddp__addr *from)
{
    const ddp__resume_wire *t = (const ddp__resume_wire *)user;

    for (int r = 0; r < t->base.world; r++)
        if (t->way[r].where.size && ddp__same_host(&t->way[r].where, from)) return 1;
    return 0;
}

ddp__refusal ddp__decide_caller(void *user, const ddp__caller *c, const ddp__hello *h, char *why)
{
    ddp__resume_wire *t = (ddp__resume_wire *)user;
    unsigned char b[DDP__HELLO_BYTES];
    ddp__way *p;

    if (h->kind == DDP__RELAY) return ddp__decide_relay(t, c->fd, h, why);
    if (h->kind == DDP__JOIN_ASK) return ddp__decide_ask(t, c->fd, why);
    if (h->kind == DDP__JOIN_MESH) return ddp__decide_join(t, c, h, why);
    p = &t->way[h->rank];
    if (h->kind != DDP__RESUME) return DDP__REFUSE_RANK;
    if (ddp__way_dials(t, p)) return DDP__REFUSE_RANK;
    if (!ddp__way_is(t, p, c->fd, why)) return DDP__REFUSE_NAME;
    if (p->state == DDP__LINK_ENDED)
        return p->newcomer_fd < 0 ? DDP__REFUSE_RANK : DDP__REFUSE_MUTE; /* lost, or not joined yet */
    if (!ddp__resume_fits(t, p, h)) return DDP__REFUSE_TWICE;
    if (h->attempt <= p->attempt) return DDP__REFUSE_MUTE; /* the peer has abandoned that attempt */
    p->attempt = h->attempt;
    if (p->state == DDP__LINK_LIVE) ddp__way_break(t, p, ECONNRESET); /* the peer noticed the break first */
    ddp__way_close(t, p);                                             /* the connection of a probe */
    p->state = DDP__LINK_DOWN;
    p->direct = p->relayed; /* its relay is lost, and the peer has found another route */
    ddp__resume_pack(t, p, b);
    if (ddp__stream_send_all(t->cfg.tls, c->fd, b, sizeof b, ddp_now()) < 0) return DDP__REFUSE_MUTE;
    ddp__way_return(t, p, c->fd, h);
    return DDP__WELCOME;
}

/* ---- dialling ---- */

/* Ends an attempt. Another one follows, unless the process has ended. */
static void ddp__dial_failed(ddp__resume_wire *t, ddp__way *p, int why, double now)
{
    const int direct = p->direct;

    ddp__way_close(t, p);
    p->state = DDP__LINK_DOWN;
    p->direct = 0;
    p->dial_at = now + p->pause;
    p->pause = p->pause * 1.5 < ddp__dial_most ? p->pause * 1.5 : ddp__dial_most;
    if (direct) return; /* a machine of the NAT may have refused */
    if (why != ECONNREFUSED) {
        p->refused_since = -1;
        return;
    }
    if (p->refused_since < 0) p->refused_since = now;
    if (p->relayed) return; /* the relay refused: ddp__way_route finds another one */
    if (now >= p->refused_since + ddp__refused_limit)
        ddp__way_end(t, p, ECONNRESET);
    else if (p->dial_at > p->refused_since + ddp__refused_limit)
        p->dial_at = p->refused_since + ddp__refused_limit;
}

/* Returns the address to dial for a peer: for a relayed peer, its relay's. */
static const ddp__addr *ddp__way_where(const ddp__resume_wire *t, const ddp__way *p)
{
    return p->relayed && !p->direct ? &t->way[p->via].where : &p->where;
}

/* Returns the next rank after a pair's relay that could relay as well, as far as this end knows, or -1. */
static int ddp__other_relay(const ddp__resume_wire *t, const ddp__way *p)
{
    for (int k = 1; k <= t->base.world; k++) {
        const int v = (p->via + k) % t->base.world;
        const ddp__way *w = &t->way[v];
        if (v != p->peer && w->state == DDP__LINK_LIVE && !w->relayed && w->where.size) return v;
    }
    return -1;
}

/* Returns 2 if the process of the relay has ended, 1 if it does not answer, else 0. */
static int ddp__relay_lost(const ddp__resume_wire *t, const ddp__way *p, double now)
{
    const ddp__way *relay = &t->way[p->via];

    if (relay->state == DDP__LINK_ENDED) return 2;
    if (p->refused_since >= 0 && now >= p->refused_since + ddp__refused_limit) return 2;
    return relay->state != DDP__LINK_LIVE && now >= relay->down_at + ddp__relay_grace;
}

/* The route of the next attempt of a relayed pair. If the relay is lost, the end that has not yet tried it
 * dials the peer's own address: one behind NAT reaches a public one. The other end moves to another relay,
 * which notifies the first. */
static void ddp__way_route(const ddp__resume_wire *t, ddp__way *p, double now)
{
    const int lost = ddp__relay_lost(t, p, now);
    int other;

    p->direct = lost && p->seeks && p->where.size;
    if (p->seeks || !(lost || p->moved) || now < p->down_at + ddp__relay_grace) return;
    other = ddp__other_relay(t, p);
    if (other < 0) return;
    p->via = other;
    p->moved = 1;
    p->refused_since = -1;
}

/* Returns 1 if the relay is lost permanently, and every other route too. */
static int ddp__way_stranded(const ddp__resume_wire *t, const ddp__way *p, double now)
{
    return p->relayed && ddp__relay_lost(t, p, now) == 2 && ddp__other_relay(t, p) < 0 &&
           now >= fmax(p->down_at, t->way[p->via].down_at) + ddp__relay_search;
}

/* Time limit of a step. Distant ranks get more time. */
static double ddp__dial_limit(const ddp__way *p, double now, double round_trips, double least)
{
    return now + (round_trips * p->round_trip > least ? round_trips * p->round_trip : least);
}

/* The next functions are steps of an attempt. Each returns 0, or the errno with which it fails. */
static int ddp__dial_start(ddp__resume_wire *t, ddp__way *p, double now)
{
    if (now < p->dial_at) return 0;
    if (p->relayed) ddp__way_route(t, p, now);
    if (!ddp__way_where(t, p)->size) return 0;
    if (!p->relayed && p->dialler < 0) { /* a NAT in front of the peer may refuse, so the peer may still run
                                          * */
        p->dial_at = now + ddp__dial_most;
        return 0;
    }
    p->joined = !p->relayed || p->direct;
    p->fd = ddp__tcp_dial_begin(ddp__way_where(t, p));
    if (p->fd < 0) return errno;
    p->state = DDP__LINK_DIALLING;
    /* we repeat a lost first packet sooner than TCP does (1, 3, 7 s) */
    p->dial_until = ddp__dial_limit(p, now, 2.5, ddp__dial_most);
    return 0;
}

static int ddp__dial_look(ddp__resume_wire *t, ddp__way *p, double now)
{
    if (!ddp__fd_wait(p->fd, POLLOUT, now)) return 0;
    if (ddp__tcp_dial_end(p->fd) < 0) return errno;
    if (!p->relayed && !ddp__way_dials(t, p)) { /* the peer runs and will dial */
        p->pause = ddp__dial_most;
        return EAGAIN;
    }
    if (ddp__stream_begin(t->cfg.tls, p->fd, 0) < 0) return ENOMEM;
    p->state = DDP__LINK_SHAKING;
    p->dial_until = ddp__dial_limit(p, now, 4, ddp__answer_limit);
    return 0;
}

/* The TLS handshake. After it, sends this end's state to the peer, or the other rank's id to the relay. */
static int ddp__dial_shake(ddp__resume_wire *t, ddp__way *p, double now)
{
    unsigned char b[DDP__HELLO_BYTES];
    char who[DDP__STREAM_TEXT];
    int done = ddp__stream_shake(t->cfg.tls, p->fd);

    if (done <= 0) return done ? errno : 0;
    if (!ddp__way_is(t, p->joined ? p : &t->way[p->via], p->fd, who)) {
        ddp__log(&t->cfg.log, DDP_LOG_WARN, "rank %d: the peer at %s %s", t->base.rank,
                 t->base.names[p->peer], who);
        return EPROTO;
    }
    if (p->joined) {
        p->attempt += !p->relayed || p->direct;
        ddp__resume_pack(t, p, b);
    } else {
        ddp__hello_pack(&t->cfg.self, DDP__RELAY, DDP__WELCOME, p->peer, b);
        p->dial_until = ddp__dial_limit(p, now, 4, ddp__rejoin_limit);
    }
    if (ddp__stream_send_all(t->cfg.tls, p->fd, b, sizeof b, now) < 0) return errno;
    p->state = DDP__LINK_ASKING;
    p->answer_got = 0;
    return 0;
}

/* Reads the answer. The link is connected again, or the relay has connected the two ranks, and their
 * handshake follows. */
static int ddp__dial_hear(ddp__resume_wire *t, ddp__way *p)
{
    long n = ddp__stream_recv(t->cfg.tls, p->fd, p->answer + p->answer_got, sizeof p->answer - p->answer_got);
    ddp__hello h;
    int fd = p->fd;

    if (n < 0) return errno; /* also if another program uses the port now, or no program after a kill */
    p->answer_got += (size_t)n;
    if (p->answer_got < sizeof p->answer) return 0;
    if (!ddp__hello_parse(p->answer, &h) || ddp__hello_check(&t->cfg.self, &h) ||
        h.rank != (uint32_t)(p->joined ? p->peer : p->via)) {
        ddp__way_end(t, p, EPROTO);
    } else if (!p->joined) {
        p->joined = h.kind == DDP__RELAY && h.detail == (uint32_t)p->peer;
        p->state = DDP__LINK_SHAKING;
        if (!p->joined)
            ddp__way_end(t, p, EPROTO);
        else if (ddp__stream_begin(t->cfg.tls, p->fd, t->base.rank < p->peer) < 0)
            return ENOMEM;
    } else if (h.kind != DDP__RESUME || !ddp__resume_fits(t, p, &h)) { /* the peer was restarted */
        ddp__way_end(t, p, ECONNRESET);
    } else {
        p->fd = -1;
        ddp__way_return(t, p, fd, &h);
    }
    return 0;
}

/* Runs all steps that are possible now: poll does not report bytes that came with the end of a handshake. */
static void ddp__dial_go(ddp__resume_wire *t, ddp__way *p, double now)
{
    ddp__link_state was;

    do {
        int why;
        was = p->state;
        if (was == DDP__LINK_DOWN)
            why = ddp__dial_start(t, p, now);
        else if (was == DDP__LINK_DIALLING)
            why = ddp__dial_look(t, p, now);
        else if (was == DDP__LINK_SHAKING)
            why = ddp__dial_shake(t, p, now);
        else
            why = ddp__dial_hear(t, p);
        if (!why && p->state == was && was != DDP__LINK_DOWN && now >= p->dial_until) why = ETIMEDOUT;
        if (why) ddp__dial_failed(t, p, why, now);
    } while (p->state != was && p->state >= DDP__LINK_DIALLING && p->state <= DDP__LINK_ASKING);
}

/* ---- work that is due ---- */

/* Returns 1 if the peer owes acknowledgements but has sent no bytes for too long. */
static int ddp__way_silent(const ddp__resume_wire *t, const ddp__way *p, double now, double *due)
{
    double since = p->heard > p->unheard_since ? p->heard : p->unheard_since;
    char c;

    if (p->ring.first == p->ring.end || (!p->peer_number && t->cfg.self.kind == DDP__JOIN_MESH))
        return 0; /* not joined yet */
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
    double due = now + 3600, limit = t->cfg.peer_timeout_s, next;

    if (p->state == DDP__LINK_NONE || p->state == DDP__LINK_ENDED) return due;
    if (p->state == DDP__LINK_LIVE) {
        if (p->ack_due >= 0 && now >= p->ack_due) {
            p->ack_due = 0;
            ddp__way_flush(t, p);
        }
        if (p->state == DDP__LINK_LIVE && ddp__way_silent(t, p, now, &due)) ddp__way_break(t, p, ETIMEDOUT);
        if (p->state == DDP__LINK_LIVE) return p->ack_due > 0 && p->ack_due < due ? p->ack_due : due;
    }
    if (limit > 0 && now >= p->down_at + limit) {
        ddp__way_end(t, p, p->why ? p->why : ETIMEDOUT);
        return now;
    }
    if (ddp__way_stranded(t, p, now)) {
        ddp__way_end(t, p, EHOSTUNREACH);
        return now;
    }
    if (limit > 0) due = p->down_at + limit;
    ddp__dial_go(t, p, now);
    if (p->state == DDP__LINK_LIVE || p->state == DDP__LINK_ENDED) return now;
    if (p->state == DDP__LINK_DOWN && !ddp__way_where(t, p)->size) return due;
    next = p->state == DDP__LINK_DOWN ? p->dial_at : p->dial_until;
    return next < due ? next : due;
}

double ddp__resume_tick(ddp__resume_wire *t, double now)
{
    double next = now + 3600;

    t->ticked = now;
    if (t->incoming || ((t->away || t->acceptor.inside) && now >= t->served + 0.005)) {
        ddp__acceptor_serve(&t->acceptor, now);
        t->served = now;
    }
    t->incoming = 0;
    for (int i = 0; i < t->base.world; i++) {
        double due = ddp__way_tick(t, &t->way[i], now);
        if (t->way[i].call_state != DDP__LINK_NONE) due = fmin(due, ddp__call_tick(t, &t->way[i], now));
        if (due < next) next = due;
    }
    return next;
}
