/* [asan] The graph with user-defined operators: registration, layers, hooks, memory plan, ranges. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "graph/graph_lab.h"

static long g_allocations; /* calls of realloc and of the counting allocator */
static size_t g_bytes;

/* Counts allocations, so that a test can check that there are none. */
void *heap_realloc(void *p, size_t bytes)
{
    g_allocations++;
    g_bytes += bytes;
    return realloc(p, bytes);
}

void heap_free(void *p) { free(p); }

/* ---- tests ---- */

static void user_operator_matches_values_computed_by_hand(void **unused)
{
    static const float x[2] = {3, -2};
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *in = ddp_input(g, "x", DDP_F32, 1, 2), *want = ddp_input(g, "y", DDP_F32, 1, 2), *l, *r;
    ddp_node *loss;
    float *w, *b, *dw;

    (void)unused;
    ddp_layer_begin(g, "only");
    l = op1(g, "my_linear", in, 2);
    r = op1(g, "custom_relu", l, 0);
    loss = op2(g, "my_square", r, want);
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_build(g), 0);
    w = ddp_node_param(g, l, 0, NULL);
    b = ddp_node_param(g, l, 1, NULL);
    w[0] = 1;
    w[1] = 1;
    w[2] = 0;
    w[3] = 2;
    b[0] = 0.5f;
    b[1] = -1;
    memcpy(ddp_data(g, "x"), x, sizeof x);
    memset(ddp_data(g, "y"), 0, sizeof x);
    assert_int_equal(ddp_forward(g), 0);
    /* Wx + b = (1.5, -5); leaky: (1.5, -0.5); loss = (2.25 + 0.25) / 2 */
    assert_true(fabsf(ddp_value(g, loss) - 1.25f) < 1e-6f);
    assert_true(isnan(ddp_value(g, l)));
    assert_int_equal(ddp_backward(g, loss), 0);
    assert_true(fabsf(ddp_value(g, loss) - 1.25f) < 1e-6f); /* still readable */
    dw = ddp_node_gradient(g, l, 0);
    /* d = (1.5, -0.05); dW = d x^T, db = d */
    assert_true(fabsf(dw[0] - 4.5f) < 1e-6f && fabsf(dw[1] + 3) < 1e-6f);
    assert_true(fabsf(dw[2] + 0.15f) < 1e-6f && fabsf(dw[3] - 0.1f) < 1e-6f);
    assert_true(fabsf(ddp_node_gradient(g, l, 1)[1] + 0.05f) < 1e-6f);
    assert_int_equal(ddp_forward(g), 0);
    assert_int_equal(ddp_backward(g, loss), 0);
    assert_true(fabsf(dw[0] - 9) < 1e-6f); /* gradients accumulate */
    ddp_zero_gradients(g);
    assert_true(dw[0] == 0);
    ddp_graph_free(g);
}

/* 0 embed, 1 hidden, 2 hidden.1 (no parameters), 3 head (tied to 0), 4 after the loss */
static ddp_node *tied_model(ddp_graph *g, ddp_node **table)
{
    ddp_node *t = ddp_input(g, "tokens", DDP_I32, 1, 4), *y = ddp_input(g, "y", DDP_F32, 4, 3), *x;
    ddp_node *loss;

    ddp_layer_begin(g, "embed");
    *table = lookup(g, t, 3, 5);
    ddp_layer_end(g);
    ddp_layer_begin(g, "hidden");
    x = op1(g, "custom_relu", op1(g, "my_linear", *table, 5), 0);
    ddp_layer_end(g);
    ddp_layer_begin(g, "hidden");
    x = op1(g, "my_tanh", x, 0);
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = ddp_apply(g, "my_tied", 1, &x, 0, NULL, *table);
    loss = op2(g, "my_square", x, y);
    ddp_layer_end(g);
    ddp_layer_begin(g, "probe");
    op1(g, "my_linear", x, 2);
    ddp_layer_end(g);
    return loss;
}

