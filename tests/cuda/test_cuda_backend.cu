/* [test-all: compiles the GPU companion] Training on a GPU compared with the CPU: updates are bit-identical,
 * every strategy agrees within rounding, and each failure returns an error message. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp_cuda.cuh"

#include <math.h>
#include <nvtx3/nvToolsExt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}

#include "cuda/families.h"
#include "graph/graph_internal.h"
#include "nn/exact.h"
#include "strategy/strategy_lab.h"

/* Ranks are threads: CUDA does not support fork after its first call. */
static int have_gpu(void)
{
    int n = 0;
    const int ok = cudaGetDeviceCount(&n) == cudaSuccess && n > 0;

    (void)cudaGetLastError();
    return ok;
}

static void nothing_left(void)
{
#ifdef DDP_CUDA_ON_CPU
    assert_int_equal(cuda_on_cpu::alive(), 0);
    assert_int_equal(cuda_on_cpu::ranges(), 0);
#endif
}

/* ---- updates ---- */

typedef struct rule_check {
    ddp_backend b;
    void *self;
    size_t n, shift;
} rule_check;

static float *rule_send(const rule_check *c, char *base, const float *x)
{
    float *at = (float *)(void *)base + c->shift;

    c->b.upload(c->self, at, x, c->n * sizeof *x);
    return at;
}

static void rule_compare(const rule_check *c, const ddp_optimizer *o)
{
    const size_t n = c->n, all = (n + 8) * sizeof(float);
    ddp_rng r = ddp_rng_seed(n, c->shift);
    float *w = (float *)calloc(n, 4), *g = (float *)calloc(n, 4), *s = (float *)calloc(2 * n, 4);
    float *w2 = (float *)calloc(2 * n, 4), *zero = (float *)calloc(n, 4);
    uint16_t *half = (uint16_t *)calloc(n, 2);
    char *dw = (char *)c->b.alloc(c->self, all), *dg = (char *)c->b.alloc(c->self, all);
    char *ds = (char *)c->b.alloc(c->self, 2 * all);
    const void *mirror;
    ddp_update u, v;
    ddp_error err;
    size_t i;
    int step;

    memset(&u, 0, sizeof u);
    u.params = w;
    u.grads = g;
    u.state = s;
    u.count = n;
    u.lr = 0.037f;
    v = u;
    mirror = c->b.mirror(c->self, (float *)(void *)dw + c->shift, n);
    for (i = 0; i < n; i++) w[i] = (float)ddp_rng_normal(&r);
    v.params = rule_send(c, dw, w);
    v.state = (float *)(void *)ds + c->shift;
    for (step = 0; step < 3; step++) {
        for (i = 0; i < n; i++) g[i] = (float)ddp_rng_normal(&r) * (i % 7 ? 1.0f : 1e-20f);
        v.grads = rule_send(c, dg, g);
        u.step = v.step = step;
        o->update(o, &u);
        c->b.update(c->self, o, &v, 1);
        assert_int_equal(c->b.download(c->self, w2, v.params, n * 4, &err), DDP_OK);
        assert_memory_equal(w, w2, n * 4);
        assert_int_equal(c->b.download(c->self, w2, v.grads, n * 4, &err), DDP_OK);
        assert_memory_equal(zero, w2, n * 4);
        if (o->state_per_param) {
            const size_t states = (size_t)o->state_per_param * n * 4;
            assert_int_equal(c->b.download(c->self, w2, v.state, states, &err), DDP_OK);
            assert_memory_equal(s, w2, states);
        }
        if (mirror == v.params) continue;
        assert_int_equal(c->b.download(c->self, half, mirror, n * 2, &err), DDP_OK);
        for (i = 0; i < n; i++) assert_int_equal(half[i], cuda_bf16_bits(w[i]));
    }
    c->b.forget(c->self, (float *)(void *)dw + c->shift);
    c->b.release(c->self, dw, all);
    c->b.release(c->self, dg, all);
    c->b.release(c->self, ds, 2 * all);
    free(w);
    free(g);
    free(s);
    free(w2);
    free(zero);
    free(half);
}

static void updates_are_bit_identical_to_the_cpu(void **state)
{
    static const size_t sizes[] = {1, 3, 4, 1023, 4097};
    const ddp_optimizer rules[] = {
        ddp_sgd(0.1f, 0), ddp_sgd_decay(0.1f, 0.9f, 0.01f), ddp_nesterov(0.1f, 0.9f, 0.01f),
        ddp_adam(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f), ddp_adamw(0.01f, 0.9f, 0.95f, 1e-8f, 0.1f)};
    rule_check c;
    ddp_error err;
    int k, i, numbers;

    (void)state;
    if (!have_gpu()) skip();
    for (numbers = 0; numbers < 3; numbers += 2) {
        c.b = ddp_cuda((ddp_cuda_numbers)numbers, 0);
        assert_int_equal(c.b.open(&c.b, 0, NULL, &c.self, &err), DDP_OK);
        for (k = 0; k < (int)(sizeof rules / sizeof rules[0]); k++)
            for (i = 0; i < 5; i++)
                for (c.shift = 0; c.shift < 2; c.shift++) {
                    c.n = sizes[i];
                    rule_compare(&c, &rules[k]);
                }
        assert_int_equal(c.b.check(c.self, &err), DDP_OK);
        c.b.close(c.self);
    }
    nothing_left();
}

/* A gradient of -0.0, with these values at both ends. */
static void none_compare(const rule_check *c, const ddp_optimizer *o, float first, float last)
{
    const size_t n = c->n, all = (n + 8) * sizeof(float), states = (size_t)o->state_per_param * n * 4;
    const int none = first == 0 && last == 0;
    ddp_rng r = ddp_rng_seed(n, 5);
    float *w = (float *)calloc(n, 4), *g = (float *)calloc(n, 4), *s = (float *)calloc(2 * n, 4);
    float *got = (float *)calloc(2 * n, 4);
    char *dw = (char *)c->b.alloc(c->self, all), *dg = (char *)c->b.alloc(c->self, all);
    char *ds = (char *)c->b.alloc(c->self, 2 * all);
    ddp_update u, v;
    ddp_error err;

    memset(&u, 0, sizeof u);
    u.params = w;
    u.grads = g;
    u.state = s;
    u.count = n;
    u.lr = 0.037f;
    v = u;
    for (size_t i = 0; i < n; i++) {
        w[i] = (float)ddp_rng_normal(&r);
        s[i] = s[n + i] = 0.25f;
        g[i] = -0.0f;
    }
    g[0] = first;
    g[n - 1] = last;
    v.params = rule_send(c, dw, w);
    v.grads = rule_send(c, dg, g);
    v.state = (float *)(void *)ds;
    if (states) c->b.upload(c->self, v.state, s, states);
    c->b.update(c->self, o, &v, 1);
    if (!none) o->update(o, &u);
    if (!none) memset(g, 0, n * 4);
    assert_int_equal(c->b.download(c->self, got, v.params, n * 4, &err), DDP_OK);
    assert_memory_equal(w, got, n * 4);
    assert_int_equal(c->b.download(c->self, got, v.grads, n * 4, &err), DDP_OK);
    assert_memory_equal(g, got, n * 4);
    if (states) assert_int_equal(c->b.download(c->self, got, v.state, states, &err), DDP_OK);
    assert_memory_equal(s, got, states);
    c->b.release(c->self, dw, all);
    c->b.release(c->self, dg, all);
    c->b.release(c->self, ds, 2 * all);
    free(w);
    free(g);
    free(s);
    free(got);
}

