/* One training run on every rank. A trainer calls it once, quickstart once per strategy. The results are in
 * memory shared with the worker processes, so that the parent can report them. */
#ifndef EXAMPLES_TRAINING_H
#define EXAMPLES_TRAINING_H

#include <sys/mman.h>
#include <sys/resource.h>

#include "progress.h"
#include "sampling.h"
#include "sleeping.h"
#include "watcher.h"

enum { TRAINING_LAYERS = 512, TRAINING_SPANS = 20000, TRAINING_SLOTS = 20000, TRAINING_NOTES = 64 };

/* The results of one rank. */
typedef struct training_rank {
    ddp_stats stats;       /* chosen is NULL: the copy follows */
    ddp_chosen chosen;     /* of strategy auto */
    ddp_report_step *step; /* [steps] of this rank, starting at step `from` */
    double *wait_s;        /* [steps] waited for communication */
    long from;             /* first step of the rank, later than the first step of the run if the rank
                              joined */
    ddp_note note[TRAINING_NOTES];
    int notes;
    ddp_span *span;
    int spans;
    ddp_pipeline_slot *slot; /* of the last step, if the rank holds a stage */
    int slots, pipeline;
} training_rank;

/* An evaluation on held-out data during training. */
typedef struct training_eval {
    long step;             /* steps completed before it */
    double loss, accuracy; /* accuracy: fraction of correct labels, or NAN for a language model */
} training_eval;

/* The results of a run: means over ranks unless stated otherwise. The rank that leads at the end fills it.
 * Unknown results are NAN. */
typedef struct training_result {
    int complete;                  /* 1 if the struct is filled */
    double first_loss, final_loss; /* final: mean of the last tenth of the steps, at most 10 */
    double val_loss, val_accuracy; /* NAN without validation data */
    double test_accuracy;          /* fraction of test images classified correctly, NAN without test images */
    int32_t *sample;               /* [sampling.length] tokens sampled after training */
    double step_s, hidden_pct;     /* over the counted steps. hidden_pct: of the leader */
    double seconds;                /* of the leader, including profiled steps */
    double begin_s;                /* ddp_now() before the first step */
    double samples_per_s;          /* tokens or images, all ranks */
    long steps, first;             /* first: of the leader, 0 or the step at which it resumed or joined */
    long room;                     /* capacity of the arrays below, in steps */
    int spare;                     /* shared entry of ranks without an entry */
    int world, leader;             /* leader: index in rank of the rank that filled the struct, which is rank
                                      0 if it is live */
    int64_t bytes_sent;            /* of the leader */
    double peak_rss_mb;            /* of the leader */
    double param_mb, state_mb, activation_mb; /* planned bytes of each rank, or 0 if layers sleep */
    char param_hash[17];
    ddp_pipe_stats pipe;        /* of the leader's pipeline */
    int code;                   /* of error, a ddp_status */
    char error[DDP_ERROR_TEXT]; /* message if a model could not be built, loaded or saved, or "" otherwise */
    ddp_report_step *step;      /* [steps] */
    training_eval *eval;        /* [evals] of training.eval_every, in the order of the steps */
    long evals;
    double *wait_s;      /* [steps] the leader waited for communication */
    int workers;         /* number of entries in rank */
    training_rank *rank; /* [workers] */
    int layers, period;  /* period is 0 if the strategy has no plan */
    int step_of[TRAINING_LAYERS];
    unsigned char *fill; /* [period x layers] */
    int fill_room;       /* capacity in periods */
    double objective_s, lower_bound_s;
    char plan_solver[16], plan_cost[16];
    double layer_divergence[TRAINING_LAYERS];
    char name[TRAINING_LAYERS][48];
    double params[TRAINING_LAYERS], forward_s[TRAINING_LAYERS], backward_s[TRAINING_LAYERS];
    double comm_s[TRAINING_LAYERS];
} training_result;

struct training;
struct training_model;

/* A model other than a language model, with its data and its evaluation. */
typedef struct training_task {
    ddp_node *(*build)(ddp_graph *g, const struct training *t, ddp_node **logits);
    /* fills the inputs of the graph with micro-batch number pass of a rank */
    void (*batch)(const struct training *t, const struct training_model *m, long pass, int rank, int world);
    /* adds to sum the loss, the number of correct labels and the number of samples of the held-out batches
     * rank, rank + world, and so on. Returns 0 or the first error */
    int (*validate)(const struct training *t, const struct training_model *m, int rank, int world,
                    double sum[3]);
    /* the same for test images, for test_accuracy. Returns 0 or the first error */
    int (*judge)(const struct training *t, const struct training_model *m, double sum[3]);
} training_task;

typedef struct training {
    const char *label;         /* of the progress line, NULL for no line */
    const training_task *task; /* NULL for a language model. Otherwise only batch of model is read, the images
                                  of a micro-batch, and context is 1 */
    const void *data;          /* of the task */
    ddp_gpt2_config model;
    const ddp_llama2_config *llama; /* NULL, or a model to train instead, with the same vocabulary, context
                                     * and batch */
    ddp_token_range train, val;
    ddp_optimizer optimizer;
    ddp_lr_schedule schedule;
    long steps, accumulate;
    long data_length; /* windows or images in one pass, equal on all workers of a pipeline */
    long windows;     /* 0, or the number of windows or images on which all workers together train, in place
                       * of a number of steps */
    long val_batches; /* maximum number of batches for val_loss, or 0 for 20 */
    long eval_every;  /* steps between evaluations during training, or 0 for none. result->eval needs capacity
                       * for all */
    sampling sample;  /* needs result->sample */
    uint64_t seed;
    const char *save, *resume; /* folders of checkpoints, or NULL */
    long save_every, keep;     /* in steps, or 0 for only at the end. keep is 0 for all */
    long first_pass;           /* micro-batches trained before this run, counted with this world size */
    const char *load, *store;  /* files of the initial and the final weights, or NULL */
    const char *dump;          /* where SIGUSR1 writes the dump, or NULL for the working directory */
    int workers, period;
    int stages;                 /* number of stages, of which each rank holds one. 0 and 1 mean no pipeline */
    ddp_pipeline pipeline;      /* its schedule */
    ddp_pipe_layout layout;     /* all zero, or the rank and the operators of each stage */
    int ahead;                  /* member of ddp_pipeline_shape */
    ddp_edge_wire edge;         /* coding of activations and gradients between stages */
    int elastic;                /* the other workers may continue without this one */
    int probe;                  /* measure all links first, and order the ring by them */
    char data_line[256];        /* file, format and size of the data. No line is printed if empty */
    const ddp_profile *emulate; /* NULL, or layers that only sleep for these times */
    double emulate_scale;       /* divisor of their numbers of parameters */
    float *paper;               /* NULL, or ddp_paper, which gives such layers no memory */
    double noise;               /* relative jitter of the times of such layers */
    const char *slow;           /* NULL, or "R:F,R:F": worker R takes F times the time */
    double emulate_bytes;       /* for stages: bytes of the activations between two layers, for a micro-batch,
                                 * before division by emulate_scale */
    const char *sleep;          /* NULL, or "S,S,..": seconds that each worker sleeps in every step as if it
                                 * computed. The last value also applies to all later workers. */
    int alone;                  /* only the leader evaluates, because workers of servers may be at different
                                 * steps */
    training_result *result;
} training;

