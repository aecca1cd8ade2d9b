/* [pure] Open tours, compared with every order; the local search compared with the exact one. */
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

enum { MOST = 120 };

static double brute(int n, const double *c, int at, unsigned seen, int last)
{
    double best = INFINITY, one;
    int v;

    if (seen == (1u << n) - 1) return last < 0 || at == last ? 0 : INFINITY;
    for (v = 0; v < n; v++) {
        if (seen >> v & 1) continue;
        one = (at < 0 ? 0 : c[at * n + v]) + brute(n, c, v, seen | 1u << v, last);
        if (one < best) best = one;
    }
    return best;
}

/* The order visits every node once, between the given ends, and has the claimed length. */
static void valid(int n, const double *c, int first, int last, const int *order, double length)
{
    char seen[MOST];
    double sum = 0;
    int k;

    memset(seen, 0, sizeof seen);
    for (k = 0; k < n; k++) {
        assert_in_range(order[k], 0, n - 1);
        assert_int_equal(seen[order[k]]++, 0);
        if (k) sum += c[order[k - 1] * n + order[k]];
    }
    if (first >= 0) assert_int_equal(order[0], first);
    if (last >= 0) assert_int_equal(order[n - 1], last);
    if (!(fabs(sum - length) <= 1e-9 * (1 + sum))) fail_msg("%.17g is not %.17g", sum, length);
}

static void random_costs(ddp_rng *r, int n, int kind, double *c)
{
    int i, j;

    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) {
            c[i * n + j] = ddp_rng_uniform(r);
            if (kind % 3 == 1) c[i * n + j] = floor(4 * c[i * n + j]);
            if (kind % 2 && j < i) c[i * n + j] = c[j * n + i];
        }
    for (i = 0; i < n; i++) c[i * n + i] = NAN; /* never read */
}

static void every_small_tour_is_optimal(void **state)
{
    ddp_rng r = ddp_rng_seed(3, 0);
    double c[49], length, want;
    int order[7], round, n, first, last, v;

    (void)state;
    for (round = 0; round < 1500; round++) {
        n = (int)ddp_rng_below(&r, 7) + 1;
        random_costs(&r, n, round, c);
        first = (int)ddp_rng_below(&r, (uint64_t)n + 1) - 1;
        last = (int)ddp_rng_below(&r, (uint64_t)n + 1) - 1;
        if (n > 1 && first == last) last = -1;
        assert_int_equal(ddp_tour_open(n, c, first, last, order, &length, NULL), DDP_OK);
        valid(n, c, first, last, order, length);
        if (first >= 0) {
            want = brute(n, c, first, 1u << first, last);
        } else {
            for (v = 0, want = INFINITY; v < n; v++) {
                double one = brute(n, c, v, 1u << v, last);
                if (one < want) want = one;
            }
        }
        if (!(fabs(length - want) <= 1e-12)) fail_msg("%.17g is not %.17g", length, want);
    }
}

static void local_search_is_near_the_exact_tour(void **state)
{
    ddp_rng r = ddp_rng_seed(4, 0);
    double c[256], exact, near, over = 0;
    int order[16], round, equal = 0, first, last;

    (void)state;
    for (round = 0; round < 60; round++) {
        random_costs(&r, 14, round, c);
        first = round % 4 == 1 ? 3 : -1;
        last = round % 4 >= 2 ? 5 : -1;
        assert_int_equal(ddp_tour_open(14, c, first, last, order, &exact, NULL), DDP_OK);
        assert_true(ddp__tour_local(14, c, first, last, NULL, NULL, order, &near));
        valid(14, c, first, last, order, near);
        assert_true(near >= exact - 1e-9);
        equal += near <= exact + 1e-9;
        over += (near - exact) / (exact + 1);
    }
    assert_true(equal >= 30);
    assert_true(over / 60 < 0.05);
}

/* Points on a line, shuffled: the tour follows the line, between any given ends. */
static void long_tours_follow_a_line(void **state)
{
    static double c[MOST * MOST];
    ddp_rng r = ddp_rng_seed(5, 0);
    int place[MOST], order[MOST], i, j, t;
    double length;

    (void)state;
    for (i = 0; i < MOST; i++) place[i] = i;
    for (i = MOST - 1; i > 0; i--) {
        j = (int)ddp_rng_below(&r, (uint64_t)i + 1);
        t = place[i];
        place[i] = place[j];
        place[j] = t;
    }
    for (i = 0; i < MOST; i++)
        for (j = 0; j < MOST; j++) c[i * MOST + j] = abs(place[i] - place[j]);
    assert_int_equal(ddp_tour_open(MOST, c, -1, -1, order, &length, NULL), DDP_OK);
    valid(MOST, c, -1, -1, order, length);
    assert_true(length == MOST - 1);
    for (i = 0; place[i] != 0; i++) {
    }
    for (j = 0; place[j] != 7; j++) {
    }
    assert_int_equal(ddp_tour_open(MOST, c, j, i, order, &length, NULL), DDP_OK);
    valid(MOST, c, j, i, order, length);
    assert_true(length <= 2 * (MOST - 1)); /* there and back: the optimum is 231 */
}

/* Counts how often the search asks whether its time is over. It is over from call `end` on. */
typedef struct asked {
    int calls, end;
} asked;

static int is_over(void *user)
{
    asked *a = (asked *)user;

    return ++a->calls >= a->end;
}

