#include "base/platform.h"
#include "base/thread.h"
#include "ops/matmul.h"
#ifdef DDP_USE_CBLAS
#include <cblas.h>
#endif

/* A block of a (MC x KC) is packed once into L2, and strips of b (KC x NR) one at a time into L1.
 * Both live on the stack: no allocation in a training step, no state shared between threads. */
enum {
    DDP__MATMUL_MC = 264, /* a multiple of every mr */
    DDP__MATMUL_KC = 192,
    DDP__MATMUL_NC = 512  /* most columns of a parallel block */
};

typedef struct ddp__matmul_job {
    const ddp__matmul  *g;
    const ddp__kernels *kernels;
    long                rows, cols; /* of a parallel block */
    long                row_blocks;
} ddp__matmul_job;

static long ddp__min_long(long a, long b) { return a < b ? a : b; }

/* dst[p*width + i] = src[i*lane + p*step] for i < lanes, p < k. Further lanes are zero: their
 * results are thrown away, but what lies on the stack may be subnormal, which is slow. */
static void ddp__matmul_pack(float *DDP_RESTRICT dst, const float *DDP_RESTRICT src, long lane,
                             long step, long lanes, long width, long k)
{
    long i, p;

    if (lanes < width) memset(dst, 0, (size_t)(width * k) * sizeof *dst);
    if (lane == 1) {
        for (p = 0; p < k; p++, dst += width, src += step) {
            for (i = 0; i + 4 <= lanes; i += 4) memcpy(dst + i, src + i, 4 * sizeof *dst);
            for (; i < lanes; i++) dst[i] = src[i];
        }
        return;
    }
    for (i = 0; i + 4 <= lanes; i += 4) {
        const float *s = src + i * lane;
        float *d = dst + i;
        for (p = 0; p < k; p++, d += width) {
            d[0] = s[p * step];
            d[1] = s[p * step + lane];
            d[2] = s[p * step + 2 * lane];
            d[3] = s[p * step + 3 * lane];
        }
    }
    for (; i < lanes; i++)
        for (p = 0; p < k; p++) dst[p * width + i] = src[i * lane + p * step];
}

/* One register tile; at an edge through a full tile of its own. */
static void ddp__matmul_tile(const ddp__kernels *kn, long k, const float *a, const float *b,
                             float *c, long c_row, long rows, long cols, int add)
{
    float part[DDP__GEMM_MR * DDP__GEMM_NR];
    long i, j;

    if (rows == kn->mr && cols == kn->nr) {
        kn->gemm(k, a, b, c, c + kn->nr / 2, c_row, add);
        return;
    }
    kn->gemm(k, a, b, part, part + kn->nr / 2, kn->nr, 0);
    for (i = 0; i < rows; i++)
        for (j = 0; j < cols; j++) {
            float *to = c + i * c_row + j;
            *to = add ? *to + part[i * kn->nr + j] : part[i * kn->nr + j];
        }
}

/* Rows i0..i1-1 (at most MC) by columns j0..j1-1 of the result. */
static void ddp__matmul_block(const ddp__kernels *kn, const ddp__matmul *g, long i0, long i1,
                              long j0, long j1)
{
    float a_pack[DDP__MATMUL_MC * DDP__MATMUL_KC];
    float b_pack[DDP__GEMM_NR * DDP__MATMUL_KC];
    int add = g->add;
    long i, j, p;

    if (g->bias || g->k == 0) {
        for (i = i0; i < i1 && !g->add; i++)
            for (j = j0; j < j1; j++) g->c[i * g->c_row + j] = g->bias ? g->bias[j] : 0.0f;
        add = 1;
    }
    for (p = 0; p < g->k; p += DDP__MATMUL_KC, add = 1) {
        const long k = ddp__min_long(DDP__MATMUL_KC, g->k - p);
        for (i = i0; i < i1; i += kn->mr)
            ddp__matmul_pack(a_pack + (i - i0) * k, g->a + i * g->a_row + p * g->a_col, g->a_row,
                             g->a_col, ddp__min_long(kn->mr, i1 - i), kn->mr, k);
        for (j = j0; j < j1; j += kn->nr) {
            const long cols = ddp__min_long(kn->nr, j1 - j);
            ddp__matmul_pack(b_pack, g->b + p * g->b_row + j * g->b_col, g->b_col, g->b_row, cols,
                             kn->nr, k);
            for (i = i0; i < i1; i += kn->mr)
                ddp__matmul_tile(kn, k, a_pack + (i - i0) * k, b_pack, g->c + i * g->c_row + j,
                                 g->c_row, ddp__min_long(kn->mr, i1 - i), cols, add);
        }
    }
}

