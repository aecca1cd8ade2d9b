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

static double scale_of(ddp__op_span *ops, int n)
{
    ddp_link line[DDP__LINES];
    ddp__observed seen;
    ddp__follow f;

    memset(&seen, 0, sizeof seen);
    memset(&f, 0, sizeof f);
    ddp__lines_derive(direct, 4, line);
    ddp__lines_observe(line, 0, ops, n, -1, -1, &seen);
    ddp__follow_add(&f, &seen);
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
    assert_true(scale_of(slow, 1) > 5 && scale_of(slow, 1) < 10.5);
    assert_true(scale_of(fast, 1) < 0.2 && scale_of(fast, 1) > 0.09);
}

/* Messages of a few bytes take only the delay, whatever their number. */
static void small_messages_say_nothing_about_the_rate(void **state)
{
    ddp__op_span ops[MOST];

    (void)state;
    for (int i = 0; i < MOST; i++) ops[i] = span('d', 400, 0, 0.05);
    assert_true(fabs(scale_of(ops, MOST) - 1) < 0.1);
    for (int i = 0; i < MOST; i++) ops[i] = span('d', 400, 2.0 * i, 2.0 * i + 0.099);
    assert_true(fabs(scale_of(ops, MOST) - 1) < 0.1);
}

static void a_wait_for_a_slow_rank_is_not_the_link(void **state)
{
    ddp__op_span ops[1] = {span('d', 1000000, 0, 6.1)};

    (void)state;
    ops[0].peer_wait = 5;
    assert_true(fabs(scale_of(ops, 1) - 1) < 1e-6);
}

static void unfinished_and_foreign_operations_do_not_count(void **state)
{
    ddp__op_span running[2] = {span('d', 1000000, 0, 9), span('d', 1000000, 0, -1)},
                 foreign[2] = {span('d', 1000000, 0, 9), span('d', 1000000, 0.5, 9)};

    (void)state;
    foreign[1].layer = DDP_NO_LAYER;
    assert_true(fabs(scale_of(running, 2) - 1) < 1e-9);
    assert_true(fabs(scale_of(foreign, 2) - 1) < 1e-9);
    /* a control message takes no time of the link */
    foreign[0].end = foreign[1].end = 1.1;
    foreign[1].size = 8;
    assert_true(fabs(scale_of(foreign, 2) - 1) < 1e-6);
}

static void a_link_that_is_never_idle_is_measured(void **state)
{
    ddp_link line[DDP__LINES];
    ddp__op_span ops[MOST];
    ddp__observed seen;

    (void)state;
    ddp__lines_derive(direct, 4, line);
    for (int i = 0; i < MOST; i++) ops[i] = span('d', 1000000, 2.0 * i - 1, 2.0 * i + 2);
    memset(&seen, 0, sizeof seen);
    ddp__lines_saturated(line, 0, ops, MOST, 21, &seen);
    assert_true(near(seen.seconds, 2 * seen.modelled_s));
    ops[MOST / 2].begin += 1.5; /* idle before it */
    memset(&seen, 0, sizeof seen);
    ddp__lines_saturated(line, 0, ops, MOST, 21, &seen);
    assert_true(!(seen.seconds > 0));
}

/* After a change, half of the weight is on the newest three steps. */
static void a_new_rate_replaces_the_old_one(void **state)
{
    const ddp__observed same = {1, 1, 0}, slower = {10, 1, 0}, stalled = {1000, 1, 0};
    ddp__follow f;

    (void)state;
    memset(&f, 0, sizeof f);
    for (int i = 0; i < 50; i++) ddp__follow_add(&f, &same);
    assert_true(fabs(ddp__follow_scale(&f) - 1) < 1e-9);
    ddp__follow_add(&f, &stalled); /* one stalled transfer is no new rate */
    assert_true(ddp__follow_scale(&f) < 2);
    for (int i = 0; i < 3; i++) ddp__follow_add(&f, &slower);
    assert_true(ddp__follow_scale(&f) > 3);
    for (int i = 0; i < 20; i++) ddp__follow_add(&f, &slower);
    assert_true(ddp__follow_scale(&f) > 9);
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
        cmocka_unit_test(unfinished_and_foreign_operations_do_not_count),
        cmocka_unit_test(a_link_that_is_never_idle_is_measured),
        cmocka_unit_test(a_new_rate_replaces_the_old_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
