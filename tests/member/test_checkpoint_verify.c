/* A changed checkpoint is rejected, and no rank's parameters change. Checkpoints of the previous format load
 * with a warning. */
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

enum { RANKS = 2, LAYERS = 2, COUNT = 6, STEPS = 4, WARNING_ROOM = 400 };

typedef struct trial {
    const char *folder;
    int load;
    float params[RANKS][LAYERS][COUNT]; /* at the end */
    char warning[WARNING_ROOM];
} trial;

static void values_at_first(float p[LAYERS][COUNT])
{
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < COUNT; i++) p[l][i] = (float)(l + i);
}

/* Registers layers at p, trains STEPS steps and saves, or loads. */
static int work_with(ddp_ctx *d, const trial *t, float p[LAYERS][COUNT])
{
    const ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    float g[LAYERS][COUNT];
    int bad = 0;

    memset(g, 0, sizeof g);
    values_at_first(p);
    for (int l = 0; l < LAYERS && !bad; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = p[l];
        layer.grads = g[l];
        layer.count = COUNT;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && t->load) return ddp_checkpoint_load(d, t->folder, NULL);
    for (int s = 0; s < STEPS && !bad; s++) {
        for (int l = LAYERS - 1; l >= 0; l--) {
            for (int i = 0; i < COUNT; i++) g[l][i] = (float)(ddp_rank(d) + 1);
            ddp_backward_end(d, l);
        }
        bad = ddp_step_end(d);
    }
    return bad ? bad : ddp_checkpoint_save(d, t->folder, 0);
}

static int work(ddp_ctx *d, void *user)
{
    trial *t = (trial *)user;

    return work_with(d, t, t->params[ddp_rank(d)]);
}

static void keep_warning(void *user, ddp_log_level level, const char *line)
{
    trial *t = (trial *)user;

    if (level == DDP_LOG_WARN) snprintf(t->warning, sizeof t->warning, "%s", line);
}

static ddp_config config_of(int world)
{
    ddp_config c;

    memset(&c, 0, sizeof c);
    c.world = world;
    c.strategy = DDP_DREAMDDP;
    c.period = 3;
    c.transport = DDP_THREADS;
    c.no_env = 1;
    c.deterministic = 1;
    c.profile_steps = 2;
    c.timeout.peer_s = 60; /* sanitizers on a busy machine */
    return c;
}

static trial trial_of(const char *folder, int load)
{
    trial t;

    memset(&t, 0, sizeof t);
    t.folder = folder;
    t.load = load;
    return t;
}

static void saves(const ddp_config *c, const char *folder)
{
    trial t = trial_of(folder, 0);
    ddp_error err;

    memset(&err, 0, sizeof err);
    if (ddp_launch(c, work, &t, &err)) fail_msg("%s", err.msg);
}

static void assert_untouched(float p[LAYERS][COUNT])
{
    float first[LAYERS][COUNT];

    values_at_first(first);
    assert_memory_equal(p, first, sizeof first);
}

/* All ranks fail, one of them with this part of a message, and all parameters are unchanged. */
static void refuses(const ddp_config *c, const char *folder, const char *part)
{
    trial t = trial_of(folder, 1);
    ddp_error err;

    memset(&err, 0, sizeof err);
    if (ddp_launch(c, work, &t, &err) == DDP_OK)
        fail_msg("the checkpoint was loaded: \"%s\" was expected", part);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
    for (int r = 0; r < c->world; r++) assert_untouched(t.params[r]);
}

static void loads(const ddp_config *c, const char *folder)
{
    trial t = trial_of(folder, 1);
    ddp_error err;

    memset(&err, 0, sizeof err);
    if (ddp_launch(c, work, &t, &err)) fail_msg("%s", err.msg);
}

/* ---- files ---- */

static void path_of(char out[200], const char *folder, const char *file)
{
    snprintf(out, 200, "%s/step-%012d/%s", folder, STEPS, file);
}

static char *slurp(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *data;
    long n;

    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    n = ftell(f);
    assert_true(n > 0);
    rewind(f);
    data = (char *)malloc((size_t)n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)n, f), (size_t)n);
    fclose(f);
    data[n] = 0;
    *bytes = (size_t)n;
    return data;
}

