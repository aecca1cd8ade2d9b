/* Pooling operators and flatten: max and mean over windows, mean of each channel, images to rows. */
#include "ops/ops.h"

/* Arguments: kernel, stride, padding. A window must include at least one element of the image. */
static ddp_status ddp__pool2d_shape(ddp_op_spec *s, const char *op, ddp_error *err)
{
    DDP__TRY(ddp__image_input(s, op, err));
    DDP__TRY(ddp__image_window(s, op, 0, s->in[0].dim[1], err));
    if (2 * s->arg[2] > s->arg[0])
        return ddp__fail(err, DDP_ARG,
                         "%s: the padding is %g, it must be at most half the kernel "
                         "of %g",
                         op, s->arg[2], s->arg[0]);
    s->flops = ddp__image_count(&s->out) * s->arg[0] * s->arg[0];
    s->backward_flops = s->flops;
    s->out_unread = 1;
    return DDP_OK;
}

/* Runs `planes` over all planes of the input. */
static void ddp__pool_each(const ddp_op_call *call, void (*planes)(void *user, long first, long last))
{
    const ddp_shape *s = &call->spec->in[0];

    ddp_op_parallel(call, s->dim[0] * s->dim[1], DDP__OP_GRAIN / (s->dim[2] * s->dim[3]) + 1, planes,
                    (void *)call);
}

/* Defines NAME_forward and NAME_backward, which run NAME_planes and NAME_grad_planes. */
#define DDP__POOL_RUNS(name)                                                                     \
    static void name##_forward(const ddp_op_call *call) { ddp__pool_each(call, name##_planes); } \
    static void name##_backward(const ddp_op_call *call)                                         \
    {                                                                                            \
        if (call->grad_in[0]) ddp__pool_each(call, name##_grad_planes);                          \
    }

/* ---- pooling over windows. Maximum: the first of equal values wins, and NaN counts as a maximum. Mean:
 * over kernel x kernel elements, with padding as zeros ---- */

/* Saves the position of each maximum in its window, so that backward updates only that element. */
static ddp_status ddp__max_pool2d_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__pool2d_shape(s, "max_pool2d", err));
    s->saved = (size_t)ddp_shape_count(&s->out);
    s->backward_flops = ddp__image_count(&s->out);
    return DDP_OK;
}

static ddp_status ddp__avg_pool2d_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__pool2d_shape(s, "avg_pool2d", err);
}

/* Where the positions of maxima are stored, for planes from first on, or NULL for means. */
static float *ddp__pool_at(const ddp_op_call *call, long first)
{
    return call->spec->saved ? (float *)call->saved + first * call->spec->out.dim[2] * call->spec->out.dim[3]
                             : NULL;
}

static void ddp__window_pool_planes(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__pool_size z = ddp__pool_sizes(call->spec);
    const float part = 1.0f / ((float)z.kernel * (float)z.kernel);
    float *y = (float *)call->out + first * z.rows * z.cols, *at = ddp__pool_at(call, first);
    int i, j, r0, r1, c0, c1;
    long p, r, c;

    for (p = first; p < last; p++) {
        const float *x = (const float *)call->in[0] + p * z.h * z.w;
        for (i = 0; i < z.rows; i++) {
            ddp__pool_span(&z, i, z.h, &r0, &r1);
            for (j = 0; j < z.cols; j++) {
                long best;
                float sum = 0;
                ddp__pool_span(&z, j, z.w, &c0, &c1);
                best = (long)r0 * z.w + c0;
                if (!at) {
                    for (r = r0; r < r1; r++)
                        for (c = c0; c < c1; c++) sum += x[r * z.w + c];
                    *y++ = sum * part;
                    continue;
                }
                for (r = r0; r < r1; r++)
                    for (c = c0; c < c1; c++)
                        if (!(x[r * z.w + c] <= x[best]) && !ddp__is_nan((double)x[best])) best = r * z.w + c;
                *y++ = x[best];
                *at++ = (float)((best / z.w - i * z.stride + z.padding) * z.kernel + best % z.w -
                                j * z.stride + z.padding);
            }
        }
    }
}

