/* [long] The context: usage errors and their messages, plans, and lost peers. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "measure/account.c"
#include "session/planning.c"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#include "strategy/strategy.h"
#ifdef __cplusplus
}
#endif

enum { LAYERS = 3, COUNT = 50 };

/* A program under test. All ranks run body. The error of each rank is saved. */
typedef struct trial {
    ddp_config cfg;
    int (*body)(ddp_ctx *d, struct trial *t);
    ddp_error error[4]; /* per rank. Threads share this memory. */
    int flag;
    char told[4][400]; /* ddp_unlike() on each rank */
} trial;

static void trial_new(trial *t, int world, int (*body)(ddp_ctx *, trial *))
{
    memset(t, 0, sizeof *t);
    t->cfg.world = world;
    t->cfg.transport = DDP_THREADS;
    t->cfg.no_env = 1;
    t->cfg.period = 2;
    t->cfg.strategy = DDP_DREAMDDP;
    t->cfg.deterministic = 1;
    t->cfg.timeout.peer_s = 60;
    t->body = body;
}

static int trial_worker(ddp_ctx *d, void *user)
{
    trial *t = (trial *)user;
    int bad = t->body(d, t);

    t->error[ddp_rank(d)] = *ddp_last_error(d);
    return bad;
}

static int trial_run(trial *t, ddp_error *err) { return ddp_launch(&t->cfg, trial_worker, t, err); }

/* Runs on a virtual clock, with the times of the links but no compute time. */
static int trial_simulate(trial *t, ddp_error *err)
{
    return ddp_simulate(&t->cfg, NULL, trial_worker, t, NULL, err);
}

static void expect(const ddp_error *e, ddp_status code, const char *words)
{
    if (e->code != code || !strstr(e->msg, words))
        fail_msg("got %d \"%s\", expected %d with \"%s\"", (int)e->code, e->msg, (int)code, words);
}

static float arrays[4][2][LAYERS + 1][COUNT]; /* rank, params or grads, layer */

static int add_layers(ddp_ctx *d, int layers, size_t count)
{
    static const char *const names[] = {"first", "second", "third", "fourth"};
    int l, bad = 0;

    for (l = 0; !bad && l < layers; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.name = names[l];
        layer.params = arrays[ddp_rank(d)][0][l];
        layer.grads = arrays[ddp_rank(d)][1][l];
        layer.count = count;
        bad = ddp_add_layer(d, &layer);
    }
    return bad;
}

static int start(ddp_ctx *d, int layers, size_t count)
{
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    int bad = add_layers(d, layers, count);

    return bad ? bad : ddp_set_optimizer(d, &o);
}

static int one_step(ddp_ctx *d)
{
    int l, bad = 0;

    for (l = LAYERS - 1; !bad && l >= 0; l--) bad = ddp_backward_end(d, l);
    return bad ? bad : ddp_step_end(d);
}

/* ---- ranks with different settings ---- */

static int registers_one_layer_more_on_rank_1(ddp_ctx *d, trial *t)
{
    (void)t;
    return start(d, LAYERS + (ddp_rank(d) == 1), COUNT);
}

static void different_layer_counts_fail_with_both_counts(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 3, registers_one_layer_more_on_rank_1);
    assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
    expect(&err, DDP_MISMATCH, "rank 1 registered 4 layers, rank 0 has 3");
    expect(&t.error[0], DDP_MISMATCH, "rank 1 registered 4 layers, rank 0 has 3");
    expect(&t.error[2], DDP_MISMATCH, "rank 1 registered 4 layers, rank 0 has 3");
}

static int registers_a_smaller_layer_on_rank_2(ddp_ctx *d, trial *t)
{
    int bad = add_layers(d, 1, COUNT);
    ddp_layer layer;

    (void)t;
    memset(&layer, 0, sizeof layer);
    layer.name = "head";
    layer.params = arrays[ddp_rank(d)][0][1];
    layer.grads = arrays[ddp_rank(d)][1][1];
    layer.count = ddp_rank(d) == 2 ? COUNT - 1 : COUNT;
    if (!bad) bad = ddp_add_layer(d, &layer);
    return bad ? bad : ddp_backward_end(d, 1); /* the first hook starts the session */
}

static void different_layer_sizes_fail_with_layer_and_rank(void **state)
{
    trial t;
    ddp_error err;
    int r;

    (void)state;
    trial_new(&t, 3, registers_a_smaller_layer_on_rank_2);
    assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
    for (r = 0; r < 3; r++)
        expect(&t.error[r], DDP_MISMATCH, "layer 1: rank 2 registered head with 49 values");
}

static int opens_with_another_period(ddp_ctx *d, trial *t)
{
    ddp_ctx *mine = d;

    (void)t;
    if (ddp_rank(d) == 1) mine->cfg.period = 7;
    return start(d, LAYERS, COUNT);
}

static void different_periods_fail_with_both_values(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, opens_with_another_period);
    assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
    expect(&err, DDP_MISMATCH, "rank 1 has period 7, rank 0 has 2");
}

static int opens_with_another_setting(ddp_ctx *d, trial *t)
{
    d->cfg.seed = (uint64_t)1 << 60;
    d->cfg.outer.lr = 0.5;
    if (ddp_rank(d) == 1) {
        if (t->flag == 0) d->cfg.average.state = 1;
        if (t->flag == 1) d->cfg.clip_norm = 2.5f;
        if (t->flag == 2) d->cfg.deterministic = 0;
        if (t->flag == 3) d->cfg.profile_steps = 6;
        if (t->flag == 4) d->links[0].slowest = 1e6;
        if (t->flag == 5) d->cfg.seed++;
        if (t->flag == 6) d->cfg.plan.solver = DDP_SOLVER_BRUTE;
        if (t->flag == 7) d->cfg.algorithm = DDP_DIRECT;
        if (t->flag == 8) d->cfg.plan_path = ddp__strdup("plan.json");
        if (t->flag == 9) d->cfg.wire = DDP_WIRE_BF16;
        if (t->flag == 10) d->cfg.outer.lr = 0.5 + 1e-12;
        if (t->flag == 11) d->cfg.security.no_checksum = 1;
        if (t->flag == 12) d->cfg.plan.solver = DDP_SOLVER_SCATTER; /* the default, given by name */
    }
    return start(d, LAYERS, COUNT);
}

