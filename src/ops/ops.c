/* Shared helpers of operators: parallel loops, checks of inputs and arguments, attention heads, image
 * windows. */
#include "ops/ops.h"

void ddp__op_elements(const ddp_op_call *call, void (*fn)(void *user, long, long))
{
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, fn, (void *)call);
}

void ddp__op_rows(const ddp_op_call *call, const ddp_shape *s, void (*fn)(void *user, long, long))
{
    ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1, fn, (void *)call);
}

ddp_status ddp__op_floats(const ddp_op_spec *s, const char *op, int first, int last, ddp_error *err)
{
    if (s->inputs <= last)
        return ddp__fail(err, DDP_ARG, "%s: needs %d inputs, got %d", op, last + 1, s->inputs);
    for (int i = first; i <= last; i++) {
        if (s->in_type[i] != DDP_F32)
            return ddp__fail(err, DDP_ARG, "%s: input %d must hold floats, not integers", op, i);
        if (s->in[i].dims < 1)
            return ddp__fail(err, DDP_ARG, "%s: input %d is a scalar; it needs rows of at least one element",
                             op, i);
    }
    return DDP_OK;
}

ddp_status ddp__op_same(ddp_op_spec *s, const char *op, double flops, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    s->out = s->in[0];
    s->flops = flops * (double)ddp_shape_count(&s->out);
    s->out_unread = 1;
    return DDP_OK;
}

ddp_status ddp__op_count(const ddp_op_spec *s, const char *op, int i, const char *what, long *value,
                         ddp_error *err)
{
    const double v = s->arg[i];

    *value = 0;
    if (!(v >= 1 && v <= 2147483647.0) || v != floor(v))
        return ddp__fail(err, DDP_ARG, "%s: %s must be a whole number of at least 1, got %g", op, what, v);
    *value = (long)v;
    return DDP_OK;
}

void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init, double scale)
{
    const ddp_param p = {name, {d1 ? 2 : 1, {d0, d1, 0, 0}}, init, (float)scale, 0};

    s->param[s->params++] = p;
}

/* ---- heads ---- */

ddp__heads ddp__heads_of(const ddp_op_spec *s)
{
    ddp__heads z;

    z.b = s->in[0].dim[0];
    z.t = s->in[0].dim[1];
    z.row = s->in[0].dim[2];
    z.heads = (long)s->arg[0];
    z.kv_heads = s->arg[1] > 0 ? (long)s->arg[1] : z.heads;
    z.group = z.heads / z.kv_heads;
    z.d = (int)ddp__min_long(z.row / (z.heads + 2 * z.kv_heads), INT_MAX);
    z.width = z.heads * z.d;
    z.scale = 1 / sqrtf((float)z.d);
    return z;
}

ddp_status ddp__op_heads(const ddp_op_spec *s, const char *op, ddp__heads *z, ddp_error *err)
{
    long heads, kv_heads;

    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    DDP__TRY(ddp__op_count(s, op, 0, "heads", &heads, err));
    kv_heads = heads;
    if (s->arg[1] != 0) DDP__TRY(ddp__op_count(s, op, 1, "kv_heads", &kv_heads, err));
    if (heads % kv_heads)
        return ddp__fail(err, DDP_ARG,
                         "%s: %ld heads of queries cannot share %ld heads of keys "
                         "and values: kv_heads must divide heads",
                         op, heads, kv_heads);
    if (s->in[0].dims != 3)
        return ddp__fail(err, DDP_ARG,
                         "%s: the input must be (batch, time, queries with keys "
                         "and values), got %d dimensions",
                         op, s->in[0].dims);
    if (s->in[0].dim[2] % (heads + 2 * kv_heads))
        return ddp__fail(err, DDP_ARG,
                         "%s: the input's last dimension (%ld) must be a multiple "
                         "of %ld: %ld heads of queries, %ld of keys, %ld of values",
                         op, s->in[0].dim[2], heads + 2 * kv_heads, heads, kv_heads, kv_heads);
    *z = ddp__heads_of(s);
    return DDP_OK;
}

/* ---- image operators (batch, channels, height, width) ---- */

double ddp__image_count(const ddp_shape *s)
{
    return (double)s->dim[0] * (double)s->dim[1] * (double)s->dim[2] * (double)s->dim[3];
}

ddp_status ddp__image_input(const ddp_op_spec *s, const char *op, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    if (s->in[0].dims != 4)
        return ddp__fail(err, DDP_ARG,
                         "%s: the input must be (batch, channels, height, width), "
                         "not of %d dimensions; ddp_input_shape makes one",
                         op, s->in[0].dims);
    return DDP_OK;
}

void ddp__channel_sums(const ddp_op_call *call, const ddp_shape *s, const float *x, const float *y,
                       float x_mean, float y_mean, double *sum)
{
    const ddp__kernels *kn = ddp__kernels_of(call);
    const long n = s->dim[2] * s->dim[3], image = s->dim[1] * n;

    sum[0] = sum[1] = 0;
    for (long b = 0; b < s->dim[0]; b++) {
        float part[2];
        if (b + 1 < s->dim[0]) {
            ddp__ahead(x + (b + 1) * image, n);
            ddp__ahead(y + (b + 1) * image, n);
        }
        kn->moments(x + b * image, y + b * image, n, x_mean, y_mean, part);
        sum[0] += (double)part[0];
        sum[1] += (double)part[1];
    }
}

ddp_status ddp__image_window(ddp_op_spec *s, const char *op, int first, long channels, ddp_error *err)
{
    const double p = s->arg[first + 2];
    long kernel, stride;

    DDP__TRY(ddp__op_count(s, op, first, "the kernel", &kernel, err));
    DDP__TRY(ddp__op_count(s, op, first + 1, "the stride", &stride, err));
    if (!(p >= 0 && p <= 2147483647.0) || p != floor(p))
        return ddp__fail(err, DDP_ARG, "%s: the padding must be a whole number of at least 0, got %g", op, p);
    s->out = s->in[0];
    s->out.dim[1] = channels;
    for (int i = 2; i < 4; i++) {
        const long room = s->in[0].dim[i] + 2 * (long)p;
        if (room < kernel)
            return ddp__fail(err, DDP_ARG,
                             "%s: a kernel of %ld does not fit into %ld x %ld padded by %ld: use a "
                             "smaller kernel or more padding",
                             op, kernel, s->in[0].dim[2], s->in[0].dim[3], (long)p);
        s->out.dim[i] = (room - kernel) / stride + 1;
    }
    return DDP_OK;
}

ddp__pool_size ddp__pool_sizes(const ddp_op_spec *s)
{
    const long *in = s->in[0].dim, *out = s->out.dim;
    const ddp__pool_size z = {in[0] * in[1], (int)in[2],     (int)in[3],     (int)out[2],
                              (int)out[3],   (int)s->arg[0], (int)s->arg[1], (int)s->arg[2]};

    return z;
}
