/* The tensor-core instructions of flash attention, one function each, copies to shared memory, and tiles and
 * products built from them. Elements are bfloat16, or floats that a product rounds to TF32. The stand-in in
 * tests/cuda_on_cpu computes the documented result of each instruction lane by lane, so that the same kernels
 * run on the CPU. */
#pragma once

#include "cuda/rows.cuh"

enum { DDP__FETCHED = 64 }; /* rows and columns that the copy engine loads at a time */
#define DDP__FETCHED_BYTES (DDP__FETCHED * DDP__FETCHED * 2) /* that the barrier expects of one load */

#if defined(DDP_CUDA_ON_CPU)
#include <mma_on_cpu.h>
#else

/* c (16 x 8 floats) += a (16 x K) b (K x 8). With g = lane / 4 and t = lane % 4, a lane holds c[g][2t],
 * c[g][2t + 1], c[g + 8][2t], c[g + 8][2t + 1]. For bfloat16 (K = 16, two per register), it holds a[g][2t..],
 * a[g + 8][2t..], a[g][2t + 8..], a[g + 8][2t + 8..] and b[2t..][g], b[2t + 8..][g]. For floats (K = 8), it
 * holds a[g][t], a[g + 8][t], a[g][t + 4], a[g + 8][t + 4] and b[t][g], b[t + 4][g]. */
template <typename T>
__device__ static __forceinline__ void ddp__mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1);
template <>
__device__ __forceinline__ void ddp__mma<ddp__bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                    uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void ddp__mma<float>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    const uint32_t half = 0x1000; /* half a unit in the last place that the instruction reads: the instruction
                                   * truncates, adding this rounds */
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0] + half), "r"(a[1] + half), "r"(a[2] + half), "r"(a[3] + half), "r"(b0 + half),
          "r"(b1 + half));
}

/* Loads four matrices of eight rows of 16 bytes from shared memory (ldmatrix). Lane l gives the address of
 * row l % 8 of matrix l / 8, and receives bytes 4 (l % 4) to 4 (l % 4) + 3 of row l / 4 of each matrix. */
template <typename T> __device__ static __forceinline__ void ddp__matrices(uint32_t (&r)[4], const T *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same, transposed, for bfloat16: lane l receives elements (2 (l % 4), l / 4) and (2 (l % 4) + 1, l / 4).
 * */
__device__ static __forceinline__ void ddp__matrices_turned(uint32_t (&r)[4], const ddp__bf16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* Starts to copy 16 bytes to shared memory. Writes zeros if present is 0. */
template <typename T>
__device__ static __forceinline__ void ddp__copy16(T *shared, const T *from, int present)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
        "l"(from), "r"(present ? 16 : 0)
        : "memory");
}

/* commit closes a group of this thread's copies since the last call. wait waits until at most N groups are
 * unfinished. */
__device__ static __forceinline__ void ddp__copy_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int N = 0> __device__ static __forceinline__ void ddp__copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* Hopper's wgmma: a group of four warps multiplies together. Available if compiled for sm_90a. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DDP__WGMMA          1
#define DDP__GROUP_ASM(...) asm volatile(__VA_ARGS__)
#else
#define DDP__WGMMA          0
#define DDP__GROUP_ASM(...) (void)0
#endif
#define DDP__GROUP_FOUR(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define DDP__GROUP_EIGHT(c)                                                                     \
    DDP__GROUP_FOUR(c[0]), DDP__GROUP_FOUR(c[1]), DDP__GROUP_FOUR(c[2]), DDP__GROUP_FOUR(c[3]), \
        DDP__GROUP_FOUR(c[4]), DDP__GROUP_FOUR(c[5]), DDP__GROUP_FOUR(c[6]), DDP__GROUP_FOUR(c[7])
#define DDP__GROUP_SUMS                                                                                     \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, "                                                                                            \
    "%24, %25, %26, %27, %28, %29, %30, %31}"

/* c = a b, or c += a b if add is not 0. c: 64 x 64 floats of a group, of which warp w has rows 16 w to 16 w +
 * 15, in ddp__mma's layout. a: 64 x 16 in registers, in ddp__mma's layout. b: 16 x 64, a part of a row-major
 * tile in shared memory, from ddp__group_piece. Call it between ddp__group_begin and ddp__group_end, which
 * waits for c. Compute a in the loop iteration that uses it: ptxas 13.0 overwrites the registers of a factor
 * that is loaded in the first iteration and used in all. Such a factor stays in shared memory. */
