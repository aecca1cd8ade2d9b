/* [pure] OSP's planner: importance, bitmap, and the budget of deferred bytes. */
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

enum { MOST = 64 };

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static int important(const unsigned char *gib, int l) { return gib[l / 8] >> l % 8 & 1; }

/* Ranks, and checks the properties of every rule. *late receives the deferred importance. */
static double rank(int n, const double *I, const double *s, double budget, ddp_osp_rule rule,
                   unsigned char *gib, double *late)
{
    double deferred = -1, bytes = 0;
    ddp_error err;
    int l;

    memset(gib, 0xaa, MOST / 8);
    if (ddp_osp_rank(n, I, s, budget, rule, gib, &deferred, &err) != DDP_OK) fail_msg("%s", err.msg);
    for (*late = 0, l = 0; l < n; l++) {
        if (important(gib, l)) continue;
        bytes += s[l];
        *late += I[l];
    }
    near(bytes, deferred);
    assert_true(deferred <= budget);
    for (l = n; l < (n + 7) / 8 * 8; l++) assert_int_equal(important(gib, l), 0);
    return deferred;
}

static void importance_is_summed_in_double(void **state)
{
    static const float g[4] = {1, -2, 0.5f, 0}, p[4] = {3, 1, -4, 9};
    static const float bad[1] = {NAN};
    double I = -1;
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_osp_importance(g, p, 4, 0, &I, NULL), DDP_OK);
    near(I, 7);
    assert_int_equal(ddp_osp_importance(g, p, 4, 1, &I, NULL), DDP_OK);
    near(I, 1.75);
    assert_int_equal(ddp_osp_importance(bad, p, 1, 0, &I, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "element 0: gradient nan"));
    near(I, 1.75);
    assert_int_equal(ddp_osp_importance(g, p, 0, 0, &I, &err), DDP_ARG);
    assert_int_equal(ddp_osp_importance(NULL, p, 4, 0, &I, &err), DDP_ARG);
    assert_int_equal(ddp_osp_importance(g, NULL, 4, 0, &I, &err), DDP_ARG);
    assert_int_equal(ddp_osp_importance(g, p, 4, 0, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "4 elements or a NULL array"));
    near(I, 1.75);
}

static void the_walk_defers_by_rising_importance(void **state)
{
    /* rising: layer 2 (10 bytes), 0 (30), 3 (20), 1 (5) */
    static const double I[4] = {2, 9, 1, 5}, s[4] = {30, 5, 10, 20};
    unsigned char gib[MOST / 8];
    double late;

    (void)state;
    near(rank(4, I, s, 40, DDP_OSP_WALK, gib, &late), 40);
    assert_int_equal(gib[0], 0x0a);
    near(rank(4, I, s, 35, DDP_OSP_WALK, gib, &late), 35); /* 30 does not fit, 20 and 5 do */
    assert_int_equal(gib[0], 0x01);
    near(rank(4, I, s, 35, DDP_OSP_STOP, gib, &late), 10); /* ends at the 30 */
    assert_int_equal(gib[0], 0x0b);
    near(rank(4, I, s, 0, DDP_OSP_WALK, gib, &late), 0);
    assert_int_equal(gib[0], 0x0f); /* nothing deferred: BSP */
    near(rank(4, I, s, 1e9, DDP_OSP_WALK, gib, &late), 65);
    assert_int_equal(gib[0], 0);
    /* per byte: 0 (.067), 2 (.1), 3 (.25), 1 (1.8) */
    near(rank(4, I, s, 30, DDP_OSP_DENSITY, gib, &late), 30);
    assert_int_equal(gib[0], 0x0e);
}

static void equal_importance_goes_by_index(void **state)
{
    static const double I[5] = {1, 1, 1, 1, 1}, s[5] = {10, 10, 10, 10, 10};
    unsigned char gib[MOST / 8];
    double late;

    (void)state;
    rank(5, I, s, 25, DDP_OSP_WALK, gib, &late);
    assert_int_equal(gib[0], 0x1c);
}

