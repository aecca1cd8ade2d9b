/* Matrix products through cuBLASLt. Sums are float32 in every mode. The descriptors and the algorithm of a
 * product are cached per shape: only the first step runs the heuristic of cuBLASLt. */
#pragma once

#include "cuda/runtime.cuh"

/* c (m x n) = or += op(a) op(b), row-major. op(a) is m x k and op(b) is k x n. turned means that the array is
 * stored transposed (a as k x m, b as n x k). With count > 1, consecutive matrices are *_step elements
 * apart. */
typedef struct ddp__cuda_product_shape {
    long m, n, k, count, a_step, b_step, c_step;
    int a_turned, b_turned;
    int half, half_out; /* type of a and b, and of c: 1 is bfloat16 */
} ddp__cuda_product_shape;

typedef struct ddp__cuda_product {
    ddp__cuda_product_shape shape;
    const void *a, *b;
    void *c;
    int add;
    const void *bias; /* n elements of c's type, added to every row, or NULL */
    int gelu;         /* 1: c = gelu(product + bias), which needs a bias and add 0. -1: c = product *
                       * gelu'(before), which needs add 0. Not every version of the library supports it for
                       * every type and shape */
    void *before;     /* with gelu: the input of gelu, in rows of a multiple of 16 bytes, or NULL if not
                       * wanted */
    void *sums;       /* receives the sums of the rows of op(a), m elements of c's type. NULL if not wanted.
                         Must be NULL with bias or count > 1. As rarely supported as gelu */
} ddp__cuda_product;

/* Cache key of a product. The alignment of the pointers is part of the key: fast algorithms need 16 bytes,
 * and the choice of an algorithm may depend on the alignment of `before`. */
typedef struct ddp__cuda_product_key {
    ddp__cuda_product_shape shape;
    int epilogue, a_align, b_align, c_align, d_align; /* d: alignment of c, and of bias or sums */
    int before_align;
} ddp__cuda_product_key;

enum { DDP__CUDA_ALGORITHMS = 4 }; /* that a product may try */

typedef struct ddp__cuda_product_plan {
    ddp__cuda_product_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulHeuristicResult_t algorithm[DDP__CUDA_ALGORITHMS]; /* the fastest one first */
    int algorithms, at; /* `at` is in use. The library has rejected those before it. */
    int ran;            /* 1 if it has run, so it is loaded */
    int none;           /* 1 if the library does not support this product with gelu or sums */
    struct ddp__cuda_product_plan *next;
} ddp__cuda_product_plan;

static int ddp__cuda_alignment(const void *p)
{
    const uintptr_t at = (uintptr_t)p;
    int n = 256;
    while (at % (uintptr_t)n) n /= 2;
    return n;
}

static ddp__cuda_product_key ddp__cuda_product_key_of(const ddp__cuda_product *p)
{
    const int vector = ddp__cuda_alignment(p->sums ? p->sums : p->bias);
    ddp__cuda_product_key k;

    memset(&k, 0, sizeof k); /* keys are compared as bytes, padding included */
    memcpy(&k.shape, &p->shape, sizeof k.shape);
    k.epilogue = p->gelu < 0            ? CUBLASLT_EPILOGUE_DGELU
                 : p->gelu && p->before ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                 : p->gelu              ? CUBLASLT_EPILOGUE_GELU_BIAS
                 : p->sums              ? CUBLASLT_EPILOGUE_BGRADB
                 : p->bias              ? CUBLASLT_EPILOGUE_BIAS
                                        : CUBLASLT_EPILOGUE_DEFAULT;
    k.a_align = ddp__cuda_alignment(p->a);
    k.b_align = ddp__cuda_alignment(p->b);
    k.c_align = k.d_align = ddp__cuda_alignment(p->c);
    if (vector < k.d_align) k.d_align = vector;
    k.before_align = ddp__cuda_alignment(p->before);
    return k;
}

/* Describes a product of one pair of matrices. half: the type of a, b and c, until the caller changes
 * shape.half_out. */
static ddp__cuda_product ddp__cuda_product_of(long m, long n, long k, const void *a, int a_turned,
                                              const void *b, int b_turned, void *c, int half)
{
    const ddp__cuda_product_shape s = {m, n, k, 1, 0, 0, 0, a_turned, b_turned, half, half};
    return {s, a, b, c, 0, NULL, 0, NULL, NULL};
}

/* Return 1 after a failure, as DDP__BLAS does. */
static int ddp__cuda_layout(ddp__cuda *dev, cublasLtMatrixLayout_t *l, int narrow, long rows, long cols,
                            long count, long step)
{
    const int32_t batch = (int32_t)count;
    const int64_t offset = step;

    if (DDP__BLAS(dev, cublasLtMatrixLayoutCreate(l, narrow ? CUDA_R_16BF : CUDA_R_32F, (uint64_t)rows,
                                                  (uint64_t)cols, rows)))
        return 1;
    return count > 1 &&
           (DDP__BLAS(dev, cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                            sizeof batch)) ||
            DDP__BLAS(dev, cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                            &offset, sizeof offset)));
}

