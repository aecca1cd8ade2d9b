/* Arithmetic on the memory that messages name; a GPU backend brings its own table. */
#ifndef DDP_NET_REDUCE_H
#define DDP_NET_REDUCE_H

#include "base/config.h"

/* All pointers are to count floats that do not overlap. divergence may be NULL; otherwise
 * sum((new - old)^2) over the overwritten values is added to it. */
typedef struct ddp__memory_ops {
    /* own = scale * (terms[0] + ... + terms[world - 1]), added in that order; terms[rank] is own.
     */
    void (*reduce)(float *own, const float *const *terms, int rank, int world, size_t count,
                   float scale, double *divergence);
    /* own = from */
    void (*store)(float *own, const float *from, size_t count, double *divergence);
    /* sum += own: the partial sums of the ring, which leave own untouched */
    void (*add)(float *sum, const float *own, size_t count);
    /* A 64-bit hash that any change of a float changes; chained through h. */
    uint64_t (*checksum)(uint64_t h, const float *data, size_t count);
} ddp__memory_ops;

#ifdef __cplusplus
extern "C" {
#endif

DDP_LIB ddp__memory_ops ddp__host_memory(void);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_REDUCE_H */
