/* attention without tensor cores: float32 arithmetic on tiles of 16 R queries and keys, for every number type
 * and heads up to 512 wide. This file also chooses between these kernels and the tensor-core kernels of
 * flash.cuh, which are tested against these. Forward saves the same two values per row and head as the CPU:
 * the maximum of the scaled scores, and 1 / sum. Backward takes two passes, one over queries and one over
 * keys and values, so that no two blocks add to the same sum. */
#pragma once

#include "cuda/flash.cuh"

enum { DDP__ATTEND_THREADS = 256, DDP__ATTEND_SIDE = 16 };

/* Row length in shared memory for rows of d floats. Threads that read the same 16-byte piece of different
 * rows access different banks. */
__host__ __device__ static __forceinline__ int ddp__attend_row(int d) { return (d + 3) / 4 * 4 + 4; }

/* Loads up to R x 16 rows, starting at row first, into shared memory. Rows past count and columns past d are
 * zeros. */
template <typename T, int R>
__device__ static void ddp__attend_load(float *tile, const T *from, long ld, long first, long count, int d)
{
    const int x = (int)threadIdx.x % DDP__ATTEND_SIDE, y = (int)threadIdx.x / DDP__ATTEND_SIDE;
    for (int r = y; r < DDP__ATTEND_SIDE * R; r += DDP__ATTEND_SIDE)
        for (int c = x; c < (d + 3) / 4 * 4; c += DDP__ATTEND_SIDE)
            tile[r * ddp__attend_row(d) + c] =
                first + r < count && c < d ? ddp__to_float(from[(first + r) * ld + c]) : 0.0f;
}

/* s[i][j] = dot product of row y + 16 i of a and row x + 16 j of b. */
template <int R>
__device__ static void ddp__attend_scores(float (&s)[R][R], const float *a, const float *b, int d)
{
    const int x = (int)threadIdx.x % DDP__ATTEND_SIDE, y = (int)threadIdx.x / DDP__ATTEND_SIDE;
    const int ld = ddp__attend_row(d);
    ddp__vec<float> va[R], vb[R];

    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) s[i][j] = 0;
    for (int p = 0; p < d; p += 4) {
        for (int i = 0; i < R; i++) {
            va[i] = ddp__vec_load(a + (y + DDP__ATTEND_SIDE * i) * ld + p);
            vb[i] = ddp__vec_load(b + (x + DDP__ATTEND_SIDE * i) * ld + p);
        }
        for (int i = 0; i < R; i++)
            for (int j = 0; j < R; j++)
                for (int k = 0; k < 4; k++) s[i][j] += va[i].v[k] * vb[j].v[k];
    }
}

/* Maximum over the 16 threads of a row. */
__device__ static __forceinline__ float ddp__attend_max(float v)
{
    for (int step = DDP__ATTEND_SIDE / 2; step > 0; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(DDP__ALL_LANES, v, step));
    return v;
}

