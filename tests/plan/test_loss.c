/* The predicted loss of a strategy, against values worked out by hand from small tables, and reading CSV. */
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

static char dir[] = "/tmp/ddp_loss_XXXXXX";

static int is_near(double x, double y) { return fabs(x - y) <= 1e-9 * (1 + fabs(y)); }
#define NEAR(x, y) assert_true(is_near(x, y))

/* ssgd: 4 N^-0.2. The penalties are round numbers. */
static double ssgd(double steps) { return 4 * pow(steps, -0.2); }

static ddp_loss_point point(const char *strategy, int stream, int period, ddp_coding coding, double steps,
                            double penalty)
{
    ddp_loss_point x;

    memset(&x, 0, sizeof x);
    snprintf(x.strategy, sizeof x.strategy, "%s", strategy);
    x.stream = stream;
    x.period = period;
    x.workers = 4;
    x.coding = coding;
    x.steps = steps;
    x.loss = ssgd(steps) * (1 + penalty);
    return x;
}

typedef struct lab {
    ddp_loss_point point[16];
    ddp_loss_table table;
    ddp_loss_fit fit;
} lab;

static void add(lab *x, ddp_loss_point p)
{
    x->point[x->table.count++] = p;
    x->table.point = x->point;
}

/* A table with two runs of ssgd. */
static void begin(lab *x)
{
    memset(x, 0, sizeof *x);
    add(x, point("ssgd", 0, 0, DDP_AS_FLOAT, 400, 0));
    add(x, point("ssgd", 0, 0, DDP_AS_FLOAT, 6400, 0));
}

static void fit(lab *x)
{
    ddp_error err;

    if (ddp_loss_fit_new(&x->table, &x->fit, &err) != DDP_OK) fail_msg("%s", err.msg);
}

static ddp_candidate candidate(const char *strategy, int stream, int period, ddp_coding coding)
{
    ddp_candidate c;

    c.strategy = strategy;
    c.stream = stream;
    c.period = period;
    c.coding = coding;
    return c;
}

static double penalty_of(const ddp_loss_fit *f, ddp_candidate c, int workers, double steps)
{
    ddp_error err;
    double out = -1;

    if (ddp_loss_penalty(f, &c, workers, steps, &out, &err) != DDP_OK) fail_msg("%s", err.msg);
    return out;
}

static double steps_of(const ddp_loss_fit *f, ddp_candidate c, double steps)
{
    ddp_error err;
    double out = -1;

    if (ddp_loss_steps(f, &c, 4, steps, &out, &err) != DDP_OK) fail_msg("%s", err.msg);
    return out;
}

/* ---- penalties ---- */

static void a_measured_point_has_its_own_penalty(void **state)
{
    const ddp_candidate dreamddp = candidate("dreamddp", 0, 5, DDP_AS_FLOAT);
    ddp_loss_fit f;
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_loss_fit_new(NULL, &f, &err), DDP_OK); /* the built-in table */
    NEAR(penalty_of(&f, dreamddp, 4, 400), 2.1413 / 2.0487 - 1);
    NEAR(penalty_of(&f, dreamddp, 4, 2000), 1.6375 / 1.6149 - 1);
    ddp_loss_fit_free(&f);
    ddp_loss_fit_free(NULL);
}

static void a_bit_identical_strategy_costs_nothing(void **state)
{
    static const char *const exact[] = {"ssgd", "wfbp", "mgwfbp", "usbyte", "bsp"};
    lab x;

    (void)state;
    begin(&x);
    fit(&x);
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        NEAR(penalty_of(&x.fit, candidate(exact[i], 0, 0, DDP_AS_FLOAT), 64, 1e6), 0);
        NEAR(steps_of(&x.fit, candidate(exact[i], 0, 0, DDP_AS_FLOAT), 1234), 1234);
    }
    ddp_loss_fit_free(&x.fit);
}

