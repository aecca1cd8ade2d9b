/* [asan] Job descriptions: Figure 3 of FusionLLM literally, graphs written and read back, bit-identical
 * training, a changed cut, and errors in descriptions. */
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
#include "../../examples/broker/job_json.h"
#include "../../examples/broker/job_part.h"

/* Figure 3 with numbers. Node numbers are one less than in the paper. */
static const char figure3[] =
    "{\"dreamddp_job\": 1, \"loss\": \"CE\", \"micro_batches\": 2, \"seed\": 3,\n"
    " \"optimizer\": {\"name\": \"sgd\", \"lr\": 0.1, \"momentum\": 0.9}, \"operators\": [\n"
    " {\"name\": \"Input\", \"shape\": [2, 1, 4, 4]},\n"
    " {\"name\": \"Conv\", \"op\": \"conv2d\", \"layer\": \"Conv\", \"args\": [\"Input\"], \"attributes\": "
    "[2, 3, 1, 1, 1, 1]},\n"
    " {\"name\": \"TensorA\", \"op\": \"variable\", \"layer\": \"A\", \"type\": \"variable\", "
    "\"attributes\": [2, 2, 4, 4]},\n"
    " {\"name\": \"ReLu\", \"op\": \"relu\", \"layer\": \"A\", \"args\": [\"TensorA\"]},\n"
    " {\"name\": \"Add\", \"op\": \"add\", \"layer\": \"B\", \"args\": [\"ReLu\", \"Conv\"]},\n"
    " {\"name\": \"Linear\", \"op\": \"linear\", \"layer\": \"B\", \"args\": [\"Add\"], \"attributes\": "
    "[5],\n"
    "  \"optimizer\": {\"name\": \"adamw\", \"lr\": 0.01}},\n"
    " {\"name\": \"Label\", \"shape\": [2, 2, 4], \"dtype\": \"i32\"},\n"
    " {\"name\": \"CE\", \"op\": \"cross_entropy\", \"layer\": \"B\", \"args\": [\"Linear\", \"Label\"]}]}\n";

enum { RANKS = 4, STEPS = 4, OPS = 160 };

static job read_job(const char *text)
{
    ddp_error err;
    job j;

    memset(&err, 0, sizeof err);
    if (job_read("job.json", text, strlen(text), &j, &err)) fail_msg("%s", err.msg);
    return j;
}

/* Fills in the values that a description leaves to the kernels. */
static void on_paper(job *j)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss;
    ddp_error err;

    if (job_build(j, g, &loss, &err)) fail_msg("%s", err.msg);
    ddp_graph_free(g);
}

/* ---- training from descriptions ---- */

typedef struct run {
    ddp_config cfg;
    char *text[RANKS]; /* one for each rank */
    long first, steps;
    float *saved[OPS]; /* state of each operator, saved by one run and loaded by the next, or NULL for none */
    size_t floats[OPS];
    int keep;
    uint64_t hash[RANKS];
    float loss[RANKS];
} run;

static void fill(void *at, const ddp_node *input, long step, int m)
{
    const long n = ddp_shape_count(&input->spec.out);
    ddp_rng x = ddp_rng_seed((uint64_t)(step * 16 + m), strlen(input->name));

    for (long i = 0; at && i < n; i++)
        if (input->type == DDP_I32)
            ((int32_t *)at)[i] = (int32_t)ddp_rng_below(&x, 3);
        else
            ((float *)at)[i] = (float)ddp_rng_normal(&x);
}

