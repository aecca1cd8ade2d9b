/* Helper of test_torch_models.py: trains a small language model on the text argv[1] and prints the data
 * that PyTorch needs for the same training, one per line: the initial parameters, and the tokens and
 * labels of every step; then the logits of the first batch and the loss of every step. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

enum { STEPS = 50, BATCH = 4, CONTEXT = 24 };

static void print_floats(const char *name, const ddp_shape *s, const float *x)
{
    const long n = ddp_shape_count(s);
    long i;

    printf("%s", name);
    for (i = 0; i < s->dims; i++) printf(" %ld", s->dim[i]);
    printf(" |");
    for (i = 0; i < n; i++) printf(" %.9g", (double)x[i]);
    printf("\n");
}

static void print_tokens(const char *name, const int32_t *x)
{
    int i;

    printf("%s %d %d |", name, BATCH, CONTEXT);
    for (i = 0; i < BATCH * CONTEXT; i++) printf(" %d", x[i]);
    printf("\n");
}

static void print_params(ddp_graph *g)
{
    int i, k;

    for (i = 0; i < ddp_node_count(g); i++)
        for (k = g->node[i]->tied >= 0; k < g->node[i]->spec.params; k++) {
            ddp_shape s;
            const float *x = ddp_node_param(g, g->node[i], k, &s);
            print_floats("param", &s, x);
        }
}

static ddp_node *model(ddp_graph *g, int kind, long vocabulary, ddp_node **logits)
{
    ddp_gpt2_config gpt2;
    ddp_llama2_config llama;

    memset(&gpt2, 0, sizeof gpt2);
    memset(&llama, 0, sizeof llama);
    gpt2.vocabulary = llama.vocabulary = vocabulary;
    gpt2.context = llama.context = CONTEXT;
    gpt2.batch = llama.batch = BATCH;
    gpt2.layers = llama.layers = 2;
    gpt2.dim = llama.dim = 32;
    gpt2.heads = llama.heads = 4;
    gpt2.deviation = llama.deviation = 0.15f;
    llama.hidden = 88;
    llama.kv_heads = kind == 1 ? 4 : kind == 2 ? 2 : 1;
    llama.tied = kind == 3;
    if (!kind)
        printf("model gpt2 4 4 0 |\n");
    else
        printf("model llama2 4 %ld %d |\n", llama.kv_heads, llama.tied);
    return kind ? ddp_llama2(g, &llama, logits) : ddp_gpt2(g, &gpt2, logits);
}

static int train(int kind, const ddp_tokens *text, ddp_error *err)
{
    ddp_optimizer adamw = ddp_adamw(3e-3f, 0.9f, 0.999f, 1e-8f, 0.01f);
    ddp_token_range range;
    ddp_config cfg;
    ddp_ctx *d;
    ddp_graph *g;
    ddp_node *loss, *logits;
    int32_t *tokens, *labels;
    int step, bad;

    memset(&cfg, 0, sizeof cfg);
    cfg.strategy = DDP_SSGD;
    cfg.seed = 3;
    cfg.threads = 2;
    d = ddp_open(&cfg, err);
    if (!d) return 1;
    g = ddp_graph_new(d);
    loss = model(g, kind, ddp_tokens_vocabulary(text), &logits);
    bad = ddp_graph_build(g);
    if (bad) *err = *ddp_graph_error(g);
    if (!bad) bad = ddp_set_optimizer(d, &adamw);
    if (!bad) bad = (int)ddp_tokens_split(text, 0, CONTEXT, &range, NULL, err);
    if (!bad) print_params(g);
    tokens = (int32_t *)ddp_data(g, "tokens");
    labels = (int32_t *)ddp_data(g, "labels");
    for (step = 0; !bad && step < STEPS; step++) {
        ddp_tokens_batch(&range, 5, step, 0, 1, BATCH, tokens, labels);
        print_tokens("tokens", tokens);
        print_tokens("labels", labels);
        bad = ddp_forward(g);
        if (!bad && step == 0) print_floats("logits", &logits->spec.out, ddp_output(g, logits));
        if (!bad) bad = ddp_backward(g, loss);
        if (!bad) printf("loss | %.9g\n", (double)ddp_value(g, loss));
        if (!bad) bad = ddp_step_end(d);
    }
    ddp_close(d);
    return bad;
}

int main(int argc, char **argv)
{
    ddp_error err;
    ddp_tokens *text;
    int kind, bad = 0;

    memset(&err, 0, sizeof err);
    text = argc > 1 ? ddp_tokens_open(argv[1], &err) : NULL;
    for (kind = 0; text && !bad && kind < 4; kind++) bad = train(kind, text, &err);
    if (!text || bad) fprintf(stderr, "torch_models: %s\n", err.msg);
    ddp_tokens_close(text);
    return !text || bad;
}
