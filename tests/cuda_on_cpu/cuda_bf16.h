/* bfloat16: the upper half of a float, rounded to nearest even. */
#ifndef CUDA_ON_CPU_BF16_H
#define CUDA_ON_CPU_BF16_H

#include <cuda_runtime.h>

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float f)
    {
        const unsigned u = __float_as_uint(f);
        if ((u & 0x7fffffffu) > 0x7f800000u)
            bits = 0x7fff; /* the only NaN, as on the device */
        else
            bits = (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
    }
    operator float() const { return __uint_as_float((unsigned)bits << 16); }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline float __bfloat162float(__nv_bfloat16 b) { return (float)b; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u)
{
    __nv_bfloat16 b;
    b.bits = u;
    return b;
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {__nv_bfloat16(a.x), __nv_bfloat16(a.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {(float)a.x, (float)a.y}; }
inline float __low2float(__nv_bfloat162 a) { return (float)a.x; }
inline float __high2float(__nv_bfloat162 a) { return (float)a.y; }

#endif /* CUDA_ON_CPU_BF16_H */
