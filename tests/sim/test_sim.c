/* The simulator: results bit-identical to a real world, times of the emulated links, simulation of all
 * workers or of one for all. */
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

enum { MOST = 64, LAYERS = 7, STEPS = 23 };

typedef struct run {
    ddp_config cfg;
    ddp_simulation how;
    ddp_simulated did;
    size_t count[LAYERS];
    int real;                 /* 1 if values are in real memory */
    int fails, sends;         /* fails: fault of rank 1; sends: rank 0 sends to it */
    double slow;              /* rank 1 computes this many times longer */
    double ends[MOST][STEPS]; /* end of each step */
    float value[MOST][4096];
    long members[MOST];
    ddp_stats stats;
    ddp_error err;
} run;

static void configure(run *x, ddp_strategy s, int world, const char *net)
{
    memset(x, 0, sizeof *x);
    x->cfg.world = world;
    x->cfg.transport = DDP_THREADS;
    x->cfg.strategy = s;
    x->cfg.net = net;
    x->cfg.no_env = 1;
    x->cfg.period = 3;
    x->cfg.profile_steps = 4;
    x->cfg.deterministic = 1;
    x->cfg.outer.lr = 0.7f;
    if (ddp_strategy_traits(s) & DDP_NEEDS_SERVERS) {
        x->cfg.server.count = 1;
        x->cfg.world++;
    }
    for (int l = 0; l < LAYERS; l++) x->count[l] = (size_t)(37 + 151 * l % 400);
}

static void compute(run *x, ddp_ctx *d, float *w, float *g, int l, int step, size_t at)
{
    if (x->how.paper || !x->real)
        ddp_sleep_until(ddp_now() + (l + 1) * 1e-3 * (ddp_rank(d) == 1 && x->slow > 0 ? x->slow : 1));
    for (size_t i = at; x->real && i < at + x->count[l]; i++)
        g[i] += 0.3f * w[i] + 0.01f * (float)((ddp_rank(d) + 1) * (int)(i % 7) + step);
}

static int train(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d);
    static const char *const name[LAYERS] = {"a", "b", "c", "d", "e", "f", "g"};
    float own[4096], grads[4096], *w = x->real ? own : (float *)x->how.paper, *g = grads;
    size_t at[LAYERS + 1] = {0};
    ddp_optimizer o = ddp_sgd(0.05f, 0.9f);
    int bad = 0;

    for (int l = 0; l < LAYERS; l++) at[l + 1] = at[l] + x->count[l];
    if (!x->real)
        g = w + at[LAYERS];
    else
        memset(grads, 0, sizeof grads);
    for (size_t i = 0; x->real && i < at[LAYERS]; i++) own[i] = (float)(i % 11) - 5;
    for (int l = 0; l < LAYERS && !bad; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.name = name[l];
        layer.params = w + at[l];
        layer.grads = g + at[l];
        layer.count = x->count[l];
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && rank >= ddp_world(d) - ddp_servers(d)) return ddp_serve(d);
    for (int s = 0; s < STEPS && !bad; s++) {
        for (int l = 0; l < LAYERS && !bad; l++) {
            bad = ddp_forward_begin(d, l);
            compute(x, d, w, g, l, s, at[l]);
        }
        for (int l = LAYERS - 1; l >= 0 && !bad; l--) {
            if (x->real)
                compute(x, d, w, g, l, s, at[l]);
            else
                ddp_sleep_until(ddp_now() + (l + 1) * 2e-3);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        x->ends[rank][s] = ddp_now();
        x->members[rank] = ddp_workers(d);
        if (x->fails && rank == 1 && s == 2) return 0;
    }
    if (!bad && !x->cfg.elastic.min_world) bad = ddp_sync_all(d);
    if (rank == 0) ddp_get_stats(d, &x->stats);
    for (size_t i = 0; x->real && i < at[LAYERS]; i++) x->value[rank][i] = own[i];
    return bad;
}

static int simulate(run *x) { return ddp_simulate(&x->cfg, &x->how, train, x, &x->did, &x->err); }

/* ---- values ---- */