/* One block per (tile of queries, head). C: columns per thread, with 16 C >= d. */
template <typename T, int R, int C>
static __global__ void __launch_bounds__(DDP__ATTEND_THREADS)
    ddp__k_attend(T *out, float *stat, const T *in, ddp__heads z)
{
    const int side = DDP__ATTEND_SIDE, tile = side * R, ld = ddp__attend_row(z.d);
    const int x = (int)threadIdx.x % side, y = (int)threadIdx.x / side;
    const long tiles = (z.t + tile - 1) / tile, head = blockIdx.x / tiles;
    const long from = (tiles - 1 - blockIdx.x % tiles) * tile; /* start the longest sums first */
    const T *keys = in + ddp__heads_k(&z, head / z.group);
    DDP__SHARED(float, shared);
    float *q = shared, *kv = q + tile * ld, *p = kv + tile * ld;
    float max[R], sum[R], acc[R][C], s[R][R];

    for (int i = 0; i < R; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
        for (int c = 0; c < C; c++) acc[i][c] = 0;
    }
    ddp__attend_load<T, R>(q, in + ddp__heads_q(&z, head), z.row, from, z.t, z.d);
    for (long first = 0; first <= from; first += tile) {
        __syncthreads();
        ddp__attend_load<T, R>(kv, keys, z.row, first, z.t, z.d);
        __syncthreads();
        ddp__attend_scores<R>(s, q, kv, z.d);
        __syncthreads();
        ddp__attend_load<T, R>(kv, keys + z.kv_heads * z.d, z.row, first, z.t, z.d);
        for (int i = 0; i < R; i++) {
            const long t = from + y + side * i;
            float top = max[i], shrink;
            for (int j = 0; j < R; j++) {
                s[i][j] = first + x + side * j <= t ? s[i][j] * z.scale : -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            top = ddp__attend_max(top);
            shrink = expf(max[i] - top);
            max[i] = top;
            sum[i] *= shrink;
            for (int c = 0; c < C; c++) acc[i][c] *= shrink;
            for (int j = 0; j < R; j++) {
                const float e = expf(s[i][j] - top);
                sum[i] += e;
                p[(y + side * i) * (tile + 1) + x + side * j] = e;
            }
        }
        __syncthreads();
        for (int k = 0; k < tile; k++)
            for (int c = 0; c < C; c++)
                for (int i = 0; i < R && x + side * c < z.d; i++)
                    acc[i][c] += p[(y + side * i) * (tile + 1) + k] * kv[k * ld + x + side * c];
    }
    for (int i = 0; i < R; i++) {
        const long t = from + y + side * i;
        const float inverse = 1 / ddp__warp_sum(sum[i], DDP__ATTEND_SIDE);
        if (t >= z.t) continue;
        for (int c = 0; c < C && x + side * c < z.d; c++)
            out[ddp__heads_out(&z, head) + t * z.width + x + side * c] =
                ddp__from_float<T>(acc[i][c] * inverse);
        if (x) continue;
        stat[2 * (head * z.t + t)] = max[i];
        stat[2 * (head * z.t + t) + 1] = inverse;
    }
}

/* Computes p and d = p (dp - mean) scale for the tile of queries at from and the tile of keys at first, and
 * stores them as rows in shared memory. All threads of the block must call it. */
template <int R>
__device__ static void ddp__attend_grads(float *p, float *d, const float *q, const float *k, const float *v,
                                         const float *dout, const float *stat, const float *mean,
                                         const ddp__heads *z, long from, long first)
{
    const int side = DDP__ATTEND_SIDE, tile = side * R, x = (int)threadIdx.x % side,
              y = (int)threadIdx.x / side;
    float s[R][R], dp[R][R];

    ddp__attend_scores<R>(s, q, k, z->d);
    ddp__attend_scores<R>(dp, dout, v, z->d);
    for (int i = 0; i < R; i++) {
        const long t = from + y + side * i;
        for (int j = 0; j < R; j++) {
            const int at = (y + side * i) * (tile + 1) + x + side * j;
            const int seen = t < z->t && first + x + side * j <= t;
            const float e = seen ? expf(s[i][j] * z->scale - stat[2 * t]) * stat[2 * t + 1] : 0;
            p[at] = e;
            d[at] = seen ? e * (dp[i][j] - mean[t]) * z->scale : 0;
        }
    }
}

/* With KEYS 0, computes dq, one block per (tile of queries, head). With KEYS 1, computes dk and dv over the
 * queries of all heads that share the head of keys, one block per (tile of keys, head of keys). */
template <typename T, int R, int C, int KEYS>
static __global__ void __launch_bounds__(DDP__ATTEND_THREADS)
    ddp__k_attend_grad(T *grad, const T *in, const T *dout, const float *stat, const float *mean,
                       ddp__heads z, int add)
{
    const int side = DDP__ATTEND_SIDE, tile = side * R, ld = ddp__attend_row(z.d);
    const int x = (int)threadIdx.x % side, y = (int)threadIdx.x / side;
    const long tiles = (z.t + tile - 1) / tile, block = blockIdx.x / tiles, values = z.kv_heads * z.d;
    const long mine =
        (KEYS ? blockIdx.x % tiles : tiles - 1 - blockIdx.x % tiles) * tile; /* start the longest sums first
                                                                              * */
    const long shared_head = KEYS ? block : block / z.group, at = ddp__heads_k(&z, shared_head);
    DDP__SHARED(float, shared);
    float *q = shared, *o = q + tile * ld, *k = o + tile * ld, *v = k + tile * ld;
    float *p = v + tile * ld, *d = p + tile * (tile + 1);
    float one[R][C], two[R][C]; /* dk and dv for KEYS 1, dq and unused for KEYS 0 */

    for (int i = 0; i < R; i++)
        for (int c = 0; c < C; c++) one[i][c] = two[i][c] = 0;
    ddp__attend_load<T, R>(KEYS ? k : q, in + (KEYS ? at : ddp__heads_q(&z, block)), z.row, mine, z.t, z.d);
    if (KEYS)
        ddp__attend_load<T, R>(v, in + at + values, z.row, mine, z.t, z.d);
    else
        ddp__attend_load<T, R>(o, dout + ddp__heads_out(&z, block), z.width, mine, z.t, z.d);
    for (long turn = 0; turn < (KEYS ? z.group : 1); turn++)
        for (long other = KEYS ? mine : 0; KEYS ? other < z.t : other <= mine; other += tile) {
            const long from = KEYS ? other : mine, first = KEYS ? mine : other; /* first query, first key */
            const long head = KEYS ? shared_head * z.group + turn : block;
            __syncthreads();
            ddp__attend_load<T, R>(KEYS ? q : k, in + (KEYS ? ddp__heads_q(&z, head) : at), z.row, other, z.t,
                                   z.d);
            if (KEYS)
                ddp__attend_load<T, R>(o, dout + ddp__heads_out(&z, head), z.width, other, z.t, z.d);
            else
                ddp__attend_load<T, R>(v, in + at + values, z.row, other, z.t, z.d);
            __syncthreads();
            ddp__attend_grads<R>(p, d, q, k, v, o, stat + 2 * head * z.t, mean + head * z.t, &z, from, first);
            __syncthreads();
            for (int n = 0; n < tile; n++)
                for (int c = 0; c < C; c++)
                    for (int i = 0; i < R && x + side * c < z.d; i++) {
                        const int key = n * (tile + 1) + y + side * i,
                                  query = (y + side * i) * (tile + 1) + n;
                        one[i][c] += d[KEYS ? key : query] * (KEYS ? q : k)[n * ld + x + side * c];
                        if (KEYS) two[i][c] += p[key] * o[n * ld + x + side * c];
                    }
        }
    for (int i = 0; i < R; i++) {
        const long t = mine + y + side * i;
        for (int c = 0; c < C && t < z.t && x + side * c < z.d; c++) {
            T *g = grad + (KEYS ? at : ddp__heads_q(&z, block)) + t * z.row + x + side * c;
            *g = ddp__from_float<T>(one[i][c] + (add ? ddp__to_float(*g) : 0));
            if (!KEYS) continue;
            g += values;
            *g = ddp__from_float<T>(two[i][c] + (add ? ddp__to_float(*g) : 0));
        }
    }
}

/* mean[head t + row] = out . dout for one row of one head, which is the mean of dp weighted by p. Uses lanes
 * threads per row, a power of 2 up to 32. */
template <typename T>
static __global__ void ddp__k_attend_mean(float *mean, const T *out, const T *dout, ddp__heads z, int lanes,
                                          int wide)
{
    const int width = ddp__vec<T>::width, lane = (int)threadIdx.x % lanes;
    const long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) / lanes, row = i / z.heads,
               head = i % z.heads;
    const long at = row * z.width + head * z.d;
    float a[width], b[width], sum = 0;

    for (int j = lane * width; row < z.b * z.t && j < z.d; j += lanes * width) {
        ddp__piece_load(a, out + at, j, z.d, wide);
        ddp__piece_load(b, dout + at, j, z.d, wide);
        for (int k = 0; k < width; k++) sum += a[k] * b[k];
    }
    sum = ddp__warp_sum(sum, lanes);
    if (lane == 0 && row < z.b * z.t) mean[((row / z.t) * z.heads + head) * z.t + row % z.t] = sum;
}

