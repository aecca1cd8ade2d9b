/* Large broadcasts, in which every rank sends on a part of the values: results, bytes per rank, several
 * messages in flight, and the detection of foreign writes. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "comm/net_world.h"

enum { FLOATS = 400003, ROUNDS = 3 };

static int is_spread(const net_rank *me, size_t n)
{
    ddp__op op;

    memset(&op, 0, sizeof op);
    op.m.verb = DDP_BROADCAST;
    op.n = n;
    op.unit = sizeof(float);
    return ddp__way_of(me->engine, &op) == ddp__spread_way();
}

static float value(int rank, size_t i, int round)
{
    return (float)((i * 7 + (size_t)rank * 31 + (size_t)round) % 4099);
}

static void expect(net_rank *me, const float *x, size_t n, int root, int round, float more)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] < value(root, i, round) + more || x[i] > value(root, i, round) + more) {
            net_fail(me, "root %d, round %d, value %lu: %g", root, round, (unsigned long)i, (double)x[i]);
            return;
        }
}

/* From every root, in two pieces, several messages in flight. */
static void from_every_root(net_rank *me, void *user)
{
    float *x = (float *)malloc(ROUNDS * (size_t)FLOATS * sizeof *x);
    ddp_piece piece[ROUNDS][2];
    ddp_message m;
    long ticket[ROUNDS];

    (void)user;
    if (!is_spread(me, FLOATS)) net_fail(me, "another algorithm is used");
    for (int root = 0; root < me->world; root++) {
        for (int k = 0; k < ROUNDS; k++) {
            float *at = x + (size_t)k * FLOATS;
            for (size_t i = 0; i < FLOATS; i++) at[i] = value(me->rank, i, k);
            piece[k][0].data = at;
            piece[k][0].count = 1001 + 17 * (size_t)me->rank; /* ranks may divide the values differently */
            piece[k][1].data = at + piece[k][0].count;
            piece[k][1].count = FLOATS - piece[k][0].count;
            net_message(&m, DDP_BROADCAST, piece[k], 2);
            m.peer = root;
            net_ok(me, ddp__engine_submit(me->engine, &m, &ticket[k], &me->err));
        }
        for (int k = ROUNDS - 1; k >= 0; k--) net_ok(me, ddp__engine_wait(me->engine, ticket[k], &me->err));
        for (int k = 0; k < ROUNDS; k++) expect(me, x + (size_t)k * FLOATS, FLOATS, root, k, 0);
    }
    free(x);
}

static void every_rank_receives_the_values_of_the_root(void **state)
{
    net_setup set;

    (void)state;
    for (int world = 3; world <= 5; world++)
        for (int tcp = 0; tcp <= NET_TCP; tcp++) {
            net_defaults(&set, world);
            set.tcp = tcp;
            net_run(&set, from_every_root, NULL);
        }
}

static void emulated_links_change_no_value(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 4);
    set.rate = 200e6;
    set.delay_s = 1e-4;
    net_run(&set, from_every_root, NULL);
}

/* The result is stored in another array, or added to it. */
static void to_other_memory(net_rank *me, void *user)
{
    float *x = (float *)malloc(2 * (size_t)FLOATS * sizeof *x), *y = x + FLOATS;
    ddp_piece from, to;
    ddp_message m;

    (void)user;
    for (int add = 0; add < 2; add++) {
        for (size_t i = 0; i < FLOATS; i++) {
            x[i] = value(me->rank, i, add);
            y[i] = 10000;
        }
        from.data = x;
        to.data = y;
        from.count = to.count = FLOATS;
        net_message(&m, DDP_BROADCAST, &from, 1);
        m.peer = 1;
        m.to = &to;
        m.to_count = 1;
        m.add = add;
        net_ok(me, net_do(me, &m));
        if (me->rank != 1) expect(me, y, FLOATS, 1, add, add ? 10000 : 0);
    }
    free(x);
}

