/* RMS norm over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467, Eq. 4):
 * y = x rstd scale, rstd = 1 / sqrt(mean(x^2) + eps). Argument 0 is eps (0 = 1e-5). Saved: rstd
 * per row. */
#include "base/platform.h"
#include "base/fail.h"
#include "ops/kernels.h"
#include "ops/ops.h"

enum { DDP__RMS_COLUMNS = 64 };

static double ddp__rms_eps(const ddp_op_spec *s) { return s->arg[0] > 0 ? s->arg[0] : 1e-5; }

static ddp_status ddp__rms_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "rms_norm", 0, 0, err));
    if (!(s->arg[0] >= 0 && s->arg[0] < 1))
        return ddp__fail(err, DDP_ARG, "rms_norm: eps is %g, it must be above 0 and below 1, or 0 "
                         "for 1e-5", s->arg[0]);
    s->out = s->in[0];
    ddp__op_param(s, "scale", s->in[0].dim[s->in[0].dims - 1], 0, DDP_INIT_ONE, 0);
    s->saved = (size_t)ddp_shape_rows(&s->in[0]);
    s->flops = 5.0 * (double)ddp_shape_count(&s->in[0]);
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__rms_ref_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const ddp__real *scale = (const ddp__real *)call->param[0];
    ddp__real *stat = (ddp__real *)call->saved;
    long i, j;

    for (i = 0; i < rows; i++) {
        const ddp__real *x = (const ddp__real *)call->in[0] + i * n;
        ddp__real *y = (ddp__real *)call->out + i * n;
        ddp__real square = 0;
        for (j = 0; j < n; j++) square += x[j] * x[j];
        stat[i] = (ddp__real)(1 / sqrt((double)square / (double)n + ddp__rms_eps(call->spec)));
        for (j = 0; j < n; j++) y[j] = x[j] * stat[i] * scale[j];
    }
}

/* h = x rstd, d = dy scale: dx = rstd (d - h mean(d h)). */
static void ddp__rms_ref_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const ddp__real *scale = (const ddp__real *)call->param[0];
    const ddp__real *stat = (const ddp__real *)call->saved;
    ddp__real *dscale = (ddp__real *)call->grad_param[0];
    long i, j;

    for (i = 0; i < rows; i++) {
        const ddp__real *x = (const ddp__real *)call->in[0] + i * n;
        const ddp__real *dy = (const ddp__real *)call->grad_out + i * n;
        ddp__real *dx = call->grad_in[0] ? (ddp__real *)call->grad_in[0] + i * n : NULL;
        ddp__real mean_dh = 0;
        for (j = 0; j < n; j++) {
            mean_dh += dy[j] * scale[j] * x[j] * stat[i] / (ddp__real)n;
            if (dscale) dscale[j] += dy[j] * x[j] * stat[i];
        }
        for (j = 0; dx && j < n; j++)
            dx[j] = stat[i] * (dy[j] * scale[j] - x[j] * stat[i] * mean_dh) +
                    (call->add_in[0] ? dx[j] : 0);
    }
}

static void ddp__rms_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    const float eps = (float)ddp__rms_eps(call->spec);
    long i;

    for (i = first; i < last; i++)
        kn->rms((float *)call->out + i * n, (const float *)call->in[0] + i * n,
                (const float *)call->param[0], n, eps, (float *)call->saved + i);
}

static void ddp__rms_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    long i;

    for (i = first; i < last; i++)
        kn->rms_grad((float *)call->grad_in[0] + i * n, (const float *)call->in[0] + i * n,
                     (const float *)call->param[0], (const float *)call->grad_out + i * n, n,
                     (const float *)call->saved + i, call->add_in[0]);
}

/* The scale's gradient by blocks of columns, rows in order: no sum is split over threads. */
static void ddp__rms_grad_columns(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const float *stat = (const float *)call->saved;
    float sum[DDP__RMS_COLUMNS];
    long i, j;

    memset(sum, 0, sizeof sum);
    for (i = 0; i < rows; i++) {
        const float *x = (const float *)call->in[0] + i * n + first;
        const float *dy = (const float *)call->grad_out + i * n + first;
        if (last - first == DDP__RMS_COLUMNS) /* a constant: these are vectors then */
            for (j = 0; j < DDP__RMS_COLUMNS; j++) sum[j] += dy[j] * (x[j] * stat[i]);
        else
            for (j = 0; j < last - first; j++) sum[j] += dy[j] * (x[j] * stat[i]);
    }
    for (j = first; j < last; j++) ((float *)call->grad_param[0])[j] += sum[j - first];
}

static void ddp__rms_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];

    ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1,
                    ddp__rms_rows, (void *)call);
}

static void ddp__rms_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];

    if (call->grad_param[0])
        ddp_op_parallel(call, s->dim[s->dims - 1], DDP__RMS_COLUMNS, ddp__rms_grad_columns,
                        (void *)call);
    if (call->grad_in[0])
        ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1,
                        ddp__rms_grad_rows, (void *)call);
}

int ddp__rms_norm_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"rms_norm", ddp__rms_shape, ddp__rms_forward, ddp__rms_backward, ddp__rms_ref_forward,
         ddp__rms_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
