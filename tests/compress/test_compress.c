/* [pure] Messages of the compressors: round trips, error feedback, and damaged or hostile bytes. */
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

/* A Top-K selection and its message, in blocks of exactly the required size. */
typedef struct sent {
    size_t n, k, bytes;
    float *x, *value;
    uint64_t *index;
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

static int same_bits(const float *a, const float *b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

/* ---- round trips ---- */

static void messages_arrive_bit_identical(void **state)
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

static void message_bytes_match_the_documented_format(void **state)
{
    const uint64_t index[3] = {1, 129, 16514}; /* gaps 1, 127, 16384 */
    const float value[3] = {1, -2, 0.5f};
    static const unsigned char head[24] = {'D', 'D', 'P', 'C', 1, 3, 0, 0, 0x20, 0x4e};
    static const unsigned char tail[17] = {0, 0, 0x80, 0x3f, 0,   0,    0,    0xc0, 0,
                                           0, 0, 0x3f, 1,    127, 0x80, 0x80, 1};
    unsigned char out[64];
    size_t bytes = 0;

    (void)state;
    assert_int_equal(ddp_pack_sparse(DDP_PACK_DEFAULT, 20000, 3, index, value, out, sizeof out, &bytes, NULL),
                     DDP_OK);
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

/* The size bound of delta holds for the worst gaps. A single element at the end reaches it. */
static void messages_never_exceed_their_size_bound(void **state)
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
                                             sizeof out, &bytes, NULL),
                             DDP_OK);
            most = ddp_pack_bound(DDP_PACK_DELTA, index[k - 1] + 1, k);
            assert_true(bytes <= most);
        }
    for (i = 0; i < 300; i++) index[i] = i + i / 3 * 128; /* every third gap is 128 */
    assert_int_equal(
        ddp_pack_sparse(DDP_PACK_DELTA, index[299] + 1, 300, index, value, out, sizeof out, &bytes, NULL),
        DDP_OK);
    assert_int_equal((int)bytes, 24 + 1200 + 300 + 99);
    assert_true(bytes <= ddp_pack_bound(DDP_PACK_DELTA, index[299] + 1, 300));
    index[0] = n - 1;
    assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, n, 1, index, value, out, sizeof out, &bytes, NULL),
                     DDP_OK);
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

