/* A joining worker: finds the run, gets an id, receives a clone, connects to all members and waits for its
 * entry. Retries if a member is lost. */
#include "member/elastic.h"
#include "member/join.h"

static const double ddp__reach_limit = 10; /* maximum time to connect to a member, in seconds, */
static const double ddp__direct_limit = 3; /* and the part of it for the reply to a direct connection */

/* ---- connections ---- */

/* Connects and completes the handshake. Returns the socket or -1. *why is set if the other end has another
 * key, or is not a worker of the run. */
static int ddp__joiner_dial(const ddp__joiner *j, const ddp__addr *to, double until, char *why)
{
    ddp__tls *tls = j->c.tls;
    double limit = ddp_now() + 3 < until ? ddp_now() + 3 : until;
    char name[DDP__ADDR_TEXT], their[DDP__STREAM_NAME], text[DDP__STREAM_TEXT];
    const char *refused = NULL;
    int fd = ddp__tcp_dial(to, limit), id;

    if (fd < 0) return -1;
    if (ddp__stream_begin(tls, fd, 0) == 0) {
        if (ddp__stream_greet(tls, fd, limit))
            refused = ddp__stream_why(tls, fd);
        else if (ddp__stream_may_join(tls, fd, &id, their, text))
            return fd;
        else
            refused = text;
        if (refused) snprintf(why, DDP__JOIN_TEXT, "%s %.200s", ddp__addr_text(to, name), refused);
    }
    ddp__stream_close(tls, fd);
    return -1;
}

/* Notifies the coordinator once a second that this worker lives. */
static void ddp__joiner_beat(ddp__joiner *j)
{
    double now = ddp_now();

    if (j->fd < 0 || now < j->beat_at) return;
    j->beat_at = now + 1;
    (void)ddp__stream_send_all(j->tls, j->fd, ".", 1, now); /* a lost coordinator is detected later */
}

/* Sets *why to the reason of a permanent rejection by a member. got: bytes of the reply. */
static void ddp__joiner_refused(const ddp__joiner *j, const ddp__addr *to, const unsigned char *b, size_t got,
                                char *why)
{
    char name[DDP__ADDR_TEXT];
    ddp__hello h;

    ddp__addr_text(to, name);
    if (got < DDP__HELLO_BYTES || !ddp__hello_parse(b, &h)) {
        if (!j->c.tls && ddp__stream_is_tls(b, got))
            snprintf(why, DDP__JOIN_TEXT,
                     "%s uses TLS, but this worker does not: give it the same --tls-psk, or a certificate",
                     name);
    } else if (h.reason == DDP__REFUSE_NAME) {
        snprintf(why, DDP__JOIN_TEXT,
                 "%s accepts only certificates with a name rank-R or join-NAME; the certificate of this "
                 "worker has neither",
                 name);
    } else if (h.run_id != j->c.run_id) {
        snprintf(why, DDP__JOIN_TEXT,
                 "%s belongs to run %" PRIu64 ", but this worker to run %" PRIu64 ": set the same "
                 "DREAMDDP_RUN_ID",
                 name, h.run_id, j->c.run_id);
    } else {
        snprintf(why, DDP__JOIN_TEXT,
                 "%s does not accept joining workers: its run was started without --min-world", name);
    }
}

int ddp__joiner_request(ddp__joiner *j, const ddp__addr *to, ddp__join_verb verb, int wanted,
                        unsigned char *b, size_t n, double until, char *why)
{
    unsigned char out[DDP__HELLO_BYTES + DDP__JOIN_REQUEST] = {0}, *request = out + DDP__HELLO_BYTES;
    int fd = ddp__joiner_dial(j, to, until, why);
    ddp__hello self;
    size_t got = 0;

    j->connected = fd >= 0;
    if (fd < 0) return -1;
    memset(&self, 0, sizeof self);
    self.version = DDP__PROTOCOL;
    self.run_id = j->c.run_id;
    ddp__hello_pack(&self, DDP__JOIN_ASK, DDP__WELCOME, 0, out);
    ddp__hello_put(request, verb, 4);
    ddp__hello_put(request + 4, (uint64_t)(wanted + 1), 4);
    ddp__hello_put(request + 8, j->have, 8);
    ddp__hello_put(request + 16, j->number, 8);
    if (ddp__stream_send_all(j->c.tls, fd, out, sizeof out, ddp_now() + 5) == 0) {
        while (!ddp__stream_wait(j->c.tls, fd, ddp_now() + 0.5) && ddp_now() < until &&
               !(j->stop && ddp__atomic_load(j->stop)))
            ddp__joiner_beat(j);
        if (!(j->stop && ddp__atomic_load(j->stop)) &&
            ddp__stream_recv_all(j->c.tls, fd, b, n, &got, ddp_now() + 5) == 0 && !ddp__hello_begins(b, 8))
            return fd;
    }
    ddp__joiner_refused(j, to, b, got, why);
    ddp__stream_close(j->c.tls, fd);
    return -1;
}

