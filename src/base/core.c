/* Status codes, failures, log lines and memory; stb_ds is instantiated here. */
#include "base/core.h"
#include "base/array.h"

#include <sys/mman.h>

/* ---- status ---- */

const char *ddp_status_text(ddp_status code)
{
    switch (code) {
#define DDP__STATUS_TEXT(name, exit_code, text) case DDP_##name: return text;
    DDP_STATUS_LIST(DDP__STATUS_TEXT)
#undef DDP__STATUS_TEXT
    case DDP_STATUS_COUNT: break;
    }
    return "unknown status";
}

int ddp_status_exit_code(ddp_status code)
{
    switch (code) {
#define DDP__STATUS_EXIT(name, exit_code, text) case DDP_##name: return exit_code;
    DDP_STATUS_LIST(DDP__STATUS_EXIT)
#undef DDP__STATUS_EXIT
    case DDP_STATUS_COUNT: break;
    }
    return 1;
}

/* What a peer or a file says may hold bytes that a terminal would obey. */
static void ddp__text_tame(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}

ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...)
{
    va_list ap;

    if (!err) return code;
    err->code = code;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    ddp__text_tame(err->msg);
    return code;
}

/* ---- log lines ---- */

static const char *const ddp__log_names[] = {"", "off", "error", "warn", "info", "debug"};

ddp_log_level ddp__log_level_named(const char *name)
{
    int i;

    for (i = 1; i <= (int)DDP_LOG_DEBUG; i++)
        if (!strcmp(name, ddp__log_names[i])) return (ddp_log_level)i;
    return DDP_LOG_DEFAULT;
}

static void ddp__log_stderr(void *user, ddp_log_level level, const char *line)
{
    (void)user;
    fprintf(stderr, "dreamddp %s: %s\n", ddp__log_names[level], line);
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
    ddp__text_tame(line);
    log->fn(log->user, level, line);
}

/* ---- memory ---- */

/* From this size on a block is aligned to, and advised as, 2 MiB pages: a first touch of 4 KiB
 * pages costs four times as much as one of huge pages. */
#define DDP__HUGE_BYTES ((size_t)2 << 20)

void *ddp__alloc(const ddp_allocator *a, size_t bytes)
{
    void *p = NULL;
    size_t align = bytes >= 2 * DDP__HUGE_BYTES ? DDP__HUGE_BYTES : 64;

    if (bytes == 0) return NULL;
    if (a && a->alloc) {
        p = a->alloc(a->user, bytes);
    } else {
        if (posix_memalign(&p, align, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
        if (align == DDP__HUGE_BYTES)
            (void)madvise(p, bytes - bytes % DDP__HUGE_BYTES, MADV_HUGEPAGE);
#endif
    }
    if (p) memset(p, 0, bytes);
    return p;
}

void ddp__release(const ddp_allocator *a, void *ptr, size_t bytes)
{
    if (!ptr) return;
    if (a && a->alloc) a->free(a->user, ptr, bytes);
    else free(ptr);
}

/* The number at the start of a file of one line, DBL_MAX where there is none ("max"). */
static double ddp__limit_read(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[64] = "", *end = line;
    double limit = DBL_MAX;

    if (f && fgets(line, sizeof line, f)) limit = (double)strtoull(line, &end, 10);
    if (f) fclose(f);
    return end == line ? DBL_MAX : limit;
}

double ddp__memory_total(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    const double v2 = ddp__limit_read("/sys/fs/cgroup/memory.max"); /* of a container */
    const double v1 = ddp__limit_read("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    double ram = 0, swap = 0;
    char line[128];

    while (f && fgets(line, sizeof line, f)) {
        if (!strncmp(line, "MemTotal:", 9)) ram = 1024 * (double)strtoull(line + 9, NULL, 10);
        if (!strncmp(line, "SwapTotal:", 10)) swap = 1024 * (double)strtoull(line + 10, NULL, 10);
    }
    if (f) fclose(f);
    if (v2 < ram) ram = v2;
    if (v1 < ram) ram = v1;
    return ram + swap;
}

void *ddp__calloc(size_t count, size_t size)
{
    size_t bytes;
    void *p;

    if (size && count > SIZE_MAX / size) return NULL;
    bytes = count * size;
    if (bytes == 0) bytes = 1;
    p = DDP_REALLOC(NULL, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

char *ddp__strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = (char *)ddp__calloc(n, 1);

    if (p) memcpy(p, s, n);
    return p;
}

/* ---- stb_ds ---- */

/* Instantiates stb_ds, once per program: here, unless DREAMDDP_NO_STB_DS_IMPLEMENTATION says
 * that another file does (define it beside a program's own instantiation, and in all but one of
 * several DDP_STATIC files), or unless this very file has STB_DS_IMPLEMENTATION defined. */
#if !defined(DREAMDDP_NO_STB_DS_IMPLEMENTATION) && !defined(STB_DS_IMPLEMENTATION)
#define STB_DS_IMPLEMENTATION
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#if __has_include(<stb_ds.h>)
#include <stb_ds.h>
#else
#include <stb/stb_ds.h>
#endif
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic pop
#endif
#undef STB_DS_IMPLEMENTATION
#endif
