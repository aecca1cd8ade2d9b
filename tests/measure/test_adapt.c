/* [asan] Plans and predictions follow a link that becomes ten times slower or faster during training, within
 * two periods, and no plan is made for nothing. */
#include "dreamddp.h"
#include "measure/timing.h"

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

enum { WORLD = 4, LAYERS = 8, COUNT = 20000, MOST = 400 };

static const double forward_s = 0.008, backward_s = 0.016;

typedef struct run {
    ddp_config cfg;
    long steps;
    double noise_s;   /* mean of a random delay per rank and step */
    double change_s;  /* when the rate changes */
    int slow;         /* the rank whose link changes, or -1 for all */
    const char *rate; /* of the link from then on */
    double probe_s;   /* duration of the measurement of the link */
    /* of rank 0, after each step: */
    double end_s[MOST], beta_s[MOST];
    ddp_stats stats[MOST];
} run;

static void note(void *user, ddp_log_level level, const char *line)
{
    const char *at = strstr(line, "measured the link in ");

    (void)level;
    if (at) ((run *)user)->probe_s = atof(at + strlen("measured the link in "));
}

/* Exponential, from a generator of the rank. */
static double noise(const run *x, uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return -x->noise_s * log(((double)(*state >> 8) + 1) / (1 << 24));
}

