/* [pure] The Preserver, compared with the paper's Table V, a sampled random walk and worked numbers. */
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

static ddp_preserver model(double mu, double sigma, double start)
{
    ddp_preserver m;

    memset(&m, 0, sizeof m);
    m.eta = 0.01;
    m.mu = mu;
    m.sigma = sigma;
    m.batch = 256;
    m.start = start;
    return m;
}

static ddp_preserved test_of(const ddp_preserver *m, const int *k, int n)
{
    ddp_preserved r;
    ddp_error err;

    if (ddp_preserver_test(m, k, n, &r, &err) != DDP_OK) fail_msg("%s", err.msg);
    return r;
}

static void near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance)) fail_msg("%.9g is not within %g of %.9g", a, tolerance, b);
}

/* Simpson's rule on the density; shares no formula with the library. */
static double integrated(const ddp_preserver *m, double s, int k)
{
    double mean = s - m->target - m->eta * m->mu, d = m->eta * m->sigma / sqrt(k * m->batch);
    double sum = 0, z, w;
    int i, n = 20000;

    for (i = 0; i <= n; i++) {
        z = -10 + 20.0 * i / n;
        w = i == 0 || i == n ? 1 : i % 2 ? 4 : 2;
        sum += w * fabs(mean + d * z) * exp(-0.5 * z * z);
    }
    return m->target + sum * (20.0 / n) / 3 / sqrt(2 * 3.14159265358979323846);
}

static void the_expectation_is_that_of_the_folded_normal(void **state)
{
    ddp_rng r = ddp_rng_seed(61, 0);
    int n;

    (void)state;
    for (n = 0; n < 200; n++) {
        ddp_preserver m = model(3 * ddp_rng_uniform(&r), 400 * ddp_rng_uniform(&r), 1);
        int k = (int)ddp_rng_below(&r, 4) + 1;
        double s = ddp_rng_uniform(&r);
        m.target = 0.3 * ddp_rng_uniform(&r);
        near(ddp_preserver_expect(&m, s + m.target, k), integrated(&m, s + m.target, k), 1e-6);
    }
}

/* Table V: eta 0.01, S* 0, B 256, N 4, k = 2, 1, 1. */
static void table_v_is_reproduced(void **state)
{
    static const int k[3] = {2, 1, 1};
    ddp_preserver m = model(0.962, 192.2, 0.2103);
    double s;
    int i;
    static const double base[4] = {.2050, .2000, .1955, .1915}, plan[3] = {.2020, .1973, .1931};
    ddp_preserved r;

    (void)state;
    near(0.1922 / 0.1935, 0.993, 5e-4); /* the last values in the row give its ratio */
    /* the first step in the row inverts to this pair */
    near(ddp_preserver_expect(&m, 0.2103, 1), 0.2054, 5e-5);
    near(ddp_preserver_expect(&m, 0.2103, 2), 0.2012, 5e-5);
    near((0.2103 - 0.01 * 0.962) / (0.01 * 192.2 / 16), 1.7, 0.05); /* a: noise dominates */
    /* the best constant pair for the whole row. The printed row needs changing mu and sigma. */
    m = model(0.86, 180, 0.2103);
    for (s = m.start, i = 0; i < 4; i++) near(s = ddp_preserver_expect(&m, s, 1), base[i], 6e-5);
    for (s = m.start, i = 0; i < 3; i++) near(s = ddp_preserver_expect(&m, s, k[i]), plan[i], 6e-5);
    r = test_of(&m, k, 3);
    near(r.ratio, 0.9917, 1e-4);
    assert_int_equal(r.accepted, 1);
}

static void the_test_depends_on_where_the_cycle_starts(void **state)
{
    static const int first[4] = {1, 1, 1, 2}, third[4] = {1, 1, 2, 1}, last[4] = {2, 1, 1, 1};
    ddp_preserver m = model(0.962, 192.2, 0.2103);

    (void)state;
    near(test_of(&m, first, 4).ratio, 1.0117, 5e-4);
    assert_int_equal(test_of(&m, first, 4).accepted, 0);
    near(test_of(&m, last, 4).ratio, 0.9989, 5e-4);
    assert_int_equal(test_of(&m, last, 4).accepted, 1);
    m.rotations = 1; /* the worst case is the same for any start */
    near(test_of(&m, third, 4).ratio, test_of(&m, first, 4).ratio, 1e-12);
    near(test_of(&m, first, 4).ratio, test_of(&m, last, 4).ratio, 1e-12);
    assert_int_equal(test_of(&m, last, 4).accepted, 0);
    m.one_sided = 1; /* the plan's loss is lower: accepted */
    assert_int_equal(test_of(&m, first, 4).accepted, 1);
}

