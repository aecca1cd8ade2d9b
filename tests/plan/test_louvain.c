/* [pure] Louvain, compared with known communities and with every partition of small graphs. */
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

/* Plain modularity by its definition over pairs. */
static double pairs(int n, const double *w, double resolution, const int *c)
{
    double m2 = 0, q = 0, degree[MOST];
    int i, j;

    for (i = 0; i < n; i++)
        for (degree[i] = 0, j = 0; j < n; j++)
            if (i != j) degree[i] += (w[i * n + j] + w[j * n + i]) / 2;
    for (i = 0; i < n; i++) m2 += degree[i];
    if (!(m2 > 0)) return 0;
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++)
            if (c[i] == c[j])
                q += (i == j ? 0 : (w[i * n + j] + w[j * n + i]) / 2) / m2 -
                     resolution * degree[i] / m2 * degree[j] / m2;
    return q;
}

/* Asserts that both are close to each other and finite. */
static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 1e-12 * (1 + 2 * fmin(fabs(a), fabs(b))))) fail_msg("%.17g is not %.17g", a, b);
}

static double communities(int n, const double *w, int *c, int *count)
{
    double q = 7;
    ddp_error err;

    if (ddp_louvain(n, w, 1, c, count, &q, &err) != DDP_OK) fail_msg("%s", err.msg);
    close_to(q, pairs(n, w, 1, c));
    return q;
}

static void a_complete_graph_of_equal_weights_is_one_community(void **state)
{
    double w[MOST * MOST];
    int c[MOST], n, i, count;

    (void)state;
    for (n = 2; n <= 40; n++) {
        for (i = 0; i < n * n; i++) w[i] = 2.5;
        close_to(communities(n, w, c, &count), 0);
        assert_int_equal(count, 1);
        for (i = 0; i < n; i++) assert_int_equal(c[i], 0);
    }
}

static void two_triangles_on_a_bridge_are_two_communities(void **state)
{
    /* m = 7; each triangle: 3 edges inside, degrees 7 of 14: Q = 2 (3/7 - 1/4) */
    static const int edge[7][2] = {{0, 1}, {1, 2}, {0, 2}, {3, 4}, {4, 5}, {3, 5}, {2, 3}};
    double w[36], q;
    int c[6], k, count;

    (void)state;
    memset(w, 0, sizeof w);
    for (k = 0; k < 7; k++) w[edge[k][0] * 6 + edge[k][1]] = w[edge[k][1] * 6 + edge[k][0]] = 1;
    q = communities(6, w, c, &count);
    close_to(q, 2 * (3.0 / 7 - 0.25));
    assert_int_equal(count, 2);
    for (k = 0; k < 6; k++) assert_int_equal(c[k], k / 3);
    q = 7;
    assert_int_equal(ddp_modularity(6, w, 1, c, &q, NULL), DDP_OK);
    close_to(q, 2 * (3.0 / 7 - 0.25));
    /* a small resolution joins communities that a large one separates */
    assert_int_equal(ddp_louvain(6, w, 0.1, c, &count, NULL, NULL), DDP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(ddp_louvain(6, w, 20, c, &count, NULL, NULL), DDP_OK);
    assert_int_equal(count, 6);
}

static void one_direction_of_a_link_counts_half(void **state)
{
    double there[9] = {0, 4, 0, 0, 0, 0, 0, 0, 0}, both[9] = {9, 2, 0, 2, 9, 0, 0, 0, 9}, q[2] = {7, 8};
    int c[3] = {0, 0, 1};

    (void)state;
    assert_int_equal(ddp_modularity(3, there, 1, c, &q[0], NULL), DDP_OK);
    assert_int_equal(ddp_modularity(3, both, 1, c, &q[1], NULL), DDP_OK);
    close_to(q[0], q[1]);
    close_to(q[0], 0); /* all weight and all degrees are inside one community */
}

static void components_never_share_a_community(void **state)
{
    double w[MOST * MOST];
    int c[MOST], part[MOST], n, i, j, round, count;
    ddp_rng r = ddp_rng_seed(3, 0);

    (void)state;
    for (round = 0; round < 200; round++) {
        n = 2 + (int)ddp_rng_below(&r, 30);
        memset(w, 0, sizeof w);
        for (i = 0; i < n; i++) part[i] = (int)ddp_rng_below(&r, 4);
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++)
                if (i != j && part[i] == part[j]) w[i * n + j] = ddp_rng_uniform(&r);
        communities(n, w, c, &count);
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++)
                if (part[i] != part[j]) assert_int_not_equal(c[i], c[j]);
    }
    memset(w, 0, sizeof w); /* no link: every node is its own community, Q = 0 */
    assert_int_equal(ddp_louvain(5, w, 1, c, &count, NULL, NULL), DDP_OK);
    assert_int_equal(count, 5);
}

