/* [strict] Two links between the same workers: each with its own traffic, rate and measurement. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "run/context.h"

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
#include "exchange.h"
#ifdef __cplusplus
}
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TIMED = 0 };
#else
enum { TIMED = 1 };
#endif

enum { N = 5000 };

static void second_config(ddp_config *c, int world, ddp_transport transport)
{
    memset(c, 0, sizeof *c);
    c->no_env = 1;
    c->world = world;
    c->transport = transport;
    c->deterministic = 1;
    c->peer_timeout_s = 60;
}

static void run_worker(const ddp_config *c, int (*fn)(ddp_ctx *, void *), void *user)
{
    ddp_error err;

    if (ddp_launch(c, fn, user, &err)) fail_msg("%s", err.msg);
}

/* Returns the line of what is wrong as a failure. */
#define NEED(what)                                                                      \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "line %d, rank %d: %s; %s\n", __LINE__, ddp_rank(d), #what, \
                    ddp_last_error(d)->msg);                                            \
            return (int)DDP_FAILED;                                                     \
        }                                                                               \
    } while (0)

static float value(int rank, int i) { return (float)(i % 7 * (rank + 1)); }

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
        for (int i = 0; i < world * N; i++)
            NEED(x[i] == (float)(i / N == rank ? world * (world - 1) : rank));
        for (int k = 0; k < 2; k++) {
            NEED(ddp_get_link_stats(d, k, &s) == 0);
            after[k] = s.bytes_sent;
        }
        NEED(s.link.beta_s >= 0 && ddp_barrier(d) == 0);
        /* heartbeats may pass on the other */
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

static void each_link_carries_what_is_sent_over_it(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        ddp_config c;
        second_config(&c, 3, tcp ? DDP_TCP : DDP_THREADS);
        c.net2 = "none";
        run_worker(&c, use_both, NULL);
    }
}

/* ---- at once ---- */

typedef struct both {
    size_t n[2];    /* floats over each link */
    double took[8]; /* threads only */
} both;

static int reduce_both(ddp_ctx *d, void *user)
{
    both *b = (both *)user;
    float *x = (float *)calloc(b->n[0] + b->n[1] + 1, sizeof *x);
    long ticket[2];
    double begin;

    NEED(x && ddp_barrier(d) == 0);
    begin = ddp_now();
    for (int link = 0; link < 2; link++) {
        ddp_message m;
        ddp_piece piece;
        memset(&m, 0, sizeof m);
        m.verb = DDP_ALL_REDUCE;
        m.from = &piece;
        m.from_count = 1;
        m.layer = DDP_NO_LAYER;
        m.link = link;
        piece.data = x + (link ? b->n[0] : 0);
        piece.count = b->n[link];
        for (size_t i = 0; i < piece.count; i++) piece.data[i] = (float)(ddp_rank(d) + link);
        NEED(ddp__post(d, &m, 0, &ticket[link], NULL) == DDP_OK);
    }
    for (int link = 0; link < 2; link++)
        NEED(ddp__engine_wait(ddp__engine_of(d, link), ticket[link], NULL) == DDP_OK);
    b->took[ddp_rank(d)] = ddp_now() - begin;
    for (size_t i = 0; i < b->n[0]; i++) NEED(x[i] == 1);
    for (size_t i = 0; i < b->n[1]; i++) NEED(x[b->n[0] + i] == 3);
    free(x);
    return 0;
}

