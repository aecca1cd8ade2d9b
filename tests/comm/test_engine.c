/* [long] The comm engine over the threads wire and over TCP: bit-identical results for all chunk sizes,
 * priorities and timings; errors that name rank, operation and layer. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "comm/checksum.c"
#include "comm/net_world.h"
#include "comm/net_stress.h"

/* ---- frames ---- */

static void any_flipped_bit_of_a_frame_is_detected(void **state)
{
    unsigned char head[DDP__FRAME_BYTES];
    ddp__frame f, g;

    (void)state;
    assert_true(ddp__crc32c(0, "123456789", 9) == 0xe3069283u); /* the check value of CRC-32C */
    memset(&f, 0, sizeof f);
    memset(&g, 0, sizeof g);
    f.type = DDP__FRAME_DATA;
    f.p2p = 1;
    f.verb = (int)DDP_SEND;
    f.seq = 0xfedcba98u;
    f.count = 1000003;
    f.offset = 77;
    f.length = 4096;
    f.layer = -1;
    f.sent = 12;
    assert_int_equal(ddp__frame_values(&f), 1024);
    f.coding = (int)DDP_AS_BFLOAT;
    assert_int_equal(ddp__frame_values(&f), 2048);
    ddp__frame_encode(&f, head);
    assert_int_equal(ddp__frame_decode(head, &g), 1);
    assert_memory_equal(&f, &g, sizeof f);
    for (int bit = 0; bit < 8 * DDP__FRAME_BYTES; bit++) {
        head[bit / 8] = (unsigned char)(head[bit / 8] ^ 1u << bit % 8);
        assert_int_equal(ddp__frame_decode(head, &g), 0);
        head[bit / 8] = (unsigned char)(head[bit / 8] ^ 1u << bit % 8);
    }
}

/* The definition: one bit at a time. */
static uint32_t checksum_by_bits(uint32_t c, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
    }
    return c;
}

/* A payload may start at any address, have any length and arrive in parts. */
static void every_checksum_implementation_matches_the_definition(void **state)
{
    enum { LONG = 5000 };
    static unsigned char data[LONG + 64];
    static uint32_t want[LONG + 1];
    size_t i, from, n;

    (void)state;
    for (i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * i * 7 + i / 3 + i % 11);
    for (from = 0; from < 64; from += 9) {
        want[0] = 0x12345678u;
        for (n = 0; n < LONG; n++) want[n + 1] = checksum_by_bits(want[n], data + from + n, 1);
        for (n = 0; n <= LONG; n += 1 + n / 64) {
            assert_true(ddp__crc32c_sliced(want[0], data + from, n) == want[n]);
#ifdef DDP__CRC_HERE
            if (DDP__CRC_HERE) assert_true(ddp__crc32c_fast(want[0], data + from, n) == want[n]);
#endif
#ifdef DDP__CRC_WIDE
            if (DDP__CRC_WIDE && n >= 256) assert_true(ddp__crc32c_wide(want[0], data + from, n) == want[n]);
#endif
            assert_true(ddp__crc32c(~want[0], data + from, n) == ~want[n]);
        }
        assert_true(ddp__crc32c(ddp__crc32c(~want[0], data + from, 1500), data + from + 1500, 3000) ==
                    ~want[4500]);
    }
}

/* ---- sums ---- */

typedef struct sum_case {
    size_t n;
    int pieces;
    float scale;
} sum_case;

static void expected_sum(float *out, const sum_case *c, int world, unsigned salt)
{
    for (size_t i = 0; i < c->n; i++) {
        float sum = net_value(0, i, salt);
        for (int r = 1; r < world; r++) sum += net_value(r, i, salt);
        out[i] = sum * c->scale;
    }
}

static void sum_once(net_rank *me, void *user)
{
    const sum_case *c = (const sum_case *)user;
    float *data = (float *)calloc(c->n + (size_t)c->pieces + 1, sizeof *data);
    float *want = (float *)calloc(c->n + 1, sizeof *want);
    ddp_piece pieces[40];
    ddp_message m;
    size_t i = 0;

    cut_pieces(pieces, c->pieces, data, c->n);
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++) pieces[p].data[k] = net_value(me->rank, i++, 1);
    expected_sum(want, c, me->world, 1);
    net_message(&m, DDP_ALL_REDUCE, pieces, c->pieces);
    m.scale = c->scale;
    net_ok(me, net_do(me, &m));
    i = 0;
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++, i++)
            if (memcmp(&pieces[p].data[k], &want[i], sizeof(float))) {
                net_fail(me, "world %d n %lu value %lu: %g, not %g", me->world, (unsigned long)c->n,
                         (unsigned long)i, (double)pieces[p].data[k], (double)want[i]);
                k = pieces[p].count;
                p = c->pieces - 1;
            }
    free(data);
    free(want);
}

