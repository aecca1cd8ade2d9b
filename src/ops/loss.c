/* Softmax cross-entropy: mean over the rows whose label is not -1 (0 without such rows). Row loss =
 * log(sum exp(x - max)) + max - x[label]. Saves max and sum per row. Probabilities are not stored, because
 * backward computes them in place of the logits. A label below -1 or beyond the last column makes the loss
 * and that row's gradient NAN, because a kernel cannot return an error. */
#include "ops/ops.h"

static ddp_status ddp__loss_labels(const ddp_op_spec *s, const char *op, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    if (s->inputs < 2 || s->in_type[1] != DDP_I32)
        return ddp__fail(err, DDP_ARG, "%s: input 1 must hold integers (labels)", op);
    if (ddp_shape_count(&s->in[1]) != ddp_shape_rows(&s->in[0]))
        return ddp__fail(err, DDP_ARG, "%s: %ld labels for %ld rows; each row needs one", op,
                         ddp_shape_count(&s->in[1]), ddp_shape_rows(&s->in[0]));
    return DDP_OK;
}

static ddp_status ddp__loss_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__loss_labels(s, "cross_entropy", err));
    memset(&s->out, 0, sizeof s->out);
    s->saved = (size_t)(2 * ddp_shape_rows(&s->in[0]));
    s->flops = 5.0 * (double)ddp_shape_count(&s->in[0]);
    s->backward_flops = s->flops;
    s->out_unread = 1;
    s->grad_over_input = 1;
    return DDP_OK;
}

/* Number of rows with a label, at least 1 so that it can be a divisor. */
static long ddp__loss_counted(const int32_t *label, long rows)
{
    long i, n = 0;

    for (i = 0; i < rows; i++) n += label[i] != -1;
    return n ? n : 1;
}

static void ddp__loss_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_of(call);
    const ddp_shape *s = &call->spec->in[0];
    const long n = s->dim[s->dims - 1];
    float *stat = (float *)call->saved;

    for (long i = first; i < last; i++) {
        const float *x = (const float *)call->in[0] + i * n;
        stat[2 * i] = kn->max(x, n);
        stat[2 * i + 1] = kn->softmax(NULL, x, n, 1, stat[2 * i], 1, 0);
    }
}

/* loss plus the losses of the rows of logits. */
static double ddp__loss_sum(const ddp_op_call *call, double loss)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    const float *x = (const float *)call->in[0], *stat = (const float *)call->saved;

    ddp__op_rows(call, s, ddp__loss_rows);
    for (long i = 0; i < rows; i++) {
        if (label[i] == -1) continue;
        if (label[i] < 0 || label[i] >= n)
            loss = ddp__unknown();
        else
            loss += log((double)stat[2 * i + 1]) + (double)stat[2 * i] - (double)x[i * n + label[i]];
    }
    return loss;
}

static void ddp__loss_forward(const ddp_op_call *call)
{
    const long counted = ddp__loss_counted((const int32_t *)call->in[1], ddp_shape_rows(&call->spec->in[0]));

    *(float *)call->out = (float)(ddp__loss_sum(call, 0) / (double)counted);
}

typedef struct ddp__loss_job {
    const ddp_op_call *call;
    float g; /* gradient of the loss / number of rows with a label */
} ddp__loss_job;

/* grad_in may be the logits themselves: no element is read after it is written. */
static void ddp__loss_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = ((const ddp__loss_job *)user)->call;
    const ddp__kernels *kn = ddp__kernels_of(call);
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
            for (long j = 0; j < n; j++) dx[j] = (float)ddp__unknown();
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

/* ---- linear_cross_entropy: the loss of logits x W^T, computed in chunks. A training forward also runs
 * backward for each chunk while its logits exist, as if the gradient of the loss were 1. Backward then
 * multiplies by the actual gradient. ---- */

long ddp__head_chunk(long rows)
{
    return ddp__min_long(rows, ddp__matmul_depth(rows) * ddp__parts(rows, 4096));
}