template <typename T, int R, int C>
static void ddp__cuda_attend(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    const long tile = DDP__ATTEND_SIDE * R;
    DDP__LAUNCH((ddp__k_attend<T, R, C>), (unsigned)(ddp__blocks(z->t, tile) * z->b * z->heads),
                DDP__ATTEND_THREADS,
                (2 * tile * ddp__attend_row(z->d) + tile * (tile + 1)) * (long)sizeof(float), dev->stream,
                (T *)c->out, (float *)c->saved, (const T *)c->in[0], *z);
}

/* Bytes of shared memory that a block of the backward kernel needs. */
static inline long ddp__attend_grad_bytes(int r, int d)
{
    const long tile = DDP__ATTEND_SIDE * r;
    return (4 * tile * ddp__attend_row(d) + 2 * tile * (tile + 1)) * (long)sizeof(float);
}

template <typename T, int R, int C, int KEYS>
static void ddp__cuda_attend_grad_of(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    DDP__LAUNCH((ddp__k_attend_grad<T, R, C, KEYS>),
                (unsigned)(ddp__blocks(z->t, DDP__ATTEND_SIDE * R) * z->b * (KEYS ? z->kv_heads : z->heads)),
                DDP__ATTEND_THREADS, ddp__attend_grad_bytes(R, z->d), dev->stream, (T *)c->grad_in[0],
                (const T *)c->in[0], (const T *)c->grad_out, (const float *)c->saved,
                (const float *)dev->scratch, *z, c->add_in[0]);
}

