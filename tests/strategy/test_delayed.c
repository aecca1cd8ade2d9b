/* [long] deft: bit-identical to a plain loop that applies the plan's sums. Without delay it is ssgd; with one
 * part pending it is SGD with a delay of one. No gradient is lost, and a second link does not change the
 * result. */
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

/* ---- deft with a plan given by the test ---- */

static const ddp_delayed_plan *given; /* returned by make; NULL: without delay */
static int one_link;                  /* 1: all its messages use the first link */

static int make(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out)
{
    ddp__hardware w;
    ddp__schedule s;
    int bad;

    (void)measured;
    if (!given) return ddp__delayed_make(d, self, p, 0, out);
    memset(&w, 0, sizeof w);
    w.profile = p;
    w.mu = 1;
    bad = ddp__schedule_pack(d, given, &w, -1, out);
    for (int i = 0; one_link && !bad && i < given->sends; i++) {
        memcpy(&s.head, out->bytes, sizeof s.head);
        if (i == s.head.messages) break;
        ((ddp__parcel *)(void *)(out->bytes + out->size))[-1 - i].what &= ~1;
    }
    return bad;
}

static int64_t over_second; /* bytes that rank 0 had sent over the second link at its last wait */

static int wait_and_count(ddp_ctx *d, void *self)
{
    ddp_link_stats stats;
    ddp_strategy_ops ops;

    memset(&ops, 0, sizeof ops);
    ddp__strategy_deft(&ops);
    if (ddp_rank(d) == 0 && ddp_links(d) == 2 && !ddp_get_link_stats(d, 1, &stats))
        over_second = stats.bytes_sent;
    return ops.wait(d, self);
}

static const ddp_strategy_ops *deft(void)
{
    static ddp_strategy_ops ops;

    memset(&ops, 0, sizeof ops);
    ddp__strategy_deft(&ops);
    ops.name = "given";
    ops.plan_make = make;
    ops.wait = wait_and_count;
    return &ops;
}

/* Random times for the layers of a hand model. comm: of all layers, relative to forward and backward. */
static void plan_of(lab_model model, double comm, const ddp_delayed_options *o, uint64_t seed,
                    ddp_delayed_plan *plan)
{
    size_t count[LAB_LAYERS];
    const int layers = lab_sizes(model, count);
    ddp_rng r = ddp_rng_seed(seed, 1);
    double compute = 0, all = 0;
    ddp_profile p;
    ddp_error err;

    assert_int_equal(ddp_profile_new(layers, &p, &err), DDP_OK);
    for (int l = 0; l < layers; l++) {
        p.params[l] = (double)count[l];
        p.forward_s[l] = 0.2 + ddp_rng_uniform(&r);
        p.backward_s[l] = 2 * p.forward_s[l];
        p.comm_s[l] = 0.1 + ddp_rng_uniform(&r);
        compute += 3 * p.forward_s[l];
        all += p.comm_s[l];
    }
    for (int l = 0; l < layers; l++) p.comm_s[l] *= comm * compute / all;
    if (ddp_plan_delayed(&p, o, plan, &err)) fail_msg("%s", err.msg);
    ddp_profile_free(&p);
}

static ddp_delayed_options options(int links)
{
    ddp_delayed_options o;

    memset(&o, 0, sizeof o);
    o.links = links;
    if (links == 2) o.mu = 1.65;
    return o;
}

/* ---- the same without the library ---- */

typedef struct replay {
    const lab *x;
    size_t count[LAB_LAYERS];
    int layers, updates;
    float *w[LAB_LAYERS], *state[LAB_LAYERS], *live;
    float *fut[LAB_RANKS][LAB_LAYERS], *cur[LAB_RANKS][LAB_LAYERS];
    float rate;
} replay;

/* The mean over the ranks of their merged gradients; one update. */
static void replay_apply(replay *p)
{
    ddp_optimizer o = lab_optimizer(p->x->rule);
    ddp_update u;

    for (int l = p->layers - 1; l >= 0; l--) {
        float *parts[LAB_RANKS];
        for (int k = 0; k < p->x->cfg.world; k++) parts[k] = p->cur[k][l];
        lab_mean(parts, p->x->cfg.world, p->count[l]);
        memset(&u, 0, sizeof u);
        u.layer = l;
        u.params = p->w[l];
        u.grads = p->cur[0][l];
        u.state = p->state[l];
        u.count = p->count[l];
        u.step = p->updates;
        u.lr = p->rate;
        o.update(&o, &u);
    }
    p->updates++;
}

/* The stored gradients of k iterations become the pending ones. */
static void replay_open(replay *p, int k, float rate)
{
    for (int r = 0; r < p->x->cfg.world; r++)
        for (int l = 0; l < p->layers; l++)
            for (size_t i = 0; i < p->count[l]; i++) {
                float g = p->fut[r][l][i];
                if (k > 1 && !p->x->cfg.deft.merge_sum) g *= 1.0f / (float)k;
                p->cur[r][l][i] = g;
            }
    p->rate = rate;
}

