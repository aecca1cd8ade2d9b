/* The members' side of joining: makes clones, admits workers, and serves connections with one thread each.
 * These threads do not touch the training. They leave requests for its thread and wait. */
#include "comm/frame.h"
#include "member/elastic.h"
#include "member/join.h"

typedef struct ddp__visit {
    ddp__join *j;
    int fd, place; /* place: index in join.fd */
    int only;      /* the id that its certificate names, or -1 for any */
    int id;        /* the id that it was given, or -1, */
    long turn;     /* and the value of join.turn at that time */
    ddp__tls *tls; /* its own session */
    unsigned char request[DDP__JOIN_REQUEST];
} ddp__visit;

/* Receives bytes: returns 0, or -1 if the joining worker is lost, silent for as long as an operation may
 * take, or the run ends. */
static int ddp__visit_recv(ddp__visit *v, void *buf, size_t bytes)
{
    double until = ddp_now() + v->j->c.op_timeout_s;

    while (!ddp__stream_wait(v->tls, v->fd, ddp_now() + 0.1))
        if (ddp__atomic_load(&v->j->stop) || ddp_now() >= until) return -1;
    return ddp__stream_recv_all(v->tls, v->fd, buf, bytes, NULL, ddp_now() + 5);
}

/* ---- ENTER ---- */

/* Chooses an id for the joining worker, or a code with the reason if there is none. The caller holds the
 * lock. */
static int ddp__place_choose(ddp__visit *v, uint64_t live)
{
    int r, world = v->j->c.world, wanted = (int)ddp__hello_get(v->request + 4, 4) - 1, only = v->only;

    if (ddp__lowest(live) != v->j->c.rank) return DDP__JOIN_ELSEWHERE;
    if (v->j->id >= 0 || !v->j->layout.says.layers) return DDP__JOIN_LATER;
    if (only >= world || (only >= 0 && live >> only & 1)) return DDP__JOIN_TAKEN;
    if (only >= 0) wanted = only;
    for (r = 0; r < world; r++)
        if (!(live >> r & 1) && (wanted < 0 || wanted >= world || live >> wanted & 1 || r == wanted)) break;
    if (r == world) return DDP__JOIN_FULL;
    v->id = v->j->id = r;
    v->turn = ++v->j->turn;
    v->j->ready = 0;
    return DDP__JOIN_OK;
}

static int ddp__place_answer(ddp__visit *v)
{
    unsigned char b[DDP__JOIN_PLACE] = {0};
    ddp__join *j = v->j;
    ddp__epoch_info info;
    int code = DDP__JOIN_LATER, says[5] = {0, 0, j->c.world, 0, j->c.min_world};

    memset(&info, 0, sizeof info);
    pthread_mutex_lock(&j->lock);
    if (j->engine) {
        ddp__engine_epoch(j->engine, &info);
        code = ddp__place_choose(v, info.live);
    }
    for (int i = 0; i < DDP__JOIN_CHOSEN; i++)
        ddp__hello_put(b + 32 + 4 * i, (uint64_t)j->layout.chosen[i], 4);
    for (int r = 0; r < j->c.world; r++) {
        unsigned char *e = b + 512 + 24 * r;
        if (!j->address[r].size) continue;
        ddp__hello_put(e, ddp__ip_pack(&j->address[r], e + 8), 4);
        ddp__hello_put(e + 4, (uint64_t)ddp__addr_port(&j->address[r]), 4);
    }
    pthread_mutex_unlock(&j->lock);
    says[0] = code;
    says[1] = code == DDP__JOIN_TAKEN ? v->only : v->id;
    says[3] = ddp__lowest(info.live);
    for (int i = 0; i < 5; i++) ddp__hello_put(b + 4 * i, (uint64_t)says[i], 4);
    ddp__hello_put(b + 24, info.live, 8);
    if (ddp__stream_send_all(v->tls, v->fd, b, sizeof b, ddp_now() + 5) < 0) return -1;
    return code;
}

