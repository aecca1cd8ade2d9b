/* Messages of the compressors: what is sent arrives, what is kept back stays, and bytes from a
 * stranger do no harm. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

static const ddp_packing sparse[3] = {DDP_PACK_I64, DDP_PACK_I32, DDP_PACK_DELTA};

/* A Top-K selection and its message, in blocks of exactly their sizes. */
typedef struct sent {
    size_t         n, k, bytes;
    float         *x, *value;
    uint64_t      *index;
    unsigned char *message;
} sent;

static void *must(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);

    assert_non_null(p);
    return p;
}

static float *normals(size_t n, uint64_t seed)
{
    float *x = (float *)must(n * sizeof *x);
    ddp_rng r = ddp_rng_seed(seed, n);
    size_t i;

    for (i = 0; i < n; i++) x[i] = (float)ddp_rng_normal(&r);
    return x;
}

static void select_k(const float *x, size_t n, size_t k, uint64_t *index, float *value)
{
    size_t bytes = ddp_topk_scratch(n, k);
    void *scratch = must(bytes);

    assert_int_equal(ddp_topk(x, n, k, scratch, bytes, index, value, NULL), DDP_OK);
    free(scratch);
}

static sent send_k(ddp_packing packing, size_t n, size_t k, uint64_t seed)
{
    size_t bound = ddp_pack_bound(packing, n, k);
    unsigned char *room = (unsigned char *)must(bound);
    ddp_error err;
    sent s;

    s.n = n;
    s.k = k;
    s.x = normals(n, seed);
    s.index = (uint64_t *)must(k * sizeof *s.index);
    s.value = (float *)must(k * sizeof *s.value);
    select_k(s.x, n, k, s.index, s.value);
    if (ddp_pack_sparse(packing, n, k, s.index, s.value, room, bound, &s.bytes, &err) != DDP_OK)
        fail_msg("%s", err.msg);
    assert_true(s.bytes <= bound);
    s.message = (unsigned char *)must(s.bytes);
    memcpy(s.message, room, s.bytes);
    free(room);
    return s;
}

static void sent_free(sent *s)
{
    free(s->x);
    free(s->value);
    free(s->index);
    free(s->message);
}

static int same_bits(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}

/* ---- round trips ---- */

static void what_is_sent_arrives_bit_for_bit(void **state)
{
    static const size_t sizes[] = {1, 2, 63, 64, 65, 1000, 40000};
    size_t s, j, i;
    int p;

    (void)state;
    for (p = 0; p < 3; p++)
        for (s = 0; s < 7; s++)
            for (j = 0; j < 4; j++) {
                static const size_t parts[4] = {100000, 100, 2, 1};
                size_t n = sizes[s], k = (n + parts[j] - 1) / parts[j];
                sent m = send_k(sparse[p], n, k, s + j);
                float *y = normals(n, 99), *z = normals(n, 99);
                ddp_packed head;

                assert_int_equal(ddp_packed_read(m.message, m.bytes, &head, NULL), DDP_OK);
                assert_true(head.packing == sparse[p] && head.n == n && head.k == k);
                for (i = 0; i < k; i++) z[m.index[i]] += m.value[i];
                assert_int_equal(ddp_unpack_add(m.message, m.bytes, y, n, NULL), DDP_OK);
                assert_true(same_bits(y, z, n));
                memset(z, 0, n * sizeof *z);
                for (i = 0; i < k; i++) z[m.index[i]] = m.value[i];
                assert_int_equal(ddp_unpack_store(m.message, m.bytes, y, n, NULL), DDP_OK);
                assert_true(same_bits(y, z, n));
                free(y);
                free(z);
                sent_free(&m);
            }
}

