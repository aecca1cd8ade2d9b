/* [asan] The ready-made models: sizes, layers, rejected configurations, initial values, and learning. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

static ddp_gpt2_config gpt2(long vocabulary, long context, long layers, long heads, long dim, long batch)
{
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = vocabulary;
    c.context = context;
    c.layers = layers;
    c.heads = heads;
    c.dim = dim;
    c.batch = batch;
    return c;
}

/* The name of the n-th layer, read from its operators. */
static const char *layer_name(const ddp_graph *g, int layer, ddp_node_info *info)
{
    int i;

    for (i = 0; i < ddp_node_count(g); i++) {
        assert_int_equal(ddp_node_describe(g, i, info), DDP_OK);
        if (info->layer_index == layer) return info->layer;
    }
    return "";
}

static void gpt2_small_has_124439808_parameters_before_it_is_built(void **unused)
{
    ddp_gpt2_config c = gpt2(50257, 1024, 12, 12, 768, 4);
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *logits, *loss;
    ddp_node_info info;

    (void)unused;
    assert_non_null(g);
    loss = ddp_gpt2(g, &c, &logits);
    if (!loss) fail_msg("%s", ddp_graph_error(g)->msg);
    assert_int_equal(ddp_param_count(g), 124439808);
    assert_int_equal(ddp_layer_count(g), 26);
    assert_string_equal(layer_name(g, 0, &info), "embed");
    assert_string_equal(layer_name(g, 1, &info), "h.0.attn");
    assert_string_equal(layer_name(g, 24, &info), "h.11.mlp");
    assert_string_equal(layer_name(g, 25, &info), "head");
    assert_int_equal(ddp_node_describe(g, ddp_node_index(logits), &info), DDP_OK);
    assert_int_equal(info.out.dims, 3);
    assert_true(info.out.dim[0] == 4 && info.out.dim[1] == 1024 && info.out.dim[2] == 50257);
    assert_int_equal(ddp_node_describe(g, ddp_node_index(loss), &info), DDP_OK);
    assert_int_equal(ddp_shape_count(&info.out), 1);
    ddp_graph_free(g);
}

static void other_gpt2_sizes_match_the_published_ones(void **unused)
{
    static const long shape[3][3] = {{24, 16, 1024}, {36, 20, 1280}, {48, 25, 1600}};
    static const size_t params[3] = {354823168, 774030080, 1557611200};
    int k;

    (void)unused;
    for (k = 0; k < 3; k++) {
        ddp_gpt2_config c = gpt2(50257, 1024, shape[k][0], shape[k][1], shape[k][2], 1);
        ddp_graph *g = ddp_graph_new(NULL);

        c.dropout = 0.1f;
        assert_non_null(ddp_gpt2(g, &c, NULL));
        assert_int_equal(ddp_param_count(g), params[k]);
        ddp_graph_free(g);
    }
}

/* DreamDDP's "Llama-2 175M": 8 blocks of width 512, 8 heads, an MLP of width 11,008, 32,000 tokens. */
static void llama2_of_the_paper_has_176431616_parameters_before_it_is_built(void **unused)
{
    ddp_llama2_config c;
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node_info info;
    ddp_node *logits;

    (void)unused;
    memset(&c, 0, sizeof c);
    c.vocabulary = 32000;
    c.context = 764;
    c.layers = 8;
    c.heads = 8;
    c.dim = 512;
    c.hidden = 11008;
    c.batch = 4;
    if (!ddp_llama2(g, &c, &logits)) fail_msg("%s", ddp_graph_error(g)->msg);
    assert_int_equal(ddp_param_count(g), 176431616);
    assert_int_equal(ddp_layer_count(g), 18);
    assert_string_equal(layer_name(g, 0, &info), "embed");
    assert_string_equal(layer_name(g, 1, &info), "layers.0.attn");
    assert_string_equal(layer_name(g, 16, &info), "layers.7.mlp");
    assert_string_equal(layer_name(g, 17, &info), "head");
    assert_int_equal(ddp_node_describe(g, ddp_node_index(logits), &info), DDP_OK);
    assert_true(info.out.dim[0] == 4 && info.out.dim[1] == 764 && info.out.dim[2] == 32000);
    ddp_graph_free(g);
}

