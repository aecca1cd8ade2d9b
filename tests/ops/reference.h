/* Reference implementations of the operators in double: plain loops in the order of the formulas, with
 * which the float kernels are compared. Arrays of a call have elements of type double; integer inputs are
 * int32_t. Include after dreamddp.h. */
#ifndef OPS_REFERENCE_H
#define OPS_REFERENCE_H

#include "ops/attention.c"
#include "ops/conv.c"
#include "ops/elementwise.c"
#include "ops/embedding.c"
#include "ops/linear.c"
#include "ops/loss.c"
#include "ops/norm.c"
#include "ops/pool.c"

/* ---- linear.c ---- */

static void ref_linear_forward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    const double *x = (const double *)call->in[0];
    const double *w = (const double *)call->param[0];
    const double *b = (const double *)call->param[1];
    double *y = (double *)call->out;
    long i, j, p;

    for (i = 0; i < z.m; i++)
        for (j = 0; j < z.n; j++) {
            double sum = b ? b[j] : 0;
            for (p = 0; p < z.k; p++) sum += x[i * z.k + p] * w[j * z.k + p];
            y[i * z.n + j] = sum;
        }
}

static void ref_linear_backward(const ddp_op_call *call)
{
    const ddp__linear_size z = ddp__linear_sizes(call->spec);
    const double *x = (const double *)call->in[0];
    const double *w = (const double *)call->param[0];
    const double *dy = (const double *)call->grad_out;
    double *dx = (double *)call->grad_in[0];
    double *dw = (double *)call->grad_param[0];
    double *db = (double *)call->grad_param[1];
    long i, j, p;

    for (i = 0; dx && i < z.m; i++)
        for (p = 0; p < z.k; p++) {
            double sum = call->add_in[0] ? dx[i * z.k + p] : 0;
            for (j = 0; j < z.n; j++) sum += dy[i * z.n + j] * w[j * z.k + p];
            dx[i * z.k + p] = sum;
        }
    for (i = 0; i < z.m; i++)
        for (j = 0; j < z.n; j++) {
            if (db) db[j] += dy[i * z.n + j];
            for (p = 0; dw && p < z.k; p++) dw[j * z.k + p] += dy[i * z.n + j] * x[i * z.k + p];
        }
}

/* ---- embedding.c ---- */

static void ref_embedding_forward(const ddp_op_call *call)
{
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const double *table = (const double *)call->param[0];
    double *y = (double *)call->out;
    long i, j;

    for (i = 0; i < rows; i++)
        for (j = 0; j < c; j++) y[i * c + j] = token[i] >= 0 && token[i] < v ? table[token[i] * c + j] : NAN;
}

static void ref_embedding_backward(const ddp_op_call *call)
{
    const long rows = ddp_shape_rows(&call->spec->out);
    const long v = call->spec->param[0].shape.dim[0], c = call->spec->param[0].shape.dim[1];
    const int32_t *token = (const int32_t *)call->in[0];
    const double *dy = (const double *)call->grad_out;
    double *table = (double *)call->grad_param[0];
    long i, j;

    if (!table) return;
    for (i = 0; i < rows; i++)
        for (j = 0; j < c && token[i] >= 0 && token[i] < v; j++) table[token[i] * c + j] += dy[i * c + j];
}

static void ref_position_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const double *x = (const double *)call->in[0];
    const double *table = (const double *)call->param[0];
    double *y = (double *)call->out;
    long b, i;

    for (b = 0; b < s->dim[0]; b++)
        for (i = 0; i < n; i++) y[b * n + i] = x[b * n + i] + table[i];
}

static void ref_position_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[1] * s->dim[2];
    const double *dy = (const double *)call->grad_out;
    double *dx = (double *)call->grad_in[0];
    double *table = (double *)call->grad_param[0];
    long b, i;

    for (b = 0; b < s->dim[0]; b++)
        for (i = 0; i < n; i++) {
            if (table) table[i] += dy[b * n + i];
            if (dx) dx[b * n + i] = dy[b * n + i] + (call->add_in[0] ? dx[b * n + i] : 0);
        }
}