/* With real memory, the training is bit-identical to threads. */
static void results_are_bit_identical_to_a_real_world(void **state)
{
    static const ddp_strategy list[] = {DDP_SSGD, DDP_WFBP,     DDP_MGWFBP, DDP_BYTESCHEDULER, DDP_LOCALSGD,
                                        DDP_ENP,  DDP_DREAMDDP, DDP_DEFT,   DDP_BSP,           DDP_DILOCO};
    run *a = (run *)calloc(1, sizeof *a), *b = (run *)calloc(1, sizeof *b);

    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int world = 1; world <= 4; world += 3) {
            configure(a, list[i], world, NULL);
            a->real = 1;
            a->cfg.profile_steps = 0;
            *b = *a;
            assert_int_equal(ddp_launch(&a->cfg, train, a, &a->err), DDP_OK);
            assert_int_equal(simulate(b), DDP_OK);
            for (int r = 0; r < world; r++) assert_memory_equal(a->value[r], b->value[r], sizeof a->value[r]);
        }
    free(a);
    free(b);
}

static int exchange(ddp_ctx *d, void *user)
{
    const int rank = ddp_rank(d), world = ddp_world(d);
    float x[5], all[5 * MOST];
    int bad;

    (void)user;
    for (int i = 0; i < 5; i++) {
        x[i] = (float)(rank + i);
        all[5 * rank + i] = x[i];
    }
    bad = ddp_all_reduce(d, x, 5, 1);
    for (int i = 0; i < 5; i++) assert_true(x[i] == (float)(world * (world - 1) / 2 + world * i));
    if (!bad) bad = ddp_all_gather(d, all, 5);
    for (int r = 0; r < world; r++)
        for (int i = 0; i < 5; i++) assert_true(all[5 * r + i] == (float)(r + i));
    for (int i = 0; i < 5; i++) x[i] = (float)(10 * rank + i);
    if (!bad) bad = ddp_broadcast(d, x, 5, world - 1);
    for (int i = 0; i < 5; i++) assert_true(x[i] == (float)(10 * (world - 1) + i));
    return bad;
}

static void collectives_carry_values(void **state)
{
    ddp_config cfg;
    ddp_error err;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    cfg.net = "10mbit,3ms,1ms";
    for (cfg.world = 2; cfg.world <= 9; cfg.world++)
        assert_int_equal(ddp_simulate(&cfg, NULL, exchange, NULL, NULL, &err), DDP_OK);
}

/* ---- times ---- */

static void on_paper(run *x, double params)
{
    x->how.paper_bytes = 16 * (size_t)params * LAYERS * sizeof(float) + 65536;
    x->how.paper = ddp_paper(x->how.paper_bytes);
    assert_non_null(x->how.paper);
    for (int l = 0; l < LAYERS; l++) x->count[l] = (size_t)params;
}

/* An S-SGD step takes its computing time, 2 (P - 1) / P of the bytes over the uplink, and two delays. */
static void a_step_takes_the_time_of_the_link(void **state)
{
    run *x = (run *)calloc(1, sizeof *x);

    (void)state;
    for (int world = 2; world <= 8; world++)
        for (int wide = 0; wide < 2; wide++) {
            const double params = wide ? 1e6 : 1e4, rate = 12.5e6, delay = wide ? 0.002 : 0.03;
            double want, got;
            configure(x, DDP_SSGD, world, wide ? "100mbit,2ms" : "100mbit,30ms");
            on_paper(x, params);
            assert_int_equal(simulate(x), DDP_OK);
            got = x->ends[0][STEPS - 1] - x->ends[0][STEPS - 2];
            want = LAYERS * (LAYERS + 1) / 2 * 3e-3 +
                   2.0 * (world - 1) / world * 4 * params * (double)LAYERS / rate + 2 * delay;
            assert_true(got > 0.98 * want - delay && got < 1.03 * want); /* the delay overlaps with sending */
            ddp_paper_free(x->how.paper, x->how.paper_bytes);
        }
    free(x);
}

/* With two simulated workers, the results of rank 0 are bit-identical to a simulation of all; and
 * reproducible. */