__device__ static __forceinline__ void ddp__group_mma(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b,
                                                      int add)
{
    DDP__GROUP_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %37, "
                   "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DDP__GROUP_SUMS
                   ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                   : DDP__GROUP_EIGHT(c)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* c = a b^T, or c += a b^T if add is not 0. a, b: 64 x 16 parts of row-major tiles in shared memory. */
__device__ static __forceinline__ void ddp__group_mma(float (&c)[8][4], uint64_t a, uint64_t b, int add)
{
    DDP__GROUP_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %34, "
                   "0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DDP__GROUP_SUMS
                   ", %32, %33, p, 1, 1, 0, 0;\n}\n"
                   : DDP__GROUP_EIGHT(c)
                   : "l"(a), "l"(b), "r"(add));
}

/* Makes written registers visible to wgmma. */
__device__ static __forceinline__ void ddp__group_begin(void)
{
    DDP__GROUP_ASM("wgmma.fence.sync.aligned;\n" ::: "memory");
}

/* c is complete after this call, and a register of the left factor is in use until then. The compiler
 * tracks neither, so this call states them. */
__device__ static __forceinline__ void ddp__group_end(float (&c)[8][4])
{
    DDP__GROUP_ASM("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
    DDP__UNROLL for (int i = 0; i < 8; i++) DDP__GROUP_ASM("" : DDP__GROUP_FOUR(c[i])::"memory");
}

__device__ static __forceinline__ void ddp__group_keep(uint32_t (&a)[4])
{
    DDP__GROUP_ASM("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

/* The copy engine (TMA) loads pieces of arrays into shared memory. One thread issues the copies. An mbarrier
 * counts the expected bytes. A phase of the barrier ends when the bytes have arrived and the thread has
 * announced all of them. */
__device__ static __forceinline__ void ddp__arrivals_open(uint64_t *bar)
{
    DDP__GROUP_ASM("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.proxy.async.shared::cta;\n" ::"r"(
                       (uint32_t)__cvta_generic_to_shared(bar))
                   : "memory");
}

/* Starts to load a tile: 64 columns of a head and 64 rows of a sequence, from row on, with zeros outside the
 * array. */
__device__ static __forceinline__ void ddp__fetch(uint64_t *bar, ddp__bf16 *tile, const CUtensorMap *map,
                                                  int head, int row, int sequence)
{
    DDP__GROUP_ASM("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %6;\n"
                   "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%1], "
                   "[%2, {%7, %3, %4, %5}], [%0];\n" ::"r"((uint32_t)__cvta_generic_to_shared(bar)),
                   "r"((uint32_t)__cvta_generic_to_shared(tile)), "l"(map), "r"(head), "r"(row),
                   "r"(sequence), "n"(DDP__FETCHED_BYTES), "r"(0)
                   : "memory");
}

__device__ static __forceinline__ void ddp__arrivals_sent(uint64_t *bar)
{
    DDP__GROUP_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"((uint32_t)__cvta_generic_to_shared(bar))
                   : "memory");
}

/* Returns 1 if the phase of this parity has ended: 0 for the first phase, then 1 and 0 in turn. Waits a short
 * time for it, which the hardware chooses. */
__device__ static __forceinline__ int ddp__arrivals_try(uint64_t *bar, int parity)
{
    int ended = 1;
    DDP__GROUP_ASM("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                   "selp.s32 %0, 1, 0, p;\n}\n"
                   : "=r"(ended)
                   : "r"((uint32_t)__cvta_generic_to_shared(bar)), "r"(parity)
                   : "memory");
    return ended;
}

/* Time in nanoseconds, of a clock that all multiprocessors share. */
__device__ static __forceinline__ uint64_t ddp__nanoseconds(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(now));
    return now;
}

/* 2^x to 2 units in the last place, or 0 below 2^-126. */
__device__ static __forceinline__ float ddp__exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

/* Packs two bfloat16 into a register, the first in the low half. The other function stores two elements to
 * shared memory. */
__device__ static __forceinline__ uint32_t ddp__pack_pair(float first, float second)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(second), "f"(first));
    return r;
}

__device__ static __forceinline__ void ddp__put_pair(ddp__bf16 *to, float first, float second)
{
    *reinterpret_cast<uint32_t *>(to) = ddp__pack_pair(first, second);
}

__device__ static __forceinline__ void ddp__put_pair(float *to, float first, float second)
{
    *reinterpret_cast<float2 *>(to) = make_float2(first, second);
}

#endif

/* Index of an element in a tile with rows of D elements in shared memory. The 16-byte pieces of a row are
 * permuted by the row number (swizzle), so that the same piece of eight rows is in eight different banks. */
