/* Every operator and optimizer compared with the limits of this machine: each is timed alone at the sizes of
 * GPT-2 small, GPT-2 124M, a Llama and ResNet-18, and then inside real steps.
 *
 *   build/bench_ops                 all of it, two minutes
 *   build/bench_ops --only conv2d   the operators whose names begin with conv2d
 *
 * Limits are measured first, in the same run: multiply-adds in registers, and reading, a + s b
 * into a third array, and updating three arrays by a fourth in place, each in the L2 cache, in the
 * L3 cache and in memory. An operator's limit is the longer of the time for its arithmetic and of
 * the time for reading each input once and writing each output once, from where its arrays fit.
 * With one thread times are processor time, so other programs disturb them less.
 * The last line of stdout is one JSON object. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../examples/common/cli.h"
#include "machine.h"

/* ---- operators ---- */

typedef struct op_case {
    const char *op, *size;
    ddp_shape in;
    double arg[6];
    double forward[2], backward[2]; /* arrays of the input's and the output's size passed over */
    int way[2];                     /* the kind of the pass, forward and backward */
} op_case;

#define S2(a, b)          \
    {                     \
        2, { a, b, 0, 0 } \
    }
#define S3(a, b, c)       \
    {                     \
        3, { a, b, c, 0 } \
    }
#define S4(a, b, c, d)    \
    {                     \
        4, { a, b, c, d } \
    }
#define EACH \
    {1, 1}, {2, 1}, { 1, 1 } /* y of x; dx of x and dy */
#define MOVE \
    {1, 1}, {1, 1}, { 1, 1 } /* y of x; dx of dy */
#define CONV(size, shape, out, k, s, p, groups)                \
    {                                                          \
        "conv2d", size, shape, {out, k, s, p, groups, 0}, EACH \
    }

