/* How failures and log lines travel inside the library: a failure fills the caller's ddp_error
 * and returns the code, a log line goes to the context's logger. */
#ifndef DDP_BASE_FAIL_H
#define DDP_BASE_FAIL_H

#include "base/log.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_FAIL_H */
