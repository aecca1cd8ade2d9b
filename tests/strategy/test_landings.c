/* [asan] Landings of streaming DiLoCo are moved when averages arrive late, on a virtual clock. */
#include "dreamddp.h"
#include "context/context.h"
#include "session/part.h"
#include "strategy/outer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { WORLD = 4, LAYERS = 12, COUNT = 20000, PERIOD = 10, PROFILE = 10, STEPS = 140 };
#define COMPUTE_S 0.03 /* of a step: a third forward, two thirds backward */

typedef struct run {
    ddp_config cfg;
    double slow[WORLD];            /* factor of the compute time of each rank */
    double took[WORLD][STEPS];     /* seconds of each step */
    double between[WORLD];         /* other micro-batches in the profile of each rank */
    long due[WORLD][STEPS];        /* the step of the next exchange of arrivals */
    int landing[WORLD][2][LAYERS]; /* by the first measured plan, and at the end */
    int packed[WORLD][LAYERS];     /* at the end, in the plan that checkpoints and joining workers receive */
    ddp_stats end[WORLD];
    int moves;                /* log lines about landings */
    char last[200];           /* the last one */
    void (*then)(ddp_ctx *d); /* NULL, or called by each rank after the last step */
    char script[32];          /* file of the changes of the links, or "" */
} run;

static void note(void *user, ddp_log_level level, const char *line)
{
    run *x = (run *)user;

    (void)level;
    if (!strstr(line, " layers are applied ")) return;
    x->moves++;
    snprintf(x->last, sizeof x->last, "%s", line);
}

static void landings(ddp_ctx *d, int *out)
{
    memcpy(out, ((const ddp__outer *)ddp__self(d))->landing, LAYERS * sizeof *out);
}

static int worker(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int r = ddp_rank(d);
    const double s = COMPUTE_S / (double)LAYERS * (x->slow[r] > 0 ? x->slow[r] : 1);
    float *w = (float *)calloc(2 * LAYERS * COUNT, sizeof *w);
    int bad = 0;

    for (int l = 0; !bad && l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + (size_t)(2 * l) * COUNT;
        layer.grads = layer.params + COUNT;
        layer.count = COUNT;
        bad = ddp_add_layer(d, &layer);
    }
    for (int step = 0; !bad && step < STEPS; step++) {
        const double begin = ddp_now();
        for (int l = 0; !bad && l < LAYERS; l++) {
            bad = ddp_forward_begin(d, l);
            ddp_sleep_until(ddp_now() + s / 3);
        }
        for (int l = LAYERS - 1; !bad && l >= 0; l--) {
            bad = ddp_backward_begin(d, l);
            ddp_sleep_until(ddp_now() + s * 2 / 3);
            if (!bad) bad = ddp_backward_end(d, l);
        }
        if (step >= PROFILE) d->session->profile.between_s = x->between[r];
        if (!bad) bad = ddp_step_end(d);
        x->took[r][step] = ddp_now() - begin;
        x->due[r][step] = d->session->landing.due;
        if (step == PROFILE) landings(d, x->landing[r][0]);
    }
    if (!bad) {
        const ddp_blob *plan = &d->session->plan;
        landings(d, x->landing[r][1]);
        memcpy(x->packed[r], plan->bytes + plan->size - sizeof x->packed[r], sizeof x->packed[r]);
        ddp_get_stats(d, &x->end[r]);
        if (x->then) x->then(d);
        bad = ddp_sync_all(d);
    }
    free(w);
    return bad;
}

/* Trains over links of `net`. changes: a script of the links, with one %d for the rank, or NULL. */
static void train(run *x, const char *net, const char *changes)
{
    ddp_error err;

    x->cfg.world = WORLD;
    x->cfg.no_env = 1;
    x->cfg.transport = DDP_THREADS;
    x->cfg.strategy = DDP_DILOCO;
    x->cfg.outer.overlap = DDP_OVERLAP_STREAM;
    x->cfg.period = PERIOD;
    x->cfg.profile_steps = PROFILE;
    x->cfg.net = net;
    x->cfg.logger.fn = note;
    x->cfg.logger.user = x;
    x->cfg.logger.level = DDP_LOG_INFO;
    if (changes) {
        FILE *f;
        snprintf(x->script, sizeof x->script, "/tmp/ddp_landingXXXXXX");
        f = fdopen(mkstemp(x->script), "w");
        assert_non_null(f);
        for (int r = 0; r < WORLD; r++) {
            fprintf(f, changes, r);
            fputc('\n', f);
        }
        fclose(f);
        x->cfg.network.net_script = x->script;
    }
    if (ddp_simulate(&x->cfg, NULL, worker, x, NULL, &err)) fail_msg("%s", err.msg);
    if (changes) unlink(x->script);
}

/* The mean step of rank 0 in a period, as a multiple of its compute time. */
static double mean(const run *x, int period)
{
    double sum = 0;

    for (int i = 0; i < PERIOD; i++) sum += x->took[0][period * PERIOD + i];
    return sum / (double)PERIOD / COMPUTE_S;
}

static void ranks_agree(const run *x)
{
    for (int r = 0; r < WORLD; r++) {
        assert_memory_equal(x->landing[r], x->landing[0], sizeof x->landing[0]);
        assert_memory_equal(x->packed[r], x->landing[r][1], sizeof x->packed[r]);
        assert_int_equal(x->end[r].landing_moves, x->end[0].landing_moves);
        assert_memory_equal(x->due[r], x->due[0], sizeof x->due[0]);
        for (int l = 0; l < LAYERS; l++) assert_in_range(x->landing[r][1][l], 0, PERIOD - 1);
    }
}

