/* A program's own update is bit-identical to the library's. Gradient strategies use its usual form, the
 * others its pre-update form (average_first), which a replay without the library confirms. With
 * ddp_own_update_first they use its usual form too. */
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

enum { WITH = 11 };
static const ddp_strategy with[WITH] = {DDP_SSGD,          DDP_WFBP,   DDP_MGWFBP,    DDP_ASCWFBP,
                                        DDP_BYTESCHEDULER, DDP_USBYTE, DDP_LOCALSGD,  DDP_ENP,
                                        DDP_DREAMDDP,      DDP_DILOCO, DDP_SPARSELOCO};

static int averages_gradients(ddp_strategy s)
{
    return s <= DDP_WFBP || (s >= DDP_MGWFBP && s <= DDP_USBYTE);
}

/* Trains once with `own` (1, 2 or 3) and once with the library's rule, and compares. */
static void as_the_library(const lab *like, int own, const char *what)
{
    lab a, b;

    lab_new(&a, like->cfg.world, like->cfg.strategy, 3);
    lab_new(&b, like->cfg.world, like->cfg.strategy, 3);
    a.cfg = like->cfg;
    b.cfg = like->cfg;
    a.cfg.average.first = own != 3 && !averages_gradients(like->cfg.strategy);
    a.model = b.model = like->model;
    a.rule = b.rule = like->rule;
    a.rates = b.rates = like->rates;
    a.forward_hooks = b.forward_hooks = like->forward_hooks;
    b.own = own;
    lab_run(&a);
    lab_run(&b);
    for (int r = 0; r < like->cfg.world; r++)
        if (memcmp(a.params[r], b.params[r], *a.values * sizeof(float)))
            fail_msg("%s with %d workers, model %d, rule %d, hooks %d: %s",
                     ddp_strategy_name(like->cfg.strategy), like->cfg.world, (int)like->model,
                     (int)like->rule, like->forward_hooks, what);
    lab_free(&a);
    lab_free(&b);
}

static lab like_this(int world, ddp_strategy s, lab_model model, lab_rule rule)
{
    lab x;

    lab_new(&x, world, s, 3);
    lab_free(&x);
    x.cfg.gradient.partition_bytes = 2000;
    x.cfg.gradient.bucket_bytes = 4000;
    x.model = model;
    x.rule = rule;
    x.rates = 1;
    return x;
}

static void every_supported_strategy_is_bit_identical_to_the_library(void **state)
{
    (void)state;
    for (int s = 0; s < WITH; s++)
        for (int world = 1; world <= 4; world += SAMPLED(2)) {
            lab x = like_this(world, with[s], (world + s) % 2 ? LAB_ODD : LAB_TINY,
                              (lab_rule)((world + s) % LAB_RULES));
            x.forward_hooks = (world + s / 2) % 2;
            as_the_library(&x, 1 + world % 2, "own update");
        }
}

static void adamw_is_bit_identical_under_every_strategy(void **state)
{
    (void)state;
    for (int s = 0; s < WITH; s += SAMPLED(2)) {
        lab x = like_this(3, with[s], LAB_ODD, LAB_ADAMW);
        x.forward_hooks = 1;
        as_the_library(&x, 1, "AdamW");
    }
}

static void clipping_micro_batches_and_tcp_are_bit_identical(void **state)
{
    (void)state;
    for (int s = 0; s < WITH; s += SAMPLED(2)) {
        lab x = like_this(3, with[s], LAB_ODD, LAB_MOMENTUM);
        x.forward_hooks = s % 2;
        x.cfg.clip_norm = 0.5f;
        as_the_library(&x, 1, "clipped");
        x.cfg.clip_norm = 0;
        x.cfg.micro_batches = 3;
        as_the_library(&x, 1, "in micro-batches");
        x.cfg.micro_batches = 1;
        x.cfg.transport = DDP_TCP;
        as_the_library(&x, 1, "over tcp");
    }
}

static void delayed_and_rounded_averages_are_bit_identical(void **state)
{
    static const ddp_wire wire[] = {DDP_WIRE_BF16, DDP_WIRE_INT8};

    (void)state;
    for (int overlap = DDP_OVERLAP_STREAM; overlap <= DDP_OVERLAP_EAGER; overlap++)
        for (int hooks = 0; hooks < 2; hooks++) {
            lab x = like_this(3, DDP_DILOCO, LAB_ODD, LAB_ADAMW);
            x.forward_hooks = hooks;
            x.cfg.outer.overlap = (ddp_overlap)overlap;
            as_the_library(&x, 1, "late");
        }
    for (int s = 0; s < WITH; s++)
        for (int w = 0; w < 2; w++) {
            lab x = like_this(3, with[s], LAB_ODD, LAB_SGD);
            if (with[s] == DDP_SPARSELOCO) continue;
            x.cfg.wire = wire[w];
            as_the_library(&x, 1, "rounded");
        }
}