static void merging_costs_a_step_without_noise_and_nothing_as_a_sum(void **state)
{
    static const int k[2] = {2, 2};
    ddp_preserver m = model(3.05, 0, 2.5); /* decreases by 0.0305 per update */
    ddp_preserved r = test_of(&m, k, 2);

    (void)state;
    near(r.expected_base, 2.5 - 4 * 0.0305, 1e-12);
    near(r.expected_plan, 2.5 - 2 * 0.0305, 1e-12);
    near(r.ratio, 0.975, 1e-3);
    assert_int_equal(r.accepted, 0);
    m.sum = 1;
    near(test_of(&m, k, 2).ratio, 1, 1e-12);
    m.sum = 0;
    m.tolerance = 0.03;
    assert_int_equal(test_of(&m, k, 2).accepted, 1);
    m.tolerance = 0;
    m.start = m.target = 100; /* an offset dilutes the difference: at the goal there is none */
    m.start += 2.5;
    assert_int_equal(test_of(&m, k, 2).accepted, 1);
}

static void no_merging_is_always_accepted(void **state)
{
    static const int k[5] = {1, 1, 1, 1, 1};
    ddp_rng r = ddp_rng_seed(62, 0);
    int n;

    (void)state;
    for (n = 0; n < 200; n++) {
        ddp_preserver m = model(ddp_rng_uniform(&r), 300 * ddp_rng_uniform(&r), 0.5);
        ddp_preserved v = test_of(&m, k, (int)ddp_rng_below(&r, 5) + 1);
        assert_false(v.ratio < 1 || v.ratio > 1);
        assert_int_equal(v.accepted, 1);
    }
}

/* Table II of the paper in seconds, two links, parts of 11.3 ms. */
static ddp_status vgg19(const ddp_preserver *m, ddp_delayed_plan *plan, ddp_preserved *out, ddp_error *err)
{
    static double f[6] = {.001238, .028799, .004801, .001899, .000326, .000103};
    static double b[6] = {.072496, .012786, .004872, .002319, .000484, .000162};
    static double c[6] = {.001968, .011262, .015447, .178643, .031754, .008651};
    ddp_delayed_options o;
    ddp_profile p;

    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    p.layers = 6;
    p.forward_s = f;
    p.backward_s = b;
    p.comm_s = c;
    o.links = 2;
    o.mu = 1.65;
    o.partition_s = 11.3e-3;
    o.solver = DDP_KNAPSACK_GREEDY;
    return ddp_preserver_plan(&p, &o, m, plan, out, err);
}

static void capacity_grows_until_the_test_accepts(void **state)
{
    ddp_preserver m = model(3.05, 0, 2.5); /* rejects every merge */
    ddp_delayed_plan plan;
    ddp_preserved r;
    ddp_error err;

    (void)state;
    assert_int_equal(vgg19(&m, &plan, &r, &err), DDP_OK);
    assert_int_equal(r.accepted, 1);
    assert_int_equal(r.retries, 2);
    near(plan.capacity_scale, 1.21, 1e-12);
    near(plan.iteration_s, 0.1567, 5e-5);
    assert_int_equal(plan.updates, 1);
    assert_int_equal(plan.k[0], 1);
    ddp_delayed_plan_free(&plan);
    m.tolerance = 0.1; /* accepts the first plan */
    assert_int_equal(vgg19(&m, &plan, &r, &err), DDP_OK);
    assert_int_equal(r.retries, 0);
    assert_int_equal(plan.updates, 4);
    ddp_delayed_plan_free(&plan);
}

static void the_best_of_all_retries_is_returned_when_none_passes(void **state)
{
    /* 40 s to send with 0.2 s of computing: even 2.6 times the capacity merges many iterations */
    static double t[1] = {0.1}, c[1] = {40};
    ddp_preserver m = model(3.05, 0, 2.5);
    ddp_delayed_options o;
    ddp_delayed_plan plan, other;
    ddp_preserved r, v;
    ddp_profile p;
    double best = 1e9;
    int i;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    p.layers = 1;
    p.forward_s = p.backward_s = t;
    p.comm_s = c;
    m.mu = 0.2;
    m.tolerance = 1e-6;
    assert_int_equal(ddp_preserver_plan(&p, &o, &m, &plan, &r, NULL), DDP_OK);
    assert_int_equal(r.accepted, 0);
    for (i = 0; i <= 10; i++) {
        o.capacity_scale = pow(1.1, i);
        assert_int_equal(ddp_plan_delayed(&p, &o, &other, NULL), DDP_OK);
        v = test_of(&m, other.k, other.updates);
        if (fabs(v.ratio - 1) < best) best = fabs(v.ratio - 1);
        ddp_delayed_plan_free(&other);
    }
    near(fabs(r.ratio - 1), best, 1e-9);
    ddp_delayed_plan_free(&plan);
    /* in parts so small that even the last retry merges less: it is the best plan, from either side */
    c[0] = 4;
    o.capacity_scale = 0;
    o.partition_s = 0.01;
    for (m.one_sided = 0; m.one_sided < 2; m.one_sided++) {
        assert_int_equal(ddp_preserver_plan(&p, &o, &m, &plan, &r, NULL), DDP_OK);
        assert_int_equal(r.accepted, 0);
        assert_int_equal(r.retries, 10);
        ddp_delayed_plan_free(&plan);
    }
}

