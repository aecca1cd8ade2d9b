/* [asan] Muon: bit-identical to plain loops, the matrices of a graph, and training that is bit-identical
 * with any strategy, transport and number of threads. */
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
#include "strategy/strategy_lab.h"

static float *some(size_t n, uint64_t seed)
{
    float *x = (float *)calloc(n, sizeof *x);
    ddp_rng r = ddp_rng_seed(31, seed);

    for (size_t i = 0; i < n; i++) x[i] = (float)ddp_rng_normal(&r);
    return x;
}

/* ---- reference: products and sums in a fixed order ---- */

static float times(float a, float b)
{
    volatile float p = a * b;
    return p;
}

static float plus(float a, float b)
{
    volatile float s = a + b;
    return s;
}

/* x (m x n) after one step; a, b: [m x m]. */
static void plain_step(float *x, float *next, float *a, float *b, size_t m, size_t n)
{
    size_t i, j, k;

    for (i = 0; i < m; i++)
        for (j = 0; j < m; j++)
            for (a[i * m + j] = 0, k = 0; k < n; k++)
                a[i * m + j] = plus(a[i * m + j], times(x[i * n + k], x[j * n + k]));
    for (i = 0; i < m; i++)
        for (j = 0; j < m; j++)
            for (b[i * m + j] = 0, k = 0; k < m; k++)
                b[i * m + j] = plus(b[i * m + j], times(a[i * m + k], a[k * m + j]));
    for (i = 0; i < m * m; i++) b[i] = plus(times(-4.7750f, a[i]), times(2.0315f, b[i]));
    for (i = 0; i < m; i++)
        for (j = 0; j < n; j++)
            for (next[i * n + j] = times(3.4445f, x[i * n + j]), k = 0; k < m; k++)
                next[i * n + j] = plus(next[i * n + j], times(b[i * m + k], x[k * n + j]));
    memcpy(x, next, m * n * sizeof *x);
}

static void plain_muon(float *w, const float *g, float *v, size_t rows, size_t columns, float rate,
                       float decay)
{
    const size_t m = rows < columns ? rows : columns, n = rows < columns ? columns : rows,
                 count = rows * columns;
    const int turned = rows > columns;
    const float gain = 1 - 0.95f;
    float *u = (float *)calloc(count, 4), *x = (float *)calloc(count, 4), *next = (float *)calloc(count, 4);
    float *a = (float *)calloc(m * m, 4), *b = (float *)calloc(m * m, 4), norm;
    size_t i;

    for (i = 0; i < count; i++) {
        v[i] = plus(times(0.95f, v[i]), times(gain, g[i]));
        u[i] = plus(times(0.95f, v[i]), times(gain, g[i]));
    }
    norm = (float)(1 / sqrt(ddp__sum_squares(u, count)));
    for (i = 0; i < count; i++) x[turned ? i % columns * rows + i / columns : i] = times(u[i], norm);
    for (int step = 0; step < 5; step++) plain_step(x, next, a, b, m, n);
    for (i = 0; i < count; i++) {
        const float direction = x[turned ? i % columns * rows + i / columns : i];
        const double scale = turned ? sqrt((double)rows / (double)columns) : 1;
        w[i] = plus(times((float)(1 - (double)rate * (double)decay), w[i]),
                    times((float)(-(double)rate * scale), direction));
    }
    free(u);
    free(x);
    free(next);
    free(a);
    free(b);
}

/* One update by the library. threads 0: only the calling thread. */
static void library_muon(float *w, const float *g, float *v, size_t rows, size_t columns, int threads)
{
    const ddp_optimizer o = ddp_muon(0.25f, 0.5f, 0.95f, 0.125f);
    ddp__muon_desk desk;
    ddp_update u;

    desk.at = (float *)calloc(ddp__muon_room(rows, columns), 4);
    desk.pool = threads ? ddp__pool_open(threads) : NULL;
    memset(&u, 0, sizeof u);
    u.params = w;
    u.grads = g;
    u.state = v;
    u.count = rows * columns;
    u.lr = o.lr;
    u.rows = rows;
    u.columns = columns;
    u.desk = &desk;
    o.update(&o, &u);
    ddp__pool_close(desk.pool);
    free(desk.at);
}

