/* [strict] Shaped links: real transfers take what the arithmetic of the link says, on every wire. */
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

#include "comm/net_world.h"

static void an_uplink_is_busy_for_bytes_over_rate_however_late_it_is_looked_at(void **state)
{
    ddp__link l;
    ddp__path p;
    (void)state;
    memset(&l, 0, sizeof l);
    memset(&p, 0, sizeof p);
    l.rate = 1000;
    assert_true(ddp__link_send(&l, &p, 10, 500) == 10.5);
    assert_true(ddp__link_send(&l, &p, 10, 250) ==
                10.75); /* was waiting: starts when the link is free */
    assert_true(ddp__link_send(&l, &p, 12, 500) == 12.5);  /* the idle time is not saved up */
}

static void a_downlink_delays_once_and_serialises_what_competes(void **state)
{
    ddp__link l;
    (void)state;
    memset(&l, 0, sizeof l);
    l.rate = 1000;
    assert_true(ddp__link_receive(&l, 12, 500) == 12);
    assert_true(ddp__link_receive(&l, 12, 500) == 12.5); /* from another peer at the same time */
    assert_true(ddp__link_receive(&l, 12.5, 500) == 13);
    assert_true(ddp__link_receive_control(&l, 12.5, 32) ==
                12.5); /* overtakes, but takes its time */
    assert_true(fabs(ddp__link_receive(&l, 13, 500) - 13.532) < 1e-12);
    assert_true(ddp__link_receive(&l, 22, 500) == 22);
}

/* Two ways of 1000 and 250 bytes/s behind an uplink of 2000. */
static void the_way_to_one_peer_does_not_hold_up_another(void **state)
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
    assert_true(ddp__link_send(&l, &slow, 11, 500) == 14); /* its way was busy until 12 */
    memset(&fast, 0, sizeof fast);                         /* no rate of its own */
    assert_true(ddp__link_send(&l, &fast, 20, 500) == 20.25);
}

static void one_at_a_time_a_frame_waits_for_the_way_to_another_peer(void **state)
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
    l.rate = 100; /* the uplink is slower than the ways */
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
    for (int i = 1; i <= 1000; i++) { /* far apart: nobody waits for the one before */
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

static void a_turn_of_the_rate_counts_from_its_time_on(void **state)
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

static void a_chunk_is_one_millisecond_within_limits(void **state)
{
    (void)state;
    assert_int_equal(ddp__link_chunk(12.5e6), 12480);
    assert_int_equal(ddp__link_chunk(1e5), 4096);
    assert_int_equal(ddp__link_chunk(1e9), 130048);
    assert_int_equal(ddp__link_chunk(0), 130048);
}

/* ---- real transfers ---- */

typedef struct transfer {
    ddp_verb verb;
    size_t    n;         /* floats */
    int       messages;  /* submitted together, n floats each */
    int       world;
    double    rate, delay_s, predicted;
    double    bound;     /* traffic over rate + one delay: nothing can be faster */
    double    begin[8], end[8];
    int       to_zero;   /* every rank but 0 sends to rank 0 */
    int to_one; /* before, all send to the same rank, which must not bring them out of step */
    int       drowsy;    /* comm threads wake up 3 ms late, whenever they sleep */
} transfer;

static void time_transfer(net_rank *me, void *user)
{
    transfer *t = (transfer *)user;
    float *data = (float *)calloc(t->n * (size_t)t->messages + 64, sizeof *data);
    float token[8];
    ddp_piece piece;
    ddp_message m;
    ddp__op_span span[16];
    long tickets[16];
    int count = 0;

    memset(token, 0, sizeof token);
    piece.data = token;
    piece.count = t->to_one ? 1 : 8;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m)); /* a barrier, then all start together */
    net_ok(me, net_do(me, &m));
    ddp__sleep_until(ddp_now() + 0.02);
    t->begin[me->rank] = ddp_now();
    for (int i = 0; i < t->messages; i++) {
        piece.data = data + (size_t)i * t->n;
        piece.count = t->n;
        net_message(&m, t->verb, &piece, 1);
        if (t->to_zero) {
            m.verb = me->rank == 0 ? DDP_RECEIVE : DDP_SEND;
            m.peer = me->rank == 0 ? i + 1 : 0;
            if (me->rank != 0 && me->rank != i + 1) continue;
        }
        net_ok(me, ddp__engine_submit(me->engine, &m, &tickets[count++], &me->err));
    }
    for (int i = 0; i < count; i++) net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
    /* when the last byte was due: how late this machine woke the threads is not the model's matter */
    t->end[me->rank] = t->begin[me->rank];
    count = ddp__engine_spans(me->engine, t->begin[me->rank], ddp_now(), span, 16);
    for (int i = 0; i < count; i++)
        if (span[i].due > t->end[me->rank]) t->end[me->rank] = span[i].due;
    free(data);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TIMED = 0 }; /* instrumented code is slower than the links: only the lower bounds count */
