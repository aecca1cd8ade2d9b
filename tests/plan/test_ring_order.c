/* [pure] Ring orders, compared with every order; the search for many workers compared with the exact one. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "plan/tour.c"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { MOST = 300 };

typedef struct ring {
    double least, delay;
} ring;

static int better(ring a, ring b) { return a.least > b.least || (a.least == b.least && a.delay < b.delay); }

static ring measure(int n, const double *rate, const double *delay, const int *order)
{
    ring r;

    r.least = INFINITY;
    r.delay = 0;
    for (int k = 0; k < n; k++) {
        const int at = order[k] * n + order[(k + 1) % n];
        if (rate[at] < r.least) r.least = rate[at];
        r.delay += delay[at];
    }
    return r;
}

static void every(int n, const double *rate, const double *delay, int *order, int at, ring *best)
{
    if (at == n) {
        const ring r = measure(n, rate, delay, order);
        if (better(r, *best)) *best = r;
        return;
    }
    for (int k = at; k < n; k++) {
        int t = order[at];
        order[at] = order[k];
        order[k] = t;
        every(n, rate, delay, order, at + 1, best);
        order[k] = order[at];
        order[at] = t;
    }
}

static void random_ring(ddp_rng *r, int n, int kind, double *rate, double *delay)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            rate[i * n + j] = 1 + floor(ddp_rng_uniform(r) * (kind % 2 ? 5 : 1000));
            delay[i * n + j] = floor(ddp_rng_uniform(r) * 64) / 64;
            if (kind % 3 == 0 && j < i) rate[i * n + j] = rate[j * n + i];
        }
    for (int i = 0; i < n; i++) rate[i * n + i] = delay[i * n + i] = NAN; /* never read */
}

static void valid(int n, const int *order)
{
    char seen[MOST];

    memset(seen, 0, sizeof seen);
    assert_int_equal(order[0], 0);
    for (int k = 0; k < n; k++) {
        assert_in_range(order[k], 0, n - 1);
        assert_int_equal(seen[order[k]]++, 0);
    }
}

static void small_rings_are_optimal(void **state)
{
    double rate[64], delay[64], least;
    int order[8];
    ddp_rng r;

    (void)state;
    r = ddp_rng_seed(11, 0);
    for (int round = 0; round < 600; round++) {
        const int n = 2 + round % 6;
        int all[8];
        ring best, got;
        random_ring(&r, n, round, rate, delay);
        best.least = -1;
        best.delay = 0;
        for (int k = 0; k < n; k++) all[k] = k;
        every(n, rate, delay, all, 1, &best);
        assert_int_equal(ddp_plan_ring(n, rate, delay, order, &least, NULL), DDP_OK);
        valid(n, order);
        got = measure(n, rate, delay, order);
        assert_true(got.least == least);
        assert_true(best.least == least);
        assert_true(best.delay == got.delay);
        assert_int_equal(ddp_plan_ring(n, rate, NULL, order, &least, NULL), DDP_OK);
        valid(n, order);
        assert_true(best.least == least);
    }
}

/* The search finds the best slowest hop in nine of ten cases (93 here), and never one below half of it. */
static void the_search_is_near_the_optimum(void **state)
{
    double rate[144], delay[144], cost[144], least;
    int order[12], room[24], found = 0, rounds = 100;
    ddp_rng r;

    (void)state;
    r = ddp_rng_seed(12, 0);
    for (int round = 0; round < rounds; round++) {
        const int n = 6 + round % 7;
        double got;
        random_ring(&r, n, 2 * round, rate, delay);
        assert_int_equal(ddp_plan_ring(n, rate, delay, order, &least, NULL), DDP_OK);
        ddp__ring_costs(n, rate, delay, cost);
        ddp__ring_search(n, cost, order, room);
        valid(n, order);
        got = measure(n, rate, delay, order).least;
        assert_true(got <= least && got >= least / 2);
        found += got == least;
    }
    assert_true(found >= 85);
}

/* Two sites with a slow link between them: a good ring crosses it twice, also if it is too large to be
 * searched. */
static void a_ring_crosses_between_sites_twice(void **state)
{
    static const int sizes[3] = {40, 80, MOST};
    static double rate[MOST * MOST], delay[MOST * MOST];

    (void)state;
    for (int s = 0; s < 3; s++)
        for (int late = 0; late < 2; late++) {
            const int n = sizes[s];
            int order[MOST], crossings = 0;
            double least;
            for (int i = 0; i < n * n; i++) {
                const int same = i / n % 2 == i % n % 2;
                rate[i] = same ? 1e9 : 1e7;
                delay[i] = same ? 1e-4 : 5e-2;
            }
            assert_int_equal(ddp_plan_ring(n, rate, late ? delay : NULL, order, &least, NULL), DDP_OK);
            valid(n, order);
            for (int k = 0; k < n; k++) crossings += order[k] % 2 != order[(k + 1) % n] % 2;
            assert_int_equal(crossings, 2);
            assert_true(least == 1e7);
        }
}

