/* The rendezvous over TCP: resolves addresses, listens, dials rank 0 and connects all pairs. mesh.h has the
 * protocol. */
#include "wire/mesh.h"

/* Allows an address beyond this machine only with TLS, or if the user has declared the network trusted. */
static ddp_status ddp__check_reach(const ddp__meeting *m, const ddp__addr *a, ddp_error *err)
{
    char text[DDP__ADDR_TEXT];

    if (m->c.tls || ddp__addr_is_loopback(a)) return DDP_OK;
    ddp__addr_text(a, text);
    if (!m->r->insecure)
        return ddp__fail(
            err, DDP_ARG,
            "%s is not a loopback address, and the connections are neither encrypted nor "
            "authenticated: give every rank the same key with --tls-psk FILE or DREAMDDP_TLS_PSK, or "
            "--insecure (DREAMDDP_INSECURE=1) if the network can be trusted",
            text);
    ddp__log(&m->c.log, DDP_LOG_WARN, "insecure: connections to %s are neither encrypted nor authenticated",
             text);
    return DDP_OK;
}

/* Starts to listen at *a, unless it already listens, and logs it. *a receives the port. */
static ddp_status ddp__listen(ddp__meeting *m, ddp__addr *a, const char *why, ddp_error *err)
{
    char text[DDP__ADDR_TEXT], name[DDP__IFACE_TEXT];

    if (m->acceptor.listen_fd < 0) DDP__TRY(ddp__tcp_listen(a, &m->acceptor.listen_fd, a, err));
    m->c.self.port = (uint32_t)ddp__addr_port(a);
    m->c.self.family = ddp__ip_pack(a, m->c.self.ip);
    ddp__iface_name(a, name);
    ddp__log(&m->c.log, DDP_LOG_INFO, "rank %d listens on %s%s%s%s%s", m->c.rank, ddp__addr_text(a, text),
             name[0] ? " (" : "", name, name[0] ? ")" : "", why);
    return DDP_OK;
}

static void ddp__set_root(ddp__meeting *m, const ddp__addr *a)
{
    ddp__addr_text(a, m->addr);
    snprintf(m->root, sizeof m->root, "rank 0 at %s", m->addr);
}

/* Starts to listen for higher ranks, on the address from which rank 0 is reached, or on the requested
 * interface. */
static ddp_status ddp__listen_beside(ddp__meeting *m, ddp_error *err)
{
    const char *why = ", the interface toward rank 0";
    ddp__addr own;

    if (ddp__addr_own(m->fd[0], &own) < 0)
        return ddp__fail(err, DDP_NET, "cannot determine the local address: %s", strerror(errno));
    /* a run on one machine needs no interface, even if one is set for other runs */
    if (m->r->ifname && !ddp__addr_is_loopback(&own)) {
        DDP__TRY(ddp__iface_pick(m->r->ifname, own.sa.ss_family, &own, err));
        DDP__TRY(ddp__check_reach(m, &own, err));
        why = ", chosen by DREAMDDP_SOCKET_IFNAME";
    }
    ddp__addr_set_port(&own, 0);
    return ddp__listen(m, &own, why, err);
}

/* Reads the file. Returns 1 and the addresses, or 0 and the reason in m->why. */
static int ddp__look_up(ddp__meeting *m, ddp__addr *list, int *count)
{
    char addr[DDP__MEETFILE_TEXT];
    uint64_t run = 0;
    ddp_error e;

    *count = 0;
    if (!ddp__meetfile_read(m->path, addr, &run)) {
        snprintf(m->why, sizeof m->why, "rank 0 has not yet written %.200s", m->path);
        return 0;
    }
    if (m->r->wire.self.run_id && m->r->wire.self.run_id != run) {
        snprintf(m->why, sizeof m->why,
                 "%.200s is stale: it belongs to run %" PRIu64 ", but rank %d to run %" PRIu64, m->path, run,
                 m->c.rank, m->r->wire.self.run_id);
        return 0;
    }
    if (ddp__addr_parse(addr, list, DDP__ADDRESSES, count, &e) != DDP_OK) {
        m->seen = ddp_now(); /* as in ddp__resolve */
        snprintf(m->why, sizeof m->why, "%.200s: %.200s", m->path, e.msg);
        return 0;
    }
    m->c.self.run_id = run;
    snprintf(m->named, sizeof m->named, "%s", addr);
    ddp__set_root(m, &list[0]);
    return 1;
}

