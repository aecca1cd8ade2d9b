/* A gradient with a NaN on one rank: an error that names rank, layer and step, before it reaches the other
 * ranks. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "nn/exact.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { LAYERS = 2, VALUES = 300, BAD_STEP = 3, BAD_RANK = 1, BAD_LAYER = 1, STEPS = 6 };

/* Shared by the ranks of a run, which are threads. */
typedef struct board {
    float bad; /* replaces one value of a gradient */
    int own;   /* the program applies the update itself */
    long counted[2], steps[2];
    float last[2]; /* a parameter of the layer at the end of the run */
    int lines;
    pthread_mutex_t lock;
} board;

static int skips_first; /* each step has two micro-batches, and every layer is skipped in the first */

static void count_line(void *user, ddp_log_level level, const char *line)
{
    board *b = (board *)user;

    if (level != DDP_LOG_WARN || !strstr(line, "the gradient of layer b is")) return;
    pthread_mutex_lock(&b->lock);
    b->lines++;
    pthread_mutex_unlock(&b->lock);
}

static int train(ddp_ctx *d, void *user)
{
    board *b = (board *)user;
    const int rank = ddp_rank(d);
    float w[LAYERS][VALUES] = {{0}}, g[LAYERS][VALUES];
    const char *const name[LAYERS] = {"a", "b"};
    ddp_optimizer o = b->own ? ddp_own_update() : ddp_sgd(0.1f, 0);
    ddp_stats stats;
    int code = 0;

    for (int l = 0; l < LAYERS; l++) ddp_add_block(d, name[l], w[l], g[l], VALUES);
    code = ddp_set_optimizer(d, &o);
    while (!code && ddp_step(d) < STEPS) {
        for (int l = 0; l < LAYERS && !code; l++) code = ddp_forward_begin(d, l);
        for (int l = LAYERS - 1; l >= 0 && !code; l--) {
            if (skips_first) code = ddp_skip(d, l);
            for (int i = 0; i < VALUES; i++) g[l][i] = 0.5f;
            if (rank == BAD_RANK && l == BAD_LAYER && ddp_step(d) == BAD_STEP) g[l][VALUES - 2] = b->bad;
            if (!code) code = ddp_backward_end(d, l);
        }
        if (!code) code = ddp_step_end(d);
    }
    if (!code) code = ddp_sync_all(d);
    ddp_get_stats(d, &stats);
    b->counted[rank] = stats.not_finite;
    b->steps[rank] = ddp_step(d);
    b->last[rank] = b->own ? g[BAD_LAYER][VALUES - 2] : w[BAD_LAYER][VALUES - 2];
    return code;
}

static int run(board *b, ddp_strategy strategy, ddp_wire wire, int no_check, ddp_error *err)
{
    ddp_config cfg;

    memset(&cfg, 0, sizeof cfg);
    memset(err, 0, sizeof *err);
    cfg.strategy = strategy;
    cfg.wire = wire;
    cfg.transport = DDP_THREADS;
    cfg.world = 2;
    cfg.server.count =
        (ddp_strategy_traits(strategy) & (unsigned)DDP_NEEDS_SERVERS) ? (int)DDP_SERVERS_COLOCATED : 0;
    cfg.period = strategy == DDP_LOCALSGD || strategy == DDP_DILOCO ? 2 : 0;
    cfg.no_env = 1;
    cfg.debug.no_finite_check = no_check;
    cfg.micro_batches = skips_first ? 2 : 1;
    cfg.logger.fn = count_line;
    cfg.logger.user = b;
    b->lines = 0;
    pthread_mutex_init(&b->lock, NULL);
    return ddp_launch(&cfg, train, b, err);
}

static void nan_on_one_rank_fails_with_rank_layer_and_step(void **state)
{
    static const ddp_strategy strategy[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DEFT,
                                            DDP_BSP,  DDP_OSP,  DDP_DILOCO};
    const float bad[] = {NAN, -INFINITY};

    (void)state;
    for (size_t i = 0; i < sizeof strategy / sizeof *strategy; i++)
        for (int wire = (int)DDP_WIRE_F32; wire <= (int)DDP_WIRE_BF16; wire++) {
            board b = {bad[i % 2], 0, {0, 0}, {0, 0}, {0, 0}, 0, PTHREAD_MUTEX_INITIALIZER};
            ddp_error err;
            const int code = run(&b, strategy[i], (ddp_wire)wire, 0, &err);
            if (code == (int)DDP_UNSUPPORTED && wire == (int)DDP_WIRE_BF16) continue;
            if (code != (int)DDP_NUMERIC || !strstr(err.msg, "step 3") || !strstr(err.msg, "layer b") ||
                !strstr(err.msg, "rank 1") || !strstr(err.msg, "value 298 of 300"))
                fail_msg("%s over %s: %d, %s", ddp_strategy_name(strategy[i]), ddp_wire_name((ddp_wire)wire),
                         code, err.msg);
        }
}

/* A PyTorch GradScaler needs these values, to skip the step. */
static void user_update_receives_nan_with_one_log_line_and_a_count(void **state)
{
    board b = {NAN, 1, {0, 0}, {0, 0}, {0, 0}, 0, PTHREAD_MUTEX_INITIALIZER};
    ddp_error err;

    (void)state;
    if (run(&b, DDP_WFBP, DDP_WIRE_F32, 0, &err)) fail_msg("%s", err.msg);
    assert_int_equal(b.steps[0], STEPS);
    assert_int_equal(b.counted[0], 0);
    assert_int_equal(b.counted[BAD_RANK], 1);
    assert_int_equal(b.lines, 1);
}

static void no_finite_check_disables_the_error(void **state)
{
    board b = {NAN, 0, {0, 0}, {0, 0}, {0, 0}, 0, PTHREAD_MUTEX_INITIALIZER};
    ddp_error err;

    (void)state;
    if (run(&b, DDP_WFBP, DDP_WIRE_F32, 1, &err)) fail_msg("%s", err.msg);
    assert_true(isnan(b.last[0]) && isnan(b.last[1]));
    assert_int_equal(b.counted[BAD_RANK], 0);
}

static void nan_is_found_in_a_layer_skipped_in_another_micro_batch(void **state)
{
    board b = {NAN, 0, {0, 0}, {0, 0}, {0, 0}, 0, PTHREAD_MUTEX_INITIALIZER};
    ddp_error err;
    int code;

    (void)state;
    skips_first = 1;
    code = run(&b, DDP_WFBP, DDP_WIRE_F32, 0, &err);
    skips_first = 0;
    assert_int_equal(code, DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "the gradient of layer b is nan on rank 1"));
}

static void first_non_finite_value_is_found_at_any_index(void **state)
{
    static float x[3000];
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t n = 0; n < 3000; n += n < 40 ? 1 : 487) {
        for (size_t i = 0; i < n; i++) x[i] = i % 3 ? 3.4e38f : i % 2 ? -1e-45f : 0;
        assert_int_equal(ddp__first_not_finite(x, n), n);
        for (size_t at = 0; at < n; at += n < 40 ? 1 : 61) {
            const float was = x[at];
            x[at] = bad[at % 4];
            assert_int_equal(ddp__first_not_finite(x, n), at);
            x[at] = was;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_on_one_rank_fails_with_rank_layer_and_step),
        cmocka_unit_test(user_update_receives_nan_with_one_log_line_and_a_count),
        cmocka_unit_test(no_finite_check_disables_the_error),
        cmocka_unit_test(nan_is_found_in_a_layer_skipped_in_another_micro_batch),
        cmocka_unit_test(first_non_finite_value_is_found_at_any_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