/* ---- an id ---- */

static void ddp__place_read(const unsigned char *b, ddp__join_place *p)
{
    int *const field[5] = {&p->code, &p->id, &p->world, &p->coordinator, &p->min_world};

    memset(p, 0, sizeof *p);
    for (int i = 0; i < 5; i++) *field[i] = (int)(uint32_t)ddp__hello_get(b + 4 * i, 4);
    p->live = ddp__hello_get(b + 24, 8);
    for (int i = 0; i < DDP__JOIN_CHOSEN; i++) p->chosen[i] = (int)ddp__hello_get(b + 32 + 4 * i, 4);
    for (int r = 0; r < DDP__JOIN_WORLD; r++) {
        const unsigned char *e = b + 512 + 24 * r;
        if (!ddp__ip_parse((uint32_t)ddp__hello_get(e, 4), e + 8, &p->address[r])) continue;
        ddp__addr_set_port(&p->address[r], (int)(ddp__hello_get(e + 4, 4) & 65535));
    }
    if (p->world < 2 || p->world > DDP__JOIN_WORLD || p->coordinator < 0 || p->coordinator >= p->world ||
        p->min_world < 1 || (p->code == DDP__JOIN_OK && (p->id < 0 || p->id >= p->world)))
        p->code = DDP__JOIN_LATER; /* malformed: retry */
}

/* Asks a member for an id, and then the coordinator that it names. */
static int ddp__joiner_ask(ddp__joiner *j, const ddp__addr *to, int wanted, double until, char *why)
{
    unsigned char b[DDP__JOIN_PLACE];
    ddp__addr at = *to;

    for (int turn = 0; turn < 3 && at.size; turn++) {
        double limit = ddp_now() + 5 < until ? ddp_now() + 5 : until;
        int fd = ddp__joiner_request(j, &at, DDP__JOIN_ENTER, wanted, b, sizeof b, limit, why);
        if (fd < 0) return DDP__JOIN_LATER;
        ddp__place_read(b, &j->place);
        if (j->place.code == DDP__JOIN_OK && ddp__stream_part(j->c.tls, fd, &j->tls) == 0) {
            j->fd = fd;
            j->place.address[j->place.coordinator] = at; /* a coordinator with NAT does not know its public
                                                         address */
            for (int r = 0; r < j->place.world; r++) /* members to ask first, if the coordinator is lost */
                if (j->place.live >> r & 1 && j->place.address[r].size && j->addresses < DDP__JOIN_WORLD)
                    j->at[j->addresses++] = j->place.address[r];
            return DDP__JOIN_OK;
        }
        ddp__stream_close(j->c.tls, fd);
        if (j->place.code == DDP__JOIN_OK) return DDP__JOIN_LATER;
        if (j->place.code != DDP__JOIN_ELSEWHERE) return j->place.code;
        at = j->place.address[j->place.coordinator];
    }
    return DDP__JOIN_LATER;
}

/* Resolves the addresses of --addr, separated by commas, that have not been resolved: a name may appear
 * later. unresolved: the error of the last one that failed, or "". */