static void dense_messages_keep_infinities_and_reject_nan(void **state)
{
    const size_t n = 1001;
    float *x = normals(n, 4), *y = normals(n, 5), *z = normals(n, 5);
    size_t bound = ddp_pack_bound(DDP_PACK_DENSE, n, n), bytes = 0, i;
    unsigned char *out = (unsigned char *)must(bound);
    ddp_error err;

    (void)state;
    x[4] = -0.0f;
    assert_int_equal(ddp_pack_dense(x, n, out, bound, &bytes, NULL), DDP_OK);
    assert_true(bytes == bound);
    for (i = 0; i < n; i++) z[i] += x[i];
    assert_int_equal(ddp_unpack_add(out, bytes, y, n, NULL), DDP_OK);
    assert_true(same_bits(y, z, n));
    x[3] = -INFINITY;
    assert_int_equal(ddp_pack_dense(x, n, out, bound, &bytes, NULL), DDP_OK);
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

/* Memory after the message and after the array is not read. The test fills it with NaN. */
static void memory_after_an_array_is_not_read(void **state)
{
    enum { MOST = 140 };
    float x[2 * MOST], y[MOST];
    unsigned char out[24 + 8 * MOST];
    size_t bytes;

    (void)state;
    for (size_t n = 1; n <= MOST; n++) {
        for (size_t i = 0; i < 2 * MOST; i++) x[i] = i < n ? 1 : NAN;
        memset(out, 0xff, sizeof out);
        assert_true(ddp__first_nan(x, n) == n);
        /* values after the end may be below the bound, too */
        assert_true(ddp__first_from(x, n, 0x7fc00001) == n);
        for (size_t at = 0; at < n; at++) {
            x[at] = NAN;
            assert_true(ddp__first_nan(x, n) == at);
            x[at] = 1;
        }
        for (size_t i = 0; i < n; i++) y[i] = 1;
        assert_int_equal(ddp_pack_dense(x, n, out, sizeof out, &bytes, NULL), DDP_OK);
        assert_int_equal(ddp_unpack_add(out, bytes, y, n, NULL), DDP_OK);
        for (size_t i = 0; i < n; i++) assert_true(y[i] == 2);
    }
}

/* The length of a payload gives its number of values. Half-byte codings have an odd number only at the
 * end. */
static void payload_length_gives_the_number_of_values(void **state)
{
    ddp__frame f;

    (void)state;
    memset(&f, 0, sizeof f);
    for (int coding = (int)DDP_AS_FLOAT; coding <= (int)DDP_AS_E3M0; coding++)
        for (uint32_t n = 1; n < 200; n++) {
            const int halves = coding == (int)DDP_AS_INT4 || coding == (int)DDP_AS_E3M0;
            f.coding = coding;
            f.length = (uint32_t)ddp__frame_payload(coding, n);
            f.offset = 128;
            f.count = 128 + n;
            assert_true(ddp__frame_values(&f) == n);
            f.count = 1000;
            assert_true(ddp__frame_values(&f) == (halves ? n + n % 2 : n));
            f.count = 127; /* offset beyond count: an invalid frame that other checks reject */
            assert_true(ddp__frame_values(&f) == (halves ? n + n % 2 : n));
        }
    f.coding = (int)DDP_AS_FLOAT;
    f.length = 5;
    assert_true(ddp__frame_values(&f) == SIZE_MAX);
    assert_string_equal(ddp__coding_name((int)DDP_AS_INT4), "int4 blocks");
    assert_string_equal(ddp__coding_name(-1), "an unknown coding");
    assert_string_equal(ddp__coding_name((int)DDP_AS_E3M0 + 2), "an unknown coding");
}

static void frame_of_unknown_type_is_rejected(void **state)
{
    unsigned char head[DDP__FRAME_BYTES];
    ddp__frame f, read;

    (void)state;
    for (int type = 0; type < 16; type++) {
        memset(&f, 0, sizeof f);
        f.type = type;
        f.p2p = 1;
        f.verb = 5;
        f.coding = (int)DDP_AS_INT4;
        f.seq = 7;
        f.count = 9;
        f.offset = 3;
        f.length = 11;
        f.layer = -2;
        f.sent = 13;
        f.check = 17;
        ddp__frame_encode(&f, head);
        memset(&read, 0, sizeof read);
        assert_int_equal(ddp__frame_decode(head, &read),
                         type >= (int)DDP__FRAME_PART && type <= (int)DDP__FRAME_SUMMED);
        assert_true(read.type == type && read.p2p == 1 && read.verb == 5 && read.coding == f.coding &&
                    read.layer == -2);
        assert_true(read.seq == 7 && read.count == 9 && read.offset == 3 && read.length == 11 &&
                    read.sent == 13);
        head[8] ^= 1; /* the checksum no longer matches */
        assert_int_equal(ddp__frame_decode(head, &read), 0);
    }
}

/* ---- error feedback ---- */

static void every_element_is_either_sent_or_retained_exactly(void **state)
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
        g[step] = step % 2 ? 1e30f : -0.0f;
        memcpy(before, residual, n * sizeof *before);
        assert_int_equal(ddp_feedback_add(residual, g, n, NULL), DDP_OK);
        for (i = 0; i < n; i++) before[i] += g[i];
        assert_true(same_bits(before, residual, n));
        select_k(residual, n, k, index, value);
        assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, n, k, index, value, message, bound, &bytes, NULL),
                         DDP_OK);
        assert_int_equal(ddp_feedback_keep(residual, n, index, k, NULL), DDP_OK);
        assert_int_equal(ddp_unpack_store(message, bytes, got, n, NULL), DDP_OK);
        for (zeros = i = 0; i < n; i++) {
            /* one of the two values is +0, the other equals the input */
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

/* With error feedback, a constant gradient arrives on average. Without it, small elements are never sent. */
static void error_feedback_eventually_sends_every_value(void **state)
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
        assert_int_equal(ddp_feedback_add(residual, gradient, N, NULL), DDP_OK);
        select_k(residual, N, K, index, value);
        for (i = 0; i < K; i++) total[index[i]] += value[i];
        assert_int_equal(ddp_feedback_keep(residual, N, index, K, NULL), DDP_OK);
    }
    for (i = 0; i < N; i++) { /* multiples of 1/64 below 2^11: sums are exact */
        assert_true(total[i] + residual[i] == gradient[i] * (float)STEPS);
        assert_true(residual[i] < 12); /* no element waits longer than the largest one requires */
    }
}

static void feedback_with_an_index_out_of_range_changes_nothing(void **state)
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

/* For packings without rounding, feedback leaves exactly the elements that the message does not contain. */
static void feedback_subtracts_messages_of_all_packings(void **state)
{
    const size_t n = 301;
    int kind;

    (void)state;
    for (kind = (int)DDP_PACK_I64; kind <= (int)DDP_PACK_DENSE; kind++) {
        size_t k = kind == (int)DDP_PACK_DENSE ? n : 30, bytes, i;
        size_t room = ddp_pack_bound((ddp_packing)kind, n, k);
        float *x = normals(n, 1), *r = normals(n, 2), *want = normals(n, 2);
        float *value = (float *)must(k * sizeof *value);
        uint64_t *index = (uint64_t *)must(k * sizeof *index);
        unsigned char *out = (unsigned char *)must(room);

        select_k(x, n, k, index, value);
        if (kind == (int)DDP_PACK_DENSE)
            assert_int_equal(ddp_pack_dense(x, n, out, room, &bytes, NULL), DDP_OK);
        else
            assert_int_equal(ddp_pack_sparse((ddp_packing)kind, n, k, index, value, out, room, &bytes, NULL),
                             DDP_OK);
        for (i = 0; i < k; i++) want[index[i]] -= value[i];
        assert_int_equal(ddp_feedback_subtract(out, bytes, r, n, NULL), DDP_OK);
        assert_true(same_bits(r, want, n));
        memcpy(r, x, n * sizeof *r);
        assert_int_equal(ddp_feedback_subtract(out, bytes, r, n, NULL), DDP_OK);
        for (i = 0; i < k; i++) assert_true(r[index[i]] == 0);
        free(x);
        free(r);
        free(want);
        free(value);
        free(index);
        free(out);
    }
}

