/* Compares an operator of a device with the CPU's operator of the same name. Include after the operator's
 * .cuh. Guards surround every array; GPU arrays have the layout that the graph gives them.
 */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include "cuda/runtime.cuh"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}

typedef struct cuda_case {
    const char *op;
    int inputs;
    ddp_shape in[DDP_OP_INPUTS];
    ddp_dtype type[DDP_OP_INPUTS];
    double arg[DDP_OP_ARGS];
    ddp_shape tied; /* dims 0: not tied */
    int training;
    int low, high;      /* range of integer inputs */
    double within;      /* tolerance in float32, relative to the largest value; 0: 1e-5 */
    double within_half; /* tolerance in bfloat16; 0: 2^-7 */
    double within_tf32; /* tolerance in float32 with TF32 products, or 0 for same as within */
    int shift;          /* distance of every array from a 16-byte boundary, in elements */
} cuda_case;

/* A case with one input, which has as many dimensions as sizes are given. */
static inline cuda_case cuda_case_of(const char *op, long a, long b = 0, long c = 0, long d = 0)
{
    cuda_case k;

    memset(&k, 0, sizeof k);
    k.op = op;
    k.inputs = 1;
    k.training = 1;
    k.in[0].dims = d ? 4 : c ? 3 : b ? 2 : 1;
    k.in[0].dim[0] = a;
    k.in[0].dim[1] = b;
    k.in[0].dim[2] = c;
    k.in[0].dim[3] = d;
    return k;
}

enum { CUDA_GUARD = 64 }; /* bytes before and after an array */

/* One array on both sides: float or int32 on the CPU; T, float or int32 on the GPU, channels-last if it holds
 * images. */
typedef struct cuda_array {
    long n;
    ddp_shape shape; /* of activations; dims 0: does not matter */
    int half;        /* 1: bfloat16 on the device */
    int guard;       /* value of the guard bytes: NaN around arrays that the operator only reads, so that a
                      * read outside is detected */
    float *cpu;      /* int32_t for integer inputs */
    char *base;      /* device memory with the guards */
    size_t bytes;
} cuda_array;

typedef struct cuda_check {
    ddp__cuda *dev;
    const cuda_case *k;
    const ddp_op *cpu, *gpu;
    ddp_op_spec spec;
    ddp_rng rng;
    cuda_array in[DDP_OP_INPUTS], param[DDP_OP_PARAMS], buffer[DDP_OP_BUFFERS], out, saved, grad_out;
    cuda_array grad_in[DDP_OP_INPUTS], grad_param[DDP_OP_PARAMS];
} cuda_check;

typedef void cuda_family(ddp__cuda *dev);

/* Opens the device of a test and adds the family of operators. Skips the test without a GPU. */
static inline ddp__cuda *cuda_device(ddp_cuda_numbers numbers, cuda_family *family)
{
    ddp_error err;
    ddp__cuda *dev;
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 1) SKIP("no GPU");
    dev = ddp__cuda_open(0, numbers, NULL, &err);
    if (!dev) fail_msg("%s", err.msg);
    family(dev);
    return dev;
}

static inline void cuda_ok(ddp__cuda *dev)
{
    ddp_error err;

    (void)DDP__CUDA(dev, cudaStreamSynchronize(dev->stream));
    if (ddp__cuda_status(dev, &err)) fail_msg("%s", err.msg);
}

static inline void *cuda_at(const cuda_check *c, const cuda_array *a)
{
    return a->base ? a->base + CUDA_GUARD + (size_t)c->k->shift * (a->half ? 2 : 4) : NULL;
}

/* Index of element i on the device. */
static inline long cuda_place(const cuda_array *a, long i)
{
    const long *d = a->shape.dim, plane = a->shape.dims == 4 ? d[2] * d[3] : 0;

    return plane ? (i / plane / d[1] * plane + i % plane) * d[1] + i / plane % d[1] : i;
}