/* Zeroed memory shared with forked children, or NULL if there is none. Never freed. */
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
    r->workers = workers;
    r->fill_room = period;
    r->room = steps;
    r->first_loss = r->final_loss = r->val_loss = r->val_accuracy = r->test_accuracy = NAN;
    r->step_s = r->hidden_pct = r->samples_per_s = NAN;
    r->step = (ddp_report_step *)training_share((size_t)steps * sizeof *r->step);
    r->wait_s = (double *)training_share((size_t)steps * sizeof *r->wait_s);
    r->rank = (training_rank *)training_share(((size_t)workers + 1) * sizeof *r->rank);
    r->fill = (unsigned char *)training_share((size_t)period * TRAINING_LAYERS);
    if (!r->step || !r->wait_s || !r->rank || !r->fill) return NULL;
    for (i = 0; i <= workers; i++) {
        r->rank[i].span = (ddp_span *)training_share(TRAINING_SPANS * sizeof(ddp_span));
        r->rank[i].slot = (ddp_pipeline_slot *)training_share(TRAINING_SLOTS * sizeof(ddp_pipeline_slot));
        r->rank[i].step = (ddp_report_step *)training_share((size_t)steps * sizeof(ddp_report_step));
        r->rank[i].wait_s = (double *)training_share((size_t)steps * sizeof(double));
        if (!r->rank[i].span || !r->rank[i].slot || !r->rank[i].step || !r->rank[i].wait_s) return NULL;
    }
    return r;
}

/* The rank that reports: 0, or in an elastic world the lowest that is live. */
static int training_leads(const ddp_ctx *d)
{
    const uint64_t live = ddp_live(d);
    const int rank = ddp_rank(d);

    return rank < 64 && (live >> rank & 1) && !(live & (((uint64_t)1 << rank) - 1));
}

/* Number of workers over which data are sharded. A pipeline counts as one. Higher ranks are servers. */
static int training_workers(const ddp_ctx *d, const training *t)
{
    return (ddp_world(d) - ddp_servers(d)) / (t->stages > 1 ? t->stages : 1);
}

/* Returns the index of this rank's pipeline. */
static int training_worker(const ddp_ctx *d, const training *t)
{
    int at = ddp_rank(d);

    if (t->layout.rank_of)
        for (at = 0; t->layout.rank_of[at] != ddp_rank(d);) at++;
    return at / (t->stages > 1 ? t->stages : 1);
}

/* Returns the entry of this rank. Ranks started by a launcher or with --rank share no memory: each has one
 * entry. */
static training_rank *training_place(training_result *r, int rank)
{
    return &r->rank[rank < r->workers ? rank : r->spare];
}

/* "2 x Intel(R) Xeon(R) ..." for the report. */
static inline void training_host(char *out, size_t room)
{
    FILE *cpu = fopen("/proc/cpuinfo", "r");
    char line[256];
    long count = sysconf(_SC_NPROCESSORS_ONLN);

    snprintf(out, room, "%ld processors", count);
    while (cpu && fgets(line, sizeof line, cpu))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            snprintf(out, room, "%ld x%.100s", count, strchr(line, ':') + 1);
            out[strcspn(out, "\n")] = 0;
            break;
        }
    if (cpu) fclose(cpu);
}

/* Small models learn faster from a larger initial standard deviation than GPT-2's 0.02, which suits a width
 * of 768. */
static inline float training_deviation(long dim)
{
    return dim < 512 ? (float)(0.8 / sqrt((double)dim)) : 0.02f;
}

/* ---- what runs: a GPT, or layers that sleep ---- */

typedef struct training_model {
    ddp_graph *graph;
    ddp_node *loss, *logits;  /* logits: NULL if they are not read */
    ddp_pipe *pipe;           /* pipeline stage, or NULL */
    int32_t *tokens, *labels; /* stage: parameters, independent of micro-batches */
    long micro_batch;         /* of a step, that training_data fills */
    void *nowhere;            /* stage: buffer for inputs that it does not read */
    long *sample;             /* [batch] of a stage: names of a micro-batch's samples */
    int layers;
    float **params, **grads; /* emulated layers */
    size_t *count;
    double slow; /* factor on the times of the profile */
    ddp_rng noise;
} training_model;

/* Builds the model of a run for batch sequences of context tokens. */
static ddp_node *training_add_model(ddp_graph *g, const training *t, long batch, long context,
                                    ddp_node **logits)
{
    ddp_gpt2_config gpt2 = t->model;
    ddp_llama2_config llama;

    if (t->task) return t->task->build(g, t, logits);
    gpt2.batch = batch;
    gpt2.context = context;
    if (!t->llama) return ddp_gpt2(g, &gpt2, logits);
    llama = *t->llama;
    llama.batch = batch;
    llama.context = context;
    return ddp_llama2(g, &llama, logits);
}

/* Checks the sizes of the model with its builder. Allocates no memory: the graph is built later. */
static inline ddp_status training_check(const training *t, ddp_error *err)
{
    ddp_graph *g = ddp_graph_new(NULL);

    if (!g) {
        snprintf(err->msg, sizeof err->msg, "out of memory for the model");
        return err->code = DDP_MEMORY;
    }
    training_add_model(g, t, t->model.batch, t->model.context, NULL);
    *err = *ddp_graph_error(g);
    ddp_graph_free(g);
    return err->code;
}