static void penalties_between_periods_are_geometric_means(void **state)
{
    lab x;

    (void)state;
    begin(&x);
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, 0.04));
    add(&x, point("dreamddp", 0, 20, DDP_AS_FLOAT, 400, 0.08));
    fit(&x);
    NEAR(penalty_of(&x.fit, candidate("dreamddp", 0, 10, DDP_AS_FLOAT), 4, 400), sqrt(0.04 * 0.08));
    /* twice the penalty for four times the period */
    NEAR(x.fit.by_period, 0.5);
    NEAR(penalty_of(&x.fit, candidate("dreamddp", 0, 80, DDP_AS_FLOAT), 4, 400), 0.16);
    NEAR(penalty_of(&x.fit, candidate("dreamddp", 0, 2, DDP_AS_FLOAT), 4, 400), 0.04 * sqrt(0.4));
    ddp_loss_fit_free(&x.fit);
}

static void a_strategy_with_one_period_uses_the_exponent_of_the_others(void **state)
{
    lab x;

    (void)state;
    begin(&x);
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, 0.02));
    add(&x, point("diloco", 1, 5, DDP_AS_FLOAT, 400, 0.03));
    add(&x, point("diloco", 1, 50, DDP_AS_FLOAT, 400, 0.03 * pow(10, 0.3)));
    fit(&x);
    NEAR(penalty_of(&x.fit, candidate("dreamddp", 0, 20, DDP_AS_FLOAT), 4, 400), 0.02 * pow(4, 0.3));
    ddp_loss_fit_free(&x.fit);
}

static void longer_periods_outside_of_the_table_never_cost_less(void **state)
{
    lab x;

    (void)state;
    begin(&x);
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, 0.04));
    add(&x, point("dreamddp", 0, 10, DDP_AS_FLOAT, 400, 0.03));
    fit(&x);
    NEAR(x.fit.by_period, 0);
    NEAR(penalty_of(&x.fit, candidate("dreamddp", 0, 50, DDP_AS_FLOAT), 4, 400), 0.03);
    ddp_loss_fit_free(&x.fit);
}

static void steps_between_runs_are_interpolated_and_others_clamped(void **state)
{
    const ddp_candidate c = candidate("dreamddp", 0, 5, DDP_AS_FLOAT);
    lab x;

    (void)state;
    begin(&x);
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, 0.04));
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 6400, 0.01));
    fit(&x);
    NEAR(penalty_of(&x.fit, c, 4, 1600), 0.02);
    NEAR(penalty_of(&x.fit, c, 4, 1), 0.04);
    NEAR(penalty_of(&x.fit, c, 4, 1e6), 0.01);
    NEAR(x.fit.by_steps, -0.5);
    ddp_loss_fit_free(&x.fit);
}

static void penalties_of_other_workers_follow_the_measured_exponent(void **state)
{
    const ddp_candidate c = candidate("dreamddp", 0, 5, DDP_AS_FLOAT);
    ddp_loss_point p;
    lab x;

    (void)state;
    begin(&x);
    p = point("ssgd", 0, 0, DDP_AS_FLOAT, 400, 0);
    p.workers = 8;
    add(&x, p);
    p = point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, 0.06);
    p.workers = 8;
    add(&x, p);
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, 0.03));
    add(&x, point("dreamddp", 0, 50, DDP_AS_FLOAT, 400, 0.09));
    fit(&x);
    NEAR(x.fit.by_workers, 1);
    NEAR(penalty_of(&x.fit, c, 4, 400), 0.03);
    NEAR(penalty_of(&x.fit, c, 8, 400), 0.06);
    NEAR(penalty_of(&x.fit, c, 64, 400), 0.06);
    NEAR(penalty_of(&x.fit, c, 2, 400), 0.03);
    NEAR(penalty_of(&x.fit, candidate("dreamddp", 0, 50, DDP_AS_FLOAT), 8, 400), 0.18);
    ddp_loss_fit_free(&x.fit);
}

/* The three penalties are no power law, so a point of other workers would give another value. */
static void the_point_with_the_nearest_workers_counts(void **state)
{
    static const int workers[] = {16, 4, 8};
    static const double penalty[] = {0.07, 0.03, 0.06};
    const ddp_candidate c = candidate("dreamddp", 0, 5, DDP_AS_FLOAT);
    lab x;

    (void)state;
    begin(&x);
    for (int i = 0; i < 3; i++) {
        ddp_loss_point p = point("ssgd", 0, 0, DDP_AS_FLOAT, 400, 0);
        p.workers = workers[i];
        if (p.workers != 4) add(&x, p);
        p = point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, penalty[i]);
        p.workers = workers[i];
        add(&x, p);
    }
    fit(&x);
    for (int i = 0; i < 3; i++) NEAR(penalty_of(&x.fit, c, workers[i], 400), penalty[i]);
    ddp_loss_fit_free(&x.fit);
}

