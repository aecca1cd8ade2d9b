/* [pure] Landing times of transfers that span steps, compared with a simulation of every step in whole ticks.
 * With them no forward waits longer than the link makes inevitable. With any of them smaller, a forward waits
 * longer. */
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

enum { LAYERS = 5, PERIOD = 4, WARM = 60, TRIALS = 4000 };

#define PERIODS 24.0

typedef struct instance {
    ddp_profile p;
    ddp_plan plan;
    double forward[LAYERS], backward[LAYERS], comm[LAYERS];
    int step_of[LAYERS];
} instance;

static void draw(instance *x, ddp_rng *r)
{
    memset(x, 0, sizeof *x);
    x->p.layers = x->plan.layers = 1 + (int)ddp_rng_below(r, LAYERS);
    x->plan.period = 1 + (int)ddp_rng_below(r, PERIOD);
    x->plan.cost = ddp_rng_below(r, 2) ? DDP_COST_WINDOW : DDP_COST_TIMELINE;
    x->plan.step_of = x->step_of;
    x->p.forward_s = x->forward;
    x->p.backward_s = x->backward;
    x->p.comm_s = x->comm;
    x->p.alpha_s = (double)ddp_rng_below(r, 3);
    for (int l = 0; l < x->p.layers; l++) {
        x->forward[l] = (double)ddp_rng_below(r, 4);
        x->backward[l] = 1 + (double)ddp_rng_below(r, 6);
        x->comm[l] = (double)ddp_rng_below(r, ddp_rng_below(r, 3) ? 12 : 40);
        x->step_of[l] = (int)ddp_rng_below(r, (uint64_t)x->plan.period);
    }
}

/* Seconds of PERIODS periods in which each forward waits for the layers that must have landed. */
static double simulate(const instance *x, const int *landing)
{
    const int L = x->p.layers, H = x->plan.period, window = x->plan.cost == DDP_COST_WINDOW;
    double now = 0, link = 0, began = 0, arrives[LAYERS];
    long due[LAYERS]; /* the step before which the layer must land */

    for (int l = 0; l < L; l++) due[l] = -1;
    for (long step = 0; step < (WARM + (long)PERIODS) * H; step++) {
        if (step == (long)WARM * H) began = now;
        for (int l = 0; l < L; l++)
            if (!window && due[l] == step && arrives[l] > now) now = arrives[l];
        for (int l = 0; l < L; l++) {
            if (due[l] == step && arrives[l] > now) now = arrives[l];
            now += x->forward[l];
        }
        for (int l = L - 1; l >= 0; l--) {
            now += x->backward[l];
            if (x->step_of[l] != step % H || x->comm[l] <= 0) continue;
            if (link < now) link = now;
            link += x->comm[l];
            arrives[l] = link + x->p.alpha_s;
            due[l] = step + 1 + landing[l];
        }
    }
    return now - began;
}

static void no_forward_waits_and_no_landing_can_be_earlier(void **state)
{
    ddp_rng r = ddp_rng_seed(11, 0);
    int spanning = 0, slow = 0;

    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        int landing[LAYERS];
        double compute = 0, comm = 0, exposed, takes;
        instance x;
        ddp_error err;
        draw(&x, &r);
        for (int l = 0; l < x.p.layers; l++) {
            compute += (x.forward[l] + x.backward[l]) * x.plan.period;
            comm += x.comm[l];
        }
        if (ddp_plan_landing(&x.p, &x.plan, landing, &exposed, &err)) fail_msg("%s", err.msg);
        assert_true(exposed == (comm > compute ? comm - compute : 0));
        takes = simulate(&x, landing);
        for (int l = 0; l < x.p.layers; l++) {
            assert_true(landing[l] >= 0 && landing[l] < x.plan.period);
            spanning += landing[l] > 0;
        }
        if (comm > compute) { /* the link dominates, unless a landing is limited by the period */
            int cut = 0;
            for (int l = 0; l < x.p.layers; l++) cut |= landing[l] == x.plan.period - 1;
            slow++;
            if (!cut && fabs(takes - PERIODS * comm) > 1e-9 * takes)
                fail_msg("trial %d: %g, the link %g", trial, takes / PERIODS, comm);
            assert_true(takes >= PERIODS * comm * (1 - 1e-12));
            continue;
        }
        for (int l = 0; l < x.p.layers; l++) {
            int less[LAYERS];
            if (!landing[l]) continue;
            memcpy(less, landing, sizeof less);
            less[l]--;
            if (!(simulate(&x, less) > PERIODS * compute))
                fail_msg("trial %d: layer %d lands too late", trial, l);
        }
        if (takes == PERIODS * compute) continue;
        for (int l = 0, cut = 0; l < x.p.layers; l++) { /* only if a layer needs a whole period */
            cut |= landing[l] == x.plan.period - 1;
            if (l == x.p.layers - 1 && !cut)
                fail_msg("trial %d: %g, not %g", trial, takes / PERIODS, compute);
        }
    }
    assert_true(spanning > 500 && slow > 100);
}

