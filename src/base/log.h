/* Leveled logger. The library itself prints nothing: it hands lines to the logger. */
#ifndef DDP_BASE_LOG_H
#define DDP_BASE_LOG_H

#include "base/config.h"

typedef enum ddp_log_level {
    DDP_LOG_DEFAULT, /* what DREAMDDP_LOG says (off, error, warn, info, debug), else warn */
    DDP_LOG_OFF,
    DDP_LOG_ERROR,
    DDP_LOG_WARN,
    DDP_LOG_INFO,
    DDP_LOG_DEBUG
} ddp_log_level;

/* Where log lines go. All-zero = nowhere, unless DREAMDDP_LOG is set: then stderr.
 * fn gets one line without newline; it may be called from the comm thread. */
typedef struct ddp_logger {
    void (*fn)(void *user, ddp_log_level level, const char *line);
    void *user;
    ddp_log_level level; /* lines above this level are not formatted */
} ddp_logger;

#endif /* DDP_BASE_LOG_H */
