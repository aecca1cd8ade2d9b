/* [patient] Links that break and come back: streams stay whole to the byte whatever the network does, an
 * operation goes on soon after the link is back, and strangers are turned away. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "wire/meet.h"
#include "comm/net_world.h"
#include "wire/relay_lab.h"
#include "wire/talk.h"
#ifdef DDP_USE_OPENSSL
#include "wire/tls_lab.h"
#endif

/* ---- the ring ---- */

static void the_ring_gives_back_what_was_put_in(void **state)
{
    unsigned char data[100], plain[20000], bytes[100];
    ddp__replay r;
    ddp_rng rng = ddp_rng_seed(3, 0);
    size_t total = 0, i;
    (void)state;
    memset(&r, 0, sizeof r);
    r.data = data;
    r.room = sizeof data;
    for (i = 0; i < sizeof plain; i++) plain[i] = (unsigned char)ddp_rng_below(&rng, 256);
    while (total + 100 < sizeof plain) {
        size_t n = (size_t)ddp_rng_below(&rng, ddp__replay_free(&r) + 1), from, len, got = 0;
        struct iovec iov[2];
        int k, runs;
        ddp__replay_put(&r, plain + total, n);
        total += n;
        assert_int_equal(r.end, total);
        from = (size_t)r.first + (size_t)ddp_rng_below(&rng, r.end - r.first + 1);
        len = (size_t)ddp_rng_below(&rng, r.end - from + 1);
        runs = ddp__replay_find(&r, from, len, iov);
        for (k = 0; k < runs; k++) {
            memcpy(bytes + got, iov[k].iov_base, iov[k].iov_len);
            got += iov[k].iov_len;
        }
        assert_int_equal(got, len);
        assert_memory_equal(bytes, plain + from, len);
        assert_int_equal(ddp__replay_forget(&r, r.end + 1), 0);
        assert_int_equal(ddp__replay_forget(&r, from), 1);
        assert_int_equal(r.first, from);
        if (from) assert_int_equal(ddp__replay_forget(&r, from - 1), 0);
    }
}

/* ---- worlds whose links pass the relay ---- */