static const op_case cases[] = {
    {"linear", "124M qkv", S2(256, 768), {2304, 0, 0, 0, 0, 0}, EACH},
    {"linear", "one row", S2(1, 768), {2304, 0, 0, 0, 0, 0}, EACH},
    {"linear", "one row, head", S2(1, 384), {50304, 0, 0, 0, 0, 0}, EACH},
    {"attention", "small T 256", S3(4, 256, 3 * 384), {6, 0, 0, 0, 0, 0}, EACH},
    {"attention", "124M T 1024", S3(1, 1024, 3 * 768), {12, 0, 0, 0, 0, 0}, EACH},
    {"attention", "124M T 64", S3(4, 64, 3 * 768), {12, 0, 0, 0, 0, 0}, EACH},
    {"attention", "grouped T 1024", S3(1, 1024, 1024 + 2 * 256), {16, 4, 0, 0, 0, 0}, EACH},
    {"gelu", "small", S2(1024, 1536), {0, 0, 0, 0, 0, 0}, EACH},
    {"gelu", "124M", S2(1024, 3072), {0, 0, 0, 0, 0, 0}, EACH},
    {"swiglu", "Llama", S2(1024, 2 * 1024), {0, 0, 0, 0, 0, 0}, EACH},
    {"cross_entropy", "small", S2(1024, 50304), {0, 0, 0, 0, 0, 0}, {1, 0}, {2, 0}, {0, 2}},
    {"cross_entropy", "Llama", S2(256, 32000), {0, 0, 0, 0, 0, 0}, {1, 0}, {2, 0}, {0, 2}},
    {"layer_norm", "small", S2(1024, 384), {0, 0, 0, 0, 0, 0}, EACH},
    {"layer_norm", "124M", S2(1024, 768), {0, 0, 0, 0, 0, 0}, EACH},
    {"rms_norm", "Llama", S2(1024, 384), {0, 0, 0, 0, 0, 0}, EACH},
    {"rope", "Llama", S3(4, 256, 3 * 384), {6, 0, 0, 0, 0, 0}, MOVE},
    {"embedding", "small", S2(4, 256), {50304, 384, 0, 0, 0, 0}, {0, 2}, {0, 3}, {1, 1}},
    {"position", "small", S3(4, 256, 384), {0, 0, 0, 0, 0, 0}, MOVE},
    {"dropout", "small", S2(1024, 384), {0.1, 0, 0, 0, 0, 0}, MOVE},
    {"add", "small", S2(1024, 384), {0, 0, 0, 0, 0, 0}, {2, 1}, {2, 1}, {1, 1}},
    CONV("3x3, 64, 32", S4(32, 64, 32, 32), 64, 3, 1, 1, 1),
    CONV("3x3, 512, 4", S4(32, 512, 4, 4), 512, 3, 1, 1, 1),
    CONV("3x3 step 2, 128, 32", S4(32, 64, 32, 32), 128, 3, 2, 1, 1),
    CONV("1x1, 256, 16", S4(32, 256, 16, 16), 256, 1, 1, 0, 1),
    CONV("1x1 step 2, 128, 32", S4(32, 64, 32, 32), 128, 1, 2, 0, 1),
    CONV("7x7 step 2, 64, 224", S4(2, 3, 224, 224), 64, 7, 2, 3, 1),
    CONV("depthwise, 128, 28", S4(8, 128, 28, 28), 128, 3, 1, 1, 128),
    CONV("depthwise step 2", S4(8, 128, 28, 28), 128, 3, 2, 1, 128),
    CONV("depthwise, 512, 7", S4(8, 512, 7, 7), 512, 3, 1, 1, 512),
    {"batch_norm2d", "64, 32", S4(32, 64, 32, 32), {0, 0, 0, 0, 0, 0}, EACH},
    {"batch_norm2d", "512, 4", S4(32, 512, 4, 4), {0, 0, 0, 0, 0, 0}, EACH},
    {"relu", "64, 32", S4(32, 64, 32, 32), {0, 0, 0, 0, 0, 0}, EACH},
    {"add", "64, 32", S4(32, 64, 32, 32), {0, 0, 0, 0, 0, 0}, {2, 1}, {2, 1}, {1, 1}},
    {"max_pool2d", "2, 64, 32", S4(32, 64, 32, 32), {2, 2, 0, 0, 0, 0}, {1, 2}, {1, 2}, {1, 1}},
    {"max_pool2d", "3 step 2, 64, 112", S4(2, 64, 112, 112), {3, 2, 1, 0, 0, 0}, {1, 2}, {1, 2}, {1, 1}},
    {"avg_pool2d", "2, 64, 32", S4(32, 64, 32, 32), {2, 2, 0, 0, 0, 0}, MOVE},
    {"global_avg_pool2d", "512, 4", S4(32, 512, 4, 4), {0, 0, 0, 0, 0, 0}, MOVE},
    {"global_avg_pool2d", "64, 32", S4(32, 64, 32, 32), {0, 0, 0, 0, 0, 0}, MOVE},
};

static float *bench_floats(size_t n, double scale, ddp_rng *r)
{
    float *x = (float *)malloc((n ? n : 1) * sizeof *x);
    size_t i;

    for (i = 0; x && i < n; i++) x[i] = (float)(scale * (2 * ddp_rng_uniform(r) - 1));
    return x;
}

static void bench_labels(void *to, long n, long below, ddp_rng *r)
{
    long i;

    for (i = 0; i < n; i++) ((int32_t *)to)[i] = (int32_t)ddp_rng_below(r, (uint64_t)below);
}