/* The least importance of all sets with bytes from low to high, or -1 if there is no set. */
static double exhaustive(int L, const double *I, const double *s, double low, double high)
{
    double least = -1;
    int set, l;

    for (set = 0; set < 1 << L; set++) {
        double b = 0, i = 0;
        for (l = 0; l < L; l++)
            if (set >> l & 1) {
                b += s[l];
                i += I[l];
            }
        if (b >= low && b <= high && (least < 0 || i < least)) least = i;
    }
    return least;
}

/* Sizes in whole bytes, some 0, some equal. In a quarter of the lists, I is proportional to them. */
static double random_layers(ddp_rng *r, int n, int L, double *I, double *s)
{
    double sum = 0;
    int l;

    for (l = 0; l < L; l++) {
        s[l] = (double)ddp_rng_below(r, n % 3 ? 1000 : 8) * 4;
        I[l] = n % 4 ? ddp_rng_uniform(r) * (s[l] + 100) : ddp_rng_uniform(r);
        sum += s[l];
    }
    return sum;
}

static void the_knapsack_is_exhaustive_search_within_both_bounds(void **state)
{
    ddp_rng r = ddp_rng_seed(71, 0);
    int n, l, L, better = 0, inner = 0;

    (void)state;
    for (n = 0; n < 3000; n++) {
        double I[MOST], s[MOST], walk, walk_late, knap_late, budget, least, open = 0;
        unsigned char gib[MOST / 8];
        L = (int)ddp_rng_below(&r, 11) + 1;
        budget = floor(0.8 * random_layers(&r, n, L, I, s) * ddp_rng_uniform(&r));
        walk = rank(L, I, s, budget, DDP_OSP_WALK, gib, &walk_late);
        assert_true(rank(L, I, s, budget, DDP_OSP_KNAPSACK, gib, &knap_late) >= walk);
        if (!(walk > 0)) {
            near(knap_late, 0);
            continue;
        }
        least = exhaustive(L, I, s, walk, budget);
        for (l = 0; l < L; l++) open += s[l];
        near(knap_late, least);
        better += knap_late < walk_late * (1 - 1e-9);
        inner += exhaustive(L, I, s, walk, open) < least * (1 - 1e-9); /* the budget binds */
    }
    print_message("the knapsack defers less importance in %d of 3000; the budget binds in %d\n", better,
                  inner);
    assert_true(better > 300 && inner > 30);
}

static void the_knapsack_is_never_worse_than_either_walk(void **state)
{
    ddp_rng r = ddp_rng_seed(72, 0);
    int n, L, better = 0;

    (void)state;
    for (n = 0; n < 120; n++) {
        double I[MOST], s[MOST], walk, density, budget, late[3];
        unsigned char gib[MOST / 8];
        L = MOST - (int)ddp_rng_below(&r, 36);
        budget = floor(0.8 * random_layers(&r, n, L, I, s) * ddp_rng_uniform(&r));
        walk = rank(L, I, s, budget, DDP_OSP_WALK, gib, &late[0]);
        density = rank(L, I, s, budget, DDP_OSP_DENSITY, gib, &late[1]);
        assert_true(rank(L, I, s, budget, DDP_OSP_KNAPSACK, gib, &late[2]) >= walk);
        assert_true(late[2] <= late[0] * (1 + 1e-12));
        if (density >= walk) assert_true(late[2] <= late[1] * (1 + 1e-12));
        better += late[2] < late[0] * (1 - 1e-9) && late[2] < late[1] * (1 - 1e-9);
    }
    print_message("the knapsack is better than both walks in %d of 120\n", better);
    assert_true(better > 20);
}