/* Compares the program's values (ddp_same), in the order in which it registered them. */
static void ddp__sames_compare(const ddp__join_says *own, ddp__join_says *in, char *why)
{
    for (int i = 0; i < DDP__JOIN_SAMES && !why[0]; i++) {
        const ddp__same *here = &own->same[i];
        ddp__same *there = &in->same[i];
        there->name[sizeof there->name - 1] = 0;
        if (!strcmp(here->name, there->name) && here->value == there->value) continue;
        snprintf(why, DDP__JOIN_TEXT,
                 "the joining worker has %.31s %" PRId64 ", but this run has %.31s %" PRId64
                 ": start it with "
                 "the same",
                 there->name[0] ? there->name : "nothing", there->value,
                 here->name[0] ? here->name : "nothing", here->value);
    }
}

/* Compares the joining worker's settings with this run's: returns OK, or NEVER and the reason. */
static int ddp__layout_compare(const ddp__join_layout *l, ddp__join_says *in, char *why)
{
    const ddp__join_says *own = &l->says;

    in->how[sizeof in->how - 1] = 0;
    in->states[sizeof in->states - 1] = 0;
    if (in->layers != own->layers || in->hash != own->hash)
        snprintf(why, DDP__JOIN_TEXT,
                 "the joining worker has %d layers with layout %016" PRIx64
                 ", but this run has %d layers with layout %016" PRIx64
                 ": start it with the same model and optimizer",
                 in->layers, in->hash, own->layers, own->hash);
    else if (strcmp(in->how, own->how) || in->settings != own->settings)
        snprintf(why, DDP__JOIN_TEXT,
                 "the joining worker uses %.100s, but this run uses %.100s: start it with the same settings",
                 in->how, own->how);
    for (int i = 0; i < own->settings && !why[0]; i++)
        if (in->value[i] != own->value[i])
            ddp__format(why, DDP__JOIN_TEXT,
                        "the joining worker has %s %g, but this run has %g: start it with the same value",
                        l->name[i], in->value[i], own->value[i]);
    ddp__sames_compare(own, in, why);
    if (!why[0] && strcmp(in->states, own->states))
        snprintf(why, DDP__JOIN_TEXT,
                 "the joining worker has the states '%.80s' (ddp_add_state), but this run has '%.80s': "
                 "register the same states in the same order",
                 in->states, own->states);
    return why[0] ? DDP__JOIN_NEVER : DDP__JOIN_OK;
}

static int ddp__layout_answer(ddp__visit *v)
{
    unsigned char b[DDP__JOIN_VERDICT] = {0};
    ddp__join_says in;
    char why[DDP__JOIN_TEXT] = "";
    ddp__epoch_info info;
    int code, donor = 63;

    if (ddp__visit_recv(v, &in, sizeof in) < 0) return -1;
    code = ddp__layout_compare(&v->j->layout, &in, why);
    ddp__engine_epoch(v->j->engine, &info);
    while (donor > 0 && !(info.live >> donor & 1)) donor--;
    ddp__hello_put(b, (uint64_t)code, 4);
    ddp__hello_put(b + 4, (uint64_t)donor, 4);
    ddp__hello_put(b + 8, info.live, 8);
    memcpy(b + 64, why, sizeof why);
    if (code == DDP__JOIN_NEVER)
        ddp__log(&v->j->c.log, DDP_LOG_WARN, "rank %d: refused to join as %d: %s", v->j->c.rank, v->id, why);
    if (ddp__stream_send_all(v->tls, v->fd, b, sizeof b, ddp_now() + 5) < 0) return -1;
    return code;
}

/* Returns 1 while this is the joining worker that is being served. Then ready = 1 marks it ready, and
 * ready = 0 forgets it. */
