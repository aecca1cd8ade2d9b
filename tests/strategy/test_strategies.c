/* Invariants of the strategies, bit for bit (deterministic mode: sums in rank order). */
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

static const ddp_strategy all_strategies[] = {DDP_SSGD,     DDP_WFBP,   DDP_LOCALSGD,   DDP_ENP,
                                              DDP_DREAMDDP, DDP_MGWFBP, DDP_ASCWFBP,    DDP_BYTESCHEDULER,
                                              DDP_USBYTE,   DDP_DILOCO, DDP_SPARSELOCO, DDP_DEFT};
enum { ALL = sizeof all_strategies / sizeof all_strategies[0] };

static void same_bits(const float *a, const float *b, size_t n) { assert_memory_equal(a, b, n * sizeof *a); }

/* With one worker, any strategy is plain training with its optimizer. */
static void one_worker_is_plain_sgd_under_every_strategy(void **state)
{
    static float expected[LAB_RANKS][LAB_VALUES];
    int s, rule;

    (void)state;
    for (s = 0; s < ALL; s++)
        for (rule = 0; rule < LAB_RULES; rule++) {
            lab x;
            lab_new(&x, 1, all_strategies[s], 3);
            x.model = LAB_ODD;
            x.rule = (lab_rule)rule;
            x.cfg.outer.lr = 1; /* for the outer family */
            x.cfg.outer.momentum = DDP_NO_MOMENTUM;
            lab_run(&x);
            lab_reference(&x, 1, NULL, expected);
            same_bits(x.params[0], expected[0], *x.values);
            lab_free(&x);
        }
}

static void ssgd_averages_gradients_in_rank_order_then_updates(void **state)
{
    static float expected[LAB_RANKS][LAB_VALUES];
    int world, model;

    (void)state;
    for (world = 2; world <= 5; world += SAMPLED(3))
        for (model = 0; model < 2; model++) {
            lab x;
            int k;
            lab_new(&x, world, DDP_SSGD, 3);
            x.model = model ? LAB_ODD : LAB_TINY;
            x.rule = (lab_rule)(world % LAB_RULES);
            x.no_sync_all = 1;
            lab_run(&x);
            lab_reference(&x, 1, NULL, expected);
            for (k = 0; k < world; k++) same_bits(x.params[k], expected[k], *x.values);
            lab_free(&x);
        }
}

/* Before ddp_sync_all, every rank equals its replica trained without the library. */
static void averaging_strategies_follow_algorithm_1(void **state)
{
    static float expected[LAB_RANKS][LAB_VALUES];
    int world, s, hooks;

    (void)state;
    for (world = 2; world <= 5; world += SAMPLED(3))
        for (s = 2; s < 5; s++)
            for (hooks = 0; hooks < 2; hooks++) {
                lab x;
                int k;
                lab_new(&x, world, all_strategies[s], world == 3 ? 1 : 4);
                x.model = hooks ? LAB_ODD : LAB_TINY;
                x.rule = (lab_rule)((world + s) % LAB_RULES);
                x.forward_hooks = hooks;
                x.no_sync_all = 1;
                lab_run(&x);
                lab_reference(&x, 0, s == 2 ? NULL : x.step_of, expected);
                for (k = 0; k < world; k++) same_bits(x.params[k], expected[k], *x.values);
                lab_free(&x);
            }
}

static void wfbp_is_bit_identical_to_ssgd_with_any_bucket_size(void **state)
{
    int model, world;

    (void)state;
    for (model = 0; model < LAB_MODELS; model++)
        for (world = 2; world <= 5; world += SAMPLED(3)) {
            static const size_t bucket[] = {1, 4000, 1u << 20, 0};
            lab a, b;
            lab_new(&a, world, DDP_SSGD, 3);
            lab_new(&b, world, DDP_WFBP, 3);
            a.model = b.model = (lab_model)model;
            a.rule = b.rule = (lab_rule)(model % LAB_RULES);
            b.cfg.gradient.bucket_bytes = bucket[world - 2];
            lab_run(&a);
            lab_run(&b);
            same_bits(a.params[0], b.params[0], *a.values);
            lab_free(&a);
            lab_free(&b);
        }
}

static void replicas_are_equal_after_sync_all(void **state)
{
    int model, s, world = 1;

    (void)state;
    for (model = 0; model < LAB_MODELS; model++)
        for (s = 0; s < ALL; s++) {
            lab x;
            int k;
            world = world % 5 + 1;
            lab_new(&x, world, all_strategies[s], 4);
            x.model = (lab_model)model;
            x.rule = (lab_rule)((s + world) % LAB_RULES);
            x.cfg.deterministic = s % 2; /* in both modes */
            lab_run(&x);
            assert_true(*x.values > 0);
            for (k = 1; k < world; k++) same_bits(x.params[0], x.params[k], *x.values);
            lab_free(&x);
        }
}

