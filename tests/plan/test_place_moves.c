/* [pure] The moves of annealing, the initial placements, and the result of descent. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "plan/place/place_moves.c"
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

/* ---- the sums of a walk ---- */

/* The smooth cost of an arrangement, from the definition in place_moves.h. */
static double smooth(const ddp__moves *s, const int *at)
{
    const int d = s->D;
    double top = 0, all = 0, loads = 0, hops = 0, sums = 0;

    for (int j = 0; j < s->S; j++) {
        double data = 0, hop = 0;
        for (int a = 0; a < d; a++) {
            double load = 0;
            for (int b = 0; b < d; b++) load += (double)s->dp[at[j * d + a] * s->N + at[j * d + b]];
            loads += load / 2;
            data = fmax(data, load);
            if (j + 1 == s->S) continue;
            sums += (double)s->pp[at[j * d + a] * s->N + at[(j + 1) * d + a]];
            hop = fmax(hop, (double)s->pp[at[j * d + a] * s->N + at[(j + 1) * d + a]]);
        }
        top = fmax(top, data);
        all += data;
        hops += hop;
    }
    return top + hops + s->lam * all + s->nu * loads + s->mu * sums;
}

/* Every move of a walk whose limit is always its heat: it stays if and only if the cost, computed from
 * scratch, grows by less than the heat. So no lower bound rejects a good move, and no sum is wrong. */
static void moves_are_decided_by_the_whole_cost(void **state)
{
    static const int shape[4][2] = {{4, 6}, {1, 24}, {12, 2}, {8, 3}};
    static const double heats[4] = {0, 0.01, 0.1, 0.5};
    ddp_rng r = ddp_rng_seed(61, 0);
    int count[2] = {0, 0};

    (void)state;
    for (int round = 0; round < 16; round++) {
        const int d = shape[round % 4][0], stages = shape[round % 4][1];
        ddp_network n = network(&r);
        ddp_place_options o;
        ddp__place p;
        ddp__moves s;
        memset(&o, 0, sizeof o);
        assert_int_equal(ddp__place_open(&p, &n, d, stages, NULL), DDP_OK);
        p.o = &o;
        ddp__place_limits(&p);
        assert_true(ddp__moves_open(&s, &p));
        for (int k = 0; k < DDP__MOVES_TABLE; k++) s.table[k] = 1;
        s.heat = heats[round / 4];
        ddp__shuffle(s.at, N, &p.rng);
        ddp__moves_rebuild(&s);
        for (int k = 0; k < 4000; k++) {
            int was[N], trial[N];
            double before = smooth(&s, s.at), after;
            const int kind = k % 4, a = (int)ddp_rng_below(&r, N), b = (int)ddp_rng_below(&r, N);
            int stays;
            const int j = a / d < b / d ? a / d : b / d, l = a / d < b / d ? b / d : a / d;
            memcpy(was, s.at, sizeof was);
            memcpy(trial, was, sizeof was);
            if (kind == 0) {
                if (j == l) continue;
                ddp__swap(trial, a, b);
                stays = ddp__moves_exchange(&s, a, b);
            } else if (kind == 1) {
                const int i = a % d, back = (int)ddp_rng_below(&r, 2);
                if (j == l) continue;
                for (int m = j; m <= l; m++) {
                    const int to = back ? (m == j ? l : m - 1) : (m == l ? j : m + 1);
                    trial[to * d + i] = was[m * d + i];
                }
                stays = ddp__moves_rotate(&s, i, j, l, back);
            } else if (kind == 2) {
                if (a % d == b % d) continue;
                for (int m = j; m <= l; m++) ddp__swap(trial, m * d + a % d, m * d + b % d);
                stays = ddp__moves_cross(&s, a % d, b % d, j, l);
            } else {
                for (int m = j; m <= l; m++)
                    memcpy(trial + m * d, was + (j + l - m) * d, (size_t)d * sizeof(int));
                stays = ddp__moves_reverse(&s, j, l);
            }
            after = smooth(&s, trial);
            assert_memory_equal(s.at, stays ? trial : was, sizeof was);
            if (fabs(after - before - s.heat) > 1e-12)
                assert_int_equal(stays, after - before <= 0 || after - before < s.heat);
            count[stays]++;
            assert_true(fabs(ddp__moves_cost(&s) - smooth(&s, s.at)) <= 1e-12 * after);
        }
        ddp__place_close(&p);
        ddp_network_free(&n);
    }
    print_message("%d moves stay, %d do not\n", count[1], count[0]);
    assert_true(count[0] > 5000 && count[1] > 5000);
}

