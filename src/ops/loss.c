/* Softmax cross-entropy, mean over the rows whose label is not -1 (0 if there is none):
 * row loss = log(sum exp(x - max)) + max - x[label]. Saved: max and sum per row; probabilities
 * are never stored, backward computes them over the logits. A label below -1 or beyond the last
 * column makes the loss NAN, and its row of the gradient too: a kernel cannot return an error. */
#include "ops/ops.h"

static ddp_status ddp__loss_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "cross_entropy", 0, 0, err));
    if (s->inputs < 2 || s->in_type[1] != DDP_I32)
        return ddp__fail(err, DDP_ARG, "cross_entropy: input 1 must hold integers (labels)");
    if (ddp_shape_count(&s->in[1]) != ddp_shape_rows(&s->in[0]))
        return ddp__fail(err, DDP_ARG, "cross_entropy: %ld labels for %ld rows of logits; each "
                         "row needs one", ddp_shape_count(&s->in[1]), ddp_shape_rows(&s->in[0]));
    memset(&s->out, 0, sizeof s->out);
    s->saved = (size_t)(2 * ddp_shape_rows(&s->in[0]));
    s->flops = 5.0 * (double)ddp_shape_count(&s->in[0]);
    s->backward_flops = s->flops;
    s->out_unread = 1;
    s->grad_over_input = 1;
    return DDP_OK;
}

/* Rows that count, at least 1 so that it may divide. */
static long ddp__loss_counted(const int32_t *label, long rows)
{
    long i, n = 0;

    for (i = 0; i < rows; i++) n += label[i] != -1;
    return n ? n : 1;
}

static void ddp__loss_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    float *stat = (float *)call->saved;

    for (long i = first; i < last; i++) {
        const float *x = (const float *)call->in[0] + i * n;
        stat[2 * i] = kn->max(x, n);
        stat[2 * i + 1] = kn->softmax(NULL, x, n, 1, stat[2 * i], 1, 0);
    }
}

static void ddp__loss_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    const float *x = (const float *)call->in[0], *stat = (const float *)call->saved;
    double loss = 0;

    ddp__op_rows(call, s, ddp__loss_rows);
    for (long i = 0; i < rows; i++) {
        if (label[i] == -1) continue;
        if (label[i] < 0 || label[i] >= n) loss = NAN;
        else loss += log((double)stat[2 * i + 1]) + (double)stat[2 * i] - (double)x[i * n + label[i]];
    }
    *(float *)call->out = (float)(loss / (double)ddp__loss_counted(label, rows));
}

typedef struct ddp__loss_job {
    const ddp_op_call *call;
    float              g; /* gradient of the loss over the rows that count */
} ddp__loss_job;

/* grad_in may be the logits themselves: nothing of them is read after it is written. */
static void ddp__loss_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = ((const ddp__loss_job *)user)->call;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    const float *stat = (const float *)call->saved;
    const float g = ((const ddp__loss_job *)user)->g;

    for (long i = first; i < last; i++) {
        const float *x = (const float *)call->in[0] + i * n;
        float *dx = (float *)call->grad_in[0] + i * n;
        if (label[i] == -1) {
            if (!call->add_in[0]) memset(dx, 0, (size_t)n * sizeof *dx);
        } else if (label[i] < 0 || label[i] >= n) {
            for (long j = 0; j < n; j++) dx[j] = NAN;
        } else {
            kn->softmax(dx, x, n, 1, stat[2 * i], g / stat[2 * i + 1], call->add_in[0]);
            dx[label[i]] -= g;
        }
    }
}

static void ddp__loss_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s);
    ddp__loss_job job = {call, 0};

    if (!call->grad_in[0]) return;
    job.g = *(const float *)call->grad_out / (float)ddp__loss_counted((const int32_t *)call->in[1], rows);
    ddp_op_parallel(call, rows, DDP__OP_GRAIN / s->dim[s->dims - 1] + 1, ddp__loss_grad_rows, &job);
}

DDP__OPS(ddp__loss_ops,
    {"cross_entropy", ddp__loss_shape, ddp__loss_forward, ddp__loss_backward})