static int steps_of(ddp_ctx *d, run *r, const job *j, ddp_graph *g, ddp_pipe *p, job_part *part)
{
    ddp_optimizer o = job_optimizer(part);
    int bad = ddp_set_optimizer(d, &o);

    for (int i = 0; i < j->ops && !bad; i++)
        if (r->saved[i] && job_floats(part, i, 0)) bad = job_put(part, i, r->saved[i], r->floats[i]);
    for (long step = r->first; step < r->steps && !bad; step++) {
        for (int m = 0; m < j->micro_batches; m++)
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op) fill(ddp_pipe_input(p, m, g->node[i]->name), g->node[i], step, m);
        bad = ddp_pipe_step(p);
        if (!bad) bad = ddp_step_end(d);
        r->loss[ddp_rank(d)] = ddp_pipe_loss(p);
    }
    if (!bad) bad = ddp_sync_all(d);
    for (int i = 0; r->keep && i < j->ops && !bad; i++) {
        const size_t n = job_floats(part, i, 0);
        if (!n) continue;
        r->saved[i] = (float *)calloc(n, sizeof(float));
        r->floats[i] = n;
        bad = job_get(part, i, 0, r->saved[i]);
    }
    return bad ? bad : ddp_pipe_hash(p, &r->hash[ddp_rank(d)]);
}

static int worker(ddp_ctx *d, void *user)
{
    run *r = (run *)user;
    int stage_of[OPS], bad = 0;
    ddp_pipe_config c;
    ddp_error err;
    job j = read_job(r->text[ddp_rank(d)]);
    ddp_graph *g = ddp_graph_new(d);
    job_part *part = NULL;
    ddp_node *loss;
    ddp_pipe *p;

    assert_int_equal(j.node, ddp_rank(d));
    if (job_build(&j, g, &loss, &err)) fail_msg("%s", err.msg);
    job_stages(&j, stage_of);
    memset(&c, 0, sizeof c);
    c.stages = j.nodes;
    c.stage_of = stage_of;
    c.schedule = j.schedule;
    c.edge = j.edge;
    p = ddp_pipe_open(d, g, loss, &c);
    if (!p) fail_msg("%s", ddp_last_error(d)->msg);
    part = job_open(&j, g, r->first, &err);
    if (!part) fail_msg("%s", err.msg);
    bad = steps_of(d, r, &j, g, p, part);
    ddp_pipe_close(p);
    job_close(part);
    job_free(&j);
    return bad;
}

/* Cuts the graph into stages of about equally many operators, and runs the descriptions. */
static void train(run *r, job *j, int nodes)
{
    int node_of[OPS];
    ddp_error err;

    memset(&err, 0, sizeof err);
    assert_true(j->ops <= OPS);
    for (int i = 0; i < j->ops; i++) node_of[i] = i * nodes / j->ops;
    assert_int_equal(job_cut(j, node_of, nodes, &err), DDP_OK);
    for (int n = 0; n < nodes; n++) {
        r->text[n] = job_text(j, n);
        assert_non_null(r->text[n]);
    }
    r->cfg.world = nodes;
    r->cfg.micro_batches = j->micro_batches;
    r->cfg.strategy = DDP_SSGD;
    r->cfg.deterministic = r->cfg.no_env = 1;
    r->cfg.transport = DDP_THREADS;
    r->cfg.seed = j->seed;
    r->cfg.timeout.peer_s = 60;
    if (ddp_launch(&r->cfg, worker, r, &err)) fail_msg("%d nodes: %s", nodes, err.msg);
    for (int n = 0; n < nodes; n++) {
        job_text_free(r->text[n]);
        assert_true(r->hash[n] == r->hash[0]);
        assert_true(r->loss[n] == r->loss[0]);
    }
}

static run run_of(job *j, int nodes)
{
    run r;

    memset(&r, 0, sizeof r);
    r.steps = STEPS;
    train(&r, j, nodes);
    return r;
}

/* ---- Figure 3 ---- */

static job figure(void)
{
    static const int node_of[] = {0, 0, 1, 1, 2, 2, 2, 2};
    job j = read_job(figure3);
    ddp_error err;

    on_paper(&j);
    assert_int_equal(job_cut(&j, node_of, 3, &err), DDP_OK);
    return j;
}

