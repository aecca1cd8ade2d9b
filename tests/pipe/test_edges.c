/* [asan] Compressed edges. A pipeline is bit-identical to stages that run one after the other in one process,
 * with each array encoded and decoded in between. Bottlenecks at cuts equal those of a model that has them.
 * Invalid settings are errors. A step allocates no memory, and any allocation of ddp_pipe_open may fail. */
#define _DEFAULT_SOURCE
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "graph/graph_internal.h"
#include "heap.h"
#include "pipe/executor.h"

/* Allocations of this thread; fail_at: the one that fails, 0: none. */
static __thread long taken, fail_at;

void *heap_realloc(void *p, size_t bytes) { return ++taken == fail_at ? NULL : realloc(p, bytes); }
void heap_free(void *p) { free(p); }

enum {
    STAGES = 4,
    MICRO = 4,
    STEPS = 3,
    BATCH = 3,
    WIDE = 40,
    NODES = 64,
    VALUES = 30000,
    SAMPLES = MICRO * BATCH
};

/* The results of a run, in memory shared by the processes. */
typedef struct board {
    float value[VALUES];
    float loss[STAGES];
    uint64_t hash[STAGES];
    double bytes, held;                  /* of stage 1: bytes sent per step; ddp_pipe_bytes */
    int64_t bytes_as[DDP_WIRE_TOPK + 1]; /* sent by stage 1 in the whole run */
    char error[DDP_ERROR_TEXT];
} board;

typedef struct job {
    ddp_edge_wire edge;
    ddp_pipeline schedule;
    ddp_transport transport;
    const char *net;
    /* spoil: the first step with a bad value, 0: none; whole: a whole model on one worker */
    int skips, narrow, spoil, whole;
    int clocks, replicas; /* clocks: 1 = not deterministic; replicas 0: one */
    int steps, repeats;   /* 0: STEPS; 1: the same data in each step */
    long samples, batch;  /* of aq; batch 0: BATCH */
    int nameless;         /* the step in which micro-batch 1 is not named, or 0 for none */
    long misname;         /* replaces the name of sample 0, or 0 for unchanged */
    long fail_at;         /* the allocation of rank 1 that fails in ddp_pipe_open */
    board *b;
} job;

static ddp_node *squeeze(ddp_graph *g, ddp_node *x, int narrow)
{
    return narrow ? ddp_bottleneck(g, x, WIDE / narrow) : x;
}

/* Four layers. skips: the second and the third layer use the first one's output. narrow: has bottlenecks
 * where the cut would insert them. */
static ddp_node *model(ddp_graph *g, int skips, int narrow)
{
    ddp_node *x = ddp_input(g, "x", DDP_F32, BATCH, 24), *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1),
             *first, *y;

    ddp_layer_begin(g, "a");
    first = ddp_relu(g, ddp_linear(g, x, WIDE));
    ddp_layer_end(g);
    first = squeeze(g, first, narrow);
    y = first;
    if (skips) first = squeeze(g, first, narrow);
    ddp_layer_begin(g, "b");
    y = ddp_relu(g, ddp_linear(g, y, WIDE));
    ddp_layer_end(g);
    y = squeeze(g, y, narrow);
    ddp_layer_begin(g, "c");
    y = ddp_linear(g, y, WIDE);
    if (skips) y = ddp_add(g, y, first);
    ddp_layer_end(g);
    y = squeeze(g, y, narrow);
    ddp_layer_begin(g, "d");
    y = ddp_cross_entropy(g, ddp_linear(g, y, 5), labels);
    ddp_layer_end(g);
    return y;
}

/* One stage per layer. */
static void cut_by_layer(const ddp_graph *g, int *stage_of)
{
    for (int i = 0; i < ddp__count(g->node); i++) stage_of[i] = g->node[i]->layer < 0 ? 0 : g->node[i]->layer;
}

static void fill(void *at, const ddp_node *input, int step, int m)
{
    const long n = ddp_shape_count(&input->spec.out);
    ddp_rng x = ddp_rng_seed((uint64_t)(step * 16 + m), strlen(input->name));

    for (long i = 0; at && i < n; i++)
        if (input->type == DDP_I32)
            ((int32_t *)at)[i] = (int32_t)ddp_rng_below(&x, 5);
        else
            ((float *)at)[i] = (float)ddp_rng_normal(&x);
}

/* Sample i of a micro-batch. Each sample appears once per step, in changing micro-batches, or several times
 * if there are fewer samples. */
static long sample(const job *j, int step, int m, int i) { return (step * 7 + m * BATCH + i) % j->samples; }

/* Stores the parameters of this stage's operators at their places in the whole model. */
static void keep(const ddp_graph *g, float *value)
{
    size_t at = 0;

    for (int i = 0; i < ddp__count(g->node); i++)
        for (int k = 0; k < g->node[i]->spec.params; k++) {
            const size_t n = (size_t)ddp_shape_count(&g->node[i]->spec.param[k].shape);
            if (g->node[i]->here == (int)DDP__HERE_OWN)
                memcpy(value + at, g->node[i]->param[k], n * sizeof *value);
            at += n;
            assert_true(at <= VALUES);
        }
}

