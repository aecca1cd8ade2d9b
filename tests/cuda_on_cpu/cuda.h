/* The driver functions that the library looks up at run time: tensor maps for the copy engine. */
#ifndef CUDA_ON_CPU_CUDA_H
#define CUDA_ON_CPU_CUDA_H

#include "device.h"

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;

/* An array of 2-byte elements in up to four dimensions, the first of which is dense. */
struct alignas(128) CUtensorMap {
    uint64_t made; /* TENSOR_MAP if it is encoded */
    const char *base;
    cuuint64_t dim[4], apart[4]; /* in bytes */
    cuuint32_t box[4];
};

namespace cuda_on_cpu
{
const uint64_t TENSOR_MAP = 0x6d61702d74656e73;
}

/* Rejects the maps that the real driver rejects. */
inline CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *base,
                                       const cuuint64_t *dim, const cuuint64_t *apart, const cuuint32_t *box,
                                       const cuuint32_t *each, CUtensorMapInterleave, CUtensorMapSwizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    if (rank != 4 || (uintptr_t)base % 16 || (uintptr_t)map % 64 || box[0] * 2 > 128)
        return CUDA_ERROR_INVALID_VALUE;
    if (cuda_on_cpu::place_of(base) != cuda_on_cpu::ON_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    map->made = cuda_on_cpu::TENSOR_MAP;
    map->base = (const char *)base;
    for (int i = 0; i < 4; i++) {
        map->dim[i] = dim[i];
        map->apart[i] = i ? apart[i - 1] : 2;
        map->box[i] = box[i];
        if (!dim[i] || dim[i] > 1ull << 32 || !box[i] || box[i] > 256 || each[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (i && (map->apart[i] % 16 || map->apart[i] >= 1ull << 40)) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

#endif /* CUDA_ON_CPU_CUDA_H */
