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

#ifdef __cplusplus
extern "C" {
#endif

/* Resolves level and fn from the environment (unless no_env). */
DDP_LIB ddp_logger ddp__log_resolve(const ddp_logger *given, int no_env);
DDP_LIB void ddp__log(const ddp_logger *log, ddp_log_level level, const char *fmt, ...) DDP__PRINTF(3, 4);
/* off, error, warn, info, debug -> level; DDP_LOG_DEFAULT if unknown. */
DDP_LIB ddp_log_level ddp__log_level_named(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_LOG_H */
