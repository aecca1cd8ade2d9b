#include "base/platform.h"
#include "base/thread.h"
#include "graph/op.h"

long ddp_shape_count(const ddp_shape *s)
{
    long n = 1;
    int i;

    for (i = 0; i < s->dims; i++) n *= s->dim[i];
    return n;
}

long ddp_shape_rows(const ddp_shape *s)
{
    long n = 1;
    int i;

    for (i = 0; i + 1 < s->dims; i++) n *= s->dim[i];
    return n;
}

void ddp_op_parallel(const ddp_op_call *c, long items, long grain,
                     void (*fn)(void *user, long first, long last), void *user)
{
    ddp__pool_run((ddp__pool *)c->pool, items, grain, fn, user);
}
