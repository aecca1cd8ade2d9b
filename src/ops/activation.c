/* Elementwise functions: gelu, relu, add. */
#include "base/platform.h"
#include "base/fail.h"
#include "ops/kernels.h"
#include "ops/ops.h"

static ddp_status ddp__same_shape(ddp_op_spec *s, const char *op, double flops, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    s->out = s->in[0];
    s->flops = flops * (double)ddp_shape_count(&s->out);
    s->out_unread = 1;
    return DDP_OK;
}

/* ---- gelu, tanh form (Hendrycks and Gimpel, arXiv:1606.08415) ---- */

static ddp_status ddp__gelu_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__same_shape(s, "gelu", 12, err);
}

static void ddp__gelu_ref_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *x = (const ddp__real *)call->in[0];
    ddp__real *y = (ddp__real *)call->out;
    long i;

    for (i = 0; i < n; i++) {
        const double v = (double)x[i];
        const double u = 0.79788456080286535588 * (v + 0.044715 * v * v * v);
        y[i] = (ddp__real)(0.5 * v * (1 + tanh(u)));
    }
}

static void ddp__gelu_ref_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *x = (const ddp__real *)call->in[0];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *dx = (ddp__real *)call->grad_in[0];
    long i;

    for (i = 0; dx && i < n; i++) {
        const double v = (double)x[i], a = 0.79788456080286535588;
        const double t = tanh(a * (v + 0.044715 * v * v * v));
        const double d = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * a * (1 + 3 * 0.044715 * v * v);
        dx[i] = (ddp__real)d * dy[i] + (call->add_in[0] ? dx[i] : 0);
    }
}

static void ddp__gelu_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;

    ddp__kernels_best()->gelu((float *)call->out + first, (const float *)call->in[0] + first,
                              last - first);
}

static void ddp__gelu_grad_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;

    ddp__kernels_best()->gelu_grad((float *)call->grad_in[0] + first,
                                   (const float *)call->in[0] + first,
                                   (const float *)call->grad_out + first, last - first,
                                   call->add_in[0]);
}

static void ddp__gelu_forward(const ddp_op_call *call)
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__gelu_range,
                    (void *)call);
}

static void ddp__gelu_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN,
                        ddp__gelu_grad_range, (void *)call);
}

/* ---- relu; the gradient at 0 is 0 ---- */

static ddp_status ddp__relu_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__same_shape(s, "relu", 1, err);
}

static void ddp__relu_ref_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *x = (const ddp__real *)call->in[0];
    ddp__real *y = (ddp__real *)call->out;
    long i;

    for (i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
}

static void ddp__relu_ref_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *x = (const ddp__real *)call->in[0];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *dx = (ddp__real *)call->grad_in[0];
    long i;

    for (i = 0; dx && i < n; i++)
        dx[i] = (x[i] > 0 ? dy[i] : 0) + (call->add_in[0] ? dx[i] : 0);
}

static void ddp__relu_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;

    ddp__kernels_best()->relu((float *)call->out + first, (const float *)call->in[0] + first,
                              last - first);
}

static void ddp__relu_grad_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;

    ddp__kernels_best()->relu_grad((float *)call->grad_in[0] + first,
                                   (const float *)call->in[0] + first,
                                   (const float *)call->grad_out + first, last - first,
                                   call->add_in[0]);
}

static void ddp__relu_forward(const ddp_op_call *call)
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__relu_range,
                    (void *)call);
}

static void ddp__relu_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN,
                        ddp__relu_grad_range, (void *)call);
}

/* ---- add: a + b, equal shapes ---- */

static ddp_status ddp__add_shape(ddp_op_spec *s, ddp_error *err)
{
    int i;

    DDP__TRY(ddp__op_floats(s, "add", 0, 1, err));
    if (s->in[0].dims != s->in[1].dims)
        return ddp__fail(err, DDP_ARG, "add: the inputs have %d and %d dimensions; they must be "
                         "equal", s->in[0].dims, s->in[1].dims);
    for (i = 0; i < s->in[0].dims; i++)
        if (s->in[0].dim[i] != s->in[1].dim[i])
            return ddp__fail(err, DDP_ARG, "add: dimension %d of the inputs is %ld and %ld; they "
                             "must be equal", i, s->in[0].dim[i], s->in[1].dim[i]);
    s->in_place_ok = 1;
    return ddp__same_shape(s, "add", 1, err);
}

static void ddp__add_ref_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *a = (const ddp__real *)call->in[0];
    const ddp__real *b = (const ddp__real *)call->in[1];
    ddp__real *y = (ddp__real *)call->out;
    long i;

    for (i = 0; i < n; i++) y[i] = a[i] + b[i];
}

/* Input by input: both may be the same array, the second then adding to the first. */
static void ddp__add_ref_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    long i;
    int k;

    for (k = 0; k < 2; k++) {
        ddp__real *d = (ddp__real *)call->grad_in[k];
        for (i = 0; d && i < n; i++) d[i] = dy[i] + (call->add_in[k] ? d[i] : 0);
    }
}

static void ddp__add_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;

    ddp__kernels_best()->affine((float *)call->out + first, (const float *)call->in[0] + first,
                                (const float *)call->in[1] + first, last - first, 1, 1, 0, 0);
}

static void ddp__add_grad_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const float *dy = (const float *)call->grad_out;
    int k;

    for (k = 0; k < 2; k++) {
        float *d = (float *)call->grad_in[k];
        if (d && call->add_in[k])
            ddp__kernels_best()->affine(d + first, dy + first, NULL, last - first, 1, 0, 0, 1);
        else if (d && d != dy)
            memcpy(d + first, dy + first, (size_t)(last - first) * sizeof *d);
    }
}

static void ddp__add_forward(const ddp_op_call *call)
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__add_range,
                    (void *)call);
}

static void ddp__add_backward(const ddp_op_call *call)
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__add_grad_range,
                    (void *)call);
}

int ddp__activation_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"gelu", ddp__gelu_shape, ddp__gelu_forward, ddp__gelu_backward, ddp__gelu_ref_forward,
         ddp__gelu_ref_backward},
        {"relu", ddp__relu_shape, ddp__relu_forward, ddp__relu_backward, ddp__relu_ref_forward,
         ddp__relu_ref_backward},
        {"add", ddp__add_shape, ddp__add_forward, ddp__add_backward, ddp__add_ref_forward,
         ddp__add_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