/* ---- the pipeline ---- */

static int train_pipe(ddp_ctx *d, const job *j, ddp_graph *g, ddp_node *loss)
{
    int cut[NODES], bad = 0;
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_pipe_config c;
    ddp_pipe_stats stats;
    ddp_stats all;
    ddp_pipe *p;
    uint64_t hash = 0; /* local: other pipelines write the board too */

    memset(&all, 0, sizeof all);
    memset(&stats, 0, sizeof stats);
    cut_by_layer(g, cut);
    memset(&c, 0, sizeof c);
    c.schedule = j->schedule;
    c.stages = STAGES;
    c.stage_of = cut;
    c.edge = j->edge;
    c.samples = j->samples;
    c.batch = j->batch ? (int)j->batch : BATCH;
    taken = 0;
    fail_at = ddp_rank(d) == 1 ? j->fail_at : 0;
    p = ddp_pipe_open(d, g, loss, &c);
    fail_at = 0;
    if (!p) return (int)ddp_last_error(d)->code;
    bad = ddp_set_optimizer(d, &o);
    for (int step = 0; step < (j->steps ? j->steps : STEPS) && !bad; step++) {
        for (int m = 0; m < MICRO && j->samples && !bad; m++) {
            long id[BATCH];
            for (int i = 0; i < BATCH; i++) id[i] = j->misname ? j->misname : sample(j, step, m, i);
            if (step + 1 != j->nameless || m != 1) bad = ddp_pipe_samples(p, m, id);
        }
        for (int m = 0; m < MICRO; m++)
            for (int i = 0; i < ddp__count(g->node); i++) {
                void *at = g->node[i]->op ? NULL : ddp_pipe_input(p, m, g->node[i]->name);
                if (!g->node[i]->op) fill(at, g->node[i], j->repeats ? 0 : step, m);
                if (at && j->spoil && step + 1 >= j->spoil && g->node[i]->type == DDP_F32) *(float *)at = NAN;
            }
        taken = 0;
        if (!bad) bad = ddp_pipe_step(p);
        assert_true(step == 0 || taken == 0); /* the first step starts the strategy */
        if (!bad) bad = ddp_step_end(d);
        if (!bad) j->b->loss[ddp_pipe_stage(p)] = ddp_pipe_loss(p);
        if (!bad) bad = ddp_pipe_evaluate(p, 2); /* does not change any state */
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) bad = ddp_pipe_hash(p, &hash);
    j->b->hash[ddp_pipe_stage(p)] = hash;
    if (!bad) keep(g, j->b->value);
    if (!bad) bad = ddp_pipe_get_stats(p, &stats);
    ddp_get_stats(d, &all);
    if (ddp_pipe_stage(p) == 1) {
        j->b->bytes = stats.boundary_bytes;
        j->b->held = (double)ddp_pipe_bytes(p);
    }
    if (ddp_rank(d) == 1) memcpy(j->b->bytes_as, all.bytes_as, sizeof all.bytes_as);
    ddp_pipe_close(p);
    return bad;
}

static int train_whole(ddp_ctx *d, const job *j, ddp_graph *g, ddp_node *loss)
{
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    int bad = ddp_graph_build(g);

    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (int step = 0; step < STEPS && !bad; step++) {
        for (int m = 0; m < MICRO && !bad; m++) {
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op) fill(ddp_data(g, g->node[i]->name), g->node[i], step, m);
            bad = ddp_forward(g);
            if (!bad) bad = ddp_backward(g, loss);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    j->b->hash[0] = 0;
    for (int l = 0; !bad && l < ddp__count(g->layer); l++)
        j->b->hash[0] = ddp_hash_floats(j->b->hash[0], g->layer[l].params, g->layer[l].count);
    return bad;
}

static int worker(ddp_ctx *d, void *user)
{
    const job *j = (const job *)user;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = model(g, j->skips, j->narrow);

    if (!loss) return (int)ddp_graph_error(g)->code;
    return j->whole ? train_whole(d, j, g, loss) : train_pipe(d, j, g, loss);
}

static int run(job *j)
{
    ddp_config cfg;
    ddp_error err;
    int bad;

    memset(&cfg, 0, sizeof cfg);
    memset(&err, 0, sizeof err);
    memset(j->b, 0, sizeof *j->b);
    cfg.world = j->whole ? 1 : STAGES * (j->replicas ? j->replicas : 1);
    cfg.micro_batches = MICRO;
    cfg.deterministic = !j->clocks;
    cfg.no_env = 1;
    cfg.transport = j->transport ? j->transport : DDP_THREADS;
    cfg.strategy = DDP_SSGD;
    cfg.net = j->net;
    cfg.timeout.peer_s = 60;
    bad = ddp_launch(&cfg, worker, j, &err);
    snprintf(j->b->error, sizeof j->b->error, "%s", err.msg);
    return bad;
}

/* ---- the reference: all stages in one process ---- */

typedef struct reference {
    ddp_graph *g[STAGES];
    ddp_node *loss[STAGES];
    ddp_state *s[STAGES];
    float residual[2][STAGES][NODES][BATCH * WIDE]; /* error feedback of each stage's messages */
    float last[STAGES][NODES][SAMPLES][WIDE];       /* aq: each sample as the receiver has it */
    char seen[STAGES][NODES][SAMPLES];
    double off, size; /* aq: in the last step, the largest difference and the largest activation */
} reference;

static int larger(const float *x, int a, int b)
{
    const float p = fabsf(x[a]), q = fabsf(x[b]);

    return p > q || (p >= q && a < b);
}

/* Keeps the k largest values, found by counting how many values are larger. */
static void largest(const float *x, int n, int k, float *out)
{
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int o = 0; o < n; o++) before += o != i && larger(x, o, i);
        out[i] = before < k ? x[i] : 0;
    }
}