static int training_build_emulated(ddp_ctx *d, const training *t, training_model *m)
{
    size_t at = 0;
    int l, bad = 0;

    m->params = (float **)calloc((size_t)t->emulate->layers, sizeof *m->params);
    m->grads = (float **)calloc((size_t)t->emulate->layers, sizeof *m->grads);
    m->count = (size_t *)calloc((size_t)t->emulate->layers, sizeof *m->count);
    if (!m->params || !m->grads || !m->count) return DDP_MEMORY;
    m->layers = t->emulate->layers;
    for (l = 0; !bad && l < m->layers; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        m->count[l] = (size_t)(t->emulate->params[l] / t->emulate_scale);
        if (t->emulate->params[l] > 0 && m->count[l] == 0) m->count[l] = 1;
        layer.name = t->emulate->name[l];
        layer.count = m->count[l];
        if (layer.count && t->paper) {
            m->params[l] = t->paper + at;
            m->grads[l] = m->params[l] + layer.count;
            at += 2 * layer.count;
        } else if (layer.count) {
            m->params[l] = (float *)calloc(layer.count, sizeof(float));
            m->grads[l] = (float *)calloc(layer.count, sizeof(float));
            if (!m->params[l] || !m->grads[l]) return DDP_MEMORY;
        }
        layer.params = m->params[l];
        layer.grads = m->grads[l];
        bad = ddp_add_layer(d, &layer);
    }
    return bad;
}

/* Stores this rank's error. The other ranks only learn that the run has ended, and one of them may report to
 * the parent first. */
static int training_fail(ddp_ctx *d, training_result *r, int code, const char *why)
{
    snprintf(r->error, sizeof r->error, "%s", why);
    r->code = code;
    ddp_abort(d, r->error);
    return code;
}

/* Loads the initial weights, if any. A stage loads only its own. */
static int training_load(ddp_ctx *d, const training *t, training_model *m)
{
    ddp_error why;
    const int bad = t->load ? (int)ddp_weights_load(m->graph, t->load, &why) : 0;

    return bad ? training_fail(d, t->result, bad, why.msg) : 0;
}

/* Registers this rank's part of the model. */
static int training_build_stage(ddp_ctx *d, const training *t, training_model *m)
{
    ddp_pipe_config c;
    ddp_node_info info;
    size_t most = 0;

    memset(&c, 0, sizeof c);
    c.stages = t->stages;
    c.schedule = t->pipeline;
    c.rank_of = t->layout.rank_of;
    c.stage_of = t->layout.stage_of;
    c.ahead = t->ahead;
    c.edge = t->edge;
    c.samples = t->data_length;
    c.batch = (int)t->model.batch;
    m->pipe = ddp_pipe_open(d, m->graph, m->loss, &c);
    if (!m->pipe) return training_fail(d, t->result, (int)ddp_last_error(d)->code, ddp_last_error(d)->msg);
    m->layers = ddp_layers(d);
    for (int i = 0; i < ddp_node_count(m->graph); i++)
        if (!ddp_node_describe(m->graph, i, &info) && !strcmp(info.name, "input") &&
            (size_t)info.output_bytes > most)
            most = (size_t)info.output_bytes;
    m->nowhere = calloc(most + 1, 1);
    m->sample = (long *)calloc((size_t)t->model.batch + 1, sizeof *m->sample);
    return m->nowhere && m->sample ? training_load(d, t, m) : (int)DDP_MEMORY;
}

/* Returns the factor of a worker in training.slow, or 1. */
static double training_slow_of(const char *list, int worker)
{
    for (; list && *list; list += strcspn(list, ",") + (list[strcspn(list, ",")] == ',')) {
        char *colon;
        if (strtol(list, &colon, 10) == worker && *colon == ':') return strtod(colon + 1, NULL);
    }
    return 1;
}

static int training_build(ddp_ctx *d, const training *t, training_model *m)
{
    int bad;

    memset(m, 0, sizeof *m);
    m->slow = training_slow_of(t->slow, ddp_rank(d));
    m->noise = ddp_rng_seed(t->seed ^ 0x6e6f697365, (uint64_t)ddp_rank(d));
    if (t->emulate && t->stages < 2) return training_build_emulated(d, t, m);
    m->graph = ddp_graph_new(d);
    m->loss = t->emulate
                  ? sleeping_model(m->graph, t->emulate, t->emulate_scale, t->emulate_bytes)
                  : training_add_model(m->graph, t, t->model.batch, t->model.context,
                                       t->task || (t->stages > 1 && t->sample.length) ? &m->logits : NULL);
    if (t->stages > 1) return training_build_stage(d, t, m);
    bad = ddp_graph_build(m->graph);
    if (bad) {
        if (m->graph) {
            training_fail(d, t->result, bad, ddp_graph_error(m->graph)->msg);
        }
        return bad;
    }
    if (ddp_rank(d) == 0) bad = training_load(d, t, m); /* the others start from rank 0's parameters */
    if (bad) return bad;
    m->tokens = (int32_t *)ddp_data(m->graph, "tokens");
    m->labels = (int32_t *)ddp_data(m->graph, "labels");
    m->layers = ddp_layer_count(m->graph);
    return 0;
}

static void training_free(const training *t, training_model *m)
{
    int l;

    free(m->nowhere);
    free(m->sample);
    ddp_pipe_close(m->pipe);
    for (l = 0; m->count && !t->paper && l < m->layers; l++) {
        free(m->params[l]);
        free(m->grads[l]);
    }
    free(m->params);
    free(m->grads);
    free(m->count);
}

/* Returns the buffer for the inputs of the next micro-batch. */
static void *training_data(const training_model *m, const char *name)
{
    void *at;

    if (!m->pipe) return ddp_data(m->graph, name);
    at = ddp_pipe_input(m->pipe, (int)m->micro_batch, name);
    return at ? at : m->nowhere;
}

/* Runs a forward pass without hooks, and returns the array of a node, or NULL if this rank does not hold
 * it. */
static int training_forward(const training_model *m)
{
    if (cli_interrupted) return (int)DDP_ABORTED;
    return m->pipe ? ddp_pipe_evaluate(m->pipe, 1) : ddp_evaluate(m->graph);
}

static const float *training_output(const training_model *m, const ddp_node *n)
{
    return m->pipe ? ddp_pipe_output(m->pipe, n) : ddp_output(m->graph, n);
}

/* Returns the seconds of a worker in training.sleep, 0 if it has none, or -1 if a value is not a number from
 * 0 to 3600. */