static void is_message(const job *j, const job_message *m, const char *name, const char *user, int from,
                       int to, int gradient)
{
    assert_string_equal(j->op[m->op].name, name);
    assert_string_equal(j->op[m->user].name, user);
    assert_int_equal(m->from, from);
    assert_int_equal(m->to, to);
    assert_int_equal(m->gradient, gradient);
    assert_true(m->require_grad && !m->is_loss && m->micro_batch == 2);
}

static void figure_3_has_the_operators_of_table_2(void **state)
{
    static const job_type type[] = {JOB_PLACEHOLDER,    JOB_PARAMETRIC, JOB_VARIABLE,    JOB_NON_PARAMETRIC,
                                    JOB_NON_PARAMETRIC, JOB_PARAMETRIC, JOB_PLACEHOLDER, JOB_LOSS};
    static const int node[] = {0, 0, 1, 1, 2, 2, 2, 2}, grad[] = {0, 1, 1, 1, 1, 1, 0, 1};
    job j = figure();

    (void)state;
    for (int i = 0; i < j.ops; i++) {
        assert_int_equal(j.op[i].type, type[i]);
        assert_int_equal(j.op[i].node, node[i]);
        assert_int_equal(j.op[i].requires_grad, grad[i]);
    }
    job_free(&j);
}

static void figure_3_has_the_messages_of_table_3(void **state)
{
    job j = figure();
    job_message m[8];

    (void)state;
    assert_int_equal(job_messages(&j, 0, m, 8), 2);
    is_message(&j, &m[0], "Conv", "Add", 0, 2, 0);
    is_message(&j, &m[1], "Conv", "Add", 2, 0, 1);
    assert_int_equal(job_messages(&j, 1, m, 8), 2);
    is_message(&j, &m[0], "ReLu", "Add", 1, 2, 0);
    is_message(&j, &m[1], "ReLu", "Add", 2, 1, 1);
    assert_int_equal(job_messages(&j, 2, m, 8), 4);
    job_free(&j);
}

static void has_text(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("missing: %s\nin: %s", part, text);
}

static void description_contains_the_tables_literally(void **state)
{
    job j = figure();
    char *one = job_text(&j, 0), *three = job_text(&j, 2);

    (void)state;
    has_text(one, "{\"name\": \"Conv\", \"type\": \"parametric\", \"users\": [\"Add\"], \"args\": "
                  "[\"Input\"], \"node\": 0,");
    has_text(one, "{\"name\": \"CE\", \"type\": \"loss\", \"users\": [], \"args\": [\"Linear\", \"Label\"], "
                  "\"node\": 2,");
    has_text(
        one,
        "\"required_activations\": [],\n\"sent_activations\": [\n  {\"name\": \"Conv\", \"op_users\": "
        "[\"Add\"], "
        "\"actual_op_user\": \"Add\", \"from\": 0, \"to\": 2, \"is_loss\": false, \"require_grad\": true, "
        "\"local_iter\": 0, \"micro_batch\": 2, \"compress_cfg\": {\"algorithm\": \"none\", \"ratio\": "
        "1}}],\n"
        "\"required_gradients\": [\n  {\"name\": \"Conv\",");
    has_text(one, "\"sent_gradients\": [],");
    has_text(three, "\"sent_activations\": [],\n\"required_gradients\": [],\n\"sent_gradients\": [\n  "
                    "{\"name\": \"Conv\"");
    has_text(three, "\"optimizer\": {\"name\": \"adamw\", \"lr\": 0.01,");
    job_text_free(one);
    job_text_free(three);
    job_free(&j);
}

