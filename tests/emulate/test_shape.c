/* Shaped links: real transfers take the computed time on every wire. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "wire/threads.c"
#include "wire/reconnect.c"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "emulate/shape_lab.h"

static void uplink_time_does_not_depend_on_late_wake_ups(void **state)
{
    ddp__link l;
    ddp__path p;
    (void)state;
    memset(&l, 0, sizeof l);
    memset(&p, 0, sizeof p);
    l.rate = 1000;
    assert_true(ddp__link_send(&l, &p, 10, 500) == 10.5);
    assert_true(ddp__link_send(&l, &p, 10, 250) == 10.75); /* waits until the link is free */
    assert_true(ddp__link_send(&l, &p, 12, 500) == 12.5);  /* idle time earns no credit */
}

static void downlink_serialises_competing_frames(void **state)
{
    ddp__link l;
    (void)state;
    memset(&l, 0, sizeof l);
    l.rate = 1000;
    assert_true(ddp__link_receive(&l, 12, 500) == 12);
    assert_true(ddp__link_receive(&l, 12, 500) == 12.5); /* from another peer at the same time */
    assert_true(ddp__link_receive(&l, 12.5, 500) == 13);
    assert_true(ddp__link_receive_control(&l, 12.5, 32) == 12.5); /* overtakes, but uses capacity */
    assert_true(fabs(ddp__link_receive(&l, 13, 500) - 13.532) < 1e-12);
    assert_true(ddp__link_receive(&l, 22, 500) == 22);
}

/* Two paths of 1000 and 250 bytes/s behind an uplink of 2000. */
static void busy_path_does_not_delay_another_peer(void **state)
{
    ddp__link l;
    ddp__path fast, slow;
    (void)state;
    memset(&l, 0, sizeof l);
    memset(&fast, 0, sizeof fast);
    memset(&slow, 0, sizeof slow);
    l.rate = 2000;
    fast.rate = 1000;
    slow.rate = 250;
    assert_true(ddp__link_send(&l, &slow, 10, 500) == 12);
    assert_true(l.up_free == 10.25);
    assert_true(ddp__link_send(&l, &fast, 10, 500) == 10.75);
    assert_true(l.up_free == 10.5);
    assert_true(ddp__link_send(&l, &slow, 11, 500) == 14); /* its path was busy until 12 */
    memset(&fast, 0, sizeof fast);                         /* the path has no limit */
    assert_true(ddp__link_send(&l, &fast, 20, 500) == 20.25);
}

static void one_at_a_time_frame_waits_for_another_path(void **state)
{
    ddp__link l;
    ddp__path fast, slow;
    (void)state;
    memset(&l, 0, sizeof l);
    memset(&fast, 0, sizeof fast);
    memset(&slow, 0, sizeof slow);
    l.one_at_a_time = 1;
    fast.rate = 1000;
    slow.rate = 250;
    assert_true(ddp__link_send(&l, &slow, 10, 500) == 12);
    assert_true(l.up_free == 12);
    assert_true(ddp__link_send(&l, &fast, 10, 500) == 12.5);
    assert_true(ddp__link_send(&l, &slow, 13, 500) == 15);
    l.rate = 100; /* the uplink is slower than the paths */
    assert_true(ddp__link_send(&l, &fast, 20, 500) == 25 && l.up_free == 25);
}

static void jitter_is_uniform_seeded_and_keeps_the_order(void **state)
{
    ddp__path p, q;
    double sum = 0, least = 9, most = 0, before = 0;
    (void)state;
    memset(&p, 0, sizeof p);
    p.delay_s = 0.5;
    p.jitter_s = 0.25;
    p.rng = ddp__jitter_rng(1, 0, 1);
    q = p;
    for (int i = 1; i <= 1000; i++) { /* with large gaps, no frame waits for the previous one */
        double late = ddp__path_receive(&p, i) - i;
        assert_true(ddp__path_receive(&q, i) - i == late); /* the same seed, the same jitter */
        assert_true(late >= 0.5 && late < 0.75);
        sum += late;
        if (late < least) least = late;
        if (late > most) most = late;
    }
    assert_true(fabs(sum / 1000 - 0.625) < 0.01 && least < 0.502 && most > 0.748);
    for (int i = 0; i < 1000; i++) { /* all at once */
        double there = ddp__path_receive(&p, 2000);
        assert_true(there >= before);
        before = there;
    }
    q.rng = ddp__jitter_rng(1, 1, 0);
    p.rng = ddp__jitter_rng(1, 0, 1);
    assert_true(ddp__path_receive(&p, 3000) != ddp__path_receive(&q, 3000));
}

