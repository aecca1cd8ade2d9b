/* Causal multi-head attention (Vaswani et al. 2017, arXiv:1706.03762, Eq. 1): x (B, T,
 * (heads + 2 kv_heads) d) holds queries, keys and values; per query head
 *     out[t] = sum over s <= t of p[t][s] v[s], p[t] = softmax over s <= t of q[t].k[s] / sqrt(d).
 * Arguments: heads, kv_heads (0 = heads). With fewer heads of keys and values each serves
 * heads / kv_heads consecutive heads of queries (Ainslie et al. 2023, arXiv:2305.13245).
 * The float kernels work on tiles of 64 x 64 scores, left of the diagonal only, and never hold
 * more than a tile (online softmax as in FlashAttention, arXiv:2205.14135, Algorithm 1). Saved
 * per row and head: max of the scaled scores and 1 / sum, from which backward computes p again.
 * Backward reads out. */
#include "base/platform.h"
#include "base/fail.h"
#include "ops/matmul.h"
#include "ops/ops.h"

enum { DDP__ATTENTION_TILE = 64 };

typedef struct ddp__attention_size {
    long b, t, c, heads, kv_heads, group, d; /* group: query heads of one head of keys */
    long ld;                                 /* floats from one row of x to the next */
} ddp__attention_size;

ddp__head_layout ddp__head_layout_of(const ddp_op_spec *s)
{
    ddp__head_layout l;

    l.heads = (long)s->arg[0];
    l.kv_heads = s->arg[1] > 0 ? (long)s->arg[1] : l.heads;
    l.row = s->in[0].dim[2];
    l.d = l.row / (l.heads + 2 * l.kv_heads);
    return l;
}

ddp_status ddp__op_heads(const ddp_op_spec *s, const char *op, ddp__head_layout *l, ddp_error *err)
{
    long heads, kv_heads;

    DDP__TRY(ddp__op_floats(s, op, 0, 0, err));
    DDP__TRY(ddp__op_count(s, op, 0, "heads", &heads, err));
    kv_heads = heads;
    if (s->arg[1] != 0) DDP__TRY(ddp__op_count(s, op, 1, "kv_heads", &kv_heads, err));
    if (heads % kv_heads)
        return ddp__fail(err, DDP_ARG, "%s: %ld heads of queries cannot share %ld heads of keys "
                         "and values: kv_heads must divide heads", op, heads, kv_heads);
    if (s->in[0].dims != 3)
        return ddp__fail(err, DDP_ARG, "%s: the input must be (batch, time, queries with keys "
                         "and values), got %d dimensions", op, s->in[0].dims);
    if (s->in[0].dim[2] % (heads + 2 * kv_heads))
        return ddp__fail(err, DDP_ARG, "%s: the input's last dimension (%ld) must be a multiple "
                         "of %ld: %ld heads of queries, %ld of keys, %ld of values", op,
                         s->in[0].dim[2], heads + 2 * kv_heads, heads, kv_heads, kv_heads);
    *l = ddp__head_layout_of(s);
    return DDP_OK;
}

static ddp__attention_size ddp__attention_sizes(const ddp_op_spec *s)
{
    const ddp__head_layout l = ddp__head_layout_of(s);
    ddp__attention_size z;

    z.b = s->in[0].dim[0];
    z.t = s->in[0].dim[1];
    z.heads = l.heads;
    z.kv_heads = l.kv_heads;
    z.group = l.heads / l.kv_heads;
    z.d = l.d;
    z.c = l.heads * l.d;
    z.ld = l.row;
    return z;
}

/* Where the arrays of a head of queries begin: (batch, head) = number head. */
static long ddp__attention_q(const ddp__attention_size *z, long head)
{
    return head / z->heads * z->t * z->ld + head % z->heads * z->d;
}

static long ddp__attention_k(const ddp__attention_size *z, long head)
{
    return head / z->heads * z->t * z->ld + z->c + head % z->heads / z->group * z->d;
}

static long ddp__attention_out(const ddp__attention_size *z, long head)
{
    return head / z->heads * z->t * z->c + head % z->heads * z->d;
}

