/* 16 bytes at a time: 4 floats or 8 bfloat16, and the way between them and float. */
#ifndef DDP_CUDA_VECTOR_CUH
#define DDP_CUDA_VECTOR_CUH

#include "cuda/runtime.cuh"

template <typename T> struct __align__(16) ddp__vec {
    static const int width = 16 / (int)sizeof(T);
    T v[16 / sizeof(T)];
};

__device__ static __forceinline__ float ddp__to_float(float x) { return x; }
__device__ static __forceinline__ float ddp__to_float(ddp__bf16 x) { return __bfloat162float(x); }

template <typename T> __device__ static __forceinline__ T ddp__from_float(float x);
template <> __device__ __forceinline__ float ddp__from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ ddp__bf16 ddp__from_float<ddp__bf16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* p must be a multiple of 16 bytes. */
template <typename T> __device__ static __forceinline__ ddp__vec<T> ddp__vec_load(const T *p)
{
#if defined(DDP_CUDA_ON_CPU)
    ddp__vec<T> r;

    cuda_on_cpu::check_aligned(p, 16);
    memcpy((void *)&r, (const void *)p, 16);
    return r;
#else
    return *reinterpret_cast<const ddp__vec<T> *>(p);
#endif
}

template <typename T>
__device__ static __forceinline__ void ddp__vec_store(T *p, const ddp__vec<T> &r)
{
#if defined(DDP_CUDA_ON_CPU)
    cuda_on_cpu::check_aligned(p, 16);
    memcpy((void *)p, (const void *)&r, 16);
#else
    *reinterpret_cast<ddp__vec<T> *>(p) = r;
#endif
}

/* 1: every pointer given allows 16 bytes at a time; NULL does. On host and device. */
__host__ __device__ static __forceinline__ int
ddp__aligned(const void *a, const void *b = NULL, const void *c = NULL, const void *d = NULL)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

#endif /* DDP_CUDA_VECTOR_CUH */
