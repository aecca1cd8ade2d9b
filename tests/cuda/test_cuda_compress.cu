/* [test-all: compiles the GPU companion] Compression on the device is bit-identical to the CPU's. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/topk.cuh"
#include "cuda/quantise.cuh"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__CUDACC__)
#include <algorithm>
#include <cub/cub.cuh>
#endif /* include before cmocka, whose fail() is a macro */
extern "C" {
#include <cmocka.h>
}

/* ---- arrays on host and device ---- */

static void skip_without_device(void **state)
{
    int n = 0;

    (void)state;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 1) skip();
}

static void *device_new(size_t bytes)
{
    void *p = NULL;

    assert_int_equal(cudaMalloc(&p, bytes ? bytes : 1), cudaSuccess);
    return p;
}

static void *device_copy(const void *from, size_t bytes)
{
    void *p = device_new(bytes);

    assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return p;
}

static void device_get(void *to, const void *from, size_t bytes)
{
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}

static void device_free(void *a, void *b = NULL, void *c = NULL, void *d = NULL, void *e = NULL)
{
    void *const all[] = {a, b, c, d, e};

    for (size_t i = 0; i < 5; i++) assert_int_equal(cudaFree(all[i]), cudaSuccess);
}

static void host_free(void *a, void *b = NULL, void *c = NULL, void *d = NULL, void *e = NULL)
{
    void *const all[] = {a, b, c, d, e};

    for (size_t i = 0; i < 5; i++) free(all[i]);
}

static ddp_cuda_verdict *verdict_new(void)
{
    ddp_cuda_verdict *v = (ddp_cuda_verdict *)device_new(sizeof *v);

    assert_int_equal(cudaMemset(v, 0, sizeof *v), cudaSuccess);
    return v;
}

/* Expects a verdict of DDP_OK; frees it. */
static void verdict_good(ddp_cuda_verdict *v)
{
    ddp_error err;

    if (ddp_cuda_verdict_read(v, NULL, &err)) fail_msg("%s", err.msg);
    assert_int_equal(cudaFree(v), cudaSuccess);
}

/* Expects the CPU's status and message in the verdict; frees it. */
static void verdict_is(ddp_cuda_verdict *v, ddp_status code, const ddp_error *cpu)
{
    ddp_error err;

    assert_int_equal(ddp_cuda_verdict_read(v, NULL, &err), code);
    assert_string_equal(err.msg, cpu->msg);
    assert_int_equal(cudaFree(v), cudaSuccess);
}

static float *numbers(size_t n, uint64_t seed)
{
    ddp_rng r = ddp_rng_seed(seed, 0);
    float *x = (float *)malloc((n + 1) * sizeof *x);
    size_t i;

    assert_non_null(x);
    for (i = 0; i < n; i++) x[i] = (float)(ddp_rng_normal(&r) * 0.01);
    return x;
}

/* ---- Top-K ---- */

#if defined(__CUDACC__)
/* A stable sort by CUB keeps ties in the order of the array. */
static void check_by_sort(const float *x, size_t n, size_t k, const uint64_t *index)
{
    uint32_t *key = (uint32_t *)malloc(n * 4), *place = (uint32_t *)malloc(n * 4);
    uint32_t *keys, *keys_out, *places, *places_out;
    size_t bytes = 0, i;
    void *room;

    for (i = 0; i < n; i++) {
        memcpy(&key[i], &x[i], 4);
        key[i] &= 0x7fffffff;
        place[i] = (uint32_t)i;
    }
    keys = (uint32_t *)device_copy(key, n * 4);
    places = (uint32_t *)device_copy(place, n * 4);
    keys_out = (uint32_t *)device_new(n * 4);
    places_out = (uint32_t *)device_new(n * 4);
    cub::DeviceRadixSort::SortPairsDescending(NULL, bytes, keys, keys_out, places, places_out, (int)n);
    room = device_new(bytes);
    cub::DeviceRadixSort::SortPairsDescending(room, bytes, keys, keys_out, places, places_out, (int)n);
    device_get(place, places_out, k * 4);
    std::sort(place, place + k);
    for (i = 0; i < k; i++) assert_int_equal(index[i], place[i]);
    device_free(keys, keys_out, places, places_out, room);
    host_free(key, place);
}
#endif

