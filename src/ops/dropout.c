/* Inverted dropout (Srivastava et al. 2014): y = x / (1 - p) where kept, else 0. The mask is not
 * stored: it is a pure function of call->random and the element's index, so backward draws it
 * again, and neither depends on threads. */
#include "base/platform.h"
#include "base/fail.h"
#include "base/rng.h"
#include "ops/ops.h"

static ddp_status ddp__dropout_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "dropout", 0, 0, err));
    if (!(s->arg[0] >= 0 && s->arg[0] < 1))
        return ddp__fail(err, DDP_ARG, "dropout: the probability must be at least 0 and below 1, "
                         "got %g", s->arg[0]);
    s->out = s->in[0];
    s->flops = (double)ddp_shape_count(&s->out);
    s->in_place_ok = 1;
    s->out_unread = 1;
    return DDP_OK;
}

/* Keep[i] for elements i of block number block (DDP__OP_GRAIN elements, a stream each): 32 random
 * bits per element against p * 2^32. */
static void ddp__dropout_mask(const ddp_op_call *call, long block, unsigned char *keep)
{
    const uint32_t bound = (uint32_t)(call->spec->arg[0] * 4294967296.0);
    ddp_rng r = ddp_rng_seed(call->random, (uint64_t)block);
    int i;

    for (i = 0; i < DDP__OP_GRAIN; i += 2) {
        const uint64_t bits = ddp_rng_u64(&r);
        keep[i] = (uint32_t)bits >= bound;
        keep[i + 1] = (uint32_t)(bits >> 32) >= bound;
    }
}

static int ddp__dropout_off(const ddp_op_call *call)
{
    return !call->training || call->spec->arg[0] == 0;
}

static void ddp__dropout_ref(const ddp_op_call *call, const ddp__real *x, ddp__real *y, int add)
{
    const long n = ddp_shape_count(&call->spec->out);
    const int off = ddp__dropout_off(call);
    const ddp__real scale = off ? 1 : (ddp__real)(1 / (1 - call->spec->arg[0]));
    unsigned char keep[DDP__OP_GRAIN];
    long i;

    for (i = 0; i < n; i++) {
        if (i % DDP__OP_GRAIN == 0) ddp__dropout_mask(call, i / DDP__OP_GRAIN, keep);
        y[i] = (off || keep[i % DDP__OP_GRAIN] ? x[i] * scale : 0) + (add ? y[i] : 0);
    }
}

static void ddp__dropout_ref_forward(const ddp_op_call *call)
{
    ddp__dropout_ref(call, (const ddp__real *)call->in[0], (ddp__real *)call->out, 0);
}

static void ddp__dropout_ref_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp__dropout_ref(call, (const ddp__real *)call->grad_out, (ddp__real *)call->grad_in[0],
                         call->add_in[0]);
}

typedef struct ddp__dropout_job {
    const ddp_op_call *call;
    const float       *x;
    float             *y;
    int                add;
} ddp__dropout_job;

/* first is a multiple of DDP__OP_GRAIN, and the range one block. */
static void ddp__dropout_range(void *user, long first, long last)
{
    const ddp__dropout_job *job = (const ddp__dropout_job *)user;
    const float scale = (float)(1 / (1 - job->call->spec->arg[0]));
    const float *x = job->x + first;
    float *y = job->y + first;
    const long n = last - first;
    unsigned char keep[DDP__OP_GRAIN];
    long i;

    if (ddp__dropout_off(job->call)) {
        if (job->add)
            for (i = 0; i < n; i++) y[i] += x[i];
        else if (y != x)
            memcpy(y, x, (size_t)n * sizeof *y);
        return;
    }
    ddp__dropout_mask(job->call, first / DDP__OP_GRAIN, keep);
    if (job->add)
        for (i = 0; i < n; i++) y[i] += keep[i] ? x[i] * scale : 0;
    else
        for (i = 0; i < n; i++) y[i] = keep[i] ? x[i] * scale : 0;
}

static void ddp__dropout_run(const ddp_op_call *call, const void *x, void *y, int add)
{
    ddp__dropout_job job;

    job.call = call;
    job.x = (const float *)x;
    job.y = (float *)y;
    job.add = add;
    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__dropout_range,
                    &job);
}

static void ddp__dropout_forward(const ddp_op_call *call)
{
    ddp__dropout_run(call, call->in[0], call->out, 0);
}

static void ddp__dropout_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp__dropout_run(call, call->grad_out, call->grad_in[0], call->add_in[0]);
}

int ddp__dropout_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"dropout", ddp__dropout_shape, ddp__dropout_forward, ddp__dropout_backward,
         ddp__dropout_ref_forward, ddp__dropout_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