/* Llama-2 7B (6,738,415,616 parameters) and 70B (68,976,648,192), as published with the weights; then a
 * small tied one with default sizes, computed by hand. */
static void other_llama2_sizes_match_the_published_ones(void **unused)
{
    static const long shape[3][6] = {/* layers, heads, kv_heads, dim, hidden, vocabulary */
                                     {32, 32, 0, 4096, 11008, 32000},
                                     {80, 64, 8, 8192, 28672, 32000},
                                     {1, 2, 1, 96, 0, 10}};
    static const size_t params[3] = {6738415616, 68976648192,
                                     10 * 96 + 96 + 96 * 96 * 2 + 2 * 48 * 96 + 3 * 256 * 96 + 2 * 96};
    int k;

    (void)unused;
    for (k = 0; k < 3; k++) {
        ddp_llama2_config c;
        ddp_graph *g = ddp_graph_new(NULL);

        memset(&c, 0, sizeof c);
        c.layers = shape[k][0];
        c.heads = shape[k][1];
        c.kv_heads = shape[k][2];
        c.dim = shape[k][3];
        c.hidden = shape[k][4];
        c.vocabulary = shape[k][5];
        c.context = 16;
        c.batch = 1;
        c.tied = k == 2;
        if (!ddp_llama2(g, &c, NULL)) fail_msg("%s", ddp_graph_error(g)->msg);
        assert_int_equal(ddp_param_count(g), params[k]);
        ddp_graph_free(g);
    }
}

static void llama2_refused(long heads, long kv_heads, long dim, const char *part)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_llama2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 65;
    c.context = 8;
    c.layers = 2;
    c.batch = 1;
    c.heads = heads;
    c.kv_heads = kv_heads;
    c.dim = dim;
    assert_null(ddp_llama2(g, &c, NULL));
    assert_int_equal(ddp_graph_error(g)->code, DDP_ARG);
    if (!strstr(ddp_graph_error(g)->msg, part)) fail_msg("%s", ddp_graph_error(g)->msg);
    ddp_graph_free(g);
}

static void invalid_llama_configs_fail_with_an_error(void **unused)
{
    (void)unused;
    llama2_refused(4, 3, 32, "4 heads cannot share 3");
    llama2_refused(4, 0, 30, "dim 30 cannot be cut into 4");
    llama2_refused(4, 0, 12, "even width");
    llama2_refused(4, -1, 32, "kv_heads -1");
    llama2_refused(0, 0, 32, "heads 0");
}

static void gpt2_refused(ddp_gpt2_config c, const char *part)
{
    ddp_graph *g = ddp_graph_new(NULL);

    assert_null(ddp_gpt2(g, &c, NULL));
    assert_int_equal(ddp_graph_error(g)->code, DDP_ARG);
    if (!strstr(ddp_graph_error(g)->msg, part)) fail_msg("%s", ddp_graph_error(g)->msg);
    assert_int_equal(ddp_graph_build(g), DDP_ARG);
    ddp_graph_free(g);
}

static void invalid_model_configs_fail_with_an_error(void **unused)
{
    ddp_gpt2_config c = gpt2(65, 8, 2, 2, 16, 2);
    ddp_mlp_config m;
    ddp_graph *g;
    int i;

    (void)unused;
    gpt2_refused(gpt2(65, 8, 2, 3, 16, 2), "dim 16 cannot be cut into 3 heads");
    gpt2_refused(gpt2(1, 8, 2, 2, 16, 2), "vocabulary is 1");
    gpt2_refused(gpt2(65, 0, 2, 2, 16, 2), "context 0");
    gpt2_refused(gpt2(65, 8, -1, 2, 16, 2), "layers -1");
    gpt2_refused(gpt2(65, 8, 2, 0, 16, 2), "heads 0");
    gpt2_refused(gpt2(65, 8, 2, 2, 0, 2), "dim 0");
    gpt2_refused(gpt2(65, 8, 2, 2, 16, 0), "batch 0");
    c.dropout = 1;
    gpt2_refused(c, "dropout is 1");
    c.dropout = NAN;
    gpt2_refused(c, "dropout is");
    assert_null(ddp_gpt2(NULL, &c, NULL));

    memset(&m, 0, sizeof m);
    m.batch = 4;
    m.inputs = 3;
    m.classes = 1;
    g = ddp_graph_new(NULL);
    assert_null(ddp_mlp(g, &m, NULL));
    assert_non_null(strstr(ddp_graph_error(g)->msg, "classes 1"));
    ddp_graph_free(g);
    m.classes = 2;
    m.hidden[0] = 5;
    m.hidden[1] = -5;
    g = ddp_graph_new(NULL);
    assert_null(ddp_mlp(g, &m, NULL));
    assert_non_null(strstr(ddp_graph_error(g)->msg, "hidden layer 1 is -5"));
    ddp_graph_free(g);

    for (i = 0; i < 5; i++) {
        g = ddp_graph_new(NULL);
        assert_null(i == 0   ? ddp_gpt2(g, NULL, NULL)
                    : i == 1 ? ddp_llama2(g, NULL, NULL)
                    : i == 2 ? ddp_mlp(g, NULL, NULL)
                    : i == 3 ? ddp_resnet(g, NULL, NULL)
                             : ddp_vgg(g, NULL, NULL));
        assert_non_null(strstr(ddp_graph_error(g)->msg, "the configuration is NULL"));
        ddp_graph_free(g);
    }
}

