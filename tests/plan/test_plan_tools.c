/* [pure] Shared functions of the planners: names, orders, the priority queue, the clock of a link. */
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

#include "plan/arrays.h"
#include "plan/link_clock.h"
#include "plan/names.h"
#include "plan/order.h"
#include "plan/queue.h"

enum { MOST = 40 };

/* ---- the priority queue ---- */

/* Few different keys, so that ties are common. Numbers are inserted in any order. */
static void the_least_key_is_next_then_the_least_number(void **state)
{
    ddp_rng r = ddp_rng_seed(31, 0);
    ddp__due heap[MOST], all[MOST];
    int number[MOST];

    (void)state;
    for (int round = 0; round < 300; round++) {
        const int few = 1 + (int)ddp_rng_below(&r, 6);
        int n = 0, given = 0;
        ddp__shuffle(number, MOST, &r);
        while (given < MOST || n > 0) {
            if (given < MOST && (n == 0 || ddp_rng_below(&r, 3) > 0)) {
                const ddp__due e = {(double)ddp_rng_below(&r, (uint64_t)few), number[given++]};
                ddp__due_add(heap, n, e.key, e.i);
                all[n++] = e;
            } else {
                const ddp__due got = ddp__due_take(heap, n);
                int least = 0;
                for (int i = 1; i < n; i++)
                    if (all[i].key < all[least].key ||
                        (all[i].key == all[least].key && all[i].i < all[least].i))
                        least = i;
                assert_true(got.key == all[least].key && got.i == all[least].i);
                all[least] = all[--n];
            }
        }
    }
}

static void ranks_ascend_and_equal_ones_keep_their_order(void **state)
{
    ddp_rng r = ddp_rng_seed(32, 0);
    ddp__ranked rank[MOST];

    (void)state;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < MOST; i++) {
            rank[i].key = (double)ddp_rng_below(&r, 1 + (uint64_t)round);
            rank[i].i = i;
        }
        if (round % 2) {
            rank[7].key = -(double)INFINITY;
            rank[3].key = rank[9].key = (double)INFINITY;
        }
        qsort(rank, MOST, sizeof *rank, ddp__by_rank);
        for (int i = 1; i < MOST; i++)
            assert_true(rank[i - 1].key < rank[i].key ||
                        (rank[i - 1].key == rank[i].key && rank[i - 1].i < rank[i].i));
    }
}

/* ---- orders ---- */

/* The cost of an order: hops between neighbours, from a table. */
typedef struct path {
    int order[MOST], n, calls;
    double hop[MOST][MOST];
} path;

static double length(void *user)
{
    path *p = (path *)user;
    double sum = 0;

    p->calls++;
    for (int i = 1; i < p->n; i++) sum += p->hop[p->order[i - 1]][p->order[i]];
    return sum;
}

static void path_random(path *p, ddp_rng *r, int n)
{
    memset(p, 0, sizeof *p);
    p->n = n;
    for (int i = 0; i < n; i++) /* the way back has another cost */
        for (int j = 0; j < n; j++) p->hop[i][j] = (double)(1 + ddp_rng_below(r, 50));
    ddp__shuffle(p->order, n, r);
}

/* Passes that run until none improves end where no exchange (and no reversal) of two places shortens the
 * order. */
static void improving_ends_if_no_move_gains(void **state)
{
    ddp_rng r = ddp_rng_seed(33, 0);

    (void)state;
    for (int round = 0; round < 60; round++) {
        const int n = 2 + (int)ddp_rng_below(&r, 9), turn = round % 2;
        path p;
        double least, before;
        int fell;
        path_random(&p, &r, n);
        least = length(&p);
        do {
            before = least;
            p.calls = 0;
            fell = ddp__improve(p.order, n, turn, length, &p, &least);
            assert_true(fell == (least < before));
            /* tries each exchange, and each reversal that is no exchange */
            assert_int_equal(p.calls, n * (n - 1) / 2 + (turn && n > 3 ? (n - 3) * (n - 2) / 2 : 0));
            assert_true(length(&p) == least);
        } while (fell);
        for (int i = 0; i < n; i++)
            for (int j = i + 1; j < n; j++) {
                ddp__swap(p.order, i, j);
                assert_true(length(&p) >= least);
                ddp__swap(p.order, i, j);
                ddp__reverse(p.order, i, j);
                assert_true(!turn || length(&p) >= least);
                ddp__reverse(p.order, i, j);
            }
    }
}

