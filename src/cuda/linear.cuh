/* linear, linear_no_bias, linear_tied and 1 x 1 convolutions: products of cuBLASLt. */
#pragma once

#include "cuda/blas.cuh"
#include "cuda/elementwise.cuh"

/* Elements of a row, or channels of a pixel of an image. */
static long ddp__linear_row(const ddp_shape *s) { return s->dim[s->dims == 4 ? 1 : s->dims - 1]; }

/* x (m, k), weight (n, k), y (m, n). */
static ddp__cuda_product ddp__cuda_linear_product(const ddp_op_call *c)
{
    const long n = ddp__linear_row(&c->spec->out), k = ddp__linear_row(&c->spec->in[0]);
    ddp__cuda_product p = ddp__cuda_product_of(ddp_shape_count(&c->spec->out) / n, n, k, c->in[0], 0,
                                               c->param[0], 1, c->out, ((ddp__cuda *)c->pool)->half);
    p.bias = c->param[1];
    return p;
}

static void ddp__cuda_linear_forward(const ddp_op_call *c)
{
    const ddp__cuda_product p = ddp__cuda_linear_product(c);
    (void)ddp__cuda_multiply((ddp__cuda *)c->pool, &p);
}

/* dW += dy^T x in float32. db += column sums of dy, computed by the product of dW if cuBLASLt supports it. dx
 * = or += dy W. */
static void ddp__cuda_linear_backward(const ddp_op_call *c)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    ddp__cuda_product p = ddp__cuda_linear_product(c);
    const long m = p.shape.m, n = p.shape.n, k = p.shape.k;
    int summed = 0;

    if (c->grad_param[0]) {
        p = ddp__cuda_product_of(n, k, m, c->grad_out, 1, c->in[0], 0, c->grad_param[0], dev->half);
        p.shape.half_out = 0;
        p.add = 1;
        p.sums = c->grad_param[1] ? dev->scratch : NULL;
        summed = p.sums && ddp__cuda_multiply(dev, &p);
        p.sums = NULL;
        if (!summed) (void)ddp__cuda_multiply(dev, &p);
    }
    if (summed)
        ddp__cuda_columns_add(dev, c->grad_param[1], NULL, (const float *)dev->scratch, n, 1);
    else if (c->grad_param[1] && dev->half)
        ddp__cuda_columns<ddp__bf16, DDP__COLUMN_PLAIN>(dev, NULL, c->grad_param[1], c->grad_out, NULL, NULL,
                                                        m, n);
    else if (c->grad_param[1])
        ddp__cuda_columns<float, DDP__COLUMN_PLAIN>(dev, NULL, c->grad_param[1], c->grad_out, NULL, NULL, m,
                                                    n);
    if (!c->grad_in[0]) return;
    p = ddp__cuda_product_of(m, k, n, c->grad_out, 0, c->param[0], 0, c->grad_in[0], dev->half);
    p.add = c->add_in[0];
    p.before = (void *)c->inner;
    p.gelu = c->inner ? -1 : 0;
    if ((!c->inner || k % 8 == 0) && ddp__cuda_multiply(dev, &p)) return;
    p.gelu = 0;
    p.before = NULL;
    (void)ddp__cuda_multiply(dev, &p);
    if (dev->half)
        ddp__cuda_map_as<ddp__bf16>(dev, p.c, c->inner, p.c, m * k, 0, ddp__map_gelu_grad());
    else
        ddp__cuda_map_as<float>(dev, p.c, c->inner, p.c, m * k, 0, ddp__map_gelu_grad());
}

static size_t ddp__cuda_linear_scratch(const ddp_op_spec *s, int)
{
    const long n = ddp__linear_row(&s->out);
    return ddp__column_scratch(ddp_shape_count(&s->out) / n, n, 1);
}
