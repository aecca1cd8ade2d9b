/* Allocator hook: every tensor, arena and staging buffer goes through it. */
#ifndef DDP_BASE_ALLOC_H
#define DDP_BASE_ALLOC_H

#include "base/config.h"

/* Memory for tensors, optimizer state and staging. All-zero = malloc/free (64-byte aligned,
 * huge pages where the system offers them).
 *   alloc  returns bytes bytes aligned to at least 64, not necessarily zeroed, or NULL
 *   free   takes what alloc returned and the same byte count; never called with NULL
 * Both may be called from the thread that calls ddp_open, ddp_close or the first step. */
typedef struct ddp_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void  (*free)(void *user, void *ptr, size_t bytes);
    void  *user;
} ddp_allocator;

#endif /* DDP_BASE_ALLOC_H */
