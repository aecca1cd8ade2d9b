/* The operators of text models, and the pairs of them that run as one kernel. */
#pragma once

#include "cuda/attention.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/embedding.cuh"
#include "cuda/linear.cuh"
#include "cuda/loss.cuh"
#include "cuda/norm.cuh"

/* ---- linear, with or without a gelu after it ---- */

/* The product writes its gelu and, for the backward pass, itself. Rows of the input of gelu must be multiples
 * of 16 bytes. */
static void ddp__cuda_linear_gelu_forward(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda_product p = ddp__cuda_linear_product(first);

    p.gelu = 1;
    p.before = first->out;
    p.c = second->out;
    if (p.shape.n % 8 == 0 && ddp__cuda_multiply((ddp__cuda *)first->pool, &p)) return;
    ddp__cuda_linear_forward(first);
    ddp__cuda_map_forward<ddp__map_gelu>(second);
}

static void ddp__cuda_linear_gelu_backward(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp_op_call c = *first;

    if (second->through)
        c.grad_out = second->grad_out;
    else
        ddp__cuda_map_backward<ddp__map_gelu_grad>(second);
    ddp__cuda_linear_backward(&c);
}

/* ---- linear_cross_entropy. A chunk has twice as many rows if elements have half the bytes ---- */

/* The loss of a chunk and, unless by is NULL, the gradient of its logits, by the kernels of cross_entropy.
 * h.stat has room for h.chunk rows. */
template <typename T>
static void ddp__cuda_head_loss(ddp__cuda *dev, const ddp__head &h, long rows, double *loss, const int *label,
                                const float *by)
{
    const int wide = ddp__wide<T>(h.n, h.logits);
    T *logits = (T *)h.logits;

    DDP__RUN((ddp__k_loss<T, DDP__LOSS_THREADS>), (unsigned)rows, DDP__LOSS_THREADS, h.stat, loss, logits,
             label, (const float *)NULL, h.n, wide);
    if (by)
        DDP__RUN((ddp__k_loss_grad<T>), (unsigned)rows, DDP__LOSS_THREADS, logits, logits, label, h.stat, by,
                 h.n, 0, wide);
}

template <typename T> static void ddp__cuda_head_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp__head h = ddp__head_of(c);
    const int fused = !(dev->forms & DDP__PLAIN_HEAD);
    const long chunk = fused ? h.chunk * (long)(sizeof(float) / sizeof(T)) : h.chunk;
    const int *label = (const int *)c->in[1];
    double *loss = (double *)dev->scratch;
    float *by = (float *)(loss + h.rows);
    const int wide = ddp__wide<T>(h.n, h.logits);

    DDP__RUN(ddp__k_loss_mean, 1, DDP__LOSS_SUM_THREADS, by, (const double *)NULL, label, (const float *)NULL,
             h.rows);
    for (long r = 0; r < h.rows; r += chunk) {
        const long rows = ddp__min_long(chunk, h.rows - r);
        const T *x = (const T *)c->in[0] + r * h.k;
        ddp__cuda_product p = ddp__cuda_product_of(rows, h.n, h.k, x, 0, c->param[0], 1, h.logits, dev->half);
        (void)ddp__cuda_multiply(dev, &p);
        if (fused)
            DDP__RUN((ddp__k_loss<T, DDP__HEAD_THREADS>), (unsigned)rows, DDP__HEAD_THREADS, (float *)NULL,
                     loss + r, (T *)h.logits, label + r, c->training ? by : (const float *)NULL, h.n, wide);
        else
            ddp__cuda_head_loss<T>(dev, h, rows, loss + r, label + r, c->training ? by : NULL);
        if (!c->training) continue;
        p = ddp__cuda_product_of(h.n, h.k, rows, h.logits, 1, x, 0, h.dw, dev->half);
        p.shape.half_out = 0;
        p.add = r > 0;
        (void)ddp__cuda_multiply(dev, &p);
        p = ddp__cuda_product_of(rows, h.k, h.n, h.logits, 0, c->param[0], 0, (T *)h.dx + r * h.k, dev->half);
        (void)ddp__cuda_multiply(dev, &p);
    }
    DDP__RUN(ddp__k_loss_mean, 1, DDP__LOSS_SUM_THREADS, (float *)c->out, loss, label, (const float *)NULL,
             h.rows);
}

