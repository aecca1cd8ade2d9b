#include "base/platform.h"
#include "graph/graph_internal.h"
#include "nn/models.h"

/* Blocks of the four stages (He et al. 2015, Table 1); bottlenecks from 50 layers on. */
static const int ddp__resnet_blocks[][5] = {
    {18, 2, 2, 2, 2}, {34, 3, 4, 6, 3}, {50, 3, 4, 6, 3}, {101, 3, 4, 23, 3}, {152, 3, 8, 36, 3}};

/* The four counts of that depth, NULL if it is none of the published ones. */
static const int *ddp__resnet_stages(int depth)
{
    size_t i;

    for (i = 0; i < sizeof ddp__resnet_blocks / sizeof *ddp__resnet_blocks; i++)
        if (ddp__resnet_blocks[i][0] == depth) return ddp__resnet_blocks[i] + 1;
    return NULL;
}

static int ddp__resnet_check(const ddp_resnet_config *c, ddp_error *err)
{
    if (!c) ddp__fail(err, DDP_ARG, "resnet: no configuration was given, it is NULL");
    else if (!ddp__resnet_stages(c->depth))
        ddp__fail(err, DDP_ARG, "resnet: there is none of depth %d: take 18, 34, 50, 101 or 152",
                  c->depth);
    else if (c->batch < 1 || c->size < 1 || c->channels < 0 || c->classes < 2)
        ddp__fail(err, DDP_ARG, "resnet: batch %ld and size %ld must be at least 1, channels %ld "
                  "at least 0, classes %ld at least 2", c->batch, c->size, c->channels, c->classes);
    return err->code == DDP_OK;
}

/* Convolution and batch norm, in a layer of their own that the caller ends. Weights start normal
 * with variance 2 / (values that an input reaches): He et al. 2015, arXiv:1502.01852, Eq. 14. */
static ddp_node *ddp__resnet_conv(ddp_graph *g, ddp_node *x, const char *block, const char *part,
                                  long channels, long kernel, long stride)
{
    char name[64];

    snprintf(name, sizeof name, "%s%s", block, part);
    ddp_layer_begin(g, name);
    x = ddp_conv2d(g, x, channels, kernel, stride, kernel / 2, 1, 0);
    ddp_init_normal(g, x, 0, (float)sqrt(2 / ((double)kernel * (double)kernel * (double)channels)));
    return ddp_batch_norm2d(g, x);
}

/* The sum of a shortcut and of two 3x3 convolutions, or of a 1x1, a 3x3 with the stride, and a
 * 1x1 that widens four times. A shortcut that changes its shape is a 1x1 convolution. */
static ddp_node *ddp__resnet_block(ddp_graph *g, ddp_node *x, const char *name, int bottleneck,
                                   long width, long stride, int project)
{
    const long out = bottleneck ? 4 * width : width;
    ddp_node *y;

    if (bottleneck) {
        y = ddp_relu(g, ddp__resnet_conv(g, x, name, ".conv1", width, 1, 1));
        ddp_layer_end(g);
        y = ddp_relu(g, ddp__resnet_conv(g, y, name, ".conv2", width, 3, stride));
    } else {
        y = ddp_relu(g, ddp__resnet_conv(g, x, name, ".conv1", width, 3, stride));
    }
    ddp_layer_end(g);
    if (project) {
        x = ddp__resnet_conv(g, x, name, ".downsample", out, 1, stride);
        ddp_layer_end(g);
    }
    y = bottleneck ? ddp__resnet_conv(g, y, name, ".conv3", out, 1, 1)
                   : ddp__resnet_conv(g, y, name, ".conv2", out, 3, 1);
    y = ddp_relu(g, ddp_add(g, y, x));
    ddp_layer_end(g);
    return y;
}

static ddp_node *ddp__resnet_stem(ddp_graph *g, ddp_node *x, int cifar)
{
    x = ddp_relu(g, ddp__resnet_conv(g, x, "conv1", "", 64, cifar ? 3 : 7, cifar ? 1 : 2));
    if (!cifar) x = ddp_max_pool2d(g, x, 3, 2, 1);
    ddp_layer_end(g);
    return x;
}

ddp_node *ddp_resnet(ddp_graph *g, const ddp_resnet_config *c, ddp_node **logits)
{
    const int bottleneck = c && c->depth >= 50;
    ddp_node *x, *labels;
    ddp_shape image;
    char name[48];
    int stage, k;

    if (logits) *logits = NULL;
    if (!g || g->error.code || !ddp__resnet_check(c, &g->error)) return NULL;
    memset(&image, 0, sizeof image);
    image.dims = 4;
    image.dim[0] = c->batch;
    image.dim[1] = c->channels ? c->channels : 3;
    image.dim[2] = image.dim[3] = c->size;
    x = ddp_input_shape(g, "inputs", DDP_F32, &image);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, 1);

    x = ddp__resnet_stem(g, x, c->cifar);
    for (stage = 0; stage < 4; stage++) {
        for (k = 0; k < ddp__resnet_stages(c->depth)[stage]; k++) {
            snprintf(name, sizeof name, "layer%d.%d", stage + 1, k);
            if (c->recompute) ddp_recompute_begin(g);
            x = ddp__resnet_block(g, x, name, bottleneck, 64L << stage, stage > 0 && k == 0 ? 2 : 1,
                                  k == 0 && (stage > 0 || bottleneck));
            if (c->recompute) ddp_recompute_end(g);
        }
    }

    ddp_layer_begin(g, "head");
    x = ddp_linear(g, ddp_global_avg_pool2d(g, x), c->classes);
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}
