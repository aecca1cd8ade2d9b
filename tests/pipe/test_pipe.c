/* Training over stages. Every schedule, number of stages, model and cut is bit-identical to unpipelined
 * workers with the same number of micro-batches. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "heap.h"

enum { RANKS = 8, NODES = 160, VALUES = 20000, STEPS = 4, BATCH = 2 };

typedef enum model { GPT, MLP, RESNET, DAG, MODELS } model;

/* The results of a run: all parameters and buffers by node, and the loss of its last step. */
typedef struct board {
    float value[2][VALUES]; /* [pipelines compared] */
    size_t at[NODES], count[NODES];
    size_t used;
    float loss[RANKS];
    uint64_t hash[RANKS];
    float judged[RANKS]; /* the loss of the last evaluation */
    int nodes;
} board;

typedef struct job {
    ddp_config cfg;
    model m;
    uint64_t dag; /* seed of a random graph */
    int stages;   /* 0: unpipelined */
    ddp_pipeline schedule;
    int micro_batches, ahead, adamw, evaluate;
    int random_cut;
    int recompute; /* 1: in the pipeline, but not in the reference */
    int plans;     /* 1: the run makes its plan or reads it; 0: it adopts one */
    const int *rank_of;
    ddp_edge_wire edge;
    board *b;
} job;

/* A random graph: linear layers and relus on any earlier nodes, added at the end, so that all are used. In
 * one of three graphs the first node has a use that the loss does not depend on. */
static ddp_node *dag_model(ddp_graph *g, uint64_t seed, int recompute)
{
    enum { OPS = 9 };
    ddp_rng again = ddp_rng_seed(seed, 2);
    int inside = 0;
    ddp_rng r = ddp_rng_seed(seed, 0);
    ddp_node *n[OPS + 1], *sum, *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1);
    int used[OPS + 1];

    memset(used, 0, sizeof used);
    n[0] = ddp_input(g, "x", DDP_F32, BATCH, 6);
    for (int i = 1; i <= OPS; i++) {
        const int a = (int)ddp_rng_below(&r, (uint64_t)i), b = (int)ddp_rng_below(&r, (uint64_t)i);
        const int kind = i == 1 ? 0 : (int)ddp_rng_below(&r, 3);
        if (recompute && ddp_rng_below(&again, 3) == 0) {
            if (inside)
                ddp_recompute_end(g);
            else
                ddp_recompute_begin(g);
            inside = !inside;
        }
        if (i % 2) ddp_layer_begin(g, "op"); /* layers of two operators, which a cut may split */
        if (kind == 0)
            n[i] = ddp_linear(g, n[i == 1 ? 0 : a], 6);
        else if (kind == 1)
            n[i] = ddp_relu(g, n[a ? a : 1]);
        else
            n[i] = ddp_add(g, n[a ? a : 1], n[b ? b : 1]);
        if (i == 5 && seed % 3 == 0) ddp_relu(g, n[1]);
        if (i % 2 == 0 || i == OPS) ddp_layer_end(g);
        used[a ? a : 1]++;
        if (kind == 2) used[b ? b : 1]++;
    }
    if (inside) ddp_recompute_end(g);
    ddp_layer_begin(g, "last");
    sum = n[OPS];
    for (int i = OPS - 1; i > 0; i--)
        if (!used[i]) sum = ddp_add(g, sum, n[i]);
    sum = ddp_cross_entropy(g, ddp_linear(g, sum, 5), labels);
    ddp_layer_end(g);
    return sum;
}

/* Two residual blocks with running statistics. */
static ddp_node *residual_model(ddp_graph *g, int recompute)
{
    ddp_node *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1), *x, *y;
    const ddp_shape image = {4, {BATCH, 2, 6, 6}};

    x = ddp_input_shape(g, "x", DDP_F32, &image);
    ddp_layer_begin(g, "stem");
    x = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 0)));
    ddp_layer_end(g);
    for (int i = 0; i < 2; i++) {
        if (recompute) ddp_recompute_begin(g);
        ddp_layer_begin(g, "a");
        y = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 0)));
        ddp_layer_end(g);
        ddp_layer_begin(g, "b");
        x = ddp_relu(g, ddp_add(g, ddp_batch_norm2d(g, ddp_conv2d(g, y, 4, 3, 1, 1, 1, 1)), x));
        ddp_layer_end(g);
        if (recompute) ddp_recompute_end(g);
    }
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, ddp_global_avg_pool2d(g, x), 3), labels);
    ddp_layer_end(g);
    return x;
}

static ddp_node *build(ddp_graph *g, const job *j)
{
    const int recompute = j->recompute && j->stages;

    if (j->m == GPT) {
        ddp_gpt2_config c;
        memset(&c, 0, sizeof c);
        c.vocabulary = 19;
        c.context = 8;
        c.layers = 3;
        c.heads = 2;
        c.dim = 8;
        c.batch = BATCH;
        c.dropout = 0.1f;
        c.recompute = recompute;
        return ddp_gpt2(g, &c, NULL);
    }
    if (j->m == MLP) {
        ddp_mlp_config c;
        memset(&c, 0, sizeof c);
        c.batch = BATCH;
        c.inputs = 7;
        c.hidden[0] = 9;
        c.hidden[1] = 5;
        c.hidden[2] = 11;
        c.hidden[3] = 6;
        c.hidden[4] = 8;
        c.classes = 5;
        return ddp_mlp(g, &c, NULL);
    }
    if (j->m == RESNET) return residual_model(g, recompute);
    return dag_model(g, j->dag, recompute);
}

