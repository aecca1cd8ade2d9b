/* Checks an operator of the table against the reference kernels of tests/ops/reference.h. Include after
 * dreamddp.h and cmocka.h. A case fills in the inputs and args of a spec. All other values are random. */
#ifndef OP_CHECK_H
#define OP_CHECK_H

#include "ops/reference.h"

typedef struct op_case {
    const char *op;
    int inputs;
    ddp_shape in[2];
    ddp_dtype type[2];
    double arg[6];
    ddp_shape tied; /* dims 0: none */
    int training;
    int low, high; /* range of integer inputs */
} op_case;

/* One element type of a check: the float kernels if real is 0, the reference in double if it is 1. */
typedef struct op_side {
    void *in[DDP_OP_INPUTS], *param[DDP_OP_PARAMS], *buffer[DDP_OP_BUFFERS];
    void *out, *saved, *grad_out;
    void *grad_in[DDP_OP_INPUTS], *grad_param[DDP_OP_PARAMS];
    size_t bytes; /* size of an element */
} op_side;

typedef struct op_check {
    const ddp_op *op;
    const ref_op *ref;
    ddp_op_spec spec;
    op_side side[2];
    int training;
    ddp_rng rng;
} op_check;

static void *op_new(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);

    assert_non_null(p);
    return p;
}

static double op_get(const op_check *c, int real, const void *a, long i)
{
    (void)c;
    return real ? ((const double *)a)[i] : (double)((const float *)a)[i];
}

/* Uniform in -1.5..1.5 and at least 0.01 from 0, where relu has no derivative. Exact in float. */
static void op_fill(op_check *c, void *f, void *d, long n)
{
    long i;

    for (i = 0; i < n; i++) {
        double v = 3 * ddp_rng_uniform(&c->rng) - 1.5;
        v += v < 0 ? -0.01 : 0.01;
        ((float *)f)[i] = (float)v;
        ((double *)d)[i] = (double)(float)v;
    }
}

static void op_open(op_check *c, const op_case *k)
{
    ddp_error err;
    int i, s;

    memset(c, 0, sizeof *c);
    memset(&err, 0, sizeof err);
    c->rng = ddp_rng_seed(7, 1);
    c->op = ddp__builtin_op(k->op);
    c->ref = ref_find(k->op);
    assert_non_null(c->op);
    assert_non_null(c->ref);
    c->training = k->training;
    c->spec.inputs = k->inputs;
    for (i = 0; i < k->inputs; i++) {
        c->spec.in[i] = k->in[i];
        c->spec.in_type[i] = k->type[i];
    }
    for (i = 0; i < 6; i++) c->spec.arg[i] = k->arg[i];
    if (k->tied.dims) {
        c->spec.params = 1;
        c->spec.param[0].shape = k->tied;
    }
    if (c->op->shape(&c->spec, &err)) fail_msg("%s", err.msg);
    for (s = 0; s < 2; s++) {
        op_side *a = &c->side[s];
        a->bytes = s ? sizeof(double) : sizeof(float);
        a->out = op_new((size_t)ddp_shape_count(&c->spec.out), a->bytes);
        a->grad_out = op_new((size_t)ddp_shape_count(&c->spec.out), a->bytes);
        a->saved = op_new(c->spec.saved, a->bytes);
        for (i = 0; i < k->inputs; i++) {
            a->in[i] = op_new((size_t)ddp_shape_count(&k->in[i]), a->bytes);
            if (k->type[i] == DDP_F32) a->grad_in[i] = op_new((size_t)ddp_shape_count(&k->in[i]), a->bytes);
        }
        for (i = 0; i < c->spec.params; i++) {
            const size_t n = (size_t)ddp_shape_count(&c->spec.param[i].shape);
            a->param[i] = op_new(n, a->bytes);
            a->grad_param[i] = op_new(n, a->bytes);
        }
        for (i = 0; i < c->spec.buffers; i++)
            a->buffer[i] = op_new((size_t)ddp_shape_count(&c->spec.buffer[i].shape), a->bytes);
    }
    op_fill(c, c->side[0].grad_out, c->side[1].grad_out, ddp_shape_count(&c->spec.out));
    for (i = 0; i < k->inputs; i++) {
        const long n = ddp_shape_count(&k->in[i]);
        long j;
        if (k->type[i] == DDP_F32) {
            op_fill(c, c->side[0].in[i], c->side[1].in[i], n);
            continue;
        }
        for (j = 0; j < n; j++) {
            const int v = k->low + (int)ddp_rng_below(&c->rng, (uint64_t)(k->high - k->low + 1));
            ((int32_t *)c->side[0].in[i])[j] = ((int32_t *)c->side[1].in[i])[j] = v;
        }
    }
    for (i = 0; i < c->spec.params; i++)
        op_fill(c, c->side[0].param[i], c->side[1].param[i], ddp_shape_count(&c->spec.param[i].shape));
    for (i = 0; i < c->spec.buffers; i++) { /* positive, as variances are */
        const long n = ddp_shape_count(&c->spec.buffer[i].shape);
        long j;
        op_fill(c, c->side[0].buffer[i], c->side[1].buffer[i], n);
        for (j = 0; j < n; j++) {
            ((float *)c->side[0].buffer[i])[j] += 2;
            ((double *)c->side[1].buffer[i])[j] = (double)((float *)c->side[0].buffer[i])[j];
        }
    }
}

