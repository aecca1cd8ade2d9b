/* Worlds whose links are connected through a relay that breaks or stalls them. Include after dreamddp.h and
 * cmocka.h. */
#ifndef RESUME_LAB_H
#define RESUME_LAB_H

#include "comm/net_world.h"
#include "wire/meet.h"
#include "wire/relay_lab.h"
#include "wire/talk.h"

static void greet_both(ddp__tls *server, int at, ddp__tls *client, int from)
{
    double end = ddp_now() + 60;
    int a = 0, b = 0;

    assert_int_equal(ddp__stream_begin(server, at, 1), 0);
    assert_int_equal(ddp__stream_begin(client, from, 0), 0);
    while (!(a && b) && ddp_now() < end) {
        if (!a) a = ddp__stream_shake(server, at);
        if (!b) b = ddp__stream_shake(client, from);
        if (a < 0 || b < 0) fail_msg("handshake: %s", strerror(errno));
        ddp__sleep_until(ddp_now() + 0.0005);
    }
    assert_true(a == 1 && b == 1);
}

static DDP__UNUSED void relayed_world(relay *r, ddp__wire **w, int world, double peer_timeout_s,
                                      size_t replay_bytes, ddp__tls **tls)
{
    int listener[MEET_MAX], fds[MEET_MAX][MEET_MAX], a, b, count;
    ddp__addr at[MEET_MAX], via[MEET_MAX][MEET_MAX];
    ddp_error err;

    memset(via, 0, sizeof via);
    for (a = 0; a < world; a++) {
        assert_int_equal(ddp__addr_parse("127.0.0.1:0", &at[a], 1, &count, NULL), DDP_OK);
        assert_int_equal(ddp__tcp_listen(&at[a], &listener[a], &at[a], NULL), DDP_OK);
        fds[a][a] = -1;
    }
    for (a = 0; a < world; a++)
        for (b = a + 1; b < world; b++) via[b][a] = *relay_route(r, &at[a]);
    pthread_create(&r->thread, NULL, relay_run, r);
    for (a = 0; a < world; a++)
        for (b = a + 1; b < world; b++) {
            fds[b][a] = ddp__tcp_dial(&via[b][a], ddp_now() + 60);
            assert_true(fds[b][a] >= 0);
            assert_true(ddp__fd_wait(listener[a], POLLIN, ddp_now() + 60) != 0);
            fds[a][b] = ddp__tcp_accept(listener[a], NULL);
            assert_true(fds[a][b] >= 0);
            if (tls) greet_both(tls[a], fds[a][b], tls[b], fds[b][a]);
        }
    for (a = 0; a < world; a++) {
        ddp__tcp_config c;
        memset(&c, 0, sizeof c);
        c.rank = a;
        c.world = world;
        c.fds = fds[a];
        c.listen_fd = listener[a];
        c.where = via[a];
        c.tls = tls ? tls[a] : NULL;
        c.self.version = DDP__PROTOCOL;
        c.self.run_id = 7;
        c.self.rank = (uint32_t)a;
        c.self.world = (uint32_t)world;
        c.peer_timeout_s = peer_timeout_s;
        c.replay_bytes = replay_bytes;
        if (ddp__wire_tcp(&c, &w[a], &err)) fail_msg("%s", err.msg);
    }
}

/* ---- random streams ---- */

static DDP__UNUSED void talk_over_breaks(uint64_t seed, long mean, int least_breaks, ddp__tls **tls)
{
    static relay r;
    ddp__wire *w[MEET_MAX];
    talker t[MEET_MAX];
    int world = 4, left = world, k;
    long returns = 0;

    relay_begin(&r, seed);
    r.mean = mean;
    r.least = tls ? 8000 : 0; /* handshakes before the wire exists must not break */
    relayed_world(&r, w, world, 60, 50000, tls);
    memset(t, 0, sizeof t);
    for (k = 0; k < world; k++) {
        t[k].w = w[k];
        t[k].seed = 5;
        t[k].left = &left;
        pthread_create(&t[k].thread, NULL, talk, &t[k]);
    }
    for (k = 0; k < world; k++) pthread_join(t[k].thread, NULL);
    for (k = 0; k < world; k++) {
        const ddp__resume_wire *s = (const ddp__resume_wire *)(const void *)w[k];
        returns += s->returns;
        assert_int_equal(t[k].bad, 0);
        assert_true(s->bytes_again > 0);
    }
    print_message("%d breaks, %ld reconnections\n", r.breaks, returns / 2);
    assert_true(r.breaks >= least_breaks);
    assert_true(returns / 2 >= least_breaks);
    for (k = 0; k < world; k++) w[k]->table->close(w[k]);
    relay_end(&r);
}

