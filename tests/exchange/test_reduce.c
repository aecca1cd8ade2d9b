/* Reductions of floats, doubles and 64-bit integers, and collectives of bytes: results in rank order,
 * large messages, one worker, servers, lost workers, and calls that differ between ranks. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#define DDP__MESSAGE_BYTES ((size_t)1000)
#include "exchange/reduce.c"

enum { WORLD = 4, LONG = 180000 }; /* more doubles than fit into one piece of 4 MiB */

/* For workers: cmocka's own assertions only work in the main thread. */
#define CHECK(cond)                                                                          \
    do {                                                                                     \
        if (!(cond)) {                                                                       \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, ddp_rank(d), #cond); \
            return DDP_FAILED;                                                               \
        }                                                                                    \
    } while (0)

static ddp_config of_world(ddp_transport transport, int world)
{
    ddp_config c;

    memset(&c, 0, sizeof c);
    c.transport = transport;
    c.world = world;
    c.no_env = 1;
    c.timeout.op_s = 60;
    return c;
}

static void launch(ddp_config c, int (*fn)(ddp_ctx *, void *), void *user, int expected, const char *words)
{
    ddp_error err;
    int code;

    memset(&err, 0, sizeof err);
    code = ddp_launch(&c, fn, user, &err);
    if (code != expected || !strstr(err.msg, words))
        fail_msg("%d instead of %d: %s", code, expected, err.msg);
}

/* The sum of any two of these values is inexact. */
static double real(int rank, size_t i)
{
    return (rank + 1) * 0.1 + (double)(i % 1013) / 3e7 - (double)(i % 7);
}
static int64_t whole(int rank, size_t i) { return ((int64_t)1 << 53) + rank * 5 - (int64_t)(i % 9); }

/* Combines the values of ranks 0 to `to` - 1. */
static double real_of(ddp_reduction op, int to, size_t i)
{
    double x = real(0, i);

    for (int r = 1; r < to; r++) {
        const double y = real(r, i);
        if (op == DDP_MAX || op == DDP_MIN)
            x = op == DDP_MAX ? (y > x ? y : x) : y < x ? y : x;
        else
            x += y;
    }
    return op == DDP_MEAN ? x / to : x;
}

static int every_type(ddp_ctx *d, void *user)
{
    static const size_t sizes[] = {0, 1, 5, 1000, LONG};
    const int rank = ddp_rank(d);

    (void)user;
    for (int s = 0; s < 5; s++) {
        const size_t n = sizes[s];
        double *x = (double *)malloc(n * sizeof *x + 1);
        int64_t *k = (int64_t *)malloc(n * sizeof *k + 1);
        CHECK(x && k);
        for (int op = DDP_SUM; op <= DDP_MIN; op++) {
            for (size_t i = 0; i < n; i++) x[i] = real(rank, i);
            CHECK(ddp_all_reduce_double(d, x, n, (ddp_reduction)op) == 0);
            for (size_t i = 0; i < n; i++) CHECK(x[i] == real_of((ddp_reduction)op, WORLD, i));
            if (op == DDP_MEAN) continue;
            for (size_t i = 0; i < n; i++) k[i] = whole(rank, i);
            CHECK(ddp_all_reduce_int64(d, k, n, (ddp_reduction)op) == 0);
            for (size_t i = 0; i < n; i++)
                CHECK(k[i] == (op == DDP_MAX   ? whole(3, i)
                               : op == DDP_MIN ? whole(0, i)
                                               : 4 * whole(0, i) + 30));
        }
        free(x);
        free(k);
    }
    return 0;
}

