/* Times of the ring all-reduce over an emulated link. Measures durations: run it alone on an idle machine. */
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
#include <cmocka.h>

#include "comm/net_world.h"

static char last_algorithm(net_rank *me)
{
    ddp__net_stats stats;

    ddp__engine_stats(me->engine, &stats);
    return stats.algorithm;
}

typedef struct timing {
    size_t n;
    int messages;
    double begin[8], end[8];
} timing;

static void time_ring(net_rank *me, void *user)
{
    timing *t = (timing *)user;
    float *data = (float *)calloc(t->n * (size_t)t->messages, sizeof *data);
    long tickets[8];
    ddp_piece piece;
    ddp_message m;

    piece.data = data;
    piece.count = 1;
    net_message(&m, DDP_BROADCAST, &piece, 1);
    for (int r = 0; r < me->world; r++) { /* a barrier */
        m.peer = r;
        net_ok(me, net_do(me, &m));
    }
    t->begin[me->rank] = ddp_now();
    piece.count = t->n;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    for (int i = 0; i < t->messages; i++) {
        piece.data = data + (size_t)i * t->n;
        net_ok(me, ddp__engine_submit(me->engine, &m, &tickets[i], &me->err));
    }
    for (int i = 0; i < t->messages; i++) net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
    t->end[me->rank] = ddp_now();
    if (last_algorithm(me) != 'r') net_fail(me, "not a ring");
    free(data);
}

static void a_ring_takes_the_traffic_over_the_rate_and_its_delays(void **state)
{
    static const struct {
        double rate, delay_s;
        int world, messages;
        size_t n;
    } cases[] = {
        {25e6, 0, 4, 1, 4 << 20},
        {25e6, 0.005, 4, 1, 4 << 20},
        {12.5e6, 0.02, 3, 1, 4 << 20},
        {25e6, 0.005, 4, 4, 1 << 20},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int world = cases[i].world;
        const size_t n = cases[i].n;
        double wire = 2 * (world - 1.0) / world * 4 * (double)n * cases[i].messages / cases[i].rate;
        double predicted = wire + 2 * (world - 1) * cases[i].delay_s, took = 0;
        for (int attempt = 0; attempt < 8; attempt++) { /* retries on a busy machine */
            net_setup set;
            timing t;
            double begin, end;
            memset(&t, 0, sizeof t);
            net_defaults(&set, world);
            set.cfg.deterministic = 0;
            set.cfg.ring_bytes = 1;
            set.tcp = (int)i % 2;
            set.rate = cases[i].rate;
            set.delay_s = cases[i].delay_s;
            set.cfg.chunk_bytes = 24 * 1024; /* few frames, so that the processor does not limit the rate */
            t.n = n;
            t.messages = cases[i].messages;
            net_run(&set, time_ring, &t);
            begin = t.begin[0];
            end = t.end[0];
            for (int r = 1; r < world; r++) {
                if (t.begin[r] < begin) begin = t.begin[r];
                if (t.end[r] > end) end = t.end[r];
            }
            took = end - begin;
            if (took < wire + cases[i].delay_s)
                fail_msg("took %.4f s; nothing can be faster than %.4f s", took, wire + cases[i].delay_s);
            if (took <= predicted * 1.15) break;
        }
        if (took > predicted * 1.15) fail_msg("took %.4f s, more than 1.15 x %.4f s", took, predicted);
        print_message("    %d ranks %5.1f Mbit/s %2.0f ms: %.4f s, arithmetic %.4f s\n", world,
                      cases[i].rate * 8e-6, cases[i].delay_s * 1e3, took, predicted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_takes_the_traffic_over_the_rate_and_its_delays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