static ddp_status ddp__joiner_addresses(ddp__joiner *j, char *unresolved, ddp_error *err)
{
    const char *s = j->c.addr ? j->c.addr : "127.0.0.1";
    char one[300], text[DDP__ADDR_TEXT];

    unresolved[0] = 0;
    for (unsigned bit = 1; *s && bit < 1u << 8; bit <<= 1) {
        const size_t n = strcspn(s, ",");
        ddp_error local = {DDP_OK, ""};
        ddp_status bad = DDP_OK;
        int count = 0;
        snprintf(one, sizeof one, "%.*s", (int)n, s);
        s += n + (s[n] == ',');
        if (j->resolved & bit) continue;
        bad = ddp__addr_parse(one, &j->at[j->addresses], 1, &count, &local);
        if (bad == DDP_NET) {
            snprintf(unresolved, DDP__JOIN_TEXT, "%.290s", local.msg);
            continue;
        }
        if (bad) return ddp__fail(err, bad, "%s", local.msg);
        if (!j->c.insecure && !j->c.tls && !ddp__addr_is_loopback(&j->at[j->addresses]))
            return ddp__fail(err, DDP_ARG,
                             "%s is not a loopback address: use --tls-psk, or --insecure if the network "
                             "can be trusted",
                             ddp__addr_text(&j->at[j->addresses], text));
        j->resolved |= bit;
        j->addresses += count;
    }
    return DDP_OK;
}

static ddp_status ddp__joiner_place(ddp__joiner *j, int wanted, double until, ddp_error *err)
{
    const char *addr = j->c.addr ? j->c.addr : "127.0.0.1";
    char why[DDP__JOIN_TEXT] = "", unresolved[DDP__JOIN_TEXT] = "";
    int code = DDP__JOIN_LATER, addresses, connected = 0;

    for (;;) {
        /* a look-up may block for seconds: skip it while another address leads to a member */
        if (!connected) DDP__TRY(ddp__joiner_addresses(j, unresolved, err));
        addresses = j->addresses;
        connected = 0;
        for (int i = 0; i < addresses && code != DDP__JOIN_OK && ddp_now() < until; i++) {
            code = ddp__joiner_ask(j, &j->at[i], wanted, until, why);
            connected |= j->connected;
        }
        if (code == DDP__JOIN_OK) return DDP_OK;
        if (why[0]) return ddp__fail(err, DDP_MISMATCH, "%s", why);
        if (ddp_now() >= until) break;
        ddp__sleep_until(ddp_now() + 0.2);
    }
    if (!addresses && unresolved[0])
        return ddp__fail(err, DDP_TIMEOUT,
                         "%s, after retries for %.3g s; check the name, or raise "
                         "DREAMDDP_CONNECT_TIMEOUT if it appears later",
                         unresolved, j->c.connect_timeout_s);
    if (code == DDP__JOIN_FULL)
        return ddp__fail(err, DDP_TIMEOUT,
                         "the run is full: all %d ranks are live; raise max_world, or wait until one is lost",
                         j->place.world);
    if (code == DDP__JOIN_TAKEN)
        return ddp__fail(err, DDP_TIMEOUT,
                         "the certificate of this worker allows only rank %d, which is not free in the run "
                         "of %d ranks: use the certificate of a lost worker, or one with a name join-NAME",
                         j->place.id, j->place.world);
    if (j->place.world && j->place.code == DDP__JOIN_LATER)
        return ddp__fail(err, DDP_TIMEOUT,
                         "after %.3g s the run at %.200s is still not ready for this worker: training has "
                         "not started, or another worker is joining; end a joining worker that makes no "
                         "progress, or raise DREAMDDP_CONNECT_TIMEOUT",
                         j->c.connect_timeout_s, addr);
    return ddp__fail(err, DDP_TIMEOUT,
                     "after %.3g s no worker at %.200s has accepted this one: check that the run is active, "
                     "uses --min-world and has a free rank",
                     j->c.connect_timeout_s, addr);
}

const ddp__join_place *ddp__joiner_found(const ddp__joiner *j) { return &j->place; }

ddp_status ddp__joiner_open(const ddp__join_config *c, ddp__joiner **out, ddp_error *err)
{
    ddp__joiner *j = (ddp__joiner *)ddp__calloc(1, sizeof *j);

    *out = j;
    if (!j) return ddp__fail(err, DDP_MEMORY, "out of memory for joining a run");
    j->fd = -1;
    j->c = *c;
    return ddp__joiner_place(j, -1, ddp_now() + c->connect_timeout_s, err);
}

void ddp__joiner_again(ddp__joiner *j)
{
    ddp__stream_close(j->tls, j->fd);
    ddp__tls_free(j->tls);
    j->tls = NULL;
    j->fd = -1;
}