static int floats(ddp_ctx *d, void *user)
{
    const float nan = (float)ddp__unknown();
    float x[257], y[257];

    (void)user;
    for (int op = DDP_SUM; op <= DDP_MIN; op++) {
        for (int i = 0; i < 257; i++) x[i] = y[i] = (float)(ddp_rank(d) * (i % 2 ? 1 : -1));
        CHECK(ddp_all_reduce_float(d, x, 257, (ddp_reduction)op) == 0);
        if (op == DDP_SUM) CHECK(ddp_all_reduce(d, y, 257, 1) == 0 && !memcmp(x, y, sizeof x));
        if (op == DDP_MEAN) CHECK(ddp_all_mean(d, y, 257) == 0 && !memcmp(x, y, sizeof x));
        if (op == DDP_MAX) CHECK(x[0] == 0 && x[1] == 3 && x[256] == 0);
        if (op == DDP_MIN) CHECK(x[0] == -3 && x[1] == 0 && x[256] == -3);
    }
    x[0] = ddp_rank(d) == 1 ? nan : 5.0f;
    x[1] = ddp_rank(d) == 0 ? nan : -5.0f;
    CHECK(ddp_all_reduce_float(d, x, 2, DDP_MAX) == 0 && ddp__is_nan((double)x[0]) &&
          ddp__is_nan((double)x[1]));
    return 0;
}

static int sums_out_of_range(ddp_ctx *d, void *user)
{
    int64_t x = INT64_MAX;

    (void)user;
    CHECK(ddp_all_reduce_int64(d, &x, 1, DDP_SUM) == 0 && x == -4); /* 4 (2^63 - 1) modulo 2^64 */
    return 0;
}

static int bytes(ddp_ctx *d, void *user)
{
    const int rank = ddp_rank(d);
    unsigned char x[WORLD * 1037];

    (void)user;
    for (size_t n = 0; n <= 1037; n = n * 2 + 3) { /* in messages of at most 1000 bytes, or 4 x 250 */
        memset(x, rank, sizeof x);
        CHECK(ddp_broadcast_bytes(d, x, 3 * n, 2) == 0);
        for (size_t i = 0; i < sizeof x; i++) CHECK(x[i] == (i < 3 * n ? 2 : rank));
        memset(x, 99, sizeof x);
        for (size_t i = 0; i < n; i++) x[n * (size_t)rank + i] = (unsigned char)(i % 50 + (size_t)rank);
        CHECK(ddp_all_gather_bytes(d, x, n) == 0);
        for (size_t i = 0; i < n * WORLD; i++) CHECK(x[i] == i % n % 50 + i / n);
        for (size_t i = n * WORLD; i < sizeof x; i++) CHECK(x[i] == 99);
    }
    return 0;
}

static int alone(ddp_ctx *d, void *user)
{
    float f[2] = {1.5f, -2};
    double x[2] = {1.5, -2};
    int64_t k[2] = {7, -7};

    (void)user;
    for (int op = DDP_SUM; op <= DDP_MIN; op++) {
        CHECK(ddp_all_reduce_float(d, f, 2, (ddp_reduction)op) == 0 && f[0] == 1.5f && f[1] == -2);
        CHECK(ddp_all_reduce_double(d, x, 2, (ddp_reduction)op) == 0 && x[0] == 1.5 && x[1] == -2);
        if (op != DDP_MEAN)
            CHECK(ddp_all_reduce_int64(d, k, 2, (ddp_reduction)op) == 0 && k[0] == 7 && k[1] == -7);
    }
    CHECK(ddp_broadcast_bytes(d, x, sizeof x, 0) == 0 && ddp_all_gather_bytes(d, x, sizeof x) == 0 &&
          x[1] == -2);
    return 0;
}

static void values_are_combined_in_rank_order(void **state)
{
    (void)state;
    launch(of_world(DDP_THREADS, WORLD), every_type, NULL, 0, "");
    launch(of_world(DDP_TCP, WORLD), every_type, NULL, 0, "");
    launch(of_world(DDP_THREADS, WORLD), floats, NULL, 0, "");
    launch(of_world(DDP_THREADS, WORLD), sums_out_of_range, NULL, 0, "");
}

