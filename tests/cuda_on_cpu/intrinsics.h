/* Functions that kernels call. A warp operation includes its place in the source, so that two different calls
 * never match. There is no atomicAdd for floats: the sums would depend on the order. */
#ifndef CUDA_ON_CPU_INTRINSICS_H
#define CUDA_ON_CPU_INTRINSICS_H

#include <algorithm>
#include <cmath>
#include <sched.h>
#include <type_traits>

#include "fibre.h"

using std::max;
using std::min;

namespace cuda_on_cpu
{

template <typename T> inline void put_bits(uint64_t *to, T v)
{
    static_assert(sizeof v <= 16, "a value exchanged between lanes has at most 16 bytes");
    to[0] = to[1] = 0;
    memcpy(to, &v, sizeof v);
}

template <typename T> inline T bits_as(const uint64_t *from)
{
    T v;

    memcpy((void *)&v, from, sizeof v);
    return v;
}

inline fibre &me() { return running().fibre_of[(size_t)running().now]; }

inline void rule_pick(fibre *lane, unsigned mask)
{
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) memcpy(lane[i].got, lane[lane[i].from].put, sizeof lane[i].got);
}

inline void rule_ballot(fibre *lane, unsigned mask)
{
    unsigned votes = 0;

    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && lane[i].put[0]) votes |= 1u << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) lane[i].got[0] = votes;
}

inline void rule_match(fibre *lane, unsigned mask)
{
    for (int i = 0; i < 32; i++) {
        unsigned same = 0;
        for (int j = 0; j < 32; j++)
            if (mask >> j & 1 && lane[j].put[0] == lane[i].put[0]) same |= 1u << j;
        if (mask >> i & 1) lane[i].got[0] = same;
    }
}

template <typename T, int KIND> inline void rule_reduce(fibre *lane, unsigned mask)
{
    T sum{};
    bool any = false;

    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const T v = bits_as<T>(lane[i].put);
        if (!any)
            sum = v;
        else if (KIND == 0)
            sum = (T)(sum + v);
        else if (KIND == 1)
            sum = sum < v ? v : sum;
        else if (KIND == 2)
            sum = v < sum ? v : sum;
        else
            sum = (T)((unsigned)sum | (unsigned)v);
        any = true;
    }
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) put_bits(lane[i].got, sum);
}

inline void rule_nothing(fibre *, unsigned) {}

/* Value of lane `from`; outside the part of width lanes, the lane's own value. */
template <typename T>
inline T shuffle(unsigned mask, T v, int from, const char *what, const char *file, int line)
{
    fibre &f = me();

    put_bits(f.put, v);
    f.from = from;
    if (!(mask >> from & 1)) {
        fault("%s: %s (%s:%d) reads lane %d, which its mask %#x excludes", running().kernel, what, file, line,
              from, mask);
        return v;
    }
    warp_meet(what, mask, rule_pick, file, line);
    return bits_as<T>(f.got);
}

inline int lane_id() { return running().now % 32; }

inline unsigned vote(unsigned mask, int yes, const char *what, const char *file, int line)
{
    fibre &f = me();

    f.put[0] = yes != 0;
    warp_meet(what, mask, rule_ballot, file, line);
    return (unsigned)f.got[0];
}

template <typename T>
inline T reduce(unsigned mask, T v, warp_rule rule, const char *what, const char *file, int line)
{
    fibre &f = me();

    put_bits(f.put, v);
    warp_meet(what, mask, rule, file, line);
    return bits_as<T>(f.got);
}

template <typename T> inline unsigned match(unsigned mask, T v, const char *file, int line)
{
    fibre &f = me();

    put_bits(f.put, v);
    warp_meet("__match_any_sync", mask, rule_match, file, line);
    return (unsigned)f.got[0];
}

inline int source_of(int kind, int by, int width)
{
    const int lane = lane_id(), part = lane / width * width, in = lane - part;
    int from = in;

    if (kind == 0) from = (int)((unsigned)by % (unsigned)width);
    if (kind == 1 && in + by < width) from = in + by;
    if (kind == 2 && in - by >= 0) from = in - by;
    if (kind == 3) {
        /* xor may read from an earlier part, never from a later one */
        const int target = lane ^ by;
        return target / width * width <= part ? target : lane;
    }
    return part + from;
}

/* An access of 16 bytes that would trap is a fault. */
inline void check_aligned(const void *p, size_t bytes)
{
    if ((uintptr_t)p % bytes) fault("%s: unaligned access of %zu bytes at %p", running().kernel, bytes, p);
}

} // namespace cuda_on_cpu

#define CUDA_ON_CPU_HERE         __FILE__, __LINE__
#define __syncthreads()          ((void)cuda_on_cpu::barrier(0, CUDA_ON_CPU_HERE))
#define __syncthreads_count(yes) cuda_on_cpu::barrier((yes), CUDA_ON_CPU_HERE)
#define __syncthreads_or(yes)    (cuda_on_cpu::barrier((yes), CUDA_ON_CPU_HERE) != 0)
#define __syncthreads_and(yes) \
    (cuda_on_cpu::barrier((yes), CUDA_ON_CPU_HERE) == (int)(blockDim.x * blockDim.y * blockDim.z))
#define __syncwarp(...)                                                                                    \
    cuda_on_cpu::warp_meet("__syncwarp", cuda_on_cpu::mask_or_all(__VA_ARGS__), cuda_on_cpu::rule_nothing, \
                           CUDA_ON_CPU_HERE)
#define __shfl_sync(m, v, ...) \
    cuda_on_cpu::shuffle((m), (v), cuda_on_cpu::source(0, __VA_ARGS__), "__shfl_sync", CUDA_ON_CPU_HERE)
