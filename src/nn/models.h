/* Ready-made models, built from the public operators of a graph. */
#pragma once

#include "graph/graph.h"

/* The field `recompute` of the models below: 1 makes each block a segment of ddp_recompute_begin
 * (activation recomputation). This needs less memory for activations and adds at most one forward pass,
 * about a third of a step. Training is bit-identical, except for the rounding of a language model's head
 * with several micro-batches per step. */

/* GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019). */
typedef struct ddp_gpt2_config {
    long vocabulary; /* tokens */
    long context;    /* sequence length T */
    long layers;     /* transformer blocks */
    long heads;      /* number of attention heads, which divides dim */
    long dim;        /* width C of the residual stream. The MLP has width 4 C. */
    long batch;      /* sequences B per micro-batch */
    float dropout;   /* of the embedding and of both branches of a block, in [0, 1) */
    float deviation; /* of initial parameters (default: 0.02, as GPT-2). For dim 64 to 256, about 0.8 /
                        sqrt(dim) is best. */
    int recompute;   /* 1: recompute each transformer block, see above */
} ddp_gpt2_config;

/* Llama 2 (Touvron et al. 2023, arXiv:2307.09288). */
typedef struct ddp_llama2_config {
    long vocabulary; /* tokens */
    long context;    /* sequence length T */
    long layers;     /* transformer blocks */
    long heads;      /* query heads. dim / heads must be even. */
    long kv_heads;   /* key/value heads, which divide heads (default: heads) */
    long dim;        /* width C of the residual stream */
    long hidden;     /* width of the MLP (default: 8/3 dim, rounded up to a multiple of 64) */
    long batch;      /* sequences B per micro-batch */
    double eps;      /* of the RMS norms (default: 1e-5) */
    double theta;    /* base of the rotary angles (default: 10000) */
    int tied;        /* 1 if the token table is also the weight of the logits */
    float deviation; /* standard deviation of initial parameters (default: 0.02) */
    int recompute;   /* 1: recompute each transformer block, see above */
} ddp_llama2_config;

#define DDP_MLP_HIDDEN 8 /* maximum number of hidden layers */

/* A multi-layer perceptron with ReLU between its linear layers. */
typedef struct ddp_mlp_config {
    long batch;                  /* samples per micro-batch */
    long inputs;                 /* features per sample */
    long hidden[DDP_MLP_HIDDEN]; /* widths. 0 ends the list. */
    long classes;                /* number of classes, at least 2 */
} ddp_mlp_config;

/* ResNet (He et al., Deep Residual Learning for Image Recognition, 2015, arXiv:1512.03385). */
typedef struct ddp_resnet_config {
    int depth;     /* 18, 34, 50, 101 or 152 */
    long classes;  /* at least 2 */
    long size;     /* height and width of an image, or 224 in the paper */
    long channels; /* of an image (default: 3) */
    long batch;    /* images per micro-batch */
    int cifar; /* 1: for small images, starts with a 3x3 convolution instead of 7x7, stride 2 and pooling */
    int recompute; /* 1: recompute each residual block, see above */
} ddp_resnet_config;

/* VGG (Simonyan and Zisserman, Very Deep Convolutional Networks, 2014, arXiv:1409.1556). */
typedef struct ddp_vgg_config {
    int depth;     /* 11, 13, 16 or 19 */
    long classes;  /* at least 2 */
    long size;     /* height and width of an image, at least 32, or 224 in the paper */
    long channels; /* of an image (default: 3) */
    long batch;    /* images per micro-batch */
    float dropout; /* after both hidden linear layers, in [0, 1), or 0.5 in the paper */
    int recompute; /* 1: recompute each block of convolutions, see above */
} ddp_vgg_config;

/* ddp_gpt2 - adds GPT-2 to g and returns its loss, the mean cross-entropy over B T tokens.
 *
 * Inputs: "tokens" and "labels", int32 (B, T). Layers (units of synchronisation): "embed", then "h.0.attn",
 * "h.0.mlp", "h.1.attn", ..., "head". The head has the last layer norm. The token table of "embed" is the
 * weight of the logits. *logits receives the node (B, T, vocabulary). If logits is NULL, the logits never
 * exist as a whole on a GPU or with c->recompute, where that saves memory. Initial parameters are those of
 * GPT-2: normal with c->deviation, for the two projections onto the residual stream with deviation / sqrt(2
 * layers), and 0 for biases.
 *
 * Returns NULL on error (a size that is not positive, heads that do not divide dim, a dropout outside [0,
 * 1), an earlier error of g). ddp_graph_error has the message. */
DDP_API ddp_node *ddp_gpt2(ddp_graph *g, const ddp_gpt2_config *c, ddp_node **logits);

