/* High-priority messages between two ranks overtake messages in flight, and wait for nothing else. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "comm/net_world.h"

enum { LARGE = 1000000, SMALL = 1000, SUMS = 6 };

static long send_or_receive(net_rank *me, float *data, size_t n, unsigned salt, int priority)
{
    ddp_piece piece;
    ddp_message m;
    long ticket = -1;

    for (size_t i = 0; i < n; i++) data[i] = me->rank == 0 ? net_value(0, i, salt) : 0;
    piece.data = data;
    piece.count = n;
    net_message(&m, me->rank ? DDP_RECEIVE : DDP_SEND, &piece, 1);
    m.peer = !me->rank;
    m.priority = priority;
    net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
    return ticket;
}

static void arrived(net_rank *me, long ticket, const float *data, size_t n, unsigned salt)
{
    net_ok(me, ddp__engine_wait(me->engine, ticket, &me->err));
    for (size_t i = 0; i < n; i++)
        if (data[i] != net_value(0, i, salt)) {
            net_fail(me, "message %u, value %lu", salt, (unsigned long)i);
            return;
        }
}

/* 4 MB take 0.8 s. A high-priority message and its reply do not wait for them. */
static void overtake(net_rank *me, void *user)
{
    float *large = (float *)malloc(LARGE * sizeof *large), small[2][SMALL];
    long slow, quick[2];

    (void)user;
    slow = send_or_receive(me, large, LARGE, 1, 0);
    usleep(100000); /* it is in flight */
    quick[0] = send_or_receive(me, small[0], SMALL, 2, -1);
    quick[1] = send_or_receive(me, small[1], SMALL, 3, -1);
    arrived(me, quick[0], small[0], SMALL, 2);
    arrived(me, quick[1], small[1], SMALL, 3);
    if (ddp__engine_done(me->engine, slow)) net_fail(me, "the high-priority message overtook nothing");
    arrived(me, slow, large, LARGE, 1);
    free(large);
}

static void high_priority_message_overtakes_a_large_one(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        net_setup set;
        net_defaults(&set, 2);
        set.tcp = kind;
        set.rate = 5e6;
        net_run(&set, overtake, NULL);
    }
}

/* Rank 1 first receives only the high-priority message; all other messages of rank 0 wait for credits. */
static void first_the_urgent(net_rank *me, void *user)
{
    const size_t n = 50000;
    float *x = (float *)malloc((SUMS + 1) * n * sizeof *x), small[SMALL];
    long sum[SUMS], slow = -1, quick;
    ddp_piece piece;
    ddp_message m;

    (void)user;
    if (me->rank) {
        quick = send_or_receive(me, small, SMALL, 2, -1);
        arrived(me, quick, small, SMALL, 2);
        quick = send_or_receive(me, small, SMALL, 3, -1);
        arrived(me, quick, small, SMALL, 3);
    }
    for (int i = 0; i < SUMS; i++) {
        float *own = x + (size_t)(i + 1) * n;
        if (i == SUMS / 2) slow = send_or_receive(me, x, n, 1, 0);
        for (size_t k = 0; k < n; k++) own[k] = net_value(me->rank, k, (unsigned)i);
        piece.data = own;
        piece.count = n;
        net_message(&m, DDP_ALL_REDUCE, &piece, 1);
        net_ok(me, ddp__engine_submit(me->engine, &m, &sum[i], &me->err));
    }
    if (me->rank == 0) {
        float other[SMALL];
        usleep(20000); /* everything that has credits has arrived at rank 1 */
        quick = send_or_receive(me, small, SMALL, 2, -1);
        (void)send_or_receive(me, other, SMALL, 3, -2);
        arrived(me, quick, small, SMALL, 2);
        arrived(me, quick + 1, other, SMALL, 3);
    }
    arrived(me, slow, x, n, 1);
    for (int i = 0; i < SUMS; i++) {
        const float *own = x + (size_t)(i + 1) * n;
        net_ok(me, ddp__engine_wait(me->engine, sum[i], &me->err));
        for (size_t k = 0; k < n; k++)
            if (own[k] != net_value(0, k, (unsigned)i) + net_value(1, k, (unsigned)i))
                net_fail(me, "sum %d", i);
    }
    free(x);
}

static void high_priority_messages_always_have_credits(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        net_setup set;
        net_defaults(&set, 2);
        set.tcp = kind % 2;
        if (kind & 2) set.cfg.chunk_bytes = 4096;
        if (kind & 4) set.rate = 5e7;
        net_run(&set, first_the_urgent, NULL);
    }
}

/* Many messages of both priorities in both directions, between sums. */
static void mixed(net_rank *me, void *user)
{
    enum { MESSAGES = 120, MIXED = 3001 };
    float *x = (float *)malloc((size_t)MESSAGES * MIXED * sizeof *x);
    long ticket[MESSAGES];
    ddp_piece piece;
    ddp_message m;

    (void)user;
    for (int i = 0; i < MESSAGES; i++) {
        const int kind = i * 7 % 5, from = i * 3 % 2;
        float *own = x + (size_t)i * MIXED;
        piece.data = own;
        piece.count = (size_t)(1 + i * 997 % MIXED);
        for (size_t k = 0; k < piece.count; k++) own[k] = net_value(me->rank, k, (unsigned)i);
        net_message(&m, kind == 0 ? DDP_ALL_REDUCE : me->rank == from ? DDP_SEND : DDP_RECEIVE, &piece, 1);
        m.peer = !me->rank;
        m.priority = kind == 0 ? i % 3 : i * 11 % 7 - 3;
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket[i], &me->err));
    }
    for (int i = 0; i < MESSAGES; i++) {
        const int kind = i * 7 % 5, from = i * 3 % 2;
        const float *own = x + (size_t)i * MIXED;
        const size_t n = (size_t)(1 + i * 997 % MIXED);
        net_ok(me, ddp__engine_wait(me->engine, ticket[i], &me->err));
        for (size_t k = 0; k < n; k++) {
            float want = kind ? net_value(from, k, (unsigned)i)
                              : net_value(0, k, (unsigned)i) + net_value(1, k, (unsigned)i);
            if (own[k] != want) {
                net_fail(me, "message %d", i);
                break;
            }
        }
    }
    free(x);
}

static void both_priorities_arrive_with_any_timing(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        net_setup set;
        net_defaults(&set, 2);
        set.tcp = kind % 2;
        if (kind & 2) set.cfg.chunk_bytes = 1024;
        if (kind & 4) set.rate = 1e8;
        net_run(&set, mixed, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(high_priority_message_overtakes_a_large_one),
        cmocka_unit_test(high_priority_messages_always_have_credits),
        cmocka_unit_test(both_priorities_arrive_with_any_timing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
