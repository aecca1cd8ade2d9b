/* One builder per built-in operator: it collects the arguments for ddp_apply. */
#include "base/platform.h"
#include "graph/graph_internal.h"

static ddp_node *ddp__build1(ddp_graph *g, const char *op, ddp_node *x, int args, double arg0,
                             double arg1, ddp_node *tied)
{
    double arg[2];

    arg[0] = arg0;
    arg[1] = arg1;
    return ddp_apply(g, op, 1, &x, args, arg, tied);
}

static ddp_node *ddp__build2(ddp_graph *g, const char *op, ddp_node *a, ddp_node *b)
{
    ddp_node *in[2];

    in[0] = a;
    in[1] = b;
    return ddp_apply(g, op, 2, in, 0, NULL, NULL);
}

ddp_node *ddp_linear(ddp_graph *g, ddp_node *x, long width)
{
    return ddp__build1(g, "linear", x, 1, (double)width, 0, NULL);
}

ddp_node *ddp_linear_no_bias(ddp_graph *g, ddp_node *x, long width)
{
    return ddp__build1(g, "linear_no_bias", x, 1, (double)width, 0, NULL);
}

ddp_node *ddp_linear_tied(ddp_graph *g, ddp_node *x, ddp_node *embedding)
{
    if (g && !embedding && !g->error.code)
        ddp__fail(&g->error, DDP_ARG, "ddp_linear_tied: the embedding node is NULL");
    return ddp__build1(g, "linear_tied", x, 0, 0, 0, embedding);
}

ddp_node *ddp_embedding(ddp_graph *g, ddp_node *tokens, long vocabulary, long width)
{
    return ddp__build1(g, "embedding", tokens, 2, (double)vocabulary, (double)width, NULL);
}

ddp_node *ddp_position(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "position", x, 0, 0, 0, NULL);
}

ddp_node *ddp_layer_norm(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "layer_norm", x, 0, 0, 0, NULL);
}

ddp_node *ddp_attention(ddp_graph *g, ddp_node *x, long heads)
{
    return ddp__build1(g, "attention", x, 1, (double)heads, 0, NULL);
}

ddp_node *ddp_rms_norm(ddp_graph *g, ddp_node *x, double eps)
{
    return ddp__build1(g, "rms_norm", x, 1, eps, 0, NULL);
}

ddp_node *ddp_attention_grouped(ddp_graph *g, ddp_node *x, long heads, long kv_heads)
{
    return ddp__build1(g, "attention", x, 2, (double)heads, (double)kv_heads, NULL);
}

ddp_node *ddp_rope(ddp_graph *g, ddp_node *x, long heads, long kv_heads, double theta)
{
    double arg[3];

    arg[0] = (double)heads;
    arg[1] = (double)kv_heads;
    arg[2] = theta;
    return ddp_apply(g, "rope", 1, &x, 3, arg, NULL);
}

ddp_node *ddp_swiglu(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "swiglu", x, 0, 0, 0, NULL);
}

ddp_node *ddp_gelu(ddp_graph *g, ddp_node *x) { return ddp__build1(g, "gelu", x, 0, 0, 0, NULL); }
ddp_node *ddp_relu(ddp_graph *g, ddp_node *x) { return ddp__build1(g, "relu", x, 0, 0, 0, NULL); }
ddp_node *ddp_add(ddp_graph *g, ddp_node *a, ddp_node *b) { return ddp__build2(g, "add", a, b); }

ddp_node *ddp_dropout(ddp_graph *g, ddp_node *x, float probability)
{
    return ddp__build1(g, "dropout", x, 1, (double)probability, 0, NULL);
}

ddp_node *ddp_cross_entropy(ddp_graph *g, ddp_node *logits, ddp_node *labels)
{
    return ddp__build2(g, "cross_entropy", logits, labels);
}

ddp_node *ddp_conv2d(ddp_graph *g, ddp_node *x, long channels, long kernel, long stride,
                     long padding, long groups, int bias)
{
    double arg[6];

    arg[0] = (double)channels;
    arg[1] = (double)kernel;
    arg[2] = (double)stride;
    arg[3] = (double)padding;
    arg[4] = (double)groups;
    arg[5] = bias != 0;
    return ddp_apply(g, "conv2d", 1, &x, 6, arg, NULL);
}

ddp_node *ddp_batch_norm2d(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "batch_norm2d", x, 0, 0, 0, NULL);
}

static ddp_node *ddp__build_pool(ddp_graph *g, const char *op, ddp_node *x, long kernel,
                                 long stride, long padding)
{
    double arg[3];

    arg[0] = (double)kernel;
    arg[1] = (double)stride;
    arg[2] = (double)padding;
    return ddp_apply(g, op, 1, &x, 3, arg, NULL);
}

ddp_node *ddp_max_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding)
{
    return ddp__build_pool(g, "max_pool2d", x, kernel, stride, padding);
}

ddp_node *ddp_avg_pool2d(ddp_graph *g, ddp_node *x, long kernel, long stride, long padding)
{
    return ddp__build_pool(g, "avg_pool2d", x, kernel, stride, padding);
}

ddp_node *ddp_global_avg_pool2d(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "global_avg_pool2d", x, 0, 0, 0, NULL);
}

ddp_node *ddp_flatten(ddp_graph *g, ddp_node *x)
{
    return ddp__build1(g, "flatten", x, 0, 0, 0, NULL);
}
