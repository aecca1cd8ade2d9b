/* Runs the ranks of one machine as processes (started on a free port, supervised, ended when one of them
 * fails) or as threads. ddp_launch gives each of them a context. */
#include "config/settings.h"
#include "session/part.h"
#include "context/context.h"
#include "session/launch.h"
#include "session/session.h"

#include <signal.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define DDP__MAX_LOCAL 1024

/* Result of a rank, in memory shared with the supervisor. */
typedef struct ddp__verdict {
    int order; /* 1 for the first rank that failed, 2 for the second, ..., or 0 for no failure */
    ddp_error err;
} ddp__verdict;

/* How a rank ended: its process, and the signal or exit code. rank is -1 if no rank has ended. */
typedef struct ddp__end {
    int rank, by;
    long pid;
} ddp__end;

typedef struct ddp__family {
    int world, alive;
    int min_world, lost;   /* elastic: ended ranks whose loss the other ranks tolerate */
    int good;              /* ranks that ended with DDP_OK */
    int *failures;         /* shared: number of failed ranks */
    ddp__verdict *verdict; /* shared: [world] */
    size_t shared_bytes;
    void *shared;
    pid_t *pid;           /* [world], 0 = ended */
    ddp__end killed, odd; /* the first rank that ended by a signal which the supervisor did not send, and
                             with a code but no verdict */
    int rung;             /* next step of the ladder below, or -1 for no failure */
    double rung_at;       /* time at which that step is due */
    int sent;             /* a signal was sent to all ranks */
} ddp__family;

/* Signals of increasing force, and the seconds to wait after each. */
typedef struct ddp__rung {
    int signal;
    double wait_s;
} ddp__rung;
static const ddp__rung ddp__ladder[] = {{SIGINT, 3}, {SIGTERM, 2}, {SIGKILL, 1}};
enum { DDP__RUNG_CANCEL = 0, DDP__RUNG_FAILED = 1, DDP__RUNG_LAST = 2 };

/* Runs a forked rank, and ends its process. */
static void ddp__rank_run(ddp__family *f, int rank, pid_t parent, int fd, const char *addr, ddp__rank_fn fn,
                          void *user)
{
    ddp_error e = DDP__ZEROS;
    ddp_status s;

#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the supervisor dies, the rank ends: a stopped rank would make
                                         the others wait */
    if (getppid() != parent) _exit(DDP_ABORTED); /* the parent died before the line above */
#else
    (void)parent;
#endif
    if (rank != 0) close(fd);
    s = fn(rank, rank == 0 ? fd : -1, addr, user, &e);
    if (s != DDP_OK) {
        ddp__verdict *v = &f->verdict[rank];
        if (!e.msg[0]) snprintf(e.msg, sizeof e.msg, "%s", ddp_status_text(s));
        e.code = s;
        v->err = e;
        ddp__atomic_store(&v->order, 1 + ddp__atomic_add(f->failures, 1));
    }
    fflush(NULL);
    _exit((int)s);
}

static void ddp__family_signal(ddp__family *f, int signal_number)
{
    for (int r = 0; r < f->world; r++)
        if (f->pid[r] > 0) kill(f->pid[r], signal_number);
}

/* Returns 1 if a rank that ended with this error was lost or aborted. */
static int ddp__is_gone(ddp_status code) { return code == DDP_PEER_LOST || code == DDP_ABORTED; }

/* Returns 1 if the other ranks may continue without a rank that ended like this. */
static int ddp__is_lost(const ddp__family *f, int rank, int code)
{
    const ddp__verdict *v = &f->verdict[rank];

    if (f->min_world == 0 || f->sent || f->world - f->lost - 1 < f->min_world) return 0;
    return WIFSIGNALED(code) || (ddp__atomic_load(&v->order) && ddp__is_gone(v->err.code));
}

/* Records how a rank ended. */
static void ddp__rank_ended(ddp__family *f, int rank, int code, double grace_s)
{
    const int signaled = WIFSIGNALED(code), by = signaled ? WTERMSIG(code) : WEXITSTATUS(code);
    const ddp__end end = {rank, by, (long)f->pid[rank]};
    ddp__end *first = signaled ? &f->killed : &f->odd;
    int bad = 0;

    if (ddp__is_lost(f, rank, code)) {
        f->lost++;
    } else if (by) {
        bad = 1;
        if (first->rank < 0 && !f->sent && (signaled || !ddp__atomic_load(&f->verdict[rank].order)))
            *first = end;
    } else {
        f->good++;
    }
    f->pid[rank] = 0;
    f->alive--;
    if (bad && f->rung < 0) {
        f->rung = DDP__RUNG_FAILED;
        f->rung_at = ddp_now() + grace_s;
    }
}