static void round_bf16(const float *x, int n, float *out)
{
    for (int i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        u += 0x7fff + (u >> 16 & 1);
        u &= 0xffff0000u;
        memcpy(&out[i], &u, 4);
    }
}

/* Number of floats sent from a stage to the next one. */
static double crossing(const job *j, int from, int to)
{
    const int edge = from < to ? from : to;

    return j->skips && edge == 1 ? 2 : 1;
}

/* Computes x as the receiver has it. */
static void cross(const job *j, const float *x, int n, int from, int to, float *residual, float *out)
{
    const ddp_edge_wire *w = &j->edge;
    float sum[BATCH * WIDE];
    unsigned char message[4096];
    double ratio = w->ratio;
    size_t bytes;
    ddp_error err;

    for (int i = 0; i < n; i++) sum[i] = w->feedback ? residual[i] + x[i] : x[i];
    if (w->coding == DDP_EDGE_ADATOPK)
        ratio = (w->factor > 0 ? w->factor : 3) * w->ratio * (crossing(j, from, to) / (j->skips ? 2 : 1));
    if (w->coding == DDP_EDGE_F32)
        memcpy(out, x, (size_t)n * sizeof *x);
    else if (w->coding == DDP_EDGE_BF16)
        round_bf16(sum, n, out);
    else if (w->coding == DDP_EDGE_INT8 || w->coding == DDP_EDGE_AQ) {
        assert_int_equal(
            ddp_pack_quantised(DDP_PACK_INT8, sum, (size_t)n, message, sizeof message, &bytes, &err), DDP_OK);
        assert_int_equal(ddp_unpack_store(message, bytes, out, (size_t)n, &err), DDP_OK);
    } else if (ratio <= 2.3)
        memcpy(out, x, (size_t)n * sizeof *x); /* not smaller if encoded: sent unchanged */
    else
        largest(sum, n, (int)ceil(n / ratio), out);
    if (w->feedback)
        for (int i = 0; i < n; i++) residual[i] = sum[i] - out[i];
}

/* Activations under aq: adds to `last` the nearest of 2^bits levels, evenly spaced between plus and minus the
 * largest magnitude of the block. A row of 40 values is one block. */
static void cross_samples(const job *j, reference *r, const float *x, int count, int from, int node, int step,
                          int m, float *out)
{
    const int levels = 1 << (int)j->edge.ratio, row = count / BATCH;

    for (int i = 0; i < BATCH; i++, x += row, out += row) {
        const long id = sample(j, step, m, i);
        float *last = r->last[from][node][id], most = 0;
        assert_true(row <= WIDE && row <= DDP_QUANTISE_BLOCK);
        for (int k = 0; k < row; k++) most = fmaxf(most, fabsf(x[k] - last[k]));
        for (int k = 0; k < row; k++) {
            if (!r->seen[from][node][id])
                last[k] = x[k];
            else if (most > 0) {
                const float change = x[k] - last[k];
                const long level = lround(((double)change / (double)most + 1) * (double)(levels - 1) / 2);
                last[k] += (float)((double)most * (2 * (double)level / (double)(levels - 1) - 1));
                r->off = fmax(r->off, fabs((double)(x[k] - last[k])));
            }
            r->size = fmax(r->size, fabs((double)x[k]));
            out[k] = last[k];
        }
        r->seen[from][node][id] = 1;
    }
}

/* Copies all inputs of stage s, or the gradients of its outputs, from the other stages' states. */
static void fetch(const job *j, reference *r, int s, int gradients, int step, int m)
{
    for (int i = 0; i < ddp__count(r->g[s]->node); i++) {
        const ddp_node *n = r->g[s]->node[i];
        const int other = gradients ? n->to : n->from, count = (int)ddp_shape_count(&n->spec.out);
        if (!n->op || other < 0 || (gradients && !n->has_gradient)) continue;
        assert_true(count <= BATCH * WIDE);
        if (j->edge.coding == DDP_EDGE_AQ && !gradients)
            cross_samples(j, r, (float *)ddp_state_data(r->s[other], r->g[other]->node[i]), count, other, i,
                          step, m, (float *)ddp_state_data(r->s[s], n));
        else if (gradients)
            cross(j, (float *)ddp_state_gradient(r->s[other], r->g[other]->node[i]), count, other, s,
                  r->residual[1][other][i], (float *)ddp_state_gradient(r->s[s], n));
        else
            cross(j, (float *)ddp_state_data(r->s[other], r->g[other]->node[i]), count, other, s,
                  r->residual[0][other][i], (float *)ddp_state_data(r->s[s], n));
    }
}

