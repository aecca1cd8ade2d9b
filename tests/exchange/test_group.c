/* Process groups, hierarchical all-reduce and the ring's order, compared with plain sums. All ranks must
 * be bit-identical. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#include "exchange.h"
#ifdef __cplusplus
}
#endif

enum { MOST = 6, WORDS = 40001 };

typedef struct trial {
    ddp_config cfg;
    int (*work)(ddp_ctx *, struct trial *);
    const int *site_of;
    int *order;
    uint64_t hash[MOST];
    char algorithm[MOST];
    double from_bytes[MOST];
    ddp_network *net;
} trial;

static int worker(ddp_ctx *d, void *user)
{
    trial *t = (trial *)user;
    return t->work(d, t);
}

static void run(trial *t, ddp_transport transport, int world, int expected)
{
    ddp_error err;
    int code;

    t->cfg.transport = transport;
    t->cfg.world = world;
    t->cfg.no_env = 1;
    t->cfg.timeout.op_s = 60;
    memset(&err, 0, sizeof err);
    code = ddp_launch(&t->cfg, worker, t, &err);
    if (code != expected) fail_msg("%d instead of %d: %s", code, expected, err.msg);
}

static float value(int rank, size_t i)
{
    const uint32_t h = ((uint32_t)i * 2654435761u) ^ ((uint32_t)(rank + 1) * 2246822519u);
    return (float)(h >> 8) / 8388608.0f - 1.0f;
}

static void fill(float *x, size_t n, int rank)
{
    for (size_t i = 0; i < n; i++) x[i] = value(rank, i);
}

#define CHECK(e)                                                \
    if (!(e)) {                                                 \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #e); \
        return 14;                                              \
    }

/* Sums in rank order, as a direct all-reduce does. */
static float sum_of(const int *ranks, int n, size_t i, float scale)
{
    float s = value(ranks[0], i);
    for (int k = 1; k < n; k++) s += value(ranks[k], i);
    return s * scale;
}

/* ---- process groups ---- */

static int several_groups(ddp_ctx *d, trial *t)
{
    static const int even[] = {0, 2, 4}, odd[] = {1, 3}, alone[] = {2}, wide[] = {0, 1, 3, 4};
    static const int *const list[] = {even, odd, alone, wide};
    static const int size[] = {3, 2, 1, 4};
    float *x = (float *)malloc(sizeof *x * WORDS), all[20];
    int group[4], rank = ddp_rank(d);

    (void)t;
    for (int g = 0; g < 4; g++) CHECK(ddp_group(d, list[g], size[g], &group[g]) == 0);
    for (int round = 0; round < 12; round++)
        for (int g = 0; g < 4; g++) {
            const size_t n = round % 3 ? 1 + (size_t)round * 37 : WORDS;
            int place = -1;
            for (int k = 0; k < size[g]; k++)
                if (list[g][k] == rank) place = k;
            if (place >= 0) {
                const int root = list[g][size[g] - 1];
                fill(x, n, rank);
                CHECK(exchange(d, DDP_ALL_REDUCE, in_group(group[g]), x, n, 0.5f, 0) == 0);
                for (size_t i = 0; i < n; i++) CHECK(x[i] == sum_of(list[g], size[g], i, 0.5f));
                fill(x, n, rank);
                CHECK(exchange(d, DDP_BROADCAST, in_group(group[g]), x, n, 1, root) == 0);
                for (size_t i = 0; i < n; i++) CHECK(x[i] == value(root, i));
                for (int i = 0; i < 20; i++) all[i] = -7;
                all[3 * place] = (float)rank;
                all[3 * place + 2] = (float)round;
                CHECK(exchange(d, DDP_ALL_GATHER, in_group(group[g]), all, 3 * (size_t)size[g], 1, 0) == 0);
                for (int k = 0; k < size[g]; k++)
                    CHECK(all[3 * k] == (float)list[g][k] && all[3 * k + 2] == (float)round);
                CHECK(all[3 * size[g]] == -7);
                fill(x, (size_t)size[g] * 5, rank);
                CHECK(exchange(d, DDP_REDUCE_SCATTER, in_group(group[g]), x, 5 * (size_t)size[g], 2, 0) == 0);
                for (size_t i = 0; i < (size_t)size[g] * 5; i++)
                    CHECK(x[i] == (i / 5 == (size_t)place ? sum_of(list[g], size[g], i, 2) : value(rank, i)));
                CHECK(exchange(d, DDP_ALL_GATHER, in_group(group[g]), all, (size_t)size[g], 1, 0) == 0);
            }
            /* an all-reduce over all ranks in between, at another place in each round */
            if (g == round % 4) {
                static const int everybody[] = {0, 1, 2, 3, 4};
                fill(x, n, rank);
                CHECK(ddp_all_reduce(d, x, n, 1) == 0);
                for (size_t i = 0; i < n; i++) CHECK(x[i] == sum_of(everybody, 5, i, 1));
            }
        }
    free(x);
    return 0;
}

