/* Frames, admission and waiting during the rendezvous, and the file with the address of rank 0. */
#include "wire/mesh.h"

/* Returns the end of the next short wait, so that a cancel, a due log line or a stop of this process is
 * noticed. */
static double ddp__slice(const ddp__meeting *m)
{
    const double slice = ddp_now() + (m->r->cancel || m->path ? 0.2 : 1), next = fmin(slice, m->next_note);

    return m->until < next ? m->until : next;
}

int ddp__meeting_over(ddp__meeting *m)
{
    const double now = ddp_now(), stopped = now - m->seen - 1;

    m->seen = now;
    if (stopped < 1) return now >= m->until;
    m->begin += stopped;
    m->until += stopped;
    m->next_note += stopped;
    for (int i = 0; i < m->r->world; i++) {
        m->leg[i].until += stopped;
        m->leg[i].limit += stopped;
    }
    return now >= m->until;
}

ddp_status ddp__cancelled(const ddp__meeting *m, ddp_error *err)
{
    if (!m->r->cancel || !ddp__atomic_load(m->r->cancel)) return DDP_OK;
    return ddp__fail(err, DDP_ABORTED, "cancelled during the rendezvous");
}

void ddp__wait_note(ddp__meeting *m, const char *what, const char *more)
{
    const int over = ddp__meeting_over(m);
    const double now = ddp_now();

    if (now < m->next_note || over) return;
    ddp__log(&m->c.log, DDP_LOG_WARN, "rank %d has waited %.0f s for %s%s", m->c.rank, now - m->begin, what,
             more);
    m->next_note = m->begin + 2 * (m->next_note - m->begin);
}

int ddp__missing(const ddp__meeting *m, char *out, size_t room)
{
    char list[96];
    size_t n = 0;
    int p, missing = 0, shown = 0;

    list[0] = 0;
    for (p = m->meshing ? 1 : m->c.rank + 1; p < m->r->world; p++) {
        if (m->fd[p] >= 0 || p == m->c.rank) continue;
        missing++;
        if (n + 24 > sizeof list) continue;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%d", shown ? ", " : "", p);
        shown++;
    }
    if (missing > shown) snprintf(list + n, sizeof list - n, " and %d more", missing - shown);
    snprintf(out, room, "rank%s %s of %d", missing == 1 ? "" : "s", list, m->r->world);
    return missing;
}

ddp_status ddp__wait_word(ddp__meeting *m, ddp__hello_kind kind, ddp_error *err)
{
    if (ddp__stream_wait(m->c.tls, m->fd[0], ddp__slice(m))) return DDP_OK;
    DDP__TRY(ddp__cancelled(m, err));
    /* the address may come from a stale file, and belong to a program that never answers */
    if (kind == DDP__HELLO && m->path && ddp__meetfile_says(m->path, m->named, m->c.self.run_id) == 0)
        return DDP_PEER_LOST;
    ddp__wait_note(m, m->root, kind == DDP__TABLE ? ", which waits for other ranks" : "");
    return DDP_OK;
}