static double training_sleep_of(const char *list, int worker)
{
    double own = 0;
    int i = 0;

    while (list) {
        char *end;
        const double x = strtod(list, &end);
        if (end == list || (*end && *end != ',') || !(x >= 0 && x <= 3600)) return -1;
        if (i++ <= worker) own = x;
        list = *end ? end + 1 : NULL;
    }
    return own;
}

static double training_takes(const training *t, training_model *m, double seconds)
{
    if (t->noise > 0) seconds *= 1 + t->noise * (2 * (double)ddp_rng_uniform(&m->noise) - 1);
    return seconds * m->slow;
}

/* Waiting in a hook delays the emulated computer, oversleeping does not. */
static int training_emulated_step(ddp_ctx *d, const training *t, training_model *m)
{
    int l, bad = 0;

    for (l = 0; !bad && l < m->layers; l++) {
        bad = ddp_forward_begin(d, l);
        sleeping_for(training_takes(t, m, t->emulate->forward_s[l]));
    }
    for (l = m->layers - 1; !bad && l >= 0; l--) {
        bad = ddp_backward_begin(d, l);
        sleeping_for(training_takes(t, m, t->emulate->backward_s[l]));
        if (!bad) bad = ddp_backward_end(d, l);
    }
    return bad;
}

static void training_fill(ddp_ctx *d, const training *t, training_model *m, long pass)
{
    const int worker = training_worker(d, t), workers = training_workers(d, t);

    if (t->task)
        t->task->batch(t, m, pass, worker, workers);
    else
        ddp_tokens_batch(&t->train, t->seed, pass, worker, workers, t->model.batch,
                         (int32_t *)training_data(m, "tokens"), (int32_t *)training_data(m, "labels"));
}

/* Fills micro-batch m->micro_batch of a pipeline and the ids of its samples. */
static int training_fill_stage(ddp_ctx *d, const training *t, training_model *m, long pass)
{
    for (long b = 0; b < t->model.batch; b++)
        m->sample[b] = ddp_dealt(t->seed, pass, training_worker(d, t), training_workers(d, t), t->model.batch,
                                 b, t->data_length);
    if (!t->emulate) training_fill(d, t, m, pass);
    return ddp_pipe_samples(m->pipe, (int)m->micro_batch, m->sample);
}

static int training_stage_step(ddp_ctx *d, const training *t, training_model *m, long pass, double *loss)
{
    int bad = 0;

    for (m->micro_batch = 0; m->micro_batch < t->accumulate && !bad; m->micro_batch++)
        bad = training_fill_stage(d, t, m, pass + m->micro_batch);
    m->micro_batch = 0;
    if (!bad) bad = ddp_pipe_step(m->pipe);
    *loss = bad ? NAN : (double)ddp_pipe_loss(m->pipe);
    return bad ? bad : (int)ddp_last_error(d)->code;
}

/* pass: number of the first micro-batch. */
static int training_step(ddp_ctx *d, const training *t, training_model *m, long pass, double *loss)
{
    long a;
    int bad = 0;

    *loss = 0;
    if (m->pipe) return training_stage_step(d, t, m, pass, loss);
    if (t->emulate) return training_emulated_step(d, t, m);
    for (a = 0; !bad && a < t->accumulate; a++) {
        training_fill(d, t, m, pass + a);
        bad = ddp_forward(m->graph);
        if (t->sleep && a == 0) sleeping_for(training_sleep_of(t->sleep, ddp_rank(d)));
        if (!bad) bad = ddp_backward(m->graph, m->loss);
        if (!bad) *loss += (double)ddp_value(m->graph, m->loss) / (double)t->accumulate;
    }
    return bad;
}

/* The `validate` function of a language model. Fewer windows than a batch form one batch, padded with labels
 * that do not count. Otherwise an incomplete last batch is dropped. */
static int training_validate_gpt(const training *t, const training_model *m, int rank, int world,
                                 double sum[3])
{
    const long windows = ddp_tokens_windows(&t->val), batch = t->model.batch,
               most = t->val_batches ? t->val_batches : 20;
    int32_t *const tokens = (int32_t *)training_data(m, "tokens"), *const labels =
                                                                       (int32_t *)training_data(m, "labels");
    long batches = windows / batch + (windows > 0 && windows < batch), b, i, k;

    if (batches > most) batches = most;
    for (b = rank; b < batches; b += world) {
        const float *loss;
        int bad;

        for (i = 0; i < batch; i++) {
            const long at = b * batch + i, place = i * t->model.context;
            ddp_tokens_window(&t->val, at < windows ? at : 0, tokens + place, labels + place);
            for (k = 0; at >= windows && k < t->model.context; k++) labels[place + k] = -1;
        }
        bad = training_forward(m);
        if (bad) return bad;
        loss = training_output(m, m->loss);
        if (loss) {
            sum[0] += (double)*loss;
            sum[2] += 1;
        }
    }
    return 0;
}

/* Loss and accuracy on held-out data, or NAN without such data. With a context, each rank evaluates its shard
 * with its own parameters, and the result is the mean. Without a context, all data are used. */
static int training_validate(ddp_ctx *d, const training *t, const training_model *m, double *loss,
                             double *accuracy)
{
    const int rank = d ? training_worker(d, t) : 0, world = d ? training_workers(d, t) : 1;
    double sum[3] = {0, 0, 0};
    float all[3];
    int i, bad = 0;

    *loss = *accuracy = NAN;
    if (t->emulate) return 0;
    if (t->task)
        bad = t->task->validate(t, m, rank, world, sum);
    else
        bad = training_validate_gpt(t, m, rank, world, sum);
    if ((world > 1 || m->pipe) && !bad) {
        for (i = 0; i < 3; i++) all[i] = (float)sum[i];
        bad = ddp_all_reduce(d, all, 3, 1);
        for (i = 0; i < 3; i++) sum[i] = (double)all[i];
    }
    if (bad || !(sum[2] > 0)) return bad;
    *loss = sum[0] / sum[2];
    if (t->task) *accuracy = sum[1] / sum[2];
    return 0;
}

/* Evaluates after `done` steps, on all ranks or only on the leader. Transfers in flight and statistics do not
 * change, so training continues bit-identically. Adds the seconds to *pause_s. */