static void sums_equal_a_plain_loop_in_rank_order(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        for (int world = 2; world <= 5; world++) {
            const size_t sizes[] = {0, 1, 2, (size_t)(world - 1), (size_t)world, 13, 1000, LENGTH(1000003)};
            for (int s = 0; s < 8; s++) {
                sum_case c;
                net_setup set;
                c.n = sizes[s];
                c.pieces = s % 3 == 2 ? 7 : s % 3 == 1 ? 33 : 1;
                c.scale = s % 2 ? 1.0f / (float)world : 1;
                net_defaults(&set, world);
                set.tcp = tcp;
                if (c.n == 1000) set.cfg.chunk_bytes = 64;
                if (s == 7 && world == 3) set.cfg.chunk_bytes = 4096;
                net_run(&set, sum_once, &c);
            }
        }
    }
}

/* ---- every verb, many at once ---- */

static void many_messages_of_all_kinds_arrive_with_any_timing(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        net_setup set;
        net_defaults(&set, 2 + (int)(seed % 4));
        set.tcp = (int)(seed % 2);
        set.cfg.queue = seed % 3 ? 256 : 9;
        set.cfg.chunk_bytes = seed % 2 ? 1024 : 0;
        set.cfg.check_writes = seed == 3;
        set.cfg.max_count = STRESS_FLOATS;
        if (seed == 6) set.delay_s = 0.0005;
        if (seed == 5) set.rate = 2e7;
        net_run(&set, stress, &seed);
    }
}

/* Rank 0 floods rank 1 with one kind of message, while rank 1 waits for another kind first. */
static void flood(net_rank *me, void *user)
{
    enum { FLOOD = 40, N = 3000 };
    int p2p_first = *(int *)user;
    float *data = (float *)calloc((size_t)(FLOOD + 1) * N, sizeof *data);
    long tickets[FLOOD + 1];
    ddp_piece piece;
    ddp_message m;

    for (int k = 0; k <= FLOOD; k++) {
        int i = me->rank == 0 ? k : (k + FLOOD) % (FLOOD + 1); /* the odd message is the last of rank 0 and
                                                                * the first of rank 1 */
        int p2p = (i < FLOOD) == p2p_first;
        piece.data = data + (size_t)i * N;
        piece.count = N;
        for (size_t j = 0; me->rank == 0 && j < N; j++) piece.data[j] = (float)(i + 1);
        net_message(&m,
                    p2p     ? (me->rank ? DDP_RECEIVE : DDP_SEND)
                    : i % 2 ? DDP_ALL_REDUCE
                            : DDP_BROADCAST,
                    &piece, 1);
        m.peer = p2p ? 1 - me->rank : 0;
        m.priority = i;
        net_ok(me, ddp__engine_submit(me->engine, &m, &tickets[i], &me->err));
        if (k == 0 && me->rank == 1) net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
    }
    for (int i = 0; i <= FLOOD; i++) {
        net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
        if (data[(size_t)i * N] != (float)(i + 1) || data[(size_t)i * N + N - 1] != (float)(i + 1))
            net_fail(me, "message %d", i);
    }
    free(data);
}

static void sends_and_collectives_in_different_order_do_not_deadlock(void **state)
{
    (void)state;
    for (int p2p_first = 0; p2p_first < 2; p2p_first++)
        for (int shaped = 0; shaped < 2; shaped++) {
            net_setup set;
            net_defaults(&set, 2);
            set.cfg.chunk_bytes = 1024;
            set.cfg.max_count = 3000;
            set.cfg.op_timeout_s = 60; /* ends a deadlock. A slow run on a busy machine passes. */
            if (shaped) set.rate = 1e7;
            net_run(&set, flood, &p2p_first);
        }
}

/* All ranks except rank 2 submit four messages at once, the later ones with higher priority. Rank 2 submits
 * each only after the previous one is done. */