static void different_settings_fail_with_both_values(void **state)
{
    static const char *const words[] = {
        "rank 1 has average_state 1, rank 0 has 0: start every rank with the same",
        "rank 1 has clip_norm 2.5, rank 0 has 0",
        "rank 1 has deterministic 0, rank 0 has 1",
        "rank 1 has profile_steps 6, rank 0 has 0",
        "rank 1 has net (bytes/s of the slowest link) 1e+06, rank 0 has 0",
        "rank 1 has seed (last 32 bits) 1, rank 0 has 0",
        "rank 1 has solver brute, rank 0 has scatter",
        "rank 1 has algorithm direct, rank 0 has auto",
        "rank 1 has plan_path (0: none, else a hash of the file) 1, rank 0 has 0",
        "rank 1 has wire bf16, rank 0 has f32",
        "rank 1 has outer_lr 0.50000000000099998, rank 0 has 0.5",
        "rank 1 has no_checksum 1, rank 0 has 0"};
    trial t;
    ddp_error err;
    int i;

    (void)state;
    for (i = 0; i < (int)(sizeof words / sizeof *words); i++) {
        trial_new(&t, 2, opens_with_another_setting);
        t.flag = i;
        assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
        expect(&err, DDP_MISMATCH, words[i]);
    }
    trial_new(&t, 2, opens_with_another_setting);
    t.flag = i;
    assert_int_equal(trial_run(&t, &err), DDP_OK);
}

static int takes_another_momentum_on_rank_1(ddp_ctx *d, trial *t)
{
    const ddp_optimizer o = ddp_sgd(0.1f, ddp_rank(d) == 1 ? 0.8f : 0.9f);
    int bad = add_layers(d, LAYERS, COUNT);

    (void)t;
    return bad ? bad : ddp_set_optimizer(d, &o);
}

static void different_momentum_fails_with_both_values(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, takes_another_momentum_on_rank_1);
    assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
    expect(&err, DDP_MISMATCH, "rank 1 has momentum 0.8, rank 0 has 0.9: start every rank with the same");
}

static int takes_another_rule_on_rank_1(ddp_ctx *d, trial *t)
{
    const ddp_optimizer o = ddp_rank(d) == 1 ? ddp_adam(0.1f, 0.9f, 0.999f, 1e-8f, 0) : ddp_sgd(0.1f, 0.9f);
    int bad = add_layers(d, LAYERS, COUNT);

    (void)t;
    return bad ? bad : ddp_set_optimizer(d, &o);
}

static void different_optimizers_fail_with_both_names(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, takes_another_rule_on_rank_1);
    assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
    expect(&err, DDP_MISMATCH,
           "rank 1 has the optimizer adam, rank 0 has sgd: start every rank with the same");
}

/* A graph whose dropout has another probability or another place on rank 1. */
static int builds_with_other_dropout(ddp_ctx *d, trial *t)
{
    const float p = ddp_rank(d) == 1 && t->flag == 0 ? 0.25f : 0.5f;
    const ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 2, 8), *y = ddp_input(g, "y", DDP_I32, 2, 1);
    const int first = ddp_rank(d) == 1 && t->flag == 1;

    ddp_layer_begin(g, "only");
    if (first) x = ddp_dropout(g, x, p);
    x = ddp_linear(g, x, 8);
    if (!first) x = ddp_dropout(g, x, p);
    ddp_layer_end(g);
    ddp_cross_entropy(g, x, y);
    if (ddp_graph_build(g)) return (int)ddp_graph_error(g)->code;
    return ddp_set_optimizer(d, &o);
}

static void different_dropout_fails(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, builds_with_other_dropout);
    t.flag = 0;
    assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
    expect(&err, DDP_MISMATCH, "rank 1 has dropout 0.25, rank 0 has 0.5: start every rank with the same");
    trial_new(&t, 2, builds_with_other_dropout);
    t.flag = 1;
    assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
    expect(
        &err, DDP_MISMATCH,
        "have equal layers and different places or rates of dropout: start every rank with the same model");
}

/* The schedules differ after two periods. */
static int follows_another_schedule_on_rank_1(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT);

    (void)t;
    for (int step = 0; !bad && step < 20; step++) {
        ddp_set_lr(d, ddp_rank(d) == 1 && step >= 3 ? 0.05f : 0.1f);
        bad = one_step(d);
    }
    return bad;
}

static void different_learning_rates_fail_with_the_step(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, follows_another_schedule_on_rank_1);
    assert_int_equal(trial_run(&t, &err), DDP_MISMATCH);
    expect(&err, DDP_MISMATCH,
           "step 3: rank 1 has learning rate 0.0500000007, rank 0 has 0.100000001: start every rank with");
}

static int has_another_batch_on_rank_1(ddp_ctx *d, trial *t)
{
    int bad = ddp_usually_same(d, "batch size", ddp_rank(d) == 1 ? 8 : 4);

    if (!bad) bad = ddp_usually_same(d, "length of data", t->flag && ddp_rank(d) == 2 ? 900 : 1000);
    if (!bad) bad = start(d, LAYERS, COUNT);
    if (!bad) bad = one_step(d);
    if (bad) return bad;
    snprintf(t->told[ddp_rank(d)], sizeof t->told[0], "%s", ddp_unlike(d));
    return 0;
}

static void different_batch_sizes_give_one_warning(void **state)
{
    static const char *const words[] = {"rank 0 has batch size 4 (rank 1: 8): the run continues, and "
                                        "averages give every rank the same weight",
                                        "rank 0 has batch size 4 (rank 1: 8), length of data 1000 (rank 2: "
                                        "900): the run continues, and averages give "
                                        "every rank the same weight"};
    trial t;
    ddp_error err;

    (void)state;
    for (int both = 0; both < 2; both++) {
        trial_new(&t, 3, has_another_batch_on_rank_1);
        t.flag = both;
        assert_int_equal(trial_run(&t, &err), DDP_OK);
        for (int r = 0; r < 3; r++) assert_string_equal(t.told[r], words[both]);
    }
}

/* ---- hooks in the wrong order ---- */

static int forgets_a_layer_on_rank_1(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT), l;

    (void)t;
    for (l = LAYERS - 1; !bad && l >= 0; l--)
        if (ddp_rank(d) != 1 || l != 1) bad = ddp_backward_end(d, l);
    if (!bad) bad = ddp_step_end(d);
    return bad ? bad : ddp_sync_all(d);
}

static void missing_backward_end_is_named_on_every_rank(void **state)
{
    trial t;
    ddp_error err;
    int r;

    (void)state;
    trial_new(&t, 3, forgets_a_layer_on_rank_1);
    assert_int_equal(trial_run(&t, &err), DDP_USAGE);
    for (r = 0; r < 3; r++)
        expect(&t.error[r], DDP_USAGE, "layer second had 0 of 1 ddp_backward_end calls on rank 1");
}