static void tied_layer_is_ready_after_its_last_use(void **unused)
{
    fake_ctx f;
    ddp_graph *g = graph_with_ops(fake_open(&f));
    ddp_node *table, *loss = tied_model(g, &table);
    static const int32_t tokens[4] = {0, 2, 2, 1};
    size_t count;
    int i;

    (void)unused;
    assert_int_equal(ddp_graph_build(g), 0);
    assert_string_equal(f.log, "embed hidden hidden.1 head probe ");
    assert_int_equal(f.count[0], 15);
    assert_int_equal(f.count[1], 30);
    assert_int_equal(f.count[2], 0);
    assert_int_equal(f.count[3], 0); /* the tied array belongs to its owner's layer */
    assert_true(fabs(f.flops[1] - 2.0 * 4 * 5 * 5) < 1e-9);
    assert_int_equal(ddp_param_count(g), 15 + 30 + 12 - 4);
    assert_ptr_equal(ddp_layer_gradients(g, 0, &count), f.grads[0]);
    assert_ptr_equal(ddp_node_param(g, table, 0, NULL), ddp_layer_params(g, 0, &count));

    f.log[0] = 0;
    memcpy(ddp_data(g, "tokens"), tokens, sizeof tokens);
    assert_int_equal(ddp_forward(g), 0);
    assert_string_equal(f.log, "F0 F1 F2 F3 F4 ");
    f.log[0] = 0;
    assert_int_equal(ddp_backward(g, loss), 0);
    assert_string_equal(f.log, "B4 E4 B3 E3 B2 E2 B1 E1 B0 E0 ");
    for (i = 0; i < 2; i++) assert_memory_equal(f.seen[i], f.grads[i], 15 * sizeof(float));
    f.log[0] = 0;
    assert_int_equal(ddp_evaluate(g), 0);
    assert_string_equal(f.log, "");
    fake_close(&f);
}

/* Compares the derivative d with central differences of the loss in n values. */
static void check_slope(ddp_graph *g, ddp_node *loss, float *w, const float *d, int n)
{
    int i;

    for (i = 0; i < n; i++) {
        float keep = w[i], up, down;

        w[i] = keep + 0.01f;
        assert_int_equal(ddp_evaluate(g), 0);
        up = ddp_value(g, loss);
        w[i] = keep - 0.01f;
        assert_int_equal(ddp_evaluate(g), 0);
        down = ddp_value(g, loss);
        w[i] = keep;
        assert_true(fabsf((up - down) / 0.02f - d[i]) < 1e-2f * (1 + fabsf(d[i])));
    }
}

static void tied_gradient_is_the_sum_over_its_uses(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *table, *loss = tied_model(g, &table);
    int i;

    (void)unused;
    assert_int_equal(ddp_graph_build(g), 0);
    for (i = 0; i < 4; i++) ((int32_t *)ddp_data(g, "tokens"))[i] = i % 3;
    for (i = 0; i < 12; i++) ((float *)ddp_data(g, "y"))[i] = 0.3f * (float)(i % 5);
    assert_int_equal(ddp_forward(g), 0);
    assert_int_equal(ddp_backward(g, loss), 0);
    check_slope(g, loss, ddp_node_param(g, table, 0, NULL), ddp_node_gradient(g, table, 0), 15);
    ddp_graph_free(g);
}

/* In a step of two micro-batches, the gradients of the owner and of the tied use are summed separately,
 * and added once at the end. */
static void gradients_of_tied_uses_are_summed_separately(void **unused)
{
    float use[15], own[15];
    fake_ctx f[2];

    (void)unused;
    for (int run = 0; run < 2; run++) {
        ddp_graph *g = graph_with_ops(fake_open(&f[run]));
        ddp_node *table, *loss = tied_model(g, &table);
        int tied = -1;
        assert_int_equal(ddp_graph_build(g), 0);
        for (int i = 0; i < ddp__count(g->node); i++)
            if (g->node[i]->tied == ddp_node_index(table)) tied = i;
        for (int pass = 0; pass < 2; pass++) {
            for (int i = 0; i < 4; i++) ((int32_t *)ddp_data(g, "tokens"))[i] = (i + pass) % 3;
            for (int i = 0; i < 12; i++) ((float *)ddp_data(g, "y"))[i] = 0.31f * (float)((i + 2 * pass) % 5);
            f[run].more = run == 0 || pass == 0;
            assert_int_equal(ddp_forward(g), 0);
            assert_int_equal(ddp_backward(g, loss), 0);
        }
        for (int i = 0; i < 15; i++) {
            const float got = ddp_node_gradient(g, table, 0)[i];
            if (run == 0) {
                use[i] = g->node[tied]->grad[0][i];
                own[i] = got;
            } else
                assert_true(got == use[i] + own[i] && got != own[i]);
        }
        if (run) assert_true(g->node[tied]->grad[0][0] == 0); /* the next step starts from zero */
        fake_close(&f[run]);
    }
}

