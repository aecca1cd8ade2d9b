/* Four workers on this machine train a small GPT on real text over a slow link, under six strategies or the
 * strategies of --strategies. Measures how much of the communication each strategy hides.
 *
 *   cc -O2 -I. examples/quickstart/quickstart.c -o quickstart -lm -lpthread && ./quickstart
 *
 * Prints the profile, the plan and a table, and writes quickstart.html (open it in a browser),
 * quickstart_trace.json (open it in ui.perfetto.dev) and quickstart.jsonl. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../common/cli.h"
#include "../common/training.h"
#include "../common/events.h"

enum { STRATEGIES = 32 }; /* largest number of strategies */

typedef struct quickstart {
    const char *data, *net, *out, *strategies; /* names, separated by commas, or "all" */
    long steps, workers, period, seed, batch, layers, heads, dim, seq;
    double lr;
    char command[256], model[128], host[128];
    ddp_tokens *tokens;
    training t;
    ddp_strategy strategy[STRATEGIES];
    int count;
    training_result *result[STRATEGIES];
    /* the report */
    ddp_report_data data_;
    ddp_report_run run[STRATEGIES];
    ddp_report_layer layer[TRAINING_LAYERS];
    ddp_report_worker *worker[STRATEGIES];
} quickstart;

static int parse(quickstart *q, int argc, char **argv)
{
    const cli_option table[] = {
        {"Model", CLI_GROUP, NULL, NULL, NULL},
        {"--layers", CLI_COUNT, &q->layers, "N", "transformer blocks [6]"},
        {"--heads", CLI_COUNT, &q->heads, "N", "attention heads [4]"},
        {"--dim", CLI_COUNT, &q->dim, "N", "width [64]"},
        {"--seq", CLI_COUNT, &q->seq, "N", "tokens per sequence [64]"},
        {"Data", CLI_GROUP, NULL, NULL, NULL},
        {"--data", CLI_TEXT, &q->data, "FILE", "text to train on [dreamddp.h]"},
        {"Strategy", CLI_GROUP, NULL, NULL, NULL},
        {"--strategies", CLI_TEXT, &q->strategies, "A,B,..",
         "strategies to compare, or all [ssgd,wfbp,localsgd,enp,dreamddp,auto]"},
        {"--period", CLI_COUNT, &q->period, "H", "steps in which each layer is averaged once [4]"},
        {"--workers", CLI_COUNT, &q->workers, "N", "number of worker processes [4]"},
        {"--net", CLI_TEXT, &q->net, "RATE,DELAY", "emulated link of each worker [100mbit,1ms]"},
        {"Training", CLI_GROUP, NULL, NULL, NULL},
        {"--steps", CLI_COUNT, &q->steps, "N", "steps under each strategy [64]"},
        {"--batch", CLI_COUNT, &q->batch, "N", "sequences per worker and step [4]"},
        {"--lr", CLI_REAL, &q->lr, "X", "learning rate of AdamW [0.004]"},
        {"--seed", CLI_COUNT, &q->seed, "N", "seed of parameters and data order [1]"},
        {"Reports", CLI_GROUP, NULL, NULL, NULL},
        {"--out", CLI_TEXT, &q->out, "PREFIX", "prefix of the files to write [quickstart]"},
    };

    return cli_parse(argc, argv,
                     "Trains a small GPT over a slow link under several strategies and writes a report.",
                     table, (int)(sizeof table / sizeof table[0]));
}

static int worker(ddp_ctx *d, void *user)
{
    int bad = training_run(d, user);
    return bad ? bad : ddp_barrier(d); /* after this, the spans of all ranks are in shared memory */
}

static ddp_status train(quickstart *q, int s, ddp_error *err)
{
    ddp_config cfg;

    memset(&cfg, 0, sizeof cfg);
    cfg.strategy = q->strategy[s];
    cfg.world = (int)q->workers;
    if (cfg.strategy != DDP_AUTO) cfg.period = (int)q->period; /* auto chooses its own */
    cfg.choice.steps = (double)q->steps;
    if (ddp_strategy_traits(cfg.strategy) & DDP_NEEDS_SERVERS) cfg.server.count = DDP_SERVERS_COLOCATED;
    cfg.net = q->net;
    cfg.seed = (uint64_t)q->seed;
    cfg.profile_steps = 21; /* measures more steps than by default, because times vary when workers share
                             * cores */
    cfg.debug.trace_spans = TRAINING_SPANS / 2;
    cfg.cancel = &cli_interrupted;
    q->result[s] = training_result_new((int)q->workers, q->steps, (int)q->period);
    if (!q->result[s]) {
        snprintf(err->msg, sizeof err->msg, "out of memory for the results of %ld steps", q->steps);
        return err->code = DDP_MEMORY;
    }
    q->t.label = ddp_strategy_name(q->strategy[s]);
    q->t.result = q->result[s];
    return (ddp_status)ddp_launch(&cfg, worker, &q->t, err);
}

