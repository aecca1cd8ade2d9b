#include "base/platform.h"
#include "base/tools.h"
#include "base/core.h"
#include "wire/meeting.h"

const char *ddp__meetfile_path(const char *addr) { return addr && !strncmp(addr, "file://", 7) ? addr + 7 : NULL; }

ddp_status ddp__meetfile_publish(const char *path, const char *addr, uint64_t run_id, ddp_error *err)
{
    char line[DDP__MEETFILE_TEXT + 32];
    int n = snprintf(line, sizeof line, "%.127s %" PRIu64 "\n", addr, run_id);

    return ddp__file_write(path, line, (size_t)n, err);
}

int ddp__meetfile_read(const char *path, char *addr, uint64_t *run_id)
{
    char line[DDP__MEETFILE_TEXT + 32], *space, *end;
    struct stat st;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe must not hold us */

    if (fd < 0) return 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) return 0;
    line[n] = 0;
    space = strchr(line, ' ');
    if (!space || space == line || space - line >= DDP__MEETFILE_TEXT) return 0;
    if (!isdigit((unsigned char)space[1])) return 0;
    errno = 0;
    *run_id = (uint64_t)strtoull(space + 1, &end, 10);
    if (errno || strcmp(end, "\n")) return 0;
    *space = 0;
    memcpy(addr, line, (size_t)(space - line) + 1);
    return 1;
}

void ddp__meetfile_remove(const char *path, const char *addr, uint64_t run_id)
{
    char there[DDP__MEETFILE_TEXT];
    uint64_t run;

    if (ddp__meetfile_read(path, there, &run) && run == run_id && !strcmp(there, addr)) unlink(path);
}

uint64_t ddp__meetfile_run(void)
{
    struct timespec now;
    double up = ddp_now();
    pid_t self = getpid();
    uint64_t h = ddp__hash(DDP__HASH_START, &self, sizeof self);

    clock_gettime(CLOCK_REALTIME, &now);
    h = ddp__hash(h, &now.tv_sec, sizeof now.tv_sec);
    h = ddp__hash(h, &now.tv_nsec, sizeof now.tv_nsec);
    h = ddp__hash(h, &up, sizeof up);
    return h ? h : 1;
}
