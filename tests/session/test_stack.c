/* [asan] ddp_add_stack, with the tensors of all layers in one array each as in llm.c, compared with
 * ddp_add_block in a loop. */
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

/* embed: 4 values; three layers h0 to h2 with a weight of 5 and a bias of 2 values; head: 3 values. */
enum { WORLD = 2, STEPS = 7, COPIES = 3, EMBED = 4, WEIGHT = 5, BIAS = 2, HEAD = 3, LAYERS = COPIES + 2 };
enum { ALL = EMBED + COPIES * (WEIGHT + BIAS) + HEAD };

typedef struct run {
    ddp_config cfg;
    int loop; /* calls ddp_add_block for each array instead of ddp_add_stack */
    float end[WORLD][ALL];
    float grads[WORLD][ALL]; /* gradients of the last step, after ddp_step_end */
} run;

static int add_tensor(ddp_ctx *d, int loop, float *w, float *g, size_t count)
{
    static const char *const name[COPIES] = {"h0", "h1", "h2"};
    int bad = 0;

    if (!loop) return ddp_add_stack(d, "h", w, g, COPIES, count);
    for (int i = 0; i < COPIES && !bad; i++)
        bad = ddp_add_block(d, name[i], w + (size_t)i * count, g + (size_t)i * count, count);
    return bad;
}

static int add_all(ddp_ctx *d, int loop, float *w, float *g)
{
    const int weights = EMBED, biases = weights + COPIES * WEIGHT, head = biases + COPIES * BIAS;
    int bad = ddp_add_block(d, "embed", w, g, EMBED);

    if (!bad) bad = add_tensor(d, loop, w + weights, g + weights, WEIGHT);
    if (!bad) bad = add_tensor(d, loop, w + biases, g + biases, BIAS);
    return bad ? bad : ddp_add_block(d, "head", w + head, g + head, HEAD);
}

static int check_layers(const ddp_ctx *d)
{
    static const char *const name[LAYERS] = {"embed", "h0", "h1", "h2", "head"};
    int good = d->layers == LAYERS;

    for (int l = 0; l < LAYERS; l++)
        good = good && ddp_layer_named(d, name[l]) == l && ddp__count(d->unit[l].block) == (l % 4 ? 2 : 1);
    return good;
}

static int train(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d);
    float *w = x->end[rank], *g = x->grads[rank];
    ddp_optimizer own = ddp_own_update();
    int bad;

    for (int i = 0; i < ALL; i++) w[i] = (float)(i % 7) - 3 + (float)rank;
    bad = add_all(d, x->loop, w, g);
    if (!bad && !check_layers(d)) return (int)DDP_FAILED;
    if (!bad) bad = ddp_set_optimizer(d, &own);
    for (int s = 0; s < STEPS && !bad; s++) {
        for (int i = 0; i < ALL; i++) g[i] = 0.1f * w[i] + (float)((i + 3 * s + 7 * rank) % 5);
        for (int l = LAYERS - 1; l >= 0 && !bad; l--) bad = ddp_backward_end(d, l);
        if (!bad) bad = ddp_step_end(d);
        for (int i = 0; i < ALL && !bad; i++) w[i] -= 0.05f * g[i];
    }
    return bad ? bad : ddp_sync_all(d);
}

static void configure(run *x, ddp_strategy s, int loop)
{
    memset(x, 0, sizeof *x);
    x->loop = loop;
    x->cfg.world = WORLD;
    x->cfg.strategy = s;
    x->cfg.period = 3;
    x->cfg.deterministic = x->cfg.no_env = 1;
    x->cfg.transport = DDP_THREADS;
}

static void stack_is_bit_identical_to_separate_blocks(void **state)
{
    static const ddp_strategy some[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP, DDP_DILOCO};
    static run stack, loop;
    ddp_error err;

    (void)state;
    for (size_t s = 0; s < sizeof some / sizeof some[0]; s++) {
        configure(&stack, some[s], 0);
        configure(&loop, some[s], 1);
        if (ddp_launch(&stack.cfg, train, &stack, &err) || ddp_launch(&loop.cfg, train, &loop, &err))
            fail_msg("%s", err.msg);
        assert_memory_equal(stack.end, loop.end, sizeof stack.end);
        assert_memory_equal(stack.grads, loop.grads, sizeof stack.grads);
        assert_memory_equal(stack.end[0], stack.end[1], sizeof stack.end[0]);
    }
}

static void stack_without_gradients_is_frozen(void **state)
{
    static ddp_config cfg;
    static float w[6];
    ddp_error err;
    ddp_ctx *d;

    (void)state;
    cfg.no_env = 1;
    d = ddp_open(&cfg, &err);
    assert_non_null(d);
    assert_int_equal(ddp_add_stack(d, "layer.", w, NULL, 2, 3), 0);
    assert_int_equal(ddp_layer_named(d, "layer.1"), 1);
    assert_int_equal(ddp_layer_named(d, "layer.2"), -1);
    assert_ptr_equal(d->unit[1].block[0].params, w + 3);
    assert_null(d->unit[1].block[0].grads);
    ddp_close(d);
}

static void invalid_stacks_fail_with_the_values(void **state)
{
    static float w[8], g[8];
    static char longest[202];
    static const struct {
        const char *name;
        float *params;
        int copies;
        size_t count;
        const char *says;
    } wrong[] = {
        {NULL, w, 2, 4, "tensor '' with 2 copies of 4 values"},
        {"", w, 2, 4, "tensor '' with 2 copies of 4 values"},
        {"h", NULL, 2, 4, "tensor 'h' with 2 copies of 4 values"},
        {"h", w, 0, 4, "tensor 'h' with 0 copies of 4 values"},
        {"h", w, -3, 4, "tensor 'h' with -3 copies of 4 values"},
        {"h", w, 2, 0, "tensor 'h' with 2 copies of 0 values"},
        {"h", w, 2, (size_t)-1 / 4, "tensor 'h' cannot have 2 copies of"},
        {longest, w, 2, 4, "has 201 characters; at most 200 are possible"},
    };
    ddp_error err;

    (void)state;
    memset(longest, 'x', sizeof longest - 1);
    for (size_t i = 0; i <= sizeof wrong / sizeof wrong[0]; i++) {
        const int late = i == sizeof wrong / sizeof wrong[0];
        ddp_config cfg = DDP__ZEROS;
        ddp_ctx *d;

        cfg.no_env = 1;
        d = ddp_open(&cfg, &err);
        assert_non_null(d);
        if (late) {
            ddp_optimizer own = ddp_own_update();
            assert_int_equal(ddp_add_stack(d, "h", w, g, 2, 4), 0);
            assert_int_equal(ddp_set_optimizer(d, &own), 0);
            assert_int_equal(ddp_add_stack(d, "h", w, g, 2, 4), DDP_USAGE);
            assert_non_null(strstr(ddp_last_error(d)->msg, "layer 2 (h0) is too late"));
        } else {
            assert_int_equal(
                ddp_add_stack(d, wrong[i].name, wrong[i].params, g, wrong[i].copies, wrong[i].count),
                DDP_ARG);
            if (!strstr(ddp_last_error(d)->msg, wrong[i].says))
                fail_msg("%zu: '%s'", i, ddp_last_error(d)->msg);
            assert_int_equal(d->layers, 0);
        }
        ddp_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stack_is_bit_identical_to_separate_blocks),
        cmocka_unit_test(stack_without_gradients_is_frozen),
        cmocka_unit_test(invalid_stacks_fail_with_the_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
