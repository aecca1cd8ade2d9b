/* [pure] The moves of annealing, the initial placements, and the result of descent. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "plan/place/place_anneal.c"
#include "plan/place/place.c"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "plan/place_lab.h"

/* With one pipeline a move exchanges two devices or reverses a run. An accepted move changes the order and
 * nothing else. */
static void moves_of_one_pipeline_exchange_or_reverse(void **state)
{
    ddp_rng r = ddp_rng_seed(47, 0);
    ddp_network n = network(&r);
    ddp_place_options o;
    ddp__place p;
    ddp__anneal s;
    int turns = 0;

    (void)state;
    memset(&o, 0, sizeof o);
    o.seed = 5;
    n.pipelines = 1;
    n.stages = N;
    assert_int_equal(ddp__place_open(&p, &n, 1, N, NULL), DDP_OK);
    p.o = &o;
    ddp__place_limits(&p);
    assert_true(ddp__anneal_open(&s, &p));
    ddp__shuffle(s.at, N, &p.rng);
    ddp__anneal_rebuild(&s);
    s.lam = s.mu = s.nu = 0;
    s.heat = 1e30; /* accepts any cost */
    for (int k = 0; k < 2000; k++) {
        int was[N], i = 0, j = N - 1, m;
        double hops = 0;
        memcpy(was, s.at, sizeof was);
        if (!ddp__anneal_move(&s)) continue;
        while (i < N && s.at[i] == was[i]) i++;
        while (j >= 0 && s.at[j] == was[j]) j--;
        assert_true(i < j);
        assert_true(s.at[i] == was[j] && s.at[j] == was[i]);
        for (m = i + 1; m < j && s.at[m] == was[m]; m++) {
        }
        if (m < j) {
            for (m = i; m <= j; m++) assert_int_equal(s.at[m], was[i + j - m]);
            turns++;
        }
        for (m = 0; m + 1 < N; m++) hops += (double)s.pp[s.at[m] * N + s.at[m + 1]];
        assert_true(fabs(s.hops - hops) <= 1e-6 * hops);
    }
    assert_true(turns > 300);
    ddp__place_close(&p);
    ddp_network_free(&n);
}

/* The kind of change: 'x' two devices of different stages exchanged, 'p' two of one pipeline, 'c' a run of
 * stages of two pipelines (*to its end), 't' a run of stages reversed. */
static char kind_of(const int *was, const int *is, int *from, int *to)
{
    int changed = 0, first = N, last = -1, rows = 1, r;

    for (int i = 0; i < N; i++) {
        if (was[i] == is[i]) continue;
        changed++;
        first = i < first ? i : first;
        last = i;
    }
    *from = first / D;
    *to = last / D;
    if (changed == 2 && *from != *to) return first % D == last % D ? 'p' : 'x';
    for (int j = *from; j <= *to; j++)
        for (int i = 0; i < D; i++) rows &= is[j * D + i] == was[(*from + *to - j) * D + i];
    if (rows) return 't';
    for (int j = *from; j <= *to; j++) {
        r = 0;
        for (int i = 0; i < D; i++) r += was[j * D + i] != is[j * D + i];
        assert_int_equal(r, 2);
        assert_int_equal(is[j * D + first % D], was[j * D + last % D]);
        assert_int_equal(is[j * D + last % D], was[j * D + first % D]);
    }
    return 'c';
}

/* Of 64 moves: 36 exchanges between any stages, a quarter of them in the same pipeline, or 6 in one pipeline;
 * 18 runs: 8 of one stage, 6 from any stage to the end, 4 between any two; 4 reversals. */
