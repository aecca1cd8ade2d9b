/* Strategy auto: the chosen strategy trains as if the program had set it, settings that do not fit are
 * errors, and a checkpoint continues with the choice. */
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
#include "strategy/strategy_lab.h"

enum { NAME = 160 };

static char table_path[128];
static char folder[64],
    *chosen; /* chosen: [NAME] from the log line of the first rank, which may be a process */

static void listen_to_choices(void *user, ddp_log_level level, const char *line)
{
    const char *begin = strstr(line, "auto chooses "), *end;

    (void)user;
    (void)level;
    if (!begin) return;
    begin += strlen("auto chooses ");
    end = strchr(begin, ':');
    snprintf(chosen, NAME, "%.*s", end ? (int)(end - begin) : 0, begin);
}

/* Writes a loss table: ssgd, and one strategy that costs nothing with every period. */
static const char *table_of(const char *strategy, const char *overlap, const char *wire)
{
    FILE *f;

    snprintf(table_path, sizeof table_path, "%s/losses.csv", folder);
    f = fopen(table_path, "w");
    assert_non_null(f);
    fprintf(f, "strategy,overlap,period,workers,wire,steps,loss,source\n");
    fprintf(f, "ssgd,none,0,3,f32,100,2.5,a test\nssgd,none,0,3,f32,1000,2,a test\n");
    fprintf(f, "%s,%s,5,3,f32,1000,2.001,a test\n", strategy, overlap);
    if (strcmp(wire, "f32")) fprintf(f, "%s,%s,5,3,%s,1000,2.001,a test\n", strategy, overlap, wire);
    assert_int_equal(fclose(f), 0);
    return table_path;
}

/* Sets the strategy and the options of a choice, as in "diloco --overlap stream --wire int4 --period 50". */
static void set_as_chosen(ddp_config *c, char *words)
{
    char *word = strtok(words, " ");
    ddp_error err;

    assert_non_null(word);
    c->strategy = ddp_strategy_named(word);
    assert_int_not_equal(c->strategy, DDP_STRATEGY_DEFAULT);
    while ((word = strtok(NULL, " ")) != NULL) {
        const char *value = strtok(NULL, " ");
        assert_non_null(value);
        assert_int_equal(ddp_config_set(c, word + 2, value, &err), DDP_OK);
    }
}

static void auto_new(lab *x, ddp_transport transport)
{
    lab_new(x, 3, DDP_AUTO, 0);
    x->cfg.transport = transport;
    x->cfg.net = "20mbit,2ms";
    x->cfg.choice.steps = 1000;
    x->cfg.choice.loss_budget = 1;
    x->cfg.logger.fn = listen_to_choices;
    x->cfg.logger.level = DDP_LOG_INFO;
    x->model = LAB_ODD;
    x->rule = LAB_ADAMW;
    x->forward_hooks = 1;
    x->steps = 11;
    chosen[0] = 0;
}

/* ---- the choice without measured times ---- */

/* Trains with auto, and with the choice as the program's own setting. */
static void trains_as(const char *strategy, const char *overlap, const char *wire, ddp_transport transport)
{
    char words[NAME];
    lab a, b;

    auto_new(&a, transport);
    a.cfg.choice.loss_table = table_of(strategy, overlap, wire);
    lab_run(&a);
    if (strncmp(chosen, strategy, strlen(strategy)) || (strcmp(wire, "f32") && !strstr(chosen, wire)) ||
        (strcmp(overlap, "none") && !strstr(chosen, overlap)))
        fail_msg("'%s' was chosen, not %s with overlap %s and wire %s", chosen, strategy, overlap, wire);
    snprintf(words, sizeof words, "%s", chosen);
    lab_new(&b, 3, DDP_SSGD, 0);
    b.cfg.transport = transport;
    b.cfg.net = a.cfg.net;
    b.model = a.model;
    b.rule = a.rule;
    b.forward_hooks = 1;
    b.steps = a.steps;
    set_as_chosen(&b.cfg, words);
    lab_run(&b);
    for (int r = 0; r < 3; r++)
        if (memcmp(a.params[r], b.params[r], *a.values * sizeof(float)))
            fail_msg("rank %d has other parameters with auto than with %s", r, chosen);
    lab_free(&a);
    lab_free(&b);
}