static ddp_status ddp__attention_shape(ddp_op_spec *s, ddp_error *err)
{
    ddp__head_layout l;

    DDP__TRY(ddp__op_heads(s, "attention", &l, err));
    s->out = s->in[0];
    s->out.dim[2] = l.heads * l.d;
    s->saved = (size_t)(2 * s->out.dim[0] * l.heads * s->out.dim[1]);
    /* two products over half of T x T */
    s->flops = 2.0 * (double)ddp_shape_count(&s->out) * (double)(s->out.dim[1] + 1);
    s->backward_flops = 2.5 * s->flops; /* five products */
    return DDP_OK;
}

static void ddp__attention_ref_forward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const ddp__real scale = (ddp__real)(1 / sqrt((double)z.d));
    const long kv = z.kv_heads * z.d;
    long h, t, s, i;

    for (h = 0; h < z.b * z.heads; h++) {
        const ddp__real *q = (const ddp__real *)call->in[0] + ddp__attention_q(&z, h);
        const ddp__real *k = (const ddp__real *)call->in[0] + ddp__attention_k(&z, h);
        const ddp__real *v = k + kv;
        ddp__real *out = (ddp__real *)call->out + ddp__attention_out(&z, h);
        ddp__real *stat = (ddp__real *)call->saved + h * z.t * 2;
        for (t = 0; t < z.t; t++) {
            ddp__real max = (ddp__real)-INFINITY, sum = 0;
            for (s = 0; s <= t; s++) {
                ddp__real score = 0;
                for (i = 0; i < z.d; i++) score += q[t * z.ld + i] * k[s * z.ld + i];
                if (score * scale > max) max = score * scale;
            }
            for (i = 0; i < z.d; i++) out[t * z.c + i] = 0;
            for (s = 0; s <= t; s++) {
                ddp__real score = 0, e;
                for (i = 0; i < z.d; i++) score += q[t * z.ld + i] * k[s * z.ld + i];
                e = (ddp__real)exp((double)(score * scale - max));
                sum += e;
                for (i = 0; i < z.d; i++) out[t * z.c + i] += e * v[s * z.ld + i];
            }
            for (i = 0; i < z.d; i++) out[t * z.c + i] /= sum;
            stat[2 * t] = max;
            stat[2 * t + 1] = 1 / sum;
        }
    }
}

/* dv[s] += p dout[t];  dp = dout[t].v[s];  dscore = p (dp - out[t].dout[t]) scale, since
 * out.dout is the mean of dp under p;  dq[t] += dscore k[s];  dk[s] += dscore q[t]. */
static void ddp__attention_ref_backward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const ddp__real scale = (ddp__real)(1 / sqrt((double)z.d));
    const long kv = z.kv_heads * z.d;
    long h, t, s, i;

    for (i = 0; call->grad_in[0] && !call->add_in[0] && i < z.b * z.t * z.ld; i++)
        ((ddp__real *)call->grad_in[0])[i] = 0;
    for (h = 0; call->grad_in[0] && h < z.b * z.heads; h++) {
        const long q_at = ddp__attention_q(&z, h), k_at = ddp__attention_k(&z, h);
        const ddp__real *q = (const ddp__real *)call->in[0] + q_at;
        const ddp__real *k = (const ddp__real *)call->in[0] + k_at, *v = k + kv;
        ddp__real *dq = (ddp__real *)call->grad_in[0] + q_at;
        ddp__real *dk = (ddp__real *)call->grad_in[0] + k_at, *dv = dk + kv;
        const ddp__real *out = (const ddp__real *)call->out + ddp__attention_out(&z, h);
        const ddp__real *dout = (const ddp__real *)call->grad_out + ddp__attention_out(&z, h);
        const ddp__real *stat = (const ddp__real *)call->saved + h * z.t * 2;
        for (t = 0; t < z.t; t++) {
            ddp__real mean = 0;
            for (i = 0; i < z.d; i++) mean += out[t * z.c + i] * dout[t * z.c + i];
            for (s = 0; s <= t; s++) {
                ddp__real score = 0, dp = 0, p, dscore;
                for (i = 0; i < z.d; i++) {
                    score += q[t * z.ld + i] * k[s * z.ld + i];
                    dp += dout[t * z.c + i] * v[s * z.ld + i];
                }
                p = (ddp__real)exp((double)(score * scale - stat[2 * t])) * stat[2 * t + 1];
                dscore = p * (dp - mean) * scale;
                for (i = 0; i < z.d; i++) {
                    dv[s * z.ld + i] += p * dout[t * z.c + i];
                    dq[t * z.ld + i] += dscore * k[s * z.ld + i];
                    dk[s * z.ld + i] += dscore * q[t * z.ld + i];
                }
            }
        }
    }
}

