/* Arithmetic on the memory that messages name; a GPU backend brings its own table. */
#ifndef DDP_COMM_REDUCE_H
#define DDP_COMM_REDUCE_H

#include "base/config.h"
#include "base/status.h"

/* All pointers are to count floats that do not overlap. divergence may be NULL; otherwise
 * sum((new - old)^2) over the overwritten values is added to it. */
typedef struct ddp__memory_ops {
    /* own = scale * (terms[0] + ... + terms[world - 1]), added in that order; terms[rank] is own. */
    void (*reduce)(float *own, const float *const *terms, int rank, int world, size_t count,
                   float scale, double *divergence);
    /* own = from */
    void (*store)(float *own, const float *from, size_t count, double *divergence);
    /* sum += own: the partial sums of the ring, which leave own untouched */
    void (*add)(float *sum, const float *own, size_t count);
    /* out = x as bfloat16, rounded to nearest even; infinities stay, NaN stay NaN. */
    void (*halve)(uint16_t *out, const float *x, size_t count);
    /* out = x exactly; x may be the second half of out. */
    void (*widen)(float *out, const uint16_t *x, size_t count);
    /* out = x through bfloat16 and back; may be the same */
    void (*round)(float *out, const float *x, size_t count);
    /* A 64-bit hash that any change of a float changes; chained through h. */
    uint64_t (*checksum)(uint64_t h, const float *data, size_t count);
} ddp__memory_ops;

/* Blocks of int8 (DDP_AS_INT8), which src/net knows by their size alone. What was decoded must be decoded to the
 * same bits when it is encoded again. Both fail with a sentence about x[index], or about the payload. */
typedef struct ddp__coder {
    ddp_status (*encode)(unsigned char *out, const float *x, size_t count, ddp_error *err);
    ddp_status (*decode)(float *out, const unsigned char *payload, size_t count, ddp_error *err);
} ddp__coder;

DDP_LIB ddp__memory_ops ddp__host_memory(void);

#endif /* DDP_COMM_REDUCE_H */
