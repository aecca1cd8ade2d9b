/* Operators on tokens and positions: table lookup (embedding, position) and rotary position embedding
 * (rope). */
#include "ops/ops.h"

/* ---- embedding: tokens int32 (rows..) -> (rows.., C), table (V, C). A token outside 0..V-1 gives a row
 * of NAN, which makes the loss NAN, because a kernel cannot return an error. The gradient of such a row
 * is dropped. ---- */

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

static void ddp__embedding_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const float *table = (const float *)call->param[0];
    float *y = (float *)call->out;

    for (long i = first; i < last; i++)
        if (token[i] >= 0 && token[i] < v)
            memcpy(y + i * c, table + token[i] * c, (size_t)c * sizeof *y);
        else
            for (long j = 0; j < c; j++) y[i * c + j] = (float)ddp__unknown();
}

static void ddp__embedding_forward(const ddp_op_call *call)
{
    ddp__op_rows(call, &call->spec->out, ddp__embedding_rows);
}

/* Runs over blocks of columns. A token may occur in many rows, so rows are added in order. */
static void ddp__embedding_columns(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];

    for (long i = 0; i < rows; i++) {
        const float *dy = (const float *)call->grad_out + i * c;
        float *table = (float *)call->grad_param[0];
        if (token[i] < 0 || token[i] >= v) continue;
        table += token[i] * c;
        for (long j = first; j < last; j++) table[j] += dy[j];
    }
}

static void ddp__embedding_backward(const ddp_op_call *call)
{
    if (call->grad_param[0])
        ddp_op_parallel(call, call->spec->param[0].shape.dim[1], DDP__OP_COLUMNS, ddp__embedding_columns,
                        (void *)call);
}

/* ---- position: y = x + table[t] for x (B, T, C), table (T, C) ---- */

static ddp_status ddp__position_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_same(s, "position", 1, err));
    if (s->in[0].dims != 3)
        return ddp__fail(err, DDP_ARG,
                         "position: the input must be (batch, time, width), "
                         "got %d dimensions",
                         s->in[0].dims);
    ddp__op_param(s, "weight", s->out.dim[1], s->out.dim[2], DDP_INIT_NORMAL, 0.02);
    s->in_place_ok = 1;
    return DDP_OK;
}

static void ddp__position_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const ddp__kernels *kn = ddp__kernels_of(call);
    const float *table = (const float *)call->param[0];

    for (long b = 0; b < s->dim[0]; b++) {
        const float *x = (const float *)call->in[0] + b * n;
        float *y = (float *)call->out + b * n;
        kn->affine(y + first, x + first, table + first, last - first, 1, 1, 0, 0);
    }
}

static void ddp__position_grads(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const ddp__kernels *kn = ddp__kernels_of(call);
    float *table = (float *)call->grad_param[0];

    for (long b = 0; b < s->dim[0]; b++) {
        const float *dy = (const float *)call->grad_out + b * n;
        float *dx = call->grad_in[0] ? (float *)call->grad_in[0] + b * n : NULL;
        if (table) kn->affine(table + first, dy + first, NULL, last - first, 1, 0, 0, 1);
        if (dx && call->add_in[0])
            kn->affine(dx + first, dy + first, NULL, last - first, 1, 0, 0, 1);
        else if (dx && dx != dy)
            memcpy(dx + first, dy + first, (size_t)(last - first) * sizeof *dx);
    }
}

static void ddp__position_each(const ddp_op_call *call, void (*elements)(void *user, long first, long last))
{
    const ddp_shape *s = &call->spec->out;

    ddp_op_parallel(call, s->dim[1] * s->dim[2], DDP__OP_GRAIN, elements, (void *)call);
}

static void ddp__position_forward(const ddp_op_call *call) { ddp__position_each(call, ddp__position_rows); }
static void ddp__position_backward(const ddp_op_call *call) { ddp__position_each(call, ddp__position_grads); }