static void greet_both(ddp__tls *server, int at, ddp__tls *client, int from)
{
    double end = ddp_now() + 10;
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

static void relayed_world(relay *r, ddp__wire **w, int world, double peer_timeout_s,
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
            fds[b][a] = ddp__tcp_dial(&via[b][a], ddp_now() + 5);
            assert_true(fds[b][a] >= 0);
            assert_true(ddp__fd_wait(listener[a], POLLIN, ddp_now() + 5) != 0);
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

static void talk_over_breaks(uint64_t seed, long mean, int least_breaks, ddp__tls **tls)
{
    static relay r;
    ddp__wire *w[MEET_MAX];
    talker t[MEET_MAX];
    int world = 4, left = world, k;
    long returns = 0;

    relay_begin(&r, seed);
    r.mean = mean;
    r.least = tls ? 8000 : 0; /* handshakes before there is a wire must not break */
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
    print_message("%d breaks, links came back %ld times\n", r.breaks, returns / 2);
    assert_true(r.breaks >= least_breaks);
    assert_true(returns / 2 >= least_breaks);
    for (k = 0; k < world; k++) w[k]->table->close(w[k]);
    relay_end(&r);
}

static void streams_stay_whole_over_hundreds_of_breaks(void **state)
{
    (void)state;
    talk_over_breaks(11, 15000, 300, NULL);
}

static void streams_of_tls_stay_whole_over_breaks(void **state)
{
    ddp__tls *tls[4];
    (void)state;
    talk_keys(tls, 4);
    talk_over_breaks(16, 40000, 50, tls);
    for (int k = 0; k < 4; k++) ddp__tls_free(tls[k]);
}

/* ---- times ---- */

/* Where somebody else had the processor, a time says nothing: what is too long is measured again.
 * What is always too long fails. */
enum { TRIES = 3 };

/* ---- operations ---- */

typedef struct op_test {
    int rounds;
    size_t count;
    double begin[8], end[8]; /* of the last round */
    int at[8];               /* rounds finished, atomic */
} op_test;

/* All-reduces of random lengths whose sums are known to the bit. */
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
            if (memcmp(&sum, &x[i], sizeof sum)) net_fail(me, "round %d: x[%lu] = %g, not %g", k,
                                                          (unsigned long)i, (double)x[i],
                                                          (double)sum);
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

static void run_begin(relayed_run *run, relay *r, const net_setup *set, op_test *o)
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

static void run_end(relayed_run *run, relay *r)
{
    for (int k = 0; k < run->world; k++) pthread_join(run->thread[k], NULL);
    relay_end(r);
}

static void operations_keep_their_bits_over_breaks(void **state)
{
    static relay r;
    static relayed_run run;
    net_setup set;
    op_test o;
    (void)state;
    relay_begin(&r, 12 + (uint64_t)(getenv("SEED_BASE") ? atoi(getenv("SEED_BASE")) : 0));
    r.mean = 60000;
    net_defaults(&set, 3);
    memset(&o, 0, sizeof o);
    o.rounds = 60;
    o.count = 30000;
    run_begin(&run, &r, &set, &o);
    while (ddp__atomic_load(&o.at[0]) < o.rounds - 3 && !run.rank[0].failure[0])
        ddp__sleep_until(ddp_now() + 0.01);
    ddp__atomic_store(&r.mean, 0); /* the farewell shall not be what breaks */
    run_end(&run, &r);
    for (int k = 0; k < 3; k++)
        if (run.rank[k].failure[0]) fail_msg("rank %d: %s", k, run.rank[k].failure);
    print_message("%d breaks\n", r.breaks);
    if (getenv("SOAK")) printf("events 0 0 %d 0\n", r.breaks);
    assert_true(r.breaks >= 50);
}

/* One operation, with the network standing still for stall_s after `after` seconds of it. Seconds
 * that it took, without those. */
static double one_operation(double after, double stall_s)
{
    static relay r;
    static relayed_run run;
    net_setup set;
    op_test o;
    double begin = ddp_now(), back = 0;

    relay_begin(&r, 13);
    net_defaults(&set, 2);
    set.cfg.peer_timeout_s = 6; /* suspects after 1.5 s */
    memset(&o, 0, sizeof o);
    o.rounds = 1;
    o.count = 8000000;
    run_begin(&run, &r, &set, &o);
    if (stall_s > 0) {
        ddp__sleep_until(ddp_now() + after);
        ddp__atomic_store(&r.stall, 1);
        ddp__sleep_until(ddp_now() + stall_s);
        back = ddp_now();
        ddp__atomic_store(&r.stall, 0);
    }
    run_end(&run, &r);
    for (int k = 0; k < 2; k++)
        if (run.rank[k].failure[0]) fail_msg("rank %d: %s", k, run.rank[k].failure);
    assert_true(o.end[0] > back && o.end[1] > back); /* the stall fell into it */
    return o.end[0] - begin - stall_s;
}

/* The network stops in the middle of an operation and comes back before the peers' time-out:
 * the rest arrives soon after. */
static void an_operation_goes_on_soon_after_a_stall(void **state)
{
    double plain = 0, stalled = 1;
    (void)state;
    for (int i = 0; i < TRIES && stalled >= 1.5 * plain + 0.5; i++) {
        plain = one_operation(0, 0);
        stalled = one_operation(plain / 3, 3);
        print_message("%.2f s without a stall, %.2f s and the stall with one\n", plain, stalled);
    }
    assert_true(stalled < 1.5 * plain + 0.5);
}

/* Seconds until a link that stays away is lost. */
static double seconds_to_lose(void)
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
    while ((n = w[1]->table->recv(w[1], 0, &c, 1)) == 0 && ddp_now() < begin + 5)
        w[1]->table->wait(w[1], NULL, want, begin + 5);
    took = ddp_now() - begin;
    assert_int_equal(n, -1);
    assert_int_equal(errno, ETIMEDOUT);
    assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), -1);
    for (int k = 0; k < 2; k++) w[k]->table->close(w[k]);
    relay_end(&r);
    return took;
}