/* The TLS handshake with rank 0. Returns DDP_PEER_LOST without a message if rank 0 disconnected. */
static ddp_status ddp__greet_root(ddp__meeting *m, ddp_error *err)
{
    ddp__tls *tls = m->c.tls;
    char text[DDP__STREAM_TEXT];
    const char *why;
    int done;

    if (ddp__stream_begin(tls, m->fd[0], 0) < 0)
        return ddp__fail(err, DDP_MEMORY, "out of memory for the connection to %s", m->root);
    while ((done = ddp__stream_shake(tls, m->fd[0])) == 0) {
        if (ddp__meeting_over(m))
            return ddp__fail(err, DDP_TIMEOUT,
                             "after %.3g s %s is connected but has not finished its TLS handshake",
                             m->until - m->begin, m->root);
        DDP__TRY(ddp__wait_word(m, DDP__HELLO, err));
    }
    why = done < 0                                     ? ddp__stream_why(tls, m->fd[0])
          : ddp__stream_may_be(tls, m->fd[0], 0, text) ? NULL
                                                       : text;
    if (why) return ddp__fail(err, DDP_MISMATCH, "%s %s", m->root, why);
    return done < 0 ? DDP_PEER_LOST : DDP_OK;
}

/* Connects m->fd[0]. Returns 0, or -1 and errno. A cancel ends the attempt. The caller checks for it. */
static int ddp__dial_connect(ddp__meeting *m, const ddp__addr *to)
{
    double now = ddp_now(), limit = m->until < now + 3 ? m->until : now + 3;
    int ready = 0;

    m->fd[0] = ddp__tcp_dial_begin(to);
    if (m->fd[0] < 0) return -1;
    for (; !ready && now < limit && !ddp__cancelled(m, NULL); now = ddp_now()) {
        ready = ddp__fd_wait(m->fd[0], POLLOUT, now + 0.1 < limit ? now + 0.1 : limit);
        (void)ddp__meeting_over(m);
    }
    errno = ETIMEDOUT;
    return ready ? ddp__tcp_dial_end(m->fd[0]) : -1;
}

/* Makes one attempt. Returns DDP_OK with a connection on which rank 0 has answered, or DDP_PEER_LOST and
 * m->why if it should be retried. */
static ddp_status ddp__dial_once(ddp__meeting *m, const ddp__addr *to, ddp_error *err)
{
    char text[DDP__ADDR_TEXT];
    ddp_status bad;
    ddp_error local = {DDP_OK, ""};
    ddp__hello h;

    if (ddp__dial_connect(m, to) < 0) {
        const char *broke = strerror(errno);
        if (m->fd[0] >= 0) close(m->fd[0]);
        m->fd[0] = -1;
        if (m->path)
            snprintf(m->why, sizeof m->why, "%.200s names %s: %s", m->path, m->addr, broke); /* is the file
                                                                                              * stale? */
        else
            snprintf(m->why, sizeof m->why, "%s", broke);
        return DDP_PEER_LOST;
    }
    snprintf(m->root, sizeof m->root, "rank 0 at %s", ddp__addr_text(to, text));
    if (m->acceptor.listen_fd < 0) DDP__TRY(ddp__listen_beside(m, err));
    memset(&h, 0, sizeof h);
    bad = ddp__greet_root(m, &local);
    if (!bad && ddp__hello_send(m->c.tls, m->fd[0], &m->c.self, DDP__HELLO, DDP__WELCOME, 0) < 0)
        bad = DDP_PEER_LOST;
    if (!bad) bad = ddp__frame_recv(m, 0, DDP__HELLO, &h, &local);
    if (!bad) return DDP_OK;
    /* an earlier run is ending, or rank 0 is at capacity: retry */
    snprintf(m->why, sizeof m->why, "%.200s", bad == DDP_PEER_LOST ? strerror(ECONNRESET) : local.msg);
    if (m->path && (bad == DDP_NET || (bad == DDP_MISMATCH && h.run_id != m->c.self.run_id)))
        bad = DDP_PEER_LOST; /* another program uses the port now: the file is stale */
    if (bad == DDP_PEER_LOST) {
        ddp__stream_close(m->c.tls, m->fd[0]);
        m->fd[0] = -1;
    } else if (err) {
        *err = local;
    }
    return bad;
}