/* Sets or adds to `to` the rotation of `from`, forward (direction 1) or back (-1). */
static void ref_rope_turn(const ddp_op_call *call, const void *from, void *to, int direction, int add)
{
    const ddp__heads l = ddp__heads_of(call->spec);
    const long rows = ddp_shape_rows(&call->spec->in[0]), time = call->spec->in[0].dim[1];
    const long half = l.d / 2, turned = (l.heads + l.kv_heads) * l.d;
    long r, h, i;

    for (r = 0; r < rows; r++) {
        const double *x = (const double *)from + r * l.row;
        double *y = (double *)to + r * l.row;
        for (h = 0; h < turned; h += l.d)
            for (i = h; i < h + half; i++) {
                const double angle = direction * (double)(r % time) *
                                     pow(call->spec->arg[2] > 0 ? call->spec->arg[2] : 10000,
                                         -2.0 * (double)(i - h) / (double)l.d);
                const double c = cos(angle), s = sin(angle);
                const double u = x[i], v = x[i + half];
                y[i] = u * c - v * s + (add ? y[i] : 0);
                y[i + half] = v * c + u * s + (add ? y[i + half] : 0);
            }
        for (i = turned; i < l.row; i++) y[i] = x[i] + (add ? y[i] : 0);
    }
}

static void ref_rope_forward(const ddp_op_call *call) { ref_rope_turn(call, call->in[0], call->out, 1, 0); }

static void ref_rope_backward(const ddp_op_call *call)
{
    if (call->grad_in[0]) ref_rope_turn(call, call->grad_out, call->grad_in[0], -1, call->add_in[0]);
}

/* ---- norm.c ---- */

static void ref_norm_forward(const ddp_op_call *call)
{
    const ddp__norm_size z = ddp__norm_sizes(call->spec);
    const double *scale = (const double *)call->param[0];
    const double *shift = (const double *)call->param[1];
    long i, j;

    for (i = 0; i < z.rows; i++) {
        const double *x = (const double *)call->in[0] + i * z.n;
        double *y = (double *)call->out + i * z.n;
        double *stat = (double *)call->saved + i * z.saved;
        double mean = 0, var = 0, rstd;
        for (j = 0; z.centred && j < z.n; j++) mean += x[j];
        mean /= (double)z.n;
        for (j = 0; j < z.n; j++) var += (x[j] - mean) * (x[j] - mean);
        var /= (double)z.n;
        rstd = 1 / sqrt(var + (call->spec->params < 2 && call->spec->arg[0] > 0 ? call->spec->arg[0] : 1e-5));
        for (j = 0; j < z.n; j++) y[j] = (x[j] - mean) * rstd * scale[j] + (shift ? shift[j] : 0);
        stat[0] = mean;
        stat[z.saved - 1] = rstd;
    }
}

/* h = (x - mean) rstd, d = dy scale: dx = rstd (d - mean(d) - h mean(d h)). If mean is 0 by definition, no
 * gradient flows through it. */
static void ref_norm_backward(const ddp_op_call *call)
{
    const ddp__norm_size z = ddp__norm_sizes(call->spec);
    const double *scale = (const double *)call->param[0];
    double *dscale = (double *)call->grad_param[0];
    double *dshift = (double *)call->grad_param[1];
    long i, j;

    for (i = 0; i < z.rows; i++) {
        const double *x = (const double *)call->in[0] + i * z.n;
        const double *dy = (const double *)call->grad_out + i * z.n;
        const double *stat = (const double *)call->saved + i * z.saved;
        double *dx = call->grad_in[0] ? (double *)call->grad_in[0] + i * z.n : NULL;
        const double mean = z.centred ? stat[0] : 0, rstd = stat[z.saved - 1];
        double mean_d = 0, mean_dh = 0;
        for (j = 0; j < z.n; j++) {
            const double h = (x[j] - mean) * rstd;
            if (z.centred) mean_d += dy[j] * scale[j] / (double)z.n;
            mean_dh += dy[j] * scale[j] * h / (double)z.n;
            if (dscale) dscale[j] += dy[j] * h;
            if (dshift) dshift[j] += dy[j];
        }
        for (j = 0; dx && j < z.n; j++) {
            const double h = (x[j] - mean) * rstd;
            dx[j] = rstd * (dy[j] * scale[j] - mean_d - h * mean_dh) + (call->add_in[0] ? dx[j] : 0);
        }
    }
}

