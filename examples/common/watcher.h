/* SIGUSR1 and Ctrl-C while a rank waits: one thread per rank polls the counters of the signal handlers. The
 * handlers only count. The library installs no handler. */
#ifndef EXAMPLES_WATCHER_H
#define EXAMPLES_WATCHER_H

#include <pthread.h>
#include <sys/mman.h>

/* Number of requests for a dump, in memory shared by the worker processes, so that a signal to one process of
 * the machine reaches all its ranks. NULL means that the handler is not installed. */
static int *watcher_calls;

static void watcher_on_signal(int number)
{
    (void)number;
    __atomic_add_fetch(watcher_calls, 1, __ATOMIC_RELAXED);
}

/* Call it before the workers are started. */
static inline void watcher_catch(void)
{
    struct sigaction a;
    void *p = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) return;
    watcher_calls = (int *)p;
    memset(&a, 0, sizeof a);
    a.sa_handler = watcher_on_signal;
    a.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &a, NULL);
}

typedef struct watcher {
    ddp_ctx *d;
    const char *dump; /* file, %r = rank, or NULL for dreamddp-dump.%r.jsonl */
    int elastic;      /* SIGTERM takes this worker out between steps, without an abort */
    int stop, running;
    pthread_t thread;
} watcher;

/* Prints where the dump is: the path with %r replaced by the rank, as ddp_dump does. */
static void watcher_tell(int rank, const char *path)
{
    fprintf(stderr, "rank %d: dump in ", rank);
    for (; *path; path++)
        if (path[0] == '%' && path[1] == 'r') {
            fprintf(stderr, "%d", rank);
            path++;
        } else {
            fputc(*path, stderr);
        }
    fputc('\n', stderr);
}

static void *watcher_run(void *arg)
{
    watcher *w = (watcher *)arg;
    int seen = watcher_calls ? __atomic_load_n(watcher_calls, __ATOMIC_RELAXED) : 0;
    double interrupted = 0;

    while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
        struct timespec pause = {0, 50000000};
        int calls = watcher_calls ? __atomic_load_n(watcher_calls, __ATOMIC_RELAXED) : 0;
        if (calls != seen) {
            ddp_error why;
            const char *path = w->dump ? w->dump : "dreamddp-dump.%r.jsonl";
            seen = calls;
            if (ddp_dump(w->d, path, &why))
                fprintf(stderr, "rank %d: no dump: %s\n", ddp_rank(w->d), why.msg);
            else
                watcher_tell(ddp_rank(w->d), path);
        }
        /* the training loop polls between steps, but not inside a wait */
        if (cli_interrupted && interrupted <= 0 && !(w->elastic && cli_interrupted == CLI_TERMINATED))
            interrupted = ddp_now() + 0.5;
        if (interrupted > 0 && ddp_now() > interrupted) {
            ddp_abort(w->d, "interrupted");
            interrupted = 1e300;
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static inline void watcher_start(watcher *w, ddp_ctx *d, const char *dump, int elastic)
{
    memset(w, 0, sizeof *w);
    w->d = d;
    w->dump = dump;
    w->elastic = elastic;
    w->running = !pthread_create(&w->thread, NULL, watcher_run, w);
}

/* Call it before the context is closed. */
static inline void watcher_stop(watcher *w)
{
    if (!w->running) return;
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
    pthread_join(w->thread, NULL);
    w->running = 0;
}

#endif /* EXAMPLES_WATCHER_H */