/* For every packing and place in a block, overflow fails with the index and the value, and changes
 * nothing. */
static void overflow_fails_and_changes_nothing(void **state)
{
    enum { N = 150 };
    const size_t places[4] = {0, 63, 64, 149};
    float x[N], y[N], before[N];
    unsigned char out[24 + 12 * N];
    uint64_t index[N];
    size_t bytes, p, i;
    char name[40];
    ddp_error err;
    int kind, sign;

    (void)state;
    for (i = 0; i < N; i++) index[i] = i;
    for (kind = (int)DDP_PACK_I64; kind <= (int)DDP_PACK_INT4; kind++)
        for (p = 0; p < 4; p++)
            for (sign = -1; sign <= 1; sign += 2) {
                const size_t at = places[p];
                int sums = kind > (int)DDP_PACK_DENSE; /* only these packings cannot contain infinities */

                for (i = 0; i < N; i++) x[i] = y[i] = before[i] = 1;
                y[at] = before[at] = sums ? (float)sign * FLT_MAX : 1;
                x[at] = (float)sign * (sums ? FLT_MAX : INFINITY);
                if (kind < (int)DDP_PACK_DENSE)
                    assert_int_equal(
                        ddp_pack_sparse((ddp_packing)kind, N, N, index, x, out, sizeof out, &bytes, NULL),
                        DDP_OK);
                else if (kind == (int)DDP_PACK_DENSE)
                    assert_int_equal(ddp_pack_dense(x, N, out, sizeof out, &bytes, NULL), DDP_OK);
                else
                    assert_int_equal(
                        ddp_pack_quantised((ddp_packing)kind, x, N, out, sizeof out, &bytes, NULL), DDP_OK);
                snprintf(name, sizeof name, "x[%zu] = %g", at, (double)y[at]);
                assert_int_equal(ddp_unpack_add(out, bytes, y, N, &err), DDP_NUMERIC);
                if (!strstr(err.msg, name)) fail_msg("%s, not %s", err.msg, name);
                y[at] = before[at] = -y[at]; /* subtracting the same message overflows too */
                snprintf(name, sizeof name, "x[%zu] = %g", at, (double)y[at]);
                assert_int_equal(ddp_feedback_subtract(out, bytes, y, N, &err), DDP_NUMERIC);
                if (!strstr(err.msg, name)) fail_msg("%s, not %s", err.msg, name);
                assert_true(same_bits(y, before, N));
                if (sums) { /* values of opposite signs do not overflow */
                    assert_int_equal(ddp_unpack_add(out, bytes, y, N, NULL), DDP_OK);
                    assert_true(fabsf(y[at]) < 1e33f);
                    continue;
                }
                assert_int_equal(ddp_unpack_store(out, bytes, y, N, NULL), DDP_OK); /* storing does not add */
                assert_true(same_bits(y, x, N));
                y[at] = NAN; /* a NaN in the target stays NaN */
                x[at] = 1e38f;
                assert_int_equal(ddp_pack_sparse(DDP_PACK_I32, N, N, index, x, out, sizeof out, &bytes, NULL),
                                 DDP_OK);
                assert_int_equal(ddp_unpack_add(out, bytes, y, N, NULL), DDP_OK);
                assert_true(y[at] != y[at]);
            }
}

static void non_finite_gradients_fail_and_change_nothing(void **state)
{
    enum { N = 40 };
    const float bad[4] = {INFINITY, -INFINITY, NAN, FLT_MAX};
    float r[N], g[N], before[N];
    const float half = ldexpf(1, 103), less = nextafterf(half, 0);
    ddp_error err;
    size_t i, at;

    (void)state;
    for (i = 0; i < 4; i++)
        for (at = 0; at < N; at++) {
            size_t j;

            for (j = 0; j < N; j++) r[j] = before[j] = g[j] = 1;
            r[at] = before[at] = FLT_MAX;
            g[at] = bad[i];
            g[N - 1 - at] = at % 2 ? 1e38f : g[N - 1 - at]; /* large, but valid */
            assert_int_equal(ddp_feedback_add(r, g, N, &err), DDP_NUMERIC);
            assert_true(strstr(err.msg, "= 3.40282e+38 + ") != NULL);
            assert_true(same_bits(r, before, N));
        }
    r[0] = FLT_MAX; /* 2^103 is half an ulp of FLT_MAX: the smallest addend that overflows */
    assert_int_equal(ddp_feedback_add(r, &half, 1, &err), DDP_NUMERIC);
    assert_int_equal(ddp_feedback_add(r, &less, 1, &err), DDP_OK);
    assert_true(r[0] == FLT_MAX);
    assert_int_equal(ddp_feedback_add(NULL, g, N, &err), DDP_ARG);
    assert_int_equal(ddp_feedback_add(r, NULL, N, &err), DDP_ARG);
}

