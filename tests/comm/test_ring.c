/* [long] The ring all-reduce: bit-identical on every rank, next to direct operations of any priority and
 * timing, without a deadlock. */
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

enum { SEEDS = 3, MIXES = INSTANCES(15) + 2 }; /* SEEDS=n in the environment: more seeds */

static void ring_defaults(net_setup *set, int world)
{
    net_defaults(set, world);
    set->cfg.deterministic = 0;
    set->cfg.ring_bytes = 1;
}

static char last_algorithm(net_rank *me)
{
    ddp__net_stats stats;
    ddp__engine_stats(me->engine, &stats);
    return stats.algorithm;
}

/* ---- sums ---- */

typedef struct sum_case {
    size_t n;
    int pieces;
} sum_case;

/* Each value is summed around the ring, from the rank after its segment's owner to the owner. */
static void sum_once(net_rank *me, void *user)
{
    const sum_case *c = (const sum_case *)user;
    float *data = (float *)calloc(c->n + (size_t)c->pieces + 1, sizeof *data);
    ddp_piece pieces[40];
    ddp_message m;
    double divergence = -1, distance = 0;
    size_t i = 0;

    cut_pieces(pieces, c->pieces, data, c->n);
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++) pieces[p].data[k] = net_value(me->rank, i++, 1);
    net_message(&m, DDP_ALL_REDUCE, pieces, c->pieces);
    m.scale = 1.0f / (float)me->world;
    if (c->pieces % 2) m.divergence = &divergence; /* then results are staged */
    net_ok(me, net_do(me, &m));
    i = 0;
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++, i++) {
            int first = net_segment_of(i, c->n, me->world) + 1;
            float sum = net_value(first % me->world, i, 1), got = pieces[p].data[k];
            double plain = 0, size = 0, own = (double)net_value(me->rank, i, 1);
            for (int r = 1; r < me->world; r++) sum += net_value((first + r) % me->world, i, 1);
            sum *= m.scale;
            for (int r = 0; r < me->world; r++) {
                plain += (double)net_value(r, i, 1);
                size += fabs((double)net_value(r, i, 1));
            }
            if (memcmp(&got, &sum, sizeof got) || fabs((double)got - plain / me->world) > 1e-6 * size)
                net_fail(me, "world %d n %lu value %lu: %g, not %g (%g)", me->world, (unsigned long)c->n,
                         (unsigned long)i, (double)got, (double)sum, plain / me->world);
            distance += ((double)got - own) * ((double)got - own);
        }
    if (m.divergence && !(fabs(divergence - distance) <= 1e-9 * distance))
        net_fail(me, "divergence %g, not %g", divergence, distance);
    if (last_algorithm(me) != (me->world > 2 && c->n > 0 ? 'r' : 'd'))
        net_fail(me, "world %d n %lu went '%c'", me->world, (unsigned long)c->n, last_algorithm(me));
    free(data);
}

static void ring_sums_are_bit_identical_on_every_rank(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        for (int world = 2; world <= 5; world++) {
            const size_t sizes[] = {0, 1, (size_t)(world - 1), 13, 1000, LENGTH(100003)};
            for (int s = 0; s < 6; s++) {
                sum_case c;
                net_setup set;
                c.n = sizes[s];
                c.pieces = s % 3 == 2 ? 7 : s % 3 == 1 ? 32 : 1;
                ring_defaults(&set, world);
                set.tcp = tcp;
                set.cfg.chunk_bytes = s % 2 ? 1024 : 64;
                if (s == 5) set.rate = world == 4 ? 1e8 : 0;
                set.cfg.check_writes = world % 2;
                set.cfg.max_count = 100003;
                net_run(&set, sum_once, &c);
            }
        }
    }
}

enum { RULED = 5003 };

/* The state of an owner's rule: how far it has come in this rank's segment, and the values that it keeps. */
typedef struct ruled {
    size_t from, to, next;
    float kept[RULED];
    net_rank *me;
} ruled;