/* The largest modularity over every partition of nodes i.., given the partition of the earlier nodes. */
static double best_of(int n, const double *w, int *c, int i, int used)
{
    double best = -INFINITY, q;
    int k;

    if (i == n) return pairs(n, w, 1, c);
    for (k = 0; k <= used; k++) {
        c[i] = k;
        q = best_of(n, w, c, i + 1, used + (k == used));
        if (q > best) best = q;
    }
    return best;
}

static void small_graphs_are_partitioned_almost_optimally(void **state)
{
    double w[64], q, best;
    int c[8], all[8], n, i, j, round, count, optimal = 0;
    ddp_rng r = ddp_rng_seed(4, 0);

    (void)state;
    for (round = 0; round < 150; round++) {
        n = 2 + (int)ddp_rng_below(&r, 6);
        memset(w, 0, sizeof w);
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++)
                if (i != j && ddp_rng_below(&r, 3)) w[i * n + j] = ddp_rng_uniform(&r);
        q = communities(n, w, c, &count);
        best = best_of(n, w, all, 0, 0);
        assert_true(q <= best + 1e-12);
        optimal += q >= best - 1e-12;
    }
    assert_true(optimal >= 148); /* a heuristic, but sixteen starts rarely all miss */
}

static void no_single_node_gains_by_moving(void **state)
{
    double w[MOST * MOST], q;
    int c[MOST], n, i, j, k, own, round, count;
    ddp_rng r = ddp_rng_seed(5, 0);

    (void)state;
    for (round = 0; round < 60; round++) {
        n = 3 + (int)ddp_rng_below(&r, 30);
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++)
                w[i * n + j] = ddp_rng_below(&r, 4) ? 0 : 1 / (0.01 + ddp_rng_uniform(&r));
        q = communities(n, w, c, &count);
        for (i = 0; i < n; i++) {
            own = c[i];
            for (k = 0; k < n && k <= count; k++) {
                c[i] = k;
                assert_true(pairs(n, w, 1, c) <= q + 1e-9);
            }
            c[i] = own;
        }
    }
}

static void blocks_of_fast_links_are_found_whatever_the_numbering(void **state)
{
    double w[MOST * MOST];
    int c[MOST], again[MOST], place[MOST], n = 40, i, j, round, count;
    ddp_rng r = ddp_rng_seed(6, 0);

    (void)state;
    for (round = 0; round < 30; round++) {
        for (i = 0; i < n; i++) place[i] = i;
        for (i = n - 1; i > 0; i--) {
            int swap = place[i];
            j = (int)ddp_rng_below(&r, (uint64_t)i + 1);
            place[i] = place[j];
            place[j] = swap;
        }
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++) w[i * n + j] = place[i] / 8 == place[j] / 8 ? 10 : 1;
        communities(n, w, c, &count);
        assert_int_equal(count, 5);
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++) assert_int_equal(c[i] == c[j], place[i] / 8 == place[j] / 8);
        for (i = j = 0; i < n; i++) { /* communities are numbered by their lowest node */
            assert_true(c[i] <= j);
            j += c[i] == j;
        }
        communities(n, w, again, &count);
        assert_memory_equal(c, again, (size_t)n * sizeof(int));
    }
}

