/* Makes system calls and allocations fail. Every call of the library to one of these functions runs the
 * version below, which calls the C library unless this call must fail. Included by one test, so that its
 * definitions take precedence over libc. */
#ifndef TESTS_SWEEP_CALLS_H
#define TESTS_SWEEP_CALLS_H

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NO_CALLS, MEMORY, SYSTEM, INTERRUPTS }; /* kinds of calls that are counted */

/* Shared with the worker processes, each of which continues the count from its fork. */
typedef struct sweep {
    int kind, rest; /* rest: all later calls fail too */
    long fail_at;   /* 0: none */
    long hits;      /* failed calls, in all processes */
    char last[32];  /* name of the last failed call */
} sweep;

static sweep *faults; /* NULL until main */
static long taken;    /* counted calls of this process */
int calls_spared;     /* no call fails in this process */
static long blocks;   /* blocks of memory not yet freed */

/* Returns 1 if this call must fail. */
static int fails(int kind, const char *what)
{
    long n;

    if (!faults || calls_spared || faults->kind != kind) return 0;
    n = __atomic_add_fetch(&taken, 1, __ATOMIC_SEQ_CST);
    if (!faults->fail_at || (faults->rest ? n < faults->fail_at : n != faults->fail_at)) return 0;
    __atomic_add_fetch(&faults->hits, 1, __ATOMIC_SEQ_CST);
    snprintf(faults->last, sizeof faults->last, "%s", what);
    return 1;
}

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory ---- */

void *heap_realloc(void *p, size_t bytes)
{
    void *q = fails(MEMORY, "realloc") ? NULL : realloc(p, bytes);

    if (q && !p) __atomic_add_fetch(&blocks, 1, __ATOMIC_SEQ_CST);
    return q;
}

void heap_free(void *p)
{
    if (p) __atomic_sub_fetch(&blocks, 1, __ATOMIC_SEQ_CST);
    free(p);
}

/* The tensor allocator, ddp_config.allocator. */
static void *tensor_alloc(void *user, size_t bytes)
{
    void *p = NULL;

    (void)user;
    if (fails(MEMORY, "alloc") || posix_memalign(&p, 64, bytes)) return NULL;
    __atomic_add_fetch(&blocks, 1, __ATOMIC_SEQ_CST);
    return p;
}

static void tensor_free(void *user, void *p, size_t bytes)
{
    (void)user;
    (void)bytes;
    __atomic_sub_fetch(&blocks, 1, __ATOMIC_SEQ_CST);
    free(p);
}

/* ---- the system ---- */

/* The C library's function, or the sanitizer's wrapper. */
static void *own(void **at, const char *name)
{
    if (!*at) *at = dlsym(RTLD_NEXT, name);
    if (!*at) abort();
    return *at;
}

