/* Trains a GPT on any text under any strategy, with one process or thread per worker.
 *
 *   cc -O2 -I. examples/train_gpt.c -o train_gpt -lm -lpthread
 *   ./train_gpt --workers 4 --strategy dreamddp --net 100mbit,5ms --data dreamddp.h --steps 200
 *
 * The last line of stdout is one JSON object with the results; --help lists the options. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "cli.h"
#include "training.h"

typedef struct program {
    const char *strategy, *transport, *model, *optimizer, *schedule, *solver, *cost, *fill;
    const char *net, *data, *addr, *profile, *plan, *emulate, *json, *trace, *write_profile;
    long period, workers, steps, epochs, batch, vocab, warmup, accumulate, seed, threads, rank,
        profile_steps;
    long   layers, heads, dim, seq;
    double lr, clip, weight_decay, dropout, held_out, emulate_scale;
    int    deterministic, paper, average_state, insecure, check_writes, quiet;
    ddp_config  cfg;
    training    t;
    ddp_tokens *tokens;
    ddp_profile emulated;
    char   command[1024], described[128], host[128];
} program;

/* A mistake of the user, as the library reports its own. */
static ddp_status refuse(ddp_error *err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    return err->code = DDP_ARG;
}

static void defaults(program *p)
{
    memset(p, 0, sizeof *p);
    p->model = "gpt2", p->optimizer = "adamw", p->schedule = "constant";
    p->workers = 1, p->steps = 100, p->batch = 4, p->accumulate = 1;
    p->period = p->threads = p->rank = p->profile_steps = -1; /* not given */
    p->layers = 4, p->heads = 4, p->dim = 64, p->seq = 64;
    p->lr = 3e-3, p->weight_decay = 0.01, p->held_out = 0.1, p->emulate_scale = 1;
}

