/* Kernels of the GPU companion compared with the memory rate of the device, one JSON object per line:
 *
 *   nvcc -O3 -std=c++17 -arch=sm_90a -I. bench/bench_gpu.cu -o bench_gpu -lcublas -lcublasLt -lnccl -lpthread
 *   ./bench_gpu [--small | --tiny]        tiny: a smoke test
 *
 * sm_90a is an H100, where -arch=native would omit the wgmma kernels. Use -arch=native for other GPUs.
 *
 * Each time is the median of 20 after 3 warm-up runs, by the events of the device. share: necessary bytes
 * per second, divided by a copy's. The last row is the step of a small GPT-2 with and without CUDA
 * graphs. Exit 77: no GPU. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp_cuda.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM = 3, TIMES = 20 };

typedef struct bench {
    ddp_backend b;
    void *self;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    double copy; /* bytes/s of a copy, reads and writes counted */
    int size;    /* 0 as GPT-2 124M trains, 1 small, 2 tiny */
} bench;

static void quit(const char *what, const ddp_error *err)
{
    fprintf(stderr, "bench_gpu: %s: %s\n", what, err->msg);
    exit(1);
}

static void *room(bench *b, size_t bytes)
{
    void *p = b->b.alloc(b->self, bytes);

    if (!p) {
        fprintf(stderr, "bench_gpu: %zu bytes of device memory cannot be had; try --small\n", bytes);
        exit(1);
    }
    return p;
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* Median seconds of the work that `work` queues. */
static double timed(bench *b, void (*work)(bench *b, void *user), void *user)
{
    float ms[TIMES];
    ddp_error err;
    int i;

    for (i = -WARM; i < TIMES; i++) {
        (void)cudaEventRecord(b->begin, b->stream);
        work(b, user);
        (void)cudaEventRecord(b->end, b->stream);
        if (b->b.wait(b->self, &err)) quit("a kernel", &err);
        if (i >= 0) (void)cudaEventElapsedTime(&ms[i], b->begin, b->end);
    }
    qsort(ms, TIMES, sizeof ms[0], ascending);
    return 1e-3 * (double)ms[TIMES / 2];
}

static void say(const bench *b, const char *what, double seconds, double bytes, double flops)
{
    printf("{\"event\": \"gpu_kernel\", \"what\": \"%s\", \"ms\": %.4f, \"gb_per_s\": %.0f, "
           "\"share\": %.3f, "
           "\"tflops\": %.1f}\n",
           what, 1e3 * seconds, 1e-9 * bytes / seconds, b->copy > 0 ? bytes / seconds / b->copy : 1.0,
           1e-12 * flops / seconds);
    fflush(stdout);
}

/* ---- copy ---- */

typedef struct copying {
    void *to, *from;
    size_t bytes;
} copying;

static void copy_once(bench *b, void *user)
{
    const copying *c = (const copying *)user;

    b->b.copy(b->self, c->to, c->from, c->bytes);
}

static void bench_copy(bench *b)
{
    static const size_t sizes[] = {(size_t)1 << 30, (size_t)64 << 20, (size_t)1 << 20};
    copying c;
    double s;

    c.bytes = sizes[b->size];
    c.to = room(b, c.bytes);
    c.from = room(b, c.bytes);
    s = timed(b, copy_once, &c);
    say(b, "copy", s, 2.0 * (double)c.bytes, 0);
    b->copy = 2.0 * (double)c.bytes / s;
    b->b.release(b->self, c.to, c.bytes);
    b->b.release(b->self, c.from, c.bytes);
}

/* ---- AdamW with a bfloat16 copy of the weights ---- */

typedef struct updating {
    ddp_optimizer o;
    ddp_update u;
} updating;

static void update_once(bench *b, void *user)
{
    updating *x = (updating *)user;

    x->u.step++;
    b->b.update(b->self, &x->o, &x->u, 1);
}

static void bench_adamw(bench *b)
{
    static const size_t sizes[] = {(size_t)124 << 20, (size_t)4 << 20, 4096};
    const size_t n = sizes[b->size], bytes = n * sizeof(float);
    updating x;
    float *w = (float *)room(b, bytes), *g = (float *)room(b, bytes), *s = (float *)room(b, 2 * bytes);
    double t;

    memset(&x, 0, sizeof x);
    x.o = ddp_adamw(3e-4f, 0.9f, 0.999f, 1e-8f, 0.01f);
    x.u.params = w;
    x.u.grads = g;
    x.u.state = s;
    x.u.count = n;
    x.u.lr = 3e-4f;
    if (!b->b.mirror(b->self, w, n)) exit(1);
    t = timed(b, update_once, &x);
    /* reads w, g and two states, writes them, and 2 bytes of the copy */
    say(b, "adamw", t, 34.0 * (double)n, 0);
    b->b.forget(b->self, w);
    b->b.release(b->self, w, bytes);
    b->b.release(b->self, g, bytes);
    b->b.release(b->self, s, 2 * bytes);
}

/* ---- operators ---- */

typedef struct operating {
    const ddp_op *op;
    ddp_op_spec spec;
    ddp_op_call call;
    int backward;
} operating;

static void op_once(bench *b, void *user)
{
    operating *o = (operating *)user;

    (void)b;
    (o->backward ? o->op->backward : o->op->forward)(&o->call);
}

static size_t op_bytes(const ddp_shape *s, int type_is_int, int param_grad)
{
    return (size_t)ddp_shape_count(s) * (type_is_int || param_grad || s->dims == 0 ? 4 : 2);
}

/* One operator in bfloat16, forward and backward. moved: elements that must move, as a multiple of
 * those of in[0]; flops from its shape rule. ints: the last input holds integers, all 0. */
static void bench_op(bench *b, const char *name, int inputs, ddp_shape a, ddp_shape second, const double *arg,
                     int ints, const double *moved)
{
    operating o;
    ddp_error err;
    char what[80];
    size_t need;
    int i, pass;

    memset(&o, 0, sizeof o);
    o.op = b->b.op(b->self, name);
    if (!o.op) return;
    o.spec.inputs = inputs;
    o.spec.in[0] = a;
    o.spec.in[1] = second;
    o.spec.in_type[inputs - 1] = ints ? DDP_I32 : DDP_F32;
    for (i = 0; arg && i < 3; i++) o.spec.arg[i] = arg[i];
    if (o.op->shape(&o.spec, &err)) quit(name, &err);
    need = b->b.scratch(b->self, o.op, &o.spec);
    if (need && !b->b.reserve(b->self, need)) exit(1);
    o.call.spec = &o.spec;
    o.call.pool = b->b.compute(b->self);
    o.call.training = 1;
    o.call.out = room(b, op_bytes(&o.spec.out, 0, 0));
    o.call.grad_out = room(b, op_bytes(&o.spec.out, 0, 0));
    if (o.spec.saved) o.call.saved = room(b, o.spec.saved * 4);
    for (i = 0; i < inputs; i++) {
        const int whole = ints && i == inputs - 1;
        o.call.in[i] = room(b, op_bytes(&o.spec.in[i], whole, 0));
        if (!whole) o.call.grad_in[i] = room(b, op_bytes(&o.spec.in[i], 0, 0));
    }
    for (i = 0; i < o.spec.params; i++) {
        o.call.param[i] = room(b, op_bytes(&o.spec.param[i].shape, 0, 0));
        o.call.grad_param[i] = room(b, op_bytes(&o.spec.param[i].shape, 0, 1));
    }
    for (pass = 0; pass < 2; pass++) {
        double s, flops = o.spec.flops;
        o.backward = pass;
        if (pass) flops = o.spec.backward_flops > 0 ? o.spec.backward_flops : 2 * flops;
        s = timed(b, op_once, &o);
        snprintf(what, sizeof what, "%s %s", name, pass ? "backward" : "forward");
        say(b, what, s, moved[pass] * 2 * (double)ddp_shape_count(&a), flops);
    }
    /* the backend frees its arrays itself; the sizes are those passed to alloc */
    b->b.release(b->self, o.call.out, op_bytes(&o.spec.out, 0, 0));
    b->b.release(b->self, (void *)(uintptr_t)o.call.grad_out, op_bytes(&o.spec.out, 0, 0));
    if (o.spec.saved) b->b.release(b->self, o.call.saved, o.spec.saved * 4);
    for (i = 0; i < inputs; i++) {
        const int whole = ints && i == inputs - 1;
        b->b.release(b->self, (void *)(uintptr_t)o.call.in[i], op_bytes(&o.spec.in[i], whole, 0));
        if (!whole) b->b.release(b->self, o.call.grad_in[i], op_bytes(&o.spec.in[i], 0, 0));
    }
    for (i = 0; i < o.spec.params; i++) {
        b->b.release(b->self, (void *)(uintptr_t)o.call.param[i], op_bytes(&o.spec.param[i].shape, 0, 0));
        b->b.release(b->self, o.call.grad_param[i], op_bytes(&o.spec.param[i].shape, 0, 1));
    }
}

static ddp_shape shape(int dims, long a, long b, long c)
{
    ddp_shape s;

    memset(&s, 0, sizeof s);
    s.dims = dims;
    s.dim[0] = a;
    s.dim[1] = b;
    s.dim[2] = c;
    return s;
}

/* Sizes of GPT-2 124M. */
static void bench_ops(bench *b)
{
    static const double one_by_one[] = {2, 3}, sum[] = {3, 3}, loss[] = {1, 2}, none[] = {0, 0};
    const int tiny = b->size == 2;
    const long batch = b->size ? 2 : 32, seq = tiny ? 24 : 1024, dim = tiny ? 48 : 768;
    const long vocab = tiny ? 96 : 50304;
    const double heads[] = {tiny ? 3.0 : 12.0, 0, 0}, wide[] = {4.0 * (double)dim, 0, 0};
    const ddp_shape x = shape(3, batch, seq, dim), empty = shape(0, 0, 0, 0);

    bench_op(b, "cross_entropy", 2, shape(3, batch, seq, vocab), shape(2, batch, seq, 0), NULL, 1, loss);
    bench_op(b, "layer_norm", 1, x, empty, NULL, 0, one_by_one);
    bench_op(b, "gelu", 1, shape(3, batch, seq, 4 * dim), empty, NULL, 0, one_by_one);
    bench_op(b, "add", 2, x, x, NULL, 0, sum);
    bench_op(b, "linear", 1, x, empty, wide, 0, none);
    bench_op(b, "attention", 1, shape(3, batch, seq, 3 * dim), empty, heads, 0, none);
}

/* ---- Top-K ---- */

typedef struct picking {
    float *x, *value;
    size_t n, k, scratch_bytes;
    void *scratch;
    uint64_t *index;
    ddp_cuda_verdict *verdict;
} picking;

static void topk_once(bench *b, void *user)
{
    picking *p = (picking *)user;
    ddp_error err;

    if (ddp_cuda_topk(p->x, p->n, p->k, p->scratch, p->scratch_bytes, p->index, p->value, p->verdict,
                      b->stream, &err))
        quit("ddp_cuda_topk", &err);
}

/* Cubes of normal values, as heavy-tailed as gradients. */
static void bench_topk(bench *b)
{
    static const size_t sizes[] = {25000000, 1000000, 20000};
    picking p;
    float *host;
    ddp_rng rng = ddp_rng_seed(1, 1);
    double s;
    size_t i;

    memset(&p, 0, sizeof p);
    p.n = sizes[b->size];
    p.k = p.n / 100;
    p.scratch_bytes = ddp_cuda_topk_scratch(p.n, p.k);
    host = (float *)malloc(p.n * sizeof *host);
    if (!host) exit(1);
    for (i = 0; i < p.n; i++) {
        const double v = ddp_rng_normal(&rng);
        host[i] = (float)(v * v * v);
    }
    p.x = (float *)room(b, p.n * sizeof *p.x);
    p.value = (float *)room(b, p.k * sizeof *p.value);
    p.index = (uint64_t *)room(b, p.k * sizeof *p.index);
    p.scratch = room(b, p.scratch_bytes);
    p.verdict = (ddp_cuda_verdict *)room(b, sizeof *p.verdict);
    b->b.upload(b->self, p.x, host, p.n * sizeof *host);
    s = timed(b, topk_once, &p);
    say(b, "topk 1%", s, 4.0 * (double)p.n, 0);
    printf("{\"event\": \"gpu_topk\", \"n\": %zu, \"k\": %zu, \"ms\": %.4f, \"reads\": %.2f}\n", p.n, p.k,
           1e3 * s, s * b->copy / (4.0 * (double)p.n));
    free(host);
    b->b.release(b->self, p.x, p.n * sizeof *p.x);
    b->b.release(b->self, p.value, p.k * sizeof *p.value);
    b->b.release(b->self, p.index, p.k * sizeof *p.index);
    b->b.release(b->self, p.scratch, p.scratch_bytes);
    b->b.release(b->self, p.verdict, sizeof *p.verdict);
}

/* ---- CUDA graphs: the step of a small GPT-2, whose kernels are short ---- */

/* Median seconds of a step. On a stream of the program the library captures nothing. */
static double step_seconds(const bench *b, void *stream)
{
    const ddp_backend backend = ddp_cuda(DDP_CUDA_BF16, 0);
    const ddp_optimizer o = ddp_adamw(1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f);
    float s[TIMES];
    ddp_gpt2_config c;
    ddp_config cfg;
    ddp_error err;
    ddp_graph *g;
    ddp_node *loss;
    ddp_ctx *d;
    int bad;

    memset(&cfg, 0, sizeof cfg);
    cfg.world = 1;
    cfg.no_env = 1;
    cfg.backend = &backend;
    cfg.device.cuda_stream = stream;
    memset(&c, 0, sizeof c);
    c.vocabulary = 512;
    c.context = 64;
    c.batch = 4;
    c.heads = 4;
    c.layers = b->size == 2 ? 1 : 8;
    c.dim = b->size == 2 ? 32 : 256;
    d = ddp_open(&cfg, &err);
    if (!d) quit("a small GPT-2", &err);
    g = ddp_graph_new(d);
    loss = ddp_gpt2(g, &c, NULL);
    bad = ddp_graph_build(g) || ddp_set_optimizer(d, &o);
    for (int i = -WARM; i < TIMES && !bad; i++) {
        const double since = ddp_now();
        int32_t *token = (int32_t *)ddp_data(g, "tokens"), *label = (int32_t *)ddp_data(g, "labels");
        for (int k = 0; k < c.batch * c.context; k++) {
            token[k] = k % 500;
            label[k] = (k + 1) % 500;
        }
        bad = ddp_forward(g) || ddp_backward(g, loss) || ddp_step_end(d) || ddp_wait(d) ||
              !(ddp_value(g, loss) > 0);
        if (i >= 0) s[i] = (float)(ddp_now() - since);
    }
    if (bad) quit("a small GPT-2", ddp_last_error(d));
    ddp_close(d);
    qsort(s, TIMES, sizeof s[0], ascending);
    return (double)s[TIMES / 2];
}

static void bench_graphs(const bench *b)
{
    const double plain = step_seconds(b, b->stream), graphs = step_seconds(b, NULL);

    printf("{\"event\": \"gpu_graphs\", \"ms\": %.4f, \"plain_ms\": %.4f}\n", 1e3 * graphs, 1e3 * plain);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    cudaDeviceProp props;
    ddp_error err;
    bench b;
    int devices = 0, driver = 0, runtime = 0;

    memset(&b, 0, sizeof b);
    b.size = argc < 2 ? 0 : strcmp(argv[1], "--tiny") == 0 ? 2 : strcmp(argv[1], "--small") == 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1) {
        fprintf(stderr, "bench_gpu: no CUDA device was found here\n");
        return 77;
    }
    if (cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreate(&b.begin) != cudaSuccess || cudaEventCreate(&b.end) != cudaSuccess ||
        cudaGetDeviceProperties(&props, 0) != cudaSuccess) {
        fprintf(stderr, "bench_gpu: GPU 0 cannot be used: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    b.b = ddp_cuda(DDP_CUDA_BF16, 0);
    if (b.b.open(&b.b, 0, b.stream, &b.self, &err) || b.b.prepare(b.self, 0, &err)) quit("GPU 0", &err);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    printf("{\"event\": \"gpu\", \"name\": \"%s\", \"driver\": \"%d.%d\", \"runtime\": \"%d.%d\", "
           "\"memory_gb\": %.1f, \"multiprocessors\": %d}\n",
           props.name, driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
           1e-9 * (double)props.totalGlobalMem, props.multiProcessorCount);
    bench_copy(&b);
    bench_adamw(&b);
    bench_ops(&b);
    bench_topk(&b);
    bench_graphs(&b);
    b.b.close(b.self);
    (void)cudaEventDestroy(b.begin);
    (void)cudaEventDestroy(b.end);
    (void)cudaStreamDestroy(b.stream);
    return 0;
}
