/* [long, asan, test-all: slow] Segments that are recomputed in backward: bit-identical with less memory,
 * and a memory plan that a simulation of the arena confirms. */
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
#include "graph/graph_lab.h"

/* ---- the checker: operators that compute nothing but track every array in the arena ----
 *
 * Each 64 bytes of the arena have a tag: the array that was last written there. An input of an operator
 * must have the right tag, and must still have it after the operator's own writes. The checker does not
 * use the planned lifetimes. */

enum { VALUE = 1, SAVED, GRADIENT, SHADOW, KINDS };

static struct {
    ddp_graph *g;
    ddp_node *loss;
    long *tag;
    size_t units;
    int *forwards; /* [nodes] forward runs of each node */
    long reads;
} sim;

static void sim_fault(int kind, int node, const char *what)
{
    static const char *const names[KINDS] = {"", "value", "saved", "gradient", "shadow"};

    fail_msg("node %d (%s): its %s %s", node, sim.g->node[node]->op ? sim.g->node[node]->op->name : "input",
             names[kind], what);
}

static size_t sim_unit(const void *at, size_t elements, int kind, int node)
{
    const size_t offset = (size_t)((const char *)at - sim.g->state->arena[DDP__ARENA_OWN]);

    if (!at || offset % 64 || offset / 64 + (4 * elements + 63) / 64 > sim.units)
        sim_fault(kind, node, "is outside the arena");
    return offset / 64;
}

static void sim_write(const void *at, size_t elements, int kind, int node)
{
    size_t u = sim_unit(at, elements, kind, node), n = (4 * elements + 63) / 64;

    while (n--) sim.tag[u + n] = (long)node * KINDS + kind;
}

static void sim_read(const void *at, size_t elements, int kind, int node)
{
    size_t u = sim_unit(at, elements, kind, node), n = (4 * elements + 63) / 64;

    sim.reads++;
    while (n--)
        if (sim.tag[u + n] != (long)node * KINDS + kind)
            sim_fault(kind, node, "is read after it was overwritten");
}

static const ddp_node *sim_node(const ddp_op_call *c)
{
    const char *spec = (const char *)(const void *)c->spec;

    return (const ddp_node *)(const void *)(spec - offsetof(ddp_node, spec));
}

static size_t sim_count(int node) { return (size_t)ddp_shape_count(&sim.g->node[node]->spec.out); }

/* Reads the inputs. over: the output if it may have overwritten input 0, else NULL. */
static void sim_inputs(const ddp_op_call *c, const ddp_node *n, const void *over)
{
    int k;

    for (k = 0; k < n->spec.inputs; k++)
        if (!over || k || c->in[k] != over) sim_read(c->in[k], sim_count(n->input[k]), VALUE, n->input[k]);
}

static size_t sim_shadow_count(const ddp_node *n)
{
    size_t sum = 0;
    int k;

    for (k = 0; k < n->spec.buffers; k++) sum += (size_t)ddp_shape_count(&n->spec.buffer[k].shape);
    return sum;
}

static void sim_forward(const ddp_op_call *c)
{
    const ddp_node *n = sim_node(c);
    const size_t shadow = n->spec.buffers ? sim.g->reuse.shadow[n->index] : DDP__NOWHERE;

    if (shadow != DDP__NOWHERE) {
        const char *at = sim.g->state->arena[DDP__ARENA_OWN] + shadow;

        if (!sim.forwards[n->index])
            sim_write(at, sim_shadow_count(n), SHADOW, n->index);
        else
            sim_read(c->buffer[0], sim_shadow_count(n), SHADOW, n->index);
        assert_true((c->buffer[0] == at) == (sim.forwards[n->index] == 1));
    }
    sim.forwards[n->index]++;
    assert_int_equal(c->training, 1);
    sim_inputs(c, n, NULL);
    sim_write(c->out, sim_count(n->index), VALUE, n->index);
    sim_inputs(c, n, n->spec.in_place_ok ? c->out : NULL);
    if (!n->spec.saved) return;
    sim_write(c->saved, n->spec.saved, SAVED, n->index);
    sim_inputs(c, n, n->spec.in_place_ok ? c->out : NULL);
    sim_read(c->out, sim_count(n->index), VALUE, n->index);
}