static int training_evaluate(ddp_ctx *d, const training *t, const training_model *m, long done,
                             double *pause_s)
{
    training_result *r = t->result;
    training_eval e;
    double begin = ddp_now();
    int bad;

    if (t->alone && !training_leads(d)) return 0;
    bad = ddp_wait(d);
    if (!bad) bad = training_validate(t->alone ? NULL : d, t, m, &e.loss, &e.accuracy);
    *pause_s += ddp_now() - begin;
    if (bad || !training_leads(d)) return bad;
    e.step = done;
    if (r->evals && r->eval[r->evals - 1].step == done) r->evals--; /* the step was lost and repeated */
    r->eval[r->evals++] = e;
    if (!t->label) return 0;
    fprintf(stderr, "%-11.30s step %ld/%ld  val_loss %.4f", t->label, done, t->steps, e.loss);
    if (t->task) fprintf(stderr, "  val_accuracy %.2f%%", 100 * e.accuracy);
    fprintf(stderr, "\n");
    return 0;
}

static int training_sample(ddp_ctx *d, const training *t, const training_model *m)
{
    const long most = SAMPLING_WINDOW, window = t->model.context < most ? t->model.context : most;
    ddp_graph *g = t->sample.length ? ddp_graph_new(NULL) : NULL;
    ddp_node *logits;
    int bad;

    if (!t->sample.length) return 0;
    if (!g) return DDP_MEMORY;
    training_add_model(g, t, 1, window, &logits);
    bad = sampling_run(m->graph, g, logits, &t->sample, t->result->sample);
    if (ddp_graph_error(g)->code) training_fail(d, t->result, bad, ddp_graph_error(g)->msg);
    ddp_graph_free(g);
    return bad;
}

/* The same with stages: one pass of the pipeline for each token. The stage with the logits draws the token
 * and broadcasts it. */
static int training_sample_stages(ddp_ctx *d, const training *t, training_model *m)
{
    const sampling *s = &t->sample;
    const long window = t->model.context < (long)SAMPLING_WINDOW ? t->model.context : (long)SAMPLING_WINDOW,
               all = t->model.context * t->model.batch;
    ddp_rng r = sampling_rng(s);
    ddp_node_info info;
    int32_t *text = s->length ? (int32_t *)calloc((size_t)window, sizeof *text) : NULL;
    float *best = NULL;
    long i, k, at = 0;
    int bad = 0;

    if (!s->length) return 0;
    ddp_node_describe(m->graph, ddp_node_index(m->logits), &info);
    best = (float *)malloc((size_t)info.out.dim[2] * sizeof *best);
    if (!text || !best)
        bad = (int)DDP_MEMORY;
    else
        text[0] = s->first;
    for (i = 0; i < s->length && !bad; i++) {
        int32_t *tokens = (int32_t *)training_data(m, "tokens"), *labels;
        float next = 0;
        for (k = 0; k < all; k++) tokens[k] = k < window ? text[k] : 0;
        for (k = 0, labels = (int32_t *)training_data(m, "labels"); k < all; k++) labels[k] = -1;
        bad = training_forward(m);
        if (!bad && ddp_pipe_number(m->pipe) == 0 && training_output(m, m->logits))
            next = (float)sampling_draw(training_output(m, m->logits) + at * info.out.dim[2], info.out.dim[2],
                                        s, &r, best);
        if (!bad) bad = ddp_all_reduce(d, &next, 1, 1);
        if (bad) break;
        if (training_leads(d)) t->result->sample[i] = (int32_t)next;
        if (at + 1 < window)
            at++;
        else
            memmove(text, text + 1, (size_t)(window - 1) * sizeof *text);
        text[at] = (int32_t)next;
    }
    free(text);
    free(best);
    return bad;
}

/* Computes the hash from a copy, because the parameters may be on a device. Returns 0 or a ddp_status. */
static int training_hash(const training *t, const training_model *m, uint64_t *hash)
{
    int l, bad = 0;

    *hash = 0;
    if (t->paper) return 0;
    if (m->pipe) return ddp_pipe_hash(m->pipe, hash);
    for (l = 0; !bad && l < m->layers; l++) {
        size_t n = m->graph ? 0 : m->count[l];
        const float *p = m->graph ? ddp_layer_params(m->graph, l, &n) : m->params[l];
        float *copy = (float *)malloc((n + 1) * sizeof *copy);

        if (!copy) return DDP_MEMORY;
        if (n && m->graph) bad = ddp_graph_read(m->graph, copy, p, n);
        *hash = ddp_hash_floats(*hash, m->graph ? copy : p, n);
        free(copy);
    }
    return bad;
}

/* After ddp_sync_all the parameters of all live ranks are bit-identical. Every run checks this, since no
 * other check would detect a difference. */
static int training_compare(ddp_ctx *d, training_result *r, uint64_t hash)
{
    const int world = ddp_world(d) - ddp_servers(d), rank = ddp_rank(d);
    float *word = (float *)calloc((size_t)world * 4, sizeof *word);
    char why[DDP_ERROR_TEXT];
    int bad, i, other = -1;

    if (!word) return DDP_MEMORY;
    for (i = 0; i < 4; i++) word[4 * rank + i] = (float)(hash >> 16 * i & 0xffff);
    bad = ddp_all_gather(d, word, 4);
    for (i = 0; !bad && i < world; i++)
        if ((i >= 64 || ddp_live(d) >> i & 1) && memcmp(word + 4 * i, word + 4 * rank, 4 * sizeof *word))
            other = i;
    free(word);
    if (bad || other < 0) return bad;
    snprintf(why, sizeof why, "ranks %d and %d have different parameters after the last average", rank,
             other);
    return training_fail(d, r, DDP_MISMATCH, why);
}

/* ---- results ---- */

/* Sums over the ranks that know a figure, and the number of these ranks, in one message after training. A
 * joined worker has no figures of earlier steps. */
typedef struct training_sums {
    float *loss, *divergence, *ranks; /* [steps] each */
    float *layer;                     /* [layers] divergence */
    float *rest;                      /* [TRAINING_RESTS] */
} training_sums;

enum { TRAINING_STEP_S, TRAINING_COUNTED, TRAINING_RANKS, TRAINING_BEGAN, TRAINING_RESTS };

/* began: this rank has the first step of the run, or the first step after a resume. The caller frees
 * sum->loss. */
