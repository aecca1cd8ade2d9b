/* Trains a GPT on any text under any strategy, with one process or thread per worker.
 *
 *   cc -O2 -I. examples/train_gpt.c -o train_gpt -lm -lpthread
 *   ./train_gpt --workers 4 --strategy dreamddp --period 5 --net 100mbit,5ms --data dreamddp.h --steps 200
 *
 * The last line of stdout is one JSON object with the results; --help lists the options. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "cli.h"
#include "training.h"

typedef struct program {
    const char *strategy, *transport, *model, *optimizer, *schedule, *solver, *cost, *fill;
    const char *net, *data, *addr, *profile, *plan, *emulate, *json, *trace;
    long   period, workers, steps, epochs, batch, vocab, warmup, accumulate, seed, threads, rank, profile_steps;
    long   layers, heads, dim, seq;
    double lr, clip, weight_decay, dropout, held_out, emulate_scale;
    int    deterministic, paper, average_state, insecure, check_writes, quiet;
    ddp_config  cfg;
    training    t;
    ddp_tokens *tokens;
    ddp_profile emulated;
    int    argc;
    char **argv;
    ddp_jsonl *lines;
} program;

static int usage(const char *fmt, const char *value, const char *remedy)
{
    fprintf(stderr, "train_gpt: ");
    fprintf(stderr, "%s %s; %s\n", fmt, value, remedy);
    return 2;
}

static int failed(const ddp_error *err)
{
    fprintf(stderr, "train_gpt: %s\n", err->msg);
    return ddp_status_exit_code(err->code);
}

static void defaults(program *p)
{
    memset(p, 0, sizeof *p);
    p->strategy = "dreamddp", p->transport = "tcp", p->model = "gpt2", p->optimizer = "adamw", p->schedule = "constant";
    p->solver = p->cost = p->fill = "default";
    p->workers = 1, p->steps = 100, p->batch = 4, p->accumulate = 1, p->threads = 1, p->rank = -1, p->profile_steps = -1;
    p->layers = 4, p->heads = 4, p->dim = 64, p->seq = 64;
    p->lr = 3e-3, p->weight_decay = 0.01, p->held_out = 0.1, p->emulate_scale = 1;
}

static int parse(program *p)
{
    const cli_option table[] = {
        {"--model", CLI_TEXT, &p->model, "gpt2", "the model [gpt2]"},
        {"--layers", CLI_COUNT, &p->layers, "N", "transformer blocks [4]"},
        {"--heads", CLI_COUNT, &p->heads, "N", "attention heads [4]"},
        {"--dim", CLI_COUNT, &p->dim, "N", "width, a multiple of --heads [64]"},
        {"--seq", CLI_COUNT, &p->seq, "N", "tokens per sequence [64]"},
        {"--vocab", CLI_COUNT, &p->vocab, "N", "vocabulary; 0 = from the data, larger pads [0]"},
        {"--dropout", CLI_REAL, &p->dropout, "P", "dropout probability [0]"},
        {"--data", CLI_TEXT, &p->data, "FILE", "text or tokens: any file as bytes, llm.c or nanoGPT .bin, .gz of these"},
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
        {"--strategy", CLI_TEXT, &p->strategy, "NAME", "ssgd, wfbp, localsgd, enp or dreamddp [dreamddp]"},
        {"--period", CLI_COUNT, &p->period, "H", "steps in which each layer is averaged once [5]"},
        {"--paper", CLI_FLAG, &p->paper, "", "the paper's own rule: contiguous sets, all complete at step end"},
        {"--solver", CLI_TEXT, &p->solver, "NAME", "optimal, dfs, enp, brute or scatter [scatter]"},
        {"--cost", CLI_TEXT, &p->cost, "NAME", "timeline, sum or window [window]"},
        {"--fill", CLI_TEXT, &p->fill, "NAME", "bubble filling: none, exact or eq12 [none]"},
        {"--average-state", CLI_FLAG, &p->average_state, "", "average the optimizer state too"},
        {"--workers", CLI_COUNT, &p->workers, "N", "workers to start here, or the world with --rank [1]"},
        {"--transport", CLI_TEXT, &p->transport, "NAME", "tcp (processes) or threads [tcp]"},
        {"--net", CLI_TEXT, &p->net, "RATE,DELAY", "shape each worker's uplink and downlink, e.g. 100mbit,20ms"},
        {"--addr", CLI_TEXT, &p->addr, "HOST:PORT", "where rank 0 listens; with --rank"},
        {"--rank", CLI_COUNT, &p->rank, "R", "be one rank of a run over several machines"},
        {"--insecure", CLI_FLAG, &p->insecure, "", "allow addresses beyond this machine, without encryption"},
        {"--threads", CLI_COUNT, &p->threads, "N", "operator threads per worker [1]"},
        {"--deterministic", CLI_FLAG, &p->deterministic, "", "equal bits on every transport; plan without clocks"},
        {"--profile", CLI_TEXT, &p->profile, "P.csv", "plan from this profile instead of measuring"},
        {"--profile-steps", CLI_COUNT, &p->profile_steps, "N", "steps measured before planning [6]"},
        {"--plan", CLI_TEXT, &p->plan, "FILE", "use this plan (JSON of `plan partial`)"},
        {"--emulate-compute", CLI_TEXT, &p->emulate, "P.csv", "layers sleep for this profile's times instead of computing"},
        {"--emulate-scale", CLI_REAL, &p->emulate_scale, "F", "divide the emulated parameters by F (scale --net alike) [1]"},
        {"--check-writes", CLI_FLAG, &p->check_writes, "", "report writes to a layer that is in flight"},
        {"--json", CLI_TEXT, &p->json, "FILE", "JSON lines of the run"},
        {"--trace", CLI_TEXT, &p->trace, "FILE", "trace of the run, opens in Perfetto"},
        {"--quiet", CLI_FLAG, &p->quiet, "", "no progress line"},
    };

    return cli_parse(p->argc, p->argv, "Trains a GPT over slow links and prints one JSON object of results.", table,
                     (int)(sizeof table / sizeof table[0]));
}

/* Names to enumerations, and everything that ddp_open itself does not check. */
static int choose(program *p)
{
    ddp_config *c = &p->cfg;

    c->strategy = ddp_strategy_named(p->strategy);
    if (c->strategy == DDP_STRATEGY_DEFAULT)
        return usage("unknown strategy", p->strategy, "choose ssgd, wfbp, localsgd, enp or dreamddp");
    if (strcmp(p->transport, "tcp") && strcmp(p->transport, "threads"))
        return usage("unknown transport", p->transport, "choose tcp or threads");
    c->transport = strcmp(p->transport, "tcp") ? DDP_THREADS : DDP_TCP;
    if (strcmp(p->model, "gpt2")) return usage("unknown model", p->model, "choose gpt2");
    if (strcmp(p->solver, "default") && ddp_solver_named(p->solver, &c->solver, NULL))
        return usage("unknown solver", p->solver, "choose optimal, dfs, enp, brute or scatter");
    if (strcmp(p->cost, "default") && ddp_cost_named(p->cost, &c->cost, NULL))
        return usage("unknown cost", p->cost, "choose timeline, sum or window");
    if (strcmp(p->fill, "default") && ddp_fill_named(p->fill, &c->fill, NULL))
        return usage("unknown filling", p->fill, "choose none, exact or eq12");
    if (!ddp_schedule_named(p->schedule, &p->t.schedule.kind))
        return usage("unknown schedule", p->schedule, "choose constant, cosine or step");
    if (!strcmp(p->optimizer, "sgd")) p->t.optimizer = ddp_sgd_decay((float)p->lr, 0.9f, (float)p->weight_decay);
    else if (!strcmp(p->optimizer, "adam")) p->t.optimizer = ddp_adam((float)p->lr, 0.9f, 0.999f, 1e-8f, (float)p->weight_decay);
    else if (!strcmp(p->optimizer, "adamw")) p->t.optimizer = ddp_adamw((float)p->lr, 0.9f, 0.999f, 1e-8f, (float)p->weight_decay);
    else return usage("unknown optimizer", p->optimizer, "choose sgd, adam or adamw");
    if (p->workers < 1 || p->workers > 256) return usage("--workers must be 1 to 256, not", p->workers ? "that many" : "0", "say how many workers to start");
    if (p->batch < 1 || p->accumulate < 1 || p->threads < 1) return usage("--batch, --accumulate and --threads must be", "at least 1", "leave them out for the default");
    if (!(p->lr > 0)) return usage("--lr must be", "above 0", "3e-3 suits adamw");
    if (!(p->held_out >= 0 && p->held_out < 1)) return usage("--held-out must be", "from 0 up to but not 1", "0.1 is the default");
    if (!(p->emulate_scale >= 1)) return usage("--emulate-scale must be", "at least 1", "1 sends every byte");
    if (p->addr && p->rank < 0) return usage("--addr needs", "--rank R", "each machine starts its own rank of --workers N");
    if (!p->data && !p->emulate) return usage("--data FILE is", "missing", "any text file will do, e.g. --data dreamddp.h");
    return -1;
}

