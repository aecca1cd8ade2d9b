/* The small vector types and the function attributes that CUDA adds to C++. */
#ifndef CUDA_ON_CPU_TYPES_H
#define CUDA_ON_CPU_TYPES_H

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __shared__      static thread_local
#define __constant__    static const
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
    /* in most callers a number of blocks is a long or an int */
    constexpr dim3(int a) : x((unsigned)a), y(1), z(1) {}
    constexpr dim3(long a) : x((unsigned)a), y(1), z(1) {}
};

#define CUDA_ON_CPU_VECTOR(type, name)                                                          \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                    \
    struct name##3 { type x, y, z; };                                                           \
    struct alignas(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type)) name##4 { type x, y, z, w; }; \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                            \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
CUDA_ON_CPU_VECTOR(float, float)
CUDA_ON_CPU_VECTOR(int, int)
CUDA_ON_CPU_VECTOR(double, double)
CUDA_ON_CPU_VECTOR(unsigned short, ushort)
#undef CUDA_ON_CPU_VECTOR
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#endif /* CUDA_ON_CPU_TYPES_H */
