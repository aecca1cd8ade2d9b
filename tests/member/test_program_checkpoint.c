/* States of the program (ddp_add_state) in checkpoints: a resumed run with the program's own optimizer is
 * bit-identical to one that never stopped. A damaged, missing or rejected state is an error or a warning that
 * names the state. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { RANKS = 3, LAYERS = 2, COUNT = 6, STEPS = 3, TEXT = 400 };

/* The data of the program on a rank, part of which is saved. */
typedef struct program {
    ddp_ctx *d;
    long steps; /* number of steps that it has run */
    int born;   /* its rank in the run that it started in */
    float momentum[LAYERS][COUNT];
} program;

typedef struct trial {
    const char *folder; /* folders to load from and to save in, or NULL for neither */
    int load, save, fails_to_load, fails_to_save, without, empty, other_name, divided;
    float params[RANKS][LAYERS][COUNT]; /* at the end */
    program at[RANKS];
    int loads[RANKS], saves[RANKS], releases[RANKS];
    char warning[TEXT];
} trial;

static trial *now; /* of the launch in progress. Ranks are threads. */

static int rank_of(const program *x) { return ddp_rank(x->d); }

static int save(void *user, void **bytes, size_t *size, ddp_error *err)
{
    program *x = (program *)user;

    (void)err;
    now->saves[rank_of(x)]++;
    if (now->fails_to_save) return 7;
    *bytes = now->empty ? NULL : x;
    *size = now->empty ? 0 : sizeof *x;
    return 0;
}

static int load(void *user, const void *bytes, size_t size, ddp_error *err)
{
    program *x = (program *)user;
    ddp_ctx *d = x->d;

    now->loads[rank_of(x)]++;
    if (now->fails_to_load) {
        snprintf(err->msg, sizeof err->msg, "this optimizer has other parameters");
        return 1;
    }
    if (now->empty) return size != 0;
    if (size != sizeof *x) return 2;
    memcpy(x, bytes, size);
    x->d = d;
    return 0;
}

static void release(void *user, void *bytes)
{
    const program *x = (const program *)user;

    if (bytes == (now->empty ? NULL : user)) now->releases[rank_of(x)]++;
}

static int registers(ddp_ctx *d, const trial *t, program *x)
{
    const ddp_program_state s = {
        t->other_name == ddp_rank(d) + 1 ? "another" : "momentum", save, load, release, x, 0};
    const ddp_program_state part = {"momentum:part", save, load, release, x, 1};

    if (t->divided && ddp_add_state(d, &part)) return 1;
    return t->without ? 0 : ddp_add_state(d, &s);
}

static int step(ddp_ctx *d, program *x, float p[LAYERS][COUNT], float g[LAYERS][COUNT])
{
    for (int l = LAYERS - 1; l >= 0; l--) {
        for (int i = 0; i < COUNT; i++) g[l][i] = (float)(ddp_rank(d) + 1) * 0.25f + p[l][i] * 0.125f;
        if (ddp_backward_end(d, l)) return 1;
    }
    if (ddp_step_end(d)) return 1;
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < COUNT; i++) {
            x->momentum[l][i] = 0.5f * x->momentum[l][i] + g[l][i];
            p[l][i] -= 0.1f * x->momentum[l][i];
        }
    x->steps++;
    return 0;
}

/* Registers the state, loads if requested, trains STEPS steps, and saves if requested. */
static int work(ddp_ctx *d, void *user)
{
    trial *t = (trial *)user;
    const ddp_optimizer o = ddp_own_update();
    program *x = &t->at[ddp_rank(d)];
    float(*p)[COUNT] = t->params[ddp_rank(d)], g[LAYERS][COUNT];

    memset(g, 0, sizeof g);
    x->d = d;
    x->born = ddp_rank(d);
    for (int l = 0; l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        for (int i = 0; i < COUNT; i++) p[l][i] = (float)(l + i);
        layer.params = p[l];
        layer.grads = g[l];
        layer.count = COUNT;
        if (ddp_add_layer(d, &layer)) return 1;
    }
    if (registers(d, t, x) || ddp_set_optimizer(d, &o)) return 1;
    if (t->load && ddp_checkpoint_load(d, t->folder, NULL)) return 1;
    for (int s = 0; s < STEPS; s++)
        if (step(d, x, p, g)) return 1;
    return t->save ? ddp_checkpoint_save(d, t->folder, 0) : 0;
}

static void keep_warning(void *user, ddp_log_level level, const char *line)
{
    trial *t = (trial *)user;
    const size_t n = strlen(t->warning);

    if (level == DDP_LOG_WARN && strstr(line, "ddp_add_state") && strstr(line, "rank 0"))
        snprintf(t->warning + n, sizeof t->warning - n, "%s", line);
}

static ddp_status launches(trial *t, int world, ddp_error *err)
{
    ddp_config c;

    memset(&c, 0, sizeof c);
    c.world = world;
    c.strategy = DDP_WFBP;
    c.transport = DDP_THREADS;
    c.no_env = 1;
    c.profile_steps = -1;
    c.timeout.peer_s = 60; /* sanitizers on a busy machine */
    c.logger.fn = keep_warning;
    c.logger.user = t;
    c.logger.level = DDP_LOG_WARN;
    now = t;
    memset(err, 0, sizeof *err);
    return (ddp_status)ddp_launch(&c, work, t, err);
}

