/* The operators that text models are made of, and which two of them run as one. */
#ifndef DDP_CUDA_TEXT_CUH
#define DDP_CUDA_TEXT_CUH

#include "cuda/attention.cuh"
#include "cuda/embedding.cuh"
#include "cuda/linear.cuh"
#include "cuda/loss.cuh"
#include "cuda/norm.cuh"

DDP__FAMILY(ddp__cuda_text_ops,
    {"linear", ddp__cuda_linear_forward, ddp__cuda_linear_backward, ddp__cuda_linear_scratch},
    {"linear_no_bias", ddp__cuda_linear_forward, ddp__cuda_linear_backward, NULL},
    {"linear_tied", ddp__cuda_linear_forward, ddp__cuda_linear_backward, NULL},
    DDP__ENTRY("embedding", ddp__cuda_embedding, ddp__cuda_embedding_scratch),
    DDP__ENTRY("position", ddp__cuda_position, NULL),
    {"layer_norm", ddp__cuda_norm_forward<0>, ddp__cuda_norm_backward<0>,
     ddp__cuda_norm_scratch},
    {"rms_norm", ddp__cuda_norm_forward<1>, ddp__cuda_norm_backward<1>, ddp__cuda_norm_scratch},
    DDP__ENTRY("attention", ddp__cuda_attention, ddp__cuda_attention_scratch),
    DDP__ENTRY("rope", ddp__cuda_rope, NULL),
    DDP__ENTRY("swiglu", ddp__cuda_swiglu, NULL),
    DDP__ENTRY("dropout", ddp__cuda_dropout, NULL),
    DDP__ENTRY("cross_entropy", ddp__cuda_loss, ddp__cuda_loss_scratch))

/* The residual stream and the norm that reads it, in one kernel; and from compute capability 9.0 on
 * a product and the gelu of it, from which older GPUs are said to gain nothing (not measured). */
static DDP__UNUSED const ddp_op_pair *ddp__cuda_pair_of(const ddp__cuda *dev, const char *first,
                                                        const char *second)
{
    static const ddp_op_pair layer_norm = {ddp__cuda_sum_norm_forward<0>,
                                           ddp__cuda_sum_norm_backward<0>},
                             rms_norm = {ddp__cuda_sum_norm_forward<1>,
                                         ddp__cuda_sum_norm_backward<1>},
                             gelu = {ddp__cuda_linear_gelu_forward, ddp__cuda_linear_gelu_backward};

    if (strcmp(first, "linear") == 0 && strcmp(second, "gelu") == 0)
        return dev->props.major >= 9 ? &gelu : NULL;
    if (strcmp(first, "add") != 0) return NULL;
    if (strcmp(second, "layer_norm") == 0) return &layer_norm;
    return strcmp(second, "rms_norm") == 0 ? &rms_norm : NULL;
}

#endif /* DDP_CUDA_TEXT_CUH */
