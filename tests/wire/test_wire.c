/* The contract of both wires: streams arrive complete and in order, a full stream applies back-pressure, an
 * ended stream reports its end once, and a waiting rank can be woken. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "wire/threads.c"
#include "wire/meet.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
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

enum { THREADS, TCP, RESUME };

static void open_wires(int kind, int world, ddp__wire **w)
{
    meet_rank m[MEET_MAX];
    char addr[DDP__ADDR_TEXT];
    int r;

    if (kind == THREADS) {
        ddp__hub *hub = ddp__hub_new(world);
        assert_non_null(hub);
        for (r = 0; r < world; r++) assert_int_equal(ddp__wire_threads(hub, r, &w[r], NULL), DDP_OK);
        ddp__hub_free(hub);
        return;
    }
    meet_prepare(m, world, meet_listen(addr), addr);
    for (r = 0; r < world; r++) m[r].how.resume = kind == RESUME;
    meet_start(m, world);
    meet_join(m, world);
    for (r = 0; r < world; r++) {
        assert_string_equal(m[r].err.msg, "");
        assert_int_equal(m[r].status, DDP_OK);
        w[r] = m[r].wire;
    }
}

static void close_wires(int world, ddp__wire **w)
{
    int r;
    for (r = 0; r < world; r++)
        if (w[r]) w[r]->table->close(w[r]);
}

/* ---- random traffic ---- */

#define STREAM_BYTES (1500000)

typedef struct talker {
    ddp__wire *w;
    pthread_t thread;
    uint64_t seed;
    int bad;   /* bytes that differ, or failures */
    int done;  /* atomic */
    int *left; /* ranks that have not finished */
} talker;

static void *talk(void *arg)
{
    talker *t = (talker *)arg;
    ddp__wire *w = t->w;
    ddp_rng rng = ddp_rng_seed(t->seed, (uint64_t)w->rank);
    size_t sent[MEET_MAX], got[MEET_MAX];
    unsigned char want_send[MEET_MAX], want_recv[MEET_MAX], *buf, *expect;
    double end = ddp_now() + 60;
    int p, open = 1;

    memset(sent, 0, sizeof sent);
    memset(got, 0, sizeof got);
    buf = (unsigned char *)malloc(100000);
    expect = (unsigned char *)malloc(100000);
    while (open) {
        open = 0;
        for (p = 0; p < w->world; p++) {
            struct iovec iov[3];
            size_t n = 1 + (size_t)ddp_rng_below(&rng, ddp_rng_below(&rng, 4) ? 300 : 100000), cut;
            long moved;
            want_send[p] = want_recv[p] = 0;
            if (p == w->rank) continue;
            if (sent[p] < STREAM_BYTES) {
                if (n > STREAM_BYTES - sent[p]) n = STREAM_BYTES - sent[p];
                fill_stream(w->rank, p, sent[p], buf, n);
                cut = (size_t)ddp_rng_below(&rng, n + 1);
                iov[0].iov_base = buf;
                iov[0].iov_len = cut;
                iov[1].iov_base = NULL;
                iov[1].iov_len = 0;
                iov[2].iov_base = buf + cut;
                iov[2].iov_len = n - cut;
                moved = w->table->send(w, p, iov, 3);
                if (moved < 0)
                    t->bad++;
                else
                    sent[p] += (size_t)moved;
                want_send[p] = moved == 0;
            }
            n = 1 + (size_t)ddp_rng_below(&rng, 100000);
            if (got[p] < STREAM_BYTES && ddp_rng_below(&rng, 8)) {
                moved = w->table->recv(w, p, buf, n);
                if (moved < 0) t->bad++;
                if (moved > 0) {
                    fill_stream(p, w->rank, got[p], expect, (size_t)moved);
                    if (memcmp(buf, expect, (size_t)moved)) t->bad++;
                    got[p] += (size_t)moved;
                }
            }
            want_recv[p] = got[p] < STREAM_BYTES;
            if (sent[p] < STREAM_BYTES || got[p] < STREAM_BYTES) open = 1;
            if (sent[p] < STREAM_BYTES && !want_send[p]) open = 2; /* more can be sent at once */
        }
        if (ddp_now() > end) t->bad++;
        if (t->bad) break;
        if (open == 1) w->table->wait(w, want_send, want_recv, ddp_now() + 10);
    }
    ddp__atomic_add(t->left, -1);
    memset(want_recv, 0, sizeof want_recv);
    while (ddp__atomic_load(t->left) > 0) /* bytes that the wire has accepted may still be queued in it */
        w->table->wait(w, NULL, want_recv, ddp_now() + 0.01);
    free(buf);
    free(expect);
    return NULL;
}