/* Two parts, one per iteration; 1.21 times these capacities exceed the range of a double. */
static void a_retry_that_fails_does_not_lose_the_best_plan(void **state)
{
    static double t[1] = {1.9e307}, c[1] = {2.1e307};
    ddp_preserver m = model(3.05, 0, 2.5);
    ddp_delayed_options o;
    ddp_delayed_plan plan;
    ddp_preserved r;
    ddp_profile p;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    p.layers = 1;
    p.backward_s = t;
    p.comm_s = c;
    m.tolerance = 1e-6;
    assert_int_equal(ddp_preserver_plan(&p, &o, &m, &plan, &r, NULL), DDP_OK);
    assert_int_equal(r.accepted, 0);
    assert_int_equal(r.retries, 0);
    assert_int_equal(plan.k[0], 2);
    ddp_delayed_plan_free(&plan);
}

static void refused(const ddp_preserver *m, const int *k, int n, const char *why)
{
    ddp_preserved r;
    ddp_error err;

    memset(&r, 42, sizeof r);
    assert_int_not_equal(ddp_preserver_test(m, k, n, &r, &err), DDP_OK);
    assert_int_equal(r.accepted, 0x2a2a2a2a);
    if (!strstr(err.msg, why)) fail_msg("'%s' does not say '%s'", err.msg, why);
}

static void bad_input_is_named(void **state)
{
    static const int k[2] = {1, 0}, huge[2] = {1, 2000000000};
    static int many[3200];
    const ddp_preserver good = model(1, 1, 1);
    ddp_preserver m = good;
    ddp_delayed_options o;
    ddp_delayed_plan plan;
    ddp_preserved r;
    ddp_profile p;

    (void)state;
    refused(&m, k, 0, "0 entries");
    refused(NULL, k, 1, "NULL");
    refused(&m, NULL, 1, "the sequence k has 1 entries but model or k is NULL");
    assert_int_equal(ddp_preserver_test(&m, k, 1, NULL, NULL), DDP_ARG);
    memset(&o, 0, sizeof o);
    memset(&p, 0, sizeof p);
    assert_int_equal(ddp_preserver_plan(&p, &o, &m, NULL, &r, NULL), DDP_ARG);
    assert_int_equal(ddp_preserver_plan(&p, &o, &m, &plan, NULL, NULL), DDP_ARG);
    assert_int_equal(ddp_preserver_plan(&p, NULL, &m, &plan, &r, NULL), DDP_ARG);
    assert_int_equal(ddp_preserver_plan(&p, &o, NULL, &plan, &r, NULL), DDP_ARG);
    refused(&m, k, 2, "k[1] is 0");
    refused(&m, huge, 2, "k[1] is 2000000000: the sequence exceeds");
    m.eta = 0;
    refused(&m, k, 1, "eta is 0");
    m = good;
    m.mu = NAN;
    refused(&m, k, 1, "mu is nan");
    m = good;
    m.sigma = -1;
    refused(&m, k, 1, "sigma is -1");
    m = good;
    m.batch = 0;
    refused(&m, k, 1, "batch is 0");
    m = good;
    m.target = 2;
    refused(&m, k, 1, "start is 1; it must be finite and at least the target, 2");
    m.target = -1;
    refused(&m, k, 1, "target is -1");
    m = good;
    m.start = INFINITY;
    refused(&m, k, 1, "start is inf");
    m = good;
    m.eta = 1e10;
    m.mu = 1e308; /* finite, but a step makes them infinite */
    refused(&m, k, 1, "the expected loss is inf after the plan and inf without");
    for (int i = 0; i < 3200; i++) many[i] = 1;
    m = good;
    m.rotations = 1;
    refused(&m, many, 3200, "3200 rotations of 3200 updates are too many to compare");
    m = good;
    m.tolerance = INFINITY;
    refused(&m, k, 1, "tolerance is inf");
    m = good;
    m.sigma = 0;
    m.eta = 1; /* one update reaches the goal exactly */
    refused(&m, k, 1, "their ratio says nothing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_expectation_is_that_of_the_folded_normal),
        cmocka_unit_test(table_v_is_reproduced),
        cmocka_unit_test(the_test_depends_on_where_the_cycle_starts),
        cmocka_unit_test(merging_costs_a_step_without_noise_and_nothing_as_a_sum),
        cmocka_unit_test(no_merging_is_always_accepted),
        cmocka_unit_test(capacity_grows_until_the_test_accepts),
        cmocka_unit_test(the_best_of_all_retries_is_returned_when_none_passes),
        cmocka_unit_test(a_retry_that_fails_does_not_lose_the_best_plan),
        cmocka_unit_test(bad_input_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
