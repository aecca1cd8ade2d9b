/* Ranks that are threads of one process sum in each other's memory: results and divergence are bit-identical
 * to those over a wire, next to operations of every kind. After a failure no rank accesses memory that was
 * returned to the caller. */
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

static void share_defaults(net_setup *s, int world)
{
    net_defaults(s, world);
    s->cfg.share_bytes = 1;
}

/* Bytes that the engine sent in addition to the values: at least 32 for every chunk that is a frame. */
static long beyond_values(net_rank *me)
{
    ddp__net_stats stats;
    ddp__engine_stats(me->engine, &stats);
    return (long)(stats.bytes_sent - stats.payload_sent);
}

/* ---- sums ---- */

typedef struct sum_case {
    size_t n;
    int pieces, diverges;
    double divergence[2][8]; /* [over the wire or shared][rank] */
    int64_t payload[2][8];
    int shared;
} sum_case;

static void sum_once(net_rank *me, void *user)
{
    sum_case *c = (sum_case *)user;
    float *data = (float *)calloc(c->n + (size_t)c->pieces + 1, sizeof *data);
    int group = 0, first = 0;
    ddp__net_stats stats;
    ddp_piece pieces[40];
    ddp_message m;

    if (me->world > 3) { /* a group: all ranks except rank 0 */
        const int ranks[] = {1, 2, 3, 4};
        net_ok(me, ddp__engine_group(me->engine, ranks, me->world - 1, &group, &me->err));
        first = 1;
    }
    cut_pieces(pieces, c->pieces, data, c->n);
    for (int round = 0; round < 3 && me->rank >= first; round++) {
        size_t i = 0;
        for (int p = 0; p < c->pieces; p++)
            for (size_t k = 0; k < pieces[p].count; k++)
                pieces[p].data[k] = net_value(me->rank, i++, (unsigned)round);
        net_message(&m, DDP_ALL_REDUCE, pieces, c->pieces);
        m.scale = 1.0f / 3;
        m.group = group;
        /* if one rank measures, all ranks work in order */
        if (c->diverges && (me->rank > 0 || round == 0)) m.divergence = &c->divergence[c->shared][me->rank];
        net_ok(me, round == 2 ? ddp__engine_run(me->engine, &m, &me->err) : net_do(me, &m));
        i = 0;
        for (int p = 0; p < c->pieces; p++)
            for (size_t k = 0; k < pieces[p].count; k++, i++) {
                float sum = net_value(first, i, (unsigned)round), got = pieces[p].data[k];
                for (int r = first + 1; r < me->world; r++) sum += net_value(r, i, (unsigned)round);
                sum *= m.scale;
                if (memcmp(&got, &sum, sizeof got))
                    net_fail(me, "world %d n %lu value %lu: %g, not %g", me->world, (unsigned long)c->n,
                             (unsigned long)i, (double)got, (double)sum);
            }
    }
    ddp__engine_stats(me->engine, &stats);
    c->payload[c->shared][me->rank] = stats.payload_sent;
    if (stats.bytes_received < stats.payload_sent) net_fail(me, "it receives less than it sends");
    if (c->shared && beyond_values(me) > 3 * 8 * 32 * me->world)
        net_fail(me, "%ld bytes in addition to the values: they were sent as frames", beyond_values(me));
    free(data);
}

static void shared_memory_is_bit_identical_to_the_wire(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        const size_t sizes[] = {1, (size_t)(world - 1), 13, 1000, LENGTH(100003)};
        for (int s = 0; s < 10; s++) {
            static sum_case c;
            net_setup set;
            memset(&c, 0, sizeof c);
            c.n = sizes[s / 2];
            c.diverges = s % 2;
            c.pieces = s % 3 == 2 ? 7 : s % 3 == 1 ? 32 : 1;
            for (c.shared = 0; c.shared < 2; c.shared++) {
                share_defaults(&set, world);
                set.cfg.chunk_bytes = s % 2 ? 4096 : 64;
                if (s >= 8) set.cfg.chunk_bytes = 1024;
                set.cfg.share_bytes = c.shared ? 1 : SIZE_MAX;
                set.cfg.check_writes = world % 2;
                set.cfg.max_count = 100003;
                net_run(&set, sum_once, &c);
            }
            assert_memory_equal(c.payload[0], c.payload[1], sizeof c.payload[0]);
            assert_memory_equal(c.divergence[0], c.divergence[1], sizeof c.divergence[0]);
            if (c.diverges && c.n > 1000) assert_true(c.divergence[1][1] > 0);
        }
    }
}

/* ---- the choice of the algorithm ---- */

static void add_large(net_rank *me, void *user)
{
    const int want = *(int *)user;
    const size_t n = 200000;
    float *data = (float *)calloc(n, sizeof *data);
    ddp_piece piece;
    ddp_message m;

    piece.data = data;
    piece.count = n;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m));
    if ((beyond_values(me) < 2000) != want)
        net_fail(me, "%ld bytes in addition to the values", beyond_values(me));
    free(data);
}

static void emulated_links_and_elastic_worlds_use_the_wire(void **state)
{
    (void)state;
    for (int how = 0; how < 5; how++) {
        int shares = how < 1;
        net_setup set;
        net_defaults(&set, 2);
        set.cfg.chunk_bytes = 1024;
        if (how == 1) set.rate = 1e9;
        if (how == 2) set.delay_s = 0.0001;
        if (how == 3) set.cfg.min_world = 1;
        if (how == 4) set.cfg.share_bytes = 900000;
        net_run(&set, add_large, &shares);
    }
}

/* ---- next to other operations ---- */