static void update(ddp_graph *g)
{
    for (int l = 0; l < ddp__count(g->layer); l++)
        for (size_t i = 0; i < g->layer[l].count; i++) {
            g->layer[l].params[i] -= 0.1f * (g->layer[l].grads[i] * (1.0f / (float)MICRO));
            g->layer[l].grads[i] = 0;
        }
}

static void train_reference(const job *j, double *off, double *size)
{
    reference *r = (reference *)calloc(1, sizeof *r);
    double sum = 0;

    assert_non_null(r);
    memset(j->b, 0, sizeof *j->b);
    for (int s = 0; s < STAGES; s++) {
        int cut[NODES];
        r->g[s] = ddp_graph_new(NULL);
        r->loss[s] = model(r->g[s], j->skips, 0);
        cut_by_layer(r->g[s], cut);
        assert_int_equal(ddp_graph_cut(r->g[s], cut, STAGES, s), 0);
        assert_int_equal(ddp_graph_build(r->g[s]), 0);
        r->s[s] = ddp_state_new(r->g[s]);
        for (int a = DDP__ARENA_HELD; a < (int)DDP__ARENAS; a++)
            assert_non_null(r->s[s]->arena[a] = (char *)calloc(r->g[s]->plain.bytes[a] + 1, 1));
    }
    for (int step = 0; step < (j->steps ? j->steps : STEPS); step++) {
        sum = r->off = 0;
        for (int m = 0; m < MICRO; m++) {
            for (int s = 0; s < STAGES; s++) {
                for (int i = 0; i < ddp__count(r->g[s]->node); i++)
                    if (!r->g[s]->node[i]->op && r->g[s]->node[i]->here == (int)DDP__HERE_OWN)
                        fill(ddp_state_data(r->s[s], r->g[s]->node[i]), r->g[s]->node[i],
                             j->repeats ? 0 : step, m);
                fetch(j, r, s, 0, step, m);
                assert_int_equal(ddp__graph_forward(r->s[s], 1), 0);
            }
            sum += (double)*(float *)ddp_state_data(r->s[STAGES - 1], r->loss[STAGES - 1]);
            for (int s = STAGES - 1; s >= 0; s--) {
                fetch(j, r, s, 1, step, m);
                assert_int_equal(ddp__graph_backward(r->s[s], r->loss[s], DDP__CUT_BOTH), 0);
            }
        }
        for (int s = 0; s < STAGES; s++) update(r->g[s]);
    }
    j->b->loss[0] = (float)(sum / (double)MICRO);
    for (int s = 0; s < STAGES; s++) {
        keep(r->g[s], j->b->value);
        for (int a = DDP__ARENA_HELD; a < (int)DDP__ARENAS; a++) free(r->s[s]->arena[a]);
        ddp_state_free(r->s[s]);
        ddp_graph_free(r->g[s]);
    }
    if (off) {
        *off = r->off;
        *size = r->size;
    }
    free(r);
}

/* ---- tests ---- */

static board *boards(void)
{
    board *b = (board *)mmap(NULL, 2 * sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(b != MAP_FAILED);
    return b;
}

static void compare(const job *like, board *b)
{
    job reference_job = *like, j = *like;

    reference_job.b = b;
    j.b = b + 1;
    train_reference(&reference_job, NULL, NULL);
    for (int p = DDP_PIPELINE_GPIPE; p <= DDP_PIPELINE_ZB; p++)
        for (int t = 0; t < (p == DDP_PIPELINE_1F1B ? 2 : 1); t++) {
            j.schedule = (ddp_pipeline)p;
            j.transport = t ? DDP_TCP : DDP_THREADS;
            if (run(&j)) fail_msg("%s", b[1].error);
            if (memcmp(b[0].value, b[1].value, sizeof b->value) ||
                memcmp(&b[0].loss[0], &b[1].loss[0], sizeof(float)))
                fail_msg(
                    "coding %d, ratio %g, feedback %d, skips %d, %s, %s: differs from the reference (loss "
                    "%.9g, %.9g)",
                    (int)j.edge.coding, j.edge.ratio, j.edge.feedback, j.skips, ddp_pipeline_name(j.schedule),
                    t ? "tcp" : "threads", (double)b[0].loss[0], (double)b[1].loss[0]);
        }
}

static void a_coded_edge_is_bit_identical_to_encoding_and_decoding(void **state)
{
    static const ddp_edge_wire all[] = {{DDP_EDGE_F32, 0, 0, 0},     {DDP_EDGE_BF16, 0, 0, 0},
                                        {DDP_EDGE_INT8, 0, 0, 0},    {DDP_EDGE_INT8, 0, 0, 1},
                                        {DDP_EDGE_TOPK, 10, 0, 0},   {DDP_EDGE_TOPK, 10, 0, 1},
                                        {DDP_EDGE_TOPK, 1, 0, 0},    {DDP_EDGE_TOPK, 1000, 0, 0},
                                        {DDP_EDGE_ADATOPK, 4, 0, 0}, {DDP_EDGE_ADATOPK, 4, 1, 1}};
    board *b = boards();

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int skips = 0; skips < 2; skips++) {
            job j;
            memset(&j, 0, sizeof j);
            j.edge = all[i];
            j.skips = skips;
            compare(&j, b);
        }
    munmap(b, 2 * sizeof *b);
}