/* Waits for all ranks, and sends signals to those that do not end. Returns 1 if the run was cancelled. */
static int ddp__family_watch(ddp__family *f, const volatile int *cancel, double grace_s)
{
    double pause = 0.001;
    int cancelled = 0, code;

    while (f->alive) {
        for (int r = 0; r < f->world; r++) {
            pid_t got = f->pid[r] > 0 ? waitpid(f->pid[r], &code, WNOHANG) : 0;
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) code = 0; /* reaped elsewhere (SIGCHLD ignored): use its verdict */
            if (got) ddp__rank_ended(f, r, code, grace_s);
        }
        if (cancel && !cancelled && ddp__atomic_load(cancel)) {
            cancelled = 1;
            f->rung = DDP__RUNG_CANCEL;
            f->rung_at = ddp_now();
        }
        if (f->alive && f->rung >= 0 && ddp_now() >= f->rung_at) {
            f->sent = 1;
            ddp__family_signal(f, ddp__ladder[f->rung].signal);
            f->rung_at = ddp_now() + ddp__ladder[f->rung].wait_s;
            if (f->rung < DDP__RUNG_LAST) f->rung++;
        }
        if (!f->alive) break;
        ddp__sleep_until(ddp_now() + pause);
        if (pause < 0.03) pause *= 1.5;
    }
    return cancelled;
}

static ddp_status ddp__family_result(const ddp__family *f, int cancelled, ddp_error *err)
{
    int first = -1, order, least = INT_MAX;

    for (int r = 0; r < f->world; r++) {
        order = ddp__atomic_load(&f->verdict[r].order);
        if (!order || order >= least) continue;
        if (f->min_world && f->good >= f->min_world && ddp__is_gone(f->verdict[r].err.code))
            continue; /* the other ranks continued without it */
        least = order;
        first = r;
    }
    if (first < 0 && f->killed.rank < 0 && f->odd.rank < 0 && !cancelled && f->good < f->min_world)
        return ddp__fail(err, DDP_PEER_LOST, "%d of %d ranks succeeded, min_world is %d", f->good, f->world,
                         f->min_world);
    if (f->killed.rank >= 0)
        return ddp__fail(err, DDP_PEER_LOST, "rank %d (process %ld) was killed by signal %d%s%s%.250s",
                         f->killed.rank, f->killed.pid, f->killed.by,
                         f->killed.by == SIGKILL ? " (out of memory?)" : "", first >= 0 ? "; " : "",
                         first >= 0 ? f->verdict[first].err.msg : "");
    if (cancelled && (first >= 0 || f->odd.rank >= 0 || f->sent))
        return ddp__fail(err, DDP_ABORTED, "stopped by request");
    if (first >= 0)
        return ddp__fail(err, f->verdict[first].err.code, "rank %d: %.380s", first,
                         f->verdict[first].err.msg);
    if (f->odd.rank >= 0)
        return ddp__fail(err, DDP_FAILED, "rank %d (process %ld) ended by exit(%d)", f->odd.rank, f->odd.pid,
                         f->odd.by);
    return DDP_OK;
}

/* Listens on a free port of the loopback interface. */
static ddp_status ddp__listen_here(ddp__addr *at, int *fd, ddp_error *err)
{
    int count;

    DDP__TRY(ddp__addr_parse("127.0.0.1:0", at, 1, &count, err));
    return ddp__tcp_listen(at, fd, at, err);
}

/* Forks all ranks. On failure ends those that were forked. */
static ddp_status ddp__family_fork(ddp__family *f, int fd, const char *addr, ddp__rank_fn fn, void *user,
                                   ddp_error *err)
{
    pid_t self = getpid();
    int r, why, code;

    fflush(NULL);
    for (r = 0; r < f->world; r++) {
        f->pid[r] = fork();
        if (f->pid[r] == 0) ddp__rank_run(f, r, self, fd, addr, fn, user);
        if (f->pid[r] < 0) break;
        f->alive++;
    }
    if (r == f->world) return DDP_OK;
    why = errno;
    f->world = r;
    ddp__family_signal(f, SIGKILL);
    while (r-- > 0)
        while (waitpid(f->pid[r], &code, 0) < 0 && errno == EINTR) {
        }
    return ddp__fail(err, DDP_FAILED, "cannot fork rank %d: %s", f->world, strerror(why));
}