static void products_are_summed_in_order(void **state)
{
    static const size_t size[][2] = {{1, 1},   {1, 9},   {9, 1},    {5, 7},    {7, 5},   {16, 16},
                                     {17, 33}, {33, 17}, {20, 300}, {300, 20}, {70, 261}};

    (void)state;
    for (size_t s = 0; s < sizeof size / sizeof size[0]; s++) {
        const size_t n = size[s][0] * size[s][1];
        float *w = some(n, 1), *v = some(n, 2), *g = some(n, 3), *want = some(n, 1), *want_v = some(n, 2);
        float *w3 = some(n, 1), *v3 = some(n, 2);
        library_muon(w, g, v, size[s][0], size[s][1], 0);
        library_muon(w3, g, v3, size[s][0], size[s][1], 3);
        plain_muon(want, g, want_v, size[s][0], size[s][1], 0.5f, 0.125f);
        assert_memory_equal(v, want_v, n * sizeof *v);
        assert_memory_equal(w, want, n * sizeof *w);
        assert_memory_equal(w, w3, n * sizeof *w);
        free(w);
        free(v);
        free(g);
        free(want);
        free(want_v);
        free(w3);
        free(v3);
    }
}

/* All singular values of the direction are near 1, so its scaled rows are nearly orthogonal. */
static void direction_is_nearly_orthogonal(void **state)
{
    enum { ROWS = 12, COLUMNS = 40 };
    float *w = (float *)calloc(ROWS * COLUMNS, 4), *v = (float *)calloc(ROWS * COLUMNS, 4),
          *g = some(ROWS * COLUMNS, 5);

    (void)state;
    library_muon(w, g, v, ROWS, COLUMNS, 0);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j <= i; j++) {
            double dot = 0;
            for (int k = 0; k < COLUMNS; k++)
                dot += (double)w[i * COLUMNS + k] * (double)w[j * COLUMNS + k] * 4;
            assert_true(i == j ? dot > 0.4 && dot < 1.6 : fabs(dot) < 0.45);
        }
    free(w);
    free(v);
    free(g);
}

static void zero_gradient_only_decays_the_weights(void **state)
{
    float w[6] = {8, 8, 8, 8, 8, 8}, v[6] = {0}, g[6] = {0};

    (void)state;
    library_muon(w, g, v, 2, 3, 0);
    for (int i = 0; i < 6; i++) assert_true(w[i] == 7.5f && v[i] == 0.0f);
}

/* ---- the matrices of a graph ---- */

typedef struct seen {
    size_t shape[40][2], others;
    int n;
} seen;

static void look(const ddp_optimizer *self, const ddp_update *u)
{
    seen *x = (seen *)self->user;

    if (u->rows) {
        assert_int_equal(u->rows * u->columns, u->count);
        x->shape[x->n][0] = u->rows;
        x->shape[x->n++][1] = u->columns;
    } else {
        x->others += u->count;
    }
}

/* Runs one step of a graph model with a rule that only records shapes. */
static void look_at(seen *x, ddp_node *(*model)(ddp_graph *))
{
    ddp_config c;
    ddp_ctx *d;
    ddp_optimizer o;
    ddp_graph *g;
    ddp_node *loss;

    memset(x, 0, sizeof *x);
    memset(&c, 0, sizeof c);
    memset(&o, 0, sizeof o);
    c.no_env = 1;
    o.name = "looks";
    o.update = look;
    o.user = x;
    o.state_per_param = o.matrix_state = 1;
    d = ddp_open(&c, NULL);
    g = ddp_graph_new(d);
    loss = model(g);
    assert_int_equal(ddp_graph_build(g), 0);
    assert_int_equal(ddp_set_optimizer(d, &o), 0);
    memset(ddp_data(g, "labels"), 0, sizeof(int32_t) * 2);
    assert_int_equal(ddp_forward(g) | ddp_backward(g, loss) | ddp_step_end(d), 0);
    ddp_close(d);
}

static ddp_node *gpt2(ddp_graph *g)
{
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 11;
    c.context = 5;
    c.layers = 1;
    c.heads = 3;
    c.dim = 9;
    c.batch = 2;
    return ddp_gpt2(g, &c, NULL);
}

static ddp_node *llama2(ddp_graph *g)
{
    ddp_llama2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 11;
    c.context = 5;
    c.layers = 1;
    c.heads = 2;
    c.dim = 8;
    c.hidden = 12;
    c.batch = 2;
    return ddp_llama2(g, &c, NULL);
}

static ddp_node *picture(ddp_graph *g)
{
    const ddp_shape images = {4, {2, 3, 6, 6}};
    ddp_node *x = ddp_input_shape(g, "images", DDP_F32, &images), *y = ddp_input(g, "labels", DDP_I32, 2, 1);

    ddp_layer_begin(g, "conv");
    x = ddp_relu(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 1));
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, ddp_global_avg_pool2d(g, x), 5), y);
    ddp_layer_end(g);
    return x;
}

static int has(const seen *x, size_t rows, size_t columns)
{
    int n = 0;

    for (int i = 0; i < x->n; i++) n += x->shape[i][0] == rows && x->shape[i][1] == columns;
    return n;
}