static void ref_batch_norm_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long channels = s->dim[1], n = s->dim[2] * s->dim[3];
    const double *x = (const double *)call->in[0];
    const double *scale = (const double *)call->param[0];
    const double *shift = (const double *)call->param[1];
    double *running_mean = (double *)call->buffer[0];
    double *running_var = (double *)call->buffer[1];
    double *y = (double *)call->out, *stat = (double *)call->saved;
    const double count = (double)s->dim[0] * (double)n;
    const double move = DDP__BATCH_NORM_MOVE;
    long b, c, i;

    for (c = 0; c < channels; c++) {
        double mean = 0, var = 0, rstd;
        for (b = 0; b < s->dim[0]; b++)
            for (i = 0; i < n; i++) mean += x[(b * channels + c) * n + i] / count;
        for (b = 0; b < s->dim[0]; b++)
            for (i = 0; i < n; i++) {
                const double d = x[(b * channels + c) * n + i] - mean;
                var += d * d / count;
            }
        if (call->training) {
            const double v = var * (count > 1 ? count / (count - 1) : 1);
            running_mean[c] += move * (mean - running_mean[c]);
            running_var[c] += move * (v - running_var[c]);
        } else {
            mean = running_mean[c];
            var = running_var[c];
        }
        rstd = 1 / sqrt(var + DDP__NORM_EPS);
        for (b = 0; b < s->dim[0]; b++)
            for (i = 0; i < n; i++) {
                const long at = (b * channels + c) * n + i;
                y[at] = (x[at] - mean) * rstd * scale[c] + shift[c];
            }
        stat[2 * c] = mean;
        stat[2 * c + 1] = rstd;
    }
}

/* h = (x - mean) rstd: dx = scale rstd (dy - mean(dy) - h mean(dy h)). */
static void ref_batch_norm_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long channels = s->dim[1], n = s->dim[2] * s->dim[3];
    const double *x = (const double *)call->in[0];
    const double *dy = (const double *)call->grad_out;
    const double *scale = (const double *)call->param[0];
    const double *stat = (const double *)call->saved;
    double *dx = (double *)call->grad_in[0];
    double *dscale = (double *)call->grad_param[0];
    double *dshift = (double *)call->grad_param[1];
    const double count = (double)s->dim[0] * (double)n;
    long b, c, i;

    for (c = 0; c < channels; c++) {
        const double mean = stat[2 * c], rstd = stat[2 * c + 1];
        double sum = 0, sum_h = 0;
        for (b = 0; b < s->dim[0]; b++)
            for (i = 0; i < n; i++) {
                const long at = (b * channels + c) * n + i;
                sum += dy[at];
                sum_h += dy[at] * (x[at] - mean) * rstd;
            }
        if (dscale) dscale[c] += sum_h;
        if (dshift) dshift[c] += sum;
        for (b = 0; dx && b < s->dim[0]; b++)
            for (i = 0; i < n; i++) {
                const long at = (b * channels + c) * n + i;
                const double h = (x[at] - mean) * rstd;
                dx[at] = scale[c] * rstd * (dy[at] - sum / count - h * sum_h / count) +
                         (call->add_in[0] ? dx[at] : 0);
            }
    }
}

/* ---- attention.c ---- */

static void ref_attention_forward(const ddp_op_call *call)
{
    const ddp__heads z = ddp__heads_of(call->spec);
    const double scale = 1 / sqrt((double)z.d);
    const long kv = z.kv_heads * z.d;
    long h, t, s, i;

    for (h = 0; h < z.b * z.heads; h++) {
        const double *q = (const double *)call->in[0] + ddp__heads_q(&z, h);
        const double *k = (const double *)call->in[0] + ddp__heads_k(&z, h / z.group);
        const double *v = k + kv;
        double *out = (double *)call->out + ddp__heads_out(&z, h);
        double *stat = (double *)call->saved + h * z.t * 2;
        for (t = 0; t < z.t; t++) {
            double max = -INFINITY, sum = 0;
            for (s = 0; s <= t; s++) {
                double score = 0;
                for (i = 0; i < z.d; i++) score += q[t * z.row + i] * k[s * z.row + i];
                if (score * scale > max) max = score * scale;
            }
            for (i = 0; i < z.d; i++) out[t * z.width + i] = 0;
            for (s = 0; s <= t; s++) {
                double score = 0, e;
                for (i = 0; i < z.d; i++) score += q[t * z.row + i] * k[s * z.row + i];
                e = exp(score * scale - max);
                sum += e;
                for (i = 0; i < z.d; i++) out[t * z.width + i] += e * v[s * z.row + i];
            }
            for (i = 0; i < z.d; i++) out[t * z.width + i] /= sum;
            stat[2 * t] = max;
            stat[2 * t + 1] = 1 / sum;
        }
    }
}