/* Dials the addresses of rank 0 in turn until it answers our hello or the time-out is reached. */
static ddp_status ddp__dial(ddp__meeting *m, ddp__addr *list, int count, ddp_error *err)
{
    double pause = 0.02;
    char note[424];
    int i = 0;

    for (;;) {
        double now;
        if (ddp__meeting_over(m))
            return ddp__fail(
                err, DDP_TIMEOUT,
                "%s did not answer within %.3g s: %s; start it, check %s, or raise DREAMDDP_CONNECT_TIMEOUT",
                m->root, m->until - m->begin, m->why,
                m->path ? "that it writes the same file" : "the address");
        snprintf(note, sizeof note, ": %s", m->why);
        ddp__wait_note(m, m->root, note);
        DDP__TRY(ddp__cancelled(m, err));
        if (!m->path || i || ddp__look_up(m, list, &count)) {
            ddp_status bad;
            if (m->path) DDP__TRY(ddp__check_reach(m, &list[i], err));
            bad = ddp__dial_once(m, &list[i], err);
            if (bad != DDP_PEER_LOST) return bad;
        }
        i = count ? (i + 1) % count : 0;
        if (i) continue;
        now = ddp_now();
        ddp__sleep_until(now + pause < m->until ? now + pause : m->until);
        if (pause < 0.3) pause *= 1.5;
    }
}

/* Time limit of mesh set-up. It is generous, since all ranks of a busy machine start at once. */
static double ddp__mesh_until(const ddp__meeting *m)
{
    return ddp_now() + (m->join_s > DDP__MESH_LIMIT ? m->join_s : DDP__MESH_LIMIT);
}

/* Dials all lower ranks. Returns when rank 0 has sent GO. */
static ddp_status ddp__mesh_worker(ddp__meeting *m, ddp_error *err)
{
    char text[128];
    int missing;

    m->meshing = 1;
    m->until = ddp__mesh_until(m);
    DDP__TRY(ddp__mesh_begin(m, err));
    while ((missing = ddp__missing(m, text, sizeof text)) > 0 || !m->go) {
        if (!missing && !m->ready &&
            ddp__hello_send(m->c.tls, m->fd[0], &m->c.self, DDP__READY, DDP__WELCOME, 0) < 0)
            return ddp__fail(err, DDP_PEER_LOST, "%s disconnected during the rendezvous: %s", m->root,
                             strerror(errno));
        m->ready |= !missing;
        if (ddp__meeting_over(m))
            return ddp__fail(err, DDP_TIMEOUT, "after %.3g s rank %d still waits for %s", m->until - m->begin,
                             m->c.rank, missing ? text : "rank 0, which waits for others to be ready");
        DDP__TRY(ddp__meeting_poll(m, missing ? text : m->root, "", err));
    }
    return DDP_OK;
}

/* Rank 0: waits until all ranks are ready and all relayed pairs are joined. */
static ddp_status ddp__mesh_root(ddp__meeting *m, ddp_error *err)
{
    char name[32];
    int p;

    m->meshing = 1;
    m->until = ddp__mesh_until(m);
    for (;;) {
        for (p = 1; p < m->r->world && m->leg[p].ready;) p++;
        if (p == m->r->world && !ddp__count(m->pairs.pair)) break;
        if (p < m->r->world)
            snprintf(name, sizeof name, "rank %d", p);
        else
            snprintf(name, sizeof name, "a relayed pair");
        if (ddp__meeting_over(m)) {
            m->lost = p < m->r->world ? p : m->pairs.pair[0].low;
            return ddp__fail(err, DDP_TIMEOUT, "after %.3g s %s is not connected to all other ranks",
                             m->until - m->begin, name);
        }
        DDP__TRY(ddp__meeting_poll(m, name, " to connect to all other ranks", err));
    }
    return DDP_OK;
}

static ddp_status ddp__meet_as_worker(ddp__meeting *m, ddp__addr *list, int count, ddp_error *err)
{
    ddp__hello h;

    DDP__TRY(ddp__dial(m, list, count, err));
    m->until = m->begin + m->join_s;
    DDP__TRY(ddp__frame_recv(m, 0, DDP__TABLE, &h, err));
    if (ddp__stream_recv_all(m->c.tls, m->fd[0], m->table, (size_t)m->r->world * DDP__ENTRY_BYTES, NULL,
                             m->until) < 0)
        return ddp__fail(err, DDP_PEER_LOST, "%s disconnected during the rendezvous: %s", m->root,
                         strerror(errno));
    return ddp__mesh_worker(m, err);
}