/* After many moves, all sums are those of the arrangement, and the best arrangement has its cost. */
static void walks_keep_their_books(void **state)
{
    static const int shape[4][2] = {{4, 6}, {1, 24}, {12, 2}, {8, 3}};
    ddp_rng r = ddp_rng_seed(27, 0);

    (void)state;
    for (int round = 0; round < 8; round++) {
        ddp_network n = network(&r);
        ddp_place_options o;
        ddp__place p;
        ddp__moves s, fresh;
        memset(&o, 0, sizeof o);
        assert_int_equal(ddp__place_open(&p, &n, shape[round % 4][0], shape[round % 4][1], NULL), DDP_OK);
        p.o = &o;
        ddp__place_limits(&p);
        assert_true(ddp__moves_open(&s, &p) && ddp__moves_share(&fresh, &s));
        ddp__shuffle(s.at, N, &p.rng);
        ddp__moves_rebuild(&s);
        s.heat = 0.05;
        ddp__moves_run(&s, 20000);
        memcpy(fresh.at, s.at, N * sizeof(int));
        ddp__moves_rebuild(&fresh);
        for (int v = 0; v < N * s.S; v++) assert_true(fabs(s.toward[v] - fresh.toward[v]) <= 1e-12);
        for (int j = 0; j < s.S; j++) {
            assert_true(fabs(s.data[j] - fresh.data[j]) <= 1e-12);
            if (j + 1 == s.S) continue;
            assert_true(s.most[j] == fresh.most[j] && s.next[j] == fresh.next[j]);
            assert_true(fabs(s.sum[j] - fresh.sum[j]) <= 1e-12);
        }
        for (int k = 0; k < N - s.D; k++) assert_true(s.edge[k] == fresh.edge[k]);
        assert_true(fabs(s.top - fresh.top) + fabs(s.hops - fresh.hops) + fabs(s.loads - fresh.loads) <=
                    1e-11);
        assert_true(fabs(ldexp(s.best_cost, s.unit) - ddp__place_flat(&p, s.best, NULL, NULL)) <=
                    1e-6 * ldexp(s.best_cost, s.unit));
        ddp__place_close(&p);
        ddp_network_free(&n);
    }
}

/* With one pipeline a move exchanges two devices or reverses a run. An accepted move changes the order and
 * nothing else. */
static void moves_of_one_pipeline_exchange_or_reverse(void **state)
{
    ddp_rng r = ddp_rng_seed(47, 0);
    ddp_network n = network(&r);
    ddp_place_options o;
    ddp__place p;
    ddp__moves s;
    int turns = 0;

    (void)state;
    memset(&o, 0, sizeof o);
    o.seed = 5;
    n.pipelines = 1;
    n.stages = N;
    assert_int_equal(ddp__place_open(&p, &n, 1, N, NULL), DDP_OK);
    p.o = &o;
    ddp__place_limits(&p);
    assert_true(ddp__moves_open(&s, &p));
    ddp__shuffle(s.at, N, &p.rng);
    ddp__moves_rebuild(&s);
    s.lam = s.mu = s.nu = 0;
    s.heat = 1e30; /* accepts any cost */
    for (int k = 0; k < 2000; k++) {
        int was[N], i = 0, j = N - 1, m;
        double hops = 0;
        memcpy(was, s.at, sizeof was);
        if (!ddp__moves_try(&s)) continue;
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
 * stages of two pipelines (*to its end), 'r' a run of one pipeline rotated, 't' a run of stages reversed. */
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
    for (int i = 0, own = 0; i <= N; i++) {
        if (i == N && own == changed) return 'r';
        own += i < N && was[i] != is[i] && i % D == first % D;
    }
    for (int j = *from; j <= *to; j++) {
        r = 0;
        for (int i = 0; i < D; i++) r += was[j * D + i] != is[j * D + i];
        assert_int_equal(r, 2);
        assert_int_equal(is[j * D + first % D], was[j * D + last % D]);
        assert_int_equal(is[j * D + last % D], was[j * D + first % D]);
    }
    return 'c';
}

/* Of 64 moves: 36 exchanges between any stages, a quarter of them in the same pipeline; 5 in one pipeline; 3
 * rotations, a third of which only exchange two neighbours; 17 runs: 7 of one stage, 6 from any stage to the
 * end, 4 between any two; 3 reversals. */
static void moves_are_of_all_kinds(void **state)
{
    enum { MOVES = 64000 };
    ddp_rng r = ddp_rng_seed(49, 0);
    ddp_network n = network(&r);
    ddp_place_options o;
    ddp__place p;
    ddp__moves s;
    int x = 0, own = 0, runs = 0, single = 0, ends = 0, turns = 0, rotations = 0, from, to, was[N];

    (void)state;
    open_search(&p, &o, &n);
    assert_true(ddp__moves_open(&s, &p));
    ddp__shuffle(s.at, N, &p.rng);
    ddp__moves_rebuild(&s);
    s.lam = s.mu = s.nu = 0;
    s.heat = 1e30; /* accepts any cost */
    for (int k = 0; k < MOVES; k++) {
        memcpy(was, s.at, sizeof was);
        if (!ddp__moves_try(&s)) continue;
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
        case 'r':
            rotations++;
            break;
        default:
            runs++;
            single += from == to;
            ends += to == S - 1;
        }
    }
    print_message(
        "%d exchange, %d in a pipeline, %d rotations, %d runs (%d of one stage, %d to the end), %d turns\n",
        x, own, rotations, runs, single, ends, turns);
    assert_in_range(x, 26300, 27700);       /* 27000 */
    assert_in_range(own, 14400, 15600);     /* 9000 + 5000 + 3000 / 3 */
    assert_in_range(rotations, 1800, 2200); /* 3000 x 2/3 */
    assert_in_range(runs, 16400, 17600);    /* 17000 */
    assert_in_range(single, 7500, 8500);    /* 7000 + 6000 / 6 */
    /* 7000 / 6 + 6000 + 4000 / 3: the larger of two is the last with probability 1/3 */
    assert_in_range(ends, 8000, 9000);
    assert_in_range(turns, 2700, 3300); /* 3000 */
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
        cmocka_unit_test(moves_are_decided_by_the_whole_cost),
        cmocka_unit_test(walks_keep_their_books),
        cmocka_unit_test(moves_of_one_pipeline_exchange_or_reverse),
        cmocka_unit_test(moves_are_of_all_kinds),
        cmocka_unit_test(starts_are_kept_in_order),
        cmocka_unit_test(descent_returns_the_cost_that_it_computed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
