/* [asan] Averages of the optimizer's state at separate periods: bit-identical to a sequential program for
 * every strategy that averages parameters, and half the bytes at periods 3 and 6. */
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

static void begin(lab *x, int world, ddp_strategy s, lab_model model, lab_rule rule, int first, int second)
{
    lab_new(x, world, s, 2);
    x->model = model;
    x->rule = rule;
    x->forward_hooks = 1;
    x->no_sync_all = 1;
    x->steps = 17;
    x->cfg.average.state_period[0] = first;
    x->cfg.average.state_period[1] = second;
}

static void each_array_is_averaged_in_its_own_periods(void **state)
{
    static const int period[][2] = {{1, 1}, {3, 6}, {2, 3}, {4, 1}};
    static float want[LAB_RANKS][LAB_VALUES];
    lab x;

    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int model = LAB_TINY; model <= LAB_ODD; model += LAB_ODD - LAB_TINY)
            for (int p = 0; p < 4; p++)
                for (int s = 0; s < 2; s++) {
                    const lab_rule rule = (lab_rule)(1 + (world + p + s) % (LAB_RULES - 1));
                    begin(&x, world, s ? DDP_DREAMDDP : DDP_LOCALSGD, (lab_model)model, rule, period[p][0],
                          period[p][1]);
                    if (world == 3) x.cfg.transport = DDP_TCP;
                    lab_run(&x);
                    lab_reference(&x, 0, s ? x.step_of : NULL, want);
                    for (int r = 0; r < world; r++)
                        if (memcmp(x.params[r], want[r], *x.values * sizeof(float)))
                            fail_msg("%d workers, model %d, rule %d, periods %d and %d, strategy %d: rank %d",
                                     world, model, (int)rule, period[p][0], period[p][1], s, r);
                    lab_free(&x);
                }
}

/* Graph models, Muon's arrays of different lengths, int8 blocks. */
static void periods_1_and_1_are_average_state(void **state)
{
    static const ddp_wire wire[] = {DDP_WIRE_F32, DDP_WIRE_BF16, DDP_WIRE_INT8};
    lab a, b;

    (void)state;
    for (int model = 0; model < LAB_MODELS; model++)
        for (int w = 0; w < 3; w++)
            for (int rule = LAB_MOMENTUM; rule <= LAB_MUON; rule++) {
                begin(&a, 2 + w, w ? DDP_ENP : DDP_LOCALSGD, (lab_model)model, (lab_rule)rule, 0, 0);
                begin(&b, 2 + w, w ? DDP_ENP : DDP_LOCALSGD, (lab_model)model, (lab_rule)rule, 1, 0);
                a.cfg.average.state = 1;
                a.cfg.wire = b.cfg.wire = wire[w];
                lab_run(&a);
                lab_run(&b);
                for (int r = 0; r < 2 + w; r++)
                    assert_memory_equal(a.params[r], b.params[r], *a.values * sizeof(float));
                lab_free(&a);
                lab_free(&b);
            }
}

/* Codings and Muon, which have no reference: compares transports, and the replicas at the end. */
static void transports_are_bit_identical(void **state)
{
    lab a, b;

    (void)state;
    for (int model = 0; model < LAB_MODELS; model++)
        for (int k = 0; k < 2; k++) {
            begin(&a, 3, DDP_DREAMDDP, (lab_model)model, k ? LAB_MUON : LAB_ADAMW, 3, 2);
            begin(&b, 3, DDP_DREAMDDP, (lab_model)model, k ? LAB_MUON : LAB_ADAMW, 3, 2);
            a.no_sync_all = b.no_sync_all = 0;
            a.cfg.wire = b.cfg.wire = k ? DDP_WIRE_BF16 : DDP_WIRE_INT8;
            b.cfg.transport = DDP_TCP;
            lab_run(&a);
            lab_run(&b);
            for (int r = 0; r < 3; r++)
                assert_memory_equal(a.params[0], b.params[r], *a.values * sizeof(float));
            lab_free(&a);
            lab_free(&b);
        }
}

static uint64_t state_hash[LAB_RANKS];

static int hashing(ddp_ctx *d, void *user)
{
    const int bad = lab_worker(d, user);
    uint64_t h = 0;

    for (int l = 0; l < d->layers; l++) h = ddp_hash_floats(h, d->unit[l].state, d->unit[l].state_count);
    state_hash[ddp_rank(d)] = h;
    return bad;
}

static void sync_all_averages_all_state(void **state)
{
    ddp_error err;
    lab x;

    (void)state;
    begin(&x, 3, DDP_DREAMDDP, LAB_MLP, LAB_ADAMW, 50, 60);
    x.no_sync_all = 0;
    if (ddp_launch(&x.cfg, hashing, &x, &err)) fail_msg("%s", err.msg);
    assert_true(state_hash[0] == state_hash[1] && state_hash[0] == state_hash[2]);
    lab_free(&x);
}

/* The hash of each array of state on each rank. They are equal after a step if the step averaged the
 * array. */
static uint64_t array_hash[LAB_RANKS][2];

static int hashing_arrays(ddp_ctx *d, void *user)
{
    const int bad = lab_worker(d, user);
    uint64_t *h = array_hash[ddp_rank(d)];

    h[0] = h[1] = 0;
    for (int l = 0; l < d->layers; l++)
        for (int k = 0; k < 2; k++)
            h[k] =
                ddp_hash_floats(h[k], d->unit[l].state + (size_t)k * d->unit[l].trained, d->unit[l].trained);
    return bad;
}

