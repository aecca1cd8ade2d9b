/* The meeting, in the order of the wire:
 *   worker -> rank 0   hello (who I am, where I listen)   rank 0 answers with its own, or refuses
 *   rank 0 -> workers  table of addresses, once all are there
 *   worker -> lower    hello for each pair without rank 0; the lower rank answers
 *   worker -> rank 0   ready;  rank 0 -> workers  go
 * Every frame is 64 bytes, little endian; only the table is followed by 24 bytes per rank. */
#include "base/platform.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "net/hello.h"
#include "net/rendezvous.h"
#include "net/socket.h"
#include "net/wire_tcp.h"

#include <netinet/in.h>
#include <poll.h>

#define DDP__ENTRY_BYTES  24
#define DDP__HELLO_LIMIT  5.0 /* seconds that a stranger may stay silent */
#define DDP__MESH_LIMIT  10.0 /* seconds for the rest once all have met rank 0 */
#define DDP__ADDRESSES    8

/* One connection that has not said who it is. */
typedef struct ddp__guest {
    int fd;                   /* -1: free */
    double until;
    size_t got;
    unsigned char bytes[DDP__HELLO_BYTES];
    ddp__addr from;
} ddp__guest;

typedef struct ddp__meeting {
    const ddp__rendezvous *r;
    double begin, until, next_note;
    char addr[DDP__ADDR_TEXT]; /* of rank 0 */
    char root[DDP__ADDR_TEXT + 16]; /* "rank 0 at ..." */
    int listen_fd;             /* own */
    ddp__hello self;           /* what this rank says of itself, its port included */
    int guests;                /* 2 x world */
    ddp__guest *guest;         /* [guests] */
    struct pollfd *polls;      /* [guests + 2]: guests, own listener, rank 0 */
    int *fd;                   /* [world] */
    size_t *sent;              /* [world] */
    ddp__addr *where;          /* [world] where a rank listens */
    unsigned char *table;      /* frame and entries */
    char refused[200];         /* the last refusal, for the final sentence */
} ddp__meeting;

/* The text of the ranks above m->r->rank that are missing: "ranks 2, 3 of 4"; how many. */
static int ddp__missing(const ddp__meeting *m, char *out, size_t room)
{
    char list[96];
    size_t n = 0;
    int p, missing = 0, shown = 0;

    list[0] = 0;
    for (p = m->r->rank + 1; p < m->r->world; p++) {
        if (m->fd[p] >= 0) continue;
        missing++;
        if (n + 24 > sizeof list) continue;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%d", shown ? ", " : "", p);
        shown++;
    }
    if (missing > shown) snprintf(list + n, sizeof list - n, " and %d more", missing - shown);
    snprintf(out, room, "rank%s %s of %d", missing == 1 ? "" : "s", list, m->r->world);
    return missing;
}

static int ddp__frame_send(ddp__meeting *m, int peer, const unsigned char *b, size_t n)
{
    double grace =
        ddp_now() + 1; /* a frame that is due may be sent even when time has just run out */
    m->sent[peer] += n;
    return ddp__tcp_send_all(m->fd[peer], b, n, m->until > grace ? m->until : grace);
}