static void talk_all(int kind, int world)
{
    ddp__wire *w[MEET_MAX];
    talker t[MEET_MAX];
    int r, left = world;

    open_wires(kind, world, w);
    memset(t, 0, sizeof t);
    for (r = 0; r < world; r++) {
        t[r].w = w[r];
        t[r].left = &left;
        t[r].seed = (uint64_t)(kind * 100 + world);
        pthread_create(&t[r].thread, NULL, talk, &t[r]);
    }
    for (r = 0; r < world; r++) pthread_join(t[r].thread, NULL);
    for (r = 0; r < world; r++) assert_int_equal(t[r].bad, 0);
    close_wires(world, w);
}

static void random_streams_arrive_complete_between_threads(void **state)
{
    int world;
    (void)state;
    for (world = 2; world <= MEET_MAX; world++) talk_all(THREADS, world);
}

static void random_streams_arrive_complete_over_tcp(void **state)
{
    int world;
    (void)state;
    for (world = 2; world <= MEET_MAX; world++) talk_all(TCP, world);
}

static void random_streams_arrive_complete_with_reconnection(void **state)
{
    int world;
    (void)state;
    for (world = 2; world <= MEET_MAX; world++) talk_all(RESUME, world);
}

/* ---- back-pressure ---- */

static void *read_later(void *arg)
{
    talker *t = (talker *)arg;
    char *buf = (char *)malloc(1 << 20);
    double end = ddp_now() + 10;
    size_t left = (size_t)t->seed;

    ddp__sleep_until(ddp_now() + 0.05);
    while (left && ddp_now() < end) {
        long n = t->w->table->recv(t->w, 0, buf, (size_t)1 << 20);
        if (n > 0)
            left -= (size_t)n;
        else
            t->w->table->wait(t->w, NULL, NULL, end);
    }
    t->bad = left != 0;
    ddp__atomic_store(&t->done, 1);
    free(buf);
    return NULL;
}

static void full_stream(int kind)
{
    ddp__wire *w[2];
    unsigned char want[2] = {0, 1}, none[2] = {0, 0};
    char *block = (char *)calloc(1, 1 << 16);
    struct iovec iov;
    size_t total = 0;
    talker t;
    long n;

    open_wires(kind, 2, w);
    iov.iov_base = block;
    iov.iov_len = (size_t)1 << 16;
    for (;;) { /* until nothing is transferred for a while */
        double begin = ddp_now();
        n = w[0]->table->send(w[0], 1, &iov, 1);
        assert_true(n >= 0);
        total += (size_t)n;
        assert_true(total < ((size_t)64 << 20));
        if (n) continue;
        w[0]->table->wait(w[0], want, none, begin + 0.1);
        if (ddp_now() >= begin + 0.1) break;
    }
    if (kind == THREADS) assert_int_equal(total, DDP__RING_BYTES);
    memset(&t, 0, sizeof t);
    t.w = w[1];
    t.seed = (uint64_t)total + 1;
    pthread_create(&t.thread, NULL, read_later, &t);
    w[0]->table->wait(w[0], want, none, ddp_now() + 10);
    iov.iov_len = 1;
    assert_int_equal(w[0]->table->send(w[0], 1, &iov, 1), 1);
    while (!ddp__atomic_load(&t.done)) /* a link with reconnection has a record in flight */
        w[0]->table->wait(w[0], none, none, ddp_now() + 0.01);
    pthread_join(t.thread, NULL);
    assert_int_equal(t.bad, 0);
    close_wires(2, w);
    free(block);
}

static void full_stream_blocks_until_the_peer_reads(void **state)
{
    (void)state;
    full_stream(THREADS);
    full_stream(TCP);
    full_stream(RESUME);
}

/* ---- the end of a stream ---- */

static void ended_stream(int kind)
{
    ddp__wire *w[3];
    char buf[2000];
    unsigned char all[3] = {1, 1, 1};
    struct iovec iov;
    double begin;
    long n, got = 0;
    int tries;

    open_wires(kind, 3, w);
    memset(buf, 5, sizeof buf);
    iov.iov_base = buf;
    iov.iov_len = 1000;
    assert_int_equal(w[2]->table->send(w[2], 0, &iov, 1), 1000);
    w[2]->table->close(w[2]);
    w[2] = NULL;
    for (;;) {
        w[0]->table->wait(w[0], NULL, all, ddp_now() + 10);
        n = w[0]->table->recv(w[0], 2, buf, sizeof buf);
        if (n < 0) break;
        got += n;
    }
    assert_int_equal(got, 1000); /* bytes sent before the end are received */
    assert_int_equal(errno, ECONNRESET);
    begin = ddp_now();
    w[0]->table->wait(w[0], NULL, all, begin + 0.05);
    assert_true(ddp_now() >= begin + 0.05); /* a known end does not wake the waiting rank */
    for (tries = 0, n = 0; tries < 200 && n >= 0; tries++) {
        n = w[0]->table->send(w[0], 2, &iov, 1);
        ddp__sleep_until(ddp_now() + 0.001);
    }
    assert_int_equal(n, -1);
    begin = ddp_now();
    w[0]->table->wait(w[0], all, all, begin + 0.05); /* the stream to rank 1 has space */
    assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), 1000);
    w[0]->table->wait(w[0], NULL, all, ddp_now() + 10);
    assert_int_equal(w[0]->table->recv(w[0], 1, buf, sizeof buf), 1000);
    close_wires(2, w);
}