static void one_by_one(net_rank *me, void *user)
{
    enum { N = 20000 };
    float *data = (float *)calloc(4 * N, sizeof *data);
    long tickets[4];
    ddp_piece piece;
    ddp_message m;

    (void)user;
    for (int i = 0; i < 4; i++) {
        piece.data = data + i * N;
        piece.count = N;
        net_message(&m, DDP_ALL_REDUCE, &piece, 1);
        m.priority = 4 - i;
        net_ok(me, ddp__engine_submit(me->engine, &m, &tickets[i], &me->err));
        if (me->rank == 2) net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
    }
    for (int i = 0; i < 4; i++) net_ok(me, ddp__engine_wait(me->engine, tickets[i], &me->err));
    free(data);
}

static void high_priority_messages_do_not_starve_the_oldest(void **state)
{
    net_setup set;
    (void)state;
    net_defaults(&set, 3);
    set.cfg.chunk_bytes = 1024;
    set.cfg.op_timeout_s = 60; /* ends a deadlock. A slow run on a busy machine passes. */
    net_run(&set, one_by_one, NULL);
    set.rate = 2e7;
    net_run(&set, one_by_one, NULL);
}

/* ---- divergence, spans, memory ---- */

static void measure_divergence(net_rank *me, void *user)
{
    enum { N = 5000 };
    float *data = (float *)calloc(N, sizeof *data);
    double got = -1, want = 0;
    ddp_piece piece;
    ddp_message m;
    ddp__op_span spans[4];
    ddp__net_stats stats;
    int n;

    (void)user;
    for (size_t i = 0; i < N; i++) data[i] = net_value(me->rank, i, 3);
    for (size_t i = 0; i < N; i++) {
        float sum = 0;
        for (int r = 0; r < me->world; r++) sum = r ? sum + net_value(r, i, 3) : net_value(0, i, 3);
        sum *= 1.0f / (float)me->world;
        want += ((double)sum - (double)data[i]) * ((double)sum - (double)data[i]);
    }
    piece.data = data;
    piece.count = N;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.scale = 1.0f / (float)me->world;
    m.divergence = &got;
    m.step = 7;
    net_ok(me, net_do(me, &m));
    if (!(fabs(got - want) <= 1e-9 * want)) net_fail(me, "divergence %g, not %g", got, want);
    n = ddp__engine_spans(me->engine, 0, 1e30, spans, 4);
    if (n != 1 || spans[0].step != 7 || spans[0].layer != 1 || spans[0].algorithm != 'd' ||
        !(spans[0].begin >= spans[0].submitted && spans[0].end >= spans[0].begin))
        net_fail(me, "the span is wrong (%d)", n);
    ddp__engine_stats(me->engine, &stats);
    if (me->world > 1) {
        /* contributions to the other ranks' segments, and the result of the own segment for each of them */
        size_t from = N * (size_t)me->rank / (size_t)me->world,
               to = N * (size_t)(me->rank + 1) / (size_t)me->world;
        int64_t bytes = (int64_t)(4 * (N - (to - from) + (size_t)(me->world - 1) * (to - from)));
        if (stats.payload_sent != bytes || spans[0].bytes != bytes)
            net_fail(me, "payload %ld, not %ld", (long)stats.payload_sent, (long)bytes);
    }
    if (stats.operations != 1) net_fail(me, "%ld operations", (long)stats.operations);
    free(data);
}

static void divergence_equals_the_squared_distance_to_the_average(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++)
        for (int shaped = 0; shaped < 2; shaped++) {
            net_setup set;
            net_defaults(&set, world);
            set.cfg.chunk_bytes = 512;
            if (shaped) set.rate = 1e8;
            net_run(&set, measure_divergence, NULL);
        }
}

typedef struct counting {
    size_t now, calls, frees;
} counting;

static void *count_alloc(void *user, size_t bytes)
{
    counting *c = (counting *)user;
    void *p = NULL;
    ddp__atomic_add(&c->now, bytes);
    ddp__atomic_add(&c->calls, (size_t)1);
    return posix_memalign(&p, 64, bytes) ? NULL : p;
}

static void count_free(void *user, void *p, size_t bytes)
{
    counting *c = (counting *)user;
    ddp__atomic_add(&c->now, (size_t)0 - bytes);
    ddp__atomic_add(&c->frees, (size_t)1);
    free(p);
}

static counting counters[8];