static void the_bytes_are_those_of_the_format(void **state)
{
    const uint64_t index[3] = {1, 129, 16514}; /* gaps 1, 127, 16384 */
    const float value[3] = {1, -2, 0.5f};
    static const unsigned char head[24] = {'D', 'D', 'P', 'C', 1, 3, 0, 0, 0x20, 0x4e};
    static const unsigned char tail[17] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0, 0x3f,
                                           1, 127,  0x80, 0x80, 1};
    unsigned char out[64];
    size_t bytes = 0;

    (void)state;
    assert_int_equal(ddp_pack_sparse(DDP_PACK_DEFAULT, 20000, 3, index, value, out, sizeof out,
                                     &bytes, NULL), DDP_OK);
    assert_int_equal((int)bytes, 24 + 12 + 5);
    assert_memory_equal(out, head, 16);
    assert_memory_equal(out + 24, tail, 17);
    assert_int_equal(out[16], 3);
    assert_int_equal((int)ddp_pack_bound(DDP_PACK_I64, 20000, 3), 24 + 36);
    assert_int_equal((int)ddp_pack_bound(DDP_PACK_I32, 20000, 3), 24 + 24);
    assert_int_equal((int)ddp_pack_bound(DDP_PACK_DENSE, 20000, 0), 24 + 80000);
    assert_int_equal((int)ddp_pack_bound(DDP_PACK_INT8, 65, 0), 24 + 8 + 65);
    assert_int_equal((int)ddp_pack_bound(DDP_PACK_INT4, 65, 0), 24 + 8 + 33);
    assert_true(ddp_pack_bound(DDP_PACK_I64, 10, 0) == 0);
    assert_true(ddp_pack_bound(DDP_PACK_I64, 10, 11) == 0);
    assert_true(ddp_pack_bound(DDP_PACK_I32, (size_t)1 << 32, 1) == 32);
    assert_true(ddp_pack_bound(DDP_PACK_I32, ((size_t)1 << 32) + 1, 1) == 0);
}

/* The bound of delta holds for the worst gaps, and one element at the end attains it. */
static void no_message_exceeds_its_bound(void **state)
{
    size_t n = (size_t)1 << 40, gap, bytes = 0, most = 0, i, k;
    uint64_t index[300];
    float value[300];
    unsigned char out[4096];

    (void)state;
    memset(value, 0, sizeof value);
    for (gap = 1; gap < n / 300; gap = gap * 2 + 1)
        for (k = 1; k <= 300; k += 23) {
            for (i = 0; i < k; i++) index[i] = (i + 1) * gap - 1;
            assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, index[k - 1] + 1, k, index, value, out,
                                             sizeof out, &bytes, NULL), DDP_OK);
            most = ddp_pack_bound(DDP_PACK_DELTA, index[k - 1] + 1, k);
            assert_true(bytes <= most);
        }
    for (i = 0; i < 300; i++) index[i] = i + i / 3 * 128; /* every third gap is 128 */
    assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, index[299] + 1, 300, index, value, out,
                                     sizeof out, &bytes, NULL), DDP_OK);
    assert_int_equal((int)bytes, 24 + 1200 + 300 + 99);
    assert_true(bytes <= ddp_pack_bound(DDP_PACK_DELTA, index[299] + 1, 300));
    index[0] = n - 1;
    assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, n, 1, index, value, out, sizeof out, &bytes,
                                     NULL), DDP_OK);
    assert_true(bytes == ddp_pack_bound(DDP_PACK_DELTA, n, 1));
}

static void delta_takes_five_and_a_third_bytes_at_one_percent(void **state)
{
    sent m = send_k(DDP_PACK_DELTA, 200000, 2000, 3);
    double each = (double)(m.bytes - DDP_PACK_HEAD) / 2000;

    (void)state;
    /* gaps are geometric: P(gap >= 128) = 0.99^128 = 0.276 */
    if (!(each > 5.2 && each < 5.35)) fail_msg("%.3f bytes", each);
    sent_free(&m);
}

