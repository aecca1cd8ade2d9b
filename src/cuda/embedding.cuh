/* embedding, position and rope: operators that depend on tokens and their positions. The gradient of the
 * token table needs no atomics. A radix sort orders the rows by token, and rows with the same token keep
 * their order. Each block adds one segment of the sorted rows. A token that spans several segments gets their
 * sums in order. */
#pragma once

#include "cuda/rows.cuh"

enum {
    DDP__EMBEDDING_THREADS = 128,
    DDP__EMBEDDING_DIGITS = 256, /* a digit of a token is 8 bits */
    DDP__EMBEDDING_TILE = 1024,  /* rows that a block sorts */
    DDP__EMBEDDING_SEGMENT = 64,
    DDP__POSITION_THREADS = 256
};

/* A token outside 0..v-1 gives a row of NAN. */
template <typename T>
static __global__ void ddp__k_embedding(T *out, const int *token, const T *table, long rows, long v, long n,
                                        int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = ddp__pieces<T>(n), i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long row = i / pieces, at = i % pieces * width;
    float x[width];

    if (row >= rows) return;
    if (token[row] >= 0 && token[row] < v)
        ddp__piece_load(x, table + token[row] * n, at, n, wide);
    else
        for (int k = 0; k < width; k++) x[k] = NAN;
    ddp__piece_store(out + row * n, x, at, n, wide, 0);
}

/* ---- the sort, from the lowest digit of the tokens to the highest. A block has a tile of rows, and its
 * thread d handles the rows whose digit is d, in order. The order of the blocks therefore has no effect.
 * ---- */

struct ddp__embedding_tile {
    unsigned char digit[DDP__EMBEDDING_TILE];
    int row[DDP__EMBEDDING_TILE];

    /* Loads the tile and returns its number of rows. from: the rows in the order of the lower digits. NULL
     * means that this is the first digit. Tokens outside 0..v-1 sort as v. All threads of the block must
     * call it. */
    __device__ int load(const int *from, const int *token, long rows, long v, int shift)
    {
        const long first = (long)blockIdx.x * DDP__EMBEDDING_TILE, left = rows - first;
        const int count = left < DDP__EMBEDDING_TILE ? (int)left : (int)DDP__EMBEDDING_TILE;

        for (int i = (int)threadIdx.x; i < count; i += DDP__EMBEDDING_DIGITS) {
            const int mine = from ? from[first + i] : (int)first + i;
            const long key = token[mine] >= 0 && token[mine] < v ? token[mine] : v;
            row[i] = mine;
            digit[i] = (unsigned char)(key >> shift);
        }
        __syncthreads();
        return count;
    }
};

/* count[block][d]: the number of rows of the block's tile with digit d. */
static __global__ void __launch_bounds__(DDP__EMBEDDING_DIGITS)
    ddp__k_embedding_count(int *count, const int *from, const int *token, long rows, long v, int shift)
{
    __shared__ ddp__embedding_tile tile;
    const int n = tile.load(from, token, rows, v, shift);
    int sum = 0;

    for (int i = 0; i < n; i++) sum += tile.digit[i] == threadIdx.x;
    count[blockIdx.x * DDP__EMBEDDING_DIGITS + threadIdx.x] = sum;
}

/* to: the rows in the order of this digit and the lower ones. */
static __global__ void __launch_bounds__(DDP__EMBEDDING_DIGITS)
    ddp__k_embedding_order(int *to, const int *count, const int *from, const int *token, long rows, long v,
                           int shift)
{
    __shared__ ddp__embedding_tile tile;
    __shared__ int total[DDP__EMBEDDING_DIGITS];
    int all = 0, place = 0, n;

    DDP__UNROLL_4 for (unsigned b = 0; b < gridDim.x; b++)
    {
        const int these = count[b * DDP__EMBEDDING_DIGITS + threadIdx.x];
        all += these;
        if (b < blockIdx.x) place += these; /* rows of earlier tiles come first */
    }
    total[threadIdx.x] = all;
    n = tile.load(from, token, rows, v, shift); /* also makes total visible */
    for (unsigned d = 0; d < threadIdx.x; d++) place += total[d];
    for (int i = 0; i < n; i++)
        if (tile.digit[i] == threadIdx.x) to[place++] = tile.row[i];
}

