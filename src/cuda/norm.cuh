/* layer_norm and rms_norm, with or without a residual sum before them: one warp per row. Sums over a row and
 * over a column have a fixed order. */
#pragma once

#include "cuda/rows.cuh"

enum {
    DDP__NORM_ROWS = 8,  /* warps per block in forward */
    DDP__NORM_PIECES = 4 /* maximum number of pieces of a row that a lane keeps */
};

/* PIECES > 0: rows are wide, and each lane keeps that many pieces of the row in registers, so the row is read
 * once. PIECES 0 supports any row, and each pass reads it again. Both use the same order of sums. */
#define DDP__NORM_EACH /* piece p kept, which begins at element j */ \
    DDP__UNROLL for (long p = 0, j = lane * width; PIECES ? p < PIECES : j<n; p += PIECES> 0, j += 32 * width)

template <int PIECES, typename T>
__device__ static __forceinline__ void ddp__norm_take(float *v, ddp__raw &kept, const T *row, long j, long n,
                                                      int wide)
{
    if (PIECES)
        ddp__raw_floats<T>(v, kept);
    else
        ddp__piece_load(v, row, j, n, wide);
}

/* plus: normalises in + plus and stores that sum in sum_out, which may be `in`. If plus is NULL, normalises
 * in. */
template <typename T, int RMS, int PIECES>
static __global__ void __launch_bounds__(32 * DDP__NORM_ROWS)
    ddp__k_norm(T *out, const T *in, const T *plus, T *sum_out, const T *scale, const T *shift, float *stat,
                long rows, long n, float eps, int wide)
{
    const int width = ddp__vec<T>::width, lane = (int)threadIdx.x % 32;
    const long row = (long)blockIdx.x * DDP__NORM_ROWS + threadIdx.x / 32;
    const T *x = in + row * n;
    ddp__raw kept[PIECES ? PIECES : 1], more[PIECES ? PIECES : 1], last[PIECES ? PIECES : 1];
    float v[width], a[width], b[width], sum = 0, mean = 0, rstd;

    if (row >= rows) return;
    if (PIECES) {
        ddp__row_load(kept, x, n);
        wide = 1;
    }
    if (PIECES && plus) ddp__row_load(more, plus + row * n, n);
    DDP__NORM_EACH
    {
        ddp__norm_take<PIECES>(v, kept[p], x, j, n, wide);
        if (plus) {
            ddp__norm_take<PIECES>(a, more[p], plus + row * n, j, n, wide);
            for (int i = 0; i < width; i++) v[i] = ddp__to_float(ddp__from_float<T>(v[i] + a[i]));
            kept[p] = ddp__raw_of<T>(v);
            if (j < n) ddp__piece_store(sum_out + row * n, v, j, n, wide, 0);
        }
        for (int i = 0; i < width; i++) sum += v[i];
    }
    if (plus) x = sum_out + row * n;
    if (!RMS) mean = ddp__warp_sum(sum) / (float)n;
    sum = 0;
    DDP__NORM_EACH
    {
        ddp__norm_take<PIECES>(v, kept[p], x, j, n, wide);
        for (int i = 0; i < width; i++)
            if (j + i < n) sum += (v[i] - mean) * (v[i] - mean);
    }
    rstd = 1 / sqrtf(ddp__warp_sum(sum) / (float)n + eps);
    if (PIECES) ddp__row_load(more, scale, n);
    if (PIECES && !RMS) ddp__row_load(last, shift, n);
    DDP__NORM_EACH
    {
        ddp__norm_take<PIECES>(v, kept[p], x, j, n, wide);
        ddp__norm_take<PIECES>(a, more[p], scale, j, n, wide);
        if (!RMS) ddp__norm_take<PIECES>(b, last[p], shift, j, n, wide);
        for (int i = 0; i < width; i++) v[i] = (v[i] - mean) * rstd * a[i] + (RMS ? 0 : b[i]);
        if (j < n) ddp__piece_store(out + row * n, v, j, n, wide, 0);
    }
    if (lane) return;
    if (RMS) {
        stat[row] = rstd;
    } else {
        stat[2 * row] = mean;
        stat[2 * row + 1] = rstd;
    }
}

/* Destination of the gradient of a norm's input: old (0 if NULL) is added to it, and each array of `at` that
 * is not NULL receives the result. With add, the result is added to the array. */
template <typename T> struct ddp__norm_to {
    const T *old;
    T *at[2];
    int add[2];
};