static void dense_messages_keep_infinities_and_refuse_nan(void **state)
{
    const size_t n = 1001;
    float *x = normals(n, 4), *y = normals(n, 5), *z = normals(n, 5);
    size_t bound = ddp_pack_bound(DDP_PACK_DENSE, n, n), bytes = 0, i;
    unsigned char *out = (unsigned char *)must(bound);
    ddp_error err;

    (void)state;
    x[3] = -INFINITY;
    x[4] = -0.0f;
    assert_int_equal(ddp_pack_dense(x, n, out, bound, &bytes, NULL), DDP_OK);
    assert_true(bytes == bound);
    for (i = 0; i < n; i++) z[i] += x[i];
    assert_int_equal(ddp_unpack_add(out, bytes, y, n, NULL), DDP_OK);
    assert_true(same_bits(y, z, n));
    assert_int_equal(ddp_unpack_store(out, bytes, y, n, NULL), DDP_OK);
    assert_true(same_bits(y, x, n));
    x[1000] = NAN;
    memset(out, 7, bound);
    assert_int_equal(ddp_pack_dense(x, n, out, bound, &bytes, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "x[1000]"));
    assert_int_equal(out[0], 7);
    assert_int_equal(ddp_pack_dense(y, n, out, bound - 1, &bytes, &err), DDP_ARG);
    assert_int_equal(ddp_pack_dense(y, 0, out, bound, &bytes, &err), DDP_ARG);
    free(x);
    free(y);
    free(z);
    free(out);
}

/* ---- error feedback ---- */

static void every_element_is_sent_or_kept_back_bit_for_bit(void **state)
{
    const size_t n = 5000, k = 50;
    float *residual = (float *)calloc(n, sizeof *residual);
    float *before = (float *)must(n * sizeof *before);
    float *got = (float *)must(n * sizeof *got), *value = (float *)must(k * sizeof *value);
    uint64_t *index = (uint64_t *)must(k * sizeof *index);
    size_t bound = ddp_pack_bound(DDP_PACK_DELTA, n, k), bytes, i, zeros;
    unsigned char *message = (unsigned char *)must(bound);
    int step;

    (void)state;
    assert_non_null(residual);
    for (step = 0; step < 50; step++) {
        float *g = normals(n, (uint64_t)step);
        g[step] = step % 2 ? INFINITY : -0.0f;
        memcpy(before, residual, n * sizeof *before);
        ddp_feedback_add(residual, g, n);
        for (i = 0; i < n; i++) before[i] += g[i];
        assert_true(same_bits(before, residual, n));
        select_k(residual, n, k, index, value);
        assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, n, k, index, value, message, bound, &bytes,
                                         NULL), DDP_OK);
        assert_int_equal(ddp_feedback_keep(residual, n, index, k, NULL), DDP_OK);
        assert_int_equal(ddp_unpack_store(message, bytes, got, n, NULL), DDP_OK);
        for (zeros = i = 0; i < n; i++) {
            /* one of the two is +0, the other is what there was */
            const float *whole = zeros < k && index[zeros] == i ? got + i : residual + i;
            const float *none = whole == residual + i ? got + i : residual + i;
            uint32_t bits;
            zeros += whole == got + i;
            memcpy(&bits, none, sizeof bits);
            assert_true(bits == 0 && same_bits(whole, before + i, 1));
        }
        assert_true(zeros == k);
        free(g);
    }
    free(residual);
    free(before);
    free(got);
    free(value);
    free(index);
    free(message);
}

/* A constant gradient with feedback arrives on average; without it small elements never do. */
static void with_feedback_nothing_is_lost_for_good(void **state)
{
    enum { N = 100, K = 10, STEPS = 1000 };
    float residual[N], gradient[N], total[N], value[K];
    uint64_t index[K];
    size_t i;
    int step;

    (void)state;
    memset(residual, 0, sizeof residual);
    memset(total, 0, sizeof total);
    for (i = 0; i < N; i++) gradient[i] = (float)(i + 1) / 64;
    for (step = 0; step < STEPS; step++) {
        ddp_feedback_add(residual, gradient, N);
        select_k(residual, N, K, index, value);
        for (i = 0; i < K; i++) total[index[i]] += value[i];
        assert_int_equal(ddp_feedback_keep(residual, N, index, K, NULL), DDP_OK);
    }
    for (i = 0; i < N; i++) { /* multiples of 1/64 below 2^11: sums are exact */
        assert_true(total[i] + residual[i] == gradient[i] * (float)STEPS);
        assert_true(residual[i] < 12); /* no element waits for longer than the largest need */
    }
}

static void feedback_refuses_indexes_out_of_range_untouched(void **state)
{
    float r[3] = {1, 2, 3};
    const uint64_t index[2] = {0, 3};
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_feedback_keep(r, 3, index, 2, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "index[1] = 3"));
    assert_true(r[0] == 1);
    assert_int_equal(ddp_feedback_subtract("DDPC", 4, r, 3, &err), DDP_FORMAT);
    assert_true(r[0] == 1);
}

