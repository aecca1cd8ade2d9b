/* [test-all: compiles the GPU companion] Messages from a GPU to servers, and quantised messages: with equal
 * gradients the parameters are bit-identical to the CPU's. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp_cuda.cuh"

#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
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

#include "strategy/strategy_lab.h"

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
#endif
}

/* The program's own layers, with gradients that the host computes from their parameters. On a server rank
 * they are in host memory. */
typedef struct own_layers {
    const ddp_backend *b; /* NULL: in host memory */
    void *device;
    float *w[LAB_LAYERS], *g[LAB_LAYERS], *here; /* here: host buffer for two of the largest layer */
    size_t count[LAB_LAYERS], most;
    int layers;
} own_layers;

static float *own_memory(const own_layers *x, size_t n)
{
    return (float *)(x->b ? x->b->alloc(x->device, n * sizeof(float)) : calloc(n, sizeof(float)));
}

static int own_add(ddp_ctx *d, own_layers *x, const lab *l)
{
    ddp_layer layer;
    int i;
    size_t k;

    x->b = d->host.backend;
    x->device = d->host.device;
    x->layers = lab_sizes(l->model, x->count);
    for (i = 0; i < x->layers; i++)
        if (x->count[i] > x->most) x->most = x->count[i];
    x->here = (float *)calloc(2 * x->most, sizeof(float));
    for (i = 0; i < x->layers; i++) {
        const size_t bytes = x->count[i] * sizeof(float);
        x->w[i] = own_memory(x, x->count[i]);
        x->g[i] = own_memory(x, x->count[i]);
        for (k = 0; k < x->count[i]; k++) x->here[k] = lab_start(0, i, k);
        if (x->b)
            x->b->upload(x->device, x->w[i], x->here, bytes);
        else
            memcpy(x->w[i], x->here, bytes);
        memset(&layer, 0, sizeof layer);
        layer.params = x->w[i];
        layer.grads = x->g[i];
        layer.count = x->count[i];
        if (ddp_add_layer(d, &layer)) return (int)ddp_last_error(d)->code;
    }
    return 0;
}

static int own_read(const own_layers *x, float *to, const float *from, size_t n)
{
    ddp_error err;

    if (x->b) return (int)x->b->download(x->device, to, from, n * sizeof *to, &err);
    memcpy(to, from, n * sizeof *to);
    return 0;
}

static int own_backward(ddp_ctx *d, own_layers *x, int layer, int step)
{
    const size_t n = x->count[layer];
    float *w = x->here, *g = x->here + x->most;

    if (own_read(x, w, x->w[layer], n)) return 1;
    memset(g, 0, n * sizeof *g);
    lab_gradient(w, g, n, ddp_rank(d), layer, step);
    if (x->b)
        x->b->upload(x->device, x->g[layer], g, n * sizeof *g);
    else
        memcpy(x->g[layer], g, n * sizeof *g);
    return ddp_backward_end(d, layer);
}

static int own_loop(ddp_ctx *d, void *user)
{
    lab *l = (lab *)user;
    ddp_optimizer o = lab_optimizer(l->rule);
    own_layers x;
    size_t at = 0;
    int i, step, bad;

    memset(&x, 0, sizeof x);
    bad = own_add(d, &x, l);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && lab_serves(d)) bad = ddp_serve(d);
    for (step = 0; !bad && step < l->steps && !lab_serves(d); step++) {
        lab_rate(d, l, &o, step);
        for (i = x.layers - 1; i >= 0 && !bad; i--) bad = own_backward(d, &x, i, step);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad && !lab_serves(d)) bad = ddp_sync_all(d);
    for (i = 0; !bad && i < x.layers; at += x.count[i++])
        bad = own_read(&x, l->params[ddp_rank(d)] + at, x.w[i], x.count[i]);
    if (ddp_rank(d) == 0) *l->values = at;
    for (i = 0; i < x.layers; i++) {
        if (x.b) {
            x.b->release(x.device, x.w[i], 0);
            x.b->release(x.device, x.g[i], 0);
        } else {
            free(x.w[i]);
            free(x.g[i]);
        }
    }
    free(x.here);
    return bad;
}

typedef void (*choose)(ddp_config *c, int k);

