/* Stand-in: the number types of the library calls, with the values of the real header. */
#ifndef DDP_ON_CPU_LIBRARY_TYPES_H
#define DDP_ON_CPU_LIBRARY_TYPES_H

typedef enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 } cudaDataType_t;
typedef cudaDataType_t cudaDataType;

#endif /* DDP_ON_CPU_LIBRARY_TYPES_H */
