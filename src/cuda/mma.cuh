/* The tensor-core instructions that flash attention is made of, one function each; and tiles and
 * products made of them. The stand-in computes what the instructions are documented to compute,
 * lane by lane, so that the same kernels run there. */
#ifndef DDP_CUDA_MMA_CUH
#define DDP_CUDA_MMA_CUH

#include "cuda/rows.cuh"

#if defined(DDP_CUDA_ON_CPU)
#include <mma_on_cpu.h>
#else

/* c (16 x 8 floats) += a (16 x 16) b (16 x 8), bfloat16. With g = lane / 4 and t = lane % 4, a lane
 * holds c[g][2t], c[g][2t + 1], c[g + 8][2t], c[g + 8][2t + 1]; two elements to a register,
 * a[g][2t..], a[g + 8][2t..], a[g][2t + 8..], a[g + 8][2t + 8..]; b[2t..][g], b[2t + 8..][g]. */
__device__ static __forceinline__ void ddp__mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]),
                 "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of shared memory: lane l names row l % 8 of matrix l / 8 (16 bytes), and gets
 * elements (l / 4, 2 (l % 4)) and the next of each. */
__device__ static __forceinline__ void ddp__matrices(uint32_t (&r)[4], const ddp__bf16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]),
                 "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

/* The same of the turned matrices: elements (2 (l % 4), l / 4) and the one below. */
__device__ static __forceinline__ void ddp__matrices_turned(uint32_t (&r)[4], const ddp__bf16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]),
                 "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

/* Begins to copy 16 bytes to shared memory, zeros where present is 0. */
__device__ static __forceinline__ void ddp__copy16(ddp__bf16 *shared, const ddp__bf16 *from, int present)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(from), "r"(present ? 16 : 0) : "memory");
}

/* This thread's copies since the last call are one group; until it is there. */
__device__ static __forceinline__ void ddp__copy_commit(void) { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

__device__ static __forceinline__ void ddp__copy_wait(void) { asm volatile("cp.async.wait_group 0;\n" ::: "memory"); }

/* 2^x to 2 units in the last place; 0 below 2^-126. */
__device__ static __forceinline__ float ddp__exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

/* Two bfloat16 in a register, the first in the low half; and into shared memory. */
__device__ static __forceinline__ uint32_t ddp__pack_pair(float first, float second)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(second), "f"(first));
    return r;
}

__device__ static __forceinline__ void ddp__put_pair(ddp__bf16 *to, uint32_t pair)
{
    *reinterpret_cast<uint32_t *>(to) = pair;
}

#endif

/* A tile of rows of D bfloat16 in shared memory. The 16-byte pieces of a row change places with its
 * number, so that the same piece of eight rows lies in eight different banks. */
template <int D> __device__ static __forceinline__ ddp__bf16 *ddp__tile_at(const ddp__bf16 *tile, int row, int piece)
{
    return const_cast<ddp__bf16 *>(tile) + row * D + ((piece ^ (row & 7)) * 8);
}

/* Begins to copy ROWS rows from row first on of an array whose rows are ld apart, of which rows
 * below count and d columns are there; zeros elsewhere. A second tile, unless it is NULL, gets what
 * lies beyond elements further. By all THREADS threads of the block. */
template <int D, int ROWS, int THREADS>
__device__ static __forceinline__ void ddp__tile_load(ddp__bf16 *tile, ddp__bf16 *second, const ddp__bf16 *from,
                                                      long beyond, long ld, int first, int count, int d)
{
    const int row = (int)threadIdx.x / (D / 8), piece = (int)threadIdx.x % (D / 8);
    const ddp__bf16 *at = from + (first + row) * ld + piece * 8;

    DDP__UNROLL for (int i = 0; i < ROWS; i += THREADS / (D / 8), at += THREADS / (D / 8) * ld) {
        const int present = first + row + i < count && piece * 8 < d;

        ddp__copy16(ddp__tile_at<D>(tile, row + i, piece), present ? at : from, present);
        if (second) ddp__copy16(ddp__tile_at<D>(second, row + i, piece), present ? at + beyond : from, present);
    }
}

/* c = 0: 16 x 8 floats in each c[r][n]. */
template <int MR, int N> __device__ static __forceinline__ void ddp__tile_zero(float (&c)[MR][N][4])
{
    DDP__UNROLL for (int r = 0; r < MR; r++)
        DDP__UNROLL for (int n = 0; n < N; n++) DDP__UNROLL for (int i = 0; i < 4; i++) c[r][n][i] = 0;
}