static void replay_gradients(replay *p, int step, int stored)
{
    for (int r = 0; r < p->x->cfg.world; r++)
        for (int l = 0; l < p->layers; l++) {
            memset(p->live, 0, p->count[l] * sizeof *p->live);
            lab_gradient(p->w[l], p->live, p->count[l], r, l, step * 10);
            for (size_t i = 0; i < p->count[l]; i++)
                p->fut[r][l][i] = stored ? p->fut[r][l][i] + p->live[i] : p->live[i];
        }
}

/* plan: only its steps are used; drain: the result after ddp_sync_all. */
static void replayed(const lab *x, const ddp_delayed_plan *plan, int drain, float *out)
{
    const ddp_optimizer o = lab_optimizer(x->rule);
    int stored = 0, pending = 0, t = 0;
    size_t at = 0;
    float rate = o.lr;
    replay p;

    memset(&p, 0, sizeof p);
    p.x = x;
    p.layers = lab_sizes(x->model, p.count);
    p.live = (float *)calloc(LAB_VALUES, sizeof *p.live);
    for (int l = 0; l < p.layers; l++) {
        p.w[l] = (float *)calloc(p.count[l], sizeof(float));
        p.state[l] = (float *)calloc(2 * p.count[l], sizeof(float));
        for (int r = 0; r < x->cfg.world; r++) p.fut[r][l] = (float *)calloc(p.count[l], sizeof(float));
        for (int r = 0; r < x->cfg.world; r++) p.cur[r][l] = (float *)calloc(p.count[l], sizeof(float));
        for (size_t i = 0; i < p.count[l]; i++) p.w[l][i] = lab_start(0, l, i);
    }
    for (int step = 0; step < x->steps; step++) {
        const ddp_delayed_step *s = &plan->step[t];
        if (x->rates) rate = o.lr * (1.0f + 0.25f * (float)(step % 4));
        replay_gradients(&p, step, stored++);
        if (s->applied) replay_apply(&p);
        if (s->opened) {
            assert_int_equal(s->opened, stored);
            replay_open(&p, stored, rate);
            pending = 1;
            stored = 0;
        }
        if (s->applied_now) {
            replay_apply(&p);
            pending = 0;
        }
        if (++t == plan->warmup + plan->period) t = plan->warmup;
    }
    if (drain && pending) replay_apply(&p);
    if (drain && stored) {
        replay_open(&p, stored, rate);
        replay_apply(&p);
    }
    for (int l = 0; l < p.layers; l++) {
        memcpy(out + at, p.w[l], p.count[l] * sizeof *out);
        at += p.count[l];
        free(p.w[l]);
        free(p.state[l]);
        for (int r = 0; r < x->cfg.world; r++) {
            free(p.fut[r][l]);
            free(p.cur[r][l]);
        }
    }
    free(p.live);
}

/* ---- tests ---- */

static void ranks_are_equal(const lab *x, const char *what)
{
    for (int r = 1; r < x->cfg.world; r++)
        if (memcmp(x->params[0], x->params[r], *x->values * sizeof(float)))
            fail_msg("%s: rank %d differs from rank 0, %d workers, %d steps", what, r, x->cfg.world,
                     x->steps);
}

/* Trains by the plan and compares the result with the loop. */
static void as_replayed(const lab *like, const ddp_delayed_plan *plan, const char *what)
{
    static float want[LAB_VALUES];
    lab x;

    lab_new(&x, like->cfg.world, DDP_DEFT, 3);
    x.cfg.own_strategy = deft();
    x.cfg.transport = like->cfg.transport ? like->cfg.transport : DDP_THREADS;
    x.cfg.network.net2 = like->cfg.network.net2;
    x.cfg.deft.merge_sum = like->cfg.deft.merge_sum;
    x.cfg.plan.paper = like->cfg.plan.paper;
    x.model = like->model;
    x.rule = like->rule;
    x.steps = like->steps;
    x.forward_hooks = like->forward_hooks;
    x.no_sync_all = like->no_sync_all;
    x.rates = 1;
    given = plan;
    lab_run(&x);
    replayed(&x, plan, !x.no_sync_all, want);
    ranks_are_equal(&x, what);
    if (memcmp(want, x.params[0], *x.values * sizeof(float)))
        fail_msg("%s: differs from the loop, %d workers, model %d, rule %d, %d steps", what, x.cfg.world,
                 (int)x.model, (int)x.rule, x.steps);
    lab_free(&x);
}

static lab like_this(int world, lab_model model, lab_rule rule, int steps)
{
    lab x;

    memset(&x, 0, sizeof x);
    x.cfg.world = world;
    x.model = model;
    x.rule = rule;
    x.steps = steps;
    x.forward_hooks = steps % 2;
    return x;
}