static void the_choice_trains_as_if_it_had_been_set(void **state)
{
    (void)state;
    trains_as("dreamddp", "none", "f32", DDP_THREADS);
    trains_as("dreamddp", "none", "bf16", DDP_THREADS);
    trains_as("dreamddp", "none", "int8", DDP_THREADS);
    trains_as("diloco", "none", "f32", DDP_THREADS);
    trains_as("diloco", "stream", "int4", DDP_THREADS);
    trains_as("diloco", "stream", "int8", DDP_TCP);
}

static void with_an_exact_budget_training_is_bit_identical_to_ssgd(void **state)
{
    (void)state;
    for (int measured = 0; measured < 2; measured++) {
        lab a, b;
        auto_new(&a, DDP_THREADS);
        a.cfg.choice.loss_budget = DDP_LOSS_EXACT;
        a.cfg.deterministic = !measured;
        a.cfg.profile_steps = measured ? 3 : 0;
        lab_run(&a);
        assert_string_equal(chosen, "wfbp");
        lab_new(&b, 3, DDP_SSGD, 0);
        b.cfg.net = a.cfg.net;
        b.cfg.deterministic = !measured;
        b.model = a.model;
        b.rule = a.rule;
        b.forward_hooks = 1;
        lab_run(&b);
        assert_memory_equal(a.params[1], b.params[1], *a.values * sizeof(float));
        lab_free(&a);
        lab_free(&b);
    }
}

static void a_period_and_an_overlap_of_the_program_restrict_the_choice(void **state)
{
    static const char *const losses = "strategy,overlap,period,workers,wire,steps,loss,source\n"
                                      "ssgd,none,0,3,f32,100,2.5,a test\nssgd,none,0,3,f32,1000,2,a test\n"
                                      "diloco,none,5,3,f32,1000,2.001,a test\n"
                                      "diloco,stream,5,3,f32,1000,2.001,a test\n";
    lab a;

    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        FILE *f = fopen(table_of("diloco", "none", "f32"), "w");
        assert_non_null(f);
        assert_true(fputs(losses, f) >= 0);
        assert_int_equal(fclose(f), 0);
        auto_new(&a, DDP_THREADS);
        a.cfg.choice.loss_table = table_path;
        a.cfg.period = 7;
        a.cfg.outer.overlap = stream ? DDP_OVERLAP_STREAM : DDP_OVERLAP_EAGER;
        lab_run(&a);
        assert_string_equal(chosen, stream ? "diloco --overlap stream --period 7" : "wfbp");
        lab_free(&a);
    }
}

static void one_worker_has_nothing_to_choose(void **state)
{
    lab a;

    (void)state;
    auto_new(&a, DDP_THREADS);
    a.cfg.world = 1;
    a.cfg.net = NULL;
    lab_run(&a);
    assert_string_equal(chosen, "");
    lab_free(&a);
}

/* ---- the choice from measured times, statistics and checkpoints ---- */

typedef struct outcome {
    ddp_chosen chosen;
    char strategy[32];
    int had_none; /* 1: no choice before the end of the profile */
    int period;
    uint64_t hash;
} outcome;

typedef struct journey {
    ddp_config cfg;
    int steps, save_at;
    const char *load;
    outcome *out; /* [3] shared with the ranks */
} journey;

