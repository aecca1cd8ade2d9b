/* attention on tensor cores, in bfloat16 and TF32, for heads up to 128 wide (FlashAttention-2,
 * arXiv:2307.08691, without its atomics). A warp owns 16 MR rows: rows of queries in forward and for dq, rows
 * of keys for dk and dv, where it computes the transposed scores. Each softmax weight and its gradient is
 * therefore computed in the registers where the next product reads it. No weight passes through shared
 * memory, and no two warps add to the same sum. The next tile of the other operand is loaded while the
 * current one is used. GROUP: a group of four warps multiplies with Hopper's wgmma, in bfloat16 for heads up
 * to 64 wide, and the copy engine (TMA) loads the tiles. Everything else is the same. */
#pragma once

#include "cuda/mma.cuh"

enum { DDP__FLASH_WARPS = 4, DDP__FLASH_THREADS = 32 * DDP__FLASH_WARPS };

#define DDP__LOG2E 1.44269504088896340736f

/* Forward for one tile of keys, from key first on. s: scores of the warp's rows, from row from on, which
 * become weights. acc and sum (one part per lane) are rescaled and updated. */
template <int D, int MR, int N>
__device__ static __forceinline__ void ddp__flash_softmax(float (&s)[MR][N / 8][4], float (&max)[MR][2],
                                                          float (&sum)[MR][2], float (&acc)[MR][D / 8][4],
                                                          int from, int first, float scale)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

    DDP__UNROLL for (int r = 0; r < MR; r++) DDP__UNROLL for (int h = 0; h < 2; h++)
    {
        const int row = from + 16 * r + g + 8 * h;
        float top = max[r][h], shrink;
        if (first + N - 1 > from + 16 * r)
            DDP__UNROLL for (int n = 0; n < N / 8; n++)
                DDP__UNROLL for (int i = 0; i < 2; i++) if (first + 8 * n + 2 * t + i > row)
                    s[r][n][2 * h + i] = -INFINITY;
        DDP__UNROLL for (int n = 0; n < N / 8; n++) top =
            fmaxf(top, fmaxf(s[r][n][2 * h], s[r][n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(DDP__ALL_LANES, top, 1));
        top = fmaxf(top, __shfl_xor_sync(DDP__ALL_LANES, top, 2));
        shrink = ddp__exp2((max[r][h] - top) * scale);
        max[r][h] = top;
        sum[r][h] *= shrink;
        DDP__UNROLL for (int n = 0; n < D / 8; n++)
        {
            acc[r][n][2 * h] *= shrink;
            acc[r][n][2 * h + 1] *= shrink;
        }
        top *= scale;
        DDP__UNROLL for (int n = 0; n < N / 8; n++) DDP__UNROLL for (int i = 0; i < 2; i++)
        {
            s[r][n][2 * h + i] = ddp__exp2(s[r][n][2 * h + i] * scale - top);
            sum[r][h] += s[r][n][2 * h + i];
        }
    }
}

/* Block: a tile of 16 MR queries per warp of one head, against tiles of N keys. With HOLD, the queries stay
 * in registers. The second launch bound is the number of blocks whose registers fit a multiprocessor. */
template <typename T, int D, int MR, int N, int HOLD, int THREADS, int GROUP>
static __global__ void __launch_bounds__(THREADS, 2)
    ddp__k_flash(T *out, float *stat, const __grid_constant__ ddp__tiles<T> in, ddp__heads z)
{
    if (GROUP && !DDP__WGMMA) return;
    const int rows = MR * THREADS / 2, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int count = (int)z.t, tiles = (count + rows - 1) / rows;
    const long head = (int)blockIdx.x / tiles;
    const int start = (tiles - 1 - (int)blockIdx.x % tiles) * rows; /* start the longest sums first */
    const int from = start + 16 * MR * warp, end = start + rows < count ? start + rows : count;
    const int sequence = (int)(head / z.heads), query = (int)(head % z.heads),
              key = (int)(z.heads + query / z.group);
    DDP__SHARED(T, q);
    T *kv = q + rows * D; /* two buffers of keys and values */
    ddp__arrivals<GROUP> due((uint64_t *)(kv + 4 * N * D), in.late);
    ddp__tile_rows<T, D, MR, HOLD> left;
    float max[MR][2], sum[MR][2], acc[MR][D / 8][4], s[MR][N / 8][4];
    int first, r, h, n, now = 0;

    ddp__tile_zero(acc);
    DDP__UNROLL for (r = 0; r < MR; r++)
    {
        max[r][0] = max[r][1] = -INFINITY;
        sum[r][0] = sum[r][1] = 0;
    }
    left.rows = q + 16 * MR * warp * D;
    in.template load<D, MR * THREADS / 2, THREADS>(due, q, NULL, 0, sequence, query, start);
    in.template load<D, N, THREADS>(due, kv, kv + N * D, (int)z.kv_heads, sequence, key, 0);
    due.sent();
    for (first = 0; first < end; first += N, now ^= 1) {
        const T *k = kv + now * 2 * N * D;
        if (due.wait()) return;
        if (first == 0) left.keep();
        if (first + N < end) {
            T *next = kv + (now ^ 1) * 2 * N * D;
            in.template load<D, N, THREADS>(due, next, next + N * D, (int)z.kv_heads, sequence, key,
                                            first + N);
            due.sent();
        }
        if (first > (GROUP ? from | 63 : from + 16 * MR - 1))
            continue; /* no query of this warp or group sees these keys */
        ddp__tile_scores<GROUP, N>(s, left, k);
        ddp__flash_softmax<D, MR, N>(s, max, sum, acc, from, first, z.scale * DDP__LOG2E);
        ddp__tile_add<GROUP, D, MR, N>(acc, s, k + N * D);
    }
    DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (h = 0; h < 2; h++)
    {
        const int row = from + 16 * r + lane / 4 + 8 * h;
        float inverse = sum[r][h];
        inverse += __shfl_xor_sync(DDP__ALL_LANES, inverse, 1);
        inverse += __shfl_xor_sync(DDP__ALL_LANES, inverse, 2);
        inverse = 1 / inverse;
        DDP__UNROLL for (n = 0; n < D / 8; n++)
        {
            acc[r][n][2 * h] *= inverse;
            acc[r][n][2 * h + 1] *= inverse;
        }
        if (lane % 4 || row >= count) continue;
        stat[2 * (head * z.t + row)] = max[r][h] * z.scale;
        stat[2 * (head * z.t + row) + 1] = inverse;
    }
    if (GROUP) __syncthreads(); /* other warps may still read the queries by wgmma */
    ddp__tile_store<D, MR>(out + ddp__heads_out(&z, head), z.width, from, count, z.d, 0, acc, 1.0f,
                           q + 16 * MR * warp * D);
}

/* p = 2^(scale s - log2_sum), the softmax weight of a score s. */
__device__ static __forceinline__ float ddp__flash_log_sum(const float *stat, int row, int count)
{
    return row < count ? stat[2 * row] * DDP__LOG2E - log2f(stat[2 * row + 1]) : 0.0f;
}

/* Block: dq of a tile of 16 MR queries per warp of one head. With HOLD, queries and dout stay in
 * registers. */
template <typename T, int D, int MR, int N, int HOLD, int GROUP>
static __global__ void __launch_bounds__(DDP__FLASH_THREADS, (D * MR) <= 64 ? 3 : 2)
    ddp__k_flash_dq(T *grad, const __grid_constant__ ddp__tiles<T> in,
                    const __grid_constant__ ddp__tiles<T> dout, const float *stat, const float *mean,
                    ddp__heads z, int add)
{
    if (GROUP && !DDP__WGMMA) return;
    const int rows = 16 * MR * DDP__FLASH_WARPS, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int count = (int)z.t, tiles = (count + rows - 1) / rows;
    const long head = (int)blockIdx.x / tiles;
    const int start = (tiles - 1 - (int)blockIdx.x % tiles) * rows;
    const int from = start + 16 * MR * warp, end = start + rows < count ? start + rows : count;
    const float scale = z.scale * DDP__LOG2E;
    const int sequence = (int)(head / z.heads), query = (int)(head % z.heads),
              key = (int)(z.heads + query / z.group);
    DDP__SHARED(T, q);
    T *o = q + rows * D, *kv = o + rows * D;
    ddp__arrivals<GROUP> due((uint64_t *)(kv + 4 * N * D), in.late);
    ddp__tile_rows<T, D, MR, HOLD> left, right;
    float log_sum[MR][2], centre[MR][2], acc[MR][D / 8][4], s[MR][N / 8][4], dp[MR][N / 8][4];
    int first, r, h, n, i, now = 0;

    DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (h = 0; h < 2; h++)
    {
        const int row = from + 16 * r + lane / 4 + 8 * h;
        log_sum[r][h] = ddp__flash_log_sum(stat + 2 * head * z.t, row, count);
        centre[r][h] = row < count ? mean[head * z.t + row] : 0.0f;
    }
    ddp__tile_zero(acc);
    left.rows = q + 16 * MR * warp * D;
    right.rows = o + 16 * MR * warp * D;
    in.template load<D, 16 * MR * DDP__FLASH_WARPS, DDP__FLASH_THREADS>(due, q, NULL, 0, sequence, query,
                                                                        start);
    dout.template load<D, 16 * MR * DDP__FLASH_WARPS, DDP__FLASH_THREADS>(due, o, NULL, 0, sequence, query,
                                                                          start);
    in.template load<D, N, DDP__FLASH_THREADS>(due, kv, kv + N * D, (int)z.kv_heads, sequence, key, 0);
    due.sent();
    for (first = 0; first < end; first += N, now ^= 1) {
        const T *k = kv + now * 2 * N * D;
        if (due.wait()) return;
        if (first == 0) {
            left.keep();
            right.keep();
        }
        if (first + N < end) {
            T *next = kv + (now ^ 1) * 2 * N * D;
            in.template load<D, N, DDP__FLASH_THREADS>(due, next, next + N * D, (int)z.kv_heads, sequence,
                                                       key, first + N);
            due.sent();
        }
        if (!GROUP && first > from + 16 * MR - 1) continue;
        ddp__tile_scores<GROUP, N>(s, left, k);
        ddp__tile_scores<GROUP, N>(dp, right, k + N * D);
        if (first + N - 1 > from)
            DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (n = 0; n < N / 8; n++)
                DDP__UNROLL for (i = 0; i < 4; i++) if (first + 8 * n + lane % 4 * 2 + i % 2 >
                                                        from + 16 * r + lane / 4 + i / 2 * 8) s[r][n][i] =
                    -INFINITY;
        DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (n = 0; n < N / 8; n++)
            DDP__UNROLL for (i = 0; i < 4; i++) s[r][n][i] =
                ddp__exp2(s[r][n][i] * scale - log_sum[r][i / 2]) * (dp[r][n][i] - centre[r][i / 2]);
        ddp__tile_add<GROUP, D, MR, N>(acc, s, k);
    }
    if (GROUP) __syncthreads(); /* other warps may still read the queries and dout by wgmma */
    ddp__tile_store<D, MR>(grad + ddp__heads_q(&z, head), z.row, from, count, z.d, add, acc, z.scale,
                           q + 16 * MR * warp * D);
}

/* Loads a tile of N queries and dout of one head, and the statistics of their weights, into a buffer in
 * shared memory. */
template <int D, int N, int GROUP, typename T>
__device__ static __forceinline__ void ddp__flash_queries(ddp__arrivals<GROUP> &due, T *to, float *sums,
                                                          const ddp__tiles<T> &in, const ddp__tiles<T> &dout,
                                                          const float *stat, const float *mean, int sequence,
                                                          int head, int from)
{
    in.template load<D, N, DDP__FLASH_THREADS>(due, to, NULL, 0, sequence, head, from);
    dout.template load<D, N, DDP__FLASH_THREADS>(due, to + N * D, NULL, 0, sequence, head, from);
    due.sent();
    if (threadIdx.x < N) {
        const int row = from + (int)threadIdx.x, count = dout.count;
        const long first = ((long)sequence * dout.heads + head) * count;
        sums[threadIdx.x] = ddp__flash_log_sum(stat + 2 * first, row, count);
        sums[N + threadIdx.x] = row < count ? mean[first + row] : 0.0f;
    }
}

/* Block: dk and dv of a tile of 16 MR keys per warp of one head of keys, over the queries of all heads that
 * share it, in tiles of N. With HOLD, keys and values stay in registers. */
template <typename T, int D, int MR, int N, int HOLD, int GROUP>
static __global__ void __launch_bounds__(DDP__FLASH_THREADS, (D * MR) <= 64 ? 3 : 2)
    ddp__k_flash_dkv(T *grad, const __grid_constant__ ddp__tiles<T> in,
                     const __grid_constant__ ddp__tiles<T> dout, const float *stat, const float *mean,
                     ddp__heads z, int add)
{
    if (GROUP && !DDP__WGMMA) return;
    const int rows = 16 * MR * DDP__FLASH_WARPS, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int count = (int)z.t, tiles = (count + rows - 1) / rows;
    const long kv_head = (int)blockIdx.x / tiles;
    const int start = (int)blockIdx.x % tiles * rows, first = start + 16 * MR * warp;
    const int sequence = (int)(kv_head / z.kv_heads), key = (int)(kv_head % z.kv_heads),
              query = (int)(key * z.group), end = query + (int)z.group; /* heads of queries */
    const int begin = start / N * N; /* no query before it sees these keys */
    const float scale = z.scale * DDP__LOG2E;
    DDP__SHARED(T, k);
    T *v = k + rows * D, *qo = v + rows * D;
    float *sums = (float *)(qo + 4 * N * D); /* log_sum and mean of both buffers */
    ddp__arrivals<GROUP> due((uint64_t *)(sums + 4 * N), in.late);
    ddp__tile_rows<T, D, MR, HOLD> left, right;
    float dk[MR][D / 8][4], dv[MR][D / 8][4], s[MR][N / 8][4], dp[MR][N / 8][4];
    int head = query, from = begin, r, n, e, now = 0;

    ddp__tile_zero(dk);
    ddp__tile_zero(dv);
    left.rows = k + 16 * MR * warp * D;
    right.rows = v + 16 * MR * warp * D;
    in.template load<D, 16 * MR * DDP__FLASH_WARPS, DDP__FLASH_THREADS>(due, k, v, (int)z.kv_heads, sequence,
                                                                        (int)z.heads + key, start);
    ddp__flash_queries<D, N>(due, qo, sums, in, dout, stat, mean, sequence, head, from);
    while (head < end) {
        const T *q = qo + now * 2 * N * D;
        const float *log_sum = sums + now * 2 * N, *centre = log_sum + N;
        const int mine = from;
        if (due.wait()) return;
        if (head == query && from == begin) {
            left.keep();
            right.keep();
        }
        now ^= 1;
        from += N;
        if (from >= count) {
            from = begin;
            head++;
        }
        if (head < end)
            ddp__flash_queries<D, N>(due, qo + now * 2 * N * D, sums + now * 2 * N, in, dout, stat, mean,
                                     sequence, head, from);
        if (!GROUP && first > mine + N - 1) continue; /* no query of this tile sees a key of this warp */
        ddp__tile_scores<GROUP, N>(s, left, q);
        ddp__tile_scores<GROUP, N>(dp, right, q + N * D);
        if (first + 16 * MR - 1 > mine)
            DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (n = 0; n < N / 8; n++)
                DDP__UNROLL for (e = 0; e < 4; e++) if (first + 16 * r + lane / 4 + e / 2 * 8 >
                                                        mine + 8 * n + lane % 4 * 2 + e % 2) s[r][n][e] =
                    -INFINITY;
        DDP__UNROLL for (n = 0; n < N / 8; n++)
        {
            const float2 l = *(const float2 *)(log_sum + 8 * n + lane % 4 * 2);
            const float2 m = *(const float2 *)(centre + 8 * n + lane % 4 * 2);
            DDP__UNROLL for (r = 0; r < MR; r++) DDP__UNROLL for (e = 0; e < 4; e++)
            {
                s[r][n][e] = ddp__exp2(s[r][n][e] * scale - (e % 2 ? l.y : l.x));
                dp[r][n][e] = s[r][n][e] * (dp[r][n][e] - (e % 2 ? m.y : m.x));
            }
        }
        ddp__tile_add<GROUP, D, MR, N>(dv, s, q + N * D);
        ddp__tile_add<GROUP, D, MR, N>(dk, dp, q);
    }
    if (GROUP) __syncthreads(); /* other warps may still read the keys and values by wgmma */
    grad += ddp__heads_k(&z, kv_head);
    ddp__tile_store<D, MR>(grad, z.row, first, count, z.d, add, dk, z.scale, k + 16 * MR * warp * D);
    ddp__tile_store<D, MR>(grad + z.kv_heads * z.d, z.row, first, count, z.d, add, dv, 1.0f,
                           v + 16 * MR * warp * D);
}

/* 1 if the tensor-core kernels support these arrays: multiples of 16 bytes, heads up to 128 wide, bfloat16 or
 * TF32. */
static inline int ddp__flash_fits(const ddp__cuda *dev, const ddp__heads *z, const void *in, const void *out,
                                  const void *dout, const void *grad)
{
    return (dev->half || dev->tf32) && !(dev->forms & DDP__PLAIN_ATTENTION) &&
           z->d % (dev->half ? 8 : 4) == 0 && z->d <= 128 && ddp__aligned(in, out, dout, grad);
}

/* The tiles of an array with that number of heads per row. Also encodes the map for the copy engine if it is
 * used. */
template <typename T>
static ddp__tiles<T> ddp__tiles_of(ddp__cuda *dev, const void *array, long heads, const ddp__heads *z)
{
    const cuuint64_t row = (cuuint64_t)(heads * z->d) * sizeof(T),
                     dim[4] = {(cuuint64_t)z->d, (cuuint64_t)heads, (cuuint64_t)z->t, (cuuint64_t)z->b};
    const cuuint64_t apart[3] = {(cuuint64_t)z->d * sizeof(T), row, row * (cuuint64_t)z->t};
    const cuuint32_t box[4] = {DDP__FETCHED, 1, DDP__FETCHED, 1}, each[4] = {1, 1, 1, 1};
    ddp__tiles<T> s = {};
    int e = 0;

    s.late = dev->late_there;
    s.base = (const T *)array;
    s.heads = (int)heads;
    s.count = (int)z->t;
    s.d = z->d;
    if (dev->map)
        e = dev->map(&s.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void *>(array), dim, apart, box,
                     each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (e)
        ddp__cuda_fail(dev, DDP_FAILED,
                       "GPU %d: cuTensorMapEncodeTiled failed with driver error %d; set "
                       "DREAMDDP_CUDA_HOPPER=0, which selects attention without it",
                       dev->device, e);
    return s;
}

template <typename T, int D, int MR, int N, int HOLD, int THREADS, int GROUP>
static void ddp__cuda_flash_forward_of(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    const long rows = MR * THREADS / 2;
    DDP__LAUNCH((ddp__k_flash<T, D, MR, N, HOLD, THREADS, GROUP>),
                (unsigned)(ddp__blocks(z->t, rows) * z->b * z->heads), THREADS,
                (rows + 4 * N) * D * (long)sizeof(T) + DDP__ARRIVALS, dev->stream, (T *)c->out,
                (float *)c->saved, ddp__tiles_of<T>(dev, c->in[0], z->heads + 2 * z->kv_heads, z), *z);
}

/* Tiles have N queries for dk and dv, and NK keys for dq. */
template <typename T, int D, int MR, int N, int NK, int GROUP>
static void ddp__cuda_flash_backward_of(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    const long rows = 16 * MR * DDP__FLASH_WARPS, row = D * (long)sizeof(T);
    const float *stat = (const float *)c->saved, *mean = (const float *)dev->scratch;
    const ddp__tiles<T> in = ddp__tiles_of<T>(dev, c->in[0], z->heads + 2 * z->kv_heads, z);
    const ddp__tiles<T> dout = ddp__tiles_of<T>(dev, c->grad_out, z->heads, z);

    DDP__LAUNCH((ddp__k_flash_dkv<T, D, MR, N, 0, GROUP>),
                (unsigned)(ddp__blocks(z->t, rows) * z->b * z->kv_heads), DDP__FLASH_THREADS,
                (2 * rows + 4 * N) * row + 4 * N * (long)sizeof(float) + DDP__ARRIVALS, dev->stream,
                (T *)c->grad_in[0], in, dout, stat, mean, *z, c->add_in[0]);
    DDP__LAUNCH((ddp__k_flash_dq<T, D, MR, NK, 0, GROUP>),
                (unsigned)(ddp__blocks(z->t, rows) * z->b * z->heads), DDP__FLASH_THREADS,
                (2 * rows + 4 * NK) * row + DDP__ARRIVALS, dev->stream, (T *)c->grad_in[0], in, dout, stat,
                mean, *z, c->add_in[0]);
}

/* Floats use smaller tiles: they need twice the shared memory, and a block may have only 99 KiB on some GPUs.
 * */
static void ddp__cuda_flash_forward(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    const int threads = DDP__FLASH_THREADS;

    if (z->d <= 64 && dev->map)
        ddp__cuda_flash_forward_of<ddp__bf16, 64, 1, 64, 0, 2 * threads, 1>(dev, c, z);
    else if (z->d <= 64 && dev->half)
        ddp__cuda_flash_forward_of<ddp__bf16, 64, 2, 64, 0, threads, 0>(dev, c, z);
    else if (z->d <= 64)
        ddp__cuda_flash_forward_of<float, 64, 2, 32, 0, threads, 0>(dev, c, z);
    else if (dev->half)
        ddp__cuda_flash_forward_of<ddp__bf16, 128, 1, 64, 1, threads, 0>(dev, c, z);
    else
        ddp__cuda_flash_forward_of<float, 128, 1, 32, 0, threads, 0>(dev, c, z);
}

/* dev->scratch holds the means of dp. */
static void ddp__cuda_flash_backward(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    if (z->d <= 64 && dev->map)
        ddp__cuda_flash_backward_of<ddp__bf16, 64, 1, 64, 64, 1>(dev, c, z);
    else if (z->d <= 64 && dev->half)
        ddp__cuda_flash_backward_of<ddp__bf16, 64, 1, 64, 64, 0>(dev, c, z);
    else if (z->d <= 64)
        ddp__cuda_flash_backward_of<float, 64, 2, 16, 32, 0>(dev, c, z);
    else if (dev->half)
        ddp__cuda_flash_backward_of<ddp__bf16, 128, 1, 32, 32, 0>(dev, c, z);
    else
        ddp__cuda_flash_backward_of<float, 128, 1, 16, 16, 0>(dev, c, z);
}

/* Sets *yes to 1 if the program was compiled with wgmma. */
static __global__ void ddp__k_groups(int *yes) { *yes = DDP__WGMMA; }

/* 1 if attention uses wgmma. This needs a GPU that supports it, a program compiled for sm_90a, and
 * bfloat16. */
static inline void ddp__cuda_flash_open(ddp__cuda *dev)
{
    int yes = 0;

    if (!dev->half || dev->props.major != 9) return;
    DDP__RUN(ddp__k_groups, 1, 1, (int *)dev->workspace);
    (void)DDP__CUDA(dev, cudaStreamSynchronize(dev->stream));
    (void)DDP__CUDA(dev, cudaMemcpy(&yes, dev->workspace, sizeof yes, cudaMemcpyDeviceToHost));
    if (!yes || DDP__CUDA(dev, cudaHostAlloc((void **)&dev->late, sizeof *dev->late, cudaHostAllocMapped)))
        return;
    *dev->late = 0;
    if (!DDP__CUDA(dev, cudaHostGetDevicePointer((void **)&dev->late_there, dev->late, 0)))
        dev->map = (decltype(dev->map))ddp__cuda_driver("cuTensorMapEncodeTiled");
}