static void mlp_has_one_layer_per_linear_operator(void **unused)
{
    ddp_mlp_config m;
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node_info info;

    (void)unused;
    memset(&m, 0, sizeof m);
    m.batch = 4;
    m.inputs = 7;
    m.hidden[0] = 5;
    m.hidden[1] = 3;
    m.classes = 2;
    assert_non_null(ddp_mlp(g, &m, NULL));
    assert_int_equal(ddp_layer_count(g), 3);
    assert_int_equal(ddp_param_count(g), (7 * 5 + 5) + (5 * 3 + 3) + (3 * 2 + 2));
    assert_string_equal(layer_name(g, 1, &info), "hidden.1");
    assert_string_equal(layer_name(g, 2, &info), "head");
    ddp_graph_free(g);
}

/* Root mean square of parameter k of the n-th operator with that name. */
static double deviation(ddp_graph *g, const char *layer, const char *op, int nth, int k)
{
    ddp_node_info info;
    ddp_shape shape;
    size_t count, i, done = 0;
    float *w;
    int n;

    for (n = 0; n < ddp_node_count(g); n++) {
        ddp_node_describe(g, n, &info);
        if (strcmp(info.name, op) || strcmp(info.layer, layer) || nth--) continue;
        w = ddp_layer_params(g, info.layer_index, &count);
        for (i = 0; i < count; i++)
            if (ddp_node_param(g, g->node[n], k, NULL) == w + i) done = 1;
        assert_int_equal(done, 1); /* parameters are in their layer's block */
        w = ddp_node_param(g, g->node[n], k, &shape);
        count = (size_t)ddp_shape_count(&shape);
        return sqrt(ddp__sum_squares(w, count) / (double)count);
    }
    fail_msg("no %s in %s", op, layer);
    return 0;
}

static void gpt2_initial_deviations_match_the_published_ones(void **unused)
{
    ddp_gpt2_config c = gpt2(301, 64, 8, 4, 64, 1);
    ddp_graph *g = ddp_graph_new(NULL);

    (void)unused;
    assert_non_null(ddp_gpt2(g, &c, NULL));
    if (ddp_graph_build(g)) fail_msg("%s", ddp_graph_error(g)->msg);
    assert_true(fabs(deviation(g, "embed", "embedding", 0, 0) - 0.02) < 0.001);
    assert_true(fabs(deviation(g, "embed", "position", 0, 0) - 0.02) < 0.001);
    assert_true(fabs(deviation(g, "h.3.attn", "linear", 0, 0) - 0.02) < 0.001);
    assert_true(fabs(deviation(g, "h.3.attn", "linear", 1, 0) - 0.005) < 0.0003); /* 0.02 / sqrt(16) */
    assert_true(fabs(deviation(g, "h.7.mlp", "linear", 1, 0) - 0.005) < 0.0003);
    assert_true(deviation(g, "h.0.mlp", "linear", 0, 1) == 0.0);
    assert_true(deviation(g, "h.0.mlp", "layer_norm", 0, 0) == 1.0);
    ddp_graph_free(g);
}