/* h = (x - mean) rstd, d = dy scale: dx = rstd (d - mean(d) - h mean(d h)). For RMS, mean is 0, and the term
 * mean(d) is absent. Block b computes part b of the rows. With PIECES, part receives the block's sums of dy h
 * and of dy in the layout of ddp__k_columns. There are at most 256 blocks. Two blocks fit a multiprocessor,
 * unless the sums alone take 64 registers. */
template <typename T, int RMS, int PIECES>
static __global__ void __launch_bounds__(32 * DDP__COLUMN_WARPS,
                                         (PIECES * ddp__vec<T>::width << !RMS) < 64 ? 2 : 1)
    ddp__k_norm_grad(ddp__norm_to<T> to, const T *in, const T *scale, const T *grad, const float *stat,
                     float *part, long rows, long n, long height, int wide)
{
    const int width = ddp__vec<T>::width, held = PIECES ? PIECES : 1;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const long last = (blockIdx.x + 1) * height < rows ? (blockIdx.x + 1) * height : rows;
    __shared__ float shared[DDP__COLUMN_WARPS][32 * width];
    ddp__raw xs[held], ds[held], as[held], old[held];
    float scaled[held][width], plain[held][width], x[width], d[width], a[width];

    for (int p = 0; p < held; p++)
        for (int i = 0; i < width; i++) scaled[p][i] = plain[p][i] = 0;
    if (PIECES) {
        ddp__row_load(as, scale, n);
        wide = 1;
    }
    for (long row = blockIdx.x * height + warp; row < last; row += DDP__COLUMN_WARPS) {
        const T *xr = in + row * n, *dr = grad + row * n;
        const float mean = RMS ? 0 : stat[2 * row], rstd = RMS ? stat[row] : stat[2 * row + 1];
        float mean_d = 0, mean_dh = 0;
        if (PIECES) {
            ddp__row_load(xs, xr, n);
            ddp__row_load(ds, dr, n);
        }
        DDP__NORM_EACH
        {
            ddp__norm_take<PIECES>(x, xs[p], xr, j, n, wide);
            ddp__norm_take<PIECES>(d, ds[p], dr, j, n, wide);
            ddp__norm_take<PIECES>(a, as[p], scale, j, n, wide);
            for (int i = 0; i < width; i++) {
                const float h = (x[i] - mean) * rstd;
                mean_d += d[i] * a[i];
                mean_dh += d[i] * a[i] * h;
                if (PIECES) {
                    scaled[p][i] += d[i] * h;
                    plain[p][i] += d[i];
                }
            }
        }
        mean_d = RMS ? 0 : ddp__warp_sum(mean_d) / (float)n;
        mean_dh = ddp__warp_sum(mean_dh) / (float)n;
        if (PIECES && to.old) ddp__row_load(old, to.old + row * n, n);
        DDP__NORM_EACH
        {
            if (j >= n) continue;
            ddp__norm_take<PIECES>(x, xs[p], xr, j, n, wide);
            ddp__norm_take<PIECES>(d, ds[p], dr, j, n, wide);
            ddp__norm_take<PIECES>(a, as[p], scale, j, n, wide);
            for (int i = 0; i < width; i++)
                x[i] = rstd * (d[i] * a[i] - mean_d - (x[i] - mean) * rstd * mean_dh);
            if (to.old) ddp__norm_take<PIECES>(a, old[p], to.old + row * n, j, n, wide);
            for (int i = 0; i < width; i++) /* rounded to T */
                x[i] = ddp__to_float(ddp__from_float<T>(to.old ? x[i] + a[i] : x[i]));
            DDP__UNROLL for (int i = 0; i < 2; i++) if (to.at[i])
                ddp__piece_store(to.at[i] + row * n, x, j, n, wide, to.add[i]);
        }
    }
    if (PIECES) {
        part += blockIdx.x * n;
        DDP__UNROLL for (int p = 0; p < held; p++)
            ddp__column_join<width>(shared, scaled[p], part, p * 32L * width, n);
        part += gridDim.x * n;
        DDP__UNROLL for (int p = 0; p < held && !RMS; p++)
            ddp__column_join<width>(shared, plain[p], part, p * 32L * width, n);
    }
}