static void a_format_adds_the_difference_of_its_points(void **state)
{
    ddp_candidate c = candidate("diloco", 1, 20, DDP_AS_INT8);
    ddp_error err;
    double out = 7;
    lab x;

    (void)state;
    begin(&x);
    add(&x, point("diloco", 1, 5, DDP_AS_FLOAT, 400, 0.04));
    add(&x, point("diloco", 1, 5, DDP_AS_INT8, 400, 0.05));
    add(&x, point("diloco", 1, 20, DDP_AS_FLOAT, 400, 0.08));
    fit(&x);
    NEAR(penalty_of(&x.fit, c, 4, 400), 0.09);
    c.coding = DDP_AS_BFLOAT; /* finer than int8 */
    NEAR(penalty_of(&x.fit, c, 4, 400), 0.09);
    c.coding = DDP_AS_INT4;
    assert_int_equal(ddp_loss_penalty(&x.fit, &c, 4, 400, &out, &err), DDP_UNSUPPORTED);
    assert_string_equal(err.msg,
                        "the loss table has no point of diloco with overlap stream with this wire format "
                        "or a coarser one; add measured runs of it to a table of your own");
    assert_true(out >= 7 && out <= 7);
    c.stream = 0;
    assert_int_equal(ddp_loss_penalty(&x.fit, &c, 4, 400, &out, &err), DDP_UNSUPPORTED);
    assert_string_equal(err.msg,
                        "the loss table has no point of diloco; add measured runs of it to a table of your "
                        "own");
    c.strategy = "dreamdp";
    assert_int_equal(ddp_loss_penalty(&x.fit, &c, 4, 400, &out, &err), DDP_ARG);
    c.strategy = "diloco";
    assert_int_equal(ddp_loss_penalty(&x.fit, &c, 0, 400, &out, &err), DDP_ARG);
    assert_int_equal(ddp_loss_penalty(&x.fit, &c, 4, 0, &out, &err), DDP_ARG);
    ddp_loss_fit_free(&x.fit);
}

static void a_lower_loss_than_ssgd_counts_as_almost_equal(void **state)
{
    lab x;

    (void)state;
    begin(&x);
    add(&x, point("osp", 0, 0, DDP_AS_FLOAT, 400, -0.02));
    fit(&x);
    NEAR(penalty_of(&x.fit, candidate("osp", 0, 0, DDP_AS_FLOAT), 4, 400), 1e-4);
    ddp_loss_fit_free(&x.fit);
}

/* ---- steps ---- */

static void a_constant_penalty_multiplies_the_steps_by_its_power(void **state)
{
    lab x;

    (void)state;
    begin(&x);
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, 0.05));
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 6400, 0.05));
    fit(&x);
    NEAR(x.fit.floor, 0);
    NEAR(x.fit.decay, 0.2);
    NEAR(ddp_loss_of_ssgd(&x.fit, 1000), ssgd(1000));
    /* 1.05 x 4 M^-0.2 = 4 N^-0.2 */
    assert_true(
        fabs(steps_of(&x.fit, candidate("dreamddp", 0, 5, DDP_AS_FLOAT), 1000) / 1000 - pow(1.05, 5)) < 1e-8);
    ddp_loss_fit_free(&x.fit);
}

static void the_steps_are_the_first_with_the_loss(void **state)
{
    const ddp_candidate c = candidate("dreamddp", 0, 5, DDP_AS_FLOAT);
    double steps;
    lab x;

    (void)state;
    begin(&x);
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 400, 0.08));
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 6400, 0.02));
    fit(&x);
    steps = steps_of(&x.fit, c, 800);
    assert_true((1 + penalty_of(&x.fit, c, 4, steps)) * ssgd(steps) <= ssgd(800));
    for (double m = 800; m < 0.9999 * steps; m *= 1.01)
        assert_true((1 + penalty_of(&x.fit, c, 4, m)) * ssgd(m) > ssgd(800));
    ddp_loss_fit_free(&x.fit);
}

