/* [asan] Update rules, clipping and learning-rate schedules, compared with numbers computed by hand and
 * with plain loops. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <math.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#define MOST 70

static void step(const ddp_optimizer *o, float *params, const float *grads, float *state, size_t n,
                 long number)
{
    ddp_update u;

    memset(&u, 0, sizeof u);
    u.params = params;
    u.grads = grads;
    u.state = state;
    u.count = n;
    u.step = number;
    u.lr = o->lr;
    o->update(o, &u);
}

static void fill(float *x, size_t n, uint64_t stream)
{
    ddp_rng r = ddp_rng_seed(11, stream);
    size_t i;

    for (i = 0; i < n; i++) x[i] = (float)ddp_rng_normal(&r);
}

static int near(double a, double b, double tolerance) { return fabs(a - b) <= tolerance * fmax(1, fabs(b)); }

static void plain_sgd_subtracts_the_scaled_gradient(void **unused)
{
    ddp_optimizer o = ddp_sgd(0.5f, 0);
    float w[3] = {1, 2, 3};
    const float g[3] = {2, -4, 8};

    (void)unused;
    assert_int_equal(o.state_per_param, 0);
    step(&o, w, g, NULL, 3, 0);
    assert_true(w[0] == 0.0f && w[1] == 4.0f && w[2] == -1.0f);
}

static void momentum_and_decay_follow_the_definition(void **unused)
{
    /* v1 = 1 + 0.5 x 4 = 3, w = 4 - 3/4 = 3.25; v2 = 0.5 x 3 + 1 + 0.5 x 3.25 = 4.125 */
    ddp_optimizer o = ddp_sgd_decay(0.25f, 0.5f, 0.5f);
    float w[1] = {4}, v[1] = {0};
    const float g[1] = {1};

    (void)unused;
    assert_int_equal(o.state_per_param, 1);
    step(&o, w, g, v, 1, 0);
    assert_true(v[0] == 3.0f && w[0] == 3.25f);
    step(&o, w, g, v, 1, 1);
    assert_true(v[0] == 4.125f && w[0] == 3.25f - 0.25f * 4.125f);
}

static void first_adam_step_is_lr_times_the_sign(void **unused)
{
    ddp_optimizer o = ddp_adam(0.1f, 0.9f, 0.999f, 1e-8f, 0);
    float w[2] = {1, 1}, s[4] = {0, 0, 0, 0};
    const float g[2] = {5, -0.01f};

    (void)unused;
    assert_int_equal(o.state_per_param, 2);
    step(&o, w, g, s, 2, 0);
    assert_true(near((double)w[0], 0.9, 1e-6) && near((double)w[1], 1.1, 1e-5));
    assert_true(near((double)s[0], 0.5, 1e-6));   /* mean */
    assert_true(near((double)s[2], 0.025, 1e-6)); /* square */
}

static void adamw_decays_weights_separately_from_the_gradient(void **unused)
{
    ddp_optimizer o = ddp_adamw(0.5f, 0.9f, 0.999f, 1e-8f, 0.25f);
    float w[1] = {8}, s[2] = {0, 0};
    const float g[1] = {0};

    (void)unused;
    step(&o, w, g, s, 1, 0);
    assert_true(w[0] == 7.0f && s[0] == 0.0f && s[1] == 0.0f);
}

/* Stores every product and every sum to memory, so that the compiler cannot fuse them. */
static float times(float a, float b)
{
    volatile float p = a * b;
    return p;
}

static float plus(float a, float b)
{
    volatile float s = a + b;
    return s;
}

static void sgd_updates_are_not_fused(void **unused)
{
    float w[MOST], g[MOST], v[MOST], old_w[MOST], old_v[MOST];
    int i, nesterov, fused_differs = 0;

    (void)unused;
    for (nesterov = 0; nesterov < 2; nesterov++) {
        ddp_optimizer o = nesterov ? ddp_nesterov(0.3f, 0.7f, 0.013f) : ddp_sgd_decay(0.3f, 0.7f, 0.013f);

        fill(w, MOST, 1);
        fill(g, MOST, 2);
        fill(v, MOST, 3);
        memcpy(old_w, w, sizeof w);
        memcpy(old_v, v, sizeof v);
        step(&o, w, g, v, MOST, 4);
        for (i = 0; i < MOST; i++) {
            float d = plus(g[i], times(0.013f, old_w[i]));
            float want = plus(times(0.7f, old_v[i]), d);

            assert_true(v[i] == want);
            d = nesterov ? plus(d, times(0.7f, want)) : want;
            assert_true(w[i] == plus(old_w[i], -times(0.3f, d)));
            fused_differs += fmaf(0.7f, old_v[i], d) != want;
        }
    }
    assert_true(fused_differs > 5); /* otherwise this test could not fail */
}

