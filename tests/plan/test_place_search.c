/* [pure] The searches of ddp_place step by step, each compared with a simple implementation. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "plan/place/place_genetic.c"
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

static void random_labels(ddp__place *p, int *label)
{
    int at[N], v;

    ddp__shuffle(at, p->N, &p->rng);
    for (v = 0; v < N; v++) label[at[v]] = v / D;
}

/* ---- one pass of cyclic moves ---- */

typedef struct pass {
    const ddp_network *n;
    int kl, label[N], locked[N];
} pass;

static double weight(const pass *c, int u, int v)
{
    double b = c->n->rate[u * N + v];

    return c->kl ? (c->n->pp_bytes - c->n->dp_bytes) / b : c->n->delay_s[u * N + v] + c->n->pp_bytes / b;
}

static double own_link(const pass *c, int v)
{
    double least = INFINITY;
    int u;

    for (u = 0; u < N; u++)
        if (u != v && c->label[u] == c->label[v]) least = fmin(least, weight(c, v, u));
    return least < INFINITY ? least : 0;
}

static double gain_of(const pass *c, int v, int q)
{
    double there = 0, here = 0;
    int u, size = 0;

    for (u = 0; u < N; u++) {
        if (u == v) continue;
        if (c->label[u] == q) {
            there += weight(c, v, u);
            size++;
        }
        if (c->label[u] == c->label[v]) here += weight(c, v, u);
    }
    if (c->kl) return there - here;
    return (size ? there / size : 0) - own_link(c, v);
}

/* The best move out of group g, or 0 for no move. */
static int best_move(const pass *c, int g, int *from, int *to, double *gain)
{
    int v, q, only = -1, found = 0;

    for (v = 0; v < N; v++)
        if (c->label[v] == g && !c->locked[v] && (only < 0 || own_link(c, v) < own_link(c, only))) only = v;
    for (v = 0; v < N; v++)
        for (q = 0; q < S; q++) {
            double now;
            if (c->label[v] != g || c->locked[v] || q == g || (!c->kl && v != only)) continue;
            now = gain_of(c, v, q);
            if (found && !(now > *gain)) continue;
            found = 1;
            *from = v;
            *to = q;
            *gain = now;
        }
    return found;
}

static void oracle_pass(pass *c)
{
    int received[S] = {0}, cycle, g, all;

    for (cycle = 0; cycle < S; cycle++) {
        int home = -1, moved[N], from[N], n = 0, keep = 0, v = 0, q = 0, k;
        double top = 0, gain = 0, sum = 0, best = 0;
        for (g = 0; g < S; g++)
            if (best_move(c, g, &v, &q, &gain) && (home < 0 || gain > top)) {
                home = g;
                top = gain;
            }
        if (home < 0) return;
        for (g = home; n < N && best_move(c, g, &v, &q, &gain); g = q) {
            if (n && sum + gain_of(c, v, home) > best) {
                best = sum + gain_of(c, v, home);
                keep = n;
            }
            moved[n] = v;
            from[n++] = g;
            c->label[v] = q;
            c->locked[v] = 1; /* locked until the pass ends */
            sum += gain;
            if (q == home) break;
        }
        for (k = n - 1; k > keep; k--) c->label[moved[k]] = from[k];
        c->label[moved[keep]] = home;
        for (k = 0; keep && k <= keep; k++) received[c->label[moved[k]]] = 1;
        for (g = 0, all = 1; g < S; g++) all &= received[g];
        if (all) return;
    }
}

static void cyclic_passes_move_what_the_released_search_moves(void **state)
{
    ddp_rng r = ddp_rng_seed(41, 0);
    int round;

    (void)state;
    for (round = 0; round < 80; round++) {
        ddp_network n = network(&r);
        ddp_place_options o;
        ddp__place p;
        int label[N];
        pass c;
        open_search(&p, &o, &n);
        p.rng = ddp_rng_seed(2, (uint64_t)round);
        memset(&c, 0, sizeof c);
        c.n = &n;
        c.kl = round % 2;
        random_labels(&p, label);
        memcpy(c.label, label, sizeof label);
        oracle_pass(&c);
        assert_true(ddp__place_cyclic_pass(&p, label, c.kl, NULL));
        assert_memory_equal(label, c.label, sizeof label);
        ddp__place_close(&p);
        ddp_network_free(&n);
    }
}

