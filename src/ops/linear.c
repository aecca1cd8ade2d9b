/* linear: y = x W^T + b over rows, with x (rows, C), W (width, C), b (width), and the float matrix product
 * that it uses (blocks of the result, packed panels, register tiles). */
#include "ops/ops.h"
#ifdef DDP_USE_CBLAS
#include <cblas.h>
#endif

/* ---- the matrix product ---- */

/* A panel of b is packed once into L2, as strips of nr columns. A strip stays in L1 while the rows of a pass
 * are processed, DDP__MATMUL_PANELS tiles at a time. Rows of a are read in place. They are copied if the
 * columns of a are contiguous, or if the last tile has fewer rows. All copies are in the thread's working
 * memory: a training step does not allocate, and threads share no state. */
enum {
    DDP__MATMUL_KC = 384,
    DDP__MATMUL_DEPTH = 256,
    DDP__MATMUL_NC = 384,
    DDP__MATMUL_PACK = DDP__MATMUL_NC * DDP__MATMUL_DEPTH, /* floats of a packed panel (deeper: fewer columns)
                                                              */
    DDP__MATMUL_PANELS = 4,
    DDP__MATMUL_SHARES = 3, /* blocks per thread, unless all threads get equally many */
    DDP__MATMUL_FEW = 64    /* up to this many rows of c, b is not packed if its rows are contiguous */
};

typedef struct ddp__matmul_room {
    float b_pack[DDP__MATMUL_PACK] DDP__ALIGNED;
    float a_pack[DDP__MATMUL_PANELS * DDP__GEMM_MR * DDP__MATMUL_KC];
} ddp__matmul_room;
DDP__ROOM_FITS(ddp__matmul_room);

typedef struct ddp__matmul_job {
    const ddp__matmul *g;
    const ddp__kernels *kernels;
    long rows, cols; /* size of a parallel block */
    long row_blocks;
} ddp__matmul_job;

/* Rows of a, one register tile after the other, in the form that gemm_at reads. */
typedef struct ddp__matmul_rows {
    const float *a;
    long row, col;
    long tile; /* floats from one tile to the next */
} ddp__matmul_rows;

/* Sums are split into equal parts, so their order depends only on k. A single part of at most KC saves a
 * pass over c, which may be large. Otherwise a strip of b fits L1 next to the rows of a. */
long ddp__matmul_depth(long k)
{
    const long parts = k <= DDP__MATMUL_KC ? 1 : ddp__parts(k, DDP__MATMUL_DEPTH);

    return ddp__parts(k > 0 ? k : 1, parts);
}

/* dst[p*width + j] = b(p0 + p, j0 + j). Further columns are zeroed: their results are discarded, but old
 * values could be subnormal, which is slow. */
static void ddp__matmul_pack(const ddp__kernels *kn, float *dst, const ddp__matmul *g, long p0, long k,
                             long j0, long cols)
{
    const float *src = g->b + p0 * g->b_row + j0 * g->b_col;
    const long width = kn->nr;
    long at[DDP__MATMUL_KC > DDP__GEMM_NR ? DDP__MATMUL_KC : DDP__GEMM_NR], i;

    if (cols < width) memset(dst, 0, (size_t)(width * k) * sizeof *dst);
    if (g->b_col == 1) {
        for (i = 0; i < k; i++) at[i] = i * g->b_row;
        kn->gather(dst, width, src, at, k, cols);
    } else {
        for (i = 0; i < cols; i++) at[i] = i * g->b_col;
        kn->turn(dst, width, src, at, cols, k);
    }
}

/* Rows i0.. of a, columns p0..p0+k-1: in place, or copied to pack. */
static ddp__matmul_rows ddp__matmul_take(const ddp__kernels *kn, float *pack, const ddp__matmul *g, long i0,
                                         long rows, long p0, long k)
{
    const long mr = kn->mr;
    ddp__matmul_rows r = {g->a + i0 * g->a_row + p0 * g->a_col, g->a_row, g->a_col, mr * g->a_row};

    if (g->a_col == 1 && rows % mr == 0) return r;
    if (rows % mr) memset(pack + rows / mr * mr * k, 0, (size_t)(mr * k) * sizeof *pack);
    if (g->a_row == 1) {
        kn->panels(pack, r.a, g->a_col, rows, k);
        r.row = 1;
        r.col = mr;
    } else {
        for (long i = 0; i < rows; i++) memcpy(pack + i * k, r.a + i * g->a_row, (size_t)k * sizeof *pack);
        r.row = k;
    }
    r.a = pack;
    r.tile = mr * k;
    return r;
}

