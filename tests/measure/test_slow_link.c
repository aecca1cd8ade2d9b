/* A link that becomes ten times slower during training is followed, whichever rank it belongs to. The ranks
 * are threads with emulated links on the real clock: on the virtual one, waits for other ranks are exact. */
#include "dreamddp.h"
#include "measure/timing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { WORLD = 3, LAYERS = 6, COUNT = 8000, STEPS = 90 };

typedef struct run {
    double before[WORLD], after[WORLD]; /* seconds per byte of the link */
    long steps[WORLD], plans[WORLD];
} run;

/* Trains until the plan follows the link, or for STEPS steps. */
static int worker(ddp_ctx *d, void *user)
{
    static const char *const names[LAYERS] = {"a", "b", "c", "d", "e", "f"};
    run *x = (run *)user;
    float *w = (float *)calloc(2 * LAYERS * COUNT, sizeof *w);
    const int r = ddp_rank(d);
    int bad = w == NULL;

    for (int l = 0; !bad && l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.name = names[l];
        layer.params = w + (size_t)(2 * l) * COUNT;
        layer.grads = layer.params + COUNT;
        layer.count = COUNT;
        bad = ddp_add_layer(d, &layer);
    }
    for (long step = 0; !bad && step < STEPS; step++) {
        ddp_stats s;
        for (int l = 0; !bad && l < LAYERS; l++) bad = ddp_forward_begin(d, l);
        for (int l = LAYERS - 1; !bad && l >= 0; l--) {
            ddp_backward_begin(d, l);
            ddp_sleep_until(ddp_now() + 0.01);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        ddp_get_stats(d, &s);
        x->steps[r] = step + 1;
        x->plans[r] = s.replans;
        x->after[r] = ddp__link_is(d, 0).beta_s;
        if (step == 7) x->before[r] = x->after[r];
        if (step > 7 && x->after[r] > 5 * x->before[r]) break;
    }
    free(w);
    return bad;
}

static void follow(int slow, ddp_strategy strategy)
{
    static run x;
    char script[] = "/tmp/test_slow_link.XXXXXX", text[64];
    const int n = snprintf(text, sizeof text, "t=1.5 slow %d to 4mbit\n", slow), fd = mkstemp(script);
    ddp_config cfg;
    ddp_error err;
    int bad;

    memset(&x, 0, sizeof x);
    assert_true(fd >= 0 && write(fd, text, (size_t)n) == n);
    close(fd);
    memset(&cfg, 0, sizeof cfg);
    cfg.world = WORLD;
    cfg.transport = DDP_THREADS;
    cfg.strategy = strategy;
    cfg.period = 3;
    cfg.no_env = 1;
    cfg.net = "40mbit,1ms";
    cfg.network.net_script = script;
    bad = ddp_launch(&cfg, worker, &x, &err);
    unlink(script);
    if (bad) fail_msg("%s", err.msg);
    for (int r = 0; r < WORLD; r++)
        if (!(x.after[r] > 5 * x.before[r] && x.after[r] < 20 * x.before[r]) || x.plans[r] != x.plans[0] ||
            x.after[r] < x.after[0] || x.after[r] > x.after[0])
            fail_msg("rank %d: %ld plans, %g s per byte, then %g; rank 0: %g", r, x.plans[r], x.before[r],
                     x.after[r], x.after[0]);
}

static void slow_link_of_the_first_rank_is_followed(void **state)
{
    (void)state;
    follow(0, DDP_DREAMDDP);
}

static void slow_link_of_another_rank_is_followed(void **state)
{
    (void)state;
    follow(1, DDP_DREAMDDP);
}

static void slow_link_of_another_rank_is_followed_by_gradients(void **state)
{
    (void)state;
    follow(2, DDP_BYTESCHEDULER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_link_of_the_first_rank_is_followed),
        cmocka_unit_test(slow_link_of_another_rank_is_followed),
        cmocka_unit_test(slow_link_of_another_rank_is_followed_by_gradients),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