static void invalid_graphs_are_an_error_and_leave_the_outputs(void **state)
{
    double w[4] = {0, 1, 1, 0}, q = 5;
    int c[2] = {8, 9}, count = 4;
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_louvain(0, w, 1, c, &count, &q, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "0 nodes"));
    assert_int_equal(ddp_louvain(2, NULL, 1, c, &count, &q, &err), DDP_ARG);
    assert_int_equal(ddp_louvain(2, w, 0, c, &count, &q, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "resolution is 0"));
    assert_int_equal(ddp_louvain(2, w, 1e101, c, &count, &q, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "resolution is 1e+101"));
    assert_int_equal(ddp_louvain(2, w, 1, NULL, &count, &q, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "community is NULL; it receives the result"));
    w[1] = -3;
    assert_int_equal(ddp_louvain(2, w, 1, c, &count, &q, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "from node 0 to node 1 is -3"));
    w[1] = NAN;
    assert_int_equal(ddp_louvain(2, w, 1, c, &count, &q, &err), DDP_ARG);
    w[1] = 1e200;
    assert_int_equal(ddp_louvain(2, w, 1, c, &count, &q, &err), DDP_NUMERIC);
    w[1] = 1;
    assert_int_equal(ddp_modularity(2, w, 1, c, &q, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "community 8"));
    c[0] = -1;
    assert_int_equal(ddp_modularity(2, w, 1, c, &q, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "node 0 is in community -1; numbers run from 0 to 1"));
    c[0] = 8;
    assert_int_equal(ddp_modularity(2, w, 1, NULL, &q, &err), DDP_ARG);
    assert_int_equal(ddp_modularity(2, w, 1, c, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "community and out must not be NULL"));
    assert_int_equal(ddp_modularity(0, w, 1, c, &q, &err), DDP_ARG);
    assert_true(c[0] == 8 && c[1] == 9 && count == 4 && q >= 5 && q <= 5);
    w[0] = NAN; /* the diagonal is not read */
    assert_int_equal(ddp_louvain(2, w, 1, c, &count, &q, &err), DDP_OK);
    assert_int_equal(count, 1);
    c[0] = c[1] = 9;
    assert_int_equal(ddp_louvain(2, w, 1, c, NULL, NULL, &err), DDP_OK);
    assert_true(c[0] == 0 && c[1] == 0);
}

/* Graphs this large are tried in index order only. Clear blocks are found nevertheless. */
static void more_than_a_thousand_nodes_take_one_start(void **state)
{
    enum { MANY = 1040, BLOCK = 16 };
    static double w[MANY * MANY];
    static int c[MANY];
    int count = 0;
    double q = 0;

    (void)state;
    for (int i = 0; i < MANY; i++)
        for (int j = 0; j < MANY; j++)
            w[i * MANY + j] = i % (MANY / BLOCK) == j % (MANY / BLOCK) ? 100 : 0.01;
    assert_int_equal(ddp_louvain(MANY, w, 1, c, &count, &q, NULL), DDP_OK);
    assert_int_equal(count, MANY / BLOCK);
    for (int i = 0; i < MANY; i++) assert_int_equal(c[i], i % (MANY / BLOCK));
}

static void a_graph_without_nodes_or_weights_is_an_error(void **state)
{
    static const double none[1] = {0};
    int community[1], count = 7;
    ddp_error err;
    double q = 7;

    (void)state;
    assert_int_equal(ddp_louvain(0, none, 1, community, &count, &q, &err), DDP_ARG);
    assert_string_equal(err.msg, "a graph of 0 nodes has no communities");
    assert_int_equal(ddp_louvain(5, NULL, 1, community, &count, &q, &err), DDP_ARG);
    assert_string_equal(err.msg, "a graph of 5 nodes without weights has no communities");
    assert_true(count == 7 && q == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_complete_graph_of_equal_weights_is_one_community),
        cmocka_unit_test(a_graph_without_nodes_or_weights_is_an_error),
        cmocka_unit_test(two_triangles_on_a_bridge_are_two_communities),
        cmocka_unit_test(one_direction_of_a_link_counts_half),
        cmocka_unit_test(components_never_share_a_community),
        cmocka_unit_test(small_graphs_are_partitioned_almost_optimally),
        cmocka_unit_test(no_single_node_gains_by_moving),
        cmocka_unit_test(blocks_of_fast_links_are_found_whatever_the_numbering),
        cmocka_unit_test(more_than_a_thousand_nodes_take_one_start),
        cmocka_unit_test(invalid_graphs_are_an_error_and_leave_the_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