#else
enum { TIMED = 1 };
#endif

static const ddp__wire_table *awake_table;

static void wait_too_long(ddp__wire *w, const unsigned char *want_send,
                          const unsigned char *want_recv, double until)
{
    awake_table->wait(w, want_send, want_recv, until);
    ddp__sleep_until(ddp_now() + 0.003);
}

static void make_drowsy(ddp__engine_config *cfg, int rank)
{
    static ddp__wire_table tables[8];

    tables[rank] = *cfg->wire->table;
    tables[rank].wait = wait_too_long;
    cfg->wire->table = &tables[rank];
}

static void check_transfer(transfer *t, int tcp)
{
    double took = 0, best = 1e9, limit;
    for (int attempt = 0; attempt < 16; attempt++) { /* again where the machine was busy */
        net_setup set;
        double begin, end;
        net_defaults(&set, t->world);
        set.tcp = tcp;
        set.rate = t->rate;
        set.delay_s = t->delay_s;
        if (t->drowsy) {
            awake_table = tcp ? &ddp__tcp_table : &ddp__threads_table;
            set.tune = make_drowsy;
        }
        net_run(&set, time_transfer, t);
        begin = t->begin[0];
        end = t->end[0];
        for (int r = 1; r < t->world; r++) {
            if (t->begin[r] < begin) begin = t->begin[r];
            if (t->end[r] > end) end = t->end[r];
        }
        took = end - begin;
        if (took < t->bound)
            fail_msg("took %.4f s; nothing can be faster than %.4f s", took, t->bound);
        if (took < best) best = took;
        if (!TIMED || took <= t->predicted * 1.05) break;
    }
    /* 5 % in one of the attempts; a machine that is never quiet gets 10 %, no wrong model does.
     * Late threads without their correction take 6.5 % more. */
    limit = t->drowsy ? 1.06 : 1.1;
    if (TIMED && best > t->predicted * limit)
        fail_msg("took %.4f s, more than %.2f x %.4f s", best, limit, t->predicted);
    print_message("    %d ranks %5.1f Mbit/s %2.0f ms: %.4f s, arithmetic %.4f s\n", t->world,
                  t->rate * 8e-6, t->delay_s * 1e3, best, t->predicted);
}

/* An all-reduce between world ranks: each sends and receives 2 (world - 1) / world of the bytes,
 * and results may follow contributions without a pause. */
static transfer all_reduce_of(int world, int messages, size_t n, double rate, double delay_s)
{
    transfer t;
    memset(&t, 0, sizeof t);
    t.verb = DDP_ALL_REDUCE;
    t.world = world;
    t.messages = messages;
    t.n = n;
    t.rate = rate;
    t.delay_s = delay_s;
    t.predicted = messages * (2.0 * (world - 1) / world * (double)(n * 4) / rate) + 2 * delay_s;
    t.bound = t.predicted - delay_s;
    return t;
}

static void all_reduce_takes_its_traffic_over_the_rate(void **state)
{
    const double rates[] = {25e6, 50e6}, delays[] = {0, 0.02};
    (void)state;
    for (int i = 0; i < 4; i++) {
        transfer t = all_reduce_of(4, 1, (size_t)4 << 20, rates[i / 2], delays[i % 2]);
        check_transfer(&t, i % 2);
    }
}

static void two_ranks_over_a_slow_link_agree_with_the_arithmetic(void **state)
{
    transfer t = all_reduce_of(2, 1, (size_t)1 << 20, 12.5e6, 0.02);
    (void)state;
    check_transfer(&t, 1);
}

/* At any time each rank sends to another one; if all began with the same one, this would take 1.1
 * times as long. */
static void ranks_in_step_do_not_queue_at_one_receiver(void **state)
{
    transfer t = all_reduce_of(8, 1, (size_t)1 << 13, 5e5, 0.0005); /* few frames: the link is timed,
                                                                       not the processor */
    (void)state;
    t.to_one = 1;
    check_transfer(&t, 0);
    check_transfer(&t, 1);
}

/* Credits come back a round trip later: a peer that is far away gives more of them. */
static void a_long_link_is_kept_full(void **state)
{
    transfer t = all_reduce_of(2, 1, (size_t)4 << 20, 125e6, 0.05);
    (void)state;
    check_transfer(&t, 0);
    check_transfer(&t, 1);
    t.verb = DDP_SEND;
    t.to_zero = 1;
    t.bound = t.predicted = (double)(t.n * 4) / t.rate + t.delay_s;
    check_transfer(&t, 1);
}

static void several_messages_pay_the_delay_once(void **state)
{
    transfer t = all_reduce_of(2, 8, (size_t)1 << 17, 12.5e6, 0.02);
    (void)state;
    check_transfer(&t, 0);
}