template <typename T> static void ddp__cuda_head_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp__head h = ddp__head_of(c);
    const ddp__map_scaled scaled = {(const float *)c->grad_out};

    if (c->grad_in[0])
        ddp__cuda_map_as<T>(dev, c->grad_in[0], h.dx, NULL, h.rows * h.k, c->add_in[0], scaled);
    if (c->grad_param[0]) ddp__cuda_map_as<float>(dev, c->grad_param[0], h.dw, NULL, h.n * h.k, 1, scaled);
}

static size_t ddp__cuda_head_scratch(const ddp_op_spec *s, int)
{
    return (size_t)(ddp_shape_rows(&s->in[0]) + 1) * sizeof(double);
}

/* ---- the operators ---- */

DDP__FAMILY(ddp__cuda_text_ops, DDP__PLAIN("linear", ddp__cuda_linear, ddp__cuda_linear_scratch),
            DDP__PLAIN("linear_no_bias", ddp__cuda_linear, NULL),
            DDP__PLAIN("linear_tied", ddp__cuda_linear, NULL),
            DDP__ENTRY("embedding", ddp__cuda_embedding, ddp__cuda_embedding_scratch),
            DDP__ENTRY("position", ddp__cuda_position, NULL),
            {"layer_norm", DDP__NORMS(ddp__cuda_later, ddp__cuda_norm_alone, 0), ddp__cuda_norm_scratch},
            {"rms_norm", DDP__NORMS(ddp__cuda_later, ddp__cuda_norm_alone, 1), ddp__cuda_norm_scratch},
            DDP__ENTRY("attention", ddp__cuda_attention, ddp__cuda_attention_scratch),
            DDP__ENTRY("rope", ddp__cuda_rope, NULL), DDP__ENTRY("swiglu", ddp__cuda_swiglu, NULL),
            {"dropout", ddp__cuda_apart<DDP__TYPED(ddp__cuda_dropout_forward)>,
             ddp__cuda_apart<DDP__TYPED(ddp__cuda_dropout_backward)>, NULL},
            DDP__ENTRY("cross_entropy", ddp__cuda_loss, ddp__cuda_loss_scratch),
            DDP__ENTRY("linear_cross_entropy", ddp__cuda_head, ddp__cuda_head_scratch))

/* Pairs: the residual sum and the norm that reads it, and from compute capability 9.0 on a product and its
 * gelu. Older GPUs are not expected to gain from the second pair (not measured). */
static DDP__UNUSED const ddp_op_pair *ddp__cuda_pair_of(const ddp__cuda *dev, const char *first,
                                                        const char *second)
{
    static const ddp_op_pair layer_norm = {DDP__NORMS(ddp__cuda_later_both, ddp__cuda_typed_both, 0), NULL},
                             rms_norm = {DDP__NORMS(ddp__cuda_later_both, ddp__cuda_typed_both, 1), NULL},
                             gelu = {ddp__cuda_later_both<ddp__cuda_linear_gelu_forward>,
                                     ddp__cuda_later_both<ddp__cuda_linear_gelu_backward>, "linear"};

    if (strcmp(first, "linear") == 0 && strcmp(second, "gelu") == 0)
        return dev->props.major >= 9 ? &gelu : NULL;
    if (strcmp(first, "add") != 0) return NULL;
    if (strcmp(second, "layer_norm") == 0) return &layer_norm;
    return strcmp(second, "rms_norm") == 0 ? &rms_norm : NULL;
}
