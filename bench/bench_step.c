/* One training step of a language model, from random tokens: forward, backward, AdamW.
 *
 *   build/bench_step --model llama2 --threads 2
 *
 * Default sizes are those of "GPT-2 small" in docs/results/benchmarks.md. Prints one JSON object: fastest
 * and median step, CPU seconds per step, tokens/s of the fastest, arithmetic, peak memory. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "../examples/common/cli.h"
#include <sys/resource.h>

typedef struct bench {
    const char *model;
    long layers, heads, kv_heads, dim, hidden, seq, batch, vocab, threads, steps;
    int tied, recompute;
} bench;

static ddp_node *add_model(ddp_graph *g, const bench *b)
{
    ddp_gpt2_config gpt2;
    ddp_llama2_config llama;

    memset(&gpt2, 0, sizeof gpt2);
    memset(&llama, 0, sizeof llama);
    gpt2.vocabulary = llama.vocabulary = b->vocab;
    gpt2.context = llama.context = b->seq;
    gpt2.layers = llama.layers = b->layers;
    gpt2.heads = llama.heads = b->heads;
    gpt2.dim = llama.dim = b->dim;
    gpt2.batch = llama.batch = b->batch;
    llama.kv_heads = b->kv_heads;
    llama.hidden = b->hidden;
    llama.tied = b->tied;
    gpt2.recompute = llama.recompute = b->recompute;
    return strcmp(b->model, "llama2") ? ddp_gpt2(g, &gpt2, NULL) : ddp_llama2(g, &llama, NULL);
}

/* FLOPs of a step, without the optimizer and without recomputation. */
static double arithmetic(const ddp_graph *g)
{
    double sum = 0;
    int i;

    for (i = 0; i < ddp_node_count(g); i++) {
        ddp_node_info info;
        ddp_node_describe(g, i, &info);
        sum += info.flops + info.backward_flops;
    }
    return sum;
}

/* Peak resident memory in MB, or 0 if the system does not report it. */
static double peak_mb(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    long kb = 0;

    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "VmHWM:", 6)) kb = atol(line + 6);
    if (f) fclose(f);
    return (double)kb / 1024;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int measure(ddp_ctx *d, const bench *b, ddp_error *err)
{
    ddp_optimizer adamw = ddp_adamw(3e-4f, 0.9f, 0.999f, 1e-8f, 0.01f);
    ddp_rng r = ddp_rng_seed(1, 2);
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = add_model(g, b);
    double *took = (double *)calloc((size_t)b->steps, sizeof *took), cpu = 0;
    int32_t *tokens, *labels;
    long step, i;
    int bad = ddp_graph_build(g);

    if (bad) *err = *ddp_graph_error(g);
    if (!bad) bad = ddp_set_optimizer(d, &adamw);
    if (!took) bad = DDP_MEMORY;
    tokens = (int32_t *)ddp_data(g, "tokens");
    labels = (int32_t *)ddp_data(g, "labels");
    for (step = -1; !bad && step < b->steps; step++) { /* the first step touches fresh memory */
        double begin = ddp_now();
        if (step == 0) cpu = cpu_seconds();
        for (i = 0; i < b->batch * b->seq; i++) {
            tokens[i] = (int32_t)ddp_rng_below(&r, (uint64_t)b->vocab);
            labels[i] = (int32_t)ddp_rng_below(&r, (uint64_t)b->vocab);
        }
        bad = ddp_forward(g);
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) bad = ddp_step_end(d);
        if (step >= 0) took[step] = ddp_now() - begin;
    }
    if (!bad) {
        cpu = (cpu_seconds() - cpu) / (double)b->steps;
        qsort(took, (size_t)b->steps, sizeof *took, by_time);
        printf("{\"model\":\"%s\",\"threads\":%ld,\"params\":%zu,\"step_s\":%.4f,"
               "\"median_s\":%.4f,\"cpu_s\":%.4f,\"tokens_per_s\":%.1f,\"gflops\":%.1f,"
               "\"activation_mb\":%.1f,\"peak_rss_mb\":%.1f,\"loss\":%.5f}\n",
               b->model, b->threads, ddp_param_count(g), took[0], took[b->steps / 2], cpu,
               (double)(b->batch * b->seq) / took[0], 1e-9 * arithmetic(g) / took[0],
               (double)ddp_activation_bytes(g) / 1048576, peak_mb(), (double)ddp_value(g, loss));
    }
    free(took);
    return bad;
}

int main(int argc, char **argv)
{
    bench b;
    int quick = 0;
    const cli_option table[] = {
        {"--model", CLI_TEXT, &b.model, "NAME", "gpt2 or llama2 [gpt2]"},
        {"--layers", CLI_COUNT, &b.layers, "N", "blocks [6]"},
        {"--heads", CLI_COUNT, &b.heads, "N", "attention heads [6]"},
        {"--kv-heads", CLI_COUNT, &b.kv_heads, "N", "llama2: of keys; 0 = --heads [0]"},
        {"--dim", CLI_COUNT, &b.dim, "N", "width [384]"},
        {"--hidden", CLI_COUNT, &b.hidden, "N", "llama2: width of the MLP; 0 = 8/3 [0]"},
        {"--tied", CLI_FLAG, &b.tied, "", "llama2: logits by the token table"},
        {"--recompute", CLI_FLAG, &b.recompute, "", "drop each block's activations"},
        {"--seq", CLI_COUNT, &b.seq, "N", "tokens per sequence [256]"},
        {"--batch", CLI_COUNT, &b.batch, "N", "sequences [4]"},
        {"--vocab", CLI_COUNT, &b.vocab, "N", "vocabulary [50304]"},
        {"--threads", CLI_COUNT, &b.threads, "N", "operator threads [1]"},
        {"--steps", CLI_COUNT, &b.steps, "N", "timed steps, after one that is not [3]"},
        {"--quick", CLI_FLAG, &quick, "", "one timed step"},
    };
    ddp_config cfg;
    ddp_error err;
    ddp_ctx *d;
    int code;

    memset(&b, 0, sizeof b);
    memset(&err, 0, sizeof err);
    b.model = "gpt2";
    b.layers = b.heads = 6;
    b.dim = 384;
    b.seq = 256;
    b.batch = 4;
    b.vocab = 50304;
    b.threads = 1;
    b.steps = 3;
    cli_catch_interrupt();
    code = cli_parse(argc, argv, "Times one training step.", table, (int)(sizeof table / sizeof table[0]));
    if (code >= 0) return code;
    if (quick) b.steps = 1;
    if (b.steps < 1 || b.threads < 1 || (strcmp(b.model, "gpt2") && strcmp(b.model, "llama2"))) {
        fprintf(stderr, "bench_step: at least 1 step and 1 thread; the model is gpt2 or llama2\n");
        return 2;
    }
    memset(&cfg, 0, sizeof cfg);
    cfg.strategy = DDP_SSGD;
    cfg.no_env = 1;
    cfg.threads = (int)b.threads;
    d = ddp_open(&cfg, &err);
    code = d ? measure(d, &b, &err) : 1;
    if (code) fprintf(stderr, "bench_step: %s\n", err.msg);
    ddp_close(d);
    return code ? ddp_status_exit_code((ddp_status)code) : 0;
}