/* Reads everything that a backward may read. */
static void sim_backward_reads(const ddp_op_call *c, const ddp_node *n)
{
    sim_read(c->grad_out, sim_count(n->index), GRADIENT, n->index);
    if (n->spec.saved) sim_read(c->saved, n->spec.saved, SAVED, n->index);
    if (n->spec.in_place_ok) return;
    if (!n->spec.out_unread) sim_read(c->out, sim_count(n->index), VALUE, n->index);
    sim_inputs(c, n, n->spec.grad_over_input ? c->grad_in[0] : NULL);
}

static void sim_backward(const ddp_op_call *c)
{
    const ddp_node *n = sim_node(c);
    int k;

    if (n == sim.loss) sim_write(c->grad_out, 1, GRADIENT, n->index);
    if (n->spec.grad_over_input && c->grad_in[0] == c->in[0]) /* not overwritten yet */
        sim_read(c->in[0], sim_count(n->input[0]), VALUE, n->input[0]);
    for (k = 0; k < n->spec.inputs; k++) {
        if (!c->grad_in[k]) continue;
        if (c->add_in[k]) sim_read(c->grad_in[k], sim_count(n->input[k]), GRADIENT, n->input[k]);
        if (!k) sim_backward_reads(c, n);
        sim_write(c->grad_in[k], sim_count(n->input[k]), GRADIENT, n->input[k]);
    }
    sim_backward_reads(c, n);
    for (k = 0; k < n->spec.inputs; k++)
        if (c->grad_in[k]) sim_read(c->grad_in[k], sim_count(n->input[k]), GRADIENT, n->input[k]);
}

/* After forward, ddp_output returns the node's own value, or the value of a node that overwrote it. */
static void sim_outputs(void)
{
    int i, j;

    for (i = 0; i < ddp__count(sim.g->node); i++) {
        const float *out = ddp_output(sim.g, sim.g->node[i]);
        long tag;

        if (!out) continue;
        tag = sim.tag[sim_unit(out, 1, VALUE, i)];
        if (tag % KINDS != VALUE) sim_fault(VALUE, i, "is lost when forward ends");
        for (j = (int)(tag / KINDS); j > i; j = sim.g->node[j]->input[0])
            if (!sim.g->node[j]->spec.in_place_ok) break;
        if (i != j) sim_fault(VALUE, i, "is lost when forward ends");
        sim_read(out, sim_count(i), VALUE, (int)(tag / KINDS));
    }
}

/* Follows one pass through the arena of a built graph. Returns the number of recomputed operators. */
static int simulate(ddp_graph *g, ddp_node *loss)
{
    static const ddp_op follow = {"follow", NULL, sim_forward, sim_backward};
    const ddp_op **real = (const ddp_op **)calloc((size_t)ddp__count(g->node), sizeof *real);
    int i, again = 0;

    memset(&sim, 0, sizeof sim);
    sim.g = g;
    sim.loss = loss;
    sim.units = g->reuse.bytes[DDP__ARENA_OWN] / 64;
    sim.tag = (long *)calloc(sim.units + 1, sizeof *sim.tag);
    sim.forwards = (int *)calloc((size_t)ddp__count(g->node), sizeof *sim.forwards);
    assert_true(real && sim.tag && sim.forwards);
    for (i = 0; i < ddp__count(g->node); i++) {
        real[i] = g->node[i]->op;
        if (real[i])
            g->node[i]->op = g->node[i]->run = &follow;
        else
            sim_write(ddp_data(g, g->node[i]->name), sim_count(i), VALUE, i);
    }
    assert_int_equal(ddp_forward(g), 0);
    sim_outputs();
    assert_int_equal(ddp_backward(g, loss), 0);
    for (i = 0; i < ddp__count(g->node); i++) {
        g->node[i]->op = g->node[i]->run = real[i];
        assert_in_range(sim.forwards[i], real[i] != NULL, 1 + (real[i] != NULL));
        again += sim.forwards[i] == 2;
        assert_int_equal(sim.forwards[i] == 2, g->reuse.fate[i] == DDP__AGAIN);
        if (g->reuse.fate[i] == DDP__DROPPED) /* saved values for backward would be lost too */
            assert_false(g->node[i]->has_gradient && g->node[i]->spec.saved);
    }
    assert_true(sim.reads > 2 * ddp__count(g->node));
    free(real);
    free(sim.tag);
    free(sim.forwards);
    return again;
}