/* One block per (segment of places, columns): adds the rows of each of its tokens, in order. If a token is
 * only in this segment, the sum is added to the table. If the token continues from the previous segment, the
 * sum goes to part[2 segment]. If it continues into the next segment, the sum goes to part[2 segment + 1]. */
template <typename T>
static __global__ void __launch_bounds__(DDP__EMBEDDING_THREADS)
    ddp__k_embedding_grad(float *table, float *part, const T *dy, const int *token, const int *order,
                          long rows, long v, long n, int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.y * DDP__EMBEDDING_THREADS + threadIdx.x) * width,
               first = (long)blockIdx.x * DDP__EMBEDDING_SEGMENT;
    const long last = first + DDP__EMBEDDING_SEGMENT < rows ? first + DDP__EMBEDDING_SEGMENT : rows;
    float sum[width], x[width];

    if (at >= n) return;
    for (long p = first; p < last;) {
        const int mine = token[order[p]], before = p == first && p > 0 && token[order[p - 1]] == mine;
        for (int k = 0; k < width; k++) sum[k] = 0;
        DDP__UNROLL_4 for (; p < last && token[order[p]] == mine; p++)
        {
            ddp__piece_load(x, dy + order[p] * n, at, n, wide);
            for (int k = 0; k < width; k++) sum[k] += x[k];
        }
        if (mine < 0 || mine >= v) continue;
        const int apart = before || (p == last && p < rows && token[order[p]] == mine);
        float *to = apart ? part + (2 * (long)blockIdx.x + !before) * n : table + mine * n;
        for (int k = 0; k < width; k++)
            if (at + k < n) to[at + k] = apart ? sum[k] : to[at + k] + sum[k];
    }
}

/* One block per (segment, columns): for a token that begins in this segment and continues in the next ones,
 * adds the sums of all its segments to the table, in order. */
static __global__ void ddp__k_embedding_join(float *table, const float *part, const int *token,
                                             const int *order, long rows, long v, long n)
{
    const long at = (long)blockIdx.y * DDP__EMBEDDING_THREADS + threadIdx.x,
               first = (long)blockIdx.x * DDP__EMBEDDING_SEGMENT;
    const long next = first + DDP__EMBEDDING_SEGMENT;
    const int mine = next < rows ? token[order[next]] : -1;
    float sum;

    if (at >= n || mine < 0 || mine >= v || token[order[next - 1]] != mine) return;
    if (first > 0 && token[order[first]] == mine && token[order[first - 1]] == mine)
        return; /* the token begins in an earlier segment */
    sum = part[(2 * (long)blockIdx.x + 1) * n + at];
    for (long s = blockIdx.x + 1;
         s * DDP__EMBEDDING_SEGMENT < rows && token[order[s * DDP__EMBEDDING_SEGMENT]] == mine; s++)
        sum += part[2 * s * n + at];
    table[mine * n + at] += sum;
}

template <typename T> static void ddp__cuda_embedding_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const long rows = ddp_shape_rows(&c->spec->out);
    const long v = c->spec->param[0].shape.dim[0], n = c->spec->param[0].shape.dim[1];
    DDP__EACH((ddp__k_embedding<T>), rows * ddp__pieces<T>(n), DDP__EMBEDDING_THREADS, (T *)c->out,
              (const int *)c->in[0], (const T *)c->param[0], rows, v, n,
              ddp__wide<T>(n, c->out, c->param[0]));
}

/* order[0..rows-1]: the rows, sorted by token. spare: [rows]. count: [tiles of rows][digits]. */
static void ddp__cuda_embedding_order(ddp__cuda *dev, int *order, int *spare, int *count, const int *token,
                                      long rows, long v)
{
    const unsigned tiles = (unsigned)ddp__blocks(rows, DDP__EMBEDDING_TILE);
    const int *from = NULL;
    int digits = 1;

    while (v >> 8 * digits) digits++;
    for (int i = 0; i < digits; i++) {
        int *to = (digits - i) % 2 ? order : spare; /* the last digit's result is in order */
        DDP__RUN(ddp__k_embedding_count, tiles, DDP__EMBEDDING_DIGITS, count, from, token, rows, v, 8 * i);
        DDP__RUN(ddp__k_embedding_order, tiles, DDP__EMBEDDING_DIGITS, to, count, from, token, rows, v,
                 8 * i);
        from = to;
    }
}