/* Computes one register tile, at an edge in a temporary full tile. */
static void ddp__matmul_tile(const ddp__kernels *kn, long k, const ddp__matmul_rows *a, const float *b,
                             long b_row, float *c, long c_row, long rows, long cols, const float *bias,
                             int add)
{
    float part[DDP__GEMM_MR * DDP__GEMM_NR];

    if (rows == kn->mr && cols == kn->nr) {
        kn->gemm_at(k, a->a, a->row, a->col, b, b_row, c, c_row, bias, add);
        return;
    }
    kn->gemm_at(k, a->a, a->row, a->col, b, b_row, part, kn->nr, NULL, 0);
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < cols; j++) {
            float *to = c + i * c_row + j;
            const float sum = part[i * kn->nr + j];
            *to = add ? *to + sum : bias ? bias[j] + sum : sum;
        }
}

/* Initialises the sums: with the bias, with zeros, or with the present values. */
static void ddp__matmul_empty(const ddp__matmul *g, long i0, long i1, long j0, long j1)
{
    for (long i = i0; i < i1 && !g->add; i++)
        for (long j = j0; j < j1; j++) g->c[i * g->c_row + j] = g->bias ? g->bias[j] : 0.0f;
}

/* Rows i0..i1-1 by columns j0..j1-1 (at most NC) of the result. */
static void ddp__matmul_block(const ddp__kernels *kn, const ddp__matmul *g, ddp__matmul_room *room, long i0,
                              long i1, long j0, long j1)
{
    float *a_pack = room->a_pack, *b_pack = room->b_pack;
    const long depth = ddp__matmul_depth(g->k), group = DDP__MATMUL_PANELS * kn->mr;
    const int few = g->b_col == 1 && g->m <= DDP__MATMUL_FEW;
    const long whole = few ? (j1 - j0) / kn->nr * kn->nr : 0; /* columns of b that are read in place */

    if (g->k == 0) ddp__matmul_empty(g, i0, i1, j0, j1);
    for (long p = 0; p < g->k; p += depth) {
        const long k = ddp__min_long(depth, g->k - p);
        const int add = g->add || p > 0;
        for (long j = j0 + whole; j < j1; j += kn->nr)
            ddp__matmul_pack(kn, b_pack + (j - j0) * k, g, p, k, j, ddp__min_long(kn->nr, j1 - j));
        for (long i = i0; i < i1; i += group) {
            const long rows = ddp__min_long(group, i1 - i);
            const ddp__matmul_rows taken = ddp__matmul_take(kn, a_pack, g, i, rows, p, k);
            for (long j = j0; j < j1; j += kn->nr) {
                const int packed = j >= j0 + whole;
                const float *b = packed ? b_pack + (j - j0) * k : g->b + p * g->b_row + j;
                ddp__matmul_rows a = taken;
                for (long t = 0; t < rows; t += kn->mr, a.a += a.tile)
                    ddp__matmul_tile(kn, k, &a, b, packed ? kn->nr : g->b_row, g->c + (i + t) * g->c_row + j,
                                     g->c_row, ddp__min_long(kn->mr, rows - t), ddp__min_long(kn->nr, j1 - j),
                                     g->bias ? g->bias + j : NULL, add);
            }
        }
    }
}

static void ddp__matmul_blocks(void *user, void *room, long first, long last)
{
    const ddp__matmul_job *job = (const ddp__matmul_job *)user;
    const ddp__matmul *g = job->g;

    for (long t = first; t < last; t++) {
        const long i = t % job->row_blocks * job->rows, j = t / job->row_blocks * job->cols;
        ddp__matmul_block(job->kernels, g, (ddp__matmul_room *)room, i, ddp__min_long(i + job->rows, g->m), j,
                          ddp__min_long(j + job->cols, g->n));
    }
}

/* Splits the result into blocks of whole register tiles. Blocks are as large as possible, because each
 * packs its panel of b again. Their number is a multiple of the number of threads, or at least SHARES per
 * thread, so that the threads finish at about the same time. The result is bit-identical, because blocks
 * never split a sum over p. Returns the number of blocks. */