/* c (m x n) = or += a b, with the operand strides of ddp__matmul. */
static void ddp__attention_product(const ddp__kernels *kn, long m, long n, long k, const float *a,
                                   long a_row, long a_col, const float *b, long b_row, long b_col,
                                   float *c, long c_row, int add)
{
    ddp__matmul g;

    g.m = m;
    g.n = n;
    g.k = k;
    g.a = a;
    g.a_row = a_row;
    g.a_col = a_col;
    g.b = b;
    g.b_row = b_row;
    g.b_col = b_col;
    g.c = c;
    g.c_row = c_row;
    g.bias = NULL;
    g.add = add;
    ddp__matmul_serial(kn, &g);
}

static long ddp__attention_rows(long from, long t)
{
    const long tile = DDP__ATTENTION_TILE;

    return t - from < tile ? t - from : tile;
}

/* One tile of queries of one head against all keys up to it. */
static void ddp__attention_queries(const ddp_op_call *call, long head, long from)
{
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const float scale = 1 / sqrtf((float)z.d);
    const float *q = (const float *)call->in[0] + ddp__attention_q(&z, head);
    const float *k = (const float *)call->in[0] + ddp__attention_k(&z, head);
    const float *v = k + z.kv_heads * z.d;
    float *out = (float *)call->out + ddp__attention_out(&z, head) + from * z.c;
    float *stat = (float *)call->saved + (head * z.t + from) * 2;
    const long rows = ddp__attention_rows(from, z.t), ld = z.ld;
    float score[DDP__ATTENTION_TILE * DDP__ATTENTION_TILE];
    long s, i, j;

    for (s = 0; s <= from; s += DDP__ATTENTION_TILE) {
        const long cols = ddp__attention_rows(s, z.t);
        ddp__attention_product(kn, rows, cols, z.d, q + from * ld, ld, 1, k + s * ld, 1, ld, score,
                               cols, 0);
        for (i = 0; i < rows; i++) {
            float *row = score + i * cols;
            const long seen = s == from ? i + 1 : cols;
            float max = kn->max(row, seen) * scale, sum;
            if (s > 0 && stat[2 * i] >= max) {
                max = stat[2 * i];
            } else if (s > 0) { /* a new maximum: what was summed so far shrinks */
                const float shrink = expf(stat[2 * i] - max);
                stat[2 * i + 1] *= shrink;
                for (j = 0; j < z.d; j++) out[i * z.c + j] *= shrink;
            }
            sum = kn->exp_sum(row, row, seen, scale, max);
            for (j = seen; j < cols; j++) row[j] = 0;
            stat[2 * i] = max;
            stat[2 * i + 1] = s > 0 ? stat[2 * i + 1] + sum : sum;
        }
        ddp__attention_product(kn, rows, z.d, cols, score, cols, 1, v + s * ld, ld, 1, out, z.c,
                               s > 0);
    }
    for (i = 0; i < rows; i++) {
        stat[2 * i + 1] = 1 / stat[2 * i + 1];
        for (j = 0; j < z.d; j++) out[i * z.c + j] *= stat[2 * i + 1];
    }
}

/* Items are (batch, head, tile), the last tiles, which have the most work, first. */
static void ddp__attention_tiles(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const long heads = z.b * z.heads;
    const long tiles = (z.t + DDP__ATTENTION_TILE - 1) / DDP__ATTENTION_TILE;
    long i;

    for (i = first; i < last; i++)
        ddp__attention_queries(call, i % heads, (tiles - 1 - i / heads) * DDP__ATTENTION_TILE);
}

static void ddp__attention_forward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const long tiles = (z.t + DDP__ATTENTION_TILE - 1) / DDP__ATTENTION_TILE;

    ddp_op_parallel(call, z.b * z.heads * tiles, 1, ddp__attention_tiles, (void *)call);
}