static void moves_are_of_all_kinds(void **state)
{
    enum { MOVES = 64000 };
    ddp_rng r = ddp_rng_seed(49, 0);
    ddp_network n = network(&r);
    ddp_place_options o;
    ddp__place p;
    ddp__anneal s;
    int x = 0, own = 0, runs = 0, single = 0, ends = 0, turns = 0, from, to, was[N];

    (void)state;
    open_search(&p, &o, &n);
    assert_true(ddp__anneal_open(&s, &p));
    ddp__shuffle(s.at, N, &p.rng);
    ddp__anneal_rebuild(&s);
    s.lam = s.mu = s.nu = 0;
    s.heat = 1e30; /* accepts any cost */
    for (int k = 0; k < MOVES; k++) {
        memcpy(was, s.at, sizeof was);
        if (!ddp__anneal_move(&s)) continue;
        switch (kind_of(was, s.at, &from, &to)) {
        case 'x':
            x++;
            break;
        case 'p':
            own++;
            break;
        case 't':
            turns++;
            break;
        default:
            runs++;
            single += from == to;
            ends += to == S - 1;
        }
    }
    print_message("%d exchange, %d in a pipeline, %d runs (%d of one stage, %d to the end), %d turns\n", x,
                  own, runs, single, ends, turns);
    assert_in_range(x, 26300, 27700);    /* 27000 */
    assert_in_range(own, 14400, 15600);  /* 9000 + 6000 */
    assert_in_range(runs, 17400, 18600); /* 18000 */
    assert_in_range(single, 8500, 9500); /* 8000 + 6000 / 6 */
    /* (8000 + 8000) / 6 + 6000: the larger of two is the last with probability 1/3 */
    assert_in_range(ends, 8200, 9100);
    assert_in_range(turns, 3700, 4300); /* 4000 */
    ddp__place_close(&p);
    ddp_network_free(&n);
}

/* The best of the placements tried, each once, in order of cost. */
static void starts_are_kept_in_order(void **state)
{
    enum { ALL = 20, FEW = 3 };
    ddp_rng r = ddp_rng_seed(50, 0);
    int dropped = 0;

    (void)state;
    for (int round = 0; round < 30; round++) {
        ddp_network n = network(&r);
        int all[(ALL + 1) * N], few[(FEW + 1) * N], count, left;
        double cost[ALL + 1], least[FEW + 1];
        ddp_place_options o;
        ddp__place p;
        open_search(&p, &o, &n);
        count = ddp__place_starts(&p, ALL, all, cost);
        assert_in_range(count, 1, 8);
        assert_true(cost[0] == p.cost);
        for (int k = 0; k < count; k++) {
            assert_true(ddp__place_flat(&p, all + k * N, NULL, NULL) == cost[k]);
            assert_true(k == 0 || cost[k - 1] < cost[k]);
        }
        /* devices in the order of their numbers, along pipelines or stage by stage */
        for (int way = 0; way < 2; way++) {
            int at[N], found = 0;
            double one;
            for (int k = 0; k < N; k++) at[way ? k % S * D + k / S : k] = k;
            one = ddp__place_evaluate(&p, at, DBL_MAX);
            for (int k = 0; k < count; k++) found |= cost[k] == one;
            assert_true(found);
        }
        ddp__place_close(&p);
        open_search(&p, &o, &n);
        left = ddp__place_starts(&p, FEW, few, least);
        assert_int_equal(left, count < FEW ? count : FEW);
        dropped += count > left;
        for (int k = 0; k < left; k++) assert_true(least[k] == cost[k]);
        assert_memory_equal(few, all, (size_t)left * N * sizeof(int));
        ddp__place_close(&p);
        ddp_network_free(&n);
    }
    assert_true(dropped > 10);
}

/* The result of descent is ordered along its matchings, and has the cost that descent computed. */
static void descent_returns_the_cost_that_it_computed(void **state)
{
    ddp_rng r = ddp_rng_seed(48, 0);

    (void)state;
    for (int round = 0; round < 20; round++) {
        ddp_network n = network(&r);
        int at[N], mate[S * D], fresh[4 * D], seen[N];
        double hop[S], data[S];
        ddp_place_options o;
        ddp__descent s;
        ddp__place p;
        open_search(&p, &o, &n);
        ddp__shuffle(at, N, &r);
        memset(&s, 0, sizeof s);
        s.p = &p;
        s.at = at;
        s.mate = mate;
        s.fresh = fresh;
        s.hop = hop;
        s.data = data;
        for (int j = 0; j < S; j++) {
            s.top = fmax(s.top, ddp__place_averaging(&p, at, j));
            if (j + 1 < S) s.all += ddp__place_match(&p, at + j * D, at + (j + 1) * D, mate + j * D);
        }
        ddp__descent_offer(&s);
        assert_true(fabs(p.cost - (s.top + s.all)) <= 1e-12 * p.cost);
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < N; i++) seen[p.best[i]]++;
        for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
        assert_true(ddp__place_flat(&p, p.best, NULL, NULL) == p.cost);
        ddp__place_close(&p);
        ddp_network_free(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_of_one_pipeline_exchange_or_reverse),
        cmocka_unit_test(moves_are_of_all_kinds),
        cmocka_unit_test(starts_are_kept_in_order),
        cmocka_unit_test(descent_returns_the_cost_that_it_computed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