static void array_without_gradient_is_not_updated(void **state)
{
    static const size_t sizes[] = {2, 4, 1023};
    const ddp_optimizer rules[] = {ddp_sgd(0.1f, 0), ddp_sgd_decay(0.1f, 0.9f, 0.01f),
                                   ddp_adamw(0.01f, 0.9f, 0.95f, 1e-8f, 0.1f)};
    rule_check c;
    ddp_error err;

    (void)state;
    if (!have_gpu()) skip();
    c.b = ddp_cuda(DDP_CUDA_F32, 0);
    c.shift = 0;
    assert_int_equal(c.b.open(&c.b, 0, NULL, &c.self, &err), DDP_OK);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 3; i++) {
            c.n = sizes[i];
            none_compare(&c, &rules[k], -0.0f, -0.0f);
            none_compare(&c, &rules[k], -0.0f, 1);
            none_compare(&c, &rules[k], 1, -0.0f);
        }
    assert_int_equal(c.b.check(c.self, &err), DDP_OK);
    c.b.close(c.self);
    nothing_left();
}

/* Halfway cases round to even. Every NaN stays NaN. */
static void upload_rounds_as_the_kernels_do(void **state)
{
    static const uint32_t from[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0xbf817fff,
                                    0x7f7fffff, 0x7f800000, 0x7f800001, 0x80000000, 0x00018000};
    static const uint16_t want[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf81,
                                    0x7f80, 0x7f80, 0x7fc0, 0x8000, 0x0002};
    enum { N = sizeof want / sizeof want[0] };
    ddp_backend b = ddp_cuda(DDP_CUDA_BF16, 0);
    const ddp_shape row = {1, {N}};
    float x[N], back[N];
    uint16_t got[N];
    ddp_error err;
    void *self, *there;
    int i;

    (void)state;
    if (!have_gpu()) skip();
    assert_int_equal(b.open(&b, 0, NULL, &self, &err), DDP_OK);
    memcpy(x, from, sizeof x);
    there = b.alloc(self, sizeof got);
    b.upload_elements(self, there, x, &row);
    assert_int_equal(b.download(self, got, there, sizeof got, &err), DDP_OK);
    assert_int_equal(b.download_elements(self, back, there, &row, &err), DDP_OK);
    for (i = 0; i < N; i++) {
        const uint32_t wide = (uint32_t)want[i] << 16;
        assert_int_equal(got[i], want[i]);
        assert_memory_equal(&back[i], &wide, sizeof wide);
    }
    b.release(self, there, sizeof got);
    b.close(self);
    nothing_left();
}

/* Index of element i of an image on the device. */
static long image_place(const ddp_shape *s, long i)
{
    const long plane = s->dim[2] * s->dim[3], pixel = i / plane / s->dim[1] * plane + i % plane;

    return pixel * s->dim[1] + i / plane % s->dim[1];
}

/* Images of any size, also where a part of the upload ring ends inside a pixel. All values are exact in
 * bfloat16. */
static void check_images_cross(ddp_cuda_numbers numbers, ddp_shape s)
{
    const ddp_backend b = ddp_cuda(numbers, 0);
    const long n = ddp_shape_count(&s);
    const size_t bytes = (size_t)n * (numbers == DDP_CUDA_BF16 ? 2 : 4);
    float *x = (float *)calloc((size_t)n, 4), *back = (float *)calloc((size_t)n, 4);
    char *raw = (char *)calloc(bytes, 1);
    void *self, *there;
    ddp_error err;

    assert_int_equal(b.open(&b, 0, NULL, &self, &err), DDP_OK);
    for (long i = 0; i < n; i++) x[i] = (float)(i % 251 - 9);
    there = b.alloc(self, bytes);
    b.upload_elements(self, there, x, &s);
    assert_int_equal(b.download(self, raw, there, bytes, &err), DDP_OK);
    for (long i = 0; i < n; i++) {
        uint32_t wide = 0;
        if (numbers == DDP_CUDA_BF16)
            memcpy((char *)&wide + 2, raw + 2 * image_place(&s, i), 2);
        else
            memcpy(&wide, raw + 4 * image_place(&s, i), 4);
        if (memcmp(&wide, &x[i], 4)) fail_msg("%ld of %ld", i, n);
    }
    assert_int_equal(b.download_elements(self, back, there, &s, &err), DDP_OK);
    assert_memory_equal(back, x, (size_t)n * 4);
    b.release(self, there, bytes);
    b.close(self);
    free(x);
    free(back);
    free(raw);
    nothing_left();
}

static void images_are_stored_channels_last(void **state)
{
    static const ddp_shape shapes[] = {{4, {1, 1, 1, 1}}, {4, {3, 1, 5, 4}},   {4, {2, 70, 1, 1}},
                                       {4, {3, 4, 3, 9}}, {4, {2, 3, 13, 11}}, {4, {3, 7, 320, 317}}};

    (void)state;
    if (!have_gpu()) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_images_cross(DDP_CUDA_F32, shapes[i]);
        check_images_cross(DDP_CUDA_BF16, shapes[i]);
    }
}

static void clipping_runs_without_the_host(void **state)
{
    static const size_t sizes[] = {5, 70001, 1200007};
    ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    float *x[3], *d[3], *got, factor;
    double squares = 0;
    ddp_rng r = ddp_rng_seed(1, 1);
    ddp_error err;
    void *self;
    size_t i;
    int k;

    (void)state;
    if (!have_gpu()) skip();
    assert_int_equal(b.open(&b, 0, NULL, &self, &err), DDP_OK);
    got = (float *)calloc(sizes[2], 4);
    for (k = 0; k < 3; k++) {
        x[k] = (float *)calloc(sizes[k], 4);
        for (i = 0; i < sizes[k]; i++) x[k][i] = (float)ddp_rng_normal(&r);
        squares += ddp__sum_squares(x[k], sizes[k]);
        d[k] = (float *)b.alloc(self, sizes[k] * 4);
        b.upload(self, d[k], x[k], sizes[k] * 4); /* one of them is longer than a part of the ring */
        b.clip_add(self, d[k], sizes[k], k == 0);
    }
    factor = ddp__clip_factor(squares, 3);
    for (k = 0; k < 3; k++) {
        b.clip_scale(self, d[k], sizes[k], 1e9f); /* below the limit: no change */
        b.clip_scale(self, d[k], sizes[k], 3);
        assert_int_equal(b.download(self, got, d[k], sizes[k] * 4, &err), DDP_OK);
        for (i = 0; i < sizes[k]; i++)
            if (fabsf(got[i] - x[k][i] * factor) > 1e-6f * fabsf(got[i])) fail_msg("%zu", i);
        b.release(self, d[k], sizes[k] * 4);
        free(x[k]);
    }
    free(got);
    b.close(self);
    nothing_left();
}

/* ---- training ---- */

static double worst(const lab *a, const lab *b, int world)
{
    double most = 0;
    size_t i;
    int r;

    assert_int_equal(*a->values, *b->values);
    assert_true(*a->values > 0);
    for (r = 0; r < world; r++)
        for (i = 0; i < *a->values; i++) {
            const double e = fabs((double)a->params[r][i] - (double)b->params[r][i]);
            if (!(e <= 1e30)) return INFINITY;
            if (e > most) most = e;
        }
    return most;
}

static void equal_to_the_cpu(ddp_strategy strategy, lab_model model, lab_rule rule, int world,
                             ddp_cuda_numbers numbers, double within)
{
    const ddp_backend b = ddp_cuda(numbers, -1);
    ddp_strategy_ops ops;
    lab cpu, device;
    int r;

    lab_new(&cpu, world, strategy, 3);
    lab_new(&device, world, strategy, 3);
    cpu.model = device.model = model;
    cpu.rule = device.rule = rule;
    assert_true(ddp__built_in()->fill(strategy, &ops));
    if (ops.traits & DDP_WITH_CLIP)
        cpu.cfg.clip_norm = device.cfg.clip_norm = rule == LAB_MOMENTUM ? 0.5f : 0;
    device.cfg.backend = &b;
    lab_run(&cpu);
    lab_run(&device);
    if (worst(&cpu, &device, world) > within)
        fail_msg("%s, model %d, rule %d: %g", ddp_strategy_name(strategy), (int)model, (int)rule,
                 worst(&cpu, &device, world));
    for (r = 1; r < world; r++) /* replicas are bit-identical */
        assert_memory_equal(device.params[0], device.params[r], *device.values * sizeof(float));
    lab_free(&cpu);
    lab_free(&device);
    nothing_left();
}

