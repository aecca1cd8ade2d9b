/* Behaviour of the library for numbers that are not finite, when it is compiled with -Ofast; run by
 * test_fast_math.sh. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* volatile, so that the compiler of this file cannot know the values */
static volatile double zero;

static double infinite(void) { return 1 / zero; }
static double no_number(void) { return zero / zero; }

static int average(ddp_ctx *d, void *user)
{
    float x[2] = {(float)ddp_rank(d) + 1, 10}, *mean = (float *)user;
    const int bad = ddp_all_mean(d, x, 2);

    if (ddp_rank(d) == 0) memcpy(mean, x, sizeof x);
    return bad;
}

static void mean_is_divided_by_the_number_of_ranks(void **state)
{
    static ddp_config c;
    float mean[2] = {0, 0};
    ddp_error err;

    (void)state;
    c.world = 2;
    c.transport = DDP_THREADS;
    if (ddp_launch(&c, average, mean, &err)) fail_msg("%s", err.msg);
    assert_true(mean[0] > 1.49f && mean[0] < 1.51f && mean[1] > 9.9f && mean[1] < 10.1f);
}

static void non_finite_loss_is_an_error(void **state)
{
    ddp_config c;
    ddp_step_info info;
    ddp_error err;

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        ddp_ctx *d;
        memset(&c, 0, sizeof c);
        memset(&info, 0, sizeof info);
        c.world = 1;
        c.transport = DDP_THREADS;
        d = ddp_open(&c, &err);
        assert_non_null(d);
        info.loss = kind ? no_number() : infinite();
        assert_int_equal(ddp_report(d, &info), DDP_NUMERIC);
        ddp_close(d);
    }
}

static void non_finite_costs_are_errors(void **state)
{
    double backward[2] = {1, 1}, comm[2] = {1, 1}, bytes[2] = {1, 2}, seconds[2] = {1, 2};
    ddp_profile p;
    ddp_link link;
    ddp_error err;

    (void)state;
    memset(&p, 0, sizeof p);
    p.layers = 2;
    p.backward_s = backward;
    p.comm_s = comm;
    assert_int_equal(ddp_profile_check(&p, &err), DDP_OK);
    comm[1] = no_number();
    assert_int_equal(ddp_profile_check(&p, &err), DDP_ARG);
    comm[1] = infinite();
    assert_int_equal(ddp_profile_check(&p, &err), DDP_ARG);
    seconds[1] = infinite();
    assert_int_equal(ddp_link_fit(bytes, seconds, 2, &link, &err), DDP_ARG);
}

static void settings_reject_nan_and_inf(void **state)
{
    ddp_config c;
    ddp_error err;

    (void)state;
    memset(&c, 0, sizeof c);
    assert_int_equal(ddp_config_set(&c, "clip_norm", "nan", &err), DDP_ARG);
    assert_int_equal(ddp_config_set(&c, "clip_norm", "inf", &err), DDP_ARG);
    assert_int_equal(ddp_config_set(&c, "clip_norm", "0.5", &err), DDP_OK);
}

static void unknown_figures_are_null(void **state)
{
    ddp__text t;

    (void)state;
    memset(&t, 0, sizeof t);
    ddp__json_number(&t, ddp__unknown());
    ddp__json_number(&t, infinite());
    assert_string_equal(t.data, "nullnull");
    ddp__text_free(&t);
}

static void finite_numbers_are_detected_by_their_bits(void **state)
{
    (void)state;
    assert_true(ddp__finite(DBL_MAX) && ddp__finite(-DBL_MAX) && ddp__finite(0) && ddp__finite(DBL_MIN));
    assert_false(ddp__finite(infinite()) || ddp__finite(-infinite()) || ddp__finite(no_number()));
    assert_true(ddp__is_nan(no_number()) && ddp__is_nan(ddp__unknown()) && ddp__is_nan(-ddp__unknown()));
    assert_false(ddp__is_nan(infinite()) || ddp__is_nan(-infinite()) || ddp__is_nan(DBL_MAX));
    assert_true(ddp__within(1, 0, 1));
    assert_false(ddp__within(no_number(), 0, 1) || ddp__within(infinite(), 0, DBL_MAX));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_is_divided_by_the_number_of_ranks),
        cmocka_unit_test(non_finite_loss_is_an_error),
        cmocka_unit_test(non_finite_costs_are_errors),
        cmocka_unit_test(settings_reject_nan_and_inf),
        cmocka_unit_test(unknown_figures_are_null),
        cmocka_unit_test(finite_numbers_are_detected_by_their_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