static void gradients_of_all_consumers_are_added(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 5, 7), *y = ddp_input(g, "y", DDP_F32, 5, 7), *l, *a, *b;
    ddp_node *loss;

    (void)unused;
    ddp_layer_begin(g, "only");
    l = op1(g, "my_linear", x, 7);
    a = op2(g, "my_add", l, l); /* used twice by one operator */
    b = op1(g, "my_tanh", l, 0);
    a = op2(g, "my_add", a, op2(g, "my_add", b, op1(g, "my_linear", l, 7)));
    loss = op2(g, "my_square", a, y);
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_build(g), 0);
    one_pass(g, loss);
    check_slope(g, loss, ddp_node_param(g, l, 0, NULL), ddp_node_gradient(g, l, 0), 49);
    check_slope(g, loss, ddp_node_param(g, l, 1, NULL), ddp_node_gradient(g, l, 1), 7);
    ddp_graph_free(g);
}

static void operators_can_borrow_a_weight(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 2, 3), *a, *b;
    double width = 3;

    (void)unused;
    ddp_layer_begin(g, "first");
    a = op1(g, "my_linear", x, 3);
    ddp_layer_end(g);
    ddp_layer_begin(g, "second");
    b = ddp_apply(g, "my_linear", 1, &a, 1, &width, a);
    b = ddp_apply(g, "my_linear", 1, &b, 1, &width, b); /* borrows from a borrower: the same owner */
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_build(g), 0);
    assert_ptr_equal(ddp_node_param(g, b, 0, NULL), ddp_node_param(g, a, 0, NULL));
    assert_ptr_not_equal(ddp_node_param(g, b, 1, NULL), ddp_node_param(g, a, 1, NULL));
    assert_int_equal(ddp_param_count(g), 9 + 3 * 3);
    ddp_graph_free(g);
}

static void failing_hook_stops_the_pass(void **unused)
{
    fake_ctx f;
    ddp_graph *g = graph_with_ops(fake_open(&f));
    ddp_node *table, *loss = tied_model(g, &table);

    (void)unused;
    assert_int_equal(ddp_graph_build(g), 0);
    strcpy(f.refuse, "F2 ");
    f.log[0] = 0;
    assert_int_equal(ddp_forward(g), DDP_NET);
    assert_string_equal(f.log, "F0 F1 F2 ");
    strcpy(f.refuse, "E1 ");
    assert_int_equal(ddp_forward(g), 0);
    f.log[0] = 0;
    assert_int_equal(ddp_backward(g, loss), DDP_NET);
    assert_string_equal(f.log, "B4 E4 B3 E3 B2 E2 B1 E1 ");
    fake_close(&f);
}

static void passes_allocate_nothing(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *table, *loss = tied_model(g, &table);
    long before;

    (void)unused;
    assert_int_equal(ddp_graph_build(g), 0);
    before = g_allocations;
    assert_int_equal(ddp_forward(g), 0);
    assert_int_equal(ddp_backward(g, loss), 0);
    assert_int_equal(ddp_evaluate(g), 0);
    assert_int_equal(g_allocations, before);
    ddp_graph_free(g);
}

static void memory_sharing_is_bit_identical(void **unused)
{
    int trial, shared = 0;

    (void)unused;
    for (trial = 0; trial < 300; trial++) {
        ddp_rng r = ddp_rng_seed(11, (uint64_t)trial);
        ddp_graph *g = graph_with_ops(NULL);
        ddp_node *loss = random_model(g, &r, 3 + trial % 40, 0, NULL);
        ddp_state *own;
        float *a, *b, value;
        size_t bytes;

        assert_int_equal(ddp_graph_build(g), 0);
        own = ddp__state_open(g, &g->plain);
        own->pass = g->state->pass;
        memset(g->state->arena[DDP__ARENA_OWN], 0xff, g->reuse.bytes[DDP__ARENA_OWN]); /* NaN everywhere */
        memset(own->arena[DDP__ARENA_OWN], 0xff, g->plain.bytes[DDP__ARENA_OWN]);
        one_pass(g, loss);
        value = ddp_value(g, loss);
        a = all_gradients(g, &bytes);
        assert_true(ddp_activation_bytes(g) <= g->plain.bytes[DDP__ARENA_OWN]);
        assert_true(g->reuse.bytes[DDP__ARENA_OWN] >= g->reuse.live_bytes);
        shared += g->reuse.bytes[DDP__ARENA_OWN] < g->plain.bytes[DDP__ARENA_OWN];

        ddp_state_free(g->state);
        g->state = own;
        one_pass(g, loss);
        b = all_gradients(g, &bytes);
        assert_memory_equal(a, b, bytes);
        assert_true(isfinite(value) && !(value < ddp_value(g, loss)) && !(value > ddp_value(g, loss)));
        free(a);
        free(b);
        ddp_graph_free(g);
    }
    assert_true(shared > 280);
}

