/* Elementwise operators: gelu, relu, add, swiglu, dropout. */
#include "ops/ops.h"

/* ---- gelu, tanh form (Hendrycks and Gimpel, arXiv:1606.08415), and relu, whose gradient at 0 is 0. Both
 * have one input and use the kernels of the same name ---- */

#define DDP__MAP_OP(name, flops)                                                                    \
    static ddp_status ddp__##name##_shape(ddp_op_spec *s, ddp_error *err)                           \
    {                                                                                               \
        return ddp__op_same(s, #name, flops, err);                                                  \
    }                                                                                               \
    static void ddp__##name##_range(void *user, long first, long last)                              \
    {                                                                                               \
        const ddp_op_call *call = (const ddp_op_call *)user;                                        \
        ddp__kernels_of(call)->name((float *)call->out + first, (const float *)call->in[0] + first, \
                                    last - first);                                                  \
    }                                                                                               \
    static void ddp__##name##_grad_range(void *user, long first, long last)                         \
    {                                                                                               \
        const ddp_op_call *call = (const ddp_op_call *)user;                                        \
        ddp__kernels_of(call)->name##_grad(                                                         \
            (float *)call->grad_in[0] + first, (const float *)call->in[0] + first,                  \
            (const float *)call->grad_out + first, last - first, call->add_in[0]);                  \
    }                                                                                               \
    static void ddp__##name##_forward(const ddp_op_call *call)                                      \
    {                                                                                               \
        ddp__op_elements(call, ddp__##name##_range);                                                \
    }                                                                                               \
    static void ddp__##name##_backward(const ddp_op_call *call)                                     \
    {                                                                                               \
        if (call->grad_in[0]) ddp__op_elements(call, ddp__##name##_grad_range);                     \
    }

DDP__MAP_OP(gelu, 12)
DDP__MAP_OP(relu, 1)

/* ---- add: a + b, equal shapes ---- */

static ddp_status ddp__add_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_floats(s, "add", 0, 1, err));
    if (s->in[0].dims != s->in[1].dims)
        return ddp__fail(err, DDP_ARG,
                         "add: the inputs have %d and %d dimensions; they must be "
                         "equal",
                         s->in[0].dims, s->in[1].dims);
    for (int i = 0; i < s->in[0].dims; i++)
        if (s->in[0].dim[i] != s->in[1].dim[i])
            return ddp__fail(err, DDP_ARG,
                             "add: dimension %d of the inputs is %ld and %ld; they "
                             "must be equal",
                             i, s->in[0].dim[i], s->in[1].dim[i]);
    s->in_place_ok = 1;
    return ddp__op_same(s, "add", 1, err);
}

static void ddp__add_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;

    ddp__kernels_of(call)->affine((float *)call->out + first, (const float *)call->in[0] + first,
                                  (const float *)call->in[1] + first, last - first, 1, 1, 0, 0);
}

static void ddp__add_grad_range(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const float *dy = (const float *)call->grad_out;

    for (int k = 0; k < 2; k++) {
        float *d = (float *)call->grad_in[k];
        if (d && call->add_in[k])
            ddp__kernels_of(call)->affine(d + first, dy + first, NULL, last - first, 1, 0, 0, 1);
        else if (d && d != dy)
            memcpy(d + first, dy + first, (size_t)(last - first) * sizeof *d);
    }
}

static void ddp__add_forward(const ddp_op_call *call) { ddp__op_elements(call, ddp__add_range); }
static void ddp__add_backward(const ddp_op_call *call) { ddp__op_elements(call, ddp__add_grad_range); }

/* ---- swiglu (Shazeer 2020, arXiv:2002.05202, Eq. 5, without the matrix products): y = silu(a) b with
 * silu(a) = a / (1 + e^-a). Takes one input (..., 2F), rows a then b, or two inputs (..., F) ---- */

static ddp_status ddp__swiglu_shape(ddp_op_spec *s, ddp_error *err)
{
    const int last = s->inputs > 1;
    int i;

    DDP__TRY(ddp__op_floats(s, "swiglu", 0, last, err));
    s->out = s->in[0];
    i = s->out.dims - 1;
    if (!last && s->out.dim[i] % 2)
        return ddp__fail(err, DDP_ARG,
                         "swiglu: the rows of a single input are two halves, so "
                         "their length (%ld) must be even",
                         s->out.dim[i]);
    if (!last)
        s->out.dim[i] /= 2;
    else if (ddp_shape_count(&s->in[0]) != ddp_shape_count(&s->in[1]) ||
             s->in[0].dim[i] != s->in[1].dim[s->in[1].dims - 1])
        return ddp__fail(err, DDP_ARG,
                         "swiglu: the two inputs must have one shape, they have rows of %ld and %ld",
                         s->in[0].dim[i], s->in[1].dim[s->in[1].dims - 1]);
    s->flops = 6.0 * (double)ddp_shape_count(&s->out);
    s->out_unread = 1;
    s->grad_over_input = 1;
    return DDP_OK;
}

/* Finds the factors a and b in arrays that are given per input. NULL stays NULL. Returns the stride of their
 * rows. */
static long ddp__swiglu_factors(const ddp_op_spec *s, void *const *of, float **a, float **b)
{
    const long n = s->out.dim[s->out.dims - 1];

    *a = (float *)of[0];
    *b = s->inputs > 1 ? (float *)of[1] : *a ? *a + n : NULL;
    return s->inputs > 1 ? n : 2 * n;
}

