/* Rows of a table: embedding, one per token; position, one per place in the sequence. */
#include "base/platform.h"
#include "base/fail.h"
#include "ops/kernels.h"
#include "ops/ops.h"

enum { DDP__EMBEDDING_COLUMNS = 64 };

/* ---- embedding: tokens int32 (rows..) -> (rows.., C), table (V, C). A token outside 0..V-1
 * gives a row of NAN, which reaches the loss; a kernel cannot return an error. Its gradient is
 * dropped. ---- */

static ddp_status ddp__embedding_shape(ddp_op_spec *s, ddp_error *err)
{
    long v, c;

    if (s->inputs < 1 || s->in_type[0] != DDP_I32)
        return ddp__fail(err, DDP_ARG, "embedding: input 0 must hold integers (token numbers)");
    if (s->in[0].dims < 1 || s->in[0].dims > 3)
        return ddp__fail(err, DDP_ARG, "embedding: tokens must have 1 to 3 dimensions, got %d",
                         s->in[0].dims);
    DDP__TRY(ddp__op_count(s, "embedding", 0, "vocabulary", &v, err));
    DDP__TRY(ddp__op_count(s, "embedding", 1, "width", &c, err));
    s->out = s->in[0];
    s->out.dim[s->out.dims++] = c;
    ddp__op_param(s, "weight", v, c, DDP_INIT_NORMAL, 0.02);
    s->flops = (double)ddp_shape_count(&s->out);
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__embedding_ref_forward(const ddp_op_call *call)
{
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const ddp__real *table = (const ddp__real *)call->param[0];
    ddp__real *y = (ddp__real *)call->out;
    long i, j;

    for (i = 0; i < rows; i++)
        for (j = 0; j < c; j++)
            y[i * c + j] = token[i] >= 0 && token[i] < v ? table[token[i] * c + j]
                                                         : (ddp__real)NAN;
}

static void ddp__embedding_ref_backward(const ddp_op_call *call)
{
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *table = (ddp__real *)call->grad_param[0];
    long i, j;

    if (!table) return;
    for (i = 0; i < rows; i++)
        for (j = 0; j < c && token[i] >= 0 && token[i] < v; j++)
            table[token[i] * c + j] += dy[i * c + j];
}

static void ddp__embedding_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const float *table = (const float *)call->param[0];
    float *y = (float *)call->out;
    long i, j;

    for (i = first; i < last; i++)
        if (token[i] >= 0 && token[i] < v)
            memcpy(y + i * c, table + token[i] * c, (size_t)c * sizeof *y);
        else
            for (j = 0; j < c; j++) y[i * c + j] = NAN;
}

static void ddp__embedding_forward(const ddp_op_call *call)
{
    const long c = call->spec->param[0].shape.dim[1];

    ddp_op_parallel(call, ddp_shape_rows(&call->spec->out), DDP__OP_GRAIN / c + 1,
                    ddp__embedding_rows, (void *)call);
}

/* Blocks of columns: a token may occur in many rows, so rows are added in order. */
static void ddp__embedding_columns(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    long i, j;

    for (i = 0; i < rows; i++) {
        const float *dy = (const float *)call->grad_out + i * c;
        float *table = (float *)call->grad_param[0];
        if (token[i] < 0 || token[i] >= v) continue;
        table += token[i] * c;
        for (j = first; j < last; j++) table[j] += dy[j];
    }
}

static void ddp__embedding_backward(const ddp_op_call *call)
{
    if (call->grad_param[0])
        ddp_op_parallel(call, call->spec->param[0].shape.dim[1], DDP__EMBEDDING_COLUMNS,
                        ddp__embedding_columns, (void *)call);
}

/* ---- position: y = x + table[t] for x (B, T, C), table (T, C) ---- */

static ddp_status ddp__position_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "position", 0, 0, err));
    if (s->in[0].dims != 3)
        return ddp__fail(err, DDP_ARG, "position: the input must be (batch, time, width), "
                         "got %d dimensions", s->in[0].dims);
    s->out = s->in[0];
    ddp__op_param(s, "weight", s->out.dim[1], s->out.dim[2], DDP_INIT_NORMAL, 0.02);
    s->flops = (double)ddp_shape_count(&s->out);
    s->in_place_ok = 1;
    s->out_unread = 1;
    return DDP_OK;
}

static void ddp__position_ref_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const ddp__real *x = (const ddp__real *)call->in[0];
    const ddp__real *table = (const ddp__real *)call->param[0];
    ddp__real *y = (ddp__real *)call->out;
    long b, i;

    for (b = 0; b < s->dim[0]; b++)
        for (i = 0; i < n; i++) y[b * n + i] = x[b * n + i] + table[i];
}

static void ddp__position_ref_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const ddp__real *dy = (const ddp__real *)call->grad_out;
    ddp__real *dx = (ddp__real *)call->grad_in[0];
    ddp__real *table = (ddp__real *)call->grad_param[0];
    long b, i;

    for (b = 0; b < s->dim[0]; b++)
        for (i = 0; i < n; i++) {
            if (table) table[i] += dy[b * n + i];
            if (dx) dx[b * n + i] = dy[b * n + i] + (call->add_in[0] ? dx[b * n + i] : 0);
        }
}

static void ddp__position_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const ddp__kernels *kn = ddp__kernels_best();
    const float *table = (const float *)call->param[0];
    long b;

    for (b = 0; b < s->dim[0]; b++) {
        const float *x = (const float *)call->in[0] + b * n;
        float *y = (float *)call->out + b * n;
        kn->affine(y + first, x + first, table + first, last - first, 1, 1, 0, 0);
    }
}

static void ddp__position_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;

    ddp_op_parallel(call, s->dim[1] * s->dim[2], DDP__OP_GRAIN, ddp__position_rows, (void *)call);
}

static void ddp__position_grads(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const ddp__kernels *kn = ddp__kernels_best();
    float *table = (float *)call->grad_param[0];
    long b;

    for (b = 0; b < s->dim[0]; b++) {
        const float *dy = (const float *)call->grad_out + b * n;
        float *dx = call->grad_in[0] ? (float *)call->grad_in[0] + b * n : NULL;
        if (table) kn->affine(table + first, dy + first, NULL, last - first, 1, 0, 0, 1);
        if (dx && call->add_in[0])
            kn->affine(dx + first, dy + first, NULL, last - first, 1, 0, 0, 1);
        else if (dx && dx != dy)
            memcpy(dx + first, dy + first, (size_t)(last - first) * sizeof *dx);
    }
}

static void ddp__position_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;

    ddp_op_parallel(call, s->dim[1] * s->dim[2], DDP__OP_GRAIN, ddp__position_grads, (void *)call);
}

int ddp__embedding_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"embedding", ddp__embedding_shape, ddp__embedding_forward, ddp__embedding_backward,
         ddp__embedding_ref_forward, ddp__embedding_ref_backward},
        {"position", ddp__position_shape, ddp__position_forward, ddp__position_backward,
         ddp__position_ref_forward, ddp__position_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