template <typename T> static void ddp__cuda_embedding_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const long rows = ddp_shape_rows(&c->spec->out);
    const long v = c->spec->param[0].shape.dim[0], n = c->spec->param[0].shape.dim[1];
    const unsigned segments = (unsigned)ddp__blocks(rows, DDP__EMBEDDING_SEGMENT);
    const dim3 blocks(segments, (unsigned)ddp__blocks(ddp__pieces<T>(n), DDP__EMBEDDING_THREADS));
    const dim3 joins(segments, (unsigned)ddp__blocks(n, DDP__EMBEDDING_THREADS));
    int *order = (int *)dev->scratch, *spare = order + rows, *count = spare + rows;
    float *part = (float *)(count + ddp__blocks(rows, DDP__EMBEDDING_TILE) * DDP__EMBEDDING_DIGITS);

    if (!c->grad_param[0]) return;
    ddp__cuda_embedding_order(dev, order, spare, count, (const int *)c->in[0], rows, v);
    DDP__RUN((ddp__k_embedding_grad<T>), blocks, DDP__EMBEDDING_THREADS, (float *)c->grad_param[0], part,
             (const T *)c->grad_out, (const int *)c->in[0], order, rows, v, n, ddp__wide<T>(n, c->grad_out));
    DDP__RUN(ddp__k_embedding_join, joins, DDP__EMBEDDING_THREADS, (float *)c->grad_param[0], part,
             (const int *)c->in[0], order, rows, v, n);
}

static size_t ddp__cuda_embedding_scratch(const ddp_op_spec *s, int)
{
    const size_t rows = (size_t)ddp_shape_rows(&s->out),
                 segments = (rows + DDP__EMBEDDING_SEGMENT - 1) / DDP__EMBEDDING_SEGMENT,
                 tiles = (size_t)ddp__blocks((long)rows, DDP__EMBEDDING_TILE);
    return (2 * rows + tiles * DDP__EMBEDDING_DIGITS) * sizeof(int) +
           2 * segments * (size_t)s->param[0].shape.dim[1] * sizeof(float);
}

/* ---- position: each thread owns a piece of the n elements of a sequence and adds the sequences in order
 * ---- */

template <typename T>
static __global__ void ddp__k_position(T *out, const T *in, const T *table, long batch, long n, int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width, b = blockIdx.y;
    float x[width], y[width];

    if (at >= n || b >= batch) return;
    ddp__piece_load(y, table, at, n, wide);
    ddp__piece_load(x, in + b * n, at, n, wide);
    for (int k = 0; k < width; k++) x[k] += y[k];
    ddp__piece_store(out + b * n, x, at, n, wide, 0);
}

/* table and dx may be NULL, and dx may be dy. */
template <typename T>
static __global__ void ddp__k_position_grad(float *table, T *dx, const T *dy, long batch, long n, int add,
                                            int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    float sum[width], d[width];

    if (at >= n) return;
    for (int k = 0; k < width; k++) sum[k] = 0;
    DDP__UNROLL_4 for (long b = 0; b < batch; b++)
    {
        ddp__piece_load(d, dy + b * n, at, n, wide);
        for (int k = 0; k < width; k++) sum[k] += d[k];
        if (dx && (add || dx != dy)) ddp__piece_store(dx + b * n, d, at, n, wide, add);
    }
    for (int k = 0; table && k < width; k++)
        if (at + k < n) table[at + k] += sum[k];
}

template <typename T> static void ddp__cuda_position_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const dim3 blocks((unsigned)ddp__blocks(ddp__pieces<T>(n), DDP__POSITION_THREADS), (unsigned)s->dim[0]);
    DDP__RUN((ddp__k_position<T>), blocks, DDP__POSITION_THREADS, (T *)c->out, (const T *)c->in[0],
             (const T *)c->param[0], s->dim[0], n, ddp__wide<T>(n, c->out, c->in[0], c->param[0]));
}

