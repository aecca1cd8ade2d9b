#include "base/platform.h"
#include "base/fail.h"
#include "graph/builtin.h"
#include "ops/ops.h"

ddp_status ddp__op_floats(const ddp_op_spec *s, const char *op, int first, int last,
                          ddp_error *err)
{
    int i;

    if (s->inputs <= last)
        return ddp__fail(err, DDP_ARG, "%s: needs %d inputs, got %d", op, last + 1, s->inputs);
    for (i = first; i <= last; i++) {
        if (s->in_type[i] != DDP_F32)
            return ddp__fail(err, DDP_ARG, "%s: input %d must hold floats, not integers", op, i);
        if (s->in[i].dims < 1)
            return ddp__fail(err, DDP_ARG, "%s: input %d is a scalar; it needs rows of at least "
                             "one element", op, i);
    }
    return DDP_OK;
}

ddp_status ddp__op_count(const ddp_op_spec *s, const char *op, int i, const char *what,
                         long *value, ddp_error *err)
{
    const double v = s->arg[i];

    *value = 0;
    if (!(v >= 1 && v <= 2147483647.0) || v != floor(v))
        return ddp__fail(err, DDP_ARG, "%s: %s must be a whole number of at least 1, got %g", op,
                         what, v);
    *value = (long)v;
    return DDP_OK;
}

static void ddp__param_set(ddp_param *p, const char *name, long d0, long d1, ddp_init init,
                           double scale)
{
    p->name = name;
    p->shape.dims = d1 ? 2 : 1;
    p->shape.dim[0] = d0;
    p->shape.dim[1] = d1;
    p->init = init;
    p->scale = (float)scale;
}

void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init,
                   double scale)
{
    ddp__param_set(&s->param[s->params++], name, d0, d1, init, scale);
}

/* ---- operators on images (batch, channels, height, width) ----
 *
 * Shape rules and costs without kernels: a graph that uses them can be planned, not built. A
 * multiply-add counts as two operations, the bias of a convolution as none, as in linear. */

static double ddp__image_count(const ddp_shape *s)
{
    return (double)s->dim[0] * (double)s->dim[1] * (double)s->dim[2] * (double)s->dim[3];
}

static ddp_status ddp__image_input(const ddp_op_spec *s, const char *op, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    if (s->in[0].dims != 4)
        return ddp__fail(err, DDP_ARG, "%s: the input must be (batch, channels, height, width), "
                         "not of %d dimensions; ddp_input_shape makes one", op, s->in[0].dims);
    return DDP_OK;
}

/* A square window that slides over the image: sets out, with channels channels, from the
 * arguments first (kernel), first + 1 (stride) and first + 2 (padding on every side). */
static ddp_status ddp__image_window(ddp_op_spec *s, const char *op, int first, long channels,
                                    ddp_error *err)
{
    const double p = s->arg[first + 2];
    long kernel, stride;
    int i;

    DDP__TRY(ddp__op_count(s, op, first, "the kernel", &kernel, err));
    DDP__TRY(ddp__op_count(s, op, first + 1, "the stride", &stride, err));
    if (!(p >= 0 && p <= 2147483647.0) || p != floor(p))
        return ddp__fail(err, DDP_ARG, "%s: the padding must be a whole number of at least 0, "
                         "got %g", op, p);
    s->out = s->in[0];
    s->out.dim[1] = channels;
    for (i = 2; i < 4; i++) {
        const long room = s->in[0].dim[i] + 2 * (long)p;

        if (room < kernel)
            return ddp__fail(err, DDP_ARG, "%s: a kernel of %ld does not fit into %ld x %ld padded "
                             "by %ld: use a smaller kernel or more padding", op, kernel,
                             s->in[0].dim[2], s->in[0].dim[3], (long)p);
        s->out.dim[i] = (room - kernel) / stride + 1;
    }
    return DDP_OK;
}

/* Arguments: channels, kernel, stride, padding, groups, bias (1 or 0). Weight and bias start
 * uniform within 1 / sqrt(values read per output), PyTorch's default. */
