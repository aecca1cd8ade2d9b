/* [pure] Top-K and Random-K: Top-K selects the same set as a full sort, on ordinary and adversarial data. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "compress/topk.c"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* ---- data ---- */

enum { NORMAL, HEAVY, LEVELS, ZEROS, MOSTLY_ZERO, DENORMAL, RISING, FALLING, ROWS, BITS, KINDS };

static float *data_new(size_t n, int kind, uint64_t seed)
{
    float *x = (float *)malloc(n * sizeof *x);
    ddp_rng r = ddp_rng_seed(seed, (uint64_t)kind);
    size_t i;

    assert_non_null(x);
    for (i = 0; i < n; i++) {
        double g = ddp_rng_normal(&r), u = ddp_rng_uniform(&r);

        switch (kind) {
        case NORMAL:
            break;
        case HEAVY:
            g = g * g * g / (u + 1e-6);
            break;
        case LEVELS:
            g = floor(3 * g);
            break;
        case ZEROS:
            g = u < 0.5 ? 0.0 : -0.0;
            break;
        case MOSTLY_ZERO:
            g = u < 0.99 ? 0 : g;
            break;
        case DENORMAL:
            g = floor(20 * g) * (double)FLT_TRUE_MIN;
            break;
        case RISING:
            g = ((double)i + 1) * (u < 0.5 ? 1 : -1);
            break;
        case FALLING:
            g = ((double)n - (double)i) * (u < 0.5 ? 1 : -1);
            break;
        case ROWS:
            g = (i / 512 * 2654435761u >> 7 & 31) ? 0 : g;
            break;
        default:
            break;
        }
        x[i] = (float)g;
        if (kind == BITS) { /* any bit pattern except NaN, including infinities */
            uint32_t bits = (uint32_t)ddp_rng_u64(&r);
            if ((bits & 0x7fffffff) > 0x7f800000) bits &= 0xff800000;
            memcpy(x + i, &bits, sizeof bits);
        }
    }
    return x;
}

/* ---- oracle: a full sort that does not use bit patterns ---- */

typedef struct ranked {
    double size;
    size_t index;
} ranked;

static int ranked_order(const void *a, const void *b)
{
    const ranked *p = (const ranked *)a, *q = (const ranked *)b;

    if (p->size != q->size) return p->size > q->size ? -1 : 1;
    return p->index < q->index ? -1 : p->index > q->index;
}

static int index_order(const void *a, const void *b)
{
    uint64_t p = *(const uint64_t *)a, q = *(const uint64_t *)b;

    return (p > q) - (p < q);
}

static ranked *full_sort(const float *x, size_t n)
{
    ranked *all = (ranked *)malloc(n * sizeof *all);
    size_t i;

    assert_non_null(all);
    for (i = 0; i < n; i++) {
        all[i].size = fabs((double)x[i]);
        all[i].index = i;
    }
    qsort(all, n, sizeof *all, ranked_order);
    return all;
}

/* ---- the function under test, with exactly the scratch memory that it requires ---- */

typedef struct chosen {
    uint64_t *index;
    float *value;
} chosen;

static void chosen_free(chosen *c)
{
    free(c->index);
    free(c->value);
}

static chosen choose(const float *x, size_t n, size_t k)
{
    size_t bytes = ddp_topk_scratch(n, k);
    void *scratch = malloc(bytes);
    ddp_error err;
    chosen c;

    c.index = (uint64_t *)malloc(k * sizeof *c.index);
    c.value = (float *)malloc(k * sizeof *c.value);
    assert_true(scratch && c.index && c.value);
    memset(scratch, 0xa5, bytes);
    err.msg[0] = 0;
    if (ddp_topk(x, n, k, scratch, bytes, c.index, c.value, &err) != DDP_OK) fail_msg("%s", err.msg);
    free(scratch);
    return c;
}