/* Rank 0 has more data, or the data do not divide by the number of workers. */
static int takes_a_step_more_on_rank_0(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT);

    (void)t;
    for (int i = 0; !bad && i < 5 + (ddp_rank(d) == 0); i++) bad = one_step(d);
    return bad ? bad : ddp_sync_all(d);
}

static void unequal_step_counts_fail_with_counts_and_calls(void **state)
{
    static const ddp_strategy strategies[] = {DDP_WFBP, DDP_DREAMDDP, DDP_DILOCO, DDP_LOCALSGD};
    trial t;
    ddp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        trial_new(&t, 2, takes_a_step_more_on_rank_0);
        t.cfg.strategy = strategies[i];
        (void)trial_run(&t, &err);
        for (int r = 0; r < 2; r++)
            expect(&t.error[r], DDP_MISMATCH, "make the same calls in the same order, and as many steps");
        expect(&t.error[0], DDP_MISMATCH, "; rank 0 has taken ");
        expect(&t.error[1], DDP_MISMATCH, "rank 1 has taken 5 steps and is in ddp_sync_all");
    }
}

static int ends_a_layer_twice(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT);

    (void)t;
    if (!bad) bad = ddp_backward_end(d, 2);
    return bad ? bad : ddp_backward_end(d, 2);
}

static int uses_a_layer_that_does_not_exist(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT);

    (void)t;
    return bad ? bad : ddp_backward_end(d, 3);
}

static int adds_a_layer_too_late(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT);

    (void)t;
    return bad ? bad : add_layers(d, 1, COUNT);
}

static int steps_without_layers(ddp_ctx *d, trial *t)
{
    (void)t;
    return ddp_step_end(d);
}

static int reports_a_loss_that_is_no_number(ddp_ctx *d, trial *t)
{
    ddp_step_info info;
    int bad = start(d, LAYERS, COUNT);

    (void)t;
    memset(&info, 0, sizeof info);
    info.loss = NAN;
    return bad ? bad : ddp_report(d, &info);
}

/* Calls ddp_forward_begin in the first step, so that transfers may end late, and then stops calling it. */
static int stops_calling_forward_begin(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT), l, step;

    (void)t;
    for (step = 0; !bad && step < 4; step++) {
        if (step == 0)
            for (l = 0; l < LAYERS; l++) bad |= ddp_forward_begin(d, l);
        if (!bad) bad = one_step(d);
    }
    return bad;
}

static void misuse_fails_with_the_layer_name(void **state)
{
    static const struct {
        int (*body)(ddp_ctx *, trial *);
        ddp_status code;
        const char *words;
    } cases[] = {
        {ends_a_layer_twice, DDP_USAGE, "ddp_backward_end(2) was called 2 times for layer third, expected 1"},
        {uses_a_layer_that_does_not_exist, DDP_ARG, "layer 3 does not exist; 3 layers are registered"},
        {adds_a_layer_too_late, DDP_USAGE, "layer 3 (first) is too late"},
        {steps_without_layers, DDP_USAGE, "no layer is registered"},
        {reports_a_loss_that_is_no_number, DDP_NUMERIC, "the loss is nan"},
        {stops_calling_forward_begin, DDP_USAGE,
         "used while its average of the step before was still on its way"},
    };
    size_t i;
    int world;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (world = 1; world <= 2; world++) {
            trial t;
            ddp_error err;
            /* a single worker sends nothing */
            if (cases[i].body == stops_calling_forward_begin && world == 1) continue;
            trial_new(&t, world, cases[i].body);
            assert_int_equal(trial_run(&t, &err), cases[i].code);
            expect(&t.error[0], cases[i].code, cases[i].words);
        }
}

static int reports_now_and_then(ddp_ctx *d, trial *t)
{
    ddp_step_info info = {3, 5, 2, 0};
    int bad = start(d, LAYERS, COUNT) || ddp_report(d, &info), good = ddp_reported(d)->samples == 5;

    bad = bad || one_step(d);
    good &= ddp_reported(d)->loss > 2.9 && ddp_reported(d)->samples == 0 && ddp_reported(d)->epoch < 1;
    info.loss = 0;
    info.samples = 4;
    bad = bad || ddp_report(d, &info);
    good &= ddp_reported(d)->loss > 2.9 && ddp_reported(d)->samples == 4;
    info.loss = -1;
    bad = bad || ddp_report(d, &info);
    if (ddp_rank(d) == 0) t->flag = good && ddp_reported(d)->loss < 0;
    return bad || one_step(d);
}

static void report_is_reset_each_step_except_the_loss(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, reports_now_and_then);
    if (trial_run(&t, &err)) fail_msg("%s", err.msg);
    assert_true(t.flag);
}

static int trains_without_gradients(ddp_ctx *d, trial *t)
{
    ddp_layer layer;
    int bad;

    (void)t;
    memset(&layer, 0, sizeof layer);
    layer.name = "frozen";
    layer.params = arrays[ddp_rank(d)][0][0];
    layer.count = COUNT;
    bad = ddp_add_layer(d, &layer);
    if (!bad) bad = ddp_backward_end(d, 0);
    return bad ? bad : ddp_step_end(d);
}

/* If only some ranks had gradients, the replicas would diverge without an error. */
static void gradient_strategies_need_gradients(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        for (int s = 0; s < 2; s++) {
            trial t;
            ddp_error err;
            trial_new(&t, world, trains_without_gradients);
            t.cfg.strategy = s ? DDP_WFBP : DDP_LOCALSGD;
            assert_int_equal(trial_run(&t, &err), s && world == 2 ? DDP_USAGE : DDP_OK);
            if (s && world == 2)
                expect(&t.error[1], DDP_USAGE, "strategy wfbp averages gradients, and none of 1 layers has");
        }
}

static int calls_on_after_an_error(ddp_ctx *d, trial *t)
{
    float w = arrays[ddp_rank(d)][0][0][0];

    (void)t;
    (void)uses_a_layer_that_does_not_exist(d, t);
    if (ddp_backward_end(d, 0) != DDP_ARG || ddp_step_end(d) != DDP_ARG || ddp_sync_all(d) != DDP_ARG ||
        ddp_wait(d) != DDP_ARG)
        return DDP_FAILED;
    return arrays[ddp_rank(d)][0][0][0] == w && strstr(ddp_last_error(d)->msg, "layer 3") ? DDP_ARG
                                                                                          : DDP_FAILED;
}

static void first_error_is_kept_and_later_calls_fail(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 1, calls_on_after_an_error);
    assert_int_equal(trial_run(&t, &err), DDP_ARG);
}

