/* [asan] osp: bit-identical to bsp if no layer is deferred, else to a sequential program that splits,
 * predicts and corrects. */
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

static void late(lab *x, int workers, int servers, double defer)
{
    lab_new(x, workers + (servers > 0 ? servers : 0), DDP_OSP, 3);
    x->cfg.server.count = servers;
    x->cfg.osp.defer = defer;
    x->rates = 1;
    x->forward_hooks = workers % 2;
}

static void all_equal(const lab *x, int workers)
{
    for (int r = 1; r < workers; r++)
        assert_memory_equal(x->params[0], x->params[r], *x->values * sizeof(float));
}

/* ssgd with the same number of workers, or with one. */
static void as_ssgd(lab *x, int workers, const char *what)
{
    lab a;

    lab_new(&a, x->same_data ? 1 : workers, DDP_SSGD, 3);
    a.model = x->model;
    a.rule = x->rule;
    a.rates = x->rates;
    a.steps = x->steps;
    lab_run(&a);
    lab_run(x);
    if (memcmp(a.params[0], x->params[0], *a.values * sizeof(float)))
        fail_msg("%s: %d workers, servers %d, model %d, rule %d", what, workers, x->cfg.server.count,
                 (int)x->model, (int)x->rule);
    all_equal(x, workers);
    lab_free(&a);
}

static void without_deferral_it_is_bsp(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 5; workers += SAMPLED(2))
        for (int model = 0; model < LAB_MODELS; model++)
            for (int servers = -1; servers <= 2; servers++) {
                lab x;
                if (!servers) continue;
                /* without a loss nothing is deferred */
                late(&x, workers, servers, servers == 1 ? 0 : (double)DDP_DEFER_NONE);
                x.model = (lab_model)model;
                x.rule = (lab_rule)((workers + model + servers + 1) % LAB_RULES);
                as_ssgd(&x, workers, "S = 0");
                lab_free(&x);
            }
}

static void one_worker_predicts_exactly(void **state)
{
    static const double defer[] = {0.3, 0.6, 1};

    (void)state;
    for (int model = 0; model < LAB_MODELS; model++)
        for (int rule = 0; rule < LAB_RULES; rule++)
            for (int servers = -1; servers <= 2; servers++) {
                lab x;
                if (!servers) continue;
                late(&x, 1, servers, defer[(model + rule) % 3]);
                x.model = (lab_model)model;
                x.rule = (lab_rule)rule;
                as_ssgd(&x, 1, "one worker");
                assert_true(x.stats[0].deferred_pct > 0);
                lab_free(&x);
            }
}

static void workers_with_the_same_data_predict_exactly(void **state)
{
    (void)state;
    for (int workers = 2; workers <= 4; workers += 2)
        for (int rule = 0; rule < LAB_RULES; rule++) {
            lab x;
            late(&x, workers, rule - 1, 0.6);
            if (!x.cfg.server.count) continue;
            x.model = LAB_ODD;
            x.rule = (lab_rule)rule;
            x.same_data = 1;
            as_ssgd(&x, workers, "the same data");
            lab_free(&x);
        }
}

/* ---- the same without the library ---- */

typedef struct world {
    size_t count[LAB_LAYERS], at[LAB_LAYERS], all;
    int layers, workers;
    float p[LAB_VALUES], state[2 * LAB_VALUES], past[LAB_VALUES];                 /* servers */
    float own[LAB_RANKS][LAB_VALUES], g[LAB_RANKS][LAB_VALUES], mean[LAB_VALUES]; /* workers */
    double importance[LAB_LAYERS], bytes[LAB_LAYERS];
    long updates[LAB_LAYERS];
    double late_bytes, most_late;
} world;

static void step_of(const ddp_optimizer *o, world *x, int l, float *p, const float *g, float *state,
                    float rate)
{
    ddp_update u;

    memset(&u, 0, sizeof u);
    u.layer = l;
    u.params = p;
    u.grads = g;
    u.state = state;
    u.count = x->count[l];
    u.step = x->updates[l];
    u.lr = rate;
    o->update(o, &u);
}

/* Applies the mean of all gradients of layer l to the servers' model. */
static void globally(const ddp_optimizer *o, world *x, int l, float rate)
{
    const size_t at = x->at[l];
    ddp_error err;

    for (size_t i = at; i < at + x->count[l]; i++) {
        x->mean[i] = x->g[0][i];
        for (int w = 1; w < x->workers; w++) x->mean[i] += x->g[w][i];
        if (x->workers > 1) x->mean[i] *= 1.0f / (float)x->workers;
        x->past[i] = (float)(0.9f * x->past[i]) + (float)((1 - 0.9f) * x->mean[i]);
    }
    assert_int_equal(ddp_osp_importance(x->mean + at, x->p + at, x->count[l], 0, &x->importance[l], &err), 0);
    step_of(o, x, l, x->p + at, x->mean + at, x->state + 2 * at, rate);
    x->updates[l]++;
}

