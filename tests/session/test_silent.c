/* [long] Mistakes of a user program give an error that names the place: memory freed too early, layers
 * without names, models that differ, operations outside layers. Evaluation that calls ddp_forward_begin is
 * allowed. */
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

enum { LONG = 1 << 20, LAYERS = 3 };

typedef struct run {
    ddp_config cfg;
    int way;
    ddp_stats stats;
    float end[2][LAYERS][64];
} run;

static void configure(run *x, ddp_transport transport, ddp_strategy s, int world)
{
    memset(x, 0, sizeof *x);
    x->cfg.world = world;
    x->cfg.transport = transport;
    x->cfg.strategy = s;
    x->cfg.no_env = 1;
    x->cfg.period = 2;
    x->cfg.timeout.peer_s = 30;
}

static float *pages(size_t n)
{
    void *p = mmap(NULL, n * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    return (float *)p;
}

/* ---- memory freed too early ---- */

static int frees(ddp_ctx *d, void *user)
{
    const run *x = (const run *)user;
    float *w[LAYERS], *g[LAYERS];
    static const char *const name[LAYERS] = {"in", "mid", "out"};
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    int bad = 0;

    for (int l = 0; l < LAYERS && !bad; l++) {
        w[l] = pages(LONG);
        g[l] = pages(LONG);
        bad = ddp_add_block(d, name[l], w[l], g[l], LONG);
    }
    bad = bad || ddp_set_optimizer(d, &o);
    for (int step = 0; step < 40 && !bad; step++)
        for (int l = LAYERS - 1; l >= 0 && !bad; l--) {
            bad = ddp_backward_end(d, l);
            if (l == 1 && ddp_rank(d) == 1 && !bad) {
                usleep(1000 * (useconds_t)x->way);
                munmap(g[l], LONG * sizeof(float));
                munmap(w[l], LONG * sizeof(float));
            }
            if (l == 0 && !bad) bad = ddp_step_end(d);
        }
    return bad || ddp_sync_all(d);
}

static void freed_memory_is_named_at_once(void **state)
{
    static const ddp_strategy of[] = {DDP_WFBP, DDP_LOCALSGD};
    (void)state;
    for (int i = 0; i < 6; i++) {
        static run x;
        ddp_error err;
        double begin;
        configure(&x, i < 4 ? DDP_TCP : DDP_THREADS, of[i % 2], 2);
        x.cfg.net = "20mbit,1ms"; /* a layer takes more than a second to send */
        x.cfg.gradient.bucket_bytes = 1;
        x.cfg.period = 1;
        x.cfg.timeout.peer_s = 120;
        x.way = i < 2 ? 0 : 150;
        begin = ddp_now();
        assert_int_not_equal(ddp_launch(&x.cfg, frees, &x, &err), DDP_OK);
        if (!strstr(err.msg, "the memory for all-reduce of layer mid (step 0) was freed before it was done"))
            fail_msg("%d: %s", i, err.msg);
        assert_non_null(strstr(err.msg, "after ddp_sync_all or ddp_close"));
        assert_int_equal(err.code, DDP_USAGE);
        assert_true(ddp_now() - begin < 100); /* before peer_timeout_s is over */
    }
}

/* ---- error messages ---- */

static int unnamed(ddp_ctx *d, void *user)
{
    const run *x = (const run *)user;
    static float w[2][LAYERS][64], g[2][LAYERS][64];
    const int r = ddp_rank(d);

    for (int l = 0; l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w[r][l];
        layer.grads = g[r][l];
        layer.count = x->way == 1 && l == 1 ? 40 + (size_t)r : 64;
        if (ddp_add_layer(d, &layer)) return 1;
    }
    if (ddp_backward_end(d, 2) || ddp_backward_end(d, x->way == 2 ? 2 : 1)) return 1;
    return ddp_step_end(d);
}

static void layers_without_names_are_named_by_number_once(void **state)
{
    static const struct {
        int way;
        ddp_status status;
        const char *words;
    } table[] = {
        {0, DDP_USAGE, "step 0: layer 0 had 0 of 1 ddp_backward_end calls"},
        {1, DDP_MISMATCH,
         "layer 1: rank 1 registered layer 1 with 41 values in 1 blocks, rank 0 layer 1 with 40 in 1: every"},
        {2, DDP_USAGE, "ddp_backward_end(2) was called 2 times for layer 2, expected 1"}};
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        static run x;
        ddp_error err;
        configure(&x, DDP_THREADS, DDP_WFBP, 2);
        x.way = table[i].way;
        assert_int_equal(ddp_launch(&x.cfg, unnamed, &x, &err), table[i].status);
        if (!strstr(err.msg, table[i].words) || strstr(err.msg, "layer layer")) fail_msg("%s", err.msg);
    }
}

/* Rank 1 is late for the average of the buffers, which belongs to no layer; or ddp_sync_all comes within a
 * step. */
static int late(ddp_ctx *d, void *user)
{
    const run *x = (const run *)user;
    static float w[2][64], g[2][64];
    const int r = ddp_rank(d);
    ddp_block b = {w[r], g[r], 32, DDP_PARAMS}, running = {w[r] + 32, NULL, 32, DDP_BUFFERS};
    ddp_block both[2];
    ddp_layer layer;
    ddp_error err;

    memset(&layer, 0, sizeof layer);
    both[0] = b;
    both[1] = running;
    layer.blocks = both;
    layer.block_count = 2;
    if (ddp_add_layer(d, &layer) || ddp_backward_end(d, 0)) return 1;
    if (x->way == 0 && ddp_step_end(d)) return 1;
    if (x->way == 0 && r == 1) /* wait until the time-out on rank 0 has ended the run */
        while (ddp__engine_error(d->engine, &err) == DDP_OK) ddp__sleep_until(ddp_now() + 0.01);
    return ddp_sync_all(d);
}