static void a_transfer_that_fits_its_window_lands_in_its_step(void **state)
{
    double forward[2] = {1, 1}, backward[2] = {2, 2}, comm[2] = {1, 2};
    int step_of[2] = {0, 1}, landing[2] = {9, 9};
    ddp_profile p;
    ddp_plan plan;
    double exposed = -1;
    ddp_error err;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&plan, 0, sizeof plan);
    p.layers = plan.layers = plan.period = 2;
    p.forward_s = forward;
    p.backward_s = backward;
    p.comm_s = comm;
    plan.step_of = step_of;
    plan.cost = DDP_COST_WINDOW;
    assert_int_equal(ddp_plan_landing(&p, &plan, landing, &exposed, &err), DDP_OK);
    assert_true(exposed == 0 && landing[1] == 0); /* ready at 4 of 6, arrives at 6, needed at 7 */
    assert_int_equal(landing[0], 1);              /* ready at 6 of 6, arrives at 7, needed at 6 */
    comm[0] = 20;
    assert_int_equal(ddp_plan_landing(&p, &plan, landing, &exposed, &err), DDP_OK);
    assert_true(exposed == 20 + 2 - 12);
    comm[0] = -1;
    assert_int_not_equal(ddp_plan_landing(&p, &plan, landing, &exposed, &err), DDP_OK);
    assert_int_equal(ddp_plan_landing(&p, &plan, NULL, &exposed, &err), DDP_ARG);
}

/* Row 1 is ready when the step ends and takes no measurable time: it arrives before its forward. */
static void a_transfer_of_no_time_lands_in_its_step(void **state)
{
    double forward[2] = {1, 0}, backward[2] = {0, 0}, comm[2] = {0, 1e-30};
    int step_of[2] = {0, 0}, landing[2] = {9, 9};
    ddp_profile p;
    ddp_plan plan;
    double exposed = -1;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&plan, 0, sizeof plan);
    p.layers = plan.layers = 2;
    plan.period = 1;
    p.forward_s = forward;
    p.backward_s = backward;
    p.comm_s = comm;
    plan.step_of = step_of;
    plan.cost = DDP_COST_WINDOW;
    assert_int_equal(ddp_plan_landing(&p, &plan, landing, &exposed, NULL), DDP_OK);
    assert_true(landing[0] == 0 && landing[1] == 0 && exposed == 0);
    p.forward_s = NULL; /* no time at all */
    comm[1] = 0;
    landing[0] = landing[1] = 9;
    assert_int_equal(ddp_plan_landing(&p, &plan, landing, &exposed, NULL), DDP_OK);
    assert_true(landing[0] == 0 && landing[1] == 0 && exposed == 0);
}

/* Without forward times, the next forward of every row begins when its step does. */
static void forward_times_may_be_unknown(void **state)
{
    double backward[2] = {2, 2}, comm[2] = {1, 1};
    int step_of[2] = {0, 0}, landing[2] = {9, 9};
    ddp_profile p;
    ddp_plan plan;
    double exposed = -1;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&plan, 0, sizeof plan);
    p.layers = plan.layers = 2;
    plan.period = 2;
    p.backward_s = backward;
    p.comm_s = comm;
    plan.step_of = step_of;
    plan.cost = DDP_COST_WINDOW;
    assert_int_equal(ddp_plan_landing(&p, &plan, landing, &exposed, NULL), DDP_OK);
    assert_int_equal(landing[1], 0); /* ready at 2 of 4, arrives at 3 */
    assert_int_equal(landing[0], 1); /* ready at 4, arrives at 5 */
    assert_true(exposed == 0);
}

static void missing_arguments_are_named(void **state)
{
    double times[2] = {1, 1}, exposed = -1;
    int step_of[2] = {0, 0}, landing[2] = {9, 9};
    ddp_profile p;
    ddp_plan plan, none;
    ddp_error err;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&plan, 0, sizeof plan);
    p.layers = plan.layers = 2;
    plan.period = 1;
    p.backward_s = p.comm_s = times;
    none = plan;
    plan.step_of = step_of;
    assert_int_equal(ddp_plan_landing(NULL, &plan, landing, &exposed, &err), DDP_ARG);
    assert_int_equal(ddp_plan_landing(&p, NULL, landing, &exposed, &err), DDP_ARG);
    assert_int_equal(ddp_plan_landing(&p, &none, landing, &exposed, &err), DDP_ARG);
    assert_int_equal(ddp_plan_landing(&p, &plan, landing, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the profile, the plan and both results must not be NULL"));
    assert_true(exposed == -1 && landing[0] == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_forward_waits_and_no_landing_can_be_earlier),
        cmocka_unit_test(a_transfer_that_fits_its_window_lands_in_its_step),
        cmocka_unit_test(a_transfer_of_no_time_lands_in_its_step),
        cmocka_unit_test(forward_times_may_be_unknown),
        cmocka_unit_test(missing_arguments_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
