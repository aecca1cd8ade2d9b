/* [asan] bfloat16 on the wire: bit-identical to a plain reference, on every transport; training. */
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

#include "compress/wire_lab.h"
#include "exchange.h"

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Rounds to the nearer of the two values with 8 bits of mantissa. A tie goes to the even one. */
static float rounded(float x)
{
    uint32_t low = to_bits(x) & 0xffff0000u;
    double below = (double)from_bits(low), above, at = (double)x;

    if (!isfinite(x)) return isnan(x) ? from_bits(to_bits(x) | 0x00400000u) : x;
    if ((low & 0x7fffffffu) == 0x7f7f0000u) /* the largest value. The next one would be 2^128. */
        above = x > 0 ? ldexp(1, 128) : -ldexp(1, 128);
    else
        above = (double)from_bits(low + 0x10000u);
    if (fabs(at - below) < fabs(above - at)) return from_bits(low);
    if (fabs(at - below) > fabs(above - at)) return (float)above;
    return low & 0x10000u ? (float)above : from_bits(low);
}

static void rounding_is_to_nearest_even_and_nan_stays_nan(void **state)
{
    static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    (void)state;
    for (uint32_t high = 0; high < 0x10000u; high++)
        for (size_t i = 0; i < sizeof lows / sizeof lows[0]; i++) {
            float x = from_bits(high << 16 | lows[i]), y, wide[2];
            uint16_t half;
            y = x;
            ddp__bfloat_round(&y, 1);
            ddp__bfloat_halve(&half, &x, 1);
            memcpy((char *)wide + 2, &half, 2); /* the second half of the first float */
            ddp__bfloat_widen(wide, (const uint16_t *)(const void *)wide + 1, 1);
            if (isnan(x)) {
                assert_true(isnan(y) && isnan(wide[0]));
                continue;
            }
            if (to_bits(y) != to_bits(rounded(x)) || to_bits(wide[0]) != to_bits(y))
                fail_msg("%a becomes %a and %a, not %a", (double)x, (double)y, (double)wide[0],
                         (double)rounded(x));
        }
}

static void block_is_widened_in_place(void **state)
{
    float x[1001];
    uint16_t half[1001];
    (void)state;
    for (size_t n = 1; n <= 1001; n += 100) {
        float block[1001];
        for (size_t i = 0; i < n; i++) x[i] = net_value(1, i, 5);
        ddp__bfloat_halve(half, x, n);
        memcpy((char *)block + 2 * n, half, 2 * n);
        ddp__bfloat_widen(block, (const uint16_t *)(const void *)block + n, n);
        for (size_t i = 0; i < n; i++) assert_true(to_bits(block[i]) == to_bits(rounded(x[i])));
    }
}

/* ---- all-reduce ---- */

typedef struct half_case {
    size_t n;
    int pieces, divergence;
    float scale;
} half_case;

/* Large and small values, some not finite. */
static float half_value(int rank, size_t i)
{
    if (i % 97 == 13 && rank == 1) return INFINITY;
    if (i % 97 == 14 && rank == 0) return -INFINITY;
    if (i % 97 == 15) return rank ? INFINITY : -INFINITY;         /* the sum is NaN */
    if (i % 97 == 16 && rank == 1) return from_bits(0x7f800001u); /* NaN, would round to Inf */
    return net_value(rank, i, 9);
}

static void half_once(net_rank *me, void *user)
{
    const half_case *c = (const half_case *)user;
    float *data = (float *)calloc(c->n + (size_t)c->pieces + 1, sizeof *data);
    double divergence = -1, want_divergence = 0;
    ddp_piece pieces[8];
    ddp__net_stats stats;
    ddp_message m;
    size_t i = 0;

    cut(pieces, c->pieces, data, c->n);
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++, i++)
            pieces[p].data[k] = c->divergence ? net_value(me->rank, i, 9) : half_value(me->rank, i);
    net_message(&m, DDP_ALL_REDUCE, pieces, c->pieces);
    m.scale = c->scale;
    m.coding = DDP_AS_BFLOAT;
    m.divergence = c->divergence ? &divergence : NULL;
    net_ok(me, net_do(me, &m));
    i = 0;
    for (int p = 0; p < c->pieces; p++)
        for (size_t k = 0; k < pieces[p].count; k++, i++) {
            float sum = 0, own = c->divergence ? net_value(me->rank, i, 9) : half_value(me->rank, i);
            for (int r = 0; r < me->world; r++) {
                float x = rounded(c->divergence ? net_value(r, i, 9) : half_value(r, i));
                sum = r ? sum + x : x;
            }
            sum = rounded(sum * c->scale);
            want_divergence += ((double)sum - (double)own) * ((double)sum - (double)own);
            if (isnan(sum) ? !isnan(pieces[p].data[k]) : to_bits(sum) != to_bits(pieces[p].data[k]))
                net_fail(me, "n %lu value %lu: %g, not %g", (unsigned long)c->n, (unsigned long)i,
                         (double)pieces[p].data[k], (double)sum);
        }
    if (c->divergence && !(fabs(divergence - want_divergence) <= 1e-9 * want_divergence))
        net_fail(me, "divergence %g, not %g", divergence, want_divergence);
    ddp__engine_stats(me->engine, &stats);
    if (c->n) {
        size_t world = (size_t)me->world,
               from = c->n / world * (size_t)me->rank + c->n % world * (size_t)me->rank / world;
        size_t to = c->n / world * (size_t)(me->rank + 1) + c->n % world * (size_t)(me->rank + 1) / world;
        int64_t bytes = (int64_t)(2 * (c->n - (to - from) + (world - 1) * (to - from)));
        if (stats.payload_sent != bytes || stats.algorithm != 'd')
            net_fail(me, "%ld bytes, not %ld; algorithm %c", (long)stats.payload_sent, (long)bytes,
                     stats.algorithm);
    }
    free(data);
}