static void goes(trial *t, int world)
{
    ddp_error err;

    if (launches(t, world, &err)) fail_msg("%s", err.msg);
}

static void fails(trial *t, int world, ddp_status code, const char *part)
{
    ddp_error err;

    assert_int_equal(launches(t, world, &err), code);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

static trial trial_of(const char *folder, int saves, int loads)
{
    trial t;

    memset(&t, 0, sizeof t);
    t.folder = folder;
    t.save = saves;
    t.load = loads;
    return t;
}

static char folder[64];

static int make_folder(void **unused)
{
    (void)unused;
    snprintf(folder, sizeof folder, "/tmp/test_program_checkpoint.XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **unused)
{
    char command[100];

    (void)unused;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* ---- the tests ---- */

/* Two ranks without the library. */
static void train_alone(int steps, float p[LAYERS][COUNT], float m[LAYERS][COUNT])
{
    memset(m, 0, LAYERS * sizeof *m);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < COUNT; i++) {
            p[l][i] = (float)(l + i);
            for (int s = 0; s < steps; s++) {
                const float g[2] = {0.25f + p[l][i] * 0.125f, 0.5f + p[l][i] * 0.125f};
                m[l][i] = 0.5f * m[l][i] + (g[0] + g[1]) * 0.5f;
                p[l][i] -= 0.1f * m[l][i];
            }
        }
}

static void resumed_run_is_bit_identical(void **unused)
{
    trial first = trial_of(folder, 1, 0), second = trial_of(folder, 0, 1);
    float p[LAYERS][COUNT], m[LAYERS][COUNT];

    (void)unused;
    goes(&first, 2);
    goes(&second, 2);
    train_alone(2 * STEPS, p, m);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(first.saves[r], 1);
        assert_int_equal(first.releases[r], 1);
        assert_int_equal(second.loads[r], 1);
        assert_int_equal(second.at[r].born, r); /* each its own state */
        assert_int_equal(second.at[r].steps, 2 * STEPS);
        assert_memory_equal(p, second.params[r], sizeof p);
        assert_memory_equal(m, second.at[r].momentum, sizeof m);
    }
    assert_string_equal(second.warning, "");
}

static void rank_missing_in_the_checkpoint_loads_another_ranks_state(void **unused)
{
    trial first = trial_of(folder, 1, 0), more = trial_of(folder, 0, 1), fewer = trial_of(folder, 0, 1);

    (void)unused;
    goes(&first, 2);
    goes(&more, 3);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(more.at[r].born, r % 2);
        assert_int_equal(more.at[r].steps, 2 * STEPS);
        assert_memory_equal(more.at[r].momentum, more.at[0].momentum, sizeof more.at[0].momentum);
    }
    goes(&fewer, 1);
    assert_int_equal(fewer.at[0].steps, 2 * STEPS);
}

static void missing_state_is_a_warning(void **unused)
{
    trial first = trial_of(folder, 1, 0), second = trial_of(folder, 0, 1);

    (void)unused;
    first.without = 1;
    goes(&first, 2);
    goes(&second, 2);
    assert_int_equal(second.loads[0] + second.loads[1], 0);
    assert_int_equal(second.at[0].steps, STEPS);
    if (!strstr(second.warning, "has no state 'momentum' (ddp_add_state): the program's state is unchanged"))
        fail_msg("%s", second.warning);
}

/* A checkpoint of a version of the program that had one state in place of two. */
static void missing_part_of_a_state_is_no_warning(void **unused)
{
    trial first = trial_of(folder, 1, 0), second = trial_of(folder, 0, 1);

    (void)unused;
    goes(&first, 2);
    second.divided = 1;
    goes(&second, 2);
    assert_string_equal(second.warning, "");
    for (int r = 0; r < 2; r++) {
        assert_int_equal(second.loads[r], 1);
        assert_int_equal(second.at[r].steps, 2 * STEPS);
    }
}

static void surplus_state_is_a_warning(void **unused)
{
    trial first = trial_of(folder, 1, 0), second = trial_of(folder, 0, 1);

    (void)unused;
    goes(&first, 2);
    second.without = 1;
    goes(&second, 2);
    if (!strstr(
            second.warning,
            "has the state 'momentum', which the program has not registered (ddp_add_state): it is ignored"))
        fail_msg("%s", second.warning);
}

static void empty_state_loads_empty(void **unused)
{
    trial first = trial_of(folder, 1, 0), second = trial_of(folder, 0, 1);

    (void)unused;
    first.empty = second.empty = 1;
    goes(&first, 2);
    assert_int_equal(first.releases[1], 1);
    goes(&second, 2);
    assert_int_equal(second.loads[0] + second.loads[1], 2);
}

/* Changes a byte of the state in rank 1's file. */
static void damage(void)
{
    char path[200], *all;
    size_t n;
    FILE *f;

    snprintf(path, sizeof path, "%s/step-%012d/rank-0001.safetensors", folder, STEPS);
    f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    n = (size_t)ftell(f);
    all = (char *)malloc(n + 1);
    assert_non_null(all);
    rewind(f);
    assert_int_equal(fread(all, 1, n, f), n);
    all[n] = 0;
    assert_non_null(strstr(all + 8, "program:momentum"));
    all[n - 3] ^= 1; /* the file ends with the values of the state */
    rewind(f);
    assert_int_equal(fwrite(all, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(all);
}

static void damaged_state_is_rejected_before_the_program_loads(void **unused)
{
    trial first = trial_of(folder, 1, 0), second = trial_of(folder, 0, 1);

    (void)unused;
    goes(&first, 2);
    damage();
    fails(&second, 2, DDP_FORMAT, "rank-0001.safetensors: its hash is ");
    assert_int_equal(second.loads[0] + second.loads[1], 0);
    for (int r = 0; r < 2; r++) assert_int_equal(second.params[r][1][1], 2);
}

static void failing_load_and_save_name_the_state(void **unused)
{
    trial first = trial_of(folder, 1, 0), second = trial_of(folder, 0, 1), third = trial_of(folder, 1, 0);

    (void)unused;
    goes(&first, 2);
    second.fails_to_load = 1;
    fails(&second, 2, DDP_FAILED,
          "the load function of the state 'momentum' (ddp_add_state) returned 1: this optimizer has other "
          "parameters");
    third.fails_to_save = 1;
    fails(&third, 2, DDP_FAILED, "the save function of the state 'momentum' (ddp_add_state) returned 7");
}

static void ranks_with_different_states_do_not_start(void **unused)
{
    trial t = trial_of(NULL, 0, 0);

    (void)unused;
    t.other_name = 2;
    fails(&t, 2, DDP_MISMATCH,
          "rank 1 has the states 'another' (ddp_add_state), rank 0 'momentum': register the same");
}

static void invalid_arguments_are_rejected(void **unused)
{
    static const ddp_program_state wrong[] = {
        {NULL, save, load, NULL, NULL, 0},
        {"", save, load, NULL, NULL, 0},
        {"a name of thirty-two characters.", save, load, NULL, NULL, 0},
        {"two,names", save, load, NULL, NULL, 0},
        {"a \"quote\"", save, load, NULL, NULL, 0},
        {"a\nline", save, load, NULL, NULL, 0},
        {"half", save, NULL, NULL, NULL, 0},
        {"half", NULL, load, NULL, NULL, 0},
    };
    const ddp_program_state fine = {"twice", save, load, NULL, NULL, 0};
    char name[24];

    (void)unused;
    for (size_t i = 0; i <= sizeof wrong / sizeof wrong[0]; i++) {
        ddp_ctx *d = ddp_open(NULL, NULL);
        assert_non_null(d);
        assert_int_equal(ddp_add_state(d, i ? &wrong[i - 1] : NULL), (int)DDP_ARG);
        ddp_close(d);
    }
    {
        ddp_ctx *d = ddp_open(NULL, NULL);
        assert_non_null(d);
        assert_int_equal(ddp_add_state(d, &fine), 0);
        assert_int_equal(ddp_add_state(d, &fine), (int)DDP_ARG);
        ddp_close(d);
    }
    {
        ddp_ctx *d = ddp_open(NULL, NULL);
        assert_non_null(d);
        for (int i = 0; i <= DDP_PROGRAM_STATES; i++) {
            const ddp_program_state s = {name, save, load, NULL, NULL, 0};
            snprintf(name, sizeof name, "state %d", i);
            assert_int_equal(ddp_add_state(d, &s), i < DDP_PROGRAM_STATES ? 0 : (int)DDP_ARG);
        }
        ddp_close(d);
    }
    assert_int_equal(ddp_add_state(NULL, &fine), (int)DDP_ARG);
}

static void late_state_is_rejected(void **unused)
{
    const ddp_program_state s = {"late", save, load, NULL, NULL, 0};
    const ddp_optimizer o = ddp_own_update();
    float p[2] = {1, 2}, g[2] = {0, 0};
    ddp_ctx *d = ddp_open(NULL, NULL);

    (void)unused;
    assert_non_null(d);
    assert_int_equal(ddp_add_block(d, "l", p, g, 2), 0);
    assert_int_equal(ddp_set_optimizer(d, &o), 0);
    assert_int_equal(ddp_add_state(d, &s), (int)DDP_USAGE);
    ddp_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(resumed_run_is_bit_identical, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(rank_missing_in_the_checkpoint_loads_another_ranks_state, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(missing_state_is_a_warning, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(missing_part_of_a_state_is_no_warning, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(surplus_state_is_a_warning, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(empty_state_loads_empty, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(damaged_state_is_rejected_before_the_program_loads, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(failing_load_and_save_name_the_state, make_folder, remove_folder),
        cmocka_unit_test(ranks_with_different_states_do_not_start),
        cmocka_unit_test(invalid_arguments_are_rejected),
        cmocka_unit_test(late_state_is_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