static void every_strategy_matches_the_cpu(void **state)
{
    int s;

    (void)state;
    if (!have_gpu()) skip();
    for (s = (int)DDP_SSGD; s <= (int)DDP_DILOCO; s++) {
        if (s > (int)DDP_DEFT && s < (int)DDP_DILOCO) continue; /* tested in test_cuda_sends */
        equal_to_the_cpu((ddp_strategy)s, LAB_GPT, LAB_SGD, 2, DDP_CUDA_F32, 1e-4);
        equal_to_the_cpu((ddp_strategy)s, LAB_MLP, LAB_MOMENTUM, 2, DDP_CUDA_F32, 1e-4);
    }
    equal_to_the_cpu(DDP_DREAMDDP, LAB_GPT, LAB_ADAMW, 3, DDP_CUDA_F32, 1e-3);
    equal_to_the_cpu(DDP_DEFT, LAB_GPT, LAB_ADAMW, 3, DDP_CUDA_F32, 1e-3);
    equal_to_the_cpu(DDP_WFBP, LAB_GPT, LAB_SGD, 1, DDP_CUDA_F32, 1e-4);
}

static void bfloat16_training_matches_the_cpu(void **state)
{
    (void)state;
    if (!have_gpu()) skip();
    equal_to_the_cpu(DDP_DREAMDDP, LAB_GPT, LAB_SGD, 2, DDP_CUDA_BF16, 0.05);
    equal_to_the_cpu(DDP_SSGD, LAB_MLP, LAB_SGD, 2, DDP_CUDA_BF16, 0.05);
    equal_to_the_cpu(DDP_LOCALSGD, LAB_GPT, LAB_SGD, 2, DDP_CUDA_TF32, 0.01);
}

/* ---- from device to device ---- */

/* Ranks below x->cfg.site are in one site, the others in another, or 0 for one site. */
static int in_its_site(ddp_ctx *d, void *user)
{
    lab *x = (lab *)user;

    d->cfg.site = x->cfg.site && ddp_rank(d) >= x->cfg.site ? x->cfg.site + 1 : x->cfg.site;
    return lab_graph(d, x);
}

static void networks_train_as_the_cpu(ddp_strategy strategy, lab_model model, lab_rule rule, int world,
                                      ddp_cuda_numbers numbers, int nccl, int first_site, double within)
{
    const ddp_backend b = ddp_cuda(numbers, -1);
    ddp_error err;
    lab cpu, device;
    int r;

    lab_new(&cpu, world, strategy, 3);
    lab_new(&device, world, strategy, 3);
    cpu.model = device.model = model;
    cpu.rule = device.rule = rule;
    device.cfg.backend = &b;
    device.cfg.device.nccl = nccl;
    device.cfg.site = first_site;
    if (nccl == 2) {
        device.cfg.net = "50mbit,1ms";
        device.cfg.deterministic = 0; /* the links are measured */
        device.cfg.profile_steps = 2;
    }
    lab_run(&cpu);
    if (ddp_launch(&device.cfg, in_its_site, &device, &err)) fail_msg("%s", err.msg);
    if (worst(&cpu, &device, world) > within)
        fail_msg("%s, model %d, nccl %d, site %d: %g", ddp_strategy_name(strategy), (int)model, nccl,
                 first_site, worst(&cpu, &device, world));
    for (r = 1; r < world; r++)
        assert_memory_equal(device.params[0], device.params[r], *device.values * sizeof(float));
    lab_free(&cpu);
    lab_free(&device);
    nothing_left();
}

static int devices(void)
{
    int n = 0;

    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

static void nccl_training_matches_the_cpu(void **state)
{
    (void)state;
    if (devices() < 2) skip();
    networks_train_as_the_cpu(DDP_SSGD, LAB_GPT, LAB_SGD, 2, DDP_CUDA_F32, 1, 0, 1e-4);
    networks_train_as_the_cpu(DDP_DREAMDDP, LAB_MLP, LAB_MOMENTUM, 2, DDP_CUDA_F32, 1, 0, 1e-4);
    networks_train_as_the_cpu(DDP_LOCALSGD, LAB_GPT, LAB_SGD, 2, DDP_CUDA_BF16, 1, 0, 0.05);
    networks_train_as_the_cpu(DDP_DEFT, LAB_GPT, LAB_ADAMW, 3, DDP_CUDA_F32, 1, 0, 1e-3);
}

static void hierarchical_averages_match_the_cpu(void **state)
{
    (void)state;
    if (devices() < 4) skip();
    networks_train_as_the_cpu(DDP_WFBP, LAB_GPT, LAB_SGD, 4, DDP_CUDA_F32, 1, 2, 1e-4);
    networks_train_as_the_cpu(DDP_DREAMDDP, LAB_MLP, LAB_MOMENTUM, 3, DDP_CUDA_F32, 1, 2, 1e-4);
    networks_train_as_the_cpu(DDP_DREAMDDP, LAB_GPT, LAB_SGD, 4, DDP_CUDA_BF16, 1, 3, 0.05);
    networks_train_as_the_cpu(DDP_LOCALSGD, LAB_MLP, LAB_SGD, 2, DDP_CUDA_F32, 1, 1, 1e-4);
}

static void both_links_are_used_at_once(void **state)
{
    (void)state;
    if (devices() < 2) skip();
    networks_train_as_the_cpu(DDP_WFBP, LAB_GPT, LAB_SGD, 2, DDP_CUDA_F32, 2, 0, 1e-4);
    networks_train_as_the_cpu(DDP_LOCALSGD, LAB_GPT, LAB_SGD, 2, DDP_CUDA_BF16, 2, 0, 0.05);
    /* the plan differs from the CPU's, so updates happen at other times. Replicas must still be equal. */
    networks_train_as_the_cpu(DDP_DEFT, LAB_GPT, LAB_SGD, 3, DDP_CUDA_F32, 2, 0, 1);
}

static int leaves_early(ddp_ctx *d, void *user)
{
    lab x = *(lab *)user;

    if (ddp_rank(d) == 1) x.steps = 4; /* rank 1 exits while rank 0's device waits for it */
    return in_its_site(d, &x);
}

static int launches_wait(void)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");

    return blocking && atoi(blocking);
}

static void lost_rank_ends_the_wait_for_its_average(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);
    int site;

    (void)state;
    if (devices() < 3 || launches_wait())
        skip(); /* the thread that blocks in a launch does not check for lost peers */
    for (site = 0; site < 3; site += 2) {
        ddp_error err;
        lab x;
        lab_new(&x, 3, DDP_LOCALSGD, 3);
        x.cfg.backend = &b;
        x.cfg.device.nccl = 1;
        x.cfg.site = site;
        x.cfg.timeout.peer_s = 1;
        x.model = LAB_MLP;
        x.no_sync_all = 1;
        assert_int_not_equal(ddp_launch(&x.cfg, leaves_early, &x, &err), 0);
        if (!strstr(err.msg, "rank 1")) fail_msg("%s", err.msg);
        lab_free(&x);
        nothing_left();
    }
}

typedef struct reader {
    ddp_config cfg;
    ddp_error err; /* on rank 0 */
    float params[7];
} reader;

/* Rank 1 runs one step. Rank 0 reads its parameters after it has queued the next average. */
static int reads_behind_an_average(ddp_ctx *d, void *user)
{
    reader *x = (reader *)user;
    ddp_graph *g = ddp_graph_new(d);
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_mlp_config c;
    ddp_node *loss;
    int bad, step;
    size_t n;

    memset(&c, 0, sizeof c);
    c.batch = 3;
    c.inputs = 5;
    c.hidden[0] = 7;
    c.classes = 3;
    loss = ddp_mlp(g, &c, NULL);
    bad = ddp_graph_build(g);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (step = 0; !bad && step < 2 - ddp_rank(d); step++) {
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
    }
    if (ddp_rank(d)) return bad;
    if (!bad) bad = ddp_graph_read(g, x->params, ddp_layer_params(g, 0, &n), 7);
    x->err = ddp_graph_error(g)->code ? *ddp_graph_error(g) : *ddp_last_error(d);
    return bad;
}