static void ddp__window_pool_grad_planes(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__pool_size z = ddp__pool_sizes(call->spec);
    const float part = 1.0f / ((float)z.kernel * (float)z.kernel);
    const float *dy = (const float *)call->grad_out + first * z.rows * z.cols,
                *at = ddp__pool_at(call, first);
    int i, j, r0, r1, c0, c1;
    long p, r, c;

    for (p = first; p < last; p++) {
        float *dx = (float *)call->grad_in[0] + p * z.h * z.w;
        if (!call->add_in[0]) memset(dx, 0, (size_t)z.h * (size_t)z.w * sizeof *dx);
        for (i = 0; i < z.rows; i++)
            for (j = 0; j < z.cols; j++, dy++) {
                const float d = *dy * part;
                if (at) {
                    r = i * z.stride - z.padding + (long)*at / z.kernel;
                    c = j * z.stride - z.padding + (long)*at++ % z.kernel;
                    dx[r * z.w + c] += *dy;
                    continue;
                }
                ddp__pool_span(&z, i, z.h, &r0, &r1);
                ddp__pool_span(&z, j, z.w, &c0, &c1);
                for (r = r0; r < r1; r++)
                    for (c = c0; c < c1; c++) dx[r * z.w + c] += d;
            }
    }
}

DDP__POOL_RUNS(ddp__window_pool)

/* ---- mean of each channel ---- */

static ddp_status ddp__global_avg_pool2d_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__image_input(s, "global_avg_pool2d", err));
    s->out.dims = 2;
    s->out.dim[0] = s->in[0].dim[0];
    s->out.dim[1] = s->in[0].dim[1];
    s->flops = ddp__image_count(&s->in[0]);
    s->backward_flops = s->flops;
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__global_pool_planes(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const long n = call->spec->in[0].dim[2] * call->spec->in[0].dim[3];

    for (long p = first; p < last; p++) {
        const float *x = (const float *)call->in[0] + p * n;
        double sum = 0;
        for (long i = 0; i < n; i++) sum += (double)x[i];
        ((float *)call->out)[p] = (float)(sum / (double)n);
    }
}

static void ddp__global_pool_grad_planes(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const long n = call->spec->in[0].dim[2] * call->spec->in[0].dim[3];

    for (long p = first; p < last; p++) {
        const float d = ((const float *)call->grad_out)[p] / (float)n;
        float *dx = (float *)call->grad_in[0] + p * n;
        if (call->add_in[0])
            for (long i = 0; i < n; i++) dx[i] += d;
        else
            for (long i = 0; i < n; i++) dx[i] = d;
    }
}

DDP__POOL_RUNS(ddp__global_pool)

/* ---- flatten: same elements, other shape ---- */

static ddp_status ddp__flatten_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "flatten", 0, 0, err));
    s->out.dims = 2;
    s->out.dim[0] = s->in[0].dim[0];
    s->out.dim[1] = ddp_shape_count(&s->in[0]) / s->in[0].dim[0];
    s->in_place_ok = 1;
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__flatten_forward(const ddp_op_call *call)
{
    if (call->out != call->in[0])
        memcpy(call->out, call->in[0], (size_t)ddp_shape_count(&call->spec->out) * sizeof(float));
}

static void ddp__flatten_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const float *dy = (const float *)call->grad_out;
    float *dx = (float *)call->grad_in[0];

    if (dx && call->add_in[0])
        for (long i = 0; i < n; i++) dx[i] += dy[i];
    else if (dx)
        memcpy(dx, dy, (size_t)n * sizeof *dx);
}

DDP__OPS(ddp__pool_ops,
         {"max_pool2d", ddp__max_pool2d_shape, ddp__window_pool_forward, ddp__window_pool_backward},
         {"avg_pool2d", ddp__avg_pool2d_shape, ddp__window_pool_forward, ddp__window_pool_backward},
         {"global_avg_pool2d", ddp__global_avg_pool2d_shape, ddp__global_pool_forward,
          ddp__global_pool_backward},
         {"flatten", ddp__flatten_shape, ddp__flatten_forward, ddp__flatten_backward})