/* ---- quantisation ---- */

/* The documented rule, element by element, with a division for each. */
static void reference_message(ddp_packing packing, const float *x, size_t n, unsigned char *out)
{
    const double top = packing == DDP_PACK_INT8 ? 127 : 7;
    unsigned char *p = out + 24 + 4 * ((n + 63) / 64);
    size_t b, i;

    memset(p, 0, packing == DDP_PACK_INT8 ? n : (n + 1) / 2);
    if (packing == DDP_PACK_INT4 && n % 2) p[n / 2] = 8 << 4;
    for (b = 0; b * 64 < n; b++) {
        float largest = 0, s;

        for (i = b * 64; i < n && i < b * 64 + 64; i++)
            if (fabsf(x[i]) > largest) largest = fabsf(x[i]);
        s = (float)((double)largest / top);
        while ((float)((double)s * top) < largest) s = nextafterf(s, INFINITY);
        while (s > 0 && (float)((double)nextafterf(s, 0) * top) >= largest) s = nextafterf(s, 0);
        if ((double)s * top > (double)FLT_MAX) s = nextafterf(s, 0);
        memcpy(out + 24 + 4 * b, &s, sizeof s);
        for (i = b * 64; i < n && i < b * 64 + 64; i++) {
            double q = s > 0 ? (double)x[i] / (double)s : 0;
            int level = (int)(q + (q < 0 ? -0.5 : 0.5)), up = 4 * (int)(i % 2);

            if (packing == DDP_PACK_INT8)
                p[i] = (unsigned char)level;
            else
                p[i / 2] = (unsigned char)(p[i / 2] | (level + 8) << up);
        }
    }
}

static void same_as_reference(ddp_packing packing, const float *x, size_t n)
{
    size_t bound = ddp_pack_bound(packing, n, n), bytes;
    unsigned char *out = (unsigned char *)must(bound), *want = (unsigned char *)must(bound);

    assert_int_equal(ddp_pack_quantised(packing, x, n, out, bound, &bytes, NULL), DDP_OK);
    memcpy(want, out, 24);
    reference_message(packing, x, n, want);
    if (memcmp(out, want, bound) != 0) fail_msg("%s, n = %zu", ddp_packing_name(packing), n);
    free(out);
    free(want);
}

/* Scales with all kinds of mantissas and all exponents, and the floats next to each half level, where
 * multiplying by a reciprocal could round differently. */
static void quantising_by_a_reciprocal_equals_division(void **state)
{
    ddp_rng r = ddp_rng_seed(11, 0);
    float x[301];
    int round, i, p;

    (void)state;
    for (round = 0; round < 30000; round++)
        for (p = 0; p < 2; p++) {
            const int top = p ? 7 : 127;
            int power = round % 254 - 149 + (int)(round % 7 == 0 ? 20 : 0);
            uint32_t whole = 1 + (uint32_t)ddp_rng_below(&r, round % 3 ? 1u << 24 : 40);
            double s = ldexp((double)whole, power > 97 ? 97 : power);
            size_t n = 1 + (size_t)ddp_rng_below(&r, 301);

            if (s * top > 3.4e38) s /= 512;
            s = (double)(float)s;
            for (i = 0; i < (int)n; i++) {
                double q = (double)ddp_rng_below(&r, (uint64_t)top) + 0.5;
                float v = (float)(q * s);
                int kind = (int)ddp_rng_below(&r, 6);

                if (kind == 1) v = nextafterf(v, 0);
                if (kind == 2) v = nextafterf(v, INFINITY);
                if (kind == 3) v = (float)(ddp_rng_uniform(&r) * s * top);
                if ((double)v > top * s) v = 0;
                x[i] = ddp_rng_below(&r, 2) ? v : -v;
            }
            for (i = 0; i < (int)n; i += 64) x[i] = (float)(s * top); /* the scale is s again */
            same_as_reference(p ? DDP_PACK_INT4 : DDP_PACK_INT8, x, n);
        }
}