/* A copy to unpinned memory would wait for the average, even if a rank is lost. */
static void lost_rank_ends_the_wait_for_parameters(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);
    ddp_error err;
    reader x;

    (void)state;
    if (devices() < 2) skip();
    memset(&x, 0, sizeof x);
    x.cfg.world = 2;
    x.cfg.no_env = 1;
    x.cfg.deterministic = 1;
    x.cfg.transport = DDP_THREADS;
    x.cfg.strategy = DDP_LOCALSGD;
    x.cfg.period = 1;
    x.cfg.device.nccl = 1;
    x.cfg.timeout.peer_s = 1;
    x.cfg.backend = &b;
    assert_int_not_equal(ddp_launch(&x.cfg, reads_behind_an_average, &x, &err), 0);
    if (!strstr(x.err.msg, "rank 1")) fail_msg("%s (%s)", x.err.msg, err.msg);
    nothing_left();
}

/* ---- pairs of operators ---- */

typedef struct paired {
    int model, recompute; /* 0: GPT-2, 1: Llama 2, 2: convolutions and their norms, 3: dropout */
    float params[4000], losses[5];
    long count;
} paired;

/* in the current run */
static int pairs_found;

static const ddp_op_pair *count_pairs(void *self, const char *first, const char *second)
{
    const ddp_op_pair *p = strcmp(first, "linear") ? cuda_pair(self, first, second) : NULL;

    pairs_found += p != NULL;
    return p;
}

/* Its second norm has two readers, so the gradient of the relu is added to another gradient. */
static ddp_node *paired_images(ddp_graph *g, int recompute)
{
    const ddp_shape s = {4, {3, 2, 6, 6}};
    ddp_node *x = ddp_input_shape(g, "images", DDP_F32, &s), *y = ddp_input(g, "labels", DDP_I32, 3, 1),
             *norm;

    ddp_layer_begin(g, "first");
    x = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 0)));
    ddp_layer_end(g);
    if (recompute) ddp_recompute_begin(g);
    ddp_layer_begin(g, "block");
    norm = ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 0));
    x = ddp_add(g, ddp_relu(g, norm), norm);
    x = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 1, 1, 0, 1, 0)));
    ddp_layer_end(g);
    if (recompute) ddp_recompute_end(g);
    ddp_layer_begin(g, "head");
    x = ddp_linear(g, ddp_global_avg_pool2d(g, x), 3);
    ddp_layer_end(g);
    return ddp_cross_entropy(g, x, y);
}

static ddp_node *paired_dropout(ddp_graph *g)
{
    const ddp_shape s = {2, {3, 72}};
    ddp_node *x = ddp_input_shape(g, "images", DDP_F32, &s), *y = ddp_input(g, "labels", DDP_I32, 3, 1);

    ddp_layer_begin(g, "dropped");
    x = ddp_dropout(g, ddp_linear(g, x, 8), 0.25);
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = ddp_linear(g, x, 3);
    ddp_layer_end(g);
    return ddp_cross_entropy(g, x, y);
}

static ddp_node *paired_model(ddp_graph *g, const paired *x)
{
    ddp_gpt2_config c;
    ddp_llama2_config l;

    if (x->model == 2) return paired_images(g, x->recompute);
    if (x->model == 3) return paired_dropout(g);
    memset(&c, 0, sizeof c);
    memset(&l, 0, sizeof l);
    c.vocabulary = l.vocabulary = 11;
    c.context = l.context = 5;
    c.layers = l.layers = 2;
    c.heads = l.heads = 2;
    c.dim = l.dim = 8;
    c.batch = l.batch = 2;
    l.hidden = 16;
    c.recompute = l.recompute = x->recompute;
    return x->model ? ddp_llama2(g, &l, NULL) : ddp_gpt2(g, &c, NULL);
}

/* The arrays at offsets a and b of the arena do not overlap. An array without offset is skipped. */
static void apart(size_t a, size_t bytes, size_t b, size_t more)
{
    if (a != DDP__NOWHERE && b != DDP__NOWHERE) assert_true(a + bytes <= b || b + more <= a);
}

/* The outputs of a kernel do not overlap the inputs that it reads for other rows. */
static void pairs_lie_apart(const ddp_graph *g)
{
    const ddp__layout *l = &g->reuse;
    int i, k;

    for (i = 0; i < ddp__count(g->node); i++) {
        const size_t bytes = ddp__output_bytes(g->node[i]);
        const int again = g->node[i]->pair && l->fate[i] == DDP__AGAIN;

        for (k = 0; g->node[i]->pair && k < g->node[i]->spec.inputs; k++) {
            const int p = g->node[i]->input[k];
            const size_t read = ddp__output_bytes(g->node[p]);
            const size_t saved = 4 * g->node[i + 1]->spec.saved;
            apart(l->out[p], read, l->out[i + 1], bytes);
            apart(l->out[p], read, l->saved[i + 1], saved);
            if (!ddp__pair_inside(g, i)) continue;
            apart(l->out_again[p], read, l->out_again[i + 1], bytes);
            apart(l->out_again[p], read, l->saved_again[i + 1], saved);
            apart(l->gradient[p], read, l->gradient[i + 1], bytes);
            apart(l->gradient[p], read, (again ? l->out_again : l->out)[i], bytes);
            apart(l->gradient[p], read, (again ? l->saved_again : l->saved)[i + 1], saved);
        }
        if (g->node[i]->pair && g->node[i]->pair->reader) /* it writes one while it reads the other */
            apart((again ? l->out_again : l->out)[i], bytes, l->gradient[i + 1],
                  ddp__output_bytes(g->node[i + 1]));
    }
}

static int paired_worker(ddp_ctx *d, void *user)
{
    paired *x = (paired *)user;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = paired_model(g, x);
    ddp_optimizer o = ddp_sgd(0.3f, 0);
    int bad = ddp_graph_build(g), step, l;
    size_t n;

    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad) pairs_lie_apart(g);
    for (step = 0; !bad && step < 5; step++) {
        int32_t *t = (int32_t *)ddp_data(g, "tokens"), *y = (int32_t *)ddp_data(g, "labels");
        float *image = (float *)ddp_data(g, "images");
        for (l = 0; t && l < 10; l++) {
            t[l] = (3 * l + step) % 11;
            y[l] = (t[l] + 1) % 11;
        }
        for (l = 0; image && l < 216; l++) {
            image[l] = (float)((7 * l + l / 72 * step) % 13) / 6 - 1;
            y[l / 72] = l / 72;
        }
        bad = step == 4 ? ddp_evaluate(g) : ddp_forward(g);
        x->losses[step] = ddp_value(g, loss);
        if (!bad && step < 4) bad = ddp_backward(g, loss);
        if (!bad && step < 4) bad = ddp_step_end(d);
    }
    for (l = 0; !bad && l < ddp_layer_count(g); l++) {
        const float *p = ddp_layer_params(g, l, &n);
        assert_true(x->count + (long)n <= 4000);
        bad = ddp_graph_read(g, x->params + x->count, p, n);
        x->count += (long)n;
    }
    return bad;
}

/* Bit-identical with and without pairs, with and without recomputation. */
static void pairs_change_no_bit(ddp_cuda_numbers numbers, int model)
{
    static paired x[4];
    ddp_config cfg;
    ddp_error err;
    int i;

    memset(x, 0, sizeof x);
    for (i = 0; i < 4; i++) {
        ddp_backend b = ddp_cuda(numbers, 0);
        memset(&cfg, 0, sizeof cfg);
        cfg.world = 1;
        cfg.no_env = 1;
        cfg.deterministic = 1;
        cfg.backend = &b;
        b.pair = i % 2 ? NULL : count_pairs;
        x[i].model = model;
        x[i].recompute = i / 2;
        pairs_found = 0;
        if (ddp_launch(&cfg, paired_worker, &x[i], &err)) fail_msg("%s", err.msg);
        assert_int_equal(pairs_found, i % 2        ? 0
                                      : model == 2 ? 3
                                                   : 4); /* every norm; the additions of both blocks */
        assert_true(x[i].count > 200 && x[i].losses[4] < x[i].losses[0]);
        assert_memory_equal(x[i].losses, x[0].losses, sizeof x->losses);
        assert_memory_equal(x[i].params, x[0].params, (size_t)x->count * sizeof *x->params);
    }
    nothing_left();
}