/* The instances of kernel k by PIECES, and the choice for rows of n elements. */
#define DDP__NORM_VERSIONS(k)                                                               \
    {                                                                                       \
        k<T, RMS, 0>, k<T, RMS, 1>, k<T, RMS, 2>, k<T, RMS, 3>, k<T, RMS, DDP__NORM_PIECES> \
    }
template <typename T> static long ddp__norm_pieces(long n, int wide)
{
    const long pieces = ddp__blocks(n, 32 * ddp__vec<T>::width);
    return wide && pieces <= DDP__NORM_PIECES ? pieces : 0;
}

/* sum: the addition that writes the input. NULL means that it has already run. */
template <typename T, int RMS>
static void ddp__cuda_norm_forward(ddp__cuda *dev, const ddp_op_call *sum, const ddp_op_call *c)
{
    static decltype(&ddp__k_norm<T, RMS, 0>) const norm[] = DDP__NORM_VERSIONS(ddp__k_norm);
    const void *in = sum ? sum->in[0] : c->in[0], *plus = sum ? sum->in[1] : NULL;
    const ddp_shape *s = &c->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const double eps = RMS && c->spec->arg[0] > 0 ? c->spec->arg[0] : DDP__NORM_EPS;
    const int wide = ddp__wide<T>(n, c->out, in, plus, c->in[0]) && ddp__aligned(c->param[0], c->param[1]);

    DDP__EACH(norm[ddp__norm_pieces<T>(n, wide)], 32 * rows, 32 * DDP__NORM_ROWS, (T *)c->out, (const T *)in,
              (const T *)plus, (T *)(void *)c->in[0], (const T *)c->param[0], (const T *)c->param[1],
              (float *)c->saved, rows, n, (float)eps, wide);
}

template <typename T, int RMS>
static void ddp__cuda_norm_backward(ddp__cuda *dev, const ddp_op_call *sum, const ddp_op_call *c)
{
    static decltype(&ddp__k_norm_grad<T, RMS, 0>) const norm_grad[] = DDP__NORM_VERSIONS(ddp__k_norm_grad);
    const ddp_shape *s = &c->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const long height = ddp__column_part(rows), parts = ddp__column_parts(rows);
    const int params = c->grad_param[0] || c->grad_param[1];
    float *part = (float *)dev->scratch;
    ddp__norm_to<T> to;
    int wide = ddp__wide<T>(n, c->grad_in[0], c->in[0], c->param[0], c->grad_out);
    long pieces;

    memset(&to, 0, sizeof to);
    to.old = c->add_in[0] ? (const T *)c->grad_in[0] : NULL;
    to.at[0] = (T *)c->grad_in[0];
    for (int k = 0; sum && k < 2; k++) {
        to.at[k] = (T *)sum->grad_in[k];
        to.add[k] = sum->add_in[k];
        wide = wide && ddp__aligned(to.at[k]);
    }
    pieces = params && c->grad_in[0] ? ddp__norm_pieces<T>(n, wide) : 0;
    if (params && !pieces)
        ddp__cuda_columns<T, RMS ? DDP__COLUMN_RMS : DDP__COLUMN_NORM>(
            dev, c->grad_param[0], c->grad_param[1], c->grad_out, c->in[0], c->saved, rows, n);
    if (c->grad_in[0])
        DDP__RUN(norm_grad[pieces], (unsigned)parts, 32 * DDP__COLUMN_WARPS, to, (const T *)c->in[0],
                 (const T *)c->param[0], (const T *)c->grad_out, (const float *)c->saved, part, rows, n,
                 height, wide);
    if (pieces) ddp__cuda_columns_add(dev, c->grad_param[0], c->grad_param[1], part, n, parts);
}

/* The norm alone. With the addition before it, the two run as a pair. */
template <ddp__cuda_both Single, ddp__cuda_both Half> static void ddp__cuda_norm_alone(const ddp_op_call *c)
{
    ddp__cuda_typed_both<Single, Half>(NULL, c);
}
#define DDP__NORMS(later, as, RMS)                                                         \
    later<as<ddp__cuda_norm_forward<float, RMS>, ddp__cuda_norm_forward<ddp__bf16, RMS>>>, \
        later<as<ddp__cuda_norm_backward<float, RMS>, ddp__cuda_norm_backward<ddp__bf16, RMS>>>

static size_t ddp__cuda_norm_scratch(const ddp_op_spec *s, int)
{
    return ddp__column_scratch(ddp_shape_rows(&s->in[0]), s->in[0].dim[s->in[0].dims - 1], 2);
}