static void a_link_that_stays_away_is_lost_in_time(void **state)
{
    double took = 2;
    (void)state;
    for (int i = 0; i < TRIES && took >= 2.0; i++) {
        took = seconds_to_lose();
        assert_true(took >= 1.2); /* 0.3 s of silence, then 1 s broken */
    }
    assert_true(took < 2.0);
}

/* ---- strangers ---- */

static int knock(const ddp__addr *at, const unsigned char *bytes, size_t n)
{
    int fd = ddp__tcp_dial(at, ddp_now() + 5);
    assert_true(fd >= 0);
    if (n) assert_int_equal(ddp__stream_send_all(NULL, fd, bytes, n, ddp_now() + 5), 0);
    return fd;
}

/* Serves the door of rank 0 until the caller hears something; the kind of the answer, or -1. */
static int answer(ddp__wire *w, int fd, uint32_t *reason)
{
    unsigned char all[2] = {1, 1}, b[DDP__HELLO_BYTES];
    double end = ddp_now() + 10;
    ddp__hello h;
    int kind = -1;

    while (!ddp__fd_wait(fd, POLLIN, ddp_now()) && ddp_now() < end)
        w->table->wait(w, NULL, all, ddp_now() + 0.01);
    if (!ddp__stream_recv_all(NULL, fd, b, sizeof b, NULL, ddp_now() + 0.1) && ddp__hello_parse(b, &h)) {
        kind = (int)h.kind;
        *reason = h.reason;
    }
    close(fd);
    return kind;
}

static void strangers_are_turned_away(void **state)
{
    static relay r;
    ddp__wire *w[2];
    unsigned char b[DDP__HELLO_BYTES], all[2] = {1, 1};
    ddp__hello other;
    ddp__addr at;
    uint32_t reason = 0;
    struct iovec iov;
    char c = 1;
    int fd, crowd[20], k;
    double end;
    (void)state;
    relay_begin(&r, 15);
    relayed_world(&r, w, 2, 10, 0, NULL);
    at = r.to[0];
    memset(&other, 0, sizeof other);
    other.version = DDP__PROTOCOL;
    other.run_id = 8;
    other.rank = 1;
    other.world = 2;
    ddp__hello_pack(&other, DDP__RESUME, DDP__WELCOME, 0, b);
    assert_int_equal(answer(w[0], knock(&at, b, sizeof b), &reason), DDP__REFUSED);
    assert_int_equal(reason, DDP__REFUSE_RUN);
    other.run_id = 7;
    ddp__hello_pack(&other, DDP__HELLO, DDP__WELCOME, 0, b);
    assert_int_equal(answer(w[0], knock(&at, b, sizeof b), &reason), DDP__REFUSED);
    ddp__hello_pack(&other, DDP__RESUME, DDP__WELCOME, 0, b);
    ddp__hello_put(b + 44, 12345, 4); /* another process that calls itself rank 1 */
    ddp__hello_put(b + 60, 1000, 4);
    end = ddp_now() + 10; /* the first byte brings the number of the real one */
    iov.iov_base = &c;
    iov.iov_len = 1;
    while (w[1]->table->send(w[1], 0, &iov, 1) == 0 && ddp_now() < end) {}
    while (w[0]->table->recv(w[0], 1, &c, 1) == 0 && ddp_now() < end)
        w[0]->table->wait(w[0], NULL, all, end);
    assert_int_equal(answer(w[0], knock(&at, b, sizeof b), &reason), DDP__REFUSED);
    assert_int_equal(reason, DDP__REFUSE_TWICE);
    assert_int_equal(answer(w[0], knock(&at, (const unsigned char *)"GET / HTTP/1.0\r\n\r\n", 18),
                            &reason), -1);
    /* more silent ones than may come in: they leave after 5 s, and the link is not disturbed */
    for (k = 0; k < 20; k++) crowd[k] = knock(&at, b, 3);
    assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), 1);
    end = ddp_now() + 4; /* before the first of them leave */
    w[0]->table->wait(w[0], NULL, all, end);
    assert_int_equal(w[0]->table->recv(w[0], 1, &c, 1), 1);
    end = ddp_now() + 15;
    for (k = 0; k < 20; k++) {
        while (!ddp__fd_wait(crowd[k], POLLIN, ddp_now()) && ddp_now() < end && k < 4)
            w[0]->table->wait(w[0], NULL, all, ddp_now() + 0.02);
        if (k < 4) assert_int_equal(recv(crowd[k], b, 1, 0), 0);
        close(crowd[k]);
    }
    assert_true(ddp_now() < end - 6);
    fd = ddp__tcp_dial(&at, ddp_now() + 5); /* the door is still open */
    assert_true(fd >= 0);
    close(fd);
    for (k = 0; k < 2; k++) w[k]->table->close(w[k]);
    relay_end(&r);
}