static void error_outside_a_layer_names_the_operation(void **state)
{
    static run x;
    ddp_error err;
    (void)state;
    configure(&x, DDP_THREADS, DDP_WFBP, 2);
    x.cfg.timeout.op_s = 1;
    assert_int_equal(ddp_launch(&x.cfg, late, &x, &err), DDP_TIMEOUT);
    /* either rank may detect the time-out first */
    if (!strstr(err.msg, "all-gather of the library's own data (step 1)") &&
        !strstr(err.msg, "all-gather of the library's own data, which this rank (1) has not submitted"))
        fail_msg("%s", err.msg);
    x.way = 1;
    assert_int_equal(ddp_launch(&x.cfg, late, &x, &err), DDP_USAGE);
    if (!strstr(err.msg, "in the middle of a step: layer 0 has had")) fail_msg("%s", err.msg);
}

/* ---- evaluation, and link statistics ---- */

static int evaluates(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    static float w[2][LAYERS][64], g[2][LAYERS][64];
    const int r = ddp_rank(d);
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    int bad = 0;

    memset(w[r], 0, sizeof w[r]);
    memset(g[r], 0, sizeof g[r]);
    for (int l = 0; l < LAYERS && !bad; l++)
        bad = ddp_add_block(d, l == 0 ? "a" : l == 1 ? "b" : "c", w[r][l], g[r][l], 64);
    bad = bad || ddp_set_optimizer(d, &o);
    for (int step = 0; step < 12 && !bad; step++) {
        /* evaluate in all passes except the last */
        for (int pass = 0; pass < (x->way ? 3 : 1) && !bad; pass++)
            for (int l = 0; l < LAYERS && !bad; l++) bad = ddp_forward_begin(d, l);
        for (int l = LAYERS - 1; l >= 0 && !bad; l--) {
            for (int i = 0; i < 64; i++) g[r][l][i] = 0.1f * w[r][l][i] + 0.01f * (float)((i + r + step) % 5);
            bad = ddp_backward_end(d, l);
        }
        bad = bad || ddp_step_end(d);
    }
    bad = bad || ddp_sync_all(d);
    memcpy(x->end[r], w[r], sizeof w[r]);
    return bad;
}

static void evaluation_may_call_forward_begin(void **state)
{
    static const ddp_strategy of[] = {DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP, DDP_DEFT, DDP_DILOCO};
    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        static run x, y;
        ddp_error err;
        configure(&x, DDP_THREADS, of[i], 2);
        x.cfg.deterministic = 1;
        y = x;
        y.way = 1;
        if (ddp_launch(&x.cfg, evaluates, &x, &err) || ddp_launch(&y.cfg, evaluates, &y, &err))
            fail_msg("%s", err.msg);
        assert_memory_equal(x.end, y.end, sizeof x.end);
        assert_true(x.end[0][0][1] != 0);
    }
}

static int buckets(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    enum { N = 100000 };
    float *w = pages(4 * N), *g = pages(4 * N);
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    int bad = 0;

    for (int l = 0; l < 4 && !bad; l++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", l);
        bad = ddp_add_block(d, name, w + l * N, g + l * N, l ? N : N / 100);
    }
    bad = bad || ddp_set_optimizer(d, &o);
    for (int step = 0; step < 12 && !bad; step++) {
        for (int l = 3; l >= 0 && !bad; l--) {
            bad = ddp_backward_end(d, l);
            ddp_sleep_until(ddp_now() + 0.002);
        }
        bad = bad || ddp_step_end(d);
    }
    if (ddp_rank(d) == 0) ddp_get_stats(d, &x->stats);
    bad = bad || ddp_sync_all(d);
    if (ddp_rank(d) == 0 && !bad && !(x->stats.link.beta_s > 90e-9 && x->stats.link.beta_s < 160e-9)) {
        fprintf(stderr, "%g ns a byte\n", 1e9 * x->stats.link.beta_s);
        bad = 1;
    }
    munmap(w, 4 * N * sizeof *w);
    munmap(g, 4 * N * sizeof *g);
    return bad;
}

/* With four workers 2 (P - 1) / P of 80 ns per byte is 120 ns. The last layer of a bucket has only a
 * hundredth of its bytes, so the estimate must use all layers. */
static void link_estimate_counts_all_bytes_of_a_bucket(void **state)
{
    static run x;
    ddp_error err;
    (void)state;
    configure(&x, DDP_THREADS, DDP_WFBP, 4);
    x.cfg.net = "100mbit,1ms";
    if (ddp_simulate(&x.cfg, NULL, buckets, &x, NULL, &err)) fail_msg("%s", err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(freed_memory_is_named_at_once),
        cmocka_unit_test(layers_without_names_are_named_by_number_once),
        cmocka_unit_test(error_outside_a_layer_names_the_operation),
        cmocka_unit_test(evaluation_may_call_forward_begin),
        cmocka_unit_test(link_estimate_counts_all_bytes_of_a_bucket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