static long ddp__matmul_split(ddp__matmul_job *job, const ddp__matmul *g, const ddp__kernels *kn, int threads)
{
    long parts;

    if (g->m <= 0 || g->n <= 0) return 0;
    job->g = g;
    job->kernels = kn;
    parts = ddp__parts(
        g->n, ddp__min_long(DDP__MATMUL_NC, DDP__MATMUL_PACK / ddp__matmul_depth(g->k) / kn->nr * kn->nr));
    job->cols = ddp__parts(ddp__parts(g->n, parts), kn->nr) * kn->nr;
    parts = ddp__parts(g->n, job->cols);
    job->row_blocks = 1;
    while (job->row_blocks * parts % threads && job->row_blocks * parts < DDP__MATMUL_SHARES * threads)
        job->row_blocks++;
    job->rows = ddp__parts(ddp__parts(g->m, job->row_blocks), kn->mr) * kn->mr;
    job->row_blocks = ddp__parts(g->m, job->rows);
    return job->row_blocks * parts;
}

void ddp__matmul_kernels(const ddp_op_call *call, const ddp__matmul *g)
{
    ddp__matmul_job job;
    const long blocks =
        ddp__matmul_split(&job, g, ddp__kernels_of(call), ddp__pool_threads((const ddp__pool *)call->pool));

    ddp__op_rooms(call, blocks, 1, ddp__matmul_blocks, &job);
}

#ifdef DDP_USE_CBLAS
/* BLAS may sum an element in another order at another position of a block, so the slices depend only on
 * the shape: results are the same for any number of threads. */
enum { DDP__CBLAS_SLICE = 256 };

/* BLAS requires a stride of at least a row, even for a single row. */
static int ddp__cblas_stride(long row, long col, long rows, long cols)
{
    return (int)(col == 1 ? (row > cols ? row : cols) : (col > rows ? col : rows));
}

static void ddp__matmul_cblas(void *user, long first, long last)
{
    const ddp__matmul *g = (const ddp__matmul *)user;
    const int wide = g->n >= g->m; /* split the longer side */
    const CBLAS_TRANSPOSE a_way = g->a_col == 1 ? CblasNoTrans : CblasTrans;
    const CBLAS_TRANSPOSE b_way = g->b_col == 1 ? CblasNoTrans : CblasTrans;
    long t, i, j, rows, cols;

    for (t = first; t < last; t++) {
        i = wide ? 0 : t * DDP__CBLAS_SLICE;
        j = wide ? t * DDP__CBLAS_SLICE : 0;
        rows = wide ? g->m : ddp__min_long(DDP__CBLAS_SLICE, g->m - i);
        cols = wide ? ddp__min_long(DDP__CBLAS_SLICE, g->n - j) : g->n;
        if (g->bias || g->k == 0) ddp__matmul_empty(g, i, i + rows, j, j + cols);
        if (g->k == 0) continue;
        cblas_sgemm(CblasRowMajor, a_way, b_way, (int)rows, (int)cols, (int)g->k, 1, g->a + i * g->a_row,
                    ddp__cblas_stride(g->a_row, g->a_col, rows, g->k), g->b + j * g->b_col,
                    ddp__cblas_stride(g->b_row, g->b_col, g->k, cols), g->add || g->bias ? 1.0f : 0.0f,
                    g->c + i * g->c_row + j, (int)g->c_row);
    }
}

void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g)
{
    const long side = g->n >= g->m ? g->n : g->m;
    ddp__matmul job = *g;

    if (g->m <= 0 || g->n <= 0) return;
        /* the helper threads of BLAS would spin and take processor time from ours: half the speed of
         * both, measured */
#ifdef OPENBLAS_CONFIG_H
    openblas_set_num_threads(1);
#endif
    ddp_op_parallel(call, ddp__parts(side, DDP__CBLAS_SLICE), 1, ddp__matmul_cblas, &job);
}
#else
void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g) { ddp__matmul_kernels(call, g); }
#endif

/* ---- the operators ---- */

typedef struct ddp__linear_size {
    long m, n, k; /* rows, width, C */
} ddp__linear_size;

static ddp__linear_size ddp__linear_sizes(const ddp_op_spec *s)
{
    const ddp_shape *x = &s->in[0], *y = &s->out;
    const ddp__linear_size z = {ddp_shape_rows(x), y->dim[y->dims - 1], x->dim[x->dims - 1]};

    return z;
}

