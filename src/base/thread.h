/* Threads, locks and atomics with one spelling in C11 and C++17. */
#ifndef DDP_BASE_THREAD_H
#define DDP_BASE_THREAD_H

#include "base/platform.h"
#include "base/config.h"

#define ddp__atomic_load(p)       __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define ddp__atomic_store(p, v)   __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define ddp__atomic_add(p, v)     __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)
#define ddp__atomic_swap(p, v)    __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)

/* Sleeps until ddp_now() >= when (seconds), whatever signals arrive. */
DDP_LIB void ddp__sleep_until(double when);

/* Asks the scheduler to run the calling thread soon after it wakes, for the little it has to do,
 * even where computing threads keep every core busy: short time slices, which need no privilege
 * (Linux 6.12 and later; elsewhere nothing happens). */
DDP_LIB void ddp__thread_prompt(void);

/* pthread_create of a thread that computes: operators keep their blocks on the stack (400 KiB of a
 * matrix product), and musl gives a thread 128 KiB, macOS 512. */
DDP_LIB int ddp__thread_deep(pthread_t *thread, void *(*fn)(void *), void *arg);

/* Processor time that a running thread has used so far, seconds; 0 where the system does not tell. */
DDP_LIB double ddp__thread_cpu_s(pthread_t thread);

/* A condition variable on the monotonic clock. */
DDP_LIB int ddp__cond_init(pthread_cond_t *c);
/* Waits for c until ddp_now() reaches when; when < 0 waits without limit. 0, or ETIMEDOUT. */
DDP_LIB int ddp__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, double when);

/* A pool that splits loops over threads and sleeps in between; one caller at a time.
 * fn(user, first, last) handles items first..last-1. The split depends only on items and
 * grain, never on the number of threads, so results cannot either. */
typedef struct ddp__pool ddp__pool;
typedef void (*ddp__range_fn)(void *user, long first, long last);

/* threads >= 1, the caller included; NULL when memory or threads are short. */
DDP_LIB ddp__pool *ddp__pool_open(int threads);
DDP_LIB void ddp__pool_close(ddp__pool *pool);
DDP_LIB int  ddp__pool_threads(const ddp__pool *pool);
/* Runs fn over 0..items in blocks of grain items; returns when all are done. NULL pool: inline. */
DDP_LIB void ddp__pool_run(ddp__pool *pool, long items, long grain, ddp__range_fn fn, void *user);

#endif /* DDP_BASE_THREAD_H */