static void a_plain_loop_with_the_plans_sums_is_bit_identical(void **state)
{
    static const double comm[] = {0.4, 1.1, 2.3};
    int merged = 0, most = 0;

    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int i = 0; i < 9; i++) {
            ddp_delayed_options o = options(1 + i % 2);
            ddp_delayed_plan plan;
            lab x = like_this(world, i % 3 ? LAB_ODD : LAB_TINY, (lab_rule)((world + i) % LAB_RULES), 9 + i);
            o.no_barrier = i == 4;
            o.select = i == 6 ? DDP_SELECT_PAPER : DDP_SELECT_RELEASE;
            o.partition_params = i % 3 == 1 ? 500 : 0;
            plan_of(x.model, comm[i % 3], &o, (uint64_t)(10 * world + i), &plan);
            if (plan.links == 2 && world > 1) x.cfg.network.net2 = "1gbit,0ms";
            x.cfg.plan.paper = o.select == DDP_SELECT_PAPER;
            x.cfg.deft.merge_sum = i == 5;
            as_replayed(&x, &plan, "replay");
            for (int u = 0; u < plan.updates; u++) {
                merged += plan.k[u] > 1;
                most = plan.k[u] > most ? plan.k[u] : most;
            }
            ddp_delayed_plan_free(&plan);
        }
    assert_true(merged > 0 && most > 1);
}

static void replicas_are_equal_after_every_iteration(void **state)
{
    ddp_delayed_options o = options(1);
    ddp_delayed_plan plan;

    (void)state;
    plan_of(LAB_ODD, 1.4, &o, 3, &plan);
    for (int steps = 1; steps <= 12; steps++) {
        lab x = like_this(3, LAB_ODD, LAB_ADAMW, steps);
        x.no_sync_all = 1;
        as_replayed(&x, &plan, "not drained");
    }
    ddp_delayed_plan_free(&plan);
}

static void tcp_is_bit_identical(void **state)
{
    ddp_delayed_options o = options(2);
    ddp_delayed_plan plan;
    lab x = like_this(3, LAB_ODD, LAB_MOMENTUM, 10);

    (void)state;
    plan_of(LAB_ODD, 1.7, &o, 5, &plan);
    x.cfg.transport = DDP_TCP;
    x.cfg.network.net2 = "1gbit,0ms";
    as_replayed(&x, &plan, "tcp");
    ddp_delayed_plan_free(&plan);
}

static void without_delay_it_is_ssgd(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int model = 0; model < LAB_MODELS; model++)
            for (int tcp = 0; tcp < (world == 3 ? 2 : 1); tcp++) {
                lab a, b;
                lab_new(&a, world, DDP_SSGD, 3);
                lab_new(&b, world, DDP_DEFT, 3);
                a.model = b.model = (lab_model)model;
                a.rule = b.rule = (lab_rule)((world + model) % LAB_RULES);
                a.rates = b.rates = 1;
                a.forward_hooks = b.forward_hooks = world % 2;
                a.cfg.micro_batches = b.cfg.micro_batches = model == LAB_ODD ? 3 : 1;
                b.cfg.own_strategy = deft();
                if (tcp) b.cfg.transport = DDP_TCP;
                given = NULL;
                lab_run(&a);
                lab_run(&b);
                ranks_are_equal(&b, "without delay");
                if (memcmp(a.params[0], b.params[0], *a.values * sizeof(float)))
                    fail_msg("without delay: differs from ssgd: %d workers, model %d", world, model);
                lab_free(&a);
                lab_free(&b);
            }
}

/* Everything fits but the part that is ready when backward ends: w' = w - rate g(the w before). */
static void with_one_part_pending_it_is_sgd_with_a_delay_of_one(void **state)
{
    ddp_delayed_options o = options(1);
    ddp_delayed_plan plan;

    (void)state;
    for (int world = 1; world <= 4; world++) {
        lab x = like_this(world, LAB_ODD, LAB_SGD, 8);
        plan_of(LAB_ODD, 0.2, &o, 4, &plan);
        assert_true(plan.warmup == 1 && plan.period == 1 && plan.updates == 1);
        assert_true(plan.k[0] == 1 && plan.delay[0] == 1);
        assert_true(plan.step[0].applied == 0 && plan.step[1].applied == 1 && plan.step[1].applied_now == 0);
        as_replayed(&x, &plan, "a delay of one");
        ddp_delayed_plan_free(&plan);
    }
}

static void two_links_are_bit_identical_to_one(void **state)
{
    ddp_delayed_options o = options(2);
    ddp_delayed_plan plan;
    int second = 0;

    (void)state;
    o.partition_params = 700;
    plan_of(LAB_ODD, 1.5, &o, 6, &plan);
    for (int i = 0; i < plan.sends; i++) second += plan.send[i].link;
    assert_true(plan.links == 2 && second > 0 && second < plan.sends);
    given = &plan;
    for (int world = 2; world <= 5; world += 3) {
        lab two, one;
        lab_new(&two, world, DDP_DEFT, 3);
        lab_new(&one, world, DDP_DEFT, 3);
        one.model = two.model = LAB_ODD;
        one.rule = two.rule = LAB_ADAMW;
        one.cfg.own_strategy = two.cfg.own_strategy = deft();
        two.cfg.network.net2 = "1gbit,0ms";
        over_second = 0;
        lab_run(&two);
        assert_true(over_second > 4 * 4099); /* the longest layers are split */
        one_link = 1;
        lab_run(&one);
        one_link = 0;
        assert_memory_equal(one.params[0], two.params[0], *one.values * sizeof(float));
        lab_free(&two);
        lab_free(&one);
    }
    ddp_delayed_plan_free(&plan);
}