/* A language model of 600 rows, whose sums over rows are split into three: GPT-2, Llama 2 with a separate
 * head, and Llama 2 with a tied head. */
static ddp_node *wide_model(ddp_graph *g, int kind, int recompute, ddp_node **logits)
{
    ddp_gpt2_config c = gpt2(1009, 150, 1, 2, 16, 4);
    ddp_llama2_config l;

    memset(&l, 0, sizeof l);
    l.vocabulary = 1009;
    l.context = 150;
    l.layers = 1;
    l.heads = 2;
    l.dim = 16;
    l.batch = 4;
    l.tied = kind == 2;
    c.recompute = l.recompute = recompute;
    return kind ? ddp_llama2(g, &l, logits) : ddp_gpt2(g, &c, logits);
}

static ddp_graph *wide_graph(int kind, int recompute, ddp_node **logits, ddp_node **loss)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_rng r = ddp_rng_seed(7, 3);

    *loss = wide_model(g, kind, recompute, logits);
    if (ddp_graph_build(g)) fail_msg("%s", ddp_graph_error(g)->msg);
    for (int i = 0; i < 600; i++) {
        ((int32_t *)ddp_data(g, "tokens"))[i] = (int32_t)ddp_rng_below(&r, 1009);
        /* -1: ignored by the loss */
        ((int32_t *)ddp_data(g, "labels"))[i] = (int32_t)ddp_rng_below(&r, 1010) - 1;
    }
    return g;
}

/* If the logits are not requested, recompute computes them in chunks. Loss and gradients stay
 * bit-identical. */
static void unrequested_logits_are_computed_in_chunks(void **unused)
{
    (void)unused;
    for (int kind = 0; kind < 3; kind++) {
        ddp_node *logits, *whole, *loss;
        ddp_graph *a = wide_graph(kind, 1, &logits, &whole), *b = wide_graph(kind, 1, NULL, &loss);
        float evaluated;
        size_t n;

        assert_int_equal(ddp_node_count(b), ddp_node_count(a) - 1);
        assert_true(ddp_activation_bytes(b) + 1009 * 300 * sizeof(float) < ddp_activation_bytes(a));
        assert_int_equal(ddp_evaluate(b), DDP_OK);
        evaluated = ddp_value(b, loss);
        assert_int_equal(ddp_forward(a), DDP_OK);
        assert_int_equal(ddp_forward(b), DDP_OK);
        assert_true(ddp_value(a, whole) == ddp_value(b, loss) && ddp_value(b, loss) == evaluated);
        assert_int_equal(ddp_backward(a, whole), DDP_OK);
        assert_int_equal(ddp_backward(b, loss), DDP_OK);
        for (int l = 0; l < ddp_layer_count(a); l++) {
            const float *want = ddp_layer_gradients(a, l, &n);
            assert_memory_equal(ddp_layer_gradients(b, l, &n), want, n * sizeof *want);
        }
        ddp_graph_free(a);
        ddp_graph_free(b);
        a = wide_graph(kind, 0, &logits, &whole);
        b = wide_graph(kind, 0, NULL, &loss);
        assert_int_equal(ddp_node_count(b), ddp_node_count(a)); /* without recompute there are no chunks */
        ddp_graph_free(a);
        ddp_graph_free(b);
    }
}

/* One step of a graph without a context. Returns the loss before the update. */
static float train_step(ddp_graph *g, ddp_node *loss, const ddp_optimizer *rule, float **state, long number)
{
    ddp_update u;
    float value;
    int l;

    assert_int_equal(ddp_forward(g), DDP_OK);
    value = ddp_value(g, loss);
    assert_int_equal(ddp_backward(g, loss), DDP_OK);
    for (l = 0; l < ddp_layer_count(g); l++) {
        memset(&u, 0, sizeof u);
        u.layer = l;
        u.params = ddp_layer_params(g, l, &u.count);
        u.grads = ddp_layer_gradients(g, l, &u.count);
        if (!state[l]) state[l] = (float *)ddp__calloc(u.count * 2, sizeof(float));
        u.state = state[l];
        u.step = number;
        u.lr = rule->lr;
        rule->update(rule, &u);
    }
    ddp_zero_gradients(g);
    return value;
}

