/* [calm] The outer family, bit for bit: against local SGD, plain SGD and a replay of the rule in one thread. */
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
#include "strategy/strategy_lab.h"

static lab outer_lab(int world, lab_model model, lab_rule rule, double nu, double mu)
{
    lab x;

    lab_new(&x, world, DDP_DILOCO, 3);
    x.model = model;
    x.rule = rule;
    x.cfg.outer_lr = nu;
    x.cfg.outer_momentum = mu > 0 ? mu : DDP_NO_MOMENTUM;
    return x;
}

static void same(const lab *a, const lab *b, const char *what)
{
    for (int r = 0; r < a->cfg.world; r++)
        if (memcmp(a->params[r], b->params[r], *a->values * sizeof(float)))
            fail_msg("%s, %d workers, model %d, rule %d, rank %d of %s", what, a->cfg.world, (int)a->model,
                     (int)a->rule, r, ddp_strategy_name(a->cfg.strategy));
}

static void ranks_are_equal(const lab *x)
{
    for (int r = 1; r < x->cfg.world; r++)
        assert_memory_equal(x->params[r], x->params[0], *x->values * sizeof(float));
}

/* ---- the rule, again ---- */

/* The outer state of all layers, one after the other. */
typedef struct replay {
    float theta[LAB_RANKS][LAB_VALUES]; /* parameters of each worker */
    float anchor[LAB_VALUES], m[LAB_VALUES];
} replay;

static float times(float a, float b)
{
    volatile float product = a * b;

    return product;
}

static void replay_outer(replay *y, int world, size_t n, float nu, float mu)
{
    const float part = 1.0f / (float)world;

    for (size_t i = 0; i < n; i++) {
        float d = y->anchor[i] - y->theta[0][i];
        for (int r = 1; r < world; r++) d += y->anchor[i] - y->theta[r][i];
        if (world > 1) d = times(d, part);
        if (mu > 0) {
            y->m[i] = times(mu, y->m[i]) + d;
            d += times(mu, y->m[i]);
        }
        y->anchor[i] -= times(nu, d);
        for (int r = 0; r < world; r++) y->theta[r][i] = y->anchor[i];
    }
}

/* Local steps of all workers, and an outer step after each period. */
static void replay_run(const lab *x, replay *y)
{
    static float g[LAB_RANKS][LAB_VALUES], s[LAB_RANKS][2 * LAB_VALUES];
    size_t count[LAB_LAYERS], at, n = 0;
    const int L = lab_sizes(x->model, count), K = x->cfg.world;
    ddp_optimizer o = lab_optimizer(x->rule);

    memset(y, 0, sizeof *y);
    memset(g, 0, sizeof g);
    memset(s, 0, sizeof s);
    for (int l = 0; l < L; n += count[l++])
        for (size_t i = 0; i < count[l]; i++) y->anchor[n + i] = lab_start(0, l, i);
    for (int r = 0; r < K; r++) memcpy(y->theta[r], y->anchor, n * sizeof(float));
    for (int step = 0; step < x->steps; step++) {
        for (int r = 0; r < K; r++) {
            lab_replica part;
            at = 0;
            for (int l = 0; l < L; at += count[l++]) {
                part.w[l] = y->theta[r] + at, part.g[l] = g[r] + at, part.s[l] = s[r] + 2 * at;
                lab_gradient(part.w[l], part.g[l], count[l], r, l, step * 10);
                lab_update(&o, &part, l, count[l], step);
            }
        }
        if ((step + 1) % x->cfg.period == 0)
            replay_outer(y, K, n, (float)x->cfg.outer_lr, x->cfg.outer_momentum > 0 ? (float)x->cfg.outer_momentum : 0);
    }
}

static void replay_is(const lab *x, const char *what)
{
    static replay y;

    replay_run(x, &y);
    for (int r = 0; r < x->cfg.world; r++)
        if (memcmp(x->params[r], y.theta[r], *x->values * sizeof(float)))
            fail_msg("%s: %d workers, model %d, rule %d, rank %d", what, x->cfg.world, (int)x->model, (int)x->rule, r);
}

/* ---- diloco, waiting ---- */

static void with_rate_1_and_no_momentum_it_is_local_sgd(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world++)
        for (int model = 0; model < LAB_MODELS; model++) {
            lab a = outer_lab(world, (lab_model)model, (lab_rule)((world + model) % LAB_RULES), 1, 0);
            lab b = outer_lab(world, (lab_model)model, a.rule, 1, 0);
            b.cfg.strategy = DDP_LOCALSGD;
            if (world == 3) a.cfg.transport = DDP_TCP;
            a.no_sync_all = b.no_sync_all = model % 2;
            a.forward_hooks = world % 2;
            lab_run(&a);
            lab_run(&b);
            same(&a, &b, "unlike localsgd");
            lab_free(&a);
            lab_free(&b);
        }
}

static void it_is_the_outer_rule_replayed(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world++)
        for (int rule = 0; rule < LAB_RULES; rule++)
            for (int model = LAB_TINY; model < LAB_MODELS; model += LAB_ODD - LAB_TINY) {
                lab x = outer_lab(world, (lab_model)model, (lab_rule)rule, 0.7, rule == LAB_MOMENTUM ? 0 : 0.9);
                x.no_sync_all = 1; /* ends in the middle of a period */
                x.forward_hooks = rule == LAB_SGD;
                if (world == 4) x.cfg.transport = DDP_TCP;
                lab_run(&x);
                replay_is(&x, "unlike the replay");
                lab_free(&x);
            }
}

static void momentum_in_parts_is_the_momentum_of_all(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world += 3) {
        lab x = outer_lab(world, LAB_ODD, LAB_ADAMW, 0.6, 0.8), y = outer_lab(world, LAB_ODD, LAB_ADAMW, 0.6, 0.8);
        y.cfg.min_world = 1; /* who may be lost keeps nothing alone */
        y.cfg.transport = DDP_TCP;
        lab_run(&x);
        lab_run(&y);
        same(&x, &y, "in parts");
        ranks_are_equal(&x);
        lab_free(&x);
        lab_free(&y);
    }
}

static void after_an_outer_update_all_ranks_are_equal(void **state)
{
    (void)state;
    for (int model = 0; model < LAB_MODELS; model++) {
        lab x = outer_lab(4, (lab_model)model, LAB_ADAMW, 0.7, 0.9);
        x.steps = 9;
        x.no_sync_all = 1;
        x.cfg.clip_norm = 0.5f;
        lab_run(&x);
        ranks_are_equal(&x);
        lab_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_rate_1_and_no_momentum_it_is_local_sgd),
        cmocka_unit_test(it_is_the_outer_rule_replayed),
        cmocka_unit_test(momentum_in_parts_is_the_momentum_of_all),
        cmocka_unit_test(after_an_outer_update_all_ranks_are_equal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