/* ---- one chain of the paper's swaps ---- */

/* The lightest pair of unlocked devices of group g. 0 means that fewer than two are left. */
static int fastest_pair(const pass *c, int g, int *pair, double *link)
{
    int u, v, found = 0;

    for (u = 0; u < N; u++)
        for (v = u + 1; v < N; v++) {
            if (c->label[u] != g || c->label[v] != g || c->locked[u] || c->locked[v]) continue;
            if (found && !(weight(c, u, v) < *link)) continue;
            found = 1;
            pair[0] = u;
            pair[1] = v;
            *link = weight(c, u, v);
        }
    return found;
}

static double mean_to(const pass *c, int u, int g)
{
    double sum = 0;
    int v;

    for (v = 0; v < N; v++)
        if (c->label[v] == g) sum += weight(c, u, v);
    return sum / (double)D;
}

/* Returns how many swaps of the chain were undone. */
static int oracle_chain(pass *c)
{
    int first = -1, group = -1, swap[N][2], n = 0, keep = 0, a, b, k, t, back;
    double sum = 0, most = 0;

    for (;;) {
        double best = -INFINITY;
        int x = -1, y = -1;
        for (a = 0; a < S; a++)
            for (b = 0; b < S; b++) {
                int one[2] = {0, 0}, two[2] = {0, 0};
                double here = 0, there = 0;
                if (a == b || (group >= 0 && a != group)) continue;
                if (!fastest_pair(c, a, one, &here) || !fastest_pair(c, b, two, &there)) continue;
                for (k = 0; k < 4; k++) {
                    int u = one[k / 2], v = two[k % 2];
                    double gain = mean_to(c, u, b) - here + mean_to(c, v, a) - there;
                    if (gain > best) {
                        best = gain;
                        x = u;
                        y = v;
                    }
                }
            }
        if (x < 0) break;
        if (first < 0) first = c->label[x];
        group = c->label[y];
        t = c->label[x];
        c->label[x] = c->label[y];
        c->label[y] = t;
        c->locked[x] = c->locked[y] = 1;
        swap[n][0] = x;
        swap[n++][1] = y;
        sum += best;
        if (sum > most) {
            most = sum;
            keep = n;
        }
        if (group == first) break;
    }
    back = n - keep;
    while (n-- > keep) {
        t = c->label[swap[n][0]];
        c->label[swap[n][0]] = c->label[swap[n][1]];
        c->label[swap[n][1]] = t;
    }
    return back;
}

static void open_chain(ddp__place_chain *c)
{
    memset(c, 0, sizeof *c);
    c->locked = (char *)ddp__calloc(N, 1);
    c->end = (int *)ddp__calloc(2 * S, sizeof(int));
    c->link = (double *)ddp__calloc(S + 2 * S * S, sizeof(double));
    c->swap = (ddp__place_swap *)ddp__calloc(N, sizeof *c->swap);
    assert_true(c->locked && c->end && c->link && c->swap);
    c->mean = c->link + S;
}

static void close_chain(ddp__place_chain *c)
{
    DDP_FREE(c->locked);
    DDP_FREE(c->end);
    DDP_FREE(c->link);
    DDP_FREE(c->swap);
}

static void chains_swap_as_in_the_paper(void **state)
{
    ddp_rng r = ddp_rng_seed(42, 0);
    int round, cut = 0;
    ddp__place_chain chain;

    (void)state;
    open_chain(&chain);
    for (round = 0; round < 80; round++) {
        ddp_network n = network(&r);
        ddp_place_options o;
        ddp__place p;
        int label[N], k;
        pass c;
        open_search(&p, &o, &n);
        p.rng = ddp_rng_seed(3, (uint64_t)round);
        memset(&c, 0, sizeof c);
        c.n = &n;
        random_labels(&p, label);
        memcpy(c.label, label, sizeof label);
        for (k = 0; k < 4; k++) { /* later chains start from better groups, and are shorter */
            memset(c.locked, 0, sizeof c.locked);
            cut += oracle_chain(&c) > 0;
            ddp__place_circulate(&p, &chain, label);
            assert_memory_equal(label, c.label, sizeof label);
        }
        ddp__place_close(&p);
        ddp_network_free(&n);
    }
    assert_true(cut > 20);
    close_chain(&chain);
}

/* ---- the population ---- */

