/* embedding and position. The table's gradient without atomics: rows are sorted by token, equal
 * tokens in the order of rows, and one block adds the rows of a token one after the other. */
#ifndef DDP_CUDA_EMBEDDING_CUH
#define DDP_CUDA_EMBEDDING_CUH

#include "cuda/rows.cuh"

enum { DDP__EMBEDDING_THREADS = 128, DDP__EMBEDDING_TILE = 1024, DDP__POSITION_THREADS = 256 };

/* A token outside 0..v-1 gives a row of NAN. */
template <typename T>
static __global__ void ddp__k_embedding(T *out, const int *token, const T *table, long rows, long v,
                                        long n, int wide)
{
    const int width = ddp__vec<T>::width;
    const long pieces = (n + width - 1) / width;
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    const long row = i / pieces, at = i % pieces * width;
    float x[ddp__vec<T>::width];
    int k;

    if (row >= rows) return;
    if (token[row] >= 0 && token[row] < v)
        ddp__piece_load(x, table + token[row] * n, at, n, wide);
    else
        for (k = 0; k < width; k++) x[k] = NAN;
    ddp__piece_store(out + row * n, x, at, n, wide, 0);
}

/* order[place of row] = row, where the place is the number of rows with a smaller token and of
 * earlier ones with the same. Every row is compared with every other: for the rows of a batch that
 * takes less time than a sort's launches. */
static __global__ void __launch_bounds__(DDP__EMBEDDING_THREADS)
ddp__k_embedding_order(int *order, const int *token, long rows)
{
    const long row = (long)blockIdx.x * DDP__EMBEDDING_THREADS + threadIdx.x;
    const int mine = row < rows ? token[row] : 0;
    __shared__ int4 tile[DDP__EMBEDDING_TILE / 4];
    int *one = (int *)tile;
    long from, place = 0;

    for (from = 0; from < rows; from += DDP__EMBEDDING_TILE) {
        const int n = rows - from < DDP__EMBEDDING_TILE ? (int)(rows - from) : DDP__EMBEDDING_TILE;
        int i, count = 0;
        __syncthreads();
        for (i = (int)threadIdx.x; i < DDP__EMBEDDING_TILE; i += DDP__EMBEDDING_THREADS)
            one[i] = i < n ? token[from + i] : INT_MAX; /* which is below no token */
        __syncthreads();
        if (from + DDP__EMBEDDING_TILE <= row)
            for (i = 0; i < DDP__EMBEDDING_TILE / 4; i++) {
                const int4 v = tile[i];
                count += (v.x <= mine) + (v.y <= mine) + (v.z <= mine) + (v.w <= mine);
            }
        else if (from > row)
            for (i = 0; i < DDP__EMBEDDING_TILE / 4; i++) {
                const int4 v = tile[i];
                count += (v.x < mine) + (v.y < mine) + (v.z < mine) + (v.w < mine);
            }
        else
            for (i = 0; i < n; i++) count += one[i] < mine || (one[i] == mine && from + i < row);
        place += count;
    }
    if (row < rows) order[place] = (int)row;
}

/* Block (place, columns): the first place of a token adds all its rows, in order. */
template <typename T>
static __global__ void __launch_bounds__(DDP__EMBEDDING_THREADS)
ddp__k_embedding_grad(float *table, const T *dy, const int *token, const int *order, long rows,
                      long v, long n, int wide)
{
    const int width = ddp__vec<T>::width;
    const long place = blockIdx.x;
    const long at = ((long)blockIdx.y * DDP__EMBEDDING_THREADS + threadIdx.x) * width;
    const int mine = token[order[place]];
    float sum[ddp__vec<T>::width], x[ddp__vec<T>::width];
    long p;
    int k;

    if (mine < 0 || mine >= v || at >= n) return;
    if (place > 0 && token[order[place - 1]] == mine) return;
    for (k = 0; k < width; k++) sum[k] = 0;
    DDP__UNROLL_4
    for (p = place; p < rows && token[order[p]] == mine; p++) {
        ddp__piece_load(x, dy + order[p] * n, at, n, wide);
        for (k = 0; k < width; k++) sum[k] += x[k];
    }
    table += mine * n;
    for (k = 0; k < width; k++)
        if (at + k < n) table[at + k] += sum[k];
}

template <typename T>
static void ddp__cuda_embedding_forward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    const long rows = ddp_shape_rows(&c->spec->out);
    const long v = c->spec->param[0].shape.dim[0], n = c->spec->param[0].shape.dim[1];
    const long pieces = (n + ddp__vec<T>::width - 1) / ddp__vec<T>::width;

    DDP__LAUNCH((ddp__k_embedding<T>), (unsigned)ddp__blocks(rows * pieces, DDP__EMBEDDING_THREADS),
                DDP__EMBEDDING_THREADS, 0, dev->stream, (T *)c->out, (const int *)c->in[0],
                (const T *)c->param[0], rows, v, n, ddp__wide<T>(n, c->out, c->param[0]));
}

