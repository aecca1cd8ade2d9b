/* Layers registered span by span, tied weights, overlapping arrays, and steps in which a layer has no
 * gradient. */
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

enum { WORLD = 3, N = 60, STEPS = 7 };

typedef struct run {
    ddp_config cfg;
    int way; /* how layers are registered, or how a layer is skipped */
    float end[WORLD][N];
    ddp_error error[WORLD];
} run;

static void configure(run *x, ddp_strategy s, int way)
{
    memset(x, 0, sizeof *x);
    x->cfg.world = WORLD;
    x->cfg.transport = DDP_THREADS;
    x->cfg.strategy = s;
    x->cfg.no_env = 1;
    x->cfg.period = 2;
    x->cfg.deterministic = 1;
    x->cfg.timeout.peer_s = 60;
    x->way = way;
}

/* Three layers over w[0..N): "in" 0..9 and 40..49, "mid" 10..29, "out" 30..39 and 50..59. */
static int add(ddp_ctx *d, int way, float *w, float *g)
{
    static const struct {
        const char *layer;
        int at, count;
    } part[] = {{"in", 0, 10}, {"mid", 10, 20}, {"out", 30, 10}, {"in", 40, 10}, {"out", 50, 10}};
    ddp_block more = {w + 40, g + 40, 10, DDP_PARAMS};
    ddp_layer l;
    int bad = 0;

    if (way) {
        for (int i = 0; i < 5 && !bad; i++)
            bad = ddp_add_block(d, part[i].layer, w + part[i].at, g + part[i].at, (size_t)part[i].count);
        assert_int_equal(ddp_layer_named(d, "out"), 2);
        assert_int_equal(ddp_layer_named(d, "ou"), -1);
        return bad;
    }
    memset(&l, 0, sizeof l);
    l.name = "in";
    l.params = w;
    l.grads = g;
    l.count = 10;
    l.blocks = &more;
    l.block_count = 1;
    bad = ddp_add_layer(d, &l);
    l.name = "mid";
    l.params = w + 10;
    l.grads = g + 10;
    l.count = 20;
    l.blocks = NULL;
    l.block_count = 0;
    if (!bad) bad = ddp_add_layer(d, &l);
    more.params = w + 50;
    more.grads = g + 50;
    l.name = "out";
    l.params = w + 30;
    l.grads = g + 30;
    l.count = 10;
    l.blocks = &more;
    l.block_count = 1;
    return bad ? bad : ddp_add_layer(d, &l);
}

static void gradients(float *w, float *g, int from, int to, int rank, int step)
{
    for (int i = from; i < to; i++) g[i] += 0.3f * w[i] + 0.01f * (float)((rank + 1) * (i % 7) + step);
}

