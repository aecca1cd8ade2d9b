/* Layer norm over the last dimension (Ba et al. 2016, arXiv:1607.06450, Eq. 3), biased
 * variance, eps 1e-5: y = (x - mean) * rstd * scale + shift. Saved: mean and rstd per row. */
#include "base/platform.h"
#include "base/fail.h"
#include "ops/kernels.h"
#include "ops/ops.h"

enum { DDP__NORM_COLUMNS = 64 };
#define DDP__NORM_EPS 1e-5

static ddp_status ddp__norm_shape(ddp_op_spec *s, ddp_error *err)
{
    long c;

    DDP__TRY(ddp__op_floats(s, "layer_norm", 0, 0, err));
    c = s->in[0].dim[s->in[0].dims - 1];
    s->out = s->in[0];
    ddp__op_param(s, "scale", c, 0, DDP_INIT_ONE, 0);
    ddp__op_param(s, "shift", c, 0, DDP_INIT_ZERO, 0);
    s->saved = (size_t)(2 * ddp_shape_rows(&s->in[0]));
    s->flops = 8.0 * (double)ddp_shape_count(&s->in[0]);
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__norm_ref_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const ddp__real *scale = (const ddp__real *)call->param[0];
    const ddp__real *shift = (const ddp__real *)call->param[1];
    ddp__real *stat = (ddp__real *)call->saved;
    long i, j;

    for (i = 0; i < rows; i++) {
        const ddp__real *x = (const ddp__real *)call->in[0] + i * n;
        ddp__real *y = (ddp__real *)call->out + i * n;
        ddp__real mean = 0, var = 0, rstd;
        for (j = 0; j < n; j++) mean += x[j];
        mean /= (ddp__real)n;
        for (j = 0; j < n; j++) var += (x[j] - mean) * (x[j] - mean);
        var /= (ddp__real)n;
        rstd = 1 / (ddp__real)sqrt((double)var + DDP__NORM_EPS);
        for (j = 0; j < n; j++) y[j] = (x[j] - mean) * rstd * scale[j] + shift[j];
        stat[2 * i] = mean;
        stat[2 * i + 1] = rstd;
    }
}

/* h = (x - mean) rstd, d = dy scale: dx = rstd (d - mean(d) - h mean(d h)). */
static void ddp__norm_ref_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const ddp__real *scale = (const ddp__real *)call->param[0];
    const ddp__real *stat = (const ddp__real *)call->saved;
    ddp__real *dscale = (ddp__real *)call->grad_param[0];
    ddp__real *dshift = (ddp__real *)call->grad_param[1];
    long i, j;

    for (i = 0; i < rows; i++) {
        const ddp__real *x = (const ddp__real *)call->in[0] + i * n;
        const ddp__real *dy = (const ddp__real *)call->grad_out + i * n;
        ddp__real *dx = call->grad_in[0] ? (ddp__real *)call->grad_in[0] + i * n : NULL;
        const ddp__real mean = stat[2 * i], rstd = stat[2 * i + 1];
        ddp__real mean_d = 0, mean_dh = 0;
        for (j = 0; j < n; j++) {
            const ddp__real h = (x[j] - mean) * rstd;
            mean_d += dy[j] * scale[j] / (ddp__real)n;
            mean_dh += dy[j] * scale[j] * h / (ddp__real)n;
            if (dscale) dscale[j] += dy[j] * h;
            if (dshift) dshift[j] += dy[j];
        }
        for (j = 0; dx && j < n; j++) {
            const ddp__real h = (x[j] - mean) * rstd;
            dx[j] = rstd * (dy[j] * scale[j] - mean_d - h * mean_dh) +
                    (call->add_in[0] ? dx[j] : 0);
        }
    }
}

static void ddp__norm_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    long i;

    for (i = first; i < last; i++)
        kn->norm((float *)call->out + i * n, (const float *)call->in[0] + i * n,
                 (const float *)call->param[0], (const float *)call->param[1], n,
                 (float)DDP__NORM_EPS, (float *)call->saved + 2 * i);
}

static void ddp__norm_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    long i;

    for (i = first; i < last; i++)
        kn->norm_grad((float *)call->grad_in[0] + i * n, (const float *)call->in[0] + i * n,
                      (const float *)call->param[0], (const float *)call->grad_out + i * n, n,
                      (const float *)call->saved + 2 * i, call->add_in[0]);
}

/* Scale and shift by blocks of columns, rows in order: no sum is split over threads. */
static void ddp__norm_grad_columns(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const float *stat = (const float *)call->saved;
    float *dscale = (float *)call->grad_param[0], *dshift = (float *)call->grad_param[1];
    float sum_scale[DDP__NORM_COLUMNS], sum_shift[DDP__NORM_COLUMNS];
    long i, j;

    memset(sum_scale, 0, sizeof sum_scale);
    memset(sum_shift, 0, sizeof sum_shift);
    for (i = 0; i < rows; i++) {
        const float *x = (const float *)call->in[0] + i * n + first;
        const float *dy = (const float *)call->grad_out + i * n + first;
        const float mean = stat[2 * i], rstd = stat[2 * i + 1];
        if (last - first == DDP__NORM_COLUMNS) /* a constant: these are vectors then */
            for (j = 0; j < DDP__NORM_COLUMNS; j++) {
                sum_scale[j] += dy[j] * ((x[j] - mean) * rstd);
                sum_shift[j] += dy[j];
            }
        else
            for (j = 0; j < last - first; j++) {
                sum_scale[j] += dy[j] * ((x[j] - mean) * rstd);
                sum_shift[j] += dy[j];
            }
    }
    for (j = first; j < last; j++) {
        if (dscale) dscale[j] += sum_scale[j - first];
        if (dshift) dshift[j] += sum_shift[j - first];
    }
}

static void ddp__norm_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];

    ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1,
                    ddp__norm_rows, (void *)call);
}

static void ddp__norm_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];

    if (call->grad_param[0] || call->grad_param[1])
        ddp_op_parallel(call, s->dim[s->dims - 1], DDP__NORM_COLUMNS, ddp__norm_grad_columns,
                        (void *)call);
    if (call->grad_in[0])
        ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1,
                        ddp__norm_grad_rows, (void *)call);
}

int ddp__norm_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"layer_norm", ddp__norm_shape, ddp__norm_forward, ddp__norm_backward,
         ddp__norm_ref_forward, ddp__norm_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
