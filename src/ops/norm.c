/* Layer norm, RMS norm and batch norm, forward and backward. */
#include "ops/ops.h"

/* ---- norms over the last dimension: y = (x - mean) * rstd * scale + shift, rstd = 1 / sqrt(var + eps):
 *   layer_norm (Ba et al. 2016, arXiv:1607.06450, Eq. 3): biased variance. Saved per row: mean, rstd
 *   rms_norm (Zhang and Sennrich 2019, arXiv:1910.07467, Eq. 4): mean and shift are 0, var is mean(x^2).
 *   Argument 0 is eps (default: 1e-5). Saved per row: rstd ---- */

typedef struct ddp__norm_size {
    long rows, n;
    int centred; /* 1 for layer_norm */
    long saved;  /* saved elements of a row. The last is rstd. */
} ddp__norm_size;

static ddp__norm_size ddp__norm_sizes(const ddp_op_spec *s)
{
    const int centred = s->params > 1;
    const ddp__norm_size z = {ddp_shape_rows(&s->in[0]), s->in[0].dim[s->in[0].dims - 1], centred,
                              1 + centred};

    return z;
}

static ddp_status ddp__norm_start(ddp_op_spec *s, const char *op, double flops, ddp_error *err)
{
    DDP__TRY(ddp__op_same(s, op, flops, err));
    ddp__op_param(s, "scale", s->in[0].dim[s->in[0].dims - 1], 0, DDP_INIT_ONE, 0);
    return DDP_OK;
}

static ddp_status ddp__norm_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__norm_start(s, "layer_norm", 8, err));
    ddp__op_param(s, "shift", s->in[0].dim[s->in[0].dims - 1], 0, DDP_INIT_ZERO, 0);
    s->saved = (size_t)(2 * ddp_shape_rows(&s->in[0]));
    return DDP_OK;
}

static ddp_status ddp__rms_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__norm_start(s, "rms_norm", 5, err));
    if (!(s->arg[0] >= 0 && s->arg[0] < 1))
        return ddp__fail(err, DDP_ARG, "rms_norm: eps is %g, it must be above 0 and below 1, or 0 for 1e-5",
                         s->arg[0]);
    s->saved = (size_t)ddp_shape_rows(&s->in[0]);
    return DDP_OK;
}

static void ddp__norm_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__norm_size z = ddp__norm_sizes(call->spec);
    const ddp__kernels *kn = ddp__kernels_of(call);
    const float *scale = (const float *)call->param[0], *shift = (const float *)call->param[1];
    const float eps = (float)(!z.centred && call->spec->arg[0] > 0 ? call->spec->arg[0] : DDP__NORM_EPS);

    for (long i = first; i < last; i++) {
        const float *x = (const float *)call->in[0] + i * z.n;
        kn->norm((float *)call->out + i * z.n, x, scale, shift, z.n, eps, (float *)call->saved + i * z.saved);
    }
}

static void ddp__norm_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__norm_size z = ddp__norm_sizes(call->spec);
    const ddp__kernels *kn = ddp__kernels_of(call);

    for (long i = first; i < last; i++)
        kn->norm_grad((float *)call->grad_in[0] + i * z.n, (const float *)call->in[0] + i * z.n,
                      (const float *)call->param[0], (const float *)call->grad_out + i * z.n, z.n,
                      (const float *)call->saved + i * z.saved, !z.centred, call->add_in[0]);
}

/* Adds a row to the sums of n columns. shift may be NULL. */
static inline void ddp__norm_columns_add(float *scale, float *shift, const float *x, const float *dy,
                                         float mean, float rstd, long n)
{
    for (long j = 0; j < n; j++) scale[j] += dy[j] * ((x[j] - mean) * rstd);
    for (long j = 0; shift && j < n; j++) shift[j] += dy[j];
}