/* ---- quantisation ---- */

static void check_quantised(ddp_packing packing, const float *x, size_t n)
{
    const double top = packing == DDP_PACK_INT8 ? 127 : 7;
    size_t bound = ddp_pack_bound(packing, n, n), bytes = 0, i, b;
    unsigned char *out = (unsigned char *)must(bound);
    float *y = (float *)must(n * sizeof *y), *z = (float *)must(n * sizeof *z);
    float *r = (float *)must(n * sizeof *r);
    ddp_error err;

    if (ddp_pack_quantised(packing, x, n, out, bound, &bytes, &err) != DDP_OK)
        fail_msg("%s", err.msg);
    assert_true(bytes == bound);
    if (ddp_unpack_store(out, bytes, y, n, &err) != DDP_OK) fail_msg("%s", err.msg);
    for (b = 0; b * 64 < n; b++) {
        double largest = 0, s;
        float scale;
        memcpy(&scale, out + 24 + 4 * b, sizeof scale);
        s = (double)scale;
        for (i = b * 64; i < n && i < b * 64 + 64; i++) {
            double q = s > 0 ? rint((double)y[i] / s) : 0, size = fabs((double)x[i]);
            if (size > largest) largest = size;
            assert_true(fabs(q) <= top);
            assert_true(fabs((double)x[i] - q * s) <= s / 2);
            assert_true(y[i] == (float)(q * s));
            assert_true(fabs((double)y[i]) <= (double)FLT_MAX);
        }
        /* the next finer scale could not hold the largest; this one can, but at the end of the
         * range of floats */
        assert_true(largest > 0 || s == 0);
        assert_true(top * s >= largest || largest > 0.999 * (double)FLT_MAX);
        assert_true(largest == 0 || top * (double)nextafterf(scale, 0) < largest);
    }
    memcpy(z, x, n * sizeof *z);
    memcpy(r, x, n * sizeof *r);
    assert_int_equal(ddp_unpack_add(out, bytes, z, n, NULL), DDP_OK);
    assert_int_equal(ddp_feedback_subtract(out, bytes, r, n, NULL), DDP_OK);
    for (i = 0; i < n; i++) {
        volatile float sum = x[i] + y[i], rest = x[i] - y[i];
        float a = sum, c = rest;
        assert_true(same_bits(&a, z + i, 1) && same_bits(&c, r + i, 1));
    }
    free(out);
    free(y);
    free(z);
    free(r);
}

static void a_level_is_off_by_half_a_scale_at_most(void **state)
{
    static const size_t sizes[] = {1, 2, 63, 64, 65, 127, 1000};
    static const double scales[] = {1, 1e-3, 1e30, 1e-30, 1e-38, 3e-44, 1e37};
    size_t s, j, i;
    int p;

    (void)state;
    for (p = 0; p < 2; p++)
        for (s = 0; s < 7; s++)
            for (j = 0; j < 7; j++) {
                ddp_packing packing = p ? DDP_PACK_INT4 : DDP_PACK_INT8;
                float *x = normals(sizes[s], j);
                for (i = 0; i < sizes[s]; i++) x[i] = (float)((double)x[i] * scales[j]);
                check_quantised(packing, x, sizes[s]);
                if (j == 0) /* small whole numbers: exact halves of a level */
                    for (i = 0; i < sizes[s]; i++) x[i] = (float)(i % 255) - 127;
                if (j == 1) /* zeros of both signs, and a block of its own for them */
                    for (i = 0; i < sizes[s]; i++) x[i] = i < 64 ? (i % 2 ? 0.0f : -0.0f) : x[i];
                if (j == 2) x[sizes[s] / 2] = -FLT_MAX;
                if (j == 3) x[sizes[s] / 2] = FLT_TRUE_MIN;
                if (j == 4)
                    for (i = 0; i < sizes[s]; i++) x[i] = (float)i * FLT_TRUE_MIN;
                check_quantised(packing, x, sizes[s]);
                free(x);
            }
}

