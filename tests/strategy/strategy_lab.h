/* Small models for tests of strategies. Their training is repeated without the library, so that tests can
 * compare every strategy's result bit for bit. */
#ifndef TESTS_STRATEGY_LAB_H
#define TESTS_STRATEGY_LAB_H

#include <sys/mman.h>

enum { LAB_RANKS = 8, LAB_LAYERS = 8, LAB_VALUES = 40000, LAB_STEPS = 24 };

typedef enum lab_model { LAB_TINY, LAB_MLP, LAB_GPT, LAB_ODD, LAB_MODELS } lab_model;
typedef enum lab_rule { LAB_SGD, LAB_MOMENTUM, LAB_NESTEROV, LAB_ADAMW, LAB_RULES, LAB_MUON } lab_rule;

typedef struct lab lab;
struct lab {
    ddp_config cfg;
    lab_model model;
    lab_rule rule;
    int steps;
    int forward_hooks;    /* hand models: 1 = with ddp_forward_begin and ddp_backward_begin */
    const ddp_plan *plan; /* adopted before the first step. May be NULL. */
    int unequal_start;    /* 1 if every rank starts with different parameters */
    int no_sync_all;
    int rates;       /* 1: another learning rate in each step */
    int same_data;   /* hand models: 1 = all ranks have the gradients of rank 0 */
    int samples;     /* 1 if rank r reports r + 1 samples per step */
    int epoch_steps; /* > 0: reports epochs of this many steps, and a decreasing loss */
    void (*opened)(ddp_ctx *d, const struct lab *x); /* may be NULL */
    /* hand models: 1 = the rank leaves before that step. May be NULL. */
    int (*leaves)(const struct lab *x, int rank, int step);
    void (*before_step)(const struct lab *x, int rank, int step); /* may be NULL */
    const ddp_optimizer *optimizer; /* replaces the rule's optimizer. May be NULL. */
    /* hand models: 1 = the program updates, by the rule; 2 = the same with a zeroed optimizer; 3 = it updates
     * a layer before its ddp_backward_end */
    int own;
    /* results, shared with worker processes */
    float (*params)[LAB_VALUES]; /* [rank] after the run */
    size_t *values;              /* of one rank */
    ddp_stats *stats;            /* [rank] */
    int *step_of;                /* [LAB_LAYERS] the plan of rank 0 */
};

static void *lab_share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    return p;
}

static void lab_new(lab *x, int world, ddp_strategy strategy, int period)
{
    memset(x, 0, sizeof *x);
    x->cfg.world = world;
    x->cfg.strategy = strategy;
    x->cfg.period = period;
    x->cfg.transport = DDP_THREADS;
    x->cfg.deterministic = 1;
    x->cfg.no_env = 1;
    x->cfg.timeout.peer_s = 600; /* for sanitizers on a busy machine */
    x->steps = 11;
    x->params = (float(*)[LAB_VALUES])lab_share(LAB_RANKS * sizeof *x->params);
    x->values = (size_t *)lab_share(sizeof *x->values);
    x->stats = (ddp_stats *)lab_share(LAB_RANKS * sizeof *x->stats);
    x->step_of = (int *)lab_share(LAB_LAYERS * sizeof *x->step_of);
}

static void lab_free(lab *x)
{
    munmap(x->params, LAB_RANKS * sizeof *x->params);
    munmap(x->values, sizeof *x->values);
    munmap(x->stats, LAB_RANKS * sizeof *x->stats);
    munmap(x->step_of, LAB_LAYERS * sizeof *x->step_of);
}

static ddp_optimizer lab_optimizer(lab_rule rule)
{
    if (rule == LAB_SGD) return ddp_sgd(0.1f, 0);
    if (rule == LAB_MOMENTUM) return ddp_sgd_decay(0.05f, 0.9f, 0.01f);
    if (rule == LAB_NESTEROV) return ddp_nesterov(0.05f, 0.9f, 0.01f);
    if (rule == LAB_MUON) return ddp_muon(0.01f, 0.02f, 0.95f, 0.1f);
    return ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f);
}

static void lab_rate(ddp_ctx *d, const lab *x, const ddp_optimizer *o, int step)
{
    if (x->rates) ddp_set_lr(d, o->lr * (1.0f + 0.25f * (float)(step % 4)));
}

static int lab_serves(const ddp_ctx *d) { return ddp_rank(d) >= ddp_world(d) - ddp_servers(d); }