/* Notifies the connected ranks why the run does not start. */
static void ddp__call_off(ddp__meeting *m, ddp__refusal reason, int detail)
{
    for (int p = 1; p < m->r->world; p++)
        if (m->fd[p] >= 0)
            (void)ddp__hello_send(m->c.tls, m->fd[p], &m->c.self, DDP__REFUSED, reason, detail);
}

static ddp_status ddp__meet_as_root(ddp__meeting *m, ddp_error *err)
{
    char text[128];
    ddp_status bad = ddp__gather(m, err);
    int p, world = m->r->world;

    if (bad) {
        ddp__call_off(m, DDP__REFUSE_LATE, world - ddp__missing(m, text, sizeof text));
        return bad;
    }
    ddp__hello_pack(&m->c.self, DDP__TABLE, DDP__WELCOME, 0, m->table);
    for (p = 1; p < world; p++) { /* listening addresses of all ranks */
        unsigned char *entry = m->table + DDP__HELLO_BYTES + (size_t)p * DDP__ENTRY_BYTES;
        ddp__hello_put(entry + 2, (uint64_t)ddp__addr_port(&m->where[p]), 2);
        ddp__hello_put(entry, ddp__ip_pack(&m->where[p], entry + 8), 2);
    }
    for (p = 1; p < world; p++) /* if a send fails, that rank does not become ready */
        ddp__stream_send_all(m->c.tls, m->fd[p], m->table,
                             DDP__HELLO_BYTES + (size_t)world * DDP__ENTRY_BYTES, ddp__mesh_until(m));
    bad = ddp__mesh_root(m, err);
    if (bad) {
        ddp__call_off(m, DDP__REFUSE_LOST, m->lost);
        return bad;
    }
    for (p = 1; p < world; p++)
        if (ddp__hello_send(m->c.tls, m->fd[p], &m->c.self, DDP__GO, DDP__WELCOME, 0) < 0)
            return ddp__fail(err, DDP_PEER_LOST, "rank %d disconnected during the rendezvous: %s", p,
                             strerror(errno));
    return DDP_OK;
}

/* Chooses the address of rank 0: a free port of the interface that other machines reach, or of loopback. */
static ddp_status ddp__choose_address(const ddp__meeting *m, ddp__addr *a, ddp_error *err)
{
    int count;

    if (m->r->ifname) return ddp__iface_pick(m->r->ifname, AF_INET, a, err);
    if (!m->r->insecure && !m->c.tls) return ddp__addr_parse("127.0.0.1:0", a, 1, &count, err);
    ddp__iface_default(a);
    return DDP_OK;
}

/* If a machine's own name resolves to 127.0.1.1 (Debian's /etc/hosts), uses the address that its name has on
 * the network. */
static ddp_status ddp__no_local_alias(const ddp__meeting *m, ddp__addr *a, ddp_error *err)
{
    int port = ddp__addr_port(a);

    if ((!m->r->insecure && !m->c.tls) || a->sa.ss_family != AF_INET ||
        ntohl(a->in.sin_addr.s_addr) != 0x7f000101 || strstr(m->r->addr, "127.0.1.1"))
        return DDP_OK;
    DDP__TRY(ddp__choose_address(m, a, err));
    ddp__addr_set_port(a, port);
    return DDP_OK;
}

/* Resolves a name, which may start to exist only after this rank has started (Kubernetes, Docker Compose).
 * Retries as after a refused connection. */
static ddp_status ddp__resolve(ddp__meeting *m, const char *spec, ddp__addr *list, int *count, ddp_error *err)
{
    const double limit = m->r->timeout_s > 0 ? m->r->timeout_s : 30; /* also on rank 0, whose m->until is the
                                                                      * time-out for all ranks */
    double pause = 0.05;

    for (;;) {
        ddp_error local = {DDP_OK, ""};
        ddp_status bad = ddp__addr_parse(spec, list, DDP__ADDRESSES, count, &local);
        m->seen = ddp_now(); /* a slow look-up is not a stop of this process: it counts towards the time-out
                              * */
        if (bad != DDP_NET) {
            if (bad && err) *err = local;
            return bad;
        }
        DDP__TRY(ddp__cancelled(m, err));
        (void)ddp__meeting_over(m);
        if (ddp_now() >= m->begin + limit)
            return ddp__fail(err, DDP_TIMEOUT,
                             "%.340s, after retries for %.3g s; check the name, or raise "
                             "DREAMDDP_CONNECT_TIMEOUT if it appears later",
                             local.msg, limit);
        ddp__wait_note(m, "the name of rank 0: ", local.msg);
        ddp__sleep_until(fmin(ddp_now() + pause, m->begin + limit));
        if (pause < 0.3) pause *= 1.5;
    }
}

