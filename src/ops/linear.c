/* linear: y = x W^T + b over rows, x (rows, C), W (width, C), b (width). */
#include "ops/ops.h"

typedef struct ddp__linear_size {
    long m, n, k; /* rows, width, C */
} ddp__linear_size;

static ddp__linear_size ddp__linear_sizes(const ddp_op_spec *s)
{
    ddp__linear_size z;

    z.m = ddp_shape_rows(&s->in[0]);
    z.n = s->out.dim[s->out.dims - 1];
    z.k = s->in[0].dim[s->in[0].dims - 1];
    return z;
}

static void ddp__linear_finish(ddp_op_spec *s, long width)
{
    ddp__linear_size z;

    s->out = s->in[0];
    s->out.dim[s->out.dims - 1] = width;
    s->out_unread = 1;
    z = ddp__linear_sizes(s);
    s->flops = 2.0 * (double)z.m * (double)z.n * (double)z.k;
}

/* Weight and bias start uniform within 1 / sqrt(C), PyTorch's default. */
static ddp_status ddp__linear_start(ddp_op_spec *s, const char *op, int bias, ddp_error *err)
{
    long width, c;
    double bound;

    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    DDP__TRY(ddp__op_count(s, op, 0, "width", &width, err));
    c = s->in[0].dim[s->in[0].dims - 1];
    bound = 1.0 / sqrt((double)c);
    ddp__op_param(s, "weight", width, c, DDP_INIT_UNIFORM, bound);
    if (bias) ddp__op_param(s, "bias", width, 0, DDP_INIT_UNIFORM, bound);
    ddp__linear_finish(s, width);
    return DDP_OK;
}

static ddp_status ddp__linear_shape(ddp_op_spec *s, ddp_error *err) { return ddp__linear_start(s, "linear", 1, err); }

static ddp_status ddp__linear_plain_shape(ddp_op_spec *s, ddp_error *err)
{
    return ddp__linear_start(s, "linear_no_bias", 0, err);
}

/* The graph has filled parameter 0 with the shape of the weight it borrows. */
static ddp_status ddp__linear_tied_shape(ddp_op_spec *s, ddp_error *err)
{
    const ddp_shape *w = &s->param[0].shape;

    DDP__TRY(ddp__op_floats(s, "linear_tied", 0, 0, err));
    if (s->params != 1 || w->dims != 2)
        return ddp__fail(err, DDP_ARG, "linear_tied: needs the node whose weight (V, C) it uses");
    if (w->dim[1] != s->in[0].dim[s->in[0].dims - 1])
        return ddp__fail(err, DDP_ARG, "linear_tied: the tied weight has rows of %ld, the input rows of %ld; they must "
                         "be equal", w->dim[1], s->in[0].dim[s->in[0].dims - 1]);
    ddp__linear_finish(s, w->dim[0]);
    return DDP_OK;
}

/* c (m x n) = or += a (m x k) b (k x n), plus bias (n) unless that is NULL; turned: the matrix lies
 * column by column. */
static void ddp__linear_product(const ddp_op_call *call, long m, long n, long k, const void *a, int a_turned,
                                const void *b, int b_turned, void *c, const void *bias, int add)
{
    ddp__matmul g;

    memset(&g, 0, sizeof g);
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = (const float *)a;
    g.a_row = a_turned ? 1 : k;
    g.a_col = a_turned ? m : 1;
    g.b = (const float *)b;
    g.b_row = b_turned ? 1 : n;
    g.b_col = b_turned ? k : 1;
    g.c = (float *)c;
    g.c_row = n;
    g.bias = (const float *)bias;
    g.add = add;
    ddp__matmul_run(call, &g);
}

static void ddp__linear_forward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);

    ddp__linear_product(call, z.m, z.n, z.k, call->in[0], 0, call->param[0], 1, call->out, call->param[1], 0);
}

static void ddp__linear_bias_grad(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    const float *dy = (const float *)call->grad_out;
    float *db = (float *)call->grad_param[1];
    float sum[DDP__OP_COLUMNS];
    const long n = last - first;
    long i, j;

    memset(sum, 0, sizeof sum);
    for (i = 0; i < z.m; i++) {
        const float *row = dy + i * z.n + first;
        if (n == DDP__OP_COLUMNS)
            for (j = 0; j < DDP__OP_COLUMNS; j++) sum[j] += row[j];
        else
            for (j = 0; j < n; j++) sum[j] += row[j];
    }
    for (j = 0; j < n; j++) db[first + j] += sum[j];
}

/* dx = dy W, dW += dy^T x, db += column sums of dy. */
static void ddp__linear_backward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);

    if (call->grad_param[1]) ddp_op_parallel(call, z.n, DDP__OP_COLUMNS, ddp__linear_bias_grad, (void *)call);
    if (call->grad_param[0])
        ddp__linear_product(call, z.n, z.k, z.m, call->grad_out, 1, call->in[0], 0, call->grad_param[0], NULL, 1);
    if (call->grad_in[0])
        ddp__linear_product(call, z.m, z.k, z.n, call->grad_out, 0, call->param[0], 0,
                            call->grad_in[0], NULL, call->add_in[0]);
}

const ddp_op *ddp__linear_ops(void)
{
    static const ddp_op ops[] = {
        {"linear", ddp__linear_shape, ddp__linear_forward, ddp__linear_backward},
        {"linear_no_bias", ddp__linear_plain_shape, ddp__linear_forward, ddp__linear_backward},
        {"linear_tied", ddp__linear_tied_shape, ddp__linear_forward, ddp__linear_backward},
        DDP__OPS_END};

    return ops;
}
