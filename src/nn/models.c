/* Builds the ready-made models from graph operators: GPT-2, Llama 2, MLP, ResNet, VGG, and bottlenecks. */
#include "graph/graph_internal.h"
#include "nn/models.h"
#include "ops/ops.h"

/* ---- shared ---- */

/* Returns 1 if a model with this configuration can be added to g. Sets *logits to NULL. */
static int ddp__model_begin(ddp_graph *g, const char *model, const void *config, ddp_node **logits)
{
    if (logits) *logits = NULL;
    if (!g || g->error.code) return 0;
    if (!config) ddp__fail(&g->error, DDP_ARG, "%s: the configuration is NULL", model);
    return config != NULL;
}

/* Adds the loss of the logits x and ends the layer "head". */
static ddp_node *ddp__model_loss(ddp_graph *g, ddp_node *x, ddp_node *labels, ddp_node **logits)
{
    if (logits) *logits = x;
    x = ddp_cross_entropy(g, x, labels);
    ddp_layer_end(g);
    return x;
}

static int ddp__model_dropout_ok(const char *model, float dropout, ddp_error *err)
{
    if (dropout >= 0 && dropout < 1) return 1;
    ddp__fail(err, DDP_ARG, "%s: dropout is %g, it must be at least 0 and below 1", model, (double)dropout);
    return 0;
}

/* Adds dropout, or no operator if the probability is 0. */
static ddp_node *ddp__model_dropout(ddp_graph *g, ddp_node *x, float probability)
{
    return probability > 0 ? ddp_dropout(g, x, probability) : x;
}

/* Adds a linear operator whose weight starts with that standard deviation and whose bias starts with 0. */
static ddp_node *ddp__model_linear(ddp_graph *g, ddp_node *x, long width, float deviation)
{
    x = ddp_linear(g, x, width);
    ddp_init_normal(g, x, 0, deviation);
    ddp_init_normal(g, x, 1, 0);
    return x;
}

/* ---- language models ---- */

static int ddp__language_check(const char *model, long vocabulary, long context, long layers, long heads,
                               long dim, long batch, ddp_error *err)
{
    if (vocabulary < 2 || vocabulary > INT32_MAX)
        ddp__fail(err, DDP_ARG, "%s: the vocabulary is %ld, it must be 2 to %d", model, vocabulary,
                  INT32_MAX);
    else if (context < 1 || layers < 1 || heads < 1 || dim < 1 || batch < 1)
        ddp__fail(err, DDP_ARG,
                  "%s: context %ld, layers %ld, heads %ld, dim %ld and batch %ld "
                  "must all be at least 1",
                  model, context, layers, heads, dim, batch);
    return err->code == DDP_OK;
}

/* Standard deviation for the projections onto the residual stream, two per block. */
static float ddp__language_onto_stream(float deviation, long layers)
{
    return deviation / (float)sqrt(2 * (double)layers);
}

static float ddp__language_deviation(float given) { return given > 0 ? given : 0.02f; }

/* Adds the loss of x and ends the layer "head". The weight of the logits is the token table, or a separate
 * matrix with that initial deviation. If the caller does not need the logits, they are computed in chunks
 * where that saves memory. On the CPU, where chunks are slower, only with recompute. */
static ddp_node *ddp__language_loss(ddp_graph *g, ddp_node *x, ddp_node *table, long vocabulary,
                                    float deviation, int recompute, ddp_node *labels, ddp_node **logits)
{
    const long rows = x ? ddp_shape_rows(&x->spec.out) : 0,
               dim = x ? x->spec.out.dim[x->spec.out.dims - 1] : 0;
    const int whole = logits || !(recompute || ddp__graph_backend(g)) ||
                      (size_t)rows * g->element <= (size_t)(dim + ddp__head_chunk(rows)) * sizeof(float);

    x = !whole  ? ddp_linear_cross_entropy(g, x, labels, vocabulary, table)
        : table ? ddp_linear_tied(g, x, table)
                : ddp_linear_no_bias(g, x, vocabulary);
    if (!table) ddp_init_normal(g, x, 0, deviation);
    if (whole) return ddp__model_loss(g, x, labels, logits);
    ddp_layer_end(g);
    return x;
}