static float by_rule(float x, float kept) { return 0.5f * x - kept; }

static void rule_of_the_owner(void *user, size_t at, float *x, size_t n)
{
    ruled *r = (ruled *)user;

    if (at != r->next || at + n > r->to)
        net_fail(r->me, "the rule of values %lu to %lu got %lu values from %lu", (unsigned long)r->next,
                 (unsigned long)r->to, (unsigned long)n, (unsigned long)at);
    r->next = at + n;
    for (size_t i = 0; i < n; i++) {
        const float sum = x[i];
        x[i] = by_rule(sum, r->kept[at + i]);
        r->kept[at + i] = sum;
    }
}

/* The same sum twice by the ring, without a rule and with one. The message has two pieces, the second before
 * the first in memory. */
static void ruled_sum(net_rank *me, void *user)
{
    enum { FIRST = 2000 };
    ruled *r = (ruled *)calloc(1, sizeof *r);
    float *sum[2];
    const ddp_owner owner = {rule_of_the_owner, r, NULL};
    ddp_message m;

    (void)user;
    r->me = me;
    for (size_t i = 0; i < RULED; i++) r->kept[i] = (float)i;
    ddp__engine_segment(me->engine, 0, DDP_AS_FLOAT, RULED, &r->from, &r->to);
    r->next = r->from;
    for (int ruling = 0; ruling < 2; ruling++) {
        float *x = sum[ruling] = (float *)calloc(RULED, sizeof *x);
        const ddp_piece pieces[2] = {{{x + RULED - FIRST}, FIRST}, {{x}, RULED - FIRST}};
        for (size_t i = 0; i < RULED; i++) x[i] = net_value(me->rank, i, 1);
        net_message(&m, DDP_ALL_REDUCE, pieces, 2);
        m.mean = 1;
        if (ruling) m.owner = &owner;
        net_ok(me, net_do(me, &m));
        if (last_algorithm(me) != 'r') net_fail(me, "rule %d: '%c'", ruling, last_algorithm(me));
    }
    if (r->next != r->to) net_fail(me, "the rule ended at %lu", (unsigned long)r->next);
    for (size_t i = 0; i < RULED; i++) {
        const size_t at = i < FIRST ? RULED - FIRST + i : i - FIRST;
        const float want = by_rule(sum[0][at], (float)i),
                    kept = i < r->from || i >= r->to ? (float)i : sum[0][at];
        if (memcmp(&sum[1][at], &want, sizeof want) || memcmp(&r->kept[i], &kept, sizeof kept))
            net_fail(me, "value %lu: %g, not %g", (unsigned long)i, (double)sum[1][at], (double)want);
    }
    for (int ruling = 0; ruling < 2; ruling++) free(sum[ruling]);
    free(r);
}

static void owner_changes_the_result_of_its_segment(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int world = 3; world <= 5; world++) {
            net_setup set;
            ring_defaults(&set, world);
            set.tcp = tcp;
            set.cfg.chunk_bytes = 256;
            set.rate = world == 4 ? 1e8 : 0;
            set.cfg.check_writes = world == 5;
            set.cfg.max_count = RULED;
            net_run(&set, ruled_sum, NULL);
        }
}

/* ---- many at once ---- */

static void rings_and_direct_operations_mix_with_any_timing(void **state)
{
    const uint64_t seeds = getenv("SEEDS") ? (uint64_t)atoi(getenv("SEEDS")) : SEEDS;

    (void)state;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        net_setup set;
        ring_defaults(&set, 3 + (int)(seed % 3));
        set.tcp = (int)(seed % 2);
        set.cfg.ring_bytes = seed % 4 ? 4 * 2000 : 1;
        set.cfg.queue = seed % 3 ? 256 : 9;
        set.cfg.op_timeout_s = 60; /* ends a deadlock. A busy machine takes more than ten seconds. */
        set.cfg.check_writes = seed == 3;
        set.cfg.max_count = STRESS_FLOATS;
        if (seed % 4 < 3) { /* the minimum number of slots */
            set.cfg.chunk_bytes = seed == 2 ? 64 : seed % 4 == 2 ? 256 : 1024;
            if (seed != 3) set.cfg.max_count = 15;
        }
        if (seed == 6) set.delay_s = 0.0005;
        if (seed == 5) set.rate = 2e7;
        net_run(&set, stress, &seed);
    }
}