/* The data of worker r, micro-batch m of a step. */
static void fill(void *at, const ddp_node *input, int r, int step, int m)
{
    const long n = ddp_shape_count(&input->spec.out);
    ddp_rng x = ddp_rng_seed((uint64_t)(r * 1000 + step * 16 + m), strlen(input->name));

    for (long i = 0; at && i < n; i++)
        if (input->type == DDP_I32)
            ((int32_t *)at)[i] = (int32_t)ddp_rng_below(&x, 3);
        else
            ((float *)at)[i] = (float)ddp_rng_normal(&x);
}

static void keep(const job *j, ddp_graph *g, int which)
{
    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        size_t at = j->b->at[i];
        for (int k = n->tied >= 0; n->here == (int)DDP__HERE_OWN && k < n->spec.params + n->spec.buffers;
             k++) {
            const int p = k < n->spec.params;
            const size_t count = (size_t)ddp_shape_count(p ? &n->spec.param[k].shape
                                                           : &n->spec.buffer[k - n->spec.params].shape);
            memcpy(j->b->value[which] + at, p ? n->param[k] : n->buffer[k - n->spec.params],
                   count * sizeof(float));
            at += count;
        }
    }
}

static void measure(const job *j, const ddp_graph *g)
{
    board *b = j->b;

    b->used = 0;
    b->nodes = ddp__count(g->node);
    assert_true(ddp__count(g->node) <= NODES);
    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        b->at[i] = b->used;
        for (int k = n->tied >= 0; k < n->spec.params; k++)
            b->used += (size_t)ddp_shape_count(&n->spec.param[k].shape);
        for (int k = 0; k < n->spec.buffers; k++)
            b->used += (size_t)ddp_shape_count(&n->spec.buffer[k].shape);
        b->count[i] = b->used - b->at[i];
    }
    assert_true(b->used <= VALUES);
}

/* Any cut without cycles; ordered: stages in the order of the operators. */
static void cut_anyhow(const ddp_graph *g, int stages, uint64_t seed, int ordered, int *stage_of)
{
    ddp_rng r = ddp_rng_seed(seed, 1);

    for (int left = 1; left;) {
        int seen[RANKS];
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < ddp__count(g->node); i++) {
            int low = ordered && i ? stage_of[i - 1] : 0;
            for (int k = 0; k < g->node[i]->spec.inputs; k++)
                if (g->node[g->node[i]->input[k]]->op && stage_of[g->node[i]->input[k]] > low)
                    low = stage_of[g->node[i]->input[k]];
            stage_of[i] = low;
            if (g->node[i]->op && ddp_rng_below(&r, 3) == 0)
                stage_of[i] += (int)ddp_rng_below(&r, (uint64_t)(stages - low));
            if (g->node[i]->op) seen[stage_of[i]] = 1;
        }
        left = 0;
        for (int s = 0; s < stages; s++) left |= !seen[s];
    }
}

/* Adopts a plan with every layer in its own step, on every stage. */
static int adopt(ddp_ctx *d, const ddp_graph *g, int cut)
{
    int step_of[NODES];
    ddp_plan plan;

    memset(&plan, 0, sizeof plan);
    plan.period = 2;
    plan.step_of = step_of;
    for (int l = 0; l < ddp__count(g->layer); l++)
        if (!cut || g->layer[l].first >= 0) step_of[plan.layers++] = (l * 5 / 3) % 2;
    return ddp_plan_adopt(d, &plan);
}

enum { SLOTS = 400 };

/* The recorded tasks are those of the schedule, one after the other. Every message of a boundary is recorded,
 * sent after its data is computed and received before it is used. */
static void lanes_fit(ddp_pipe *p, const job *j, int peers)
{
    const ddp_pipeline_shape shape = {j->schedule, j->stages, j->micro_batches, j->ahead};
    ddp_pipeline_slot slot[SLOTS];
    ddp_task task[3 * 16];
    double done[2][16], begun[2][16], last = 0;
    const int n = ddp_pipe_lanes(p, slot, SLOTS), tasks = ddp_pipeline_tasks(&shape, ddp_pipe_stage(p), task);
    int next = 0, messages = 0;

    for (int i = 0; i < n; i++) {
        const ddp_pipeline_slot *s = &slot[i];
        const int back = s->task.kind != DDP_TASK_FORWARD, m = s->task.micro_batch;
        assert_int_equal(s->stage, ddp_pipe_stage(p));
        assert_true(s->end_s >= s->begin_s);
        if (s->boundary >= 0) continue;
        assert_true(next < tasks && s->task.kind == task[next].kind && m == task[next].micro_batch);
        next++;
        assert_true(s->begin_s >= last);
        last = s->end_s;
        if (s->task.kind == DDP_TASK_WEIGHT_GRADIENT) continue;
        begun[back][m] = s->begin_s;
        done[back][m] = s->end_s;
    }
    assert_int_equal(next, tasks);
    for (int i = 0; i < n; i++) {
        const ddp_pipeline_slot *s = &slot[i];
        if (s->boundary < 0) continue;
        messages++;
        assert_true(s->boundary < j->stages && s->boundary != s->stage);
        if (s->task.kind == DDP_TASK_SEND)
            assert_true(s->begin_s >= done[s->gradient][s->task.micro_batch]);
        else
            assert_true(s->end_s <= begun[s->gradient][s->task.micro_batch]);
        assert_int_equal(s->task.kind == DDP_TASK_SEND, (s->boundary > s->stage) != s->gradient);
    }
    assert_int_equal(messages, 2 * j->micro_batches * peers);
}

/* For a chain, in which an output crosses at most one boundary. A step takes at least the computing time of a
 * stage, and without link costs about the predicted time. */