static void residual_sums_run_with_their_norms(void **state)
{
    (void)state;
    if (!have_gpu()) skip();
    pairs_change_no_bit(DDP_CUDA_F32, 0);
    pairs_change_no_bit(DDP_CUDA_F32, 1);
    pairs_change_no_bit(DDP_CUDA_BF16, 0);
}

static void batch_norms_run_with_their_relu(void **state)
{
    (void)state;
    if (!have_gpu()) skip();
    pairs_change_no_bit(DDP_CUDA_F32, 2);
    pairs_change_no_bit(DDP_CUDA_BF16, 2);
}

static int gone_through; /* counts gradients that the second operator of a pair has passed to the input of the
                          * first */
static const ddp_op_pair *counted;

static void count_through(const ddp_op_call *first, const ddp_op_call *second)
{
    gone_through += second->through;
    counted->backward(first, second);
}

static const ddp_op_pair *count_products(void *self, const char *first, const char *second)
{
    static ddp_op_pair own;
    const ddp_op_pair *p =
        strcmp(first, "linear") ? NULL : cuda_text_pair(cuda_device_of(self), first, second);

    if (!p) return NULL;
    pairs_found++;
    counted = p;
    own = *p;
    own.backward = count_through;
    return &own;
}

/* cuBLASLt applies gelu and its gradient to values that are not rounded yet. */
static void products_run_with_their_gelu(void **state)
{
    static paired x[3];
    ddp_config cfg;
    ddp_error err;
    int i, numbers;
    long k;

    (void)state;
    if (!have_gpu()) skip();
    for (numbers = 0; numbers < 3; numbers += 2) {
        const double within = numbers ? 0.05 : 1e-3;
        int differ = 0;
        memset(x, 0, sizeof x);
        for (i = 0; i < 3; i++) {
            ddp_backend b = ddp_cuda((ddp_cuda_numbers)numbers, 0);
            memset(&cfg, 0, sizeof cfg);
            cfg.world = 1;
            cfg.no_env = 1;
            cfg.deterministic = 1;
            cfg.backend = &b;
            b.pair = i == 1 ? NULL : count_products;
            x[i].recompute = i > 0;
            pairs_found = gone_through = 0;
            if (ddp_launch(&cfg, paired_worker, &x[i], &err)) fail_msg("%s", err.msg);
            assert_int_equal(pairs_found, i == 1 ? 0 : 2);      /* in both blocks */
            assert_int_equal(gone_through, i == 1 ? 0 : 2 * 4); /* in each step */
        }
        assert_memory_equal(x[2].params, x[0].params, (size_t)x->count * sizeof *x->params);
        for (k = 0; k < x[0].count; k++) {
            const double e = fabs((double)x[0].params[k] - (double)x[1].params[k]);
            differ |= e > 0;
            if (!(e <= within)) fail_msg("numbers %d, value %ld: %g", numbers, k, e);
        }
        assert_true(differ || !numbers); /* rounded once; two operators round twice */
        assert_true(fabs((double)x[0].losses[4] - (double)x[1].losses[4]) <= within);
    }
    nothing_left();
}

/* ---- graphs ---- */

static long graphs_launched(void)
{
#ifdef DDP_CUDA_ON_CPU
    return cuda_on_cpu::replays();
#else
    return 0;
#endif
}

/* Bit-identical results with graphs, and without graphs on a stream of the user, which is never captured. */
static void graphs_change_no_bit(ddp_cuda_numbers numbers, int model, int recompute, int lists)
{
    static paired x[2];
    cudaStream_t stream = NULL;
    ddp_config cfg;
    ddp_error err;

    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    memset(x, 0, sizeof x);
    for (int i = 0; i < 2; i++) {
        const ddp_backend b = ddp_cuda(numbers, 0);
        const long before = graphs_launched();
        memset(&cfg, 0, sizeof cfg);
        cfg.world = 1;
        cfg.no_env = 1;
        cfg.deterministic = 1;
        cfg.backend = &b;
        if (i) cfg.device.cuda_stream = stream;
        x[i].model = model;
        x[i].recompute = recompute;
        if (ddp_launch(&cfg, paired_worker, &x[i], &err)) fail_msg("%s", err.msg);
#ifdef DDP_CUDA_ON_CPU
        assert_int_equal(graphs_launched() - before, i ? 0 : 3 * lists); /* in three of four steps */
#else
        (void)before, (void)lists;
#endif
        assert_true(x[i].count > 100);
        assert_memory_equal(x[i].losses, x[0].losses, sizeof x->losses);
        assert_memory_equal(x[i].params, x[0].params, (size_t)x->count * sizeof *x->params);
    }
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    nothing_left();
}

static void layers_run_as_graphs(void **state)
{
    (void)state;
    if (!have_gpu()) skip();
    graphs_change_no_bit(DDP_CUDA_F32, 0, 0, 6 * 2); /* every layer, forward and backward */
    graphs_change_no_bit(DDP_CUDA_BF16, 1, 1, 6 * 2);
    graphs_change_no_bit(DDP_CUDA_F32, 2, 1, 5 + 4); /* a layer's list is split where buffers are copied. The
                                                      * loss is not part of a layer. */
    graphs_change_no_bit(DDP_CUDA_F32, 3, 0, 2 + 3); /* dropout is not part of a list */
}

/* Calls y = gelu(x) at `from` and `to`, as the graph would. */
static void one_gelu(const ddp_backend *b, void *self, const ddp_op_spec *spec, const float *from, float *to)
{
    ddp_op_call call;
    ddp_error err;

    memset(&call, 0, sizeof call);
    call.spec = spec;
    call.in[0] = from;
    call.out = to;
    call.pool = b->compute(self);
    call.random = (uint64_t)graphs_launched(); /* gelu does not read it */
    b->op(self, "gelu")->forward(&call);
    assert_int_equal(b->wait(self, &err), DDP_OK);
}

static void assert_gelu(const ddp_backend *b, void *self, const float *at)
{
    float y[8];
    ddp_error err;

    assert_int_equal(b->download(self, y, at, sizeof y, &err), DDP_OK);
    for (int i = 0; i < 8; i++) assert_float_equal(y[i], 0.8411920f, 1e-5);
}

/* A graph is created the second time, dropped when any memory is freed, and not created if memory is short.
 * */