static void a_landing_that_waits_is_moved_later(void **state)
{
    static run x;
    int later = 0;

    (void)state;
    memset(&x, 0, sizeof x);
    train(&x, "60mbit,2ms", "t=1 slow %d to 46mbit"); /* less than makes a new plan */
    ranks_agree(&x);
    for (int l = 0; l < LAYERS; l++) later += x.landing[0][1][l] > x.landing[0][0][l];
    assert_int_equal(x.end[0].replans, 0);
    if (x.end[0].landing_moves < 1 || !later)
        fail_msg("%ld moves, %d layers later", x.end[0].landing_moves, later);
    if (mean(&x, STEPS / PERIOD - 1) > 1.02) fail_msg("%g steps", mean(&x, STEPS / PERIOD - 1));
    assert_int_equal(x.moves, x.end[0].landing_moves);
    if (!strstr(x.last, "later, by up to")) fail_msg("%s", x.last);
}

static void landings_of_steady_links_do_not_move(void **state)
{
    static run x;

    (void)state;
    memset(&x, 0, sizeof x);
    train(&x, "200mbit,2ms", NULL);
    ranks_agree(&x);
    assert_int_equal(x.end[0].landing_moves, 0);
    for (int p = 2; p < STEPS / PERIOD; p++)
        if (mean(&x, p) > 1.01) fail_msg("period %d: %g steps", p, mean(&x, p));
}

/* The other ranks wait for it with every plan. */
static void a_straggler_moves_no_landing(void **state)
{
    static run x;

    (void)state;
    memset(&x, 0, sizeof x);
    x.slow[2] = 2;
    train(&x, "200mbit,2ms", NULL);
    ranks_agree(&x);
    assert_int_equal(x.end[0].landing_moves, 0);
}

static void deterministic_plans_and_fixed_landings_never_move(void **state)
{
    static run x[2];

    (void)state;
    memset(x, 0, sizeof x);
    x[0].cfg.deterministic = 1;
    x[1].cfg.outer.fragments = 2;
    x[1].cfg.outer.landing = 1;
    for (int i = 0; i < 2; i++) {
        train(&x[i], "200mbit,2ms", "t=1 slow %d to 50mbit");
        ranks_agree(&x[i]);
        assert_int_equal(x[i].end[0].landing_moves, 0);
        assert_int_equal(x[i].moves, 0);
        for (int l = 0; i && l < LAYERS; l++) assert_int_equal(x[i].landing[0][1][l], 1);
    }
}

/* The update times of the ranks differ, and so do their times of the other micro-batches. */
static void ranks_exchange_arrivals_in_the_same_step(void **state)
{
    static run x;

    (void)state;
    memset(&x, 0, sizeof x);
    for (int r = 0; r < WORLD; r++) x.between[r] = 3 * r * COMPUTE_S;
    train(&x, "50mbit,40ms", "t=1 slow %d to 42mbit");
    ranks_agree(&x);
}

/* Reports to the strategy that every average arrived `late` steps late. Returns the landing of layer 0. */
static int report(ddp_ctx *d, int late)
{
    int all[LAYERS], moved[LAYERS] = {0}, out[LAYERS];

    for (int l = 0; l < LAYERS; l++) all[l] = l ? (int)DDP_ARRIVAL_UNKNOWN : late;
    assert_int_equal(ddp__ops(d)->plan_adapt(d, ddp__self(d), all, &d->session->plan, moved), 0);
    for (int l = 1; l < LAYERS; l++) assert_int_equal(moved[l], 0);
    landings(d, out);
    return out[0];
}

static void moves_are_limited(ddp_ctx *d)
{
    const int first = report(d, DDP_ARRIVAL_UNKNOWN);

    assert_int_equal(report(d, 3), first + 3);
    assert_int_equal(report(d, 100), PERIOD - 1);
    for (int i = 0; i < 3; i++) assert_int_equal(report(d, -4), PERIOD - 1);
    assert_int_equal(report(d, -1), PERIOD - 1); /* not early enough: it starts again */
    for (int i = 0; i < 3; i++) assert_int_equal(report(d, i ? -4 : -3), PERIOD - 1);
    assert_int_equal(report(d, -4), PERIOD - 3); /* the least that it was early, less one step */
    for (int i = 0; i < 7; i++) assert_int_equal(report(d, -9), PERIOD - 3);
    assert_int_equal(report(d, -9), 0); /* after twice as many periods */
}

static void early_averages_move_landings_earlier_after_several_periods(void **state)
{
    static run x;

    (void)state;
    memset(&x, 0, sizeof x);
    x.then = moves_are_limited;
    train(&x, "200mbit,2ms", NULL);
}

/* Nothing waits for ever if each average takes longer than a period. */
static void a_delay_of_half_a_second_ends_the_run_normally(void **state)
{
    static run x;

    (void)state;
    memset(&x, 0, sizeof x);
    train(&x, "200mbit,500ms", NULL);
    ranks_agree(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_landing_that_waits_is_moved_later),
        cmocka_unit_test(landings_of_steady_links_do_not_move),
        cmocka_unit_test(a_straggler_moves_no_landing),
        cmocka_unit_test(ranks_exchange_arrivals_in_the_same_step),
        cmocka_unit_test(deterministic_plans_and_fixed_landings_never_move),
        cmocka_unit_test(early_averages_move_landings_earlier_after_several_periods),
        cmocka_unit_test(a_delay_of_half_a_second_ends_the_run_normally),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
