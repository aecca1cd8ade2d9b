/* Private functions of the GPU companion that tests call. tests/cuda/companion.cu defines them. A test that
 * includes this header links with the companion and compiles none of its kernels. */
#ifndef CUDA_FAMILIES_H
#define CUDA_FAMILIES_H

#include "cuda/ops.cuh"

/* Each adds the operators of one family to the table of a device. */
void cuda_elementwise_ops(ddp__cuda *dev);
void cuda_batch_norm_ops(ddp__cuda *dev);
void cuda_pool_ops(ddp__cuda *dev);
void cuda_conv_ops(ddp__cuda *dev);
void cuda_text_ops(ddp__cuda *dev);

/* The fused call of two operators, or NULL. dev may be NULL unless first is linear. */
const ddp_op_pair *cuda_text_pair(const ddp__cuda *dev, const char *first, const char *second);
const ddp_op_pair *cuda_batch_norm_pair(const char *first, const char *second);

/* For an open backend: its device, and the fused call of two operators of any family. */
ddp__cuda *cuda_device_of(void *self);
const ddp_op_pair *cuda_pair(void *self, const char *first, const char *second);

/* The self-check of an open backend. A kernel may take wait_s seconds. */
ddp_status cuda_self_check(void *self, const ddp_logger *log, double wait_s, ddp_error *err);

/* x rounded to bfloat16, as the backend does when it sends. */
uint16_t cuda_bf16_bits(float x);

#endif /* CUDA_FAMILIES_H */