static void groups_have_separate_collectives(void **state)
{
    trial t;

    (void)state;
    memset(&t, 0, sizeof t);
    t.work = several_groups;
    run(&t, DDP_THREADS, 5, 0);
    run(&t, DDP_TCP, 5, 0);
    t.cfg.net = "400mbit,1ms";
    run(&t, DDP_THREADS, 5, 0);
}

static int wrong_group(ddp_ctx *d, trial *t)
{
    static const int falling[] = {1, 0}, outside[] = {0, 3}, first[] = {0, 1};
    float x[2] = {1, 2};
    int group = -5;

    if (t->order[0] == 0) return ddp_group(d, falling, 2, &group);
    if (t->order[0] == 1) return ddp_group(d, outside, 2, &group);
    if (t->order[0] == 2) return ddp_group(d, first, 0, &group);
    CHECK(ddp_group(d, first, 2, &group) == 0);
    if (t->order[0] == 3) return exchange(d, DDP_ALL_REDUCE, in_group(2), x, 2, 1, 0);
    if (t->order[0] == 4) return exchange(d, DDP_BROADCAST, in_group(group), x, 2, 1, 2);
    return exchange(d, DDP_ALL_REDUCE, in_group(group), x, 2, 1, 0); /* rank 2 is not in the group */
}

static void invalid_groups_fail(void **state)
{
    trial t;
    int kind;

    (void)state;
    memset(&t, 0, sizeof t);
    t.work = wrong_group;
    t.order = &kind;
    for (kind = 0; kind < 6; kind++) run(&t, DDP_THREADS, 3, DDP_ARG);
    t.cfg.elastic.min_world = 2;
    kind = 5;
    run(&t, DDP_THREADS, 3, DDP_UNSUPPORTED);
}

/* ---- hierarchical all-reduce ---- */

static int two_levels(ddp_ctx *d, trial *t)
{
    float *x = (float *)malloc(sizeof *x * WORDS);
    const int world = ddp_world(d);
    uint64_t hash = 0;
    ddp_sites s;

    CHECK(ddp_sites_open(d, t->site_of, &s) == 0);
    for (size_t n = 0; n < WORDS; n = n < 20 ? n + 1 : n * 7 + 1) {
        fill(x, n, ddp_rank(d));
        CHECK(ddp_sites_all_reduce(d, &s, x, n, 1.0f / (float)world) == 0);
        for (size_t i = 0; i < n; i++) {
            double sum = 0;
            for (int r = 0; r < world; r++) sum += (double)value(r, i);
            CHECK(fabs(sum / world - (double)x[i]) < 1e-6);
        }
        hash = ddp_hash_floats(hash, x, n);
    }
    t->hash[ddp_rank(d)] = hash;
    free(x);
    return 0;
}

