#include "base/platform.h"
#include "base/memory.h"

#include <sys/mman.h>

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
