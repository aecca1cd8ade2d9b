/* dreamddp_cuda.cuh 0.3.0 - dreamddp on NVIDIA GPUs. MIT licence (at the end of dreamddp.h).
 *
 * USAGE. In one .cu file of your program (or one .c file compiled with nvcc -x cu), write:
 *     #define DREAMDDP_IMPLEMENTATION
 *     #include "dreamddp_cuda.cuh"
 * The file includes dreamddp.h. Build with nvcc, C++17, for compute capability 8.0 or later:
 *     nvcc -O3 -std=c++17 -arch=sm_90a x.cu -lcublas -lcublasLt -lnccl -lpthread
 * -arch=sm_90a is for an H100 or H200, where -arch=native would omit the wgmma kernels. For other GPUs use
 * -arch=native.
 *
 * EXAMPLE. The settings of a context on GPU 0 with bfloat16 arithmetic. All else is as in dreamddp.h:
 *     ddp_backend gpu = ddp_cuda(DDP_CUDA_BF16, 0);
 *     ddp_config cfg = {0};
 *     cfg.backend = &gpu;
 *     ddp_ctx *d = ddp_open(&cfg, &err);
 *
 * A GPU context runs the same graphs, hooks, plans and strategies as a CPU context, and every call of
 * dreamddp.h keeps its meaning. Programs that run on the CPU only do not need this file.
 *
 * CONVENTIONS. As in dreamddp.h. The library owns the device memory of a context. It queues kernels on one
 * stream and copies of messages on two others; NCCL has its own. A hook returns before its work on the
 * device is done, but waits for a message if the device cannot. Results do not depend on the order in which
 * blocks run: the kernels use no floating-point atomics.
 *
 * ERRORS. The next hook returns a failure of the device, with a message.
 */
#ifndef DREAMDDP_CUDA_CUH
#define DREAMDDP_CUDA_CUH

#if !defined(__CUDACC__) && !defined(DDP_CUDA_ON_CPU)
#error "dreamddp_cuda.cuh: compile this file with nvcc (a .c file: nvcc -x cu)"
#endif

#if defined(DREAMDDP_IMPLEMENTATION) && defined(DDP_NO_MODELS)
#error "dreamddp_cuda.cuh: it computes graphs and their operators: do not define DDP_NO_MODELS"
#endif

#include "dreamddp.h"

#include "cuda/public.cuh"

#endif /* DREAMDDP_CUDA_CUH */

#ifdef DREAMDDP_IMPLEMENTATION
#ifndef DDP__CUDA_IMPLEMENTED
#define DDP__CUDA_IMPLEMENTED

#include "cuda/topk.cuh"
#include "cuda/backend.cuh"

#endif /* DDP__CUDA_IMPLEMENTED */
#endif /* DREAMDDP_IMPLEMENTATION */