static void op_close(op_check *c)
{
    int i, s;

    for (s = 0; s < 2; s++) {
        op_side *a = &c->side[s];
        free(a->out);
        free(a->grad_out);
        free(a->saved);
        for (i = 0; i < DDP_OP_INPUTS; i++) {
            free(a->in[i]);
            free(a->grad_in[i]);
        }
        for (i = 0; i < DDP_OP_PARAMS; i++) {
            free(a->param[i]);
            free(a->grad_param[i]);
        }
        for (i = 0; i < DDP_OP_BUFFERS; i++) free(a->buffer[i]);
    }
}

/* The default pool: one thread, with work memory. */
static void *op_alone(void)
{
    static ddp__pool *pool;

    if (!pool) pool = ddp__pool_open(1);
    assert_non_null(pool);
    assert_true(ddp__pool_rooms(pool));
    return pool;
}

static void op_call_of(const op_check *c, int real, int add, void *pool, ddp_op_call *call)
{
    const op_side *a = &c->side[real];
    int i;

    memset(call, 0, sizeof *call);
    call->spec = &c->spec;
    call->out = a->out;
    call->saved = a->saved;
    call->grad_out = a->grad_out;
    for (i = 0; i < DDP_OP_INPUTS; i++) {
        call->in[i] = a->in[i];
        call->grad_in[i] = a->grad_in[i];
        call->add_in[i] = add;
    }
    for (i = 0; i < DDP_OP_PARAMS; i++) {
        call->param[i] = a->param[i];
        call->grad_param[i] = a->grad_param[i];
    }
    for (i = 0; i < DDP_OP_BUFFERS; i++) call->buffer[i] = a->buffer[i];
    call->pool = pool ? pool : op_alone();
    call->training = c->training;
    call->random = 12345;
}

static void op_forward(op_check *c, int real, void *pool)
{
    ddp_op_call call;

    op_call_of(c, real, 0, pool, &call);
    (real ? c->ref->forward : c->op->forward)(&call);
}

static void op_backward(op_check *c, int real, int add, void *pool)
{
    ddp_op_call call;

    op_call_of(c, real, add, pool, &call);
    (real ? c->ref->backward : c->op->backward)(&call);
}

/* Sets all gradients of both sides to one number, so that a kernel that should overwrite them but adds is
 * detected. */
static void op_preset(op_check *c, double inputs, double params)
{
    int i, s;
    long j;

    for (s = 0; s < 2; s++) {
        for (i = 0; i < c->spec.inputs + c->spec.params; i++) {
            const int p = i - c->spec.inputs;
            void *g = p < 0 ? c->side[s].grad_in[i] : c->side[s].grad_param[p];
            const long n = ddp_shape_count(p < 0 ? &c->spec.in[i] : &c->spec.param[p].shape);
            for (j = 0; g && j < n; j++) {
                if (s)
                    ((double *)g)[j] = p < 0 ? inputs : params;
                else
                    ((float *)g)[j] = (float)(p < 0 ? inputs : params);
            }
        }
    }
}

/* Largest difference between the float and the double array, relative to the largest value. */
static double op_difference(const op_check *c, const void *f, const void *d, long n)
{
    double top = 0, worst = 0;
    long i;

    for (i = 0; i < n; i++) {
        const double b = op_get(c, 1, d, i), e = fabs(op_get(c, 0, f, i) - b);
        if (!(e <= worst)) worst = e; /* NAN counts as the worst */
        if (fabs(b) > top) top = fabs(b);
    }
    return top > 0 ? worst / top : worst;
}

/* L = sum of out * grad_out. */
static double op_projection(op_check *c)
{
    const long n = ddp_shape_count(&c->spec.out);
    double sum = 0;
    long i;

    op_forward(c, 1, NULL);
    for (i = 0; i < n; i++) sum += op_get(c, 1, c->side[1].out, i) * op_get(c, 1, c->side[1].grad_out, i);
    return sum;
}

/* Compares grad with central differences of every element, or of at most 150 elements of a large array. */
static double op_slope_error(op_check *c, double *x, const double *grad, long n)
{
    const long step = n / 150 + 1;
    double worst = 0, rms = 0;
    long i;

    for (i = 0; i < n; i++) rms += grad[i] * grad[i] / (double)n;
    rms = sqrt(rms);
    for (i = 0; i < n; i += step) {
        const double kept = x[i], h = 1e-5;
        double up, down, slope, size;
        x[i] = kept + h;
        up = op_projection(c);
        x[i] = kept - h;
        down = op_projection(c);
        x[i] = kept;
        slope = (up - down) / (2 * h);
        size = fabs(grad[i]) > rms ? fabs(grad[i]) : rms;
        if (size == 0) size = 1;
        if (!(fabs(slope - grad[i]) / size <= worst)) worst = fabs(slope - grad[i]) / size;
    }
    return worst;
}