/* ---- report ---- */

/* Returns the mean of the last five losses, for comparisons. Single batches are noisy. */
static double smooth_loss(const training_result *r, long step)
{
    double sum = 0;
    long i, first = step >= 4 ? step - 4 : 0;

    for (i = first; i <= step; i++) sum += r->step[i].loss;
    return sum / (double)(step - first + 1);
}

static double time_to_loss(const training_result *r, double target)
{
    long i;

    for (i = 0; i < r->steps; i++)
        if (smooth_loss(r, i) <= target) return r->step[i].time_s;
    return NAN;
}

/* Returns the run whose profile and plan are printed: dreamddp, or the last one. */
static const training_result *shown(const quickstart *q)
{
    int s;

    for (s = 0; s < q->count - 1 && q->strategy[s] != ddp_strategy_named("dreamddp"); s++) {
    }
    return q->result[s];
}

/* Returns 1 if the parameters of the workers ever differed. */
static int diverged(const training_result *r)
{
    int l, any = 0;

    for (l = 0; l < r->layers; l++) any |= r->layer_divergence[l] > 0;
    return any;
}

static ddp_status fill_report(quickstart *q, ddp_error *err)
{
    const training_result *base = shown(q);
    ddp_report_data *d = &q->data_;
    int s, l, k;

    d->title = "dreamddp quickstart";
    d->command = q->command;
    d->version = DDP_VERSION_STRING;
    d->host = q->host;
    d->net = q->net;
    d->model = q->model;
    d->seed = (uint64_t)q->seed;
    d->workers = (int)q->workers;
    d->target_loss = -1e300;
    for (s = 0; s < q->count; s++) {
        double last = smooth_loss(q->result[s], q->result[s]->steps - 1);
        if (last > d->target_loss) d->target_loss = last;
    }
    for (l = 0; l < base->layers; l++) {
        q->layer[l].name = base->name[l];
        q->layer[l].params = base->params[l];
        q->layer[l].backward_s = base->backward_s[l];
        q->layer[l].comm_s = base->comm_s[l];
    }
    d->layers = q->layer;
    d->layer_count = base->layers;
    d->runs = q->run;
    d->run_count = q->count;
    for (s = 0; s < q->count; s++) {
        const training_result *r = q->result[s];
        ddp_report_run *run = &q->run[s];
        q->worker[s] = (ddp_report_worker *)calloc((size_t)q->workers, sizeof *q->worker[s]);
        if (!q->worker[s]) {
            snprintf(err->msg, sizeof err->msg, "out of memory for the report");
            return err->code = DDP_MEMORY;
        }
        for (k = 0; k < q->workers; k++) {
            q->worker[s][k].spans = r->rank[k].span;
            q->worker[s][k].count = r->rank[k].spans;
        }
        run->strategy = ddp_strategy_name(q->strategy[s]);
        run->step_ms = 1e3 * r->step_s;
        run->hidden_pct = r->hidden_pct;
        run->predicted_step_ms = 1e3 * r->rank[0].stats.predicted_step_s;
        run->predicted_hidden_pct = r->rank[0].stats.predicted_hidden_pct;
        run->bytes_sent = r->bytes_sent;
        run->time_to_loss_s = time_to_loss(r, d->target_loss);
        run->final_loss = r->final_loss;
        run->param_hash = r->param_hash;
        run->steps = r->step;
        run->step_count = (int)r->steps;
        run->period = r->period;
        run->step_of = r->period ? r->step_of : NULL;
        run->fill = r->period ? r->fill : NULL;
        run->layer_divergence = diverged(r) ? r->layer_divergence : NULL;
        run->slowest_rank = r->rank[0].stats.slowest_rank;
        run->slow_ratio = r->rank[0].stats.slow_ratio;
        run->replans = r->rank[0].stats.replans;
        run->workers = q->worker[s];
        run->worker_count = (int)q->workers;
        training_window(r, (int)q->workers, r->steps / 2 / q->period * q->period, (int)q->period, run);
    }
    return DDP_OK;
}

