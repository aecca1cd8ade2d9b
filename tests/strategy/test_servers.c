/* bsp, asp, ssp and r2sp. bsp is bit-identical to ssgd wherever layers are served, the others to a sequential
 * replay of their pushes. */
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

/* workers: ranks that train; servers: as in ddp_config */
static void served(lab *x, int workers, ddp_strategy s, int servers)
{
    lab_new(x, workers + (servers > 0 ? servers : 0), s, 3);
    x->cfg.server.count = servers;
    x->forward_hooks = workers % 2;
}

static void all_equal(const lab *x, int workers)
{
    for (int r = 1; r < workers; r++)
        assert_memory_equal(x->params[0], x->params[r], *x->values * sizeof(float));
}

static void as_ssgd(ddp_strategy s, int workers, int servers, lab_model model, lab_rule rule, ddp_transport t)
{
    lab a, b;

    lab_new(&a, workers, DDP_SSGD, 3);
    served(&b, workers, s, servers);
    a.model = b.model = model;
    a.rule = b.rule = rule;
    a.rates = b.rates = 1;
    b.cfg.transport = t;
    lab_run(&a);
    lab_run(&b);
    if (memcmp(a.params[0], b.params[0], *a.values * sizeof(float)))
        fail_msg("%s, %d workers, servers %d, model %d, rule %d: differs from ssgd", ddp_strategy_name(s),
                 workers, servers, (int)model, (int)rule);
    all_equal(&b, workers);
    lab_free(&a);
    lab_free(&b);
}

static void bsp_is_bit_identical_to_ssgd_wherever_layers_are_served(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 5; workers += SAMPLED(2))
        for (int model = 0; model < LAB_MODELS; model++)
            for (int servers = -1; servers <= 3; servers++)
                if (servers)
                    as_ssgd((workers + servers) % 2 ? DDP_BSP : DDP_SSP, workers, servers, (lab_model)model,
                            (lab_rule)((workers + model + servers + 1) % LAB_RULES), DDP_THREADS);
    as_ssgd(DDP_BSP, 3, 2, LAB_ODD, LAB_ADAMW, DDP_TCP);
    as_ssgd(DDP_BSP, 3, -1, LAB_ODD, LAB_MOMENTUM, DDP_TCP);
}

/* asp in the order of steps and ranks, without the library. */
static void replay(const lab *x, int workers, float scale, float *out)
{
    static float mine[LAB_RANKS][LAB_VALUES], g[LAB_VALUES], state[2 * LAB_VALUES], p[LAB_VALUES];
    size_t count[LAB_LAYERS], at, all = 0;
    ddp_optimizer o = lab_optimizer(x->rule);
    const int L = lab_sizes(x->model, count);

    memset(state, 0, sizeof state);
    for (int l = 0; l < L; l++)
        for (size_t i = 0; i < count[l]; i++) p[all++] = lab_start(0, l, i);
    for (int w = 0; w < workers; w++) memcpy(mine[w], p, sizeof p);
    for (int step = 0; step < x->steps; step++)
        for (int w = 0; w < workers; w++) {
            at = 0;
            for (int l = 0; l < L; at += count[l++]) {
                ddp_update u;
                memset(&u, 0, sizeof u);
                memset(g, 0, sizeof g);
                lab_gradient(mine[w] + at, g, count[l], w, l, step * 10);
                u.layer = l;
                u.params = p + at;
                u.grads = g;
                u.state = state + 2 * at;
                u.count = count[l];
                u.step = (long)step * workers + w;
                u.lr = o.lr * scale;
                o.update(&o, &u);
            }
            memcpy(mine[w], p, sizeof p);
        }
    memcpy(out, p, all * sizeof *p);
}