static void sums_of_halves_match_a_plain_loop(void **state)
{
    static const size_t sizes[] = {0, 1, 3, 13, 1000, 100003};
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++)
        for (int world = 2; world <= 5; world++)
            for (int s = 0; s < 12; s++) {
                half_case c;
                net_setup set;
                c.n = sizes[s % 6];
                c.pieces = s % 3 == 1 ? 7 : 1;
                c.scale = s % 2 ? 1.0f / (float)world : 1;
                c.divergence = s >= 6;
                net_defaults(&set, world);
                set.tcp = tcp;
                set.cfg.coding = DDP_AS_BFLOAT;
                set.cfg.check_writes = s == 4;
                set.cfg.max_count = 100003;
                if (c.n == 1000) set.cfg.chunk_bytes = 64;
                if (s == 5) set.rate = 1e8;
                if (s == 10) set.delay_s = 0.001;
                set.cfg.deterministic = s % 2;
                if (s % 2 == 0) set.cfg.ring_bytes = 1; /* but never a ring */
                net_run(&set, half_once, &c);
            }
}

/* Messages in halves and floats alternate, many in flight. */
static void halves_and_floats(net_rank *me, void *user)
{
    enum { MESSAGES = 60, N = 5003 };
    float *data = (float *)calloc((size_t)MESSAGES * N, sizeof *data);
    long ticket[MESSAGES];
    ddp_piece piece;
    ddp_message m;

    (void)user;
    for (int i = 0; i < MESSAGES; i++) {
        piece.data = data + (size_t)i * N;
        piece.count = N;
        for (size_t k = 0; k < N; k++) piece.data[k] = net_value(me->rank, k, (unsigned)i);
        net_message(&m, DDP_ALL_REDUCE, &piece, 1);
        m.coding = i % 2 ? DDP_AS_BFLOAT : DDP_AS_FLOAT;
        m.priority = i * 7 % 5;
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket[i], &me->err));
    }
    for (int i = 0; i < MESSAGES; i++) {
        net_ok(me, ddp__engine_wait(me->engine, ticket[i], &me->err));
        for (size_t k = 0; k < N; k++) {
            float sum = 0;
            for (int r = 0; r < me->world; r++) {
                float x = net_value(r, k, (unsigned)i);
                if (i % 2) x = rounded(x);
                sum = r ? sum + x : x;
            }
            if (i % 2) sum = rounded(sum);
            if (to_bits(sum) != to_bits(data[(size_t)i * N + k])) net_fail(me, "message %d", i);
        }
    }
    free(data);
}

static void halves_and_floats_are_in_flight_together(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        net_setup set;
        net_defaults(&set, 3);
        set.tcp = kind % 2;
        set.cfg.coding = DDP_AS_BFLOAT;
        set.cfg.chunk_bytes = 1024;
        if (kind / 2) set.rate = 5e7;
        net_run(&set, halves_and_floats, NULL);
    }
}

static void disagree_about_halves(net_rank *me, void *user)
{
    float data[600];
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    (void)user;
    memset(data, 0, sizeof data);
    piece.data = data;
    piece.count = 600;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.coding = me->rank == 0 ? DDP_AS_BFLOAT : DDP_AS_FLOAT;
    s = net_do(me, &m);
    if (s != DDP_MISMATCH || !strstr(me->err.msg, "averages in bfloat16") ||
        !strstr(me->err.msg, "averages layer"))
        net_fail(me, "status %d, %.200s", (int)s, me->err.msg);
}

static void refuse_half(net_rank *me, void *user)
{
    float data[4] = {0, 0, 0, 0};
    ddp_piece piece;
    ddp_message m;

    piece.data = data;
    piece.count = 4;
    net_message(&m, *(ddp_verb *)user, &piece, 1);
    m.coding = DDP_AS_BFLOAT;
    if (net_do(me, &m) != DDP_ARG || !strstr(me->err.msg, "only an all-reduce"))
        net_fail(me, "%.200s", me->err.msg);
}