static int parse(program *p, int argc, char **argv)
{
    const cli_option table[] = {
        {"--model", CLI_TEXT, &p->model, "gpt2", "the model [gpt2]"},
        {"--layers", CLI_COUNT, &p->layers, "N", "transformer blocks [4]"},
        {"--heads", CLI_COUNT, &p->heads, "N", "attention heads [4]"},
        {"--dim", CLI_COUNT, &p->dim, "N", "width, a multiple of --heads [64]"},
        {"--seq", CLI_COUNT, &p->seq, "N", "tokens per sequence [64]"},
        {"--vocab", CLI_COUNT, &p->vocab, "N", "vocabulary; 0 = from the data, larger pads [0]"},
        {"--dropout", CLI_REAL, &p->dropout, "P", "dropout probability [0]"},
        {"--data", CLI_TEXT, &p->data, "FILE",
         "any file as bytes, llm.c or nanoGPT .bin, .gz of these"},
        {"--held-out", CLI_REAL, &p->held_out, "F", "fraction of the data kept for val_loss [0.1]"},
        {"--steps", CLI_COUNT, &p->steps, "N", "steps [100]"},
        {"--epochs", CLI_COUNT, &p->epochs, "N", "instead of --steps: passes over the data"},
        {"--batch", CLI_COUNT, &p->batch, "N", "sequences per worker and micro-batch [4]"},
        {"--accumulate", CLI_COUNT, &p->accumulate, "N", "micro-batches per step [1]"},
        {"--lr", CLI_REAL, &p->lr, "X", "learning rate [0.003]"},
        {"--optimizer", CLI_TEXT, &p->optimizer, "NAME", "sgd, adam or adamw [adamw]"},
        {"--weight-decay", CLI_REAL, &p->weight_decay, "X", "weight decay [0.01]"},
        {"--schedule", CLI_TEXT, &p->schedule, "NAME", "constant, cosine or step [constant]"},
        {"--warmup", CLI_COUNT, &p->warmup, "N", "steps of linear warm-up [0]"},
        {"--clip", CLI_REAL, &p->clip, "X", "global gradient norm limit; 0 = none [0]"},
        {"--seed", CLI_COUNT, &p->seed, "N", "of parameters and data order [0]"},
        {"--strategy", CLI_TEXT, &p->strategy, "NAME",
         "ssgd, wfbp, localsgd, enp or dreamddp [dreamddp]"},
        {"--period", CLI_COUNT, &p->period, "H", "steps in which each layer is averaged once [5]"},
        {"--paper", CLI_FLAG, &p->paper, "",
         "the paper's rule: contiguous sets, complete at step end"},
        {"--solver", CLI_TEXT, &p->solver, "NAME", "optimal, dfs, enp, brute or scatter [scatter]"},
        {"--cost", CLI_TEXT, &p->cost, "NAME", "timeline, sum or window [window]"},
        {"--fill", CLI_TEXT, &p->fill, "NAME", "bubble filling: none, exact or eq12 [none]"},
        {"--average-state", CLI_FLAG, &p->average_state, "", "average the optimizer state too"},
        {"--workers", CLI_COUNT, &p->workers, "N",
         "workers to start, or the world with --rank [1]"},
        {"--transport", CLI_TEXT, &p->transport, "NAME", "tcp (processes) or threads [tcp]"},
        {"--net", CLI_TEXT, &p->net, "RATE,DELAY",
         "shape each worker's links, e.g. 100mbit,20ms [unshaped]"},
        {"--addr", CLI_TEXT, &p->addr, "HOST:PORT",
         "where rank 0 listens; with --rank [127.0.0.1:29500]"},
        {"--rank", CLI_COUNT, &p->rank, "R", "be one rank of a run over several machines"},
        {"--insecure", CLI_FLAG, &p->insecure, "",
         "allow addresses beyond this machine, without encryption"},
        {"--threads", CLI_COUNT, &p->threads, "N", "operator threads per worker [1]"},
        {"--deterministic", CLI_FLAG, &p->deterministic, "",
         "equal bits on every transport; plan without clocks"},
        {"--profile", CLI_TEXT, &p->profile, "P.csv",
         "plan from this profile instead of measuring"},
        {"--profile-steps", CLI_COUNT, &p->profile_steps, "N",
         "steps measured before planning [6]"},
        {"--plan", CLI_TEXT, &p->plan, "FILE", "use this plan (JSON of `plan partial`)"},
        {"--emulate-compute", CLI_TEXT, &p->emulate, "P.csv",
         "layers sleep for these times and compute nothing"},
        {"--emulate-scale", CLI_REAL, &p->emulate_scale, "F",
         "divide their parameters by F; scale --net alike [1]"},
        {"--check-writes", CLI_FLAG, &p->check_writes, "",
         "report writes to a layer that is in flight"},
        {"--json", CLI_TEXT, &p->json, "FILE", "JSON lines of the run"},
        {"--trace", CLI_TEXT, &p->trace, "FILE", "trace of the run, opens in Perfetto"},
        {"--write-profile", CLI_TEXT, &p->write_profile, "P.csv",
         "write the measured profile, for --profile and `plan`"},
        {"--quiet", CLI_FLAG, &p->quiet, "", "no progress line"},
    };

    cli_command(argc, argv, p->command, sizeof p->command);
    return cli_parse(argc, argv,
                     "Trains a GPT over slow links and prints one JSON object of results.", table,
                     (int)(sizeof table / sizeof table[0]));
}

/* An option that was not given can come from the environment. */
static const char *or_environment(const char *given, const char *variable, const char *otherwise)
{
    const char *v = given ? given : getenv(variable);

    return v && *v ? v : otherwise;
}