static ddp_status ddp__head_shape(ddp_op_spec *s, ddp_error *err)
{
    static const char op[] = "linear_cross_entropy";
    const ddp_shape *w = &s->param[0].shape;
    double rows, n, k, saved;

    DDP__TRY(ddp__loss_labels(s, op, err));
    DDP__TRY(s->params ? ddp__linear_borrow(s, op, err) : ddp__linear_start(s, op, 0, err));
    rows = (double)ddp_shape_rows(&s->in[0]);
    n = (double)w->dim[0];
    k = (double)w->dim[1];
    memset(&s->out, 0, sizeof s->out);
    saved = (n + rows) * k + (n + 2) * (double)ddp__head_chunk(ddp_shape_rows(&s->in[0]));
    s->saved = saved < 1e18 ? (size_t)saved : (size_t)-1; /* too large for any graph */
    s->flops = (6 * k + 10) * rows * n;
    s->backward_flops = 2 * (n + rows) * k;
    return DDP_OK;
}

ddp__head ddp__head_of(const ddp_op_call *call)
{
    const ddp_op_spec *s = call->spec;
    ddp__head h = {ddp_shape_rows(&s->in[0]),
                   s->param[0].shape.dim[0],
                   s->param[0].shape.dim[1],
                   0,
                   NULL,
                   NULL,
                   NULL,
                   NULL};

    h.chunk = ddp__head_chunk(h.rows);
    h.dw = (float *)call->saved;
    h.dx = h.dw + h.n * h.k;
    h.logits = h.dx + h.rows * h.k;
    h.stat = h.logits + h.chunk * h.n;
    return h;
}

static void ddp__head_forward(const ddp_op_call *call)
{
    const ddp__head h = ddp__head_of(call);
    const int32_t *label = (const int32_t *)call->in[1];
    const long counted = ddp__loss_counted(label, h.rows);
    ddp_op_spec spec = *call->spec; /* for the loss of a chunk */
    ddp_op_call part = *call;
    ddp__loss_job job = {&part, 1 / (float)counted};
    double loss = 0;

    part.spec = &spec;
    part.saved = h.stat;
    part.in[0] = part.grad_in[0] = h.logits;
    part.add_in[0] = 0;
    spec.in[0].dims = 2;
    spec.in[0].dim[1] = h.n;
    for (long r = 0; r < h.rows; r += h.chunk) {
        const long rows = spec.in[0].dim[0] = ddp__min_long(h.chunk, h.rows - r);
        const float *x = (const float *)call->in[0] + r * h.k;
        part.in[1] = label + r;
        ddp__linear_product(call, rows, h.n, h.k, x, 0, call->param[0], 1, h.logits, NULL, 0);
        loss = ddp__loss_sum(&part, loss);
        if (!call->training) continue;
        ddp_op_parallel(call, rows, DDP__OP_GRAIN / h.n + 1, ddp__loss_grad_rows, &job);
        ddp__linear_product(call, h.n, h.k, rows, h.logits, 1, x, 0, h.dw, NULL, r > 0);
        ddp__linear_product(call, rows, h.k, h.n, h.logits, 0, call->param[0], 0, h.dx + r * h.k, NULL, 0);
    }
    *(float *)call->out = (float)(loss / (double)counted);
}

typedef struct ddp__scaled {
    const ddp__kernels *kn;
    float *to;
    const float *from;
    float by;
    int add;
} ddp__scaled;

static void ddp__scaled_part(void *user, long first, long last)
{
    const ddp__scaled *s = (const ddp__scaled *)user;

    s->kn->affine(s->to + first, s->from + first, NULL, last - first, s->by, 0, 0, s->add);
}

static void ddp__head_backward(const ddp_op_call *call)
{
    const ddp__head h = ddp__head_of(call);
    const float by = *(const float *)call->grad_out;
    const ddp__kernels *kn = ddp__kernels_of(call);
    ddp__scaled dx = {kn, (float *)call->grad_in[0], h.dx, by, call->add_in[0]};
    ddp__scaled dw = {kn, (float *)call->grad_param[0], h.dw, by, 1};

    if (dx.to) ddp_op_parallel(call, h.rows * h.k, DDP__OP_GRAIN, ddp__scaled_part, &dx);
    if (dw.to) ddp_op_parallel(call, h.n * h.k, DDP__OP_GRAIN, ddp__scaled_part, &dw);
}

DDP__OPS(ddp__loss_ops, {"cross_entropy", ddp__loss_shape, ddp__loss_forward, ddp__loss_backward},
         {"linear_cross_entropy", ddp__head_shape, ddp__head_forward, ddp__head_backward})
