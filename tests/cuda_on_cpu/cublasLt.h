/* Stand-in for cuBLASLt: D = alpha op(A) op(B) + beta C with the bias and GELU epilogues and the bias
 * gradient of B, by plain loops over column-major matrices. Calls that the real library rejects or would
 * misread end the program with an error: wrong leading dimensions, mismatched shapes or types, a missing
 * bias, an algorithm of another product, addresses with less alignment than stated. */
#ifndef DDP_ON_CPU_CUBLASLT_H
#define DDP_ON_CPU_CUBLASLT_H

#include <cublas_v2.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE = 22,
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26
} cublasLtMatmulDescAttributes_t;

typedef enum {
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
} cublasLtMatrixLayoutAttribute_t;

typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
} cublasLtMatmulPreferenceAttributes_t;

typedef enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU_BIAS = 36,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164,
    CUBLASLT_EPILOGUE_DGELU = 192,
    CUBLASLT_EPILOGUE_BGRADB = 512
} cublasLtEpilogue_t;

typedef enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_MASK = 7
} cublasLtReductionScheme_t;

struct cublasLtContext {
    int open;
};
typedef struct cublasLtContext *cublasLtHandle_t;

struct cublasLtDescOnCpu {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t transa, transb;
    uint32_t epilogue;
    void *bias, *aux;
    int32_t bias_type, aux_type;
    int64_t aux_ld;
};
typedef struct cublasLtDescOnCpu *cublasLtMatmulDesc_t;

struct cublasLtLayoutOnCpu {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t batch;
};
typedef struct cublasLtLayoutOnCpu *cublasLtMatrixLayout_t;

struct cublasLtPreferenceOnCpu {
    size_t workspace;
    uint32_t reduction;
    uint32_t alignment[4]; /* of A B C D */
};
typedef struct cublasLtPreferenceOnCpu *cublasLtMatmulPreference_t;

/* The properties that the heuristic saw. A product that differs in any of them needs a new algorithm. */
typedef struct {
    uint64_t data[9];
} cublasLtMatmulAlgo_t;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

inline bool cublasLtHasVector(const cublasLtDescOnCpu *d)
{
    return d->epilogue != CUBLASLT_EPILOGUE_DEFAULT && d->epilogue != CUBLASLT_EPILOGUE_DGELU;
}