/* ---- random graphs ---- */

static void all_buffers(ddp_graph *g, float *out, size_t room)
{
    size_t n;
    int l;

    memset(out, 0, room * sizeof *out);
    for (l = 0; l < ddp_layer_count(g); l++) {
        const float *b = ddp_layer_buffers(g, l, &n);

        assert_true(n <= room);
        if (n) memcpy(out, b, n * sizeof *b);
        out += n;
        room -= n;
    }
}

/* Runs two passes with accumulated gradients, and changes the parameters between them. */
static float two_passes(ddp_graph *g, ddp_node *loss)
{
    size_t n, i;
    int l, pass;

    for (pass = 0; pass < 2; pass++) {
        fill_inputs((float *)ddp_data(g, "x"), (float *)ddp_data(g, "y"));
        assert_int_equal(ddp_forward(g), 0);
        assert_int_equal(ddp_backward(g, loss), 0);
        for (l = 0; l < ddp_layer_count(g); l++) {
            float *w = ddp_layer_params(g, l, &n);
            const float *d = ddp_layer_gradients(g, l, &n);

            for (i = 0; i < n; i++) w[i] -= 1e-4f * d[i];
        }
    }
    return ddp_value(g, loss);
}

enum { BUFFERS = 64 * 7 };

static void random_graphs_with_recomputation_are_bit_identical(void **unused)
{
    static float kept[2][BUFFERS];
    int trial, again = 0, smaller = 0, moved = 0;

    (void)unused;
    for (trial = 0; trial < 300; trial++) {
        ddp_graph *g[2];
        ddp_node *loss[2];
        float *gradient[2], value[2];
        size_t bytes;
        int k;

        for (k = 0; k < 2; k++) {
            ddp_rng r = ddp_rng_seed(31, (uint64_t)trial), cut = ddp_rng_seed(32, (uint64_t)trial);

            g[k] = graph_with_ops(NULL);
            loss[k] = random_model(g[k], &r, 3 + trial % 60, 1, k ? &cut : NULL);
            if (ddp_graph_build(g[k])) fail_msg("%s", ddp_graph_error(g[k])->msg);
            memset(g[k]->state->arena[DDP__ARENA_OWN], 0xff,
                   g[k]->reuse.bytes[DDP__ARENA_OWN]); /* NaN everywhere */
            value[k] = two_passes(g[k], loss[k]);
            gradient[k] = all_gradients(g[k], &bytes);
            all_buffers(g[k], kept[k], BUFFERS);
        }
        if (!isfinite(value[0]) || memcmp(&value[0], &value[1], sizeof *value))
            fail_msg("trial %d: loss %g and %g", trial, (double)value[0], (double)value[1]);
        assert_memory_equal(gradient[0], gradient[1], bytes);
        assert_memory_equal(kept[0], kept[1], sizeof kept[0]);
        for (k = 0; k < BUFFERS; k++) moved += kept[0][k] > 0 && kept[0][k] < 0.99f;
        for (k = 0; k < ddp__count(g[1]->node); k++) again += g[1]->reuse.fate[k] == DDP__AGAIN;
        smaller += g[1]->reuse.bytes[DDP__ARENA_OWN] < g[0]->reuse.bytes[DDP__ARENA_OWN];
        assert_true(g[1]->reuse.bytes[DDP__ARENA_OWN] >= g[1]->reuse.live_bytes);
        for (k = 0; k < 2; k++) {
            free(gradient[k]);
            ddp_graph_free(g[k]);
        }
    }
    print_message("%d operators recomputed; less memory in %d of 300 graphs\n", again, smaller);
    assert_true(again > 1000 && moved > 1000 && smaller > 50);
}