static void crossover_exchanges_five_devices(void **state)
{
    ddp_rng r = ddp_rng_seed(43, 0);
    ddp_network n = network(&r);
    ddp__place_pool pool = {0, NULL, NULL, 0, 0, NULL, NULL};
    ddp_place_options o;
    int round, v, k, one, two, unlike, most = 0;
    ddp__place p;

    (void)state;
    open_search(&p, &o, &n);
    ddp__place_pool_open(&p, &pool);
    assert_false(p.room.failed);
    assert_int_equal(pool.size, 100);
    for (round = 0; round < 500; round++) {
        int count[S] = {0};
        ddp__place_cross(&p, &pool, &one, &two);
        for (v = unlike = 0; v < N; v++) {
            unlike += pool.child[v] != pool.label[two * N + v];
            count[pool.child[v]]++;
        }
        for (k = 0; k < S; k++) assert_int_equal(count[k], D);
        assert_true(unlike <= 10); /* five, and one as the buffer for each crossing */
        if (unlike > most) most = unlike;
    }
    assert_true(most >= 6);
    ddp__place_close(&p);
    ddp_network_free(&n);
}

/* The whole search, composed of its steps, with the replacement rules written out here. */
static double search_by_steps(const ddp_network *n, int genetic)
{
    ddp__place_chain chain;
    ddp__place_pool pool = {0, NULL, NULL, 0, 0, NULL, NULL};
    ddp_place_options o;
    ddp__place p;
    int one, two, k, out;
    double cost;

    open_chain(&chain);
    open_search(&p, &o, n);
    ddp__place_pool_open(&p, &pool);
    assert_false(p.room.failed);
    while (ddp__place_next(&p)) {
        ddp__place_cross(&p, &pool, &one, &two);
        if (genetic)
            ddp__place_circulate(&p, &chain, pool.child);
        else
            assert_true(ddp__place_cyclic_pass(&p, pool.child, 0, NULL));
        cost = ddp__place_judge(&p, &pool, pool.child, DBL_MAX);
        if (genetic) { /* better than the worst: replaces it */
            for (out = 0, k = 1; k < pool.size; k++)
                if (pool.cost[k] > pool.cost[out]) out = k;
            if (cost >= pool.cost[out]) continue;
        } else { /* better than the first parent: replaces the worse one */
            if (cost >= pool.cost[one]) continue;
            out = pool.cost[two] > pool.cost[one] ? two : one;
        }
        pool.cost[out] = cost;
        memcpy(pool.label + out * N, pool.child, N * sizeof(int));
    }
    cost = 0; /* of the last generation, not only the best one */
    for (k = 0; k < p.N; k++) cost += (k + 1) * p.best[k];
    cost += p.cost;
    ddp__place_close(&p);
    close_chain(&chain);
    return cost;
}

static void offspring_follow_the_replacement_rules(void **state)
{
    ddp_rng r = ddp_rng_seed(44, 0);
    int round, k;

    (void)state;
    for (round = 0; round < 12; round++) {
        ddp_network n = network(&r);
        ddp_place_options o;
        ddp__place p;
        double sum = 0;
        open_search(&p, &o, &n);
        o.solver = round % 2 ? DDP_PLACE_GENETIC : DDP_PLACE_GENETIC_CODE;
        ddp__place_genetic(&p, o.solver);
        assert_int_equal(p.candidates, 2000);
        for (k = 0; k < N; k++) sum += (k + 1) * p.best[k];
        assert_true(sum + p.cost == search_by_steps(&n, round % 2));
        ddp__place_close(&p);
        ddp_network_free(&n);
    }
}

/* ---- annealing ---- */

static void annealing_results_are_matched_and_ordered(void **state)
{
    ddp_rng r = ddp_rng_seed(45, 0);
    int round;

    (void)state;
    for (round = 0; round < 20; round++) {
        ddp_network n = network(&r);
        ddp_place_options o;
        ddp__place p;
        int best[N];
        open_search(&p, &o, &n);
        p.limit = 600;
        ddp__place_anneal(&p);
        memcpy(best, p.best, sizeof best);
        assert_true(ddp__place_evaluate(&p, best, DBL_MAX) >= p.cost * (1 - 1e-12));
        ddp__place_close(&p);
        ddp_network_free(&n);
    }
}