/* The pre-update form, compared with a replay: averages, then the update. */
static void average_first_averages_before_the_update(void **state)
{
    static const ddp_strategy both[] = {DDP_LOCALSGD, DDP_ENP, DDP_DREAMDDP};
    static float expected[LAB_RANKS][LAB_VALUES];

    (void)state;
    for (int s = 0; s < 3; s++)
        for (int rule = 0; rule < LAB_RULES; rule++) {
            lab x;
            lab_new(&x, 3, both[s], 3);
            x.model = LAB_ODD;
            x.rule = (lab_rule)rule;
            x.no_sync_all = 1;
            x.forward_hooks = rule % 2;
            x.own = s % 2;
            x.cfg.average.first = 1;
            lab_run(&x);
            lab_reference(&x, 0, both[s] == DDP_LOCALSGD ? NULL : x.step_of, expected);
            for (int r = 0; r < 3; r++)
                assert_memory_equal(x.params[r], expected[r], *x.values * sizeof(float));
            lab_free(&x);
        }
}

static void update_first_is_bit_identical_to_the_library(void **state)
{
    (void)state;
    for (int s = 0; s < WITH; s++)
        for (int hooks = 0; hooks < 2 && !averages_gradients(with[s]); hooks++)
            for (int period = 1; period <= 3; period += 2) {
                lab x = like_this(3, with[s], LAB_ODD, hooks ? LAB_ADAMW : LAB_MOMENTUM);
                x.forward_hooks = hooks;
                x.cfg.period = period;
                as_the_library(&x, 3, "updated first");
            }
    for (int overlap = DDP_OVERLAP_STREAM; overlap <= DDP_OVERLAP_EAGER; overlap++) {
        lab x = like_this(3, DDP_DILOCO, LAB_ODD, LAB_ADAMW);
        x.forward_hooks = 1;
        x.cfg.outer.overlap = (ddp_overlap)overlap;
        as_the_library(&x, 3, "updated first, late");
    }
}

static void update_first_is_an_error_where_updates_follow_averages(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        ddp_error err;
        lab x;

        lab_new(&x, 2, k ? DDP_DILOCO : DDP_WFBP, 3);
        x.cfg.clip_norm = k == 1;
        x.cfg.average.first = k == 2;
        x.model = LAB_ODD;
        x.own = 3;
        assert_int_equal(ddp_launch(&x.cfg, lab_worker, &x, &err), DDP_UNSUPPORTED);
        if (!strstr(err.msg, "use ddp_own_update")) fail_msg("%s", err.msg);
        lab_free(&x);
    }
}

static void refused(ddp_strategy s, int average_state, const char *says)
{
    ddp_error err;
    lab x;

    lab_new(&x, 2, s, 3);
    x.cfg.average.state = average_state;
    x.cfg.server.count = s == DDP_BSP ? DDP_SERVERS_COLOCATED : 0;
    x.cfg.network.net2 = s == DDP_DEFT ? "100mbit" : NULL;
    x.cfg.transport = s == DDP_DEFT ? DDP_TCP : DDP_THREADS;
    x.model = LAB_ODD;
    x.own = 1;
    assert_int_not_equal(ddp_launch(&x.cfg, lab_worker, &x, &err), 0);
    if (!strstr(err.msg, says)) fail_msg("%s: '%s'", ddp_strategy_name(s), err.msg);
    lab_free(&x);
}

static void unsupported_strategies_are_an_error(void **state)
{
    (void)state;
    refused(DDP_DEFT, 0, "strategy deft with your own update");
    refused(DDP_BSP, 0, "strategy bsp with your own update");
    refused(DDP_LOCALSGD, 1, "leave average_state 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_supported_strategy_is_bit_identical_to_the_library),
        cmocka_unit_test(adamw_is_bit_identical_under_every_strategy),
        cmocka_unit_test(clipping_micro_batches_and_tcp_are_bit_identical),
        cmocka_unit_test(delayed_and_rounded_averages_are_bit_identical),
        cmocka_unit_test(average_first_averages_before_the_update),
        cmocka_unit_test(update_first_is_bit_identical_to_the_library),
        cmocka_unit_test(update_first_is_an_error_where_updates_follow_averages),
        cmocka_unit_test(unsupported_strategies_are_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