static int ddp__visit_stands(ddp__visit *v, int ready)
{
    ddp__join *j = v->j;
    int stands;

    pthread_mutex_lock(&j->lock);
    stands = v->id >= 0 && j->id == v->id && j->turn == v->turn;
    if (stands) j->ready = ready;
    if (stands && !ready) j->id = -1;
    pthread_mutex_unlock(&j->lock);
    return stands && !ddp__atomic_load(&j->stop);
}

/* The connection shows that the joining worker lives: if it ends before the entry, the worker is forgotten.
 * In the other direction, if the entry failed this member closes it, and the joining worker retries. */
static void ddp__serve_enter(ddp__visit *v)
{
    unsigned char word = '.';

    if (ddp__place_answer(v) == DDP__JOIN_OK && ddp__layout_answer(v) == DDP__JOIN_OK)
        while (word == '.' && ddp__visit_recv(v, &word, 1) == 0) {
        } /* it is receiving its clone */
    while (word == 'R' && ddp__visit_stands(v, 1) && !ddp__stream_wait(v->tls, v->fd, ddp_now() + 0.1)) {
    }
    (void)ddp__visit_stands(v, 0);
}

/* ---- TAKE ---- */

/* Reserves a clone: the requested one if it is still here. Returns its number, or 0. */
static uint64_t ddp__clone_hold(ddp__join *j, uint64_t number)
{
    uint64_t old;

    pthread_mutex_lock(&j->lock);
    old = j->snap_number;
    if (!number || number != old) {
        j->want_snap = 1;
        while (!ddp__atomic_load(&j->stop) && j->snap_number == old)
            (void)ddp__cond_wait_until(&j->changed, &j->lock, ddp_now() + 1);
    }
    number = ddp__atomic_load(&j->stop) ? 0 : j->snap_number;
    if (number) j->snap_users++;
    pthread_mutex_unlock(&j->lock);
    return number;
}

static void ddp__serve_clone(ddp__visit *v)
{
    ddp__join *j = v->j;
    unsigned char b[DDP__JOIN_CLONE] = {0}, digest[DDP__SHA256_BYTES];
    uint64_t asked = ddp__hello_get(v->request + 16, 8), number = ddp__clone_hold(j, asked);
    size_t at = (size_t)ddp__hello_get(v->request + 8, 8), bytes = j->snap_bytes;
    int bad;

    if (!number) return;
    if (number != asked || at > bytes) at = 0;
    ddp__hello_put(b, number, 8);
    ddp__hello_put(b + 8, bytes, 8);
    ddp__hello_put(b + 16, at, 8);
    bad = ddp__stream_send_all(v->tls, v->fd, b, sizeof b, ddp_now() + 5);
    while (!bad && at < bytes && !ddp__atomic_load(&j->stop)) {
        size_t n = bytes - at < ((size_t)256 << 10) ? bytes - at : (size_t)256 << 10;
        bad = ddp__stream_send_all(v->tls, v->fd, j->snap + at, n, ddp_now() + 10);
        at += n;
    }
    if (!bad && at == bytes) {
        ddp__sha256(j->snap, bytes, digest); /* the joining worker computes the hash at the same time */
        bad = ddp__stream_send_all(v->tls, v->fd, digest, sizeof digest, ddp_now() + 10);
    }
    if (!bad) (void)ddp__visit_recv(v, b, 1); /* returns when the peer closes: it has received the bytes */
    pthread_mutex_lock(&j->lock);
    j->snap_users--;
    pthread_mutex_unlock(&j->lock);
}

/* ---- REST ---- */

size_t ddp__rest_piece(size_t bytes, size_t at)
{
    return bytes - at < (size_t)DDP__REST_PIECE ? bytes - at : (size_t)DDP__REST_PIECE;
}

static void ddp__rest_leave(ddp__join *j, ddp__rest_copy *c)
{
    int last;

    if (!c) return;
    pthread_mutex_lock(&j->lock);
    last = --c->users == 0;
    pthread_mutex_unlock(&j->lock);
    if (!last) return;
    if (c->data) DDP_FREE(c->data);
    DDP_FREE(c);
}