static void null_arguments_fail_without_a_crash(void **state)
{
    ddp_stats s;

    (void)state;
    ddp_get_stats(NULL, &s);
    assert_true(s.steps == 0);
    assert_int_equal(ddp_step_end(NULL), DDP_ARG);
    assert_int_equal(ddp_backward_end(NULL, 0), DDP_ARG);
    assert_int_equal(ddp_add_layer(NULL, NULL), DDP_ARG);
    assert_int_equal(ddp_last_error(NULL)->code, DDP_ARG);
    assert_int_equal(ddp_rank(NULL), 0);
    assert_null(ddp_plan_get(NULL));
    ddp_close(NULL);
    ddp_abort(NULL, NULL);
}

static void zero_config_is_one_worker_without_network(void **state)
{
    ddp_config cfg;
    ddp_error err;
    ddp_ctx *d;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    d = ddp_open(&cfg, &err);
    assert_non_null(d);
    assert_int_equal(ddp_world(d), 1);
    assert_null(d->engine);
    ddp_close(d);
    d = ddp_open(NULL, NULL);
    assert_non_null(d);
    ddp_close(d);
}

static void too_large_optimizer_state_fails_before_allocation(void **unused)
{
    ddp_config c;
    ddp_optimizer o = ddp_adamw(0.1f, 0.9f, 0.999f, 1e-8f, 0);
    ddp_layer layer;
    ddp_error err;
    ddp_ctx *d;
    /* more memory than any machine has */
    float x = 0, *far = (float *)(((uintptr_t)1 << 60) + (uintptr_t)&x);

    (void)unused;
    memset(&c, 0, sizeof c);
    memset(&layer, 0, sizeof layer);
    c.no_env = 1;
    d = ddp_open(&c, &err);
    assert_non_null(d);
    layer.name = "wide";
    layer.params = &x;
    layer.grads = far;
    layer.count = (size_t)1 << 50;
    assert_int_equal(ddp_add_layer(d, &layer), DDP_OK);
    assert_int_equal(ddp_set_optimizer(d, &o), DDP_MEMORY); /* the session starts in this call */
    assert_non_null(strstr(ddp_last_error(d)->msg, "9007199254740992 bytes of optimizer state (adamw)"));
    assert_non_null(strstr(ddp_last_error(d)->msg, "this process may use"));
    ddp_close(d);
}

static void invalid_config_fails_with_the_field_name(void **state)
{
    static const struct {
        size_t offset;
        int value;
        const char *words;
    } cases[] = {
        {offsetof(ddp_config, period), -3, "period -3"},
        {offsetof(ddp_config, world), -1, "world -1"},
        {offsetof(ddp_config, rank), 4, "rank 4"},
        {offsetof(ddp_config, threads), -2, "threads -2"},
        {offsetof(ddp_config, algorithm), 9, "algorithm 9"},
        {offsetof(ddp_config, micro_batches), -1, "micro_batches -1"},
    };
    size_t i;
    ddp_config cfg;
    ddp_error err;

    (void)state;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memset(&cfg, 0, sizeof cfg);
        cfg.world = 2;
        memcpy((char *)&cfg + cases[i].offset, &cases[i].value, sizeof(int));
        assert_null(ddp_open(&cfg, &err));
        expect(&err, DDP_ARG, cases[i].words);
    }
    memset(&cfg, 0, sizeof cfg);
    cfg.net = "fast";
    assert_null(ddp_open(&cfg, &err));
    expect(&err, DDP_ARG, "fast");
    cfg.net = NULL;
    cfg.world = 2;
    cfg.transport = DDP_THREADS;
    assert_null(ddp_open(&cfg, &err));
    expect(&err, DDP_USAGE, "ddp_launch");
    cfg.transport = DDP_TRANSPORT_DEFAULT;
    cfg.algorithm = DDP_RING;
    cfg.deterministic = 1;
    assert_null(ddp_open(&cfg, &err));
    expect(&err, DDP_ARG, "deterministic");
    cfg.transport = DDP_MPI;
    assert_null(ddp_open(&cfg, &err));
    expect(&err, DDP_UNSUPPORTED, "mpicc -DDDP_USE_MPI");
    memset(&cfg, 0, sizeof cfg);
    setenv("DREAMDDP_TRANSPORT", "mpi", 1);
    assert_null(ddp_open(&cfg, &err));
    expect(&err, DDP_UNSUPPORTED, "mpicc -DDDP_USE_MPI");
    setenv("DREAMDDP_TRANSPORT", "carrier pigeon", 1);
    assert_null(ddp_open(&cfg, &err));
    expect(&err, DDP_ARG, "tcp, threads, mpi or sockets");
    unsetenv("DREAMDDP_TRANSPORT");
}

static ddp_status resolve(const ddp_config *given, ddp_config *out, ddp_error *err)
{
    ddp_strategy_ops ops;

    return ddp__config_resolve(given, ddp__built_in(), out, &ops, err);
}

static void environment_switches_must_be_1_or_0(void **state)
{
    static const char *const name[] = {"DREAMDDP_INSECURE", "DREAMDDP_DETERMINISTIC"};
    ddp_config given, c;
    ddp_error err;
    int i;

    (void)state;
    memset(&given, 0, sizeof given);
    setenv("DREAMDDP_RESUME", "off", 1);
    assert_int_equal(resolve(&given, &c, &err), DDP_ARG);
    expect(&err, DDP_ARG, "DREAMDDP_RESUME=off is invalid: choose 1 or 0 (default: 1)");
    unsetenv("DREAMDDP_RESUME");
    setenv("DREAMDDP_CUDA_HOPPER", "2", 1);
    assert_int_equal(resolve(&given, &c, &err), DDP_ARG);
    expect(&err, DDP_ARG, "DREAMDDP_CUDA_HOPPER=2 is invalid: choose auto, 0, 1 or portable (default: auto)");
    unsetenv("DREAMDDP_CUDA_HOPPER");
    for (i = 0; i < 2; i++) {
        setenv(name[i], "no", 1);
        assert_int_equal(resolve(&given, &c, &err), DDP_ARG);
        expect(&err, DDP_ARG, "=no is invalid: choose 1 or 0 (default: 0)");
        setenv(name[i], "1", 1);
        assert_int_equal(resolve(&given, &c, &err), DDP_OK);
        assert_int_equal(c.security.insecure + c.deterministic, 1);
        ddp__config_free(&c);
        setenv(name[i], "0", 1);
        assert_int_equal(resolve(&given, &c, &err), DDP_OK);
        assert_int_equal(c.security.insecure + c.deterministic, 0);
        ddp__config_free(&c);
        unsetenv(name[i]);
    }
}