static void guess(const ddp_optimizer *o, world *x, int l, int w, ddp_lgp lgp, float rate)
{
    static float state[2 * LAB_VALUES], g[LAB_VALUES];
    const size_t at = x->at[l];

    memcpy(state, x->state + 2 * at, 2 * x->count[l] * sizeof *state);
    for (size_t i = 0; i < x->count[l]; i++)
        g[i] = lgp != DDP_LGP_EMA ? x->g[w][at + i]
                                  : (float)(0.9f * x->past[at + i]) + (float)((1 - 0.9f) * x->g[w][at + i]);
    if (lgp != DDP_LGP_OFF) step_of(o, x, l, x->own[w] + at, g, state, rate);
}

static void replay(const lab *like, int workers, world *x)
{
    const ddp_optimizer o = lab_optimizer(like->rule);
    unsigned char gib[1] = {0xff};
    ddp_error err;
    double deferred, model;

    memset(x, 0, sizeof *x);
    x->workers = workers;
    x->layers = lab_sizes(like->model, x->count);
    for (int l = 0; l < x->layers; l++) {
        x->at[l] = x->all;
        x->bytes[l] = 4.0 * (double)x->count[l];
        for (size_t i = 0; i < x->count[l]; i++) x->p[x->all++] = lab_start(0, l, i);
    }
    model = 4.0 * (double)x->all;
    for (int w = 0; w < workers; w++) memcpy(x->own[w], x->p, sizeof x->p);
    for (int step = 0; step < like->steps; step++) {
        const float rate = o.lr * (1.0f + 0.25f * (float)(step % 4));
        memset(x->g, 0, sizeof x->g);
        for (int w = 0; w < workers; w++)
            for (int l = 0; l < x->layers; l++)
                lab_gradient(x->own[w] + x->at[l], x->g[w] + x->at[l], x->count[l], w, l, step * 10);
        if (step > 0) {
            assert_int_equal(ddp_osp_rank(x->layers, x->importance, x->bytes, like->cfg.osp.defer * model,
                                          like->cfg.osp.split, gib, &deferred, &err),
                             0);
            x->late_bytes += deferred;
            if (deferred > x->most_late) x->most_late = deferred;
        }
        for (int l = 0; l < x->layers; l++) {
            const int now = gib[0] >> l & 1;
            const size_t at = x->at[l];
            /* the deferred data of workers is lost: they restart from the servers' previous parameters */
            for (int w = 0; w < workers; w++) memcpy(x->own[w] + at, x->p + at, x->count[l] * sizeof(float));
            for (int w = 0; w < workers && !now; w++) guess(&o, x, l, w, like->cfg.osp.lgp, rate);
            globally(&o, x, l, rate);
            for (int w = 0; w < workers && now; w++)
                memcpy(x->own[w] + at, x->p + at, x->count[l] * sizeof(float));
        }
    }
}

static void as_replayed(const lab *given, int workers)
{
    static world want;
    lab x = *given;

    replay(&x, workers, &want);
    lab_run(&x);
    assert_int_equal(*x.values, want.all);
    assert_true(want.late_bytes > 0 && want.most_late <= x.cfg.osp.defer * 4.0 * (double)want.all);
    for (int r = 0; r < workers; r++) {
        if (memcmp(want.p, x.params[r], want.all * sizeof(float)))
            fail_msg("%d workers, servers %d, model %d, rule %d, lgp %d, split %d: rank %d differs", workers,
                     x.cfg.server.count, (int)x.model, (int)x.rule, (int)x.cfg.osp.lgp, (int)x.cfg.osp.split,
                     r);
        assert_true(fabs(x.stats[r].deferred_pct -
                         100 * want.late_bytes / (4.0 * (double)want.all * x.steps)) < 1e-9);
    }
}