static void half_levels_round_away_from_zero(void **state)
{
    float x[255];
    unsigned char out[24 + 16 + 255];
    size_t bytes;
    int i;

    (void)state;
    for (i = 0; i < 64; i++) x[i] = ((float)i - 31.5f) * 2; /* the scale is 1 */
    for (i = 0; i < 32; i++) x[i] = -(x[63 - i] = (float)i + 0.5f);
    x[0] = 127;
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT8, x, 64, out, sizeof out, &bytes, NULL), DDP_OK);
    for (i = 1; i < 32; i++) {
        assert_int_equal((signed char)out[28 + i], -(i + 1));
        assert_int_equal(out[28 + 63 - i], i + 1);
    }
    assert_int_equal(out[28 + 63], 1);
    for (i = 0; i < 7; i++) x[i] = (float)i - 3 + (i < 3 ? -0.5f : 0.5f);
    x[7] = 7;
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT4, x, 8, out, sizeof out, &bytes, NULL), DDP_OK);
    assert_int_equal(out[28], (-4 + 8) | (-3 + 8) << 4);
    assert_int_equal(out[29], (-2 + 8) | (1 + 8) << 4);
    assert_int_equal(out[30], (2 + 8) | (3 + 8) << 4);
    assert_int_equal(out[31], (4 + 8) | (7 + 8) << 4);
}

/* By Sterbenz' lemma the residual of a quantised message is exact. */
static void quantisation_residual_is_exact(void **state)
{
    enum { N = 130 };
    float x[N], y[N], r[N];
    unsigned char out[24 + 12 + N];
    ddp_rng g = ddp_rng_seed(3, 3);
    size_t bytes, i;
    int round;

    (void)state;
    for (round = 0; round < 20000; round++) {
        ddp_packing packing = round % 2 ? DDP_PACK_INT4 : DDP_PACK_INT8;
        double size = ldexp(1, (int)ddp_rng_below(&g, 270) - 147);

        for (i = 0; i < N; i++) {
            x[i] = (float)(size * ddp_rng_normal(&g) * (i % 5 ? 1 : 0.01));
            if (fabsf(x[i]) > FLT_MAX) x[i] = -FLT_MAX;
        }
        memcpy(r, x, sizeof r);
        assert_int_equal(ddp_pack_quantised(packing, x, N, out, sizeof out, &bytes, NULL), DDP_OK);
        assert_int_equal(ddp_unpack_store(out, bytes, y, N, NULL), DDP_OK);
        assert_int_equal(ddp_feedback_subtract(out, bytes, r, N, NULL), DDP_OK);
        for (i = 0; i < N; i++) {
            float sum = y[i] + r[i];

            assert_true((double)y[i] + (double)r[i] == (double)x[i]); /* equal except for -0 */
            assert_true(sum == x[i] && (x[i] == 0 || same_bits(&sum, x + i, 1)));
        }
    }
}

static void check_quantised(ddp_packing packing, const float *x, size_t n)
{
    const double top = packing == DDP_PACK_INT8 ? 127 : 7;
    size_t bound = ddp_pack_bound(packing, n, n), bytes = 0, i, b;
    unsigned char *out = (unsigned char *)must(bound), *again = (unsigned char *)must(bound);
    float *y = (float *)must(n * sizeof *y), *z = (float *)must(n * sizeof *z);
    float *r = (float *)must(n * sizeof *r);
    ddp_error err;

    if (ddp_pack_quantised(packing, x, n, out, bound, &bytes, &err) != DDP_OK) fail_msg("%s", err.msg);
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
        /* the next smaller scale could not represent the largest value. This one can, except near FLT_MAX. */
        assert_true(largest > 0 || s == 0);
        assert_true((double)(float)(top * s) >= largest || largest > 0.999 * (double)FLT_MAX);
        assert_true(largest == 0 || (double)(float)(top * (double)nextafterf(scale, 0)) < largest);
    }
    memcpy(again, out, bound);
    assert_int_equal(ddp_pack_quantised(packing, y, n, again, bound, &bytes, NULL), DDP_OK);
    assert_int_equal(ddp_unpack_store(again, bytes, z, n, NULL), DDP_OK);
    for (i = 0; i < n; i++) { /* decoded values quantise to themselves */
        float scale;
        memcpy(&scale, out + 24 + 4 * (i / 64), sizeof scale);
        assert_true(scale < FLT_MIN || same_bits(y + i, z + i, 1));
    }
    for (i = 0; i < n; i++) z[i] = -x[i]; /* opposite signs: no sum overflows */
    memcpy(r, x, n * sizeof *r);
    assert_int_equal(ddp_unpack_add(out, bytes, z, n, NULL), DDP_OK);
    assert_int_equal(ddp_feedback_subtract(out, bytes, r, n, NULL), DDP_OK);
    for (i = 0; i < n; i++) {
        volatile float sum = -x[i] + y[i], rest = x[i] - y[i];
        float a = sum, c = rest;
        assert_true(same_bits(&a, z + i, 1) && same_bits(&c, r + i, 1));
    }
    free(again);
    free(out);
    free(y);
    free(z);
    free(r);
}