/* Finds the addresses of rank 0. Finds no address if a file will contain it. */
static ddp_status ddp__find_root(ddp__meeting *m, ddp__addr *list, int *count, ddp_error *err)
{
    const ddp__rendezvous *r = m->r;

    if (m->acceptor.listen_fd >= 0) {
        if (ddp__fd_prepare(m->acceptor.listen_fd) < 0 || ddp__addr_own(m->acceptor.listen_fd, &list[0]) < 0)
            return ddp__fail(err, DDP_ARG, "descriptor %d is not a listening socket: %s",
                             m->acceptor.listen_fd, strerror(errno));
        *count = 1;
    } else if (m->path) {
        if (!*m->path)
            return ddp__fail(err, DDP_ARG,
                             "address '%.100s' names no file: write file:///PATH, for example "
                             "file:///tmp/run1",
                             r->addr);
        snprintf(m->root, sizeof m->root, "rank 0");
        if (m->c.rank) return DDP_OK;
        DDP__TRY(ddp__choose_address(m, &list[0], err));
        *count = 1;
    } else {
        DDP__TRY(ddp__resolve(m, r->addr ? r->addr : "127.0.0.1", list, count, err));
        if (ddp__addr_port(&list[0]) == 0)
            return ddp__fail(err, DDP_ARG,
                             "address '%.100s': with port 0 the other ranks do not know the address: choose "
                             "a port, for example %d, or file:///PATH, a file to which rank 0 writes it",
                             r->addr, DDP__DEFAULT_PORT);
        if (r->addr) DDP__TRY(ddp__no_local_alias(m, &list[0], err));
    }
    ddp__set_root(m, &list[0]);
    for (int i = 0; i < *count; i++) DDP__TRY(ddp__check_reach(m, &list[i], err));
    return DDP_OK;
}

/* Checks the address, listens (rank 0), and runs the rendezvous. */
static ddp_status ddp__meet(ddp__meeting *m, ddp_error *err)
{
    ddp__addr list[DDP__ADDRESSES];
    ddp_status bad;
    char line[DDP__MEETFILE_TEXT];
    int n, count = 0;

    memset(list, 0, sizeof list);
    DDP__TRY(ddp__find_root(m, list, &count, err));
    if (m->c.rank) return ddp__meet_as_worker(m, list, count, err);
    DDP__TRY(ddp__listen(m, &list[0], m->path ? ", written to the address file" : "", err));
    ddp__set_root(m, &list[0]);
    if (!m->path) return ddp__meet_as_root(m, err);
    if (!m->c.self.run_id) m->c.self.run_id = ddp__fresh_number(); /* so that a stale file is recognised */
    n = snprintf(line, sizeof line, "%s %" PRIu64 "\n", m->addr, m->c.self.run_id);
    DDP__TRY(ddp__file_write(m->path, line, (size_t)n, err));
    bad = ddp__meet_as_root(m, err);
    if (ddp__meetfile_says(m->path, m->addr, m->c.self.run_id) == 1) unlink(m->path);
    return bad;
}

/* Allocates the arrays of a rendezvous. Returns 0 if memory is short. */
static int ddp__meeting_alloc(ddp__meeting *m)
{
    size_t world = (size_t)m->c.world;

    int acceptor = ddp__acceptor_open(&m->acceptor, &m->c, ddp__meeting_decide, m);

    m->polls = (struct pollfd *)ddp__calloc((size_t)m->acceptor.room + 1 + 2 * world, sizeof *m->polls);
    m->fd = (int *)ddp__calloc(world, sizeof *m->fd);
    m->where = (ddp__addr *)ddp__calloc(world, sizeof *m->where);
    m->table = (unsigned char *)ddp__calloc(DDP__HELLO_BYTES + world * DDP__ENTRY_BYTES, 1);
    m->leg = (ddp__leg *)ddp__calloc(world, sizeof *m->leg);
    m->relayed = (unsigned char *)ddp__calloc(world, 1);
    for (int i = 0; m->fd && i < m->c.world; i++) m->fd[i] = -1;
    for (int i = 0; m->leg && i < m->c.world; i++) m->leg[i].fd = -1;
    return acceptor && m->polls && m->fd && m->where && m->table && m->leg && m->relayed;
}