/* Names to enumerations. */
static ddp_status choose(program *p, ddp_error *err)
{
    ddp_config *c = &p->cfg;
    float lr = (float)p->lr, decay = (float)p->weight_decay;

    p->strategy = or_environment(p->strategy, "DREAMDDP_STRATEGY", "dreamddp");
    p->transport = or_environment(p->transport, "DREAMDDP_TRANSPORT", "tcp");
    c->strategy = ddp_strategy_named(p->strategy);
    if (c->strategy == DDP_STRATEGY_DEFAULT)
        return refuse(err, "unknown strategy %s; choose ssgd, wfbp, localsgd, enp or dreamddp",
                      p->strategy);
    if (strcmp(p->transport, "tcp") && strcmp(p->transport, "threads"))
        return refuse(err, "unknown transport %s; choose tcp or threads", p->transport);
    c->transport = strcmp(p->transport, "tcp") ? DDP_THREADS : DDP_TCP;
    if (strcmp(p->model, "gpt2")) return refuse(err, "unknown model %s; choose gpt2", p->model);
    if (p->solver && ddp_solver_named(p->solver, &c->solver, NULL))
        return refuse(err, "unknown solver %s; choose optimal, dfs, enp, brute or scatter",
                      p->solver);
    if (p->cost && ddp_cost_named(p->cost, &c->cost, NULL))
        return refuse(err, "unknown cost %s; choose timeline, sum or window", p->cost);
    if (p->fill && ddp_fill_named(p->fill, &c->fill, NULL))
        return refuse(err, "unknown filling %s; choose none, exact or eq12", p->fill);
    if (!ddp_schedule_named(p->schedule, &p->t.schedule.kind))
        return refuse(err, "unknown schedule %s; choose constant, cosine or step", p->schedule);
    if (!strcmp(p->optimizer, "sgd")) p->t.optimizer = ddp_sgd_decay(lr, 0.9f, decay);
    else if (!strcmp(p->optimizer, "adam"))
        p->t.optimizer = ddp_adam(lr, 0.9f, 0.999f, 1e-8f, decay);
    else if (!strcmp(p->optimizer, "adamw"))
        p->t.optimizer = ddp_adamw(lr, 0.9f, 0.999f, 1e-8f, decay);
    else return refuse(err, "unknown optimizer %s; choose sgd, adam or adamw", p->optimizer);
    return DDP_OK;
}

/* Everything that ddp_open and ddp_gpt2 do not check themselves. */
static ddp_status check(const program *p, ddp_error *err)
{
    if (p->workers < 1 || p->workers > 256)
        return refuse(err, "--workers %ld is not possible; 1 to 256 can be started", p->workers);
    if (p->period == 0)
        return refuse(err,
                      "--period 0: H is at least 1 step; 1 averages every layer in every step");
    if (p->steps < 1 && !p->epochs)
        return refuse(err, "--steps %ld: at least 1 step is needed", p->steps);
    if (p->batch < 1) return refuse(err, "--batch 0: at least 1 sequence is needed");
    if (p->accumulate < 1) return refuse(err, "--accumulate 0: at least 1 micro-batch is needed");
    if (p->threads == 0) return refuse(err, "--threads 0: at least 1 operator thread is needed");
    if (!(p->lr > 0)) return refuse(err, "--lr %g: it must be above 0; 0.003 suits adamw", p->lr);
    if (!(p->weight_decay >= 0))
        return refuse(err, "--weight-decay %g: it must not be negative", p->weight_decay);
    if (!(p->clip >= 0)) return refuse(err, "--clip %g: a limit above 0, or 0 for none", p->clip);
    if (!(p->held_out >= 0 && p->held_out < 1))
        return refuse(err, "--held-out %g: a fraction from 0 up to but not 1; the default is 0.1",
                      p->held_out);
    if (!(p->emulate_scale >= 1))
        return refuse(err, "--emulate-scale %g: at least 1, which sends every byte",
                      p->emulate_scale);
    if (p->rank >= p->workers)
        return refuse(err, "--rank %ld is outside --workers %ld; ranks count from 0", p->rank,
                      p->workers);
    if (p->addr && p->rank < 0)
        return refuse(err,
                      "--addr %s needs --rank R; each machine starts its own rank of --workers N",
                      p->addr);
    if (p->rank >= 0 && p->cfg.transport == DDP_THREADS)
        return refuse(err, "--rank %ld needs --transport tcp; threads live in one process",
                      p->rank);
    if (p->emulate && (p->accumulate > 1 || p->epochs))
        return refuse(err, "--emulate-compute has no data; leave out --accumulate and --epochs");
    if (!p->data && !p->emulate)
        return refuse(err, "--data FILE is missing; any text file will do, e.g. --data dreamddp.h");
    return DDP_OK;
}