/* Copies outputs (what = 0) or gradients (what = 1) of nodes up to last that later nodes use. */
static void carry(ddp_graph *g, ddp_state *from, ddp_state *to, int last, int what)
{
    int i, j, k;

    for (i = 0; i <= last; i++)
        for (j = last + 1; j < ddp__count(g->node); j++)
            for (k = 0; k < g->node[j]->spec.inputs; k++) {
                const ddp_node *n = g->node[i];
                size_t bytes = (size_t)ddp_shape_count(&n->spec.out) * sizeof(float);

                if (g->node[j]->input[k] != i) continue;
                if (what)
                    memcpy(ddp_state_gradient(to, n), ddp_state_gradient(from, n), bytes);
                else
                    memcpy(ddp_state_data(to, n), ddp_state_data(from, n), bytes);
            }
}

static void three_ranges_on_three_states_equal_the_whole(void **unused)
{
    int trial, k;

    (void)unused;
    for (trial = 0; trial < 100; trial++) {
        ddp_rng r = ddp_rng_seed(12, (uint64_t)trial), ends = ddp_rng_seed(13, (uint64_t)trial);
        ddp_graph *g = graph_with_ops(NULL);
        ddp_node *loss = random_model(g, &r, 6 + trial % 40, 0, trial % 2 ? &ends : NULL);
        ddp_state *s[3];
        int n, cut[4];
        float *a, *b;
        size_t bytes;

        assert_int_equal(ddp_graph_build(g), 0);
        n = ddp_node_count(g);
        cut[0] = 0;
        cut[1] = 2 + (int)ddp_rng_below(&r, (uint64_t)n / 2 - 1);
        cut[2] = cut[1] + 1 + (int)ddp_rng_below(&r, (uint64_t)(n - cut[1] - 1));
        cut[3] = n;
        one_pass(g, loss);
        a = all_gradients(g, &bytes);
        ddp_zero_gradients(g);

        for (k = 0; k < 3; k++) {
            s[k] = ddp_state_new(g);
            assert_non_null(s[k]);
            ddp_state_micro_batch(s[k], 1); /* the micro-batch number of the built-in state's first pass */
        }
        fill_inputs((float *)ddp_state_data(s[0], g->node[1]), (float *)ddp_state_data(s[0], g->node[0]));
        for (k = 0; k < 3; k++) {
            if (k) carry(g, s[k - 1], s[k], cut[k] - 1, 0);
            assert_int_equal(ddp_forward_range(s[k], cut[k], cut[k + 1] - 1), 0);
        }
        assert_memory_equal(ddp_state_data(s[2], loss), ddp_output(g, loss), sizeof(float));
        for (k = 2; k >= 0; k--) {
            if (k < 2) carry(g, s[k + 1], s[k], cut[k + 1] - 1, 1);
            assert_int_equal(ddp_backward_range(s[k], cut[k], cut[k + 1] - 1), 0);
        }
        b = all_gradients(g, &bytes);
        assert_memory_equal(a, b, bytes);
        for (k = 0; k < 3; k++) ddp_state_free(s[k]);
        free(a);
        free(b);
        ddp_graph_free(g);
    }
}

static void ranges_give_the_gradient_of_a_fed_input(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 1, 2), *y;
    ddp_state *s;
    float *dx;

    (void)unused;
    ddp_layer_begin(g, "stage");
    y = op1(g, "custom_relu", x, 0);
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_build(g), 0);
    s = ddp_state_new(g);
    ((float *)ddp_state_data(s, x))[0] = 2;
    ((float *)ddp_state_data(s, x))[1] = -2;
    ((float *)ddp_state_gradient(s, y))[0] = 3;
    ((float *)ddp_state_gradient(s, y))[1] = 4;
    assert_int_equal(ddp_forward_range(s, 0, 1), 0);
    assert_int_equal(ddp_backward_range(s, 0, 1), 0);
    dx = (float *)ddp_state_gradient(s, x);
    assert_true(fabsf(dx[0] - 3) < 1e-6f && fabsf(dx[1] - 0.4f) < 1e-6f);
    ddp_state_free(s);
    ddp_graph_free(g);
}