static void same_as_sort(const float *x, size_t n, size_t k, const ranked *all, const char *what)
{
    uint64_t *want = (uint64_t *)malloc(k * sizeof *want);
    chosen c = choose(x, n, k);
    size_t i;

    assert_non_null(want);
    for (i = 0; i < k; i++) want[i] = all[i].index;
    qsort(want, k, sizeof *want, index_order);
    for (i = 0; i < k; i++)
        if (c.index[i] != want[i] || memcmp(c.value + i, x + want[i], sizeof *x) != 0)
            fail_msg("%s n %zu k %zu: element %zu is %zu, not %zu", what, n, k, i, (size_t)c.index[i],
                     (size_t)want[i]);
    free(want);
    chosen_free(&c);
}

static void topk_selects_the_same_set_as_a_full_sort(void **state)
{
    static const size_t sizes[] = {1, 2, 3, 15, 16, 17, 100, 4095, 4096, 4097, 32767, 32768, 40000, 100003};
    size_t s, j;
    int kind;

    (void)state;
    for (kind = 0; kind < KINDS; kind++)
        for (s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            size_t n = sizes[s];
            size_t ks[8];
            float *x = data_new(n, kind, s);
            ranked *all = full_sort(x, n);
            char what[32];

            ks[0] = 1;
            ks[1] = 2;
            ks[2] = n / 1000;
            ks[3] = n / 100;
            ks[4] = n / 10;
            ks[5] = n / 2;
            ks[6] = n - 1;
            ks[7] = n;
            snprintf(what, sizeof what, "kind %d", kind);
            for (j = 0; j < 8; j++)
                if (ks[j] >= 1 && ks[j] <= n) same_as_sort(x, n, ks[j], all, what);
            free(all);
            free(x);
        }
}

static void every_k_of_a_short_array_is_correct(void **state)
{
    size_t n, k;
    int kind;

    (void)state;
    for (kind = 0; kind < KINDS; kind++)
        for (n = 1; n <= 40; n++) {
            float *x = data_new(n, kind, 77 + n);
            ranked *all = full_sort(x, n);
            for (k = 1; k <= n; k++) same_as_sort(x, n, k, all, "short");
            free(all);
            free(x);
        }
}

/* The largest size is long enough for a list that is shorter than the array. */
/* Only long arrays are sampled. After two misleading samples all elements are collected (floor -1). The
 * second threshold admits twice as many elements. The list has room for 1.25 k + 65536 elements. */
static void long_arrays_are_sampled_twice_at_most(void **state)
{
    enum { BEHIND = 65536 };
    const size_t k = 1000, sizes[] = {32767, 32768, 1000000, 4500000};

    (void)state;
    for (int i = 0; i < 4; i++) {
        const size_t n = sizes[i], bytes = ddp_topk_scratch(n, k), most = n < 66786 ? n : 66786;
        float *x = data_new(n, 0, 8);
        unsigned char *scratch = (unsigned char *)malloc(bytes + BEHIND);
        ddp__topk_found f;
        int32_t once, twice;

        assert_true(bytes == 2 * 2048 * sizeof(size_t) + 12 * most);
        assert_non_null(scratch);
        memset(scratch + bytes, 0xa5, BEHIND);
        f.most = ddp__topk_most(n, k);
        f.index = (uint64_t *)(void *)scratch;
        f.bins = (size_t *)(f.index + f.most);
        f.bits = (uint32_t *)(f.bins + 2 * 2048);
        once = ddp__topk_floor(&f, x, n, k, 0);
        twice = ddp__topk_floor(&f, x, n, k, 1);
        if (n == 32767)
            assert_true(once == -1 && twice == -1);
        else
            assert_true(once > twice && twice > -1);
        assert_int_equal(ddp__topk_floor(&f, x, n, k, 2), -1);
        for (size_t b = 0; b < BEHIND; b++) assert_true(scratch[bytes + b] == 0xa5);
        free(scratch);
        free(x);
    }
}