/* Samples that appear once per step, in several micro-batches, or twice in one. */
static void aq_is_bit_identical_to_encoding_and_decoding(void **state)
{
    static const long samples[] = {SAMPLES, 5, 2};
    board *b = boards();

    (void)state;
    for (int bits = 2; bits <= 4; bits++)
        for (int i = 0; i < 6; i++) {
            job j;
            memset(&j, 0, sizeof j);
            j.edge.coding = DDP_EDGE_AQ;
            j.edge.ratio = bits;
            j.samples = samples[i % 3];
            j.skips = i / 3;
            compare(&j, b);
        }
    munmap(b, 2 * sizeof *b);
}

/* While every sample is new, activations are float32. Later they differ by a small part of their delta. */
static void the_first_pass_of_aq_is_float32(void **state)
{
    board *b = boards();
    double off[3], size = 0;
    job plain, j;

    (void)state;
    memset(&plain, 0, sizeof plain);
    plain.steps = 1;
    j = plain;
    j.edge.coding = DDP_EDGE_AQ;
    j.edge.ratio = 2;
    j.samples = SAMPLES;
    plain.b = b;
    j.b = b + 1;
    assert_int_equal(run(&plain), 0);
    assert_int_equal(run(&j), 0);
    assert_memory_equal(plain.b->loss, j.b->loss, sizeof j.b->loss);
    assert_true(j.b->bytes_as[DDP_WIRE_INT4] == 0 &&
                j.b->bytes_as[DDP_WIRE_INT8] == MICRO * (24 + 8 + BATCH * WIDE));

    j.repeats = 1;
    j.steps = 8;
    for (int i = 0; i < 3; i++) {
        j.edge.ratio = 2 + i;
        train_reference(&j, &off[i], &size);
        assert_true(off[i] > 0 && off[i] < size / 2);
    }
    assert_true(off[1] < 0.6 * off[0] && off[2] < 0.6 * off[1]);
    munmap(b, 2 * sizeof *b);
}

/* The error shrinks to a (2^bits - 1)th of the previous error plus the last movement. */
static void the_error_of_a_slow_sample_shrinks(void **state)
{
    ddp_rng r = ddp_rng_seed(3, 4);
    float x[200], last[200], change[200];
    unsigned char message[256];
    ddp_error err;

    (void)state;
    for (int i = 0; i < 200; i++) x[i] = (float)ddp_rng_normal(&r);
    for (int bits = 2; bits <= 4; bits++)
        for (size_t n = 1; n <= 200; n += 1 + n % 7) {
            double before = 5; /* larger than any value */
            memset(last, 0, sizeof last);
            for (int visit = 0; visit < 5; visit++) {
                double off = 0;
                for (size_t i = 0; i < n; i++) {
                    x[i] += 0.02f * (float)(2 * ddp_rng_uniform(&r) - 1);
                    change[i] = x[i] - last[i];
                }
                memset(message, 0xa5, sizeof message);
                ddp__changes_code(change, n, bits, message);
                assert_int_equal(message[ddp__change_bytes(bits, n)], 0xa5);
                assert_int_equal(ddp__changes_add(message, n, bits, last, &err), DDP_OK);
                for (size_t i = 0; i < n; i++) off = fmax(off, fabs((double)(x[i] - last[i])));
                assert_true(off <= (before + 0.02) / ((1 << bits) - 1) * 1.0001 + 1e-6);
                before = off;
            }
        }
    change[0] = NAN; /* an invalid scale */
    memcpy(message, change, 4);
    assert_int_equal(ddp__changes_add(message, 1, 4, last, &err), DDP_FORMAT);
}

static void reported_bytes_are_the_bytes_of_messages(void **state)
{
    const size_t n = BATCH * WIDE;
    board *b = boards();
    double held;
    job j;

    (void)state;
    memset(&j, 0, sizeof j);
    j.b = b;
    assert_int_equal(run(&j), 0); /* activations and gradients cross three boundaries */
    assert_true(b->bytes == (double)(MICRO * 6 * 4 * n));
    held = b->held;
    j.edge.coding = DDP_EDGE_TOPK;
    j.edge.ratio = 10;
    assert_int_equal(run(&j), 0);
    assert_true(b->bytes == (double)(MICRO * 6 * (24 + 8 * (n / 10))));
    j.edge.coding = DDP_EDGE_INT8;
    assert_int_equal(run(&j), 0);
    assert_true(b->bytes == (double)(MICRO * 6 * (24 + n + 4 * 2)));
    j.edge.coding = DDP_EDGE_AQ;
    j.edge.ratio = 3;
    j.samples = SAMPLES;
    assert_int_equal(run(&j), 0);
    assert_true(b->bytes == (double)(MICRO * 3 * (24 + n + 4 * 2 + BATCH * (4 + WIDE * 3 / 8))));
    assert_true(b->held == held + SAMPLES * (1 + 2 * 4 * WIDE)); /* at both of its edges */
    munmap(b, 2 * sizeof *b);
}

