#include "base/platform.h"
#include "graph/graph_internal.h"
#include "nn/models.h"

static int ddp__gpt2_check(const ddp_gpt2_config *c, ddp_error *err)
{
    if (!c) ddp__fail(err, DDP_ARG, "gpt2: no configuration was given, it is NULL");
    else if (c->vocabulary < 2 || c->vocabulary > INT32_MAX)
        ddp__fail(err, DDP_ARG, "gpt2: the vocabulary is %ld, it must be 2 to %d", c->vocabulary,
                  INT32_MAX);
    else if (c->context < 1 || c->layers < 1 || c->heads < 1 || c->dim < 1 || c->batch < 1)
        ddp__fail(err, DDP_ARG,
                  "gpt2: context %ld, layers %ld, heads %ld, dim %ld and batch %ld must all "
                  "be at least 1",
                  c->context, c->layers, c->heads, c->dim, c->batch);
    else if (c->dim % c->heads)
        ddp__fail(err, DDP_ARG, "gpt2: dim %ld cannot be cut into %ld heads: heads must divide dim",
                  c->dim, c->heads);
    else if (!(c->dropout >= 0 && c->dropout < 1))
        ddp__fail(err, DDP_ARG, "gpt2: dropout is %g, it must be at least 0 and below 1",
                  (double)c->dropout);
    return err->code == DDP_OK;
}

/* A linear operator that starts as GPT-2's do. */
static ddp_node *ddp__gpt2_linear(ddp_graph *g, ddp_node *x, long width, float deviation)
{
    x = ddp_linear(g, x, width);
    ddp_init_normal(g, x, 0, deviation);
    ddp_init_normal(g, x, 1, 0);
    return x;
}

/* No operator at all where there is nothing to drop. */
static ddp_node *ddp__gpt2_dropout(ddp_graph *g, ddp_node *x, float probability)
{
    return probability > 0 ? ddp_dropout(g, x, probability) : x;
}

static float ddp__gpt2_deviation(const ddp_gpt2_config *c)
{
    return c->deviation > 0 ? c->deviation : 0.02f;
}

/* x + projection(attention(norm(x))), then x + projection(gelu(widening(norm(x)))). */
static ddp_node *ddp__gpt2_block(ddp_graph *g, const ddp_gpt2_config *c, ddp_node *x, long number)
{
    float deviation = ddp__gpt2_deviation(c),
          onto_stream = deviation / (float)sqrt(2 * (double)c->layers);
    char name[48];
    ddp_node *y;

    snprintf(name, sizeof name, "h.%ld.attn", number);
    ddp_layer_begin(g, name);
    y = ddp__gpt2_linear(g, ddp_layer_norm(g, x), 3 * c->dim, deviation);
    y = ddp__gpt2_linear(g, ddp_attention(g, y, c->heads), c->dim, onto_stream);
    x = ddp_add(g, x, ddp__gpt2_dropout(g, y, c->dropout));
    ddp_layer_end(g);

    snprintf(name, sizeof name, "h.%ld.mlp", number);
    ddp_layer_begin(g, name);
    y = ddp__gpt2_linear(g, ddp_layer_norm(g, x), 4 * c->dim, deviation);
    y = ddp__gpt2_linear(g, ddp_gelu(g, y), c->dim, onto_stream);
    x = ddp_add(g, x, ddp__gpt2_dropout(g, y, c->dropout));
    ddp_layer_end(g);
    return x;
}

ddp_node *ddp_gpt2(ddp_graph *g, const ddp_gpt2_config *c, ddp_node **logits)
{
    ddp_node *tokens, *labels, *table, *x;
    long k;

    if (logits) *logits = NULL;
    if (!g || g->error.code || !ddp__gpt2_check(c, &g->error)) return NULL;
    tokens = ddp_input(g, "tokens", DDP_I32, c->batch, c->context);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, c->context);

    ddp_layer_begin(g, "embed");
    table = ddp_embedding(g, tokens, c->vocabulary, c->dim);
    ddp_init_normal(g, table, 0, ddp__gpt2_deviation(c));
    x = ddp_position(g, table);
    ddp_init_normal(g, x, 0, ddp__gpt2_deviation(c));
    x = ddp__gpt2_dropout(g, x, c->dropout);
    ddp_layer_end(g);

    for (k = 0; k < c->layers && x; k++) {
        if (c->recompute) ddp_recompute_begin(g);
        x = ddp__gpt2_block(g, c, x, k);
        if (c->recompute) ddp_recompute_end(g);
    }

    ddp_layer_begin(g, "head");
    x = ddp_linear_tied(g, ddp_layer_norm(g, x), table);
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