static void hundreds_of_layers_are_split_near_the_optimum(void **state)
{
    enum { MANY = 1000 };
    static double I[MANY], s[MANY], key[MANY];
    static unsigned char gib[MANY / 8];
    ddp_rng r = ddp_rng_seed(73, 0);
    double sum = 0, walk, deferred, late = 0, relaxed = 0, left;
    int i, j, l;

    (void)state;
    for (l = 0; l < MANY; l++) {
        s[l] = (double)ddp_rng_below(&r, 1000000) * 4 + 4;
        I[l] = ddp_rng_uniform(&r);
        sum += s[l];
    }
    assert_int_equal(ddp_osp_rank(MANY, I, s, 0.4 * sum, DDP_OSP_WALK, gib, &walk, NULL), DDP_OK);
    assert_int_equal(ddp_osp_rank(MANY, I, s, 0.4 * sum, DDP_OSP_KNAPSACK, gib, &deferred, NULL), DDP_OK);
    assert_true(deferred >= walk && deferred <= 0.4 * sum);
    for (l = 0; l < MANY; l++)
        if (!important(gib, l)) late += I[l];
    /* a lower bound of every choice: by density, with part of the last layer */
    for (l = 0; l < MANY; l++) key[l] = I[l] / s[l];
    for (left = walk, i = 0; i < MANY && left > 0; i++) {
        for (l = j = 0; l < MANY; l++)
            if (key[l] < key[j]) j = l;
        relaxed += I[j] * (left < s[j] ? left / s[j] : 1);
        left -= s[j];
        key[j] = INFINITY;
    }
    print_message("1,000 layers: importance %.6f, no choice has below %.6f\n", late, relaxed);
    assert_true(late >= relaxed && late <= relaxed * 1.0005);
}

/* 50 of 59 layers of 2 bytes fill the budget. One layer of 3 bytes has the least importance per byte, but no
 * choice with it fills the budget. If the search starts with it, it finds nothing, and the result of the walk
 * is used. */
static void if_the_knapsack_finds_nothing_the_walk_is_used(void **state)
{
    double I[60], s[60], walk_late, late;
    unsigned char walk[MOST / 8], gib[MOST / 8];

    (void)state;
    for (int l = 0; l < 60; l++) {
        I[l] = 0.9 + 0.001 * l;
        s[l] = 2;
    }
    I[59] = 1;
    s[59] = 3;
    near(rank(60, I, s, 100, DDP_OSP_WALK, walk, &walk_late), 100);
    near(rank(60, I, s, 100, DDP_OSP_KNAPSACK, gib, &late), 100);
    assert_true(late == walk_late);
    assert_memory_equal(gib, walk, 60 / 8);
    for (int l = 0; l < 60; l++) assert_int_equal(important(gib, l), l >= 50);
}