#define __shfl_down_sync(m, v, ...) \
    cuda_on_cpu::shuffle((m), (v), cuda_on_cpu::source(1, __VA_ARGS__), "__shfl_down_sync", CUDA_ON_CPU_HERE)
#define __shfl_up_sync(m, v, ...) \
    cuda_on_cpu::shuffle((m), (v), cuda_on_cpu::source(2, __VA_ARGS__), "__shfl_up_sync", CUDA_ON_CPU_HERE)
#define __shfl_xor_sync(m, v, ...) \
    cuda_on_cpu::shuffle((m), (v), cuda_on_cpu::source(3, __VA_ARGS__), "__shfl_xor_sync", CUDA_ON_CPU_HERE)
#define __ballot_sync(m, yes) cuda_on_cpu::vote((m), (yes), "__ballot_sync", CUDA_ON_CPU_HERE)
#define __any_sync(m, yes)    (cuda_on_cpu::vote((m), (yes), "__any_sync", CUDA_ON_CPU_HERE) != 0)

#define __all_sync(m, yes) (cuda_on_cpu::vote((m), (yes), "__all_sync", CUDA_ON_CPU_HERE) == (unsigned)(m))

#define __match_any_sync(m, v) cuda_on_cpu::match((m), (v), CUDA_ON_CPU_HERE)
#define __reduce_add_sync(m, v)                                                                        \
    cuda_on_cpu::reduce((m), (v), cuda_on_cpu::rule_reduce<decltype((v) + 0), 0>, "__reduce_add_sync", \
                        CUDA_ON_CPU_HERE)
#define __reduce_max_sync(m, v)                                                                        \
    cuda_on_cpu::reduce((m), (v), cuda_on_cpu::rule_reduce<decltype((v) + 0), 1>, "__reduce_max_sync", \
                        CUDA_ON_CPU_HERE)
#define __reduce_min_sync(m, v)                                                                        \
    cuda_on_cpu::reduce((m), (v), cuda_on_cpu::rule_reduce<decltype((v) + 0), 2>, "__reduce_min_sync", \
                        CUDA_ON_CPU_HERE)
#define __reduce_or_sync(m, v)                                                                        \
    cuda_on_cpu::reduce((m), (v), cuda_on_cpu::rule_reduce<decltype((v) + 0), 3>, "__reduce_or_sync", \
                        CUDA_ON_CPU_HERE)

namespace cuda_on_cpu
{
inline int source(int kind, int by, int width = 32) { return source_of(kind, by, width); }
inline int source(int kind, unsigned by, int width = 32) { return source_of(kind, (int)by, width); }
inline unsigned mask_or_all(unsigned mask = 0xffffffffu) { return mask; }
} // namespace cuda_on_cpu

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
/* Lets other threads of this machine run: streams and the host. */
inline void __nanosleep(unsigned) { sched_yield(); }
inline long long clock64() { return 0; }

template <typename T> inline T __ldg(const T *p)
{
    cuda_on_cpu::check_aligned(p, sizeof *p);
    return *p;
}
template <typename T> inline T __ldcs(const T *p)
{
    cuda_on_cpu::check_aligned(p, sizeof *p);
    return *p;
}
template <typename T> inline T __ldcg(const T *p)
{
    cuda_on_cpu::check_aligned(p, sizeof *p);
    return *p;
}
template <typename T> inline void __stcs(T *p, T v)
{
    cuda_on_cpu::check_aligned(p, sizeof *p);
    *p = v;
}
template <typename T> inline void __stcg(T *p, T v)
{
    cuda_on_cpu::check_aligned(p, sizeof *p);
    *p = v;
}

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
/* Products and sums that are never fused: every program that includes this file is compiled with
 * -ffp-contract=off. */
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1 / a; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __int2float_rn(int a) { return (float)a; }
inline int __float2int_rn(float a) { return (int)nearbyintf(a); }
inline float __saturatef(float a) { return a < 0 ? 0 : a > 1 ? 1 : a; }

inline unsigned __float_as_uint(float x)
{
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
inline int __float_as_int(float x)
{
    int u;
    memcpy(&u, &x, 4);
    return u;
}
inline float __uint_as_float(unsigned u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline float __int_as_float(int u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    __extension__ typedef unsigned __int128 wide;
    return (unsigned long long)((wide)a * b >> 64);
}

namespace cuda_on_cpu
{
template <typename T> inline void whole_numbers_only()
{
    static_assert(std::is_integral<T>::value, "floating-point atomics make results depend on the order");
}
template <typename T> struct same {
    typedef T type;
};
} // namespace cuda_on_cpu

template <typename T> inline T atomicAdd(T *p, typename cuda_on_cpu::same<T>::type v)
{
    cuda_on_cpu::whole_numbers_only<T>();
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
template <typename T> inline T atomicOr(T *p, typename cuda_on_cpu::same<T>::type v)
{
    cuda_on_cpu::whole_numbers_only<T>();
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);
}
template <typename T> inline T atomicExch(T *p, typename cuda_on_cpu::same<T>::type v)
{
    cuda_on_cpu::whole_numbers_only<T>();
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);
}
template <typename T>
inline T atomicCAS(T *p, typename cuda_on_cpu::same<T>::type old, typename cuda_on_cpu::same<T>::type v)
{
    cuda_on_cpu::whole_numbers_only<T>();
    __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return old;
}
template <typename T> inline T atomicMax(T *p, typename cuda_on_cpu::same<T>::type v)
{
    T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);

    cuda_on_cpu::whole_numbers_only<T>();
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return old;
}
template <typename T> inline T atomicMin(T *p, typename cuda_on_cpu::same<T>::type v)
{
    T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);

    cuda_on_cpu::whole_numbers_only<T>();
    while (v < old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return old;
}

#endif /* CUDA_ON_CPU_INTRINSICS_H */
