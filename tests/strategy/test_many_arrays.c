/* [asan] Models with more arrays than one message can carry: many layers, or one layer of many blocks. Every
 * strategy trains them, and the gradient strategies are bit-identical to the same values in one array. */
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

enum { ARRAYS = 2100, WORLD = 2, STEPS = 2 };

typedef enum model { ONE_ARRAY, MANY_LAYERS, MANY_BLOCKS } model;

typedef struct run {
    ddp_config cfg;
    model model;
    float end[WORLD + 1][2 * ARRAYS]; /* the last one: of a server */
} run;

/* Every other float is a parameter, because contiguous arrays would be merged into one. */
static int add_all(ddp_ctx *d, model m, float *w, float *g)
{
    static const char *const name[] = {"odd", "even"};
    int bad = 0;

    if (m == ONE_ARRAY) return ddp_add_block(d, "all", w, g, 2 * ARRAYS);
    for (int i = 0; i < ARRAYS && !bad; i++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + 2 * i;
        layer.grads = g + 2 * i;
        layer.count = 1;
        bad = m == MANY_LAYERS ? ddp_add_layer(d, &layer)
                               : ddp_add_block(d, name[i == 0], layer.params, layer.grads, layer.count);
    }
    return bad;
}

static int train(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d);
    float *w = x->end[rank], *g = (float *)calloc(2 * ARRAYS, sizeof *g);
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    int bad;

    for (int i = 0; i < ARRAYS; i++) w[2 * i] = (float)(i % 11) - 5;
    bad = !g || add_all(d, x->model, w, g) || ddp_set_optimizer(d, &o);
    if (!bad && rank == WORLD) bad = ddp_serve(d);
    for (int s = 0; s < STEPS && rank < WORLD && !bad; s++) {
        for (int l = 0; l < d->layers && !bad; l++) bad = ddp_forward_begin(d, l);
        for (int i = 0; i < ARRAYS; i++) g[2 * i] = 0.1f * w[2 * i] + (float)((i + 3 * s + 7 * rank) % 5);
        for (int l = d->layers - 1; l >= 0 && !bad; l--) bad = ddp_backward_end(d, l);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad && rank < WORLD) bad = ddp_sync_all(d);
    free(g);
    return bad;
}

static void trained(run *x, ddp_strategy s, model m, int state)
{
    ddp_error err;

    memset(x, 0, sizeof *x);
    x->model = m;
    x->cfg.world = WORLD;
    x->cfg.strategy = s;
    x->cfg.period = 2;
    x->cfg.deterministic = x->cfg.no_env = 1;
    x->cfg.average.state = state;
    x->cfg.transport = DDP_THREADS;
    x->cfg.server.count = (ddp_strategy_traits(s) & DDP_NEEDS_SERVERS) != 0;
    x->cfg.world += x->cfg.server.count;
    if (ddp_launch(&x->cfg, train, x, &err))
        fail_msg("%s, model %d: %s", ddp_strategy_name(s), (int)m, err.msg);
    if (memcmp(x->end[0], x->end[1], sizeof x->end[0]))
        fail_msg("%s, model %d: ranks differ", ddp_strategy_name(s), (int)m);
}

static void gradients_of_many_arrays_are_bit_identical_to_one_array(void **state)
{
    static const ddp_strategy same[] = {DDP_SSGD, DDP_WFBP, DDP_MGWFBP, DDP_USBYTE, DDP_BSP};
    static run one, many;

    (void)state;
    trained(&one, DDP_SSGD, ONE_ARRAY, 0);
    for (int i = 0; i < (int)(sizeof same / sizeof *same); i++)
        for (int m = MANY_LAYERS; m <= MANY_BLOCKS; m++) {
            trained(&many, same[i], (model)m, 0);
            assert_memory_equal(many.end[0], one.end[0], sizeof one.end[0]);
        }
}

static void averages_of_many_arrays_are_bit_identical_to_one_array(void **state)
{
    static const ddp_strategy some[] = {DDP_LOCALSGD, DDP_DILOCO, DDP_OSP};
    static run one, many;

    (void)state;
    for (int i = 0; i < (int)(sizeof some / sizeof *some); i++) {
        trained(&one, some[i], ONE_ARRAY, some[i] == DDP_LOCALSGD);
        for (int m = MANY_LAYERS; m <= MANY_BLOCKS; m++) {
            trained(&many, some[i], (model)m, some[i] == DDP_LOCALSGD);
            if (i < 2) assert_memory_equal(many.end[0], one.end[0], sizeof one.end[0]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_many_arrays_are_bit_identical_to_one_array),
        cmocka_unit_test(averages_of_many_arrays_are_bit_identical_to_one_array),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