static void configure(program *p, int period_given)
{
    ddp_config *c = &p->cfg;

    if (period_given) c->period = p->period ? (int)p->period : -1;
    if (p->rank >= 0 || p->workers > 1) c->world = (int)p->workers;
    if (p->rank >= 0) c->rank = (int)p->rank;
    c->addr = p->addr;
    c->net = p->net;
    c->threads = (int)p->threads;
    c->seed = (uint64_t)p->seed;
    c->micro_batches = p->emulate ? 1 : (int)p->accumulate;
    c->clip_norm = (float)p->clip;
    c->average_state = p->average_state;
    c->deterministic = p->deterministic;
    c->paper = p->paper;
    c->profile_steps = (int)p->profile_steps;
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

    if (p->emulate) {
        ddp_link none = {0, 0};
        t->emulate = &p->emulated;
        t->emulate_scale = p->emulate_scale;
        return ddp_profile_read(p->emulate, &none, &p->emulated, err);
    }
    p->tokens = ddp_tokens_open(p->data, err);
    if (!p->tokens) return err->code;
    t->model.vocabulary = ddp_tokens_vocabulary(p->tokens);
    if (p->vocab && p->vocab < t->model.vocabulary) {
        fprintf(stderr, "train_gpt: --vocab %ld is smaller than the data's %ld tokens; 0 takes the data's\n", p->vocab, t->model.vocabulary);
        err->msg[0] = 0;
        return err->code = DDP_ARG;
    }
    if (p->vocab) t->model.vocabulary = p->vocab;
    return ddp_tokens_split(p->tokens, p->held_out, p->seq, &t->train, &t->val, err);
}