template <int D, typename T>
__device__ static __forceinline__ T *ddp__tile_at(const T *tile, int row, int piece)
{
    return const_cast<T *>(tile) + row * D + ((piece ^ (row & 7)) * ddp__vec<T>::width);
}

enum {
    DDP__ARRIVALS = 16,   /* bytes of shared memory, after the tiles */
    DDP__ARRIVALS_S = 10, /* the longest wait for a load, in seconds */
    DDP__ARRIVALS_ASK_NS = 100000
};

/* Waits until the phase of this parity ends. Returns 1 if it does not end in DDP__ARRIVALS_S, and sets *late,
 * which is in pinned memory of the host. If *late is set, waits end after DDP__ARRIVALS_ASK_NS. */
__device__ static __forceinline__ int ddp__arrivals_late(uint64_t *bar, int parity, volatile int *late)
{
    uint64_t begin, passed;

    if (ddp__arrivals_try(bar, parity)) return 0;
    begin = ddp__nanoseconds();
    while (!ddp__arrivals_try(bar, parity)) {
        passed = ddp__nanoseconds() - begin;
        if (passed < DDP__ARRIVALS_ASK_NS)
            continue; /* reading memory of the host would delay a normal wait */
        if (*late || passed > DDP__ARRIVALS_S * (uint64_t)1000000000) {
            *late = 1;
            return 1;
        }
    }
    return 0;
}

/* Loads to two buffers of shared memory that are used in turn, one at a time. GROUP: loads by the copy
 * engine. */
template <int GROUP> struct ddp__arrivals {
    uint64_t *bar; /* one per buffer */
    int *late;     /* of ddp__arrivals_late */
    int waited;

    __device__ __forceinline__ ddp__arrivals(uint64_t *shared, int *flag) : bar(shared), late(flag), waited(0)
    {
        if (!GROUP) return;
        if (threadIdx.x == 0) {
            ddp__arrivals_open(bar);
            ddp__arrivals_open(bar + 1);
        }
        __syncthreads(); /* make the initialised barriers visible to all threads */
    }
    /* The barrier of the next load. */
    __device__ __forceinline__ uint64_t *next(void) const { return bar + waited % 2; }
    __device__ __forceinline__ void sent(void) const
    {
        if (!GROUP)
            ddp__copy_commit();
        else if (threadIdx.x == 0)
            ddp__arrivals_sent(next());
    }
    /* Waits for the load and for all threads of the block, which then have stopped using the other buffer.
     * Returns 1 in all threads if the load is late: the block must end, because its barriers have no defined
     * state. */
    __device__ __forceinline__ int wait(void)
    {
        int is_late = 0;

        if (GROUP)
            is_late = ddp__arrivals_late(next(), waited / 2 % 2, late);
        else
            ddp__copy_wait();
        waited++;
        if (GROUP) return __syncthreads_or(is_late);
        __syncthreads();
        return 0;
    }
};

/* An array of sequences. A sequence is count rows, and a row is heads of d columns. Kernels load tiles: rows
 * of one head. */
template <typename T> struct ddp__tiles {
    CUtensorMap map; /* for the copy engine */
    int *late;       /* of ddp__arrivals_late */
    const T *base;
    int heads, count, d;

    /* Starts to copy ROWS rows from row first on, with zeros outside the array. second, unless NULL, receives
     * the same rows of the head `beyond` heads later. All THREADS threads of the block must call it. */
    template <int D, int ROWS, int THREADS, int GROUP>
    __device__ __forceinline__ void load(const ddp__arrivals<GROUP> &due, T *tile, T *second, int beyond,
                                         int sequence, int head, int first) const
    {
        if constexpr (GROUP) {
            uint64_t *bar = due.next();
            for (int i = 0; threadIdx.x == 0 && i < ROWS; i += DDP__FETCHED) {
                ddp__fetch(bar, tile + i * D, &map, head, first + i, sequence);
                if (second) ddp__fetch(bar, second + i * D, &map, head + beyond, first + i, sequence);
            }
        } else {
            const int width = ddp__vec<T>::width, pieces = D / width;
            const int row = (int)threadIdx.x / pieces, piece = (int)threadIdx.x % pieces;
            const long ld = (long)heads * d;
            const T *from = base + sequence * count * ld + head * d,
                    *at = from + (first + row) * ld + piece * width;

            DDP__UNROLL for (int i = 0; i < ROWS; i += THREADS / pieces, at += THREADS / pieces * ld)
            {
                const int present = first + row + i < count && piece * width < d;

                ddp__copy16(ddp__tile_at<D>(tile, row + i, piece), present ? at : from, present);
                if (second)
                    ddp__copy16(ddp__tile_at<D>(second, row + i, piece), present ? at + beyond * d : from,
                                present);
            }
        }
    }
};