static void dropout_repeats_in_backward_and_changes_per_step(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 8, 32), *y = ddp_input(g, "y", DDP_F32, 8, 32), *d, *loss;
    ddp_node *l;
    float first[256], *db;
    int i, dropped;

    (void)unused;
    ddp_layer_begin(g, "only");
    l = op1(g, "my_linear", x, 32); /* zero weights: the output equals the bias, which is 1 */
    d = op1(g, "my_drop", l, 0);
    loss = op2(g, "my_square", d, y);
    ddp_layer_end(g);
    ddp_init_scale(g, l, 0, 0);
    assert_int_equal(ddp_graph_build(g), 0);
    for (i = 0; i < 32; i++) ddp_node_param(g, l, 1, NULL)[i] = 1;
    assert_int_equal(ddp_forward(g), 0);
    memcpy(first, ddp_output(g, d), sizeof first);
    assert_int_equal(ddp_backward(g, loss), 0);
    db = ddp_node_gradient(g, l, 1);
    for (i = 0; i < 32; i++) { /* the loss is mask^2 / 2 at bias 1, so db is the sum of squares of the mask */
        float want = 0;
        int row;

        for (row = 0; row < 8; row++) want += first[row * 32 + i] * first[row * 32 + i];
        assert_true(fabsf(db[i] - want) < 1e-4f);
    }
    for (i = dropped = 0; i < 256; i++) dropped += first[i] < 0.5f;
    assert_in_range(dropped, 32, 96);
    assert_int_equal(ddp_forward(g), 0);
    assert_memory_not_equal(first, ddp_output(g, d), sizeof first);
    assert_int_equal(ddp_evaluate(g), 0);
    for (i = 0; i < 256; i++) assert_true(fabsf(ddp_output(g, d)[i] - 1) < 1e-6f);
    ddp_graph_free(g);
}

static void initialisation_depends_on_seed_and_position_only(void **unused)
{
    fake_ctx f[3];
    ddp_graph *g[3];
    ddp_node *table;
    ddp__pool *pool = ddp__pool_open(2);
    size_t n;
    int i, l;

    (void)unused;
    for (i = 0; i < 3; i++) {
        g[i] = graph_with_ops(fake_open(&f[i]));
        f[i].host.seed = i < 2 ? 9 : 10;
        f[i].host.pool = i == 1 ? pool : NULL;
        tied_model(g[i], &table);
        assert_int_equal(ddp_graph_build(g[i]), 0);
    }
    for (l = 0; l < ddp_layer_count(g[0]); l++) {
        const float *a = ddp_layer_params(g[0], l, &n), *b = ddp_layer_params(g[1], l, &n);
        const float *c = ddp_layer_params(g[2], l, &n);

        if (!n) continue;
        assert_memory_equal(a, b, n * sizeof *a);
        assert_memory_not_equal(a, c, n * sizeof *a);
    }
    for (i = 0; i < 3; i++) fake_close(&f[i]);
    ddp__pool_close(pool);
}

/* The operators of one transformer layer, by shape. */
static ddp_node *transformer_layer(ddp_graph *g, ddp_node *x, double c)
{
    ddp_node *h = op1(g, "my_linear", op1(g, "custom_relu", x, 0), 3 * c);

    h = op1(g, "my_linear", op1(g, "custom_relu", h, 0), c);
    x = op2(g, "my_add", x, h);
    h = op1(g, "my_linear", op1(g, "custom_relu", x, 0), 4 * c);
    h = op1(g, "my_drop", op1(g, "my_linear", op1(g, "custom_relu", h, 0), c), 0);
    return op2(g, "my_add", x, h);
}

static void stack_layers(ddp_graph *g, int layers, long rows, double c, double vocabulary)
{
    ddp_node *x = ddp_input(g, "x", DDP_F32, rows, (long)c);
    ddp_node *y = ddp_input(g, "y", DDP_F32, rows, (long)vocabulary);
    int l;

    for (l = 0; l < layers; l++) {
        ddp_layer_begin(g, "h");
        x = transformer_layer(g, x, c);
        ddp_layer_end(g);
    }
    ddp_layer_begin(g, "head");
    op2(g, "my_square", op1(g, "my_linear", x, vocabulary), y);
    ddp_layer_end(g);
}

static void too_large_model_can_be_planned(void **unused)
{
    ddp_graph *g;
    ddp_node_info info;
    double flops = 0, t = ddp_now();
    size_t arena;
    int i;

    (void)unused;
    g_bytes = 0;
    g = graph_with_ops(NULL);
    stack_layers(g, 48, 1024 * 1024, 1600, 50257);
    assert_int_equal(ddp_graph_error(g)->code, 0);
    for (i = 0; i < ddp_node_count(g); i++) {
        assert_int_equal(ddp_node_describe(g, i, &info), 0);
        flops += info.flops;
    }
    t = ddp_now() - t;
    assert_true(g_bytes < 1024 * 1024);
    assert_string_equal(info.layer, "head");
    assert_int_equal(info.layer_index, 48);
    assert_int_equal(info.input[0], ddp_node_count(g) - 2);
    assert_int_equal(ddp_param_count(g), 48L * (14 * 1600 * 1600 + 9 * 1600) + 50257L * 1601);
    assert_true(fabs(flops / (2.0 * 1024 * 1024 * 1600 * (48 * 1600.0 * 14 + 50257)) - 1) < 1e-9);
    arena = ddp_activation_bytes(g);
    print_message("48 layers: %d nodes, %.2f ms, %zu KB of bookkeeping; a state would need %zu GB\n",
                  ddp_node_count(g), 1e3 * t, g_bytes / 1024, arena >> 30);
    assert_int_equal(ddp_node_describe(g, -1, &info), DDP_ARG);
    ddp_graph_free(g);
}

