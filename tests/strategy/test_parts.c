/* [asan] Layers averaged in parts, each part in its own step of the period. Bit-identical to a replay in one
 * thread; to localsgd if all parts share a step; and to whole layers if no layer is large enough. */
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

enum { PART = 500, PERIOD = 3 };

static int parts_of(size_t n, int most)
{
    return most && n > (size_t)most ? (int)((n + (size_t)most - 1) / (size_t)most) : 1;
}

static int rows_of(const lab *x)
{
    size_t count[LAB_LAYERS];
    int L = lab_sizes(x->model, count), rows = 0;

    for (int l = 0; l < L; l++) rows += parts_of(count[l], x->cfg.average.split_params);
    return rows;
}

static lab parts_lab(int world, lab_rule rule)
{
    lab x;

    lab_new(&x, world, DDP_DREAMDDP, PERIOD);
    x.model = LAB_ODD;
    x.rule = rule;
    x.cfg.average.split_params = PART;
    return x;
}

static void scattered(ddp_plan *plan, const lab *x)
{
    assert_int_equal(ddp_plan_new(rows_of(x), PERIOD, plan, NULL), 0);
    for (int r = 0; r < plan->layers; r++) plan->step_of[r] = (r * 7 + r / 4) % PERIOD;
}

static void same(const lab *x, float (*expected)[LAB_VALUES], const char *what)
{
    for (int r = 0; r < x->cfg.world; r++)
        if (memcmp(x->params[r], expected[r], *x->values * sizeof(float)))
            fail_msg("%s, %d workers, model %d, rule %d, rank %d", what, x->cfg.world, (int)x->model,
                     (int)x->rule, r);
}

/* The same training in one thread. Each row's values and their state are averaged in its step of the
 * period. */
static void replay(const lab *x, const int *step_of, float (*out)[LAB_VALUES])
{
    size_t count[LAB_LAYERS], at = 0;
    lab_replica r[LAB_RANKS];
    float *parts[LAB_RANKS];
    const int L = lab_sizes(x->model, count), K = x->cfg.world;
    ddp_optimizer o = lab_optimizer(x->rule);

    for (int k = 0; k < K; k++)
        for (int l = 0; l < L; l++) {
            r[k].w[l] = (float *)calloc(count[l], sizeof(float));
            r[k].g[l] = (float *)calloc(count[l], sizeof(float));
            r[k].s[l] = (float *)calloc(2 * count[l], sizeof(float));
            for (size_t i = 0; i < count[l]; i++) r[k].w[l][i] = lab_start(0, l, i);
        }
    for (int step = 0; step < x->steps; step++) {
        for (int k = 0; k < K; k++)
            for (int l = 0; l < L; l++) {
                lab_gradient(r[k].w[l], r[k].g[l], count[l], k, l, step * 10);
                lab_update(&o, &r[k], l, count[l], step);
            }
        for (int l = 0, row = 0; l < L; l++) {
            const size_t n = count[l], all = (size_t)parts_of(n, x->cfg.average.split_params);
            for (size_t j = 0; j < all; j++, row++) {
                const size_t from = n * j / all, to = n * (j + 1) / all;
                if (step_of[row] != step % PERIOD) continue;
                for (int k = 0; k < K; k++) parts[k] = r[k].w[l] + from;
                lab_mean(parts, K, to - from);
                for (int a = 0; x->cfg.average.state && a < o.state_per_param; a++) {
                    if ((step / PERIOD + 1) % x->cfg.average.state_period[a]) continue;
                    for (int k = 0; k < K; k++) parts[k] = r[k].s[l] + (size_t)a * n + from;
                    lab_mean(parts, K, to - from);
                }
            }
        }
    }
    for (int l = 0; l < L; at += count[l++])
        for (int k = 0; k < K; k++) {
            memcpy(out[k] + at, r[k].w[l], count[l] * sizeof(float));
            free(r[k].w[l]);
            free(r[k].g[l]);
            free(r[k].s[l]);
        }
}

static void check_replay(lab *x, const char *what)
{
    static float expected[LAB_RANKS][LAB_VALUES];
    ddp_plan plan;

    scattered(&plan, x);
    x->plan = &plan;
    x->no_sync_all = 1;
    lab_run(x);
    replay(x, plan.step_of, expected);
    same(x, expected, what);
    ddp_plan_free(&plan);
    lab_free(x);
}

/* ---- tests ---- */

static void every_value_is_averaged_once_a_period_in_its_step(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world++)
        for (int rule = LAB_SGD; rule < LAB_RULES; rule++) {
            lab x = parts_lab(world, (lab_rule)rule);
            x.forward_hooks = world % 2;
            if (world == 3) x.cfg.transport = DDP_TCP;
            if (world == 5) x.cfg.average.split_params = 1021; /* a layer of this size is not split */
            check_replay(&x, "scattered parts");
        }
}

static void a_part_is_averaged_with_its_optimizer_state(void **state)
{
    static const int periods[][2] = {{1, 1}, {2, 3}};

    (void)state;
    for (int k = 0; k < 2; k++)
        for (int rule = LAB_MOMENTUM; rule < LAB_RULES; rule++) {
            lab x = parts_lab(3, (lab_rule)rule);
            x.steps = 20;
            x.cfg.average.state = 1;
            memcpy(x.cfg.average.state_period, periods[k], sizeof periods[k]);
            check_replay(&x, "parts with state");
        }
}

