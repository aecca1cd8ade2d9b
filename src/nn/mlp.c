#include "base/platform.h"
#include "graph/graph_internal.h"
#include "nn/models.h"

ddp_node *ddp_mlp(ddp_graph *g, const ddp_mlp_config *c, ddp_node **logits)
{
    ddp_node *x, *labels;
    int k;

    if (logits) *logits = NULL;
    if (!g || g->error.code) return NULL;
    if (!c) {
        ddp__fail(&g->error, DDP_ARG, "mlp: no configuration was given, it is NULL");
        return NULL;
    }
    if (c->batch < 1 || c->inputs < 1 || c->classes < 2) {
        ddp__fail(&g->error, DDP_ARG,
                  "mlp: batch %ld and inputs %ld must be at least 1, classes %ld "
                  "at least 2",
                  c->batch, c->inputs, c->classes);
        return NULL;
    }
    x = ddp_input(g, "inputs", DDP_F32, c->batch, c->inputs);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, 1);

    for (k = 0; k < DDP_MLP_HIDDEN && c->hidden[k]; k++) {
        if (c->hidden[k] < 0) {
            ddp__fail(&g->error, DDP_ARG, "mlp: hidden layer %d is %ld wide, it must be at least 1",
                      k, c->hidden[k]);
            return NULL;
        }
        ddp_layer_begin(g, "hidden");
        x = ddp_relu(g, ddp_linear(g, x, c->hidden[k]));
        ddp_layer_end(g);
    }

    ddp_layer_begin(g, "head");
    x = ddp_linear(g, x, c->classes);
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