static void rate_change_applies_from_its_time_on(void **state)
{
    ddp__turn turn[] = {{1, -1}, {3, 100}, {4, 0}};
    ddp__link l;
    ddp__path p;
    (void)state;
    memset(&l, 0, sizeof l);
    memset(&p, 0, sizeof p);
    l.rate = 1000;
    l.turn = turn;
    l.turns = 3;
    l.zero = 10;
    assert_true(ddp__link_pass(&l, 10, 500) == 10.5);
    assert_true(ddp__link_pass(&l, 10.5, 500) == 11);
    assert_true(ddp__link_pass(&l, 10.5, 550) == 13.5); /* a stall, then 50 bytes at 100/s */
    assert_true(ddp__link_pass(&l, 11, 0) == 13);
    assert_true(ddp__link_pass(&l, 13, 200) == 14); /* unlimited from 14 on */
    assert_true(ddp__link_pass(&l, 20, 1e9) == 20);
    assert_false(ddp__link_stalled(&l, 10.99));
    assert_true(ddp__link_stalled(&l, 11) && ddp__link_stalled(&l, 12.99));
    assert_false(ddp__link_stalled(&l, 13));
    assert_true(ddp__link_turns(&l, 10) == 11 && ddp__link_turns(&l, 11) == 13 &&
                ddp__link_turns(&l, 14) == -1);
    assert_true(ddp__link_send(&l, &p, 10.9, 200) == 14);
    assert_true(ddp__link_receive_control(&l, 12, 32) == 13);
    assert_true(ddp__link_receive(&l, 12, 50) == 13);
    assert_true(ddp__link_receive(&l, 12, 50) == 13.5);
}

static void chunk_is_one_millisecond_within_limits(void **state)
{
    (void)state;
    assert_int_equal(ddp__link_chunk(12.5e6), 12480);
    assert_int_equal(ddp__link_chunk(1e5), 4096);
    assert_int_equal(ddp__link_chunk(1e9), 130048);
    assert_int_equal(ddp__link_chunk(0), 130048);
}

/* ---- real transfers ---- */

/* Bytes cannot arrive earlier than the rate and the delay of a link allow, whatever the machine does. */
static void no_transfer_is_faster_than_its_link(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        transfer t = all_reduce_of(4, 1, (size_t)1 << 18, 25e6, tcp ? 0.02 : 0);
        (void)run_transfer(&t, tcp);
        t = all_reduce_of(8, 1, (size_t)1 << 12, 5e5, 0.0005);
        t.to_one = 1;
        (void)run_transfer(&t, tcp);
        t = all_reduce_of(2, 8, (size_t)1 << 14, 12.5e6, 0.02); /* several messages */
        (void)run_transfer(&t, tcp);
        t = all_reduce_of(2, 1, (size_t)1 << 20, 125e6, 0.05); /* a link with a long delay */
        (void)run_transfer(&t, tcp);
        t.verb = DDP_SEND;
        t.to_zero = 1;
        t.bound = (double)(t.n * 4) / t.rate + t.delay_s;
        (void)run_transfer(&t, tcp);
        memset(&t, 0, sizeof t);
        t.verb = DDP_BROADCAST; /* its root sends a third to each rank, which sends it on */
        t.world = 4;
        t.n = (size_t)1 << 18;
        t.messages = 1;
        t.rate = 25e6;
        t.delay_s = 0.01;
        t.bound = (double)(t.n * 4) / t.rate + t.delay_s;
        (void)run_transfer(&t, tcp);
        t.bound = 3 * (double)(t.n * 4) / t.rate + t.delay_s;
        t.verb = DDP_SEND; /* three senders share the downlink of rank 0 */
        t.to_zero = 1;
        t.messages = 3;
        (void)run_transfer(&t, tcp);
    }
}

/* ---- priorities and waiting ---- */

/* Half of the chunks take slots that are returned. Credits are not returned in a separate frame for each
 * slot. */
static void count_heads(net_rank *me, void *user)
{
    float *data = (float *)calloc(500000, sizeof *data);
    ddp__net_stats stats;
    ddp_piece piece;
    ddp_message m;
    long chunks, heads;

    (void)user;
    piece.data = data;
    piece.count = 500000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m));
    ddp__engine_stats(me->engine, &stats);
    chunks = (long)(stats.payload_sent / 4096);
    heads = (long)((stats.bytes_sent - stats.payload_sent) / DDP__FRAME_BYTES);
    if (heads < chunks || heads > chunks + chunks / 4)
        net_fail(me, "%ld heads for %ld chunks", heads, chunks);
    free(data);
}