static void op_check_slopes(op_check *c, const char *name)
{
    int i;

    op_preset(c, 9, 0);
    op_forward(c, 1, NULL);
    op_backward(c, 1, 0, NULL);
    for (i = 0; i < c->spec.inputs + c->spec.params; i++) {
        const int p = i - c->spec.inputs;
        double *x = (double *)(p < 0 ? c->side[1].in[i] : c->side[1].param[p]);
        double *g = (double *)(p < 0 ? c->side[1].grad_in[i] : c->side[1].grad_param[p]);
        const long n = ddp_shape_count(p < 0 ? &c->spec.in[i] : &c->spec.param[p].shape);
        double e;
        if (!g) continue;
        e = op_slope_error(c, x, g, n);
        if (!(e < 1e-6)) fail_msg("%s: gradient %d differs from finite differences by %g", name, i, e);
    }
}

/* Compares the float kernels with the reference. add 1: gradients accumulate. */
static void op_check_float(op_check *c, const char *name, int add)
{
    int i, s;

    op_preset(c, 0.5, 0.25);
    for (s = 0; s < 2; s++) {
        op_forward(c, s, NULL);
        op_backward(c, s, add, NULL);
    }
    for (i = -1; i < c->spec.inputs + c->spec.params; i++) {
        const int p = i - c->spec.inputs;
        const void *f, *d;
        long n;
        double e;
        if (i < 0) {
            f = c->side[0].out;
            d = c->side[1].out;
            n = ddp_shape_count(&c->spec.out);
        } else {
            f = p < 0 ? c->side[0].grad_in[i] : c->side[0].grad_param[p];
            d = p < 0 ? c->side[1].grad_in[i] : c->side[1].grad_param[p];
            n = ddp_shape_count(p < 0 ? &c->spec.in[i] : &c->spec.param[p].shape);
        }
        if (!f) continue;
        e = op_difference(c, f, d, n);
        if (!(e < 1e-5)) fail_msg("%s (add %d): array %d differs from the reference by %g", name, add, i, e);
    }
    for (i = 0; i < c->spec.buffers; i++) {
        const double e = op_difference(c, c->side[0].buffer[i], c->side[1].buffer[i],
                                       ddp_shape_count(&c->spec.buffer[i].shape));
        if (!(e < 1e-6)) fail_msg("%s: buffer %d differs from the reference by %g", name, i, e);
    }
}

/* Checks that the reference accumulates gradients if the call says so. */
static void op_check_adds(op_check *c, const char *name)
{
    double *plain[DDP_OP_INPUTS + DDP_OP_PARAMS];
    const int arrays = c->spec.inputs + c->spec.params;
    int i, add;
    long j;

    memset(plain, 0, sizeof plain);
    for (add = 0; add < 2; add++) {
        op_preset(c, 0.5, add ? 0.25 : 0);
        op_forward(c, 1, NULL);
        op_backward(c, 1, add, NULL);
        for (i = 0; i < arrays; i++) {
            const int p = i - c->spec.inputs;
            const double *g = (const double *)(p < 0 ? c->side[1].grad_in[i] : c->side[1].grad_param[p]);
            const long n = ddp_shape_count(p < 0 ? &c->spec.in[i] : &c->spec.param[p].shape);
            if (!g) continue;
            if (!add) plain[i] = (double *)op_new((size_t)n, sizeof(double));
            for (j = 0; j < n; j++) {
                if (!add)
                    plain[i][j] = g[j];
                else if (!(fabs(g[j] - plain[i][j] - (p < 0 ? 0.5 : 0.25)) < 1e-9))
                    fail_msg("%s: gradient %d[%ld] does not accumulate", name, i, j);
            }
        }
    }
    for (i = 0; i < arrays; i++) free(plain[i]);
}

/* A hash of all arrays that the float kernels write. */
static uint64_t op_hash(const op_check *c)
{
    const op_side *a = &c->side[0];
    uint64_t h = 1469598103934665603ULL;
    int i;

    for (i = 0; i < 2 + c->spec.inputs + c->spec.params; i++) {
        const int g = i - 2, p = g - c->spec.inputs;
        const void *from = i == 0 ? a->out : i == 1 ? a->saved : p < 0 ? a->grad_in[g] : a->grad_param[p];
        size_t n = i == 0   ? (size_t)ddp_shape_count(&c->spec.out)
                   : i == 1 ? c->spec.saved
                            : (size_t)ddp_shape_count(p < 0 ? &c->spec.in[g] : &c->spec.param[p].shape);
        const unsigned char *b = (const unsigned char *)from;
        for (n *= sizeof(float); b && n; n--) h = (h ^ *b++) * 1099511628211ULL;
    }
    return h;
}

static uint64_t op_run_hashed(op_check *c, void *pool)
{
    op_preset(c, 0.5, 0.25);
    op_forward(c, 0, pool);
    op_backward(c, 0, 0, pool);
    return op_hash(c);
}

#endif /* OP_CHECK_H */
