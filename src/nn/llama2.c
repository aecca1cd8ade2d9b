#include "base/platform.h"
#include "graph/graph_internal.h"
#include "nn/models.h"

static long ddp__llama2_kv_heads(const ddp_llama2_config *c)
{
    return c->kv_heads ? c->kv_heads : c->heads;
}

static long ddp__llama2_hidden(const ddp_llama2_config *c)
{
    return c->hidden ? c->hidden : (8 * c->dim / 3 + 63) / 64 * 64;
}

static int ddp__llama2_check(const ddp_llama2_config *c, ddp_error *err)
{
    if (!c) ddp__fail(err, DDP_ARG, "llama2: no configuration was given, it is NULL");
    else if (c->vocabulary < 2 || c->vocabulary > INT32_MAX)
        ddp__fail(err, DDP_ARG, "llama2: the vocabulary is %ld, it must be 2 to %d", c->vocabulary,
                  INT32_MAX);
    else if (c->context < 1 || c->layers < 1 || c->heads < 1 || c->dim < 1 || c->batch < 1)
        ddp__fail(err, DDP_ARG, "llama2: context %ld, layers %ld, heads %ld, dim %ld and batch "
                  "%ld must all be at least 1", c->context, c->layers, c->heads, c->dim, c->batch);
    else if (c->kv_heads < 0 || c->hidden < 0)
        ddp__fail(err, DDP_ARG, "llama2: kv_heads %ld and hidden %ld must not be negative; 0 "
                  "takes the usual", c->kv_heads, c->hidden);
    else if (c->dim % c->heads || c->dim / c->heads % 2)
        ddp__fail(err, DDP_ARG, "llama2: dim %ld cannot be cut into %ld heads of an even width",
                  c->dim, c->heads);
    else if (c->heads % ddp__llama2_kv_heads(c))
        ddp__fail(err, DDP_ARG, "llama2: %ld heads cannot share %ld heads of keys and values: "
                  "kv_heads must divide heads", c->heads, c->kv_heads);
    return err->code == DDP_OK;
}

static float ddp__llama2_deviation(const ddp_llama2_config *c)
{
    return c->deviation > 0 ? c->deviation : 0.02f;
}

static ddp_node *ddp__llama2_linear(ddp_graph *g, ddp_node *x, long width, float deviation)
{
    x = ddp_linear_no_bias(g, x, width);
    ddp_init_normal(g, x, 0, deviation);
    return x;
}

/* x + projection(attention(rope(norm(x)))), then x + projection(swiglu(widening(norm(x)))). */
static ddp_node *ddp__llama2_block(ddp_graph *g, const ddp_llama2_config *c, ddp_node *x,
                                   long number)
{
    const float deviation = ddp__llama2_deviation(c);
    const float onto_stream = deviation / (float)sqrt(2 * (double)c->layers);
    const long kv_heads = ddp__llama2_kv_heads(c), hidden = ddp__llama2_hidden(c);
    const long head = c->dim / c->heads;
    char name[48];
    ddp_node *y;

    snprintf(name, sizeof name, "layers.%ld.attn", number);
    ddp_layer_begin(g, name);
    y = ddp__llama2_linear(g, ddp_rms_norm(g, x, c->eps), c->dim + 2 * kv_heads * head, deviation);
    y = ddp_rope(g, y, c->heads, kv_heads, c->theta);
    y = ddp_attention_grouped(g, y, c->heads, kv_heads);
    x = ddp_add(g, x, ddp__llama2_linear(g, y, c->dim, onto_stream));
    ddp_layer_end(g);

    snprintf(name, sizeof name, "layers.%ld.mlp", number);
    ddp_layer_begin(g, name);
    y = ddp__llama2_linear(g, ddp_rms_norm(g, x, c->eps), 2 * hidden, deviation);
    x = ddp_add(g, x, ddp__llama2_linear(g, ddp_swiglu(g, y), c->dim, onto_stream));
    ddp_layer_end(g);
    return x;
}

ddp_node *ddp_llama2(ddp_graph *g, const ddp_llama2_config *c, ddp_node **logits)
{
    ddp_node *tokens, *labels, *table, *x;
    long k;

    if (logits) *logits = NULL;
    if (!g || g->error.code || !ddp__llama2_check(c, &g->error)) return NULL;
    tokens = ddp_input(g, "tokens", DDP_I32, c->batch, c->context);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, c->context);

    ddp_layer_begin(g, "embed");
    x = table = ddp_embedding(g, tokens, c->vocabulary, c->dim);
    ddp_init_normal(g, table, 0, ddp__llama2_deviation(c));
    ddp_layer_end(g);

    for (k = 0; k < c->layers && x; k++) {
        if (c->recompute) ddp_recompute_begin(g);
        x = ddp__llama2_block(g, c, x, k);
        if (c->recompute) ddp_recompute_end(g);
    }

    ddp_layer_begin(g, "head");
    x = ddp_rms_norm(g, x, c->eps);
    x = c->tied ? ddp_linear_tied(g, x, table)
                : ddp__llama2_linear(g, x, c->vocabulary, ddp__llama2_deviation(c));
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
