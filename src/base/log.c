#include "base/platform.h"
#include "base/fail.h"

ddp_log_level ddp__log_level_named(const char *name)
{
    static const char *const names[] = {"", "off", "error", "warn", "info", "debug"};
    int i;

    for (i = 1; i <= (int)DDP_LOG_DEBUG; i++)
        if (!strcmp(name, names[i])) return (ddp_log_level)i;
    return DDP_LOG_DEFAULT;
}

static void ddp__log_stderr(void *user, ddp_log_level level, const char *line)
{
    static const char *const names[] = {"", "off", "error", "warn", "info", "debug"};

    (void)user;
    fprintf(stderr, "dreamddp %s: %s\n", names[level], line);
}

ddp_logger ddp__log_resolve(const ddp_logger *given, int no_env)
{
    ddp_logger log = *given;
    const char *env = no_env ? NULL : getenv("DREAMDDP_LOG");

    if (env && *env) {
        ddp_log_level level = ddp__log_level_named(env);
        if (log.level == DDP_LOG_DEFAULT) log.level = level;
        if (!log.fn) log.fn = ddp__log_stderr;
    }
    if (log.level == DDP_LOG_DEFAULT) log.level = DDP_LOG_WARN;
    return log;
}

void ddp__log(const ddp_logger *log, ddp_log_level level, const char *fmt, ...)
{
    char line[512];
    va_list ap;

    if (!log || !log->fn || level > log->level) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log->fn(log->user, level, line);
}