static void it_is_bit_identical_to_a_sequential_program(void **state)
{
    static const double defer[] = {0.2, 0.5, 1};

    (void)state;
    for (int workers = 1; workers <= 5; workers += SAMPLED(2))
        for (int lgp = DDP_LGP_ON; lgp <= DDP_LGP_EMA; lgp++)
            for (int servers = -1; servers <= 2; servers++) {
                lab x;
                if (!servers) continue;
                late(&x, workers, servers, defer[(workers + lgp) % 3]);
                x.model = (workers + servers) % 3 ? LAB_ODD : LAB_TINY;
                x.rule = (lab_rule)((workers + lgp + servers + 1) % LAB_RULES);
                x.cfg.osp.lgp = (ddp_lgp)lgp;
                x.cfg.osp.split = (ddp_osp_rule)((workers + servers + 1) % 4);
                if (servers == 2 && workers == 3) x.cfg.transport = DDP_TCP;
                if (x.model == LAB_TINY) {
                    x.cfg.osp.defer = 0.7;
                    x.cfg.osp.split = DDP_OSP_WALK;
                }
                as_replayed(&x, workers);
                lab_free(&x);
            }
}

/* Graph models over TCP with forward hooks too: threads and TCP, separate and colocated servers are
 * bit-identical. */
static void placement_of_servers_does_not_change_the_result(void **state)
{
    (void)state;
    for (int model = LAB_MLP; model <= LAB_GPT; model++) {
        lab a, b, c;
        late(&a, 3, -1, 0.5);
        late(&b, 3, 1, 0.5);
        late(&c, 3, 2, 0.5);
        a.model = b.model = c.model = (lab_model)model;
        a.rule = b.rule = c.rule = LAB_ADAMW;
        c.cfg.transport = DDP_TCP;
        lab_run(&a);
        lab_run(&b);
        lab_run(&c);
        assert_memory_equal(a.params[0], b.params[0], *a.values * sizeof(float));
        assert_memory_equal(a.params[0], c.params[0], *a.values * sizeof(float));
        all_equal(&a, 3);
        assert_true(a.stats[0].deferred_pct > 20 && a.stats[0].deferred_pct <= 50);
        lab_free(&a);
        lab_free(&b);
        lab_free(&c);
    }
}

/* All layers deferred, without prediction: the gradient of step t is taken at the parameters before the
 * update of step t - 1. */
static void all_deferred_without_prediction_is_one_step_stale(void **state)
{
    static float before[LAB_VALUES], now[LAB_VALUES], mean[LAB_VALUES], g[LAB_VALUES];
    size_t count[LAB_LAYERS], at = 0;
    const ddp_optimizer o = lab_optimizer(LAB_SGD);
    const int W = 3;
    lab x;

    (void)state;
    late(&x, W, -1, 1);
    x.rates = 0;
    x.cfg.osp.lgp = DDP_LGP_OFF;
    x.model = LAB_ODD;
    lab_run(&x);
    for (int l = 0; l < lab_sizes(LAB_ODD, count); at += count[l++]) {
        for (size_t i = 0; i < count[l]; i++) before[i] = now[i] = lab_start(0, l, i);
        for (int step = 0; step < x.steps; step++) {
            for (int w = 0; w < W; w++) {
                memset(g, 0, sizeof g);
                lab_gradient(step == 1 ? now : before, g, count[l], w, l, step * 10);
                for (size_t i = 0; i < count[l]; i++) mean[i] = w ? mean[i] + g[i] : g[i];
            }
            memcpy(before, now, sizeof now);
            for (size_t i = 0; i < count[l]; i++) {
                float change = mean[i] * (1.0f / (float)W);
                DDP__ROUNDED(change);
                change *= o.lr;
                DDP__ROUNDED(change);
                now[i] -= change;
            }
        }
        assert_memory_equal(now, x.params[1] + at, count[l] * sizeof(float));
    }
    lab_free(&x);
}

/* Eq. 7 as printed has rounding errors that restoring the parameters avoids. */
static void correcting_as_printed_stays_within_rounding(void **state)
{
    (void)state;
    for (int servers = -1; servers <= 1; servers += 2) {
        lab a, b;
        double far = 0;
        late(&a, 3, servers, 0.7);
        late(&b, 3, servers, 0.7);
        a.steps = b.steps = 1000;
        a.rates = b.rates = 0;
        b.cfg.plan.paper = 1;
        lab_run(&a);
        lab_run(&b);
        assert_true(a.stats[0].deferred_pct > 10);
        for (size_t i = 0; i < *a.values; i++) {
            const double one = (double)a.params[0][i],
                         d = fabs(one - (double)b.params[0][i]) / (fabs(one) + 1e-3);
            if (d > far) far = d;
        }
        if (!(far < 1e-5)) fail_msg("%g apart after 1000 iterations", far);
        all_equal(&b, 3);
        lab_free(&a);
        lab_free(&b);
    }
}