/* The next frame of a peer, which must be of that kind. `name` says who it is. */
static ddp_status ddp__frame_recv(ddp__meeting *m, int peer, uint32_t kind, const char *name,
                                  ddp_error *err)
{
    const ddp__rendezvous *r = m->r;
    unsigned char b[DDP__HELLO_BYTES];
    char text[256];
    ddp__hello h;
    ddp__refusal why;

    while (m->next_note < m->until && !ddp__fd_wait(m->fd[peer], POLLIN, m->next_note)) {
        ddp__log(&r->log, DDP_LOG_WARN, "rank %d has waited %.0f s for %s%s", r->rank,
                 ddp_now() - m->begin, name,
                 kind == DDP__TABLE ? ", which waits for other ranks" : "");
        m->next_note += 5;
    }
    if (ddp__tcp_recv_all(m->fd[peer], b, sizeof b, m->until) < 0) {
        int broken = errno;
        if (broken != ETIMEDOUT)
            return ddp__fail(err, DDP_PEER_LOST, "%s went away while the ranks met: %s", name,
                             strerror(broken));
        return ddp__fail(
            err, DDP_TIMEOUT,
            kind == DDP__TABLE
                ? "after %.3g s %s still waits for other ranks"
                : "after %.3g s %s is connected but has not answered: another program may own that "
                  "address",
            m->until - m->begin, name);
    }
    if (!ddp__hello_parse(b, &h))
        return ddp__fail(err, DDP_NET,
                         "%s does not answer as a rank of dreamddp: another program owns that "
                         "address, choose another with --addr or DREAMDDP_ADDR",
                         name);
    why = ddp__hello_check(&m->self, &h);
    if (!why && h.kind != DDP__REFUSED && (h.rank != (uint32_t)peer || h.kind != kind))
        why = DDP__REFUSE_RANK;
    if (h.kind == DDP__REFUSED && !why) {
        if (h.reason == DDP__REFUSE_LATE)
            return ddp__fail(err, DDP_TIMEOUT,
                             "%s gave up: only %u of %d ranks had connected in its time", name,
                             (unsigned)h.detail, r->world);
        if (h.reason == DDP__REFUSE_LOST)
            return ddp__fail(err, DDP_PEER_LOST, "rank %u went away while the ranks met",
                             (unsigned)h.detail);
        if (h.reason == DDP__REFUSE_TWICE)
            return ddp__fail(err, DDP_MISMATCH,
                             "%s already has a rank %d: give each process a rank of its own", name,
                             r->rank);
        return ddp__fail(err, DDP_MISMATCH, "%s does not expect rank %d of %d", name, r->rank,
                         r->world);
    }
    if (why) {
        ddp__hello_dispute(&m->self, why, &h, name, text, sizeof text);
        return ddp__fail(err, DDP_MISMATCH, "%s", text);
    }
    return DDP_OK;
}

/* 1 if the connection has ended under us. */
static int ddp__fd_gone(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* A guest has said its 64 bytes: it becomes a peer, or is refused. */
static void ddp__guest_decide(ddp__meeting *m, ddp__guest *g)
{
    unsigned char b[DDP__HELLO_BYTES];
    char name[DDP__ADDR_TEXT];
    ddp__hello h;
    ddp__refusal why;

    ddp__addr_text(&g->from, name);
    if (!ddp__hello_parse(g->bytes, &h)) return;
    why = ddp__hello_check(&m->self, &h);
    if (!why && (h.kind != DDP__HELLO || h.rank < (uint32_t)m->r->rank)) why = DDP__REFUSE_RANK;
    if (!why && m->fd[h.rank] >= 0) {
        if (ddp__fd_gone(m->fd[h.rank])) { /* a rank that was started anew */
            close(m->fd[h.rank]);
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
        ddp__tcp_send_all(g->fd, b, sizeof b, ddp_now()); /* its buffer is empty */
        shutdown(g->fd, SHUT_WR);
        return;
    }
    m->fd[h.rank] = g->fd;
    m->sent[h.rank] = 0;
    m->where[h.rank] = g->from;
    ddp__addr_set_port(&m->where[h.rank], (int)(h.port & 65535));
    g->fd = -1; /* handed over */
    if (ddp__frame_send(m, (int)h.rank, b, sizeof b) < 0) {
        close(m->fd[h.rank]);
        m->fd[h.rank] = -1;
    } else {
        ddp__log(&m->r->log, DDP_LOG_INFO, "rank %u is here, from %s", (unsigned)h.rank, name);
    }
}

/* Reads what a guest says; drops it at the first byte that is not ours. */
static void ddp__guest_listen(ddp__meeting *m, ddp__guest *g)
{
    ssize_t n = recv(g->fd, g->bytes + g->got, sizeof g->bytes - g->got, 0);

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n > 0) {
        g->got += (size_t)n;
        if (ddp__hello_begins(g->bytes, g->got)) {
            if (g->got < sizeof g->bytes) return;
            ddp__guest_decide(m, g);
        }
    }
    if (g->fd >= 0) close(g->fd);
    g->fd = -1;
}

/* Polls once: takes in new guests while there is room for them, listens to the others. */
static ddp_status ddp__gather_once(ddp__meeting *m, ddp_error *err)
{
    double now = ddp_now(), next = m->until < m->next_note ? m->until : m->next_note;
    int i, room = 0, got;

    for (i = 0; i < m->guests; i++) {
        ddp__guest *g = &m->guest[i];
        if (g->fd >= 0 && now >= g->until) {
            char name[DDP__ADDR_TEXT];
            ddp__log(&m->r->log, DDP_LOG_INFO, "dropped %s: it said nothing that we know",
                     ddp__addr_text(&g->from, name));
            close(g->fd);
            g->fd = -1;
        }
        m->polls[i].fd = g->fd;
        m->polls[i].events = POLLIN;
        m->polls[i].revents = 0;
        if (g->fd < 0) room++;
        else if (g->until < next) next = g->until;
    }
    m->polls[m->guests].fd = room ? m->listen_fd : -1;
    m->polls[m->guests].events = POLLIN;
    m->polls[m->guests].revents = 0;
    m->polls[m->guests + 1].fd = m->r->rank ? m->fd[0] : -1; /* has it called the meeting off? */
    m->polls[m->guests + 1].events = POLLIN;
    m->polls[m->guests + 1].revents = 0;
    got = poll(m->polls, (nfds_t)m->guests + 2, next > now ? (int)((next - now) * 1000) + 1 : 0);
    if (got <= 0) return DDP_OK;
    for (i = 0; i < m->guests; i++)
        if (m->polls[i].fd >= 0 && m->polls[i].revents) ddp__guest_listen(m, &m->guest[i]);
    if (m->polls[m->guests + 1].revents) DDP__TRY(ddp__frame_recv(m, 0, DDP__GO, m->root, err));
    if (!m->polls[m->guests].revents) return DDP_OK;
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
        g->got = 0;
        g->until = now + DDP__HELLO_LIMIT;
    }
    return DDP_OK;
}