static void description_of_a_message_includes_its_compression(void **state)
{
    static const char *const wire[][2] = {
        {"f32", "{\"algorithm\": \"none\", \"ratio\": 1}"},
        {"int8", "{\"algorithm\": \"int8\", \"ratio\": 1}"},
        {"topk:4", "{\"algorithm\": \"topk\", \"ratio\": 4}"},
        {"adatopk:8", "{\"algorithm\": \"adatopk\", \"ratio\": 8, \"factor\": 3}"},
        {"adatopk:2.5:1", "{\"algorithm\": \"adatopk\", \"ratio\": 2.5, \"factor\": 1}"}};
    uint64_t hash[5];

    (void)state;
    for (int i = 0; i < 5; i++) {
        job j = figure(), back;
        ddp_error err;
        char *text;
        assert_int_equal(job_wire(&j, wire[i][0], &err), DDP_OK);
        text = job_text(&j, 1);
        has_text(text, wire[i][1]);
        back = read_job(text);
        assert_true(back.edge.coding == j.edge.coding && back.edge.ratio == j.edge.ratio &&
                    back.edge.factor == j.edge.factor);
        hash[i] = run_of(&j, 3).hash[0];
        if (i) assert_true(hash[i] != hash[i - 1]);
        job_text_free(text);
        job_free(&back);
        job_free(&j);
    }
}

static void figure_3_on_three_nodes_is_bit_identical_to_one_worker(void **state)
{
    job j = figure();
    run one = run_of(&j, 1), three = run_of(&j, 3);

    (void)state;
    assert_true(one.hash[0] == three.hash[0]);
    assert_true(one.loss[0] == three.loss[0]);
    job_free(&j);
}

/* ---- write and read back ---- */

/* A graph whose first output is used by every later layer. */
static ddp_node *skips(ddp_graph *g)
{
    ddp_node *first, *x, *labels = ddp_input(g, "labels", DDP_I32, 2, 1);

    ddp_layer_begin(g, "first");
    x = first = ddp_linear(g, ddp_input(g, "x", DDP_F32, 2, 6), 6);
    ddp_layer_end(g);
    for (int i = 0; i < 4; i++) {
        ddp_layer_begin(g, "skip");
        x = ddp_add(g, ddp_linear(g, ddp_relu(g, x), 6), first);
        ddp_layer_end(g);
    }
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}

/* A residual block with running statistics. */
static ddp_node *residual(ddp_graph *g)
{
    const ddp_shape image = {4, {2, 2, 6, 6}};
    ddp_node *x, *y, *labels = ddp_input(g, "labels", DDP_I32, 2, 1);

    ddp_layer_begin(g, "stem");
    x = ddp_relu(
        g, ddp_batch_norm2d(g, ddp_conv2d(g, ddp_input_shape(g, "x", DDP_F32, &image), 4, 3, 1, 1, 1, 0)));
    ddp_layer_end(g);
    ddp_layer_begin(g, "a");
    y = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 0)));
    ddp_layer_end(g);
    ddp_layer_begin(g, "b");
    x = ddp_relu(g, ddp_add(g, ddp_batch_norm2d(g, ddp_conv2d(g, y, 4, 3, 1, 1, 1, 1)), x));
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, ddp_global_avg_pool2d(g, x), 3), labels);
    ddp_layer_end(g);
    return x;
}

static ddp_node *model(ddp_graph *g, int which)
{
    if (which == 3) return skips(g);
    if (which == 0) {
        ddp_gpt2_config c;
        memset(&c, 0, sizeof c);
        c.vocabulary = 19;
        c.context = 8;
        c.layers = 2;
        c.heads = 2;
        c.dim = 8;
        c.batch = 2;
        c.dropout = 0.1f;
        return ddp_gpt2(g, &c, NULL);
    }
    if (which == 1) {
        ddp_mlp_config c;
        memset(&c, 0, sizeof c);
        c.batch = 2;
        c.inputs = 7;
        c.hidden[0] = 9;
        c.hidden[1] = 5;
        c.hidden[2] = 11;
        c.classes = 5;
        return ddp_mlp(g, &c, NULL);
    }
    return residual(g);
}

static job job_of(int which)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss = model(g, which);
    ddp_error err;
    job j;

    assert_non_null(loss);
    assert_int_equal(job_of_graph(g, loss, &j, &err), DDP_OK);
    ddp_graph_free(g);
    j.micro_batches = 3;
    j.seed = 5;
    snprintf(j.rule.name, sizeof j.rule.name, which ? "sgd" : "adamw");
    j.rule.lr = 0.01;
    j.rule.momentum = which ? 0.9 : 0;
    j.rule.weight_decay = 0.1;
    return j;
}