static void ddp__swiglu_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_of(call);
    const long n = call->spec->out.dim[call->spec->out.dims - 1];
    float *a, *b;
    const long row = ddp__swiglu_factors(call->spec, (void *const *)call->in, &a, &b);

    for (long r = first; r < last; r++) kn->swiglu((float *)call->out + r * n, a + r * row, b + r * row, n);
}

static void ddp__swiglu_grad_rows(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_of(call);
    const long n = call->spec->out.dim[call->spec->out.dims - 1];
    float *a, *b, *da, *db;
    const long row = ddp__swiglu_factors(call->spec, (void *const *)call->in, &a, &b);

    ddp__swiglu_factors(call->spec, call->grad_in, &da, &db);
    for (long r = first; r < last; r++)
        kn->swiglu_grad(da ? da + r * row : NULL, db ? db + r * row : NULL, a + r * row, b + r * row,
                        (const float *)call->grad_out + r * n, n, call->add_in[0],
                        call->add_in[call->spec->inputs > 1]);
}

static void ddp__swiglu_forward(const ddp_op_call *call)
{
    ddp__op_rows(call, &call->spec->out, ddp__swiglu_rows);
}

static void ddp__swiglu_backward(const ddp_op_call *call)
{
    if (call->grad_in[0] || (call->spec->inputs > 1 && call->grad_in[1]))
        ddp__op_rows(call, &call->spec->out, ddp__swiglu_grad_rows);
}

/* ---- dropout, inverted (Srivastava et al. 2014): y = x / (1 - p) for kept elements, else 0. The mask is
 * a pure function of call->random and the element index. It is not stored: backward computes it again,
 * and it does not depend on threads ---- */

static ddp_status ddp__dropout_shape(ddp_op_spec *s, ddp_error *err)
{
    DDP__TRY(ddp__op_same(s, "dropout", 1, err));
    if (!(s->arg[0] >= 0 && s->arg[0] < 1))
        return ddp__fail(err, DDP_ARG, "dropout: the probability must be at least 0 and below 1, got %g",
                         s->arg[0]);
    s->in_place_ok = 1;
    return DDP_OK;
}

/* keep[i] for the elements of one block (DDP__OP_GRAIN elements, with its own random stream):
 * compares 32 random bits per element with p * 2^32. */
static void ddp__dropout_mask(const ddp_op_call *call, long block, unsigned char *keep)
{
    const uint32_t bound = (uint32_t)(call->spec->arg[0] * 4294967296.0);
    ddp_rng r = ddp_rng_seed(call->random, (uint64_t)block);

    for (int i = 0; i < DDP__OP_GRAIN; i += 2) {
        const uint64_t bits = ddp_rng_u64(&r);
        keep[i] = (uint32_t)bits >= bound;
        keep[i + 1] = (uint32_t)(bits >> 32) >= bound;
    }
}

static int ddp__dropout_off(const ddp_op_call *call) { return !call->training || call->spec->arg[0] == 0; }

typedef struct ddp__dropout_job {
    const ddp_op_call *call;
    const float *x;
    float *y;
    int add;
} ddp__dropout_job;

/* first is a multiple of DDP__OP_GRAIN, and the range is one block. */
static void ddp__dropout_range(void *user, long first, long last)
{
    const ddp__dropout_job *job = (const ddp__dropout_job *)user;
    const float scale = (float)(1 / (1 - job->call->spec->arg[0]));
    const float *x = job->x + first;
    float *y = job->y + first;
    const long n = last - first;
    unsigned char keep[DDP__OP_GRAIN];

    if (ddp__dropout_off(job->call)) {
        if (job->add)
            for (long i = 0; i < n; i++) y[i] += x[i];
        else if (y != x)
            memcpy(y, x, (size_t)n * sizeof *y);
        return;
    }
    ddp__dropout_mask(job->call, first / DDP__OP_GRAIN, keep);
    if (job->add)
        for (long i = 0; i < n; i++) y[i] += keep[i] ? x[i] * scale : 0;
    else
        for (long i = 0; i < n; i++) y[i] = keep[i] ? x[i] * scale : 0;
}

static void ddp__dropout_run(const ddp_op_call *call, const void *x, void *y, int add)
{
    ddp__dropout_job job = {call, (const float *)x, (float *)y, add};

    ddp_op_parallel(call, ddp_shape_count(&call->spec->out), DDP__OP_GRAIN, ddp__dropout_range, &job);
}

static void ddp__dropout_forward(const ddp_op_call *call)
{
    ddp__dropout_run(call, call->in[0], call->out, 0);
}

static void ddp__dropout_backward(const ddp_op_call *call)
{
    if (call->grad_in[0]) ddp__dropout_run(call, call->grad_out, call->grad_in[0], call->add_in[0]);
}

DDP__OPS(ddp__elementwise_ops, {"gelu", ddp__gelu_shape, ddp__gelu_forward, ddp__gelu_backward},
         {"relu", ddp__relu_shape, ddp__relu_forward, ddp__relu_backward},
         {"add", ddp__add_shape, ddp__add_forward, ddp__add_backward},
         {"swiglu", ddp__swiglu_shape, ddp__swiglu_forward, ddp__swiglu_backward},
         {"dropout", ddp__dropout_shape, ddp__dropout_forward, ddp__dropout_backward})
