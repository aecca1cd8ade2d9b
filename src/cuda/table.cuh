/* The operators of a device: every family's entries beside the shape rules of the CPU. */
#ifndef DDP_CUDA_TABLE_CUH
#define DDP_CUDA_TABLE_CUH

#include "cuda/runtime.cuh"
#include "graph/builtin.h"

/* Adds the n entries of a family. */
static DDP__UNUSED void ddp__cuda_add_ops(ddp__cuda *dev, const ddp__cuda_entry *list, int n)
{
    int i;

    for (i = 0; i < n; i++) {
        const ddp_op *cpu = ddp__builtin_op(list[i].name);
        ddp_op *op = &dev->op[dev->ops];
        DDP_ASSERT(cpu && dev->ops < DDP__CUDA_OPS);
        memset(op, 0, sizeof *op);
        op->name = cpu->name;
        op->shape = cpu->shape;
        op->forward = list[i].forward;
        op->backward = list[i].backward;
        dev->entry[dev->ops++] = &list[i];
    }
}

/* The device's operator of that name, NULL if it has none. Borrowed until ddp__cuda_close. */
static DDP__UNUSED const ddp_op *ddp__cuda_op(const ddp__cuda *dev, const char *name)
{
    int i;

    for (i = 0; i < dev->ops; i++)
        if (strcmp(dev->op[i].name, name) == 0) return &dev->op[i];
    return NULL;
}

/* Bytes of dev->scratch that a node needs; op is one of ddp__cuda_op. */
static DDP__UNUSED size_t ddp__cuda_scratch(const ddp__cuda *dev, const ddp_op *op,
                                            const ddp_op_spec *spec)
{
    const ddp__cuda_entry *e = dev->entry[op - dev->op];

    return e->scratch ? e->scratch(spec, dev->half) : 0;
}

#endif /* DDP_CUDA_TABLE_CUH */