/* The link from rank 1 to rank 0 is ten times slower than the others. It sends 1 of 30.6 values, the others 1
 * of 3.06. */
static void the_slowest_link_is_compressed_most(void **state)
{
    static const char path[] = "build/test_edges_net.json";
    FILE *f = fopen(path, "w");
    board *b = boards();
    job j;

    (void)state;
    assert_non_null(f);
    fprintf(f, "{\"N\": 4, \"delay_ms\": [[0,1,1,1],[1,0,1,1],[1,1,0,1],[1,1,1,0]], \"bandwidth_gbps\": "
               "[[0,0.1,0.1,0.1],[0.01,0,0.1,0.1],[0.1,0.1,0,0.1],[0.1,0.1,0.1,0]]}");
    fclose(f);
    memset(&j, 0, sizeof j);
    j.b = b;
    j.net = path;
    j.edge.coding = DDP_EDGE_ADATOPK;
    j.edge.ratio = 10.2;
    assert_int_equal(run(&j), 0); /* five messages over fast links, one gradient over the slow one */
    assert_true(b->bytes ==
                (double)(MICRO * (5 * (24 + 8 * (BATCH * WIDE / 3)) + 24 + 8 * (BATCH * WIDE / 30))));
    remove(path);
    munmap(b, 2 * sizeof *b);
}

/* Without emulation and not deterministic, links are probed. The slowest sends 1 of 30 values, the others
 * more, by their measured rates. All ranks compute the same ratios, otherwise message sizes would differ. */
static void links_are_probed(void **state)
{
    const size_t n = BATCH * WIDE;
    board *b = boards();
    job j;

    (void)state;
    memset(&j, 0, sizeof j);
    j.b = b;
    j.transport = DDP_TCP;
    j.clocks = 1;
    j.edge.coding = DDP_EDGE_ADATOPK;
    j.edge.ratio = 10;
    for (j.replicas = 1; j.replicas <= 2; j.replicas++) {
        if (run(&j)) fail_msg("%s", b->error);
        if (b->bytes <= (double)(MICRO * 6 * (24 + 8 * n / 30)) ||
            b->bytes > (double)(MICRO * (5 * 4 * n + 24 + 8 * n / 30)))
            fail_msg("%d pipelines: %g bytes in %d messages of %zu floats", j.replicas, b->bytes, MICRO * 6,
                     n);
        assert_true(b->loss[0] > 0 && b->loss[0] < 10);
    }
    munmap(b, 2 * sizeof *b);
}

/* Stage 1 sends MICRO activations and MICRO gradients per step, and two activations per evaluation. */
static void bytes_are_counted_by_coding(void **state)
{
    static const struct {
        ddp_edge_coding coding;
        ddp_wire as;
        int each;
    } all[] = {{DDP_EDGE_F32, DDP_WIRE_F32, 4 * BATCH * WIDE},
               {DDP_EDGE_BF16, DDP_WIRE_BF16, 2 * BATCH * WIDE},
               {DDP_EDGE_INT8, DDP_WIRE_INT8, 24 + 8 + BATCH * WIDE},
               {DDP_EDGE_TOPK, DDP_WIRE_TOPK, 24 + 8 * BATCH * WIDE / 10}};
    board *b = boards();

    (void)state;
    for (int i = 0; i < 8; i++) {
        const int64_t edges = (int64_t)STEPS * (2 * MICRO + 2) * all[i / 2].each;
        job j;
        memset(&j, 0, sizeof j);
        j.b = b;
        j.edge.coding = all[i / 2].coding;
        j.edge.ratio = 10;
        j.transport = i % 2 ? DDP_TCP : DDP_THREADS;
        if (run(&j)) fail_msg("%s", b->error);
        for (int as = DDP_WIRE_BF16; as <= (int)DDP_WIRE_TOPK; as++)
            if (b->bytes_as[as] != (as == (int)all[i / 2].as ? edges : 0))
                fail_msg("%s: %ld bytes of coding %d", ddp_wire_name((ddp_wire)as), (long)b->bytes_as[as],
                         (int)j.edge.coding);
        if (all[i / 2].as == DDP_WIRE_F32)
            assert_true(b->bytes_as[DDP_WIRE_F32] >= edges);
        else
            assert_true(b->bytes_as[DDP_WIRE_F32] < edges);
    }
    munmap(b, 2 * sizeof *b);
}

