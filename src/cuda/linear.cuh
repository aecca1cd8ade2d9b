/* linear, linear_no_bias, linear_tied, and linear with the gelu behind it: products of cuBLASLt. */
#ifndef DDP_CUDA_LINEAR_CUH
#define DDP_CUDA_LINEAR_CUH

#include "cuda/blas.cuh"
#include "cuda/columns.cuh"
#include "cuda/elementwise.cuh"

/* x (m, k), weight (n, k), y (m, n). */
static inline void ddp__cuda_linear_sizes(const ddp_op_spec *s, long *m, long *n, long *k)
{
    *m = ddp_shape_rows(&s->in[0]);
    *n = s->out.dim[s->out.dims - 1];
    *k = s->in[0].dim[s->in[0].dims - 1];
}

static ddp__cuda_product ddp__cuda_linear_product(const ddp_op_call *c)
{
    ddp__cuda_product p;

    memset(&p, 0, sizeof p);
    ddp__cuda_linear_sizes(c->spec, &p.m, &p.n, &p.k);
    p.half = p.half_out = ((ddp__cuda *)c->pool)->half;
    p.a = c->in[0];
    p.a_row = p.k;
    p.b = c->param[0];
    p.b_row = p.k;
    p.b_turned = 1;
    p.c = c->out;
    p.c_row = p.n;
    p.bias = c->param[1];
    return p;
}

static void ddp__cuda_linear_forward(const ddp_op_call *c)
{
    const ddp__cuda_product p = ddp__cuda_linear_product(c);

    (void)ddp__cuda_multiply((ddp__cuda *)c->pool, &p);
}

/* The product writes gelu of itself, and itself for the backward pass. Rows of what gelu is taken of
 * must be multiples of 16 bytes. */
static void ddp__cuda_linear_gelu_forward(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda_product p = ddp__cuda_linear_product(first);

    p.gelu = 1;
    p.before = first->out;
    p.c = second->out;
    if (p.n % 8 == 0 && ddp__cuda_multiply((ddp__cuda *)first->pool, &p)) return;
    ddp__cuda_linear_forward(first);
    ddp__cuda_gelu_forward(second);
}

/* dW += dy^T x in float32, db += column sums of dy, dx = or += dy W. */
static void ddp__cuda_linear_backward(const ddp_op_call *c)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    ddp__cuda_product p;
    long m, n, k;

    ddp__cuda_linear_sizes(c->spec, &m, &n, &k);
    if (c->grad_param[1] && dev->half)
        ddp__cuda_columns<ddp__bf16, DDP__COLUMN_PLAIN>(dev, NULL, c->grad_param[1], c->grad_out,
                                                        NULL, NULL, m, n);
    else if (c->grad_param[1])
        ddp__cuda_columns<float, DDP__COLUMN_PLAIN>(dev, NULL, c->grad_param[1], c->grad_out, NULL,
                                                    NULL, m, n);
    memset(&p, 0, sizeof p);
    p.half = dev->half;
    p.a = c->grad_out;
    p.a_row = n;
    if (c->grad_param[0]) {
        p.m = n;
        p.n = k;
        p.k = m;
        p.a_turned = 1;
        p.b = c->in[0];
        p.b_row = k;
        p.c = c->grad_param[0];
        p.c_row = k;
        p.add = 1;
        (void)ddp__cuda_multiply(dev, &p);
    }
    if (c->grad_in[0]) {
        p.m = m;
        p.n = k;
        p.k = n;
        p.a_turned = 0;
        p.b = c->param[0];
        p.b_row = k;
        p.c = c->grad_in[0];
        p.c_row = k;
        p.half_out = dev->half;
        p.add = c->add_in[0];
        (void)ddp__cuda_multiply(dev, &p);
    }
}

static void ddp__cuda_linear_gelu_backward(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda_gelu_backward(second);
    ddp__cuda_linear_backward(first);
}

static size_t ddp__cuda_linear_scratch(const ddp_op_spec *s, int narrow)
{
    long m, n, k;

    (void)narrow;
    ddp__cuda_linear_sizes(s, &m, &n, &k);
    return ddp__column_scratch(m, n, 1);
}

#endif /* DDP_CUDA_LINEAR_CUH */