/* On two machines, each would look for rank 0 on its own loopback address. */
static void unknown_address_of_rank_0_fails(void **state)
{
    ddp_config given, c;
    ddp_error err;

    (void)state;
    memset(&given, 0, sizeof given);
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    assert_int_equal(resolve(&given, &c, &err), DDP_ARG);
    expect(&err, DDP_ARG, "Open MPI sets rank 1 of 4, but not the address of rank 0: set DREAMDDP_ADDR");
    setenv("DREAMDDP_ADDR", "10.0.0.1:5", 1);
    assert_int_equal(resolve(&given, &c, &err), DDP_OK);
    assert_string_equal(c.addr, "10.0.0.1:5");
    ddp__config_free(&c);
    unsetenv("DREAMDDP_ADDR");
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
    assert_int_equal(resolve(&given, &c, &err), DDP_OK);
    assert_string_equal(c.addr, "127.0.0.1:29500");
    ddp__config_free(&c);
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
}

static void run_id_of_the_environment_is_used(void **state)
{
    static const char *const ids[] = {"night", "night", "day"};
    ddp_config given, c[3];
    ddp_error err;
    int i;

    (void)state;
    memset(&given, 0, sizeof given);
    for (i = 0; i < 3; i++) {
        setenv("DREAMDDP_RUN_ID", ids[i], 1);
        assert_int_equal(resolve(&given, &c[i], &err), DDP_OK);
        assert_non_null(c[i].run_id);
    }
    unsetenv("DREAMDDP_RUN_ID");
    assert_string_equal(c[0].run_id, c[1].run_id);
    assert_string_not_equal(c[0].run_id, c[2].run_id);
    for (i = 0; i < 3; i++) ddp__config_free(&c[i]);
}

/* ---- writes to a layer in flight ---- */

static DDP__UNUSED int writes_at_once(ddp_ctx *d, trial *t)
{
    int bad = start(d, 1, COUNT);

    if (!bad) bad = ddp_forward_begin(d, 0);
    if (!bad) bad = ddp_backward_end(d, 0);
    arrays[ddp_rank(d)][0][0][7] += 1.0f; /* the link is slow, so the first chunk has not been sent */
    if (!bad) bad = ddp_step_end(d);
    if (!bad) bad = ddp_wait(d);
    (void)t;
    return bad;
}

static DDP__UNUSED int writes_before_the_result_lands(ddp_ctx *d, trial *t)
{
    int bad = start(d, 1, COUNT);
    double until;

    (void)t;
    if (!bad) bad = ddp_forward_begin(d, 0);
    if (!bad) bad = ddp_backward_end(d, 0);
    /* the message leaves within a millisecond and needs 2 s to arrive */
    until = ddp_now() + 0.2;
    ddp__sleep_until(until);
    arrays[ddp_rank(d)][0][0][ddp_rank(d) ? 3 : COUNT - 3] += 1.0f;
    if (!bad) bad = ddp_step_end(d);
    if (!bad) bad = ddp_wait(d);
    return bad;
}

static void write_to_a_layer_in_flight_fails_with_its_name(void **state)
{
#if defined(__SANITIZE_THREAD__)
    (void)state;
    SKIP("it is a data race by design");
#else
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, writes_at_once);
    t.cfg.debug.check_writes = 1;
    t.cfg.period = 1;
    t.cfg.net = "3kbit,1ms";
    assert_int_equal(trial_run(&t, &err), DDP_USAGE);
    expect(&err, DDP_USAGE, "layer first");
    trial_new(&t, 2, writes_before_the_result_lands);
    t.cfg.debug.check_writes = 1;
    t.cfg.period = 1;
    t.cfg.net = "10mbit,2s";
    assert_int_equal(trial_run(&t, &err), DDP_USAGE);
    expect(&err, DDP_USAGE, "layer first");
#endif
}

/* ---- lost peers ---- */

static int one_rank_is_killed(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT), step;

    (void)t;
    for (step = 0; !bad && step < 100000; step++) {
        if (ddp_rank(d) == 2 && step == 5) raise(SIGKILL);
        bad = one_step(d);
    }
    return bad && ddp_lost_rank(d) != 2 ? DDP_FAILED : bad;
}

static void killed_process_ends_the_run_with_its_rank(void **state)
{
    trial t;
    ddp_error err;
    double begin = ddp_now();

    (void)state;
    trial_new(&t, 3, one_rank_is_killed);
    t.cfg.transport = DDP_TCP;
    t.cfg.timeout.peer_s = 0;
    assert_int_equal(trial_run(&t, &err), DDP_PEER_LOST);
    expect(&err, DDP_PEER_LOST, "rank 2");
    assert_int_equal(ddp_status_exit_code(err.code), 3);
    assert_true(ddp_now() - begin < 120); /* all 100,000 steps would take longer */
}

static void *abort_soon(void *arg)
{
    ddp__sleep_until(ddp_now() + 0.2);
    ddp_abort((ddp_ctx *)arg, "the operator pulled the plug");
    return NULL;
}

static int is_aborted_from_another_thread(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT), step;
    pthread_t thread;

    (void)t;
    if (ddp_rank(d) == 0) pthread_create(&thread, NULL, abort_soon, d);
    for (step = 0; !bad && step < 1000000; step++) bad = one_step(d);
    if (ddp_rank(d) == 0) pthread_join(thread, NULL);
    return bad;
}

static void abort_reaches_every_rank_with_its_message(void **state)
{
    trial t;
    ddp_error err;
    int r;

    (void)state;
    trial_new(&t, 3, is_aborted_from_another_thread);
    assert_int_equal(trial_run(&t, &err), DDP_ABORTED);
    for (r = 0; r < 3; r++) expect(&t.error[r], DDP_ABORTED, "the operator pulled the plug");
    trial_new(&t, 1, is_aborted_from_another_thread);
    assert_int_equal(trial_run(&t, &err), DDP_ABORTED);
}

/* ---- collectives without layers ---- */

static int uses_collectives(ddp_ctx *d, trial *t)
{
    float x[12];
    int r = ddp_rank(d), n = ddp_world(d), i, bad = 0;

    (void)t;
    for (i = 0; i < 5; i++) x[i] = (float)(r + i);
    bad |= ddp_all_reduce(d, x, 5, 1.0f / (float)n);
    for (i = 0; i < 5; i++) bad |= x[i] != (float)i + (float)(n - 1) / 2;
    for (i = 0; i < 3; i++) x[r * 3 + i] = (float)(10 * r + i);
    bad |= ddp_all_gather(d, x, 3);
    for (i = 0; i < 3 * n; i++) bad |= x[i] != (float)(10 * (i / 3) + i % 3);
    x[0] = (float)r;
    bad |= ddp_broadcast(d, x, 1, n - 1);
    bad |= x[0] != (float)(n - 1);
    bad |= ddp_barrier(d);
    if (n > 1 && r == 0) {
        x[0] = 42;
        bad |= ddp_send(d, x, 1, 1);
    }
    if (n > 1 && r == 1) {
        bad |= ddp_recv(d, x, 1, 0);
        bad |= x[0] != 42.0f;
    }
    return bad ? DDP_FAILED : 0;
}

