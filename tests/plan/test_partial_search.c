/* [pure] Hard cases for the searches of the partial planner: tight packings, time limits. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { MOST = 801 };

#include "plan/partial_lab.h"

/* Only the last layer of backward takes time, `full` seconds, and it sends nothing. Transfers of a step are
 * thus ready at once and overlap fully if they take no longer. `each` layers together take `full` seconds,
 * but in random order: the best plan overlaps all of them and leaves the link no pause. */
static void packing(instance *x, ddp_rng *r, int steps, int each, int full)
{
    double c[MOST];
    int order[MOST], n = 0;

    instance_init(x, steps * each + 1);
    x->b[0] = full;
    for (int h = 0; h < steps; h++) {
        int left = full;
        for (int k = each - 1; k > 0; k--) {
            const int most = left - k < 2 * full / each ? left - k : 2 * full / each;
            const int takes = 1 + (int)ddp_rng_below(r, (uint64_t)most);
            c[n++] = takes;
            left -= takes;
        }
        c[n++] = left;
    }
    ddp__shuffle(order, n, r);
    for (int l = 1; l <= n; l++) x->c[l] = c[order[l - 1]];
}

/* Exposed time of a packing. */
static double exposed(const instance *x, int steps, double full)
{
    double load[MOST] = {0}, sum = 0;
    ddp_plan plan = solve(&x->p, DDP_SOLVER_SCATTER, DDP_COST_TIMELINE, steps, DDP_FILL_NONE);

    for (int l = 1; l < x->p.layers; l++) {
        assert_in_range(plan.step_of[l], 0, steps - 1);
        load[plan.step_of[l]] += x->c[l];
    }
    for (int h = 0; h < steps; h++) sum += load[h] > full ? load[h] - full : 0;
    assert_true(fabs(plan.exposed_s - sum) < 1e-9);
    assert_true(plan.lower_bound_s <= steps * full);
    ddp_plan_free(&plan);
    return sum;
}

/* A search that lacks one kind of move leaves twice as much exposed. */
static void layers_are_packed_almost_without_a_gap(void **state)
{
    ddp_rng r = ddp_rng_seed(12, 0);
    instance x;
    double sum = 0, one;
    int whole = 0;

    (void)state;
    for (int n = 0; n < 10; n++) {
        packing(&x, &r, 12, 3, 300);
        sum += one = exposed(&x, 12, 300);
        whole += one == 0;
    }
    print_message("%d of 10 packings are perfect, %g s of 36000 s are exposed\n", whole, sum);
    assert_true(sum <= 14);
    packing(&x, &r, 200, 4, 1000); /* so large that the first descents must suffice */
    one = exposed(&x, 200, 1000);
    print_message("%g s of 200000 s are exposed\n", one);
    assert_true(one <= 60);
}

/* The clock is checked every 65536 partitions: fewer are always tried completely. */
static void brute_force_times_out_on_large_problems_only(void **state)
{
    ddp_rng r = ddp_rng_seed(41, 0);

    (void)state;
    for (int n = 0; n < 20; n++) {
        instance x;
        ddp_plan brute, best;
        instance_init(&x, 12); /* C(12 + 3, 3) = 455 partitions */
        for (int l = 0; l < 12; l++) {
            x.b[l] = ddp_rng_uniform(&r);
            x.c[l] = 4 * ddp_rng_uniform(&r);
        }
        brute = solve_within(1e-9, &x.p, DDP_SOLVER_BRUTE, DDP_COST_TIMELINE, 4, DDP_FILL_NONE);
        best = solve(&x.p, DDP_SOLVER_OPTIMAL, DDP_COST_TIMELINE, 4, DDP_FILL_NONE);
        assert_true(fabs(brute.objective_s - best.objective_s) < 1e-9);
        ddp_plan_free(&brute);
        ddp_plan_free(&best);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_packed_almost_without_a_gap),
        cmocka_unit_test(brute_force_times_out_on_large_problems_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