static int lab_report(ddp_ctx *d, const lab *x, int step)
{
    ddp_step_info info;

    memset(&info, 0, sizeof info);
    if (x->samples) info.samples = ddp_rank(d) + 1;
    if (x->epoch_steps) {
        info.epoch = (double)step / x->epoch_steps;
        info.loss = 2.0 / (1 + step / x->epoch_steps);
    }
    return ddp_report(d, &info);
}

/* ---- hand models: the gradient is a function of parameters, rank and step ---- */

static int lab_sizes(lab_model m, size_t *count)
{
    static const size_t tiny[] = {3, 1, 7};
    static const size_t odd[] = {1021, 1, 64, 4099, 2, 333, 17, 9001};
    int n = m == LAB_TINY ? 3 : 8, l;

    for (l = 0; l < n; l++) count[l] = m == LAB_TINY ? tiny[l] : odd[l];
    return n;
}

static float lab_start(int rank, int layer, size_t i)
{
    ddp_rng r = ddp_rng_seed((uint64_t)(100 + rank), (uint64_t)layer * 100000 + i);

    return (float)ddp_rng_normal(&r);
}

static void lab_gradient(const float *w, float *g, size_t n, int rank, int layer, long step)
{
    size_t i;

    for (i = 0; i < n; i++) {
        ddp_rng r =
            ddp_rng_seed((uint64_t)(7 + rank), (uint64_t)step * 1000003 + (uint64_t)layer * 10007 + i);
        float target = (float)ddp_rng_uniform(&r);
        g[i] += (w[i] - target) * (1.0f + 0.1f * w[i] * w[i]);
    }
}

/* The update of a program with its own optimizer. */
static void lab_own_update(const lab *x, const ddp_optimizer *o, int layer, float *w, float *g, float *s,
                           size_t n, int step)
{
    ddp_update u;

    memset(&u, 0, sizeof u);
    u.layer = layer;
    u.params = w;
    u.grads = g;
    u.state = s;
    u.count = n;
    u.step = step;
    u.lr = x->rates ? o->lr * (1.0f + 0.25f * (float)(step % 4)) : o->lr;
    o->update(o, &u);
    memset(g, 0, n * sizeof *g);
}

static int lab_hand(ddp_ctx *d, lab *x)
{
    size_t count[LAB_LAYERS], i, at = 0;
    float *w[LAB_LAYERS], *g[LAB_LAYERS], *s[LAB_LAYERS];
    int L = lab_sizes(x->model, count), l, step, bad = 0, m;
    ddp_optimizer o = lab_optimizer(x->rule), own;

    for (l = 0; l < L; l++) {
        ddp_layer layer;
        ddp_matrix matrix;
        memset(&layer, 0, sizeof layer);
        w[l] = (float *)calloc(count[l], sizeof(float));
        g[l] = (float *)calloc(count[l], sizeof(float));
        s[l] = (float *)calloc(2 * count[l], sizeof(float));
        for (i = 0; i < count[l]; i++) w[l][i] = lab_start(x->unequal_start ? ddp_rank(d) : 0, l, i);
        layer.params = w[l];
        layer.grads = g[l];
        layer.count = count[l];
        layer.matrices = &matrix; /* 2 rows after the first value */
        layer.matrix_count = count[l] >= 3;
        matrix.params = w[l] + 1;
        matrix.rows = 2;
        matrix.columns = (count[l] - 1) / 2;
        if (ddp_add_layer(d, &layer)) return (int)ddp_last_error(d)->code;
    }
    if (x->optimizer) o = *x->optimizer;
    own = x->own == 3 ? ddp_own_update_first() : ddp_own_update();
    if (x->own == 2) memset(&own, 0, sizeof own);
    bad = ddp_set_optimizer(d, x->own ? &own : &o);
    if (!bad && x->plan) bad = ddp_plan_adopt(d, x->plan);
    if (!bad && lab_serves(d)) bad = ddp_serve(d);
    for (step = 0; !bad && step < x->steps && !lab_serves(d); step++) {
        if (x->leaves && x->leaves(x, ddp_rank(d), step)) break;
        for (lab_rate(d, x, &o, step), m = 0; !bad && m < (x->cfg.micro_batches ? x->cfg.micro_batches : 1);
             m++) {
            if (m == 0 && x->before_step) x->before_step(x, ddp_rank(d), step);
            if (x->forward_hooks)
                for (l = 0; l < L; l++) bad |= ddp_forward_begin(d, l);
            for (l = L - 1; !bad && l >= 0; l--) {
                if (x->forward_hooks) bad = ddp_backward_begin(d, l);
                lab_gradient(w[l], g[l], count[l], x->same_data ? 0 : ddp_rank(d), l, step * 10 + m);
                if (x->own == 3) lab_own_update(x, &o, l, w[l], g[l], s[l], count[l], step);
                if (!bad) bad = ddp_backward_end(d, l);
            }
            if (!bad && m == (x->cfg.micro_batches ? x->cfg.micro_batches : 1) - 1)
                bad = lab_report(d, x, step) || ddp_step_end(d);
        }
        for (l = 0; x->own && x->own != 3 && !bad && l < L; l++)
            lab_own_update(x, &o, l, w[l], g[l], s[l], count[l], step);
    }
    if (!bad && !lab_serves(d)) bad = ddp_wait(d);
    if (!bad && !x->no_sync_all && !lab_serves(d)) bad = ddp_sync_all(d);
    for (l = 0; l < L; l++) {
        memcpy(x->params[ddp_rank(d)] + at, w[l], count[l] * sizeof(float));
        at += count[l];
        free(w[l]);
        free(g[l]);
        free(s[l]);
    }
    if (ddp_rank(d) == 0) *x->values = at;
    return bad;
}