static void collectives_work_without_layers(void **state)
{
    int world;

    (void)state;
    for (world = 1; world <= 4; world++) {
        trial t;
        ddp_error err;
        trial_new(&t, world, uses_collectives);
        if (trial_run(&t, &err)) fail_msg("%s", err.msg);
    }
}

/* ---- measured plans ---- */

static int computes_for_a_while(ddp_ctx *d, trial *t)
{
    int bad = start(d, LAYERS, COUNT), step, l;
    const ddp_profile *p;

    for (step = 0; !bad && step < 12; step++) {
        for (l = 0; !bad && l < LAYERS; l++) {
            bad = ddp_forward_begin(d, l);
            ddp_sleep_until(ddp_now() + 0.002 * (l + 1));
        }
        for (l = LAYERS - 1; !bad && l >= 0; l--) {
            bad = ddp_backward_begin(d, l);
            ddp_sleep_until(ddp_now() + 0.004 * (l + 1));
            if (!bad) bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        if (step == 4 && ddp_profile_get(d)) return DDP_FAILED; /* still measuring */
    }
    p = ddp_profile_get(d);
    if (bad || !p || p->layers != LAYERS) return bad ? bad : DDP_FAILED;
    for (l = 0; l < LAYERS; l++) {
        /* a sleep never takes less than the requested time */
        if (!(p->forward_s[l] >= 0.0019 * (l + 1)) || !(p->backward_s[l] >= 0.0039 * (l + 1)))
            return DDP_FAILED;
        if (strcmp(p->name[l], l == 0 ? "first" : l == 1 ? "second" : "third")) return DDP_FAILED;
    }
    if (ddp_rank(d) == 0) t->flag = ddp_plan_get(d) != NULL && ddp_plan_get(d)->cost == DDP_COST_WINDOW;
    return 0;
}

static void hooks_measure_the_layers_and_a_plan_follows(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, computes_for_a_while);
    t.cfg.deterministic = 0;
    if (trial_run(&t, &err)) fail_msg("%s", err.msg);
    assert_int_equal(t.flag, 1);
}

/* Twelve messages in flight together must take the time that the measured link parameters predict. */
static int sends_a_burst(ddp_ctx *d, trial *t)
{
    static float zeros[4][12][COUNT];
    double begin, took, gap = 0, bytes = COUNT * sizeof(float);
    float word[2];
    int bad = t->cfg.deterministic ? start(d, LAYERS, COUNT) : computes_for_a_while(d, t);
    long ticket[12];
    ddp_error err;

    for (int l = LAYERS - 1; t->cfg.deterministic && !bad && l >= 0; l--) bad = ddp_backward_end(d, l);
    if (!bad && t->cfg.deterministic) bad = ddp_step_end(d);
    if (bad) return bad;
    gap = d->session->profile.gap_s;
    if (t->cfg.deterministic) return !ddp_profile_get(d) || gap > 0 ? DDP_FAILED : 0;
    memcpy(word, &gap, sizeof gap);
    if (ddp_broadcast(d, word, 2, 0) || memcmp(word, &gap, sizeof gap)) return DDP_FAILED;
    if (ddp_barrier(d)) return DDP_FAILED;
    begin = ddp_now();
    for (int i = 0; i < 12; i++) {
        ddp_piece p;
        ddp_message m;
        memset(&p, 0, sizeof p);
        p.data = zeros[ddp_rank(d)][i];
        p.count = COUNT;
        m = ddp__message(d, DDP_ALL_REDUCE, &p, 1, DDP__OWN_WORD);
        if (ddp__engine_submit(d->engine, &m, &ticket[i], &err)) return DDP_FAILED;
    }
    for (int i = 0; i < 12; i++)
        if (ddp__engine_wait(d->engine, ticket[i], &err)) return DDP_FAILED;
    took = ddp_now() - begin;
    if (ddp_rank(d) == 0) {
        const double said =
            d->session->profile.alpha_s + 12 * (gap + ddp__link_for(d, 0, bytes).beta_s * bytes);
        print_message("alpha %.3f ms, overhead %.3f ms, %.3f ms for the bytes of one: 12 take %.2f ms, "
                      "predicted %.2f\n",
                      1e3 * d->session->profile.alpha_s, 1e3 * gap,
                      1e3 * ddp__link_for(d, 0, bytes).beta_s * bytes, 1e3 * took, 1e3 * said);
        t->flag = gap > 1e-4 && took > 0.75 * said && took < 1.3 * said;
    }
    return 0;
}

static void per_message_overhead_is_measured(void **state)
{
    ddp_error err;
    trial t;

    (void)state;
    trial_new(&t, 3, sends_a_burst);
    if (trial_run(&t, &err)) fail_msg("%s", err.msg); /* without clocks the per-message overhead is 0 */
    trial_new(&t, 3, sends_a_burst);
    t.cfg.deterministic = 0;
    t.cfg.net = "1mbit,1ms"; /* the headers alone take about a millisecond per message */
    if (trial_simulate(&t, &err)) fail_msg("%s", err.msg);
    assert_int_equal(t.flag, 1);
}

/* At step 12 the plan assumes a link four times as fast as it is. The state is the same as after a
 * slowdown of the link. */