static void a_loss_below_the_floor_of_the_curve_is_never_reached(void **state)
{
    static const double steps[] = {100, 400, 1600, 6400};
    double needs;
    lab x;

    (void)state;
    memset(&x, 0, sizeof x);
    for (int i = 0; i < 4; i++) {
        add(&x, point("ssgd", 0, 0, DDP_AS_FLOAT, steps[i], 0));
        x.point[i].loss = 1 + 8 / sqrt(steps[i]);
    }
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 6400, 0));
    x.point[4].loss = 1.15 * (1 + 8 / 80.0);
    fit(&x);
    assert_true(fabs(x.fit.floor - 1) < 0.03 && fabs(x.fit.decay - 0.5) < 0.03);
    /* ssgd has 1.1 after 6400 steps. 1.15 times the floor is more */
    needs = steps_of(&x.fit, candidate("dreamddp", 0, 5, DDP_AS_FLOAT), 6400);
    assert_true(needs >= DBL_MAX);
    /* ssgd has 1.8 after 100 steps, which 1.15 (1 + 8 / sqrt(M)) is after about 200 */
    needs = steps_of(&x.fit, candidate("dreamddp", 0, 5, DDP_AS_FLOAT), 100);
    assert_true(needs > 190 && needs < 215);
    ddp_loss_fit_free(&x.fit);
}

/* ---- tables ---- */

static void refuses(lab *x, const char *why)
{
    ddp_error err;
    ddp_loss_fit f;

    err.msg[0] = 0;
    assert_int_equal(ddp_loss_fit_new(&x->table, &f, &err), DDP_ARG);
    if (!strstr(err.msg, why)) fail_msg("%s", err.msg);
}

static void a_table_that_cannot_be_fitted_is_an_error(void **state)
{
    lab x;

    (void)state;
    begin(&x);
    x.table.count = 1;
    refuses(&x, "no two points of ssgd with different numbers of steps");
    begin(&x);
    x.point[1].workers = 8;
    refuses(&x, "only one number of steps for each number of workers");
    begin(&x);
    x.point[1].loss = 9;
    refuses(&x, "does not decrease with the steps");
    begin(&x);
    add(&x, point("dreamddp", 0, 5, DDP_AS_FLOAT, 500, 0.1));
    refuses(&x, "loss point 3 (dreamddp): no point of ssgd has 4 workers and 500 steps; add one");
    begin(&x);
    x.point[1].loss = 0;
    refuses(&x, "loss point 2 (ssgd): loss is 0; it must be finite and above 0");
    begin(&x);
    x.point[0].workers = 0;
    refuses(&x, "0 workers");
    begin(&x);
    x.point[0].coding = DDP_AS_INT8;
    refuses(&x, "loss point 1: ssgd has a period, an overlap or a wire format");
    begin(&x);
    x.point[0].strategy[0] = 0;
    refuses(&x, "loss point 1: the strategy has no name");
    x.table.point = NULL;
    refuses(&x, "the loss table has no points");
}

