/* Threads that sleep, wait and share loops. */
#include "base/core.h"

/* syscall() is hidden where a libc header came first under strict C. */
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
        int32_t  nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a;

    memset(&a, 0, sizeof a);
    if (syscall(SYS_sched_getattr, 0, &a, (unsigned)sizeof a, 0u) || a.policy != 0)
        return;         /* not SCHED_OTHER */
    a.runtime = 100000; /* nanoseconds, the least that is allowed */
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
    if (!pthread_attr_getstacksize(&attr, &stack) && stack < least) bad = pthread_attr_setstacksize(&attr, least);
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
    if (when > 1e9) when = 1e9; /* a clock that began with the machine is not there in 31 years */
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

struct ddp__pool {
    pthread_mutex_t lock;
    pthread_cond_t  work, idle;
    int             threads, stop;
    int             busy;        /* helpers inside the current job */
    unsigned long   job;         /* number of the current job */
    ddp__range_fn   fn;
    void           *user;
    long            items, grain;
    long            next;        /* first item nobody has taken; atomic */
    pthread_t       thread[1];   /* [threads - 1] */
};

/* Takes blocks until none is left. Which thread takes a block does not matter: blocks are independent by contract. */
static void ddp__pool_drain(ddp__pool *p)
{
    for (;;) {
        long first = ddp__atomic_add(&p->next, p->grain), last = first + p->grain;
        if (first >= p->items) return;
        p->fn(p->user, first, last < p->items ? last : p->items);
    }
}

static void *ddp__pool_main(void *arg)
{
    ddp__pool *p = (ddp__pool *)arg;
    unsigned long seen = 0;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->job == seen) pthread_cond_wait(&p->work, &p->lock);
        if (p->stop) break;
        seen = p->job;
        p->busy++;
        pthread_mutex_unlock(&p->lock);
        ddp__pool_drain(p);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0) pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

ddp__pool *ddp__pool_open(int threads)
{
    ddp__pool *p = (ddp__pool *)ddp__calloc(1, sizeof *p + (size_t)threads * sizeof *p->thread);

    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->threads = 1;
    for (int i = 0; i < threads - 1; i++) {
        if (ddp__thread_deep(&p->thread[i], ddp__pool_main, p)) {
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
    for (int i = 0; i < p->threads - 1; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    DDP_FREE(p);
}

int ddp__pool_threads(const ddp__pool *p) { return p ? p->threads : 1; }

void ddp__pool_run(ddp__pool *p, long items, long grain, ddp__range_fn fn, void *user)
{
    if (items <= 0) return;
    if (grain < 1) grain = 1;
    if (!p || p->threads == 1 || items <= grain) {
        long first;
        for (first = 0; first < items; first += grain) fn(user, first, first + grain < items ? first + grain : items);
        return;
    }
    pthread_mutex_lock(&p->lock);
    /* a helper that woke late for the previous job must leave it before its fields change */
    while (p->busy) pthread_cond_wait(&p->idle, &p->lock);
    p->fn = fn;
    p->user = user;
    p->items = items;
    p->grain = grain;
    ddp__atomic_store(&p->next, 0L);
    p->job++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    ddp__pool_drain(p);
    pthread_mutex_lock(&p->lock);
    while (p->busy) pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