static void count_per_rank(ddp__engine_config *cfg, int rank)
{
    cfg->allocator.alloc = count_alloc;
    cfg->allocator.free = count_free;
    cfg->allocator.user = &counters[rank];
}

static void check_memory(net_rank *me, void *user)
{
    size_t bound = ((size_t)1 << 20) + (size_t)(me->world - 1) * 4 * 256 * 1024;
    counting *c = &counters[me->rank];
    ddp__net_stats stats;
    uint64_t seed = 11;

    (void)user;
    ddp__engine_stats(me->engine, &stats);
    if (c->now != stats.staging_bytes)
        net_fail(me, "staging_bytes %lu, allocated %lu", (unsigned long)stats.staging_bytes,
                 (unsigned long)c->now);
    if (stats.staging_bytes > bound)
        net_fail(me, "%lu bytes exceed the bound %lu", (unsigned long)stats.staging_bytes,
                 (unsigned long)bound);
    stress(me, &seed);
    if (c->calls != 1) net_fail(me, "%lu allocations", (unsigned long)c->calls);
}

static void memory_is_bounded_and_allocated_only_at_open(void **state)
{
    (void)state;
    for (int world = 2; world <= 8; world += 3) {
        net_setup set;
        net_defaults(&set, world);
        memset(counters, 0, sizeof counters);
        set.tune = count_per_rank;
        net_run(&set, check_memory, NULL);
        for (int r = 0; r < world; r++) {
            assert_int_equal(counters[r].now, 0);
            assert_int_equal(counters[r].frees, 1);
        }
    }
}

/* ---- bytes ---- */

static int64_t kernel_bytes[3][2], engine_bytes[3][2];

static void make_far(ddp__engine_config *cfg, int rank)
{
    (void)rank;
    cfg->wire->round_trip = 0.1;
}

static void check_credits(net_rank *me, void *user)
{
    const int away = *(const int *)user;
    uint64_t seed = 12;

    if ((me->engine->more > 0) != away || me->engine->few != (away ? (int)DDP__SLOTS_MAX : (int)DDP__FEW))
        net_fail(me, "%d more credits, at most %d an operation", me->engine->more, me->engine->few);
    stress(me, &seed);
}

static void distant_peer_gets_more_credits(void **state)
{
    (void)state;
    for (int away = 0; away < 2; away++) {
        net_setup set;
        net_defaults(&set, 3);
        set.tcp = 1;
        if (away) set.tune = make_far;
        net_run(&set, check_credits, &away);
    }
}

static void count_bytes(net_rank *me, void *user)
{
    float *data = (float *)calloc(100003, sizeof *data);
    ddp_piece piece;
    ddp_message m;
    ddp__net_stats stats, again;

    (void)user;
    piece.data = data;
    piece.count = 100003;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    for (int i = 0; i < 5; i++) net_ok(me, net_do(me, &m));
    do { /* credits may still be in flight */
        ddp__engine_stats(me->engine, &stats);
        ddp__sleep_until(ddp_now() + 0.2);
        ddp__engine_stats(me->engine, &again);
    } while (stats.bytes_sent != again.bytes_sent || stats.bytes_received != again.bytes_received);
    engine_bytes[me->rank][0] = stats.bytes_sent;
    engine_bytes[me->rank][1] = stats.bytes_received;
    kernel_bytes[me->rank][0] = kernel_bytes[me->rank][1] = 0;
    for (int p = 0; p < me->world; p++) {
        /* struct tcp_info of <linux/tcp.h>, of which libc declares only a part: acknowledged bytes (with the
         * SYN of the connecting side) at 120, received bytes at 128 */
        int64_t info[17];
        socklen_t len = sizeof info;
        if (p == me->rank) continue;
        memset(info, 0, sizeof info);
        if (getsockopt(meet_fd(me->wire, p), IPPROTO_TCP, TCP_INFO, info, &len)) net_fail(me, "TCP_INFO");
        kernel_bytes[me->rank][0] += info[15];
        kernel_bytes[me->rank][1] += info[16];
    }
    ddp__sleep_until(ddp_now() + 0.3); /* no rank closes while another still counts */
    free(data);
}