/* Sum of k over the period = its iterations; data sent = updates x model; the statistics agree. */
static void a_period_sends_the_model_once_for_each_update(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        ddp_delayed_options o = options(1);
        ddp_delayed_plan plan;
        int64_t bytes[2];
        double want;
        int sum = 0;
        plan_of(LAB_ODD, 0.5 + 0.4 * i, &o, (uint64_t)i, &plan);
        for (int u = 0; u < plan.updates; u++) sum += plan.k[u];
        assert_int_equal(sum, plan.period);
        given = &plan;
        for (int run = 0; run < 2; run++) {
            lab x;
            lab_new(&x, 2, DDP_DEFT, 3);
            x.cfg.own_strategy = deft();
            x.model = LAB_ODD;
            x.no_sync_all = 1;
            x.steps = plan.warmup + (run + 1) * plan.period;
            lab_run(&x);
            bytes[run] = x.stats[0].bytes_sent;
            want = plan.updates * (double)(*x.values * sizeof(float));
            lab_free(&x);
        }
        if (!(fabs((double)(bytes[1] - bytes[0]) - want) < 0.06 * want))
            fail_msg("%.0f bytes in a period of %d updates, expected %.0f", (double)(bytes[1] - bytes[0]),
                     plan.updates, want);
        ddp_delayed_plan_free(&plan);
    }
}

/* The sum of gradients that are 1 in every step: after draining, the distance from the start is the number of
 * steps. */
static int constant_gradients(ddp_ctx *d, void *user)
{
    static const size_t count[3] = {300, 5, 1200};
    const int steps = *(const int *)user;
    float *w[3], *g[3];
    ddp_optimizer o = ddp_sgd(0.25f, 0);
    int bad = 0, lost = 0;

    for (int l = 0; l < 3; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        w[l] = (float *)calloc(count[l], sizeof(float));
        g[l] = (float *)calloc(count[l], sizeof(float));
        layer.params = w[l];
        layer.grads = g[l];
        layer.count = count[l];
        bad |= ddp_add_layer(d, &layer);
    }
    bad |= ddp_set_optimizer(d, &o);
    for (int step = 0; step < steps && !bad; step++) {
        for (int l = 2; l >= 0 && !bad; l--) {
            for (size_t i = 0; i < count[l]; i++) lost |= g[l][i] != 0;
            for (size_t i = 0; i < count[l]; i++) g[l][i] = 1;
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        if (!bad && step == 8) bad = ddp_sync_all(d); /* drains in between too */
    }
    if (!bad) bad = ddp_sync_all(d);
    for (int l = 0; l < 3; l++) {
        for (size_t i = 0; i < count[l]; i++) lost |= w[l][i] != -0.25f * (float)steps;
        free(w[l]);
        free(g[l]);
    }
    return bad ? bad : lost ? (int)DDP_NUMERIC : 0;
}

static void no_gradient_is_lost(void **state)
{
    ddp_error err;

    (void)state;
    for (int world = 1; world <= 4; world++)
        for (int steps = 1; steps <= 21; steps += 2) {
            lab x;
            lab_new(&x, world, DDP_DEFT, 3);
            x.cfg.deft.merge_sum = 1;
            x.cfg.net = "10mbit,1ms"; /* one worker also computes a plan from it */
            if (ddp_launch(&x.cfg, constant_gradients, &steps, &err))
                fail_msg("%d workers, %d steps: %s", world, steps, err.msg);
            lab_free(&x);
        }
}

/* The built-in strategy, with a plan from the deterministic profile. */
static void ranks_are_equal_for_every_model_rule_and_coding(void **state)
{
    static const ddp_wire wire[] = {DDP_WIRE_F32, DDP_WIRE_BF16, DDP_WIRE_INT8};

    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int model = 0; model < LAB_MODELS; model++)
            for (int w = 0; w < 3; w++) {
                lab a, b;
                lab_new(&a, world, DDP_DEFT, 3);
                lab_new(&b, world, DDP_DEFT, 3);
                a.model = b.model = (lab_model)model;
                a.rule = b.rule = (lab_rule)((world + model) % LAB_RULES);
                a.steps = b.steps = 20;
                a.cfg.wire = b.cfg.wire = wire[w];
                a.cfg.net = b.cfg.net = model == LAB_ODD ? "10gbit" : "400gbit";
                a.forward_hooks = 1;
                if (world == 3) b.cfg.transport = DDP_TCP;
                lab_run(&a);
                lab_run(&b);
                ranks_are_equal(&a, "built in");
                assert_memory_equal(a.params[0], b.params[0], *a.values * sizeof(float));
                lab_free(&a);
                lab_free(&b);
            }
}

/* With a measured plan, and plans made again when the noise requires it, ranks stay equal. */
static void a_measured_plan_keeps_ranks_equal(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        lab x;
        lab_new(&x, world, DDP_DEFT, 2);
        x.cfg.deterministic = 0;
        x.cfg.profile_steps = 4;
        x.cfg.net = "50mbit,1ms";
        x.cfg.network.net2 = world == 3 ? "30mbit,1ms" : NULL;
        x.cfg.deft.no_barrier = world == 4;
        x.model = LAB_GPT;
        x.rule = LAB_ADAMW;
        x.steps = 60;
        lab_run(&x);
        ranks_are_equal(&x, "measured");
        lab_free(&x);
    }
}

