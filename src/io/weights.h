/* Weights of a model in a safetensors file, under the names that other libraries use. */
#ifndef DDP_IO_WEIGHTS_H
#define DDP_IO_WEIGHTS_H

#include "graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names in the file:
 *   ddp_gpt2    of the transformers library: wte.weight, wpe.weight, h.0.ln_1.weight,
 *               h.0.attn.c_attn.weight, ..., ln_f.bias. Matrices of linear layers lie transposed,
 *               as its Conv1D keeps them. Also read: names behind "transformer."; attention masks
 *               (h.0.attn.bias) and a lm_head.weight equal to wte.weight are passed over
 *   ddp_resnet, ddp_vgg    of torchvision: conv1.weight, bn1.running_mean, layer1.0.conv1.weight,
 *               layer2.0.downsample.0.weight, fc.bias; features.0.weight, classifier.6.bias.
 *               num_batches_tracked beside running statistics is passed over. Other sizes than
 *               224 give the first linear layer of VGG other columns than torchvision's, whose
 *               pooling before it always makes 7 x 7
 *   any other   LAYER.weight, or LAYER.OPERATOR.weight where a layer has several operators with
 *               parameters, LAYER.OPERATOR.1.weight for the second of a kind
 *
 * ddp_weights_load - after ddp_graph_build: every parameter and buffer from the file; F32, F64, F16
 * or BF16. All is checked before the first is changed: a tensor that is missing, not of this
 * model, of another shape or no float is an error (DDP_FORMAT) that names file and tensor. Only a
 * disk that fails half way through (DDP_IO) leaves a mixture. With a context, load before
 * ddp_set_optimizer and on rank 0 alone, if you like: the session starts from rank 0's.
 * ddp_weights_save - writes them as F32, whole or not at all, __metadata__ {"format": "pt"}. */
DDP_API ddp_status ddp_weights_load(ddp_graph *g, const char *path, ddp_error *err);
DDP_API ddp_status ddp_weights_save(const ddp_graph *g, const char *path, ddp_error *err);

/* ddp_weights_describe - name and shape, as in the file, of array number index >= 0 of a model,
 * built or not. Returns 0 behind the last. */
DDP_API int ddp_weights_describe(const ddp_graph *g, int index, char *name, size_t room,
                                 ddp_shape *shape);

#ifdef __cplusplus
}
#endif

#endif /* DDP_IO_WEIGHTS_H */