static void in_turn(ddp_strategy s, int workers, int servers, lab_rule rule, ddp_transport t)
{
    static float want[LAB_VALUES];
    lab x;

    served(&x, workers, s, servers);
    x.model = workers % 2 ? LAB_ODD : LAB_TINY;
    x.rule = rule;
    x.cfg.transport = t;
    x.cfg.server.staleness = s == DDP_SSP ? 2 : 0;
    if (s == DDP_R2SP) x.cfg.deterministic = 0; /* r2sp has a fixed order anyway */
    lab_run(&x);
    replay(&x, workers, 1.0f / (float)workers, want);
    for (int r = 0; r < workers; r++) assert_memory_equal(want, x.params[r], *x.values * sizeof(float));
    for (int r = 0; r < workers; r++) {
        /* rank r is r updates behind at first, then workers - 1 */
        const double mean = (r + (x.steps - 1.0) * (workers - 1)) / x.steps;
        assert_int_equal(x.stats[r].staleness_most, workers - 1);
        assert_true(fabs(x.stats[r].staleness - mean) < 1e-9);
    }
    lab_free(&x);
}

static void pushes_in_turn_are_bit_identical_to_a_sequential_program(void **state)
{
    static const ddp_strategy each[] = {DDP_ASP, DDP_SSP, DDP_R2SP};

    (void)state;
    for (int workers = 1; workers <= 5; workers += SAMPLED(2))
        for (int s = 0; s < 3; s++)
            for (int servers = -1; servers <= 2; servers++)
                if (servers)
                    in_turn(each[s], workers, servers, (lab_rule)((workers + s) % LAB_RULES), DDP_THREADS);
    for (int s = 0; s < 3; s++) in_turn(each[s], 3, s == 1 ? -1 : 2, LAB_ADAMW, DDP_TCP);
}

static void one_worker_under_any_rule_is_sgd(void **state)
{
    static const ddp_strategy each[] = {DDP_BSP, DDP_ASP, DDP_SSP, DDP_R2SP};

    (void)state;
    for (int s = 0; s < 4; s++)
        for (int rule = 0; rule < LAB_RULES; rule++)
            as_ssgd(each[s], 1, s % 2 ? 1 : -1, LAB_MLP, (lab_rule)rule, DDP_THREADS);
}

/* ---- without a fixed order: compares the server's result with a replay of the updates it recorded ---- */

enum { TINY = 11, PUSHES = 512 };
static struct {
    pthread_mutex_t lock;
    int updates;
    float gradient[PUSHES][TINY], rate[PUSHES]; /* of the layers of LAB_TINY, in the order of updates */
    int layer[PUSHES];
} trace = {PTHREAD_MUTEX_INITIALIZER, 0, {{0}}, {0}, {0}};

static void traced_sgd(const ddp_optimizer *self, const ddp_update *u)
{
    (void)self;
    pthread_mutex_lock(&trace.lock);
    if (trace.updates < PUSHES) {
        memcpy(trace.gradient[trace.updates], u->grads, u->count * sizeof(float));
        trace.rate[trace.updates] = u->lr;
        trace.layer[trace.updates++] = u->layer;
    }
    pthread_mutex_unlock(&trace.lock);
    for (size_t i = 0; i < u->count; i++) {
        float change = u->lr * u->grads[i];
        DDP__ROUNDED(change);
        u->params[i] -= change;
    }
}

static int done[LAB_RANKS]; /* steps of each rank; atomic */

/* The last worker starts when the others have finished, which only asp allows. */
static void last_is_stopped(const lab *x, int rank, int step)
{
    ddp__atomic_store(&done[rank], step);
    while (rank == 2 && step == 0 &&
           (ddp__atomic_load(&done[0]) < x->steps - 1 || ddp__atomic_load(&done[1]) < x->steps - 1))
        ddp__sleep_until(ddp_now() + 1e-3);
}