static void large_byte_arrays_are_sent_in_several_messages(void **state)
{
    (void)state;
    launch(of_world(DDP_THREADS, WORLD), bytes, NULL, 0, "");
    launch(of_world(DDP_TCP, WORLD), bytes, NULL, 0, "");
}

static void single_worker_keeps_its_values(void **state)
{
    (void)state;
    launch(of_world(DDP_THREADS, 1), alone, NULL, 0, "");
}

/* ---- servers take no part ---- */

static int beside_a_server(ddp_ctx *d, void *user)
{
    double x = ddp_rank(d) + 1;
    unsigned char text[2] = {' ', ' '};

    (void)user;
    if (ddp_rank(d) == 2) return 0;
    CHECK(ddp_servers(d) == 1 && ddp_all_reduce_double(d, &x, 1, DDP_SUM) == 0 && x == 3);
    text[ddp_rank(d)] = (unsigned char)('a' + ddp_rank(d));
    CHECK(ddp_all_gather_bytes(d, text, 1) == 0 && text[0] == 'a' && text[1] == 'b');
    return 0;
}

static void servers_take_no_part(void **state)
{
    ddp_config c = of_world(DDP_THREADS, 3);

    (void)state;
    c.strategy = DDP_BSP;
    c.server.count = 1;
    launch(c, beside_a_server, NULL, 0, "");
}

/* ---- lost workers ---- */

static int without_the_lost(ddp_ctx *d, void *user)
{
    const int rank = ddp_rank(d);
    double x = 1 << rank, mean = 1 << rank;
    int64_t k = rank == 1 ? 100 : rank;
    unsigned char text[3];

    (void)user;
    CHECK(ddp_all_reduce_double(d, &x, 1, DDP_SUM) == 0 && x == 7);
    if (rank == 1) kill(getpid(), SIGKILL);
    CHECK(ddp_all_reduce_double(d, &mean, 1, DDP_MEAN) == 0 && mean == 2.5);
    CHECK(ddp_all_reduce_int64(d, &k, 1, DDP_MAX) == 0 && k == 2);
    memset(text, 'x', sizeof text);
    text[rank] = (unsigned char)('a' + rank);
    CHECK(ddp_all_gather_bytes(d, text, 1) == 0 && text[0] == 'a' && text[1] == 0 && text[2] == 'c');
    text[0] = (unsigned char)('p' + rank);
    CHECK(ddp_broadcast_bytes(d, text, 1, 1) == 0 && text[0] == 'p');
    return 0;
}

/* Rank 2 exits during a call. Later calls combine the values of the remaining ranks. */
static int during_a_call(ddp_ctx *d, void *user)
{
    static double x[LONG];
    const struct itimerval soon = {{0, 0}, {0, *(const int *)user}};
    uint64_t hash[3] = {0, 0, 0};
    size_t i = 0;

    if (ddp_rank(d) == 2) {
        signal(SIGALRM, SIG_DFL);
        setitimer(ITIMER_REAL, &soon, NULL);
    }
    do {
        for (size_t j = 0; j < LONG; j++) x[j] = real(ddp_rank(d), j);
        CHECK(ddp_all_reduce_double(d, x, LONG, DDP_MEAN) == 0);
        for (i = 0; i < LONG && x[i] == real_of(DDP_MEAN, 3, i); i++) {
        }
    } while (i == LONG);
    for (; i < LONG; i++) CHECK(x[i] == real_of(DDP_MEAN, 2, i));
    hash[ddp_rank(d)] = ddp__hash(DDP__HASH_START, x, sizeof x);
    CHECK(ddp_all_gather_bytes(d, hash, sizeof *hash) == 0 && hash[0] == hash[1]);
    return 0;
}

static void lost_workers_are_left_out(void **state)
{
    ddp_config c = of_world(DDP_TCP, 3);

    (void)state;
    c.elastic.min_world = 2;
    launch(c, without_the_lost, NULL, 0, "");
    c.net = "1gbit";
    for (int us = 20000; us < 100000; us += 17000) launch(c, during_a_call, &us, 0, "");
}

