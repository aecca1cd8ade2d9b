/* Means that a trainer reports for ranks that were present from the start, joined later, or were lost. */
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
#include "../../examples/common/cli.h"
#include "../../examples/common/training.h"

enum { STEPS = 4, LAYERS = 2, COUNT = 3 * STEPS + LAYERS + TRAINING_RESTS };

static training_result *fresh(void)
{
    training_result *r = training_result_new(1, STEPS, 4);

    assert_non_null(r);
    return r;
}

static training_sums sums_in(float *x)
{
    training_sums sum;

    sum.loss = x;
    sum.divergence = x + STEPS;
    sum.ranks = x + 2 * STEPS;
    sum.layer = x + 3 * STEPS;
    sum.rest = x + 3 * STEPS + LAYERS;
    return sum;
}

/* The report of a worker that started at step `from`. */
static training_result *reported(const training_sums *sum, long from)
{
    training t;
    training_model m;
    training_rank own;

    memset(&t, 0, sizeof t);
    memset(&m, 0, sizeof m);
    t.steps = STEPS;
    t.result = fresh();
    m.layers = LAYERS;
    own = t.result->rank[0];
    own.from = from;
    for (long k = from; k < STEPS; k++) own.step[k].time_s = (double)k + 1;
    training_means(&t, &own, &m, sum);
    return t.result;
}

static void result_without_data_is_unknown(void **state)
{
    const training_result *r = fresh();

    (void)state;
    assert_true(isnan(r->first_loss) && isnan(r->final_loss) && isnan(r->val_loss) && isnan(r->val_accuracy));
    assert_true(isnan(r->test_accuracy) && isnan(r->step_s) && isnan(r->hidden_pct) &&
                isnan(r->samples_per_s));
}

static void mean_of_a_step_leaves_out_ranks_that_joined_later(void **state)
{
    float x[COUNT] = {6, 4, 9, 6, 0, 0, 3, 0, 2, 2, 3, 3};
    const training_sums sum = sums_in(x);
    const training_result *r;

    (void)state;
    sum.rest[TRAINING_RANKS] = 3;
    sum.rest[TRAINING_BEGAN] = 2;
    sum.rest[TRAINING_COUNTED] = 2;
    sum.rest[TRAINING_STEP_S] = 1;
    r = reported(&sum, 2); /* the reporting rank joined later */
    assert_true(r->first_loss == 3 && r->final_loss == 2 && r->step[1].loss == 2 &&
                r->step[2].divergence == 1);
    assert_true(r->step_s == 0.5 && r->first == 2 && r->steps == STEPS && r->step[3].time_s == 4);
}

static void first_loss_is_unknown_when_all_ranks_joined_later(void **state)
{
    float x[COUNT] = {0, 0, 9, 6, 0, 0, 0, 0, 0, 0, 3, 3};
    const training_sums sum = sums_in(x);
    const training_result *r;

    (void)state;
    sum.rest[TRAINING_RANKS] = 3;
    r = reported(&sum, 2);
    assert_true(isnan(r->first_loss) && r->final_loss == 2);
    assert_true(isnan(r->step[0].loss) && isnan(r->step_s) && isnan(r->hidden_pct));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(result_without_data_is_unknown),
        cmocka_unit_test(mean_of_a_step_leaves_out_ranks_that_joined_later),
        cmocka_unit_test(first_loss_is_unknown_when_all_ranks_joined_later),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
