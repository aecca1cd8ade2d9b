/* Two links between the same workers: each with its own traffic, rate and measurement. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "exchange/second_lab.h"

static int use_both(ddp_ctx *d, void *user)
{
    int world = ddp_world(d), rank = ddp_rank(d);
    float *x = (float *)calloc((size_t)world * N, sizeof *x);
    int64_t before[2], after[2];

    (void)user;
    NEED(x && ddp_links(d) == 2);
    for (int link = 0; link < 2; link++) {
        ddp_link_stats s;
        for (int k = 0; k < 2; k++) {
            NEED(ddp_get_link_stats(d, k, &s) == 0);
            before[k] = s.bytes_sent;
        }
        for (int i = 0; i < N; i++) x[i] = value(rank, i);
        NEED(exchange(d, DDP_ALL_REDUCE, on_link(link), x, N, 1, 0) == 0);
        for (int i = 0; i < N; i++) NEED(x[i] == (float)(i % 7 * world * (world + 1) / 2));
        for (int i = 0; i < N; i++) x[i] = value(rank, i);
        NEED(exchange(d, DDP_BROADCAST, on_link(link), x, N, 1, world - 1) == 0);
        for (int i = 0; i < N; i++) NEED(x[i] == value(world - 1, i));
        for (int i = 0; i < N; i++) x[rank * N + i] = value(rank, i);
        NEED(exchange(d, DDP_ALL_GATHER, on_link(link), x, (size_t)world * N, 1, 0) == 0);
        for (int i = 0; i < world * N; i++) NEED(x[i] == value(i / N, i % N));
        for (int i = 0; i < world * N; i++) x[i] = (float)rank;
        NEED(exchange(d, DDP_REDUCE_SCATTER, on_link(link), x, (size_t)world * N, 2, 0) == 0);
        for (int i = 0; i < world * N; i++) NEED(x[i] == (float)(i / N == rank ? world * (world - 1) : rank));
        for (int k = 0; k < 2; k++) {
            NEED(ddp_get_link_stats(d, k, &s) == 0);
            after[k] = s.bytes_sent;
        }
        NEED(s.link.beta_s >= 0 && ddp_barrier(d) == 0);
        /* only heartbeats use the other link */
        NEED(after[link] - before[link] > 4 * N && after[!link] - before[!link] < 1000);
    }
    {
        ddp_link_stats s;
        ddp_stats all;
        NEED(ddp_get_link_stats(d, 1, &s) == 0 && s.operations == 4 && s.busy_s > 0);
        NEED(!strcmp(s.algorithm, "direct") || !strcmp(s.algorithm, "full"));
        NEED(ddp_get_link_stats(d, 2, &s) == DDP_ARG && ddp_get_link_stats(d, -1, &s) == DDP_ARG);
        ddp_get_stats(d, &all);
        NEED(all.bytes_sent >= after[0] + after[1]);
    }
    free(x);
    return 0;
}

static void each_link_counts_its_own_traffic(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        ddp_config c;
        second_config(&c, 3, tcp ? DDP_TCP : DDP_THREADS);
        c.network.net2 = "none";
        run_worker(&c, use_both, NULL);
    }
}

/* ---- both links at the same time ---- */

/* At 40 and 20 Mbit/s, 2 MB take 0.4 s over the first link, and 3 MB take 0.4 s over both. Runs on a
 * virtual clock. */
static double simulate_both(const ddp_config *c, size_t first, size_t second, double least)
{
    ddp_error err;
    double took;
    both b;

    memset(&b, 0, sizeof b);
    b.n[0] = first;
    b.n[1] = second;
    if (ddp_simulate(c, NULL, reduce_both, &b, NULL, &err)) fail_msg("%s", err.msg);
    took = b.took[0] > b.took[1] ? b.took[0] : b.took[1];
    if (took < least) fail_msg("%.3f s; nothing can be faster than %.3f s", took, least);
    return took;
}

static void two_links_reach_nearly_the_sum_of_their_rates(void **state)
{
    ddp_config c;
    double one, other, two;
    (void)state;
    second_config(&c, 2, DDP_THREADS);
    c.net = "40mbit,1ms";
    c.network.net2 = "20mbit,2ms";
    one = simulate_both(&c, 500000, 0, 0.401);
    other = simulate_both(&c, 0, 250000, 0.402);
    two = simulate_both(&c, 500000, 250000, 0.402);
    print_message("    2 MB over 40 Mbit/s %.3f s, 1 MB over 20 %.3f s, both %.3f s\n", one, other, two);
    assert_true(two < 1.1 * (one > other ? one : other));
}

/* ---- measurement ---- */

static void each_link_is_measured_separately(void **state)
{
    ddp_config c;
    ddp_error err;

    (void)state;
    second_config(&c, 2, DDP_THREADS);
    c.net = "40mbit,2ms";
    c.network.net2 = "20mbit,5ms";
    if (ddp_simulate(&c, NULL, measure, NULL, NULL, &err)) fail_msg("%s", err.msg);
}

/* ---- errors and idle links ---- */

static int ask_for_more(ddp_ctx *d, void *user)
{
    float x[3] = {0, 0, 0};
    int link = *(int *)user;

    NEED(ddp_links(d) == 1);
    NEED(exchange(d, DDP_ALL_REDUCE, on_link(0), x, 3, 1, 0) == 0);
    NEED(exchange(d, DDP_ALL_REDUCE, on_link(link), x, 3, 1, 0) == (int)DDP_ARG);
    NEED(strstr(ddp_last_error(d)->msg, "has no link"));
    return (int)DDP_ARG;
}

