#include "base/platform.h"
#include "base/fail.h"
#include "graph/builtin.h"
#include "ops/ops.h"

const ddp_op *ddp__builtin_op(const char *name)
{
    typedef int (*family)(const ddp_op **list);
    static const family families[] = {
        ddp__linear_ops,     ddp__embedding_ops, ddp__norm_ops, ddp__attention_ops,
        ddp__activation_ops, ddp__dropout_ops,   ddp__loss_ops,
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
