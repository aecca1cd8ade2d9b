/* Plain collectives of a program that only uses the header: over all ranks, groups, sites and two links,
 * with threads and processes; and the errors of wrong use. */
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { WORLD = 4, N = 5003 };

/* For workers: cmocka's own assertions only work in the main thread. */
#define CHECK(cond)                                                                          \
    do {                                                                                     \
        if (!(cond)) {                                                                       \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, ddp_rank(d), #cond); \
            return DDP_FAILED;                                                               \
        }                                                                                    \
    } while (0)

/* Whole numbers, so that every sum is exact. */
static float number(int rank, size_t i) { return (float)((rank + 1) * 3 + (int)(i % 11)); }

static void fill(float *x, size_t n, int rank)
{
    size_t i;

    for (i = 0; i < n; i++) x[i] = number(rank, i);
}

/* Returns 1 if x[i] is scale times the sum over the ranks whose bits are set in `who`. */
static int is_sum(const float *x, size_t n, unsigned who, float scale)
{
    size_t i;
    int r;

    for (i = 0; i < n; i++) {
        float sum = 0;
        for (r = 0; r < WORLD; r++)
            if (who >> r & 1) sum += number(r, i);
        if (x[i] != scale * sum) return 0;
    }
    return 1;
}

static int over_all_ranks(ddp_ctx *d, void *user)
{
    float x[N], y[WORLD * 100], total[WORLD * 100];
    int rank = ddp_rank(d), r;
    size_t n;

    (void)user;
    for (n = 1; n <= N; n = n * 5 + 2) {
        fill(x, n, rank);
        CHECK(ddp_all_reduce(d, x, n, 2) == 0 && is_sum(x, n, 15, 2));
        fill(x, n, rank);
        CHECK(ddp_all_mean(d, x, n) == 0 && is_sum(x, n, 15, 0.25f));
        fill(x, n, rank);
        CHECK(ddp_broadcast(d, x, n, 2) == 0 && is_sum(x, n, 4, 1));
    }
    for (r = 0; r < WORLD; r++) fill(y + 100 * r, 100, rank);
    CHECK(ddp_reduce_scatter(d, y, 100, 1) == 0 && is_sum(y + 100 * rank, 100, 15, 1));
    CHECK(ddp_all_gather(d, y, 100) == 0);
    for (r = 0; r < WORLD; r++) CHECK(is_sum(y + 100 * r, 100, 15, 1));
    fill(total, 100, rank);
    CHECK(ddp_all_reduce(d, total, 100, 1) == 0 && !memcmp(total, y, 100 * sizeof *y));
    fill(x, 9, rank);
    if (rank == 1) CHECK(ddp_send(d, x, 9, 3) == 0);
    if (rank == 3) CHECK(ddp_recv(d, x, 9, 1) == 0 && is_sum(x, 9, 2, 1));
    CHECK(ddp_barrier(d) == 0 && strlen(ddp_last_algorithm(d)) > 3);
    CHECK(ddp_all_reduce(d, x, 0, 1) == 0);
    return 0;
}

static int exchange(ddp_ctx *d, ddp_verb verb, int group, int link, ddp_coding coding, float *x, size_t n,
                    int root)
{
    ddp_message m;
    ddp_piece p;

    memset(&m, 0, sizeof m);
    memset(&p, 0, sizeof p);
    p.data = x;
    p.count = n;
    m.verb = verb;
    m.from = &p;
    m.from_count = 1;
    m.peer = root;
    m.group = group;
    m.link = link;
    m.coding = coding;
    return ddp_exchange(d, &m);
}

static int in_groups(ddp_ctx *d, void *user)
{
    const int even[] = {0, 2}, most[] = {1, 2, 3}, site_of[] = {7, 7, 2, 2};
    int rank = ddp_rank(d), first, second;
    float x[300], y[300];
    ddp_sites sites;

    (void)user;
    CHECK(ddp_group(d, even, 2, &first) == 0 && ddp_group(d, most, 3, &second) == 0 && second == first + 1);
    fill(x, 300, rank);
    if (rank % 2 == 0)
        CHECK(exchange(d, DDP_ALL_REDUCE, first, 0, DDP_AS_FLOAT, x, 300, 0) == 0 && is_sum(x, 300, 5, 1));
    if (rank > 0) {
        fill(x, 300, rank);
        CHECK(exchange(d, DDP_BROADCAST, second, 0, DDP_AS_FLOAT, x, 300, 3) == 0 && is_sum(x, 300, 8, 1));
        fill(y + 100 * (rank - 1), 100, rank);
        CHECK(exchange(d, DDP_ALL_GATHER, second, 0, DDP_AS_FLOAT, y, 300, 0) == 0 &&
              is_sum(y + 100, 100, 4, 1));
        fill(y, 100, rank);
        fill(y + 100, 100, rank);
        fill(y + 200, 100, rank);
        CHECK(exchange(d, DDP_REDUCE_SCATTER, second, 0, DDP_AS_FLOAT, y, 300, 0) == 0);
        CHECK(is_sum(y + 100 * (rank - 1), 100, 14, 1));
    }
    CHECK(ddp_sites_open(d, site_of, &sites) == 0 && sites.equal && sites.members == 2);
    CHECK(sites.leader == (rank < 2 ? 0 : 2) && sites.place == rank % 2);
    fill(x, 300, rank);
    CHECK(ddp_sites_all_reduce(d, &sites, x, 300, 1) == 0 && is_sum(x, 300, 15, 1));
    return 0;
}

