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
#include "train_gpt_options.h"
#include "train_gpt_results.h"

static ddp_status load(program *p, ddp_error *err)
{
    training *t = &p->t;
    ddp_gpt2_config *m = &t->model;
    ddp_llama2_config *llama = &p->llama;

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
    if (!strcmp(p->model, "llama2")) {
        t->llama = llama;
        llama->vocabulary = m->vocabulary, llama->layers = m->layers, llama->heads = m->heads;
        llama->dim = m->dim, llama->kv_heads = p->kv_heads, llama->hidden = p->hidden;
        llama->tied = p->tied, llama->deviation = m->deviation;
    }
    snprintf(p->described, sizeof p->described,
             "%s, %ld layers, %ld heads, width %ld, %ld tokens, vocabulary %ld",
             t->llama ? "Llama-2" : "GPT-2", p->layers, p->heads, p->dim, p->seq, m->vocabulary);
    if (training_check(t, err)) return err->code;
    return ddp_tokens_split(p->tokens, p->held_out, p->seq, &t->train, &t->val, err);
}

/* A sample begins after a line's end where the data are text, else after their first token. */
static int32_t *prepare_sample(program *p)
{
    sampling *s = &p->t.sample;
    long token;

    s->length = p->sample, s->top_k = p->top_k, s->temperature = p->temperature;
    s->seed = (uint64_t)p->seed;
    s->first = p->sample ? ddp_tokens_at(p->tokens, 0) : 0;
    for (token = 0; p->sample && token < ddp_tokens_vocabulary(p->tokens); token++)
        if (ddp_tokens_byte(p->tokens, token) == '\n') s->first = (int32_t)token;
    return (int32_t *)training_share((size_t)p->sample * sizeof(int32_t));
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
    t->val_batches = p->val_batches ? p->val_batches : LONG_MAX;
    t->label = p->quiet ? NULL : p->strategy;
    /* only the ranks that are started here leave something behind here */
    t->result = training_result_new(p->rank >= 0 ? 1 : (int)p->workers, p->steps,
                                    p->period > 0 ? (int)p->period : 64);
    if (t->result) t->result->sample = prepare_sample(p);
    if (t->result && t->result->sample) return DDP_OK;
    refuse(err, "out of memory for the results of %ld steps", p->steps);
    return err->code = DDP_MEMORY;
}

static ddp_status finish(const program *p, ddp_error *err)
{
    ddp_jsonl *out;
    ddp_status s;

    write_sample(p);
    out = ddp_jsonl_stream(stdout, err);
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