static void quantisation_error_is_at_most_half_a_scale(void **state)
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
                if (j == 0) /* small integers: exact half levels */
                    for (i = 0; i < sizes[s]; i++) x[i] = (float)(i % 255) - 127;
                if (j == 1) /* zeros of both signs, in a separate block */
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

/* Receives a message. It may fail or succeed, but a failure must not change the array. Sanitizers check
 * memory accesses. */
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
        assert_int_equal(ddp_pack_quantised((ddp_packing)kind, s.x, n, s.message, bound, &s.bytes, NULL),
                         DDP_OK);
    return s;
}

static void damaged_messages_fail_or_decode_safely(void **state)
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
        for (cut = 1; cut <= 8; cut++) { /* and no message may have extra bytes */
            unsigned char *more = (unsigned char *)must(s.bytes + 8);

            memset(more + s.bytes, 0, 8);
            memcpy(more, s.message, s.bytes);
            assert_false(receive(more, s.bytes + cut, 301));
            free(more);
        }
        for (round = 0; round < 4000; round++) {
            unsigned char *bad = (unsigned char *)must(s.bytes + 8);
            int hits = 1 + (int)ddp_rng_below(&r, 4);
            size_t longer = round % 8 ? 0 : (size_t)ddp_rng_below(&r, 9);
            memset(bad + s.bytes, 0, 8);
            memcpy(bad, s.message, s.bytes);
            while (hits--) { /* half of the changes are in the header */
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
        int at;
        unsigned char is;
    } header[] = {{0, 'X'}, {4, 2},  {5, 0},  {5, 7},   {5, 255},  {6, 1},   {7, 1},
                  {8, 11},  {16, 0}, {16, 3}, {16, 11}, {23, 255}, {15, 128}};
    unsigned char good[24 + 24], bad[64];
    const uint64_t index[2] = {4, 9};
    const float value[2] = {1, 2};
    size_t bytes, i;

    (void)state;
    assert_int_equal(ddp_pack_sparse(DDP_PACK_I64, 10, 2, index, value, good, sizeof good, &bytes, NULL),
                     DDP_OK);
    assert_true(bytes == sizeof good && receive(good, bytes, 10));
    for (i = 0; i < sizeof header / sizeof header[0]; i++) {
        memcpy(bad, good, bytes);
        bad[header[i].at] = header[i].is;
        assert_false(receive(bad, bytes, 10));
    }
    memcpy(bad, good, bytes);
    put_u64(bad + 24, 9); /* the same index twice */
    assert_false(receive(bad, bytes, 10));
    put_u64(bad + 24, UINT64_MAX);
    assert_false(receive(bad, bytes, 10));
    put_u64(bad + 24, 3);
    put_u64(bad + 32, 10); /* out of range */
    assert_false(receive(bad, bytes, 10));
    put_u64(bad + 32, 2); /* descending indices */
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
    float x[300];
    ddp_error err;

    (void)state;
    assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, 300, 2, index, value, m, sizeof m, &bytes, NULL),
                     DDP_OK);
    assert_int_equal((int)bytes, 24 + 8 + 3); /* 4, then 195 = 0xc3 0x01 */
    assert_true(receive(m, bytes, 300));
    m[34] = 3; /* 451: out of range */
    assert_false(receive(m, bytes, 300));
    m[34] = 0; /* 67 in two bytes, longer than needed */
    assert_false(receive(m, bytes, 300));
    m[34] = 0x81; /* ends inside a gap */
    assert_false(receive(m, bytes, 300));
    assert_int_equal(ddp_unpack_store(m, bytes, x, 300, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "gap 1 of the message, behind index 4,"));
    m[32] = m[33] = 0x80; /* the first gap does not end */
    assert_int_equal(ddp_unpack_store(m, bytes, x, 300, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "gap 0 of the message, behind index 0,"));
    m[32] = 4;
    m[33] = 3;
    m[34] = 1; /* complete before the end of the message */
    assert_false(receive(m, bytes, 300));
    memset(m + 28, 255, 20); /* a gap without end; n is large, so that the size is allowed */
    put_u64(m + 8, (uint64_t)1 << 40);
    put_u64(m + 16, 1);
    for (i = 28; i < 48; i++) {
        float one = 1;
        assert_int_equal(ddp_unpack_add(m, i, &one, (size_t)1 << 40, NULL), DDP_FORMAT);
    }
}

/* A gap of ten bytes can shift a bit beyond 64 bits: 2 << 63 must not become a gap of 0. */
static void gap_of_ten_bytes_does_not_wrap(void **state)
{
    unsigned char m[24 + 8 + 11];
    float none = 3;
    ddp_error err;

    (void)state;
    memset(m, 0, sizeof m);
    memcpy(m, "DDPC\1\3", 6);
    put_u64(m + 8, (uint64_t)1 << 40);
    put_u64(m + 16, 2);
    memset(m + 32, 0x80, 9); /* then 2, and the next gap 0 */
    m[41] = 2;
    assert_int_equal(ddp_unpack_add(m, sizeof m, &none, (size_t)1 << 40, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "gap 0"));
    assert_true(none == 3);
}