static void configure(program *p)
{
    ddp_config *c = &p->cfg;

    if (p->period > 0) c->period = (int)p->period;
    if (p->threads > 0) c->threads = (int)p->threads;
    if (p->rank >= 0 || p->workers > 1) c->world = (int)p->workers;
    c->addr = p->addr;
    if (p->rank >= 0) {
        c->rank = (int)p->rank;
        if (!p->addr) c->addr = or_environment(NULL, "DREAMDDP_ADDR", "127.0.0.1:29500");
    }
    c->net = p->net;
    c->seed = (uint64_t)p->seed;
    c->micro_batches = (int)p->accumulate;
    if (p->emulate)
        c->bucket_bytes = (size_t)(25 * 1048576 / p->emulate_scale); /* of wfbp: shrinks alike */
    c->clip_norm = (float)p->clip;
    c->average_state = p->average_state;
    c->deterministic = p->deterministic;
    c->paper = p->paper;
    c->profile_steps = (int)(p->profile_steps > 0 ? p->profile_steps : 0);
    if (p->profile_steps == 0) c->profile_steps = -1; /* plan at once, from the arithmetic */
    c->profile_path = p->profile;
    c->plan_path = p->plan;
    c->insecure = p->insecure;
    c->check_writes = p->check_writes;
    c->trace_spans = p->trace ? TRAINING_SPANS : 0;
    c->cancel = &cli_interrupted;
}

static ddp_status load(program *p, ddp_error *err)
{
    training *t = &p->t;
    ddp_gpt2_config *m = &t->model;

    if (p->emulate) {
        ddp_link none = {0, 0};
        t->emulate = &p->emulated;
        t->emulate_scale = p->emulate_scale;
        snprintf(p->described, sizeof p->described, "sleeps for the times of %.90s", p->emulate);
        return ddp_profile_read(p->emulate, &none, &p->emulated, err);
    }
    p->tokens = ddp_tokens_open(p->data, err);
    if (!p->tokens) return err->code;
    m->vocabulary = ddp_tokens_vocabulary(p->tokens);
    if (p->vocab && p->vocab < m->vocabulary)
        return refuse(err, "--vocab %ld is smaller than the data's %ld tokens; 0 takes the data's",
                      p->vocab, m->vocabulary);
    if (p->vocab) m->vocabulary = p->vocab;
    m->layers = p->layers, m->heads = p->heads, m->dim = p->dim, m->context = p->seq,
    m->batch = p->batch;
    m->dropout = (float)p->dropout;
    m->deviation = training_deviation(p->dim);
    snprintf(p->described, sizeof p->described,
             "GPT-2, %ld layers, %ld heads, width %ld, %ld tokens, vocabulary %ld", p->layers,
             p->heads, p->dim, p->seq, m->vocabulary);
    if (training_check(m, err)) return err->code;
    return ddp_tokens_split(p->tokens, p->held_out, p->seq, &t->train, &t->val, err);
}

static ddp_status prepare(program *p, ddp_error *err)
{
    training *t = &p->t;

    training_host(p->host, sizeof p->host);
    if (load(p, err)) return err->code;
    if (p->epochs) {
        long per_step = p->workers * p->batch * p->accumulate;
        t->windows = p->epochs * ddp_tokens_windows(&t->train);
        p->steps = (t->windows + per_step - 1) / per_step;
    }
    t->schedule.base = p->lr, t->schedule.warmup = p->warmup, t->schedule.total = p->steps;
    t->schedule.min_ratio = 0.1, t->schedule.step_size = p->steps / 3 + 1, t->schedule.gamma = 0.1;
    t->steps = p->steps, t->accumulate = p->accumulate, t->seed = (uint64_t)p->seed;
    t->workers = (int)p->workers, t->period = (int)p->period;
    t->label = p->quiet ? NULL : p->strategy;
    /* only the ranks that are started here leave something behind here */
    t->result = training_result_new(p->rank >= 0 ? 1 : (int)p->workers, p->steps,
                                    p->period > 0 ? (int)p->period : 64);
    if (t->result) return DDP_OK;
    refuse(err, "out of memory for the results of %ld steps", p->steps);
    return err->code = DDP_MEMORY;
}

