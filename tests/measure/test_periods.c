/* [asan] The statistics cover whole periods, and a profile from a file gives a prediction. */
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { LAYERS = 4, COUNT = 2000, MOST = 320, MOST_LAYERS = 24 };

static const double forward_s = 0.004, backward_s = 0.008;

typedef struct run {
    ddp_config cfg;
    int layers;
    long steps;
    double slow;                                 /* factor on the compute times */
    double begin_s, end_s[MOST], waited_s[MOST]; /* of rank 0: end of each step, and its waits until then */
    ddp_stats stats;                             /* of rank 0 at the end */
} run;

static int worker(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    float *w = (float *)calloc(2 * MOST_LAYERS * COUNT, sizeof *w);
    char name[MOST_LAYERS][2];
    int bad = w ? 0 : (int)DDP_MEMORY;

    for (int l = 0; !bad && l < x->layers; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        name[l][0] = (char)('a' + l);
        name[l][1] = 0;
        layer.name = name[l];
        layer.params = w + 2 * l * COUNT;
        layer.grads = layer.params + COUNT;
        layer.count = COUNT;
        bad = ddp_add_layer(d, &layer);
    }
    for (long step = 0; !bad && step < x->steps; step++) {
        for (int l = 0; !bad && l < x->layers; l++) {
            bad = ddp_forward_begin(d, l);
            ddp_sleep_until(ddp_now() + x->slow * forward_s / (double)x->layers);
        }
        for (int l = x->layers - 1; !bad && l >= 0; l--) {
            ddp_backward_begin(d, l);
            ddp_sleep_until(ddp_now() + x->slow * backward_s / (double)x->layers);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        if (bad || ddp_rank(d)) continue;
        ddp_get_stats(d, &x->stats);
        x->end_s[step] = ddp_now();
        x->waited_s[step] = x->stats.wait_total_s;
    }
    if (!bad) bad = ddp_sync_all(d);
    free(w);
    return bad;
}

static void configure(run *x, ddp_strategy strategy, int world, long steps)
{
    memset(x, 0, sizeof *x);
    x->layers = LAYERS;
    x->steps = steps;
    x->slow = 1;
    x->cfg.strategy = strategy;
    x->cfg.world = world;
    x->cfg.period = 5;
    x->cfg.net = "8mbit,10ms";
    x->cfg.no_env = 1;
    x->cfg.transport = DDP_THREADS;
}

static void simulate(run *x)
{
    ddp_error err;

    if (ddp_simulate(&x->cfg, NULL, worker, x, NULL, &err)) fail_msg("%s", err.msg);
}

static void train(run *x, ddp_strategy strategy, int world, int profile_steps, long steps)
{
    configure(x, strategy, world, steps);
    x->cfg.profile_steps = profile_steps;
    simulate(x);
}

static void is_predicted(const run *x, double within)
{
    if (!(fabs(x->stats.predicted_step_s / x->stats.step_s - 1) < within))
        fail_msg("%s: predicted %g s, simulated %g s", x->stats.strategy, x->stats.predicted_step_s,
                 x->stats.step_s);
}

static void near_to(double is, double should, const char *what, const ddp_stats *s)
{
    if (!(fabs(is - should) <= 1e-6 + 1e-6 * fabs(should)))
        fail_msg("%s: %s is %.9g, expected %.9g", s->strategy, what, is, should);
}

/* Checks that the figures cover `count` steps from step `from` on, with `periods` whole periods. */
static void covers(const run *x, long from, long count, int period, long periods)
{
    const ddp_stats *s = &x->stats;

    if (s->counted_from != from || s->counted_steps != count || s->period != period ||
        s->counted_periods != periods)
        fail_msg("%s: %ld steps from %ld on, %ld periods of %d; expected %ld from %ld on, %ld of %d",
                 s->strategy, s->counted_steps, s->counted_from, s->counted_periods, s->period, count, from,
                 periods, period);
    near_to(s->step_s, (x->end_s[from + count - 1] - x->end_s[from - 1]) / (double)count, "step_s", s);
    near_to(s->wait_s, (x->waited_s[from + count - 1] - x->waited_s[from - 1]) / (double)count, "wait_s", s);
    near_to(s->hidden_pct, 100 * (1 - s->exposed_s / s->comm_s), "hidden_pct", s);
    assert_true(s->comm_s > 0 && s->comm_s <= s->step_s * (double)count + 1e-9);
}

static void figures_cover_whole_periods_after_the_plan(void **state)
{
    static const ddp_strategy each[] = {DDP_SSGD, DDP_WFBP, DDP_BYTESCHEDULER},
                              period[] = {DDP_LOCALSGD, DDP_ENP, DDP_DREAMDDP, DDP_DILOCO, DDP_SPARSELOCO};
    static run x, twice;

    (void)state;
    for (int i = 0; i < 3; i++) {
        train(&x, each[i], 3, 6, 17);
        covers(&x, 7, 10, 1, 10);
    }
    for (int i = 0; i < 5; i++) {
        train(&x, period[i], 3, 6, 19);
        covers(&x, 10, 5, 5, 1);
        train(&twice, period[i], 3, 6, 20);
        covers(&twice, 10, 10, 5, 2);
        /* the ranks compare their times in only one of these periods, a message of a few milliseconds */
        if (!(fabs(twice.stats.comm_s / x.stats.comm_s - 2) < 0.1))
            fail_msg("%s: %g s of communication in a period, %g s in two", x.stats.strategy, x.stats.comm_s,
                     twice.stats.comm_s);
        if (!(fabs(twice.stats.step_s / x.stats.step_s - 1) < 0.05))
            fail_msg("%s: %g s in a period, %g s in two", x.stats.strategy, x.stats.step_s,
                     twice.stats.step_s);
    }
}

/* The first step after a plan waits for no transfer of the step before. */
static void first_counted_period_begins_a_step_after_the_plan(void **state)
{
    static run x;

    (void)state;
    train(&x, DDP_DREAMDDP, 3, 5, 15);
    covers(&x, 10, 5, 5, 1);
}

static void figures_cover_all_steps_until_a_period_is_complete(void **state)
{
    static run x;

    (void)state;
    train(&x, DDP_DREAMDDP, 3, 6, 14);
    covers(&x, 6, 8, 5, 0);
}

static void period_of_deft_is_that_of_its_plan(void **state)
{
    static run x;

    (void)state;
    train(&x, DDP_DEFT, 3, 6, 50);
    if (x.stats.period < 2) fail_msg("deft: a period of %d steps merges no gradients", x.stats.period);
    assert_true(x.stats.counted_periods > 0 && x.stats.counted_from % x.stats.period == 0);
    covers(&x, x.stats.counted_from, x.stats.period * x.stats.counted_periods, x.stats.period,
           x.stats.counted_periods);
}

static void one_worker_counts_every_step(void **state)
{
    static run x;

    (void)state;
    train(&x, DDP_DREAMDDP, 1, 6, 9);
    assert_true(x.stats.counted_from == 7 && x.stats.counted_steps == 2 && x.stats.period == 1);
    near_to(x.stats.step_s, forward_s + backward_s, "step_s", &x.stats);
    near_to(x.stats.hidden_pct, 100, "hidden_pct", &x.stats);
}

/* One worker alone measures no transfers: they follow from the link. */
static void profile_of_one_worker_gives_a_prediction(void **state)
{
    static const ddp_strategy list[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_ENP, DDP_DREAMDDP, DDP_DILOCO};
    char path[] = "/tmp/test_periods_XXXXXX.csv";
    const int fd = mkstemps(path, 4);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    static run x;

    (void)state;
    assert_non_null(f);
    fprintf(f, "layer,params,forward_s,backward_s,comm_s\n");
    for (int l = 0; l < LAYERS; l++)
        fprintf(f, "%c,%d,%g,%g,0\n", 'a' + l, COUNT, forward_s / (double)LAYERS,
                backward_s / (double)LAYERS);
    assert_int_equal(fclose(f), 0);
    for (int i = 0; i < 6; i++) {
        configure(&x, list[i], 3, 21);
        x.cfg.profile_path = path;
        simulate(&x);
        is_predicted(&x, 0.15);
    }
    unlink(path);
}

/* The link is too slow for a plan that merges gradients. */
static void plain_schedule_of_deft_has_a_prediction(void **state)
{
    static run x;

    (void)state;
    configure(&x, DDP_DEFT, 3, 12);
    x.slow = 1e-3;
    x.cfg.profile_steps = 6;
    simulate(&x);
    assert_true(x.stats.period == 1);
    is_predicted(&x, 0.4); /* with the measured link */
}

/* Sixteen operations are in flight together. A step with an average also sends one message about all layers,
 * so with 16 and 24 layers the last messages start a delay later. */
static void prediction_of_short_messages_counts_their_delays(void **state)
{
    static const int layers[] = {4, 15, 16, 24};
    static run x;

    (void)state;
    for (int i = 0; i < 4; i++) {
        configure(&x, DDP_SPARSELOCO, 4, 35);
        x.layers = layers[i];
        x.cfg.net = "10mbit,50ms";
        simulate(&x);
        is_predicted(&x, 0.05);
    }
}

/* The probe may take a second, which is too short for a train over these links. */
static void rate_of_a_link_with_a_long_delay_is_known(void **state)
{
    static const char *const net[] = {"10mbit,150ms", "10mbit,500ms", "100kbit,500ms"};
    static const ddp_strategy strategy[] = {DDP_LOCALSGD, DDP_SPARSELOCO};
    static run x;

    (void)state;
    for (int i = 0; i < 6; i++) {
        configure(&x, strategy[i % 2], 4, 20);
        x.cfg.net = net[i / 2];
        simulate(&x);
        is_predicted(&x, 0.08);
    }
}

/* Results of an all-reduce follow its contributions, deltas follow a message about trained layers, and
 * messages wait for each other. */
static void prediction_counts_the_delays_that_do_not_overlap(void **state)
{
    static const struct {
        ddp_strategy strategy;
        int layers;
        double slow;
        const char *net;
    } row[] = {
        {DDP_SSGD, 24, 0.25, "100mbit,5ms"},    {DDP_SSGD, 24, 0.25, "10mbit,50ms"},
        {DDP_SSGD, 24, 0.25, "10mbit,150ms"},   {DDP_WFBP, 24, 0.25, "10mbit,50ms"},
        {DDP_DREAMDDP, 8, 0.25, "2mbit,150ms"}, {DDP_DILOCO, 8, 0.25, "10mbit,150ms"},
    };
    static run x;

    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        configure(&x, row[i].strategy, 4, 35);
        x.layers = row[i].layers;
        x.slow = row[i].slow;
        x.cfg.net = row[i].net;
        simulate(&x);
        is_predicted(&x, 0.05);
    }
}