ddp_status ddp__spawn(int world, int min_world, const volatile int *cancel, double grace_s, ddp__rank_fn fn,
                      void *user, ddp_error *err)
{
    ddp__family f = DDP__ZEROS;
    ddp__addr at;
    char addr[DDP__ADDR_TEXT];
    ddp_status bad;
    int fd = -1;

    if (world < 1 || world > DDP__MAX_LOCAL)
        return ddp__fail(err, DDP_ARG, "%d ranks on one machine: 1 to %d are possible", world,
                         DDP__MAX_LOCAL);
    f.world = world;
    f.min_world = min_world;
    f.killed.rank = f.odd.rank = f.rung = -1;
    DDP__TRY(ddp__listen_here(&at, &fd, err));
    ddp__addr_text(&at, addr);
    f.shared_bytes = sizeof(ddp__verdict) * ((size_t)world + 1);
    f.shared = mmap(NULL, f.shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANON, -1, 0);
    f.pid = (pid_t *)ddp__calloc((size_t)world, sizeof *f.pid);
    if (f.shared == MAP_FAILED || !f.pid) {
        bad = ddp__fail(err, DDP_MEMORY, "out of memory for %d ranks", world);
    } else {
        f.verdict = (ddp__verdict *)f.shared;
        f.failures = &f.verdict[world].order;
        bad = ddp__family_fork(&f, fd, addr, fn, user, err);
    }
    close(fd);
    if (!bad) {
        int cancelled = ddp__family_watch(&f, cancel, grace_s > 0 ? grace_s : 15);
        bad = ddp__family_result(&f, cancelled, err);
    }
    if (f.shared != MAP_FAILED) munmap(f.shared, f.shared_bytes);
    DDP_FREE(f.pid);
    return bad;
}

/* ---- threads ---- */

typedef struct ddp__team {
    pthread_mutex_t lock;
    pthread_cond_t gate;
    int open;  /* 1: run, -1: not all threads could be started */
    int ranks; /* ranks assigned so far */
    ddp__rank_fn fn;
    void *user;
    ddp_error first;
} ddp__team;

static void *ddp__member_run(void *arg)
{
    ddp__team *t = (ddp__team *)arg;
    ddp_error e = DDP__ZEROS;
    ddp_status s;
    int open, rank;

    pthread_mutex_lock(&t->lock);
    rank = t->ranks++;
    while (!t->open) pthread_cond_wait(&t->gate, &t->lock);
    open = t->open;
    pthread_mutex_unlock(&t->lock);
    if (open < 0) return NULL;
    s = t->fn(rank, -1, "", t->user, &e);
    if (s == DDP_OK) return NULL;
    pthread_mutex_lock(&t->lock);
    if (t->first.code == DDP_OK)
        ddp__fail(&t->first, s, "rank %d: %.380s", rank, e.msg[0] ? e.msg : ddp_status_text(s));
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

ddp_status ddp__spawn_threads(int world, ddp__rank_fn fn, void *user, ddp_error *err)
{
    ddp__team t = DDP__ZEROS;
    pthread_t *thread;
    int started, why = 0;

    if (world < 1 || world > DDP__MAX_LOCAL)
        return ddp__fail(err, DDP_ARG, "%d ranks on one machine: 1 to %d are possible", world,
                         DDP__MAX_LOCAL);
    t.fn = fn;
    t.user = user;
    thread = (pthread_t *)ddp__calloc((size_t)world, sizeof *thread);
    if (!thread) return ddp__fail(err, DDP_MEMORY, "out of memory for %d ranks", world);
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.gate, NULL);
    for (started = 0; started < world && !why; started += !why)
        why = ddp__thread_deep(&thread[started], ddp__member_run, &t);
    pthread_mutex_lock(&t.lock);
    t.open = why ? -1 : 1;
    pthread_cond_broadcast(&t.gate);
    pthread_mutex_unlock(&t.lock);
    for (int r = 0; r < started; r++) pthread_join(thread[r], NULL);
    pthread_cond_destroy(&t.gate);
    pthread_mutex_destroy(&t.lock);
    DDP_FREE(thread);
    if (why)
        return ddp__fail(err, DDP_FAILED, "cannot start a thread for rank %d: %s", started, strerror(why));
    if (t.first.code != DDP_OK) return ddp__fail(err, t.first.code, "%s", t.first.msg);
    return DDP_OK;
}