static int travel(ddp_ctx *d, void *user)
{
    const journey *j = (const journey *)user;
    enum { LAYERS = 4, N = 3000 };
    outcome *out = &j->out[ddp_rank(d)];
    float *w = (float *)calloc(2 * LAYERS * N, sizeof *w), *g = w + LAYERS * N;
    const ddp_optimizer o = ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0);
    ddp_stats s;
    int bad = w == NULL;

    for (int i = 0; i < LAYERS * N && !bad; i++) w[i] = (float)(i % 11) * 0.1f;
    for (int l = 0; l < LAYERS && !bad; l++) {
        char name[8];
        snprintf(name, sizeof name, "l%d", l);
        bad = ddp_add_block(d, name, w + l * N, g + l * N, N);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && j->load) bad = ddp_checkpoint_load(d, j->load, NULL);
    while (!bad && ddp_step(d) < j->steps) {
        for (int l = 0; l < LAYERS && !bad; l++) bad = ddp_forward_begin(d, l);
        for (int l = LAYERS - 1; l >= 0 && !bad; l--) {
            for (int i = l * N; i < (l + 1) * N; i++)
                g[i] = 0.1f * w[i] + 0.01f * (float)(ddp_rank(d) + (int)(ddp_step(d) + i) % 5);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        ddp_get_stats(d, &s);
        if (ddp_step(d) == 2 && !s.chosen) out->had_none = 1;
        if (!bad && ddp_step(d) == j->save_at) bad = ddp_checkpoint_save(d, folder, 0);
    }
    if (!bad) bad = ddp_sync_all(d);
    ddp_get_stats(d, &s);
    if (s.chosen) out->chosen = *s.chosen;
    snprintf(out->strategy, sizeof out->strategy, "%s", s.strategy);
    out->period = s.period;
    if (!bad) out->hash = 1 | ddp_hash_floats(0, w, LAYERS * N);
    free(w);
    return bad ? (int)ddp_last_error(d)->code : 0;
}

static void journey_new(journey *j, const char *table)
{
    memset(j, 0, sizeof *j);
    j->cfg.world = 3;
    j->cfg.strategy = DDP_AUTO;
    j->cfg.transport = DDP_THREADS;
    j->cfg.net = "20mbit,1ms";
    j->cfg.no_env = 1;
    j->cfg.timeout.peer_s = 600;
    j->cfg.choice.loss_table = table;
    j->cfg.choice.loss_budget = 1;
    j->steps = 30;
    j->out = (outcome *)lab_share(3 * sizeof *j->out);
}

static void arrives(journey *j)
{
    ddp_error err;

    if (ddp_launch(&j->cfg, travel, j, &err)) fail_msg("%s", err.msg);
    for (int r = 0; r < 3; r++) {
        assert_int_not_equal(j->out[r].hash, 0);
        assert_int_equal(j->out[r].hash, j->out[0].hash);
        assert_memory_equal(&j->out[r].chosen, &j->out[0].chosen, sizeof j->out[r].chosen);
    }
}

static void a_measured_choice_is_in_the_statistics_of_every_rank(void **state)
{
    journey j;
    const ddp_chosen *c;

    (void)state;
    journey_new(&j, table_of("dreamddp", "none", "f32"));
    j.cfg.net = "4mbit,1ms"; /* the link limits the step, also on a busy machine */
    arrives(&j);
    c = &j.out[0].chosen;
    assert_int_equal(c->strategy, DDP_DREAMDDP);
    assert_string_equal(j.out[0].strategy, "dreamddp");
    assert_int_equal(j.out[0].period, c->period);
    assert_true(j.out[0].had_none);
    assert_string_equal(c->runner_up, "wfbp");
    assert_true(c->seconds > 0 && c->seconds < c->runner_up_s && c->runner_up_s <= c->ssgd_s);
    assert_non_null(strstr(c->reason, "reaches the loss of ssgd"));
    munmap(j.out, 3 * sizeof *j.out);
}