static void mlp_learns_a_separable_task(void **unused)
{
    ddp_mlp_config m;
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss, *logits;
    ddp_optimizer rule = ddp_sgd(0.1f, 0.9f);
    ddp_rng r = ddp_rng_seed(1, 2);
    float *state[8], first = 0, last = 0, *x;
    int32_t *y;
    long s, i, k;

    (void)unused;
    memset(state, 0, sizeof state);
    memset(&m, 0, sizeof m);
    m.batch = 32;
    m.inputs = 5;
    m.hidden[0] = 16;
    m.classes = 3;
    loss = ddp_mlp(g, &m, &logits);
    if (ddp_graph_build(g)) fail_msg("%s", ddp_graph_error(g)->msg);
    x = (float *)ddp_data(g, "inputs");
    y = (int32_t *)ddp_data(g, "labels");
    for (s = 0; s < 40; s++) {
        for (i = 0; i < m.batch; i++) {
            y[i] = (int32_t)ddp_rng_below(&r, 3);
            for (k = 0; k < 5; k++) x[i * 5 + k] = (float)ddp_rng_normal(&r) * 0.3f + (float)(y[i] == k);
        }
        last = train_step(g, loss, &rule, state, s);
        if (s == 0) first = last;
    }
    assert_true(first > 0.8f && first < 1.6f);
    assert_true(last < 0.4f * first);
    for (i = 0; i < 8; i++) DDP_FREE(state[i]);
    ddp_graph_free(g);
}

static void tiny_gpt2_learns_a_repeating_text(void **unused)
{
    static const char line[] = "the quick brown fox jumps over the lazy dog. ";
    ddp_gpt2_config c = gpt2(0, 16, 2, 2, 32, 4);
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss;
    ddp_optimizer rule = ddp_adamw(3e-3f, 0.9f, 0.999f, 1e-8f, 0.01f);
    ddp__text text;
    ddp_tokens *t;
    ddp_token_range range;
    float *state[8], first = 0, last = 0;
    double chance;
    long s;
    int k;

    (void)unused;
    memset(state, 0, sizeof state);
    memset(&text, 0, sizeof text);
    for (k = 0; k < 40; k++) ddp__text_add(&text, line, sizeof line - 1);
    t = ddp_tokens_from_bytes("fox", text.data, text.size, NULL);
    assert_non_null(t);
    assert_int_equal(ddp_tokens_split(t, 0, c.context, &range, NULL, NULL), DDP_OK);
    c.vocabulary = ddp_tokens_vocabulary(t);
    chance = log((double)c.vocabulary);
    loss = ddp_gpt2(g, &c, NULL);
    if (ddp_graph_build(g)) fail_msg("%s", ddp_graph_error(g)->msg);
    assert_int_equal(ddp_layer_count(g), 6);
    for (s = 0; s < 40; s++) {
        ddp_tokens_batch(&range, 7, s, 0, 1, c.batch, (int32_t *)ddp_data(g, "tokens"),
                         (int32_t *)ddp_data(g, "labels"));
        last = train_step(g, loss, &rule, state, s);
        if (s == 0) first = last;
    }
    /* small weights give a nearly uniform prediction */
    assert_true(fabs((double)first - chance) < 0.1 * chance);
    if (!((double)last < 0.6 * chance)) fail_msg("loss %g of ln V %g", (double)last, chance);
    for (k = 0; k < 8; k++) DDP_FREE(state[k]);
    ddp__text_free(&text);
    ddp_tokens_close(t);
    ddp_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_small_has_124439808_parameters_before_it_is_built),
        cmocka_unit_test(llama2_of_the_paper_has_176431616_parameters_before_it_is_built),
        cmocka_unit_test(other_llama2_sizes_match_the_published_ones),
        cmocka_unit_test(invalid_llama_configs_fail_with_an_error),
        cmocka_unit_test(other_gpt2_sizes_match_the_published_ones),
        cmocka_unit_test(invalid_model_configs_fail_with_an_error),
        cmocka_unit_test(mlp_has_one_layer_per_linear_operator),
        cmocka_unit_test(gpt2_initial_deviations_match_the_published_ones),
        cmocka_unit_test(unrequested_logits_are_computed_in_chunks),
        cmocka_unit_test(mlp_learns_a_separable_task),
        cmocka_unit_test(tiny_gpt2_learns_a_repeating_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