static void stats_fit(ddp_pipe *p, const ddp_graph *g, const job *j)
{
    double crosses = 0;
    ddp_pipe_stats s;

    for (int i = 1; i < ddp__count(g->node); i++)
        if (g->node[i - 1]->op && g->node[i]->op && g->node[i - 1]->stage < g->node[i]->stage)
            crosses += (double)ddp_shape_count(&g->node[i - 1]->spec.out);

    assert_int_equal(ddp_pipe_get_stats(p, &s), 0);
    assert_int_equal(s.steps, STEPS - 1);
    assert_true(s.step_s > 0 && s.bubble_pct > 0 && s.bubble_pct < 100);
    assert_true(s.predicted_step_s >= 0.999 * s.step_s * (1 - s.bubble_pct / 100) &&
                s.predicted_step_s < 1.5 * s.step_s);
    assert_true(crosses > 0 && s.boundary_bytes == crosses * (double)sizeof(float) * 2 * j->micro_batches);
}

static int train_pipe(ddp_ctx *d, const job *j, ddp_graph *g, ddp_node *loss)
{
    int cut[NODES], at, bad = 0;
    ddp_pipe_config c;
    ddp_pipe *p;

    memset(&c, 0, sizeof c);
    c.schedule = j->schedule;
    c.stages = j->stages;
    c.ahead = j->ahead;
    c.rank_of = j->rank_of;
    c.edge = j->edge;
    if (j->random_cut) {
        cut_anyhow(g, j->stages, j->dag + 77, j->dag % 2, cut);
        c.stage_of = cut;
    }
    p = ddp_pipe_open(d, g, loss, &c);
    if (!p) return (int)ddp_last_error(d)->code;
    at = ddp_pipe_number(p) * j->stages + ddp_pipe_stage(p);
    {
        ddp_optimizer o = j->adamw ? ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f) : ddp_sgd(0.1f, 0.9f);
        bad = ddp_set_optimizer(d, &o);
    }
    if (!bad && j->cfg.strategy == DDP_DREAMDDP && !j->plans) bad = adopt(d, g, 1);
    for (int step = 0; step < STEPS && !bad; step++) {
        for (int m = 0; m < j->micro_batches; m++)
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op)
                    fill(ddp_pipe_input(p, m, g->node[i]->name), g->node[i], ddp_pipe_number(p), step, m);
        bad = ddp_pipe_step(p);
        if (!bad) bad = ddp_step_end(d);
        if (!bad) j->b->loss[at] = ddp_pipe_loss(p);
        if (!bad && j->evaluate && step % 2) bad = ddp_pipe_evaluate(p, step);
        if (!bad && j->evaluate && step % 2) j->b->judged[at] = ddp_pipe_loss(p);
    }
    if (!bad && j->cfg.debug.trace_spans) {
        lanes_fit(p, j, (ddp_pipe_stage(p) > 0) + (ddp_pipe_stage(p) + 1 < j->stages));
        stats_fit(p, g, j);
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) bad = ddp_pipe_hash(p, &j->b->hash[at]);
    if (!bad && ddp_pipe_number(p) < 2) keep(j, g, ddp_pipe_number(p));
    ddp_pipe_close(p);
    return bad;
}

/* The mean loss of the first n micro-batches of step n, evaluated. */
static int judge_whole(ddp_ctx *d, const job *j, ddp_graph *g, const ddp_node *loss, int n)
{
    double sum = 0;
    int bad = 0;

    for (int m = 0; m < n && !bad; m++) {
        for (int i = 0; i < ddp__count(g->node); i++)
            if (!g->node[i]->op) fill(ddp_data(g, g->node[i]->name), g->node[i], ddp_rank(d), n, m);
        bad = ddp_evaluate(g);
        sum += (double)ddp_value(g, loss);
    }
    j->b->judged[ddp_rank(d)] = (float)(sum / n);
    return bad;
}

static int train_whole(ddp_ctx *d, const job *j, ddp_graph *g, ddp_node *loss)
{
    int bad = ddp_graph_build(g);
    double sum = 0;

    if (!bad) {
        ddp_optimizer o = j->adamw ? ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f) : ddp_sgd(0.1f, 0.9f);
        bad = ddp_set_optimizer(d, &o);
    }
    if (!bad && j->cfg.strategy == DDP_DREAMDDP && !j->plans) bad = adopt(d, g, 0);
    for (int step = 0; step < STEPS && !bad; step++) {
        sum = 0;
        for (int m = 0; m < j->micro_batches && !bad; m++) {
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op) fill(ddp_data(g, g->node[i]->name), g->node[i], ddp_rank(d), step, m);
            bad = ddp_forward(g);
            if (!bad) sum += (double)ddp_value(g, loss);
            if (!bad) bad = ddp_backward(g, loss);
        }
        if (!bad) bad = ddp_step_end(d);
        if (!bad && j->evaluate && step % 2) bad = judge_whole(d, j, g, loss, step);
    }
    j->b->loss[ddp_rank(d)] = (float)(sum / j->micro_batches);
    if (!bad) bad = ddp_sync_all(d);
    j->b->hash[ddp_rank(d)] = 0;
    for (int l = 0; !bad && l < ddp__count(g->layer); l++)
        j->b->hash[ddp_rank(d)] =
            ddp_hash_floats(j->b->hash[ddp_rank(d)], g->layer[l].params, g->layer[l].count);
    if (!bad && ddp_rank(d) < 2) keep(j, g, ddp_rank(d));
    return bad;
}

static int worker(ddp_ctx *d, void *user)
{
    const job *j = (const job *)user;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = build(g, j);

    if (!loss) return (int)ddp_graph_error(g)->code;
    return j->stages ? train_pipe(d, j, g, loss) : train_whole(d, j, g, loss);
}