static void ranks_with_different_wires_fail(void **state)
{
    ddp_verb verb = DDP_ALL_REDUCE;
    net_setup set;
    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        net_defaults(&set, 2);
        set.tcp = tcp;
        set.cfg.coding = DDP_AS_BFLOAT;
        net_run(&set, disagree_about_halves, NULL);
    }
    verb = DDP_BROADCAST;
    net_run(&set, refuse_half, &verb);
    verb = DDP_ALL_REDUCE;
    set.cfg.coding = DDP_AS_FLOAT;
    net_run(&set, refuse_half, &verb);
}

/* ---- public calls ---- */

static int half_call(ddp_ctx *d, void *user)
{
    float x[2] = {1.001f, 1.001f}, y[2] = {1.001f, 1.001f}; /* 1 in bfloat16 */
    int half = *(int *)user, bad;

    bad = ddp_all_reduce(d, x, 2, 1);
    if (bad || x[0] != 1.001f + 1.001f) return 99;
    bad = exchange(d, DDP_ALL_REDUCE, coded(DDP_AS_BFLOAT), y, 2, 1, 0);
    if (half && (bad || y[0] != 2)) return 99;
    if (!half && (bad != (int)DDP_ARG || !strstr(ddp_last_error(d)->msg, "opened for float32"))) return 99;
    return bad;
}

static void plain_sums_stay_exact(void **state)
{
    ddp_config cfg;
    ddp_error err;
    (void)state;
    for (int half = 0; half < 2; half++) {
        memset(&cfg, 0, sizeof cfg);
        cfg.no_env = 1;
        cfg.world = 2;
        cfg.transport = DDP_THREADS;
        cfg.wire = half ? DDP_WIRE_BF16 : DDP_WIRE_DEFAULT;
        assert_int_equal(ddp_launch(&cfg, half_call, &half, &err), half ? DDP_OK : DDP_ARG);
    }
}

/* ---- training ---- */

static void bfloat16_training_is_bit_identical_on_every_transport(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP};
    lab first, other, exact;
    (void)state;
    for (int s = 0; s < 4; s++) {
        lab_new(&first, 3, strategies[s], 3);
        lab_new(&other, 3, strategies[s] == DDP_SSGD ? DDP_WFBP : strategies[s], 3);
        lab_new(&exact, 3, strategies[s], 3);
        first.model = other.model = exact.model = s % 2 ? LAB_MLP : LAB_ODD;
        first.cfg.wire = other.cfg.wire = DDP_WIRE_BF16;
        other.cfg.transport = DDP_TCP;
        other.cfg.gradient.bucket_bytes = 5000;
        lab_run(&first);
        lab_run(&other);
        lab_run(&exact);
        for (int r = 0; r < 3; r++) {
            assert_memory_equal(first.params[r], first.params[0], *first.values * sizeof(float));
            assert_memory_equal(first.params[r], other.params[r], *first.values * sizeof(float));
        }
        assert_true(lab_distance(&exact, &first) > 0);
        assert_true(lab_distance(&exact, &first) < 0.01);
        assert_true(first.stats[0].bytes_sent < exact.stats[0].bytes_sent * 9 / 10);
        lab_free(&first);
        lab_free(&other);
        lab_free(&exact);
    }
}

/* With bfloat16 gradients, training reaches the float32 loss. Averaged parameters retain only 8 bits. */
static void bfloat16_training_reaches_the_float32_loss(void **state)
{
    double ssgd[2], local[2];
    (void)state;
    ssgd[0] = fit_run(DDP_SSGD, DDP_WIRE_F32);
    ssgd[1] = fit_run(DDP_SSGD, DDP_WIRE_BF16);
    local[0] = fit_run(DDP_LOCALSGD, DDP_WIRE_F32);
    local[1] = fit_run(DDP_LOCALSGD, DDP_WIRE_BF16);
    print_message("    loss over first loss: ssgd %.2g f32, %.2g bf16; localsgd %.2g, %.2g\n", ssgd[0],
                  ssgd[1], local[0], local[1]);
    assert_true(ssgd[0] < 0.01 && ssgd[1] < 1.05 * ssgd[0] + 1e-6);
    assert_true(local[0] < 0.01 && local[1] < local[0] + 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_is_to_nearest_even_and_nan_stays_nan),
        cmocka_unit_test(block_is_widened_in_place),
        cmocka_unit_test(sums_of_halves_match_a_plain_loop),
        cmocka_unit_test(halves_and_floats_are_in_flight_together),
        cmocka_unit_test(ranks_with_different_wires_fail),
        cmocka_unit_test(plain_sums_stay_exact),
        cmocka_unit_test(bfloat16_training_is_bit_identical_on_every_transport),
        cmocka_unit_test(bfloat16_training_reaches_the_float32_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
