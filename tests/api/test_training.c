/* A program that only uses the header trains with every strategy, as threads and as processes, with its
 * own update rule, statistics, plan, trace and checkpoint. Wrong use gives an error. */
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { WORLD = 3, LAYERS = 4, STEPS = 24, WIDTH = 700 };
static const size_t counts[LAYERS] = {5, WIDTH, 33, 256};

/* The task of a run's workers, and the results of workers that are threads. */
typedef struct job {
    int hooks;    /* 1: calls the forward hooks too */
    int own_rule; /* 1: an update rule of the program */
    int steps;
    double tolerance; /* default 1e-4 */
    const char *save, *load;
    float w[WORLD][LAYERS][WIDTH];
    ddp_stats stats[WORLD];
} job;

/* For workers: cmocka's own assertions only work in the main thread. */
#define CHECK(cond)                                                                          \
    do {                                                                                     \
        if (!(cond)) {                                                                       \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, ddp_rank(d), #cond); \
            return DDP_FAILED;                                                               \
        }                                                                                    \
    } while (0)

/* Rank r pulls parameter i of layer l towards this value with unit strength. The mean over the ranks is
 * then the same with every strategy: mean target + (start - mean target) (1 - lr)^steps. */
static float target(int rank, int l, size_t i) { return (float)(rank + 1) + (float)l + (float)(i % 7) / 8; }

static void pull(const ddp_optimizer *self, const ddp_update *u)
{
    size_t i;

    (void)self;
    for (i = 0; i < u->count; i++) u->params[i] -= u->lr * u->grads[i];
}

static int train(ddp_ctx *d, void *user)
{
    job *j = (job *)user;
    int rank = ddp_rank(d), l, loaded = 0;
    float(*w)[WIDTH] = j->w[rank], (*g)[WIDTH] = (float(*)[WIDTH])calloc(LAYERS, sizeof *g);
    ddp_optimizer o = ddp_sgd(0.125f, 0);
    ddp_step_info info;
    size_t i;

    CHECK(g && ddp_world(d) == WORLD && ddp_step(d) == 0);
    memset(w, 0, LAYERS * sizeof *w);
    for (l = 0; l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w[l];
        layer.grads = g[l];
        layer.count = counts[l];
        for (i = 0; i < counts[l]; i++) w[l][i] = (float)rank; /* the library takes rank 0's values */
        CHECK(ddp_add_layer(d, &layer) == DDP_OK);
    }
    if (j->own_rule) {
        memset(&o, 0, sizeof o);
        o.name = "pull";
        o.update = pull;
        o.lr = 0.125f;
    }
    CHECK(ddp_set_optimizer(d, &o) == DDP_OK);
    for (l = 0; l < LAYERS; l++) CHECK(w[l][0] == 0);
    if (j->load) CHECK(ddp_checkpoint_load(d, j->load, &loaded) == DDP_OK && loaded == WORLD);
    memset(&info, 0, sizeof info);
    while (ddp_step(d) < j->steps) {
        for (l = 0; j->hooks && l < LAYERS; l++) CHECK(ddp_forward_begin(d, l) == DDP_OK);
        for (l = LAYERS - 1; l >= 0; l--) {
            if (j->hooks) CHECK(ddp_backward_begin(d, l) == DDP_OK);
            for (i = 0; i < counts[l]; i++) {
                if (g[l][i] != 0) return DDP_FAILED; /* the library zeroed them */
                g[l][i] = w[l][i] - target(rank, l, i);
            }
            CHECK(ddp_backward_end(d, l) == DDP_OK);
        }
        info.loss = 1.0 / (double)(ddp_step(d) + 1);
        CHECK(ddp_report(d, &info) == DDP_OK && ddp_step_end(d) == DDP_OK);
        if (j->save && ddp_step(d) == j->steps / 2) CHECK(ddp_checkpoint_save(d, j->save, 1) == DDP_OK);
    }
    CHECK(ddp_wait(d) == DDP_OK);
    CHECK(ddp_sync_all(d) == DDP_OK);
    for (l = 0; l < LAYERS; l++)
        for (i = 0; i < counts[l]; i++) {
            double mean = ((double)target(0, l, i) + target(1, l, i) + target(2, l, i)) / 3;
            if (fabs(w[l][i] - mean * (1 - pow(0.875, j->steps))) > j->tolerance) return DDP_FAILED;
        }
    CHECK(ddp_taken(d) == (int64_t)WORLD * j->steps && ddp_last_error(d)->code == DDP_OK);
    ddp_get_stats(d, &j->stats[rank]);
    CHECK(j->stats[rank].steps == j->steps && j->stats[rank].bytes_sent > 0);
    free(g);
    return 0;
}

