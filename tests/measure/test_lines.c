/* [pure] The cost of a link by algorithm, and what the operations of training show about it. */
#include "measure/lines.h"

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

enum { MOST = 32 };

/* A direct all-reduce takes 0.1 s and 1 us per byte. */
static const ddp_link direct = {0.1, 1e-6};

static ddp__op_span span(char algorithm, int64_t bytes, double submitted, double end)
{
    ddp__op_span o;

    memset(&o, 0, sizeof o);
    o.verb = algorithm == 'p' ? DDP_ALL_GATHER : DDP_ALL_REDUCE;
    o.algorithm = algorithm;
    o.size = bytes;
    o.submitted = o.begin = submitted;
    o.end = o.due = end;
    return o;
}

static ddp__follow observed(ddp__op_span *ops, int n, int end)
{
    ddp_link line[DDP__LINES];
    ddp__follow f;

    memset(&f, 0, sizeof f);
    ddp__follow_restart(&f, -1);
    ddp__lines_derive(direct, 4, line);
    ddp__lines_observe(line, 0, 0, ops, n, end, &f);
    return f;
}

static double scale_of(ddp__op_span *ops, int n)
{
    ddp__follow f = observed(ops, n, 0);

    (void)ddp__follow_window(&f);
    return ddp__follow_scale(&f);
}

static int near(double x, double y) { return fabs(x - y) <= 1e-9 * fabs(y); }

static void each_algorithm_has_its_delays_and_bytes(void **state)
{
    ddp_link line[DDP__LINES];

    (void)state;
    ddp__lines_derive(direct, 4, line);
    assert_true(near(ddp__line_of(line, 'd').alpha_s, 0.1) && near(ddp__line_of(line, 'd').beta_s, 1e-6));
    /* all values to 3 ranks instead of 2 x 3/4 of them, after one delay instead of two */
    assert_true(near(ddp__line_of(line, 'f').alpha_s, 0.05) && near(ddp__line_of(line, 'f').beta_s, 2e-6));
    /* six delays */
    assert_true(near(ddp__line_of(line, 'r').alpha_s, 0.3) && near(ddp__line_of(line, 'r').beta_s, 1e-6));
    assert_true(near(ddp__line_of(line, 'p').alpha_s, 0.05) && near(ddp__line_of(line, 'p').beta_s, 1e-6));
    /* between two ranks every algorithm sends the same bytes */
    ddp__lines_derive(direct, 2, line);
    assert_true(near(ddp__line_of(line, 'f').beta_s, 1e-6));
}

static void transfers_as_modelled_do_not_change_the_rate(void **state)
{
    ddp__op_span ops[3] = {span('d', 1000000, 0, 1.1), span('f', 40000, 5, 5.13),
                           span('p', 2000000, 9, 10.05)};

    (void)state;
    assert_true(fabs(scale_of(ops, 3) - 1) < 1e-6);
}

static void messages_in_flight_together_share_the_link(void **state)
{
    ddp__op_span ops[3] = {span('d', 1000000, 0, 1.1), span('d', 1000000, 0.1, 2.1),
                           span('d', 1000000, 0.2, 3.1)};

    (void)state;
    assert_true(fabs(scale_of(ops, 3) - 1) < 1e-6);
}

static void slow_and_fast_links_are_seen_in_one_step(void **state)
{
    ddp__op_span slow[1] = {span('d', 1000000, 0, 10.1)}, fast[1] = {span('d', 1000000, 0, 0.2)};

    (void)state;
    assert_true(scale_of(slow, 1) > 9.9 && scale_of(slow, 1) < 10.1);
    /* between 0.1 s and, if its delays overlap, 0.15 s */
    assert_true(scale_of(fast, 1) < 0.15 && scale_of(fast, 1) > 0.1);
}

/* Messages of a few bytes take only the delay, whatever their number. */
static void small_messages_say_nothing_about_the_rate(void **state)
{
    ddp__op_span ops[MOST];

    (void)state;
    for (int i = 0; i < MOST; i++) ops[i] = span('d', 400, 2.0 * i, 2.0 * i + 0.099);
    assert_true(observed(ops, MOST, 1).count == 0);
    for (int i = 0; i < MOST; i++) ops[i] = span('d', 4000, 2.0 * i, 2.0 * i + 0.104);
    assert_true(fabs(scale_of(ops, MOST) - 1) < 1e-6);
}

static void a_wait_for_a_slow_rank_is_not_the_link(void **state)
{
    ddp__op_span ops[1] = {span('d', 1000000, 0, 6.1)};

    (void)state;
    ops[0].peer_wait = 5;
    assert_true(fabs(scale_of(ops, 1) - 1) < 1e-6);
}