static void byte_counts_match_the_kernel(void **state)
{
    net_setup set;
    (void)state;
    net_defaults(&set, 3);
    set.tcp = 1;
    for (int attempt = 0, equal = 0; attempt < 12 && !equal; attempt++) { /* a heartbeat may be sent in
                                                                           * between */
        net_run(&set, count_bytes, NULL);
        equal = 1;
        for (int r = 0; r < 3; r++) equal &= engine_bytes[r][1] == kernel_bytes[r][1];
    }
    for (int r = 0; r < 3; r++) {
        assert_true(engine_bytes[r][0] > 5 * 100003 * 4);
        assert_true(kernel_bytes[r][0] - engine_bytes[r][0] >= 0 &&
                    kernel_bytes[r][0] - engine_bytes[r][0] <= 2);
        assert_true(engine_bytes[r][1] == kernel_bytes[r][1]);
    }
}

/* ---- failures ---- */

static void say_failure(net_rank *me, ddp_status s, ddp_status want, const char *a, const char *b,
                        const char *c)
{
    if (s != want || !strstr(me->err.msg, a) || !strstr(me->err.msg, b) || !strstr(me->err.msg, c))
        net_fail(me, "status %d (not %d), \"%.200s\" lacks \"%s\", \"%s\" or \"%s\"", (int)s, (int)want,
                 me->err.msg, a, b, c);
}

/* All ranks except `user` average layer 1 with 4096 values; that rank averages another layer. */
static void disagree(net_rank *me, void *user)
{
    float *data = (float *)calloc(4096, sizeof *data);
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    piece.data = data;
    piece.count = me->rank == *(int *)user ? 128 : 4096;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.layer = me->rank == *(int *)user ? 3 : 1;
    s = net_do(me, &m);
    if (s == DDP_OK) s = net_do(me, &m);
    say_failure(me, s, DDP_MISMATCH, "operation 0", "(128 values", "(4096 values");
    say_failure(me, s, DDP_MISMATCH, "layer head", "layer h.0.mlp", "same order");
    s = net_do(me, &m);
    say_failure(me, s, DDP_MISMATCH, "operation 0", "", "");
    free(data);
}

static void mismatch_names_both_sides_on_all_ranks(void **state)
{
    (void)state;
    for (int odd = 0; odd < 3; odd++) {
        net_setup set;
        net_defaults(&set, 3);
        set.tcp = odd == 1;
        net_run(&set, disagree, &odd);
    }
}

static void stay_away(net_rank *me, void *user)
{
    float data[64];
    ddp_piece piece;
    ddp_message m;

    memset(data, 0, sizeof data);
    piece.data = data;
    piece.count = 64;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.step = 12;
    if (me->rank == *(int *)user) {
        ddp_error err;
        double until = ddp_now() + 60;
        while (ddp__engine_error(me->engine, &err) == DDP_OK && ddp_now() < until)
            ddp__sleep_until(ddp_now() + 0.01);
        me->err = err;
        say_failure(me, err.code, DDP_TIMEOUT, "layer h.0.mlp", "not submit", "rank");
    } else {
        say_failure(me, net_do(me, &m), DDP_TIMEOUT, "layer h.0.mlp", "submit", "rank");
    }
}

static void operation_missing_on_a_rank_times_out_with_its_name(void **state)
{
    int away = 2;
    net_setup set;
    (void)state;
    net_defaults(&set, 3);
    set.cfg.op_timeout_s = 0.3;
    net_run(&set, stay_away, &away);
}

static void leave_early(net_rank *me, void *user)
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
    s = net_do(me, &m);
    if (me->rank == 1) {
        net_ok(me, s);
        return;
    }
    /* A faster rank may have reported the loss while this rank was in the first operation. */
    if (s == DDP_OK) s = net_do(me, &m);
    say_failure(me, s, DDP_PEER_LOST, "rank 1 closed its context", "layer h.0.mlp", "same number of steps");
    if (ddp__engine_lost(me->engine) != 1) fail_msg("lost: %d", ddp__engine_lost(me->engine));
}

static void rank_that_closes_early_is_reported_as_left(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        net_setup set;
        net_defaults(&set, 3);
        set.tcp = tcp;
        net_run(&set, leave_early, NULL);
    }
}

/* ---- a result is retained until all ranks are known to have it ---- */

static int say_nothing(ddp__engine *e, int peer, int urgent, ddp__frame *f)
{
    while (ddp__elastic_membership()->frame(e, peer, urgent, f))
        if (f->type != DDP__FRAME_DONE) return 1;
    return 0;
}