static void messages_of_every_kind_are_bit_identical(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        net_setup set;
        share_defaults(&set, 2 + (int)(seed % 4));
        set.cfg.chunk_bytes = seed % 2 ? 256 : 4096;
        set.cfg.queue = seed % 3 ? 256 : 8;
        if (seed % 2) set.cfg.share_bytes = 4 * 3000; /* only the long ones */
        set.cfg.check_writes = seed % 3 == 0;
        set.cfg.max_count = STRESS_FLOATS;
        net_run(&set, stress, &seed);
    }
}

/* ---- failures ---- */

static void say_failure(net_rank *me, ddp_status s, ddp_status want, const char *a, const char *b)
{
    if (s != want || !strstr(me->err.msg, a) || !strstr(me->err.msg, b))
        net_fail(me, "status %d (not %d), \"%.200s\" lacks \"%s\" or \"%s\"", (int)s, (int)want, me->err.msg,
                 a, b);
}

/* Rank 1 fails at some time; from then on the library does not access memory that a rank owns again. */
static void give_up(net_rank *me, void *user)
{
    const int round = *(int *)user;
    const size_t n = 400000;
    float *data = (float *)malloc(n * sizeof *data);
    double distance = 0;
    ddp_piece piece;
    ddp_message m;
    long ticket = 0;
    ddp_status s;

    for (size_t i = 0; i < n; i++) data[i] = 1;
    piece.data = data;
    piece.count = n;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    if (round % 2) m.divergence = &distance;
    s = ddp__engine_submit(me->engine, &m, &ticket, &me->err);
    if (me->rank == 1) {
        ddp__sleep_until(ddp_now() + 30e-6 * round);
        ddp__engine_abort(me->engine, DDP_ABORTED, "interrupted by the user");
    }
    if (s == DDP_OK) s = ddp__engine_wait(me->engine, ticket, &me->err);
    for (size_t i = 0; i < n; i++) data[i] = -2;
    if (s != DDP_OK) say_failure(me, s, DDP_ABORTED, "interrupted by the user", "");
    ddp__sleep_until(ddp_now() + 0.001);
    for (size_t i = 0; i < n; i++)
        if (data[i] != -2) {
            net_fail(me, "value %lu was written after the end: %g", (unsigned long)i, (double)data[i]);
            break;
        }
    free(data);
}

static void failed_rank_regains_its_memory(void **state)
{
    (void)state;
    for (int round = 0; round < 16; round++) {
        net_setup set;
        share_defaults(&set, 2 + round % 3);
        set.cfg.chunk_bytes = 16384;
        net_run(&set, give_up, &round);
    }
}

static void disagree(net_rank *me, void *user)
{
    float *data = (float *)calloc(400000, sizeof *data);
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    piece.data = data;
    piece.count = me->rank == *(int *)user ? 128 : 400000; /* over the wire, and shared */
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    s = net_do(me, &m);
    if (s == DDP_OK) s = net_do(me, &m);
    say_failure(me, s, DDP_MISMATCH, "(128 values", "(400000 values");
    free(data);
}

static void mismatch_names_both_sides(void **state)
{
    (void)state;
    for (int odd = 0; odd < 3; odd++) {
        net_setup set;
        net_defaults(&set, 3);
        net_run(&set, disagree, &odd);
    }
}

static void leave(net_rank *me, void *user)
{
    float *data = (float *)calloc(400000, sizeof *data);
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    (void)user;
    piece.data = data;
    piece.count = 400000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    s = net_do(me, &m);
    if (me->rank == 1) {
        net_ok(me, s);
    } else { /* a faster rank may have reported the loss while this rank was in the first operation */
        if (s == DDP_OK) s = net_do(me, &m);
        say_failure(me, s, DDP_PEER_LOST, "rank 1 closed its context", "layer h.0.mlp");
    }
    free(data);
}

static void rank_that_closes_early_is_reported_as_left(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 3);
    net_run(&set, leave, NULL);
}

static int wrote;

static void write_in_flight(net_rank *me, void *user)
{
    const int at = *(int *)user;
    float *data = (float *)calloc(4096, sizeof *data);
    double distance = 0;
    ddp_piece piece;
    ddp_message m;
    long ticket = 0;

    piece.data = data;
    piece.count = 4096;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.divergence = &distance; /* so that the rank that owns the segment finds it */
    m.step = 3;
    if (me->rank == 0) {
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
        data[at] = 1;
        ddp__atomic_store(&wrote, 1);
        say_failure(me, ddp__engine_wait(me->engine, ticket, &me->err), DDP_USAGE,
                    "layer h.0.mlp was written", "step 3");
    } else {
        while (!ddp__atomic_load(&wrote)) ddp__sleep_until(ddp_now() + 1e-3);
        say_failure(me, net_do(me, &m), DDP_USAGE, "layer h.0.mlp was written", "reported by rank 0");
    }
    free(data);
}

static void write_in_flight_is_detected_by_the_summing_rank(void **state)
{
    (void)state;
    for (int at = 5; at < 4096; at += 4000) { /* in the own segment; in the peer's */
        net_setup set;
        share_defaults(&set, 2);
        set.cfg.check_writes = 1;
        set.cfg.max_count = 4096;
        wrote = 0;
        net_run(&set, write_in_flight, &at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_memory_is_bit_identical_to_the_wire),
        cmocka_unit_test(emulated_links_and_elastic_worlds_use_the_wire),
        cmocka_unit_test(messages_of_every_kind_are_bit_identical),
        cmocka_unit_test(failed_rank_regains_its_memory),
        cmocka_unit_test(mismatch_names_both_sides),
        cmocka_unit_test(rank_that_closes_early_is_reported_as_left),
        cmocka_unit_test(write_in_flight_is_detected_by_the_summing_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