static int ddp__gpt2_check(const ddp_gpt2_config *c, ddp_error *err)
{
    if (!ddp__language_check("gpt2", c->vocabulary, c->context, c->layers, c->heads, c->dim, c->batch, err))
        return 0;
    if (c->dim % c->heads)
        ddp__fail(err, DDP_ARG, "gpt2: dim %ld cannot be cut into %ld heads: heads must divide dim", c->dim,
                  c->heads);
    return err->code == DDP_OK && ddp__model_dropout_ok("gpt2", c->dropout, err);
}

/* x + projection(attention(norm(x))), then x + projection(gelu(widening(norm(x)))). */
static ddp_node *ddp__gpt2_block(ddp_graph *g, const ddp_gpt2_config *c, ddp_node *x, long number)
{
    const float deviation = ddp__language_deviation(c->deviation);
    const float onto_stream = ddp__language_onto_stream(deviation, c->layers);
    char name[48];
    ddp_node *y;

    if (c->recompute) ddp_recompute_begin(g);
    snprintf(name, sizeof name, "h.%ld.attn", number);
    ddp_layer_begin(g, name);
    y = ddp__model_linear(g, ddp_layer_norm(g, x), 3 * c->dim, deviation);
    y = ddp__model_linear(g, ddp_attention(g, y, c->heads), c->dim, onto_stream);
    x = ddp_add(g, x, ddp__model_dropout(g, y, c->dropout));
    ddp_layer_end(g);

    snprintf(name, sizeof name, "h.%ld.mlp", number);
    ddp_layer_begin(g, name);
    y = ddp__model_linear(g, ddp_layer_norm(g, x), 4 * c->dim, deviation);
    y = ddp__model_linear(g, ddp_gelu(g, y), c->dim, onto_stream);
    x = ddp_add(g, x, ddp__model_dropout(g, y, c->dropout));
    ddp_layer_end(g);
    if (c->recompute) ddp_recompute_end(g);
    return x;
}

ddp_node *ddp_gpt2(ddp_graph *g, const ddp_gpt2_config *c, ddp_node **logits)
{
    ddp_node *tokens, *labels, *table, *x;

    if (!ddp__model_begin(g, "gpt2", c, logits) || !ddp__gpt2_check(c, &g->error)) return NULL;
    tokens = ddp_input(g, "tokens", DDP_I32, c->batch, c->context);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, c->context);

    ddp_layer_begin(g, "embed");
    table = ddp_embedding(g, tokens, c->vocabulary, c->dim);
    ddp_init_normal(g, table, 0, ddp__language_deviation(c->deviation));
    x = ddp_position(g, table);
    ddp_init_normal(g, x, 0, ddp__language_deviation(c->deviation));
    x = ddp__model_dropout(g, x, c->dropout);
    ddp_layer_end(g);

    for (long k = 0; k < c->layers && x; k++) x = ddp__gpt2_block(g, c, x, k);

    ddp_layer_begin(g, "head");
    return ddp__language_loss(g, ddp_layer_norm(g, x), table, c->vocabulary, 0, c->recompute, labels, logits);
}

static long ddp__llama2_kv_heads(const ddp_llama2_config *c) { return c->kv_heads ? c->kv_heads : c->heads; }

static int ddp__llama2_check(const ddp_llama2_config *c, ddp_error *err)
{
    if (!ddp__language_check("llama2", c->vocabulary, c->context, c->layers, c->heads, c->dim, c->batch, err))
        return 0;
    if (c->kv_heads < 0 || c->hidden < 0)
        ddp__fail(err, DDP_ARG,
                  "llama2: kv_heads %ld and hidden %ld must not be negative; 0 "
                  "takes the usual",
                  c->kv_heads, c->hidden);
    else if (c->dim % c->heads || c->dim / c->heads % 2)
        ddp__fail(err, DDP_ARG, "llama2: dim %ld cannot be cut into %ld heads of an even width", c->dim,
                  c->heads);
    else if (c->heads % ddp__llama2_kv_heads(c))
        ddp__fail(err, DDP_ARG,
                  "llama2: %ld heads cannot share %ld heads of keys and values: "
                  "kv_heads must divide heads",
                  c->heads, c->kv_heads);
    return err->code == DDP_OK;
}

static ddp_node *ddp__llama2_linear(ddp_graph *g, ddp_node *x, long width, float deviation)
{
    x = ddp_linear_no_bias(g, x, width);
    ddp_init_normal(g, x, 0, deviation);
    return x;
}