/* Allocates and fills all arrays of a call. NULL if memory is short. case_close frees them. */
static int case_open(const op_case *k, ddp_op_spec *s, ddp_op_call *c, ddp_rng *r)
{
    const int embedding = !strcmp(k->op, "embedding"), loss = !strcmp(k->op, "cross_entropy");
    const ddp_op *op = ddp__builtin_op(k->op);
    ddp_error err;
    int i;

    memset(s, 0, sizeof *s);
    memset(c, 0, sizeof *c);
    s->inputs = loss || !strcmp(k->op, "add") ? 2 : 1;
    s->in[0] = s->in[1] = k->in;
    s->in_type[0] = embedding ? DDP_I32 : DDP_F32;
    s->in_type[1] = loss ? DDP_I32 : DDP_F32;
    if (loss) s->in[1].dim[1] = 1;
    memcpy(s->arg, k->arg, sizeof k->arg);
    if (op->shape(s, &err)) return 1;
    c->spec = s;
    c->training = 1;
    for (i = 0; i < s->inputs; i++) {
        c->in[i] = bench_floats((size_t)ddp_shape_count(&s->in[i]), 2, r);
        if (s->in_type[i] == DDP_F32) c->grad_in[i] = bench_floats((size_t)ddp_shape_count(&s->in[i]), 0, r);
        if (!c->in[i]) return 1;
    }
    for (i = 0; i < s->params; i++) {
        const size_t n = (size_t)ddp_shape_count(&s->param[i].shape);
        c->param[i] = bench_floats(n, 0.1, r);
        c->grad_param[i] = bench_floats(n, 0, r);
        if (!c->param[i] || !c->grad_param[i]) return 1;
    }
    for (i = 0; i < s->buffers; i++)
        c->buffer[i] = bench_floats((size_t)ddp_shape_count(&s->buffer[i].shape), 1, r);
    c->out = bench_floats((size_t)ddp_shape_count(&s->out), 0, r);
    c->grad_out = bench_floats((size_t)ddp_shape_count(&s->out), 1, r);
    c->saved = bench_floats(s->saved, 0, r);
    if (!c->out || !c->grad_out || !c->saved) return 1;
    if (embedding) bench_labels((void *)c->in[0], ddp_shape_count(&s->in[0]), (long)k->arg[0], r);
    if (loss) bench_labels((void *)c->in[1], ddp_shape_count(&s->in[1]), k->in.dim[1], r);
    return 0;
}

static void case_close(ddp_op_call *c)
{
    int i;

    for (i = 0; i < DDP_OP_INPUTS; i++) {
        if (c->grad_in[i] != c->in[i]) free(c->grad_in[i]);
        free((void *)c->in[i]);
    }
    for (i = 0; i < DDP_OP_PARAMS; i++) {
        free((void *)c->param[i]);
        free(c->grad_param[i]);
    }
    for (i = 0; i < DDP_OP_BUFFERS; i++) free(c->buffer[i]);
    free(c->out);
    free((void *)c->grad_out);
    free(c->saved);
}

typedef struct op_run {
    const ddp_op *op;
    ddp_op_call call;
} op_run;

static void run_forward(void *user) { ((op_run *)user)->op->forward(&((op_run *)user)->call); }

static void run_backward(void *user) { ((op_run *)user)->op->backward(&((op_run *)user)->call); }

static int measure_case(const bench *b, const op_case *k)
{
    ddp_rng r = ddp_rng_seed(1, 2);
    ddp_op_spec s;
    op_run run;
    double in, out, params = 0, items, took, held;
    int i, code;

    run.op = ddp__builtin_op(k->op);
    code = case_open(k, &s, &run.call, &r);
    run.call.pool = b->pool;
    if (!code) {
        in = 4 * (double)ddp_shape_count(&s.in[0]);
        out = 4 * (double)ddp_shape_count(&s.out);
        items = (out > 4 ? out : in) / 4;
        for (i = 0; i < s.params; i++) params += 4 * (double)ddp_shape_count(&s.param[i].shape);
        if (!strcmp(k->op, "embedding")) params = 0; /* reads some rows only, which count as output */
        took = best_time(b, run_forward, &run);
        held = k->forward[0] * in + k->forward[1] * out + params;
        report(b, k->op, k->size, "fwd", took, items, held, s.flops, held, k->way[0]);
        if (!strcmp(k->op, "cross_entropy")) { /* as in a graph */
            free(run.call.grad_in[0]);
            run.call.grad_in[0] = (void *)run.call.in[0];
        }
        took = best_time(b, run_backward, &run);
        held = k->backward[0] * in + k->backward[1] * out + 2 * params;
        report(b, k->op, k->size, "bwd", took, items, held + params,
               s.backward_flops > 0 ? s.backward_flops : 2 * s.flops,
               run.call.grad_in[0] == run.call.in[0] ? held / 2 : held, k->way[1]);
    }
    case_close(&run.call);
    return code;
}