static void graph_matrices_exclude_tables_and_heads(void **state)
{
    seen x;

    (void)state;
    look_at(&x, gpt2); /* tied: the head is the token table */
    assert_int_equal(x.n, 4);
    assert_true(has(&x, 27, 9) == 1 && has(&x, 9, 9) == 1 && has(&x, 36, 9) == 1 && has(&x, 9, 36) == 1);
    look_at(&x, llama2); /* a separate head, (11, 8) */
    assert_true(x.n >= 4 && !has(&x, 11, 8) && has(&x, 8, 12) == 1);
    look_at(&x, picture);
    assert_int_equal(x.n, 1);
    assert_int_equal(has(&x, 4, 27), 1);
    assert_int_equal(x.others, 4 + 4 * 5 + 5);
}

/* ---- user-defined layers ---- */

enum { BLOCK = 60 };

/* A layer with a block of 60 values, in which a 3 x 4 matrix begins at 7 and a 5 x 2 matrix at 30. */
static int own_layer(ddp_ctx *d, float *w, float *g, int matrices)
{
    const ddp_matrix m[] = {{w + 30, 5, 2}, {w + 7, 3, 4}}; /* in any order */
    ddp_layer layer;

    memset(&layer, 0, sizeof layer);
    layer.params = w;
    layer.grads = g;
    layer.count = BLOCK;
    layer.matrices = m;
    layer.matrix_count = matrices;
    return ddp_add_layer(d, &layer);
}

static void block_is_updated_matrix_by_matrix(void **state)
{
    static const size_t cut[] = {0, 7, 19, 30, 40, BLOCK};
    const ddp_optimizer o = ddp_muon(0.01f, 0.03f, 0.95f, 0.1f),
                        rest = ddp_adamw(0.01f, 0.9f, 0.95f, 1e-8f, 0.1f);
    float *w = some(BLOCK, 7), *want = some(BLOCK, 7), *g = some(BLOCK, 8), *given = some(BLOCK, 8);
    float s[2 * BLOCK], room[1000];
    ddp__muon_desk desk = {room, NULL};
    ddp_stats stats;
    ddp_config c;
    ddp_ctx *d;

    (void)state;
    memset(&c, 0, sizeof c);
    memset(s, 0, sizeof s);
    c.no_env = 1;
    d = ddp_open(&c, NULL);
    assert_int_equal(own_layer(d, w, g, 2) | ddp_set_optimizer(d, &o), 0);
    for (long step = 0; step < 3; step++) {
        assert_int_equal(ddp_backward_end(d, 0) | ddp_step_end(d), 0);
        memcpy(g, given, BLOCK * sizeof *g); /* ddp_step_end zeroed it */
        for (int i = 0; i < 5; i++) {
            const ddp_optimizer *rule = i % 2 ? &o : &rest;
            ddp_update u;
            memset(&u, 0, sizeof u);
            u.params = want + cut[i];
            u.grads = given + cut[i];
            u.count = cut[i + 1] - cut[i];
            u.state = s + 2 * cut[i];
            u.lr = 0.01f;
            u.step = step;
            if (i % 2) {
                u.rows = i == 1 ? 3 : 5;
                u.columns = i == 1 ? 4 : 2;
                u.desk = &desk;
            }
            rule->update(rule, &u);
        }
        assert_memory_equal(w, want, BLOCK * sizeof *w);
    }
    ddp_get_stats(d, &stats);
    assert_int_equal(stats.optimizer_bytes, (2 * (BLOCK - 22) + 22 + ddp__muon_room(3, 4)) * sizeof(float));
    ddp_close(d);
    free(w);
    free(want);
    free(g);
    free(given);
}

static void says(ddp_ctx *d, ddp_status code, const char *text)
{
    assert_int_equal(ddp_last_error(d)->code, code);
    if (!strstr(ddp_last_error(d)->msg, text)) fail_msg("'%s' lacks '%s'", ddp_last_error(d)->msg, text);
    ddp_close(d);
}

static int no_step(ddp_ctx *d, void *self, int forward)
{
    (void)d;
    (void)self;
    (void)forward;
    return 0;
}