static void mute_rank_one(ddp__engine_config *cfg, int rank)
{
    static ddp__membership mute;

    if (rank != 1) return;
    mute = *cfg->membership;
    mute.frame = say_nothing;
    cfg->membership = &mute;
}

static void sum_and_leave(net_rank *me, void *user)
{
    static float data[2][100];
    ddp_piece p;
    ddp_message m;

    (void)user;
    p.data = data[me->rank];
    p.count = 100;
    net_message(&m, DDP_ALL_REDUCE, &p, 1);
    net_ok(me, net_do(me, &m));
}

static void nothing_is_retained_for_a_rank_that_left(void **state)
{
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        const double begin = ddp_now();
        net_setup set;
        (void)state;
        net_defaults(&set, 2);
        set.cfg.min_world = 1;
        set.tcp = tcp;
        set.tune = mute_rank_one;
        set.cfg.peer_timeout_s = 120;
        net_run(&set, sum_and_leave, NULL);
        assert_true(ddp_now() - begin < 60); /* no rank waits for peer_timeout_s */
    }
}

static void abort_all(net_rank *me, void *user)
{
    float *data = (float *)calloc(300000, sizeof *data);
    ddp_piece piece;
    ddp_message m;

    (void)user;
    piece.data = data;
    piece.count = 300000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    if (me->rank == 1) {
        long ticket = 0;
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
        ddp__engine_abort(me->engine, DDP_ABORTED, "interrupted by the user");
        say_failure(me, ddp__engine_wait(me->engine, ticket, &me->err), DDP_ABORTED,
                    "interrupted by the user", "", "");
    } else {
        say_failure(me, net_do(me, &m), DDP_ABORTED, "interrupted by the user", "reported by rank 1", "");
    }
    free(data);
}

static void abort_reaches_every_rank_with_the_same_message(void **state)
{
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        net_setup set;
        net_defaults(&set, 4);
        set.tcp = tcp;
        if (tcp)
            set.rate = 1e6;
        else
            set.cfg.share_bytes = SIZE_MAX; /* otherwise it might end before the abort */
        net_run(&set, abort_all, NULL);
    }
}

/* A wire that can die (peers see the end of the stream) or stall (no byte is transferred). */
typedef struct bad_wire {
    ddp__wire base;
    ddp__wire *inner;
    int mode; /* 1: dead, 2: stalled */
} bad_wire;

static bad_wire bad;

static long bad_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    int mode = ddp__atomic_load(&((bad_wire *)w)->mode);
    if (mode == 1 && bad.inner) {
        bad.inner->table->close(bad.inner);
        bad.inner = NULL;
    }
    if (mode == 1) errno = EPIPE;
    return mode ? (mode == 1 ? -1 : 0) : bad.inner->table->send(bad.inner, peer, iov, count);
}

static long bad_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    int mode = ddp__atomic_load(&((bad_wire *)w)->mode);
    if (mode == 1) errno = ECONNRESET;
    return mode ? (mode == 1 ? -1 : 0) : bad.inner->table->recv(bad.inner, peer, buf, bytes);
}

static void bad_wait(ddp__wire *w, const unsigned char *s, const unsigned char *r, double until)
{
    if (ddp__atomic_load(&((bad_wire *)w)->mode))
        ddp__sleep_until(ddp_now() + 0.01);
    else
        bad.inner->table->wait(bad.inner, s, r,
                               until < 0 || until > ddp_now() + 0.01 ? ddp_now() + 0.01 : until);
}

static void bad_wake(ddp__wire *w) { (void)w; }

static void bad_close(ddp__wire *w)
{
    (void)w;
    if (bad.inner) bad.inner->table->close(bad.inner);
    bad.inner = NULL;
}

static const ddp__wire_table bad_table = {bad_send, bad_recv, bad_wait, bad_wake, bad_close, NULL, NULL};

static void rank_two_has_a_bad_wire(ddp__engine_config *cfg, int rank)
{
    if (rank != 2) return;
    bad.base = *cfg->wire;
    bad.base.table = &bad_table;
    bad.inner = cfg->wire;
    bad.mode = 0;
    cfg->wire = &bad.base;
}

static int submitted; /* ranks that have submitted step 12, in which the lost rank is missing */