static void run(job *j, int world)
{
    ddp_error err;

    j->cfg.world = world;
    j->cfg.micro_batches = j->micro_batches;
    j->cfg.deterministic = 1;
    j->cfg.no_env = 1;
    j->cfg.transport = DDP_THREADS;
    j->cfg.seed = 5;
    j->cfg.timeout.peer_s = 60;
    if (j->cfg.strategy == DDP_STRATEGY_DEFAULT) j->cfg.strategy = DDP_SSGD;
    memset(&err, 0, sizeof err);
    if (ddp_launch(&j->cfg, worker, j, &err))
        fail_msg("world %d, %d stages, %s: %s", world, j->stages, ddp_pipeline_name(j->schedule), err.msg);
}

/* One board for the reference, one for the run compared with it. */
static board *boards(void)
{
    board *b = (board *)calloc(2, sizeof *b);

    assert_non_null(b);
    return b;
}

static void sizes(job *j)
{
    ddp_graph *g = ddp_graph_new(NULL);

    assert_non_null(build(g, j));
    measure(j, g);
    ddp_graph_free(g);
}

static void same(const job *a, const job *b, int replicas)
{
    for (int i = 0; i < a->b->nodes; i++)
        for (int r = 0; r < replicas && r < 2; r++)
            if (memcmp(a->b->value[r] + a->b->at[i], b->b->value[r] + a->b->at[i],
                       a->b->count[i] * sizeof(float)))
                fail_msg("model %d (%d), %d stages, %s, %d micro-batches: node %d of replica %d differs",
                         (int)b->m, (int)b->dag, b->stages, ddp_pipeline_name(b->schedule), b->micro_batches,
                         i, r);
    for (int r = 0; r < replicas; r++)
        for (int s = 0; s < b->stages; s++) assert_true(a->b->hash[r] == b->b->hash[r * b->stages + s]);
    for (int r = 0; b->evaluate && r < replicas; r++)
        for (int s = 0; s < b->stages; s++) assert_true(a->b->judged[r] == b->b->judged[r * b->stages + s]);
    for (int r = 0; r < replicas; r++)
        for (int s = 0; s < b->stages; s++) assert_true(a->b->loss[r] == b->b->loss[r * b->stages + s]);
}

static void compare(const job *like, int stages, int replicas, board *b)
{
    job whole = *like, cut = *like;

    memset(b, 0, 2 * sizeof *b);
    whole.b = b;
    cut.b = b + 1;
    whole.stages = 0;
    cut.stages = stages;
    sizes(&whole);
    sizes(&cut);
    run(&whole, replicas);
    for (int p = DDP_PIPELINE_GPIPE; p <= DDP_PIPELINE_ZB; p++) {
        cut.schedule = (ddp_pipeline)p;
        run(&cut, stages * replicas);
        same(&whole, &cut, replicas);
    }
}

static void a_pipeline_is_bit_identical_to_one_worker(void **state)
{
    board *b = boards();

    (void)state;
    for (int m = GPT; m < DAG; m++)
        for (int stages = 1; stages <= (m == RESNET ? 3 : 5); stages += m == RESNET ? 2 : 1) {
            job j;
            memset(&j, 0, sizeof j);
            j.m = (model)m;
            j.micro_batches = stages == 1 ? 1 : 2 + stages;
            j.ahead = m == MLP ? stages - 1 : 0;
            j.adamw = stages % 2;
            j.cfg.clip_norm = stages == 4 ? 0.3f : 0;
            compare(&j, stages, 1, b);
        }
    free(b);
}

static void replicas_of_stages_are_bit_identical_to_workers(void **state)
{
    static const ddp_strategy all[] = {DDP_WFBP, DDP_LOCALSGD, DDP_USBYTE, DDP_DREAMDDP};
    static const int anyhow[] = {2, 0, 1, 3};
    board *b = boards();

    (void)state;
    for (int i = 0; i < 4; i++) {
        job j;
        memset(&j, 0, sizeof j);
        j.m = (model)(i % 2);
        j.micro_batches = 3;
        j.cfg.strategy = all[i];
        j.cfg.period = 2;
        j.adamw = i == 1;
        j.cfg.clip_norm = i % 2 ? 0.5f : 0;
        j.rank_of = i == 1 ? anyhow : NULL;
        compare(&j, 2, i == 0 ? 3 : 2, b);
    }
    free(b);
}

/* ---- the plan of the whole model ---- */

static const ddp_strategy planned[] = {DDP_ENP, DDP_DREAMDDP};

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static char *file_name(char *path, size_t room, const char *what)
{
    snprintf(path, room, "/tmp/ddp_pipe_%s_%ld", what, (long)getpid());
    return path;
}

/* In deterministic mode all ranks plan from the same profile of the whole model. */
static void stages_that_plan_follow_the_plan_of_unpipelined_workers(void **state)
{
    board *b = boards();

    (void)state;
    for (size_t i = 0; i < sizeof planned / sizeof *planned; i++)
        for (int stages = 2; stages <= 4; stages++) {
            job j;
            memset(&j, 0, sizeof j);
            j.m = stages == 3 ? i ? RESNET : MLP : GPT;
            j.micro_batches = 2;
            j.plans = 1;
            j.cfg.strategy = planned[i];
            j.cfg.period = 3;
            j.cfg.plan.fill = stages == 4 ? DDP_FILL_EXACT : DDP_FILL_NONE;
            j.cfg.average.split_params = stages == 3 ? 40 : 0;
            j.cfg.average.state = j.adamw = stages == 4;
            j.cfg.clip_norm = stages == 2 ? 0.5f : 0;
            j.cfg.net = stages == 4 ? "200mbit,0.1ms" : NULL;
            compare(&j, stages, 2, b);
        }
    free(b);
}