typedef struct plain {
    int which;
    uint64_t hash;
} plain;

/* Trains the model with the library's own optimizer, without a pipeline and without a description. */
static int plain_worker(ddp_ctx *d, void *user)
{
    plain *w = (plain *)user;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = model(g, w->which);
    ddp_optimizer o =
        w->which ? ddp_sgd_decay(0.01f, 0.9f, 0.1f) : ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f);
    int bad = ddp_graph_build(g);

    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (long step = 0; step < STEPS && !bad; step++) {
        for (int m = 0; m < 3 && !bad; m++) {
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op) fill(ddp_data(g, g->node[i]->name), g->node[i], step, m);
            bad = ddp_forward(g);
            if (!bad) bad = ddp_backward(g, loss);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    w->hash = 0;
    for (int l = 0; !bad && l < ddp__count(g->layer); l++)
        w->hash = ddp_hash_floats(w->hash, g->layer[l].params, g->layer[l].count);
    return bad;
}

static uint64_t plain_hash(int which)
{
    plain w = {which, 0};
    ddp_config cfg;
    ddp_error err;

    memset(&cfg, 0, sizeof cfg);
    cfg.world = 1;
    cfg.micro_batches = 3;
    cfg.strategy = DDP_SSGD;
    cfg.deterministic = cfg.no_env = 1;
    cfg.seed = 5;
    cfg.transport = DDP_THREADS;
    assert_int_equal(ddp_launch(&cfg, plain_worker, &w, &err), DDP_OK);
    return w.hash;
}

static void training_from_a_description_is_bit_identical_to_the_graph(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        job j = job_of(which);
        for (int nodes = 1; nodes <= RANKS; nodes++) {
            run r = run_of(&j, nodes);
            if (r.hash[0] != plain_hash(which))
                fail_msg("model %d on %d nodes has another hash", which, nodes);
        }
        job_free(&j);
    }
}

static void description_is_unchanged_after_read_and_write(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        job j = job_of(which), back;
        char *text = job_text(&j, -1), *again;
        back = read_job(text);
        again = job_text(&back, -1);
        assert_string_equal(text, again);
        on_paper(&back); /* the description is consistent */
        job_text_free(text);
        job_text_free(again);
        job_free(&j);
        job_free(&back);
    }
}

/* The edges that the executor sends over are those in the description. */
static void described_messages_match_the_executor(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++)
        for (int node = 0; node < 3; node++) {
            job j = job_of(which);
            ddp_graph *g = ddp_graph_new(NULL);
            int stage_of[OPS], n = 0, found;
            job_message m[2 * OPS];
            for (int i = 0; i < j.ops; i++) stage_of[i] = i * 3 / j.ops;
            assert_int_equal(job_cut(&j, stage_of, 3, NULL), DDP_OK);
            assert_non_null(model(g, which));
            assert_int_equal(ddp_graph_cut(g, stage_of, 3, node), 0);
            found = job_messages(&j, node, m, 2 * OPS);
            for (int i = 0; i < ddp__count(g->node); i++)
                n += ((g->node[i]->from >= 0) + (g->node[i]->to >= 0)) * (1 + g->node[i]->has_gradient);
            assert_int_equal(found, n);
            for (int k = 0; k < found; k++) {
                const ddp_node *x = g->node[m[k].op];
                const int out = (m[k].from == node) != m[k].gradient;
                assert_int_equal(out ? x->to : x->from, m[k].from == node ? m[k].to : m[k].from);
            }
            ddp_graph_free(g);
            job_free(&j);
        }
}

/* Runs half of the steps on two nodes and the rest on three. Operators move with their parameters, running
 * statistics and momentum. */