template <typename T, int R, int C>
static void ddp__cuda_attend_grad(ddp__cuda *dev, const ddp_op_call *c, const ddp__heads *z)
{
    ddp__cuda_attend_grad_of<T, R, C, 0>(dev, c, z);
    ddp__cuda_attend_grad_of<T, R, C, 1>(dev, c, z);
}

/* R and C for heads up to 64 wide. float32 has no other kernels, so it uses larger tiles. */
#define DDP__ATTEND_SMALL_R(T) (sizeof(T) == 4 ? 4 : 2)
#define DDP__ATTEND_SMALL(T)   DDP__ATTEND_SMALL_R(T), sizeof(T) == 4 ? 4 : 8

template <typename T> static void ddp__cuda_attention_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp__heads z = ddp__heads_of(c->spec);

    if (ddp__flash_fits(dev, &z, c->in[0], c->out, NULL, NULL))
        ddp__cuda_flash_forward(dev, c, &z);
    else if (z.d <= 64)
        ddp__cuda_attend<T, DDP__ATTEND_SMALL(T)>(dev, c, &z);
    else if (z.d <= 128)
        ddp__cuda_attend<T, 2, 8>(dev, c, &z);
    else
        ddp__cuda_attend<T, 1, 32>(dev, c, &z);
}

template <typename T> static void ddp__cuda_attention_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp__heads z = ddp__heads_of(c->spec);
    int lanes = 1;

    if (!c->grad_in[0]) return;
    while (lanes < 32 && lanes * ddp__vec<T>::width < z.d) lanes *= 2;
    DDP__EACH((ddp__k_attend_mean<T>), z.b * z.t * z.heads * lanes, DDP__ATTEND_THREADS,
              (float *)dev->scratch, (const T *)c->out, (const T *)c->grad_out, z, lanes,
              ddp__wide<T>(z.d, c->out, c->grad_out));
    if (ddp__flash_fits(dev, &z, c->in[0], c->out, c->grad_out, c->grad_in[0]))
        ddp__cuda_flash_backward(dev, c, &z);
    else if (z.d <= 64 && ddp__attend_grad_bytes(DDP__ATTEND_SMALL_R(T), z.d) <=
                              (long)dev->props.sharedMemPerBlockOptin) /* some GPUs have less */
        ddp__cuda_attend_grad<T, DDP__ATTEND_SMALL(T)>(dev, c, &z);
    else if (z.d <= 128)
        ddp__cuda_attend_grad<T, 2, 8>(dev, c, &z);
    else
        ddp__cuda_attend_grad<T, 1, 32>(dev, c, &z);
}

static size_t ddp__cuda_attention_scratch(const ddp_op_spec *s, int)
{
    const ddp__heads z = ddp__heads_of(s);
    return (size_t)(z.b * z.t * z.heads) * sizeof(float);
}