/* Rows of a tile as the left factor of products: 16 MR of them from rows on, kept in registers if HOLD. */
template <int D, int MR, int HOLD> struct ddp__tile_rows {
    const ddp__bf16 *rows;
    uint32_t         kept[HOLD ? D / 16 : 1][MR][4];

    __device__ __forceinline__ void load(uint32_t (&a)[MR][4], int step) const
    {
        const int lane = (int)threadIdx.x % 32;

        DDP__UNROLL for (int r = 0; r < MR; r++)
            ddp__matrices(a[r], ddp__tile_at<D>(rows, r * 16 + lane % 16, 2 * step + lane / 16));
    }
    __device__ __forceinline__ void keep(void)
    {
        DDP__UNROLL for (int step = 0; HOLD && step < D / 16; step++) load(kept[HOLD ? step : 0], step);
    }
    __device__ __forceinline__ void get(uint32_t (&a)[MR][4], int step) const
    {
        if (!HOLD) load(a, step);
        DDP__UNROLL for (int r = 0; HOLD && r < MR; r++)
            DDP__UNROLL for (int i = 0; i < 4; i++) a[r][i] = kept[HOLD ? step : 0][r][i];
    }
};

/* c (16 MR x N) = a (16 MR x D) b^T, b (N x D) a tile. */
template <int D, int MR, int N, int HOLD>
__device__ static __forceinline__ void ddp__tile_scores(float (&c)[MR][N / 8][4], const ddp__tile_rows<D, MR, HOLD> &a,
                                                        const ddp__bf16 *b)
{
    const int lane = (int)threadIdx.x % 32;

    ddp__tile_zero(c);
    DDP__UNROLL for (int step = 0; step < D / 16; step++) {
        uint32_t left[MR][4];
        a.get(left, step);
        DDP__UNROLL for (int n = 0; n < N / 16; n++) {
            uint32_t f[4];
            ddp__matrices(f, ddp__tile_at<D>(b, n * 16 + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
            DDP__UNROLL for (int r = 0; r < MR; r++) {
                ddp__mma(c[r][2 * n], left[r], f[0], f[1]);
                ddp__mma(c[r][2 * n + 1], left[r], f[2], f[3]);
            }
        }
    }
}

/* c (16 MR x D) += p (16 MR x N) b, b (N x D) a tile; p as ddp__tile_scores leaves it: what a lane
 * holds of a product is what it must hold of the next one's left factor. */
template <int D, int MR, int N>
__device__ static __forceinline__ void ddp__tile_add(float (&c)[MR][D / 8][4], const float (&p)[MR][N / 8][4],
                                                     const ddp__bf16 *b)
{
    const int lane = (int)threadIdx.x % 32;

    DDP__UNROLL for (int step = 0; step < N / 16; step++) {
        uint32_t a[MR][4];
        DDP__UNROLL for (int r = 0; r < MR; r++) {
            a[r][0] = ddp__pack_pair(p[r][2 * step][0], p[r][2 * step][1]);
            a[r][1] = ddp__pack_pair(p[r][2 * step][2], p[r][2 * step][3]);
            a[r][2] = ddp__pack_pair(p[r][2 * step + 1][0], p[r][2 * step + 1][1]);
            a[r][3] = ddp__pack_pair(p[r][2 * step + 1][2], p[r][2 * step + 1][3]);
        }
        DDP__UNROLL for (int n = 0; n < D / 16; n++) {
            uint32_t f[4];
            ddp__matrices_turned(f, ddp__tile_at<D>(b, step * 16 + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
            DDP__UNROLL for (int r = 0; r < MR; r++) {
                ddp__mma(c[r][2 * n], a[r], f[0], f[1]);
                ddp__mma(c[r][2 * n + 1], a[r], f[2], f[3]);
            }
        }
    }
}

/* to = or += c by, rows from first on below count, d columns. tile: 16 MR rows of shared memory
 * that this warp alone uses, through which they become 16 bytes per lane. */
template <int D, int MR>
__device__ static __forceinline__ void ddp__tile_store(ddp__bf16 *to, long ld, int first, int count, int d, int add,
                                                       const float (&c)[MR][D / 8][4], float by, ddp__bf16 *tile)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

    __syncwarp();
    DDP__UNROLL for (int r = 0; r < MR; r++)
        DDP__UNROLL for (int n = 0; n < D / 8; n++) {
            ddp__put_pair(ddp__tile_at<D>(tile, 16 * r + g, n) + 2 * t,
                          ddp__pack_pair(c[r][n][0] * by, c[r][n][1] * by));
            ddp__put_pair(ddp__tile_at<D>(tile, 16 * r + g + 8, n) + 2 * t,
                          ddp__pack_pair(c[r][n][2] * by, c[r][n][3] * by));
        }
    __syncwarp();
    for (int i = lane; i < 16 * MR * D / 8; i += 32) {
        const int row = i / (D / 8), piece = i % (D / 8);
        float v[8];

        if (first + row >= count || piece * 8 >= d) continue;
        ddp__piece_load(v, ddp__tile_at<D>(tile, row, piece), 0, 8, 1);
        ddp__piece_store(to + (first + row) * ld, v, piece * 8, d, 1, add);
    }
}

#endif /* DDP_CUDA_MMA_CUH */