void ddp__joiner_close(ddp__joiner *j)
{
    if (!j) return;
    ddp__joiner_again(j);
    if (j->clone) DDP_FREE(j->clone);
    DDP_FREE(j);
}

void ddp__joiner_disown(ddp__joiner *j)
{
    if (j) ddp__fd_close(&j->fd);
}

/* ---- the clone ---- */

/* Sends the layout. Receives a donor and the set of live members. */
static ddp_status ddp__joiner_layout(ddp__joiner *j, const ddp__join_layout *l, ddp_error *err)
{
    unsigned char b[DDP__JOIN_VERDICT];

    if (ddp__stream_send_all(j->tls, j->fd, &l->says, sizeof l->says, ddp_now() + 5) < 0 ||
        ddp__stream_recv_all(j->tls, j->fd, b, sizeof b, NULL, ddp_now() + 5) < 0)
        return ddp__fail(err, DDP_PEER_LOST, "the coordinator was lost");
    b[64 + DDP__JOIN_TEXT - 1] = 0;
    if (ddp__hello_get(b, 4) == DDP__JOIN_NEVER)
        return ddp__fail(err, DDP_MISMATCH, "%s", (const char *)b + 64);
    j->donor = (int)ddp__hello_get(b + 4, 4);
    j->unreached = 0;
    j->place.live = ddp__hello_get(b + 8, 8);
    if (j->donor < 0 || j->donor >= j->place.world || j->place.live >> j->place.id & 1)
        return ddp__fail(err, DDP_PEER_LOST,
                         "malformed reply from the coordinator; check that all workers run "
                         "version " DDP_VERSION_STRING);
    return DDP_OK;
}

ddp_status ddp__joiner_fits(const ddp__joiner *j, const ddp__worker *s, uint64_t bytes, ddp_error *err)
{
    const double total = ddp__memory_total();
    size_t most = 0;
    int states = 0;

    DDP__TRY(ddp__worker_most(s, &most, err));
    for (int i = 0; i < s->tensors; i++) states |= s->tensor[i].flags & DDP__WORKER_PROGRAM;
    if (bytes < 8 || (!states && bytes > most))
        return ddp__fail(err, DDP_MISMATCH,
                         "rank %d offers a clone of %" PRIu64 " bytes, but this model needs at most %zu",
                         j->donor, bytes, most);
    if (total > 0 && (double)bytes > total)
        return ddp__fail(err, DDP_MEMORY,
                         "rank %d offers a clone of %" PRIu64
                         " bytes, but this process may use only %.0f: join on a machine with more memory, or "
                         "reduce the states of ddp_add_state",
                         j->donor, bytes, total);
    return DDP_OK;
}

/* Allocates memory for the donor's clone, unless the transfer resumes. */
static ddp_status ddp__clone_room(ddp__joiner *j, const ddp__worker *s, const unsigned char *b,
                                  ddp_error *err)
{
    uint64_t number = ddp__hello_get(b, 8), bytes = ddp__hello_get(b + 8, 8),
             from = ddp__hello_get(b + 16, 8);

    if (number == j->number && from == j->have && j->clone) {
        if (from)
            ddp__log(&j->c.log, DDP_LOG_INFO, "rank %d: the clone resumes at %.1f MiB", j->place.id,
                     (double)from / (1 << 20));
        return DDP_OK;
    }
    if (from || !number)
        return ddp__fail(err, DDP_MISMATCH,
                         "rank %d offers clone %" PRIu64 " from byte %" PRIu64 ", which was not requested",
                         j->donor, number, from);
    DDP__TRY(ddp__joiner_fits(j, s, bytes, err));
    if (j->clone) DDP_FREE(j->clone);
    j->clone = (unsigned char *)DDP_REALLOC(NULL, (size_t)bytes);
    if (!j->clone) return ddp__fail(err, DDP_MEMORY, "out of memory for a clone of %" PRIu64 " bytes", bytes);
    j->number = number;
    j->bytes = (size_t)bytes;
    j->have = 0;
    return DDP_OK;
}