static void closed_peer_is_reported_after_its_last_bytes(void **state)
{
    (void)state;
    ended_stream(THREADS);
    ended_stream(TCP);
    ended_stream(RESUME);
}

/* ---- sleep and wake ---- */

static void *wake_often(void *arg)
{
    talker *t = (talker *)arg;
    int i;
    for (i = 0; i < 2000; i++) t->w->table->wake(t->w);
    ddp__atomic_store(&t->bad, 1);
    t->w->table->wake(t->w);
    return NULL;
}

static void wake_up(int kind)
{
    ddp__wire *w[2];
    talker t;
    double begin;

    open_wires(kind, 2, w);
    w[0]->table->wake(w[0]); /* before the wait: still counts */
    w[0]->table->wait(w[0], NULL, NULL, -1);
    begin = ddp_now();
    w[0]->table->wait(w[0], NULL, NULL, begin + 0.03); /* but only once */
    assert_true(ddp_now() >= begin + 0.03);
    memset(&t, 0, sizeof t);
    t.w = w[0];
    pthread_create(&t.thread, NULL, wake_often, &t);
    while (!ddp__atomic_load(&t.bad)) w[0]->table->wait(w[0], NULL, NULL, -1);
    pthread_join(t.thread, NULL);
    close_wires(2, w);
}

static void waiting_rank_never_misses_a_wake_up(void **state)
{
    (void)state;
    wake_up(THREADS);
    wake_up(TCP);
    wake_up(RESUME);
}

static void unrequested_rank_does_not_end_the_wait(void **state)
{
    int kind;
    (void)state;
    for (kind = THREADS; kind <= RESUME; kind++) {
        ddp__wire *w[2];
        unsigned char none[2] = {0, 0};
        char c = 1;
        struct iovec iov;
        double begin;
        open_wires(kind, 2, w);
        iov.iov_base = &c;
        iov.iov_len = 1;
        assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), 1);
        begin = ddp_now();
        w[0]->table->wait(w[0], none, none, begin + 0.05);
        assert_true(ddp_now() >= begin + 0.05);
        w[0]->table->wait(w[0], none, NULL, -1);
        assert_int_equal(w[0]->table->recv(w[0], 1, &c, 1), 1);
        close_wires(2, w);
    }
}

/* ---- details ---- */

/* Bytes that were read ahead are available although the socket is empty. */
static void wait_returns_for_bytes_that_were_read_ahead(void **state)
{
    unsigned char out[100], in[100];
    ddp__wire *w[2];
    struct iovec iov;
    double begin;
    size_t got = 0;
    long n = 0;

    (void)state;
    open_wires(TCP, 2, w);
    for (size_t i = 0; i < sizeof out; i++) out[i] = (unsigned char)(i * 7 + 1);
    iov.iov_base = out;
    iov.iov_len = sizeof out;
    assert_int_equal(w[0]->table->send(w[0], 1, &iov, 1), sizeof out);
    w[1]->table->wait(w[1], NULL, NULL, ddp_now() + 10);
    while (n == 0 && got++ < 100) n = w[1]->table->recv(w[1], 0, in, 10);
    assert_int_equal(n, 10);
    for (got = 10; got < sizeof in; got += (size_t)n) {
        begin = ddp_now();
        w[1]->table->wait(w[1], NULL, NULL, begin + 10);
        assert_true(ddp_now() < begin + 8);
        n = w[1]->table->recv(w[1], 0, in + got, 30);
        assert_int_equal(n, 30);
    }
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(w[1]->table->recv(w[1], 0, in, 1), 0);
    /* a socket that was empty is read again when it has bytes */
    assert_int_equal(w[0]->table->send(w[0], 1, &iov, 1), sizeof out);
    w[1]->table->wait(w[1], NULL, NULL, ddp_now() + 10);
    assert_int_equal(w[1]->table->recv(w[1], 0, in, sizeof in), sizeof in);
    assert_memory_equal(in, out, sizeof in);
    close_wires(2, w);
}