static void print_profile(const quickstart *q)
{
    const training_result *r = shown(q);
    double backward = 0, comm = 0;
    int l;

    printf("\nprofile%s\n",
           r->period ? ", and the step of the period in which dreamddp averages each layer" : "");
    printf("  layer          parameters   forward ms  backward ms  transfer ms%s\n",
           r->period ? "  step" : "");
    for (l = 0; l < r->layers; l++) {
        printf("  %-14s %10.0f %12.2f %12.2f %12.2f", r->name[l], r->params[l], 1e3 * r->forward_s[l],
               1e3 * r->backward_s[l], 1e3 * r->comm_s[l]);
        if (r->period) printf(" %5d", r->step_of[l]);
        putchar('\n');
        backward += r->backward_s[l];
        comm += r->comm_s[l];
    }
    printf("  communication / (H x backward) = %.2f; link: %.1f ms + %.0f ns per byte",
           comm / ((double)q->period * backward), 1e3 * r->rank[0].stats.link.alpha_s,
           1e9 * r->rank[0].stats.link.beta_s);
    if (r->period)
        printf("; plan: %s, %s cost, %.1f ms exposed per period", r->plan_solver, r->plan_cost,
               1e3 * (r->objective_s - (double)r->period * backward));
    printf("\n\n");
}

/* Prints what auto has chosen, and why. */
static void print_choice(const quickstart *q)
{
    for (int s = 0; s < q->count; s++) {
        const ddp_chosen *c = &q->result[s]->rank[0].chosen;
        if (c->strategy) printf("\nauto chose %s: %s\n", c->name, c->reason);
    }
}

static ddp_status write_lines(quickstart *q, const char *path, ddp_error *err)
{
    ddp_jsonl *j = ddp_jsonl_open(path, err);
    int s;
    long i;

    if (!j) return err->code;
    event_run(j, &q->data_);
    event_profile(j, &q->data_);
    for (s = 0; s < q->count; s++) {
        const training_result *r = q->result[s];
        event_plan(j, &q->data_, &q->run[s]);
        for (i = 0; i < r->steps; i++)
            event_step(j, q->run[s].strategy, i, r->step[i].loss,
                       1e3 * (r->step[i].time_s - (i ? r->step[i - 1].time_s : 0)), 1e3 * r->wait_s[i],
                       r->step[i].bytes, diverged(r) ? r->step[i].divergence : NAN);
        event_result(j, &q->data_, &q->run[s]);
    }
    return ddp_jsonl_close(j, err);
}

static ddp_status report(quickstart *q, ddp_error *err)
{
    char path[3][512];
    ddp_status s = fill_report(q, err);

    if (s != DDP_OK) return s;
    snprintf(path[0], sizeof path[0], "%s.html", q->out);
    snprintf(path[1], sizeof path[1], "%s_trace.json", q->out);
    snprintf(path[2], sizeof path[2], "%s.jsonl", q->out);
    print_profile(q);
    s = ddp_report_table(&q->data_, stdout, err);
    if (s == DDP_OK) print_choice(q);
    if (s == DDP_OK) s = ddp_report_html(&q->data_, path[0], err);
    if (s == DDP_OK) s = ddp_report_trace(&q->data_, path[1], err);
    if (s == DDP_OK) s = write_lines(q, path[2], err);
    if (s == DDP_OK)
        printf("\nthe picture: %s   the trace (ui.perfetto.dev): %s   the numbers: %s\n", path[0], path[1],
               path[2]);
    return s;
}

/* ---- main ---- */

static int choose(quickstart *q)
{
    const int all = !strcmp(q->strategies, "all");
    const char *at = q->strategies;
    char name[32];
    ddp_strategy id;
    size_t n;

    while (q->count < STRATEGIES) {
        n = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : (int)sizeof name - 1, at);
        id = all ? ddp_strategy_number(q->count) : ddp_strategy_named(name);
        if (id == DDP_STRATEGY_DEFAULT && all) return -1;
        if (id == DDP_STRATEGY_DEFAULT) {
            fprintf(stderr,
                    "quickstart: --strategies: there is no strategy '%s'; train_gpt --help lists them\n",
                    name);
            return 2;
        }
        q->strategy[q->count++] = id;
        if (!all && !at[n]) return -1;
        at += n + 1;
    }
    fprintf(stderr, "quickstart: --strategies: at most %d are compared at once\n", (int)STRATEGIES);
    return 2;
}