static int training_gather(ddp_ctx *d, const training *t, const training_rank *own, const training_model *m,
                           int began, training_sums *sum)
{
    const size_t n = (size_t)t->steps, L = m->pipe ? 0 : (size_t)m->layers; /* stages have different layers */
    const size_t count = 3 * n + L + TRAINING_RESTS;
    size_t i;

    sum->loss = (float *)calloc(count, sizeof *sum->loss);
    if (!sum->loss) return DDP_MEMORY;
    sum->divergence = sum->loss + n;
    sum->ranks = sum->divergence + n;
    sum->layer = sum->ranks + n;
    sum->rest = sum->layer + L;
    for (i = (size_t)own->from; i < n; i++) {
        sum->loss[i] = (float)own->step[i].loss;
        sum->divergence[i] = (float)own->step[i].divergence;
        sum->ranks[i] = 1;
    }
    for (i = 0; i < L; i++) sum->layer[i] = (float)ddp_divergence(d, (int)i);
    if (own->stats.counted_steps) {
        sum->rest[TRAINING_STEP_S] = (float)own->stats.step_s;
        sum->rest[TRAINING_COUNTED] = 1;
    }
    sum->rest[TRAINING_RANKS] = 1;
    sum->rest[TRAINING_BEGAN] = (float)began;
    return ddp_all_reduce(d, sum->loss, count, 1);
}

static double training_mean(float sum, float ranks)
{
    return ranks > 0 ? (double)sum / (double)ranks : (double)NAN;
}

/* Copies the leader's steps, with the means of all ranks. */
static void training_means(const training *t, const training_rank *own, const training_model *m,
                           const training_sums *sum)
{
    training_result *r = t->result;
    const float *rest = sum->rest;
    long k, first = 0, last = t->steps / 10 + 1;

    r->first = own->from;
    r->steps = t->steps;
    for (k = own->from; k < t->steps; k++) {
        r->step[k] = own->step[k];
        r->wait_s[k] = own->wait_s[k];
    }
    for (k = 0; k < t->steps; k++) { /* layers that sleep do not learn */
        r->step[k].loss = t->emulate ? (double)NAN : training_mean(sum->loss[k], sum->ranks[k]);
        r->step[k].divergence = training_mean(sum->divergence[k], sum->ranks[k]);
    }
    for (k = 0; !m->pipe && k < m->layers && k < TRAINING_LAYERS; k++)
        r->layer_divergence[k] = training_mean(sum->layer[k], rest[TRAINING_RANKS]);
    r->step_s = training_mean(rest[TRAINING_STEP_S], rest[TRAINING_COUNTED]);
    r->hidden_pct = own->stats.counted_steps ? own->stats.hidden_pct : (double)NAN;
    while (first < t->steps && !(sum->ranks[first] > 0)) first++;
    if (first == t->steps) return;
    if (rest[TRAINING_BEGAN] > 0) r->first_loss = r->step[first].loss;
    if (last > 10) last = 10;
    if (last > t->steps - first) last = t->steps - first;
    r->final_loss = 0;
    for (k = t->steps - last; k < t->steps; k++) r->final_loss += r->step[k].loss / (double)last;
}

static void training_describe(ddp_ctx *d, const training *t, const training_model *m)
{
    const ddp_profile *p = ddp_profile_get(d);
    const ddp_plan *plan = ddp_plan_get(d);
    training_result *r = t->result;
    int l, last = 0;

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
    for (l = 0; l < r->layers; l++) { /* a layer in parts is shown in the step of its last part */
        int h, row = (last += ddp_parts_of(d, l)) - 1;
        r->step_of[l] = plan->step_of[row];
        for (h = 0; plan->fill && plan->period <= r->fill_room && h < plan->period; h++)
            r->fill[h * r->layers + l] = plan->fill[h * plan->layers + row];
    }
    r->objective_s = plan->objective_s;
    r->lower_bound_s = plan->lower_bound_s;
    snprintf(r->plan_solver, sizeof r->plan_solver, "%s", ddp_solver_name(plan->solver));
    snprintf(r->plan_cost, sizeof r->plan_cost, "%s", ddp_cost_name(plan->cost));
}

/* test_accuracy: the leader alone, or the first pipeline. */
static int training_judge(ddp_ctx *d, const training *t, const training_model *m)
{
    double sum[3] = {0, 0, 0};
    float all[3];
    int bad = 0;

    if (!t->task || t->emulate) return 0;
    if (!m->pipe || training_worker(d, t) == 0) bad = t->task->judge(t, m, sum);
    for (int i = 0; i < 3; i++) all[i] = (float)sum[i];
    if (m->pipe && !bad) bad = ddp_all_reduce(d, all, 3, 1);
    for (int i = 0; m->pipe && i < 3; i++) sum[i] = (double)all[i];
    if (!bad && sum[2] > 0) t->result->test_accuracy = sum[1] / sum[2];
    return bad;
}

/* Fills the figures that only the leader has, after all ranks have ended with equal parameters. */
static int training_report(ddp_ctx *d, const training *t, const training_model *m, const training_rank *own,
                           uint64_t hash)
{
    training_result *r = t->result;
    ddp_error why;
    struct rusage use;
    int bad = 0;

    training_describe(d, t, m);
    r->world = ddp_workers(d);
    r->leader = (int)(own - r->rank);
    r->bytes_sent = own->stats.bytes_sent;
    if (!t->emulate && r->step_s > 0)
        r->samples_per_s = (double)(t->model.batch * t->model.context * t->accumulate * ddp_workers(d) /
                                    (t->stages > 1 ? t->stages : 1)) /
                           r->step_s;
    if (!m->pipe) bad = training_judge(d, t, m);
    if (!bad && !m->pipe) bad = training_validate(NULL, t, m, &r->val_loss, &r->val_accuracy);
    if (bad) return bad;
    snprintf(r->param_hash, sizeof r->param_hash, "%016llx", (unsigned long long)hash);
    getrusage(RUSAGE_SELF, &use);
    r->peak_rss_mb = (double)use.ru_maxrss / 1024;
    r->param_mb = 0; /* for this rank's layers */
    for (int l = 0; l < ddp_layer_count(m->graph); l++) {
        size_t count = 0;
        (void)ddp_layer_params(m->graph, l, &count);
        r->param_mb += (double)count * sizeof(float) / 1048576;
    }
    r->state_mb = (double)own->stats.optimizer_bytes / 1048576;
    r->activation_mb = (double)(m->pipe ? ddp_pipe_bytes(m->pipe) : ddp_activation_bytes(m->graph)) / 1048576;
    if (t->store && !m->pipe) {
        bad = (int)ddp_weights_save(m->graph, t->store, &why);
        if (bad) return training_fail(d, r, bad, why.msg);
    }
    if (!m->pipe) bad = training_sample(d, t, m);
    r->complete = !bad;
    return bad;
}