inline bool cublasLtHasAux(const cublasLtDescOnCpu *d)
{
    return d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || d->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

inline void cublasLtRefuse(const char *why, long long value)
{
    fprintf(stderr, "cublasLt stand-in: %s (%lld)\n", why, value);
    abort();
}

inline size_t cublasLtBytes(int type)
{
    if (type != CUDA_R_32F && type != CUDA_R_16BF) cublasLtRefuse("unknown number type", type);
    return type == CUDA_R_32F ? 4 : 2;
}

inline float cublasLtGet(const void *p, int64_t i, int type)
{
    uint32_t bits = 0;
    uint16_t half = 0;
    float v = 0;

    if (cublasLtBytes(type) == 4) return static_cast<const float *>(p)[i];
    memcpy(&half, static_cast<const char *>(p) + 2 * i, 2);
    bits = static_cast<uint32_t>(half) << 16;
    memcpy(&v, &bits, 4);
    return v;
}

/* Rounds to nearest, ties to even. */
inline void cublasLtPut(void *p, int64_t i, int type, float v)
{
    uint32_t bits = 0;
    uint16_t half = 0;

    if (cublasLtBytes(type) == 4) {
        static_cast<float *>(p)[i] = v;
        return;
    }
    memcpy(&bits, &v, 4);
    half = v != v ? static_cast<uint16_t>(0x7fff)
                  : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy(static_cast<char *>(p) + 2 * i, &half, 2);
}

inline void cublasLtAligned(const char *what, const void *p, uint64_t promised)
{
    if (promised && reinterpret_cast<uintptr_t>(p) % promised)
        cublasLtRefuse(what, static_cast<long long>(promised));
}

/* The largest power of two, up to 256, that divides the address. */
inline uint32_t cublasLtAlignment(const void *p)
{
    uint32_t n = 256;
    while (reinterpret_cast<uintptr_t>(p) % n) n /= 2;
    return n;
}

/* For tests, or 0 for none. Unknown: the epilogue for which the heuristic finds no algorithm. Rejected: the
 * epilogue whose algorithms cublasLtMatmul rejects, although the heuristic proposes them. Rejects: the number
 * of algorithms of any product, from the best one on, that it rejects. Idle: the epilogue whose algorithms
 * leave most of the device idle (UINT32_MAX: all do). */
inline uint32_t &cublasLtUnknown()
{
    static uint32_t epilogue = 0;
    return epilogue;
}
inline uint32_t &cublasLtRejected()
{
    static uint32_t epilogue = 0;
    return epilogue;
}
inline int &cublasLtRejects()
{
    static int algorithms = 0;
    return algorithms;
}
inline uint32_t &cublasLtIdle()
{
    static uint32_t epilogue = 0;
    return epilogue;
}

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = new cublasLtContext();
    (*h)->open = 1;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    delete h;
    return h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                               cudaDataType scale)
{
    *d = new cublasLtDescOnCpu();
    (*d)->compute = compute;
    (*d)->scale = scale;
    (*d)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    (*d)->bias_type = (*d)->aux_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

inline void cublasLtTake(void *to, size_t want, const void *from, size_t bytes)
{
    if (want != bytes) cublasLtRefuse("an attribute of the wrong size", static_cast<long long>(bytes));
    memcpy(to, from, bytes);
}

inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                                     const void *from, size_t bytes)
{
    switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        cublasLtTake(&d->transa, sizeof d->transa, from, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        cublasLtTake(&d->transb, sizeof d->transb, from, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        cublasLtTake(&d->epilogue, sizeof d->epilogue, from, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        cublasLtTake(&d->bias, sizeof d->bias, from, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        cublasLtTake(&d->aux, sizeof d->aux, from, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        cublasLtTake(&d->aux_ld, sizeof d->aux_ld, from, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        cublasLtTake(&d->aux_type, sizeof d->aux_type, from, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        cublasLtTake(&d->bias_type, sizeof d->bias_type, from, bytes);
        break;
    }
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows,
                                                 uint64_t cols, int64_t ld)
{
    if (ld < static_cast<int64_t>(rows)) cublasLtRefuse("columns overlap: leading dimension", ld);
    *l = new cublasLtLayoutOnCpu();
    (*l)->type = type;
    (*l)->rows = rows;
    (*l)->cols = cols;
    (*l)->ld = ld;
    (*l)->batch = 1;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                       cublasLtMatrixLayoutAttribute_t a, const void *from,
                                                       size_t bytes)
{
    if (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        cublasLtTake(&l->batch, sizeof l->batch, from, bytes);
    else
        cublasLtTake(&l->stride, sizeof l->stride, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new cublasLtPreferenceOnCpu();
    (*p)->reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (int i = 0; i < 4; i++) (*p)->alignment[i] = 256;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                           cublasLtMatmulPreferenceAttributes_t a,
                                                           const void *from, size_t bytes)
{
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        cublasLtTake(&p->workspace, sizeof p->workspace, from, bytes);
    else if (a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        cublasLtTake(&p->reduction, sizeof p->reduction, from, bytes);
    else
        cublasLtTake(&p->alignment[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], sizeof p->alignment[0],
                     from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* The properties of a product that its algorithm was made for. */
inline cublasLtMatmulAlgo_t cublasLtAlgoOnCpu(const cublasLtDescOnCpu *d, const cublasLtLayoutOnCpu *a,
                                              const cublasLtLayoutOnCpu *b, const cublasLtLayoutOnCpu *c,
                                              const uint32_t *alignment, uint32_t aux, uint32_t rank)
{
    cublasLtMatmulAlgo_t g;

    g.data[0] = a->rows << 32 | a->cols;
    g.data[1] = b->rows << 32 | b->cols;
    g.data[2] = c->rows << 32 | c->cols;
    g.data[3] = static_cast<uint64_t>(a->ld) << 32 | static_cast<uint64_t>(b->ld);
    g.data[4] = static_cast<uint64_t>(c->ld) << 32 | d->epilogue;
    g.data[5] = static_cast<uint64_t>(d->transa * 2 + d->transb) << 32 |
                static_cast<uint64_t>(a->type * 256 + c->type);
    g.data[6] = static_cast<uint64_t>(alignment[0]) << 32 | alignment[1];
    g.data[7] = static_cast<uint64_t>(alignment[2]) << 32 | alignment[3];
    g.data[8] = static_cast<uint64_t>(aux) << 32 | rank;
    return g;
}

/* A value that identifies an algorithm among the modules that are loaded at their first launch. */
inline const void *cublasLtModule(const cublasLtMatmulAlgo_t &algo)
{
    uint64_t h = 14695981039346656037u;

    for (uint64_t v : algo.data) h = (h ^ v) * 1099511628211u;
    return reinterpret_cast<const void *>(static_cast<uintptr_t>(h));
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                                     cublasLtMatmulPreference_t pref, int want,
                                                     cublasLtMatmulHeuristicResult_t *result, int *found)
{
    if (!h || !h->open) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (want < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (c->rows != out->rows || c->ld != out->ld || c->type != out->type)
        cublasLtRefuse("C and D differ: rows", static_cast<long long>(c->rows));
    if (out->type != CUDA_R_32F && pref->reduction & ~CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        cublasLtRefuse("parts of a sum may be added as bfloat16: reduction schemes", pref->reduction);
    if (cublasLtHasVector(d))
        cublasLtAligned("the bias is less aligned than stated for D", d->bias, pref->alignment[3]);
    memset(result, 0, static_cast<size_t>(want) * sizeof *result);
    *found = 0;
    if (d->epilogue == cublasLtUnknown()) return CUBLAS_STATUS_NOT_SUPPORTED;
    *found = want < 3 ? want : 3;
    for (int i = 0; i < *found; i++) {
        result[i].wavesCount = d->epilogue == cublasLtIdle() || cublasLtIdle() == UINT32_MAX ? 0.25f : 1.5f;
        result[i].algo =
            cublasLtAlgoOnCpu(d, a, b, c, pref->alignment, cublasLtHasAux(d) ? cublasLtAlignment(d->aux) : 0,
                              static_cast<uint32_t>(i));
        result[i].workspaceSize = pref->workspace / 2;
    }
    return CUBLAS_STATUS_SUCCESS;
}

inline float cublasLtGelu(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

inline float cublasLtGeluSlope(float x)
{
    const float k = 0.7978845608028654f, t = tanhf(k * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * k * (1 + 3 * 0.044715f * x * x);
}

inline void cublasLtEpilogueOnCpu(const cublasLtDescOnCpu *d, const cublasLtLayoutOnCpu *out, void *p,
                                  int64_t i, int64_t j, int64_t at, float v)
{
    const int aux_type = d->aux_type < 0 ? out->type : d->aux_type;

    if (cublasLtHasVector(d) && d->epilogue != CUBLASLT_EPILOGUE_BGRADB) {
        if (!d->bias) cublasLtRefuse("a bias epilogue without a bias", d->epilogue);
        v += cublasLtGet(d->bias, i, d->bias_type < 0 ? out->type : d->bias_type);
    }
    if (d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) cublasLtPut(d->aux, j * d->aux_ld + i, aux_type, v);
    if (d->epilogue == CUBLASLT_EPILOGUE_DGELU)
        v *= cublasLtGeluSlope(cublasLtGet(d->aux, j * d->aux_ld + i, aux_type));
    if (d->epilogue == CUBLASLT_EPILOGUE_GELU_BIAS || d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
        v = cublasLtGelu(v);
    if (d->epilogue == cuda_on_cpu::injected().epilogue) v += 0.5f;
    cublasLtPut(p, at, out->type, v);
}

/* Overwrites the vector with the sums of op(B)'s columns, whatever alpha and beta are. */
inline void cublasLtBiasGradientOnCpu(const cublasLtDescOnCpu &d, const void *B, const cublasLtLayoutOnCpu &b,
                                      int type, int64_t n, int64_t k)
{
    for (int64_t j = 0; j < n; j++) {
        double sum = d.epilogue == cuda_on_cpu::injected().epilogue ? 0.5 : 0;
        for (int64_t p = 0; p < k; p++)
            sum += static_cast<double>(cublasLtGet(B, d.transb ? p * b.ld + j : j * b.ld + p, b.type));
        cublasLtPut(d.bias, j, type, static_cast<float>(sum));
    }
}

inline void cublasLtMultiplyOnCpu(const cublasLtDescOnCpu &d, float by, const void *A,
                                  const cublasLtLayoutOnCpu &a, const void *B, const cublasLtLayoutOnCpu &b,
                                  float add, const void *C, const cublasLtLayoutOnCpu &c, void *D,
                                  const cublasLtLayoutOnCpu &out, int64_t m, int64_t n, int64_t k)
{
    for (int64_t s = 0; s < a.batch; s++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                const int64_t at = s * out.stride + j * out.ld + i;
                double sum = 0;
                float v = 0;
                for (int64_t p = 0; p < k; p++) {
                    const int64_t x = s * a.stride + (d.transa ? i * a.ld + p : p * a.ld + i);
                    const int64_t y = s * b.stride + (d.transb ? p * b.ld + j : j * b.ld + p);
                    sum += static_cast<double>(cublasLtGet(A, x, a.type)) *
                           static_cast<double>(cublasLtGet(B, y, b.type));
                }
                v = by * static_cast<float>(sum);
                if (add != 0) v += add * cublasLtGet(C, s * c.stride + j * c.ld + i, c.type);
                cublasLtEpilogueOnCpu(&d, &out, D, i, j, at, v);
            }
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                                     const void *A, cublasLtMatrixLayout_t a, const void *B,
                                     cublasLtMatrixLayout_t b, const void *beta, const void *C,
                                     cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t out,
                                     const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                                     cudaStream_t stream)
{
    const int64_t m = static_cast<int64_t>(out->rows), n = static_cast<int64_t>(out->cols);
    const int64_t k = static_cast<int64_t>(d->transa ? a->rows : a->cols);
    const float by = *static_cast<const float *>(alpha), add = *static_cast<const float *>(beta);
    uint32_t alignment[4];
    cublasLtMatmulAlgo_t want;

    if (!h || !h->open) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (static_cast<int64_t>(d->transa ? a->cols : a->rows) != m ||
        static_cast<int64_t>(d->transb ? b->rows : b->cols) != n ||
        static_cast<int64_t>(d->transb ? b->cols : b->rows) != k || c->rows != out->rows ||
        c->cols != out->cols)
        cublasLtRefuse("shapes of a product do not fit: inner dimension", k);
    if (a->type != b->type || c->type != out->type || d->scale != CUDA_R_32F ||
        (a->type == CUDA_R_32F && out->type != CUDA_R_32F))
        cublasLtRefuse("unsupported combination of types", a->type * 100 + out->type);
    if (d->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R_32F)
        cublasLtRefuse("TF32 with inputs that are not floats", a->type);
    if (a->batch != b->batch || a->batch != c->batch || a->batch != out->batch)
        cublasLtRefuse("different numbers of matrices", a->batch);
    if (bytes && !workspace) cublasLtRefuse("the workspace is NULL", static_cast<long long>(bytes));
    if (!algo) cublasLtRefuse("no algorithm", 0);
    alignment[0] = static_cast<uint32_t>(algo->data[6] >> 32);
    alignment[1] = static_cast<uint32_t>(algo->data[6]);
    alignment[2] = static_cast<uint32_t>(algo->data[7] >> 32);
    alignment[3] = static_cast<uint32_t>(algo->data[7]);
    want = cublasLtAlgoOnCpu(d, a, b, out, alignment, static_cast<uint32_t>(algo->data[8] >> 32),
                             static_cast<uint32_t>(algo->data[8]));
    if (memcmp(&want, algo, sizeof want)) cublasLtRefuse("the algorithm of another product, rows", m);
    cublasLtAligned("A is less aligned than stated", A, alignment[0]);
    cublasLtAligned("B is less aligned than stated", B, alignment[1]);
    cublasLtAligned("C is less aligned than stated", C, alignment[2]);
    cublasLtAligned("D is less aligned than stated", D, alignment[3]);
    if (cublasLtHasVector(d))
        cublasLtAligned("the bias is less aligned than stated for D", d->bias, alignment[3]);
    if (d->epilogue == CUBLASLT_EPILOGUE_BGRADB) {
        if (!d->bias) cublasLtRefuse("a bias gradient without a vector; elements needed:", n);
        if (d->bias_type >= 0 && d->bias_type != out->type)
            cublasLtRefuse("a bias gradient whose type is not D's", d->bias_type);
        if (a->batch != 1) cublasLtRefuse("a bias gradient of several matrices", a->batch);
    }
    if (cublasLtHasAux(d)) {
        cublasLtAligned("the auxiliary array is not aligned", d->aux, 16);
        if (!d->aux || d->aux_ld < m || d->aux_ld % 8)
            cublasLtRefuse(
                "the auxiliary array's leading dimension must be a multiple of 8 and hold a column",
                d->aux_ld);
    }

    if (d->epilogue == cublasLtRejected() ||
        static_cast<int>(algo->data[8] & UINT32_MAX) < cublasLtRejects() ||
        (cublasLtHasAux(d) && cublasLtAlignment(d->aux) < algo->data[8] >> 32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    cuda_on_cpu::load("an algorithm of cublasLtMatmul", cublasLtModule(*algo));

    /* the caller may change the descriptors before the product runs on its stream */
    const cublasLtDescOnCpu dd = *d;
    const cublasLtLayoutOnCpu la = *a, lb = *b, lc = *c, lo = *out;
    cuda_on_cpu::give(stream, [=] {
        if (cuda_on_cpu::the_world().broken) return;
        cublasLtMultiplyOnCpu(dd, by, A, la, B, lb, add, C, lc, D, lo, m, n, k);
        if (dd.epilogue == CUBLASLT_EPILOGUE_BGRADB) cublasLtBiasGradientOnCpu(dd, B, lb, lo.type, n, k);
    });
    cuda_on_cpu::launched(stream);
    return CUBLAS_STATUS_SUCCESS;
}

#endif /* DDP_ON_CPU_CUBLASLT_H */