/* An invalid packing. C++ rejects a plain cast. */
static ddp_packing packing_of(int number)
{
    ddp_packing p;

    memcpy(&p, &number, sizeof p);
    return p;
}

/* Passes NULL for each pointer of each call in turn. */
static void missing_arguments_are_named(void **state)
{
    static uint64_t scratch[600000];
    const uint64_t index[2] = {4, 9};
    const double link_s[2] = {1, 2};
    const size_t count[2] = {10, 10};
    float value[2] = {1, 2}, x[10] = {1, 2, 3};
    unsigned char m[128];
    ddp_adatopk_options o;
    ddp_link_compression to[2];
    uint64_t at[2];
    float kept[2];
    size_t bytes;
    ddp_packed p;
    ddp_error err;

    (void)state;
    memset(&o, 0, sizeof o);
    o.ratio = 10;
#define MISSING(call, word)                                                                           \
    do {                                                                                              \
        memset(&err, 0, sizeof err);                                                                  \
        assert_int_equal(call, DDP_ARG);                                                              \
        if (!strstr(err.msg, word) || !strstr(err.msg, "NULL")) fail_msg("%s: '%s'", #call, err.msg); \
    } while (0)
    MISSING(ddp_pack_sparse(DDP_PACK_I64, 10, 2, NULL, value, m, sizeof m, &bytes, &err), "index");
    MISSING(ddp_pack_sparse(DDP_PACK_I64, 10, 2, index, NULL, m, sizeof m, &bytes, &err), "value");
    MISSING(ddp_pack_sparse(DDP_PACK_I64, 10, 2, index, value, m, sizeof m, NULL, &err), "bytes");
    MISSING(ddp_pack_dense(NULL, 10, m, sizeof m, &bytes, &err), "x or bytes");
    MISSING(ddp_pack_dense(x, 10, m, sizeof m, NULL, &err), "x or bytes");
    MISSING(ddp_packed_read(NULL, 10, &p, &err), "message");
    MISSING(ddp_packed_read(m, 10, NULL, &err), "out");
    assert_int_equal(ddp_pack_sparse(DDP_PACK_I64, 10, 2, index, value, m, sizeof m, &bytes, &err), DDP_OK);
    MISSING(ddp_unpack_store(m, bytes, NULL, 10, &err), "array");
    MISSING(ddp_feedback_keep(NULL, 10, index, 2, &err), "residual");
    MISSING(ddp_feedback_keep(x, 10, NULL, 2, &err), "index");
    MISSING(ddp_adatopk(NULL, count, 2, &o, to, &err), "link_s");
    MISSING(ddp_adatopk(link_s, NULL, 2, &o, to, &err), "count");
    MISSING(ddp_adatopk(link_s, count, 2, NULL, to, &err), "o ");
    MISSING(ddp_adatopk(link_s, count, 2, &o, NULL, &err), "out");
#undef MISSING
    assert_int_equal(ddp_pack_bound(packing_of(99), 10, 2), 0);
    assert_int_equal(ddp_sparse_bytes(10, 0), 0);
    assert_int_equal(ddp_sparse_bytes(10, DDP_SPARSE_CHUNK + 1), 0);
    assert_int_equal(ddp_sparse_scratch(0), 0);
    assert_int_equal(ddp_sparse_scratch(DDP_SPARSE_CHUNK + 1), 0);
    assert_int_equal(ddp_sparse_add(NULL, 1, 1, x, 10, &err), DDP_ARG);
    assert_int_equal(ddp_topk(x, 10, 2, scratch, 1, at, kept, &err), DDP_ARG);
    assert_int_equal(ddp_keep_count(10, 1e9), 1);
    assert_int_equal(ddp_keep_count(10, INFINITY), 1);
    assert_int_equal(ddp_keep_count(10, nextafter(1, 2)), 10);
    assert_int_equal(ddp_keep_count(10, 1), 10);
    assert_int_equal(ddp_keep_count(10, 0.5), 10);
}

static void message_errors_name_the_invalid_value(void **state)
{
    const uint64_t index[2] = {4, 9};
    float value[2] = {1, 2}, x[10];
    unsigned char m[64];
    size_t bytes;
    ddp_error err;

    (void)state;
    memset(x, 0, sizeof x);
    assert_int_equal(ddp_pack_sparse(packing_of(99), 10, 2, index, value, m, 64, &bytes, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "packing 99 (unknown)"));
    assert_int_equal(ddp_pack_quantised(packing_of(-3), x, 10, m, 64, &bytes, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "packing -3 (unknown)"));
    assert_int_equal(ddp_pack_dense(x, SIZE_MAX / 16, m, 64, &bytes, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "1 to 576460752303423487 elements"));
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT8, x, SIZE_MAX / 16, m, 64, &bytes, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "1 to 576460752303423487 elements"));
    assert_int_equal(ddp_pack_sparse(DDP_PACK_I64, 10, 2, index, value, m, 64, &bytes, &err), DDP_OK);
    put_u64(m + 32, 10);
    assert_int_equal(ddp_unpack_add(m, bytes, x, 10, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "index 1 of the message is 10, not below n = 10"));
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT4, x, 9, m, 64, &bytes, &err), DDP_OK);
    m[28 + 3] = 0x08; /* element 7 */
    assert_int_equal(ddp_unpack_add(m, bytes, x, 9, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "element 7 has the level -8"));
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT8, x, 10, m, 64, &bytes, &err), DDP_OK);
    m[28 + 9] = 0x80; /* in the second eight bytes */
    assert_int_equal(ddp_unpack_add(m, bytes, x, 10, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "element 9 has the level -128"));
    assert_int_equal(ddp_pack_sparse(DDP_PACK_DELTA, 300, 2, index, value, NULL, 64, &bytes, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "there are 0;"));
    assert_int_equal(ddp_packing_named("i64", NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "out is NULL"));
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
    m[29] = (unsigned char)(m[29] & 15); /* the unused half byte */
    assert_false(receive(m, bytes, 3));
}