/* With this many workers only a hundred moves are tried. With random links all of them are used, and none
 * makes the ring worse. */
static void the_search_is_limited_beyond_64_workers(void **state)
{
    enum { N = 70 };
    static double rate[N * N], delay[N * N], cost[N * N];
    double least;
    int order[N], nearest[N];
    ddp_rng r;

    (void)state;
    r = ddp_rng_seed(13, 0);
    for (int round = 0; round < 4; round++) {
        random_ring(&r, N, 2, rate, delay);
        assert_int_equal(ddp_plan_ring(N, rate, delay, order, &least, NULL), DDP_OK);
        valid(N, order);
        assert_true(measure(N, rate, delay, order).least == least);
        ddp__ring_costs(N, rate, delay, cost);
        ddp__tour_nearest(N, cost, 0, -1, nearest);
        assert_true(ddp__ring_cost(N, cost, order) < ddp__ring_cost(N, cost, nearest));
        assert_true(least >= measure(N, rate, delay, nearest).least);
    }
}

/* The length of the ring found from one start. */
static double searched_from(int start, int n, const double *cost, long moves)
{
    int near[MOST], own[MOST], trial[MOST], zero = 0;
    double length;

    ddp__tour_nearest(n, cost, start, -1, near);
    while (near[zero]) zero++;
    for (int k = 0; k < n; k++) own[k] = near[(zero + k) % n];
    length = ddp__ring_cost(n, cost, own);
    while (moves-- > 0 && ddp__ring_improve(n, cost, own, trial, &length)) {
    }
    return length;
}

/* Starts from every worker up to 24 workers, from four up to 64, from the first one beyond. The shortest ring
 * is returned. */
static void the_number_of_starts_depends_on_the_workers(void **state)
{
    static const int sizes[5] = {23, 24, 25, 64, 65}, starts[5] = {23, 24, 4, 4, 1};
    static double rate[65 * 65], delay[65 * 65], cost[65 * 65];
    int order[65], room[130];
    ddp_rng r = ddp_rng_seed(14, 0);

    (void)state;
    for (int round = 0; round < 10; round++) {
        const int n = sizes[round % 5];
        double best = INFINITY;
        random_ring(&r, n, 2, rate, delay);
        ddp__ring_costs(n, rate, delay, cost);
        for (int s = 0; s < starts[round % 5]; s++)
            best = fmin(best, searched_from(s * (n / starts[round % 5]), n, cost, n > 64 ? 100 : 1000));
        ddp__ring_search(n, cost, order, room);
        valid(n, order);
        assert_true(ddp__ring_cost(n, cost, order) == best);
    }
}

/* Of equally near nodes, the lowest number is next. */
static void ties_are_broken_by_number(void **state)
{
    enum { N = 9 };
    double cost[N * N];
    int order[N];

    (void)state;
    for (int i = 0; i < N * N; i++) cost[i] = 1;
    for (int start = 0; start < N; start++) {
        ddp__tour_nearest(N, cost, start, -1, order);
        assert_int_equal(order[0], start);
        for (int k = 1; k < N; k++) assert_int_equal(order[k], k <= start ? k - 1 : k);
    }
}

static void invalid_input_is_an_error(void **state)
{
    double rate[4] = {1, 2, 0, 1}, delay[4] = {0, -1, 0, 0}, least = 7;
    int order[2] = {5, 6};
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_plan_ring(0, rate, NULL, order, &least, &err), DDP_ARG);
    assert_int_equal(ddp_plan_ring(2, rate, NULL, order, &least, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "rate 0 from worker 1 to 0"));
    rate[2] = INFINITY;
    assert_int_equal(ddp_plan_ring(2, rate, NULL, order, &least, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "rate inf from worker 1 to 0"));
    assert_int_equal(ddp_plan_ring(4097, rate, NULL, order, &least, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "a ring of 4097 workers; it must have 1 to 4096"));
    rate[2] = 3;
    delay[1] = INFINITY;
    assert_int_equal(ddp_plan_ring(2, rate, delay, order, &least, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "delay inf s from worker 0 to 1"));
    delay[1] = -1;
    assert_int_equal(ddp_plan_ring(2, rate, delay, order, &least, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "delay -1 s from worker 0 to 1"));
    assert_int_equal(order[0], 5);
    assert_true(least == 7);
    assert_int_equal(ddp_plan_ring(1, rate, NULL, order, &least, &err), DDP_OK);
    assert_int_equal(order[0], 0);
    assert_true(least == 0);
    assert_int_equal(ddp_plan_ring(2, rate, NULL, order, &least, &err), DDP_OK);
    assert_true(least == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_rings_are_optimal),
        cmocka_unit_test(the_search_is_near_the_optimum),
        cmocka_unit_test(a_ring_crosses_between_sites_twice),
        cmocka_unit_test(the_search_is_limited_beyond_64_workers),
        cmocka_unit_test(the_number_of_starts_depends_on_the_workers),
        cmocka_unit_test(ties_are_broken_by_number),
        cmocka_unit_test(invalid_input_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
