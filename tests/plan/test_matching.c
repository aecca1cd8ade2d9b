/* [pure] Bottleneck matchings, compared with every permutation. */
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

#include "plan/place/matching.h"

enum { MOST = 60 };

static double matching(int n, const double *w, int *mate)
{
    ddp__scratch room = {NULL, 0};
    ddp__matching m;
    double value;

    ddp__matching_open(&m, n, &room);
    value = ddp__matching_solve(&m, w, mate);
    ddp__scratch_free(&room);
    return value;
}

/* The smallest largest weight over all ways to complete a matching of the rows before u. */
static double brute(int n, const double *w, int u, unsigned used, double so_far)
{
    double best = INFINITY, one;
    int v;

    if (u == n) return so_far;
    for (v = 0; v < n; v++) {
        if (used >> v & 1) continue;
        one = w[u * n + v];
        one = brute(n, w, u + 1, used | 1u << v, one > so_far ? one : so_far);
        if (one < best) best = one;
    }
    return best;
}

/* The matching is perfect and its heaviest pair has the claimed weight. */
static void realises(int n, const double *w, const int *mate, double value)
{
    double most = -INFINITY;
    char seen[MOST];
    int u;

    memset(seen, 0, sizeof seen);
    for (u = 0; u < n; u++) {
        assert_in_range(mate[u], 0, n - 1);
        assert_int_equal(seen[mate[u]]++, 0);
        if (w[u * n + mate[u]] > most) most = w[u * n + mate[u]];
    }
    assert_true(most == value);
}

static void every_small_matching_is_optimal(void **state)
{
    ddp_rng r = ddp_rng_seed(1, 0);
    double w[49], value;
    int mate[7], round, n, k;

    (void)state;
    for (round = 0; round < 4000; round++) {
        n = (int)ddp_rng_below(&r, 7) + 1;
        for (k = 0; k < n * n; k++) {
            w[k] = ddp_rng_uniform(&r) - 0.3;
            if (round % 2) w[k] = floor(8 * w[k]); /* many ties, negative ones too */
            if (round % 5 == 4 && ddp_rng_below(&r, 2)) w[k] = 100;
        }
        value = matching(n, w, mate);
        realises(n, w, mate, value);
        assert_true(value == brute(n, w, 0, 0, -INFINITY));
    }
}

/* Every row and column is matched, so the bound is the largest of their least weights. If the search meets
 * it, the bound is exact. */
static void the_bound_is_the_largest_least_of_rows_and_columns(void **state)
{
    ddp_rng r = ddp_rng_seed(3, 0);
    double w[49];
    int by_row = 0, by_column = 0;

    (void)state;
    for (int round = 0; round < 500; round++) {
        const int n = (int)ddp_rng_below(&r, 7) + 1;
        double most[2] = {-INFINITY, -INFINITY};
        for (int k = 0; k < n * n; k++) w[k] = ddp_rng_uniform(&r) - 0.3;
        for (int side = 0; side < 2; side++)
            for (int u = 0; u < n; u++) {
                double least = INFINITY;
                for (int v = 0; v < n; v++) least = fmin(least, side ? w[v * n + u] : w[u * n + v]);
                most[side] = fmax(most[side], least);
            }
        by_row += most[0] > most[1];
        by_column += most[1] > most[0];
        assert_true(ddp__matching_bound(n, w) == fmax(most[0], most[1]));
    }
    assert_true(by_row > 100 && by_column > 100);
}

/* Plants a matching: the weights on a random permutation are at most 1, all others are larger. */
static void a_planted_matching_is_found(void **state)
{
    static double w[MOST * MOST];
    ddp_rng r = ddp_rng_seed(2, 0);
    int mate[MOST], plan[MOST], round, k, m, t;
    double value;

    (void)state;
    for (round = 0; round < 50; round++) {
        for (k = 0; k < MOST; k++) plan[k] = k;
        for (k = MOST - 1; k > 0; k--) {
            m = (int)ddp_rng_below(&r, (uint64_t)k + 1);
            t = plan[k];
            plan[k] = plan[m];
            plan[m] = t;
        }
        for (k = 0; k < MOST * MOST; k++) w[k] = 1.5 + ddp_rng_uniform(&r);
        for (k = 0; k < MOST; k++) w[k * MOST + plan[k]] = ddp_rng_uniform(&r);
        w[plan[0]] = 1;
        value = matching(MOST, w, mate);
        realises(MOST, w, mate, value);
        assert_true(value == 1);
        assert_memory_equal(mate, plan, sizeof plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_matching_is_optimal),
        cmocka_unit_test(the_bound_is_the_largest_least_of_rows_and_columns),
        cmocka_unit_test(a_planted_matching_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