static void only_finite_numbers_are_quantised(void **state)
{
    float x[70];
    unsigned char out[200];
    size_t bytes = 5;
    ddp_error err;

    (void)state;
    memset(x, 0, sizeof x);
    memset(out, 7, sizeof out);
    x[69] = INFINITY;
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT8, x, 70, out, 200, &bytes, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "x[69] = inf"));
    x[2] = NAN;
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT4, x, 70, out, 200, &bytes, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "x[2]"));
    assert_int_equal(ddp_pack_quantised(DDP_PACK_I64, x, 70, out, 200, &bytes, &err), DDP_ARG);
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT8, x, 0, out, 200, &bytes, &err), DDP_ARG);
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT8, x, 70, out, 101, &bytes, &err), DDP_ARG);
    assert_true(bytes == 5 && out[0] == 7);
}

/* ---- hostile bytes ---- */

/* Any outcome is fine but a touched array on refusal, or (under the sanitizers) a stray access. */
static int receive(const unsigned char *message, size_t bytes, size_t n)
{
    unsigned char *exact = (unsigned char *)must(bytes);
    float *x = (float *)must(n * sizeof *x);
    ddp_error err;
    ddp_status st;
    size_t i;

    memcpy(exact, message, bytes);
    for (i = 0; i < n; i++) x[i] = 1;
    err.msg[0] = 0;
    st = ddp_unpack_add(exact, bytes, x, n, &err);
    if (st != DDP_OK) {
        assert_int_equal(st, DDP_FORMAT);
        assert_true(err.msg[0] != 0);
        for (i = 0; i < n; i++) assert_true(x[i] == 1);
    }
    free(exact);
    free(x);
    return st == DDP_OK;
}

static sent send_any(int kind, size_t n)
{
    sent s;
    size_t bound = ddp_pack_bound((ddp_packing)kind, n, n);

    if (kind <= (int)DDP_PACK_DELTA) return send_k((ddp_packing)kind, n, n / 50 + 1, 8);
    memset(&s, 0, sizeof s);
    s.n = n;
    s.x = normals(n, 8);
    s.message = (unsigned char *)must(bound);
    if (kind == (int)DDP_PACK_DENSE)
        assert_int_equal(ddp_pack_dense(s.x, n, s.message, bound, &s.bytes, NULL), DDP_OK);
    else
        assert_int_equal(ddp_pack_quantised((ddp_packing)kind, s.x, n, s.message, bound, &s.bytes,
                                            NULL), DDP_OK);
    return s;
}

static void damaged_messages_are_refused_or_harmless(void **state)
{
    ddp_rng r = ddp_rng_seed(6, 6);
    int kind, round;

    (void)state;
    for (kind = (int)DDP_PACK_I64; kind <= (int)DDP_PACK_INT4; kind++) {
        sent s = send_any(kind, 301);
        size_t cut;

        assert_true(receive(s.message, s.bytes, 301));
        assert_false(receive(s.message, s.bytes, 300));
        assert_false(receive(s.message, s.bytes, 302));
        for (cut = 0; cut < s.bytes; cut++) assert_false(receive(s.message, cut, 301));
        for (round = 0; round < 4000; round++) {
            unsigned char *bad = (unsigned char *)must(s.bytes + 8);
            int hits = 1 + (int)ddp_rng_below(&r, 4);
            size_t longer = round % 8 ? 0 : (size_t)ddp_rng_below(&r, 9);
            memset(bad + s.bytes, 0, 8);
            memcpy(bad, s.message, s.bytes);
            while (hits--) { /* half of them in the header */
                size_t range = round % 2 ? DDP_PACK_HEAD : s.bytes;
                bad[ddp_rng_below(&r, range)] = round % 3 ? (unsigned char)ddp_rng_u64(&r) : 255;
            }
            receive(bad, s.bytes + longer, 301);
            free(bad);
        }
        sent_free(&s);
    }
}

static void put_u64(unsigned char *p, uint64_t v)
{
    int i;

    for (i = 0; i < 8; i++) p[i] = (unsigned char)(v >> 8 * i);
}

