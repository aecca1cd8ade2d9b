/* Ready-made models, built from the public operators of a graph. */
#pragma once

#include "graph/graph.h"

/* recompute, a field of the models below: 1 makes each block a segment of ddp_recompute_begin. The training
 * is the same bit for bit (but for the rounding of a language model's head where it has several micro-batches
 * a step), takes less memory for activations, and longer by at most one forward pass, a third of a step. */

/* GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019). */
typedef struct ddp_gpt2_config {
    long vocabulary; /* tokens */
    long context;    /* sequence length T */
    long layers;     /* transformer blocks */
    long heads;      /* divides dim */
    long dim;        /* width C of the residual stream; the MLP is 4 C wide */
    long batch;      /* sequences B per micro-batch */
    float dropout;   /* of the embedding and of both branches of a block, 0 <= p < 1 */
    float deviation; /* of the initial parameters; 0 = GPT-2's 0.02; best about 0.8 / sqrt(dim) for 64 to
                         256 */
    int recompute;   /* 1: drop the activations of each transformer block, see above */
} ddp_gpt2_config;

/* Llama 2 (Touvron et al. 2023, arXiv:2307.09288). */
typedef struct ddp_llama2_config {
    long vocabulary; /* tokens */
    long context;    /* sequence length T */
    long layers;     /* transformer blocks */
    long heads;      /* of queries; divides dim into an even width */
    long kv_heads;   /* of keys and values, divides heads; 0 = heads */
    long dim;        /* width C of the residual stream */
    long hidden;     /* width of the MLP; 0 = 8/3 dim, rounded up to a multiple of 64 */
    long batch;      /* sequences B per micro-batch */
    double eps;      /* of the RMS norms; 0 = 1e-5 */
    double theta;    /* base of the rotary angles; 0 = 10000 */
    int tied;        /* 1: the logits are taken with the token table */
    float deviation; /* of the initial parameters; 0 = 0.02 */
    int recompute;   /* 1: drop the activations of each transformer block, see above */
} ddp_llama2_config;

#define DDP_MLP_HIDDEN 8 /* most hidden layers */

/* A multi-layer perceptron with ReLU between its linear layers. */
typedef struct ddp_mlp_config {
    long batch;
    long inputs;                 /* features per sample */
    long hidden[DDP_MLP_HIDDEN]; /* widths, ended by 0 where fewer are wanted */
    long classes;
} ddp_mlp_config;

/* ResNet (He et al., Deep Residual Learning for Image Recognition, 2015, arXiv:1512.03385). */
typedef struct ddp_resnet_config {
    int depth;     /* 18, 34, 50, 101 or 152 */
    long classes;  /* at least 2 */
    long size;     /* height and width of an image; 224 in the paper */
    long channels; /* of an image, 0 = 3 */
    long batch;    /* images per micro-batch */
    int cifar;     /* 1: for small images, begins with a 3x3 convolution, not with a 7x7 of stride 2 and
                      pooling */
    int recompute; /* 1: drop the activations of each residual block, see above */
} ddp_resnet_config;

/* VGG (Simonyan and Zisserman, Very Deep Convolutional Networks, 2014, arXiv:1409.1556). */
typedef struct ddp_vgg_config {
    int depth;     /* 11, 13, 16 or 19 */
    long classes;  /* at least 2 */
    long size;     /* height and width of an image, at least 32; 224 in the paper */
    long channels; /* of an image, 0 = 3 */
    long batch;    /* images per micro-batch */
    float dropout; /* after both hidden linear layers, 0 <= p < 1; 0.5 in the paper */
    int recompute; /* 1: drop the activations of each block of convolutions, see above */
} ddp_vgg_config;

