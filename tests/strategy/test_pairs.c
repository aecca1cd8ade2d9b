/* [asan] The strategy of examples/own_strategy.c: pair averaging, compared with replicas in one thread. */
#define main example
#include "../examples/own_strategy.c"
#undef main

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

static void pairs_new(lab *x, int world, int model)
{
    static ddp_strategy_ops ops;

    memset(&ops, 0, sizeof ops);
    pair_averaging(&ops);
    lab_new(x, world, DDP_STRATEGY_DEFAULT, world == 3 ? 1 : 3);
    x->cfg.own_strategy = &ops;
    x->cfg.seed = (uint64_t)world;
    x->model = (lab_model)model;
    x->rule = (lab_rule)((world + model) % LAB_RULES);
    x->no_sync_all = 1;
}

/* The pairs of a step, found by looking at all pairs: first ranks whose sum is the lot, or the lot plus the
 * world size; then the remaining ranks. */
static void draw(uint64_t seed, long step, int world, int *order)
{
    ddp_rng r = ddp_rng_seed(seed, (uint64_t)step);
    const int lot = (int)ddp_rng_below(&r, (uint64_t)world);
    int met[LAB_RANKS] = {0}, n = 0, a, b;

    for (a = 0; a < world; a++)
        for (b = a + 1; b < world; b++)
            if (a + b == lot || a + b == lot + world) {
                met[a] = met[b] = 1;
                order[n++] = a;
                order[n++] = b;
            }
    for (a = 0; a < world; a++)
        if (!met[a]) order[n++] = a;
    assert_int_equal(n, world);
}

static void meet(float *a, float *b, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) a[i] = b[i] = (a[i] + b[i]) * 0.5f;
}

/* The same training without the library. sync: averages all replicas at the end. */
static void reference(const lab *x, uint64_t seed, int sync, float (*out)[LAB_VALUES])
{
    size_t count[LAB_LAYERS], i, at;
    lab_replica r[LAB_RANKS];
    int L = lab_sizes(x->model, count), K = x->cfg.world, H = x->cfg.period, order[LAB_RANKS], l, k, step;
    ddp_optimizer o = lab_optimizer(x->rule);

    for (k = 0; k < K; k++)
        for (l = 0; l < L; l++) {
            r[k].w[l] = (float *)calloc(count[l], sizeof(float));
            r[k].g[l] = (float *)calloc(count[l], sizeof(float));
            r[k].s[l] = (float *)calloc(2 * count[l], sizeof(float));
            for (i = 0; i < count[l]; i++) r[k].w[l][i] = lab_start(0, l, i);
        }
    for (step = 0; step < x->steps; step++) {
        for (k = 0; k < K; k++)
            for (l = 0; l < L; l++) {
                lab_gradient(r[k].w[l], r[k].g[l], count[l], k, l, step * 10);
                lab_update(&o, &r[k], l, count[l], step);
            }
        draw(seed, step, K, order);
        for (k = 0; (step + 1) % H == 0 && k + 1 < K; k += 2)
            for (l = 0; l < L; l++) {
                const size_t state = x->cfg.average.state ? (size_t)o.state_per_param * count[l] : 0;
                meet(r[order[k]].w[l], r[order[k + 1]].w[l], count[l]);
                meet(r[order[k]].s[l], r[order[k + 1]].s[l], state);
            }
    }
    for (l = 0; sync && l < L; l++) lab_average(r, K, l, count[l], 0);
    for (k = 0; k < K; k++)
        for (l = 0, at = 0; l < L; l++) {
            memcpy(out[k] + at, r[k].w[l], count[l] * sizeof(float));
            at += count[l];
            free(r[k].w[l]);
            free(r[k].g[l]);
            free(r[k].s[l]);
        }
}

/* 1 if the parameters of all ranks are bit-identical to `expected`. */
static int same(const lab *x, float (*expected)[LAB_VALUES])
{
    int k, equal = 1;

    for (k = 0; k < x->cfg.world; k++)
        equal &= !memcmp(x->params[k], expected[k], *x->values * sizeof **expected);
    return equal;
}

static void a_pair_has_the_mean_of_both_ranks(void **state)
{
    static float expected[LAB_RANKS][LAB_VALUES], other[LAB_RANKS][LAB_VALUES];
    int world, model, hooks;

    (void)state;
    for (world = 1; world <= LAB_RANKS; world += SAMPLED(2))
        for (model = 0; model < 2; model++)
            for (hooks = 0; hooks < 2; hooks++) {
                lab x;
                pairs_new(&x, world, model ? LAB_ODD : LAB_TINY);
                x.forward_hooks = hooks;
                x.cfg.average.state = hooks; /* two arrays per layer */
                lab_run(&x);
                reference(&x, x.cfg.seed, 0, expected);
                assert_true(*x.values > 0 && same(&x, expected));
                /* another seed draws other pairs and gives other parameters */
                reference(&x, x.cfg.seed + 1, 0, other);
                assert_true(same(&x, other) == (world < 3));
                lab_free(&x);
            }
}

static void ranks_are_equal_after_sync_all(void **state)
{
    static float expected[LAB_RANKS][LAB_VALUES];
    int world, model, k;

    (void)state;
    for (world = 2; world <= LAB_RANKS; world += SAMPLED(2))
        for (model = 0; model < LAB_MODELS; model++) {
            lab x;
            pairs_new(&x, world, model);
            x.no_sync_all = 0;
            lab_run(&x);
            assert_true(*x.values > 0);
            for (k = 1; k < world; k++)
                assert_memory_equal(x.params[0], x.params[k], *x.values * sizeof **x.params);
            if (model == LAB_TINY || model == LAB_ODD) {
                reference(&x, x.cfg.seed, 1, expected);
                assert_true(same(&x, expected));
            }
            lab_free(&x);
        }
}

static void threads_and_processes_are_bit_identical(void **state)
{
    int world, model;

    (void)state;
    for (world = 2; world <= LAB_RANKS; world += SAMPLED(2))
        for (model = 0; model < LAB_MODELS; model++) {
            lab a, b;
            pairs_new(&a, world, model);
            pairs_new(&b, world, model);
            b.cfg.transport = DDP_TCP;
            /* a rank that waits longer has the same result */
            b.cfg.net = model == LAB_ODD ? "100mbit,2ms" : NULL;
            lab_run(&a);
            lab_run(&b);
            assert_true(*a.values > 0 && same(&a, b.params));
            lab_free(&a);
            lab_free(&b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_has_the_mean_of_both_ranks),
        cmocka_unit_test(ranks_are_equal_after_sync_all),
        cmocka_unit_test(threads_and_processes_are_bit_identical),
    };

    (void)example; /* run by tests/programs */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