/* Exchanges lists of arrays that replace or add to other arrays, bytes, and a receive from any rank. */
static int by_message(ddp_ctx *d, void *user)
{
    const int rank = ddp_rank(d);
    float x[300], y[300], is[300];
    unsigned char text[WORLD * 7];
    ddp_piece from[2], to[2], one;
    ddp_message m;
    ddp_received got;
    unsigned seen = 1;
    size_t i;
    int k;

    (void)user;
    memset(&m, 0, sizeof m);
    fill(x, 300, rank);
    from[0].data = x;
    from[0].count = 299;
    from[1].data = x + 299;
    from[1].count = 1;
    to[0].data = y + 100;
    to[0].count = 200;
    to[1].data = y;
    to[1].count = 100;
    m.verb = DDP_ALL_REDUCE;
    m.from = from;
    m.from_count = 2;
    m.to = to;
    m.to_count = 2;
    m.layer = DDP_NO_LAYER;
    CHECK(ddp_exchange(d, &m) == 0 && is_sum(x, 300, 1u << rank, 1)); /* the source stays unchanged */
    for (i = 0; i < 300; i++) is[i] = number(0, i) + number(1, i) + number(2, i) + number(3, i);
    for (i = 0; i < 300; i++) CHECK(y[(i + 100) % 300] == is[i]);
    for (i = 0; i < 300; i++) y[i] = 1;
    m.add = 1;
    CHECK(ddp_exchange(d, &m) == 0);
    for (i = 0; i < 300; i++) CHECK(y[(i + 100) % 300] - 1 == is[i]);
    memset(&m, 0, sizeof m);
    m.verb = DDP_ALL_GATHER;
    m.from = &one;
    m.from_count = 1;
    m.bytes = 1;
    m.layer = DDP_NO_LAYER;
    one.bytes = text;
    one.count = sizeof text;
    memset(text, 0, sizeof text);
    memset(text + 7 * rank, 'a' + rank, 7);
    CHECK(ddp_exchange(d, &m) == 0);
    for (i = 0; i < sizeof text; i++) CHECK(text[i] == 'a' + (int)i / 7);
    m.verb = DDP_BROADCAST;
    m.peer = 2;
    one.count = 3;
    text[0] = (unsigned char)rank;
    CHECK(ddp_exchange(d, &m) == 0 && text[0] == 2);
    fill(x, 300, rank);
    m.verb = rank ? DDP_SEND : DDP_RECEIVE;
    m.peer = rank ? 0 : DDP_ANY;
    m.bytes = 0;
    m.received = rank ? NULL : &got;
    one.data = rank ? x : y;
    one.count = 40;
    for (k = 1; k < (rank ? 2 : WORLD); k++) {
        CHECK(ddp_exchange(d, &m) == 0);
        if (rank) continue;
        CHECK(got.verb == DDP_SEND && got.count == 40 && !(seen >> got.peer & 1) &&
              is_sum(y, 40, 1u << got.peer, 1));
        seen |= 1u << got.peer;
    }
    m.priority = -1;
    m.verb = rank == 1 ? DDP_SEND : DDP_RECEIVE;
    m.peer = rank == 1 ? 0 : 1; /* high priority */
    one.data = rank ? x : y;
    if (rank < 2) CHECK(ddp_exchange(d, &m) == 0 && is_sum(one.data, 40, 2, 1));
    return 0;
}