static void missing_link_is_named(void **state)
{
    ddp_config c;
    ddp_ctx *d;
    ddp_error err;
    float x[1] = {1};
    int link;
    (void)state;
    for (link = -1; link < 3; link++) {
        if (link == 0) continue;
        second_config(&c, 2, DDP_THREADS);
        assert_int_equal(ddp_launch(&c, ask_for_more, &link, &err), DDP_ARG);
        assert_non_null(strstr(err.msg, "ddp_exchange: this context has no link"));
    }
    second_config(&c, 2, DDP_THREADS);
    c.network.net2 = "fast";
    assert_int_equal(ddp_launch(&c, use_both, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the rate 'fast'"));
    c.world = 1;
    c.network.net2 = "none";
    d = ddp_open(&c, &err);
    assert_int_equal(ddp_links(d), 0);
    /* a single worker sends nothing */
    assert_int_equal(exchange(d, DDP_ALL_REDUCE, on_link(1), x, 1, 3, 0), 0);
    assert_true(x[0] == 3);
    ddp_close(d);
}

static int abort_one(ddp_ctx *d, void *user)
{
    float x[64];
    int bad = 0;

    (void)user;
    memset(x, 0, sizeof x);
    if (ddp_rank(d) == 1) ddp_abort(d, "enough");
    for (double end = ddp_now() + 20; !bad && ddp_now() < end;)
        bad = exchange(d, DDP_ALL_REDUCE, on_link(1), x, 64, 1, 0);
    NEED(bad == (int)DDP_ABORTED && strstr(ddp_last_error(d)->msg, "enough"));
    return bad;
}

static void an_abort_reaches_both_links(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        ddp_config c;
        ddp_error err;
        second_config(&c, 3, tcp ? DDP_TCP : DDP_THREADS);
        c.network.net2 = "none";
        assert_int_equal(ddp_launch(&c, abort_one, NULL, &err), DDP_ABORTED);
        assert_non_null(strstr(err.msg, "enough"));
    }
}

/* ---- strategies ---- */

static const ddp_strategy every[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_ENP, DDP_DREAMDDP};

/* Both links are used, and the choice of the link does not change the result. */
static void strategies_use_both_links(void **state)
{
    static const char *const net[3][2] = {
        {"400mbit", "300mbit"}, {"400mbit", "100kbit,20ms"}, {"40mbit", "2000mbit"}};
    static trained one, two;
    (void)state;
    for (int s = 0; s < 5; s++)
        for (int k = 0; k < (s % 3 == 1 ? 3 : 1); k++) {
            /* a single message uses the faster link */
            const int most = every[s] == DDP_SSGD ? 0 : LAYERS - 1;
            trained_config(&one, every[s], DDP_THREADS, net[k][0], NULL);
            trained_config(&two, every[s], DDP_THREADS, net[k][0], net[k][1]);
            run_worker(&one.cfg, train, &one);
            run_worker(&two.cfg, train, &two);
            for (int r = 0; r < 3; r++) assert_memory_equal(two.w[r], one.w[0], sizeof one.w[0]);
            if (k == 0) assert_true(most ? two.taken > 0 && two.taken <= most : two.taken == 0);
            if (k == 0 && most) assert_true(two.sent[1] > 8 * N);
            if (k == 1) assert_int_equal(two.taken, 0); /* the second link would take seconds */
            if (k == 2) assert_true(two.taken >= LAYERS - 1);
        }
}

/* If gradients dominate the step time, a second link of the same rate halves it. */
static void two_links_shorten_a_step(void **state)
{
    static trained one, two;
    ddp_error err;

    (void)state;
    trained_config(&one, DDP_WFBP, DDP_THREADS, "20mbit", NULL);
    trained_config(&two, DDP_WFBP, DDP_THREADS, "20mbit", "20mbit");
    if (ddp_simulate(&one.cfg, NULL, train, &one, NULL, &err)) fail_msg("%s", err.msg);
    if (ddp_simulate(&two.cfg, NULL, train, &two, NULL, &err)) fail_msg("%s", err.msg);
    print_message("    a step over one link %.1f ms, over two %.1f ms\n", 1e3 * one.step_s, 1e3 * two.step_s);
    assert_memory_equal(two.w[0], one.w[0], sizeof one.w[0]);
    assert_true(two.step_s < 0.8 * one.step_s);
}

/* Links are measured, and all ranks use rank 0's choice. */
static void link_choice_follows_the_measurement(void **state)
{
    static trained two;
    ddp_error err;

    (void)state;
    for (int s = 1; s < 5; s += 3) {
        trained_config(&two, every[s], DDP_THREADS, "20mbit,1ms", "400mbit,1ms");
        two.cfg.deterministic = 0;
        two.cfg.profile_steps = 3;
        two.cfg.algorithm = DDP_DIRECT;
        run_worker(&two.cfg, train, &two); /* on a real clock the ranks measure different times */
        for (int r = 1; r < 3; r++) assert_memory_equal(two.w[r], two.w[0], sizeof two.w[0]);
        if (ddp_simulate(&two.cfg, NULL, train, &two, NULL, &err)) fail_msg("%s", err.msg);
        for (int r = 1; r < 3; r++) assert_memory_equal(two.w[r], two.w[0], sizeof two.w[0]);
        assert_true(two.taken >= LAYERS - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_link_counts_its_own_traffic),
        cmocka_unit_test(two_links_reach_nearly_the_sum_of_their_rates),
        cmocka_unit_test(each_link_is_measured_separately),
        cmocka_unit_test(missing_link_is_named),
        cmocka_unit_test(an_abort_reaches_both_links),
        cmocka_unit_test(strategies_use_both_links),
        cmocka_unit_test(two_links_shorten_a_step),
        cmocka_unit_test(link_choice_follows_the_measurement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