/* ---- ddp_launch ---- */

typedef struct ddp__launch {
    const ddp_config *cfg;
    const ddp__strategies *list;
    int (*fn)(ddp_ctx *, void *);
    void *user;
    ddp__hub *hub;
} ddp__launch;

static ddp_status ddp__launch_rank(int rank, int listen_fd, const char *addr, void *user, ddp_error *err)
{
    const ddp__launch *L = (const ddp__launch *)user;
    ddp_config cfg = *L->cfg;
    ddp_ctx *d;
    int code;

    cfg.rank = rank;
    if (*addr) cfg.addr = addr;
    d = ddp__open(&cfg, L->list, L->hub, listen_fd, err);
    if (!d) {
        /* otherwise the other ranks would wait for its first byte */
        if (L->hub) ddp__hub_leave(L->hub, rank);
        return err->code;
    }
    code = L->fn(d, L->user);
    if (ddp__error(d)->code) {
        *err = *ddp__error(d);
        code = (int)ddp__error(d)->code;
    } else if (code) {
        if (code < 0 || code >= (int)DDP_STATUS_COUNT) code = (int)DDP_FAILED;
        ddp__fail(err, (ddp_status)code, "rank %d returned %d (%s) without an error of the context",
                  ddp_rank(d), code, ddp_status_text((ddp_status)code));
    }
    ddp_close(d);
    return (ddp_status)code;
}

int ddp__launch_all(const ddp_config *given, const ddp__strategies *list, int (*fn)(ddp_ctx *, void *),
                    void *user, ddp_error *err)
{
    ddp_strategy_ops ops;
    ddp_config cfg;
    ddp_error local;
    ddp__launch L = {&cfg, list, fn, user, NULL};
    ddp__env env = DDP__ZEROS;
    ddp_status s;

    if (!err) err = &local;
    memset(err, 0, sizeof *err);
    if (!given || !fn) return (int)ddp__fail(err, DDP_ARG, "ddp_launch: configuration or function is NULL");
    if (!given->no_env) DDP__DO(ddp__env_read(&env, err));
    cfg = *given;
    if (env.launcher) cfg.rank = cfg.world = 0; /* a launcher made the ranks: this is one of them */
    /* one worker, or one rank of a world whose other ranks are started elsewhere */
    if (cfg.world <= 1 || cfg.addr) return (int)ddp__launch_rank(cfg.rank, -1, "", &L, err);
    /* check the configuration once, because every rank would fail in the same way */
    DDP__DO(ddp__config_resolve(given, list, &cfg, &ops, err));
    if (cfg.transport == DDP_MPI) {
        s = ddp__fail(err, DDP_USAGE,
                      "the mpi transport's ranks are started by an MPI launcher: mpirun -n %d before "
                      "the command",
                      cfg.world);
    } else if (cfg.transport == DDP_SOCKETS) {
        s = ddp__fail(err, DDP_USAGE,
                      "ddp_launch starts no ranks of the sockets transport: call ddp_open in each of the %d "
                      "processes",
                      cfg.world);
    } else if (cfg.transport == DDP_THREADS) {
        L.hub = ddp__hub_new(cfg.world);
        if (L.hub && ddp__two_links(&cfg) && !ddp__hub_second(L.hub, 1)) {
            ddp__hub_free(L.hub);
            L.hub = NULL;
        }
        s = L.hub ? ddp__spawn_threads(cfg.world, ddp__launch_rank, &L, err)
                  : ddp__fail(err, DDP_MEMORY, "out of memory for a hub of %d threads", cfg.world);
        if (L.hub) ddp__hub_free(L.hub);
    } else {
        s = ddp__spawn(cfg.world,
                       cfg.elastic.min_world +
                           (cfg.elastic.min_world && cfg.server.count > 0 ? cfg.server.count : 0),
                       cfg.cancel, 0, ddp__launch_rank, &L, err);
    }
    ddp__config_free(&cfg);
    return (int)s;
}