static void equal_to_the_cpu(const char *what, ddp_strategy strategy, lab_model model, lab_rule rule,
                             int world, choose set, int k)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);
    ddp_error err;
    lab run[2];
    int i, r;

    for (i = 0; i < 2; i++) {
        lab_new(&run[i], world, strategy, 3);
        run[i].model = model;
        run[i].rule = rule;
        run[i].rates = 1;
        if (set) set(&run[i].cfg, k);
        run[i].cfg.backend = i ? &b : NULL;
        if (ddp_launch(&run[i].cfg, own_loop, &run[i], &err))
            fail_msg("%s, %s: %s", what, i ? "GPU" : "CPU", err.msg);
    }
    assert_true(*run[0].values > 10 && *run[0].values == *run[1].values);
    for (r = 0; r < world; r++)
        if (memcmp(run[0].params[r], run[1].params[r], *run[0].values * sizeof(float)))
            fail_msg("%s %s, case %d, rank %d: parameters differ from the CPU's", ddp_strategy_name(strategy),
                     what, k, r);
    lab_free(&run[0]);
    lab_free(&run[1]);
    nothing_left();
}

/* ---- servers ---- */

static void served(ddp_config *c, int k)
{
    static const ddp_lgp lgp[] = {DDP_LGP_ON, DDP_LGP_EMA, DDP_LGP_OFF};

    c->server.count = k % 2 ? DDP_SERVERS_COLOCATED : 1;
    c->server.staleness = 1;
    c->osp.defer = 0.6;
    c->osp.lgp = lgp[k / 2 % 3];
    c->plan.paper = k >= 6;
}

static void gpu_workers_with_servers_match_the_cpu(void **state)
{
    int s, k;

    (void)state;
    if (!have_gpu()) skip();
    for (s = (int)DDP_BSP; s <= (int)DDP_OSP; s++)
        for (k = 0; k < 2; k++)
            equal_to_the_cpu("with servers", (ddp_strategy)s, k ? LAB_ODD : LAB_TINY,
                             k ? LAB_MOMENTUM : LAB_ADAMW, 3, served, k);
    for (k = 2; k < 8; k++)
        equal_to_the_cpu("in its ways", DDP_OSP, k % 2 ? LAB_ODD : LAB_TINY, k % 3 ? LAB_ADAMW : LAB_NESTEROV,
                         3, served, k);
}

/* The gradients of a graph agree with the CPU's within rounding. The server's layers are in host memory. */
static void graphs_with_servers_match_the_cpu(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);
    double most = 0;
    lab run[2];
    size_t n;
    int i, s, r;

    (void)state;
    if (!have_gpu()) skip();
    for (s = (int)DDP_BSP; s <= (int)DDP_OSP; s++) {
        for (i = 0; i < 2; i++) {
            lab_new(&run[i], 3, (ddp_strategy)s, 3);
            run[i].model = LAB_GPT;
            run[i].rule = LAB_ADAMW;
            served(&run[i].cfg, s == (int)DDP_ASP);
            run[i].cfg.backend = i ? &b : NULL;
            lab_run(&run[i]);
        }
        assert_true(*run[0].values > 10 && *run[0].values == *run[1].values);
        for (r = 0; r < 2; r++)
            for (n = 0; n < *run[0].values; n++) {
                const double e = fabs((double)run[0].params[r][n] - (double)run[1].params[r][n]);
                if (!(e <= most)) most = e;
            }
        if (!(most < 1e-3)) fail_msg("%s: %g", ddp_strategy_name((ddp_strategy)s), most);
        assert_memory_equal(run[1].params[0], run[1].params[1], *run[1].values * sizeof(float));
        lab_free(&run[0]);
        lab_free(&run[1]);
        nothing_left();
    }
}

/* ---- quantised messages ---- */

static void coded(ddp_config *c, int k)
{
    static const ddp_wire wires[] = {DDP_WIRE_F32,  DDP_WIRE_BF16, DDP_WIRE_INT8,
                                     DDP_WIRE_INT4, DDP_WIRE_E3M0, DDP_WIRE_TOPK};
    static const ddp_overlap overlaps[] = {DDP_OVERLAP_NONE, DDP_OVERLAP_STREAM, DDP_OVERLAP_EAGER};

    c->wire = wires[k % 6];
    c->outer.overlap = overlaps[k / 6];
}

/* Blocks quantised on the device, and their residual, equal those of ddp_split. Odd lengths, zeros,
 * denormals, huge values. */