enum { MIX_FLOATS = 3000 }; /* many times the capacity of the slots */

/* Four messages, some of them rings, the later ones with higher priority. Rank `world - 1` submits each only
 * after the previous one is done, rank 1 in pairs, the others all at once. */
static void one_by_one(net_rank *me, void *user)
{
    enum { N = MIX_FLOATS };
    int rings = *(int *)user;
    float *data = (float *)calloc(4 * N, sizeof *data);
    long tickets[4];
    ddp_piece piece;
    ddp_message m;

    for (int i = 0; i < 4; i++) {
        piece.data = data + i * N;
        piece.count = rings & 1 << i ? N : N / 2;
        for (int k = 0; k < N; k++) data[i * N + k] = (float)(me->rank + i);
        net_message(&m, DDP_ALL_REDUCE, &piece, 1);
        m.priority = 4 - i;
        net_ok(me, ddp__engine_submit(me->engine, &m, &tickets[i], &me->err));
        if (me->rank == me->world - 1 || (me->rank == 1 && i == 1))
            net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
    }
    for (int i = 0; i < 4; i++) {
        float want = (float)(me->world * (me->world - 1) / 2 + i * me->world);
        net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
        for (int k = 0; k < (rings & 1 << i ? N : N / 2); k++)
            if (data[i * N + k] != want)
                net_fail(me, "message %d value %d: %g, not %g", i, k, (double)data[i * N + k], (double)want);
    }
    free(data);
}

static void rings_do_not_starve_the_oldest_operation(void **state)
{
    (void)state;
    for (int rings = 1; rings <= MIXES; rings++) {
        net_setup set;
        ring_defaults(&set, 3 + rings % 3);
        set.cfg.ring_bytes = 4 * MIX_FLOATS;
        set.cfg.chunk_bytes = rings % 2 ? 1024 : 64;
        set.cfg.max_count = 15; /* the minimum number of slots */
        set.cfg.op_timeout_s = 60;
        set.tcp = rings % 5 == 0;
        if (rings % 4 == 3) set.rate = 2e7;
        net_run(&set, one_by_one, &rings);
    }
}

/* ---- failures ---- */

static int algorithms_differ(const char *text)
{
    return strstr(text, "averages by ring") && strstr(text, "averages layer") && strstr(text, "operation 0");
}

static void differ(net_rank *me, void *user)
{
    float *data = (float *)calloc(4096, sizeof *data);
    ddp_piece piece;
    ddp_message m;

    (void)user;
    piece.data = data;
    piece.count = 4096;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    if (net_do(me, &m) != DDP_MISMATCH || !algorithms_differ(me->err.msg))
        net_fail(me, "\"%.200s\"", me->err.msg);
    free(data);
}

static void rank_one_goes_direct(ddp__engine_config *cfg, int rank)
{
    if (rank == 1) cfg->ring_bytes = SIZE_MAX;
}

static void ranks_with_different_algorithms_fail(void **state)
{
    net_setup set;
    (void)state;
    ring_defaults(&set, 4);
    set.tune = rank_one_goes_direct;
    net_run(&set, differ, NULL);
}

typedef struct loss {
    int leaves, submitted; /* number of ranks that have submitted */
} loss;

/* Waits until all ranks except `but` have submitted, so that each has an operation to name. */
static void wait_for_submitters(net_rank *me, loss *l, int but)
{
    while (ddp__atomic_load(&l->submitted) < me->world - but) ddp__sleep_until(ddp_now() + 0.001);
}