/* dv[s] += p dout[t];  dp = dout[t].v[s];  dscore = p (dp - out[t].dout[t]) scale, since
 * out.dout is the mean of dp under p;  dq[t] += dscore k[s];  dk[s] += dscore q[t]. */
static void ref_attention_backward(const ddp_op_call *call)
{
    const ddp__heads z = ddp__heads_of(call->spec);
    const double scale = 1 / sqrt((double)z.d);
    const long kv = z.kv_heads * z.d;
    long h, t, s, i;

    for (i = 0; call->grad_in[0] && !call->add_in[0] && i < z.b * z.t * z.row; i++)
        ((double *)call->grad_in[0])[i] = 0;
    for (h = 0; call->grad_in[0] && h < z.b * z.heads; h++) {
        const long q_at = ddp__heads_q(&z, h), k_at = ddp__heads_k(&z, h / z.group);
        const double *q = (const double *)call->in[0] + q_at;
        const double *k = (const double *)call->in[0] + k_at, *v = k + kv;
        double *dq = (double *)call->grad_in[0] + q_at;
        double *dk = (double *)call->grad_in[0] + k_at, *dv = dk + kv;
        const double *out = (const double *)call->out + ddp__heads_out(&z, h);
        const double *dout = (const double *)call->grad_out + ddp__heads_out(&z, h);
        const double *stat = (const double *)call->saved + h * z.t * 2;
        for (t = 0; t < z.t; t++) {
            double mean = 0;
            for (i = 0; i < z.d; i++) mean += out[t * z.width + i] * dout[t * z.width + i];
            for (s = 0; s <= t; s++) {
                double score = 0, dp = 0, p, dscore;
                for (i = 0; i < z.d; i++) {
                    score += q[t * z.row + i] * k[s * z.row + i];
                    dp += dout[t * z.width + i] * v[s * z.row + i];
                }
                p = exp(score * scale - stat[2 * t]) * stat[2 * t + 1];
                dscore = p * (dp - mean) * scale;
                for (i = 0; i < z.d; i++) {
                    dv[s * z.row + i] += p * dout[t * z.width + i];
                    dq[t * z.row + i] += dscore * k[s * z.row + i];
                    dk[s * z.row + i] += dscore * q[t * z.row + i];
                }
            }
        }
    }
}

/* ---- elementwise.c ---- */

static void ref_gelu_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const double *x = (const double *)call->in[0];
    double *y = (double *)call->out;
    long i;

    for (i = 0; i < n; i++) {
        const double v = x[i];
        const double u = 0.79788456080286535588 * (v + 0.044715 * v * v * v);
        y[i] = 0.5 * v * (1 + tanh(u));
    }
}

static void ref_gelu_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const double *x = (const double *)call->in[0];
    const double *dy = (const double *)call->grad_out;
    double *dx = (double *)call->grad_in[0];
    long i;

    for (i = 0; dx && i < n; i++) {
        const double v = x[i], a = 0.79788456080286535588;
        const double t = tanh(a * (v + 0.044715 * v * v * v));
        const double d = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * a * (1 + 3 * 0.044715 * v * v);
        dx[i] = d * dy[i] + (call->add_in[0] ? dx[i] : 0);
    }
}

static void ref_relu_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const double *x = (const double *)call->in[0];
    double *y = (double *)call->out;
    long i;

    for (i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
}

static void ref_relu_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const double *x = (const double *)call->in[0];
    const double *dy = (const double *)call->grad_out;
    double *dx = (double *)call->grad_in[0];
    long i;

    for (i = 0; dx && i < n; i++) dx[i] = (x[i] > 0 ? dy[i] : 0) + (call->add_in[0] ? dx[i] : 0);
}

static void ref_add_forward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const double *a = (const double *)call->in[0];
    const double *b = (const double *)call->in[1];
    double *y = (double *)call->out;
    long i;

    for (i = 0; i < n; i++) y[i] = a[i] + b[i];
}

/* Input by input: both inputs may be the same array, and the second then adds to the first. */
static void ref_add_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const double *dy = (const double *)call->grad_out;
    long i;
    int k;

    for (k = 0; k < 2; k++) {
        double *d = (double *)call->grad_in[k];
        for (i = 0; d && i < n; i++) d[i] = dy[i] + (call->add_in[k] ? d[i] : 0);
    }
}