/* x + projection(attention(rope(norm(x)))), then x + projection(swiglu(widening(norm(x)))). */
static ddp_node *ddp__llama2_block(ddp_graph *g, const ddp_llama2_config *c, ddp_node *x, long number)
{
    const float deviation = ddp__language_deviation(c->deviation);
    const float onto_stream = ddp__language_onto_stream(deviation, c->layers);
    const long kv_heads = ddp__llama2_kv_heads(c), head = c->dim / c->heads;
    const long hidden = c->hidden ? c->hidden : (8 * c->dim / 3 + 63) / 64 * 64;
    char name[48];
    ddp_node *y;

    if (c->recompute) ddp_recompute_begin(g);
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
    if (c->recompute) ddp_recompute_end(g);
    return x;
}

ddp_node *ddp_llama2(ddp_graph *g, const ddp_llama2_config *c, ddp_node **logits)
{
    ddp_node *tokens, *labels, *table, *x;

    if (!ddp__model_begin(g, "llama2", c, logits) || !ddp__llama2_check(c, &g->error)) return NULL;
    tokens = ddp_input(g, "tokens", DDP_I32, c->batch, c->context);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, c->context);

    ddp_layer_begin(g, "embed");
    x = table = ddp_embedding(g, tokens, c->vocabulary, c->dim);
    ddp_init_normal(g, table, 0, ddp__language_deviation(c->deviation));
    ddp_layer_end(g);

    for (long k = 0; k < c->layers && x; k++) x = ddp__llama2_block(g, c, x, k);

    ddp_layer_begin(g, "head");
    x = ddp_rms_norm(g, x, c->eps);
    return ddp__language_loss(g, x, c->tied ? table : NULL, c->vocabulary,
                              ddp__language_deviation(c->deviation), c->recompute, labels, logits);
}

/* ---- multi-layer perceptron ---- */

ddp_node *ddp_mlp(ddp_graph *g, const ddp_mlp_config *c, ddp_node **logits)
{
    ddp_node *x, *labels;

    if (!ddp__model_begin(g, "mlp", c, logits)) return NULL;
    if (c->batch < 1 || c->inputs < 1 || c->classes < 2) {
        ddp__fail(&g->error, DDP_ARG,
                  "mlp: batch %ld and inputs %ld must be at least 1, classes "
                  "%ld at least 2",
                  c->batch, c->inputs, c->classes);
        return NULL;
    }
    x = ddp_input(g, "inputs", DDP_F32, c->batch, c->inputs);
    labels = ddp_input(g, "labels", DDP_I32, c->batch, 1);

    for (int k = 0; k < DDP_MLP_HIDDEN && c->hidden[k]; k++) {
        if (c->hidden[k] < 0) {
            ddp__fail(&g->error, DDP_ARG, "mlp: hidden layer %d is %ld wide, it must be at least 1", k,
                      c->hidden[k]);
            return NULL;
        }
        ddp_layer_begin(g, "hidden");
        x = ddp_relu(g, ddp_linear(g, x, c->hidden[k]));
        ddp_layer_end(g);
    }

    ddp_layer_begin(g, "head");
    return ddp__model_loss(g, ddp_linear(g, x, c->classes), labels, logits);
}

/* ---- image classifiers ---- */

/* Published depths, each with the sizes of its parts: numbers of residual blocks (He et al. 2015, Table 1,
 * with bottleneck blocks from depth 50 on), or of convolutions (Simonyan and Zisserman 2014, Table 1: A to
 * E). */
static const int ddp__resnet_blocks[][6] = {{18, 2, 2, 2, 2},   {34, 3, 4, 6, 3},   {50, 3, 4, 6, 3},
                                            {101, 3, 4, 23, 3}, {152, 3, 8, 36, 3}, {0, 0, 0, 0, 0}};
static const int ddp__vgg_convs[][6] = {
    {11, 1, 1, 2, 2, 2}, {13, 2, 2, 2, 2, 2}, {16, 2, 2, 3, 3, 3}, {19, 2, 2, 4, 4, 4}, {0, 0, 0, 0, 0, 0}};

/* The parts of that depth, or NULL if no such depth was published. */
static const int *ddp__parts_of(const int (*list)[6], int depth)
{
    for (; **list; list++)
        if (**list == depth) return *list + 1;
    return NULL;
}