static ddp_status ddp__clone_read(ddp__joiner *j, int fd)
{
    const size_t from = j->have;
    double begin = ddp_now(), note = begin, rate;

    while (j->have < j->bytes) {
        size_t n = j->bytes - j->have < ((size_t)64 << 10) ? j->bytes - j->have : (size_t)64 << 10;
        size_t got = 0;
        int bad =
            ddp__stream_recv_all(j->c.tls, fd, j->clone + j->have, n, &got, ddp_now() + j->c.peer_timeout_s);
        double now = ddp_now();
        j->have += got;
        if (bad < 0) return DDP_PEER_LOST;
        ddp__joiner_beat(j);
        if (now < note + 1 && j->have < j->bytes) continue;
        note = now;
        rate = (double)(j->have - from) / (now > begin ? now - begin : 1e-9);
        ddp__log(&j->c.log, DDP_LOG_INFO,
                 "rank %d: clone of rank %d: %.1f of %.1f MiB, %.1f MiB/s, %.0f s left", j->place.id,
                 j->donor, (double)j->have / (1 << 20), (double)j->bytes / (1 << 20), rate / (1 << 20),
                 rate > 0 ? (double)(j->bytes - j->have) / rate : 0.0);
    }
    return DDP_OK;
}

/* Receives a clone. b: the reply to TAKE. The bytes follow the reply, from where the last transfer ended if
 * the donor still has that clone. */
static ddp_status ddp__clone_stream(ddp__joiner *j, const ddp__worker *s, int fd, const unsigned char *b,
                                    ddp_error *err)
{
    unsigned char digest[2][DDP__SHA256_BYTES];

    DDP__TRY(ddp__clone_room(j, s, b, err));
    DDP__TRY(ddp__clone_read(j, fd));
    ddp__sha256(j->clone, j->bytes, digest[1]);
    /* the donor computes the hash at the same time, on cores that train */
    if (ddp__stream_recv_all(j->c.tls, fd, digest[0], sizeof digest[0], NULL, ddp_now() + 60) < 0)
        return DDP_PEER_LOST;
    if (!memcmp(digest[0], digest[1], sizeof digest[0])) return DDP_OK;
    ddp__log(&j->c.log, DDP_LOG_WARN, "rank %d: the clone of rank %d was damaged in transit", j->place.id,
             j->donor);
    j->number = 0;
    j->have = 0;
    return DDP_PEER_LOST;
}

static ddp_status ddp__joiner_clone(ddp__joiner *j, ddp__worker *s, double until, ddp_error *err)
{
    uint64_t left = j->place.live; /* members to ask: any of them can send a clone */
    unsigned char b[DDP__JOIN_CLONE];
    ddp_status code = DDP_PEER_LOST;
    char why[DDP__JOIN_TEXT] = "";
    ddp_safetensors *f;

    for (int tries = 1; code == DDP_PEER_LOST && ddp_now() < until; tries++) {
        const int fd = ddp__joiner_request(j, &j->place.address[j->donor], DDP__JOIN_TAKE, -1, b, sizeof b,
                                           ddp_now() + j->c.op_timeout_s, why);
        if (fd >= 0) code = ddp__clone_stream(j, s, fd, b, err);
        ddp__stream_close(j->c.tls, fd);
        if (code != DDP_PEER_LOST) break;
        if (!j->connected) j->unreached |= ddp__bit(j->donor);
        if (j->connected && tries < 3) {
            ddp__sleep_until(ddp_now() + 0.2);
            continue;
        }
        left &= ~ddp__bit(j->donor);
        if (!left) break;
        for (j->donor = 63; !(left >> j->donor & 1);) j->donor--;
        tries = 0;
    }
    if (code == DDP_PEER_LOST)
        return ddp__fail(err, code,
                         "no member of the run sent a copy of the model; the last one tried is rank %d",
                         j->donor);
    DDP__TRY(code);
    f = ddp_safetensors_from_bytes("the clone", j->clone, j->bytes, err);
    if (!f) return err->code;
    code = ddp__worker_fits(s, f, "the clone", err);
    if (code == DDP_OK) code = ddp__worker_read(s, f, -1, "the clone", err);
    if (code == DDP_OK) code = ddp__worker_load(s, f, "the clone", err);
    ddp_safetensors_close(f);
    for (int i = 0; code == DDP_OK && i < s->tensors; i++)
        if (s->tensor[i].flags & DDP__WORKER_PROGRAM && !(s->tensor[i].flags & DDP__WORKER_FOUND))
            code = ddp__fail(err, DDP_MISMATCH, "the clone of rank %d lacks the state '%s' (ddp_add_state)",
                             j->donor, s->tensor[i].name + sizeof DDP__PROGRAM - 1);
    return code;
}