/* ---- each gradient is applied once ---- */

static int updated[2]; /* floats updated by the tiny model's workers and servers; atomic */

static void counted_sgd(const ddp_optimizer *self, const ddp_update *u)
{
    (void)self;
    ddp__atomic_add(&updated[0], (int)u->count);
    for (size_t i = 0; i < u->count; i++) u->params[i] -= u->lr * u->grads[i];
}

static void each_gradient_is_applied_once(void **state)
{
    ddp_optimizer o = ddp_sgd(0.05f, 0);
    lab x;

    (void)state;
    o.update = counted_sgd;
    late(&x, 3, 1, 0.7);
    x.optimizer = &o;
    x.cfg.osp.lgp = DDP_LGP_OFF; /* predictions call updates too */
    updated[0] = 0;
    lab_run(&x);
    /* three replicas and the server update every float once per step */
    assert_int_equal(updated[0], 4 * 11 * x.steps);
    lab_free(&x);
}

/* ---- the deferred share ---- */

static void the_deferred_share_follows_the_loss(void **state)
{
    lab x;

    (void)state;
    late(&x, 3, -1, 0);
    x.model = LAB_ODD;
    x.epoch_steps = 4;
    x.cfg.net = "1000mbit,1ms";
    x.steps = 8;
    lab_run(&x); /* the first two epochs */
    for (int r = 0; r < 3; r++) assert_true(x.stats[r].deferred_pct == 0);
    x.steps = 24;
    lab_run(&x);
    assert_true(x.stats[0].deferred_pct > 0 && x.stats[0].deferred_pct < 80);
    all_equal(&x, 3);
    lab_free(&x);
}

static void eager_correction_gives_the_same_result(void **state)
{
    lab x;

    (void)state;
    for (int servers = -1; servers <= 1; servers += 2) {
        late(&x, 3, servers, 0.6);
        x.model = LAB_ODD;
        x.cfg.deterministic = 0;
        x.cfg.osp.correct = DDP_CORRECT_EAGER;
        x.forward_hooks = 1;
        lab_run(&x);
        assert_true(x.stats[0].deferred_pct > 30);
        all_equal(&x, 3);
        lab_free(&x);
    }
}

/* Nine steps. waits: calls ddp_wait after each step; less: rank 1 pushes whole layers from the fifth step
 * on. */