/* ---- optimizers and clipping ---- */

typedef struct update_run {
    ddp_optimizer rule;
    ddp_update u;
    float *grads;
    double sum;
} update_run;

static void run_update(void *user)
{
    update_run *run = (update_run *)user;

    run->rule.update(&run->rule, &run->u);
}

static void run_norm(void *user)
{
    update_run *run = (update_run *)user;

    run->sum += ddp__sum_squares(run->grads, run->u.count);
}

static void run_scale(void *user)
{
    update_run *run = (update_run *)user;

    ddp__scale(run->grads, run->u.count, run->sum < 0 ? 0.0f : 0.999f);
}

/* Returns the share of AdamW in memory, or below 0 on failure. */
static double measure_updates(const bench *b, size_t n, const char *size)
{
    ddp_rng r = ddp_rng_seed(3, 4);
    const double bytes = 4 * (double)n;
    update_run run;
    double share = -1;

    memset(&run, 0, sizeof run);
    run.u.params = bench_floats(n, 0.1, &r);
    run.u.grads = run.grads = bench_floats(n, 0.01, &r);
    run.u.state = bench_floats(2 * n, 0, &r);
    run.u.count = n;
    run.u.step = 10;
    run.u.lr = 1e-4f;
    if (run.u.params && run.grads && run.u.state) {
        run.rule = ddp_adamw(1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f);
        share = report(b, "AdamW", size, "", best_time(b, run_update, &run), (double)n, 7 * bytes, 0,
                       4 * bytes, 2);
        run.rule = ddp_sgd(1e-4f, 0.9f);
        report(b, "SGD, momentum", size, "", best_time(b, run_update, &run), (double)n, 5 * bytes, 0,
               3 * bytes, 2);
        report(b, "norm", size, "", best_time(b, run_norm, &run), (double)n, bytes, 0, bytes, 0);
        report(b, "clip", size, "", best_time(b, run_scale, &run), (double)n, 2 * bytes, 0, bytes, 2);
    }
    free(run.u.params);
    free(run.grads);
    free(run.u.state);
    return share;
}

/* ---- inside a real step ---- */

typedef struct step_op {
    ddp_op op; /* first member, because a node points to it */
    const ddp_op *inner;
    const bench *b;
    double forward, backward;
} step_op;

static step_op *step_op_of(const ddp_op_call *c)
{
    const ddp_node *n = (const ddp_node *)(const void *)((const char *)c->spec - offsetof(ddp_node, spec));

    return (step_op *)(void *)n->op;
}

static void step_forward(const ddp_op_call *c)
{
    step_op *o = step_op_of(c);
    const double start = bench_clock(o->b);

    o->inner->forward(c);
    o->forward += bench_clock(o->b) - start;
}

static void step_backward(const ddp_op_call *c)
{
    step_op *o = step_op_of(c);
    const double start = bench_clock(o->b);

    o->inner->backward(c);
    o->backward += bench_clock(o->b) - start;
}