/* Adds the inputs of an image classifier: returns the images, and the labels in *labels. */
static ddp_node *ddp__classifier_inputs(ddp_graph *g, long batch, long channels, long size, ddp_node **labels)
{
    const ddp_shape image = {4, {batch, channels ? channels : 3, size, size}};
    ddp_node *x = ddp_input_shape(g, "inputs", DDP_F32, &image);

    *labels = ddp_input(g, "labels", DDP_I32, batch, 1);
    return x;
}

static int ddp__resnet_check(const ddp_resnet_config *c, ddp_error *err)
{
    if (!ddp__parts_of(ddp__resnet_blocks, c->depth))
        ddp__fail(err, DDP_ARG, "resnet: there is no ResNet of depth %d: take 18, 34, 50, 101 or 152",
                  c->depth);
    else if (c->batch < 1 || c->size < 1 || c->channels < 0 || c->classes < 2)
        ddp__fail(err, DDP_ARG,
                  "resnet: batch %ld and size %ld must be at least 1, channels %ld "
                  "at least 0, classes %ld at least 2",
                  c->batch, c->size, c->channels, c->classes);
    return err->code == DDP_OK;
}

/* Adds a convolution and a batch norm in a new layer, which the caller ends. Weights start normal with
 * variance 2 / (number of outputs that an input reaches): He et al. 2015, arXiv:1502.01852, Eq. 14. */
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

/* Adds a residual block: the sum of a shortcut and of two 3x3 convolutions, or (bottleneck) of a 1x1, a
 * 3x3 with the stride, and a 1x1 with four times the width. A shortcut that changes its shape is a 1x1
 * convolution. */
static ddp_node *ddp__resnet_block(ddp_graph *g, ddp_node *x, const char *name, int bottleneck, long width,
                                   long stride, int project)
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

ddp_node *ddp_resnet(ddp_graph *g, const ddp_resnet_config *c, ddp_node **logits)
{
    const int bottleneck = c && c->depth >= 50, *blocks;
    ddp_node *x, *labels;
    char name[48];

    if (!ddp__model_begin(g, "resnet", c, logits) || !ddp__resnet_check(c, &g->error)) return NULL;
    blocks = ddp__parts_of(ddp__resnet_blocks, c->depth);
    x = ddp__classifier_inputs(g, c->batch, c->channels, c->size, &labels);

    x = ddp_relu(g, ddp__resnet_conv(g, x, "conv1", "", 64, c->cifar ? 3 : 7, c->cifar ? 1 : 2));
    if (!c->cifar) x = ddp_max_pool2d(g, x, 3, 2, 1);
    ddp_layer_end(g);
    for (int p = 0; p < 4; p++) {
        for (int k = 0; k < blocks[p]; k++) {
            snprintf(name, sizeof name, "layer%d.%d", p + 1, k);
            if (c->recompute) ddp_recompute_begin(g);
            x = ddp__resnet_block(g, x, name, bottleneck, 64L << p, p > 0 && k == 0 ? 2 : 1,
                                  k == 0 && (p > 0 || bottleneck));
            if (c->recompute) ddp_recompute_end(g);
        }
    }

    ddp_layer_begin(g, "head");
    x = ddp_linear(g, ddp_global_avg_pool2d(g, x), c->classes);
    return ddp__model_loss(g, x, labels, logits);
}

static int ddp__vgg_check(const ddp_vgg_config *c, ddp_error *err)
{
    if (!ddp__parts_of(ddp__vgg_convs, c->depth))
        ddp__fail(err, DDP_ARG, "vgg: there is no VGG of depth %d: take 11, 13, 16 or 19", c->depth);
    else if (c->size < 32)
        ddp__fail(err, DDP_ARG,
                  "vgg: images of %ld x %ld are too small: it halves them five "
                  "times, so the size must be at least 32",
                  c->size, c->size);
    else if (c->batch < 1 || c->channels < 0 || c->classes < 2)
        ddp__fail(err, DDP_ARG,
                  "vgg: batch %ld must be at least 1, channels %ld at least 0, "
                  "classes %ld at least 2",
                  c->batch, c->channels, c->classes);
    return err->code == DDP_OK && ddp__model_dropout_ok("vgg", c->dropout, err);
}

static ddp_node *ddp__vgg_hidden(ddp_graph *g, ddp_node *x, float dropout)
{
    return ddp__model_dropout(g, ddp_relu(g, ddp__model_linear(g, x, 4096, 0.01f)), dropout);
}