static void random_memory_plans_keep_every_array_until_its_last_read(void **unused)
{
    int trial, again = 0;

    (void)unused;
    for (trial = 0; trial < 500; trial++) {
        ddp_rng r = ddp_rng_seed(33, (uint64_t)trial), cut = ddp_rng_seed(34, (uint64_t)trial);
        ddp_graph *g = graph_with_ops(NULL);
        ddp_node *loss = random_model(g, &r, 3 + trial % 60, trial % 2, trial % 5 ? &cut : NULL);

        assert_int_equal(ddp_graph_build(g), 0);
        again += simulate(g, loss);
        ddp_graph_free(g);
    }
    assert_true(again > 1000);
}

/* ---- the order of recomputation in one graph ---- */

static char order[400];
static int order_runs[8]; /* forward runs per operator. Its argument is the index. */

static ddp_status note_shape(ddp_op_spec *s, ddp_error *err)
{
    s->params = 1;
    s->param[0].name = "weight";
    s->param[0].shape = s->in[0];
    s->param[0].init = DDP_INIT_ONE;
    return same_shape(s, err);
}

static void note(const ddp_op_call *c, const char *what)
{
    char entry[16];

    snprintf(entry, sizeof entry, "%s%d ", what, (int)c->spec->arg[0]);
    strcat(order, entry);
}

/* y = w x. Its backward reads the input. */
static void note_forward(const ddp_op_call *c)
{
    long i;

    note(c, "f");
    order_runs[(int)c->spec->arg[0]]++;
    for (i = 0; i < ddp_shape_count(&c->spec->out); i++)
        ((float *)c->out)[i] = ((const float *)c->in[0])[i] * ((const float *)c->param[0])[i];
}

static void note_backward(const ddp_op_call *c)
{
    long i;

    note(c, "b");
    for (i = 0; i < ddp_shape_count(&c->spec->out); i++) {
        const float d = ((const float *)c->grad_out)[i];

        ((float *)c->grad_param[0])[i] += d * ((const float *)c->in[0])[i];
        put(c, 0, i, d * ((const float *)c->param[0])[i]);
    }
}

static int order_hook(ddp_ctx *d, const char *what, int layer)
{
    char entry[16];

    (void)d;
    snprintf(entry, sizeof entry, "%s%d ", what, layer);
    strcat(order, entry);
    return 0;
}

static int order_forward(ddp_ctx *d, int layer) { return order_hook(d, "F", layer); }
static int order_begin(ddp_ctx *d, int layer) { return order_hook(d, "B", layer); }
static int order_end(ddp_ctx *d, int layer) { return order_hook(d, "E", layer); }

static const ddp_op note_op = {"note", note_shape, note_forward, note_backward};

/* Node 0 precedes a segment with nodes 1, 2 and 3, which spans two layers. Nodes 4 and 5 follow the loss
 * in another segment. The loss reads node 3. */
static ddp_graph *noted(ddp_ctx *d, ddp_node **n, ddp_node **loss)
{
    ddp_graph *g = graph_with_ops(d);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 5, 7), *y = ddp_input(g, "y", DDP_F32, 5, 7);
    int i;

    assert_int_equal(ddp_register_op(g, &note_op), 0);
    for (i = 0; i < 4; i++) {
        if (i != 2) ddp_layer_begin(g, "l");
        if (i == 1) ddp_recompute_begin(g);
        x = n[i] = op1(g, "note", x, i);
        if (i != 1) ddp_layer_end(g);
    }
    ddp_recompute_end(g);
    *loss = op2(g, "my_square", x, y);
    ddp_layer_begin(g, "l");
    ddp_recompute_begin(g);
    n[4] = op1(g, "note", x, 4);
    n[5] = op1(g, "note", n[4], 5);
    ddp_recompute_end(g);
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_build(g), 0);
    fill_inputs((float *)ddp_data(g, "x"), (float *)ddp_data(g, "y"));
    return g;
}

