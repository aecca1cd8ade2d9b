/* dreamddp_cuda.cuh 0.3.0 - dreamddp on NVIDIA GPUs. MIT licence (at the end of dreamddp.h).
 *
 * DO THIS in one .cu file of your program (or one .c file compiled with nvcc -x cu):
 *     #define DREAMDDP_IMPLEMENTATION
 *     #include "dreamddp_cuda.cuh"
 * It includes dreamddp.h. Build with nvcc, C++17, compute capability 8.0 or later:
 *     nvcc -O3 -std=c++17 -arch=sm_90a x.cu -lcublas -lcublasLt -lnccl -lpthread      (an H100; -arch=native:
 *     the GPU here)
 *
 * A GPU is one more place where the same graph, hooks, plans and strategies run: every call of
 * dreamddp.h keeps its meaning. Nothing here is needed on a machine without one.
 *
 * CONVENTIONS. Those of dreamddp.h. Device memory is the library's; work is queued on one stream for
 * computing and one for messages, and a call of a training step never waits for the device. Results
 * do not depend on the order in which blocks run: there are no atomics of floats.
 *
 * ERRORS. A failure of the device surfaces as every other one: at the next hook, as one sentence.
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