static int trains_on_a_link_slower_than_planned(ddp_ctx *d, trial *t)
{
    static float big[2][2][2][30000];
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    int bad = 0, step, l;
    double before = 0;

    for (l = 0; !bad && l < 2; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = big[ddp_rank(d)][0][l];
        layer.grads = big[ddp_rank(d)][1][l];
        layer.count = 30000;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (step = 0; !bad && step < 60; step++) {
        if (step == 12) {
            ddp__link_scale(d, 0, 0.25);
            ddp__profile_link(d, &d->session->profile);
            ddp__drift_start(d);
            before = ddp__link_is(d, 0).beta_s;
        }
        for (l = 0; !bad && l < 2; l++) bad = ddp_forward_begin(d, l);
        for (l = 1; !bad && l >= 0; l--) {
            ddp_sleep_until(ddp_now() + 0.005);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    /* the plan was recomputed for the slower link: its own times changed, not only the estimate */
    if (ddp_rank(d) == 0)
        t->flag = before > 0 && ddp__link_is(d, 0).beta_s > 2 * before &&
                  d->session->profile.comm_s[0] > 2 * before * 120000;
    return bad ? bad : ddp_sync_all(d);
}

/* If messages were charged with wrong sizes, the link would seem faster. */
static int trains_on_a_steady_link(ddp_ctx *d, trial *t)
{
    static float big[2][2][2][30000];
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_link first = {0, 0};
    int bad = 0, step, l;

    for (l = 0; !bad && l < 2; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = big[ddp_rank(d)][0][l];
        layer.grads = big[ddp_rank(d)][1][l];
        layer.count = 30000;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (step = 0; !bad && step < 40; step++) {
        if (step == d->cfg.profile_steps) first = ddp__link_is(d, 0);
        for (l = 0; !bad && l < 2; l++) bad = ddp_forward_begin(d, l);
        for (l = 1; !bad && l >= 0; l--) bad = ddp_backward_end(d, l);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    if (ddp_rank(d) == 0)
        t->flag =
            first.beta_s > 0 && ddp__link_followed(d, 0) * ddp__link_is(d, 0).beta_s > 0.7 * first.beta_s;
    return bad;
}

static void link_estimate_uses_the_bytes_of_each_message(void **state)
{
    static const ddp_wire wires[] = {DDP_WIRE_F32, DDP_WIRE_BF16, DDP_WIRE_INT8};
    static const ddp_strategy strategies[] = {DDP_DREAMDDP, DDP_BYTESCHEDULER, DDP_MGWFBP};

    (void)state;
    for (int w = 0; w < 3; w++)
        for (int s = 0; s < 3; s++) {
            trial t;
            ddp_error err;
            trial_new(&t, 2, trains_on_a_steady_link);
            t.cfg.deterministic = 0;
            t.cfg.net = "80mbit,1ms";
            t.cfg.wire = wires[w];
            t.cfg.strategy = strategies[s];
            t.cfg.gradient.partition_bytes = 40000;
            if (trial_simulate(&t, &err)) fail_msg("%s", err.msg);
            if (!t.flag) fail_msg("wire %d, %s: the link seems faster", w, ddp_strategy_name(strategies[s]));
        }
}

/* Trains with one large layer on a virtual clock. values: [0] the duration of the longest step, [1] of the
 * last one, [2] predicted, [3] corrected, [4] number of new plans. */
static double virtual_times[5];

static int trains_with_one_large_layer(ddp_ctx *d, trial *t)
{
    static float big[4][2][100000];
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_layer layer;
    ddp_stats s;
    int bad, step;
    double longest = 0, last = 0;

    (void)t;
    memset(&layer, 0, sizeof layer);
    layer.params = big[ddp_rank(d)][0];
    layer.grads = big[ddp_rank(d)][1];
    layer.count = 100000;
    bad = ddp_add_layer(d, &layer) || ddp_set_optimizer(d, &o);
    for (step = 0; !bad && step < 40; step++) {
        const double begin = ddp_now();
        bad = ddp_forward_begin(d, 0) || ddp_backward_end(d, 0) || ddp_step_end(d);
        last = ddp_now() - begin;
        longest = fmax(longest, last);
    }
    ddp_get_stats(d, &s);
    if (ddp_rank(d) == 0) {
        virtual_times[0] = longest;
        virtual_times[1] = last;
        virtual_times[2] = s.predicted_step_s;
        virtual_times[3] = s.corrected_step_s;
        virtual_times[4] = (double)s.replans;
    }
    return bad ? bad : ddp_sync_all(d);
}

static void simulate_large_layer(const char *net, const char *script, ddp_strategy strategy)
{
    trial t;
    ddp_error err;

    trial_new(&t, 4, trains_with_one_large_layer);
    t.cfg.deterministic = 0;
    t.cfg.net = net;
    t.cfg.network.net_script = script;
    t.cfg.strategy = strategy;
    t.cfg.period = 1;
    if (trial_simulate(&t, &err)) fail_msg("%s", err.msg);
    print_message("%s: the longest step takes %.3f s, the last %.3f s, predicted %.3f s, corrected %.3f s\n",
                  net, virtual_times[0], virtual_times[1], virtual_times[2], virtual_times[3]);
}

/* All messages take one delay on these links: results of long ones fill the uplink behind the contributions.
 * A step takes 50 ms + 1.5 x 400 kB at the rate of the link. */
static void steps_are_predicted_by_the_algorithm_of_their_messages(void **state)
{
    static const struct {
        const char *net;
        double seconds;
    } nets[] = {{"2mbit,100ms", 0.1 + 2.4}, {"10mbit,50ms", 0.05 + 0.48}, {"100mbit,5ms", 0.005 + 0.048}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        simulate_large_layer(nets[i].net, NULL, DDP_SSGD);
        assert_true(virtual_times[2] > 0.95 * nets[i].seconds && virtual_times[2] < 1.05 * nets[i].seconds);
        assert_true(virtual_times[2] > 0.95 * virtual_times[1] && virtual_times[2] < 1.05 * virtual_times[1]);
    }
}

/* The measurement of a link delays one step by a second at most, or 2 % of the profile. */
static void measuring_a_slow_link_is_limited(void **state)
{
    (void)state;
    simulate_large_layer("2mbit,100ms", NULL, DDP_WFBP);
    assert_true(virtual_times[0] < virtual_times[1] + 2.2); /* the rest: the profile and the plan */
    simulate_large_layer("100kbit,500ms", NULL, DDP_WFBP);
    assert_true(virtual_times[0] < virtual_times[1] + 0.02 * 6 * virtual_times[1] + 6);
    assert_true(virtual_times[2] > 0.9 * virtual_times[1] && virtual_times[2] < 1.1 * virtual_times[1]);
}

/* A step takes 0.58 s. After 10 s the rate is a tenth: a step takes 4.9 s. */
static void a_tenfold_slower_link_corrects_the_prediction_and_the_plan(void **state)
{
    static const char script[] = "t=10 slow 0 to 1mbit\nt=10 slow 1 to 1mbit\nt=10 slow 2 to 1mbit\n"
                                 "t=10 slow 3 to 1mbit\n";
    char path[] = "/tmp/ddp_script_XXXXXX";
    const int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0 && write(fd, script, sizeof script - 1) == (ssize_t)sizeof script - 1);
    close(fd);
    simulate_large_layer("10mbit,50ms", path, DDP_SSGD);
    assert_true(virtual_times[2] < 0.7 && virtual_times[3] > 0.9 * virtual_times[1]);
    simulate_large_layer("10mbit,50ms", path, DDP_DREAMDDP);
    assert_true(virtual_times[4] >= 1 && virtual_times[2] > 0.8 * virtual_times[1]);
    unlink(path);
}

static void plan_is_recomputed_after_a_link_slows_down(void **state)
{
    trial t;
    ddp_error err;

    (void)state;
    trial_new(&t, 2, trains_on_a_link_slower_than_planned);
    t.cfg.deterministic = 0;
    t.cfg.net = "200mbit,1ms";
    if (trial_simulate(&t, &err)) fail_msg("%s", err.msg);
    assert_int_equal(t.flag, 1);
}

static void write_text(const char *path, const char *text)
{
    assert_int_equal(ddp__file_write(path, text, strlen(text), NULL), DDP_OK);
}

static void plans_are_read_from_planner_json(void **state)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{\"sets\": [[0],[1]]}",
         "is a plan for 2 layers, the model has 3: plan with a profile of this model"},
        {"{\"sets\": [[0,1],[1,2]]}", "layer 1 is in two sets"},
        {"{\"sets\": [[0,1],[]], \"layers\": 3}", "layer 2 is in no set"},
        {"{\"sets\": [[0,1,3],[2]]}", "is a plan for 4 layers, the model has 3"},
        {"{\"sets\": [[0,1],[2,0.5]]}", "layers 0 to 2"},
        {"{\"sets\": [[0,1],[2,-1]]}", "layers 0 to 2"},
        {"{\"sets\": []}", "sets is empty"},
        {"{\"steps\": 1}", "sets"},
        {"{\"sets\": [[0,", "line 1"},
    };
    char path[64];
    ddp_plan p;
    ddp_error err;
    size_t i;

    (void)state;
    snprintf(path, sizeof path, "/tmp/ddp_plan_%ld.json", (long)getpid());
    write_text(path, "{\"solver\":\"optimal\",\"cost\":\"timeline\",\"sets\":[[2,0],[1]],\"fill\":[[],[2]]}");
    assert_int_equal(ddp_plan_read(path, 3, &p, &err), DDP_OK);
    assert_int_equal(p.period, 2);
    assert_int_equal(p.step_of[0], 0);
    assert_int_equal(p.step_of[1], 1);
    assert_int_equal(p.fill[1 * 3 + 2], 1);
    assert_int_equal(p.solver, DDP_SOLVER_OPTIMAL);
    ddp_plan_free(&p);
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text(path, bad[i].text);
        assert_int_not_equal(ddp_plan_read(path, 3, &p, &err), DDP_OK);
        if (!strstr(err.msg, bad[i].words)) fail_msg("%s: %s", bad[i].text, err.msg);
    }
    remove(path);
    assert_int_equal(ddp_plan_read(path, 3, &p, &err), DDP_IO);
}

/* ---- the overlapped part of communication in one step ---- */

static void exposed_time_matches_a_count_of_unit_cells(void **state)
{
    ddp_rng r = ddp_rng_seed(5, 0);
    int trial_number;

    (void)state;
    for (trial_number = 0; trial_number < 2000; trial_number++) {
        ddp_span s[12];
        int n = (int)ddp_rng_below(&r, 12), i, t, cells = 0, bare = 0;
        double comm, exposed;
        memset(s, 0, sizeof s);
        for (i = 0; i < n; i++) {
            s[i].begin_s = (double)ddp_rng_below(&r, 20);
            s[i].end_s = s[i].begin_s + 1 + (double)ddp_rng_below(&r, 6);
            s[i].kind = ddp_rng_below(&r, 2) ? DDP_SPAN_COMM : DDP_SPAN_BACKWARD;
        }
        ddp__sort_spans(s, n);
        ddp__sweep_spans(s, n, &comm, &exposed);
        for (t = 0; t < 26; t++) {
            int sends = 0, computes = 0;
            for (i = 0; i < n; i++)
                if (s[i].begin_s <= t && t < s[i].end_s)
                    *(s[i].kind == DDP_SPAN_COMM ? &sends : &computes) = 1;
            cells += sends;
            bare += sends && !computes;
        }
        assert_true(fabs(comm - cells) < 1e-9 && fabs(exposed - bare) < 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_layer_counts_fail_with_both_counts),
        cmocka_unit_test(different_layer_sizes_fail_with_layer_and_rank),
        cmocka_unit_test(different_periods_fail_with_both_values),
        cmocka_unit_test(different_settings_fail_with_both_values),
        cmocka_unit_test(different_momentum_fails_with_both_values),
        cmocka_unit_test(different_optimizers_fail_with_both_names),
        cmocka_unit_test(different_dropout_fails),
        cmocka_unit_test(different_learning_rates_fail_with_the_step),
        cmocka_unit_test(different_batch_sizes_give_one_warning),
        cmocka_unit_test(environment_switches_must_be_1_or_0),
        cmocka_unit_test(unknown_address_of_rank_0_fails),
        cmocka_unit_test(missing_backward_end_is_named_on_every_rank),
        cmocka_unit_test(report_is_reset_each_step_except_the_loss),
        cmocka_unit_test(unequal_step_counts_fail_with_counts_and_calls),
        cmocka_unit_test(misuse_fails_with_the_layer_name),
        cmocka_unit_test(gradient_strategies_need_gradients),
        cmocka_unit_test(first_error_is_kept_and_later_calls_fail),
        cmocka_unit_test(null_arguments_fail_without_a_crash),
        cmocka_unit_test(zero_config_is_one_worker_without_network),
        cmocka_unit_test(too_large_optimizer_state_fails_before_allocation),
        cmocka_unit_test(invalid_config_fails_with_the_field_name),
        cmocka_unit_test(run_id_of_the_environment_is_used),
        cmocka_unit_test(write_to_a_layer_in_flight_fails_with_its_name),
        cmocka_unit_test(killed_process_ends_the_run_with_its_rank),
        cmocka_unit_test(abort_reaches_every_rank_with_its_message),
        cmocka_unit_test(collectives_work_without_layers),
        cmocka_unit_test(hooks_measure_the_layers_and_a_plan_follows),
        cmocka_unit_test(per_message_overhead_is_measured),
        cmocka_unit_test(plan_is_recomputed_after_a_link_slows_down),
        cmocka_unit_test(steps_are_predicted_by_the_algorithm_of_their_messages),
        cmocka_unit_test(measuring_a_slow_link_is_limited),
        cmocka_unit_test(a_tenfold_slower_link_corrects_the_prediction_and_the_plan),
        cmocka_unit_test(link_estimate_uses_the_bytes_of_each_message),
        cmocka_unit_test(plans_are_read_from_planner_json),
        cmocka_unit_test(exposed_time_matches_a_count_of_unit_cells),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