static void one_set_holding_all_layers_is_localsgd(void **state)
{
    int model, world;

    (void)state;
    for (model = 0; model < LAB_MODELS; model++)
        for (world = 2; world <= 4; world++) {
            static const int layers[LAB_MODELS] = {3, 3, 4, 8};
            lab a, b;
            ddp_plan plan;
            int l;
            lab_new(&a, world, DDP_LOCALSGD, 3);
            lab_new(&b, world, DDP_DREAMDDP, 3);
            a.model = b.model = (lab_model)model;
            a.rule = b.rule = (lab_rule)(world % LAB_RULES);
            assert_int_equal(ddp_plan_new(layers[model], 3, &plan, NULL), DDP_OK);
            for (l = 0; l < plan.layers; l++) plan.step_of[l] = 2;
            b.plan = &plan;
            a.no_sync_all = b.no_sync_all = 1;
            lab_run(&a);
            lab_run(&b);
            for (l = 0; l < world; l++) same_bits(a.params[l], b.params[l], *a.values);
            ddp_plan_free(&plan);
            lab_free(&a);
            lab_free(&b);
        }
}

static void threads_and_tcp_are_bit_identical(void **state)
{
    int model, s;

    (void)state;
    for (model = 0; model < LAB_MODELS; model++)
        for (s = 0; s < ALL; s++) {
            lab a, b;
            int k;
            lab_new(&a, 3, all_strategies[s], 3);
            lab_new(&b, 3, all_strategies[s], 3);
            a.model = b.model = (lab_model)model;
            a.rule = b.rule = LAB_MOMENTUM;
            a.forward_hooks = b.forward_hooks = s % 2;
            b.cfg.transport = DDP_TCP;
            a.no_sync_all = b.no_sync_all = 1;
            lab_run(&a);
            lab_run(&b);
            for (k = 0; k < 3; k++) same_bits(a.params[k], b.params[k], *a.values);
            lab_free(&a);
            lab_free(&b);
        }
}

/* A slow or delayed link does not change the result. */
static void a_slow_link_does_not_change_the_result(void **state)
{
    lab a, b;

    (void)state;
    lab_new(&a, 3, DDP_ENP, 2);
    lab_new(&b, 3, DDP_ENP, 2);
    a.model = b.model = LAB_ODD;
    a.forward_hooks = b.forward_hooks = 1;
    b.cfg.net = "20mbit,3ms";
    lab_run(&a);
    lab_run(&b);
    same_bits(a.params[0], b.params[0], *a.values);
    lab_free(&a);
    lab_free(&b);
}

static void all_ranks_start_from_the_parameters_of_rank_0(void **state)
{
    static float expected[LAB_RANKS][LAB_VALUES];
    lab x;
    int k;

    (void)state;
    lab_new(&x, 4, DDP_LOCALSGD, 2);
    x.model = LAB_ODD;
    x.unequal_start = 1;
    x.no_sync_all = 1;
    lab_run(&x);
    lab_reference(&x, 0, NULL, expected);
    for (k = 0; k < 4; k++) same_bits(x.params[k], expected[k], *x.values);
    lab_free(&x);
}

/* With H = 1 and plain momentum, averaging the optimizer state gives all replicas equal state, so a further
 * step with equal gradients leaves them equal. Without it they differ. */
static void state_is_averaged_with_the_parameters(void **state)
{
    lab a, b;

    (void)state;
    lab_new(&a, 2, DDP_LOCALSGD, 2);
    lab_new(&b, 2, DDP_LOCALSGD, 2);
    a.model = b.model = LAB_ODD;
    a.rule = b.rule = LAB_MOMENTUM;
    b.cfg.average.state = 1;
    lab_run(&a);
    lab_run(&b);
    assert_memory_not_equal(a.params[0], b.params[0], *a.values * sizeof(float));
    assert_true(b.stats[0].bytes_sent > a.stats[0].bytes_sent + 3 * (int64_t)(*a.values * sizeof(float)));
    lab_free(&a);
    lab_free(&b);
}

/* Counts bytes by coding. With two workers and the direct algorithm, each rank sends its part of the other's
 * segment and the sum of its own: a layer's values once, encoded. Top-k sends its packed values. One float
 * per layer reports whether it has a delta. Rank 1 sends no initial parameters. */