/* Accepts all ranks above this one. */
static ddp_status ddp__gather(ddp__meeting *m, ddp_error *err)
{
    char text[128];
    int i, missing;

    while ((missing = ddp__missing(m, text, sizeof text)) > 0) {
        double now = ddp_now();
        if (now >= m->until)
            return ddp__fail(err, DDP_TIMEOUT, "after %.3g s %s %s not connected to %s%s%s",
                             m->until - m->begin, text, missing == 1 ? "has" : "have",
                             m->r->rank ? "this rank" : m->addr,
                             m->refused[0] ? "; last refused: " : "", m->refused);
        if (now >= m->next_note) {
            ddp__log(&m->r->log, DDP_LOG_WARN, "rank %d has waited %.0f s for %s", m->r->rank,
                     now - m->begin, text);
            m->next_note += 5;
        }
        DDP__TRY(ddp__gather_once(m, err));
    }
    for (i = 0; i < m->guests; i++) {
        if (m->guest[i].fd >= 0) close(m->guest[i].fd);
        m->guest[i].fd = -1;
    }
    return DDP_OK;
}

/* Opens the door for higher ranks on the address from which rank 0 is reached. */
static ddp_status ddp__listen_beside(ddp__meeting *m, int fd, ddp_error *err)
{
    ddp__addr own;

    memset(&own, 0, sizeof own);
    own.size = sizeof own.sa;
    if (getsockname(fd, (struct sockaddr *)&own.sa, &own.size) < 0)
        return ddp__fail(err, DDP_NET, "cannot tell the own address: %s", strerror(errno));
    ddp__addr_set_port(&own, 0);
    DDP__TRY(ddp__tcp_listen(&own, &m->listen_fd, &own, err));
    m->self.port = (uint32_t)ddp__addr_port(&own);
    return DDP_OK;
}

