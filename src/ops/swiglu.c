/* SwiGLU (Shazeer 2020, arXiv:2002.05202, Eq. 5, its elementwise part): y = silu(a) b, silu(a) =
 * a / (1 + e^-a). From one input (..., 2F), whose rows are a then b, or from two (..., F). */
#include "base/platform.h"
#include "base/fail.h"
#include "ops/kernels.h"
#include "ops/ops.h"

static ddp_status ddp__swiglu_shape(ddp_op_spec *s, ddp_error *err)
{
    const int last = s->inputs > 1;
    int i;

    DDP__TRY(ddp__op_floats(s, "swiglu", 0, last, err));
    s->out = s->in[0];
    i = s->out.dims - 1;
    if (!last && s->out.dim[i] % 2)
        return ddp__fail(err, DDP_ARG, "swiglu: the rows of a single input are two halves, so "
                         "their length (%ld) must be even", s->out.dim[i]);
    if (!last) s->out.dim[i] /= 2;
    else if (ddp_shape_count(&s->in[0]) != ddp_shape_count(&s->in[1]) ||
             s->in[0].dim[i] != s->in[1].dim[s->in[1].dims - 1])
        return ddp__fail(err, DDP_ARG, "swiglu: the two inputs must have one shape, they have "
                         "rows of %ld and %ld", s->in[0].dim[i],
                         s->in[1].dim[s->in[1].dims - 1]);
    s->flops = 6.0 * (double)ddp_shape_count(&s->out);
    s->out_unread = 1;
    s->grad_over_input = 1;
    return DDP_OK;
}

/* Where row r of both factors begins in two arrays given per input; NULL stays NULL. */
static void ddp__swiglu_row(const ddp_op_spec *s, void *const *of, size_t size, long r, void **a,
                            void **b)
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

static void ddp__swiglu_ref_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    void *a, *b;
    long r, j;

    for (r = 0; r < rows; r++) {
        ddp__real *y = (ddp__real *)call->out + r * n;
        ddp__swiglu_row(call->spec, (void *const *)call->in, sizeof *y, r, &a, &b);
        for (j = 0; j < n; j++) {
            const double v = (double)((const ddp__real *)a)[j];
            y[j] = (ddp__real)(v / (1 + exp(-v))) * ((const ddp__real *)b)[j];
        }
    }
}

/* da = dy b (s + a s (1 - s)) with s = 1 / (1 + e^-a);  db = dy a s. */
static void ddp__swiglu_ref_backward(const ddp_op_call *call)
{
    const ddp_shape *z = &call->spec->out;
    const long rows = ddp_shape_rows(z), n = z->dim[z->dims - 1];
    const int add_a = call->add_in[0], add_b = call->add_in[call->spec->inputs > 1];
    void *pa, *pb, *pda, *pdb;
    long r, j;

    for (r = 0; r < rows; r++) {
        const ddp__real *dy = (const ddp__real *)call->grad_out + r * n;
        ddp__swiglu_row(call->spec, (void *const *)call->in, sizeof *dy, r, &pa, &pb);
        ddp__swiglu_row(call->spec, call->grad_in, sizeof *dy, r, &pda, &pdb);
        for (j = 0; j < n; j++) {
            const double a = (double)((const ddp__real *)pa)[j], s = 1 / (1 + exp(-a));
            const double b = (double)((const ddp__real *)pb)[j], d = (double)dy[j];
            ddp__real *da = pda ? (ddp__real *)pda + j : NULL;
            ddp__real *db = pdb ? (ddp__real *)pdb + j : NULL;
            if (da) *da = (ddp__real)(d * b * (s + a * s * (1 - s))) + (add_a ? *da : 0);
            if (db) *db = (ddp__real)(d * a * s) + (add_b ? *db : 0);
        }
    }
}

static void ddp__swiglu_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const long n = call->spec->out.dim[call->spec->out.dims - 1];
    void *a, *b;
    long r;

    for (r = first; r < last; r++) {
        ddp__swiglu_row(call->spec, (void *const *)call->in, sizeof(float), r, &a, &b);
        kn->swiglu((float *)call->out + r * n, (const float *)a, (const float *)b, n);
    }
}

static void ddp__swiglu_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const long n = call->spec->out.dim[call->spec->out.dims - 1];
    void *a, *b, *da, *db;
    long r;

    for (r = first; r < last; r++) {
        ddp__swiglu_row(call->spec, (void *const *)call->in, sizeof(float), r, &a, &b);
        ddp__swiglu_row(call->spec, call->grad_in, sizeof(float), r, &da, &db);
        kn->swiglu_grad((float *)da, (float *)db, (const float *)a, (const float *)b,
                        (const float *)call->grad_out + r * n, n, call->add_in[0],
                        call->add_in[call->spec->inputs > 1]);
    }
}

static void ddp__swiglu_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;

    ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1,
                    ddp__swiglu_rows, (void *)call);
}

static void ddp__swiglu_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;

    if (call->grad_in[0] || (call->spec->inputs > 1 && call->grad_in[1]))
        ddp_op_parallel(call, ddp_shape_rows(s), DDP__OP_GRAIN / s->dim[s->dims - 1] + 1,
                        ddp__swiglu_grad_rows, (void *)call);
}

int ddp__swiglu_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"swiglu", ddp__swiglu_shape, ddp__swiglu_forward, ddp__swiglu_backward,
         ddp__swiglu_ref_forward, ddp__swiglu_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