/* Says before the training, not after it, that a file could not be written. */
static ddp_status check_writable(const char *path, ddp_error *err)
{
    struct stat st;
    ddp_jsonl *j;

    if (!path) return DDP_OK;
    if (!stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return DDP_OK; /* a pipe, say */
    j = ddp_jsonl_open(path, err);
    if (!j) return err->code;
    ddp_jsonl_abandon(j);
    return DDP_OK;
}

/* ---- results ---- */

static void write_results(const program *p, ddp_jsonl *j)
{
    const training_result *r = p->t.result;

    ddp_jsonl_string(j, "strategy", p->strategy);
    ddp_jsonl_integer(j, "workers", r->world);
    ddp_jsonl_number(j, "final_loss", r->final_loss);
    ddp_jsonl_number(j, "first_loss", r->first_loss);
    ddp_jsonl_number(j, "val_loss", r->val_loss);
    ddp_jsonl_integer(j, "steps", r->steps);
    ddp_jsonl_number(j, "step_ms", 1e3 * r->step_s);
    ddp_jsonl_number(j, "tokens_per_s", r->tokens_per_s);
    ddp_jsonl_number(j, "hidden_pct", r->hidden_pct);
    ddp_jsonl_number(j, "predicted_step_ms", 1e3 * r->rank[0].stats.predicted_step_s);
    ddp_jsonl_number(j, "predicted_hidden_pct", r->rank[0].stats.predicted_hidden_pct);
    ddp_jsonl_number(j, "wait_ms", 1e3 * r->rank[0].stats.wait_s);
    ddp_jsonl_integer(j, "bytes_sent", r->bytes_sent);
    ddp_jsonl_number(j, "peak_rss_mb", r->peak_rss_mb);
    ddp_jsonl_string(j, "param_hash", r->param_hash);
}

static void describe(const program *p, ddp_report_data *d)
{
    memset(d, 0, sizeof *d);
    d->title = "train_gpt", d->command = p->command, d->version = DDP_VERSION_STRING,
    d->host = p->host;
    d->net = p->net, d->model = p->described, d->seed = (uint64_t)p->seed,
    d->workers = (int)p->workers;
    d->target_loss = NAN;
}

static void report(const program *p, ddp_report_data *d, ddp_report_layer *layer,
                   ddp_report_run *run, ddp_report_worker *worker)
{
    const training_result *r = p->t.result;
    int i;

    describe(p, d);
    for (i = 0; i < r->layers; i++) {
        layer[i].name = r->name[i], layer[i].params = r->params[i];
        layer[i].backward_s = r->backward_s[i], layer[i].comm_s = r->comm_s[i];
    }
    d->layers = layer, d->layer_count = r->layers, d->runs = run, d->run_count = 1;
    memset(run, 0, sizeof *run);
    run->strategy = p->strategy, run->step_ms = 1e3 * r->step_s, run->hidden_pct = r->hidden_pct;
    run->predicted_step_ms = 1e3 * r->rank[0].stats.predicted_step_s;
    run->predicted_hidden_pct = r->rank[0].stats.predicted_hidden_pct;
    run->bytes_sent = r->bytes_sent, run->time_to_loss_s = NAN, run->final_loss = r->final_loss;
    run->param_hash = r->param_hash;
    run->period = r->period, run->step_of = r->step_of, run->fill = r->fill;
    run->workers = worker, run->worker_count = r->workers;
    for (i = 0; i < r->workers; i++)
        worker[i].spans = r->rank[i].span, worker[i].count = r->rank[i].spans;
}

static ddp_status write_lines(const program *p, const ddp_report_data *d, ddp_error *err)
{
    const training_result *r = p->t.result;
    ddp_jsonl *j = ddp_jsonl_open(p->json, err);
    double before = 0;
    long i;

    if (!j) return err->code;
    ddp_jsonl_run(j, d);
    ddp_jsonl_profile(j, d);
    ddp_jsonl_plan(j, d, d->runs);
    for (i = 0; i < r->steps; i++) {
        const ddp_report_step *s = &r->step[i];
        ddp_jsonl_step(j, p->strategy, i, s->loss, 1e3 * (s->time_s - before), 1e3 * r->wait_s[i],
                       s->bytes, s->divergence);
        before = s->time_s;
    }
    ddp_jsonl_event(j, "result");
    write_results(p, j);
    ddp_jsonl_number(j, "time_to_loss_s", NAN); /* one run has nothing to be compared with */
    ddp_jsonl_end(j);
    return ddp_jsonl_close(j, err);
}

/* The files a user asked for; the run itself is over and well. */
static ddp_status write_files(const program *p, ddp_error *err)
{
    const training_result *r = p->t.result;
    ddp_report_layer *layer = (ddp_report_layer *)calloc((size_t)r->layers + 1, sizeof *layer);
    ddp_report_worker *worker = (ddp_report_worker *)calloc((size_t)r->workers, sizeof *worker);
    ddp_report_data d;
    ddp_report_run run;
    ddp_status s = DDP_OK;

    if (layer && worker) {
        report(p, &d, layer, &run, worker);
        if (p->json) s = write_lines(p, &d, err);
        if (s == DDP_OK && p->trace) s = ddp_report_trace(&d, p->trace, err);
    } else {
        refuse(err, "out of memory for the report");
        s = err->code = DDP_MEMORY;
    }
    free(layer);
    free(worker);
    return s;
}

static ddp_status write_profile(const program *p, ddp_error *err)
{
    const training_result *r = p->t.result;
    double alpha = r->rank[0].stats.link.alpha_s, measured = 0;
    ddp_profile out;
    ddp_status s;
    int l;

    for (l = 0; l < r->layers; l++) measured += r->backward_s[l];
    if (!(measured > 0))
        return refuse(
            err, "--write-profile %s: there is no profile; --steps %ld end before it is measured",
            p->write_profile, p->steps);
    s = ddp_profile_new(r->layers, &out, err);
    if (s != DDP_OK) return s;
    for (l = 0; l < r->layers; l++) {
        out.name[l] = strdup(r->name[l]);
        out.params[l] = r->params[l], out.forward_s[l] = r->forward_s[l];
        out.backward_s[l] = r->backward_s[l],
        out.comm_s[l] =
            r->comm_s[l] > 0 ? r->comm_s[l] + alpha : 0; /* a CSV has no column for alpha */
    }
    s = ddp_profile_write(&out, p->write_profile, err);
    ddp_profile_free(&out);
    return s;
}

/* What the JSON lines say of a run that failed. */
static void write_failure(const program *p, const ddp_error *why)
{
    ddp_jsonl *j = ddp_jsonl_open(p->json, NULL);
    ddp_report_data d;

    describe(p, &d);
    ddp_jsonl_run(j, &d);
    ddp_jsonl_error(j, why);
    ddp_jsonl_close(j, NULL);
}

static ddp_status finish(const program *p, ddp_error *err)
{
    ddp_jsonl *out = ddp_jsonl_stream(stdout, err);
    ddp_status s;

    ddp_jsonl_event(out, NULL);
    write_results(p, out);
    ddp_jsonl_end(out);
    s = ddp_jsonl_close(out, err);
    if (s == DDP_OK && (p->json || p->trace)) s = write_files(p, err);
    if (s == DDP_OK && p->write_profile) s = write_profile(p, err);
    return s;
}

static ddp_status run(program *p, ddp_error *err)
{
    ddp_status s = choose(p, err);

    if (s == DDP_OK) s = check(p, err);
    if (s == DDP_OK) s = prepare(p, err);
    if (s == DDP_OK) s = check_writable(p->json, err);
    if (s == DDP_OK) s = check_writable(p->trace, err);
    if (s == DDP_OK) s = check_writable(p->write_profile, err);
    if (s != DDP_OK) return s;
    configure(p);
    s = (ddp_status)ddp_launch(&p->cfg, training_run, &p->t, err);
    /* of ranks that were started one by one, rank 0 has the results */
    if (s == DDP_OK && p->t.result->complete) return finish(p, err);
    if (p->json && !cli_interrupted && s != DDP_OK && ddp_status_exit_code(s) != 2)
        write_failure(p, err);
    return s;
}

int main(int argc, char **argv)
{
    program *p = (program *)malloc(sizeof *p);
    ddp_error err;
    int code;

    if (!p) return 1;
    memset(&err, 0, sizeof err);
    cli_catch_interrupt();
    defaults(p);
    code = parse(p, argc, argv);
    if (code < 0) {
        code = ddp_status_exit_code(run(p, &err));
        if (code && cli_interrupted) {
            snprintf(err.msg, sizeof err.msg, "interrupted, nothing was written");
            code = ddp_status_exit_code(DDP_ABORTED);
        }
        if (code) fprintf(stderr, "train_gpt: %s\n", err.msg);
    }
    ddp_tokens_close(p->tokens);
    ddp_profile_free(&p->emulated);
    free(p);
    return code;
}