/* Takes the figures of the counted steps from the statistics before the plan was adopted, if no step
 * followed. Subtracts the evaluations: pause[k] is the time in seconds that step k includes of them. */
static void training_counted(ddp_stats *s, const ddp_stats *profiled, const double *pause)
{
    double paused = 0;

    if (!s->counted_steps) {
        s->step_s = profiled->step_s;
        s->wait_s = profiled->wait_s;
        s->comm_s = profiled->comm_s;
        s->exposed_s = profiled->exposed_s;
        s->hidden_pct = profiled->hidden_pct;
        s->peer_wait_s = profiled->peer_wait_s;
        s->counted_steps = profiled->counted_steps;
        s->counted_periods = profiled->counted_periods;
        s->counted_from = profiled->counted_from;
    }
    for (long k = s->counted_from; k < s->counted_from + s->counted_steps; k++) paused += pause[k];
    if (s->counted_steps) s->step_s -= paused / (double)s->counted_steps;
}

/* began is 1 if this rank has the first step of the run, or the first step after a resume. For profiled and
 * pause see training_counted. */
static int training_finish(ddp_ctx *d, const training *t, training_model *m, int began, double begin,
                           const ddp_stats *profiled, const double *pause)
{
    training_result *r = t->result;
    training_rank *own = training_place(r, ddp_rank(d));
    const double seconds = ddp_now() - begin;
    training_sums sum = {NULL, NULL, NULL, NULL, NULL};
    int bad = ddp_wait(d), leads;
    ddp_pipe_stats pipe;
    uint64_t hash;

    if (bad) return bad;
    ddp_get_stats(d, &own->stats);
    if (own->stats.chosen) own->chosen = *own->stats.chosen;
    own->stats.chosen = NULL;
    training_counted(&own->stats, profiled, pause);
    bad = training_gather(d, t, own, m, began, &sum);
    own->spans = ddp_trace_copy(d, own->span, TRAINING_SPANS);
    own->slots = ddp_pipe_lanes(m->pipe, own->slot, TRAINING_SLOTS);
    own->pipeline = ddp_pipe_number(m->pipe);
    memset(&pipe, 0, sizeof pipe);
    if (!bad && m->pipe) bad = ddp_pipe_get_stats(m->pipe, &pipe);
    own->notes = ddp_notes(d, own->note, TRAINING_NOTES);
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) bad = training_hash(t, m, &hash);
    if (!bad) bad = training_compare(d, r, hash);
    if (!bad && m->pipe) bad = training_judge(d, t, m);
    if (!bad && m->pipe) bad = training_validate(d, t, m, &r->val_loss, &r->val_accuracy);
    if (!bad && m->pipe && t->store) bad = ddp_pipe_export(m->pipe, t->store);
    if (!bad && m->pipe) bad = training_sample_stages(d, t, m);
    leads = training_leads(d); /* after the last collective, a lost leader has no successor */
    if (!bad && leads) {
        training_means(t, own, m, &sum);
        r->seconds = seconds;
        r->begin_s = begin;
        r->pipe = pipe;
        bad = training_report(d, t, m, own, hash);
    }
    free(sum.loss);
    return bad;
}

/* Measures the links and orders rings by their rate. */
static int training_probe(ddp_ctx *d, const training *t)
{
    ddp_probe_result r;
    ddp_ring_choice ring;
    int bad;

    if (!t->probe || ddp_world(d) < 2) return 0;
    bad = ddp_probe(d, &r);
    if (bad) return bad;
    bad = ddp_ring_tune(d, &r, &ring);
    if (!bad && t->label && ddp_rank(d) == 0) {
        fprintf(stderr, "links measured in %.1f s: slowest hop of the best ring %.1f MB/s, ", r.seconds,
                1e-6 * ring.least_rate);
        if (ring.from_bytes < DBL_MAX)
            fprintf(stderr, "rings from %.2f MB on\n", 1e-6 * ring.from_bytes);
        else
            fprintf(stderr, "no rings\n");
    }
    ddp_probe_free(&r);
    return bad;
}

/* Numbers of the trainer that must be equal on all ranks: the learning rate of every step, and the options
 * that decide when a rank begins a collective. Different batches or data are a warning, but an error between
 * the stages of a pipeline, which share each batch. */
static int training_same(ddp_ctx *d, const training *t)
{
    int bad = ddp_same(d, "steps", t->steps);

    if (!bad) bad = ddp_same(d, "save (0: no, 1: yes)", t->save != NULL);
    if (!bad && !t->elastic)
        bad = ddp_same(d, "resume (0: no, 1: yes)", t->resume != NULL); /* a worker that joins does not */
    if (!bad) bad = ddp_same(d, "save_every", t->save ? t->save_every : 0);
    if (!bad) bad = ddp_same(d, "eval_every", t->eval_every);
    if (!bad) bad = ddp_same(d, "val_batches", t->val_batches);
    if (!bad) bad = ddp_same(d, "probe (0: no, 1: yes)", t->probe != 0);
    if (!bad) bad = ddp_same(d, "schedule (0: constant)", (int64_t)t->schedule.kind);
    if (!bad) bad = ddp_same(d, "warm-up steps", t->schedule.warmup);
    if (!bad && t->stages > 1) {
        bad = ddp_same(d, "length of data", t->data_length);
        if (!bad) bad = ddp_same(d, "batch size", t->model.batch);
        return bad ? bad : ddp_same(d, "tokens of a sample", t->sample.length);
    }
    if (!bad) bad = ddp_usually_same(d, "batch size", t->model.batch);
    return bad ? bad : ddp_usually_same(d, "length of data", t->data_length);
}

/* Resumes from a checkpoint: *first is the next step. The data continue at the position of the saved run,
 * rounded down to a whole batch of this one. */
static int training_resume(ddp_ctx *d, training *t, long *first)
{
    char why[DDP_ERROR_TEXT];
    int bad = t->resume && !ddp_step(d) ? ddp_checkpoint_load(d, t->resume, NULL) : 0;

    *first = ddp_step(d);
    if (!bad) t->first_pass = (long)(ddp_taken(d) / training_workers(d, t)) - *first * t->accumulate;
    if (bad || !t->resume) return bad;
    if (*first < t->steps) return 0;
    snprintf(why, sizeof why,
             "%.200s is at step %ld already, and the run has %ld steps: nothing is left to train", t->resume,
             *first, t->steps);
    return training_fail(d, t->result, DDP_ARG, why);
}

