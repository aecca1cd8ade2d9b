/* Internal allocation: zeroed blocks from the hook, and bookkeeping arrays. */
#ifndef DDP_BASE_MEMORY_H
#define DDP_BASE_MEMORY_H

#include "base/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bytes zeroed bytes, 64-byte aligned, from a (NULL or all-zero = default). NULL if bytes is 0
 * or memory is short. */
DDP_LIB void *ddp__alloc(const ddp_allocator *a, size_t bytes);
DDP_LIB void  ddp__release(const ddp_allocator *a, void *ptr, size_t bytes);

/* Bytes of memory that this process can have at most: the machine's or its container's, and swap.
 * What is larger is sure not to fit, although malloc may promise it. 0: unknown. */
DDP_LIB double ddp__memory_total(void);

/* Bookkeeping: count zeroed elements of size bytes (never NULL-on-zero: count 0 gives 1 byte);
 * NULL when memory is short or the product overflows. Freed by DDP_FREE. */
DDP_LIB void *ddp__calloc(size_t count, size_t size);
DDP_LIB char *ddp__strdup(const char *s);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_MEMORY_H */