static inline void cuda_new(cuda_check *c, cuda_array *a, long n, int half, const ddp_shape *shape = NULL)
{
    a->n = n;
    if (shape) a->shape = *shape;
    a->half = half;
    a->guard = a == &c->grad_out || (a >= c->in && a < c->in + DDP_OP_INPUTS) ||
                       (a >= c->param && a < c->param + DDP_OP_PARAMS)
                   ? 0xff
                   : 0x5a;
    a->bytes = (size_t)n * (half ? 2 : 4);
    a->cpu = (float *)calloc((size_t)n + 1, sizeof *a->cpu);
    assert_non_null(a->cpu);
    assert_int_equal(cudaMalloc(&a->base, a->bytes + 2 * CUDA_GUARD + 16), cudaSuccess);
    assert_int_equal(cudaMemset(a->base, a->guard, a->bytes + 2 * CUDA_GUARD + 16), cudaSuccess);
}

/* Sends the CPU's numbers, which are exact in the device's type. */
static inline void cuda_send(cuda_check *c, const cuda_array *a)
{
    const size_t size = a->half ? 2 : 4;
    char *raw;
    long i;

    if (!a->base) return;
    raw = (char *)malloc(a->bytes + 4);
    assert_non_null(raw);
    for (i = 0; i < a->n; i++) {
        uint32_t u;
        memcpy(&u, &a->cpu[i], 4);
        if (a->half) u >>= 16;
        memcpy(raw + size * (size_t)cuda_place(a, i), &u, size);
    }
    assert_int_equal(cudaMemcpy(cuda_at(c, a), raw, a->bytes, cudaMemcpyHostToDevice), cudaSuccess);
    free(raw);
}

/* The device's numbers as floats. The caller frees them. Fails if a guard has changed. */
static inline float *cuda_get(cuda_check *c, const cuda_array *a, const char *name)
{
    const size_t all = a->bytes + 2 * CUDA_GUARD + 16;
    const size_t from = (size_t)((char *)cuda_at(c, a) - a->base);
    unsigned char *raw = (unsigned char *)malloc(all);
    float *f = (float *)malloc(((size_t)a->n + 1) * sizeof *f);
    size_t b;
    long i;

    assert_non_null(raw);
    assert_non_null(f);
    assert_int_equal(cudaMemcpy(raw, a->base, all, cudaMemcpyDeviceToHost), cudaSuccess);
    for (b = 0; b < all; b++)
        if ((b < from || b >= from + a->bytes) && raw[b] != a->guard)
            fail_msg("%s: written outside of %s, at byte %ld of %zu", c->k->op, name, (long)b - (long)from,
                     a->bytes);
    for (i = 0; i < a->n; i++) {
        uint32_t u = 0;
        memcpy(&u, raw + from + (a->half ? 2 : 4) * (size_t)cuda_place(a, i), a->half ? 2 : 4);
        if (a->half) u <<= 16;
        memcpy(&f[i], &u, 4);
    }
    free(raw);
    return f;
}

/* Uniform in -1.5..1.5 and at least 0.0078 from 0, where relu has no derivative; exact in bfloat16. */
static inline void cuda_fill(cuda_check *c, cuda_array *a)
{
    long i;

    for (i = 0; i < a->n; i++) {
        double v = floor((2 * ddp_rng_uniform(&c->rng) - 1) * 192) / 128;
        a->cpu[i] = (float)(v == 0 ? 0.5 : v);
    }
}