static void a_broadcast_shares_the_uplink_of_its_root(void **state)
{
    transfer t;
    (void)state;
    memset(&t, 0, sizeof t);
    t.verb = DDP_BROADCAST;
    t.world = 4;
    t.n = (size_t)1 << 20;
    t.messages = 1;
    t.rate = 25e6;
    t.delay_s = 0.01;
    t.bound = t.predicted = 3 * (double)(t.n * 4) / t.rate + t.delay_s;
    check_transfer(&t, 0);
}

static void senders_share_the_downlink_of_one_receiver(void **state)
{
    transfer t;
    (void)state;
    memset(&t, 0, sizeof t);
    t.verb = DDP_SEND;
    t.to_zero = 1;
    t.world = 4;
    t.n = (size_t)1 << 20;
    t.messages = 3;
    t.rate = 25e6;
    t.delay_s = 0.01;
    t.bound = t.predicted = 3 * (double)(t.n * 4) / t.rate + t.delay_s;
    check_transfer(&t, 0);
    check_transfer(&t, 1);
}

/* A machine with more to do than cores wakes threads up late. The link must not be slower for it:
 * only the threads' own lateness is added, at each end of the way there and back. */
static void threads_that_wake_up_late_cost_no_rate(void **state)
{
    transfer t = all_reduce_of(3, 16, (size_t)1 << 15, 8e6, 0.001);
    (void)state;
    t.drowsy = 1;
    check_transfer(&t, 0);
    check_transfer(&t, 1);
}

/* ---- priorities and waiting ---- */

/* Half of the chunks take slots that are given back: not by a frame of their own each. */
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
        if (spans[i].layer == 1) end_first = spans[i].end;
        else end_second = spans[i].end;
    }
    if (count != 2 || end_second >= end_first) net_fail(me, "the urgent message did not overtake");
    free(data);
}

static void an_urgent_message_overtakes_between_chunks(void **state)
{
    net_setup set;
    (void)state;
    net_defaults(&set, 3);
    set.rate = 5e6;
    net_run(&set, urgent_second, NULL);
}

static void wait_for_a_late_rank(net_rank *me, void *user)
{
    float data[3000];
    ddp__op_span span;
    ddp_piece piece;
    ddp_message m;

    (void)user;
    memset(data, 0, sizeof data);
    piece.data = data;
    piece.count = 3000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m));
    m.step = 1;
    if (me->rank == 1) ddp__sleep_until(ddp_now() + 0.3);
    net_ok(me, net_do(me, &m));
    memset(&span, 0, sizeof span);
    {
        ddp__op_span spans[4];
        int n = ddp__engine_spans(me->engine, 0, 1e30, spans, 4);
        if (n == 2) span = spans[1];
    }
    if (span.step != 1) net_fail(me, "no span");
    if (me->rank != 1 && span.peer_wait < 0.2) net_fail(me, "waited only %.3f s", span.peer_wait);
    if (me->rank == 1 && span.peer_wait > 0.1)
        net_fail(me, "the late rank waited %.3f s", span.peer_wait);
    if (span.peer_wait > span.end - span.begin) net_fail(me, "waited longer than it took");
}

static void waiting_for_a_late_rank_is_counted_apart(void **state)
{
    net_setup set;
    (void)state;
    net_defaults(&set, 3);
    net_run(&set, wait_for_a_late_rank, NULL);
    set.rate = 1e7;
    set.delay_s = 0.005;
    net_run(&set, wait_for_a_late_rank, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_uplink_is_busy_for_bytes_over_rate_however_late_it_is_looked_at),
        cmocka_unit_test(a_downlink_delays_once_and_serialises_what_competes),
        cmocka_unit_test(the_way_to_one_peer_does_not_hold_up_another),
        cmocka_unit_test(one_at_a_time_a_frame_waits_for_the_way_to_another_peer),
        cmocka_unit_test(jitter_is_uniform_seeded_and_keeps_the_order),
        cmocka_unit_test(a_turn_of_the_rate_counts_from_its_time_on),
        cmocka_unit_test(a_chunk_is_one_millisecond_within_limits),
        cmocka_unit_test(all_reduce_takes_its_traffic_over_the_rate),
        cmocka_unit_test(two_ranks_over_a_slow_link_agree_with_the_arithmetic),
        cmocka_unit_test(ranks_in_step_do_not_queue_at_one_receiver),
        cmocka_unit_test(a_long_link_is_kept_full),
        cmocka_unit_test(several_messages_pay_the_delay_once),
        cmocka_unit_test(a_broadcast_shares_the_uplink_of_its_root),
        cmocka_unit_test(senders_share_the_downlink_of_one_receiver),
        cmocka_unit_test(threads_that_wake_up_late_cost_no_rate),
        cmocka_unit_test(credits_of_small_chunks_travel_together),
        cmocka_unit_test(an_urgent_message_overtakes_between_chunks),
        cmocka_unit_test(waiting_for_a_late_rank_is_counted_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