/* A layer of two operators on two stages. The second operator has parameters or not. */
static int trains_a_parted_layer(ddp_ctx *d, void *user)
{
    static const int cut[] = {0, 0, 0, 1, 1};
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *x = ddp_input(g, "x", DDP_F32, BATCH, 6), *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1);
    ddp_pipe_config c;
    ddp_pipe *p;
    int bad;

    ddp_layer_begin(g, "parted");
    x = ddp_linear(g, x, 6);
    x = *(const int *)user ? ddp_linear(g, x, 6) : ddp_relu(g, x);
    ddp_layer_end(g);
    x = ddp_cross_entropy(g, x, labels);
    memset(&c, 0, sizeof c);
    c.stages = 2;
    c.stage_of = cut;
    p = ddp_pipe_open(d, g, x, &c);
    if (!p) return (int)ddp_last_error(d)->code;
    bad = ddp_set_optimizer(d, &o) || ddp_pipe_step(p) || ddp_step_end(d);
    ddp_pipe_close(p);
    return bad;
}

static void parts_of_a_layer_on_two_stages_are_an_error(void **state)
{
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.world = 4;
    cfg.no_env = cfg.deterministic = 1;
    cfg.transport = DDP_THREADS;
    cfg.strategy = DDP_DREAMDDP;
    cfg.average.split_params = 10;
    for (int both = 0; both < 2; both++)
        assert_int_equal(ddp_launch(&cfg, trains_a_parted_layer, &both, &err),
                         both ? DDP_UNSUPPORTED : DDP_OK);
    assert_non_null(
        strstr(err.msg,
               "layer parted is on 2 stages, and split_params 10 makes 9 parts of it: cut the model between "
               "layers, or leave split_params 0"));
}

/* A layer that the cut splits is averaged in one step on both stages. */
static void stages_of_any_cut_follow_the_plan_of_unpipelined_workers(void **state)
{
    board *b = boards();

    (void)state;
    for (uint64_t seed = 0; seed < INSTANCES(12); seed++) {
        job j;
        memset(&j, 0, sizeof j);
        j.m = DAG;
        j.dag = seed;
        j.random_cut = 1;
        j.micro_batches = 2;
        j.plans = 1;
        j.cfg.strategy = planned[seed % 2];
        j.cfg.period = 3;
        compare(&j, 2 + (int)(seed % 3), 2, b);
    }
    free(b);
}

/* GPT has the layers embed, two of each of three blocks, head. */
static void a_plan_file_of_the_whole_model_holds_for_all_stages(void **state)
{
    char path[64];
    board *b = boards();

    (void)state;
    write_text(file_name(path, sizeof path, "plan"),
               "{\"sets\": [[7, 3], [0, 5, 1], [2, 4, 6]], \"fill\": [[4], [], [0, 7]]}");
    for (size_t i = 0; i < sizeof planned / sizeof *planned; i++)
        for (int stages = 2; stages <= 4; stages++) {
            job j;
            memset(&j, 0, sizeof j);
            j.m = GPT;
            j.micro_batches = 2;
            j.plans = 1;
            j.cfg.strategy = planned[i];
            j.cfg.period = 3;
            j.cfg.plan_path = path;
            compare(&j, stages, 2, b);
        }
    remove(path);
    free(b);
}

static void a_profile_of_the_whole_model_is_planned_for_all_stages(void **state)
{
    static const ddp_strategy all[] = {DDP_ENP, DDP_DREAMDDP, DDP_MGWFBP};
    char path[64];
    board *b = boards();

    (void)state;
    write_text(file_name(path, sizeof path, "profile"),
               "layer,params,forward_s,backward_s,comm_s\nembed,1,0.001,0.002,0.02\na0,1,0.001,0.002,0."
               "001\nm0,1,0.001,0.009,0.001\n"
               "a1,1,0.001,0.002,0.001\nm1,1,0.001,0.002,0.003\na2,1,0.001,0.002,0.001\nm2,1,0.001,0.006,0."
               "001\nhead,1,0.001,0.004,0.02\n");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        job j;
        memset(&j, 0, sizeof j);
        j.m = GPT;
        j.micro_batches = 2;
        j.plans = 1;
        j.cfg.strategy = all[i];
        j.cfg.period = 3;
        j.cfg.profile_path = path;
        compare(&j, 3, 2, b);
    }
    remove(path);
    free(b);
}

/* Two pipelines of two stages; stores the errors of pipeline 0. */
static int trains_a_misfit(ddp_ctx *d, void *user)
{
    ddp_error *told = (ddp_error *)user;
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_graph *g = ddp_graph_new(d);
    ddp_pipe_config c;
    ddp_node *loss;
    ddp_pipe *p;
    job j;
    int bad;

    memset(&c, 0, sizeof c);
    memset(&j, 0, sizeof j);
    j.m = GPT;
    loss = build(g, &j);
    c.stages = 2;
    p = ddp_pipe_open(d, g, loss, &c);
    if (!p) return (int)ddp_last_error(d)->code;
    bad = ddp_set_optimizer(d, &o) || ddp_pipe_step(p) || ddp_step_end(d);
    if (ddp_pipe_number(p) == 0) told[ddp_pipe_stage(p)] = *ddp_last_error(d);
    ddp_pipe_close(p);
    return bad;
}