/* ---- graph models ---- */

static int lab_graph(ddp_ctx *d, lab *x)
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss;
    ddp_optimizer o = lab_optimizer(x->rule);
    ddp_rng r = ddp_rng_seed(3, (uint64_t)ddp_rank(d));
    int bad, step, l;
    size_t at = 0, i;

    if (x->model == LAB_MLP) {
        ddp_mlp_config c;
        memset(&c, 0, sizeof c);
        c.batch = 3;
        c.inputs = 5;
        c.hidden[0] = 7;
        c.hidden[1] = 9;
        c.classes = 3;
        loss = ddp_mlp(g, &c, NULL);
    } else {
        ddp_gpt2_config c;
        memset(&c, 0, sizeof c);
        c.vocabulary = 11;
        c.context = 5;
        c.layers = 1;
        c.heads = 3;
        c.dim = 9;
        c.batch = 2;
        loss = ddp_gpt2(g, &c, NULL);
    }
    bad = ddp_graph_build(g);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && x->plan) bad = ddp_plan_adopt(d, x->plan);
    if (!bad && lab_serves(d)) return ddp_serve(d);
    for (step = 0; !bad && step < x->steps; step++) {
        lab_rate(d, x, &o, step);
        if (x->model == LAB_MLP) {
            float *in = (float *)ddp_data(g, "inputs");
            int32_t *y = (int32_t *)ddp_data(g, "labels");
            for (i = 0; i < 15; i++) in[i] = (float)ddp_rng_normal(&r);
            for (i = 0; i < 3; i++) y[i] = (int32_t)ddp_rng_below(&r, 3);
        } else {
            int32_t *t = (int32_t *)ddp_data(g, "tokens"), *y = (int32_t *)ddp_data(g, "labels");
            for (i = 0; i < 10; i++) t[i] = (int32_t)ddp_rng_below(&r, 11);
            for (i = 0; i < 10; i++) y[i] = (int32_t)((t[i] + 1) % 11);
        }
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d);
    if (!bad && !x->no_sync_all) bad = ddp_sync_all(d);
    for (l = 0; !bad && l < ddp_layer_count(g); l++) {
        size_t n;
        const float *p = ddp_layer_params(g, l, &n);
        bad = ddp_graph_read(g, x->params[ddp_rank(d)] + at, p, n);
        at += n;
    }
    if (ddp_rank(d) == 0) *x->values = at;
    return bad;
}

static int lab_worker(ddp_ctx *d, void *user)
{
    lab *x = (lab *)user;
    const ddp_plan *plan;
    int bad, l;

    if (x->opened) x->opened(d, x);
    bad = x->model == LAB_TINY || x->model == LAB_ODD ? lab_hand(d, x) : lab_graph(d, x);
    plan = ddp_plan_get(d);
    ddp_get_stats(d, &x->stats[ddp_rank(d)]);
    if (plan && ddp_rank(d) == 0)
        for (l = 0; l < plan->layers && l < LAB_LAYERS; l++) x->step_of[l] = plan->step_of[l];
    return bad;
}