static void one_worker_can_represent_all(void **state)
{
    static const ddp_strategy list[] = {DDP_SSGD, DDP_WFBP,     DDP_BYTESCHEDULER, DDP_LOCALSGD,
                                        DDP_ENP,  DDP_DREAMDDP, DDP_DILOCO};
    run *a = (run *)calloc(1, sizeof *a), *b = (run *)calloc(1, sizeof *b), *c = (run *)calloc(1, sizeof *c);

    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int world = 5; world <= MOST; world += MOST - 5) {
            configure(a, list[i], world, "50mbit,7ms");
            on_paper(a, 3000);
            *b = *c = *a;
            b->how.fold = c->how.fold = 1;
            assert_int_equal(simulate(a), DDP_OK);
            assert_int_equal(simulate(b), DDP_OK);
            assert_int_equal(simulate(c), DDP_OK);
            assert_int_equal(a->did.workers, world);
            assert_int_equal(b->did.workers, 2);
            assert_memory_equal(a->ends[0], b->ends[0], sizeof a->ends[0]);
            assert_memory_equal(b->ends[0], c->ends[0], sizeof b->ends[0]);
            assert_int_equal(a->stats.bytes_sent, b->stats.bytes_sent);
            assert_true(a->stats.comm_s == b->stats.comm_s && a->stats.exposed_s == b->stats.exposed_s);
            ddp_paper_free(a->how.paper, a->how.paper_bytes);
        }
    free(a);
    free(b);
    free(c);
}

/* Jitter is drawn from a seed: two runs are equal, another seed gives other times. Workers that differ are
 * not folded. */
static void equal_seeds_give_equal_runs(void **state)
{
    run *a = (run *)calloc(1, sizeof *a), *b = (run *)calloc(1, sizeof *b);

    (void)state;
    for (int seed = 0; seed < 2; seed++) {
        configure(a, DDP_DREAMDDP, 6, "50mbit,7ms,5ms");
        on_paper(a, 3000);
        a->how.fold = 1;
        *b = *a;
        b->cfg.seed = (uint64_t)seed;
        assert_int_equal(simulate(a), DDP_OK);
        assert_int_equal(simulate(b), DDP_OK);
        assert_int_equal(a->did.workers, 6);
        assert_int_equal(memcmp(a->ends, b->ends, sizeof a->ends) != 0, seed);
        ddp_paper_free(a->how.paper, a->how.paper_bytes);
    }
    free(a);
    free(b);
}

/* All ranks wait for the slow one in every step. */
static void a_slow_worker_slows_all(void **state)
{
    run *x = (run *)calloc(1, sizeof *x);
    double step;

    (void)state;
    configure(x, DDP_SSGD, 4, "1gbit,1ms");
    on_paper(x, 100);
    x->slow = 3;
    assert_int_equal(simulate(x), DDP_OK);
    step = x->ends[0][STEPS - 1] - x->ends[0][STEPS - 2];
    assert_true(step > 28e-3 * 3 + 56e-3 && step < 28e-3 * 3 + 56e-3 + 4e-3);
    assert_int_equal(x->stats.slowest_rank, 1);
    ddp_paper_free(x->how.paper, x->how.paper_bytes);
    free(x);
}

/* ---- incidents and errors ---- */

