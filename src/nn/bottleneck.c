/* A bottleneck: what a stage passes on, squeezed into a few floats for each row and widened again. */
#include "graph/graph_internal.h"
#include "nn/models.h"

/* Over the last dimension, or the channels of images. */
static long ddp__bottleneck_width(const ddp_node *x)
{
    const ddp_shape *s = &x->spec.out;

    return s->dims == 4 ? s->dim[1] : s->dims ? s->dim[s->dims - 1] : 0;
}

static ddp_node *ddp__squeeze(ddp_graph *g, ddp_node *x, long width, float deviation)
{
    if (!x) return NULL;
    x = x->spec.out.dims == 4 ? ddp_conv2d(g, x, width, 1, 1, 0, 1, 0) : ddp_linear_no_bias(g, x, width);
    ddp_init_normal(g, x, 0, deviation);
    return x;
}

/* The low-rank path, which is all there is at first, and a hidden layer as wide as the wide side, whose way out starts
 * at zero. */
static ddp_node *ddp__bottleneck_half(ddp_graph *g, ddp_node *x, ddp_node *normed, long hidden, long width)
{
    const float deviation = (float)(1 / sqrt((double)ddp__bottleneck_width(x)));
    ddp_node *low = ddp__squeeze(g, x, width, deviation);
    ddp_node *y = ddp_gelu(g, ddp__squeeze(g, normed, hidden, deviation));

    return ddp_add(g, low, ddp__squeeze(g, y, width, 0));
}

ddp_node *ddp_bottleneck_down(ddp_graph *g, ddp_node *x, long width)
{
    const long wide = x ? ddp__bottleneck_width(x) : 0;

    if (!g || g->error.code || !x) return NULL;
    if (width < 1 || width > wide) {
        ddp__fail(&g->error, DDP_ARG, "a bottleneck of width %ld in what is %ld wide: 1 to %ld are possible", width, wide, wide);
        return NULL;
    }
    ddp_layer_begin(g, "bottleneck.down");
    x = ddp__bottleneck_half(g, x, x->spec.out.dims == 4 ? x : ddp_layer_norm(g, x), wide, width);
    ddp_layer_end(g);
    return x;
}

ddp_node *ddp_bottleneck_up(ddp_graph *g, ddp_node *x, long width)
{
    if (!g || g->error.code || !x) return NULL;
    ddp_layer_begin(g, "bottleneck.up");
    x = ddp__bottleneck_half(g, x, x->spec.out.dims == 4 ? x : ddp_rms_norm(g, x, 0), width, width);
    ddp_layer_end(g);
    return x;
}

ddp_node *ddp_bottleneck(ddp_graph *g, ddp_node *x, long width)
{
    const long wide = x ? ddp__bottleneck_width(x) : 0;

    return ddp_bottleneck_up(g, ddp_bottleneck_down(g, x, width), wide);
}