/* c = 0: 16 x 8 floats in each c[r][n]. */
template <int MR, int N> __device__ static __forceinline__ void ddp__tile_zero(float (&c)[MR][N][4])
{
    DDP__UNROLL for (int r = 0; r < MR; r++) DDP__UNROLL for (int n = 0; n < N; n++)
        DDP__UNROLL for (int i = 0; i < 4; i++) c[r][n][i] = 0;
}

/* Rows of a tile as the left factor of products: 16 MR rows, from `rows` on. HOLD keeps them in registers.
 * */
template <typename T, int D, int MR, int HOLD> struct ddp__tile_rows {
    static const int steps = D / (2 * ddp__vec<T>::width);
    const T *rows;
    uint32_t kept[HOLD ? steps : 1][MR][4];

    __device__ __forceinline__ void load(uint32_t (&a)[MR][4], int step) const
    {
        const int lane = (int)threadIdx.x % 32;

        DDP__UNROLL for (int r = 0; r < MR; r++)
            ddp__matrices(a[r], ddp__tile_at<D>(rows, r * 16 + lane % 16, 2 * step + lane / 16));
    }
    __device__ __forceinline__ void keep(void)
    {
        DDP__UNROLL for (int step = 0; HOLD && step < steps; step++) load(kept[HOLD ? step : 0], step);
    }
    __device__ __forceinline__ void get(uint32_t (&a)[MR][4], int step) const
    {
        if (!HOLD) load(a, step);
        DDP__UNROLL for (int r = 0; HOLD && r < MR; r++) DDP__UNROLL for (int i = 0; i < 4; i++) a[r][i] =
            kept[HOLD ? step : 0][r][i];
    }
};

/* The wgmma descriptor of a matrix that begins at piece `at` (of 16 bytes) of a tile with rows of 128 bytes.
 * Eight rows take 1,024 bytes, to which the tile is aligned. The permutation of ddp__tile_at equals the
 * 128-byte swizzle of wgmma. */