static void *refuse_all(void *user, size_t bytes)
{
    (void)user;
    (void)bytes;
    return NULL;
}

static void refuse_free(void *user, void *p, size_t bytes)
{
    (void)user;
    (void)p;
    (void)bytes;
}

/* malloc would overcommit such memory, and the kernel would kill the process while it is zeroed. */
static void too_large_graph_fails_with_a_remedy(void **unused)
{
    static const char *const remedy[] = {"use a smaller batch, or recompute the blocks", "activations",
                                         "use a smaller model"};
    const double total = ddp__memory_total();
    fake_ctx f;
    int k;

    (void)unused;
    if (total <= 0) SKIP("the size of the memory is unknown");
    assert_true(total > 64e6 && total < 1e15);
    for (k = 0; k < 4; k++) {
        ddp_graph *g = graph_with_ops(k == 3 ? fake_open(&f) : NULL);
        const long rows = k == 2 ? 1 : (long)(total / 4096);
        char bytes[64];

        if (k == 3) {
            f.host.allocator.alloc = refuse_all;
            f.host.allocator.free = refuse_free;
        }
        if (k == 1) ddp_recompute_begin(g);
        stack_layers(g, 1, rows, k == 2 ? floor(sqrt(total / 40)) : 1024, 8);
        if (k == 1) ddp_recompute_end(g);
        g_bytes = 0;
        assert_int_equal(ddp_graph_build(g), DDP_MEMORY);
        assert_true(g_bytes < 1 << 20);
        assert_null(ddp_layer_params(g, 0, NULL));
        snprintf(bytes, sizeof bytes, "needs %.0f bytes",
                 (double)ddp_activation_bytes(g) + 8 * (double)ddp_param_count(g));
        if (!strstr(ddp_graph_error(g)->msg, bytes) || !strstr(ddp_graph_error(g)->msg, remedy[k % 3]))
            fail_msg("%d: %s", k, ddp_graph_error(g)->msg);
        assert_int_equal(strstr(ddp_graph_error(g)->msg, "this process may use") != NULL, k < 3);
        if (k == 1) assert_null(strstr(ddp_graph_error(g)->msg, "recompute"));
        if (k < 2) print_message("%s\n", ddp_graph_error(g)->msg);
        if (k == 3)
            fake_close(&f);
        else
            ddp_graph_free(g);
    }
}

static void thousand_layers_build_with_little_waste(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL);
    double t = ddp_now();
    size_t logits;

    (void)unused;
    stack_layers(g, 1000, 3, 4, 600);
    assert_int_equal(ddp_graph_build(g), 0);
    t = ddp_now() - t;
    logits = 3 * 600 * sizeof(float);
    print_message("1000 layers: %d nodes in %.1f ms; arena %zu bytes, bound %zu, unshared %zu\n",
                  ddp_node_count(g), 1e3 * t, g->reuse.bytes[DDP__ARENA_OWN], g->reuse.live_bytes,
                  g->plain.bytes[DDP__ARENA_OWN]);
    assert_true((double)g->reuse.bytes[DDP__ARENA_OWN] <= 1.05 * (double)g->reuse.live_bytes);
    assert_true(g->plain.bytes[DDP__ARENA_OWN] > g->reuse.bytes[DDP__ARENA_OWN] + logits);
    /* the gradient of the logits shares their memory */
    assert_int_equal(g->reuse.gradient[ddp__count(g->node) - 2], g->reuse.out[ddp__count(g->node) - 2]);
    ddp_graph_free(g);
}

static void expect_error(ddp_graph *g, ddp_status code, const char *part)
{
    assert_int_equal(ddp_graph_build(g), code);
    if (!strstr(ddp_graph_error(g)->msg, part))
        fail_msg("\"%s\" lacks \"%s\"", ddp_graph_error(g)->msg, part);
    assert_int_equal(ddp_forward(g), code); /* the error is sticky */
    ddp_graph_free(g);
}

