/* Comparing two forms of an operator on a small problem, for the self-check of a device (self_check.cuh) and
 * for `make gpu-check`. The launches are on a separate stream, and a failure does not reach the device. */
#pragma once

#include "cuda/attention.cuh"

#define DDP__CHECK_LIMIT  1e-2 /* accepted difference, relative to the largest value of an array */
#define DDP__CHECK_WAIT_S 15.0 /* accepted time of one problem: another process may use the device, too */

enum {
    DDP__CHECK_BYTES = 4 << 20,   /* device memory of a self-check */
    DDP__CHECK_SCRATCH = 1 << 20, /* of it, for dev->scratch */
    DDP__CHECK_MOST = 1 << 16     /* elements of its largest array */
};

/* The result of the check of one form of a kernel. */
typedef struct ddp__finding {
    double worst;     /* the largest difference, or NaN */
    const char *what; /* its array */
    int exact;        /* 1: the array must be bit-identical to the CPU's. worst is 0 or 1. */
    ddp_error error;  /* of a launch, or the time-out */
} ddp__finding;

typedef struct ddp__check {
    ddp__cuda *dev;
    ddp__cuda *probe; /* a copy of dev with its own stream, memory, product plans, forms and first error */
    char *memory;     /* [bytes] of the device */
    size_t bytes, used;
    float *host[2]; /* [most] */
    long most;
    ddp_rng rng;
    double wait_s;
    int late;         /* 1 if a kernel did not end in time. Nothing is launched or freed any more. */
    char passed[400]; /* the differences of the forms in use */
} ddp__check;

/* ---- opening ---- */