static void adam_updates_are_not_fused(void **unused)
{
    ddp_optimizer o = ddp_adamw(0.01f, 0.9f, 0.99f, 1e-6f, 0.1f);
    float w[MOST], g[MOST], s[2 * MOST], old_w[MOST], old_m[MOST], old_v[MOST];
    float root = (float)(1 / sqrt(1 - 0.99 * 0.99 * 0.99));
    float lr = (float)(-(double)0.01f / (1 - 0.9 * 0.9 * 0.9));
    float shrink = (float)(1 - (double)0.01f * (double)0.1f);
    int i;

    (void)unused;
    fill(w, MOST, 1);
    fill(g, MOST, 2);
    fill(s, 2 * MOST, 3);
    for (i = 0; i < MOST; i++) s[MOST + i] = fabsf(s[MOST + i]);
    memcpy(old_w, w, sizeof w);
    memcpy(old_m, s, sizeof w);
    memcpy(old_v, s + MOST, sizeof w);
    step(&o, w, g, s, MOST, 2);
    for (i = 0; i < MOST; i++) {
        float m = plus(times(0.9f, old_m[i]), times((float)(1 - 0.9), g[i]));
        float v = plus(times(0.99f, old_v[i]), times(times((float)(1 - 0.99), g[i]), g[i]));
        float size = plus(times(sqrtf(v), root), 1e-6f);
        volatile float change = times(lr, m) / size;

        assert_true(s[i] == m && s[MOST + i] == v);
        assert_true(w[i] == plus(times(old_w[i], shrink), change));
    }
}

static void update_changes_exactly_the_block(void **unused)
{
    ddp_optimizer rule[3];
    size_t n, i, k;

    (void)unused;
    rule[0] = ddp_sgd_decay(0.3f, 0.7f, 0.013f);
    rule[1] = ddp_adam(0.01f, 0.9f, 0.99f, 1e-6f, 0.1f);
    rule[2] = ddp_sgd(0.3f, 0);
    for (k = 0; k < 3; k++) {
        for (n = 0; n < 20; n++) {
            float w[MOST], g[MOST], s[2 * MOST], whole_w[MOST], whole_s[2 * MOST];

            fill(w, MOST, 1);
            fill(g, MOST, 2);
            memset(s, 0, sizeof s);
            memcpy(whole_w, w, sizeof w);
            memset(whole_s, 0, sizeof whole_s);
            step(&rule[k], w, g, s, n, 0);
            step(&rule[k], whole_w, g, whole_s, 32, 0);
            assert_memory_equal(w, whole_w, n * sizeof *w);
            fill(whole_w, MOST, 1);
            assert_memory_equal(w + n, whole_w + n, (MOST - n) * sizeof *w);
            for (i = n * (size_t)rule[k].state_per_param; i < 2 * MOST; i++) assert_true(s[i] == 0.0f);
        }
    }
}

static void sums_of_squares_match_a_plain_loop_at_every_size(void **unused)
{
    float x[MOST];
    double want;
    size_t n, i;

    (void)unused;
    fill(x, MOST, 9);
    for (n = 0; n <= MOST; n++) {
        for (want = 0, i = 0; i < n; i++) want += (double)x[i] * (double)x[i];
        assert_true(fabs(ddp__sum_squares(x, n) - want) <= 1e-14 * want);
    }
}

static void clipping_never_scales_up(void **unused)
{
    float x[3] = {3, 0, 4};
    float s = ddp__clip_factor(ddp__sum_squares(x, 3), 1);

    (void)unused;
    assert_true(near((double)s, 1 / (5 + 1e-6), 1e-7));
    ddp__scale(x, 3, s);
    assert_true(near(sqrt(ddp__sum_squares(x, 3)), 1, 1e-6));
    assert_true(ddp__clip_factor(25, 5.1) == 1.0f);
    assert_true(ddp__clip_factor(0, 1) == 1.0f);
    assert_true(isnan((double)ddp__clip_factor(NAN, 1)));
}

static void schedules_follow_their_definition(void **unused)
{
    ddp_lr_schedule s;
    ddp_schedule_kind kind;

    (void)unused;
    memset(&s, 0, sizeof s);
    s.base = 2;
    assert_true(ddp_lr_at(&s, 0) == 2.0 && ddp_lr_at(&s, 1000) == 2.0);
    s.warmup = 4;
    assert_true(ddp_lr_at(&s, 0) == 0.5 && ddp_lr_at(&s, 3) == 2.0 && ddp_lr_at(&s, 4) == 2.0);
    s.kind = DDP_LR_COSINE;
    s.total = 104;
    s.min_ratio = 0.1;
    assert_true(near(ddp_lr_at(&s, 4), 2, 1e-15) && near(ddp_lr_at(&s, 54), 1.1, 1e-15));
    assert_true(near(ddp_lr_at(&s, 104), 0.2, 1e-15) && ddp_lr_at(&s, 5000) == ddp_lr_at(&s, 104));
    s.kind = DDP_LR_STEP;
    s.step_size = 10;
    s.gamma = 0.5;
    assert_true(ddp_lr_at(&s, 13) == 2.0 && ddp_lr_at(&s, 14) == 1.0 && ddp_lr_at(&s, 34) == 0.25);
    assert_true(ddp_schedule_named("cosine", &kind) && kind == DDP_LR_COSINE);
    assert_false(ddp_schedule_named("cosinus", &kind));
    assert_false(ddp_schedule_named(NULL, &kind));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_sgd_subtracts_the_scaled_gradient),
        cmocka_unit_test(momentum_and_decay_follow_the_definition),
        cmocka_unit_test(first_adam_step_is_lr_times_the_sign),
        cmocka_unit_test(adamw_decays_weights_separately_from_the_gradient),
        cmocka_unit_test(sgd_updates_are_not_fused),
        cmocka_unit_test(adam_updates_are_not_fused),
        cmocka_unit_test(update_changes_exactly_the_block),
        cmocka_unit_test(sums_of_squares_match_a_plain_loop_at_every_size),
        cmocka_unit_test(clipping_never_scales_up),
        cmocka_unit_test(schedules_follow_their_definition),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
