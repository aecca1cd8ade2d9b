/* [long] Links that break and reconnect: streams are complete to the byte whatever the network does, an
 * operation continues soon after the link is connected, and unknown callers are refused. */
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
#include "wire/resume_lab.h"

/* ---- the ring ---- */

static void replay_ring_returns_the_stored_bytes(void **state)
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

/* ---- random streams ---- */

static void streams_are_complete_after_hundreds_of_breaks(void **state)
{
    (void)state;
    talk_over_breaks(11, 15000, 300, NULL);
}

/* ---- operations ---- */

static void operations_are_bit_identical_after_breaks(void **state)
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
    ddp__atomic_store(&r.mean, 0); /* the last message must not be the one that breaks */
    run_end(&run, &r);
    for (int k = 0; k < 3; k++)
        if (run.rank[k].failure[0]) fail_msg("rank %d: %s", k, run.rank[k].failure);
    print_message("%d breaks\n", r.breaks);
    if (getenv("SOAK")) printf("events 0 0 %d 0\n", r.breaks);
    assert_true(r.breaks >= 50);
}

/* The network stalls in the middle of an operation and returns before the peer time-out: the operation
 * completes. */
static void operation_continues_soon_after_a_stall(void **state)
{
    (void)state;
    (void)stalled_operation(1000000, 2.5);
}

static void link_that_stays_broken_is_lost_after_the_time_out(void **state)
{
    (void)state;
    assert_true(seconds_to_lose() >= 1.2); /* 0.3 s of silence, then 1 s broken */
}

/* ---- unknown callers ---- */

/* Serves the admission of rank 0 until the caller receives an answer. Returns the kind of the answer, or -1.
 * */
static int answer(ddp__wire *w, int fd, uint32_t *reason)
{
    unsigned char all[2] = {1, 1}, b[DDP__HELLO_BYTES];
    double end = ddp_now() + 60;
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

static void unknown_callers_are_refused(void **state)
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
    long got;
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
    assert_int_equal(answer(w[0], connect_and_send(&at, b, sizeof b), &reason), DDP__REFUSED);
    assert_int_equal(reason, DDP__REFUSE_RUN);
    other.run_id = 7;
    ddp__hello_pack(&other, DDP__HELLO, DDP__WELCOME, 0, b);
    assert_int_equal(answer(w[0], connect_and_send(&at, b, sizeof b), &reason), DDP__REFUSED);
    assert_int_equal(reason, DDP__REFUSE_BEGUN);
    ddp__hello_pack(&other, DDP__RESUME, DDP__WELCOME, 0, b);
    ddp__hello_put(b + 44, 12345, 4); /* another process that claims to be rank 1 */
    ddp__hello_put(b + 60, 1000, 4);
    ddp__hello_seal(b);
    end = ddp_now() + 60; /* the first byte contains the number of the real one */
    iov.iov_base = &c;
    iov.iov_len = 1;
    while (w[1]->table->send(w[1], 0, &iov, 1) == 0 && ddp_now() < end) {
    }
    while (w[0]->table->recv(w[0], 1, &c, 1) == 0 && ddp_now() < end) w[0]->table->wait(w[0], NULL, all, end);
    assert_int_equal(answer(w[0], connect_and_send(&at, b, sizeof b), &reason), DDP__REFUSED);
    assert_int_equal(reason, DDP__REFUSE_TWICE);
    assert_int_equal(
        answer(w[0], connect_and_send(&at, (const unsigned char *)"GET / HTTP/1.0\r\n\r\n", 18), &reason),
        -1);
    /* twenty incomplete hellos: they are dropped after 5 s, and do not disturb the link */
    for (k = 0; k < 20; k++) crowd[k] = connect_and_send(&at, b, 3);
    assert_int_equal(w[1]->table->send(w[1], 0, &iov, 1), 1);
    end = ddp_now() + 60;
    while ((got = w[0]->table->recv(w[0], 1, &c, 1)) == 0 && ddp_now() < end)
        w[0]->table->wait(w[0], NULL, all, end);
    assert_int_equal(got, 1);
    for (k = 0; k < 20; k++) {
        while (!ddp__fd_wait(crowd[k], POLLIN, ddp_now()) && ddp_now() < end && k < 4)
            w[0]->table->wait(w[0], NULL, all, ddp_now() + 0.02);
        if (k < 4) assert_int_equal(recv(crowd[k], b, 1, 0), 0);
        close(crowd[k]);
    }
    fd = ddp__tcp_dial(&at, ddp_now() + 5); /* the listening socket is still open */
    assert_true(fd >= 0);
    close(fd);
    for (k = 0; k < 2; k++) w[k]->table->close(w[k]);
    relay_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_ring_returns_the_stored_bytes),
        cmocka_unit_test(streams_are_complete_after_hundreds_of_breaks),
        cmocka_unit_test(operations_are_bit_identical_after_breaks),
        cmocka_unit_test(operation_continues_soon_after_a_stall),
        cmocka_unit_test(link_that_stays_broken_is_lost_after_the_time_out),
        cmocka_unit_test(unknown_callers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
