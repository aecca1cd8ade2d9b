#include "base/platform.h"
#include "graph/graph_internal.h"
#include "nn/models.h"

/* Convolutions of the five stages (Simonyan and Zisserman 2014, Table 1: A, B, D, E). */
static const int ddp__vgg_convs[][6] = {
    {11, 1, 1, 2, 2, 2}, {13, 2, 2, 2, 2, 2}, {16, 2, 2, 3, 3, 3}, {19, 2, 2, 4, 4, 4}};

/* The five counts of that depth, NULL if it is none of the published ones. */
static const int *ddp__vgg_stages(int depth)
{
    size_t i;

    for (i = 0; i < sizeof ddp__vgg_convs / sizeof *ddp__vgg_convs; i++)
        if (ddp__vgg_convs[i][0] == depth) return ddp__vgg_convs[i] + 1;
    return NULL;
}

static int ddp__vgg_check(const ddp_vgg_config *c, ddp_error *err)
{
    if (!c) ddp__fail(err, DDP_ARG, "vgg: no configuration was given, it is NULL");
    else if (!ddp__vgg_stages(c->depth))
        ddp__fail(err, DDP_ARG, "vgg: there is none of depth %d: take 11, 13, 16 or 19", c->depth);
    else if (c->size < 32)
        ddp__fail(err, DDP_ARG, "vgg: images of %ld x %ld are too small: it halves them five "
                  "times, so the size must be at least 32", c->size, c->size);
    else if (c->batch < 1 || c->channels < 0 || c->classes < 2)
        ddp__fail(err, DDP_ARG, "vgg: batch %ld must be at least 1, channels %ld at least 0, "
                  "classes %ld at least 2", c->batch, c->channels, c->classes);
    else if (!(c->dropout >= 0 && c->dropout < 1))
        ddp__fail(err, DDP_ARG, "vgg: dropout is %g, it must be at least 0 and below 1",
                  (double)c->dropout);
    return err->code == DDP_OK;
}

/* Weights start normal with variance 2 / (values that an input reaches), biases 0. The paper's
 * own start, deviation 0.01 everywhere, needed layers trained in a shallower net before. */
static ddp_node *ddp__vgg_conv(ddp_graph *g, ddp_node *x, long channels)
{
    x = ddp_conv2d(g, x, channels, 3, 1, 1, 1, 1);
    ddp_init_normal(g, x, 0, (float)sqrt(2 / (9.0 * (double)channels)));
    ddp_init_normal(g, x, 1, 0);
    return ddp_relu(g, x);
}

static ddp_node *ddp__vgg_linear(ddp_graph *g, ddp_node *x, long width)
{
    x = ddp_linear(g, x, width);
    ddp_init_normal(g, x, 0, 0.01f);
    ddp_init_normal(g, x, 1, 0);
    return x;
}

/* A hidden linear layer; no dropout operator where there is nothing to drop. */
static ddp_node *ddp__vgg_hidden(ddp_graph *g, ddp_node *x, float dropout)
{
    x = ddp_relu(g, ddp__vgg_linear(g, x, 4096));
    return dropout > 0 ? ddp_dropout(g, x, dropout) : x;
}

ddp_node *ddp_vgg(ddp_graph *g, const ddp_vgg_config *c, ddp_node **logits)
{
    ddp_node *x, *labels;
    ddp_shape image;
    char name[48];
    int stage, k;

    if (logits) *logits = NULL;
    if (!g || g->error.code || !ddp__vgg_check(c, &g->error)) return NULL;
    memset(&image, 0, sizeof image);
    image.dims = 4;
    image.dim[0] = c->batch;
    image.dim[1] = c->channels ? c->channels : 3;
    image.dim[2] = image.dim[3] = c->size;
    x = ddp_input_shape(g, "inputs", DDP_F32, &image);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, 1);

    for (stage = 0; stage < 5; stage++) {
        const int convs = ddp__vgg_stages(c->depth)[stage];

        if (c->recompute) ddp_recompute_begin(g);
        for (k = 0; k < convs; k++) {
            snprintf(name, sizeof name, "conv%d_%d", stage + 1, k + 1);
            ddp_layer_begin(g, name);
            x = ddp__vgg_conv(g, x, stage < 3 ? 64L << stage : 512);
            if (k == convs - 1) x = ddp_max_pool2d(g, x, 2, 2, 0);
            ddp_layer_end(g);
        }
        if (c->recompute) ddp_recompute_end(g);
    }

    ddp_layer_begin(g, "fc6");
    x = ddp__vgg_hidden(g, ddp_flatten(g, x), c->dropout);
    ddp_layer_end(g);
    ddp_layer_begin(g, "fc7");
    x = ddp__vgg_hidden(g, x, c->dropout);
    ddp_layer_end(g);
    ddp_layer_begin(g, "head");
    x = ddp__vgg_linear(g, x, c->classes);
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
