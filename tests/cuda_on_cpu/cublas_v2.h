/* Stand-in for the parts of cuBLAS that cuBLASLt uses: the names of statuses and operations. */
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

inline const char *cublasGetStatusString(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS         ? "success"
           : s == CUBLAS_STATUS_INVALID_VALUE ? "an argument has a wrong value"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported"
                                              : "failed";
}

#endif /* DDP_ON_CPU_CUBLAS_V2_H */