/* ---- the entry ---- */

/* Sends the hello of the entry on a connected socket and reads the reply: returns 0, or -1 if the other end
 * is not rank r. */
static int ddp__entry_greet(const ddp__joiner *j, const ddp__hello *self, int fd, int r, double until)
{
    unsigned char b[DDP__HELLO_BYTES];
    ddp__hello h;

    ddp__hello_pack(self, DDP__JOIN_MESH, DDP__WELCOME, 0, b);
    if (ddp__stream_send_all(j->c.tls, fd, b, sizeof b, until) < 0 ||
        ddp__stream_recv_all(j->c.tls, fd, b, sizeof b, NULL, until) < 0 || !ddp__hello_parse(b, &h))
        return -1;
    return h.kind == DDP__JOIN_MESH && h.rank == (uint32_t)r && h.run_id == self->run_id ? 0 : -1;
}

/* A connection to rank r through the coordinator, to which r also connects, or -1. */
static int ddp__joiner_relay(ddp__joiner *j, const ddp__hello *self, int r, double until)
{
    const int relay = j->place.coordinator;
    unsigned char b[DDP__HELLO_BYTES];
    char why[DDP__JOIN_TEXT], name[DDP__STREAM_NAME], text[DDP__STREAM_TEXT];
    const int fd = ddp__joiner_dial(j, &j->place.address[relay], until, why);
    ddp__hello h;
    int id;

    if (fd < 0) return -1;
    ddp__hello_pack(self, DDP__RELAY, DDP__WELCOME, r, b);
    if (ddp__stream_send_all(j->c.tls, fd, b, sizeof b, until) == 0 &&
        ddp__stream_recv_all(j->c.tls, fd, b, sizeof b, NULL, until) == 0 && ddp__hello_parse(b, &h) &&
        h.kind == DDP__RELAY && h.rank == (uint32_t)relay && h.detail == (uint32_t)r &&
        ddp__stream_begin(j->c.tls, fd, 0) == 0 && ddp__stream_greet(j->c.tls, fd, until) == 0 &&
        ddp__stream_may_join(j->c.tls, fd, &id, name, text))
        return fd;
    ddp__stream_close(j->c.tls, fd);
    return -1;
}

/* The connection of the entry with rank r, direct or relayed, or -1. */
static int ddp__joiner_reach(ddp__joiner *j, const ddp__hello *self, int r, double until,
                             unsigned char *relayed)
{
    const ddp__addr *to = &j->place.address[r];
    char why[DDP__JOIN_TEXT], at[DDP__ADDR_TEXT];
    int fd = -1;

    if (to->size && !(j->unreached >> r & 1)) fd = ddp__joiner_dial(j, to, until, why);
    /* behind two NATs with the same private addresses another program may reply */
    if (fd >= 0 && ddp__entry_greet(j, self, fd, r, fmin(until, ddp_now() + ddp__direct_limit)) == 0)
        return fd;
    ddp__stream_close(j->c.tls, fd);
    j->unreached |= ddp__bit(r);
    if (r == j->place.coordinator) return -1;
    ddp__log(&j->c.log, DDP_LOG_WARN,
             "rank %d cannot connect to rank %d at %s: rank %d relays between them, which is slower than a "
             "direct connection",
             j->place.id, r, to->size ? ddp__addr_text(to, at) : "an unknown address", j->place.coordinator);
    *relayed = 1;
    fd = ddp__joiner_relay(j, self, r, until);
    if (fd < 0 || ddp__entry_greet(j, self, fd, r, until) == 0) return fd;
    ddp__stream_close(j->c.tls, fd);
    return -1;
}

/* Connects to all members: the connections in fds, which of them are relayed, and this worker's listening
 * socket in c->listen_fd. */
