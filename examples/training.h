/* One training run on every rank: what train_gpt does once and quickstart once per strategy.
 * Results lie in memory shared with the worker processes, so that the parent can report them. */
#ifndef EXAMPLES_TRAINING_H
#define EXAMPLES_TRAINING_H

#include <sys/mman.h>
#include <sys/resource.h>

enum { TRAINING_LAYERS = 512, TRAINING_SPANS = 20000 };

/* What one rank leaves behind. */
typedef struct training_rank {
    ddp_stats stats;
    ddp_span *span;
    int       spans;
    float    *loss, *divergence; /* [steps] this rank's */
} training_rank;

/* What a run leaves behind: means over ranks where nothing else is said. */
typedef struct training_result {
    double first_loss, final_loss; /* final: mean of the last tenth of the steps, at most 10 */
    double val_loss;               /* NAN without validation data */
    double step_s, hidden_pct;     /* over the counted steps */
    double seconds;                /* rank 0, profile steps included */
    double tokens_per_s;           /* all ranks */
    long   steps;
    int64_t bytes_sent;            /* rank 0 */
    double peak_rss_mb;            /* rank 0 */
    char   param_hash[17];
    ddp_report_step *step;         /* [steps] */
    training_rank   *rank;         /* [workers] */
    int    layers, period;         /* period 0 = the strategy follows no plan */
    int    step_of[TRAINING_LAYERS];
    unsigned char *fill;           /* [period x layers] */
    double objective_s, lower_bound_s;
    char   plan_solver[16], plan_cost[16];
    double layer_divergence[TRAINING_LAYERS];
    char   name[TRAINING_LAYERS][48];
    double params[TRAINING_LAYERS], forward_s[TRAINING_LAYERS], backward_s[TRAINING_LAYERS], comm_s[TRAINING_LAYERS];
} training_result;

typedef struct training {
    const char       *label;        /* of the progress line */
    ddp_gpt2_config   model;
    ddp_token_range   train, val;
    ddp_optimizer     optimizer;
    ddp_lr_schedule   schedule;
    long              steps, accumulate;
    uint64_t          seed;
    int               workers, period;
    const ddp_profile *emulate;     /* NULL, or layers that only sleep for these times */
    double            emulate_scale; /* their parameters are divided by this */
    training_result  *result;
} training;