static ddp_node *step_model(ddp_graph *g, const char *model)
{
    ddp_gpt2_config gpt2;
    ddp_llama2_config llama;
    ddp_resnet_config resnet;

    memset(&gpt2, 0, sizeof gpt2);
    memset(&llama, 0, sizeof llama);
    memset(&resnet, 0, sizeof resnet);
    gpt2.vocabulary = llama.vocabulary = 50304;
    gpt2.context = llama.context = 256;
    gpt2.layers = gpt2.heads = llama.layers = llama.heads = 6;
    gpt2.dim = llama.dim = 384;
    gpt2.batch = llama.batch = 4;
    llama.hidden = 1024;
    resnet.depth = 18;
    resnet.classes = 10;
    resnet.size = resnet.batch = 32;
    resnet.cifar = 1;
    if (!strcmp(model, "GPT-2 small")) return ddp_gpt2(g, &gpt2, NULL);
    return strcmp(model, "Llama") ? ddp_resnet(g, &resnet, NULL) : ddp_llama2(g, &llama, NULL);
}

static void step_inputs(ddp_graph *g, long classes, ddp_rng *r)
{
    int i;

    for (i = 0; i < ddp_node_count(g); i++) {
        const ddp_node *n = g->node[i];
        const long count = ddp_shape_count(&n->spec.out);
        float *x = n->op ? NULL : (float *)ddp_data(g, n->name);
        long j;
        if (x && n->type == DDP_I32)
            bench_labels(x, count, classes, r);
        else
            for (j = 0; x && j < count; j++) x[j] = (float)ddp_rng_normal(r);
    }
}

/* Replaces every operator of the graph with a timed one. Returns their number. */
static int step_swap(const bench *b, ddp_graph *g, step_op *table, int room)
{
    int i, k, used = 0;

    for (i = 0; i < ddp__count(g->node); i++) {
        ddp_node *n = g->node[i];
        if (!n->op) continue;
        for (k = 0; k < used && table[k].inner != n->op; k++) {
        }
        if (k == room) return -1;
        if (k == used) {
            table[used].op = *n->op;
            table[used].op.forward = step_forward;
            table[used].op.backward = step_backward;
            table[used].inner = n->op;
            table[used].b = b;
            table[used].forward = table[used].backward = 0;
            used++;
        }
        n->op = &table[k].op;
    }
    return used;
}

static int by_step_time(const void *a, const void *b)
{
    const step_op *x = (const step_op *)a, *y = (const step_op *)b;
    const double s = x->forward + x->backward, t = y->forward + y->backward;

    return (s < t) - (s > t);
}

/* Returns the share of the step outside matrix products, convolutions and attention. */
static double step_report(const char *model, step_op *table, int ops, double total, long steps)
{
    double sum = 0, products = 0;
    int i;

    qsort(table, (size_t)ops, sizeof *table, by_step_time);
    printf("\na step of %s: %.1f ms\n", model, 1e3 * total / (double)steps);
    for (i = 0; i < ops; i++) {
        const step_op *o = &table[i];
        const char *name = o->inner->name;
        sum += o->forward + o->backward;
        if (!strncmp(name, "linear", 6) || !strcmp(name, "conv2d") || !strcmp(name, "attention"))
            products += o->forward + o->backward;
        printf("  %-18s%10.2f ms fwd%10.2f ms bwd%8.2f %%\n", name, 1e3 * o->forward / (double)steps,
               1e3 * o->backward / (double)steps, 100 * (o->forward + o->backward) / total);
    }
    printf("  %-18s%10.2f ms%31.2f %%\n", "optimizer, rest", 1e3 * (total - sum) / (double)steps,
           100 * (total - sum) / total);
    printf("  outside matrix products and attention%21.2f %%\n", 100 * (1 - products / total));
    return 1 - products / total;
}

