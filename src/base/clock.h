/* Monotonic time in seconds. */
#ifndef DDP_BASE_CLOCK_H
#define DDP_BASE_CLOCK_H

#include "base/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_now - seconds on a clock that never goes back; the origin is arbitrary but the same for
 * all processes of one machine. Safe from any thread. */
DDP_API double ddp_now(void);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_CLOCK_H */
