/* [long, asan] Checkpoints and weights of a model in stages. A resumed run, on the same stages or on others,
 * ends bit-identical to an uninterrupted one. */
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
#include "heap.h"

enum { COPIES = 3, NODES = 120, VALUES = 20000, BATCH = 2, MICRO = 3 };

typedef enum model { GPT, RESNET, DAG } model;

/* Replaces heap.c: one allocation may fail. */
static struct {
    long taken, fail_at, live; /* allocations. The one that fails (0 for none); live blocks. */
} heap;

void *heap_realloc(void *p, size_t bytes)
{
    const long number = __atomic_add_fetch(&heap.taken, 1, __ATOMIC_SEQ_CST);
    void *q = number == heap.fail_at ? NULL : realloc(p, bytes);

    if (q && !p) __atomic_add_fetch(&heap.live, 1, __ATOMIC_SEQ_CST);
    return q;
}

void heap_free(void *p)
{
    if (p) __atomic_sub_fetch(&heap.live, 1, __ATOMIC_SEQ_CST);
    free(p);
}

/* All parameters and buffers of each copy of the model, in the order of the nodes. */
typedef struct board {
    float value[COPIES][VALUES];
    long first;
    int world;
    int64_t taken;
    char why[DDP_ERROR_TEXT]; /* weights that could not be loaded */
} board;

/* Steps load..last-1 of a run. */
typedef struct leg {
    ddp_config cfg;
    model m;
    uint64_t seed; /* of the DAG, and of the random cut */
    int stages;    /* 0: unpipelined */
    ddp_pipeline schedule;
    /* optimizer: 0 AdamW, 1 SGD with momentum, 2 Muon; anyhow: any cut, also through layers */
    int optimizer, anyhow;
    int load, save, apart;         /* apart: 1 = each rank has its own disk */
    int state;                     /* 1 if the program has a state of its stage (ddp_add_state) */
    long last, dim, heads, blocks; /* dim, heads, blocks: of a GPT, 0: 8, 2, 2 */
    const char *folder, *weights, *to;
    const int *rank_of;
    ddp_edge_wire edge;
    board *b;
} leg;

/* ---- models ---- */

static ddp_node *gpt(ddp_graph *g, const leg *x)
{
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 19;
    c.context = 6;
    c.batch = BATCH;
    c.dropout = 0.1f;
    c.layers = x->blocks ? x->blocks : 2;
    c.heads = x->heads ? x->heads : 2;
    c.dim = x->dim ? x->dim : 8;
    return ddp_gpt2(g, &c, NULL);
}

static ddp_node *residual(ddp_graph *g)
{
    ddp_node *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1), *x, *y;
    const ddp_shape image = {4, {BATCH, 2, 5, 5}};

    x = ddp_input_shape(g, "x", DDP_F32, &image);
    ddp_layer_begin(g, "stem");
    x = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 3, 3, 1, 1, 1, 0)));
    ddp_layer_end(g);
    ddp_layer_begin(g, "block");
    y = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 3, 3, 1, 1, 1, 0)));
    x = ddp_add(g, ddp_batch_norm2d(g, ddp_conv2d(g, y, 3, 3, 1, 1, 1, 1)), x);
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, ddp_global_avg_pool2d(g, x), 3), labels);
    ddp_layer_end(g);
    return x;
}

/* Linear layers on any earlier nodes, with two or three operators per layer. */
static ddp_node *dag(ddp_graph *g, uint64_t seed)
{
    enum { OPS = 8 };
    ddp_rng r = ddp_rng_seed(seed, 0);
    ddp_node *n[OPS + 1], *sum, *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1);

    n[0] = ddp_input(g, "x", DDP_F32, BATCH, 6);
    for (int i = 1; i <= OPS; i++) {
        if (i % 3 == 1) ddp_layer_begin(g, "op");
        n[i] = ddp_linear(g, n[i == 1 ? 0 : 1 + (int)ddp_rng_below(&r, (uint64_t)(i - 1))], 6);
        if (i % 3 == 0 || i == OPS) ddp_layer_end(g);
    }
    ddp_layer_begin(g, "last");
    for (sum = n[OPS]; ddp_node_index(sum) > 0;) {
        for (int i = OPS - 1; i > 0; i--) sum = ddp_add(g, sum, n[i]);
        break;
    }
    sum = ddp_cross_entropy(g, ddp_linear(g, sum, 5), labels);
    ddp_layer_end(g);
    return sum;
}