static void ddp__attention_clear(float *x, long rows, long ld, long d)
{
    for (; rows > 0; rows--, x += ld) memset(x, 0, (size_t)d * sizeof *x);
}

/* Gradients of one head of queries, added: queries in tiles from, keys in tiles s <= from. */
static void ddp__attention_head_grad(const ddp_op_call *call, long head)
{
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const float scale = 1 / sqrtf((float)z.d);
    const long ld = z.ld, q_at = ddp__attention_q(&z, head), k_at = ddp__attention_k(&z, head);
    const long out_at = ddp__attention_out(&z, head), kv = z.kv_heads * z.d;
    const float *q = (const float *)call->in[0] + q_at;
    const float *k = (const float *)call->in[0] + k_at, *v = k + kv;
    const float *stat = (const float *)call->saved + head * z.t * 2;
    float *dq = (float *)call->grad_in[0] + q_at;
    float *dk = (float *)call->grad_in[0] + k_at, *dv = dk + kv;
    float p[DDP__ATTENTION_TILE * DDP__ATTENTION_TILE];
    float d[DDP__ATTENTION_TILE * DDP__ATTENTION_TILE];
    float mean[DDP__ATTENTION_TILE];
    long from, s, i, j;

    for (from = 0; from < z.t; from += DDP__ATTENTION_TILE) {
        const float *out = (const float *)call->out + out_at + from * z.c;
        const float *dout = (const float *)call->grad_out + out_at + from * z.c;
        const long rows = ddp__attention_rows(from, z.t);
        for (i = 0; i < rows; i++) mean[i] = kn->dot(out + i * z.c, dout + i * z.c, z.d);
        for (s = 0; s <= from; s += DDP__ATTENTION_TILE) {
            const long cols = ddp__attention_rows(s, z.t);
            ddp__attention_product(kn, rows, cols, z.d, q + from * ld, ld, 1, k + s * ld, 1, ld, p,
                                   cols, 0);
            ddp__attention_product(kn, rows, cols, z.d, dout, z.c, 1, v + s * ld, 1, ld, d, cols,
                                   0);
            for (i = 0; i < rows; i++) {
                const long seen = s == from ? i + 1 : cols;
                const float *st = stat + 2 * (from + i);
                kn->softmax(p + i * cols, p + i * cols, seen, scale, st[0], st[1], 0);
                kn->softmax_grad(d + i * cols, p + i * cols, seen, mean[i], scale);
                for (j = seen; j < cols; j++) p[i * cols + j] = d[i * cols + j] = 0;
            }
            ddp__attention_product(kn, cols, z.d, rows, p, 1, cols, dout, z.c, 1, dv + s * ld, ld,
                                   1);
            ddp__attention_product(kn, rows, z.d, cols, d, cols, 1, k + s * ld, ld, 1,
                                   dq + from * ld, ld, 1);
            ddp__attention_product(kn, cols, z.d, rows, d, 1, cols, q + from * ld, ld, 1,
                                   dk + s * ld, ld, 1);
        }
    }
}

/* Items are (batch, head of keys): the heads of queries that share it add to its gradients one
 * after the other, so no sum is split over threads. */
static void ddp__attention_groups(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    float *grad = (float *)call->grad_in[0];
    long i, h;

    for (i = first; i < last; i++) {
        const long head = i * z.group, k_at = ddp__attention_k(&z, head);
        if (!call->add_in[0]) {
            ddp__attention_clear(grad + ddp__attention_q(&z, head), z.t, z.ld, z.group * z.d);
            ddp__attention_clear(grad + k_at, z.t, z.ld, z.d);
            ddp__attention_clear(grad + k_at + z.kv_heads * z.d, z.t, z.ld, z.d);
        }
        for (h = head; h < head + z.group; h++) ddp__attention_head_grad(call, h);
    }
}

static void ddp__attention_backward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);

    if (call->grad_in[0])
        ddp_op_parallel(call, z.b * z.kv_heads, 1, ddp__attention_groups, (void *)call);
}

int ddp__attention_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"attention", ddp__attention_shape, ddp__attention_forward, ddp__attention_backward,
         ddp__attention_ref_forward, ddp__attention_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