static void build_mistakes_are_named(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL), *h = graph_with_ops(NULL);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 32, 64), *b = ddp_input(g, "y", DDP_F32, 1, 3), *in[5];
    double arg = 1;
    int i;

    (void)unused;
    ddp_layer_begin(g, "body");
    assert_null(op2(g, "my_add", x, b));
    assert_null(op1(g, "custom_relu", op1(g, "my_linear", NULL, 3), 0)); /* NULL passes through */
    expect_error(g, DDP_ARG, "layer \"body\", operator my_add with inputs (32, 64) and (1, 3): the two");

    x = ddp_input(h, "x", DDP_F32, 2, 2);
    op1(h, "my_linear", x, 3);
    expect_error(h, DDP_USAGE, "my_linear (node 1) has parameters but is outside layers");

    g = graph_with_ops(NULL);
    ddp_layer_begin(g, "a");
    ddp_layer_begin(g, "b");
    expect_error(g, DDP_USAGE, "layer \"b\" begins inside layer \"a\"");

    g = graph_with_ops(NULL);
    ddp_layer_begin(g, "a");
    ddp_layer_end(g);
    expect_error(g, DDP_USAGE, "layer \"a\" has no operators");

    g = graph_with_ops(NULL);
    ddp_layer_begin(g, "a");
    op1(g, "custom_relu", ddp_input(g, "x", DDP_F32, 2, 2), 0);
    expect_error(g, DDP_USAGE, "layer \"a\" is still open");

    g = graph_with_ops(NULL);
    x = ddp_input(g, "x", DDP_F32, 2, 2);
    for (i = 0; i <= 16384 && !ddp_graph_error(g)->code; i++) {
        ddp_layer_begin(g, "a");
        x = op1(g, "custom_relu", x, 0);
        ddp_layer_end(g);
    }
    assert_int_equal(i, 16385);
    expect_error(g, DDP_ARG, "layer \"a\" would be number 16385, but a graph has at most 16384 layers");

    g = graph_with_ops(NULL);
    ddp_recompute_begin(g);
    op1(g, "custom_relu", ddp_input(g, "x", DDP_F32, 2, 2), 0);
    ddp_recompute_begin(g);
    expect_error(g, DDP_USAGE, "ddp_recompute_begin inside a segment: call ddp_recompute_end");

    g = graph_with_ops(NULL);
    ddp_recompute_end(g);
    expect_error(g, DDP_USAGE, "ddp_recompute_end without ddp_recompute_begin");

    g = graph_with_ops(NULL);
    ddp_recompute_begin(g);
    ddp_input(g, "x", DDP_F32, 2, 2);
    ddp_recompute_end(g);
    expect_error(g, DDP_USAGE, "a segment to recompute has no operators");

    g = graph_with_ops(NULL);
    ddp_recompute_begin(g);
    op1(g, "custom_relu", ddp_input(g, "x", DDP_F32, 2, 2), 0);
    expect_error(g, DDP_USAGE, "a segment to recompute is still open");

    g = graph_with_ops(NULL);
    op1(g, "no_such", ddp_input(g, "x", DDP_F32, 2, 2), 0);
    expect_error(g, DDP_ARG, "operator no_such outside layers: no such operator");

    g = graph_with_ops(NULL);
    ddp_register_op(g, &user_ops[0]);
    expect_error(g, DDP_ARG, "an operator \"my_linear\" exists already");

    g = graph_with_ops(NULL);
    ddp_input(g, "x", DDP_F32, 2, 2);
    ddp_input(g, "x", DDP_F32, 2, 2);
    expect_error(g, DDP_ARG, "input \"x\" exists already");

    g = graph_with_ops(NULL);
    ddp_input(g, "x", DDP_F32, 2, 0);
    expect_error(g, DDP_ARG, "the shape (2, 0)");

    g = graph_with_ops(NULL);
    h = graph_with_ops(NULL);
    op1(g, "custom_relu", ddp_input(h, "x", DDP_F32, 2, 2), 0);
    expect_error(g, DDP_ARG, "input 0 is a node of another graph");
    expect_error(h, DDP_USAGE, "no operators");

    g = graph_with_ops(NULL);
    in[0] = in[1] = in[2] = in[3] = in[4] = ddp_input(g, "x", DDP_F32, 2, 2);
    ddp_apply(g, "my_add", 5, in, 1, &arg, NULL);
    expect_error(g, DDP_ARG, "5 inputs given");

    g = graph_with_ops(NULL);
    ddp_layer_begin(g, "a");
    x = lookup(g, ddp_input(g, "t", DDP_I32, 2, 2), 5, 3);
    ddp_apply(g, "my_linear", 1, &x, 1, &arg, x);
    expect_error(g, DDP_ARG, "the tied node's parameter 0 has another shape");
}