/* Reference without scratch memory: finds the k-th magnitude bit by bit in 31 passes. */
static void topk_plain(const float *x, size_t n, size_t k, uint64_t *index, float *value)
{
    uint32_t nth = 0, bit;
    size_t i, reach, above = 0, kept = 0;

    for (bit = UINT32_C(1) << 30; bit; bit >>= 1) {
        for (i = reach = 0; i < n; i++) reach += (ddp__codec_bits(x[i]) & DDP__MAGNITUDE) >= (nth | bit);
        if (reach >= k) nth |= bit;
    }
    for (i = 0; i < n; i++) above += (ddp__codec_bits(x[i]) & DDP__MAGNITUDE) > nth;
    for (i = 0; kept < k; i++) {
        uint32_t magnitude = ddp__codec_bits(x[i]) & DDP__MAGNITUDE;

        if (magnitude < nth || (magnitude == nth && above == k)) continue;
        above += magnitude == nth;
        index[kept] = i;
        value[kept++] = x[i];
    }
}

static void long_arrays_equal_the_plain_reference(void **state)
{
    const size_t n = 300007;
    size_t ks[4], j;
    int kind;

    (void)state;
    ks[0] = 1;
    ks[1] = n / 1000;
    ks[2] = n / 100;
    ks[3] = n / 10;
    for (kind = 0; kind < KINDS; kind++) {
        float *x = data_new(n, kind, 5);
        for (j = 0; j < 4; j++) {
            size_t k = ks[j];
            uint64_t *index = (uint64_t *)malloc(k * sizeof *index);
            float *value = (float *)malloc(k * sizeof *value);
            chosen c = choose(x + (kind & 1), n - 1, k);

            assert_true(index && value);
            topk_plain(x + (kind & 1), n - 1, k, index, value);
            if (memcmp(index, c.index, k * sizeof *index) || memcmp(value, c.value, k * sizeof *value))
                fail_msg("kind %d k %zu", kind, k);
            chosen_free(&c);
            free(index);
            free(value);
        }
        free(x);
    }
}

/* If the bit patterns of an array count up, its sample is the list of the sampled positions. */
static unsigned char *sampled_positions(size_t n)
{
    unsigned char *seen = (unsigned char *)calloc(n, 1);
    float *x = (float *)malloc(n * sizeof *x);
    size_t m = n / 64, i;
    uint32_t *at = (uint32_t *)malloc(m * sizeof *at);
    uint32_t bits;

    assert_true(seen && x && at);
    assert_true(m < DDP__TOPK_SAMPLE);
    m -= m % DDP__TOPK_NEAR;
    for (bits = 0; bits < n; bits++) memcpy(x + bits, &bits, sizeof bits);
    ddp__topk_sample(x, n, at, m);
    for (i = 0; i < m; i++) seen[at[i]] = 1;
    free(x);
    free(at);
    return seen;
}

static void misleading_samples_do_not_change_the_result(void **state)
{
    const size_t n = 600000, k = 6000;
    unsigned char *seen = sampled_positions(n);
    float *x = (float *)malloc(n * sizeof *x);
    size_t i, sampled = 0;
    int way;

    (void)state;
    for (i = 0; i < n; i++) sampled += seen[i];
    assert_true(sampled > 5000 && sampled < 10000);
    for (way = 0; way < 5; way++) {
        ranked *all;
        for (i = 0; i < n; i++) {
            float size = (float)(i * 7919 % 20011 + 1) * FLT_TRUE_MIN; /* adjacent floats */
            /* 0: only sampled elements are large, so two samples admit too few; 1: sampled elements are 0,
             * so everything is collected and the list is pruned; 2, 3: the same with increasing or equal
             * values; 4: the same, and after the pruning a few elements are larger by one ulp */
            if (way == 0) x[i] = seen[i] ? size + 1 : size;
            if (way == 1) x[i] = seen[i] ? 0 : size;
            if (way == 2) x[i] = seen[i] ? 0 : (float)i + 1;
            if (way == 3) x[i] = seen[i] ? 0 : -7;
            if (way == 4) x[i] = seen[i] ? 0 : (i > n / 2 && i % 1000 == 0 ? 6 : 5) * FLT_TRUE_MIN;
        }
        all = full_sort(x, n);
        same_as_sort(x, n, k, all, "misled");
        same_as_sort(x, n, way == 0 ? sampled + 500 : k / 7, all, "misled");
        free(all);
    }
    free(seen);
    free(x);
}

