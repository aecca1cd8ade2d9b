/* [pure] Sets that the exact knapsack solver can skip. */
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

enum { MOST = 32 };

#include "plan/knapsack_lab.h"

/* The value of the items on links in release order, or -1 if they end too late. */
static double worth(const ddp_knapsack_problem *p, const int *assign)
{
    double end[2] = {p->start_s[0], p->start_s[1]}, sum = 0;
    int taken[MOST], n = 0, next;

    memset(taken, 0, sizeof taken);
    for (; n < p->items; n++) {
        for (next = -1; taken[++next];) {
        }
        for (int i = next; i < p->items; i++)
            if (p->ready_s && !taken[i] && p->ready_s[i] < p->ready_s[next]) next = i;
        taken[next] = 1;
        if (assign[next] < 0) continue;
        if (p->ready_s) end[assign[next]] = fmax(end[assign[next]], p->ready_s[next]);
        end[assign[next]] += p->slowdown[assign[next]] * p->item_s[next];
        sum += p->value ? p->value[next] : p->item_s[next];
    }
    for (int l = 0; l < p->links; l++)
        if (end[l] > p->deadline_s[l] && end[l] > p->start_s[l]) return -1;
    return sum;
}

/* The maximum over all assignments. */
static double best_of(const ddp_knapsack_problem *p)
{
    int assign[MOST], all = 1;
    double best = 0;

    for (int i = 0; i < p->items; i++) all *= p->links + 1;
    for (int code = 0; code < all; code++) {
        for (int i = 0, rest = code; i < p->items; i++, rest /= p->links + 1)
            assign[i] = rest % (p->links + 1) - 1;
        best = fmax(best, worth(p, assign));
    }
    return best;
}

/* Few different times and values, so that many sets take the same time. Of these only the most valuable is
 * listed. */
static void sets_that_take_as_long_and_are_worth_less_are_dropped(void **state)
{
    ddp_rng r = ddp_rng_seed(36, 0);
    int64_t work = 0;

    (void)state;
    for (int n = 0; n < 300; n++) {
        instance x;
        int a[MOST], items = 6 + (int)ddp_rng_below(&r, 3);
        double value = 0;
        instance_init(&x, items, n % 2 + 1);
        for (int i = 0; i < items; i++) {
            x.c[i] = 1 + (double)ddp_rng_below(&r, 3);
            x.v[i] = 1 + (double)ddp_rng_below(&r, 9);
            x.r[i] = (double)ddp_rng_below(&r, 3);
        }
        x.p.value = x.v;
        if (n % 4 < 2) x.p.ready_s = x.r;
        x.p.deadline_s[0] = 3 + (double)ddp_rng_below(&r, 6);
        x.p.deadline_s[1] = 4;
        assert_int_equal(ddp__knapsack_within(&x.p, DDP_KNAPSACK_EXACT, 1 << 16, &work, a, &value, NULL),
                         DDP_OK);
        assert_true(worth(&x.p, a) == value);
        assert_true(value == best_of(&x.p));
    }
    print_message("300 are solved in %lld entries\n", (long long)work);
#if defined(__x86_64__) && !defined(__FMA__) /* sums rounded in another way may give other results */
    assert_true(work < 6700);
#endif
}

/* Items that no link can take in time cost no search. */
static void items_that_fit_nowhere_cost_nothing(void **state)
{
    instance x;
    int a[MOST], i;
    int64_t work = 0;
    double value = 0;

    (void)state;
    instance_init(&x, 30, 2);
    for (i = 0; i < 30; i++) {
        x.c[i] = i < 4 ? 1 : 0.5 + 0.01 * i;
        x.r[i] = i < 4 ? 0 : 5.8 + 0.01 * i; /* all but the first four are too late */
    }
    x.p.ready_s = x.r;
    x.p.start_s[0] = 2;
    x.p.deadline_s[0] = x.p.deadline_s[1] = 6;
    assert_int_equal(ddp__knapsack_within(&x.p, DDP_KNAPSACK_EXACT, 1, &work, a, &value, NULL), DDP_OK);
    assert_true(value == 4);
    assert_int_equal(work, 0);
    for (i = 0; i < 30; i++) assert_true(i < 4 ? a[i] >= 0 : a[i] < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_that_take_as_long_and_are_worth_less_are_dropped),
        cmocka_unit_test(items_that_fit_nowhere_cost_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
