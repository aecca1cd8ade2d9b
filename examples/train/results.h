/* The output of a trainer: the JSON object on stdout, and the requested files. */
#ifndef EXAMPLES_TRAINER_RESULTS_H
#define EXAMPLES_TRAINER_RESULTS_H

#include <glob.h>

#include "../common/events.h"

/* Checks before the training that a file can be written. */
static ddp_status check_writable(const char *path, ddp_error *err)
{
    struct stat st;
    ddp_jsonl *j;

    if (!path) return DDP_OK;
    if (!stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return DDP_OK; /* for example a
                                                                                          * pipe */
    j = ddp_jsonl_open(path, err);
    if (!j) return err->code;
    ddp_jsonl_abandon(j);
    return DDP_OK;
}

/* Returns the planned memory: parameters, gradients of the same size, optimizer state and activations. */
static double planned_mb(const training_result *r)
{
    return 2 * r->param_mb + r->state_mb + r->activation_mb;
}

/* Prints the planned and the peak memory. The difference is the program, its data and network buffers. */
static void print_memory(const training_result *r)
{
    fprintf(stderr,
            "memory: %.1f MiB planned (parameters %.1f, gradients %.1f, optimizer state "
            "%.1f, activations %.1f), peak %.1f MiB\n",
            planned_mb(r), r->param_mb, r->param_mb, r->state_mb, r->activation_mb, r->peak_rss_mb);
}

/* Returns the step time of the strategy's plan or, with stages, of the pipeline. NAN: there is no plan. */
static double predicted_step_ms(const program *p)
{
    const training_result *r = p->t.result;
    const double s = p->stages > 1 ? r->pipe.predicted_step_s : r->rank[r->leader].stats.predicted_step_s;

    return s > 0 ? 1e3 * s : (double)NAN;
}

static double predicted_hidden_pct(const program *p)
{
    const training_result *r = p->t.result;

    return predicted_step_ms(p) > 0 ? r->rank[r->leader].stats.predicted_hidden_pct : (double)NAN;
}

/* Notes that the mean step time is not that of whole periods. */
static void note_part_of_period(const ddp_stats *s)
{
    const long first = (s->counted_from + s->period) / s->period * s->period; /* of a period, after a step */

    if (s->counted_periods || s->period < 2 || !s->counted_steps) return;
    fprintf(stderr, "step_ms covers %ld steps, less than a period of %d: run at least %ld steps\n",
            s->counted_steps, s->period, first + s->period);
}

/* Prints the slowest rank, and how often the strategy planned again. */
static void print_pace(const training_result *r)
{
    const ddp_stats *s = &r->rank[r->leader].stats;

    if (s->slow_ratio >= 1.1)
        fprintf(stderr, "slowest: rank %d computes %.1f x slower than the median (%.1f ms)\n",
                s->slowest_rank, s->slow_ratio, 1e3 * s->median_compute_s);
    note_part_of_period(s);
    if (s->replans > 0)
        fprintf(stderr, "the link changed: planned again %ld time%s\n", s->replans,
                s->replans > 1 ? "s" : "");
}

/* Creates the folder of checkpoints, and checks that files can be written there. */
static ddp_status check_folder(const char *path, ddp_error *err)
{
    char file[4096];
    FILE *f;

    if (!path) return DDP_OK;
    if (mkdir(path, 0777) && errno != EEXIST)
        return refuse(err, "cannot create the folder %s: %s", path, strerror(errno)), err->code = DDP_IO;
    snprintf(file, sizeof file, "%.4000s/tmp.%ld", path, (long)getpid());
    f = fopen(file, "wb");
    if (!f)
        return refuse(err, "cannot write into the folder %s: %s", path, strerror(errno)), err->code = DDP_IO;
    fclose(f);
    remove(file);
    return DDP_OK;
}

/* Checks before the training that --save has no checkpoints of another run, which only --overwrite
 * replaces. */
static ddp_status check_saved(const program *p, ddp_error *err)
{
    const char *save = p->t.save;
    char pattern[4096];
    glob_t found;
    size_t count;

    if (!save || p->overwrite || p->join || (p->t.resume && !strcmp(p->t.resume, save))) return DDP_OK;
    snprintf(pattern, sizeof pattern, "%.4000s/step-*/manifest.json", save);
    count = glob(pattern, 0, NULL, &found) ? 0 : found.gl_pathc;
    globfree(&found);
    if (!count) return DDP_OK;
    return refuse(err,
                  "%.200s contains checkpoints of another run; resume it with --resume %.200s, save to "
                  "another folder, or replace them with --overwrite",
                  save, save);
}

/* The choice of strategy auto. */
static void write_choice(const ddp_chosen *c, ddp_jsonl *j)
{
    ddp_jsonl_string(j, "chosen", c->name);
    ddp_jsonl_string(j, "runner_up", c->runner_up);
    ddp_jsonl_number(j, "chosen_s", c->seconds);
    if (*c->runner_up) ddp_jsonl_number(j, "runner_up_s", c->runner_up_s);
    ddp_jsonl_number(j, "ssgd_s", c->ssgd_s);
    ddp_jsonl_string(j, "reason", c->reason);
}

static void write_results(const program *p, ddp_jsonl *j)
{
    const training_result *r = p->t.result;

    ddp_jsonl_string(j, "strategy", p->strategy);
    if (r->rank[r->leader].chosen.strategy) write_choice(&r->rank[r->leader].chosen, j);
    ddp_jsonl_integer(j, "workers", r->world);
    ddp_jsonl_number(j, "final_loss", r->final_loss);
    ddp_jsonl_number(j, "first_loss", r->first_loss);
    ddp_jsonl_number(j, "val_loss", r->val_loss);
    if (p->t.task) ddp_jsonl_number(j, "val_accuracy", r->val_accuracy);
    if (p->t.task) ddp_jsonl_number(j, "test_accuracy", r->test_accuracy);
    ddp_jsonl_integer(j, "steps", r->steps);
    ddp_jsonl_number(j, "step_ms", 1e3 * r->step_s);
    ddp_jsonl_integer(j, "counted_steps", r->rank[r->leader].stats.counted_steps);
    ddp_jsonl_integer(j, "counted_periods", r->rank[r->leader].stats.counted_periods);
    ddp_jsonl_number(j, p->t.task ? "images_per_s" : "tokens_per_s", r->samples_per_s);
    ddp_jsonl_number(j, "hidden_pct", r->hidden_pct);
    ddp_jsonl_number(j, "predicted_step_ms", predicted_step_ms(p));
    if (p->stages == 1)
        ddp_jsonl_number(j, "corrected_step_ms", 1e3 * r->rank[r->leader].stats.corrected_step_s);
    ddp_jsonl_number(j, "predicted_hidden_pct", predicted_hidden_pct(p));
    ddp_jsonl_number(j, "wait_ms", 1e3 * r->rank[r->leader].stats.wait_s);
    if (r->rank[r->leader].stats.slow_ratio > 0) {
        ddp_jsonl_integer(j, "slowest_rank", r->rank[r->leader].stats.slowest_rank);
        ddp_jsonl_number(j, "slow_ratio", r->rank[r->leader].stats.slow_ratio);
    }
    ddp_jsonl_integer(j, "replans", r->rank[r->leader].stats.replans);
    if (r->rank[r->leader].stats.landing_moves > 0)
        ddp_jsonl_integer(j, "landing_moves", r->rank[r->leader].stats.landing_moves);
    if (r->rank[r->leader].stats.updates)
        ddp_jsonl_number(j, "update_frequency",
                         (double)r->rank[r->leader].stats.updates / (double)(r->steps - r->first));
    if (p->stages > 1) {
        ddp_jsonl_integer(j, "stages", p->stages);
        ddp_jsonl_string(j, "schedule", ddp_pipeline_name(p->t.pipeline));
        ddp_jsonl_integer(j, "microbatches", p->accumulate);
        ddp_jsonl_number(j, "bubble_pct", r->pipe.bubble_pct);
        ddp_jsonl_number(j, "boundary_bytes", r->pipe.boundary_bytes);
        ddp_jsonl_number(j, "predicted_step_s", 1e-3 * predicted_step_ms(p));
    }
    if (p->cfg.server.count) {
        ddp_jsonl_integer(j, "servers", p->cfg.server.count > 0 ? p->cfg.server.count : r->world);
        ddp_jsonl_number(j, "staleness", r->rank[r->leader].stats.staleness);
        ddp_jsonl_integer(j, "staleness_most", r->rank[r->leader].stats.staleness_most);
        ddp_jsonl_number(j, "deferred_pct", r->rank[r->leader].stats.deferred_pct);
    }
    ddp_jsonl_integer(j, "bytes_sent", r->bytes_sent);
    ddp_jsonl_object(j, "bytes_by_coding");
    for (int as = 0; as <= (int)DDP_WIRE_TOPK; as++)
        if (r->rank[r->leader].stats.bytes_as[as])
            ddp_jsonl_integer(j, as ? ddp_wire_name((ddp_wire)as) : "own",
                              r->rank[r->leader].stats.bytes_as[as]);
    ddp_jsonl_up(j);
    ddp_jsonl_number(j, "comm_cpu_s", r->rank[r->leader].stats.comm_cpu_s);
    ddp_jsonl_number(j, "planned_mb", planned_mb(r));
    ddp_jsonl_number(j, "peak_rss_mb", r->peak_rss_mb);
    ddp_jsonl_string(j, "param_hash", r->param_hash);
    if (p->more) p->more(p, j);
}

static void describe(const program *p, ddp_report_data *d)
{
    memset(d, 0, sizeof *d);
    d->title = p->name;
    d->command = p->command;
    d->version = DDP_VERSION_STRING;
    d->host = p->host;
    d->net = p->net;
    d->model = p->described;
    d->seed = (uint64_t)p->seed;
    d->workers = (int)p->workers;
    d->target_loss = NAN;
}

/* Adds the notes that the leader recorded during the run. texts: a line for each note. */
static void report_notes(const training_result *r, ddp_report_note *note, char texts[TRAINING_NOTES][128],
                         ddp_report_run *run)
{
    const training_rank *rank = &r->rank[r->leader];
    int i;

    for (i = 0; i < rank->notes; i++) {
        ddp_note_text(&rank->note[i], texts[i], sizeof texts[i]);
        note[i].time_s = rank->note[i].time_s - r->begin_s;
        note[i].step = rank->note[i].step;
        note[i].kind = ddp_note_name(rank->note[i].kind);
        note[i].text = texts[i];
    }
    run->notes = note;
    run->note_count = rank->notes;
}

static void report(const program *p, ddp_report_data *d, ddp_report_layer *layer, ddp_report_run *run,
                   ddp_report_worker *worker)
{
    const training_result *r = p->t.result;
    long begin;
    int i, steps;

    describe(p, d);
    for (i = 0; i < r->layers; i++) {
        layer[i].name = r->name[i];
        layer[i].params = r->params[i];
        layer[i].backward_s = r->backward_s[i];
        layer[i].comm_s = r->comm_s[i];
    }
    d->layers = layer;
    d->layer_count = r->layers;
    d->runs = run;
    d->run_count = 1;
    memset(run, 0, sizeof *run);
    run->strategy = p->strategy;
    run->step_ms = 1e3 * r->step_s;
    run->hidden_pct = r->hidden_pct;
    run->predicted_step_ms = predicted_step_ms(p);
    run->predicted_hidden_pct = predicted_hidden_pct(p);
    run->bytes_sent = r->bytes_sent;
    run->time_to_loss_s = NAN;
    run->final_loss = r->final_loss;
    run->param_hash = r->param_hash;
    run->period = r->period;
    run->step_of = r->step_of;
    run->fill = r->fill;
    run->steps = r->step + r->first;
    run->step_count = (int)(r->steps - r->first);
    run->slowest_rank = r->rank[r->leader].stats.slowest_rank;
    run->slow_ratio = r->rank[r->leader].stats.slow_ratio;
    run->replans = r->rank[r->leader].stats.replans;
    run->layer_divergence = r->layer_divergence;
    run->workers = worker;
    run->worker_count = r->workers;
    if (p->stages > 1) {
        run->schedule = ddp_pipeline_name(p->t.pipeline);
        run->stages = (int)p->stages;
    }
    for (i = 0; i < r->workers; i++) {
        worker[i].spans = r->rank[i].span;
        worker[i].count = r->rank[i].spans;
        worker[i].slot = r->rank[i].slot;
        worker[i].slots = r->rank[i].slots;
        worker[i].pipeline = r->rank[i].pipeline;
    }
    /* the last complete period, or a few steps without a plan */
    steps = r->period > 0 ? r->period : 4;
    begin = (r->steps / steps - 1) * steps;
    training_window(r, r->workers, begin > r->first ? begin : r->first, steps, run);
}

/* Writes the evaluation after `step` steps, if there is one. *at counts the written evaluations. */
static void write_eval(const program *p, ddp_jsonl *j, long step, long *at)
{
    const training_result *r = p->t.result;

    if (*at >= r->evals || r->eval[*at].step != step) return;
    ddp_jsonl_event(j, "eval");
    ddp_jsonl_string(j, "strategy", p->strategy);
    ddp_jsonl_integer(j, "step", step);
    ddp_jsonl_number(j, "val_loss", r->eval[*at].loss);
    if (p->t.task) ddp_jsonl_number(j, "val_accuracy", r->eval[*at].accuracy);
    ddp_jsonl_end(j);
    ++*at;
}

static ddp_status write_lines(const program *p, const ddp_report_data *d, ddp_error *err)
{
    const training_result *r = p->t.result;
    ddp_jsonl *j = ddp_jsonl_open(p->json, err);
    double before = 0;
    long i, evals = 0;

    if (!j) return err->code;
    event_run(j, d);
    event_profile(j, d);
    event_plan(j, d, d->runs);
    for (i = r->first; i < r->steps; i++) {
        const ddp_report_step *s = &r->step[i];
        event_step(j, p->strategy, i, s->loss, 1e3 * (s->time_s - before), 1e3 * r->wait_s[i], s->bytes,
                   s->divergence);
        before = s->time_s;
        write_eval(p, j, i + 1, &evals);
    }
    event_notes(j, d->runs);
    ddp_jsonl_event(j, "result");
    write_results(p, j);
    ddp_jsonl_number(j, "time_to_loss_s", NAN); /* needs several runs */
    ddp_jsonl_end(j);
    return ddp_jsonl_close(j, err);
}

/* Writes the requested files after a successful run. */
static ddp_status write_files(const program *p, ddp_error *err)
{
    const training_result *r = p->t.result;
    ddp_report_layer *layer = (ddp_report_layer *)calloc((size_t)r->layers + 1, sizeof *layer);
    ddp_report_worker *worker = (ddp_report_worker *)calloc((size_t)r->workers, sizeof *worker);
    ddp_report_data d;
    ddp_report_run run;
    ddp_report_note note[TRAINING_NOTES];
    char texts[TRAINING_NOTES][128];
    ddp_status s = DDP_OK;

    if (layer && worker) {
        report(p, &d, layer, &run, worker);
        report_notes(r, note, texts, &run);
        if (p->json) s = write_lines(p, &d, err);
        if (s == DDP_OK && p->report) s = ddp_report_html(&d, p->report, err);
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
    double alpha = r->rank[r->leader].stats.link.alpha_s, measured = 0;
    ddp_profile out;
    ddp_status s;
    int l;

    for (l = 0; l < r->layers; l++) measured += r->backward_s[l];
    if (!(measured > 0))
        return refuse(err, "--write-profile %s: no profile was measured in --steps %ld; raise --steps",
                      p->write_profile, p->steps);
    s = ddp_profile_new(r->layers, &out, err);
    if (s != DDP_OK) return s;
    for (l = 0; l < r->layers; l++) {
        out.name[l] = strdup(r->name[l]);
        out.params[l] = r->params[l];
        out.forward_s[l] = r->forward_s[l];
        out.backward_s[l] = r->backward_s[l];
        out.comm_s[l] = r->comm_s[l] > 0 ? r->comm_s[l] + alpha : 0; /* the CSV file has no column for
                                                                      * alpha */
    }
    s = ddp_profile_write(&out, p->write_profile, err);
    ddp_profile_free(&out);
    return s;
}

/* Writes the JSON lines of a failed run. */
static void write_failure(const program *p, const ddp_error *why)
{
    ddp_jsonl *j = ddp_jsonl_open(p->json, NULL);
    ddp_report_data d;

    describe(p, &d);
    event_run(j, &d);
    event_error(j, why);
    ddp_jsonl_close(j, NULL);
}

#endif /* EXAMPLES_TRAINER_RESULTS_H */