static void ddp__matmul_blocks(void *user, long first, long last)
{
    const ddp__matmul_job *job = (const ddp__matmul_job *)user;
    const ddp__matmul *g = job->g;
    long t;

    for (t = first; t < last; t++) {
        const long i = t % job->row_blocks * job->rows, j = t / job->row_blocks * job->cols;
        ddp__matmul_block(job->kernels, g, i, ddp__min_long(i + job->rows, g->m), j,
                          ddp__min_long(j + job->cols, g->n));
    }
}

static long ddp__matmul_parts(long n, long part) { return (n + part - 1) / part; }

/* Blocks of whole register tiles, as large as they may be: each packs its operands again. More
 * threads get smaller ones; that moves no bit, since no sum over p is ever split by blocks.
 * Returns the number of blocks. */
static long ddp__matmul_split(ddp__matmul_job *job, const ddp__matmul *g, const ddp__kernels *kn,
                              int threads)
{
    const long wanted = threads > 1 ? 3L * threads : 1;
    long parts;

    if (g->m <= 0 || g->n <= 0) return 0;
    job->g = g;
    job->kernels = kn;
    parts = ddp__matmul_parts(g->m, DDP__MATMUL_MC);
    job->rows = ddp__matmul_parts(ddp__matmul_parts(g->m, parts), kn->mr) * kn->mr;
    job->row_blocks = ddp__matmul_parts(g->m, job->rows);
    job->cols = DDP__MATMUL_NC;
    while (job->cols > 2 * DDP__GEMM_NR &&
           job->row_blocks * ddp__matmul_parts(g->n, job->cols) < wanted)
        job->cols /= 2;
    return job->row_blocks * ddp__matmul_parts(g->n, job->cols);
}

void ddp__matmul_kernels(const ddp_op_call *call, const ddp__matmul *g)
{
    ddp__matmul_job job;
    const long blocks = ddp__matmul_split(&job, g, ddp__kernels_best(),
                                          ddp__pool_threads((const ddp__pool *)call->pool));

    ddp_op_parallel(call, blocks, 1, ddp__matmul_blocks, &job);
}

#ifdef DDP_USE_CBLAS
/* BLAS cannot be stopped from summing an element in another order at another place of a block, so
 * the slices depend on the shape alone: results are the same for any number of threads. */
enum { DDP__CBLAS_SLICE = 256 };

/* BLAS wants it no shorter than a row, even where there is only one. */
static int ddp__cblas_stride(long row, long col, long rows, long cols)
{
    return (int)(col == 1 ? (row > cols ? row : cols) : (col > rows ? col : rows));
}

static void ddp__matmul_cblas(void *user, long first, long last)
{
    const ddp__matmul *g = (const ddp__matmul *)user;
    const int wide = g->n >= g->m; /* the longer side is cut */
    const CBLAS_TRANSPOSE a_way = g->a_col == 1 ? CblasNoTrans : CblasTrans;
    const CBLAS_TRANSPOSE b_way = g->b_col == 1 ? CblasNoTrans : CblasTrans;
    long t, i, j, rows, cols, r, s;

    for (t = first; t < last; t++) {
        i = wide ? 0 : t * DDP__CBLAS_SLICE;
        j = wide ? t * DDP__CBLAS_SLICE : 0;
        rows = wide ? g->m : ddp__min_long(DDP__CBLAS_SLICE, g->m - i);
        cols = wide ? ddp__min_long(DDP__CBLAS_SLICE, g->n - j) : g->n;
        if (g->bias || g->k == 0)
            for (r = i; r < i + rows && !g->add; r++)
                for (s = j; s < j + cols; s++) g->c[r * g->c_row + s] = g->bias ? g->bias[s] : 0;
        if (g->k == 0) continue;
        cblas_sgemm(CblasRowMajor, a_way, b_way, (int)rows, (int)cols, (int)g->k, 1,
                    g->a + i * g->a_row, ddp__cblas_stride(g->a_row, g->a_col, rows, g->k),
                    g->b + j * g->b_col, ddp__cblas_stride(g->b_row, g->b_col, g->k, cols),
                    g->add || g->bias ? 1.0f : 0.0f, g->c + i * g->c_row + j, (int)g->c_row);
    }
}

void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g)
{
    const long side = g->n >= g->m ? g->n : g->m;
    ddp__matmul job = *g;

    if (g->m <= 0 || g->n <= 0) return;
    /* its helper threads would spin beside ours: half the speed of both, measured */
#ifdef OPENBLAS_CONFIG_H
    openblas_set_num_threads(1);
#endif
    ddp_op_parallel(call, ddp__matmul_parts(side, DDP__CBLAS_SLICE), 1, ddp__matmul_cblas, &job);
}
#else
void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g)
{
    ddp__matmul_kernels(call, g);
}
#endif

void ddp__matmul_serial(const ddp__kernels *kernels, const ddp__matmul *g)
{
    ddp__matmul_job job;
    const long blocks = ddp__matmul_split(&job, g, kernels, 1);

    ddp__matmul_blocks(&job, 0, blocks);
}