/* Waits until this member has the requested copy, and becomes its user. Returns NULL if the member has
 * another one, or had no memory for it. */
static ddp__rest_copy *ddp__rest_use(ddp__join *j, uint64_t number)
{
    const double until = ddp_now() + (double)DDP__REST_REPLY_S;
    ddp__rest_copy *c = NULL;

    pthread_mutex_lock(&j->lock);
    while (!ddp__atomic_load(&j->stop) && j->rest_number != number && ddp_now() < until)
        (void)ddp__cond_wait_until(&j->changed, &j->lock, ddp_now() + 0.1);
    if (!ddp__atomic_load(&j->stop) && j->rest_number == number) c = j->rest;
    if (c) c->users++;
    pthread_mutex_unlock(&j->lock);
    return c;
}

static void ddp__serve_rest(ddp__visit *v)
{
    const uint64_t number = ddp__hello_get(v->request + 16, 8);
    ddp__join *j = v->j;
    ddp__rest_copy *c = ddp__rest_use(j, number);
    unsigned char b[DDP__JOIN_CLONE] = {0}, head[DDP__REST_HEAD];
    size_t at = (size_t)ddp__hello_get(v->request + 8, 8), n;
    int bad;

    if (!c) return;
    if (at > c->bytes) at = 0;
    ddp__hello_put(b, number, 8);
    ddp__hello_put(b + 8, c->bytes, 8);
    ddp__hello_put(b + 16, at, 8);
    bad = ddp__stream_send_all(v->tls, v->fd, b, sizeof b, ddp_now() + 5);
    for (; !bad && at < c->bytes && !ddp__atomic_load(&j->stop); at += n) {
        const double until = ddp_now() + j->c.op_timeout_s;
        n = ddp__rest_piece(c->bytes, at);
        ddp__hello_put(head, ddp__crc32c(0, c->data + at, n), 4);
        bad = ddp__stream_send_all(v->tls, v->fd, head, sizeof head, until) < 0 ||
              ddp__stream_send_all(v->tls, v->fd, c->data + at, n, until) < 0;
    }
    if (!bad) (void)ddp__visit_recv(v, b, 1); /* returns when the peer closes: it has received the bytes */
    ddp__rest_leave(j, c);
}

/* ---- connections ---- */