static void each_rule_of_a_message_is_enforced(void **state)
{
    static const struct {
        int           at;
        unsigned char is;
    } header[] = {{0, 'X'}, {4, 2},  {5, 0},  {5, 7},   {5, 255},  {6, 1},   {7, 1},
                  {8, 11},  {16, 0}, {16, 3}, {16, 11}, {23, 255}, {15, 128}};
    unsigned char good[24 + 24], bad[64];
    const uint64_t index[2] = {4, 9};
    const float value[2] = {1, 2};
    size_t bytes, i;

    (void)state;
    assert_int_equal(ddp_pack_sparse(DDP_PACK_I64, 10, 2, index, value, good, sizeof good, &bytes,
                                     NULL), DDP_OK);
    assert_true(bytes == sizeof good && receive(good, bytes, 10));
    for (i = 0; i < sizeof header / sizeof header[0]; i++) {
        memcpy(bad, good, bytes);
        bad[header[i].at] = header[i].is;
        assert_false(receive(bad, bytes, 10));
    }
    memcpy(bad, good, bytes);
    put_u64(bad + 24, 9); /* twice the same */
    assert_false(receive(bad, bytes, 10));
    put_u64(bad + 24, UINT64_MAX);
    assert_false(receive(bad, bytes, 10));
    put_u64(bad + 24, 3);
    put_u64(bad + 32, 10); /* out of range */
    assert_false(receive(bad, bytes, 10));
    put_u64(bad + 32, 2); /* descending */
    assert_false(receive(bad, bytes, 10));
    memcpy(bad, good, bytes);
    bad[24 + 16 + 3] = 0x7f;
    bad[24 + 16 + 2] = 0xc0; /* NaN */
    assert_false(receive(bad, bytes, 10));
}

static void each_rule_of_a_gap_is_enforced(void **state)
{
    const uint64_t index[2] = {4, 200};
    const float value[2] = {1, 2};
    unsigned char m[64];
    size_t bytes, i;

    (void)state;
    assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, 300, 2, index, value, m, sizeof m, &bytes,
                                     NULL), DDP_OK);
    assert_int_equal((int)bytes, 24 + 8 + 3); /* 4, then 195 = 0xc3 0x01 */
    assert_true(receive(m, bytes, 300));
    m[34] = 3; /* 451: out of range */
    assert_false(receive(m, bytes, 300));
    m[34] = 0; /* 67 in two bytes: longer than needed */
    assert_false(receive(m, bytes, 300));
    m[34] = 0x81; /* ends within a gap */
    assert_false(receive(m, bytes, 300));
    m[33] = 3, m[34] = 1; /* complete before the end */
    assert_false(receive(m, bytes, 300));
    memset(m + 28, 255, 20); /* a gap without end; n large, so that the size is allowed */
    put_u64(m + 8, (uint64_t)1 << 40);
    put_u64(m + 16, 1);
    for (i = 28; i < 48; i++) {
        float one = 1;
        assert_int_equal(ddp_unpack_add(m, i, &one, (size_t)1 << 40, NULL), DDP_FORMAT);
    }
}

static void each_rule_of_levels_is_enforced(void **state)
{
    float x[3] = {1, -1, 0.5f}, nan = NAN, minus = -1, big = FLT_MAX;
    unsigned char m[64];
    size_t bytes;
    int p;

    (void)state;
    for (p = 0; p < 2; p++) {
        ddp_packing packing = p ? DDP_PACK_INT4 : DDP_PACK_INT8;
        assert_int_equal(ddp_pack_quantised(packing, x, 3, m, sizeof m, &bytes, NULL), DDP_OK);
        assert_true(receive(m, bytes, 3));
        m[28] = p ? 0x01 : 0x80; /* level -8 or -128 */
        assert_false(receive(m, bytes, 3));
        ddp_pack_quantised(packing, x, 3, m, sizeof m, &bytes, NULL);
        memcpy(m + 24, &nan, 4);
        assert_false(receive(m, bytes, 3));
        memcpy(m + 24, &minus, 4);
        assert_false(receive(m, bytes, 3));
        memcpy(m + 24, &big, 4);
        assert_false(receive(m, bytes, 3));
    }
    ddp_pack_quantised(DDP_PACK_INT4, x, 3, m, sizeof m, &bytes, NULL);
    m[29] = (unsigned char)(m[29] & 15); /* the unused half */
    assert_false(receive(m, bytes, 3));
}