/* Averages of parameter deltas begin when a short message has arrived. */
static void a_wait_for_a_message_before_is_not_the_link(void **state)
{
    ddp__op_span ops[2] = {span('f', 4, 0, 4), span('d', 1000000, 0, 5.1)};

    (void)state;
    ops[1].begin = 4;
    assert_true(fabs(scale_of(ops, 2) - 1) < 1e-6);
}

static void unfinished_and_foreign_operations_do_not_count(void **state)
{
    ddp__op_span running[2] = {span('d', 1000000, 0, 9), span('d', 1000000, 0, -1)},
                 foreign[2] = {span('d', 1000000, 0, 9), span('d', 4000000, 0, 8)};

    (void)state;
    assert_true(observed(running, 2, 0).count == 0);
    assert_true(observed(running, 2, 1).count == 1);
    foreign[1].layer = DDP_NO_LAYER;
    assert_true(fabs(scale_of(foreign, 2) - 1) < 1e-9);
    /* a control message takes no time of the link */
    foreign[0].end = foreign[1].end = 1.1;
    foreign[1].size = 8;
    assert_true(fabs(scale_of(foreign, 2) - 1) < 1e-6);
}

/* Transfers are longer than steps, begin before the one before ends, and wait for another rank. */
static void a_link_that_is_never_idle_is_measured(void **state)
{
    ddp__op_span ops[MOST], seen[MOST];
    ddp_link line[DDP__LINES];
    ddp__follow f;

    (void)state;
    for (int i = 0; i < MOST; i++) {
        ops[i] = span('d', 1000000, 2.0 * i - 1, 2.0 * i + 2);
        ops[i].peer_wait = 0.9;
    }
    memset(&f, 0, sizeof f);
    ddp__follow_restart(&f, -1);
    ddp__lines_derive(direct, 4, line);
    for (double now = 0; now < 2 * MOST; now += 0.5) {
        int n = 0;
        for (int i = 0; i < MOST; i++) {
            if (ops[i].begin > now || (ops[i].end <= now && ops[i].end < f.ended)) continue;
            seen[n] = ops[i];
            if (ops[i].end > now) seen[n].end = -1;
            n++;
        }
        assert_true(n <= 12); /* operations are evaluated before they are too many */
        ddp__lines_observe(line, 0, 0, seen, n, 0, &f);
    }
    assert_true(f.count >= 3);
    assert_true(fabs(ddp__follow_window(&f) - 2) < 0.1);
}

/* Interference makes half of the transfers slower, and the link none faster. */
static void interference_is_no_new_rate(void **state)
{
    const ddp__observed same = {0.8, 1.5, 1}, late = {4, 9, 1}, stalled = {1000, 1000, 1};
    ddp__follow f;

    (void)state;
    memset(&f, 0, sizeof f);
    for (int i = 0; i < 40; i++) ddp__follow_add(&f, i % 9 == 4 ? &stalled : i % 2 ? &late : &same);
    assert_true(fabs(ddp__follow_window(&f) - 1) < 1e-9);
}

/* A window that has no busy time changes nothing. */
static void a_new_rate_replaces_the_old_one(void **state)
{
    const ddp__observed same = {0.8, 1.5, 1}, slower = {10, 11, 1}, faster = {0.05, 0.2, 1};
    ddp__follow f;

    (void)state;
    memset(&f, 0, sizeof f);
    assert_true(near(ddp__follow_scale(&f), 1));
    for (int i = 0; i < 20; i++) ddp__follow_add(&f, &same);
    assert_true(near(ddp__follow_window(&f), 1));
    for (int i = 0; i < 10; i++) ddp__follow_add(&f, i < 4 ? &same : &slower);
    assert_true(near(ddp__follow_window(&f), 10) && near(ddp__follow_scale(&f), 10));
    assert_true(!(ddp__follow_window(&f) > 0) && near(ddp__follow_scale(&f), 10));
    ddp__follow_add(&f, &faster);
    assert_true(near(ddp__follow_window(&f), 0.1) && near(ddp__follow_scale(&f), 0.1));
    ddp__follow_restart(&f, 5);
    assert_true(near(ddp__follow_scale(&f), 1) && !(ddp__follow_window(&f) > 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_algorithm_has_its_delays_and_bytes),
        cmocka_unit_test(transfers_as_modelled_do_not_change_the_rate),
        cmocka_unit_test(messages_in_flight_together_share_the_link),
        cmocka_unit_test(slow_and_fast_links_are_seen_in_one_step),
        cmocka_unit_test(small_messages_say_nothing_about_the_rate),
        cmocka_unit_test(a_wait_for_a_slow_rank_is_not_the_link),
        cmocka_unit_test(a_wait_for_a_message_before_is_not_the_link),
        cmocka_unit_test(unfinished_and_foreign_operations_do_not_count),
        cmocka_unit_test(a_link_that_is_never_idle_is_measured),
        cmocka_unit_test(interference_is_no_new_rate),
        cmocka_unit_test(a_new_rate_replaces_the_old_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
