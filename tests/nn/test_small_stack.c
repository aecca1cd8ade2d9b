/* Trains in threads with a stack of 128 KiB, as musl gives to a thread. */
#include "dreamddp.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* The stack frames of a sanitizer are several times as large. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK = 2 << 20 };
#else
enum { STACK = 128 << 10 };
#endif

enum { RANKS = 2, STEPS = 4, BATCH = 2, SIDE = 20, TOKENS = 70, VOCABULARY = 40 };

typedef ddp_node *(*model_fn)(ddp_graph *g);

typedef struct rank_job {
    ddp_config cfg;
    model_fn model;
    ddp_optimizer optimizer;
    ddp_error err; /* DDP_OK: training succeeded */
} rank_job;

static ddp_node *tokens_model(ddp_graph *g)
{
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = VOCABULARY;
    c.context = TOKENS;
    c.layers = 1;
    c.heads = 2;
    c.dim = 32;
    c.batch = BATCH;
    c.dropout = 0.1f;
    return ddp_gpt2(g, &c, NULL);
}

/* Convolution and pooling windows over all planes and over single planes, and matrix products at the edges
 * of tiles. */
static ddp_node *images_model(ddp_graph *g)
{
    const ddp_shape s = {4, {BATCH, 3, SIDE, SIDE}};
    ddp_node *x = ddp_input_shape(g, "inputs", DDP_F32, &s), *y = ddp_input(g, "labels", DDP_I32, BATCH, 1);

    ddp_layer_begin(g, "body");
    x = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 6, 3, 2, 1, 1, 1)));
    x = ddp_conv2d(g, x, 6, 3, 1, 1, 6, 0);
    x = ddp_max_pool2d(g, x, 2, 2, 0);
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, ddp_flatten(g, x), VOCABULARY), y);
    ddp_layer_end(g);
    return x;
}

static void fill(ddp_graph *g, int step)
{
    float *x = (float *)ddp_data(g, "inputs");
    int32_t *tokens = (int32_t *)ddp_data(g, "tokens"), *y = (int32_t *)ddp_data(g, "labels");

    for (int i = 0; x && i < BATCH * 3 * SIDE * SIDE; i++) x[i] = (float)((i + step) % 7) - 3;
    for (int i = 0; tokens && i < BATCH * TOKENS; i++) tokens[i] = (i + step) % VOCABULARY;
    for (int i = 0; i < BATCH * (tokens ? TOKENS : 1); i++) y[i] = (i + step + 1) % VOCABULARY;
}

static int train(ddp_ctx *d, const rank_job *job)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = job->model(g);

    if (ddp_graph_build(g) || ddp_set_optimizer(d, &job->optimizer)) return 1;
    for (int step = 0; step < STEPS; step++) {
        fill(g, step);
        if (ddp_forward(g) || ddp_backward(g, loss) || ddp_step_end(d)) return 1;
    }
    return ddp_evaluate(g) || ddp_sync_all(d);
}

static void *rank_main(void *arg)
{
    rank_job *job = (rank_job *)arg;
    ddp_ctx *d = ddp_open(&job->cfg, &job->err);

    if (d && train(d, job)) job->err = *ddp_last_error(d);
    ddp_close(d);
    return NULL;
}

static void run(model_fn model, ddp_strategy strategy, ddp_optimizer optimizer)
{
    char folder[] = "/tmp/ddp_stack_XXXXXX", addr[64];
    rank_job job[RANKS];
    pthread_t thread[RANKS];
    pthread_attr_t attr;

    assert_non_null(mkdtemp(folder));
    snprintf(addr, sizeof addr, "file://%s/place", folder);
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK), 0);
    memset(job, 0, sizeof job);
    for (int r = 0; r < RANKS; r++) {
        job[r].cfg.strategy = strategy;
        job[r].cfg.period = strategy == DDP_DREAMDDP ? 2 : 0;
        job[r].cfg.transport = DDP_TCP;
        job[r].cfg.rank = r;
        job[r].cfg.world = RANKS;
        job[r].cfg.addr = addr;
        job[r].cfg.clip_norm = 1;
        job[r].cfg.profile_steps = 2;
        job[r].cfg.no_env = 1;
        job[r].model = model;
        job[r].optimizer = optimizer;
        assert_int_equal(pthread_create(&thread[r], &attr, rank_main, &job[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    pthread_attr_destroy(&attr);
    (void)unlink(addr + strlen("file://"));
    (void)rmdir(folder);
    for (int r = 0; r < RANKS; r++)
        if (job[r].err.code) fail_msg("rank %d: %s", r, job[r].err.msg);
}

static void language_model_trains_on_a_stack_of_128_kib(void **state)
{
    (void)state;
    run(tokens_model, DDP_DREAMDDP, ddp_muon(1e-3f, 1e-2f, 0.95f, 0.1f));
}

static void image_model_trains_on_a_stack_of_128_kib(void **state)
{
    (void)state;
    run(images_model, DDP_WFBP, ddp_sgd(0.01f, 0.9f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(language_model_trains_on_a_stack_of_128_kib),
        cmocka_unit_test(image_model_trains_on_a_stack_of_128_kib),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