static ddp_error refused(ddp_packing packing, size_t n, size_t k, const uint64_t *index,
                         const float *value, size_t capacity)
{
    unsigned char out[100];
    size_t bytes = 1;
    ddp_error err;

    memset(out, 7, sizeof out);
    assert_int_not_equal(ddp_pack_sparse(packing, n, k, index, value, out, capacity, &bytes, &err),
                         DDP_OK);
    assert_true(bytes == 1 && out[0] == 7 && out[99] == 7);
    return err;
}

static void the_sender_refuses_what_the_receiver_would(void **state)
{
    const uint64_t twice[2] = {4, 4}, beyond[2] = {4, 10}, good[2] = {4, 9};
    float value[2] = {1, 2};
    ddp_error err;
    size_t bytes;

    (void)state;
    err = refused(DDP_PACK_I32, 10, 2, twice, value, 100);
    assert_true(err.code == DDP_ARG && strstr(err.msg, "index[1] = 4"));
    assert_int_equal(refused(DDP_PACK_I32, 10, 2, beyond, value, 100).code, DDP_ARG);
    assert_int_equal(refused(DDP_PACK_INT8, 10, 2, good, value, 100).code, DDP_ARG);
    assert_int_equal(refused(DDP_PACK_I32, 10, 0, good, value, 100).code, DDP_ARG);
    assert_int_equal(refused(DDP_PACK_I32, 1, 2, good, value, 100).code, DDP_ARG);
    err = refused(DDP_PACK_I32, 10, 2, good, value, 39);
    assert_true(err.code == DDP_ARG && strstr(err.msg, "needs 40 bytes"));
    assert_int_equal(ddp_pack_sparse(DDP_PACK_I32, 10, 2, good, value, NULL, 100, &bytes, NULL),
                     DDP_ARG);
    value[1] = NAN;
    err = refused(DDP_PACK_I32, 10, 2, good, value, 100);
    assert_true(err.code == DDP_NUMERIC && strstr(err.msg, "element 9"));
}

static void names_of_packings_are_what_the_programs_spell(void **state)
{
    ddp_packing p;
    ddp_error err;
    int i;

    (void)state;
    for (i = (int)DDP_PACK_I64; i <= (int)DDP_PACK_INT4; i++) {
        assert_int_equal(ddp_packing_named(ddp_packing_name((ddp_packing)i), &p, NULL), DDP_OK);
        assert_int_equal((int)p, i);
    }
    assert_string_equal(ddp_packing_name(DDP_PACK_DEFAULT), "delta");
    assert_string_equal(ddp_packing_name((ddp_packing)7), "unknown");
    assert_int_equal(ddp_packing_named("zip", &p, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "packing zip"));
    assert_int_equal(ddp_packing_named(NULL, &p, &err), DDP_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sent_arrives_bit_for_bit),
        cmocka_unit_test(the_bytes_are_those_of_the_format),
        cmocka_unit_test(no_message_exceeds_its_bound),
        cmocka_unit_test(delta_takes_five_and_a_third_bytes_at_one_percent),
        cmocka_unit_test(dense_messages_keep_infinities_and_refuse_nan),
        cmocka_unit_test(every_element_is_sent_or_kept_back_bit_for_bit),
        cmocka_unit_test(with_feedback_nothing_is_lost_for_good),
        cmocka_unit_test(feedback_refuses_indexes_out_of_range_untouched),
        cmocka_unit_test(a_level_is_off_by_half_a_scale_at_most),
        cmocka_unit_test(only_finite_numbers_are_quantised),
        cmocka_unit_test(damaged_messages_are_refused_or_harmless),
        cmocka_unit_test(each_rule_of_a_message_is_enforced),
        cmocka_unit_test(each_rule_of_a_gap_is_enforced),
        cmocka_unit_test(each_rule_of_levels_is_enforced),
        cmocka_unit_test(the_sender_refuses_what_the_receiver_would),
        cmocka_unit_test(names_of_packings_are_what_the_programs_spell),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