static void hub_assigns_each_rank_once(void **state)
{
    ddp__hub *hub = ddp__hub_new(2);
    ddp__wire *w = NULL, *other = NULL;
    ddp_error err;
    (void)state;
    assert_int_equal(ddp__wire_threads(hub, 1, &w, NULL), DDP_OK);
    assert_string_equal(w->names[0], "thread 0");
    assert_int_equal(ddp__wire_threads(hub, 1, &other, &err), DDP_ARG);
    assert_string_equal(err.msg, "rank 1 is already used: give each thread a different rank");
    assert_int_equal(ddp__wire_threads(hub, 2, &other, &err), DDP_ARG);
    assert_null(other);
    ddp__hub_free(hub);
    w->table->close(w);
    assert_null(ddp__hub_new(0));
}

static void tcp_sockets_send_at_once_and_close_on_exec(void **state)
{
    ddp__wire *w[3];
    int r, p, on;
    int64_t expected, info[17];
    (void)state;
    open_wires(TCP, 3, w);
    for (r = 0; r < 3; r++) {
        for (p = 0; p < 3; p++) {
            socklen_t size = sizeof on;
            int fd = meet_fd(w[r], p);
            if (p == r) continue;
            on = 0;
            assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &size), 0);
            assert_true(on != 0);
            assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
            assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
            assert_int_equal(strncmp(w[r]->names[p], "127.0.0.1:", 10), 0);
            /* rank 0: hello, table of 3 entries, go; others: hello and, to rank 0, ready */
            expected = r == 0 ? 64 + (64 + 3 * 24) + 64 : p == 0 ? 128 : 64;
            size = sizeof info; /* struct tcp_info of <linux/tcp.h>: bytes received at 128 */
            memset(info, 0, sizeof info);
            assert_int_equal(getsockopt(meet_fd(w[p], r), IPPROTO_TCP, TCP_INFO, info, &size), 0);
            assert_int_equal(info[16], expected);
        }
    }
    close_wires(3, w);
}

static void unknown_congestion_control_is_rejected(void **state)
{
    int pair[2], fds[2];
    char addr[DDP__ADDR_TEXT];
    ddp__addr at;
    ddp__wire *w = NULL;
    ddp_error err;
    int listener = meet_listen(addr), count;
    (void)state;
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    pair[0] = ddp__tcp_dial(&at, ddp_now() + 5);
    assert_true(pair[0] >= 0);
    fds[0] = -1;
    fds[1] = pair[0];
    assert_int_not_equal(net_wire(0, 2, fds, "no-such-control", &w, &err), DDP_OK);
    assert_non_null(strstr(err.msg, "no-such-control"));
    assert_null(w);
    close(pair[0]); /* still owned by the caller */
    close(listener);
}

/* The congestion control of a connection that used BBR before it became a link with this setting. */
static void control_after_bbr(const char *setting, char *name)
{
    int fds[2] = {-1, -1}, count;
    char addr[DDP__ADDR_TEXT];
    ddp__addr at;
    ddp__wire *w = NULL;
    ddp_error err;
    int listener = meet_listen(addr);
    socklen_t size = 15;

    memset(name, 0, 16);
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    fds[1] = ddp__tcp_dial(&at, ddp_now() + 5);
    assert_true(fds[1] >= 0);
    if (setsockopt(fds[1], IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) < 0) {
        close(fds[1]);
    } else {
        assert_int_equal(net_wire(0, 2, fds, setting, &w, &err), DDP_OK);
        assert_int_equal(getsockopt(meet_fd(w, 1), IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
        w->table->close(w);
    }
    close(listener);
}

static void short_link_uses_reno_instead_of_bbr(void **state)
{
    char name[16];
    (void)state;
    control_after_bbr(NULL, name);
    if (!name[0]) SKIP("this system has no BBR");
    assert_string_equal(name, "reno");
    control_after_bbr("bbr", name);
    assert_string_equal(name, "bbr");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_streams_arrive_complete_between_threads),
        cmocka_unit_test(random_streams_arrive_complete_over_tcp),
        cmocka_unit_test(random_streams_arrive_complete_with_reconnection),
        cmocka_unit_test(full_stream_blocks_until_the_peer_reads),
        cmocka_unit_test(closed_peer_is_reported_after_its_last_bytes),
        cmocka_unit_test(waiting_rank_never_misses_a_wake_up),
        cmocka_unit_test(unrequested_rank_does_not_end_the_wait),
        cmocka_unit_test(wait_returns_for_bytes_that_were_read_ahead),
        cmocka_unit_test(hub_assigns_each_rank_once),
        cmocka_unit_test(tcp_sockets_send_at_once_and_close_on_exec),
        cmocka_unit_test(unknown_congestion_control_is_rejected),
        cmocka_unit_test(short_link_uses_reno_instead_of_bbr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