static ddp_status prepare(program *p, ddp_error *err)
{
    training *t = &p->t;

    t->model.layers = p->layers, t->model.heads = p->heads, t->model.dim = p->dim, t->model.context = p->seq, t->model.batch = p->batch;
    t->model.dropout = (float)p->dropout;
    if (load(p, err)) return err->code;
    if (p->epochs) p->steps = (p->epochs * ddp_tokens_windows(&t->train) + p->workers * p->batch * p->accumulate - 1) / (p->workers * p->batch * p->accumulate);
    if (p->steps < 1) {
        snprintf(err->msg, sizeof err->msg, "--steps must be at least 1");
        return err->code = DDP_ARG;
    }
    t->schedule.base = p->lr, t->schedule.warmup = p->warmup, t->schedule.total = p->steps, t->schedule.min_ratio = 0.1;
    t->schedule.step_size = p->steps / 3 + 1, t->schedule.gamma = 0.1;
    t->steps = p->steps, t->accumulate = p->accumulate, t->seed = (uint64_t)p->seed;
    t->workers = (int)p->workers, t->period = (int)p->period;
    t->label = p->quiet ? NULL : p->strategy;
    t->result = training_result_new((int)p->workers, p->steps, p->period > 0 ? (int)p->period : 64);
    if (!t->result) {
        snprintf(err->msg, sizeof err->msg, "out of memory for the results of %ld steps", p->steps);
        return err->code = DDP_MEMORY;
    }
    return DDP_OK;
}