static void ddp__linear_finish(ddp_op_spec *s, long width)
{
    ddp__linear_size z;

    s->out = s->in[0];
    s->out.dim[s->out.dims - 1] = width;
    s->out_unread = 1;
    z = ddp__linear_sizes(s);
    s->flops = 2.0 * (double)z.m * (double)z.n * (double)z.k;
}

/* Weight and bias start uniform in +-1 / sqrt(C), PyTorch's default. */
ddp_status ddp__linear_start(ddp_op_spec *s, const char *op, int bias, ddp_error *err)
{
    long width, c;
    double bound;

    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    DDP__TRY(ddp__op_count(s, op, 0, "width", &width, err));
    c = s->in[0].dim[s->in[0].dims - 1];
    bound = 1.0 / sqrt((double)c);
    ddp__op_param(s, "weight", width, c, DDP_INIT_UNIFORM, bound);
    s->param[0].matrix = 1;
    if (bias) ddp__op_param(s, "bias", width, 0, DDP_INIT_UNIFORM, bound);
    ddp__linear_finish(s, width);
    return DDP_OK;
}

static ddp_status ddp__linear_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__linear_start(s, "linear", 1, err);
}

static ddp_status ddp__linear_plain_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__linear_start(s, "linear_no_bias", 0, err);
}

ddp_status ddp__linear_borrow(ddp_op_spec *s, const char *op, ddp_error *err)
{
    const ddp_shape *w = &s->param[0].shape;

    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    if (s->params != 1 || w->dims != 2)
        return ddp__fail(err, DDP_ARG, "%s: needs the node whose weight (V, C) it uses", op);
    if (w->dim[1] != s->in[0].dim[s->in[0].dims - 1])
        return ddp__fail(err, DDP_ARG,
                         "%s: the tied weight has rows of %ld, the input rows of %ld; they must be equal", op,
                         w->dim[1], s->in[0].dim[s->in[0].dims - 1]);
    ddp__linear_finish(s, w->dim[0]);
    return DDP_OK;
}

static ddp_status ddp__linear_tied_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__linear_borrow(s, "linear_tied", err);
}

void ddp__linear_product(const ddp_op_call *call, long m, long n, long k, const void *a, int a_turned,
                         const void *b, int b_turned, void *c, const void *bias, int add)
{
    const ddp__matmul g = {m,
                           n,
                           k,
                           (const float *)a,
                           a_turned ? 1 : k,
                           a_turned ? m : 1,
                           (const float *)b,
                           b_turned ? 1 : n,
                           b_turned ? k : 1,
                           (float *)c,
                           n,
                           (const float *)bias,
                           add};

    ddp__matmul_run(call, &g);
}

static void ddp__linear_forward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);

    ddp__linear_product(call, z.m, z.n, z.k, call->in[0], 0, call->param[0], 1, call->out, call->param[1], 0);
}

static void ddp__linear_bias_grad(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    const float *dy = (const float *)call->grad_out;
    float *db = (float *)call->grad_param[1];
    float sum[DDP__OP_COLUMNS];
    const long n = last - first;

    memset(sum, 0, sizeof sum);
    for (long i = 0; i < z.m; i++) {
        const float *row = dy + i * z.n + first;
        if (n == DDP__OP_COLUMNS)
            for (long j = 0; j < DDP__OP_COLUMNS; j++) sum[j] += row[j];
        else
            for (long j = 0; j < n; j++) sum[j] += row[j];
    }
    for (long j = 0; j < n; j++) db[first + j] += sum[j];
}

/* dx = dy W, dW += dy^T x, db += column sums of dy. */
static void ddp__linear_backward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);

    if (call->grad_param[1]) ddp_op_parallel(call, z.n, DDP__OP_COLUMNS, ddp__linear_bias_grad, (void *)call);
    if (call->grad_param[0])
        ddp__linear_product(call, z.n, z.k, z.m, call->grad_out, 1, call->in[0], 0, call->grad_param[0], NULL,
                            1);
    if (call->grad_in[0])
        ddp__linear_product(call, z.m, z.k, z.n, call->grad_out, 0, call->param[0], 0, call->grad_in[0], NULL,
                            call->add_in[0]);
}

DDP__OPS(ddp__linear_ops, {"linear", ddp__linear_shape, ddp__linear_forward, ddp__linear_backward},
         {"linear_no_bias", ddp__linear_plain_shape, ddp__linear_forward, ddp__linear_backward},
         {"linear_tied", ddp__linear_tied_shape, ddp__linear_forward, ddp__linear_backward})