static void changing_the_cut_keeps_the_result_bit_identical(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) {
        job j = job_of(which);
        run whole, half;
        float *left[OPS];
        snprintf(j.op[3].rule.name, sizeof j.op[3].rule.name, "nesterov");
        j.op[3].rule.lr = 0.02;
        j.op[3].rule.momentum = 0.5;
        memset(&whole, 0, sizeof whole);
        whole.steps = STEPS;
        whole.keep = 1;
        train(&whole, &j, 2);
        memset(&half, 0, sizeof half);
        half.steps = STEPS / 2;
        half.keep = 1;
        train(&half, &j, 2);
        memcpy((void *)left, half.saved, sizeof left);
        half.first = half.steps;
        half.steps = STEPS;
        train(&half, &j, 3);
        if (half.hash[0] != whole.hash[0]) fail_msg("model %d has another hash after the cut changed", which);
        for (int i = 0; i < j.ops; i++) { /* running statistics and optimizer state too */
            assert_true(whole.floats[i] == half.floats[i]);
            if (whole.floats[i])
                assert_memory_equal(whole.saved[i], half.saved[i], whole.floats[i] * sizeof(float));
            if (j.op[i].buffers)
                assert_true(whole.saved[i][3 * j.op[i].shape.dim[1]] > 0); /* a running variance */
            free(left[i]);
            free(whole.saved[i]);
            free(half.saved[i]);
        }
        job_free(&j);
    }
}

static void each_operator_has_its_own_optimizer(void **state)
{
    job j = job_of(1);
    const uint64_t all = run_of(&j, 2).hash[0];
    uint64_t one;

    (void)state;
    snprintf(j.op[2].rule.name, sizeof j.op[2].rule.name, "adam");
    j.op[2].rule.lr = 0.001;
    one = run_of(&j, 2).hash[0];
    assert_true(one != all);
    assert_true(one == run_of(&j, 1).hash[0]);
    job_free(&j);
}

/* ---- errors in descriptions ---- */

/* Reads Figure 3's description with the first `from` replaced by `to`. It must fail with an error that
 * contains `says`. */
static void refuses(const char *from, const char *to, const char *says)
{
    char text[4096];
    const char *at = strstr(figure3, from);
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss;
    ddp_error err;
    job j;
    ddp_status s;

    assert_non_null(at);
    memset(&err, 0, sizeof err);
    memset(&j, 0, sizeof j);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - figure3), figure3, to, at + strlen(from));
    s = job_read("job.json", text, strlen(text), &j, &err);
    if (s == DDP_OK) s = job_build(&j, g, &loss, &err);
    if (s == DDP_OK) fail_msg("%s instead of %s is accepted", to, from);
    if (!strstr(err.msg, says)) fail_msg("%s instead of %s says: %s", to, from, err.msg);
    ddp_graph_free(g);
    job_free(&j);
}

static void operators_of_a_long_job_are_found_by_name(void **state)
{
    enum { LONG = 5000 };
    ddp__text t = {NULL, 0, 0, 0, 0};
    job j;

    (void)state;
    ddp__text_addf(&t, "{\"dreamddp_job\": 1, \"operators\": [{\"name\": \"op 0\", \"shape\": [2, 2]}");
    for (int i = 1; i < LONG; i++)
        ddp__text_addf(&t, ", {\"name\": \"op %d\", \"op\": \"relu\", \"args\": [\"op %d\"]}", i, 7919 % i);
    ddp__text_addf(&t, "], \"loss\": \"op %d\"}", LONG - 1);
    assert_false(t.failed);
    j = read_job(t.data);
    assert_int_equal(j.ops, LONG);
    assert_int_equal(j.loss, LONG - 1);
    for (int i = 1; i < LONG; i++) assert_int_equal(j.op[i].args[0], 7919 % i);
    job_free(&j);
    ddp__text_free(&t);
}