/* The list is so full before the last, short piece of the array that it is pruned once more. Memory after
 * the scratch stays unchanged. */
static void full_list_is_pruned_for_the_last_piece(void **state)
{
    enum { BEHIND = 65536 };
    const size_t n = 73632, k = 6000, bytes = ddp_topk_scratch(n, k);
    float *x = (float *)calloc(n, sizeof *x);
    unsigned char *scratch = (unsigned char *)malloc(bytes + BEHIND);
    uint64_t *index = (uint64_t *)malloc(k * sizeof *index);
    size_t i;

    (void)state;
    assert_true(x && scratch && index);
    memset(scratch, 0xa5, bytes + BEHIND);
    assert_int_equal(ddp_topk(x, n, k, scratch, bytes, index, NULL, NULL), DDP_OK);
    for (i = 0; i < k; i++) assert_true(index[i] == i);
    for (i = 0; i < BEHIND; i++) assert_int_equal(scratch[bytes + i], 0xa5);
    free(x);
    free(scratch);
    free(index);
}

static void equal_magnitudes_are_selected_from_the_front(void **state)
{
    const float x[8] = {1, -2, 2, 0, -2, 2, 3, -0.0f};
    chosen c;

    (void)state;
    c = choose(x, 8, 3); /* 3 and the first two elements of magnitude 2 */
    assert_int_equal((int)c.index[0], 1);
    assert_int_equal((int)c.index[1], 2);
    assert_int_equal((int)c.index[2], 6);
    assert_true(c.value[0] == -2 && c.value[1] == 2 && c.value[2] == 3);
    chosen_free(&c);
    c = choose(x, 8, 7); /* 0.0 before -0.0 */
    assert_int_equal((int)c.index[3], 3);
    assert_int_equal((int)c.index[6], 6);
    chosen_free(&c);
}

static void infinities_rank_highest_and_denormals_count(void **state)
{
    float x[5];
    chosen c;

    (void)state;
    x[0] = FLT_MAX;
    x[1] = -INFINITY;
    x[2] = FLT_TRUE_MIN;
    x[3] = INFINITY;
    x[4] = 0;
    c = choose(x, 5, 2);
    assert_int_equal((int)c.index[0], 1);
    assert_int_equal((int)c.index[1], 3);
    chosen_free(&c);
    c = choose(x, 5, 4);
    assert_int_equal((int)c.index[2], 2);
    chosen_free(&c);
}

/* ---- errors ---- */