static void training_continues_from_a_checkpoint_with_the_choice(void **state)
{
    static const char *const strategy[] = {"dreamddp", "diloco"}, *const overlap[] = {"none", "stream"},
                             *const wire[] = {"f32", "int8"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *table = table_of(strategy[i], overlap[i], wire[i]);
        journey whole, rest;
        journey_new(&whole, table);
        whole.cfg.deterministic = 1;
        whole.cfg.debug.overwrite = 1;
        whole.save_at = 17;
        arrives(&whole);
        journey_new(&rest, table_of("wfbp", "none", "f32")); /* which would choose otherwise */
        rest.cfg.deterministic = 1;
        rest.load = folder;
        arrives(&rest);
        assert_int_equal(rest.out[0].chosen.strategy, whole.out[0].chosen.strategy);
        assert_int_equal(rest.out[0].chosen.wire, whole.out[0].chosen.wire);
        assert_int_equal(rest.out[0].chosen.overlap, whole.out[0].chosen.overlap);
        assert_int_equal(rest.out[0].chosen.period, whole.out[0].chosen.period);
        assert_int_equal(rest.out[0].hash, whole.out[0].hash);
        munmap(whole.out, 3 * sizeof *whole.out);
        munmap(rest.out, 3 * sizeof *rest.out);
    }
}

/* ---- settings that do not fit ---- */

static void fails_with(ddp_config *c, ddp_status code, const char *text)
{
    journey j;
    ddp_error err;

    journey_new(&j, c->choice.loss_table);
    c->world = 3;
    c->strategy = DDP_AUTO;
    c->transport = c->transport ? c->transport : DDP_THREADS;
    c->no_env = 1;
    j.cfg = *c;
    memset(&err, 0, sizeof err);
    assert_int_not_equal(ddp_launch(&j.cfg, travel, &j, &err), 0);
    if (err.code != code || !strstr(err.msg, text))
        fail_msg("%d '%s', not '%s'", (int)err.code, err.msg, text);
    munmap(j.out, 3 * sizeof *j.out);
}

static void settings_that_do_not_fit_are_errors(void **state)
{
    const ddp_config zero = DDP__ZEROS;
    ddp_config c = zero;
    char path[128];
    FILE *f;

    (void)state;
    c.plan_path = "plan.json";
    fails_with(&c, DDP_ARG, "strategy auto with plan_path plan.json");
    c = zero;
    c.wire = DDP_WIRE_INT8;
    fails_with(&c, DDP_UNSUPPORTED,
               "strategy auto with wire int8: it chooses the wire format itself: omit wire");
    c = zero;
    c.server.count = 1;
    fails_with(&c, DDP_UNSUPPORTED, "strategy auto with servers 1");
    c = zero;
    c.choice.loss_budget = 1.5;
    fails_with(&c, DDP_ARG, "loss_budget");
    c.choice.loss_budget = -0.5;
    fails_with(&c, DDP_ARG, "loss_budget");
    c = zero;
    c.choice.steps = -1;
    fails_with(&c, DDP_ARG, "choice_steps");
    c = zero;
    c.choice.loss_table = "/nonexistent/losses.csv";
    fails_with(&c, DDP_IO, "/nonexistent/losses.csv");
    snprintf(path, sizeof path, "%s/broken.csv", folder);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "strategy,overlap,period,workers,wire,steps,loss,source\nssgd,none,0,3,f32,many,2.5,a test\n");
    assert_int_equal(fclose(f), 0);
    c.choice.loss_table = path;
    fails_with(&c, DDP_FORMAT, "broken.csv");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_choice_trains_as_if_it_had_been_set),
        cmocka_unit_test(with_an_exact_budget_training_is_bit_identical_to_ssgd),
        cmocka_unit_test(a_period_and_an_overlap_of_the_program_restrict_the_choice),
        cmocka_unit_test(one_worker_has_nothing_to_choose),
        cmocka_unit_test(a_measured_choice_is_in_the_statistics_of_every_rank),
        cmocka_unit_test(training_continues_from_a_checkpoint_with_the_choice),
        cmocka_unit_test(settings_that_do_not_fit_are_errors),
    };
    int failed;
    char command[96];

    chosen = (char *)lab_share(NAME);
    snprintf(folder, sizeof folder, "/tmp/ddp_auto_XXXXXX");
    if (!mkdtemp(folder)) return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) || failed;
}
