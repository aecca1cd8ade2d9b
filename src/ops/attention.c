/* Causal multi-head attention (Vaswani et al. 2017, arXiv:1706.03762, Eq. 1): x (B, T, 3C) holds
 * queries, keys and values; per head of D = C / heads columns
 *     out[t] = sum over s <= t of p[t][s] v[s], p[t] = softmax over s <= t of q[t].k[s] / sqrt(D).
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
    long b, t, c, heads, d;
} ddp__attention_size;

static ddp__attention_size ddp__attention_sizes(const ddp_op_spec *s)
{
    ddp__attention_size z;

    z.b = s->out.dim[0];
    z.t = s->out.dim[1];
    z.c = s->out.dim[2];
    z.heads = (long)s->arg[0];
    z.d = z.c / z.heads;
    return z;
}

static ddp_status ddp__attention_shape(ddp_op_spec *s, ddp_error *err)
{
    long heads, width;

    DDP__TRY(ddp__op_floats(s, "attention", 0, 0, err));
    DDP__TRY(ddp__op_count(s, "attention", 0, "heads", &heads, err));
    if (s->in[0].dims != 3)
        return ddp__fail(err, DDP_ARG, "attention: the input must be (batch, time, 3 x width), "
                         "got %d dimensions", s->in[0].dims);
    width = s->in[0].dim[2] / 3;
    if (width < 1 || s->in[0].dim[2] % 3 || width % heads)
        return ddp__fail(err, DDP_ARG, "attention: the input's last dimension (%ld) must be 3 x "
                         "width, and width a multiple of the %ld heads", s->in[0].dim[2], heads);
    s->out = s->in[0];
    s->out.dim[2] = width;
    s->saved = (size_t)(2 * s->out.dim[0] * heads * s->out.dim[1]);
    /* two products over half of T x T */
    s->flops = 2.0 * (double)ddp_shape_count(&s->out) * (double)(s->out.dim[1] + 1);
    s->backward_flops = 2.5 * s->flops; /* five products */
    return DDP_OK;
}