static void split_compare(int bits, size_t n, int kind)
{
    const ddp_coding coding = bits == 8 ? DDP_AS_INT8 : DDP_AS_INT4;
    const size_t bytes = ddp__quantised_bytes(bits == 8 ? DDP_PACK_INT8 : DDP_PACK_INT4, n);
    ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);
    float *x = (float *)calloc(3 * n, 4), *said = x + n, *back = x + 2 * n;
    unsigned char *codes = (unsigned char *)calloc(1, bytes);
    ddp_rng r = ddp_rng_seed(n, (uint64_t)kind);
    ddp_error err;
    void *self, *out;
    float *there;
    size_t i;

    for (i = 0; i < n; i++) {
        x[i] = (float)ddp_rng_normal(&r);
        if (kind == 1) x[i] *= i / 64 % 2 ? 1e-40f : 0;
        if (kind == 2) x[i] *= i / 64 % 2 ? 3e37f : 1e-37f;
        if (kind == 2 && i % 64 == 9) x[i] = -FLT_MAX;
    }
    assert_int_equal(b.open(&b, 0, NULL, &self, &err), DDP_OK);
    there = (float *)b.alloc(self, (n + 1) * 4);
    out = b.alloc(self, bytes);
    b.upload(self, there + 1, x, n * 4); /* not aligned */
    b.split(self, bits, there + 1, out, n);
    assert_int_equal(b.download(self, codes, out, bytes, &err), DDP_OK);
    assert_int_equal(b.download(self, back, there + 1, n * 4, &err), DDP_OK);
    assert_int_equal(ddp_split(coding, x, said, n, &err), DDP_OK);
    assert_memory_equal(x, back, n * 4);
    assert_int_equal(ddp__blocks_coder()->decode(coding, back, codes, n, &err), DDP_OK);
    assert_memory_equal(said, back, n * 4);
    x[n / 2] = kind ? NAN : -INFINITY;
    b.upload(self, there + 1, x, n * 4);
    b.split(self, bits, there + 1, out, n);
    assert_int_equal(b.download(self, codes, out, bytes, &err), DDP_OK);
    assert_int_not_equal(ddp__blocks_coder()->decode(coding, back, codes, n, &err), DDP_OK);
    b.release(self, there, 0);
    b.release(self, out, 0);
    b.close(self);
    free(x);
    free(codes);
    nothing_left();
}

static void blocks_quantised_on_a_gpu_match_the_cpu(void **state)
{
    static const size_t sizes[] = {1, 63, 64, 65, 4097, 70001};
    int s, k;

    (void)state;
    if (!have_gpu()) skip();
    for (s = 0; s < 6; s++)
        for (k = 0; k < 6; k++) split_compare(k % 2 ? 8 : 4, sizes[s], k / 2);
}

static void compensated(ddp_config *c, int k)
{
    (void)k;
    c->outer.overlap = DDP_OVERLAP_EAGER;
    c->outer.compensation = 0.5;
}

static void in_int8(ddp_config *c, int k)
{
    (void)k;
    c->wire = DDP_WIRE_INT8;
}

static void gpu_deltas_match_the_cpu_in_every_coding(void **state)
{
    int k;

    (void)state;
    if (!have_gpu()) skip();
    for (k = 0; k < 18; k++)
        equal_to_the_cpu("coded", k % 6 == 5 && k > 5 ? DDP_SPARSELOCO : DDP_DILOCO,
                         k % 2 ? LAB_ODD : LAB_TINY, (lab_rule)(k % 4), 2, coded, k);
    equal_to_the_cpu("compensated", DDP_DILOCO, LAB_ODD, LAB_SGD, 3, compensated, 0);
}

static void gpu_averages_in_int8_match_the_cpu(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD,     DDP_WFBP,   DDP_LOCALSGD,
                                              DDP_DREAMDDP, DDP_USBYTE, DDP_DEFT};
    int s;

    (void)state;
    if (!have_gpu()) skip();
    for (s = 0; s < 6; s++)
        equal_to_the_cpu("int8", strategies[s], s % 2 ? LAB_ODD : LAB_TINY, (lab_rule)(s % 4), 2 + s % 2,
                         in_int8, 0);
}

#ifdef DDP_CUDA_ON_CPU
static void slowly(ddp_config *c, int k)
{
    c->outer.overlap = k % 2 ? DDP_OVERLAP_EAGER : DDP_OVERLAP_STREAM;
    c->outer.compensation = k == 1 ? 0.5 : 0;
    c->wire = k < 2 ? DDP_WIRE_F32 : DDP_WIRE_INT4;
    c->net = "100mbit,50ms";
}

/* A new process: kernels of the outer step are launched for the first time while parameter deltas are in
 * flight. */
static void no_kernel_is_loaded_while_a_delta_is_in_flight(void **state)
{
    int k;

    (void)state;
    for (k = 0; k < 3; k++) {
        cuda_on_cpu::unload();
        equal_to_the_cpu("behind a slow link", DDP_DILOCO, LAB_TINY, LAB_SGD, 2, slowly, k);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpu_workers_with_servers_match_the_cpu),
        cmocka_unit_test(graphs_with_servers_match_the_cpu),
        cmocka_unit_test(blocks_quantised_on_a_gpu_match_the_cpu),
        cmocka_unit_test(gpu_deltas_match_the_cpu_in_every_coding),
        cmocka_unit_test(gpu_averages_in_int8_match_the_cpu),
#ifdef DDP_CUDA_ON_CPU
        cmocka_unit_test(no_kernel_is_loaded_while_a_delta_is_in_flight),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
