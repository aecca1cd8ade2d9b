/* Growing text, reading and mapping whole files, writing files whole or not at all, and strict parsing of
 * numbers. */
#include "base/core.h"

#include <sys/mman.h>

static int ddp__text_reserve(ddp__text *t, size_t more)
{
    size_t room = t->room ? t->room : 256;
    char *p;

    if (t->failed) return 0;
    if (more <= SIZE_MAX / 2 - t->size) {
        if (t->size + more + 1 <= t->room) return 1;
        while (room < t->size + more + 1) room *= 2;
        p = t->fixed ? NULL : (char *)DDP_REALLOC(t->data, room);
        if (p) {
            t->data = p;
            t->room = room;
            return 1;
        }
    }
    t->failed = 1;
    return 0;
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
    n = ddp__format_list(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !ddp__text_reserve(t, (size_t)n)) return;
    va_start(ap, fmt);
    ddp__format_list(t->data + t->size, (size_t)n + 1, fmt, ap);
    va_end(ap);
    t->size += (size_t)n;
}

void ddp__text_free(ddp__text *t)
{
    if (t->data) DDP_FREE(t->data);
    memset(t, 0, sizeof *t);
}

/* Opens a pipe from `gzip -dc PATH` without a shell, so that no file name can run a command. */
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
        if (null >= 0) dup2(null, 2); /* the caller reports the failure. The library never prints. */
        dup2(fd[1], 1);
        close(fd[0]);
        close(fd[1]);
        execlp("gzip", "gzip", "-dc", "--", path, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    return fdopen(fd[0], "rb");
}

const char *ddp__file_kind(mode_t mode)
{
    if (S_ISREG(mode)) return "a file";
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    return S_ISSOCK(mode) ? "a socket" : "a device";
}

const char *ddp__env_get(const char *name)
{
    const char *v = name ? getenv(name) : NULL;
    return v && *v ? v : NULL;
}

size_t ddp__bom_bytes(const char *text, size_t n)
{
    return n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
}

ddp_status ddp__file_read(const char *path, ddp__text *t, ddp_error *err)
{
    size_t n, got;
    int gz, bad, code = 0;
    pid_t child = -1;
    struct stat st;
    char block[8192];
    double memory;
    FILE *f;

    if (!path) return ddp__fail(err, DDP_ARG, "a file to read needs a name; NULL was given");
    n = strlen(path);
    gz = n > 3 && !strcmp(path + n - 3, ".gz");
    if (stat(path, &st)) return ddp__fail(err, DDP_IO, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ddp__fail(err, DDP_IO, "cannot read %s: it is %s, a file is needed", path,
                         ddp__file_kind(st.st_mode));
    memory = ddp__memory_total();
    if (memory > 0 && (double)st.st_size > memory)
        return ddp__fail(err, DDP_MEMORY,
                         "cannot read %s: it has %lld bytes, more than the memory of this machine", path,
                         (long long)st.st_size);
    f = gz ? ddp__gzip_open(path, &child) : fopen(path, "rb");
    if (!f) return ddp__fail(err, DDP_IO, "cannot read %s: %s", path, strerror(errno));
    while ((got = fread(block, 1, sizeof block, f)) > 0) ddp__text_add(t, block, got);
    bad = ferror(f);
    fclose(f);
    if (gz) waitpid(child, &code, 0);
    if (t->failed)
        return ddp__fail(err, DDP_MEMORY, "cannot read %s: out of memory after %zu bytes", path, t->size);
    if (bad) return ddp__fail(err, DDP_IO, "cannot read %s: read error after %zu bytes", path, t->size);
    if (gz && code)
        return ddp__fail(err, DDP_FORMAT,
                         "cannot read %s: gzip -dc failed (is gzip installed and the file whole?)", path);
    return DDP_OK;
}

ddp_status ddp__file_map(const char *path, ddp__mapped *m, ddp_error *err)
{
    const size_t n = path ? strlen(path) : 0;
    const int gz = n > 3 && !strcmp(path + n - 3, ".gz");
    const int fd = path && !gz ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1; /* O_NONBLOCK: opening a
                                                                                        pipe must not block */
    struct stat st;
    void *pages = MAP_FAILED;
    ddp_status status;

    memset(m, 0, sizeof *m);
    if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0)
        pages = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (pages != MAP_FAILED) {
        m->pages = pages;
        m->bytes = (const unsigned char *)pages;
        m->size = (size_t)st.st_size;
        return DDP_OK;
    }
    status = ddp__file_read(path, &m->copy, err); /* sets the error if the file cannot be read */
    if (status != DDP_OK) ddp__text_free(&m->copy);
    m->bytes = (const unsigned char *)m->copy.data;
    m->size = m->copy.size;
    return status;
}

void ddp__file_unmap(ddp__mapped *m)
{
    if (m->pages) munmap(m->pages, m->size);
    ddp__text_free(&m->copy);
    memset(m, 0, sizeof *m);
}