/* The largest averaging time of all stages after a move, even if none of the changed stages has it. */
static void the_top_of_a_move_is_that_of_all_stages(void **state)
{
    ddp_rng r = ddp_rng_seed(47, 0);
    ddp_network n = network(&r);
    ddp_place_options o;
    ddp__place p;
    ddp__moves s;
    int had = 0;

    (void)state;
    open_search(&p, &o, &n);
    assert_true(ddp__moves_open(&s, &p));
    for (int round = 0; round < 1000; round++) {
        const int j = (int)ddp_rng_below(&r, S), k = (j + 1 + (int)ddp_rng_below(&r, S - 1)) % S;
        double top;
        ddp__shuffle(s.at, p.N, &p.rng);
        ddp__moves_rebuild(&s);
        s.trial->count = 2;
        s.trial->pos[0] = j * D;
        s.trial->pos[1] = k * D + 1;
        s.trial->data[0] = s.data[j] * (0.5 + ddp_rng_uniform(&r));
        s.trial->data[1] = s.data[k] * (0.5 + ddp_rng_uniform(&r));
        top = fmax(s.trial->data[0], s.trial->data[1]);
        for (int m = 0; m < S; m++)
            if (m != j && m != k) top = fmax(top, s.data[m]);
        assert_true(ddp__moves_top(&s) == top);
        had += top < s.top;
    }
    assert_true(had > 50);
    ddp__place_close(&p);
    ddp_network_free(&n);
}

/* Default limits: a number of moves of annealing by the size of the network, 5000 candidates of the others,
 * one minute of the exact search. If one limit is given, only that one applies. */
static void each_search_has_its_own_limit(void **state)
{
    static const ddp_place_solver few[] = {DDP_PLACE_GENETIC, DDP_PLACE_GENETIC_CODE, DDP_PLACE_KL};
    ddp_place_options o;
    ddp__place p;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    p.o = &o;
    for (int i = 0; i < 2; i++) {
        o.solver = i ? DDP_PLACE_ANNEAL : DDP_PLACE_DEFAULT;
        p.N = 24;
        p.D = 4;
        ddp__place_limits(&p);
        assert_true(p.limit == 24 * 3500000 && p.limit_s == DBL_MAX);
        p.N = 64;
        p.D = 8;
        ddp__place_limits(&p);
        assert_true(p.limit == 112000000 && p.limit_s == DBL_MAX);
        p.N = 256;
        p.D = 16;
        ddp__place_limits(&p);
        assert_true(p.limit == 56000000 && p.limit_s == DBL_MAX);
    }
    for (int i = 0; i < 3; i++) {
        o.solver = few[i];
        ddp__place_limits(&p);
        assert_true(p.limit == 5000 && p.limit_s == DBL_MAX);
    }
    o.solver = DDP_PLACE_EXACT;
    ddp__place_limits(&p);
    assert_true(p.limit == LONG_MAX && p.limit_s == 60);
    o.time_limit_s = 3;
    ddp__place_limits(&p);
    assert_true(p.limit == LONG_MAX && p.limit_s == 3);
    o.solver = DDP_PLACE_DEFAULT;
    o.time_limit_s = 0;
    o.max_candidates = 7;
    ddp__place_limits(&p);
    assert_true(p.limit == 7 && p.limit_s == DBL_MAX);
}

/* Three candidates per move while KL leads, two at first, then a third within 1.1 x the best. */
static void kl_continues_while_it_is_near_the_best(void **state)
{
    ddp__place p;

    (void)state;
    memset(&p, 0, sizeof p);
    p.cost = 100;
    assert_int_equal(ddp__place_turn(&p, 0, DBL_MAX), 24);
    assert_int_equal(ddp__place_turn(&p, 1999, 300), 24);
    assert_int_equal(ddp__place_turn(&p, 2000, 111), 0);
    assert_int_equal(ddp__place_turn(&p, 2000, 109), 4);
    assert_int_equal(ddp__place_turn(&p, 50, 100), 36);
    assert_int_equal(ddp__place_turn(&p, 5000, 100), 36);
}