static void a_plan_of_another_model_or_of_one_stage_is_an_error(void **state)
{
    static const struct {
        const char *text, *says, *remedy;
        int period, split;
    } all[] = {{"{\"sets\": [[0, 1], [2, 3, 4]]}", "a plan for 5 layers, the model has 8, of which stage ",
                "with stages the plan is for the whole model: plan with a profile of all its layers", 2, 0},
               {"{\"layers\": 12, \"sets\": [[0], [1]]}",
                "a plan for 12 layers, the model has 8, of which stage ", "all its layers", 2, 0},
               {"{\"sets\": [[0, 1, 2, 3], [4, 5, 6, 7]]}", "for period 2, this run has period 3",
                "set the period to 2", 3, 0},
               {"{\"sets\": [[0, 1, 2, 3], [4, 5, 6, 7]], \"names\": [\"embed\", \"other\"]}",
                "layer 1 of the plan is \"other\", of the model \"h.0.attn\"",
                "plan with a profile of this model", 2, 0},
               {"{\"sets\": [[0, 1, 2, 3], [4, 5, 6, 7]]}",
                "a plan for 8 layers, the model has 8 in 14 parts of at most 300 parameters, of "
                "which stage ",
                "all its layers", 2, 300}};
    char path[64];

    (void)state;
    file_name(path, sizeof path, "misfit");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ddp_error err, told[2];
        ddp_config cfg;
        memset(&cfg, 0, sizeof cfg);
        memset(told, 0, sizeof told);
        write_text(path, all[i].text);
        cfg.world = 4;
        cfg.no_env = 1;
        cfg.transport = DDP_THREADS;
        cfg.strategy = DDP_DREAMDDP;
        cfg.period = all[i].period;
        cfg.average.split_params = all[i].split;
        cfg.plan_path = path;
        assert_int_equal(ddp_launch(&cfg, trains_a_misfit, told, &err), DDP_MISMATCH);
        for (int k = 0; k < 2; k++)
            if (!strstr(told[k].msg, all[i].says) || !strstr(told[k].msg, all[i].remedy))
                fail_msg("stage %d: '%s' does not say '%s' and '%s'", k, told[k].msg, all[i].says,
                         all[i].remedy);
    }
    remove(path);
}

static void a_step_is_recorded_completely(void **state)
{
    board *b = boards();

    (void)state;
    for (int p = DDP_PIPELINE_GPIPE; p <= DDP_PIPELINE_ZB; p++) {
        job j;
        memset(&j, 0, sizeof j);
        j.m = MLP;
        j.stages = 3;
        j.micro_batches = 5;
        j.ahead = p == DDP_PIPELINE_ZB;
        j.schedule = (ddp_pipeline)p;
        j.cfg.debug.trace_spans = 200;
        j.b = b;
        sizes(&j);
        run(&j, 6);
    }
    free(b);
}

static int opens_with(ddp_ctx *d, void *user)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = dag_model(g, 1, 0);
    ddp_pipe_config c;

    memset(&c, 0, sizeof c);
    c.stages = 2;
    c.rank_of = (const int *)user;
    assert_null(ddp_pipe_open(d, g, loss, &c));
    return (int)ddp_last_error(d)->code;
}

static void a_layout_without_each_rank_once_is_an_error(void **state)
{
    static const int twice[] = {0, 1, 1, 3}, beyond[] = {0, 1, 2, 4};
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.world = 4;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS;
    assert_int_equal(ddp_launch(&cfg, opens_with, (void *)(uintptr_t)twice, &err), DDP_ARG);
    assert_non_null(strstr(
        err.msg, "the layout puts rank 1 at stage 0 of pipeline 1: each of the 4 ranks must appear once"));
    assert_int_equal(ddp_launch(&cfg, opens_with, (void *)(uintptr_t)beyond, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "rank 4"));
}

/* Each of two ranks opens an invalid schedule. */
static int opens_nothing(ddp_ctx *d, void *user)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = dag_model(g, 3, 0);

    assert_null(ddp_pipe_open(d, g, loss, (const ddp_pipe_config *)user));
    return (int)ddp_last_error(d)->code;
}

static void an_invalid_schedule_is_an_error(void **state)
{
    static const struct {
        int schedule, ahead;
        const char *says;
    } all[] = {
        {DDP_PIPELINE_ZB + 1, 0, "invalid schedule 4 with 2 stages (at most 1024) and 0 ahead (at least 0)"},
        {DDP_PIPELINE_1F1B, -1, "invalid schedule 2 with 2 stages (at most 1024) and -1 ahead (at least 0)"}};
    ddp_pipe_config c;
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.world = 2;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        memset(&c, 0, sizeof c);
        c.stages = 2;
        c.schedule = (ddp_pipeline)all[i].schedule;
        c.ahead = all[i].ahead;
        assert_int_equal(ddp_launch(&cfg, opens_nothing, &c, &err), DDP_ARG);
        if (!strstr(err.msg, all[i].says)) fail_msg("'%s' does not say '%s'", err.msg, all[i].says);
    }
}

/* The exposed averaging time of a stage's plan is added to the predicted step. One layer of 4,000 values over
 * a link of 1 Mbit/s takes longer than everything else here. */
static int averages_slowly(ddp_ctx *d, void *user)
{
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *x = ddp_input(g, "x", DDP_F32, BATCH, 40), *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1);
    const ddp_profile *f;
    ddp_pipe_config c;
    ddp_pipe_stats s;
    ddp_stats own;
    ddp_pipe *p;
    double compute, *exposed = (double *)user;
    int bad;

    memset(&c, 0, sizeof c);
    c.stages = 2;
    c.schedule = DDP_PIPELINE_1F1B;
    ddp_layer_begin(g, "first");
    x = ddp_relu(g, ddp_linear(g, x, 100));
    ddp_layer_end(g);
    ddp_layer_begin(g, "last");
    x = ddp_cross_entropy(g, ddp_linear(g, x, 3), labels);
    ddp_layer_end(g);
    p = ddp_pipe_open(d, g, x, &c);
    if (!p) return (int)ddp_last_error(d)->code;
    bad = ddp_set_optimizer(d, &o);
    for (int step = 0; step < 3 && !bad; step++) {
        for (int m = 0; m < 2; m++)
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op)
                    fill(ddp_pipe_input(p, m, g->node[i]->name), g->node[i], ddp_pipe_number(p), step, m);
        bad = ddp_pipe_step(p) || ddp_step_end(d);
    }
    if (!bad) bad = ddp_pipe_get_stats(p, &s);
    ddp_get_stats(d, &own);
    f = ddp_profile_get(d);
    if (bad || !f || ddp_pipe_number(p)) {
        ddp_pipe_close(p);
        return bad;
    }
    compute = f->between_s;
    for (int l = 0; l < f->layers; l++) compute += f->forward_s[l] + f->backward_s[l];
    exposed[2 * ddp_pipe_stage(p)] = own.predicted_step_s - compute;
    exposed[2 * ddp_pipe_stage(p) + 1] = s.predicted_step_s;
    ddp_pipe_close(p);
    return 0;
}