static void state_that_is_not_due_is_not_averaged(void **state)
{
    static const ddp_strategy some[] = {DDP_DILOCO, DDP_SPARSELOCO};
    static const ddp_overlap overlap[] = {DDP_OVERLAP_NONE, DDP_OVERLAP_STREAM, DDP_OVERLAP_EAGER};
    ddp_error err;
    lab x;

    (void)state;
    for (int s = 0; s < 2; s++)
        for (int o = 0; o < 3; o++)
            for (int periods = 3; periods <= 6; periods++) {
                begin(&x, 2, some[s], LAB_ODD, LAB_ADAMW, 3, 6);
                x.steps = 2 * periods;
                x.cfg.outer.overlap = overlap[o];
                x.cfg.outer.fragments = overlap[o] == DDP_OVERLAP_STREAM;
                if (ddp_launch(&x.cfg, hashing_arrays, &x, &err)) fail_msg("%s", err.msg);
                for (int k = 0; k < 2; k++)
                    if ((array_hash[0][k] == array_hash[1][k]) != (periods % (k ? 6 : 3) == 0))
                        fail_msg("%s, overlap %d: array %d after period %d", ddp_strategy_name(some[s]),
                                 (int)overlap[o], k, periods);
                lab_free(&x);
            }
}

/* Streamed deltas with nu 1 and mu 0 are averages of the parameters. */
static void streamed_deltas_are_bit_identical_to_localsgd(void **state)
{
    lab a, b;

    (void)state;
    begin(&a, 3, DDP_LOCALSGD, LAB_ODD, LAB_ADAMW, 2, 3);
    begin(&b, 3, DDP_DILOCO, LAB_ODD, LAB_ADAMW, 2, 3);
    b.cfg.outer.overlap = DDP_OVERLAP_STREAM;
    b.cfg.outer.fragments = 1;
    b.cfg.outer.mixture = DDP_OVERWRITE;
    b.cfg.outer.lr = 1;
    b.cfg.outer.momentum = DDP_NO_MOMENTUM;
    lab_run(&a);
    lab_run(&b);
    for (int r = 0; r < 3; r++) assert_memory_equal(a.params[r], b.params[r], *a.values * sizeof(float));
    lab_free(&a);
    lab_free(&b);
}

static void periods_3_and_6_halve_the_bytes(void **state)
{
    double bytes[2];
    lab x;

    (void)state;
    for (int k = 0; k < 2; k++) {
        begin(&x, 2, DDP_LOCALSGD, LAB_ODD, LAB_ADAMW, k ? 3 : 1, k ? 6 : 1);
        x.steps = 2 * 2 * 6 * 2; /* four rounds of six periods */
        lab_run(&x);
        bytes[k] = (double)x.stats[0].bytes_sent;
        lab_free(&x);
    }
    assert_true(bytes[1] > 0.49 * bytes[0] && bytes[1] < 0.53 * bytes[0]);
}

static int nothing(ddp_ctx *d, void *user)
{
    (void)d;
    (void)user;
    return 0;
}

static void invalid_periods_are_an_error(void **state)
{
    static const int bad[][2] = {{0, 3}, {-1, 0}, {3, -2}, {1000001, 1}};
    ddp_config c;
    ddp_error err;

    (void)state;
    for (int i = 0; i < 4; i++) {
        char want[80];
        memset(&c, 0, sizeof c);
        c.no_env = 1;
        c.average.state_period[0] = bad[i][0];
        c.average.state_period[1] = bad[i][1];
        assert_int_equal(ddp_launch(&c, nothing, NULL, &err), DDP_ARG);
        snprintf(want, sizeof want, "state_period %d,%d is invalid: choose 1 to 1000000 periods each, or 0,0",
                 bad[i][0], bad[i][1]);
        assert_string_equal(err.msg, want);
    }
}

static int unlike(ddp_ctx *d, void *user)
{
    lab *x = (lab *)user;

    d->cfg.average.state_period[1] += ddp_rank(d);
    return lab_worker(d, x);
}

static void different_periods_on_two_ranks_are_an_error(void **state)
{
    ddp_error err;
    lab x;

    (void)state;
    begin(&x, 2, DDP_LOCALSGD, LAB_TINY, LAB_ADAMW, 3, 6);
    assert_int_equal(ddp_launch(&x.cfg, unlike, &x, &err), DDP_MISMATCH);
    assert_non_null(strstr(err.msg, "rank 1 has second state_period 7, rank 0 has 6"));
    lab_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_array_is_averaged_in_its_own_periods),
        cmocka_unit_test(periods_1_and_1_are_average_state),
        cmocka_unit_test(transports_are_bit_identical),
        cmocka_unit_test(sync_all_averages_all_state),
        cmocka_unit_test(state_that_is_not_due_is_not_averaged),
        cmocka_unit_test(streamed_deltas_are_bit_identical_to_localsgd),
        cmocka_unit_test(periods_3_and_6_halve_the_bytes),
        cmocka_unit_test(invalid_periods_are_an_error),
        cmocka_unit_test(different_periods_on_two_ranks_are_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