/* ---- rope: rotary position embedding (Su et al. 2021, arXiv:2104.09864, Eq. 34) in the half-split form
 * of the published Llama weights. x (B, T, (heads + 2 kv_heads) d) contains queries, keys and values in
 * the layout of attention. At position t, the pair (x[i], x[d/2 + i]) of every query and key head is
 * rotated by the angle t theta^(-2i/d). Values are unchanged. Arguments: heads, kv_heads (default:
 * heads), theta (default: 10000). The gradient is the inverse rotation ---- */

static ddp_status ddp__rope_shape(ddp_op_spec *s, ddp_error *err)
{
    ddp__heads z;

    DDP__TRY(ddp__op_heads(s, "rope", &z, err));
    if (z.d % 2 || z.d > 2 * DDP__ROPE_PAIRS)
        return ddp__fail(err, DDP_ARG,
                         "rope: a head is %d wide; pairs of columns are turned, so "
                         "it must be even, and at most %d",
                         z.d, 2 * DDP__ROPE_PAIRS);
    if (!(s->arg[2] >= 0 && s->arg[2] < 1e30) || (s->arg[2] > 0 && s->arg[2] < 1))
        return ddp__fail(err, DDP_ARG, "rope: theta is %g, it must be at least 1, or 0 for 10000", s->arg[2]);
    s->out = s->in[0];
    s->flops = 3.0 * (double)(z.b * z.t * (z.heads + z.kv_heads) * z.d);
    s->backward_flops = s->flops;
    s->in_place_ok = 1;
    s->out_unread = 1;
    return DDP_OK;
}

typedef struct ddp__rope_job {
    const ddp_op_call *call;
    const float *from;
    float *to;
    int direction, add;
} ddp__rope_job;

/* Items are positions, so that the angles of a position are computed once for all sequences and heads. */
static void ddp__rope_positions(void *user, long first, long last)
{
    const ddp__rope_job *job = (const ddp__rope_job *)user;
    const ddp__kernels *kn = ddp__kernels_of(job->call);
    const ddp__heads z = ddp__heads_of(job->call->spec);
    const long half = z.d / 2, turned = z.row - z.kv_heads * z.d;
    const double theta = job->call->spec->arg[2] > 0 ? job->call->spec->arg[2] : 10000;
    double rate[DDP__ROPE_PAIRS];
    float cosine[DDP__ROPE_PAIRS], sine[DDP__ROPE_PAIRS];

    for (long i = 0; i < half; i++) rate[i] = job->direction * pow(theta, -2.0 * (double)i / (double)z.d);
    for (long t = first; t < last; t++) {
        for (long i = 0; i < half; i++) {
            cosine[i] = (float)cos((double)t * rate[i]);
            sine[i] = (float)sin((double)t * rate[i]);
        }
        for (long b = 0; b < z.b; b++) {
            const float *x = job->from + (b * z.t + t) * z.row;
            float *y = job->to + (b * z.t + t) * z.row;
            for (long h = 0; h < turned; h += z.d) kn->rotate(y + h, x + h, cosine, sine, half, job->add);
            if (job->add)
                for (long i = turned; i < z.row; i++) y[i] += x[i];
            else if (x != y)
                memcpy(y + turned, x + turned, (size_t)(z.row - turned) * sizeof *y);
        }
    }
}

static void ddp__rope_turn(const ddp_op_call *call, const void *from, void *to, int direction, int add)
{
    const ddp_shape *s = &call->spec->in[0];
    ddp__rope_job job = {call, (const float *)from, (float *)to, direction, add};

    ddp_op_parallel(call, s->dim[1], DDP__OP_GRAIN / (s->dim[0] * s->dim[2]) + 1, ddp__rope_positions, &job);
}

static void ddp__rope_forward(const ddp_op_call *call) { ddp__rope_turn(call, call->in[0], call->out, 1, 0); }

static void ddp__rope_backward(const ddp_op_call *call)
{
    if (call->grad_in[0]) ddp__rope_turn(call, call->grad_out, call->grad_in[0], -1, call->add_in[0]);
}

DDP__OPS(ddp__embedding_ops,
         {"embedding", ddp__embedding_shape, ddp__embedding_forward, ddp__embedding_backward},
         {"position", ddp__position_shape, ddp__position_forward, ddp__position_backward},
         {"rope", ddp__rope_shape, ddp__rope_forward, ddp__rope_backward})