/* ddp_gpt2 - adds the model to g and returns its loss, the mean cross-entropy over B T tokens.
 *
 * Inputs: "tokens" and "labels", int32 (B, T). Layers (units of synchronisation): "embed", then "h.0.attn",
 * "h.0.mlp", "h.1.attn", ..., "head" (the last layer norm; the logits are taken with the token table of
 * "embed"). *logits, if asked for, is the node (B, T, vocabulary); if not (logits NULL), they never exist
 * whole on a GPU or with c->recompute, where that saves memory. Parameters start as GPT-2's: normal with
 * c->deviation, the two projections onto the residual stream with deviation / sqrt(2 layers), biases 0. NULL
 * on error (a size that is not positive, heads that do not divide dim, a dropout outside [0, 1), an earlier
 * error of g); ddp_graph_error has the sentence. */
DDP_API ddp_node *ddp_gpt2(ddp_graph *g, const ddp_gpt2_config *c, ddp_node **logits);

/* ddp_llama2 - adds the model to g and returns its loss, the mean cross-entropy over B T tokens.
 *
 * Inputs and *logits as of ddp_gpt2. Layers: "embed", then "layers.0.attn", "layers.0.mlp", ..., "head" (the
 * last norm and, unless tied, the matrix of the logits). No biases. The matrices of queries, keys and values
 * are one weight, their rows in this order; likewise the MLP's gate and up. Rotary angles pair column i of a
 * head with column d/2 + i, as the published weights in the form of the transformers library do. Parameters
 * start as ddp_gpt2's, norms at 1. NULL on error (a size that is not positive, heads that do not fit);
 * ddp_graph_error has the sentence. */
DDP_API ddp_node *ddp_llama2(ddp_graph *g, const ddp_llama2_config *c, ddp_node **logits);

/* ddp_mlp - adds a perceptron to g and returns its loss. Inputs: "inputs", float (batch, inputs), and
 * "labels", int32 (batch, 1). One layer per linear operator: "hidden", "hidden.1", ..., "head". *logits, if
 * asked for, is the node (batch, classes). Weights start uniform as the operator's rule has it. NULL and
 * errors as above. */
DDP_API ddp_node *ddp_mlp(ddp_graph *g, const ddp_mlp_config *c, ddp_node **logits);

/* ddp_resnet, ddp_vgg - add an image classifier to g and return its loss.
 * Inputs: "inputs", float (batch, channels, size, size), and "labels", int32 (batch, 1).
 * *logits, if asked for, is the node (batch, classes). NULL and errors as above.
 *
 * ResNet: one layer per convolution, with its batch norm: "conv1", "layer1.0.conv1", ...,
 * "layer1.0.downsample" where the shortcut changes its shape, ..., and "head"; the addition belongs to a
 * block's last convolution. A bottleneck's stride is that of its 3x3 convolution, as in today's published
 * weights; the paper's own text puts it into the first 1x1. VGG: one layer per convolution, "conv1_1" to
 * "conv5_4", the pooling in the last of a block, then "fc6", "fc7", "head". The first linear layer reads all
 * 512 (size / 32)^2 features, 25,088 at the paper's size. */
DDP_API ddp_node *ddp_resnet(ddp_graph *g, const ddp_resnet_config *c, ddp_node **logits);
DDP_API ddp_node *ddp_vgg(ddp_graph *g, const ddp_vgg_config *c, ddp_node **logits);

/* ddp_bottleneck - x (..., C), or images (B, C, H, W), squeezed into `width` channels and widened again, so
 * that a stage
 *   which ends in between passes on width floats instead of C (after ResBM, arXiv:2604.11947). Two layers of
 *   their own, ddp_bottleneck_down and ddp_bottleneck_up, so it stands between layers:
 *       z = A x + D gelu(E norm(x))      A, D (width, C), E (C, C); layer norm
 *       y = B z + U gelu(V norm(z))      B, V (C, width), U (C, C); RMS norm; images without either
 *   A and B are the low-rank path; D and U start at 0, so that it is all there is at first. DDP_ARG unless 1
 *   <= width <= C.
 * ddp_bottleneck_up - width: that of the result. */
DDP_API ddp_node *ddp_bottleneck(ddp_graph *g, ddp_node *x, long width);
DDP_API ddp_node *ddp_bottleneck_down(ddp_graph *g, ddp_node *x, long width);
DDP_API ddp_node *ddp_bottleneck_up(ddp_graph *g, ddp_node *x, long width);
