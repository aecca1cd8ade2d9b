/* How failures travel inside the library: fill the caller's ddp_error, return the code. */
#ifndef DDP_BASE_FAIL_H
#define DDP_BASE_FAIL_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills *err (may be NULL) with code and the formatted sentence; returns code. */
DDP_LIB ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);

/* Forwards a failure of a call that returns ddp_status. */
#define DDP__TRY(call)                          \
    do {                                        \
        ddp_status ddp__try_ = (call);          \
        if (ddp__try_ != DDP_OK) return ddp__try_; \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_FAIL_H */