#ifdef __cplusplus
#define NEVER_THROWS noexcept /* as glibc declares functions that are not cancellation points */
#else
#define NEVER_THROWS
#endif
/* slow: a signal may interrupt the call, and the caller must retry it. */
#define CALL_OF(slow, throws, type, name, params, args, error, bad) \
    type name params throws                                         \
    {                                                               \
        static void *at;                                            \
        type(*real) params;                                         \
        void *found = own(&at, #name);                              \
        const int interrupted = slow && fails(INTERRUPTS, #name);   \
        memcpy(&real, &found, sizeof real);                         \
        if (interrupted || fails(SYSTEM, #name)) {                  \
            errno = interrupted ? EINTR : error;                    \
            return bad;                                             \
        }                                                           \
        return real args;                                           \
    }
#define SLOW(type, name, params, args, error, bad) CALL_OF(1, , type, name, params, args, error, bad)
#define CALL(type, name, params, args, error, bad) CALL_OF(0, , type, name, params, args, error, bad)
#define QUICK(type, name, params, args, error, bad) \
    CALL_OF(0, NEVER_THROWS, type, name, params, args, error, bad)

SLOW(ssize_t, read, (int fd, void *buf, size_t n), (fd, buf, n), EIO, -1)
SLOW(ssize_t, write, (int fd, const void *buf, size_t n), (fd, buf, n), ENOSPC, -1)
SLOW(ssize_t, send, (int fd, const void *buf, size_t n, int flags), (fd, buf, n, flags), ECONNRESET, -1)
SLOW(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), ECONNRESET, -1)
SLOW(ssize_t, recv, (int fd, void *buf, size_t n, int flags), (fd, buf, n, flags), ECONNRESET, -1)
SLOW(int, poll, (struct pollfd * p, nfds_t n, int ms), (p, n, ms), ENOMEM, -1)
CALL(int, fsync, (int fd), (fd), EIO, -1)
QUICK(int, socket, (int domain, int type, int protocol), (domain, type, protocol), EMFILE, -1)
CALL(int, connect, (int fd, __CONST_SOCKADDR_ARG a, socklen_t n), (fd, a, n), ENETUNREACH, -1)
QUICK(int, bind, (int fd, __CONST_SOCKADDR_ARG a, socklen_t n), (fd, a, n), EADDRINUSE, -1)
QUICK(int, listen, (int fd, int n), (fd, n), EOPNOTSUPP, -1)
CALL(int, accept, (int fd, __SOCKADDR_ARG a, socklen_t *n), (fd, a, n), EMFILE, -1)
QUICK(int, setsockopt, (int fd, int l, int o, const void *v, socklen_t n), (fd, l, o, v, n), ENOBUFS, -1)
QUICK(int, getsockopt, (int fd, int l, int o, void *v, socklen_t *n), (fd, l, o, v, n), ENOBUFS, -1)
QUICK(int, pipe, (int fd[2]), (fd), EMFILE, -1)
QUICK(int, mkdir, (const char *path, mode_t mode), (path, mode), ENOSPC, -1)
QUICK(int, rename, (const char *from, const char *to), (from, to), EIO, -1)
QUICK(int, fstat, (int fd, struct stat *s), (fd, s), EIO, -1)
CALL(DIR *, opendir, (const char *path), (path), EMFILE, NULL)
CALL(FILE *, fopen, (const char *path, const char *mode), (path, mode), EMFILE, NULL)
CALL(int, fflush, (FILE * f), (f), ENOSPC, EOF)
QUICK(void *, mmap, (void *a, size_t n, int prot, int flags, int fd, off_t o), (a, n, prot, flags, fd, o),
      ENOMEM, MAP_FAILED)

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *user) NEVER_THROWS
{
    static void *at;
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *f = own(&at, "pthread_create");

    memcpy(&real, &f, sizeof real);
    return fails(SYSTEM, "pthread_create") ? EAGAIN : real(t, a, fn, user);
}

/* A failed fclose still closes the file. */
int fclose(FILE *file)
{
    static void *at;
    int (*real)(FILE *), bad = fails(SYSTEM, "fclose");
    void *f = own(&at, "fclose");

    memcpy(&real, &f, sizeof real);
    if (!bad) return real(file);
    (void)real(file);
    errno = ENOSPC;
    return EOF;
}

/* glibc has no function that sets a stream's error flag (_IO_ERR_SEEN). */
static size_t stream_error(FILE *f, int why)
{
    f->_flags |= 0x20;
    errno = why;
    return 0;
}

size_t fread(void *buf, size_t size, size_t n, FILE *file)
{
    static void *at;
    size_t (*real)(void *, size_t, size_t, FILE *);
    void *f = own(&at, "fread");

    memcpy(&real, &f, sizeof real);
    return fails(SYSTEM, "fread") ? stream_error(file, EIO) : real(buf, size, n, file);
}

size_t fwrite(const void *buf, size_t size, size_t n, FILE *file)
{
    static void *at;
    size_t (*real)(const void *, size_t, size_t, FILE *);
    void *f = own(&at, "fwrite");

    memcpy(&real, &f, sizeof real);
    return fails(SYSTEM, "fwrite") ? stream_error(file, ENOSPC) : real(buf, size, n, file);
}

int open(const char *path, int flags, ...)
{
    static void *at;
    int (*real)(const char *, int, ...);
    void *f = own(&at, "open");
    va_list list;
    mode_t mode;

    memcpy(&real, &f, sizeof real);
    va_start(list, flags);
    mode = flags & O_CREAT ? (mode_t)va_arg(list, int) : 0;
    va_end(list);
    if (!fails(SYSTEM, "open")) return real(path, flags, mode);
    errno = flags & O_CREAT ? ENOSPC : EMFILE;
    return -1;
}

#ifdef __cplusplus
}
#endif

#endif /* TESTS_SWEEP_CALLS_H */
