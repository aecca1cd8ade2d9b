/* What a program says about the GPU it wants. */
#ifndef DDP_CUDA_OPTIONS_CUH
#define DDP_CUDA_OPTIONS_CUH

#include "base/backend.h"
#include "base/status.h"

/* How the GPU computes. Master weights, gradients of parameters, optimizer state and sums are float32
 * in every mode. */
typedef enum ddp_cuda_numbers {
    DDP_CUDA_F32,  /* float32 throughout */
    DDP_CUDA_TF32, /* float32, matrix products with TF32 inputs */
    DDP_CUDA_BF16  /* activations, their gradients and copies of the weights in bfloat16 */
} ddp_cuda_numbers;

/* All-zero is valid: device 0, float32, a stream of the library's own. */
typedef struct ddp_cuda_options {
    int              device;  /* as CUDA counts them */
    ddp_cuda_numbers numbers;
    void            *stream;  /* the user's cudaStream_t; NULL = own. Borrowed until ddp_close */
} ddp_cuda_options;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_cuda - what ddp_config.backend points at (until ddp_close) for contexts on a GPU: device as
 * CUDA counts them, or -1: the ranks of a machine share its GPUs out. The program's own stream goes
 * into ddp_config.cuda_stream. Errors come from ddp_open. Pure. */
DDP_API ddp_backend ddp_cuda(ddp_cuda_numbers numbers, int device);

#ifdef __cplusplus
}
#endif

#endif /* DDP_CUDA_OPTIONS_CUH */