/* Returns the start of row r of both factors in the two arrays given per input. NULL stays NULL. */
static void ref_swiglu_row(const ddp_op_spec *s, void *const *of, size_t size, long r, void **a, void **b)
{
    const size_t n = (size_t)s->out.dim[s->out.dims - 1] * size, at = (size_t)r * n;
    char *first = (char *)of[0], *second = s->inputs > 1 ? (char *)of[1] : NULL;

    if (s->inputs > 1) {
        *a = first ? first + at : NULL;
        *b = second ? second + at : NULL;
    } else {
        *a = first ? first + 2 * at : NULL;
        *b = first ? first + 2 * at + n : NULL;
    }
}

static void ref_swiglu_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    void *a, *b;
    long r, j;

    for (r = 0; r < rows; r++) {
        double *y = (double *)call->out + r * n;
        ref_swiglu_row(call->spec, (void *const *)call->in, sizeof *y, r, &a, &b);
        for (j = 0; j < n; j++) {
            const double v = ((const double *)a)[j];
            y[j] = v / (1 + exp(-v)) * ((const double *)b)[j];
        }
    }
}

/* da = dy b (s + a s (1 - s)) with s = 1 / (1 + e^-a);  db = dy a s. */
static void ref_swiglu_backward(const ddp_op_call *call)
{
    const ddp_shape *z = &call->spec->out;
    const long rows = ddp_shape_rows(z), n = z->dim[z->dims - 1];
    const int add_a = call->add_in[0], add_b = call->add_in[call->spec->inputs > 1];
    void *pa, *pb, *pda, *pdb;
    long r, j;

    for (r = 0; r < rows; r++) {
        const double *dy = (const double *)call->grad_out + r * n;
        ref_swiglu_row(call->spec, (void *const *)call->in, sizeof *dy, r, &pa, &pb);
        ref_swiglu_row(call->spec, call->grad_in, sizeof *dy, r, &pda, &pdb);
        for (j = 0; j < n; j++) {
            const double a = ((const double *)pa)[j], s = 1 / (1 + exp(-a));
            const double b = ((const double *)pb)[j], d = dy[j];
            double *da = pda ? (double *)pda + j : NULL;
            double *db = pdb ? (double *)pdb + j : NULL;
            if (da) *da = d * b * (s + a * s * (1 - s)) + (add_a ? *da : 0);
            if (db) *db = d * a * s + (add_b ? *db : 0);
        }
    }
}

static void ref_dropout(const ddp_op_call *call, const double *x, double *y, int add)
{
    const long n = ddp_shape_count(&call->spec->out);
    const int off = ddp__dropout_off(call);
    const double scale = off ? 1 : 1 / (1 - call->spec->arg[0]);
    unsigned char keep[DDP__OP_GRAIN];
    long i;

    for (i = 0; i < n; i++) {
        if (i % DDP__OP_GRAIN == 0) ddp__dropout_mask(call, i / DDP__OP_GRAIN, keep);
        y[i] = (off || keep[i % DDP__OP_GRAIN] ? x[i] * scale : 0) + (add ? y[i] : 0);
    }
}

static void ref_dropout_forward(const ddp_op_call *call)
{
    ref_dropout(call, (const double *)call->in[0], (double *)call->out, 0);
}

static void ref_dropout_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ref_dropout(call, (const double *)call->grad_out, (double *)call->grad_in[0], call->add_in[0]);
}

/* ---- loss.c ---- */

static void ref_loss_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    double *stat = (double *)call->saved, loss = 0;
    long i, j;

    for (i = 0; i < rows; i++) {
        const double *x = (const double *)call->in[0] + i * n;
        double max = x[0], sum = 0;
        for (j = 1; j < n; j++) max = x[j] > max ? x[j] : max;
        for (j = 0; j < n; j++) sum += exp(x[j] - max);
        stat[2 * i] = max;
        stat[2 * i + 1] = sum;
        if (label[i] == -1) continue;
        if (label[i] < 0 || label[i] >= n)
            loss = NAN;
        else
            loss += log(sum) + max - x[label[i]];
    }
    *(double *)call->out = loss / (double)ddp__loss_counted(label, rows);
}

/* dx = (softmax(x) - [j == label]) g / counted. */
static void ref_loss_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    const int32_t *label = (const int32_t *)call->in[1];
    const double *stat = (const double *)call->saved;
    const double g = *(const double *)call->grad_out / (double)ddp__loss_counted(label, rows);
    long i, j;

    for (i = 0; call->grad_in[0] && i < rows; i++) {
        const double *x = (const double *)call->in[0] + i * n;
        double *dx = (double *)call->grad_in[0] + i * n;
        for (j = 0; j < n; j++) {
            double d = exp(x[j] - stat[2 * i]) / stat[2 * i + 1];
            if (label[i] == -1)
                d = 0;
            else if (label[i] < 0 || label[i] >= n)
                d = NAN;
            else if (label[i] == j)
                d -= 1;
            dx[j] = d * g + (call->add_in[0] ? dx[j] : 0);
        }
    }
}