static int over_two_links(ddp_ctx *d, void *user)
{
    float x[500];
    ddp_link_stats s;
    int link;

    (void)user;
    CHECK(ddp_links(d) == 2);
    for (link = 0; link < 2; link++) {
        fill(x, 500, ddp_rank(d));
        CHECK(exchange(d, DDP_ALL_REDUCE, 0, link, DDP_AS_FLOAT, x, 500, 0) == 0 && is_sum(x, 500, 15, 1));
        fill(x, 500, ddp_rank(d));
        CHECK(exchange(d, DDP_BROADCAST, 0, link, DDP_AS_FLOAT, x, 500, 1) == 0 && is_sum(x, 500, 2, 1));
        fill(x + 100 * ddp_rank(d), 100, ddp_rank(d));
        CHECK(exchange(d, DDP_ALL_GATHER, 0, link, DDP_AS_FLOAT, x, 100 * (size_t)ddp_world(d), 0) == 0 &&
              is_sum(x + 300, 100, 8, 1));
        CHECK(exchange(d, DDP_REDUCE_SCATTER, 0, link, DDP_AS_FLOAT, x, 100 * (size_t)ddp_world(d), 0) == 0);
    }
    CHECK(ddp_measure_links(d) == 0);
    CHECK(ddp_get_link_stats(d, 1, &s) == 0 && s.operations > 0 && s.bytes_sent > 0 && s.mu > 1);
    CHECK(ddp_get_link_stats(d, 2, &s) == DDP_ARG && s.operations == 0);
    return 0;
}

static int measured(ddp_ctx *d, void *user)
{
    ddp_probe_result r;
    ddp_ring_choice choice;
    ddp_network net;
    ddp_error err;
    float x[100];

    (void)user;
    CHECK(ddp_probe(d, &r) == 0 && r.world == WORLD);
    CHECK(r.pair[1].link.beta_s > 0 && r.pair[1].ping_s > 0.002 && r.pair[0].ping_s == 0);
    CHECK(ddp_probe_network(&r, &net, &err) == DDP_OK && net.devices == WORLD && net.rate[1] > 0);
    CHECK(ddp_network_check(&net, &err) == DDP_OK && ddp_ring_tune(d, &r, &choice) == 0);
    CHECK(choice.least_rate > 0 && choice.from_bytes > 0);
    fill(x, 100, ddp_rank(d));
    CHECK(ddp_all_reduce(d, x, 100, 1) == 0 && is_sum(x, 100, 15, 1));
    ddp_network_free(&net);
    ddp_probe_free(&r);
    return 0;
}

static int rounded(ddp_ctx *d, void *user)
{
    float x[200];
    size_t i;

    fill(x, 200, ddp_rank(d)); /* small whole numbers, which bfloat16 represents exactly */
    if (user) {
        CHECK(exchange(d, DDP_ALL_REDUCE, 0, 0, DDP_AS_INT8, x, 200, 0) == 0);
        for (i = 0; i < 200; i++) CHECK(fabsf(x[i] - (float)(30 + 4 * (int)(i % 11))) < 1);
    } else {
        CHECK(exchange(d, DDP_ALL_REDUCE, 0, 0, DDP_AS_BFLOAT, x, 200, 0) == 0 && is_sum(x, 200, 15, 1));
    }
    return 0;
}

static void launch(ddp_config cfg, int (*fn)(ddp_ctx *, void *), void *user)
{
    ddp_error err;

    cfg.world = WORLD;
    cfg.no_env = 1;
    if (ddp_launch(&cfg, fn, user, &err)) fail_msg("%s", err.msg);
}

static void collectives_work_over_all_ranks(void **state)
{
    ddp_config cfg;
    int a, transport;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    for (transport = DDP_THREADS; transport <= DDP_TCP; transport++)
        for (a = 0; a < 4; a++) {
            static const char *const names[] = {"auto", "full", "direct", "ring"};
            cfg.transport = (ddp_transport)transport;
            assert_true(ddp_algorithm_named(names[a], &cfg.algorithm));
            launch(cfg, over_all_ranks, NULL);
        }
    assert_false(ddp_algorithm_named("diagonal", &cfg.algorithm));
}

static void collectives_work_in_groups_and_between_sites(void **state)
{
    ddp_config cfg;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    launch(cfg, in_groups, NULL);
    cfg.transport = DDP_THREADS;
    launch(cfg, in_groups, NULL);
}

static void exchange_sends_any_message(void **state)
{
    ddp_config cfg;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    launch(cfg, by_message, NULL);
    cfg.transport = DDP_THREADS;
    launch(cfg, by_message, NULL);
}

static void second_link_has_separate_collectives(void **state)
{
    ddp_config cfg;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.net = "400mbit,1ms";
    cfg.network.net2 = "100mbit,1ms";
    launch(cfg, over_two_links, NULL);
}

static void links_can_be_measured(void **state)
{
    ddp_config cfg;
    double rate, delay;
    ddp_error err;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.net = "200mbit,4ms";
    assert_int_equal(ddp_net_parse(cfg.net, &rate, &delay, &err), DDP_OK);
    assert_true(rate == 25e6 && delay == 0.004);
    assert_int_equal(ddp_net_parse("fast", &rate, &delay, &err), DDP_ARG);
    launch(cfg, measured, NULL);
}