/* ddp_llama2 - adds Llama 2 to g and returns its loss, the mean cross-entropy over B T tokens.
 *
 * Inputs and *logits are those for ddp_gpt2. Layers: "embed", then "layers.0.attn", "layers.0.mlp", ...,
 * "head" (the last norm and, unless tied, the weight of the logits). There are no biases. The weights of
 * queries, keys and values are one matrix, with rows in this order. The gate and up weights of the MLP are
 * another. Rotary angles pair column i of a head with column d/2 + i, as in the published weights for the
 * transformers library. Initial parameters follow ddp_gpt2. Norms start at 1.
 *
 * Returns NULL on error (a size that is not positive, heads that do not fit). ddp_graph_error has the
 * message. */
DDP_API ddp_node *ddp_llama2(ddp_graph *g, const ddp_llama2_config *c, ddp_node **logits);

/* ddp_mlp - adds a multi-layer perceptron to g and returns its loss. Inputs: "inputs", float (batch, inputs),
 * and "labels", int32 (batch, 1). Each linear operator is a layer: "hidden", "hidden.1", ..., "head".
 * *logits, unless NULL, receives the node (batch, classes). Initial weights are uniform, by the rule of
 * ddp_linear. Returns NULL on error. ddp_graph_error has the message. */
DDP_API ddp_node *ddp_mlp(ddp_graph *g, const ddp_mlp_config *c, ddp_node **logits);

/* ddp_resnet - adds a ResNet image classifier to g and returns its loss. Inputs: "inputs", float (batch,
 * channels, size, size), and "labels", int32 (batch, 1). *logits, unless NULL, receives the node (batch,
 * classes). Each convolution with its batch norm is a layer: "conv1", "layer1.0.conv1", ...,
 * "layer1.0.downsample" if the shortcut changes its shape, ..., then "head". The addition belongs to the last
 * convolution of a block. A bottleneck block has its stride in the 3x3 convolution, as in today's published
 * weights. The paper's text puts it in the first 1x1. Returns NULL on error. ddp_graph_error has the
 * message. */
DDP_API ddp_node *ddp_resnet(ddp_graph *g, const ddp_resnet_config *c, ddp_node **logits);

/* ddp_vgg - adds a VGG image classifier to g and returns its loss, the mean cross-entropy over the batch.
 *
 * Inputs: "inputs", float (batch, channels, size, size), and "labels", int32 (batch, 1). *logits, unless
 * NULL, receives the node (batch, classes). Each convolution is a layer, "conv1_1" to "conv5_4". The pooling
 * belongs to the last one of a block. Then follow "fc6", "fc7" and "head". The first linear layer reads all
 * 512 (size / 32)^2 features, 25,088 at the paper's size.
 *
 * Returns NULL on error (a depth or size that is not supported, an earlier error of g). ddp_graph_error has
 * the message. */
DDP_API ddp_node *ddp_vgg(ddp_graph *g, const ddp_vgg_config *c, ddp_node **logits);

/* ddp_bottleneck - compresses x (..., C), or images (B, C, H, W), to `width` channels and expands it again.
 * A pipeline stage that ends in between sends width floats per position instead of C (after ResBM,
 * arXiv:2604.11947). It adds two layers, ddp_bottleneck_down and ddp_bottleneck_up, so call it between
 * layers:
 *     z = A x + D gelu(E norm(x))      A, D (width, C), E (C, C); layer norm
 *     y = B z + U gelu(V norm(z))      B, V (C, width), U (C, C); RMS norm; images without either
 * A and B are the low-rank path. D and U start at 0, so initially only that path contributes. Fails with
 * DDP_ARG unless 1 <= width <= C. */
DDP_API ddp_node *ddp_bottleneck(ddp_graph *g, ddp_node *x, long width);

/* ddp_bottleneck_down - adds the first half of a bottleneck: compresses x (..., C), or images (B, C, H, W),
 * to `width` channels, as a layer of its own: z = A x + D gelu(E norm(x)), with A, D (width, C) and E (C, C).
 * Returns z, or NULL on failure (DDP_ARG unless 1 <= width <= C). */
DDP_API ddp_node *ddp_bottleneck_down(ddp_graph *g, ddp_node *x, long width);

/* ddp_bottleneck_up - adds the second half of a bottleneck: expands z to `width` channels, as a layer of its
 * own: y = B z + U gelu(V norm(z)), with B, V (width, channels of z) and U (width, width). Returns y, or NULL
 * on failure (DDP_ARG for the width). */
DDP_API ddp_node *ddp_bottleneck_up(ddp_graph *g, ddp_node *x, long width);