/* Runs the job. If the workers are threads, compares their parameters bit for bit. */
static void run(ddp_config cfg, job *j)
{
    ddp_error err;
    int r;

    cfg.world = WORLD;
    cfg.no_env = 1;
    if (!j->steps) j->steps = STEPS;
    if (!(j->tolerance > 0)) j->tolerance = 1e-4;
    if (ddp_launch(&cfg, train, j, &err) != DDP_OK)
        fail_msg("%s: %s", ddp_strategy_name(cfg.strategy), err.msg);
    assert_string_equal(err.msg, "");
    for (r = 1; cfg.transport == DDP_THREADS && r < WORLD; r++)
        assert_memory_equal(j->w[r], j->w[0], sizeof j->w[0]);
}

static job *job_new(void)
{
    job *j = (job *)calloc(1, sizeof *j);

    assert_non_null(j);
    return j;
}

static void every_strategy_trains_to_the_same_mean(void **state)
{
    static const char *const names[] = {"ssgd", "wfbp", "localsgd", "enp", "dreamddp"};
    size_t s;
    int way;

    (void)state;
    for (s = 0; s < sizeof names / sizeof *names; s++)
        for (way = 0; way < 3; way++) {
            job *j = job_new();
            ddp_config cfg;
            memset(&cfg, 0, sizeof cfg);
            cfg.strategy = ddp_strategy_named(names[s]);
            assert_string_equal(ddp_strategy_name(cfg.strategy), names[s]);
            cfg.period = 3;
            cfg.transport = way < 2 ? DDP_THREADS : DDP_TCP;
            j->hooks = way == 1;
            j->own_rule = way == 2;
            run(cfg, j);
            free(j);
        }
    assert_int_equal(ddp_strategy_named("no such"), DDP_STRATEGY_DEFAULT);
    assert_int_equal(ddp_transport_named("tcp"), DDP_TCP);
    assert_int_equal(ddp_transport_named("carrier pigeon"), DDP_TRANSPORT_DEFAULT);
}

static void messages_can_be_bf16_or_int8(void **state)
{
    static const char *const names[] = {"bf16", "int8"};
    size_t i;

    (void)state;
    for (i = 0; i < 2; i++) {
        job *j = job_new();
        ddp_config cfg;
        memset(&cfg, 0, sizeof cfg);
        assert_true(ddp_wire_named(names[i], &cfg.wire));
        cfg.strategy = DDP_SSGD;
        cfg.transport = DDP_THREADS;
        j->tolerance = i ? 0.05 : 0.02;
        run(cfg, j);
        free(j);
    }
}

static void run_resumes_bit_identical_from_its_checkpoint(void **state)
{
    char folder[] = "/tmp/dreamddp-api-XXXXXX", command[64];
    ddp_strategy s;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command, "rm -rf %s", folder);
    for (s = DDP_SSGD; s <= DDP_DREAMDDP; s = (ddp_strategy)(s + 1)) {
        job *whole = job_new(), *again = job_new();
        ddp_config cfg;
        memset(&cfg, 0, sizeof cfg);
        cfg.strategy = s;
        cfg.period = 3;
        cfg.deterministic = 1;
        cfg.transport = DDP_THREADS;
        whole->save = again->load = folder;
        run(cfg, whole);
        run(cfg, again);
        assert_memory_equal(whole->w, again->w, sizeof whole->w);
        assert_int_equal(system(command), 0);
        free(whole);
        free(again);
    }
}

/* ---- results that a context reports ---- */

