/* [asan] Batch norm in training: running statistics in evaluation, and how they are averaged. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { B = 5, C = 3, SIDE = 6, CLASSES = 4, WIDE = 7 };

typedef struct vision {
    ddp_node *norm, *logits, *loss;
} vision;

static ddp_graph *build(ddp_ctx *d, vision *v)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_shape s = {4, {B, C, SIDE, SIDE}};
    ddp_node *x = ddp_input_shape(g, "inputs", DDP_F32, &s);
    ddp_node *labels = ddp_input(g, "labels", DDP_I32, B, 1);

    ddp_layer_begin(g, "body");
    x = v->norm = ddp_batch_norm2d(g, ddp_conv2d(g, x, WIDE, 3, 1, 1, 1, 0));
    x = ddp_max_pool2d(g, ddp_relu(g, x), 2, 2, 0);
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = v->logits = ddp_linear(g, ddp_flatten(g, x), CLASSES);
    v->loss = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_build(g), DDP_OK);
    return g;
}

static void fill(ddp_graph *g, uint64_t seed)
{
    ddp_rng r = ddp_rng_seed(seed, 3);
    float *x = (float *)ddp_data(g, "inputs");
    int32_t *y = (int32_t *)ddp_data(g, "labels");
    int i;

    for (i = 0; i < B * C * SIDE * SIDE; i++) x[i] = (float)(2 * ddp_rng_normal(&r) + 1);
    for (i = 0; i < B; i++) y[i] = (int32_t)ddp_rng_below(&r, CLASSES);
}

static void evaluation_normalises_with_running_statistics(void **unused)
{
    ddp_node *conv;
    const float *mean, *var, *in;
    float kept[2 * WIDE];
    vision v;
    ddp_graph *g = build(NULL, &v);
    ddp_state *s;
    long i;
    int step;

    (void)unused;
    mean = ddp_node_buffer(g, v.norm, 0, NULL);
    var = ddp_node_buffer(g, v.norm, 1, NULL);
    for (i = 0; i < WIDE; i++) assert_true(mean[i] == 0 && var[i] == 1);
    for (step = 0; step < 3; step++) {
        fill(g, (uint64_t)step);
        assert_int_equal(ddp_forward(g), DDP_OK);
        assert_int_equal(ddp_backward(g, v.loss), DDP_OK);
        if (step) continue;
        for (i = 0; i < WIDE; i++) assert_true(mean[i] != 0 && var[i] != 1);
    }
    memcpy(kept, mean, sizeof kept); /* both buffers, which are adjacent */
    fill(g, 9);
    assert_int_equal(ddp_evaluate(g), DDP_OK);
    assert_memory_equal(kept, mean, sizeof kept);

    s = ddp_state_new(g); /* a separate state keeps every array, so the input of the norm can be read */
    conv = g->node[v.norm->input[0]];
    memcpy(ddp_state_data(s, g->node[0]), ddp_data(g, "inputs"), B * C * SIDE * SIDE * 4);
    assert_int_equal(ddp_forward_range(s, 0, conv->index), DDP_OK);
    in = (const float *)ddp_state_data(s, conv);
    assert_int_equal(ddp_evaluate(g), DDP_OK);
    for (i = 0; i < B * WIDE * SIDE * SIDE; i++) {
        const int c = (int)(i / (SIDE * SIDE) % WIDE);
        const double want = ((double)in[i] - (double)mean[c]) / sqrt((double)var[c] + 1e-5);
        assert_true(fabs((double)ddp_output(g, v.norm)[i] - want) < 1e-5 * (1 + fabs(want)));
    }
    ddp_state_free(s);
    ddp_graph_free(g);
}

typedef struct meeting {
    ddp_config cfg;
    float before[2][2 * WIDE], after[2][2 * WIDE];
} meeting;

static int worker(ddp_ctx *d, void *user)
{
    meeting *m = (meeting *)user;
    const size_t bytes = sizeof m->before[0];
    const int rank = ddp_rank(d);
    ddp_optimizer sgd = ddp_sgd(0.1f, 0.9f);
    vision v;
    ddp_graph *g = build(d, &v);
    size_t count;
    int step, code = ddp_set_optimizer(d, &sgd);

    for (step = 0; !code && step < 4; step++) {
        fill(g, (uint64_t)(10 * step + rank)); /* different images per rank */
        code = ddp_forward(g) || ddp_backward(g, v.loss) || ddp_step_end(d);
    }
    memcpy(m->before[rank], ddp_layer_buffers(g, 0, &count), bytes);
    if (!code) code = ddp_sync_all(d);
    memcpy(m->after[rank], ddp_layer_buffers(g, 0, &count), bytes);
    return code || count != 2 * WIDE;
}

static void running_statistics_are_averaged_with_their_layer(void **unused)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP};
    size_t s;
    int i;

    (void)unused;
    for (s = 0; s < sizeof strategies / sizeof *strategies; s++) {
        meeting m;
        ddp_error err;
        memset(&m, 0, sizeof m);
        memset(&err, 0, sizeof err);
        m.cfg.world = 2;
        m.cfg.transport = DDP_THREADS;
        m.cfg.strategy = strategies[s];
        m.cfg.period = 2;
        m.cfg.deterministic = 1;
        m.cfg.no_env = 1;
        if (ddp_launch(&m.cfg, worker, &m, &err)) fail_msg("%s", err.msg);
        assert_memory_equal(m.after[0], m.after[1], sizeof m.after[0]);
        for (i = 0; i < 2 * WIDE; i++) {
            const float mean = (m.before[0][i] + m.before[1][i]) / 2;
            assert_true(fabsf(m.after[0][i] - mean) < 1e-6f * (1 + fabsf(mean)));
        }
        if (s < 2) /* gradient strategies do not average parameters during training */
            assert_memory_not_equal(m.before[0], m.before[1], sizeof m.before[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_normalises_with_running_statistics),
        cmocka_unit_test(running_statistics_are_averaged_with_their_layer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