/* ---- operations ---- */

typedef struct op_test {
    int rounds;
    size_t count;
    double begin[8], end[8]; /* of the last round */
    int at[8];               /* rounds finished, atomic */
} op_test;

/* All-reduces of random lengths whose sums are known exactly. */
static void reduce_often(net_rank *me, void *user)
{
    op_test *o = (op_test *)user;
    float *x = (float *)malloc(o->count * sizeof *x);

    for (int k = 0; k < o->rounds && !me->failure[0]; k++) {
        size_t n = o->rounds > 1 ? 1 + (o->count - 1) * (size_t)(k * 37 % 100) / 100 : o->count;
        ddp_piece piece;
        ddp_message m;
        for (size_t i = 0; i < n; i++) x[i] = net_value(me->rank, i, (unsigned)k);
        piece.data = x;
        piece.count = n;
        net_message(&m, DDP_ALL_REDUCE, &piece, 1);
        m.step = k;
        o->begin[me->rank] = ddp_now();
        net_ok(me, net_do(me, &m));
        o->end[me->rank] = ddp_now();
        for (size_t i = 0; i < n && !me->failure[0]; i++) {
            float sum = 0;
            for (int r = 0; r < me->world; r++) sum += net_value(r, i, (unsigned)k);
            if (memcmp(&sum, &x[i], sizeof sum))
                net_fail(me, "round %d: x[%lu] = %g, not %g", k, (unsigned long)i, (double)x[i], (double)sum);
        }
        ddp__atomic_add(&o->at[me->rank], 1);
    }
    free(x);
}

typedef struct relayed_run {
    net_rank rank[MEET_MAX];
    pthread_t thread[MEET_MAX];
    int world;
} relayed_run;

static DDP__UNUSED void run_begin(relayed_run *run, relay *r, const net_setup *set, op_test *o)
{
    ddp__wire *w[MEET_MAX];

    memset(run, 0, sizeof *run);
    run->world = set->world;
    relayed_world(r, w, set->world, set->cfg.peer_timeout_s, 0, NULL);
    for (int k = 0; k < set->world; k++) {
        run->rank[k].rank = k;
        run->rank[k].world = set->world;
        run->rank[k].fn = reduce_often;
        run->rank[k].user = o;
        run->rank[k].set = set;
        run->rank[k].wire = w[k];
        pthread_create(&run->thread[k], NULL, net_thread, &run->rank[k]);
    }
}

static DDP__UNUSED void run_end(relayed_run *run, relay *r)
{
    for (int k = 0; k < run->world; k++) pthread_join(run->thread[k], NULL);
    relay_end(r);
}

/* One all-reduce of `count` floats between two ranks. The relay stalls for stall_s in the middle of it,
 * longer than a link may be silent, or 0 for no stall. Returns the duration of the all-reduce in seconds,
 * without the stall. */
static DDP__UNUSED double stalled_operation(size_t count, double stall_s)
{
    static relay r;
    static relayed_run run;
    net_setup set;
    op_test o;
    double begin = ddp_now(), back = 0, stopped = 0;

    relay_begin(&r, 13);
    if (stall_s > 0) r.stall_after = (long)(count * sizeof(float));
    net_defaults(&set, 2);
    set.cfg.peer_timeout_s = 8; /* a link is suspected after 2 s */
    set.cfg.op_timeout_s = 60;
    memset(&o, 0, sizeof o);
    o.rounds = 1;
    o.count = count;
    run_begin(&run, &r, &set, &o);
    if (stall_s > 0) {
        const double end = ddp_now() + 60;
        while (!ddp__atomic_load(&r.stall) && ddp_now() < end) ddp__sleep_until(ddp_now() + 0.002);
        assert_true(ddp__atomic_load(&r.stall));
        stopped = ddp_now();
        ddp__sleep_until(stopped + stall_s);
        back = ddp_now();
        ddp__atomic_store(&r.stall, 0);
    }
    run_end(&run, &r);
    for (int k = 0; k < 2; k++)
        if (run.rank[k].failure[0]) fail_msg("rank %d: %s", k, run.rank[k].failure);
    assert_true(o.end[0] > back && o.end[1] > back); /* the stall happened in the middle of it */
    return o.end[0] - begin - (back - stopped);
}