static void nan_is_named_and_nothing_is_written(void **state)
{
    static const size_t sizes[] = {1, 20, 5000, 300000};
    static const int signs[] = {0, 1};
    size_t s, j;

    (void)state;
    for (s = 0; s < 4; s++)
        for (j = 0; j < 12; j++) {
            size_t n = sizes[s], k = j % 3 == 0 ? 1 : j % 3 == 1 ? (n + 9) / 10 : n;
            size_t first = j < 3 ? 0 : j < 6 ? n - 1 : (n * 7 + j) / 11 % n;
            size_t bytes = ddp_topk_scratch(n, k), i;
            float *x = data_new(n, j % 2 ? ZEROS : BITS, j), *value = (float *)calloc(k, sizeof *x);
            uint64_t *index = (uint64_t *)calloc(k, sizeof *index);
            void *scratch = malloc(bytes);
            uint32_t nan = signs[j % 2] ? 0xff800001u : 0x7fffffffu; /* the smallest and the largest NaN */
            char name[40];
            ddp_error err;

            assert_true(value && index && scratch);
            memcpy(x + first, &nan, sizeof nan);
            nan ^= 0x80000002u; /* a second NaN after it, larger or smaller */
            if (first + 5 < n) memcpy(x + first + 5, &nan, sizeof nan);
            assert_int_equal(ddp_topk(x, n, k, scratch, bytes, index, value, &err), DDP_NUMERIC);
            snprintf(name, sizeof name, "x[%zu] is NaN", first);
            if (!strstr(err.msg, name)) fail_msg("n %zu k %zu: %s, not %s", n, k, err.msg, name);
            for (i = 0; i < k; i++) assert_true(index[i] == 0 && value[i] == 0);
            free(x);
            free(value);
            free(index);
            free(scratch);
        }
}

/* So many NaNs that the sample's threshold is a NaN, and the first NaN is below it. */
static void first_of_many_nans_is_named(void **state)
{
    const size_t n = 100003, k = 1000;
    const uint32_t most = 0xffffffffu, least = 0x7f800001u;
    size_t bytes = ddp_topk_scratch(n, k), i;
    float *x = data_new(n, NORMAL, 1);
    uint64_t *index = (uint64_t *)malloc(k * sizeof *index);
    void *scratch = malloc(bytes);
    ddp_error err;

    (void)state;
    assert_true(index && scratch);
    memcpy(x + 3, &least, sizeof least);
    for (i = 4; i < n; i++) memcpy(x + i, &most, sizeof most);
    assert_int_equal(ddp_topk(x, n, k, scratch, bytes, index, NULL, &err), DDP_NUMERIC);
    assert_non_null(strstr(err.msg, "x[3] is NaN"));
    free(x);
    free(index);
    free(scratch);
}

