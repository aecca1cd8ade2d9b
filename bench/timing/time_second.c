/* Two emulated links on the real clock. Measures durations: run it alone on an idle machine. The assertions
 * on the virtual clock are in tests/exchange/test_second.c. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "exchange/second_lab.h"

static double time_both(const ddp_config *c, size_t first, size_t second, double least)
{
    double best = 99;

    for (int attempt = 0; attempt < 8; attempt++) { /* retries on a busy machine */
        both b;
        double took;
        memset(&b, 0, sizeof b);
        b.n[0] = first;
        b.n[1] = second;
        run_worker(c, reduce_both, &b);
        took = b.took[0] > b.took[1] ? b.took[0] : b.took[1];
        if (took < least) fail_msg("%.3f s; nothing can be faster than %.3f s", took, least);
        if (took < best) best = took;
        if (best < 1.05 * least) break;
    }
    return best;
}

/* 40 and 20 Mbit/s: 2 MB take 0.4 s over the first, and 3 MB over both at once. */
static void two_links_at_once_have_nearly_the_sum_of_the_rates(void **state)
{
    ddp_config c;
    double one, other, two;
    (void)state;
    second_config(&c, 2, DDP_THREADS);
    c.net = "40mbit,1ms";
    c.network.net2 = "20mbit,2ms";
    one = time_both(&c, 500000, 0, 0.401);
    other = time_both(&c, 0, 250000, 0.402);
    two = time_both(&c, 500000, 250000, 0.402);
    print_message("    2 MB over 40 Mbit/s %.3f s, 1 MB over 20 %.3f s, both %.3f s\n", one, other, two);
    assert_true(two < 1.1 * (one > other ? one : other));
}

static void each_link_is_measured_alone(void **state)
{
    ddp_config c;
    ddp_error err;
    int bad = 1;
    (void)state;
    for (int attempt = 0; bad && attempt < 4; attempt++) {
        second_config(&c, 2, DDP_TCP);
        c.net = "40mbit,2ms";
        c.network.net2 = "20mbit,5ms";
        bad = ddp_launch(&c, measure, NULL, &err);
    }
    assert_int_equal(bad, 0);
}

/* If gradients take most of the time, two equal links take about half of it. */
static void two_links_shorten_a_step(void **state)
{
    static trained one, two;
    (void)state;
    trained_config(&one, DDP_WFBP, DDP_THREADS, "20mbit", NULL);
    trained_config(&two, DDP_WFBP, DDP_THREADS, "20mbit", "20mbit");
    run_worker(&one.cfg, train, &one);
    run_worker(&two.cfg, train, &two);
    print_message("    a step over one link %.1f ms, over two %.1f ms\n", 1e3 * one.step_s, 1e3 * two.step_s);
    assert_memory_equal(two.w[0], one.w[0], sizeof one.w[0]);
    assert_true(two.step_s < 0.8 * one.step_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_links_at_once_have_nearly_the_sum_of_the_rates),
        cmocka_unit_test(each_link_is_measured_alone),
        cmocka_unit_test(two_links_shorten_a_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