static ddp_error refused(ddp_packing packing, size_t n, size_t k, const uint64_t *index, const float *value,
                         size_t capacity)
{
    unsigned char out[100];
    size_t bytes = 1;
    ddp_error err;

    memset(out, 7, sizeof out);
    assert_int_not_equal(ddp_pack_sparse(packing, n, k, index, value, out, capacity, &bytes, &err), DDP_OK);
    assert_true(bytes == 1 && out[0] == 7 && out[99] == 7);
    return err;
}

static void sender_rejects_the_same_values_as_the_receiver(void **state)
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
    assert_int_equal(ddp_pack_sparse(DDP_PACK_I32, 10, 2, good, value, NULL, 100, &bytes, NULL), DDP_ARG);
    value[1] = NAN;
    err = refused(DDP_PACK_I32, 10, 2, good, value, 100);
    assert_true(err.code == DDP_NUMERIC && strstr(err.msg, "element 9"));
}

static void packing_names_match_the_command_line(void **state)
{
    ddp_packing p;
    ddp_error err;
    int i;

    (void)state;
    for (i = (int)DDP_PACK_I64; i <= (int)DDP_PACK_E3M0; i++) {
        assert_int_equal(ddp_packing_named(ddp_packing_name((ddp_packing)i), &p, NULL), DDP_OK);
        assert_int_equal((int)p, i);
    }
    assert_string_equal(ddp_packing_name(DDP_PACK_DEFAULT), "delta");
    assert_string_equal(ddp_packing_name((ddp_packing)8), "unknown");
    assert_int_equal(ddp_packing_named("zip", &p, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "packing zip"));
    assert_int_equal(ddp_packing_named(NULL, &p, &err), DDP_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_bit_identical),
        cmocka_unit_test(message_bytes_match_the_documented_format),
        cmocka_unit_test(messages_never_exceed_their_size_bound),
        cmocka_unit_test(delta_takes_five_and_a_third_bytes_at_one_percent),
        cmocka_unit_test(dense_messages_keep_infinities_and_reject_nan),
        cmocka_unit_test(memory_after_an_array_is_not_read),
        cmocka_unit_test(payload_length_gives_the_number_of_values),
        cmocka_unit_test(frame_of_unknown_type_is_rejected),
        cmocka_unit_test(every_element_is_either_sent_or_retained_exactly),
        cmocka_unit_test(error_feedback_eventually_sends_every_value),
        cmocka_unit_test(feedback_with_an_index_out_of_range_changes_nothing),
        cmocka_unit_test(feedback_subtracts_messages_of_all_packings),
        cmocka_unit_test(overflow_fails_and_changes_nothing),
        cmocka_unit_test(non_finite_gradients_fail_and_change_nothing),
        cmocka_unit_test(quantising_by_a_reciprocal_equals_division),
        cmocka_unit_test(half_levels_round_away_from_zero),
        cmocka_unit_test(quantisation_residual_is_exact),
        cmocka_unit_test(quantisation_error_is_at_most_half_a_scale),
        cmocka_unit_test(only_finite_numbers_are_quantised),
        cmocka_unit_test(damaged_messages_fail_or_decode_safely),
        cmocka_unit_test(each_rule_of_a_message_is_enforced),
        cmocka_unit_test(each_rule_of_a_gap_is_enforced),
        cmocka_unit_test(gap_of_ten_bytes_does_not_wrap),
        cmocka_unit_test(missing_arguments_are_named),
        cmocka_unit_test(message_errors_name_the_invalid_value),
        cmocka_unit_test(each_rule_of_levels_is_enforced),
        cmocka_unit_test(sender_rejects_the_same_values_as_the_receiver),
        cmocka_unit_test(packing_names_match_the_command_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