static void script(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void survivors_continue_after_a_kill(void **state)
{
    const char *path = "build/test_sim.faults";
    run *x = (run *)calloc(1, sizeof *x);

    (void)state;
    script(path, "t=0.9 kill 2\nt=1.2 stall 0 for 0.25\n");
    configure(x, DDP_SSGD, 5, "20mbit,3ms");
    on_paper(x, 3000);
    x->cfg.network.net_script = path;
    assert_int_equal(simulate(x), DDP_PEER_LOST);
    assert_non_null(strstr(x->err.msg, "rank 2 was lost"));
    x->cfg.elastic.min_world = 3;
    assert_int_equal(simulate(x), DDP_OK);
    assert_int_equal(x->members[0], 4);
    assert_int_equal(x->members[4], 4);
    assert_true(x->ends[0][STEPS - 1] > 0 && x->ends[2][STEPS - 1] == 0);
    x->cfg.elastic.min_world = 5;
    assert_int_equal(simulate(x), DDP_PEER_LOST);
    ddp_paper_free(x->how.paper, x->how.paper_bytes);
    remove(path);
    free(x);
}

/* A stalled link makes a step longer by the time of the stall. */
static void a_stall_lengthens_its_step(void **state)
{
    const char *path = "build/test_sim.faults";
    run *a = (run *)calloc(1, sizeof *a), *b = (run *)calloc(1, sizeof *b);
    double longer;

    (void)state;
    configure(a, DDP_SSGD, 3, "20mbit,3ms");
    on_paper(a, 30000);
    *b = *a;
    script(path, "t=1.3 stall 1 for 0.5\n");
    b->cfg.network.net_script = path;
    assert_int_equal(simulate(a), DDP_OK);
    assert_int_equal(simulate(b), DDP_OK);
    longer = b->ends[0][STEPS - 1] - a->ends[0][STEPS - 1];
    assert_true(longer > 0.3 && longer < 0.51);
    ddp_paper_free(a->how.paper, a->how.paper_bytes);
    remove(path);
    free(a);
    free(b);
}

static void a_deadlock_is_an_error(void **state)
{
    run *x = (run *)calloc(1, sizeof *x);

    (void)state;
    configure(x, DDP_SSGD, 3, "20mbit,3ms");
    on_paper(x, 300);
    x->fails = 1;
    assert_int_equal(simulate(x), DDP_USAGE);
    assert_non_null(strstr(x->err.msg, "wait for messages that no worker sends"));
    assert_non_null(strstr(x->err.msg, "rank 0 for all-reduce of"));
    ddp_paper_free(x->how.paper, x->how.paper_bytes);
    free(x);
}

static int sends(ddp_ctx *d, void *user)
{
    float x = 1;

    (void)user;
    return ddp_rank(d) == 0 ? ddp_send(d, &x, 1, 1) : ddp_rank(d) == 1 ? ddp_recv(d, &x, 1, 0) : 0;
}

static void *posts(void *ctx)
{
    float x = 1;

    (void)ddp_all_reduce((ddp_ctx *)ctx, &x, 1, 1);
    return NULL;
}

static int on_a_thread(ddp_ctx *d, void *user)
{
    pthread_t t;

    (void)user;
    if (ddp_rank(d) == 1 && !pthread_create(&t, NULL, posts, d)) pthread_join(t, NULL);
    return ddp_barrier(d);
}

/* A thread without a worker would wait forever. */
static void a_send_from_another_thread_is_an_error(void **state)
{
    run *x = (run *)calloc(1, sizeof *x);

    (void)state;
    configure(x, DDP_SSGD, 3, "20mbit,3ms");
    assert_int_equal(ddp_simulate(&x->cfg, NULL, on_a_thread, x, NULL, &x->err), DDP_UNSUPPORTED);
    assert_non_null(strstr(x->err.msg, "rank 1 sends or waits on another thread"));
    free(x);
}

static void unsupported_settings_are_an_error(void **state)
{
    run *x = (run *)calloc(1, sizeof *x);

    (void)state;
    configure(x, DDP_SSGD, 3, "20mbit,3ms");
    assert_int_equal(ddp_simulate(NULL, NULL, train, x, NULL, &x->err), DDP_ARG);
    assert_int_equal(ddp_simulate(&x->cfg, NULL, NULL, x, NULL, &x->err), DDP_ARG);
    assert_int_equal(ddp_simulate(&x->cfg, NULL, sends, x, NULL, &x->err), DDP_OK);
    configure(x, DDP_BSP, 3, "20mbit,3ms");
    x->cfg.server.count = DDP_SERVERS_COLOCATED;
    assert_int_equal(simulate(x), DDP_UNSUPPORTED);
    assert_non_null(strstr(x->err.msg, "servers on the ranks of workers"));
    configure(x, DDP_SSGD, 80, "20mbit,3ms");
    x->cfg.elastic.min_world = 3;
    assert_int_not_equal(simulate(x), DDP_OK);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_bit_identical_to_a_real_world),
        cmocka_unit_test(collectives_carry_values),
        cmocka_unit_test(a_step_takes_the_time_of_the_link),
        cmocka_unit_test(one_worker_can_represent_all),
        cmocka_unit_test(equal_seeds_give_equal_runs),
        cmocka_unit_test(a_slow_worker_slows_all),
        cmocka_unit_test(survivors_continue_after_a_kill),
        cmocka_unit_test(a_stall_lengthens_its_step),
        cmocka_unit_test(a_deadlock_is_an_error),
        cmocka_unit_test(unsupported_settings_are_an_error),
        cmocka_unit_test(a_send_from_another_thread_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