static int look(ddp_ctx *d, void *user)
{
    static const size_t n = 64;
    float w[3][64], g[3][64];
    const ddp_optimizer o = ddp_adam(0.01f, 0.9f, 0.999f, 1e-8f, 0);
    ddp_plan plan;
    ddp_span span[256];
    ddp_note note[4];
    ddp_link_stats link;
    ddp_error err;
    char path[64], text[200];
    int l, spans, seen = 0;
    long step;

    memset(w, 0, sizeof w);
    memset(g, 0, sizeof g);
    CHECK(ddp_plan_get(d) == NULL && ddp_profile_get(d) == NULL);
    for (l = 0; l < 3; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.name = l ? NULL : "first";
        layer.params = w[l];
        layer.grads = g[l];
        layer.count = n;
        CHECK(ddp_add_layer(d, &layer) == DDP_OK);
    }
    CHECK(ddp_set_optimizer(d, &o) == DDP_OK);
    for (step = 0; step < 12; step++) {
        for (l = 2; l >= 0; l--) {
            g[l][0] = 1;
            CHECK(ddp_backward_end(d, l) == DDP_OK);
        }
        CHECK(ddp_step_end(d) == DDP_OK);
    }
    CHECK(ddp_plan_get(d)->layers == 3 && ddp_plan_get(d)->period == 2);
    CHECK(ddp_profile_get(d)->layers == 3 && !strcmp(ddp_profile_get(d)->name[0], "first"));
    CHECK(ddp_plan_new(3, 2, &plan, &err) == DDP_OK);
    plan.step_of[1] = 1;
    CHECK(ddp_plan_adopt(d, &plan) == DDP_OK);
    CHECK(ddp_plan_get(d)->step_of[1] == 1 && ddp_plan_hash(ddp_plan_get(d)) == ddp_plan_hash(&plan));
    ddp_plan_free(&plan);
    ddp_set_lr(d, 0.02f);
    spans = ddp_trace_copy(d, span, 256);
    CHECK(spans > 0 && spans <= 256);
    for (l = 0; l < spans; l++) seen |= 1 << span[l].kind;
    CHECK(seen >> DDP_SPAN_COMM & 1);
    CHECK(ddp_divergence(d, 0) >= 0 && strcmp(ddp_last_algorithm(d), "none"));
    CHECK(ddp_notes(d, note, 4) >= 0 && !strcmp(ddp_note_name(DDP_NOTE_LOST), "lost"));
    memset(note, 0, sizeof note);
    note[0].kind = DDP_NOTE_LOST;
    note[0].rank = 1;
    note[0].workers = 2;
    ddp_note_text(&note[0], text, sizeof text);
    CHECK(strstr(text, "rank 1"));
    CHECK(ddp_links(d) == 1 && ddp_get_link_stats(d, 0, &link) == DDP_OK && link.operations > 0);
    CHECK(ddp_workers(d) == 2 && ddp_live(d) == 3 && ddp_epoch(d) == 0 && ddp_epoch(NULL) == 0);
    CHECK(ddp_updates_of(d, 0) == 12 && ddp_updates_of(d, 3) == 0);
    CHECK(ddp_sync_all(d) == DDP_OK);
    snprintf(path, sizeof path, "%s/dump.%%r", (const char *)user);
    CHECK(ddp_dump(d, path, &err) == DDP_OK);
    return 0;
}