ddp_status ddp__file_begin(ddp__file *o, const char *path, ddp_error *err)
{
    ddp__text tmp = DDP__ZEROS;
    ddp_status status;
    struct stat st;
    int straight;

    memset(o, 0, sizeof *o);
    if (!path) return ddp__fail(err, DDP_ARG, "a file to write needs a name; NULL was given");
    straight = !stat(path, &st) && !S_ISREG(st.st_mode);
    ddp__text_addf(&tmp, "%s", path);
    if (!straight) ddp__text_addf(&tmp, ".tmp.%ld", (long)getpid());
    o->path = ddp__strdup(path);
    o->tmp = tmp.data;
    if (!tmp.failed && o->path && (o->f = fopen(o->tmp, "wb")) != NULL) {
        (void)fcntl(fileno(o->f), F_SETFD, FD_CLOEXEC);
        return DDP_OK;
    }
    status = tmp.failed || !o->path ? ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory", path)
                                    : ddp__fail(err, DDP_IO, "cannot write %s: %s", path, strerror(errno));
    DDP_FREE(o->path);
    DDP_FREE(o->tmp);
    return status;
}

void ddp__file_put(ddp__file *o, const void *bytes, size_t n)
{
    if (n && !o->why && fwrite(bytes, 1, n, o->f) != n) o->why = errno ? errno : EIO;
}

FILE *ddp__file_stream(ddp__file *o)
{
    setvbuf(o->f, NULL, _IONBF, 0);
    return o->f;
}

const char *ddp__file_name(const ddp__file *o) { return o->path; }

ddp_status ddp__folder_flush(const char *path, ddp_error *err)
{
    size_t n = strlen(path);
    char *folder;
    int fd, why = 0;

    while (n > 1 && path[n - 1] == '/') n--;
    while (n && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    folder = ddp__strdup(n ? path : ".");
    if (!folder) return ddp__fail(err, DDP_MEMORY, "out of memory for the folder of %s", path);
    if (n) folder[n] = 0;
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DDP_FREE(folder);
    if (fd < 0) return DDP_OK; /* a directory may be writable but not readable */
    if (fsync(fd) && errno != EINVAL && errno != EROFS && errno != EBADF) why = errno;
    close(fd);
    if (!why) return DDP_OK;
    return ddp__fail(err, DDP_IO,
                     "%s is there, but its folder could not be flushed: %s; after a crash of the machine "
                     "it may be gone",
                     path, strerror(why));
}

/* Closes the file. If keep is 1 and every write succeeded, it appears under its name. Otherwise, it is
 * removed. */
static ddp_status ddp__file_close(ddp__file *o, int keep, ddp_error *err)
{
    const int straight = !strcmp(o->tmp, o->path);
    ddp_status s = DDP_OK;

    if (keep && !o->why && (fflush(o->f) || fsync(fileno(o->f))) && errno != EINVAL && errno != EROFS)
        o->why = errno;
    if (fclose(o->f) && !o->why) o->why = errno;
    if (!straight && keep && !o->why && rename(o->tmp, o->path)) o->why = errno;
    if (!straight && (!keep || o->why)) remove(o->tmp);
    if (o->why)
        s = ddp__fail(err, DDP_IO, "cannot write %s: %s; nothing was left behind", o->path, strerror(o->why));
    else if (keep && !straight)
        s = ddp__folder_flush(o->path, err);
    DDP_FREE(o->path);
    DDP_FREE(o->tmp);
    return s;
}

void ddp__file_drop(ddp__file *o) { (void)ddp__file_close(o, 0, NULL); }

ddp_status ddp__file_end(ddp__file *o, ddp_error *err) { return ddp__file_close(o, 1, err); }

ddp_status ddp__file_write(const char *path, const char *bytes, size_t n, ddp_error *err)
{
    ddp__file o;

    DDP__TRY(ddp__file_begin(&o, path, err));
    ddp__file_put(&o, bytes, n);
    return ddp__file_end(&o, err);
}

ddp_status ddp__text_write(ddp__text *t, const char *path, ddp_error *err)
{
    ddp_status s = t->failed
                       ? ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory while it was built", path)
                       : ddp__file_write(path, t->data, t->size, err);

    ddp__text_free(t);
    return s;
}

int ddp__parse_double(const char *s, double *out)
{
    char *end;
    double v;

    if (!s || !*s || isspace((unsigned char)*s)) return 0;
    v = ddp__number(s, &end);
    if (*end || !ddp__finite(v)) return 0;
    *out = v;
    return 1;
}

int ddp__parse_ratio(const char *s, double *out)
{
    const char *slash = strchr(s, '/');
    char top[64];
    double below;

    if (!slash) return ddp__parse_double(s, out);
    if ((size_t)(slash - s) >= sizeof top) return 0;
    memcpy(top, s, (size_t)(slash - s));
    top[slash - s] = 0;
    if (!ddp__parse_double(top, out) || !ddp__parse_double(slash + 1, &below) || !(below > 0)) return 0;
    *out /= below;
    return ddp__finite(*out);
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

int ddp__word_distance(const char *a, size_t an, const char *b)
{
    int row[32], bn = (int)strlen(b);

    if (an > 40 || bn > 30) return 99;
    for (int j = 0; j <= bn; j++) row[j] = j;
    for (int i = 1; i <= (int)an; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= bn; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[bn];
}
