/* mgwfbp, ascwfbp, bytescheduler and usbyte are bit-identical to ssgd: for every model, with and without
 * forward hooks, however layers are merged, split and ordered. */
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

enum { FOUR = 4 };
static const ddp_strategy four[FOUR] = {DDP_MGWFBP, DDP_ASCWFBP, DDP_BYTESCHEDULER, DDP_USBYTE};

/* Trains with ssgd and with s, with the settings of `like`, and compares. */
static void as_ssgd(const lab *like, ddp_strategy s, const char *what)
{
    lab a, b;

    lab_new(&a, like->cfg.world, DDP_SSGD, 3);
    lab_new(&b, like->cfg.world, s, 3);
    a.model = b.model = like->model;
    a.rule = b.rule = like->rule;
    a.rates = b.rates = like->rates;
    a.cfg.clip_norm = b.cfg.clip_norm = like->cfg.clip_norm;
    a.cfg.micro_batches = b.cfg.micro_batches = like->cfg.micro_batches;
    a.cfg.wire = b.cfg.wire = like->cfg.wire;
    a.cfg.average.state = b.cfg.average.state = like->cfg.average.state;
    b.cfg.transport = like->cfg.transport;
    b.cfg.net = like->cfg.net;
    b.cfg.gradient.bucket_bytes = like->cfg.gradient.bucket_bytes;
    b.cfg.gradient.partition_bytes = like->cfg.gradient.partition_bytes;
    b.cfg.gradient.credit = like->cfg.gradient.credit;
    b.cfg.deterministic = like->cfg.deterministic;
    b.cfg.profile_steps = like->cfg.profile_steps;
    a.forward_hooks = 1;
    b.forward_hooks = like->forward_hooks;
    lab_run(&a);
    lab_run(&b);
    if (memcmp(a.params[0], b.params[0], *a.values * sizeof(float)))
        fail_msg("%s with %d workers, model %d, rule %d, hooks %d: %s", ddp_strategy_name(s), like->cfg.world,
                 (int)like->model, (int)like->rule, like->forward_hooks, what);
    for (int r = 1; r < like->cfg.world; r++)
        assert_memory_equal(b.params[0], b.params[r], *b.values * sizeof(float));
    lab_free(&a);
    lab_free(&b);
}

static lab like_this(int world, lab_model model, lab_rule rule, int hooks)
{
    lab x;

    memset(&x, 0, sizeof x);
    x.cfg.world = world;
    x.cfg.transport = DDP_THREADS;
    x.cfg.deterministic = 1;
    x.cfg.gradient.partition_bytes = 2000;
    x.cfg.gradient.bucket_bytes = 4000;
    x.model = model;
    x.rule = rule;
    x.forward_hooks = hooks;
    x.rates = 1;
    return x;
}

static void every_model_rule_and_world_is_bit_identical_to_ssgd(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int model = 0; model < LAB_MODELS; model++)
            for (int s = 0; s < FOUR; s++) {
                lab x = like_this(world, (lab_model)model, (lab_rule)((world + model + s) % LAB_RULES), 1);
                if (world % 2) x.cfg.gradient.partition_bytes = 256; /* many parts */
                as_ssgd(&x, four[s], "unlike ssgd");
            }
}

static void without_forward_hooks_updates_complete_at_step_end(void **state)
{
    (void)state;
    for (int s = 0; s < FOUR; s++)
        for (int model = LAB_TINY; model < LAB_MODELS; model += LAB_ODD - LAB_TINY) {
            lab x = like_this(3, (lab_model)model, LAB_ADAMW, 0);
            as_ssgd(&x, four[s], "without hooks");
        }
}

static void clipping_and_micro_batches_change_nothing(void **state)
{
    (void)state;
    for (int s = 0; s < FOUR; s++) {
        lab x = like_this(4, LAB_ODD, LAB_MOMENTUM, 1);
        x.cfg.clip_norm = 0.5f;
        as_ssgd(&x, four[s], "clipped");
        x.cfg.clip_norm = 0;
        x.cfg.micro_batches = 3;
        as_ssgd(&x, four[s], "in micro-batches");
    }
}

static void tcp_is_bit_identical_to_threads(void **state)
{
    (void)state;
    for (int s = 0; s < FOUR; s++) {
        lab x = like_this(3, LAB_ODD, LAB_ADAMW, 1);
        x.cfg.transport = DDP_TCP;
        as_ssgd(&x, four[s], "over tcp");
    }
}

static void bfloat16_is_bit_identical_to_ssgd(void **state)
{
    (void)state;
    for (int s = 0; s < FOUR; s++) {
        lab x = like_this(3, LAB_ODD, LAB_SGD, 1);
        x.cfg.wire = DDP_WIRE_BF16;
        as_ssgd(&x, four[s], "in bfloat16");
    }
}

/* With a measured plan, which differs from run to run, the result is bit-identical. */
static void a_measured_plan_is_bit_identical_to_ssgd(void **state)
{
    (void)state;
    for (int s = 0; s < FOUR; s++) {
        lab x = like_this(2, LAB_GPT, LAB_ADAMW, 1);
        x.cfg.deterministic = 0;
        x.cfg.profile_steps = 4;
        x.cfg.net = "50mbit,1ms";
        as_ssgd(&x, four[s], "with a measured plan");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_rule_and_world_is_bit_identical_to_ssgd),
        cmocka_unit_test(without_forward_hooks_updates_complete_at_step_end),
        cmocka_unit_test(clipping_and_micro_batches_change_nothing),
        cmocka_unit_test(tcp_is_bit_identical_to_threads),
        cmocka_unit_test(bfloat16_is_bit_identical_to_ssgd),
        cmocka_unit_test(a_measured_plan_is_bit_identical_to_ssgd),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