static void invalid_descriptions_fail_with_an_error(void **state)
{
    (void)state;
    refuses("\"dreamddp_job\": 1", "\"dreamddp_job\": 2", "of version 2, this program reads version 1");
    refuses("\"dreamddp_job\": 1", "\"dreamddp\": 1", "no job description");
    refuses("\"seed\": 3", "\"hash\": \"0123456789abcdef\"", "does not match its hash");
    refuses("\"op\": \"relu\"", "\"op\": \"CustomReLU\"",
            "operator ReLu is of kind CustomReLU, which this program does not know");
    refuses("\"ReLu\", \"Conv\"", "\"ReLu\", \"Convv\"", "no operator Convv is defined before its user");
    refuses("\"name\": \"Add\"", "\"name\": \"ReLu\"", "two operators have this name");
    refuses("\"layer\": \"B\"", "\"layer\": \"Conv\"", "returns to layer Conv");
    refuses("[2, 1, 4, 4]", "[2, 1, 4.5, 4]", "a dimension must be");
    refuses("[2, 2, 4, 4]", "[2, 2, 4, 5]", "operator Add");
    refuses("\"loss\": \"CE\"", "\"loss\": \"MSE\"", "no operator MSE");
    refuses("\"type\": \"variable\"", "\"type\": \"constant\"", "must be one of placeholder");
    refuses("\"attributes\": [5]", "\"attributes\": [5], \"shape\": [2, 2, 4, 6]",
            "its shape in the job differs");
    refuses("\"attributes\": [5]", "\"attributes\": [5], \"parameters\": [{\"shape\": [5, 3]}]",
            "other parameters than its kernel");
    refuses("\"micro_batches\": 2", "\"micro_batches\": 0", "from 1 to");
    refuses("\"seed\": 3", "\"edge_wire\": \"topk\"", "unknown edge wire 'topk'");
    refuses("\"seed\": 3", "\"edge_wire\": \"bottleneck:4\"", "adds operators at the cut");
    refuses("\"seed\": 3", "\"edge_wire\": \"aq:4\"", "a job has no sample ids");
    refuses("\"shape\": [2, 1, 4, 4]", "\"dtype\": \"f32\"", "an input needs a shape");
}

static ddp_status relu_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)err;
    s->out = s->in[0];
    return DDP_OK;
}

static void relu_run(const ddp_op_call *c) { (void)c; }

static const ddp_op custom = {"CustomReLU", relu_shape, relu_run, relu_run};

/* A node does not need the kernels of other nodes: their shapes are in the description. */
static void only_the_node_that_runs_an_operator_needs_its_kernel(void **state)
{
    static const int node_of[] = {0, 0, 1, 1, 2, 2, 2, 2};
    const char *at = strstr(figure3, "\"relu\"");
    char text[4096], *own;
    ddp_error err;
    job j;

    (void)state;
    snprintf(text, sizeof text, "%.*s\"CustomReLU\"%s", (int)(at - figure3), figure3, at + 6);
    j = read_job(text);
    {
        ddp_graph *g = ddp_graph_new(NULL);
        ddp_node *loss;
        assert_int_equal(ddp_register_op(g, &custom), 0);
        assert_int_equal(job_build(&j, g, &loss, &err), DDP_OK);
        ddp_graph_free(g);
    }
    assert_int_equal(job_cut(&j, node_of, 3, &err), DDP_OK);
    for (int node = -1; node < 3; node++) {
        ddp_graph *g = ddp_graph_new(NULL);
        ddp_node *loss;
        job part;
        ddp_status s;
        own = job_text(&j, node);
        part = read_job(own);
        s = job_build(&part, g, &loss, &err);
        assert_int_equal(s, node == 1 ? DDP_UNSUPPORTED : DDP_OK);
        if (node == 1) assert_non_null(strstr(err.msg, "operator ReLu is of kind CustomReLU"));
        ddp_graph_free(g);
        job_free(&part);
        job_text_free(own);
    }
    job_free(&j);
}