static void a_stopped_worker_does_not_stop_the_others(void **state)
{
    static const size_t size[] = {3, 1, 7}, from[] = {0, 3, 4};
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    float p[TINY];

    (void)state;
    o.update = traced_sgd;
    for (int servers = -1; servers <= 2; servers++) {
        lab x;
        if (!servers) continue;
        served(&x, 3, DDP_ASP, servers);
        x.cfg.deterministic = 0;
        x.optimizer = &o;
        x.before_step = last_is_stopped;
        x.cfg.server.push_scale = servers > 0 ? 0.5f : 0;
        memset(done, 0, sizeof done);
        trace.updates = 0;
        lab_run(&x);
        /* workers x layers x steps: every push updates every layer */
        assert_int_equal(trace.updates, 3 * 3 * x.steps);
        for (int l = 0; l < 3; l++)
            for (size_t i = 0; i < size[l]; i++) p[from[l] + i] = lab_start(0, l, i);
        for (int k = 0; k < trace.updates; k++) {
            const int l = trace.layer[k];
            assert_true(trace.rate[k] == 0.1f * (servers > 0 ? 0.5f : 1.0f / 3));
            for (size_t i = 0; i < size[l]; i++) {
                float change = trace.rate[k] * trace.gradient[k][i];
                DDP__ROUNDED(change);
                p[from[l] + i] -= change;
            }
        }
        for (int r = 0; r < 3; r++) assert_memory_equal(p, x.params[r], sizeof p);
        assert_true(x.stats[2].staleness_most >= 2 * (x.steps - 1));
        lab_free(&x);
    }
}

/* While a server waits for a stalled worker, it must continue to serve the others. */
static void a_worker_may_be_hundreds_of_steps_behind(void **state)
{
    lab x;

    (void)state;
    served(&x, 3, DDP_ASP, 1);
    x.cfg.deterministic = 0;
    x.before_step = last_is_stopped;
    x.steps = 300; /* about 2000 messages */
    memset(done, 0, sizeof done);
    lab_run(&x);
    all_equal(&x, 3);
    assert_true(x.stats[2].staleness_most >= 2 * (x.steps - 1));
    lab_free(&x);
}

static int worst_gap;

static void clocks_are_watched(const lab *x, int rank, int step)
{
    int least = step;

    (void)x;
    ddp__atomic_store(&done[rank], step);
    for (int r = 0; r < 3; r++)
        if (ddp__atomic_load(&done[r]) < least) least = ddp__atomic_load(&done[r]);
    if (step - least > ddp__atomic_load(&worst_gap)) ddp__atomic_store(&worst_gap, step - least);
    if (rank == 2) ddp__sleep_until(ddp_now() + 5e-3);
}

static void no_worker_is_more_than_staleness_steps_ahead(void **state)
{
    (void)state;
    for (int s = 1; s <= 4; s += 3)
        for (int servers = -1; servers <= 1; servers += 2) {
            lab x;
            served(&x, 3, DDP_SSP, servers);
            x.cfg.deterministic = 0;
            x.cfg.server.staleness = s;
            x.steps = 20;
            x.before_step = clocks_are_watched;
            memset(done, 0, sizeof done);
            worst_gap = 0;
            lab_run(&x);
            /* the gap includes a step in progress. The other workers' steps are counted late. */
            if (worst_gap > s + 1 || worst_gap < s) fail_msg("staleness %d: %d steps apart", s, worst_gap);
            all_equal(&x, 3);
            lab_free(&x);
        }
}

/* ---- weights, parameters instead of gradients ---- */

static void means_are_weighted_by_samples(void **state)
{
    size_t count[LAB_LAYERS], at;
    static float g[LAB_RANKS][LAB_VALUES], p[LAB_VALUES];
    const ddp_optimizer o = lab_optimizer(LAB_SGD);
    const int W = 3, L = lab_sizes(LAB_ODD, count);

    (void)state;
    for (int servers = -1; servers <= 2; servers++) {
        lab x;
        if (!servers) continue;
        served(&x, W, DDP_BSP, servers);
        x.model = LAB_ODD;
        x.samples = 1;
        x.steps = 5;
        lab_run(&x);
        at = 0;
        for (int l = 0; l < L; at += count[l++]) {
            for (size_t i = 0; i < count[l]; i++) p[at + i] = lab_start(0, l, i);
            for (int step = 0; step < x.steps; step++) {
                for (int w = 0; w < W; w++) {
                    memset(g[w], 0, sizeof g[w]);
                    lab_gradient(p + at, g[w], count[l], w, l, step * 10);
                }
                for (size_t i = 0; i < count[l]; i++) {
                    float sum = 0, part;
                    for (int w = 0; w < W; w++) {
                        part = (float)((w + 1) / 6.0) * g[w][i];
                        DDP__ROUNDED(part);
                        sum = w ? sum + part : part;
                    }
                    part = o.lr * sum;
                    DDP__ROUNDED(part);
                    p[at + i] -= part;
                }
            }
        }
        assert_memory_equal(p, x.params[0], *x.values * sizeof(float));
        all_equal(&x, W);
        lab_free(&x);
    }
}