/* ---- calls that differ between ranks, and invalid arguments ---- */

static int different(ddp_ctx *d, void *user)
{
    double x[3] = {1, 2, 3};
    int64_t k[3] = {1, 2, 3};
    int code = 0;

    switch (*(const int *)user + (ddp_rank(d) ? 0 : 10)) {
    case 0:
        code = ddp_all_reduce_int64(d, k, 2, DDP_SUM);
        break;
    case 1:
        code = ddp_all_reduce_double(d, x, 2, DDP_MAX);
        break;
    case 2:
        code = ddp_all_reduce_double(d, x, 3, DDP_SUM);
        break;
    case 3:
        code = ddp_broadcast_bytes(d, x, 2 * sizeof *x, 0);
        break;
    default:
        code = ddp_all_reduce_double(d, x, 2, DDP_SUM);
    }
    return code;
}

static void calls_that_differ_between_ranks_are_named(void **state)
{
    static const char *const words[] = {"ddp_all_reduce_int64 with DDP_SUM",
                                        "ddp_all_reduce_double with DDP_MAX", "", ""};

    (void)state;
    for (int which = 0; which < 4; which++)
        launch(of_world(DDP_THREADS, 2), different, &which, DDP_MISMATCH, words[which]);
}

static int wrong(ddp_ctx *d, void *user)
{
    double x[2] = {1, 2};
    int64_t k[2] = {1, 2};
    ddp_reduction none;

    memset(&none, 1, sizeof none);
    switch (*(const int *)user) {
    case 0:
        return ddp_all_reduce_double(d, x, 2, none);
    case 1:
        return ddp_all_reduce_float(d, NULL, 2, DDP_MAX);
    case 2:
        return ddp_all_reduce_int64(d, k, 2, DDP_MEAN);
    case 3:
        return ddp_broadcast_bytes(d, x, 2, 7);
    default:
        return ddp_all_gather_bytes(d, NULL, 2);
    }
}

static void invalid_arguments_are_named(void **state)
{
    static const char *const words[] = {
        "ddp_all_reduce_double: reduction 16843009 does not exist", "ddp_all_reduce_float: the array",
        "ddp_all_reduce_int64: a mean of integers", "ddp_broadcast_bytes: rank 7",
        "ddp_all_gather_bytes: the array is NULL"};

    (void)state;
    for (int which = 0; which < 5; which++)
        launch(of_world(DDP_THREADS, 2), wrong, &which, DDP_ARG, words[which]);
    assert_int_equal(ddp_all_reduce_double(NULL, NULL, 0, DDP_SUM), DDP_ARG);
}

/* ---- local rank ---- */

static int where(ddp_ctx *d, void *user)
{
    CHECK(ddp_local_rank(d) == *(const int *)user);
    return 0;
}

static void local_rank_comes_from_the_launcher(void **state)
{
    ddp_config c = of_world(DDP_THREADS, 1);
    int place = 0;

    (void)state;
    launch(c, where, &place, 0, "");
    c.no_env = 0;
    setenv("LOCAL_RANK", "3", 1);
    place = 3;
    launch(c, where, &place, 0, "");
    setenv("DREAMDDP_LOCAL_RANK", "2", 1);
    place = 2;
    launch(c, where, &place, 0, "");
    unsetenv("LOCAL_RANK");
    unsetenv("DREAMDDP_LOCAL_RANK");
    assert_int_equal(ddp_local_rank(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_combined_in_rank_order),
        cmocka_unit_test(large_byte_arrays_are_sent_in_several_messages),
        cmocka_unit_test(single_worker_keeps_its_values),
        cmocka_unit_test(servers_take_no_part),
        cmocka_unit_test(lost_workers_are_left_out),
        cmocka_unit_test(calls_that_differ_between_ranks_are_named),
        cmocka_unit_test(invalid_arguments_are_named),
        cmocka_unit_test(local_rank_comes_from_the_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