/* Dials one of the addresses of a peer until it answers our hello or time is over. */
static ddp_status ddp__dial(ddp__meeting *m, int peer, const ddp__addr *list, int count,
                            ddp_error *err)
{
    unsigned char b[DDP__HELLO_BYTES];
    char name[DDP__ADDR_TEXT + 24], text[DDP__ADDR_TEXT];
    double pause = 0.02;
    int i = 0, why = 0;

    snprintf(name, sizeof name, "rank %d at %s", peer, ddp__addr_text(&list[0], text));
    for (;;) {
        double now = ddp_now();
        int fd;
        if (now >= m->until)
            return ddp__fail(err, DDP_TIMEOUT,
                             "%s did not answer within %.3g s: %s; is it running, and is the "
                             "address right?",
                             name, m->until - m->begin, strerror(why));
        if (now >= m->next_note) {
            ddp__log(&m->r->log, DDP_LOG_WARN, "rank %d has waited %.0f s for %s: %s", m->r->rank,
                     now - m->begin, name, strerror(why));
            m->next_note += 5;
        }
        fd = ddp__tcp_dial(&list[i], m->until < now + 3 ? m->until : now + 3);
        if (fd >= 0) {
            ddp_status bad;
            m->fd[peer] = fd;
            m->sent[peer] = 0;
            snprintf(name, sizeof name, "rank %d at %s", peer, ddp__addr_text(&list[i], text));
            if (m->listen_fd < 0) DDP__TRY(ddp__listen_beside(m, fd, err));
            ddp__hello_pack(&m->self, DDP__HELLO, DDP__WELCOME, 0, b);
            bad = DDP_PEER_LOST;
            if (ddp__frame_send(m, peer, b, sizeof b) == 0)
                bad = ddp__frame_recv(m, peer, DDP__HELLO, name, err);
            if (bad != DDP_PEER_LOST) return bad;
            why = ECONNRESET; /* an earlier run that is just ending, or a full house: try again */
            close(fd);
            m->fd[peer] = -1;
        } else {
            why = errno;
        }
        i = (i + 1) % count;
        if (i) continue;
        now = ddp_now() + pause;
        if (now > m->until) now = m->until;
        if (peer == 0) ddp__sleep_until(now);
        else if (ddp__fd_wait(m->fd[0], POLLIN, now))
            DDP__TRY(ddp__frame_recv(m, 0, DDP__GO, m->root, err));
        if (pause < 0.3) pause *= 1.5;
    }
}

/* Rank 0 writes where everybody listens; the others read it and dial those below them. */
static void ddp__table_pack(const ddp__meeting *m, unsigned char *b)
{
    int p;

    ddp__hello_pack(&m->self, DDP__TABLE, DDP__WELCOME, 0, b);
    for (p = 1; p < m->r->world; p++) {
        unsigned char *e = b + DDP__HELLO_BYTES + (size_t)p * DDP__ENTRY_BYTES;
        const ddp__addr *a = &m->where[p];
        ddp__hello_put(e + 2, (uint64_t)ddp__addr_port(a), 2);
        if (a->sa.ss_family == AF_INET6) {
            ddp__hello_put(e, 6, 2);
            memcpy(e + 8, &((const struct sockaddr_in6 *)(const void *)&a->sa)->sin6_addr, 16);
        } else {
            ddp__hello_put(e, 4, 2);
            memcpy(e + 8, &((const struct sockaddr_in *)(const void *)&a->sa)->sin_addr, 4);
        }
    }
}

static int ddp__entry_parse(const unsigned char *e, ddp__addr *a)
{
    uint64_t family = ddp__hello_get(e, 2);

    memset(a, 0, sizeof *a);
    if (family == 6) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)&a->sa;
        six->sin6_family = AF_INET6;
        memcpy(&six->sin6_addr, e + 8, 16);
        a->size = sizeof *six;
    } else if (family == 4) {
        struct sockaddr_in *in = (struct sockaddr_in *)(void *)&a->sa;
        in->sin_family = AF_INET;
        memcpy(&in->sin_addr, e + 8, 4);
        a->size = sizeof *in;
    } else {
        return 0;
    }
    ddp__addr_set_port(a, (int)ddp__hello_get(e + 2, 2));
    return 1;
}