/* ---- the Preserver ---- */

static ddp__noise seen;

static int look_at_noise(ddp_ctx *d, void *self, int forward)
{
    ddp_strategy_ops ops;

    memset(&ops, 0, sizeof ops);
    ddp__strategy_deft(&ops);
    if (ddp_rank(d) == 0) seen = ((const ddp__delayed *)self)->noise;
    return ops.step_end(d, self, forward);
}

/* Gradients of 1 with a uniform noise from -1 to 1, which never move: |g|^2 = n, the variance of g . g_w = n
 * / 3. */
static int noisy_gradients(ddp_ctx *d, void *user)
{
    enum { COUNT = 3000 };
    float *w = (float *)calloc(COUNT, sizeof *w), *g = (float *)calloc(COUNT, sizeof *g);
    ddp_rng r = ddp_rng_seed(11, (uint64_t)ddp_rank(d));
    ddp_optimizer o = ddp_sgd(0, 0);
    ddp_step_info info;
    ddp_layer layer;
    int bad;

    (void)user;
    memset(&layer, 0, sizeof layer);
    memset(&info, 0, sizeof info);
    layer.params = w;
    layer.grads = g;
    layer.count = COUNT;
    bad = ddp_add_layer(d, &layer) || ddp_set_optimizer(d, &o);
    for (int step = 0; step < 60 && !bad; step++) {
        for (int i = 0; i < COUNT; i++) g[i] = 1 + 2 * (float)ddp_rng_uniform(&r) - 1;
        info.loss = 100 - step - ddp_rank(d); /* decreases by one per step */
        bad = ddp_backward_end(d, 0) || ddp_report(d, &info) || ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    free(w);
    free(g);
    return bad;
}

static void the_noise_estimate_is_the_noise_of_the_gradients(void **state)
{
    ddp_strategy_ops ops = *deft();
    ddp_error err;
    lab x;

    (void)state;
    lab_new(&x, 5, DDP_DEFT, 3);
    ops.step_end = look_at_noise;
    given = NULL;
    x.cfg.deterministic = 0;
    x.cfg.own_strategy = &ops;
    x.cfg.profile_steps = 50;
    if (ddp_launch(&x.cfg, noisy_gradients, NULL, &err)) fail_msg("%s", err.msg);
    if (seen.samples < 20 || fabs(seen.mu - 3000) > 60 || fabs(seen.square - 1000) > 120 ||
        fabs(seen.gain - 1) > 0.01)
        fail_msg("%d samples: mu %g, expected 3000; variance %g, expected 1000; gain %g, expected 1",
                 seen.samples, seen.mu, seen.square, seen.gain);
    lab_free(&x);
}

static ddp__packed_schedule planned;
static double gain, comm_s; /* comm_s: per layer; forward and backward take 3 s, or no time */
static int instant;

/* A profile that hides half of its communication if that takes 6 s. Updates lower a loss of 2.5 by `gain`. */
static int make_with_gain(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out)
{
    double forward[3] = {1, 1, 1}, backward[3] = {2, 2, 2}, comm[3] = {comm_s, comm_s, comm_s};
    ddp__delayed *x = (ddp__delayed *)self;
    ddp_profile own = *p;
    int bad;

    if (!measured) return make(d, self, p, 0, out);
    if (instant) {
        memset(forward, 0, sizeof forward);
        memset(backward, 0, sizeof backward);
    }
    own.alpha_s = own.between_s = 0;
    own.forward_s = forward;
    own.backward_s = backward;
    own.comm_s = comm;
    x->noise.samples = 1;
    x->noise.loss = 2.5;
    x->noise.gain = gain;
    bad = ddp__delayed_make(d, self, &own, 1, out);
    if (!bad) memcpy(&planned, out->bytes, sizeof planned);
    return bad;
}

static int stale[6]; /* result of each test with changed noise */

/* In the last step: would new measurements make the plan stale? */
static int ask_when_stale(ddp_ctx *d, void *self, int forward)
{
    /* gain of the measurements, relative to the gain of the plan */
    static const double gains[6] = {1, 0.6, 0.4, 1000, 1, 1};
    ddp_strategy_ops ops;

    memset(&ops, 0, sizeof ops);
    ddp__strategy_deft(&ops);
    for (int i = 0; i < 6 && ddp_rank(d) == 0; i++) {
        ddp__delayed x = *(const ddp__delayed *)self;
        x.noise.gain = gains[i] * gain;
        if (i == 4) x.noise.samples = 0;
        if (i == 5) x.noise.loss = 0;
        stale[i] = ddp__delayed_stale(d, &x);
    }
    return ops.step_end(d, self, forward);
}

static void plan_with_gain(double takes, double seconds, double tolerance, double frequency)
{
    ddp_strategy_ops ops = *deft();
    lab x;

    lab_new(&x, 2, DDP_DEFT, 3);
    ops.plan_make = make_with_gain;
    ops.step_end = ask_when_stale;
    x.cfg.own_strategy = &ops;
    x.cfg.deft.preserve = tolerance;
    x.cfg.deft.update_frequency = frequency;
    x.model = LAB_TINY;
    gain = takes;
    comm_s = seconds;
    memset(&planned, 0, sizeof planned);
    lab_run(&x);
    ranks_are_equal(&x, "with a gain");
    lab_free(&x);
}

static void the_preserver_raises_the_capacity_if_merging_costs_too_much(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        plan_with_gain(i ? 0.1 : 1e-4, 6, i == 2 ? 0.5 : 0, 0);
        assert_int_equal(planned.accepted, 1);
        if (i == 1 ? !(planned.scale > 1.5) : planned.scale > 1)
            fail_msg("a gain of %g: knapsacks x %g", gain, planned.scale);
    }
}