static ddp_status prepare(quickstart *q, ddp_error *err)
{
    training *t = &q->t;

    training_host(q->host, sizeof q->host);
    q->tokens = ddp_tokens_open(q->data, err);
    if (!q->tokens) return err->code;
    if (ddp_tokens_split(q->tokens, 0.1, q->seq, &t->train, &t->val, err)) return err->code;
    t->model.vocabulary = ddp_tokens_vocabulary(q->tokens);
    t->model.context = q->seq;
    t->model.layers = q->layers;
    t->model.heads = q->heads;
    t->model.dim = q->dim;
    t->model.batch = q->batch;
    t->model.deviation = training_deviation(q->dim);
    if (training_check(t, err)) return err->code;
    t->optimizer = ddp_adamw((float)q->lr, 0.8f, 0.95f, 1e-8f, 0.01f); /* smaller betas than usual, because
                                                                        * the run is short */
    t->schedule.base = q->lr;
    t->schedule.warmup = 10;
    t->schedule.kind = DDP_LR_COSINE;
    t->schedule.total = q->steps;
    t->schedule.min_ratio = 0.1;
    t->steps = q->steps;
    t->accumulate = 1;
    t->seed = (uint64_t)q->seed;
    t->workers = (int)q->workers;
    t->period = (int)q->period;
    snprintf(q->model, sizeof q->model, "GPT-2, %ld layers, %ld heads, width %ld, %ld tokens, vocabulary %ld",
             q->layers, q->heads, q->dim, q->seq, t->model.vocabulary);
    printf("%ld worker processes train a GPT on %s, each over a %s link, averaging period H = "
           "%ld\n%s, batch %ld per worker; "
           "a uniform guess has loss ln V = %.2f\n",
           q->workers, q->data, q->net, q->period, q->model, q->batch, log((double)t->model.vocabulary));
    fflush(stdout);
    return DDP_OK;
}

static int check(const quickstart *q)
{
    const cli_range ranges[] = {
        {"--workers", (double)q->workers, 1, 64}, {"--period", (double)q->period, 1, 1000000},
        {"--layers", (double)q->layers, 1, 0},    {"--heads", (double)q->heads, 1, 0},
        {"--dim", (double)q->dim, 1, 0},          {"--seq", (double)q->seq, 1, 0},
        {"--batch", (double)q->batch, 1, 0},      {"--lr", q->lr, DBL_MIN, 0}};
    char text[200];

    if (cli_out_of_range(ranges, sizeof ranges / sizeof ranges[0], text, sizeof text))
        fprintf(stderr, "quickstart: %s\n", text);
    else if (q->steps < 30)
        fprintf(stderr, "quickstart: --steps %ld: at least 30, because the first 21 are measured\n",
                q->steps);
    else
        return -1;
    return 2;
}

int main(int argc, char **argv)
{
    static quickstart q;
    ddp_error err;
    int code, s;

    q.strategies = "ssgd,wfbp,localsgd,enp,dreamddp,auto";
    q.data = "dreamddp.h";
    q.net = "100mbit,1ms";
    q.out = "quickstart";
    q.steps = 64;
    q.workers = 4;
    q.period = 4;
    q.seed = 1;
    q.batch = 4;
    q.layers = 6;
    q.heads = 4;
    q.dim = 64;
    q.seq = 64;
    q.lr = 4e-3;
    cli_command(argc, argv, q.command, sizeof q.command);
    code = parse(&q, argc, argv);
    if (code < 0) code = check(&q);
    if (code < 0) code = choose(&q);
    if (code >= 0) return code;
    memset(&err, 0, sizeof err);
    cli_catch_interrupt();
    code = (int)prepare(&q, &err);
    for (s = 0; !code && s < q.count; s++) code = (int)train(&q, s, &err);
    if (!code) code = (int)report(&q, &err);
    ddp_tokens_close(q.tokens);
    for (s = 0; s < q.count; s++) free(q.worker[s]);
    if (cli_interrupted) return fprintf(stderr, "quickstart: interrupted, nothing was written\n"), 130;
    if (code) return fprintf(stderr, "quickstart: %s\n", err.msg), ddp_status_exit_code(err.code);
    return 0;
}