/* Rank 2's connections break, or it closes, in the middle of a long ring. */
static void lose_rank_two(net_rank *me, void *user)
{
    enum { N = 1 << 20 };
    loss *l = (loss *)user;
    float *data = (float *)calloc(N, sizeof *data);
    ddp_piece piece;
    ddp_message m;
    ddp_status s;
    long ticket = 0;

    piece.data = data;
    piece.count = N;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.step = 12;
    if (me->rank == 2 && l->leaves) {
        wait_for_submitters(me, l, 1);
        ddp__sleep_until(ddp_now() + 0.1);
        free(data);
        return;
    }
    net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
    ddp__atomic_add(&l->submitted, 1);
    if (me->rank == 2) {
        wait_for_submitters(me, l, 0);
        ddp__sleep_until(ddp_now() + 0.1); /* of 8 s */
        for (int p = 0; p < me->world; p++)
            if (p != 2) shutdown(meet_fd(me->wire, p), SHUT_RDWR);
        if (ddp__engine_wait(me->engine, ticket, &me->err) != DDP_PEER_LOST)
            net_fail(me, "\"%.200s\"", me->err.msg);
    } else {
        s = ddp__engine_wait(me->engine, ticket, &me->err);
        if (s != DDP_PEER_LOST || !strstr(me->err.msg, "rank 2") ||
            !strstr(me->err.msg, "h.0.mlp (step 12)") ||
            !strstr(me->err.msg, l->leaves ? "closed its context" : "closed by peer"))
            net_fail(me, "status %d \"%.200s\"", (int)s, me->err.msg);
    }
    free(data);
}

static void rank_lost_during_a_ring_is_named(void **state)
{
    (void)state;
    for (int leaves = 0; leaves < 2; leaves++) {
        loss l = {leaves, 0};
        net_setup set;
        ring_defaults(&set, 5);
        set.tcp = 1;
        set.rate = 1e6;
        net_run(&set, lose_rank_two, &l);
    }
}

static void stay_away(net_rank *me, void *user)
{
    float data[64];
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    (void)user;
    memset(data, 0, sizeof data);
    piece.data = data;
    piece.count = 64;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    if (me->rank == 2) {
        double until = ddp_now() + 60;
        while ((s = ddp__engine_error(me->engine, &me->err)) == DDP_OK && ddp_now() < until)
            ddp__sleep_until(ddp_now() + 0.01);
    } else {
        s = net_do(me, &m);
    }
    /* Any rank may notice it first: only the rank after it in the ring knows the name. */
    if (s != DDP_TIMEOUT || !strstr(me->err.msg, "submit") || !strstr(me->err.msg, "h.0.mlp"))
        net_fail(me, "status %d \"%.200s\"", (int)s, me->err.msg);
}

static void ring_missing_on_a_rank_times_out(void **state)
{
    net_setup set;
    (void)state;
    ring_defaults(&set, 4);
    set.cfg.op_timeout_s = 0.3;
    net_run(&set, stay_away, NULL);
}

static int wrote; /* atomic: rank 0 has written */

/* Rank 0 writes to its values while the ring waits for rank 1. */
static DDP__UNUSED void write_in_flight(net_rank *me, void *user)
{
    static float data[3][3000];
    ddp_piece piece;
    ddp_message m;
    long ticket = 0;

    piece.data = data[me->rank];
    piece.count = 3000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    while (me->rank == 1 && !ddp__atomic_load(&wrote)) ddp__sleep_until(ddp_now() + 0.001);
    net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
    if (me->rank == 0) {
        ddp__sleep_until(ddp_now() + 0.02); /* the sums that are sent first have been sent */
        data[0][*(int *)user] += 1;
        ddp__atomic_store(&wrote, 1);
    }
    if (ddp__engine_wait(me->engine, ticket, &me->err) != DDP_USAGE ||
        !strstr(me->err.msg, "layer h.0.mlp was written"))
        net_fail(me, "value %d: \"%.200s\"", *(int *)user, me->err.msg);
}