static inline void cuda_open(cuda_check *c, ddp__cuda *dev, const cuda_case *k)
{
    ddp_error err;
    int i, half;
    long j;

    memset(c, 0, sizeof *c);
    c->dev = dev;
    c->k = k;
    c->rng = ddp_rng_seed(7, 1);
    c->cpu = ddp__builtin_op(k->op);
    c->gpu = ddp__cuda_op(dev, k->op);
    assert_non_null(c->cpu);
    assert_non_null(c->gpu);
    c->spec.inputs = k->inputs;
    for (i = 0; i < k->inputs; i++) {
        c->spec.in[i] = k->in[i];
        c->spec.in_type[i] = k->type[i];
    }
    memcpy(c->spec.arg, k->arg, sizeof k->arg);
    if (k->tied.dims) {
        c->spec.params = 1;
        c->spec.param[0].shape = k->tied;
    }
    if (c->gpu->shape(&c->spec, &err)) fail_msg("%s", err.msg);
    if (ddp__cuda_want_scratch(dev, ddp__cuda_scratch(dev, c->gpu, &c->spec), &err)) fail_msg("%s", err.msg);
    half = ddp__cuda_half(dev, &c->spec.out);
    cuda_new(c, &c->out, ddp_shape_count(&c->spec.out), half, &c->spec.out);
    cuda_new(c, &c->grad_out, ddp_shape_count(&c->spec.out), half, &c->spec.out);
    cuda_fill(c, &c->grad_out);
    if (c->spec.saved) cuda_new(c, &c->saved, (long)c->spec.saved, 0);
    for (i = 0; i < k->inputs; i++) {
        const long n = ddp_shape_count(&k->in[i]);
        cuda_new(c, &c->in[i], n, k->type[i] == DDP_F32 && ddp__cuda_half(dev, &k->in[i]), &k->in[i]);
        if (k->type[i] == DDP_F32) {
            cuda_fill(c, &c->in[i]);
            cuda_new(c, &c->grad_in[i], n, c->in[i].half, &k->in[i]);
            cuda_fill(c, &c->grad_in[i]);
            continue;
        }
        for (j = 0; j < n; j++)
            ((int32_t *)c->in[i].cpu)[j] =
                k->low + (int32_t)ddp_rng_below(&c->rng, (uint64_t)(k->high - k->low + 1));
    }
    for (i = 0; i < c->spec.params; i++) {
        const long n = ddp_shape_count(&c->spec.param[i].shape);
        cuda_new(c, &c->param[i], n, dev->half);
        cuda_fill(c, &c->param[i]);
        cuda_new(c, &c->grad_param[i], n, 0);
        cuda_fill(c, &c->grad_param[i]);
    }
    for (i = 0; i < c->spec.buffers; i++) { /* positive, as a variance is */
        cuda_new(c, &c->buffer[i], ddp_shape_count(&c->spec.buffer[i].shape), 0);
        cuda_fill(c, &c->buffer[i]);
        for (j = 0; j < c->buffer[i].n; j++) c->buffer[i].cpu[j] += 2;
    }
}

static inline void cuda_each(cuda_check *c, void (*fn)(cuda_check *c, cuda_array *a))
{
    int i;

    fn(c, &c->out);
    fn(c, &c->grad_out);
    fn(c, &c->saved);
    for (i = 0; i < DDP_OP_INPUTS; i++) {
        fn(c, &c->in[i]);
        fn(c, &c->grad_in[i]);
    }
    for (i = 0; i < DDP_OP_PARAMS; i++) {
        fn(c, &c->param[i]);
        fn(c, &c->grad_param[i]);
    }
    for (i = 0; i < DDP_OP_BUFFERS; i++) fn(c, &c->buffer[i]);
}

static inline void cuda_free_one(cuda_check *c, cuda_array *a)
{
    (void)c;
    free(a->cpu);
    (void)cudaFree(a->base);
}

static inline void cuda_send_one(cuda_check *c, cuda_array *a)
{
    if (a != &c->out && a != &c->saved) cuda_send(c, a); /* out and saved start with garbage */
}

static inline void cuda_shut(cuda_check *c) { cuda_each(c, cuda_free_one); }

/* Resources of the CPU's operators: a pool with one thread and its scratch. */
static inline ddp__pool *cuda_rooms(void)
{
    static ddp__pool *pool;

    if (!pool) pool = ddp__pool_open(1);
    assert_non_null(pool);
    assert_true(ddp__pool_rooms(pool));
    return pool;
}

/* Fills the call of one side. */
static inline void cuda_call(cuda_check *c, int gpu, int add, ddp_op_call *call)
{
    int i;

#define CUDA_SIDE(a) ((a)->base ? gpu ? cuda_at(c, (a)) : (void *)(a)->cpu : NULL)
    memset(call, 0, sizeof *call);
    call->spec = &c->spec;
    call->out = CUDA_SIDE(&c->out);
    call->saved = CUDA_SIDE(&c->saved);
    call->grad_out = CUDA_SIDE(&c->grad_out);
    for (i = 0; i < DDP_OP_INPUTS; i++) {
        call->in[i] = CUDA_SIDE(&c->in[i]);
        call->grad_in[i] = CUDA_SIDE(&c->grad_in[i]);
        call->add_in[i] = add;
    }
    for (i = 0; i < DDP_OP_PARAMS; i++) {
        call->param[i] = CUDA_SIDE(&c->param[i]);
        call->grad_param[i] = CUDA_SIDE(&c->grad_param[i]);
    }
    for (i = 0; i < DDP_OP_BUFFERS; i++) call->buffer[i] = CUDA_SIDE(&c->buffer[i]);
#undef CUDA_SIDE
    call->pool = gpu ? (void *)c->dev : (void *)cuda_rooms();
    call->training = c->k->training;
    call->random = 12345;
}