/* x starts `shift` floats after a 16-byte boundary. */
static void check_topk(const float *x, size_t n, size_t k, size_t shift)
{
    const size_t cpu_bytes = ddp_topk_scratch(n, k), bytes = ddp_cuda_topk_scratch(n, k);
    uint64_t *want = (uint64_t *)malloc(k * sizeof *want), *got = (uint64_t *)malloc(k * sizeof *got);
    float *value = (float *)malloc(k * sizeof *value);
    uint64_t *index = (uint64_t *)device_new(k * sizeof *index);
    float *values = (float *)device_new(k * sizeof *values);
    float *array = (float *)device_new((n + shift) * sizeof *x);
    void *cpu_room = malloc(cpu_bytes), *room = device_new(bytes);
    ddp_cuda_verdict *v = verdict_new();
    ddp_error err;
    size_t i;

    assert_int_equal(cudaMemcpy(array + shift, x, n * sizeof *x, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(ddp_topk(x, n, k, cpu_room, cpu_bytes, want, NULL, &err), DDP_OK);
    if (ddp_cuda_topk(array + shift, n, k, room, bytes, index, values, v, NULL, &err))
        fail_msg("%s", err.msg);
    verdict_good(v);
    device_get(got, index, k * sizeof *got);
    device_get(value, values, k * sizeof *value);
    for (i = 0; i < k; i++) {
        if (got[i] != want[i])
            fail_msg("n = %zu, k = %zu: index %zu is %llu, but %llu on the CPU", n, k, i,
                     (unsigned long long)got[i], (unsigned long long)want[i]);
        assert_memory_equal(&value[i], &x[want[i]], sizeof *x);
    }
#if defined(__CUDACC__)
    check_by_sort(x, n, k, got);
#endif
    device_free(index, values, array, room);
    host_free(want, got, value, cpu_room);
}

/* All lengths and alignments: arrays end before, at and after a block's tile. */
static void topk_selects_the_same_set_as_the_cpu(void **state)
{
    const size_t tile = DDP__TOPK_TILE, sizes[] = {1, 5, 1000, tile - 1, tile, tile + 1, 3 * tile, 70001};
    size_t i;

    skip_without_device(state);
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t n = sizes[i];
        float *x = numbers(n, n);
        check_topk(x, n, 1, 0);
        check_topk(x, n, n, 2);
        check_topk(x, n, n / 100 + 1, 0);
        check_topk(x, n, n / 100 + 1, 1);
        check_topk(x, n, n / 2 + 1, 3);
        free(x);
    }
}

/* Ties, zeros of both signs, infinities, and arrays where more elements than the list holds share 11, 21 or
 * all 31 bits with the k-th. */
static void topk_keeps_ties_from_the_front(void **state)
{
    const size_t n = 73000; /* the list has 65536 + 2 k entries */
    float *x = (float *)malloc(n * sizeof *x);
    ddp_rng r = ddp_rng_seed(3, 0);
    size_t i;

    skip_without_device(state);
    assert_non_null(x);
    for (i = 0; i < n; i++) x[i] = i % 3 ? 0.5f : -0.5f;
    check_topk(x, n, 700, 0);
    check_topk(x, n, 1, 3);
    for (i = 0; i < n; i++) x[i] = i % 2 ? 0.0f : -0.0f;
    check_topk(x, n, 2345, 0);
    check_topk(x, n, n - 1, 0);
    for (i = 0; i < n; i += 1000) x[i] = i % 2000 ? INFINITY : -INFINITY;
    check_topk(x, n, 37, 0);
    check_topk(x, n, 200, 0);
    for (i = 0; i < n; i++) x[i] = 1 + (float)ddp_rng_below(&r, 1 << 20) / (1 << 23);
    check_topk(x, n, 3000, 0);
    for (i = 0; i < n; i++) x[i] = 1 + (float)ddp_rng_below(&r, 1000) / (1 << 23);
    check_topk(x, n, 3000, 1);
    for (i = 0; i < n; i++) x[i] = (float)(i < n / 2 ? n - i : i) / 1024;
    check_topk(x, n, 1000, 0);
    free(x);
}

/* A block has two tiles, and the last blocks have none. First a list, then too many ties for a list. */
static void topk_handles_chunks_of_several_tiles(void **state)
{
    const size_t n = (DDP__TOPK_BLOCKS + 3) * (size_t)DDP__TOPK_TILE - 5;
    float *x = numbers(n, 8);
    size_t i;

    skip_without_device(state);
    check_topk(x, n, n / 100, 0);
    for (i = 0; i < n; i++) x[i] = i % 50 ? 0.5f : 1;
    check_topk(x, n, n / 5 * 2, 1);
    free(x);
}

/* Each of 50 ties in five blocks is once the last one selected. Then almost all selected elements are in one
 * block. */
static void topk_handles_ties_across_blocks(void **state)
{
    const size_t tile = DDP__TOPK_TILE, n = 5 * tile;
    const float tie = 7 + 1023.0f / (1 << 21); /* the largest value of the last digit */
    float *x = numbers(n, 4);
    ddp_rng r = ddp_rng_seed(4, 0);
    size_t i, k;

    skip_without_device(state);
    for (i = 0; i < 50; i++) x[i * 819] = i % 2 ? tie : -tie;
    x[4000] = x[30000] = -9;
    for (k = 1; k < 54; k++) check_topk(x, n, k, 0);
    for (i = 0; i < n; i++) x[i] *= i / tile == 2 ? 1e3f : 1e-3f;
    for (k = tile - 2; k < tile + 2; k++) check_topk(x, n, k, 0);
    for (i = 0; i < n; i++) x[i] = (float)ddp_rng_below(&r, 3000) * 1e-45f; /* denormals, and zeros */
    for (k = 1; k <= n; k = 5 * k + 1) check_topk(x, n, k, 2);
    free(x);
}

/* The verdict names the first NaN, whatever its bits and block, as on the CPU. This call and later calls
 * write nothing. */
static void nan_is_reported_and_nothing_written(void **state)
{
    const size_t tile = DDP__TOPK_TILE, n = 2 * tile + 7, k = 10, first[] = {0, tile - 1, tile, n - 1};
    const size_t bytes = ddp_cuda_topk_scratch(n, k), cpu_bytes = ddp_topk_scratch(n, k);
    uint64_t mark[10], got[10], place = 30;
    size_t i;

    skip_without_device(state);
    memset(mark, 0x77, sizeof mark);
    for (i = 0; i < 8; i++) {
        const uint32_t bits = i % 2 ? 0xffc00000u : 0x7f800001u;
        float *x = numbers(n, i), *array, is = 0;
        uint64_t *where = (uint64_t *)device_copy(&place, sizeof place);
        uint64_t *index = (uint64_t *)device_copy(mark, sizeof mark);
        void *cpu_room = malloc(cpu_bytes), *room = device_new(bytes);
        ddp_cuda_verdict *v = verdict_new();
        ddp_error err, cpu;

        x[n - 1] = NAN;
        memcpy(&x[first[i / 2]], &bits, sizeof bits);
        array = (float *)device_copy(x, n * sizeof *x);
        assert_int_equal(ddp_topk(x, n, k, cpu_room, cpu_bytes, got, NULL, &cpu), DDP_NUMERIC);
        assert_int_equal(ddp_cuda_topk(array, n, k, room, bytes, index, NULL, v, NULL, &err), DDP_OK);
        assert_int_equal(ddp_cuda_topk(array + 10, 700, k, room, bytes, index, NULL, v, NULL, &err), DDP_OK);
        assert_int_equal(ddp_cuda_feedback_keep(array, n, where, 1, v, NULL, &err), DDP_OK);
        verdict_is(v, DDP_NUMERIC, &cpu);
        device_get(got, index, sizeof got);
        assert_memory_equal(got, mark, sizeof got);
        device_get(&is, array + place, sizeof is);
        assert_memory_equal(&is, x + place, sizeof is);
        device_free(index, array, room, where);
        host_free(x, cpu_room);
    }
}

/* AdaTopK for three links of different speed keeps the same elements as on the CPU. */
static void adatopk_compresses_each_link(void **state)
{
    static const double link_s[3] = {0.1, 0.4, 0.02};
    static const size_t count[3] = {20000, 5000, 9000};
    ddp_link_compression link[3];
    ddp_adatopk_options o;
    ddp_error err;
    int i, compressed = 0;

    skip_without_device(state);
    memset(&o, 0, sizeof o);
    o.ratio = 50;
    assert_int_equal(ddp_adatopk(link_s, count, 3, &o, link, &err), DDP_OK);
    for (i = 0; i < 3; i++) {
        float *x = numbers(count[i], (uint64_t)i);
        compressed += !link[i].dense;
        check_topk(x, count[i], link[i].keep, 0);
        free(x);
    }
    assert_int_equal(compressed, 3);
}

/* ---- quantisation ---- */

static float *odd_numbers(size_t n, int kind)
{
    float *x = numbers(n, n + (size_t)kind);
    size_t i;

    for (i = 0; i < n; i++) {
        if (kind == 1) x[i] *= 1e-41f; /* denormals */
        if (kind == 2) x[i] = x[i] < 0 ? -FLT_MAX : FLT_MAX * x[i];
        if (kind == 3) x[i] = (float)((int)(i * 37 % 255) - 127) / 2; /* halfway between two levels */
        if (kind == 4) x[i] = i % 128 < 64 ? -0.0f : x[i];            /* blocks of zeros */
    }
    return x;
}

static void check_quantised(ddp_packing packing, size_t n, int kind, size_t shift)
{
    const size_t room = ddp_pack_bound(packing, n, n);
    float *x = odd_numbers(n, kind), *y = numbers(n, 5), *got = (float *)malloc(n * sizeof *got);
    float *array = (float *)device_new((n + shift) * sizeof *x) + shift;
    float *other = (float *)device_copy(y, n * sizeof *y);
    unsigned char *want = (unsigned char *)malloc(room), *bytes = (unsigned char *)malloc(room);
    void *message = device_new(room);
    ddp_cuda_verdict *v = verdict_new();
    ddp_error err;
    size_t size = 0, cpu_size = 0;

    assert_int_equal(cudaMemcpy(array, x, n * sizeof *x, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(ddp_pack_quantised(packing, x, n, want, room, &cpu_size, &err), DDP_OK);
    if (ddp_cuda_pack_quantised(packing, array, n, message, room, &size, v, NULL, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(size, cpu_size);
    assert_int_equal(ddp_cuda_verdict_read(v, NULL, &err), DDP_OK);
    device_get(bytes, message, size);
    assert_memory_equal(bytes, want, size);

    assert_int_equal(ddp_feedback_subtract(want, size, x, n, &err), DDP_OK);
    assert_int_equal(ddp_cuda_feedback_subtract(packing, message, size, array, n, v, NULL, &err), DDP_OK);
    device_get(got, array, n * sizeof *got);
    assert_memory_equal(got, x, n * sizeof *got);
    if (kind != 2) {
        assert_int_equal(ddp_unpack_add(want, size, y, n, &err), DDP_OK);
        assert_int_equal(ddp_cuda_unpack_add(packing, message, size, other, n, v, NULL, &err), DDP_OK);
        device_get(got, other, n * sizeof *got);
        assert_memory_equal(got, y, n * sizeof *got);
    }
    assert_int_equal(ddp_unpack_store(want, size, y, n, &err), DDP_OK);
    assert_int_equal(ddp_cuda_unpack_store(packing, message, size, other, n, v, NULL, &err), DDP_OK);
    verdict_good(v);
    device_get(got, other, n * sizeof *got);
    assert_memory_equal(got, y, n * sizeof *got);
    device_free(array - shift, other, message);
    host_free(x, y, got, want, bytes);
}

static void quantised_bytes_match_the_cpu(void **state)
{
    static const size_t sizes[] = {1, 2, 63, 64, 65, 1000, 4099};
    size_t i;
    int kind;

    skip_without_device(state);
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (kind = 0; kind < 5; kind++) {
            check_quantised(DDP_PACK_INT8, sizes[i], kind, (size_t)kind & 1);
            check_quantised(DDP_PACK_INT4, sizes[i], kind, (size_t)kind & 1);
        }
}

/* Unpacks a message with one changed byte onto values, one of which is large. Expects the CPU's message and
 * unchanged values. */
static void check_damaged(ddp_packing packing, size_t at, unsigned char byte, float large)
{
    const size_t n = 131, room = ddp_pack_bound(packing, n, n);
    float *x = numbers(n, 2), got[131];
    unsigned char *bytes = (unsigned char *)malloc(room);
    ddp_cuda_verdict *v = verdict_new();
    float *array;
    void *message;
    ddp_error err, cpu;
    ddp_status code;
    size_t size;

    if (large > 0) x[70] = large;
    assert_int_equal(ddp_pack_quantised(packing, x, n, bytes, room, &size, &err), DDP_OK);
    if (at < size) bytes[at] = byte;
    array = (float *)device_copy(x, n * sizeof *x);
    message = device_copy(bytes, size);
    code = ddp_unpack_add(bytes, size, x, n, &cpu);
    assert_int_not_equal(code, DDP_OK);
    assert_int_equal(ddp_cuda_unpack_add(packing, message, size, array, n, v, NULL, &err), DDP_OK);
    verdict_is(v, code, &cpu);
    device_get(got, array, sizeof got);
    assert_memory_equal(got, x, sizeof got);
    device_free(array, message);
    host_free(bytes, x);
}

static void damaged_messages_are_rejected(void **state)
{
    ddp_cuda_verdict *v;
    unsigned char *message;
    float *x;
    ddp_error err;
    size_t size = ddp_pack_bound(DDP_PACK_INT4, 100, 100);

    skip_without_device(state);
    check_damaged(DDP_PACK_INT8, 24 + 12 + 66, 0x80, 0); /* 131 elements have 3 blocks */
    check_damaged(DDP_PACK_INT4, 24 + 12 + 33, 0x80, 0); /* level -8 */
    check_damaged(DDP_PACK_INT4, 24 + 12 + 65, 0x18, 0); /* an extra half byte */
    check_damaged(DDP_PACK_INT8, 24 + 7, 0xff, 0);       /* a negative scale */
    check_damaged(DDP_PACK_INT8, SIZE_MAX, 0, 3e38f);
    v = verdict_new();
    x = (float *)device_new(400);
    message = (unsigned char *)device_new(size);
    assert_int_equal(cudaMemset(message, 0, size), cudaSuccess);
    assert_int_equal(ddp_cuda_unpack_store(DDP_PACK_INT4, message, size, x, 100, v, NULL, &err), DDP_OK);
    assert_int_equal(ddp_cuda_verdict_read(v, NULL, &err), DDP_FORMAT);
    assert_string_equal(err.msg, "the header does not match the packing and 100 elements");
    device_free(v, x, message);
}

static void infinite_element_is_rejected(void **state)
{
    const size_t n = 500, room = ddp_pack_bound(DDP_PACK_INT8, n, n);
    float *x = numbers(n, 9), *array;
    unsigned char *bytes = (unsigned char *)calloc(room, 1);
    void *message;
    ddp_cuda_verdict *v;
    ddp_error err, cpu;
    size_t size;

    skip_without_device(state);
    v = verdict_new();
    message = device_copy(bytes, room);
    x[432] = INFINITY;
    x[437] = NAN;
    array = (float *)device_copy(x, n * sizeof *x);
    assert_int_equal(ddp_pack_quantised(DDP_PACK_INT8, x, n, bytes, room, &size, &cpu), DDP_NUMERIC);
    assert_int_equal(ddp_cuda_pack_quantised(DDP_PACK_INT8, array, n, message, room, &size, v, NULL, &err),
                     DDP_OK);
    verdict_is(v, DDP_NUMERIC, &cpu);
    device_get(bytes, message, room);
    for (size = 0; size < room; size++) assert_int_equal(bytes[size], 0);
    device_free(array, message);
    host_free(bytes, x);
}

/* ---- error feedback ---- */

/* The residual equals the CPU's after three steps of Top-K with feedback, one of them with an unaligned
 * gradient. */
static void feedback_residual_matches_the_cpu(void **state)
{
    const size_t n = 3001, k = 300, bytes = ddp_cuda_topk_scratch(n, k);
    float *residual = (float *)calloc(n, sizeof *residual), *got = (float *)malloc(n * sizeof *got);
    uint64_t *index = (uint64_t *)malloc(k * sizeof *index), step, *places;
    void *cpu_room = malloc(ddp_topk_scratch(n, k)), *room;
    ddp_cuda_verdict *v;
    ddp_error err, cpu;
    float *g, *gradient, *device;

    skip_without_device(state);
    v = verdict_new();
    room = device_new(bytes);
    places = (uint64_t *)device_new(k * sizeof *index);
    device = (float *)device_copy(residual, n * sizeof *residual);
    for (step = 0; step < 3; step++) {
        g = numbers(n, step);
        gradient = (float *)device_new((n + 1) * sizeof *g) + step % 2;
        assert_int_equal(cudaMemcpy(gradient, g, n * sizeof *g, cudaMemcpyHostToDevice), cudaSuccess);
        assert_int_equal(ddp_feedback_add(residual, g, n, &err), DDP_OK);
        assert_int_equal(ddp_topk(residual, n, k, cpu_room, ddp_topk_scratch(n, k), index, NULL, &err),
                         DDP_OK);
        assert_int_equal(ddp_feedback_keep(residual, n, index, k, &err), DDP_OK);
        assert_int_equal(ddp_cuda_feedback_add(device, gradient, n, v, NULL, &err), DDP_OK);
        assert_int_equal(ddp_cuda_topk(device, n, k, room, bytes, places, NULL, v, NULL, &err), DDP_OK);
        assert_int_equal(ddp_cuda_feedback_keep(device, n, places, k, v, NULL, &err), DDP_OK);
        assert_int_equal(ddp_cuda_verdict_read(v, NULL, &err), DDP_OK);
        device_get(got, device, n * sizeof *got);
        assert_memory_equal(got, residual, n * sizeof *got);
        device_free(gradient - step % 2);
        free(g);
    }

    g = numbers(n, 9); /* an infinite sum, then an index out of range */
    g[17] = residual[17] = FLT_MAX;
    g[2000] = NAN;
    gradient = (float *)device_copy(g, n * sizeof *g);
    assert_int_equal(cudaMemcpy(device, residual, n * sizeof *g, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(ddp_feedback_add(residual, g, n, &cpu), DDP_NUMERIC);
    assert_int_equal(ddp_cuda_feedback_add(device, gradient, n, v, NULL, &err), DDP_OK);
    verdict_is(v, DDP_NUMERIC, &cpu);
    v = verdict_new();
    index[k - 1] = n;
    assert_int_equal(cudaMemcpy(places, index, k * sizeof *index, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(ddp_cuda_feedback_keep(device, n, places, k, v, NULL, &err), DDP_OK);
    assert_int_equal(ddp_cuda_verdict_read(v, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "index[299] = 3001"));
    device_get(got, device, n * sizeof *got);
    assert_memory_equal(got, residual, n * sizeof *got);
    device_free(v, gradient, device, places, room);
    host_free(g, got, residual, index, cpu_room);
}

static void arguments_are_checked(void **state)
{
    ddp_cuda_verdict v; /* not read: nothing is queued */
    float x[4];
    uint64_t index[4], room[4];
    ddp_error err;
    size_t bytes;

    (void)state;
    assert_int_equal(ddp_cuda_topk_scratch(4, 5), 0);
    assert_int_equal(ddp_cuda_topk(x, 4, 5, room, sizeof room, index, NULL, &v, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "k = 5 of n = 4"));
    assert_int_equal(ddp_cuda_topk(x, 4, 2, room, sizeof room, index, NULL, &v, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the scratch has 32 bytes"));
    assert_int_equal(ddp_cuda_feedback_add(x, NULL, 4, &v, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_cuda_feedback_keep(x, 4, index, 1, NULL, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_cuda_pack_quantised(DDP_PACK_I32, x, 4, room, 32, &bytes, &v, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "(i32) does not quantise"));
    assert_int_equal(ddp_cuda_pack_quantised(DDP_PACK_INT8, x, 4, room, 31, &bytes, &v, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_cuda_unpack_add(DDP_PACK_INT8, room, 31, x, 4, &v, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the message has 31 bytes, one of 4 elements has 32"));
    assert_int_equal(ddp_cuda_verdict_read(NULL, NULL, &err), DDP_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topk_selects_the_same_set_as_the_cpu),
        cmocka_unit_test(topk_keeps_ties_from_the_front),
        cmocka_unit_test(topk_handles_chunks_of_several_tiles),
        cmocka_unit_test(topk_handles_ties_across_blocks),
        cmocka_unit_test(nan_is_reported_and_nothing_written),
        cmocka_unit_test(adatopk_compresses_each_link),
        cmocka_unit_test(quantised_bytes_match_the_cpu),
        cmocka_unit_test(damaged_messages_are_rejected),
        cmocka_unit_test(infinite_element_is_rejected),
        cmocka_unit_test(feedback_residual_matches_the_cpu),
        cmocka_unit_test(arguments_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