static void fill(void *at, const ddp_node *input, int copy, long step, int m)
{
    const long n = ddp_shape_count(&input->spec.out);
    ddp_rng x = ddp_rng_seed((uint64_t)(copy * 1000 + step * 16 + m), strlen(input->name));

    for (long i = 0; at && i < n; i++)
        if (input->type == DDP_I32)
            ((int32_t *)at)[i] = (int32_t)ddp_rng_below(&x, 3);
        else
            ((float *)at)[i] = (float)ddp_rng_normal(&x);
}

/* Stages in the order of the operators, cut anywhere, also inside layers. */
static void cut_anyhow(const ddp_graph *g, int stages, uint64_t seed, int *stage_of)
{
    ddp_rng r = ddp_rng_seed(seed, (uint64_t)stages);
    int begin[COPIES * 4], nodes = ddp__count(g->node);

    begin[0] = 0;
    for (int s = 1; s < stages; s++) begin[s] = nodes / 4 + (int)ddp_rng_below(&r, (uint64_t)(nodes / 2));
    for (int i = 0; i < nodes; i++) {
        stage_of[i] = 0;
        for (int s = 1; s < stages; s++) stage_of[i] += i >= begin[s];
    }
    /* a stage without an operator: cuts into equal numbers of operators instead */
    for (int s = 0, seen = 0; s < stages; s++, seen = 0) {
        for (int i = 0; i < nodes; i++) seen |= g->node[i]->op && stage_of[i] == s;
        for (int i = 0; !seen && i < nodes; i++) stage_of[i] = i * stages / nodes;
    }
}

/* ---- a run ---- */

static void keep(const leg *x, const ddp_graph *g, int copy)
{
    size_t at = 0;

    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        for (int k = n->tied >= 0; n->op && k < n->spec.params + n->spec.buffers; k++) {
            const int b = k - n->spec.params;
            const size_t count =
                (size_t)ddp_shape_count(b < 0 ? &n->spec.param[k].shape : &n->spec.buffer[b].shape);
            if (n->here == (int)DDP__HERE_OWN)
                memcpy(x->b->value[copy] + at, b < 0 ? n->param[k] : n->buffer[b], count * sizeof(float));
            at += count;
        }
    }
    if (at > VALUES || copy >= COPIES) abort();
}

/* Adopts a plan with every layer in its own step, on every stage. */
static int adopt(ddp_ctx *d, const ddp_graph *g)
{
    int step_of[NODES];
    ddp_plan plan;

    memset(&plan, 0, sizeof plan);
    plan.period = 2;
    plan.step_of = step_of;
    for (int l = 0; l < ddp__count(g->layer); l++)
        if (!g->stages || g->layer[l].first >= 0) step_of[plan.layers++] = (l * 5 / 3) % 2;
    return ddp_plan_adopt(d, &plan);
}

static int train(ddp_ctx *d, leg *x, ddp_graph *g, ddp_node *loss, ddp_pipe *p, int copy)
{
    int bad = 0;

    while (!bad && ddp_step(d) < x->last) {
        for (int m = 0; m < MICRO && !bad; m++) {
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op)
                    fill(p ? ddp_pipe_input(p, m, g->node[i]->name) : ddp_data(g, g->node[i]->name),
                         g->node[i], copy, ddp_step(d), m);
            if (!p) bad = ddp_forward(g);
            if (!p && !bad) bad = ddp_backward(g, loss);
        }
        if (p && !bad) bad = ddp_pipe_step(p);
        if (!bad) bad = ddp_step_end(d);
    }
    return bad;
}

static int saves_stage(void *user, void **bytes, size_t *size, ddp_error *err)
{
    (void)err;
    *bytes = user;
    *size = sizeof(int);
    return 0;
}

static int loads_stage(void *user, const void *bytes, size_t size, ddp_error *err)
{
    (void)err;
    return size != sizeof(int) || memcmp(user, bytes, size);
}