static DDP__UNUSED void lab_run(lab *x)
{
    ddp_error err;

    if (ddp_launch(&x->cfg, lab_worker, x, &err)) fail_msg("%s", err.msg);
}

/* ---- the same training without the library: K replicas in one thread ---- */

typedef struct lab_replica {
    float *w[LAB_LAYERS], *g[LAB_LAYERS], *s[LAB_LAYERS];
} lab_replica;

static void lab_mean(float *const *parts, int world, size_t n)
{
    size_t i;
    int k;

    for (i = 0; i < n; i++) {
        float sum = parts[0][i];
        for (k = 1; k < world; k++) sum += parts[k][i];
        if (world > 1) sum *= 1.0f / (float)world;
        for (k = 0; k < world; k++) parts[k][i] = sum;
    }
}

static void lab_average(lab_replica *r, int world, int layer, size_t n, int gradients)
{
    float *parts[LAB_RANKS];
    int k;

    for (k = 0; k < world; k++) parts[k] = gradients ? r[k].g[layer] : r[k].w[layer];
    lab_mean(parts, world, n);
}

/* An array of state is averaged in every state_period-th period. */
static void lab_average_state(const lab *x, lab_replica *r, const ddp_optimizer *o, int layer, size_t n,
                              int period)
{
    float *parts[LAB_RANKS];
    int k, array;

    for (array = 0; array < o->state_per_param; array++) {
        if (!x->cfg.average.state_period[0] || (period + 1) % x->cfg.average.state_period[array]) continue;
        for (k = 0; k < x->cfg.world; k++) parts[k] = r[k].s[layer] + (size_t)array * n;
        lab_mean(parts, x->cfg.world, n);
    }
}

static void lab_update(const ddp_optimizer *o, lab_replica *r, int layer, size_t n, int step)
{
    ddp_update u;

    memset(&u, 0, sizeof u);
    u.layer = layer;
    u.params = r->w[layer];
    u.grads = r->g[layer];
    u.state = r->s[layer];
    u.count = n;
    u.step = step;
    u.lr = o->lr;
    o->update(o, &u);
    memset(r->g[layer], 0, n * sizeof(float));
}

/* step_of NULL: localsgd, which averages all layers in the last step of the period. gradients: S-SGD. */
static DDP__UNUSED void lab_reference(const lab *x, int gradients, const int *step_of,
                                      float (*out)[LAB_VALUES])
{
    size_t count[LAB_LAYERS], i, at;
    lab_replica r[LAB_RANKS];
    int L = lab_sizes(x->model, count), K = x->cfg.world, H = x->cfg.period, l, k, step;
    ddp_optimizer o = lab_optimizer(x->rule);

    for (k = 0; k < K; k++)
        for (l = 0; l < L; l++) {
            r[k].w[l] = (float *)calloc(count[l], sizeof(float));
            r[k].g[l] = (float *)calloc(count[l], sizeof(float));
            r[k].s[l] = (float *)calloc(2 * count[l], sizeof(float));
            for (i = 0; i < count[l]; i++) r[k].w[l][i] = lab_start(0, l, i);
        }
    for (step = 0; step < x->steps; step++) {
        for (k = 0; k < K; k++)
            for (l = 0; l < L; l++) lab_gradient(r[k].w[l], r[k].g[l], count[l], k, l, step * 10);
        for (l = 0; l < L; l++) {
            const int due = !gradients && step % H == (step_of ? step_of[l] : H - 1);
            if (gradients) lab_average(r, K, l, count[l], 1);
            if (due && x->cfg.average.first) lab_average(r, K, l, count[l], 0);
            for (k = 0; k < K; k++) lab_update(&o, &r[k], l, count[l], step);
            if (due && !x->cfg.average.first) {
                lab_average(r, K, l, count[l], 0);
                lab_average_state(x, r, &o, l, count[l], step / H);
            }
        }
    }
    for (k = 0; k < K; k++)
        for (l = 0, at = 0; l < L; l++) {
            memcpy(out[k] + at, r[k].w[l], count[l] * sizeof(float));
            at += count[l];
        }
    for (k = 0; k < K; k++)
        for (l = 0; l < L; l++) {
            free(r[k].w[l]);
            free(r[k].g[l]);
            free(r[k].s[l]);
        }
}

#endif /* TESTS_STRATEGY_LAB_H */
