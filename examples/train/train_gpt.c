/* Trains a GPT on any text under any strategy, with one process or thread per worker.
 *
 *   cc -O2 -I. examples/train/train_gpt.c -o train_gpt -lm -lpthread
 *   ./train_gpt --workers 4 --strategy dreamddp --net 100mbit,5ms --data dreamddp.h --steps 200
 *
 * For a GPU (--device cuda):
 *   nvcc -O3 -arch=sm_90a -x cu -I. examples/train/train_gpt.c -o train_gpt_cuda -lcublas -lcublasLt -lnccl
 *
 * The last line of stdout is one JSON object with the results. --help lists the options. */
#define DREAMDDP_IMPLEMENTATION
#if defined(__CUDACC__) || defined(DDP_CUDA_ON_CPU)
#include "dreamddp_cuda.cuh"
#else
#include "dreamddp.h"
#endif
#include "../common/cli.h"
#include "../common/training.h"
#include "options.h"
#include "results.h"
#include "device.h"
#include "trainer.h"

static int parse_gpt(program *p, int argc, char **argv)
{
    const cli_option own[] = {
        {"Model", CLI_GROUP, NULL, NULL, NULL},
        {"--model", CLI_TEXT, &p->model, "NAME", "gpt2 or llama2 [gpt2]"},
        {"--layers", CLI_COUNT, &p->layers, "N", "transformer blocks [4]"},
        {"--heads", CLI_COUNT, &p->heads, "N", "attention heads [4]"},
        {"--dim", CLI_COUNT, &p->dim, "N", "width, a multiple of --heads [64]"},
        {"--kv-heads", CLI_COUNT, &p->kv_heads, "N",
         "llama2: heads of keys and values; 0 = as many as --heads [0]"},
        {"--hidden", CLI_COUNT, &p->hidden, "N", "llama2: width of the MLP; 0 = 8/3 width [0]"},
        {"--tied", CLI_FLAG, &p->tied, "", "llama2: share the token table with the output matrix"},
        {"--seq", CLI_COUNT, &p->seq, "N", "tokens per sequence [64]"},
        {"--vocab", CLI_COUNT, &p->vocab, "N",
         "size of the vocabulary, at least as large as in the data; 0 = as in the data [0]"},
        {"--dropout", CLI_REAL, &p->dropout, "P", "dropout probability [0]"},
        {"Data", CLI_GROUP, NULL, NULL, NULL},
        {"--data", CLI_TEXT, &p->data, "FILE",
         "text, read as bytes, or tokens: llm.c or nanoGPT .bin, .u16, .u32; each also as .gz"},
        {"--held-out", CLI_REAL, &p->held_out, "F", "fraction of the data held out for val_loss [0.1]"},
        {"--val-batches", CLI_COUNT, &p->val_batches, "N",
         "batches of held-out data for val_loss; 0 = all [20]"},
        {"Reports", CLI_GROUP, NULL, NULL, NULL},
        {"--sample", CLI_COUNT, &p->sample, "N", "number of tokens to print from the trained model [0]"},
        {"--temperature", CLI_REAL, &p->temperature, "X",
         "temperature of the sample; 0 = always the most likely token [0.8]"},
        {"--top-k", CLI_COUNT, &p->top_k, "N", "number of most likely tokens to draw from; 0 = all [40]"},
    };

    return parse(p, argc, argv, "Trains a GPT over slow links and prints one JSON object of results.", own,
                 (int)(sizeof own / sizeof own[0]));
}

/* Checks the options that neither ddp_open nor the builder of the model checks. */
static ddp_status choose_gpt(program *p, ddp_error *err)
{
    if (strcmp(p->model, "gpt2") && strcmp(p->model, "llama2"))
        return refuse(err, "unknown model %s; choose gpt2 or llama2", p->model);
    if (!(p->temperature >= 0))
        return refuse(err, "--temperature %g must be at least 0; 0 always takes the most likely token",
                      p->temperature);
    if (!strcmp(p->model, "llama2") && p->dropout != 0)
        return refuse(err, "--dropout %g: llama2 has no dropout; leave it out", p->dropout);
    if (strcmp(p->model, "llama2") && (p->kv_heads || p->hidden || p->tied))
        return refuse(err, "--kv-heads, --hidden and --tied need --model llama2, not %s", p->model);
    if (p->layers < 1) return refuse(err, "--layers %ld must be at least 1", p->layers);
    if (p->heads < 1) return refuse(err, "--heads %ld must be at least 1", p->heads);
    if (p->dim < 1) return refuse(err, "--dim %ld must be at least 1, and a multiple of --heads", p->dim);
    if (p->seq < 1) return refuse(err, "--seq %ld must be at least 1", p->seq);
    if (p->layers > 10000) return refuse(err, "--layers %ld must be at most 10000", p->layers);
    if (p->emulate && p->sample)
        return refuse(err, "--sample %ld cannot be combined with --emulate-compute, which trains no model",
                      p->sample);
    if (!p->data && !p->emulate)
        return refuse(err, "--data FILE is missing; any text file will do, e.g. --data dreamddp.h");
    return DDP_OK;
}