static ddp_status ddp__joiner_mesh(ddp__joiner *j, ddp__tcp_config *c, int *fds, unsigned char *relayed,
                                   ddp_error *err)
{
    ddp__addr own;

    if (ddp__addr_own(j->fd, &own) < 0)
        return ddp__fail(err, DDP_PEER_LOST, "the coordinator was lost: %s", strerror(errno));
    ddp__addr_set_port(&own, 0);
    DDP__TRY(ddp__tcp_listen(&own, &c->listen_fd, &own, err));
    c->self.version = DDP__PROTOCOL;
    c->self.kind = DDP__JOIN_MESH;
    c->self.run_id = j->c.run_id;
    c->self.rank = (uint32_t)j->place.id;
    c->self.world = (uint32_t)j->place.world;
    c->self.port = (uint32_t)ddp__addr_port(&own);
    c->self.family = ddp__ip_pack(&own, c->self.ip);
    for (int r = 0; r < j->place.world; r++) {
        if (!(j->place.live >> r & 1)) continue;
        ddp__joiner_beat(j);
        fds[r] = ddp__joiner_reach(j, &c->self, r, ddp_now() + ddp__reach_limit, &relayed[r]);
        if (fds[r] < 0)
            return ddp__fail(err, DDP_PEER_LOST,
                             relayed[r] ? "cannot connect to rank %d, neither directly nor through rank %d"
                                        : "cannot connect to rank %d",
                             r, j->place.coordinator);
    }
    return DDP_OK;
}

static ddp_status ddp__joiner_wire(ddp__joiner *j, ddp__wire **wire, ddp_error *err)
{
    ddp__tcp_config c;
    unsigned char relayed[DDP__JOIN_WORLD] = {0};
    int fds[DDP__JOIN_WORLD], r;
    ddp_status s;

    memset(&c, 0, sizeof c);
    for (r = 0; r < DDP__JOIN_WORLD; r++) fds[r] = -1;
    c.rank = j->place.id;
    c.world = j->place.world;
    c.fds = fds;
    c.listen_fd = -1;
    c.where = j->place.address;
    c.relayed = relayed;
    c.relay_rank = j->place.coordinator;
    c.tls = j->c.tls;
    c.peer_timeout_s = j->c.peer_timeout_s;
    c.congestion = j->c.congestion;
    c.log = j->c.log;
    s = ddp__joiner_mesh(j, &c, fds, relayed, err);
    if (s == DDP_OK) s = ddp__wire_tcp(&c, wire, err);
    if (s == DDP_OK) return s;
    for (r = 0; r < j->place.world; r++) ddp__stream_close(j->c.tls, fds[r]);
    if (c.listen_fd >= 0) close(c.listen_fd);
    return s;
}

ddp_status ddp__joiner_prepare(ddp__joiner *j, const ddp__join_layout *layout, ddp__worker *s, double until,
                               ddp__wire **wire, ddp_error *err)
{
    if (j->fd < 0) DDP__TRY(ddp__joiner_place(j, s->rank, until, err));
    if (j->place.id != s->rank)
        return ddp__fail(err, DDP_PEER_LOST, "rank %d was taken by another joining worker", s->rank);
    DDP__TRY(ddp__joiner_layout(j, layout, err));
    DDP__TRY(ddp__joiner_clone(j, s, until, err));
    return ddp__joiner_wire(j, wire, err);
}

ddp_status ddp__joiner_wait(ddp__joiner *j, ddp__engine *engine, ddp_error *err)
{
    double begin = ddp_now(), gone = -1;
    ddp_status s;

    if (ddp__stream_send_all(j->tls, j->fd, "R", 1, ddp_now() + 5) < 0)
        return ddp__fail(err, DDP_PEER_LOST, "the coordinator was lost");
    for (;;) {
        s = ddp__engine_joined(engine, 0.1, err);
        if (s != DDP_TIMEOUT) return s;
        if (gone < 0 && ddp__stream_wait(j->tls, j->fd, 0)) gone = ddp_now();
        if (gone >= 0 && ddp_now() > gone + 2)
            return ddp__fail(err, DDP_PEER_LOST, "the coordinator was lost");
        if (ddp_now() > begin + j->c.op_timeout_s)
            return ddp__fail(
                err, DDP_TIMEOUT,
                "the members did not admit this worker within %.3g s: check that the training is running",
                j->c.op_timeout_s);
    }
}