/* Larger knapsacks pay off while updates lower the loss much, and a merging plan while they lower it little.
 * A plan is stale once that has changed. */
static void a_plan_is_stale_when_the_preserver_would_decide_differently(void **state)
{
    (void)state;
    plan_with_gain(0.1, 6, 0, 0);
    assert_true(planned.scale > 1.5);
    assert_true(!stale[0] && !stale[1] && stale[2]);
    assert_true(!stale[4] && !stale[5]); /* no estimate yet */
    plan_with_gain(1e-4, 6, 0, 0);
    assert_true(planned.scale == 1);
    assert_true(!stale[0] && !stale[1] && !stale[2] && stale[3]);
    assert_true(!stale[4] && !stale[5]);
    plan_with_gain(DBL_MAX, 6, 0, 0); /* the Preserver cannot use it: no merging */
    assert_true(planned.accepted == -1 && planned.updates == 1 && planned.iterations == 1);
    for (int i = 0; i < 6; i++) assert_false(stale[i]);
}

/* More is sent than ten retries can reduce enough. The best plan is used until a smaller gain makes it
 * stale. */
static void the_best_plan_is_used_if_none_is_accepted(void **state)
{
    (void)state;
    plan_with_gain(0.1, 30, 0, 0);
    assert_int_equal(planned.accepted, 0);
    assert_true(planned.scale > 1 && !stale[0] && stale[2]);
}

static void a_plan_without_estimates_is_not_tested(void **state)
{
    (void)state;
    plan_with_gain(0.1, 6, 0, 0.9); /* the program has set the frequency */
    assert_true(planned.accepted == -1 && planned.iterations > 1);
    for (int i = 0; i < 6; i++) assert_false(stale[i]);
    instant = 1; /* no computing time: nothing overlaps */
    plan_with_gain(0.1, 6, 0, 0);
    instant = 0;
    assert_true(planned.accepted == -1 && planned.iterations == 1 && planned.updates == 1);
}

/* ---- checkpoints ---- */

static struct {
    char folder[40];
    int load;
    long last, first;
    float w[80];
} leg;

/* Three layers. All ranks have the gradients of rank 0, so that the pending gradients are identical on all
 * ranks and fit any world. */