/* Gradients of scale and shift by blocks of columns, rows in order: no sum is split over threads. */
static void ddp__norm_grad_columns(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__norm_size z = ddp__norm_sizes(call->spec);
    float *dscale = (float *)call->grad_param[0], *dshift = (float *)call->grad_param[1];
    float sum_scale[DDP__OP_COLUMNS], sum_shift[DDP__OP_COLUMNS], *shift = z.centred ? sum_shift : NULL;

    memset(sum_scale, 0, sizeof sum_scale);
    memset(sum_shift, 0, sizeof sum_shift);
    for (long i = 0; i < z.rows; i++) {
        const float *x = (const float *)call->in[0] + i * z.n + first;
        const float *dy = (const float *)call->grad_out + i * z.n + first;
        const float *stat = (const float *)call->saved + i * z.saved;
        const float mean = z.centred ? stat[0] : 0, rstd = stat[z.saved - 1];
        if (last - first == DDP__OP_COLUMNS) /* a constant length, so that the compiler vectorises the loop */
            ddp__norm_columns_add(sum_scale, shift, x, dy, mean, rstd, DDP__OP_COLUMNS);
        else
            ddp__norm_columns_add(sum_scale, shift, x, dy, mean, rstd, last - first);
    }
    for (long j = first; j < last; j++) {
        if (dscale) dscale[j] += sum_scale[j - first];
        if (dshift) dshift[j] += sum_shift[j - first];
    }
}

static void ddp__norm_forward(const ddp_op_call *call)
{
    ddp__op_rows(call, &call->spec->in[0], ddp__norm_rows);
}

static void ddp__norm_backward(const ddp_op_call *call)
{
    if (call->grad_param[0] || call->grad_param[1])
        ddp_op_parallel(call, ddp__norm_sizes(call->spec).n, DDP__OP_COLUMNS, ddp__norm_grad_columns,
                        (void *)call);
    if (call->grad_in[0]) ddp__op_rows(call, &call->spec->in[0], ddp__norm_grad_rows);
}

/* ---- batch_norm2d: normalises each channel over images and pixels (Ioffe and Szegedy 2015,
 * arXiv:1502.03167, Algorithm 1), with biased variance. Saved per channel: the batch's mean and rstd ---- */

static ddp_status ddp__batch_norm2d_shape(ddp_op_spec *s, ddp_error *err)
{
    const ddp_param mean = {"running_mean", {1, {s->in[0].dim[1], 0, 0, 0}}, DDP_INIT_ZERO, 0, 0};

    DDP__TRY(ddp__image_input(s, "batch_norm2d", err));
    DDP__TRY(ddp__op_same(s, "batch_norm2d", 8, err)); /* flops per element as in layer_norm */
    ddp__op_param(s, "scale", s->in[0].dim[1], 0, DDP_INIT_ONE, 0);
    ddp__op_param(s, "shift", s->in[0].dim[1], 0, DDP_INIT_ZERO, 0);
    s->buffer[0] = s->buffer[1] = mean;
    s->buffer[1].name = "running_var";
    s->buffer[1].init = DDP_INIT_ONE;
    s->buffers = 2;
    s->saved = 2 * (size_t)s->in[0].dim[1];
    return DDP_OK;
}

/* Mean and biased variance of a channel. Both are computed per plane while it is in the cache. Planes are
 * combined by the method of Chan, Golub and LeVeque (1979). Squares are of differences from a nearby mean, so
 * a mean far from 0 costs no precision. */
static void ddp__batch_norm_moments(const ddp_op_call *call, const ddp_shape *s, const float *x, double *mean,
                                    double *var)
{
    const ddp__kernels *kn = ddp__kernels_of(call);
    const long n = s->dim[2] * s->dim[3], image = s->dim[1] * n;
    double squares = 0;

    *mean = 0;
    for (long b = 0; b < s->dim[0]; b++, x += image) {
        float part[2], near;
        double off;
        if (b + 1 < s->dim[0]) ddp__ahead(x + image, n);
        kn->moments(x, x, n, 0, 0, part);
        near = part[0] / (float)n;
        kn->moments(x, x, n, near, near, part);
        /* `near` is rounded, and the sum of differences from it corrects mean and variance */
        off = (double)part[0] / (double)n;
        squares += (double)part[1] - off * (double)part[0];
        off += (double)near - *mean;
        *mean += off / (double)(b + 1);
        squares += off * off * (double)n * (double)b / (double)(b + 1);
    }
    *var = squares / ((double)s->dim[0] * (double)n);
}

