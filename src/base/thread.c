/* Thread sleep, condition variables with time-outs, scheduling hints, and the thread pool. */
#include "base/core.h"

/* A libc header that was included first under strict C hides syscall(). */
#if defined(__linux__) && (defined(__GLIBC__) ? defined(__USE_MISC) : defined(_GNU_SOURCE))
#include <sys/syscall.h>
#endif

struct timespec ddp__timespec(double s)
{
    struct timespec ts;

    ts.tv_sec = (time_t)s;
    ts.tv_nsec = (long)((s - (double)ts.tv_sec) * 1e9);
    return ts;
}

void ddp__sleep_until(double when)
{
    double left, *own = ddp__time();

    if (own) {
        if (*own < when) *own = when;
        return;
    }
    while ((left = when - ddp_now()) > 0) {
        struct timespec ts = ddp__timespec(left < 3600 ? left : 3600);
        nanosleep(&ts, NULL);
    }
}

void ddp__thread_prompt(void)
{
#if defined(SYS_sched_getattr) && defined(SYS_sched_setattr)
    struct { /* sched_setattr(2) */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a;

    memset(&a, 0, sizeof a);
    if (syscall(SYS_sched_getattr, 0, &a, (unsigned)sizeof a, 0u) || a.policy != 0)
        return;         /* the policy is not SCHED_OTHER */
    a.runtime = 100000; /* nanoseconds, the allowed minimum */
    (void)syscall(SYS_sched_setattr, 0, &a, 0u);
#endif
}

double ddp__thread_cpu_s(pthread_t thread)
{
#if defined(_POSIX_THREAD_CPUTIME) && !defined(__APPLE__)
    struct timespec t;
    clockid_t clock;

    if (pthread_getcpuclockid(thread, &clock) == 0 && clock_gettime(clock, &t) == 0)
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
    (void)thread;
    return 0;
}

int ddp__thread_deep(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    const size_t least = (size_t)2 << 20;
    pthread_attr_t attr;
    size_t stack;
    int bad = pthread_attr_init(&attr);

    if (bad) return bad;
    if (!pthread_attr_getstacksize(&attr, &stack) && stack < least)
        bad = pthread_attr_setstacksize(&attr, least);
    if (!bad) bad = pthread_create(thread, &attr, fn, arg);
    pthread_attr_destroy(&attr);
    return bad;
}

int ddp__cond_init(pthread_cond_t *c)
{
#ifdef __APPLE__
    return pthread_cond_init(c, NULL);
#else
    pthread_condattr_t attr;
    int why = pthread_condattr_init(&attr);

    if (why) return why;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    why = pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
    return why;
#endif
}

int ddp__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, double when)
{
    struct timespec ts;

    if (when < 0) return pthread_cond_wait(c, m);
    if (when > 1e9) when = 1e9; /* 31 years: never reached by a clock that starts at boot */
#ifdef __APPLE__
    {
        double left = when - ddp_now();
        if (left < 0) left = 0;
        ts = ddp__timespec(left);
        return pthread_cond_timedwait_relative_np(c, m, &ts);
    }
#else
    ts = ddp__timespec(when);
    return pthread_cond_timedwait(c, m, &ts);
#endif
}

typedef struct ddp__helper {
    struct ddp__pool *pool;
    pthread_t thread;
    int number; /* from 1. The caller of ddp__pool_run has number 0. */
} ddp__helper;

struct ddp__pool {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    int threads, stop;
    int busy;          /* helpers inside the current job */
    unsigned long job; /* number of the current job */
    ddp__room_fn fn;
    void *user;
    long items, grain;
    long next;            /* first item that no thread has taken, atomic */
    unsigned char *rooms; /* aligned part of `memory`, or NULL before ddp__pool_rooms */
    void *memory;
    ddp__helper helper[1]; /* [threads - 1] */
};

static void *ddp__pool_room(const ddp__pool *p, int number)
{
    return p && p->rooms ? p->rooms + (size_t)number * DDP__ROOM_BYTES : NULL;
}

/* Processes blocks until all are taken. Any thread may process any block, because blocks are independent
 * by contract. */
static void ddp__pool_drain(ddp__pool *p, int number)
{
    void *room = ddp__pool_room(p, number);

    for (;;) {
        long first = ddp__atomic_add(&p->next, p->grain), last = first + p->grain;
        if (first >= p->items) return;
        p->fn(p->user, room, first, last < p->items ? last : p->items);
    }
}

static void *ddp__pool_main(void *arg)
{
    const ddp__helper *self = (const ddp__helper *)arg;
    ddp__pool *p = self->pool;
    unsigned long seen = 0;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->job == seen) pthread_cond_wait(&p->work, &p->lock);
        if (p->stop) break;
        seen = p->job;
        p->busy++;
        pthread_mutex_unlock(&p->lock);
        ddp__pool_drain(p, self->number);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0) pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

ddp__pool *ddp__pool_open(int threads)
{
    ddp__pool *p = (ddp__pool *)ddp__calloc(1, sizeof *p + (size_t)threads * sizeof *p->helper);

    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->threads = 1;
    for (int i = 0; i < threads - 1; i++) {
        p->helper[i].pool = p;
        p->helper[i].number = i + 1;
        if (ddp__thread_deep(&p->helper[i].thread, ddp__pool_main, &p->helper[i])) {
            ddp__pool_close(p);
            return NULL;
        }
        p->threads++;
    }
    return p;
}

void ddp__pool_close(ddp__pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads - 1; i++) pthread_join(p->helper[i].thread, NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    if (p->memory) DDP_FREE(p->memory);
    DDP_FREE(p);
}

int ddp__pool_rooms(ddp__pool *p)
{
    const size_t align = 64;

    if (p->rooms) return 1;
    p->memory = DDP_REALLOC(NULL, (size_t)p->threads * DDP__ROOM_BYTES + align); /* the system provides a page
                                                                                    at its first use */
    if (!p->memory) return 0;
    p->rooms = (unsigned char *)p->memory + (align - (uintptr_t)p->memory % align) % align;
    return 1;
}

int ddp__pool_threads(const ddp__pool *p) { return p ? p->threads : 1; }

void ddp__pool_run_rooms(ddp__pool *p, long items, long grain, ddp__room_fn fn, void *user)
{
    if (items <= 0) return;
    if (grain < 1) grain = 1;
    if (!p || p->threads == 1 || items <= grain) {
        void *room = ddp__pool_room(p, 0);
        for (long first = 0; first < items; first += grain)
            fn(user, room, first, first + grain < items ? first + grain : items);
        return;
    }
    pthread_mutex_lock(&p->lock);
    /* a helper that woke late for the previous job must leave it before the fields change */
    while (p->busy) pthread_cond_wait(&p->idle, &p->lock);
    p->fn = fn;
    p->user = user;
    p->items = items;
    p->grain = grain;
    ddp__atomic_store(&p->next, 0L);
    p->job++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    ddp__pool_drain(p, 0);
    pthread_mutex_lock(&p->lock);
    while (p->busy) pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* Adapter for a loop that needs no working memory. */
typedef struct ddp__plain_loop {
    ddp__range_fn fn;
    void *user;
} ddp__plain_loop;

static void ddp__plain_range(void *user, void *room, long first, long last)
{
    const ddp__plain_loop *loop = (const ddp__plain_loop *)user;

    (void)room;
    loop->fn(loop->user, first, last);
}

void ddp__pool_run(ddp__pool *p, long items, long grain, ddp__range_fn fn, void *user)
{
    ddp__plain_loop loop = {fn, user};

    ddp__pool_run_rooms(p, items, grain, ddp__plain_range, &loop);
}