/* asp as in the paper: pushes contain parameters, which are mixed in. If all workers have the same data it is
 * sgd. */
static void pushed_parameters_are_mixed_in(void **state)
{
    lab a, x;

    (void)state;
    lab_new(&a, 1, DDP_SSGD, 3);
    served(&x, 1, DDP_ASP, 1);
    x.cfg.plan.paper = 1;
    lab_run(&a);
    lab_run(&x);
    for (size_t i = 0; i < *a.values; i++) assert_true(fabsf(a.params[0][i] - x.params[0][i]) < 1e-5f);
    lab_free(&x);
    served(&x, 3, DDP_ASP, -1);
    x.cfg.plan.paper = 1;
    lab_run(&x);
    all_equal(&x, 3);
    lab_free(&x);
    lab_free(&a);
}

/* ---- prediction ---- */

/* LAB_ODD's 14,540 floats need about 6 ms over this link. Without a described link there is no prediction. */
static void a_described_link_predicts_the_step(void **state)
{
    static const ddp_strategy each[] = {DDP_BSP, DDP_ASP, DDP_R2SP, DDP_OSP};

    (void)state;
    for (int s = 0; s < 4; s++)
        for (int servers = -1; servers <= 2; servers++) {
            lab x;
            served(&x, 2, each[s], servers ? servers : 1);
            x.model = LAB_ODD;
            x.cfg.net = servers ? "80mbit,1ms" : NULL;
            lab_run(&x);
            for (int r = 0; r < 2; r++) {
                const double said = x.stats[r].predicted_step_s;
                if (servers ? !(said > 0.005 && said < 0.2) : said != 0)
                    fail_msg("%s, servers %d: %g s", ddp_strategy_name(each[s]), servers, said);
            }
            lab_free(&x);
        }
}

/* ---- errors ---- */

static int trains_everywhere(ddp_ctx *d, void *user)
{
    float w[4] = {0}, g[4] = {0};
    ddp_layer layer;

    memset(&layer, 0, sizeof layer);
    layer.params = w;
    layer.grads = g;
    layer.count = 4;
    if (ddp_add_layer(d, &layer)) return 1;
    if (*(const int *)user) (void)ddp_serve(d); /* on workers too */
    for (int step = 0; step < 3; step++)
        if (ddp_backward_end(d, 0) || ddp_step_end(d)) break;
    return (int)ddp_last_error(d)->code;
}