static void sums_can_be_sent_in_fewer_bytes(void **state)
{
    ddp_config cfg;
    int one = 1;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.transport = DDP_THREADS;
    cfg.wire = DDP_WIRE_BF16;
    launch(cfg, rounded, NULL);
    cfg.wire = DDP_WIRE_INT8;
    launch(cfg, rounded, &one);
}

/* ---- errors of wrong use ---- */

static int wrong(ddp_ctx *d, void *user)
{
    const int which = *(const int *)user, twice[] = {1, 1}, beyond[] = {0, 9};
    float x[8] = {0};
    int group, code;
    ddp_message m;
    ddp_sites sites;

    memset(&m, 0, sizeof m);
    switch (which) {
    case 0:
        code = ddp_all_reduce(d, NULL, 8, 1);
        break;
    case 1:
        code = ddp_broadcast(d, x, 8, WORLD);
        break;
    case 2:
        code = ddp_send(d, x, 8, ddp_rank(d));
        break;
    case 3:
        code = ddp_recv(d, x, 8, -2);
        break;
    case 4:
        code = ddp_group(d, twice, 2, &group);
        break;
    case 5:
        code = ddp_group(d, beyond, 2, &group);
        break;
    case 6:
        code = exchange(d, DDP_ALL_REDUCE, 5, 0, DDP_AS_FLOAT, x, 8, 0);
        break;
    case 7:
        code = exchange(d, DDP_ALL_REDUCE, 0, 1, DDP_AS_FLOAT, x, 8, 0);
        break;
    case 8:
        code = exchange(d, DDP_ALL_REDUCE, 0, 0, DDP_AS_BFLOAT, x, 8, 0);
        break;
    case 9:
        code = ddp_probe(d, NULL);
        break;
    case 10:
        code = ddp_sites_open(d, NULL, &sites);
        break;
    case 11:
        code = ddp_exchange(d, NULL);
        break;
    case 12:
        code = exchange(d, (ddp_verb)77, 0, 0, DDP_AS_FLOAT, x, 8, 0);
        break;
    case 13:
        code = exchange(d, DDP_SERVE, 0, 0, DDP_AS_FLOAT, x, 8, DDP_ANY);
        break;
    case 14:
        m.from_count = 1;
        code = ddp_exchange(d, &m);
        break;
    case 15:
        m.from_count = -1;
        code = ddp_exchange(d, &m);
        break;
    default:
        code = ddp_all_gather(d, NULL, 8);
    }
    if (!code || code != (int)ddp_last_error(d)->code || strlen(ddp_last_error(d)->msg) < 10) {
        fprintf(stderr, "wrong use %d: %d '%s'\n", which, code, ddp_last_error(d)->msg);
        return 0; /* the launch then succeeds, which the caller counts as a failure */
    }
    return ddp_barrier(d) == code ? code : 0;
}

static void wrong_use_fails_on_every_rank(void **state)
{
    int which;

    (void)state;
    for (which = 0; which <= 16; which++) {
        ddp_config cfg;
        ddp_error err;

        memset(&cfg, 0, sizeof cfg);
        cfg.no_env = 1;
        cfg.world = WORLD;
        cfg.transport = DDP_THREADS;
        if (!ddp_launch(&cfg, wrong, &which, &err)) fail_msg("wrong use %d is accepted", which);
        if (err.code != DDP_ARG && err.code != DDP_USAGE) fail_msg("%d: %d '%s'", which, err.code, err.msg);
    }
}

static int alone(ddp_ctx *d, void *user)
{
    float x[3] = {1, 2, 3};

    (void)user;
    CHECK(ddp_all_reduce(d, x, 3, 2) == 0 && x[0] == 2 && x[2] == 6);
    CHECK(ddp_all_mean(d, x, 3) == 0 && x[1] == 4 && ddp_broadcast(d, x, 3, 0) == 0);
    CHECK(ddp_barrier(d) == 0 && ddp_all_gather(d, x, 3) == 0 && x[0] == 2 && ddp_links(d) == 0);
    return 0;
}

static void one_worker_needs_no_network(void **state)
{
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    if (ddp_launch(&cfg, alone, NULL, &err)) fail_msg("%s", err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_work_over_all_ranks),
        cmocka_unit_test(collectives_work_in_groups_and_between_sites),
        cmocka_unit_test(exchange_sends_any_message),
        cmocka_unit_test(second_link_has_separate_collectives),
        cmocka_unit_test(links_can_be_measured),
        cmocka_unit_test(sums_can_be_sent_in_fewer_bytes),
        cmocka_unit_test(wrong_use_fails_on_every_rank),
        cmocka_unit_test(one_worker_needs_no_network),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
