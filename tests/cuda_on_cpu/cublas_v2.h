/* Stand-in for cuBLAS: the status and operation names, and the handle. Products go through
 * cublasLt.h. */
#ifndef DDP_ON_CPU_CUBLAS_V2_H
#define DDP_ON_CPU_CUBLAS_V2_H

#include <cuda_runtime.h>
#include <library_types.h>

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;

typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;

typedef enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 } cublasComputeType_t;

typedef enum { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TF32_TENSOR_OP_MATH = 3 } cublasMath_t;

struct cublasContext {
    cudaStream_t stream;
};
typedef struct cublasContext *cublasHandle_t;

inline const char *cublasGetStatusString(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS ? "success"
         : s == CUBLAS_STATUS_INVALID_VALUE ? "an argument has a wrong value"
         : s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "failed";
}

inline cublasStatus_t cublasCreate(cublasHandle_t *h)
{
    *h = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasDestroy(cublasHandle_t h)
{
    delete h;
    return h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

inline cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t stream)
{
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    h->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t)
{
    return h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

#endif /* DDP_ON_CPU_CUBLAS_V2_H */