static void segment_is_recomputed_in_the_backward_of_its_last_layer(void **unused)
{
    static const ddp__hooks hooks = {fake_add, order_forward, order_begin, order_end, fake_last};
    fake_ctx f;
    ddp_ctx *d = fake_open(&f);
    ddp_node *n[6], *loss;
    ddp_graph *g;
    int i;

    (void)unused;
    f.host.hooks = &hooks;
    g = noted(d, n, &loss);
    order[0] = 0;
    memset(order_runs, 0, sizeof order_runs);
    assert_int_equal(ddp_forward(g), 0);
    assert_string_equal(order, "F0 f0 F1 f1 f2 F2 f3 F3 f4 f5 ");
    order[0] = 0;
    assert_int_equal(ddp_backward(g, loss), 0);
    /* 3 is the output of its segment, 4 and 5 come after the loss: none of them is recomputed */
    assert_string_equal(order, "B3 E3 B2 f1 f2 b3 E2 B1 b2 b1 E1 B0 b0 E0 ");
    for (i = 0; i < 6; i++) assert_int_equal(order_runs[i], i == 1 || i == 2 ? 2 : 1);
    fake_close(&f);
}

static void only_outputs_that_are_kept_can_be_read(void **unused)
{
    ddp_node *n[6], *loss;
    ddp_graph *g = noted(NULL, n, &loss);
    ddp_state *s;
    const float *x = (const float *)ddp_data(g, "x");
    float trained;
    int i;

    (void)unused;
    assert_int_equal(ddp_forward(g), 0);
    trained = ddp_value(g, loss);
    for (i = 0; i < 6; i++) {
        const float *out = ddp_output(g, n[i]);

        if (i == 1 || i == 2 || i == 4)
            assert_null(out);
        else
            assert_memory_equal(out, x, 35 * sizeof *x); /* all weights are 1 */
    }
    assert_true(isnan(ddp_value(g, n[1])));
    assert_int_equal(ddp_evaluate(g), 0);
    assert_null(ddp_output(g, n[2]));
    assert_memory_equal(ddp_output(g, n[3]), x, 35 * sizeof *x);
    assert_false(ddp_value(g, loss) < trained || ddp_value(g, loss) > trained);
    assert_int_equal(ddp_backward(g, loss), DDP_USAGE); /* the same error as without segments */
    ddp_graph_free(g);

    g = noted(NULL, n, &loss);
    x = (const float *)ddp_data(g, "x");
    s = ddp_state_new(g); /* this state keeps everything */
    memcpy(ddp_state_data(s, g->node[0]), x, 35 * sizeof *x);
    assert_int_equal(ddp_forward_range(s, 0, ddp_node_count(g) - 1), 0);
    for (i = 0; i < 6; i++) assert_memory_equal(ddp_state_data(s, n[i]), x, 35 * sizeof *x);
    ddp_state_free(s);
    ddp_graph_free(g);
}

/* ---- the models ---- */

#ifdef __SANITIZE_THREAD__ /* some models would take minutes */
enum { GPT2, LLAMA2, RESNET18, MODELS, RESNET50, VGG11, LAST_OF_TWO = GPT2 };
#else
enum { GPT2, LLAMA2, RESNET18, RESNET50, VGG11, MODELS, LAST_OF_TWO = RESNET18 };
#endif

static const char *const model_names[] = {"GPT-2", "Llama-2", "ResNet-18", "ResNet-50", "VGG-11"};

static ddp_node *add_model(ddp_graph *g, int model, int recompute)
{
    ddp_gpt2_config gpt2;
    ddp_llama2_config llama2;
    ddp_resnet_config resnet;
    ddp_vgg_config vgg;

    memset(&gpt2, 0, sizeof gpt2);
    memset(&llama2, 0, sizeof llama2);
    memset(&resnet, 0, sizeof resnet);
    memset(&vgg, 0, sizeof vgg);
    gpt2.recompute = llama2.recompute = resnet.recompute = vgg.recompute = recompute;
    gpt2.vocabulary = llama2.vocabulary = 50;
    gpt2.context = llama2.context = 24;
    gpt2.layers = llama2.layers = 3;
    gpt2.heads = llama2.heads = 4;
    gpt2.dim = llama2.dim = 32;
    gpt2.batch = llama2.batch = 3;
    gpt2.dropout = 0.1f;
    llama2.kv_heads = 2;
    resnet.depth = model == RESNET50 ? 50 : 18;
    resnet.classes = vgg.classes = 10;
    resnet.batch = vgg.batch = 2;
    resnet.size = model == RESNET50 ? 32 : 8;
    resnet.cifar = model == RESNET18;
    vgg.depth = 11;
    vgg.size = 32;
    vgg.dropout = 0.5f;
    return model == GPT2     ? ddp_gpt2(g, &gpt2, NULL)
           : model == LLAMA2 ? ddp_llama2(g, &llama2, NULL)
           : model == VGG11  ? ddp_vgg(g, &vgg, NULL)
                             : ddp_resnet(g, &resnet, NULL);
}