static void credits_of_small_chunks_travel_together(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 3);
    set.rate = 1e7;
    set.cfg.chunk_bytes = 4096;
    net_run(&set, count_heads, NULL);
}

static void urgent_second(net_rank *me, void *user)
{
    const size_t n = 200000;
    float *data = (float *)calloc(2 * n, sizeof *data);
    ddp__op_span spans[8];
    ddp_piece piece;
    ddp_message m;
    long first = 0, second = 0;
    double end_first = 0, end_second = 0;
    int count;

    (void)user;
    piece.data = data;
    piece.count = n;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.priority = 5;
    net_ok(me, ddp__engine_submit(me->engine, &m, &first, &me->err));
    piece.data = data + n;
    m.priority = 1;
    m.layer = 2;
    net_ok(me, ddp__engine_submit(me->engine, &m, &second, &me->err));
    net_ok(me, ddp__engine_wait(me->engine, first, &me->err));
    net_ok(me, ddp__engine_wait(me->engine, second, &me->err));
    count = ddp__engine_spans(me->engine, 0, 1e30, spans, 8);
    for (int i = 0; i < count; i++) {
        if (spans[i].layer == 1)
            end_first = spans[i].end;
        else
            end_second = spans[i].end;
    }
    if (count != 2 || end_second >= end_first) net_fail(me, "the high-priority message did not overtake");
    free(data);
}

static void high_priority_message_overtakes_between_chunks(void **state)
{
    net_setup set;
    (void)state;
    net_defaults(&set, 3);
    set.rate = 5e6;
    net_run(&set, urgent_second, NULL);
}

typedef struct lateness {
    int submitted; /* atomic: number of ranks that wait for the late one */
    double peer_wait[8];
} lateness;

static void wait_for_a_late_rank(net_rank *me, void *user)
{
    lateness *l = (lateness *)user;
    float data[3000];
    ddp__op_span span[4];
    ddp_piece piece;
    ddp_message m;
    long ticket = 0;
    int n;

    memset(data, 0, sizeof data);
    memset(span, 0, sizeof span);
    piece.data = data;
    piece.count = 3000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m));
    m.step = 1;
    if (me->rank == 1) {
        while (ddp__atomic_load(&l->submitted) < me->world - 1) ddp__sleep_until(ddp_now() + 0.001);
        ddp__sleep_until(ddp_now() + 0.3);
    }
    net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
    ddp__atomic_add(&l->submitted, 1);
    net_ok(me, ddp__engine_wait(me->engine, ticket, &me->err));
    n = ddp__engine_spans(me->engine, 0, 1e30, span, 4);
    if (n != 2 || span[1].step != 1) net_fail(me, "%d spans, the last of step %d", n, (int)span[1].step);
    l->peer_wait[me->rank] = span[1].peer_wait;
    if (me->rank != 1 && span[1].peer_wait < 0.2) net_fail(me, "waited only %.3f s", span[1].peer_wait);
    if (span[1].peer_wait > span[1].end - span[1].begin)
        net_fail(me, "the wait is longer than the operation");
}

static void wait_for_a_late_rank_is_reported_separately(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        lateness l;
        net_setup set;
        memset(&l, 0, sizeof l);
        net_defaults(&set, 3);
        if (slow) {
            set.rate = 1e7;
            set.delay_s = 0.005;
        }
        net_run(&set, wait_for_a_late_rank, &l);
        assert_true(l.peer_wait[1] < l.peer_wait[0] && l.peer_wait[1] < l.peer_wait[2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uplink_time_does_not_depend_on_late_wake_ups),
        cmocka_unit_test(downlink_serialises_competing_frames),
        cmocka_unit_test(busy_path_does_not_delay_another_peer),
        cmocka_unit_test(one_at_a_time_frame_waits_for_another_path),
        cmocka_unit_test(jitter_is_uniform_seeded_and_keeps_the_order),
        cmocka_unit_test(rate_change_applies_from_its_time_on),
        cmocka_unit_test(chunk_is_one_millisecond_within_limits),
        cmocka_unit_test(no_transfer_is_faster_than_its_link),
        cmocka_unit_test(credits_of_small_chunks_travel_together),
        cmocka_unit_test(high_priority_message_overtakes_between_chunks),
        cmocka_unit_test(wait_for_a_late_rank_is_reported_separately),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