/* A longer search continues the shorter one, so it is never worse, at any pair of limits. */
static void a_longer_search_is_never_worse(void **state)
{
    ddp_rng r = ddp_rng_seed(51, 0);

    (void)state;
    for (int round = 0; round < 4; round++) {
        ddp_network n = network(&r);
        double last = DBL_MAX;
        for (long limit = 100; limit < 1000000; limit = limit * 3 / 2 + 17) {
            ddp_place_options o;
            ddp__place p;
            open_search(&p, &o, &n);
            p.limit = limit;
            ddp__place_anneal(&p);
            assert_true(p.candidates <= limit && p.candidates > limit - DDP__ANNEAL_CHUNK);
            assert_true(p.cost <= last);
            last = p.cost;
            ddp__place_close(&p);
        }
        ddp_network_free(&n);
    }
}

/* A time limit ends the search after a whole number of chunks of moves: as many candidates give the same
 * placement without a clock. */
static int out_of_time(void *user, double seconds, double best_s)
{
    (void)seconds;
    (void)best_s;
    return --*(int *)user <= 0;
}

static void a_stopped_search_is_that_of_its_candidates(void **state)
{
    ddp_rng r = ddp_rng_seed(52, 0);

    (void)state;
    for (int calls = 1; calls < 12; calls++) {
        ddp_network n = network(&r);
        ddp_place_options o;
        ddp_placement stopped, counted;
        int left = calls;
        memset(&o, 0, sizeof o);
        o.seed = (uint64_t)calls;
        o.progress = out_of_time;
        o.user = &left;
        o.max_candidates = 400000;
        assert_int_equal(ddp_place(&n, &o, &stopped, NULL), DDP_OK);
        memset(&o, 0, sizeof o);
        o.seed = (uint64_t)calls;
        o.max_candidates = stopped.candidates;
        assert_int_equal(ddp_place(&n, &o, &counted, NULL), DDP_OK);
        assert_memory_equal(stopped.assign, counted.assign, N * sizeof(int));
        assert_int_equal(stopped.candidates, counted.candidates);
        ddp_placement_free(&stopped);
        ddp_placement_free(&counted);
        ddp_network_free(&n);
    }
}

/* The parts of a round smooth the maxima less and less. */
static void a_round_ends_with_a_sixteenth_of_the_smoothing(void **state)
{
    ddp_rng r = ddp_rng_seed(46, 0);
    ddp_network n = network(&r);
    int found[N];
    ddp_place_options o;
    ddp__place p;
    ddp__moves s;

    (void)state;
    open_search(&p, &o, &n);
    p.limit = 100000;
    assert_true(ddp__moves_open(&s, &p));
    ddp__shuffle(s.at, p.N, &p.rng);
    ddp__place_offer(&p, s.at, ddp__place_flat(&p, s.at, NULL, NULL));
    assert_true(s.mu == 0x1p-3 && s.nu == 0x1p-3 && s.lam == 0x1p-4);
    assert_true(ddp__anneal_round(&s, 0x1p-5, 8000, found));
    assert_true(s.mu == 0x1p-7 && s.nu == 0x1p-7 && s.lam == 0x1p-8);
    assert_int_equal(p.candidates, 8000);
    /* the result is matched and ordered, and no better than the best */
    assert_true(ddp__place_flat(&p, s.at, NULL, NULL) >= p.cost);
    assert_true(fabs(ddp__place_evaluate(&p, s.at, DBL_MAX) - ddp__place_flat(&p, s.at, NULL, NULL)) <=
                1e-12 * p.cost);
    assert_false(ddp__anneal_round(&s, 0x1p-5, 1000000, found)); /* the limit ends it */
    assert_true(p.candidates <= 100000 && p.candidates > 100000 - DDP__ANNEAL_CHUNK);
    ddp__place_close(&p);
    ddp_network_free(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cyclic_passes_move_what_the_released_search_moves),
        cmocka_unit_test(chains_swap_as_in_the_paper),
        cmocka_unit_test(crossover_exchanges_five_devices),
        cmocka_unit_test(offspring_follow_the_replacement_rules),
        cmocka_unit_test(annealing_results_are_matched_and_ordered),
        cmocka_unit_test(the_top_of_a_move_is_that_of_all_stages),
        cmocka_unit_test(each_search_has_its_own_limit),
        cmocka_unit_test(kl_continues_while_it_is_near_the_best),
        cmocka_unit_test(a_longer_search_is_never_worse),
        cmocka_unit_test(a_stopped_search_is_that_of_its_candidates),
        cmocka_unit_test(a_round_ends_with_a_sixteenth_of_the_smoothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
