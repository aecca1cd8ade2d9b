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

void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init,
                   double scale)
{
    ddp_param *p = &s->param[s->params++];

    p->name = name;
    p->shape.dims = d1 ? 2 : 1;
    p->shape.dim[0] = d0;
    p->shape.dim[1] = d1;
    p->init = init;
    p->scale = (float)scale;
}

/* ---- what operators on images (batch, channels, height, width) share ---- */

double ddp__image_count(const ddp_shape *s)
{
    return (double)s->dim[0] * (double)s->dim[1] * (double)s->dim[2] * (double)s->dim[3];
}

ddp_status ddp__image_input(const ddp_op_spec *s, const char *op, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    if (s->in[0].dims != 4)
        return ddp__fail(err, DDP_ARG, "%s: the input must be (batch, channels, height, width), "
                         "not of %d dimensions; ddp_input_shape makes one", op, s->in[0].dims);
    return DDP_OK;
}

ddp_status ddp__image_window(ddp_op_spec *s, const char *op, int first, long channels,
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

/* ---- the table ---- */

const ddp_op *ddp__builtin_op(const char *name)
{
    typedef int (*family)(const ddp_op **list);
    static const family families[] = {
        ddp__linear_ops,     ddp__embedding_ops, ddp__norm_ops, ddp__attention_ops,
        ddp__activation_ops, ddp__dropout_ops,   ddp__loss_ops, ddp__conv_ops,
        ddp__batch_norm_ops, ddp__pool_ops,      ddp__rms_norm_ops,
        ddp__rope_ops,       ddp__swiglu_ops,
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