static int worker(ddp_ctx *d, void *user)
{
    static const char *const names[LAYERS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    run *x = (run *)user;
    float *w = (float *)calloc(2 * LAYERS * COUNT, sizeof *w);
    uint32_t state = (uint32_t)ddp_rank(d) + 1;
    int bad = w ? 0 : (int)DDP_MEMORY;

    for (int l = 0; !bad && l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.name = names[l];
        layer.params = w + (size_t)(2 * l) * COUNT;
        layer.grads = layer.params + COUNT;
        layer.count = COUNT;
        bad = ddp_add_layer(d, &layer);
    }
    for (long step = 0; !bad && step < x->steps; step++) {
        for (int l = 0; !bad && l < LAYERS; l++) {
            bad = ddp_forward_begin(d, l);
            ddp_sleep_until(ddp_now() + forward_s / (double)LAYERS);
        }
        ddp_sleep_until(ddp_now() + noise(x, &state));
        for (int l = LAYERS - 1; !bad && l >= 0; l--) {
            ddp_backward_begin(d, l);
            ddp_sleep_until(ddp_now() + backward_s / (double)LAYERS);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        if (bad || ddp_rank(d)) continue;
        ddp_get_stats(d, &x->stats[step]);
        x->end_s[step] = ddp_now();
        x->beta_s[step] = ddp__link_is(d, 0).beta_s;
    }
    if (!bad) bad = ddp_sync_all(d);
    free(w);
    return bad;
}

static void simulate(run *x)
{
    char script[] = "/tmp/test_adapt.XXXXXX", text[256] = "";
    const int fd = mkstemp(script);
    size_t n = 0;
    ddp_error err;
    int bad;

    for (int r = 0; r < WORLD; r++)
        if (x->slow < 0 || r == x->slow)
            n += (size_t)snprintf(text + n, sizeof text - n, "t=%g slow %d to %s\n", x->change_s, r, x->rate);
    assert_true(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    close(fd);
    x->cfg.world = WORLD;
    x->cfg.no_env = 1;
    x->cfg.transport = DDP_THREADS;
    x->cfg.network.net_script = script;
    x->cfg.logger.fn = note;
    x->cfg.logger.user = x;
    x->cfg.logger.level = DDP_LOG_INFO;
    bad = (int)ddp_simulate(&x->cfg, NULL, worker, x, NULL, &err);
    unlink(script);
    if (bad) fail_msg("%s", err.msg);
}

static void configure(run *x, ddp_strategy strategy, int stream, int slower, double noise_s)
{
    memset(x, 0, sizeof *x);
    x->cfg.strategy = strategy;
    x->cfg.period = stream ? 20 : 5;
    x->cfg.outer.overlap = stream ? DDP_OVERLAP_STREAM : DDP_OVERLAP_NONE;
    x->cfg.net = slower ? "100mbit,20ms" : "10mbit,20ms";
    x->rate = slower ? "10mbit" : "100mbit";
    x->noise_s = noise_s;
    x->slow = -1;
}

/* Returns the step at whose end the rate has changed. */
static long changed_in(const run *x)
{
    long step = 0;

    while (step + 1 < x->steps && x->end_s[step] < x->change_s) step++;
    return step;
}

/* Returns the mean time of a step from step `from` to the last one. */
static double step_s(const run *x, long from)
{
    return (x->end_s[x->steps - 1] - x->end_s[from - 1]) / (double)(x->steps - from);
}

/* Checks that the first plan after the change is made within two periods, and that the rate is right after a
 * third one. `within`: factor of the right rate. */
static void adapts(const run *x, double right_s, double within)
{
    const long change = changed_in(x), period = x->cfg.period;
    const ddp_stats *before = &x->stats[change - 1], *then = &x->stats[change + 2 * period],
                    *end = &x->stats[x->steps - 1];
    const double beta_s = x->beta_s[change + 3 * period];

    if (change < 2 * period || change + 3 * period >= x->steps)
        fail_msg("%s: step %ld of %ld is too early or too late", end->strategy, change, x->steps);
    if (before->replans != 0) fail_msg("%s: %ld plans before the change", end->strategy, before->replans);
    if (then->replans < 1) fail_msg("%s: no plan within two periods of step %ld", end->strategy, change);
    if (end->replans > 2) fail_msg("%s: %ld plans", end->strategy, end->replans);
    if (!(beta_s < right_s * within && beta_s > right_s / within))
        fail_msg("%s: %g s per byte instead of %g", end->strategy, beta_s, right_s);
}

static const struct {
    ddp_strategy strategy;
    int stream;
} planned[] = {{DDP_DILOCO, 1}, {DDP_DREAMDDP, 0}, {DDP_ENP, 0}, {DDP_BYTESCHEDULER, 0}, {DDP_MGWFBP, 0}};

/* An average of n bytes over four ranks takes 1.5 n bytes of a link. */
static const double fast_s = 1.5 / 12.5e6, slow_s = 1.5 / 1.25e6;

static void plans_follow_a_link_that_becomes_slower(void **state)
{
    static run x;

    (void)state;
    for (int i = 0; i < 20; i++) {
        configure(&x, planned[i / 4].strategy, planned[i / 4].stream, 1, i % 2 ? 0.01 : 0);
        x.slow = i / 2 % 2 ? 2 : -1;
        x.change_s = x.cfg.strategy == DDP_BYTESCHEDULER || x.cfg.strategy == DDP_MGWFBP ? 4 : 3.3;
        x.steps = x.cfg.period == 20 ? 220 : 90;
        simulate(&x);
        adapts(&x, slow_s, i % 2 ? 1.4 : 1.3);
    }
}

static void plans_follow_a_link_that_becomes_faster(void **state)
{
    static run x;

    (void)state;
    for (int i = 0; i < 10; i++) {
        configure(&x, planned[i / 2].strategy, planned[i / 2].stream, 0, i % 2 ? 0.01 : 0);
        x.change_s = x.cfg.strategy == DDP_BYTESCHEDULER || x.cfg.strategy == DDP_MGWFBP
                         ? 20
                         : 8.4; /* not in a transfer */
        x.steps = x.cfg.period == 20 ? 320 : 90;
        simulate(&x);
        adapts(&x, fast_s, 2);
    }
}

/* Strategies without a plan. */
static void corrected_prediction_is_the_step_time_after_a_change(void **state)
{
    static const ddp_strategy list[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD};
    static run x;

    (void)state;
    for (int i = 0; i < 6; i++) {
        const int slower = i % 2;
        double is, corrected;
        configure(&x, list[i / 2], 0, slower, 0);
        x.change_s = slower ? 4 : 20;
        x.steps = slower ? 120 : 240;
        simulate(&x);
        is = step_s(&x, x.steps - 20);
        corrected = x.stats[x.steps - 1].corrected_step_s;
        assert_true(changed_in(&x) > 20 && changed_in(&x) < x.steps - 40);
        if (!(fabs(corrected / is - 1) < 0.1))
            fail_msg("%s: corrected %g s, simulated %g s", x.stats[0].strategy, corrected, is);
    }
}

/* The figures next to a prediction are about the steps that it predicts. */
static void new_plan_restarts_the_figures(void **state)
{
    static run x;
    const ddp_stats *s;

    (void)state;
    configure(&x, DDP_DREAMDDP, 0, 1, 0);
    x.change_s = 3.3;
    x.steps = 110;
    simulate(&x);
    s = &x.stats[x.steps - 1];
    assert_true(s->replans > 0 && s->counted_periods > 0 && s->counted_from % 5 == 0);
    assert_true(s->counted_from > changed_in(&x));
    assert_true(x.stats[s->counted_from - 6].replans == s->replans);
    if (!(fabs(s->step_s / s->predicted_step_s - 1) < 0.05))
        fail_msg("predicted %g s, measured %g s", s->predicted_step_s, s->step_s);
    /* until a period is complete, the figures cover the steps since the plan */
    for (long i = s->counted_from - 5; i < s->counted_from + 4; i++)
        assert_true(x.stats[i].counted_periods == 0 && x.stats[i].counted_steps == i - s->counted_from + 6 &&
                    x.stats[i].counted_from == s->counted_from - 5);
}

/* The first message of a burst takes half a second over these links. */
static void measurement_of_a_link_takes_a_second(void **state)
{
    static const char *const net[] = {"1500kbit,2ms", "2mbit,1ms", "3mbit,5ms", "10mbit,20ms", "2mbit,50ms"};
    static run x;

    (void)state;
    for (int i = 0; i < 5; i++) {
        configure(&x, DDP_DREAMDDP, 0, 1, 0);
        x.cfg.net = net[i];
        x.change_s = 1000;
        x.steps = 8;
        simulate(&x);
        if (!(x.probe_s > 0.3 && x.probe_s <= 1)) fail_msg("%s: %g s", net[i], x.probe_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_follow_a_link_that_becomes_slower),
        cmocka_unit_test(plans_follow_a_link_that_becomes_faster),
        cmocka_unit_test(corrected_prediction_is_the_step_time_after_a_change),
        cmocka_unit_test(new_plan_restarts_the_figures),
        cmocka_unit_test(measurement_of_a_link_takes_a_second),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