static void spill(const char *path, const char *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void shell(const char *format, const char *a, const char *b)
{
    char command[400];

    snprintf(command, sizeof command, format, a, b);
    assert_int_equal(system(command), 0);
}

/* ---- the tests ---- */

/* One rank loads a file with one changed bit, which must be rejected. */
static void refuses_each_bit(const char *folder, const char *file, int bits)
{
    const ddp_config c = config_of(1);
    const trial t = trial_of(folder, 1);
    float p[LAYERS][COUNT];
    char path[200], *data;
    ddp_error err;
    size_t bytes;

    path_of(path, folder, file);
    data = slurp(path, &bytes);
    for (size_t i = 0; i < bytes; i++)
        for (int k = 0; k < bits; k++) {
            const char was = data[i];
            ddp_ctx *d = ddp_open(&c, &err);
            assert_non_null(d);
            data[i] = (char)(was ^ 1 << (i + (size_t)k) % 8);
            spill(path, data, bytes);
            data[i] = was;
            if (work_with(d, &t, p) == 0)
                fail_msg("bit %d of byte %zu of %s went unnoticed", (int)(i + (size_t)k) % 8, i, file);
            assert_true(ddp_last_error(d)->code == DDP_FORMAT || ddp_last_error(d)->code == DDP_MISMATCH);
            assert_untouched(p);
            ddp_close(d);
        }
    spill(path, data, bytes);
    free(data);
}

static void every_changed_bit_is_rejected(void **unused)
{
    char folder[] = "/tmp/ddp_verify_XXXXXX";
    const ddp_config c = config_of(1);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    saves(&c, folder);
    refuses_each_bit(folder, "manifest.json", 2);
    refuses_each_bit(folder, "rank-0000.safetensors", 1);
    loads(&c, folder);
    shell("rm -r %s%s", folder, "");
}

/* With such a change a rank would load the file of the other. */
static void changed_copy_or_cut_in_the_manifest_is_rejected(void **unused)
{
    char folder[] = "/tmp/ddp_verify_XXXXXX", path[200], *data, *at;
    const ddp_config c = config_of(2);
    size_t bytes;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    saves(&c, folder);
    path_of(path, folder, "manifest.json");
    data = slurp(path, &bytes);
    at = strstr(data, "\"copy\": [0, 1]");
    assert_non_null(at);
    at[9] = '1';
    spill(path, data, bytes);
    refuses(&c, folder, "manifest.json: its checksum is");
    at[9] = '0';
    at = strstr(data, "\"cut\": [\"");
    assert_non_null(at);
    at[9] = (char)(at[9] ^ 1);
    spill(path, data, bytes);
    refuses(&c, folder, "manifest.json: its checksum is");
    at[9] = (char)(at[9] ^ 1);
    spill(path, data, bytes);
    loads(&c, folder);
    spill(path, data, bytes - 1);
    refuses(&c, folder, "it has no checksum at its end");
    free(data);
    shell("rm -r %s%s", folder, "");
}

static void file_of_another_rank_or_run_is_rejected(void **unused)
{
    char folder[] = "/tmp/ddp_verify_XXXXXX", other[] = "/tmp/ddp_verify_XXXXXX", first[200], second[200];
    const ddp_config c = config_of(2);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    assert_non_null(mkdtemp(other));
    saves(&c, folder);
    saves(&c, other);
    path_of(first, folder, "rank-0000.safetensors");
    path_of(second, folder, "rank-0001.safetensors");
    shell("cp %s %s", first, second);
    refuses(&c, folder, "rank-0001.safetensors: its rank is 0, but the manifest lists 1");
    path_of(first, other, "rank-0001.safetensors"); /* with the same values */
    shell("cp %s %s", first, second);
    refuses(&c, folder, "rank-0001.safetensors: its run is");
    shell("rm -r %s %s", folder, other);
}

/* Rank 0 finds no error, and waits for rank 1. */
static void damaged_file_changes_no_rank(void **unused)
{
    char folder[] = "/tmp/ddp_verify_XXXXXX", path[200], *data;
    const ddp_config c = config_of(2);
    size_t bytes;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    saves(&c, folder);
    path_of(path, folder, "rank-0001.safetensors");
    data = slurp(path, &bytes);
    data[bytes - 1] = (char)(data[bytes - 1] ^ 1);
    spill(path, data, bytes);
    refuses(&c, folder, "rank-0001.safetensors: its hash is");
    free(data);
    shell("rm -r %s%s", folder, "");
}

/* The same layers divided differently: file and hash are valid, but the plan has other rows. */
static void mismatched_plan_changes_no_parameter(void **unused)
{
    char folder[] = "/tmp/ddp_verify_XXXXXX";
    ddp_config c = config_of(2);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    c.average.split_params = 3;
    saves(&c, folder);
    loads(&c, folder);
    c.average.split_params = 0;
    refuses(&c, folder, "does not fit this model");
    shell("rm -r %s%s", folder, "");
}

/* tests/member/checkpoint_4 was written before manifests had a checksum. */
static void older_checkpoint_loads_with_a_warning(void **unused)
{
    char folder[] = "/tmp/ddp_verify_XXXXXX", path[200], *data;
    ddp_config c = config_of(2);
    trial t = trial_of(folder, 1);
    ddp_error err;
    size_t bytes;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    shell("cp -r %s/. %s", "tests/member/checkpoint_4", folder);
    c.logger.fn = keep_warning;
    c.logger.user = &t;
    c.logger.level = DDP_LOG_WARN;
    memset(&err, 0, sizeof err);
    if (ddp_launch(&c, work, &t, &err)) fail_msg("%s", err.msg);
    if (!strstr(t.warning, "has no checksum")) fail_msg("the warning is \"%s\"", t.warning);
    assert_true(t.params[0][0][0] == -0x1.0cc63ep+0f && t.params[0][1][5] == 0x1.29213p+2f);
    assert_true(t.params[1][0][0] == -0x1.aa3054p+0f && t.params[1][1][5] == 0x1.29213p+2f);
    path_of(path, folder, "rank-0001.safetensors");
    data = slurp(path, &bytes);
    data[bytes - 1] = (char)(data[bytes - 1] ^ 1);
    spill(path, data, bytes);
    c = config_of(2);
    refuses(&c, folder, "rank-0001.safetensors: its hash is");
    free(data);
    shell("rm -r %s%s", folder, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_changed_bit_is_rejected),
        cmocka_unit_test(changed_copy_or_cut_in_the_manifest_is_rejected),
        cmocka_unit_test(file_of_another_rank_or_run_is_rejected),
        cmocka_unit_test(damaged_file_changes_no_rank),
        cmocka_unit_test(mismatched_plan_changes_no_parameter),
        cmocka_unit_test(older_checkpoint_loads_with_a_warning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
