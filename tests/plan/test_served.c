/* [asan] The duration of a step with servers, compared with times worked out by hand. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

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

static double bytes[8], late[8];

/* computing 100 ms; a model of 2 MB divided among the servers at 25 MB/s: 80 ms one way; delay 1 ms */
static ddp_served served(ddp_serving rule, int workers, int servers)
{
    ddp_served s;

    memset(&s, 0, sizeof s);
    s.rule = rule;
    s.ahead = -1;
    s.workers = workers;
    s.servers = servers;
    s.compute_s = 0.1;
    s.bytes_per_s = 25e6;
    s.delay_s = 1e-3;
    s.bytes = bytes;
    for (int k = 0; k < servers; k++) bytes[k] = 2e6 / servers;
    return s;
}

static double step_of(const ddp_served *s)
{
    double out = -1;
    ddp_error err;

    if (ddp_served_step(s, NULL, &out, &err)) fail_msg("%s", err.msg);
    return out;
}

static void near(double is, double want)
{
    if (!(fabs(is - want) <= 2e-3 * want)) fail_msg("%.6f instead of %.6f", is, want);
}

static void one_worker_pushes_and_pulls(void **state)
{
    (void)state;
    for (int rule = 0; rule < 3; rule++) {
        ddp_served s = served((ddp_serving)rule, 1, 1);
        near(step_of(&s), 0.1 + 2 * 0.081);
    }
}

/* Answers are sent one after another, so pushes arrive one after another: all but the last overlap with
 * computing and answers. */
static void bsp_steps_match_hand_worked_times(void **state)
{
    (void)state;
    for (int w = 2; w <= 8; w++) {
        ddp_served s = served(DDP_SERVING_TOGETHER, w, 1);
        near(step_of(&s), 0.1 + (w + 1) * 0.08 + 2e-3);
        s.compute_s = 0.01; /* the second worker's push waits for the first one's at the server */
        assert_true(step_of(&s) <= 0.01 + 2 * w * 0.08 + 2e-3 + 1e-9);
    }
}

/* specs 4.4: T = max(T_c + 2 M / b, W M / b), and the delays. */
static void asp_steps_match_hand_worked_times(void **state)
{
    (void)state;
    for (int rule = 1; rule < 3; rule++)
        for (int w = 2; w <= 8; w++)
            for (int c = 0; c < 4; c++) {
                ddp_served s = served((ddp_serving)rule, w, 1);
                const double busy = w * 0.08;
                double alone;
                s.compute_s = 0.2 * c;
                alone = s.compute_s + 2 * 0.081;
                near(step_of(&s), alone > busy ? alone : busy);
            }
}

/* No worker may be ahead: all are answered once the last one has pushed. Other rules have no such limit. */
static void a_worker_too_far_ahead_waits(void **state)
{
    (void)state;
    for (int w = 2; w <= 8; w++) {
        ddp_served s = served(DDP_SERVING_EACH, w, 1), all = served(DDP_SERVING_TOGETHER, w, 1);
        ddp_served turns = served(DDP_SERVING_IN_TURN, w, 1);
        const double bsp_steps_match_hand_worked_times = step_of(&all), each = step_of(&s),
                     in_turn = step_of(&turns);
        s.ahead = 0;
        assert_true(step_of(&s) == bsp_steps_match_hand_worked_times &&
                    bsp_steps_match_hand_worked_times > each);
        s.ahead = 1;
        assert_true(step_of(&s) <= bsp_steps_match_hand_worked_times && step_of(&s) >= each);
        s.ahead = 100;
        assert_true(step_of(&s) == each);
        all.ahead = turns.ahead = 0;
        assert_true(step_of(&all) == bsp_steps_match_hand_worked_times && step_of(&turns) == in_turn);
    }
}

static void deferred_bytes_overlap_with_computing(void **state)
{
    ddp_served s = served(DDP_SERVING_TOGETHER, 4, 1);
    const double all = step_of(&s);

    (void)state;
    s.late = late;
    late[0] = 0;
    assert_true(step_of(&s) == all);
    /* The first worker has its deferred mean when the last one has pushed, so all push at the same time: a
     * small deferred share costs more than it overlaps. */
    late[0] = 0.2e6;
    near(step_of(&s), 2 * 4 * 0.072 + 2 * 0.008 + 4e-3);
    late[0] = 0.8e6;
    near(step_of(&s), 2 * 4 * 0.048 + 2 * 0.032 + 4e-3);
    s.compute_s = 2;
    late[0] = 2e6;
    near(step_of(&s), 2 + 2e-3); /* the pushes sent at once are empty messages */
}