static void ddp__attention_ref_forward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const ddp__real scale = (ddp__real)(1 / sqrt((double)z.d));
    long b, h, t, s, i;

    for (b = 0; b < z.b; b++)
        for (h = 0; h < z.heads; h++) {
            const ddp__real *q = (const ddp__real *)call->in[0] + b * z.t * 3 * z.c + h * z.d;
            const ddp__real *k = q + z.c, *v = k + z.c;
            ddp__real *out = (ddp__real *)call->out + b * z.t * z.c + h * z.d;
            ddp__real *stat = (ddp__real *)call->saved + (b * z.heads + h) * z.t * 2;
            for (t = 0; t < z.t; t++) {
                ddp__real max = (ddp__real)-INFINITY, sum = 0;
                for (s = 0; s <= t; s++) {
                    ddp__real score = 0;
                    for (i = 0; i < z.d; i++) score += q[t * 3 * z.c + i] * k[s * 3 * z.c + i];
                    if (score * scale > max) max = score * scale;
                }
                for (i = 0; i < z.d; i++) out[t * z.c + i] = 0;
                for (s = 0; s <= t; s++) {
                    ddp__real score = 0, e;
                    for (i = 0; i < z.d; i++) score += q[t * 3 * z.c + i] * k[s * 3 * z.c + i];
                    e = (ddp__real)exp((double)(score * scale - max));
                    sum += e;
                    for (i = 0; i < z.d; i++) out[t * z.c + i] += e * v[s * 3 * z.c + i];
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
    long b, h, t, s, i;

    for (i = 0; call->grad_in[0] && !call->add_in[0] && i < 3 * z.b * z.t * z.c; i++)
        ((ddp__real *)call->grad_in[0])[i] = 0;
    for (b = 0; call->grad_in[0] && b < z.b; b++)
        for (h = 0; h < z.heads; h++) {
            const long at = b * z.t * 3 * z.c + h * z.d;
            const ddp__real *q = (const ddp__real *)call->in[0] + at, *k = q + z.c, *v = k + z.c;
            ddp__real *dq = (ddp__real *)call->grad_in[0] + at, *dk = dq + z.c, *dv = dk + z.c;
            const ddp__real *out = (const ddp__real *)call->out + b * z.t * z.c + h * z.d;
            const ddp__real *dout = (const ddp__real *)call->grad_out + b * z.t * z.c + h * z.d;
            const ddp__real *stat = (const ddp__real *)call->saved + (b * z.heads + h) * z.t * 2;
            for (t = 0; t < z.t; t++) {
                ddp__real mean = 0;
                for (i = 0; i < z.d; i++) mean += out[t * z.c + i] * dout[t * z.c + i];
                for (s = 0; s <= t; s++) {
                    ddp__real score = 0, dp = 0, p, dscore;
                    for (i = 0; i < z.d; i++) {
                        score += q[t * 3 * z.c + i] * k[s * 3 * z.c + i];
                        dp += dout[t * z.c + i] * v[s * 3 * z.c + i];
                    }
                    p = (ddp__real)exp((double)(score * scale - stat[2 * t])) * stat[2 * t + 1];
                    dscore = p * (dp - mean) * scale;
                    for (i = 0; i < z.d; i++) {
                        dv[s * 3 * z.c + i] += p * dout[t * z.c + i];
                        dq[t * 3 * z.c + i] += dscore * k[s * 3 * z.c + i];
                        dk[s * 3 * z.c + i] += dscore * q[t * 3 * z.c + i];
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
    const float *q = (const float *)call->in[0] + head / z.heads * z.t * 3 * z.c +
                     head % z.heads * z.d;
    const float *k = q + z.c, *v = k + z.c;
    float *out = (float *)call->out + (head / z.heads * z.t + from) * z.c + head % z.heads * z.d;
    float *stat = (float *)call->saved + (head * z.t + from) * 2;
    const long rows = ddp__attention_rows(from, z.t), ld = 3 * z.c;
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

/* Gradients of one head: queries in tiles from, keys in tiles s <= from. */
static void ddp__attention_head_grad(const ddp_op_call *call, long head)
{
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp__attention_size z = ddp__attention_sizes(call->spec);
    const float scale = 1 / sqrtf((float)z.d);
    const long ld = 3 * z.c, at = head / z.heads * z.t * ld + head % z.heads * z.d;
    const long out_at = head / z.heads * z.t * z.c + head % z.heads * z.d;
    const float *q = (const float *)call->in[0] + at, *k = q + z.c, *v = k + z.c;
    const float *stat = (const float *)call->saved + head * z.t * 2;
    float *dq = (float *)call->grad_in[0] + at, *dk = dq + z.c, *dv = dk + z.c;
    float p[DDP__ATTENTION_TILE * DDP__ATTENTION_TILE];
    float d[DDP__ATTENTION_TILE * DDP__ATTENTION_TILE];
    float mean[DDP__ATTENTION_TILE];
    long from, s, i, j;

    for (i = 0; !call->add_in[0] && i < z.t; i++) {
        memset(dq + i * ld, 0, (size_t)z.d * sizeof *dq);
        memset(dk + i * ld, 0, (size_t)z.d * sizeof *dk);
        memset(dv + i * ld, 0, (size_t)z.d * sizeof *dv);
    }
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

static void ddp__attention_heads(void *user, long first, long last)
{
    long h;

    for (h = first; h < last; h++) ddp__attention_head_grad((const ddp_op_call *)user, h);
}

static void ddp__attention_backward(const ddp_op_call *call)
{
    const ddp__attention_size z = ddp__attention_sizes(call->spec);

    if (call->grad_in[0])
        ddp_op_parallel(call, z.b * z.heads, 1, ddp__attention_heads, (void *)call);
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
