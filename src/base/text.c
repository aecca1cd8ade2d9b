#include "base/platform.h"
#include "base/text.h"

static int ddp__text_reserve(ddp__text *t, size_t more)
{
    size_t room = t->room ? t->room : 256;
    char *p;

    if (t->failed) return 0;
    if (more > SIZE_MAX / 2 - t->size) {
        t->failed = 1;
        return 0;
    }
    if (t->size + more + 1 <= t->room) return 1;
    while (room < t->size + more + 1) room *= 2;
    p = (char *)DDP_REALLOC(t->data, room);
    if (!p) {
        t->failed = 1;
        return 0;
    }
    t->data = p;
    t->room = room;
    return 1;
}

void ddp__text_add(ddp__text *t, const char *bytes, size_t n)
{
    if (!ddp__text_reserve(t, n)) return;
    if (n) memcpy(t->data + t->size, bytes, n);
    t->size += n;
    t->data[t->size] = 0;
}

void ddp__text_addf(ddp__text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !ddp__text_reserve(t, (size_t)n)) return;
    va_start(ap, fmt);
    vsnprintf(t->data + t->size, (size_t)n + 1, fmt, ap);
    va_end(ap);
    t->size += (size_t)n;
}

void ddp__text_free(ddp__text *t)
{
    if (t->data) DDP_FREE(t->data);
    memset(t, 0, sizeof *t);
}

/* Reads through `gzip -dc PATH` without a shell, so that no file name can be a command. */
static FILE *ddp__gzip_open(const char *path, pid_t *child)
{
    int fd[2];

    if (pipe(fd)) return NULL;
    *child = fork();
    if (*child < 0) {
        close(fd[0]);
        close(fd[1]);
        return NULL;
    }
    if (*child == 0) {
        int null = open("/dev/null", O_WRONLY);

        if (null >= 0) dup2(null, 2); /* the caller reports the failure; the library never prints */
        dup2(fd[1], 1);
        close(fd[0]);
        close(fd[1]);
        execlp("gzip", "gzip", "-dc", "--", path, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    return fdopen(fd[0], "rb");
}

ddp_status ddp__file_read(const char *path, ddp__text *t, ddp_error *err)
{
    size_t n = strlen(path), got;
    int gz = n > 3 && !strcmp(path + n - 3, ".gz"), bad, code = 0;
    pid_t child = -1;
    struct stat st;
    char block[65536];
    FILE *f;

    if (stat(path, &st)) return ddp__fail(err, DDP_IO, "cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return ddp__fail(err, DDP_IO, "cannot read %s: it is a directory, a file is needed", path);
    f = gz ? ddp__gzip_open(path, &child) : fopen(path, "rb");
    if (!f) return ddp__fail(err, DDP_IO, "cannot read %s: %s", path, strerror(errno));
    while ((got = fread(block, 1, sizeof block, f)) > 0) ddp__text_add(t, block, got);
    bad = ferror(f);
    fclose(f);
    if (gz) waitpid(child, &code, 0);
    if (t->failed)
        return ddp__fail(err, DDP_MEMORY, "cannot read %s: out of memory after %zu bytes", path,
                         t->size);
    if (bad)
        return ddp__fail(err, DDP_IO, "cannot read %s: read error after %zu bytes", path, t->size);
    if (gz && code)
        return ddp__fail(err, DDP_FORMAT,
                         "cannot read %s: gzip -dc failed (is gzip installed and the file whole?)",
                         path);
    return DDP_OK;
}

ddp_status ddp__file_write(const char *path, const char *bytes, size_t n, ddp_error *err)
{
    ddp__text tmp;
    struct stat st;
    FILE *f;
    int why = 0, direct = !stat(path, &st) && !S_ISREG(st.st_mode);

    memset(&tmp, 0, sizeof tmp);
    ddp__text_addf(&tmp, "%s", path);
    if (!direct) ddp__text_addf(&tmp, ".tmp.%ld", (long)getpid());
    if (tmp.failed) return ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory", path);
    f = fopen(tmp.data, "wb");
    if (!f) {
        why = errno;
        ddp__text_free(&tmp);
        return ddp__fail(err, DDP_IO, "cannot write %s: %s", path, strerror(why));
    }
    if (n && fwrite(bytes, 1, n, f) != n) why = errno;
    if (!why && (fflush(f) || fsync(fileno(f))) && errno != EINVAL && errno != EROFS) why = errno;
    if (fclose(f) && !why) why = errno;
    if (!direct && !why && rename(tmp.data, path)) why = errno;
    if (!direct && why) remove(tmp.data);
    ddp__text_free(&tmp);
    if (why)
        return ddp__fail(err, DDP_IO, "cannot write %s: %s; nothing was left behind", path,
                         strerror(why));
    return DDP_OK;
}

int ddp__parse_double(const char *s, double *out)
{
    char *end;
    double v;

    if (!s || !*s || isspace((unsigned char)*s)) return 0;
    v = strtod(s, &end);
    if (*end || !(v >= -DBL_MAX && v <= DBL_MAX)) return 0;
    *out = v;
    return 1;
}

int ddp__parse_long(const char *s, long *out)
{
    char *end;
    long v;

    if (!s || !*s || isspace((unsigned char)*s)) return 0;
    errno = 0;
    v = strtol(s, &end, 10);
    if (*end || errno) return 0;
    *out = v;
    return 1;
}

uint64_t ddp__hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    size_t i;

    for (i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}
