/* Rotary position embedding (Su et al. 2021, arXiv:2104.09864, Eq. 34) in the half-split form of
 * the published Llama weights: x (B, T, (heads + 2 kv_heads) d) holds queries, keys and values as
 * attention reads them; at position t the pair (x[i], x[d/2 + i]) of every query and key head is
 * turned by the angle t theta^(-2i/d). Values pass through. Arguments: heads, kv_heads (0 =
 * heads), theta (0 = 10000). A rotation's gradient is the rotation back. */
#include "base/platform.h"
#include "base/fail.h"
#include "ops/kernels.h"
#include "ops/ops.h"

enum { DDP__ROPE_PAIRS = 256 }; /* most pairs of a head: angles lie on the stack */

static double ddp__rope_theta(const ddp_op_spec *s) { return s->arg[2] > 0 ? s->arg[2] : 10000; }

static ddp_status ddp__rope_shape(ddp_op_spec *s, ddp_error *err)
{
    ddp__head_layout l;

    DDP__TRY(ddp__op_heads(s, "rope", &l, err));
    if (l.d % 2 || l.d > 2 * DDP__ROPE_PAIRS)
        return ddp__fail(err, DDP_ARG, "rope: a head is %ld wide; pairs of columns are turned, so "
                         "it must be even, and at most %d", l.d, 2 * DDP__ROPE_PAIRS);
    if (!(s->arg[2] >= 0 && s->arg[2] < 1e30) || (s->arg[2] > 0 && s->arg[2] < 1))
        return ddp__fail(err, DDP_ARG, "rope: theta is %g, it must be at least 1, or 0 for 10000",
                         s->arg[2]);
    s->out = s->in[0];
    s->flops = 3.0 * (double)(s->out.dim[0] * s->out.dim[1] * (l.heads + l.kv_heads) * l.d);
    s->backward_flops = s->flops;
    s->in_place_ok = 1;
    s->out_unread = 1;
    return DDP_OK;
}

/* to = or += the rotation of from, forward (direction 1) or back (-1). */
static void ddp__rope_ref_turn(const ddp_op_call *call, const void *from, void *to, int direction,
                               int add)
{
    const ddp__head_layout l = ddp__head_layout_of(call->spec);
    const long rows = ddp_shape_rows(&call->spec->in[0]), time = call->spec->in[0].dim[1];
    const long half = l.d / 2, turned = (l.heads + l.kv_heads) * l.d;
    long r, h, i;

    for (r = 0; r < rows; r++) {
        const ddp__real *x = (const ddp__real *)from + r * l.row;
        ddp__real *y = (ddp__real *)to + r * l.row;
        for (h = 0; h < turned; h += l.d)
            for (i = h; i < h + half; i++) {
                const double angle = direction * (double)(r % time) *
                    pow(ddp__rope_theta(call->spec), -2.0 * (double)(i - h) / (double)l.d);
                const ddp__real c = (ddp__real)cos(angle), s = (ddp__real)sin(angle);
                const ddp__real u = x[i], v = x[i + half];
                y[i] = u * c - v * s + (add ? y[i] : 0);
                y[i + half] = v * c + u * s + (add ? y[i + half] : 0);
            }
        for (i = turned; i < l.row; i++) y[i] = x[i] + (add ? y[i] : 0);
    }
}

static void ddp__rope_ref_forward(const ddp_op_call *call)
{
    ddp__rope_ref_turn(call, call->in[0], call->out, 1, 0);
}

static void ddp__rope_ref_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp__rope_ref_turn(call, call->grad_out, call->grad_in[0], -1, call->add_in[0]);
}

typedef struct ddp__rope_job {
    const ddp_op_spec *spec;
    const float       *from;
    float             *to;
    int                direction, add;
} ddp__rope_job;

/* Items are positions: the angles of one are computed once for all sequences and heads. */
static void ddp__rope_positions(void *user, long first, long last)
{
    const ddp__rope_job *job = (const ddp__rope_job *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp__head_layout l = ddp__head_layout_of(job->spec);
    const long batch = job->spec->in[0].dim[0], time = job->spec->in[0].dim[1];
    const long half = l.d / 2, turned = (l.heads + l.kv_heads) * l.d;
    double rate[DDP__ROPE_PAIRS];
    float cosine[DDP__ROPE_PAIRS], sine[DDP__ROPE_PAIRS];
    long t, b, h, i;

    for (i = 0; i < half; i++)
        rate[i] = job->direction * pow(ddp__rope_theta(job->spec), -2.0 * (double)i / (double)l.d);
    for (t = first; t < last; t++) {
        for (i = 0; i < half; i++) {
            cosine[i] = (float)cos((double)t * rate[i]);
            sine[i] = (float)sin((double)t * rate[i]);
        }
        for (b = 0; b < batch; b++) {
            const float *x = job->from + (b * time + t) * l.row;
            float *y = job->to + (b * time + t) * l.row;
            for (h = 0; h < turned; h += l.d)
                kn->rotate(y + h, x + h, cosine, sine, half, job->add);
            if (job->add)
                for (i = turned; i < l.row; i++) y[i] += x[i];
            else if (x != y)
                memcpy(y + turned, x + turned, (size_t)(l.row - turned) * sizeof *y);
        }
    }
}

static void ddp__rope_turn(const ddp_op_call *call, const void *from, void *to, int direction,
                           int add)
{
    const ddp_shape *s = &call->spec->in[0];
    ddp__rope_job job;

    job.spec = call->spec;
    job.from = (const float *)from;
    job.to = (float *)to;
    job.direction = direction;
    job.add = add;
    ddp_op_parallel(call, s->dim[1], DDP__OP_GRAIN / (s->dim[0] * s->dim[2]) + 1,
                    ddp__rope_positions, &job);
}

static void ddp__rope_forward(const ddp_op_call *call)
{
    ddp__rope_turn(call, call->in[0], call->out, 1, 0);
}

static void ddp__rope_backward(const ddp_op_call *call)
{
    if (call->grad_in[0])
        ddp__rope_turn(call, call->grad_out, call->grad_in[0], -1, call->add_in[0]);
}

int ddp__rope_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"rope", ddp__rope_shape, ddp__rope_forward, ddp__rope_backward, ddp__rope_ref_forward,
         ddp__rope_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