/* Frees everything that the wire does not own. */
static void ddp__meeting_free(ddp__meeting *m, int failed)
{
    for (int i = 0; failed && m->fd && i < m->r->world; i++) ddp__stream_close(m->c.tls, m->fd[i]);
    for (int i = 0; m->leg && i < m->r->world; i++) ddp__stream_close(m->c.tls, m->leg[i].fd);
    if (failed) ddp__relay_close(m->c.relay);
    ddp__pairs_close(&m->pairs);
    ddp__acceptor_close(&m->acceptor);
    DDP_FREE(m->polls);
    DDP_FREE(m->fd);
    DDP_FREE(m->where);
    DDP_FREE(m->table);
    DDP_FREE(m->leg);
    DDP_FREE(m->relayed);
}

/* Creates the wire. A wire with reconnection keeps the listening socket and the addresses of all ranks. */
static ddp_status ddp__meeting_wire(ddp__meeting *m, ddp__wire **out, ddp_error *err)
{
    const ddp__rendezvous *r = m->r;

    for (int p = 0; p < r->world; p++) {
        if (p == m->c.rank || (m->relayed[p] && !ddp__table_where(m, p, &m->where[p])))
            m->where[p].size = 0;
        else if (m->relayed[p])
            continue;
        else if (p < m->c.rank)
            (void)ddp__addr_peer(m->fd[p], &m->where[p]); /* higher ranks have sent their listening address */
    }
    m->c.fds = m->fd;
    m->c.where = m->where;
    m->c.relayed = m->relayed;
    m->c.once = !r->resume;
    m->c.listen_fd = r->resume ? m->acceptor.listen_fd : -1;
    m->c.self.world = (uint32_t)m->c.world;
    DDP__TRY(ddp__wire_tcp(&m->c, out, err));
    if (r->resume) m->acceptor.listen_fd = -1; /* the wire owns it now */
    return DDP_OK;
}

ddp_status ddp__rendezvous_tcp(const ddp__rendezvous *r, ddp__wire **out, ddp_error *err)
{
    ddp__meeting m;
    ddp_status bad = DDP_OK;
    int rank = r->wire.rank, ids = r->resume && r->wire.world > r->world ? r->wire.world : r->world;

    memset(&m, 0, sizeof m);
    m.r = r;
    m.acceptor.listen_fd = rank == 0 ? r->wire.listen_fd : -1;
    if (m.acceptor.listen_fd < 0 && r->addr && !strncmp(r->addr, "file://", 7)) m.path = r->addr + 7;
    m.c = r->wire;
    m.c.world = ids;
    m.c.self.version = DDP__PROTOCOL;
    m.c.self.rank = (uint32_t)rank;
    m.c.self.world = ddp__hello_world(r->world, ids) | (r->resume ? DDP__HELLO_RESUMES : 0);
    m.pairs.c = &m.c;
    m.begin = m.seen = ddp_now();
    m.until = m.begin + (r->timeout_s > 0 ? r->timeout_s : 30);
    m.join_s = r->join_timeout_s > 0 ? r->join_timeout_s : m.until - m.begin;
    if (rank == 0) m.until = m.begin + m.join_s;
    m.next_note = m.begin + 5;
    if (r->world < 1 || r->world > 4096 || rank < 0 || rank >= r->world)
        bad = ddp__fail(err, DDP_ARG,
                        "rank %d of %d ranks is invalid: ranks count from 0, and a run has 1 to 4096", rank,
                        r->world);
    else if (ids > 1)
        bad =
            ddp__fd_room(5 * ids + DDP__CALLERS + 16, ids + 16, err); /* including the callers of the acceptor
                                                                         * */
    if (!bad && !ddp__meeting_alloc(&m))
        bad = ddp__fail(err, DDP_MEMORY, "out of memory for the rendezvous of %d ranks", r->world);
    if (!bad && ids > 1) bad = ddp__meet(&m, err);
    if (!bad && m.next_note > m.begin + 5)
        ddp__log(&m.c.log, DDP_LOG_WARN, "rank %d: all ranks are connected after %.1f s", rank,
                 ddp_now() - m.begin);
    if (!bad) bad = ddp__meeting_wire(&m, out, err);
    ddp__meeting_free(&m, bad != DDP_OK);
    return bad;
}