static void context_reports_its_measurements_and_work(void **state)
{
    char folder[] = "/tmp/dreamddp-api-XXXXXX", name[2][64], command[64];
    struct stat st;
    ddp_config cfg;
    ddp_error err;
    int r;

    (void)state;
    assert_non_null(mkdtemp(folder));
    memset(&cfg, 0, sizeof cfg);
    cfg.transport = DDP_THREADS;
    cfg.world = 2;
    cfg.period = 2;
    cfg.debug.trace_spans = 1000;
    cfg.no_env = 1;
    if (ddp_launch(&cfg, look, folder, &err)) fail_msg("%s", err.msg);
    for (r = 0; r < 2; r++) snprintf(name[r], sizeof name[r], "%s/dump.%d", folder, r);
    for (r = 0; r < 2; r++) assert_true(stat(name[r], &st) == 0 && st.st_size > 0);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- mistakes: a status and a one-line message with the value; later calls return the same error ---- */

typedef struct mistake {
    int which;
    ddp_status code;
    const char *says;
} mistake;

static int mistaken(ddp_ctx *d, void *user)
{
    const mistake *m = (const mistake *)user;
    float w[2][4] = {{0}}, g[2][4] = {{0}};
    ddp_layer layer;
    ddp_step_info info;
    int l, code;

    memset(&layer, 0, sizeof layer);
    memset(&info, 0, sizeof info);
    for (l = 0; l < 2; l++) {
        layer.params = w[l];
        layer.grads = g[l];
        layer.count = 4;
        if (ddp_add_layer(d, &layer)) return DDP_FAILED;
    }
    info.loss = NAN;
    switch (m->which) {
    case 0:
        code = ddp_add_layer(d, NULL);
        break;
    case 1:
        layer.count = 0;
        code = ddp_add_layer(d, &layer);
        break;
    case 2:
        code = ddp_set_optimizer(d, NULL);
        break;
    case 3:
        code = ddp_backward_end(d, 7);
        break;
    case 4:
        code = ddp_forward_begin(d, -1);
        break;
    case 5:
        code = ddp_backward_end(d, 1) ? DDP_FAILED : ddp_step_end(d);
        break;
    case 6:
        code = ddp_backward_end(d, 1) ? DDP_FAILED : ddp_backward_end(d, 1);
        break;
    case 7:
        code = ddp_report(d, NULL);
        break;
    case 8:
        code = ddp_report(d, &info);
        break;
    case 9:
        code = ddp_backward_end(d, 1) ? DDP_FAILED : ddp_add_layer(d, &layer);
        break;
    case 10:
        code = ddp_broadcast(d, w[0], 4, 5);
        break;
    case 11:
        code = ddp_all_reduce(d, NULL, 4, 1);
        break;
    case 12:
        code = ddp_checkpoint_load(d, "/no/such/folder", NULL);
        break;
    case 13:
        code = ddp_plan_adopt(d, NULL);
        break;
    default:
        ddp_abort(d, "the cat sat on it");
        if ((code = ddp_backward_end(d, 1)) || (code = ddp_backward_end(d, 0))) break;
        code = ddp_step_end(d);
    }
    if (code != (int)m->code || ddp_last_error(d)->code != m->code ||
        !strstr(ddp_last_error(d)->msg, m->says) || strchr(ddp_last_error(d)->msg, '\n') ||
        ddp_step_end(d) != code || ddp_all_reduce(d, w[0], 4, 1) != code || ddp_sync_all(d) != code)
        fprintf(stderr, "mistake %d: %d '%s'\n", m->which, code, ddp_last_error(d)->msg);
    else
        return 0;
    return DDP_FAILED;
}

static void mistake_gives_a_one_line_error_that_is_kept(void **state)
{
    static const mistake mistakes[] = {{0, DDP_ARG, "NULL"},
                                       {1, DDP_ARG, "layer 2"},
                                       {2, DDP_ARG, "update function"},
                                       {3, DDP_ARG, "7"},
                                       {4, DDP_ARG, "-1"},
                                       {5, DDP_USAGE, "layer 0"},
                                       {6, DDP_USAGE, "layer 1"},
                                       {7, DDP_ARG, "NULL"},
                                       {8, DDP_NUMERIC, "nan"},
                                       {9, DDP_USAGE, "ddp_add_layer"},
                                       {10, DDP_ARG, "5"},
                                       {11, DDP_ARG, "NULL"},
                                       {12, DDP_IO, "/no/such/folder"},
                                       {13, DDP_ARG, "2 layers"},
                                       {14, DDP_ABORTED, "the cat sat on it"}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        ddp_config cfg;
        ddp_error err;
        int code;

        memset(&cfg, 0, sizeof cfg);
        cfg.no_env = 1;
        code = ddp_launch(&cfg, mistaken, (void *)(uintptr_t)&mistakes[i], &err);
        if (code != (int)mistakes[i].code || !strstr(err.msg, mistakes[i].says))
            fail_msg("mistake %zu: %d '%s'", i, code, err.msg);
    }
}

static int nothing(ddp_ctx *d, void *user)
{
    (void)user;
    return d ? 0 : 1;
}

static int only_one_fails(ddp_ctx *d, void *user)
{
    (void)user;
    return ddp_rank(d) == 1 ? 42 : ddp_barrier(d);
}

static void invalid_config_fails_with_a_one_line_error(void **state)
{
    static const struct {
        int period, rank, world;
        ddp_transport transport;
        const char *addr, *net, *says;
    } bad[] = {{-3, 0, 1, DDP_TCP, NULL, NULL, "-3"},
               {0, 4, 2, DDP_TCP, NULL, NULL, "4"},
               {0, 0, 2, DDP_THREADS, NULL, NULL, "ddp_launch"},
               {0, 0, 2, DDP_TCP, "nowhere", NULL, "nowhere"},
               {0, 0, 2, DDP_TCP, "127.0.0.1:0x", NULL, "0x"},
               {0, 0, 2, DDP_TCP, NULL, "quick,20ms", "quick"}};
    ddp_config cfg;
    ddp_error err;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&cfg, 0, sizeof cfg);
        cfg.no_env = 1;
        cfg.period = bad[i].period;
        cfg.rank = bad[i].rank;
        cfg.world = bad[i].world;
        cfg.transport = bad[i].transport;
        cfg.addr = bad[i].addr;
        cfg.net = bad[i].net;
        assert_null(ddp_open(&cfg, &err));
        if (err.code == DDP_OK || !strstr(err.msg, bad[i].says))
            fail_msg("%zu: %d '%s'", i, err.code, err.msg);
        assert_null(ddp_open(&cfg, NULL));
    }
    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    assert_int_equal(ddp_launch(NULL, nothing, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_launch(&cfg, NULL, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_launch(&cfg, nothing, NULL, NULL), DDP_OK);
    cfg.world = 2;
    cfg.transport = DDP_THREADS;
    assert_int_not_equal(ddp_launch(&cfg, only_one_fails, NULL, &err), DDP_OK);
    assert_true(strlen(err.msg) > 0);
    ddp_close(NULL);
}

/* Calls without a context fail without a crash. */
static void null_context_fails(void **state)
{
    float x = 1;
    ddp_layer layer;
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_step_info info;
    int group;

    (void)state;
    memset(&layer, 0, sizeof layer);
    memset(&info, 0, sizeof info);
    assert_int_equal(ddp_add_layer(NULL, &layer), DDP_ARG);
    assert_int_equal(ddp_set_optimizer(NULL, &o), DDP_ARG);
    assert_int_equal(ddp_forward_begin(NULL, 0), DDP_ARG);
    assert_int_equal(ddp_backward_begin(NULL, 0), DDP_ARG);
    assert_int_equal(ddp_backward_end(NULL, 0), DDP_ARG);
    assert_int_equal(ddp_report(NULL, &info), DDP_ARG);
    assert_int_equal(ddp_step_end(NULL), DDP_ARG);
    assert_int_equal(ddp_wait(NULL), DDP_ARG);
    assert_int_equal(ddp_sync_all(NULL), DDP_ARG);
    assert_int_equal(ddp_all_reduce(NULL, &x, 1, 1), DDP_ARG);
    assert_int_equal(ddp_barrier(NULL), DDP_ARG);
    assert_int_equal(ddp_group(NULL, NULL, 0, &group), DDP_ARG);
    assert_int_equal(ddp_checkpoint_save(NULL, "x", 0), DDP_ARG);
    assert_true(x == 1);
}

static void every_status_has_a_text_and_an_exit_code(void **state)
{
    int s;

    (void)state;
    for (s = 0; s < DDP_STATUS_COUNT; s++) {
        assert_true(strlen(ddp_status_text((ddp_status)s)) > 1);
        assert_true(ddp_status_exit_code((ddp_status)s) == 0 ? s == DDP_OK : s != DDP_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_trains_to_the_same_mean),
        cmocka_unit_test(messages_can_be_bf16_or_int8),
        cmocka_unit_test(run_resumes_bit_identical_from_its_checkpoint),
        cmocka_unit_test(context_reports_its_measurements_and_work),
        cmocka_unit_test(mistake_gives_a_one_line_error_that_is_kept),
        cmocka_unit_test(invalid_config_fails_with_a_one_line_error),
        cmocka_unit_test(null_context_fails),
        cmocka_unit_test(every_status_has_a_text_and_an_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