/* Zeroed memory that forked children share; NULL when there is none. Lives until exit. */
static void *training_share(size_t bytes)
{
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static training_result *training_result_new(int workers, long steps, int period)
{
    training_result *r = (training_result *)training_share(sizeof *r);
    int i;

    if (!r) return NULL;
    r->step = (ddp_report_step *)training_share((size_t)steps * sizeof *r->step);
    r->rank = (training_rank *)training_share((size_t)workers * sizeof *r->rank);
    r->fill = (unsigned char *)training_share((size_t)period * TRAINING_LAYERS);
    if (!r->step || !r->rank || !r->fill) return NULL;
    for (i = 0; i < workers; i++) {
        r->rank[i].span = (ddp_span *)training_share(TRAINING_SPANS * sizeof(ddp_span));
        r->rank[i].loss = (float *)training_share((size_t)steps * sizeof(float));
        r->rank[i].divergence = (float *)training_share((size_t)steps * sizeof(float));
        if (!r->rank[i].span || !r->rank[i].loss || !r->rank[i].divergence) return NULL;
    }
    return r;
}

/* ---- what runs: a GPT, or layers that sleep ---- */

typedef struct training_model {
    ddp_graph *graph;
    ddp_node  *loss;
    int32_t   *tokens, *labels;
    int        layers;
    float    **params, **grads; /* emulated layers */
    size_t    *count;
    double     pace;            /* when the emulated computing so far is over */
} training_model;

static int training_build(ddp_ctx *d, const training *t, training_model *m)
{
    int l;

    memset(m, 0, sizeof *m);
    if (!t->emulate) {
        m->graph = ddp_graph_new(d);
        m->loss = ddp_gpt2(m->graph, &t->model, NULL);
        if (ddp_graph_build(m->graph)) return 1;
        m->tokens = (int32_t *)ddp_data(m->graph, "tokens");
        m->labels = (int32_t *)ddp_data(m->graph, "labels");
        m->layers = ddp_layer_count(m->graph);
        return 0;
    }
    m->layers = t->emulate->layers;
    m->params = (float **)calloc((size_t)m->layers, sizeof *m->params);
    m->grads = (float **)calloc((size_t)m->layers, sizeof *m->grads);
    m->count = (size_t *)calloc((size_t)m->layers, sizeof *m->count);
    for (l = 0; l < m->layers; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        m->count[l] = (size_t)(t->emulate->params[l] / t->emulate_scale);
        if (t->emulate->params[l] > 0 && m->count[l] == 0) m->count[l] = 1;
        layer.name = t->emulate->name[l];
        layer.count = m->count[l];
        if (layer.count) {
            m->params[l] = (float *)calloc(layer.count, sizeof(float));
            m->grads[l] = (float *)calloc(layer.count, sizeof(float));
        }
        layer.params = m->params[l];
        layer.grads = m->grads[l];
        if (ddp_add_layer(d, &layer)) return 1;
    }
    return 0;
}

static void training_free(training_model *m)
{
    int l;

    for (l = 0; m->params && l < m->layers; l++) free(m->params[l]), free(m->grads[l]);
    free(m->params);
    free(m->grads);
    free(m->count);
}

/* Lets the emulated computer work for seconds more; waiting in a hook delays it, oversleeping
 * does not, because the next layer is timed from where this one should have ended. */
static void training_pace(training_model *m, double seconds, int waited)
{
    double now = ddp_now();
    struct timespec ts;

    if (waited || m->pace <= 0) m->pace = now;
    m->pace += seconds;
    if (m->pace <= now) return;
    ts.tv_sec = (time_t)(m->pace - now);
    ts.tv_nsec = (long)((m->pace - now - (double)ts.tv_sec) * 1e9);
    nanosleep(&ts, NULL);
}

static int training_emulated_step(ddp_ctx *d, const training *t, training_model *m)
{
    int l;

    for (l = 0; l < m->layers; l++) {
        double begin = ddp_now();
        if (ddp_forward_begin(d, l)) return 1;
        training_pace(m, t->emulate->forward_s[l], ddp_now() - begin > 1e-4 || l == 0);
    }
    for (l = m->layers - 1; l >= 0; l--) {
        if (ddp_backward_begin(d, l)) return 1;
        training_pace(m, t->emulate->backward_s[l], 0);
        if (ddp_backward_end(d, l)) return 1;
    }
    return 0;
}

static int training_step(ddp_ctx *d, const training *t, training_model *m, long step, double *loss)
{
    long a;

    *loss = 0;
    if (t->emulate) return training_emulated_step(d, t, m);
    for (a = 0; a < t->accumulate; a++) {
        ddp_tokens_batch(&t->train, t->seed, step * t->accumulate + a, ddp_rank(d), ddp_world(d), t->model.batch, m->tokens,
                         m->labels);
        if (ddp_forward(m->graph) || ddp_backward(m->graph, m->loss)) return 1;
        *loss += (double)ddp_value(m->graph, m->loss) / (double)t->accumulate;
    }
    return 0;
}

static double training_validate(const training *t, training_model *m)
{
    long windows = t->emulate ? 0 : ddp_tokens_windows(&t->val), batches = windows / t->model.batch, b, i;
    double sum = 0;

    if (batches > 20) batches = 20;
    for (b = 0; b < batches; b++) {
        for (i = 0; i < t->model.batch; i++)
            ddp_tokens_window(&t->val, b * t->model.batch + i, m->tokens + i * t->model.context, m->labels + i * t->model.context);
        if (ddp_evaluate(m->graph)) return NAN;
        sum += (double)ddp_value(m->graph, m->loss);
    }
    return batches ? sum / (double)batches : NAN;
}

static uint64_t training_hash(const training_model *m)
{
    uint64_t h = 0;
    int l;

    for (l = 0; l < m->layers; l++) {
        size_t n = m->graph ? 0 : m->count[l];
        const float *p = m->graph ? ddp_layer_params(m->graph, l, &n) : m->params[l];
        h = ddp_hash_floats(h, p, n);
    }
    return h;
}

/* ---- results ---- */

/* Losses, divergences and times become means over ranks: one message after the training. */
static int training_gather(ddp_ctx *d, const training *t, const ddp_stats *own, const training_model *m)
{
    training_result *r = t->result;
    const training_rank *rank = &r->rank[ddp_rank(d)];
    size_t n = (size_t)t->steps, L = (size_t)m->layers, i;
    float *x = (float *)calloc(2 * n + L + 2, sizeof *x);
    int bad;

    if (!x) return DDP_MEMORY;
    memcpy(x, rank->loss, n * sizeof *x);
    memcpy(x + n, rank->divergence, n * sizeof *x);
    for (i = 0; i < L; i++) x[2 * n + i] = (float)ddp_divergence(d, (int)i);
    x[2 * n + L] = (float)own->step_s;
    x[2 * n + L + 1] = (float)own->hidden_pct;
    bad = ddp_all_reduce(d, x, 2 * n + L + 2, 1.0f / (float)ddp_world(d));
    if (!bad && ddp_rank(d) == 0) {
        long last = t->steps / 10 + 1, k;
        if (last > 10) last = 10;
        for (i = 0; i < n; i++) {
            r->step[i].loss = (double)x[i];
            r->step[i].divergence = (double)x[n + i];
        }
        for (i = 0; i < L && i < TRAINING_LAYERS; i++) r->layer_divergence[i] = (double)x[2 * n + i];
        r->step_s = (double)x[2 * n + L];
        r->hidden_pct = (double)x[2 * n + L + 1];
        r->first_loss = r->step[0].loss;
        r->final_loss = 0;
        for (k = t->steps - last; k < t->steps; k++) r->final_loss += r->step[k].loss / (double)last;
    }
    free(x);
    return bad;
}

static void training_describe(ddp_ctx *d, const training *t, const training_model *m)
{
    const ddp_profile *p = ddp_profile_get(d);
    const ddp_plan *plan = ddp_plan_get(d);
    training_result *r = t->result;
    int l;

    r->layers = m->layers < TRAINING_LAYERS ? m->layers : TRAINING_LAYERS;
    for (l = 0; p && l < r->layers; l++) {
        snprintf(r->name[l], sizeof r->name[l], "%s", p->name[l]);
        r->params[l] = p->params[l];
        r->forward_s[l] = p->forward_s[l];
        r->backward_s[l] = p->backward_s[l];
        r->comm_s[l] = p->comm_s[l];
    }
    if (!plan || m->layers > TRAINING_LAYERS) return;
    r->period = plan->period;
    memcpy(r->step_of, plan->step_of, (size_t)r->layers * sizeof *r->step_of);
    if (plan->fill) memcpy(r->fill, plan->fill, (size_t)r->layers * (size_t)plan->period);
    r->objective_s = plan->objective_s;
    r->lower_bound_s = plan->lower_bound_s;
    snprintf(r->plan_solver, sizeof r->plan_solver, "%s", ddp_solver_name(plan->solver));
    snprintf(r->plan_cost, sizeof r->plan_cost, "%s", ddp_cost_name(plan->cost));
}

static int training_finish(ddp_ctx *d, const training *t, training_model *m, double begin)
{
    training_result *r = t->result;
    training_rank *own = &r->rank[ddp_rank(d)];
    double seconds = ddp_now() - begin;
    int bad = ddp_wait(d);
    struct rusage use;

    if (bad) return bad;
    ddp_get_stats(d, &own->stats);
    bad = training_gather(d, t, &own->stats, m);
    own->spans = ddp_trace_copy(d, own->span, TRAINING_SPANS);
    if (!bad) bad = ddp_sync_all(d);
    if (bad || ddp_rank(d)) return bad;
    training_describe(d, t, m);
    r->seconds = seconds;
    r->bytes_sent = own->stats.bytes_sent;
    r->tokens_per_s = t->emulate || r->step_s <= 0 ? 0
                    : (double)(t->model.batch * t->model.context * t->accumulate * t->workers) / r->step_s;
    r->val_loss = training_validate(t, m);
    snprintf(r->param_hash, sizeof r->param_hash, "%016llx", (unsigned long long)training_hash(m));
    getrusage(RUSAGE_SELF, &use);
    r->peak_rss_mb = (double)use.ru_maxrss / 1024;
    return 0;
}

/* The loop of one rank: what ddp_launch calls. */
static int training_run(ddp_ctx *d, void *user)
{
    training *t = (training *)user;
    training_result *r = t->result;
    training_rank *own = &r->rank[ddp_rank(d)];
    training_model m;
    ddp_progress progress;
    double begin = 0;
    long step;
    int bad = training_build(d, t, &m);

    if (!bad) bad = ddp_set_optimizer(d, &t->optimizer);
    ddp_progress_start(&progress, ddp_rank(d) == 0 && t->label ? stderr : NULL, t->label, t->steps);
    begin = ddp_now();
    for (step = 0; !bad && step < t->steps; step++) {
        ddp_step_info info;
        ddp_stats s;
        double loss;
        if (cli_interrupted) {
            ddp_abort(d, "interrupted");
            bad = DDP_ABORTED;
            break;
        }
        memset(&info, 0, sizeof info);
        info.lr = (float)ddp_lr_at(&t->schedule, step);
        bad = training_step(d, t, &m, step, &loss);
        info.loss = loss;
        if (!bad) bad = ddp_report(d, &info);
        if (!bad) bad = ddp_step_end(d);
        if (bad) break;
        ddp_get_stats(d, &s);
        own->loss[step] = (float)loss;
        own->divergence[step] = (float)s.divergence;
        if (ddp_rank(d) == 0) {
            r->step[step].time_s = ddp_now() - begin;
            r->step[step].loss = loss;
            r->step[step].bytes = s.bytes_sent;
            r->steps = step + 1;
        }
        ddp_progress_step(&progress, step + 1, loss, (double)(t->model.batch * t->model.context * t->workers));
    }
    ddp_progress_end(&progress);
    if (!bad) bad = training_finish(d, t, &m, begin);
    training_free(&m);
    return bad;
}

#endif /* EXAMPLES_TRAINING_H */
