/* The table of built-in operators, and one builder function for each. */
#include "graph/graph_internal.h"
#include "ops/ops.h"

const ddp_op *ddp__builtin_op(const char *name)
{
    typedef const ddp_op *(*family)(void);
    static const family families[] = {ddp__linear_ops,    ddp__embedding_ops,   ddp__norm_ops,
                                      ddp__attention_ops, ddp__elementwise_ops, ddp__loss_ops,
                                      ddp__conv_ops,      ddp__pool_ops};
    const ddp_op *op;

    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        for (op = families[f](); op->name; op++)
            if (!strcmp(op->name, name)) return op;
    return NULL;
}

ddp_graph *ddp_graph_new(ddp_ctx *d) { return ddp__graph_new(d, ddp__builtin_op); }

/* ---- builders: each passes its arguments to ddp_apply ---- */

/* Builds an operator with one input. args: number of arguments that follow, each a double. */
static ddp_node *ddp__build(ddp_graph *g, const char *op, ddp_node *x, int args, ...)
{
    double arg[DDP_OP_ARGS] = {0};
    va_list list;

    va_start(list, args);
    for (int i = 0; i < args; i++) arg[i] = va_arg(list, double);
    va_end(list);
    return ddp_apply(g, op, 1, &x, args, arg, NULL);
}

static ddp_node *ddp__build2(ddp_graph *g, const char *op, ddp_node *a, ddp_node *b)
{
    ddp_node *in[2] = {a, b};

    return ddp_apply(g, op, 2, in, 0, NULL, NULL);
}

ddp_node *ddp_linear(ddp_graph *g, ddp_node *x, long width)
{
    return ddp__build(g, "linear", x, 1, (double)width);
}

ddp_node *ddp_linear_no_bias(ddp_graph *g, ddp_node *x, long width)
{
    return ddp__build(g, "linear_no_bias", x, 1, (double)width);
}

ddp_node *ddp_linear_tied(ddp_graph *g, ddp_node *x, ddp_node *embedding)
{
    if (g && !embedding && !g->error.code)
        ddp__fail(&g->error, DDP_ARG, "ddp_linear_tied: the embedding node is NULL");
    return ddp_apply(g, "linear_tied", 1, &x, 0, NULL, embedding);
}

ddp_node *ddp_embedding(ddp_graph *g, ddp_node *tokens, long vocabulary, long width)
{
    return ddp__build(g, "embedding", tokens, 2, (double)vocabulary, (double)width);
}

ddp_node *ddp_position(ddp_graph *g, ddp_node *x) { return ddp__build(g, "position", x, 0); }
ddp_node *ddp_layer_norm(ddp_graph *g, ddp_node *x) { return ddp__build(g, "layer_norm", x, 0); }

ddp_node *ddp_attention(ddp_graph *g, ddp_node *x, long heads)
{
    return ddp__build(g, "attention", x, 1, (double)heads);
}

ddp_node *ddp_rms_norm(ddp_graph *g, ddp_node *x, double eps) { return ddp__build(g, "rms_norm", x, 1, eps); }

ddp_node *ddp_attention_grouped(ddp_graph *g, ddp_node *x, long heads, long kv_heads)
{
    return ddp__build(g, "attention", x, 2, (double)heads, (double)kv_heads);
}

ddp_node *ddp_rope(ddp_graph *g, ddp_node *x, long heads, long kv_heads, double theta)
{
    return ddp__build(g, "rope", x, 3, (double)heads, (double)kv_heads, theta);
}

ddp_node *ddp_swiglu(ddp_graph *g, ddp_node *x) { return ddp__build(g, "swiglu", x, 0); }
ddp_node *ddp_gelu(ddp_graph *g, ddp_node *x) { return ddp__build(g, "gelu", x, 0); }
ddp_node *ddp_relu(ddp_graph *g, ddp_node *x) { return ddp__build(g, "relu", x, 0); }
ddp_node *ddp_add(ddp_graph *g, ddp_node *a, ddp_node *b) { return ddp__build2(g, "add", a, b); }

ddp_node *ddp_dropout(ddp_graph *g, ddp_node *x, float probability)
{
    return ddp__build(g, "dropout", x, 1, (double)probability);
}

ddp_node *ddp_cross_entropy(ddp_graph *g, ddp_node *logits, ddp_node *labels)
{
    return ddp__build2(g, "cross_entropy", logits, labels);
}

ddp_node *ddp_linear_cross_entropy(ddp_graph *g, ddp_node *x, ddp_node *labels, long width,
                                   ddp_node *embedding)
{
    ddp_node *in[2] = {x, labels};
    const double arg = embedding ? 0 : (double)width;

    return ddp_apply(g, "linear_cross_entropy", 2, in, 1, &arg, embedding);
}

ddp_node *ddp_conv2d(ddp_graph *g, ddp_node *x, long channels, long kernel, long stride, long padding,
                     long groups, int bias)
{
    return ddp__build(g, "conv2d", x, 6, (double)channels, (double)kernel, (double)stride, (double)padding,
                      (double)groups, bias ? 1.0 : 0.0);
}

ddp_node *ddp_batch_norm2d(ddp_graph *g, ddp_node *x) { return ddp__build(g, "batch_norm2d", x, 0); }

ddp_node *ddp_max_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding)
{
    return ddp__build(g, "max_pool2d", x, 3, (double)kernel, (double)stride, (double)padding);
}

ddp_node *ddp_avg_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding)
{
    return ddp__build(g, "avg_pool2d", x, 3, (double)kernel, (double)stride, (double)padding);
}

ddp_node *ddp_global_avg_pool2d(ddp_graph *g, ddp_node *x)
{
    return ddp__build(g, "global_avg_pool2d", x, 0);
}
ddp_node *ddp_flatten(ddp_graph *g, ddp_node *x) { return ddp__build(g, "flatten", x, 0); }