static void values_arrive_in_other_memory(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 4);
    net_run(&set, to_other_memory, NULL);
}

/* Bytes are divided by their own unit. */
static void bytes_arrive(net_rank *me, void *user)
{
    const size_t n = 3 * (size_t)FLOATS + 1;
    unsigned char *x = (unsigned char *)malloc(n);
    ddp_message m;
    ddp_piece p;

    (void)user;
    for (size_t i = 0; i < n; i++) x[i] = (unsigned char)(i * 13 + (size_t)me->rank);
    p.bytes = x;
    p.count = n;
    net_message(&m, DDP_BROADCAST, &p, 1);
    m.bytes = 1;
    m.peer = 2;
    net_ok(me, net_do(me, &m));
    for (size_t i = 0; i < n; i++)
        if (x[i] != (unsigned char)(i * 13 + 2)) net_fail(me, "byte %lu", (unsigned long)i);
    free(x);
}

static void bytes_arrive_unchanged(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 4);
    set.tcp = NET_TCP;
    net_run(&set, bytes_arrive, NULL);
}

/* Frames add at most 5 %. Segments consist of whole chunks. */
static void counts_bytes(net_rank *me, void *user)
{
    const double n = FLOATS * sizeof(float), others = me->world - 2;
    const double chunk = me->rank ? (double)(me->engine->chunk * sizeof(float)) : 0;
    const double share = me->rank ? others / (me->world - 1) : 1;
    float *x = (float *)calloc(FLOATS, sizeof *x);
    ddp__net_stats before, after;
    ddp_message m;
    ddp_piece p;

    (void)user;
    p.data = x;
    p.count = FLOATS;
    net_message(&m, DDP_BROADCAST, &p, 1);
    ddp__engine_stats(me->engine, &before);
    net_ok(me, net_do(me, &m));
    ddp__engine_stats(me->engine, &after);
    if ((double)(after.bytes_sent - before.bytes_sent) > 1.05 * share * n + others * chunk)
        net_fail(me, "sent %.0f bytes of %.0f", (double)(after.bytes_sent - before.bytes_sent), n);
    free(x);
}

static void root_sends_the_values_once(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 5);
    net_run(&set, counts_bytes, NULL);
}

/* check_writes: the root's values are hashed, and the values of other ranks may change. */
static void guarded(net_rank *me, void *user)
{
    float *x = (float *)malloc(FLOATS * sizeof *x);
    ddp_message m;
    ddp_piece p;

    (void)user;
    net_ok(me, ddp__engine_guard(me->engine, FLOATS, &me->err));
    for (size_t i = 0; i < FLOATS; i++) x[i] = value(me->rank, i, 0);
    p.data = x;
    p.count = FLOATS;
    net_message(&m, DDP_BROADCAST, &p, 1);
    m.peer = 3;
    net_ok(me, net_do(me, &m));
    expect(me, x, FLOATS, 3, 0, 0);
    free(x);
}

static void check_of_writes_accepts_values_that_are_sent_on(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 4);
    net_run(&set, guarded, NULL);
}

static void small_broadcasts_take_one_delay(void **state)
{
    ddp__links l;
    ddp__engine e;

    (void)state;
    memset(&e, 0, sizeof e);
    memset(&l, 0, sizeof l);
    e.chunk = 1024;
    l.slowest = 1e6;
    l.farthest = 0.5;
    e.links = l;
    assert_true(ddp__spread_bytes(&e) >= (size_t)500000);
    e.links.farthest = 0;
    assert_int_equal(ddp__spread_bytes(&e), 2 * 1024 * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_receives_the_values_of_the_root),
        cmocka_unit_test(emulated_links_change_no_value),
        cmocka_unit_test(values_arrive_in_other_memory),
        cmocka_unit_test(bytes_arrive_unchanged),
        cmocka_unit_test(root_sends_the_values_once),
        cmocka_unit_test(check_of_writes_accepts_values_that_are_sent_on),
        cmocka_unit_test(small_broadcasts_take_one_delay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