/* Fails if the largest difference, relative to the largest value, exceeds the tolerance, or if one side is
 * NaN. */
static inline void cuda_compare(cuda_check *c, const cuda_array *a, const char *name, int number)
{
    const double want = a->half ? c->k->within_half > 0 ? c->k->within_half : 0.0078125
                        : c->dev->tf32 && c->k->within_tf32 > 0 ? c->k->within_tf32
                        : c->k->within > 0                      ? c->k->within
                                                                : 1e-5;
    /* float32 sums of terms that were rounded to bfloat16 */
    const double bound =
        c->dev->half && !a->half ? c->k->within_half > 0 ? c->k->within_half : 0.0078125 : want;
    float *gpu;
    double top = 0, worst = 0;
    long i, at = 0;

    if (!a->base) return;
    gpu = cuda_get(c, a, name);
    for (i = 0; i < a->n; i++) {
        const double e = fabs((double)gpu[i] - (double)a->cpu[i]);
        if (worst == worst && !(e <= worst)) { /* NaN counts as the largest difference */
            worst = e;
            at = i;
        }
        if (fabs((double)a->cpu[i]) > top) top = fabs((double)a->cpu[i]);
    }
    if (top > 0) worst /= top;
    if (!(worst <= bound))
        fail_msg("%s: %s %d differs by %g of its largest value at element %ld of %ld: %.9g, CPU %.9g",
                 c->k->op, name, number, worst, at, a->n, (double)gpu[at], (double)a->cpu[at]);
    free(gpu);
}

/* Runs forward and backward on both sides with the same numbers and compares every array. add: gradients add
 * to existing numbers. */
static inline void cuda_check_run(ddp__cuda *dev, const cuda_case *k, int add)
{
    ddp_op_call cpu, gpu;
    cuda_check c;
    int i;

    cuda_open(&c, dev, k);
    cuda_each(&c, cuda_send_one);
    cuda_call(&c, 0, add, &cpu);
    cuda_call(&c, 1, add, &gpu);
    c.cpu->forward(&cpu);
    c.gpu->forward(&gpu);
    cuda_ok(dev);
    cuda_compare(&c, &c.out, "out", 0);
    if (c.cpu->backward) {
        c.cpu->backward(&cpu);
        c.gpu->backward(&gpu);
        cuda_ok(dev);
    }
    for (i = 0; i < DDP_OP_INPUTS; i++) cuda_compare(&c, &c.grad_in[i], "gradient of input", i);
    for (i = 0; i < DDP_OP_PARAMS; i++) cuda_compare(&c, &c.grad_param[i], "gradient of parameter", i);
    for (i = 0; i < DDP_OP_BUFFERS; i++) cuda_compare(&c, &c.buffer[i], "buffer", i);
    if (c.saved.base) free(cuda_get(&c, &c.saved, "saved")); /* checks its guards */
    cuda_shut(&c);
}

/* Runs a case in float32 and bfloat16, overwriting and adding, on arrays of any alignment. */
static inline void cuda_check_case(const cuda_case *k, cuda_family *family)
{
    static const ddp_cuda_numbers numbers[] = {DDP_CUDA_F32, DDP_CUDA_BF16};
    cuda_case at;
    int m, add;

    for (m = 0; m < 2; m++) {
        ddp__cuda *dev = cuda_device(numbers[m], family);
        at = *k;
        for (add = 0; add < 2; add++) cuda_check_run(dev, &at, add);
        at.shift = 1;
        cuda_check_run(dev, &at, 0);
        ddp__cuda_close(dev);
    }
}

#endif /* CUDA_CHECK_H */