static void *ddp__visit_main(void *arg)
{
    ddp__visit *v = (ddp__visit *)arg;
    ddp__join *j = v->j;

    if (ddp__stream_recv_all(v->tls, v->fd, v->request, sizeof v->request, NULL, ddp_now() + 5) == 0) {
        if (ddp__hello_get(v->request, 4) == DDP__JOIN_ENTER)
            ddp__serve_enter(v);
        else if (ddp__hello_get(v->request, 4) == DDP__JOIN_TAKE)
            ddp__serve_clone(v);
        else if (ddp__hello_get(v->request, 4) == DDP__JOIN_REST)
            ddp__serve_rest(v);
    }
    pthread_mutex_lock(&j->lock);
    j->fd[v->place] = -1;
    pthread_mutex_unlock(&j->lock);
    ddp__stream_close(v->tls, v->fd);
    ddp__tls_free(v->tls);
    DDP_FREE(v);
    pthread_mutex_lock(&j->lock);
    j->visitors--;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* A ddp__visit_fn. */
static int ddp__visit_begin(void *user, ddp__tls *tls, int fd, int only)
{
    ddp__join *j = (ddp__join *)user;
    ddp__visit *v = (ddp__visit *)ddp__calloc(1, sizeof *v);
    pthread_t thread;
    int begun = 0;

    if (!v) return 0;
    v->j = j;
    v->fd = fd;
    v->only = only;
    v->id = -1;
    pthread_mutex_lock(&j->lock);
    if (!ddp__atomic_load(&j->stop) && j->visitors < DDP__JOIN_VISITORS &&
        ddp__stream_part(tls, fd, &v->tls) == 0) {
        while (j->fd[v->place] >= 0) v->place++;
        j->fd[v->place] = fd;
        begun = pthread_create(&thread, NULL, ddp__visit_main, v) == 0;
        if (begun) {
            pthread_detach(thread);
        } else {
            j->fd[v->place] = -1;
            ddp__tls_free(v->tls);
        }
        j->visitors += begun;
    }
    pthread_mutex_unlock(&j->lock);
    if (!begun) DDP_FREE(v); /* the joining worker retries */
    return begun;
}

/* ---- the service as a whole ---- */

ddp_status ddp__join_open(const ddp__join_config *c, ddp__wire *wire, ddp__join **out, ddp_error *err)
{
    ddp__join *j = (ddp__join *)ddp__calloc(1, sizeof *j);
    const int locks = j && !pthread_mutex_init(&j->lock, NULL);
    char text[DDP__ADDR_TEXT];

    *out = NULL;
    if (!locks || ddp__cond_init(&j->changed)) {
        if (locks) pthread_mutex_destroy(&j->lock);
        if (j) DDP_FREE(j);
        return ddp__fail(err, DDP_MEMORY, "out of memory for serving joining workers");
    }
    j->c = *c;
    j->id = -1;
    for (int i = 0; i < DDP__JOIN_VISITORS; i++) j->fd[i] = -1;
    for (int r = 0; r < c->world; r++)
        if (!ddp__wire_tcp_where(wire, r, &j->address[r])) j->address[r].size = 0;
    *out = j; /* even if it cannot serve: control data and entries concern all members */
    if (!j->address[c->rank].size) return DDP_OK;
    ddp__wire_tcp_visits(wire, ddp__visit_begin, j);
    ddp__log(&c->log, DDP_LOG_INFO, "rank %d: workers can join at %s", c->rank,
             ddp__addr_text(&j->address[c->rank], text));
    return DDP_OK;
}

void ddp__join_ready(ddp__join *j, ddp__engine *engine, const ddp__join_layout *layout)
{
    if (!j) return;
    pthread_mutex_lock(&j->lock);
    j->engine = engine;
    j->layout = *layout;
    pthread_mutex_unlock(&j->lock);
}

void ddp__join_stop(ddp__join *j)
{
    if (!j) return;
    pthread_mutex_lock(&j->lock);
    ddp__atomic_store(&j->stop, 1);
    pthread_cond_broadcast(&j->changed);
    while (j->visitors) pthread_cond_wait(&j->changed, &j->lock);
    pthread_mutex_unlock(&j->lock);
}

void ddp__join_close(ddp__join *j)
{
    if (!j) return;
    ddp__join_stop(j);
    ddp__rest_leave(j, j->rest);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    if (j->snap) DDP_FREE(j->snap);
    DDP_FREE(j);
}

void ddp__join_disown(ddp__join *j)
{
    for (int i = 0; j && i < DDP__JOIN_VISITORS; i++) ddp__fd_close(&j->fd[i]);
}

/* ---- at the end of a period ---- */

int ddp__join_wants(ddp__join *j)
{
    int wanted;

    pthread_mutex_lock(&j->lock);
    wanted = j->want_snap && !j->snap_users;
    pthread_mutex_unlock(&j->lock);
    return wanted;
}

ddp_status ddp__join_give(ddp__join *j, const ddp__worker *s, ddp_error *err)
{
    unsigned char *bytes = NULL;
    ddp_error local = {DDP_OK, ""};
    ddp_status code;
    size_t n = 0;

    code = ddp__worker_pack(s, &bytes, &n, &local); /* the copy is the only cost for the training */
    if (code == DDP_MEMORY) {                       /* not a reason to end the run */
        ddp__log(&j->c.log, DDP_LOG_WARN, "rank %d: %s", s->rank, local.msg);
        return DDP_OK;
    }
    if (code != DDP_OK) {
        if (err) *err = local;
        return code;
    }
    pthread_mutex_lock(&j->lock);
    if (!j->snap_users) { /* else the previous clone is still being sent: retry at the end of the next
                             period */
        if (j->snap) DDP_FREE(j->snap);
        j->snap = bytes;
        j->snap_bytes = n;
        j->snap_number = ddp__fresh_number();
        j->want_snap = 0;
        pthread_cond_broadcast(&j->changed);
        ddp__log(&j->c.log, DDP_LOG_INFO, "rank %d: joining workers receive step %ld, %.1f MiB", s->rank,
                 s->step, (double)n / (1 << 20));
    } else {
        DDP_FREE(bytes);
    }
    pthread_mutex_unlock(&j->lock);
    return DDP_OK;
}

/* Replaces the rest that this member offers. */
static void ddp__rest_swap(ddp__join *j, ddp__rest_copy *c, uint64_t number)
{
    ddp__rest_copy *old;

    pthread_mutex_lock(&j->lock);
    old = j->rest;
    j->rest = c;
    j->rest_number = number;
    j->rest_age = 0;
    j->rest_until = ddp_now() + j->c.peer_timeout_s;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    ddp__rest_leave(j, old);
}

ddp_status ddp__join_rest(ddp__join *j, const ddp__worker *s, ddp_error *err)
{
    ddp__rest_copy *c = (ddp__rest_copy *)ddp__calloc(1, sizeof *c);
    ddp_error local = {DDP_OK, ""};
    ddp_status code = c ? ddp__worker_rest_pack(s, &c->data, &c->bytes, &local) : DDP_MEMORY;

    if (code != DDP_OK) {
        if (c) DDP_FREE(c);
        c = NULL;
    }
    if (code == DDP_MEMORY)
        ddp__log(
            &j->c.log, DDP_LOG_WARN,
            "rank %d: out of memory for a copy of the state: other members send it to the joining worker",
            s->rank);
    if (c) c->users = 1;
    ddp__rest_swap(j, c, s->rest);
    if (code == DDP_OK || code == DDP_MEMORY) return DDP_OK;
    if (err) *err = local;
    return code;
}

void ddp__join_aged(ddp__join *j)
{
    if (j->rest && ++j->rest_age > 1 && ddp_now() >= j->rest_until) ddp__rest_swap(j, NULL, j->rest_number);
}

int ddp__join_next(ddp__join *j)
{
    int id;

    pthread_mutex_lock(&j->lock);
    id = j->id >= 0 && j->ready ? j->id : -1;
    pthread_mutex_unlock(&j->lock);
    return id;
}

static void ddp__join_attach(ddp__wire *w, int id, void *user)
{
    ddp__join *j = (ddp__join *)user;

    ddp__wire_tcp_attach(w, id);
    pthread_mutex_lock(&j->lock);
    if (!ddp__wire_tcp_where(w, id, &j->address[id])) j->address[id].size = 0;
    pthread_mutex_unlock(&j->lock);
}

ddp_status ddp__join_admit(ddp__join *j, int id, int *in, ddp_error *err)
{
    ddp_error local = {DDP_OK, ""};
    ddp_status s = ddp__engine_admit(j->engine, id, ddp__join_attach, j, &local);

    pthread_mutex_lock(&j->lock);
    if (j->id == id) j->id = -1;
    if (j->snap && !j->snap_users) {
        DDP_FREE(j->snap);
        j->snap = NULL;
        j->snap_number = 0;
    }
    pthread_mutex_unlock(&j->lock);
    *in = s == DDP_OK;
    if (s == DDP_PEER_LOST) {
        ddp__log(&j->c.log, DDP_LOG_WARN, "rank %d: %s", j->c.rank, local.msg);
        return DDP_OK;
    }
    if (s != DDP_OK && err) *err = local;
    return s;
}