static int by_hand(ddp_ctx *d, lab *x, int waits, int less)
{
    float w[3][50], g[3][50];
    int bad = 0;

    memset(g, 0, sizeof g);
    for (int l = 0; l < 3; l++) {
        ddp_layer layer;
        for (size_t i = 0; i < 50; i++) w[l][i] = lab_start(0, l, i);
        memset(&layer, 0, sizeof layer);
        layer.params = w[l];
        layer.grads = g[l];
        layer.count = 50;
        if (ddp_add_layer(d, &layer)) return 1;
    }
    if (lab_serves(d)) return ddp_serve(d);
    for (int step = 0; step < 9 && !bad; step++) {
        if (less && ddp_rank(d) == 1 && step == 4) d->cfg.osp.defer = DDP_DEFER_NONE;
        for (int l = 2; l >= 0 && !bad; l--) {
            lab_gradient(w[l], g[l], 50, ddp_rank(d), l, step);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        if (!bad && waits) bad = ddp_wait(d);
    }
    memcpy(x->params[ddp_rank(d)], w, sizeof w);
    return bad;
}

/* Calling ddp_wait between steps, as an evaluation does, does not change later results. */
static int waits_often(ddp_ctx *d, void *user)
{
    return by_hand(d, (lab *)user, ((lab *)user)->samples > 0, 0);
}

static void waiting_does_not_change_the_result(void **state)
{
    ddp_error err;
    lab a, b;

    (void)state;
    late(&a, 2, -1, 0.7);
    late(&b, 2, -1, 0.7);
    b.samples = 1;
    assert_int_equal(ddp_launch(&a.cfg, waits_often, &a, &err), 0);
    assert_int_equal(ddp_launch(&b.cfg, waits_often, &b, &err), 0);
    for (int r = 0; r < 2; r++) assert_memory_equal(a.params[r], b.params[r], 150 * sizeof(float));
    lab_free(&a);
    lab_free(&b);
}

/* All workers must push the same layers at once. A worker that does not causes an error. */
static int defers_less(ddp_ctx *d, void *user) { return by_hand(d, (lab *)user, 0, 1); }

static void pushes_of_different_layers_are_an_error(void **state)
{
    ddp_error err;
    lab x;

    (void)state;
    for (int servers = -1; servers <= 1; servers += 2) {
        late(&x, 3, servers, 0.7);
        assert_int_equal(ddp_launch(&x.cfg, defers_less, &x, &err), DDP_MISMATCH);
        if (!strstr(err.msg, "rank 1 pushes other layers than rank 0")) fail_msg("'%s'", err.msg);
        lab_free(&x);
    }
}

/* ---- U_max follows the link ---- */

enum { BEFORE = 45, STEPS = 75, LOOKED = 11 };
/* of the last steps before and after the change. A step's value depends on its own computing time. */
static double u_max[2][LOOKED];

/* One layer of 16 floats and nine of 1,500; 5 ms of computing. No epoch ends after step BEFORE. */
static int drifts(ddp_ctx *d, void *user)
{
    static float w[3][10 * 1500], g[3][10 * 1500];
    const double begin = ddp_now();
    const int r = ddp_rank(d);
    int bad = 0;

    (void)user;
    for (int l = 0; l < 10; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w[r] + l * 1500;
        layer.grads = g[r] + l * 1500;
        layer.count = l ? 1500 : 16;
        if (ddp_add_layer(d, &layer)) return 1;
    }
    if (lab_serves(d)) return ddp_serve(d);
    for (int step = 0; step < STEPS && !bad; step++) {
        ddp_step_info info;
        memset(&info, 0, sizeof info);
        info.epoch = step < BEFORE ? step / 10 : BEFORE / 10;
        info.loss = 2.0 / (1 + info.epoch);
        for (int l = 0; l < 10 && !bad; l++) bad = ddp_forward_begin(d, l);
        ddp_sleep_until(ddp_now() + 5e-3);
        for (int l = 9; l >= 0 && !bad; l--) {
            for (int i = 0; i < 16; i++) g[r][l * 1500 + i] = 1;
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_report(d, &info) || ddp_step_end(d);
        if (r) continue;
        for (int i = 0; i < ddp__count(d->exchange->kept); i++) /* ddp__late_numbers */
            if (!strcmp(d->exchange->kept[i].name, "deferral"))
                u_max[step > BEFORE][step % LOOKED] =
                    ((const double *)(const void *)d->exchange->kept[i].data)[6];
        /* sleeps without a hook: no rank computes or sends */
        if (step == BEFORE) ddp_sleep_until(begin + 3.2);
    }
    return bad;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void a_slower_link_lowers_the_deferred_share(void **state)
{
    double was, is;
    char path[] = "/tmp/ddp_slow_XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");
    ddp_error err;
    lab x;

    (void)state;
    assert_non_null(f);
    fprintf(f, "t=3 slow 2 to 10mbit\n"); /* the server's link, before: 80 Mbit/s */
    fclose(f);
    lab_new(&x, 3, DDP_OSP, 1);
    x.cfg.server.count = 1;
    x.cfg.deterministic = 0;
    x.cfg.net = "80mbit,0.2ms";
    x.cfg.network.net_script = path;
    if (ddp_simulate(&x.cfg, NULL, drifts, NULL, NULL, &err)) fail_msg("%s", err.msg);
    unlink(path);
    for (int i = 0; i < 2; i++) qsort(u_max[i], LOOKED, sizeof u_max[i][0], by_size);
    was = u_max[0][LOOKED / 2];
    is = u_max[1][LOOKED / 2];
    if (!(was > 2000 && is > 0 && was > 2.5 * is))
        fail_msg("U_max %g bytes before and %g after the link became 8 times slower", was, is);
    lab_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_deferral_it_is_bsp),
        cmocka_unit_test(one_worker_predicts_exactly),
        cmocka_unit_test(workers_with_the_same_data_predict_exactly),
        cmocka_unit_test(it_is_bit_identical_to_a_sequential_program),
        cmocka_unit_test(placement_of_servers_does_not_change_the_result),
        cmocka_unit_test(all_deferred_without_prediction_is_one_step_stale),
        cmocka_unit_test(correcting_as_printed_stays_within_rounding),
        cmocka_unit_test(each_gradient_is_applied_once),
        cmocka_unit_test(the_deferred_share_follows_the_loss),
        cmocka_unit_test(eager_correction_gives_the_same_result),
        cmocka_unit_test(waiting_does_not_change_the_result),
        cmocka_unit_test(pushes_of_different_layers_are_an_error),
        cmocka_unit_test(a_slower_link_lowers_the_deferred_share),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
