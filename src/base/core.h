/* What nearly every file of the implementation uses: how failures and log lines travel, and memory.
 * A failure fills the caller's ddp_error and returns the code, a log line goes to the logger. */
#ifndef DDP_BASE_CORE_H
#define DDP_BASE_CORE_H

#include "base/platform.h"
#include "base/status.h"

/* Fills *err (may be NULL) with code and the formatted sentence; returns code. */
DDP_LIB ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...)
    DDP__PRINTF(3, 4);

/* Forwards a failure of a call that returns ddp_status. */
#define DDP__TRY(call)                          \
    do {                                        \
        ddp_status ddp__try_ = (call);          \
        if (ddp__try_ != DDP_OK) return ddp__try_; \
    } while (0)

/* Resolves level and fn from the environment (unless no_env). */
DDP_LIB ddp_logger ddp__log_resolve(const ddp_logger *given, int no_env);
DDP_LIB void ddp__log(const ddp_logger *log, ddp_log_level level, const char *fmt, ...)
    DDP__PRINTF(3, 4);
/* off, error, warn, info, debug -> level; DDP_LOG_DEFAULT if unknown. */
DDP_LIB ddp_log_level ddp__log_level_named(const char *name);

/* Memory for tensors: bytes zeroed bytes, 64-byte aligned, from a (NULL or all-zero = default).
 * NULL if bytes is 0 or memory is short. */
DDP_LIB void *ddp__alloc(const ddp_allocator *a, size_t bytes);
DDP_LIB void  ddp__release(const ddp_allocator *a, void *ptr, size_t bytes);

/* Bytes of memory that this process can have at most: the machine's or its container's, and swap.
 * What is larger is sure not to fit, although malloc may promise it. 0: unknown. */
DDP_LIB double ddp__memory_total(void);

/* Bookkeeping: count zeroed elements of size bytes (never NULL-on-zero: count 0 gives 1 byte);
 * NULL when memory is short or the product overflows. Freed by DDP_FREE. */
DDP_LIB void *ddp__calloc(size_t count, size_t size);
DDP_LIB char *ddp__strdup(const char *s);

#endif /* DDP_BASE_CORE_H */
