/* The GPU companion, compiled once for the tests and trainers that link with it, and the functions of
 * families.h. With CUDA_PART the object has only the families whose macros are defined:
 * tests/cuda_on_cpu/mutate.py compiles the part that one test needs. */
#undef DDP__CUDA_IMPLEMENTED /* the tests define it, and mutate.py compiles them with the same command */
#define DREAMDDP_IMPLEMENTATION
#if defined(CUDA_PART)
#include "dreamddp.h"
#else
#include "dreamddp_cuda.cuh"
#define CUDA_ELEMENTWISE
#define CUDA_IMAGES
#define CUDA_CONV
#define CUDA_TEXT
#endif

#include "cuda/families.h"

#if defined(CUDA_ELEMENTWISE)
#include "cuda/elementwise.cuh"

void cuda_elementwise_ops(ddp__cuda *dev) { ddp__cuda_elementwise_ops(dev); }
#endif

#if defined(CUDA_IMAGES)
#include "cuda/batch_norm.cuh"
#include "cuda/pool.cuh"

void cuda_batch_norm_ops(ddp__cuda *dev) { ddp__cuda_batch_norm_ops(dev); }
void cuda_pool_ops(ddp__cuda *dev) { ddp__cuda_pool_ops(dev); }

const ddp_op_pair *cuda_batch_norm_pair(const char *first, const char *second)
{
    return ddp__cuda_batch_pair(first, second);
}
#endif

#if defined(CUDA_CONV)
#include "cuda/conv.cuh"

void cuda_conv_ops(ddp__cuda *dev) { ddp__cuda_conv_ops(dev); }
#endif

#if defined(CUDA_TEXT)
#include "cuda/text.cuh"

void cuda_text_ops(ddp__cuda *dev) { ddp__cuda_text_ops(dev); }

const ddp_op_pair *cuda_text_pair(const ddp__cuda *dev, const char *first, const char *second)
{
    return ddp__cuda_pair_of(dev, first, second);
}
#endif

#if !defined(CUDA_PART)
ddp__cuda *cuda_device_of(void *self) { return ((ddp__cuda_self *)self)->dev; }

const ddp_op_pair *cuda_pair(void *self, const char *first, const char *second)
{
    return ddp__cuda_pair(cuda_device_of(self), first, second);
}

ddp_status cuda_self_check(void *self, const ddp_logger *log, double wait_s, ddp_error *err)
{
    cuda_device_of(self)->log = log;
    return ddp__cuda_self_check(cuda_device_of(self), wait_s, err);
}

uint16_t cuda_bf16_bits(float x) { return ddp__bf16_bits(x); }
#endif
