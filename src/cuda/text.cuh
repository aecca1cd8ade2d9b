/* The table of the operators that text models are made of. */
#ifndef DDP_CUDA_TEXT_CUH
#define DDP_CUDA_TEXT_CUH

#include "cuda/attention.cuh"
#include "cuda/dropout.cuh"
#include "cuda/embedding.cuh"
#include "cuda/linear.cuh"
#include "cuda/loss.cuh"
#include "cuda/norm.cuh"
#include "cuda/rope.cuh"
#include "cuda/self.cuh"
#include "cuda/swiglu.cuh"

static DDP__UNUSED int ddp__cuda_text_ops(const ddp__cuda_entry **list)
{
    static const ddp__cuda_entry ops[] = {
        {"linear", ddp__cuda_linear_forward, ddp__cuda_linear_backward, ddp__cuda_linear_scratch},
        {"linear_no_bias", ddp__cuda_linear_forward, ddp__cuda_linear_backward, NULL},
        {"linear_tied", ddp__cuda_linear_forward, ddp__cuda_linear_backward, NULL},
        {"embedding", ddp__cuda_embedding_forward, ddp__cuda_embedding_backward,
         ddp__cuda_embedding_scratch},
        {"position", ddp__cuda_position_forward, ddp__cuda_position_backward, NULL},
        {"layer_norm", ddp__cuda_norm_forward<0>, ddp__cuda_norm_backward<0>,
         ddp__cuda_norm_scratch},
        {"rms_norm", ddp__cuda_norm_forward<1>, ddp__cuda_norm_backward<1>, ddp__cuda_norm_scratch},
        {"attention", ddp__cuda_attention_forward, ddp__cuda_attention_backward,
         ddp__cuda_attention_scratch},
        {"rope", ddp__cuda_rope_forward, ddp__cuda_rope_backward, NULL},
        {"swiglu", ddp__cuda_swiglu_forward, ddp__cuda_swiglu_backward, NULL},
        {"dropout", ddp__cuda_dropout_forward, ddp__cuda_dropout_backward, NULL},
        {"cross_entropy", ddp__cuda_loss_forward, ddp__cuda_loss_backward,
         ddp__cuda_loss_scratch},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}

/* The residual stream and the norm that reads it, in one kernel; and from compute capability 9.0 on
 * a product and the gelu of it, from which older GPUs are said to gain nothing (not measured). */
static DDP__UNUSED const ddp_op_pair *ddp__cuda_pair(void *self, const char *first,
                                                     const char *second)
{
    static const ddp_op_pair layer_norm = {ddp__cuda_sum_norm_forward<0>,
                                           ddp__cuda_sum_norm_backward<0>},
                             rms_norm = {ddp__cuda_sum_norm_forward<1>,
                                         ddp__cuda_sum_norm_backward<1>},
                             gelu = {ddp__cuda_linear_gelu_forward, ddp__cuda_linear_gelu_backward};

    if (strcmp(first, "linear") == 0 && strcmp(second, "gelu") == 0)
        return ((ddp__cuda_self *)self)->dev->props.major >= 9 ? &gelu : NULL;
    if (strcmp(first, "add") != 0) return NULL;
    if (strcmp(second, "layer_norm") == 0) return &layer_norm;
    return strcmp(second, "rms_norm") == 0 ? &rms_norm : NULL;
}

#endif /* DDP_CUDA_TEXT_CUH */