ddp_status ddp__frame_recv(ddp__meeting *m, int peer, ddp__hello_kind kind, ddp__hello *h, ddp_error *err)
{
    const ddp__rendezvous *r = m->r;
    unsigned char b[DDP__HELLO_BYTES];
    char text[256], name[sizeof m->root];
    ddp__refusal why;
    size_t got = 0;

    if (peer)
        snprintf(name, sizeof name, "rank %d", peer);
    else
        memcpy(name, m->root, sizeof name);
    while (!peer && !ddp__stream_wait(m->c.tls, m->fd[0], ddp_now()) && !ddp__meeting_over(m))
        DDP__TRY(ddp__wait_word(m, kind, err));
    if (ddp__stream_recv_all(m->c.tls, m->fd[peer], b, sizeof b, &got, m->until) < 0) {
        int broken = errno;
        const char *tls = ddp__stream_why(m->c.tls, m->fd[peer]);
        if (tls) return ddp__fail(err, DDP_MISMATCH, "%s %s", name, tls);
        if (!m->c.tls && ddp__stream_is_tls(b, got))
            return ddp__fail(
                err, DDP_MISMATCH,
                "%s uses TLS, but this rank does not: give it the same --tls-psk, or a certificate", name);
        if (broken != ETIMEDOUT)
            return ddp__fail(err, DDP_PEER_LOST, "%s disconnected during the rendezvous: %s", name,
                             strerror(broken));
        return ddp__fail(
            err, DDP_TIMEOUT,
            kind == DDP__TABLE
                ? "after %.3g s %s still waits for other ranks; start them, or raise DREAMDDP_JOIN_TIMEOUT"
                : "after %.3g s %s is connected but has not answered: another program may use that address",
            m->until - m->begin, name);
    }
    if (!ddp__hello_parse(b, h))
        return ddp__fail(err, DDP_NET,
                         "%s does not answer as a dreamddp rank: another program uses that address; choose "
                         "another with --addr or DREAMDDP_ADDR",
                         name);
    why = ddp__hello_check(&m->c.self, h);
    /* a rank of a started run sends the number of all ids, and no reconnection flag */
    if (h->kind == DDP__REFUSED && h->reason == DDP__REFUSE_BEGUN &&
        (why == DDP__REFUSE_WORLD || why == DDP__REFUSE_RESUME))
        why = DDP__WELCOME;
    if (!why && h->kind != DDP__REFUSED &&
        (h->rank != (uint32_t)peer || (h->kind != kind && (kind != DDP__GO || h->kind != DDP__RELAY))))
        why = DDP__REFUSE_RANK;
    if (h->kind == DDP__REFUSED && !why) {
        if (h->reason == DDP__REFUSE_LATE)
            return ddp__fail(err, DDP_TIMEOUT, "%s timed out: only %u of %d ranks had connected", name,
                             (unsigned)h->detail, r->world);
        if (h->reason == DDP__REFUSE_LOST)
            return ddp__fail(err, DDP_PEER_LOST, "rank %u disconnected during the rendezvous",
                             (unsigned)h->detail);
        if (h->reason == DDP__REFUSE_TWICE)
            return ddp__fail(err, DDP_MISMATCH,
                             "%s is already connected to a rank %d: give each process a different rank", name,
                             m->c.rank);
        if (h->reason == DDP__REFUSE_BEGUN)
            return ddp__fail(err, DDP_MISMATCH,
                             "the run of %s has started without this process, and rank %d is taken: start "
                             "each rank once; to add a worker to a run with --min-world, use --join",
                             name, m->c.rank);
        if (h->reason == DDP__REFUSE_DAMAGED)
            return ddp__fail(
                err, DDP_MISMATCH,
                "%s received the first message of rank %d with a wrong checksum: its bytes were changed in "
                "transit; start again, and if the error persists, use a key (--tls-psk) or another network",
                name, m->c.rank);
        if (h->reason == DDP__REFUSE_NAME)
            return ddp__fail(err, DDP_MISMATCH,
                             "%s refused the certificate of this rank: it has no name rank-%d", name,
                             m->c.rank);
        return ddp__fail(err, DDP_MISMATCH, "%s does not expect rank %d of %d", name, m->c.rank, r->world);
    }
    if (why) {
        ddp__hello_dispute(&m->c.self, why, h, name, text, sizeof text);
        return ddp__fail(err, DDP_MISMATCH, "%s", text);
    }
    return DDP_OK;
}

/* Handles a frame of a worker (on rank 0) or of rank 0 (on a worker) during mesh set-up. */
static ddp_status ddp__peer_serve(ddp__meeting *m, int peer, ddp_error *err)
{
    ddp__hello h;

    if (m->c.rank == 0) {
        m->lost = peer;
        DDP__TRY(ddp__frame_recv(m, peer, DDP__READY, &h, err));
        m->lost = 0;
        m->leg[peer].ready = 1;
        return DDP_OK;
    }
    DDP__TRY(ddp__frame_recv(m, peer, DDP__GO, &h, err));
    if (h.kind == DDP__GO)
        m->go = 1;
    else if (h.detail > 0 && h.detail < (uint32_t)m->r->world && h.detail != h.rank)
        return ddp__leg_relay(m, (int)h.detail, err);
    return DDP_OK;
}

ddp_status ddp__meeting_poll(ddp__meeting *m, const char *what, const char *more, ddp_error *err)
{
    struct pollfd *peers = m->polls, *legs = peers + m->r->world;
    ddp__tls *tls = m->c.tls;
    double now, next;
    int i, count;

    ddp__wait_note(m, what, more);
    next = ddp__slice(m);
    DDP__TRY(ddp__cancelled(m, err));
    for (i = 0; i < m->r->world; i++) {
        const ddp__leg *l = &m->leg[i];
        int listen = m->meshing && m->fd[i] >= 0 && (m->c.rank ? i == 0 && !m->go : 1);
        ddp__poll_set(&peers[i], listen ? m->fd[i] : -1, ddp__stream_events(tls, m->fd[i], POLLIN));
        if (listen && ddp__stream_ready(tls, m->fd[i])) next = 0;
        ddp__poll_set(&legs[i], l->fd,
                      l->state == DDP__LEG_CONNECT ? POLLOUT : ddp__stream_events(tls, l->fd, POLLIN));
        if (l->state != DDP__LEG_NONE && l->until < next) next = l->until;
    }
    count = 2 * m->r->world + ddp__acceptor_polls(&m->acceptor, legs + m->r->world, &next);
    (void)ddp__poll_until(m->polls, count, next);
    (void)ddp__meeting_over(m);
    now = ddp_now();
    for (i = 0; i < m->r->world; i++) {
        const ddp__leg *l = &m->leg[i];
        if (l->state != DDP__LEG_NONE && (legs[i].revents || now >= l->until))
            DDP__TRY(ddp__leg_serve(m, i, legs[i].revents, err));
    }
    for (i = 0; i < m->r->world; i++)
        if (peers[i].fd >= 0 && m->fd[i] == peers[i].fd &&
            (peers[i].revents || ddp__stream_ready(tls, m->fd[i])))
            DDP__TRY(ddp__peer_serve(m, i, err));
    ddp__acceptor_serve(&m->acceptor, now);
    if (m->acceptor.broken)
        return ddp__fail(err, DDP_NET, "cannot accept a connection: %s", strerror(m->acceptor.broken));
    if (m->failed.code && err) *err = m->failed;
    return m->failed.code;
}

