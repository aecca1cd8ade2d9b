/* One way to launch a kernel, for nvcc and for the stand-in of tests/cuda_on_cpu. */
#ifndef DDP_CUDA_LAUNCH_CUH
#define DDP_CUDA_LAUNCH_CUH

#include "cuda/runtime.cuh"

/* DDP__LAUNCH(kernel, blocks, threads, shared_bytes, stream, args...)
 *
 * A variable `ddp__cuda *dev` must be in scope: it notes the first launch that fails, by the name
 * of its kernel. A kernel with template arguments goes in parentheses: (ddp__k_gelu<float>). blocks
 * and threads are numbers or dim3.
 *
 * DDP__SHARED(type, name) declares name as the start of the shared_bytes of the launch. */
#if defined(DDP_CUDA_ON_CPU)
#define DDP__LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...)                            \
    do {                                                                                           \
        cuda_on_cpu::launch(#kernel, dim3(blocks), dim3(threads), (size_t)(shared_bytes),          \
                            (stream), kernel, __VA_ARGS__);                                        \
        ddp__cuda_launched(dev, #kernel);                                                          \
    } while (0)
#define DDP__SHARED(type, name) type *name = (type *)cuda_on_cpu::dynamic_shared()
#else
#define DDP__LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...)                            \
    do {                                                                                           \
        ddp__cuda_allow_shared(kernel, (size_t)(shared_bytes));                                    \
        kernel<<<(blocks), (threads), (size_t)(shared_bytes), (stream)>>>(__VA_ARGS__);            \
        ddp__cuda_launched(dev, #kernel);                                                          \
    } while (0)
#define DDP__SHARED(type, name)                                             \
    extern __shared__ __align__(128) unsigned char ddp__shared_bytes[];     \
    type *name = reinterpret_cast<type *>(ddp__shared_bytes)

/* More than 48 KiB must be asked for. A refusal shows as the launch's own error. */
template <typename F> static inline void ddp__cuda_allow_shared(F kernel, size_t bytes)
{
    if (bytes > 48 * 1024)
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
#endif

/* Notes the error of the launch just made, if any. */
static inline void ddp__cuda_launched(ddp__cuda *dev, const char *kernel)
{
    const cudaError_t e = cudaGetLastError();

    if (e != cudaSuccess)
        ddp__cuda_fail(dev, DDP_FAILED, "GPU %d: the kernel %s, or work before it, failed: %s%s",
                       dev->device, kernel, cudaGetErrorString(e), ddp__cuda_remedy(e));
}

/* Blocks that cover n items with per_block each; at least one. */
static inline long ddp__blocks(long n, long per_block)
{
    return n < 1 ? 1 : (n + per_block - 1) / per_block;
}

#endif /* DDP_CUDA_LAUNCH_CUH */