/* The library's plan of the model, made deterministically. */
static void the_plan_has_a_row_per_part(void **state)
{
    static float expected[LAB_RANKS][LAB_VALUES];

    (void)state;
    for (int enp = 0; enp < 2; enp++) {
        lab x = parts_lab(4, LAB_MOMENTUM);
        ddp_profile p, rows;
        ddp_plan plan;
        ddp_plan_options o;
        size_t count[LAB_LAYERS];
        const int L = lab_sizes(x.model, count);
        double params[LAB_LAYERS];
        if (enp) x.cfg.strategy = DDP_ENP;
        x.cfg.net = "100mbit,1ms";
        x.cfg.plan.solver = DDP_SOLVER_ENP; /* uses only the number of rows */
        x.no_sync_all = 1;
        lab_run(&x);
        memset(&p, 0, sizeof p);
        memset(&o, 0, sizeof o);
        assert_int_equal(ddp_profile_new(L, &p, NULL), 0);
        for (int l = 0; l < L; l++) p.params[l] = params[l] = (double)count[l];
        assert_int_equal(ddp_profile_split(&p, PART, 0, &rows, NULL, NULL), 0);
        assert_int_equal(rows.layers, rows_of(&x));
        o.period = PERIOD;
        o.solver = DDP_SOLVER_ENP;
        o.cost = DDP_COST_TIMELINE;
        assert_int_equal(ddp_plan_partial(&rows, &o, &plan, NULL), 0);
        replay(&x, plan.step_of, expected);
        same(&x, expected, "planned parts");
        ddp_plan_free(&plan);
        ddp_profile_free(&rows);
        ddp_profile_free(&p);
        lab_free(&x);
    }
}

static void all_parts_in_one_step_are_localsgd(void **state)
{
    (void)state;
    for (int model = 0; model < LAB_MODELS; model++)
        for (int world = 1; world <= 5; world += 2)
            for (int wire = 0; wire < 2; wire++) {
                lab whole = parts_lab(world, LAB_ADAMW), parts = parts_lab(world, LAB_ADAMW);
                const int hand = model == LAB_TINY || model == LAB_ODD;
                ddp_plan plan;
                memset(&plan, 0, sizeof plan);
                whole.model = parts.model = (lab_model)model;
                whole.cfg.strategy = DDP_LOCALSGD;
                whole.cfg.average.split_params = 0;
                parts.cfg.plan.solver = DDP_SOLVER_ENP;
                parts.cfg.period = whole.cfg.period = hand ? PERIOD : 1; /* period 1 has one set */
                parts.cfg.average.split_params = model == LAB_TINY ? 2 : hand ? PART : 40;
                if (hand) scattered(&plan, &parts);
                for (int r = 0; r < plan.layers; r++) plan.step_of[r] = PERIOD - 1;
                parts.plan = hand ? &plan : NULL;
                whole.cfg.wire = parts.cfg.wire = wire ? DDP_WIRE_BF16 : DDP_WIRE_F32;
                whole.no_sync_all = parts.no_sync_all = 1;
                lab_run(&whole);
                lab_run(&parts);
                same(&parts, whole.params, "one set");
                ddp_plan_free(&plan);
                lab_free(&whole);
                lab_free(&parts);
            }
}

static void layers_smaller_than_a_part_stay_whole(void **state)
{
    (void)state;
    for (int model = 0; model < LAB_MODELS; model++) {
        lab whole = parts_lab(3, LAB_ADAMW), parts = parts_lab(3, LAB_ADAMW);
        whole.model = parts.model = (lab_model)model;
        whole.cfg.average.split_params = 0;
        parts.cfg.average.split_params = LAB_VALUES;
        whole.cfg.net = parts.cfg.net = "100mbit,1ms";
        whole.no_sync_all = parts.no_sync_all = 1;
        lab_run(&whole);
        lab_run(&parts);
        same(&parts, whole.params, "no parts");
        lab_free(&whole);
        lab_free(&parts);
    }
}

static void replicas_are_equal_after_sync_all(void **state)
{
    lab x = parts_lab(4, LAB_MOMENTUM);

    (void)state;
    lab_run(&x);
    for (int r = 1; r < 4; r++) assert_memory_equal(x.params[r], x.params[0], *x.values * sizeof(float));
    assert_true(x.stats[0].divergence > 0);
    lab_free(&x);
}

static void settings_that_exclude_parts_are_an_error(void **state)
{
    static const struct {
        ddp_strategy strategy;
        int split;
        ddp_wire wire;
        const char *says;
    } bad[] = {{DDP_SSGD, 100, DDP_WIRE_F32, "strategy ssgd with split_params 100"},
               {DDP_LOCALSGD, 100, DDP_WIRE_F32, "its plan has whole layers only: set split_params to 0"},
               {DDP_DREAMDDP, 100, DDP_WIRE_INT8, "wire int8 with split_params 100"},
               {DDP_DREAMDDP, -1, DDP_WIRE_F32, "split_params -1 is out of range"},
               {DDP_DREAMDDP, 1, DDP_WIRE_F32,
                "split_params 1 makes 14538 parts of 8 layers, the limit is 16 per layer"}};

    (void)state;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        lab x = parts_lab(2, LAB_SGD);
        ddp_error err;
        x.cfg.strategy = bad[k].strategy;
        x.cfg.average.split_params = bad[k].split;
        x.cfg.wire = bad[k].wire;
        assert_int_not_equal(ddp_launch(&x.cfg, lab_worker, &x, &err), 0);
        if (!strstr(err.msg, bad[k].says)) fail_msg("%s", err.msg);
        lab_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_is_averaged_once_a_period_in_its_step),
        cmocka_unit_test(a_part_is_averaged_with_its_optimizer_state),
        cmocka_unit_test(the_plan_has_a_row_per_part),
        cmocka_unit_test(all_parts_in_one_step_are_localsgd),
        cmocka_unit_test(layers_smaller_than_a_part_stay_whole),
        cmocka_unit_test(replicas_are_equal_after_sync_all),
        cmocka_unit_test(settings_that_exclude_parts_are_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