static void bottlenecks_at_cuts_equal_those_of_the_model(void **state)
{
    board *b = boards();

    (void)state;
    for (int skips = 0; skips < 2; skips++) {
        job whole, j;
        memset(&j, 0, sizeof j);
        j.skips = skips;
        j.edge.coding = DDP_EDGE_BOTTLENECK;
        j.edge.ratio = 8;
        whole = j;
        whole.whole = 1;
        whole.narrow = 8;
        whole.b = b;
        j.b = b + 1;
        assert_int_equal(run(&whole), 0);
        for (int p = DDP_PIPELINE_GPIPE; p <= DDP_PIPELINE_ZB; p++) {
            j.schedule = (ddp_pipeline)p;
            if (run(&j)) fail_msg("%s", j.b->error);
            for (int s = 0; s < STAGES; s++) assert_true(whole.b->hash[0] == j.b->hash[s]);
            assert_true(j.b->bytes == (double)(MICRO * (skips ? 8 : 6) * BATCH * 4 * WIDE / 8));
        }
    }
    munmap(b, 2 * sizeof *b);
}

static double loss_of(ddp_graph *g, const ddp_node *loss)
{
    assert_int_equal(ddp_forward(g), 0);
    return (double)ddp_value(g, loss);
}

/* Along a random direction of each parameter, the change of the loss agrees with the gradient. */
static void check_gradient(ddp_graph *g, ddp_node *loss)
{
    ddp_rng r = ddp_rng_seed(11, 2);
    float direction[VALUES];

    for (int i = 0; i < ddp__count(g->node); i++) {
        if (!g->node[i]->op) fill(ddp_data(g, g->node[i]->name), g->node[i], 1, 1);
        /* not zero, because all later gradients would be zero */
        for (int k = 0; k < g->node[i]->spec.params; k++)
            for (long v = 0; v < ddp_shape_count(&g->node[i]->spec.param[k].shape); v++)
                g->node[i]->param[k][v] = 0.4f * (float)ddp_rng_normal(&r);
    }
    (void)loss_of(g, loss);
    assert_int_equal(ddp_backward(g, loss), 0);
    for (int i = 0; i < ddp__count(g->node); i++)
        for (int k = 0; k < g->node[i]->spec.params; k++) {
            float *w = g->node[i]->param[k];
            const long n = ddp_shape_count(&g->node[i]->spec.param[k].shape);
            const float step = 2e-3f;
            double slope = 0, up, down;
            for (long v = 0; v < n; v++) {
                direction[v] = (float)ddp_rng_normal(&r) / sqrtf((float)n);
                slope += (double)direction[v] * (double)g->node[i]->grad[k][v];
            }
            for (long v = 0; v < n; v++) w[v] += step * direction[v];
            up = loss_of(g, loss);
            for (long v = 0; v < n; v++) w[v] -= 2 * step * direction[v];
            down = loss_of(g, loss);
            for (long v = 0; v < n; v++) w[v] += step * direction[v];
            if (!(fabs((up - down) / (2 * (double)step) - slope) < 2e-3 + 2e-2 * fabs(slope)))
                fail_msg("node %d (%s), parameter %d: slope %g, gradient says %g", i, g->node[i]->op->name, k,
                         (up - down) / (2 * (double)step), slope);
        }
}

/* Before a linear layer, for rows or images. All operators are smooth. */
static void check_bottleneck(int images)
{
    const ddp_shape image = {4, {2, 6, 3, 3}}, rows = {3, {2, 4, 6, 0}};
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *x = ddp_input_shape(g, "x", DDP_F32, images ? &image : &rows),
             *labels = ddp_input(g, "labels", DDP_I32, 2, 1);

    x = ddp_bottleneck(g, x, 2);
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, ddp_flatten(g, x), 5), labels);
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_build(g), 0);
    check_gradient(g, x);
    ddp_graph_free(g);
}

static void gradients_of_a_bottleneck_are_correct(void **state)
{
    (void)state;
    check_bottleneck(0);
    check_bottleneck(1);
}

static void refused(job *j, ddp_status code, const char *says)
{
    assert_int_equal(run(j), code);
    if (!strstr(j->b->error, says)) fail_msg("'%s' does not say '%s'", j->b->error, says);
}