static int work(ddp_ctx *d, leg *x, ddp_graph *g, ddp_node *loss, ddp_pipe *p)
{
    const int copy = p ? ddp_pipe_number(p) : ddp_rank(d);
    ddp_optimizer o = x->optimizer > 1   ? ddp_muon(0.003f, 0.02f, 0.95f, 0.01f)
                      : x->optimizer > 0 ? ddp_sgd(0.05f, 0.9f)
                                         : ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f);
    int stage = -1;
    const ddp_program_state state = {"of a stage", saves_stage, loads_stage, NULL, &stage, 0};
    char folder[100];
    ddp_error err;
    int bad = 0;

    if (x->apart)
        snprintf(folder, sizeof folder, "%s/%d", x->folder, ddp_rank(d));
    else
        snprintf(folder, sizeof folder, "%s", x->folder ? x->folder : "");
    if (x->weights && (p || ddp_rank(d) == 0) && ddp_weights_load(g, x->weights, &err)) {
        if (ddp_rank(d) == 0) memcpy(x->b->why, err.msg, sizeof x->b->why);
        ddp_abort(d, err.msg);
        return (int)err.code;
    }
    if (x->state && ddp_add_state(d, &state)) return (int)ddp_last_error(d)->code;
    stage = p ? ddp_rank(d) : 0;
    bad = ddp_set_optimizer(d, &o);
    if (!bad && x->cfg.strategy == DDP_DREAMDDP) bad = adopt(d, g);
    if (!bad && x->load) bad = ddp_checkpoint_load(d, folder, ddp_rank(d) ? NULL : &x->b->world);
    if (bad) return bad;
    if (ddp_rank(d) == 0) x->b->first = ddp_step(d);
    bad = train(d, x, g, loss, p, copy);
    if (!bad && x->save) bad = ddp_checkpoint_save(d, folder, 0);
    if (!bad) bad = ddp_wait(d);
    if (!bad && x->to && p) bad = ddp_pipe_export(p, x->to);
    if (!bad && x->to && !p && ddp_rank(d) == 0) bad = (int)ddp_weights_save(g, x->to, NULL);
    if (!bad) keep(x, g, copy);
    if (ddp_rank(d) == 0) x->b->taken = ddp_taken(d);
    return bad;
}

static int worker(ddp_ctx *d, void *user)
{
    leg *x = (leg *)user;
    int cut[NODES], bad;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = x->m == GPT ? gpt(g, x) : x->m == RESNET ? residual(g) : dag(g, x->seed);
    ddp_pipe_config c;
    ddp_pipe *p = NULL;

    if (!loss || ddp__count(g->node) > NODES) return (int)DDP_MEMORY;
    memset(&c, 0, sizeof c);
    c.schedule = x->schedule;
    c.stages = x->stages;
    c.rank_of = x->rank_of;
    c.edge = x->edge;
    if (x->anyhow) {
        cut_anyhow(g, x->stages, x->seed, cut);
        c.stage_of = cut;
    }
    if (x->stages) p = ddp_pipe_open(d, g, loss, &c);
    if (x->stages && !p) return (int)ddp_last_error(d)->code;
    bad = p ? 0 : ddp_graph_build(g);
    if (!bad) bad = work(d, x, g, loss, p);
    ddp_pipe_close(p);
    return bad;
}