static const char *file_of(const char *text)
{
    static char path[64];
    FILE *f;

    snprintf(path, sizeof path, "%s/t.csv", dir);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void a_file_has_its_points_in_order(void **state)
{
    ddp_loss_table t;
    ddp_error err;

    (void)state;
    assert_int_equal(
        ddp_loss_table_read(file_of("loss,steps,strategy,note,wire,workers,period,overlap\r\n"
                                    "2.0,400,ssgd,,,4,,\r\n1.5,2000,ssgd,\"a, b\",f32,4,0,none\r\n\r\n"
                                    "2.25,400,diloco,,int4,4,25,stream\n"),
                            &t, &err),
        DDP_OK);
    assert_int_equal(t.count, 3);
    assert_string_equal(t.point[2].strategy, "diloco");
    assert_true(t.point[2].stream == 1 && t.point[2].period == 25 && t.point[2].workers == 4 &&
                t.point[2].coding == DDP_AS_INT4);
    NEAR(t.point[2].steps, 400);
    NEAR(t.point[2].loss, 2.25);
    assert_true(t.point[0].coding == DDP_AS_FLOAT && t.point[0].period == 0 && t.point[0].stream == 0);
    ddp_loss_table_free(&t);
    assert_int_equal(t.count, 0);
    ddp_loss_table_free(NULL);
}

static void a_broken_file_is_an_error_with_its_line(void **state)
{
#define HEAD "strategy,overlap,period,workers,wire,steps,loss\n"
#define BASE HEAD "ssgd,none,0,4,f32,400,2\nssgd,none,0,4,f32,2000,1.5\n"
    static const struct {
        const char *text, *why;
    } broken[] = {
        {"", "is empty; a loss table begins with its header"},
        {"strategy,workers,steps\n", "line 1: column loss is missing; the header is strategy,overlap,period"},
        {"strategy,strategy,workers,steps,loss\n", "line 1: column strategy appears twice; keep one"},
        {HEAD "ssgd,none,0,4,f32,400,soon\n", "line 2: loss is 'soon'; a number from 1e-09 to 1e9 is needed"},
        {HEAD "ssgd,none,0,4,f32,400,-1\n", "line 2: loss is '-1'"},
        {HEAD "ssgd,none,0,4,f32,400,\n", "line 2: loss is ''"},
        {HEAD "ssgd,none,0,2.5,f32,400,2\n",
         "line 2: workers is '2.5'; a whole number from 1 to 1e9 is needed"},
        {HEAD "ssgd,none,0,4,f32,400\n", "line 2: column loss is missing; the line has only 6 fields"},
        {HEAD "ssgd,none,0,4,f64,400,2\n", "line 2: wire is 'f64'; use f32, bf16, int8, int4 or e3m0"},
        {HEAD "diloco,eager,5,4,f32,400,2\n", "line 2: overlap is 'eager'; use none or stream"},
        {HEAD ",none,0,4,f32,400,2\n", "line 2: strategy is ''; a name such as dreamddp is needed"},
        {HEAD "\"ssgd,none,0,4,f32,400,2\n", "line 2: a quote is not closed"},
        {HEAD, "no two points of ssgd"},
        {BASE "dreamddp,none,5,8,f32,400,2.1\n",
         "line 4: loss point 3 (dreamddp): no point of ssgd has 8 workers and 400 steps; add one"},
    };
    ddp_loss_table t;
    ddp_error err;

    (void)state;
    memset(&t, 0, sizeof t);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        assert_int_equal(ddp_loss_table_read(file_of(broken[i].text), &t, &err), DDP_FORMAT);
        if (!strstr(err.msg, broken[i].why) || !strstr(err.msg, "t.csv"))
            fail_msg("%s, but: %s", broken[i].why, err.msg);
        assert_true(t.count == 0 && !t.point);
    }
    assert_int_equal(ddp_loss_table_read("/nowhere/t.csv", &t, &err), DDP_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_measured_point_has_its_own_penalty),
        cmocka_unit_test(a_bit_identical_strategy_costs_nothing),
        cmocka_unit_test(penalties_between_periods_are_geometric_means),
        cmocka_unit_test(a_strategy_with_one_period_uses_the_exponent_of_the_others),
        cmocka_unit_test(longer_periods_outside_of_the_table_never_cost_less),
        cmocka_unit_test(steps_between_runs_are_interpolated_and_others_clamped),
        cmocka_unit_test(penalties_of_other_workers_follow_the_measured_exponent),
        cmocka_unit_test(the_point_with_the_nearest_workers_counts),
        cmocka_unit_test(a_format_adds_the_difference_of_its_points),
        cmocka_unit_test(a_lower_loss_than_ssgd_counts_as_almost_equal),
        cmocka_unit_test(a_constant_penalty_multiplies_the_steps_by_its_power),
        cmocka_unit_test(the_steps_are_the_first_with_the_loss),
        cmocka_unit_test(a_loss_below_the_floor_of_the_curve_is_never_reached),
        cmocka_unit_test(a_table_that_cannot_be_fitted_is_an_error),
        cmocka_unit_test(a_file_has_its_points_in_order),
        cmocka_unit_test(a_broken_file_is_an_error_with_its_line),
    };
    int failed;

    if (!mkdtemp(dir)) return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)remove(file_of(""));
    (void)rmdir(dir);
    return failed;
}