static ddp_status ddp__meet_as_worker(ddp__meeting *m, const ddp__addr *list, int count,
                                      ddp_error *err)
{
    unsigned char b[DDP__HELLO_BYTES];
    const char *name = m->root;
    ddp__addr a;
    int p;

    DDP__TRY(ddp__dial(m, 0, list, count, err));
    DDP__TRY(ddp__frame_recv(m, 0, DDP__TABLE, name, err));
    if (ddp__tcp_recv_all(m->fd[0], m->table, (size_t)m->r->world * DDP__ENTRY_BYTES, m->until) < 0)
        return ddp__fail(err, DDP_PEER_LOST, "%s went away while the ranks met: %s", name,
                         strerror(errno));
    m->until = ddp_now() + DDP__MESH_LIMIT;
    for (p = 1; p < m->r->rank; p++) {
        if (!ddp__entry_parse(m->table + (size_t)p * DDP__ENTRY_BYTES, &a))
            return ddp__fail(err, DDP_NET, "%s sent no usable address of rank %d", name, p);
        DDP__TRY(ddp__dial(m, p, &a, 1, err));
    }
    DDP__TRY(ddp__gather(m, err));
    ddp__hello_pack(&m->self, DDP__READY, DDP__WELCOME, 0, b);
    if (ddp__frame_send(m, 0, b, sizeof b) < 0)
        return ddp__fail(err, DDP_PEER_LOST, "%s went away while the ranks met: %s", name,
                         strerror(errno));
    return ddp__frame_recv(m, 0, DDP__GO, name, err);
}

/* Tells those who came why there will be no run. */
static void ddp__call_off(ddp__meeting *m, ddp__refusal reason, int detail)
{
    unsigned char b[DDP__HELLO_BYTES];
    int p;

    ddp__hello_pack(&m->self, DDP__REFUSED, reason, detail, b);
    for (p = 1; p < m->r->world; p++)
        if (m->fd[p] >= 0) ddp__tcp_send_all(m->fd[p], b, sizeof b, ddp_now());
}

static ddp_status ddp__meet_as_root(ddp__meeting *m, ddp_error *err)
{
    unsigned char b[DDP__HELLO_BYTES];
    char text[128], name[32];
    ddp_status bad = ddp__gather(m, err);
    int p, world = m->r->world;

    if (bad) {
        ddp__call_off(m, DDP__REFUSE_LATE, world - ddp__missing(m, text, sizeof text));
        return bad;
    }
    m->until = ddp_now() + DDP__MESH_LIMIT;
    ddp__table_pack(m, m->table);
    for (p = 1; p < world; p++) /* one that fails here is found when it is not ready */
        ddp__frame_send(m, p, m->table, DDP__HELLO_BYTES + (size_t)world * DDP__ENTRY_BYTES);
    for (p = 1; p < world; p++) {
        snprintf(name, sizeof name, "rank %d", p);
        bad = ddp__frame_recv(m, p, DDP__READY, name, err);
        if (bad) {
            ddp__call_off(m, DDP__REFUSE_LOST, p);
            return bad;
        }
    }
    ddp__hello_pack(&m->self, DDP__GO, DDP__WELCOME, 0, b);
    for (p = 1; p < world; p++)
        if (ddp__frame_send(m, p, b, sizeof b) < 0)
            return ddp__fail(err, DDP_PEER_LOST, "rank %d went away while the ranks met: %s", p,
                             strerror(errno));
    return DDP_OK;
}