static double time_both(const ddp_config *c, size_t first, size_t second, double least)
{
    double best = 99;

    for (int attempt = 0; attempt < 8; attempt++) { /* again where the machine was busy */
        both b;
        double took;
        memset(&b, 0, sizeof b);
        b.n[0] = first;
        b.n[1] = second;
        run_worker(c, reduce_both, &b);
        took = b.took[0] > b.took[1] ? b.took[0] : b.took[1];
        if (took < least) fail_msg("%.3f s; nothing can be faster than %.3f s", took, least);
        if (took < best) best = took;
        if (!TIMED || best < 1.05 * least) break;
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
    c.net2 = "20mbit,2ms";
    one = time_both(&c, 500000, 0, 0.401);
    other = time_both(&c, 0, 250000, 0.402);
    two = time_both(&c, 500000, 250000, 0.402);
    print_message("    2 MB over 40 Mbit/s %.3f s, 1 MB over 20 %.3f s, both %.3f s\n", one, other,
                  two);
    if (TIMED) assert_true(two < 1.1 * (one > other ? one : other));
}

/* ---- measured ---- */

static int measure(ddp_ctx *d, void *user)
{
    ddp_link_stats first, second;

    (void)user;
    NEED(ddp_measure_links(d) == 0);
    NEED(ddp_get_link_stats(d, 0, &first) == 0 && ddp_get_link_stats(d, 1, &second) == 0);
    if (ddp_rank(d) == 0)
        fprintf(stderr, "    alpha %.2f and %.2f ms, beta %.4f and %.4f us/byte, mu %.3f\n",
                1e3 * first.link.alpha_s, 1e3 * second.link.alpha_s, 1e6 * first.link.beta_s,
                1e6 * second.link.beta_s, second.mu);
    NEED(first.mu == 1);
    /* two ranks: beta = 1 / rate; alpha = two delays and what threads add */
    NEED(first.link.beta_s > 0.19e-6 && second.link.beta_s > 0.38e-6);
    NEED(second.mu > 1.7 && second.mu < 2.3);
    if (TIMED) NEED(second.link.beta_s < 0.48e-6);
    return 0;
}

static void each_link_is_measured_alone(void **state)
{
    ddp_config c;
    ddp_error err;
    int bad = 1;
    (void)state;
    for (int attempt = 0; bad && attempt < (TIMED ? 4 : 1); attempt++) {
        second_config(&c, 2, DDP_TCP);
        c.net = "40mbit,2ms";
        c.net2 = "20mbit,5ms";
        bad = ddp_launch(&c, measure, NULL, &err);
    }
    if (TIMED) assert_int_equal(bad, 0);
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

static void a_link_that_is_not_there_is_named(void **state)
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
    c.net2 = "fast";
    assert_int_equal(ddp_launch(&c, use_both, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the rate 'fast'"));
    c.world = 1;
    c.net2 = "none";
    d = ddp_open(&c, &err);
    assert_int_equal(ddp_links(d), 0);
    assert_int_equal(exchange(d, DDP_ALL_REDUCE, on_link(1), x, 1, 3, 0), 0); /* alone: nothing travels */
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
        c.net2 = "none";
        assert_int_equal(ddp_launch(&c, abort_one, NULL, &err), DDP_ABORTED);
        assert_non_null(strstr(err.msg, "enough"));
    }
}

/* ---- strategies ---- */

enum { LAYERS = 6, STEPS = 9 };

typedef struct trained {
    ddp_config cfg;
    float      w[3][LAYERS * N];
    int64_t    sent[2];  /* by rank 0 over either link */
    int        taken;    /* layers that go over the second */
    double     step_s;
} trained;

static int train(ddp_ctx *d, void *user)
{
    trained *t = (trained *)user;
    float *w = (float *)calloc(2 * LAYERS * N, sizeof *w), *g = w + LAYERS * N;
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    ddp_link_stats s;
    ddp_stats stats;
    int l, step;

    for (l = 0; l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + l * N;
        layer.grads = g + l * N;
        layer.count = (size_t)(l == 2 ? N / 5 : N);
        NEED(ddp_add_layer(d, &layer) == 0);
    }
    NEED(ddp_set_optimizer(d, &o) == 0);
    for (step = 0; step < STEPS; step++) {
        for (l = 0; l < LAYERS; l++) NEED(ddp_forward_begin(d, l) == 0);
        for (l = LAYERS - 1; l >= 0; l--) {
            for (int i = 0; i < N; i++)
                g[l * N + i] = 0.1f * w[l * N + i] + value(ddp_rank(d), i + l + step) / 7;
            NEED(ddp_backward_end(d, l) == 0);
        }
        NEED(ddp_step_end(d) == 0);
    }
    NEED(ddp_sync_all(d) == 0);
    memcpy(t->w[ddp_rank(d)], w, LAYERS * N * sizeof *w);
    ddp_get_stats(d, &stats);
    if (ddp_rank(d) == 0) {
        t->step_s = stats.step_s;
        t->taken = 0;
        for (l = 0; l < LAYERS; l++) t->taken += d->unit[l].link;
        for (int k = 0; k < ddp_links(d); k++)
            if (ddp_get_link_stats(d, k, &s) == 0) t->sent[k] = s.bytes_sent;
    }
    free(w);
    return 0;
}

static const ddp_strategy every[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_ENP, DDP_DREAMDDP};

static void trained_config(trained *t, ddp_strategy s, ddp_transport transport, const char *net,
                           const char *net2)
{
    memset(t, 0, sizeof *t);
    second_config(&t->cfg, 3, transport);
    t->cfg.strategy = s;
    t->cfg.period = 3;
    t->cfg.bucket_bytes = 4 * N;
    t->cfg.net = net;
    t->cfg.net2 = net2;
}

/* Which link a message takes changes no bit; and both are used. */
static void strategies_use_both_links(void **state)
{
    static const char *const net[3][2] = {
        {"400mbit", "300mbit"}, {"400mbit", "100kbit,20ms"}, {"40mbit", "2000mbit"}};
    static trained one, two;
    (void)state;
    for (int s = 0; s < 5; s++)
        for (int k = 0; k < (s % 3 == 1 ? 3 : 1); k++) {
            const int most = every[s] == DDP_SSGD ? 0 : LAYERS - 1; /* one message: the faster */
            trained_config(&one, every[s], DDP_THREADS, net[k][0], NULL);
            trained_config(&two, every[s], DDP_THREADS, net[k][0], net[k][1]);
            run_worker(&one.cfg, train, &one);
            run_worker(&two.cfg, train, &two);
            for (int r = 0; r < 3; r++) assert_memory_equal(two.w[r], one.w[0], sizeof one.w[0]);
            if (k == 0) assert_true(most ? two.taken > 0 && two.taken <= most : two.taken == 0);
            if (k == 0 && most) assert_true(two.sent[1] > 8 * N);
            if (k == 1) assert_int_equal(two.taken, 0); /* it would take seconds */
            if (k == 2) assert_true(two.taken >= LAYERS - 1);
        }
}

/* Where gradients take longer than everything else two equal links take about half the time. */
static void two_links_shorten_a_step(void **state)
{
    static trained one, two;
    (void)state;
    trained_config(&one, DDP_WFBP, DDP_THREADS, "20mbit", NULL);
    trained_config(&two, DDP_WFBP, DDP_THREADS, "20mbit", "20mbit");
    run_worker(&one.cfg, train, &one);
    run_worker(&two.cfg, train, &two);
    print_message("    a step over one link %.1f ms, over two %.1f ms\n", 1e3 * one.step_s,
                  1e3 * two.step_s);
    assert_memory_equal(two.w[0], one.w[0], sizeof one.w[0]);
    if (TIMED) assert_true(two.step_s < 0.8 * one.step_s);
}

/* Measured links, rank 0's choice on all ranks. */
static void the_choice_follows_what_was_measured(void **state)
{
    static trained two;
    (void)state;
    for (int s = 1; s < 5; s += 3) {
        trained_config(&two, every[s], DDP_THREADS, "20mbit,1ms", "400mbit,1ms");
        two.cfg.deterministic = 0;
        two.cfg.profile_steps = 3;
        two.cfg.algorithm = DDP_DIRECT;
        run_worker(&two.cfg, train, &two);
        for (int r = 1; r < 3; r++) assert_memory_equal(two.w[r], two.w[0], sizeof two.w[0]);
        if (TIMED) assert_true(two.taken >= LAYERS - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_link_carries_what_is_sent_over_it),
        cmocka_unit_test(two_links_at_once_have_nearly_the_sum_of_the_rates),
        cmocka_unit_test(each_link_is_measured_alone),
        cmocka_unit_test(a_link_that_is_not_there_is_named),
        cmocka_unit_test(an_abort_reaches_both_links),
        cmocka_unit_test(strategies_use_both_links),
        cmocka_unit_test(two_links_shorten_a_step),
        cmocka_unit_test(the_choice_follows_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