/* Splits linear_cross_entropy into its two operators, and runs the forward of both. */
static void ref_head_parts(const ddp_op_call *call, ddp_op_spec *spec, ddp_op_call *linear, ddp_op_call *loss)
{
    const long rows = ddp_shape_rows(&call->spec->in[0]), n = call->spec->param[0].shape.dim[0];

    spec[0] = spec[1] = *call->spec;
    spec[0].out = spec[0].in[0];
    spec[0].out.dim[spec[0].out.dims - 1] = n;
    spec[1].in[0] = spec[0].out;
    *linear = *loss = *call;
    linear->spec = &spec[0];
    loss->spec = &spec[1];
    linear->out = calloc((size_t)(rows * n), sizeof(double));
    loss->in[0] = linear->out;
    loss->saved = calloc((size_t)(2 * rows), sizeof(double));
    assert_non_null(linear->out);
    assert_non_null(loss->saved);
    ref_linear_forward(linear);
    ref_loss_forward(loss);
}

static void ref_head_forward(const ddp_op_call *call)
{
    ddp_op_spec spec[2];
    ddp_op_call linear, loss;

    ref_head_parts(call, spec, &linear, &loss);
    free(linear.out);
    free(loss.saved);
}

/* The gradient of the logits overwrites the logits. */
static void ref_head_backward(const ddp_op_call *call)
{
    ddp_op_spec spec[2];
    ddp_op_call linear, loss;

    ref_head_parts(call, spec, &linear, &loss);
    loss.grad_in[0] = linear.out;
    loss.add_in[0] = 0;
    ref_loss_backward(&loss);
    linear.grad_out = linear.out;
    ref_linear_backward(&linear);
    free(linear.out);
    free(loss.saved);
}

/* ---- conv.c ---- */

/* Called for one tap with the element indices of x, weight and y. A tap outside x is skipped. */
typedef void (*ref_conv_term)(const ddp_op_call *call, long x, long weight, long y);

typedef struct ref_conv_size {
    long images, groups, in, out; /* channels of a group, in and out */
    long h, w, rows, cols, kernel, stride, padding;
} ref_conv_size;

static ref_conv_size ref_conv_sizes(const ddp_op_spec *s)
{
    const long groups = (long)s->arg[4];
    const ref_conv_size z = {s->in[0].dim[0],        groups,          s->in[0].dim[1] / groups,
                             s->out.dim[1] / groups, s->in[0].dim[2], s->in[0].dim[3],
                             s->out.dim[2],          s->out.dim[3],   (long)s->arg[1],
                             (long)s->arg[2],        (long)s->arg[3]};

    return z;
}

static void ref_conv_terms(const ddp_op_call *call, ref_conv_term term)
{
    const ref_conv_size z = ref_conv_sizes(call->spec);
    long b, o, r, c, p, h, w;

    for (b = 0; b < z.images; b++)
        for (o = 0; o < z.groups * z.out; o++)
            for (r = 0; r < z.rows; r++)
                for (c = 0; c < z.cols; c++)
                    for (p = 0; p < z.in; p++)
                        for (h = 0; h < z.kernel; h++)
                            for (w = 0; w < z.kernel; w++) {
                                const long i = r * z.stride + h - z.padding;
                                const long j = c * z.stride + w - z.padding;
                                const long plane = (b * z.groups + o / z.out) * z.in + p;
                                if (i < 0 || i >= z.h || j < 0 || j >= z.w) continue;
                                term(call, (plane * z.h + i) * z.w + j,
                                     ((o * z.in + p) * z.kernel + h) * z.kernel + w,
                                     ((b * z.groups * z.out + o) * z.rows + r) * z.cols + c);
                            }
}

static void ref_conv_term_forward(const ddp_op_call *call, long x, long weight, long y)
{
    ((double *)call->out)[y] += ((const double *)call->param[0])[weight] * ((const double *)call->in[0])[x];
}