static void the_bound_has_a_corrected_and_a_printed_form(void **state)
{
    double u = 0, v = 0;
    ddp_error err;

    (void)state;
    /* 1e9 bytes/s, 0.2 s, 4 workers: 5e7. With a model of 1e8 bytes, up to 8e7 may be deferred. */
    assert_int_equal(ddp_osp_umax(1e9, 0, 0.2, 4, 1e8, 0, &u, NULL), DDP_OK);
    near(u, 5e7);
    assert_int_equal(ddp_osp_umax(1e9, 0, 0.2, 4, 1e8, 1, &v, NULL), DDP_OK);
    near(v, u);
    assert_int_equal(ddp_osp_umax(1e9, 0.25, 0.2, 4, 1e8, 0, &u, NULL), DDP_OK);
    near(u, 4e7);
    assert_int_equal(ddp_osp_umax(1e9, 0.25, 0.2, 4, 1e8, 1, &v, NULL), DDP_OK);
    near(v, 6.25e7);
    assert_int_equal(ddp_osp_umax(1e9, 0, 2, 4, 1e8, 0, &u, NULL), DDP_OK);
    near(u, 8e7);
    /* 8.5e7 could overlap, 8e7 may be deferred */
    assert_int_equal(ddp_osp_umax(1e9, 0, 0.34, 4, 1e8, 0, &u, NULL), DDP_OK);
    near(u, 8e7);
    assert_int_equal(ddp_osp_umax(0, 0, 1, 4, 1e8, 0, &u, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "sends 0 bytes a second"));
    assert_int_equal(ddp_osp_umax(1, 1.5, 1, 4, 1e8, 0, &u, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "loss rate is 1.5"));
    assert_int_equal(ddp_osp_umax(1, 0, NAN, 4, 1e8, 0, &u, &err), DDP_ARG);
    assert_int_equal(ddp_osp_umax(1, 0, 1, 0, 1e8, 0, &u, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "0 workers"));
    assert_int_equal(ddp_osp_umax(1, -0.5, 1, 4, 1e8, 0, &u, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "loss rate is -0.5"));
    assert_int_equal(ddp_osp_umax(1, 0, 1, 4, -1e8, 0, &u, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the model has -1e+08 bytes"));
    assert_int_equal(ddp_osp_umax(1, 0, 1, 4, 1e8, 0, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "out is NULL"));
    near(u, 8e7); /* unchanged */
}

static void the_budget_grows_as_the_loss_falls(void **state)
{
    double loss, last = 0;

    (void)state;
    near(ddp_osp_budget(4, 4, 100), 0); /* the second epoch */
    near(ddp_osp_budget(3, 4, 100), 25);
    near(ddp_osp_budget(5, 4, 100), 0);
    near(ddp_osp_budget(-1, 4, 100), 100);
    near(ddp_osp_budget(NAN, 4, 100), 0);
    near(ddp_osp_budget(INFINITY, 4, 100), 0);
    near(ddp_osp_budget(1, 0, 100), 0);
    near(ddp_osp_budget(1, -2, 100), 0);
    near(ddp_osp_budget(1, NAN, 100), 0);
    near(ddp_osp_budget(1, INFINITY, 100), 0);
    near(ddp_osp_budget(1, 4, 0), 0);
    near(ddp_osp_budget(1, 4, -100), 0);
    for (loss = 5; loss >= 0; loss -= 0.01) {
        double s = ddp_osp_budget(loss, 4, 100);
        assert_true(s >= last && s <= 100);
        last = s;
    }
}

static void bad_input_is_named(void **state)
{
    static const double good[2] = {1, 2}, bad[2] = {1, -2}, nan_[2] = {NAN, 1}, huge[2] = {1e308, 1e308};
    unsigned char gib[1] = {0x55};
    ddp_osp_rule rule = DDP_OSP_WALK;
    ddp_error err;
    int nine = 9;

    (void)state;
    assert_int_equal(ddp_osp_rank(0, good, good, 1, rule, gib, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "0 layers"));
    assert_int_equal(ddp_osp_rank(2, nan_, good, 1, rule, gib, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "layer 0 has importance nan"));
    assert_int_equal(ddp_osp_rank(2, good, bad, 1, rule, gib, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "layer 1 has -2 bytes"));
    assert_int_equal(ddp_osp_rank(2, good, good, -1, rule, gib, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "budget is -1"));
    assert_int_equal(ddp_osp_rank(2, NULL, good, 1, rule, gib, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_osp_rank(2, good, NULL, 1, rule, gib, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_osp_rank(2, good, good, 1, rule, NULL, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_osp_rank(2, good, huge, 1, rule, gib, NULL, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "the layers have more bytes than a double holds"));
    memcpy(&rule, &nine, sizeof nine);
    assert_int_equal(ddp_osp_rank(2, good, good, 1, rule, gib, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "rule 9 is unknown"));
    assert_int_equal(gib[0], 0x55);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(importance_is_summed_in_double),
        cmocka_unit_test(the_walk_defers_by_rising_importance),
        cmocka_unit_test(equal_importance_goes_by_index),
        cmocka_unit_test(the_knapsack_is_exhaustive_search_within_both_bounds),
        cmocka_unit_test(the_knapsack_is_never_worse_than_either_walk),
        cmocka_unit_test(hundreds_of_layers_are_split_near_the_optimum),
        cmocka_unit_test(if_the_knapsack_finds_nothing_the_walk_is_used),
        cmocka_unit_test(the_bound_has_a_corrected_and_a_printed_form),
        cmocka_unit_test(the_budget_grows_as_the_loss_falls),
        cmocka_unit_test(bad_input_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