/* Also with delays of many steps, where a message per layer would take a delay per layer. */
static void streaming_is_predicted_and_not_slower_than_no_overlap(void **state)
{
    static const char *const net[] = {"100mbit,20ms", "10mbit,150ms", "10mbit,20ms", "100mbit,50ms"};
    static run x;

    (void)state;
    for (int i = 0; i < 4; i++) {
        double plain;
        configure(&x, DDP_DILOCO, 4, 200);
        x.layers = 8;
        x.slow = 0.25;
        x.cfg.period = 20;
        x.cfg.net = net[i];
        simulate(&x);
        plain = x.stats.step_s;
        x.cfg.outer.overlap = DDP_OVERLAP_STREAM;
        x.steps = 300;
        simulate(&x);
        is_predicted(&x, 0.12);
        if (!(x.stats.step_s <= 1.01 * plain))
            fail_msg("%s: %g s with overlap, %g s without", net[i], x.stats.step_s, plain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_cover_whole_periods_after_the_plan),
        cmocka_unit_test(first_counted_period_begins_a_step_after_the_plan),
        cmocka_unit_test(figures_cover_all_steps_until_a_period_is_complete),
        cmocka_unit_test(period_of_deft_is_that_of_its_plan),
        cmocka_unit_test(one_worker_counts_every_step),
        cmocka_unit_test(profile_of_one_worker_gives_a_prediction),
        cmocka_unit_test(plain_schedule_of_deft_has_a_prediction),
        cmocka_unit_test(prediction_of_short_messages_counts_their_delays),
        cmocka_unit_test(rate_of_a_link_with_a_long_delay_is_known),
        cmocka_unit_test(prediction_counts_the_delays_that_do_not_overlap),
        cmocka_unit_test(streaming_is_predicted_and_not_slower_than_no_overlap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