/* Fills in random tokens or images, the same for the same step and rank. */
static void model_batch(ddp_graph *g, int model, int step, int rank)
{
    ddp_rng r = ddp_rng_seed(7, (uint64_t)(10 * step + rank));
    const int text = model == GPT2 || model == LLAMA2;
    int32_t *labels = (int32_t *)ddp_data(g, "labels");
    long i, count = ddp_shape_count(&g->node[0]->spec.out);

    for (i = 0; i < count; i++)
        if (text)
            ((int32_t *)ddp_data(g, "tokens"))[i] = (int32_t)ddp_rng_below(&r, 50);
        else
            ((float *)ddp_data(g, "inputs"))[i] = (float)ddp_rng_normal(&r);
    count = ddp_shape_count(&g->node[1]->spec.out);
    for (i = 0; i < count; i++) labels[i] = (int32_t)ddp_rng_below(&r, text ? 50 : 10);
}

typedef struct trained {
    int model, recompute, steps;
    uint64_t hash[2]; /* of gradients, and of parameters and buffers, per rank */
    float loss[2];
    size_t bytes;
} trained;

/* Trains with two micro-batches per step. */
static int train(ddp_ctx *d, void *user)
{
    trained *t = (trained *)user;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = add_model(g, t->model, t->recompute);
    ddp_optimizer rule = ddp_adamw(1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f);
    const int rank = ddp_rank(d);
    uint64_t hash = 0;
    int step, l, bad = ddp_graph_build(g);

    if (!bad) bad = ddp_set_optimizer(d, &rule);
    if (rank == 0) t->bytes = ddp_activation_bytes(g);
    for (step = 0; !bad && step < 2 * t->steps; step++) {
        model_batch(g, t->model, step, rank);
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        for (l = 0; l < ddp_layer_count(g); l++) {
            size_t n;
            const float *x = ddp_layer_gradients(g, l, &n);

            hash = ddp_hash_floats(hash, x, n);
        }
        if (!bad && step % 2) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d);
    for (l = 0; l < ddp_layer_count(g); l++) {
        size_t n;
        const float *x = ddp_layer_params(g, l, &n);

        hash = ddp_hash_floats(hash, x, n);
        x = ddp_layer_buffers(g, l, &n);
        hash = ddp_hash_floats(hash, x, n);
    }
    t->hash[rank] = hash;
    t->loss[rank] = ddp_value(g, loss);
    return bad;
}

static trained run(int model, int recompute, int threads, int world, ddp_strategy strategy)
{
    trained t;
    ddp_config cfg;
    ddp_error err;

    memset(&t, 0, sizeof t);
    memset(&cfg, 0, sizeof cfg);
    t.model = model;
    t.recompute = recompute;
    t.steps = world > 1 ? 3 : 2;
    cfg.no_env = 1;
    cfg.deterministic = 1;
    cfg.transport = DDP_THREADS;
    cfg.threads = threads;
    cfg.world = world;
    cfg.strategy = strategy;
    cfg.period = 2;
    cfg.profile_steps = -1; /* the plan exists from the start */
    cfg.micro_batches = 2;
    cfg.seed = 4;
    if (ddp_launch(&cfg, train, &t, &err)) fail_msg("%s: %s", model_names[model], err.msg);
    return t;
}

