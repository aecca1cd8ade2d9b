/* Tensor-core products (wmma). The element layout of a fragment is unspecified, so lane 0 of a warp holds all
 * elements here, and the other lanes none. __syncwarp checks that the whole warp takes part. */
#ifndef CUDA_ON_CPU_WMMA_H
#define CUDA_ON_CPU_WMMA_H

#include <cuda_bf16.h>

namespace nvcuda
{
namespace wmma
{

struct row_major {
};
struct col_major {
};
struct matrix_a {
};
struct matrix_b {
};
struct accumulator {
};
enum layout_t { mem_row_major, mem_col_major };
namespace precision
{
struct tf32 {
};
} // namespace precision

/* Keeps 10 bits of the mantissa; rounds ties away from 0. */
inline float __float_to_tf32(float x)
{
    const unsigned u = __float_as_uint(x);

    return (u & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((u + 0x1000u) & ~0x1fffu);
}

template <typename T> struct number_of {
    typedef T type;
};
template <> struct number_of<precision::tf32> {
    typedef float type;
};

/* rows x cols of a fragment of this kind. */
template <typename Kind, int M, int N, int K> struct extent;
template <int M, int N, int K> struct extent<matrix_a, M, N, K> {
    enum { rows = M, cols = K };
};
template <int M, int N, int K> struct extent<matrix_b, M, N, K> {
    enum { rows = K, cols = N };
};
template <int M, int N, int K> struct extent<accumulator, M, N, K> {
    enum { rows = M, cols = N };
};

inline int first_lane()
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32 == 0;
}

template <typename Kind, int M, int N, int K, typename T, typename Layout = void> struct fragment {
    typedef typename number_of<T>::type number;
    enum {
        rows = extent<Kind, M, N, K>::rows,
        cols = extent<Kind, M, N, K>::cols,
        num_elements = rows * cols
    };
    union {
        float all[rows][cols];
        float x[num_elements];
    };
};

inline void same_bits(const void *p, unsigned ld, size_t size)
{
    cuda_on_cpu::check_aligned(p, 32);
    cuda_on_cpu::check_aligned((const void *)(ld * size), 16);
}

template <typename Kind, int M, int N, int K, typename T>
void fill_fragment(fragment<Kind, M, N, K, T> &f, float x)
{
    if (!first_lane()) return;
    for (auto &row : f.all)
        for (auto &e : row) e = x;
}

template <typename Kind, int M, int N, int K, typename T, typename Layout>
void load_matrix_sync(fragment<Kind, M, N, K, T, Layout> &f, const typename number_of<T>::type *p,
                      unsigned ld)
{
    const bool by_row = std::is_same<Layout, row_major>::value;

    same_bits(p, ld, sizeof *p);
    __syncwarp();
    for (int r = 0; first_lane() && r < f.rows; r++)
        for (int c = 0; c < f.cols; c++)
            f.all[r][c] = (float)p[by_row ? (size_t)r * ld + (size_t)c : (size_t)c * ld + (size_t)r];
    __syncwarp();
}

template <int M, int N, int K, typename T, typename LA, typename LB>
void mma_sync(fragment<accumulator, M, N, K, float> &d, const fragment<matrix_a, M, N, K, T, LA> &a,
              const fragment<matrix_b, M, N, K, T, LB> &b, const fragment<accumulator, M, N, K, float> &c)
{
    for (int r = 0; first_lane() && r < M; r++) {
        for (int n = 0; n < N; n++) d.all[r][n] = c.all[r][n];
        for (int k = 0; k < K; k++)
            for (int n = 0; n < N; n++) d.all[r][n] += a.all[r][k] * b.all[k][n];
    }
    if (first_lane()) d.all[0][0] += cuda_on_cpu::wrong(cuda_on_cpu::WRONG_WMMA);
}

template <int M, int N, int K>
void store_matrix_sync(float *p, const fragment<accumulator, M, N, K, float> &f, unsigned ld, layout_t layout)
{
    same_bits(p, ld, sizeof *p);
    __syncwarp();
    for (int r = 0; first_lane() && r < M; r++)
        for (int c = 0; c < N; c++)
            p[layout == mem_row_major ? (size_t)r * ld + (size_t)c : (size_t)c * ld + (size_t)r] =
                f.all[r][c];
}

} /* namespace wmma */
} /* namespace nvcuda */

#endif /* CUDA_ON_CPU_WMMA_H */