static void several_and_colocated_servers_share_the_load(void **state)
{
    ddp_served s = served(DDP_SERVING_EACH, 4, 2), co = served(DDP_SERVING_TOGETHER, 2, 2);
    double own;

    (void)state;
    /* the first half is answered while the second is pushed: bytes are in transit for three halves of the
     * time */
    s = served(DDP_SERVING_EACH, 1, 2);
    near(step_of(&s), 0.1 + 1.5 * 0.08 + 2e-3);
    co.colocated = 1;
    own = step_of(&co); /* half of it is sent to the other server and back */
    near(own, 0.1 + 0.08 + 2e-3);
    /* A worker's push to its own server arrives first. It is answered at once, or in its turn. From then on
     * all pushes arrive in the order of turns, and the links are idle less. */
    for (int rule = 1; rule < 3; rule++) {
        s = served((ddp_serving)rule, 5, 5);
        s.colocated = 1;
        near(step_of(&s), rule == (int)DDP_SERVING_EACH ? 0.2404 : 0.2386);
    }
}

static void invalid_input_is_an_error(void **state)
{
    static const char *const says[] = {"0 workers",        "co-located", "-1 s",
                                       "0 bytes a second", "late",       "server 0 has -5"};

    (void)state;
    for (int i = 0; i < 6; i++) {
        ddp_served s = served(DDP_SERVING_EACH, i == 0 ? 0 : 3, 1);
        ddp_error err;
        double out = 7;
        if (i == 1) s.colocated = 1;
        if (i == 2) s.compute_s = -1;
        if (i == 3) s.bytes_per_s = 0;
        if (i == 4) s.late = late;
        if (i == 5) bytes[0] = -5;
        assert_int_equal(ddp_served_step(&s, NULL, &out, &err), DDP_ARG);
        assert_true(out == 7);
        if (!strstr(err.msg, says[i])) fail_msg("'%s' has no '%s'", err.msg, says[i]);
    }
}

static void mistakes_in_one_number_are_told(void **state)
{
    static const double parts[4] = {-1, 3e6, (double)NAN, (double)INFINITY};
    ddp_served s;
    ddp_error err;
    double out = 7;

    (void)state;
    s = served(DDP_SERVING_EACH, 3, 0);
    assert_int_equal(ddp_served_step(&s, NULL, &out, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "3 workers and 0 servers: at least one of each"));
    s = served(DDP_SERVING_EACH, 3, 1);
    s.delay_s = -1;
    assert_int_equal(ddp_served_step(&s, NULL, &out, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "a delay is -1 s"));
    s = served(DDP_SERVING_TOGETHER, 3, 2);
    bytes[1] = (double)INFINITY;
    assert_int_equal(ddp_served_step(&s, NULL, &out, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "server 1 has inf bytes, 0 of them late"));
    for (int i = 0; i < 4; i++) {
        s = served(DDP_SERVING_TOGETHER, 3, 1);
        s.late = late;
        late[0] = parts[i];
        assert_int_equal(ddp_served_step(&s, NULL, &out, &err), DDP_ARG);
        assert_non_null(strstr(err.msg, "server 0 has 2e+06 bytes, "));
    }
    s.bytes = NULL;
    assert_int_equal(ddp_served_step(&s, NULL, &out, &err), DDP_ARG);
    assert_int_equal(ddp_served_step(NULL, NULL, &out, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "bytes and out must not be NULL"));
    s = served(DDP_SERVING_EACH, 1, 1);
    assert_int_equal(ddp_served_step(&s, NULL, NULL, &err), DDP_ARG);
    assert_true(out == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_pushes_and_pulls),
        cmocka_unit_test(bsp_steps_match_hand_worked_times),
        cmocka_unit_test(asp_steps_match_hand_worked_times),
        cmocka_unit_test(a_worker_too_far_ahead_waits),
        cmocka_unit_test(deferred_bytes_overlap_with_computing),
        cmocka_unit_test(several_and_colocated_servers_share_the_load),
        cmocka_unit_test(invalid_input_is_an_error),
        cmocka_unit_test(mistakes_in_one_number_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