static int resumes(ddp_ctx *d, void *user)
{
    static const size_t count[3] = {40, 1, 39}, at[3] = {0, 40, 41};
    const ddp_optimizer o = ddp_sgd(0.25f, 0.5f);
    float w[80], g[80];
    int bad = 0;

    (void)user;
    memset(g, 0, sizeof g);
    for (int l = 0; l < 3 && !bad; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        for (size_t i = 0; i < count[l]; i++) w[at[l] + i] = lab_start(0, l, i);
        layer.params = w + at[l];
        layer.grads = g + at[l];
        layer.count = count[l];
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && leg.load) bad = ddp_checkpoint_load(d, leg.folder, NULL);
    if (ddp_rank(d) == 0) leg.first = ddp_step(d);
    while (!bad && ddp_step(d) < leg.last) {
        for (int l = 2; l >= 0 && !bad; l--) {
            lab_gradient(w + at[l], g + at[l], count[l], 0, l, ddp_step(d));
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad && !leg.load) bad = ddp_checkpoint_save(d, leg.folder, 0);
    if (!bad) bad = ddp_sync_all(d);
    if (ddp_rank(d) == 0) memcpy(leg.w, w, sizeof w);
    return bad;
}

static ddp_status train_leg(int world, int load, long last, ddp_error *err)
{
    ddp_status s;
    lab x;

    lab_new(&x, world, DDP_DEFT, 3);
    x.cfg.own_strategy = deft();
    leg.load = load;
    leg.last = last;
    s = (ddp_status)ddp_launch(&x.cfg, resumes, NULL, err);
    lab_free(&x);
    return s;
}

/* Twice as many workers resume with pending gradients by the plan of the checkpoint, and fail with any other
 * plan. */
static void pending_gradients_resume_by_their_own_plan_only(void **state)
{
    ddp_delayed_options o = options(1);
    ddp_delayed_plan plan, other;
    float want[80];
    ddp_error err;
    char command[60];

    (void)state;
    plan_of(LAB_TINY, 1.4, &o, 3, &plan);
    plan_of(LAB_TINY, 2.3, &o, 3, &other);
    for (int after = 1; after <= 4; after++) {
        strcpy(leg.folder, "/tmp/ddp_delayed_XXXXXX");
        assert_non_null(mkdtemp(leg.folder));
        given = &plan;
        if (train_leg(2, 0, 9, &err)) fail_msg("%s", err.msg);
        memcpy(want, leg.w, sizeof want);
        snprintf(command, sizeof command, "rm -r %s/*", leg.folder);
        assert_int_equal(system(command), 0);
        if (train_leg(2, 0, after, &err)) fail_msg("%s", err.msg);
        if (train_leg(4, 1, 9, &err)) fail_msg("%s", err.msg);
        assert_int_equal(leg.first, after);
        assert_memory_equal(want, leg.w, sizeof want);
        given = &other;
        assert_int_equal(train_leg(4, 1, 9, &err), DDP_MISMATCH);
        if (!strstr(err.msg, "the checkpoint has gradients that were to be sent by another plan: resume with "
                             "the same number of workers, or call ddp_sync_all before you save"))
            fail_msg("'%s'", err.msg);
        snprintf(command, sizeof command, "rm -r %s", leg.folder);
        assert_int_equal(system(command), 0);
    }
    ddp_delayed_plan_free(&plan);
    ddp_delayed_plan_free(&other);
}

/* ---- invalid schedules ---- */

/* A schedule of two layers with one part each. parts: layer << 2 | fresh << 1; those of iteration i start at
 * first[i]. */
typedef struct schedule {
    int warmup, iterations, updates;
    int32_t k[2], first[4], parts[6];
    int holds;
} schedule;

static int reads(ddp_ctx *d, void *user)
{
    const schedule *x = (const schedule *)user;
    const int32_t cut[2] = {1, 1};
    unsigned char bytes[256];
    ddp__packed_schedule head;
    ddp__schedule s;
    ddp_blob blob = {bytes, 0};
    float w[2] = {0, 0}, g[2] = {0, 0};
    int bad = 0;

    for (int l = 0; l < 2 && !bad; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + l;
        layer.grads = g + l;
        layer.count = 1;
        bad = ddp_add_layer(d, &layer);
    }
    memset(&head, 0, sizeof head);
    head.layers = 2;
    head.warmup = x->warmup;
    head.iterations = x->iterations;
    head.updates = x->updates;
    head.messages = x->first[x->iterations];
    memcpy(bytes, &head, sizeof head);
    blob.size = sizeof head;
    memcpy(bytes + blob.size, cut, sizeof cut);
    blob.size += sizeof cut;
    memcpy(bytes + blob.size, x->k, (size_t)x->updates * sizeof *x->k);
    blob.size += (size_t)x->updates * sizeof *x->k;
    memcpy(bytes + blob.size, x->first, (size_t)(x->iterations + 1) * sizeof *x->first);
    blob.size += (size_t)(x->iterations + 1) * sizeof *x->first;
    for (int i = 0; i < head.messages; i++) {
        const ddp__parcel m = {x->parts[i], 0, 1};
        memcpy(bytes + blob.size, &m, sizeof m);
        blob.size += sizeof m;
    }
    if (!bad) bad = ddp__schedule_read(d, &blob, &s);
    if (!bad) ddp__schedule_free(&s);
    return bad;
}

/* A steady period ends in the state in which it begins, and its updates match k. */
static void invalid_schedules_fail_with_an_error(void **state)
{
    enum { OLD = 0, FRESH = 2, ONE = 4 }; /* OLD and FRESH of layer 0, ONE more for layer 1 */
    static const schedule all[] = {
        {0, 1, 1, {1}, {0, 2}, {ONE + FRESH, FRESH}, 1},               /* no delay */
        {1, 2, 1, {1}, {0, 1, 3}, {ONE + FRESH, OLD, ONE + FRESH}, 1}, /* a delay of one */
        {0, 2, 1, {2}, {0, 0, 2}, {ONE + FRESH, FRESH}, 0},            /* two iterations, but k is wrong */
        {0, 1, 1, {2}, {0, 2}, {ONE + FRESH, FRESH}, 0},               /* merges one, but k is 2 */
        {0, 2, 1, {1}, {0, 2, 4}, {ONE + FRESH, FRESH, ONE + FRESH, FRESH}, 0}, /* more updates than in k */
        {0, 1, 2, {1, 1}, {0, 2}, {ONE + FRESH, FRESH}, 0},                     /* fewer */
        {0, 1, 0, {0}, {0, 1}, {ONE + FRESH}, 0},                               /* a gradient is never sent */
        {1, 2, 0, {0}, {0, 1, 1}, {ONE + FRESH}, 0},             /* a gradient waits for another one */
        {1, 2, 1, {1}, {0, 1, 3}, {ONE + FRESH, OLD, FRESH}, 0}, /* the pending parts differ */
        {0, 1, 1, {1}, {0, 3}, {ONE + FRESH, FRESH, FRESH}, 0},  /* a part is sent twice */
        {0, 1, 1, {1}, {0, 2}, {OLD, ONE + FRESH}, 0},           /* sent before it exists */
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        schedule one = all[i];
        ddp_error err;
        char want[80];
        lab x;
        lab_new(&x, 1, DDP_DEFT, 3);
        if (ddp_launch(&x.cfg, reads, &one, &err) != (one.holds ? DDP_OK : DDP_MISMATCH))
            fail_msg("schedule %d: '%s'", (int)i, one.holds ? err.msg : "taken");
        snprintf(want, sizeof want, "a plan of %d iterations does not send every gradient exactly once",
                 one.iterations);
        if (!one.holds && !strstr(err.msg, want)) fail_msg("schedule %d: '%s'", (int)i, err.msg);
        lab_free(&x);
    }
}

/* ---- a period that is too long ---- */

enum { MANY = 56 };
static char warned[512]; /* by rank 0 */

static void keep_warning(void *user, ddp_log_level level, const char *text)
{
    (void)user;
    if (level == DDP_LOG_WARN && strstr(text, "too long to be saved"))
        snprintf(warned, sizeof warned, "%s", text);
}

/* Communication takes a little more than two iterations, so it takes hundreds until the links are as free as
 * before. Whole seconds, so that no sum is rounded. */
static int make_of_many(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out)
{
    ddp_rng r = ddp_rng_seed(32, 0);
    double forward[MANY], backward[MANY], comm[MANY], sum = 0;
    ddp_profile own = *p;
    int bad;

    if (!measured) return make(d, self, p, 0, out);
    for (int l = 0; l < MANY; l++) sum += comm[l] = 1 + (double)ddp_rng_below(&r, 2400);
    for (int l = 0; l < MANY; l++) backward[l] = 2 * (forward[l] = floor(sum / (6 * MANY)));
    own.alpha_s = own.gap_s = own.between_s = 0;
    own.forward_s = forward;
    own.backward_s = backward;
    own.comm_s = comm;
    bad = ddp__delayed_make(d, self, &own, 1, out);
    if (!bad && ddp_rank(d) == 0) memcpy(&planned, out->bytes, sizeof planned);
    return bad;
}

/* Layer l has gradients of l + rank. If a gradient is sent in its own step, the update has the mean over the
 * ranks. */
static int many_layers(ddp_ctx *d, void *user)
{
    ddp_optimizer o = ddp_sgd(1, 0);
    float w[MANY], g[MANY];
    int bad = 0;

    (void)user;
    memset(w, 0, sizeof w);
    memset(g, 0, sizeof g);
    for (int l = 0; l < MANY && !bad; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + l;
        layer.grads = g + l;
        layer.count = 1;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (int step = 0; step < 3 && !bad; step++) {
        for (int l = MANY - 1; l >= 0 && !bad; l--) {
            g[l] = (float)(l + 2 * ddp_rank(d));
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d) || ddp_wait(d);
        for (int l = 0; l < MANY && !bad; l++)
            if (w[l] != (float)(-(step + 1) * (l + 1))) return (int)DDP_NUMERIC;
    }
    return bad;
}

static void a_plan_too_long_to_save_falls_back_to_no_delay(void **state)
{
    ddp_strategy_ops ops = *deft();
    ddp_error err;
    lab x;

    (void)state;
    lab_new(&x, 2, DDP_DEFT, 3);
    ops.plan_make = make_of_many;
    x.cfg.own_strategy = &ops;
    x.cfg.logger.fn = keep_warning;
    x.cfg.logger.level = DDP_LOG_WARN;
    warned[0] = 0;
    if (ddp_launch(&x.cfg, many_layers, NULL, &err)) fail_msg("%s", err.msg);
    assert_true(planned.accepted == -1 && planned.iterations == 1 && planned.updates == 1 &&
                planned.messages == MANY);
    if (!strstr(warned, "the plan is too long to be saved; every gradient is sent in its own step instead"))
        fail_msg("'%s'", warned);
    lab_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_loop_with_the_plans_sums_is_bit_identical),
        cmocka_unit_test(replicas_are_equal_after_every_iteration),
        cmocka_unit_test(tcp_is_bit_identical),
        cmocka_unit_test(without_delay_it_is_ssgd),
        cmocka_unit_test(with_one_part_pending_it_is_sgd_with_a_delay_of_one),
        cmocka_unit_test(two_links_are_bit_identical_to_one),
        cmocka_unit_test(a_period_sends_the_model_once_for_each_update),
        cmocka_unit_test(no_gradient_is_lost),
        cmocka_unit_test(ranks_are_equal_for_every_model_rule_and_coding),
        cmocka_unit_test(a_measured_plan_keeps_ranks_equal),
        cmocka_unit_test(the_noise_estimate_is_the_noise_of_the_gradients),
        cmocka_unit_test(the_preserver_raises_the_capacity_if_merging_costs_too_much),
        cmocka_unit_test(a_plan_is_stale_when_the_preserver_would_decide_differently),
        cmocka_unit_test(the_best_plan_is_used_if_none_is_accepted),
        cmocka_unit_test(a_plan_without_estimates_is_not_tested),
        cmocka_unit_test(pending_gradients_resume_by_their_own_plan_only),
        cmocka_unit_test(invalid_schedules_fail_with_an_error),
        cmocka_unit_test(a_plan_too_long_to_save_falls_back_to_no_delay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
