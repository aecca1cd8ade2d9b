/* ddp_due, ddp_backward_rest and blocks of DDP_OWN_PARAMS: a program that passes only the layers that are due
 * during its backward pass, and keeps its gradients, trains bit-identically to one that passes all layers. */
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

enum { RANKS = 3, LAYERS = 4, EACH = 70, VALUES = LAYERS * EACH, PERIOD = 3, STEPS = 11 };

typedef struct run {
    ddp_config cfg;
    int rest;                           /* pass only the layers that are due during the backward pass */
    int skips;                          /* rank 1 has no gradient of layer 2 in every other step */
    int due[STEPS][LAYERS], all[STEPS]; /* of rank 0: what ddp_due lists before each step */
    int left_out[STEPS];                /* of rank 1: ddp_left_out of layer 2 */
    float end[RANKS][VALUES];
} run;

static void begin(run *x, ddp_strategy s)
{
    memset(x, 0, sizeof *x);
    x->cfg.world = RANKS;
    x->cfg.transport = DDP_THREADS;
    x->cfg.strategy = s;
    x->cfg.period = PERIOD;
    x->cfg.no_env = x->cfg.deterministic = 1;
    x->cfg.timeout.peer_s = 60;
}

static float gradient_of(float w, int i, int step, int rank)
{
    return 0.2f * w + 0.1f * (float)((3 * i + 5 * step + 7 * rank) % 11 - 5);
}

static int add_layers(ddp_ctx *d, const run *x, float *w, float *g)
{
    int bad = 0;

    for (int l = 0; l < LAYERS && !bad; l++) {
        const ddp_block own = {w + l * EACH, x->rest ? NULL : g + l * EACH, EACH,
                               x->rest ? DDP_OWN_PARAMS : DDP_PARAMS};
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.blocks = &own;
        layer.block_count = 1;
        bad = ddp_add_layer(d, &layer);
    }
    return bad;
}

static int step_of(ddp_ctx *d, run *x, int step)
{
    const int rank = ddp_rank(d), none = x->skips && rank == 1 && step % 2;
    unsigned char due[LAYERS], skips[LAYERS] = {0, 0, 0, 0};
    const int n = ddp_due(d, due);

    for (int l = 0; rank == 0 && l < LAYERS; l++) x->due[step][l] = due[l];
    if (rank == 0) x->all[step] = n;
    skips[2] = (unsigned char)none;
    for (int l = LAYERS - 1; l >= 0; l--) {
        if (x->rest && !due[l]) continue;
        if (skips[l] ? ddp_skip(d, l) : ddp_backward_end(d, l)) return DDP_FAILED;
    }
    if (x->rest && ddp_backward_rest(d, skips)) return DDP_FAILED;
    return ddp_step_end(d);
}

static int train(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d);
    float *w = x->end[rank], g[VALUES];
    ddp_optimizer o = ddp_own_update();

    for (int i = 0; i < VALUES; i++) w[i] = 0.01f * (float)(i % 17);
    if (add_layers(d, x, w, g) || ddp_set_optimizer(d, &o)) return DDP_FAILED;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < VALUES; i++) g[i] = gradient_of(w[i], i, step, rank);
        if (step_of(d, x, step)) return DDP_FAILED;
        if (rank == 1) x->left_out[step] = ddp_left_out(d, 2);
        for (int i = 0; i < VALUES; i++)
            if (!ddp_left_out(d, i / EACH)) w[i] -= 0.05f * g[i];
    }
    return ddp_sync_all(d);
}

static void ran(run *x)
{
    ddp_error err;

    if (ddp_launch(&x->cfg, train, x, &err)) fail_msg("%s", err.msg);
}

static void layers_passed_together_train_bit_identically(void **state)
{
    static const struct {
        ddp_strategy strategy;
        ddp_overlap overlap;
        int fragments;
    } with[] = {{DDP_LOCALSGD, DDP_OVERLAP_DEFAULT, 0}, {DDP_ENP, DDP_OVERLAP_DEFAULT, 0},
                {DDP_DREAMDDP, DDP_OVERLAP_DEFAULT, 0}, {DDP_DILOCO, DDP_OVERLAP_DEFAULT, 0},
                {DDP_DILOCO, DDP_OVERLAP_STREAM, 3},    {DDP_DILOCO, DDP_OVERLAP_EAGER, 0}};

    (void)state;
    for (int i = 0; i < (int)(sizeof with / sizeof *with); i++)
        for (int skips = 0; skips < 2; skips++) {
            run *x = (run *)malloc(2 * sizeof *x);
            assert_non_null(x);
            for (int rest = 0; rest < 2; rest++) {
                begin(&x[rest], with[i].strategy);
                x[rest].cfg.outer.overlap = with[i].overlap;
                x[rest].cfg.outer.fragments = with[i].fragments;
                x[rest].rest = rest;
                x[rest].skips = skips;
                ran(&x[rest]);
            }
            assert_memory_equal(x[0].end, x[1].end, sizeof x[0].end);
            assert_memory_equal(x[0].left_out, x[1].left_out, sizeof x[0].left_out);
            assert_int_equal(x[1].left_out[1], skips);
            free(x);
        }
}