static int ddp__cuda_describe(ddp__cuda *dev, ddp__cuda_product_plan *p, cublasLtMatmulDescAttributes_t what,
                              const void *value, size_t bytes)
{
    return DDP__BLAS(dev, cublasLtMatmulDescSetAttribute(p->product, what, value, bytes));
}

/* cuBLASLt is column-major, so it computes c^T = op(b)^T op(a)^T, which has the same memory layout. Its A is
 * our b, and sums over the rows of op(a) are sums over k of its B. */
static int ddp__cuda_product_describe(ddp__cuda *dev, ddp__cuda_product_plan *p)
{
    const ddp__cuda_product_shape *s = &p->key.shape;
    const int32_t ta = s->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, tb = s->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogue = (uint32_t)p->key.epilogue;
    const int64_t before_row = s->n;

    return DDP__BLAS(dev, cublasLtMatmulDescCreate(&p->product,
                                                   dev->tf32 && !s->half ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                         : CUBLAS_COMPUTE_32F,
                                                   CUDA_R_32F)) ||
           ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta) ||
           ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb) ||
           ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ||
           ((epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU) &&
            ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &before_row,
                               sizeof before_row)) ||
           ddp__cuda_layout(dev, &p->a, s->half, s->b_turned ? s->k : s->n, s->b_turned ? s->n : s->k,
                            s->count, s->b_step) ||
           ddp__cuda_layout(dev, &p->b, s->half, s->a_turned ? s->m : s->k, s->a_turned ? s->k : s->m,
                            s->count, s->a_step) ||
           ddp__cuda_layout(dev, &p->c, s->half_out, s->n, s->m, s->count, s->c_step);
}

/* Sets the pointers to bias, sums and the input of gelu for this call. The heuristic also reads them. */
static int ddp__cuda_product_point(ddp__cuda *dev, ddp__cuda_product_plan *p, const ddp__cuda_product *q)
{
    const void *vector = q->sums ? q->sums : q->bias;
    return (vector &&
            ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector)) ||
           (q->before && ddp__cuda_describe(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &q->before,
                                            sizeof q->before));
}

static int ddp__cuda_prefer(ddp__cuda *dev, cublasLtMatmulPreference_t pref,
                            cublasLtMatmulPreferenceAttributes_t what, int number)
{
    const uint32_t value = (uint32_t)number;
    return DDP__BLAS(dev, cublasLtMatmulPreferenceSetAttribute(pref, what, &value, sizeof value));
}

/* 1 if the product can be computed in another way. */
static int ddp__cuda_product_is_fused(const ddp__cuda_product_plan *p)
{
    return p->key.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->key.epilogue != CUBLASLT_EPILOGUE_BIAS;
}

static int ddp__cuda_product_choose(ddp__cuda *dev, ddp__cuda_product_plan *p)
{
    const ddp__cuda_product_key *k = &p->key;
    const ddp__cuda_product_shape *s = &k->shape;
    cublasLtMatmulPreference_t pref = NULL;
    const size_t workspace = dev->workspace_bytes;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    int failed;

    failed =
        DDP__BLAS(dev, cublasLtMatmulPreferenceCreate(&pref)) ||
        DDP__BLAS(dev, cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                            &workspace, sizeof workspace)) ||
        /* partial sums of a split k are added as floats too, not as bfloat16 */
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                         CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, k->b_align) ||
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, k->a_align) ||
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, k->c_align) ||
        ddp__cuda_prefer(dev, pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, k->d_align);
    if (!failed)
        status = cublasLtMatmulAlgoGetHeuristic(dev->blas_lt, p->product, p->a, p->b, p->c, p->c, pref,
                                                DDP__CUDA_ALGORITHMS, p->algorithm, &p->algorithms);
    if (pref) (void)cublasLtMatmulPreferenceDestroy(pref);
    p->none = !failed && (status != CUBLAS_STATUS_SUCCESS || p->algorithms < 1);
    if (p->none && !ddp__cuda_product_is_fused(p)) {
        failed = 1;
        ddp__cuda_fail(dev, DDP_UNSUPPORTED,
                       "GPU %d: cuBLASLt has no algorithm for %ld x %ld by %ld x %ld in %s; use sizes that "
                       "are multiples of 8",
                       dev->device, s->m, s->k, s->k, s->n, s->half ? "bfloat16" : "float32");
    }
    return failed;
}

static void ddp__cuda_product_drop(ddp__cuda_product_plan *p)
{
    if (p->a) (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->c) (void)cublasLtMatrixLayoutDestroy(p->c);
    if (p->product) (void)cublasLtMatmulDescDestroy(p->product);
    DDP_FREE(p);
}