static int train(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    float w[N], g[N];
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    int bad;

    memset(g, 0, sizeof g);
    for (int i = 0; i < N; i++) w[i] = (float)(i % 11) - 5;
    bad = add(d, x->way, w, g) || ddp_set_optimizer(d, &o);
    for (int s = 0; s < STEPS && !bad; s++) {
        gradients(w, g, 0, N, ddp_rank(d), s);
        for (int l = 2; l >= 0 && !bad; l--) bad = ddp_backward_end(d, l);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    memcpy(x->end[ddp_rank(d)], w, sizeof w);
    x->error[ddp_rank(d)] = *ddp_last_error(d);
    return bad;
}

static void spans_in_any_order_are_the_layers(void **state)
{
    static const ddp_strategy some[] = {DDP_SSGD, DDP_WFBP, DDP_DREAMDDP, DDP_DILOCO};
    static run a, b;
    ddp_error err;

    (void)state;
    for (int s = 0; s < 4; s++) {
        configure(&a, some[s], 0);
        configure(&b, some[s], 1);
        if (ddp_launch(&a.cfg, train, &a, &err) || ddp_launch(&b.cfg, train, &b, &err))
            fail_msg("%s", err.msg);
        assert_memory_equal(a.end, b.end, sizeof a.end);
        assert_memory_equal(a.end[0], a.end[2], sizeof a.end[0]);
    }
}

/* ---- arrays in two layers ---- */

static float w2[N], g2[N];

static int overlapping(ddp_ctx *d, void *user)
{
    const run *x = (const run *)user;
    ddp_optimizer o = ddp_sgd(0.1f, 0);

    if (ddp_add_block(d, "first", w2, g2, 20)) return 1;
    if (x->way == 0) (void)ddp_add_block(d, "second", w2 + 19, g2 + 30, 10);
    if (x->way == 1) (void)ddp_add_block(d, "second", w2 + 30, g2 + 4, 3);
    if (x->way == 2) (void)ddp_add_block(d, "second", g2 + 8, g2 + 30, 20);
    if (x->way == 3) (void)ddp_add_block(d, "second", w2, g2 + 20, 20);
    if (x->way == 4) (void)ddp_add_block(d, "second", w2, NULL, 20);
    if (x->way == 5) (void)ddp_add_block(d, "first", w2 + 2, g2 + 30, 2);
    if (x->way == 6) (void)ddp_add_block(d, "second", w2 + 30, g2 + 30, 0);
    if (x->way == 7) (void)ddp_add_block(d, NULL, w2 + 30, g2 + 30, 4);
    return ddp_set_optimizer(d, &o);
}

static void overlapping_arrays_are_named(void **state)
{
    static const char *const says[] = {
        "parameters of layer 0 (first) and parameters of layer 1 (second) overlap by 4 bytes",
        "gradients of layer 0 (first) and gradients of layer 1 (second) overlap by 12 bytes",
        "gradients of layer 0 (first) and parameters of layer 1 (second) overlap by 48 bytes",
        "overlap by 80 bytes",
        "overlap by 80 bytes",
        "parameters of layer 0 (first) and parameters of layer 0 (first)",
        "ddp_add_block: layer 'second' with 0 values",
        "a name, an array and how many"};
    static run x;
    ddp_error err;

    (void)state;
    for (int way = 0; way < 8; way++) {
        configure(&x, DDP_LOCALSGD, way);
        x.cfg.world = 1;
        if (ddp_launch(&x.cfg, overlapping, &x, &err) != (int)DDP_ARG)
            fail_msg("%d: %d %s", way, (int)err.code, err.msg);
        if (!strstr(err.msg, says[way])) fail_msg("%d: '%s'", way, err.msg);
    }
}

/* Two layers use one weight. Its gradient is complete when the backward of the first layer ends. */
static int tied(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    float w[N], g[N];
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    int bad;

    memset(g, 0, sizeof g);
    for (int i = 0; i < N; i++) w[i] = (float)(i % 11) - 5;
    bad = ddp_add_block(d, "embedding", w, g, 20) || ddp_add_block(d, "middle", w + 20, g + 20, 30);
    if (!bad && x->way) bad = ddp_add_block(d, "head", w, g, 20);
    if (!bad) bad = ddp_add_block(d, "head", w + 50, g + 50, 10) || ddp_set_optimizer(d, &o);
    for (int s = 0; s < STEPS && !bad; s++) {
        gradients(w, g, 50, 60, ddp_rank(d), s);
        gradients(w, g, 0, 20, ddp_rank(d) + 1, s);
        if (!bad) bad = ddp_backward_end(d, 2);
        gradients(w, g, 20, 50, ddp_rank(d), s);
        if (!bad) bad = ddp_backward_end(d, 1);
        gradients(w, g, 0, 20, ddp_rank(d), s);
        if (!bad) bad = ddp_backward_end(d, 0) || ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    memcpy(x->end[ddp_rank(d)], w, sizeof w);
    return bad;
}

static void weight_registered_twice_counts_once(void **state)
{
    static const ddp_strategy some[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP};
    static run a, b;
    ddp_error err;

    (void)state;
    for (int s = 0; s < 4; s++) {
        configure(&a, some[s], 0);
        configure(&b, some[s], 1);
        if (ddp_launch(&a.cfg, tied, &a, &err) || ddp_launch(&b.cfg, tied, &b, &err)) fail_msg("%s", err.msg);
        assert_memory_equal(a.end, b.end, sizeof a.end);
    }
}

/* ---- a step without a gradient ---- */

enum { ALL_SKIP = 1, RANK_1_SKIPS = 2, ZEROS = 3, FORGETS = 4 };

static int skipping(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    float w[N], g[N];
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    int bad;

    memset(g, 0, sizeof g);
    for (int i = 0; i < N; i++) w[i] = (float)(i % 11) - 5;
    bad = add(d, 1, w, g) || ddp_set_optimizer(d, &o);
    for (int s = 0; s < STEPS && !bad; s++) {
        const int without = s % 3 == 1 && (x->way == ALL_SKIP || ddp_rank(d) == 1);
        gradients(w, g, 0, 10, ddp_rank(d), s);
        gradients(w, g, 30, N, ddp_rank(d), s);
        if (!without)
            gradients(w, g, 10, 30, ddp_rank(d), s);
        else if (x->way != ZEROS)
            for (int i = 10; i < 30; i++) g[i] = 777; /* an old value, which must not be used */
        bad = ddp_backward_end(d, 2);
        if (!bad && !(without && x->way == FORGETS))
            bad = without && x->way != ZEROS ? ddp_skip(d, 1) : ddp_backward_end(d, 1);
        if (!bad) bad = ddp_backward_end(d, 0) || ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    memcpy(x->end[ddp_rank(d)], w, sizeof w);
    return bad;
}

static void skipped_layer_contributes_zeros(void **state)
{
    static run a, b;
    ddp_error err;

    (void)state;
    for (int s = 0; s < 2; s++) {
        configure(&a, s ? DDP_WFBP : DDP_SSGD, RANK_1_SKIPS);
        configure(&b, s ? DDP_WFBP : DDP_SSGD, ZEROS);
        if (ddp_launch(&a.cfg, skipping, &a, &err) || ddp_launch(&b.cfg, skipping, &b, &err))
            fail_msg("%s", err.msg);
        assert_memory_equal(a.end, b.end, sizeof a.end);
        assert_memory_equal(a.end[0], a.end[1], sizeof a.end[0]);
    }
    configure(&a, DDP_WFBP, FORGETS);
    assert_int_equal(ddp_launch(&a.cfg, skipping, &a, &err), DDP_USAGE);
    if (!strstr(err.msg, "layer mid had 0 of 1 ddp_backward_end calls on rank 1") ||
        !strstr(err.msg, "ddp_skip"))
        fail_msg("%s", err.msg);
}

/* If parameters are averaged, a skipped layer keeps its parameters and its momentum. */
static void layers_without_a_gradient_are_not_updated(void **state)
{
    static run a;
    ddp_error err;
    float w[N], g[N], v[N];

    (void)state;
    configure(&a, DDP_LOCALSGD, ALL_SKIP);
    a.cfg.world = 1;
    if (ddp_launch(&a.cfg, skipping, &a, &err)) fail_msg("%s", err.msg);
    memset(v, 0, sizeof v);
    for (int i = 0; i < N; i++) w[i] = (float)(i % 11) - 5;
    for (int s = 0; s < STEPS; s++) {
        memset(g, 0, sizeof g);
        gradients(w, g, 0, N, 0, s);
        for (int i = 0; i < N; i++) {
            volatile float kept = 0.9f * v[i], step;
            if (s % 3 == 1 && i >= 10 && i < 30) continue;
            v[i] = kept + g[i];
            step = 0.1f * v[i];
            w[i] -= step;
        }
    }
    assert_memory_equal(a.end[0], w, sizeof w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_in_any_order_are_the_layers),
        cmocka_unit_test(overlapping_arrays_are_named),
        cmocka_unit_test(weight_registered_twice_counts_once),
        cmocka_unit_test(skipped_layer_contributes_zeros),
        cmocka_unit_test(layers_without_a_gradient_are_not_updated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