/* The broker can build a whole model of unknown kernels from the description. */
static void broker_needs_no_kernels(void **state)
{
    const char *at = strstr(figure3, "\"linear\""), *rest = strstr(at, "\"attributes\"");
    char text[4096];
    size_t count, all = 0;
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss;
    ddp_error err;
    job j;

    (void)state;
    snprintf(text, sizeof text,
             "%.*s\"CustomLinear\"%.*s\"shape\": [2, 2, 4, 5], \"flops\": 1280, \"parameters\": "
             "[{\"shape\": [5, 4], \"init\": \"normal\", \"scale\": 0.1}, {\"shape\": [5]}], %s",
             (int)(at - figure3), figure3, (int)(rest - at - 8), at + 8, rest);
    j = read_job(text);
    assert_int_equal(job_build(&j, g, &loss, &err), DDP_OK);
    assert_int_equal(ddp_graph_build(g), 0);
    for (int l = 0; l < ddp_layer_count(g); l++) all += (ddp_layer_params(g, l, &count), count);
    assert_true(all == ddp_param_count(g) && all == 20 + 64 + 25);
    ddp_graph_free(g);
    job_free(&j);
}

/* Truncated or changed descriptions give an error or a graph. The sanitizers check memory accesses. */
static void damaged_descriptions_never_crash(void **state)
{
    ddp_rng r = ddp_rng_seed(7, 0);
    job j = figure();
    char *whole = job_text(&j, 1);
    const size_t n = strlen(whole);
    char *text = (char *)malloc(n + 1);
    int read = 0;

    (void)state;
    assert_non_null(text);
    for (int i = 0; i < INSTANCES(6000); i++) {
        const char *of = i % 2 ? whole : figure3;
        const size_t all = strlen(of), left = i % 4 < 2 ? (size_t)ddp_rng_below(&r, (uint64_t)all) : all;
        job part;
        ddp_error err;
        memcpy(text, of, left);
        for (int k = (int)ddp_rng_below(&r, 4); k > 0 && left; k--)
            text[ddp_rng_below(&r, (uint64_t)left)] = "0123456789\"{}[],:-e.aZ \n\\"[ddp_rng_below(&r, 25)];
        memset(&err, 0, sizeof err);
        if (job_read("job.json", text, left, &part, &err)) {
            assert_true(err.msg[0] != 0);
        } else {
            ddp_graph *g = ddp_graph_new(NULL);
            ddp_node *loss;
            if (!job_build(&part, g, &loss, &err)) read++;
            ddp_graph_free(g);
            job_free(&part);
        }
    }
    assert_true(read > 10);
    for (size_t i = 0; i < n; i++) { /* the hash detects every changed byte after it */
        job part;
        ddp_error err;
        if (i % 37 || i < 60) continue;
        memcpy(text, whole, n);
        text[i] = (char)(text[i] ^ 1);
        if (!job_read("job.json", text, n, &part, &err)) fail_msg("changing byte %zu is not detected", i);
    }
    free(text);
    job_text_free(whole);
    job_free(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figure_3_has_the_operators_of_table_2),
        cmocka_unit_test(figure_3_has_the_messages_of_table_3),
        cmocka_unit_test(description_contains_the_tables_literally),
        cmocka_unit_test(description_of_a_message_includes_its_compression),
        cmocka_unit_test(figure_3_on_three_nodes_is_bit_identical_to_one_worker),
        cmocka_unit_test(training_from_a_description_is_bit_identical_to_the_graph),
        cmocka_unit_test(description_is_unchanged_after_read_and_write),
        cmocka_unit_test(described_messages_match_the_executor),
        cmocka_unit_test(changing_the_cut_keeps_the_result_bit_identical),
        cmocka_unit_test(each_operator_has_its_own_optimizer),
        cmocka_unit_test(operators_of_a_long_job_are_found_by_name),
        cmocka_unit_test(invalid_descriptions_fail_with_an_error),
        cmocka_unit_test(only_the_node_that_runs_an_operator_needs_its_kernel),
        cmocka_unit_test(broker_needs_no_kernels),
        cmocka_unit_test(damaged_descriptions_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