static void ddp__batch_norm_statistics(const ddp_op_call *call, const float *x, long c)
{
    const ddp_shape *s = &call->spec->in[0];
    const double count = (double)s->dim[0] * (double)s->dim[2] * (double)s->dim[3];
    float *running_mean = (float *)call->buffer[0] + c, *running_var = (float *)call->buffer[1] + c;
    float *stat = (float *)call->saved + 2 * c;
    double mean = (double)*running_mean, var = (double)*running_var;

    if (call->training) { /* the running variance is unbiased, except for a channel of one value */
        ddp__batch_norm_moments(call, s, x, &mean, &var);
        *running_mean += (float)(DDP__BATCH_NORM_MOVE * (mean - (double)*running_mean));
        *running_var += (float)(DDP__BATCH_NORM_MOVE *
                                (var * (count > 1 ? count / (count - 1) : 1) - (double)*running_var));
    }
    stat[0] = (float)mean;
    stat[1] = (float)(1 / sqrt(var + DDP__NORM_EPS));
}

static void ddp__batch_norm_channels(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_of(call);
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[2] * s->dim[3], image = s->dim[1] * n;

    for (long c = first; c < last; c++) {
        const float *x = (const float *)call->in[0] + c * n;
        float *y = (float *)call->out + c * n;
        const float *stat = (const float *)call->saved + 2 * c;
        float scale, shift;
        ddp__batch_norm_statistics(call, x, c);
        scale = ((const float *)call->param[0])[c] * stat[1];
        shift = ((const float *)call->param[1])[c] - stat[0] * scale;
        for (long b = 0; b < s->dim[0]; b++)
            kn->affine(y + b * image, x + b * image, NULL, n, scale, 0, shift, 0);
    }
}

static void ddp__batch_norm_grad_channels(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_of(call);
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[2] * s->dim[3], image = s->dim[1] * n;
    const double count = (double)s->dim[0] * (double)n;
    float *dscale = (float *)call->grad_param[0], *dshift = (float *)call->grad_param[1];

    for (long c = first; c < last; c++) {
        const float *x = (const float *)call->in[0] + c * n, *dy = (const float *)call->grad_out + c * n;
        const float *stat = (const float *)call->saved + 2 * c;
        const double mean = (double)stat[0], rstd = (double)stat[1];
        const double scale = (double)((const float *)call->param[0])[c] * rstd;
        double sum[2], slope;
        ddp__channel_sums(call, s, x, dy, stat[0], 0, sum);
        if (dscale) dscale[c] += (float)(sum[1] * rstd);
        if (dshift) dshift[c] += (float)sum[0];
        if (!call->grad_in[0]) continue;
        slope = -scale * rstd * rstd * sum[1] / count; /* factor of x */
        for (long b = 0; b < s->dim[0]; b++)
            kn->affine((float *)call->grad_in[0] + c * n + b * image, dy + b * image, x + b * image, n,
                       (float)scale, (float)slope, (float)(-scale * sum[0] / count - slope * mean),
                       call->add_in[0]);
    }
}

static void ddp__batch_norm_forward(const ddp_op_call *call)
{
    ddp_op_parallel(call, call->spec->in[0].dim[1], 1, ddp__batch_norm_channels, (void *)call);
}

static void ddp__batch_norm_backward(const ddp_op_call *call)
{
    ddp_op_parallel(call, call->spec->in[0].dim[1], 1, ddp__batch_norm_grad_channels, (void *)call);
}

DDP__OPS(ddp__norm_ops, {"layer_norm", ddp__norm_shape, ddp__norm_forward, ddp__norm_backward},
         {"rms_norm", ddp__rms_shape, ddp__norm_forward, ddp__norm_backward},
         {"batch_norm2d", ddp__batch_norm2d_shape, ddp__batch_norm_forward, ddp__batch_norm_backward})