template <typename T>
static void ddp__cuda_embedding_backward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    const long rows = ddp_shape_rows(&c->spec->out);
    const long v = c->spec->param[0].shape.dim[0], n = c->spec->param[0].shape.dim[1];
    int *order = (int *)dev->scratch;
    dim3 blocks(1, 1, 1);

    if (!c->grad_param[0]) return;
    DDP__LAUNCH(ddp__k_embedding_order, (unsigned)ddp__blocks(rows, DDP__EMBEDDING_THREADS),
                DDP__EMBEDDING_THREADS, 0, dev->stream, order, (const int *)c->in[0], rows);
    blocks.x = (unsigned)rows;
    blocks.y = (unsigned)ddp__blocks(n, DDP__EMBEDDING_THREADS * (long)ddp__vec<T>::width);
    DDP__LAUNCH((ddp__k_embedding_grad<T>), blocks, DDP__EMBEDDING_THREADS, 0, dev->stream,
                (float *)c->grad_param[0], (const T *)c->grad_out, (const int *)c->in[0], order,
                rows, v, n, ddp__wide<T>(n, c->grad_out));
}

static size_t ddp__cuda_embedding_scratch(const ddp_op_spec *s, int narrow)
{
    (void)narrow;
    return (size_t)ddp_shape_rows(&s->out) * sizeof(int);
}

/* ---- position: n elements of a sequence, a piece of them per thread, sequences in order ---- */

template <typename T>
static __global__ void ddp__k_position(T *out, const T *in, const T *table, long batch, long n,
                                       int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    const long b = blockIdx.y;
    float x[ddp__vec<T>::width], y[ddp__vec<T>::width];
    int k;

    if (at >= n || b >= batch) return;
    ddp__piece_load(y, table, at, n, wide);
    ddp__piece_load(x, in + b * n, at, n, wide);
    for (k = 0; k < width; k++) x[k] += y[k];
    ddp__piece_store(out + b * n, x, at, n, wide, 0);
}

/* table and dx may be NULL; dx may be dy. */
template <typename T>
static __global__ void ddp__k_position_grad(float *table, T *dx, const T *dy, long batch, long n,
                                            int add, int wide)
{
    const int width = ddp__vec<T>::width;
    const long at = ((long)blockIdx.x * blockDim.x + threadIdx.x) * width;
    float sum[ddp__vec<T>::width], d[ddp__vec<T>::width];
    long b;
    int k;

    if (at >= n) return;
    for (k = 0; k < width; k++) sum[k] = 0;
    DDP__UNROLL_4
    for (b = 0; b < batch; b++) {
        ddp__piece_load(d, dy + b * n, at, n, wide);
        for (k = 0; k < width; k++) sum[k] += d[k];
        if (dx && (add || dx != dy)) ddp__piece_store(dx + b * n, d, at, n, wide, add);
    }
    for (k = 0; table && k < width; k++)
        if (at + k < n) table[at + k] += sum[k];
}

template <typename T>
static void ddp__cuda_position_forward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long n = s->dim[1] * s->dim[2];
    dim3 blocks(1, 1, 1);

    blocks.x = (unsigned)ddp__blocks(n, DDP__POSITION_THREADS * (long)ddp__vec<T>::width);
    blocks.y = (unsigned)s->dim[0];
    DDP__LAUNCH((ddp__k_position<T>), blocks, DDP__POSITION_THREADS, 0, dev->stream, (T *)c->out,
                (const T *)c->in[0], (const T *)c->param[0], s->dim[0], n,
                ddp__wide<T>(n, c->out, c->in[0], c->param[0]));
}

template <typename T>
static void ddp__cuda_position_backward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->out;
    const long n = s->dim[1] * s->dim[2];

    DDP__LAUNCH((ddp__k_position_grad<T>),
                (unsigned)ddp__blocks(n, DDP__POSITION_THREADS * (long)ddp__vec<T>::width),
                DDP__POSITION_THREADS, 0, dev->stream, (float *)c->grad_param[0],
                (T *)c->grad_in[0], (const T *)c->grad_out, s->dim[0], n, c->add_in[0],
                ddp__wide<T>(n, c->grad_in[0], c->grad_out));
}

DDP__CUDA_BOTH(ddp__cuda_embedding_forward)
DDP__CUDA_BOTH(ddp__cuda_embedding_backward)
DDP__CUDA_BOTH(ddp__cuda_position_forward)
DDP__CUDA_BOTH(ddp__cuda_position_backward)

#endif /* DDP_CUDA_EMBEDDING_CUH */