static ddp_status ddp__conv2d_shape(ddp_op_spec *s, ddp_error *err)
{
    long channels, groups, depth, kernel;
    double reads, bound;

    DDP__TRY(ddp__image_input(s, "conv2d", err));
    DDP__TRY(ddp__op_count(s, "conv2d", 0, "the number of channels", &channels, err));
    DDP__TRY(ddp__op_count(s, "conv2d", 4, "the number of groups", &groups, err));
    if (s->in[0].dim[1] % groups || channels % groups)
        return ddp__fail(err, DDP_ARG, "conv2d: groups must divide the channels: %ld groups for "
                         "%ld channels in and %ld out", groups, s->in[0].dim[1], channels);
    if (s->arg[5] != 0 && s->arg[5] != 1)
        return ddp__fail(err, DDP_ARG, "conv2d: the bias must be 1 (with) or 0 (without), got %g",
                         s->arg[5]);
    DDP__TRY(ddp__image_window(s, "conv2d", 1, channels, err));
    kernel = (long)s->arg[1];
    depth = s->in[0].dim[1] / groups;
    reads = (double)depth * (double)kernel * (double)kernel;
    bound = 1 / sqrt(reads);
    ddp__op_param(s, "weight", channels, depth, DDP_INIT_UNIFORM, bound);
    s->param[0].shape.dims = 4;
    s->param[0].shape.dim[2] = s->param[0].shape.dim[3] = kernel;
    if (s->arg[5] != 0) ddp__op_param(s, "bias", channels, 0, DDP_INIT_UNIFORM, bound);
    s->flops = 2 * ddp__image_count(&s->out) * reads;
    s->out_unread = 1;
    return DDP_OK;
}

/* Ioffe and Szegedy 2015, arXiv:1502.03167, Algorithm 1. Saved: mean and rstd per channel. */
static ddp_status ddp__batch_norm2d_shape(ddp_op_spec *s, ddp_error *err)
{
    long channels;

    DDP__TRY(ddp__image_input(s, "batch_norm2d", err));
    channels = s->in[0].dim[1];
    s->out = s->in[0];
    ddp__op_param(s, "scale", channels, 0, DDP_INIT_ONE, 0);
    ddp__op_param(s, "shift", channels, 0, DDP_INIT_ZERO, 0);
    ddp__param_set(&s->buffer[s->buffers++], "running_mean", channels, 0, DDP_INIT_ZERO, 0);
    ddp__param_set(&s->buffer[s->buffers++], "running_var", channels, 0, DDP_INIT_ONE, 0);
    s->saved = 2 * (size_t)channels;
    s->flops = 8 * ddp__image_count(&s->out); /* as layer_norm */
    s->out_unread = 1;
    return DDP_OK;
}

/* Arguments: kernel, stride, padding. A window may not lie in the padding alone. */
static ddp_status ddp__pool2d_shape(ddp_op_spec *s, const char *op, ddp_error *err)
{
    DDP__TRY(ddp__image_input(s, op, err));
    DDP__TRY(ddp__image_window(s, op, 0, s->in[0].dim[1], err));
    if (2 * s->arg[2] > s->arg[0])
        return ddp__fail(err, DDP_ARG, "%s: the padding is %g, it must be at most half the kernel "
                         "of %g", op, s->arg[2], s->arg[0]);
    s->flops = ddp__image_count(&s->out) * s->arg[0] * s->arg[0];
    s->backward_flops = s->flops;
    s->out_unread = 1;
    return DDP_OK;
}

/* Saved: where in its window each maximum was, so that backward touches no other element. */
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

static int ddp__image_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"conv2d", ddp__conv2d_shape, NULL, NULL, NULL, NULL},
        {"batch_norm2d", ddp__batch_norm2d_shape, NULL, NULL, NULL, NULL},
        {"max_pool2d", ddp__max_pool2d_shape, NULL, NULL, NULL, NULL},
        {"avg_pool2d", ddp__avg_pool2d_shape, NULL, NULL, NULL, NULL},
        {"global_avg_pool2d", ddp__global_avg_pool2d_shape, NULL, NULL, NULL, NULL},
        {"flatten", ddp__flatten_shape, NULL, NULL, NULL, NULL},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}

/* ---- the table ---- */

const ddp_op *ddp__builtin_op(const char *name)
{
    typedef int (*family)(const ddp_op **list);
    static const family families[] = {
        ddp__linear_ops,     ddp__embedding_ops, ddp__norm_ops, ddp__attention_ops,
        ddp__activation_ops, ddp__dropout_ops,   ddp__loss_ops, ddp__image_ops,
        ddp__rms_norm_ops,   ddp__rope_ops,      ddp__swiglu_ops,
    };
    size_t f;
    int i;

    for (f = 0; f < sizeof families / sizeof families[0]; f++) {
        const ddp_op *list;
        const int n = families[f](&list);
        for (i = 0; i < n; i++)
            if (!strcmp(list[i].name, name)) return &list[i];
    }
    return NULL;
}