static void invalid_matrices_and_settings_fail(void **state)
{
    ddp_strategy_ops serves;
    const ddp_optimizer o = ddp_muon(0.01f, 0.03f, 0.95f, 0.1f);
    ddp_optimizer own = o;
    float w[BLOCK] = {0}, g[BLOCK] = {0}, far_away[4];
    ddp_matrix m[2] = {{w, 3, 4}, {w + 11, 2, 2}};
    ddp_layer layer;
    ddp_config c;
    ddp_ctx *d;

    (void)state;
    memset(&c, 0, sizeof c);
    memset(&layer, 0, sizeof layer);
    c.no_env = 1;
    layer.params = w;
    layer.grads = g;
    layer.count = BLOCK;
    layer.matrices = m;
    layer.matrix_count = 2;
    d = ddp_open(&c, NULL);
    assert_int_equal(own_layer(d, w, g, 0), 0);
    assert_true(ddp_set_optimizer(d, &o));
    says(d, DDP_USAGE, "none of 1 layers has a matrix");
    assert_true(ddp_add_layer(d = ddp_open(&c, NULL), &layer));
    says(d, DDP_ARG, "matrix 1 of 2 rows and 2 columns overlaps another");
    m[1].params = far_away;
    assert_true(ddp_add_layer(d = ddp_open(&c, NULL), &layer));
    says(d, DDP_ARG, "matrix 1 of 2 rows and 2 columns is not inside one block");
    m[1].params = w + 59;
    assert_true(ddp_add_layer(d = ddp_open(&c, NULL), &layer));
    says(d, DDP_ARG, "is not inside one block");
    m[1].params = w + 20;
    m[1].columns = (size_t)-1;
    assert_true(ddp_add_layer(d = ddp_open(&c, NULL), &layer));
    says(d, DDP_ARG, "is not inside one block");
    m[1].columns = 0;
    assert_true(ddp_add_layer(d = ddp_open(&c, NULL), &layer));
    says(d, DDP_ARG, "is not inside one block");
    layer.matrices = NULL;
    assert_true(ddp_add_layer(d = ddp_open(&c, NULL), &layer));
    says(d, DDP_ARG, "without an array");
    memset(&serves, 0, sizeof serves);
    serves.name = "serves";
    serves.step_end = no_step;
    serves.traits = DDP_NEEDS_SERVERS;
    c.own_strategy = &serves;
    c.server.count = DDP_SERVERS_COLOCATED;
    assert_int_equal(own_layer(d = ddp_open(&c, NULL), w, g, 2), 0);
    assert_true(ddp_set_optimizer(d, &o));
    says(d, DDP_UNSUPPORTED, "optimizer muon does not support strategy serves");
    c.own_strategy = NULL;
    c.server.count = 0;
    own.matrix_state = 3;
    assert_true(ddp_set_optimizer(d = ddp_open(&c, NULL), &own));
    says(d, DDP_ARG, "matrix_state");
}

/* ---- training ---- */

static void trained(lab *x, int world, lab_model model, ddp_strategy s, ddp_transport transport)
{
    lab_new(x, world, s, 3);
    x->model = model;
    x->rule = LAB_MUON;
    x->forward_hooks = 1;
    x->cfg.transport = transport;
    x->cfg.gradient.partition_bytes = 2000;
    x->cfg.gradient.bucket_bytes = 4000;
    x->cfg.threads = transport == DDP_TCP ? 2 : 1;
    lab_run(x);
    for (int r = 1; r < world; r++)
        assert_memory_equal(x->params[0], x->params[r], *x->values * sizeof(float));
}

static void muon_is_bit_identical_with_any_strategy_and_transport(void **state)
{
    static const ddp_strategy alike[] = {DDP_WFBP, DDP_USBYTE, DDP_MGWFBP};
    lab a, b;

    (void)state;
    for (int world = 1; world <= 5; world++)
        for (int model = 0; model < LAB_MODELS; model++) {
            trained(&a, world, (lab_model)model, DDP_SSGD, DDP_THREADS);
            trained(&b, world, (lab_model)model, alike[(world + model) % 3],
                    world % 2 ? DDP_TCP : DDP_THREADS);
            assert_memory_equal(a.params[0], b.params[0], *a.values * sizeof(float));
            lab_free(&a);
            lab_free(&b);
        }
    for (int model = 0; model < LAB_MODELS; model++) {
        trained(&a, 3, (lab_model)model, DDP_DREAMDDP, DDP_THREADS);
        trained(&b, 3, (lab_model)model, DDP_DREAMDDP, DDP_TCP);
        assert_memory_equal(a.params[0], b.params[0], *a.values * sizeof(float));
        lab_free(&a);
        lab_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_summed_in_order),
        cmocka_unit_test(direction_is_nearly_orthogonal),
        cmocka_unit_test(zero_gradient_only_decays_the_weights),
        cmocka_unit_test(graph_matrices_exclude_tables_and_heads),
        cmocka_unit_test(block_is_updated_matrix_by_matrix),
        cmocka_unit_test(invalid_matrices_and_settings_fail),
        cmocka_unit_test(muon_is_bit_identical_with_any_strategy_and_transport),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