static void the_prediction_includes_exposed_averaging(void **state)
{
    double exposed[4] = {0, 0, 0, 0};
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.world = 4;
    cfg.no_env = cfg.deterministic = 1;
    cfg.micro_batches = 2;
    cfg.transport = DDP_THREADS;
    cfg.strategy = DDP_MGWFBP;
    cfg.net = "1mbit,1ms";
    cfg.timeout.peer_s = 60;
    if (ddp_launch(&cfg, averages_slowly, exposed, &err)) fail_msg("%s", err.msg);
    print_message("averaging adds %.3f s and %.3f s: a step is predicted to take %.3f s\n", exposed[0],
                  exposed[2], exposed[1]);
    assert_true(exposed[0] > 0.1 && exposed[0] > exposed[2]);
    assert_true(exposed[1] == exposed[3]); /* both stages predict the same */
    assert_true(exposed[1] >= exposed[0]); /* the maximum of both stages. Stages take at least 0 s. */
}

static void any_cut_of_any_graph_is_bit_identical(void **state)
{
    board *b = boards();

    (void)state;
    for (uint64_t seed = 0; seed < INSTANCES(60); seed++) {
        job j;
        memset(&j, 0, sizeof j);
        j.m = DAG;
        j.dag = seed;
        j.random_cut = 1;
        j.micro_batches = 3;
        j.ahead = (int)(seed % 3);
        compare(&j, 2 + (int)(seed % 4), 1, b);
    }
    free(b);
}

/* With codings, gradients of several uses are separate arrays of a message. In each schedule, a stage sends
 * the arrays that the other one expects. */
static void coded_edges_of_any_cut_are_bit_identical_in_every_schedule(void **state)
{
    static const ddp_edge_wire wires[] = {
        {DDP_EDGE_BF16, 0, 0, 0}, {DDP_EDGE_INT8, 0, 0, 1}, {DDP_EDGE_ADATOPK, 4, 1, 0}};
    board *b = boards();

    (void)state;
    for (uint64_t seed = 0; seed < INSTANCES(24); seed += 2) {
        job j, other;
        memset(&j, 0, sizeof j);
        memset(b, 0, 2 * sizeof *b);
        j.m = DAG;
        j.dag = seed;
        j.random_cut = 1;
        j.micro_batches = 3;
        j.stages = 2 + (int)(seed % 4);
        j.edge = wires[seed % 3];
        j.schedule = DDP_PIPELINE_GPIPE;
        other = j;
        j.b = b;
        other.b = b + 1;
        sizes(&j);
        sizes(&other);
        run(&j, j.stages);
        for (int p = DDP_PIPELINE_1F1B; p <= DDP_PIPELINE_ZB; p++) {
            other.schedule = (ddp_pipeline)p;
            run(&other, j.stages);
            assert_memory_equal(b[0].value[0], b[1].value[0], b->used * sizeof(float));
            assert_true(b[0].hash[0] == b[1].hash[0] && b[0].loss[0] == b[1].loss[0]);
        }
    }
    free(b);
}

static void evaluation_equals_the_whole_model_and_changes_no_state(void **state)
{
    board *b = boards();
    job j;

    (void)state;
    memset(&j, 0, sizeof j);
    j.m = RESNET;
    j.micro_batches = 4;
    j.evaluate = 1;
    compare(&j, 3, 1, b);
    compare(&j, 1, 2, b); /* one stage reads both inputs */
    free(b);
}

/* The segments of random graphs begin and end anywhere, and cuts split them. */
static void recomputation_does_not_change_the_result(void **state)
{
    board *b = boards();
    job j;

    (void)state;
    memset(&j, 0, sizeof j);
    j.recompute = 1;
    j.micro_batches = 4;
    j.adamw = 1;
    for (int stages = 1; stages <= 4; stages++) {
        j.m = GPT;
        compare(&j, stages, 1, b);
    }
    j.m = RESNET;
    compare(&j, 3, 1, b);
    j.m = GPT;
    j.cfg.strategy = DDP_DREAMDDP;
    j.cfg.period = 2;
    compare(&j, 2, 2, b);
    j.m = DAG;
    j.random_cut = 1;
    j.cfg.strategy = DDP_SSGD;
    for (j.dag = 1; j.dag < (uint64_t)INSTANCES(60); j.dag++) compare(&j, 2 + (int)(j.dag % 4), 1, b);
    free(b);
}

/* ---- memory ---- */

static __thread size_t taken; /* bytes of tensors, by this rank */

static void *take(void *user, size_t bytes)
{
    (void)user;
    taken += bytes;
    return calloc(1, bytes);
}

static void give(void *user, void *at, size_t bytes)
{
    (void)user;
    taken -= bytes;
    free(at);
}

typedef struct sized {
    ddp_pipeline schedule;
    int recompute, micro_batches;
    /* of stage 1: all, counted in two ways; per micro-batch; per edge; per pass */
    size_t taken, bytes, held, own, pass;
} sized;

enum { BLOCKS = 4, CONTEXT = 8, DIM = 32, HEADS = 2 };