/* Sets the options of the sample. Its first token is a newline if the data contain one, else the first token
 * of the data. */
static void choose_sample(program *p)
{
    sampling *s = &p->t.sample;
    long token;

    s->length = p->sample;
    s->top_k = p->top_k;
    s->temperature = p->temperature;
    s->seed = (uint64_t)p->seed;
    s->stop = &cli_interrupted;
    s->first = p->sample ? ddp_tokens_at(p->tokens, 0) : 0;
    for (token = 0; p->sample && token < ddp_tokens_vocabulary(p->tokens); token++)
        if (ddp_tokens_byte(p->tokens, token) == '\n') s->first = (int32_t)token;
}

static ddp_status load_gpt(program *p, ddp_error *err)
{
    training *t = &p->t;
    ddp_gpt2_config *m = &t->model;
    ddp_llama2_config *llama = &p->llama;

    p->tokens = ddp_tokens_open(p->data, err);
    if (!p->tokens) return err->code;
    m->vocabulary = ddp_tokens_vocabulary(p->tokens);
    snprintf(t->data_line, sizeof t->data_line, "data: %.120s, read as %s: %ld tokens, vocabulary %ld",
             p->data, ddp_tokens_kind(p->tokens), ddp_tokens_count(p->tokens), m->vocabulary);
    if (p->vocab && p->vocab < m->vocabulary)
        return refuse(err, "--vocab %ld is smaller than the data's %ld tokens; 0 takes the data's", p->vocab,
                      m->vocabulary);
    if (p->vocab) m->vocabulary = p->vocab;
    if (m->vocabulary < 2)
        return refuse(err,
                      "%s contains only one distinct token, so there is nothing to learn; use other "
                      "data, or --vocab 2",
                      p->data);
    m->layers = p->layers;
    m->heads = p->heads;
    m->dim = p->dim;
    m->context = p->seq;
    m->batch = p->batch;
    m->dropout = (float)p->dropout;
    m->recompute = p->recompute;
    m->deviation = training_deviation(p->dim);
    if (!strcmp(p->model, "llama2")) {
        t->llama = llama;
        llama->vocabulary = m->vocabulary;
        llama->layers = m->layers;
        llama->heads = m->heads;
        llama->dim = m->dim;
        llama->kv_heads = p->kv_heads;
        llama->hidden = p->hidden;
        llama->tied = p->tied;
        llama->deviation = m->deviation;
        llama->recompute = p->recompute;
    }
    snprintf(p->described, sizeof p->described,
             "%s, %ld layers, %ld heads, width %ld, %ld tokens, vocabulary %ld",
             t->llama ? "Llama-2" : "GPT-2", p->layers, p->heads, p->dim, p->seq, m->vocabulary);
    if (training_check(t, err)) return err->code;
    if (ddp_tokens_split(p->tokens, p->held_out, p->seq, &t->train, &t->val, err)) return err->code;
    t->val_batches = p->val_batches ? p->val_batches : LONG_MAX;
    t->data_length = ddp_tokens_windows(&t->train);
    t->windows = p->epochs * t->data_length;
    choose_sample(p);
    return DDP_OK;
}

/* Prints the sample: bytes as they are, other tokens as numbers. */
static void write_sample(const program *p)
{
    long i;

    for (i = 0; i < p->sample; i++) {
        const long token = p->t.result->sample[i];
        const int byte = ddp_tokens_byte(p->tokens, token);
        if (byte < 0)
            printf("%ld ", token);
        else
            putchar(byte);
    }
    if (p->sample) putchar('\n');
}

int main(int argc, char **argv)
{
    program *p = (program *)malloc(sizeof *p);
    int code;

    if (!p) return 1;
    defaults(p, "train_gpt");
    p->choose = choose_gpt;
    p->load = load_gpt;
    p->print = write_sample;
    p->model = "gpt2";
    p->layers = 4;
    p->heads = 4;
    p->dim = 64;
    p->seq = 64;
    p->val_batches = 20;
    p->temperature = 0.8;
    p->top_k = 40;
    code = parse_gpt(p, argc, argv);
    if (code < 0) code = trainer_main(p);
    ddp_tokens_close(p->tokens);
    free(p);
    return code;
}