static void run_mistakes_are_named(void **unused)
{
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *table, *loss = tied_model(g, &table);

    (void)unused;
    assert_null(ddp_state_new(g));
    assert_null(ddp_data(g, "tokens"));
    assert_int_equal(ddp_graph_build(g), 0);
    assert_null(ddp_data(g, "nothing"));
    assert_int_equal(ddp_forward(g), 0);
    assert_int_equal(ddp_backward(g, loss), 0);
    assert_int_equal(ddp_backward(g, loss), DDP_USAGE);
    assert_non_null(strstr(ddp_graph_error(g)->msg, "call ddp_forward before each"));
    ddp_graph_free(g);

    g = graph_with_ops(NULL);
    tied_model(g, &table);
    assert_int_equal(ddp_forward(g), DDP_USAGE);
    ddp_graph_free(g);
    g = graph_with_ops(NULL);
    tied_model(g, &table);
    assert_int_equal(ddp_graph_build(g), 0);
    assert_int_equal(ddp_backward(g, table), DDP_USAGE);
    assert_non_null(strstr(ddp_graph_error(g)->msg, "not a scalar"));
    ddp_graph_free(g);

    ddp_recompute_begin(NULL);
    ddp_recompute_end(NULL);
    ddp_graph_free(NULL);
    ddp_state_free(NULL);
    assert_int_equal(ddp_graph_build(NULL), DDP_MEMORY);
    assert_null(ddp_linear(NULL, NULL, 3));
    assert_true(isnan(ddp_value(NULL, NULL)));
}

static void repeated_layer_names_get_numbers(void **unused)
{
    static const char *const given[] = {"hidden", "hidden.1", "hidden", "hidden", "out"};
    static const char *const got[] = {"hidden", "hidden.1", "hidden.2", "hidden.3", "out"};
    ddp_graph *g = graph_with_ops(NULL);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 2, 2);
    ddp_node_info info;
    int i;

    (void)unused;
    for (i = 0; i < 5; i++) {
        ddp_layer_begin(g, given[i]);
        x = op1(g, "custom_relu", x, 0);
        ddp_layer_end(g);
        assert_int_equal(ddp_node_describe(g, ddp_node_index(x), &info), 0);
        assert_string_equal(info.layer, got[i]);
    }
    ddp_graph_free(g);
}

static void context_frees_its_graphs_unless_the_user_did(void **unused)
{
    fake_ctx f;
    ddp_graph *a = ddp_graph_new(fake_open(&f)), *b = ddp_graph_new((ddp_ctx *)(void *)&f);
    ddp_graph *c = ddp_graph_new((ddp_ctx *)(void *)&f);

    (void)unused;
    ddp_graph_free(b);
    assert_ptr_equal(f.host.owned, &c->owned);
    assert_ptr_equal(c->owned.next, &a->owned);
    assert_null(a->owned.next);
    fake_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(user_operator_matches_values_computed_by_hand),
                                       cmocka_unit_test(tied_layer_is_ready_after_its_last_use),
                                       cmocka_unit_test(tied_gradient_is_the_sum_over_its_uses),
                                       cmocka_unit_test(gradients_of_tied_uses_are_summed_separately),
                                       cmocka_unit_test(gradients_of_all_consumers_are_added),
                                       cmocka_unit_test(operators_can_borrow_a_weight),
                                       cmocka_unit_test(failing_hook_stops_the_pass),
                                       cmocka_unit_test(passes_allocate_nothing),
                                       cmocka_unit_test(memory_sharing_is_bit_identical),
                                       cmocka_unit_test(three_ranges_on_three_states_equal_the_whole),
                                       cmocka_unit_test(ranges_give_the_gradient_of_a_fed_input),
                                       cmocka_unit_test(dropout_repeats_in_backward_and_changes_per_step),
                                       cmocka_unit_test(initialisation_depends_on_seed_and_position_only),
                                       cmocka_unit_test(too_large_model_can_be_planned),
                                       cmocka_unit_test(too_large_graph_fails_with_a_remedy),
                                       cmocka_unit_test(thousand_layers_build_with_little_waste),
                                       cmocka_unit_test(build_mistakes_are_named),
                                       cmocka_unit_test(run_mistakes_are_named),
                                       cmocka_unit_test(repeated_layer_names_get_numbers),
                                       cmocka_unit_test(context_frees_its_graphs_unless_the_user_did)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
