/* How a block of a convolution multiplies two tiles that lie in shared memory: with plain
 * multiply-adds (float32; the reference for the others), or on tensor cores in bf16 or TF32.
 * A tile of BM rows of A meets one of 128 columns of B, `depth` deep, in 8 warps: each warp has
 * BM / 2 rows and 32 columns, and in the end every lane is shown the sums of its own column. */
#ifndef DDP_CUDA_CONV_TILE_CUH
#define DDP_CUDA_CONV_TILE_CUH

#include "cuda/vector.cuh"

#include <mma.h>

/* Tensor cores multiply bf16 and TF32 from sm_80 on; older code never launches what needs them. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define DDP__CONV_MMA 1
#else
#define DDP__CONV_MMA 0
#endif

#ifndef DDP__UNROLL
#if defined(__CUDACC__)
#define DDP__UNROLL _Pragma("unroll")
#else
#define DDP__UNROLL
#endif
#endif

enum { DDP__CONV_THREADS = 256, DDP__CONV_COLUMNS = 128, DDP__CONV_STAGE = 36 };

/* ---- plain: both tiles have k as their slow index ---- */

template <typename T, int BM, bool ByRow> struct ddp__conv_plain {
    typedef T     value; /* of the tensors */
    typedef float tile;  /* in shared memory */
    enum {
        tall = BM,
        depth = 16,
        rows = BM / 2,
        a_row = BM + 4,
        b_row = DDP__CONV_COLUMNS + 4,
        a_size = depth * a_row,
        b_size = depth * b_row
    };
    float sum[rows];

    static __device__ int   a_at(int m, int k) { return k * a_row + m; }
    static __device__ int   b_at(int n, int k) { return k * b_row + n; }
    static __device__ float number(T x) { return ddp__to_float(x); }

    /* 16 bytes of row m of A, from column k on. */
    static __device__ void put_a(float *a, int m, int k, const ddp__vec<float> &e)
    {
        for (int i = 0; i < 4; i++) a[a_at(m, k + i)] = e.v[i];
    }

    /* The same of column n of B, where B is not by row. */
    static __device__ void put_b(float *b, int n, int k, const ddp__vec<float> &e)
    {
        for (int i = 0; i < 4; i++) b[b_at(n, k + i)] = e.v[i];
    }

    __device__ void clear()
    {
        for (int i = 0; i < rows; i++) sum[i] = 0;
    }

    /* m, n: where the warp's rows and columns begin. */
    __device__ void multiply(const float *a, const float *b, int m, int n, int lane)
    {
        for (int k = 0; k < depth; k++) {
            const float x = b[b_at(n + lane, k)];
            DDP__UNROLL
            for (int i = 0; i < rows; i++) sum[i] += a[a_at(m + i, k)] * x;
        }
    }

    /* show(row of the warp, sum) for every row of the lane's column. */
    template <typename Show> __device__ void each(float *stage, int lane, Show show)
    {
        (void)stage;
        (void)lane;
        DDP__UNROLL
        for (int i = 0; i < rows; i++) show(i, sum[i]);
    }
};

/* ---- tensor cores ---- */

/* One of the two number formats: a tile element, and the products' depth. */
struct ddp__mma_bf16 {
    typedef ddp__bf16 value;
    static __device__ ddp__bf16 number(ddp__bf16 x) { return x; }
#if DDP__CONV_MMA
    typedef ddp__bf16 element;
#endif
    enum { k = 16 };
};

struct ddp__mma_tf32 {
    typedef float value;
#if DDP__CONV_MMA
    typedef nvcuda::wmma::precision::tf32 element;
    static __device__ float number(float x) { return nvcuda::wmma::__float_to_tf32(x); }
#else
    static __device__ float number(float x) { return x; }
#endif
    enum { k = 8 };
};

/* ByRow: a row of B's tile is one k, else one column. Rows are 16 bytes longer than what they
 * hold, so that the lanes of a load meet different banks. */
template <typename N, int BM, bool ByRow> struct ddp__conv_mma {
    typedef typename N::value value;
    typedef value             tile;
    enum {
        tall = BM,
        depth = 64 / (int)sizeof(tile),
        pad = 16 / (int)sizeof(tile),
        rows = BM / 2,
        a_row = depth + pad,
        b_row = (ByRow ? (int)DDP__CONV_COLUMNS : (int)depth) + pad,
        a_size = BM * a_row,
        b_size = (ByRow ? (int)depth : (int)DDP__CONV_COLUMNS) * b_row
    };

    static __device__ int   a_at(int m, int k) { return m * a_row + k; }
    static __device__ int   b_at(int n, int k) { return ByRow ? k * b_row + n : n * b_row + k; }
    static __device__ value number(value x) { return N::number(x); }

    static __device__ void put_a(tile *a, int m, int k, const ddp__vec<tile> &e)
    {
        ddp__vec_store(a + a_at(m, k), e);
    }

    static __device__ void put_b(tile *b, int n, int k, const ddp__vec<tile> &e)
    {
        ddp__vec_store(b + b_at(n, k), e);
    }

#if DDP__CONV_MMA
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, N::k, float> sum[BM / 32][2];

    __device__ void clear()
    {
        for (int i = 0; i < BM / 32; i++)
            for (int j = 0; j < 2; j++) nvcuda::wmma::fill_fragment(sum[i][j], 0.0f);
    }

    __device__ void multiply(const tile *a, const tile *b, int m, int n, int lane)
    {
        using namespace nvcuda::wmma;
        typedef typename std::conditional<ByRow, row_major, col_major>::type layout;

        (void)lane;
        DDP__UNROLL
        for (int k = 0; k < depth; k += N::k) {
            fragment<matrix_b, 16, 16, N::k, typename N::element, layout> right[2];
            fragment<matrix_a, 16, 16, N::k, typename N::element, row_major> left;
            for (int j = 0; j < 2; j++)
                load_matrix_sync(right[j], b + b_at(n + 16 * j, k), (unsigned)b_row);
            DDP__UNROLL
            for (int i = 0; i < BM / 32; i++) {
                load_matrix_sync(left, a + a_at(m + 16 * i, k), (unsigned)a_row);
                for (int j = 0; j < 2; j++) mma_sync(sum[i][j], left, right[j], sum[i][j]);
            }
        }
    }

    /* stage: 16 rows of DDP__CONV_STAGE floats, the warp's own. */
    template <typename Show> __device__ void each(float *stage, int lane, Show show)
    {
        DDP__UNROLL
        for (int i = 0; i < BM / 32; i++) {
            for (int j = 0; j < 2; j++)
                nvcuda::wmma::store_matrix_sync(stage + 16 * j, sum[i][j],
                                                (unsigned)DDP__CONV_STAGE,
                                                nvcuda::wmma::mem_row_major);
            __syncwarp();
            for (int r = 0; r < 16; r++) show(16 * i + r, stage[r * DDP__CONV_STAGE + lane]);
            __syncwarp();
        }
    }
#else
    __device__ void clear() {}
    __device__ void multiply(const tile *, const tile *, int, int, int) {}
    template <typename Show> __device__ void each(float *, int, Show) {}
#endif
};

#endif /* DDP_CUDA_CONV_TILE_CUH */