static void models_train_bit_identical_on_any_number_of_threads(void **unused)
{
    static const int threads[] = {1, 2, 3, 40};
    int model, k;

    (void)unused;
    for (model = GPT2; model <= RESNET18; model++) {
        const trained plain = run(model, 0, 1, 1, DDP_SSGD);

        assert_true(isfinite(plain.loss[0]));
        for (k = 0; k < (model == GPT2 ? 4 : 3); k += SAMPLED(2)) {
            const trained t = run(model, 1, threads[k], 1, DDP_SSGD);

            if (memcmp(plain.hash, t.hash, sizeof t.hash) || memcmp(plain.loss, t.loss, 4))
                fail_msg("%s, %d threads: the results differ", model_names[model], threads[k]);
            assert_true(t.bytes < plain.bytes);
        }
    }
}

static void two_workers_with_a_plan_train_bit_identical(void **unused)
{
    int model;

    (void)unused;
    for (model = GPT2; model <= LAST_OF_TWO; model += RESNET18) {
        const trained plain = run(model, 0, 1, 2, DDP_DREAMDDP);
        const trained t = run(model, 1, 1, 2, DDP_DREAMDDP);

        assert_memory_equal(plain.hash, t.hash, sizeof t.hash);
        assert_memory_not_equal(&t.hash[0], &t.hash[1], sizeof *t.hash); /* the ranks have different data */
    }
}

static void model_memory_plans_keep_every_array_until_its_last_read(void **unused)
{
    /* of 12 and 11 operators, without the last product, the sum after it, and the dropout between them */
    static const int again_per_model[5] = {3 * 9, 3 * 9};
    int model, recompute;

    (void)unused;
    for (model = GPT2; model < MODELS; model++)
        for (recompute = model > RESNET18; recompute < 2; recompute++) {
            ddp_graph *g = ddp_graph_new(NULL);
            ddp_node *loss = add_model(g, model, recompute);
            int again;

            if (ddp_graph_build(g)) fail_msg("%s", ddp_graph_error(g)->msg);
            again = simulate(g, loss);
            print_message("%s: %d of %d nodes recomputed, %zu bytes, at least %zu\n", model_names[model],
                          again, ddp__count(g->node), g->reuse.bytes[DDP__ARENA_OWN], g->reuse.live_bytes);
            assert_true(recompute ? again > ddp__count(g->node) / 3 : again == 0);
            if (recompute && again_per_model[model]) assert_int_equal(again, again_per_model[model]);
            ddp_graph_free(g);
        }
}

static size_t gpt2_bytes(long layers, long heads, long dim, long context, int recompute)
{
    ddp_gpt2_config c;
    ddp_graph *g = ddp_graph_new(NULL);
    size_t bytes;

    memset(&c, 0, sizeof c);
    c.vocabulary = 50304;
    c.context = context;
    c.batch = 4;
    c.recompute = recompute;
    c.layers = layers;
    c.heads = heads;
    c.dim = dim;
    c.dropout = 0.1f;
    assert_non_null(ddp_gpt2(g, &c, NULL));
    bytes = ddp_activation_bytes(g);
    ddp_graph_free(g);
    return bytes;
}

/* Whole logits are 206 MB and 824 MB. With recomputation, the chunk of 256 rows is stored in addition to
 * the gradient of the table. */
static void gpt2_needs_the_documented_memory(void **unused)
{
    (void)unused;
    assert_int_equal(gpt2_bytes(6, 6, 384, 256, 0), 379478080);
    assert_int_equal(gpt2_bytes(6, 6, 384, 256, 1), 146089984);
    assert_int_equal(gpt2_bytes(12, 12, 768, 1024, 0), 3572858944);
    assert_int_equal(gpt2_bytes(12, 12, 768, 1024, 1), 427851776);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs_with_recomputation_are_bit_identical),
        cmocka_unit_test(random_memory_plans_keep_every_array_until_its_last_read),
        cmocka_unit_test(segment_is_recomputed_in_the_backward_of_its_last_layer),
        cmocka_unit_test(only_outputs_that_are_kept_can_be_read),
        cmocka_unit_test(models_train_bit_identical_on_any_number_of_threads),
        cmocka_unit_test(two_workers_with_a_plan_train_bit_identical),
        cmocka_unit_test(model_memory_plans_keep_every_array_until_its_last_read),
        cmocka_unit_test(gpt2_needs_the_documented_memory),
    };

#if defined(__SANITIZE_THREAD__) /* the other tests have no threads */
    cmocka_set_test_filter("*_train_bit_identical*");
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