ddp__refusal ddp__meeting_decide(void *user, const ddp__caller *c, const ddp__hello *h, char *why)
{
    ddp__meeting *m = (ddp__meeting *)user;
    int rank = m->c.rank, other, *fd;
    ddp__tls *tls = m->c.tls;
    char name[DDP__ADDR_TEXT];
    ddp__addr *where;

    if (h->kind == DDP__JOIN_ASK)
        return DDP__REFUSE_MUTE; /* the worker asks again when the run has started
                                                            * */
    if (!ddp__stream_may_be(tls, c->fd, (int)h->rank, why)) return DDP__REFUSE_NAME;
    if (m->meshing && rank == 0 && h->kind == DDP__RELAY && h->detail > 0 &&
        h->detail < (uint32_t)m->r->world && h->detail != h->rank) {
        if (ddp__pairs_take(&m->pairs, h, c->fd, &other, &m->failed) == DDP_OK && other >= 0)
            (void)ddp__pairs_tell(&m->pairs, m->fd[other], (int)h->rank); /* if that rank has failed, it never
                                                                           * becomes ready */
        return DDP__WELCOME;
    }
    if (h->kind != DDP__HELLO || h->rank < (uint32_t)rank) return DDP__REFUSE_RANK;
    fd = &m->fd[h->rank];
    where = &m->where[h->rank];
    if (rank && m->relayed[h->rank]) return DDP__REFUSE_MUTE; /* the peer has abandoned that attempt */
    if (*fd >= 0) {
        /* A rank that was restarted, or connects again, is accepted until rank 0 has sent the address table,
         * or until this rank is connected to all. Before that a peer sends no bytes, so if the socket is
         * readable, the connection has ended. */
        if ((rank ? m->ready : m->meshing) || !ddp__stream_wait(tls, *fd, 0)) return DDP__REFUSE_TWICE;
        ddp__stream_close(tls, *fd);
    }
    if (!ddp__ip_parse(h->family, h->ip, where)) *where = c->from;
    ddp__addr_set_port(where, (int)(h->port & 65535));
    *fd = c->fd;
    if (ddp__hello_send(tls, *fd, &m->c.self, DDP__HELLO, DDP__WELCOME, 0) < 0) {
        ddp__stream_close(tls, *fd);
        *fd = -1;
    } else {
        ddp__log(&m->c.log, DDP_LOG_INFO, "rank %u connected from %s", (unsigned)h->rank,
                 ddp__addr_text(&c->from, name));
    }
    return DDP__WELCOME;
}

ddp_status ddp__gather(ddp__meeting *m, ddp_error *err)
{
    char text[128];
    int missing;

    while ((missing = ddp__missing(m, text, sizeof text)) > 0) {
        if (ddp__meeting_over(m))
            return ddp__fail(err, DDP_TIMEOUT,
                             "after %.3g s %s %s not connected to %s: start the missing ranks, or raise "
                             "DREAMDDP_JOIN_TIMEOUT%s%s",
                             m->until - m->begin, text, missing == 1 ? "has" : "have", m->addr,
                             m->acceptor.refused[0] ? "; last refused: " : "", m->acceptor.refused);
        DDP__TRY(ddp__meeting_poll(m, text, "", err));
    }
    return DDP_OK;
}

/* ---- the file with the address of rank 0 ---- */

int ddp__meetfile_read(const char *path, char *addr, uint64_t *run_id)
{
    char line[DDP__MEETFILE_TEXT + 32], *space, *end;
    struct stat st;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* do not block on a pipe */

    if (fd < 0) return 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) return 0;
    line[n] = 0;
    space = strchr(line, ' ');
    if (!space || space == line || space - line >= DDP__MEETFILE_TEXT) return 0;
    if (!isdigit((unsigned char)space[1])) return 0;
    errno = 0;
    *run_id = (uint64_t)strtoull(space + 1, &end, 10);
    if (errno || strcmp(end, "\n")) return 0;
    *space = 0;
    memcpy(addr, line, (size_t)(space - line) + 1);
    return 1;
}

int ddp__meetfile_says(const char *path, const char *addr, uint64_t run_id)
{
    char there[DDP__MEETFILE_TEXT];
    uint64_t run;

    if (!ddp__meetfile_read(path, there, &run)) return -1;
    return run == run_id && !strcmp(there, addr);
}
