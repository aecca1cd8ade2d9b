/* The all-to-all exchange: bit-identical to a sum in rank order, next to operations of every kind; and when
 * it is chosen. */
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

#include "comm/net_stress.h"

static char last_algorithm(net_rank *me)
{
    ddp__net_stats stats;
    ddp__engine_stats(me->engine, &stats);
    return stats.algorithm;
}

static void full_defaults(net_setup *s, int world)
{
    net_defaults(s, world);
    s->cfg.full_bytes = SIZE_MAX;
}

/* ---- sums ---- */

typedef struct sum_case {
    size_t n;
    int pieces;
} sum_case;

static void sum_once(net_rank *me, void *user)
{
    const sum_case *c = (const sum_case *)user;
    float *data = (float *)calloc(c->n + (size_t)c->pieces + 1, sizeof *data);
    double divergence = -1, distance = 0;
    ddp_piece pieces[40];
    ddp_message m;
    size_t i = 0;

    cut_pieces(pieces, c->pieces, data, c->n);
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++) pieces[p].data[k] = net_value(me->rank, i++, 1);
    net_message(&m, DDP_ALL_REDUCE, pieces, c->pieces);
    m.scale = 1.0f / (float)me->world;
    if (c->pieces % 2) m.divergence = &divergence;
    net_ok(me, net_do(me, &m));
    i = 0;
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++, i++) {
            float sum = net_value(0, i, 1), got = pieces[p].data[k];
            double own = (double)net_value(me->rank, i, 1);
            for (int r = 1; r < me->world; r++) sum += net_value(r, i, 1);
            sum *= m.scale;
            if (memcmp(&got, &sum, sizeof got))
                net_fail(me, "world %d n %lu value %lu: %g, not %g", me->world, (unsigned long)c->n,
                         (unsigned long)i, (double)got, (double)sum);
            distance += ((double)got - own) * ((double)got - own);
        }
    if (m.divergence && !(fabs(divergence - distance) <= 1e-9 * distance))
        net_fail(me, "divergence %g, not %g", divergence, distance);
    if (last_algorithm(me) != (c->n ? 'f' : 'd')) net_fail(me, "it went '%c'", last_algorithm(me));
    free(data);
}

static void all_to_all_sum_is_bit_identical_to_rank_order(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int world = 2; world <= 5; world++) {
            const size_t sizes[] = {0, 1, (size_t)(world - 1), 13, 1000, LENGTH(100003)};
            for (int s = 0; s < 6; s++) {
                sum_case c;
                net_setup set;
                c.n = sizes[s];
                c.pieces = s % 3 == 2 ? 7 : s % 3 == 1 ? 32 : 1;
                full_defaults(&set, world);
                set.tcp = tcp;
                set.cfg.chunk_bytes = s % 2 ? 1024 : 64;
                if (s == 5) set.rate = world == 4 ? 1e8 : 0;
                set.cfg.check_writes = world % 2;
                set.cfg.max_count = 100003;
                net_run(&set, sum_once, &c);
            }
        }
}

/* ---- next to other operations ---- */

static void messages_of_every_kind_are_bit_identical(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            net_setup set;
            full_defaults(&set, 2 + (int)(seed % 4));
            set.tcp = tcp;
            set.cfg.chunk_bytes = seed % 2 ? 256 : 4096;
            set.cfg.queue = seed % 3 ? 256 : 8;
            /* all operations, or only the short ones: the others are direct */
            if (seed % 2) set.cfg.full_bytes = 4 * 3000;
            if (seed % 3 == 0) {
                set.rate = 5e7;
                set.delay_s = 0.0005;
            }
            net_run(&set, stress, &seed);
        }
}

/* A finished rank leaves before the last but one has started. */
static void leave_early(net_rank *me, void *user)
{
    float x[500];
    ddp_piece piece;
    ddp_message m;
    long ticket = 0;

    (void)user;
    for (int i = 0; i < 500; i++) x[i] = (float)(me->rank + i);
    piece.data = x;
    piece.count = 500;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    if (me->rank == 1) ddp__sleep_until(ddp_now() + 0.05);
    net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
    net_ok(me, ddp__engine_wait(me->engine, ticket, &me->err));
    for (int i = 0; i < 500; i++) {
        float want = 0;
        for (int r = 0; r < me->world; r++) want += (float)(r + i);
        if (x[i] != want) net_fail(me, "value %d is %g, not %g", i, (double)x[i], (double)want);
    }
    if (me->rank == 2) ddp__sleep_until(ddp_now() + 0.05);
}

static void ranks_may_leave_when_they_are_done(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int shaped = 0; shaped < 2; shaped++) {
            net_setup set;
            full_defaults(&set, 4);
            set.tcp = tcp;
            set.cfg.chunk_bytes = 256;
            if (shaped) {
                set.rate = 2e7;
                set.delay_s = 0.002;
            }
            net_run(&set, leave_early, NULL);
        }
}

/* ---- the choice of the algorithm ---- */

typedef struct choice {
    size_t n;
    char want;
} choice;

static void choose(net_rank *me, void *user)
{
    const choice *c = (const choice *)user;
    float *data = (float *)calloc(c->n, sizeof *data);
    ddp_piece piece;
    ddp_message m;

    piece.data = data;
    piece.count = c->n;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m));
    if (last_algorithm(me) != c->want)
        net_fail(me, "%lu floats went '%c', not '%c'", (unsigned long)c->n, last_algorithm(me), c->want);
    free(data);
}

static void link_and_size_choose_the_algorithm(void **state)
{
    /* 20 ms x 12.5 Mbyte/s x 4 / (3 x 2) = 166667 bytes of four ranks */
    static const struct {
        double rate, delay_s;
        int world;
        size_t full_bytes, n;
        char want;
    } cases[] = {
        {0, 0, 2, 0, 16384, 'f'}, {0, 0, 2, 0, 16385, 'd'},         {0, 0, 4, 0, 2730, 'f'},
        {0, 0, 4, 0, 2731, 'd'},  {12.5e6, 0.02, 4, 0, 41666, 'f'}, {12.5e6, 0.02, 4, 0, 41667, 'd'},
        {1e9, 0, 3, 0, 1, 'd'},   {1e9, 0, 2, 0, 500000, 'f'},      {0, 0, 2, 1, 1, 'd'},
        {0, 0, 3, 400, 100, 'f'}, {0, 0, 3, 400, 101, 'd'},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        net_setup set;
        choice c;
        net_defaults(&set, cases[i].world);
        set.rate = cases[i].rate;
        set.delay_s = cases[i].delay_s;
        set.cfg.full_bytes = cases[i].full_bytes;
        c.n = cases[i].n;
        c.want = cases[i].want;
        net_run(&set, choose, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_to_all_sum_is_bit_identical_to_rank_order),
        cmocka_unit_test(messages_of_every_kind_are_bit_identical),
        cmocka_unit_test(ranks_may_leave_when_they_are_done),
        cmocka_unit_test(link_and_size_choose_the_algorithm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