static void freed_memory_drops_its_graphs(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    float *x, *y;
    void *self;
    ddp_op_spec spec;
    ddp_error err;
    long before = graphs_launched();

    (void)state;
    if (!have_gpu()) skip();
    memset(&spec, 0, sizeof spec);
    spec.inputs = 1;
    spec.in[0].dims = spec.out.dims = 1;
    spec.in[0].dim[0] = spec.out.dim[0] = 8;
    assert_int_equal(b.open(&b, 0, NULL, &self, &err), DDP_OK);
    x = (float *)b.alloc(self, 4096);
    y = (float *)b.alloc(self, (DDP__CUDA_REPLAYS + 8) * 32);
    b.fill(self, x, 8, 1);
    for (int i = 0; i < 4; i++) {
        b.zero(self, y, 32);
        one_gelu(&b, self, &spec, x, y);
        assert_gelu(&b, self, y);
    }
#ifdef DDP_CUDA_ON_CPU
    assert_int_equal(graphs_launched() - before, 3);
#endif
    assert_true(b.reserve(self, 1 << 16));
    for (int i = 0; i < 2; i++) one_gelu(&b, self, &spec, x, y);
    b.release(self, b.alloc(self, 256), 256);
    one_gelu(&b, self, &spec, x, y);
    assert_gelu(&b, self, y);
#ifdef DDP_CUDA_ON_CPU
    assert_int_equal(graphs_launched() - before, 4);
    cuda_on_cpu::set_memory(1); /* no graph, and no failure */
    one_gelu(&b, self, &spec, x, y);
    assert_int_equal(graphs_launched() - before, 4);
    cuda_on_cpu::set_memory((size_t)1 << 32);
    one_gelu(&b, self, &spec, x, y);
    assert_int_equal(graphs_launched() - before, 5);
#endif
    b.zero(self, y, (DDP__CUDA_REPLAYS + 8) * 32); /* more lists than the limit for graphs */
    for (int k = 0; k < 3 * (DDP__CUDA_REPLAYS + 8); k++)
        one_gelu(&b, self, &spec, x, y + k % (DDP__CUDA_REPLAYS + 8) * 8);
    for (int k = 0; k < DDP__CUDA_REPLAYS + 8; k++) assert_gelu(&b, self, y + 8 * k);
#ifdef DDP_CUDA_ON_CPU
    assert_int_equal(graphs_launched() - before, 5 + 1 + 2 * DDP__CUDA_REPLAYS); /* one list had occurred
                                                                                  * before */
#endif
    b.release(self, y, 0);
    b.release(self, x, 0);
    assert_int_equal(b.check(self, &err), DDP_OK);
    b.close(self);
    nothing_left();
}

/* ---- times ---- */

static int timed(ddp_ctx *d, void *user)
{
    ddp_span span[600];
    ddp_stats stats;
    lab *x = (lab *)user;
    int n, i, kinds = 0, bad = lab_graph(d, x);
    double last = 0;

    if (bad) return bad;
    n = ddp_trace_copy(d, span, 600);
    for (i = 0; i < n; i++) {
        kinds |= 1 << (int)span[i].kind;
        if (span[i].kind != DDP_SPAN_BACKWARD) continue;
        assert_true(span[i].begin_s >= last && span[i].end_s >= span[i].begin_s);
        last = span[i].end_s;
    }
    assert_true(last > 0 && last <= ddp_now());
    assert_true(kinds & 1 << (int)DDP_SPAN_FORWARD);
    assert_true(kinds & 1 << (int)DDP_SPAN_UPDATE);
    ddp_get_stats(d, &stats);
    assert_true(stats.counted_steps > 0 && stats.step_s > 0);
    assert_non_null(ddp_profile_get(d));
    assert_true(ddp_profile_get(d)->forward_s[0] > 0 && ddp_profile_get(d)->backward_s[0] > 0);
    return 0;
}

static void device_reports_layer_times(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    ddp_error err;
    lab x;

    (void)state;
    if (!have_gpu()) skip();
    lab_new(&x, 2, DDP_DREAMDDP, 3);
    x.model = LAB_MLP;
    x.cfg.backend = &b;
    x.cfg.deterministic = 0;
    x.cfg.profile_steps = 4;
    x.cfg.debug.trace_spans = 300;
    if (ddp_launch(&x.cfg, timed, &x, &err)) fail_msg("%s", err.msg);
    lab_free(&x);
    nothing_left();
}

/* ---- images ---- */

static ddp_ctx *image_context(const ddp_backend *b)
{
    ddp_config cfg;
    ddp_ctx *d;

    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    cfg.backend = b;
    d = ddp_open(&cfg, NULL);
    assert_non_null(d);
    return d;
}

/* The user reads and writes (n, c, h, w). Neighbouring arrays and integers are not transposed. */
static void images_are_returned_in_nchw_order(void **state)
{
    const ddp_shape s = {4, {2, 3, 5, 4}}, other = {3, {2, 15, 4, 0}};
    const long n = ddp_shape_count(&s);

    (void)state;
    if (!have_gpu()) skip();
    for (int m = 0; m < 2; m++) {
        const ddp_backend b = ddp_cuda(m ? DDP_CUDA_BF16 : DDP_CUDA_F32, 0);
        ddp_ctx *d = image_context(&b);
        ddp_graph *g = ddp_graph_new(d);
        ddp_node *x = ddp_input_shape(g, "x", DDP_F32, &s), *r = ddp_relu(g, x), *y = ddp_add(g, r, x);
        ddp_node *flat = ddp_relu(g, ddp_input_shape(g, "flat", DDP_F32, &other));
        ddp_node *whole = ddp_input_shape(g, "whole", DDP_I32, &s);
        const float *out;
        int32_t *here, there[120];
        ddp_error err;
        assert_int_equal(ddp_graph_build(g), 0);
        here = (int32_t *)ddp_data(g, "whole");
        for (long i = 0; i < n; i++) {
            ((float *)ddp_data(g, "x"))[i] = ((float *)ddp_data(g, "flat"))[i] = (float)(i % 17 - 8);
            here[i] = (int32_t)i;
        }
        assert_int_equal(ddp_forward(g), 0);
        out = ddp_output(g, y);
        assert_non_null(out);
        for (long i = 0; i < n; i++) assert_true(out[i] == (float)(i % 17 - 8) * (i % 17 > 8 ? 2 : 1));
        out = ddp_output(g, flat);
        for (long i = 0; i < n; i++) assert_true(out[i] == (i % 17 > 8 ? (float)(i % 17 - 8) : 0));
        out = ddp_output(g, x);
        assert_memory_equal(out, ddp_data(g, "x"), (size_t)n * sizeof *out);
        assert_int_equal(
            b.download(d->host.device, there, ddp_state_data(g->state, whole), sizeof there, &err), DDP_OK);
        assert_memory_equal(there, here, sizeof there);
        ddp_close(d);
    }
    nothing_left();
}

enum {
    OF_LINEAR,
    OF_PLAIN,
    OF_LAYER_NORM,
    OF_RMS_NORM,
    OF_SWIGLU,
    OF_LOSS,
    OF_HEAD,
    OF_EMBEDDING,
    OF_TIED,
    OF_LABELS,
    OF_ROWS
};

static ddp_node *of_rows(ddp_graph *g, int k)
{
    const ddp_shape image = {4, {2, 3, 5, 4}}, tokens = {3, {2, 3, 5, 0}}, labels = {4, {2, 1, 1, 1}};
    ddp_node *x = ddp_input_shape(g, "x", DDP_F32, &image),
             *t = ddp_input_shape(g, "tokens", DDP_I32, &tokens);

    switch (k) {
    case OF_LINEAR:
        return ddp_linear(g, x, 7);
    case OF_PLAIN:
        return ddp_linear_no_bias(g, x, 7);
    case OF_LAYER_NORM:
        return ddp_layer_norm(g, x);
    case OF_RMS_NORM:
        return ddp_rms_norm(g, x, 0);
    case OF_SWIGLU:
        return ddp_swiglu(g, x);
    case OF_LOSS:
        return ddp_cross_entropy(g, x, t);
    case OF_HEAD:
        return ddp_linear_cross_entropy(g, x, t, 7, NULL);
    case OF_EMBEDDING:
        return ddp_embedding(g, t, 9, 6);
    case OF_TIED:
        return ddp_linear_tied(g, x, ddp_embedding(g, ddp_input(g, "t", DDP_I32, 1, 2), 9, 4));
    default:
        return ddp_cross_entropy(g, ddp_linear(g, ddp_flatten(g, x), 3),
                                 ddp_input_shape(g, "y", DDP_I32, &labels));
    }
}

/* An operator on rows would read channels as rows. Without arrays of four dimensions (other than integers) it
 * works. */