/* Convolutions start normal with variance 2 / (number of outputs that an input reaches), biases with 0.
 * The paper's initial deviation of 0.01 required layers pre-trained in a shallower net. */
ddp_node *ddp_vgg(ddp_graph *g, const ddp_vgg_config *c, ddp_node **logits)
{
    const int *convs;
    ddp_node *x, *labels;
    char name[48];

    if (!ddp__model_begin(g, "vgg", c, logits) || !ddp__vgg_check(c, &g->error)) return NULL;
    convs = ddp__parts_of(ddp__vgg_convs, c->depth);
    x = ddp__classifier_inputs(g, c->batch, c->channels, c->size, &labels);

    for (int p = 0; p < 5; p++) {
        const long channels = p < 3 ? 64L << p : 512;
        if (c->recompute) ddp_recompute_begin(g);
        for (int k = 0; k < convs[p]; k++) {
            snprintf(name, sizeof name, "conv%d_%d", p + 1, k + 1);
            ddp_layer_begin(g, name);
            x = ddp_conv2d(g, x, channels, 3, 1, 1, 1, 1);
            ddp_init_normal(g, x, 0, (float)sqrt(2 / (9.0 * (double)channels)));
            ddp_init_normal(g, x, 1, 0);
            x = ddp_relu(g, x);
            if (k == convs[p] - 1) x = ddp_max_pool2d(g, x, 2, 2, 0);
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
    return ddp__model_loss(g, ddp__model_linear(g, x, c->classes, 0.01f), labels, logits);
}

/* ---- bottleneck: a pipeline stage sends each row as a few floats, and the next stage expands it ---- */

/* Width of the last dimension, or number of channels of images. */
static long ddp__bottleneck_width(const ddp_node *x)
{
    const ddp_shape *s = &x->spec.out;

    return s->dims == 4 ? s->dim[1] : s->dims ? s->dim[s->dims - 1] : 0;
}

static ddp_node *ddp__squeeze(ddp_graph *g, ddp_node *x, long width, float deviation)
{
    if (!x) return NULL;
    if (x->spec.out.dims != 4) return ddp__llama2_linear(g, x, width, deviation);
    x = ddp_conv2d(g, x, width, 1, 1, 0, 1, 0);
    ddp_init_normal(g, x, 0, deviation);
    return x;
}

/* Adds one half as a layer: the low-rank path, plus a hidden layer as wide as the wide side. The hidden
 * layer's output weight starts at zero, so initially only the low-rank path contributes. */
static ddp_node *ddp__bottleneck_half(ddp_graph *g, const char *name, const char *norm, ddp_node *x,
                                      long hidden, long width)
{
    const float deviation = (float)(1 / sqrt((double)ddp__bottleneck_width(x)));
    ddp_node *y, *low;

    ddp_layer_begin(g, name);
    y = x->spec.out.dims == 4 ? x : ddp_apply(g, norm, 1, &x, 0, NULL, NULL);
    low = ddp__squeeze(g, x, width, deviation);
    y = ddp_gelu(g, ddp__squeeze(g, y, hidden, deviation));
    x = ddp_add(g, low, ddp__squeeze(g, y, width, 0));
    ddp_layer_end(g);
    return x;
}

ddp_node *ddp_bottleneck_down(ddp_graph *g, ddp_node *x, long width)
{
    const long wide = x ? ddp__bottleneck_width(x) : 0;

    if (!g || g->error.code || !x) return NULL;
    if (width < 1 || width > wide) {
        ddp__fail(&g->error, DDP_ARG,
                  "bottleneck of width %ld for an input of width %ld; the width must be from 1 to %ld", width,
                  wide, wide);
        return NULL;
    }
    return ddp__bottleneck_half(g, "bottleneck.down", "layer_norm", x, wide, width);
}

ddp_node *ddp_bottleneck_up(ddp_graph *g, ddp_node *x, long width)
{
    if (!g || g->error.code || !x) return NULL;
    return ddp__bottleneck_half(g, "bottleneck.up", "rms_norm", x, width, width);
}

ddp_node *ddp_bottleneck(ddp_graph *g, ddp_node *x, long width)
{
    const long wide = x ? ddp__bottleneck_width(x) : 0;

    return ddp_bottleneck_up(g, ddp_bottleneck_down(g, x, width), wide);
}