static void ref_conv_term_backward(const ddp_op_call *call, long x, long weight, long y)
{
    const double dy = ((const double *)call->grad_out)[y];

    if (call->grad_in[0]) ((double *)call->grad_in[0])[x] += dy * ((const double *)call->param[0])[weight];
    if (call->grad_param[0]) ((double *)call->grad_param[0])[weight] += dy * ((const double *)call->in[0])[x];
}

static void ref_conv_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const double *bias = (const double *)call->param[1];
    const long n = ddp_shape_count(s), plane = s->dim[2] * s->dim[3];
    long i;

    for (i = 0; i < n; i++) ((double *)call->out)[i] = bias ? bias[i / plane % s->dim[1]] : 0;
    ref_conv_terms(call, ref_conv_term_forward);
}

static void ref_conv_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long n = ddp_shape_count(s), plane = s->dim[2] * s->dim[3];
    double *dx = (double *)call->grad_in[0], *db = (double *)call->grad_param[1];
    long i;

    for (i = 0; dx && !call->add_in[0] && i < ddp_shape_count(&call->spec->in[0]); i++) dx[i] = 0;
    for (i = 0; db && i < n; i++) db[i / plane % s->dim[1]] += ((const double *)call->grad_out)[i];
    ref_conv_terms(call, ref_conv_term_backward);
}

/* ---- pool.c ---- */

static void ref_max_pool_forward(const ddp_op_call *call)
{
    const ddp__pool_size z = ddp__pool_sizes(call->spec);
    double *y = (double *)call->out, *at = (double *)call->saved;
    long p, i, j, h, w, o = 0;

    for (p = 0; p < z.planes; p++)
        for (i = 0; i < z.rows; i++)
            for (j = 0; j < z.cols; j++, o++) {
                const double *x = (const double *)call->in[0] + p * z.h * z.w;
                int any = 0;
                for (h = 0; h < z.kernel; h++)
                    for (w = 0; w < z.kernel; w++) {
                        const long r = i * z.stride - z.padding + h;
                        const long c = j * z.stride - z.padding + w;
                        if (r < 0 || r >= z.h || c < 0 || c >= z.w) continue;
                        if (any && !(x[r * z.w + c] > y[o]) && !isnan(x[r * z.w + c])) continue;
                        if (any && isnan(y[o])) continue;
                        any = 1;
                        y[o] = x[r * z.w + c];
                        at[o] = (double)(h * z.kernel + w);
                    }
            }
}

static void ref_max_pool_backward(const ddp_op_call *call)
{
    const ddp__pool_size z = ddp__pool_sizes(call->spec);
    const double *dy = (const double *)call->grad_out;
    const double *at = (const double *)call->saved;
    double *dx = (double *)call->grad_in[0];
    long p, i, j, o = 0;

    for (i = 0; dx && !call->add_in[0] && i < z.planes * z.h * z.w; i++) dx[i] = 0;
    for (p = 0; dx && p < z.planes; p++)
        for (i = 0; i < z.rows; i++)
            for (j = 0; j < z.cols; j++, o++) {
                const long r = i * z.stride - z.padding + (long)at[o] / z.kernel;
                const long c = j * z.stride - z.padding + (long)at[o] % z.kernel;
                dx[(p * z.h + r) * z.w + c] += dy[o];
            }
}

static void ref_avg_pool_forward(const ddp_op_call *call)
{
    const ddp__pool_size z = ddp__pool_sizes(call->spec);
    const double *x = (const double *)call->in[0];
    double *y = (double *)call->out;
    long p, i, j, h, w, o = 0;

    for (p = 0; p < z.planes; p++)
        for (i = 0; i < z.rows; i++)
            for (j = 0; j < z.cols; j++, o++) {
                y[o] = 0;
                for (h = 0; h < z.kernel; h++)
                    for (w = 0; w < z.kernel; w++) {
                        const long r = i * z.stride - z.padding + h;
                        const long c = j * z.stride - z.padding + w;
                        if (r >= 0 && r < z.h && c >= 0 && c < z.w) y[o] += x[(p * z.h + r) * z.w + c];
                    }
                y[o] /= (double)(z.kernel * z.kernel);
            }
}