static void lose_rank_two(net_rank *me, void *user)
{
    int mode = *(int *)user;
    float *data = (float *)calloc(3000, sizeof *data);
    ddp_piece piece;
    ddp_message m;
    ddp_status s;
    long ticket = 0;

    piece.data = data;
    piece.count = 3000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.step = 4;
    net_ok(me, net_do(me, &m));
    if (me->rank == 2) {
        while (ddp__atomic_load(&submitted) < me->world - 1) ddp__sleep_until(ddp_now() + 0.01);
        ddp__atomic_store(&bad.mode, mode);
        net_do(me, &m);
    } else {
        m.step = 12;
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
        ddp__atomic_add(&submitted, 1);
        s = ddp__engine_wait(me->engine, ticket, &me->err);
        /* A comm thread that has not started step 12 yet reports step 4, the last that it completed. */
        say_failure(me, s, DDP_PEER_LOST, "rank 2", mode == 1 ? "closed by peer" : "no sign of life",
                    "h.0.mlp (step ");
        if (ddp__engine_lost(me->engine) != 2) fail_msg("lost: %d", ddp__engine_lost(me->engine));
    }
    free(data);
}

static void lost_peer_is_named_with_operation_and_layer(void **state)
{
    (void)state;
    for (int mode = 1; mode <= 2; mode++) {
        net_setup set;
        net_defaults(&set, 3);
        set.tune = rank_two_has_a_bad_wire;
        set.tcp = 1;
        set.cfg.peer_timeout_s = mode == 1 ? 60 : 2; /* long enough for a starved comm thread */
        set.cfg.op_timeout_s = 120;
        submitted = 0;
        net_run(&set, lose_rank_two, &mode);
    }
}

static int wrote; /* atomic: rank 0 has written */

/* Two ranks; rank 0 submits and writes to its layer before rank 1 joins the operation. */
static DDP__UNUSED void write_in_flight(net_rank *me, void *user)
{
    static float data[2][4096];
    ddp_piece piece;
    ddp_message m;
    long ticket = 0;

    piece.data = data[me->rank];
    piece.count = 4096;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.step = 3;
    if (me->rank == 0) {
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
        ddp__sleep_until(ddp_now() + 0.02); /* values that can be sent without rank 1 have been sent */
        data[0][*(int *)user] += 1;
        ddp__atomic_store(&wrote, 1);
        say_failure(me, ddp__engine_wait(me->engine, ticket, &me->err), DDP_USAGE,
                    "layer h.0.mlp was written", "step 3", "ddp_forward_begin");
    } else {
        while (!ddp__atomic_load(&wrote)) ddp__sleep_until(ddp_now() + 0.001);
        say_failure(me, net_do(me, &m), DDP_USAGE, "layer h.0.mlp was written", "step 3",
                    "reported by rank 0");
    }
}

static void write_to_memory_in_flight_is_reported_by_layer(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    SKIP("it is a data race by design");
#else
    for (int at = 5; at < 4096; at += 4000) { /* in the own segment. In the peer's segment, after it was sent.
                                               */
        net_setup set;
        net_defaults(&set, 2);
        set.cfg.check_writes = 1;
        set.cfg.max_count = 4096;
        wrote = 0;
        net_run(&set, write_in_flight, &at);
    }
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_flipped_bit_of_a_frame_is_detected),
        cmocka_unit_test(every_checksum_implementation_matches_the_definition),
        cmocka_unit_test(sums_equal_a_plain_loop_in_rank_order),
        cmocka_unit_test(many_messages_of_all_kinds_arrive_with_any_timing),
        cmocka_unit_test(sends_and_collectives_in_different_order_do_not_deadlock),
        cmocka_unit_test(high_priority_messages_do_not_starve_the_oldest),
        cmocka_unit_test(divergence_equals_the_squared_distance_to_the_average),
        cmocka_unit_test(memory_is_bounded_and_allocated_only_at_open),
        cmocka_unit_test(distant_peer_gets_more_credits),
        cmocka_unit_test(byte_counts_match_the_kernel),
        cmocka_unit_test(mismatch_names_both_sides_on_all_ranks),
        cmocka_unit_test(operation_missing_on_a_rank_times_out_with_its_name),
        cmocka_unit_test(rank_that_closes_early_is_reported_as_left),
        cmocka_unit_test(nothing_is_retained_for_a_rank_that_left),
        cmocka_unit_test(abort_reaches_every_rank_with_the_same_message),
        cmocka_unit_test(lost_peer_is_named_with_operation_and_layer),
        cmocka_unit_test(write_to_memory_in_flight_is_reported_by_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