static void write_results(const program *p, ddp_jsonl *j)
{
    const training_result *r = p->t.result;

    ddp_jsonl_string(j, "strategy", p->strategy);
    ddp_jsonl_integer(j, "workers", p->workers);
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

static void report(const program *p, ddp_report_data *d, ddp_report_run *run, ddp_report_worker *worker)
{
    const training_result *r = p->t.result;
    int i;

    memset(d, 0, sizeof *d);
    memset(run, 0, sizeof *run);
    d->title = "train_gpt", d->command = p->argv[0], d->version = DDP_VERSION_STRING, d->net = p->net, d->model = p->model;
    d->seed = (uint64_t)p->seed, d->workers = (int)p->workers, d->target_loss = NAN, d->runs = run, d->run_count = 1;
    run->strategy = p->strategy, run->step_ms = 1e3 * r->step_s, run->hidden_pct = r->hidden_pct;
    run->predicted_step_ms = 1e3 * r->rank[0].stats.predicted_step_s;
    run->predicted_hidden_pct = r->rank[0].stats.predicted_hidden_pct;
    run->bytes_sent = r->bytes_sent, run->time_to_loss_s = NAN, run->final_loss = r->final_loss, run->param_hash = r->param_hash;
    run->period = r->period, run->step_of = r->step_of, run->fill = r->fill;
    run->workers = worker, run->worker_count = (int)p->workers;
    for (i = 0; i < run->worker_count; i++) worker[i].spans = r->rank[i].span, worker[i].count = r->rank[i].spans;
}

/* The files a user asked for; the run itself is over and well. */
static ddp_status write_files(program *p, ddp_error *err)
{
    const training_result *r = p->t.result;
    ddp_report_layer *layer = (ddp_report_layer *)calloc((size_t)r->layers + 1, sizeof *layer);
    ddp_report_worker *worker = (ddp_report_worker *)calloc((size_t)p->workers, sizeof *worker);
    ddp_report_data d;
    ddp_report_run run;
    ddp_status s = DDP_OK;
    long i;

    report(p, &d, &run, worker);
    for (i = 0; i < r->layers; i++) {
        layer[i].name = r->name[i], layer[i].params = r->params[i];
        layer[i].backward_s = r->backward_s[i], layer[i].comm_s = r->comm_s[i];
    }
    d.layers = layer, d.layer_count = r->layers;
    if (p->json) {
        ddp_jsonl *j = ddp_jsonl_open(p->json, err);
        if (!j) s = err->code;
        ddp_jsonl_run(j, &d);
        ddp_jsonl_profile(j, &d);
        ddp_jsonl_plan(j, &d, &run);
        for (i = 0; i < r->steps; i++)
            ddp_jsonl_step(j, p->strategy, i, r->step[i].loss, 1e3 * (r->step[i].time_s - (i ? r->step[i - 1].time_s : 0)), NAN,
                           r->step[i].bytes, r->step[i].divergence);
        ddp_jsonl_event(j, "result");
        write_results(p, j);
        ddp_jsonl_end(j);
        if (j) s = ddp_jsonl_close(j, err);
    }
    if (s == DDP_OK && p->trace) s = ddp_report_trace(&d, p->trace, err);
    free(layer);
    free(worker);
    return s;
}

/* What every rank runs; rank 0, which has all results, prints them. */
static int worker(ddp_ctx *d, void *user)
{
    program *p = (program *)user;
    int bad = training_run(d, &p->t);
    ddp_jsonl *out;

    if (!bad) bad = ddp_barrier(d); /* every rank's spans are in the shared memory now */
    if (bad || ddp_rank(d)) return bad;
    out = ddp_jsonl_stream(stdout, NULL);
    ddp_jsonl_event(out, NULL);
    write_results(p, out);
    ddp_jsonl_end(out);
    ddp_jsonl_close(out, NULL);
    return 0;
}

int main(int argc, char **argv)
{
    program *p = (program *)malloc(sizeof *p);
    ddp_error err;
    int code;

    if (!p) return 1;
    defaults(p);
    p->argc = argc, p->argv = argv;
    p->period = -1;
    code = parse(p);
    if (code < 0) code = choose(p);
    if (code < 0) {
        memset(&err, 0, sizeof err);
        configure(p, p->period >= 0);
        if (prepare(p, &err)) {
            code = err.msg[0] ? failed(&err) : ddp_status_exit_code(err.code);
        } else {
            cli_catch_interrupt();
            code = ddp_launch(&p->cfg, worker, p, &err);
            if (code == DDP_OK && p->rank <= 0 && (p->json || p->trace)) code = (int)write_files(p, &err);
            code = cli_interrupted ? (fprintf(stderr, "train_gpt: interrupted\n"), 130) : code ? failed(&err) : 0;
        }
    }
    ddp_tokens_close(p->tokens);
    ddp_profile_free(&p->emulated);
    free(p);
    return code;
}