static void nothing_is_tried_once_the_cost_is_0(void **state)
{
    ddp_rng r = ddp_rng_seed(34, 0);
    double least = 0;
    path p;

    (void)state;
    path_random(&p, &r, 6);
    assert_false(ddp__improve(p.order, 6, 1, length, &p, &least));
    assert_int_equal(p.calls, 0);
    memset(p.hop, 0, sizeof p.hop); /* the first try costs nothing and is the last one */
    least = 1;
    assert_true(ddp__improve(p.order, 6, 1, length, &p, &least));
    assert_int_equal(p.calls, 1);
    assert_true(least == 0);
}

static void orders_are_shuffled_and_reversed(void **state)
{
    static const int turned[6] = {0, 4, 3, 2, 1, 5};
    ddp_rng r = ddp_rng_seed(35, 0);
    int order[6], first[6] = {0, 0, 0, 0, 0, 0};

    (void)state;
    ddp__shuffle(order, 6, NULL);
    for (int i = 0; i < 6; i++) assert_int_equal(order[i], i);
    ddp__reverse(order, 1, 4);
    assert_memory_equal(order, turned, sizeof turned);
    ddp__reverse(order, 3, 3);
    assert_memory_equal(order, turned, sizeof turned);
    for (int round = 0; round < 6000; round++) { /* 1000 each, +- 28.9 */
        int seen = 0;
        ddp__shuffle(order, 6, &r);
        for (int i = 0; i < 6; i++) seen |= 1 << order[i];
        assert_int_equal(seen, 63);
        first[order[0]]++;
    }
    for (int i = 0; i < 6; i++) assert_in_range(first[i], 850, 1150);
}

/* ---- a link's clock ---- */

static void a_link_carries_one_message_at_a_time(void **state)
{
    double free_at = 3;

    (void)state;
    assert_true(ddp__link_take(&free_at, 5, 2) == 5 && free_at == 7);
    assert_true(ddp__link_take(&free_at, 5, 2) == 7 && free_at == 9);
    assert_true(ddp__link_take(&free_at, 9, 0) == 9 && free_at == 9);
}

static void the_first_link_to_deliver_is_taken(void **state)
{
    static const double idle[3] = {0, 0, 0}, busy[3] = {9, 4, 4}, takes[3] = {1, 6, 6},
                        alpha[3] = {0.5, 0, 0};

    (void)state;
    assert_int_equal(ddp__link_first(3, idle, 2, takes, alpha), 0); /* 3.5, 8 and 8 */
    /* 10.5, 10 and 10: the first of the equal ones */
    assert_int_equal(ddp__link_first(3, busy, 2, takes, alpha), 1);
    assert_int_equal(ddp__link_first(1, busy, 2, takes, alpha), 0);
    assert_int_equal(ddp__link_first(3, busy, 5, takes, alpha), 0); /* 10.5, 11 and 11 */
}

/* ---- names ---- */

static void names_and_values_match(void **state)
{
    static const char *const names[] = {"default", "red", "green", "blue", NULL}, *const one[] = {"-", "only",
                                                                                                  NULL};
    ddp_error err;
    int out = 7;

    (void)state;
    assert_string_equal(ddp__name_of(names, 0), "default");
    assert_string_equal(ddp__name_of(names, 3), "blue");
    assert_string_equal(ddp__name_of(names, 4), "unknown");
    assert_string_equal(ddp__name_of(names, -1), "unknown");
    assert_int_equal(ddp__named(names, 1, "colour", "green", &out, &err), DDP_OK);
    assert_int_equal(out, 2);
    out = 7;
    assert_int_equal(ddp__named(names, 1, "colour", "default", &out, &err), DDP_ARG);
    assert_string_equal(err.msg, "colour 'default' is unknown; use red, green or blue");
    assert_int_equal(ddp__named(names, 1, "colour", NULL, &out, &err), DDP_ARG);
    assert_string_equal(err.msg, "colour '' is unknown; use red, green or blue");
    assert_int_equal(ddp__named(one, 1, "colour", "red", &out, &err), DDP_ARG);
    assert_string_equal(err.msg, "colour 'red' is unknown; use only");
    assert_int_equal(out, 7);
    assert_int_equal(ddp__named(names, 1, "colour", "red", NULL, &err), DDP_ARG);
    assert_string_equal(err.msg, "the colour of a name: out is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_key_is_next_then_the_least_number),
        cmocka_unit_test(ranks_ascend_and_equal_ones_keep_their_order),
        cmocka_unit_test(improving_ends_if_no_move_gains),
        cmocka_unit_test(nothing_is_tried_once_the_cost_is_0),
        cmocka_unit_test(orders_are_shuffled_and_reversed),
        cmocka_unit_test(a_link_carries_one_message_at_a_time),
        cmocka_unit_test(the_first_link_to_deliver_is_taken),
        cmocka_unit_test(names_and_values_match),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