__device__ static __forceinline__ uint64_t ddp__group_piece(const ddp__bf16 *tile, int at)
{
    const uint64_t begin = ((uint32_t)__cvta_generic_to_shared(tile) >> 4) + (uint32_t)at;
    return (begin & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* c (16 MR x N) = a (16 MR x D) b^T, where b (N x D) is a tile. GROUP: four warps compute it together, with
 * MR 1, and N and D 64. */
template <int GROUP, int N, typename T, int D, int MR, int HOLD>
__device__ static __forceinline__ void ddp__tile_scores(float (&c)[MR][N / 8][4],
                                                        const ddp__tile_rows<T, D, MR, HOLD> &a, const T *b)
{
    const int lane = (int)threadIdx.x % 32;

    if constexpr (GROUP) {
        static_assert(!HOLD, "wgmma reads a from shared memory");
        const T *mine = a.rows - (int)threadIdx.x / 32 % 4 * 16 * D; /* the group's rows */
        ddp__group_begin();
        DDP__UNROLL for (int step = 0; step < 4; step++)
            ddp__group_mma(c[0], ddp__group_piece(mine, 2 * step), ddp__group_piece(b, 2 * step), step > 0);
        ddp__group_end(c[0]);
    } else {
        ddp__tile_zero(c);
        DDP__UNROLL for (int step = 0; step < a.steps; step++)
        {
            uint32_t left[MR][4];
            a.get(left, step);
            DDP__UNROLL for (int n = 0; n < N / 16; n++)
            {
                uint32_t f[4];
                ddp__matrices(f,
                              ddp__tile_at<D>(b, n * 16 + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
                DDP__UNROLL for (int r = 0; r < MR; r++)
                {
                    ddp__mma<T>(c[r][2 * n], left[r], f[0], f[1]);
                    ddp__mma<T>(c[r][2 * n + 1], left[r], f[2], f[3]);
                }
            }
        }
    }
}

/* Packs a lane's part of 16 columns of one product: it is exactly the lane's part of the left factor of the
 * next. */
__device__ static __forceinline__ void ddp__pack_left(uint32_t (&a)[4], const float (&p)[4],
                                                      const float (&q)[4])
{
    a[0] = ddp__pack_pair(p[0], p[1]);
    a[1] = ddp__pack_pair(p[2], p[3]);
    a[2] = ddp__pack_pair(q[0], q[1]);
    a[3] = ddp__pack_pair(q[2], q[3]);
}

/* c (16 MR x D) += p (16 MR x N) b, where b (N x D) is a tile, and p has the layout that ddp__tile_scores
 * writes. */
template <int GROUP, int D, int MR, int N>
__device__ static __forceinline__ void ddp__tile_add(float (&c)[MR][D / 8][4], const float (&p)[MR][N / 8][4],
                                                     const ddp__bf16 *b)
{
    const int lane = (int)threadIdx.x % 32;

    if constexpr (GROUP) {
        uint32_t a[4][4];
        DDP__UNROLL for (int step = 0; step < 4; step++)
            ddp__pack_left(a[step], p[0][2 * step], p[0][2 * step + 1]);
        ddp__group_begin();
        DDP__UNROLL for (int step = 0; step < 4; step++)
            ddp__group_mma(c[0], a[step], ddp__group_piece(b, 128 * step), 1);
        ddp__group_end(c[0]);
        DDP__UNROLL for (int i = 0; i < 4; i++) ddp__group_keep(a[i]);
    } else {
        DDP__UNROLL for (int step = 0; step < N / 16; step++)
        {
            uint32_t a[MR][4];
            DDP__UNROLL for (int r = 0; r < MR; r++) ddp__pack_left(a[r], p[r][2 * step], p[r][2 * step + 1]);
            DDP__UNROLL for (int n = 0; n < D / 16; n++)
            {
                uint32_t f[4];
                ddp__matrices_turned(
                    f, ddp__tile_at<D>(b, step * 16 + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
                DDP__UNROLL for (int r = 0; r < MR; r++)
                {
                    ddp__mma<ddp__bf16>(c[r][2 * n], a[r], f[0], f[1]);
                    ddp__mma<ddp__bf16>(c[r][2 * n + 1], a[r], f[2], f[3]);
                }
            }
        }
    }
}

/* The same for floats. A product may add over K in any order: slots t and t + 4 of a step read rows 2t and 2t
 * + 1. */
template <int GROUP, int D, int MR, int N>
__device__ static __forceinline__ void ddp__tile_add(float (&c)[MR][D / 8][4], const float (&p)[MR][N / 8][4],
                                                     const float *b)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

    DDP__UNROLL for (int step = 0; step < N / 8; step++) DDP__UNROLL for (int n = 0; n < D / 8; n++)
    {
        const uint32_t b0 = __float_as_uint(ddp__tile_at<D>(b, step * 8 + 2 * t, 2 * n + g / 4)[g % 4]);
        const uint32_t b1 = __float_as_uint(ddp__tile_at<D>(b, step * 8 + 2 * t + 1, 2 * n + g / 4)[g % 4]);
        DDP__UNROLL for (int r = 0; r < MR; r++)
        {
            const float *q = p[r][step];
            const uint32_t a[4] = {__float_as_uint(q[0]), __float_as_uint(q[2]), __float_as_uint(q[1]),
                                   __float_as_uint(q[3])};
            ddp__mma<float>(c[r][n], a, b0, b1);
        }
    }
}

/* to = or += c by, for d columns of the rows from first on that are below count. tile: 16 MR rows of shared
 * memory for this warp alone, which convert c to 16 bytes per lane. */
template <int D, int MR, typename T>
__device__ static __forceinline__ void ddp__tile_store(T *to, long ld, int first, int count, int d, int add,
                                                       const float (&c)[MR][D / 8][4], float by, T *tile)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, width = ddp__vec<T>::width;

    __syncwarp();
    DDP__UNROLL for (int r = 0; r < MR; r++) DDP__UNROLL for (int n = 0; n < D / 8; n++)
        DDP__UNROLL for (int h = 0; h < 2; h++)
    {
        const int col = 8 * n + 2 * t;
        ddp__put_pair(ddp__tile_at<D>(tile, 16 * r + g + 8 * h, col / width) + col % width,
                      c[r][n][2 * h] * by, c[r][n][2 * h + 1] * by);
    }
    __syncwarp();
    for (int i = lane; i < 16 * MR * D / width; i += 32) {
        const int row = i / (D / width), piece = i % (D / width);
        float v[width];

        if (first + row >= count || piece * width >= d) continue;
        ddp__piece_load(v, ddp__tile_at<D>(tile, row, piece), 0, width, 1);
        ddp__piece_store(to + (first + row) * ld, v, piece * width, d, 1, add);
    }
}