/* Checks the address, listens (rank 0), and goes through the meeting. */
static ddp_status ddp__meet(ddp__meeting *m, ddp_error *err)
{
    const ddp__rendezvous *r = m->r;
    ddp__addr list[DDP__ADDRESSES];
    int count = 0, i;

    if (m->listen_fd >= 0) {
        memset(&list[0], 0, sizeof list[0]);
        list[0].size = sizeof list[0].sa;
        if (ddp__fd_prepare(m->listen_fd) < 0 ||
            getsockname(m->listen_fd, (struct sockaddr *)&list[0].sa, &list[0].size) < 0)
            return ddp__fail(err, DDP_ARG, "descriptor %d is no listening socket: %s", m->listen_fd,
                             strerror(errno));
        count = 1;
    } else {
        DDP__TRY(
            ddp__addr_parse(r->addr ? r->addr : "127.0.0.1", list, DDP__ADDRESSES, &count, err));
        if (ddp__addr_port(&list[0]) == 0)
            return ddp__fail(err, DDP_ARG,
                             "address '%.100s': port 0 leaves the other ranks without an address: "
                             "name a port, for example %d",
                             r->addr, DDP__DEFAULT_PORT);
    }
    ddp__addr_text(&list[0], m->addr);
    snprintf(m->root, sizeof m->root, "rank 0 at %s", m->addr);
    for (i = 0; i < count && !r->insecure; i++) {
        char text[DDP__ADDR_TEXT];
        if (!ddp__addr_is_loopback(&list[i]))
            return ddp__fail(
                err, DDP_ARG,
                "%s lies beyond this machine, and the connections are neither encrypted "
                "nor authenticated: use --insecure or DREAMDDP_INSECURE=1 if the network can be "
                "trusted, else a tunnel to 127.0.0.1",
                ddp__addr_text(&list[i], text));
    }
    if (r->rank) return ddp__meet_as_worker(m, list, count, err);
    if (m->listen_fd < 0) DDP__TRY(ddp__tcp_listen(&list[0], &m->listen_fd, NULL, err));
    m->self.port = (uint32_t)ddp__addr_port(&list[0]);
    return ddp__meet_as_root(m, err);
}

ddp_status ddp__rendezvous_tcp(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err)
{
    ddp__meeting m;
    ddp_status bad;
    size_t world;
    int i;

    memset(&m, 0, sizeof m);
    m.r = r;
    m.listen_fd = r->rank == 0 ? r->listen_fd : -1;
    if (r->world < 1 || r->world > 4096 || r->rank < 0 || r->rank >= r->world) {
        if (m.listen_fd >= 0) close(m.listen_fd);
        return ddp__fail(err, DDP_ARG,
                         "rank %d of %d ranks: ranks count from 0, and 1 to 4096 of them can meet",
                         r->rank, r->world);
    }
    world = (size_t)r->world;
    m.self.version = DDP__PROTOCOL;
    m.self.run_id = r->run_id;
    m.self.rank = (uint32_t)r->rank;
    m.self.world = (uint32_t)r->world;
    m.begin = ddp_now();
    m.until = m.begin + (r->timeout_s > 0 ? r->timeout_s : 30);
    m.next_note = m.begin + 5;
    m.guests = 2 * r->world;
    m.guest = (ddp__guest *)ddp__calloc((size_t)m.guests, sizeof *m.guest);
    m.polls = (struct pollfd *)ddp__calloc((size_t)m.guests + 2, sizeof *m.polls);
    m.fd = (int *)ddp__calloc(world, sizeof *m.fd);
    m.sent = (size_t *)ddp__calloc(world, sizeof *m.sent);
    m.where = (ddp__addr *)ddp__calloc(world, sizeof *m.where);
    m.table = (unsigned char *)ddp__calloc(DDP__HELLO_BYTES + world * DDP__ENTRY_BYTES, 1);
    for (i = 0; m.guest && i < m.guests; i++) m.guest[i].fd = -1;
    for (i = 0; m.fd && i < r->world; i++) m.fd[i] = -1;
    if (!m.guest || !m.polls || !m.fd || !m.sent || !m.where || !m.table)
        bad = ddp__fail(err, DDP_MEMORY, "out of memory for the meeting of %d ranks", r->world);
    else
        bad = r->world == 1 ? DDP_OK : ddp__meet(&m, err);
    if (!bad)
        bad = ddp__wire_tcp(r->rank, r->world, m.fd, m.sent, r->peer_timeout_s, r->congestion, out,
                            err);
    for (i = 0; bad && m.fd && i < r->world; i++)
        if (m.fd[i] >= 0) close(m.fd[i]);
    for (i = 0; m.guest && i < m.guests; i++)
        if (m.guest[i].fd >= 0) close(m.guest[i].fd);
    if (m.listen_fd >= 0) close(m.listen_fd);
    DDP_FREE(m.guest);
    DDP_FREE(m.polls);
    DDP_FREE(m.fd);
    DDP_FREE(m.sent);
    DDP_FREE(m.where);
    DDP_FREE(m.table);
    return bad;
}