static void sites_sum_hierarchically(void **state)
{
    static const int sites[][MOST] = {{0, 0, 1, 1, 0, 0}, {0, 1, 0, 1, 0, 1}, {7, 7, 7, 2, 2, 2},
                                      {0, 0, 0, 1, 1, 2}, {0, 0, 0, 0, 0, 0}, {5, 4, 3, 2, 1, 0}};
    trial t;

    (void)state;
    memset(&t, 0, sizeof t);
    t.work = two_levels;
    for (int k = 0; k < 6; k++) {
        t.site_of = sites[k];
        run(&t, DDP_THREADS, k ? 6 : 4, 0);
        for (int r = 1; r < (k ? 6 : 4); r++) assert_true(t.hash[r] == t.hash[0]);
    }
    t.site_of = sites[2];
    run(&t, DDP_TCP, 6, 0);
}

/* ---- the ring ---- */

static int ordered_ring(ddp_ctx *d, trial *t)
{
    float *x = (float *)malloc(sizeof *x * WORDS);
    ddp_probe_result r;
    ddp_ring_choice c;

    memset(&r, 0, sizeof r);
    r.world = ddp_world(d);
    r.pair = (ddp_pair *)calloc((size_t)r.world * (size_t)r.world, sizeof *r.pair);
    r.host = (ddp_link *)calloc((size_t)r.world, sizeof *r.host);
    CHECK(x && r.pair && r.host);
    for (int i = 0; i < r.world * r.world; i++) {
        const int a = i / r.world, b = i % r.world;
        int next = 0;
        for (int k = 0; k < r.world; k++)
            if (t->order[k] == a && t->order[(k + 1) % r.world] == b) next = 1;
        r.pair[i].rate = next ? 1e8 : 1e6; /* only the links along one ring are fast */
        r.pair[i].ping_s = r.pair[i].ping_median_s = r.pair[i].link.alpha_s = 1e-5;
        r.pair[i].link.beta_s = 1 / r.pair[i].rate;
    }
    CHECK(ddp_ring_tune(d, &r, &c) == 0);
    t->from_bytes[ddp_rank(d)] = c.from_bytes;
    fill(x, WORDS, ddp_rank(d));
    CHECK(ddp_all_reduce(d, x, WORDS, 1) == 0);
    for (size_t i = 0; i < WORDS; i++) {
        double sum = 0;
        for (int k = 0; k < r.world; k++) sum += (double)value(k, i);
        CHECK(fabs(sum - (double)x[i]) < 1e-5);
    }
    t->hash[ddp_rank(d)] = ddp_hash_floats(0, x, WORDS);
    t->algorithm[ddp_rank(d)] = ddp_last_algorithm(d)[0];
    free(r.pair);
    free(r.host);
    free(x);
    return 0;
}

/* Rings in two orders sum in two orders, so their results differ in the last bits. */
static void ring_follows_the_fast_links(void **state)
{
    static int orders[][5] = {{0, 1, 2, 3, 4}, {0, 3, 1, 4, 2}};
    uint64_t hash[2];
    trial t;

    (void)state;
    memset(&t, 0, sizeof t);
    t.work = ordered_ring;
    for (int k = 0; k < 2; k++) {
        t.order = orders[k];
        run(&t, DDP_THREADS, 5, 0);
        for (int r = 0; r < 5; r++) {
            assert_true(t.hash[r] == t.hash[0]);
            assert_int_equal(t.algorithm[r], 'r');
            assert_true(t.from_bytes[r] == t.from_bytes[0] && t.from_bytes[0] < 5e4);
        }
        hash[k] = t.hash[0];
    }
    assert_true(hash[0] != hash[1]);
    t.cfg.deterministic = 1;
    run(&t, DDP_THREADS, 5, 0);
    assert_int_equal(t.algorithm[0], 'd');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_have_separate_collectives),
        cmocka_unit_test(invalid_groups_fail),
        cmocka_unit_test(sites_sum_hierarchically),
        cmocka_unit_test(ring_follows_the_fast_links),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