/* Returns 0 if memory is short. */
static int ddp__check_open(ddp__check *c, ddp__cuda *dev, double wait_s, size_t bytes, long most)
{
    ddp__cuda *p = (ddp__cuda *)ddp__calloc(1, sizeof *p);

    memset(c, 0, sizeof *c);
    c->dev = dev;
    c->probe = p;
    c->wait_s = wait_s;
    c->bytes = bytes;
    c->most = most;
    c->rng = ddp_rng_seed(1, 1);
    for (float *&x : c->host) x = (float *)ddp__calloc((size_t)most, sizeof *x);
    if (!p || !c->host[0] || !c->host[1]) return 0;
    memcpy(p, dev, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->own_stream = 0;
    p->lists = NULL; /* calls run at once */
    p->products = NULL;
    p->products_free = NULL;
    p->stream = NULL;
    if (cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc((void **)&c->memory, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    p->scratch = c->memory;
    p->scratch_bytes = DDP__CHECK_SCRATCH;
    return 1;
}

/* If a kernel has not ended, its stream and its memory are not freed: freeing would wait for it. */
static void ddp__check_close(ddp__check *c)
{
    ddp__cuda *p = c->probe;

    for (float *x : c->host)
        if (x) DDP_FREE(x);
    if (!p) return;
    if (c->memory && !c->late) (void)cudaFree(c->memory);
    if (p->products_free) p->products_free(p);
    if (p->stream && !c->late) (void)cudaStreamDestroy(p->stream);
    pthread_mutex_destroy(&p->lock);
    DDP_FREE(p);
}

/* ---- memory, copies, waiting ---- */

static void *ddp__check_take(ddp__check *c, size_t bytes)
{
    char *at = c->memory + c->used;

    c->used += (bytes + 255) / 256 * 256;
    DDP_ASSERT(c->used <= c->bytes);
    (void)DDP__CUDA(c->probe, cudaMemsetAsync(at, 0, bytes, c->probe->stream));
    return at;
}

/* Waits for the launched work, at most wait_s. Moves a failure into f. Returns 1 if the work succeeded. */
static int ddp__check_wait(ddp__check *c, ddp__finding *f)
{
    const double until = ddp_now() + c->wait_s;
    cudaError_t e;

    while ((e = ddp__cuda_asked(cudaStreamQuery(c->probe->stream))) == cudaErrorNotReady) {
        if (ddp_now() > until) {
            c->late = 1;
            (void)ddp__fail(&f->error, DDP_TIMEOUT, "no result after %g s", c->wait_s);
            return 0;
        }
        ddp__sleep_until(ddp_now() + 1e-5);
    }
    (void)DDP__CUDA(c->probe, e);
    if (ddp__cuda_status(c->probe, f->error.code ? NULL : &f->error) == DDP_OK) return 1;
    c->probe->failed = 0;
    if (c->probe->late) ddp__atomic_store(c->probe->late, 0);
    return 0;
}

/* A new array of n values in -1 to 1, bfloat16 if half is 1. */
static void *ddp__check_values(ddp__check *c, long n, int half)
{
    void *to = ddp__check_take(c, (size_t)n * (half ? 2 : 4));
    float *x = c->host[0];

    DDP_ASSERT(n <= c->most);
    for (long i = 0; i < n; i++) x[i] = (float)(2 * ddp_rng_uniform(&c->rng) - 1);
    for (long i = 0; half && i < n; i++) ((ddp__bf16 *)x)[i] = __float2bfloat16_rn(x[i]);
    (void)DDP__CUDA(c->probe, cudaMemcpyAsync(to, x, (size_t)n * (half ? 2 : 4), cudaMemcpyHostToDevice,
                                              c->probe->stream));
    (void)DDP__CUDA(c->probe, cudaStreamSynchronize(c->probe->stream)); /* host is used again */
    return to;
}

/* Copies an array to c->host[to]. */
static int ddp__check_read(ddp__check *c, ddp__finding *f, int to, const void *from, size_t bytes)
{
    DDP_ASSERT(bytes <= (size_t)c->most * sizeof(float));
    (void)DDP__CUDA(c->probe,
                    cudaMemcpyAsync(c->host[to], from, bytes, cudaMemcpyDeviceToHost, c->probe->stream));
    return ddp__check_wait(c, f);
}

/* Element i of an array in host memory. */
static double ddp__check_value(const float *array, long i, int half)
{
    uint32_t bits;
    float x;

    if (!half) return array[i];
    bits = (uint32_t)((const uint16_t *)(const void *)array)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Compares columns from to to - 1 of the rows of row elements of two arrays: the result of the checked form,
 * and the correct one. */
static void ddp__check_compare(ddp__check *c, ddp__finding *f, const char *what, const void *is,
                               const void *right, long n, int half, long row, long from, long to)
{
    const size_t bytes = (size_t)n * (half ? 2 : 4);
    double most = 0, worst = 0;

    if (f->error.code || !is || !right) return;
    if (!ddp__check_read(c, f, 0, is, bytes) || !ddp__check_read(c, f, 1, right, bytes)) return;
    for (long i = 0; i < n; i++) {
        const double a = ddp__check_value(c->host[0], i, half), b = ddp__check_value(c->host[1], i, half);
        const double apart = a < b ? b - a : a - b, size = b < 0 ? -b : b;
        if (i % row < from || i % row >= to) continue;
        if (!(apart <= worst) && worst == worst) worst = apart; /* NaN stays */
        if (size > most) most = size;
    }
    worst /= most > 0 ? most : 1;
    if (f->what && worst <= f->worst) return;
    f->worst = worst;
    f->what = what;
}

/* ---- operators ---- */

/* Resets the memory for the next case. */
static void ddp__check_new(ddp__check *c) { c->used = DDP__CHECK_SCRATCH; }

/* Fills a call of the operator of that name: new inputs, parameters and gradient of the output. Inputs that
 * are set stay. spec has inputs and arguments. */
static const ddp_op *ddp__check_call(ddp__check *c, const char *name, ddp_op_spec *spec, ddp_op_call *call)
{
    ddp__cuda *p = c->probe;
    const ddp_op *op = ddp__cuda_op(p, name);
    ddp_error err = DDP__ZEROS;

    if (c->late) return NULL; /* a copy to the device would wait for the kernel */
    if (!op || op->shape(spec, &err)) {
        ddp__cuda_fail(p, DDP_FAILED, "%s: %s", name, op ? err.msg : "no such operator");
        return NULL;
    }
    DDP_ASSERT(ddp__cuda_scratch(p, op, spec) <= DDP__CHECK_SCRATCH);
    call->spec = spec;
    call->pool = p;
    call->training = 1;
    for (int i = 0; i < spec->inputs; i++)
        if (!call->in[i]) call->in[i] = ddp__check_values(c, ddp_shape_count(&spec->in[i]), p->half);
    for (int i = 0; i < spec->params; i++)
        call->param[i] = ddp__check_values(c, ddp_shape_count(&spec->param[i].shape), p->half);
    if (!call->grad_out)
        call->grad_out = ddp__check_values(c, ddp_shape_count(&spec->out), ddp__cuda_half(p, &spec->out));
    return op;
}

/* New arrays for the results of a call. */
static void ddp__check_results(ddp__check *c, ddp_op_call *call)
{
    const ddp_op_spec *s = call->spec;
    const size_t size = c->probe->half ? 2 : 4;

    call->out = ddp__check_take(c, (size_t)ddp_shape_count(&s->out) * (s->out.dims ? size : 4));
    if (s->saved) call->saved = ddp__check_take(c, s->saved * 4);
    for (int i = 0; i < s->inputs; i++)
        if (s->in_type[i] == DDP_F32)
            call->grad_in[i] = ddp__check_take(c, (size_t)ddp_shape_count(&s->in[i]) * size);
    for (int i = 0; i < s->params; i++)
        call->grad_param[i] = ddp__check_take(c, (size_t)ddp_shape_count(&s->param[i].shape) * 4);
}

/* Runs forward and backward with these forms. */
static int ddp__check_run(ddp__check *c, ddp__finding *f, const ddp_op *op, ddp_op_call *call, unsigned forms)
{
    if (c->late || f->error.code) return 0;
    c->probe->forms = forms;
    ddp__check_results(c, call);
    op->forward(call);
    if (!ddp__check_wait(c, f)) return 0;
    op->backward(call);
    return ddp__check_wait(c, f);
}

/* ---- attention ---- */

/* Runs one problem on tensor cores, with wgmma if hopper is 1 and with mma if it is 0, and without them. Each
 * form has its own call, so that a failure that ends all work on the device has one possible cause. */
static void ddp__check_heads(ddp__check *c, ddp__finding *f, int hopper, long tokens, long heads, long d)
{
    ddp_op_spec spec = DDP__ZEROS;
    ddp_op_call call = DDP__ZEROS, right;
    const ddp_op *op;
    const long kv = heads > 1 ? heads / 2 : 1, q = heads * d, row = q + 2 * kv * d;
    const int half = c->dev->half;

    ddp__check_new(c);
    spec.inputs = 1;
    spec.in[0] = {3, {1, tokens, row}};
    spec.arg[0] = (double)heads;
    spec.arg[1] = (double)kv;
    op = ddp__check_call(c, "attention", &spec, &call);
    right = call;
    c->probe->map = NULL;
    if (!op || !ddp__check_run(c, f, op, &right, DDP__PLAIN_ATTENTION)) return;
    c->probe->map = hopper ? c->dev->map : NULL;
    if (!ddp__check_run(c, f, op, &call, 0)) return;
    ddp__check_compare(c, f, "the output", call.out, right.out, tokens * q, half, q, 0, q);
    ddp__check_compare(c, f, "the maxima", call.saved, right.saved, 2 * heads * tokens, 0, 2, 0, 1);
    ddp__check_compare(c, f, "the sums", call.saved, right.saved, 2 * heads * tokens, 0, 2, 1, 2);
    ddp__check_compare(c, f, "dq", call.grad_in[0], right.grad_in[0], tokens * row, half, row, 0, q);
    ddp__check_compare(c, f, "dk", call.grad_in[0], right.grad_in[0], tokens * row, half, row, q, q + kv * d);
    ddp__check_compare(c, f, "dv", call.grad_in[0], right.grad_in[0], tokens * row, half, row, q + kv * d,
                       row);
}