static double measure_step(const bench *b, const char *model)
{
    const long steps = b->quick ? 1 : 5;
    ddp_optimizer rule =
        strcmp(model, "ResNet-18") ? ddp_adamw(3e-4f, 0.9f, 0.999f, 1e-8f, 0.01f) : ddp_sgd(0.01f, 0.9f);
    ddp_rng r = ddp_rng_seed(5, 6);
    step_op table[32];
    ddp_config cfg;
    ddp_error err;
    ddp_ctx *d;
    ddp_graph *g;
    ddp_node *loss;
    double start = 0, share = -1;
    long i;
    int ops = 0, bad;

    memset(&cfg, 0, sizeof cfg);
    memset(&err, 0, sizeof err);
    cfg.strategy = DDP_SSGD;
    cfg.no_env = 1;
    cfg.threads = (int)b->threads;
    d = ddp_open(&cfg, &err);
    g = d ? ddp_graph_new(d) : NULL;
    loss = g ? step_model(g, model) : NULL;
    bad = !loss || ddp_graph_build(g) || ddp_set_optimizer(d, &rule);
    if (!bad) step_inputs(g, strcmp(model, "ResNet-18") ? 50304 : 10, &r);
    for (i = -1; !bad && i < steps; i++) { /* the first step touches fresh memory */
        if (i == 0) {
            ops = step_swap(b, g, table, (int)(sizeof table / sizeof table[0]));
            start = bench_clock(b);
        }
        bad = ops < 0 || ddp_forward(g) || ddp_backward(g, loss) || ddp_step_end(d);
    }
    if (!bad)
        share = step_report(model, table, ops, bench_clock(b) - start, steps);
    else
        fprintf(stderr, "bench_ops: %s: %s\n", model,
                g && ddp_graph_error(g)->code ? ddp_graph_error(g)->msg : err.msg);
    ddp_close(d);
    return share;
}

int main(int argc, char **argv)
{
    const char *only = "";
    double adamw = -1, share = -1;
    bench b;
    const cli_option table[] = {
        {"--threads", CLI_COUNT, &b.threads, "T", "operator threads (1)"},
        {"--only", CLI_TEXT, &only, "NAME", "operators whose names begin so; no steps"},
        {"--quick", CLI_FLAG, &b.quick, "", "fewer and shorter rounds, one model"},
    };
    size_t i;
    int code, bad = 0;

    (void)cli_catch_interrupt; /* Ctrl-C ends the program: there is nothing to clean up */
    memset(&b, 0, sizeof b);
    b.threads = 1;
    code = cli_parse(argc, argv, "Times operators against the limits of this machine.", table,
                     (int)(sizeof table / sizeof table[0]));
    if (code >= 0) return code;
    if (b.threads < 1 || b.threads > 64) {
        fprintf(stderr, "bench_ops: --threads must be from 1 to 64\n");
        return 2;
    }
    b.pool = ddp__pool_open((int)b.threads);
    bad = !b.pool || !ddp__pool_rooms(b.pool) || measure_limits(&b);
    for (i = 0; !bad && i < sizeof cases / sizeof cases[0]; i++)
        if (!strncmp(cases[i].op, only, strlen(only))) bad = measure_case(&b, &cases[i]);
    if (!bad && !*only) {
        measure_updates(&b, (size_t)1 << 16, "65,536");
        adamw = measure_updates(&b, b.quick ? 10000000 : 30000000, "in memory");
        share = measure_step(&b, "GPT-2 small");
        bad = adamw < 0 || share < 0;
        if (!bad && !b.quick) bad = measure_step(&b, "Llama") < 0 || measure_step(&b, "ResNet-18") < 0;
    }
    ddp__pool_close(b.pool);
    if (bad) {
        fprintf(stderr, "bench_ops: no memory\n");
        return 1;
    }
    printf("{\"threads\": %ld, \"gflops\": %.1f, \"read_gbs\": %.1f, \"triad_gbs\": %.1f, "
           "\"update_gbs\": %.1f",
           b.threads, 1e-9 * b.flops, 1e-9 * b.bandwidth[WHERE - 1][0], 1e-9 * b.bandwidth[WHERE - 1][1],
           1e-9 * b.bandwidth[WHERE - 1][2]);
    if (!*only) printf(", \"adamw_of_update\": %.3f, \"gpt2_outside_products\": %.4f", adamw, share);
    printf("}\n");
    return 0;
}