static void ref_avg_pool_backward(const ddp_op_call *call)
{
    const ddp__pool_size z = ddp__pool_sizes(call->spec);
    const double *dy = (const double *)call->grad_out;
    double *dx = (double *)call->grad_in[0];
    long p, i, j, h, w, o = 0;

    for (i = 0; dx && !call->add_in[0] && i < z.planes * z.h * z.w; i++) dx[i] = 0;
    for (p = 0; dx && p < z.planes; p++)
        for (i = 0; i < z.rows; i++)
            for (j = 0; j < z.cols; j++, o++)
                for (h = 0; h < z.kernel; h++)
                    for (w = 0; w < z.kernel; w++) {
                        const long r = i * z.stride - z.padding + h;
                        const long c = j * z.stride - z.padding + w;
                        if (r >= 0 && r < z.h && c >= 0 && c < z.w)
                            dx[(p * z.h + r) * z.w + c] += dy[o] / (double)(z.kernel * z.kernel);
                    }
}

static void ref_global_pool_forward(const ddp_op_call *call)
{
    const long planes = ddp_shape_count(&call->spec->out),
               n = ddp__pool_sizes(call->spec).h * ddp__pool_sizes(call->spec).w;
    const double *x = (const double *)call->in[0];
    double *y = (double *)call->out;
    long p, i;

    for (p = 0; p < planes; p++) {
        y[p] = 0;
        for (i = 0; i < n; i++) y[p] += x[p * n + i] / (double)n;
    }
}

static void ref_global_pool_backward(const ddp_op_call *call)
{
    const long planes = ddp_shape_count(&call->spec->out),
               n = ddp__pool_sizes(call->spec).h * ddp__pool_sizes(call->spec).w;
    const double *dy = (const double *)call->grad_out;
    double *dx = (double *)call->grad_in[0];
    long p, i;

    for (p = 0; dx && p < planes; p++)
        for (i = 0; i < n; i++) dx[p * n + i] = dy[p] / (double)n + (call->add_in[0] ? dx[p * n + i] : 0);
}

static void ref_flatten_forward(const ddp_op_call *call)
{
    memmove(call->out, call->in[0], (size_t)ddp_shape_count(&call->spec->out) * sizeof(double));
}

static void ref_flatten_backward(const ddp_op_call *call)
{
    const long n = ddp_shape_count(&call->spec->out);
    const double *dy = (const double *)call->grad_out;
    double *dx = (double *)call->grad_in[0];
    long i;

    for (i = 0; dx && i < n; i++) dx[i] = dy[i] + (call->add_in[0] ? dx[i] : 0);
}

/* ---- the table ---- */

typedef struct ref_op {
    const char *name;
    void (*forward)(const ddp_op_call *call);
    void (*backward)(const ddp_op_call *call);
} ref_op;

static const ref_op ref_ops[] = {{"linear", ref_linear_forward, ref_linear_backward},
                                 {"linear_no_bias", ref_linear_forward, ref_linear_backward},
                                 {"linear_tied", ref_linear_forward, ref_linear_backward},
                                 {"embedding", ref_embedding_forward, ref_embedding_backward},
                                 {"position", ref_position_forward, ref_position_backward},
                                 {"rope", ref_rope_forward, ref_rope_backward},
                                 {"layer_norm", ref_norm_forward, ref_norm_backward},
                                 {"rms_norm", ref_norm_forward, ref_norm_backward},
                                 {"batch_norm2d", ref_batch_norm_forward, ref_batch_norm_backward},
                                 {"attention", ref_attention_forward, ref_attention_backward},
                                 {"gelu", ref_gelu_forward, ref_gelu_backward},
                                 {"relu", ref_relu_forward, ref_relu_backward},
                                 {"add", ref_add_forward, ref_add_backward},
                                 {"swiglu", ref_swiglu_forward, ref_swiglu_backward},
                                 {"dropout", ref_dropout_forward, ref_dropout_backward},
                                 {"cross_entropy", ref_loss_forward, ref_loss_backward},
                                 {"linear_cross_entropy", ref_head_forward, ref_head_backward},
                                 {"conv2d", ref_conv_forward, ref_conv_backward},
                                 {"max_pool2d", ref_max_pool_forward, ref_max_pool_backward},
                                 {"avg_pool2d", ref_avg_pool_forward, ref_avg_pool_backward},
                                 {"global_avg_pool2d", ref_global_pool_forward, ref_global_pool_backward},
                                 {"flatten", ref_flatten_forward, ref_flatten_backward}};

static const ref_op *ref_find(const char *name)
{
    size_t i;

    for (i = 0; i < sizeof ref_ops / sizeof ref_ops[0]; i++)
        if (!strcmp(ref_ops[i].name, name)) return &ref_ops[i];
    return NULL;
}

#endif /* OPS_REFERENCE_H */