static void write_during_a_ring_is_reported_by_layer(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    SKIP("it is a data race by design");
#else
    /* Rank 0's sums of [2000, 3000) have been sent; it still has to add to the others. */
    for (int at = 500; at < 3000; at += 1000) {
        net_setup set;
        ring_defaults(&set, 3);
        set.cfg.check_writes = 1;
        set.cfg.max_count = 3000;
        wrote = 0;
        net_run(&set, write_in_flight, &at);
    }
#endif
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
    ddp__op_span span;
    ddp_piece piece;
    ddp_message m;

    memset(&span, 0, sizeof span);
    piece.data = data;
    piece.count = c->n;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m));
    if (ddp__engine_spans(me->engine, 0, 1e30, &span, 1) != 1 || span.algorithm != c->want ||
        last_algorithm(me) != c->want)
        net_fail(me, "%lu values went '%c'", (unsigned long)c->n, span.algorithm);
    free(data);
}

static void link_and_size_choose_the_algorithm(void **state)
{
    /* 3 ranks, 100 Mbyte/s, 0.1 ms: 50 x 3 x 1 / 2 x (10000 + 99968) bytes = 2061900 floats */
    static const struct {
        double rate, delay_s;
        int world, deterministic;
        size_t ring_bytes, n;
        char want;
    } cases[] = {
        {1e8, 1e-4, 3, 0, 0, 2061899, 'd'},
        {1e8, 1e-4, 3, 0, 0, 2061900, 'r'},
        {1e8, 1e-4, 3, 1, 0, 2061900, 'd'},
        {1e8, 1e-4, 2, 0, 0, 2061900, 'd'},
        {0, 0, 3, 0, 0, 2061900, 'd'},
        {0, 1e-4, 3, 0, 0, 2061900, 'd'},
        {1e8, 0.01, 3, 0, 0, 2061900, 'd'},
        {1e8, 1e-4, 3, 0, SIZE_MAX, 2061900, 'd'},
        {0, 0, 3, 1, 1, 9, 'd'},
        {0, 0, 3, 0, 36, 9, 'r'},
        {0, 0, 3, 0, 36, 8, 'd'},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        net_setup set;
        choice c;
        net_defaults(&set, cases[i].world);
        set.rate = cases[i].rate;
        set.delay_s = cases[i].delay_s;
        set.cfg.deterministic = cases[i].deterministic;
        set.cfg.ring_bytes = cases[i].ring_bytes;
        c.n = cases[i].n;
        c.want = cases[i].want;
        net_run(&set, choose, &c);
    }
    { /* a long round trip exceeds the staging memory of one peer */
        ddp__engine e;
        memset(&e, 0, sizeof e);
        e.world = 4;
        e.chunk = 15616;
        e.credits = 15;
        e.width = 4;
        e.links.slowest = 12.5e6;
        e.links.farthest = 0.02;
        assert_true(ddp__ring_bytes(&e) < SIZE_MAX);
        e.links.by_pair = 1; /* each pair has a separate path: a ring would leave most of them idle */
        assert_true(ddp__ring_bytes(&e) == SIZE_MAX);
        e.links.by_pair = 0;
        e.links.farthest = 0.03;
        assert_true(ddp__ring_bytes(&e) == SIZE_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_sums_are_bit_identical_on_every_rank),
        cmocka_unit_test(owner_changes_the_result_of_its_segment),
        cmocka_unit_test(rings_and_direct_operations_mix_with_any_timing),
        cmocka_unit_test(rings_do_not_starve_the_oldest_operation),
        cmocka_unit_test(ranks_with_different_algorithms_fail),
        cmocka_unit_test(rank_lost_during_a_ring_is_named),
        cmocka_unit_test(ring_missing_on_a_rank_times_out),
        cmocka_unit_test(write_during_a_ring_is_reported_by_layer),
        cmocka_unit_test(link_and_size_choose_the_algorithm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