static void invalid_settings_are_an_error(void **state)
{
    static const struct {
        ddp_strategy s;
        int world, servers, way;
        const char *says;
    } row[] = {
        {DDP_BSP, 3, 0, 0, "no servers: it needs servers"},
        {DDP_SSGD, 3, 1, 0, "servers 1: it does not use servers"},
        {DDP_BSP, 3, 3, 0, "servers 3: a world of 3 has no computing rank left"},
        {DDP_ASP, 3, -2, 0, "servers -2"},
        {DDP_BSP, 3, 1, 0, "rank 2 of 3 serves (servers 1): call ddp_serve there"},
        {DDP_BSP, 3, 1, 1, "computes; 1 rank serves"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof row / sizeof row[0]; i++) {
        lab x;
        ddp_error err;
        int way = row[i].way;
        lab_new(&x, row[i].world, row[i].s, 3);
        x.cfg.server.count = row[i].servers;
        assert_int_not_equal(ddp_launch(&x.cfg, trains_everywhere, &way, &err), 0);
        if (!strstr(err.msg, row[i].says)) fail_msg("'%s' instead of '%s'", err.msg, row[i].says);
        lab_free(&x);
    }
}

/* A worker that stops early ends a lock-step run with an error. */
static int leaves_early(ddp_ctx *d, void *user)
{
    float w[4] = {0}, g[4] = {0};
    ddp_layer layer;

    (void)user;
    memset(&layer, 0, sizeof layer);
    layer.params = w;
    layer.grads = g;
    layer.count = 4;
    if (ddp_add_layer(d, &layer)) return 1;
    for (int step = 0; step < (ddp_rank(d) ? 5 : 2); step++)
        if (ddp_backward_end(d, 0) || ddp_step_end(d)) break;
    return (int)ddp_last_error(d)->code;
}

static void different_numbers_of_steps_are_an_error(void **state)
{
    ddp_error err;
    lab x;

    (void)state;
    lab_new(&x, 3, DDP_BSP, 3);
    x.cfg.server.count = DDP_SERVERS_COLOCATED;
    assert_int_equal(ddp_launch(&x.cfg, leaves_early, NULL, &err), DDP_PEER_LOST);
    assert_non_null(strstr(err.msg, "same number of steps"));
    lab_free(&x);
}

/* ---- buffers: their mean over the workers, once ---- */

enum { STATISTICS = 64, WORKERS = 3 };

static float statistic(int rank, int i) { return 0.1f * (float)(7 * i + 1) + (float)rank / 3; }

static int with_buffers(ddp_ctx *d, void *user)
{
    float(*end)[STATISTICS] = (float(*)[STATISTICS])user, w[4] = {1, 2, 3, 4}, g[4] = {0},
    *own = end[ddp_rank(d)];
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_block b = {w, g, 4, DDP_PARAMS}, running = {own, NULL, STATISTICS, DDP_BUFFERS}, both[2];
    ddp_layer layer;

    memset(&layer, 0, sizeof layer);
    both[0] = b;
    both[1] = running;
    layer.blocks = both;
    layer.block_count = 2;
    if (ddp_add_layer(d, &layer) || ddp_set_optimizer(d, &o)) return 1;
    /* rank 0's buffers were sent with its parameters */
    if (ddp_backward_end(d, 0) || ddp_step_end(d)) return 1;
    for (int i = 0; i < STATISTICS; i++) own[i] = statistic(ddp_rank(d), i);
    return ddp_sync_all(d);
}

static void sync_all_averages_buffers_once(void **state)
{
    static const ddp_strategy some[] = {DDP_BSP, DDP_ASP, DDP_SSP, DDP_R2SP, DDP_OSP};
    static float end[WORKERS][STATISTICS];
    ddp_config c;
    ddp_error err;

    (void)state;
    for (int s = 0; s < 5; s++) {
        memset(&c, 0, sizeof c);
        c.world = WORKERS;
        c.strategy = some[s];
        c.server.count = DDP_SERVERS_COLOCATED;
        c.transport = DDP_THREADS;
        c.server.staleness = some[s] == DDP_SSP;
        c.no_env = 1;
        if (ddp_launch(&c, with_buffers, end, &err)) fail_msg("%s", err.msg);
        for (int i = 0; i < STATISTICS; i++) {
            volatile float sum = statistic(0, i) + statistic(1, i);
            sum += statistic(2, i);
            sum *= 1.0f / (float)WORKERS;
            for (int r = 0; r < WORKERS; r++)
                if (memcmp(&end[r][i], (const void *)&sum, sizeof(float)))
                    fail_msg("%s: buffer %d of rank %d is %.9g, their mean %.9g", ddp_strategy_name(some[s]),
                             i, r, (double)end[r][i], (double)sum);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bsp_is_bit_identical_to_ssgd_wherever_layers_are_served),
        cmocka_unit_test(pushes_in_turn_are_bit_identical_to_a_sequential_program),
        cmocka_unit_test(one_worker_under_any_rule_is_sgd),
        cmocka_unit_test(a_stopped_worker_does_not_stop_the_others),
        cmocka_unit_test(a_worker_may_be_hundreds_of_steps_behind),
        cmocka_unit_test(no_worker_is_more_than_staleness_steps_ahead),
        cmocka_unit_test(means_are_weighted_by_samples),
        cmocka_unit_test(pushed_parameters_are_mixed_in),
        cmocka_unit_test(a_described_link_predicts_the_step),
        cmocka_unit_test(invalid_settings_are_an_error),
        cmocka_unit_test(different_numbers_of_steps_are_an_error),
        cmocka_unit_test(sync_all_averages_buffers_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