/* 1 if this process was a worker of an elastic run and has left it. */
static int training_left;

static int training_loop(ddp_ctx *d, void *user)
{
    training own_copy = *(const training *)user, *t = &own_copy;
    training_result *r = t->result;
    training_rank *own = training_place(r, ddp_rank(d));
    training_model m;
    progress line;
    ddp_stats s, profiled;
    double begin, waited = 0, samples, paused, *pause = NULL;
    long step, first = 0;
    int bad = training_build(d, t, &m), began;

    if (m.pipe) t->accumulate = ddp_pipe_micro_batches(m.pipe); /* more if other pipelines were lost */
    samples = (double)(t->model.batch * t->model.context * t->accumulate * training_workers(d, t));

    if (t->windows) { /* the launcher may have started more workers than the command line states */
        long per_step = (long)(t->model.batch * t->accumulate * training_workers(d, t));
        t->steps = t->schedule.total = (t->windows + per_step - 1) / per_step;
        t->schedule.step_size = t->steps / 3 + 1;
        if (!bad && t->steps > r->room) {
            char why[DDP_ERROR_TEXT];
            snprintf(why, sizeof why, "%d workers were launched, but --workers is %d; omit --workers",
                     training_workers(d, t), t->workers);
            bad = training_fail(d, r, DDP_ARG, why);
        }
    }
    if (!bad) bad = training_same(d, t);
    if (!bad) bad = ddp_set_optimizer(d, &t->optimizer);
    if (!bad && *ddp_unlike(d) && training_leads(d)) fprintf(stderr, "warning: %s\n", ddp_unlike(d));
    if (!bad && m.pipe) bad = ddp_pipe_resume(m.pipe);
    if (!bad && ddp_pipe_ends(m.pipe)) {
        if (t->save) bad = ddp_checkpoint_save(d, t->save, (int)t->keep);
        training_free(t, &m);
        return bad;
    }
    began = m.pipe || !ddp_step(d); /* otherwise it joined */
    if (!bad) bad = training_resume(d, t, &first);
    if (!bad && began) bad = training_probe(d, t); /* members do not measure links with a joining worker */
    if (!bad && ddp_rank(d) >= ddp_world(d) - ddp_servers(d)) { /* a server rank */
        bad = ddp_serve(d);
        training_free(t, &m);
        return bad;
    }
    if (!(m.pipe && first && !t->resume))
        own->from = first; /* otherwise a part of it belongs to another
                                                              * world */
    if (!bad && t->label && *t->data_line && training_leads(d)) fprintf(stderr, "%s\n", t->data_line);
    progress_start(&line, t->label ? stderr : NULL, t->label, t->steps);
    begin = ddp_now();
    memset(&profiled, 0, sizeof profiled);
    if (!bad) pause = (double *)calloc((size_t)t->steps + 1, sizeof *pause);
    if (!bad && !pause) bad = DDP_MEMORY;
    for (step = first; !bad && step < t->steps; step++) {
        ddp_step_info info;
        double loss;
        if (cli_interrupted) {
            training_left = t->elastic && cli_interrupted == CLI_TERMINATED && ddp_workers(d) > 1;
            if (!training_left) ddp_abort(d, "interrupted");
            bad = DDP_ABORTED;
            break;
        }
        memset(&info, 0, sizeof info);
        info.lr = (float)ddp_lr_at(&t->schedule, step);
        bad = training_step(d, t, &m, step * t->accumulate + t->first_pass, &loss);
        info.loss = loss;
        info.samples = t->model.batch * t->accumulate;
        if (t->data_length)
            info.epoch =
                (double)(step * training_workers(d, t)) * (double)info.samples / (double)t->data_length;
        if (!bad) bad = ddp_report(d, &info);
        if (training_leads(d) && ddp_workers(d) > 1 && step + 1 - first == ddp_settings(d)->profile_steps)
            progress_says(&line, "measuring the link");
        if (!bad) bad = ddp_step_end(d);
        if (bad) break;
        ddp_get_stats(d, &s);
        own->step[step].time_s = ddp_now() - begin;
        own->step[step].loss = loss;
        own->step[step].bytes = s.bytes_sent;
        own->step[step].divergence = s.divergence;
        own->wait_s[step] = s.wait_total_s - waited;
        waited = s.wait_total_s;
        if (s.counted_steps) profiled = s;
        if (t->save && (step + 1 == t->steps || (t->save_every && (step + 1) % t->save_every == 0)))
            bad = ddp_checkpoint_save(d, t->save, (int)t->keep);
        if (training_leads(d))
            progress_step(&line, step + 1, t->emulate ? NAN : loss, t->emulate ? 0 : samples);
        if (bad || !t->eval_every || (step + 1) % t->eval_every) continue;
        progress_end(&line);
        paused = 0;
        bad = training_evaluate(d, t, &m, step + 1, &paused);
        begin += paused;
        line.last_s += paused;
        pause[step + 1] = paused; /* the next step begins before the evaluation */
    }
    progress_end(&line);
    if (!bad) bad = training_finish(d, t, &m, began, begin, &profiled, pause);
    free(pause);
    training_free(t, &m);
    return bad;
}

/* Records the lanes of a report: `period` steps starting at step `first`. */
static inline void training_window(const training_result *r, int workers, long first, int period,
                                   ddp_report_run *run)
{
    int k, i;

    run->window_begin_s = 1e300;
    run->window_end_s = 0;
    for (k = 0; k < workers; k++)
        for (i = 0; i < r->rank[k].spans; i++) {
            const ddp_span *s = &r->rank[k].span[i];
            if (s->step < first || s->step >= first + period || s->kind == DDP_SPAN_COMM ||
                s->kind == DDP_SPAN_FILL)
                continue;
            if (s->begin_s < run->window_begin_s) run->window_begin_s = s->begin_s;
            if (s->end_s > run->window_end_s) run->window_end_s = s->end_s;
        }
    if (run->window_begin_s > run->window_end_s) run->window_begin_s = run->window_end_s = 0;
}

/* Trains on one rank. This is the function for ddp_launch. */
static inline int training_run(ddp_ctx *d, void *user)
{
    watcher w;
    int bad;

    watcher_start(&w, d, ((const training *)user)->dump, ((const training *)user)->elastic);
    bad = training_loop(d, user);
    watcher_stop(&w);
    return bad;
}

#endif /* EXAMPLES_TRAINING_H */