/* ---- detection of broken links ---- */

/* Seconds until a wire reports the loss of a link that passes no bytes any more, with a peer_timeout_s of 1.
 * */
static DDP__UNUSED double seconds_to_lose(void)
{
    static relay r;
    ddp__wire *w[2];
    unsigned char want[2] = {1, 1};
    char c = 1;
    struct iovec iov;
    double begin, took;
    long n;

    relay_begin(&r, 14);
    relayed_world(&r, w, 2, 1.0, 0, NULL);
    iov.iov_base = &c;
    iov.iov_len = 1;
    ddp__atomic_store(&r.stall, 1);
    ddp__sleep_until(ddp_now() + 0.05);
    begin = ddp_now();
    assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), 1);
    while ((n = w[1]->table->recv(w[1], 0, &c, 1)) == 0 && ddp_now() < begin + 60)
        w[1]->table->wait(w[1], NULL, want, begin + 60);
    took = ddp_now() - begin;
    assert_int_equal(n, -1);
    assert_int_equal(errno, ETIMEDOUT);
    assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), -1);
    for (int k = 0; k < 2; k++) w[k]->table->close(w[k]);
    relay_end(&r);
    return took;
}

static DDP__UNUSED int connect_and_send(const ddp__addr *at, const unsigned char *bytes, size_t n)
{
    int fd = ddp__tcp_dial(at, ddp_now() + 60);
    assert_true(fd >= 0);
    if (n) assert_int_equal(ddp__stream_send_all(NULL, fd, bytes, n, ddp_now() + 60), 0);
    return fd;
}

/* Callers that send nothing, or the start of a TLS handshake, fill the admission of a run with a key while a
 * link breaks. Returns the seconds until the link is connected again. */
static DDP__UNUSED double seconds_past_idle_callers(void)
{
    enum { IDLE = 40 };
    static relay r;
    ddp__tls *tls[2];
    ddp__wire *w[2];
    unsigned char all[2] = {1, 1}, c = 7;
    struct iovec iov;
    int crowd[IDLE], k;
    double begin, took;

    talk_keys(tls, 2);
    relay_begin(&r, 17);
    relayed_world(&r, w, 2, 10, 0, tls);
    for (k = 0; k < IDLE; k++)
        crowd[k] = connect_and_send(&r.to[0], (const unsigned char *)"\x16\x03\x01", k % 2 ? 3 : 0);
    w[0]->table->wait(w[0], NULL, all, ddp_now() + 0.2);
    iov.iov_base = &c;
    iov.iov_len = 1;
    w[1]->table->cut(w[1], 0);
    begin = ddp_now();
    do {
        w[0]->table->wait(w[0], NULL, all, ddp_now() + 0.01);
        w[1]->table->wait(w[1], NULL, all, ddp_now() + 0.01);
        for (k = 0; k < 2; k++)
            if (w[k]->table->recv(w[k], !k, &c, 1) < 0) fail_msg("rank %d lost its peer", k);
        took = ddp_now() - begin;
    } while (!((ddp__resume_wire *)(void *)w[1])->returns && took < 60);
    assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), 1);
    begin = ddp_now();
    while (w[0]->table->recv(w[0], 1, &c, 1) == 0 && ddp_now() < begin + 60)
        w[0]->table->wait(w[0], NULL, all, ddp_now() + 0.01);
    assert_int_equal(c, 7);
    for (k = 0; k < IDLE; k++) close(crowd[k]);
    for (k = 0; k < 2; k++) w[k]->table->close(w[k]);
    relay_end(&r);
    for (k = 0; k < 2; k++) ddp__tls_free(tls[k]);
    return took;
}

#endif /* RESUME_LAB_H */