static void row_operators_on_images_are_rejected(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_BF16, 0);

    (void)state;
    if (!have_gpu()) skip();
    for (int k = 0; k < OF_ROWS; k++) {
        ddp_ctx *d = image_context(&b);
        ddp_graph *g = ddp_graph_new(d), *cpu = ddp_graph_new(NULL);
        ddp_layer_begin(g, "layer");
        ddp_layer_begin(cpu, "layer");
        assert_true(of_rows(g, k) && of_rows(cpu, k));
        ddp_layer_end(g);
        ddp_layer_end(cpu);
        assert_int_equal(ddp_graph_build(cpu), 0);
        assert_int_equal(ddp_graph_build(g), k < OF_LABELS ? (int)DDP_UNSUPPORTED : 0);
        if (k < OF_LABELS &&
            !strstr(ddp_graph_error(g)->msg,
                    "works on rows, but the cuda backend stores arrays of four dimensions as "
                    "images: call ddp_flatten first, or train on the CPU"))
            fail_msg("%d: %s", k, ddp_graph_error(g)->msg);
        ddp_graph_free(cpu);
        ddp_close(d);
    }
    nothing_left();
}

/* Rows made from images do not overlap the images. Outputs of element-wise operators may. */
static void flattened_images_do_not_overlap_the_images(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    const ddp_shape image = {4, {2, 3, 5, 4}}, three = {3, {2, 3, 5, 0}};

    (void)state;
    if (!have_gpu()) skip();
    for (int device = 0; device < 2; device++) {
        ddp_ctx *d = image_context(device ? &b : NULL);
        ddp_graph *g = ddp_graph_new(d);
        ddp_node *x[4], *y = ddp_input(g, "y", DDP_I32, 2, 1);
        const size_t *at;
        ddp_layer_begin(g, "layer");
        x[0] = ddp_batch_norm2d(g, ddp_input_shape(g, "x", DDP_F32, &image));
        x[1] = ddp_dropout(g, x[0], 0.5f);
        x[2] = ddp_flatten(g, x[1]);
        (void)ddp_cross_entropy(g, ddp_linear(g, x[2], 3), y);
        x[3] = ddp_layer_norm(g, ddp_input_shape(g, "z", DDP_F32, &three));
        (void)ddp_cross_entropy(g, ddp_linear(g, ddp_flatten(g, x[3]), 3), y);
        ddp_layer_end(g);
        assert_int_equal(ddp_graph_build(g), 0);
        at = g->reuse.out;
        assert_true(at[x[1]->index] == at[x[0]->index]);
        assert_true((at[x[2]->index] == at[x[1]->index]) == !device);
        assert_true(at[x[3]->index + 1] == at[x[3]->index]);
        at = g->reuse.gradient;
        assert_true(at[x[2]->index] != at[x[1]->index]);
        ddp_close(d);
    }
    nothing_left();
}

/* A thread that raises the flags after half a second. */
typedef struct later {
    const ddp_backend *b;
    void *device;
    int raised;
} later;

static void *raise_later(void *arg)
{
    later *l = (later *)arg;

    usleep(500000);
    ddp__atomic_store(&l->raised, 1);
    l->b->raise(l->device, 1, 1);
    return NULL;
}

/* The loss is read while the device waits for a later flag. With synchronous launches, the host would wait
 * for the flag. */
static void loss_does_not_wait_for_later_work(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    ddp_config cfg;
    ddp_mlp_config c;
    ddp_graph *g, *other;
    ddp_node *loss, *second;
    ddp_ctx *d;
    pthread_t thread;
    later l;
    float first, early;
    int i, read_before;

    (void)state;
    if (!have_gpu()) skip();
    memset(&cfg, 0, sizeof cfg);
    memset(&c, 0, sizeof c);
    cfg.no_env = 1;
    cfg.backend = &b;
    cfg.micro_batches = 8; /* backward passes without an update */
    c.batch = 3;
    c.inputs = 5;
    c.hidden[0] = 7;
    c.classes = 3;
    d = ddp_open(&cfg, NULL);
    assert_non_null(d);
    g = ddp_graph_new(d);
    other = ddp_graph_new(d);
    loss = ddp_mlp(g, &c, NULL);
    second = ddp_mlp(other, &c, NULL);
    assert_int_equal(ddp_graph_build(g) | ddp_graph_build(other), 0);
    for (i = 0; i < 15; i++) ((float *)ddp_data(g, "inputs"))[i] = (float)i / 7 - 1;
    for (i = 0; i < 4; i++) { /* the library loads no kernel and makes no graph while a stream waits */
        assert_int_equal(ddp_forward(g), 0);
        first = *ddp_output(g, loss);
        assert_int_equal(ddp_backward(g, loss), 0);
    }
    assert_true(b.slots(d->host.device, 2));
    assert_int_equal(ddp_forward(g), 0);
    l.b = &b;
    l.device = d->host.device;
    l.raised = 0;
    assert_int_equal(pthread_create(&thread, NULL, raise_later, &l), 0);
    b.hold(d->host.device, 1, 1);
    assert_int_equal(ddp_backward(g, loss), 0);
    early = ddp_value(g, loss);
    read_before = !ddp__atomic_load(&l.raised);
    pthread_join(thread, NULL);
    assert_true(first > 0 && early == first);
    assert_true(read_before || launches_wait());
    for (i = 0; i < 15; i++) ((float *)ddp_data(g, "inputs"))[i] = 0;
    assert_int_equal(ddp_forward(g), 0);
    assert_int_equal(ddp_forward(other), 0); /* the buffer of the copy is in use */
    assert_true(ddp_value(g, loss) == *ddp_output(g, loss) && ddp_value(g, loss) != first);
    assert_true(ddp_value(other, second) == *ddp_output(other, second));
    ddp_close(d);
    nothing_left();
}

/* ---- the head of a language model in chunks of rows ---- */

typedef struct headed {
    int asked, nodes; /* asked: the test reads the logits, which are then computed whole */
    float losses[5];
} headed;

static int headed_worker(ddp_ctx *d, void *user)
{
    headed *x = (headed *)user;
    ddp_graph *g = ddp_graph_new(d);
    ddp_optimizer o = ddp_sgd(2, 0);
    ddp_node *logits, *loss;
    ddp_gpt2_config c;
    int bad;

    memset(&c, 0, sizeof c);
    c.vocabulary = 1009;
    c.context = 150;
    c.layers = 1;
    c.heads = 2;
    c.dim = 8;
    c.batch = 4;
    loss = ddp_gpt2(g, &c, x->asked ? &logits : NULL);
    bad = ddp_graph_build(g);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    x->nodes = ddp_node_count(g);
    for (int step = 0; !bad && step < 5; step++) {
        int32_t *t = (int32_t *)ddp_data(g, "tokens"), *y = (int32_t *)ddp_data(g, "labels");
        for (int i = 0; i < 600; i++) {
            t[i] = (7 * i + step) % 13;
            y[i] = i % 9 ? (t[i] + 1) % 13 : -1;
        }
        bad = step == 4 ? ddp_evaluate(g) : ddp_forward(g);
        x->losses[step] = ddp_value(g, loss);
        if (!bad && step < 4) bad = ddp_backward(g, loss);
        if (!bad && step < 4) bad = ddp_step_end(d);
    }
    return bad;
}

static void chunked_head_trains_as_an_unchunked_one(void **state)
{
    static const ddp_cuda_numbers numbers[] = {DDP_CUDA_F32, DDP_CUDA_BF16};

    (void)state;
    for (int n = 0; n < 2; n++) {
        headed x[2];
        for (int i = 0; i < 2; i++) {
            ddp_backend b = ddp_cuda(numbers[n], 0);
            ddp_config cfg;
            ddp_error err;
            memset(&cfg, 0, sizeof cfg);
            cfg.world = 1;
            cfg.no_env = 1;
            cfg.deterministic = 1;
            cfg.backend = &b;
            memset(&x[i], 0, sizeof x[i]);
            x[i].asked = i;
            if (ddp_launch(&cfg, headed_worker, &x[i], &err)) fail_msg("%s", err.msg);
        }
        assert_int_equal(x[0].nodes, x[1].nodes - 1);
        assert_true(x[0].losses[4] < x[0].losses[0] - 0.1f);
        for (int step = 0; step < 5; step++)
            assert_float_equal(x[0].losses[step], x[1].losses[step], n ? 2e-3f : 2e-6f);
    }
    nothing_left();
}