static void an_ended_search_keeps_the_best_path_so_far(void **state)
{
    static double c[MOST * MOST];
    ddp_rng r = ddp_rng_seed(6, 0);
    int order[MOST], end;
    double length, before = INFINITY, whole;

    (void)state;
    random_costs(&r, MOST, 0, c);
    assert_int_equal(ddp_tour_open(MOST, c, -1, 3, order, &whole, NULL), DDP_OK);
    for (end = 1; end <= 4096; end *= 4) {
        asked a = {0, 0};
        a.end = end;
        assert_true(ddp__tour_local(MOST, c, -1, 3, is_over, &a, order, &length));
        valid(MOST, c, -1, 3, order, length);
        assert_true(a.calls <= end + 1); /* that call, and one before the next start */
        assert_true(length <= before && length >= whole);
        before = length;
    }
    assert_true(before < 1.5 * whole);
}

/* With more than a thousand nodes a search makes at most four starts. If it has to end at once, it has made
 * one, from node 0 to the nearest node each time. */
static void a_search_over_very_many_nodes_may_end_at_once(void **state)
{
    enum { MANY = 1030 };
    static double c[MANY * MANY];
    static int order[MANY];
    asked a = {0, 1};
    double length;
    int i, j;

    (void)state;
    for (i = 0; i < MANY; i++)
        for (j = 0; j < MANY; j++) c[i * MANY + j] = abs(i * 7 % MANY - j * 7 % MANY); /* a line, shuffled */
    assert_true(ddp__tour_local(MANY, c, -1, -1, is_over, &a, order, &length));
    assert_int_equal(a.calls, 2);
    for (i = 0; i < MANY; i++) assert_int_equal(order[i] * 7 % MANY, i);
    assert_true(length == MANY - 1);
}

/* If all hops are equal no start can be improved: one pass over its nodes each, and one check of the time
 * before each start but the first. */
static void few_nodes_are_started_from_more_often(void **state)
{
    enum { MANY = 1030 };
    static const int sizes[6] = {20, 64, 65, 100, 1023, MANY}, starts[6] = {20, 64, 63, 40, 4, 4};
    static double c[MANY * MANY];
    static int order[MANY];

    (void)state;
    for (int i = 0; i < MANY * MANY; i++) c[i] = 1;
    for (int k = 0; k < 6; k++) /* free. The last is given. The first is given. */
        for (int ends = 0; ends < (sizes[k] > 100 ? 1 : 3); ends++) {
            const int n = sizes[k], tries = ends == 2 ? 1 : starts[k] - (ends == 1);
            asked a = {0, INT_MAX};
            double length;
            assert_true(
                ddp__tour_local(n, c, ends == 2 ? 1 : -1, ends == 1 ? 2 : -1, is_over, &a, order, &length));
            assert_true(length == n - 1);
            assert_int_equal(a.calls, tries * (n - (ends > 0)) + tries - 1);
        }
}

static void sums_that_overflow_are_skipped(void **state)
{
    double c[MOST * MOST], length = 3;
    int order[MOST], sizes[3] = {3, 16, 20}, s, k, n;

    (void)state;
    for (s = 0; s < 3; s++) {
        n = sizes[s];
        for (k = 0; k < n * n; k++) c[k] = 1e308;
        assert_int_equal(ddp_tour_open(n, c, -1, 1, order, &length, NULL), DDP_NUMERIC);
        assert_true(length == 3);
        for (k = 0; k < n * n; k++) c[k] = 1e306;
        assert_int_equal(ddp_tour_open(n, c, -1, 1, order, &length, NULL), DDP_OK);
        valid(n, c, -1, 1, order, length);
        length = 3;
    }
}

static void bad_input_is_named(void **state)
{
    double c[4] = {0, 1, -1, 0}, length = 3;
    int order[2] = {8, 9};
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_tour_open(2, c, -1, -1, order, &length, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "from node 1 to node 0 is -1"));
    c[2] = 1;
    assert_int_equal(ddp_tour_open(2, c, 1, 1, order, &length, &err), DDP_ARG);
    assert_int_equal(ddp_tour_open(2, c, 2, -1, order, &length, &err), DDP_ARG);
    assert_int_equal(ddp_tour_open(2, c, -2, -1, order, &length, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "from node -2 to node -1; nodes are 0 to 1, -1 = free"));
    assert_int_equal(ddp_tour_open(2, c, -1, -2, order, &length, &err), DDP_ARG);
    assert_int_equal(ddp_tour_open(2, c, -1, 2, order, &length, &err), DDP_ARG);
    assert_int_equal(ddp_tour_open(2, NULL, -1, -1, order, &length, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "a NULL array"));
    assert_int_equal(ddp_tour_open(2, c, -1, -1, NULL, &length, &err), DDP_ARG);
    assert_int_equal(ddp_tour_open(2, c, -1, -1, order, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_tour_open(0, c, -1, -1, order, &length, &err), DDP_ARG);
    assert_true(length == 3 && order[0] == 8 && order[1] == 9);
    c[1] = 1e308;
    assert_int_equal(ddp_tour_open(2, c, -1, -1, order, &length, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "costs up to 1e+308"));
    assert_true(length == 3 && order[0] == 8 && order[1] == 9);
    assert_int_equal(ddp_tour_open(1, c, 0, 0, order, &length, &err), DDP_OK);
    assert_true(length == 0 && order[0] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_tour_is_optimal),
        cmocka_unit_test(local_search_is_near_the_exact_tour),
        cmocka_unit_test(long_tours_follow_a_line),
        cmocka_unit_test(an_ended_search_keeps_the_best_path_so_far),
        cmocka_unit_test(a_search_over_very_many_nodes_may_end_at_once),
        cmocka_unit_test(few_nodes_are_started_from_more_often),
        cmocka_unit_test(sums_that_overflow_are_skipped),
        cmocka_unit_test(bad_input_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