static void due_lists_the_layers_that_are_sent_during_the_backward_pass(void **state)
{
    run x;

    (void)state;
    begin(&x, DDP_LOCALSGD);
    ran(&x);
    for (int step = 0; step < STEPS; step++) assert_int_equal(x.all[step], 0);
    begin(&x, DDP_WFBP);
    ran(&x);
    for (int step = 0; step < STEPS; step++) assert_int_equal(x.all[step], LAYERS);
    begin(&x, DDP_DREAMDDP);
    ran(&x);
    for (int l = 0; l < LAYERS; l++) assert_int_equal(x.due[3][l] + x.due[4][l] + x.due[5][l], 1);
}

static void due_lists_all_layers_while_their_times_are_measured(void **state)
{
    run x;

    (void)state;
    begin(&x, DDP_LOCALSGD);
    x.cfg.deterministic = 0;
    x.cfg.profile_steps = 4;
    ran(&x);
    for (int step = 0; step < STEPS; step++) assert_int_equal(x.all[step], step < 4 ? LAYERS : 0);
}

static int count_rest(ddp_ctx *d, void *user)
{
    float w[VALUES] = {0}, g[VALUES] = {0};
    ddp_optimizer o = ddp_own_update();
    run x;

    (void)user;
    memset(&x, 0, sizeof x);
    assert_int_equal(ddp_due(d, NULL), 0); /* it has no layer */
    assert_int_equal(add_layers(d, &x, w, g), 0);
    assert_int_equal(ddp_due(d, NULL), LAYERS);
    assert_int_equal(ddp_set_optimizer(d, &o), 0);
    /* two micro-batches: layer 2 in its turn, then the rest; then all layers */
    assert_int_equal(ddp_backward_end(d, 2), 0);
    assert_int_equal(ddp_backward_rest(d, NULL), 0);
    assert_int_equal(ddp_backward_rest(d, NULL), 0);
    assert_int_equal(ddp_step_end(d), 0);
    assert_int_equal(ddp_backward_rest(d, NULL), 0);
    assert_int_equal(ddp_step_end(d), DDP_USAGE);
    assert_non_null(strstr(ddp_last_error(d)->msg, "had 1 of 2 ddp_backward_end calls"));
    return 0;
}

static void rest_passes_each_layer_once_per_micro_batch(void **state)
{
    ddp_config cfg;
    ddp_error err;
    ddp_ctx *d;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.strategy = DDP_LOCALSGD;
    cfg.no_env = 1;
    cfg.micro_batches = 2;
    d = ddp_open(&cfg, &err);
    assert_non_null(d);
    (void)count_rest(d, NULL);
    ddp_close(d);
    assert_int_equal(ddp_due(NULL, NULL), 0);
    assert_int_equal(ddp_backward_rest(NULL, NULL), DDP_ARG);
}

/* Starts a session with a block of DDP_OWN_PARAMS, and expects this error. */
static void fails(ddp_strategy s, float clip, ddp_optimizer o, float *grads, ddp_status code,
                  const char *words)
{
    float w[EACH] = {0};
    const ddp_block own = {w, grads, EACH, DDP_OWN_PARAMS};
    ddp_config cfg;
    ddp_layer layer;
    ddp_error err;
    ddp_ctx *d;

    memset(&cfg, 0, sizeof cfg);
    cfg.strategy = s;
    cfg.clip_norm = clip;
    cfg.no_env = 1;
    d = ddp_open(&cfg, &err);
    assert_non_null(d);
    memset(&layer, 0, sizeof layer);
    layer.name = "own";
    layer.blocks = &own;
    layer.block_count = 1;
    if (!ddp_add_layer(d, &layer)) assert_int_equal(ddp_set_optimizer(d, &o), code);
    assert_int_equal(ddp_last_error(d)->code, code);
    if (!strstr(ddp_last_error(d)->msg, words)) fail_msg("%s", ddp_last_error(d)->msg);
    ddp_close(d);
}

static void own_params_fail_where_gradients_are_read(void **state)
{
    float g[EACH] = {0};

    (void)state;
    fails(DDP_WFBP, 0, ddp_own_update(), NULL, DDP_UNSUPPORTED, "but the strategy averages them");
    fails(DDP_LOCALSGD, 1, ddp_own_update(), NULL, DDP_UNSUPPORTED, "but clip_norm clips them");
    fails(DDP_LOCALSGD, 0, ddp_sgd(0.1f, 0), NULL, DDP_UNSUPPORTED, "but the optimizer updates with them");
    fails(DDP_LOCALSGD, 0, ddp_own_update(), g, DDP_ARG, "leave grads NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_passed_together_train_bit_identically),
        cmocka_unit_test(due_lists_the_layers_that_are_sent_during_the_backward_pass),
        cmocka_unit_test(due_lists_all_layers_while_their_times_are_measured),
        cmocka_unit_test(rest_passes_each_layer_once_per_micro_batch),
        cmocka_unit_test(own_params_fail_where_gradients_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