static void invalid_arguments_fail_with_an_error(void **state)
{
    float x[4] = {1, 2, 3, 4};
    uint64_t index[5] = {9, 9, 9, 9, 9}, *scratch;
    size_t bytes = ddp_topk_scratch(4, 4);
    ddp_error err;

    (void)state;
    scratch = (uint64_t *)malloc(bytes);
    assert_non_null(scratch);
    assert_int_equal(ddp_topk(x, 4, 0, scratch, bytes, index, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "k = 0 of n = 4"));
    assert_int_equal(ddp_topk(x, 4, 5, scratch, bytes, index, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "k = 5 of n = 4"));
    assert_int_equal(ddp_topk(x, 0, 0, scratch, bytes, index, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_topk(x, 4, 2, scratch, 8, index, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "8 bytes"));
    assert_int_equal(ddp_topk(x, 4, 2, (char *)scratch + 4, bytes, index, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "aligned"));
    assert_int_equal(ddp_topk(x, 4, 2, NULL, bytes, index, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_topk(NULL, 4, 2, scratch, bytes, index, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_topk(x, 4, 2, scratch, bytes, NULL, NULL, &err), DDP_ARG);
    assert_int_equal((int)index[0], 9);
    assert_int_equal(ddp_topk(x, 4, 2, scratch, bytes, index, NULL, NULL), DDP_OK);
    assert_true(index[0] == 2 && index[1] == 3 && index[2] == 9);
    assert_true(ddp_topk_scratch(4, 0) == 0 && ddp_topk_scratch(4, 5) == 0);
    assert_true(ddp_topk_scratch(SIZE_MAX, SIZE_MAX) == 0);
    assert_int_equal(ddp_topk(x, SIZE_MAX, SIZE_MAX, scratch, bytes, index, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "ask ddp_topk_scratch"));
    free(scratch);
}

/* ---- Random-K ---- */

static void random_k_draws_every_set_equally_often(void **state)
{
    enum { N = 6, K = 3, DRAWS = 20000 };
    static const float x[N] = {0, 1, 2, 3, 4, 5};
    int seen[1 << N], sets = 0, b;
    double chi = 0, each = DRAWS / 20; /* 6 over 3 */
    uint64_t seed, index[K], scratch[1];
    float value[K];

    (void)state;
    memset(seen, 0, sizeof seen);
    for (seed = 0; seed < DRAWS; seed++) {
        unsigned set = 0;
        assert_int_equal(ddp_randomk(x, N, K, seed, scratch, sizeof scratch, index, value, NULL), DDP_OK);
        for (b = 0; b < K; b++) {
            assert_true(index[b] < N && (b == 0 || index[b] > index[b - 1]));
            assert_true(value[b] == (float)index[b]);
            set |= 1u << index[b];
        }
        seen[set]++;
    }
    for (b = 0; b < 1 << N; b++)
        if (seen[b]) {
            sets++;
            chi += (seen[b] - each) * (seen[b] - each) / each;
        }
    assert_int_equal(sets, 20);
    assert_true(chi < 44); /* 19 degrees of freedom: exceeded once in 1,000 */
}

static void random_k_is_reproducible_and_covers_its_range(void **state)
{
    const size_t n = 100003;
    float *x = data_new(n, NORMAL, 1);
    uint64_t *index = (uint64_t *)malloc(n * sizeof *index);
    size_t bytes = ddp_randomk_scratch(n), i, k;
    void *scratch = malloc(bytes);
    ddp_error err;
    uint64_t hash = 0;

    (void)state;
    assert_true(index && scratch);
    assert_int_equal(ddp_randomk(x, n, 1000, 42, scratch, bytes, index, NULL, NULL), DDP_OK);
    for (i = 0; i < 1000; i++) hash = hash * 31 + index[i];
    assert_true(hash == UINT64_C(14689230344691730927));
    for (k = n - 1; k <= n; k++) {
        assert_int_equal(ddp_randomk(x, n, k, 3, scratch, bytes, index, NULL, NULL), DDP_OK);
        for (i = 1; i < k; i++) assert_true(index[i] > index[i - 1] && index[i] < n);
    }
    index[0] = 7;
    x[n - 1] = NAN; /* the last index that is drawn */
    assert_int_equal(ddp_randomk(x, n, n, 3, scratch, bytes, index, NULL, &err), DDP_NUMERIC);
    assert_true(index[0] == 7);
    for (i = 0; i < n; i++) x[i] = NAN;
    assert_int_equal(ddp_randomk(x, n, 5, 3, scratch, bytes, index, NULL, &err), DDP_NUMERIC);
    assert_true(index[0] == 7);
    assert_int_equal(ddp_randomk(x, n, n + 1, 3, scratch, bytes, index, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_randomk(x, n, 5, 3, scratch, bytes - 1, index, NULL, &err), DDP_ARG);
    free(x);
    free(index);
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topk_selects_the_same_set_as_a_full_sort),
        cmocka_unit_test(every_k_of_a_short_array_is_correct),
        cmocka_unit_test(long_arrays_are_sampled_twice_at_most),
        cmocka_unit_test(long_arrays_equal_the_plain_reference),
        cmocka_unit_test(misleading_samples_do_not_change_the_result),
        cmocka_unit_test(full_list_is_pruned_for_the_last_piece),
        cmocka_unit_test(equal_magnitudes_are_selected_from_the_front),
        cmocka_unit_test(infinities_rank_highest_and_denormals_count),
        cmocka_unit_test(nan_is_named_and_nothing_is_written),
        cmocka_unit_test(first_of_many_nans_is_named),
        cmocka_unit_test(invalid_arguments_fail_with_an_error),
        cmocka_unit_test(random_k_draws_every_set_equally_often),
        cmocka_unit_test(random_k_is_reproducible_and_covers_its_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