static void bytes_are_counted_by_coding(void **state)
{
    static const ddp_wire wires[] = {DDP_WIRE_F32,  DDP_WIRE_BF16, DDP_WIRE_INT8,
                                     DDP_WIRE_INT4, DDP_WIRE_E3M0, DDP_WIRE_TOPK};

    (void)state;
    for (size_t k = 0; k < sizeof wires / sizeof *wires; k++) {
        const ddp_wire wire = wires[k];
        size_t count[LAB_LAYERS], expected = 0;
        int L = lab_sizes(LAB_ODD, count);
        lab x;
        lab_new(&x, 2, DDP_DILOCO, 3);
        x.model = LAB_ODD;
        x.steps = 6;
        x.no_sync_all = 1;
        x.cfg.algorithm = DDP_DIRECT;
        x.cfg.wire = wire;
        lab_run(&x);
        for (int l = 0; l < L; l++)
            expected += wire == DDP_WIRE_TOPK ? 1 + ddp_sparse_bytes(count[l], ddp_sparse_keep(0))
                                              : ddp__frame_payload((int)wire - (int)DDP_WIRE_F32, count[l]);
        for (int as = (int)DDP_WIRE_F32; as <= (int)DDP_WIRE_TOPK; as++)
            if (x.stats[1].bytes_as[as] != (as == (int)wire ? 2 * (int64_t)expected : 0) +
                                               (as == (int)DDP_WIRE_F32 ? 2 * L * (int64_t)sizeof(float) : 0))
                fail_msg("wire %s: %ld bytes as %s", ddp_wire_name(wire), (long)x.stats[1].bytes_as[as],
                         ddp_wire_name((ddp_wire)as));
        assert_true(x.stats[1].bytes_as[0] > 0 && x.stats[1].bytes_as[0] + 2 * (int64_t)expected <
                                                      x.stats[1].bytes_sent); /* with headers */
        lab_free(&x);
    }
}

/* The mean of k micro-batches is one gradient, so k equal passes change only the rounding. */
static void micro_batches_are_averaged_before_the_update(void **state)
{
    lab a, b;
    size_t i;

    (void)state;
    lab_new(&a, 2, DDP_SSGD, 1);
    lab_new(&b, 2, DDP_SSGD, 1);
    a.model = b.model = LAB_TINY;
    a.steps = b.steps = 1;
    b.cfg.micro_batches = 2;
    lab_run(&a);
    lab_run(&b);
    /* b's second pass had other targets: its step must be between the two, and not twice as long */
    for (i = 0; i < *a.values; i++) {
        float start = lab_start(0, i < 3 ? 0 : i < 4 ? 1 : 2, i < 3 ? i : i < 4 ? 0 : i - 4);
        assert_true(fabsf(b.params[0][i] - start) < 1.9f * fabsf(a.params[0][i] - start) + 0.06f);
        assert_true(b.params[0][i] != start);
    }
    lab_free(&a);
    lab_free(&b);
}

static void clipping_limits_the_step_under_every_strategy(void **state)
{
    int s;

    (void)state;
    for (s = 0; s < ALL; s++) {
        lab x;
        double moved = 0;
        size_t count[LAB_LAYERS], i, at = 0;
        int L, l, k;
        ddp_strategy_ops ops;
        assert_true(ddp__built_in()->fill(all_strategies[s], &ops));
        if (!(ops.traits & DDP_WITH_CLIP)) continue; /* unsupported */
        lab_new(&x, 3, all_strategies[s], 1);
        x.model = LAB_ODD;
        x.steps = 1;
        x.cfg.clip_norm = 0.5f;
        x.cfg.outer.lr = 1;
        x.cfg.outer.momentum = DDP_NO_MOMENTUM;
        lab_run(&x);
        L = lab_sizes(x.model, count);
        for (l = 0; l < L; l++)
            for (i = 0; i < count[l]; i++, at++)
                moved += pow((double)x.params[0][at] - (double)lab_start(0, l, i), 2);
        /* lr 0.1 x norm 0.5. The mean of clipped steps can only be shorter. */
        assert_true(sqrt(moved) <= 0.05 * (1 + 1e-4));
        assert_true(sqrt(moved) > 0.02);
        for (k = 1; k < 3; k++) same_bits(x.params[0], x.params[k], *x.values);
        lab_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_is_plain_sgd_under_every_strategy),
        cmocka_unit_test(ssgd_averages_gradients_in_rank_order_then_updates),
        cmocka_unit_test(averaging_strategies_follow_algorithm_1),
        cmocka_unit_test(wfbp_is_bit_identical_to_ssgd_with_any_bucket_size),
        cmocka_unit_test(replicas_are_equal_after_sync_all),
        cmocka_unit_test(one_set_holding_all_layers_is_localsgd),
        cmocka_unit_test(threads_and_tcp_are_bit_identical),
        cmocka_unit_test(a_slow_link_does_not_change_the_result),
        cmocka_unit_test(all_ranks_start_from_the_parameters_of_rank_0),
        cmocka_unit_test(state_is_averaged_with_the_parameters),
        cmocka_unit_test(bytes_are_counted_by_coding),
        cmocka_unit_test(micro_batches_are_averaged_before_the_update),
        cmocka_unit_test(clipping_limits_the_step_under_every_strategy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