/* ---- failures ---- */

#ifdef DDP_CUDA_ON_CPU
static const char *refused(const ddp_backend *b, int world, int nccl, int (*worker)(ddp_ctx *, void *))
{
    static char text[DDP_ERROR_TEXT];
    ddp_error err;
    lab x;

    lab_new(&x, world, DDP_DREAMDDP, 3);
    x.model = LAB_MLP;
    x.cfg.backend = b;
    x.cfg.device.nccl = nccl;
    memset(&err, 0, sizeof err);
    assert_int_not_equal(ddp_launch(&x.cfg, worker, &x, &err), 0);
    snprintf(text, sizeof text, "%s", err.msg);
    lab_free(&x);
    cuda_on_cpu::mend();
    nothing_left();
    return text;
}

static char sentence[DDP_ERROR_TEXT];

static int built_too_large(ddp_ctx *d, void *user)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_gpt2_config c;

    (void)user;
    memset(&c, 0, sizeof c);
    c.vocabulary = 101;
    c.context = 64;
    c.layers = 4;
    c.heads = 4;
    c.dim = 64;
    c.batch = 16;
    (void)ddp_gpt2(g, &c, NULL);
    (void)ddp_graph_build(g);
    snprintf(sentence, sizeof sentence, "%s", ddp_graph_error(g)->msg);
    return (int)ddp_graph_error(g)->code;
}

/* A launch fails in rank 1's third step. Rank 0 waits for rank 1. */
static void break_it(const ddp_optimizer *self, const ddp_update *u)
{
    (void)self;
    (void)u;
    if (u->step == 2) cuda_on_cpu::fault("broken on purpose");
}

static int breaks_in_a_step(ddp_ctx *d, void *user)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_optimizer o;
    ddp_mlp_config c;
    ddp_node *loss;
    int bad, step;

    (void)user;
    memset(&c, 0, sizeof c);
    memset(&o, 0, sizeof o);
    c.batch = 3;
    c.inputs = 5;
    c.hidden[0] = 7;
    c.hidden[1] = 9;
    c.classes = 3;
    o.name = "breaks";
    o.update = break_it;
    o.lr = 1;
    loss = ddp_mlp(g, &c, NULL);
    bad = ddp_graph_build(g);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (step = 0; !bad && step < 9; step++) {
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
    }
    assert_true(step < 9);
    return bad;
}

static void says(const char *text, const char *one, const char *two)
{
    if (!strstr(text, one) || !strstr(text, two)) fail_msg("%s", text);
}

/* By messages over the host, with NCCL and with both. */
static void driver_without_stream_waits_still_trains(void **state)
{
    (void)state;
    cuda_on_cpu::set_waits(false);
    networks_train_as_the_cpu(DDP_DREAMDDP, LAB_MLP, LAB_MOMENTUM, 2, DDP_CUDA_F32, 0, 0, 1e-4);
    networks_train_as_the_cpu(DDP_DREAMDDP, LAB_MLP, LAB_MOMENTUM, 3, DDP_CUDA_F32, 1, 0, 1e-4);
    networks_train_as_the_cpu(DDP_WFBP, LAB_MLP, LAB_MOMENTUM, 4, DDP_CUDA_F32, 1, 2, 1e-4);
    cuda_on_cpu::set_waits(true);
}

static void failures_return_clear_errors(void **state)
{
    const ddp_backend one = ddp_cuda(DDP_CUDA_F32, 0), ninth = ddp_cuda(DDP_CUDA_F32, 9);
    const ddp_backend each = ddp_cuda(DDP_CUDA_F32, -1);
    const char *why;

    (void)state;
    cuda_on_cpu::set_devices(0);
    says(refused(&one, 2, 0, lab_worker), "no CUDA device", "train on the CPU");
    cuda_on_cpu::set_devices(8);
    cuda_on_cpu::set_driver(12040);
    says(refused(&one, 2, 0, lab_worker), "supports CUDA 12.4", "compiled for 13.0");
    cuda_on_cpu::set_driver(0);
    says(refused(&ninth, 1, 0, lab_worker), "GPU 9 does not exist", "GPUs 0 to 7");
    cuda_on_cpu::set_memory((size_t)48 << 20);
    (void)refused(&one, 1, 0, built_too_large);
    says(sentence, "out of memory: the graph needs", "the device has");
    cuda_on_cpu::set_memory((size_t)16 << 20); /* less than the workspace of cuBLAS */
    says(refused(&one, 1, 0, lab_worker), "GPU 0", "out of memory");
    cuda_on_cpu::set_memory((size_t)1 << 32);
    says(refused(&one, 2, 0, breaks_in_a_step), "GPU 0", "unspecified launch failure");
    why = refused(&each, 2, 1, breaks_in_a_step); /* from the failing rank, or from the rank that lost it */
    if (!strstr(why, "unspecified launch failure")) says(why, "of 2", "lost a peer");
    says(refused(&one, 2, 1, lab_worker), "the GPU is in use", "a separate GPU");
}

static void failed_pinned_allocation_leaks_nothing(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    ddp_error err;
    void *self;

    (void)state;
    assert_int_equal(b.open(&b, 0, NULL, &self, &err), DDP_OK);
    cuda_on_cpu::set_pinned(0);
    assert_int_equal(b.slots(self, 4), 0);
    b.close(self);
    cuda_on_cpu::set_pinned(1L << 40);
    nothing_left();
}

/* A new process: kernels of updates that wait for averages are launched for the first time during an average.
 * */
static void no_kernel_is_loaded_during_an_average(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_WFBP};
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);
    ddp_error err;
    lab x;
    int i;

    (void)state;
    for (i = 0; i < 3; i++) {
        const int sites = i == 2;
        cuda_on_cpu::unload();
        lab_new(&x, sites ? 4 : 2, strategies[i], 3);
        x.model = LAB_MLP;
        x.cfg.backend = &b;
        x.cfg.net = "100mbit,50ms";
        x.cfg.device.nccl = sites;
        x.cfg.site = 2 * sites;
        if (ddp_launch(&x.cfg, in_its_site, &x, &err)) fail_msg("%s", err.msg);
        lab_free(&x);
        nothing_left();
    }
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_are_bit_identical_to_the_cpu),
        cmocka_unit_test(array_without_gradient_is_not_updated),
        cmocka_unit_test(upload_rounds_as_the_kernels_do),
        cmocka_unit_test(images_are_stored_channels_last),
        cmocka_unit_test(clipping_runs_without_the_host),
        cmocka_unit_test(every_strategy_matches_the_cpu),
        cmocka_unit_test(bfloat16_training_matches_the_cpu),
        cmocka_unit_test(nccl_training_matches_the_cpu),
        cmocka_unit_test(hierarchical_averages_match_the_cpu),
        cmocka_unit_test(both_links_are_used_at_once),
        cmocka_unit_test(lost_rank_ends_the_wait_for_its_average),
        cmocka_unit_test(lost_rank_ends_the_wait_for_parameters),
        cmocka_unit_test(residual_sums_run_with_their_norms),
        cmocka_unit_test(batch_norms_run_with_their_relu),
        cmocka_unit_test(products_run_with_their_gelu),
        cmocka_unit_test(layers_run_as_graphs),
        cmocka_unit_test(freed_memory_drops_its_graphs),
        cmocka_unit_test(chunked_head_trains_as_an_unchunked_one),
        cmocka_unit_test(images_are_returned_in_nchw_order),
        cmocka_unit_test(row_operators_on_images_are_rejected),
        cmocka_unit_test(flattened_images_do_not_overlap_the_images),
        cmocka_unit_test(device_reports_layer_times),
        cmocka_unit_test(loss_does_not_wait_for_later_work),
#ifdef DDP_CUDA_ON_CPU
        cmocka_unit_test(failures_return_clear_errors),
        cmocka_unit_test(driver_without_stream_waits_still_trains),
        cmocka_unit_test(failed_pinned_allocation_leaks_nothing),
        cmocka_unit_test(no_kernel_is_loaded_during_an_average),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