/* Callers that say nothing, or begin as TLS does and stop, fill the door of a run with a key; a link
 * that breaks meanwhile comes back at once. */
static void idle_callers_do_not_keep_a_link_away(void **state)
{
    enum { IDLE = 40 };
    static relay r;
    ddp__tls *tls[2];
    ddp__wire *w[2];
    unsigned char all[2] = {1, 1}, c = 7;
    struct iovec iov;
    int crowd[IDLE], k;
    double begin, took = 9;
    (void)state;

    talk_keys(tls, 2);
    for (int attempt = 0; attempt < TRIES && took >= 1; attempt++) {
        relay_begin(&r, 17);
        relayed_world(&r, w, 2, 10, 0, tls);
        for (k = 0; k < IDLE; k++)
            crowd[k] = knock(&r.to[0], (const unsigned char *)"\x16\x03\x01", k % 2 ? 3 : 0);
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
        } while (!((ddp__resume_wire *)(void *)w[1])->returns && took < 15);
        assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), 1);
        begin = ddp_now();
        while (w[0]->table->recv(w[0], 1, &c, 1) == 0 && ddp_now() < begin + 5)
            w[0]->table->wait(w[0], NULL, all, ddp_now() + 0.01);
        assert_int_equal(c, 7);
        for (k = 0; k < IDLE; k++) close(crowd[k]);
        for (k = 0; k < 2; k++) w[k]->table->close(w[k]);
        relay_end(&r);
    }
    for (k = 0; k < 2; k++) ddp__tls_free(tls[k]);
    print_message("back after %.3f s\n", took);
    assert_true(took < 1);
}

#ifdef DDP_USE_OPENSSL
/* A newcomer whose certificate names no rank: its link comes back by the name with which it came. */
static void a_newcomer_comes_back_by_its_name(void **state)
{
    static relay r;
    ddp__tls *tls[2];
    ddp__wire *w[2];
    unsigned char all[2] = {1, 1}, c = 0;
    double end;
    int k;

    assert_int_equal(lab_begin(state), 0);
    tls[0] = lab_open(NULL, "ca", "rank-0", 7);
    tls[1] = lab_open(NULL, "ca", "join-5", 7);
    relay_begin(&r, 19);
    relayed_world(&r, w, 2, 4, 0, tls);
    w[1]->table->cut(w[1], 0);
    end = ddp_now() + 10;
    do {
        for (k = 0; k < 2; k++) {
            w[k]->table->wait(w[k], NULL, all, ddp_now() + 0.01);
            if (w[k]->table->recv(w[k], !k, &c, 1) < 0) fail_msg("rank %d lost its peer", k);
        }
    } while (!((ddp__resume_wire *)(void *)w[0])->returns && ddp_now() < end);
    assert_int_equal(((ddp__resume_wire *)(void *)w[0])->returns, 1);
    for (k = 0; k < 2; k++) w[k]->table->close(w[k]);
    relay_end(&r);
    for (k = 0; k < 2; k++) ddp__tls_free(tls[k]);
    lab_end(state);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ring_gives_back_what_was_put_in),
        cmocka_unit_test(streams_stay_whole_over_hundreds_of_breaks),
        cmocka_unit_test(streams_of_tls_stay_whole_over_breaks),
        cmocka_unit_test(operations_keep_their_bits_over_breaks),
        cmocka_unit_test(an_operation_goes_on_soon_after_a_stall),
        cmocka_unit_test(a_link_that_stays_away_is_lost_in_time),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(idle_callers_do_not_keep_a_link_away),
#ifdef DDP_USE_OPENSSL
        cmocka_unit_test(a_newcomer_comes_back_by_its_name),
#endif
    };
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