static board *boards(void)
{
    void *p = mmap(NULL, 3 * sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    return (board *)p;
}

static ddp_status launch(leg *x, int copies, ddp_error *err)
{
    memset(err, 0, sizeof *err);
    x->cfg.world = copies * (x->stages ? x->stages : 1);
    x->cfg.micro_batches = MICRO;
    x->cfg.deterministic = x->cfg.no_env = 1;
    x->cfg.seed = 5;
    x->cfg.timeout.peer_s = 60;
    if (x->cfg.transport == DDP_TRANSPORT_DEFAULT) x->cfg.transport = DDP_THREADS;
    if (x->cfg.strategy == DDP_STRATEGY_DEFAULT) x->cfg.strategy = DDP_SSGD;
    memset(x->b, 0, sizeof *x->b);
    return (ddp_status)ddp_launch(&x->cfg, worker, x, err);
}

static void go(leg *x, int copies)
{
    ddp_error err;

    if (launch(x, copies, &err))
        fail_msg("%s, %d stages, model %d (%d): %s", ddp_strategy_name(x->cfg.strategy), x->stages, (int)x->m,
                 (int)x->seed, err.msg);
}

static void refused(leg *x, int copies, ddp_status code, const char *part)
{
    ddp_error err;

    assert_int_equal(launch(x, copies, &err), code);
    if (!strstr(err.msg, part) && !strstr(x->b->why, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

static void remove_folder(const char *folder)
{
    char command[200];

    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* Saves after `cut` of 7 steps of `before`, and resumes in `after`. The result is bit-identical to `whole`,
 * which is not interrupted. */
static void resumes_bit_for_bit(const leg *whole_like, const leg *before, const leg *after, int copies,
                                long cut)
{
    char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX";
    board *b = boards();
    leg whole = *whole_like, first = *before, second = *after;

    assert_non_null(mkdtemp(folder));
    whole.last = second.last = 7;
    first.last = cut;
    first.save = second.load = 1;
    first.folder = second.folder = folder;
    whole.b = b;
    first.b = b + 1;
    second.b = b + 2;
    go(&whole, copies);
    go(&first, copies);
    go(&second, copies);
    assert_int_equal(second.b->first, cut);
    assert_int_equal(second.b->taken, 7 * MICRO * copies);
    if (memcmp(whole.b->value, second.b->value, sizeof whole.b->value))
        fail_msg("%s, model %d (%d), optimizer %d, %d copies, %d stages to %d by %s, cut at %ld: differs",
                 ddp_strategy_name(whole.cfg.strategy), (int)whole.m, (int)whole.seed, whole.optimizer,
                 copies, first.stages, second.stages, ddp_pipeline_name(second.schedule), cut);
    remove_folder(folder);
    munmap(b, 3 * sizeof *b);
}

static leg leg_of(model m, ddp_strategy s, int stages)
{
    leg x;

    memset(&x, 0, sizeof x);
    x.m = m;
    x.stages = stages;
    x.schedule = DDP_PIPELINE_1F1B;
    x.cfg.strategy = s;
    x.cfg.period = 3;
    return x;
}

/* ---- the same stages ---- */

static void the_same_stages_resume_bit_for_bit(void **unused)
{
    static const ddp_strategy all[] = {DDP_SSGD,       DDP_WFBP,     DDP_LOCALSGD,
                                       DDP_USBYTE,     DDP_DREAMDDP, DDP_DILOCO,
                                       DDP_SPARSELOCO, DDP_DEFT,     DDP_BYTESCHEDULER};

    (void)unused;
    for (int i = 0; i < (int)(sizeof all / sizeof all[0]); i++)
        for (int p = DDP_PIPELINE_GPIPE; p <= DDP_PIPELINE_ZB; p++) {
            leg x = leg_of((model)((i + p) % 2), all[i], 2 + (i + p) % 2);
            x.schedule = (ddp_pipeline)p;
            x.optimizer = (i + p) % 3;
            if (all[i] == DDP_DREAMDDP) x.cfg.period = 2;
            resumes_bit_for_bit(&x, &x, &x, 1 + (i + p) % 2, 1 + (2 * i + p) % 6);
        }
}

static void any_step_can_be_resumed(void **unused)
{
    static const int layout[] = {0, 2, 1, 3};

    (void)unused;
    for (long cut = 1; cut < 7; cut++) {
        leg x = leg_of(RESNET, DDP_DILOCO, 2), y;
        x.cfg.outer.overlap = DDP_OVERLAP_STREAM;
        x.cfg.net = "50mbit,1ms";
        resumes_bit_for_bit(&x, &x, &x, 2, cut);
        x = leg_of(GPT, DDP_LOCALSGD, 2);
        x.cfg.wire = DDP_WIRE_INT8;
        y = x;
        y.rank_of = layout; /* the same stages on other ranks */
        resumes_bit_for_bit(&x, &x, &y, 2, cut);
    }
}

static void processes_resume_bit_for_bit(void **unused)
{
    leg x = leg_of(GPT, DDP_SSGD, 2), one = leg_of(GPT, DDP_SSGD, 0);

    (void)unused;
    x.cfg.transport = one.cfg.transport = DDP_TCP;
    resumes_bit_for_bit(&one, &x, &x, 1, 3);
    resumes_bit_for_bit(&one, &x, &one, 1, 4);
}

static void edge_residuals_are_resumed(void **unused)
{
    static const ddp_edge_wire all[] = {
        {DDP_EDGE_INT8, 0, 0, 1}, {DDP_EDGE_TOPK, 4, 0, 1}, {DDP_EDGE_ADATOPK, 1.5, 3, 1}};
    static const int layout[] = {1, 0, 3, 2};

    (void)unused;
    for (int i = 0; i < 9; i++) {
        leg x = leg_of(GPT, i % 2 ? DDP_SSGD : DDP_LOCALSGD, 2 + i / 2 % 3), y;
        x.edge = all[i % 3];
        x.schedule = (ddp_pipeline)(DDP_PIPELINE_GPIPE + i / 3);
        x.optimizer = i % 2;
        y = x;
        if (x.stages == 2) y.rank_of = layout; /* the same stages on other ranks */
        resumes_bit_for_bit(&x, &x, &y, 1 + (x.stages == 2), 1 + (5 * i) % 6);
    }
}

static char said[DDP_ERROR_TEXT];

static void hear(void *user, ddp_log_level level, const char *line)
{
    (void)user;
    (void)level;
    if (strstr(line, "its edge residuals start at zero")) snprintf(said, sizeof said, "%s", line);
}

/* On other stages or replicas a run resumes as from a checkpoint without edge residuals, bit for bit. */
static void edge_residuals_are_dropped_on_other_stages(void **unused)
{
    static const int stages[] = {2, 3, 4}, copies[] = {1, 2, 1};
    board *b = boards();

    (void)unused;
    for (int i = 0; i < 3; i++) {
        char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX";
        leg a = leg_of(GPT, DDP_SSGD, 3), one, c;

        assert_non_null(mkdtemp(folder));
        a.folder = folder;
        a.edge.coding = DDP_EDGE_TOPK;
        a.edge.ratio = 4;
        a.edge.feedback = 1;
        one = c = a;
        a.last = one.last = 4;
        c.last = 7;
        a.save = one.save = one.load = c.load = 1;
        a.b = b + 2;
        one.b = b + 2;
        c.b = b;
        go(&a, 1);
        c.stages = stages[i];
        c.cfg.logger.fn = hear;
        c.cfg.logger.level = DDP_LOG_INFO;
        *said = 0;
        go(&c, copies[i]);
        if (!strstr(said, folder)) fail_msg("'%s' does not say that the residuals start at zero", said);
        one.stages = 0; /* one worker reads it, and saves a checkpoint without residuals */
        go(&one, 1);
        c.b = b + 1;
        go(&c, copies[i]);
        if (memcmp(b[0].value, b[1].value, sizeof b->value))
            fail_msg("3 stages to %d pipelines of %d: differs from a run without residuals", copies[i],
                     stages[i]);
        remove_folder(folder);
    }
    munmap(b, 3 * sizeof *b);
}

/* A run with feedback cannot resume from a checkpoint without it, and vice versa. */
static void changed_feedback_is_an_error(void **unused)
{
    char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX";
    board *b = boards();
    leg a = leg_of(GPT, DDP_SSGD, 2), c;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    for (int feedback = 0; feedback < 2; feedback++) {
        a.folder = folder;
        a.b = b;
        a.edge.coding = DDP_EDGE_INT8;
        a.edge.feedback = feedback;
        c = a;
        a.last = 3;
        a.save = 1;
        c.last = 7;
        c.load = 1;
        c.edge.feedback = !feedback;
        go(&a, 1);
        refused(&c, 1, DDP_MISMATCH,
                feedback ? "tensors, but this model with this wire format has" : "tensor \"edge residual.");
        remove_folder(folder);
    }
    munmap(b, 3 * sizeof *b);
}

/* ---- other stages ---- */

static void other_stages_resume_bit_for_bit(void **unused)
{
    static const int from[] = {0, 2, 3, 1, 4, 0}, to[] = {3, 0, 2, 2, 2, 1};
    int n = 0;

    (void)unused;
    for (int i = 0; i < 6; i++)
        for (int m = GPT; m <= RESNET; m++)
            for (int copies = 1; copies <= 2; copies++) {
                leg a = leg_of((model)m, copies == 1 ? DDP_SSGD : i % 2 ? DDP_WFBP : DDP_LOCALSGD, 0), x, y;
                if ((m == RESNET && from[i] > 3) || n++ % SAMPLED(3)) continue;
                a.optimizer = (i + copies) % 3;
                x = y = a;
                x.stages = from[i];
                y.stages = to[i];
                x.schedule = DDP_PIPELINE_GPIPE;
                y.schedule = DDP_PIPELINE_ZB;
                resumes_bit_for_bit(&a, &x, &y, copies, 1 + (i + 3 * copies) % 6);
            }
}

/* Cuts inside layers: each operator's values and their state are loaded on its stage. */
static void cuts_inside_layers_resume_bit_for_bit(void **unused)
{
    (void)unused;
    for (uint64_t seed = 0; seed < INSTANCES(40); seed++) {
        leg a = leg_of(seed % 4 ? DAG : RESNET, seed % 3 ? DDP_SSGD : DDP_LOCALSGD, 0), x, y;
        a.seed = seed;
        a.optimizer = (int)seed % 3;
        x = y = a;
        x.anyhow = y.anyhow = 1;
        x.stages = 2 + (int)seed % 3;
        y.stages = 2 + (int)(seed / 3) % 3;
        if (seed % 5 == 0) x.stages = x.anyhow = 0;
        if (seed % 5 == 1) y.stages = y.anyhow = 0;
        resumes_bit_for_bit(&a, &x, &y, 1 + (int)seed % 2, 2 + (long)seed % 4);
    }
}

/* The state of strategies is loaded per layer, as is an adopted plan. */
static void state_of_strategies_follows_its_layers(void **unused)
{
    (void)unused;
    for (int i = 0; i < 8; i++) {
        leg a = leg_of(GPT, i % 2 ? DDP_DREAMDDP : DDP_DILOCO, 0), x, y;
        a.cfg.period = 2;
        if (i == 5 || i == 7) {
            a.cfg.strategy = DDP_LOCALSGD;
            a.cfg.wire = DDP_WIRE_INT8;
        }
        x = y = a;
        x.stages = 2 + i % 2;
        y.stages = i % 3 ? 4 : 0;
        resumes_bit_for_bit(&a, &x, &y, i < 2 ? 1 : 2, 1 + i % 6);
        resumes_bit_for_bit(&a, &y, &x, 2, 2 + i % 5);
    }
}

static void other_replicas_need_a_synchronised_checkpoint(void **unused)
{
    char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX";
    board *b = boards();
    leg a = leg_of(RESNET, DDP_SSGD, 2), c = leg_of(RESNET, DDP_WFBP, 3);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.folder = c.folder = folder;
    a.last = c.last = 4;
    a.save = c.load = 1;
    a.b = b;
    c.b = b + 1;
    go(&a, 2);
    /* no step is left: compares the buffers, which come from the replica of the same number, modulo the old
     * number */
    go(&c, 3);
    assert_int_equal(c.b->world, 4);
    for (int r = 0; r < 3; r++) assert_memory_equal(c.b->value[r], a.b->value[r % 2], sizeof c.b->value[r]);
    c.stages = 2;
    go(&c, 1);
    assert_memory_equal(c.b->value[0], a.b->value[0], sizeof c.b->value[0]);
    c.stages = 0;
    go(&c, 1);
    assert_memory_equal(c.b->value[0], a.b->value[0], sizeof c.b->value[0]);
    remove_folder(folder);
    a.cfg.strategy = DDP_LOCALSGD;
    go(&a, 2);
    refused(&c, 1, DDP_MISMATCH, "2 workers with strategy localsgd and period 3, without synchronisation");
    remove_folder(folder);
    munmap(b, 3 * sizeof *b);
}

/* ---- checkpoints that do not fit ---- */

static void change_byte(const char *folder, const char *file)
{
    char path[200];
    FILE *f;
    int c;

    snprintf(path, sizeof path, "%s/step-%012d/%s", folder, 4, file);
    f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -9, SEEK_END);
    c = fgetc(f);
    fseek(f, -9, SEEK_END);
    fputc(c ^ 1, f);
    fclose(f);
}

static void a_checkpoint_that_does_not_fit_is_an_error(void **unused)
{
    char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX", path[200];
    board *b = boards();
    leg a = leg_of(GPT, DDP_SSGD, 3), c = leg_of(GPT, DDP_SSGD, 2);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.folder = c.folder = folder;
    a.last = 4;
    c.last = 6;
    a.save = c.load = 1;
    a.b = b;
    c.b = b + 1;
    go(&a, 1);
    c.blocks = 3;
    refused(&c, 1, DDP_MISMATCH, "to a model with 6 layers, but this model has 8");
    c.blocks = 0;
    c.dim = 12;
    refused(&c, 1, DDP_MISMATCH, "layer ");
    c.dim = 4;
    refused(&c, 1, DDP_MISMATCH, "different operators, sizes");
    c.dim = 0;
    c.heads = 4;
    refused(&c, 1, DDP_MISMATCH, "vocabulary, heads or sequence length");
    c.heads = 0;
    c.m = RESNET;
    refused(&c, 1, DDP_MISMATCH, "but this model has 3");
    c.m = GPT;
    c.optimizer = 1;
    refused(&c, 1, DDP_MISMATCH, "optimizer adamw, but this run uses sgd");
    c.optimizer = 0;
    c.cfg.strategy = DDP_DILOCO;
    refused(&c, 1, DDP_MISMATCH, "\"anchor.");
    c.cfg.strategy = DDP_SSGD;
    change_byte(folder, "rank-0001.safetensors");
    refused(&c, 1, DDP_FORMAT, "rank-0001.safetensors: its hash is");
    c.stages = 3;
    refused(&c, 1, DDP_FORMAT, "rank-0001.safetensors: its hash is");
    c.stages = 0;
    refused(&c, 1, DDP_FORMAT, "rank-0001.safetensors: its hash is");
    change_byte(folder, "rank-0001.safetensors");
    go(&c, 1);
    snprintf(path, sizeof path, "%s/step-%012d/rank-0001.safetensors", folder, 4);
    assert_int_equal(truncate(path, 700), 0);
    refused(&c, 1, DDP_FORMAT, "rank-0001.safetensors");
    assert_int_equal(remove(path), 0);
    refused(&c, 1, DDP_IO, "layer h.");
    c.stages = 3;
    refused(&c, 1, DDP_IO, "rank-0001.safetensors: No such file");
    c.stages = 0;
    snprintf(path, sizeof path, "%s/step-%012d/manifest.json", folder, 4);
    assert_int_equal(remove(path), 0);
    refused(&c, 1, DDP_IO, "has no complete checkpoint");
    remove_folder(folder);

    a.cfg.strategy = c.cfg.strategy = DDP_DEFT;
    go(&a, 2);
    refused(&c, 2, DDP_MISMATCH, "strategy deft stores \"");
    remove_folder(folder);
    a.cfg.strategy = DDP_DILOCO;
    c.cfg.strategy = DDP_SSGD;
    go(&a, 1);
    c.cfg.period = a.cfg.period;
    refused(&c, 1, DDP_MISMATCH, "which strategy ssgd does not store with this wire format");
    remove_folder(folder);
    munmap(b, 3 * sizeof *b);
}

static void state_of_a_program_needs_the_same_stage(void **unused)
{
    char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX";
    board *b = boards();
    leg a = leg_of(GPT, DDP_SSGD, 3), c = leg_of(GPT, DDP_SSGD, 3);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    a.folder = c.folder = folder;
    a.last = 2;
    c.last = 4;
    a.save = c.load = 1;
    a.state = c.state = 1;
    a.b = b;
    c.b = b + 1;
    go(&a, 1);
    go(&c, 1);
    c.stages = 2;
    refused(&c, 1, DDP_MISMATCH, "the state 'of a stage' (ddp_add_state) cannot be moved to another cut");
    c.state = 0; /* a warning */
    go(&c, 1);
    remove_folder(folder);
    munmap(b, 3 * sizeof *b);
}

/* Stages without a shared disk. Each resumes from its own file; with another cut the files of other ranks are
 * missing. */
static void stages_without_a_shared_disk_resume(void **unused)
{
    char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX", path[100];
    board *b = boards();
    leg whole = leg_of(GPT, DDP_SSGD, 2), first, second;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    whole.last = 6;
    whole.b = b;
    go(&whole, 2);
    first = second = whole;
    first.b = b + 1;
    second.b = b + 2;
    first.folder = second.folder = folder;
    first.apart = second.apart = first.save = second.load = 1;
    first.last = 4;
    go(&first, 2);
    go(&second, 2);
    assert_memory_equal(whole.b->value, second.b->value, sizeof whole.b->value);
    second.stages = 4;
    refused(&second, 1, DDP_IO, "start each rank where all files are");
    remove_folder(folder);
    munmap(b, 3 * sizeof *b);
}

/* ---- weights ---- */

static void equal_files(const char *folder, const char *one, const char *other)
{
    char command[400];

    snprintf(command, sizeof command, "cmp %s/%s %s/%s", folder, one, folder, other);
    assert_int_equal(system(command), 0);
}

static void weights_files_are_identical_for_any_cut(void **unused)
{
    char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX", one[100], more[100], bad[100], command[300];
    static const int layout[] = {1, 0, 3, 2};
    board *b = boards();

    (void)unused;
    assert_non_null(mkdtemp(folder));
    snprintf(one, sizeof one, "%s/one", folder);
    snprintf(more, sizeof more, "%s/more", folder);
    snprintf(bad, sizeof bad, "%s/bad", folder);
    for (int m = GPT; m <= RESNET; m++)
        for (int stages = 1; stages <= (m == GPT ? 4 : 3); stages++)
            for (int tcp = 0; tcp <= (stages == 3); tcp++) {
                leg a = leg_of((model)m, DDP_SSGD, 0), c = leg_of((model)m, DDP_SSGD, stages);
                a.last = c.last = 2;
                a.b = b;
                c.b = b + 1;
                a.to = one;
                c.to = more;
                if (tcp) c.cfg.transport = DDP_TCP;
                if (stages == 2) c.rank_of = layout;
                go(&a, stages == 2 ? 2 : 1);
                go(&c, stages == 2 ? 2 : 1);
                equal_files(folder, "one", "more");
                c.last = 0;
                c.weights = one; /* loads trained weights in place of other initial ones */
                c.cfg.seed = 7;
                remove(more);
                go(&c, stages == 2 ? 2 : 1);
                equal_files(folder, "one", "more");
                if (m != GPT || stages < 2) continue;
                snprintf(command, sizeof command, "sed 's/ln_f.bias/ln_f.bios/' %s > %s", one, bad);
                assert_int_equal(system(command), 0);
                c.weights = bad;
                refused(&c, stages == 2 ? 2 : 1, DDP_FORMAT, "bad: tensor \"ln_f.bios\" is not one of the");
                c.weights = NULL;
                c.to = "/proc/no/such";
                refused(&c, stages == 2 ? 2 : 1, DDP_IO, "/proc/no/such");
            }
    remove_folder(folder);
    munmap(b, 3 * sizeof *b);
}

/* A run on other stages that loads, saves and exports. If any allocation fails there is an error, and the
 * previous checkpoint is still complete. */
static void any_allocation_may_fail(void **unused)
{
    char folder[] = "/tmp/ddp_pipe_ckpt_XXXXXX", file[100];
    board *b = boards();
    leg a = leg_of(GPT, DDP_DILOCO, 3), c = leg_of(GPT, DDP_DILOCO, 2);
    long k;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/weights", folder);
    a.folder = c.folder = folder;
    a.last = c.last = 4;
    a.save = c.load = c.save = 1;
    c.to = file;
    a.b = b;
    c.b = b + 1;
    go(&a, 1);
    for (k = 1;; k += SAMPLED(3)) {
        ddp_error err;
        ddp_status code;
        heap.taken = heap.live = 0;
        heap.fail_at = k;
        code = launch(&c, 1, &err);
        heap.fail_at = 0;
        if (heap.live) fail_msg("allocation %ld fails: %ld blocks leaked", k, heap.live);
        if (heap.taken < k) break;
        if (code != DDP_MEMORY && code != DDP_PEER_LOST)
            fail_msg("allocation %ld fails: %d, %s", k, (int)code, err.msg);
        assert_true(strlen(err.msg) > 10);
    }
    assert_true(k > 300);
    go(&c, 1);
    assert_memory_equal(a.b->value[0], c.b->value[0], sizeof a.b->value[0]);
    remove_folder(folder);
    munmap(b, 3 * sizeof *b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_stages_resume_bit_for_bit),
        cmocka_unit_test(any_step_can_be_resumed),
        cmocka_unit_test(processes_resume_bit_for_bit),
        cmocka_unit_test(edge_residuals_are_resumed),
        cmocka_unit_test(edge_residuals_are_dropped_on_other_stages),
        cmocka_unit_test(changed_feedback_is_an_error),
        cmocka_unit_test(other_stages_resume_bit_for_bit),
        cmocka_unit_test(cuts_inside_layers_resume_bit_for_bit),
        cmocka_unit_test(state_of_strategies_follows_its_layers),
        cmocka_unit_test(other_replicas_need_a_synchronised_checkpoint),
        cmocka_unit_test(a_checkpoint_that_does_not_fit_is_an_error),
        cmocka_unit_test(state_of_a_program_needs_the_same_stage),
        cmocka_unit_test(stages_without_a_shared_disk_resume),
        cmocka_unit_test(weights_files_are_identical_for_any_cut),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