static void invalid_settings_are_an_error(void **state)
{
    static const char *const wrong[] = {
        "",          "foo",    "topk",         "topk:",          "topk:x",     "topk:0.5",     "topk:nan",
        "topk:10:2", "int8:4", "adatopk:10:0", "adatopk:10:3:1", "bottleneck", "bottleneck:0", "topk:1e10",
        "f32 ",      "aq",     "aq:",          "aq:1",           "aq:5",       "aq:2.5",       "aq:4:1"};
    board *b = boards();
    ddp_edge_wire w = {DDP_EDGE_INT8, 7, 8, 1};
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_error err;
    job j;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(ddp_edge_wire_parse(wrong[i], &w, &err), DDP_ARG);
        assert_non_null(strstr(err.msg, wrong[i]));
        assert_true(w.coding == DDP_EDGE_INT8 && w.ratio > 6 && w.factor > 7);
    }
    assert_int_equal(ddp_edge_wire_parse(NULL, &w, &err), DDP_ARG);
    assert_int_equal(ddp_edge_wire_parse("adatopk:10:1.5", &w, &err), DDP_OK);
    assert_true(w.coding == DDP_EDGE_ADATOPK && !(w.ratio < 10 || w.ratio > 10) &&
                !(w.factor < 1.5 || w.factor > 1.5));
    assert_int_equal(w.feedback, 1);

    memset(&j, 0, sizeof j);
    j.b = b;
    j.edge.coding = (ddp_edge_coding)9;
    refused(&j, DDP_ARG, "unknown edge wire 9");
    j.edge.coding = DDP_EDGE_TOPK;
    refused(&j, DDP_ARG, "edge wire topk with ratio 0: the ratio must be from 1");
    j.edge.coding = DDP_EDGE_BF16;
    j.edge.feedback = 1;
    refused(&j, DDP_ARG, "edge wire bf16 does not support error feedback");
    j.edge.feedback = 0;
    j.edge.coding = DDP_EDGE_BOTTLENECK;
    j.edge.ratio = 41;
    refused(&j, DDP_ARG, "a width of 40 channels leaves none; use at most bottleneck:40");
    j.edge.coding = DDP_EDGE_TOPK;
    j.edge.ratio = 10;
    j.spoil = 1;
    refused(&j, DDP_NUMERIC, "stage 0 cannot send activations of micro-batch 0");
    memset(&j, 0, sizeof j);
    j.b = b;
    j.edge.coding = DDP_EDGE_AQ;
    j.edge.ratio = 5;
    j.samples = SAMPLES;
    refused(&j, DDP_ARG, "edge wire aq with 5 bits: use 2, 3 or 4");
    j.edge.ratio = 4;
    j.edge.feedback = 1;
    refused(&j, DDP_ARG, "edge wire aq does not support error feedback");
    j.edge.feedback = 0;
    j.samples = 0;
    refused(&j, DDP_ARG, "edge wire aq:4 with 0 samples, 3 per micro-batch: set samples");
    j.samples = SAMPLES;
    j.batch = 2;
    refused(&j, DDP_ARG, ", 3, is not a multiple of the 2 samples of a micro-batch");
    j.batch = 0;
    j.samples = 1000000000000000;
    refused(&j, DDP_MEMORY, "activations of 1000000000000000 samples at the edges of stage");
    j.samples = SAMPLES;
    j.misname = SAMPLES;
    refused(&j, DDP_ARG, "ddp_pipe_samples: sample 12 in micro-batch 0 must be in 0..11");
    j.misname = 0;
    j.nameless = 2;
    refused(&j, DDP_USAGE, "the samples of micro-batch 1 are unknown");
    j.nameless = 0;
    j.spoil = 2;
    refused(&j, DDP_NUMERIC, "cannot send activations of micro-batch 0 (peer: stage 1): the delta of value ");

    assert_null(ddp_bottleneck(g, ddp_input(g, "x", DDP_F32, 2, 6), 7));
    assert_non_null(strstr(ddp_graph_error(g)->msg,
                           "bottleneck of width 7 for an input of width 6; the width must be from 1 to 6"));
    ddp_graph_free(g);
    munmap(b, 2 * sizeof *b);
}

static void any_allocation_may_fail(void **state)
{
    static const ddp_edge_wire all[] = {{DDP_EDGE_TOPK, 10, 0, 1},
                                        {DDP_EDGE_ADATOPK, 4, 0, 1},
                                        {DDP_EDGE_BOTTLENECK, 8, 0, 0},
                                        {DDP_EDGE_AQ, 4, 0, 0}};
    board *b = boards();

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        long at = 1;
        int bad = 1;
        for (; bad && at < 4000; at += SAMPLED(7)) {
            job j;
            memset(&j, 0, sizeof j);
            j.b = b;
            j.edge = all[i];
            j.samples = SAMPLES;
            j.fail_at = at;
            bad = run(&j);
            if (bad && bad != (int)DDP_MEMORY) fail_msg("allocation %ld: %d, %s", at, bad, b->error);
        }
        assert_int_equal(bad, 0);
        assert_true(at > 50); /* a lower bound */
    }
    munmap(b, 2 * sizeof *b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_coded_edge_is_bit_identical_to_encoding_and_decoding),
        cmocka_unit_test(aq_is_bit_identical_to_encoding_and_decoding),
        cmocka_unit_test(the_first_pass_of_aq_is_float32),
        cmocka_unit_test(the_error_of_a_slow_sample_shrinks),
        cmocka_unit_test(reported_bytes_are_the_bytes_of_messages),
        cmocka_unit_test(the_slowest_link_is_compressed_most),
        cmocka_unit_test(links_are_probed),
        cmocka_unit_test(bytes_are_counted_by_coding),
        cmocka_unit_test(bottlenecks_at_cuts_equal_those_of_the_model),
        cmocka_unit_test(gradients_of_a_bottleneck_are_correct),
        cmocka_unit_test(invalid_settings_are_an_error),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