/* ddp__cuda_close calls it through a pointer in the device. */
static void ddp__cuda_products_free(ddp__cuda *dev)
{
    ddp__cuda_product_plan *p = (ddp__cuda_product_plan *)dev->products, *next;
    for (; p; p = next) {
        next = p->next;
        ddp__cuda_product_drop(p);
    }
    dev->products = NULL;
}

static ddp__cuda_product_plan *ddp__cuda_product_plan_of(ddp__cuda *dev, const ddp__cuda_product *q)
{
    const ddp__cuda_product_key key = ddp__cuda_product_key_of(q);
    ddp__cuda_product_plan *p, *other;
    float waves; /* of an algorithm, on this device */

    for (p = (ddp__cuda_product_plan *)dev->products; p; p = p->next)
        if (!memcmp(&p->key, &key, sizeof key)) return p;
    p = (ddp__cuda_product_plan *)ddp__calloc(1, sizeof *p);
    if (!p) {
        ddp__cuda_fail(dev, DDP_MEMORY, "out of memory for the plan of a matrix product");
        return NULL;
    }
    memcpy(&p->key, &key, sizeof key);
    if (ddp__cuda_product_describe(dev, p) || ddp__cuda_product_point(dev, p, q) ||
        ddp__cuda_product_choose(dev, p)) {
        ddp__cuda_product_drop(p);
        return NULL;
    }
    if (q->sums) { /* no fused sums if they rule out split-k, the algorithm that fills the device when k is
                    * long */
        ddp__cuda_product plain = *q;
        plain.sums = NULL;
        other = ddp__cuda_product_plan_of(dev, &plain);
        waves = other ? other->algorithm->wavesCount : 0;
        p->none |= p->algorithm->wavesCount < 0.75f * (waves < 1 ? waves : 1);
    }
    p->next = (ddp__cuda_product_plan *)dev->products;
    dev->products = p;
    dev->products_free = ddp__cuda_products_free;
    return p;
}

/* The bit of dev->forms that excludes this product, or 0. */
static inline unsigned ddp__cuda_epilogue_bit(const ddp__cuda_product *q)
{
    return q->gelu > 0 ? DDP__PLAIN_GELU : q->gelu < 0 ? DDP__PLAIN_GELU_GRAD : q->sums ? DDP__PLAIN_SUMS : 0;
}

/* Queues the product with the algorithm in use. */
static cublasStatus_t ddp__cuda_product_queue(ddp__cuda *dev, const ddp__cuda_product_plan *p,
                                              const ddp__cuda_product *q)
{
    const float one = 1, add = q->add ? 1.0f : 0.0f;
    const cublasLtMatmulHeuristicResult_t *a = &p->algorithm[p->at];

    ddp__cuda_before(dev, !p->ran);
    return cublasLtMatmul(dev->blas_lt, p->product, &one, q->b, p->a, q->a, p->b, &add, q->c, p->c, q->c,
                          p->c, &a->algo, dev->workspace, a->workspaceSize, dev->stream);
}

/* Queues the product on the device's stream. A failure is recorded in the device, and later calls do not
 * compute. Returns 0 without queueing anything if the library does not support the product with gelu or
 * sums. It may reject an algorithm that it has proposed: a product without gelu and sums then tries the next
 * one. */
static DDP__UNUSED int ddp__cuda_multiply(ddp__cuda *dev, const ddp__cuda_product *q)
{
    ddp__cuda_product_plan *p;
    cublasStatus_t s;

    if (ddp__atomic_load(&dev->failed)) return 1;
    if (dev->forms & ddp__cuda_epilogue_bit(q)) return 0;
    p = ddp__cuda_product_plan_of(dev, q);
    if (p && p->none) return 0;
    if (!p || ddp__cuda_product_point(dev, p, q)) return 1;
    s = ddp__cuda_product_queue(dev, p, q);
    while (s != CUBLAS_STATUS_SUCCESS && !ddp__cuda_product_is_fused(p) && p->at + 1 < p->algorithms) {
        (void)cudaGetLastError();
        p->at++;
        s = ddp__cuda_product_queue(dev, p, q);
    }
    p->ran = s == CUBLAS_STATUS_SUCCESS;
    if (p->ran) return 1;
    if (!ddp__cuda_product_is_fused(p)) return ddp__blas_note(dev, s, "cublasLtMatmul");
    (void)cudaGetLastError();
    p->none = 1;
    if (dev->rejected++ == 0)
        ddp__cuda_say(
            dev,
            "GPU %d: cuBLASLt rejected its own algorithm for a product of %ld x %ld by %ld x %ld with "
            "epilogue %d (%s); such products run unfused",
            dev->device, q->shape.m, q->shape.k, q->shape.k, q->shape.n, p->key.epilogue,
            cublasGetStatusString(s));
    return 0;
}