/* One block of a GPT on each stage. The embedding is on the first, the head on the last. */
static int opens_blocks(ddp_ctx *d, void *user)
{
    sized *z = (sized *)user;
    int stage_of[NODES];
    size_t params = 0;
    ddp_gpt2_config m;
    ddp_pipe_config c;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss;
    ddp_pipe *p;

    memset(&c, 0, sizeof c);
    c.schedule = z->schedule;
    c.stages = BLOCKS;
    c.stage_of = stage_of;
    memset(&m, 0, sizeof m);
    m.vocabulary = 19;
    m.context = CONTEXT;
    m.layers = BLOCKS;
    m.heads = HEADS;
    m.dim = DIM;
    m.batch = BATCH;
    m.dropout = 0.1f;
    m.recompute = z->recompute;
    loss = ddp_gpt2(g, &m, NULL);
    for (int i = 0; i < ddp__count(g->node) && i < NODES; i++) { /* layers: embed, two of each block, head */
        const int block = (g->node[i]->layer - 1) / 2;
        stage_of[i] = g->node[i]->layer < 1 ? (i == ddp__count(g->node) - 1) * (BLOCKS - 1)
                      : block < BLOCKS      ? block
                                            : BLOCKS - 1;
    }
    taken = 0;
    p = ddp_pipe_open(d, g, loss, &c);
    if (!p || ddp__count(g->node) > NODES) return 1;
    for (int l = 0; l < ddp__count(g->layer); l++) params += g->layer[l].count;
    if (ddp_pipe_stage(p) == 1) { /* no tied weight */
        z->taken = taken - 2 * params * sizeof(float);
        z->bytes = ddp_pipe_bytes(p);
        z->own = g->plain.bytes[DDP__ARENA_OWN];
        z->held = g->plain.bytes[DDP__ARENA_HELD];
        z->pass = g->plain.bytes[DDP__ARENA_PASS];
    }
    ddp_pipe_close(p);
    return 0;
}

static sized block_bytes(ddp_pipeline schedule, int micro_batches, int recompute)
{
    sized z;
    ddp_config cfg;
    ddp_error err;

    memset(&z, 0, sizeof z);
    memset(&cfg, 0, sizeof cfg);
    z.schedule = schedule;
    z.recompute = recompute;
    z.micro_batches = micro_batches;
    cfg.world = BLOCKS;
    cfg.micro_batches = micro_batches;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS;
    cfg.allocator.alloc = take;
    cfg.allocator.free = give;
    if (ddp_launch(&cfg, opens_blocks, &z, &err)) fail_msg("%s", err.msg);
    return z;
}

/* The memory of a micro-batch of the second block, in arrays of its width. Backward reads norm 1, queries
 * keys values 3, attention 1, sum 1, norm 1, wide 4, gelu of it 4; norms and attention store two numbers per
 * row. Inputs and outputs of the stage each have a gradient. Products before a sum are overwritten at
 * once. */
static void a_stage_stores_activations_and_one_pass(void **state)
{
    const size_t row = BATCH * CONTEXT * sizeof(float), width = row * DIM;
    const size_t held = 15 * width + 2 * 2 * row + 2 * HEADS * row;

    (void)state;
    for (int recompute = 0; recompute < 2; recompute++)
        for (int s = DDP_PIPELINE_GPIPE; s <= DDP_PIPELINE_ZB; s++)
            for (int m = 1; m <= 8; m *= 2) {
                const sized z = block_bytes((ddp_pipeline)s, m, recompute);
                const ddp_pipeline_shape shape = {(ddp_pipeline)s, BLOCKS, m, 0};
                const size_t most = (size_t)ddp_pipeline_held(&shape, 1);
                const size_t states = most < (size_t)m ? most + 1 : most;
                print_message(
                    "%s, %d micro-batches%s: %zu bytes, a micro-batch %zu, crossing %zu, a pass %zu\n",
                    ddp_pipeline_name((ddp_pipeline)s), m, recompute ? ", recomputed" : "", z.bytes, z.held,
                    z.own, z.pass);
                assert_int_equal(z.taken, z.bytes);
                assert_int_equal(z.bytes, most * z.held + states * z.own + z.pass);
                assert_int_equal(z.own, 4 * width);
                if (s != DDP_PIPELINE_ZB) assert_int_equal(z.held, recompute ? 0 : held);
                /* gradients read by the second half of backward: norms 2, queries keys values 3, wide 4,
                 * products 2 */
                else
                    assert_true(recompute ? z.held == 0 : z.held > held && z.held <= held + 11 * width);
                assert_true(z.pass <= (recompute ? 15 + 12 : 12) * width + held % width);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_is_bit_identical_to_one_worker),
        cmocka_unit_test(replicas_of_stages_are_bit_identical_to_workers),
        cmocka_unit_test(stages_that_plan_follow_the_plan_of_unpipelined_workers),
        cmocka_unit_test(stages_of_any_cut_follow_the_plan_of_unpipelined_workers),
        cmocka_unit_test(parts_of_a_layer_on_two_stages_are_an_error),
        cmocka_unit_test(a_plan_file_of_the_whole_model_holds_for_all_stages),
        cmocka_unit_test(a_profile_of_the_whole_model_is_planned_for_all_stages),
        cmocka_unit_test(a_plan_of_another_model_or_of_one_stage_is_an_error),
        cmocka_unit_test(a_step_is_recorded_completely),
        cmocka_unit_test(a_layout_without_each_rank_once_is_an_error),
        cmocka_unit_test(an_invalid_schedule_is_an_error),
        cmocka_unit_test(the_prediction_includes_exposed_averaging),
        cmocka_unit_test(any_cut_of_any_graph_is_bit_identical),
        cmocka_unit_test(coded_edges_of_any_cut_are_bit_identical_in_every_schedule),
        cmocka_unit_test(evaluation_equals_the_whole_model_and_changes_no_state),
        cmocka_unit_test(recomputation_does_not_change_the_result),
        cmocka_unit_test(a_stage_stores_activations_and_one_pass),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
