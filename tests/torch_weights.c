/* Helper of test_torch_weights.py: loads the weights argv[1] into a small GPT-2, saves them as
 * argv[2], and prints its logits for tokens that follow a rule. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

enum { VOCABULARY = 41, CONTEXT = 13, BATCH = 2 };

int main(int argc, char **argv)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *logits;
    ddp_gpt2_config c;
    ddp_error err;
    int32_t *tokens, *labels;
    const float *x;
    int i;

    if (argc != 3 || !g) return 2;
    memset(&c, 0, sizeof c);
    c.vocabulary = VOCABULARY, c.context = CONTEXT, c.batch = BATCH;
    c.layers = 3, c.heads = 3, c.dim = 24;
    ddp_gpt2(g, &c, &logits);
    if (ddp_graph_build(g)) return 1;
    memset(&err, 0, sizeof err);
    if (ddp_weights_load(g, argv[1], &err) || ddp_weights_save(g, argv[2], &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    tokens = (int32_t *)ddp_data(g, "tokens");
    labels = (int32_t *)ddp_data(g, "labels");
    for (i = 0; i < BATCH * CONTEXT; i++) {
        tokens[i] = (7 * i + 3) % VOCABULARY;
        labels[i] = 0;
    }
    if (ddp_evaluate(g)) return 1;
    x = ddp_output(g, logits);
    for (i = 0; i < BATCH * CONTEXT * VOCABULARY; i++) printf("%.9g\n", (double)x[i]);
    ddp_graph_free(g);
    return 0;
}