template <typename T> static void ddp__cuda_position_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long n = s->dim[1] * s->dim[2];
    DDP__EACH((ddp__k_position_grad<T>), ddp__pieces<T>(n), DDP__POSITION_THREADS, (float *)c->grad_param[0],
              (T *)c->grad_in[0], (const T *)c->grad_out, s->dim[0], n, c->add_in[0],
              ddp__wide<T>(n, c->grad_in[0], c->grad_out));
}

/* ---- rope: a block computes the angles of a position once, in double as on the CPU, and uses them for
 * several sequences and all heads ---- */

enum { DDP__ROPE_THREADS = 256, DDP__ROPE_BATCH = 8 };

/* One block per (position, group of sequences). to = or += from, rotated by direction times the angles.
 * Columns from `turned` on are copied. to may be from. */
template <typename T>
static __global__ void __launch_bounds__(DDP__ROPE_THREADS)
    ddp__k_rope(T *to, const T *from, long batch, long time, long row, long turned, int d, double theta,
                int direction, int add, int wide)
{
    const int step = wide ? ddp__vec<T>::width : 1;
    const long t = blockIdx.x, first = (long)blockIdx.y * DDP__ROPE_BATCH;
    const long last = first + DDP__ROPE_BATCH < batch ? first + DDP__ROPE_BATCH : batch;
    const int half = d / 2;
    __shared__ float cosine[DDP__ROPE_PAIRS], sine[DDP__ROPE_PAIRS];
    float u[ddp__vec<T>::width], v[ddp__vec<T>::width];

    for (int i = (int)threadIdx.x; i < half; i += DDP__ROPE_THREADS) {
        const double angle = direction * (double)t * pow(theta, -2.0 * (double)i / (double)d);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    __syncthreads();
    for (long b = first; b < last; b++) {
        const T *x = from + (b * time + t) * row;
        T *y = to + (b * time + t) * row;
        for (long p = (long)threadIdx.x * step; p < turned / 2; p += DDP__ROPE_THREADS * step) {
            const int k = (int)(p % half);
            const long at = p / half * d + k;
            ddp__piece_load(u, x, at, at + step, wide);
            ddp__piece_load(v, x, at + half, at + half + step, wide);
            for (int i = 0; i < step; i++) {
                const float c = cosine[k + i], s = sine[k + i], old = u[i];
                u[i] = old * c - v[i] * s;
                v[i] = v[i] * c + old * s;
            }
            ddp__piece_store(y, u, at, at + step, wide, add);
            ddp__piece_store(y, v, at + half, at + half + step, wide, add);
        }
        for (long p = turned + (long)threadIdx.x * step; p < row && (add || y != x);
             p += DDP__ROPE_THREADS * step) {
            ddp__piece_load(u, x, p, p + step, wide);
            ddp__piece_store(y, u, p, p + step, wide, add);
        }
    }
}

template <typename T>
static void ddp__cuda_rope_turn(ddp__cuda *dev, const ddp_op_spec *s, void *to, const void *from,
                                int direction, int add)
{
    const ddp__heads z = ddp__heads_of(s);
    const dim3 blocks((unsigned)z.t, (unsigned)ddp__blocks(z.b, DDP__ROPE_BATCH));
    DDP__RUN((ddp__k_rope<T>), blocks, DDP__ROPE_THREADS, (T *)to, (const T *)from, z.b, z.t, z.row,
             z.row - z.kv_heads * z.d, z.d, s->arg[2] > 0 ? s->arg[2] : 10000.0, direction, add,
             ddp__wide<T>(z.d / 2, to, from));
}

template <typename T> static void ddp__cuda_rope_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_rope_turn<T>(dev, c->spec, c->out, c->in[0], 1, 0);
}

template <typename T> static void ddp__cuda_rope_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    if (c->grad_in[0]) ddp__cuda_rope_turn<T>(dev, c->spec, c->grad_in[0], c->grad_out, -1, c->add_in[0]);
}
